//! Room on disk before use, for every row that may have to be written.

use crate::error::{ErrorKind, Result};
use crate::storage::Storage;
use crate::store::Inner;
use crate::store::commit::Asker;
use crate::store::engine::{Class, ClassPhase, Engine};
use crate::store::journal::JOURNAL_BYTES_PER_TABLE;
use crate::store::verbs::rows::Keys;
use std::sync::atomic::Ordering;

/// An epoch's deltas are so many times as long as the indexes before rows are written that need not
/// be, at most, and so long in any case.
const EPOCH_DELTAS: u64 = 2;
const EPOCH_DELTAS_MIN: u64 = 1 << 20;

impl Inner {
    /// Makes sure that a batch that changes these rows cannot run out of disk, and that its new
    /// keys fit the budget. `Full` and `Budget` come before anything changed. Each reserve is
    /// followed by `end_reservation` with the same keys.
    pub(in crate::store) fn reserve(&self, engine: &Engine, keys: &[Keys<'_>]) -> Result<()> {
        let reserved = self.reserve_all(engine, keys);
        reserved.inspect_err(|error| self.log_refused("a change of rows", error))
    }

    fn reserve_all(&self, engine: &Engine, keys: &[Keys<'_>]) -> Result<()> {
        self.prepare_writing()?;
        self.settle_room(engine)?;
        self.make_top_room(engine, keys)?;
        self.make_index_room(engine, keys)?;
        // Once for all tables of a class: taking the class lock may mean waiting for its holder.
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

    /// As [`reserve`](Self::reserve), for rows of one class that are stored and need not be
    /// written: false, and nothing is made ready, where that could take room from rows that must
    /// be, and where nobody has changed a row since the store was opened: the first change drops
    /// later commits.
    pub(in crate::store) fn reserve_spare(&self, engine: &Engine, keys: &[Keys<'_>]) -> bool {
        if !self.writing.load(Ordering::Acquire) || self.check_writable().is_err() {
            return false;
        }
        let number = keys[0].table.class;
        let (class, rows) = (&engine.classes[number], rows_of_class(keys, number));
        if !self.has_spare_room(engine, number, rows) || self.settle_room(engine).is_err() {
            return false;
        }
        class.reserved_rows.fetch_add(rows, Ordering::Relaxed);
        let reserved = self.reserve_class(engine, class);
        if reserved.is_err() {
            self.end_reservation(&engine.classes[..=number], keys);
        }
        reserved.is_ok()
    }

    /// Whether there is room for `rows` more of a class beside all rows of all caches, which may
    /// have to be written before a commit frees anything, and beside what the journal says of them.
    /// False, too, when an epoch has said much: its part of the journal stays until a commit.
    fn has_spare_room(&self, engine: &Engine, number: usize, rows: u64) -> bool {
        let (mut growth, mut deltas, mut free) = (0, 0, u64::MAX);
        for (i, class) in engine.classes.iter().enumerate() {
            let Some(tier) = &class.tier else { continue };
            let log = class.lock(&self.metrics);
            let beside = tier.cache.row_capacity() + log.rows_of_cut();
            let more = beside + if i == number { rows } else { 0 };
            let all = class.unwritten_rows(&**log) + more;
            growth += log.growth_for(all, self.room_for_upkeep(&**log));
            deltas += class.journal_bytes(&**log) + log.journal_bytes_for(more);
            free = free.min(self.most_bytes(&**log).saturating_sub(log.disk_bytes()));
        }
        let mut history = self.history.lock();
        let most = EPOCH_DELTAS * history.index_bytes.max(EPOCH_DELTAS_MIN);
        let needed = growth.saturating_add(history.journal().growth_for(deltas));
        needed <= free && history.epoch_deltas <= most
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
        let fits = fits.map_err(|error| self.advise(engine, error));
        fits.inspect_err(|error| self.log_refused("a delete", error))
    }

    /// Makes sure that the journal has room for the records of a new table and its class, beside
    /// all that is to come.
    pub(in crate::store) fn reserve_table(&self, engine: &Engine) -> Result<()> {
        let bytes = engine.journal_bytes() + JOURNAL_BYTES_PER_TABLE;
        let fits = self.reserve_to_change(&mut self.history.lock(), Asker::Table, bytes);
        let fits = fits.map_err(|error| self.advise(engine, error));
        fits.inspect_err(|error| self.log_refused("a table", error))
    }

    fn reserve_class(&self, engine: &Engine, class: &Class) -> Result<()> {
        let mut log = class.lock(&self.metrics);
        let rows = class.unwritten_rows(&**log);
        let growth = log.bytes_to_widen(rows);
        if growth > 0 {
            drop(log);
            // A plan leaves this to be taken from caches, for slot numbers of all widths.
            self.shrink_to(engine, growth, Engine::index_bytes_to_come)?;
            log = class.lock(&self.metrics);
            log.widen_indexes(rows)?;
        }
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
        // Sealing the pages when the class is closed takes room for rows from the next commit.
        let sealed = match class.phase() {
            ClassPhase::Captured => log.rows_of_cut(),
            _ => 0,
        };
        let rows = rows + sealed;
        let memory = log.memory().total();
        let grow = |log: &mut dyn Storage, grow| log.reserve(rows, spare, grow);
        let result = self.charge_growth(log, rows, spare, grow);
        match &result {
            Ok(()) => {
                self.history.lock().refused.accept(Asker::Rows(id));
                self.reserve_apart(log, rows, spare)?;
            }
            Err(error) if error.kind() == ErrorKind::Full => {
                // Those that were written before are on storage once it asks again.
                let asked = class.reserved_rows.load(Ordering::Relaxed) + sealed;
                self.note_refused_rows(id, log.lacking_bytes(rows, spare), asked);
            }
            Err(_) => {}
        }
        if log.memory().total() > memory {
            self.make_room_for_segments(engine, class, log)?;
        }
        result
    }

    /// Makes room in which rows of each stretch find their own segment, where nothing bounds the
    /// disk; what the device does not have is not missed.
    fn reserve_apart(&self, log: &mut dyn Storage, rows: u64, spare: u64) -> Result<()> {
        if self.options.max_disk_bytes.is_some() {
            return Ok(());
        }
        let before = log.disk_bytes();
        let reserved = log.reserve_apart(rows, spare);
        let grown = log.disk_bytes().wrapping_sub(before);
        self.rows_disk_bytes.fetch_add(grown, Ordering::Relaxed);
        match reserved {
            Err(error) if error.kind() == ErrorKind::Full => Ok(()),
            reserved => reserved,
        }
    }

    /// Makes room once more for what was reserved, after the log has more append points: rows of
    /// each may take a page of their own.
    pub(in crate::store) fn reserve_again(
        &self,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        let spare = self.room_for_upkeep(log);
        let rows = class.unwritten_rows(log) + log.rows_of_cut();
        self.charge_growth(log, rows, spare, |log, grow| log.reserve(rows, spare, grow))
    }

    /// Runs something that may grow a class's file for `rows` more rows and `spare` bytes. It is
    /// told by how many bytes it may grow. Its need is charged before it runs, so that nobody else
    /// takes that meanwhile; nothing, where there is less, or others would be refused for it.
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
}

/// Keys that belong to a class, given by its index.
fn rows_of_class(keys: &[Keys<'_>], class: usize) -> u64 {
    keys.iter()
        .filter(|batch| batch.table.class == class)
        .map(|batch| batch.keys.len() as u64)
        .sum()
}
