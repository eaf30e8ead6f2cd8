//! Rows as callers see them, and the counts of resident and dirty ones.

use super::sets::{Header, Parts, State};
use std::sync::atomic::{AtomicI64, Ordering};

/// A resident row, for reading and changing.
#[derive(Debug)]
pub struct RowMut<'a> {
    /// The row: values, then state.
    pub words: &'a mut [f32],
    header: Option<&'a Header>,
    changed: &'a mut u32,
    state: &'a mut State,
    way: usize,
    counters: &'a Counters,
    set: u32,
}

impl<'a> RowMut<'a> {
    #[inline(always)]
    pub(super) fn new(row: Parts<'a>, way: usize, counters: &'a Counters, set: u32) -> Self {
        let Parts { state, header, changed, words } = row;
        Self { words, header: header.map(|h| &*h), changed, state, way, counters, set }
    }

    /// The layout's word about the row's stored copy; `None` where the cache does not keep it.
    #[inline(always)]
    pub fn origin(&self) -> Option<u32> {
        self.header.map(|header| header.origin)
    }

    /// True when the row differs from its stored copy.
    #[inline(always)]
    pub fn is_dirty(&self) -> bool {
        self.state.dirty >> self.way & 1 == 1
    }

    /// True when the row is dirty or has a stored copy, that is, an origin other than 0.
    #[inline(always)]
    pub fn is_written(&self) -> bool {
        self.state.written >> self.way & 1 == 1
    }

    /// Says that the row was changed at `stamp` and differs from its stored copy. True when it did
    /// not before.
    #[inline(always)]
    pub fn mark_dirty(&mut self, stamp: u32) -> bool {
        *self.changed = stamp;
        let was_clean = !self.is_dirty();
        if was_clean {
            self.state.dirty |= 1 << self.way;
            self.state.written |= 1 << self.way;
            self.counters.add_dirty(self.set, 1);
        }
        was_clean
    }
}

/// A resident row, for reading: a victim, or one met on a walk.
#[derive(Clone, Copy, Debug)]
pub struct RowRef<'a> {
    /// The row's table.
    pub table: u16,
    /// The row's key.
    pub key: u64,
    /// The layout's word about the row's stored copy; `None` where the cache does not keep it.
    pub origin: Option<u32>,
    /// True when the row differs from its stored copy.
    pub dirty: bool,
    /// True when it did so at the last [`Cache::capture`](super::Cache::capture), and is unchanged.
    pub captured: bool,
    /// The stamp of its last change. Means nothing while the row is clean.
    pub changed: u32,
    /// The row: values, then state.
    pub words: &'a [f32],
}

/// What was known about a removed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The layout's word about the row's stored copy; `None` where the cache does not keep it.
    pub origin: Option<u32>,
    /// True when the row differed from its stored copy.
    pub dirty: bool,
}

/// Whether a row is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// It is not.
    Absent,
    /// It is, and equals its stored copy.
    Clean,
    /// It is, and differs from its stored copy.
    Dirty,
}

/// Counts of one shard, alone on a pair of cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    resident: AtomicI64,
    dirty: AtomicI64,
}

/// Resident and dirty rows of a cache, counted in shards by set so that threads seldom meet. The
/// counts are relaxed: they order nothing.
#[derive(Debug)]
pub(super) struct Counters([Shard; 16]);

impl Counters {
    pub(super) fn new() -> Self {
        Self(Default::default())
    }

    #[inline(always)]
    fn shard(&self, set: u32) -> &Shard {
        &self.0[set as usize % 16]
    }

    pub(super) fn add_resident(&self, set: u32, rows: i64) {
        self.shard(set).resident.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn add_dirty(&self, set: u32, rows: i64) {
        self.shard(set).dirty.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn resident(&self) -> u64 {
        sum(self.0.iter().map(|shard| &shard.resident))
    }

    pub(super) fn dirty(&self) -> u64 {
        sum(self.0.iter().map(|shard| &shard.dirty))
    }
}

/// Never negative: each row is counted up and down in its own shard, in that order.
fn sum<'a>(counts: impl Iterator<Item = &'a AtomicI64>) -> u64 {
    counts.map(|count| count.load(Ordering::Relaxed).unsigned_abs()).sum()
}
