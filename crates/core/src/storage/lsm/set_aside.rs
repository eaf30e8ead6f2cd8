//! Unreadable places that merges leave alone.
//!
//! A merge copies the rows it reads; unreadable rows cannot be copied. Rows of a page of the top
//! that cannot be read stay in the top, and the merge goes on without them. One that cannot read an
//! old partition is abandoned. A damaged place is set aside until the storage is opened again:
//! reads of its sound pages go on, and all other places are still merged. An error of the device
//! may pass, so its place is set aside only once it has failed again and again.

use super::Lsm;
use super::bottom::{Facts, PlaceRange, Unread, file_name};
use crate::error::Error;
use crate::storage::failures::Failures;

/// A place that merges could not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spot {
    /// A page of the top, as one filling of its segment has it.
    Page { page: u32, filling: u64 },
    /// A partition; or too much of what the top has in its range.
    Partition(u32),
    /// Too much of the top, while there is no partition.
    Top,
}

/// The places that could not be read since open.
#[derive(Debug, Default)]
pub(super) struct SetAside {
    failures: Failures<Spot>,
    /// Rows of the top and tombstones that are set aside, when they were last counted.
    rows: u64,
}

impl SetAside {
    /// The error of each place.
    pub(super) fn damage(&self) -> Vec<String> {
        self.failures.texts("its rows are merged no more until it is reopened")
    }

    /// Allocated bytes, about.
    pub(super) fn memory_bytes(&self) -> usize {
        self.failures.memory_bytes()
    }

    /// Pages of the top that failed by errors that may pass: merges try them again.
    pub(super) fn pages_tried_again(&self) -> Vec<u32> {
        self.failures.tried_again().filter_map(page_of).collect()
    }
}

fn page_of(spot: Spot) -> Option<u32> {
    match spot {
        Spot::Page { page, .. } => Some(page),
        Spot::Partition(_) | Spot::Top => None,
    }
}

impl Lsm {
    /// A merge of these partitions has ended. `skipped` are pages of the top that it could not
    /// read, `unread` those that it was to try again and has not read, either.
    pub(super) fn note_pages(&mut self, skipped: &[(u32, Error)], unread: &[u32]) {
        let now = self.upkeep.events();
        for (page, error) in skipped {
            if let Some(filling) = self.top.filling_of(*page) {
                self.set_aside.failures.note(Spot::Page { page: *page, filling }, error, now);
            }
        }
        let tried: Vec<Spot> = self.set_aside.failures.tried_again().collect();
        self.set_aside.failures.retain(|spot| {
            page_of(spot).is_none_or(|page| {
                let failed = skipped.iter().any(|(skipped, _)| *skipped == page);
                failed || unread.contains(&page) || !tried.contains(&spot)
            })
        });
        self.count_aside();
    }

    /// A merge of a range was abandoned, because it could not read something.
    pub(super) fn note_unread(&mut self, at: Unread, range: PlaceRange, error: &Error) {
        let version = self.bottom.snapshot().version();
        let first = version.find(range.first).map(|at| version.partitions()[at].number);
        let mut of_changes = None;
        let spot = match (at, first) {
            (Unread::Partition(number), _) => Spot::Partition(number),
            (Unread::Changes, Some(number)) => {
                let name = file_name(self.facts.class, number);
                let what = format!("{name} cannot be merged: {}", error.message());
                of_changes = Some(Error::new(error.kind(), what));
                Spot::Partition(number)
            }
            (Unread::Changes, None) => Spot::Top,
        };
        let failures = &mut self.set_aside.failures;
        // A page that is forgotten is met again; a partition would be picked for ever.
        failures.make_room(spot, |other| page_of(other).is_some());
        failures.note(spot, of_changes.as_ref().unwrap_or(error), self.upkeep.events());
        self.count_aside();
    }

    /// Whether no merge takes a partition now.
    pub(super) fn rests(&self, facts: &Facts) -> bool {
        self.set_aside.failures.rests(Spot::Partition(facts.number), self.upkeep.events())
    }

    /// Whether no merge takes rows of the top now, while there is no partition.
    pub(super) fn top_rests(&self) -> bool {
        self.set_aside.failures.rests(Spot::Top, self.upkeep.events())
    }

    /// Rows of the top and tombstones that merges may take, nearly.
    pub(super) fn rows_to_merge(&self) -> u64 {
        self.rows_above().saturating_sub(self.set_aside.rows)
    }

    /// Whether there is a tombstone that a merge may drop now.
    pub(super) fn has_tombstones_to_drop(&self) -> bool {
        let partitions = self.bottom.snapshot().version().partitions();
        if self.tombstones.is_empty() || partitions.is_empty() {
            return !self.tombstones.is_empty() && !self.top_rests();
        }
        let resting = partitions.iter().filter(|facts| self.rests(facts));
        let kept: usize = resting.map(|facts| self.tombstones.count_in(facts.range)).sum();
        kept < self.tombstones.len()
    }

    /// Forgets what is there no more, and counts what is set aside: it grows as rows come to the
    /// top.
    pub(super) fn count_aside(&mut self) {
        let version = self.bottom.snapshot().version();
        let (top, partitions) = (&self.top, version.partitions());
        self.set_aside.failures.retain(|spot| match spot {
            Spot::Page { page, filling } => top.filling_of(page) == Some(filling),
            Spot::Partition(number) => partitions.iter().any(|facts| facts.number == number),
            Spot::Top => partitions.is_empty(),
        });
        let failures = &self.set_aside.failures;
        let pages: Vec<u32> = failures.resting(self.upkeep.events()).filter_map(page_of).collect();
        let is_aside = |facts: &&Facts| failures.is_aside(Spot::Partition(facts.number));
        let of_partitions = partitions.iter().filter(is_aside);
        let rows: u64 = of_partitions.map(|facts| self.entries_in(facts.range)).sum();
        // Some of them may be outdated by now.
        let of_pages = pages.len() * self.top.layout().rows_per_page;
        self.set_aside.rows = rows + of_pages as u64;
        // Spots are in order of their pages.
        self.top.leave_pages(pages);
    }
}

#[cfg(test)]
impl Lsm {
    /// Pages of the top that are set aside or tried again.
    pub(crate) fn pages_not_read(&self) -> Vec<u32> {
        self.set_aside.failures.resting(0).filter_map(page_of).collect()
    }

    /// Notes that so many pages of the top, and too much in the range of the first partition, could
    /// not be read. The name of that, if it rests then.
    pub(crate) fn note_damage(&mut self, pages: u32) -> Option<String> {
        let error = Error::new(crate::error::ErrorKind::Corrupt, "damaged");
        let again = || Error::new(error.kind(), error.message());
        let skipped: Vec<(u32, Error)> = (1..=pages).map(|page| (page, again())).collect();
        self.note_pages(&skipped, &[]);
        let first = *self.bottom.snapshot().version().partitions().first()?;
        self.note_unread(Unread::Changes, first.range, &error);
        self.rests(&first).then(|| file_name(self.facts.class, first.number))
    }

    /// Bytes of the files of partitions.
    pub(crate) fn bytes_of_files(&self) -> u64 {
        self.bottom.disk_bytes()
    }

    /// Pages of the top that have the rows at positions `0..count` of a table.
    pub(crate) fn pages_above(&self, table: u16, count: u64) -> Vec<u32> {
        let found = self.top.slots_of(table, 0, count - 1, usize::MAX, true);
        let per_page = self.top.layout().rows_per_page as u32;
        let mut pages: Vec<u32> = found.slots.iter().map(|slot| slot / per_page).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }
}
