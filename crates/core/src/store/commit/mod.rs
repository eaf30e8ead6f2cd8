//! Commit: everything since the last one becomes durable under a step number, or nothing does.
//!
//! A commit is captured at the call, alone: room for all of it is reserved, the caller's state is
//! written, and the dirty rows are marked. Then, while verbs go on, on the caller's thread or on
//! one of its own: the marked rows to their pages ([`capture`]); pages, state, deltas and pieces of
//! the index synced; then the commit record, synced. Only then are older commits dropped and their
//! copies released. A crash at any point leaves the commit before. One commit is under way at a
//! time; what needs the store alone waits for its end.
//!
//! # How a commit runs
//!
//! A commit is captured by one thread that has the engine alone, so it contains whole batches only
//! (`Inner::capture`):
//!
//! 1. `check_commit_fits` reserves disk for everything that follows. `Full` is returned here, and
//!    the store continues.
//! 2. `state::write` writes the caller's byte strings to `state-<n>`, not synced yet.
//! 3. `capture_rows` writes the flush buffers. `Cache::capture` marks the dirty rows of every
//!    cache, and `History::in_flight` takes the counters of the tables.
//!
//! The rest (`Inner::complete`) runs beside verbs, on the caller's thread, or with
//! `commit_in_background` on a thread of its own, for which `PendingCommit` waits:
//!
//! 4. Per class (`capture.rs`), `write_portion` writes 256 marked rows at a time, those dirty for
//!    longest first. A verb that is about to change marked rows writes them first
//!    (`write_before_change`). A marked row that leaves the cache is written then (`misses.rs`,
//!    `write_or_park`); all of a class are written before its cache shrinks, which moves rows.
//!    Anyone who needs the flush buffer, whose rows are newer than the commit, writes all that are
//!    left (`finish_captured`). Before each portion, `make_room_to_write` (`store/space/memory.rs`)
//!    ensures that the index of an lsm's newest rows has memory for it, by parts of merges or by a
//!    way of a cache; the latter moves rows, so the rest is looked up again.
//! 5. Then the class is closed (`close_epoch`): `StorageJournal::cut` gives its pages to the
//!    device, `journal_changes` its deltas to the journal, and `write_index_pieces` (`cycle.rs`)
//!    adds some pieces of its indexes, in proportion. From here on, the log of the class takes rows
//!    of the next commit. Their deltas stay in memory, and a thread with too many of them waits for
//!    the record (`wait_for_record`).
//! 6. `record` syncs rows files, state and journal, appends the commit record and syncs the
//!    journal: the commit exists. `Head::write` notes its number and the oldest kept one.
//! 7. `drop_old_files` forgets commits beyond `keep` unless a reader holds them, and removes state
//!    and journal files. `begin_cycle_if_due` may begin a new journal file. Deltas may go to the
//!    journal again. `release` takes the oldest holds away if readers keep more than
//!    `max_held_bytes` (`take_holds_beyond_bound` in `held.rs`). Copies that only dropped commits
//!    had are released (`StorageUpkeep::drop_commits_before`). Free segments for which others were
//!    refused room, or which are unlikely to be needed soon, are returned to the file system
//!    (`give_back_room`).
//!
//! Anything that needs the engine alone waits until a commit is over (`Inner::engine_alone`). An
//! error on the way poisons the store and is returned by the handle. So does an error that a verb
//! meets while it writes rows of the commit; the record is not written then.

#[cfg(any(test, feature = "testing"))]
mod by_hand;
mod capture;
mod cycle;
pub(super) mod first_write;
pub(super) mod from_pin;
mod held;
mod history;
pub(super) mod left_held;
mod pending;
mod refused;
mod spare;
mod version;

pub(super) use history::{History, KeptSums};
pub(super) use pending::CommitGate;
pub use pending::PendingCommit;
pub(super) use refused::{Asker, Refused};
pub(super) use spare::{NAME as SPARE, Spare};

