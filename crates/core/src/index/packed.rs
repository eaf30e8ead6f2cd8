//! A dense index of which few ids have a stored copy: a bit for every id, a slot number for each
//! that has one.
//!
//! Ids lie in blocks of 4096. A block has the bits of its ids, the slot numbers of those whose bit
//! is set, in the order of the ids, and for every 512 ids how many come before them. The bits of
//! 512 ids are one cache line, and so is the rest of a block: an id without a stored copy costs one
//! line, one that has a copy three.
//!
//! Memory: 0.14 bytes per id, and 4 to 4.5 bytes for each slot number where none was removed. Slot
//! numbers of a block that lost many take at most twice as much.

use super::ALLOCATION_BYTES;
use super::dense::{PIECE_IDS, check_piece, piece_ids, refused};
use crate::error::{Result, bail};
use crate::prefetch::prefetch_read;
use std::ops::RangeInclusive;

/// Ids of a block.
const BLOCK_IDS: usize = 4096;
/// Ids whose bits are counted from one rank on: a cache line of bits.
const GROUP_IDS: usize = 512;
const GROUPS: usize = BLOCK_IDS / GROUP_IDS;
const WORD_IDS: usize = u64::BITS as usize;
/// Slot numbers that a small block grows by: as many as the allocator has room for anyway.
const GROWTH_MIN: usize = 4;
/// A block grows by one slot number for so many.
const GROWTH_PART: usize = 8;
/// Blocks that are copied at a time: 2 MB where every id has a stored copy.
const PART_BLOCKS: usize = 128;

/// 4096 ids; see the module. Its first field is a whole number of cache lines.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
struct Block {
    bits: [[u64; GROUP_IDS / WORD_IDS]; GROUPS],
    /// Ids with a stored copy before each group.
    ranks: [u16; GROUPS],
    /// Slot numbers of the ids with a stored copy, in the order of the ids.
    slots: Vec<u32>,
}

impl Block {
    /// A block of these bits, whose slot numbers are the next of `slots`.
    fn of_piece(bits: &[u8], slots: &mut impl Iterator<Item = u32>) -> Self {
        let mut block = Self::default();
        for (word, bytes) in block.bits.as_flattened_mut().iter_mut().zip(bits.chunks(8)) {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(all);
        }
        let mut count = 0;
        for (rank, group) in block.ranks.iter_mut().zip(&block.bits) {
            *rank = count as u16;
            count += group.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        }
        block.slots.reserve_exact(count);
        block.slots.extend(slots.take(count));
        block
    }

    /// Bytes of memory beside the block itself, the allocator's share included.
    fn heap_bytes(&self) -> usize {
        match self.slots.capacity() {
            0 => 0,
            capacity => capacity * size_of::<u32>() + ALLOCATION_BYTES,
        }
    }

    /// The word of the bit of the id at place `at`.
    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        self.bits[at / GROUP_IDS][at % GROUP_IDS / WORD_IDS]
    }

    #[inline(always)]
    fn has(&self, at: usize) -> bool {
        self.word(at) >> (at % WORD_IDS) & 1 == 1
    }

    /// Number of ids before place `at` that have a stored copy.
    #[inline(always)]
    fn rank(&self, at: usize) -> usize {
        let group = at / GROUP_IDS;
        let before = &self.bits[group][..at % GROUP_IDS / WORD_IDS];
        let below = self.word(at) & ((1 << (at % WORD_IDS)) - 1);
        let count = before.iter().map(|word| word.count_ones()).sum::<u32>() + below.count_ones();
        usize::from(self.ranks[group]) + count as usize
    }

    #[inline(always)]
    fn get(&self, at: usize) -> u32 {
        if self.has(at) { self.slots[self.rank(at)] } else { 0 }
    }

    fn set(&mut self, at: usize, slot: u32) -> u32 {
        let rank = self.rank(at);
        if self.has(at) {
            if slot != 0 {
                return std::mem::replace(&mut self.slots[rank], slot);
            }
            self.flip(at);
            self.ranks[at / GROUP_IDS + 1..].iter_mut().for_each(|rank| *rank -= 1);
            let old = self.slots.remove(rank);
            if 2 * self.slots.len() < self.slots.capacity() {
                self.slots.shrink_to(self.slots.len() + self.slots.len() / GROWTH_PART);
            }
            return old;
        }
        if slot != 0 {
            self.flip(at);
            self.ranks[at / GROUP_IDS + 1..].iter_mut().for_each(|rank| *rank += 1);
            let count = self.slots.len();
            if count == self.slots.capacity() {
                let more = (count / GROWTH_PART).max(GROWTH_MIN).min(BLOCK_IDS - count);
                self.slots.reserve_exact(more);
            }
            self.slots.insert(rank, slot);
        }
        0
    }

    fn flip(&mut self, at: usize) {
        self.bits[at / GROUP_IDS][at % GROUP_IDS / WORD_IDS] ^= 1 << (at % WORD_IDS);
    }

    /// Places from `first` to `last` that have a stored copy, and their slot numbers.
    fn entries(&self, first: usize, last: usize) -> impl Iterator<Item = (usize, u32)> + '_ {
        let words = self.bits.as_flattened();
        let places = (first / WORD_IDS..=last / WORD_IDS).flat_map(move |at| {
            let mut rest = words[at];
            if at == first / WORD_IDS {
                rest &= u64::MAX << (first % WORD_IDS);
            }
            if at == last / WORD_IDS {
                rest &= u64::MAX >> (WORD_IDS - 1 - last % WORD_IDS);
            }
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(at * WORD_IDS + bit)
            })
        });
        // The slots come first: once there are none left, nobody looks for another bit.
        let slots = self.slots[self.rank(first)..].iter().copied();
        slots.zip(places).map(|(slot, at)| (at, slot))
    }
}

