//! Whether callers wait for threads that have no core.
//!
//! The window's threads have the time that others leave. A caller that waits for them leaves its
//! core, so within one program they get on; beside programs that take all cores they do not, and a
//! caller that waited for them would stand still with work that takes milliseconds.

use super::{Shared, State};
use crate::idle::{Turns, thread_number};
use crate::store::events::log_starved;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time that a caller waits before it looks: longer than PyTorch's idle threads spin, which is ten
/// milliseconds. Twice in the 50 ms that callers from Python wait.
const PATIENCE: Duration = Duration::from_millis(15);
/// Shortest and longest rest of the threads after they had no core; it doubles if that recurs soon.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(16));

/// Until when the threads rest.
#[derive(Debug, Default)]
pub(super) struct Rest {
    until: Option<Instant>,
    last: Duration,
}

impl Rest {
    /// The threads had no core: they rest, twice as long where they had none soon after the last
    /// rest either.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        let again = self.until.is_some_and(|until| now < until + self.last);
        let (least, most) = REST;
        self.last = if again { (2 * self.last).min(most) } else { least };
        self.until = Some(now + self.last);
    }

    /// Remaining time of the rest.
    pub(super) fn left(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// A caller that waits for the window.
#[derive(Debug)]
pub(super) struct Watch {
    begun: Instant,
    /// The last look. There is none in the first wait, which mostly is the only one.
    before: Option<Look>,
}

/// Turns of the threads on a core so far.
#[derive(Debug)]
struct Look {
    at: Instant,
    threads: Vec<(u32, Turns)>,
}

impl Look {
    fn at(shared: &Shared) -> Self {
        let threads = shared.threads.lock().clone();
        let turns = threads.iter().filter_map(|thread| Some((*thread, Turns::of(*thread)?)));
        Self { threads: turns.collect(), at: Instant::now() }
    }

    /// Whether a thread has had no core since.
    fn starved_since(&self, before: &Self) -> bool {
        self.threads.iter().any(|(thread, turns)| {
            let mut known = before.threads.iter().filter(|(known, _)| known == thread);
            let passed = self.at - before.at;
            known.next().is_some_and(|(_, before)| turns.starved_since(before, passed))
        })
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
        let starved = self.before.take().is_some_and(|before| now.starved_since(&before));
        if starved {
            shared.counters.starved.fetch_add(1, Ordering::Relaxed);
            state.rest.begin();
            if let Some(left_out) = shared.rests.pass() {
                MutexGuard::unlocked(state, || log_starved(&shared.path, left_out));
            }
        }
        self.before = Some(now);
        starved
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_rest_longer_where_they_had_no_core_soon_after_the_last_rest() {
        let (least, most) = REST;
        let mut rest = Rest::default();
        assert!(rest.left().is_none());
        let mut expected = least;
        for _ in 0..10 {
            rest.begin();
            assert_eq!(rest.last, expected);
            assert!(rest.left().is_some_and(|left| left <= expected));
            // As if it were over.
            rest.until = Some(Instant::now());
            assert!(rest.left().is_none());
            expected = (2 * expected).min(most);
        }
        rest.until = Instant::now().checked_sub(2 * most);
        rest.begin();
        assert_eq!(rest.last, least);
    }
}
