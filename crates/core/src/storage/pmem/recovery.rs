//! Recovery: the journal has the tables, the regions have the rows.

use super::place::Place;
use super::region::Region;
use super::{Pmem, no_folder};
use crate::error::{ErrorKind, Result, bail};
use crate::io::{File, Medium};
use crate::storage::{
    ClassFacts, Hearer, OpenAt, Storage, StorageRecovery, StorageRefresh, TableFacts, log,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The recovery of a storage in regions.
pub(crate) struct PmemRecovery {
    facts: ClassFacts,
    /// Names of tables.
    tables: BTreeMap<u16, String>,
    /// The growing ones of these tables.
    growing: BTreeSet<u16>,
    /// The position of the class before the last commit.
    began: Option<u64>,
    /// Regions that are open already.
    open: BTreeMap<u16, Option<Arc<Region>>>,
}

impl PmemRecovery {
    /// One without tables.
    pub(crate) fn new(facts: &ClassFacts, begun: &str) -> Result<Self> {
        if !begun.is_empty() {
            bail!(Corrupt, "class {} has no segments, and its record has fillings", facts.class);
        }
        let (tables, growing, open) = Default::default();
        Ok(Self { facts: *facts, tables, growing, began: None, open })
    }
}

impl StorageRefresh for Pmem {
    /// Regions that are open are those of the next commit, too.
    fn go_on(&self, tables: &[TableFacts<'_>], _: u64, _: u64) -> Result<Box<dyn StorageRecovery>> {
        let mut next = PmemRecovery::new(&self.facts, "")?;
        tables.iter().try_for_each(|table| next.table(table))?;
        next.open = self.tables.clone();
        Ok(Box::new(next))
    }

    fn copy_more(&self, _: &mut dyn StorageRecovery) -> bool {
        false
    }
}

impl StorageRecovery for PmemRecovery {
    fn table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        self.tables.insert(facts.table, facts.name.to_owned());
        if facts.num_embeddings.is_none() {
            self.growing.insert(facts.table);
        }
        Ok(())
    }

    fn drop_table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        self.tables.remove(&facts.table);
        self.growing.remove(&facts.table);
        self.open.remove(&facts.table);
        Ok(())
    }

    fn grow_table(&mut self, _: u16, _: u64) -> Result<()> {
        Ok(())
    }

    fn piece(&mut self, table: u16, piece: u32, _: &[u8]) -> Result<()> {
        bail!(Corrupt, "piece {piece} of table {table}, whose rows are in a region without pieces")
    }

    fn changes(&mut self, bytes: &[u8], _: Hearer<'_>) -> Result<()> {
        let (bytes, class) = (bytes.len(), self.facts.class);
        bail!(Corrupt, "{bytes} bytes of changes of class {class}, whose rows are in regions")
    }

    fn commit(&mut self, _: u64, began: Option<u64>) {
        self.began = began;
    }

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
        // Before regions were told of commits, the position stayed the same from one to the next.
        let tells = self.began.is_some_and(|began| began < at.position);
        let known = if tells { at.commit } else { 0 };
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
                    match Region::open(&place, self.facts.row_bytes, writes, known) {
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
        storage.growing = self.growing;
        storage.commit = at.commit;
        Ok(Box::new(storage))
    }
}