/// Slot numbers of the ids `0..num_embeddings` of a dense table, few of which have one; see the
/// module. Verbs that take an id panic when it is not below `num_embeddings`.
#[derive(Debug)]
pub(super) struct PackedIndex {
    blocks: Vec<Block>,
    num_embeddings: u64,
    /// Ids with a stored copy.
    live: u64,
    /// Sum of `heap_bytes` of the blocks.
    heap_bytes: usize,
}

impl PackedIndex {
    /// An index of so many ids in which none has a stored copy.
    ///
    /// *Errors*: `Budget` when the machine does not have the memory.
    pub(super) fn new(num_embeddings: usize) -> Result<Self> {
        let count = num_embeddings.div_ceil(BLOCK_IDS);
        let mut blocks = Vec::new();
        if blocks.try_reserve_exact(count).is_err() {
            return Err(refused(num_embeddings, count * size_of::<Block>()));
        }
        blocks.resize_with(count, Block::default);
        Ok(Self { blocks, num_embeddings: num_embeddings as u64, live: 0, heap_bytes: 0 })
    }

    /// Makes room for so many ids in all.
    ///
    /// *Errors*: as `new`; nothing changed then.
    pub(super) fn grow(&mut self, num_embeddings: usize) -> Result<()> {
        let count = num_embeddings.div_ceil(BLOCK_IDS);
        let more = count - self.blocks.len();
        if self.blocks.try_reserve_exact(more).is_err() {
            return Err(refused(num_embeddings, count * size_of::<Block>()));
        }
        self.blocks.resize_with(count, Block::default);
        self.num_embeddings = num_embeddings as u64;
        Ok(())
    }

    /// Copies a part of it, of a number, into an index of as many ids. Says whether parts follow.
    pub(super) fn copy_part(&self, part: usize, copy: &mut Self) -> bool {
        let begin = (part * PART_BLOCKS).min(self.blocks.len());
        let end = (begin + PART_BLOCKS).min(self.blocks.len());
        copy.blocks[begin..end].clone_from_slice(&self.blocks[begin..end]);
        copy.live = self.live;
        // The copied blocks have no room to grow.
        copy.heap_bytes += copy.blocks[begin..end].iter().map(Block::heap_bytes).sum::<usize>();
        end < self.blocks.len()
    }

    /// The block of an id, and its place there.
    #[inline(always)]
    fn place_of(&self, id: u64) -> (usize, usize) {
        assert!(id < self.num_embeddings, "id {id} of {}", self.num_embeddings);
        (id as usize / BLOCK_IDS, id as usize % BLOCK_IDS)
    }

    /// The slot number of `id`, 0 if it has no stored copy.
    #[inline]
    pub(super) fn get(&self, id: u64) -> u32 {
        let (block, at) = self.place_of(id);
        self.blocks[block].get(at)
    }

