//! Picks the partition to merge next, and the neighbour to merge it with.
//!
//! *Source*: RecDB's compaction picker (section 4.3). `docs/decisions/0019-picking-merges.md`
//! describes the part of it used here.

use super::bottom::{Facts, Place};
use crate::config::MergePicker;
use std::ops::Range;

/// A partition with less than this part of what it may have is small.
const SMALL_PART: u64 = 4;

/// The costs of a merge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// Bytes of a row.
    pub(super) row_bytes: u64,
    /// Bytes that are read for each row that a merge takes out of the top.
    pub(super) read_per_row: f64,
    /// Bytes whose reading takes as long as to begin and to end a merge.
    pub(super) beside: u64,
    /// Rows that a merge takes out of the top at most.
    pub(super) rows_max: u64,
}

impl Costs {
    /// Rows that leave the top for each byte that their merge reads or writes. Past merges tell
    /// how many bytes that is in a second; as it is the same for all, it need not be known here.
    fn score(&self, facts: &Facts, entries: u64) -> f64 {
        let rows = entries.min(self.rows_max);
        let read = facts.bytes as f64 + rows as f64 * self.read_per_row;
        let written = facts.bytes + rows * self.row_bytes;
        rows as f64 / (read + (written + self.beside) as f64)
    }
}

/// The partition to merge next, as its place among `partitions`, of which the top has so many
/// `entries` each; `None` where it has none of any. The last merge ended at `behind`.
pub(super) fn pick(
    picker: MergePicker,
    partitions: &[Facts],
    entries: &[u64],
    behind: Option<Place>,
    costs: &Costs,
) -> Option<usize> {
    let mut with_entries = (0..partitions.len()).filter(|at| entries[*at] > 0);
    match picker {
        MergePicker::Score => with_entries.max_by(|a, b| {
            let [a, b] = [*a, *b].map(|at| costs.score(&partitions[at], entries[at]));
            a.total_cmp(&b)
        }),
        MergePicker::Largest => {
            // Others would never be merged if the largest were as soon as it has one entry again.
            let count = partitions.len() as u64;
            let sum: u64 = entries.iter().sum();
            let no_fewer = with_entries.filter(|at| entries[*at] * count >= sum);
            no_fewer.max_by_key(|at| partitions[*at].bytes)
        }
        MergePicker::RoundRobin => {
            let is_behind =
                |at: &usize| behind.is_none_or(|last| last < partitions[*at].range.first);
            with_entries.clone().find(is_behind).or_else(|| with_entries.next())
        }
        MergePicker::Oldest => with_entries.min_by_key(|at| partitions[*at].merge),
    }
}

/// The most that a partition has after its merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// Rows of the new file.
    pub(super) rows: u64,
    /// Rows and tombstones that it takes out of the top.
    pub(super) entries: u64,
}

