//! The contents of a store in memory: row classes with their cache and log, tables, and the plan
//! that divides the budget among them.
//!
//! # Threads
//!
//! The engine has no permanent threads except the two of a look-ahead window, which begin with the
//! first announcement and end with the store. A commit in the background has a thread until it is
//! over, and recovery has some while it runs. Verbs run on the caller's threads, several at once.
//! If io_uring is not available, a medium has up to 32 threads that call pread and pwrite
//! (`io/pread.rs`). Writes "in the background" are requests that the device processes while the
//! caller continues. In Python, there is one thread per store that reads into arrays of callers
//! (`ahead/prefetch.py`), and two per pipeline; they call verbs like any other.
//!
//! # Locks
//!
//! In the order in which they may be taken:
//!
//! * **pinning** (`store/mod.rs`, `Inner::pinning`): one pin or unpin at a time. I/O under it:
//!   reads and writes the index of a commit.
//! * **plan** (`store/window/mod.rs`, `Shared::plan`): the look-ahead window's knowledge of uses.
//!   Its thread waits for the lock; callers only try it. I/O under it: writes rows that caches
//!   evict.
//! * **creation** (`store/mod.rs`, `Inner::creating`): creating one table and its class at a time;
//!   dropping, renaming and growing tables. I/O under it: measures the device, while the engine is
//!   free.
//! * **engine** (`store/mod.rs`, `Inner::engine`): tables and plan. Shared by verbs and by a commit
//!   that is being completed; exclusive to capture one, and for plan, modify, delete, new tables
//!   and close. I/O under it: captures a commit (its state, the flush buffers).
//! * **writer** (`storage/pmem/region.rs`, `Region::write`): changes of a table on persistent
//!   memory, from reading to writing back; several are taken in the order of their tables, before
//!   all class locks. Readers never take it. I/O under it: syncs of a region that is a file on a
//!   disk.
//! * **unit** (`Class::unit`): the unit of upkeep of a class that runs without its lock
//!   (`store/space/upkeep.rs`). Everyone only tries it, except the thread that ends the store. It
//!   is held while a part of the unit runs; the window's reader holds it without the engine, which
//!   it never takes then. I/O under it: everything that a unit reads and writes.
//! * **reader pool** (`store/memory/pool.rs`): idle page readers. Held only to take or return one;
//!   a borrowed reader is not a lock, but is borrowed *before* the class lock. No I/O.
//! * **class** (`Class::log`): index, segments, flush buffer, writer and deltas of a row class. The
//!   holder of one class lock, or of history, only tries another. I/O under it: writes pages, and
//!   reads them for cleaning and splits, but not for misses.
//! * **commit under way** (`store/commit/pending.rs`, `CommitGate::phase`): the progress of a
//!   commit; nothing is taken under it. A thread that waits for its end holds no lock. A thread
//!   that waits for its record may hold engine (shared) and a class that is closed; before the
//!   record, the commit's thread never waits for those. No I/O.
//! * **history** (`store/mod.rs`, `Inner::history`): commits, the open journal. I/O under it:
//!   appends to the journal.
//! * **shrinking** (`cache/mod.rs`, `Cache::shrinking`): taking a way from a cache. No I/O.
//! * **set** (`cache/sets.rs`): metadata and rows of one set; spins, then yields. Never two at
//!   once. A gather copies without it and checks the set's version. I/O under it: while a commit
//!   writes a marked row, it rarely waits for a chunk of the log.
//! * **window** (`store/window/mod.rs`, `Shared::state`): what callers announce, begin and finish,
//!   and the next group; nothing is taken under it. No I/O.
//! * **moving** (`storage/pmem/region.rs`, `Region::moving`): keys of a region that move to their
//!   home bucket, and the begin of a sweep, during which none do. Only locks of the region's
//!   buckets are taken under it. I/O as for the writer.
//! * **permits** (`permits/mod.rs`, `Permits::state`): batches in flight and the rows they touch;
//!   nothing is taken under it. No I/O.
//! * **leaves**: the poison message; the pinned commits (`Inner::pins`); a store's lock and hold;
//!   jobs and replies of `io/pread.rs`; the simulated device.
//!
//! The thread that completes a commit takes the engine by `read_recursive`, because verbs may wait
//! for it while another thread waits to be alone. Python's GIL is released before any of these is
//! taken.
//!
//! Atomics other than relaxed counters: `Inner::poisoned`, `Class::phase`, `Inner::writing`
//! (release when set, acquire when read), `Class::reserved_rows` (release when a reservation ends,
//! acquire when read) and the lock word of a set.
//!
//! # Forks and processes
//!
//! A store remembers its process. A child gets `Forked` from every call before a lock is taken
//! (`Inner::check_call`, which also refuses calls of the function that `modify` runs) and frees
//! nothing (`Guarded`). Row arenas and I/O buffers are not inherited (`MADV_DONTFORK`). Static
//! state is atomic, so a child that is forked while others open and commit can open stores itself.
//! (In a Rust program one lock of the standard library remains: a child forked at the moment in
//! which another thread starts cannot start threads.)
//!
//! Between processes there are `lock` and the `hold-*` files (`docs/formats/head-and-holds.md`).
//! Locks go through `Medium::lock`; `io/lock.rs` has the descriptors that a child closes at the
//! fork. In Python, a process that reopens a store which it already has open to write gets the same
//! handle (`python/embedrock/store/registry.py`).

