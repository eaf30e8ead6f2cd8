//! A log's demands on the memory budget and the journal, known before it has rows.
//!
//! The owner divides its budget and says how many bytes a class has; of those a log takes some for
//! chunks, a flush buffer and deltas that wait for the journal. They shrink down to a floor.

use super::{ClassLog, Stream, TableIndex, Writer};
use crate::config::StorageKind;
use crate::error::Result;
use crate::index::INDEX_BYTES_PER_KEY;
use crate::io::{Buffers, Medium, pow2_below};
use crate::storage::failures::FAILURES_BYTES;
use crate::storage::need::{
    LIVE_SHARE, bytes_for_written_rows, change_bytes_beside, journal_bytes_beside, log_index_bytes,
};
use crate::storage::page::ENTRY_BYTES;
use crate::storage::{FlushBuffer, StorageBudget, StorageMemory, StorageStretches, StorageWrite};

/// Chunks being filled, one for each stream, and one in flight or read back by cleaning.
const CHUNKS_MIN: usize = Stream::COUNT + 1;
/// If chunks are not the smallest possible, two more are in flight while the others are filled.
const CHUNKS: usize = CHUNKS_MIN + 2;
const CHUNK_BYTES_MAX: usize = 256 << 10;
const CHUNK_BYTES_MIN: usize = 16 << 10;
/// A chunk has one in so many bytes of the class at most.
const CHUNK_PER_CLASS: u64 = 64;
/// Rows of a flush buffer at least.
pub(super) const PARKED_ROWS_MIN: usize = 8;
/// Deltas are handed to the journal in portions of at most about this size.
const JOURNAL_PORTION_BYTES_MAX: usize = 64 << 10;
/// Slots that may hold a key of a growing table.
const CANDIDATES_BYTES: usize = 256;
/// Bytes of one delta of a growing table.
const DELTA_BYTES: usize = 16;
/// A merge takes so many times what it reads together: buffers of reads and writes, rows that wait
/// to be written, what it has taken in, and what comes beside it.
pub(crate) const MERGE_PORTIONS: usize = 13;
/// Bytes of changes that come before somebody looks whether they are many: a tombstone of each row
/// that waits, and an edit.
const TOMBSTONE_BYTES: usize = 11;
const EDIT_BYTES: usize = 1 << 10;
/// Dense indexes have bits for the file as it is, so many segments, one part in so many and the
/// rows of a batch: room on disk is made for a batch at a time, and for what cleaning moves.
const SEGMENTS_AHEAD: u64 = 4;
const PART_AHEAD: u64 = 8;
/// Slots of a file at most.
const SLOTS_MOST: u64 = 1 << u32::BITS;
/// Journal bytes of one written row at most: its delta, or that of a delete and of a merge.
pub(super) const JOURNAL_BYTES_PER_ROW: u64 = 24;

/// The facts about a storage, existing or not, that a plan of the budget needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// The storage layout of its rows.
    pub kind: StorageKind,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
}

impl Demand {
    /// The share of a class that gets `bytes` of the budget; 0 gives the smallest share that works.
    pub(crate) fn share_of(&self, bytes: u64) -> Share {
        let least = CHUNK_BYTES_MIN.max(self.page_bytes);
        let chunk_bytes = pow2_below((bytes / CHUNK_PER_CLASS) as usize)
            .clamp(least, CHUNK_BYTES_MAX.max(self.page_bytes));
        Share {
            kind: self.kind,
            row_bytes: self.row_bytes,
            chunk_bytes,
            chunks: if chunk_bytes == least { CHUNKS_MIN } else { CHUNKS },
            // The number of rows that a chunk stores.
            parked_rows: (chunk_bytes / (self.row_bytes + ENTRY_BYTES)).max(PARKED_ROWS_MIN),
        }
    }
}

/// A log's share of the memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    kind: StorageKind,
    row_bytes: usize,
    chunk_bytes: usize,
    chunks: usize,
    parked_rows: usize,
}

