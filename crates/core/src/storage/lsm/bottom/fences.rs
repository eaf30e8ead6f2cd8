//! The fences of a section: where each of its pages begins, in a few bits per page.
//!
//! Positions count from the section's first one. A fence is the position at which a page begins,
//! cut to its upper bits, and one bit that says whether the page before has a row with the same
//! upper bits: then a look-up of these bits has two candidates. As many bits are cut as leave no
//! position three candidates and cost at most one extra page in 2^[`EXTRA_BITS`] stored keys, which
//! the builder counts exactly. Of evenly spread positions that leaves log2 of the pages and
//! `EXTRA_BITS`; of clustered ones as many as it takes. Fences increase strictly and are Elias-Fano
//! coded: their lower bits packed, their upper bits in unary.
//!
//! The code is our own because it is a stored format: the crates that have such a sequence
//! (vers-vecs without dependencies, sucds, sux) store it by their own layout and do not check what
//! they read back, so damaged bytes end in a panic or in a wrong page.

use crate::error::{Result, bail};
use std::ops::{Range, RangeInclusive};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// At most one key in 2 to the power of this costs a second page.
pub const EXTRA_BITS: u32 = 7;

/// Upper bits between two counts of ones.
const BLOCK_BITS: usize = 512;
const BLOCK_WORDS: usize = BLOCK_BITS / 64;
/// Bytes of an encoded section before the words, and of the checksum behind them.
const HEAD_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 8;

/// The fences of the pages of one section, from its second page on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fences {
    /// Position of the section's first row.
    first: u64,
    /// Position of its last row.
    last: u64,
    pages: u32,
    /// Bits cut off.
    shift: u32,
    /// Bits of a fence that are packed.
    low_bits: u32,
    low: Box<[u64]>,
    /// For each value of the upper bits a one for each fence that has it, and a zero.
    high: Box<[u64]>,
    /// Ones in front of each block of `high`.
    ones: Box<[u32]>,
}

/// Where a bound lies among fences.
struct Rank {
    at_most: u32,
    found: bool,
}

/// The number of lower bits within which two positions differ.
fn differing_bits(a: u64, b: u64) -> u32 {
    64 - (a ^ b).leading_zeros()
}

impl Fences {
    /// Pages of the section.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Positions of the section's first and last row.
    pub fn ends(&self) -> RangeInclusive<u64> {
        self.first..=self.last
    }

    /// The section's pages, from 0, that may have a row at `position`: none, one, or rarely two.
    #[inline]
    pub fn candidates(&self, position: u64) -> Range<u32> {
        if position < self.first || position > self.last {
            return 0..0;
        }
        let cut = (position - self.first) >> self.shift;
        if self.shift == 0 {
            let page = self.rank(cut).at_most;
            return page..page + 1;
        }
        let Rank { at_most, found } = self.rank(cut << 1 | 1);
        at_most - u32::from(found)..at_most + 1
    }

    /// How many fences are at most `bound`, and whether the last of them equals it.
    fn rank(&self, bound: u64) -> Rank {
        let count = self.pages - 1;
        let upper = bound >> self.low_bits;
        if count == 0 || upper >= self.zeros() {
            return Rank { at_most: count, found: false };
        }
        // Fences with these upper bits are the ones between two zeros.
        let begin = if upper == 0 { 0 } else { self.select_zero(upper - 1) + 1 };
        let first = begin - upper as usize;
        let lower = bound & ((1 << self.low_bits) - 1);
        let low = |number: usize| bits(&self.low, number * self.low_bits as usize, self.low_bits);
        let (mut from, mut to) = (first, first + self.ones_from(begin));
        while from < to {
            let middle = from.midpoint(to);
            if low(middle) <= lower { from = middle + 1 } else { to = middle }
        }
        Rank { at_most: from as u32, found: from > first && low(from - 1) == lower }
    }

    /// How many ones `high` has from bit `begin` to the next zero.
    fn ones_from(&self, begin: usize) -> usize {
        let (mut word, skip) = (begin / 64, begin % 64);
        let mut ones =
            self.high.get(word).map_or(0, |bits| (bits >> skip).trailing_ones() as usize);
        // They may go on in the next word.
        while begin + ones == (word + 1) * 64 && word + 1 < self.high.len() {
            word += 1;
            ones += self.high[word].trailing_ones() as usize;
        }
        ones
    }

    /// How many zeros `high` has.
    fn zeros(&self) -> u64 {
        let ones = self.pages - 1;
        match self.high.last() {
            // The last bit that counts is a zero behind the last one.
            Some(last) => {
                let used = self.high.len() * 64 - last.leading_zeros() as usize + 1;
                used as u64 - u64::from(ones)
            }
            None => 0,
        }
    }

