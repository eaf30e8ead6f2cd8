//! Calls of the user: batches are announced, begun and finished.

use super::super::verbs::get_put::check_keys;
use super::super::{Inner, Store};
use super::{Announced, Awaited, Shared, State, UNDER_WAY, WINDOW_PER_QUEUE};
use crate::cache::NextUse;
use crate::config::{LookaheadBatch, ScheduledBatch, TableId};
use crate::distinct::Distinct;
use crate::error::{Result, bail};
use crate::hash::mix;
use crate::metrics::Timed;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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
        self.announce_one(batch, None, None)
    }

    /// As [`announce`](Self::announce), of a batch whose place in the schedule of the training is
    /// known, and the stretches in which its rows are used next (`next` of each part).
    ///
    /// Rows that leave memory are written to the page of the stretch that uses them next, as far as
    /// memory and disk have room for a page of each; so those of a stretch are read together. The
    /// schedule also decides which rows stay. Results never change: a schedule that is wrong costs
    /// reads alone. One that is found wrong about most rows is set aside, and logged, until the
    /// announced batches are [forgotten](Self::clear_announced).
    ///
    /// *Errors*: as `announce`; `Misuse` where `next` has not a number for each key, or a stretch
    /// has no batches. *Blocking*: as `announce`.
    pub fn announce_scheduled(
        &self,
        batch: &[LookaheadBatch<'_>],
        scheduled: ScheduledBatch,
    ) -> Result<Option<u64>> {
        if scheduled.batches == 0 {
            bail!(Misuse, "a stretch of the schedule has 0 batches, expected 1 or more");
        }
        for part in batch {
            if part.next.len() != part.keys.len() {
                bail!(
                    Misuse,
                    "{} next uses for {} keys, expected one for each",
                    part.next.len(),
                    part.keys.len()
                );
            }
        }
        self.announce_one(batch, None, Some(scheduled))
    }

    fn announce_one(
        &self,
        batch: &[LookaheadBatch<'_>],
        table: Option<u64>,
        scheduled: Option<ScheduledBatch>,
    ) -> Result<Option<u64>> {
        let inner = &*self.inner;
        let engine = inner.planned_engine()?;
        let most = inner.window_most_bytes(&engine) / WINDOW_PER_QUEUE;
        inner.window.start(&self.inner)?;
        let shared = &*inner.window.shared;
        let keys: usize = batch.iter().map(|part| part.keys.len()).sum();
        // Comes first: a refused caller asks again, which must not cost a look at the keys.
        let has_room = || {
            shared.state.lock().has_room(Announced::bytes_of(keys, batch.len(), scheduled), most)
        };
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
        let parts = Vec::with_capacity(batch.len());
        let mut announced = Announced { number: 0, parts, scheduled };
        for part in to_read {
            let said = if scheduled.is_some() { part.next } else { &[] };
            match announced.parts.iter_mut().find(|(table, ..)| *table == part.table) {
                Some((_, keys, next)) => {
                    keys.extend_from_slice(part.keys);
                    next.extend_from_slice(said);
                }
                None => {
                    announced.parts.push((part.table, part.keys.to_vec(), said.to_vec()));
                }
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
        let batch = [LookaheadBatch { table, keys, next: &[] }];
        self.announce_one(&batch, Some(fingerprint), None).map(drop)
    }

    /// A batch is about to be read: waits until its rows were read ahead, at most as long as
    /// `patience`. False when they are not yet there then; a batch that is read nevertheless gets
    /// the same rows. Does not wait for threads that have no core to read them on. If a cache holds
    /// few batches it waits for no more than the slice that is being read. The same is true of a
    /// range that [`announce_range`](Self::announce_range) has announced.
    ///
    /// *Errors*: `Misuse` for a number that was not announced; `Closed`.
    pub fn begin(&self, number: u64, patience: Duration) -> Result<bool> {
        let (shared, mut state) = self.inner.open_window()?;
        if state.ranges.knows(number) {
            let _timed = Timed::new(&shared.counters.wait_ns);
            return Ok(self.inner.wait_for_batch(shared, state, number, patience));
        }
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

    /// Pauses the window, or lets it go on: paused, it reads nothing and keeps what it has. Batches
    /// announced meanwhile are looked at when it goes on; nobody waits for batches until then.
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

    /// All batches up to this number are done with: rows are no longer kept for them. Of a range
    /// the one alone; a second time does nothing.
    ///
    /// *Errors*: `Misuse` for a number that was not announced; `Closed`.
    pub fn finish(&self, number: u64) -> Result<()> {
        self.finish_one(number, false)
    }

    /// As [`finish`](Self::finish) of a range, whose rows leave the cache soon, in the order of
    /// their ids: those that have changed are written so, and the range's next read is a long one.
    pub fn finish_range(&self, number: u64) -> Result<()> {
        self.finish_one(number, true)
    }

    fn finish_one(&self, number: u64, leaves: bool) -> Result<()> {
        let (shared, mut state) = self.inner.open_window()?;
        if state.ranges.knows(number) {
            state.ranges.finish(number, leaves);
            drop(state);
            shared.wake();
            return Ok(());
        }
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
        state.ranges.finish_all();
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
    /// A get of keys that [`Store::lookahead`] may have announced: waits until they were read
    /// ahead.
    pub(in crate::store) fn begin_awaited<'k>(
        &self,
        parts: impl Iterator<Item = (TableId, &'k [u64])>,
    ) {
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

    /// If batches are read in slices, rows that verbs bring count as used by the last batch that
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
                tier.cache.set_at_hand(Some(NextUse::in_batch(begun)));
            }
        }
    }
}

/// A number for a set of keys, whatever their order and however often each occurs.
fn fingerprint(keys: &[u64], scratch: &mut Distinct) -> u64 {
    let sum = |sum: u64, key: &u64| sum.wrapping_add(mix(*key, 0x6c6f_6f6b));
    scratch.run(keys).0.iter().fold(0, sum)
}
