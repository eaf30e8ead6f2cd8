//! Filling the cache from storage in the order of the file, which a device reads many times faster
//! than rows one by one.

use crate::error::Result;
use crate::metrics::Timed;
use crate::storage::{Sweep, SweptRow};
use crate::store::engine::{Class, Engine};
use crate::store::verbs::misses::write_or_park;
use crate::store::{Inner, Store};
use std::sync::atomic::Ordering;

/// Pages that are asked for with one bulk read.
const PAGES: usize = 2048;
/// A cache that is so full is warm when hardly a row still finds room in its set.
const FULL_SHARE: f64 = 0.98;

/// What became of the rows of some pages.
#[derive(Default)]
struct Warmed {
    /// They came to the cache.
    loaded: u64,
    /// They had been there.
    resident: u64,
    /// Their sets were full.
    refused: u64,
}

impl Warmed {
    /// True when of the rows that were not there hardly one in eight came, and they were many.
    fn hardly_any_came(&self) -> bool {
        let Self { loaded, resident, refused } = *self;
        refused > 8 * loaded && 8 * refused > loaded + resident + refused
    }
}

impl Store {
    /// Brings stored rows into the cache, page after page in the order of the file, until it is
    /// full or the file has no more. No row leaves for them. Returns how many were loaded.
    ///
    /// Which rows come when they do not all fit says nothing about their use; they are the first to
    /// leave.
    ///
    /// *Errors*: as `get`. *Blocking*: until done; other threads' verbs go on meanwhile.
    pub fn warm(&self) -> Result<u64> {
        let _timed = Timed::new(&self.inner.metrics.verb_ns);
        let engine = self.inner.planned_engine()?;
        let classes = engine.classes.iter();
        let warmed = classes.map(|class| self.inner.warm_class(&engine, class)).sum();
        self.inner.note_read();
        self.inner.as_committed(warmed)
    }
}

impl Inner {
    /// Returns how many rows were loaded.
    fn warm_class(&self, engine: &Engine, class: &Class) -> Result<u64> {
        if class.is_direct {
            // Its rows never are in the cache.
            return Ok(0);
        }
        let mut sweep = class.lock(&self.metrics).sweep(None);
        let warmed = self.warm_from(engine, class, &mut *sweep);
        class.lock(&self.metrics).end_read(sweep.ticket());
        warmed
    }

    fn warm_from(&self, engine: &Engine, class: &Class, sweep: &mut dyn Sweep) -> Result<u64> {
        let (cache, mut loaded) = (class.cache(), 0);
        while cache.resident_rows() < cache.row_capacity() {
            let mut warmed = Warmed::default();
            let goes_on = self.sweep_on(class, sweep, PAGES, &mut |rows| {
                self.admit_rows(engine, class, rows, &mut warmed)
            })?;
            loaded += warmed.loaded;
            let nearly_full = cache.row_capacity() as f64 * FULL_SHARE;
            let is_full = cache.resident_rows() as f64 >= nearly_full && warmed.hardly_any_came();
            if !goes_on || is_full {
                break;
            }
        }
        Ok(loaded)
    }

    /// Makes rows resident that are still the newest and whose sets have room.
    fn admit_rows(
        &self,
        engine: &Engine,
        class: &Class,
        rows: &mut dyn Iterator<Item = SweptRow<'_>>,
        warmed: &mut Warmed,
    ) -> Result<()> {
        let cache = class.cache();
        let mut log = class.lock(&self.metrics);
        let (mut loaded, mut evicted) = (0, 0);
        for SweptRow { table: id, key, place, words } in rows {
            if !log.is_newest(id, key, place) {
                continue;
            }
            let location = engine.tables[usize::from(id)].locate(cache, key);
            if cache.peek(location, id, key, |_| ()).is_some() {
                warmed.resident += 1;
                continue;
            }
            if !cache.has_room(location) {
                warmed.refused += 1;
                continue;
            }
            self.make_room(engine, class, &mut **log)?;
            let log = &mut *log;
            let mut parked = Ok(());
            cache.admit(
                location,
                id,
                key,
                place,
                |row, fresh| {
                    if fresh {
                        row.words.copy_from_slice(words);
                        loaded += 1;
                    }
                },
                |victim| {
                    // Another thread has taken the room.
                    evicted += 1;
                    parked = write_or_park(&mut **log, class, victim);
                },
            );
            self.poison_on_error(parked)?;
        }
        warmed.loaded += loaded;
        self.metrics.loaded.fetch_add(loaded, Ordering::Relaxed);
        self.metrics.evicted.fetch_add(evicted, Ordering::Relaxed);
        Ok(())
    }
}