    /// Where in `high` the zero with number `n` lies.
    fn select_zero(&self, n: u64) -> usize {
        let zeros_before = |block: usize| (block * BLOCK_BITS) as u64 - u64::from(self.ones[block]);
        let (mut from, mut to) = (0, self.ones.len());
        while to - from > 1 {
            let middle = from.midpoint(to);
            if zeros_before(middle) <= n { from = middle } else { to = middle }
        }
        let mut left = n - zeros_before(from);
        let mut word = from * BLOCK_WORDS;
        loop {
            // Behind the last word there are zeros, too.
            let zeros = !self.high.get(word).copied().unwrap_or(0);
            let count = u64::from(zeros.count_ones());
            if left < count {
                let rest = (0..left).fold(zeros, |rest, _| rest & (rest - 1));
                return word * 64 + rest.trailing_zeros() as usize;
            }
            left -= count;
            word += 1;
        }
    }

    /// All memory that the fences take.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + 8 * (self.low.len() + self.high.len()) + 4 * self.ones.len()
    }

    /// Bytes of the encoded fences.
    pub fn encoded_bytes(&self) -> usize {
        HEAD_BYTES + 8 * (self.low.len() + self.high.len()) + CHECKSUM_BYTES
    }

    /// Appends the fences, and a checksum under `seed`.
    pub fn encode(&self, seed: u64, into: &mut Vec<u8>) {
        let begin = into.len();
        into.extend_from_slice(&self.pages.to_le_bytes());
        into.extend_from_slice(&(self.high.len() as u32).to_le_bytes());
        into.extend_from_slice(&[self.shift as u8, self.low_bits as u8]);
        into.extend_from_slice(&[0; 6]);
        into.extend_from_slice(&self.first.to_le_bytes());
        into.extend_from_slice(&self.last.to_le_bytes());
        for word in self.high.iter().chain(&self.low) {
            into.extend_from_slice(&word.to_le_bytes());
        }
        let sum = xxh3_64_with_seed(&into[begin..], seed);
        into.extend_from_slice(&sum.to_le_bytes());
    }

    /// The fences that `encode` wrote. `Corrupt` for anything else, whatever it is.
    pub fn decode(bytes: &[u8], seed: u64) -> Result<Self> {
        let Some((content, sum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            bail!(Corrupt, "fences of {} bytes are cut short", bytes.len());
        };
        if u64::from_le_bytes(*sum) != xxh3_64_with_seed(content, seed) {
            bail!(Corrupt, "the checksum of the fences does not match");
        }
        match Self::of_content(content) {
            Some(fences) => Ok(fences),
            None => bail!(Corrupt, "the fences are not strictly increasing fences of their pages"),
        }
    }

    fn of_content(content: &[u8]) -> Option<Self> {
        let (head, words) = content.split_first_chunk::<HEAD_BYTES>()?;
        let four = |at: usize| Some(u32::from_le_bytes(*head[at..].first_chunk()?));
        let eight = |at: usize| Some(u64::from_le_bytes(*head[at..].first_chunk()?));
        let (pages, high_words) = (four(0)?, four(4)? as usize);
        let (shift, low_bits) = (u32::from(head[8]), u32::from(head[9]));
        let (first, last) = (eight(16)?, eight(24)?);
        let count = pages.checked_sub(1)? as usize;
        let low_words = count.checked_mul(low_bits as usize)?.div_ceil(64);
        let lengths_fit = high_words.checked_add(low_words)?.checked_mul(8)? == words.len();
        if head[10..16] != [0; 6] || first > last || shift > 63 || low_bits > 63 || !lengths_fit {
            return None;
        }
        let word = |bytes: &[u8]| bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
        let all: Vec<u64> = words.chunks_exact(8).filter_map(word).collect();
        let (high, low) = all.split_at(high_words);
        let fences = Self::of_words(first, last, pages, shift, low_bits, low.into(), high.into());
        fences.is_sound().then_some(fences)
    }

    fn of_words(
        first: u64,
        last: u64,
        pages: u32,
        shift: u32,
        low_bits: u32,
        low: Box<[u64]>,
        high: Box<[u64]>,
    ) -> Self {
        let mut sum = 0;
        let mut ones = Vec::with_capacity(high.len().div_ceil(BLOCK_WORDS));
        for block in high.chunks(BLOCK_WORDS) {
            ones.push(sum);
            sum += block.iter().map(|word| word.count_ones()).sum::<u32>();
        }
        Self { first, last, pages, shift, low_bits, low, high, ones: ones.into() }
    }

    /// True when there is a fence for each page but the first, each larger than the one before and
    /// within the section, and no other bit is set.
    fn is_sound(&self) -> bool {
        let count = self.pages as usize - 1;
        let ones: usize = self.high.iter().map(|word| word.count_ones() as usize).sum();
        let used = count * self.low_bits as usize;
        // Of a word that is used to its end no bit is left over.
        let unused =
            !used.is_multiple_of(64) && self.low.last().is_some_and(|last| last >> (used % 64) > 0);
        if ones != count || self.high.last() == Some(&0) || unused {
            return false;
        }
        let span = u128::from(self.last - self.first) >> self.shift;
        let largest = if self.shift == 0 { span } else { span << 1 | 1 };
        let mut before = 0;
        let mut number = 0;
        for (word, bits_of_word) in self.high.iter().enumerate() {
            let mut rest = *bits_of_word;
            while rest != 0 {
                let upper = (word * 64 + rest.trailing_zeros() as usize - number) as u128;
                let lower = bits(&self.low, number * self.low_bits as usize, self.low_bits);
                let fence = upper << self.low_bits | u128::from(lower);
                if fence <= before || fence > largest {
                    return false;
                }
                (before, number) = (fence, number + 1);
                rest &= rest - 1;
            }
        }
        true
    }
}

