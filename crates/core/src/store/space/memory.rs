//! Room in memory before use: for indexes that grow, for what is deleted, for what is written.
//!
//! Three things take memory after a plan has divided it. A growing index takes it when new keys
//! come, tombstones when keys are deleted: verbs ask before anything changes. The index of the
//! newest rows of a storage that has a bottom takes it when rows are *written*, whoever does so: a
//! verb that needs their place, a commit, a read whose rows drive out dirty ones. So a caller that
//! is about to write asks, with the class in hand ([`Inner::make_room_to_write`]). Merges give that
//! memory back, and a way of a cache is taken where they cannot, or may not run now. Caches get
//! back what they gave when there is room again.

use crate::activation::{Branch, note};
use crate::cache::{Leaving, TakeWay};
use crate::config::StorageKind;
use crate::error::{Result, bail};
use crate::planted::{self, Bug};
use crate::storage::{self, Storage};
use crate::store::Inner;
use crate::store::engine::{Class, ClassPhase, Engine, Table};
use crate::store::memory::budget;
use crate::store::verbs::misses::write_to_leave;
use crate::store::verbs::rows::Keys;
use std::sync::atomic::Ordering;

/// Sets that give up a row between two looks at the room that it has to wait in.
const SHRINK_SETS: u32 = 64;

/// Whether the class that is in hand may write what waits, so that others can wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    MayBeWritten,
    /// The caller is about to do so itself.
    Stays,
}