impl Share {
    /// All its bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let write = Buffers::equal(self.chunks, self.chunk_bytes).queue_bytes(self.chunks);
        let parked = FlushBuffer::memory_for(self.parked_rows, self.row_bytes / 4);
        // One more chunk is the scratch of cleaning. Rows that wait are put in order.
        let order = self.parked_rows * size_of::<u32>() + CANDIDATES_BYTES;
        let bytes = write + self.chunk_bytes + parked + self.change_bytes() + order;
        (bytes + self.merge_bytes()) as u64
    }

    /// The bytes that a merge, if the storage has merges, reads and writes together.
    pub(crate) fn merge_portion_bytes(&self) -> usize {
        if self.kind == StorageKind::Lsm { self.chunk_bytes } else { 0 }
    }

    /// Edits and tombstones are handed to the journal when they are this long.
    pub(crate) fn change_portion_bytes(&self) -> usize {
        self.portion_bytes() / 2
    }

    /// Bytes of a merge, where the storage has them, and of what grows beside.
    fn merge_bytes(&self) -> usize {
        match self.kind {
            StorageKind::Log | StorageKind::Pmem => 0,
            StorageKind::Lsm | StorageKind::Pages => {
                MERGE_PORTIONS * self.merge_portion_bytes() + self.growing_bytes()
            }
        }
    }

    /// Bytes of the changes of a storage with merges that wait for the journal, and of what upkeep
    /// could not read.
    pub(crate) fn growing_bytes(&self) -> usize {
        let tombstones = TOMBSTONE_BYTES * self.parked_rows;
        let changes = self.change_portion_bytes() + tombstones + EDIT_BYTES;
        // Growing parts have up to twice their bytes.
        2 * (changes + FAILURES_BYTES)
    }

    /// Rows that can wait to be written.
    pub(crate) fn parked_rows(&self) -> usize {
        self.parked_rows
    }

    /// Deltas are handed to the journal when they are this long.
    fn portion_bytes(&self) -> usize {
        (self.chunk_bytes / 2).min(JOURNAL_PORTION_BYTES_MAX)
    }

    /// Bytes of deltas that wait for the journal: not yet a portion, and what one flush, or the
    /// cleaning that it pays for, adds to it.
    fn change_bytes(&self) -> usize {
        self.portion_bytes() + self.parked_rows * DELTA_BYTES
    }

    /// Bytes that the index may need for `keys` new keys of growing tables.
    pub(crate) fn memory_for_new_keys(&self, keys: u64) -> u64 {
        keys * INDEX_BYTES_PER_KEY
    }

    /// Bytes that the index may need for `rows` rows that are written, where it has `now`, beyond
    /// what verbs have made room for. `ids` are those of its tables; `None` where some grow.
    pub(crate) fn memory_for_written(&self, rows: u64, now: u64, ids: Option<u64>) -> u64 {
        bytes_for_written_rows(self.kind, rows, now, ids)
    }

    /// Journal bytes for `rows` rows, where as many wait as can, and as many deltas.
    pub(crate) fn journal_bytes_at_most(&self, rows: u64) -> u64 {
        let rows = rows + self.parked_rows as u64;
        let changes = self.change_bytes() as u64 + change_bytes_beside(self.kind);
        rows * JOURNAL_BYTES_PER_ROW + journal_bytes_beside(self.kind, rows) + changes
    }
}

impl StorageBudget for ClassLog {
    fn equip(&mut self, share: Share, medium: &dyn Medium) -> Result<()> {
        assert_eq!(self.parked(), 0, "a plan is made when no row waits");
        let page_bytes = self.layout().page_bytes;
        let chunk_bytes = share.chunk_bytes.min(self.segment_bytes as usize).max(page_bytes);
        let queue = medium.queue(share.chunks, Buffers::equal(share.chunks, chunk_bytes))?;
        self.close_stretches()?;
        let open = self.writer.finish(&mut self.segments)?;
        self.pages_before += self.writer.pages_written();
        // Finishing may have sealed one more page.
        let sequence = self.writer.sequence();
        self.writer = Writer::new(self.file().clone(), self.layout().clone(), queue, sequence);
        self.writer.continue_at(open, sequence);
        self.buffer = FlushBuffer::new(share.parked_rows, self.layout().row_bytes / 4);
        self.order = Vec::with_capacity(share.parked_rows);
        self.deltas.resize(share.change_bytes());
        self.portion_bytes = share.portion_bytes();
        Ok(())
    }

    fn index_growth(&self, table: u16, expected: u64) -> u64 {
        let index = self.index(table);
        let most = match index {
            TableIndex::Dense(index) => index.memory_with(expected),
            TableIndex::Sparse(..) => log_index_bytes(expected),
        };
        most.saturating_sub(index.memory_bytes() as u64)
    }

    fn bytes_to_widen(&self, rows: u64) -> u64 {
        self.growth_to_fit(self.slots_ahead(rows))
    }

