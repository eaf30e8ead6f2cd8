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
//! The threads have what time others leave. Who waits for them helps: it does what is left of their
//! work itself, and has its core for that (`help.rs`). Where others leave the threads no core, they
//! rest for a while and callers do all of it, so that a program is never slower for them.
//!
//! Where a cache holds the rows of few batches there are no groups (`slices.rs`): callers note uses
//! as they announce, begin and finish, and the threads read slices of the batch behind the one at
//! hand.
//!
//! Memory: at most `window_bytes`, within the budget, taken from the cache as the window grows.
//!
//! Lock order: the window's own lock is taken last and never held while another is taken.
//! *Source*: RecDB's EV buffer (section 4.2), MLKV's Lookahead (III-C), DeepRec's prefetch list.

#[cfg(any(test, feature = "testing"))]
mod by_hand;
mod counters;
mod group;
mod help;
mod planner;
mod reader;
mod slices;
mod starving;
mod uses;

use super::verbs::get_put::check_keys;
use super::{Engine, Guarded, Inner, Store};
use crate::cache::BatchNumber;
use crate::config::{LookaheadBatch, TableId};
use crate::distinct::Distinct;
use crate::error::{Result, bail};
use crate::hash::mix;
use crate::idle::give_way;
use crate::metrics::Timed;
use counters::Counters;
pub use counters::WindowStats;
use group::Group;
use parking_lot::{Condvar, Mutex, MutexGuard};
use planner::Plan;
use starving::Rest;
use std::collections::VecDeque;
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
    /// Each table with its keys, as they were announced.
    parts: Vec<(TableId, Vec<u64>)>,
}

impl Announced {
    fn bytes(&self) -> u64 {
        let keys: usize = self.parts.iter().map(|(_, keys)| keys.capacity()).sum();
        Self::bytes_of(keys, self.parts.len())
    }

    fn bytes_of(keys: usize, tables: usize) -> u64 {
        (8 * keys + 64 * tables) as u64
    }
}

/// A batch that [`Store::lookahead`] announced: the get of the same keys begins it.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    number: u64,
    table: TableId,
    fingerprint: u64,
}

/// What callers and the threads tell each other.
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
    /// A group that who read it has left, and how many of its rows are done.
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
    /// What the last read ahead that failed said.
    error: Option<String>,
}

/// See [`State`].
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// What the planner knows, for the one that works. Taken before `state`.
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
}

/// The window of a store.
pub(super) struct Window {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Window {
    pub(super) fn new() -> Self {
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
        };
        Self { shared: Arc::new(shared), threads: Mutex::default() }
    }

    /// Rows that were read ahead since the store was opened.
    pub(super) fn rows_loaded(&self) -> u64 {
        self.shared.counters.loaded.load(Ordering::Relaxed)
    }

