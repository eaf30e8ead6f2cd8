//! Values for a batch of keys, and removals: new keys, and those that go, share their fences.
//!
//! Keys that are new and have room at home, or that go from there, are gathered in a group, whose
//! home buckets stay locked until one change publishes them all. Three fences then serve twenty
//! keys, or more than a hundred in a file, where a fence is a wait for the disk.

use crate::error::{Error, Result};
use crate::hash::{ABSENT, Held, PetHash};
use crate::medium::{Durability, Medium};
use crate::redo::{Change, ENTRIES_MAX};

/// Words of a change for one new key: key, value, fingerprint, check of its bucket.
const WORDS_OF_KEY: usize = 4;
/// Words of a group where a fence takes less than a microsecond: other writers wait briefly.
const WORDS_OF_GROUP: usize = 20 * WORDS_OF_KEY;

/// Keys that come or go together.
struct Group<'a, M: Medium> {
    index: &'a PetHash<M>,
    change: Change,
    /// Home buckets of the keys. While there are any, no other lock is waited for.
    held: Vec<Held<'a, M>>,
    /// Their numbers, to find out quickly what is held.
    buckets: Vec<u64>,
    keys: Vec<u64>,
    /// The previous word of each of them: [`ABSENT`] for those that are new.
    before: Vec<u64>,
    words_max: usize,
}

impl<M: Medium> PetHash<M> {
    /// Gives keys values, in order. `seen` is told each key and the value that it had, or
    /// [`ABSENT`], while the key is locked. Returns how many keys were done, from the first on: all
    /// of them where there is no error, and nobody knows how many after `Io`.
    /// Durable after the next fence; a crash before leaves each key with the old value or the new.
    ///
    /// # Errors
    /// `Full` where no bucket on a key's path has room; `Misuse` where there are not as many values
    /// as keys, or one is [`ABSENT`]; `Io`, after which the index takes no changes.
    pub fn put_batch(
        &self,
        keys: &[u64],
        values: &[u64],
        mut seen: impl FnMut(u64, u64),
    ) -> (usize, Result<()>) {
        if keys.len() != values.len() {
            let (keys, values) = (keys.len(), values.len());
            return (0, Err(Error::misuse(format!("{keys} keys and {values} values"))));
        }
        if values.contains(&ABSENT) {
            let what = format!("value {ABSENT} says that there is no key");
            return (0, Err(Error::misuse(what)));
        }
        if let Err(error) = self.region.writable() {
            return (0, Err(error));
        }
        let mut group = Group::of(self);
        for (at, (key, value)) in keys.iter().zip(values).enumerate() {
            if let Err(error) = group.put(*key, *value, &mut seen) {
                return (at, Err(error));
            }
        }
        (keys.len(), group.publish(&mut seen))
    }

    /// Removes keys. `seen` is told each one that was there and the value that it had, while the
    /// key is locked. Durable on return; a crash before leaves each key there or not.
    ///
    /// # Errors
    /// `Corrupt` where a bucket that would change is damaged; `Io`, after which the index takes no
    /// changes. Nobody knows then which keys were removed, but those that `seen` was told.
    pub fn remove_batch(&self, keys: &[u64], mut seen: impl FnMut(u64, u64)) -> Result<()> {
        self.region.writable()?;
        let mut group = Group::of(self);
        keys.iter().try_for_each(|key| group.remove(*key, &mut seen))?;
        group.publish(&mut seen)
    }
}

impl<'a, M: Medium> Group<'a, M> {
    fn of(index: &'a PetHash<M>) -> Self {
        Self {
            index,
            change: Change::default(),
            held: Vec::new(),
            buckets: Vec::new(),
            keys: Vec::new(),
            before: Vec::new(),
            words_max: match index.region.medium.durability() {
                Durability::Sync => ENTRIES_MAX,
                _ => WORDS_OF_GROUP,
            },
        }
    }

    /// Makes room for one key more, and holds its home. `None` where the group does already.
    fn hold_home(
        &mut self,
        key: u64,
        home: u64,
        seen: &mut impl FnMut(u64, u64),
    ) -> Result<Option<Held<'a, M>>> {
        let index = self.index;
        if self.keys.contains(&key) || (self.keys.len() + 1) * WORDS_OF_KEY > self.words_max {
            self.publish(seen)?;
        }
        if self.buckets.contains(&home) {
            return Ok(None);
        }
        if let Some(held) = index.try_lock(home) {
            return Ok(Some(held));
        }
        self.publish(seen)?;
        Ok(Some(index.lock(home)))
    }

    /// Adds a key that came or goes to the group.
    fn add(&mut self, key: u64, before: u64, home: Option<Held<'a, M>>) {
        self.keys.push(key);
        self.before.push(before);
        if let Some(home) = home {
            self.buckets.push(home.bucket);
            self.held.push(home);
        }
    }

    fn put(&mut self, key: u64, value: u64, seen: &mut impl FnMut(u64, u64)) -> Result<()> {
        let index = self.index;
        let path = index.path(key);
        let home = self.hold_home(key, path.home, seen)?;
        if let Some(at) = index.locate(path, key)? {
            index.set_value(&at, value);
            seen(key, at.value);
            return Ok(());
        }
        if let Some(slot) = index.prints_after(&self.change, path.home).first_free() {
            index.fill(&mut self.change, (path.home, slot), path.print, key, value);
            self.add(key, ABSENT, home);
            return Ok(());
        }
        drop(home);
        self.publish(seen)?;
        index.put_displaced(key, value, seen)
    }

    fn remove(&mut self, key: u64, seen: &mut impl FnMut(u64, u64)) -> Result<()> {
        let index = self.index;
        let path = index.path(key);
        let home = self.hold_home(key, path.home, seen)?;
        let Some(at) = index.locate(path, key)? else { return Ok(()) };
        if at.passed == 0 {
            index.print(&mut self.change, path.home, at.slot, 0);
            self.add(key, at.value, home);
            return Ok(());
        }
        drop(home);
        self.publish(seen)?;
        index.remove_displaced(key, seen)
    }

    /// Publishes the keys and lets go of their buckets.
    fn publish(&mut self, seen: &mut impl FnMut(u64, u64)) -> Result<()> {
        if !self.keys.is_empty() {
            self.change.commit(&self.index.region)?;
            self.keys.iter().zip(&self.before).for_each(|(key, before)| seen(*key, *before));
        }
        self.keys.clear();
        self.before.clear();
        self.buckets.clear();
        self.held.clear();
        Ok(())
    }
}

impl<M: Medium> PetHash<M> {
    /// Puts a key whose home was full. It may have come or have room by now.
    fn put_displaced(&self, key: u64, value: u64, seen: &mut impl FnMut(u64, u64)) -> Result<()> {
        let path = self.path(key);
        loop {
            let home = self.lock(path.home);
            let known = self.locate(path, key)?;
            let free = self.prints(path.home).first_free();
            if let Some(at) = known {
                self.set_value(&at, value);
                seen(key, at.value);
                return Ok(());
            }
            if let Some(slot) = free {
                let mut change = Change::default();
                self.fill(&mut change, (path.home, slot), path.print, key, value);
                change.commit(&self.region)?;
            } else if !self.insert_displaced(path, key, value)? {
                drop(home);
                std::thread::yield_now();
                continue;
            }
            seen(key, ABSENT);
            return Ok(());
        }
    }
}