use super::engine::{ClassPhase, Engine};
use super::files::head::{self, Head};
use super::files::state;
use super::files::state::{STATE_BYTES_KEPT_FREE, StateRef};
use super::journal::{CommitRecord, JOURNAL_BYTES_PER_COMMIT, RecordKind, TableCounters};
use super::{Inner, Store};
use crate::config::{CommitInfo, StorageKind};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::blocks_of;
use crate::planted::{self, Bug};
use capture::Portions;
use history::{InFlightCommit, record_bytes};
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Longest meta of a commit.
const META_BYTES_MAX: usize = 256 << 10;

/// The remaining work of a captured commit.
#[derive(Default)]
pub(super) struct Work {
    /// Classes before this one are closed.
    class: usize,
    portions: Option<Portions>,
}

/// A commit that is recorded.
pub(super) struct Made {
    info: CommitInfo,
    oldest_kept: u64,
    /// The oldest commit of which something stays: kept, or held by a reader.
    needed: u64,
}

impl Store {
    /// Makes everything so far durable as one point named `step`, with the caller's `meta` and
    /// named byte strings. Atomic: after a crash the store is at this commit or at the one before.
    ///
    /// *Errors*: `Full` when the state or the rows do not fit; nothing is lost then and reads and
    /// updates go on. An I/O error makes the store refuse writes until it is opened again.
    /// *Blocking*: waits for verbs that run and for a commit that is under way; the time follows
    /// what changed. Verbs of other threads go on meanwhile, and what they change is not part of
    /// it. *Durability*: complete on return.
    pub fn commit(&self, step: u64, meta: &str, state: &[(&str, &[u8])]) -> Result<CommitInfo> {
        let begin = Instant::now();
        let work = self.inner.capture(step, meta, state)?;
        let info = self.inner.complete(work)?;
        self.inner.count_commit(begin);
        Ok(info)
    }

    /// As [`commit`](Self::commit), with the named byte strings of the commit before: they are
    /// not read, and written only where the file system has no second names for a file.
    ///
    /// *Errors*: as `commit`; `Corrupt` where the file with the byte strings is missing.
    pub fn commit_with_last_state(&self, step: u64, meta: &str) -> Result<CommitInfo> {
        let begin = Instant::now();
        let work = self.inner.capture_with(step, meta, Named::OfLast)?;
        let info = self.inner.complete(work)?;
        self.inner.count_commit(begin);
        Ok(info)
    }

    /// As [`commit`](Self::commit), without waiting for the disk: returns when what belongs to the
    /// commit is captured; the rest is done by a thread of its own.
    ///
    /// *Errors*: as `commit`; those of the disk are told by the handle, and by every later verb
    /// that changes rows. *Blocking*: for verbs that run, for a commit that is under way, and for
    /// writing the state, without a sync. Afterwards a verb waits where it needs a row's place or
    /// the flush buffer before the commit has written what it marked. *Durability*: complete when
    /// the handle says so.
    pub fn commit_in_background(
        &self,
        step: u64,
        meta: &str,
        state: &[(&str, &[u8])],
    ) -> Result<PendingCommit> {
        self.commit_and_then(step, meta, state, None)
    }

    /// Commits in the background, and pins the commit under a name if there is one.
    pub(super) fn commit_and_then(
        &self,
        step: u64,
        meta: &str,
        state: &[(&str, &[u8])],
        pin: Option<String>,
    ) -> Result<PendingCommit> {
        let begin = Instant::now();
        let work = self.inner.capture(step, meta, state)?;
        self.inner.count_commit(begin);
        Ok(PendingCommit::start(self.clone(), work, pin))
    }
}

/// The named byte strings of a commit.
#[derive(Clone, Copy)]
enum Named<'a> {
    Given(&'a [(&'a str, &'a [u8])]),
    /// Those of the commit before.
    OfLast,
}

impl Inner {
    fn count_commit(&self, begin: Instant) {
        let took = begin.elapsed().as_nanos() as u64;
        self.metrics.commit_ns.fetch_add(took, Ordering::Relaxed);
    }

    /// Captures what belongs to a commit.
    pub(super) fn capture(&self, step: u64, meta: &str, state: &[(&str, &[u8])]) -> Result<Work> {
        self.capture_with(step, meta, Named::Given(state))
    }