use super::journal::{ChangeOf, ClassRecord, JournalFile, TableRecord};
use super::memory::budget::{self, ClassPlan, WAYS, divide};
use super::memory::pool::Pool;
use super::space::UnitUnderWay;
use crate::cache::{Cache, CacheShape, DenseTable, Location, RowRef};
use crate::config::{StoreOptions, TableInfo};
use crate::error::Result;
use crate::hash::{mix, table_salt};
use crate::io::{Buffers, Medium, pow2_below};
use crate::metrics::{Metrics, Timed};
use crate::row::RowLayout;
use crate::storage::page::ENTRY_BYTES;
use crate::storage::{
    DirtyRow, PageReader, PageSource, Region, Residents, Storage, StorageRecovery,
};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The part of a look-ahead window that its reader of a class takes at most.
const WINDOW_PER_READER: u64 = 8;
/// Requests of the look-ahead window: so long at most, because many of a group's pages are
/// neighbours; so many in flight, because its threads get a core in turns; the memory of all, and
/// of how many pages that is at least. `docs/decisions/0009` has the measurements.
const AHEAD_REQUEST_BYTES: usize = 32 << 10;
/// Requests of ranges, and of stretches of a schedule, are longer and fewer, because their pages
/// are neighbours as a rule.
const LONG_REQUEST_BYTES: usize = 256 << 10;
const LONG_REQUESTS_MIN: usize = 8;
const AHEAD_DEPTH_MAX: usize = 256;
const AHEAD_BYTES: usize = 3 << 20;
const AHEAD_PAGES_MIN: usize = 96;
/// With memory for fewer requests the window shares the reader of the verbs.
const AHEAD_REQUESTS_MIN: usize = 16;

/// One table.
pub(super) struct Table {
    pub(super) record: TableRecord,
    /// Its class, as an index.
    pub(super) class: usize,
    pub(super) salt: u64,
    /// Running number of id 0 within its class's dense rows; `None` for a growing table.
    pub(super) first: Option<u64>,
    pub(super) layout: RowLayout,
    /// Its rows, of a table whose rows never are in the cache. `None` there at a commit that is
    /// not the newest.
    pub(super) region: Option<Arc<Region>>,
    /// Keys written and not deleted.
    pub(super) rows: AtomicU64,
    pub(super) updates: AtomicU64,
    /// Batches that changed it, to notice changes during a scan.
    pub(super) changes: AtomicU64,
}

impl Table {
    pub(super) fn new(record: TableRecord, class: usize, first: Option<u64>) -> Result<Self> {
        let dim = record.spec.embedding_dim;
        let layout =
            RowLayout::new(record.spec.dtype, dim, record.spec.optimizer.state_words(dim))?;
        let salt = table_salt(record.spec.hashed_name());
        Ok(Self {
            record,
            class,
            salt,
            first,
            layout,
            region: None,
            rows: AtomicU64::new(0),
            updates: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        })
    }

