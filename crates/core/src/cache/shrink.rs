//! Giving memory back and taking it again: a cache shrinks and grows by one way of all its sets.
//!
//! Rows lie way after way, so the last way of all sets is one range of memory. To free it, each set
//! gives up its least valuable row, and the row of the last way moves into that one's place. Other
//! threads go on using the cache meanwhile: a set is changed under its lock, and the memory is
//! released when the last set has stopped using it.

use super::policy::Policy;
use super::sets::LockedSet;
use super::{Cache, RowRef, WAYS_MIN};
use std::sync::atomic::Ordering;

/// The progress of taking the last way.
#[derive(Debug)]
pub(super) struct Shrinking {
    /// The fewest ways this cache may have.
    floor: usize,
    /// The next set that has to give up its last way.
    next: u32,
}

impl Shrinking {
    pub(super) fn new(ways: usize) -> Self {
        Self { floor: ways.min(WAYS_MIN), next: 0 }
    }
}

/// The result of a step of shrinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeWay {
    /// Sets are left that still use the last way: go on.
    More,
    /// The way is gone and this many bytes are back with the system.
    Released(u64),
    /// The next set has rows alone that may not leave: nothing was done in it.
    Blocked,
    /// The cache is as small as it may get; nothing was done.
    Floor,
}

/// The rows that may leave a cache that shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// All.
    Any,
    /// Rows that equal their stored copy, and rows that a capture has marked: the others could not
    /// wait anywhere.
    CleanOrCaptured,
}

impl Cache {
    /// All steps of [`take_way_step`](Self::take_way_step), for any row.
    #[cfg(test)]
    pub(super) fn take_way(&self, mut victim: impl FnMut(RowRef<'_>)) -> TakeWay {
        loop {
            match self.take_way_step(u32::MAX, Leaving::Any, &mut victim) {
                TakeWay::More => {}
                done => return done,
            }
        }
    }

    /// A step of shrinking the cache by one way of all sets, but not below 8. Each set keeps its
    /// most valuable rows; the others go through `victim`, under their set's lock. At most `sets`
    /// sets give up a row in a step, so that the caller can make room for victims between them.
    /// Rows change places, captured ones among them: [`moves`](Self::moves) says so.
    pub fn take_way_step(
        &self,
        sets: u32,
        leaving: Leaving,
        mut victim: impl FnMut(RowRef<'_>),
    ) -> TakeWay {
        let mut shrinking = self.shrinking.lock();
        let ways = self.ways.load(Ordering::Relaxed);
        if ways <= shrinking.floor {
            return TakeWay::Floor;
        }
        let last = ways - 1;
        let end = shrinking.next.saturating_add(sets).min(self.sets());
        let begin = shrinking.next;
        let blocked = loop {
            if shrinking.next == end {
                break false;
            }
            let set = &mut self.sets.lock(shrinking.next);
            if !self.take_from(set, last, leaving, &mut victim) {
                break true;
            }
            shrinking.next += 1;
        };
        // Behind the moves: a caller that has looked slots up amid them sees it when this step is
        // over.
        if shrinking.next > begin {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        if blocked {
            return TakeWay::Blocked;
        }
        if end < self.sets() {
            return TakeWay::More;
        }
        self.sets.release_from(last);
        self.ways.store(last, Ordering::Relaxed);
        shrinking.next = 0;
        TakeWay::Released(self.sets.way_bytes() as u64)
    }

    /// Grows behind every step that may have moved rows to other slots. A caller that addresses
    /// rows by slot reads it before it looks them up, and once more while no thread shrinks the
    /// cache: if it is unchanged, the rows are in the same slots.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// False where no row of the set may leave.
    fn take_from(
        &self,
        set: &mut LockedSet<'_>,
        last: usize,
        leaving: Leaving,
        victim: &mut impl FnMut(RowRef<'_>),
    ) -> bool {
        self.settle(set);
        let valid = set.valid();
        if valid >> last & 1 == 1 {
            let empty = !valid & ((1 << last) - 1);
            let to = if empty == 0 {
                let Some(way) = self.who_leaves(set, leaving) else { return false };
                victim(self.row_ref(set, way));
                self.vacate(set, way);
                way
            } else {
                empty.trailing_zeros() as usize
            };
            if to != last {
                let captured = set.captured();
                let moved = (captured >> last & 1) << to;
                set.move_row(last, to);
                set.set_captured(captured & !(1 << last | 1 << to) | moved);
                set.uses_mut().moved(last, to);
                if let Some(uses) = self.next_uses.get() {
                    uses.moved(set.index(), last, to);
                }
            }
        }
        set.limit(last);
        true
    }

    /// The least valuable row of a full set of those that may leave.
    fn who_leaves(&self, set: &mut LockedSet<'_>, leaving: Leaving) -> Option<usize> {
        let may_leave = match leaving {
            Leaving::Any => u32::MAX,
            Leaving::CleanOrCaptured => !set.dirty() | set.captured(),
        };
        let way = self.victim(set, 0, None).expect("a full set has a victim");
        if may_leave >> way & 1 == 1 {
            return Some(way);
        }
        let others = set.usable_mask() & may_leave;
        (others != 0).then(|| self.policy.victim(set.uses_mut(), others, 0))
    }

    /// Grows the cache again by one way of all sets that was taken before, which is empty. Returns
    /// the bytes; `None` when none was taken, or the taking of another has begun.
    pub fn return_way(&self) -> Option<u64> {
        let shrinking = self.shrinking.lock();
        let ways = self.ways.load(Ordering::Relaxed) + 1;
        if ways > self.sets.ways() || shrinking.next > 0 {
            return None;
        }
        self.sets.extend(ways);
        self.ways.store(ways, Ordering::Relaxed);
        Some(self.way_bytes())
    }

    /// Whether it has fewer ways than it was made with.
    pub fn is_shrunk(&self) -> bool {
        self.ways() < self.sets.ways()
    }

    /// Bytes of one way of all sets.
    pub fn way_bytes(&self) -> u64 {
        self.sets.way_bytes() as u64
    }

    /// Bytes that shrinking can give back.
    pub fn giveable_bytes(&self) -> u64 {
        (self.ways().saturating_sub(WAYS_MIN) * self.sets.way_bytes()) as u64
    }

    /// Rows per set that the cache can hold.
    pub fn ways(&self) -> usize {
        self.ways.load(Ordering::Relaxed)
    }

    /// Rows that the cache can hold.
    pub fn row_capacity(&self) -> u64 {
        u64::from(self.sets()) * self.ways() as u64
    }

    /// Bytes that the cache may use: metadata of all sets and slots of the ways it has.
    pub fn memory_bytes(&self) -> u64 {
        (self.sets.bytes_beside_ways() + self.ways() * self.sets.way_bytes()) as u64
    }
}
