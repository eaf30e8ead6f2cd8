//! The begin of a merge: whether one is due, which partitions it takes, what it may cost.
//!
//! The caller holds the lock of the class, and asks at every verb. So a refusal is remembered until
//! something has changed, entries of the top are counted as they come and go, and the directory is
//! scanned once. All reads are left to the first step.

use super::Lsm;
use super::bottom::{BUILDER_BYTES_PER_ROW, Facts, MergePlan, Partition, Place, PlaceRange, Shape};
use super::newest::{Found, Newest};
use super::pick::{Costs, Expected, pick, with_neighbour};
use super::unit::{GivenOut, MergeUnit, Planned};
use crate::error::{ErrorKind, Result};
use crate::storage::StorageRead;
use crate::storage::log::{MERGE_PORTIONS, SEGMENT_BYTES_MAX};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Segments of rows that the top may have in any case.
const TOP_SEGMENTS_MIN: u64 = 2;
/// When memory is short, the top's share is divided by this. With less of it partitions would be
/// written again for few rows.
const PRESSED_PART: u64 = 2;
/// Segments of the top in a partition.
const SEGMENTS_PER_PARTITION: u64 = 8;
/// A merge takes at most one row out of the top for so many bytes of a portion.
const PORTION_BYTES_PER_ROW: usize = 4;
/// The memory of a row while the filter of its file is made: its cell, and then its bits.
const FILTER_BYTES_PER_ROW: usize = BUILDER_BYTES_PER_ROW + 1;
/// Portions of a merge that filters take of what rows that are taken would need.
const FILTER_PORTIONS: usize = 2;

/// Rows of a partition whose filter a merge has the memory to make.
fn filter_rows(portion_bytes: usize) -> u64 {
    (FILTER_PORTIONS * portion_bytes / FILTER_BYTES_PER_ROW) as u64
}

/// Parts of a disk bound that a partition may take: the room for a merge is that of two.
const BOUND_PARTS: u64 = 32;

/// Why no merge has begun, or the last one came to nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// There was nothing that it could take, when so much had changed.
    Nothing(u64),
    /// The disk bound left no room for so many bytes.
    Bound(u64),
    /// The device had no room, until a commit or until somebody finds some.
    Device,
    /// It met a full device on its way, though it had its room. Until a commit: no change begins
    /// one that may fail again.
    Failed,
}

/// The input of a merge.
struct Choice {
    range: PlaceRange,
    inputs: Vec<Arc<Partition>>,
    newest: Newest,
    found: Found,
}

impl Lsm {
    /// Whether a merge would begin with so many bytes more of the disk, as far as that is known
    /// without a look at the top.
    pub(super) fn may_begin(&self, grow_bytes: u64) -> bool {
        let goes_on = self.upkeep.given_out.is_some() || self.upkeep.taken_ticket.is_some();
        let is_refused = match self.upkeep.refused {
            None => false,
            Some(Refused::Nothing(changes)) => changes == self.upkeep.changes(),
            Some(Refused::Bound(bytes)) => self.room.bytes().saturating_add(grow_bytes) < bytes,
            Some(Refused::Device | Refused::Failed) => true,
        };
        !goes_on && !is_refused && self.is_due()
    }

    fn is_due(&self) -> bool {
        if !self.merges_into_bottom() {
            return false;
        }
        let drops =
            self.upkeep.drops_tombstones && !self.tombstones.is_empty() || self.has_rows_to_drop();
        // A full storage merges what little there is: outdated rows below go by that alone.
        let most = if self.upkeep.merges_for_room() { 0 } else { self.most_above() };
        drops || self.rows_to_merge() > most
    }

