//! Rows that are held: they stay while there is any other in their set, until they are let go.
//!
//! A held row has a number of its own in the place of its next use (`next_use.rs`), which no batch
//! has and which never goes by. Lists of runs of keys say which rows are to be held, so that those
//! that verbs bring are held as well; they are looked at for rows that come, never at hits.

use super::next_use::NextUse;
use super::{Cache, Location, RowRef, find};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keys from the first to one before the last.
pub(crate) type Run = (u64, u64);

/// Lists of runs of keys whose rows are held.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Taken under a set's lock, never the other way round.
    lists: RwLock<Vec<List>>,
    any: AtomicBool,
}

#[derive(Debug)]
struct List {
    number: u64,
    table: u16,
    /// Ascending, and apart from each other.
    runs: Arc<[Run]>,
}

impl Held {
    fn change(&self, change: impl FnOnce(&mut Vec<List>)) {
        let mut lists = self.lists.write();
        change(&mut lists);
        self.any.store(!lists.is_empty(), Ordering::Relaxed);
    }

    /// Whether a row is to be held.
    #[inline(always)]
    pub(super) fn has(&self, table: u16, key: u64) -> bool {
        self.any.load(Ordering::Relaxed) && self.look(table, key)
    }

    fn look(&self, table: u16, key: u64) -> bool {
        let lists = self.lists.read();
        lists.iter().filter(|list| list.table == table).any(|list| {
            let before = list.runs.partition_point(|(first, _)| *first <= key);
            before > 0 && key < list.runs[before - 1].1
        })
    }
}

impl Cache {
    /// Rows of these keys are held once they come; those that are there are to be marked one by one
    /// ([`mark_held`](Self::mark_held)). Nothing when it has a list of this number already.
    pub fn hold(&self, number: u64, table: u16, runs: &Arc<[Run]>) {
        self.held.change(|lists| {
            if lists.iter().all(|list| list.number != number) {
                lists.push(List { number, table, runs: runs.clone() });
            }
        });
    }

    /// Whether it has a list of this number.
    pub fn holds(&self, number: u64) -> bool {
        self.held.lists.read().iter().any(|list| list.number == number)
    }

    /// Rows of this list are not held any more once they come; those that are there are to be let
    /// go one by one ([`unmark_held`](Self::unmark_held)).
    pub fn let_go(&self, number: u64) {
        self.held.change(|lists| lists.retain(|list| list.number != number));
    }

    /// Holds a row; false when it is not resident.
    pub fn mark_held(&self, at: Location, table: u16, key: u64) -> bool {
        self.expect_use(at, table, key, NextUse::HELD)
    }

    /// A row leaves through `victim`, unless it is held. Says whether it was there.
    pub fn evict(
        &self,
        at: Location,
        table: u16,
        key: u64,
        victim: impl FnOnce(RowRef<'_>),
    ) -> bool {
        if self.held.has(table, key) {
            return false;
        }
        let mut set = self.sets.lock(at.set);
        let Some(way) = find(&set, at, table, key) else { return false };
        victim(self.row_ref(&set, way));
        self.vacate(&mut set, way);
        true
    }

    /// Lets a row go, unless another list has it.
    pub fn unmark_held(&self, at: Location, table: u16, key: u64) {
        if !self.held.has(table, key) {
            self.release_held(at, table, key);
        }
    }
}
