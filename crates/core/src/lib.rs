//! Embedrock keeps embedding tables that are larger than memory on a small slice of DRAM and an
//! ordinary SSD. This crate is the engine: no Python, no network, no async runtime.
//!
//! Levels, each using lower ones only: store (4); cache and storage (3), which do not see each
//! other; index (2); io (1); everything else (0). `ARCHITECTURE.md` draws the arrows.

pub mod activation;
mod arena;
pub mod cache;
pub mod clip;
pub mod config;
pub mod distinct;
pub mod error;
mod half;
pub mod hash;
mod idle;
pub mod index;
pub mod init;
pub mod io;
pub mod metrics;
pub mod optimizer;
mod permits;
pub mod planted;
pub mod prefetch;
pub mod row;
pub mod storage;
pub mod store;

#[cfg(any(test, feature = "testing"))]
pub use arena::keep_freed;
pub use clip::Clip;
pub use config::{
    CommitInfo, GetBatch, LookaheadBatch, Memory, MemoryUnit, NonFinite, PutBatch, StoreOptions,
    TableId, TableInfo, TableSpec, Uncommitted, UpdateBatch, UpdateReport, ValuesOut,
};
pub use distinct::distinct;
pub use error::{Error, ErrorKind, Result};
pub use permits::{Entered, PermitStats, Permits, Ready, UNBOUNDED};
pub use store::{
    CheckReport, CopyReport, PendingCommit, RowReads, Scan, Stats, Store, WindowStats, check,
    check_place, copy,
};
