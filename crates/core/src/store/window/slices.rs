//! Slices, for a cache that holds the rows of few batches: rows stay for the batches that use them
//! next, and the next batch is read in slices, into room that is worth less.
//!
//! Rows that are read ahead may drive out only rows that are used later, or by no announced batch,
//! and the room that the batch at hand still needs is not taken. A page of which some row finds no
//! room is left to the verb, so that no page is read twice. Once callers come to a batch, they read
//! the rest of it.

use super::super::{Engine, Inner};
use super::Announced;
use super::group::{Group, Need};
use crate::cache::{Cache, NextUse};
use crate::config::TableId;
use crate::distinct::Distinct;
use std::sync::atomic::Ordering;

/// Batches are read in groups where a cache holds the rows of so many. A training read 2.1 times as
/// many pages with groups as without look-ahead where it held 2.4, 1.5 times where it held 3.0, 1.2
/// times, and waited half as long, where it held 6.7.
const BATCHES_PER_CACHE: u64 = 8;
/// Batches are passed over if a cache beside the window holds the rows of fewer than this, in
/// tenths.
const TENTHS_MIN: u64 = 11;
/// The part of the budget that a window of slices takes at most.
const BUDGET_PER_WINDOW: u64 = 8;

/// Rows that are read in one go: a caller that comes to the batch waits for no more.
pub(super) const SLICE_ROWS: usize = 256;

/// The way a window reads ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// Groups of batches.
    #[default]
    Groups,
    /// Slices of the next batch, which has about so many distinct keys.
    Slices { keys: usize },
    /// Not at all: all batches are passed over.
    Off,
}

impl Pace {
    pub(super) fn is_slices(self) -> bool {
        matches!(self, Self::Slices { .. })
    }

    /// The most bytes that a window may take, of the most that its options allow.
    pub(super) fn most_bytes(self, engine: &Engine, most: u64) -> u64 {
        match self {
            Self::Slices { .. } => most.min(engine.budget_bytes / BUDGET_PER_WINDOW),
            Self::Groups | Self::Off => most,
        }
    }

    /// That of batches like this one.
    pub(super) fn of(
        inner: &Inner,
        engine: &Engine,
        batch: &Announced,
        distinct: &mut Distinct,
    ) -> Self {
        let class_of = |id: TableId| engine.table(id.0).map(|table| table.class);
        let taken = engine.window_bytes.load(Ordering::Relaxed);
        let caches: u64 = engine.classes.iter().map(|class| class.cache().memory_bytes()).sum();
        let (mut slices, mut all_keys, mut spare) = (false, 0, 0);
        for (at, class) in engine.classes.iter().enumerate() {
            let (cache, rows) = (class.cache(), class.cache().row_capacity());
            let here = || batch.parts.iter().filter(move |(id, ..)| class_of(*id) == Some(at));
            // As if the window had taken nothing: otherwise the pace would change to and fro.
            let whole = (u128::from(rows) * u128::from(caches + taken) / u128::from(caches)) as u64;
            let mut needed: usize = here().map(|(_, keys, _)| keys.len()).sum();
            if needed as u64 > whole / BATCHES_PER_CACHE {
                needed = here().map(|(_, keys, _)| distinct.run(keys).0.len()).sum();
            }
            slices |= needed as u64 > whole / BATCHES_PER_CACHE;
            all_keys += needed;
            let least = needed as u64 * TENTHS_MIN / 10;
            if least > rows {
                return Self::Off;
            }
            spare += (rows - least) * cache.row_bytes() as u64;
        }
        if !slices {
            return Self::Groups;
        }
        let slices = Self::Slices { keys: all_keys };
        let fits = slices.most_bytes(engine, inner.window_most_bytes(engine)) <= taken + spare;
        // A cache that holds all rows may be as small, and gives up none for a window.
        if fits && inner.metrics.evicted.load(Ordering::Relaxed) > 0 { slices } else { Self::Off }
    }
}

/// Free room in the sets of each class: -1 where that was not looked at.
#[derive(Debug)]
pub(super) struct Room {
    sets: Vec<Vec<i8>>,
    next: NextUse,
}

impl Room {
    /// For rows that are used in the batch `next`.
    pub(super) fn new(engine: &Engine, next: NextUse) -> Self {
        let sets = |cache: &Cache| vec![-1; cache.sets() as usize];
        Self { sets: engine.classes.iter().map(|class| sets(class.cache())).collect(), next }
    }

    /// Bytes that it takes.
    pub(super) fn memory_bytes(engine: &Engine) -> u64 {
        engine.classes.iter().map(|class| u64::from(class.cache().sets())).sum()
    }

    /// Takes a place in a set; false when there is none.
    pub(super) fn take(&mut self, class: usize, cache: &Cache, set: u32) -> bool {
        let room = &mut self.sets[class][set as usize];
        if *room < 0 {
            *room = cache.room_for(set, self.next) as i8;
        }
        let has = *room > 0;
        *room -= i8::from(has);
        has
    }

    fn give_back(&mut self, class: usize, set: u32) {
        self.sets[class][set as usize] += 1;
    }
}

impl Inner {
    /// Keeps the needs for which there is room, `most` of them, and of a page all or none. Rows
    /// that wait in the flush buffer cost no read and stay there. The needs are sorted.
    pub(super) fn fit(&self, engine: &Engine, group: &mut Group, room: &mut Room, most: usize) {
        let needs = &mut group.needs;
        let class_of = |need: &Need| engine.known_table(need.table).class;
        let set_of = |need: &Need| {
            let table = engine.known_table(need.table);
            table.locate(engine.classes[table.class].cache(), need.key).set()
        };
        let (mut kept, mut from) = (0, 0);
        while from < needs.len() {
            let class = class_of(&needs[from]);
            let cache = engine.classes[class].cache();
            let order = needs[from].order;
            let same = |need: &&Need| class_of(need) == class && need.order == order;
            let to = from + needs[from..].iter().take_while(same).count();
            let wanted = if order != 0 && kept + to - from <= most { from..to } else { from..from };
            let fitting =
                wanted.clone().take_while(|i| room.take(class, cache, set_of(&needs[*i]))).count();
            if fitting == to - from {
                needs.copy_within(from..to, kept);
                kept += fitting;
            } else {
                wanted.take(fitting).for_each(|i| room.give_back(class, set_of(&needs[i])));
            }
            from = to;
        }
        needs.truncate(kept);
    }
}
