//! Reading rows ahead, group by group.
//!
//! A group is some batches in a row. The rows that they need and that are not resident are looked
//! up, sorted by where they are stored, and read in portions, so that each page is read once for
//! all of them and a commit does not wait for the whole group.

use super::super::rows::{Effect, Keys, RowOp, RowView};
use super::super::{Engine, Inner};
use super::Shared;
use super::thread::Plan;
use crate::cache::BatchNumber;
use crate::error::Result;
use crate::storage::log::Place;
use std::sync::atomic::Ordering;

/// Rows that are read in one go, between looks at what callers want.
const PORTION_ROWS: usize = 8192;
/// A group needs at most this part of the rows that a cache can hold.
const CACHE_PER_GROUP: u64 = 8;
/// A group is at most this part of what is announced: what comes after it says what to keep.
const ANNOUNCED_PER_GROUP: u64 = 3;
/// Needs that are looked up under one lock of the class.
const LOOK_UPS: usize = 1024;

/// A row that a group needs and that is not resident.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// The first place where it may be stored; 0 when it waits in the flush buffer.
    slot: u32,
    table: u16,
    /// The batch that needs it first, counted from the group's first.
    batch: u16,
    key: u64,
}

/// A group that is being read.
#[derive(Debug)]
pub(super) struct Group {
    first: u64,
    last: u64,
    /// By class and place.
    needs: Vec<Need>,
    /// How many of them are done.
    done: usize,
}

impl Group {
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.needs.capacity() * size_of::<Need>()
    }
}

impl Plan {
    /// Begins the next group, or goes on with the one that is under way.
    pub(super) fn fill(&mut self, shared: &Shared, inner: &Inner, engine: &Engine) -> Result<()> {
        let mut group = match self.group.take() {
            Some(group) => group,
            None => self.form_group(shared, inner, engine),
        };
        let filled = inner.fill_portion(shared, engine, &mut group);
        if filled.is_ok() && group.done == group.needs.len() {
            self.set_filled(shared, group.last);
        } else {
            self.group = Some(group);
        }
        filled
    }

    fn form_group(&mut self, shared: &Shared, inner: &Inner, engine: &Engine) -> Group {
        let first = self.filled + 1;
        let announced = self.noted - self.finished.min(self.filled);
        let most = (announced / ANNOUNCED_PER_GROUP)
            .min(2 * self.last_group.1)
            .min(inner.options.window_group as u64)
            .clamp(1, 1 << 15);
        let mut group = Group { first, last: first, needs: Vec::new(), done: 0 };
        for number in first..=self.noted.min(first + most - 1) {
            group.last = number;
            for (table, uses) in engine.tables.iter().zip(&self.uses) {
                let Some(uses) = uses else { continue };
                self.keys.clear();
                uses.keys_of(number, &mut self.keys);
                let (keys, cache) = (&self.keys, engine.classes[table.class].cache());
                let next = BatchNumber::of(number);
                let batch = (number - first) as u16;
                let needs = &mut group.needs;
                cache.ahead(
                    keys.len(),
                    |i| table.locate(cache, keys[i]),
                    |i, at| {
                        if !cache.expect_use(at, table.id(), keys[i], next) {
                            needs.push(Need { slot: 0, table: table.id(), batch, key: keys[i] });
                        }
                    },
                );
            }
            let rows: u64 = engine.classes.iter().map(|class| class.cache().row_capacity()).sum();
            if group.needs.len() as u64 > rows / CACHE_PER_GROUP {
                break;
            }
        }
        inner.look_up(engine, &mut group.needs);
        self.last_group = (first, group.last - first + 1);
        shared.counters.groups.fetch_add(1, Ordering::Relaxed);
        shared.counters.group_batches.fetch_add(self.last_group.1, Ordering::Relaxed);
        group
    }
}

