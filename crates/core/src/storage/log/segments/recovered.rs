//! Recovery: what of each segment is newest or retained is counted, and what holds nothing is free.

use super::{SegmentId, Segments, State};
use crate::error::{Result, bail};
use std::collections::BTreeMap;
use std::ops::Range;

/// Recovery counts with a thread for each so many slots, and at most so many threads.
const SLOTS_PER_THREAD_MIN: usize = 1 << 20;
const COUNTERS_AT_ONCE: usize = 4;

impl Segments {
    /// Recovery: counts a copy of the commit that was opened as newest, its segment as sealed.
    pub(crate) fn recovered_newest(&mut self, slot: u32) {
        let id = self.of_slot(slot) as usize;
        self.segments[id].newest += 1;
        self.newest_total += 1;
        self.segments[id].state = State::Sealed;
    }

    /// Recovery: as `recovered_newest` for the slots of so many ids, but for those that are 0, by
    /// several threads when there are many. Nothing is counted, and false returned, when a slot
    /// lies before `slots.start` or not before `slots.end`.
    pub(crate) fn recovered_all(
        &mut self,
        ids: usize,
        slot_of: impl Fn(usize) -> u32 + Sync,
        slots: Range<u64>,
    ) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (ids / SLOTS_PER_THREAD_MIN).clamp(1, cores.min(COUNTERS_AT_ONCE));
        let part = ids.div_ceil(threads).max(1);
        let (count, per_segment) =
            (self.segments.len(), self.pages_per_segment * self.rows_per_page);
        let found: Vec<Option<Vec<u32>>> = std::thread::scope(|scope| {
            let (slots, slot_of) = (&slots, &slot_of);
            let counts: Vec<_> = (0..ids)
                .step_by(part)
                .map(|first| {
                    let of_part = (first..ids.min(first + part)).map(slot_of);
                    scope.spawn(move || counted(of_part, per_segment, count, slots))
                })
                .collect();
            let all = counts.into_iter().map(|counts| counts.join());
            all.map(|counts| counts.unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
        });
        let Some(found) = found.into_iter().collect::<Option<Vec<_>>>() else { return false };
        for counts in found {
            for (segment, newest) in self.segments.iter_mut().zip(counts) {
                segment.newest += newest;
                self.newest_total += u64::from(newest);
                if newest > 0 {
                    segment.state = State::Sealed;
                }
            }
        }
        true
    }

    /// Recovery: counts a copy outdated in `epoch` as retained by the commits before it.
    pub(crate) fn recovered_retained(&mut self, slot: u32, epoch: u64) {
        let id = self.of_slot(slot);
        let segment = &mut self.segments[id as usize];
        segment.retained += 1;
        segment.state = State::Sealed;
        self.retained_total += 1;
        *self.retained.entry(epoch).or_default().entry(id).or_default() += 1;
    }

    /// Recovery: where the fillings of segments began, those that are known, and the largest
    /// sequence that a page of the commit has.
    pub(crate) fn recovered_firsts(&mut self, firsts: &BTreeMap<SegmentId, u64>, sequence: u64) {
        for (id, first) in firsts {
            if let Some(segment) = self.segments.get_mut(*id as usize) {
                segment.first = *first;
            }
        }
        self.recovered_sequence = sequence;
    }

    /// Recovery: all counts are in; what holds nothing is free, epochs go on at `epoch`.
    ///
    /// *Errors*: `Corrupt` when a segment would hold more copies than it has slots.
    pub(crate) fn recovered(&mut self, epoch: u64) -> Result<()> {
        for (id, segment) in self.segments.iter().enumerate() {
            let copies = u64::from(segment.newest) + u64::from(segment.retained);
            let slots = self.pages_of(id as SegmentId) * self.rows_per_page;
            if copies > u64::from(slots) {
                bail!(Corrupt, "segment {id} holds {copies} copies in {slots} slots");
            }
        }
        self.epoch = epoch;
        self.free.clear();
        self.unsure.clear();
        for (id, segment) in self.segments.iter_mut().enumerate() {
            if segment.newest == 0 && segment.retained == 0 {
                segment.state = State::Free;
                self.unsure.insert(id as SegmentId);
            } else {
                segment.state = State::Sealed;
                segment.epoch = 0;
                segment.boundary = (0, 0);
            }
        }
        self.free_total = self.pages_in(self.unsure.len(), self.unsure.contains(&0));
        self.count_totals();
        Ok(())
    }
}

/// Slots of `all` by segment, 0 left out; `None` when one lies outside `slots`.
fn counted(
    all: impl Iterator<Item = u32>,
    per_segment: u32,
    segments: usize,
    slots: &Range<u64>,
) -> Option<Vec<u32>> {
    let mut counts = vec![0u32; segments + 1];
    let (mut least, mut most) = (u32::MAX, 0);
    // A quotient of 32 bits is the upper half of a product with the reciprocal, rounded up.
    let reciprocal = u64::MAX / u64::from(per_segment) + 1;
    for slot in all.filter(|slot| *slot != 0) {
        least = least.min(slot);
        most = most.max(slot);
        let segment = ((u128::from(reciprocal) * u128::from(slot)) >> 64) as usize;
        counts[segment.min(segments)] += 1;
    }
    let inside = least > most || (u64::from(least) >= slots.start && u64::from(most) < slots.end);
    inside.then_some(counts)
}
