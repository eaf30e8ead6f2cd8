//! Pinned commits of an lsm: segments of the top, and partitions below.

use super::Lsm;
use super::cut::push_version;
use crate::error::Result;
use crate::storage::{Begun, Parts, StoragePins};

impl StoragePins for Lsm {
    fn begun(&self) -> Begun {
        let mut begun = self.top.begun();
        push_version(&mut begun.record, &self.bottom.snapshot().version().as_edit());
        begun
    }

    fn parts(&self) -> Parts {
        Parts { partitions: self.bottom.parts(), ..self.top.parts() }
    }

    fn blocks(&self, block_bytes: u64) -> Vec<(u64, u64)> {
        self.top.blocks(block_bytes)
    }

    fn pin(&mut self, pin: u64, parts: &Parts) -> Result<()> {
        self.top.pin(pin, parts)?;
        self.bottom.pin(pin, &parts.partitions);
        self.upkeep.note_event();
        Ok(())
    }

    fn unpin(&mut self, pin: u64) {
        self.top.unpin(pin);
        self.bottom.unpin(pin);
        self.upkeep.note_event();
    }

    fn bytes_of_pin(&self, parts: &Parts, others: &[&Parts]) -> u64 {
        self.top.bytes_of_pin(parts, others) + self.bottom.bytes_of_pin(parts, others)
    }
}
