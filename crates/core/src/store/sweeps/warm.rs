//! Filling the cache from storage in the order of the file, which a device reads many times faster
//! than rows one by one.

use crate::error::Result;
use crate::metrics::Timed;
use crate::storage::PageAddress;
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
        let classes = engine.classes.iter().enumerate();
        let warmed =
            classes.map(|(number, class)| self.inner.warm_class(&engine, number, class)).sum();
        self.inner.note_read();
        self.inner.as_committed(warmed)
    }
}

impl Inner {
    /// Returns how many rows were loaded, as `warm_pages` does.
    fn warm_class(&self, engine: &Engine, number: usize, class: &Class) -> Result<u64> {
        let per_page = class.layout.rows_per_page as u32;
        let (ticket, wanted) = {
            let mut log = class.lock(&self.metrics);
            // A bit for each page that has the newest copy of a row.
            let mut wanted: Vec<u64> = Vec::new();
            for table in engine.tables.iter().filter(|table| table.class == number) {
                for slot in log.index(table.id()).slots() {
                    let (word, bit) = ((slot / per_page / 64) as usize, slot / per_page % 64);
                    if wanted.len() <= word {
                        wanted.resize(word + 1, 0);
                    }
                    wanted[word] |= 1 << bit;
                }
            }
            (log.segments.begin_read(), wanted)
        };
        let pages = (0..).zip(&wanted).flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        });
        let warmed = self.warm_pages(engine, number, class, pages);
        class.lock(&self.metrics).segments.end_read(ticket);
        warmed
    }

    fn warm_pages(
        &self,
        engine: &Engine,
        number: usize,
        class: &Class,
        mut pages: impl Iterator<Item = u32>,
    ) -> Result<u64> {
        let per_page = class.layout.rows_per_page as u32;
        let (cache, mut loaded) = (class.cache(), 0);
        let mut some = Vec::with_capacity(PAGES);
        while cache.resident_rows() < cache.row_capacity() {
            some.clear();
            some.extend(pages.by_ref().take(PAGES));
            if some.is_empty() {
                break;
            }
            {
                // Such a page may not have reached the device yet.
                let log = class.lock(&self.metrics);
                some.retain(|page| log.page_in_memory(page * per_page).is_none());
            }
            let source = class.lock(&self.metrics).pages();
            let some: Vec<_> =
                some.iter().map(|page| PageAddress { file: 0, page: *page }).collect();
            let mut warmed = Warmed::default();
            let read = class.tier().readers().with(|reader| {
                reader.read(&*source, &some, &mut |page, bytes| {
                    self.admit_page(engine, number, class, page.page, bytes, &mut warmed)
                })
            });
            let report = read.map_err(|error| self.after_failed_write(error))?;
            self.metrics.add_read(&report);
            loaded += warmed.loaded;
            let nearly_full = cache.row_capacity() as f64 * FULL_SHARE;
            if cache.resident_rows() as f64 >= nearly_full && warmed.hardly_any_came() {
                break;
            }
        }
        Ok(loaded)
    }

    /// Makes the rows of a page resident whose newest copies it has and whose sets have room.
    fn admit_page(
        &self,
        engine: &Engine,
        number: usize,
        class: &Class,
        page: u32,
        bytes: &[u8],
        warmed: &mut Warmed,
    ) -> Result<()> {
        let (layout, cache) = (&class.layout, class.cache());
        let mut log = class.lock(&self.metrics);
        log.verify_sequence(bytes, page)?;
        let (mut loaded, mut evicted) = (0, 0);
        for at in 0..layout.rows_per_page {
            let slot = page * layout.rows_per_page as u32 + at as u32;
            let (id, key) = layout.entry(bytes, at);
            let table = engine.tables.get(usize::from(id)).filter(|table| table.class == number);
            let Some(table) = table else { continue };
            let in_range = table.record.spec.num_embeddings.is_none_or(|rows| key < rows);
            if !in_range
                || !log.index(id).is_newest(key, slot)
                || log.buffer.find(id, key).is_some()
            {
                continue;
            }
            let location = table.locate(cache, key);
            if cache.peek(location, id, key, |_| ()).is_some() {
                warmed.resident += 1;
                continue;
            }
            if !cache.has_room(location) {
                warmed.refused += 1;
                continue;
            }
            self.make_room(engine, class, &mut log)?;
            let log = &mut *log;
            let mut parked = Ok(());
            cache.admit(
                location,
                id,
                key,
                slot,
                |row, fresh| {
                    if fresh {
                        row.words.copy_from_slice(layout.row(bytes, at));
                        loaded += 1;
                    }
                },
                |victim| {
                    // Another thread has taken the room.
                    evicted += 1;
                    parked = write_or_park(log, class, victim);
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