    fn capture_with(&self, step: u64, meta: &str, state: Named<'_>) -> Result<Work> {
        let captured = self.capture_now(step, meta, state);
        captured.inspect_err(|error| self.log_refused("a commit", error))
    }

    fn capture_now(&self, step: u64, meta: &str, state: Named<'_>) -> Result<Work> {
        drop(self.writable_engine()?);
        if meta.len() > META_BYTES_MAX {
            bail!(
                Misuse,
                "meta has {} bytes, at most {META_BYTES_MAX}; put large things in state",
                meta.len()
            );
        }
        let engine = self.exclusive()?;
        self.check_writable()?;
        self.check_folder()?;
        self.prepare_writing()?;
        self.settle_room(&engine)?;
        let _guard = self.poison_on_panic();
        let (sequence, last) = {
            let history = self.history.lock();
            (history.next_sequence, history.last_state())
        };
        let strings: Vec<(&str, u64)> = match (state, &last) {
            (Named::Given(state), _) => {
                state.iter().map(|(name, bytes)| (*name, bytes.len() as u64)).collect()
            }
            (Named::OfLast, Some(last)) => {
                last.strings.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect()
            }
            (Named::OfLast, None) => Vec::new(),
        };
        let state_bytes: u64 = strings.iter().map(|(_, bytes)| bytes).sum();
        self.forget_ended_scans(&engine);
        let names = strings.iter().map(|(name, _)| *name);
        let record_bytes = record_bytes(meta, names, engine.tables.len(), engine.classes.len());
        let fits = self.check_commit_fits(&engine, state_bytes, record_bytes);
        fits.map_err(|error| self.name_pins(&engine, error))?;
        let written = self.write_state(state_bytes, || {
            let (medium, seed) = (&*self.medium, self.seed);
            match (state, &last) {
                (Named::Given(state), _) => state::write(medium, seed, sequence, state),
                (Named::OfLast, Some(last)) => state::keep(medium, seed, sequence, last).map(Some),
                (Named::OfLast, None) => Ok(None),
            }
        });
        let written = written.map_err(|error| match &last {
            Some(last) if matches!(state, Named::OfLast) => self.with_whole_state(error, last),
            _ => error,
        })?;
        self.metrics.state_bytes.fetch_add(state_bytes, Ordering::Relaxed);
        let info = CommitInfo {
            sequence,
            step,
            meta: meta.to_owned(),
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            rows_flushed: 0,
            bytes_written: 0,
            state_bytes,
            writer: self.writer,
        };
        let captured = self.capture_rows(&engine, info, record_bytes, written);
        if captured.is_err() {
            self.give_up_commit();
        }
        self.poison_on_error(captured)?;
        self.commit_gate.begin();
        Ok(Work::default())
    }

    /// Damage of a state, with the newest kept commit whose own is whole. Those that were made with
    /// the state of the commit before share its file, and the damage. Reads their states.
    pub(super) fn with_whole_state(&self, damage: Error, damaged: &StateRef) -> Error {
        if damage.kind() != ErrorKind::Corrupt {
            return damage;
        }
        let kept: Vec<(u64, Option<StateRef>)> = {
            let history = self.history.lock();
            history.kept.iter().map(|commit| (commit.info.step, commit.state.clone())).collect()
        };
        let is_whole = |at: &usize| {
            let (step, state) = &kept[*at];
            // By its step only the last one is opened.
            let is_last = kept.get(at + 1).is_none_or(|(later, _)| later != step);
            let other = state.as_ref().filter(|state| state.file != damaged.file);
            is_last && other.is_some_and(|o| state::is_whole(&*self.medium, self.seed, o))
        };
        let way_out = match (0..kept.len()).rev().find(is_whole) {
            Some(at) => format!(
                "restore from a copy, or open the store with step={}, its newest commit whose \
                 state is whole",
                kept[at].0
            ),
            None => {
                "restore from a copy: no earlier commit that is kept has a whole state".to_owned()
            }
        };
        Error::new(ErrorKind::Corrupt, format!("{}; {way_out}", damage.message()))
    }