    fn widen_indexes(&mut self, rows: u64) -> Result<()> {
        self.fit_indexes(self.slots_ahead(rows))
    }

    fn bytes_of_widest(&self) -> u64 {
        self.growth_to_fit(SLOTS_MOST)
    }

    fn memory(&self) -> StorageMemory {
        let buffers = self.buffer.memory_bytes()
            + self.writer.memory_bytes()
            + self.deltas.memory_bytes()
            + self.scratch.capacity() * 4
            + (self.order.capacity() + self.slots.capacity()) * 4;
        StorageMemory { index_bytes: self.index_bytes(), buffer_bytes: buffers as u64 }
    }
}

/// Slot numbers and the widths of the dense indexes that have them.
impl ClassLog {
    /// Slots of the file once so many rows were written, and an eighth more and some segments:
    /// indexes widen before they must.
    fn slots_ahead(&self, rows: u64) -> u64 {
        let slots = self.slots_with(SEGMENTS_AHEAD * self.segment_bytes);
        (slots + slots / PART_AHEAD + rows).min(SLOTS_MOST)
    }

    /// Slots of the file with all rows of all tables, as cleaning keeps it.
    pub(super) fn slots_expected(&self) -> u64 {
        let rows: u64 = self.tables.iter().map(|(_, index)| index.ids_or_rows()).sum();
        ((rows as f64 / LIVE_SHARE) as u64).min(SLOTS_MOST)
    }

    /// Makes sure that all dense indexes can name so many slots.
    pub(super) fn fit_indexes(&mut self, slots: u64) -> Result<()> {
        for (_, index) in &mut self.tables {
            if let TableIndex::Dense(index) = index {
                index.fit(slots)?;
            }
        }
        Ok(())
    }

    fn growth_to_fit(&self, slots: u64) -> u64 {
        let of_table = |(_, index): &(u16, TableIndex)| match index {
            TableIndex::Dense(index) => index.growth_to_fit(slots),
            TableIndex::Sparse(..) => 0,
        };
        self.tables.iter().map(of_table).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{OpenMode, SimMedium};
    use crate::storage::PageLayout;
    use crate::storage::StorageJournal;
    use crate::storage::log::Segments;

    fn demand(row_bytes: usize, page_bytes: usize) -> Demand {
        Demand { kind: StorageKind::Log, row_bytes, page_bytes }
    }

    #[test]
    fn a_log_allocates_no_more_than_its_share_and_uses_what_the_share_says() {
        let medium = SimMedium::new(1);
        for (i, bytes) in [0, 4 << 20, 1 << 30].into_iter().enumerate() {
            let layout = PageLayout::new(4096, 64, 0, 7).unwrap();
            let file = medium.open(&format!("rows-{i}"), OpenMode::CreateNew).unwrap();
            let segments = Segments::new(256, layout.rows_per_page as u32, 1);
            let queue = medium.queue(2, Buffers::equal(2, 4096)).unwrap();
            let writer = Writer::new(file.clone(), layout.clone(), queue, 0);
            let buffer = FlushBuffer::new(8, 16);
            let mut log = ClassLog::new(layout, file, 256 * 4096, segments, writer, buffer);
            assert!(log.changes_are_many(), "before a plan everything is handed over at once");
            let share = demand(64, 4096).share_of(bytes);
            log.equip(share, &medium).unwrap();
            let taken = log.memory().buffer_bytes;
            assert!(taken <= share.bytes(), "{taken} of {share:?}");
            assert!(taken > share.bytes() / 2, "{taken} of {share:?}");
            assert_eq!(log.room(), share.parked_rows());
            assert!(!log.changes_are_many());
        }
    }

    // The plan of a store hangs on these numbers, and with it which budgets are refused.
    #[test]
    fn chunks_grow_with_the_class_between_two_bounds() {
        let chunk = |page_bytes, bytes| {
            let share = demand(512, page_bytes).share_of(bytes);
            (share.chunk_bytes, share.chunks, share.parked_rows, share.change_bytes())
        };
        assert_eq!(chunk(4096, 0), (16 << 10, 4, 31, (8 << 10) + 31 * 16));
        assert_eq!(chunk(4096, 3 << 20), (32 << 10, 6, 62, (16 << 10) + 62 * 16));
        assert_eq!(chunk(4096, 1 << 30), (256 << 10, 6, 502, (64 << 10) + 502 * 16));
        assert_eq!(chunk(65_536, 0), (64 << 10, 4, 125, (32 << 10) + 125 * 16));
    }
}
