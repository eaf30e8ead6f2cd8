//! A dense index with an entry for every id: its slot number, in as many bits as those of the file
//! need.
//!
//! The entries lie one behind the other, without regard to bytes, in zeroed memory, which the
//! operating system backs where ids were written (large tables: in huge pages; small ones may be
//! backed whole). An entry is read as the eight bytes that it begins in: 32 bits from any bit of a
//! byte on are 39 at most.
//!
//! When slot numbers outgrow the bits, the entries move apart in place, those of the last ids
//! first, some with each change: nobody waits for all of them. `boundary` tells which have moved.

use super::ALLOCATION_BYTES;
use super::dense::{check_piece, piece_ids, refused};
use crate::arena::advise_huge;
use crate::error::{Result, bail};
use crate::prefetch::prefetch_read;
use std::ops::RangeInclusive;

/// Bytes that are copied at a time.
const PART_BYTES: usize = 1 << 20;
/// Bytes that an entry is read with.
const READ_BYTES: usize = size_of::<u64>();
/// Bits of an entry at least: fewer would save some KiB of a table that is small anyway.
const BITS_MIN: u32 = 16;
/// Slots of the file for each id of a new table, times three: cleaning keeps three of five slots
/// in use by newest copies.
const SLOTS_PER_ID_THRICE: u64 = 5;
/// Entries that move apart with each change of one. A widening that begins an eighth before the
/// last number of the old bits is long done when that comes.
const MOVED_PER_SET: usize = 64;

/// Slot numbers of the ids `0..num_embeddings` of a dense table.
///
/// Verbs that take an id panic when it is not below `num_embeddings`: batches are validated before
/// they reach the index.
#[derive(Debug)]
pub(super) struct FullIndex {
    /// The entries, and bytes behind the last one that are read with it.
    bytes: Vec<u8>,
    count: usize,
    /// Bits of an entry.
    bits: u32,
    /// Bits of those that have not moved apart yet: of ids below `boundary`.
    narrow: u32,
    boundary: usize,
    /// Entries that are not 0.
    live: u64,
}

/// Bits of entries of which one is `slot`.
fn bits_of(slot: u64) -> u32 {
    (u64::BITS - slot.leading_zeros()).max(BITS_MIN)
}

/// Bits of the entries of a new table of so many ids.
fn bits_of_new(count: usize) -> u32 {
    bits_of((count as u64).saturating_mul(SLOTS_PER_ID_THRICE) / 3).min(u32::BITS)
}

fn bytes_of(count: usize, bits: u32) -> usize {
    count.saturating_mul(bits as usize).div_ceil(8) + READ_BYTES
}

impl FullIndex {
    /// An index of so many ids in which none has a stored copy.
    ///
    /// *Errors*: `Budget` when the machine does not have the addresses.
    pub(super) fn new(count: usize) -> Result<Self> {
        Self::with_bits(count, bits_of_new(count))
    }

    fn with_bits(count: usize, bits: u32) -> Result<Self> {
        let size = bytes_of(count, bits);
        // Zeroed memory cannot be asked for without an abort when there is none, so ask beforehand
        // for as much that is not.
        if Vec::<u8>::new().try_reserve_exact(size).is_err() {
            return Err(refused(count, size));
        }
        let mut bytes = vec![0; size];
        advise_huge(&mut bytes);
        Ok(Self { bytes, count, bits, narrow: bits, boundary: 0, live: 0 })
    }

    /// Makes room for so many ids in all.
    ///
    /// *Errors*: as `new`; nothing changed then.
    pub(super) fn grow(&mut self, count: usize) -> Result<()> {
        let bits = self.bits.max(bits_of_new(count));
        self.make_room(bytes_of(count, bits))?;
        self.move_apart(usize::MAX);
        self.bytes.resize(bytes_of(count, self.bits), 0);
        self.count = count;
        self.begin_moving(bits);
        Ok(())
    }

