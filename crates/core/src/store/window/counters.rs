//! Counters and statistics of the window.

use super::super::Store;
use super::super::verbs::misses::MissReport;
use crate::error::Result;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the window since the store was opened.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) batches: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) ranges: AtomicU64,
    pub(super) keys: AtomicU64,
    pub(super) distinct: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) cleared: AtomicU64,
    pub(super) groups: AtomicU64,
    pub(super) group_batches: AtomicU64,
    pub(super) loaded: AtomicU64,
    pub(super) turned_away: AtomicU64,
    pub(super) rewritten: AtomicU64,
    pub(super) foreseen: AtomicU64,
    pub(super) not_foreseen: AtomicU64,
    pub(super) set_aside: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) pages: AtomicU64,
    pub(super) pages_again: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) starved: AtomicU64,
    pub(super) helped: AtomicU64,
    pub(super) upkeep: AtomicU64,
    pub(super) wait_ns: AtomicU64,
    pub(super) planning_ns: AtomicU64,
    pub(super) reading_ns: AtomicU64,
    pub(super) read_wait_ns: AtomicU64,
}

impl Counters {
    /// Counts what was read ahead with one bulk read.
    pub(super) fn count_read(&self, report: &MissReport) {
        let read = report.read;
        self.requests.fetch_add(read.requests, Ordering::Relaxed);
        self.pages.fetch_add(read.pages, Ordering::Relaxed);
        self.bytes.fetch_add(read.bytes, Ordering::Relaxed);
        self.read_wait_ns.fetch_add(read.waited.as_nanos() as u64, Ordering::Relaxed);
        self.pages_again.fetch_add(report.pages_again, Ordering::Relaxed);
    }
}

/// Statistics of a look-ahead window since the store was opened.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WindowStats {
    /// Batches announced.
    pub batches: u64,
    /// Batches and ranges that were not taken because the window was full.
    pub refused: u64,
    /// Ranges of ids announced.
    pub ranges: u64,
    /// Keys announced, of these batches.
    pub keys: u64,
    /// Distinct keys of each batch, summed over batches.
    pub distinct: u64,
    /// Batches that were begun before their rows could be read ahead, and ranges that found no
    /// room.
    pub skipped: u64,
    /// Batches that were forgotten before they were finished.
    pub cleared: u64,
    /// Groups of batches that are read ahead together, begun so far.
    pub groups: u64,
    /// Batches of these groups that were read; of one that is being read, in proportion to its
    /// rows.
    pub group_batches: u64,
    /// Rows that were read ahead.
    pub rows_loaded: u64,
    /// Rows that were written as they are, because those of their range, or of the batches of a
    /// schedule, were on too many pages.
    pub rows_rewritten: u64,
    /// Rows that were read ahead and found their set full of rows that are used sooner.
    pub turned_away: u64,
    /// Rows that had to leave the cache although an announced batch uses them.
    pub lost: u64,
    /// Announced uses of rows about which a schedule was right, and about which it was not.
    pub schedule_right: u64,
    /// See `schedule_right`.
    pub schedule_wrong: u64,
    /// Schedules that were set aside, because they were wrong about most uses.
    pub schedule_set_aside: u64,
    /// Groups that were not read ahead to the end because of an error; gets report it.
    pub failed: u64,
    /// Why, of the last of them.
    pub error: Option<String>,
    /// Requests to the device, pages asked for and bytes read, all ahead.
    pub requests: u64,
    /// Pages asked for.
    pub pages: u64,
    /// Pages that were asked for more than once within one group.
    pub pages_again: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Seconds that callers were blocked until a batch was read ahead.
    pub wait_s: f64,
    /// Waits for a batch that callers gave up, because the threads that read it had no core.
    pub starved: u64,
    /// Tasks of the planner and portions of groups that waiting callers did themselves.
    pub helped: u64,
    /// Steps of merges that the reader did between groups, in the place of verbs.
    pub upkeep: u64,
    /// The threads rest, because others leave them no core; callers do their work.
    pub resting: bool,
    /// Seconds that were spent noting uses and forming groups.
    pub planning_s: f64,
    /// Seconds that were spent reading ahead.
    pub reading_s: f64,
    /// Seconds of these in which the device was waited for.
    pub read_wait_s: f64,
    /// Batches announced, read ahead, and finished, as numbers.
    pub announced: u64,
    /// The last batch that was read ahead.
    pub filled: u64,
    /// The last batch that is finished.
    pub finished: u64,
    /// Bytes that the window takes, of `most_bytes`.
    pub memory_bytes: u64,
    /// The most it may take.
    pub most_bytes: u64,
}

impl Store {
    /// Statistics of the look-ahead window since the store was opened.
    pub fn window_stats(&self) -> Result<WindowStats> {
        let inner = &*self.inner;
        let engine = inner.planned_engine()?;
        let (c, state) = (&inner.window.shared.counters, inner.window.shared.state.lock());
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seconds = |counter: &AtomicU64| get(counter) as f64 / 1e9;
        Ok(WindowStats {
            batches: get(&c.batches),
            refused: get(&c.refused),
            ranges: get(&c.ranges),
            keys: get(&c.keys),
            distinct: get(&c.distinct),
            skipped: get(&c.skipped),
            cleared: get(&c.cleared),
            groups: get(&c.groups),
            group_batches: get(&c.group_batches),
            rows_loaded: get(&c.loaded),
            rows_rewritten: get(&c.rewritten),
            turned_away: get(&c.turned_away),
            schedule_right: get(&c.foreseen),
            schedule_wrong: get(&c.not_foreseen),
            schedule_set_aside: get(&c.set_aside),
            lost: engine.classes.iter().map(|class| class.cache().lost_next_uses()).sum(),
            failed: get(&c.failed),
            error: state.error.clone(),
            requests: get(&c.requests),
            pages: get(&c.pages),
            pages_again: get(&c.pages_again),
            bytes: get(&c.bytes),
            wait_s: seconds(&c.wait_ns),
            starved: get(&c.starved),
            helped: get(&c.helped),
            upkeep: get(&c.upkeep),
            resting: state.rest.left().is_some(),
            planning_s: seconds(&c.planning_ns),
            reading_s: seconds(&c.reading_ns),
            read_wait_s: seconds(&c.read_wait_ns),
            announced: state.announced,
            filled: state.filled,
            finished: state.finished,
            memory_bytes: engine.window_bytes.load(Ordering::Relaxed),
            most_bytes: inner.window_most_bytes(&engine),
        })
    }
}
