//! The DRAM tier: a set-partitioned row cache, one per row class.
//!
//! A [`Cache`] is many small sets of up to 32 rows. A key belongs to one set ([`Location`]);
//! look-up, recency, victim, dirty bit and lock stay inside it. There is no second hash table, no
//! list, and no allocation after [`Cache::new`]. A row costs 8 bytes of metadata beside its own,
//! and a header of 16 (key, origin, table) unless all rows are dense and set and tag tell which one
//! it is ([`Cache::of_dense_rows`]). Policies choose the row that leaves; they never move one. A
//! hit touches one line of the set's and the row; the header only where a tag does not tell the
//! row; a change that makes a row dirty one line more, for its stamp, if that does not lie behind
//! the row.
//!
//! The cache does no I/O and knows no layout: rows come in through [`Cache::admit`], whose callback
//! fills them, and leave through its victim callback. An *origin* is an opaque word of the layout
//! about the row's stored copy.
//!
//! Callbacks run under the lock of the row's set, so each row is seen and changed as a whole. They
//! must not call the cache again and should take no longer than copying a row. The lock spins and
//! then yields. Lock order: class lock, then one set lock.
//!
//! Every verb goes over its batch with [`Cache::gather`], which only copies and takes no locks, or
//! with [`Cache::staged`]. Both prefetch ahead, so that resident rows cost memory bandwidth and not
//! latency.
//!
//! *Source*: blocks with their own lock and replacement, SSDHashEmbed; prefetching the next key,
//! PetPS.

mod arrivals;
mod gather;
mod held;
mod lines;
mod locate;
mod next_use;
mod policy;
mod racing;
mod row;
mod sets;
mod shrink;
mod stages;
mod tags;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use crate::config::PolicyKind;
pub(crate) use held::Run;
pub(crate) use locate::CACHE_FIXED_BYTES;
pub use locate::Location;
pub(crate) use next_use::{NextUse, SchedulePlace};
pub(crate) use policy::{Policy, WAYS_MAX};
pub use row::RowMut;
pub(crate) use row::{Removed, Resident, RowRef};
pub(crate) use sets::BLOCK;
pub(crate) use shrink::{Leaving, TakeWay};

use crate::error::Result;
use arrivals::Arrivals;
use held::Held;
use locate::Locator;
use next_use::NextUses;
use parking_lot::Mutex;
use row::Counters;
use sets::{Header, LockedSet, Sets};
use shrink::Shrinking;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// The fewest rows per set that a cache can be shrunk to. With fewer, sets overflow too unevenly
/// (SSDHashEmbed's smallest block).
pub(crate) const WAYS_MIN: usize = 8;

/// The parameters that fix the shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Bytes of a row, values and state; a multiple of 4.
    pub row_bytes: usize,
    /// Sets, at least 1.
    pub sets: u32,
    /// Rows per set, 1 to 32. Fewer than 32 make the metadata dearer per row.
    pub ways: usize,
    /// The policy that chooses which row leaves a full set.
    pub policy: PolicyKind,
    /// Whether rows have headers that tell whose they are; [`Cache::of_dense_rows`] has none.
    pub headers: bool,
}

/// A dense table's rows: its row `id` is number `first + id` of the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseTable {
    /// Number of the row with id 0.
    pub first: u64,
    /// The table.
    pub table: u16,
}

impl CacheShape {
    /// The bytes of a cache of this shape, beside [`CACHE_FIXED_BYTES`].
    pub fn bytes(&self) -> u64 {
        let slots = self.ways * sets::slot_bytes(self.row_bytes, self.headers);
        u64::from(self.sets) * (sets::set_bytes(self.row_bytes) + slots) as u64
    }

    /// True when `rows` dense rows can do without headers in `sets` sets: about 64 times as many
    /// as sets of 32 hold.
    pub fn tells_dense_rows(sets: u64, rows: u64) -> bool {
        rows <= sets.saturating_mul(locate::ROWS_PER_SET_MAX)
    }
}

