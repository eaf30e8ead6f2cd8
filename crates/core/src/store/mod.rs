//! A store: a directory with tables and one commit history.
//!
//! Only this level moves rows between DRAM and storage. [`Store`] is the public face; every verb
//! may be called from several threads at once. Verbs share the engine, a commit while it is
//! captured and a plan take it alone.

mod catalog;
mod cold;
mod commit;
mod engine;
mod events;
mod files;
mod folder;
mod journal;
mod memory;
mod open;
mod pins;
mod recovery;
mod refresh;
mod space;
mod stats;
mod sweeps;
mod tables;
#[cfg(test)]
mod tests;
mod unheld;
mod verbs;
mod window;

pub use commit::PendingCommit;
pub use files::place::check_place;
pub use memory::accounts::{BudgetParts, MemoryUse};
pub use stats::{ClassStats, CommitStats, DeviceStats, RowReads, Stats, UpkeepStats, WrittenBytes};
pub use sweeps::changes::{ChangedRows, Changes, Since, TableEvent};
pub use sweeps::check::{CheckReport, Problem, check};
pub use sweeps::copy::{CopyOptions, CopyReport, copy, copy_with};
pub use sweeps::files::{CommitFile, CommitFiles, finish_pull};
pub use sweeps::freeze::{
    CANDIDATES_MAX, FreezeError, FreezeOptions, FreezeReport, Frozen, PlannedPages, freeze,
    freeze_again,
};
pub use sweeps::reshard::{Part, ReshardOptions, reshard};
pub use sweeps::resize::{ResizeReport, ResizeTo, resize};
pub use sweeps::scan::Scan;
pub use verbs::views::RowViews;
pub use window::WindowStats;

use crate::config::{CommitInfo, StoreOptions, TableId, Uncommitted};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{File, Medium, OpenMode};
use crate::metrics::{Metrics, Timed};
use commit::left_held::LeftHeld;
use commit::{CommitGate, History};
use engine::{Engine, Table};
use files::holds::Hold;
use files::lock::WriterLock;
use files::pins::Pins;
use files::superblock::Superblock;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use unheld::Noted;

/// Opens a file that another file names. `Corrupt` when it is not there.
fn open_needed(medium: &dyn Medium, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
    medium.open(name, mode).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(
            ErrorKind::Corrupt,
            format!("{name} is missing; restore it from a copy of this store"),
        ),
        _ => error,
    })
}

/// True when there is a file of this name.
fn has_file(medium: &dyn Medium, name: &str) -> Result<bool> {
    Ok(medium.list(name)?.iter().any(|found| found == name))
}

/// An open store. Cloning shares it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Guarded>,
}

/// Keeps a forked child from freeing, closing or waiting for what its parent uses.
struct Guarded(Option<Inner>);

impl std::ops::Deref for Guarded {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        self.0.as_ref().expect("emptied only by drop")
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            std::mem::forget(self.0.take());
        } else if let Some(inner) = &self.0 {
            inner.window.stop();
            if let Some(engine) = inner.engine.try_read() {
                inner.abandon_units(&engine);
                if !engine.closed {
                    inner.log_closed(inner.uncommitted());
                }
            }
        }
    }
}

