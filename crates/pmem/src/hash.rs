//! PETHash: an index from keys to words in one level of buckets, read by one access mostly.
//!
//! A key lies in its home bucket, or, where that is full, in the next bucket with room on its path.
//! Every bucket that it passes counts it. A look-up follows the path until the key is found or a
//! bucket counts nobody.
//!
//! **Readers** take no lock and wait for nobody. They compare the version of a bucket before and
//! after: it changes before a slot is filled, so that key and value belong together. A key that
//! moves nearer is put down, then the version of its home changes, then it is taken away; so a
//! reader that found nothing, and finds the version of the home unchanged, has not missed it.
//!
//! **Writers** lock the home bucket of the key, whose entry nobody else may change then, and the
//! buckets of which they change fingerprints or counters. They wait for the home alone; where
//! another lock is taken, they let go and begin again.
//!
//! **Damage.** Each bucket has a check of its fingerprints, counter and keys. A reader that finds a
//! key needs none: the row says whose it is. One that finds nothing compares the check of every
//! bucket that it has visited, and so does a thread before it changes a bucket. A check that does
//! not match in a bucket that nobody has changed meanwhile is damage, and never "no such key".
//!
//! **Crashes.** A known key's value is one word. Everything else changes several, all or none of
//! them, with the check (`redo.rs`).
//!
//! Source: Xie et al., *PetPS: Supporting Huge Embedding Models with Persistent Memory*, VLDB 2023,
//! section 3.2. The lock per bucket is folded into the version; the overflow counter is wider.

use crate::bucket::{PRINTS, Path, Prints, STATE, State};
use crate::error::{Error, Result};
use crate::medium::Medium;
use crate::redo::Change;
use crate::region::{Geometry, Region};
use std::sync::Arc;

/// The value that says "no such key" in results, and that no key may have.
pub const ABSENT: u64 = u64::MAX;

/// Buckets that a key may pass, its home included. At a load of 0.8 paths have 8 at most; 32
/// buckets without room are a sign of keys made to collide.
pub(crate) const PROBES_MAX: u64 = 32;

/// An index in a region.
pub struct PetHash<M> {
    pub(crate) region: Arc<Region<M>>,
}

/// The place of a key that was found.
pub(crate) struct Located {
    pub(crate) bucket: u64,
    pub(crate) slot: usize,
    /// Buckets that the key passed: 0 at home.
    pub(crate) passed: u64,
    pub(crate) value: u64,
}

/// A bucket that this thread holds.
pub(crate) struct Held<'a, M: Medium> {
    index: &'a PetHash<M>,
    pub(crate) bucket: u64,
}

impl<M: Medium> PetHash<M> {
    /// Makes an index in zeroed memory of [`Geometry::bytes`](crate::Geometry::bytes).
    ///
    /// # Errors
    /// `Misuse` where the memory is too small; `Io`.
    pub fn format(medium: M, geometry: Geometry) -> Result<Self> {
        Ok(Self::new(Arc::new(Region::format(medium, geometry)?)))
    }

    /// Opens the index that a medium has.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported`; `Io`.
    pub fn recover(medium: M) -> Result<Self> {
        let index = Self::new(Arc::new(Region::open(medium)?));
        index.make_checks()?;
        Ok(index)
    }

    pub(crate) fn new(region: Arc<Region<M>>) -> Self {
        Self { region }
    }

    /// Number of buckets.
    pub fn buckets(&self) -> u64 {
        self.region.geometry.buckets
    }

    #[inline(always)]
    pub(crate) fn path(&self, key: u64) -> Path {
        let geometry = &self.region.geometry;
        Path::new(key, geometry.salt, geometry.buckets)
    }

    #[inline(always)]
    pub(crate) fn word(&self, bucket: u64) -> usize {
        self.region.geometry.bucket_word(bucket)
    }

    #[inline(always)]
    fn state(&self, bucket: u64) -> State {
        State(self.region.medium.load(self.word(bucket) + STATE))
    }

    #[inline(always)]
    pub(crate) fn prints(&self, bucket: u64) -> Prints {
        let word = self.word(bucket) + PRINTS;
        // In this order: a thread that takes a key away has counted it before.
        let first = self.region.medium.load(word);
        Prints([first, self.region.medium.load(word + 1)])
    }

    #[inline(always)]
    pub(crate) fn key_word(&self, bucket: u64, slot: usize) -> usize {
        self.word(bucket) + 4 + 2 * slot
    }

    #[inline(always)]
    fn search(&self, bucket: u64, prints: Prints, print: u8, key: u64) -> Option<(usize, u64)> {
        prints.matching(print).find_map(|slot| {
            let word = self.key_word(bucket, slot);
            let found = self.region.medium.load(word) == key;
            found.then(|| (slot, self.region.medium.load(word + 1)))
        })
    }

    /// The value of a key, or [`ABSENT`]. Never blocks.
    ///
    /// # Errors
    /// `Corrupt` where a damaged bucket may hide the key.
    #[inline]
    pub fn get(&self, key: u64) -> Result<u64> {
        Ok(self.find(self.path(key), key)?.0)
    }