    /// An index of as many ids with as many bits, to copy this one into.
    ///
    /// *Errors*: as `new`.
    pub(super) fn empty_copy(&self) -> Result<Self> {
        let copy = Self::with_bits(self.count, self.bits)?;
        Ok(Self { narrow: self.narrow, boundary: self.boundary, ..copy })
    }

    /// Copies a part of it, of a number, into what `empty_copy` gave, while it does not change.
    /// Says whether parts follow.
    pub(super) fn copy_part(&self, part: usize, copy: &mut Self) -> bool {
        let begin = (part * PART_BYTES).min(self.bytes.len());
        let end = (begin + PART_BYTES).min(self.bytes.len());
        copy.bytes[begin..end].copy_from_slice(&self.bytes[begin..end]);
        copy.live = self.live;
        end < self.bytes.len()
    }

    /// Makes sure that every number below `slots` fits an entry. Entries move apart with the
    /// changes that follow.
    ///
    /// *Errors*: as `new`; nothing changed then.
    pub(super) fn fit(&mut self, slots: u64) -> Result<()> {
        let bits = bits_of(slots.saturating_sub(1));
        if bits > self.bits {
            self.make_room(bytes_of(self.count, bits))?;
            self.move_apart(usize::MAX);
            self.begin_moving(bits);
        }
        Ok(())
    }

    /// Bytes by which `fit` makes it grow.
    pub(super) fn growth_to_fit(&self, slots: u64) -> u64 {
        let bits = bits_of(slots.saturating_sub(1)).min(u32::BITS);
        bytes_of(self.count, bits.max(self.bits)).saturating_sub(self.bytes.capacity()) as u64
    }

    fn make_room(&mut self, size: usize) -> Result<()> {
        let more = size.saturating_sub(self.bytes.len());
        if self.bytes.try_reserve_exact(more).is_err() {
            return Err(refused(self.count, size));
        }
        Ok(())
    }

    /// Entries have so many bits from here on, where that is more; all have moved apart before.
    fn begin_moving(&mut self, bits: u32) {
        let size = bytes_of(self.count, bits);
        if size > self.bytes.len() {
            self.bytes.reserve_exact(size - self.bytes.len());
            self.bytes.resize(size, 0);
        }
        advise_huge(&mut self.bytes);
        if bits > self.bits {
            // Entries that are all 0 are that with any bits.
            let boundary = if self.live == 0 { 0 } else { self.count };
            (self.narrow, self.bits, self.boundary) = (self.bits, bits, boundary);
        }
    }

    /// Moves so many entries apart, those of the last ids of all that have not moved: what they
    /// cover then held entries that moved before.
    #[cold]
    fn move_apart(&mut self, ids: usize) {
        for _ in 0..ids.min(self.boundary) {
            let id = self.boundary - 1;
            let slot = self.read(id, self.narrow);
            self.boundary = id;
            self.write(id, self.bits, slot);
        }
    }

    /// Entries get the bits that this number needs, all at once: of a recovery, which learns the
    /// numbers one by one.
    #[cold]
    fn widen_for(&mut self, slot: u32) {
        self.move_apart(usize::MAX);
        self.begin_moving(bits_of(u64::from(slot)));
        self.move_apart(usize::MAX);
    }

    #[inline(always)]
    fn bits_at(&self, id: usize) -> u32 {
        if id < self.boundary { self.narrow } else { self.bits }
    }

    #[inline(always)]
    fn read(&self, id: usize, bits: u32) -> u32 {
        let bit = id * bits as usize;
        let mut read = [0; READ_BYTES];
        read.copy_from_slice(&self.bytes[bit / 8..bit / 8 + READ_BYTES]);
        (u64::from_le_bytes(read) >> (bit % 8) & ((1 << bits) - 1)) as u32
    }

    #[inline(always)]
    fn write(&mut self, id: usize, bits: u32, slot: u32) {
        let bit = id * bits as usize;
        let place = &mut self.bytes[bit / 8..bit / 8 + READ_BYTES];
        let mut read = [0; READ_BYTES];
        read.copy_from_slice(place);
        let beside = u64::from_le_bytes(read) & !(((1 << bits) - 1) << (bit % 8));
        place.copy_from_slice(&(beside | u64::from(slot) << (bit % 8)).to_le_bytes());
    }

