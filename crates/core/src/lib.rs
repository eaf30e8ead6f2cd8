//! Embedrock keeps embedding tables that are larger than memory on a small slice of DRAM and an
//! ordinary SSD. This crate is the engine: no Python, no network, no async runtime.

pub mod distinct;
pub mod error;
pub mod hash;
pub mod index;
pub mod init;
pub mod io;
pub mod optimizer;
pub mod prefetch;
pub mod row;

pub use error::{Error, ErrorKind, Result};
