//! Rows as callers see them, and the counts of resident and dirty ones.

use super::sets::{DirtyBits, Header, Parts};
use crate::config::Stretch;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

/// A resident row, for reading and changing.
#[derive(Debug)]
pub struct RowMut<'a> {
    /// The row: values, then state.
    pub words: &'a mut [f32],
    header: Option<&'a Header>,
    dirty_since: &'a mut u32,
    dirty: DirtyBits<'a>,
    written: &'a mut u32,
    way: usize,
    dirtied: &'a Cell<i64>,
}

impl<'a> RowMut<'a> {
    #[inline(always)]
    pub(super) fn new(row: Parts<'a>, way: usize, dirtied: &'a Cell<i64>) -> Self {
        let Parts { dirty, written, header, dirty_since, words } = row;
        Self { words, header: header.map(|h| &*h), dirty_since, dirty, written, way, dirtied }
    }

    /// The layout's word about the row's stored copy; `None` where the cache does not keep it.
    #[inline(always)]
    pub fn origin(&self) -> Option<u32> {
        self.header.map(|header| header.origin)
    }

    /// True when the row differs from its stored copy.
    #[inline(always)]
    pub fn is_dirty(&self) -> bool {
        self.dirty.get(self.way)
    }

    /// True when the row is dirty or has a stored copy, that is, an origin other than 0.
    #[inline(always)]
    pub fn is_written(&self) -> bool {
        *self.written >> self.way & 1 == 1
    }

    /// Says that the row was changed and differs from its stored copy, since `stamp` if it did not
    /// before. True when it did not.
    #[inline(always)]
    pub fn mark_dirty(&mut self, stamp: u32) -> bool {
        let was_clean = !self.is_dirty();
        if was_clean {
            *self.dirty_since = stamp;
            self.dirty.set(self.way, true);
            *self.written |= 1 << self.way;
            self.dirtied.set(self.dirtied.get() + 1);
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
    /// The stamp of the change that made it dirty. Means nothing while the row is clean.
    pub dirty_since: u32,
    /// The stretch of the schedule that uses it next, where that is known.
    pub stretch: Option<Stretch>,
    /// The row: values, then state.
    pub words: &'a [f32],
}

/// The known facts about a removed row.
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
    /// Not resident.
    Absent,
    /// Resident, and equal to its stored copy.
    Clean,
    /// Resident, and different from its stored copy.
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
/// counts are relaxed: they order nothing. A shard may be below zero: rows that become dirty are
/// counted late ([`super::Visits`]), and in another shard than the one that they leave.
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

fn sum<'a>(counts: impl Iterator<Item = &'a AtomicI64>) -> u64 {
    let sum: i64 = counts.map(|count| count.load(Ordering::Relaxed)).sum();
    sum.max(0) as u64
}
