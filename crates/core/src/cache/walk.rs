//! Walks over the cache: dirty rows for a commit or flush, resident rows of a table for a scan.
//!
//! A walk locks one set at a time, so it sees each set as it is when it gets there. A slot number
//! names a place, not a row: the row there can leave at any time, unless the caller keeps others
//! from admitting and removing.

use super::{Cache, RowRef, WAYS_MAX, bits};
use std::ops::Range;

impl Cache {
    /// Calls `f` with the stamp of the last change and the slot number of every dirty row, set by
    /// set. No lock is held during the calls.
    pub fn for_each_dirty(&self, mut f: impl FnMut(u32, u32)) {
        let mut changed = [0; WAYS_MAX];
        for index in 0..self.sets() {
            let dirty = {
                let set = self.sets.lock(index);
                for way in bits(set.state().dirty) {
                    changed[way] = set.changed(way);
                }
                set.state().dirty
            };
            for way in bits(dirty) {
                f(changed[way], way as u32 * self.sets() + index);
            }
        }
    }

    /// Calls `f` with the row in a slot. `None` when the slot is empty.
    pub fn with_slot<R>(&self, slot: u32, f: impl FnOnce(RowRef<'_>) -> R) -> Option<R> {
        let (index, way) = self.place(slot);
        let set = self.sets.lock(index);
        (set.valid() >> way & 1 == 1).then(|| f(self.row_ref(&set, way)))
    }

    /// The row in a slot equals its stored copy at `origin` from here on. False when the slot is
    /// empty. A change since the caller read the row would be lost: where others may change rows
    /// meanwhile, use [`write_back`](Self::write_back).
    pub fn clean(&self, slot: u32, origin: u32) -> bool {
        self.write_back(slot, |_| Some(origin)).is_some()
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
        let origin = f(self.row_ref(&set, way))?;
        self.set_clean(&mut set, way);
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
