//! The index of a growing table of 64-bit keys: a compact hash that keeps no keys.
//!
//! Linear hashing (Litwin, VLDB 1980) over many small partitions, see `partition`: with `p`
//! partitions and `2^l <= p < 2^(l+1)`, a key belongs to the partition numbered by the low `l + 1`
//! bits of its hash if there is one, else by the low `l` bits. The table grows by splitting one
//! partition at a time, so memory follows the number of rows smoothly and nothing doubles at once.
//!
//! An answer is a candidate: two keys whose hashes share address and tag look alike, so the caller
//! compares the stored key. Between splits the contents are a pure function of the calls made,
//! which is what recovery rests on: it loads partitions and replays journalled calls in their
//! order.

use super::ALLOCATION_BYTES;
use super::partition::{Partition, full_tag, tag_with_bit, tag_without_bit};
use crate::error::{Result, bail};
use std::ops::RangeInclusive;

/// Rows per partition above which a partition is split. Unsplit partitions hold up to twice as
/// many. At 96 the overheads (header, allocator, unused entries) come to 0.65 bytes a row.
const SPLIT_ABOVE: u64 = 96;
/// Rows per partition below which two partitions are merged: there the same overheads come to 1.3
/// bytes a row (1.8 at 48, where deletes get while no partition may merge), and the distance from
/// `SPLIT_ABOVE` keeps a table of steady size from doing both.
const MERGE_BELOW: u64 = 64;
/// Partitions of the smallest table.
const MIN_PARTITIONS: u32 = 16;
/// Most rows of a table: slot numbers have 32 bits and 0 is taken.
const MAX_ROWS: u64 = u32::MAX as u64;
/// Partition headers in a chunk of the directory.
const CHUNK: usize = 1024;
/// The last chunk grows by this many headers.
const CHUNK_STEP: usize = 64;

/// A split that was made. A replay of it first applies `replace(hash, slot, slot)` for each of
/// `refreshed`, then calls `split`, which then never needs a key.
#[derive(Debug, PartialEq, Eq)]
pub struct Split {
    /// The partition that was split.
    pub parent: u32,
    /// The partition that was added: the number of partitions before the split.
    pub child: u32,
    /// Slot number and hash of the entries whose tag was made anew from the key before the split.
    pub refreshed: Vec<(u32, u64)>,
}

/// A merge that was made. A replay calls `merge` at the same place. The child's entries must be
/// loaded there, so the caller merges only while no snapshot of the index is being written.
#[derive(Debug, PartialEq, Eq)]
pub struct Merge {
    /// The partition that took the entries.
    pub parent: u32,
    /// The partition that went away: the number of partitions after the merge.
    pub child: u32,
}

/// A compact hash from 64-bit hashes to candidate slot numbers; see the module.
///
/// The caller hashes keys with [`crate::hash::mix`], always with the same salt. About 7 bytes a
/// row.
#[derive(Debug)]
pub struct SparseIndex {
    /// Partition `i` is `directory[i / CHUNK][i % CHUNK]`; all chunks but the last are full.
    directory: Vec<Vec<Partition>>,
    /// Number of partitions, at least 1.
    partitions: u32,
    /// Never merged below this many.
    least_partitions: u32,
    live: u64,
    /// Sum of `heap_bytes` of the partitions.
    partition_bytes: usize,
}

/// The target of a hash: its partition, and the full-length tag it has there.
#[derive(Clone, Copy)]
struct Address {
    partition: usize,
    tag: u16,
}

impl SparseIndex {
    /// An empty index, with partitions enough for `expected_rows` (0 if unknown).
    ///
    /// *Errors*: `Misuse` when `expected_rows` is above 2^32 - 1.
    pub fn new(expected_rows: u64) -> Result<Self> {
        Self::restore(Self::least_partitions(expected_rows)?, expected_rows)
    }

    /// An index of `partitions` empty partitions, to load and replay into at recovery.
    /// `expected_rows` is that of `new`.
    ///
    /// *Errors*: `Corrupt` for a number of partitions that no index has, `Misuse` as `new`.
    pub fn restore(partitions: u32, expected_rows: u64) -> Result<Self> {
        let least_partitions = Self::least_partitions(expected_rows)?;
        if partitions == 0 || partitions > 1 << 31 {
            bail!(Corrupt, "a sparse index of {partitions} partitions, expected 1 to 2^31");
        }
        let mut index = Self {
            directory: Vec::new(),
            partitions: 0,
            least_partitions,
            live: 0,
            partition_bytes: 0,
        };
        (0..partitions).for_each(|_| index.push_partition(Partition::default()));
        Ok(index)
    }

