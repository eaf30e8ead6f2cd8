//! What the layouts say of themselves, and what they are told of room, whatever they are.

use crate::io::File;
use std::sync::Arc;

/// What a layout has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Rows that verbs changed.
    pub rows: u64,
    /// Rows that upkeep moved.
    pub rows_moved: u64,
    /// Pages with either.
    pub pages: u64,
}

/// What is stored, and what it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageStats {
    /// Bytes of the files of rows.
    pub disk_bytes: u64,
    /// Copies that are the newest of their key.
    pub newest_copies: u64,
    /// Outdated copies that kept commits still have.
    pub retained_copies: u64,
    /// Rows of a page.
    pub rows_per_page: usize,
    /// Places for rows that are in use, or become free only with others.
    pub used_slots: u64,
    /// Bytes of the indexes and what is counted beside them.
    pub index_bytes: u64,
    /// What was written since open.
    pub written: Written,
}

/// How a layout spends memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageMemory {
    /// Bytes of the indexes and what is counted beside them.
    pub index_bytes: u64,
    /// Bytes of rows that wait, of writes, and of changes that wait for the journal.
    pub buffer_bytes: u64,
}

/// The end of a layout's part of a commit.
pub struct Cut {
    /// The file that has to be synced for all of it to be durable.
    pub unsynced: Option<Arc<dyn File>>,
    /// Where the layout was when the commit before was cut: its own number.
    pub began: u64,
    /// Where it is now.
    pub position: u64,
    /// Bytes of indexes and `record`: what a new journal file holds of this layout.
    pub index_bytes: u64,
    /// What a journal file that begins with this commit says of the layout, if that was wanted.
    pub record: Option<String>,
    /// Into how many parts growing tables are divided, of those for which recovery must know.
    pub partitions: Vec<(u16, u32)>,
    /// What was written since open.
    pub written: Written,
}

/// How much room upkeep may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceBound {
    /// The layout may take so many bytes of the disk.
    Most(u64),
    /// Somebody else was refused room.
    Beside,
}

/// What a unit of upkeep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitReport {
    /// Pages read back.
    pub pages: u64,
    /// Rows written again.
    pub rows_moved: u64,
}
