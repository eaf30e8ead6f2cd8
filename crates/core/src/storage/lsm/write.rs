//! Dirty rows go to the top; deletes leave tombstones where the bottom may have the row.

use super::Lsm;
use super::bottom::Place;
use crate::error::Result;
use crate::storage::{DirtyRow, StorageWrite};
use std::sync::Arc;

impl StorageWrite for Lsm {
    fn parked(&self) -> usize {
        self.top.parked()
    }

    fn room(&self) -> usize {
        self.top.room()
    }

    fn park(&mut self, row: DirtyRow<'_>) {
        let origin = self.origin_above(row.table, row.origin);
        self.top.park(DirtyRow { origin, ..row });
    }

    fn is_parked(&self, table: u16, key: u64) -> bool {
        self.top.is_parked(table, key)
    }

    fn unpark(&mut self, table: u16, key: u64) -> bool {
        self.top.unpark(table, key)
    }

    fn write_place(&self, table: u16, key: u64) -> u64 {
        self.bottom.orders().write_place(table, key)
    }

    fn sorts_writes(&self) -> bool {
        true
    }

    fn flush(&mut self, _: u32) -> Result<u64> {
        let snapshot = Arc::clone(self.bottom.snapshot());
        let orders = Arc::clone(self.bottom.orders());
        // Rows that have a copy have no tombstone, and change no count.
        for (table, key, has_copy) in self.top.parked_keys() {
            if has_copy {
                continue;
            }
            let place = orders.place(table, 0, key)?;
            if self.tombstones.remove(place) {
                self.changes.tombstone_dropped(table, key);
            } else {
                self.upkeep.counts.entered(snapshot.version(), place);
            }
        }
        self.top.flush_by(|table, key| orders.write_place(table, key))
    }

    fn append(&mut self, row: DirtyRow<'_>) -> Result<u32> {
        let origin = self.origin_above(row.table, row.origin);
        if !self.top.has_copy(row.table, row.key, origin) {
            // Now, and not when it was parked: its commit may be a later one.
            let had_tombstone = self.drop_tombstone(row.table, row.key);
            if !had_tombstone {
                let place = self.place(row.table, row.key);
                self.upkeep.counts.entered(self.bottom.snapshot().version(), place);
            }
        }
        self.top.append(DirtyRow { origin, ..row })
    }

    fn delete(&mut self, table: u16, key: u64, origin: Option<u32>) {
        let origin = self.origin_above(table, origin);
        let had_copy = self.top.has_copy(table, key, origin);
        self.top.delete(table, key, origin);
        let place = self.place(table, key);
        let is_new = self.needs_tombstone(place) && self.tombstones.insert(place);
        if is_new {
            self.changes.tombstone_set(table, key);
        }
        let snapshot = self.bottom.snapshot();
        match (had_copy, is_new) {
            (false, true) => self.upkeep.counts.entered(snapshot.version(), place),
            (true, false) => self.upkeep.counts.left(snapshot.version(), place),
            _ => {}
        }
    }

    fn shrink_index(&mut self, table: u16, most: usize) {
        self.top.shrink_index(table, most);
    }
}

impl Lsm {
    /// Whether a delete of the key at `place` leaves a tombstone that is not there.
    pub(super) fn needs_tombstone(&self, place: Place) -> bool {
        self.may_be_below(place) && !self.tombstones.contains(place)
    }

    /// The key has a row again, or the bottom has none any more. False where there was none.
    pub(super) fn drop_tombstone(&mut self, table: u16, key: u64) -> bool {
        let had = !self.tombstones.is_empty() && self.tombstones.remove(self.place(table, key));
        if had {
            self.changes.tombstone_dropped(table, key);
        }
        had
    }
}
