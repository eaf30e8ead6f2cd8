//! Statistics of a store: counters, and the use of memory and disk.

use super::engine::Class;
use super::files::class_file::{PARTITION_PREFIX, lies_apart};
use super::memory::accounts::{BudgetParts, MemoryUse};
use super::{Inner, Store};
use crate::config::{StorageKind, TableInfo};
use crate::error::{ErrorKind, Result};
use crate::io::{DeviceCurve, IoKind, blocks_of};
use crate::storage::{MergeCounts, StorageStats, Written};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Everything a store says of itself.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// The directory.
    pub path: String,
    /// The directory of partitions, where they lie apart.
    pub cold_directory: Option<String>,
    /// Bytes of the partitions in it and of room for merges: a part of `disk_bytes`.
    pub cold_bytes: u64,
    /// The memory budget in bytes, 0 before the first verb of a store without tables.
    pub budget_bytes: u64,
    /// The bytes that were asked for: less where a percentage is too little to work.
    pub asked_bytes: u64,
    /// Use of memory.
    pub memory: MemoryUse,
    /// Division of the budget, and the share of it that is rows.
    pub budget: BudgetParts,
    /// Bytes on disk: rows, journal, state.
    pub disk_bytes: u64,
    /// The bound on them.
    pub max_disk_bytes: Option<u64>,
    /// Positions whose row was resident.
    pub hits: u64,
    /// Positions whose row had to be read.
    pub misses: u64,
    /// Positions whose row was on its way to storage, still in memory.
    pub rescued: u64,
    /// Positions whose key was never written: neither hit nor miss.
    pub first_touches: u64,
    /// (hits + rescued) / (hits + rescued + misses); 0 before any.
    pub hit_rate: f64,
    /// Pages read for a growing table that held another key.
    pub tag_collisions: u64,
    /// Requests to the device.
    pub read_requests: u64,
    /// Pages asked for.
    pub pages_read: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Seconds blocked in page reads.
    pub read_wait_s: f64,
    /// Rows brought into memory from storage.
    pub rows_loaded: u64,
    /// Rows made resident with their initial values, because nobody had written them.
    pub rows_initial: u64,
    /// Rows that left the cache, and those of them that had changed.
    pub evicted: u64,
    /// Changed rows among the evicted.
    pub evicted_dirty: u64,
    /// Rows written to storage, cleaning apart.
    pub rows_written: u64,
    /// Rows that cleaning wrote again.
    pub rows_moved: u64,
    /// Pages written, cleaning included.
    pub pages_written: u64,
    /// All bytes written: pages, journal, state.
    pub bytes_written: u64,
    /// The same bytes by cause.
    pub written: WrittenBytes,
    /// Rows with NaN or infinity that came in.
    pub non_finite: u64,
    /// Rows of which an update left the range of float16 or bfloat16 and was brought to its end.
    pub saturated: u64,
    /// Keys announced by look-ahead.
    pub announced: u64,
    /// Time by cause.
    pub time: TimeStats,
    /// Merges and cleaning, and how often they were put off.
    pub upkeep: UpkeepStats,
    /// Commits.
    pub commits: CommitStats,
    /// The device and its back end.
    pub device: DeviceStats,
    /// Row classes.
    pub classes: Vec<ClassStats>,
    /// Tables.
    pub tables: Vec<TableInfo>,
}

/// Bytes written since open, by cause.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct WrittenBytes {
    /// Rows that left DRAM because they were dirty.
    pub rows: u64,
    /// Rows that cleaning wrote again.
    pub moved: u64,
    /// Bytes of pages beside rows: headers, directories, slots and ends that stay empty.
    pub pages: u64,
    /// Deltas of the indexes.
    pub deltas: u64,
    /// Pieces of the indexes.
    pub pieces: u64,
    /// The rest of the journal: commit records, catalogs, headers, and the head.
    pub commits: u64,
    /// Named byte strings of commits.
    pub state: u64,
}

