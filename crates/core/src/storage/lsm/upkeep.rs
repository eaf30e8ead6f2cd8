//! Upkeep: cleaning of the top, and merges of the top into the bottom.
//!
//! A merge is due when the top has more than its share of all rows. The choice of the partition is
//! in [`pick`](super::pick), the start of the merge in [`begin`](super::begin). Rows that come to
//! the top pay for steps of the merge, in proportion to the bytes that they make it write.

use super::begin::Refused;
use super::bottom::{Edit, Place, PlaceRange, Taken, Unread, file_name};
use super::counts::TopCounts;
use super::freeze::FreezeUnit;
use super::newest::TOMBSTONE;
use super::unit::{GivenOut, MergeDone, MergeUnit, UnreadPages};
use super::{IN_BOTTOM, Lsm};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::log::MERGE_PORTIONS;
use crate::storage::{
    MergeCounts, Residents, SpaceBound, StorageRead, StorageUpkeep, Unit, UnitReport,
};
use std::any::Any;
use std::sync::Arc;

/// Beyond so many times what it may have, every change pays for steps until it has less.
const HURRY: f64 = 1.5;
/// The longest portion that a step reads and writes.
const PORTION_BYTES_MAX: usize = 256 << 10;

/// Progress of upkeep.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    pub(super) given_out: Option<GivenOut>,
    /// Rows that a merge has taken and the top may still have, the next one last.
    taken: Vec<Taken>,
    /// Until all of them are dropped, no slot of theirs gets another row: it would be dropped, too.
    pub(super) taken_ticket: Option<u64>,
    /// Bytes of merging that rows have paid for.
    pub(super) credit: u64,
    /// Commits that have found the unit under way. With the first it goes on to its end: until then
    /// no segment of the top that became free meanwhile can be used again, or given back. With the
    /// second it waits for nothing: each one more would take as much of the disk.
    commits_met: u64,
    portion_bytes: usize,
    pub(super) merged: MergeCounts,
    /// Entries of the top in the range of each partition.
    pub(super) counts: TopCounts,
    /// Why the last merge that was due has not begun.
    pub(super) refused: Option<Refused>,
    /// Flushes, commits and plans since open: each may let a merge begin that was refused.
    events: u64,
    /// Partitions that were merged with all rows that could be taken for them, since the last
    /// event. Their remaining rows in the top are in pages in memory, or wait to be written again:
    /// merging a partition for these would never end.
    pub(super) spent: Vec<u32>,
    /// Whether the unit under way takes all that can be taken of its range.
    pub(super) takes_all: bool,
    /// The last place of the last merge.
    pub(super) merged_until: Option<Place>,
    /// Whether files that a crash has left were removed.
    pub(super) is_tidy: bool,
    /// Tombstones take too much memory: merges go on until none is left, and wait for nothing.
    pub(super) drops_tombstones: bool,
    /// Somebody was refused room: merges go on as long as there is anything to merge. Since the
    /// last commit, or since the one before.
    for_room: bool,
    for_room_before: bool,
    /// Bytes of the merge that was refused last for lack of room: it may be somewhat larger than
    /// the room that is kept, for rows come in groups and small partitions in pairs.
    pub(super) wanted_bytes: u64,
    /// The share of a disk bound for this class.
    pub(super) most_disk_bytes: Option<u64>,
    /// The newest rows take memory that nobody else can give: until a commit they may be fewer.
    pub(super) is_pressed: bool,
}

impl Upkeep {
    /// Whether a unit under way takes the row at `place`.
    pub(super) fn takes(&self, place: Place) -> bool {
        self.given_out.is_some_and(|unit| unit.takes(place))
    }

    /// Memory of a unit, whether one is under way or not: memory that others took in between would
    /// not be given back when the next unit begins. The rest of the last unit is a part of it, for
    /// the next one begins only after that is gone.
    pub(super) fn memory_bytes(&self) -> u64 {
        let left = (self.taken.capacity() * size_of::<Taken>()) as u64;
        let of_next = (MERGE_PORTIONS * self.portion_bytes) as u64;
        self.given_out.map_or(left, |unit| unit.memory_bytes).max(of_next)
    }

    /// Merges are due until no tombstone is left.
    pub(super) fn drop_tombstones_soon(&mut self) {
        self.drops_tombstones = true;
        if matches!(self.refused, Some(Refused::Nothing(_))) {
            self.refused = None;
        }
    }

    /// Forgets the counts, which no longer hold: a table was dropped.
    pub(super) fn forget_counts(&mut self) {
        self.counts.make(Vec::new());
        self.refused = None;
        self.note_event();
    }

    /// Merges are due until a commit after which nobody was refused room.
    pub(super) fn merge_for_room(&mut self) {
        self.for_room = true;
    }

