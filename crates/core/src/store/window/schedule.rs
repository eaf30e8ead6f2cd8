//! The schedule of the training, as far as it is announced: which stretch each batch belongs to,
//! where rows are used next, and whether that is true.
//!
//! Each class whose rows the window reads ahead has append points for stretches to come
//! (`StorageStretches`), in memory of the window. A group of batches ends with its stretch: the
//! rows of a stretch share pages, so that they are read together or twice.

use super::super::engine::Class;
use super::super::events::log_schedule_set_aside;
use super::super::{Engine, Inner};
use super::planner::Plan;
use super::uses::Foreseen;
use super::{Announced, Shared};
use crate::cache::SchedulePlace;
use crate::config::ScheduledBatch;
use crate::error::{ErrorKind, Result};
use crate::storage::StretchPoints;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// The part of a window that append points take at most.
const WINDOW_PER_POINTS: u64 = 8;
/// The part of a disk bound that segments filled for stretches may take.
const DISK_PER_POINTS: u64 = 2;
/// After so many uses that a schedule has foreseen it is asked whether it was right.
const ASKED_AFTER: u64 = 1 << 12;

/// The first batch of a stretch, or of batches without a schedule.
#[derive(Clone, Copy, Debug)]
struct Begin {
    batch: u64,
    scheduled: Option<ScheduledBatch>,
}

/// The schedule as far as it is known, and its accuracy so far.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Stretches that are announced and not over, the one at hand first.
    begins: VecDeque<Begin>,
    /// Uses that it has foreseen lately.
    foreseen: Foreseen,
    /// It was wrong about most of them: its next uses are left out.
    set_aside: bool,
}

impl Schedule {
    /// Notes the place of a batch that is announced; the schedule, where it is gone by.
    pub(super) fn note(&mut self, batch: &Announced) -> Option<ScheduledBatch> {
        let scheduled = batch.scheduled.filter(|_| !self.set_aside);
        let stretch = |scheduled: Option<ScheduledBatch>| scheduled.map(|of| of.stretch);
        let is_new = |last: &Begin| stretch(last.scheduled) != stretch(scheduled);
        if self.begins.back().is_none_or(is_new) {
            self.begins.push_back(Begin { batch: batch.number, scheduled });
        }
        scheduled
    }

    /// The place of a batch; those before are over.
    pub(super) fn advance(&mut self, batch: u64) -> Option<SchedulePlace> {
        while self.begins.get(1).is_some_and(|next| next.batch <= batch) {
            self.begins.pop_front();
        }
        let Begin { batch: first, scheduled } = *self.begins.front()?;
        let ScheduledBatch { stretch, batches, .. } = scheduled?;
        Some(SchedulePlace { stretch, gone: batch.saturating_sub(first), batches: batches.into() })
    }

    /// Whether the batch behind this one is announced and begins a stretch.
    pub(super) fn ends_with(&self, batch: u64) -> bool {
        self.begins.iter().any(|begin| begin.batch == batch + 1)
    }

    /// Whether a batch has a place in it.
    pub(super) fn has(&self, batch: u64) -> bool {
        let at = self.begins.partition_point(|begin| begin.batch <= batch);
        at.checked_sub(1).is_some_and(|at| self.begins[at].scheduled.is_some())
    }

    /// Largest distance of a next use, in stretches, over the announced batches; `None` if none has
    /// a place.
    pub(super) fn furthest(&self) -> Option<u32> {
        self.begins.iter().filter_map(|begin| Some(begin.scheduled?.furthest)).max()
    }

    /// Counts what has come true. True when the schedule is set aside for it.
    fn count(&mut self, foreseen: Foreseen) -> bool {
        self.foreseen.right += foreseen.right;
        self.foreseen.wrong += foreseen.wrong;
        let Foreseen { right, wrong } = self.foreseen;
        if right + wrong < ASKED_AFTER || self.set_aside {
            return false;
        }
        self.foreseen = Foreseen::default();
        self.set_aside = wrong > right;
        self.set_aside
    }

    /// All that was announced is over.
    pub(super) fn end(&mut self) {
        self.begins.clear();
    }

    /// Forgets all that is announced: what comes may have another schedule.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Plan {
    /// Counts what the schedule has foreseen of a batch that is announced, and sets it aside where
    /// it is wrong about most.
    pub(super) fn check_schedule(&mut self, shared: &Shared, foreseen: Foreseen) {
        shared.counters.foreseen.fetch_add(foreseen.right, Ordering::Relaxed);
        shared.counters.not_foreseen.fetch_add(foreseen.wrong, Ordering::Relaxed);
        if self.schedule.count(foreseen) {
            shared.counters.set_aside.fetch_add(1, Ordering::Relaxed);
            log_schedule_set_aside(&shared.path);
        }
    }

    /// The append points that a class is to have, where a schedule is announced. A reader writes
    /// nothing.
    fn points_of(&self, inner: &Inner, engine: &Engine, class: &Class) -> Option<StretchPoints> {
        if inner.options.read_only {
            return None;
        }
        let classes = engine.classes.len().max(1) as u64;
        let memory = self.most_bytes / WINDOW_PER_POINTS / classes;
        let disk = inner.options.max_disk_bytes.map_or(u64::MAX, |most| most / classes);
        let furthest = self.schedule.furthest()?;
        class.log.lock().stretch_points(furthest, memory, disk / DISK_PER_POINTS)
    }

    /// Bytes of append points: of those that there are, or are to come.
    pub(super) fn points_bytes(&self, inner: &Inner, engine: &Engine) -> u64 {
        let of = |class: &Class| {
            let held = class.log.lock().stretch_bytes();
            let page_bytes = class.record.page_bytes;
            let coming = || self.points_of(inner, engine, class);
            if held > 0 { held } else { coming().map_or(0, |points| points.bytes(page_bytes)) }
        };
        match self.schedule.furthest() {
            Some(_) => engine.classes.iter().map(of).sum(),
            None => 0,
        }
    }

    /// Gives classes append points where a schedule is announced and they have none, or takes them
    /// back where none is any more. A class whose rows would not find room with them goes without.
    pub(super) fn settle_points(&self, inner: &Inner, engine: &Engine) -> Result<()> {
        let is_scheduled = self.schedule.furthest().is_some();
        for class in &engine.classes {
            let has = class.log.lock().stretch_bytes() > 0;
            if has == is_scheduled {
                continue;
            }
            if !is_scheduled {
                close_points(inner, class)?;
            } else if let Some(points) = self.points_of(inner, engine, class) {
                inner.open_points(class, points)?;
            }
        }
        Ok(())
    }
}

/// Bytes of the append points that classes have.
pub(super) fn points_held(engine: &Engine) -> u64 {
    engine.classes.iter().map(|class| class.log.lock().stretch_bytes()).sum()
}

/// Takes the append points of a class back.
pub(super) fn close_points(inner: &Inner, class: &Class) -> Result<()> {
    let mut log = class.lock(&inner.metrics);
    inner.poison_on_error(log.close_stretches())
}

impl Inner {
    fn open_points(&self, class: &Class, points: StretchPoints) -> Result<()> {
        let mut log = class.lock(&self.metrics);
        self.poison_on_error(log.open_stretches(points))?;
        // Rows for which room was made before find room with them, too.
        match self.reserve_again(class, &mut **log) {
            Err(error) if error.kind() == ErrorKind::Full => {
                self.poison_on_error(log.close_stretches())
            }
            settled => settled,
        }
    }
}
