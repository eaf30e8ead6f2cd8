//! When resident rows are used next, as far as that is known, and what a full set gives up then.
//!
//! The look-ahead window numbers the batches to come; a row that it knows to be used carries the
//! number of the batch, in 16 bits that go round ([`BatchNumber`]). A row without one leaves before
//! a row with one, and of two rows with one the later used: what Belady would do with the same
//! horizon, within a set. Among rows without one the policy chooses.
//!
//! The numbers lie apart from the sets' lines and are mapped when they are first needed: 2 bytes
//! per row. They are atomics for want of a cheaper way to share them without `unsafe`; only the
//! holder of a set's lock uses those of its rows.

use super::policy::WAYS_MAX;
use super::sets::{BLOCK, LockedSet};
use super::{Cache, Location, Policy, RowMut, RowRef, bits, find};
use crate::arena::release_zeroed;
use crate::planted::{self, Bug};
use crate::prefetch::prefetch_read;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// The number of a batch in 16 bits: from 1 to 65,534, and again from 1. None is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchNumber(u16);

/// So many batches have different numbers.
const NUMBERS: u64 = u16::MAX as u64 - 1;

impl BatchNumber {
    /// No batch.
    pub const NONE: Self = Self(0);

    /// No batch: the row is held (`held.rs`), as if it were always used next.
    pub const HELD: Self = Self(u16::MAX);

    /// A batch is known to come so many batches ahead at most: what is further has gone by.
    pub const AHEAD_MAX: u64 = NUMBERS / 2;

    /// Of the `n`th batch.
    pub fn of(n: u64) -> Self {
        Self((n % NUMBERS) as u16 + 1)
    }

    /// How many batches after `now` this one comes.
    #[inline(always)]
    fn after(self, now: u16) -> u16 {
        if self == Self::HELD {
            return 0;
        }
        if self.0 >= now { self.0 - now } else { self.0 + (NUMBERS as u16 - now) }
    }

    /// Whether it is a batch that has not gone by.
    #[inline(always)]
    fn is_ahead(self, now: u16) -> bool {
        self != Self::NONE && u64::from(self.after(now)) <= Self::AHEAD_MAX
    }
}

/// The next use of every row of a cache.
#[derive(Debug)]
pub(super) struct NextUses {
    /// Of the row in way `w` of set `s`: number `s * WAYS_MAX + w`.
    uses: Box<[AtomicU16]>,
    /// The batch that runs.
    now: AtomicU16,
    /// The batch whose rows verbs bring; 0 where nobody says.
    at_hand: AtomicU16,
    /// Rows that left although they have a next use.
    lost: AtomicU64,
}

