//! The functions of weft.h, with simulated NICs and devices behind them.

pub use weft::capi;