    /// How long the batches last at least that were read ahead and wait; `None` where the window is
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
            false => self.filled >= number,
            // What is not planned yet, for the planner's thread is at it, costs less than a wait.
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

impl Store {
    /// Announces the keys of one coming batch, of all its tables. Returns the batch's number, 1
    /// for the first; `None` when the window is full, which changes once batches are finished.
    ///
    /// Batches are announced in the order in which they will be used. Their rows are read ahead and
    /// stay in memory until the batch is finished; rows that are used again by a later batch stay
    /// until that one is, as far as memory allows. Keys may occur several times. Results never
    /// change, only when they arrive; keys that are never written cost nothing.
    ///
    /// *Errors*: `KeyRange` for an id outside a dense table, `NotFound` for a table that is not
    /// there. *Blocking*: copies the keys; where a cache holds few batches, notes them too, for
    /// which caches may give up rows and write them.
    pub fn announce(&self, batch: &[LookaheadBatch<'_>]) -> Result<Option<u64>> {
        self.announce_one(batch, None)
    }

    fn announce_one(
        &self,
        batch: &[LookaheadBatch<'_>],
        table: Option<u64>,
    ) -> Result<Option<u64>> {
        let inner = &*self.inner;
        let engine = inner.planned_engine()?;
        let most = inner.window_most_bytes(&engine) / WINDOW_PER_QUEUE;
        inner.window.start(&self.inner)?;
        let shared = &*inner.window.shared;
        let keys: usize = batch.iter().map(|part| part.keys.len()).sum();
        // Who is refused asks again, so that it costs no look at the keys.
        let has_room =
            || shared.state.lock().has_room(Announced::bytes_of(keys, batch.len()), most);
        let mut engine = engine;
        if !has_room() {
            // Planning takes the lock again, which must not be held twice.
            drop(engine);
            inner.plan_slices(shared);
            if !has_room() {
                shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            engine = inner.planned_engine()?;
        }
        let mut to_read = Vec::with_capacity(batch.len());
        for part in batch {
            let table = inner.table_of(&engine, part.table)?;
            check_keys(table, part.keys)?;
            // Nothing of rows that never are in the cache is read ahead.
            if table.region.is_none() {
                to_read.push(part);
            }
        }
        drop(engine);
        let mut announced = Announced { number: 0, parts: Vec::with_capacity(batch.len()) };
        for part in to_read {
            match announced.parts.iter_mut().find(|(table, _)| *table == part.table) {
                Some((_, keys)) => keys.extend_from_slice(part.keys),
                None => announced.parts.push((part.table, part.keys.to_vec())),
            }
        }
        let mut state = shared.state.lock();
        if !state.has_room(announced.bytes(), most) {
            shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        state.announced += 1;
        let number = state.announced;
        state.queue_bytes += announced.bytes();
        state.queue.push_back(Announced { number, ..announced });
        if let (Some(fingerprint), [part]) = (table, batch) {
            state.awaited.push_back(Awaited { number, table: part.table, fingerprint });
            shared.awaits.store(true, Ordering::Relaxed);
        }
        drop(state);
        shared.counters.batches.fetch_add(1, Ordering::Relaxed);
        shared.counters.keys.fetch_add(keys as u64, Ordering::Relaxed);
        inner.metrics.announced.fetch_add(keys as u64, Ordering::Relaxed);
        inner.plan_slices(shared);
        shared.wake();
        Ok(Some(number))
    }

    /// Announces the keys of one coming get of a table. Blocks as `announce` does; changes no
    /// result.
    ///
    /// The get of these keys, in any order and however often each, begins the batch, and the next
    /// one finishes it. Announcements are made in the order of the gets; those that a get passes
    /// over are finished with it. When the window is full the keys are counted and not read ahead.
    ///
    /// *Errors*: as `announce`.
    pub fn lookahead(&self, table: TableId, keys: &[u64]) -> Result<()> {
        let fingerprint = fingerprint(keys, &mut Distinct::new());
        self.announce_one(&[LookaheadBatch { table, keys }], Some(fingerprint)).map(drop)
    }

    /// A batch is about to be read: waits until its rows were read ahead, at most as long as
    /// `patience`. False when they are not yet there then; a batch that is read nevertheless gets
    /// the same rows. Does not wait for threads that have no core to read them on. Where a cache
    /// holds few batches it waits for no more than the slice that is being read.
    ///
    /// *Errors*: `Misuse` for a number that was not announced; `Closed`.
    pub fn begin(&self, number: u64, patience: Duration) -> Result<bool> {
        let (shared, mut state) = self.inner.open_window()?;
        if number == 0 || number > state.announced {
            bail!(
                Misuse,
                "batch {number} was not announced, expected 1 to {}; take the number that \
                 announce returned",
                state.announced
            );
        }
        if number > state.begun {
            state.begin(number, Instant::now());
            state.drop_slices();
            shared.wake();
        }
        drop(state);
        let _timed = Timed::new(&shared.counters.wait_ns);
        self.inner.plan_slices(shared);
        let is_there = self.inner.wait_for_batch(shared, shared.state.lock(), number, patience);
        self.inner.set_at_hand(shared);
        Ok(is_there)
    }

    /// Lets the window rest, or go on: paused, it reads nothing and keeps what it has. What is
    /// announced is looked at when it goes on; nobody waits for batches meanwhile.
    ///
    /// *Errors*: `Closed`. *Blocking*: a pause waits for the reads that are under way.
    pub fn pause_window(&self, pause: bool) -> Result<()> {
        let (shared, mut state) = self.inner.open_window()?;
        state.paused = pause;
        shared.wake();
        shared.progress.notify_all();
        while state.paused && state.busy > 0 {
            shared.progress.wait(&mut state);
        }
        Ok(())
    }

    /// All batches up to this number are done with: rows are no longer kept for them.
    ///
    /// *Errors*: `Misuse` for a number that was not announced; `Closed`.
    pub fn finish(&self, number: u64) -> Result<()> {
        let (shared, mut state) = self.inner.open_window()?;
        if number > state.announced {
            bail!(Misuse, "batch {number} was not announced, the last one is {}", state.announced);
        }
        state.finish(number);
        drop(state);
        self.inner.plan_slices(shared);
        shared.wake();
        Ok(())
    }

    /// Forgets everything that is announced. Numbers go on.
    ///
    /// *Errors*: `Closed`.
    pub fn clear_announced(&self) -> Result<()> {
        let (shared, mut state) = self.inner.open_window()?;
        state.cleared = state.announced;
        state.queue.clear();
        state.queue_bytes = 0;
        state.awaited.clear();
        state.current.clear();
        state.formed = None;
        let unfinished = state.announced - state.finished;
        shared.counters.cleared.fetch_add(unfinished, Ordering::Relaxed);
        let last = state.announced;
        state.finish(last);
        state.filled = state.announced;
        shared.wake();
        shared.progress.notify_all();
        Ok(())
    }

    /// Forgets everything that is announced, and gives the window's memory back to the caches. The
    /// next batch that is announced takes it again.
    ///
    /// *Errors*: `Closed`. *Blocking*: no; a thread of the store does it.
    pub fn release_window(&self) -> Result<()> {
        self.clear_announced()?;
        let (shared, mut state) = self.inner.open_window()?;
        state.release = true;
        shared.wake();
        Ok(())
    }
}

impl State {
    fn finish(&mut self, number: u64) {
        self.finished = self.finished.max(number);
        self.begun = self.begun.max(number);
    }

    /// Slices of batches that callers have come to are theirs to read.
    fn drop_slices(&mut self) {
        let begun = self.begun;
        if self.slices {
            self.formed.take_if(|group| group.last() <= begun);
        }
    }

    /// A get of these keys: begins the batch that announced them. Returns its number.
    fn begin_awaited(&mut self, table: TableId, fingerprint: u64) -> Option<u64> {
        let same = |a: &Awaited| a.table == table && a.fingerprint == fingerprint;
        let number = self.awaited.iter().find(|a| same(a))?.number;
        self.awaited.retain(|a| a.table != table || a.number > number);
        match self.current.iter_mut().find(|(of, _)| *of == table) {
            Some((_, current)) => *current = number,
            None => self.current.push((table, number)),
        }
        self.begin(number, Instant::now());
        self.drop_slices();
        // A table that is not used any more holds nothing back.
        self.current.retain(|(_, current)| current + UNDER_WAY > number);
        // Batches of other tables may still be under way.
        let oldest = self.current.iter().map(|(_, number)| *number).min().unwrap_or(number);
        self.finish(oldest - 1);
        Some(number)
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
        // Where an index takes most of the budget, a part of all of it would leave caches little.
        let caches: u64 = engine.classes.iter().map(|class| class.cache().memory_bytes()).sum();
        let rows = caches + engine.window_bytes.load(Ordering::Relaxed);
        let usual = (engine.budget_bytes / BUDGET_PER_WINDOW).min(rows / CACHE_PER_WINDOW);
        let most = engine.budget_bytes / BUDGET_PER_WINDOW_MIN;
        self.options.window_bytes.unwrap_or(usual).min(most)
    }

    /// A get of keys that [`Store::lookahead`] may have announced: waits until they were read
    /// ahead.
    pub(super) fn begin_awaited<'k>(&self, parts: impl Iterator<Item = (TableId, &'k [u64])>) {
        let shared = &*self.window.shared;
        if !shared.awaits.load(Ordering::Relaxed) {
            return;
        }
        let mut scratch = Distinct::new();
        let mut last = None;
        for (table, keys) in parts {
            if shared.state.lock().awaited.is_empty() {
                break;
            }
            let fingerprint = fingerprint(keys, &mut scratch);
            last = last.max(shared.state.lock().begin_awaited(table, fingerprint));
        }
        let Some(number) = last else { return };
        shared.wake();
        let _timed = Timed::new(&shared.counters.wait_ns);
        self.plan_slices(shared);
        self.wait_for_batch(shared, shared.state.lock(), number, Duration::MAX);
        self.set_at_hand(shared);
    }

    /// Where batches are read in slices, rows that verbs bring count as used by the last batch that
    /// was begun.
    fn set_at_hand(&self, shared: &Shared) {
        let begun = {
            let state = shared.state.lock();
            (state.slices && state.begun > state.finished).then_some(state.begun)
        };
        // Nothing ends a wait for the lock. Without it some rows leave earlier.
        if let Some(begun) = begun
            && let Some(engine) = self.engine.try_read()
        {
            for tier in engine.classes.iter().filter_map(|class| class.tier.as_ref()) {
                tier.cache.set_at_hand(Some(BatchNumber::of(begun)));
            }
        }
    }
}

/// A number for a set of keys, whatever their order and however often each occurs.
fn fingerprint(keys: &[u64], scratch: &mut Distinct) -> u64 {
    let sum = |sum: u64, key: &u64| sum.wrapping_add(mix(*key, 0x6c6f_6f6b));
    scratch.run(keys).0.iter().fold(0, sum)
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
        let window = Window::new();
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
