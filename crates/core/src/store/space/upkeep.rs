//! Upkeep without the class lock: a unit reads what nobody changes and writes files that nobody
//! knows yet, and only its begin and its outcome need the class.
//!
//! Verbs that change rows do its steps when they are through, as many as their rows have paid for,
//! and so does a commit that has released what only older ones had. While a look-ahead window is in
//! use they leave the steps to its reader, which has a core while others compute, unless the class
//! is pressed. The reader may lose its core: it does nothing that takes the class for long, and has
//! no engine while a step runs. A thread that finds another at the unit of a class goes on: the
//! next one comes soon.

use crate::error::{Error, ErrorKind, Result};
use crate::storage::{Storage, Unit};
use crate::store::Inner;
use crate::store::engine::{CacheOfClass, Class, Engine};
use crate::store::space::Work;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Stage of the unit of upkeep of a class.
pub(in crate::store) enum UnitUnderWay {
    /// There is none.
    None,
    /// Steps are left to do.
    Running(Box<dyn Unit>),
    /// A step of the window's reader has met an error, which the next verb deals with.
    Failed(Box<dyn Unit>, Error),
    /// All steps are done, and its outcome waits to be taken over.
    Done(Box<dyn Unit>),
    /// Its outcome is taken over, but for some rows.
    Installing,
}

impl UnitUnderWay {
    /// Takes out what is to be abandoned.
    fn take(&mut self) -> Option<Box<dyn Unit>> {
        match std::mem::replace(self, Self::None) {
            Self::Running(unit) | Self::Failed(unit, _) | Self::Done(unit) => Some(unit),
            Self::None | Self::Installing => None,
        }
    }

    /// Takes out the error that a unit has met, which can only be abandoned.
    fn take_error(&mut self) -> Option<Error> {
        match std::mem::replace(self, Self::None) {
            Self::Failed(unit, error) => {
                *self = Self::Running(unit);
                Some(error)
            }
            other => {
                *self = other;
                None
            }
        }
    }
}

/// Whether a unit can go on, or waits for a later call.
#[derive(PartialEq, Eq)]
enum Progress {
    GoesOn,
    Waits,
}

/// The thread that asks for the next step of a unit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worker {
    Verb,
    /// The reader of the look-ahead window.
    Reader,
}

impl Inner {
    /// Does the units of upkeep that are due, as far as rows have paid for them. The caller holds
    /// no class. An error leaves memory and disk apart, so it poisons the store; where the disk is
    /// full, units are left for later.
    pub(in crate::store) fn upkeep(&self, engine: &Engine) -> Result<()> {
        for class in engine.classes.iter().filter(|class| class.runs_units()) {
            while self.do_part(engine, class)? == Progress::GoesOn {}
        }
        Ok(())
    }

    /// Does one step of a unit, for the reader of the window: of the first class from `first` on,
    /// in turn, where one is due. Returns which; none where no step is due. Others may have the
    /// engine alone while the step runs. The next verb deals with an error of the step.
    pub(in crate::store) fn step_in_background(&self, first: usize) -> Result<Option<usize>> {
        let engine = self.planned_engine()?;
        if !self.may_work() {
            return Ok(None);
        }
        let count = engine.classes.len();
        for at in (first..count).chain(0..first.min(count)) {
            let class = &engine.classes[at];
            if !class.runs_units() {
                continue;
            }
            let unit = Arc::clone(&class.unit);
            let Some(mut under_way) = unit.try_lock() else { continue };
            if !self.takes_step(class, &under_way, Worker::Reader) {
                continue;
            }
            // A commit would wait for a thread that may have lost its core.
            drop(engine);
            if let Err(error) = self.step(&mut under_way)
                && let Some(unit) = under_way.take()
            {
                *under_way = UnitUnderWay::Failed(unit, error);
            }
            return Ok(Some(at));
        }
        Ok(None)
    }

    fn may_work(&self) -> bool {
        !self.options.read_only && !self.poisoned.load(Ordering::Acquire)
    }

    /// Does one part of the unit of a class, if nobody is at it.
    fn do_part(&self, engine: &Engine, class: &Class) -> Result<Progress> {
        if !self.may_work() {
            return Ok(Progress::Waits);
        }
        let Some(mut under_way) = class.unit.try_lock() else { return Ok(Progress::Waits) };
        let done = self.go_on(engine, class, &mut under_way).or_else(|error| {
            self.give_up(&mut **class.log.lock(), &mut under_way, error)?;
            Ok(Progress::Waits)
        });
        self.poison_on_error(done)
    }

    /// Does the next part of a unit.
    fn go_on(
        &self,
        engine: &Engine,
        class: &Class,
        under_way: &mut UnitUnderWay,
    ) -> Result<Progress> {
        if !matches!(under_way, UnitUnderWay::Running(_)) {
            return self.begin_or_end(engine, class, &mut **class.lock(&self.metrics), under_way);
        }
        if !self.takes_step(class, under_way, Worker::Verb) {
            return Ok(Progress::Waits);
        }
        self.step(under_way)?;
        Ok(Progress::GoesOn)
    }

