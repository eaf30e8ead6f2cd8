//! Reports of layouts about themselves, and the room that they are told of, for any layout.

use crate::io::File;
use std::sync::Arc;
use std::time::Duration;

/// The bytes that a layout has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Rows that verbs changed.
    pub rows: u64,
    /// Rows that upkeep moved.
    pub rows_moved: u64,
    /// Pages with either.
    pub pages: u64,
}

/// Counts of a layout's merges since open, of those whose outcome was taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MergeCounts {
    /// Number of merges.
    pub merges: u64,
    /// Rows and tombstones that they took out of the newest rows.
    pub taken: u64,
    /// Rows of old files that newer ones or deletions have outdated.
    pub outdated: u64,
    /// Rows of old files that were copied.
    pub copied: u64,
    /// Rows of new files.
    pub rows: u64,
    /// Pages of new files.
    pub pages: u64,
    /// Bytes of pages that were read, of old files and of the newest rows.
    pub bytes_read: u64,
    /// Of these, bytes of the newest rows.
    pub bytes_read_above: u64,
    /// Bytes of new files.
    pub bytes_written: u64,
    /// The time of their steps.
    pub busy: Duration,
    /// The longest of these times.
    pub busy_max: Duration,
    /// The time from begin until the outcome was in place.
    pub latency: Duration,
    /// The longest of these times.
    pub latency_max: Duration,
}

impl MergeCounts {
    /// Adds what other merges did.
    pub(crate) fn add(&mut self, other: &Self) {
        self.merges += other.merges;
        self.taken += other.taken;
        self.outdated += other.outdated;
        self.copied += other.copied;
        self.rows += other.rows;
        self.pages += other.pages;
        self.bytes_read += other.bytes_read;
        self.bytes_read_above += other.bytes_read_above;
        self.bytes_written += other.bytes_written;
        self.busy += other.busy;
        self.busy_max = self.busy_max.max(other.busy_max);
        self.latency += other.latency;
        self.latency_max = self.latency_max.max(other.latency_max);
    }
}

/// The stored rows, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageStats {
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
    /// The bytes written since open.
    pub written: Written,
    /// The work of merges since open, if the layout has them.
    pub merged: MergeCounts,
}

/// Memory use of a layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageMemory {
    /// Bytes of the indexes and what is counted beside them.
    pub index_bytes: u64,
    /// Bytes of rows that wait, of writes, and of changes that wait for the journal.
    pub buffer_bytes: u64,
}

impl StorageMemory {
    /// All of it.
    pub(crate) fn total(&self) -> u64 {
        self.index_bytes + self.buffer_bytes
    }
}

/// The end of a layout's part of a commit.
pub(crate) struct Cut {
    /// The file that has to be synced for all of it to be durable.
    pub unsynced: Option<Arc<dyn File>>,
    /// The layout's position when the commit before was cut, its own number, or one before it;
    /// `None` where there is none that a reader may count from.
    pub began: Option<u64>,
    /// Its current position.
    pub position: u64,
    /// Bytes of indexes and `record`: what a new journal file holds of this layout.
    pub index_bytes: u64,
    /// The layout's record in a journal file that begins with this commit, if it was wanted.
    pub record: Option<String>,
    /// Number of parts of each growing table whose division recovery must know.
    pub partitions: Vec<(u16, u32)>,
    /// The bytes written since open.
    pub written: Written,
}

/// The room that upkeep may count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceBound {
    /// The layout may take so many bytes of the disk.
    Most(u64),
    /// Somebody else was refused room.
    Beside,
}

/// The work of a unit of upkeep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnitReport {
    /// Pages read back.
    pub pages: u64,
    /// Rows written again.
    pub rows_moved: u64,
}
