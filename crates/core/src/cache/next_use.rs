//! The next use of resident rows, as far as it is known, and what a full set gives up then.
//!
//! The look-ahead window numbers the batches to come; a row that it knows to be used carries the
//! number of the batch ([`NextUse`]). A schedule knows the uses behind those batches, to a stretch
//! of batches. A row without a next use leaves before a row with one, and of two rows with one the
//! later used: what Belady would do with the same horizon, within a set. Among rows without one the
//! policy chooses.
//!
//! The numbers lie apart from the sets' lines and are mapped when they are first needed: 2 bytes
//! per row. They are atomics for want of a cheaper way to share them without `unsafe`; only the
//! holder of a set's lock uses those of its rows.

use super::policy::WAYS_MAX;
use super::sets::{BLOCK, LockedSet};
use super::{Cache, Location, Policy, RowMut, RowRef, bits, find};
use crate::arena::release_zeroed;
use crate::config::Stretch;
use crate::planted::{self, Bug};
use crate::prefetch::prefetch_read;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// The next use of a row, in 16 bits: a batch that is announced (1 to 32,767, and again from 1), or
/// a stretch of the schedule (32,768 to 65,533, and again). None is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextUse(u16);

/// Number of batches with different numbers, from 1 on.
const BATCHES: u16 = (1 << 15) - 1;
/// The number of the first stretch, and how many have different ones.
const FIRST_STRETCH: u16 = 1 << 15;
const STRETCHES: u16 = (1 << 15) - 2;
/// Stretches come behind all batches that are announced.
const BEHIND_BATCHES: u16 = BATCHES / 2 + 1;
/// The distance of a use that has passed, or is unknown.
const NEVER: u16 = u16::MAX;
/// The stretch at hand without a schedule.
const NO_STRETCH: u16 = u16::MAX;

/// The batch and the stretch at hand, as [`NextUse`] numbers them.
#[derive(Clone, Copy, Debug)]
struct Now {
    batch: u16,
    stretch: u16,
}

impl NextUse {
    /// No use is known.
    pub const NONE: Self = Self(0);

    /// No batch: the row is held (`held.rs`), as if it were always used next.
    pub const HELD: Self = Self(u16::MAX);

    /// A batch is known to come so many batches ahead at most: what is further has gone by.
    pub const BATCHES_AHEAD_MAX: u64 = BATCHES as u64 / 2;

    /// So it is with stretches.
    pub const STRETCHES_AHEAD_MAX: u64 = STRETCHES as u64 / 2;

    /// In the `n`th batch.
    pub fn in_batch(n: u64) -> Self {
        Self((n % u64::from(BATCHES)) as u16 + 1)
    }

    /// In the `n`th stretch.
    pub fn in_stretch(n: u64) -> Self {
        Self((n % u64::from(STRETCHES)) as u16 + FIRST_STRETCH)
    }

    /// The stretches after `now` in which it is, of a use that is known to a stretch.
    fn stretches_after(self, now: Now) -> Option<u16> {
        let stretch = self.0.checked_sub(FIRST_STRETCH).filter(|_| self != Self::HELD)?;
        (now.stretch != NO_STRETCH)
            .then(|| distance(stretch, now.stretch, STRETCHES))
            .filter(|after| *after <= STRETCHES / 2)
    }

    /// Distance from `now`, for comparison: batches come before stretches. [`NEVER`] for a use that
    /// has passed, and for none.
    #[inline(always)]
    fn after(self, now: Now) -> u16 {
        match self {
            Self::HELD => 0,
            Self::NONE => NEVER,
            Self(stretch) if stretch >= FIRST_STRETCH => {
                self.stretches_after(now).map_or(NEVER, |after| BEHIND_BATCHES + after)
            }
            Self(batch) => {
                let after = distance(batch - 1, now.batch, BATCHES);
                if after <= BATCHES / 2 { after } else { NEVER }
            }
        }
    }