    pub(super) fn id(&self) -> u16 {
        self.record.id
    }

    /// Location of a key of this table in its class's cache.
    #[inline(always)]
    pub(super) fn locate(&self, cache: &Cache, key: u64) -> Location {
        match self.first {
            Some(first) => cache.locate_dense(first + key),
            None => cache.locate_hashed(mix(key, self.salt)),
        }
    }

    pub(super) fn info(&self) -> TableInfo {
        let mut spec = self.record.spec.clone();
        if let Some(region) = &self.region {
            spec.capacity = Some(region.capacity());
        }
        TableInfo {
            id: crate::config::TableId(self.record.id),
            spec,
            by_id: self.record.dense_ids().is_some(),
            row_bytes: self.layout.row_bytes(),
            state_words: self.layout.state_words(),
            rows: self.rows.load(Ordering::Relaxed),
            updates: self.updates.load(Ordering::Relaxed),
            medium: self.region.as_ref().map(|region| region.durability().to_string()),
        }
    }
}

/// The part of a class that a plan determines: it is built anew when tables are added.
pub(super) struct Tier {
    pub(super) cache: Cache,
    readers: Arc<Pool<PageReader>>,
    /// The look-ahead window's own reader, while it is needed and there is memory for one.
    ahead: Mutex<Option<Ahead>>,
    pub(super) plan: ClassPlan,
}

/// The look-ahead window's reader of a class, and its bytes.
pub(super) struct Ahead {
    bytes: u64,
    readers: Arc<Pool<PageReader>>,
}

impl Tier {
    /// The readers of pages for verbs.
    pub(super) fn readers(&self) -> Arc<Pool<PageReader>> {
        self.readers.clone()
    }

    /// The readers of pages ahead of verbs: the look-ahead window's own, or else those of verbs.
    pub(super) fn readers_ahead(&self) -> Arc<Pool<PageReader>> {
        let own = self.ahead.lock().as_ref().map(|ahead| ahead.readers.clone());
        own.unwrap_or_else(|| self.readers.clone())
    }
}

/// Stage of a class in the commit that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ClassPhase {
    /// No commit is under way, or it is recorded.
    None = 0,
    /// Rows of the commit may have to be written.
    Captured = 1,
    /// All are, and the next commit's may follow.
    Closed = 2,
}

impl ClassPhase {
    fn of(code: u8) -> Self {
        [Self::None, Self::Captured, Self::Closed][usize::from(code)]
    }
}

/// One row class.
pub(super) struct Class {
    pub(super) record: ClassRecord,
    /// Its pages, to be read without the class lock.
    pub(super) pages: Arc<dyn PageSource>,
    /// The class lock. Held while pages are written or cleaned, not while they are read.
    pub(super) log: Mutex<Box<dyn Storage>>,
    /// Whether its storage ever begins a unit of upkeep.
    pub(super) has_units: bool,
    /// Whether its storage wants rows in an order of its own.
    pub(super) sorts_writes: bool,
    /// Whether its rows are read and changed without cache and class lock.
    pub(super) is_direct: bool,
    /// The unit of upkeep that is under way. Only tried, before the class lock, except when the
    /// store ends; held while the unit runs, by the window's reader without the engine.
    pub(super) unit: Arc<Mutex<UnitUnderWay>>,
    /// `None` until the first plan.
    pub(super) tier: Option<Tier>,
    /// Stamp of the next change: batch by batch, position by position.
    pub(super) clock: AtomicU32,
    /// Stage of the class in the commit that is under way, a `ClassPhase`. Changed under the class
    /// lock, except for the way back from closed to none, once that commit is recorded.
    pub(super) phase: AtomicU8,
    /// Rows that running batches may still make dirty.
    pub(super) reserved_rows: AtomicU64,
    /// Rows of its dense tables, for `Table::first`.
    pub(super) dense_rows: u64,
    /// Whether a table of it grows.
    pub(super) grows: bool,
    /// Victims of a commit that were written since somebody asked for memory for such.
    pub(super) unasked: AtomicU32,
    /// Bytes of its storage, and those that it is sure to grow by, when somebody last looked.
    pub(super) seen_bytes: AtomicU64,
    /// Page sizes that it could have had, of a class that was not found in the store.
    pub(super) choices: Vec<usize>,
}