    /// Writes the state, with the room that verbs have left for it. `Full` leaves nothing behind.
    fn write_state(
        &self,
        bytes: u64,
        mut write: impl FnMut() -> Result<Option<state::Written>>,
    ) -> Result<Option<state::Written>> {
        let mut history = self.history.lock();
        self.take_for_commit(&mut history, blocks_of(bytes), |_| write())
    }

    /// Writes what waits in flush buffers, and marks the dirty rows.
    fn capture_rows(
        &self,
        engine: &Engine,
        info: CommitInfo,
        record_bytes: u64,
        state: Option<state::Written>,
    ) -> Result<()> {
        let counters = |t: &super::engine::Table| TableCounters {
            id: t.id(),
            rows: t.rows.load(Ordering::Relaxed),
            updates: t.updates.load(Ordering::Relaxed),
        };
        let (state, files) = match state {
            Some(written) => (Some(written.state), vec![written.file]),
            None => (None, Vec::new()),
        };
        // First, so that what follows leaves it its room.
        let mut history = self.history.lock();
        let oldest_kept = self.oldest_to_keep(&history);
        let wants_fillings = self.cycle_may_be_due(engine, &history, record_bytes);
        history.in_flight = Some(InFlightCommit {
            info,
            record_bytes,
            state,
            tables: engine.tables.iter().map(counters).collect(),
            oldest_kept,
            files,
            classes: Vec::new(),
            rows_written: 0,
            page_bytes: 0,
            index_bytes: 0,
            partitions: Vec::new(),
            wants_fillings,
            fillings: Vec::new(),
            batches: self.batches_since_commit.swap(0, Ordering::Relaxed),
            rows: self.rows_since_commit.swap(0, Ordering::Relaxed),
        });
        drop(history);
        // Parked rows are no longer in a cache, where the capture looks.
        self.flush_all_parked(engine)?;
        // Nothing fails from here on.
        for class in &engine.classes {
            if let Some(tier) = &class.tier {
                tier.cache.capture();
            }
            class.phase.store(ClassPhase::Captured as u8, Ordering::Release);
        }
        Ok(())
    }

    /// Does what is left of a captured commit. The caller holds no lock of the store.
    pub(super) fn complete(&self, work: Work) -> Result<CommitInfo> {
        let begun = Instant::now();
        let made = self.complete_now(work).inspect_err(|error| self.log_commit_failed(error))?;
        self.log_committed(&made, begun.elapsed());
        Ok(made)
    }

    fn complete_now(&self, mut work: Work) -> Result<CommitInfo> {
        let mut over = CommitOver { inner: self, made: false };
        loop {
            // Verbs may wait for this commit while somebody else waits to be alone.
            let engine = self.engine.read_recursive();
            let _guard = self.poison_on_panic();
            if let Some(made) = self.poison_on_error(self.commit_step(&engine, &mut work))? {
                self.poison_on_error(self.release(&engine, &made))?;
                over.made = true;
                return Ok(made.info);
            }
        }
    }

    /// Does one portion of a commit's work; the commit once it is recorded. `release` comes next,
    /// when no class is locked.
    pub(super) fn commit_step(&self, engine: &Engine, work: &mut Work) -> Result<Option<Made>> {
        let Some(class) = engine.classes.get(work.class) else {
            return self.record(engine).map(Some);
        };
        if self.write_portion(engine, class, &mut work.portions)? {
            work.class += 1;
            work.portions = None;
        }
        Ok(None)
    }