impl Inner {
    /// Says where each row is stored, drops those that nobody has written, and sorts.
    fn look_up(&self, engine: &Engine, needs: &mut Vec<Need>) {
        const AHEAD: usize = 16;
        let class_of = |table: u16| engine.tables[usize::from(table)].class;
        needs.sort_by_key(|need| class_of(need.table));
        let mut slots = Vec::new();
        let mut kept = 0;
        let mut from = 0;
        while from < needs.len() {
            let number = class_of(needs[from].table);
            let class = &engine.classes[number];
            let portion = needs[from..].iter().take(LOOK_UPS);
            let to = from + portion.take_while(|need| class_of(need.table) == number).count();
            let log = class.lock(&self.metrics);
            for i in from..to {
                if let Some(ahead) = needs[..to].get(i + AHEAD) {
                    log.index(ahead.table).prefetch(ahead.key);
                }
                let need = needs[i];
                let slot = match log.find(need.table, need.key, &mut slots) {
                    Place::Absent => continue,
                    Place::Waiting(_) => 0,
                    Place::Stored => slots[0],
                };
                needs[kept] = Need { slot, ..need };
                kept += 1;
            }
            from = to;
        }
        needs.truncate(kept);
        // Of several uses of a row the first counts.
        needs.sort_unstable_by_key(|n| (class_of(n.table), n.slot, n.table, n.key, n.batch));
        needs.dedup_by_key(|need| (need.table, need.key));
    }

    /// Reads some of a group's rows.
    fn fill_portion(&self, shared: &Shared, engine: &Engine, group: &mut Group) -> Result<()> {
        let left = &group.needs[group.done..];
        let Some(first) = left.first() else { return Ok(()) };
        let table_of = |need: &Need| &engine.tables[usize::from(need.table)];
        let number = table_of(first).class;
        let class = &engine.classes[number];
        let per_page = class.layout.rows_per_page as u32;
        // Rows of one page stay together.
        let ends = |i: usize| {
            let (before, need) = (&left[i - 1], &left[i]);
            table_of(need).class != number
                || i >= PORTION_ROWS && before.slot / per_page != need.slot / per_page
        };
        let rows = (1..left.len()).find(|i| ends(*i)).unwrap_or(left.len());
        let portion = &left[..rows];

        let mut tables: Vec<u16> = portion.iter().map(|need| need.table).collect();
        tables.sort_unstable();
        tables.dedup();
        let mut op = AheadOp { next: vec![Vec::new(); tables.len()], loaded: 0, turned_away: 0 };
        let mut keys: Vec<Vec<u64>> = vec![Vec::new(); tables.len()];
        let mut places = Vec::with_capacity(rows);
        for need in portion {
            let batch = tables.binary_search(&need.table).expect("tables holds those of all needs");
            places.push((batch as u32, keys[batch].len() as u32));
            keys[batch].push(need.key);
            op.next[batch].push(BatchNumber::of(group.first + u64::from(need.batch)));
        }
        let batches: Vec<Keys<'_>> = tables
            .iter()
            .zip(&keys)
            .map(|(id, keys)| Keys { table: &engine.tables[usize::from(*id)], keys })
            .collect();
        let report = self.visit_ahead(engine, class, &batches, places, &mut op);
        let c = &shared.counters;
        c.loaded.fetch_add(op.loaded, Ordering::Relaxed);
        c.turned_away.fetch_add(op.turned_away, Ordering::Relaxed);
        let report = report?;
        let read = report.read;
        c.requests.fetch_add(read.requests, Ordering::Relaxed);
        c.pages.fetch_add(read.pages, Ordering::Relaxed);
        c.bytes.fetch_add(read.bytes, Ordering::Relaxed);
        c.read_wait_ns.fetch_add(read.waited.as_nanos() as u64, Ordering::Relaxed);
        c.pages_again.fetch_add(report.pages_again, Ordering::Relaxed);
        group.done += rows;
        Ok(())
    }
}

/// Makes rows resident for batches to come.
struct AheadOp {
    /// The batch that uses each row first.
    next: Vec<Vec<BatchNumber>>,
    loaded: u64,
    turned_away: u64,
}

impl RowOp for AheadOp {
    const AHEAD: bool = true;

    fn visit(&mut self, _: usize, _: usize, _: RowView<'_>) -> Effect {
        self.loaded += 1;
        Effect::Read
    }

    fn next_use(&self, batch: usize, position: usize) -> Option<BatchNumber> {
        Some(self.next[batch][position])
    }

    fn turned_away(&mut self) {
        self.turned_away += 1;
    }
}
