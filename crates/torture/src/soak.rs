//! Many seeds, side by side, until the time is over, the seeds are, or one has failed.

use crate::faults::Fault;
use crate::plan::Limits;
use crate::report::{Counts, Event};
use crate::run::{Failure, run};
use embedrock_core::activation::{Branch, count};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// From so many seeds on every fault, event and branch must have come.
pub const SEEDS_FOR_ACTIVATION: u64 = 2000;
/// A life of three hundred operations takes less than a second. One that takes so long waits for
/// something that never comes; longer lives have more time.
const HANGS: Duration = Duration::from_secs(90);
const OPERATIONS_PER_HANG: u64 = 300;
/// The interval of progress reports.
const TELL: Duration = Duration::from_millis(200);

/// The lives to run.
#[derive(Clone, Debug)]
pub struct Soak {
    /// The first seed; the others follow it.
    pub first: u64,
    /// Number of seeds; `None` is as many as the time allows.
    pub seeds: Option<u64>,
    /// Time of the run; `None` is as long as the seeds take.
    pub time: Option<Duration>,
    /// The limits of lives.
    pub limits: Limits,
    /// Seeds that run at a time, each on a thread of its own.
    pub jobs: usize,
    /// Seeds that may fail before the run ends.
    pub failures_max: usize,
}

/// The progress of a soak.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// The counts so far.
    pub counts: &'a Counts,
    /// Time it has run.
    pub elapsed: Duration,
}

/// The result of a soak.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The counts of all lives.
    pub counts: Counts,
    /// Number of times each rare branch of the engine was taken.
    pub branches: Vec<(&'static str, u64)>,
    /// Faults, events and branches that never came, though there were seeds enough.
    pub dormant: Vec<&'static str>,
    /// Seeds that failed, the lowest first.
    pub failures: Vec<Failure>,
    /// Time it took.
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

/// The state that the threads of a run share.
struct Shared {
    soak: Soak,
    begin: Instant,
    stop: AtomicBool,
    next: AtomicU64,
    found: Mutex<Found>,
    changed: Condvar,
}

#[derive(Default)]
struct Found {
    counts: Counts,
    failures: Vec<Failure>,
    /// Lives that are lived, and since when.
    living: BTreeMap<u64, Instant>,
    threads: usize,
}

impl Soak {
    /// Runs until the end, and says how it went. `tell` is called now and then, and ends the run by
    /// false. A life that hangs is a failure; its thread is left behind.
    pub fn run(&self, tell: &mut dyn FnMut(&Progress<'_>) -> bool) -> Outcome {
        let begin = Instant::now();
        let before: Vec<u64> = Branch::ALL.iter().map(|branch| count(*branch)).collect();
        let jobs = self.jobs.max(1);
        let shared = Arc::new(Shared {
            soak: self.clone(),
            begin,
            stop: AtomicBool::new(false),
            next: AtomicU64::new(0),
            found: Mutex::new(Found { threads: jobs, ..Found::default() }),
            changed: Condvar::new(),
        });
        for _ in 0..jobs {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                shared.work();
                shared.found().threads -= 1;
                shared.changed.notify_all();
            });
        }
        let more = self.limits.operations.div_ceil(OPERATIONS_PER_HANG).clamp(1, 1 << 20);
        let hangs = HANGS * more as u32;
        let mut stopped = false;
        let mut found = shared.found();
        while found.threads > 0 {
            let waited = shared.changed.wait_timeout(found, TELL);
            found = waited.unwrap_or_else(PoisonError::into_inner).0;
            let hang = found.living.iter().find(|(_, since)| since.elapsed() > hangs);
            if let Some(seed) = hang.map(|(seed, _)| *seed) {
                found.failures.push(Failure::hang(seed, &self.limits));
                shared.stop.store(true, Ordering::Relaxed);
                break;
            }
            let counts = found.counts.clone();
            drop(found);
            if !tell(&Progress { counts: &counts, elapsed: begin.elapsed() }) {
                stopped = true;
                shared.stop.store(true, Ordering::Relaxed);
            }
            found = shared.found();
        }
        let (counts, mut failures) = (found.counts.clone(), found.failures.clone());
        drop(found);
        failures.sort_by_key(|failure| failure.seed);
        let branches: Vec<(&'static str, u64)> = Branch::ALL
            .iter()
            .zip(before)
            .map(|(branch, before)| (branch.name(), count(*branch) - before))
            .collect();
        let dormant = self.dormant(&counts, &branches);
        Outcome { counts, branches, dormant, failures, elapsed: begin.elapsed(), stopped }
    }

    /// Counts that should have come by now and have not, if lives do everything.
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

impl Shared {
    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One life after the other.
    fn work(&self) {
        let soak = &self.soak;
        while !self.stop.load(Ordering::Relaxed) {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            let over = soak.seeds.is_some_and(|seeds| n >= seeds)
                || soak.time.is_some_and(|time| self.begin.elapsed() >= time);
            if over {
                return;
            }
            let seed = soak.first.wrapping_add(n);
            self.found().living.insert(seed, Instant::now());
            let mut counts = Counts::default();
            let lived = run(seed, &soak.limits, &mut counts);
            let mut found = self.found();
            found.living.remove(&seed);
            found.counts.add(&counts);
            if let Err(failure) = lived {
                found.failures.push(*failure);
                if found.failures.len() >= soak.failures_max {
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}
