//! Embedrock keeps embedding tables that are larger than memory on a small slice of DRAM and an
//! ordinary SSD. This crate is the engine: no Python, no network, no async runtime.
//!
//! Levels, each using lower ones only: store (4); cache and storage (3), which do not see each
//! other; index (2); io (1); everything else (0). `ARCHITECTURE.md` draws the arrows.
//!
//! A [`Store`] and what its calls take and give are the interface. [`laboratory`] is none.

pub mod activation;
mod arena;
pub mod buckets;
mod cache;
pub mod clip;
pub mod config;
mod distinct;
pub mod error;
mod half;
pub mod hash;
mod idle;
mod index;
pub mod init;
pub mod io;
#[doc(hidden)]
pub mod laboratory;
pub mod logs;
mod metrics;
pub mod optimizer;
mod permits;
pub mod planted;
mod prefetch;
mod quantized;
pub mod row;
mod storage;
pub mod store;
#[cfg(test)]
mod test_extent;

pub use arena::trim_heap;
pub use clip::Clip;
pub use config::{
    Amount, CommitInfo, GetBatch, LookaheadBatch, Memory, MemoryUnit, MergePicker, NonFinite,
    PinInfo, PutBatch, ScheduledBatch, StorageKind, StoreOptions, TableId, TableInfo, TableSpec,
    Uncommitted, UpdateBatch, UpdateReport, UpkeepScheduler, ValuesOut,
};
pub use distinct::distinct;
pub use error::{Error, ErrorKind, Result};
pub use permits::{Entered, PermitStats, Permits, Ready, UNBOUNDED};
pub use store::{
    CANDIDATES_MAX, ChangedRows, Changes, CheckReport, CopyOptions, CopyReport, FreezeError,
    FreezeOptions, FreezeReport, Frozen, PendingCommit, PlannedPages, RowReads, RowViews, Scan,
    Since, Stats, Store, WindowStats, check, check_place, copy, copy_with, freeze, freeze_again,
};
pub use store::{CommitFile, CommitFiles, finish_pull};
pub use store::{Part, ReshardOptions, reshard};
pub use store::{ResizeReport, ResizeTo, resize};
