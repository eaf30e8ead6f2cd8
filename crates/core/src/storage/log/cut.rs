//! The end of an epoch: what was written belongs to a commit, and what comes later to the next.

use super::demand::JOURNAL_BYTES_PER_ROW;
use super::{ClassLog, fillings};
use crate::error::Result;
use crate::storage::{Cut, StorageBudget, StorageJournal};
use std::sync::Arc;

impl StorageJournal for ClassLog {
    fn cut(&mut self, wants_record: bool) -> Result<Cut> {
        let began = self.began_for_readers();
        let open = self.writer.finish(&mut self.segments)?;
        let written = self.written();
        let unsynced = (self.pages_synced != written.pages).then(|| Arc::clone(self.file()));
        self.pages_synced = written.pages;
        self.segments.next_epoch(&open);
        self.epoch_began = self.writer.sequence();
        self.note_epoch();
        let record = wants_record.then(|| fillings::encode(self.segments.firsts()));
        let record_bytes = match &record {
            Some(record) => record.len() as u64,
            None => fillings::encoded_bytes(self.segments.firsts()),
        };
        Ok(Cut {
            unsynced,
            began,
            position: self.epoch_began,
            // In a piece a slot number has 32 bits, however few it has in memory.
            index_bytes: self.table_bytes() + self.bytes_of_widest() + record_bytes,
            record,
            partitions: self.partitions().collect(),
            written,
        })
    }

    fn change_bytes(&self) -> usize {
        self.deltas.len()
    }

    fn drain_changes(&mut self, into: &mut Vec<u8>) {
        self.deltas.drain(into);
    }

    fn write_out(&mut self) -> Result<()> {
        self.writer.finish(&mut self.segments).map(drop)
    }

    fn journal_bytes_for(&self, rows: u64) -> u64 {
        rows * JOURNAL_BYTES_PER_ROW
    }

    fn changes_are_many(&self) -> bool {
        self.deltas.len() >= self.portion_bytes
    }

    fn pieces(&self, table: u16) -> u32 {
        self.index(table).pieces()
    }

    fn write_piece(&self, table: u16, piece: u32, out: &mut Vec<u8>) {
        self.index(table).write_piece(piece, out);
    }
}

impl ClassLog {
    /// The page from which readers of the journal count the pages of the epoch. They assume that
    /// all but two of the pages begun are sealed, which holds for the streams alone, so this is
    /// earlier by the number of append points for stretches. `None` in the first epoch of a log
    /// that has fewer pages before it.
    fn began_for_readers(&mut self) -> Option<u64> {
        let open = self.stretches_open();
        let most = std::mem::replace(&mut self.stretches_most, open);
        self.epoch_began.checked_sub(most)
    }
}