pub(crate) struct Inner {
    path: PathBuf,
    medium: Arc<dyn Medium>,
    options: StoreOptions,
    superblock: Superblock,
    /// Seed of all checksums of this store.
    seed: u64,
    /// Number of the term that begins with the first change.
    term: u64,
    pid: u32,
    /// A number that the commits of this opening have, and no others.
    writer: u64,
    /// Shared by verbs; taken alone to capture a commit, by plan, modify, delete and close.
    engine: RwLock<Engine>,
    /// Commits, the open journal and what is owed to it.
    history: Mutex<History>,
    /// Pinned commits; none in a reader, which looks when it is asked.
    pins: Mutex<Pins>,
    /// Pinned commits after the one that was gone back to, while the first change has not come,
    /// which they refuse. Taken after `history`.
    later_pins: Mutex<Pins>,
    /// Commits that readers held when this writer came, until they let go.
    left_held: Mutex<Vec<LeftHeld>>,
    /// Held by a thread that pins or unpins.
    pinning: Mutex<()>,
    commit_gate: CommitGate,
    metrics: Metrics,
    window: window::Window,
    scheduler: space::Scheduler,
    /// Limits of what it may have to log often.
    limits: events::Limits,
    /// Bytes of all files of rows.
    rows_disk_bytes: AtomicU64,
    /// Bytes that the device had free when somebody last looked.
    device_free_bytes: AtomicU64,
    /// True once what was opened is within the disk bound.
    room_is_settled: AtomicBool,
    /// True once the journal is open to append.
    writing: AtomicBool,
    /// Why the store refuses writes, once it does.
    poison: Mutex<Option<String>>,
    poisoned: AtomicBool,
    /// True from a commit that was refused because the folder is not in its place, until it is.
    is_displaced: AtomicBool,
    /// Class and ticket of scans that ended where nothing could be locked.
    ended_scans: Mutex<Vec<(usize, u64)>>,
    batches_since_commit: AtomicU64,
    rows_since_commit: AtomicU64,
    /// Number of the thread on which the function of a modify runs; 0 while none does.
    modifying: AtomicU64,
    /// A reader's claim on its commit, until close.
    hold: Mutex<Option<Hold>>,
    /// A reader's note of its commit, in case that is no longer kept.
    noted: Mutex<Option<Noted>>,
    /// True once a reader has no hold.
    unheld: AtomicBool,
    /// Bytes asked for and bytes of the budget, from when it was divided until somebody asks; and
    /// whether there are any, for those who ask at every verb.
    divided: Mutex<Option<(u64, u64)>>,
    was_divided: AtomicBool,
    /// Held while a reader moves to another commit.
    refreshing: Mutex<()>,
    /// Number of its moves so far. Changed with the engine alone, read while it is shared.
    moves: AtomicU64,
    /// Held while a table is made, with the measurement of the device that comes before.
    creating: Mutex<()>,
    /// Held until close or drop; dies with the process.
    lock: Mutex<Option<WriterLock>>,
}

/// A number for the calling thread, from 1.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

impl Inner {
    /// Refuses a process that was forked after the store was opened.
    fn check_process(&self) -> Result<()> {
        if self.pid != std::process::id() {
            bail!(
                Forked,
                "store {} was opened by process {}, this is its forked child {}: open the store in \
                 the child itself, read_only=True; a DataLoader worker should only pass keys on",
                self.path.display(),
                self.pid,
                std::process::id()
            );
        }
        Ok(())
    }

    /// Refuses a call that could wait for ever, before it takes any lock: one in a forked child,
    /// whose locks may be those of threads that it does not have, and one of the function that
    /// `modify` runs, on the same thread.
    fn check_call(&self) -> Result<()> {
        self.check_process()?;
        if self.is_inside_modify() {
            bail!(
                Misuse,
                "the function given to modify called the store that is calling it; read what it \
                 needs before, or write the rest after modify returns"
            );
        }
        Ok(())
    }

    fn is_inside_modify(&self) -> bool {
        // A thread sees its own store; what others have stored is not its number.
        match self.modifying.load(Ordering::Relaxed) {
            0 => false,
            thread => thread == thread_number(),
        }
    }

