//! Rows that a verb has not found in the cache: memory or a page has them, or nobody wrote them.
//!
//! The misses of a verb in a class are sorted by page, and every page is read once; a row is handed
//! to the verb when its page arrives, so a batch may be larger than the cache. Rows that change
//! meanwhile are looked up again.

use crate::activation::{Branch, note};
use crate::cache::{RowMut, RowRef};
use crate::error::Result;
use crate::metrics::{Metrics, ReadReport, Timed};
use crate::planted::{self, Bug};
use crate::storage::{Found, PageAddress, Resolved, Storage, Want};
use crate::store::Inner;
use crate::store::engine::{Class, ClassPhase, Engine, Table, dirty_row, park};
use crate::store::verbs::rows::{Keys, RowOp, RowView, Stamps, visit};
use parking_lot::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

/// Victims of a commit that are written between two looks at the budget.
const VICTIMS_UNASKED: u32 = 64;

/// A position that missed the cache.
#[derive(Clone, Copy)]
pub(in crate::store) struct Miss {
    pub(in crate::store) batch: u32,
    pub(in crate::store) position: u32,
}

/// Reads for the misses of a verb.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct MissReport {
    /// All rounds together.
    pub(in crate::store) read: ReadReport,
    /// Pages of them that were read in later rounds, because rows had moved meanwhile.
    pub(in crate::store) pages_again: u64,
}

/// Progress of a miss.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// `left` candidate pages are still to come.
    Reading {
        left: u8,
    },
    Done,
    /// The row may be elsewhere meanwhile: look again.
    Moved,
}

impl Inner {
    /// Hands rows that are known to be missing to an op that is ahead: those at `places`, each a
    /// batch and a position in it.
    pub(in crate::store) fn visit_ahead<O: RowOp>(
        &self,
        engine: &Engine,
        class: &Class,
        batches: &[Keys<'_>],
        places: Vec<(u32, u32)>,
        op: &mut O,
    ) -> Result<MissReport> {
        let misses = places.into_iter().map(|(batch, position)| Miss { batch, position }).collect();
        self.visit_misses(engine, class, batches, misses, Stamps::default(), op)
    }

    pub(in crate::store) fn visit_misses<O: RowOp>(
        &self,
        engine: &Engine,
        class: &Class,
        batches: &[Keys<'_>],
        mut misses: Vec<Miss>,
        stamps: Stamps,
        op: &mut O,
    ) -> Result<MissReport> {
        let mut wanted: Vec<Want> = Vec::new();
        let mut progress: Vec<Progress> = Vec::new();
        let mut report = MissReport::default();
        let mut first_round = true;
        if op.admits() && !O::AHEAD {
            class.cache().announce_misses(misses.len());
        }
        while !misses.is_empty() {
            wanted.clear();
            progress.clear();
            progress.resize(misses.len(), Progress::Done);
            let further = Vec::new();
            let mut visitor =
                MissVisitor { inner: self, engine, class, batches, stamps, op: &mut *op, further };
            let ticket = ReadTicket::new(class, &self.metrics);
            let looked = {
                let mut log = class.lock(&self.metrics);
                visitor.visit_in_memory(&mut **log, &misses, &mut progress, &mut wanted)
            };
            if first_round && !O::AHEAD {
                let missed = progress.iter().filter(|p| **p != Progress::Done).count() as u64;
                self.metrics.misses.fetch_add(missed, Ordering::Relaxed);
            }
            if looked.is_ok() && !wanted.is_empty() {
                let _timed = Timed::new(&self.metrics.select_ns);
                if class.pages.select(&mut wanted) {
                    count_again(&wanted, &mut progress);
                }
            }
            let read = match looked {
                Ok(()) if !wanted.is_empty() => {
                    visitor.visit_in_pages(&misses, &mut progress, &mut wanted)
                }
                looked => looked.map(|()| ReadReport::default()),
            };
            drop(ticket);
            let read = read.map_err(|error| self.after_failed_write(error))?;
            report.read.add(&read);
            if !first_round {
                report.pages_again += read.pages;
            }
            first_round = false;
            let mut states = progress.iter();
            misses.retain(|_| states.next() != Some(&Progress::Done));
        }
        Ok(report)
    }
}

/// Counts the pages of each miss that is read again, after some were left out.
fn count_again(wanted: &[Want], progress: &mut [Progress]) {
    for of_miss in wanted.chunk_by(|a, b| a.miss == b.miss) {
        let left = of_miss.len().min(255) as u8;
        progress[of_miss[0].miss as usize] = Progress::Reading { left };
    }
}

/// Until it is dropped, by a panic of the verb too, no page is written again that the index named
/// when it was made.
struct ReadTicket<'a> {
    class: &'a Class,
    metrics: &'a Metrics,
    number: u64,
}

impl<'a> ReadTicket<'a> {
    fn new(class: &'a Class, metrics: &'a Metrics) -> Self {
        let number = class.lock(metrics).begin_read();
        Self { class, metrics, number }
    }
}

impl Drop for ReadTicket<'_> {
    fn drop(&mut self) {
        self.class.lock(self.metrics).end_read(self.number);
    }
}