    /// Begins a unit that is due, or takes the outcome of one over: what needs the class.
    fn begin_or_end(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        under_way: &mut UnitUnderWay,
    ) -> Result<Progress> {
        match under_way {
            UnitUnderWay::None => {
                if !log.may_begin_unit() || !self.admits(Work::Step, log) {
                    return Ok(Progress::Waits);
                }
                let Some(unit) = self.begin_unit(engine, class, log)? else {
                    return Ok(Progress::Waits);
                };
                *under_way = UnitUnderWay::Running(unit);
                Ok(Progress::GoesOn)
            }
            UnitUnderWay::Running(_) => Ok(Progress::Waits),
            UnitUnderWay::Failed(..) => under_way.take_error().map_or(Ok(Progress::Waits), Err),
            UnitUnderWay::Done(_) | UnitUnderWay::Installing => {
                self.take_over(engine, class, log, under_way)
            }
        }
    }

    /// Does one part of the unit of a class that the caller has in hand, because the newest rows
    /// take too much memory: paid for or not, and `admitted` or not. False where nothing is due, or
    /// another thread is at it.
    pub(in crate::store) fn merge_in_hand(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        only_admitted: bool,
    ) -> Result<bool> {
        if !class.has_units || !self.may_work() {
            return Ok(false);
        }
        let Some(mut under_way) = class.unit.try_lock() else { return Ok(false) };
        let is_idle = matches!(*under_way, UnitUnderWay::None);
        if is_idle && !log.may_begin_unit() || only_admitted && !self.admits(Work::Step, log) {
            return Ok(false);
        }
        let done = match &*under_way {
            UnitUnderWay::Running(_) => {
                log.pay_step();
                self.step(&mut under_way).map(|()| Progress::GoesOn)
            }
            UnitUnderWay::None => self.begin_unit(engine, class, log).map(|unit| match unit {
                Some(unit) => {
                    *under_way = UnitUnderWay::Running(unit);
                    Progress::GoesOn
                }
                None => Progress::Waits,
            }),
            _ => self.begin_or_end(engine, class, log, &mut under_way),
        };
        let done = done.or_else(|error| {
            self.give_up(log, &mut under_way, error)?;
            Ok(Progress::Waits)
        });
        Ok(self.poison_on_error(done)? == Progress::GoesOn)
    }

    /// Whether a step is due that this thread is to do. If so, takes what rows have paid for it.
    fn takes_step(&self, class: &Class, under_way: &UnitUnderWay, worker: Worker) -> bool {
        if !matches!(under_way, UnitUnderWay::Running(_)) {
            return false;
        }
        let mut log = class.lock(&self.metrics);
        let takes = log.owes_steps() && self.may_step(worker, &**log);
        if takes {
            log.pay_step();
        }
        takes
    }

    /// Does a step of the unit that is under way.
    fn step(&self, under_way: &mut UnitUnderWay) -> Result<()> {
        let UnitUnderWay::Running(unit) = under_way else { return Ok(()) };
        let begun = Instant::now();
        let goes_on = unit.step()?;
        self.scheduler.done(Work::Step, begun.elapsed());
        if !goes_on && let Some(unit) = under_way.take() {
            *under_way = UnitUnderWay::Done(unit);
        }
        Ok(())
    }

    /// Whether this thread is to do the step that is due. Pressed steps are the verbs' own: a
    /// reader that loses its core in the middle of a step keeps the others from the next.
    fn may_step(&self, worker: Worker, log: &dyn Storage) -> bool {
        let is_pressed = log.is_unit_pressed(self.most_bytes(log));
        let is_own = match worker {
            Worker::Verb => is_pressed || !self.window.takes_upkeep(),
            Worker::Reader => !is_pressed,
        };
        is_own && self.admits(Work::Step, log)
    }

    /// Whether a part of the upkeep of a class may be done now.
    pub(in crate::store) fn admits(&self, work: Work, log: &dyn Storage) -> bool {
        let is_pressed = || match work {
            Work::Step => log.is_unit_pressed(self.most_bytes(log)),
            Work::Cleaning => log.is_pressed(self.most_bytes(log)),
        };
        self.scheduler.admits(work, Instant::now(), || self.window.time_ahead(), is_pressed)
    }

