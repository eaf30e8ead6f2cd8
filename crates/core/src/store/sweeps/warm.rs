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
/// After so many moves of a reader to another commit, what is warm by then is enough.
const MOVES_MAX: usize = 4;
/// A cache that is so full is warm when hardly a row still finds room in its set.
const FULL_SHARE: f64 = 0.98;

/// Numbers of the rows of some pages, by outcome.
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
    /// If not all rows fit, the choice among them says nothing about their use; they are the first
    /// to leave.
    ///
    /// A reader that moves to another commit meanwhile begins again at that one, where rows that
    /// came already are passed over; after four moves it returns with what came.
    ///
    /// *Errors*: as `get`. *Blocking*: until done; other threads' verbs, commits and refreshes go
    /// on meanwhile, but disk that they release is not used again before it ends.
    pub fn warm(&self) -> Result<u64> {
        let inner = &*self.inner;
        let _timed = Timed::new(&inner.metrics.verb_ns);
        let mut pass = inner.begin_pass();
        let warmed = loop {
            match inner.warm_on(&mut pass, PAGES) {
                Ok(true) if pass.moves <= MOVES_MAX => {}
                Ok(_) => break Ok(pass.loaded),
                Err(error) => break Err(error),
            }
        };
        inner.end_pass(pass);
        inner.note_read();
        inner.as_committed(warmed)
    }
}

/// Progress of a warming.
#[derive(Default)]
pub(in crate::store) struct WarmPass {
    /// The class whose turn it is, and its sweep once it has begun.
    class: usize,
    sweep: Option<Box<dyn Sweep>>,
    /// Moves of the store when that began.
    at: u64,
    /// Number of times that it has begun again because of one.
    moves: usize,
    loaded: u64,
}

impl Inner {
    pub(in crate::store) fn begin_pass(&self) -> WarmPass {
        WarmPass { at: self.moves.load(Ordering::Relaxed), ..WarmPass::default() }
    }

    /// Brings the rows of `pages` more pages, and lets the engine go: a thread that waits to have
    /// it alone keeps all verbs waiting. False at the end.
    pub(in crate::store) fn warm_on(&self, pass: &mut WarmPass, pages: usize) -> Result<bool> {
        let engine = self.planned_engine()?;
        let at = self.moves.load(Ordering::Relaxed);
        if pass.at != at {
            // The sweep was one of the engine before, and so was its ticket.
            let (moves, loaded) = (pass.moves + 1, pass.loaded);
            *pass = WarmPass { at, moves, loaded, ..WarmPass::default() };
        }
        let Some(class) = engine.classes.get(pass.class) else { return Ok(false) };
        if class.is_direct {
            // Its rows never are in the cache.
            pass.class += 1;
            return Ok(true);
        }
        let sweep = pass.sweep.get_or_insert_with(|| class.lock(&self.metrics).sweep(None));
        let mut warmed = Warmed::default();
        let goes_on = self.warm_from(&engine, class, &mut **sweep, pages, &mut warmed)?;
        pass.loaded += warmed.loaded;
        if !goes_on {
            class.lock(&self.metrics).end_read(sweep.ticket());
            pass.sweep = None;
            pass.class += 1;
        }
        Ok(true)
    }

    /// Lets go of what a pass has open that ends early.
    fn end_pass(&self, pass: WarmPass) {
        let Some(sweep) = pass.sweep else { return };
        let engine = self.engine.read();
        if pass.at == self.moves.load(Ordering::Relaxed)
            && let Some(class) = engine.classes.get(pass.class)
        {
            class.lock(&self.metrics).end_read(sweep.ticket());
        }
    }

    /// False when the class has no more pages, or its cache no room.
    fn warm_from(
        &self,
        engine: &Engine,
        class: &Class,
        sweep: &mut dyn Sweep,
        pages: usize,
        warmed: &mut Warmed,
    ) -> Result<bool> {
        let cache = class.cache();
        if cache.resident_rows() >= cache.row_capacity() {
            return Ok(false);
        }
        let goes_on = self.sweep_on(class, sweep, pages, &mut |rows| {
            self.admit_rows(engine, class, rows, warmed)
        })?;
        let nearly_full = cache.row_capacity() as f64 * FULL_SHARE;
        let is_full = cache.resident_rows() as f64 >= nearly_full && warmed.hardly_any_came();
        Ok(goes_on && !is_full)
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
            let location = engine.known_table(id).locate(cache, key);
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