    /// Makes `slot` the slot number of `id` (0 removes it) and returns the one before.
    pub(super) fn set(&mut self, id: u64, slot: u32) -> u32 {
        let (block, at) = self.place_of(id);
        let block = &mut self.blocks[block];
        let bytes = block.heap_bytes();
        let old = block.set(at, slot);
        self.heap_bytes = self.heap_bytes + block.heap_bytes() - bytes;
        self.live += u64::from(slot != 0);
        self.live -= u64::from(old != 0);
        old
    }

    /// Asks for the lines that `get(id)` reads first; any id is allowed.
    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        if let Some(block) = self.blocks.get(id as usize / BLOCK_IDS) {
            prefetch_read(&block.bits[id as usize % BLOCK_IDS / GROUP_IDS]);
            prefetch_read(&block.ranks);
        }
    }

    /// Number of ids that have a stored copy.
    pub(super) fn len(&self) -> u64 {
        self.live
    }

    /// The number of ids, with or without a stored copy.
    pub(super) fn num_embeddings(&self) -> u64 {
        self.num_embeddings
    }

    /// An upper bound of the bytes of an index of `num_embeddings` ids of which `rows` have a
    /// stored copy, where none was removed.
    pub(super) fn memory_for(num_embeddings: u64, rows: u64) -> u64 {
        let blocks = num_embeddings.div_ceil(BLOCK_IDS as u64);
        let word = size_of::<u32>() as u64;
        let of_blocks = blocks * size_of::<Block>() as u64 + ALLOCATION_BYTES as u64;
        let per_block = ALLOCATION_BYTES as u64 + GROWTH_MIN as u64 * word;
        let of_slots = rows * word + rows * word / GROWTH_PART as u64;
        of_blocks + blocks.min(rows) * per_block + of_slots
    }

    /// Every byte allocated, with 16 bytes for each allocation.
    pub(super) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>() + ALLOCATION_BYTES + self.heap_bytes
    }

    /// The ids in `ids` that have a stored copy and their slot numbers, ascending by id. Ids behind
    /// the last are allowed.
    pub(super) fn range(&self, ids: RangeInclusive<u64>) -> impl Iterator<Item = (u64, u32)> + '_ {
        let first = (*ids.start()).min(self.num_embeddings) as usize;
        let end = ids.end().saturating_add(1).min(self.num_embeddings) as usize;
        let blocks = if first < end { first / BLOCK_IDS..end.div_ceil(BLOCK_IDS) } else { 0..0 };
        blocks.flat_map(move |block| {
            let begin = block * BLOCK_IDS;
            let (from, past) = (first.max(begin) - begin, end.min(begin + BLOCK_IDS) - begin);
            let entries = self.blocks[block].entries(from, past - 1);
            entries.map(move |(at, slot)| ((begin + at) as u64, slot))
        })
    }

    /// Appends piece `piece` to `out`: a bit for each of its ids, in bytes, and the slot numbers of
    /// those whose bit is set. Panics if there is no such piece.
    pub(super) fn write_piece(&self, piece: usize, out: &mut Vec<u8>) {
        let ids = piece_ids(self.num_embeddings, piece);
        let blocks = &self.blocks[ids.start / BLOCK_IDS..ids.end.div_ceil(BLOCK_IDS)];
        let end = out.len() + ids.len().div_ceil(8);
        for word in blocks.iter().flat_map(|block| block.bits.as_flattened()) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.truncate(end);
        for slot in blocks.iter().flat_map(|block| &block.slots) {
            out.extend_from_slice(&slot.to_le_bytes());
        }
    }

    /// Replaces piece `piece` by what `write_piece` wrote.
    ///
    /// *Errors*: `Corrupt` when there is no such piece, or for bytes that `write_piece` does not
    /// write; nothing changed then.
    pub(super) fn load_piece(&mut self, piece: usize, bytes: &[u8]) -> Result<()> {
        check_piece(self.num_embeddings, piece)?;
        let ids = piece_ids(self.num_embeddings, piece);
        let bit_bytes = ids.len().div_ceil(8);
        let Some((bits, slots)) = bytes.split_at_checked(bit_bytes) else {
            bail!(
                Corrupt,
                "index piece {piece} is {} bytes, expected at least {bit_bytes}",
                bytes.len()
            );
        };
        let count: usize = bits.iter().map(|byte| byte.count_ones() as usize).sum();
        if slots.len() != count * 4 {
            bail!(
                Corrupt,
                "index piece {piece} is {} bytes with {count} ids that have a copy, expected {}",
                bytes.len(),
                bit_bytes + count * 4
            );
        }
        let behind = bits.last().map_or(0, |last| u32::from(*last) >> ((ids.len() - 1) % 8 + 1));
        if behind != 0 {
            bail!(Corrupt, "index piece {piece} names ids behind the last, {}", ids.end - 1);
        }
        let slots = slots.as_chunks::<4>().0.iter().map(|slot| u32::from_le_bytes(*slot));
        if let Some(at) = slots.clone().position(|slot| slot == 0) {
            bail!(Corrupt, "index piece {piece} has slot 0 in place {at} of {count}");
        }
        let mut slots = slots;
        let blocks = &mut self.blocks[ids.start / BLOCK_IDS..ids.end.div_ceil(BLOCK_IDS)];
        for (block, bits) in blocks.iter_mut().zip(bits.chunks(BLOCK_IDS / 8)) {
            let loaded = Block::of_piece(bits, &mut slots);
            self.live = self.live + loaded.slots.len() as u64 - block.slots.len() as u64;
            self.heap_bytes = self.heap_bytes + loaded.heap_bytes() - block.heap_bytes();
            *block = loaded;
        }
        Ok(())
    }
}

