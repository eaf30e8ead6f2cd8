//! Storage layouts: where rows live when they are not in DRAM. Each layout owns its index.
//!
//! [`log`] is the usual layout, [`lsm`] a log above a bottom, [`pmem`] regions that are mapped. The
//! interface of a layout is in `traits.rs`; `kinds.rs` makes one of the kind that a class has. A
//! layout never sees the cache; it learns of resident rows through [`Residents`]. Pages, their
//! reader and the buffer of dirty rows are tools of every layout.

mod buffer;
mod changes;
#[cfg(test)]
mod contract;
mod facts;
mod failures;
mod kinds;
pub(crate) mod log;
pub(crate) mod lsm;
#[cfg(test)]
mod map;
mod need;
pub(crate) mod page;
mod pins;
mod placement;
pub(crate) mod pmem;
mod read;
mod reader;
mod report;
mod size;
mod sweep;
mod traits;

pub(crate) use buffer::{DirtyRow, FlushBuffer};
pub(crate) use changes::{RowChange, SlotSet};
pub(crate) use facts::{ClassFacts, OpenAt, TableFacts};
pub(crate) use kinds::{check_class, create, recovery};
pub(crate) use log::demand::{Demand, Share};
pub(crate) use log::{ClassNeed, StretchPoints, choose_segment, seed_of_file};
pub(crate) use need::{
    disk_bytes_for, index_memory, index_memory_to_grow, is_packed, packed_growth,
};
pub use page::PageLayout;
pub(crate) use pins::{Begun, Parts};
pub(crate) use placement::{Freeze, FreezePlan, Placement};
pub(crate) use pmem::{
    LentRows, Region, Resize, Writer as RegionWriter, has_regions, remove_other_regions, resize,
    table_of_region,
};
pub(crate) use read::{Found, PageAddress, PageSource, Resolved, Want};
pub(crate) use reader::PageReader;
pub(crate) use report::{
    Cut, MergeCounts, SpaceBound, StorageMemory, StorageStats, UnitReport, Written,
};
pub(crate) use size::{PAGE_SIZES, choose_page, possible_pages};
pub(crate) use sweep::{Areas, Checked, Finding, Sweep, SweptRow, TakeRows};
pub(crate) use traits::{
    Hearer, Storage, StorageBudget, StorageChanges, StorageCounts, StorageFreeze, StorageJournal,
    StoragePins, StorageRead, StorageRecovery, StorageRefresh, StorageSpace, StorageStretches,
    StorageSweeps, StorageTables, StorageUpkeep, StorageWrite, Unit,
};

/// The questions of a layout about rows in DRAM while it moves stored copies.
pub(crate) trait Residents {
    /// True when DRAM holds a newer row than storage does: the stored copy need not be moved.
    fn is_dirty(&self, table: u16, key: u64) -> bool;
    /// True while a commit writes the rows that were dirty when it began.
    fn are_being_written(&self) -> bool;
    /// A stored copy moved; a resident row must remember its new origin.
    fn moved(&self, table: u16, key: u64, old: u32, new: u32);
}
