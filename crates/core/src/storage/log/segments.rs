//! The state of each segment of a row class: whether its copies must stay or may be overwritten.
//!
//! A stored copy is *held* while it is the newest of its key or belongs to a commit that is kept.
//! Only counts are kept: copies outdated during epoch e (the commit being prepared is number e)
//! belong to commit e − 1 and maybe to earlier ones, so they are released together when every
//! commit before e is dropped. A copy that was written and outdated in one epoch belongs to no
//! commit and is released at once. A segment is free when nothing in it is held, and may be
//! written again when no read that began before it became free is still running.
//!
//! A pinned commit holds whole segments: those in which it has a copy, whatever becomes of the
//! others there. So a pin costs no more memory than a few ranges, and its segments are left alone
//! by cleaning, which could release nothing of them.
//!
//! A filling of a segment begins at its first page, and the sequences of a class rise with every
//! page. So the newest sequence of the class at the start of a filling separates the pages of the
//! filling from all that lay in their places before, and a page whose write was lost is noticed.
//!
//! A free segment is *ready*: it has room on disk and may be opened; *absent*: its room was given
//! back, and it takes no disk until it is made ready again; or *unsure*, after recovery: nobody
//! knows which of the two, so it counts as taken and must be made ready like an absent one.

use super::writer::FOR_STRETCH;
use crate::planted::{self, Bug};
use crate::storage::Parts;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

mod pinned;
mod recovered;

/// The longest segment.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 4 << 20;
/// Pages of the shortest one.
pub(crate) const SEGMENT_PAGES_MIN: u64 = 16;

/// A victim has at least this share of dead slots: moving the rest for less gains too little.
const VICTIM_DEAD_SHARE: f64 = 0.15;
/// Near the disk bound less is worth it, too.
const VICTIM_DEAD_SHARE_TIGHT: f64 = 0.03;

/// Of a leftover no more than one in so many slots is newest.
const SLOTS_PER_LEFT: u32 = 8;

/// The log's shortage of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pressure {
    /// The disk has room.
    None,
    /// The disk bound is near.
    Tight,
    /// Somebody else was refused room.
    Beside,
}

impl Pressure {
    /// The least share of dead slots of a victim.
    pub(super) fn victim_share(self) -> f64 {
        match self {
            Self::Tight => VICTIM_DEAD_SHARE_TIGHT,
            Self::None | Self::Beside => VICTIM_DEAD_SHARE,
        }
    }
}

/// Index of a segment within its file.
pub(crate) type SegmentId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Sealed,
}

#[derive(Clone, Debug)]
struct Segment {
    state: State,
    /// Copies that are the newest of their key.
    newest: u32,
    /// Outdated copies that a kept commit still has.
    retained: u32,
    /// Pinned commits that have copies in it, newest or not.
    pinned: u32,
    /// Epoch in which it was opened.
    epoch: u64,
    /// Epoch in which it was last cleaned.
    cleaned: u64,
    /// Whether cleaning met a page of it that cannot be read, and leaves it alone.
    damaged: bool,
    /// Tells this filling of the segment from the one before; rises with every one opened.
    life: u64,
    /// The stream that filled it, as its number.
    stream: u8,
    /// First page written in `boundary_epoch`, when that is later than `epoch`.
    boundary: (u64, u32),
    /// The least sequence that the first page of this filling can have; 0 when nobody knows.
    first: u64,
}

