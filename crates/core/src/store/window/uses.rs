//! The announced uses of one table's rows: which batch uses a row next.
//!
//! A ring holds the distinct keys of all announced batches, in order. Beside each key it says after
//! how many batches the row is used again; 0 when it is not, as far as is announced. A hash table
//! finds the last announced use of a key, so that the next one can be linked to it. A use costs 6
//! bytes (10 where keys need more than 32 bits), a distinct key about 8 more.

use crate::hash::mix;
use crate::prefetch::prefetch_read;
use std::collections::VecDeque;

/// The smallest ring and the smallest hash table.
const CAPACITY_MIN: usize = 1 << 10;
/// Positions go round in the hash table after so many; the ring is shorter.
const POSITIONS: u64 = 1 << 31;
/// Keys whose lines are asked for together.
const BLOCK: usize = 16;
/// A use so many batches later, or more, counts as none.
const FURTHEST: u64 = u16::MAX as u64 - 1;

/// The announced uses of one table.
#[derive(Debug)]
pub(super) struct Uses {
    /// The lower halves of the keys; a power of two of them.
    low: Vec<u32>,
    /// The upper halves, in a table whose keys have any.
    high: Vec<u32>,
    wide: bool,
    /// After how many batches the row is used again.
    next: Vec<u16>,
    /// Position of the first use in the ring, and one past the last. They only grow.
    head: u64,
    tail: u64,
    /// Number of each announced batch that has keys, and the position of its first.
    batches: VecDeque<(u64, u64)>,
    /// 1 + the position of a key's last use, modulo [`POSITIONS`]; 0 is an empty entry. Entries of
    /// uses that are over stay until the table is made anew.
    last: Vec<u32>,
    /// Entries that are not empty.
    filled: usize,
}

impl Uses {
    /// Of a table whose keys are all below 2^32, or of any keys.
    pub(super) fn new(wide: bool) -> Self {
        Self {
            low: Vec::new(),
            high: Vec::new(),
            wide,
            next: Vec::new(),
            head: 0,
            tail: 0,
            batches: VecDeque::new(),
            last: Vec::new(),
            filled: 0,
        }
    }

