//! The end of an epoch, and what the journal keeps of the storage.

use super::Lsm;
use super::bottom::{Edit, Version};
use crate::error::{Result, bail};
use crate::storage::need::journal_bytes_beside;
use crate::storage::{Cut, StorageJournal, Written};

/// Between the fillings of the top and the version in the record of a class.
const SEPARATOR: char = '.';

impl StorageJournal for Lsm {
    fn cut(&mut self, wants_record: bool) -> Result<Cut> {
        let mut cut = self.top.cut(wants_record)?;
        self.upkeep.note_event();
        let version = self.bottom.snapshot().version().as_edit();
        if let Some(record) = &mut cut.record {
            push_version(record, &version);
        }
        cut.index_bytes += self.tombstones.len() as u64 * 8 + version_bytes(&version);
        let Written { rows, rows_moved, pages } = cut.written;
        let merged = self.upkeep.merged;
        let (rows_moved, pages) = (rows_moved + merged.rows, pages + merged.pages);
        cut.written = Written { rows, rows_moved, pages };
        Ok(cut)
    }

    fn change_bytes(&self) -> usize {
        self.changes.bytes_with(self.top.change_bytes())
    }

    fn drain_changes(&mut self, into: &mut Vec<u8>) {
        let top = &mut self.top;
        self.changes.drain(into, |into| top.drain_changes(into));
    }

    fn write_out(&mut self) -> Result<()> {
        self.upkeep.note_event();
        self.top.write_out()
    }

    fn journal_bytes_for(&self, rows: u64) -> u64 {
        self.top.journal_bytes_for(rows) + journal_bytes_beside(self.facts.kind, rows)
    }

    fn changes_are_many(&self) -> bool {
        self.top.changes_are_many() || self.changes.are_many()
    }

    fn pieces(&self, table: u16) -> u32 {
        1 + self.top.pieces(table)
    }

    fn write_piece(&self, table: u16, piece: u32, out: &mut Vec<u8>) {
        match piece.checked_sub(1) {
            None => self.tombstones.write_piece(self.bottom.orders(), table, out),
            Some(piece) => self.top.write_piece(table, piece, out),
        }
    }
}

/// Bytes that a version takes in a record.
fn version_bytes(version: &Edit) -> u64 {
    let mut bytes = Vec::new();
    version.encode(&mut bytes);
    2 * bytes.len() as u64
}

/// Appends a version to the record that the top has given.
pub(super) fn push_version(record: &mut String, version: &Edit) {
    let mut bytes = Vec::new();
    version.encode(&mut bytes);
    record.push(SEPARATOR);
    record.extend(bytes.iter().flat_map(|byte| {
        [byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
    }));
}

/// The contents of a class's record: the fillings of the top, and the version.
pub(super) fn read_record(record: &str) -> Result<(&str, Version)> {
    let Some((fillings, digits)) = record.split_once(SEPARATOR) else {
        return Ok((record, Version::default()));
    };
    let value = |digit: u8| char::from(digit).to_digit(16).filter(|_| !digit.is_ascii_uppercase());
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some((value(*high)? << 4 | value(*low)?) as u8));
    let bytes: Option<Vec<u8>> = bytes.collect();
    let Some(bytes) = bytes.filter(|_| rest.is_empty()) else {
        bail!(Corrupt, "the version in the record of a class is not written in pairs of digits");
    };
    Ok((fillings, Version::default().replay(&Edit::decode(&bytes)?)?))
}