/// The segments of one row class.
#[derive(Debug)]
pub(crate) struct Segments {
    pages_per_segment: u32,
    rows_per_page: u32,
    segments: Vec<Segment>,
    /// Ready ones, with the ticket of the first read that does not forbid them.
    free: VecDeque<(SegmentId, u64)>,
    absent: BTreeSet<SegmentId>,
    unsure: BTreeSet<SegmentId>,
    /// Outdated copies by the epoch that outdated them: segment → count.
    retained: BTreeMap<u64, BTreeMap<SegmentId, u32>>,
    /// The segments of each pinned commit.
    pins: BTreeMap<u64, Parts>,
    /// The commit being prepared.
    epoch: u64,
    /// Tickets of running reads and the next one to give.
    readers: BTreeMap<u64, u32>,
    next_ticket: u64,
    newest_total: u64,
    retained_total: u64,
    /// Pages of free segments.
    free_total: u64,
    /// See [`Segments::pending_slots`].
    pending_total: u64,
    /// The gain of cleaning all segments, see [`Segments::reclaimable`].
    reclaimable_total: u64,
    /// Dead slots of segments that only rows keep which are dirty in DRAM, see
    /// [`Segments::kept_by_dirty`].
    kept_by_dirty_total: u64,
    /// See [`Segments::spare_held`].
    spares_held: bool,
    /// Segments opened so far.
    lives: u64,
    /// No page of the commit that was recovered has a larger sequence.
    recovered_sequence: u64,
}

/// The sequences that pages could have when somebody asked.
pub(super) struct Sequences {
    pages_per_segment: u32,
    firsts: Vec<u64>,
    recovered: u64,
}

impl Sequences {
    /// The sequences of a page.
    pub(super) fn of_page(&self, page: u32) -> RangeInclusive<u64> {
        let id = page / self.pages_per_segment;
        let before = page % self.pages_per_segment - u32::from(id == 0);
        sequences(self.firsts[id as usize], before, self.recovered)
    }
}

/// The sequences of a page that comes after so many others of a filling that began with `first`;
/// `recovered` is the newest one of the commit that was recovered.
fn sequences(first: u64, before: u32, recovered: u64) -> RangeInclusive<u64> {
    // Filled since the commit that was recovered, or part of it.
    let most = if first > recovered { u64::MAX } else { recovered };
    // Each page of a filling comes after the ones before it.
    if first == 0 { 0..=most } else { first + u64::from(before)..=most }
}

impl Segments {
    /// An empty table of segments; `epoch` is the number of the commit being prepared.
    pub(crate) fn new(pages_per_segment: u32, rows_per_page: u32, epoch: u64) -> Self {
        Self {
            pages_per_segment,
            rows_per_page,
            segments: Vec::new(),
            free: VecDeque::new(),
            absent: BTreeSet::new(),
            unsure: BTreeSet::new(),
            retained: BTreeMap::new(),
            pins: BTreeMap::new(),
            epoch,
            readers: BTreeMap::new(),
            next_ticket: 1,
            newest_total: 0,
            retained_total: 0,
            free_total: 0,
            pending_total: 0,
            reclaimable_total: 0,
            kept_by_dirty_total: 0,
            spares_held: false,
            lives: 0,
            recovered_sequence: 0,
        }
    }

    /// Pages of a segment that can hold rows (page 0 of the file is its header).
    pub(crate) fn pages_of(&self, segment: SegmentId) -> u32 {
        self.pages_per_segment - u32::from(segment == 0)
    }

    /// First page of a segment that can hold rows.
    pub(crate) fn first_page(&self, segment: SegmentId) -> u32 {
        segment * self.pages_per_segment + u32::from(segment == 0)
    }

    /// The segment of a page.
    pub(crate) fn of_page(&self, page: u32) -> SegmentId {
        page / self.pages_per_segment
    }

    fn of_slot(&self, slot: u32) -> SegmentId {
        self.of_page(slot / self.rows_per_page)
    }

    /// Number of segments, free ones included.
    pub(crate) fn count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Segments that take disk.
    pub(crate) fn taken(&self) -> u32 {
        self.count() - self.absent.len() as u32
    }

    /// Adds one ready segment behind the others.
    pub(crate) fn grow(&mut self) -> SegmentId {
        let id = self.count();
        self.segments.push(Segment {
            state: State::Free,
            newest: 0,
            retained: 0,
            pinned: 0,
            epoch: 0,
            cleaned: 0,
            damaged: false,
            life: 0,
            stream: 0,
            boundary: (0, 0),
            first: 0,
        });
        self.free.push_back((id, 0));
        self.free_total += u64::from(self.pages_of(id));
        id
    }

