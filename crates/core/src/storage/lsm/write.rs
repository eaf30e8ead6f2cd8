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
        if !self.tombstones.is_empty() {
            let parked: Vec<(u16, u64)> = self.top.parked_keys().collect();
            parked.into_iter().for_each(|(table, key)| self.drop_tombstone(table, key));
        }
        let orders = Arc::clone(self.bottom.orders());
        self.top.flush_by(|table, key| orders.write_place(table, key))
    }

    fn append(&mut self, row: DirtyRow<'_>) -> Result<u32> {
        // Now, and not when it was parked: its commit may be a later one.
        self.drop_tombstone(row.table, row.key);
        let origin = self.origin_above(row.table, row.origin);
        self.top.append(DirtyRow { origin, ..row })
    }

    fn delete(&mut self, table: u16, key: u64, origin: Option<u32>) {
        let origin = self.origin_above(table, origin);
        self.top.delete(table, key, origin);
        let place = self.place(table, key);
        if self.needs_tombstone(place) && self.tombstones.insert(place) {
            self.changes.tombstone_set(table, key);
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

    /// The key has a row again, or the bottom has none any more.
    pub(super) fn drop_tombstone(&mut self, table: u16, key: u64) {
        if !self.tombstones.is_empty() && self.tombstones.remove(self.place(table, key)) {
            self.changes.tombstone_dropped(table, key);
        }
    }
}
