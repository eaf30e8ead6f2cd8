//! Cleaning: live rows of a segment that is mostly outdated are written again, so that the segment
//! can be reused once no commit needs it.
//!
//! Victims are the segments of which most would be released (RecDB's outdated-data monitor, here
//! exact), and once every row could have been written since the last commit, only those that no
//! commit holds, or in which hardly anything is newest; near the disk bound, those with the best
//! ratio of dead to newest copies, weighed by age. Then, too, cleaning waits as long as it can:
//! what is free, and what commits alone will free, must last until the commits that release what
//! was outdated meanwhile. Moved rows have a stream of their own, so that what survived stays
//! together.
//! Work comes in small units, in proportion to the slots that were taken, so that no caller waits
//! for a whole segment, but for the first one after opening. Neighbours stay neighbours: a page's
//! live rows are appended in their order. A row that is dirty in DRAM is not moved: its next flush
//! outdates the copy anyway. Only in a long epoch, or when too many dead slots are kept by nothing
//! but such rows, which may stay in DRAM until the next commit, their copies are moved, too.
//!
//! A page that cannot be read ends the cleaning of its segment, which is left alone until the log
//! is opened again: what is damaged is moved nowhere, and other segments are cleaned on. An error
//! of the device may pass: its segment is left alone for some epochs, and for good the third time.

use super::segments::{Pressure, SegmentId};
use super::{ClassLog, Stream};
use crate::activation::{Branch, note};
use crate::error::{Error, ErrorKind, Result};
use crate::planted::{self, Bug};
use crate::storage::failures::Failures;
use crate::storage::need::LIVE_SHARE;
use crate::storage::{
    Residents, SpaceBound, StorageSpace, StorageUpkeep, StorageWrite, UnitReport,
};
use std::collections::BTreeSet;
use std::ops::Range;

/// With so many times the dead slots that are allowed cleaning cannot wait.
const HURRY: f64 = 1.5;
/// Epochs whose writes must find room: a copy that is outdated in one is released by the commit
/// after the next.
const EPOCHS_AHEAD: f64 = 2.0;
/// Share of the slots beside the newest copies that is kept free of dead ones at most: more would
/// move rows that are about to be outdated.
const AHEAD_SHARE: f64 = 0.5;
/// Slots reclaimed for each one taken, while the log is larger than it should be.
const COST_OF_A_SLOT: f64 = 1.25;
/// Segments that changes leave free within a disk bound, and the share of the slots beside the
/// newest copies that they leave free if that is more: with less, cleaning that came late could
/// move too little at a time to ever catch up.
const SEGMENTS_FOR_CLEANING: u64 = 2;
const SHARE_FOR_CLEANING: f64 = 0.125;
/// Slots beside the newest copies that count for that, as a share of these.
const BESIDE_FOR_CLEANING: f64 = 0.2;
/// An epoch counts as so many events where a segment rests after an error that may pass.
const EVENTS_PER_EPOCH: u64 = 8;
/// Segments of dead slots that are always tolerated: the open one, and slack.
const SLACK_SEGMENTS: u64 = 4;

/// Progress of the segment being cleaned.
#[derive(Debug, Default)]
pub(crate) struct CleanState {
    /// Segment, its life, and the next page to look at.
    victim: Option<(SegmentId, u64, u32)>,
    /// Whether rows of it are moved, too, that are dirty in DRAM.
    moves_dirty: bool,
    /// Slots that may be reclaimed before the next unit has to wait for more flushes.
    credit: f64,
    /// True once what the life before left unfilled was paid for.
    paid_for_opening: bool,
    /// Slots taken so far when the epoch began, and in an epoch lately.
    taken_before: u64,
    per_epoch: f64,
    /// Segments of which a page could not be read, with their lives.
    failures: Failures<(SegmentId, u64)>,
}

impl CleanState {
    /// Slots that an epoch took lately.
    pub(super) fn per_epoch(&self) -> f64 {
        self.per_epoch
    }
}

