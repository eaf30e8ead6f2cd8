//! Moves displaced keys back to where they are found at the first probe.
//!
//! Keys come and go, and those that found their home full stay behind it when it has room again.
//! Without moving them, look-ups visit ever more buckets. A thread calls [`PetHash::rehome`] for a
//! few buckets at a time, beside readers and writers.

use crate::error::{ErrorKind, Result};
use crate::hash::{Held, PROBES_MAX, PetHash};
use crate::medium::Medium;
use crate::redo::Change;

/// The result of a pass over some buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rehomed {
    /// Keys in the buckets.
    pub keys: u64,
    /// Keys that were behind their home.
    pub displaced: u64,
    /// Keys that lie nearer to their home since, mostly in it.
    pub moved: u64,
}

impl<M: Medium> PetHash<M> {
    /// Moves the displaced keys of some buckets home, or as near as there is room. Bucket numbers
    /// wrap around. Durable when it returns; a crash leaves each key in one place.
    ///
    /// # Errors
    /// `Io`.
    pub fn rehome(&self, first: u64, buckets: u64) -> Result<Rehomed> {
        self.region.writable()?;
        let mut found = Rehomed::default();
        for bucket in (0..buckets.min(self.buckets())).map(|i| (first + i) % self.buckets()) {
            for slot in self.prints(bucket).occupied() {
                let key = self.region.medium.load(self.key_word(bucket, slot));
                found.keys += 1;
                if self.path(key).home != bucket {
                    found.displaced += 1;
                    found.moved += match self.move_nearer(key, |_| true) {
                        Ok(moved) => u64::from(moved),
                        // It stays where it is; a reader of its key gets the error.
                        Err(error) if error.kind() == ErrorKind::Corrupt => 0,
                        Err(error) => return Err(error),
                    };
                }
            }
        }
        Ok(found)
    }

    /// Moves a key home even if its home is full: a key that lies there and is not `hot` makes
    /// room. Returns whether the key is at home. The callers name the hot keys (section 3.2,
    /// hotness-aware placement).
    ///
    /// # Errors
    /// `Io`.
    pub fn promote(&self, key: u64, hot: impl Fn(u64) -> bool) -> Result<bool> {
        self.region.writable()?;
        let path = self.path(key);
        self.move_nearer(key, hot)?;
        let _home = self.lock(path.home);
        Ok(self.locate(path, key)?.is_some_and(|at| at.passed == 0))
    }

    /// Moves a key as near to its home as there is room; keys that are not to be kept make room.
    fn move_nearer(&self, key: u64, keep: impl Fn(u64) -> bool) -> Result<bool> {
        let path = self.path(key);
        let home = self.lock(path.home);
        let Some(at) = self.locate(path, key)?.filter(|at| at.passed > 0) else { return Ok(false) };
        let mut room = self.prints(path.home).first_free();
        if room.is_none() {
            room = self.make_room(&home, keep)?;
        }
        // Another thread is in the way: the next pass finds the key again.
        let Some(behind) = self.lock_path(path, at.passed) else { return Ok(false) };
        let nearer = behind[..behind.len() - 1].iter().enumerate();
        let places = nearer.filter_map(|(i, held)| {
            Some((held.bucket, i as u64 + 1, self.prints(held.bucket).first_free()?))
        });
        let mut places = room.map(|slot| (path.home, 0, slot)).into_iter().chain(places);
        let Some((target, passed, slot)) = places.next() else { return Ok(false) };
        let mut change = Change::default();
        self.fill(&mut change, (target, slot), path.print, key, at.value);
        // Between there and here: a reader that has passed the new place before, and comes to the
        // old one after, finds the version of the home changed.
        self.bump(&mut change, path.home);
        self.print(&mut change, at.bucket, at.slot, 0);
        let passed_before = std::iter::once(&home).chain(&behind[..behind.len() - 1]);
        for held in passed_before.skip(passed as usize) {
            self.count(&mut change, held.bucket, false);
        }
        change.commit(&self.region)?;
        Ok(true)
    }

    /// Moves a key out of its home, which is held, and returns its slot. Keys whose home is another
    /// bucket stay: they are not this lock's.
    fn make_room(&self, home: &Held<'_, M>, keep: impl Fn(u64) -> bool) -> Result<Option<usize>> {
        for slot in self.prints(home.bucket).occupied() {
            let word = self.key_word(home.bucket, slot);
            let key = self.region.medium.load(word);
            let path = self.path(key);
            if path.home != home.bucket || keep(key) {
                continue;
            }
            let mut change = Change::default();
            let mut held: Vec<Held<'_, M>> = Vec::new();
            let mut bucket = home.bucket;
            for _ in 1..PROBES_MAX.min(self.buckets()) {
                self.count(&mut change, bucket, true);
                bucket = path.next(bucket, self.buckets());
                let Some(next) = self.try_lock(bucket) else { return Ok(None) };
                held.push(next);
                if let Some(free) = self.prints(bucket).first_free() {
                    // Readers come by here first: none passes the key on its way.
                    let value = self.region.medium.load(word + 1);
                    self.fill(&mut change, (bucket, free), path.print, key, value);
                    self.print(&mut change, home.bucket, slot, 0);
                    change.commit(&self.region)?;
                    return Ok(Some(slot));
                }
            }
        }
        Ok(None)
    }
}