    /// Pages in free segments.
    #[cfg(test)]
    pub(crate) fn free_pages(&self) -> u64 {
        self.free_total
    }

    /// Pages of different segments, `first` of which is the first of all.
    fn pages_in(&self, segments: usize, first: bool) -> u64 {
        segments as u64 * u64::from(self.pages_per_segment) - u64::from(first)
    }

    /// Ready segments that may be written now: no running read began before they were freed. Reads
    /// that begin later do not take them away again.
    fn available(&self) -> impl Iterator<Item = SegmentId> {
        let oldest = self.oldest_reader();
        self.free.iter().filter(move |(_, freed)| *freed <= oldest).map(|(id, _)| *id)
    }

    /// Their pages.
    pub(crate) fn available_pages(&self) -> u64 {
        if self.readers.is_empty() {
            // Asked for again and again while a commit cleans: without a look at each segment.
            let pages = |ids: &BTreeSet<SegmentId>| self.pages_in(ids.len(), ids.contains(&0));
            return self.free_total - pages(&self.absent) - pages(&self.unsure);
        }
        self.available().map(|id| u64::from(self.pages_of(id))).sum()
    }

    /// Free segments that may not have room: how many are unsure, and count as taken, and how many
    /// are absent.
    pub(super) fn not_ready(&self) -> (u64, u64) {
        (self.unsure.len() as u64, self.absent.len() as u64)
    }

    /// The next one to be made ready, and whether it counts as taken already.
    pub(super) fn next_not_ready(&self) -> Option<(SegmentId, bool)> {
        let unsure = self.unsure.first().map(|id| (*id, true));
        unsure.or_else(|| self.absent.first().map(|id| (*id, false)))
    }

    /// Whether the first segment, which has a page less, is among them.
    pub(super) fn first_is_unsure(&self) -> bool {
        self.unsure.contains(&0)
    }

    /// A segment that was not ready has room on disk.
    pub(super) fn made_ready(&mut self, id: SegmentId) {
        let was = self.unsure.remove(&id) || self.absent.remove(&id);
        assert!(was, "segment {id} was ready before");
        self.free.push_back((id, 0));
    }

    /// Free segments whose room may be given back now, the last ones first. The first of all has
    /// the header of the file, and stays.
    pub(super) fn may_go(&self) -> Vec<SegmentId> {
        let mut ids: Vec<SegmentId> = self.available().chain(self.unsure.iter().copied()).collect();
        ids.retain(|id| *id != 0);
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids
    }

    /// The room of neighbouring segments that may go was given back.
    pub(super) fn gave_back(&mut self, ids: RangeInclusive<SegmentId>) {
        self.free.retain(|(free, _)| !ids.contains(free));
        ids.clone().for_each(|id| _ = self.unsure.remove(&id));
        self.absent.extend(ids);
    }

    /// Nobody knows whether neighbouring free segments have room.
    pub(super) fn doubt(&mut self, ids: RangeInclusive<SegmentId>) {
        self.free.retain(|(free, _)| !ids.contains(free));
        ids.clone().for_each(|id| _ = self.absent.remove(&id));
        self.unsure.extend(ids);
    }

    /// Whether nothing but absent segments lies behind this one.
    pub(super) fn is_end(&self, id: SegmentId) -> bool {
        (id + 1..self.count()).all(|behind| self.absent.contains(&behind))
    }

    /// Number of segments left when the file is cut before `first`; absent segments right before it
    /// are cut off, too.
    pub(super) fn left_before(&self, first: SegmentId) -> u32 {
        let absent = |id: &SegmentId| self.absent.contains(id);
        first - (0..first).rev().take_while(absent).count() as u32
    }