/// Seconds by cause since open, summed over the threads of callers. The parts of `verbs` sum up to
/// it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TimeStats {
    /// In get, put, update, modify, delete, contains, scans and warm.
    pub verbs: f64,
    /// Of `verbs`: checking rows that come in, joining equal keys, summing their gradients.
    pub merging: f64,
    /// Of `verbs`: copying and changing rows that were resident.
    pub resident: f64,
    /// Of `verbs`: blocked in page reads.
    pub reading: f64,
    /// Of `verbs`: packing and writing rows that left memory, and cleaning segments.
    pub writing: f64,
    /// Of `verbs`: waiting for other threads.
    pub locks: f64,
    /// Of `verbs`, the rest: finding rows that were not resident, checking their pages, making them
    /// resident, and reserving room.
    pub missing: f64,
    /// Choosing which pages to read for rows that have several: a part of `missing`, but for what
    /// is read ahead.
    pub selecting: f64,
    /// In commits; not part of `verbs`.
    pub commits: f64,
    /// Least time that the device needs for the requests that were made, at the rate that it had
    /// when it was measured; `None` where it was not.
    pub device_least: Option<f64>,
}

/// Merges and cleaning since open.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct UpkeepStats {
    /// Steps of merges.
    pub steps: u64,
    /// Units of cleaning that rows have paid for.
    pub cleaned: u64,
    /// Number of times that the scheduler put off a step or a unit of cleaning.
    pub put_off: u64,
    /// Merges whose outcome was taken over; all that follows is of these.
    pub merges: u64,
    /// Rows and tombstones that left the newest rows of an lsm.
    pub rows_taken: u64,
    /// Rows of old files that newer ones or deletions have outdated.
    pub rows_outdated: u64,
    /// Rows of old files that were written again.
    pub rows_copied: u64,
    /// Bytes of pages read. No other counter has them.
    pub bytes_read: u64,
    /// Bytes of files written.
    pub bytes_written: u64,
    /// Seconds in steps, of all and of the longest.
    pub seconds: f64,
    /// Of the longest.
    pub seconds_max: f64,
    /// Seconds from the begin of a merge until its outcome was in place, summed.
    pub latency: f64,
    /// Of the longest.
    pub latency_max: f64,
}

/// Commits of a store.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CommitStats {
    /// Sequence number of the newest.
    pub sequence: u64,
    /// Its step.
    pub step: u64,
    /// Commits that are kept.
    pub kept: usize,
    /// False for a reader whose commit a writer may drop: one that could not write its hold.
    pub held: bool,
    /// Holds of readers that were taken away since open because they kept more than
    /// `max_held_bytes`.
    pub holds_taken: u64,
    /// Seconds spent in commits since open.
    pub seconds: f64,
}

/// The device under a store.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceStats {
    /// The back end of page reads and writes.
    pub io: IoKind,
    /// True when they bypass the page cache.
    pub direct: bool,
    /// Alignment of requests in bytes.
    pub alignment: usize,
    /// Requests per second by size, as measured when the store was created.
    pub curve: Option<DeviceCurve>,
    /// Features that were requested but not available so far, if any.
    pub notes: Vec<String>,
}

/// One row class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassStats {
    /// Number of the class; its pages are in `rows-<number>`.
    pub id: u16,
    /// Layout of its rows on storage.
    pub storage: StorageKind,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Rows of a page.
    pub rows_per_page: usize,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of the file.
    pub disk_bytes: u64,
    /// Copies that are the newest of their key.
    pub newest_copies: u64,
    /// Outdated copies that kept commits still have.
    pub retained_copies: u64,
    /// Row slots of segments in use.
    pub used_slots: u64,
    /// Rows that DRAM can hold, holds, and holds changed.
    pub cache_capacity: u64,
    /// Rows in DRAM.
    pub resident_rows: u64,
    /// Changed rows in DRAM, but for those of verbs that go on.
    pub dirty_rows: u64,
    /// Bytes of the row cache.
    pub cache_bytes: u64,
    /// Bytes of indexes and segment counters.
    pub index_bytes: u64,
    /// Reads in flight at most.
    pub read_depth: usize,
    /// Damage that cleaning and merges met since open: they leave what has it as it is.
    pub damage: Vec<String>,
}

/// Rows that verbs used and rows that were read, since the store was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowReads {
    /// Positions of verbs, each once in each verb.
    pub used: u64,
    /// Those of them whose row had to be read.
    pub missed: u64,
    /// Rows that the look-ahead window read.
    pub ahead: u64,
    /// Seconds in which verbs were blocked in reads.
    pub wait_s: f64,
}

impl Store {
    /// Bytes that were asked for and bytes of the budget, once after each time that it was divided
    /// among tables. Cheap where it was not.
    pub fn take_divided(&self) -> Option<(u64, u64)> {
        let inner = &*self.inner;
        let ask = inner.was_divided.load(Ordering::Relaxed) && inner.check_process().is_ok();
        if !ask {
            return None;
        }
        inner.was_divided.store(false, Ordering::Relaxed);
        inner.divided.lock().take()
    }

