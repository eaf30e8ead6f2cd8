//! Number of entries of the top in the range of each partition.
//!
//! An entry is a place with a row in the top or with a tombstone; no place has both. They are
//! counted as they come and go, so that picking a partition reads one number for each. Entries from
//! before counting began are counted by the index, approximately for growing tables: a part of it
//! that lies in two ranges counts in the first. A merge that takes all entries it finds makes the
//! counts of its range exact.

use super::bottom::{Place, PlaceRange, Version};
use std::ops::Range;

/// Entries in the range of each partition.
#[derive(Debug, Default)]
pub(super) struct TopCounts {
    /// In the order of the version, or one number while that has no partition. Empty until somebody
    /// has counted.
    entries: Vec<u64>,
    beside: Option<Beside>,
    /// Entries that have come or gone since open.
    changes: u64,
}

/// Entries of the range of a merge under way that it does not take, up to the last place that it
/// looked at.
#[derive(Debug)]
struct Beside {
    range: PlaceRange,
    until: Place,
    places: Vec<Place>,
    /// There are no more of them: with more, the index has to tell.
    most: usize,
    is_over: bool,
}

impl Beside {
    fn push(&mut self, place: Place) {
        if self.places.len() == self.most {
            self.forget();
        }
        if !self.is_over {
            self.places.push(place);
        }
    }

    fn forget(&mut self) {
        (self.places, self.is_over) = (Vec::new(), true);
    }
}

/// Index of the number that counts a place.
fn at(version: &Version, place: Place) -> usize {
    version.find(place).unwrap_or(0)
}

impl TopCounts {
    /// Whether somebody has counted.
    pub(super) fn are_made(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Takes what was counted for each partition of the version.
    pub(super) fn make(&mut self, entries: Vec<u64>) {
        self.entries = entries;
    }

    /// Entries of each partition.
    pub(super) fn entries(&self) -> &[u64] {
        &self.entries
    }

    /// Entries that have come or gone since open.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// A place had no entry and has one now.
    pub(super) fn entered(&mut self, version: &Version, place: Place) {
        self.changes += 1;
        if let Some(entries) = self.entries.get_mut(at(version, place)) {
            *entries += 1;
        }
        if let Some(beside) = &mut self.beside
            && beside.range.contains(place)
            && place <= beside.until
        {
            beside.push(place);
        }
    }

    /// A place had an entry and has none any more.
    pub(super) fn left(&mut self, version: &Version, place: Place) {
        self.changes += 1;
        if let Some(entries) = self.entries.get_mut(at(version, place)) {
            // Of what was there before counting began, the number of a range is near.
            *entries = entries.saturating_sub(1);
        }
    }

    /// Corrects the number of a partition.
    pub(super) fn correct(&mut self, at: usize, entries: u64) {
        self.entries[at] = entries;
    }

    /// A merge begins that takes all entries of `range` up to `until`, but for those at `places`.
    /// There is memory for so many `bytes` of these.
    pub(super) fn begin(
        &mut self,
        range: PlaceRange,
        until: Place,
        places: &[Place],
        bytes: usize,
    ) {
        let most = bytes / size_of::<Place>();
        let mut beside = Beside { range, until, places: Vec::new(), most, is_over: false };
        beside.places.reserve_exact(most.min(2 * places.len()));
        places.iter().for_each(|place| beside.push(*place));
        self.beside = Some(beside);
    }

    /// The merge under way has left some of what it was to take.
    pub(super) fn forget_beside(&mut self) {
        if let Some(beside) = &mut self.beside {
            beside.forget();
        }
    }

    /// No merge is under way any more.
    pub(super) fn end(&mut self) {
        self.beside = None;
    }

    /// The places of the numbers of the partitions of a range.
    pub(super) fn of_range(&self, version: &Version, range: PlaceRange) -> Range<usize> {
        at(version, range.first)..at(version, range.last) + 1
    }

    /// Entries of its range that the merge under way does not take: sorted places, and the place
    /// up to which they are complete. `None` if they are unknown.
    pub(super) fn beside(&mut self) -> Option<(&[Place], Place)> {
        match &mut self.beside {
            Some(beside) if beside.is_over => None,
            Some(beside) => {
                beside.places.sort_unstable();
                Some((&beside.places, beside.until))
            }
            None => Some((&[], Place::MAX)),
        }
    }

    /// The outcome of a merge is in place: `added` has the entries of its partitions, which replace
    /// those at `old`.
    pub(super) fn install(&mut self, old: Range<usize>, added: Vec<u64>) {
        self.entries.splice(old, added);
        self.beside = None;
    }

    /// Memory of the numbers: some bytes for each partition.
    pub(super) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<u64>()
    }
}

/// Counts beside those that a look at every entry gives.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Recount {
    pub(crate) counted: Vec<u64>,
    pub(crate) there: Vec<u64>,
}

#[cfg(test)]
impl super::Lsm {
    /// Counts again, key by key; `None` where nobody has counted.
    pub(crate) fn recount(&self) -> Option<Recount> {
        let counts = &self.upkeep.counts;
        let version = self.bottom.snapshot().version();
        let mut there = vec![0; version.partitions().len().max(1)];
        for table in self.bottom.orders().tables() {
            for key in self.top.keys_of(table) {
                there[at(version, self.place(table, key))] += 1;
            }
        }
        for place in self.tombstones.in_range(PlaceRange::ALL) {
            there[at(version, place)] += 1;
        }
        counts.are_made().then(|| Recount { counted: counts.entries.clone(), there })
    }

    /// Makes the count of a partition wrong.
    pub(crate) fn miscount(&mut self, at: usize) {
        let entries = self.upkeep.counts.entries[at] + 1;
        self.upkeep.counts.correct(at, entries);
    }

    /// Rows of each partition of the bottom.
    pub(crate) fn rows_of_partitions(&self) -> Vec<u64> {
        let snapshot = self.bottom.snapshot();
        snapshot.version().partitions().iter().map(|facts| facts.rows).collect()
    }

    /// The number of each partition of the bottom, with whether a tombstone lies in its range.
    pub(crate) fn partitions_with_tombstones(&self) -> Vec<(u32, bool)> {
        let partitions = self.bottom.snapshot().version().partitions().iter();
        let has = |range| self.tombstones.in_range(range).next().is_some();
        partitions.map(|facts| (facts.number, has(facts.range))).collect()
    }

    /// Whether merges go on until no tombstone is left that they can drop.
    pub(crate) fn drops_tombstones(&self) -> bool {
        self.upkeep.drops_tombstones
    }
}