/// Source of the words of a missing row.
enum Source<'a> {
    /// A stored or waiting row.
    Words(&'a [f32]),
    /// The initial row.
    Initial,
    /// Nobody will look at them.
    Blank,
}

struct MissVisitor<'a, 'k, O> {
    inner: &'a Inner,
    engine: &'a Engine,
    class: &'a Class,
    batches: &'a [Keys<'k>],
    stamps: Stamps,
    op: &'a mut O,
    /// Pages that are named only once others had another key, to be read under the same ticket.
    further: Vec<Want>,
}

fn refill(scratch: &mut Vec<f32>, words: &[f32]) {
    scratch.clear();
    scratch.extend_from_slice(words);
}

impl<'k, O: RowOp> MissVisitor<'_, 'k, O> {
    /// Counts what a verb did; an op that is ahead has counters of its own.
    fn count(&self, counter: &AtomicU64, n: u64) {
        if !O::AHEAD {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// A place in the flush buffer for one more victim.
    fn make_room(&self, log: &mut dyn Storage) -> Result<()> {
        if O::AHEAD {
            return self.inner.make_room_ahead(self.engine, self.class, log);
        }
        self.inner.journal_victims(self.engine, self.class, log)?;
        self.inner.make_room(self.engine, self.class, log)
    }

    fn key(&self, miss: Miss) -> (&'k Table, u64) {
        let keys = &self.batches[miss.batch as usize];
        (keys.table, keys.keys[miss.position as usize])
    }

    /// Resolves what needs no read; the rest goes to `wanted`.
    fn visit_in_memory(
        &mut self,
        log: &mut dyn Storage,
        misses: &[Miss],
        progress: &mut [Progress],
        wanted: &mut Vec<Want>,
    ) -> Result<()> {
        const AHEAD: usize = 16;
        // Words are copied before they are handed over: that may park a victim in their place.
        let mut scratch = Vec::new();
        for (i, miss) in misses.iter().enumerate() {
            if let Some(ahead) = misses.get(i + AHEAD) {
                let (table, key) = self.key(*ahead);
                log.prefetch(table.id(), key);
            }
            let (table, key) = self.key(*miss);
            self.make_room(log)?;
            let before = wanted.len();
            let blind = self.op.blind() && table.first.is_some();
            match log.find(table.id(), key, i as u32, &[], wanted) {
                Found::Absent => self.hand_over(log, *miss, Source::Initial, 0, None)?,
                Found::Parked { words, dirty_since, origin } => {
                    refill(&mut scratch, words);
                    self.rescue(log, *miss, &mut scratch, dirty_since, origin)?;
                }
                Found::InMemory { origin, .. } | Found::Stored { origin: Some(origin) }
                    if blind =>
                {
                    wanted.truncate(before);
                    self.hand_over(log, *miss, Source::Blank, origin, None)?;
                }
                Found::InMemory { words, origin } => {
                    refill(&mut scratch, words);
                    self.count(&self.inner.metrics.rescued, 1);
                    note(Branch::PageInMemory);
                    self.hand_over(log, *miss, Source::Words(&scratch), origin, None)?;
                }
                Found::Stored { .. } => {
                    let left = (wanted.len() - before).min(255) as u8;
                    progress[i] = Progress::Reading { left };
                }
            }
        }
        Ok(())
    }

    /// Takes a row back that waits to be written, without a read.
    fn rescue(
        &mut self,
        log: &mut dyn Storage,
        miss: Miss,
        words: &mut [f32],
        dirty_since: u32,
        origin: Option<u32>,
    ) -> Result<()> {
        self.count(&self.inner.metrics.rescued, 1);
        note(Branch::Rescued);
        if !self.op.admits() {
            let row = RowView { words, written: true, blank: false, origin };
            self.op.visit(miss.batch as usize, miss.position as usize, row);
            return Ok(());
        }
        let (table, key) = self.key(miss);
        log.unpark(table.id(), key);
        let dirty_since = Some(dirty_since).filter(|_| !planted::is(Bug::DirtyLostOnRescue));
        self.hand_over(log, miss, Source::Words(words), origin.unwrap_or(0), dirty_since)
    }

    /// Reads the pages of `wanted`, and those that are named when they hold other keys.
    fn visit_in_pages(
        &mut self,
        misses: &[Miss],
        progress: &mut [Progress],
        wanted: &mut Vec<Want>,
    ) -> Result<ReadReport> {
        wanted.sort_unstable();
        let mut report = self.read_pages(misses, progress, wanted, wanted)?;
        while !self.further.is_empty() {
            let mut further = std::mem::take(&mut self.further);
            further.sort_unstable();
            wanted.extend_from_slice(&further);
            wanted.sort_unstable();
            report.add(&self.read_pages(misses, progress, &further, wanted)?);
        }
        Ok(report)
    }

    /// Reads the pages of `wanted`, each once, and resolves the misses whose rows they hold. `seen`
    /// are all wants of the ticket.
    fn read_pages(
        &mut self,
        misses: &[Miss],
        progress: &mut [Progress],
        wanted: &[Want],
        seen: &[Want],
    ) -> Result<ReadReport> {
        let class = self.class;
        let mut pages: Vec<PageAddress> = wanted.iter().map(|want| want.at).collect();
        pages.dedup();
        let tier = class.tier();
        let readers = if O::AHEAD { tier.readers_ahead() } else { tier.readers() };
        let report = readers.with(|reader| {
            reader.read(&*class.pages, &pages, &mut |at, page| {
                let first = wanted.partition_point(|want| want.at < at);
                let here = wanted[first..].iter().take_while(|want| want.at == at);
                let mut log = class.lock(&self.inner.metrics);
                log.verify_newest(at, page)?;
                for want in here {
                    self.visit_in_page(&mut **log, misses, progress, seen, want, page)?;
                }
                if O::AHEAD {
                    // A verb that waits for the class comes first: pages that are already here
                    // follow one another so closely that it would wait for all of them.
                    MutexGuard::unlock_fair(log);
                }
                Ok(())
            })
        })?;
        let metrics = &self.inner.metrics;
        if O::AHEAD {
            metrics.add_read_ahead(&report)
        } else {
            metrics.add_read(&report)
        }
        self.inner.note_read();
        Ok(report)
    }

    /// Looks for the row of a miss in a page that has arrived.
    fn visit_in_page(
        &mut self,
        log: &mut dyn Storage,
        misses: &[Miss],
        progress: &mut [Progress],
        seen: &[Want],
        want: &Want,
        page: &[u8],
    ) -> Result<()> {
        let state = progress[want.miss as usize];
        let Progress::Reading { left } = state else { return Ok(()) };
        let miss = misses[want.miss as usize];
        let (table, key) = self.key(miss);
        // Before the look at what is newest: it may flush and clean, which moves rows.
        self.make_room(log)?;
        let resolved = log.resolve(table.id(), key, want, page).map_err(|error| {
            error.context(format!("table '{}', key {key}", table.record.spec.name))
        })?;
        progress[want.miss as usize] = match resolved {
            Resolved::Row { words, origin } => {
                self.hand_over(log, miss, Source::Words(words), origin, None)?;
                Progress::Done
            }
            Resolved::Moved => Progress::Moved,
            // After the last candidate the key is absent, if nothing was written meanwhile and
            // no other page may have it; looking again tells.
            Resolved::Other if left > 1 => Progress::Reading { left: left - 1 },
            Resolved::Other => self.absent(log, miss, want.miss, seen)?,
        };
        Ok(())
    }

    /// Every candidate page held another key. Then the storage may name further pages, which are
    /// read next. Else the key was never written, unless another thread did so while the pages were
    /// read: then it waits, or is in memory; a resident row is found by `hand_over` itself.
    fn absent(
        &mut self,
        log: &mut dyn Storage,
        miss: Miss,
        number: u32,
        seen: &[Want],
    ) -> Result<Progress> {
        let (table, key) = self.key(miss);
        self.inner.metrics.tag_collisions.fetch_add(1, Ordering::Relaxed);
        note(Branch::TagCollision);
        let before = self.further.len();
        match log.find(table.id(), key, number, seen, &mut self.further) {
            Found::Absent => {
                self.hand_over(log, miss, Source::Initial, 0, None)?;
                Ok(Progress::Done)
            }
            Found::Stored { .. } if self.further.len() > before => {
                let left = (self.further.len() - before).min(255) as u8;
                Ok(Progress::Reading { left })
            }
            _ => Ok(Progress::Moved),
        }
    }

    /// Makes the row resident and hands it to the verb. `dirty_since` is the stamp of a row that
    /// differs from its stored copy.
    fn hand_over(
        &mut self,
        log: &mut dyn Storage,
        miss: Miss,
        source: Source<'_>,
        origin: u32,
        dirty_since: Option<u32>,
    ) -> Result<()> {
        let (table, key) = self.key(miss);
        let (batch, position) = (miss.batch as usize, miss.position as usize);
        if matches!(source, Source::Initial) {
            if O::AHEAD {
                return Ok(());
            }
            self.inner.metrics.first_touches.fetch_add(1, Ordering::Relaxed);
        }
        let fill = |words: &mut [f32]| match source {
            Source::Words(from) => words.copy_from_slice(from),
            Source::Initial => self.inner.fill_initial(table, key, words),
            Source::Blank => {}
        };
        let blank = matches!(source, Source::Blank);
        let class = self.class;
        let cache = class.cache();
        let at = table.locate(cache, key);
        if !self.op.admits() {
            let hit = cache.peek(at, table.id(), key, |row| {
                visit(self.op, batch, position, row, 0, false);
            });
            if hit.is_none() {
                let mut words = vec![0.0; table.layout.row_words()];
                fill(&mut words);
                let written = origin != 0 || dirty_since.is_some();
                let row = RowView { words: &mut words, written, blank, origin: Some(origin) };
                self.op.visit(batch, position, row);
            }
            return Ok(());
        }
        let stamps = self.stamps.of_batch(&*self.op, batch, &self.batches[batch]);
        let stamp = stamps.at(self.op.place(batch, position));
        let count = match source {
            Source::Words(_) if dirty_since.is_none() => Some(&self.inner.metrics.loaded),
            Source::Initial => Some(&self.inner.metrics.initial),
            Source::Words(_) | Source::Blank => None,
        };
        // The row is filled and handed to the verb inside of the call that admits it, while its set
        // is locked: a hit of another thread must find it filled, and where a batch is larger than
        // the cache no row need stay until a second pass. The victim is parked in there, too, so
        // that its key is always either resident or found under the class lock.
        let (mut came, mut evicted, mut parked) = (0, (0, 0), Ok(()));
        let (moves_victims, mut moved) = (self.op.moves_victims(), false);
        let op = &mut *self.op;
        let next = op.next_use(batch, position);
        let use_row = |mut row: RowMut<'_>, fresh: bool| {
            if fresh {
                fill(row.words);
                came = 1;
                if let Some(stamp) = dirty_since {
                    row.mark_dirty(stamp);
                }
            }
            visit(&mut *op, batch, position, row, stamp, blank && fresh)
        };
        let leave = |mut victim: RowRef<'_>| {
            evicted = (1, u64::from(victim.dirty));
            moved =
                moves_victims && victim.stretch.is_some() && mark_to_move(log, class, &mut victim);
            parked = write_or_park(log, class, victim);
        };
        let fresh_key = match next {
            // A row that has left the flush buffer has nowhere else to be.
            Some(next) if dirty_since.is_none() => {
                let admitted =
                    cache.admit_ahead(at, (table.id(), key, origin), next, use_row, leave);
                if admitted.is_none() {
                    note(Branch::TurnedAway);
                    self.op.turned_away();
                }
                admitted.unwrap_or(false)
            }
            next => {
                let fresh_key = cache.admit(at, table.id(), key, origin, use_row, leave);
                if let Some(next) = next {
                    cache.expect_use(at, table.id(), key, next);
                }
                fresh_key
            }
        };
        if moved {
            note(Branch::VictimMoved);
            self.op.moved_victim();
        }
        table.rows.fetch_add(u64::from(fresh_key), Ordering::Relaxed);
        if let Some(count) = count {
            count.fetch_add(came, Ordering::Relaxed);
        }
        self.inner.metrics.evicted.fetch_add(evicted.0, Ordering::Relaxed);
        self.inner.metrics.evicted_dirty.fetch_add(evicted.1, Ordering::Relaxed);
        self.inner.poison_on_error(parked)
    }
}

