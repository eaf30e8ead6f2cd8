//! The unit of upkeep: one merge, without the lock of the class.

use super::bottom::{Merge, MergePlan, Merged, Place, PlaceRange, Room, Unread};
use super::newest::{Newest, ToMerge};
use crate::error::{Error, Result, bail};
use crate::io::{Buffers, Medium, pow2_below};
use crate::storage::{PageReader, Unit};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reads of a merge in flight, of old pages and of those of the top each.
const DEPTH: usize = 64;
/// The longest read is this part of a portion.
const LONGEST_PARTS: usize = 4;

/// A merge that is about to begin. Its buffers and its first read are left to the first step, so
/// that the holder of the class lock does not wait for them.
pub(super) struct Planned {
    pub(super) medium: Arc<dyn Medium>,
    pub(super) plan: MergePlan,
    pub(super) newest: Newest,
    pub(super) room: Arc<dyn Room>,
}

impl Planned {
    fn begin(self) -> Result<Merge<ToMerge>> {
        let Self { medium, plan, newest, room } = self;
        let (page_bytes, portion_bytes) = (plan.shape.page_bytes, plan.portion_bytes);
        let reader = || -> Result<PageReader> {
            // Old pages lie side by side, those of the top hardly.
            let longest = pow2_below(portion_bytes / LONGEST_PARTS).max(page_bytes);
            let buffers = Buffers::sharing(portion_bytes.max(page_bytes), page_bytes, longest);
            let queue = medium.queue(buffers.pieces.min(DEPTH), buffers)?;
            Ok(PageReader::new(queue, page_bytes, None, true))
        };
        let writes = Buffers::equal(2, portion_bytes.max(page_bytes));
        let queue = medium.queue(2, writes)?;
        let changes = ToMerge::new(newest, reader()?);
        let mut merge = Merge::new(Arc::clone(&medium), plan, changes, reader()?, queue)?;
        merge.draw_from(room);
        Ok(merge)
    }
}

/// The progress of a merge.
enum Stage {
    Planned(Box<Planned>),
    Begun(Box<Merge<ToMerge>>),
    /// It met an error as it began.
    Failed,
}

/// A merge under way.
pub(super) struct MergeUnit {
    stage: Stage,
    /// The time of its steps.
    busy: Duration,
}

/// A merge of which all steps are done.
pub(super) struct MergeDone {
    pub(super) merged: Merged,
    /// The time of its steps.
    pub(super) busy: Duration,
    /// Bytes of pages of the top that it has read.
    pub(super) read_above: u64,
    pub(super) pages: UnreadPages,
}

/// Pages of the top.
#[derive(Debug, Default)]
pub(super) struct UnreadPages {
    /// Pages that could not be read, whose rows stay in the top.
    pub(super) skipped: Vec<(u32, Error)>,
    /// Pages that failed before by errors that may pass, and were not read now.
    pub(super) not_yet: Vec<u32>,
}

impl MergeUnit {
    pub(super) fn new(planned: Planned) -> Self {
        Self { stage: Stage::Planned(Box::new(planned)), busy: Duration::ZERO }
    }

    /// The result, once `step` has reported that all is done.
    ///
    /// # Panics
    /// Before that.
    pub(super) fn finish(self) -> MergeDone {
        let Stage::Begun(mut merge) = self.stage else { panic!("a merge ends before it begins") };
        let read_above = merge.changes().bytes_read();
        let pages = merge.changes().take_unread();
        MergeDone { merged: merge.finish(), busy: self.busy, read_above, pages }
    }

    /// The place it could not read, if that was the error that it met.
    pub(super) fn unread(&self) -> Option<Unread> {
        match &self.stage {
            Stage::Begun(merge) => merge.unread(),
            Stage::Planned(_) | Stage::Failed => None,
        }
    }

    /// Pages of the top that it could not read, of a unit that is abandoned.
    pub(super) fn take_skipped(&mut self) -> Vec<(u32, Error)> {
        match &mut self.stage {
            Stage::Begun(merge) => merge.changes().take_unread().skipped,
            Stage::Planned(_) | Stage::Failed => Vec::new(),
        }
    }

    fn go_on(&mut self) -> Result<bool> {
        if let Stage::Planned(_) = &self.stage
            && let Stage::Planned(planned) = std::mem::replace(&mut self.stage, Stage::Failed)
        {
            self.stage = Stage::Begun(Box::new(planned.begin()?));
        }
        match &mut self.stage {
            Stage::Begun(merge) => merge.step(),
            Stage::Planned(_) | Stage::Failed => {
                bail!(Poisoned, "a merge that could not begin goes on; abandon it")
            }
        }
    }
}

impl Unit for MergeUnit {
    fn step(&mut self) -> Result<bool> {
        let begun = Instant::now();
        let goes_on = self.go_on();
        self.busy += begun.elapsed();
        goes_on
    }

    fn abandon(self: Box<Self>) -> Result<()> {
        match self.stage {
            Stage::Begun(merge) => merge.abandon(),
            Stage::Planned(_) | Stage::Failed => Ok(()),
        }
    }
}

/// The storage's note of the unit that it has given out.
#[derive(Clone, Copy, Debug)]
pub(super) struct GivenOut {
    pub(super) range: PlaceRange,
    /// Bytes of the room for merges that its files may take.
    pub(super) bytes: u64,
    /// Bytes of the disk that the partitions take which it replaces.
    pub(super) old_bytes: u64,
    pub(super) memory_bytes: u64,
    /// Keeps the pages of the top that it reads.
    pub(super) ticket: u64,
    /// Bytes of the partitions that it reads.
    pub(super) read_below: u64,
    pub(super) begun: Instant,
}

impl GivenOut {
    /// Whether it takes the row at `place`.
    pub(super) fn takes(&self, place: Place) -> bool {
        self.range.contains(place)
    }
}
