//! Refresh: an open reader moves to the newest commit.
//!
//! It holds the new commit before it lets the old one go. The journal behind the old commit says
//! which rows changed: they leave the cache, the index follows, all other rows stay resident. A
//! reader that no longer holds its commit, or has none, recovers the whole index instead, and so
//! does one whose writer has gone back; tables that came since take an empty cache, too.

use super::engine::{Class, Engine};
use super::head::Head;
use super::holds::Hold;
use super::journal::{CommitRecord, JournalReader, RecordKind, name_of, number_of, read_json};
use super::open::{build, files_of_commits, history_of, while_changing};
use super::recovery::{Recovered, Replay, Target, recover};
use super::unheld::Noted;
use super::{Inner, Store};
use crate::config::CommitInfo;
use crate::error::{Error, Result, bail};
use crate::io::Medium;
use std::sync::atomic::Ordering;

/// A commit that a refresh goes to, and the claim on it.
struct Next {
    commit: CommitRecord,
    /// Commits behind the one that is open, up to that; `None` where the whole index is needed.
    behind: Option<Vec<CommitRecord>>,
    hold: Option<Hold>,
}

impl Store {
    /// Moves a reader to the newest commit; returns it, or `None` when it is open already. Rows
    /// that did not change stay resident.
    ///
    /// *Errors*: `Misuse` for a store that is open to write, which is at its newest commit always;
    /// as `open` otherwise: the reader stays at its commit then. *Blocking*: reads the journal
    /// behind the commit that is open. Verbs of other threads wait while the index changes, and a
    /// scan that was begun before has to begin again.
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
        let Some(next) = inner.find_next()? else { return Ok(None) };
        let info = next.commit.info.clone();
        inner.go_to(next)?;
        Ok(Some(info))
    }
}

impl Inner {
    /// The newest commit, held, if it is not the one that is open. What a writer changes meanwhile
    /// may look like damage, and is looked at again.
    fn find_next(&self) -> Result<Option<Next>> {
        while_changing(|| files_of_commits(&*self.medium), || self.look_for_next())
    }

    fn look_for_next(&self) -> Result<Option<Next>> {
        let open = self.history.lock().kept.last().cloned();
        let Some(open) = open.filter(|_| self.is_held()) else { return self.look_for_last() };
        // Before the journal, which it must not lead.
        let head = Head::read(&*self.medium, self.seed)?;
        let Some(commits) = commits_behind(&*self.medium, self.seed, &open)? else {
            return self.look_for_last();
        };
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
        // The writer writes the record first and then looks for holds: so one of the two sees the
        // other.
        let newest = commits_behind(&*self.medium, self.seed, &commit)?;
        if newest.iter().flatten().any(|c| c.oldest_kept > commit.info.sequence) {
            bail!(CommitGone, "commit {} went while it was opened; try again", commit.info.step);
        }
        Ok(Some(Next { commit, behind: Some(commits), hold }))
    }

    /// As `look_for_next`, where nothing is known of what lies between.
    fn look_for_last(&self) -> Result<Option<Next>> {
        let found = recover(&*self.medium, self.seed, Target::Last)?.commits.pop();
        let Some(commit) = found else { return Ok(None) };
        let open = self.history.lock().kept.last().map(|c| (c.info.sequence, c.place));
        if open == Some((commit.info.sequence, commit.place)) {
            return Ok(None);
        }
        let hold = Hold::take(&self.medium, commit.info.sequence)?;
        Ok(Some(Next { commit, behind: None, hold }))
    }

