//! The look-ahead window: keys of coming batches, whose rows are read before they are used and stay
//! until their last use.
//!
//! Callers announce batches ([`Store::announce`]), say when one is about to be read
//! ([`Store::begin`]) and when its updates are applied ([`Store::finish`]). Two threads of the
//! store do the rest. One (`planner.rs`) notes every announced use (`uses.rs`), tells the cache
//! when rows are used next, and forms groups of batches: the rows that they need and that are not
//! resident (`group.rs`). The other (`reader.rs`) reads them, in the order of their pages, while
//! the group before is used. Rows are updated in place while they wait, so a batch always sees the
//! newest.
//!
//! Announcing changes no result: a row that was not read ahead, or had to leave again, is read when
//! it is used. The threads move rows by the same path as verbs do, under the same locks.
//!
//! The threads have the time that others leave. A caller that waits for them helps: it does the
//! rest of their work itself, on its core (`help.rs`). If others leave the threads no core, they
//! rest for a while and callers do all of it, so that a program is never slower for them.
//!
//! If a cache holds the rows of few batches there are no groups (`slices.rs`): callers note uses as
//! they announce, begin and finish, and the threads read slices of the batch behind the one at
//! hand.
//!
//! Memory: at most `window_bytes`, within the budget, taken from the cache as the window grows.
//!
//! Lock order: the window's own lock is taken last and never held while another is taken.
//! *Source*: RecDB's EV buffer (section 4.2), MLKV's Lookahead (III-C), DeepRec's prefetch list.

#[cfg(any(test, feature = "testing"))]
mod by_hand;
mod calls;
mod counters;
mod group;
mod help;
mod planner;
mod ranges;
mod reader;
mod scatter;
mod schedule;
mod slices;
mod starving;
mod tasks;
mod uses;

use super::events::log_read_ahead_failed;
use super::{Engine, Guarded, Inner};
use crate::config::{ScheduledBatch, TableId};
use crate::error::{Result, bail};
use crate::idle::give_way;
use crate::logs::Limit;
use counters::Counters;
pub use counters::WindowStats;
use group::Group;
use parking_lot::{Condvar, Mutex, MutexGuard};
use planner::Plan;
#[cfg(test)]
pub(super) const RANGES: u64 = ranges::FIRST;
use ranges::Ranges;
use scatter::Scatter;
use starving::Rest;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The parts of the budget and of the caches' bytes that a window takes at most, unless the options
/// say.
const BUDGET_PER_WINDOW: u64 = 4;
const CACHE_PER_WINDOW: u64 = 3;
/// The part that it takes at most whatever they say: beside more, caches have no rows to keep.
const BUDGET_PER_WINDOW_MIN: u64 = 2;
/// The part of a window that batches take whose keys were not looked at yet.
const WINDOW_PER_QUEUE: u64 = 16;

/// Batches of [`Store::lookahead`] behind the newest one that may still be under way.
const UNDER_WAY: u64 = 64;

/// A batch that was announced and not looked at yet.
#[derive(Debug)]
struct Announced {
    number: u64,
    /// Each table with its keys, as they were announced, and how many stretches later their next
    /// uses are, plus 1; nothing of these without a schedule.
    parts: Vec<(TableId, Vec<u64>, Vec<u16>)>,
    /// Its place in the schedule.
    scheduled: Option<ScheduledBatch>,
}

impl Announced {
    fn bytes(&self) -> u64 {
        let keys: usize = self.parts.iter().map(|(_, keys, _)| keys.capacity()).sum();
        Self::bytes_of(keys, self.parts.len(), self.scheduled)
    }

    fn bytes_of(keys: usize, tables: usize, scheduled: Option<ScheduledBatch>) -> u64 {
        let each = if scheduled.is_some() { 10 } else { 8 };
        (each * keys + 88 * tables) as u64
    }
}

/// A batch that [`Store::lookahead`] announced: the get of the same keys begins it.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    number: u64,
    table: TableId,
    fingerprint: u64,
}

