//! The store's facts about row classes and tables, in words that every layout understands.

use crate::config::{Merging, StorageKind};

/// A row class: what its record says of its pages and its file, and options of merges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClassFacts {
    /// Number of the class.
    pub class: u16,
    /// The storage layout of its rows.
    pub kind: StorageKind,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Bytes of a segment of a log.
    pub segment_bytes: u64,
    /// Seed of the store's checksums.
    pub seed: u64,
    /// The settings of merges in the options of this opening.
    pub merging: Merging,
}

/// A table: what its record says of its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableFacts<'a> {
    /// Number of the table.
    pub table: u16,
    /// Its name.
    pub name: &'a str,
    /// The salt with which its keys are mixed.
    pub salt: u64,
    /// Ids of a dense table; `None` for a growing one.
    pub num_embeddings: Option<u64>,
    /// Rows that the table is to have, where somebody said so.
    pub expected_rows: Option<u64>,
    /// Whether the index of a dense table has room for ids with a row alone.
    pub packed: bool,
    /// Rows for which a region has room.
    pub capacity: Option<u64>,
    /// Parts of a growing table's index when the record was written; `None` for a new table.
    pub partitions: Option<u32>,
    /// True when its index was empty when the record was written, so that it has no pieces.
    pub born: bool,
}

/// The commit at which what was recovered is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenAt {
    /// Number of the commit, 0 for none.
    pub commit: u64,
    /// The class's position that the commit notes: no page of it has a larger sequence.
    pub position: u64,
    /// Whether no commit follows it.
    pub is_newest: bool,
    /// Pages written from now on have larger sequences than this; `None` when nothing is written.
    pub write_after: Option<u64>,
}
