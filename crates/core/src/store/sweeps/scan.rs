//! Scans: all written rows of a table, in batches, in bounded memory.
//!
//! Dense tables whose storage knows all their rows come in order of id, all others, and these where
//! that is asked for, in order of storage, by a sweep. Rows that miss the cache do not displace
//! others. Writing to the table ends its scans with an error; writing to others does not, but while
//! a sweep is open, segments that are freed are not used again.

use crate::config::TableId;
use crate::error::{Result, bail};
use crate::metrics::Timed;
use crate::row::RowLayout;
use crate::storage::{SlotSet, Sweep};
use crate::store::engine::Table;
use crate::store::verbs::direct::region_of;
use crate::store::verbs::rows::{Effect, Keys, RowOp, RowView};
use crate::store::{Inner, Store};
use std::sync::atomic::Ordering;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Pages of a sweep read at once.
const PAGES: usize = 256;
/// Rows between two reports of a digest's progress.
const ROWS_PER_REPORT: u64 = 16_384;

/// A scan of one table.
pub struct Scan {
    store: Store,
    table: TableId,
    changes: u64,
    layout: RowLayout,
    cursor: Cursor,
    /// Rows found and not yet given out: keys, then words of each.
    keys: Vec<u64>,
    words: Vec<f32>,
    given: usize,
}

enum Cursor {
    Dense { next: u64, end: u64 },
    Swept { class: usize, sweep: Box<dyn Sweep> },
}

impl Store {
    /// Begins a scan of all written rows. Dirty rows of a table that is not scanned in order of id
    /// are written to storage first, without a commit.
    ///
    /// *Errors*: as `get`; where rows are written `Full` too.
    pub fn scan(&self, table: TableId) -> Result<Scan> {
        let engine = self.inner.planned_engine()?;
        let found = self.inner.table_of(&engine, table)?;
        if engine.classes[found.class].is_direct {
            region_of(found)?;
        }
        let is_exact = || engine.classes[found.class].log.lock().is_exact(found.id());
        match found.record.dense_ids() {
            Some(end) if is_exact() => Ok(Scan::new(self, found, Cursor::Dense { next: 0, end })),
            _ => {
                drop(engine);
                self.scan_swept(table)
            }
        }
    }

    /// As `scan`, in order of storage for dense tables too: each page is read once, however rows
    /// lie. Dirty rows are written first.
    ///
    /// *Errors*: as `scan`.
    pub fn scan_stored(&self, table: TableId) -> Result<Scan> {
        let engine = self.inner.planned_engine()?;
        let found = self.inner.table_of(&engine, table)?;
        if engine.classes[found.class].is_direct {
            region_of(found)?;
        }
        drop(engine);
        self.scan_swept(table)
    }

    fn scan_swept(&self, table: TableId) -> Result<Scan> {
        let inner = &*self.inner;
        let engine = inner.exclusive()?;
        inner.forget_ended_scans(&engine);
        let found = inner.table_of(&engine, table)?;
        let class = &engine.classes[found.class];
        if class.unwritten_rows(&**class.log.lock()) > 0 {
            inner.reserve(&engine, &[])?;
            inner.poison_on_error(inner.flush_dirty(&engine, class))?;
        }
        let sweep = class.log.lock().sweep(Some(found.id()));
        Ok(Scan::new(self, found, Cursor::Swept { class: found.class, sweep }))
    }

    /// As `scan_stored`, of rows alone that lie in these slots of the log. No row is written first.
    pub(in crate::store) fn scan_slots(&self, table: TableId, slots: &SlotSet) -> Result<Scan> {
        let engine = self.inner.planned_engine()?;
        self.inner.forget_ended_scans(&engine);
        let found = self.inner.table_of(&engine, table)?;
        let sweep = engine.classes[found.class].log.lock().sweep_slots(found.id(), slots)?;
        Ok(Scan::new(self, found, Cursor::Swept { class: found.class, sweep }))
    }

    /// An order-free digest of all written rows, values and state: equal tables have equal
    /// digests, whatever the budget, the layout on disk and the history. `progress(done, all)`
    /// counts rows and may end it by an error.
    ///
    /// *Errors*: as `scan`, and what `progress` returns. *Blocking*: reads the table once.
    pub fn digest(
        &self,
        table: TableId,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<u64> {
        let all = self.len(table)?;
        let mut scan = self.scan(table)?;
        let width = scan.layout.row_words();
        let (mut digest, mut done, mut reported) = (0u64, 0, 0);
        progress(0, all)?;
        while scan.fill(1)? {
            for (i, key) in scan.keys[scan.given..].iter().enumerate() {
                let at = (scan.given + i) * width;
                let bytes: &[u8] = bytemuck::cast_slice(&scan.words[at..at + width]);
                digest = digest.wrapping_add(xxh3_64_with_seed(bytes, *key));
            }
            done += (scan.keys.len() - scan.given) as u64;
            scan.given = scan.keys.len();
            if done - reported >= ROWS_PER_REPORT {
                progress(done, all.max(done))?;
                reported = done;
            }
        }
        progress(done, done)?;
        Ok(digest)
    }
}

impl Scan {
    fn new(store: &Store, table: &Table, cursor: Cursor) -> Self {
        Self {
            store: store.clone(),
            table: TableId(table.id()),
            changes: table.changes.load(Ordering::Relaxed),
            layout: table.layout,
            cursor,
            keys: Vec::new(),
            words: Vec::new(),
            given: 0,
        }
    }

