//! The announced uses of one table's rows: which batch uses a row next.
//!
//! A ring holds the distinct keys of all announced batches, in order. Beside each key it says after
//! how many batches the row is used again; where it is not, as far as is announced, after how many
//! stretches of the schedule, or 0 where nobody knows. A hash table
//! finds the last announced use of a key, so that the next one can be linked to it. A use costs 4
//! bytes in a table of 2^16 rows, 5 in one of 2^24, 6 in one of 2^32, 10 with any keys; a distinct
//! key 5 to 6 more. Every byte here is a byte less of rows in memory.

use crate::hash::mix;
use crate::prefetch::prefetch_read;
use std::collections::VecDeque;

/// The fewest entries of a hash table.
const CAPACITY_MIN: usize = 1 << 6;
/// Bits of a hash table's entry for a position and a tag.
const ENTRY_BITS_MASK: u32 = u32::MAX >> 1;
/// The most bits of a position, less one: a ring is shorter than 2^31 uses.
const POSITION_BITS_MAX: u32 = 30;
/// A table is made anew after so many times the uses that there are, to have no position twice.
const USES_PER_TABLE: u64 = 4;
/// Bytes beside a key: when the row is used again.
const NEXT_BYTES: usize = 2;
/// Keys whose lines are asked for together.
const BLOCK: usize = 16;
/// A use more batches later than that counts as none.
const FURTHEST: u64 = crate::cache::NextUse::BATCHES_AHEAD_MAX;

/// Flag of the value beside a key: it is a number of stretches, and no later use is announced.
const IN_STRETCHES: u16 = 1 << 15;

/// The fewest and the most uses of a block, powers of two.
const BLOCK_USES: (usize, usize) = (1 << 6, 1 << 12);

/// All uses, the newest behind the oldest, in blocks that come and go one by one: a ring that
/// moved to a larger place would need both places for a moment. Of a use the key lies beside what
/// is said of it, in little-endian order, so that one line has both.
#[derive(Debug)]
struct Ring {
    blocks: VecDeque<Box<[u8]>>,
    /// A block that is free again.
    spare: Option<Box<[u8]>>,
    /// Bytes of a key.
    key_bytes: usize,
    /// Uses of a block: 2 to this power.
    shift: u32,
    /// Position of the first place in the first block.
    base: u64,
    /// Position of the first use, and one past the last. They only grow.
    head: u64,
    tail: u64,
}

impl Ring {
    fn new(key_bytes: usize, bytes: u64) -> Self {
        let fit = bytes as usize / (key_bytes + NEXT_BYTES);
        let uses = fit.next_power_of_two().clamp(BLOCK_USES.0, BLOCK_USES.1);
        let shift = uses.trailing_zeros();
        let (blocks, spare) = (VecDeque::new(), None);
        Self { blocks, spare, key_bytes, shift, base: 0, head: 0, tail: 0 }
    }

    fn block_uses(&self) -> usize {
        1 << self.shift
    }

    /// Bytes of a block; what is read of its last key are eight.
    fn block_bytes(&self) -> usize {
        self.block_uses() * (self.key_bytes + NEXT_BYTES) + 8
    }

    fn memory_bytes(&self) -> usize {
        (self.blocks.len() + usize::from(self.spare.is_some())) * self.block_bytes()
    }

    /// Bytes that so many more uses may add.
    fn growth_for(&self, keys: usize) -> usize {
        let blocks = ((self.tail - self.base) as usize + keys).div_ceil(self.block_uses());
        let have = self.blocks.len() + usize::from(self.spare.is_some());
        blocks.saturating_sub(have) * self.block_bytes()
    }

    /// Block of a position from `head` to `tail`, and where its key begins in it.
    #[inline(always)]
    fn place(&self, position: u64) -> (usize, usize) {
        let from_base = (position - self.base) as usize;
        let at = from_base & (self.block_uses() - 1);
        (from_base >> self.shift, at * (self.key_bytes + NEXT_BYTES))
    }

