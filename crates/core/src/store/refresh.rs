//! Refresh: an open reader moves to the newest commit, or to another one that is kept.
//!
//! It holds the new commit before it lets the old one go. Its index is made beside the one that is
//! read, so that verbs wait only for the moment in which one takes the other's place: a copy of the
//! index goes on by what the journal says behind the old commit. That also says which rows changed:
//! they leave the cache, and so does every row that came meanwhile; all others stay resident. A
//! reader that no longer holds its commit, or has none, recovers the whole index instead, and so
//! does one that moves back, or whose writer has gone back; its cache begins empty, as it does
//! where tables came since.
//!
//! After any failure, the reader stays at its commit.

use super::cold;
use super::commit::History;
use super::engine::Engine;
use super::events;
use super::files::head::Head;
use super::files::holds::Hold;
use super::journal::{CommitRecord, JournalReader, RecordKind, name_of, numbers, read_json};
use super::open::{build, files_of_commits, history_of, while_changing};
use super::recovery::{Recovered, Replay, Target, find, recover};
use super::unheld::Noted;
use super::{Inner, Store};
use crate::arena::trim_heap;
use crate::config::CommitInfo;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::Medium;
use parking_lot::RwLockReadGuard;
use std::mem::replace;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Changed rows that leave the cache at a time, and how many such times until those are dropped,
/// too, that came meanwhile.
const ROWS_AT_ONCE: usize = 4096;
const TIMES_UNTIL_ARRIVED: usize = 64;
/// Rows that came meanwhile are dropped beside verbs until so few are left, or so often; the rest
/// when verbs wait.
const ARRIVED_MOST: usize = 1024;
const ROUNDS_MAX: usize = 8;

/// A commit that a refresh goes to, and all that the reader needs of it beside its index.
struct Next {
    commit: CommitRecord,
    /// The newest commit that was there when this one was looked for.
    newest: u64,
    noted: Noted,
    /// Commits behind the one that is open, up to that; `None` where the whole index is needed.
    behind: Option<Vec<CommitRecord>>,
    hold: Option<Hold>,
}

/// A store at another commit than the one that is open, ready to take its place.
struct Made {
    engine: Engine,
    history: History,
    rows_disk_bytes: u64,
    /// Whether rows that are resident are of this commit, too.
    keeps_rows: bool,
}

/// Runs the move, once the caller that asked for it is ready.
type Around<'a> = &'a mut dyn FnMut(&mut dyn FnMut() -> Result<()>) -> Result<()>;

impl Next {
    /// Notes the commit, which was read before it was held.
    fn new(
        medium: &dyn Medium,
        commit: CommitRecord,
        behind: Option<Vec<CommitRecord>>,
        hold: Option<Hold>,
    ) -> Result<Self> {
        let noted = Noted::of(medium, &commit)?;
        let newest = commit.info.sequence;
        Ok(Self { commit, newest, noted, behind, hold })
    }

    fn gone(&self) -> Error {
        let message =
            format!("commit {} went while it was opened; try again", self.commit.info.step);
        Error::new(ErrorKind::CommitGone, message)
    }
}

impl Store {
    /// Moves a reader to the newest commit; returns it, or `None` when it is open already. Rows
    /// that did not change stay resident, if the index leaves room for them.
    ///
    /// *Errors*: `Misuse` for a store that is open to write, which is at its newest commit always;
    /// `NotFound` where the folder was moved or removed, and another may be in its place;
    /// `Mismatch` where the store has got or moved its cold directory, and has to be opened again;
    /// `Budget` naming a memory that works; as `open` otherwise. The reader stays at its commit
    /// then. *Blocking*: reads the journal behind the commit that is open. Verbs of other threads
    /// go on at the old commit until the new one is ready, and wait only for the moment of the
    /// move; a scan that was begun before has to begin again. *Memory*: until it returns there is a
    /// second index beside the budget.
    pub fn refresh(&self) -> Result<Option<CommitInfo>> {
        self.refresh_to(None, &mut |go| go())
    }

