//! Pinned commits: the segments that they have copies in are not written again.

use super::{SegmentId, Segments, State};
use crate::error::{Result, bail};
use crate::storage::Parts;

impl Segments {
    /// The segments that have copies of the commit that was opened, before anything changed.
    pub(crate) fn parts(&self) -> Parts {
        let ids = (0..self.count()).filter(|id| self.newest_of(*id) > 0);
        Parts::of_segments(ids)
    }

    /// Keeps the segments of a commit that is kept now, or of one that was pinned when these were
    /// recovered: those that seem free are taken then. *Errors*: `Corrupt`, and nothing changed.
    pub(crate) fn pin(&mut self, pin: u64, parts: &Parts) -> Result<()> {
        if self.pins.contains_key(&pin) {
            return Ok(());
        }
        if let Some((_, last)) = parts.segments.last()
            && *last >= self.count()
        {
            bail!(
                Corrupt,
                "pinned commit {pin} has rows in segment {last}, and there are {}: the file was \
                 truncated; restore it from a copy",
                self.count()
            );
        }
        for id in parts.segments().flatten() {
            let is_free = self.segments[id as usize].state == State::Free;
            if is_free && !self.unsure.contains(&id) {
                bail!(Corrupt, "segment {id} has rows of pinned commit {pin}, and was released");
            }
        }
        for id in parts.segments().flatten() {
            if self.unsure.remove(&id) {
                self.free_total -= u64::from(self.pages_of(id));
                self.change(id, |segment| segment.state = State::Sealed);
            }
            self.change(id, |segment| segment.pinned += 1);
        }
        let segments = parts.segments.clone();
        self.pins.insert(pin, Parts { segments, ..Parts::default() });
        Ok(())
    }

    /// Releases what only this pinned commit has.
    pub(crate) fn unpin(&mut self, pin: u64) {
        let Some(parts) = self.pins.remove(&pin) else { return };
        for id in parts.segments().flatten() {
            self.change(id, |segment| segment.pinned -= 1);
            self.free_if_empty(id);
        }
    }

    /// Slots that a pinned commit keeps beside newest copies and those of kept commits, in segments
    /// that none of the `others` has.
    pub(crate) fn slots_of_pin(&self, parts: &Parts, others: &[&Parts]) -> u64 {
        let own = |id: &SegmentId| {
            *id < self.count() && !others.iter().any(|other| other.has_segment(*id))
        };
        let slots = parts.segments().flatten().filter(own).map(|id| {
            let segment = &self.segments[id as usize];
            let slots = self.pages_of(id) * self.rows_per_page;
            u64::from(slots.saturating_sub(segment.newest + segment.retained))
        });
        slots.sum()
    }

    /// Slots that all pinned commits keep like that.
    pub(crate) fn pinned_slots(&self) -> u64 {
        let pinned = (0..self.count()).filter(|id| self.segments[*id as usize].pinned > 0);
        let slots = pinned.map(|id| {
            let segment = &self.segments[id as usize];
            let slots = self.pages_of(id) * self.rows_per_page;
            u64::from(slots.saturating_sub(segment.newest + segment.retained))
        });
        slots.sum()
    }

    pub(super) fn pins_bytes(&self) -> usize {
        self.pins.values().map(|parts| parts.segments.capacity() * 8 + 64).sum()
    }
}
