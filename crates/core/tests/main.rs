//! Whole stores in real directories. One program for all of them: each would be linked with the
//! engine again.

mod common;
mod crash;
mod decoders;
mod edge_cases;
mod locks;
mod refresh;
mod store;