    /// The device had room: a merge that was refused for want of it may begin.
    pub(super) fn found_room(&mut self) {
        if matches!(self.refused, Some(Refused::Device)) {
            self.refused = None;
        }
    }

    /// Whether merges are due because somebody was refused room.
    pub(super) fn merges_for_room(&self) -> bool {
        self.for_room || self.for_room_before
    }

    /// Flushes, commits and plans since open.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Grows with everything that may let a merge begin that was refused.
    pub(super) fn changes(&self) -> u64 {
        self.counts.changes() + self.events
    }

    /// Rows have reached the device, or room has become free.
    pub(super) fn note_event(&mut self) {
        self.events += 1;
        self.spent.clear();
    }

    /// Bytes that a step reads together.
    pub(super) fn portion_bytes(&self) -> usize {
        self.portion_bytes.max(4096)
    }

    /// Takes the portion of a plan of the budget.
    pub(super) fn equip(&mut self, portion_bytes: usize) {
        self.portion_bytes = portion_bytes.min(PORTION_BYTES_MAX);
        self.note_event();
    }
}

impl StorageUpkeep for Lsm {
    fn drop_commits_before(&mut self, released: u64, oldest_kept: u64) {
        self.upkeep.commits_met = match self.upkeep.given_out {
            Some(_) => self.upkeep.commits_met + 1,
            None => 0,
        };
        self.upkeep.for_room_before = std::mem::take(&mut self.upkeep.for_room);
        self.upkeep.is_pressed = false;
        // Files may go now, and with them the reason.
        self.upkeep.refused = None;
        self.top.drop_commits_before(released, oldest_kept);
        self.bottom.drop_commits_before(released, oldest_kept);
        self.upkeep.note_event();
    }

    fn owe(&mut self, rows: u64) {
        self.top.owe(rows);
        // A row makes its share of a partition be read and written.
        let bytes = (self.facts.row_bytes as f64 / self.facts.merging.top_share) as u64;
        self.upkeep.credit = self.upkeep.credit.saturating_add(2 * rows * bytes);
        self.upkeep.note_event();
    }

    fn rows_per_unit(&self) -> u64 {
        self.top.rows_per_unit()
    }

    fn room_for_upkeep(&self, most_bytes: Option<u64>) -> u64 {
        self.top.room_for_upkeep(most_bytes.map(|most| self.left_for_top(most)))
    }

    fn lacks(&self, bytes: u64, unwritten: u64, spare: u64) -> bool {
        self.top.lacks(bytes + self.lacking_for_merge(unwritten, spare), unwritten, spare)
    }

    fn settle(&mut self, most_bytes: u64) -> bool {
        let most = self.left_for_top(most_bytes);
        self.top.settle(most)
    }

    fn clean_unit(
        &mut self,
        bound: SpaceBound,
        rows: u64,
        grow_bytes: u64,
        residents: &dyn Residents,
    ) -> Result<Option<UnitReport>> {
        let bound = match bound {
            SpaceBound::Most(bytes) => SpaceBound::Most(self.left_for_top(bytes)),
            SpaceBound::Beside => {
                self.upkeep.merge_for_room();
                SpaceBound::Beside
            }
        };
        self.top.clean_unit(bound, rows, grow_bytes, residents)
    }

    fn has_units(&self) -> bool {
        self.merges_into_bottom()
    }

    fn may_begin_unit(&self) -> bool {
        self.may_begin(u64::MAX)
    }

    fn begin_unit(&mut self, grow_bytes: u64) -> Result<Option<Box<dyn Unit>>> {
        let unit = self.begin_merge(grow_bytes)?;
        Ok(unit.map(|unit| Box::new(unit) as Box<dyn Unit>))
    }

    fn owes_steps(&self) -> bool {
        let is_paid = self.upkeep.credit >= self.upkeep.portion_bytes() as u64;
        self.upkeep.given_out.is_some() && (is_paid || self.hurries())
    }

    fn press_units(&mut self) {
        self.upkeep.is_pressed = true;
    }

    fn pay_step(&mut self) {
        // Urgent work is free.
        let portion = if self.hurries() { 0 } else { self.upkeep.portion_bytes() as u64 };
        self.upkeep.credit = self.upkeep.credit.saturating_sub(portion);
    }

    fn is_pressed(&self, most_bytes: u64) -> bool {
        self.top.is_pressed(self.left_for_top(most_bytes))
    }

    fn is_unit_pressed(&self, most_bytes: u64) -> bool {
        let holds_much = self.upkeep.commits_met > 1;
        holds_much || self.is_behind() || self.top.is_nearly_full(self.left_for_top(most_bytes))
    }