    /// Makes durable what was written, and then the record that says so.
    fn record(&self, engine: &Engine) -> Result<Made> {
        let (files, journal, mut record) = {
            let mut history = self.history.lock();
            let journal = history.journal().file();
            let made = history.in_flight.as_mut().expect("a commit is under way");
            made.classes.sort_unstable_by_key(|counters| counters.id);
            let record = CommitRecord {
                info: made.info.clone(),
                state: made.state.clone(),
                tables: std::mem::take(&mut made.tables),
                classes: std::mem::take(&mut made.classes),
                oldest_kept: made.oldest_kept,
                gone_back: false,
                top_share: self.share_to_store(engine),
                place: (0, 0),
                checksum: 0,
            };
            (std::mem::take(&mut made.files), journal, record)
        };
        for file in files {
            let is_state = file.name().starts_with(state::PREFIX);
            let bug = if is_state { Bug::StateSyncSkipped } else { Bug::RecordBeforeData };
            if !planted::is(bug) {
                file.sync()?;
            }
        }
        if record.state.is_some() {
            self.medium.sync_dir()?;
        }
        if !planted::is(Bug::JournalSyncSkipped) {
            journal.sync()?;
        }
        // A verb may have failed to write what belongs to this commit.
        self.check_unpoisoned()?;
        // It goes to the folder that was opened, wherever that is by now, unless it is another
        // writer's.
        self.medium.check_lock()?;
        let oldest_kept = record.oldest_kept;
        {
            let mut history = self.history.lock();
            let history = &mut *history;
            let made = history.in_flight.as_ref().expect("a commit is under way");
            let (rows, pages) = (made.rows_written, made.page_bytes);
            record.info.rows_flushed = rows - history.rows_before;
            history.rows_before = rows;
            record.info.bytes_written = pages + self.bytes_beside_pages() - history.written_before;
            // The record's own bytes count towards the next commit.
            history.written_before = pages + self.bytes_beside_pages();
            // The next opening would refuse what this does.
            record.verify()?;
            record.verify_catalog(
                engine.tables.iter().map(|table| table.id()),
                engine.classes.len(),
            )?;
            let before = history.journal().position();
            history.append_json(RecordKind::Commit, &record)?;
            record.place = (history.journal().number(), history.journal().position());
            let bytes = history.journal().position() - before;
            history.cycle_bytes += bytes;
            self.metrics.journal_bytes.fetch_add(bytes + head::BYTES, Ordering::Relaxed);
        }
        if !planted::is(Bug::RecordSyncSkipped) {
            journal.sync()?;
        }
        Head::new(record.info.sequence, oldest_kept, self.term).write(&*self.medium, self.seed)?;
        let info = record.info.clone();
        // After the record, so that a reader that does not see it is seen here.
        let needed = self.oldest_needed(oldest_kept);
        {
            let mut history = self.history.lock();
            let history = &mut *history;
            let made = history.in_flight.take().expect("a commit is under way");
            history.next_sequence += 1;
            history.epoch_deltas = 0;
            history.epoch_pieces = 0;
            history.keep(record);
            self.drop_old_files(history, oldest_kept, needed)?;
            self.begin_cycle_if_due(engine, history, &made)?;
        }
        // All are closed. Not under the class locks: the holder of one may wait for the record.
        for class in &engine.classes {
            class.phase.store(ClassPhase::None as u8, Ordering::Release);
        }
        self.commit_gate.recorded();
        Ok(Made { info, oldest_kept, needed })
    }

    /// The share of the newest rows that a commit remembers, where there is an lsm.
    fn share_to_store(&self, engine: &Engine) -> Option<f64> {
        let has_lsm = engine.classes.iter().any(|class| class.record.storage == StorageKind::Lsm);
        has_lsm.then(|| self.options.merging().top_share)
    }

    /// Lets go of what neither kept commits nor readers need, and goes on with upkeep. The caller
    /// holds no class.
    fn release(&self, engine: &Engine, made: &Made) -> Result<()> {
        let Made { oldest_kept, needed, .. } = *made;
        // The commit is made: an error here leaves what is there.
        let released = self.take_holds_beyond_bound(engine, oldest_kept).unwrap_or(needed);
        if released > needed {
            self.drop_old_files(&mut self.history.lock(), oldest_kept, released)?;
        }
        let early = u64::from(planted::is(Bug::ReleasedEarly));
        for class in &engine.classes {
            class.log.lock().drop_commits_before(released + early, oldest_kept);
        }
        // Tried again by the next commit.
        let _ = self.release_unpinned(engine);
        let _ = self.release_left_held(engine);
        self.give_back_room(engine)?;
        // An error here has poisoned the store, which the next change reports; the caller is told
        // of the commit, which is made.
        let _ = self.upkeep(engine);
        self.return_cache_room(engine);
        Ok(())
    }

