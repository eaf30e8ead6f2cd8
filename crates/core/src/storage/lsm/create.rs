//! New storages and tables.

use super::Lsm;
use super::bottom::{Bottom, Orders, Shape, TableOrder, Version};
use super::changes::Changes;
use super::merge_room::MergeRoom;
use super::pages::LsmPages;
use super::set_aside::SetAside;
use super::tombstones::Tombstones;
use super::upkeep::Upkeep;
use crate::config::{Merging, StorageKind};
use crate::error::Result;
use crate::io::{File, Medium};
use crate::storage::log::{self, ClassLog};
use crate::storage::{ClassFacts, Storage, StorageRead, StorageTables, TableFacts};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A storage without tables, whose top is in a new file; `epoch` is the number of the commit to
/// come.
pub(crate) fn create(
    facts: &ClassFacts,
    file: Arc<dyn File>,
    epoch: u64,
    medium: &Arc<dyn Medium>,
) -> Result<Box<dyn Storage>> {
    let top = log::create_log(facts, file, epoch, medium)?;
    let (version, orders) = (Version::default(), Orders::default());
    let bottom = Bottom::open(Arc::clone(medium), &Shape::of(facts), orders, version, Vec::new())?;
    let room = MergeRoom::new(facts.class);
    Ok(Box::new(Lsm::new(*facts, Arc::clone(medium), top, bottom, Tombstones::default(), room)))
}

/// The order of a table's rows in the bottom.
pub(super) fn order_of(facts: &TableFacts<'_>) -> TableOrder {
    match facts.num_embeddings {
        Some(_) => TableOrder::ByKey,
        None => TableOrder::Mixed { salt: facts.salt },
    }
}

/// A table as the top is told of it, which has few of its rows.
pub(super) fn facts_above<'a>(facts: &TableFacts<'a>, merging: Merging) -> TableFacts<'a> {
    let expected_rows = facts.expected_rows.map(|rows| (rows as f64 * merging.top_share) as u64);
    TableFacts { expected_rows, packed: true, ..*facts }
}

impl StorageTables for Lsm {
    fn create_table(&mut self, facts: &TableFacts<'_>) -> Result<Option<u32>> {
        let partitions = self.top.create_table(&facts_above(facts, self.facts.merging))?;
        self.bottom.add_table(facts.table, order_of(facts));
        Ok(partitions)
    }

    fn remove_table(&mut self, table: u16) {
        self.top.remove_table(table);
        self.bottom.remove_table(table);
    }

    fn drop_table(&mut self, table: u16) {
        self.top.drop_table(table);
        self.tombstones.remove_table(table);
        self.bottom.drop_table(table);
        self.upkeep.forget_counts();
    }

    fn grow_table(&mut self, table: u16, num_embeddings: u64) -> Result<()> {
        self.top.grow_table(table, num_embeddings)
    }
}

impl Lsm {
    pub(super) fn new(
        facts: ClassFacts,
        medium: Arc<dyn Medium>,
        top: ClassLog,
        bottom: Bottom,
        tombstones: Tombstones,
        room: MergeRoom,
    ) -> Self {
        let partitions = Arc::clone(bottom.pages());
        let has_replicas = facts.kind == StorageKind::Pages;
        let pages = Arc::new(LsmPages { top: top.pages(), partitions, has_replicas });
        Self {
            facts,
            medium,
            top,
            bottom,
            pages,
            tombstones,
            changes: Changes::default(),
            tickets: BTreeSet::new(),
            next_ticket: 0,
            upkeep: Upkeep::default(),
            set_aside: SetAside::default(),
            expected_bytes: 0,
            room,
        }
    }
}