    /// Allocated bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        4 * (self.low.capacity() + self.high.capacity() + self.last.capacity())
            + 2 * self.next.capacity()
            + size_of::<(u64, u64)>() * self.batches.capacity()
    }

    /// Bytes that so many more uses may add at most, while vectors move included.
    pub(super) fn growth_for(&self, keys: usize) -> usize {
        let live = (self.tail - self.head) as usize + keys;
        let ring =
            if live > self.low.len() { live.next_power_of_two().max(CAPACITY_MIN) } else { 0 };
        let fits = (self.filled + keys) * 4 <= self.last.len() * 3;
        let table = if fits { 0 } else { (2 * live).next_power_of_two().max(CAPACITY_MIN) };
        ring * if self.wide { 10 } else { 6 } + table * 4
    }

    /// Appends a batch with these distinct keys. Calls `first` with each key that no unfinished
    /// batch before uses.
    pub(super) fn announce(&mut self, number: u64, keys: &[u64], mut first: impl FnMut(u64)) {
        if keys.is_empty() {
            return;
        }
        self.make_room(keys.len());
        self.batches.push_back((number, self.tail));
        for block in keys.chunks(BLOCK) {
            for key in block {
                prefetch_read(&self.last[self.home(*key)]);
            }
            for key in block {
                let at = self.last[self.home(*key)];
                if at != 0 {
                    prefetch_read(&self.low[self.slot(u64::from(at - 1))]);
                }
            }
            for key in block {
                let position = self.tail;
                let slot = self.slot(position);
                self.low[slot] = *key as u32;
                if self.wide {
                    self.high[slot] = (*key >> 32) as u32;
                }
                self.next[slot] = 0;
                let before = self.exchange_last(*key, position);
                self.tail += 1;
                match before {
                    Some(before) => {
                        let apart = number - self.batch_at(before);
                        let slot = self.slot(before);
                        self.next[slot] = if apart <= FURTHEST { apart as u16 } else { 0 };
                    }
                    None => first(*key),
                }
            }
        }
    }

    /// Forgets the uses of all batches up to `number`, after `f` has seen each use's key and the
    /// number of the batch that uses the row next, if any is announced.
    pub(super) fn finish(&mut self, number: u64, f: impl FnMut(u64, Option<u64>)) {
        let Some((begin, end)) = self.range(0, number) else { return };
        self.for_each(begin, end, f);
        self.head = end;
        while self.batches.front().is_some_and(|(batch, _)| *batch <= number) {
            self.batches.pop_front();
        }
    }

    /// Adds the keys of a batch to `keys`.
    pub(super) fn keys_of(&self, number: u64, keys: &mut Vec<u64>) {
        if let Some((begin, end)) = self.range(number, number) {
            keys.extend((begin..end).map(|position| self.key(position)));
        }
    }

    fn for_each(&self, begin: u64, end: u64, mut f: impl FnMut(u64, Option<u64>)) {
        let mut batches = self.batches.iter().peekable();
        let mut number = 0;
        for position in begin..end {
            while let Some((batch, _)) = batches.next_if(|(_, from)| *from <= position) {
                number = *batch;
            }
            let next = u64::from(self.next[self.slot(position)]);
            f(self.key(position), (next != 0).then_some(number + next));
        }
    }

    /// Positions of the uses of the batches `first..=last`.
    fn range(&self, first: u64, last: u64) -> Option<(u64, u64)> {
        let begin = self.batches.partition_point(|(batch, _)| *batch < first);
        let end = self.batches.partition_point(|(batch, _)| *batch <= last);
        let position = |at: usize| self.batches.get(at).map_or(self.tail, |(_, from)| *from);
        (begin < end).then(|| (position(begin), position(end)))
    }

    /// The batch of a use.
    fn batch_at(&self, position: u64) -> u64 {
        self.batches[self.batches.partition_point(|(_, from)| *from <= position) - 1].0
    }

    #[inline(always)]
    fn slot(&self, position: u64) -> usize {
        position as usize & (self.low.len() - 1)
    }

    #[inline(always)]
    fn key(&self, position: u64) -> u64 {
        let slot = self.slot(position);
        let high = if self.wide { self.high[slot] } else { 0 };
        u64::from(high) << 32 | u64::from(self.low[slot])
    }

    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        mix(key, 0) as usize & (self.last.len() - 1)
    }

    /// The entry of a key whose last use is announced and not over, with its position; the empty
    /// entry where it would go when there is none.
    #[inline(always)]
    fn find(&self, key: u64) -> Result<(usize, u64), usize> {
        let mut at = self.home(key);
        loop {
            let entry = self.last[at];
            if entry == 0 {
                return Err(at);
            }
            // Of a use that is over: beyond the tail, unless positions have gone round.
            let beyond = (u64::from(entry - 1)).wrapping_sub(self.head) % POSITIONS;
            let position = self.head + beyond;
            if position < self.tail && self.key(position) == key {
                return Ok((at, position));
            }
            at = (at + 1) & (self.last.len() - 1);
        }
    }

    /// Makes `position` the last use of a key; returns the one before.
    #[inline(always)]
    fn exchange_last(&mut self, key: u64, position: u64) -> Option<u64> {
        let entry = (position % POSITIONS) as u32 + 1;
        match self.find(key) {
            Ok((at, before)) => {
                self.last[at] = entry;
                Some(before)
            }
            Err(at) => {
                self.last[at] = entry;
                self.filled += 1;
                None
            }
        }
    }

    /// Makes the ring and the hash table large enough for `keys` more uses.
    fn make_room(&mut self, keys: usize) {
        let live = (self.tail - self.head) as usize + keys;
        if live > self.low.len() {
            self.grow_ring(live.next_power_of_two().max(CAPACITY_MIN));
        }
        if (self.filled + keys) * 4 > self.last.len() * 3 {
            self.rebuild(keys);
        }
    }

    fn grow_ring(&mut self, capacity: usize) {
        let mut grown = Self::new(self.wide);
        grown.low = vec![0; capacity];
        grown.next = vec![0; capacity];
        if self.wide {
            grown.high = vec![0; capacity];
        }
        for position in self.head..self.tail {
            let (from, to) = (self.slot(position), grown.slot(position));
            grown.low[to] = self.low[from];
            grown.next[to] = self.next[from];
            if self.wide {
                grown.high[to] = self.high[from];
            }
        }
        (self.low, self.high, self.next) = (grown.low, grown.high, grown.next);
    }

    /// Makes the hash table anew, without the uses that are over: a use without a next one is the
    /// last of its key.
    fn rebuild(&mut self, keys: usize) {
        let is_last = |position: &u64| self.next[self.slot(*position)] == 0;
        let live = (self.head..self.tail).filter(is_last).count();
        let capacity = (2 * (live + keys)).next_power_of_two().max(CAPACITY_MIN);
        if capacity == self.last.len() {
            self.last.fill(0);
        } else {
            self.last = vec![0; capacity];
        }
        self.filled = live;
        for position in self.head..self.tail {
            if self.next[self.slot(position)] != 0 {
                continue;
            }
            let mut at = self.home(self.key(position));
            while self.last[at] != 0 {
                at = (at + 1) & (self.last.len() - 1);
            }
            self.last[at] = (position % POSITIONS) as u32 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distinct::Distinct;

    /// Batches of keys that recur by chance, of a table of `rows` rows spread by `stride`.
    fn batches(count: u64, rows: u64, stride: u64) -> Vec<Vec<u64>> {
        let mut distinct = Distinct::new();
        (0..count)
            .map(|batch| {
                let size = mix(batch, 1) % 50;
                let key = |i| mix(batch * 64 + i, 2) % (1 + mix(batch * 64 + i, 3) % rows);
                let keys: Vec<u64> = (0..size).map(|i| key(i) * stride).collect();
                distinct.run(&keys).0.to_vec()
            })
            .collect()
    }

    /// The next batch up to `announced` after `batch` that uses `key`.
    fn next_of(batches: &[Vec<u64>], batch: u64, key: u64, announced: u64) -> Option<u64> {
        (batch + 1..=announced).find(|later| batches[*later as usize].contains(&key))
    }

    #[test]
    fn every_use_knows_the_next_that_is_announced() {
        for (stride, wide, ahead) in [(1, false, 7), (1, false, 40), (0x1_0000_0001, true, 20)] {
            let batches = batches(400, 300, stride);
            let mut uses = Uses::new(wide);
            let mut seen = 0;
            for announced in 0..batches.len() as u64 {
                let keys = &batches[announced as usize];
                let oldest = announced.saturating_sub(ahead);
                let mut first = Vec::new();
                uses.announce(announced, keys, |key| first.push(key));
                let in_use = |key: &u64| {
                    (oldest..announced).any(|batch| batches[batch as usize].contains(key))
                };
                let expected: Vec<u64> = keys.iter().copied().filter(|k| !in_use(k)).collect();
                assert_eq!(first, expected, "batch {announced}");
                let middle = oldest.midpoint(announced);
                let mut all = Vec::new();
                uses.keys_of(middle, &mut all);
                assert_eq!(all, batches[middle as usize]);
                if announced >= ahead {
                    let mut finished = Vec::new();
                    uses.finish(oldest, |key, next| finished.push((key, next)));
                    let expected: Vec<_> = batches[oldest as usize]
                        .iter()
                        .map(|key| (*key, next_of(&batches, oldest, *key, announced)))
                        .collect();
                    assert_eq!(finished, expected, "batch {oldest}");
                    seen += finished.iter().filter(|(_, next)| next.is_some()).count();
                }
            }
            assert!(seen > 500, "{seen} uses had a next one");
        }
    }

    #[test]
    fn batches_finish_together_and_memory_is_bounded_by_what_is_announced() {
        let batches = batches(3_000, 1 << 20, 1);
        let mut uses = Uses::new(false);
        for (number, keys) in (0..).zip(&batches) {
            let before = uses.memory_bytes();
            let promised = uses.growth_for(keys.len());
            uses.announce(number, keys, |_| ());
            assert!(uses.memory_bytes() <= before + promised + 64 * 16, "batch {number}");
            if number % 10 == 9 {
                let mut finished = Vec::new();
                uses.finish(number - 5, |key, _| finished.push(key));
                let first = if number == 9 { 0 } else { number - 14 };
                let expected = batches[first as usize..=number as usize - 5].concat();
                assert_eq!(finished, expected);
            }
        }
        // 15 batches of at most 49 uses.
        assert!(uses.memory_bytes() < 20_000, "{} bytes", uses.memory_bytes());
        uses.finish(u64::MAX, |_, _| ());
        uses.finish(u64::MAX, |key, _| panic!("{key} is still announced"));
    }

    #[test]
    fn positions_go_round() {
        let batches = batches(60, 40, 1);
        let mut uses = Uses::new(false);
        (uses.head, uses.tail) = (POSITIONS - 300, POSITIONS - 300);
        for (number, keys) in (0..).zip(&batches) {
            uses.announce(number, keys, |_| ());
            if number >= 5 {
                uses.finish(number - 5, |key, next| {
                    assert_eq!(next, next_of(&batches, number - 5, key, number));
                });
            }
        }
        assert!(uses.tail > POSITIONS);
    }
}
