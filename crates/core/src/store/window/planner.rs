//! The window's planner: takes what callers announce and finish, tells the cache when rows are used
//! next, and forms the groups that the reader reads.

use super::super::engine::{Class, Table};
use super::super::{Engine, Guarded, Inner};
use super::group::Group;
use super::ranges::Holding;
use super::reader::{PORTION_ROWS, scratch_bytes};
use super::schedule::{Schedule, close_points, points_held};
use super::slices::{Pace, Room, SLICE_ROWS};
use super::tasks::{Task, Who};
use super::uses::{Foreseen, Next, Uses};
use super::{Announced, Busy, Shared};
use crate::arena::trim_heap;
use crate::cache::NextUse;
use crate::config::TableId;
use crate::distinct::Distinct;
use crate::error::{ErrorKind, Result};
use crate::metrics::Timed;
use parking_lot::MutexGuard;
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// A group needs at most this part of the rows that the caches can hold.
const CACHE_PER_GROUP: u64 = 8;
/// A group is at most this part of what is announced: what comes after it says what to keep.
const ANNOUNCED_PER_GROUP: u64 = 3;

/// Memory that the allocator keeps of vectors that come and go: 2.5 to 5 MB were measured beside a
/// window of 30 MB.
const WINDOW_PER_SLACK: u64 = 8;
/// After so many batches in large groups, what the allocator keeps is given back to the system.
/// That takes the free memory of the whole process, which it then faults in again: 3 ms of a
/// training step where it came every 18 steps.
const GIVING_BACK_BATCHES: u64 = 1024;
/// A group of so many batches is large.
const LARGE_GROUP_BATCHES: u64 = 16;
/// The part of a window of slices that the rows of a batch's slices take.
const WINDOW_PER_SLICES: u64 = 8;
/// A window that passes batches over gives its memory back after so many tasks: batches of
/// different sizes would take and give it by turns.
const RESTING_TASKS: u64 = 16;
/// Slices are read where the window has room for the keys of so many batches beside that.
const KNOWN_BATCHES: u64 = 3;
/// A block of a table's uses takes this part of the table's share of the window.
const SHARE_PER_BLOCK: u64 = 64;

/// State of the planner. Numbers are those of batches.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The uses of each table, by its id.
    uses: Vec<Option<Uses>>,
    /// The stretches of the training that they are in.
    pub(super) schedule: Schedule,
    /// The last batch whose uses are noted, that is finished, forgotten, in a group.
    pub(super) noted: u64,
    pub(super) finished: u64,
    pub(super) cleared: u64,
    pub(super) formed: u64,
    /// First batch of the last group, and how many it had.
    last_group: (u64, u64),
    /// Batches in large groups until memory is given back.
    until_giving_back: u64,
    /// Ranges whose rows are held.
    pub(super) holdings: Vec<Holding>,
    /// Bytes that the window may take, and takes beside uses and groups.
    pub(super) most_bytes: u64,
    fixed_bytes: u64,
    /// Pace at which batches like the last that was announced are read ahead.
    pub(super) pace: Pace,
    /// They are not, or the budget leaves no room for a window: all batches are passed over.
    off: bool,
    /// There are ranges and no batches.
    alone: bool,
    /// Slices can be read.
    pub(super) reads_slices: bool,
    /// Whether the last pace was that of slices, and whether there were ranges or stretches.
    reader_kind: (bool, bool),
    /// The window holds memory, and for how many tasks it has passed batches over since it took it.
    holds: bool,
    resting: u64,
    distinct: Distinct,
    keys: Vec<u64>,
    numbers: Vec<NextUse>,
    next: Vec<u16>,
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
            && let Some(task) = plan.take_task(&mut state, Who::Planner)
        {
            drop(state);
            return Some((plan, task, Busy(shared)));
        }
        // A helping caller needs it.
        drop(plan);
        match rest {
            Some(rest) => drop(shared.work.wait_for(&mut state, rest)),
            None => shared.work.wait(&mut state),
        }
    }
}

