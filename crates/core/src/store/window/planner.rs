//! The window's planner: takes what callers announce and finish, tells the cache when rows are used
//! next, and forms the groups that the reader reads.

use super::super::{Engine, Guarded, Inner};
use super::group::Group;
use super::uses::Uses;
use super::{Announced, Busy, Shared, State};
use crate::arena::trim_heap;
use crate::cache::BatchNumber;
use crate::config::TableId;
use crate::distinct::Distinct;
use crate::error::{ErrorKind, Result};
use crate::metrics::Timed;
use parking_lot::MutexGuard;
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// A group needs at most this part of the rows that the caches can hold.
const CACHE_PER_GROUP: u64 = 8;
/// Batches are read ahead where a cache holds the rows of so many. A training read 2.1 times as
/// many pages with look-ahead as without where it held 2.4, 1.5 times where it held 3.0, 1.2 times,
/// and waited half as long, where it held 6.7.
const BATCHES_MIN: u64 = 4;
/// A group is at most this part of what is announced: what comes after it says what to keep.
const ANNOUNCED_PER_GROUP: u64 = 3;

/// What the allocator keeps of vectors that come and go: 2.5 to 5 MB were measured beside a window
/// of 30 MB.
const WINDOW_PER_SLACK: u64 = 8;
/// After so many batches in large groups, what the allocator keeps is given back to the system.
/// That takes the free memory of the whole process, which it then faults in again: 3 ms of a
/// training step where it came every 18 steps.
const GIVING_BACK_BATCHES: u64 = 1024;
/// A group of so many batches is large.
const LARGE_GROUP_BATCHES: u64 = 16;
/// A block of a table's uses takes this part of the table's share of the window.
const SHARE_PER_BLOCK: u64 = 64;

/// What the planner does next.
#[derive(Debug)]
pub(super) enum Task {
    /// Forget all batches up to this one.
    Clear(u64),
    /// Give back what the window takes: nothing is announced.
    Release,
    /// Batches up to this one are done with.
    Finish(u64),
    /// Note the uses of a batch.
    Announce(Announced),
    /// Form the next group.
    Form,
    /// Callers are at this batch, and there was no room to read it ahead.
    Skip(u64),
}

/// What the planner knows. Numbers are those of batches.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The uses of each table, by its id.
    uses: Vec<Option<Uses>>,
    /// The last batch whose uses are noted, that is finished, forgotten, in a group.
    noted: u64,
    finished: u64,
    cleared: u64,
    formed: u64,
    /// First batch of the last group, and how many it had.
    last_group: (u64, u64),
    /// Batches in large groups until memory is given back.
    until_giving_back: u64,
    /// Bytes that the window may take, and takes beside uses and groups.
    most_bytes: u64,
    fixed_bytes: u64,
    /// The caches hold too few batches like the last that was announced.
    crowded: bool,
    /// So it is, or the budget leaves no room for a window: all batches are passed over.
    off: bool,
    distinct: Distinct,
    keys: Vec<u64>,
    numbers: Vec<BatchNumber>,
}

/// Runs until the store is closed or gone.
pub(super) fn run(shared: &Shared, store: &Weak<Guarded>) {
    while let Some((mut plan, task, _busy)) = wait_for_task(shared) {
        let Some(inner) = store.upgrade() else { return };
        let _guard = inner.poison_on_panic();
        let _timed = Timed::new(&shared.counters.planning_ns);
        match plan.run(task, shared, &inner) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => {
                // The task would come again, and those who wait for batches would wait for ever.
                shared.failed(error.to_string());
                return;
            }
        }
        // Before the store, which it may be the last to hold.
        drop(plan);
    }
}

/// The next task, and the plan that it changes; `None` when the window ends.
fn wait_for_task(shared: &Shared) -> Option<(MutexGuard<'_, Plan>, Task, Busy<'_>)> {
    loop {
        let plan = shared.plan.lock();
        let mut state = shared.state.lock();
        if state.stop {
            return None;
        }
        let rest = state.rest.left();
        if rest.is_none()
            && let Some(task) = plan.take_task(&mut state)
        {
            drop(state);
            return Some((plan, task, Busy(shared)));
        }
        // Who helps needs it.
        drop(plan);
        match rest {
            Some(rest) => drop(shared.work.wait_for(&mut state, rest)),
            None => shared.work.wait(&mut state),
        }
    }
}