impl Class {
    /// The class alone; counts the time for which another thread had it.
    pub(super) fn lock(&self, metrics: &Metrics) -> MutexGuard<'_, Box<dyn Storage>> {
        self.log.try_lock().unwrap_or_else(|| {
            let _timed = Timed::new(&metrics.lock_wait_ns);
            self.log.lock()
        })
    }

    pub(super) fn new(record: ClassRecord, log: Box<dyn Storage>) -> Self {
        Self {
            is_direct: record.storage.is_direct(),
            record,
            pages: log.pages(),
            has_units: log.has_units(),
            sorts_writes: log.sorts_writes(),
            log: Mutex::new(log),
            unit: Arc::new(Mutex::new(UnitUnderWay::None)),
            tier: None,
            clock: AtomicU32::new(1),
            phase: AtomicU8::new(ClassPhase::None as u8),
            reserved_rows: AtomicU64::new(0),
            dense_rows: 0,
            grows: false,
            unasked: AtomicU32::new(0),
            seen_bytes: AtomicU64::new(0),
            choices: Vec::new(),
        }
    }

    pub(super) fn tier(&self) -> &Tier {
        self.tier.as_ref().expect("verbs run after a plan was made")
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.tier().cache
    }

    /// Rows that fill a page of a log, with its directory.
    pub(super) fn rows_per_page(&self) -> u64 {
        let (page, row) = (self.record.page_bytes as u64, self.record.row_bytes as u64);
        (page / (row + ENTRY_BYTES as u64)).max(1)
    }

    /// Requests that a look-ahead window has in flight and the buffers that it reads with, where
    /// the class has a `share` of the window's bytes; none when it takes those of the verbs. `long`
    /// ones are for ranges and stretches.
    fn ahead_buffers(&self, share: u64, long: bool) -> Option<(usize, Buffers)> {
        let page = self.record.page_bytes;
        let bytes = AHEAD_BYTES.max(AHEAD_PAGES_MIN * page);
        let bytes = bytes.min((share / WINDOW_PER_READER) as usize);
        (bytes >= AHEAD_REQUESTS_MIN * page).then(|| {
            let (requests, most) = match long {
                true => (LONG_REQUESTS_MIN, LONG_REQUEST_BYTES),
                false => (AHEAD_REQUESTS_MIN, AHEAD_REQUEST_BYTES),
            };
            let longest = pow2_below(bytes / requests).min(most).max(page);
            let buffers = Buffers::sharing(bytes, page, longest);
            let depth = AHEAD_DEPTH_MAX.min(buffers.pieces - buffers.pieces / 3);
            (depth, buffers)
        })
    }

    /// Bytes of the look-ahead window's reader: of the one that there is, or of one to be made,
    /// where the class has a `share` of the window's bytes.
    pub(super) fn ahead_bytes(&self, share: u64, long: bool) -> u64 {
        let bytes = |(depth, buffers): (usize, Buffers)| buffers.queue_bytes(depth) as u64;
        match self.held_ahead_bytes() {
            0 => self.ahead_buffers(share, long).map_or(0, bytes),
            held => held,
        }
    }

    /// Bytes of the look-ahead window's reader, where there is one.
    pub(super) fn held_ahead_bytes(&self) -> u64 {
        self.tier().ahead.lock().as_ref().map_or(0, |ahead| ahead.bytes)
    }

    /// Makes the look-ahead window's own reader, where it may have one.
    pub(super) fn read_ahead(
        &self,
        (share, long): (u64, bool),
        medium: &dyn Medium,
        merge: bool,
    ) -> Result<()> {
        let mut ahead = self.tier().ahead.lock();
        if ahead.is_none()
            && let Some((depth, buffers)) = self.ahead_buffers(share, long)
        {
            let bytes = buffers.queue_bytes(depth) as u64;
            let reader = self.reader(depth, buffers, medium, merge)?;
            let readers = vec![if long { reader.dense() } else { reader }];
            *ahead = Some(Ahead { bytes, readers: Arc::new(Pool::new(readers)) });
        }
        Ok(())
    }

    /// Gives the look-ahead window's own reader back, once the reads under way are done.
    pub(super) fn release_ahead(&self) {
        *self.tier().ahead.lock() = None;
    }

    /// Whether the look-ahead window has a reader of its own.
    pub(super) fn has_reader_ahead(&self) -> bool {
        self.tier().ahead.lock().is_some()
    }

    fn reader(
        &self,
        depth: usize,
        buffers: Buffers,
        medium: &dyn Medium,
        merge: bool,
    ) -> Result<PageReader> {
        let queue = medium.queue(depth, buffers)?;
        Ok(PageReader::new(queue, self.record.page_bytes, self.record.curve.as_ref(), merge))
    }

    /// Stamps for `n` changes.
    pub(super) fn stamps(&self, n: usize) -> u32 {
        self.clock.fetch_add(n as u32, Ordering::Relaxed)
    }

    pub(super) fn now(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Whether units of upkeep of it may run.
    pub(super) fn runs_units(&self) -> bool {
        self.has_units && self.tier.is_some()
    }

    /// Stage of this class in the commit that is under way.
    pub(super) fn phase(&self) -> ClassPhase {
        // Pairs with the releases where it is set.
        ClassPhase::of(self.phase.load(Ordering::Acquire))
    }

    /// Rows that storage must have room for: dirty ones, waiting ones, reserved ones.
    pub(super) fn unwritten_rows(&self, log: &dyn Storage) -> u64 {
        // Reserved ones first: they cover what a verb that goes on has not counted as dirty yet.
        // Pairs with the release in `end_reservation`.
        let reserved = self.reserved_rows.load(Ordering::Acquire);
        let dirty = self.tier.as_ref().map_or(0, |tier| tier.cache.dirty_rows());
        reserved + dirty + log.parked() as u64
    }

    /// Bytes in use that newest copies do not fill, of a class whose tables have `rows` rows; none
    /// while another thread has the class.
    pub(super) fn outdated_bytes(&self, rows: u64) -> u64 {
        self.log.try_lock().map_or(0, |log| {
            // Merges drop what lies below newer rows, and below deleted ones.
            let below = log.stats().newest_copies.saturating_sub(rows);
            log.outdated_bytes() + below * self.record.row_bytes as u64
        })
    }

    /// Bytes that its storage may need to find `keys` new keys of growing tables again.
    pub(super) fn memory_for_new_keys(&self, keys: u64) -> u64 {
        self.tier().plan.storage.memory_for_new_keys(keys)
    }

    /// Bytes that its storage may need to find `rows` rows where they are written, beyond what
    /// verbs have made room for.
    pub(super) fn memory_for_written(&self, log: &dyn Storage, rows: u64) -> u64 {
        let of = |tier: &Tier| {
            let now = log.memory().index_bytes;
            let ids = (!self.grows).then_some(self.dense_rows);
            tier.plan.storage.memory_for_written(rows, now, ids)
        };
        self.tier.as_ref().map_or(0, of)
    }

    /// Journal bytes of what is to come: the changes of unwritten rows, and those that wait.
    pub(super) fn journal_bytes(&self, log: &dyn Storage) -> u64 {
        log.journal_bytes_for(self.unwritten_rows(log)) + log.change_bytes() as u64
    }

    /// [`journal_bytes`](Self::journal_bytes) without the class lock: where another thread has it,
    /// as much is taken to wait as can.
    fn journal_bytes_at_most(&self) -> u64 {
        if let Some(log) = self.log.try_lock() {
            return self.journal_bytes(&**log);
        }
        // Promised rows first, as in `unwritten_rows`.
        let reserved = self.reserved_rows.load(Ordering::Acquire);
        // Rows are reserved by verbs alone, which need a plan.
        self.tier.as_ref().map_or(0, |tier| {
            tier.plan.storage.journal_bytes_at_most(reserved + tier.cache.dirty_rows())
        })
    }
}

