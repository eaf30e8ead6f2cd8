//! A frozen partition: pages in the order of a placement, with replicas of some rows.
//!
//! One file has all rows. Those of its first pages are at home: each key in one slot, all pages
//! full but the last. The pages behind have replicas, which other rows of theirs are read with.
//! Rows lie in no order that a fence could tell. So an [`index`] names the pages of each row.

mod builder;
mod footer;
pub(super) mod index;
pub(super) mod writer;

#[cfg(test)]
mod tests;

pub(super) use footer::read_footer;
pub(crate) use writer::FrozenWriter;

use super::candidates::Candidates;
use super::order::{Place, TableOrder};
use index::FrozenIndex;

/// A row has at most so many candidate pages, in every frozen partition.
pub(crate) const CANDIDATES_MOST: usize = 16;

/// The rows of a table in a frozen partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FrozenTable {
    /// The table.
    pub(super) table: u16,
    /// Mapping of its keys to positions.
    pub(super) order: TableOrder,
    /// Its rows at home.
    pub(super) rows: u64,
    /// The index of their places.
    pub(super) index: FrozenIndex,
}

/// The known facts about the rows of a frozen partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frozen {
    /// The index names at most so many pages of a row.
    pub(super) candidates_max: usize,
    /// Pages with rows at home, the first ones of the file.
    pub(super) home_pages: u32,
    /// The tables that have rows, in order.
    pub(super) tables: Box<[FrozenTable]>,
}

impl Frozen {
    /// The part of a table.
    #[inline]
    pub(super) fn of(&self, table: u16) -> Option<&FrozenTable> {
        let at = self.tables.binary_search_by_key(&table, |of| of.table).ok()?;
        Some(&self.tables[at])
    }

    /// The pages that may have the row at `place`. All rows have the rank 0.
    #[inline]
    pub(super) fn candidates(&self, place: Place) -> Candidates<'_> {
        match self.of(place.table) {
            Some(table) if place.rank == 0 => table.index.candidates(place.position),
            _ => Candidates::NONE,
        }
    }

    /// Memory beside the value itself.
    pub(super) fn heap_bytes(&self) -> usize {
        let heaps = self.tables.iter().map(|table| table.index.heap_bytes());
        size_of_val(&*self.tables) + heaps.sum::<usize>()
    }
}