    /// As [`get`](Self::get), and how many buckets were visited.
    ///
    /// # Errors
    /// As `get`.
    pub fn get_counted(&self, key: u64) -> Result<(u64, u64)> {
        self.find(self.path(key), key)
    }

    #[inline(always)]
    pub(crate) fn find(&self, path: Path, key: u64) -> Result<(u64, u64)> {
        loop {
            if let Some(found) = self.try_find(path, key) {
                if found.0 == ABSENT {
                    self.verify_path(path, found.1)?;
                }
                return Ok(found);
            }
        }
    }

    /// Compares the first buckets of a path, in which a key was not found, with their checks.
    #[inline(always)]
    fn verify_path(&self, path: Path, buckets: u64) -> Result<()> {
        let mut bucket = path.home;
        for _ in 0..buckets {
            self.region.verify(bucket)?;
            bucket = path.next(bucket, self.buckets());
        }
        Ok(())
    }

    /// `None` where a writer came between.
    #[inline(always)]
    fn try_find(&self, path: Path, key: u64) -> Option<(u64, u64)> {
        let mut bucket = path.home;
        let version_of_home = self.state(bucket).version();
        let mut version = version_of_home;
        for probe in 1..=PROBES_MAX {
            let prints = self.prints(bucket);
            if let Some((_, value)) = self.search(bucket, prints, path.print, key) {
                return (self.state(bucket).version() == version).then_some((value, probe));
            }
            if prints.overflow() == 0 || probe == PROBES_MAX {
                let same = self.state(path.home).version() == version_of_home;
                return same.then_some((ABSENT, probe));
            }
            bucket = path.next(bucket, self.buckets());
            version = self.state(bucket).version();
        }
        unreachable!("the last probe returns")
    }

    /// The place of a key, while its home bucket is held: its entry stays, others may change.
    ///
    /// # Errors
    /// `Corrupt` where a damaged bucket may hide it.
    pub(crate) fn locate(&self, path: Path, key: u64) -> Result<Option<Located>> {
        let mut bucket = path.home;
        let mut visited = 0;
        while visited < PROBES_MAX {
            let (prints, passed) = (self.prints(bucket), visited);
            if let Some((slot, value)) = self.search(bucket, prints, path.print, key) {
                return Ok(Some(Located { bucket, slot, passed, value }));
            }
            visited += 1;
            if prints.overflow() == 0 {
                break;
            }
            bucket = path.next(bucket, self.buckets());
        }
        self.verify_path(path, visited)?;
        Ok(None)
    }

    /// Gives a key a value and returns the one it had, or [`ABSENT`]. Durable after the next fence.
    ///
    /// # Errors
    /// As [`put_batch`](Self::put_batch).
    pub fn put(&self, key: u64, value: u64) -> Result<u64> {
        let mut before = ABSENT;
        let (_, done) = self.put_batch(&[key], &[value], |_, old| before = old);
        done.map(|()| before)
    }

    fn full(&self, key: u64) -> Error {
        let geometry = &self.region.geometry;
        Error::full(format!(
            "{}: no room for key {key} within {PROBES_MAX} buckets; the region is made for {} \
             rows; resize it into one with more",
            self.region.medium.name(),
            geometry.capacity
        ))
    }

    /// Puts a key behind its home, which is held and full. `false`: another thread is in the way.
    pub(crate) fn insert_displaced(&self, path: Path, key: u64, value: u64) -> Result<bool> {
        let mut held: Vec<Held<'_, M>> = Vec::new();
        let mut change = Change::default();
        let mut bucket = path.home;
        for _ in 1..PROBES_MAX.min(self.buckets()) {
            self.count(&mut change, bucket, true);
            bucket = path.next(bucket, self.buckets());
            let Some(next) = self.try_lock(bucket) else { return Ok(false) };
            held.push(next);
            if let Some(slot) = self.prints(bucket).first_free() {
                self.fill(&mut change, (bucket, slot), path.print, key, value);
                change.commit(&self.region)?;
                return Ok(true);
            }
        }
        Err(self.full(key))
    }

    /// Adds to a change that a free slot of a bucket, which is held, has a key.
    pub(crate) fn fill(
        &self,
        change: &mut Change,
        (bucket, slot): (u64, usize),
        print: u8,
        key: u64,
        value: u64,
    ) {
        // Pairs with the loads in `try_find`: a reader that sees the new key sees the new version.
        self.set_state(bucket, State::bumped);
        let word = self.key_word(bucket, slot);
        change.store(word, key);
        change.store(word + 1, value);
        self.print(change, bucket, slot, print);
    }

    /// Adds to a change that a bucket, which is held, has another version. A replay of the change
    /// stores a lock of a dead process, which binds nobody.
    pub(crate) fn bump(&self, change: &mut Change, bucket: u64) {
        change.store(self.word(bucket) + STATE, self.state(bucket).bumped().0);
    }

