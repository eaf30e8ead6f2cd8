//! Reservation of the room on disk.
//!
//! Once a verb was taken, there is always room for
//!
//! * the rows that are not written yet, and the pages that a commit seals;
//! * beside them, in each class that the verb changed, some room for cleaning to move rows to
//!   (`room_for_upkeep`), and for one merge where its storage has them;
//! * in the journal, the deltas of those rows and the next commit's record;
//! * in the spare room (`commit/spare.rs`), the journal that replaces this one and the states of
//!   commits to come; without a disk bound, some more of the journal for cleaning.
//!
//! Under `max_disk_bytes` this room counts as taken, without one it is taken. Verbs restore it or
//! are refused as `Full`, before anything changed. Cleaning and commits use it: a commit finds what
//! it needs there, cleaning turns the segments that it may fill into more that are free once older
//! commits are dropped, and a class that has more than it needs gives room back to the others. So
//! where much is outdated, commits alone bring a full store back to work.

mod flush;
mod memory;
mod reserve;
mod schedule;
mod upkeep;

pub(in crate::store) use schedule::{Scheduler, Work};
pub(in crate::store) use upkeep::UnitUnderWay;

use crate::error::{Error, ErrorKind, Result, bail};
use crate::storage::Storage;
use crate::store::Inner;
use crate::store::commit::{Asker, History};
use crate::store::engine::{Class, Engine};
use crate::store::files::state::STATE_BYTES_KEPT_FREE;
use crate::store::journal::JOURNAL_BYTES_PER_COMMIT;
use std::sync::atomic::Ordering;

impl Inner {
    /// Bytes that the store takes on disk.
    pub(in crate::store) fn used_bytes(&self, history: &History) -> u64 {
        self.rows_disk_bytes.load(Ordering::Relaxed) + history.disk_bytes()
    }

    /// Makes sure that the journal can take `bytes` for changes and then a commit, and fills the
    /// spare room. Without room for them the next commits hurry to replace the journal.
    pub(in crate::store) fn reserve_to_change(
        &self,
        history: &mut History,
        asker: Asker,
        bytes: u64,
    ) -> Result<()> {
        let bytes = bytes + self.journal_bytes_of_commits(history);
        let spare = self.spare_bytes(history);
        let fits =
            self.fill_spare(history).and_then(|()| self.reserve_journal(history, bytes, spare));
        match &fits {
            Ok(()) => history.refused.accept(asker),
            Err(error) if error.kind() == ErrorKind::Full => {
                let journal = history.journal().growth_for(bytes);
                let growth = journal + history.spare.growth_for(spare);
                self.note_refused(history, asker, growth, 0, 0);
                history.journal_was_full |= journal > 0 || history.journal_is_long();
            }
            Err(_) => {}
        }
        fits
    }