    /// Begins the merge that is due, if one is and so many bytes are enough for it beside the room
    /// that is kept.
    pub(super) fn begin_merge(&mut self, grow_bytes: u64) -> Result<Option<MergeUnit>> {
        if !self.may_begin(grow_bytes) {
            return Ok(None);
        }
        self.tidy()?;
        let grow_bytes = grow_bytes.saturating_add(self.bottom.remove_files()?);
        self.count_top();
        self.count_aside();
        self.upkeep.drops_tombstones &= self.has_tombstones_to_drop();
        if !self.is_due() {
            self.refuse_nothing();
            return Ok(None);
        }
        // Until a merge begins: what none can take is waited for no more.
        let mut drops_tombstones = std::mem::take(&mut self.upkeep.drops_tombstones);
        let mut choice = self.choose_dropped();
        if choice.is_none() {
            choice = self.choose(drops_tombstones, true);
        }
        if choice.is_none() && std::mem::take(&mut drops_tombstones) && self.is_due() {
            choice = self.choose(false, true);
        }
        let Some(mut choice) = choice else {
            self.refuse_nothing();
            return Ok(None);
        };
        let mut bytes = self.bytes_of_choice(&choice);
        let mut has_room = self.has_room_for(bytes, grow_bytes)?;
        if !has_room && choice.inputs.len() > 1 {
            // One partition may have room where a pair has not. First the memory of the pair goes.
            drop(choice);
            let Some(alone) = self.choose(drops_tombstones, false) else {
                self.upkeep.drops_tombstones = drops_tombstones;
                return Ok(None);
            };
            choice = alone;
            bytes = self.bytes_of_choice(&choice);
            has_room = self.has_room_for(bytes, grow_bytes)?;
        }
        if !has_room {
            // It waits for room, and is what has to be merged then.
            self.upkeep.drops_tombstones = drops_tombstones;
            return Ok(None);
        }
        let Choice { range, inputs, newest, found } = choice;
        let facts = inputs.iter().map(|input| input.facts());
        let old_bytes: u64 = facts.clone().map(|facts| facts.disk_bytes()).sum();
        let pages: u64 = facts.map(|facts| u64::from(facts.pages)).sum();
        let plan = MergePlan {
            shape: Shape::of(&self.facts),
            orders: Arc::clone(self.bottom.orders()),
            range,
            inputs,
            changes: found.rows as u64,
            first_number: self.bottom.next_number()?,
            merge: self.next_merge(),
            target_bytes: self.partition_bytes(),
            portion_bytes: self.upkeep.portion_bytes(),
        };
        let version = self.bottom.snapshot().version();
        if let Err(error) = plan.check_room(version) {
            self.refuse_if_full(&error);
            return Err(error.followed_by(self.way_to_larger_partitions()));
        }
        let unit = GivenOut {
            range: plan.range,
            bytes,
            old_bytes,
            memory_bytes: (MERGE_PORTIONS * plan.portion_bytes) as u64,
            ticket: self.begin_read(),
            read_below: pages * self.facts.page_bytes as u64,
            begun: Instant::now(),
        };
        self.upkeep.takes_all = found.until == plan.range.last;
        let bytes = self.upkeep.portion_bytes();
        self.upkeep.counts.begin(plan.range, found.until, &found.left_out, bytes);
        self.upkeep.given_out = Some(unit);
        self.upkeep.credit = 0;
        self.upkeep.drops_tombstones = drops_tombstones;
        let medium = Arc::clone(&self.medium);
        let room = self.room.lend();
        Ok(Some(MergeUnit::new(Planned { medium, plan, newest, room })))
    }

    /// The way to larger partitions: the one of three settings that keeps them small.
    fn way_to_larger_partitions(&self) -> String {
        let (bytes, segment) = (self.partition_bytes(), self.facts.segment_bytes);
        let of_segments = SEGMENTS_PER_PARTITION * segment;
        let of_bound = self.upkeep.most_disk_bytes.map_or(u64::MAX, |most| most / BOUND_PARTS);
        let way = if bytes >= of_bound {
            "raise max_disk_bytes, of which one takes a small part".to_owned()
        } else if bytes >= of_segments {
            format!(
                "they are {SEGMENTS_PER_PARTITION} segments of {segment} bytes: copy the store to \
                 one with segment_bytes={SEGMENT_BYTES_MAX}, or keep fewer rows in its lsm tables"
            )
        } else {
            let share = self.facts.merging.top_share;
            format!(
                "a merge has memory for {} rows of its newest: open with more memory=, or with a \
                 top_share= below {share}",
                self.slots_per_merge()
            )
        };
        format!("partitions have at most {bytes} bytes; {way}")
    }

