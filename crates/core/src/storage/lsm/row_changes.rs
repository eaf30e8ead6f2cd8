//! The effect of an `lsm`'s changes on rows. Rows that left the top may be in the bottom.

use super::Lsm;
use super::changes::{Block, read};
use crate::error::Result;
use crate::storage::{RowChange, SlotSet, StorageChanges, StorageRead, Sweep};

impl StorageChanges for Lsm {
    fn read_changes(&self, bytes: &[u8], each: &mut dyn FnMut(RowChange)) -> Result<()> {
        read(bytes, &mut |block| match block {
            Block::Deltas(deltas) => self.top.read_changes(deltas, each),
            Block::Set { table, key } => {
                each(RowChange::Deleted { table, key });
                Ok(())
            }
            Block::Edit(_) | Block::Dropped { .. } => Ok(()),
        })
    }

    fn sweep_slots(&mut self, table: u16, slots: &SlotSet) -> Result<Box<dyn Sweep>> {
        let ticket = self.begin_read();
        Ok(Box::new(self.top.sweep_of(table, slots, ticket)))
    }

    fn has_rows_below(&self) -> bool {
        true
    }
}
