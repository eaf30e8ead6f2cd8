//! The window's reader: reads the rows of a group, in the order of their pages.
//!
//! It goes in portions, so that each page is read once for all batches of the group, and a commit
//! does not wait for the whole of it. Between groups it does the steps of upkeep that verbs have
//! left to it.

use super::super::verbs::rows::{Effect, Keys, RowOp, RowView};
use super::super::{Engine, Guarded, Inner};
use super::group::{Group, Need};
use super::ranges::{Portion, next_portion as next_portion_of_ranges};
use super::slices::SLICE_ROWS;
use super::{Busy, Shared, State};
use crate::cache::NextUse;
use crate::error::{ErrorKind, Result};
use crate::metrics::Timed;
use std::sync::Weak;
use std::sync::atomic::Ordering;

/// Rows of a group that are read in one go, between looks at what callers want.
pub(super) const PORTION_ROWS: usize = 8192;

/// Bytes of the notes about the rows of a portion while they are read.
pub(super) fn scratch_bytes(rows: usize) -> u64 {
    rows as u64 * 64
}

/// The next task of the reader.
enum Task {
    /// Reads a group on, of which so many rows are done.
    Read(Group, usize),
    /// Reads a portion of a range.
    Range(Portion),
    /// Does a step of upkeep.
    Upkeep,
}

/// Runs until the store is closed or gone.
pub(super) fn run(shared: &Shared, store: &Weak<Guarded>) {
    // The class whose turn of upkeep it is.
    let mut class = 0;
    while let Some(task) = wait_for_task(shared) {
        let (group, done) = match task {
            Task::Read(group, done) => (group, done),
            Task::Range(portion) => {
                let Some(inner) = store.upgrade() else { return };
                let _guard = inner.poison_on_panic();
                match inner.read_range(shared, &portion) {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            }
            Task::Upkeep => match keep_up(shared, store, &mut class) {
                Some(()) => continue,
                None => return,
            },
        };
        let Some(done) = read_on(shared, &group, done, store) else { return };
        let mut state = shared.state.lock();
        state.reading = false;
        if done < group.needs.len() {
            state.left = Some((group, done));
        }
        drop(state);
        shared.progress.notify_all();
    }
}

/// Does a step of upkeep, of `class` where one is due, and comes to the next class; `None` when the
/// store is closed or gone.
fn keep_up(shared: &Shared, store: &Weak<Guarded>, class: &mut usize) -> Option<()> {
    let _busy = Busy(shared);
    let inner = store.upgrade()?;
    let _guard = inner.poison_on_panic();
    match inner.step_in_background(*class) {
        Ok(Some(done)) => {
            *class = done + 1;
            shared.counters.upkeep.fetch_add(1, Ordering::Relaxed);
            shared.state.lock().upkeep = true;
            Some(())
        }
        Err(error) if error.kind() == ErrorKind::Closed => None,
        Ok(None) | Err(_) => Some(()),
    }
}

/// Reads portions of a group until it is read, or its reader is to rest. Returns how many of its
/// rows are done; `None` when the store is closed or gone.
fn read_on(
    shared: &Shared,
    group: &Group,
    mut done: usize,
    store: &Weak<Guarded>,
) -> Option<usize> {
    while done < group.needs.len() {
        if shared.state.lock().rest.left().is_some() {
            return Some(done);
        }
        // A waiting thread must not keep a store alive after its owner has dropped it.
        let Some(_busy) = next_portion(shared, group) else { break };
        let inner = store.upgrade()?;
        let _guard = inner.poison_on_panic();
        match read_one(&inner, shared, group, done) {
            Ok(rows) => done += rows,
            Err(error) if error.kind() == ErrorKind::Closed => return None,
            Err(error) => {
                shared.failed(error.to_string());
                break;
            }
        }
    }
    is_read(shared, group);
    Some(group.needs.len())
}

/// Reads the next portion of a group; how many rows that were.
pub(super) fn read_one(
    inner: &Inner,
    shared: &Shared,
    group: &Group,
    done: usize,
) -> Result<usize> {
    let _timed = Timed::new(&shared.counters.reading_ns);
    let engine = inner.planned_engine()?;
    let rows = inner.read_portion(shared, &engine, group, done)?;
    let batches = group.batches_read(done + rows) - group.batches_read(done);
    shared.counters.group_batches.fetch_add(batches, Ordering::Relaxed);
    Ok(rows)
}

/// A group is read as far as it will be.
pub(super) fn is_read(shared: &Shared, group: &Group) {
    if group.needs.is_empty() {
        let batches = group.batches_read(0);
        shared.counters.group_batches.fetch_add(batches, Ordering::Relaxed);
    }
    shared.set_filled(group.last());
}

/// Waits while the window rests; `None` when the group is not wanted any more.
pub(super) fn next_portion<'s>(shared: &'s Shared, group: &Group) -> Option<Busy<'s>> {
    let mut state = shared.state.lock();
    while state.paused && !state.stop && state.cleared < group.first() {
        shared.reads.wait(&mut state);
    }
    let over = state.cleared >= group.first()
        || state.finished >= group.last()
        // A caller that is at a batch reads it itself.
        || state.slices && state.begun >= group.first();
    let wanted = !state.stop && !over;
    state.busy += u32::from(wanted);
    drop(state);
    wanted.then(|| Busy(shared))
}

/// The next task: groups come first. `None` when the window ends.
fn wait_for_task(shared: &Shared) -> Option<Task> {
    let mut state = shared.state.lock();
    loop {
        if state.stop {
            return None;
        }
        match state.rest.left() {
            Some(rest) => drop(shared.reads.wait_for(&mut state, rest)),
            None => {
                if let Some((group, done)) = next_group(shared, &mut state) {
                    return Some(Task::Read(group, done));
                }
                if let Some(portion) = next_portion_of_ranges(&mut state) {
                    return Some(Task::Range(portion));
                }
                if state.upkeep && !state.paused {
                    state.upkeep = false;
                    state.busy += 1;
                    return Some(Task::Upkeep);
                }
                shared.reads.wait(&mut state);
            }
        }
    }
}

