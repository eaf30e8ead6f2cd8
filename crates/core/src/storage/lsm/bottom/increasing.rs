//! Strictly increasing numbers, Elias-Fano coded: their lower bits packed, their upper bits in
//! unary.
//!
//! The code is our own because it is a stored format: the crates that have such a sequence
//! (vers-vecs without dependencies, sucds, sux) store it by their own layout and do not check what
//! they read back, so damaged bytes end in a panic or in a wrong answer.

use crate::error::{Result, bail};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Upper bits between two counts of ones.
const BLOCK_BITS: usize = 512;
const BLOCK_WORDS: usize = BLOCK_BITS / 64;
/// Bytes of an encoded sequence before the words, and of the checksum behind them.
const HEAD_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 8;

/// The place of a bound among the numbers.
pub(super) struct Rank {
    /// Number of elements that are at most the bound.
    pub(super) at_most: u32,
    /// Whether the last of these equals the bound.
    pub(super) found: bool,
}

/// Numbers that increase strictly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Increasing {
    len: u32,
    /// Bits of a number that are packed.
    low_bits: u32,
    low: Box<[u64]>,
    /// For each value of the upper bits a one for each number that has it, and a zero.
    high: Box<[u64]>,
    /// Ones in front of each block of `high`.
    ones: Box<[u32]>,
}

impl Increasing {
    /// A sequence of `len` numbers, the last of which is `largest`.
    pub(super) fn new(len: usize, largest: u64, numbers: impl Iterator<Item = u64>) -> Self {
        let low_bits = (largest / len.max(1) as u64).checked_ilog2().unwrap_or(0);
        let mut low = vec![0; (len * low_bits as usize).div_ceil(64)];
        let high_bits = if len == 0 { 0 } else { (largest >> low_bits) as usize + len };
        let mut high = vec![0; high_bits.div_ceil(64)];
        for (at, number) in numbers.enumerate() {
            let upper = (number >> low_bits) as usize + at;
            high[upper / 64] |= 1 << (upper % 64);
            let (at, lower) = (at * low_bits as usize, number & ((1 << low_bits) - 1));
            if low_bits > 0 {
                low[at / 64] |= lower << (at % 64);
                if at % 64 + low_bits as usize > 64 {
                    low[at / 64 + 1] |= lower >> (64 - at % 64);
                }
            }
        }
        Self::of_words(len as u32, low_bits, low.into(), high.into())
    }

    fn of_words(len: u32, low_bits: u32, low: Box<[u64]>, high: Box<[u64]>) -> Self {
        let mut sum = 0;
        let mut ones = Vec::with_capacity(high.len().div_ceil(BLOCK_WORDS));
        for block in high.chunks(BLOCK_WORDS) {
            ones.push(sum);
            sum += block.iter().map(|word| word.count_ones()).sum::<u32>();
        }
        Self { len, low_bits, low, high, ones: ones.into() }
    }