/// State that callers and the threads share.
#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Announced>,
    queue_bytes: u64,
    /// Number of the last batch that was announced, begun, finished.
    announced: u64,
    begun: u64,
    finished: u64,
    /// Number of the last batch whose rows were read ahead.
    filled: u64,
    /// Batches are read in slices. Callers wait for the slice that is being read, and no more.
    slices: bool,
    /// The next group to read.
    formed: Option<Group>,
    /// A group that its reader has left, and the number of its rows that are done.
    left: Option<(Group, usize)>,
    /// Somebody reads a group, and the first batch of it.
    reading: bool,
    reads_first: u64,
    /// Verbs have left upkeep to the reader.
    upkeep: bool,
    /// Until when the threads rest.
    rest: Rest,
    /// All batches up to this one are to be forgotten.
    cleared: u64,
    /// The window's memory is to be given back.
    release: bool,
    awaited: VecDeque<Awaited>,
    ranges: Ranges,
    scatter: Scatter,
    /// When a batch was last begun, and how long one lasts at least, lately.
    last_begin: Option<Instant>,
    batch_time: Option<Duration>,
    /// The batch that each table's last get began.
    current: Vec<(TableId, u64)>,
    /// Threads that are doing something.
    busy: u32,
    /// The threads are to do nothing for a while.
    paused: bool,
    /// A thread has ended, or has not begun.
    idle: bool,
    /// There are to be no threads: what they would do is done by hand.
    by_hand: bool,
    stop: bool,
    /// Message of the last read ahead that failed.
    error: Option<String>,
}

/// See [`State`].
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// State of the planner, for the thread that plans. Taken before `state`.
    plan: Mutex<Plan>,
    /// The threads that live, as the system numbers them.
    threads: Mutex<Vec<u32>>,
    /// Something to do for the planner, and for the reader.
    work: Condvar,
    reads: Condvar,
    /// Something that callers wait for.
    progress: Condvar,
    /// Whether [`Store::lookahead`] was used and gets have to look what they are.
    awaits: AtomicBool,
    counters: Counters,
    /// The store's, for the log, and limits of what there may be to log often.
    path: PathBuf,
    failures: Limit,
    rests: Limit,
}

/// The window of a store.
pub(super) struct Window {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Window {
    pub(super) fn new(path: &Path) -> Self {
        let state = State { idle: true, ..State::default() };
        let shared = Shared {
            state: Mutex::new(state),
            plan: Mutex::default(),
            threads: Mutex::default(),
            work: Condvar::new(),
            reads: Condvar::new(),
            progress: Condvar::new(),
            awaits: AtomicBool::new(false),
            counters: Counters::default(),
            path: path.to_path_buf(),
            failures: Limit::default(),
            rests: Limit::default(),
        };
        Self { shared: Arc::new(shared), threads: Mutex::default() }
    }

    /// Rows that were read ahead since the store was opened.
    pub(super) fn rows_loaded(&self) -> u64 {
        self.shared.counters.loaded.load(Ordering::Relaxed)
    }

    /// Least time that the batches last that were read ahead and wait; `None` where the window is
    /// not in use.
    pub(super) fn time_ahead(&self) -> Option<Duration> {
        self.shared.state.lock().time_ahead()
    }

    /// Leaves upkeep to the reader, which does it between groups; false where the window is not in
    /// use, no thread reads, or it rests.
    pub(super) fn takes_upkeep(&self) -> bool {
        let mut state = self.shared.state.lock();
        let has_reader = !state.idle && !state.by_hand;
        if !has_reader || !state.is_in_use() || state.rest.left().is_some() {
            return false;
        }
        state.upkeep = true;
        drop(state);
        self.shared.reads.notify_all();
        true
    }

    /// Whether nobody has to wait for a range.
    #[cfg(test)]
    pub(super) fn has_range(&self, number: u64) -> bool {
        self.shared.state.lock().ranges.is_there(number)
    }