/// The next group to read, if nobody reads one: what was left of one, or another, once callers
/// have come to the one before it. Somebody reads from here on.
pub(super) fn next_group(shared: &Shared, state: &mut State) -> Option<(Group, usize)> {
    if state.reading {
        return None;
    }
    let group = state.left.take().or_else(|| take_group(shared, state).map(|g| (g, 0)))?;
    state.reading = true;
    state.reads_first = group.0.first();
    Some(group)
}

/// The group that was formed, once callers have come to the one before it.
fn take_group(shared: &Shared, state: &mut State) -> Option<Group> {
    let (begun, filled) = (state.begun, state.filled);
    let group = state.formed.take_if(|g| begun >= g.after || begun > filled)?;
    // The planner forms the one behind it meanwhile.
    shared.work.notify_one();
    shared.counters.groups.fetch_add(1, Ordering::Relaxed);
    Some(group)
}

impl Inner {
    /// Reads some of a group's rows, from the needs at `done` on. Returns how many are done then.
    pub(super) fn read_portion(
        &self,
        shared: &Shared,
        engine: &Engine,
        group: &Group,
        done: usize,
    ) -> Result<usize> {
        // A reader that has moved to another commit may have no such table.
        let class_of = |need: &Need| engine.table(need.table).map(|t| t.class);
        let gone = group.needs[done..].iter().take_while(|need| class_of(need).is_none()).count();
        let done = done + gone;
        let left = &group.needs[done..];
        if left.is_empty() {
            return Ok(done);
        }
        let most = if shared.state.lock().slices { SLICE_ROWS } else { PORTION_ROWS };
        let table_of = |need: &Need| engine.known_table(need.table);
        let number = table_of(&left[0]).class;
        let class = &engine.classes[number];
        let cache = class.cache();
        // Rows of one page stay together.
        let ends = |i: usize| {
            let (before, need) = (&left[i - 1], &left[i]);
            class_of(need) != Some(number) || i >= most && before.order != need.order
        };
        let rows = (1..left.len()).find(|i| ends(*i)).unwrap_or(left.len());
        let portion = &left[..rows];

        let mut tables: Vec<u16> = portion.iter().map(|need| need.table).collect();
        tables.sort_unstable();
        tables.dedup();
        let mut op = AheadOp { next: vec![Vec::new(); tables.len()], ..AheadOp::default() };
        let mut keys: Vec<Vec<u64>> = vec![Vec::new(); tables.len()];
        let mut places = Vec::with_capacity(rows);
        cache.ahead(
            rows,
            |i| table_of(&portion[i]).locate(cache, portion[i].key),
            |i, at| {
                // A group before this one, or a verb, may have brought the row since.
                let need = &portion[i];
                let next = group.next_use(need);
                if !cache.expect_use(at, need.table, need.key, next) {
                    let batch = tables.binary_search(&need.table).expect("all are among them");
                    places.push((batch as u32, keys[batch].len() as u32));
                    keys[batch].push(need.key);
                    op.next[batch].push(next);
                }
            },
        );
        let batches: Vec<Keys<'_>> = tables
            .iter()
            .zip(&keys)
            .map(|(id, keys)| Keys { table: engine.known_table(*id), keys })
            .collect();
        op.moves_victims = self.reserve_to_move(shared, engine, number, &batches);
        let report = self.visit_ahead(engine, class, &batches, places, &mut op);
        if op.moves_victims {
            self.end_reservation(&engine.classes, &batches);
        }
        let c = &shared.counters;
        c.loaded.fetch_add(op.loaded, Ordering::Relaxed);
        c.turned_away.fetch_add(op.turned_away, Ordering::Relaxed);
        c.rewritten.fetch_add(op.moved, Ordering::Relaxed);
        let report = report?;
        c.count_read(&report);
        let (brought, of_page) = (op.loaded + op.turned_away, class.rows_per_page());
        shared.state.lock().scatter.count(number, (brought, report.read.pages), of_page);
        Ok(rows)
    }

    /// Room for as many rows of a class as come, where those that leave for them are to be written
    /// although they have not changed.
    fn reserve_to_move(
        &self,
        shared: &Shared,
        engine: &Engine,
        class: usize,
        rows: &[Keys<'_>],
    ) -> bool {
        if !shared.state.lock().scatter.is_scattered(class) {
            return false;
        }
        let is_scheduled = engine.classes[class].lock(&self.metrics).stretch_bytes() > 0;
        is_scheduled && self.may_begin_to_write() && self.reserve_spare(engine, rows)
    }
}

/// Makes rows resident for batches to come.
#[derive(Default)]
struct AheadOp {
    /// The batch that uses each row first.
    next: Vec<Vec<NextUse>>,
    /// See [`RowOp::moves_victims`].
    moves_victims: bool,
    loaded: u64,
    turned_away: u64,
    moved: u64,
}

impl RowOp for AheadOp {
    const AHEAD: bool = true;

    fn visit(&mut self, _: usize, _: usize, _: RowView<'_>) -> Effect {
        self.loaded += 1;
        Effect::Read
    }

    fn next_use(&self, batch: usize, position: usize) -> Option<NextUse> {
        Some(self.next[batch][position])
    }

    fn turned_away(&mut self) {
        self.turned_away += 1;
    }

    fn moves_victims(&self) -> bool {
        self.moves_victims
    }

    fn moved_victim(&mut self) {
        self.moved += 1;
    }
}