    /// Whether the store refuses changes after an error, until it is opened again.
    pub fn is_poisoned(&self) -> bool {
        self.inner.poisoned.load(Ordering::Acquire)
    }

    /// Number of rows used and read: few enough counters to ask for at every batch.
    ///
    /// *Blocking*: never.
    pub fn row_reads(&self) -> RowReads {
        let m = &self.inner.metrics;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let missed = get(&m.misses);
        RowReads {
            used: get(&m.hits) + get(&m.rescued) + get(&m.first_touches) + missed,
            missed,
            ahead: self.inner.window.rows_loaded(),
            wait_s: get(&m.read_wait_ns) as f64 / 1e9,
        }
    }

    /// The memory that the store uses, and the bytes that it may use. Reads and writes nothing;
    /// `None` before memory is divided among the tables that there are.
    pub fn memory_in_use(&self) -> Option<(MemoryUse, u64)> {
        self.check_call().ok()?;
        let engine = self.inner.engine.read_recursive();
        engine.planned.then(|| (engine.memory(), engine.budget_bytes))
    }

    /// Everything the store says of itself. *Blocking*: waits for verbs that write rows.
    pub fn stats(&self) -> Result<Stats> {
        let inner = &*self.inner;
        let engine = inner.planned_engine()?;
        let m = &inner.metrics;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (hits, rescued, misses) = (get(&m.hits), get(&m.rescued), get(&m.misses));
        let all = hits + rescued + misses;
        let storage: Vec<StorageStats> =
            engine.classes.iter().map(|class| class.log.lock().stats()).collect();
        let written = |of: fn(&Written) -> u64| -> u64 {
            storage.iter().map(|class| of(&class.written)).sum()
        };
        let last = self.last_commit();
        Ok(Stats {
            path: inner.path.display().to_string(),
            cold_directory: inner.cold_directory(),
            cold_bytes: inner.cold_bytes()?,
            budget_bytes: engine.budget_bytes,
            asked_bytes: engine.asked_bytes,
            memory: engine.memory(),
            budget: engine.budget_parts(),
            disk_bytes: inner.disk_bytes(),
            max_disk_bytes: inner.options.max_disk_bytes,
            hits,
            misses,
            rescued,
            first_touches: get(&m.first_touches),
            hit_rate: if all == 0 { 0.0 } else { (hits + rescued) as f64 / all as f64 },
            tag_collisions: get(&m.tag_collisions),
            read_requests: get(&m.requests),
            pages_read: get(&m.pages_read),
            bytes_read: get(&m.bytes_read),
            read_wait_s: get(&m.read_wait_ns) as f64 / 1e9,
            rows_loaded: get(&m.loaded),
            rows_initial: get(&m.initial),
            evicted: get(&m.evicted),
            evicted_dirty: get(&m.evicted_dirty),
            rows_written: written(|w| w.rows),
            rows_moved: written(|w| w.rows_moved),
            pages_written: written(|w| w.pages),
            bytes_written: inner.bytes_written(&engine),
            written: inner.written_bytes(&engine, &storage),
            non_finite: get(&m.non_finite),
            saturated: get(&m.saturated),
            announced: get(&m.announced),
            time: inner.time(&engine),
            upkeep: inner.upkeep_stats(&storage),
            commits: CommitStats {
                sequence: last.as_ref().map_or(0, |c| c.sequence),
                step: last.as_ref().map_or(0, |c| c.step),
                kept: self.commits().len(),
                held: inner.is_held(),
                holds_taken: get(&m.holds_taken),
                seconds: get(&m.commit_ns) as f64 / 1e9,
            },
            device: DeviceStats {
                io: inner.medium.kind(),
                direct: inner.medium.direct(),
                alignment: inner.medium.alignment(),
                curve: engine.classes.iter().find_map(|c| c.record.curve.clone()),
                notes: inner.medium.notes(),
            },
            classes: class_stats(&engine, &storage),
            tables: engine.tables.iter().map(super::engine::Table::info).collect(),
        })
    }
}

impl Inner {
    fn cold_directory(&self) -> Option<String> {
        let path = self.medium.apart()?.path()?;
        Some(path.display().to_string())
    }

