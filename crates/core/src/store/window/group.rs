//! Groups: some batches in a row, and the rows that they need and that are not resident.

use super::super::engine::Table;
use super::super::{Engine, Inner};
use crate::cache::{Cache, NextUse};

/// Needs that are looked up under one lock of the class.
const LOOK_UPS: usize = 1024;

/// A row that a group needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Order of its read among others: rows that one page brings have the same number; 0 when the
    /// row waits in memory.
    pub(super) order: u32,
    pub(super) table: u16,
    /// The batch that needs it first, counted from the group's first.
    pub(super) batch: u16,
    pub(super) key: u64,
}

/// The rows that some batches need together.
#[derive(Debug)]
pub(super) struct Group {
    /// The batch that callers must have begun before the group is read.
    pub(super) after: u64,
    first: u64,
    last: u64,
    /// By class and order.
    pub(super) needs: Vec<Need>,
    /// More are not taken.
    needs_max: usize,
}

impl Group {
    /// Batches of a group have numbers of 16 bits.
    pub(super) const BATCHES_MAX: u64 = 1 << 15;

    /// A group without rows, with room for so many, that begins at a batch and is to be read after
    /// another has begun.
    pub(super) fn new(after: u64, first: u64, rows: u64) -> Self {
        let needs = Vec::with_capacity(rows as usize);
        Self { after, first, last: first, needs, needs_max: usize::MAX }
    }

    /// One that takes no more rows.
    pub(super) fn at_most(after: u64, first: u64, rows: u64) -> Self {
        Self { needs_max: rows as usize, ..Self::new(after, first, rows) }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn rows(&self) -> u64 {
        self.needs.len() as u64
    }

    /// Batches that count as read once so many of the needs are: in proportion, because rows are
    /// not read batch by batch.
    pub(super) fn batches_read(&self, done: usize) -> u64 {
        let batches = self.last - self.first + 1;
        match self.needs.len() as u64 {
            0 => batches,
            needs => batches * done as u64 / needs,
        }
    }

    /// Bytes that a group of so many rows takes.
    pub(super) fn memory_bytes(rows: u64) -> u64 {
        rows * size_of::<Need>() as u64
    }

    /// The batch that uses a row first.
    pub(super) fn next_use(&self, need: &Need) -> NextUse {
        NextUse::in_batch(self.first + u64::from(need.batch))
    }

    /// Adds the keys of a batch's table: resident rows are told, the others are needed.
    pub(super) fn add(&mut self, cache: &Cache, table: &Table, number: u64, keys: &[u64]) {
        self.last = number;
        let (next, batch) = (NextUse::in_batch(number), (number - self.first) as u16);
        cache.ahead(
            keys.len(),
            |i| table.locate(cache, keys[i]),
            |i, at| {
                let is_there = cache.expect_use(at, table.id(), keys[i], next);
                if !is_there && self.needs.len() < self.needs_max {
                    self.needs.push(Need { order: 0, table: table.id(), batch, key: keys[i] });
                }
            },
        );
    }
}

impl Inner {
    /// Says in which order rows are read, drops those that nobody has written, and sorts.
    pub(super) fn look_up(&self, engine: &Engine, group: &mut Group) {
        const AHEAD: usize = 16;
        let needs = &mut group.needs;
        let class_of = |table: u16| engine.known_table(table).class;
        needs.sort_unstable_by_key(|need| class_of(need.table));
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
                    log.prefetch(ahead.table, ahead.key);
                }
                let need = needs[i];
                if let Some(order) = log.read_order(need.table, need.key) {
                    needs[kept] = Need { order, ..need };
                    kept += 1;
                }
            }
            from = to;
        }
        needs.truncate(kept);
        // Of several uses of a row the first counts.
        needs.sort_unstable_by_key(|n| (class_of(n.table), n.order, n.table, n.key, n.batch));
        needs.dedup_by_key(|need| (need.table, need.key));
        needs.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portions_of_a_group_count_for_all_of_its_batches_and_no_more() {
        let mut group = Group::new(0, 5, 0);
        group.last = 14;
        assert_eq!(group.batches_read(0), 10, "of a group whose rows are all in memory");
        for needs in [1, 3, 10, 64] {
            group.needs = vec![Need { order: 0, table: 0, batch: 0, key: 0 }; needs];
            assert_eq!(group.batches_read(0), 0);
            assert_eq!(group.batches_read(needs), 10);
            let each = (0..needs).map(|i| group.batches_read(i + 1) - group.batches_read(i));
            assert_eq!(each.sum::<u64>(), 10);
        }
    }
}