impl Plan {
    /// Whether the uses of a batch fit the window. One that no window of this size could hold does
    /// too: it is passed over.
    pub(super) fn fits(&self, batch: &Announced) -> bool {
        if self.noted == self.finished || self.most_bytes == 0 {
            return true;
        }
        let growth = self.growth_of(batch);
        self.bytes() + growth <= self.most_bytes
    }

    fn growth_of(&self, batch: &Announced) -> u64 {
        batch.parts.iter().map(|(table, keys, _)| self.growth(*table, keys)).sum()
    }

    fn growth(&self, table: TableId, keys: &[u64]) -> u64 {
        match self.uses.get(usize::from(table.0)) {
            Some(Some(uses)) => uses.growth_for(keys.len()) as u64,
            _ => self.bytes_for(keys.len()),
        }
    }

    /// Bytes of the first uses of a table.
    fn bytes_for(&self, keys: usize) -> u64 {
        Uses::new(None, self.block_bytes()).growth_for(keys) as u64
    }

    /// Bytes of the blocks of a table's uses: little of its share of the window.
    fn block_bytes(&self) -> u64 {
        self.most_bytes / (self.uses.len().max(1) as u64 * SHARE_PER_BLOCK)
    }

    /// Bytes that the window takes.
    fn bytes(&self) -> u64 {
        self.fixed_bytes + self.uses_bytes() + self.ranges_bytes()
    }

    fn uses_bytes(&self) -> u64 {
        self.uses.iter().flatten().map(Uses::memory_bytes).sum::<usize>() as u64
    }

    pub(super) fn run(&mut self, task: Task, shared: &Shared, inner: &Inner) -> Result<()> {
        let engine = inner.planned_engine()?;
        if matches!(task, Task::Release) {
            self.release(inner, &engine);
            return Ok(());
        }
        if let Task::LetGo(number) = task {
            return self.let_go(shared, inner, &engine, number);
        }
        match &task {
            Task::Announce(batch) => {
                self.pace = Pace::of(inner, &engine, batch, &mut self.distinct);
            }
            Task::Hold(number) => {
                if self.noted == self.finished {
                    self.pace = Pace::Groups;
                }
                self.take_range(shared, *number);
            }
            _ => {}
        }
        self.alone = matches!(task, Task::Hold(_)) && self.noted == self.finished;
        let was_off = self.off;
        self.prepare(shared, inner, &engine)?;
        inner.log_window(was_off, self.off);
        match task {
            Task::Release | Task::LetGo(_) => {}
            Task::Hold(number) => self.hold(shared, &engine, number, !self.off),
            Task::Clear(number) => self.clear(shared, &engine, number),
            Task::Finish(number) => self.finish(shared, &engine, number),
            Task::Announce(batch) => self.note(shared, inner, &engine, &batch)?,
            Task::Form => self.form(shared, inner, &engine),
            Task::Slice(number) => self.slice(shared, inner, &engine, number),
            Task::Skip(number) => {
                let skipped = number - self.formed.max(self.noted);
                shared.counters.skipped.fetch_add(skipped, Ordering::Relaxed);
                self.formed = number;
                shared.set_filled(number);
            }
        }
        if self.off {
            self.rest(inner, &engine);
        } else {
            self.resting = 0;
            engine.window_bytes.store(self.bytes(), Ordering::Relaxed);
        }
        shared.state.lock().slices = self.pace.is_slices();
        shared.progress.notify_all();
        Ok(())
    }

