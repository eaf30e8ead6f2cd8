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

    fn blocks(&self, block_bytes: u64) -> Vec<(u64, u64)> {
        let pages_per_block = (block_bytes / self.layout().page_bytes as u64).max(1) as u32;
        let slots_per_block = pages_per_block.saturating_mul(self.layout().rows_per_page as u32);
        let slots = u64::from(self.segments.count()) * self.rows_per_segment();
        let mut has_rows = vec![false; (slots / u64::from(slots_per_block)) as usize + 1];
        for (_, index) in &self.tables {
            index.slots().for_each(|slot| has_rows[(slot / slots_per_block) as usize] = true);
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (block, _) in (0u64..).zip(has_rows).filter(|(_, has)| *has) {
            let at = block * block_bytes;
            match ranges.last_mut() {
                Some((first, length)) if *first + *length == at => *length += block_bytes,
                _ => ranges.push((at, block_bytes)),
            }
        }
        ranges
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
