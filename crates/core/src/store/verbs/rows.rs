//! The one path to a row, and what is resident on it.
//!
//! A verb is a [`RowOp`]; it sees each row once, under the lock of its set (a verb that only copies
//! values is given them without), whether the row was resident, waited in the flush buffer, came
//! from a page, or was never written. Hits take no lock but the set's; the others are gathered over
//! all tables of a class for `misses.rs`.

use crate::cache::{BLOCK, Cache, Location, NextUse, RowMut};
use crate::config::ValuesOut;
use crate::error::Result;
use crate::hash::mix;
use crate::metrics::Timed;
use crate::store::Inner;
use crate::store::engine::{Class, Engine, Table};
use crate::store::verbs::misses::Miss;
use std::sync::atomic::Ordering;

/// Number of visits ahead for which a verb is asked to prefetch its data for a row.
const PREFETCHED_AHEAD: usize = 16;

/// Effect of a verb on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Effect {
    /// Looked at it.
    Read,
    /// Changed it.
    Wrote,
}

/// A row as a verb sees it.
pub(in crate::store) struct RowView<'a> {
    /// Values, then state. Undefined when `blank`.
    pub(in crate::store) words: &'a mut [f32],
    /// True when the key was written before, and not deleted.
    pub(in crate::store) written: bool,
    /// True when a blind verb finds a row that was not fetched: every word must be set.
    pub(in crate::store) blank: bool,
    /// Slot of the stored copy, 0 when there is none; `None` where the index tells.
    pub(in crate::store) origin: Option<u32>,
}

/// The work of a verb on each row of its batches.
pub(in crate::store) trait RowOp {
    /// True when it makes rows resident before they are used: what it finds is not counted as a
    /// verb's hits and misses, and rows that nobody has written stay away.
    const AHEAD: bool = false;
    /// Called once for every position, in no promised order; not for hits of a verb that has an
    /// [`output`](Self::output).
    fn visit(&mut self, batch: usize, position: usize, row: RowView<'_>) -> Effect;
    /// Destination of the values of a batch's rows, for a verb that only copies them and that
    /// counts as a use. `None` when it does more.
    fn output(&mut self, _batch: usize) -> Option<ValuesOut<'_>> {
        None
    }
    /// Called some visits before that of a position: the place to ask for memory that it will read.
    #[inline(always)]
    fn prefetch(&self, _batch: usize, _position: usize) {}
    /// First place of a position's row in the batch that the caller gave.
    #[inline(always)]
    fn place(&self, _batch: usize, position: usize) -> u32 {
        position as u32
    }
    /// Number of keys in that batch; `None` for the number of positions.
    fn places(&self, _batch: usize) -> Option<usize> {
        None
    }
    /// True when visits may write.
    fn changes(&self) -> bool {
        false
    }
    /// True when the row's old words do not matter: nothing is read that need not be.
    fn blind(&self) -> bool {
        false
    }
    /// False when rows that miss shall not displace others (scans).
    fn admits(&self) -> bool {
        true
    }
    /// The batch that uses a row first, of an op that is ahead: rows that are used before it are
    /// not displaced.
    fn next_use(&self, _batch: usize, _position: usize) -> Option<NextUse> {
        None
    }
    /// A row found no place because all in its set are used sooner.
    fn turned_away(&mut self) {}
    /// True when rows that have not changed are written, too, as they leave for those that come,
    /// to be stored with others of the stretch that uses them next. Room is reserved for one each.
    fn moves_victims(&self) -> bool {
        false
    }
    /// A row was written for that.
    fn moved_victim(&mut self) {}
}

/// One table's keys.
#[derive(Clone, Copy)]
pub(in crate::store) struct Keys<'a> {
    pub(in crate::store) table: &'a Table,
    pub(in crate::store) keys: &'a [u64],
}

/// The stamps of what a verb changes in a class. Rows that stand equally far in their batches have
/// the same one: those of a sample are written together, whatever their tables.
#[derive(Clone, Copy, Default)]
pub(in crate::store) struct Stamps {
    first: u32,
    count: usize,
}