/// Everything in memory.
#[derive(Default)]
pub(super) struct Engine {
    /// By id, rising.
    pub(super) tables: Vec<Table>,
    /// Records of tables that were dropped, whose ids are never given again.
    pub(super) dropped: Vec<TableRecord>,
    pub(super) classes: Vec<Class>,
    /// True when the tiers fit the tables that exist.
    pub(super) planned: bool,
    pub(super) budget_bytes: u64,
    /// Bytes that were asked for; less than the budget where a percentage is too little to work.
    pub(super) asked_bytes: u64,
    /// Bytes that the look-ahead window takes.
    pub(super) window_bytes: AtomicU64,
    pub(super) closed: bool,
}

impl Engine {
    /// The table with this id.
    pub(super) fn table(&self, id: u16) -> Option<&Table> {
        // Its place, where none was dropped.
        if let Some(table) = self.tables.get(usize::from(id)).filter(|table| table.id() == id) {
            return Some(table);
        }
        self.place_of(id).map(|at| &self.tables[at])
    }

    /// The table with this id, which is there.
    pub(super) fn known_table(&self, id: u16) -> &Table {
        self.table(id).expect("the table is there")
    }

    /// Index of the table with this id.
    pub(super) fn place_of(&self, id: u16) -> Option<usize> {
        self.tables.binary_search_by_key(&id, Table::id).ok()
    }

