//! Ranges of ids that are announced: whole parts of a dense table, which are read in the order of
//! their ids and held until they are let go.
//!
//! A range has no batch and no order among others: each is begun and finished by its own number. It
//! takes 16 bytes for each run of ids, whatever rows that is. The planner takes the memory, holds
//! the rows that are there, and lets go of those of a range that is finished; the reader, or a
//! caller that waits, reads the others, a portion at a time, with requests as long as neighbouring
//! pages allow. Rows of a range that verbs bring are held, too.
//!
//! Rows that are let go leave when others come, or at once, in the order of their ids: then those
//! that have changed are written in about that order, and the range's next read is a long one. What
//! has not changed stays where it was, among copies of others that are outdated by then. When a
//! range was read from many more pages than its rows fill, all of its rows are written when it
//! leaves, and share pages again.

use super::super::engine::Table;
use super::super::verbs::misses::{mark_to_move, write_or_park};
use super::super::verbs::rows::{Effect, Keys, RowOp, RowView};
use super::super::{Engine, Inner, Store};
use super::planner::Plan;
use super::reader::scratch_bytes;
use super::{Busy, Shared, State};
use crate::cache::{NextUse, Run};
use crate::config::TableId;
use crate::error::{Result, bail};
use crate::metrics::Timed;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Numbers of ranges begin behind this one; batches never come so far.
pub(super) const FIRST: u64 = 1 << 62;
/// Rows of a portion, the most and the fewest: the reader waits for the last pages of each.
const PORTION_ROWS: (u64, u64) = (256, 1 << 15);
/// The part of a window that what is noted of a portion takes.
const WINDOW_PER_PORTION: u64 = 8;
/// Ranges take at most so many eighths of the rows that a cache can hold: others come, too, and no
/// set is as full as the next.
const CACHE_EIGHTHS: u64 = 7;
/// Rows that leave under one lock of their class.
const EVICTED_AT_ONCE: u64 = 256;
/// A range that was read from so many times the pages that its rows fill is written as a whole.
/// `docs/decisions/0031-a-scattered-range-is-written-as-a-whole.md` has what other numbers give.
const SCATTERED: f64 = 1.2;
/// The part of a window that runs of ids take at most.
const WINDOW_PER_RUNS: u64 = 8;

/// Stage of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody has looked at it.
    Announced,
    /// Its rows are held as they come; those from a place on are to be read.
    Reading,
    /// All are there that fit, or there was no room for a window.
    Read,
}

/// A range that was announced and not let go.
#[derive(Debug)]
struct Range {
    number: u64,
    table: TableId,
    runs: Arc<[Run]>,
    rows: u64,
    phase: Phase,
    /// Run and id that are read next.
    at: (usize, u64),
    /// Rows that were read so far, and the pages that they were on.
    rows_read: u64,
    pages_read: u64,
    /// Portions that were read: two of them share a page where they meet.
    portions: u64,
    finished: bool,
    /// Its rows leave when it is finished.
    leaves: bool,
}

impl Range {
    /// Whether it was read from many more pages than its rows fill: as far as that can be told,
    /// where most of them were read, and beside the pages at the ends of runs and of portions.
    fn is_scattered(&self, rows_per_page: u64) -> bool {
        let ends = self.portions + self.runs.len() as u64;
        let filled = self.rows_read as f64 / rows_per_page as f64;
        2 * self.rows_read >= self.rows
            && self.pages_read.saturating_sub(ends) as f64 >= SCATTERED * filled
    }
}

/// All of them, in the order in which they were announced.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    ranges: Vec<Range>,
    announced: u64,
    /// The range of which somebody reads a portion.
    reading: Option<u64>,
    portion_rows: u64,
}

/// Some of a range's ids, to be read.
#[derive(Debug)]
pub(super) struct Portion {
    number: u64,
    table: TableId,
    keys: Vec<u64>,
}

/// A range whose rows are held.
#[derive(Debug)]
pub(super) struct Holding {
    number: u64,
    table: TableId,
    runs: Arc<[Run]>,
}