impl Plan {
    /// The next task, unless the window rests. Somebody is busy with it from here on.
    pub(super) fn take_task(&self, state: &mut State) -> Option<Task> {
        if state.paused {
            return None;
        }
        let task = self.next_task(state)?;
        state.busy += 1;
        Some(task)
    }

    fn next_task(&self, state: &mut State) -> Option<Task> {
        if state.cleared > self.cleared {
            return Some(Task::Clear(state.cleared));
        }
        // What was announced since needs it.
        if std::mem::take(&mut state.release) && state.announced == state.cleared {
            return Some(Task::Release);
        }
        if state.finished > self.finished && self.finished < self.noted {
            // One by one: what is noted of a batch meanwhile is not much.
            return Some(Task::Finish(state.finished.min(self.finished + 1)));
        }
        // What is announced first says what is worth reading and what to keep.
        if state.queue.front().is_some_and(|batch| self.fits(batch)) {
            let batch = state.queue.pop_front().expect("there is a first one");
            state.queue_bytes -= batch.bytes();
            return Some(Task::Announce(batch));
        }
        if self.formed < self.noted && state.formed.is_none() {
            return Some(Task::Form);
        }
        (state.begun > self.formed.max(self.noted)).then_some(Task::Skip(state.begun))
    }

    /// Whether the uses of a batch fit the window. One that no window of this size could hold does
    /// too: it is passed over.
    fn fits(&self, batch: &Announced) -> bool {
        if self.noted == self.finished || self.most_bytes == 0 {
            return true;
        }
        let growth: u64 = batch.parts.iter().map(|(table, keys)| self.growth(*table, keys)).sum();
        self.bytes() + growth <= self.most_bytes
    }

    fn growth(&self, table: TableId, keys: &[u64]) -> u64 {
        match self.uses.get(usize::from(table.0)) {
            Some(Some(uses)) => uses.growth_for(keys.len()) as u64,
            _ => Uses::new(None, self.block_bytes()).growth_for(keys.len()) as u64,
        }
    }

    /// Bytes of the blocks of a table's uses: little of its share of the window.
    fn block_bytes(&self) -> u64 {
        self.most_bytes / (self.uses.len().max(1) as u64 * SHARE_PER_BLOCK)
    }

    /// Bytes that the window takes.
    fn bytes(&self) -> u64 {
        let uses: usize = self.uses.iter().flatten().map(Uses::memory_bytes).sum();
        self.fixed_bytes + uses as u64
    }

