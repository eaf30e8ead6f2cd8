//! Callers that wait for the window do its work themselves, as far as nobody is at it.
//!
//! They have a core and nothing else to do. The threads may have none: they have what time others
//! leave.

use super::super::Inner;
use super::reader::{is_read, next_group, next_portion, read_one};
use super::starving::Watch;
use super::tasks::Who;
use super::{Busy, Shared, State};
use crate::error::ErrorKind;
use crate::metrics::Timed;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Inner {
    /// Waits until a batch is there, at most so long, and helps meanwhile. False when it is not
    /// there then. True also where there is nobody to wait for: verbs read what is missing.
    pub(super) fn wait_for_batch(
        &self,
        shared: &Shared,
        mut state: MutexGuard<'_, State>,
        number: u64,
        patience: Duration,
    ) -> bool {
        let begun = Instant::now();
        let mut watch = Watch::new();
        while !state.is_there(number) {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            if MutexGuard::unlocked(&mut state, || self.help(shared)) {
                continue;
            }
            // A thread that rests may have left its core in the middle of something.
            let waits = !state.is_there(number) && state.rest.left().is_none();
            if !waits || watch.wait(shared, &mut state, left) {
                break;
            }
        }
        true
    }

    /// Plans what is to be planned where batches are read in slices: callers do that as they go.
    pub(super) fn plan_slices(&self, shared: &Shared) {
        let plans = {
            let state = shared.state.lock();
            state.slices && (!state.idle || state.by_hand) && !state.stop
        };
        while plans && !self.is_taken() && self.help_to_plan(shared) {}
    }

    /// Does the next task of the planner, or reads the next portion of a group; false when there
    /// is nothing to do that nobody is at.
    fn help(&self, shared: &Shared) -> bool {
        // Nothing ends a wait for a lock: no patience, no signal.
        if self.is_taken() {
            return false;
        }
        let slices = shared.state.lock().slices;
        let helped = self.help_to_plan(shared)
            || !slices && self.help_to_read(shared)
            || self.help_to_read_ranges(shared);
        shared.counters.helped.fetch_add(u64::from(helped), Ordering::Relaxed);
        helped
    }

    /// Whether a verb has the store or a class to itself, maybe for long.
    fn is_taken(&self) -> bool {
        let engine = self.engine.try_read();
        engine.is_none_or(|engine| engine.classes.iter().any(|class| class.log.is_locked()))
    }

    fn help_to_plan(&self, shared: &Shared) -> bool {
        let Some(mut plan) = shared.plan.try_lock() else { return false };
        let Some(task) = plan.take_task(&mut shared.state.lock(), Who::Caller) else {
            return false;
        };
        let _busy = Busy(shared);
        let _guard = self.poison_on_panic();
        let _timed = Timed::new(&shared.counters.planning_ns);
        let ran = plan.run(task, shared, self);
        // First, for callers that wait until nobody is busy may need the plan.
        drop(plan);
        match ran {
            Ok(()) => true,
            Err(error) => {
                if error.kind() != ErrorKind::Closed {
                    shared.failed(error.to_string());
                }
                shared.state.lock().idle = true;
                false
            }
        }
    }

    pub(super) fn help_to_read(&self, shared: &Shared) -> bool {
        let next = {
            let mut state = shared.state.lock();
            // A caller that waits for a batch does not wait for a window that rests.
            if state.paused || state.stop { None } else { next_group(shared, &mut state) }
        };
        let Some((group, mut done)) = next else { return false };
        let busy = (done < group.needs.len()).then(|| next_portion(shared, &group)).flatten();
        let wanted = busy.is_some();
        if wanted {
            let _guard = self.poison_on_panic();
            match read_one(self, shared, &group, done) {
                Ok(rows) => done += rows,
                Err(error) => {
                    shared.failed(error.to_string());
                    done = group.needs.len();
                }
            }
        }
        let more = wanted && done < group.needs.len();
        if !more {
            is_read(shared, &group);
        }
        let mut state = shared.state.lock();
        state.reading = false;
        if more {
            state.left = Some((group, done));
        }
        drop(state);
        shared.reads.notify_one();
        shared.progress.notify_all();
        true
    }
}
