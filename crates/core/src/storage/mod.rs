//! Storage layouts: where rows live when they are not in DRAM. Each layout owns its index.
//!
//! The only layout so far is [`log`]. A layout never sees the cache; what it must know of resident
//! rows comes through [`Residents`]. Pages, their reader and the buffer of dirty rows are tools of
//! every layout.

mod buffer;
pub mod log;
pub mod lsm;
pub mod page;
mod read;
mod reader;

pub use buffer::{DirtyRow, FlushBuffer};
pub use page::PageLayout;
pub use read::{Found, PageAddress, PageSource, Resolved, Want};
pub use reader::PageReader;

/// What a layout asks about rows in DRAM while it moves stored copies.
pub trait Residents {
    /// True when DRAM holds a newer row than storage does: the stored copy need not be moved.
    fn is_dirty(&self, table: u16, key: u64) -> bool;
    /// True while a commit writes the rows that were dirty when it began.
    fn are_being_written(&self) -> bool;
    /// A stored copy moved; a resident row must remember the new place.
    fn moved(&self, table: u16, key: u64, old_slot: u32, new_slot: u32);
}