    /// As [`refresh`](Self::refresh), to the last commit of this step if one is given, which may
    /// lie before the one that is open: then the cache begins empty. `around` is called when the
    /// other commit is ready, and calls what it is given, which moves the reader: it may keep
    /// others from looking at the store meanwhile. An error that it returns is that of the move, if
    /// there was one.
    ///
    /// *Errors*: `NotFound` with the steps that there are, where no commit of this one is kept.
    pub fn refresh_to(&self, step: Option<u64>, around: Around<'_>) -> Result<Option<CommitInfo>> {
        let inner = &*self.inner;
        inner.check_call()?;
        if !inner.options.read_only {
            bail!(
                Misuse,
                "store {} is open to write and always at its newest commit; only a reader is \
                 refreshed",
                inner.path.display()
            );
        }
        inner.check_place_of_reader()?;
        let _one = inner.refreshing.lock();
        // Changes of a writer meanwhile may look like damage, and are looked at again.
        let look = || files_of_commits(&*inner.medium);
        while_changing(look, || match inner.move_on(step, around) {
            Err(error) if inner.engine.read().closed || is_lasting(error.kind()) => Ok(Err(error)),
            moved => moved.map(Ok),
        })?
    }
}

/// Ends the noting of rows that come.
struct Noting<'a>(&'a Inner);

impl Drop for Noting<'_> {
    fn drop(&mut self) {
        self.0.engine.read().forget_arrivals();
    }
}

impl Inner {
    /// Goes to the newest commit, or to that of a step, if it is not the one that is open.
    fn move_on(&self, step: Option<u64>, around: Around<'_>) -> Result<Option<CommitInfo>> {
        let begun = Instant::now();
        let before = self.open_commit();
        let Some(next) = self.look_for_next(step)? else { return Ok(None) };
        cold::check_unchanged(&*self.medium, &self.path)?;
        let info = next.commit.info.clone();
        let noting = Noting(self);
        let old = self.go_to(next, around)?;
        drop(noting);
        // Its index is large, and nobody waits for the memory.
        drop(old);
        trim_heap();
        self.log_refreshed(before.map(|commit| commit.info).as_ref(), &info, begun.elapsed());
        Ok(Some(info))
    }

    /// The commit to go to, held, if it is not the one that is open.
    fn look_for_next(&self, step: Option<u64>) -> Result<Option<Next>> {
        let wanted = match step {
            Some(step) => find(&*self.medium, self.seed, &Target::Step(step))?,
            None => None,
        };
        let open = self.open_commit().filter(|_| self.is_held());
        let is_behind = |open: &CommitRecord| {
            wanted.as_ref().is_none_or(|wanted| wanted.info.sequence > open.info.sequence)
        };
        let Some(open) = open.filter(is_behind) else { return self.look_for(wanted) };
        // Before the journal, which it must not lead.
        let head = Head::read(&*self.medium, self.seed)?;
        let Some(mut commits) = commits_behind(&*self.medium, self.seed, &open)? else {
            return self.look_for(wanted);
        };
        // The hold may be gone by now, and what was read lie behind another commit.
        if !self.is_in_place()? {
            return self.look_for(wanted);
        }
        let newest = commits.last().unwrap_or(&open).info.sequence;
        if head.sequence > newest {
            bail!(
                Corrupt,
                "the journal of {} ends at commit {newest}, but commit {} was made: a journal file \
                 was truncated, damaged or removed; restore from a copy",
                self.path.display(),
                head.sequence
            );
        }
        if let Some(wanted) = &wanted {
            commits.retain(|commit| commit.info.sequence <= wanted.info.sequence);
            if commits.last().is_none_or(|last| !last.is(wanted)) {
                return self.look_for(Some(wanted.clone()));
            }
        }
        let Some(commit) = commits.last().cloned() else { return Ok(None) };
        let hold = Hold::take(&self.medium, commit.info.sequence)?;
        let mut next = Next::new(&*self.medium, commit, Some(commits), hold)?;
        next.newest = newest;
        // The writer writes the record first and then looks for holds: so one of the two sees the
        // other. One that has gone back removes the file that the commit is in, or cuts it.
        let Some(later) = commits_behind(&*self.medium, self.seed, &next.commit)? else {
            return Err(next.gone());
        };
        if later.iter().any(|c| c.oldest_kept > next.commit.info.sequence) {
            return Err(next.gone());
        }
        Ok(Some(next))
    }

    /// As `look_for_next`, where nothing is known of what lies between: a commit, or the last.
    /// Whether it is still kept shows when its index is recovered.
    fn look_for(&self, commit: Option<CommitRecord>) -> Result<Option<Next>> {
        let found = match commit {
            None => find(&*self.medium, self.seed, &Target::Last)?,
            commit => commit,
        };
        let Some(commit) = found else { return Ok(None) };
        if self.open_commit().is_some_and(|open| open.is(&commit)) && self.is_in_place()? {
            return Ok(None);
        }
        let hold = Hold::take(&self.medium, commit.info.sequence)?;
        Next::new(&*self.medium, commit, None, hold).map(Some)
    }