    /// Number of elements.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The number of elements that are at most `bound`, and whether the last of them equals it.
    pub(super) fn rank(&self, bound: u64) -> Rank {
        let upper = bound >> self.low_bits;
        if self.len == 0 || upper >= self.zeros() {
            return Rank { at_most: self.len, found: false };
        }
        // Numbers with these upper bits are the ones between two zeros.
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

    /// The number of ones that `high` has from bit `begin` to the next zero.
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

    /// The number of zeros of `high`.
    fn zeros(&self) -> u64 {
        match self.high.last() {
            // The last bit that counts is a zero behind the last one.
            Some(last) => {
                let used = self.high.len() * 64 - last.leading_zeros() as usize + 1;
                used as u64 - u64::from(self.len)
            }
            None => 0,
        }
    }

    /// The place in `high` of the zero with number `n`.
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

    /// Memory beside the sequence itself.
    pub(super) fn heap_bytes(&self) -> usize {
        8 * (self.low.len() + self.high.len()) + 4 * self.ones.len()
    }

    /// True when there are `len` numbers from `least` to `most`, each larger than the one before,
    /// and no other bit is set.
    fn is_sound(&self, least: u64, most: u128) -> bool {
        let len = self.len as usize;
        let ones: usize = self.high.iter().map(|word| word.count_ones() as usize).sum();
        let used = len * self.low_bits as usize;
        // Of a word that is used to its end no bit is left over.
        let unused =
            !used.is_multiple_of(64) && self.low.last().is_some_and(|last| last >> (used % 64) > 0);
        if ones != len || self.high.last() == Some(&0) || unused {
            return false;
        }
        let mut least = u128::from(least);
        let mut at = 0;
        for (word, bits_of_word) in self.high.iter().enumerate() {
            let mut rest = *bits_of_word;
            while rest != 0 {
                let upper = (word * 64 + rest.trailing_zeros() as usize - at) as u128;
                let lower = bits(&self.low, at * self.low_bits as usize, self.low_bits);
                let number = upper << self.low_bits | u128::from(lower);
                if number < least || number > most {
                    return false;
                }
                (least, at) = (number + 1, at + 1);
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

/// Numbers that positions of a section were cut to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Position of the section's first row, from which the others count.
    pub(super) first: u64,
    /// Position of its last row.
    pub(super) last: u64,
    /// Bits cut off.
    pub(super) shift: u32,
    /// The remaining numbers.
    pub(super) numbers: Increasing,
}

impl Cut {
    /// Bytes of its encoding beside its numbers, and of words that these do not fill, at most.
    pub(super) const BYTES_BESIDE: usize = HEAD_BYTES + CHECKSUM_BYTES + 4 * 8;

    /// Bytes of its encoding.
    pub(super) fn encoded_bytes(&self) -> usize {
        HEAD_BYTES + 8 * (self.numbers.low.len() + self.numbers.high.len()) + CHECKSUM_BYTES
    }

    /// Appends it, `count` in front, and a checksum under `seed`.
    pub(super) fn encode(&self, count: u32, seed: u64, into: &mut Vec<u8>) {
        let begin = into.len();
        let Increasing { low_bits, low, high, .. } = &self.numbers;
        into.extend_from_slice(&count.to_le_bytes());
        into.extend_from_slice(&(high.len() as u32).to_le_bytes());
        into.extend_from_slice(&[self.shift as u8, *low_bits as u8]);
        into.extend_from_slice(&[0; 6]);
        into.extend_from_slice(&self.first.to_le_bytes());
        into.extend_from_slice(&self.last.to_le_bytes());
        for word in high.iter().chain(low) {
            into.extend_from_slice(&word.to_le_bytes());
        }
        let sum = xxh3_64_with_seed(&into[begin..], seed);
        into.extend_from_slice(&sum.to_le_bytes());
    }

    /// Decodes the output of `encode`, for `before` fewer numbers than its count says, from `least`
    /// to the value of `most` for the cut span of its positions. `Corrupt`, naming it by `what`,
    /// for any other input.
    pub(super) fn decode(
        bytes: &[u8],
        seed: u64,
        what: &str,
        before: u32,
        least: u64,
        most: impl Fn(u128, u32) -> u128,
    ) -> Result<Self> {
        let Some((content, sum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            bail!(Corrupt, "{what} of {} bytes are cut short", bytes.len());
        };
        if u64::from_le_bytes(*sum) != xxh3_64_with_seed(content, seed) {
            bail!(Corrupt, "the checksum of the {what} does not match");
        }
        let read = Self::of_content(content, before);
        let is_sound = |cut: &Self| {
            let span = u128::from(cut.last - cut.first) >> cut.shift;
            cut.numbers.is_sound(least, most(span, cut.shift))
        };
        match read.filter(is_sound) {
            Some(read) => Ok(read),
            None => bail!(Corrupt, "the {what} are not strictly increasing {what} of their rows"),
        }
    }

    fn of_content(content: &[u8], before: u32) -> Option<Self> {
        let (head, words) = content.split_first_chunk::<HEAD_BYTES>()?;
        let four = |at: usize| Some(u32::from_le_bytes(*head[at..].first_chunk()?));
        let eight = |at: usize| Some(u64::from_le_bytes(*head[at..].first_chunk()?));
        let (len, high_words) = (four(0)?.checked_sub(before)?, four(4)? as usize);
        let (shift, low_bits) = (u32::from(head[8]), u32::from(head[9]));
        let (first, last) = (eight(16)?, eight(24)?);
        let low_words = (len as usize).checked_mul(low_bits as usize)?.div_ceil(64);
        let lengths_fit = high_words.checked_add(low_words)?.checked_mul(8)? == words.len();
        if head[10..16] != [0; 6] || first > last || shift > 63 || low_bits > 63 || !lengths_fit {
            return None;
        }
        let word = |bytes: &[u8]| bytes.first_chunk().map(|word| u64::from_le_bytes(*word));
        let all: Vec<u64> = words.chunks_exact(8).filter_map(word).collect();
        let (high, low) = all.split_at(high_words);
        let numbers = Increasing::of_words(len, low_bits, low.into(), high.into());
        Some(Self { first, last, shift, numbers })
    }
}
