//! Commit: everything since the last one becomes durable under a step number, or nothing does.
//!
//! Order: room for all of it reserved; the caller's state written and synced; dirty rows to their
//! pages, synced; deltas and pieces of the index to the journal, synced; then the commit record,
//! synced. Only then are older commits dropped and their copies released. A crash at any point
//! leaves the commit before.

use super::engine::{Class, Engine};
use super::journal::{
    ClassCounters, CommitRecord, JournalFile, RecordKind, TableCounters, TableRecord, name_of,
    number_of, piece_header,
};
use super::pieces::{pieces_of, read_piece_from};
use super::reserve::{JOURNAL_BYTES_PER_COMMIT, JOURNAL_BYTES_PER_ROW, STATE_BYTES_KEPT_FREE};
use super::state::StateRef;
use super::superblock::{HEAD_BYTES, write_head};
use super::{Inner, Store, holds, state};
use crate::config::CommitInfo;
use crate::error::{ErrorKind, Result, bail};
use crate::storage::log::{ClassLog, TableIndex};
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A commit writes at least this many bytes of index pieces while a cycle is under way.
const PIECE_BYTES_MIN: u64 = 64 << 10;
/// A new cycle begins when the deltas since the last are as long as the index, at least this.
const CYCLE_BYTES_MIN: u64 = 128 << 10;
/// Rows that a commit cleans for each row of a batch that was refused as `Full`.
const CLEANED_PER_REFUSED_ROW: u64 = 4;
/// Longest meta of a commit.
const META_BYTES_MAX: usize = 256 << 10;
/// Rows of one sorted portion of a commit's flush, at least.
const SORT_ROWS_MIN: usize = 1 << 16;

/// Commits that are kept, the journal, and where its cycle is.
pub(super) struct History {
    /// Kept commits, oldest first.
    pub(super) kept: Vec<CommitRecord>,
    /// `None` until the first write, and after close.
    pub(super) journal: Option<JournalFile>,
    /// Bytes of older journal files that are still needed.
    pub(super) old_journal_bytes: u64,
    /// (journal file, commit at which its cycle was complete), oldest first.
    pub(super) cycles: Vec<(u64, u64)>,
    /// Where the cycle under way goes on: table and piece; `None` when it is complete.
    pub(super) cursor: Option<(usize, u32)>,
    /// Delta bytes since the cycle began, and since the last commit.
    pub(super) cycle_deltas: u64,
    pub(super) epoch_deltas: u64,
    /// Bytes of pieces written since the cycle began.
    pub(super) cycle_pieces: u64,
    /// Bytes of all indexes, when they were last looked at.
    pub(super) index_bytes: u64,
    /// Rows of the largest batch that was refused as `Full` since the last commit.
    pub(super) refused_rows: u64,
    /// True when it was the journal that had no room.
    pub(super) short_of_journal: bool,
    /// The commit that is being prepared.
    pub(super) next_sequence: u64,
    /// Bytes written when the last commit was made, to tell what the next one cost.
    pub(super) written_before: u64,
    /// Rows written when the last commit was made.
    pub(super) rows_before: u64,
    pub(super) payload: Vec<u8>,
}

impl History {
    pub(super) fn commits(&self) -> Vec<CommitInfo> {
        self.kept.iter().map(|c| c.info.clone()).collect()
    }

    pub(super) fn last_state(&self) -> Option<StateRef> {
        self.kept.last().and_then(|c| c.state.clone())
    }

    pub(super) fn close(&mut self) {
        self.journal = None;
    }

    pub(super) fn disk_bytes(&self) -> u64 {
        let journal = self.journal.as_ref().map_or(0, JournalFile::disk_bytes);
        let states: u64 =
            self.kept.iter().map(|c| c.state.as_ref().map_or(0, StateRef::bytes)).sum();
        journal + self.old_journal_bytes + states
    }

