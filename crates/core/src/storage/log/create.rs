//! New logs and tables: the size of segments, the first bytes of the file, empty indexes.

use super::demand::PARKED_ROWS_MIN;
use super::file::write_header;
use super::{ClassLog, SEGMENT_BYTES_MAX, SEGMENT_PAGES_MIN, Segments, TableIndex, Writer};
use crate::config::StorageKind;
use crate::error::{Result, bail};
use crate::index::{DenseIndex, SparseIndex};
use crate::io::{Buffers, File, Medium};
use crate::storage::{ClassFacts, FlushBuffer, PageLayout, Storage, StorageTables, TableFacts};
use std::ops::RangeInclusive;
use std::sync::Arc;

const SEGMENT_BYTES_MIN: u64 = 32 << 10;
/// The least that is chosen for a store without a tight disk bound.
const SEGMENT_BYTES_USUAL: u64 = 256 << 10;
/// Chunks, of a page each, of a log that no plan has equipped.
const BARE_CHUNKS: usize = 2;

/// Segments that a table fills, where the disk bound does not say otherwise.
const SEGMENTS_OF_LOG: u64 = 512;
const SEGMENTS_OF_OTHERS: u64 = 64;

/// The future use of a row class, as far as it determines its segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassNeed {
    /// The storage layout of its rows.
    pub storage: StorageKind,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Rows that the class's first table will have, where that is known.
    pub rows: Option<u64>,
    /// The most bytes that the store may take on disk.
    pub max_disk_bytes: Option<u64>,
    /// A size that the caller asked for.
    pub segment_bytes: Option<u64>,
}

/// Sizes that a segment may have, powers of two.
fn sizes(page_bytes: usize) -> RangeInclusive<u64> {
    page_bytes as u64 * SEGMENT_PAGES_MIN..=SEGMENT_BYTES_MAX
}

fn is_size(bytes: u64, page_bytes: usize) -> bool {
    bytes.is_power_of_two() && sizes(page_bytes).contains(&bytes)
}

/// Segments that are 1/512 of what the table will hold in a log: each append point of a stretch has
/// one open, and those of stretches that are over become free as a whole. So many points as
/// stretches need more pages in a segment than there are points: not smaller ones. Elsewhere 1/64,
/// and 1/512 under a disk bound, where every stream's open segment is room that nothing else can
/// use; larger where the bound allows, for tables still to come share the class.
pub(crate) fn choose_segment(need: &ClassNeed) -> Result<u64> {
    let ClassNeed { storage, row_bytes, page_bytes, rows, max_disk_bytes, segment_bytes } = *need;
    let least = *sizes(page_bytes).start();
    if let Some(bytes) = segment_bytes {
        if !is_size(bytes, page_bytes) {
            bail!(
                Misuse,
                "segment_bytes is {bytes}, expected a power of two from {least} to \
                 {SEGMENT_BYTES_MAX} with pages of {page_bytes} bytes"
            );
        }
        return Ok(bytes);
    }
    let expected = rows.unwrap_or(1 << 20).saturating_mul(row_bytes as u64);
    let most = max_disk_bytes.unwrap_or(u64::MAX);
    let floor = (most / 256).min(SEGMENT_BYTES_USUAL);
    let is_log = storage == StorageKind::Log || max_disk_bytes.is_some();
    let parts = if is_log { SEGMENTS_OF_LOG } else { SEGMENTS_OF_OTHERS };
    let wanted = (most.min(expected) / parts).max(floor).min(SEGMENT_BYTES_MAX);
    Ok(wanted.max(SEGMENT_BYTES_MIN).next_power_of_two().max(least))
}

/// Refuses the record of a class that no log can have.
pub(crate) fn check_class(facts: &ClassFacts) -> Result<()> {
    let ClassFacts { class, row_bytes, page_bytes, segment_bytes, seed, .. } = *facts;
    PageLayout::new(page_bytes, row_bytes, class, seed)?;
    if !is_size(segment_bytes, page_bytes) {
        bail!(
            Corrupt,
            "segment_bytes is {segment_bytes}, expected a power of two from {} to \
             {SEGMENT_BYTES_MAX}",
            sizes(page_bytes).start()
        );
    }
    Ok(())
}

/// A log without tables in a new file, whose header is durable on return; `epoch` is the number of
/// the commit to come.
pub(crate) fn create(
    facts: &ClassFacts,
    file: Arc<dyn File>,
    epoch: u64,
    medium: &Arc<dyn Medium>,
) -> Result<Box<dyn Storage>> {
    Ok(Box::new(create_log(facts, file, epoch, medium)?))
}