impl StorageUpkeep for ClassLog {
    fn drop_commits_before(&mut self, released: u64, _: u64) {
        self.segments.drop_commits_before(released);
        while let Some(entry) = self.deleted.first_entry()
            && *entry.key() <= released
        {
            self.clean.credit += entry.remove() as f64 * COST_OF_A_SLOT;
        }
    }

    fn owe(&mut self, rows: u64) {
        // Slots that stay empty are paid for like rows, or many small commits, or many short lives,
        // would use them up faster than cleaning gives them back: those of pages that a commit
        // sealed, and once after opening those of a segment, because the one being filled is not
        // gone on with.
        let taken = rows + self.writer.take_unfilled();
        self.clean.credit += taken as f64 * COST_OF_A_SLOT;
    }

    fn rows_per_unit(&self) -> u64 {
        u64::from(self.writer.chunk_pages()) * self.pages.layout.rows_per_page as u64
    }

    fn room_for_upkeep(&self, most_bytes: Option<u64>) -> u64 {
        let slots = most_bytes.map_or(0, |most| self.slots_for_cleaning(self.slots_in(most)));
        slots.div_ceil(self.rows_per_segment()).max(SEGMENTS_FOR_CLEANING) * self.segment_bytes
    }

    fn lacks(&self, bytes: u64, unwritten: u64, spare: u64) -> bool {
        let wanted = self.segments_to_keep(unwritten, spare) * self.segment_bytes + bytes;
        let pages = self.segments.available_pages()
            + self.segments.pending_slots() / self.pages.layout.rows_per_page as u64;
        pages * (self.pages.layout.page_bytes as u64) < wanted
    }

    fn settle(&mut self, most_bytes: u64) -> bool {
        let newest = self.segments.newest_total();
        // By then no commit seems to be near, and those rows are likely to be outdated before.
        self.segments.spare_held(self.taken_in_epoch() > newest);
        if self.dead_slots() <= self.dead_slots_allowed()
            && !self.is_tight(self.slots_in(most_bytes))
        {
            self.clean.credit = 0.0;
            return false;
        }
        if !std::mem::replace(&mut self.clean.paid_for_opening, true) {
            self.clean.credit += self.rows_per_segment() as f64 * COST_OF_A_SLOT;
        }
        self.clean.credit > 0.0
    }

    fn clean_unit(
        &mut self,
        bound: SpaceBound,
        rows: u64,
        grow_bytes: u64,
        residents: &dyn Residents,
    ) -> Result<Option<UnitReport>> {
        let pressure = self.pressure(bound);
        let Some((segment, page)) = self.next_victim_page(pressure) else {
            self.clean.credit = 0.0;
            return Ok(None);
        };
        match self.reserve(rows, 0, grow_bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Full => return Ok(None),
            Err(error) => return Err(error),
        }
        let end = self.segments.first_page(segment) + self.segments.pages_of(segment);
        let pages = self.writer.chunk_pages().min(end - page);
        let leftover = self.segments.is_leftover(segment);
        let Cleaned { rows_moved, damage } = self.clean_pages(page, pages, residents)?;
        note(if pressure == Pressure::Tight { Branch::CleanedTight } else { Branch::Cleaned });
        let slots = u64::from(pages) * self.pages.layout.rows_per_page as u64;
        // Pages that reclaim nothing are paid for, too, or a stretch of live rows would be free.
        // Cleaning a leftover releases nothing yet.
        let reclaimed = if leftover { rows_moved } else { slots - rows_moved.min(slots) } as f64;
        self.clean.credit -= reclaimed.max(pressure.victim_share() * slots as f64);
        if let Some(damage) = damage {
            self.leave_alone(segment, &damage);
        } else if page + pages == end {
            self.segments.cleaned(segment);
            self.clean.failures.retain(|(id, _)| id != segment);
            self.clean.victim = None;
        } else {
            let life = self.segments.sealed_life(segment);
            self.clean.victim = life.map(|life| (segment, life, page + pages));
        }
        Ok(Some(UnitReport { pages: u64::from(pages), rows_moved }))
    }

