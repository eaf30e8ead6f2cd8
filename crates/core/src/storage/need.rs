//! Memory and disk that a table will take, computed before it is made.

use super::pmem;
use crate::config::{DENSE_IDS_MAX, Merging, StorageKind};
use crate::error::Result;
use crate::index::{DenseIndex, SparseIndex};

/// The log is cleaned when newest copies are less than this share of newest and dead slots
/// together. Copies that a kept commit retains are neither: the next commits release them, unless
/// leftovers keep them, which count as dead. Uniform
/// updates then move about half a row for each one written; at 0.7 nearly a whole one.
pub(super) const LIVE_SHARE: f64 = 0.6;
/// Index bytes of a growing table in a log per row, twice: a half more than eight.
const LOG_INDEX_BYTES_PER_KEY_TWICE: u64 = 17;
/// Bytes of a hundred ids of a dense table in the top of an lsm, whether they have rows or not.
const LSM_BYTES_PER_100_IDS: u64 = 15;
/// Bytes of a row in the top of an lsm, twice: of a dense table, of a growing one.
const LSM_BYTES_PER_TOP_ID_TWICE: u64 = 9;
const LSM_BYTES_PER_TOP_KEY_TWICE: u64 = 17;
/// Growth of the index of the top beyond that for rows that come together: its parts grow by an
/// eighth each, which is 2 KiB at most, and some happen to do so at once.
const LSM_INDEX_STEPS_BYTES: u64 = 16 << 10;
/// Parts of an index have so many ids. Each grows by one part in so many of what it has, and by so
/// much at least.
const LSM_INDEX_PART_IDS: u64 = 4096;
const LSM_INDEX_STEP_PART: u64 = 8;
const LSM_INDEX_STEP_BYTES_MIN: u64 = 32;
/// Rows of the top by its share, at most: more come while a merge is under way.
const LSM_TOP_MOST: f64 = 1.125;
/// Memory of the bottom of an lsm for a table: with few rows, and rows for each byte more.
const LSM_BYTES_BELOW: u64 = 4096;
const LSM_ROWS_PER_BYTE_BELOW: u64 = 8;
/// Bits of a row of a growing table in a filter, at most on average, and of an id of a dense one.
const LSM_FILTER_BITS: u64 = 7;
const LSM_FILTER_BITS_PER_ID: u64 = 3;
/// Bytes of a row in the index of frozen pages, twice, a tenth as many replicas among them: of a
/// dense table, of a growing one.
const PAGES_BYTES_PER_ID_TWICE: u64 = 11;
const PAGES_BYTES_PER_KEY_TWICE: u64 = 15;
/// Bytes of a page beside a row: its entry in the directory and its part of the header.
const ENTRY_BYTES: usize = 16;
/// Disk of an lsm by that of its rows: those of the top lie in the bottom, too, until they merge,
/// and a merge writes a partition beside the old one. Beside the share of the top.
const LSM_DISK_PER_ROWS: f64 = 1.2;

/// Journal bytes of a row of an lsm beside what its top needs: its tombstone.
const LSM_TOMBSTONE_BYTES: u64 = 16;
/// Bytes of the heads of the blocks of one portion of changes of an lsm.
const LSM_BLOCKS_BYTES: u64 = 16;
/// Edits and tombstones of an lsm are handed to the journal when they are this long, or sooner.
const LSM_PORTION_BYTES: usize = 64 << 10;

/// The memory of the index of a new table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexMemory {
    /// Bytes from the beginning.
    pub now: u64,
    /// Bytes that it will take beyond these.
    pub growth: u64,
}