/// As `create`.
pub(crate) fn create_log(
    facts: &ClassFacts,
    file: Arc<dyn File>,
    epoch: u64,
    medium: &Arc<dyn Medium>,
) -> Result<ClassLog> {
    let ClassFacts { class, row_bytes, page_bytes, segment_bytes, seed, .. } = *facts;
    let layout = PageLayout::new(page_bytes, row_bytes, class, seed)?;
    write_header(&*file, facts)?;
    let pages = (segment_bytes / page_bytes as u64) as u32;
    let segments = Segments::new(pages, layout.rows_per_page as u32, epoch);
    ClassLog::bare(layout, file, segment_bytes, segments, 0, medium)
}

impl StorageTables for ClassLog {
    fn create_table(&mut self, facts: &TableFacts<'_>) -> Result<Option<u32>> {
        let index = TableIndex::empty(facts)?;
        let partitions = match &index {
            TableIndex::Sparse(index, _) => Some(index.partitions()),
            TableIndex::Dense(_) => None,
        };
        self.add_table(facts.table, index);
        if let Err(error) = self.fit_indexes(self.slots_expected()) {
            self.remove_table(facts.table);
            return Err(error);
        }
        Ok(partitions)
    }

    fn remove_table(&mut self, table: u16) {
        drop(self.take_index(table));
    }

    fn drop_table(&mut self, table: u16) {
        let index = self.take_index(table);
        self.dropped.push((table, index.is_sparse()));
        for slot in index.slots() {
            self.segments.outdated(slot);
        }
        *self.deleted.entry(self.segments.epoch()).or_default() += index.len();
    }

    fn grow_table(&mut self, table: u16, num_embeddings: u64) -> Result<()> {
        self.index_mut(table).grow(num_embeddings)?;
        self.fit_indexes(self.slots_expected())
    }
}

impl ClassLog {
    /// A log with the smallest buffers, until a plan equips it.
    pub(super) fn bare(
        layout: PageLayout,
        file: Arc<dyn File>,
        segment_bytes: u64,
        segments: Segments,
        sequence: u64,
        medium: &Arc<dyn Medium>,
    ) -> Result<Self> {
        let queue = medium.queue(BARE_CHUNKS, Buffers::equal(BARE_CHUNKS, layout.page_bytes))?;
        let writer = Writer::new(file.clone(), layout.clone(), queue, sequence);
        let buffer = FlushBuffer::new(PARKED_ROWS_MIN, layout.row_bytes / 4);
        Ok(Self::new(layout, file, segment_bytes, segments, writer, buffer))
    }
}

impl TableIndex {
    /// The index of a table without rows, divided as the record says, or as a new one.
    pub(super) fn empty(facts: &TableFacts<'_>) -> Result<Self> {
        let expected = facts.expected_rows.unwrap_or(0);
        Ok(match (facts.num_embeddings, facts.partitions) {
            (Some(ids), _) => TableIndex::Dense(match facts.packed {
                false => DenseIndex::new(ids)?,
                true => DenseIndex::packed(ids)?,
            }),
            (None, partitions) => {
                let index = match partitions {
                    Some(partitions) => SparseIndex::restore(partitions, expected)?,
                    None => SparseIndex::new(expected)?,
                };
                TableIndex::Sparse(index, facts.salt)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_a_512th_of_a_log_and_a_64th_of_other_tables_within_bounds() {
        const MIB: u64 = 1 << 20;
        let chosen = |storage, mib: u64, bound: Option<u64>| {
            let need = ClassNeed {
                storage,
                row_bytes: 128,
                page_bytes: 4096,
                rows: Some(mib * MIB / 128),
                max_disk_bytes: bound.map(|mib| mib * MIB),
                segment_bytes: None,
            };
            choose_segment(&need).unwrap() >> 10
        };
        let (log, lsm) = (StorageKind::Log, StorageKind::Lsm);
        assert_eq!(
            [1, 128, 256, 300, 9000].map(|mib| chosen(log, mib, None)),
            [256, 256, 512, 1024, 4096]
        );
        assert_eq!([1, 16, 32, 300].map(|mib| chosen(lsm, mib, None)), [256, 256, 512, 4096]);
        // Under a bound they are alike, and a tight one has smaller ones.
        for storage in [log, lsm] {
            assert_eq!(chosen(storage, 256, Some(512)), 512);
            assert_eq!(chosen(storage, 8, Some(12)), 64);
        }
    }
}
