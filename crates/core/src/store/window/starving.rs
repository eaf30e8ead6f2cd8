//! Whether callers wait for threads that have no core.
//!
//! The window's threads have what time others leave. A caller that waits for them leaves its core,
//! so within one program they get on; beside programs that take all cores they do not, and who
//! waited for them would stand still with work that takes milliseconds.

use super::{Shared, State};
use crate::idle::{core_wait_ns, thread_number};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a caller waits before it looks.
const PATIENCE: Duration = Duration::from_millis(20);
/// A thread that wanted a core for this part of the time, in percent, and had none is starved.
const STARVED_PERCENT: u128 = 80;
/// Once callers have waited so long for starved threads, others take over.
pub(super) const STARVED_MAX: Duration = Duration::from_millis(250);

/// A caller that waits for the window.
#[derive(Debug, Default)]
pub(super) struct Watch {
    begun: Option<Instant>,
    /// What each thread had waited for a core by then; not looked at in the first wait, which
    /// mostly is the only one.
    before: Option<Vec<(u32, u64)>>,
}

impl Watch {
    /// Waits for progress, at most so long; true when that is in vain, as a thread has no core.
    pub(super) fn wait(
        &mut self,
        shared: &Shared,
        state: &mut MutexGuard<'_, State>,
        most: Duration,
    ) -> bool {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        shared.progress.wait_for(state, most.min(PATIENCE));
        let passed = begun.elapsed();
        if passed < PATIENCE {
            return false;
        }
        let now = core_waits(shared);
        let starved = now.iter().any(|(thread, waited)| {
            let known = self.before.iter().flatten().find(|(known, _)| known == thread);
            let waited = known.map_or(0, |(_, before)| waited - before);
            u128::from(waited) * 100 >= passed.as_nanos() * STARVED_PERCENT
        });
        (self.begun, self.before) = (Some(Instant::now()), Some(now));
        if starved {
            shared.counters.starved.fetch_add(1, Ordering::Relaxed);
            state.starved += passed;
        }
        starved
    }
}

/// What each thread of the window has waited for a core.
fn core_waits(shared: &Shared) -> Vec<(u32, u64)> {
    let waited = |thread: &u32| Some((*thread, core_wait_ns(*thread)?));
    shared.threads.lock().iter().filter_map(waited).collect()
}

/// The calling thread is one of the window's until this is dropped.
pub(super) struct Living<'a>(&'a Shared, Option<u32>);

impl Shared {
    pub(super) fn living(&self) -> Living<'_> {
        let thread = thread_number();
        self.threads.lock().extend(thread);
        Living(self, thread)
    }
}

impl Drop for Living<'_> {
    fn drop(&mut self) {
        self.0.threads.lock().retain(|thread| Some(*thread) != self.1);
    }
}
