//! Whether callers wait for threads that have no core.
//!
//! The window's threads have what time others leave. A caller that waits for them leaves its core,
//! so within one program they get on; beside programs that take all cores they do not, and who
//! waited for them would stand still with work that takes milliseconds.

use super::{Shared, State};
use crate::idle::{Turns, thread_number};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a caller waits before it looks, twice in the 50 ms that callers from Python wait.
const PATIENCE: Duration = Duration::from_millis(15);
/// Once callers have waited so long for starved threads, others take over. Not sooner: a thread
/// that reads for a pipeline waits, too, while the program's own threads compute on all cores.
const STARVED_MAX: Duration = Duration::from_secs(5);
/// What was longer ago counts no more.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// How long callers have waited for starved threads.
#[derive(Debug, Default)]
pub(super) struct Starved {
    waited: Duration,
    last: Option<Instant>,
}

impl Starved {
    fn add(&mut self, waited: Duration) {
        if self.last.is_some_and(|last| last.elapsed() > FORGOTTEN) {
            self.waited = Duration::ZERO;
        }
        self.waited += waited;
        self.last = Some(Instant::now());
    }

    /// Whether it was too long.
    pub(super) fn is_enough(&self) -> bool {
        self.waited >= STARVED_MAX
    }
}

/// A caller that waits for the window.
#[derive(Debug)]
pub(super) struct Watch {
    begun: Instant,
    /// The last look at the threads, and when. There is none in the first wait, which mostly is the
    /// only one.
    before: Option<(Instant, Vec<(u32, Turns)>)>,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), before: None }
    }

    /// Waits for progress, at most so long; true when that is in vain, as a thread has no core.
    pub(super) fn wait(
        &mut self,
        shared: &Shared,
        state: &mut MutexGuard<'_, State>,
        most: Duration,
    ) -> bool {
        shared.progress.wait_for(state, most.min(PATIENCE));
        let last = self.before.as_ref().map_or(self.begun, |(at, _)| *at);
        let passed = last.elapsed();
        if passed < PATIENCE {
            return false;
        }
        let now = MutexGuard::unlocked(state, || look(shared));
        let starved = now.iter().any(|(thread, turns)| {
            let known = self.before.iter().flat_map(|(_, threads)| threads);
            let mut known = known.filter(|(known, _)| known == thread);
            known.next().is_some_and(|(_, before)| turns.starved_since(before, passed))
        });
        self.before = Some((Instant::now(), now));
        if starved {
            shared.counters.starved.fetch_add(1, Ordering::Relaxed);
            state.starved.add(self.begun.elapsed());
        }
        starved
    }
}

fn look(shared: &Shared) -> Vec<(u32, Turns)> {
    let threads = shared.threads.lock().clone();
    threads.iter().filter_map(|thread| Some((*thread, Turns::of(*thread)?))).collect()
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
