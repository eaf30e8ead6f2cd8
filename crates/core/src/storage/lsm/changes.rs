//! Changes of an `lsm` storage as bytes for the journal: blocks of a kind.
//!
//! Format: `docs/formats/journal.md`, "changes of an `lsm`". Deltas concern the index of the top,
//! edits the version, tombstones their own set: so only the order within a kind matters.

use super::bottom::Edit;
use crate::error::{Result, bail};

const DELTAS: u8 = 0;
const EDIT: u8 = 1;
const TOMBSTONES: u8 = 2;
/// Kind and length of a block.
const HEAD_BYTES: usize = 5;
/// The kind of change of a key, its table, the key.
const TOMBSTONE_BYTES: usize = 11;
const SET: u8 = 1;
const DROPPED: u8 = 2;

/// Changes that wait for the journal, beside the deltas of the top.
#[derive(Debug, Default)]
pub(super) struct Changes {
    edits: Vec<u8>,
    tombstones: Vec<u8>,
    /// They are handed to the journal when they are this long; at once before a plan.
    portion_bytes: usize,
}

/// The contents of a block.
#[derive(Debug)]
pub(super) enum Block<'a> {
    /// Deltas of the top.
    Deltas(&'a [u8]),
    /// A merge has replaced partitions.
    Edit(Edit),
    /// The key was deleted.
    Set { table: u16, key: u64 },
    /// The key has a row in the top, or none in the bottom.
    Dropped { table: u16, key: u64 },
}

impl Changes {
    /// Takes the bytes of a portion of a plan of the budget, and gives back what there is more.
    pub(super) fn equip(&mut self, portion_bytes: usize) {
        self.portion_bytes = portion_bytes;
        self.edits.shrink_to(portion_bytes);
        self.tombstones.shrink_to(portion_bytes);
    }

    /// Whether they are to be handed to the journal.
    pub(super) fn are_many(&self) -> bool {
        self.bytes_with(0) >= self.portion_bytes
    }

    /// Bytes that `drain` will give, beside so many bytes of deltas.
    pub(super) fn bytes_with(&self, deltas: usize) -> usize {
        let block = |bytes: usize| if bytes > 0 { HEAD_BYTES + bytes } else { 0 };
        block(deltas) + self.edits.len() + block(self.tombstones.len())
    }

    /// Allocated bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.edits.capacity() + self.tombstones.capacity()
    }

    /// Notes an edit.
    pub(super) fn edit(&mut self, edit: &Edit) {
        begin(&mut self.edits, EDIT);
        let begun = self.edits.len();
        edit.encode(&mut self.edits);
        end(&mut self.edits, begun);
    }

    /// Notes a tombstone.
    pub(super) fn tombstone_set(&mut self, table: u16, key: u64) {
        self.tombstone(SET, table, key);
    }

    /// Notes that a tombstone is no more.
    pub(super) fn tombstone_dropped(&mut self, table: u16, key: u64) {
        self.tombstone(DROPPED, table, key);
    }

    fn tombstone(&mut self, became: u8, table: u16, key: u64) {
        self.tombstones.push(became);
        self.tombstones.extend_from_slice(&table.to_le_bytes());
        self.tombstones.extend_from_slice(&key.to_le_bytes());
    }

    /// Takes all that waits; `deltas` appends those of the top.
    pub(super) fn drain(&mut self, into: &mut Vec<u8>, deltas: impl FnOnce(&mut Vec<u8>)) {
        begin(into, DELTAS);
        let begun = into.len();
        deltas(into);
        match into.len() == begun {
            true => into.truncate(begun - HEAD_BYTES),
            false => end(into, begun),
        }
        into.append(&mut self.edits);
        if !self.tombstones.is_empty() {
            begin(into, TOMBSTONES);
            let begun = into.len();
            into.append(&mut self.tombstones);
            end(into, begun);
        }
    }
}

fn begin(bytes: &mut Vec<u8>, kind: u8) {
    bytes.push(kind);
    bytes.extend_from_slice(&[0; 4]);
}

/// Writes the length of the block whose content begins at `begun`.
fn end(bytes: &mut [u8], begun: usize) {
    let length = (bytes.len() - begun) as u32;
    bytes[begun - 4..begun].copy_from_slice(&length.to_le_bytes());
}

/// Reads what `drain` wrote; `Corrupt` for anything else.
pub(super) fn read(mut bytes: &[u8], each: &mut dyn FnMut(Block<'_>) -> Result<()>) -> Result<()> {
    while !bytes.is_empty() {
        let Some(([kind, length @ ..], rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            bail!(Corrupt, "a block of changes begins with {} bytes", bytes.len());
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some((content, rest)) = rest.split_at_checked(length) else {
            bail!(Corrupt, "a block of {length} bytes has {} behind its head", rest.len());
        };
        bytes = rest;
        match *kind {
            DELTAS => each(Block::Deltas(content))?,
            EDIT => each(Block::Edit(Edit::decode(content)?))?,
            TOMBSTONES => tombstones(content, each)?,
            kind => bail!(Corrupt, "a block of changes is of kind {kind}, expected 0 to 2"),
        }
    }
    Ok(())
}

fn tombstones(bytes: &[u8], each: &mut dyn FnMut(Block<'_>) -> Result<()>) -> Result<()> {
    let (entries, rest) = bytes.as_chunks::<TOMBSTONE_BYTES>();
    if !rest.is_empty() {
        bail!(Corrupt, "a block of tombstones has {} bytes", bytes.len());
    }
    for [became, table_low, table_high, key @ ..] in entries {
        let table = u16::from_le_bytes([*table_low, *table_high]);
        let key = u64::from_le_bytes(*key);
        match *became {
            SET => each(Block::Set { table, key })?,
            DROPPED => each(Block::Dropped { table, key })?,
            other => bail!(Corrupt, "a tombstone is marked {other}, expected 1 or 2"),
        }
    }
    Ok(())
}
