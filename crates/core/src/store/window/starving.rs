//! Whether callers wait for threads that have no core.
//!
//! The window's threads have what time others leave. A caller that waits for them leaves its core,
//! so within one program they get on; beside programs that take all cores they do not, and who
//! waited for them would stand still with work that takes milliseconds.

use super::{Shared, State};
use crate::idle::{Turns, process_ran, thread_number};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// A program that had this part of all cores, in parts of it, has left its own threads no core.
const OWN_SHARE: (u32, u32) = (3, 4);
/// How long a caller waits before it looks, twice in the 50 ms that callers from Python wait.
const PATIENCE: Duration = Duration::from_millis(15);
/// Once callers have waited so long for threads that other programs starved, others take over. What
/// the program itself computes on all cores does not count: threads that compete with that slow it
/// down, and it ends.
const STARVED_MAX: Duration = Duration::from_secs(5);
/// What was longer ago counts no more.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// How long callers have waited for threads that other programs starved.
#[derive(Debug, Default)]
pub(super) struct Starved {
    pub(super) waited: Duration,
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
    /// The last look. There is none in the first wait, which mostly is the only one.
    before: Option<Look>,
}

/// What the threads have had so far.
#[derive(Debug)]
struct Look {
    at: Instant,
    process_ran: Duration,
    threads: Vec<(u32, Turns)>,
}

impl Look {
    fn at(shared: &Shared) -> Self {
        let threads = shared.threads.lock().clone();
        let turns = threads.iter().filter_map(|thread| Some((*thread, Turns::of(*thread)?)));
        Self { threads: turns.collect(), process_ran: process_ran(), at: Instant::now() }
    }

    /// Whether a thread has had no core since.
    fn starved_since(&self, before: &Self) -> bool {
        self.threads.iter().any(|(thread, turns)| {
            let mut known = before.threads.iter().filter(|(known, _)| known == thread);
            let passed = self.at - before.at;
            known.next().is_some_and(|(_, before)| turns.starved_since(before, passed))
        })
    }

    /// Whether the program itself had the cores since.
    fn had_cores_since(&self, before: &Self) -> bool {
        let cores = available_parallelism().map_or(1, |cores| cores.get() as u32);
        let (part, of) = OWN_SHARE;
        let ran = self.process_ran.saturating_sub(before.process_ran);
        of * ran >= part * cores * (self.at - before.at)
    }
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
        let last = self.before.as_ref().map_or(self.begun, |before| before.at);
        if last.elapsed() < PATIENCE {
            return false;
        }
        let now = MutexGuard::unlocked(state, || Look::at(shared));
        let before = self.before.take().filter(|before| now.starved_since(before));
        if let Some(before) = &before {
            shared.counters.starved.fetch_add(1, Ordering::Relaxed);
            if !now.had_cores_since(before) {
                state.starved.add(self.begun.elapsed());
            }
        }
        self.before = Some(now);
        before.is_some()
    }
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
