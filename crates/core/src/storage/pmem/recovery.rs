//! Recovery: the journal has the tables, the regions have the rows.

use super::place::Place;
use super::region::Region;
use super::{Pmem, no_folder};
use crate::error::{ErrorKind, Result, bail};
use crate::io::{File, Medium};
use crate::storage::{
    ClassFacts, Hearer, OpenAt, Storage, StorageRecovery, StorageRefresh, TableFacts, log,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What becomes a storage in regions.
pub struct PmemRecovery {
    facts: ClassFacts,
    /// Names of tables.
    tables: BTreeMap<u16, String>,
    /// Regions that are open already.
    open: BTreeMap<u16, Option<Arc<Region>>>,
}

impl PmemRecovery {
    /// One without tables.
    pub fn new(facts: &ClassFacts, begun: &str) -> Result<Self> {
        if !begun.is_empty() {
            bail!(Corrupt, "class {} has no segments, and its record has fillings", facts.class);
        }
        Ok(Self { facts: *facts, tables: BTreeMap::new(), open: BTreeMap::new() })
    }
}

impl StorageRefresh for Pmem {
    /// Regions that are open are those of the next commit, too.
    fn go_on(&self, tables: &[TableFacts<'_>], _: u64, _: u64) -> Result<Box<dyn StorageRecovery>> {
        let names = tables.iter().map(|table| (table.table, table.name.to_owned())).collect();
        let open = self.tables.clone();
        Ok(Box::new(PmemRecovery { facts: self.facts, tables: names, open }))
    }

    fn copy_more(&self, _: &mut dyn StorageRecovery) -> bool {
        false
    }
}

impl StorageRecovery for PmemRecovery {
    fn table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        self.tables.insert(facts.table, facts.name.to_owned());
        Ok(())
    }

    fn piece(&mut self, table: u16, piece: u32, _: &[u8]) -> Result<()> {
        bail!(Corrupt, "piece {piece} of table {table}, whose rows are in a region without pieces")
    }

    fn changes(&mut self, bytes: &[u8], _: Hearer<'_>) -> Result<()> {
        let (bytes, class) = (bytes.len(), self.facts.class);
        bail!(Corrupt, "{bytes} bytes of changes of class {class}, whose rows are in regions")
    }

    fn commit(&mut self, _: u64, _: Option<u64>) {}

    fn check_complete(&self) -> Result<()> {
        Ok(())
    }

    fn finish(
        mut self: Box<Self>,
        at: &OpenAt,
        file: Arc<dyn File>,
        medium: &Arc<dyn Medium>,
    ) -> Result<Box<dyn Storage>> {
        log::check_header(&*file, &self.facts)?;
        let writes = at.write_after.is_some();
        let mut tables = std::mem::take(&mut self.open);
        let mut is_locked = false;
        for (table, name) in &self.tables {
            if tables.contains_key(table) {
                continue;
            }
            // Rows of regions are newer than any commit but the last.
            let region = match at.is_newest {
                false => None,
                true => {
                    let folders = &medium.regions().ok_or_else(no_folder)?;
                    let place = Place { folders, seed: self.facts.seed, table: *table, name };
                    match Region::open(&place, self.facts.row_bytes, writes) {
                        // A reader beside a writer has the other tables.
                        Err(error)
                            if !writes
                                && (error.kind() == ErrorKind::Locked || error.is_refusal()) =>
                        {
                            is_locked = true;
                            None
                        }
                        opened => Some(opened?),
                    }
                }
            };
            tables.insert(*table, region);
        }
        let position = at.position.max(at.write_after.unwrap_or(0));
        let mut storage = Pmem::new(self.facts, file, medium, tables, position);
        storage.is_locked = is_locked;
        Ok(Box::new(storage))
    }
}
