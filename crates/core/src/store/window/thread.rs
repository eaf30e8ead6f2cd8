//! The window's thread: takes what callers announce, begin and finish, and keeps the cache filled
//! ahead of them.

use super::super::{Engine, Guarded, Inner};
use super::fill::Group;
use super::uses::Uses;
use super::{Announced, Shared, State};
use crate::cache::BatchNumber;
use crate::config::TableId;
use crate::distinct::Distinct;
use crate::error::{ErrorKind, Result};
use crate::metrics::Timed;
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// What the thread does next.
#[derive(Debug)]
enum Task {
    /// Forget all batches up to this one.
    Clear(u64),
    /// Batches up to this one are done with.
    Finish(u64),
    /// Note the uses of a batch.
    Announce(Announced),
    /// Read some rows ahead.
    Fill,
    /// Callers are at this batch, and there was no room to read it ahead.
    Skip(u64),
}

/// What the thread knows. Numbers are those of batches.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The uses of each table, by its id.
    pub(super) uses: Vec<Option<Uses>>,
    /// The last batch whose uses are noted, that is finished, that is forgotten, that was filled.
    pub(super) noted: u64,
    pub(super) finished: u64,
    cleared: u64,
    pub(super) filled: u64,
    /// The group that is being filled.
    pub(super) group: Option<Group>,
    /// First batch of the last group, and how many it had.
    pub(super) last_group: (u64, u64),
    /// Bytes that the window may take, and takes beside the uses.
    most_bytes: u64,
    fixed_bytes: u64,
    /// The budget leaves no room for a window: all batches are passed over.
    off: bool,
    distinct: Distinct,
    pub(super) keys: Vec<u64>,
    numbers: Vec<BatchNumber>,
}

/// Ends the waiting of callers when the thread ends, whatever ended it.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.state.lock().idle = true;
        self.0.progress.notify_all();
    }
}

/// Runs until the store is closed or gone.
pub(super) fn run(shared: &Shared, store: &Weak<Guarded>) {
    let _ended = Ended(shared);
    let mut plan = Plan::default();
    while let Some(task) = plan.wait_for_task(shared) {
        let Some(inner) = store.upgrade() else { return };
        let _guard = inner.poison_on_panic();
        let _timed = Timed::new(&shared.counters.busy_ns);
        match plan.run(task, shared, &inner) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => plan.give_up(shared, error.to_string()),
        }
    }
}

impl Plan {
    fn wait_for_task(&mut self, shared: &Shared) -> Option<Task> {
        let mut state = shared.state.lock();
        loop {
            if state.stop {
                return None;
            }
            if let Some(task) = self.next_task(&mut state) {
                return Some(task);
            }
            shared.work.wait(&mut state);
        }
    }

    fn next_task(&self, state: &mut State) -> Option<Task> {
        if state.cleared > self.cleared {
            return Some(Task::Clear(state.cleared));
        }
        if state.finished > self.finished && self.finished < self.noted {
            return Some(Task::Finish(state.finished.min(self.noted)));
        }
        // What is announced first says what is worth reading and what to keep.
        if state.queue.front().is_some_and(|batch| self.fits(batch)) {
            let batch = state.queue.pop_front().expect("there is a first one");
            state.queue_bytes -= batch.bytes();
            return Some(Task::Announce(batch));
        }
        if self.group.is_some() || self.may_fill(state.begun) {
            return Some(Task::Fill);
        }
        (state.begun > self.filled).then_some(Task::Skip(state.begun))
    }

    /// Whether the next group may be read: callers have come to the one before.
    fn may_fill(&self, begun: u64) -> bool {
        self.filled < self.noted && (begun >= self.last_group.0 || begun > self.filled)
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
            _ => Uses::new(None).growth_for(keys.len()) as u64,
        }
    }

    /// Bytes that the window takes.
    pub(super) fn bytes(&self) -> u64 {
        let uses: usize = self.uses.iter().flatten().map(Uses::memory_bytes).sum();
        let group = self.group.as_ref().map_or(0, Group::memory_bytes);
        self.fixed_bytes + (uses + group) as u64
    }

    fn run(&mut self, task: Task, shared: &Shared, inner: &Inner) -> Result<()> {
        let engine = inner.planned_engine()?;
        self.prepare(inner, &engine)?;
        match task {
            Task::Clear(number) => self.clear(&engine, number),
            Task::Finish(number) => self.finish(&engine, number),
            Task::Announce(batch) => self.note(shared, inner, &engine, &batch)?,
            Task::Fill => self.fill(shared, inner, &engine)?,
            Task::Skip(number) => {
                shared.counters.skipped.fetch_add(number - self.filled, Ordering::Relaxed);
                self.set_filled(shared, number);
            }
        }
        let bytes = if self.off { 0 } else { self.bytes() };
        engine.window_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives every class what the window needs of it. A plan that was made meanwhile has taken it
    /// away.
    fn prepare(&mut self, inner: &Inner, engine: &Engine) -> Result<()> {
        self.most_bytes = inner.window_most_bytes(engine);
        self.uses.resize_with(engine.tables.len(), || None);
        let caches = || engine.classes.iter().map(|class| class.cache());
        self.fixed_bytes = self.most_bytes / super::WINDOW_PER_QUEUE
            + caches().map(|cache| cache.next_use_bytes()).sum::<u64>()
            + engine.classes.iter().map(|class| class.ahead_bytes(self.most_bytes)).sum::<u64>();
        self.off = self.fixed_bytes > self.most_bytes / 2;
        if self.off {
            return Ok(());
        }
        if engine.window_bytes.swap(self.bytes(), Ordering::Relaxed) < self.fixed_bytes {
            self.off = !inner.make_window_room(engine, 0)?;
        }
        for class in &engine.classes {
            class.read_ahead(self.most_bytes, &*inner.medium, inner.options.merge_reads)?;
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
        for (id, keys) in &batch.parts {
            let Some(table) = engine.table(id.0) else { continue };
            let cache = engine.classes[table.class].cache();
            let uses = self.uses[usize::from(id.0)]
                .get_or_insert_with(|| Uses::new(table.record.spec.num_embeddings));
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
        self.group = None;
        self.last_group = (0, 0);
        self.cleared = number;
        for at in [&mut self.noted, &mut self.finished, &mut self.filled] {
            *at = number.max(*at);
        }
        for class in &engine.classes {
            class.cache().forget_next_uses();
            class.cache().set_now(BatchNumber::of(self.finished + 1));
        }
    }

    /// Callers need not wait for batches up to this one any more.
    pub(super) fn set_filled(&mut self, shared: &Shared, number: u64) {
        self.filled = self.filled.max(number);
        let mut state = shared.state.lock();
        state.filled = state.filled.max(self.filled);
        drop(state);
        shared.progress.notify_all();
    }

    /// Leaves the group that an error ended to the verbs that use it; they report theirs.
    fn give_up(&mut self, shared: &Shared, error: String) {
        shared.counters.failed.fetch_add(1, Ordering::Relaxed);
        shared.state.lock().error = Some(error);
        if let Some(group) = self.group.take() {
            self.set_filled(shared, group.last());
        }
    }
}
