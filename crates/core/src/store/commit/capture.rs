//! The rows of a commit: those that were dirty when it was captured, as they were then.
//!
//! They stay in the cache and are written a portion at a time, while verbs go on. A verb that is
//! about to change one of them writes it first, to the log's buffers: that is its copy. One that
//! leaves the cache is written then. So until all captured rows of a class are written, its log
//! holds nothing newer than the commit: rows that were changed after it wait in the cache and in
//! the flush buffer, and a thread that needs that buffer writes the remaining captured rows. Then
//! the epoch of the class is closed: its pages are given to the device, its deltas to the journal,
//! and later rows belong to the next commit; their deltas wait in memory until this commit is
//! recorded.

use super::super::Inner;
use super::super::engine::{Class, ClassPhase, Engine, Table, dirty_row};
use super::super::journal::ClassCounters;
use super::super::verbs::rows::Keys;
use super::history::InFlightCommit;
use crate::activation::{Branch, note};
use crate::cache::{Cache, RowRef};
use crate::error::Result;
use crate::planted::{self, Bug};
use crate::storage::{Cut, Storage};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Rows that a commit cleans for each row of a batch that was refused as `Full`.
const CLEANED_PER_REFUSED_ROW: u64 = 4;
/// Rows that are written at once while verbs wait for the class lock, at most.
const PORTION_ROWS: usize = 256;
/// Time for which the commit's thread waits for a class before it checks whether a verb closed it.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Rows that are sorted at once: as many as take one part in so many of the budget, and at least.
const SORT_PART: usize = 64;
const SORT_ROW_BYTES: usize = size_of::<(u32, u32)>();
const SORT_ROWS_MIN: usize = 1 << 12;

/// The captured rows of a class in the order in which they are to be written: those dirty for
/// longest first.
pub(super) struct Portions {
    now: u32,
    /// Ranges of age that are left, the oldest last.
    ranges: Vec<(u32, u32)>,
    /// Age and slot of the rows of the range at hand.
    rows: Vec<(u32, u32)>,
    given: usize,
    /// Steps of shrinking of the cache when slots were looked up: later ones move rows.
    moves: u64,
}

impl Portions {
    fn new(engine: &Engine, class: &Class, cache: &Cache) -> Self {
        let now = class.now();
        let most = SORT_ROWS_MIN.max(engine.budget_bytes as usize / SORT_PART / SORT_ROW_BYTES);
        // Before any slot is looked up.
        let moves = cache.moves();
        let mut ranges = ranges(cache, now, most);
        ranges.reverse();
        Self { now, ranges, rows: Vec::new(), given: 0, moves }
    }

    /// At most `most` rows; `None` at the end.
    fn next(&mut self, cache: &Cache, most: usize) -> Option<&[(u32, u32)]> {
        while self.given == self.rows.len() {
            let (oldest, youngest) = self.ranges.pop()?;
            self.rows.clear();
            self.given = 0;
            cache.for_each_captured(|dirty_since, slot| {
                let age = self.now.wrapping_sub(dirty_since);
                if age <= oldest && age >= youngest {
                    self.rows.push((age, slot));
                }
            });
            self.rows.sort_unstable_by(|a, b| b.cmp(a));
        }
        let begin = self.given;
        self.given = (begin + most.max(1)).min(self.rows.len());
        Some(&self.rows[begin..self.given])
    }
}

/// Ranges of age (oldest, youngest) that hold at most about `most` captured rows each, oldest
/// first.
fn ranges(cache: &Cache, now: u32, most: usize) -> Vec<(u32, u32)> {
    match cache.captured_rows() as usize {
        0 => return Vec::new(),
        captured if captured <= most => return vec![(u32::MAX, 0)],
        _ => {}
    }
    let mut oldest = 0;
    cache.for_each_captured(|dirty_since, _| oldest = oldest.max(now.wrapping_sub(dirty_since)));
    let shift = (32 - oldest.leading_zeros()).saturating_sub(12);
    let mut counts = vec![0usize; (oldest >> shift) as usize + 1];
    cache.for_each_captured(|dirty_since, _| {
        counts[(now.wrapping_sub(dirty_since) >> shift) as usize] += 1;
    });
    let mut ranges = Vec::new();
    let (mut high, mut sum) = (counts.len() - 1, 0);
    for bin in (0..counts.len()).rev() {
        if sum > 0 && sum + counts[bin] > most {
            ranges.push((upper(high, shift), ((bin + 1) as u32) << shift));
            (high, sum) = (bin, 0);
        }
        sum += counts[bin];
    }
    ranges.push((upper(high, shift), 0));
    ranges
}

