//! The file of a pinned commit: a journal that holds its whole index and its record.

use crate::config::StoreOptions;
use crate::error::{Result, bail};
use crate::storage::{Begun, Parts};
use crate::store::files::pins::{NAME, Pinned, Pins};
use crate::store::journal::{
    ClassRecord, CommitRecord, JournalFile, RecordKind, TableRecord, VERSION_OF_PINS, name_of,
    piece_header, pin_number,
};
use crate::store::{Inner, Store, has_file};
use serde::Serialize;

impl Inner {
    /// Writes the file of a commit that is kept, durably; the commit is held until the reader that
    /// comes with it is dropped.
    pub(super) fn write_pin(&self, sequence: u64) -> Result<(Pinned, Store)> {
        let options = StoreOptions {
            read_only: true,
            create: false,
            step: None,
            pin: None,
            ..self.options.clone()
        };
        let reader = Store::open_commit(&self.medium, &self.path, &options, sequence)?;
        if !has_file(&*self.medium, NAME)? {
            // Before the first file that it explains.
            self.write_pins(&Pins::default())?;
        }
        let written = self.write_pin_of(&reader, sequence);
        if written.is_err() {
            self.remove_pin_file(sequence);
        }
        let mut history = self.history.lock();
        history.pins_bytes = super::pins_bytes(&*self.medium)?;
        drop(history);
        Ok((written?, reader))
    }

    fn write_pin_of(&self, reader: &Store, sequence: u64) -> Result<Pinned> {
        let engine = reader.inner.engine.read();
        let last = reader.inner.history.lock().kept.last().cloned();
        let Some(record) = last.filter(|record| record.info.sequence == sequence) else {
            bail!(CommitGone, "commit {sequence} went while it was pinned; try again");
        };
        let number = pin_number(sequence);
        self.remove_if_there(&name_of(number))?;
        self.take_for_pin(JournalFile::bytes_for(0))?;
        let medium = &*self.medium;
        let version = engine.catalog_version().max(VERSION_OF_PINS);
        let mut file = JournalFile::create(medium, self.seed, number, version)?;
        let begun: Vec<Begun> =
            engine.classes.iter().map(|class| class.log.lock().begun()).collect();
        for (class, begun) in engine.classes.iter().zip(&begun) {
            let record = ClassRecord { fillings: begun.record.clone(), ..class.record.clone() };
            self.append_json_to_pin(&mut file, RecordKind::Class, &record)?;
        }
        for record in engine.table_records() {
            let mut record = TableRecord { born: false, ..record.clone() };
            if !record.dropped {
                // Ids of classes are positions.
                let mut partitions = begun[usize::from(record.class)].partitions.iter();
                record.partitions = partitions.find(|(id, _)| *id == record.id).map(|(_, n)| *n);
            }
            self.append_json_to_pin(&mut file, RecordKind::Table, &record)?;
        }
        let mut payload = Vec::new();
        for table in &engine.tables {
            let log = engine.classes[table.class].log.lock();
            for piece in 0..log.pieces(table.id()) {
                payload.clear();
                payload.extend_from_slice(&piece_header(table.id(), piece));
                log.write_piece(table.id(), piece, &mut payload);
                self.append_to_pin(&mut file, RecordKind::Piece, &payload)?;
            }
        }
        self.append_to_pin(&mut file, RecordKind::CycleEnd, &[])?;
        let classes: Vec<Parts> =
            engine.classes.iter().map(|class| class.log.lock().parts()).collect();
        let record = CommitRecord { oldest_kept: sequence, gone_back: false, ..record };
        self.append_json_to_pin(&mut file, RecordKind::Commit, &record)?;
        file.give_back_unused()?;
        file.file().sync()?;
        medium.sync_dir()?;
        let (step, committed) = (record.info.step, record.info.unix_time);
        let end = file.position();
        Ok(Pinned { sequence, step, committed, names: Vec::new(), end, classes })
    }

    fn append_json_to_pin<T: Serialize>(
        &self,
        file: &mut JournalFile,
        kind: RecordKind,
        record: &T,
    ) -> Result<()> {
        let json = serde_json::to_vec(record).expect("records are plain data");
        self.append_to_pin(file, kind, &json)
    }

    fn append_to_pin(&self, file: &mut JournalFile, kind: RecordKind, bytes: &[u8]) -> Result<()> {
        self.take_for_pin(file.growth_for(JournalFile::record_bytes(bytes.len())))?;
        file.append(kind, bytes)
    }

    /// Makes sure that the disk bound allows so many bytes more for a pinned commit, and counts
    /// them. The room that verbs and commits leave for each other is not touched.
    fn take_for_pin(&self, growth: u64) -> Result<()> {
        if growth == 0 {
            return Ok(());
        }
        let history = &mut *self.history.lock();
        let spare = self.spare_bytes(history);
        if !self.fits(history, growth, spare)? {
            let used = self.used_bytes(history);
            bail!(
                Full,
                "the index of the commit to be pinned needs {growth} more bytes, beside {spare} \
                 that are kept for commits, and {used} are in use; raise max_disk_bytes"
            );
        }
        history.pins_bytes += growth;
        Ok(())
    }
}
