//! Recovery of a map: rows come back from pieces and changes, in the order of the journal.

use super::{DELETE, MapStorage, MapTable, PIECES, ROW, Tables, piece_of};
use crate::error::{Result, bail};
use crate::io::{File, Medium};
use crate::storage::{
    ClassFacts, Hearer, OpenAt, Storage, StorageRecovery, StorageRefresh, TableFacts,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The recovery of a map.
pub(in crate::storage) fn recovery(
    facts: &ClassFacts,
    begun: &str,
    _: u64,
    _: u64,
) -> Result<Box<dyn StorageRecovery>> {
    assert!(begun.is_empty(), "a map has no record");
    Ok(Box::new(MapRecovery { facts: *facts, tables: Tables::new(), missing: BTreeMap::new() }))
}

impl StorageRefresh for MapStorage {
    fn go_on(&self, _: &[TableFacts<'_>], _: u64, _: u64) -> Result<Box<dyn StorageRecovery>> {
        let tables = self.tables.clone();
        Ok(Box::new(MapRecovery { facts: self.facts, tables, missing: BTreeMap::new() }))
    }

    fn copy_more(&self, _: &mut dyn StorageRecovery) -> bool {
        false
    }
}

/// A map while the journal is replayed.
struct MapRecovery {
    facts: ClassFacts,
    tables: Tables,
    /// Pieces that have not come, by table.
    missing: BTreeMap<u16, BTreeSet<u32>>,
}

impl MapRecovery {
    fn table_mut(&mut self, table: u16) -> Result<&mut MapTable> {
        match self.tables.get_mut(&table) {
            Some(table) => Ok(table),
            None => bail!(Corrupt, "a row of table {table}, which does not exist"),
        }
    }
}

impl StorageRecovery for MapRecovery {
    fn table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        self.tables.insert(facts.table, MapTable::default());
        if !facts.born {
            self.missing.insert(facts.table, (0..PIECES).collect());
        }
        Ok(())
    }

    fn drop_table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        self.tables.remove(&facts.table);
        self.missing.remove(&facts.table);
        Ok(())
    }

    fn grow_table(&mut self, _: u16, _: u64) -> Result<()> {
        Ok(())
    }

    fn piece(&mut self, table: u16, piece: u32, mut bytes: &[u8]) -> Result<()> {
        let row_bytes = self.facts.row_bytes;
        let found = self.table_mut(table)?;
        found.rows.retain(|key, _| piece_of(*key) != piece);
        while !bytes.is_empty() {
            let (key, words) = take_row(&mut bytes, row_bytes)?;
            found.put(key, &words);
        }
        if let Some(missing) = self.missing.get_mut(&table) {
            missing.remove(&piece);
        }
        Ok(())
    }

    fn changes(&mut self, mut bytes: &[u8], mut changed: Hearer<'_>) -> Result<()> {
        while !bytes.is_empty() {
            let [kind, low, high] = take(&mut bytes)?;
            let table = u16::from_le_bytes([low, high]);
            let key = match kind {
                ROW => {
                    let (key, words) = take_row(&mut bytes, self.facts.row_bytes)?;
                    self.table_mut(table)?.put(key, &words);
                    key
                }
                DELETE => {
                    let key = u64::from_le_bytes(take(&mut bytes)?);
                    self.table_mut(table)?.rows.remove(&key);
                    key
                }
                kind => bail!(Corrupt, "a change has kind {kind}, expected {ROW} or {DELETE}"),
            };
            if let Some(changed) = &mut changed {
                changed(table, key);
            }
        }
        Ok(())
    }

    fn commit(&mut self, _: u64, _: Option<u64>) {}

    fn check_complete(&self) -> Result<()> {
        if let Some((table, _)) = self.missing.iter().find(|(_, pieces)| !pieces.is_empty()) {
            bail!(Corrupt, "pieces of table {table} are missing");
        }
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        at: &OpenAt,
        file: Arc<dyn File>,
        _: &Arc<dyn Medium>,
    ) -> Result<Box<dyn Storage>> {
        self.check_complete()?;
        let position = at.position.max(at.write_after.unwrap_or(0));
        Ok(Box::new(MapStorage::new(self.facts, file, self.tables, position)?))
    }
}

fn take_row(bytes: &mut &[u8], row_bytes: usize) -> Result<(u64, Vec<f32>)> {
    let key = u64::from_le_bytes(take(bytes)?);
    let Some((words, rest)) = bytes.split_at_checked(row_bytes) else {
        bail!(Corrupt, "a row ends after {} bytes of {row_bytes}", bytes.len());
    };
    *bytes = rest;
    let word = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    Ok((key, words.as_chunks().0.iter().map(word).collect()))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N]> {
    let Some((head, rest)) = bytes.split_first_chunk::<N>() else {
        bail!(Corrupt, "a change ends after {} bytes of {N}", bytes.len());
    };
    *bytes = rest;
    Ok(*head)
}