impl Ranges {
    fn find(&mut self, number: u64) -> Option<&mut Range> {
        self.ranges.iter_mut().find(|range| range.number == number)
    }

    fn push(&mut self, table: TableId, runs: &[Run]) -> u64 {
        self.announced += 1;
        let number = FIRST + self.announced;
        let rows = rows_of(runs);
        self.ranges.push(Range {
            number,
            table,
            runs: runs.into(),
            rows,
            phase: Phase::Announced,
            at: (0, runs[0].0),
            rows_read: 0,
            pages_read: 0,
            portions: 0,
            finished: false,
            leaves: false,
        });
        number
    }

    /// Whether the range was announced, ever.
    pub(super) fn knows(&self, number: u64) -> bool {
        (FIRST + 1..=FIRST + self.announced).contains(&number)
    }

    /// Nobody has to wait for it.
    pub(super) fn is_there(&self, number: u64) -> bool {
        let of = |range: &&Range| range.number == number;
        self.ranges.iter().find(of).is_none_or(|range| range.phase == Phase::Read || range.finished)
    }

    /// Its rows may leave; with `leaves` they do.
    pub(super) fn finish(&mut self, number: u64, leaves: bool) {
        if let Some(range) = self.find(number).filter(|range| !range.finished) {
            (range.finished, range.leaves) = (true, leaves);
        }
    }

