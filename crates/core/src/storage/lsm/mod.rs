//! The `lsm` layout: a log of the newest rows above one bottom of sorted partitions.
//!
//! The top is a [`ClassLog`] with its exact index, which the newest few per cent of the rows keep
//! small. A row that is not there is in one page of the [`bottom`], which the fences of a partition
//! name: 0.02 to 0.1 bytes of memory per row. Rows that are written often live and die in the top.
//! A unit of upkeep takes the rows of one partition's range out of the top and writes the partition
//! anew, without the class lock; one edit of the version puts it in the place of the old one. A key
//! that is deleted while the bottom may have its row leaves a tombstone, in memory and in the
//! journal, until a merge has dropped the row.
//!
//! A copy that the top still has of a row which a merge has taken shadows an equal row. So the edit
//! comes first, and the copies are dropped afterwards, as slowly as the caller likes.

mod begin;
pub(crate) mod bottom;
mod changes;
mod check;
mod counts;
mod create;
mod cut;
mod find;
mod freeze;
mod frozen_sweep;
mod merge_room;
mod newest;
mod pages;
mod pick;
mod pins;
mod recovery;
mod room;
mod row_changes;
mod select;
mod set_aside;
mod stats;
mod sweep;
mod tombstones;
mod unit;
mod upkeep;
mod write;

#[cfg(test)]
mod frozen_tests;

pub(crate) use create::create;
pub(crate) use recovery::LsmRecovery;

use super::log::ClassLog;
use super::{ClassFacts, Storage};
use crate::config::StorageKind;
use crate::io::Medium;
use bottom::{Bottom, Place, TableOrder};
use changes::Changes;
use merge_room::MergeRoom;
use pages::LsmPages;
use set_aside::SetAside;
use std::collections::BTreeSet;
use std::sync::Arc;
use tombstones::Tombstones;
use upkeep::Upkeep;

/// Origins from here on are of rows that the bottom has and the top has not. The excess is the
/// number of the partition; a row keeps it when that is merged, so nothing may rely on it.
const IN_BOTTOM: u32 = 1 << 31;

/// The storage of one row class.
pub(crate) struct Lsm {
    facts: ClassFacts,
    medium: Arc<dyn Medium>,
    top: ClassLog,
    bottom: Bottom,
    pages: Arc<LsmPages>,
    tombstones: Tombstones,
    changes: Changes,
    /// Reads under way.
    tickets: BTreeSet<u64>,
    /// Larger than the ticket of any read.
    next_ticket: u64,
    upkeep: Upkeep,
    set_aside: SetAside,
    /// The plan of the budget has so many bytes for changes and for what is set aside, now or soon.
    expected_bytes: u64,
    room: MergeRoom,
}

impl Storage for Lsm {}

impl crate::storage::StorageStretches for Lsm {}

impl Lsm {
    fn order(&self, table: u16) -> TableOrder {
        self.bottom.orders().of(table).expect("the table belongs to this class")
    }

    fn place(&self, table: u16, key: u64) -> Place {
        Place { table, rank: 0, position: self.order(table).position(key) }
    }

    fn is_dense(&self, table: u16) -> bool {
        self.order(table) == TableOrder::ByKey
    }

    /// Whether rows of the top are merged into the bottom as they come. Frozen pages are written
    /// anew by a freeze alone.
    fn merges_into_bottom(&self) -> bool {
        self.facts.kind == StorageKind::Lsm
    }

    /// Whether the bottom may have a row at `place`, or will have one of the unit under way.
    fn may_be_below(&self, place: Place) -> bool {
        self.upkeep.takes(place) || self.bottom.snapshot().candidates(place).next().is_some()
    }

    /// The origin as the top knows it: rows of the bottom are new to it.
    fn origin_above(&self, table: u16, origin: Option<u32>) -> Option<u32> {
        match origin {
            _ if self.is_dense(table) => None,
            Some(origin) if origin >= IN_BOTTOM => Some(0),
            origin => origin,
        }
    }
}
