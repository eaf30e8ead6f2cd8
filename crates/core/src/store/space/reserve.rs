//! Room before use: disk for every row that may have to be written, memory for an index that grows.

use crate::activation::{Branch, note};
use crate::cache::TakeWay;
use crate::config::StorageKind;
use crate::error::{ErrorKind, Result, bail};
use crate::storage::{self, Storage};
use crate::store::Inner;
use crate::store::commit::Asker;
use crate::store::engine::{Class, ClassPhase, Engine, Table, park};
use crate::store::journal::JOURNAL_BYTES_PER_TABLE;
use crate::store::memory::budget;
use crate::store::verbs::rows::Keys;
use std::sync::atomic::Ordering;

/// Sets that give up a row between two looks at the room that it has to wait in.
const SHRINK_SETS: u32 = 64;

impl Inner {
    /// Makes sure that a batch that changes these rows cannot run out of disk, and that its new
    /// keys fit the budget. `Full` and `Budget` come before anything changed. Each reserve is
    /// followed by `end_reservation` with the same keys.
    pub(in crate::store) fn reserve(&self, engine: &Engine, keys: &[Keys<'_>]) -> Result<()> {
        self.prepare_writing()?;
        self.settle_room(engine)?;
        self.make_top_room(engine, keys)?;
        self.make_index_room(engine, keys)?;
        // Once for all tables of a class: whoever holds the class lock may be waited for.
        for (i, class) in engine.classes.iter().enumerate() {
            let rows = rows_of_class(keys, i);
            if rows == 0 {
                continue;
            }
            class.reserved_rows.fetch_add(rows, Ordering::Relaxed);
            if let Err(error) = self.reserve_class(engine, class) {
                self.end_reservation(&engine.classes[..=i], keys);
                return Err(self.advise(engine, error));
            }
        }
        Ok(())
    }

    /// Makes sure that the journal has room for `rows` deletes. They take no room for rows.
    pub(in crate::store) fn reserve_deletes(
        &self,
        engine: &Engine,
        class: &Class,
        rows: u64,
    ) -> Result<()> {
        let log = class.log.lock();
        let own = class.journal_bytes(&**log) + log.journal_bytes_for(rows);
        let bytes = own + engine.journal_bytes_beside(class);
        drop(log);
        let asker = Asker::Changes(class.record.id);
        let fits = self.reserve_to_change(&mut self.history.lock(), asker, bytes);
        fits.map_err(|error| self.advise(engine, error))
    }

    /// Makes sure that the journal has room for the records of a new table and its class, beside
    /// all that is to come.
    pub(in crate::store) fn reserve_table(&self, engine: &Engine) -> Result<()> {
        let bytes = engine.journal_bytes() + JOURNAL_BYTES_PER_TABLE;
        let fits = self.reserve_to_change(&mut self.history.lock(), Asker::Table, bytes);
        fits.map_err(|error| self.advise(engine, error))
    }

    fn reserve_class(&self, engine: &Engine, class: &Class) -> Result<()> {
        let mut log = class.lock(&self.metrics);
        let rows = class.unwritten_rows(&**log);
        let result = self.reserve_rows(engine, class, &mut **log, rows);
        if matches!(&result, Err(error) if error.kind() == ErrorKind::Full) {
            self.history.lock().refused.refuse_batch(rows);
        }
        result
    }

    /// Makes sure that `rows` rows of a class can be written, and the journal can say so.
    fn reserve_rows(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        rows: u64,
    ) -> Result<()> {
        let (own, id) = (class.journal_bytes(log), class.record.id);
        let mut history = self.history.lock();
        // Under this lock, so that of two threads the later one sees what both have reserved.
        let bytes = own + engine.journal_bytes_beside(class);
        self.reserve_to_change(&mut history, Asker::Changes(id), bytes)?;
        drop(history);
        // Cleaning needs room to move rows to, or it could never make any.
        let spare = self.room_for_upkeep(log);
        // What seals pages when the class is closed takes them from the next commit.
        let sealed = match class.phase() {
            ClassPhase::Captured => log.rows_of_cut(),
            _ => 0,
        };
        let rows = rows + sealed;
        let grow = |log: &mut dyn Storage, grow| log.reserve(rows, spare, grow);
        let result = self.charge_growth(log, rows, spare, grow);
        match &result {
            Ok(()) => self.history.lock().refused.accept(Asker::Rows(id)),
            Err(error) if error.kind() == ErrorKind::Full => {
                // Those that were written before are on storage once it asks again.
                let asked = class.reserved_rows.load(Ordering::Relaxed) + sealed;
                self.note_refused_rows(id, log.lacking_bytes(rows, spare), asked);
            }
            Err(_) => {}
        }
        result
    }

    /// Runs something that may grow a class's file for `rows` more rows and `spare` bytes. It is
    /// given how many bytes it may grow by. What it needs is charged before it runs, so that nobody
    /// else takes that meanwhile; nothing, where there is less, or others would be refused for it.
    pub(in crate::store) fn charge_growth<R>(
        &self,
        log: &mut dyn Storage,
        rows: u64,
        spare: u64,
        f: impl FnOnce(&mut dyn Storage, u64) -> Result<R>,
    ) -> Result<R> {
        let growth = log.growth_for(rows, spare);
        let (mut charged, mut grow) = (0, 0);
        if growth > 0 {
            let history = self.history.lock();
            grow = growth.min(self.grow_bytes_beside(&history));
            charged = if grow == growth { growth } else { 0 };
            self.rows_disk_bytes.fetch_add(charged, Ordering::Relaxed);
        }
        let before = log.disk_bytes();
        let result = f(log, grow);
        let grown = log.disk_bytes().wrapping_sub(before);
        // The sum wraps around, which takes back what was not used, or was given back.
        self.rows_disk_bytes.fetch_add(grown.wrapping_sub(charged), Ordering::Relaxed);
        if growth > 0 {
            self.look_at_device();
        }
        result
    }

    /// Takes back what `reserve` reserved of these classes, the first ones of an engine's.
    pub(in crate::store) fn end_reservation(&self, classes: &[Class], keys: &[Keys<'_>]) {
        for (i, class) in classes.iter().enumerate() {
            // Pairs with the acquires in `unwritten_rows` and `journal_bytes_at_most`.
            class.reserved_rows.fetch_sub(rows_of_class(keys, i), Ordering::Release);
        }
    }

    /// Bytes that the store takes on disk.
    pub(in crate::store) fn disk_bytes(&self) -> u64 {
        self.used_bytes(&self.history.lock())
    }

    /// The newest rows of dense tables take from the cache where there are more than a plan has
    /// left room for: merges were put off. What caches cannot give is left to merges.
    fn make_top_room(&self, engine: &Engine, keys: &[Keys<'_>]) -> Result<()> {
        let dense = keys.iter().filter(|batch| batch.table.first.is_some());
        let growth: u64 = dense
            .map(|batch| {
                let class = &engine.classes[batch.table.class];
                class.memory_for_dense_rows(batch.keys.len() as u64)
            })
            .sum();
        let lacks = || engine.memory().total() + growth > engine.budget_bytes;
        while growth > 0 && lacks() && self.shrink_largest(engine)? {}
        Ok(())
    }

    /// A growing index takes from the cache, one way of all sets at a time.
    fn make_index_room(&self, engine: &Engine, keys: &[Keys<'_>]) -> Result<()> {
        let growth = memory_for(engine, keys, |batch| batch.keys.len() as u64);
        if growth == 0 {
            return Ok(());
        }
        loop {
            let used = engine.memory().total() + engine.index_bytes_to_come();
            if used + growth <= engine.budget_bytes {
                return Ok(());
            }
            if self.shrink_largest(engine)? {
                continue;
            }
            // Looking every key up is for the last moment.
            let growth = memory_for(engine, keys, |batch| not_stored(engine, batch));
            if growth == 0 || used + growth <= engine.budget_bytes {
                return Ok(());
            }
            let enough = (used + used / 4 + growth).max(budget::enough(&engine.demands()) + growth);
            let enough = engine.spell(&self.options, enough);
            bail!(
                Budget,
                "the indexes of tables that grow take {} bytes, which leaves the cache at its \
                 smallest and {used} bytes in use of memory={}; nothing was changed; reopen with \
                 at least memory={enough}",
                engine.memory().index_bytes,
                engine.budget_bytes,
            );
        }
    }

    /// What deleted keys leave in memory takes from the cache, as a growing index does. `Budget`
    /// comes before anything changed.
    pub(in crate::store) fn make_delete_room(
        &self,
        engine: &Engine,
        table: &Table,
        keys: &[u64],
    ) -> Result<()> {
        let class = &engine.classes[table.class];
        let growth = class.log.lock().bytes_for_deletes(table.id(), keys);
        if growth == 0 {
            return Ok(());
        }
        let caches = engine.classes.iter().map(Class::cache);
        let giveable: u64 = caches.map(|cache| cache.giveable_bytes()).sum();
        let used = engine.memory().total() + engine.index_bytes_to_come();
        let used = used.saturating_sub(giveable);
        // Caches are not emptied for deletes that would be refused all the same.
        let fits = used + growth <= engine.budget_bytes;
        if fits && self.make_window_room(engine, growth)? {
            return Ok(());
        }
        class.log.lock().drop_deleted_soon();
        let way_out = match table.record.spec.storage {
            StorageKind::Pages => "freeze the store again, which drops the rows",
            _ => "commit in between, which merges what was deleted",
        };
        let enough = (used + used / 4).max(budget::enough(&engine.demands())) + growth;
        let enough = engine.spell(&self.options, enough);
        bail!(
            Budget,
            "deletes of {} keys of table '{}' leave {growth} bytes in memory until the rows are \
             dropped, beside {used} of memory={} that caches cannot give; nothing was deleted; \
             delete fewer keys at once and {way_out}, or reopen with at least memory={enough}",
            keys.len(),
            table.record.spec.name,
            engine.budget_bytes,
        );
    }

    /// Makes sure that `growth` more bytes fit the budget; false when the caches cannot give them.
    pub(in crate::store) fn make_window_room(&self, engine: &Engine, growth: u64) -> Result<bool> {
        let used = || engine.memory().total() + engine.index_bytes_to_come();
        while used() + growth > engine.budget_bytes {
            if !self.shrink_largest(engine)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets caches grow to what they had before others took of it, as far as the budget has room.
    pub(in crate::store) fn return_cache_room(&self, engine: &Engine) {
        loop {
            let used = engine.memory().total() + engine.index_bytes_to_come();
            let room = engine.budget_bytes.saturating_sub(used);
            let mut fitting: Vec<&Class> =
                engine.classes.iter().filter(|class| class.cache().way_bytes() <= room).collect();
            // The one that was left fewest.
            fitting.sort_by_key(|class| class.cache().ways());
            if !fitting.iter().any(|class| class.cache().return_way().is_some()) {
                return;
            }
        }
    }

    /// Takes one way from the cache that has most bytes; false when all are at their floor.
    fn shrink_largest(&self, engine: &Engine) -> Result<bool> {
        let mut classes: Vec<&Class> = engine.classes.iter().collect();
        classes.sort_by_key(|class| std::cmp::Reverse(class.cache().memory_bytes()));
        for class in classes {
            let mut log = class.log.lock();
            // Rows change places, and captured ones are looked for where they were.
            self.poison_on_error(self.finish_captured(engine, class, &mut **log))?;
            loop {
                let short = log.room() < SHRINK_SETS.min(class.cache().sets()) as usize;
                if short && log.parked() > 0 {
                    self.flush_now(engine, class, &mut **log)?;
                }
                let sets = (log.room() as u32).min(SHRINK_SETS);
                let mut evicted = 0;
                let step = class.cache().take_way_step(sets, |victim| {
                    evicted += 1;
                    park(&mut **log, victim);
                });
                self.metrics.evicted.fetch_add(evicted, Ordering::Relaxed);
                match step {
                    TakeWay::More => {}
                    TakeWay::Released(_) => {
                        note(Branch::IndexTookWay);
                        return Ok(true);
                    }
                    TakeWay::Floor => break,
                }
            }
        }
        Ok(false)
    }
}

/// Keys that belong to a class, given by its index.
fn rows_of_class(keys: &[Keys<'_>], class: usize) -> u64 {
    keys.iter()
        .filter(|batch| batch.table.class == class)
        .map(|batch| batch.keys.len() as u64)
        .sum()
}

/// Bytes of memory for those keys that `count` says are new, of growing tables and of those whose
/// index is packed.
fn memory_for(engine: &Engine, keys: &[Keys<'_>], count: impl Fn(&Keys<'_>) -> u64) -> u64 {
    let of_batch = |batch: &Keys<'_>| match batch.table.record.dense_ids() {
        None => engine.classes[batch.table.class].memory_for_new_keys(count(batch)),
        Some(ids) if batch.table.record.packed => {
            let rows = batch.table.rows.load(Ordering::Relaxed);
            storage::packed_growth(ids, rows, count(batch))
        }
        Some(_) => 0,
    };
    keys.iter().map(of_batch).sum()
}

/// Keys of a batch that are neither stored nor in memory: at least those that are new.
fn not_stored(engine: &Engine, Keys { table, keys }: &Keys<'_>) -> u64 {
    let class = &engine.classes[table.class];
    let (log, cache) = (class.log.lock(), class.cache());
    let is_new = |key: &&u64| {
        log.contains(table.id(), **key) == Some(false)
            && cache.peek(table.locate(cache, **key), table.id(), **key, |_| ()).is_none()
    };
    keys.iter().filter(is_new).count() as u64
}
