//! The end of an epoch: what was written belongs to a commit, and what comes later to the next.

use super::demand::JOURNAL_BYTES_PER_ROW;
use super::writer::OpenSegments;
use super::{ClassLog, fillings};
use crate::error::Result;
use crate::storage::{Cut, StorageJournal};
use std::sync::Arc;

impl StorageJournal for ClassLog {
    fn cut(&mut self, wants_record: bool) -> Result<Cut> {
        let began = self.epoch_began;
        let open = self.writer.finish(&mut self.segments)?;
        // The epoch that begins counts from the newest of them.
        self.writer.take_partial();
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
            index_bytes: self.table_bytes() + record_bytes,
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
        self.seal_pages().map(drop)
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
    /// Gives everything to the device in the middle of an epoch, and says in the deltas how many
    /// pages were not full. Returns where the segments being filled go on.
    pub(super) fn seal_pages(&mut self) -> Result<OpenSegments> {
        let open = self.writer.finish(&mut self.segments)?;
        self.deltas.push_sealed(self.writer.take_partial());
        Ok(open)
    }
}