    /// Room that changes must leave within a disk bound: for commits, and for the journal file that
    /// replaces this one. Without it the store would stay full for ever. While an older file waits
    /// to be dropped this one is that replacement, and what it has of the indexes is there already.
    pub(super) fn bytes_kept_free(&self) -> u64 {
        let written = if self.old_journal_bytes > 0 { self.cycle_pieces } else { 0 };
        let index = self.index_bytes.max(CYCLE_BYTES_MIN);
        self.bytes_of_next_journal() - written.min(index)
    }

    /// Room for a journal file that replaces this one, and for commits.
    pub(super) fn bytes_of_next_journal(&self) -> u64 {
        self.index_bytes.max(CYCLE_BYTES_MIN) + 3 * JOURNAL_BYTES_PER_COMMIT
    }

    /// Room that files of rows must leave beside that, because they never shrink: for a journal
    /// file that grows until it is replaced.
    pub(super) fn journal_bytes_to_come(&self) -> u64 {
        let file = 2 * self.index_bytes.max(CYCLE_BYTES_MIN) + 2 * JOURNAL_BYTES_PER_COMMIT;
        let journal = self.journal.as_ref().map_or(0, JournalFile::disk_bytes);
        file.saturating_sub(journal + self.old_journal_bytes)
    }

    pub(super) fn journal(&mut self) -> &mut JournalFile {
        self.journal.as_mut().expect("writing was prepared")
    }

    pub(super) fn append_json<T: serde::Serialize>(
        &mut self,
        kind: RecordKind,
        record: &T,
    ) -> Result<()> {
        append_json(self.journal(), kind, record)
    }
}

fn append_json<T: serde::Serialize>(
    journal: &mut JournalFile,
    kind: RecordKind,
    record: &T,
) -> Result<()> {
    let bytes = serde_json::to_vec(record).expect("records are plain data");
    journal.append(kind, &bytes)
}

impl Inner {
    /// Hands waiting deltas of a class to the journal when they are many, or `all`.
    pub(super) fn spill_deltas(&self, class: &Class, log: &mut ClassLog, all: bool) -> Result<()> {
        let bytes = log.delta_bytes();
        let portion = class.tier.as_ref().map_or(0, |tier| tier.plan.spill_bytes());
        if bytes == 0 || (!all && bytes < portion) {
            return Ok(());
        }
        let mut history = self.history.lock();
        let mut payload = std::mem::take(&mut history.payload);
        payload.clear();
        payload.extend_from_slice(&u64::from(class.record.id).to_le_bytes());
        log.drain_deltas(&mut payload);
        history.cycle_deltas += payload.len() as u64;
        history.epoch_deltas += payload.len() as u64;
        let before = history.journal().position();
        let result = history.journal().append(RecordKind::Deltas, &payload);
        let bytes = history.journal().position() - before;
        self.metrics.delta_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.metrics.journal_bytes.fetch_add(bytes, Ordering::Relaxed);
        history.payload = payload;
        result
    }

    /// True when partitions may be merged: not while a cycle is being written, because a piece
    /// that was written must not receive rows of one that was not.
    pub(super) fn may_merge(&self) -> bool {
        self.history.lock().cursor.is_none()
    }

    /// Packs a class's flush buffer now, whether full or not.
    pub(super) fn flush_now(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut ClassLog,
    ) -> Result<()> {
        let result = (|| {
            let rows = log.buffer.len() as u64;
            log.flush_buffer(class.now())?;
            self.spill_deltas(class, log, false)?;
            self.clean_for(engine, class, log, rows)
        })();
        self.poison_on_error(result)
    }