    /// Runs the function of a modify; calls of the store by it are refused.
    fn inside_modify<T>(&self, function: impl FnOnce() -> T) -> T {
        struct Leave<'a>(&'a AtomicU64);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Relaxed);
            }
        }
        // The caller has the engine alone, so there is one at a time.
        self.modifying.store(thread_number(), Ordering::Relaxed);
        let _leave = Leave(&self.modifying);
        function()
    }

    /// Refuses a store that was closed. The caller has no lock of the engine.
    fn check_open(&self) -> Result<()> {
        if self.engine.read().closed { Err(self.closed()) } else { Ok(()) }
    }

    fn closed(&self) -> Error {
        let message = format!("store {} is closed; open it again", self.path.display());
        Error::new(ErrorKind::Closed, message)
    }

    /// The engine for a verb that reads. Makes the plan first, if tables came since the last.
    fn planned_engine(&self) -> Result<RwLockReadGuard<'_, Engine>> {
        self.check_call()?;
        loop {
            let engine = self.engine.try_read().unwrap_or_else(|| {
                let _timed = Timed::new(&self.metrics.lock_wait_ns);
                self.engine.read()
            });
            if engine.closed {
                return Err(self.closed());
            }
            if engine.planned {
                return Ok(engine);
            }
            drop(engine);
            self.plan()?;
        }
    }

    /// The engine for a verb that changes rows.
    fn writable_engine(&self) -> Result<RwLockReadGuard<'_, Engine>> {
        self.check_writable()?;
        self.planned_engine()
    }

    /// The engine alone, with no commit under way. The caller holds no lock of the store.
    fn engine_alone(&self) -> RwLockWriteGuard<'_, Engine> {
        loop {
            #[cfg(any(test, feature = "testing"))]
            self.finish_by_hand();
            self.commit_gate.wait_until_over();
            let engine = self.engine.write();
            // A commit is captured by a thread that has the engine alone.
            if self.commit_gate.is_over() {
                return engine;
            }
        }
    }

    /// The engine alone, of an open store.
    fn exclusive(&self) -> Result<RwLockWriteGuard<'_, Engine>> {
        self.check_call()?;
        let engine = self.engine_alone();
        if engine.closed {
            return Err(self.closed());
        }
        Ok(engine)
    }

    /// The engine alone, planned, of a store that takes changes: for verbs beside which none runs.
    fn exclusive_to_change(&self) -> Result<RwLockWriteGuard<'_, Engine>> {
        drop(self.writable_engine()?);
        self.check_folder()?;
        let engine = self.exclusive()?;
        // A verb that ran until now may have found out that the store must refuse writes.
        self.check_writable()?;
        Ok(engine)
    }

    fn check_writable(&self) -> Result<()> {
        self.check_call()?;
        if self.options.read_only {
            bail!(Misuse, "store {} was opened read_only=True", self.path.display());
        }
        self.check_unpoisoned()?;
        self.check_in_place()
    }

    /// Fails after an error that has left memory and disk apart.
    fn check_unpoisoned(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            let why = self.poison.lock().clone().unwrap_or_default();
            bail!(
                Poisoned,
                "store {} refuses writes and commits after an error ({why}); close it and open it \
                 again: it will be at its last commit",
                self.path.display()
            );
        }
        Ok(())
    }

    /// After a write has failed, apparent damage is a page that this write did not store.
    fn after_failed_write(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Corrupt || !self.poisoned.load(Ordering::Acquire) {
            return error;
        }
        let why = self.poison.lock().clone().unwrap_or_default();
        Error::new(
            ErrorKind::Poisoned,
            format!(
                "a row cannot be read after an error ({why}); close store {} and open it again: it \
                 will be at its last commit ({})",
                self.path.display(),
                error.message()
            ),
        )
    }

    /// An error after rows changed leaves memory and disk apart: no write or commit any more.
    fn poison_on_error<T>(&self, result: Result<T>) -> Result<T> {
        let result = result.map_err(Error::after_changes);
        if let Err(error) = &result {
            self.poison.lock().get_or_insert_with(|| error.message().to_owned());
            // Pairs with the acquire in `check_writable`.
            if !self.poisoned.swap(true, Ordering::Release) {
                self.log_poisoned(error);
            }
        }
        result
    }

    /// Poisons the store when a panic passes by: counts and rows may be half changed then.
    fn poison_on_panic(&self) -> PoisonOnPanic<'_> {
        PoisonOnPanic(self)
    }

    fn table_of<'e>(&self, engine: &'e Engine, table: TableId) -> Result<&'e Table> {
        engine.table(table.0).ok_or_else(|| {
            let dropped = engine.dropped.iter().find(|record| record.id == table.0);
            let message = match dropped {
                Some(record) => format!(
                    "table '{}' was dropped; what names are in use Store.tables says",
                    record.spec.name
                ),
                None => format!("there is no table with number {}", table.0),
            };
            Error::new(ErrorKind::NotFound, message)
        })
    }

    fn note_batch(&self, rows: u64) {
        self.batches_since_commit.fetch_add(1, Ordering::Relaxed);
        self.rows_since_commit.fetch_add(rows, Ordering::Relaxed);
    }

    fn uncommitted(&self) -> Uncommitted {
        Uncommitted {
            batches: self.batches_since_commit.load(Ordering::Relaxed),
            rows: self.rows_since_commit.load(Ordering::Relaxed),
        }
    }
}