    /// Whether it is known and has not gone by.
    #[inline(always)]
    fn is_ahead(self, now: Now) -> bool {
        self.after(now) != NEVER
    }
}

/// The distance of `number` behind `now`, of `count` numbers that go round.
#[inline(always)]
fn distance(number: u16, now: u16, count: u16) -> u16 {
    if number >= now { number - now } else { number + (count - now) }
}

/// The place of a batch in a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulePlace {
    /// Its stretch.
    pub stretch: u64,
    /// Batches of the stretch before it.
    pub gone: u64,
    /// Batches of each stretch; 0 without a schedule.
    pub batches: u64,
}

/// The next use of every row of a cache.
#[derive(Debug)]
pub(super) struct NextUses {
    /// Of the row in way `w` of set `s`: number `s * WAYS_MAX + w`.
    uses: Box<[AtomicU16]>,
    /// The batch that runs, and its stretch, of [`Now`].
    now: AtomicU16,
    now_stretch: AtomicU16,
    /// The stretch that runs, how many of its batches have gone by, and how many one has; that is 0
    /// without a schedule.
    stretch: AtomicU64,
    gone: AtomicU64,
    batches: AtomicU64,
    /// The batch whose rows verbs bring; 0 where nobody says.
    at_hand: AtomicU16,
    /// Rows that left although they have a next use.
    lost: AtomicU64,
}

impl NextUses {
    fn new(sets: u32) -> Self {
        let uses = (0..sets as usize * WAYS_MAX).map(|_| AtomicU16::new(0)).collect();
        Self {
            uses,
            now: AtomicU16::default(),
            now_stretch: AtomicU16::new(NO_STRETCH),
            stretch: AtomicU64::default(),
            gone: AtomicU64::default(),
            batches: AtomicU64::default(),
            at_hand: AtomicU16::default(),
            lost: AtomicU64::default(),
        }
    }

    #[inline(always)]
    fn of(&self, set: u32) -> &[AtomicU16; WAYS_MAX] {
        let first = set as usize * WAYS_MAX;
        self.uses[first..].first_chunk().expect("32 numbers for each set")
    }

    #[inline(always)]
    fn now(&self) -> Now {
        Now {
            batch: self.now.load(Ordering::Relaxed),
            stretch: self.now_stretch.load(Ordering::Relaxed),
        }
    }

    /// The stretch of a row's next use, where there is a schedule and the use is known.
    #[inline(always)]
    pub(super) fn stretch_of(&self, set: u32, way: usize) -> Option<Stretch> {
        let batches = self.batches.load(Ordering::Relaxed);
        if batches == 0 {
            return None;
        }
        let (next, now) = (NextUse(self.of(set)[way].load(Ordering::Relaxed)), self.now());
        let after = match next.stretches_after(now) {
            Some(after) => u64::from(after),
            None if next == NextUse::HELD || !next.is_ahead(now) => return None,
            None => (self.gone.load(Ordering::Relaxed) + u64::from(next.after(now))) / batches,
        };
        Some(Stretch::of(self.stretch.load(Ordering::Relaxed) + after))
    }

    pub(super) fn clear(&self, set: u32, way: usize) {
        self.of(set)[way].store(0, Ordering::Relaxed);
    }

    pub(super) fn moved(&self, set: u32, from: usize, to: usize) {
        let uses = self.of(set);
        uses[to].store(uses[from].load(Ordering::Relaxed), Ordering::Relaxed);
        uses[from].store(0, Ordering::Relaxed);
    }

