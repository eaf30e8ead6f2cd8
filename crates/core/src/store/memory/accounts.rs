//! Demands for a store's memory, and its use: the demands of row classes by which a plan divides
//! the budget, and the bytes that count against it, now and to come.
//!
//! A thread with a class in hand asks for the bytes of all others without waiting for them
//! ([`memory_with`](Engine::memory_with)): one class lock at a time.

use super::budget::{self, ClassDemand, RowsToCome, bytes_of, rows_bytes};
use crate::config::{Memory, StoreOptions};
use crate::error::Result;
use crate::storage::{Storage, StorageMemory};
use crate::store::engine::{Class, Engine, Table};
use std::sync::atomic::Ordering;

impl Engine {
    /// The demand of every class, for a plan.
    pub(in crate::store) fn demands(&self) -> Vec<ClassDemand> {
        let demand = |(i, class): (usize, &Class)| {
            let tables = || self.tables.iter().filter(move |t| t.class == i);
            let log = class.log.lock();
            let expected = |table: &Table| Some((table.id(), table.record.rows_to_come()?));
            if class.is_direct {
                // No row of it is in memory: two bits of each are.
                let index_bytes = log.memory().index_bytes;
                let sparse = true;
                let demand = ClassDemand::of(&class.record, &class.choices);
                return ClassDemand { rows: 1, sparse, index_bytes, ..demand };
            }
            ClassDemand {
                ids: class.dense_rows,
                rows: tables()
                    .map(|t| {
                        let written = t.rows.load(Ordering::Relaxed);
                        t.record.rows_to_come().unwrap_or(1 << 20).max(written)
                    })
                    .sum(),
                sparse: tables().any(|t| t.first.is_none()),
                index_bytes: log.memory().index_bytes,
                index_growth: log.index_growths(&mut tables().filter_map(expected))
                    + log.bytes_of_widest(),
                ..ClassDemand::of(&class.record, &class.choices)
            }
        };
        self.classes.iter().enumerate().map(demand).collect()
    }

    fn rows_to_come(&self) -> Vec<RowsToCome<'_>> {
        let of_tables = self.tables.iter().map(|table| RowsToCome {
            table: &table.record.spec.name,
            rows: match table.record.spec.storage.is_direct() {
                true => Some(0),
                false => table.record.rows_to_come(),
            },
            row_bytes: table.layout.row_bytes(),
        });
        of_tables.collect()
    }

    /// The bytes that were asked for, and the budget, which is more if a percentage is too little
    /// to work: buffers have a fixed part, more than a tenth of a small table, that a user who asks
    /// for a percentage cannot know.
    pub(in crate::store) fn budget(&self, options: &StoreOptions) -> Result<(u64, u64)> {
        let asked = bytes_of(options.memory, &self.rows_to_come())?;
        let demands = self.demands();
        match options.memory {
            Memory::Percent(_) if !budget::works(asked, &demands) => {
                Ok((asked, budget::enough(&demands)))
            }
            _ => Ok((asked, asked)),
        }
    }

    /// Refuses a budget that cannot be divided, as `plan` would.
    pub(in crate::store) fn check_budget(&self, options: &StoreOptions) -> Result<()> {
        budget::check(self.budget(options)?.1, &self.demands(), options.memory_unit)
    }

    /// So many bytes of memory as the caller would give them: in the unit, or per cent, that the
    /// store was opened with.
    pub(in crate::store) fn spell(&self, options: &StoreOptions, bytes: u64) -> String {
        let Memory::Percent(per_cent) = options.memory else {
            return options.memory_unit.spell(bytes);
        };
        match rows_bytes(per_cent, &self.rows_to_come()) {
            Ok(all) if all > 0.0 => format!("\"{}%\"", (bytes as f64 / all * 1e3).ceil() / 10.0),
            _ => bytes.to_string(),
        }
    }

    /// Bytes of everything that counts against the budget.
    pub(in crate::store) fn memory(&self) -> MemoryUse {
        let window_bytes = self.window_bytes.load(Ordering::Relaxed);
        let mut used = MemoryUse { window_bytes, ..MemoryUse::default() };
        for class in &self.classes {
            let StorageMemory { index_bytes, buffer_bytes } = class.log.lock().memory();
            used.index_bytes += index_bytes;
            used.buffer_bytes += buffer_bytes;
            if let Some(tier) = &class.tier {
                used.cache_bytes += tier.cache.memory_bytes();
                used.staging_bytes += tier.plan.readers_bytes();
            }
        }
        used
    }

    /// Bytes that the pieces of all indexes take on disk at most: a slot number has 32 bits there.
    pub(in crate::store) fn index_bytes_of_pieces(&self) -> u64 {
        let of_class = |class: &Class| {
            let log = class.log.lock();
            log.memory().index_bytes + log.bytes_of_widest()
        };
        self.classes.iter().map(of_class).sum()
    }

    /// The division of the budget, part by part.
    pub(in crate::store) fn budget_parts(&self) -> BudgetParts {
        let used = self.memory();
        let rows = |class: &Class| {
            let tier = class.tier.as_ref()?;
            Some(tier.cache.row_capacity() * class.record.cached_row_bytes() as u64)
        };
        BudgetParts::of(self.budget_bytes, &used, self.classes.iter().filter_map(rows).sum())
    }

    /// Bytes of everything that counts against the budget, and those by which indexes of other
    /// classes are sure to grow, for a caller with a class in hand. A class that another thread has
    /// counts with the bytes last seen of it.
    pub(in crate::store) fn memory_with(&self, at: &Class, log: &dyn Storage) -> u64 {
        let mut bytes = self.window_bytes.load(Ordering::Relaxed);
        for (i, class) in self.classes.iter().enumerate() {
            if let Some(tier) = &class.tier {
                bytes += tier.cache.memory_bytes() + tier.plan.readers_bytes();
            }
            bytes += if std::ptr::eq(class, at) {
                log.memory().total()
            } else if let Some(log) = class.log.try_lock() {
                let seen = log.memory().total() + self.sure_growth(i, &**log);
                class.seen_bytes.store(seen, Ordering::Relaxed);
                seen
            } else {
                class.seen_bytes.load(Ordering::Relaxed)
            };
        }
        bytes
    }

    /// Bytes by which the index of a class is sure to grow, for which verbs have made room. None if
    /// it grows only when rows are written: the caller that writes them makes that room.
    fn sure_growth(&self, class: usize, log: &dyn Storage) -> u64 {
        let of = &self.classes[class];
        match of.record.storage.has_bottom() || of.tier.is_none() {
            true => 0,
            false => self.index_bytes_to_come_of(class, log),
        }
    }

    /// Bytes by which indexes will grow for new keys whose rows are in memory alone, and those of
    /// dense tables until they have all rows: a plan has left room for that, which nobody takes.
    /// Packed ones in a log grow as those of growing tables do.
    pub(in crate::store) fn index_bytes_to_come(&self) -> u64 {
        let of_class =
            |(at, class): (usize, &Class)| self.index_bytes_to_come_of(at, &**class.log.lock());
        self.classes.iter().enumerate().map(of_class).sum()
    }

    /// Bytes that the indexes of all classes may take with the next rows that are written: those of
    /// a flush buffer, and of a way that a cache gives. Windows and returning ways of caches leave
    /// them free.
    pub(in crate::store) fn bytes_about_to_come(&self) -> u64 {
        let of_class = |(at, class): (usize, &Class)| {
            let log = class.log.lock();
            let rows = class.tier().plan.storage.parked_rows() as u64;
            let rows = rows + u64::from(class.cache().sets());
            let rows = class.memory_for_written(&**log, rows);
            self.index_bytes_to_come_of(at, &**log).max(rows) + log.segment_growth()
        };
        self.classes.iter().enumerate().map(of_class).sum()
    }

    /// Those of one class, which the caller has in hand.
    pub(in crate::store) fn index_bytes_to_come_of(&self, at: usize, log: &dyn Storage) -> u64 {
        let class = &self.classes[at];
        let tables = || self.tables.iter().filter(|table| table.class == at);
        let rows = |table: &Table| table.rows.load(Ordering::Relaxed);
        let of_ids = |table: &Table| {
            let ids = table.record.dense_ids()?;
            Some((table.id(), if table.record.packed { rows(table) } else { ids }))
        };
        let growing = tables().filter(|table| table.record.dense_ids().is_none());
        let new_keys = growing.map(|table| {
            let new = rows(table).saturating_sub(log.rows_stored(table.id()));
            // Layers may have stored more than the storage can tell.
            class.memory_for_new_keys(new.min(class.unwritten_rows(log)))
        });
        log.index_growths(&mut tables().filter_map(of_ids)) + new_keys.sum::<u64>()
    }
}