    fn refuse_nothing(&mut self) {
        self.upkeep.wanted_bytes = 0;
        self.upkeep.refused = Some(Refused::Nothing(self.upkeep.changes()));
    }

    /// Makes sure that the room for merges has so many bytes, by `grow_bytes` more of the disk at
    /// most; else the merge is refused.
    fn has_room_for(&mut self, bytes: u64, grow_bytes: u64) -> Result<bool> {
        let growth = self.room.growth_for(bytes);
        self.upkeep.wanted_bytes = bytes;
        if growth > grow_bytes {
            self.upkeep.refused = Some(Refused::Bound(self.room.bytes() + growth));
            return Ok(false);
        }
        match self.room.grow(&*self.medium, growth) {
            Ok(()) => {
                self.upkeep.wanted_bytes = 0;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Full => {
                self.upkeep.refused = Some(Refused::Device);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes files that a crash has left and makes sure of the room for merges, if nobody has
    /// since the storage was opened.
    pub(super) fn tidy(&mut self) -> Result<()> {
        if !self.upkeep.is_tidy {
            self.bottom.remove_leftovers(&[])?;
            if !self.merges_into_bottom() {
                self.remove_unsorted()?;
            }
            self.room.make_sure(&*self.medium)?;
            self.upkeep.is_tidy = true;
        }
        Ok(())
    }

    /// Counts the entries of the top, where nobody has.
    pub(super) fn count_top(&mut self) {
        if !self.upkeep.counts.are_made() {
            let partitions = self.bottom.snapshot().version().partitions();
            let entries = match partitions {
                [] => vec![self.entries_in(PlaceRange::ALL)],
                _ => partitions.iter().map(|facts| self.entries_in(facts.range)).collect(),
            };
            self.upkeep.counts.make(entries);
        }
    }

    fn bytes_of_choice(&self, choice: &Choice) -> u64 {
        let old_rows: u64 = choice.inputs.iter().map(|input| input.facts().rows).sum();
        self.bytes_of_merge(old_rows + choice.found.rows as u64)
    }

    /// Whether a partition that merges take has rows of a table that was dropped.
    fn has_rows_to_drop(&self) -> bool {
        self.bottom.has_dropped_rows() && self.partition_to_empty().is_some()
    }

    /// The first partition that merges take and that has rows of tables that were dropped.
    fn partition_to_empty(&self) -> Option<&Arc<Partition>> {
        let orders = self.bottom.orders();
        let partitions = self.bottom.snapshot().partitions().iter().map(|open| &open.partition);
        let mut with_dropped = partitions.filter(|partition| {
            partition.table_rows().any(|(table, rows)| rows > 0 && orders.is_dropped(table))
        });
        with_dropped.find(|partition| !self.rests(partition.facts()))
    }

    /// A partition with rows of tables that were dropped, with what the top has of its range.
    fn choose_dropped(&self) -> Option<Choice> {
        if !self.bottom.has_dropped_rows() {
            return None;
        }
        let partition = Arc::clone(self.partition_to_empty()?);
        let tables: Vec<u16> = self.bottom.orders().tables().collect();
        let range = partition.facts().range;
        let (newest, found) = Newest::of(self, range, &tables, self.most_per_merge(), false);
        Some(Choice { range, inputs: vec![partition], newest, found })
    }

    /// The partitions to merge, and the entries of the top in their range. With `drops_tombstones`
    /// the range is one with tombstones; two partitions are taken only if one `joins` the other.
    /// `None` if the top has nothing that a merge can take now.
    fn choose(&mut self, drops_tombstones: bool, joins: bool) -> Option<Choice> {
        let tables: Vec<u16> = self.bottom.orders().tables().collect();
        let snapshot = Arc::clone(self.bottom.snapshot());
        let partitions = snapshot.version().partitions();
        let costs = self.costs();
        let mut entries = self.upkeep.counts.entries().to_vec();
        for (facts, entries) in partitions.iter().zip(&mut entries) {
            let is_left = match drops_tombstones {
                true => self.tombstones.in_range(facts.range).next().is_none(),
                false => self.upkeep.spent.contains(&facts.number),
            };
            if is_left || self.rests(facts) {
                *entries = 0;
            } else if drops_tombstones {
                // Of what was there before counting began, the number of a range is near.
                *entries = (*entries).max(1);
            }
        }
        loop {
            let at = match partitions {
                [] if self.top_rests() => return None,
                [] => 0..0,
                _ => self.pick_range(partitions, &entries, &costs, joins)?,
            };
            let range = match &partitions[at.clone()] {
                [first, .., last] => PlaceRange { first: first.range.first, last: last.range.last },
                [only] => only.range,
                [] => PlaceRange::ALL,
            };
            let (newest, found) = Newest::of(self, range, &tables, self.most_per_merge(), false);
            let left_out = found.left_out.len() as u64;
            let counted: u64 = self.upkeep.counts.entries()[at.clone()].iter().sum();
            if found.rows > 0 && (at.is_empty() || counted > left_out) {
                let inputs = snapshot.partitions()[at].iter();
                let inputs = inputs.map(|open| Arc::clone(&open.partition)).collect();
                return Some(Choice { range, inputs, newest, found });
            }
            if at.is_empty() {
                return None;
            }
            // All that there is waits for its pages, or is of neighbours in the index.
            for at in at {
                entries[at] = 0;
                // Pages that are tried again are no entries until then.
                if found.rows == 0 && self.set_aside.pages_tried_again().is_empty() {
                    let here = |place: &&Place| partitions[at].range.contains(**place);
                    let left_out = found.left_out.iter().filter(here).count();
                    self.upkeep.counts.correct(at, left_out as u64);
                }
            }
        }
    }

    /// The partition to merge next, maybe with a neighbour.
    fn pick_range(
        &self,
        partitions: &[Facts],
        entries: &[u64],
        costs: &Costs,
        joins: bool,
    ) -> Option<Range<usize>> {
        let picker = self.facts.merging.picker;
        let picked = pick(picker, partitions, entries, self.upkeep.merged_until, costs)?;
        if !joins {
            return Some(picked..picked + 1);
        }
        let expected = |at: usize| self.expected(&partitions[at], at);
        let rows = self.rows_per_partition();
        let joined = with_neighbour(picked, partitions.len(), expected, rows, costs);
        match partitions[joined.clone()].iter().any(|facts| self.rests(facts)) {
            true => Some(picked..picked + 1),
            false => Some(joined),
        }
    }

    /// The most that the partition at `at` has after its merge.
    fn expected(&self, facts: &Facts, at: usize) -> Expected {
        let entries = self.upkeep.counts.entries()[at];
        let tombstones = self.tombstones.count_in(facts.range) as u64;
        // A tombstone is an entry, and most drop a row.
        Expected { rows: (facts.rows + entries).saturating_sub(2 * tombstones), entries }
    }

    fn costs(&self) -> Costs {
        let merged = self.upkeep.merged;
        let read_per_row = match merged.taken {
            0 => self.facts.row_bytes as f64,
            taken => merged.bytes_read_above as f64 / taken as f64,
        };
        Costs {
            row_bytes: self.facts.row_bytes as u64,
            read_per_row,
            beside: self.facts.segment_bytes,
            rows_max: self.most_per_merge() as u64,
        }
    }

    /// Rows of the top and tombstones.
    pub(super) fn rows_above(&self) -> u64 {
        self.top.newest_total() + self.tombstones.len() as u64
    }

    /// Rows that the top may have.
    pub(super) fn most_above(&self) -> u64 {
        let all = self.rows_above() + self.bottom.snapshot().version().rows();
        let most = (all as f64 * self.facts.merging.top_share) as u64;
        match self.upkeep.is_pressed {
            true => most / PRESSED_PART,
            false => most.max(TOP_SEGMENTS_MIN * self.top.rows_per_segment()),
        }
    }

    /// Merges are numbered from 1 on.
    pub(super) fn next_merge(&self) -> u64 {
        let snapshot = self.bottom.snapshot();
        1 + snapshot.version().partitions().iter().map(|facts| facts.merge).max().unwrap_or(0)
    }

    /// Bytes of a partition's pages at most.
    pub(super) fn partition_bytes(&self) -> u64 {
        // Longer ones have more rows in the top than one merge takes, and are written more often.
        let rows = self.slots_per_merge() as f64 / self.facts.merging.top_share;
        let most = (rows * self.facts.row_bytes as f64) as u64;
        let usual = SEGMENTS_PER_PARTITION * self.facts.segment_bytes;
        let of_bound = self.upkeep.most_disk_bytes.map_or(u64::MAX, |most| most / BOUND_PARTS);
        let bytes = usual.min(most).min(of_bound).max(self.facts.segment_bytes);
        match self.facts.merging.filters {
            true => {
                bytes.min(filter_rows(self.upkeep.portion_bytes()) * self.facts.row_bytes as u64)
            }
            false => bytes,
        }
    }

    /// Rows of a partition at most.
    pub(super) fn rows_per_partition(&self) -> u64 {
        let pages = (self.partition_bytes() / self.facts.page_bytes as u64).max(1);
        pages * self.top.layout().rows_per_page as u64
    }

    /// Rows that a merge takes out of the top at most: as many as a partition has, so that it takes
    /// no more of the disk than two of them.
    pub(super) fn most_per_merge(&self) -> usize {
        self.slots_per_merge().min(self.rows_per_partition() as usize).max(1)
    }

    /// Rows that a merge has the memory to take out of the top.
    fn slots_per_merge(&self) -> usize {
        let rows = self.upkeep.portion_bytes() / PORTION_BYTES_PER_ROW;
        // Rows taken leave memory for the filter of the rows written.
        if self.facts.merging.filters { rows / 2 } else { rows }
    }

    /// Number of entries of the top in a range, approximate for growing tables: a part of an index
    /// that lies in two ranges counts in the one where it begins.
    pub(super) fn entries_in(&self, range: PlaceRange) -> u64 {
        let of_table = |table| {
            let first = range.first.max(Place { table, ..Place::MIN });
            let last = range.last.min(Place { table, ..Place::MAX });
            if first > last { 0 } else { self.top.rows_in(table, first.position, last.position) }
        };
        let rows: u64 = self.bottom.orders().tables().map(of_table).sum();
        rows + self.tombstones.count_in(range) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StorageKind;
    use crate::storage::{Demand, PageLayout};

    // A partition has one page at least, however little memory its merge has.
    #[test]
    fn a_merge_with_the_least_memory_makes_the_filter_of_the_smallest_partition() {
        for page_bytes in (9..=16).map(|bits| 1 << bits) {
            let demand = Demand { kind: StorageKind::Lsm, row_bytes: 4, page_bytes };
            let portion_bytes = demand.share_of(0).merge_portion_bytes();
            let layout = PageLayout::new(page_bytes, 4, 0, 0).unwrap();
            let (rows, most) = (layout.rows_per_page as u64, filter_rows(portion_bytes));
            assert!(rows <= most, "{rows} rows of a page of {page_bytes} bytes, {most} fit");
        }
    }
}
