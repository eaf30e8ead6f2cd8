//! Ranges that merges leave alone, because one has met damage there.
//!
//! A merge copies what it reads, and a page that cannot be read is copied nowhere. So a merge that
//! meets one is abandoned, and its range is set aside until the storage is opened again: reads of
//! its sound pages go on, its newer rows stay in the top, and other ranges are merged on.

use super::Lsm;
use super::bottom::PlaceRange;
use crate::error::Error;

/// What is set aside since open.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    ranges: Vec<PlaceRange>,
    /// What was wrong with each.
    damage: Vec<String>,
    /// Rows of the top and tombstones in them, when they were last counted.
    rows: u64,
}

impl SetAside {
    /// Whether no merge takes the rows of a range: one that was set aside, or a part of it.
    pub(super) fn has(&self, range: PlaceRange) -> bool {
        self.ranges.iter().any(|aside| aside.contains(range.first))
    }

    /// What was wrong with each range.
    pub(super) fn damage(&self) -> &[String] {
        &self.damage
    }

    /// Allocated bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let texts: usize = self.damage.iter().map(String::capacity).sum();
        let each = size_of::<PlaceRange>() + size_of::<String>();
        texts + self.ranges.capacity() * each
    }

    fn add(&mut self, range: PlaceRange, damage: &Error) {
        self.ranges.push(range);
        let damage =
            format!("{}; its rows are merged no more until it is reopened", damage.message());
        self.damage.push(damage);
    }
}

impl Lsm {
    /// Leaves the range of a merge alone that has met damage.
    pub(super) fn set_aside(&mut self, range: PlaceRange, damage: &Error) {
        self.set_aside.add(range, damage);
        self.count_aside();
    }

    /// Rows of the top and tombstones that merges may take, nearly.
    pub(super) fn rows_to_merge(&self) -> u64 {
        self.rows_above().saturating_sub(self.set_aside.rows)
    }

    /// Counts what is set aside: it grows as rows come to the top.
    pub(super) fn count_aside(&mut self) {
        let ranges = self.set_aside.ranges.iter();
        self.set_aside.rows = ranges.map(|range| self.entries_in(*range)).sum();
    }
}
