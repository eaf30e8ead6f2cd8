//! Placement of rows in frozen pages, and the unit that freezes them.

use super::{SweptRow, Unit};
use crate::error::Result;

/// Pages of the rows of a class, by table and key. Rows that it does not have follow behind those
/// that it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Table and key of each row, in the order of the pages in which they are at home.
    pub rows: Vec<(u16, u64)>,
    /// The end in `rows` of each home page.
    pub page_ends: Vec<u32>,
    /// Start of each replica page in `replica_rows`, and the end of the last one; empty without
    /// replicas.
    pub replica_starts: Vec<u32>,
    /// Rows of the replica pages, as places in `rows`.
    pub replica_rows: Vec<u32>,
}

/// The input of a freeze.
#[derive(Clone, Debug)]
pub(crate) struct FreezePlan {
    /// The placement of the rows.
    pub placement: Placement,
    /// The index names at most so many pages of a row, its home among them.
    pub candidates_max: usize,
    /// Rows that wait to be put in order take about so many bytes of memory.
    pub memory: usize,
}

/// A unit of upkeep that writes all rows of a class anew as frozen pages. It is given every row
/// once, in any order, and its steps then write them.
pub(crate) trait Freeze: Unit {
    /// Takes a row. One of the storage itself is dropped from where it is stored once the outcome
    /// is installed; `is_own` says so.
    fn push(&mut self, row: SweptRow<'_>, is_own: bool) -> Result<()>;

    /// Rows taken so far that the placement has.
    fn placed(&self) -> u64;
}
