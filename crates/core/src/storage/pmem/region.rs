//! The rows of one table in its region, to be read and changed without the lock of the class.
//!
//! Reads take no lock. A thread that changes rows holds the [`Writer`] across reading, changing and
//! putting back, so that changes of a table come one after the other. Beside them another thread
//! moves displaced keys home (`rehome.rs`), except during a sweep, which a moving key could escape.

use super::place::Place;
use super::rehome::Rehoming;
use super::told;
use crate::error::{Result, bail};
use embedrock_pmem::{Durability, Geometry, Mapped, RowViews, Rows};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time without lending of rows after a writer had to wait for row slots.
const LENDS_AGAIN: Duration = Duration::from_secs(5);

/// Rows of a region where they lie.
pub(crate) type LentRows = RowViews<Mapped>;

/// The rows of a table on persistent memory, and what is counted of them.
pub(crate) struct Region {
    pub(super) rows: Arc<Rows<Mapped>>,
    /// The table's name, for messages.
    name: String,
    /// Rows that there are.
    count: AtomicU64,
    /// Whether a change has begun and not ended well: the count may be wrong.
    is_unsure: AtomicBool,
    /// Rows that were put since open.
    written: AtomicU64,
    /// Whether a commit has its table, which without one goes, and its rows with it.
    has_commit: AtomicBool,
    /// Whether it lies in the store's folder and counts as its disk.
    is_own: bool,
    writer: Mutex<()>,
    /// Sweeps under way, and the lock under which keys move.
    sweeps: AtomicU64,
    moving: Mutex<()>,
    pub(super) rehoming: Rehoming,
    /// Writers that had to wait for row slots, as far as it is noticed, and when the last was.
    shortage: Mutex<(u64, Option<Instant>)>,
    /// The process that opened it: a forked child leaves it alone.
    pid: u32,
}

impl Region {
    /// Makes the region of a new table.
    pub(super) fn create(place: &Place<'_>, geometry: Geometry) -> Result<Arc<Self>> {
        Ok(Self::over(place.create(geometry)?, place, false))
    }

    /// Opens the region of a table, which this commit has told of itself.
    pub(super) fn open(
        place: &Place<'_>,
        row_bytes: usize,
        writes: bool,
        commit: u64,
    ) -> Result<Arc<Self>> {
        let rows = place.open(row_bytes, writes)?;
        place.check_mark(&rows, commit)?;
        Ok(Self::over(rows, place, true))
    }

    fn over(rows: Rows<Mapped>, place: &Place<'_>, has_commit: bool) -> Arc<Self> {
        Arc::new(Self {
            count: AtomicU64::new(rows.count()),
            rows: Arc::new(rows),
            name: place.name.to_owned(),
            is_unsure: AtomicBool::new(false),
            written: AtomicU64::new(0),
            has_commit: AtomicBool::new(has_commit),
            is_own: !place.is_apart(),
            writer: Mutex::new(()),
            sweeps: AtomicU64::new(0),
            moving: Mutex::new(()),
            rehoming: Rehoming::default(),
            shortage: Mutex::default(),
            pid: std::process::id(),
        })
    }

    /// Rows that may be stored.
    pub(crate) fn capacity(&self) -> u64 {
        self.rows.geometry().capacity
    }

    /// Rows that are stored.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The events that an acknowledged change survives.
    pub(crate) fn durability(&self) -> Durability {
        self.rows.durability()
    }

    /// Whether a commit has the table: without one its rows go with it.
    pub(crate) fn has_commit(&self) -> bool {
        self.has_commit.load(Ordering::Relaxed)
    }

    /// A commit of this number is made that has the table. Durable on return: a region that does
    /// not know the commit is older.
    pub(super) fn note_commit(&self, commit: u64) -> Result<()> {
        self.rows.set_mark(commit).map_err(|error| self.named(error))?;
        self.has_commit.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of the region.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows.geometry().bytes() as u64
    }