const _: () = assert!(PIECE_IDS.is_multiple_of(BLOCK_IDS), "a piece is whole blocks");

#[cfg(test)]
mod tests {
    use super::super::sparse_tests::Random;
    use super::*;
    use crate::error::ErrorKind;
    use std::collections::BTreeMap;

    const IDS: u64 = 3 * PIECE_IDS as u64 + 4101;

    /// Agrees with the model in every verb, and counts its memory right.
    fn check(index: &PackedIndex, model: &BTreeMap<u64, u32>) {
        assert_eq!(index.len(), model.len() as u64);
        assert!((0..IDS).all(|id| index.get(id) == model.get(&id).copied().unwrap_or(0)));
        let all = || model.iter().map(|(id, slot)| (*id, *slot));
        assert!(index.range(0..=u64::MAX).eq(all()));
        let heap = index.blocks.iter().map(Block::heap_bytes).sum::<usize>();
        assert_eq!(index.heap_bytes, heap);
        for block in &index.blocks {
            let (count, room) = (block.slots.len(), block.slots.capacity());
            assert!(
                room <= (2 * count).max(count + GROWTH_MIN - 1),
                "room for {room}, {count} there"
            );
        }
    }

    /// An index in which about one in `one_in` ids has a copy, and its model.
    fn filled(seed: u64, one_in: u64) -> (PackedIndex, BTreeMap<u64, u32>) {
        let mut random = Random(seed);
        let (mut index, mut model) = (PackedIndex::new(IDS as usize).unwrap(), BTreeMap::new());
        for id in 0..IDS {
            if random.below(one_in) == 0 {
                let slot = 1 + random.below(u64::from(u32::MAX)) as u32;
                index.set(id, slot);
                model.insert(id, slot);
            }
        }
        (index, model)
    }

    #[test]
    fn random_sets_and_removals_agree_with_a_plain_map() {
        for seed in 0..3 {
            let mut random = Random(seed << 32);
            let mut index = PackedIndex::new(IDS as usize).unwrap();
            let mut model = BTreeMap::new();
            for step in 0..120_000u64 {
                // Growth and decline in turns, all over the table or within one block.
                let grows = (step / 20_000).is_multiple_of(2);
                let width = if random.below(2) == 0 { IDS } else { BLOCK_IDS as u64 + 7 };
                let id = random.below(width);
                let slot = match random.below(10) < if grows { 9 } else { 2 } {
                    true => 1 + random.below(u64::from(u32::MAX)) as u32,
                    false => 0,
                };
                let old = model.remove(&id).unwrap_or(0);
                if slot != 0 {
                    model.insert(id, slot);
                }
                assert_eq!(index.set(id, slot), old);
                if step % 20_000 == 19_999 {
                    check(&index, &model);
                }
            }
            for id in 0..IDS {
                assert_eq!(index.set(id, 0), model.remove(&id).unwrap_or(0));
            }
            check(&index, &model);
            assert_eq!(index.heap_bytes, 0);
        }
    }