    /// Number of tables that there are and were, which is the id of the next one.
    pub(super) fn ids(&self) -> usize {
        self.tables.len() + self.dropped.len()
    }

    /// Records of the tables that there are and were, by id, rising.
    pub(super) fn table_records(&self) -> Vec<&TableRecord> {
        let all = self.tables.iter().map(|table| &table.record).chain(&self.dropped);
        let mut all: Vec<&TableRecord> = all.collect();
        all.sort_unstable_by_key(|record| record.id);
        all
    }

    /// The version of a journal file that begins with this catalog.
    pub(super) fn catalog_version(&self) -> u32 {
        let classes = self.classes.iter().map(|class| &class.record);
        JournalFile::version_for(classes, self.table_records().into_iter())
    }

    /// Takes the table at a place out, which its class has dropped.
    pub(super) fn drop_table(&mut self, at: usize) {
        let mut record = self.tables.remove(at).record;
        ChangeOf::Drop.apply(&mut record);
        self.dropped.push(record);
        self.count_dense_rows();
    }

    /// Gives ids of dense tables their running numbers anew. No cache knows them, so there is none
    /// until a plan is made; no row of them was dirty.
    pub(super) fn count_dense_rows(&mut self) {
        self.drop_tiers();
        for class in &mut self.classes {
            class.dense_rows = 0;
        }
        for table in &mut self.tables {
            let Some(rows) = table.record.dense_ids() else { continue };
            let class = &mut self.classes[table.class];
            table.first = Some(class.dense_rows);
            class.dense_rows += rows;
        }
        self.planned = false;
    }

    /// Journal bytes of what is to come of all classes, at most. Waits for no class lock.
    pub(super) fn journal_bytes(&self) -> u64 {
        self.classes.iter().map(Class::journal_bytes_at_most).sum()
    }

    /// Of all classes but one, which share the journal with it.
    pub(super) fn journal_bytes_beside(&self, class: &Class) -> u64 {
        let others = self.classes.iter().filter(|other| !std::ptr::eq(*other, class));
        others.map(Class::journal_bytes_at_most).sum()
    }

    /// Adds a table that its class has taken in.
    pub(super) fn add_table(&mut self, record: TableRecord) -> Result<()> {
        let class = self.classes.iter().position(|c| c.record.id == record.class);
        let class = class.expect("the class of a table is made before it");
        let first = record.dense_ids().map(|rows| {
            let first = self.classes[class].dense_rows;
            self.classes[class].dense_rows += rows;
            first
        });
        self.classes[class].grows |= first.is_none();
        let mut table = Table::new(record, class, first)?;
        table.region = self.classes[class].log.get_mut().direct(table.id());
        if let Some(region) = &table.region {
            table.rows.store(region.count(), Ordering::Relaxed);
        }
        self.tables.push(table);
        self.planned = false;
        Ok(())
    }