    fn is_pressed(&self, most_bytes: u64) -> bool {
        self.dead_slots() > HURRY * self.dead_slots_allowed() || self.is_nearly_full(most_bytes)
    }

    fn expect_bound(&mut self, most_bytes: Option<u64>) {
        self.separates = most_bytes.is_some();
    }

    fn damage(&self) -> Vec<String> {
        self.clean.failures.texts("its segment is not cleaned until it is reopened")
    }
}

/// The outcome of cleaning some pages of a segment.
struct Cleaned {
    rows_moved: u64,
    /// The error of the first page that could not be read: it and the pages behind it were left
    /// unchanged.
    damage: Option<Error>,
}

impl ClassLog {
    /// Slots that cleaning could free.
    fn dead_slots(&self) -> f64 {
        self.segments.reclaimable_total().max(self.segments.kept_by_dirty_total()) as f64
    }

    /// Dead slots with which the log has its target size.
    fn dead_slots_allowed(&self) -> f64 {
        let slack = SLACK_SEGMENTS * self.rows_per_segment();
        self.segments.newest_total() as f64 * (1.0 / LIVE_SHARE - 1.0) + slack as f64
    }

    /// Slots of so many bytes of pages.
    fn slots_in(&self, bytes: u64) -> u64 {
        let pages = bytes / self.layout().page_bytes as u64;
        pages.saturating_mul(self.layout().rows_per_page as u64)
    }

    /// Slots that changes leave free for cleaning, of `most_slots` that the disk bound allows.
    fn slots_for_cleaning(&self, most_slots: u64) -> u64 {
        let newest = self.segments.newest_total() as f64;
        let beside = (most_slots as f64 - newest).clamp(0.0, BESIDE_FOR_CLEANING * newest);
        let share = (SHARE_FOR_CLEANING * beside) as u64;
        share.max(SEGMENTS_FOR_CLEANING * self.rows_per_segment())
    }

    /// Slots taken since the last commit.
    fn taken_in_epoch(&self) -> u64 {
        self.rows_written + self.rows_moved - self.clean.taken_before
    }

    /// A page of a segment could not be read.
    fn leave_alone(&mut self, segment: SegmentId, damage: &Error) {
        self.clean.victim = None;
        self.segments.damaged(segment, true);
        let now = self.segments.epoch() * EVENTS_PER_EPOCH;
        if let Some(life) = self.segments.sealed_life(segment) {
            self.clean.failures.note((segment, life), damage, now);
        }
    }

    /// Segments whose pages failed by errors that may have passed are cleaned again.
    fn try_again(&mut self) {
        let CleanState { failures, .. } = &mut self.clean;
        failures.retain(|(id, life)| self.segments.sealed_life(id) == Some(life));
        let now = self.segments.epoch() * EVENTS_PER_EPOCH;
        for at in failures.tried_again().filter(|at| !failures.rests(*at, now)) {
            self.segments.damaged(at.0, false);
        }
    }

    /// Bytes of what is known of pages that could not be read.
    pub(crate) fn failures_bytes(&self) -> usize {
        self.clean.failures.memory_bytes()
    }

    /// Notes what the epoch that ends took.
    pub(super) fn note_epoch(&mut self) {
        self.try_again();
        let taken = self.taken_in_epoch() as f64;
        self.clean.taken_before = self.rows_written + self.rows_moved;
        self.clean.per_epoch = taken.max((3.0 * self.clean.per_epoch + taken) / 4.0);
    }

    /// The pressure on the log: within a bound, it is tight if the slots that are free, or will be
    /// by commits alone, are too few to wait.
    fn pressure(&self, bound: SpaceBound) -> Pressure {
        match bound {
            SpaceBound::Beside => Pressure::Beside,
            SpaceBound::Most(bytes) if self.is_tight(self.slots_in(bytes)) => Pressure::Tight,
            SpaceBound::Most(_) => Pressure::None,
        }
    }

    /// Whether so many bytes leave little room for what is written next.
    pub(in crate::storage) fn is_nearly_full(&self, most_bytes: u64) -> bool {
        self.is_tight(self.slots_in(most_bytes))
    }

