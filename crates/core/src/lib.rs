//! Embedrock keeps embedding tables that are larger than memory on a small slice of DRAM and an
//! ordinary SSD. This crate is the engine: no Python, no network, no async runtime.

mod arena;
pub mod cache;
pub mod error;
pub mod hash;
pub mod io;

pub use error::{Error, ErrorKind, Result};