    /// The log of a class, of an engine that is taken alone.
    pub(super) fn log_of(&mut self, class: u16) -> &mut dyn Storage {
        &mut **self.classes[usize::from(class)].log.get_mut()
    }

    /// The storage of each class for a later commit, to be changed by what the journal says from an
    /// epoch on; commits before `oldest` are not kept. Indexes are copied afterwards.
    pub(super) fn go_on(&self, epoch: u64, oldest: u64) -> Result<Vec<Box<dyn StorageRecovery>>> {
        let classes = self.classes.iter().enumerate().map(|(at, class)| {
            let of_class = self.tables.iter().filter(|table| table.class == at);
            let facts: Vec<_> = of_class.map(|table| table.record.facts()).collect();
            class.log.lock().go_on(&facts, epoch, oldest)
        });
        classes.collect()
    }

    /// Copies a part of the index of each class; false when nothing is left.
    pub(super) fn copy_more(&self, logs: &mut [Box<dyn StorageRecovery>]) -> bool {
        let mut has_more = false;
        for (class, log) in self.classes.iter().zip(logs) {
            has_more |= class.log.lock().copy_more(&mut **log);
        }
        has_more
    }

    /// The caches of all classes, once there are any.
    fn caches(&self) -> impl Iterator<Item = &Cache> {
        self.classes.iter().filter_map(|class| class.tier.as_ref()).map(|tier| &tier.cache)
    }

    /// Notes from now on which rows come to the caches.
    pub(super) fn note_arrivals(&self) {
        self.caches().for_each(Cache::note_arrivals);
    }

    /// Whether it is known of all caches which rows have come since they were to be noted.
    pub(super) fn knows_arrivals(&self) -> bool {
        self.caches().all(Cache::knows_arrivals)
    }

    /// Takes the rows out of the caches that have come since the last call, and says how many.
    pub(super) fn forget_arrived_rows(&self) -> usize {
        let mut forgotten = 0;
        for cache in self.caches() {
            let arrived = cache.take_arrivals();
            arrived.iter().for_each(|(table, key)| self.forget_row(*table, *key));
            forgotten += arrived.len();
        }
        forgotten
    }

    /// Arrivals are not wanted any more.
    pub(super) fn forget_arrivals(&self) {
        self.caches().for_each(Cache::forget_arrivals);
    }

    /// Takes a row, whatever it holds, out of the cache.
    pub(super) fn forget_row(&self, table: u16, key: u64) {
        // A table that was dropped has no rows any more.
        let Some(table) = self.table(table) else { return };
        // One that has grown since has ids that this engine does not know.
        if table.record.dense_ids().is_some_and(|ids| key >= ids) {
            return;
        }
        if let Some(tier) = &self.classes[table.class].tier {
            let at = table.locate(&tier.cache, key);
            tier.cache.remove(at, table.id(), key, drop);
        }
    }

    /// Whether it has the tables of another engine, each with as many ids: their rows lie in the
    /// same places of caches.
    pub(super) fn has_tables_of(&self, other: &Engine) -> bool {
        let ids = |table: &Table| (table.id(), table.record.dense_ids());
        self.classes.len() == other.classes.len()
            && self.tables.iter().map(ids).eq(other.tables.iter().map(ids))
    }

    /// Takes over the caches of an engine with the same tables, unless the indexes have outgrown
    /// what its plan left for them: then the next verb divides the budget anew.
    pub(super) fn take_tiers(&mut self, old: &mut Engine) {
        if !old.planned {
            return;
        }
        for (class, old) in self.classes.iter_mut().zip(&mut old.classes) {
            class.tier = old.tier.take();
        }
        (self.budget_bytes, self.asked_bytes) = (old.budget_bytes, old.asked_bytes);
        let window = old.window_bytes.load(Ordering::Relaxed);
        self.window_bytes.store(window, Ordering::Relaxed);
        self.planned = self.memory().total() <= self.budget_bytes;
    }

    /// Drops caches and readers, and what the look-ahead window has in them.
    fn drop_tiers(&mut self) {
        let mut of_window = 0;
        for class in self.classes.iter_mut().filter(|class| class.tier.is_some()) {
            of_window += class.cache().next_use_bytes() + class.held_ahead_bytes();
            of_window += class.log.get_mut().stretch_bytes();
            class.tier = None;
        }
        let window = self.window_bytes.get_mut();
        *window = window.saturating_sub(of_window);
    }