    /// Writes every dirty row of a class, least recently changed first.
    pub(super) fn flush_dirty(&self, engine: &Engine, class: &Class) -> Result<()> {
        let Some(tier) = &class.tier else { return Ok(()) };
        let mut log = class.log.lock();
        let log = &mut *log;
        self.flush_now(engine, class, log)?;
        let cache = &tier.cache;
        let now = class.now();
        let most = SORT_ROWS_MIN.max(engine.budget_bytes as usize / 64 / 8);
        let per_clean = tier.plan.flush_rows as u64;
        let mut since_clean = 0;
        for (oldest, youngest) in portions(cache, now, most) {
            let mut rows: Vec<(u32, u32)> = Vec::new();
            cache.for_each_dirty(|changed, slot| {
                let age = now.wrapping_sub(changed);
                if age <= oldest && age >= youngest {
                    rows.push((age, slot));
                }
            });
            rows.sort_unstable_by(|a, b| b.cmp(a));
            for (_, slot) in rows {
                let mut result = Ok(());
                cache.write_back(slot, |row| {
                    if !row.dirty {
                        return None;
                    }
                    let written = log.write_row(row.table, row.key, row.origin, row.words);
                    written.map_err(|error| result = Err(error)).ok()
                });
                result?;
                since_clean += 1;
                if since_clean == per_clean {
                    self.spill_deltas(class, log, false)?;
                    self.clean_for(engine, class, log, since_clean)?;
                    since_clean = 0;
                }
            }
        }
        let refused = self.history.lock().refused_rows;
        self.clean_for(engine, class, log, since_clean + CLEANED_PER_REFUSED_ROW * refused)
    }
}

/// Ranges of age (oldest, youngest) that hold at most about `most` dirty rows each, oldest first.
fn portions(cache: &crate::cache::Cache, now: u32, most: usize) -> Vec<(u32, u32)> {
    let dirty = cache.dirty_rows() as usize;
    if dirty == 0 {
        return Vec::new();
    }
    if dirty <= most {
        return vec![(u32::MAX, 0)];
    }
    let mut oldest = 0;
    cache.for_each_dirty(|changed, _| oldest = oldest.max(now.wrapping_sub(changed)));
    let shift = (32 - oldest.leading_zeros()).saturating_sub(12);
    let mut counts = vec![0usize; (oldest >> shift) as usize + 1];
    cache.for_each_dirty(|changed, _| {
        counts[(now.wrapping_sub(changed) >> shift) as usize] += 1;
    });
    let mut ranges = Vec::new();
    let (mut high, mut sum) = (counts.len() - 1, 0);
    for bin in (0..counts.len()).rev() {
        if sum > 0 && sum + counts[bin] > most {
            ranges.push((upper(high, shift), ((bin + 1) as u32) << shift));
            (high, sum) = (bin, 0);
        }
        sum += counts[bin];
    }
    ranges.push((upper(high, shift), 0));
    ranges
}

fn upper(bin: usize, shift: u32) -> u32 {
    ((((bin as u64) + 1) << shift) - 1).min(u64::from(u32::MAX)) as u32
}

impl Store {
    /// Makes everything so far durable as one point named `step`, with the caller's `meta` and
    /// named byte strings. Atomic: after a crash the store is at this commit or at the one before.
    ///
    /// *Errors*: `Full` when the state or the rows do not fit; nothing is lost then and reads and
    /// updates go on. An I/O error makes the store refuse writes until it is opened again.
    /// *Blocking*: nothing else runs meanwhile; the time follows what changed. *Durability*:
    /// complete on return.
    pub fn commit(&self, step: u64, meta: &str, state: &[(&str, &[u8])]) -> Result<CommitInfo> {
        let inner = &*self.inner;
        drop(inner.writable_engine()?);
        let engine = inner.exclusive()?;
        inner.check_writable()?;
        inner.prepare_writing()?;
        if meta.len() > META_BYTES_MAX {
            bail!(
                Misuse,
                "meta has {} bytes, at most {META_BYTES_MAX}; put large things in state",
                meta.len()
            );
        }
        let _guard = inner.poison_on_panic();
        let begin = Instant::now();
        let sequence = inner.history.lock().next_sequence;
        let state_bytes: u64 = state.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        inner.forget_ended_scans(&engine);
        inner.check_commit_fits(&engine, state_bytes, meta)?;
        let state_ref = state::write(&*inner.medium, inner.seed, sequence, state)?;
        inner.metrics.state_bytes.fetch_add(state_bytes, Ordering::Relaxed);
        let info = CommitInfo {
            sequence,
            step,
            meta: meta.to_owned(),
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            rows_flushed: 0,
            bytes_written: 0,
            state_bytes,
        };
        let info = inner.poison_on_error(inner.write_commit(&engine, info, state_ref))?;
        let took = begin.elapsed().as_nanos() as u64;
        inner.metrics.commit_ns.fetch_add(took, Ordering::Relaxed);
        inner.batches_since_commit.store(0, Ordering::Relaxed);
        inner.rows_since_commit.store(0, Ordering::Relaxed);
        Ok(info)
    }
}

