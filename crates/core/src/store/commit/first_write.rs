//! The first write after opening: what follows the commit that was opened is given up, and the
//! journal goes on behind it.
//!
//! A store that is only read stays as it is, unless a schedule moves its rows
//! (`docs/decisions/0032-rows-that-are-only-read-move-too.md`). The order is that of
//! `docs/formats/head-and-holds.md`: the head, then the journal's end, then the holds of readers
//! that came meanwhile.

use super::{History, Spare};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{Medium, OpenMode, blocks_of};
use crate::planted::{self, Bug};
use crate::store::files::head::{self, Head};
use crate::store::files::holds;
use crate::store::files::pins::Pins;
use crate::store::journal::{CommitRecord, JournalFile, RecordKind, name_of, numbers, pin_of};
use crate::store::recovery::Target;
use crate::store::{Inner, Store, has_file};
use std::path::Path;
use std::sync::atomic::Ordering;

/// A commit outside the kept ones that a reader holds.
pub(in crate::store) enum Beside {
    /// Later than the commit to go on from, whose copies going on would write over.
    Later(u64),
    /// Older, and what it needs is not kept.
    Older(u64),
}

impl Beside {
    /// Why a writer does not go on.
    pub(in crate::store) fn refusal(&self, path: &Path) -> Error {
        let (held, which) = match self {
            Self::Later(held) => (held, "later than the commit to go on from"),
            Self::Older(held) => (held, "older than the kept commits"),
        };
        let message = format!(
            "a reader of {} holds commit {held}, which is {which}; wait until it is done or stop \
             it, or open with read_only=True",
            path.display()
        );
        Error::new(ErrorKind::Locked, message)
    }
}

/// Refuses to write while a reader holds a commit later than the kept ones. Returns the older ones
/// that readers hold, whose copies have to be kept; pinned ones are kept already.
pub(in crate::store) fn held_beside(
    medium: &dyn Medium,
    path: &Path,
    kept: &[CommitRecord],
    pins: &Pins,
) -> Result<Vec<u64>> {
    let sequence = |commit: Option<&CommitRecord>| commit.map_or(0, |c| c.info.sequence);
    let (first, last) = (sequence(kept.first()), sequence(kept.last()));
    let held = holds::outside(medium, pins)?;
    if let Some(later) = held.iter().rfind(|held| **held > last) {
        return Err(Beside::Later(*later).refusal(path));
    }
    Ok(held.into_iter().filter(|held| *held < first).collect())
}

impl Store {
    /// Refuses to go back to a commit, of this number, beside readers of later ones, or while later
    /// ones are pinned.
    ///
    /// With `later_pins_stay` pins are no hindrance, as for the option of that name.
    ///
    /// *Errors*: `Locked` naming the commit that is held; `Misuse` naming the pins; `Io`.
    pub fn check_may_go_back(&self, sequence: u64, later_pins_stay: bool) -> Result<()> {
        if !later_pins_stay {
            let pins = self.inner.pins.lock().and_later(&self.inner.later_pins.lock());
            pins.refuse_going_back(&*self.inner.medium, &self.inner.path, sequence)?;
        }
        let none = Pins::default();
        let newest = holds::outside(&*self.inner.medium, &none)?.pop();
        if let Some(newest) = newest.filter(|newest| *newest > sequence) {
            bail!(
                Locked,
                "a reader of {} holds commit {newest}, which is later than commit {sequence}; stop \
                 it, or have it go back first (EMB.SWITCH of a server)",
                self.inner.path.display()
            );
        }
        Ok(())
    }
}