/// The additional memory of the index of a dense table stored by id when it grows from `before` to
/// `after` ids; `packed` is the form of an index in a log, `expected` the number of rows.
pub(crate) fn index_memory_to_grow(
    (kind, packed): (StorageKind, bool),
    (before, after): (u64, u64),
    expected: Option<u64>,
    merging: Merging,
) -> Result<IndexMemory> {
    let of = |ids: u64| match (kind, packed) {
        (StorageKind::Log, false) => Ok(dense_memory(ids)),
        (StorageKind::Log, true) => {
            let rows = expected.unwrap_or(ids).min(ids);
            Ok(IndexMemory { now: DenseIndex::packed_memory_for(ids, rows), growth: 0 })
        }
        _ => index_memory(kind, Some(ids), expected, merging),
    };
    let (old, new) = (of(before)?, of(after)?);
    Ok(IndexMemory {
        now: new.now.saturating_sub(old.now),
        growth: new.growth.saturating_sub(old.growth),
    })
}

/// The memory of the index of a new table: a dense one of `ids` ids, or a growing one that is
/// expected to have so many keys; `merging` keeps an lsm.
pub(crate) fn index_memory(
    kind: StorageKind,
    ids: Option<u64>,
    expected: Option<u64>,
    merging: Merging,
) -> Result<IndexMemory> {
    let above = |rows: u64| (rows as f64 * merging.top_share * LSM_TOP_MOST) as u64;
    Ok(match (kind, ids) {
        (StorageKind::Pmem, ..) => {
            // The index is in the region, which is as large as it will be.
            let bytes = pmem::region_bytes(expected.unwrap_or(1), 1);
            IndexMemory { now: bytes.map_or(0, |(_, memory)| memory), growth: 0 }
        }
        (StorageKind::Log, Some(ids)) if is_packed(kind, Some(ids), expected) => IndexMemory {
            now: DenseIndex::packed_memory_for(ids, 0),
            growth: packed_growth(ids, 0, expected.unwrap_or(0)),
        },
        (StorageKind::Log, Some(ids)) => dense_memory(ids),
        (StorageKind::Lsm, Some(ids)) => {
            let bits = if merging.filters { LSM_FILTER_BITS_PER_ID } else { 0 };
            let of_top = index_bytes(above(ids), LSM_BYTES_PER_TOP_ID_TWICE);
            let filters = ids.saturating_mul(bits) / 8;
            IndexMemory {
                now: ids.saturating_mul(LSM_BYTES_PER_100_IDS) / 100,
                growth: of_top + bytes_below(ids) + filters,
            }
        }
        (StorageKind::Log, None) => {
            let expected = expected.unwrap_or(0);
            let empty = SparseIndex::new(expected)?.memory_bytes() as u64;
            IndexMemory { now: 0, growth: log_index_bytes(expected).max(empty) }
        }
        (StorageKind::Pages, Some(ids)) => IndexMemory {
            now: ids.saturating_mul(LSM_BYTES_PER_100_IDS) / 100,
            growth: LSM_BYTES_BELOW + index_bytes(ids, PAGES_BYTES_PER_ID_TWICE),
        },
        (StorageKind::Pages, None) => {
            let empty = SparseIndex::new(0)?.memory_bytes() as u64;
            let below = index_bytes(expected.unwrap_or(0), PAGES_BYTES_PER_KEY_TWICE);
            IndexMemory { now: 0, growth: empty + LSM_BYTES_BELOW + below }
        }
        (StorageKind::Lsm, None) => {
            let empty = SparseIndex::new(0)?.memory_bytes() as u64;
            let expected = expected.unwrap_or(0);
            let of_top = index_bytes(above(expected), LSM_BYTES_PER_TOP_KEY_TWICE);
            let filters = if merging.filters { expected * LSM_FILTER_BITS / 8 } else { 0 };
            let growth = of_top.max(empty) + bytes_below(expected) + filters;
            IndexMemory { now: 0, growth }
        }
    })
}

/// The memory of a dense table in a log with an entry for every id: now with the slot numbers of
/// its rows, and the growth that these may cause in a longer file.
fn dense_memory(ids: u64) -> IndexMemory {
    let now = DenseIndex::memory_of_new(ids);
    IndexMemory { now, growth: DenseIndex::memory_for(ids).saturating_sub(now) }
}

