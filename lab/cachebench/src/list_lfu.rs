//! List LFU: one list for each number of uses. Counts never fade.
//!
//! *Source*: Shah, Mitra, Matani, "An O(1) algorithm for implementing the LFU cache eviction
//! scheme": the lists of rows that were used equally often are themselves a list, by rising count,
//! so that the next count and the least one are neighbours.

use super::list::{Entry, List, ListCache, NONE, Order};

/// Least frequently used, of equal ones least recently, exactly.
pub(crate) type ListLfu = ListCache<Buckets>;

/// The rows used equally often.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    uses: u64,
    rows: List,
    /// Neighbours by count. Of a bucket that is free, `more` is the next free one.
    fewer: u32,
    more: u32,
}

/// All buckets by rising count.
pub(crate) struct Buckets {
    /// The bucket of each entry.
    bucket_of: Vec<u32>,
    buckets: Vec<Bucket>,
    fewest: u32,
    free: u32,
}

impl Order for Buckets {
    fn with_capacity(capacity: usize) -> Self {
        let bucket_of = Vec::with_capacity(capacity);
        Self { bucket_of, buckets: Vec::new(), fewest: NONE, free: NONE }
    }

    fn victim(&self) -> u32 {
        self.buckets[self.fewest as usize].rows.oldest
    }

    #[inline]
    fn insert(&mut self, entries: &mut [Entry], at: u32) {
        if self.bucket_of.len() == at as usize {
            self.bucket_of.push(NONE);
        }
        let first = match self.fewest {
            NONE => self.bucket_between(1, NONE, NONE),
            fewest if self.buckets[fewest as usize].uses > 1 => {
                self.bucket_between(1, NONE, fewest)
            }
            fewest => fewest,
        };
        self.enter(entries, at, first);
    }

    #[inline]
    fn used_again(&mut self, entries: &mut [Entry], at: u32) {
        let old = self.bucket_of[at as usize];
        let Bucket { uses, more, rows, .. } = self.buckets[old as usize];
        let next_fits = more != NONE && self.buckets[more as usize].uses == uses + 1;
        if rows.newest == rows.oldest && !next_fits {
            // Alone: its bucket may go on to the next count.
            self.buckets[old as usize].uses += 1;
            return;
        }
        let next = if next_fits { more } else { self.bucket_between(uses + 1, old, more) };
        self.remove(entries, at);
        self.enter(entries, at, next);
    }

    /// A bucket goes when its last row does.
    #[inline]
    fn remove(&mut self, entries: &mut [Entry], at: u32) {
        let number = self.bucket_of[at as usize];
        let bucket = &mut self.buckets[number as usize];
        bucket.rows.unlink(entries, at);
        if bucket.rows.newest != NONE {
            return;
        }
        let Bucket { fewer, more, .. } = *bucket;
        bucket.more = std::mem::replace(&mut self.free, number);
        self.link(fewer, more);
    }

    /// Those that leave first come first.
    fn for_each(&self, entries: &[Entry], f: &mut dyn FnMut(u32)) {
        let (mut number, mut uses) = (self.fewest, 0);
        while number != NONE {
            let bucket = self.buckets[number as usize];
            assert!(bucket.uses > uses, "buckets are not in order");
            uses = bucket.uses;
            let mut at = bucket.rows.oldest;
            while at != NONE {
                f(at);
                at = entries[at as usize].newer;
            }
            number = bucket.more;
        }
    }

    fn bytes(&self, capacity: usize) -> usize {
        capacity * size_of::<u32>() + self.buckets.capacity() * size_of::<Bucket>()
    }
}

impl Buckets {
    fn enter(&mut self, entries: &mut [Entry], at: u32, bucket: u32) {
        self.bucket_of[at as usize] = bucket;
        self.buckets[bucket as usize].rows.push_newest(entries, at);
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

#[cfg(test)]
mod tests {
    use super::super::list::tests::agrees_with;
    use super::*;

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
        agrees_with::<Buckets>(plain);
    }
}
