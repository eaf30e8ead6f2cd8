//! Many seeds, side by side, until the time is over, the seeds are, or one has failed.

use crate::faults::Fault;
use crate::plan::Limits;
use crate::report::{Counts, Event};
use crate::run::{Failure, run};
use embedrock_core::activation::{Branch, count};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// From so many seeds on every fault, event and branch must have come.
pub const SEEDS_FOR_ACTIVATION: u64 = 200;
/// How often progress is told.
const TELL: Duration = Duration::from_millis(200);

/// What to run.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The first seed; the others follow it.
    pub first: u64,
    /// How many; `None` is as many as the time allows.
    pub seeds: Option<u64>,
    /// How long; `None` is as long as the seeds take.
    pub time: Option<Duration>,
    /// What lives may do.
    pub limits: Limits,
    /// Seeds that run at a time, each on a thread of its own.
    pub jobs: usize,
}

/// How far a soak is.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// What was counted so far.
    pub counts: &'a Counts,
    /// How long it has run.
    pub elapsed: Duration,
}

/// What a soak has found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What lives have counted.
    pub counts: Counts,
    /// How often each rare branch of the engine was taken.
    pub branches: Vec<(&'static str, u64)>,
    /// Faults, events and branches that never came, though there were seeds enough.
    pub dormant: Vec<&'static str>,
    /// Seeds that failed, the lowest first.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub elapsed: Duration,
    /// It was ended from outside.
    pub stopped: bool,
}

impl Outcome {
    /// True when nothing was found and everything came.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty() && self.dormant.is_empty()
    }
}

#[derive(Default)]
struct Shared {
    counts: Counts,
    failures: Vec<Failure>,
    living: usize,
}

impl Soak {
    /// Runs until the end, and says how it went. `tell` is called now and then, and ends the run by
    /// false.
    pub fn run(&self, tell: &mut dyn FnMut(&Progress<'_>) -> bool) -> Outcome {
        embedrock_core::keep_freed();
        let begin = Instant::now();
        let before: Vec<u64> = Branch::ALL.iter().map(|branch| count(*branch)).collect();
        let jobs = self.jobs.max(1);
        let shared = Mutex::new(Shared { living: jobs, ..Shared::default() });
        let (changed, stop, next) = (Condvar::new(), AtomicBool::new(false), AtomicU64::new(0));
        let mut stopped = false;
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    self.work(&shared, &stop, &next, begin);
                    lock(&shared).living -= 1;
                    changed.notify_all();
                });
            }
            let mut guard = lock(&shared);
            while guard.living > 0 {
                guard = changed.wait_timeout(guard, TELL).unwrap_or_else(PoisonError::into_inner).0;
                let counts = guard.counts.clone();
                drop(guard);
                if !tell(&Progress { counts: &counts, elapsed: begin.elapsed() }) {
                    stopped = true;
                    stop.store(true, Ordering::Relaxed);
                }
                guard = lock(&shared);
            }
        });
        let Shared { counts, mut failures, .. } =
            shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        failures.sort_by_key(|failure| failure.seed);
        let branches: Vec<(&'static str, u64)> = Branch::ALL
            .iter()
            .zip(before)
            .map(|(branch, before)| (branch.name(), count(*branch) - before))
            .collect();
        let dormant = self.dormant(&counts, &branches);
        Outcome { counts, branches, dormant, failures, elapsed: begin.elapsed(), stopped }
    }

    fn work(&self, shared: &Mutex<Shared>, stop: &AtomicBool, next: &AtomicU64, begin: Instant) {
        while !stop.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let over = self.seeds.is_some_and(|seeds| n >= seeds)
                || self.time.is_some_and(|time| begin.elapsed() >= time);
            if over {
                return;
            }
            let mut counts = Counts::default();
            let lived = run(self.first.wrapping_add(n), &self.limits, &mut counts);
            let mut shared = lock(shared);
            shared.counts.add(&counts);
            if let Err(failure) = lived {
                shared.failures.push(*failure);
                stop.store(true, Ordering::Relaxed);
            }
        }
    }

    /// What should have come by now and has not, where lives do everything.
    fn dormant(&self, counts: &Counts, branches: &[(&'static str, u64)]) -> Vec<&'static str> {
        if counts.seeds < SEEDS_FOR_ACTIVATION || !self.limits.allow_all() {
            return Vec::new();
        }
        let faults = Fault::ALL.iter().map(|fault| (fault.name(), counts.faults[*fault as usize]));
        let events = Event::ALL.iter().map(|event| (event.name(), counts.events[*event as usize]));
        let all = faults.chain(events).chain(branches.iter().copied());
        all.filter(|(_, times)| *times == 0).map(|(name, _)| name).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