    pub(super) fn finish_all(&mut self) {
        self.ranges.iter_mut().for_each(|range| range.finished = true);
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// The next task of the planner: first a range to let go, then one to hold.
    pub(super) fn next_task(&self) -> Option<(u64, bool)> {
        // Rows of a portion that is read meanwhile would be held for ever.
        let over = |r: &&Range| r.finished && self.reading != Some(r.number);
        let new = |r: &&Range| r.phase == Phase::Announced && !r.finished;
        let over = self.ranges.iter().find(over).map(|range| (range.number, false));
        over.or_else(|| self.ranges.iter().find(new).map(|range| (range.number, true)))
    }

    /// The next portion to read. Somebody reads from here on.
    fn take_portion(&mut self) -> Option<Portion> {
        if self.reading.is_some() {
            return None;
        }
        let most = self.portion_rows as usize;
        let next = |r: &&mut Range| r.phase == Phase::Reading && !r.finished;
        let range = self.ranges.iter_mut().find(next)?;
        let mut keys = Vec::with_capacity(most);
        while range.at.0 < range.runs.len() && keys.len() < most {
            let (_, last) = range.runs[range.at.0];
            let to = last.min(range.at.1 + (most - keys.len()) as u64);
            keys.extend(range.at.1..to);
            range.at.1 = to;
            if to == last {
                let run = range.at.0 + 1;
                range.at = (run, range.runs.get(run).map_or(0, |(first, _)| *first));
            }
        }
        self.reading = Some(range.number);
        Some(Portion { number: range.number, table: range.table, keys })
    }

    /// A portion is read, so many rows of so many pages; the last one of a range where that failed.
    fn was_read(&mut self, number: u64, read: Option<(u64, u64)>) {
        self.reading = None;
        let Some(range) = self.find(number) else { return };
        let (rows, pages) = read.unwrap_or_default();
        range.rows_read += rows;
        range.pages_read += pages;
        range.portions += 1;
        if read.is_none() || range.at.0 == range.runs.len() {
            range.phase = Phase::Read;
        }
    }
}

fn rows_of(runs: &[Run]) -> u64 {
    runs.iter().map(|(first, last)| last - first).sum()
}

impl State {
    /// A portion to read, unless the window ends or rests.
    fn take_portion(&mut self) -> Option<Portion> {
        if self.stop || self.paused {
            return None;
        }
        let portion = self.ranges.take_portion()?;
        self.busy += 1;
        Some(portion)
    }
}

/// The next portion for the reader.
pub(super) fn next_portion(state: &mut State) -> Option<Portion> {
    state.take_portion()
}

impl Store {
    /// Announces ids of a dense table that are about to be used much: runs of them, each from the
    /// first to one before the last, ascending and apart. Returns a number for
    /// [`begin`](Self::begin) and [`finish`](Self::finish); `None` when the cache has no room for
    /// them beside those announced before, which changes once some are finished.
    ///
    /// Their rows are read in the order of ids, with long requests, and held until the range is
    /// finished: others leave before them. Ranges are begun and finished one by one, in any order,
    /// and apart from batches. A range takes 16 bytes of the window for each run. Results never
    /// change. Ids that were never written cost no read.
    ///
    /// *Errors*: `Unsupported` for a growing table, whose keys have no order, and for one whose
    /// rows never are in a cache; `KeyRange` for ids outside the table; `Misuse` for runs that are
    /// empty or not ascending; `NotFound`; `Closed`. *Blocking*: no.
    pub fn announce_range(&self, table: TableId, runs: &[Run]) -> Result<Option<u64>> {
        let inner = &*self.inner;
        let engine = inner.planned_engine()?;
        let found = inner.table_of(&engine, table)?;
        let name = &found.record.spec.name;
        let Some(ids) = found.record.spec.num_embeddings else {
            bail!(
                Unsupported,
                "table '{name}' is a growing one: its keys have no order in which a range of them \
                 could be read; announce batches of keys"
            );
        };
        if found.region.is_some() || engine.classes[found.class].is_direct {
            bail!(
                Unsupported,
                "table '{name}' is stored as {}: its rows are never in the cache, there is \
                 nothing to read ahead",
                found.record.spec.storage.name()
            );
        }
        check_runs(name, ids, runs)?;
        inner.window.start(&self.inner)?;
        let shared = &*inner.window.shared;
        let most = inner.window_most_bytes(&engine);
        let class = found.class;
        let capacity = engine.classes[class].cache().row_capacity();
        let mut state = shared.state.lock();
        if state.stop {
            return Err(inner.closed());
        }
        let of_class = |range: &&Range| {
            !range.finished && engine.table(range.table.0).is_some_and(|t| t.class == class)
        };
        let rows: u64 = state.ranges.ranges.iter().filter(of_class).map(|range| range.rows).sum();
        let held: usize = state.ranges.ranges.iter().map(|range| range.runs.len()).sum();
        let fits = rows + rows_of(runs) <= capacity / 8 * CACHE_EIGHTHS
            && bytes_of(held + runs.len()) <= most / WINDOW_PER_RUNS;
        if !fits {
            shared.counters.refused.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let number = state.ranges.push(table, runs);
        drop(state);
        shared.counters.ranges.fetch_add(1, Ordering::Relaxed);
        shared.wake();
        Ok(Some(number))
    }
}

fn check_runs(name: &str, ids: u64, runs: &[Run]) -> Result<()> {
    if runs.is_empty() {
        bail!(Misuse, "the range of table '{name}' has no ids, expected at least one");
    }
    let mut before = 0;
    for (first, last) in runs {
        if first >= last || *first < before {
            bail!(
                Misuse,
                "the range {first} to {last} of table '{name}' is empty, or begins before the one \
                 in front of it ends; expected first < last, in rising order"
            );
        }
        if *last > ids {
            bail!(
                KeyRange,
                "the range {first} to {last} is not within table '{name}', whose ids are 0 to {}",
                ids - 1
            );
        }
        before = *last;
    }
    Ok(())
}

fn bytes_of(runs: usize) -> u64 {
    (runs * size_of::<Run>()) as u64
}

impl Plan {
    /// Bytes of what is held, and of a portion while it is read.
    pub(super) fn ranges_bytes(&self) -> u64 {
        match self.holdings.is_empty() {
            true => 0,
            false => {
                let runs = self.holdings.iter().map(|holding| holding.runs.len()).sum();
                bytes_of(runs) + scratch_bytes(self.portion_rows() as usize)
            }
        }
    }

    fn portion_rows(&self) -> u64 {
        let fit = self.most_bytes / WINDOW_PER_PORTION / scratch_bytes(1);
        fit.clamp(PORTION_ROWS.0, PORTION_ROWS.1)
    }