    #[inline(always)]
    fn key(&self, position: u64) -> u64 {
        let (block, at) = self.place(position);
        let bytes = self.blocks[block][at..].first_chunk().expect("eight bytes follow");
        u64::from_le_bytes(*bytes) & (u64::MAX >> (64 - 8 * self.key_bytes))
    }

    #[inline(always)]
    fn next(&self, position: u64) -> u16 {
        let (block, at) = self.place(position);
        let bytes = &self.blocks[block][at + self.key_bytes..];
        u16::from_le_bytes(*bytes.first_chunk().expect("two bytes follow"))
    }

    #[inline(always)]
    fn set_next(&mut self, position: u64, next: u16) {
        let (block, at) = self.place(position);
        let at = at + self.key_bytes;
        self.blocks[block][at..at + NEXT_BYTES].copy_from_slice(&next.to_le_bytes());
    }

    #[inline(always)]
    fn prefetch(&self, position: u64) {
        let (block, at) = self.place(position);
        prefetch_read(&self.blocks[block][at]);
    }

    /// Appends a use.
    #[inline(always)]
    fn push(&mut self, key: u64) -> u64 {
        let position = self.tail;
        let (block, at) = self.place(position);
        if block == self.blocks.len() {
            self.add_block();
        }
        // For a shorter key, the bytes behind it lie in the place of uses to come.
        self.blocks[block][at..at + 8].copy_from_slice(&key.to_le_bytes());
        self.set_next(position, 0);
        self.tail += 1;
        position
    }

    fn add_block(&mut self) {
        let bytes = self.block_bytes();
        let block = self.spare.take().unwrap_or_else(|| vec![0; bytes].into());
        self.blocks.push_back(block);
    }

    /// Forgets the uses before a position.
    fn drop_before(&mut self, position: u64) {
        self.head = position;
        while position - self.base >= self.block_uses() as u64 {
            self.spare = self.blocks.pop_front();
            self.base += self.block_uses() as u64;
        }
    }
}

/// Bytes of a key of a table with so many rows, or of any keys.
fn key_bytes(rows: Option<u64>) -> usize {
    match rows {
        Some(0..=0x1_0000) => 2,
        Some(0x1_0001..=0x100_0000) => 3,
        Some(0x100_0001..=0x1_0000_0000) => 4,
        _ => 8,
    }
}

/// The next use of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nobody knows of one.
    Unknown,
    /// In a batch that is announced.
    Batch(u64),
    /// In a stretch of the schedule.
    Stretch(u64),
}

/// An announced batch that has keys.
#[derive(Clone, Copy, Debug)]
struct BatchOfUses {
    number: u64,
    /// The position of its first use.
    from: u64,
    /// Its stretch, where there is a schedule.
    stretch: u64,
}

/// Predictions by a schedule of the stretch of a row's next use, of uses that have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Foreseen {
    /// It was that stretch.
    pub(super) right: u64,
    /// It was another.
    pub(super) wrong: u64,
}

/// The announced uses of one table.
#[derive(Debug)]
pub(super) struct Uses {
    ring: Ring,
    batches: VecDeque<BatchOfUses>,
    foreseen: Foreseen,
    /// Position of each key's last use: 1 + some bits of it, and above them bits of the key's hash,
    /// so that entries of other keys are told without looking at their uses. 0 is an empty entry.
    /// Entries of uses that are over stay until the table is made anew.
    last: Vec<u32>,
    /// Number of bits of a position in an entry, and the first position that any of them may have:
    /// no two positions from there to the tail have the same bits.
    position_bits: u32,
    since: u64,
    /// Entries that are not empty, and those of them whose uses are not over.
    filled: usize,
    live: usize,
}