impl Stamps {
    /// Those for the batches of a class.
    fn draw<'a, O: RowOp>(
        class: &Class,
        batches: impl Iterator<Item = (usize, &'a Keys<'a>)>,
        op: &O,
    ) -> Self {
        if !op.changes() {
            return Self::default();
        }
        let count = batches.map(|(batch, keys)| places(op, batch, keys)).max().unwrap_or(0);
        Self { first: class.stamps(count), count }
    }

    pub(in crate::store) fn of_batch<O: RowOp>(
        self,
        op: &O,
        batch: usize,
        keys: &Keys<'_>,
    ) -> BatchStamps {
        let places = places(op, batch, keys).max(1);
        BatchStamps { first: self.first, step: ((self.count as u64) << 32) / places as u64 }
    }
}

fn places<O: RowOp>(op: &O, batch: usize, keys: &Keys<'_>) -> usize {
    op.places(batch).unwrap_or(keys.keys.len())
}

/// The stamps of one batch.
#[derive(Clone, Copy)]
pub(in crate::store) struct BatchStamps {
    first: u32,
    /// From one place to the next, in 2^-32.
    step: u64,
}

impl BatchStamps {
    #[inline(always)]
    pub(in crate::store) fn at(self, place: u32) -> u32 {
        self.first.wrapping_add(((u64::from(place) * self.step) >> 32) as u32)
    }
}

impl Inner {
    /// Hands every row of `batches` to `op`. On error some rows were visited and some were not.
    pub(in crate::store) fn visit_rows<O: RowOp>(
        &self,
        engine: &Engine,
        batches: &[Keys<'_>],
        op: &mut O,
    ) -> Result<()> {
        for (i, class) in engine.classes.iter().enumerate() {
            let mut misses = Vec::new();
            let timed = Timed::new(&self.metrics.resident_ns);
            let of_class = || batches.iter().enumerate().filter(|(_, k)| k.table.class == i);
            if class.is_direct {
                of_class().try_for_each(|batch| self.visit_direct(batch, op))?;
                continue;
            }
            let stamps = Stamps::draw(class, of_class(), op);
            for (batch, keys) in of_class() {
                self.visit_hits(class, (batch, keys), stamps, op, &mut misses);
            }
            drop(timed);
            if !misses.is_empty() {
                self.visit_misses(engine, class, batches, misses, stamps, op)?;
            }
        }
        Ok(())
    }

    fn visit_hits<O: RowOp>(
        &self,
        class: &Class,
        (batch, keys): (usize, &Keys<'_>),
        stamps: Stamps,
        op: &mut O,
        misses: &mut Vec<Miss>,
    ) {
        let stamps = stamps.of_batch(op, batch, keys);
        let (cache, table, keys) = (class.cache(), keys.table, keys.keys);
        let before = misses.len();
        let missed = |i: usize| misses.push(Miss { batch: batch as u32, position: i as u32 });
        if let Some(output) = op.output(batch) {
            match table.first {
                Some(first) => {
                    let locate = |key| cache.locate_dense(first + key);
                    copy_values(cache, table, keys, output, locate, missed);
                }
                None => {
                    let locate = |key| cache.locate_hashed(mix(key, table.salt));
                    copy_values(cache, table, keys, output, locate, missed);
                }
            }
            self.count_hits(keys.len(), misses.len() - before);
            return;
        }
        let at = Hits { cache, table, keys, batch, stamps };
        // A loop for each way to find a place: the test would be made for every key.
        let fresh = match table.first {
            Some(first) => at.visit(op, |key| cache.locate_dense(first + key), missed),
            None => at.visit(op, |key| cache.locate_hashed(mix(key, table.salt)), missed),
        };
        table.rows.fetch_add(fresh, Ordering::Relaxed);
        self.count_hits(keys.len(), misses.len() - before);
    }

    fn count_hits(&self, keys: usize, missed: usize) {
        self.metrics.hits.fetch_add((keys - missed) as u64, Ordering::Relaxed);
    }
}

/// The keys of one table, on their way through its cache.
struct Hits<'a> {
    cache: &'a Cache,
    table: &'a Table,
    keys: &'a [u64],
    batch: usize,
    stamps: BatchStamps,
}

impl Hits<'_> {
    /// Hands the rows that are resident to the verb, and the others to `missed`. Returns how many
    /// keys were written for the first time.
    #[inline(always)]
    fn visit<O: RowOp>(
        &self,
        op: &mut O,
        locate: impl Fn(u64) -> Location,
        mut missed: impl FnMut(usize),
    ) -> u64 {
        let Self { cache, keys, batch, .. } = *self;
        let id = self.table.id();
        let admits = op.admits();
        let visits = cache.visits();
        let mut fresh = 0;
        cache.staged(
            keys.len(),
            op.changes(),
            |i| locate(keys[i]),
            |i, at| {
                if i + PREFETCHED_AHEAD < keys.len() {
                    op.prefetch(batch, i + PREFETCHED_AHEAD);
                }
                let stamp = self.stamps.at(op.place(batch, i));
                let mut see =
                    |row: RowMut<'_>| fresh += u64::from(visit(op, batch, i, row, stamp, false));
                let hit = match admits {
                    true => visits.access(at, id, keys[i], &mut see),
                    false => visits.peek(at, id, keys[i], &mut see),
                };
                if hit.is_none() {
                    missed(i);
                }
            },
        );
        fresh
    }
}