    /// Bytes of what lies in the cold directory.
    pub(super) fn cold_bytes(&self) -> Result<u64> {
        let Some(cold) = self.medium.apart() else { return Ok(0) };
        let mut bytes = 0;
        for name in cold.list(PARTITION_PREFIX)?.iter().filter(|name| lies_apart(name)) {
            match cold.state_of(name) {
                Ok(state) => bytes += blocks_of(state.bytes),
                // A merge has replaced it meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    fn time(&self, engine: &super::Engine) -> TimeStats {
        let seconds = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64 / 1e9;
        let m = &self.metrics;
        let mut time = TimeStats {
            verbs: seconds(&m.verb_ns),
            merging: seconds(&m.merge_ns),
            resident: seconds(&m.resident_ns),
            reading: seconds(&m.read_wait_ns),
            writing: seconds(&m.write_ns),
            locks: seconds(&m.lock_wait_ns),
            selecting: seconds(&m.select_ns),
            commits: seconds(&m.commit_ns),
            ..TimeStats::default()
        };
        let known = time.merging + time.resident + time.reading + time.writing + time.locks;
        // Verbs that are under way have parts that count and are not in the sum yet.
        time.missing = (time.verbs - known).max(0.0);
        let requests = m.requests.load(Ordering::Relaxed);
        let curve = engine.classes.iter().find_map(|c| c.record.curve.as_ref());
        time.device_least = curve.map(|curve| match requests {
            0 => 0.0,
            _ => {
                let bytes = m.bytes_read.load(Ordering::Relaxed) / requests;
                requests as f64 * curve.cost(bytes as usize)
            }
        });
        time
    }

    fn upkeep_stats(&self, storage: &[StorageStats]) -> UpkeepStats {
        let mut merged = MergeCounts::default();
        storage.iter().for_each(|class| merged.add(&class.merged));
        let counted = self.scheduler.counted();
        UpkeepStats {
            steps: counted.steps,
            cleaned: counted.cleaned,
            put_off: counted.put_off,
            merges: merged.merges,
            rows_taken: merged.taken,
            rows_outdated: merged.outdated,
            rows_copied: merged.copied,
            bytes_read: merged.bytes_read,
            bytes_written: merged.bytes_written,
            seconds: merged.busy.as_secs_f64(),
            seconds_max: merged.busy_max.as_secs_f64(),
            latency: merged.latency.as_secs_f64(),
            latency_max: merged.latency_max.as_secs_f64(),
        }
    }

    fn written_bytes(&self, engine: &super::Engine, storage: &[StorageStats]) -> WrittenBytes {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let m = &self.metrics;
        let (deltas, pieces) = (get(&m.delta_bytes), get(&m.piece_bytes));
        let mut bytes = WrittenBytes {
            deltas,
            pieces,
            // Deltas that another thread is counting are among these before they are in the sum.
            commits: get(&m.journal_bytes).saturating_sub(deltas + pieces),
            state: get(&m.state_bytes),
            ..WrittenBytes::default()
        };
        for (class, storage) in engine.classes.iter().zip(storage) {
            let Written { rows, rows_moved, pages } = storage.written;
            let (row, page) = (class.record.row_bytes as u64, class.record.page_bytes as u64);
            bytes.rows += rows * row;
            bytes.moved += rows_moved * row;
            // Rows that are in a page under construction count before the page does.
            bytes.pages += (pages * page).saturating_sub((rows + rows_moved) * row);
        }
        bytes
    }
}

fn class_stats(engine: &super::Engine, storage: &[StorageStats]) -> Vec<ClassStats> {
    let of_class = |(class, storage): (&Class, &StorageStats)| {
        let cache = class.cache();
        ClassStats {
            id: class.record.id,
            storage: class.record.storage,
            row_bytes: class.record.row_bytes,
            page_bytes: class.record.page_bytes,
            rows_per_page: storage.rows_per_page,
            segment_bytes: class.record.segment_bytes,
            disk_bytes: storage.disk_bytes,
            newest_copies: storage.newest_copies,
            retained_copies: storage.retained_copies,
            used_slots: storage.used_slots,
            cache_capacity: cache.row_capacity(),
            resident_rows: cache.resident_rows(),
            dirty_rows: cache.dirty_rows(),
            cache_bytes: cache.memory_bytes(),
            index_bytes: storage.index_bytes,
            read_depth: class.tier().plan.read_depth,
            damage: class.log.lock().damage(),
        }
    };
    engine.classes.iter().zip(storage).map(of_class).collect()
}
