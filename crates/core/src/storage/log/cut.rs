//! The end of an epoch: what was written belongs to a commit, and what comes later to the next.

use super::{ClassLog, TableIndex, fillings};
use crate::error::Result;
use crate::storage::Cut;
use std::sync::Arc;

impl ClassLog {
    /// Gives everything to the device; the next epoch begins. With `wants_record` it is said, too,
    /// what a journal file that begins with the commit has to know.
    pub fn cut(&mut self, wants_record: bool) -> Result<Cut> {
        let began = self.epoch_began;
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
        let partitions = |(table, index): &(u16, TableIndex)| match index {
            TableIndex::Sparse(index, _) => Some((*table, index.partitions())),
            TableIndex::Dense(_) => None,
        };
        Ok(Cut {
            unsynced,
            began,
            position: self.epoch_began,
            index_bytes: self.table_bytes() + record_bytes,
            record,
            partitions: self.tables.iter().filter_map(partitions).collect(),
            written,
        })
    }
}
