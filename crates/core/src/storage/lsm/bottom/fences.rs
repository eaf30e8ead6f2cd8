//! The fences of a section: where each of its pages begins, in a few bits per page.
//!
//! Positions count from the section's first one. A fence is the position at which a page begins,
//! cut to its upper bits, and one bit that says whether the page before has a row with the same
//! upper bits: then a look-up of these bits has two candidates. As many bits are cut as leave no
//! position three candidates and cost at most one extra page in 2^[`EXTRA_BITS`] stored keys, which
//! the builder counts exactly. Of evenly spread positions that leaves log2 of the pages and
//! `EXTRA_BITS`; of clustered ones as many as it takes. Fences increase strictly and are Elias-Fano
//! coded: their lower bits packed, their upper bits in unary.

use super::increasing::{Cut, Increasing, Rank};
use crate::error::Result;
use std::ops::{Range, RangeInclusive};

/// At most one key in 2 to the power of this costs a second page.
pub(crate) const EXTRA_BITS: u32 = 7;

/// The fences of the pages of one section, from its second page on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fences(Cut);

/// The number of lower bits within which two positions differ.
fn differing_bits(a: u64, b: u64) -> u32 {
    64 - (a ^ b).leading_zeros()
}

impl Fences {
    /// Bytes of the encoded fence of a page at most: all bits of a position and three of the code.
    pub(crate) const BYTES_PER_PAGE_MOST: u64 = 9;

    /// Pages of the section.
    pub(crate) fn pages(&self) -> u32 {
        self.0.numbers.len() + 1
    }

    /// Positions of the section's first and last row.
    pub(crate) fn ends(&self) -> RangeInclusive<u64> {
        self.0.first..=self.0.last
    }

    /// The section's pages, from 0, that may have a row at `position`: none, one, or rarely two.
    #[inline]
    pub(crate) fn candidates(&self, position: u64) -> Range<u32> {
        let Cut { first, last, shift, numbers } = &self.0;
        if position < *first || position > *last {
            return 0..0;
        }
        let cut = (position - first) >> shift;
        if *shift == 0 {
            let page = numbers.rank(cut).at_most;
            return page..page + 1;
        }
        let Rank { at_most, found } = numbers.rank(cut << 1 | 1);
        at_most - u32::from(found)..at_most + 1
    }

    /// All memory that the fences take.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.0.numbers.heap_bytes()
    }

    /// Bytes of the encoded fences.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.0.encoded_bytes()
    }

    /// Appends the fences, and a checksum under `seed`.
    pub(crate) fn encode(&self, seed: u64, into: &mut Vec<u8>) {
        self.0.encode(self.pages(), seed, into);
    }

    /// The fences that `encode` wrote. `Corrupt` for anything else, whatever it is.
    pub(crate) fn decode(bytes: &[u8], seed: u64) -> Result<Self> {
        // The first page has no fence, so no fence is 0. A cut fence ends in one additional bit.
        let most = |span: u128, shift| if shift == 0 { span } else { span << 1 | 1 };
        Cut::decode(bytes, seed, "fences", 1, 1, most).map(Self)
    }
}

/// The begin of a page.
#[derive(Clone, Copy, Debug)]
struct Begin {
    /// Its first position, from the section's first one.
    offset: u64,
    /// The lower bits within which the row before differs.
    differing: u32,
}

/// Makes the fences of a section from the positions of its rows, in order.
#[derive(Debug)]
pub(crate) struct FenceBuilder {
    extra_bits: u32,
    first: u64,
    last: u64,
    rows: u64,
    /// Positions of the page being filled, from the section's first one.
    page: Vec<u64>,
    /// The begins of pages, from the second on.
    begins: Vec<Begin>,
    /// Number of keys that get a second candidate once so many bits are cut, but not with fewer.
    extra: [u64; 65],
    /// Fewer bits than this must be cut, or a position has three candidates.
    limit: u32,
}

impl FenceBuilder {
    /// A builder for a section that begins at `position`; at most one key in 2^`extra_bits` may
    /// cost a second page.
    pub(crate) fn new(extra_bits: u32, position: u64) -> Self {
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
    pub(crate) fn push(&mut self, position: u64, begins_page: bool) {
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
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.page.capacity() * size_of::<u64>()
            + self.begins.capacity() * size_of::<Begin>()
    }

    /// Number of bits that can be cut.
    fn shift(&self) -> u32 {
        let mut extra = 0;
        let too_many = |bits: &u32| {
            extra += self.extra[*bits as usize];
            extra << self.extra_bits > self.rows || *bits >= self.limit
        };
        (1..64).find(too_many).unwrap_or(64) - 1
    }

    /// The fences of all rows that were added.
    pub(crate) fn finish(self) -> Fences {
        let shift = if self.begins.is_empty() { 0 } else { self.shift() };
        let fence = |begin: &Begin| match shift {
            0 => begin.offset,
            _ => begin.offset >> shift << 1 | u64::from(begin.differing <= shift),
        };
        let largest = self.begins.last().map_or(0, fence);
        let numbers = Increasing::new(self.begins.len(), largest, self.begins.iter().map(fence));
        Fences(Cut { first: self.first, last: self.last, shift, numbers })
    }
}
