//! List LFU: a hash map and one list for each number of uses, under one lock. Counts never fade.
//!
//! *Source*: Shah, Mitra, Matani, "An O(1) algorithm for implementing the LFU cache eviction
//! scheme": the lists of rows that were used equally often are themselves a list, by rising count,
//! so that the next count and the least one are neighbours.

use super::list::{Entry, List, Map, NONE, map_bytes, map_for};
use super::replacement::{Counts, Replacement, word_of};
use parking_lot::Mutex;

/// Least frequently used, of equal ones least recently, exactly.
pub(crate) struct ListLfu {
    capacity: usize,
    keys_per_lock: usize,
    /// Guards everything; nothing else is locked under it.
    inner: Mutex<Inner>,
}

/// The rows used equally often.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    uses: u64,
    rows: List,
    /// Neighbours by count. Of a bucket that is free, `more` is the next free one.
    fewer: u32,
    more: u32,
}

struct Inner {
    map: Map,
    entries: Vec<Entry>,
    /// The bucket of each entry.
    bucket_of: Vec<u32>,
    buckets: Vec<Bucket>,
    fewest: u32,
    free: u32,
}

impl ListLfu {
    /// A cache of `capacity` rows whose lock is taken anew after so many keys.
    pub(crate) fn new(capacity: usize, keys_per_lock: usize) -> Self {
        let inner = Inner {
            map: map_for(capacity),
            entries: Vec::with_capacity(capacity),
            bucket_of: Vec::with_capacity(capacity),
            buckets: Vec::new(),
            fewest: NONE,
            free: NONE,
        };
        Self { capacity, keys_per_lock, inner: Mutex::new(inner) }
    }
}

impl Inner {
    fn access(&mut self, key: u32, capacity: usize, check: bool) -> Counts {
        let mut counts = Counts::default();
        if let Some(&at) = self.map.get(&key) {
            counts.hits = 1;
            counts.wrong = u64::from(check && self.entries[at as usize].word != word_of(key));
            self.used_again(at);
            return counts;
        }
        let at = if self.entries.len() < capacity {
            self.entries.push(Entry { key, word: word_of(key), newer: NONE, older: NONE });
            self.bucket_of.push(NONE);
            self.entries.len() as u32 - 1
        } else {
            let at = self.buckets[self.fewest as usize].rows.oldest;
            self.leave(at);
            let entry = &mut self.entries[at as usize];
            counts.evicted = 1;
            counts.wrong = u64::from(check && entry.word != word_of(entry.key));
            self.map.remove(&entry.key);
            (entry.key, entry.word) = (key, word_of(key));
            at
        };
        self.map.insert(key, at);
        let first = match self.fewest {
            NONE => self.bucket_between(1, NONE, NONE),
            fewest if self.buckets[fewest as usize].uses > 1 => {
                self.bucket_between(1, NONE, fewest)
            }
            fewest => fewest,
        };
        self.enter(at, first);
        counts
    }

    fn used_again(&mut self, at: u32) {
        let old = self.bucket_of[at as usize];
        let Bucket { uses, more, rows, .. } = self.buckets[old as usize];
        let next_fits = more != NONE && self.buckets[more as usize].uses == uses + 1;
        if rows.newest == rows.oldest && !next_fits {
            // Alone: its bucket may go on to the next count.
            self.buckets[old as usize].uses += 1;
            return;
        }
        let next = if next_fits { more } else { self.bucket_between(uses + 1, old, more) };
        self.leave(at);
        self.enter(at, next);
    }

    fn enter(&mut self, at: u32, bucket: u32) {
        self.bucket_of[at as usize] = bucket;
        self.buckets[bucket as usize].rows.push_newest(&mut self.entries, at);
    }

    /// Takes a row out of its bucket, which goes when it was the last.
    fn leave(&mut self, at: u32) {
        let number = self.bucket_of[at as usize];
        let bucket = &mut self.buckets[number as usize];
        bucket.rows.remove(&mut self.entries, at);
        if bucket.rows.newest != NONE {
            return;
        }
        let Bucket { fewer, more, .. } = *bucket;
        bucket.more = std::mem::replace(&mut self.free, number);
        self.link(fewer, more);
    }

    fn bucket_between(&mut self, uses: u64, fewer: u32, more: u32) -> u32 {
        let bucket = Bucket { uses, rows: List::EMPTY, fewer, more };
        let number = match self.free {
            NONE => {
                self.buckets.push(bucket);
                self.buckets.len() as u32 - 1
            }
            free => {
                self.free = self.buckets[free as usize].more;
                self.buckets[free as usize] = bucket;
                free
            }
        };
        self.link(fewer, number);
        self.link(number, more);
        number
    }

    fn link(&mut self, fewer: u32, more: u32) {
        match fewer {
            NONE => self.fewest = more,
            fewer => self.buckets[fewer as usize].more = more,
        }
        if more != NONE {
            self.buckets[more as usize].fewer = fewer;
        }
    }
}

impl Replacement for ListLfu {
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
        let (mut number, mut uses) = (inner.fewest, 0);
        while number != NONE {
            let bucket = inner.buckets[number as usize];
            assert!(bucket.uses > uses, "buckets are not in order");
            uses = bucket.uses;
            let mut at = bucket.rows.oldest;
            while at != NONE {
                let entry = inner.entries[at as usize];
                assert_eq!(inner.map.get(&entry.key), Some(&at), "an entry that is not found");
                f(entry.key, entry.word);
                at = entry.newer;
            }
            number = bucket.more;
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    fn bytes_beside_rows(&self) -> u64 {
        let inner = self.inner.lock();
        let beside = size_of::<Entry>() - size_of::<u32>() + size_of::<u32>();
        let buckets = inner.buckets.capacity() * size_of::<Bucket>();
        map_bytes(&inner.map) + (self.capacity * beside + buckets) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use embedrock_core::hash::mix;

    /// LFU as a vector of (uses, last use, key), searched.
    fn plain(keys: &[u32], capacity: usize) -> (u64, Vec<u32>) {
        let (mut rows, mut hits): (Vec<(u64, usize, u32)>, _) = (Vec::new(), 0);
        for (now, key) in keys.iter().enumerate() {
            if let Some(row) = rows.iter_mut().find(|row| row.2 == *key) {
                *row = (row.0 + 1, now, *key);
                hits += 1;
                continue;
            }
            if rows.len() == capacity {
                let least = rows.iter().enumerate().min_by_key(|(_, row)| **row).unwrap().0;
                rows.swap_remove(least);
            }
            rows.push((1, now, *key));
        }
        rows.sort_unstable();
        (hits, rows.into_iter().map(|row| row.2).collect())
    }

    #[test]
    fn it_hits_and_keeps_what_a_plain_model_does() {
        for (seed, capacity) in [(1, 1), (2, 2), (3, 37), (4, 200)] {
            let draw = |i| (mix(i, seed) % (1 + mix(i, seed + 9) % 300)) as u32;
            let keys: Vec<u32> = (0..20_000).map(draw).collect();
            let (hits, order) = plain(&keys, capacity);
            for keys_per_lock in [1, 64] {
                let cache = ListLfu::new(capacity, keys_per_lock);
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