    fn open_commit(&self) -> Option<CommitRecord> {
        self.history.lock().kept.last().cloned()
    }

    /// Whether the record of the commit that is open is where it was.
    fn is_in_place(&self) -> Result<bool> {
        self.noted.lock().as_mut().map_or(Ok(true), Noted::is_in_place)
    }

    /// The engine of an open store.
    fn open_engine(&self) -> Result<RwLockReadGuard<'_, Engine>> {
        let engine = self.engine.read();
        if engine.closed {
            return Err(self.closed());
        }
        Ok(engine)
    }

    /// Moves the engine; returns the one before. If the journal does not lead there, the whole
    /// index is recovered.
    fn go_to(&self, mut next: Next, around: Around<'_>) -> Result<Engine> {
        // One that never worked is of a reader that only looks; without tables, none was needed.
        let must_fit = {
            let engine = self.open_engine()?;
            // Beside a writer a reader has none: the other tables follow.
            if engine.tables.iter().any(|table| table.region.is_some()) {
                bail!(
                    Unsupported,
                    "store {} has tables with storage \"pmem\", which this reader has open, and \
                     there is a newer commit: close it and open the store again",
                    self.path.display()
                );
            }
            engine.tables.is_empty() || engine.planned || engine.check_budget(&self.options).is_ok()
        };
        let followed = match self.open_commit().zip(next.behind.take()) {
            Some((open, behind)) => Some(self.follow(&open, behind, &next.commit, next.newest)),
            None => None,
        };
        let made = match followed {
            Some(Ok(made)) => made,
            // Recovering the whole index finds again that it does not fit.
            Some(Err(error)) if matches!(error.kind(), ErrorKind::Budget | ErrorKind::Closed) => {
                return Err(error);
            }
            Some(Err(error)) => self.recovered(&next).map_err(|_| error)?,
            None => self.recovered(&next)?,
        };
        if must_fit {
            let what = || format!("refresh to commit {}", next.commit.info.sequence);
            made.engine.check_budget(&self.options).map_err(|error| error.context(what()))?;
        }
        for _ in 0..ROUNDS_MAX {
            if self.open_engine()?.forget_arrived_rows() <= ARRIVED_MOST {
                break;
            }
        }
        let (mut ready, mut old) = (Some((made, next)), None);
        around(&mut || {
            if let Some((made, next)) = ready.take() {
                old = Some(self.install(made, next)?);
            }
            Ok(())
        })?;
        old.ok_or_else(|| {
            Error::new(ErrorKind::Misuse, "what is around a refresh has not run it".to_owned())
        })
    }

    /// The next commit, by what the journal has between the two.
    fn follow(
        &self,
        open: &CommitRecord,
        behind: Vec<CommitRecord>,
        to: &CommitRecord,
        newest: u64,
    ) -> Result<Made> {
        let files: Vec<u64> = numbers(&*self.medium)?
            .into_iter()
            .filter(|n| (open.place.0..=to.place.0).contains(n))
            .collect();
        let (kept, cycles, journal_bytes) = {
            let history = self.history.lock();
            (history.kept.clone(), history.cycles.clone(), history.old_journal_bytes)
        };
        let oldest = to.oldest_kept;
        let commits = kept.into_iter().chain(behind);
        let mut recovered = {
            let engine = self.open_engine()?;
            Recovered {
                classes: engine.classes.iter().map(|class| class.record.clone()).collect(),
                tables: engine.tables.iter().map(|table| table.record.clone()).collect(),
                dropped: engine.dropped.clone(),
                commits: commits.filter(|c| c.info.sequence >= oldest).collect(),
                journal_bytes,
                newest,
                cycles,
                logs: engine.go_on(open.info.sequence + 1, to.info.sequence)?,
                ..Default::default()
            }
        };
        // Verbs that look for a row wait for a part of the copy at most.
        while self.open_engine()?.copy_more(&mut recovered.logs) {}
        let known = recovered.tables.len() + recovered.dropped.len();
        self.open_engine()?.note_arrivals();
        let (mut rows, mut times) = (Vec::with_capacity(ROWS_AT_ONCE), 0);
        let mut forget = |rows: &mut Vec<(u16, u64)>| {
            let engine = self.engine.read();
            // One that was closed meanwhile has no rows.
            if !engine.closed {
                rows.iter().for_each(|(table, key)| engine.forget_row(*table, *key));
                times += 1;
                if times % TIMES_UNTIL_ARRIVED == 0 {
                    engine.forget_arrived_rows();
                }
            }
            rows.clear();
        };
        let mut changed = |table: u16, key: u64| {
            if usize::from(table) < known {
                rows.push((table, key));
                if rows.len() == ROWS_AT_ONCE {
                    forget(&mut rows);
                }
            }
        };
        let (merging, sequence) = (self.options.merging(), to.info.sequence);
        let replay = Replay::behind(recovered, merging, open, sequence, &mut changed);
        let recovered = replay.run(&*self.medium, self.seed, &files, to.place)?;
        forget(&mut rows);
        self.made(recovered, true)
    }

    /// The next commit, of which the whole index is recovered.
    fn recovered(&self, next: &Next) -> Result<Made> {
        let target = Target::Sequence(next.commit.info.sequence);
        let recovered = recover(&*self.medium, self.seed, &self.options, &target)?;
        events::recovered(&self.path, &recovered, false);
        if recovered.commits.last().is_none_or(|found| !found.is(&next.commit)) {
            return Err(next.gone());
        }
        self.made(recovered, false)
    }

    /// The recovered commit, in the form of a store.
    fn made(&self, mut recovered: Recovered, keeps_rows: bool) -> Result<Made> {
        let mut engine = Engine::default();
        let rows_disk_bytes =
            build(&mut engine, &self.medium, &self.options, self.term, &mut recovered)?;
        Ok(Made { engine, history: history_of(&recovered), rows_disk_bytes, keeps_rows })
    }

    /// Puts another commit in the engine's place, and returns what was there; caches stay where
    /// their rows are of the new commit, and there is room beside the index. Fails before anything
    /// changed.
    fn install(&self, made: Made, mut next: Next) -> Result<Engine> {
        let Made { engine: mut new, history, rows_disk_bytes, keeps_rows } = made;
        let mut engine = self.exclusive()?;
        // Of this commit is only what was read before its record was found in place.
        if !next.noted.is_in_place()? {
            return Err(next.gone());
        }
        // A scan that goes on would give rows of two commits.
        let changes = engine.tables.iter().map(|table| table.changes.load(Ordering::Relaxed)).max();
        for table in &new.tables {
            table.changes.store(changes.unwrap_or(0) + 1, Ordering::Relaxed);
        }
        if keeps_rows && new.has_tables_of(&engine) && engine.knows_arrivals() {
            engine.forget_arrived_rows();
            new.take_tiers(&mut engine);
        }
        self.rows_disk_bytes.store(rows_disk_bytes, Ordering::Relaxed);
        *self.history.lock() = history;
        self.unheld.store(next.hold.is_none(), Ordering::Relaxed);
        *self.noted.lock() = Some(next.noted);
        *self.hold.lock() = next.hold;
        self.moves.fetch_add(1, Ordering::Relaxed);
        Ok(replace(&mut engine, new))
    }
}

