//! The unit of upkeep: one merge, without the lock of the class.

use super::bottom::{Merge, Place, PlaceRange};
use super::newest::ToMerge;
use crate::error::Result;
use crate::storage::Unit;

/// A merge under way.
pub(super) struct MergeUnit {
    pub(super) merge: Merge<ToMerge>,
}

impl Unit for MergeUnit {
    fn step(&mut self) -> Result<bool> {
        self.merge.step()
    }

    fn abandon(self: Box<Self>) -> Result<()> {
        self.merge.abandon()
    }
}

/// What the storage remembers of the unit that it has given out.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenOut {
    pub(super) range: PlaceRange,
    /// Bytes of the disk that its files may take.
    pub(super) bytes: u64,
    pub(super) memory_bytes: u64,
    /// Keeps the pages of the top that it reads.
    pub(super) ticket: u64,
    /// Rows that had come to the top when it began, if it takes all that were there of its range.
    pub(super) came_before: Option<u64>,
}

impl GivenOut {
    /// Whether it takes the row at `place`.
    pub(super) fn takes(&self, place: Place) -> bool {
        self.range.contains(place)
    }
}