    /// Gives every class what the window needs of it. A plan that was made meanwhile has taken it
    /// away.
    fn prepare(&mut self, shared: &Shared, inner: &Inner, engine: &Engine) -> Result<()> {
        let most = inner.window_most_bytes(engine);
        self.most_bytes = self.pace.most_bytes(engine, most);
        self.uses.resize_with(engine.ids(), || None);
        for (uses, id) in self.uses.iter_mut().zip(0..) {
            // Nobody asks for rows of a table that was dropped.
            uses.take_if(|_| engine.table(id).is_none());
        }
        let caches = || engine.classes.iter().map(|class| class.cache());
        let mut share = self.most_bytes / engine.classes.len().max(1) as u64;
        let long = !self.holdings.is_empty() || self.schedule.furthest().is_some();
        let kind = (self.pace.is_slices(), long);
        if kind != std::mem::replace(&mut self.reader_kind, kind) {
            // Groups have a larger reader, ranges and stretches one with longer requests.
            engine.classes.iter().for_each(Class::release_ahead);
        }
        let queue = most / super::WINDOW_PER_QUEUE;
        self.fixed_bytes = queue
            + self.most_bytes / WINDOW_PER_SLACK
            + caches().map(|cache| cache.next_use_bytes()).sum::<u64>()
            + self.points_bytes(inner, engine);
        let reader =
            engine.classes.iter().map(|class| class.ahead_bytes(share, kind.1)).sum::<u64>();
        self.fixed_bytes += match self.pace {
            Pace::Slices { keys } => {
                let bytes = reader + self.slices_bytes(engine, share);
                // Known uses are worth more than early reads.
                let known = KNOWN_BATCHES * self.bytes_for(keys);
                if self.fixed_bytes + bytes + known > self.most_bytes {
                    share = 0;
                    engine.classes.iter().for_each(Class::release_ahead);
                }
                if share == 0 { 0 } else { bytes }
            }
            Pace::Groups | Pace::Off => {
                // One group is formed while another is read. Ranges have none.
                let groups = match self.alone {
                    true => 0,
                    false => 2 * Group::memory_bytes(Self::room_per_group(engine)),
                };
                reader + groups + scratch_bytes(PORTION_ROWS).min(queue)
            }
        };
        self.off = self.pace == Pace::Off || self.fixed_bytes > self.most_bytes / 4 * 3;
        let used = engine.memory().total() + engine.bytes_about_to_come()
            - engine.window_bytes.load(Ordering::Relaxed);
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
        self.holds = true;
        for class in &engine.classes {
            class.read_ahead((share, kind.1), &*inner.medium, inner.options.merge_reads)?;
            class.cache().remember_next_uses();
        }
        self.reads_slices = engine.classes.iter().all(|class| class.has_reader_ahead());
        self.settle_points(inner, engine)?;
        self.hold_again(engine);
        self.set_now(shared, engine);
        Ok(())
    }