    pub(super) fn run(&mut self, task: Task, shared: &Shared, inner: &Inner) -> Result<()> {
        let engine = inner.planned_engine()?;
        if matches!(task, Task::Release) {
            self.release(inner, &engine);
            return Ok(());
        }
        if let Task::Announce(batch) = &task {
            self.crowded = self.crowds(&engine, batch);
        }
        self.prepare(inner, &engine)?;
        match task {
            Task::Release => {}
            Task::Clear(number) => self.clear(&engine, number),
            Task::Finish(number) => self.finish(&engine, number),
            Task::Announce(batch) => self.note(shared, inner, &engine, &batch)?,
            Task::Form => self.form(shared, inner, &engine),
            Task::Skip(number) => {
                let skipped = number - self.formed.max(self.noted);
                shared.counters.skipped.fetch_add(skipped, Ordering::Relaxed);
                self.formed = number;
                shared.set_filled(number);
            }
        }
        let bytes = if self.off { 0 } else { self.bytes() };
        engine.window_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a cache holds the rows of fewer than [`BATCHES_MIN`] such batches. What is read
    /// ahead then drives out what is used before it.
    fn crowds(&mut self, engine: &Engine, batch: &Announced) -> bool {
        let class_of = |id: TableId| engine.table(id.0).map(|table| table.class);
        engine.classes.iter().enumerate().any(|(at, class)| {
            let most = (class.cache().row_capacity() / BATCHES_MIN) as usize;
            let here = || batch.parts.iter().filter(move |(id, _)| class_of(*id) == Some(at));
            let keys = |(_, keys): &(TableId, Vec<u64>)| keys.len();
            if here().map(keys).sum::<usize>() <= most {
                return false;
            }
            let distinct: usize = here().map(|(_, keys)| self.distinct.run(keys).0.len()).sum();
            distinct > most
        })
    }

    /// Gives every class what the window needs of it. A plan that was made meanwhile has taken it
    /// away.
    fn prepare(&mut self, inner: &Inner, engine: &Engine) -> Result<()> {
        self.most_bytes = inner.window_most_bytes(engine);
        self.uses.resize_with(engine.tables.len(), || None);
        let caches = || engine.classes.iter().map(|class| class.cache());
        let share = self.most_bytes / engine.classes.len().max(1) as u64;
        // One group is formed while another is read.
        self.fixed_bytes = self.most_bytes / super::WINDOW_PER_QUEUE
            + self.most_bytes / WINDOW_PER_SLACK
            + 2 * Group::memory_bytes(Self::room_per_group(engine))
            + super::reader::SCRATCH_BYTES.min(self.most_bytes / super::WINDOW_PER_QUEUE)
            + caches().map(|cache| cache.next_use_bytes()).sum::<u64>()
            + engine.classes.iter().map(|class| class.ahead_bytes(share)).sum::<u64>();
        self.off = self.crowded || self.fixed_bytes > self.most_bytes / 4 * 3;
        let used = engine.memory().total() - engine.window_bytes.load(Ordering::Relaxed);
        let giveable: u64 = caches().map(|cache| cache.giveable_bytes()).sum();
        self.off |= used + self.bytes() > engine.budget_bytes + giveable;
        if self.off {
            return Ok(());
        }
        engine.window_bytes.store(self.bytes(), Ordering::Relaxed);
        self.off = !inner.make_window_room(engine, 0)?;
        if self.off {
            return Ok(());
        }
        for class in &engine.classes {
            class.read_ahead(share, &*inner.medium, inner.options.merge_reads)?;
            class.cache().remember_next_uses();
            class.cache().set_now(BatchNumber::of(self.finished + 1));
        }
        Ok(())
    }

    /// Notes the uses of a batch. One for which there is no memory is passed over.
    fn note(
        &mut self,
        shared: &Shared,
        inner: &Inner,
        engine: &Engine,
        batch: &Announced,
    ) -> Result<()> {
        self.noted = batch.number;
        let growth: u64 = batch.parts.iter().map(|(table, keys)| self.growth(*table, keys)).sum();
        let fits = !self.off && self.bytes() + growth <= self.most_bytes;
        engine.window_bytes.store(self.bytes(), Ordering::Relaxed);
        if !fits || !inner.make_window_room(engine, growth)? {
            shared.counters.skipped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let block_bytes = self.block_bytes();
        for (id, keys) in &batch.parts {
            let Some(table) = engine.table(id.0) else { continue };
            let cache = engine.classes[table.class].cache();
            let uses = self.uses[usize::from(id.0)]
                .get_or_insert_with(|| Uses::new(table.record.spec.num_embeddings, block_bytes));
            let keys = self.distinct.run(keys).0;
            shared.counters.distinct.fetch_add(keys.len() as u64, Ordering::Relaxed);
            self.keys.clear();
            let first = &mut self.keys;
            uses.announce(batch.number, keys, |key| first.push(key));
            let next = BatchNumber::of(batch.number);
            let locate = |i: usize| table.locate(cache, first[i]);
            cache.ahead(first.len(), locate, |i, at| {
                cache.expect_use(at, table.id(), first[i], next);
            });
        }
        Ok(())
    }

    /// Rows stay for their next batch from here on, or for none.
    fn finish(&mut self, engine: &Engine, number: u64) {
        for (table, uses) in engine.tables.iter().zip(&mut self.uses) {
            let Some(uses) = uses else { continue };
            self.keys.clear();
            self.numbers.clear();
            let (keys, numbers) = (&mut self.keys, &mut self.numbers);
            uses.finish(number, |key, next| {
                keys.push(key);
                numbers.push(next.map_or(BatchNumber::NONE, BatchNumber::of));
            });
            let cache = engine.classes[table.class].cache();
            cache.ahead(
                keys.len(),
                |i| table.locate(cache, keys[i]),
                |i, at| {
                    cache.set_next_use(at, table.id(), keys[i], numbers[i]);
                },
            );
        }
        self.finished = number;
        for class in &engine.classes {
            class.cache().set_now(BatchNumber::of(number + 1));
        }
    }

    fn clear(&mut self, engine: &Engine, number: u64) {
        self.uses.iter_mut().for_each(|uses| *uses = None);
        self.last_group = (0, 0);
        self.cleared = number;
        for at in [&mut self.noted, &mut self.finished, &mut self.formed] {
            *at = number.max(*at);
        }
        for class in &engine.classes {
            class.cache().forget_next_uses();
            class.cache().set_now(BatchNumber::of(self.finished + 1));
        }
    }

    /// Gives all memory of the window back, and to the caches what it had of them.
    fn release(&mut self, inner: &Inner, engine: &Engine) {
        self.uses = Vec::new();
        (self.keys, self.numbers, self.distinct) = Default::default();
        self.fixed_bytes = 0;
        for class in &engine.classes {
            class.cache().release_next_uses();
            class.release_ahead();
        }
        trim_heap();
        engine.window_bytes.store(0, Ordering::Relaxed);
        inner.return_cache_room(engine);
    }

    /// Rows that a group needs at most, but for those of its last batch.
    fn rows_per_group(engine: &Engine) -> u64 {
        let rows: u64 = engine.classes.iter().map(|class| class.cache().row_capacity()).sum();
        rows / CACHE_PER_GROUP
    }

    /// As many, and those of a last batch.
    fn room_per_group(engine: &Engine) -> u64 {
        let rows = Self::rows_per_group(engine);
        rows + rows / 8
    }

    /// Forms the next group: as many batches as the options allow, twice as many as in the last one
    /// at most, and so few that those behind them say what to keep.
    fn form(&mut self, shared: &Shared, inner: &Inner, engine: &Engine) {
        let first = self.formed + 1;
        let announced = self.noted - self.finished.min(self.formed);
        let most = (announced / ANNOUNCED_PER_GROUP)
            .min(2 * self.last_group.1)
            .min(inner.options.window_group as u64)
            .clamp(1, Group::BATCHES_MAX);
        let rows = Self::rows_per_group(engine);
        let mut group = Group::new(self.last_group.0, first, Self::room_per_group(engine));
        for number in first..=self.noted.min(first + most - 1) {
            for (table, uses) in engine.tables.iter().zip(&self.uses) {
                let Some(uses) = uses else { continue };
                self.keys.clear();
                uses.keys_of(number, &mut self.keys);
                let cache = engine.classes[table.class].cache();
                group.add(cache, table, number, &self.keys);
            }
            if group.rows() > rows {
                break;
            }
        }
        self.formed = group.last();
        self.last_group = (first, group.last() - first + 1);
        inner.look_up(engine, &mut group);
        let mut state = shared.state.lock();
        if state.cleared < first {
            state.formed = Some(group);
        }
        drop(state);
        shared.reads.notify_one();
        // Of what both threads free the allocator keeps some, which nobody counts: the most after
        // the first large groups, as much from there on.
        if self.last_group.1 >= LARGE_GROUP_BATCHES {
            self.until_giving_back = self.until_giving_back.saturating_sub(self.last_group.1);
            if self.until_giving_back == 0 {
                trim_heap();
                self.until_giving_back = GIVING_BACK_BATCHES;
            }
        }
    }
}
