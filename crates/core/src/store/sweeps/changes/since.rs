//! Finding the commit from which changes are asked for, and the one that they lead to.

use super::journal::{self, Found, OfTable};
use super::removed::Shares;
use super::{Changes, Deletes, Since, Source, TableEvent, not_found, read_changes, table_of};
use crate::config::{CommitInfo, Memory, StoreOptions, TableId, TableInfo};
use crate::error::{Result, bail};
use crate::storage::{RowChange, SlotSet};
use crate::store::files::pins::Pins;
use crate::store::journal::{ChangeOf, TableChange, TableRecord};
use crate::store::memory::budget::enough;
use crate::store::{Inner, Store};
use std::path::Path;

/// Steps that an error names.
const NAMED_MAX: usize = 4;
/// Bytes of a reader's budget beside what works, for its cache.
const SPARE_BYTES: u64 = 4 << 20;

impl Since {
    fn is_of(&self, commit: &CommitInfo) -> bool {
        match self {
            Self::Nothing => false,
            Self::Step(step) => commit.step == *step,
            Self::Commit { sequence, step, unix_time, bytes_written } => {
                (commit.sequence, commit.step, commit.unix_time, commit.bytes_written)
                    == (*sequence, *step, *unix_time, *bytes_written)
            }
        }
    }

    fn step(&self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Step(step) | Self::Commit { step, .. } => Some(*step),
        }
    }
}

impl Inner {
    /// A reader of the last commit, for as long as somebody needs it.
    pub(super) fn reader_of_last(&self) -> Result<Store> {
        loop {
            let last = self.history.lock().kept.last().map(|commit| commit.info.sequence);
            let Some(sequence) = last else {
                bail!(
                    NotFound,
                    "store {} has no commit yet, and changes are those that are committed: call \
                     commit(step) first",
                    self.path.display()
                );
            };
            match self.reader_at(sequence) {
                // It was dropped before it was held.
                Err(_) if !self.keeps(sequence) => {}
                other => return other,
            }
        }
    }

    fn keeps(&self, sequence: u64) -> bool {
        self.history.lock().kept.iter().any(|commit| commit.info.sequence == sequence)
    }

    /// A reader of a commit, with a budget of its own that is as small as can be.
    fn reader_at(&self, sequence: u64) -> Result<Store> {
        let demands = self.engine.read().demands();
        let options = StoreOptions {
            memory: Memory::Bytes(enough(&demands) * 5 / 4 + SPARE_BYTES),
            read_only: true,
            create: false,
            step: None,
            pin: None,
            ..self.options.clone()
        };
        let path: &Path = &self.path;
        Store::open_commit(&self.medium, path, &options, sequence)
    }
}

impl Changes {
    /// Finds out what tells the changes since a commit.
    pub(super) fn find(&mut self, since: &Since, removed_max: usize) -> Result<()> {
        let Some(step) = since.step() else { return Ok(()) };
        let reader = self.reader.clone();
        let inner = &*reader.inner;
        let open = inner.history.lock().kept.last().cloned();
        let Some(open) = open else {
            return Err(not_found(format!(
                "store {} has no commit, and so none of step {step}",
                inner.path.display()
            )));
        };
        let looked = journal::look_back(&*inner.medium, inner.seed, &open, &|c| since.is_of(c))?;
        let known = match looked {
            Found::From(known) => known,
            Found::Between(between) => {
                let classes = inner.engine.read().classes.len();
                let written = vec![SlotSet::default(); classes];
                self.source = Source::Journal { between, written };
                return self.note_written(removed_max);
            }
        };
        let pins = Pins::read(&*inner.medium, inner.seed)?;
        let pinned = pins.named().rfind(|pinned| {
            let (sequence, unix_time) = (pinned.sequence, pinned.committed);
            let is_same = match since {
                Since::Commit { sequence: of, unix_time: at, .. } => {
                    (*of, *at) == (sequence, unix_time)
                }
                _ => true,
            };
            pinned.step == step && sequence < open.info.sequence && is_same
        });
        let Some(pinned) = pinned else {
            return Err(self.no_way_back(since, step, &known, &pins));
        };
        self.source = Source::Pinned(inner.reader_at(pinned.sequence)?);
        let Source::Pinned(old) = &self.source else { return Ok(()) };
        let of_old: Vec<TableId> = old.tables().into_iter().map(|info| info.id).collect();
        let both = self.tables.iter().copied().filter(|id| of_old.contains(id));
        self.events = events_between(&old.tables(), &self.reader.tables());
        self.deletes = Deletes::Old(both.collect(), None);
        Ok(())
    }