impl Inner {
    /// Cuts off what an epoch without commit left, and opens the journal to append. Done once,
    /// before the first change, so that a store that is only read stays as it is.
    pub(in crate::store) fn prepare_writing(&self) -> Result<()> {
        if self.writing.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut history = self.history.lock();
        if history.journal.is_some() {
            return Ok(());
        }
        self.check_folder()?;
        let pins = self.pins.lock().clone();
        let sequence = |commit: Option<&CommitRecord>| commit.map_or(0, |c| c.info.sequence);
        let (last, first) = (sequence(history.kept.last()), sequence(history.kept.first()));
        let later = self.later_pins.lock().clone();
        later.refuse_going_back(&*self.medium, &self.path, last)?;
        let older = held_beside(&*self.medium, &self.path, &history.kept, &pins)?;
        // All others were there when the store was opened.
        if let Some(held) = older.into_iter().find(|held| !self.is_left_held(*held)) {
            return Err(Beside::Older(held).refusal(&self.path));
        }
        let head = Head::new(last, first, self.term);
        history.spare = Spare::open(&*self.medium)?;
        if history.kept.is_empty() {
            // Left by an epoch that never committed.
            history.spare.draw(u64::MAX)?;
        }
        self.remove_left_pins(&mut history, &pins)?;
        match history.kept.last().map(|c| c.place) {
            Some((file, _)) if pin_of(file).is_some() => self.go_on_from_pin(&mut history, head)?,
            Some(place) => self.go_on_from(&mut history, place, head)?,
            None => self.begin_journal(&mut history, head)?,
        }
        // Pairs with the acquire above: a thread that sees it finds the journal open.
        self.writing.store(true, Ordering::Release);
        Ok(())
    }

    /// Begins to write, for rows that need not be written; false where that fails, or could give up
    /// later commits.
    pub(in crate::store) fn may_begin_to_write(&self) -> bool {
        self.writing.load(Ordering::Acquire)
            || matches!(Target::of(&self.options), Target::Last)
                && self.check_writable().is_ok()
                && self.prepare_writing().is_ok()
    }

    /// Gives up what follows a commit. A crash in between leaves one of the commits that are being
    /// given up, or this one, and what any of them had dropped is known from the head.
    fn go_on_from(
        &self,
        history: &mut History,
        (number, end): (u64, u64),
        head: Head,
    ) -> Result<()> {
        let (medium, last) = (&*self.medium, head.sequence);
        // First, for the head says that the commit is durable.
        if history.synced_to < end {
            JournalFile::write_again(medium, self.seed, number, history.synced_to..end)?;
            history.synced_to = end;
        }
        if !planted::is(Bug::HeadNotLowered) {
            self.write_head(history, head)?;
        }
        medium.sync_dir()?;
        let later = numbers(medium)?.into_iter().rev().take_while(|later| *later > number);
        // The last first and one by one, or a power cut could bring one back without those before.
        for number in later {
            let name = name_of(number);
            // A reader that has it open sees that its records are gone.
            medium.open(&name, OpenMode::ReadWrite)?.set_len(0)?;
            medium.remove(&name)?;
            medium.sync_dir()?;
        }
        let journal = JournalFile::resume(medium, self.seed, number, end)?;
        // A reader may have taken its hold since these were looked at.
        holds::take_later_away(medium, last)?;
        self.drop_given_up(history, number)?;
        history.journal = Some(journal);
        Ok(())
    }

    /// Writes the head, durably. A crash may have left it without room.
    pub(super) fn write_head(&self, history: &mut History, head: Head) -> Result<()> {
        self.take_for_commit(history, blocks_of(head::BYTES), |_| {
            head.write_durably(&*self.medium, self.seed)
        })
    }

    /// Begins the journal of a store without commits.
    fn begin_journal(&self, history: &mut History, head: Head) -> Result<()> {
        let medium = &*self.medium;
        // The name of the superblock, if a sync after its creation has failed: before all others.
        medium.sync_dir()?;
        self.write_head(history, head)?;
        // It has no classes yet.
        let version = JournalFile::version_for(std::iter::empty(), std::iter::empty());
        let mut journal = if has_file(medium, &name_of(1))? {
            JournalFile::create_again(medium, self.seed, 1)?
        } else {
            JournalFile::create(medium, self.seed, 1, version)?
        };
        journal.append(RecordKind::CycleEnd, &[])?;
        medium.sync_dir()?;
        self.drop_given_up(history, 1)?;
        history.journal = Some(journal);
        history.cycles = vec![(1, 0)];
        Ok(())
    }
}