    fn is_tight(&self, most_slots: u64) -> bool {
        if most_slots > u64::from(u32::MAX) {
            return false;
        }
        let free = most_slots.saturating_sub(self.segments.used_slots());
        let slack = (SLACK_SEGMENTS + self.writer.points() as u64) * self.rows_per_segment();
        let beside = most_slots.saturating_sub(self.segments.newest_total()) as f64;
        let wanted = (EPOCHS_AHEAD * self.clean.per_epoch).min(AHEAD_SHARE * beside);
        let wanted = wanted as u64 + slack + self.slots_for_cleaning(most_slots);
        free + self.segments.pending_slots() < wanted
    }

    fn next_victim_page(&mut self, pressure: Pressure) -> Option<(SegmentId, u32)> {
        let tight = pressure != Pressure::None;
        if let Some((id, life, page)) = self.clean.victim
            && self.segments.sealed_life(id) == Some(life)
        {
            if self.segments.newest_of(id) > 0 {
                // A commit may hold it by now.
                self.clean.moves_dirty &= !tight && !self.segments.is_held(id);
                return Some((id, page));
            }
            self.segments.cleaned(id);
        }
        self.clean.victim = None;
        let kept = self.segments.kept_by_dirty_total();
        self.clean.moves_dirty = !tight && kept > self.segments.reclaimable_total();
        let id = match self.clean.moves_dirty {
            true => self.segments.kept_by_dirty_most(),
            false => self.segments.victim(pressure),
        }?;
        // A segment that no commit holds is released at once, unless a dirty row's copy keeps it.
        // In a long epoch such a copy would keep it for long, and the segment would have to be
        // cleaned, and paid for, twice.
        self.clean.moves_dirty |=
            !tight && self.segments.spares_held() && !self.segments.is_held(id);
        let first = self.segments.first_page(id);
        let life = self.segments.sealed_life(id);
        self.clean.victim = life.map(|life| (id, life, first));
        Some((id, first))
    }

    /// Moves the live rows of neighbouring pages behind the log.
    fn clean_pages(
        &mut self,
        first: u32,
        pages: u32,
        residents: &dyn Residents,
    ) -> Result<Cleaned> {
        let mut chunk = Vec::new();
        match self.writer.read_back(first, pages, &mut chunk) {
            Ok(()) => {}
            // It waits for writes, too, and one that failed is more than damage.
            Err(damage) if self.writer.is_sound() => {
                return Ok(Cleaned { rows_moved: 0, damage: Some(damage) });
            }
            Err(error) => return Err(error),
        }
        let bytes: &[u8] = bytemuck::cast_slice(&chunk);
        let layout = self.pages.layout.clone();
        // Rows that a commit is writing are about to leave their old places anyway.
        let moves_dirty = self.clean.moves_dirty && !residents.are_being_written();
        if moves_dirty {
            note(Branch::CleanedDirty);
        }
        let (mut moved, mut needed, mut damage) = (0, None, None);
        for (i, page) in bytes.chunks_exact(layout.page_bytes).enumerate() {
            let number = first + i as u32;
            let slot_of = |at: usize| number * layout.rows_per_page as u32 + at as u32;
            let unit = first..first + pages;
            let rows = match self.verified_rows(page, number, unit, &mut needed) {
                Ok(rows) => rows.unwrap_or(0),
                Err(error) => {
                    damage = Some(error);
                    break;
                }
            };
            for at in 0..rows {
                let (table, key) = layout.entry(page, at);
                let old = slot_of(at);
                let known = self.tables.iter().any(|(id, _)| *id == table);
                if !known
                    || !self.index(table).is_newest(key, old)
                    || self.is_parked(table, key)
                    || (!moves_dirty && residents.is_dirty(table, key))
                {
                    continue;
                }
                let row = layout.row(page, at);
                let stream = Stream::Moved;
                let new = self.writer.append(&mut self.segments, stream, table, key, row)?;
                self.publish(table, key, Some(old), new)?;
                if !planted::is(Bug::OriginNotMoved) {
                    residents.moved(table, key, old, new);
                }
                moved += 1;
            }
        }
        self.rows_moved += moved;
        Ok(Cleaned { rows_moved: moved, damage })
    }