    /// The file was cut: of its segments, all of which were free from there on, `left` are left.
    pub(super) fn cut(&mut self, left: u32) {
        let gone = (left..self.count()).map(|id| u64::from(self.pages_of(id)));
        self.free_total -= gone.sum::<u64>();
        self.free.retain(|(free, _)| *free < left);
        self.absent.split_off(&left);
        self.unsure.split_off(&left);
        self.segments.truncate(left as usize);
    }

    fn oldest_reader(&self) -> u64 {
        self.readers.keys().next().copied().unwrap_or(u64::MAX)
    }

    /// Takes a ready segment for a stream to write to; `None` when there is none, or running reads
    /// forbid all. `sequence` is that of the class's newest page.
    pub(crate) fn open(&mut self, stream: u8, sequence: u64) -> Option<SegmentId> {
        let oldest = self.oldest_reader();
        let at = self.free.iter().position(|(_, freed)| *freed <= oldest)?;
        let (id, _) = self.free.remove(at)?;
        self.free_total -= u64::from(self.pages_of(id));
        self.lives += 1;
        let epoch = self.epoch;
        let segment = &mut self.segments[id as usize];
        *segment = Segment {
            state: State::Open,
            newest: 0,
            retained: 0,
            pinned: 0,
            epoch,
            cleaned: 0,
            damaged: false,
            life: self.lives,
            stream,
            boundary: (0, 0),
            first: sequence + 1,
        };
        Some(id)
    }

    /// Marks a segment as written to its end.
    pub(crate) fn seal(&mut self, id: SegmentId) {
        self.change(id, |segment| segment.state = State::Sealed);
        self.free_if_empty(id);
    }

    /// Changes a segment's counts or state, and with them the totals that hang on both.
    fn change(&mut self, id: SegmentId, change: impl FnOnce(&mut Segment)) {
        self.reclaimable_total -= u64::from(self.reclaimable(id));
        self.kept_by_dirty_total -= u64::from(self.kept_by_dirty(id));
        self.pending_total -= u64::from(self.pending(id));
        change(&mut self.segments[id as usize]);
        self.pending_total += u64::from(self.pending(id));
        self.reclaimable_total += u64::from(self.reclaimable(id));
        self.kept_by_dirty_total += u64::from(self.kept_by_dirty(id));
    }

    /// Slots of a sealed segment that are neither newest nor retained; none of one that is pinned,
    /// for nothing releases them.
    fn dead(&self, id: SegmentId) -> u32 {
        let segment = &self.segments[id as usize];
        if segment.state != State::Sealed || segment.pinned > 0 {
            return 0;
        }
        self.pages_of(id) * self.rows_per_page - segment.newest - segment.retained
    }

    /// The gain of cleaning a sealed segment: its dead slots, less two for each retained one. A
    /// retained copy keeps the whole segment until a later commit, and many of them suggest that
    /// the newest copies, too, will be dead by then without any cleaning. For a leftover it is all
    /// slots but those of its newest copies. 0 if that is too little for the work, if no work is
    /// left (there is no row to move, or it was cleaned in this epoch), or if the segment is to be
    /// spared.
    fn reclaimable(&self, id: SegmentId) -> u32 {
        let segment = &self.segments[id as usize];
        if segment.state != State::Sealed || segment.newest == 0 || !self.may_be_cleaned(segment) {
            return 0;
        }
        let slots = self.pages_of(id) * self.rows_per_page;
        if self.is_leftover(id) {
            return slots - segment.newest;
        }
        if self.spares_held && self.is_held(id) {
            return 0;
        }
        let worth = self.dead(id).saturating_sub(segment.retained.saturating_mul(2));
        if f64::from(worth) < Pressure::None.victim_share() * f64::from(slots) { 0 } else { worth }
    }

    /// Whether a segment was begun before this epoch: its newest copies, or some of them, belong to
    /// a commit.
    pub(crate) fn is_held(&self, id: SegmentId) -> bool {
        self.segments[id as usize].epoch < self.epoch
    }

    /// Whether segments that a commit holds are spared, but for leftovers: cleaning them releases
    /// nothing before the commit after the next.
    pub(super) fn spare_held(&mut self, spares: bool) {
        if self.spares_held != spares {
            self.spares_held = spares;
            self.count_totals();
        }
    }

