//! Recovery: builds the storage of one row class from its records in the journal.
//!
//! The top is recovered as a log is. The record of the class has the version that a journal file
//! begins with, edits follow. The epoch in which an edit removed a file tells whether a kept commit
//! needs it.

use super::Lsm;
use super::bottom::{Bottom, Edit, Numbered, Orders, Partition, Retired, Shape, Version};
use super::changes::{Block, read};
use super::create::{facts_above, order_of};
use super::cut::read_record;
use super::merge_room::MergeRoom;
use super::tombstones::Tombstones;
use crate::error::{Result, bail};
use crate::io::{File, Medium};
use crate::storage::log::LogRecovery;
use crate::storage::{
    ClassFacts, Hearer, OpenAt, Storage, StorageRecovery, StorageRefresh, TableFacts,
};
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The storage of one row class while the journal is replayed.
pub(crate) struct LsmRecovery {
    facts: ClassFacts,
    top: Box<LogRecovery>,
    orders: Orders,
    version: Version,
    /// Partitions that a reader has open, which it need not read again.
    open: Vec<Arc<Partition>>,
    retired: Vec<Retired>,
    /// Files that edits of this epoch have added: no commit has them yet.
    added: BTreeSet<u32>,
    tombstones: Tombstones,
    /// Tables whose tombstones have not come yet.
    missing: BTreeSet<u16>,
    epoch: u64,
    oldest: u64,
}

impl LsmRecovery {
    /// Begins with a class without tables, in `epoch`. `begun` is what its record says; commits
    /// before `oldest` are not kept.
    pub(crate) fn new(facts: &ClassFacts, begun: &str, epoch: u64, oldest: u64) -> Result<Self> {
        let (fillings, version) = read_record(begun)?;
        Ok(Self {
            facts: *facts,
            top: Box::new(LogRecovery::new(facts, fillings, epoch, oldest)?),
            orders: Orders::default(),
            version,
            open: Vec::new(),
            retired: Vec::new(),
            added: BTreeSet::new(),
            tombstones: Tombstones::default(),
            missing: BTreeSet::new(),
            epoch,
            oldest,
        })
    }

    fn edit(&mut self, edit: &Edit) -> Result<()> {
        let next = self.version.replay(edit)?;
        // Files outdated in an epoch are needed by the commits before it, unless they were added in
        // the same epoch: the writer has removed those.
        if self.epoch > self.oldest {
            let retired = Retired::by(&self.version, edit, self.epoch).into_iter();
            self.retired.extend(retired.filter(|file| !self.added.contains(&file.number)));
        }
        self.added.extend(edit.added.iter().map(|facts| facts.number));
        self.version = next;
        Ok(())
    }

    fn check_table(&self, table: u16) -> Result<()> {
        if !self.orders.has(table) {
            bail!(Corrupt, "a tombstone names table {table}, which is not of this class");
        }
        Ok(())
    }
}

impl StorageRecovery for LsmRecovery {
    fn table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        self.orders.insert(facts.table, order_of(facts));
        if !facts.born {
            self.missing.insert(facts.table);
        }
        self.top.table(&facts_above(facts, self.facts.merging))
    }

    fn drop_table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        self.orders.insert(facts.table, order_of(facts));
        self.orders.drop(facts.table);
        self.missing.remove(&facts.table);
        self.tombstones.remove_table(facts.table);
        self.top.drop_table(facts)
    }

    fn grow_table(&mut self, table: u16, num_embeddings: u64) -> Result<()> {
        self.top.grow_table(table, num_embeddings)
    }

    fn piece(&mut self, table: u16, piece: u32, bytes: &[u8]) -> Result<()> {
        let Some(piece) = piece.checked_sub(1) else {
            self.check_table(table)?;
            self.missing.remove(&table);
            return self.tombstones.load_piece(&self.orders, table, bytes);
        };
        self.top.piece(table, piece, bytes)
    }

    fn changes(&mut self, bytes: &[u8], mut changed: Hearer<'_>) -> Result<()> {
        read(bytes, &mut |block| match block {
            Block::Deltas(deltas) => {
                let changed = changed.as_mut();
                self.top.changes(
                    deltas,
                    changed.map(|changed| &mut **changed as &mut dyn FnMut(u16, u64)),
                )
            }
            Block::Edit(edit) => self.edit(&edit),
            Block::Set { table, key } => {
                self.check_table(table)?;
                self.tombstones.insert(self.orders.place(table, 0, key)?);
                if let Some(changed) = &mut changed {
                    changed(table, key);
                }
                Ok(())
            }
            Block::Dropped { table, key } => {
                self.check_table(table)?;
                self.tombstones.remove(self.orders.place(table, 0, key)?);
                Ok(())
            }
        })
    }

    fn commit(&mut self, number: u64, began: Option<u64>) {
        self.top.commit(number, began);
        self.epoch = number + 1;
        self.added.clear();
    }

    fn check_complete(&self) -> Result<()> {
        if let Some(table) = self.missing.first() {
            bail!(Corrupt, "the journal lacks the tombstones of table {table}");
        }
        self.top.check_complete()
    }

    fn finish(
        self: Box<Self>,
        at: &OpenAt,
        file: Arc<dyn File>,
        medium: &Arc<dyn Medium>,
    ) -> Result<Box<dyn Storage>> {
        self.check_complete()?;
        let Self { facts, top, orders, version, retired, tombstones, open, .. } = *self;
        let top = top.finish_log(at, file, medium)?;
        let (medium_below, shape) = (Arc::clone(medium), Shape::of(&facts));
        let bottom = Bottom::going_on(medium_below, &shape, orders, version, retired, &open)?;
        let room = match at.write_after {
            Some(_) => MergeRoom::find(&**medium, facts.class)?,
            None => MergeRoom::new(facts.class),
        };
        Ok(Box::new(Lsm::new(facts, Arc::clone(medium), top, bottom, tombstones, room)))
    }
}

fn partition_of(open: &Numbered) -> Arc<Partition> {
    Arc::clone(&open.partition)
}

/// A reader that moves on.
impl StorageRefresh for Lsm {
    fn go_on(
        &self,
        tables: &[TableFacts<'_>],
        epoch: u64,
        oldest: u64,
    ) -> Result<Box<dyn StorageRecovery>> {
        let orders = Orders::clone(self.bottom.orders());
        Ok(Box::new(LsmRecovery {
            facts: self.facts,
            top: Box::new(self.top.go_on_log(tables, epoch, oldest)?),
            orders,
            version: self.bottom.snapshot().version().clone(),
            open: self.bottom.snapshot().partitions().iter().map(partition_of).collect(),
            retired: Vec::new(),
            added: BTreeSet::new(),
            tombstones: self.tombstones.clone(),
            missing: BTreeSet::new(),
            epoch,
            oldest,
        }))
    }

    fn copy_more(&self, into: &mut dyn StorageRecovery) -> bool {
        let any: &mut dyn Any = into;
        let recovery: &mut LsmRecovery =
            any.downcast_mut().expect("an lsm is given one of its own");
        self.top.copy_more_of_log(&mut recovery.top)
    }
}
