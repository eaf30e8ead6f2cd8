//! The flush buffer: dirty rows that left the cache and wait to be written.
//!
//! A set-partitioned cache gives up its victims out of order; here they wait until enough are
//! together to be packed in the order in which they became dirty, so that rows used together share
//! a page (design 5.5). A row asked for again is rescued from here without a read. Memory is fixed.

use crate::config::Stretch;
use crate::hash::mix;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes what is already a number; the tables of this module are keyed by (table, key).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte), 1);
        }
    }

    fn write_u16(&mut self, value: u16) {
        self.0 = self.0.rotate_left(16) ^ u64::from(value);
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(value, self.0);
    }
}

/// A dirty row that comes to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirtyRow<'a> {
    /// Table of the row.
    pub table: u16,
    /// Its key.
    pub key: u64,
    /// The time since which it is dirty, as a stamp of the cache.
    pub dirty_since: u32,
    /// Stored copy that it outdates, 0 for none; `None` where the index tells.
    pub origin: Option<u32>,
    /// The stretch of the schedule that uses it next, where that is known.
    pub stretch: Option<Stretch>,
    /// Values and state.
    pub words: &'a [f32],
}

/// The facts that wait beside a row.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    key: u64,
    dirty_since: u32,
    stretch: Option<Stretch>,
    /// Of a row whose `DirtyRow` has one.
    origin: u32,
    table: u16,
    has_origin: bool,
    live: bool,
}

/// Dirty rows on their way to storage.
#[derive(Debug)]
pub(crate) struct FlushBuffer {
    row_words: usize,
    rows: Vec<f32>,
    waiting: Vec<Waiting>,
    holes: Vec<u32>,
    map: HashMap<(u16, u64), u32, BuildHasherDefault<KeyHasher>>,
    capacity: usize,
}

impl FlushBuffer {
    /// A buffer of `capacity` rows, all memory taken now.
    pub(crate) fn new(capacity: usize, row_words: usize) -> Self {
        let mut map = HashMap::default();
        map.reserve(capacity);
        Self {
            row_words,
            rows: vec![0.0; capacity * row_words],
            waiting: Vec::with_capacity(capacity),
            holes: Vec::with_capacity(capacity),
            map,
            capacity,
        }
    }

    /// Bytes that a buffer of `capacity` rows takes.
    pub(crate) fn memory_for(capacity: usize, row_words: usize) -> usize {
        let map = (capacity * 8 / 7).next_power_of_two() * 25;
        capacity * (row_words * 4 + size_of::<Waiting>() + 4) + map
    }

    /// Allocated bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        Self::memory_for(self.capacity, self.row_words)
    }

    /// Rows that wait.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Rows that can be pushed before a flush.
    pub(crate) fn free(&self) -> usize {
        self.capacity - self.map.len()
    }

    /// Rows that wait, in no useful order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = DirtyRow<'_>> {
        let there = (0..self.waiting.len() as u32).filter(|at| self.waiting[*at as usize].live);
        there.map(|at| self.at(at))
    }

    /// Adds a row that is not here yet. Panics when full: the owner flushes before.
    pub(crate) fn push(&mut self, row: DirtyRow<'_>) {
        let DirtyRow { table, key, dirty_since, origin, stretch, words: row } = row;
        let waiting = Waiting {
            key,
            dirty_since,
            stretch,
            origin: origin.unwrap_or(0),
            table,
            has_origin: origin.is_some(),
            live: true,
        };
        let at = match self.holes.pop() {
            Some(at) => {
                self.waiting[at as usize] = waiting;
                at
            }
            None => {
                assert!(self.waiting.len() < self.capacity, "the flush buffer is full");
                self.waiting.push(waiting);
                self.waiting.len() as u32 - 1
            }
        };
        let words = at as usize * self.row_words;
        self.rows[words..words + self.row_words].copy_from_slice(row);
        let before = self.map.insert((table, key), at);
        assert!(before.is_none(), "a row waits twice in the flush buffer");
    }

    /// Finds a waiting row.
    pub(crate) fn find(&self, table: u16, key: u64) -> Option<u32> {
        if self.map.is_empty() {
            return None;
        }
        self.map.get(&(table, key)).copied()
    }

    /// The row at a place that `find` gave.
    pub(crate) fn at(&self, at: u32) -> DirtyRow<'_> {
        let waiting = self.waiting[at as usize];
        let Waiting { dirty_since, stretch, table, key, .. } = waiting;
        let origin = waiting.has_origin.then_some(waiting.origin);
        let begin = at as usize * self.row_words;
        let words = &self.rows[begin..begin + self.row_words];
        DirtyRow { table, key, dirty_since, origin, stretch, words }
    }

    /// Takes a row out: it went back to the cache, or its key was deleted. False where it does not
    /// wait.
    pub(crate) fn remove(&mut self, table: u16, key: u64) -> bool {
        if self.map.is_empty() {
            return false;
        }
        let Some(at) = self.map.remove(&(table, key)) else { return false };
        self.waiting[at as usize].live = false;
        self.holes.push(at);
        true
    }

    /// The places of all waiting rows, those dirty for longest first; `now` is the newest stamp.
    pub(crate) fn longest_dirty_first(&self, now: u32, order: &mut Vec<u32>) {
        order.clear();
        order.extend((0..self.waiting.len() as u32).filter(|at| self.waiting[*at as usize].live));
        order.sort_unstable_by_key(|at| {
            (std::cmp::Reverse(now.wrapping_sub(self.waiting[*at as usize].dirty_since)), *at)
        });
    }

    /// Puts places of waiting rows in the order of the stretches that use them next; those of one
    /// stretch, and of none, stay in their order.
    pub(crate) fn sort_by_stretch(&self, order: &mut [u32]) {
        order.sort_by_key(|at| self.waiting[*at as usize].stretch);
    }

    /// Forgets all rows: they were written.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.holes.clear();
        self.map.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(
        dirty_since: u32,
        (table, key): (u16, u64),
        origin: Option<u32>,
        words: &[f32],
    ) -> DirtyRow<'_> {
        DirtyRow { table, key, dirty_since, origin, stretch: None, words }
    }

    #[test]
    fn rows_dirty_for_longest_leave_first_also_when_stamps_wrap() {
        let mut buffer = FlushBuffer::new(4, 1);
        for (stamp, key) in [(5, 1), (u32::MAX - 1, 2), (3, 3)] {
            buffer.push(row(stamp, (0, key), Some(0), &[key as f32]));
        }
        let mut order = Vec::new();
        buffer.longest_dirty_first(6, &mut order);
        let keys: Vec<u64> = order.iter().map(|at| buffer.at(*at).key).collect();
        assert_eq!(keys, [2, 3, 1]);
    }

    #[test]
    fn a_rescued_row_leaves_room_for_another() {
        let mut buffer = FlushBuffer::new(2, 2);
        buffer.push(row(1, (0, u64::MAX), Some(7), &[1.0, 2.0]));
        buffer.push(row(2, (1, u64::MAX), Some(8), &[3.0, 4.0]));
        assert_eq!(buffer.free(), 0);
        let at = buffer.find(0, u64::MAX).unwrap();
        assert_eq!(buffer.at(at).words, [1.0, 2.0]);
        assert!(buffer.remove(0, u64::MAX) && !buffer.remove(0, u64::MAX));
        assert!(buffer.find(0, u64::MAX).is_none());
        buffer.push(row(3, (0, 5), None, &[5.0, 6.0]));
        assert_eq!(buffer.len(), 2);
        let mut order = Vec::new();
        buffer.longest_dirty_first(9, &mut order);
        assert_eq!(order.len(), 2);
    }
}