/// A set-partitioned row cache. All methods may be called from several threads at once.
#[derive(Debug)]
pub struct Cache {
    sets: Sets,
    locator: Locator,
    policy: PolicyKind,
    row_bytes: usize,
    /// The tables of the rows, by rising `first`, in a cache without headers.
    dense: Vec<DenseTable>,
    counters: Counters,
    /// Rows that the last capture marked.
    captured: AtomicU64,
    /// Number of the rows used last that stay in each set while it has others.
    recent: AtomicU8,
    /// The next uses of rows, once they are known.
    next_uses: OnceLock<NextUses>,
    /// The rows that are held.
    held: Held,
    /// Ways that all sets still have.
    ways: AtomicUsize,
    /// Guards the taking of ways; taken before set locks.
    shrinking: Mutex<Shrinking>,
    /// Steps of shrinking so far.
    moves: AtomicU64,
    arrivals: Arrivals,
}

impl Cache {
    /// Maps an empty cache with headers. Its memory is taken from the system as it fills.
    ///
    /// *Errors*: `Misuse` for an impossible shape; `Budget` when the memory cannot be had.
    pub fn new(shape: CacheShape) -> Result<Self> {
        assert!(shape.headers, "a cache of any rows has headers");
        Self::of_shape(shape, Vec::new())
    }

    /// Maps an empty cache for the rows of these dense tables alone, by rising first number,
    /// without headers. Such a cache does not keep origins: the index of a dense table tells them.
    ///
    /// Panics later when a row is beyond what [`CacheShape::tells_dense_rows`] allows.
    /// *Errors*: as `new`.
    pub fn of_dense_rows(shape: CacheShape, tables: Vec<DenseTable>) -> Result<Self> {
        assert!(!shape.headers && tables.first().is_some_and(|table| table.first == 0));
        assert!(tables.is_sorted_by(|a, b| a.first <= b.first));
        Self::of_shape(shape, tables)
    }

    fn of_shape(shape: CacheShape, dense: Vec<DenseTable>) -> Result<Self> {
        Ok(Self {
            sets: Sets::new(shape.sets, shape.ways, shape.row_bytes, shape.headers)?,
            dense,
            locator: Locator::new(shape.sets),
            policy: shape.policy,
            row_bytes: shape.row_bytes,
            counters: Counters::new(),
            captured: AtomicU64::new(0),
            recent: AtomicU8::new(0),
            next_uses: OnceLock::new(),
            held: Held::default(),
            ways: AtomicUsize::new(shape.ways),
            shrinking: Mutex::new(Shrinking::new(shape.ways)),
            moves: AtomicU64::new(0),
            arrivals: Arrivals::default(),
        })
    }

    /// Says that so many rows are about to come, which will be used once more soon: what a training
    /// step reads, it changes next. A policy that goes by frequency then evicts others before them,
    /// as far as they are no more than half of a set. (Measured where a step's rows were half of a
    /// cache with LFU: of 6,100 rows read for their embeddings 5,400 were gone at the update.)
    pub fn announce_misses(&self, rows: usize) {
        let per_set = rows as f64 / f64::from(self.sets());
        // Sets get more or fewer than the average.
        let recent = if per_set < 0.25 { 0.0 } else { (1.5 * per_set).ceil() + 1.0 };
        let most = self.ways.load(Ordering::Relaxed) as f64 / 2.0;
        // Of a step's many calls most bring few rows.
        let before = self.recent.load(Ordering::Relaxed);
        self.recent.store((recent.min(most) as u8).max(before / 4 * 3), Ordering::Relaxed);
    }

    /// The location of a sparse key's row, from the key's mixed hash.
    #[inline(always)]
    pub fn locate_hashed(&self, hash: u64) -> Location {
        self.locator.hashed(hash)
    }

