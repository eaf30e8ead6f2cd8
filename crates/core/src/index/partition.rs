//! A partition of the sparse index: an unsorted array of entries, each a tag and a slot number.
//!
//! The tag of a key holds the hash bits that follow those which address the partition, `len` of
//! them, 0 to 15, under a marker bit: `1 << len | bits` (the variable-length fingerprints of
//! InfiniFilter, Dayan et al., SIGMOD 2023). A split of the partition uses up the lowest tag bit of
//! each entry, so tags grow shorter by one bit a split until they are written anew.
//!
//! Memory: 6 bytes an entry, in one allocation whose capacity is a multiple of 8 entries:
//!
//! ```text
//! count u32 | short u32 | tags u16 × capacity | slots u32 × capacity      (as 16-bit words)
//! ```
//!
//! `short` counts the entries whose tag is shorter than 15 bits. Tags past `count` are [`PAD`].
//! An empty partition has no allocation.

use super::ALLOCATION_BYTES;
use crate::error::{Result, bail};
use crate::prefetch::prefetch_slice;

/// Most hash bits in a tag.
const TAG_BITS: u32 = 15;
/// The marker of a full-length tag.
const FULL: u16 = 1 << TAG_BITS;
/// The tag of an unused entry. A full-length tag of a live entry may have the same value, so a
/// match counts only below `count`; every other tag differs from it.
const PAD: u16 = u16::MAX;
/// Tags that are compared at a time: two SSE registers. The last of them may be words of slots,
/// whose matches lie beyond `count`.
const LANES: usize = 16;
/// Capacity grows and shrinks by this many entries.
const STEP: usize = 8;
/// Unused entries that make a partition give memory back. Above `STEP` by a few entries, so that
/// insertions and removals which take turns do not reallocate each time.
const SHRINK_AT: usize = STEP + 4;
/// Words before the tags: the count of entries and the count of short tags, each 32 bits.
const HEADER_WORDS: usize = 4;
/// Words of an entry: one of tag, two of slot.
const ENTRY_WORDS: usize = 3;
/// Bytes before the entries of a written partition.
const PIECE_HEADER_BYTES: usize = 8;
/// Bytes of an entry of a written partition.
const PIECE_ENTRY_BYTES: usize = 6;

/// The full-length tag of a key whose hash, shifted right by the partition's address bits, is
/// `rest`.
#[inline(always)]
pub(super) fn full_tag(rest: u64) -> u16 {
    FULL | rest as u16
}

/// The tag of an entry after its partition merged: `bit` becomes the lowest tag bit, and of a
/// full-length tag the topmost bit is forgotten.
pub(super) fn tag_with_bit(tag: u16, bit: u16) -> u16 {
    let longer = tag << 1 | bit;
    if tag & FULL != 0 { longer | FULL } else { longer }
}

/// The tag without its lowest bit, and that bit; `None` when the tag has no bit left.
pub(super) fn tag_without_bit(tag: u16) -> Option<(u16, u16)> {
    (tag > 1).then_some((tag >> 1, tag & 1))
}

/// Whether `tag` agrees with the full-length tag `wanted` in all the bits that `tag` has.
///
/// The lowest bit in which the two differ must not lie below the marker of `tag`. With
/// `y = difference | FULL`, `y ^ (y - 1)` has ones up to and including that bit, hence is at least
/// `tag` exactly if the bit is not below the topmost bit of `tag`. A form that compilers vectorise.
#[inline(always)]
fn agrees(tag: u16, wanted: u16) -> bool {
    let y = (tag ^ wanted) | FULL;
    tag <= (y ^ (y - 1))
}

/// The lanes of up to 16 blocks of tags that satisfy `is`: bit `b` of lane `l` is block `b`'s.
#[inline(always)]
fn matching(blocks: &[[u16; LANES]], is: impl Fn(u16) -> bool) -> [u16; LANES] {
    let mut hits = [0; LANES];
    let mut bit = 1u16;
    for block in blocks {
        for (hit, tag) in hits.iter_mut().zip(block) {
            *hit |= if is(*tag) { bit } else { 0 };
        }
        bit <<= 1;
    }
    hits
}