/// The partitions that are merged together where `picked` is: itself, or where it or a neighbour is
/// small that one, too, the smaller of both, if one file has room for all.
pub(super) fn with_neighbour(
    picked: usize,
    partitions: usize,
    expected: impl Fn(usize) -> Expected,
    rows_per_file: u64,
    costs: &Costs,
) -> Range<usize> {
    let own = expected(picked);
    let is_small = |of: Expected| of.rows < rows_per_file / SMALL_PART;
    let fits = |at: &usize| {
        let of = expected(*at);
        (is_small(own) || is_small(of))
            && own.rows + of.rows <= rows_per_file
            && own.entries + of.entries <= costs.rows_max
    };
    let neighbours = [picked.checked_sub(1), Some(picked + 1).filter(|next| *next < partitions)];
    let fitting = neighbours.into_iter().flatten().filter(fits);
    match fitting.min_by_key(|at| expected(*at).rows) {
        Some(at) => at.min(picked)..at.max(picked) + 1,
        None => picked..picked + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::lsm::bottom::PlaceRange;

    const COSTS: Costs = Costs { row_bytes: 64, read_per_row: 100.0, beside: 8192, rows_max: 1000 };

    /// A partition of so many bytes that begins at so many thousand.
    fn facts(number: u32, bytes: u64, merge: u64) -> Facts {
        let place = |position| Place { table: 0, rank: 0, position };
        let first = u64::from(number) * 1000;
        Facts {
            number,
            pages: 1,
            merge,
            rows: bytes / 64,
            bytes,
            header_sum: 0,
            range: PlaceRange { first: place(first), last: place(first + 999) },
        }
    }

    fn four() -> [Facts; 4] {
        [facts(0, 64_000, 9), facts(1, 16_000, 3), facts(2, 128_000, 7), facts(3, 64_000, 5)]
    }

    fn pick_of(picker: MergePicker, entries: [u64; 4], behind: Option<u64>) -> Option<usize> {
        let behind = behind.map(|position| Place { table: 0, rank: 0, position });
        pick(picker, &four(), &entries, behind, &COSTS)
    }

    #[test]
    fn the_score_weighs_rows_of_the_top_by_the_bytes_of_their_merge() {
        let score = |entries| pick_of(MergePicker::Score, entries, None);
        assert_eq!(score([100, 100, 100, 100]), Some(1), "the shortest");
        assert_eq!(score([100, 20, 100, 101]), Some(3), "one row more, as many bytes");
        assert_eq!(score([100, 10, 300, 100]), Some(2), "three times the rows, twice the bytes");
        // One merge takes a thousand at most.
        assert_eq!(score([1000, 0, 100_000, 0]), Some(0));
        assert_eq!(score([0, 0, 1, 0]), Some(2));
    }

    #[test]
    fn the_others_pick_what_their_names_say() {
        let largest = |entries| pick_of(MergePicker::Largest, entries, None);
        assert_eq!(largest([100, 100, 100, 100]), Some(2));
        assert_eq!(largest([100, 100, 5, 60]), Some(0), "the largest has few again");
        let round = |entries, behind| pick_of(MergePicker::RoundRobin, entries, behind);
        assert_eq!(round([1, 9, 1, 1], None), Some(0));
        assert_eq!(round([1, 0, 1, 1], Some(999)), Some(2));
        assert_eq!(round([1, 0, 1, 1], Some(3999)), Some(0), "from the beginning again");
        let oldest = |entries| pick_of(MergePicker::Oldest, entries, None);
        assert_eq!(oldest([1, 1, 1, 1]), Some(1));
        assert_eq!(oldest([900, 0, 1, 1]), Some(3));
        for picker in MergePicker::ALL {
            assert_eq!(pick_of(picker, [0; 4], None), None, "{picker:?}");
        }
    }

    #[test]
    fn every_partition_comes_to_its_turn() {
        for picker in MergePicker::ALL {
            let (mut partitions, mut entries) = (four(), [0u64; 4]);
            let (mut merges, mut behind) = ([0; 4], None);
            for merge in 10..210 {
                // Few of them come to the first.
                entries.iter_mut().zip([2, 50, 30, 20]).for_each(|(of, came)| *of += came);
                let at = pick(picker, &partitions, &entries, behind, &COSTS).unwrap();
                (entries[at], merges[at]) = (0, merges[at] + 1);
                (behind, partitions[at].merge) = (Some(partitions[at].range.last), merge);
            }
            assert!(merges.iter().all(|merges| *merges > 1), "{picker:?}: {merges:?}");
        }
    }

    #[test]
    fn a_small_partition_is_merged_with_its_smaller_neighbour() {
        let joined = |rows: [u64; 4], picked| {
            let expected = |at: usize| Expected { rows: rows[at], entries: 10 };
            with_neighbour(picked, 4, expected, 1000, &COSTS)
        };
        assert_eq!(joined([600, 500, 600, 500], 1), 1..2, "none is small");
        assert_eq!(joined([600, 100, 500, 500], 1), 1..3);
        assert_eq!(joined([400, 100, 500, 500], 1), 0..2);
        assert_eq!(joined([950, 100, 950, 500], 1), 1..2, "no file has room for both");
        assert_eq!(joined([600, 500, 0, 500], 1), 1..3, "an empty neighbour goes");
        assert_eq!((joined([0, 0, 600, 600], 0), joined([9, 9, 9, 9], 3)), (0..2, 2..4));
        // One merge takes so many entries at most.
        let many = |at: usize| Expected { rows: 10, entries: [10, 991, 10, 10][at] };
        assert_eq!(with_neighbour(0, 4, many, 1000, &COSTS), 0..1);
        assert_eq!(with_neighbour(0, 1, many, 1000, &COSTS), 0..1);
    }
}
