//! Tasks of the planner, and the threads that do them.

use super::planner::Plan;
use super::{Announced, State};

/// The next task of the planner.
#[derive(Debug)]
pub(super) enum Task {
    /// Forget all batches up to this one.
    Clear(u64),
    /// Give back what the window takes: nothing is announced.
    Release,
    /// Batches up to this one are done with.
    Finish(u64),
    /// Let go of the rows of a range.
    LetGo(u64),
    /// Hold the rows of a range.
    Hold(u64),
    /// Note the uses of a batch.
    Announce(Announced),
    /// Form the next group.
    Form,
    /// Form the slices of a batch.
    Slice(u64),
    /// Callers are at this batch, and there was no room to read it ahead.
    Skip(u64),
}

/// The thread that does a task. If batches are read in slices, callers plan as they go: a row must
/// be known to be used before others come. Nobody waits for the tasks that are left to the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Planner,
    Caller,
    /// Any thread, if the window has none of its own.
    #[cfg(any(test, feature = "testing"))]
    Hand,
}

impl Plan {
    /// The next task for somebody, unless the window rests. They are busy with it from here on.
    pub(super) fn take_task(&self, state: &mut State, by: Who) -> Option<Task> {
        if state.paused {
            return None;
        }
        let task = self.next_task(state, by)?;
        state.busy += 1;
        Some(task)
    }

    fn next_task(&self, state: &mut State, by: Who) -> Option<Task> {
        if state.cleared > self.cleared {
            return Some(Task::Clear(state.cleared));
        }
        match state.ranges.next_task() {
            Some((number, true)) => return Some(Task::Hold(number)),
            Some((number, false)) => return Some(Task::LetGo(number)),
            None => {}
        }
        // Batches that were announced since need it.
        let is_unused = state.announced == state.cleared && self.holdings.is_empty();
        if std::mem::take(&mut state.release) && is_unused {
            return Some(Task::Release);
        }
        if self.pace.is_slices() && by == Who::Planner {
            return self.next_slices(state);
        }
        if state.finished > self.finished && self.finished < self.noted {
            // One by one: what is noted of a batch meanwhile is not much.
            return Some(Task::Finish(state.finished.min(self.finished + 1)));
        }
        // Announced batches come first: they say what is worth reading and what to keep.
        if state.queue.front().is_some_and(|batch| self.fits(batch)) {
            let batch = state.queue.pop_front().expect("there is a first one");
            state.queue_bytes -= batch.bytes();
            return Some(Task::Announce(batch));
        }
        if self.pace.is_slices() {
            let slices = if by == Who::Caller { None } else { self.next_slices(state) };
            if slices.is_some() {
                return slices;
            }
        } else if self.formed < self.noted && state.formed.is_none() {
            return Some(Task::Form);
        }
        (state.begun > self.formed.max(self.noted)).then_some(Task::Skip(state.begun))
    }

    /// The slices of the batch behind that at hand, once what was finished is noted. Callers need
    /// not wait for that, and have planned the rest.
    fn next_slices(&self, state: &State) -> Option<Task> {
        let next = state.begun + 1;
        let is_wanted = self.formed < next && next <= self.noted && self.reads_slices;
        let is_free = state.formed.is_none() && state.left.is_none() && !state.reading;
        let is_settled = self.finished >= state.finished;
        (is_wanted && is_free && is_settled).then_some(Task::Slice(next))
    }
}