impl NextUses {
    fn new(sets: u32) -> Self {
        let uses = (0..sets as usize * WAYS_MAX).map(|_| AtomicU16::new(0)).collect();
        let (now, at_hand) = (AtomicU16::new(1), AtomicU16::new(0));
        Self { uses, now, at_hand, lost: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn of(&self, set: u32) -> &[AtomicU16; WAYS_MAX] {
        let first = set as usize * WAYS_MAX;
        self.uses[first..].first_chunk().expect("32 numbers for each set")
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
        let (uses, now) = (self.of(set), self.now.load(Ordering::Relaxed));
        let mut without = 0;
        let mut last = (0, 0);
        for (way, number) in uses.iter().enumerate() {
            let number = number.load(Ordering::Relaxed);
            if ways >> way & 1 == 0 {
                continue;
            }
            let after = BatchNumber(number).after(now);
            if !BatchNumber(number).is_ahead(now) {
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

    /// Says which batch is the first whose rows may still be used.
    pub fn set_now(&self, now: BatchNumber) {
        if let Some(uses) = self.next_uses.get() {
            uses.now.store(now.0, Ordering::Relaxed);
        }
    }

    /// Says whose rows verbs bring from here on: they count as used by that batch, and stay until
    /// it is over before rows that are used later. `None`: they count as used by none.
    pub fn set_at_hand(&self, batch: Option<BatchNumber>) {
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
            uses.of(set)[way].store(BatchNumber::HELD.0, Ordering::Relaxed);
        } else if at_hand != 0 {
            uses.of(set)[way].store(at_hand, Ordering::Relaxed);
        }
    }

    /// The row will be used in a batch; one that is used earlier still keeps that. False when the
    /// row is not resident.
    pub fn expect_use(&self, at: Location, table: u16, key: u64, next: BatchNumber) -> bool {
        let set = self.sets.lock(at.set);
        let Some(way) = find(&set, at, table, key) else { return false };
        self.expect_use_of(at.set, way, next);
        true
    }

    /// [`expect_use`](Self::expect_use) of the row in a way. The caller holds the set's lock.
    #[inline(always)]
    pub(super) fn expect_use_of(&self, set: u32, way: usize, next: BatchNumber) {
        let Some(uses) = self.next_uses.get() else { return };
        let (number, now) = (&uses.of(set)[way], uses.now.load(Ordering::Relaxed));
        let known = BatchNumber(number.load(Ordering::Relaxed));
        if next == BatchNumber::HELD {
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
    pub fn set_next_use(&self, at: Location, table: u16, key: u64, next: BatchNumber) -> bool {
        let Some(uses) = self.next_uses.get() else { return false };
        let mut set = self.sets.lock(at.set);
        let Some(way) = find(&set, at, table, key) else { return false };
        if next.0 == BatchNumber::NONE.0 && planted::is(Bug::WindowRowNotWritten) {
            set.row_mut(way).dirty.set(way, false);
        }
        let number = &uses.of(at.set)[way];
        if number.load(Ordering::Relaxed) != BatchNumber::HELD.0 {
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
        if number.load(Ordering::Relaxed) == BatchNumber::HELD.0 {
            number.store(BatchNumber::NONE.0, Ordering::Relaxed);
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

    /// How many rows that are used in the batch `next` the set has room for: empty places, and
    /// those of rows that are used later or in no batch that is known.
    pub fn room_for(&self, set: u32, next: BatchNumber) -> usize {
        let Some(uses) = self.next_uses.get() else { return 0 };
        let held = self.sets.lock(set);
        let (usable, valid) = (held.usable_mask(), held.valid());
        let now = uses.now.load(Ordering::Relaxed);
        let is_free = |way: &usize| {
            let number = BatchNumber(uses.of(set)[*way].load(Ordering::Relaxed));
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
        next: BatchNumber,
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
        next: Option<BatchNumber>,
    ) -> Option<usize> {
        let usable = set.usable_mask();
        let Some(uses) = self.next_uses.get() else {
            return Some(self.policy.victim(set.uses_mut(), usable, recent));
        };
        match uses.look(set.index(), usable) {
            Ok(without) => Some(self.policy.victim(set.uses_mut(), without, recent)),
            Err((way, after)) => {
                let now = uses.now.load(Ordering::Relaxed);
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
        cache.set_now(BatchNumber::of(now));
        for key in 0..4 {
            let at = cache.locate_hashed(crate::hash::mix(key, 0));
            cache.admit(at, 0, key, 0, |row, _| row.words.fill(0.0), |_| ());
            if let Some(next) = next(key) {
                assert!(cache.set_next_use(at, 0, key, BatchNumber::of(next)));
            }
        }
        cache
    }

    /// The row evicted for one that is used next in batch `next`; `None` if that is turned away.
    fn leaves(cache: &Cache, key: u64, next: u64) -> Option<u64> {
        let at = cache.locate_hashed(crate::hash::mix(key, 0));
        let mut left = None;
        let row = (0, key, 0);
        let number = BatchNumber::of(next);
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

    #[test]
    fn a_use_that_is_over_is_none() {
        let cache = full(100, |key| Some(if key == 1 { 99 } else { 100 + key }));
        assert_eq!(leaves(&cache, 9, 90), Some(1));
        assert_eq!(leaves(&cache, 8, 101), Some(9));
        let at = cache.locate_hashed(crate::hash::mix(0, 0));
        assert!(cache.expect_use(at, 0, 0, BatchNumber::of(50)));
        assert_eq!(leaves(&cache, 7, 102), Some(3));
        cache.forget_next_uses();
        assert!(leaves(&cache, 6, 109).is_some());
    }

    #[test]
    fn rows_that_verbs_bring_count_as_used_by_the_batch_at_hand() {
        let cache = full(100, |key| Some(103 + key));
        assert_eq!(leaves(&cache, 9, 102), Some(3));
        cache.set_at_hand(Some(BatchNumber::of(100)));
        let come = |key: u64| {
            let (at, mut left) = (cache.locate_hashed(crate::hash::mix(key, 0)), None);
            let fill = |row: RowMut<'_>, _| row.words.fill(0.0);
            cache.admit(at, 0, key, 0, fill, |victim| left = Some(victim.key));
            left.expect("the set is full")
        };
        assert_eq!([20, 21].map(come), [2, 1]);
        let room = |next| cache.room_for(0, BatchNumber::of(next));
        assert_eq!([100, 101, 102, 103].map(room), [2, 2, 1, 0]);
        // Once it is over they are worth nothing.
        cache.set_now(BatchNumber::of(101));
        assert_eq!([101, 102, 103].map(room), [4, 3, 2]);
        cache.set_at_hand(None);
        let left = [come(30), come(31)];
        assert!(left.iter().all(|key| [20, 21, 30].contains(key)), "{left:?}");
    }
}