/// Copies the values of resident rows to their places; calls `missed` for the others.
#[inline(always)]
fn copy_values(
    cache: &Cache,
    table: &Table,
    keys: &[u64],
    output: ValuesOut<'_>,
    locate: impl Fn(u64) -> Location,
    missed: impl FnMut(usize),
) {
    match output {
        ValuesOut::Float32(values) if table.layout.is_float32() => {
            cache.gather(table.id(), keys, table.layout.embedding_dim(), values, locate, missed);
        }
        output => copy_halves(cache, table, keys, output, locate, missed),
    }
}

/// As [`copy_values`] for values of 2 bytes: so many rows are gathered as they are that they stay
/// in the nearest cache of the processor, and written from there.
#[inline(never)]
fn copy_halves(
    cache: &Cache,
    table: &Table,
    keys: &[u64],
    mut output: ValuesOut<'_>,
    locate: impl Fn(u64) -> Location,
    mut missed: impl FnMut(usize),
) {
    const GATHERED_BYTES: usize = 16 << 10;
    let (layout, dim) = (&table.layout, table.layout.embedding_dim());
    let words = layout.value_words();
    let at_once = (GATHERED_BYTES / (4 * words)).max(BLOCK / 2).min(keys.len().max(1));
    let mut gathered = vec![0.0; at_once * words];
    for (i, keys) in keys.chunks(at_once).enumerate() {
        let begin = i * at_once;
        let gathered = &mut gathered[..keys.len() * words];
        cache.gather(table.id(), keys, words, gathered, &locate, |at| missed(begin + at));
        let range = begin * dim..(begin + keys.len()) * dim;
        match &mut output {
            ValuesOut::Float32(values) => {
                let rows = gathered.chunks_exact(words);
                for (words, values) in rows.zip(values[range].chunks_exact_mut(dim)) {
                    layout.read_values(words, values);
                }
            }
            ValuesOut::Bits(bits) => {
                let rows = gathered.chunks_exact(words);
                for (words, bits) in rows.zip(bits[range].chunks_exact_mut(dim)) {
                    bits.copy_from_slice(layout.bits(words));
                }
            }
        }
    }
}

/// Hands a row to the verb; true when the key was written for the first time.
#[inline(always)]
pub(in crate::store) fn visit<O: RowOp>(
    op: &mut O,
    batch: usize,
    i: usize,
    mut row: RowMut<'_>,
    stamp: u32,
    blank: bool,
) -> bool {
    let written = row.is_written();
    let origin = row.origin();
    let effect = op.visit(batch, i, RowView { words: row.words, written, blank, origin });
    if effect == Effect::Wrote {
        row.mark_dirty(stamp);
    }
    effect == Effect::Wrote && !written
}
