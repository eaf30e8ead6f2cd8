//! The `log` layout: segments of self-describing pages, one index word per row, cleaning by exact
//! counts.
//!
//! Owns, for one row class: its file, its segments, the flush buffer, the open end of the log and
//! the index of each of its tables. All of it is guarded by one lock of the owner, the class lock;
//! page reads happen outside it, through a `PageReader`, protected by a read ticket. A stored copy
//! is outdated by writing a newer one elsewhere, never in place. What changed in the index is
//! handed out as deltas, which the journal keeps.

mod check;
mod cleaner;
mod create;
mod cut;
mod delta;
pub(super) mod demand;
mod file;
mod fillings;
mod find;
mod parked;
mod pieces;
mod recovery;
mod room;
mod segments;
mod stats;
mod sweep;
mod writer;

pub use cleaner::CleanReport;
pub use create::{ClassNeed, check_class, choose_segment, create, disk_bytes_for};
pub use file::seed_of_file;
pub use recovery::LogRecovery;
pub use segments::Segments;
use segments::{SEGMENT_BYTES_MAX, SEGMENT_PAGES_MIN};
pub use writer::{OpenSegments, Stream, Writer};

use crate::activation::{Branch, note};
use crate::error::{Result, bail};
use crate::hash::mix;
use crate::index::{DenseIndex, SparseIndex};
use crate::io::File;
use crate::planted::{self, Bug};
use crate::storage::{DirtyRow, FlushBuffer, PageLayout};
use delta::{Delta, DeltaWriter};
use find::LogPages;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The index of one table.
#[derive(Debug)]
pub enum TableIndex {
    /// One word per id.
    Dense(DenseIndex),
    /// Compact hash and the salt that its hashes are made with.
    Sparse(SparseIndex, u64),
}

impl TableIndex {
    /// Allocated bytes.
    pub fn memory_bytes(&self) -> usize {
        match self {
            TableIndex::Dense(index) => index.memory_bytes(),
            TableIndex::Sparse(index, _) => index.memory_bytes(),
        }
    }

    /// Stored keys.
    pub fn len(&self) -> u64 {
        match self {
            TableIndex::Dense(index) => index.len(),
            TableIndex::Sparse(index, _) => index.len(),
        }
    }

    /// True when no key is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for a growing table.
    pub fn is_sparse(&self) -> bool {
        matches!(self, TableIndex::Sparse(..))
    }

    /// Hints that `key` will be looked up soon.
    pub fn prefetch(&self, key: u64) {
        match self {
            TableIndex::Dense(index) => index.prefetch(key),
            TableIndex::Sparse(index, salt) => index.prefetch(mix(key, *salt)),
        }
    }

    /// Slots that may hold `key`: for a dense table the one that does.
    pub fn candidates(&self, key: u64, slots: &mut Vec<u32>) {
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

    /// All slots that hold the newest copy of a key, in no useful order.
    pub fn slots(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match self {
            TableIndex::Dense(index) => Box::new(index.iter().map(|(_, slot)| slot)),
            TableIndex::Sparse(index, _) => {
                Box::new((0..index.partitions()).flat_map(|partition| index.slots(partition)))
            }
        }
    }

    /// False for an id that lies outside a dense table.
    pub fn covers(&self, key: u64) -> bool {
        match self {
            TableIndex::Dense(index) => key < index.num_embeddings(),
            TableIndex::Sparse(..) => true,
        }
    }

    /// The newest stored copy of a dense table's id, 0 for none; a growing table cannot tell
    /// without reading, and has none here.
    pub fn slot_of(&self, id: u64) -> u32 {
        match self {
            TableIndex::Dense(index) => index.get(id),
            TableIndex::Sparse(..) => 0,
        }
    }

    /// The first of the slots that may hold `key`.
    pub fn first_candidate(&self, key: u64) -> Option<u32> {
        match self {
            TableIndex::Dense(index) => Some(index.get(key)).filter(|slot| *slot != 0),
            TableIndex::Sparse(index, salt) => index.first_candidate(mix(key, *salt)),
        }
    }

    /// True when a key is stored, perhaps: of a dense table surely.
    pub fn may_contain(&self, key: u64) -> bool {
        match self {
            TableIndex::Dense(index) => index.get(key) != 0,
            TableIndex::Sparse(..) => self.first_candidate(key).is_some(),
        }
    }

    /// True when `slot` is the newest stored copy of `key`.
    pub fn is_newest(&self, key: u64, slot: u32) -> bool {
        match self {
            TableIndex::Dense(index) => index.get(key) == slot,
            TableIndex::Sparse(index, salt) => index.contains_slot(mix(key, *salt), slot),
        }
    }
}

/// A row is hot when its last copy lived while this share of a table's rows was written. Shares
/// from 0.15 to 0.5 moved equally many rows.
const HOT_SHARE: f64 = 0.25;

/// The log of one row class.
pub struct ClassLog {
    pages: Arc<LogPages>,
    segment_bytes: u64,
    /// Counts of held copies.
    segments: Segments,
    /// Rows on their way to storage.
    buffer: FlushBuffer,
    writer: Writer,
    tables: Vec<(u16, TableIndex)>,
    deltas: DeltaWriter,
    /// Deltas are handed to the journal when they are this long; at once before a plan.
    portion_bytes: usize,
    order: Vec<u32>,
    slots: Vec<u32>,
    scratch: Vec<f32>,
    clean: cleaner::CleanState,
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
}

impl ClassLog {
    /// A log over an opened file; `segments` describe what it holds.
    pub fn new(
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
            deltas: DeltaWriter::default(),
            portion_bytes: 0,
            order: Vec::new(),
            slots: Vec::new(),
            scratch: Vec::new(),
            clean: cleaner::CleanState::default(),
            separates: false,
            keeps_room: false,
            deleted: BTreeMap::new(),
            rows_written: 0,
            rows_moved: 0,
            pages_before: 0,
            pages_synced: 0,
            epoch_began,
        }
    }