    /// Rows of a victim's page; `None` for a page of a crashed epoch that holds no newest copy. A
    /// segment that a crash left half written has pages that were never written, or written in an
    /// earlier filling: they are no damage as long as the index names no row of theirs. The pages
    /// of the unit that the index names are looked up all at once, because this scans the whole
    /// index. Rows moved meanwhile leave only pages that pass their check.
    fn verified_rows(
        &self,
        page: &[u8],
        number: u32,
        unit: Range<u32>,
        needed: &mut Option<BTreeSet<u32>>,
    ) -> Result<Option<usize>> {
        let verified = self
            .pages
            .layout
            .verify(page, number, self.pages.file.name())
            .and_then(|rows| self.verify_sequence(page, number).map(|()| rows));
        match verified {
            Ok(rows) => Ok(Some(rows)),
            Err(error) => {
                let needed = needed.get_or_insert_with(|| self.needed_pages(unit));
                if needed.contains(&number) { Err(error) } else { Ok(None) }
            }
        }
    }

    /// Of these pages those that hold the newest copy of a key.
    fn needed_pages(&self, pages: Range<u32>) -> BTreeSet<u32> {
        let per_page = self.pages.layout.rows_per_page as u32;
        let slots = pages.start * per_page..pages.end * per_page;
        let all = self.tables.iter().flat_map(|(_, index)| index.slots());
        all.filter(|slot| slots.contains(slot)).map(|slot| slot / per_page).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Segments, TableIndex, Writer};
    use super::*;
    use crate::index::DenseIndex;
    use crate::io::{Buffers, Medium, OpenMode, SimMedium};
    use crate::storage::{DirtyRow, FlushBuffer, PageLayout};

    const PAGES: u32 = 64;
    const SEGMENTS: u64 = 40;

    struct NoneResident;

    impl Residents for NoneResident {
        fn is_dirty(&self, _: u16, _: u64) -> bool {
            false
        }

        fn are_being_written(&self) -> bool {
            false
        }

        fn moved(&self, _: u16, _: u64, _: u32, _: u32) {}
    }

    /// A log of one dense table, whose rows were written in the order of their ids, and how many
    /// rows a segment has.
    fn filled_log(chunk_bytes: usize) -> (ClassLog, u64) {
        let medium = SimMedium::new(1);
        let layout = PageLayout::new(512, 64, 0, 7).unwrap();
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let segments = Segments::new(PAGES, layout.rows_per_page as u32, 1);
        let queue = medium.queue(4, Buffers::equal(4, chunk_bytes)).unwrap();
        let writer = Writer::new(file.clone(), layout.clone(), queue, 0);
        let per_segment = u64::from(PAGES) * layout.rows_per_page as u64;
        let rows = SEGMENTS * per_segment;
        let buffer = FlushBuffer::new(8, 16);
        let mut log = ClassLog::new(layout, file, u64::from(PAGES) * 512, segments, writer, buffer);
        log.add_table(0, TableIndex::Dense(DenseIndex::new(rows).unwrap()));
        (0..rows).for_each(|id| write(&mut log, id));
        (log, per_segment)
    }

    fn write(log: &mut ClassLog, id: u64) {
        log.reserve(1, 0, u64::MAX).unwrap();
        let row = DirtyRow {
            table: 0,
            key: id,
            dirty_since: 0,
            origin: None,
            stretch: None,
            words: &[0.5; 16],
        };
        log.append(row).unwrap();
    }

    fn is_due(log: &mut ClassLog) -> bool {
        log.settle(u64::MAX)
    }

