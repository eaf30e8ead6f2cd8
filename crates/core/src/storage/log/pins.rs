//! Pinned commits of a log.

use super::{ClassLog, TableIndex, fillings};
use crate::error::Result;
use crate::storage::{Begun, Parts, StoragePins};

impl StoragePins for ClassLog {
    fn begun(&self) -> Begun {
        let partitions = self.partitions().collect();
        Begun { record: fillings::encode(self.segments.firsts()), partitions }
    }

    fn parts(&self) -> Parts {
        self.segments.parts()
    }

    fn pin(&mut self, pin: u64, parts: &Parts) -> Result<()> {
        let pinned = self.segments.pin(pin, parts);
        pinned.map_err(|error| error.context(self.file().name()))
    }

    fn unpin(&mut self, pin: u64) {
        self.segments.unpin(pin);
    }

    fn bytes_of_pin(&self, parts: &Parts, others: &[&Parts]) -> u64 {
        self.bytes_of_slots(self.segments.slots_of_pin(parts, others))
    }
}

impl ClassLog {
    /// Partitions of growing tables, by table.
    pub(super) fn partitions(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.tables.iter().filter_map(|(table, index)| match index {
            TableIndex::Sparse(index, _) => Some((*table, index.partitions())),
            TableIndex::Dense(_) => None,
        })
    }

    /// Bytes of whole pages of so many slots.
    pub(super) fn bytes_of_slots(&self, slots: u64) -> u64 {
        slots / self.layout().rows_per_page as u64 * self.layout().page_bytes as u64
    }
}