    /// Counts what the commit under way would have made durable as uncommitted again.
    fn give_up_commit(&self) {
        let failed = self.history.lock().in_flight.take();
        if let Some(failed) = failed {
            self.batches_since_commit.fetch_add(failed.batches, Ordering::Relaxed);
            self.rows_since_commit.fetch_add(failed.rows, Ordering::Relaxed);
        }
    }

    /// Waits until the commit that is under way is recorded, or has failed. Its thread takes no
    /// lock of a class that is closed before.
    pub(super) fn wait_for_record(&self) {
        let begin = Instant::now();
        #[cfg(any(test, feature = "testing"))]
        self.record_by_hand();
        self.commit_gate.wait_until_recorded();
        self.count_commit(begin);
    }

    /// Refuses a commit that the disk bound forbids, before anything is written.
    fn check_commit_fits(
        &self,
        engine: &Engine,
        state_bytes: u64,
        record_bytes: u64,
    ) -> Result<()> {
        let mut journal = JOURNAL_BYTES_PER_COMMIT + record_bytes;
        for class in &engine.classes {
            let mut log = class.log.lock();
            journal += class.journal_bytes(&**log);
            let unwritten = class.unwritten_rows(&**log);
            if unwritten > 0 {
                // They were reserved; nobody else grows a file meanwhile.
                let before = log.disk_bytes();
                let reserved = log.reserve(unwritten, 0, u64::MAX);
                let grown = log.disk_bytes().wrapping_sub(before);
                self.rows_disk_bytes.fetch_add(grown, Ordering::Relaxed);
                reserved?;
            }
        }
        // Changes leave room for commits: one that needs little more is never refused, and one that
        // needs much more leaves the room that keeps a store from staying full.
        let mut history = self.history.lock();
        let more = state_bytes.saturating_sub(history.largest_state_bytes())
            + record_bytes.saturating_sub(history.last_record_bytes());
        if let Some(most) = self.options.max_disk_bytes
            && more > STATE_BYTES_KEPT_FREE
        {
            let states = state_bytes.saturating_mul(history.states_to_come(self.options.keep));
            let journal = history.journal().growth_for(journal) + history.bytes_kept_free();
            let used = self.used_bytes(&history) - history.spare.bytes();
            if states.saturating_add(used + journal) > most {
                bail!(
                    Full,
                    "a state of {state_bytes} bytes, with the next ones {states}, and {journal} \
                     bytes for the journal do not fit beside {used} of {most} (max_disk_bytes); \
                     raise it, commit less state and meta, or commit a first state before rows \
                     fill the store"
                );
            }
        }
        self.reserve_to_commit(&mut history, journal)
    }

    /// All bytes given to the device since open.
    pub(super) fn bytes_written(&self, engine: &Engine) -> u64 {
        let pages: u64 = engine
            .classes
            .iter()
            .map(|c| c.log.lock().stats().written.pages * c.record.page_bytes as u64)
            .sum();
        pages + self.bytes_beside_pages()
    }

    /// Bytes of journal and state among them.
    fn bytes_beside_pages(&self) -> u64 {
        self.metrics.journal_bytes.load(Ordering::Relaxed)
            + self.metrics.state_bytes.load(Ordering::Relaxed)
    }
}

/// Ends a commit, however it went: one that failed gives back what it would have made durable.
struct CommitOver<'a> {
    inner: &'a Inner,
    made: bool,
}

impl Drop for CommitOver<'_> {
    fn drop(&mut self) {
        let inner = self.inner;
        if !self.made {
            // Threads that wait for the record go on first, and give up their classes.
            inner.commit_gate.recorded();
            let engine = inner.engine.read_recursive();
            for class in &engine.classes {
                let _log = class.log.lock();
                class.phase.store(ClassPhase::None as u8, Ordering::Release);
            }
            drop(engine);
            inner.give_up_commit();
        }
        inner.commit_gate.over();
    }
}