    /// Takes note that a range is to be held, before memory for it is taken.
    pub(super) fn take_range(&mut self, shared: &Shared, number: u64) {
        let mut state = shared.state.lock();
        if let Some(range) = state.ranges.find(number) {
            let (table, runs) = (range.table, range.runs.clone());
            self.holdings.push(Holding { number, table, runs });
        }
    }

    /// Holds the rows of a range that are there; the others are to be read. One for which the
    /// window has no room is passed over.
    pub(super) fn hold(&mut self, shared: &Shared, engine: &Engine, number: u64, fits: bool) {
        if !fits {
            self.holdings.retain(|holding| holding.number != number);
            shared.counters.skipped.fetch_add(1, Ordering::Relaxed);
        }
        self.hold_again(engine);
        let mut state = shared.state.lock();
        state.ranges.portion_rows = self.portion_rows();
        if let Some(range) = state.ranges.find(number) {
            range.phase = if fits { Phase::Reading } else { Phase::Read };
        }
        drop(state);
        shared.reads.notify_one();
        shared.progress.notify_all();
    }

    /// Caches that were made anew meanwhile know of no ranges.
    pub(super) fn hold_again(&self, engine: &Engine) {
        for Holding { number, table: id, runs } in &self.holdings {
            let Some(table) = engine.table(id.0) else { continue };
            let cache = engine.classes[table.class].cache();
            if cache.holds(*number) {
                continue;
            }
            cache.hold(*number, id.0, runs);
            for (first, last) in runs.iter() {
                cache.ahead(
                    (last - first) as usize,
                    |i| table.locate(cache, first + i as u64),
                    |i, at| {
                        cache.mark_held(at, id.0, first + i as u64);
                    },
                );
            }
        }
    }