/// Whether the index of a new table has room for ids with a row alone: of one in a log that is
/// stored by id, where that is the smaller once it has the rows that are expected.
pub(crate) fn is_packed(kind: StorageKind, ids: Option<u64>, expected: Option<u64>) -> bool {
    match (kind, ids, expected) {
        (StorageKind::Log, Some(ids), Some(expected)) if expected < ids && ids <= DENSE_IDS_MAX => {
            DenseIndex::packed_memory_for(ids, expected) < DenseIndex::memory_of_new(ids)
        }
        _ => false,
    }
}

/// Bytes that a packed index of so many ids may grow by, if `more` get a row beside `rows`.
pub(crate) fn packed_growth(ids: u64, rows: u64, more: u64) -> u64 {
    let bytes = |rows: u64| DenseIndex::packed_memory_for(ids, rows.min(ids));
    bytes(rows.saturating_add(more)) - bytes(rows)
}

/// Bytes of what the bottom of an lsm knows of so many rows: fences, and some for each partition,
/// of which there is one at least.
pub(super) fn bytes_below(rows: u64) -> u64 {
    LSM_BYTES_BELOW + rows / LSM_ROWS_PER_BYTE_BELOW
}

/// Bytes of the index of a growing table in a log with `rows` rows.
pub(super) fn log_index_bytes(rows: u64) -> u64 {
    index_bytes(rows, LOG_INDEX_BYTES_PER_KEY_TWICE)
}

fn index_bytes(rows: u64, bytes_per_row_twice: u64) -> u64 {
    rows.saturating_mul(bytes_per_row_twice) / 2
}

/// Bytes that the index of the newest rows may need for `rows` rows that are written, where it has
/// `now` bytes: none where all memory is there from the begin, or made when keys come. `ids` are
/// those of its tables; `None` where rows of growing ones are among them.
pub(super) fn bytes_for_written_rows(
    kind: StorageKind,
    rows: u64,
    now: u64,
    ids: Option<u64>,
) -> u64 {
    if !kind.has_bottom() || rows == 0 {
        return 0;
    }
    let (each, parts) = match ids {
        Some(ids) => (LSM_BYTES_PER_TOP_ID_TWICE, ids.div_ceil(LSM_INDEX_PART_IDS)),
        None => (LSM_BYTES_PER_TOP_KEY_TWICE, u64::MAX),
    };
    let steps = now / LSM_INDEX_STEP_PART + rows.min(parts) * LSM_INDEX_STEP_BYTES_MIN;
    index_bytes(rows, each) + steps.min(LSM_INDEX_STEPS_BYTES)
}

/// Journal bytes for `rows` rows, beside those that the log of the newest ones needs.
pub(super) fn journal_bytes_beside(kind: StorageKind, rows: u64) -> u64 {
    match kind {
        StorageKind::Log | StorageKind::Pmem => 0,
        StorageKind::Lsm | StorageKind::Pages => rows * LSM_TOMBSTONE_BYTES + LSM_BLOCKS_BYTES,
    }
}

/// Bytes of changes that wait for the journal, beside those of the log of the newest rows.
pub(super) fn change_bytes_beside(kind: StorageKind) -> u64 {
    match kind {
        StorageKind::Log | StorageKind::Pmem => 0,
        StorageKind::Lsm | StorageKind::Pages => LSM_PORTION_BYTES as u64,
    }
}

/// Bytes on disk that storages need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskNeed {
    /// Beside the store's other files.
    pub own: u64,
    /// The folder of files that may be apart.
    pub apart: u64,
}

impl DiskNeed {
    /// All of them.
    pub(crate) fn all(&self) -> u64 {
        self.own.saturating_add(self.apart)
    }
}

impl std::ops::AddAssign for DiskNeed {
    fn add_assign(&mut self, other: Self) {
        self.own = self.own.saturating_add(other.own);
        self.apart = self.apart.saturating_add(other.apart);
    }
}