    /// Whether there are ranges to let go, or a thread may be at it.
    #[cfg(test)]
    pub(super) fn has_finished_ranges(&self) -> bool {
        let state = self.shared.state.lock();
        state.busy > 0 || matches!(state.ranges.next_task(), Some((_, false)))
    }

    /// Whether the window is there, or a thread of it.
    #[cfg(test)]
    pub(super) fn lives(&self) -> impl Fn() -> bool + use<> {
        let shared = Arc::downgrade(&self.shared);
        move || shared.strong_count() > 0
    }

    /// Ends the threads. Waits for them, unless one is the caller.
    pub(super) fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.shared.wake();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                // A panic in a thread has poisoned the store and is reported by the next verb.
                let _ = thread.join();
            }
        }
        // A planner that drops the store itself holds it, and drops it with the window.
        if let Some(mut plan) = self.shared.plan.try_lock() {
            *plan = Plan::default();
        }
        let mut state = self.shared.state.lock();
        (state.queue, state.queue_bytes) = (VecDeque::new(), 0);
        (state.formed, state.left) = (None, None);
        state.ranges.clear();
    }

    /// Starts the threads where there are none.
    fn start(&self, store: &Arc<Guarded>) -> Result<()> {
        let mut threads = self.threads.lock();
        let mut state = self.shared.state.lock();
        if state.stop || state.by_hand || !threads.is_empty() {
            return Ok(());
        }
        type Run = fn(&Shared, &Weak<Guarded>);
        for (name, run) in
            [("embedrock-plan", planner::run as Run), ("embedrock-read", reader::run as Run)]
        {
            let (shared, store) = (self.shared.clone(), Arc::downgrade(store));
            let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                give_way();
                let _living = shared.living();
                let _ended = Ended(&shared);
                run(&shared, &store);
            });
            match started {
                Ok(handle) => threads.push(handle),
                Err(error) => {
                    state.idle = true;
                    bail!(Io, "a thread of the look-ahead window cannot be started: {error}");
                }
            }
        }
        state.idle = false;
        drop(state);
        self.shared.wake();
        Ok(())
    }
}

impl Shared {
    fn wake(&self) {
        self.work.notify_all();
        self.reads.notify_all();
    }

    /// Callers need not wait for batches up to this one any more.
    fn set_filled(&self, number: u64) {
        let mut state = self.state.lock();
        state.filled = state.filled.max(number);
        drop(state);
        self.progress.notify_all();
    }

    /// A group was not read to its end; verbs read what it lacks and report their errors.
    fn failed(&self, error: String) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        if let Some(left_out) = self.failures.pass() {
            log_read_ahead_failed(&self.path, &error, left_out);
        }
        self.state.lock().error = Some(error);
    }
}

impl State {
    /// Whether the queue, of at most so many bytes, takes another batch. An empty one always does.
    fn has_room(&self, bytes: u64, most: u64) -> bool {
        self.queue.is_empty() || self.queue_bytes + bytes <= most
    }

    /// Callers begin with this batch.
    fn begin(&mut self, number: u64, now: Instant) {
        if number <= self.begun {
            return;
        }
        if let Some(last) = self.last_begin.replace(now) {
            let each = (now - last) / (number - self.begun).min(u64::from(u32::MAX)) as u32;
            // A rest of the callers is no batch that takes long.
            self.batch_time = Some(match self.batch_time {
                Some(time) => each.min(time + time / 8),
                None => each,
            });
        }
        self.begun = number;
    }

    /// Whether batches are to come, and somebody reads ahead of them.
    fn is_in_use(&self) -> bool {
        let is_off = self.stop || self.paused || (self.idle && !self.by_hand);
        !is_off && self.announced > self.begun
    }

    /// See [`Window::time_ahead`].
    fn time_ahead(&self) -> Option<Duration> {
        if !self.is_in_use() {
            return None;
        }
        let batches = match self.slices {
            false => self.filled.saturating_sub(self.begun),
            // The next one at most is there, once its slices are.
            true => u64::from(!self.reading && self.formed.is_none() && self.left.is_none()),
        };
        let each = self.batch_time.unwrap_or_default();
        Some(each.saturating_mul(batches.min(u64::from(u32::MAX)) as u32))
    }