    /// The ways without a next use; where all of `ways` have one, the way that is used last, and
    /// after how many batches.
    fn look(&self, set: u32, ways: u32) -> Result<u32, (usize, u16)> {
        let (uses, now) = (self.of(set), self.now());
        let mut without = 0;
        let mut last = (0, 0);
        for (way, number) in uses.iter().enumerate() {
            let number = number.load(Ordering::Relaxed);
            if ways >> way & 1 == 0 {
                continue;
            }
            let after = NextUse(number).after(now);
            if !NextUse(number).is_ahead(now) {
                without |= 1 << way;
            } else if after >= last.1 {
                last = (way, after);
            }
        }
        if without == 0 { Err(last) } else { Ok(without) }
    }
}

impl Cache {
    /// Remembers next uses from here on; nothing when it does already.
    pub fn remember_next_uses(&self) {
        self.next_uses.get_or_init(|| NextUses::new(self.sets()));
    }

    /// Bytes that next uses take, or would take.
    pub fn next_use_bytes(&self) -> u64 {
        u64::from(self.sets()) * (WAYS_MAX * size_of::<AtomicU16>()) as u64
    }

    /// Rows that left although they had a next use, because all of their set had.
    pub fn lost_next_uses(&self) -> u64 {
        self.next_uses.get().map_or(0, |uses| uses.lost.load(Ordering::Relaxed))
    }

    /// Says which batch is the first whose rows may still be used, and where in the schedule, if
    /// there is one, it is.
    pub fn set_now(&self, batch: u64, place: Option<SchedulePlace>) {
        let Some(uses) = self.next_uses.get() else { return };
        uses.now.store(NextUse::in_batch(batch).0 - 1, Ordering::Relaxed);
        let number = |place: SchedulePlace| NextUse::in_stretch(place.stretch).0 - FIRST_STRETCH;
        uses.now_stretch.store(place.map_or(NO_STRETCH, number), Ordering::Relaxed);
        let place = place.unwrap_or_default();
        uses.stretch.store(place.stretch, Ordering::Relaxed);
        uses.gone.store(place.gone, Ordering::Relaxed);
        uses.batches.store(place.batches, Ordering::Relaxed);
    }

    /// Says whose rows verbs bring from here on: they count as used by that batch, and stay until
    /// it is over before rows that are used later. `None`: they count as used by none.
    pub fn set_at_hand(&self, batch: Option<NextUse>) {
        if let Some(uses) = self.next_uses.get() {
            uses.at_hand.store(batch.map_or(0, |batch| batch.0), Ordering::Relaxed);
        }
    }

    /// The batch that [`set_at_hand`](Self::set_at_hand) has set.
    #[cfg(test)]
    pub fn at_hand(&self) -> Option<u16> {
        let at_hand = self.next_uses.get()?.at_hand.load(Ordering::Relaxed);
        (at_hand != 0).then_some(at_hand)
    }

    /// A verb has brought the row in a way. The caller holds the set's lock.
    #[inline(always)]
    pub(super) fn came(&self, set: u32, way: usize, table: u16, key: u64) {
        let Some(uses) = self.next_uses.get() else { return };
        let at_hand = uses.at_hand.load(Ordering::Relaxed);
        if self.held.has(table, key) {
            uses.of(set)[way].store(NextUse::HELD.0, Ordering::Relaxed);
        } else if at_hand != 0 {
            uses.of(set)[way].store(at_hand, Ordering::Relaxed);
        }
    }

    /// The row will be used in a batch; one that is used earlier still keeps that. False when the
    /// row is not resident.
    pub fn expect_use(&self, at: Location, table: u16, key: u64, next: NextUse) -> bool {
        let set = self.sets.lock(at.set);
        let Some(way) = find(&set, at, table, key) else { return false };
        self.expect_use_of(at.set, way, next);
        true
    }

    /// [`expect_use`](Self::expect_use) of the row in a way. The caller holds the set's lock.
    #[inline(always)]
    pub(super) fn expect_use_of(&self, set: u32, way: usize, next: NextUse) {
        let Some(uses) = self.next_uses.get() else { return };
        let (number, now) = (&uses.of(set)[way], uses.now());
        let known = NextUse(number.load(Ordering::Relaxed));
        if next == NextUse::HELD {
            number.store(next.0, Ordering::Relaxed);
            return;
        }
        let sooner = !known.is_ahead(now) || next.after(now) < known.after(now);
        if next.is_ahead(now) && sooner {
            number.store(next.0, Ordering::Relaxed);
        }
    }

