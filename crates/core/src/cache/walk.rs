//! Walks over the cache: dirty rows for a commit or flush, resident rows of a table for a scan.
//!
//! A commit writes the rows that were dirty when it began, as they were then. [`Cache::capture`]
//! marks them; a thread that wants to change one of them writes it first
//! ([`Cache::write_captured`]).
//!
//! A walk locks one set at a time, so it sees each set as it is when it gets there. A slot number
//! names a place, not a row: the row there can leave at any time, unless the caller keeps others
//! from admitting and removing.

use super::{Cache, Location, LockedSet, RowRef, WAYS_MAX, bits, find};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Cache {
    /// Marks every dirty row as captured, until it is written or leaves. Nobody may change rows
    /// meanwhile.
    pub fn capture(&self) {
        let mut rows = 0;
        for index in 0..self.sets() {
            let mut set = self.sets.lock(index);
            let dirty = set.dirty();
            if dirty != 0 {
                set.set_captured(dirty);
                rows += u64::from(dirty.count_ones());
            }
        }
        self.captured.store(rows, Ordering::Relaxed);
    }

    /// Number of rows that the last capture marked. Fewer may be left.
    pub fn captured_rows(&self) -> u64 {
        self.captured.load(Ordering::Relaxed)
    }

    /// Calls `f` with the stamp since which it is dirty and the slot number of every captured row,
    /// set by set. No lock is held during the calls.
    pub fn for_each_captured(&self, mut f: impl FnMut(u32, u32)) {
        let mut dirty_since = [0; WAYS_MAX];
        for index in 0..self.sets() {
            // Before the lock, which others wait for.
            self.sets.prefetch_stamps((index + 2).min(self.sets() - 1));
            let captured = {
                let set = self.sets.lock(index);
                // A line less for the sets that have none.
                let captured = if set.dirty() == 0 { 0 } else { set.captured() };
                let captured = captured & set.usable_mask();
                for way in bits(captured) {
                    dirty_since[way] = set.dirty_since(way);
                }
                captured
            };
            for way in bits(captured) {
                f(dirty_since[way], way as u32 * self.sets() + index);
            }
        }
    }

    /// Stores the row of `key`, if it is resident and captured, as [`write_back`](Self::write_back)
    /// does. `None` when it is not, or `f` stored nothing.
    #[inline(always)]
    pub fn write_captured(
        &self,
        at: Location,
        table: u16,
        key: u64,
        f: impl FnOnce(RowRef<'_>) -> Option<u32>,
    ) -> Option<u32> {
        let mut set = self.sets.lock(at.set);
        let way = find(&set, at, table, key)?;
        if set.captured() >> way & 1 == 0 {
            return None;
        }
        self.store_way(&mut set, way, f)
    }

    /// Calls `f` with the row in a slot. `None` when the slot is empty.
    pub fn with_slot<R>(&self, slot: u32, f: impl FnOnce(RowRef<'_>) -> R) -> Option<R> {
        let (index, way) = self.place(slot);
        let set = self.sets.lock(index);
        (set.valid() >> way & 1 == 1).then(|| f(self.row_ref(&set, way)))
    }

    /// Stores the row in a slot, as one step: `f` copies the row and says its new origin; then it
    /// is clean. Returns the origin; `None`, and nothing changed, when the slot is empty or `f`
    /// stored nothing.
    pub fn write_back(&self, slot: u32, f: impl FnOnce(RowRef<'_>) -> Option<u32>) -> Option<u32> {
        let (index, way) = self.place(slot);
        let mut set = self.sets.lock(index);
        if set.valid() >> way & 1 == 0 {
            return None;
        }
        self.store_way(&mut set, way, f)
    }

    fn store_way(
        &self,
        set: &mut LockedSet<'_>,
        way: usize,
        f: impl FnOnce(RowRef<'_>) -> Option<u32>,
    ) -> Option<u32> {
        let origin = f(self.row_ref(set, way))?;
        self.set_clean(set, way);
        set.row_mut(way).set_origin(way, origin);
        Some(origin)
    }

    /// Calls `f` with every resident row of `table` in the given sets, under their locks.
    pub fn for_each_resident(&self, sets: Range<u32>, table: u16, mut f: impl FnMut(RowRef<'_>)) {
        for index in sets.start..sets.end.min(self.sets()) {
            let set = self.sets.lock(index);
            for way in bits(set.valid()) {
                if self.identity(&set, way).0 == table {
                    f(self.row_ref(&set, way));
                }
            }
        }
    }

    /// Set and way of a slot number. Ways beyond the last are empty in every set.
    fn place(&self, slot: u32) -> (u32, usize) {
        let (way, index) = (slot / self.sets(), slot % self.sets());
        assert!(way < WAYS_MAX as u32, "slot {slot} of a cache of {} sets", self.sets());
        (index, way as usize)
    }
}