    /// Moves the engine. Where the journal does not lead there, the whole index is recovered.
    fn go_to(&self, next: Next) -> Result<()> {
        let mut engine = self.exclusive()?;
        let went = match &next.behind {
            Some(commits) => self.follow(&mut engine, commits, &next.commit),
            None => self.begin_anew(&mut engine, &next.commit),
        };
        // The old index is gone where following failed half way.
        let went = match went {
            Err(_) if engine.tables.is_empty() => self.begin_anew(&mut engine, &next.commit),
            went => went,
        };
        if let Err(error) = went {
            if engine.tables.is_empty() {
                engine.closed = true;
                return Err(error.context("the reader is closed, open it again: refresh"));
            }
            return Err(error);
        }
        self.unheld.store(next.hold.is_none(), Ordering::Relaxed);
        *self.hold.lock() = next.hold;
        *self.noted.lock() = Some(Noted::of(&*self.medium, &next.commit)?);
        Ok(())
    }

    /// Applies what the journal has between two commits.
    fn follow(
        &self,
        engine: &mut Engine,
        commits: &[CommitRecord],
        to: &CommitRecord,
    ) -> Result<()> {
        let (kept, cycles, journal_bytes) = {
            let history = self.history.lock();
            let before = history.kept.iter().chain(commits);
            let kept: Vec<_> =
                before.filter(|c| c.info.sequence >= to.oldest_kept).cloned().collect();
            (kept, history.cycles.clone(), history.old_journal_bytes)
        };
        let Some(from) = self.history.lock().kept.last().cloned() else {
            return self.begin_anew(engine, to);
        };
        let fillings = engine.classes.iter().map(Class::fillings).collect::<Result<Vec<_>>>()?;
        let tables = engine.take_tables();
        let known = engine.tables.len();
        let classes = engine.classes.iter().map(|class| class.record.clone()).collect();
        let mut changed = |table: u16, key: u64| {
            if usize::from(table) < known {
                engine.forget_row(table, key);
            }
        };
        let recovered = Recovered {
            classes,
            tables,
            fillings,
            commits: kept,
            journal_bytes,
            cycles,
            ..Default::default()
        };
        let replay = Replay::behind(recovered, &from, to.info.sequence, &mut changed);
        let files: Vec<u64> = journal_files(&*self.medium)?
            .into_iter()
            .filter(|n| (from.place.0..=to.place.0).contains(n))
            .collect();
        let replayed = replay.run(&*self.medium, self.seed, &files, to.place);
        let mut recovered = match replayed {
            Ok(recovered) => recovered,
            Err(error) => {
                engine.tables.clear();
                return Err(error);
            }
        };
        self.install(engine, &mut recovered, true)
    }

    /// Recovers the whole index of a commit.
    fn begin_anew(&self, engine: &mut Engine, to: &CommitRecord) -> Result<()> {
        let target = Target::Sequence(to.info.sequence);
        let mut recovered = recover(&*self.medium, self.seed, target)?;
        self.install(engine, &mut recovered, false)
    }

    /// Puts what was recovered in the engine's place; its caches stay where rows that did not
    /// change are in them, and there is room beside the index.
    fn install(
        &self,
        engine: &mut Engine,
        recovered: &mut Recovered,
        keeps_rows: bool,
    ) -> Result<()> {
        let mut new = Engine::default();
        let built = build(&mut new, &*self.medium, &self.options, self.seed, self.term, recovered);
        let rows_disk_bytes = match built {
            Ok(bytes) => bytes,
            Err(error) => {
                engine.tables.clear();
                return Err(error);
            }
        };
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

/// The journal's files, by rising number.
fn journal_files(medium: &dyn Medium) -> Result<Vec<u64>> {
    let names = medium.list("journal-")?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Commits that follow `open` in the journal; `None` when the journal does not lead there any more.
fn commits_behind(
    medium: &dyn Medium,
    seed: u64,
    open: &CommitRecord,
) -> Result<Option<Vec<CommitRecord>>> {
    let (first, position) = open.place;
    let files = journal_files(medium)?;
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
            record.place = (number, reader.position());
            let before = commits.last().unwrap_or(open).info.sequence;
            if record.info.sequence != before + 1 {
                return Ok(None);
            }
            commits.push(record);
        }
    }
    Ok(Some(commits))
}