    /// The slot number of `id`, 0 if it has no stored copy.
    #[inline]
    pub(super) fn get(&self, id: u64) -> u32 {
        let id = id as usize;
        assert!(id < self.count, "id {id} of {}", self.count);
        self.read(id, self.bits_at(id))
    }

    /// Makes `slot` the slot number of `id` (0 removes it) and returns the one before.
    #[inline]
    pub(super) fn set(&mut self, id: u64, slot: u32) -> u32 {
        let old = self.get(id);
        let id = id as usize;
        if self.boundary > 0 {
            self.move_apart(MOVED_PER_SET);
        }
        if u64::from(slot) >> self.bits_at(id) != 0 {
            self.widen_for(slot);
        }
        self.write(id, self.bits_at(id), slot);
        self.live += u64::from(slot != 0);
        self.live -= u64::from(old != 0);
        old
    }

    /// Asks for the memory that `get(id)` will read first; any id is allowed.
    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        if id < self.count as u64 {
            let id = id as usize;
            prefetch_read(&self.bytes[id * self.bits_at(id) as usize / 8]);
        }
    }

    /// Number of ids that have a stored copy.
    pub(super) fn len(&self) -> u64 {
        self.live
    }

    /// The number of ids, with or without a stored copy.
    pub(super) fn num_embeddings(&self) -> u64 {
        self.count as u64
    }

    /// Bytes that the index of a new table of `num_embeddings` rows takes.
    pub(super) fn memory_of_new(num_embeddings: u64) -> u64 {
        let count = usize::try_from(num_embeddings).unwrap_or(usize::MAX);
        (bytes_of(count, bits_of_new(count)) + ALLOCATION_BYTES) as u64
    }

    /// Bytes that the index of a table of `num_embeddings` rows takes at most, with slot numbers of
    /// all 32 bits.
    pub(super) fn memory_for(num_embeddings: u64) -> u64 {
        let beside = (READ_BYTES + ALLOCATION_BYTES) as u64;
        num_embeddings.saturating_mul(size_of::<u32>() as u64).saturating_add(beside)
    }

    /// Bytes of memory once every id was written; fewer are resident before.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + ALLOCATION_BYTES
    }

    /// The ids in `ids` that have a stored copy and their slot numbers, ascending by id. Ids behind
    /// the last are allowed.
    pub(super) fn range(&self, ids: RangeInclusive<u64>) -> impl Iterator<Item = (u64, u32)> + '_ {
        let count = self.count as u64;
        let first = (*ids.start()).min(count);
        let end = ids.end().saturating_add(1).clamp(first, count);
        (first..end).map(|id| (id, self.get(id))).filter(|(_, slot)| *slot != 0)
    }

    /// Appends piece `piece` to `out`: its slot numbers, 4 bytes each. Panics if there is no such
    /// piece.
    pub(super) fn write_piece(&self, piece: usize, out: &mut Vec<u8>) {
        let ids = piece_ids(self.count as u64, piece);
        out.reserve(ids.len() * 4);
        for id in ids {
            out.extend_from_slice(&self.get(id as u64).to_le_bytes());
        }
    }

    /// Replaces the entries of piece `piece` by those that `write_piece` wrote.
    ///
    /// *Errors*: `Corrupt` when there is no such piece or its size is wrong; nothing changed then.
    pub(super) fn load_piece(&mut self, piece: usize, bytes: &[u8]) -> Result<()> {
        check_piece(self.count as u64, piece)?;
        let range = piece_ids(self.count as u64, piece);
        if bytes.len() != range.len() * 4 {
            bail!(
                Corrupt,
                "index piece {piece} is {} bytes, expected {}",
                bytes.len(),
                range.len() * 4
            );
        }
        let (encoded, _) = bytes.as_chunks::<4>();
        for (id, bytes) in range.zip(encoded) {
            let slot = u32::from_le_bytes(*bytes);
            // An entry that stays 0 is not written, so that memory never used stays unbacked.
            if slot != self.get(id as u64) {
                self.set(id as u64, slot);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sparse_tests::Random;
    use super::*;

    const IDS: usize = 5000;

    fn check(index: &FullIndex, model: &[u32]) {
        assert!((0..IDS).all(|id| index.get(id as u64) == model[id]));
        assert_eq!(index.len(), model.iter().filter(|slot| **slot != 0).count() as u64);
        assert_eq!(index.memory_bytes(), index.bytes.len() + ALLOCATION_BYTES);
    }

    // Every look-up is right while entries move apart, at each number of bits, whether numbers of
    // the new bits come at once or when all have moved.
    #[test]
    fn entries_keep_their_numbers_while_they_move_apart() {
        let mut random = Random(7);
        for most in [0, 30, IDS as u64] {
            let mut index = FullIndex::new(IDS).unwrap();
            let mut model = vec![0; IDS];
            for bits in BITS_MIN..=u32::BITS {
                index.fit(1 << bits).unwrap();
                assert_eq!(index.bits, bits);
                assert_eq!(index.boundary, if bits == BITS_MIN { 0 } else { IDS }, "{bits} bits");
                for step in 0..IDS as u64 / 8 {
                    let id = random.below(IDS as u64);
                    // The old bits until so many steps were made.
                    let bits = if step < most { bits - 1 } else { bits };
                    let slot = (random.below(1 << bits)) as u32;
                    assert_eq!(index.set(id, slot), model[id as usize]);
                    model[id as usize] = slot;
                    let id = random.below(IDS as u64) as usize;
                    assert_eq!(index.get(id as u64), model[id]);
                }
                check(&index, &model);
                assert_eq!(index.boundary, 0, "all moved with the changes");
            }
            assert_eq!(index.growth_to_fit(u64::from(u32::MAX) + 1), 0);
        }
    }

    #[test]
    fn changes_move_entries_apart_some_at_a_time() {
        let mut index = FullIndex::new(IDS).unwrap();
        index.set(0, 5);
        index.fit(1 << 17).unwrap();
        index.set(0, 9);
        assert_eq!(index.boundary, IDS - MOVED_PER_SET);
        let mut copy = index.empty_copy().unwrap();
        assert!(!index.copy_part(0, &mut copy));
        copy.set(4999, 1 << 16);
        assert_eq!((copy.get(0), copy.get(4999), copy.len()), (9, 1 << 16, 2));
        index.grow(2 * IDS).unwrap();
        assert_eq!((index.get(0), index.get(2 * IDS as u64 - 1), index.len()), (9, 0, 1));
    }

    #[test]
    fn an_index_grows_by_as_much_as_it_said() {
        let ids = 1_000_000;
        let mut index = FullIndex::new(ids).unwrap();
        assert_eq!(index.memory_bytes() as u64, FullIndex::memory_of_new(ids as u64));
        assert!(index.memory_bytes() < ids * 21 / 8 + 64);
        for bits in [20, 21, 22, 26, 32] {
            let (before, growth) = (index.memory_bytes() as u64, index.growth_to_fit(1 << bits));
            index.fit(1 << bits).unwrap();
            assert_eq!(index.memory_bytes() as u64, before + growth);
            assert_eq!(growth > 0, bits > 21);
        }
        assert!(index.memory_bytes() as u64 <= FullIndex::memory_for(ids as u64));
    }

    #[test]
    fn numbers_wider_than_expected_widen_the_entries() {
        let mut index = FullIndex::new(IDS).unwrap();
        let mut model = vec![0; IDS];
        for (id, slot) in [(3, 1), (4, u32::MAX), (2, 70_000), (IDS - 1, u32::MAX), (4, 0)] {
            assert_eq!(index.set(id as u64, slot), model[id]);
            model[id] = slot;
            check(&index, &model);
        }
    }
}