    /// Reads the journal for the slots that were written.
    fn note_written(&mut self, removed_max: usize) -> Result<()> {
        let inner = &*self.reader.inner;
        let Source::Journal { between, written } = &mut self.source else { return Ok(()) };
        let (mut removed, tables) = (0u64, &self.tables);
        let mut of_row = |class: usize, change| match change {
            RowChange::Written { slot, .. } => written[class].insert(slot),
            _ => removed += u64::from(tables.contains(&TableId(table_of(change)))),
        };
        let events = &mut self.events;
        let mut of_table = |record| {
            match record {
                OfTable::Record(TableRecord { born: true, spec, .. }) => {
                    events.push(TableEvent::Made(Box::new(spec)));
                }
                OfTable::Record(_) => {}
                OfTable::Change(TableChange { name, change, .. }) => events.push(match change {
                    ChangeOf::Drop => TableEvent::Dropped(name),
                    ChangeOf::Rename(new) => TableEvent::Renamed(name, new),
                    ChangeOf::Grow(ids) => TableEvent::Grown(name, ids),
                }),
            }
            Ok(())
        };
        read_changes(between, &*inner.planned_engine()?, &mut of_row, &mut of_table)?;
        if removed > 0 {
            self.deletes = Deletes::Shares(Shares::new(removed_max));
        }
        Ok(())
    }

    fn no_way_back(
        &self,
        since: &Since,
        step: u64,
        known: &[CommitInfo],
        pins: &Pins,
    ) -> crate::error::Error {
        let path = self.reader.inner.path.display();
        let open = known.first().map_or(step, |commit| commit.step);
        if matches!(since, Since::Commit { .. }) && known.iter().any(|c| c.step == step) {
            return not_found(format!(
                "the commit of step {step} in {path} is another one than it was: the store has \
                 gone back since; take a full copy, or all rows with since=None"
            ));
        }
        let steps: Vec<String> =
            known.iter().take(NAMED_MAX).map(|commit| commit.step.to_string()).collect();
        let more = match known.last() {
            Some(last) if known.len() > NAMED_MAX => format!(" and others back to {}", last.step),
            _ => String::new(),
        };
        let pinned = match pins.spelled() {
            names if names.is_empty() => names,
            names => format!(", and pinned are {names}"),
        };
        not_found(format!(
            "{path} does not know what changed since a commit of step {step}: it is open at step \
             {open}, its journal goes back to steps [{}]{more}{pinned}. Take all rows with \
             since=None, or a full copy; pin the commit (pin=, store.pin) from which changes will \
             be asked for, or keep more commits",
            steps.join(", ")
        ))
    }
}

/// Changes of tables between two commits, by comparison of the tables in both.
fn events_between(old: &[TableInfo], new: &[TableInfo]) -> Vec<TableEvent> {
    let now = |info: &TableInfo| new.iter().find(|other| other.id == info.id);
    let name = |info: &TableInfo| info.spec.name.clone();
    let gone = old.iter().filter(|info| now(info).is_none());
    let mut events: Vec<TableEvent> = gone.map(|info| TableEvent::Dropped(name(info))).collect();
    let renamed = || {
        let pairs = old.iter().filter_map(|info| Some((name(info), name(now(info)?))));
        pairs.filter(|(before, after)| before != after)
    };
    // One may have the name that another had.
    let is_taken = |after: &String| renamed().any(|(before, _)| before == *after);
    let meanwhile = |before: &str| format!("{before} (renamed)");
    for (before, after) in renamed() {
        let to = if is_taken(&after) { meanwhile(&before) } else { after };
        events.push(TableEvent::Renamed(before, to));
    }
    for (before, after) in renamed().filter(|(_, after)| is_taken(after)) {
        events.push(TableEvent::Renamed(meanwhile(&before), after));
    }
    for info in new {
        let before = old.iter().find(|other| other.id == info.id);
        match (before.map(|before| before.spec.num_embeddings), info.spec.num_embeddings) {
            (None, _) => events.push(TableEvent::Made(Box::new(info.spec.clone()))),
            (Some(ids), Some(more)) if ids != Some(more) => {
                events.push(TableEvent::Grown(name(info), more));
            }
            _ => {}
        }
    }
    events
}
