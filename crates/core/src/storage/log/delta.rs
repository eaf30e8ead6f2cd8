//! Index changes as bytes: what the journal keeps so that the index can be rebuilt without
//! reading a row page.
//!
//! Format: `docs/formats/journal.md`, "deltas". Entries are in the order in which the index
//! changed; replaying them in that order gives the same index. An old slot is kept for growing
//! tables, because their index holds no key to find an entry by.

use crate::error::{Result, bail};

const ROWS: u8 = 1;
const DELETE: u8 = 2;
const REFRESH: u8 = 3;
const SPLIT: u8 = 4;
const MERGE: u8 = 5;

/// One change of one table's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delta {
    /// `key` is now stored at `slot`; a growing table had it at `old` (0: not stored).
    Row {
        /// The table.
        table: u16,
        /// The key.
        key: u64,
        /// Slot of the copy before, 0 when there was none or the table is dense.
        old: u32,
        /// Slot of the new copy.
        slot: u32,
    },
    /// `key` is no longer stored; a growing table had it at `old`.
    Delete {
        /// The table.
        table: u16,
        /// The key.
        key: u64,
        /// Slot of its copy; read back as 0 when the table is dense.
        old: u32,
    },
    /// The entry of `slot` was given all tag bits of `key` again.
    Refresh {
        /// The table.
        table: u16,
        /// The key.
        key: u64,
        /// Slot of its copy.
        slot: u32,
    },
    /// One partition was split.
    Split {
        /// The table.
        table: u16,
    },
    /// The last partition was merged with the one it came from.
    Merge {
        /// The table.
        table: u16,
    },
}

/// Encodes deltas; consecutive slots share a header.
#[derive(Debug, Default)]
pub(super) struct DeltaWriter {
    bytes: Vec<u8>,
    /// The place of the open run's count, and the slot that continues it.
    run: Option<(usize, u32)>,
}

impl DeltaWriter {
    /// Bytes encoded so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Makes room for so many bytes at once, and gives back what is more, so that the bytes
    /// allocated do not jump later.
    pub(super) fn resize(&mut self, bytes: usize) {
        self.bytes.shrink_to(bytes);
        self.bytes.reserve_exact(bytes.saturating_sub(self.bytes.len()));
    }

    /// Takes what was encoded, keeping the allocation for the next deltas.
    pub(super) fn drain(&mut self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.bytes);
        self.bytes.clear();
        self.run = None;
    }

    /// Allocated bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Adds one change. `sparse` tells whether the table is a growing one.
    pub(super) fn push(&mut self, delta: Delta, sparse: bool) {
        match delta {
            Delta::Row { table, key, old, slot } => {
                self.extend_run(slot);
                self.bytes.extend_from_slice(&table.to_le_bytes());
                self.key(key, old, sparse);
            }
            Delta::Delete { table, key, old } => {
                self.head(DELETE, table);
                self.key(key, old, sparse);
            }
            Delta::Refresh { table, key, slot } => {
                self.head(REFRESH, table);
                self.key(key, slot, true);
            }
            Delta::Split { table } => self.head(SPLIT, table),
            Delta::Merge { table } => self.head(MERGE, table),
        }
    }

    fn extend_run(&mut self, slot: u32) {
        if let Some((at, next)) = self.run {
            let count = u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]);
            if next == slot && count < u16::MAX {
                self.bytes[at..at + 2].copy_from_slice(&(count + 1).to_le_bytes());
                self.run = Some((at, slot + 1));
                return;
            }
        }
        self.bytes.push(ROWS);
        self.bytes.extend_from_slice(&slot.to_le_bytes());
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&1u16.to_le_bytes());
        self.run = Some((at, slot + 1));
    }

    fn head(&mut self, kind: u8, table: u16) {
        self.run = None;
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&table.to_le_bytes());
    }

    fn key(&mut self, key: u64, old: u32, sparse: bool) {
        if sparse {
            self.bytes.extend_from_slice(&key.to_le_bytes());
            self.bytes.extend_from_slice(&old.to_le_bytes());
        } else {
            self.bytes.extend_from_slice(&(key as u32).to_le_bytes());
        }
    }
}

/// A row of a dense table as it is encoded: the table, then the id.
pub(super) type DenseRow = [u8; 6];

/// The id of an encoded row.
#[inline]
pub(super) fn id_of(row: &DenseRow) -> u32 {
    u32::from_le_bytes([row[2], row[3], row[4], row[5]])
}

/// The items that [`decode`] hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoded<'a> {
    /// A change other than a row of a dense table.
    One(Delta),
    /// Rows of one dense table, now stored at `first` and the slots behind it.
    Dense {
        /// The table.
        table: u16,
        /// Slot of the first row.
        first: u32,
        /// The rows, at least one.
        rows: &'a [DenseRow],
    },
}