    /// Whether it lies in the store's folder and takes room there.
    pub(crate) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Bytes of it on the store's own disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        if self.is_own { self.bytes() } else { 0 }
    }

    /// Bytes of memory beside the region.
    pub(super) fn memory_bytes(&self) -> u64 {
        Rows::<Mapped>::memory_bytes(&self.rows.geometry()) as u64
    }

    /// Rows that were put since open.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Copies rows: `keys (N,) → words (N × row words)`, and which keys have one.
    pub(crate) fn get(&self, keys: &[u64], words: &mut [f32], found: &mut [bool]) -> Result<()> {
        let got = self.rows.get(keys, bytemuck::cast_slice_mut(words), found);
        got.map(drop).map_err(|error| self.named(error))
    }

    /// Hands each row to `each`: its position, its words, and whether there is one; if not, the
    /// words mean nothing. `row` is the room for it.
    pub(crate) fn visit(
        &self,
        keys: &[u64],
        row: &mut [f32],
        mut each: impl FnMut(usize, &mut [f32], bool),
    ) -> Result<()> {
        let each = |at: usize, row: &mut [u8], found| {
            each(at, bytemuck::cast_slice_mut(row), found);
        };
        let visited = self.rows.visit(keys, bytemuck::cast_slice_mut(row), each);
        visited.map_err(|error| self.named(error))
    }

    /// Lends rows out where they lie, each verified. `None` where too many batches are lent, and
    /// for a while after writers had to wait for row slots.
    pub(crate) fn views(&self, keys: &[u64]) -> Result<Option<LentRows>> {
        if self.is_short() {
            return Ok(None);
        }
        self.rows.views(keys).map_err(|error| self.named(error))
    }

    fn is_short(&self) -> bool {
        let (pauses, mut shortage) = (self.rows.pauses(), self.shortage.lock());
        if shortage.0 != pauses {
            *shortage = (pauses, Some(Instant::now()));
        }
        shortage.1.is_some_and(|noticed| noticed.elapsed() < LENDS_AGAIN)
    }

    /// Tells for each key whether it has a row. No row is read.
    pub(crate) fn contains(&self, keys: &[u64], found: &mut [bool]) -> Result<()> {
        self.rows.contains(keys, found).map_err(|error| self.named(error))
    }

    /// Waits for the right to change rows.
    pub(crate) fn write(self: &Arc<Self>) -> Writer<'_> {
        Writer { region: self, _alone: self.writer.lock() }
    }

    /// As [`Writer::put`], for a caller that already holds the writer.
    pub(crate) fn put_held(self: &Arc<Self>, keys: &[u64], words: &[f32], new: u64) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        self.is_unsure.store(true, Ordering::Relaxed);
        let put = self.rows.put(keys, bytemuck::cast_slice(words));
        put.map_err(|error| self.named(error))?;
        self.is_unsure.store(false, Ordering::Relaxed);
        self.written.fetch_add(keys.len() as u64, Ordering::Relaxed);
        if new > 0 {
            self.count.fetch_add(new, Ordering::Relaxed);
            self.rehoming.wake(self);
        }
        Ok(())
    }

    /// Moves keys to where they are found first, others out of their way; returns how many are
    /// there. While a sweep is under way nothing moves, and none are.
    pub(crate) fn promote(&self, keys: &[u64]) -> Result<u64> {
        let moved = self.move_keys(|rows| rows.promote(keys)).transpose();
        let moved = moved.map_err(|error| self.named(error))?;
        Ok(moved.unwrap_or(0) as u64)
    }

    /// Runs what moves keys, unless a sweep is under way.
    pub(super) fn move_keys<T>(&self, f: impl FnOnce(&Rows<Mapped>) -> T) -> Option<T> {
        let _moving = self.moving.lock();
        // A thread that begins a sweep counts it first and then waits for the lock.
        (self.sweeps.load(Ordering::Acquire) == 0).then(|| f(&self.rows))
    }

    /// Begins a sweep: no key moves until [`end_sweep`](Self::end_sweep).
    pub(super) fn begin_sweep(&self) {
        self.sweeps.fetch_add(1, Ordering::AcqRel);
        drop(self.moving.lock());
    }

    pub(super) fn end_sweep(&self) {
        self.sweeps.fetch_sub(1, Ordering::AcqRel);
    }

    /// An error of the region with the table's name.
    pub(super) fn named(&self, error: embedrock_pmem::Error) -> crate::error::Error {
        told(error).context(format!("table '{}'", self.name))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let is_sure = !self.is_unsure.load(Ordering::Relaxed);
        if is_sure && self.pid == std::process::id() {
            // If the count cannot be noted, the next opening counts the rows.
            let _ = self.rows.end(self.count());
        }
    }
}

/// The right to change the rows of a region.
pub(crate) struct Writer<'a> {
    region: &'a Arc<Region>,
    _alone: MutexGuard<'a, ()>,
}

impl Writer<'_> {
    /// Makes sure that there is room for the keys, which are distinct. `Full` before anything
    /// changed.
    pub(crate) fn check_room(&self, keys: &[u64]) -> Result<()> {
        let (rows, capacity) = (self.region.count(), self.region.capacity());
        if rows + keys.len() as u64 <= capacity {
            return Ok(());
        }
        let mut found = vec![false; keys.len()];
        self.region.contains(keys, &mut found)?;
        let new = found.iter().filter(|found| !**found).count() as u64;
        if rows + new > capacity {
            let name = &self.region.name;
            bail!(
                Full,
                "table '{name}' has {rows} rows in a region for {capacity}, {new} more do not fit; \
                 nothing was changed; delete rows, or close the store and give the table more room \
                 with embedrock resize STORE '{name}' --capacity {} or more",
                rows + new
            );
        }
        Ok(())
    }

    /// Puts rows of distinct keys, `new` of which have none. Durable on return, as far as the
    /// medium allows.
    pub(crate) fn put(&self, keys: &[u64], words: &[f32], new: u64) -> Result<()> {
        self.region.put_held(keys, words, new)
    }

    /// Removes rows and returns how many there were. Durable as in `put`.
    pub(crate) fn remove(&self, keys: &[u64]) -> Result<u64> {
        let region = self.region;
        region.is_unsure.store(true, Ordering::Relaxed);
        let removed = region.rows.remove(keys).map_err(|error| region.named(error))? as u64;
        region.is_unsure.store(false, Ordering::Relaxed);
        if removed > 0 {
            region.count.fetch_sub(removed, Ordering::Relaxed);
            region.rehoming.wake(region);
        }
        Ok(removed)
    }
}