    fn set_state(&self, bucket: u64, change: impl FnOnce(State) -> State) {
        self.region.medium.store(self.word(bucket) + STATE, change(self.state(bucket)).0);
    }

    /// Adds to a change that a key which passes `bucket` comes or goes.
    pub(crate) fn count(&self, change: &mut Change, bucket: u64, more: bool) {
        let prints = self.prints_after(change, bucket);
        change.store(self.word(bucket) + PRINTS + 1, prints.with_overflow(more));
    }

    /// Adds to a change that a slot has a fingerprint; 0 frees it.
    pub(crate) fn print(&self, change: &mut Change, bucket: u64, slot: usize, print: u8) {
        let (word, value) = self.prints_after(change, bucket).with(slot, print);
        change.store(self.word(bucket) + PRINTS + word, value);
    }

    pub(crate) fn prints_after(&self, change: &Change, bucket: u64) -> Prints {
        let word = self.word(bucket) + PRINTS;
        Prints([0, 1].map(|i| change.load(&self.region.medium, word + i)))
    }

    /// Removes a key and returns the value it had, or [`ABSENT`], which `seen` is told while the
    /// key is locked. Durable on return.
    ///
    /// # Errors
    /// `Corrupt` where a bucket that would change is damaged; `Io`.
    pub fn remove(&self, key: u64, seen: impl FnOnce(u64)) -> Result<u64> {
        let (mut before, mut seen) = (ABSENT, Some(seen));
        self.remove_batch(&[key], |_, old| {
            before = old;
            if let Some(seen) = seen.take() {
                seen(old);
            }
        })?;
        Ok(before)
    }

    /// Removes a key behind its home.
    pub(crate) fn remove_displaced(&self, key: u64, seen: &mut impl FnMut(u64, u64)) -> Result<()> {
        let path = self.path(key);
        loop {
            let home = self.lock(path.home);
            let Some(at) = self.locate(path, key)? else { return Ok(()) };
            let Some(_held) = self.lock_path(path, at.passed) else {
                drop(home);
                std::thread::yield_now();
                continue;
            };
            let mut change = Change::default();
            self.print(&mut change, at.bucket, at.slot, 0);
            let mut bucket = path.home;
            for _ in 0..at.passed {
                self.count(&mut change, bucket, false);
                bucket = path.next(bucket, self.buckets());
            }
            change.commit(&self.region)?;
            seen(key, at.value);
            return Ok(());
        }
    }

    /// Calls `look` with a key's value, or [`ABSENT`], while no other thread can change it. The
    /// value is durable after the next fence, although a dead process may have stored it.
    ///
    /// # Errors
    /// `Corrupt` where a damaged bucket may hide the key.
    pub(crate) fn inspect<R>(&self, key: u64, look: impl FnOnce(u64) -> R) -> Result<R> {
        let path = self.path(key);
        let _home = self.lock(path.home);
        let at = self.locate(path, key)?;
        // Values are all that can be pending: other changes are durable before their locks are let
        // go, or when their lane is replayed.
        if let Some(at) = &at {
            self.region.medium.flush(self.value_word(at)..self.value_word(at) + 1);
        }
        Ok(look(at.map_or(ABSENT, |at| at.value)))
    }

    fn value_word(&self, at: &Located) -> usize {
        self.key_word(at.bucket, at.slot) + 1
    }

    /// Gives a key whose home is held another value.
    pub(crate) fn set_value(&self, at: &Located, value: u64) {
        let word = self.value_word(at);
        self.region.medium.store(word, value);
        self.region.medium.flush(word..word + 1);
    }

    /// Makes everything that this thread has changed durable.
    ///
    /// # Errors
    /// `Io`; the region then takes no changes until it is opened again.
    pub fn fence(&self) -> Result<()> {
        self.region.fence()
    }

    /// Holds a bucket. Waits while another thread does.
    pub(crate) fn lock(&self, bucket: u64) -> Held<'_, M> {
        for tries in 1u32.. {
            if let Some(held) = self.try_lock(bucket) {
                return held;
            }
            if tries % 64 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        unreachable!("the loop has no end")
    }

    pub(crate) fn try_lock(&self, bucket: u64) -> Option<Held<'_, M>> {
        let (state, opening) = (self.state(bucket), self.region.opening);
        let word = self.word(bucket) + STATE;
        let taken = !state.is_locked(opening)
            && self.region.medium.exchange(word, state.0, state.locked(opening).0);
        // Not `then_some`: a value that is dropped would unlock what another thread holds.
        taken.then(|| Held { index: self, bucket })
    }

    /// Holds the buckets on a path behind its home, as many as `passed`, or none.
    pub(crate) fn lock_path(&self, path: Path, passed: u64) -> Option<Vec<Held<'_, M>>> {
        let mut bucket = path.home;
        let next = |_| {
            bucket = path.next(bucket, self.buckets());
            self.try_lock(bucket)
        };
        (0..passed).map(next).collect()
    }
}

impl<M: Medium> Drop for Held<'_, M> {
    fn drop(&mut self) {
        self.index.set_state(self.bucket, State::unlocked);
    }
}
