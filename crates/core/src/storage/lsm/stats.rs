//! The statistics of the storage, and its share of the memory budget.

use super::Lsm;
use super::tombstones::Tombstones;
use crate::error::Result;
use crate::io::Medium;
use crate::storage::need::index_memory;
use crate::storage::{
    Share, StorageBudget, StorageCounts, StorageMemory, StorageSpace, StorageStats, Written,
};

impl StorageCounts for Lsm {
    fn stats(&self) -> StorageStats {
        let top = self.top.stats();
        let below = self.bottom.snapshot().version().rows();
        let merged = self.upkeep.merged;
        StorageStats {
            disk_bytes: self.disk_bytes(),
            newest_copies: top.newest_copies + below,
            used_slots: top.used_slots + below,
            index_bytes: top.index_bytes + self.index_bytes_below(),
            written: Written {
                rows: top.written.rows,
                rows_moved: top.written.rows_moved + merged.rows,
                pages: top.written.pages + merged.pages,
            },
            merged,
            ..top
        }
    }

    fn rows_stored(&self, table: u16) -> u64 {
        // Rows that are above and below would count twice in the sum, and plans have less room for
        // the others.
        let deleted = self.tombstones.count_of(table) as u64;
        let below = self.bottom.snapshot().rows_of(table).saturating_sub(deleted);
        self.top.rows_stored(table).max(below)
    }

    fn outdated_bytes(&self) -> u64 {
        self.top.outdated_bytes() + self.bottom.outdated_bytes()
    }
}

impl StorageBudget for Lsm {
    fn equip(&mut self, share: Share, medium: &dyn Medium) -> Result<()> {
        self.upkeep.equip(share.merge_portion_bytes());
        self.changes.equip(share.change_portion_bytes());
        self.expected_bytes = share.growing_bytes() as u64;
        self.top.equip(share, medium)
    }

    fn index_growth(&self, table: u16, expected: u64) -> u64 {
        self.index_growths(&mut std::iter::once((table, expected)))
    }

    fn index_growths(&self, tables: &mut dyn Iterator<Item = (u16, u64)>) -> u64 {
        if self.bottom.snapshot().frozen().is_some() {
            // It is as large as it will be: the next freeze makes room for its own.
            return 0;
        }
        // Index bytes that a table shares with others are part of the estimate made before it
        // existed.
        let shared = self.shared_index();
        let growth = |(table, expected): (u16, u64)| {
            let now = self.top.index_bytes_of(table) + self.bytes_beside_index(table, shared);
            let ids = self.is_dense(table).then_some(expected);
            let most = index_memory(self.facts.kind, ids, Some(expected), self.facts.merging);
            most.map_or(0, |most| (most.now + most.growth).saturating_sub(now))
        };
        tables.map(growth).sum()
    }

    fn bytes_for_deletes(&self, table: u16, keys: &[u64]) -> u64 {
        let places = keys.iter().map(|key| self.place(table, *key));
        let new = places.filter(|place| self.needs_tombstone(*place)).count();
        Tombstones::bytes_of(new) as u64
    }

    fn drop_deleted_soon(&mut self) {
        if !self.tombstones.is_empty() {
            self.upkeep.drop_tombstones_soon();
        }
    }

    fn is_above(&self, table: u16, key: u64) -> bool {
        self.top.has_copy(table, key, None)
    }

    fn memory(&self) -> StorageMemory {
        let StorageMemory { index_bytes, buffer_bytes } = self.top.memory();
        let set_aside = self.set_aside.memory_bytes() + self.top.failures_bytes();
        // Nobody else may take meanwhile what a batch of deletes needs at once.
        let growing = ((self.changes.memory_bytes() + set_aside) as u64).max(self.expected_bytes);
        StorageMemory {
            index_bytes: index_bytes + self.index_bytes_below(),
            buffer_bytes: buffer_bytes + self.upkeep.memory_bytes() + growing,
        }
    }
}

impl Lsm {
    /// Bytes of fences, of what is known of partitions, and of tombstones.
    fn index_bytes_below(&self) -> u64 {
        let partitions = self.bottom.memory_bytes() + self.upkeep.counts.memory_bytes();
        (partitions + self.tombstones.memory_bytes()) as u64
    }

    /// Index bytes that are no table's alone: those of segments and fences. Room for tombstones is
    /// made when they come.
    fn shared_index(&self) -> Shared {
        let indexes = self.top.table_bytes();
        let tombstones = self.tombstones.memory_bytes() as u64;
        let bytes = self.memory().index_bytes.saturating_sub(indexes + tombstones);
        // Each table counts as one row more, so that those without rows have a part.
        let tables = self.bottom.orders().table_count() as u128;
        let rows = u128::from(self.bottom.snapshot().version().rows()) + tables;
        Shared { bytes, rows }
    }

    /// The part of a table in the shared index bytes, in proportion to its rows in the bottom.
    fn bytes_beside_index(&self, table: u16, shared: Shared) -> u64 {
        let rows = u128::from(self.bottom.snapshot().rows_of(table)) + 1;
        (u128::from(shared.bytes) * rows).div_ceil(shared.rows) as u64
    }
}

/// Index bytes that tables share, and their rows.
#[derive(Clone, Copy)]
struct Shared {
    bytes: u64,
    rows: u128,
}
