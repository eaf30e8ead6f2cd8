//! The filter of a section: finds positions without a row, in some bits per row.
//!
//! Positions are cut to cells, 8 to 32 of them for each row. The filter is the set of cells that
//! have a row. So a position without one passes only if its cell has a row: a 32nd to an eighth
//! of them pass. If positions are spread evenly, as those of growing tables are, the set takes
//! 5 to 7 bits per row. The ids of a dense table lie close: each is a cell of its own if one in 32
//! or more has a row, and the set takes 3 to 8 bits per row. If all ids have a row there is no
//! filter.
//!
//! The order of the rows is what makes this cheaper than a filter of its own: their cells come in
//! order, so no hash table is built, and a merge needs 4 bytes per row of the file that it writes.

use super::increasing::{Cut, Increasing};
use crate::error::Result;

/// A cell has so many bits more than the number of rows.
const FILTER_BITS: u32 = 4;
/// Cells of more rows than this find their memory when they come.
const ROWS_RESERVED: u64 = 1 << 20;
/// The builder's memory for a row.
pub(crate) const BUILDER_BYTES_PER_ROW: usize = size_of::<u32>();

/// The cells of a section that have rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter(Cut);

impl Filter {
    /// Bytes of a row in the encoded filter at most: cells are 32 for each row, and a number with
    /// as much before it as it has in the mean takes 5 bits and three of the code.
    pub(crate) const BYTES_PER_ROW_MOST: u64 = 1;

    /// Whether there may be a row at `position`; always where there is one.
    #[inline]
    pub(crate) fn may_have(&self, position: u64) -> bool {
        let Cut { first, last, shift, numbers } = &self.0;
        (*first..=*last).contains(&position) && numbers.rank((position - first) >> shift).found
    }

    /// Cells with rows, at most as many as rows.
    pub(crate) fn cells(&self) -> u32 {
        self.0.numbers.len()
    }

    /// Memory beside the filter itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.numbers.heap_bytes()
    }

    /// Bytes of the encoded filter.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.0.encoded_bytes()
    }

    /// Appends the filter, and a checksum under `seed`.
    pub(crate) fn encode(&self, seed: u64, into: &mut Vec<u8>) {
        self.0.encode(self.cells(), seed, into);
    }

    /// The filter that `encode` wrote. `Corrupt` for anything else, whatever it is.
    pub(crate) fn decode(bytes: &[u8], seed: u64) -> Result<Self> {
        Cut::decode(bytes, seed, "cells of a filter", 0, 0, |span, _| span).map(Self)
    }
}

/// Makes the filter of a section from the positions of its rows, in order.
#[derive(Debug)]
pub(super) struct FilterBuilder {
    first: u64,
    last: u64,
    rows: u64,
    shift: u32,
    /// Cells of the positions so far, as fine as fits.
    cells: Vec<u32>,
}

impl FilterBuilder {
    /// A builder for a section that begins at `position`; about `rows` will come.
    pub(super) fn new(position: u64, rows: u64) -> Self {
        let mut cells = Vec::with_capacity(rows.min(ROWS_RESERVED) as usize);
        cells.push(0);
        Self { first: position, last: position, rows: 1, shift: 0, cells }
    }

    /// Adds the next row, whose position is larger than the one before.
    pub(super) fn push(&mut self, position: u64) {
        let offset = position - self.first;
        while offset >> self.shift > u64::from(u32::MAX) {
            self.coarsen(1);
        }
        let cell = (offset >> self.shift) as u32;
        if self.cells.last() != Some(&cell) {
            self.cells.push(cell);
        }
        (self.last, self.rows) = (position, self.rows + 1);
    }

    fn coarsen(&mut self, bits: u32) {
        self.shift += bits;
        self.cells.iter_mut().for_each(|cell| *cell = cell.checked_shr(bits).unwrap_or(0));
        self.cells.dedup();
    }

    /// All memory that the builder takes.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.cells.capacity() * size_of::<u32>()
    }

    /// The filter of all rows that were added.
    pub(super) fn finish(mut self) -> Filter {
        let span = 64 - (self.last - self.first).leading_zeros();
        let bits = 64 - self.rows.leading_zeros() + FILTER_BITS;
        let more = span.saturating_sub(bits).saturating_sub(self.shift);
        if more > 0 {
            self.coarsen(more);
        }
        let largest = self.cells.last().map_or(0, |cell| u64::from(*cell));
        let cells = self.cells.iter().map(|cell| u64::from(*cell));
        let numbers = Increasing::new(self.cells.len(), largest, cells);
        Filter(Cut { first: self.first, last: self.last, shift: self.shift, numbers })
    }
}
