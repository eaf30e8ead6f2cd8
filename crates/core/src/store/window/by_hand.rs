//! A window whose threads do nothing: a test does what they would do, task by task, on the thread
//! that runs the verbs, so that the same calls do the same.

use super::super::Store;
use super::planner::Plan;
use super::tasks::{Task, Who};
use super::{Busy, Shared};
use crate::error::Result;

impl Store {
    /// From here on the window's work is done by [`window_turn`](Self::window_turn) alone, and
    /// nobody waits for it. To be called before the first batch is announced.
    pub fn window_by_hand(&self) {
        self.inner.window.shared.state.lock().by_hand = true;
    }

    /// From here on the scheduler of upkeep puts off every other part that is not pressed, whatever
    /// the time: a run can be replayed.
    pub fn upkeep_by_turns(&self) {
        self.inner.scheduler.by_turns();
    }

    /// The window's threads rest for a second, as if others had taken their cores.
    pub fn rest_window(&self) {
        self.inner.window.shared.state.lock().rest.begin();
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
        Ok(inner.help_to_read(shared) || inner.help_to_read_ranges(shared))
    }
}

fn take_task(plan: &Plan, shared: &Shared) -> Option<Task> {
    let mut state = shared.state.lock();
    if state.stop { None } else { plan.take_task(&mut state, Who::Hand) }
}