/// `count` bits, at most 63, of `words` from bit `at` on.
#[inline]
fn bits(words: &[u64], at: usize, count: u32) -> u64 {
    if count == 0 {
        return 0;
    }
    let (word, skip) = (at / 64, at % 64);
    let mut found = words[word] >> skip;
    if skip + count as usize > 64 {
        found |= words[word + 1] << (64 - skip);
    }
    found & ((1 << count) - 1)
}

/// Where a page begins.
#[derive(Clone, Copy, Debug)]
struct Begin {
    /// Its first position, from the section's first one.
    offset: u64,
    /// The lower bits within which the row before differs.
    differing: u32,
}

/// Makes the fences of a section from the positions of its rows, in order.
#[derive(Debug)]
pub struct FenceBuilder {
    extra_bits: u32,
    first: u64,
    last: u64,
    rows: u64,
    /// Positions of the page being filled, from the section's first one.
    page: Vec<u64>,
    /// Where pages begin, from the second on.
    begins: Vec<Begin>,
    /// How many keys have two candidates as soon as so many bits are cut, and not before.
    extra: [u64; 65],
    /// Fewer bits than this must be cut, or a position has three candidates.
    limit: u32,
}

impl FenceBuilder {
    /// A builder for a section that begins at `position`; at most one key in 2^`extra_bits` may
    /// cost a second page.
    pub fn new(extra_bits: u32, position: u64) -> Self {
        Self {
            extra_bits,
            first: position,
            last: position,
            rows: 1,
            page: vec![0],
            begins: Vec::new(),
            extra: [0; 65],
            limit: 64,
        }
    }

    /// Adds the next row, which begins a page or is on that of the row before.
    ///
    /// # Panics
    /// When the position is not larger than the one before.
    pub fn push(&mut self, position: u64, begins_page: bool) {
        assert!(position > self.last, "position {position:#x} follows {:#x}", self.last);
        let offset = position - self.first;
        if begins_page {
            let differing = differing_bits(offset, self.last - self.first);
            for row in self.page.drain(..) {
                self.extra[differing_bits(row, offset) as usize] += 1;
            }
            if let Some(before) = self.begins.last() {
                let both = differing_bits(before.offset, offset).max(before.differing);
                self.limit = self.limit.min(both);
            }
            self.begins.push(Begin { offset, differing });
        }
        if let Some(begin) = self.begins.last() {
            self.extra[differing_bits(offset, begin.offset).max(begin.differing) as usize] += 1;
        }
        self.page.push(offset);
        self.last = position;
        self.rows += 1;
    }

    /// All memory that the builder takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.page.capacity() * size_of::<u64>()
            + self.begins.capacity() * size_of::<Begin>()
    }

    /// How many bits can be cut.
    fn shift(&self) -> u32 {
        let mut extra = 0;
        let too_many = |bits: &u32| {
            extra += self.extra[*bits as usize];
            extra << self.extra_bits > self.rows || *bits >= self.limit
        };
        (1..64).find(too_many).unwrap_or(64) - 1
    }

    /// The fences of all rows that were added.
    pub fn finish(self) -> Fences {
        let shift = if self.begins.is_empty() { 0 } else { self.shift() };
        let fence = |begin: &Begin| match shift {
            0 => begin.offset,
            _ => begin.offset >> shift << 1 | u64::from(begin.differing <= shift),
        };
        let count = self.begins.len();
        let largest = self.begins.last().map_or(0, fence);
        let low_bits = (largest / count.max(1) as u64).checked_ilog2().unwrap_or(0);
        let mut low = vec![0; (count * low_bits as usize).div_ceil(64)];
        let mut high = vec![0; ((largest >> low_bits) as usize + count).div_ceil(64)];
        for (number, fence) in self.begins.iter().map(fence).enumerate() {
            let upper = (fence >> low_bits) as usize + number;
            high[upper / 64] |= 1 << (upper % 64);
            let (at, lower) = (number * low_bits as usize, fence & ((1 << low_bits) - 1));
            if low_bits > 0 {
                low[at / 64] |= lower << (at % 64);
                if at % 64 + low_bits as usize > 64 {
                    low[at / 64 + 1] |= lower >> (64 - at % 64);
                }
            }
        }
        let pages = count as u32 + 1;
        Fences::of_words(self.first, self.last, pages, shift, low_bits, low.into(), high.into())
    }
}