/// Has a victim that has not changed written all the same, to another place. False where it is
/// written anyway, and where nobody wrote it before: it stays so.
pub(in crate::store) fn mark_to_move(
    log: &dyn Storage,
    class: &Class,
    victim: &mut RowRef<'_>,
) -> bool {
    let is_stored = || match victim.origin {
        Some(origin) => origin != 0,
        None => log.contains(victim.table, victim.key) == Some(true),
    };
    let moves = !victim.dirty && is_stored();
    if moves {
        (victim.dirty, victim.dirty_since) = (true, class.now());
    }
    moves
}

/// Writes or parks a victim: one that belongs to the commit under way is written, another dirty one
/// is parked in the flush buffer, where there is a place for it.
pub(in crate::store) fn write_or_park(
    log: &mut dyn Storage,
    class: &Class,
    victim: RowRef<'_>,
) -> Result<()> {
    if victim.captured && class.phase() == ClassPhase::Captured {
        note(Branch::CapturedVictim);
        class.unasked.fetch_add(1, Ordering::Relaxed);
        let written = log.append(dirty_row(victim));
        log.owe(1);
        if written.is_err() {
            park(log, victim);
        }
        return written.map(drop);
    }
    park(log, victim);
    Ok(())
}

/// As [`write_or_park`], of a row for which there may be no place in the flush buffer beside those
/// that are kept for others: then it is written.
pub(in crate::store) fn write_to_leave(
    log: &mut dyn Storage,
    class: &Class,
    victim: RowRef<'_>,
    kept: usize,
) -> Result<()> {
    if !victim.dirty || log.room() > kept {
        return write_or_park(log, class, victim);
    }
    log.owe(1);
    log.append(dirty_row(victim)).map(drop)
}

