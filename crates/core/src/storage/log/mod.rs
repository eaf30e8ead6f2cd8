//! The `log` layout: segments of self-describing pages, one index word per row, cleaning by exact
//! counts.
//!
//! Owns, for one row class: its file, its segments, the flush buffer, the open end of the log and
//! the index of each of its tables. All of it is guarded by one lock of the owner, the class lock;
//! page reads happen outside it, through a `PageReader`, protected by a read ticket. A stored copy
//! is outdated by writing a newer one elsewhere, never in place. Index changes are handed out as
//! deltas, which the journal keeps. With a schedule of the training, rows are written to the pages
//! of the stretches that use them next (`staging.rs`).

mod changes;
mod check;
mod cleaner;
mod create;
mod cut;
mod delta;
pub(super) mod demand;
mod file;
mod fillings;
mod find;
mod pieces;
mod pins;
mod recovery;
mod room;
mod segments;
mod snapshot;
mod staging;
mod stats;
mod stretches;
mod sweep;
mod take;
mod write;
mod writer;

pub(crate) use create::{ClassNeed, check_class, choose_segment, create, create_log};
pub(crate) use demand::MERGE_PORTIONS;
pub(crate) use file::{check_header, seed_of_file, write_header};
pub(crate) use recovery::LogRecovery;
pub(crate) use segments::SEGMENT_BYTES_MAX;
use segments::SEGMENT_PAGES_MIN;
pub(crate) use segments::Segments;
pub(crate) use staging::StretchPoints;
pub(crate) use take::{SlotsOf, TopReader};
pub(crate) use writer::{Stream, Writer};

use crate::error::Result;
use crate::hash::mix;
use crate::index::{DenseIndex, SparseIndex};
use crate::io::File;
use crate::storage::{FlushBuffer, PageLayout, Storage, StorageFreeze};
use delta::DeltaWriter;
use find::LogPages;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sets the checksum of candidates apart from other uses of the hash.
const CANDIDATE_SALT: u64 = 0xC0DE;

/// The index of one table.
#[derive(Debug)]
pub(crate) enum TableIndex {
    /// Exact, one slot per id.
    Dense(DenseIndex),
    /// Compact hash and the salt that its hashes are made with.
    Sparse(SparseIndex, u64),
}

impl TableIndex {
    /// An index to copy this one into, part by part.
    ///
    /// *Errors*: `Budget` when the machine does not have the memory.
    pub(crate) fn empty_copy(&self) -> Result<Self> {
        Ok(match self {
            TableIndex::Dense(index) => TableIndex::Dense(index.empty_copy()?),
            TableIndex::Sparse(index, salt) => TableIndex::Sparse(index.empty_copy(), *salt),
        })
    }

    /// Copies the part of a number into what `empty_copy` gave; says whether parts follow.
    pub(crate) fn copy_part(&self, part: usize, copy: &mut Self) -> bool {
        match (self, copy) {
            (TableIndex::Dense(index), TableIndex::Dense(copy)) => index.copy_part(part, copy),
            (TableIndex::Sparse(index, _), TableIndex::Sparse(copy, _)) => {
                index.copy_part(part, copy)
            }
            _ => unreachable!("a copy has the form of its index"),
        }
    }

    /// Makes room for more ids of a dense table; a growing one has room for all.
    ///
    /// *Errors*: as `DenseIndex::grow`.
    pub(crate) fn grow(&mut self, num_embeddings: u64) -> Result<()> {
        match self {
            TableIndex::Dense(index) => index.grow(num_embeddings),
            TableIndex::Sparse(..) => Ok(()),
        }
    }