/// Whether looking again does not help: a budget that is too small, a cold directory elsewhere.
fn is_lasting(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Budget | ErrorKind::Mismatch)
}

/// Commits that follow `open` in the journal; `None` when the journal does not lead there any more.
fn commits_behind(
    medium: &dyn Medium,
    seed: u64,
    open: &CommitRecord,
) -> Result<Option<Vec<CommitRecord>>> {
    let (first, position) = open.place;
    let files = numbers(medium)?;
    if !files.contains(&first) {
        return Ok(None);
    }
    let mut commits: Vec<CommitRecord> = Vec::new();
    for number in files.into_iter().filter(|number| *number >= first) {
        // A file without a header is one that the writer has begun just now.
        let Some(mut reader) = JournalReader::open(medium, seed, number)? else { break };
        if number == first {
            if reader.file_bytes() < position {
                return Ok(None);
            }
            reader.go_to(position);
        }
        while let Some(kind) = reader.next()? {
            if kind != RecordKind::Commit {
                continue;
            }
            let name = |error: Error| error.context(name_of(number));
            let mut record: CommitRecord = read_json(reader.payload(), "commit").map_err(name)?;
            record.verify().map_err(name)?;
            (record.place, record.checksum) = ((number, reader.position()), reader.checksum());
            let before = commits.last().unwrap_or(open).info.sequence;
            if record.info.sequence != before + 1 {
                return Ok(None);
            }
            commits.push(record);
        }
    }
    Ok(Some(commits))
}
