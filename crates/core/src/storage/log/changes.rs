//! The effect of a log's deltas on rows, and sweeps of the slots that they name.

use super::ClassLog;
use super::delta::{Decoded, Delta, decode, id_of};
use super::sweep::PageSweep;
use crate::error::Result;
use crate::storage::{RowChange, SlotSet, StorageChanges, Sweep};

impl StorageChanges for ClassLog {
    fn read_changes(&self, bytes: &[u8], each: &mut dyn FnMut(RowChange)) -> Result<()> {
        let is_sparse = |table: u16| {
            let there = self.indexes().map(|(id, index)| (id, index.is_sparse()));
            let mut all = there.chain(self.dropped.iter().copied());
            all.find(|(id, _)| *id == table).map(|(_, is_sparse)| is_sparse)
        };
        decode(bytes, &is_sparse, &mut |decoded| {
            match decoded {
                Decoded::One(Delta::Row { table, key, slot, .. }) => {
                    each(RowChange::Written { table, key, slot });
                }
                Decoded::One(Delta::Delete { table, key, .. }) => {
                    each(RowChange::Removed { table, key });
                }
                Decoded::One(_) => {}
                Decoded::Dense { table, first, rows } => {
                    for (row, slot) in rows.iter().zip(first..) {
                        each(RowChange::Written { table, key: u64::from(id_of(row)), slot });
                    }
                }
            }
            Ok(())
        })
    }

    fn stored_slots(&self, table: u16) -> Option<SlotSet> {
        Some(SlotSet::of_bits(self.newest_copies(Some(table)).into_bits()))
    }

    fn sweep_slots(&mut self, table: u16, slots: &SlotSet) -> Result<Box<dyn Sweep>> {
        let ticket = self.segments.begin_read();
        Ok(Box::new(self.sweep_of(table, slots, ticket)))
    }
}

impl ClassLog {
    /// A sweep of the newest copies of a table that lie in these slots. `ticket` protects them.
    pub(crate) fn sweep_of(&self, table: u16, slots: &SlotSet, ticket: u64) -> PageSweep {
        let mut copies = self.newest_copies(Some(table));
        slots.retain_in(copies.bits_mut());
        self.page_sweep(Some(table), copies, ticket)
    }
}
