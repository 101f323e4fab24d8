//! Whole endpoints over simulated NICs, with manual progress and virtual time: nothing here needs the kernel, so that
//! Miri can run it (tools/miri.sh).
#![cfg(feature = "sim")]

mod ends;
mod grants;
mod threads;
mod transfers;
mod world;