impl Uses {
    /// Of a table with so many rows, or of any keys. Uses come in blocks of about `block_bytes`, as
    /// far as that is neither very little nor very much.
    pub(super) fn new(rows: Option<u64>, block_bytes: u64) -> Self {
        Self {
            ring: Ring::new(key_bytes(rows), block_bytes),
            batches: VecDeque::new(),
            foreseen: Foreseen::default(),
            last: Vec::new(),
            position_bits: 0,
            since: 0,
            filled: 0,
            live: 0,
        }
    }

    /// Whether it has room for the keys of a table with so many rows, or for any keys.
    pub(super) fn is_for(&self, rows: Option<u64>) -> bool {
        self.ring.key_bytes == key_bytes(rows)
    }

    /// Allocated bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.ring.memory_bytes()
            + 4 * self.last.capacity()
            + size_of::<BatchOfUses>() * self.batches.capacity()
    }

    /// Bytes that so many more uses may add at most.
    pub(super) fn growth_for(&self, keys: usize) -> usize {
        // The old table goes before the new one comes.
        let table = if self.fits(keys) {
            0
        } else {
            table_for(self.live + keys).saturating_sub(self.last.len())
        };
        self.ring.growth_for(keys) + table * 4
    }

    /// Whether the hash table has room for so many more keys, and its entries for their positions.
    fn fits(&self, keys: usize) -> bool {
        (self.filled + keys) * 8 <= self.last.len() * 7
            && self.ring.tail - self.since + keys as u64 <= 1 << self.position_bits
    }

    /// Appends a batch, of a stretch, with these distinct keys. `next` says of the first of them in
    /// how many stretches they are used again, plus 1, and 0 where nobody knows. Calls `first` with
    /// each key that no unfinished batch before uses.
    pub(super) fn announce(
        &mut self,
        (number, stretch): (u64, u64),
        keys: &[u64],
        next: &[u16],
        mut first: impl FnMut(u64),
    ) {
        if keys.is_empty() {
            return;
        }
        if !self.fits(keys.len()) {
            self.rebuild(keys.len());
        }
        let from = self.ring.tail;
        self.batches.push_back(BatchOfUses { number, from, stretch });
        for block in keys.chunks(BLOCK) {
            for key in block {
                prefetch_read(&self.last[self.home(mix(*key, 0))]);
            }
            for key in block {
                if let Some(position) = self.likely_last(*key) {
                    self.ring.prefetch(position);
                }
            }
            for key in block {
                let position = self.ring.push(*key);
                match self.exchange_last(*key, position) {
                    Some(before) => {
                        let of = self.batch_at(before);
                        self.compare(before, of.stretch, stretch);
                        let apart = number - of.number;
                        self.ring
                            .set_next(before, if apart <= FURTHEST { apart as u16 } else { 0 });
                    }
                    None => first(*key),
                }
            }
        }
        for (position, next) in (from..).zip(next).take(keys.len()) {
            if *next > 0 {
                let stretches = (next - 1).min(IN_STRETCHES - 1);
                self.ring.set_next(position, IN_STRETCHES | stretches);
            }
        }
    }

    /// Counts whether the schedule was right about the use after the one at a position, which has
    /// come in `stretch`.
    fn compare(&mut self, position: u64, from: u64, stretch: u64) {
        let said = self.ring.next(position);
        if said & IN_STRETCHES != 0 {
            let is_right = from + u64::from(said - IN_STRETCHES) == stretch;
            self.foreseen.right += u64::from(is_right);
            self.foreseen.wrong += u64::from(!is_right);
        }
    }

    /// Right and wrong predictions of the schedule since the last call.
    pub(super) fn take_foreseen(&mut self) -> Foreseen {
        std::mem::take(&mut self.foreseen)
    }

    /// Forgets the uses of all batches up to `number`, after `f` has seen each use's key and the
    /// row's next use.
    pub(super) fn finish(&mut self, number: u64, mut f: impl FnMut(u64, Next)) {
        let Some((begin, end)) = self.range(0, number) else { return };
        let mut last_uses = 0;
        self.for_each(begin, end, |key, next| {
            last_uses += usize::from(!matches!(next, Next::Batch(_)));
            f(key, next);
        });
        // A use beyond the furthest is one of several last ones of its key.
        self.live = self.live.saturating_sub(last_uses);
        self.ring.drop_before(end);
        while self.batches.front().is_some_and(|batch| batch.number <= number) {
            self.batches.pop_front();
        }
    }

    /// Adds the keys of a batch to `keys`.
    pub(super) fn keys_of(&self, number: u64, keys: &mut Vec<u64>) {
        if let Some((begin, end)) = self.range(number, number) {
            keys.extend((begin..end).map(|position| self.ring.key(position)));
        }
    }

    fn for_each(&self, begin: u64, end: u64, mut f: impl FnMut(u64, Next)) {
        let mut batches = self.batches.iter().peekable();
        let (mut number, mut stretch) = (0, 0);
        for position in begin..end {
            while let Some(batch) = batches.next_if(|batch| batch.from <= position) {
                (number, stretch) = (batch.number, batch.stretch);
            }
            let next = match self.ring.next(position) {
                0 => Next::Unknown,
                after if is_announced(after) => Next::Batch(number + u64::from(after)),
                after => Next::Stretch(stretch + u64::from(after - IN_STRETCHES)),
            };
            f(self.ring.key(position), next);
        }
    }

    /// Positions of the uses of the batches `first..=last`.
    fn range(&self, first: u64, last: u64) -> Option<(u64, u64)> {
        let begin = self.batches.partition_point(|batch| batch.number < first);
        let end = self.batches.partition_point(|batch| batch.number <= last);
        let position = |at: usize| self.batches.get(at).map_or(self.ring.tail, |batch| batch.from);
        (begin < end).then(|| (position(begin), position(end)))
    }

    /// The batch of a use. Batches of one table are of about one size, so it is looked for where it
    /// would be if they were.
    #[inline(always)]
    fn batch_at(&self, position: u64) -> BatchOfUses {
        const NEAR: usize = 4;
        let (batches, first) = (&self.batches, self.batches[0].from);
        let uses = (self.ring.tail - first).max(1);
        let guess = (position - first).saturating_mul(batches.len() as u64) / uses;
        let from = (guess as usize).saturating_sub(NEAR).min(batches.len() - 1);
        let to = (from + 2 * NEAR).min(batches.len());
        let is_within = batches[from].from <= position
            && batches.get(to).is_none_or(|after| after.from > position);
        let at = match is_within {
            true => (from + 1..to).find(|at| batches[*at].from > position).unwrap_or(to),
            false => batches.partition_point(|batch| batch.from <= position),
        };
        batches[at - 1]
    }

    /// First entry to look at for a key, from its hash.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.last.len() as u64) >> 32) as usize
    }

    /// The entry of a key with this hash, used last at this position.
    #[inline(always)]
    fn entry(&self, hash: u64, position: u64) -> u32 {
        let bits = self.position_bits;
        let tag = hash as u32 & (ENTRY_BITS_MASK >> bits);
        (tag << bits | position as u32 & !(u32::MAX << bits)) + 1
    }

    /// The position that an entry names, if the tag is that of the hash; `None` of an empty one, of
    /// another key's and of a use that is over.
    #[inline(always)]
    fn position(&self, entry: u32, hash: u64) -> Option<u64> {
        let (entry, bits) = (entry.checked_sub(1)?, self.position_bits);
        if (entry ^ (hash as u32) << bits) & (ENTRY_BITS_MASK >> bits << bits) != 0 {
            return None;
        }
        // Of a use that is over it is beyond the tail.
        let mask = (1 << bits) - 1;
        let position = self.ring.head + (u64::from(entry).wrapping_sub(self.ring.head) & mask);
        (position < self.ring.tail).then_some(position)
    }

    /// The next entry to look at.
    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.last.len() { 0 } else { at + 1 }
    }

    /// Position of a key's last use, if no other key has its tag.
    #[inline(always)]
    fn likely_last(&self, key: u64) -> Option<u64> {
        let hash = mix(key, 0);
        let mut at = self.home(hash);
        while self.last[at] != 0 {
            let position = self.position(self.last[at], hash);
            if position.is_some() {
                return position;
            }
            at = self.after(at);
        }
        None
    }

    /// Makes `position` the last use of a key; returns the one before.
    #[inline(always)]
    fn exchange_last(&mut self, key: u64, position: u64) -> Option<u64> {
        let hash = mix(key, 0);
        let mut at = self.home(hash);
        loop {
            let found = self.last[at];
            if found == 0 {
                self.last[at] = self.entry(hash, position);
                self.filled += 1;
                self.live += 1;
                return None;
            }
            // The use itself is in the ring already, but no entry names it.
            if let Some(before) = self.position(found, hash)
                && self.ring.key(before) == key
            {
                self.last[at] = self.entry(hash, position);
                return Some(before);
            }
            at = self.after(at);
        }
    }

    /// Makes the hash table anew, without the uses that are over: a use without a next one is the
    /// last of its key.
    fn rebuild(&mut self, keys: usize) {
        let ring = &self.ring;
        let live = (ring.head..ring.tail).filter(|at| !is_announced(ring.next(*at))).count();
        let capacity = table_for(live + keys);
        if capacity.abs_diff(self.last.len()) * 8 <= self.last.len() && capacity <= self.last.len()
        {
            self.last.fill(0);
        } else {
            self.last = Vec::new();
            self.last = vec![0; capacity];
        }
        self.filled = 0;
        self.since = self.ring.head;
        let uses = self.ring.tail - self.ring.head + keys as u64;
        self.position_bits = (USES_PER_TABLE * uses).ilog2().min(POSITION_BITS_MAX) + 1;
        for position in self.ring.head..self.ring.tail {
            if is_announced(self.ring.next(position)) {
                continue;
            }
            let hash = mix(self.ring.key(position), 0);
            let mut at = self.home(hash);
            while self.last[at] != 0 {
                at = self.after(at);
            }
            self.last[at] = self.entry(hash, position);
            self.filled += 1;
        }
        self.live = self.filled;
    }
}