    /// Allocated bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            TableIndex::Dense(index) => index.memory_bytes(),
            TableIndex::Sparse(index, _) => index.memory_bytes(),
        }
    }

    /// Stored keys.
    pub(crate) fn len(&self) -> u64 {
        match self {
            TableIndex::Dense(index) => index.len(),
            TableIndex::Sparse(index, _) => index.len(),
        }
    }

    /// Rows that it may have: the ids of a dense table, of a growing one what there is.
    pub(super) fn ids_or_rows(&self) -> u64 {
        match self {
            TableIndex::Dense(index) => index.num_embeddings(),
            TableIndex::Sparse(index, _) => index.len(),
        }
    }

    /// True for a growing table.
    pub(crate) fn is_sparse(&self) -> bool {
        matches!(self, TableIndex::Sparse(..))
    }

    /// Hints that `key` will be looked up soon.
    pub(crate) fn prefetch(&self, key: u64) {
        match self {
            TableIndex::Dense(index) => index.prefetch(key),
            TableIndex::Sparse(index, salt) => index.prefetch(mix(key, *salt)),
        }
    }

    /// Slots that may hold `key`: for a dense table the one that does.
    pub(crate) fn candidates(&self, key: u64, slots: &mut Vec<u32>) {
        slots.clear();
        match self {
            TableIndex::Dense(index) => {
                let slot = index.get(key);
                if slot != 0 {
                    slots.push(slot);
                }
            }
            TableIndex::Sparse(index, salt) => {
                index.candidates(mix(key, *salt), slots);
            }
        }
    }

    /// A checksum over the slots that may hold `key`, whatever their order; 0 where there are none.
    pub(crate) fn candidate_sum(&self, key: u64) -> u32 {
        match self {
            TableIndex::Dense(index) => index.get(key),
            TableIndex::Sparse(index, salt) => {
                let mut sum = None;
                index.visit_candidates(mix(key, *salt), |slot| {
                    // Slots are small numbers, whose plain sums would often be the same.
                    let mixed = mix(u64::from(slot), CANDIDATE_SALT) as u32;
                    sum = Some(mixed.wrapping_add(sum.unwrap_or(0)));
                });
                sum.map_or(0, |sum| sum.max(1))
            }
        }
    }

    /// All slots that hold the newest copy of a key, in no useful order.
    pub(crate) fn slots(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            TableIndex::Dense(index) => Box::new(index.iter().map(|(_, slot)| slot)),
            TableIndex::Sparse(index, _) => {
                Box::new((0..index.partitions()).flat_map(|partition| index.slots(partition)))
            }
        }
    }

    /// False for an id that lies outside a dense table.
    pub(crate) fn covers(&self, key: u64) -> bool {
        match self {
            TableIndex::Dense(index) => key < index.num_embeddings(),
            TableIndex::Sparse(..) => true,
        }
    }

    /// The newest stored copy of a dense table's id, 0 for none; a growing table cannot tell
    /// without reading, and has none here.
    pub(crate) fn slot_of(&self, id: u64) -> u32 {
        match self {
            TableIndex::Dense(index) => index.get(id),
            TableIndex::Sparse(..) => 0,
        }
    }

    /// The first of the slots that may hold `key`.
    pub(crate) fn first_candidate(&self, key: u64) -> Option<u32> {
        match self {
            TableIndex::Dense(index) => Some(index.get(key)).filter(|slot| *slot != 0),
            TableIndex::Sparse(index, salt) => index.first_candidate(mix(key, *salt)),
        }
    }

    /// True when a key is stored, perhaps: of a dense table surely.
    pub(crate) fn may_contain(&self, key: u64) -> bool {
        match self {
            TableIndex::Dense(index) => index.get(key) != 0,
            TableIndex::Sparse(..) => self.first_candidate(key).is_some(),
        }
    }

    /// True when `slot` is the newest stored copy of `key`.
    pub(crate) fn is_newest(&self, key: u64, slot: u32) -> bool {
        match self {
            TableIndex::Dense(index) => index.get(key) == slot,
            TableIndex::Sparse(index, salt) => index.contains_slot(mix(key, *salt), slot),
        }
    }
}

/// The log of one row class.
pub(crate) struct ClassLog {
    pages: Arc<LogPages>,
    segment_bytes: u64,
    /// Counts of held copies.
    segments: Segments,
    /// Rows on their way to storage.
    buffer: FlushBuffer,
    writer: Writer,
    tables: Vec<(u16, TableIndex)>,
    /// Tables that were dropped, and whether they were growing ones: the journal may have changes
    /// of theirs.
    dropped: Vec<(u16, bool)>,
    deltas: DeltaWriter,
    /// Deltas are handed to the journal when they are this long; at once before a plan.
    portion_bytes: usize,
    order: Vec<u32>,
    slots: Vec<u32>,
    scratch: Vec<f32>,
    clean: cleaner::CleanState,
    /// Sorted pages whose rows are not taken out of the log, because they cannot be read.
    left_pages: Vec<u32>,
    /// Whether flushed rows are told apart by how long their last copy lived.
    separates: bool,
    /// True once the file system has taken no room back from within the file.
    keeps_room: bool,
    /// Rows that were deleted, by the epoch in which they were: nobody has paid for cleaning yet.
    deleted: BTreeMap<u64, u64>,
    rows_written: u64,
    rows_moved: u64,
    /// Pages that writers of earlier plans wrote.
    pages_before: u64,
    /// Pages written when the file was last given out to be synced.
    pages_synced: u64,
    /// Sequence of the newest page when the epoch began.
    epoch_began: u64,
    /// The most append points of stretches that there were at a time in the epoch.
    stretches_most: u64,
}