    /// A segment that a commit holds and in which hardly a copy is newest. Those are rows that are
    /// seldom written: outdated one by one by later epochs, they would keep all the rest for as
    /// long. Cleaned now, it is free when the commits go that have the others.
    pub(super) fn is_leftover(&self, id: SegmentId) -> bool {
        let slots = self.pages_of(id) * self.rows_per_page;
        self.is_held(id) && self.segments[id as usize].newest <= slots / SLOTS_PER_LEFT
    }

    /// The value that [`spare_held`](Self::spare_held) has set.
    pub(super) fn spares_held(&self) -> bool {
        self.spares_held
    }

    /// The gain of cleaning all segments: slots that it would release, now or with commits.
    pub(super) fn reclaimable_total(&self) -> u64 {
        self.reclaimable_total
    }

    /// Counts a newly written copy, the newest of its key.
    pub(crate) fn written(&mut self, slot: u32) {
        let id = self.of_slot(slot);
        assert!(
            self.segments[id as usize].state == State::Open,
            "segment {id} is not being filled"
        );
        let segment = &mut self.segments[id as usize];
        segment.newest += 1;
        self.newest_total += 1;
    }

    /// Counts a copy as outdated: a newer one was written, or its key was deleted.
    pub(crate) fn outdated(&mut self, slot: u32) {
        let page = slot / self.rows_per_page;
        let id = self.of_page(page);
        let epoch = self.epoch;
        let segment = &self.segments[id as usize];
        assert!(segment.newest > 0, "segment {id} outdates a copy it does not hold");
        let in_this_epoch = segment.epoch == epoch
            || (segment.boundary.0 == epoch && page >= segment.boundary.1)
            || planted::is(Bug::OutdatedInWrongEpoch)
            || segment.stream == FOR_STRETCH && planted::is(Bug::StretchReleasedEarly);
        self.change(id, |segment| {
            segment.newest -= 1;
            segment.retained += u32::from(!in_this_epoch);
        });
        self.newest_total -= 1;
        if in_this_epoch {
            self.free_if_empty(id);
        } else {
            self.retained_total += 1;
            *self.retained.entry(epoch).or_default().entry(id).or_default() += 1;
        }
    }

    /// Begins the next epoch. `open` names the segments being filled and their next unwritten
    /// pages.
    pub(crate) fn next_epoch(&mut self, open: &[Option<(SegmentId, u32)>]) {
        self.epoch += 1;
        for (id, page) in open.iter().flatten() {
            self.segments[*id as usize].boundary = (self.epoch, *page);
        }
        // Segments cleaned in the epoch before may be cleaned again.
        self.count_totals();
    }

    /// Counts again what hangs on the epoch, or on which segments are spared.
    fn count_totals(&mut self) {
        let (mut reclaimable, mut kept_by_dirty, mut pending) = (0, 0, 0);
        for id in 0..self.count() {
            reclaimable += u64::from(self.reclaimable(id));
            kept_by_dirty += u64::from(self.kept_by_dirty(id));
            pending += u64::from(self.pending(id));
        }
        self.reclaimable_total = reclaimable;
        self.kept_by_dirty_total = kept_by_dirty;
        self.pending_total = pending;
    }

    /// Dead slots of a segment that was cleaned and would be free, but for rows that are dirty in
    /// DRAM and were not moved: rows that stay there long keep the rest of it with them.
    fn kept_by_dirty(&self, id: SegmentId) -> u32 {
        let segment = &self.segments[id as usize];
        let waits = segment.cleaned == self.epoch && segment.newest > 0 && segment.retained == 0;
        if waits && !segment.damaged && !self.is_held(id) { self.dead(id) } else { 0 }
    }

    /// Dead slots of segments that only rows keep which are dirty in DRAM.
    pub(super) fn kept_by_dirty_total(&self) -> u64 {
        self.kept_by_dirty_total
    }