/// Whether a batch is announced that uses the row again.
#[inline(always)]
fn is_announced(next: u16) -> bool {
    next != 0 && next & IN_STRETCHES == 0
}

/// Entries of a hash table that is made for so many keys.
fn table_for(keys: usize) -> usize {
    (keys + keys * 3 / 8).max(CAPACITY_MIN)
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
                let keys: Vec<u64> = (0..size).map(|i| key(i).wrapping_mul(stride)).collect();
                distinct.run(&keys).0.to_vec()
            })
            .collect()
    }

    fn batch(number: Option<u64>) -> Next {
        number.map_or(Next::Unknown, Next::Batch)
    }

    /// The next batch up to `announced` after `batch` that uses `key`.
    fn next_of(batches: &[Vec<u64>], batch: u64, key: u64, announced: u64) -> Option<u64> {
        (batch + 1..=announced).find(|later| batches[*later as usize].contains(&key))
    }

    #[test]
    fn every_use_knows_the_next_that_is_announced() {
        let wide = 0x123_4567_89ab_cdef;
        for (stride, rows, ahead) in [
            (1, Some(0x1_0000), 7),
            (1, Some(0x1_0000), 40),
            (300, Some(0x100_0000), 20),
            (1 << 20, Some(0x1_0000_0000), 20),
            (wide, None, 20),
        ] {
            let batches = batches(400, 300, stride);
            let mut uses = Uses::new(rows, 600);
            let mut seen = 0;
            for announced in 0..batches.len() as u64 {
                let keys = &batches[announced as usize];
                let oldest = announced.saturating_sub(ahead);
                let mut first = Vec::new();
                uses.announce((announced, 0), keys, &[], |key| first.push(key));
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
                        .map(|key| (*key, batch(next_of(&batches, oldest, *key, announced))))
                        .collect();
                    assert_eq!(finished, expected, "batch {oldest}");
                    seen += finished.iter().filter(|(_, next)| *next != Next::Unknown).count();
                }
            }
            assert!(seen > 500, "{seen} uses had a next one");
        }
    }

    // Stretches of 8 batches, 20 announced: what lies behind is known from the schedule.
    #[test]
    fn a_use_knows_the_stretch_of_the_next_until_its_batch_is_announced() {
        let batches = batches(300, 300, 1);
        let last = batches.len() as u64 - 1;
        let stretch = |batch: u64| batch / 8;
        let mut uses = Uses::new(Some(1 << 20), 600);
        let (mut in_batches, mut in_stretches, mut all) = (0, 0, Foreseen::default());
        for announced in 0..=last {
            let keys = &batches[announced as usize];
            let next_stretch = |key: &u64| next_of(&batches, announced, *key, last).map(stretch);
            // The schedule is wrong about every seventh key, and knows nothing of every fifth.
            let said = |key: &u64| match next_stretch(key) {
                Some(_) if key.is_multiple_of(5) => 0,
                Some(of) => (of - stretch(announced)) as u16 + 1 + u16::from(key.is_multiple_of(7)),
                None => 0,
            };
            let next: Vec<u16> = keys.iter().map(said).collect();
            uses.announce((announced, stretch(announced)), keys, &next, |_| ());
            let foreseen = uses.take_foreseen();
            (all.right, all.wrong) = (all.right + foreseen.right, all.wrong + foreseen.wrong);
            let Some(oldest) = announced.checked_sub(20) else { continue };
            uses.finish(oldest, |key, next| {
                let announced_use = next_of(&batches, oldest, key, announced);
                let later = next_of(&batches, oldest, key, last).map(stretch);
                let expected = match (announced_use, later) {
                    (Some(number), _) => Next::Batch(number),
                    (None, Some(of)) if key % 5 > 0 => {
                        Next::Stretch(of + u64::from(key.is_multiple_of(7)))
                    }
                    _ => Next::Unknown,
                };
                assert_eq!(next, expected, "key {key} of batch {oldest}");
                in_batches += usize::from(matches!(next, Next::Batch(_)));
                in_stretches += usize::from(matches!(next, Next::Stretch(_)));
            });
        }
        assert!(in_batches > 500 && in_stretches > 500, "{in_batches}, {in_stretches}");
        assert!(all.right > 500 && all.wrong > 50, "{all:?}");
        assert!(all.right > 4 * all.wrong, "{all:?}");
    }

    #[test]
    fn batches_finish_together_and_memory_is_bounded_by_what_is_announced() {
        let batches = batches(3_000, 1 << 20, 1);
        let mut uses = Uses::new(Some(1 << 20), 1 << 20);
        for (number, keys) in (0..).zip(&batches) {
            let before = uses.memory_bytes();
            let promised = uses.growth_for(keys.len());
            uses.announce((number, 0), keys, &[], |_| ());
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
        assert!(uses.memory_bytes() < 60_000, "{} bytes", uses.memory_bytes());
        uses.finish(u64::MAX, |_, _| ());
        uses.finish(u64::MAX, |key, _| panic!("{key} is still announced"));
    }

    #[test]
    fn positions_go_round() {
        let batches = batches(300, 40, 1);
        let mut uses = Uses::new(Some(1 << 20), 1 << 20);
        let near = (1 << 32) - 300;
        (uses.ring.base, uses.ring.head, uses.ring.tail) = (near, near, near);
        for (number, keys) in (0..).zip(&batches) {
            uses.announce((number, 0), keys, &[], |_| ());
            if number >= 5 {
                uses.finish(number - 5, |key, next| {
                    assert_eq!(next, batch(next_of(&batches, number - 5, key, number)));
                });
            }
        }
        assert!(uses.ring.tail - near > 4 << uses.position_bits);
    }
}