impl Inner {
    /// Makes sure that a batch that makes these rows dirty can be written within the budget. If
    /// caches and merges cannot give enough, refuses it as `Budget`, before anything changed.
    pub(in crate::store) fn make_top_room(&self, engine: &Engine, keys: &[Keys<'_>]) -> Result<()> {
        for (at, class) in engine.classes.iter().enumerate() {
            // New keys of growing tables are asked for as such.
            let is_here =
                |batch: &&Keys<'_>| batch.table.class == at && batch.table.first.is_some();
            let of_class = || keys.iter().filter(is_here);
            let rows: u64 = of_class().map(|batch| batch.keys.len() as u64).sum();
            if rows == 0 || !class.record.storage.has_bottom() {
                continue;
            }
            let mut log = class.lock(&self.metrics);
            // Frozen pages take no rows in: all that is dirty stays above them.
            let beside = if class.has_units { 0 } else { class.unwritten_rows(&**log) };
            if self.find_room(engine, class, &mut **log, rows + beside, Waiting::MayBeWritten)? {
                continue;
            }
            // Looking every key up is for the last moment.
            let is_new = |batch: &Keys<'_>, key: &u64| !log.is_above(batch.table.id(), *key);
            let new = |batch: &Keys<'_>| batch.keys.iter().filter(|key| is_new(batch, key)).count();
            let rows = of_class().map(|batch| new(batch) as u64).sum::<u64>();
            let growth = class.memory_for_written(&**log, rows + beside);
            let used = engine.memory_with(class, &**log);
            if growth == 0 || used + growth <= engine.budget_bytes {
                continue;
            }
            drop(log);
            let enough = (used + used / 4).max(budget::enough(&engine.demands())) + growth;
            let enough = engine.spell(&self.options, enough);
            let way_out = match class.record.storage {
                StorageKind::Pages => "freeze the store again, which takes changed rows in",
                _ => "change fewer rows at once, commit in between",
            };
            bail!(
                Budget,
                "{rows} rows that are new among the newest take {growth} bytes of index, beside \
                 {used} bytes in use of memory={} that neither caches nor merges can give; nothing \
                 was changed; {way_out}, or reopen with at least memory={enough}",
                engine.budget_bytes,
            );
        }
        Ok(())
    }

    /// A growing index takes from the cache, one way of all sets at a time.
    pub(in crate::store) fn make_index_room(
        &self,
        engine: &Engine,
        keys: &[Keys<'_>],
    ) -> Result<()> {
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

    /// Takes memory for the tombstones of these keys from the cache, as for a growing index.
    /// `Budget` comes before anything changed.
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
        if fits && self.shrink_to(engine, growth, Engine::index_bytes_to_come)? {
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

    /// Makes sure that `growth` more bytes of the look-ahead window fit the budget, beside what
    /// rows that wait make indexes grow by; false when the caches cannot give them.
    pub(in crate::store) fn make_window_room(&self, engine: &Engine, growth: u64) -> Result<bool> {
        self.shrink_to(engine, growth, Engine::bytes_about_to_come)
    }

    /// Takes from caches until `growth` more bytes fit, and those to come; false when they have no
    /// more to give.
    pub(in crate::store) fn shrink_to(
        &self,
        engine: &Engine,
        growth: u64,
        to_come: fn(&Engine) -> u64,
    ) -> Result<bool> {
        while engine.memory().total() + to_come(engine) + growth > engine.budget_bytes {
            if !self.shrink_largest(engine)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets caches grow to what they had before others took of it, as far as the budget has room
    /// beside what indexes are about to take: a way that is taken again would have come for
    /// nothing.
    pub(in crate::store) fn return_cache_room(&self, engine: &Engine) {
        if !engine.planned || !engine.classes.iter().any(|class| class.cache().is_shrunk()) {
            return;
        }
        let to_come = engine.bytes_about_to_come();
        loop {
            let room = engine.budget_bytes.saturating_sub(engine.memory().total() + to_come);
            let mut fitting: Vec<&Class> =
                engine.classes.iter().filter(|class| class.cache().way_bytes() <= room).collect();
            // The one that was left fewest.
            fitting.sort_by_key(|class| class.cache().ways());
            if !fitting.iter().any(|class| class.cache().return_way().is_some()) {
                return;
            }
        }
    }

    /// Makes sure that `rows` rows of a class can be written within the budget, as far as merges
    /// and caches can give what is missing. A caller that writes rows calls it before, with the
    /// class in hand. Rows of the cache may change their slots, and some may be written; an error
    /// leaves memory and disk apart.
    pub(in crate::store) fn make_room_to_write(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        rows: u64,
    ) -> Result<()> {
        if planted::is(Bug::BudgetNotAsked) {
            return Ok(());
        }
        self.find_room(engine, class, log, rows, Waiting::Stays).map(drop)
    }

    /// As [`make_room_to_write`](Self::make_room_to_write); false where some is still missing.
    fn find_room(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        rows: u64,
        waiting: Waiting,
    ) -> Result<bool> {
        let Some(tier) = &class.tier else { return Ok(true) };
        if !class.record.storage.has_bottom() {
            return Ok(true);
        }
        // While a way is taken rows are written that lie in it, before its memory is there.
        let way = tier.cache.dirty_rows().min(u64::from(tier.cache.sets()));
        let lacks = |log: &dyn Storage| {
            let growth = class.memory_for_written(log, rows + way);
            engine.memory_with(class, log) + growth > engine.budget_bytes
        };
        while lacks(log) {
            // Rows stay in the cache where merges may run now.
            let gave = self.merge_in_hand(engine, class, log, true)?
                || self.shrink_in_hand(engine, class, log, waiting)?;
            if !gave && !self.merge_all_in_hand(engine, class, log)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes from caches what the table of segments has grown by, where the budget has no room for
    /// it: a look-ahead window leaves none.
    pub(in crate::store) fn make_room_for_segments(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<()> {
        while engine.planned
            && class.tier.is_some()
            && engine.memory_with(class, log) > engine.budget_bytes
            && self.shrink_in_hand(engine, class, log, Waiting::Stays)?
        {}
        Ok(())
    }

    /// Merges go on until the newest rows are fewer than usual; false where none can.
    fn merge_all_in_hand(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
    ) -> Result<bool> {
        // New keys of growing tables were asked for when they came.
        if !class.has_units || class.grows {
            return Ok(false);
        }
        log.press_units();
        self.merge_in_hand(engine, class, log, false)
    }

    /// Takes one way from the cache of the class in hand, or from that of another which nobody has;
    /// false where none can be had.
    fn shrink_in_hand(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        waiting: Waiting,
    ) -> Result<bool> {
        let mut classes: Vec<&Class> = engine.classes.iter().filter(|c| c.tier.is_some()).collect();
        classes.sort_by_key(|class| std::cmp::Reverse(class.cache().memory_bytes()));
        for other in classes {
            let gave = if std::ptr::eq(other, class) {
                self.take_way(engine, other, log, waiting)?
            } else {
                let Some(mut log) = other.log.try_lock() else { continue };
                self.take_way(engine, other, &mut **log, Waiting::Stays)?
            };
            if gave {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes one way from the cache that has most bytes; false when all are at their floor.
    fn shrink_largest(&self, engine: &Engine) -> Result<bool> {
        let mut classes: Vec<&Class> = engine.classes.iter().collect();
        classes.sort_by_key(|class| std::cmp::Reverse(class.cache().memory_bytes()));
        for class in classes {
            let mut log = class.log.lock();
            if self.take_way(engine, class, &mut **log, Waiting::MayBeWritten)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes one way from a cache; false when it is at its floor, or none of the rows that would
    /// have to leave can be written before those of the commit under way.
    fn take_way(
        &self,
        engine: &Engine,
        class: &Class,
        log: &mut dyn Storage,
        waiting: Waiting,
    ) -> Result<bool> {
        let cache = class.cache();
        // A caller that makes room for a victim of its own finds a place for it afterwards.
        let kept = if waiting == Waiting::Stays { 1 } else { 0 };
        if cache.giveable_bytes() == 0 {
            return Ok(false);
        }
        loop {
            let sets = SHRINK_SETS.min(cache.sets());
            if waiting == Waiting::MayBeWritten && log.room() < sets as usize && log.parked() > 0 {
                self.flush_now(engine, class, log)?;
            }
            // If no row can be parked, rows are written, except those that come after a commit.
            let (sets, leaving) = match (log.room().saturating_sub(kept), class.phase()) {
                (0, ClassPhase::None) => (sets, Leaving::Any),
                (0, _) => (1, Leaving::CleanOrCaptured),
                (room, _) => ((room as u32).min(sets), Leaving::Any),
            };
            let (mut evicted, mut written) = (0, Ok(()));
            let step = cache.take_way_step(sets, leaving, |victim| {
                evicted += 1;
                if written.is_ok() {
                    written = write_to_leave(log, class, victim, kept);
                }
            });
            self.metrics.evicted.fetch_add(evicted, Ordering::Relaxed);
            // Of a closed class nothing was written, and a commit would wait for itself.
            let written = written.and_then(|()| match class.phase() {
                ClassPhase::Closed => Ok(()),
                _ => self.journal_changes_if_many(class, log),
            });
            self.poison_on_error(written)?;
            match step {
                TakeWay::More => {}
                TakeWay::Released(_) => {
                    note(Branch::IndexTookWay);
                    return Ok(true);
                }
                TakeWay::Floor | TakeWay::Blocked => return Ok(false),
            }
        }
    }
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