fn upper(bin: usize, shift: u32) -> u32 {
    ((((bin as u64) + 1) << shift) - 1).min(u64::from(u32::MAX)) as u32
}

impl Inner {
    /// Writes a portion of a class's captured rows; true when there are none left, and the class is
    /// closed.
    pub(super) fn write_portion(
        &self,
        engine: &Engine,
        class: &Class,
        portions: &mut Option<Portions>,
    ) -> Result<bool> {
        let mut moves = None;
        let rows = class.tier.as_ref().and_then(|tier| {
            let new = || Portions::new(engine, class, &tier.cache);
            // Sorted rows are worth longer portions: more of them share a page.
            let most = match class.sorts_writes {
                true => usize::MAX,
                false => PORTION_ROWS,
            };
            let most = tier.plan.storage.parked_rows().min(most);
            let portions = portions.get_or_insert_with(new);
            moves = Some(portions.moves);
            portions.next(&tier.cache, most)
        });
        // Never waits for a class that is closed: its holder may wait for the record.
        let mut log = loop {
            if class.phase() != ClassPhase::Captured {
                return Ok(true); // a verb has done the rest
            }
            if let Some(log) = class.log.try_lock_for(LOOK_AGAIN) {
                break log;
            }
        };
        if class.phase() != ClassPhase::Captured {
            return Ok(true);
        }
        // Rows of this commit that a verb failed to write are lost to it.
        self.check_unpoisoned()?;
        let count = rows.map_or(0, <[_]>::len) as u64;
        let room = self.make_room_to_write(engine, class, &mut **log, count);
        self.poison_on_error(room)?;
        // Without the class none of them moves.
        if moves.is_some_and(|moves| moves != class.cache().moves()) {
            // The remaining rows are looked up anew.
            *portions = None;
            return Ok(false);
        }
        let written = self.medium.check_lock().and_then(|()| match rows {
            Some(rows) => self.write_slots(engine, class, &mut **log, rows),
            None => self.close_epoch(engine, class, &mut **log),
        });
        // Before others see what of it the index names.
        self.poison_on_error(written)?;
        // A thread that waits for the class comes next, and not this thread again.
        MutexGuard::unlock_fair(log);
        Ok(rows.is_none())
    }

    /// Writes what is left of a class's captured rows, and cuts it.
    pub(in crate::store) fn finish_captured(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        if class.phase() != ClassPhase::Captured {
            return Ok(());
        }
        note(Branch::FinishedByVerb);
        self.write_captured(engine, class, log)?;
        self.close_epoch(engine, class, log)
    }

    /// Writes all captured rows of a class.
    pub(in crate::store) fn write_captured(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        let Some(tier) = &class.tier else { return Ok(()) };
        let mut portions = Portions::new(engine, class, &tier.cache);
        let most = tier.plan.storage.parked_rows();
        loop {
            self.make_room_to_write(engine, class, log, most as u64)?;
            if portions.moves != tier.cache.moves() {
                portions = Portions::new(engine, class, &tier.cache);
            }
            let Some(rows) = portions.next(&tier.cache, most) else { return Ok(()) };
            self.write_slots(engine, class, log, rows)?;
        }
    }

    /// Writes those of the rows in these slots that are still captured.
    fn write_slots(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        rows: &[(u32, u32)],
    ) -> Result<()> {
        let mut written = 0;
        let mut sorted = Vec::new();
        let rows = match log.sorts_writes() {
            true => in_write_order(class.cache(), log, rows, &mut sorted),
            false => rows,
        };
        for (_, slot) in rows {
            let mut result = Ok(());
            let stored = class.cache().write_back(*slot, |row| match row.captured {
                true => write(log, row, &mut result),
                false => None,
            });
            result?;
            written += u64::from(stored.is_some());
        }
        self.journal_changes_if_many(class, log)?;
        self.clean_for(engine, class, log, written)
    }