    /// Begins a unit. The disk space that it may take is charged.
    fn begin_unit(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<Option<Box<dyn Unit>>> {
        // Kept until it is charged: nobody else takes what it was told that it may.
        let history = self.history.lock();
        let grow_bytes = self.grow_bytes_beside(&history);
        let begun = self.charge_difference(log, |log| log.begin_unit(grow_bytes))?;
        drop(history);
        if begun.is_some() {
            self.log_merge_begun(engine, class);
        }
        Ok(begun)
    }

    /// Takes the outcome of a unit over, or one more part of it.
    fn take_over(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        under_way: &mut UnitUnderWay,
    ) -> Result<Progress> {
        if !self.reserve_to_clean(engine, class, log)? {
            return Ok(Progress::Waits);
        }
        let residents = CacheOfClass { engine, class };
        *under_way = match under_way.take() {
            Some(unit) => {
                let (merged, damage) = (log.stats().merged, log.damage().len());
                let report = self.charge_difference(log, |log| log.install(unit, &residents))?;
                self.log_merged((engine, class), &merged, &log.stats().merged);
                self.log_damage(log, damage);
                self.metrics.cleaned_pages.fetch_add(report.pages, Ordering::Relaxed);
                self.metrics.moved_rows.fetch_add(report.rows_moved, Ordering::Relaxed);
                UnitUnderWay::Installing
            }
            None => match log.install_more(&residents)? {
                true => UnitUnderWay::Installing,
                false => UnitUnderWay::None,
            },
        };
        // Changes that the journal has no room for are lost to it: that is no lack that may pass.
        self.poison_on_error(self.journal_changes_if_many(class, log))?;
        Ok(Progress::GoesOn)
    }

    /// Takes over the whole outcome of a unit, of a class without units of its own. If there is no
    /// room for its changes, it is abandoned.
    pub(in crate::store) fn install_whole(
        &self,
        engine: &Engine,
        class: &Class,
        unit: Box<dyn Unit>,
    ) -> Result<()> {
        let mut under_way = class.unit.lock();
        *under_way = UnitUnderWay::Done(unit);
        while !matches!(*under_way, UnitUnderWay::None) {
            let mut log = class.lock(&self.metrics);
            if self.take_over(engine, class, &mut **log, &mut under_way)? == Progress::Waits {
                let error = Error::new(
                    ErrorKind::Full,
                    "there is no room for what a freeze changes; commit, or make room",
                );
                return match under_way.take() {
                    Some(unit) => self.abandon(&mut **log, unit, Some(error)),
                    None => self.poison_on_error(Err(error)),
                };
            }
        }
        Ok(())
    }

    /// Removes what a unit has written that met an error, if there is one. Without room it is left
    /// for later, and where its storage can do without it, too.
    fn give_up(
        &self,
        log: &mut dyn Storage,
        under_way: &mut UnitUnderWay,
        error: Error,
    ) -> Result<()> {
        match (under_way.take(), error.kind()) {
            (Some(unit), _) => self.abandon(log, unit, Some(error)),
            (None, ErrorKind::Full) => Ok(()),
            (None, _) => Err(error),
        }
    }

    fn abandon(
        &self,
        log: &mut dyn Storage,
        unit: Box<dyn Unit>,
        because: Option<Error>,
    ) -> Result<()> {
        let damage = log.damage().len();
        if let Some(error) = &because {
            self.log_merge_failed(error);
        }
        let abandoned = self.charge_difference(log, |log| log.abandon_unit(unit, because));
        self.log_damage(log, damage);
        abandoned
    }

    /// Ends all units, of a store that nobody uses any more; waits for a step that runs. A file
    /// that cannot be removed is named by no commit: the next writer removes it.
    pub(in crate::store) fn abandon_units(&self, engine: &Engine) {
        for class in &engine.classes {
            if let Some(unit) = class.unit.lock().take() {
                let _ = self.abandon(&mut **class.log.lock(), unit, None);
            }
        }
    }

    /// Ends the unit of a class, which nobody else works at: one whose outcome is being taken over
    /// is taken over to its end, any other is given up.
    ///
    /// *Errors*: `Full` where there is no room for what it changes.
    pub(in crate::store) fn end_unit(&self, engine: &Engine, class: &Class) -> Result<()> {
        let mut under_way = class.unit.lock();
        while matches!(*under_way, UnitUnderWay::Installing) {
            let mut log = class.lock(&self.metrics);
            if self.take_over(engine, class, &mut **log, &mut under_way)? == Progress::Waits {
                let what = "there is no room for what a merge changes; commit, or make room";
                return Err(Error::new(ErrorKind::Full, what));
            }
        }
        let mut log = class.log.lock();
        under_way.take().map_or(Ok(()), |unit| self.abandon(&mut **log, unit, None))
    }

    /// Counts that files of rows take other bytes than before.
    pub(in crate::store) fn count_disk_bytes(&self, before: u64, after: u64) {
        // The sum wraps around where it became less.
        self.rows_disk_bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Charges what a class takes more of the disk after something, or less.
    fn charge_difference<R>(
        &self,
        log: &mut dyn Storage,
        f: impl FnOnce(&mut dyn Storage) -> Result<R>,
    ) -> Result<R> {
        let before = log.disk_bytes();
        let result = f(log);
        self.count_disk_bytes(before, log.disk_bytes());
        result
    }
}
