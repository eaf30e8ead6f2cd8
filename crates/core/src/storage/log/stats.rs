//! The statistics of a log.

use super::ClassLog;
use crate::storage::{MergeCounts, StorageCounts, StorageSpace, StorageStats, Written};

impl StorageCounts for ClassLog {
    fn stats(&self) -> StorageStats {
        StorageStats {
            merged: MergeCounts::default(),
            disk_bytes: self.disk_bytes(),
            rows_per_page: self.layout().rows_per_page,
            newest_copies: self.segments.newest_total(),
            retained_copies: self.segments.retained_total(),
            used_slots: self.segments.used_slots(),
            index_bytes: self.index_bytes(),
            written: self.written(),
        }
    }

    fn rows_stored(&self, table: u16) -> u64 {
        self.index(table).len()
    }

    fn outdated_bytes(&self) -> u64 {
        let needed = self.segments.newest_total() + self.segments.pinned_slots();
        self.bytes_of_slots(self.segments.used_slots().saturating_sub(needed))
    }
}

impl ClassLog {
    /// Bytes of all indexes and segment counters.
    pub(super) fn index_bytes(&self) -> u64 {
        self.table_bytes() + self.segments.memory_bytes() as u64
    }

    /// Bytes of all indexes.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.tables.iter().map(|(_, index)| index.memory_bytes() as u64).sum()
    }

    /// The bytes written since open.
    pub(super) fn written(&self) -> Written {
        Written {
            rows: self.rows_written,
            rows_moved: self.rows_moved,
            pages: self.pages_before + self.writer.pages_written(),
        }
    }
}
