//! Refresh: an open reader moves to the newest commit.
//!
//! It holds the new commit before it lets the old one go. The journal behind the old commit says
//! which rows changed: they leave the cache, the index follows, all other rows stay resident. A
//! reader that no longer holds its commit, or has none, recovers the whole index instead, and so
//! does one whose writer has gone back; tables that came since take an empty cache, too.
//!
//! Whatever fails, the reader stays at its commit. What it needs beside the index is made before it
//! moves. Where the index was half changed the old one is recovered, which the old hold has kept.

use super::cold;
use super::engine::Engine;
use super::files::head::Head;
use super::files::holds::Hold;
use super::journal::{CommitRecord, JournalReader, RecordKind, name_of, numbers, read_json};
use super::open::{build, files_of_commits, history_of, while_changing};
use super::recovery::{Recovered, Replay, Target, find, recover};
use super::unheld::Noted;
use super::{Inner, Store};
use crate::config::CommitInfo;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::Medium;
use std::sync::atomic::Ordering;

/// A commit that a refresh goes to, and all that the reader needs of it beside its index.
struct Next {
    commit: CommitRecord,
    noted: Noted,
    /// Commits behind the one that is open, up to that; `None` where the whole index is needed.
    behind: Option<Vec<CommitRecord>>,
    hold: Option<Hold>,
    /// Whether the budget worked for the commit that is open, and has to for this one.
    must_fit: bool,
}

impl Next {
    /// Notes the commit, which was read before it was held.
    fn new(
        medium: &dyn Medium,
        commit: CommitRecord,
        behind: Option<Vec<CommitRecord>>,
        hold: Option<Hold>,
    ) -> Result<Self> {
        let noted = Noted::of(medium, &commit)?;
        Ok(Self { commit, noted, behind, hold, must_fit: false })
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
    /// `Mismatch` where the store has got or moved its cold directory, and has to be opened again;
    /// `Budget` naming a memory that works; as `open` otherwise. The reader stays at its commit
    /// then; only where it cannot even recover that, it is closed, and says so. *Blocking*: reads
    /// the journal behind the commit that is open. Verbs of other threads wait while the index
    /// changes, and a scan that was begun before has to begin again.
    pub fn refresh(&self) -> Result<Option<CommitInfo>> {
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
        let _one = inner.refreshing.lock();
        // What a writer changes meanwhile may look like damage, and is looked at again.
        let look = || files_of_commits(&*inner.medium);
        while_changing(look, || match inner.move_on() {
            Err(error) if inner.engine.read().closed || is_lasting(error.kind()) => Ok(Err(error)),
            moved => moved.map(Ok),
        })?
    }
}

impl Inner {
    /// Goes to the newest commit, if it is not the one that is open.
    fn move_on(&self) -> Result<Option<CommitInfo>> {
        let Some(next) = self.look_for_next()? else { return Ok(None) };
        cold::check_unchanged(&*self.medium, &self.path)?;
        let info = next.commit.info.clone();
        self.go_to(next)?;
        Ok(Some(info))
    }