    /// Callers wait for what is being read, unless nobody reads.
    fn is_there(&self, number: u64) -> bool {
        let is_filled = match self.slices {
            _ if number > ranges::FIRST => self.ranges.is_there(number),
            false => self.filled >= number,
            // Rows that are not planned yet, while the planner is at it, cost less than a wait.
            true => !(self.reading && self.reads_first <= number),
        };
        is_filled || self.idle || self.paused
    }
}

/// A thread is doing something until this is dropped.
struct Busy<'a>(&'a Shared);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy -= 1;
        self.0.progress.notify_all();
    }
}

/// Ends the waiting of callers when a thread ends, whatever ended it.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.idle = true;
        drop(state);
        self.0.progress.notify_all();
    }
}

impl Inner {
    /// The window of a store that is open, and its state.
    fn open_window(&self) -> Result<(&Shared, MutexGuard<'_, State>)> {
        self.check_call()?;
        let shared = &*self.window.shared;
        let state = shared.state.lock();
        if state.stop {
            return Err(self.closed());
        }
        Ok((shared, state))
    }

    /// The most bytes that the window may take.
    fn window_most_bytes(&self, engine: &Engine) -> u64 {
        // If an index takes most of the budget, a share of the whole leaves caches little.
        let caches: u64 = engine.classes.iter().map(|class| class.cache().memory_bytes()).sum();
        let rows = caches + engine.window_bytes.load(Ordering::Relaxed);
        let usual = (engine.budget_bytes / BUDGET_PER_WINDOW).min(rows / CACHE_PER_WINDOW);
        let most = engine.budget_bytes / BUDGET_PER_WINDOW_MIN;
        self.options.window_bytes.unwrap_or(usual).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_that_were_read_ahead_last_as_long_as_those_before_did() {
        let mut state = State { by_hand: true, ..State::default() };
        assert_eq!(state.time_ahead(), None, "nothing is announced");
        (state.announced, state.filled) = (100, 10);
        assert_eq!(state.time_ahead(), Some(Duration::ZERO), "nobody knows how long one lasts");
        let (now, ms) = (Instant::now(), Duration::from_millis(1));
        state.begin(1, now);
        state.begin(2, now + 8 * ms);
        assert_eq!(state.time_ahead(), Some(8 * 8 * ms));
        state.begin(4, now + 16 * ms);
        assert_eq!(state.time_ahead(), Some(6 * 4 * ms));
        state.begin(5, now + 1000 * ms);
        assert_eq!(state.time_ahead(), Some(5 * (4 * ms + ms / 2)), "callers have rested");
        state.begin(11, now + 1001 * ms);
        assert_eq!(state.time_ahead(), Some(Duration::ZERO), "callers are ahead of the window");
        state.slices = true;
        assert_eq!(state.time_ahead(), state.batch_time, "the next one is there");
        state.reading = true;
        assert_eq!(state.time_ahead(), Some(Duration::ZERO));
        state.paused = true;
        assert_eq!(state.time_ahead(), None);
        (state.paused, state.announced) = (false, 11);
        assert_eq!(state.time_ahead(), None, "all are begun");
    }

    // A store whose batches were all begun left its merges to a thread that hardly gets a core.
    #[test]
    fn upkeep_is_left_to_the_reader_while_batches_are_to_come() {
        let window = Window::new(Path::new("store"));
        let takes = |change: fn(&mut State)| {
            change(&mut window.shared.state.lock());
            window.takes_upkeep()
        };
        assert!(!takes(|state| state.announced = 2), "no thread lives");
        assert!(takes(|state| state.idle = false));
        assert!(takes(|state| state.begun = 1));
        assert!(!takes(|state| state.begun = 2), "all are begun");
        assert!(takes(|state| state.announced = 3));
        assert!(!takes(|state| state.paused = true));
        assert!(!takes(|state| (state.paused, state.stop) = (false, true)));
    }
}