/// Use of memory, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemoryUse {
    /// Row caches with their metadata.
    pub cache_bytes: u64,
    /// Indexes and segment counters.
    pub index_bytes: u64,
    /// Flush buffers and chunks being written.
    pub buffer_bytes: u64,
    /// Buffers of page reads.
    pub staging_bytes: u64,
    /// The look-ahead window: announced uses, next uses of rows, buffers of its reads. The rows
    /// that it keeps are in the cache.
    pub window_bytes: u64,
}

impl MemoryUse {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.cache_bytes
            + self.index_bytes
            + self.buffer_bytes
            + self.staging_bytes
            + self.window_bytes
    }
}

/// Division of the budget: the bytes of each part, and the rest. They sum up to the budget, unless
/// it is exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct BudgetParts {
    /// Rows that the caches have room for, state of optimizers included.
    pub rows_bytes: u64,
    /// Overhead of the caches beside rows: lines of sets, stamps and headers of rows.
    pub lines_bytes: u64,
    /// Indexes and segment counters.
    pub index_bytes: u64,
    /// Flush buffers and chunks being written.
    pub buffer_bytes: u64,
    /// Buffers of page reads.
    pub staging_bytes: u64,
    /// The look-ahead window.
    pub window_bytes: u64,
    /// The rest, for indexes that grow, for the journal, and for what is not a whole set.
    pub rest_bytes: u64,
    /// The part of the budget that is rows; 0 before it is divided.
    pub rows_share: f64,
}

impl BudgetParts {
    /// The parts of a budget of which `used` is in use, `rows_bytes` of that for rows.
    fn of(budget_bytes: u64, used: &MemoryUse, rows_bytes: u64) -> Self {
        Self {
            rows_bytes,
            lines_bytes: used.cache_bytes - rows_bytes,
            index_bytes: used.index_bytes,
            buffer_bytes: used.buffer_bytes,
            staging_bytes: used.staging_bytes,
            window_bytes: used.window_bytes,
            rest_bytes: budget_bytes.saturating_sub(used.total()),
            rows_share: if budget_bytes == 0 {
                0.0
            } else {
                rows_bytes as f64 / budget_bytes as f64
            },
        }
    }
}