    /// The newest commit, held, if it is not the one that is open.
    fn look_for_next(&self) -> Result<Option<Next>> {
        let open = self.open_commit();
        let Some(open) = open.filter(|_| self.is_held()) else { return self.look_for_last() };
        // Before the journal, which it must not lead.
        let head = Head::read(&*self.medium, self.seed)?;
        let Some(commits) = commits_behind(&*self.medium, self.seed, &open)? else {
            return self.look_for_last();
        };
        // The hold may be gone by now, and what was read lie behind another commit.
        if !self.is_in_place()? {
            return self.look_for_last();
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
        let Some(commit) = commits.last().cloned() else { return Ok(None) };
        let hold = Hold::take(&self.medium, commit.info.sequence)?;
        let next = Next::new(&*self.medium, commit, Some(commits), hold)?;
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

    /// As `look_for_next`, where nothing is known of what lies between. Whether the commit is still
    /// kept shows when its index is recovered.
    fn look_for_last(&self) -> Result<Option<Next>> {
        let found = find(&*self.medium, self.seed, Target::Last)?;
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

    /// Moves the engine. Where the journal does not lead there, the whole index is recovered.
    fn go_to(&self, mut next: Next) -> Result<()> {
        let mut engine = self.exclusive()?;
        // One that never worked is of a reader that only looks; without tables, none was needed.
        // Beside a writer a reader has none: the other tables follow.
        if engine.tables.iter().any(|table| table.region.is_some()) {
            bail!(
                Unsupported,
                "store {} has tables with storage \"pmem\", which this reader has open, and there \
                 is a newer commit: close it and open the store again",
                self.path.display()
            );
        }
        next.must_fit = engine.tables.is_empty()
            || engine.planned
            || engine.check_budget(&self.options).is_ok();
        match self.open_commit().zip(next.behind.take()) {
            Some((open, behind)) => self.follow(&mut engine, &open, behind, &mut next)?,
            None => self.begin_anew(&mut engine, &mut next)?,
        }
        // Nothing fails from here on.
        self.unheld.store(next.hold.is_none(), Ordering::Relaxed);
        *self.noted.lock() = Some(next.noted);
        *self.hold.lock() = next.hold;
        Ok(())
    }

    /// Applies what the journal has between two commits.
    fn follow(
        &self,
        engine: &mut Engine,
        open: &CommitRecord,
        behind: Vec<CommitRecord>,
        next: &mut Next,
    ) -> Result<()> {
        let files: Vec<u64> = numbers(&*self.medium)?
            .into_iter()
            .filter(|n| (open.place.0..=next.commit.place.0).contains(n))
            .collect();
        let classes = engine.classes.iter().map(|class| class.record.clone()).collect();
        let tables = engine.tables.iter().map(|table| table.record.clone()).collect();
        let (kept, cycles, journal_bytes) = {
            let history = self.history.lock();
            (history.kept.clone(), history.cycles.clone(), history.old_journal_bytes)
        };
        let oldest = next.commit.oldest_kept;
        let commits = kept.into_iter().chain(behind);
        let recovered = Recovered {
            classes,
            tables,
            commits: commits.filter(|c| c.info.sequence >= oldest).collect(),
            journal_bytes,
            cycles,
            // From here on the engine has no index, whatever fails.
            logs: engine.go_on(open.info.sequence + 1, next.commit.info.sequence),
            ..Default::default()
        };
        let Err(error) = self.replay(engine, recovered, open, &files, next) else { return Ok(()) };
        // Recovering the whole index finds again that it does not fit.
        if error.kind() != ErrorKind::Budget && self.begin_anew(engine, next).is_ok() {
            return Ok(());
        }
        if let Err(again) = self.go_back(engine, open) {
            engine.closed = true;
            engine.classes.clear();
            engine.tables.clear();
            drop(self.hold.lock().take());
            // A lack of memory leaves a reader where it is, and this one is nowhere.
            let (error, also) = match error.kind() {
                ErrorKind::Budget => (again, error),
                _ => (error, again),
            };
            let what = format!("the reader is closed, open it again ({})", also.message());
            return Err(error.context(what));
        }
        Err(error)
    }

    /// Replays what lies behind the open commit, and installs it.
    fn replay(
        &self,
        engine: &mut Engine,
        recovered: Recovered,
        open: &CommitRecord,
        files: &[u64],
        next: &mut Next,
    ) -> Result<()> {
        let known = engine.tables.len();
        let mut changed = |table: u16, key: u64| {
            if usize::from(table) < known {
                engine.forget_row(table, key);
            }
        };
        let (merging, to) = (self.options.merging(), next.commit.info.sequence);
        let replay = Replay::behind(recovered, merging, open, to, &mut changed);
        let mut recovered = replay.run(&*self.medium, self.seed, files, next.commit.place)?;
        self.install(engine, &mut recovered, true, next)
    }

    /// Recovers the whole index of a commit. The engine is as it was where that fails.
    fn begin_anew(&self, engine: &mut Engine, next: &mut Next) -> Result<()> {
        let target = Target::Sequence(next.commit.info.sequence);
        let mut recovered = recover(&*self.medium, self.seed, self.options.merging(), target)?;
        if recovered.commits.last().is_none_or(|found| !found.is(&next.commit)) {
            return Err(next.gone());
        }
        self.install(engine, &mut recovered, false, next)
    }

    /// Recovers the indexes of the commit that was open, which its hold has kept. Nothing else has
    /// changed: rows that are still resident are of that commit.
    fn go_back(&self, engine: &mut Engine, open: &CommitRecord) -> Result<()> {
        let target = Target::Held(open.info.sequence);
        let recovered = recover(&*self.medium, self.seed, self.options.merging(), target)?;
        let same = recovered.commits.last().is_some_and(|found| found.is(open));
        if !same || recovered.tables.len() != engine.tables.len() {
            return Err(self.commit_gone());
        }
        engine.take_back(recovered.logs);
        Ok(())
    }

    /// Puts what was recovered in the engine's place; its caches stay where their rows are of the
    /// new commit, and there is room beside the index. Fails before anything changed.
    fn install(
        &self,
        engine: &mut Engine,
        recovered: &mut Recovered,
        keeps_rows: bool,
        next: &mut Next,
    ) -> Result<()> {
        let mut new = Engine::default();
        let rows_disk_bytes = build(&mut new, &self.medium, &self.options, self.term, recovered)?;
        if next.must_fit {
            let what = || format!("refresh to commit {}", next.commit.info.sequence);
            new.check_budget(&self.options).map_err(|error| error.context(what()))?;
        }
        // Of this commit is only what was read before its record was found in place.
        if !next.noted.is_in_place()? {
            return Err(next.gone());
        }
        // A scan that goes on would give rows of two commits.
        for (table, old) in new.tables.iter().zip(&engine.tables) {
            let changes = old.changes.load(Ordering::Relaxed) + 1;
            table.changes.store(changes, Ordering::Relaxed);
        }
        if keeps_rows && new.tables.len() == engine.tables.len() {
            new.take_tiers(engine);
        }
        self.rows_disk_bytes.store(rows_disk_bytes, Ordering::Relaxed);
        *self.history.lock() = history_of(recovered);
        *engine = new;
        Ok(())
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
