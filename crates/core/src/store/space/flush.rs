//! Writing rows to storage: those that wait when there is no place for more, with the cleaning that
//! they pay for; dirty rows without a commit; and handing changes of the index to the journal.

use crate::activation::{Branch, note};
use crate::error::Result;
use crate::metrics::Timed;
use crate::planted::{self, Bug};
use crate::storage::{SpaceBound, Storage};
use crate::store::Inner;
use crate::store::engine::{CacheOfClass, Class, ClassPhase, Engine};
use crate::store::journal::RecordKind;
use crate::store::space::Work;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Inner {
    /// Makes sure that one more victim has a place to wait: writes those that do when there is
    /// none, cleans in proportion, hands changes to the journal. Runs under the class lock and may
    /// wait for the device. An error here leaves memory and disk apart, so it poisons the store.
    pub(in crate::store) fn make_room(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        if log.room() > 0 {
            return Ok(());
        }
        let _timed = Timed::new(&self.metrics.write_ns);
        self.flush_now(engine, class, log)
    }

    /// Pays for `rows` flushed rows with cleaning, unit by unit: each finds its room within the
    /// disk bound, for its rows and what the journal will say of them, or is left for later.
    pub(in crate::store) fn clean_for(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        rows: u64,
    ) -> Result<()> {
        log.owe(rows);
        loop {
            let most = self.most_bytes(log);
            if !log.settle(most) || !self.admits(Work::Cleaning, log) {
                return Ok(());
            }
            let begun = Instant::now();
            let is_done = self.clean_unit(engine, class, log, SpaceBound::Most(most))?;
            if !is_done {
                return Ok(());
            }
            self.scheduler.done(Work::Cleaning, begun.elapsed());
        }
    }

    /// Cleans until so many bytes are free, or will be by commits alone, beside what the class
    /// needs itself.
    pub(in crate::store) fn clean_until_free(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        bytes: u64,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let mut units = 0;
        loop {
            let (unwritten, spare) = (class.unwritten_rows(log), self.room_for_upkeep(log));
            if !log.lacks(bytes, unwritten, spare)
                || !self.clean_unit(engine, class, log, SpaceBound::Beside)?
            {
                self.log_cleaned(engine, class, units, bytes);
                return Ok(());
            }
            units += 1;
        }
    }

    /// Cleans one unit; false when nothing is worth it, or there is no room for what it writes.
    fn clean_unit(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        bound: SpaceBound,
    ) -> Result<bool> {
        self.medium.check_lock()?;
        if !self.reserve_to_clean(engine, class, log)? {
            return Ok(false);
        }
        let residents = CacheOfClass { engine, class };
        let rows = class.unwritten_rows(log) + log.rows_per_unit();
        let unit = self.charge_growth(log, rows, 0, |log, grow| {
            log.clean_unit(bound, rows, grow, &residents)
        })?;
        let Some(report) = unit else { return Ok(false) };
        self.metrics.cleaned_pages.fetch_add(report.pages, Ordering::Relaxed);
        self.metrics.moved_rows.fetch_add(report.rows_moved, Ordering::Relaxed);
        self.journal_changes_if_many(class, log)?;
        Ok(true)
    }

    /// Hands waiting changes of a class to the journal when they are many.
    pub(in crate::store) fn journal_changes_if_many(
        &self,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        if log.changes_are_many() { self.journal_changes(class, log) } else { Ok(()) }
    }

    /// Hands all waiting changes of a class to the journal.
    pub(in crate::store) fn journal_changes(
        &self,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        if log.change_bytes() == 0 {
            return Ok(());
        }
        if class.phase() == ClassPhase::Closed {
            // These changes belong to the commit after the one that is not recorded yet.
            note(Branch::WaitedForRecord);
            self.wait_for_record();
        }
        let mut history = self.history.lock();
        let mut payload = std::mem::take(&mut history.payload);
        payload.clear();
        payload.extend_from_slice(&u64::from(class.record.id).to_le_bytes());
        log.drain_changes(&mut payload);
        history.cycle_bytes += payload.len() as u64;
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
    pub(in crate::store) fn may_merge(&self) -> bool {
        self.history.lock().cursor.is_none()
    }

    /// Writes what waits of a class now, however little, and sees that there is memory for as much
    /// again. Rows of caches that gave it may wait afterwards.
    pub(in crate::store) fn flush_now(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        self.flush_parked(engine, class, log)?;
        // Now that there is a place for rows that leave: the next ones have less.
        let next = log.room() as u64;
        self.poison_on_error(self.make_room_to_write(engine, class, log, next))
    }

    /// Writes what waits of a class now. Memory for it may come from caches of other classes, whose
    /// rows wait then.
    fn flush_parked(&self, engine: &Engine, class: &Class, log: &mut dyn Storage) -> Result<()> {
        // Some of what waits may be stored already, and would be stored again.
        self.check_unpoisoned()?;
        let result = (|| {
            // Parked rows were changed after the commit that is under way was captured.
            self.medium.check_lock()?;
            if !planted::is(Bug::BufferBeforeCommit) {
                self.finish_captured(engine, class, log)?;
            }
            let parked = log.parked() as u64;
            self.make_room_to_write(engine, class, log, parked)?;
            let rows = log.flush(class.now())?;
            self.journal_changes_if_many(class, log)?;
            self.clean_for(engine, class, log, rows)
        })();
        self.poison_on_error(result)
    }

    /// Writes what waits of all classes, until nothing does. Nobody changes rows meanwhile.
    pub(in crate::store) fn flush_all_parked(&self, engine: &Engine) -> Result<()> {
        let with_cache = || engine.classes.iter().filter(|class| class.tier.is_some());
        for class in with_cache() {
            self.flush_parked(engine, class, &mut **class.log.lock())?;
        }
        // Each further round has cost a cache one of its ways.
        while with_cache().any(|class| class.log.lock().parked() > 0) {
            for class in with_cache() {
                let mut log = class.log.lock();
                if log.parked() > 0 {
                    self.flush_parked(engine, class, &mut **log)?;
                }
            }
        }
        Ok(())
    }

    /// Writes every dirty row of a class, those dirty for longest first, so that none waits. Nobody
    /// changes rows meanwhile, and no commit is under way.
    pub(in crate::store) fn flush_dirty(&self, engine: &Engine, class: &Class) -> Result<()> {
        let Some(tier) = &class.tier else { return Ok(()) };
        let mut log = class.log.lock();
        self.flush_parked(engine, class, &mut **log)?;
        tier.cache.capture();
        self.write_captured(engine, class, &mut **log)?;
        // Rows that have left to make room for others.
        while log.parked() > 0 {
            self.flush_parked(engine, class, &mut **log)?;
        }
        self.clean_for_refused(engine, class, &mut **log)
    }

    /// Writes all dirty rows to storage without a commit (plan, scan).
    pub(in crate::store) fn flush_all(&self, engine: &Engine) -> Result<()> {
        for class in engine.classes.iter().filter(|c| c.tier.is_some()) {
            self.poison_on_error(self.flush_dirty(engine, class))?;
        }
        // Caches of other classes may have given room meanwhile.
        self.poison_on_error(self.flush_all_parked(engine))
    }
}