    /// The row's next use is in this batch, or in none that is known; one that is held stays held.
    /// False when the row is not resident.
    pub fn set_next_use(&self, at: Location, table: u16, key: u64, next: NextUse) -> bool {
        let Some(uses) = self.next_uses.get() else { return false };
        let mut set = self.sets.lock(at.set);
        let Some(way) = find(&set, at, table, key) else { return false };
        if next.0 == NextUse::NONE.0 && planted::is(Bug::WindowRowNotWritten) {
            set.row_mut(way).dirty.set(way, false);
        }
        let number = &uses.of(at.set)[way];
        if number.load(Ordering::Relaxed) != NextUse::HELD.0 {
            number.store(next.0, Ordering::Relaxed);
        }
        true
    }

    /// The row is not held any more.
    pub(super) fn release_held(&self, at: Location, table: u16, key: u64) {
        let Some(uses) = self.next_uses.get() else { return };
        let set = self.sets.lock(at.set);
        let Some(way) = find(&set, at, table, key) else { return };
        let number = &uses.of(at.set)[way];
        if number.load(Ordering::Relaxed) == NextUse::HELD.0 {
            number.store(NextUse::NONE.0, Ordering::Relaxed);
        }
    }

    /// Visits the places 0 to `n` in order, with the lines of their sets on the way into the
    /// processor's caches, but not the rows: for changing next uses.
    #[inline(always)]
    pub fn ahead(
        &self,
        n: usize,
        mut locate: impl FnMut(usize) -> Location,
        mut visit: impl FnMut(usize, Location),
    ) {
        let mut blocks = [[Location::NOWHERE; BLOCK]; 2];
        let mut prepare = |first: usize, block: &mut [Location; BLOCK]| {
            let places = n.saturating_sub(first).min(BLOCK);
            for (i, at) in block.iter_mut().enumerate().take(places) {
                *at = locate(first + i);
                if let Some(uses) = self.next_uses.get() {
                    prefetch_read(&uses.of(at.set)[0]);
                }
            }
            self.sets.prefetch_sets(&block[..places]);
        };
        prepare(0, &mut blocks[0]);
        for (round, first) in (0..n).step_by(BLOCK).enumerate() {
            prepare(first + BLOCK, &mut blocks[(round + 1) % 2]);
            for (i, at) in blocks[round % 2].iter().enumerate().take(n - first) {
                visit(first + i, *at);
            }
        }
    }

    /// Number of rows used in the batch `next` that the set has room for: empty places, and those
    /// of rows that are used later or in no known batch.
    pub fn room_for(&self, set: u32, next: NextUse) -> usize {
        let Some(uses) = self.next_uses.get() else { return 0 };
        let held = self.sets.lock(set);
        let (usable, valid) = (held.usable_mask(), held.valid());
        let now = uses.now();
        let is_free = |way: &usize| {
            let number = NextUse(uses.of(set)[*way].load(Ordering::Relaxed));
            valid >> way & 1 == 0 || !number.is_ahead(now) || number.after(now) > next.after(now)
        };
        bits(usable).filter(is_free).count()
    }