    /// Of these segments the one with the most dead slots.
    pub(super) fn kept_by_dirty_most(&self) -> Option<SegmentId> {
        let most = (0..self.count()).max_by_key(|id| self.kept_by_dirty(*id))?;
        (self.kept_by_dirty(most) > 0).then_some(most)
    }

    /// The commit being prepared.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Releases what only commits before `oldest_kept` have.
    pub(crate) fn drop_commits_before(&mut self, oldest_kept: u64) {
        while let Some(entry) = self.retained.first_entry() {
            if *entry.key() > oldest_kept {
                break;
            }
            for (id, count) in entry.remove() {
                self.change(id, |segment| segment.retained -= count);
                self.retained_total -= u64::from(count);
                self.free_if_empty(id);
            }
        }
    }

    fn free_if_empty(&mut self, id: SegmentId) {
        let ticket = self.next_ticket;
        let segment = &self.segments[id as usize];
        let is_empty = segment.newest == 0 && segment.retained == 0 && segment.pinned == 0;
        if segment.state == State::Sealed && is_empty {
            self.change(id, |segment| segment.state = State::Free);
            self.free.push_back((id, ticket));
            self.free_total += u64::from(self.pages_of(id));
        }
    }

    /// Protects everything stored now against reuse until `end_read`.
    pub(crate) fn begin_read(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        *self.readers.entry(ticket).or_default() += 1;
        ticket
    }

    /// Ends the protection of a ticket.
    pub(crate) fn end_read(&mut self, ticket: u64) {
        self.readers.remove(&ticket);
    }

    /// Copies that are the newest of their key.
    pub(crate) fn newest_total(&self) -> u64 {
        self.newest_total
    }

    /// Outdated copies that kept commits still have.
    pub(crate) fn retained_total(&self) -> u64 {
        self.retained_total
    }

    /// Outdated copies that commits from `first` on have and that go when those before
    /// `oldest_kept` are dropped.
    pub(crate) fn retained_between(&self, first: u64, oldest_kept: u64) -> u64 {
        let between = self.retained.range(first + 1..=oldest_kept.max(first + 1));
        between.flat_map(|(_, copies)| copies.values()).map(|copies| u64::from(*copies)).sum()
    }

    /// Slots of segments that are not free.
    pub(crate) fn used_slots(&self) -> u64 {
        let all = self.pages_in(self.segments.len(), !self.segments.is_empty());
        (all - self.free_total) * u64::from(self.rows_per_page)
    }

    /// Segments that were written to their end and hold something.
    pub(crate) fn sealed(&self) -> impl Iterator<Item = SegmentId> {
        let sealed = |(id, segment): (usize, &Segment)| {
            (segment.state == State::Sealed).then_some(id as SegmentId)
        };
        self.segments.iter().enumerate().filter_map(sealed)
    }

    /// The sealed segment that is best cleaned, of those that were not cleaned in this epoch. That
    /// is the one of which most would be released; under pressure, the one with the best
    /// ratio of dead slots to newest copies, the older the better: what a young segment still holds
    /// will soon be dead without any work, what an old one holds stays. Retained copies are no
    /// reason to wait then.
    pub(super) fn victim(&self, pressure: Pressure) -> Option<SegmentId> {
        let mut best: Option<(f64, SegmentId)> = None;
        for (id, segment) in self.segments.iter().enumerate() {
            if segment.state != State::Sealed
                || segment.newest == 0
                || !self.may_be_cleaned(segment)
            {
                continue;
            }
            let id = id as SegmentId;
            let score = if pressure != Pressure::None {
                let (slots, dead) = (self.pages_of(id) * self.rows_per_page, self.dead(id));
                if f64::from(dead) < pressure.victim_share() * f64::from(slots) {
                    continue;
                }
                let age = (self.lives - segment.life + 1) as f64;
                f64::from(dead) * age / f64::from(segment.newest)
            } else {
                f64::from(self.reclaimable(id))
            };
            if score > best.map_or(0.0, |(most, _)| most) {
                best = Some((score, id));
            }
        }
        best.map(|(_, id)| id)
    }