    /// Tells the caches which batch is the first whose rows may still be used, and whose rows verbs
    /// bring. In groups nobody says: what verbs read then was not announced.
    fn set_now(&mut self, shared: &Shared, engine: &Engine) {
        let now = self.finished + 1;
        let place = self.schedule.advance(now);
        let begun = shared.state.lock().begun;
        // Between batches verbs bring rows of none: they may leave as others do.
        let at_hand = (self.pace.is_slices() && begun >= now).then(|| NextUse::in_batch(begun));
        for class in &engine.classes {
            class.cache().set_now(now, place);
            class.cache().set_at_hand(at_hand);
        }
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
        let scheduled = self.schedule.note(batch);
        let growth = self.growth_of(batch);
        let fits = !self.off && self.bytes() + growth <= self.most_bytes;
        engine.window_bytes.store(self.bytes(), Ordering::Relaxed);
        if !fits || !inner.make_window_room(engine, growth)? {
            shared.counters.skipped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let block_bytes = self.block_bytes();
        let stretch = scheduled.map_or(0, |of| of.stretch);
        let mut foreseen = Foreseen::default();
        for (id, keys, next) in &batch.parts {
            let Some(table) = engine.table(id.0) else { continue };
            let cache = engine.classes[table.class].cache();
            let rows = table.record.dense_ids();
            // Of a table that has grown what was announced before is forgotten.
            let uses = self.uses[usize::from(id.0)].take_if(|uses| uses.is_for(rows));
            let uses = self.uses[usize::from(id.0)]
                .insert(uses.unwrap_or_else(|| Uses::new(rows, block_bytes)));
            let (keys, inverse) = self.distinct.run(keys);
            shared.counters.distinct.fetch_add(keys.len() as u64, Ordering::Relaxed);
            self.next.clear();
            if scheduled.is_some() {
                // Of a key that occurs several times the last next use counts: that of the others
                // is in this batch.
                self.next.resize(keys.len(), 0);
                for (next, distinct) in next.iter().zip(inverse) {
                    self.next[*distinct as usize] = *next;
                }
            }
            self.keys.clear();
            let first = &mut self.keys;
            uses.announce((batch.number, stretch), keys, &self.next, |key| first.push(key));
            let compared = uses.take_foreseen();
            foreseen.right += compared.right;
            foreseen.wrong += compared.wrong;
            let next = NextUse::in_batch(batch.number);
            let locate = |i: usize| table.locate(cache, first[i]);
            cache.ahead(first.len(), locate, |i, at| {
                cache.expect_use(at, table.id(), first[i], next);
            });
        }
        self.check_schedule(shared, foreseen);
        Ok(())
    }

    /// Rows stay for their next batch from here on, or for none.
    fn finish(&mut self, shared: &Shared, engine: &Engine, number: u64) {
        for table in &engine.tables {
            let uses = self.uses.get_mut(usize::from(table.id()));
            let Some(uses) = uses.and_then(Option::as_mut) else { continue };
            self.keys.clear();
            self.numbers.clear();
            let (keys, numbers) = (&mut self.keys, &mut self.numbers);
            uses.finish(number, |key, next| {
                keys.push(key);
                numbers.push(match next {
                    Next::Unknown => NextUse::NONE,
                    Next::Batch(number) => NextUse::in_batch(number),
                    Next::Stretch(stretch) => NextUse::in_stretch(stretch),
                });
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
        self.set_now(shared, engine);
        if self.pace.is_slices() && self.formed < number {
            self.formed = number;
            shared.set_filled(number);
        }
    }

    fn clear(&mut self, shared: &Shared, engine: &Engine, number: u64) {
        self.uses.iter_mut().for_each(|uses| *uses = None);
        self.schedule.clear();
        self.last_group = (0, 0);
        self.cleared = number;
        for at in [&mut self.noted, &mut self.finished, &mut self.formed] {
            *at = number.max(*at);
        }
        for class in &engine.classes {
            class.cache().forget_next_uses();
        }
        self.set_now(shared, engine);
    }

    /// Rows that the slices of a batch have at most.
    fn rows_of_slices(&self) -> u64 {
        self.most_bytes / (WINDOW_PER_SLICES * Group::memory_bytes(1))
    }

    /// Bytes of what is known of slices, where they can be read: with a reader of their own, for
    /// verbs would wait for a thread that may have no core.
    fn slices_bytes(&self, engine: &Engine, share: u64) -> u64 {
        if engine.classes.iter().any(|class| class.ahead_bytes(share, false) == 0) {
            return 0;
        }
        Group::memory_bytes(self.rows_of_slices())
            + Room::memory_bytes(engine)
            + scratch_bytes(SLICE_ROWS).min(self.most_bytes / super::WINDOW_PER_QUEUE)
    }

    /// Forms the slices of a batch, the one behind that at hand: what it needs beside the rows that
    /// are resident, and for which there is room beside those of the batch at hand.
    fn slice(&mut self, shared: &Shared, inner: &Inner, engine: &Engine, number: u64) {
        self.formed = number;
        let mut group = Group::at_most(number - 1, number, self.rows_of_slices());
        let mut room = Room::new(engine, NextUse::in_batch(number));
        for table in &engine.tables {
            let Some(uses) = uses_of(&self.uses, table).filter(|_| !self.off) else { continue };
            let cache = engine.classes[table.class].cache();
            self.keys.clear();
            uses.keys_of(number - 1, &mut self.keys);
            let at_hand = NextUse::in_batch(number - 1);
            cache.ahead(
                self.keys.len(),
                |i| table.locate(cache, self.keys[i]),
                |i, at| {
                    if !cache.expect_use(at, table.id(), self.keys[i], at_hand) {
                        room.take(table.class, cache, at.set());
                    }
                },
            );
        }
        for table in &engine.tables {
            let Some(uses) = uses_of(&self.uses, table).filter(|_| !self.off) else { continue };
            self.keys.clear();
            uses.keys_of(number, &mut self.keys);
            group.add(engine.classes[table.class].cache(), table, number, &self.keys);
        }
        inner.look_up(engine, &mut group);
        inner.fit(engine, &mut group, &mut room, self.rows_of_slices() as usize);
        self.last_group = (number, 1);
        if group.rows() == 0 {
            super::reader::is_read(shared, &group);
            return;
        }
        let mut state = shared.state.lock();
        if state.cleared < number && state.begun < number {
            state.formed = Some(group);
        }
        drop(state);
        shared.reads.notify_one();
    }

    /// Passes batches over. Memory that the window still holds counts; once nothing is noted any
    /// more and some batches were passed over, it is given back.
    fn rest(&mut self, inner: &Inner, engine: &Engine) {
        if !self.holds {
            engine.window_bytes.store(0, Ordering::Relaxed);
            return;
        }
        self.resting += 1;
        if self.resting > RESTING_TASKS && self.noted == self.finished && self.holdings.is_empty() {
            self.release(inner, engine);
            return;
        }
        let caches = engine.classes.iter().map(|class| class.cache().next_use_bytes()).sum::<u64>();
        let readers = engine.classes.iter().map(|class| class.held_ahead_bytes()).sum::<u64>();
        let points = points_held(engine);
        let bytes = self.uses_bytes() + self.ranges_bytes() + caches + readers + points;
        engine.window_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Gives all memory of the window back, and to the caches what it had of them.
    fn release(&mut self, inner: &Inner, engine: &Engine) {
        self.uses = Vec::new();
        self.schedule.end();
        (self.keys, self.numbers, self.next, self.distinct) = Default::default();
        (self.fixed_bytes, self.holds, self.resting) = (0, false, 0);
        for class in &engine.classes {
            class.cache().release_next_uses();
            class.release_ahead();
            // An error has poisoned the store, which the next verb says.
            let _ = close_points(inner, class);
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
        let is_scheduled = self.schedule.has(first);
        // A schedule knows what comes behind what is announced.
        let per_group = if is_scheduled { 1 } else { ANNOUNCED_PER_GROUP };
        let most = (announced / per_group)
            .min(if is_scheduled { u64::MAX } else { 2 * self.last_group.1 })
            .min(inner.options.window_group as u64)
            .clamp(1, Group::BATCHES_MAX);
        let rows = Self::rows_per_group(engine);
        let mut group = Group::new(self.last_group.0, first, Self::room_per_group(engine));
        for number in first..=self.noted.min(first + most - 1) {
            for table in &engine.tables {
                let Some(uses) = uses_of(&self.uses, table) else { continue };
                self.keys.clear();
                uses.keys_of(number, &mut self.keys);
                let cache = engine.classes[table.class].cache();
                group.add(cache, table, number, &self.keys);
            }
            if group.rows() > rows || self.schedule.ends_with(number) {
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

/// The announced uses of a table, from a list by table id.
fn uses_of<'a>(uses: &'a [Option<Uses>], table: &Table) -> Option<&'a Uses> {
    uses.get(usize::from(table.id())).and_then(Option::as_ref)
}