impl StorageFreeze for ClassLog {}

impl Storage for ClassLog {}

impl ClassLog {
    /// A log over an opened file; `segments` describe what it holds.
    pub(crate) fn new(
        layout: PageLayout,
        file: Arc<dyn File>,
        segment_bytes: u64,
        segments: Segments,
        writer: Writer,
        buffer: FlushBuffer,
    ) -> Self {
        let epoch_began = writer.sequence();
        Self {
            pages: Arc::new(LogPages { layout, file }),
            segment_bytes,
            segments,
            buffer,
            writer,
            tables: Vec::new(),
            dropped: Vec::new(),
            deltas: DeltaWriter::default(),
            portion_bytes: 0,
            order: Vec::new(),
            slots: Vec::new(),
            scratch: Vec::new(),
            clean: cleaner::CleanState::default(),
            left_pages: Vec::new(),
            separates: false,
            keeps_room: false,
            deleted: BTreeMap::new(),
            rows_written: 0,
            rows_moved: 0,
            pages_before: 0,
            pages_synced: 0,
            epoch_began,
            stretches_most: 0,
        }
    }

    /// The page layout.
    pub(crate) fn layout(&self) -> &PageLayout {
        &self.pages.layout
    }

    /// The file of pages.
    pub(crate) fn file(&self) -> &Arc<dyn File> {
        &self.pages.file
    }

    /// Adds a table's index.
    pub(crate) fn add_table(&mut self, table: u16, index: TableIndex) {
        let at = self.tables.partition_point(|(id, _)| *id < table);
        self.tables.insert(at, (table, index));
    }

    /// The place of the index of a table of this class: they are in order of the tables.
    fn position_of(&self, table: u16) -> usize {
        let found = self.tables.binary_search_by_key(&table, |(id, _)| *id);
        found.expect("the table belongs to this class")
    }

    /// The index of a table of this class.
    pub(crate) fn index(&self, table: u16) -> &TableIndex {
        &self.tables[self.position_of(table)].1
    }

    /// The index of a table of this class, to change it.
    pub(crate) fn index_mut(&mut self, table: u16) -> &mut TableIndex {
        let at = self.position_of(table);
        &mut self.tables[at].1
    }

    /// Takes out the index of a table of this class.
    pub(crate) fn take_index(&mut self, table: u16) -> TableIndex {
        self.tables.remove(self.position_of(table)).1
    }

    /// All tables' indexes.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = (u16, &TableIndex)> {
        self.tables.iter().map(|(id, index)| (*id, index))
    }

    /// Slots of a segment.
    pub(crate) fn rows_per_segment(&self) -> u64 {
        self.segment_bytes / self.pages.layout.page_bytes as u64
            * self.pages.layout.rows_per_page as u64
    }

    /// Checks that a verified page is the one that was last written in its place; else `Corrupt`.
    #[inline]
    pub(crate) fn verify_sequence(&self, page: &[u8], number: u32) -> Result<()> {
        let expected = self.segments.sequences_of(number);
        self.pages.layout.verify_sequence(page, number, self.pages.file.name(), &expected)
    }

    /// The page of a slot, if it is still in memory.
    pub(crate) fn page_in_memory(&self, slot: u32) -> Option<&[u8]> {
        self.writer.page(slot / self.pages.layout.rows_per_page as u32)
    }

    /// Rows of stretches that lie with those of another, for tests of whole stores.
    #[cfg(test)]
    pub(crate) fn strayed(&self) -> u64 {
        self.writer.strayed()
    }

    /// The segments, for tests of whole stores.
    #[cfg(test)]
    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }
}
