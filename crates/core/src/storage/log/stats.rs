//! What a log says of itself.

use super::ClassLog;
use crate::storage::{StorageMemory, StorageStats, Written};

impl ClassLog {
    /// Counters, and what is stored.
    pub fn stats(&self) -> StorageStats {
        StorageStats {
            disk_bytes: self.disk_bytes(),
            newest_copies: self.segments.newest_total(),
            retained_copies: self.segments.retained_total(),
            used_slots: self.segments.used_slots(),
            index_bytes: self.index_bytes(),
            written: self.written(),
        }
    }

    /// How memory is spent.
    pub fn memory(&self) -> StorageMemory {
        let buffers = self.buffer.memory_bytes()
            + self.writer.memory_bytes()
            + self.deltas.memory_bytes()
            + self.scratch.capacity() * 4
            + self.order.capacity() * 4;
        StorageMemory { index_bytes: self.index_bytes(), buffer_bytes: buffers as u64 }
    }

    /// Bytes of all indexes and segment counters.
    pub fn index_bytes(&self) -> u64 {
        self.table_bytes() + self.segments.memory_bytes() as u64
    }

    /// Bytes of all indexes.
    pub(super) fn table_bytes(&self) -> u64 {
        self.tables.iter().map(|(_, index)| index.memory_bytes() as u64).sum()
    }

    /// What was written since open.
    pub fn written(&self) -> Written {
        Written {
            rows: self.rows_written,
            rows_moved: self.rows_moved,
            pages: self.pages_before + self.writer.pages_written(),
        }
    }

    /// Keys of a table that have a stored copy.
    pub fn rows_stored(&self, table: u16) -> u64 {
        self.index(table).len()
    }

    /// Bytes of segments in use that newest copies do not fill.
    pub fn outdated_bytes(&self) -> u64 {
        let slots = self.segments.used_slots().saturating_sub(self.segments.newest_total());
        slots / self.layout().rows_per_page as u64 * self.layout().page_bytes as u64
    }

    /// Bytes that only commits from `first` up to `oldest_kept` need.
    pub fn held_bytes(&self, first: u64, oldest_kept: u64) -> u64 {
        let copies = self.segments.retained_between(first, oldest_kept);
        copies * (self.layout().page_bytes / self.layout().rows_per_page) as u64
    }
}