    /// The page layout.
    pub fn layout(&self) -> &PageLayout {
        &self.pages.layout
    }

    /// The file of pages.
    pub fn file(&self) -> &Arc<dyn File> {
        &self.pages.file
    }

    /// Adds a table's index.
    pub fn add_table(&mut self, table: u16, index: TableIndex) {
        self.tables.push((table, index));
    }

    /// The index of a table of this class.
    #[expect(clippy::should_implement_trait, reason = "found by table, not by position")]
    pub fn index(&self, table: u16) -> &TableIndex {
        let found = self.tables.iter().find(|(id, _)| *id == table);
        &found.expect("the table belongs to this class").1
    }

    /// The index of a table of this class, to change it.
    #[expect(clippy::should_implement_trait, reason = "found by table, not by position")]
    pub fn index_mut(&mut self, table: u16) -> &mut TableIndex {
        let found = self.tables.iter_mut().find(|(id, _)| *id == table);
        &mut found.expect("the table belongs to this class").1
    }

    /// Takes out the index of a table of this class.
    pub fn take_index(&mut self, table: u16) -> TableIndex {
        let at = self.tables.iter().position(|(id, _)| *id == table);
        self.tables.swap_remove(at.expect("the table belongs to this class")).1
    }

    /// All tables' indexes.
    pub fn indexes(&self) -> impl Iterator<Item = (u16, &TableIndex)> {
        self.tables.iter().map(|(id, index)| (*id, index))
    }

    /// Slots of a segment.
    pub fn rows_per_segment(&self) -> u64 {
        self.segment_bytes / self.pages.layout.page_bytes as u64
            * self.pages.layout.rows_per_page as u64
    }

    /// Where the fillings of all segments began, for the class record of a journal file.
    pub fn fillings(&self) -> String {
        fillings::encode(self.segments.firsts())
    }

    /// Checks that a verified page is the one that was last written in its place; else `Corrupt`.
    #[inline]
    pub fn verify_sequence(&self, page: &[u8], number: u32) -> Result<()> {
        let expected = self.segments.sequences_of(number);
        self.pages.layout.verify_sequence(page, number, self.pages.file.name(), &expected)
    }

    /// The page of a slot, if it is still in memory.
    pub fn page_in_memory(&self, slot: u32) -> Option<&[u8]> {
        self.writer.page(slot / self.pages.layout.rows_per_page as u32)
    }

    /// Writes one row behind the others, points the index at it and outdates the copy before, whose
    /// slot is `origin` (0 for none); of a dense table the index tells. Returns the new slot. May
    /// wait for the device.
    pub fn append(&mut self, row: DirtyRow<'_>) -> Result<u32> {
        let DirtyRow { table, key, origin, words, .. } = row;
        let stream =
            if self.separates { self.stream_of(table, key, origin) } else { Stream::Flushed };
        let slot = self.writer.append(&mut self.segments, stream, table, key, words)?;
        self.rows_written += 1;
        self.publish(table, key, origin, slot)?;
        Ok(slot)
    }

    /// Where a flushed row goes when rows are told apart: one whose last copy lived while less was
    /// written than [`HOT_SHARE`] of the newest copies is taken for one that is rewritten as soon
    /// again; one that cleaning had to move is not. (SepBIT, FAST'22: the last lifespan tells the
    /// next.) Rows that are not told apart stay in that order, so that those that are read
    /// together share pages.
    fn stream_of(&self, table: u16, key: u64, origin: Option<u32>) -> Stream {
        let old = match (origin, self.index(table)) {
            (Some(slot), _) => slot,
            (None, TableIndex::Dense(index)) => index.get(key),
            (None, TableIndex::Sparse(..)) => 0,
        };
        if old == 0 {
            return Stream::Cold;
        }
        let (age, stream) = self.segments.age_of_slot(old);
        let written = (age * self.rows_per_segment()) as f64;
        let soon = written < HOT_SHARE * self.segments.newest_total() as f64;
        if soon && stream != Stream::Moved as u8 { Stream::Flushed } else { Stream::Cold }
    }