/// The disk bytes that a storage of so many rows needs to work well, all of them written.
pub(crate) fn disk_bytes_for(
    kind: StorageKind,
    rows: u64,
    row_bytes: usize,
    top_share: f64,
) -> DiskNeed {
    let bytes = rows as f64 * (row_bytes + ENTRY_BYTES) as f64;
    match kind {
        StorageKind::Log => DiskNeed { own: (bytes / LIVE_SHARE) as u64, apart: 0 },
        StorageKind::Lsm | StorageKind::Pages => DiskNeed {
            own: (bytes * top_share).round() as u64,
            apart: (bytes * LSM_DISK_PER_ROWS).round() as u64,
        },
        // A capacity that no region can have is refused when the region is made.
        StorageKind::Pmem => DiskNeed {
            own: pmem::region_bytes(rows, row_bytes).map_or(u64::MAX, |(bytes, _)| bytes),
            apart: 0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TOP_SHARE;

    #[test]
    fn an_lsm_keeps_a_tenth_of_the_index_of_a_log_and_takes_less_disk() {
        let memory = |kind, ids, keys| index_memory(kind, ids, keys, Merging::default()).unwrap();
        let (log, lsm) = (StorageKind::Log, StorageKind::Lsm);
        let rows = 1_000_000;
        let dense = memory(lsm, Some(rows), None);
        assert_eq!(dense, IndexMemory { now: 150_000, growth: 506_250 + 129_096 });
        let IndexMemory { now, growth } = memory(log, Some(rows), None);
        assert!(dense.now + dense.growth < (now + growth) / 4);
        let growing = memory(lsm, None, Some(rows));
        assert_eq!(growing, IndexMemory { now: 0, growth: 956_250 + 129_096 });
        assert_eq!(memory(log, None, Some(rows)).growth, 8_500_000);
        // A growing table without an expected number of rows has room for the first ones.
        assert!(memory(lsm, None, None).growth > 0);
        let disk = |kind, top_share| disk_bytes_for(kind, rows, 84, top_share).all();
        assert_eq!(disk(lsm, TOP_SHARE), 130_000_000);
        assert!(disk(lsm, TOP_SHARE) < disk(log, TOP_SHARE));
    }

    #[test]
    fn an_index_in_a_log_is_packed_where_that_is_the_smaller() {
        let ids = 1_000_000;
        let is_packed = |expected| is_packed(StorageKind::Log, Some(ids), expected);
        assert!(is_packed(Some(1)) && is_packed(Some(ids / 2)) && is_packed(Some(ids * 54 / 100)));
        assert!(!is_packed(Some(ids * 56 / 100)) && !is_packed(Some(ids)) && !is_packed(None));
        assert!(!is_packed(Some(u64::MAX)));
        let memory = |expected| {
            index_memory(StorageKind::Log, Some(ids), expected, Merging::default()).unwrap()
        };
        // 21 bits name five slots for three ids; 32 are the most.
        assert_eq!(memory(None), IndexMemory { now: 2_625_024, growth: 1_375_000 });
        let eighth = memory(Some(ids / 8));
        assert_eq!(eighth.now, DenseIndex::packed_memory_for(ids, 0));
        assert_eq!(eighth.now + eighth.growth, DenseIndex::packed_memory_for(ids, ids / 8));
        assert_eq!(packed_growth(ids, ids, 5), 0);
        for kind in [StorageKind::Lsm, StorageKind::Pages, StorageKind::Pmem] {
            assert!(!super::is_packed(kind, Some(ids), Some(1)), "{kind:?}");
        }
    }

    #[test]
    fn a_larger_top_takes_more_memory_and_disk() {
        let growth = |ids, top_share| {
            let keys = Some(1_000_000);
            let ids = if ids { keys } else { None };
            let merging = Merging { top_share, ..Merging::default() };
            index_memory(StorageKind::Lsm, ids, keys, merging).unwrap().growth
        };
        for ids in [true, false] {
            let [small, usual, large] = [0.05, 0.1, 0.5].map(|share| growth(ids, share));
            assert!(small < usual && usual < large, "{small} {usual} {large}");
        }
        assert_eq!(growth(true, 0.5), 5 * 506_250 + 129_096);
        let disk = disk_bytes_for(StorageKind::Lsm, 1_000_000, 84, 0.5);
        assert_eq!(disk, DiskNeed { own: 50_000_000, apart: 120_000_000 });
    }
}