    /// An index to copy this one into, which has nothing yet, not even partitions.
    pub fn empty_copy(&self) -> Self {
        Self {
            directory: Vec::new(),
            partitions: 0,
            least_partitions: self.least_partitions,
            live: 0,
            partition_bytes: 0,
        }
    }

    /// Copies a part of it, of a number, into what `empty_copy` gave: some megabytes at most, in
    /// order. Says whether parts follow; once none does, the copy is whole.
    pub fn copy_part(&self, part: usize, copy: &mut Self) -> bool {
        let mut chunk = Vec::with_capacity(self.directory[part].capacity());
        chunk.extend_from_slice(&self.directory[part]);
        copy.directory.push(chunk);
        let is_whole = copy.directory.len() == self.directory.len();
        if is_whole {
            (copy.partitions, copy.live) = (self.partitions, self.live);
            copy.partition_bytes = self.partition_bytes;
        }
        !is_whole
    }

    /// An upper bound of the bytes of an index of `rows` rows; about 6.6 bytes a row are used where
    /// none were removed.
    #[cfg(test)]
    pub fn planned_bytes(rows: u64) -> u64 {
        rows * 8 + 4096
    }

    /// Appends the slot numbers of the entries that `hash` may belong to, usually none or one. The
    /// caller compares the stored keys: a match of tags proves nothing.
    #[inline]
    pub fn candidates(&self, hash: u64, slots: &mut Vec<u32>) {
        self.visit_candidates(hash, |slot| slots.push(slot));
    }

    /// Gives `visit` each of the `candidates`.
    #[inline]
    pub fn visit_candidates(&self, hash: u64, mut visit: impl FnMut(u32)) {
        let address = self.address(hash);
        let partition = self.partition(address.partition);
        partition.find(address.tag, |position| {
            visit(partition.slot(position));
            false
        });
    }

    /// The first of the `candidates`.
    pub fn first_candidate(&self, hash: u64) -> Option<u32> {
        let address = self.address(hash);
        let partition = self.partition(address.partition);
        let mut first = None;
        partition.find(address.tag, |position| {
            first = Some(partition.slot(position));
            true
        });
        first
    }

    /// Whether the entry of `hash` with slot number `slot` is here: whether that stored copy of the
    /// key is the newest.
    #[inline]
    pub fn contains_slot(&self, hash: u64, slot: u32) -> bool {
        let address = self.address(hash);
        self.partition(address.partition).position(address.tag, slot).is_some()
    }

    /// Adds an entry for a key that has none. Panics when `slot` is 0.
    pub fn insert(&mut self, hash: u64, slot: u32) {
        let address = self.address(hash);
        self.change(address.partition, |partition| partition.push(address.tag, slot));
    }

    /// Gives the entry of `hash` with slot number `old` the number `new` and a full-length tag;
    /// says whether there was one. `new` may equal `old`. Panics when `new` is 0.
    pub fn replace(&mut self, hash: u64, old: u32, new: u32) -> bool {
        let address = self.address(hash);
        let partition = self.partition_mut(address.partition);
        let position = partition.position(address.tag, old);
        if let Some(position) = position {
            partition.set(position, address.tag, new);
        }
        position.is_some()
    }