impl Inner {
    /// A place in the flush buffer for one more victim of what is done ahead of verbs.
    pub(in crate::store) fn make_room_ahead(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        self.journal_victims(engine, class, log)?;
        if log.room() == 0 { self.flush_now(engine, class, log) } else { Ok(()) }
    }

    /// Victims of a commit that is under way are written without the flush buffer.
    fn journal_victims(&self, engine: &Engine, class: &Class, log: &mut dyn Storage) -> Result<()> {
        if class.phase() == ClassPhase::None {
            return Ok(());
        }
        self.check_unpoisoned()?;
        if class.unasked.load(Ordering::Relaxed) >= VICTIMS_UNASKED {
            class.unasked.store(0, Ordering::Relaxed);
            let room = self.make_room_to_write(engine, class, log, u64::from(VICTIMS_UNASKED));
            self.poison_on_error(room)?;
        }
        self.poison_on_error(self.journal_changes_if_many(class, log))
    }

    /// Writes the initial row of a key: values by the table's initializer, rounded to its dtype,
    /// then initial state.
    pub(in crate::store) fn fill_initial(&self, table: &Table, key: u64, words: &mut [f32]) {
        let spec = &table.record.spec;
        let (words, state) = table.layout.split_mut(words);
        let fill = |values: &mut [f32]| {
            spec.initializer.fill(self.superblock.seed, table.salt, key, values);
        };
        if table.layout.is_float32() {
            fill(words);
        } else {
            let mut values = vec![0.0; spec.embedding_dim];
            fill(&mut values);
            table.layout.write_values(words, &values);
        }
        spec.optimizer.init_state(spec.embedding_dim, state);
    }
}