/// The entries of the keys whose hash has the partition's address bits; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Partition {
    words: Box<[u16]>,
}

impl Partition {
    /// A partition of no entries that takes `entries` without growing.
    pub(super) fn with_capacity(entries: usize) -> Self {
        let mut partition = Self::default();
        partition.set_capacity(entries.next_multiple_of(STEP));
        partition
    }

    /// Number of entries.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.header(0)
    }

    /// Number of entries whose tag has fewer than 15 bits.
    #[inline(always)]
    pub(super) fn short_count(&self) -> usize {
        self.header(1)
    }

    /// Bytes of memory, the allocator's share included.
    pub(super) fn heap_bytes(&self) -> usize {
        if self.words.is_empty() { 0 } else { size_of_val(&*self.words) + ALLOCATION_BYTES }
    }

    /// The tag of entry `position`.
    pub(super) fn tag(&self, position: usize) -> u16 {
        self.words[HEADER_WORDS + position]
    }

    /// The slot number of entry `position`.
    #[inline(always)]
    pub(super) fn slot(&self, position: usize) -> u32 {
        let word = self.slot_word(position);
        u32::from(self.words[word]) | u32::from(self.words[word + 1]) << 16
    }

    /// Tags and slot numbers of all entries, in no order that means anything.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        (0..self.count()).map(|position| (self.tag(position), self.slot(position)))
    }

    /// Asks for the memory that `find` reads, without reading any of it.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        let end = HEADER_WORDS + self.capacity();
        prefetch_slice(self.words.get(..end).unwrap_or_default());
    }

    /// Gives `visit` the positions of the entries whose tag agrees with the full-length tag
    /// `wanted`, ascending, until it returns true; says whether it did.
    #[inline(always)]
    pub(super) fn find(&self, wanted: u16, mut visit: impl FnMut(usize) -> bool) -> bool {
        let count = self.count();
        if count == 0 {
            return false;
        }
        let used = HEADER_WORDS..HEADER_WORDS + count.next_multiple_of(LANES);
        let (blocks, _) = self.words[used].as_chunks::<LANES>();
        let short = self.short_count() != 0;
        for (group, blocks) in blocks.chunks(LANES).enumerate() {
            let hits = if short {
                matching(blocks, |tag| agrees(tag, wanted))
            } else {
                matching(blocks, |tag| tag == wanted)
            };
            for (quarter, lanes) in hits.as_chunks::<4>().0.iter().enumerate() {
                let mut rest =
                    lanes.iter().rev().fold(0u64, |all, hit| all << 16 | u64::from(*hit));
                while rest != 0 {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    let (lane, block) = (quarter * 4 + bit / 16, bit % 16);
                    let position = (group * LANES + block) * LANES + lane;
                    if position < count && visit(position) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// The position of the entry with slot number `slot` whose tag agrees with `wanted`.
    #[inline]
    pub(super) fn position(&self, wanted: u16, slot: u32) -> Option<usize> {
        let mut found = 0;
        let is = |position| {
            found = position;
            self.slot(position) == slot
        };
        self.find(wanted, is).then_some(found)
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, tag: u16, slot: u32) {
        assert!(tag != 0 && slot != 0, "an entry of tag {tag} and slot {slot}");
        let count = self.count();
        if count == self.capacity() {
            self.set_capacity(count + STEP);
        }
        self.set_header(0, count + 1);
        self.write_entry(count, tag, slot);
        self.set_header(1, self.short_count() + usize::from(tag < FULL));
    }

    /// Gives entry `position` another tag and slot number.
    pub(super) fn set(&mut self, position: usize, tag: u16, slot: u32) {
        assert!(position < self.count() && tag != 0 && slot != 0);
        let short = self.short_count() - usize::from(self.tag(position) < FULL);
        self.set_header(1, short + usize::from(tag < FULL));
        self.write_entry(position, tag, slot);
    }

    /// Drops entry `position`; the last entry takes its place.
    pub(super) fn remove(&mut self, position: usize) {
        let last = self.count() - 1;
        assert!(position <= last);
        self.set_header(1, self.short_count() - usize::from(self.tag(position) < FULL));
        self.write_entry(position, self.tag(last), self.slot(last));
        self.write_entry(last, PAD, 0);
        self.set_header(0, last);
        if self.capacity() - last >= SHRINK_AT || last == 0 {
            self.set_capacity(last.next_multiple_of(STEP));
        }
    }

    /// Appends the partition to `out`: count u32, address bits u32, tags u16 each, slots u32 each.
    pub(super) fn write(&self, address_bits: u32, out: &mut Vec<u8>) {
        out.reserve(PIECE_HEADER_BYTES + self.count() * PIECE_ENTRY_BYTES);
        out.extend_from_slice(&(self.count() as u32).to_le_bytes());
        out.extend_from_slice(&address_bits.to_le_bytes());
        self.entries().for_each(|(tag, _)| out.extend_from_slice(&tag.to_le_bytes()));
        self.entries().for_each(|(_, slot)| out.extend_from_slice(&slot.to_le_bytes()));
    }

    /// The partition that `write` wrote.
    ///
    /// *Errors*: `Corrupt` for any bytes that `write(address_bits, _)` cannot have written.
    pub(super) fn read(address_bits: u32, bytes: &[u8]) -> Result<Self> {
        let (numbers, _) = bytes.as_chunks::<4>();
        let [count, bits, ..] = numbers else {
            bail!(Corrupt, "{} bytes came, a partition has at least 8", bytes.len());
        };
        let (count, bits) = (u32::from_le_bytes(*count) as usize, u32::from_le_bytes(*bits));
        if bits != address_bits {
            bail!(Corrupt, "written with {bits} address bits, the partition has {address_bits}");
        }
        let body = &bytes[PIECE_HEADER_BYTES..];
        if count.checked_mul(PIECE_ENTRY_BYTES) != Some(body.len()) {
            bail!(Corrupt, "{} bytes of entries came for {count} entries of 6", body.len());
        }
        let (tags, slots) = body.split_at(count * 2);
        let mut partition = Self::with_capacity(count);
        for (tag, slot) in tags.as_chunks::<2>().0.iter().zip(slots.as_chunks::<4>().0) {
            let (tag, slot) = (u16::from_le_bytes(*tag), u32::from_le_bytes(*slot));
            if tag == 0 || slot == 0 {
                bail!(Corrupt, "an entry has tag {tag} and slot {slot}, neither may be 0");
            }
            partition.push(tag, slot);
        }
        Ok(partition)
    }

    fn capacity(&self) -> usize {
        self.words.len().saturating_sub(HEADER_WORDS) / ENTRY_WORDS
    }

    fn slot_word(&self, position: usize) -> usize {
        HEADER_WORDS + self.capacity() + 2 * position
    }

    fn header(&self, field: usize) -> usize {
        match self.words.as_chunks::<2>().0.get(field) {
            Some([low, high]) => usize::from(*low) | usize::from(*high) << 16,
            None => 0,
        }
    }

    fn set_header(&mut self, field: usize, value: usize) {
        self.words[2 * field] = value as u16;
        self.words[2 * field + 1] = (value >> 16) as u16;
    }

    fn write_entry(&mut self, position: usize, tag: u16, slot: u32) {
        let word = self.slot_word(position);
        self.words[HEADER_WORDS + position] = tag;
        self.words[word] = slot as u16;
        self.words[word + 1] = (slot >> 16) as u16;
    }

    /// Moves the entries to an allocation of exactly `capacity` entries, none for 0.
    fn set_capacity(&mut self, capacity: usize) {
        let count = self.count();
        assert!(capacity >= count && capacity.is_multiple_of(STEP));
        if capacity == self.capacity() {
            return;
        }
        if capacity == 0 {
            self.words = Box::default();
            return;
        }
        let mut words = vec![0; HEADER_WORDS + capacity * ENTRY_WORDS].into_boxed_slice();
        let (kept, slots) = (HEADER_WORDS + count, HEADER_WORDS + capacity);
        if count != 0 {
            words[..kept].copy_from_slice(&self.words[..kept]);
            let old = self.slot_word(0);
            words[slots..slots + 2 * count].copy_from_slice(&self.words[old..old + 2 * count]);
        }
        words[kept..slots].fill(PAD);
        self.words = words;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_agrees_exactly_when_its_bits_equal_the_low_bits_of_the_hash() {
        for wanted in [0u16, 1, 0x7FFF, 0x2A55, 0x5555, 0x4000].map(|bits| full_tag(bits.into())) {
            for tag in 1..=u16::MAX {
                let len = tag.ilog2();
                let mask = (1u32 << len) as u16 - 1;
                assert_eq!(agrees(tag, wanted), (tag ^ wanted) & mask == 0, "{tag:#x} {wanted:#x}");
            }
        }
    }

    #[test]
    fn tags_lose_and_regain_their_lowest_bit() {
        assert_eq!(tag_without_bit(1), None);
        for tag in 2..=u16::MAX {
            let (shorter, bit) = tag_without_bit(tag).unwrap();
            assert_eq!(shorter.ilog2(), tag.ilog2() - 1);
            assert_eq!(tag_with_bit(shorter, bit), tag);
        }
        assert_eq!(tag_with_bit(full_tag(0b101), 1), full_tag(0b1011));
        assert_eq!(tag_with_bit(full_tag(0x7FFF), 0), full_tag(0x7FFE));
    }

    #[test]
    fn pads_never_match_though_their_tag_can_be_wanted() {
        let mut partition = Partition::default();
        for slot in 1..=5 {
            partition.push(full_tag(slot), slot as u32);
        }
        assert!(!partition.find(PAD, |_| true));
        partition.push(PAD, 6);
        assert_eq!(partition.position(PAD, 6), Some(5));
        partition.push(1, 7);
        let mut found = vec![];
        partition.find(PAD, |position| {
            found.push(position);
            false
        });
        assert_eq!(found, [5, 6]);
    }

    #[test]
    fn every_position_of_a_large_partition_is_found() {
        for short in [false, true] {
            let mut partition = Partition::default();
            for slot in 1..=70_000u32 {
                partition.push(if short { 2 } else { full_tag(u64::from(slot % 5)) }, slot);
            }
            assert_eq!((partition.count(), partition.short_count() != 0), (70_000, short));
            for slot in [1, 16, 17, 255, 256, 257, 4_096, 65_535, 65_537, 70_000u32] {
                let wanted = full_tag(if short { 4 } else { u64::from(slot % 5) });
                assert_eq!(partition.position(wanted, slot), Some(slot as usize - 1));
                assert_eq!(partition.position(full_tag(5), slot), None);
            }
        }
    }

    #[test]
    fn capacity_follows_the_count_in_small_steps() {
        let mut partition = Partition::default();
        assert_eq!(partition.heap_bytes(), 0);
        for slot in 1..=200u32 {
            partition.push(full_tag(slot.into()), slot);
            let wanted = (slot as usize).next_multiple_of(STEP) * 6 + 8 + ALLOCATION_BYTES;
            assert_eq!(partition.heap_bytes(), wanted);
        }
        for count in (0..200usize).rev() {
            partition.remove(count / 2);
            assert_eq!(partition.count(), count);
            assert!(partition.capacity() - count < SHRINK_AT);
        }
        assert_eq!((partition.heap_bytes(), partition.count()), (0, 0));
    }

    #[test]
    fn bytes_that_no_partition_wrote_are_refused() {
        let mut partition = Partition::default();
        partition.push(full_tag(3), 1);
        partition.push(5, 2);
        let mut bytes = vec![];
        partition.write(4, &mut bytes);
        let read = Partition::read(4, &bytes).unwrap();
        assert!(read.entries().eq(partition.entries()));
        assert_eq!(read.short_count(), 1);
        assert!(Partition::read(5, &bytes).is_err());
        for size in 0..bytes.len() {
            assert!(Partition::read(4, &bytes[..size]).is_err(), "{size} bytes");
        }
        for zeroed in [8..10, 10..12, 12..16, 16..20] {
            let mut bad = bytes.clone();
            bad[zeroed].fill(0);
            assert!(Partition::read(4, &bad).is_err());
        }
        bytes.extend([1; 6]);
        assert!(Partition::read(4, &bytes).is_err());
        bytes[..4].fill(0xFF);
        assert!(Partition::read(4, &bytes).is_err());
    }
}