    fn install(&mut self, unit: Box<dyn Unit>, _: &dyn Residents) -> Result<UnitReport> {
        let any: Box<dyn Any> = unit;
        let done = match any.downcast::<MergeUnit>() {
            Ok(unit) => unit.finish(),
            Err(any) => any.downcast::<FreezeUnit>().map_or_else(|_| not_its_own(), |u| u.finish()),
        };
        let MergeDone { merged, busy, read_above, pages } = done;
        let edit = Edit { removed: merged.removed.clone(), added: merged.added.clone() };
        let snapshot = Arc::clone(self.bottom.snapshot());
        if !pages.skipped.is_empty() {
            self.upkeep.counts.forget_beside();
        }
        let entries = self.entries_after(&edit, &merged.taken);
        let installed = self.bottom.install(&edit, self.top.epoch(), self.next_ticket);
        let room = self.room.take_back();
        if let Err(error) = installed {
            let range = self.end_unit().map_or(PlaceRange::ALL, |unit| unit.range);
            self.remove_unknown(&edit);
            self.refill(room)?;
            self.refuse_if_full(&error);
            if !matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt) {
                return Err(error);
            }
            // A new file cannot be read, and what it replaces is sound: it is written again.
            let error = Error::new(ErrorKind::Io, error.message());
            self.note_unread(Unread::Changes, range, &error);
            return Ok(UnitReport::default());
        }
        self.changes.edit(&edit);
        let UnreadPages { skipped, not_yet } = pages;
        self.note_pages(&skipped, &not_yet);
        let unit = self.upkeep.given_out.take().expect("the unit that is installed was given out");
        self.upkeep.commits_met = 0;
        self.upkeep.refused = None;
        self.upkeep.taken_ticket = Some(unit.ticket);
        self.upkeep.merged_until = Some(unit.range.last);
        let old = self.upkeep.counts.of_range(snapshot.version(), unit.range);
        self.upkeep.counts.install(old, entries);
        if self.upkeep.takes_all {
            self.upkeep.spent.extend(edit.added.iter().map(|facts| facts.number));
        }
        let counts = merged.total();
        let done = MergeCounts {
            merges: 1,
            taken: merged.taken.len() as u64,
            outdated: counts.replaced + counts.deleted,
            copied: counts.kept,
            rows: merged.added.iter().map(|facts| facts.rows).sum(),
            pages: merged.added.iter().map(|facts| u64::from(facts.pages)).sum(),
            bytes_read: unit.read_below + read_above,
            bytes_read_above: read_above,
            bytes_written: merged.added.iter().map(|facts| facts.bytes).sum(),
            busy,
            busy_max: busy,
            latency: unit.begun.elapsed(),
            latency_max: unit.begun.elapsed(),
        };
        self.upkeep.merged.add(&done);
        self.upkeep.taken = merged.taken;
        self.upkeep.taken.reverse();
        Ok(UnitReport { pages: done.pages, rows_moved: done.rows })
    }

    fn install_more(&mut self, residents: &dyn Residents) -> Result<bool> {
        for _ in 0..self.top.rows_per_unit() {
            let Some(Taken { table, key, tag }) = self.upkeep.taken.pop() else { break };
            if tag == TOMBSTONE {
                // Set anew meanwhile or not: the bottom has no row of the key.
                if self.drop_tombstone(table, key) {
                    self.note_left(table, key);
                }
            } else if self.top.drop_copy(table, key, tag) {
                self.note_left(table, key);
                residents.moved(table, key, tag, IN_BOTTOM);
            }
        }
        if self.upkeep.taken.is_empty() {
            self.upkeep.taken = Vec::new();
            self.upkeep.drops_tombstones &= self.has_tombstones_to_drop();
            if let Some(ticket) = self.upkeep.taken_ticket.take() {
                self.end_read(ticket);
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn abandon_unit(&mut self, unit: Box<dyn Unit>, because: Option<Error>) -> Result<()> {
        let any: Box<dyn Any> = unit;
        let mut unit = match any.downcast::<MergeUnit>() {
            Ok(unit) => unit,
            Err(any) => {
                let unit = any.downcast::<FreezeUnit>().unwrap_or_else(|_| not_its_own());
                return self.abandon_freeze(unit, because);
            }
        };
        let (skipped, unread) = (unit.take_skipped(), unit.unread());
        self.note_pages(&skipped, &self.set_aside.pages_tried_again());
        let given_out = self.end_unit();
        // A file that cannot be removed now is left over.
        let abandoned = unit.abandon().inspect_err(|_| self.upkeep.is_tidy = false);
        let room = self.room.take_back();
        let abandoned = abandoned.and_then(|()| self.refill(room));
        if let Some(error) = &because {
            self.refuse_if_full(error);
        }
        match (because, unread) {
            (Some(error), Some(unread)) => {
                let range = given_out.map_or(PlaceRange::ALL, |given_out| given_out.range);
                self.note_unread(unread, range, &error);
                abandoned
            }
            (Some(error), _) if error.kind() != ErrorKind::Full => Err(error),
            _ => abandoned,
        }
    }

    fn expect_bound(&mut self, most_bytes: Option<u64>) {
        self.upkeep.most_disk_bytes = most_bytes;
        self.top.expect_bound(most_bytes);
    }

    fn damage(&self) -> Vec<String> {
        let mut damage = self.top.damage();
        damage.extend(self.set_aside.damage());
        damage
    }
}

fn not_its_own() -> ! {
    panic!("an lsm is given its own unit back")
}

impl Lsm {
    /// Removes what a freeze has written, which nobody can do without: the error is returned.
    fn abandon_freeze(&mut self, unit: Box<FreezeUnit>, because: Option<Error>) -> Result<()> {
        self.end_unit();
        let abandoned = unit.abandon().inspect_err(|_| self.upkeep.is_tidy = false);
        because.map_or(abandoned, Err)
    }

    /// Merges whose outcome was taken over since open.
    #[cfg(test)]
    pub(crate) fn merges(&self) -> u64 {
        self.upkeep.merged.merges
    }

    /// Whether steps are done that nobody has paid for.
    fn hurries(&self) -> bool {
        self.upkeep.commits_met > 0 || self.is_behind()
    }

    /// Whether the top or the tombstones take more memory than they should, or somebody was refused
    /// room.
    fn is_behind(&self) -> bool {
        self.merges_into_bottom()
            && (self.upkeep.drops_tombstones
                || self.upkeep.merges_for_room()
                || self.rows_to_merge() as f64 > HURRY * self.most_above() as f64)
    }

    fn end_unit(&mut self) -> Option<GivenOut> {
        let unit = self.upkeep.given_out.take();
        self.upkeep.commits_met = 0;
        self.upkeep.refused = None;
        self.upkeep.counts.end();
        if let Some(GivenOut { ticket, .. }) = unit {
            self.end_read(ticket);
        }
        unit
    }

    /// Takes the room again that a merge had when it began and has not given back.
    fn refill(&mut self, room: Option<u64>) -> Result<()> {
        let had = room.unwrap_or(0);
        self.fill_room(had.saturating_sub(self.room.bytes()))
    }

    /// A merge that found no room is not begun again before a commit.
    pub(super) fn refuse_if_full(&mut self, error: &Error) {
        if error.kind() == ErrorKind::Full {
            self.upkeep.refused = Some(Refused::Failed);
        }
    }

    /// Removes the files of a merge whose edit was refused: no version names them.
    fn remove_unknown(&mut self, edit: &Edit) {
        for facts in &edit.added {
            if self.medium.remove(&file_name(self.facts.class, facts.number)).is_err() {
                // The next unit looks for leftovers before it begins.
                self.upkeep.is_tidy = false;
            }
        }
    }

    /// The part of so many bytes left for the top, beside all that the room for a merge may lack.
    fn left_for_top(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.bytes_below() + self.lacking_for_merge(0, 1))
    }

    /// The key has left the top, and has no tombstone.
    fn note_left(&mut self, table: u16, key: u64) {
        let place = self.place(table, key);
        self.upkeep.counts.left(self.bottom.snapshot().version(), place);
    }

    /// Number of entries of the top in the range of each partition that an edit adds. All rows that
    /// the merge has taken still count, whatever happened to them since: a row that was deleted has
    /// a tombstone.
    fn entries_after(&mut self, edit: &Edit, taken: &[Taken]) -> Vec<u64> {
        let Some((beside, until)) = self.upkeep.counts.beside() else {
            let added = edit.added.iter();
            return added.map(|facts| self.entries_in(facts.range)).collect();
        };
        let mut entries = Vec::with_capacity(edit.added.len());
        let (mut of_taken, mut of_beside) = (0, 0);
        for facts in &edit.added {
            let last = facts.range.last;
            let place = |taken: &Taken| self.bottom.orders().place(taken.table, 0, taken.key);
            let taken_end = taken.partition_point(|taken| place(taken).is_ok_and(|at| at <= last));
            let beside_end = beside.partition_point(|place| *place <= last);
            entries.push((taken_end - of_taken + beside_end - of_beside) as u64);
            (of_taken, of_beside) = (taken_end, beside_end);
        }
        // Of what lies behind, the merge knows nothing.
        if let Some(next) = until.next() {
            for (facts, entries) in edit.added.iter().zip(&mut entries) {
                let first = facts.range.first.max(next);
                if first <= facts.range.last {
                    *entries += self.entries_in(PlaceRange { first, last: facts.range.last });
                }
            }
        }
        entries
    }
}