    /// The rows of a range may leave. One that is of another, too, stays held.
    pub(super) fn let_go(
        &mut self,
        shared: &Shared,
        inner: &Inner,
        engine: &Engine,
        number: u64,
    ) -> Result<()> {
        let (leaves, is_scattered) = {
            let ranges = &mut shared.state.lock().ranges;
            let rows_per_page = |range: &Range| {
                let table = engine.table(range.table.0);
                table.map_or(1, |table| engine.classes[table.class].rows_per_page())
            };
            let found = ranges.find(number).map(|r| (r.leaves, r.is_scattered(rows_per_page(r))));
            ranges.ranges.retain(|range| range.number != number);
            found.unwrap_or_default()
        };
        let Some(at) = self.holdings.iter().position(|holding| holding.number == number) else {
            return Ok(());
        };
        let Holding { table: id, runs, .. } = self.holdings.remove(at);
        let Some(table) = engine.table(id.0) else { return Ok(()) };
        let class = &engine.classes[table.class];
        let cache = class.cache();
        // Merges of an lsm bring rows together.
        let mut rewrites = leaves && is_scattered && !class.log.lock().sorts_writes();
        cache.let_go(number);
        for (first, last) in runs.iter() {
            cache.ahead(
                (last - first) as usize,
                |i| table.locate(cache, first + i as u64),
                |i, at| cache.unmark_held(at, id.0, first + i as u64),
            );
            if leaves {
                inner.evict(shared, engine, table, (*first, *last), &mut rewrites)?;
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Rows of a run leave the cache, in the order of their ids, but for those that are held. With
    /// `rewrites` those are written, too, that are stored as they are, until the disk has no room.
    fn evict(
        &self,
        shared: &Shared,
        engine: &Engine,
        table: &Table,
        (first, last): Run,
        rewrites: &mut bool,
    ) -> Result<()> {
        let mut next = first;
        while next < last {
            let end = last.min(next + EVICTED_AT_ONCE);
            let ids: Vec<u64> = if *rewrites { (next..end).collect() } else { Vec::new() };
            let batch = [Keys { table, keys: &ids }];
            *rewrites = *rewrites && self.reserve_spare(engine, &batch);
            let left = self.evict_some(shared, engine, table, (next, end), *rewrites);
            if *rewrites {
                self.end_reservation(&engine.classes, &batch);
            }
            left?;
            next = end;
        }
        Ok(())
    }

    fn evict_some(
        &self,
        shared: &Shared,
        engine: &Engine,
        table: &Table,
        (first, last): Run,
        rewrites: bool,
    ) -> Result<()> {
        let class = &engine.classes[table.class];
        let cache = class.cache();
        let mut log = class.lock(&self.metrics);
        for key in first..last {
            self.make_room_ahead(engine, class, &mut **log)?;
            let (mut dirty, mut rewritten, mut parked) = (false, false, Ok(()));
            let left = cache.evict(table.locate(cache, key), table.id(), key, |mut victim| {
                dirty = victim.dirty;
                rewritten = rewrites && mark_to_move(&**log, class, &mut victim);
                parked = write_or_park(&mut **log, class, victim);
            });
            self.metrics.evicted.fetch_add(u64::from(left), Ordering::Relaxed);
            self.metrics.evicted_dirty.fetch_add(u64::from(dirty), Ordering::Relaxed);
            shared.counters.rewritten.fetch_add(u64::from(rewritten), Ordering::Relaxed);
            self.poison_on_error(parked)?;
        }
        // A verb that waits for the class comes first.
        MutexGuard::unlock_fair(log);
        Ok(())
    }

    /// Reads a portion, if there is one that nobody is at; false when there is none.
    pub(super) fn help_to_read_ranges(&self, shared: &Shared) -> bool {
        let Some(portion) = shared.state.lock().take_portion() else { return false };
        let _guard = self.poison_on_panic();
        // On an error the caller goes on: verbs report what is wrong.
        let _ = self.read_range(shared, &portion);
        true
    }

    /// Reads a portion, and says so. *Errors*: `Closed` alone.
    pub(super) fn read_range(&self, shared: &Shared, portion: &Portion) -> Result<()> {
        let _busy = Busy(shared);
        let read = self.read_rows_of(shared, portion);
        let mut state = shared.state.lock();
        state.ranges.was_read(portion.number, read.as_ref().ok().copied());
        drop(state);
        shared.wake();
        shared.progress.notify_all();
        match read {
            Err(error) if error.kind() != crate::error::ErrorKind::Closed => {
                shared.failed(error.to_string());
                Ok(())
            }
            read => read.map(drop),
        }
    }

    /// Reads the rows of a portion that are not there; how many came, and from how many pages.
    fn read_rows_of(&self, shared: &Shared, portion: &Portion) -> Result<(u64, u64)> {
        let _timed = Timed::new(&shared.counters.reading_ns);
        let engine = self.planned_engine()?;
        // A reader that has moved to another commit may have no such table.
        let Some(table) = engine.table(portion.table.0) else { return Ok((0, 0)) };
        let class = &engine.classes[table.class];
        let cache = class.cache();
        let (mut keys, mut places) = (Vec::new(), Vec::new());
        cache.ahead(
            portion.keys.len(),
            |i| table.locate(cache, portion.keys[i]),
            |i, at| {
                if !cache.mark_held(at, table.id(), portion.keys[i]) {
                    places.push((0, keys.len() as u32));
                    keys.push(portion.keys[i]);
                }
            },
        );
        let mut op = RangeOp { loaded: 0, turned_away: 0 };
        let batch = [Keys { table, keys: &keys }];
        let report = self.visit_ahead(&engine, class, &batch, places, &mut op);
        shared.counters.loaded.fetch_add(op.loaded, Ordering::Relaxed);
        shared.counters.turned_away.fetch_add(op.turned_away, Ordering::Relaxed);
        let report = report?;
        shared.counters.count_read(&report);
        Ok((op.loaded, report.read.pages))
    }
}

/// Makes rows of a range resident.
struct RangeOp {
    loaded: u64,
    turned_away: u64,
}

impl RowOp for RangeOp {
    const AHEAD: bool = true;

    fn visit(&mut self, _: usize, _: usize, _: RowView<'_>) -> Effect {
        self.loaded += 1;
        Effect::Read
    }

    fn next_use(&self, _: usize, _: usize) -> Option<NextUse> {
        Some(NextUse::HELD)
    }

    fn turned_away(&mut self) {
        self.turned_away += 1;
    }
}