    /// Fills `keys` and the rows beside them, as many as fit, and returns how many; 0 at the end.
    ///
    /// *Shapes*: `keys (N,)`, `values (N, embedding_dim)`, `state (N, state_words)`. *Errors*:
    /// `Misuse` when the table was written to since the scan began; as `get`.
    pub fn next_batch(
        &mut self,
        keys: &mut [u64],
        values: &mut [f32],
        mut state: Option<&mut [f32]>,
    ) -> Result<usize> {
        let (layout, width) = (self.layout, self.layout.row_words());
        let (dim, state_words) = (layout.embedding_dim(), layout.state_words());
        let mut done = 0;
        while done < keys.len() && self.fill(keys.len() - done)? {
            let n = (keys.len() - done).min(self.keys.len() - self.given);
            for i in 0..n {
                let row = &self.words[(self.given + i) * width..][..width];
                keys[done + i] = self.keys[self.given + i];
                layout.read_values(row, &mut values[(done + i) * dim..][..dim]);
                if let Some(state) = state.as_deref_mut() {
                    let at = (done + i) * state_words;
                    state[at..at + state_words].copy_from_slice(layout.split(row).1);
                }
            }
            self.given += n;
            done += n;
        }
        Ok(done)
    }

    /// The next rows as they are stored: their keys, and the words of all. None at the end; at most
    /// `most`.
    pub(in crate::store) fn next_words(&mut self, most: usize) -> Result<(&[u64], &[f32])> {
        let begin = if self.fill(most)? { self.given } else { self.keys.len() };
        self.given = self.keys.len().min(begin + most);
        let (rows, width) = (begin..self.given, self.layout.row_words());
        Ok((&self.keys[rows.clone()], &self.words[rows.start * width..rows.end * width]))
    }

    /// Makes sure that rows are waiting to be given out; false at the end.
    fn fill(&mut self, want: usize) -> Result<bool> {
        while self.given == self.keys.len() {
            self.keys.clear();
            self.words.clear();
            self.given = 0;
            let store = self.store.clone();
            let _timed = Timed::new(&store.inner.metrics.verb_ns);
            let engine = store.inner.planned_engine()?;
            let table = store.inner.table_of(&engine, self.table)?;
            if table.changes.load(Ordering::Relaxed) != self.changes {
                bail!(
                    Misuse,
                    "table '{}' was written to during a scan; begin the scan again",
                    table.record.spec.name
                );
            }
            match &mut self.cursor {
                Cursor::Dense { next, end } => {
                    if next == end {
                        return Ok(false);
                    }
                    let upto = (*next + want.clamp(256, 16_384) as u64).min(*end);
                    let ids = *next..upto;
                    *next = upto;
                    let read = self.dense(&store.inner, &engine, table, ids);
                    store.inner.note_read();
                    store.inner.as_committed(read)?;
                }
                Cursor::Swept { class, sweep } => {
                    let (keys, words) = (&mut self.keys, &mut self.words);
                    let class = &engine.classes[*class];
                    let read = store.inner.sweep_on(class, &mut **sweep, PAGES, &mut |rows| {
                        for row in rows {
                            keys.push(row.key);
                            words.extend_from_slice(row.words);
                        }
                        Ok(())
                    });
                    if let Ok(false) = read {
                        return Ok(false);
                    }
                    store.inner.note_read();
                    let name = &table.record.spec.name;
                    let read = read.map_err(|error| error.context(format!("table '{name}'")));
                    store.inner.as_committed(read)?;
                }
            }
        }
        Ok(true)
    }

    fn dense(
        &mut self,
        inner: &Inner,
        engine: &crate::store::Engine,
        table: &Table,
        ids: std::ops::Range<u64>,
    ) -> Result<()> {
        let all: Vec<u64> = ids.collect();
        let class = &engine.classes[table.class];
        let written: Vec<u64> = {
            let (cache, log) = (class.cache(), class.log.lock());
            all.into_iter()
                .filter(|id| {
                    log.contains(table.id(), *id) == Some(true)
                        || cache.peek(table.locate(cache, *id), table.id(), *id, |r| r.is_dirty())
                            == Some(true)
                })
                .collect()
        };
        let width = self.layout.row_words();
        self.words.resize(written.len() * width, 0.0);
        let mut op = CopyOp { words: &mut self.words, width };
        inner.visit_rows(engine, &[Keys { table, keys: &written }], &mut op)?;
        self.keys = written;
        Ok(())
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        let Cursor::Swept { class, sweep } = &self.cursor else { return };
        let inner = &*self.store.inner;
        // The locks of a forked child may be those of threads that it does not have.
        if inner.check_process().is_err() {
            return;
        }
        inner.ended_scans.lock().push((*class, sweep.ticket()));
        // A garbage collector may run this within a verb of the same thread: never wait here.
        if let Some(engine) = inner.engine.try_read() {
            inner.forget_ended_scans(&engine);
        }
    }
}

impl Inner {
    /// Lets segments go that only scans which have ended still needed.
    pub(in crate::store) fn forget_ended_scans(&self, engine: &crate::store::Engine) {
        for (class, ticket) in std::mem::take(&mut *self.ended_scans.lock()) {
            if let Some(class) = engine.classes.get(class) {
                class.log.lock().end_read(ticket);
            }
        }
    }
}

struct CopyOp<'a> {
    words: &'a mut [f32],
    width: usize,
}

impl RowOp for CopyOp<'_> {
    fn visit(&mut self, _: usize, position: usize, row: RowView<'_>) -> Effect {
        self.words[position * self.width..][..self.width].copy_from_slice(row.words);
        Effect::Read
    }

    fn admits(&self) -> bool {
        false
    }
}