    // A stretch of live rows cost nothing, so that one flushed row could move all of them.
    #[test]
    fn live_rows_at_the_begin_of_a_victim_are_paid_for() {
        let (mut log, per_segment) = filled_log(512);
        let begin = per_segment / 10;
        for id in 0..SEGMENTS * per_segment {
            // Of each segment the first tenth lives; the first page of all is the file's header.
            if (id + log.layout().rows_per_page as u64) % per_segment >= begin {
                write(&mut log, id);
            }
        }
        log.clean.paid_for_opening = true;
        log.owe(1);
        let (mut units, mut moved) = (0, 0);
        while is_due(&mut log) {
            let rows = log.rows_per_unit();
            let unit =
                log.clean_unit(SpaceBound::Most(u64::MAX), rows, u64::MAX, &NoneResident).unwrap();
            moved += unit.unwrap().rows_moved;
            units += 1;
        }
        assert!(moved > 0, "the first pages of the victim have no dead slot");
        assert!(units <= 2, "{units} units of cleaning for one row, {moved} rows moved");
    }

    // Each page that did not check cost a look at the whole index of its own.
    #[test]
    fn a_page_that_does_not_check_is_damage_where_the_index_names_it() {
        let (mut log, _) = filled_log(4096);
        let rows = log.layout().rows_per_page as u64;
        let chunk = log.writer.chunk_pages();
        log.writer.wait_for_writes(0..PAGES * 3).unwrap();
        let zero = |log: &ClassLog, page: u32| {
            log.file().write_at(&[0; 512], u64::from(page) * 512).unwrap();
        };
        for page in (PAGES..2 * PAGES).filter(|page| page % 2 > 0) {
            // The first page of the file has no rows.
            let ids = u64::from(page - 1) * rows..u64::from(page) * rows;
            ids.for_each(|id| write(&mut log, id));
            zero(&log, page);
        }
        let units = (PAGES..2 * PAGES).step_by(chunk as usize);
        log.reserve(u64::from(PAGES) * rows, 0, u64::MAX).unwrap();
        let clean = |first| {
            let cleaned = log.clean_pages(first, chunk, &NoneResident).unwrap();
            assert!(cleaned.damage.is_none(), "{:?}", cleaned.damage);
            cleaned.rows_moved
        };
        assert_eq!(units.map(clean).sum::<u64>(), u64::from(PAGES / 2) * rows);
        zero(&log, 2 * PAGES + 1);
        assert!(chunk > 1, "units of {chunk} page");
        let cleaned = log.clean_pages(2 * PAGES, chunk, &NoneResident).unwrap();
        assert_eq!(cleaned.rows_moved, rows, "those of the page before");
        let error = cleaned.damage.expect("the index names a row of the page");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }

    /// Every row is dirty in DRAM.
    struct AllDirty;

    impl Residents for AllDirty {
        fn is_dirty(&self, _: u16, _: u64) -> bool {
            true
        }

        fn are_being_written(&self) -> bool {
            false
        }

        fn moved(&self, _: u16, _: u64, _: u32, _: u32) {}
    }

    // Rows that stayed dirty in DRAM kept every segment that had a copy of one until the next
    // commit: the log grew by all that was written.
    #[test]
    fn dead_slots_beside_copies_of_dirty_rows_are_given_back_when_they_are_too_many() {
        let (mut log, per_segment) = filled_log(512);
        for id in 0..SEGMENTS * per_segment {
            if id % per_segment >= per_segment / 10 {
                write(&mut log, id);
            }
        }
        // All were cleaned, and kept what is dirty.
        let sealed: Vec<SegmentId> = log.segments.sealed().collect();
        sealed.into_iter().for_each(|id| log.segments.cleaned(id));
        let (before, mut moved) = (log.segments.used_slots(), 0);
        log.owe(SEGMENTS * per_segment * 4);
        while is_due(&mut log) {
            let rows = log.rows_per_unit();
            let Some(unit) =
                log.clean_unit(SpaceBound::Most(u64::MAX), rows, u64::MAX, &AllDirty).unwrap()
            else {
                break;
            };
            moved += unit.rows_moved;
        }
        assert!(moved > 0, "no copy of a dirty row was moved");
        let after = log.segments.used_slots();
        assert!(after + per_segment < before, "{before} slots in use, then {after}");
    }
}