    /// Divides the budget among the classes and builds their tiers. No row may be dirty. Of a
    /// budget that was divided before, what indexes have taken since is still to be taken from the
    /// new caches: those that there were had given it.
    pub(super) fn plan(&mut self, options: &StoreOptions, medium: &dyn Medium) -> Result<()> {
        let (asked, budget) = self.budget(options)?;
        let demands = self.demands();
        let to_divide = if self.budget_bytes == 0 {
            self.check_budget(options)?;
            budget
        } else {
            budget.max(budget::least(&demands))
        };
        let plans = divide(to_divide, &demands)?;
        self.drop_tiers();
        // Room for units of upkeep is a part of a disk bound, which their classes share.
        let sharing = self.classes.iter().filter(|class| class.has_units).count().max(1) as u64;
        for (i, (class, plan)) in self.classes.iter_mut().zip(plans).enumerate() {
            let shape = CacheShape {
                row_bytes: class.record.cached_row_bytes(),
                sets: plan.sets as u32,
                ways: WAYS,
                policy: options.policy,
                headers: plan.headers,
            };
            let cache = match plan.headers {
                true => Cache::new(shape)?,
                false => {
                    let dense = |t: &Table| Some(DenseTable { first: t.first?, table: t.id() });
                    let here = self.tables.iter().filter(|t| t.class == i);
                    Cache::of_dense_rows(shape, here.filter_map(dense).collect())?
                }
            };
            let mut readers = Vec::new();
            for _ in 0..plan.readers {
                let (depth, merge) = (plan.read_depth, options.merge_reads);
                readers.push(class.reader(depth, plan.read_buffers, medium, merge)?);
            }
            let log = class.log.get_mut();
            log.expect_bound(options.max_disk_bytes.map(|most| most / sharing));
            log.equip(plan.storage, medium)?;
            let (readers, ahead) = (Arc::new(Pool::new(readers)), Mutex::new(None));
            class.tier = Some(Tier { cache, readers, ahead, plan });
        }
        (self.budget_bytes, self.asked_bytes) = (budget, asked);
        self.planned = true;
        Ok(())
    }

    /// Keys of the tables of a class, given by its index, that are written and not deleted.
    pub(super) fn rows_of_class(&self, class: usize) -> u64 {
        let tables = self.tables.iter().filter(|table| table.class == class);
        tables.map(|table| table.rows.load(Ordering::Relaxed)).sum()
    }
}

/// The cache as the log sees it.
pub(super) struct CacheOfClass<'a> {
    pub(super) engine: &'a Engine,
    pub(super) class: &'a Class,
}

impl CacheOfClass<'_> {
    fn locate(&self, table: u16, key: u64) -> Location {
        let table = self.engine.table(table).expect("pages name tables that exist");
        table.locate(self.class.cache(), key)
    }
}

impl Residents for CacheOfClass<'_> {
    fn is_dirty(&self, table: u16, key: u64) -> bool {
        let at = self.locate(table, key);
        self.class.cache().peek(at, table, key, |row| row.is_dirty()).unwrap_or(false)
    }

    fn are_being_written(&self) -> bool {
        self.class.phase() == ClassPhase::Captured
    }

    fn moved(&self, table: u16, key: u64, old_origin: u32, new_origin: u32) {
        let at = self.locate(table, key);
        self.class.cache().set_origin(at, table, key, old_origin, new_origin);
    }
}

/// A dirty row of a cache as storage takes it.
#[inline]
pub(super) fn dirty_row(row: RowRef<'_>) -> DirtyRow<'_> {
    let RowRef { table, key, dirty_since, origin, stretch, words, .. } = row;
    DirtyRow { table, key, dirty_since, origin, stretch, words }
}

/// Lets a dirty victim wait to be written; a clean one is gone.
pub(super) fn park(log: &mut dyn Storage, victim: RowRef<'_>) {
    if victim.dirty {
        log.park(dirty_row(victim));
    }
}