impl Inner {
    /// Refuses a commit that the disk bound forbids, before anything is written.
    fn check_commit_fits(&self, engine: &Engine, state_bytes: u64, meta: &str) -> Result<()> {
        // What changes have left free is for commits: one that needs no more is never refused.
        let last = self.history.lock().last_state().map_or(0, |s| s.bytes());
        if let Some(most) = self.options.max_disk_bytes
            && state_bytes > last + STATE_BYTES_KEPT_FREE
            && self.disk_bytes() + state_bytes > most
        {
            bail!(
                Full,
                "state of {state_bytes} bytes does not fit beside {} bytes of {most} \
                 (max_disk_bytes); raise max_disk_bytes or commit less state",
                self.disk_bytes()
            );
        }
        let mut rows = 0;
        for class in &engine.classes {
            let mut log = class.log.lock();
            let unwritten = class.unwritten_rows(&log);
            rows += unwritten;
            self.charge_growth(&mut log, |log| log.reserve(unwritten, u64::MAX))?;
        }
        // A character of meta takes at most six as JSON.
        let record = JOURNAL_BYTES_PER_COMMIT + 6 * meta.len() as u64;
        let journal = rows * JOURNAL_BYTES_PER_ROW + record;
        self.history.lock().journal().reserve(journal)
    }

    fn write_commit(
        &self,
        engine: &Engine,
        mut info: CommitInfo,
        state: Option<StateRef>,
    ) -> Result<CommitInfo> {
        for class in &engine.classes {
            self.flush_dirty(engine, class)?;
            let mut log = class.log.lock();
            log.finish_epoch()?;
            self.spill_deltas(class, &mut log, true)?;
        }
        let rows_now: u64 = engine.classes.iter().map(|c| c.log.lock().written().0).sum();
        let mut history = self.history.lock();
        let history = &mut *history;
        info.rows_flushed = rows_now - history.rows_before;
        history.rows_before = rows_now;
        self.write_pieces(engine, history)?;
        history.journal().sync()?;
        info.bytes_written = self.bytes_written(engine) - history.written_before;
        let oldest_kept = self.oldest_to_keep(history);
        let record = CommitRecord {
            info: info.clone(),
            state,
            tables: engine
                .tables
                .iter()
                .map(|t| TableCounters {
                    id: t.id(),
                    rows: t.rows.load(Ordering::Relaxed),
                    updates: t.updates.load(Ordering::Relaxed),
                })
                .collect(),
            classes: engine
                .classes
                .iter()
                .map(|c| ClassCounters { id: c.record.id, sequence: c.log.lock().sequence() })
                .collect(),
            oldest_kept,
            place: (0, 0),
        };
        // The record's own bytes count towards the next commit.
        history.written_before = self.bytes_written(engine);
        let before = history.journal().position();
        history.append_json(RecordKind::Commit, &record)?;
        history.journal().sync()?;
        write_head(&*self.medium, self.seed, info.sequence)?;
        let record_bytes = history.journal().position() - before + HEAD_BYTES;
        self.metrics.journal_bytes.fetch_add(record_bytes, Ordering::Relaxed);
        history.next_sequence += 1;
        history.epoch_deltas = 0;
        history.kept.push(record);
        self.drop_old_commits(engine, history, oldest_kept)?;
        self.begin_cycle_if_due(engine, history)?;
        Ok(info)
    }