    #[test]
    fn a_full_index_has_every_id() {
        let mut index = PackedIndex::new(IDS as usize).unwrap();
        let model: BTreeMap<u64, u32> = (0..IDS).map(|id| (id, id as u32 + 1)).collect();
        model.iter().rev().for_each(|(id, slot)| assert_eq!(index.set(*id, *slot), 0));
        check(&index, &model);
        assert_eq!(index.blocks[0].slots.capacity(), BLOCK_IDS);
    }

    #[test]
    fn ranges_give_the_ids_within_both_ends() {
        let (index, model) = filled(5, 7);
        let mut random = Random(9);
        let edges = [0, 1, 63, 64, 511, 512, 4095, 4096, IDS - 1, IDS, u64::MAX];
        let ends = edges.into_iter().flat_map(|first| edges.map(|last| (first, last)));
        let random = (0..500).map(|_| (random.below(IDS), random.below(IDS + 9)));
        for (first, last) in ends.chain(random.collect::<Vec<_>>()) {
            let got: Vec<_> = index.range(first..=last).collect();
            let within = |(id, _): &(&u64, &u32)| (first..=last).contains(*id);
            let expected = model.iter().filter(within).map(|(id, slot)| (*id, *slot));
            assert!(got.iter().copied().eq(expected), "{first}..={last}");
        }
    }

    #[test]
    fn pieces_rebuild_the_index() {
        let (index, model) = filled(1, 10);
        let (mut rebuilt, _) = filled(2, 3);
        for piece in 0..4 {
            let mut bytes = vec![7];
            index.write_piece(piece, &mut bytes);
            rebuilt.load_piece(piece, &bytes[1..]).unwrap();
            let mut again = vec![];
            rebuilt.write_piece(piece, &mut again);
            assert_eq!(again, bytes[1..]);
        }
        check(&rebuilt, &model);
    }

    #[test]
    fn a_piece_that_no_index_writes_is_refused_and_changes_nothing() {
        // The last piece has 4101 ids: three bits of its last byte are of none.
        let (mut index, model) = filled(1, 10);
        let mut piece = vec![];
        index.write_piece(3, &mut piece);
        let bits = 4101usize.div_ceil(8);
        let with = |at: usize, bytes: &[u8]| {
            let mut damaged = piece.clone();
            damaged[at..at + bytes.len()].copy_from_slice(bytes);
            damaged
        };
        let mut names_one_more = with(bits - 1, &[piece[bits - 1] | 0x20]);
        names_one_more.extend([1; 4]);
        let cases = [
            (3, with(bits, &[0; 4]), "slot 0"),
            (3, names_one_more, "behind the last"),
            (3, with(0, &[!piece[0]]), "expected"),
            (3, piece[..piece.len() - 1].to_vec(), "expected"),
            (3, piece[..bits - 1].to_vec(), "expected at least 513"),
            (3, vec![], "expected at least 513"),
            (2, piece.clone(), "expected"),
            (4, piece.clone(), "has 4 pieces"),
            (usize::MAX, piece.clone(), "has 4 pieces"),
        ];
        for (number, bytes, what) in cases {
            let error = index.load_piece(number, &bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.message().contains(what), "{error}, not {what}");
            check(&index, &model);
        }
    }

    #[test]
    fn an_id_costs_a_seventh_of_a_byte_and_a_slot_little_more_than_four() {
        assert_eq!((size_of::<Block>(), align_of::<Block>()), (576, 64));
        let ids = 1_000_000;
        let mut index = PackedIndex::new(ids).unwrap();
        let per_id = |index: &PackedIndex| index.memory_bytes() as f64 / ids as f64;
        assert!(per_id(&index) <= 0.15, "{}", per_id(&index));
        assert!(index.memory_bytes() as u64 <= PackedIndex::memory_for(ids as u64, 0));
        let (mut random, mut rows) = (Random(3), 0);
        while rows < ids as u64 / 10 {
            rows += u64::from(index.set(random.below(ids as u64), 1) == 0);
            let most = PackedIndex::memory_for(ids as u64, rows);
            assert!(index.memory_bytes() as u64 <= most, "{rows} rows");
        }
        assert_eq!(index.len(), rows);
        assert!(per_id(&index) <= 0.60, "{}", per_id(&index));
    }

    #[test]
    #[should_panic(expected = "id 5 of 5")]
    fn an_id_behind_the_last_is_refused() {
        PackedIndex::new(5).unwrap().get(5);
    }
}
