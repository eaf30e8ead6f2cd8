//! List LRU: a hash map and one list in order of last use, under one lock.

use super::list::{Entry, List, Map, NONE, map_bytes, map_for};
use super::replacement::{Counts, Replacement, word_of};
use parking_lot::Mutex;

/// Least recently used, exactly.
pub(crate) struct ListLru {
    capacity: usize,
    keys_per_lock: usize,
    /// Guards everything; nothing else is locked under it.
    inner: Mutex<Inner>,
}

struct Inner {
    map: Map,
    entries: Vec<Entry>,
    order: List,
}

impl ListLru {
    /// A cache of `capacity` rows whose lock is taken anew after so many keys.
    pub(crate) fn new(capacity: usize, keys_per_lock: usize) -> Self {
        let entries = Vec::with_capacity(capacity);
        let inner = Inner { map: map_for(capacity), entries, order: List::EMPTY };
        Self { capacity, keys_per_lock, inner: Mutex::new(inner) }
    }
}

impl Inner {
    fn access(&mut self, key: u32, capacity: usize, check: bool) -> Counts {
        let mut counts = Counts::default();
        let at = match self.map.get(&key) {
            Some(&at) => {
                let entry = self.entries[at as usize];
                counts.hits = 1;
                counts.wrong = u64::from(check && entry.word != word_of(key));
                if entry.newer == NONE {
                    return counts;
                }
                self.order.remove(&mut self.entries, at);
                at
            }
            None if self.entries.len() < capacity => {
                let at = self.entries.len() as u32;
                self.entries.push(Entry { key, word: word_of(key), newer: NONE, older: NONE });
                self.map.insert(key, at);
                at
            }
            None => {
                let at = self.order.oldest;
                self.order.remove(&mut self.entries, at);
                let entry = &mut self.entries[at as usize];
                counts.evicted = 1;
                counts.wrong = u64::from(check && entry.word != word_of(entry.key));
                self.map.remove(&entry.key);
                (entry.key, entry.word) = (key, word_of(key));
                self.map.insert(key, at);
                at
            }
        };
        self.order.push_newest(&mut self.entries, at);
        counts
    }
}

impl Replacement for ListLru {
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
        let mut at = inner.order.newest;
        while at != NONE {
            let entry = inner.entries[at as usize];
            assert_eq!(inner.map.get(&entry.key), Some(&at), "an entry that is not found");
            f(entry.key, entry.word);
            at = entry.older;
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    fn bytes_beside_rows(&self) -> u64 {
        let inner = self.inner.lock();
        let beside = size_of::<Entry>() - size_of::<u32>();
        map_bytes(&inner.map) + (self.capacity * beside) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use embedrock_core::hash::mix;

    /// LRU as a vector in order of last use.
    fn plain(keys: &[u32], capacity: usize) -> (u64, Vec<u32>) {
        let (mut order, mut hits) = (Vec::new(), 0);
        for key in keys {
            match order.iter().position(|one| one == key) {
                Some(at) => {
                    order.remove(at);
                    hits += 1;
                }
                None => order.truncate(capacity - 1),
            }
            order.insert(0, *key);
        }
        (hits, order)
    }

    #[test]
    fn it_hits_and_keeps_what_a_plain_model_does() {
        for (seed, capacity) in [(1, 1), (2, 2), (3, 37), (4, 200)] {
            let draw = |i| (mix(i, seed) % (1 + mix(i, seed + 9) % 300)) as u32;
            let keys: Vec<u32> = (0..20_000).map(draw).collect();
            let (hits, order) = plain(&keys, capacity);
            for keys_per_lock in [1, 64] {
                let cache = ListLru::new(capacity, keys_per_lock);
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