    /// As [`admit`](Self::admit), of a row (table, key, origin) that is not used before the batch
    /// `next`. It does not displace rows that are used sooner: `None` when all of its set are, and
    /// the row stays away.
    pub fn admit_ahead<R>(
        &self,
        at: Location,
        row: (u16, u64, u32),
        next: NextUse,
        f: impl FnOnce(RowMut<'_>, bool) -> R,
        victim: impl FnOnce(RowRef<'_>),
    ) -> Option<R> {
        self.admit_for(at, row, Some(next), f, victim)
    }

    /// The way whose row leaves a full set; `None` when all of its rows are used before `next`.
    pub(super) fn victim(
        &self,
        set: &mut LockedSet<'_>,
        recent: u8,
        next: Option<NextUse>,
    ) -> Option<usize> {
        let usable = set.usable_mask();
        let Some(uses) = self.next_uses.get() else {
            return Some(self.policy.victim(set.uses_mut(), usable, recent));
        };
        match uses.look(set.index(), usable) {
            Ok(without) => Some(self.policy.victim(set.uses_mut(), without, recent)),
            Err((way, after)) => {
                let now = uses.now();
                if next.is_some_and(|next| next.after(now) >= after) {
                    return None;
                }
                uses.lost.fetch_add(1, Ordering::Relaxed);
                Some(way)
            }
        }
    }

    /// Forgets all next uses and gives their memory back.
    pub fn release_next_uses(&self) {
        if let Some(uses) = self.next_uses.get() {
            release_zeroed(&uses.uses);
        }
    }

    /// Forgets all next uses.
    pub fn forget_next_uses(&self) {
        let Some(uses) = self.next_uses.get() else { return };
        for index in 0..self.sets() {
            let set = self.sets.lock(index);
            bits(set.valid()).for_each(|way| uses.clear(index, way));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CacheShape, PolicyKind};
    use super::*;

    /// A full cache of one set, whose row `key` is used next in batch `next(key)`.
    fn full(now: u64, next: impl Fn(u64) -> Option<u64>) -> Cache {
        let (ways, policy) = (4, PolicyKind::Lru);
        let shape = CacheShape { row_bytes: 4, sets: 1, ways, policy, headers: true };
        let cache = Cache::new(shape).unwrap();
        cache.remember_next_uses();
        cache.set_now(now, None);
        for key in 0..4 {
            let at = cache.locate_hashed(crate::hash::mix(key, 0));
            cache.admit(at, 0, key, 0, |row, _| row.words.fill(0.0), |_| ());
            if let Some(next) = next(key) {
                assert!(cache.set_next_use(at, 0, key, NextUse::in_batch(next)));
            }
        }
        cache
    }

    /// The row evicted for one that is used next in batch `next`; `None` if that is turned away.
    fn leaves(cache: &Cache, key: u64, next: u64) -> Option<u64> {
        let at = cache.locate_hashed(crate::hash::mix(key, 0));
        let mut left = None;
        let row = (0, key, 0);
        let number = NextUse::in_batch(next);
        cache.admit_ahead(at, row, number, |row, _| row.words.fill(0.0), |v| left = Some(v.key))?;
        left
    }

    #[test]
    fn rows_without_a_use_leave_first_then_those_used_last() {
        // Numbers go round between 65,530 and 65,540.
        for now in [1, 65_530, 131_065] {
            let some = full(now, |key| (key != 2).then_some(now + key));
            assert_eq!(leaves(&some, 9, now + 5), Some(2));
            assert_eq!(leaves(&some, 8, now + 4), Some(9));
            assert_eq!(leaves(&some, 7, now + 1), Some(8));
            assert_eq!(leaves(&some, 6, now + 3), None);
            assert_eq!(some.lost_next_uses(), 2);
        }
    }

    fn place(stretch: u64, gone: u64) -> Option<SchedulePlace> {
        Some(SchedulePlace { stretch, gone, batches: 10 })
    }

    #[test]
    fn rows_of_stretches_leave_before_those_of_batches_the_last_stretch_first() {
        // Numbers of stretches go round between 32,760 and 32,770.
        for (now, stretch) in [(1, 0), (65_530, 32_762), (9, 3 * 32_766 - 2)] {
            let cache = full(now, |key| (key == 1).then_some(now + 9));
            cache.set_now(now, place(stretch, 0));
            let at = |key| cache.locate_hashed(crate::hash::mix(key, 0));
            for (key, ahead) in [(0, 7), (2, 1), (3, 900)] {
                assert!(cache.set_next_use(at(key), 0, key, NextUse::in_stretch(stretch + ahead)));
            }
            assert_eq!(leaves(&cache, 9, now + 1), Some(3));
            assert_eq!(leaves(&cache, 8, now + 2), Some(0));
            assert_eq!(leaves(&cache, 7, now + 3), Some(2));
            assert_eq!(leaves(&cache, 6, now + 4), Some(1));
        }
    }

    #[test]
    fn a_victim_says_which_stretch_uses_it_next() {
        let (now, stretch) = (500, 70);
        let said = |next: NextUse, place: Option<SchedulePlace>| {
            let cache = full(now, |_| None);
            cache.set_now(now, place);
            let at = cache.locate_hashed(crate::hash::mix(2, 0));
            assert!(cache.set_next_use(at, 0, 2, next));
            let mut said = None;
            cache.for_each_resident(0..1, 0, |row| {
                if row.key == 2 {
                    said = Some(row.stretch.map(|of| u64::from(of.number())));
                }
            });
            said.expect("the row is resident")
        };
        assert_eq!(said(NextUse::in_stretch(stretch + 5), place(stretch, 3)), Some(stretch + 5));
        assert_eq!(said(NextUse::in_stretch(stretch), place(stretch, 3)), Some(stretch));
        assert_eq!(said(NextUse::in_stretch(stretch - 1), place(stretch, 3)), None, "gone by");
        assert_eq!(said(NextUse::in_batch(now + 6), place(stretch, 3)), Some(stretch));
        assert_eq!(said(NextUse::in_batch(now + 7), place(stretch, 3)), Some(stretch + 1));
        assert_eq!(said(NextUse::NONE, place(stretch, 3)), None);
        assert_eq!(said(NextUse::in_stretch(stretch + 5), None), None, "there is no schedule");
        assert_eq!(said(NextUse::in_batch(now + 6), None), None);
    }

    #[test]
    fn a_use_that_is_over_is_none() {
        let cache = full(100, |key| Some(if key == 1 { 99 } else { 100 + key }));
        assert_eq!(leaves(&cache, 9, 90), Some(1));
        assert_eq!(leaves(&cache, 8, 101), Some(9));
        let at = cache.locate_hashed(crate::hash::mix(0, 0));
        assert!(cache.expect_use(at, 0, 0, NextUse::in_batch(50)));
        assert_eq!(leaves(&cache, 7, 102), Some(3));
        cache.forget_next_uses();
        assert!(leaves(&cache, 6, 109).is_some());
    }

    #[test]
    fn rows_that_verbs_bring_count_as_used_by_the_batch_at_hand() {
        let cache = full(100, |key| Some(103 + key));
        assert_eq!(leaves(&cache, 9, 102), Some(3));
        cache.set_at_hand(Some(NextUse::in_batch(100)));
        let come = |key: u64| {
            let (at, mut left) = (cache.locate_hashed(crate::hash::mix(key, 0)), None);
            let fill = |row: RowMut<'_>, _| row.words.fill(0.0);
            cache.admit(at, 0, key, 0, fill, |victim| left = Some(victim.key));
            left.expect("the set is full")
        };
        assert_eq!([20, 21].map(come), [2, 1]);
        let room = |next| cache.room_for(0, NextUse::in_batch(next));
        assert_eq!([100, 101, 102, 103].map(room), [2, 2, 1, 0]);
        // Once it is over they are worth nothing.
        cache.set_now(101, None);
        assert_eq!([101, 102, 103].map(room), [4, 3, 2]);
        cache.set_at_hand(None);
        let left = [come(30), come(31)];
        assert!(left.iter().all(|key| [20, 21, 30].contains(key)), "{left:?}");
    }
}
