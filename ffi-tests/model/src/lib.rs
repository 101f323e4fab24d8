//! A model-based property test: random operations between two endpoints, through
//! the public C functions, beside a plain model that knows what they should do.
//! Every byte of both sides, every completion, message and notification is compared.
//!
//! | | |
//! | --- | --- |
//! | [`case`] | what a case is: operations, and how they are printed |
//! | [`plan`] | draws cases |
//! | [`shape`] | pages x layers, fitted into ranges, and the bytes they name |
//! | [`arena`] | a side's bytes |
//! | [`model`] | what should happen |
//! | [`messages`] | which messages may arrive, and in what order |
//! | [`side`] | an endpoint, through the C functions |
//! | [`driver`] | does what a case says, and asks the model about all that comes |
//! | [`moves`] | the driver's part about writes and reads |
//! | [`lists`] | that about lists and kept geometry |
//! | [`counters`], [`counting`] | that about counters; what they may say |
//! | [`atomics`] | that about atomics |
//! | [`run`] | draws, runs and shrinks; how a failure is replayed |
//!
//! A new operation is a variant of [`case::Op`], a strategy in [`plan`], and a
//! function of the driver that submits it and tells the model.

pub mod arena;
pub mod atomics;
pub mod case;
pub mod counters;
pub mod counting;
pub mod driver;
pub mod lists;
pub mod messages;
pub mod model;
pub mod moves;
pub mod plan;
pub mod run;
pub mod shape;
pub mod side;