    /// Writes those of a batch's rows that are captured, so that the batch may change them.
    pub(in crate::store) fn write_before_change(
        &self,
        engine: &Engine,
        batches: &[Keys<'_>],
    ) -> Result<()> {
        if planted::is(Bug::ChangedBesideCommit) {
            return Ok(());
        }
        for Keys { table, keys } in batches {
            let class = &engine.classes[table.class];
            let Some(tier) = &class.tier else { continue };
            for keys in keys.chunks(tier.plan.storage.parked_rows().max(1)) {
                if class.phase() != ClassPhase::Captured {
                    break;
                }
                let mut log = class.lock(&self.metrics);
                // Poisoned before the lock is released, or the commit would be recorded without.
                let written = self
                    .make_room_to_write(engine, class, &mut **log, keys.len() as u64)
                    .and_then(|()| self.write_keys(engine, class, &mut **log, table, keys));
                self.poison_on_error(written)?;
            }
        }
        Ok(())
    }

    fn write_keys(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        table: &Table,
        keys: &[u64],
    ) -> Result<()> {
        if class.phase() != ClassPhase::Captured {
            return Ok(());
        }
        let (cache, mut written, mut result) = (class.cache(), 0, Ok(()));
        cache.staged(
            keys.len(),
            false,
            |i| table.locate(cache, keys[i]),
            |i, at| {
                if result.is_ok() {
                    let write = |row: RowRef<'_>| write(log, row, &mut result);
                    let found = cache.write_captured(at, table.id(), keys[i], write);
                    written += u64::from(found.is_some());
                }
            },
        );
        result?;
        if written > 0 {
            note(Branch::PortionByVerb);
        }
        self.journal_changes_if_many(class, log)?;
        self.clean_for(engine, class, log, written)
    }

    /// Pays for the rows that were refused as `Full` since the last commit with cleaning, and
    /// cleans until the class will have the bytes that somebody lacks.
    pub(in crate::store) fn clean_for_refused(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        let history = self.history.lock();
        let (rows, bytes) = (history.refused.batch_rows(), history.refused.bytes());
        let bytes = self.bytes_to_free(&history, bytes);
        drop(history);
        if rows > 0 {
            note(Branch::CleanedForRefused);
        }
        self.clean_for(engine, class, log, CLEANED_PER_REFUSED_ROW * rows)?;
        self.clean_until_free(engine, class, log, bytes)
    }

    /// All captured rows of a class are written: from here on its log takes the next commit's.
    fn close_epoch(&self, engine: &Engine, class: &Class, log: &mut dyn Storage) -> Result<()> {
        if class.tier.is_some() {
            self.clean_for_refused(engine, class, log)?;
        }
        // A journal file may begin with this commit, and its thread must not take this lock then.
        // Encoded only where one may, and before the lock that every verb takes.
        let wants = |commit: &InFlightCommit| commit.wants_fillings;
        let wants_record = self.history.lock().in_flight.as_ref().is_some_and(wants);
        let Cut { unsynced, began, position, index_bytes, record, partitions, written } =
            log.cut(wants_record)?;
        if !planted::is(Bug::DeltasLeftBehind) {
            self.journal_changes(class, log)?;
        }
        let mut history = self.history.lock();
        self.write_index_pieces(engine, class, log, &mut history)?;
        let commit = history.in_flight.as_mut().expect("a class is captured by a commit");
        commit.files.extend(unsynced);
        let id = class.record.id;
        commit.classes.push(ClassCounters { id, sequence: position, began });
        commit.index_bytes += index_bytes;
        commit.fillings.extend(record.map(|record| (id, record)));
        commit.partitions.extend(partitions);
        commit.rows_written += written.rows;
        commit.page_bytes += written.pages * class.record.page_bytes as u64;
        class.phase.store(ClassPhase::Closed as u8, Ordering::Release);
        Ok(())
    }
}

/// These rows in the order in which the storage wants them.
fn in_write_order<'a>(
    cache: &Cache,
    log: &dyn Storage,
    rows: &[(u32, u32)],
    sorted: &'a mut Vec<(u32, u32)>,
) -> &'a [(u32, u32)] {
    sorted.extend_from_slice(rows);
    sorted.sort_by_cached_key(|(_, slot)| {
        cache.with_slot(*slot, |row| log.write_place(row.table, row.key)).unwrap_or(0)
    });
    sorted
}

/// Writes a row to the log and says where it is.
fn write(log: &mut dyn Storage, row: RowRef<'_>, result: &mut Result<()>) -> Option<u32> {
    log.append(dirty_row(row)).map_err(|error| *result = Err(error)).ok()
}