    /// Drops the entry of `hash` with slot number `slot`; says whether there was one.
    pub fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let address = self.address(hash);
        let position = self.partition(address.partition).position(address.tag, slot);
        if let Some(position) = position {
            self.change(address.partition, |partition| partition.remove(position));
        }
        position.is_some()
    }

    /// Whether a `split` is due. One insertion makes at most one due.
    pub fn needs_split(&self) -> bool {
        self.live > SPLIT_ABOVE * u64::from(self.partitions)
    }

    /// Splits the one partition whose turn it is.
    ///
    /// `key_hash` gives the hash of the key stored at a slot number; it is asked only for entries
    /// that were not rewritten during the last 15 doublings of the table.
    ///
    /// *Errors*: those of `key_hash`, and `Corrupt` when a hash it returns does not belong to the
    /// partition; nothing changed then.
    pub fn split(&mut self, key_hash: &mut dyn FnMut(u32) -> Result<u64>) -> Result<Split> {
        assert!(self.partitions < 1 << 31, "one partition for every second slot number");
        let child = self.partitions;
        let parent = child - (1 << child.ilog2());
        let refreshed = self.refresh_bare_tags(parent, key_hash)?;
        let old = self.take(parent);
        let in_child = old.entries().filter(|(tag, _)| tag & 1 == 1).count();
        let mut halves =
            [Partition::with_capacity(old.count() - in_child), Partition::with_capacity(in_child)];
        for (tag, slot) in old.entries() {
            let (tag, bit) = tag_without_bit(tag).expect("tags without bits were just made anew");
            halves[usize::from(bit)].push(tag, slot);
        }
        let [stay, go] = halves;
        self.put(parent, stay);
        self.push_partition(go);
        Ok(Split { parent, child, refreshed })
    }

    /// Whether a `merge` is due: after many removals, never below the partitions that
    /// `expected_rows` asked for.
    pub fn needs_merge(&self) -> bool {
        self.partitions > self.least_partitions
            && self.live < MERGE_BELOW * u64::from(self.partitions)
    }

    /// Undoes the latest split: the last partition goes back into the one it came from. Needs no
    /// key. `None` when there is a single partition.
    pub fn merge(&mut self) -> Option<Merge> {
        if self.partitions == 1 {
            return None;
        }
        let child = self.partitions - 1;
        let parent = child - (1 << child.ilog2());
        let halves = [self.take(parent), self.take(child)];
        let mut merged = Partition::with_capacity(halves[0].count() + halves[1].count());
        for (bit, half) in [0, 1].into_iter().zip(&halves) {
            half.entries().for_each(|(tag, slot)| merged.push(tag_with_bit(tag, bit), slot));
        }
        self.pop_partition();
        self.put(parent, merged);
        Some(Merge { parent, child })
    }

    /// Asks for the tags that a look-up of `hash` reads.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        self.partition(self.address(hash).partition).prefetch();
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.live
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Every byte allocated: entries used or not, headers, and 16 bytes for each allocation.
    pub fn memory_bytes(&self) -> usize {
        // All chunks but the last have the capacity of a full chunk.
        let last = self.directory.last().map_or(0, Vec::capacity);
        let headers = (self.directory.len() - 1) * CHUNK + last;
        self.partition_bytes
            + headers * size_of::<Partition>()
            + self.directory.capacity() * size_of::<Vec<Partition>>()
            + (self.directory.len() + 1) * ALLOCATION_BYTES
    }

    /// Number of partitions; each is a snapshot piece.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The partition of `hash`, until the next split or merge.
    pub fn partition_of(&self, hash: u64) -> u32 {
        self.address(hash).partition as u32
    }

    /// The reversed hashes (`hash.reverse_bits()`) of partition `partition`, until the next split
    /// or merge. The low bits of a hash, which say its partition, are the high bits of the reversed
    /// one: so the ranges of all partitions are disjoint, and one follows the other.
    pub fn range_of(&self, partition: u32) -> RangeInclusive<u64> {
        let first = u64::from(partition).reverse_bits();
        first..=first | (u64::MAX >> self.address_bits(partition))
    }

    /// The partitions that have reversed hashes from `first` to `last`, in the order of their
    /// ranges. None where `last` lies before `first`.
    pub fn partitions_in(&self, first: u64, last: u64) -> impl Iterator<Item = u32> + '_ {
        let at = |reversed: u64| self.partition_of(reversed.reverse_bits());
        std::iter::successors((first <= last).then(|| at(first)), move |partition| {
            let end = *self.range_of(*partition).end();
            (end < last).then(|| at(end + 1))
        })
    }

    /// The slot numbers in partition `partition`.
    pub fn slots(&self, partition: u32) -> impl Iterator<Item = u32> + '_ {
        self.partition(partition as usize).entries().map(|(_, slot)| slot)
    }

    /// Appends partition `partition` to `out`; 8 bytes and 6 for each entry. Panics if there is no
    /// such partition.
    pub fn write_partition(&self, partition: u32, out: &mut Vec<u8>) {
        self.partition(partition as usize).write(self.address_bits(partition), out);
    }

    /// Replaces the entries of partition `partition` by those that `write_partition` wrote when the
    /// index had as many partitions as it has at this place of the replay.
    ///
    /// *Errors*: `Corrupt` when there is no such partition or the bytes cannot be it; nothing
    /// changed then.
    pub fn load_partition(&mut self, partition: u32, bytes: &[u8]) -> Result<()> {
        let partitions = self.partitions;
        if partition >= partitions {
            bail!(Corrupt, "index partition {partition} came, the index has {partitions}");
        }
        let loaded = Partition::read(self.address_bits(partition), bytes)
            .map_err(|error| error.context(format_args!("index partition {partition}")))?;
        self.put(partition, loaded);
        Ok(())
    }

    /// Gives full-length tags to the entries of `parent` that have no tag bit left.
    fn refresh_bare_tags(
        &mut self,
        parent: u32,
        key_hash: &mut dyn FnMut(u32) -> Result<u64>,
    ) -> Result<Vec<(u32, u64)>> {
        let partition = self.partition(parent as usize);
        if partition.short_count() == 0 {
            return Ok(Vec::new());
        }
        let bare = |position: &usize| tag_without_bit(partition.tag(*position)).is_none();
        let positions: Vec<usize> = (0..partition.count()).filter(bare).collect();
        let mut refreshed = Vec::with_capacity(positions.len());
        for position in &positions {
            let slot = partition.slot(*position);
            let hash = key_hash(slot)?;
            let owner = self.partition_of(hash);
            if owner != parent {
                bail!(
                    Corrupt,
                    "the row at slot {slot} belongs to index partition {owner}, its entry is in \
                     partition {parent}"
                );
            }
            refreshed.push((slot, hash));
        }
        for (position, (slot, hash)) in positions.into_iter().zip(&refreshed) {
            let tag = self.address(*hash).tag;
            self.partition_mut(parent as usize).set(position, tag, *slot);
        }
        Ok(refreshed)
    }

    fn least_partitions(expected_rows: u64) -> Result<u32> {
        if expected_rows > MAX_ROWS {
            bail!(
                Misuse,
                "expected_rows is {expected_rows}, a table holds at most {MAX_ROWS} rows; split it \
                 into several tables"
            );
        }
        Ok((expected_rows.div_ceil(SPLIT_ABOVE) as u32).max(MIN_PARTITIONS))
    }

    #[inline(always)]
    fn address(&self, hash: u64) -> Address {
        let low = 1u64 << self.partitions.ilog2();
        let partitions = u64::from(self.partitions);
        let long = hash & (2 * low - 1);
        let short = hash & (low - 1);
        // Split already: the partition of the low bits has a partner with the next bit set.
        let split = short + low < partitions;
        let partition = if split { long } else { short };
        let bits = low.trailing_zeros() + u32::from(split);
        Address { partition: partition as usize, tag: full_tag(hash >> bits) }
    }

    /// Number of low bits of the hash that all entries of `partition` share.
    fn address_bits(&self, partition: u32) -> u32 {
        let low = self.partitions.ilog2();
        low + u32::from((partition & ((1 << low) - 1)) + (1 << low) < self.partitions)
    }

    #[inline(always)]
    fn partition(&self, partition: usize) -> &Partition {
        &self.directory[partition / CHUNK][partition % CHUNK]
    }

    fn partition_mut(&mut self, partition: usize) -> &mut Partition {
        &mut self.directory[partition / CHUNK][partition % CHUNK]
    }

    /// Runs `change` on a partition and keeps the totals right.
    fn change<R>(&mut self, partition: usize, change: impl FnOnce(&mut Partition) -> R) -> R {
        let partition = self.partition_mut(partition);
        let (count, bytes) = (partition.count(), partition.heap_bytes());
        let result = change(partition);
        let (new_count, new_bytes) = (partition.count(), partition.heap_bytes());
        self.live = self.live + new_count as u64 - count as u64;
        self.partition_bytes = self.partition_bytes + new_bytes - bytes;
        result
    }

    fn take(&mut self, partition: u32) -> Partition {
        self.change(partition as usize, std::mem::take)
    }

    fn put(&mut self, partition: u32, content: Partition) {
        self.change(partition as usize, |place| *place = content);
    }

    fn push_partition(&mut self, content: Partition) {
        if (self.partitions as usize).is_multiple_of(CHUNK) {
            self.directory.push(Vec::new());
        }
        let chunk = self.directory.last_mut().expect("a chunk was pushed for the first partition");
        if chunk.len() == chunk.capacity() {
            chunk.reserve_exact(CHUNK_STEP.min(CHUNK - chunk.len()));
        }
        chunk.push(Partition::default());
        self.partitions += 1;
        self.put(self.partitions - 1, content);
    }

    /// Drops the last partition, which is empty, and with it the unused part of the directory.
    fn pop_partition(&mut self) {
        let chunk = self.directory.last_mut().expect("an index has partitions");
        let dropped = chunk.pop().expect("the last chunk is not empty");
        assert_eq!(dropped.count(), 0);
        if chunk.is_empty() {
            self.directory.pop();
        } else if chunk.capacity() - chunk.len() >= 2 * CHUNK_STEP {
            chunk.shrink_to(chunk.len() + CHUNK_STEP);
        }
        self.partitions -= 1;
    }

    /// `memory_bytes`, `len` and the addressing, counted afresh.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self) {
        let all = || self.directory.iter().flatten();
        assert_eq!(all().count(), self.partitions as usize);
        assert_eq!(all().map(|partition| partition.count() as u64).sum::<u64>(), self.live);
        assert_eq!(all().map(Partition::heap_bytes).sum::<usize>(), self.partition_bytes);
        let chunks = self.directory.split_last().expect("an index has partitions").1;
        assert!(chunks.iter().all(|chunk| chunk.capacity() == CHUNK));
        let short =
            |partition: &Partition| partition.entries().filter(|(t, _)| *t < 1 << 15).count();
        assert!(all().all(|partition| partition.short_count() == short(partition)));
    }
}