impl Store {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The options that it was opened with.
    pub fn options(&self) -> &StoreOptions {
        &self.inner.options
    }

    /// The batches and rows that a close without commit would lose.
    pub fn uncommitted(&self) -> Uncommitted {
        self.inner.uncommitted()
    }

    /// Refuses what every call refuses that can fail: use in a forked child, and by the function of
    /// a `modify` of this store on its thread. Takes no lock.
    ///
    /// *Errors*: `Forked`, `Misuse`.
    pub fn check_call(&self) -> Result<()> {
        self.inner.check_call()
    }

    /// Identifies this store among all others, its copies included. A folder that was copied by
    /// other means has the same id.
    pub fn id(&self) -> u128 {
        self.inner.superblock.uuid
    }

    /// The seed of initial rows.
    pub fn seed(&self) -> u64 {
        self.inner.superblock.seed
    }

    /// True while the commit at hand cannot be dropped by a writer. False for a reader that may not
    /// write its hold, or has lost it: once a writer drops the commit, what is not in memory is
    /// `CommitGone`.
    pub fn is_held(&self) -> bool {
        self.check_call().is_ok() && self.inner.is_held()
    }

    /// The commits that are kept, oldest first; none where [`check_call`](Self::check_call)
    /// refuses.
    pub fn commits(&self) -> Vec<CommitInfo> {
        if self.check_call().is_err() {
            return Vec::new();
        }
        self.inner.history.lock().commits()
    }

    /// The newest commit; none where [`check_call`](Self::check_call) refuses.
    pub fn last_commit(&self) -> Option<CommitInfo> {
        self.commits().pop()
    }

    /// The named byte strings of the newest commit; empty when there are none.
    ///
    /// *Errors*: `Corrupt` when they do not check, `CommitGone` of a reader without a hold.
    /// *Blocking*: reads a file.
    pub fn state(&self) -> Result<Vec<(String, Vec<u8>)>> {
        self.inner.check_call()?;
        loop {
            let last = self.inner.history.lock().last_state();
            let Some(state) = &last else { return Ok(Vec::new()) };
            let read = files::state::read(&*self.inner.medium, self.inner.seed, state);
            // A commit that was made meanwhile may have removed the file.
            if read.is_ok() || self.inner.history.lock().last_state() == last {
                let read = read.map_err(|damage| self.inner.with_whole_state(damage, state));
                return self.inner.as_committed(read);
            }
        }
    }

    /// Closes the store, and gives up its lock or hold. Changes since the last commit are
    /// discarded, and their number is returned. Later calls fail with `Closed`; a second close does
    /// nothing.
    pub fn close(&self) -> Result<Uncommitted> {
        self.inner.check_call()?;
        self.inner.window.stop();
        // The next process to open the store may measure the device, in a file of the same name.
        let _none = self.inner.creating.lock();
        let mut engine = self.inner.engine_alone();
        if engine.closed {
            return Ok(Uncommitted::default());
        }
        let lost = self.inner.uncommitted();
        self.inner.abandon_units(&engine);
        engine.closed = true;
        engine.classes.clear();
        engine.tables.clear();
        engine.dropped.clear();
        self.inner.history.lock().close();
        drop(self.inner.hold.lock().take());
        drop(self.inner.lock.lock().take());
        drop(engine);
        self.inner.log_closed(lost);
        Ok(lost)
    }
}

/// See [`Inner::poison_on_panic`].
struct PoisonOnPanic<'a>(&'a Inner);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = Error::new(ErrorKind::Poisoned, "a panic in the engine".to_owned());
            let _ = self.0.poison_on_error::<()>(Err(error));
        }
    }
}