/// Decodes what [`DeltaWriter`] wrote. `sparse(table)` tells a growing table from a dense one,
/// `None` an unknown table, which is an error, like anything else that was not written so.
pub(super) fn decode<'a>(
    mut bytes: &'a [u8],
    sparse: &dyn Fn(u16) -> Option<bool>,
    each: &mut dyn FnMut(Decoded<'a>) -> Result<()>,
) -> Result<()> {
    while let Some((&kind, rest)) = bytes.split_first() {
        bytes = rest;
        match kind {
            ROWS => {
                let first = u32::from_le_bytes(take(&mut bytes)?);
                let count = u16::from_le_bytes(take(&mut bytes)?);
                if first == 0 || first.checked_add(u32::from(count)).is_none() {
                    bail!(Corrupt, "a delta run of {count} rows begins at slot {first}");
                }
                let (mut slot, end) = (first, first + u32::from(count));
                while slot < end {
                    let table = u16::from_le_bytes(take(&mut { bytes })?);
                    if known(table, sparse)? {
                        bytes = &bytes[2..];
                        let (key, old) = key(&mut bytes, true)?;
                        each(Decoded::One(Delta::Row { table, key, old, slot }))?;
                        slot += 1;
                        continue;
                    }
                    let rows = same_table(bytes, table, (end - slot) as usize)?;
                    each(Decoded::Dense { table, first: slot, rows })?;
                    bytes = &bytes[rows.as_flattened().len()..];
                    slot += rows.len() as u32;
                }
            }
            DELETE | REFRESH | SPLIT | MERGE => {
                let table = u16::from_le_bytes(take(&mut bytes)?);
                let is_sparse = known(table, sparse)?;
                if kind == SPLIT {
                    each(Decoded::One(Delta::Split { table }))?;
                } else if kind == MERGE {
                    each(Decoded::One(Delta::Merge { table }))?;
                } else if kind == DELETE {
                    let (key, old) = key(&mut bytes, is_sparse)?;
                    each(Decoded::One(Delta::Delete { table, key, old }))?;
                } else {
                    let (key, slot) = key(&mut bytes, true)?;
                    each(Decoded::One(Delta::Refresh { table, key, slot }))?;
                }
            }
            kind => bail!(Corrupt, "a delta has kind {kind}, expected 1 to 5"),
        }
    }
    Ok(())
}

/// The encoded rows of `table` that `bytes` begins with, at most `most`.
fn same_table(bytes: &[u8], table: u16, most: usize) -> Result<&[DenseRow]> {
    let (rows, _) = bytes.as_chunks();
    let rows: &[DenseRow] = &rows[..rows.len().min(most)];
    let same = |row: &&DenseRow| row[..2] == table.to_le_bytes();
    let count = rows.iter().take_while(same).count();
    if count == 0 {
        bail!(Corrupt, "a delta ends after {} bytes of {}", bytes.len(), size_of::<DenseRow>());
    }
    Ok(&rows[..count])
}

fn known(table: u16, sparse: &dyn Fn(u16) -> Option<bool>) -> Result<bool> {
    match sparse(table) {
        Some(sparse) => Ok(sparse),
        None => bail!(Corrupt, "a delta names table {table}, which does not exist"),
    }
}

fn key(bytes: &mut &[u8], sparse: bool) -> Result<(u64, u32)> {
    if sparse {
        let key = u64::from_le_bytes(take(bytes)?);
        Ok((key, u32::from_le_bytes(take(bytes)?)))
    } else {
        Ok((u64::from(u32::from_le_bytes(take(bytes)?)), 0))
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N]> {
    let Some((head, rest)) = bytes.split_first_chunk::<N>() else {
        bail!(Corrupt, "a delta ends after {} bytes of {N}", bytes.len());
    };
    *bytes = rest;
    Ok(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_sparse(table: u16) -> Option<bool> {
        (table < 4).then_some(table % 2 == 1)
    }

    #[test]
    fn deltas_come_back_in_order() {
        let deltas = [
            Delta::Row { table: 0, key: 5, old: 0, slot: 100 },
            Delta::Row { table: 1, key: u64::MAX, old: 9, slot: 101 },
            Delta::Row { table: 0, key: 6, old: 0, slot: 300 },
            Delta::Row { table: 0, key: 8, old: 0, slot: 301 },
            Delta::Row { table: 2, key: 8, old: 0, slot: 302 },
            Delta::Row { table: 2, key: u64::from(u32::MAX), old: 0, slot: 303 },
            Delta::Row { table: 1, key: 8, old: 3, slot: 304 },
            Delta::Row { table: 0, key: 9, old: 0, slot: 305 },
            Delta::Delete { table: 1, key: 0, old: 44 },
            Delta::Row { table: 0, key: 7, old: 0, slot: 301 },
            Delta::Refresh { table: 3, key: 1 << 63, slot: 77 },
            Delta::Split { table: 3 },
            Delta::Merge { table: 3 },
            Delta::Delete { table: 2, key: 8, old: 0 },
        ];
        let mut writer = DeltaWriter::default();
        for delta in deltas {
            writer.push(
                delta,
                is_sparse(match delta {
                    Delta::Row { table, .. }
                    | Delta::Delete { table, .. }
                    | Delta::Refresh { table, .. }
                    | Delta::Split { table }
                    | Delta::Merge { table } => table,
                })
                .unwrap(),
            );
        }
        let mut bytes = Vec::new();
        writer.drain(&mut bytes);
        let mut seen = Vec::new();
        decode(&bytes, &is_sparse, &mut |decoded| {
            match decoded {
                Decoded::One(delta) => seen.push(delta),
                Decoded::Dense { table, first, rows } => {
                    seen.extend(rows.iter().zip(first..).map(|(row, slot)| Delta::Row {
                        table,
                        key: u64::from(id_of(row)),
                        old: 0,
                        slot,
                    }));
                }
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, deltas);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let mut state = 1u64;
        for round in 0..20_000u64 {
            let bytes: Vec<u8> = (0..round % 40)
                .map(|_| {
                    state = crate::hash::mix(state.wrapping_add(round), 3);
                    if state.is_multiple_of(3) { (state % 5) as u8 } else { (state >> 8) as u8 }
                })
                .collect();
            let _ = decode(&bytes, &is_sparse, &mut |_| Ok(()));
        }
    }

    #[test]
    fn consecutive_dense_rows_take_six_bytes_each() {
        let mut writer = DeltaWriter::default();
        for i in 0..1000 {
            writer.push(Delta::Row { table: 0, key: i, old: 0, slot: 50 + i as u32 }, false);
        }
        assert!(writer.len() < 6010, "{}", writer.len());
    }
}
