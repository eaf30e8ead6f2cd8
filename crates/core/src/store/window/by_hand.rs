//! A window without threads: a test does what they would do, task by task, on the thread that runs
//! the verbs, so that the same calls do the same.

use super::super::Store;
use super::planner::{Plan, Task};
use super::{Busy, Shared, reader};
use crate::error::Result;
use std::sync::atomic::Ordering;

impl Store {
    /// From here on the window's work is done by [`window_turn`](Self::window_turn) alone, and
    /// nobody waits for it. To be called before the first batch is announced.
    pub fn window_by_hand(&self) {
        self.inner.window.shared.state.lock().by_hand = true;
    }

    /// Does the next task of the planner, or else reads a portion of a group; false when there is
    /// nothing to do. Errors of reading count as failed, as they do in a thread.
    ///
    /// *Errors*: what ends a planner.
    pub fn window_turn(&self) -> Result<bool> {
        let (inner, shared) = (&*self.inner, &*self.inner.window.shared);
        let _guard = inner.poison_on_panic();
        let mut plan = shared.plan.lock();
        if let Some(task) = take_task(&plan, shared) {
            let _busy = Busy(shared);
            return plan.run(task, shared, inner).map(|()| true);
        }
        drop(plan);
        self.read_by_hand(shared)
    }

    fn read_by_hand(&self, shared: &Shared) -> Result<bool> {
        let next = {
            let mut state = shared.state.lock();
            if state.paused || state.stop {
                return Ok(false);
            }
            state.left.take().or_else(|| reader::take_group(shared, &mut state).map(|g| (g, 0)))
        };
        let Some((group, mut done)) = next else { return Ok(false) };
        let busy = reader::next_portion(shared, &group);
        if busy.is_some() && done < group.needs.len() {
            let engine = self.inner.planned_engine()?;
            match self.inner.read_portion(shared, &engine, &group, done) {
                Ok(rows) => done += rows,
                Err(error) => {
                    shared.failed(error.to_string());
                    done = group.needs.len();
                }
            }
        }
        if busy.is_some() && done < group.needs.len() {
            shared.state.lock().left = Some((group, done));
            return Ok(true);
        }
        let batches = group.batches_read(group.needs.len());
        shared.counters.group_batches.fetch_add(batches, Ordering::Relaxed);
        shared.set_filled(group.last());
        Ok(true)
    }
}

fn take_task(plan: &Plan, shared: &Shared) -> Option<Task> {
    let mut state = shared.state.lock();
    if state.stop { None } else { plan.take_task(&mut state) }
}