    /// The location of a dense row, from its running number in the class (the table's first number
    /// plus the id).
    ///
    /// Each aligned block of as many numbers as there are sets puts one row in each set, from a
    /// start that differs from block to block. So rows 0 to 32 × sets all fit at once, and strided
    /// ids still spread. A number must mean one row for as long as the cache lives: tags are made
    /// of it that are taken for the row.
    #[inline(always)]
    pub fn locate_dense(&self, sequence: u64) -> Location {
        self.locator.dense(sequence)
    }

    /// For the uses of many rows, one after the other.
    #[inline(always)]
    pub fn visits(&self) -> Visits<'_> {
        self.visits_of(0)
    }

    /// Counts what becomes dirty with the rows of this set.
    #[inline(always)]
    fn visits_of(&self, set: u32) -> Visits<'_> {
        Visits { cache: self, set, dirtied: Cell::new(0) }
    }

    /// As [`Visits::access`], of one row.
    #[inline(always)]
    pub fn access<R>(
        &self,
        at: Location,
        table: u16,
        key: u64,
        f: impl FnOnce(RowMut<'_>) -> R,
    ) -> Option<R> {
        self.visits_of(at.set).access(at, table, key, f)
    }

    /// As [`Visits::peek`], of one row.
    #[inline(always)]
    pub fn peek<R>(
        &self,
        at: Location,
        table: u16,
        key: u64,
        f: impl FnOnce(RowMut<'_>) -> R,
    ) -> Option<R> {
        self.visits_of(at.set).peek(at, table, key, f)
    }

    /// Uses the row of `key`, and makes it resident first if it is not.
    ///
    /// `f` gets the row and whether it is fresh. A fresh row is clean, has the given `origin`, and
    /// its words are undefined: `f` must write all of them. When the set is full, the policy's
    /// victim is handed to `victim` before it is overwritten. If `f` panics, a fresh row is gone.
    pub fn admit<R>(
        &self,
        at: Location,
        table: u16,
        key: u64,
        origin: u32,
        f: impl FnOnce(RowMut<'_>, bool) -> R,
        victim: impl FnOnce(RowRef<'_>),
    ) -> R {
        self.admit_for(at, (table, key, origin), None, f, victim)
            .expect("only rows that come ahead of their use are turned away")
    }

    /// Admits a row that is used now, or in the batch `next`, where it may be turned away: then
    /// `None`.
    #[inline(always)]
    fn admit_for<R>(
        &self,
        at: Location,
        (table, key, origin): (u16, u64, u32),
        next: Option<NextUse>,
        f: impl FnOnce(RowMut<'_>, bool) -> R,
        victim: impl FnOnce(RowRef<'_>),
    ) -> Option<R> {
        let visits = self.visits_of(at.set);
        let mut set = self.sets.lock(at.set);
        if let Some(way) = find(&set, at, table, key) {
            match next {
                None => set.mark_used(way),
                Some(next) => self.expect_use_of(at.set, way, next),
            }
            return Some(f(visits.row_mut(&mut set, way), false));
        }
        self.settle(&mut set);
        let way = self.make_room(&mut set, next, victim)?;
        let row = set.row_mut(way);
        match row.header {
            Some(header) => *header = Header { key, origin, table },
            None => assert!(at.is_exact(), "{at:?} does not tell a row"),
        }
        *row.written |= u32::from(origin != 0) << way;
        let fresh = Fresh { cache: self, set: &mut set, way };
        let result = f(visits.row_mut(fresh.set, way), true);
        std::mem::forget(fresh);
        set.set_tag(way, at.tag);
        self.policy.enter(set.uses_mut(), way);
        match next {
            None => self.came(at.set, way, table, key),
            Some(next) => self.expect_use_of(at.set, way, next),
        }
        self.counters.add_resident(at.set, 1);
        self.note_arrival(table, key);
        Some(result)
    }

    /// Whether a row that came to the set now would drive out none.
    pub fn has_room(&self, at: Location) -> bool {
        let set = self.sets.lock(at.set);
        set.usable_mask() & !set.valid() != 0
    }

    /// Drops the row of `key` from the cache, whatever it holds. `None` when it is not resident.
    pub fn remove<R>(
        &self,
        at: Location,
        table: u16,
        key: u64,
        f: impl FnOnce(Removed) -> R,
    ) -> Option<R> {
        let mut set = self.sets.lock(at.set);
        let way = find(&set, at, table, key)?;
        let row = self.row_ref(&set, way);
        let result = f(Removed { origin: row.origin, dirty: row.dirty });
        self.vacate(&mut set, way);
        Some(result)
    }

    /// The stored copy of `key` moved: a resident row whose origin is `expected` gets `origin`.
    /// Says whether the row is resident and dirty; another origin than expected is left alone.
    pub fn set_origin(
        &self,
        at: Location,
        table: u16,
        key: u64,
        expected: u32,
        origin: u32,
    ) -> Resident {
        let mut set = self.sets.lock(at.set);
        let Some(way) = find(&set, at, table, key) else {
            return Resident::Absent;
        };
        let mut row = set.row_mut(way);
        if row.header.as_ref().is_some_and(|header| header.origin == expected) {
            row.set_origin(way, origin);
        }
        if row.dirty.get(way) { Resident::Dirty } else { Resident::Clean }
    }

    /// A way without a row: an empty one, or that of the victim. `None` when all rows are used
    /// before the batch `next`. The uses are settled.
    fn make_room(
        &self,
        set: &mut LockedSet<'_>,
        next: Option<NextUse>,
        victim: impl FnOnce(RowRef<'_>),
    ) -> Option<usize> {
        let empty = set.usable_mask() & !set.valid();
        if empty != 0 {
            return Some(empty.trailing_zeros() as usize);
        }
        let way = self.victim(set, self.recent.load(Ordering::Relaxed), next)?;
        victim(self.row_ref(set, way));
        self.vacate(set, way);
        Some(way)
    }

    /// Tells the policy which rows were used since the last time.
    fn settle(&self, set: &mut LockedSet<'_>) {
        let (mut ways, mut used) = ([0; WAYS_MAX], 0);
        for way in bits(set.take_used()) {
            ways[used] = way;
            used += 1;
        }
        let uses = set.uses_mut();
        // The order that they had among themselves is the best guess of the one they were used in.
        ways[..used].sort_unstable_by_key(|way| std::cmp::Reverse(uses.ranks[*way]));
        for way in &ways[..used] {
            self.policy.touch(uses, *way);
        }
    }

    /// Table and key of the row in a way that holds one.
    fn identity(&self, set: &LockedSet<'_>, way: usize) -> (u16, u64) {
        if let Some(header) = set.header(way) {
            return (header.table, header.key);
        }
        let sequence = self.locator.sequence(set.index(), set.tag(way));
        let after = self.dense.partition_point(|table| table.first <= sequence);
        let of = self.dense[after - 1];
        (of.table, sequence - of.first)
    }

    fn row_ref<'a>(&self, set: &'a LockedSet<'_>, way: usize) -> RowRef<'a> {
        let (table, key) = self.identity(set, way);
        RowRef {
            table,
            key,
            origin: set.header(way).map(|header| header.origin),
            dirty: set.dirty() >> way & 1 == 1,
            captured: set.captured() >> way & 1 == 1,
            dirty_since: set.dirty_since(way),
            stretch: self.next_uses.get().and_then(|uses| uses.stretch_of(set.index(), way)),
            words: set.words(way),
        }
    }

    /// Empties a way that holds a row.
    fn vacate(&self, set: &mut LockedSet<'_>, way: usize) {
        self.set_clean(set, way);
        *set.written_mut() &= !(1 << way);
        set.forget_use(way);
        if let Some(uses) = self.next_uses.get() {
            uses.clear(set.index(), way);
        }
        set.uses_mut().leave(way);
        set.set_tag(way, 0);
        self.counters.add_resident(set.index(), -1);
    }

    fn set_clean(&self, set: &mut LockedSet<'_>, way: usize) {
        if set.dirty() >> way & 1 == 1 {
            set.dirty_mut().set(way, false);
            let captured = set.captured();
            set.set_captured(captured & !(1 << way));
            self.counters.add_dirty(set.index(), -1);
        }
    }

    /// Number of sets.
    pub fn sets(&self) -> u32 {
        self.sets.count()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Resident rows. Exact when nobody is changing the cache.
    pub fn resident_rows(&self) -> u64 {
        self.counters.resident()
    }

    /// Resident rows that differ from their stored copies. Exact when nobody is changing the cache;
    /// lacks rows of [`Visits`] that go on.
    pub fn dirty_rows(&self) -> u64 {
        self.counters.dirty()
    }
}

/// Uses of resident rows, one after the other. The rows that became dirty are counted when it is
/// dropped, for an addition that other threads see takes some nanoseconds.
#[derive(Debug)]
pub struct Visits<'a> {
    cache: &'a Cache,
    set: u32,
    dirtied: Cell<i64>,
}

impl Visits<'_> {
    /// Uses the row of `key` if it is resident: `f` reads or changes it, and it counts as used.
    /// `None` when it is not.
    #[inline(always)]
    pub fn access<R>(
        &self,
        at: Location,
        table: u16,
        key: u64,
        f: impl FnOnce(RowMut<'_>) -> R,
    ) -> Option<R> {
        let mut set = self.cache.sets.lock(at.set);
        let way = find(&set, at, table, key)?;
        set.mark_used(way);
        Some(f(self.row_mut(&mut set, way)))
    }

    /// Like [`access`](Self::access), without counting as a use.
    #[inline(always)]
    pub fn peek<R>(
        &self,
        at: Location,
        table: u16,
        key: u64,
        f: impl FnOnce(RowMut<'_>) -> R,
    ) -> Option<R> {
        let mut set = self.cache.sets.lock(at.set);
        let way = find(&set, at, table, key)?;
        Some(f(self.row_mut(&mut set, way)))
    }

    #[inline(always)]
    fn row_mut<'r>(&'r self, set: &'r mut LockedSet<'_>, way: usize) -> RowMut<'r> {
        RowMut::new(set.row_mut(way), way, &self.dirtied)
    }
}

impl Drop for Visits<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.dirtied.get() != 0 {
            self.cache.counters.add_dirty(self.set, self.dirtied.get());
        }
    }
}

/// The way that holds the row of `key`.
#[inline(always)]
fn find(set: &LockedSet<'_>, at: Location, table: u16, key: u64) -> Option<usize> {
    let is_row = |way| {
        let same = || set.header(way).is_some_and(|h| h.key == key && h.table == table);
        debug_assert!(
            !at.is_exact() || set.header(way).is_none() || same(),
            "an exact tag of another row"
        );
        at.is_exact() || same()
    };
    // The way that was seen when the row was prefetched, if it still holds the row.
    let hint = usize::from(at.hint);
    if hint < WAYS_MAX && set.tag(hint) == at.tag && is_row(hint) {
        return Some(hint);
    }
    let mut candidates = set.matches(at.tag);
    while candidates != 0 {
        let way = candidates.trailing_zeros() as usize;
        if is_row(way) {
            return Some(way);
        }
        candidates &= candidates - 1;
    }
    None
}

/// The ways whose bits are set, in order.
fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let way = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(way)
    })
}

/// A row that is being filled. Dropped only when the filling panics: then the way is empty again,
/// and its dirty bit must not stay behind.
struct Fresh<'s, 'a> {
    cache: &'s Cache,
    set: &'s mut LockedSet<'a>,
    way: usize,
}

impl Drop for Fresh<'_, '_> {
    fn drop(&mut self) {
        self.cache.set_clean(self.set, self.way);
        *self.set.written_mut() &= !(1 << self.way);
    }
}