    /// Makes sure that the journal can take what is to come of all classes, the deltas of a unit of
    /// cleaning and then a commit; false when the disk has no room for them.
    pub(in crate::store) fn reserve_to_clean(
        &self,
        engine: &Engine,
        class: &Class,
        log: &dyn Storage,
    ) -> Result<bool> {
        let own = class.journal_bytes(log) + log.journal_bytes_for(log.rows_per_unit());
        let history = &mut *self.history.lock();
        let bytes =
            own + engine.journal_bytes_beside(class) + self.journal_bytes_of_commits(history);
        let spare = self.spare_bytes_of_commits(history);
        match self.reserve_journal(history, bytes, spare) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Full => {
                // A full store that may not clean would stay full.
                history.journal_was_full |= history.refused.bytes() > 0;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes sure that the journal can take `bytes` more and leaves so much spare room.
    pub(in crate::store) fn reserve_journal(
        &self,
        history: &mut History,
        bytes: u64,
        spare: u64,
    ) -> Result<()> {
        let growth = history.journal().growth_for(bytes);
        if !self.fits(history, growth, spare)? {
            let used = self.used_bytes(history);
            bail!(
                Full,
                "the journal needs {growth} more bytes, beside {spare} that are kept for commits, \
                 and {used} are in use"
            );
        }
        self.take(history, growth, spare, |history| history.journal().reserve(bytes))
    }

    /// Makes sure that the journal can take `bytes` more, for a commit.
    pub(in crate::store) fn reserve_to_commit(
        &self,
        history: &mut History,
        bytes: u64,
    ) -> Result<()> {
        let growth = history.journal().growth_for(bytes);
        self.take_for_commit(history, growth, |history| history.journal().reserve(bytes))
    }

    /// Room in the journal for commits, beside deltas and beside the spare room.
    pub(in crate::store) fn journal_bytes_of_commits(&self, history: &History) -> u64 {
        history.journal_bytes_of_commits(self.options.max_disk_bytes.is_some())
    }

    /// Spare room that commits need.
    fn spare_bytes_of_commits(&self, history: &History) -> u64 {
        history.bytes_kept_free() + history.state_bytes_to_come(self.options.keep)
    }

    /// Spare room that verbs leave. Under a disk bound files of rows leave room for the journal to
    /// grow beside that (`History::journal_bytes_to_come`).
    pub(in crate::store) fn spare_bytes(&self, history: &History) -> u64 {
        let beside = match self.options.max_disk_bytes {
            Some(_) => 0,
            None => 2 * JOURNAL_BYTES_PER_COMMIT,
        };
        self.spare_bytes_of_commits(history) + beside
    }

    /// Fills the spare room.
    fn fill_spare(&self, history: &mut History) -> Result<()> {
        let bytes = self.spare_bytes(history);
        let growth = history.spare.growth_for(bytes);
        let used = self.used_bytes(history);
        if let Some(most) = self.options.max_disk_bytes
            && growth > 0
            && used + growth > most
        {
            bail!(Full, "{bytes} bytes are to be kept for commits, and {used} are in use");
        }
        history.spare.fill(&*self.medium, bytes)
    }

    /// Whether the bound allows `growth` more bytes, beside so much spare room, which gives what it
    /// has more than that.
    pub(in crate::store) fn fits(
        &self,
        history: &mut History,
        growth: u64,
        spare: u64,
    ) -> Result<bool> {
        let Some(most) = self.options.max_disk_bytes.filter(|_| growth > 0) else {
            return Ok(true);
        };
        let over = |history: &History| {
            let lacking = spare.saturating_sub(history.spare.bytes());
            (self.used_bytes(history) + growth + lacking).saturating_sub(most)
        };
        let more = history.spare.bytes().saturating_sub(spare);
        history.spare.draw(over(history).min(more))?;
        Ok(over(history) == 0)
    }

    /// Takes `growth` more bytes of the device, where it is full those of the spare room, of which
    /// so much stays.
    pub(in crate::store) fn take<T>(
        &self,
        history: &mut History,
        growth: u64,
        spare: u64,
        mut take: impl FnMut(&mut History) -> Result<T>,
    ) -> Result<T> {
        match take(history) {
            Err(error) if error.kind() == ErrorKind::Full => {
                let more = history.spare.bytes().saturating_sub(spare);
                if growth > more {
                    return Err(error);
                }
                history.spare.draw(growth)?;
                take(history)
            }
            taken => taken,
        }
    }

    /// Takes `growth` more bytes for a commit, for which verbs have left them.
    pub(in crate::store) fn take_for_commit<T>(
        &self,
        history: &mut History,
        growth: u64,
        take: impl FnMut(&mut History) -> Result<T>,
    ) -> Result<T> {
        // If the bound was lowered beneath the bytes in use, commits are the way to get below it.
        self.fits(history, growth, 0)?;
        self.take(history, growth, 0, take)
    }

    /// Notes that somebody was refused `growth` bytes beside `kept` ones, a class for `rows`.
    fn note_refused(&self, history: &mut History, asker: Asker, growth: u64, kept: u64, rows: u64) {
        let used = self.used_bytes(history) + kept;
        let most = self.options.max_disk_bytes.unwrap_or(u64::MAX);
        let lacking = match (used + growth).saturating_sub(most) {
            // The bound allowed it, and the device had no room.
            0 => growth,
            over => over,
        };
        history.refused.refuse(asker, lacking, rows);
    }

    /// Notes that a class was refused `growth` bytes for `rows`.
    pub(in crate::store) fn note_refused_rows(&self, class: u16, growth: u64, rows: u64) {
        let history = &mut *self.history.lock();
        let kept = self.bytes_kept_from_rows(history);
        self.note_refused(history, Asker::Rows(class), growth, kept, rows);
    }

    /// Bytes that the files of rows may still take.
    pub(in crate::store) fn grow_bytes_beside(&self, history: &History) -> u64 {
        let Some(most) = self.options.max_disk_bytes else { return u64::MAX };
        most.saturating_sub(self.used_bytes(history) + self.bytes_kept_from_rows(history))
    }

    /// Bytes of the disk bound that files of rows leave free.
    fn bytes_kept_from_rows(&self, history: &History) -> u64 {
        let kept = history.state_bytes_to_come(self.options.keep)
            + STATE_BYTES_KEPT_FREE
            + history.bytes_of_next_journal()
            + history.journal_bytes_to_come();
        kept.saturating_sub(history.spare.bytes())
    }

    /// Bytes that a class may have, by the disk bound and by what the device has free.
    pub(in crate::store) fn most_bytes(&self, log: &dyn Storage) -> u64 {
        let grow = self.grow_bytes_beside(&self.history.lock());
        let grow = grow.min(self.device_free_bytes.load(Ordering::Relaxed));
        log.disk_bytes().saturating_add(grow)
    }

    /// Looks how much the device has free. Only an estimate of the room for cleaning depends on it,
    /// so an error changes nothing, and the last figure stays.
    pub(in crate::store) fn look_at_device(&self) {
        if let Ok(bytes) = self.medium.free_bytes() {
            self.device_free_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes of a class that verbs leave free for cleaning.
    pub(in crate::store) fn room_for_upkeep(&self, log: &dyn Storage) -> u64 {
        let most = self.options.max_disk_bytes.map(|_| self.most_bytes(log));
        log.room_for_upkeep(most)
    }

    /// Bytes that a class should have free for those who lack `bytes`, beside what it needs itself.
    pub(in crate::store) fn bytes_to_free(&self, history: &History, bytes: u64) -> u64 {
        match bytes {
            0 => 0,
            bytes => bytes + history.spare.growth_for(self.spare_bytes(history)),
        }
    }

    /// Before the first change: nobody knows which free segments of a store that was opened have
    /// room, so all count as taken. If that is more than the bound allows, some are given back.
    /// Threads that come meanwhile give back what is left of it; none goes on before.
    pub(in crate::store) fn settle_room(&self, engine: &Engine) -> Result<()> {
        let Some(most) = self.options.max_disk_bytes else { return Ok(()) };
        if self.room_is_settled.load(Ordering::Acquire) {
            return Ok(());
        }
        for class in &engine.classes {
            let mut log = class.log.lock();
            let over = self.used_bytes(&self.history.lock()).saturating_sub(most);
            if over == 0 {
                break;
            }
            self.give_class_room_back(class, &mut **log, 0, Some(over))?;
        }
        // After the work, so that what has failed is tried again. Pairs with the acquire above.
        self.room_is_settled.store(true, Ordering::Release);
        Ok(())
    }

    /// Keeps the room for what the class has to write, and for `rows` more.
    fn give_class_room_back(
        &self,
        class: &Class,
        log: &mut dyn Storage,
        rows: u64,
        wanted: Option<u64>,
    ) -> Result<u64> {
        let spare = self.room_for_upkeep(log);
        let before = log.disk_bytes();
        let given = log.give_back(class.unwritten_rows(log), rows, spare, wanted);
        let bytes = before - log.disk_bytes();
        self.rows_disk_bytes.fetch_sub(bytes, Ordering::Relaxed);
        given.map(|()| bytes)
    }

    /// After a commit: classes give back room that others were refused, or that nobody is likely to
    /// need soon, and the spare room is filled as far as there is any.
    pub(in crate::store) fn give_back_room(&self, engine: &Engine) -> Result<()> {
        let mut given = 0;
        for class in &engine.classes {
            let mut log = class.log.lock();
            let history = self.history.lock();
            let refused = &history.refused;
            let id = class.record.id;
            let wanted = self.bytes_to_free(&history, refused.bytes_beside(id));
            // One that was refused itself keeps what it asked for, or what it has of that.
            let rows = refused.rows_of(id);
            drop(history);
            let wanted = (wanted > 0).then(|| wanted.saturating_sub(given));
            given += self.give_class_room_back(class, &mut **log, rows, wanted)?;
        }
        let filled = self.fill_spare(&mut self.history.lock());
        self.look_at_device();
        match filled {
            Err(error) if error.kind() != ErrorKind::Full => Err(error),
            _ => Ok(()),
        }
    }

    /// Says of a `Full` what helps. The caller holds no lock of a class.
    pub(in crate::store) fn advise(&self, engine: &Engine, error: Error) -> Error {
        if error.kind() != ErrorKind::Full {
            return error;
        }
        let outdated: u64 = (engine.classes.iter().enumerate())
            .map(|(at, class)| class.outdated_bytes(engine.rows_of_class(at)))
            .sum();
        let history = self.history.lock();
        let outdated = outdated + history.outdated_bytes();
        let more = match self.options.max_disk_bytes {
            Some(most) => {
                format!("raise max_disk_bytes, which is {most}, or make room on the disk")
            }
            None => "make room on the disk".to_owned(),
        };
        let advice = if outdated >= history.refused.bytes() {
            format!(
                "commit: {outdated} bytes are outdated, which commits release; where that is not \
                 enough, change fewer rows between commits, or {more}"
            )
        } else {
            format!("change fewer rows between commits, delete some and commit, or {more}")
        };
        drop(history);
        let error = error.followed_by(advice);
        self.name_pins(engine, error).context(format!("store {} is full", self.path.display()))
    }
}