    /// Slots of segments that commits alone will free: nothing but retained copies is in them, or
    /// they were cleaned in this epoch and what is left is dirty in DRAM.
    pub(super) fn pending_slots(&self) -> u64 {
        self.pending_total
    }

    /// The pending slots of one segment.
    fn pending(&self, id: SegmentId) -> u32 {
        let segment = &self.segments[id as usize];
        let waits = segment.state == State::Sealed
            && segment.pinned == 0
            && (segment.newest == 0 || segment.cleaned == self.epoch && !segment.damaged);
        if waits { self.pages_of(id) * self.rows_per_page } else { 0 }
    }

    /// Segments opened since the one of this slot was, and the stream that filled it.
    pub(super) fn age_of_slot(&self, slot: u32) -> (u64, u8) {
        let segment = &self.segments[self.of_slot(slot) as usize];
        (self.lives - segment.life, segment.stream)
    }

    /// Notes that a segment was cleaned: what is left in it has to wait for a commit.
    pub(super) fn cleaned(&mut self, id: SegmentId) {
        let epoch = self.epoch;
        self.change(id, |segment| segment.cleaned = epoch);
    }

    /// Notes whether a page of a segment cannot be read: cleaning leaves it alone from here on,
    /// until it is filled anew.
    pub(super) fn damaged(&mut self, id: SegmentId, is_damaged: bool) {
        self.change(id, |segment| segment.damaged = is_damaged);
    }

    /// Whether cleaning may look at a sealed segment in this epoch. A pinned segment stays in any
    /// case.
    fn may_be_cleaned(&self, segment: &Segment) -> bool {
        segment.cleaned != self.epoch && !segment.damaged && segment.pinned == 0
    }

    /// The sequences that a page can have if it is the one that was last written in its place.
    pub(crate) fn sequences_of(&self, page: u32) -> RangeInclusive<u64> {
        let id = self.of_page(page);
        let first = self.segments[id as usize].first;
        sequences(first, page - self.first_page(id), self.recovered_sequence)
    }

    /// As [`sequences_of`](Self::sequences_of) says now, for reads of what is stored now.
    pub(super) fn sequences(&self) -> Sequences {
        Sequences {
            pages_per_segment: self.pages_per_segment,
            firsts: self.firsts().collect(),
            recovered: self.recovered_sequence,
        }
    }

    /// Of each segment the least sequence that the first page of its filling can have.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = u64> {
        self.segments.iter().map(|segment| segment.first)
    }

    /// Tells one filling of a segment from the next, while it is sealed.
    pub(super) fn sealed_life(&self, id: SegmentId) -> Option<u64> {
        let segment = self.segments.get(id as usize)?;
        (segment.state == State::Sealed).then_some(segment.life)
    }

    /// Newest copies of a segment.
    pub(crate) fn newest_of(&self, id: SegmentId) -> u32 {
        self.segments[id as usize].newest
    }

    /// Bytes that it grows by at most with one more segment, and with copies in all of them that
    /// an epoch outdates.
    pub(super) fn growth_bytes(&self) -> usize {
        let (count, most) = (self.segments.len(), self.segments.capacity());
        let table = if count == most { most.max(4) * size_of::<Segment>() } else { 0 };
        let free = if self.free.len() == self.free.capacity() { self.free.capacity() } else { 0 };
        table + 16 * free.max(4) + 12 * count + 32
    }

    /// Allocated bytes of this table.
    pub(crate) fn memory_bytes(&self) -> usize {
        let retained: usize = self.retained.values().map(|m| m.len() * 12 + 32).sum();
        // A tree holds a third more than what is in it.
        let lists = self.free.capacity() * 16 + (self.absent.len() + self.unsure.len()) * 6;
        self.segments.capacity() * size_of::<Segment>() + lists + retained + self.pins_bytes()
    }
}

#[cfg(test)]
mod tests;