    fn publish(&mut self, table: u16, key: u64, origin: Option<u32>, slot: u32) -> Result<()> {
        let mut split = false;
        let old = match self.index_mut(table) {
            TableIndex::Dense(index) => {
                let old = index.set(key, slot);
                let known = origin.unwrap_or(old);
                assert_eq!(old, known, "a row's origin is its newest stored copy");
                old
            }
            TableIndex::Sparse(index, salt) => {
                let hash = mix(key, *salt);
                let origin = origin.expect("rows of growing tables carry their origin");
                if origin == 0 {
                    index.insert(hash, slot);
                } else {
                    assert!(index.replace(hash, origin, slot), "a row's origin is indexed");
                }
                split = index.needs_split();
                origin
            }
        };
        if old != 0 {
            self.segments.outdated(old);
        }
        let sparse = self.index(table).is_sparse();
        self.deltas.push(Delta::Row { table, key, old, slot }, sparse);
        if split { self.split(table) } else { Ok(()) }
    }

    /// Splits one partition of a growing table's index, and writes down that it did.
    fn split(&mut self, table: u16) -> Result<()> {
        let at = self.tables.iter().position(|(id, _)| *id == table);
        let (_, index) = &mut self.tables[at.expect("the table belongs to this class")];
        let TableIndex::Sparse(index, salt) = index else { return Ok(()) };
        let (layout, file, writer, salt) =
            (&self.pages.layout, &self.pages.file, &self.writer, *salt);
        let segments = &self.segments;
        let mut refreshed = Vec::new();
        index.split(&mut |slot| {
            let key = key_of_slot(layout, file, (writer, segments), table, slot)?;
            refreshed.push((key, slot));
            Ok(mix(key, salt))
        })?;
        for (key, slot) in refreshed {
            self.deltas.push(Delta::Refresh { table, key, slot }, true);
        }
        note(Branch::Split);
        if !planted::is(Bug::SplitNotLogged) {
            self.deltas.push(Delta::Split { table }, true);
        }
        Ok(())
    }

    /// Deletes a stored key whose newest copy is `slot`.
    pub fn delete(&mut self, table: u16, key: u64, slot: u32) {
        let sparse = match self.index_mut(table) {
            TableIndex::Dense(index) => {
                assert_eq!(index.set(key, 0), slot, "a deleted row's origin is its newest copy");
                false
            }
            TableIndex::Sparse(index, salt) => {
                let hash = mix(key, *salt);
                assert!(index.remove(hash, slot), "a deleted row's origin is indexed");
                true
            }
        };
        self.segments.outdated(slot);
        *self.deleted.entry(self.segments.epoch()).or_default() += 1;
        if !planted::is(Bug::DeleteDeltaLost) {
            self.deltas.push(Delta::Delete { table, key, old: slot }, sparse);
        }
    }

    /// Merges partitions of a growing table's index after many deletes, so that memory follows; at
    /// most so many, for each takes room in the journal.
    pub fn merge_partitions(&mut self, table: u16, most: usize) {
        let mut merged = 0;
        if let TableIndex::Sparse(index, _) = self.index_mut(table) {
            while merged < most && index.needs_merge() && index.merge().is_some() {
                merged += 1;
            }
        }
        for _ in 0..merged {
            note(Branch::Merged);
            self.deltas.push(Delta::Merge { table }, true);
        }
    }

    /// Bytes of deltas that wait to be journalled.
    pub fn change_bytes(&self) -> usize {
        self.deltas.len()
    }

    /// Takes the deltas in the order in which the index changed.
    pub fn drain_changes(&mut self, into: &mut Vec<u8>) {
        self.deltas.drain(into);
    }

    /// Whether a disk bound makes the log clean: flushed rows are told apart by how long their last
    /// copy lived then.
    pub fn expect_bound(&mut self, is_bounded: bool) {
        self.separates = is_bounded;
    }

    /// The segments, for tests of whole stores.
    #[cfg(test)]
    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Gives all pages to the device and waits for it, so that `equip` has none to write.
    pub fn write_out(&mut self) -> Result<()> {
        self.writer.finish(&mut self.segments).map(drop)
    }
}

/// Reads the key of a stored row, for an index entry that ran out of tag bits.
fn key_of_slot(
    layout: &PageLayout,
    file: &Arc<dyn File>,
    (writer, segments): (&Writer, &Segments),
    table: u16,
    slot: u32,
) -> Result<u64> {
    let rows = layout.rows_per_page as u32;
    let (page, at) = (slot / rows, (slot % rows) as usize);
    let (owner, key) = match writer.page(page) {
        Some(bytes) => layout.entry(bytes, at),
        None => {
            let mut bytes = vec![0u8; layout.page_bytes];
            file.read_at(&mut bytes, u64::from(page) * layout.page_bytes as u64)?;
            layout.verify(&bytes, page, file.name())?;
            let expected = segments.sequences_of(page);
            layout.verify_sequence(&bytes, page, file.name(), &expected)?;
            layout.entry(&bytes, at)
        }
    };
    if owner != table {
        bail!(
            Corrupt,
            "{}, slot {slot}: the index says table {table}, the page says table {owner} key {key}; \
             restore from a copy, or open an earlier commit with step=",
            file.name()
        );
    }
    Ok(key)
}
