//! A cache as a hash map and linked lists under one lock: entries in a slab, linked by number. The
//! policy determines the order of the lists ([`Order`]).

use super::replacement::{Counts, Replacement, word_of};
use embedrock_core::hash::mix;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// One row's entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: u32,
    /// The row, of one word.
    pub(crate) word: u32,
    /// Neighbours in its list: the one used later, and the one used earlier.
    pub(crate) newer: u32,
    pub(crate) older: u32,
}

/// The two ends of a doubly linked list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) newest: u32,
    pub(crate) oldest: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { newest: NONE, oldest: NONE };

    pub(crate) fn push_newest(&mut self, entries: &mut [Entry], at: u32) {
        let entry = &mut entries[at as usize];
        (entry.newer, entry.older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = at,
            newest => entries[newest as usize].newer = at,
        }
        self.newest = at;
    }

    pub(crate) fn unlink(&mut self, entries: &mut [Entry], at: u32) {
        let Entry { newer, older, .. } = entries[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => entries[older as usize].newer = newer,
        }
    }
}

/// In which order rows leave.
pub(crate) trait Order: Send {
    /// The order of no rows, with memory for so many.
    fn with_capacity(capacity: usize) -> Self;
    /// The entry that leaves next. There is one.
    fn victim(&self) -> u32;
    /// Puts in an entry that was used for the first time.
    fn insert(&mut self, entries: &mut [Entry], at: u32);
    /// Notes another use of an entry.
    fn used_again(&mut self, entries: &mut [Entry], at: u32);
    /// Takes an entry out.
    fn remove(&mut self, entries: &mut [Entry], at: u32);
    /// Calls `f` with every entry, in an order that says what was used before what.
    fn for_each(&self, entries: &[Entry], f: &mut dyn FnMut(u32));
    /// Bytes that it takes for so many rows, beside their entries.
    fn bytes(&self, capacity: usize) -> usize;
}

/// A cache whose rows leave in the order `O`.
pub(crate) struct ListCache<O> {
    capacity: usize,
    keys_per_lock: usize,
    /// Guards everything; nothing else is locked under it.
    inner: Mutex<Inner<O>>,
}

struct Inner<O> {
    map: Map,
    entries: Vec<Entry>,
    order: O,
}

impl<O: Order> ListCache<O> {
    /// A cache of `capacity` rows whose lock is taken anew after so many keys.
    pub(crate) fn new(capacity: usize, keys_per_lock: usize) -> Self {
        let entries = Vec::with_capacity(capacity);
        let inner = Inner { map: map_for(capacity), entries, order: O::with_capacity(capacity) };
        Self { capacity, keys_per_lock, inner: Mutex::new(inner) }
    }
}

impl<O: Order> Inner<O> {
    #[inline]
    fn access(&mut self, key: u32, capacity: usize, check: bool) -> Counts {
        let mut counts = Counts::default();
        if let Some(&at) = self.map.get(&key) {
            counts.hits = 1;
            counts.wrong = u64::from(check && self.entries[at as usize].word != word_of(key));
            self.order.used_again(&mut self.entries, at);
            return counts;
        }
        let at = if self.entries.len() < capacity {
            self.entries.push(Entry { key, word: word_of(key), newer: NONE, older: NONE });
            self.entries.len() as u32 - 1
        } else {
            let at = self.order.victim();
            self.order.remove(&mut self.entries, at);
            let entry = &mut self.entries[at as usize];
            counts.evicted = 1;
            counts.wrong = u64::from(check && entry.word != word_of(entry.key));
            self.map.remove(&entry.key);
            (entry.key, entry.word) = (key, word_of(key));
            at
        };
        self.map.insert(key, at);
        self.order.insert(&mut self.entries, at);
        counts
    }
}

impl<O: Order> Replacement for ListCache<O> {
    fn access(&self, keys: &[u32], check: bool) -> Counts {
        let mut counts = Counts::default();
        for keys in keys.chunks(self.keys_per_lock) {
            let mut inner = self.inner.lock();
            for key in keys {
                counts += inner.access(*key, self.capacity, check);
            }
        }
        counts
    }

    fn for_each_resident(&self, f: &mut dyn FnMut(u32, u32)) {
        let inner = self.inner.lock();
        inner.order.for_each(&inner.entries, &mut |at| {
            let entry = inner.entries[at as usize];
            assert_eq!(inner.map.get(&entry.key), Some(&at), "an entry that is not found");
            f(entry.key, entry.word);
        });
    }

    fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    fn bytes_beside_rows(&self) -> u64 {
        let inner = self.inner.lock();
        let beside = size_of::<Entry>() - size_of::<u32>();
        map_bytes(&inner.map) + (self.capacity * beside + inner.order.bytes(self.capacity)) as u64
    }
}

/// The entry of each key. The standard library's map is hashbrown; its usual hash, which withstands
/// attacks, would cost more than the rest, so it gets the engine's.
type Map = HashMap<u32, u32, BuildHasherDefault<Mixed>>;

/// An empty map for so many keys, which never grows.
fn map_for(capacity: usize) -> Map {
    Map::with_capacity_and_hasher(capacity + 1, BuildHasherDefault::default())
}

/// Bytes of a map: a power of two of pairs at a load of at most 7/8, with a byte of hash each.
fn map_bytes(map: &Map) -> u64 {
    let places = (map.capacity() * 8 / 7).next_power_of_two();
    (places * (size_of::<(u32, u32)>() + 1)) as u64
}

/// The engine's mixing hash.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0, u64::from(*byte)));
    }

    fn write_u32(&mut self, key: u32) {
        self.0 = mix(u64::from(key), 7);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Compares a cache with a model of it: hits, and keys in the order of `for_each`.
    pub(crate) fn agrees_with<O: Order>(plain: fn(&[u32], usize) -> (u64, Vec<u32>)) {
        for (seed, capacity) in [(1, 1), (2, 2), (3, 37), (4, 200)] {
            let draw = |i| (mix(i, seed) % (1 + mix(i, seed + 9) % 300)) as u32;
            let keys: Vec<u32> = (0..20_000).map(draw).collect();
            let (hits, order) = plain(&keys, capacity);
            for keys_per_lock in [1, 64] {
                let cache = ListCache::<O>::new(capacity, keys_per_lock);
                let counts = cache.access(&keys, true);
                let mut resident = Vec::new();
                cache.for_each_resident(&mut |key, word| {
                    assert_eq!(word, word_of(key));
                    resident.push(key);
                });
                assert_eq!((counts.hits, counts.wrong), (hits, 0), "seed {seed}");
                assert_eq!(counts.evicted, 20_000 - hits - order.len() as u64, "seed {seed}");
                assert_eq!(resident, order, "seed {seed}");
            }
        }
    }
}