    /// All bytes given to the device since open.
    pub(super) fn bytes_written(&self, engine: &Engine) -> u64 {
        let pages: u64 = engine
            .classes
            .iter()
            .map(|c| c.log.lock().written().2 * c.layout.page_bytes as u64)
            .sum();
        pages
            + self.metrics.journal_bytes.load(Ordering::Relaxed)
            + self.metrics.state_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of pieces that a byte of deltas pays for while a cycle is under way. Under a disk
    /// bound a cycle is over sooner, and with it the file before.
    fn pieces_per_delta(&self) -> u64 {
        if self.options.max_disk_bytes.is_some() { 4 } else { 2 }
    }

    /// Writes as many pieces of the indexes as the changes of this epoch pay for.
    fn write_pieces(&self, engine: &Engine, history: &mut History) -> Result<()> {
        let Some((mut at, mut piece)) = history.cursor else { return Ok(()) };
        let most = if history.short_of_journal {
            // The sooner the round is complete, the sooner the older files go.
            u64::MAX
        } else {
            (self.pieces_per_delta() * history.epoch_deltas).max(PIECE_BYTES_MIN)
        };
        let mut spent = 0;
        let mut payload = std::mem::take(&mut history.payload);
        while spent < most {
            let Some(table) = engine.tables.get(at) else {
                let before = history.journal().position();
                history.journal().append(RecordKind::CycleEnd, &[])?;
                let bytes = history.journal().position() - before;
                self.metrics.journal_bytes.fetch_add(bytes, Ordering::Relaxed);
                let file = history.journal().number();
                history.cycles.push((file, history.next_sequence));
                history.cursor = None;
                history.payload = payload;
                return Ok(());
            };
            let log = engine.classes[table.class].log.lock();
            let index = log.index(table.id());
            if piece >= pieces_of(index) {
                (at, piece) = (at + 1, 0);
                continue;
            }
            payload.clear();
            payload.extend_from_slice(&piece_header(table.id(), piece));
            read_piece_from(index, piece, &mut payload);
            // Pieces are worth only room that the commit itself does not need.
            let room = payload.len() as u64 + JOURNAL_BYTES_PER_COMMIT;
            let before = history.journal().position();
            match self.reserve_journal(history, room, 0) {
                Ok(()) => history.journal().append(RecordKind::Piece, &payload)?,
                Err(error) if error.kind() == ErrorKind::Full => break,
                Err(error) => return Err(error),
            }
            let bytes = history.journal().position() - before;
            self.metrics.piece_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.metrics.journal_bytes.fetch_add(bytes, Ordering::Relaxed);
            history.cycle_pieces += bytes;
            spent += bytes;
            piece += 1;
        }
        history.cursor = Some((at, piece));
        history.payload = payload;
        Ok(())
    }

    /// The oldest commit that stays beside the one being made.
    fn oldest_to_keep(&self, history: &History) -> u64 {
        let keep = self.options.keep.max(1) as u64;
        let first = history.kept.first().map_or(history.next_sequence, |c| c.info.sequence);
        (history.next_sequence + 1).saturating_sub(keep).max(first)
    }

    fn drop_old_commits(
        &self,
        engine: &Engine,
        history: &mut History,
        oldest_kept: u64,
    ) -> Result<()> {
        let held = if self.on_disk { holds::span(&self.path) } else { None };
        let released = held.map_or(oldest_kept, |(held, _)| held.min(oldest_kept));
        for class in &engine.classes {
            let mut log = class.log.lock();
            log.segments.drop_commits_before(released);
        }
        for name in self.medium.list(state::PREFIX)? {
            if state::sequence_of(&name).is_some_and(|sequence| sequence < released) {
                self.medium.remove(&name)?;
            }
        }
        history.kept.retain(|c| c.info.sequence >= oldest_kept);
        let base = history.cycles.iter().rfind(|(_, complete)| *complete <= released);
        if let Some(&(base, _)) = base {
            history.cycles.retain(|(file, _)| *file >= base);
            let current = history.journal().number();
            history.old_journal_bytes = 0;
            for name in self.medium.list("journal-")? {
                match number_of(&name) {
                    Some(number) if number < base => self.medium.remove(&name)?,
                    Some(number) if number != current => {
                        let file = self.medium.open(&name, crate::io::OpenMode::ReadOnly)?;
                        history.old_journal_bytes += file.len()?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Begins a new journal file, and with it a new round of index pieces, when the deltas since
    /// the last round are as long as the indexes.
    fn begin_cycle_if_due(&self, engine: &Engine, history: &mut History) -> Result<()> {
        let index: u64 = engine
            .classes
            .iter()
            .map(|c| c.log.lock().indexes().map(|(_, i)| i.memory_bytes() as u64).sum::<u64>())
            .sum();
        history.index_bytes = index;
        history.refused_rows = 0;
        let short = std::mem::take(&mut history.short_of_journal);
        // Under a disk bound the journal has to stay short.
        let usual = index / if self.options.max_disk_bytes.is_some() { 2 } else { 1 };
        let due = if short { PIECE_BYTES_MIN } else { usual.max(CYCLE_BYTES_MIN) };
        if history.cursor.is_some() || history.cycle_deltas < due {
            return Ok(());
        }
        let room = self.options.max_disk_bytes.map_or(u64::MAX, |most| {
            let used = self.rows_disk_bytes.load(Ordering::Relaxed) + history.disk_bytes();
            (most + history.journal().unused_bytes()).saturating_sub(used)
        });
        if room < index + 2 * JOURNAL_BYTES_PER_COMMIT {
            return Ok(());
        }
        let number = history.journal().number() + 1;
        match self.next_journal(engine, number) {
            Ok(next) => {
                history.journal().give_back_unused()?;
                history.old_journal_bytes += history.journal().disk_bytes();
                history.journal = Some(next);
            }
            // The commit is made; without room the old file goes on.
            Err(error) if error.kind() == ErrorKind::Full => {
                return self.medium.remove(&name_of(number));
            }
            Err(error) => return Err(error),
        }
        history.cursor = Some((0, 0));
        history.cycle_deltas = 0;
        history.cycle_pieces = 0;
        Ok(())
    }

    /// A new journal file that begins with the catalog.
    fn next_journal(&self, engine: &Engine, number: u64) -> Result<JournalFile> {
        if self.medium.list(&name_of(number))?.contains(&name_of(number)) {
            self.medium.remove(&name_of(number))?;
        }
        let mut next = JournalFile::create(&*self.medium, self.seed, number)?;
        for class in &engine.classes {
            append_json(&mut next, RecordKind::Class, &class.record)?;
        }
        for table in &engine.tables {
            let log = engine.classes[table.class].log.lock();
            let partitions = match log.index(table.id()) {
                TableIndex::Dense(_) => None,
                TableIndex::Sparse(index, _) => Some(index.partitions()),
            };
            let record = TableRecord { born: false, partitions, ..table.record.clone() };
            append_json(&mut next, RecordKind::Table, &record)?;
        }
        self.medium.sync_dir()?;
        self.metrics.journal_bytes.fetch_add(next.position(), Ordering::Relaxed);
        Ok(next)
    }

    /// Writes all dirty rows to storage without a commit (plan, scan).
    pub(super) fn flush_all(&self, engine: &Engine) -> Result<()> {
        for class in engine.classes.iter().filter(|c| c.tier.is_some()) {
            self.poison_on_error(self.flush_dirty(engine, class))?;
        }
        Ok(())
    }
}
