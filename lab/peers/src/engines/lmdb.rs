//! LMDB: a copy-on-write B-tree in a shared mapping. Its cache is the kernel's page cache.
//!
//! Tuned as its documentation says for speed without durability: no read-ahead, a writable map, no
//! sync, integer keys, keys in order through one cursor, values written straight into their page.
//! A batch is one write transaction. LMDB reads a page when it is touched, one at a time per
//! thread, so several threads, each with a snapshot of its own, read parts of a batch.
#![expect(unsafe_code, reason = "the binding is LMDB's C interface as it is")]

use std::ffi::{CStr, CString};
use std::os::raw::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

use lmdb_master_sys as ffi;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Engine, Figures, Kind, Purpose};
use crate::crew::{Crew, Reader};
use crate::error::{Doing, Error, Result};
use crate::settings::{Mode, Settings};
use crate::sorted::Sorted;
use crate::sys;

pub(super) const KIND: Kind = Kind {
    name: "lmdb",
    version,
    absent: || None,
    defaults: |mode| serde_json::to_value(Options::of(mode)).doing(|| "lmdb: options".into()),
    open: |settings, purpose| Ok(Box::new(Lmdb::open(settings, purpose)?)),
    keeps_rows: true,
    makes: &["data.mdb", "lock.mdb"],
};

/// Bytes of map beyond what the rows need: free pages of the last transactions, branches.
const MAP_SLACK_BYTES: u64 = 1 << 30;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Options {
    /// Threads that read parts of a batch, each from its own snapshot; 1 reads through the write
    /// transaction.
    threads: usize,
    /// Keys of a part that one thread reads.
    piece_keys: usize,
    /// MDB_WRITEMAP | MDB_MAPASYNC: change pages in the map instead of copies in memory.
    write_map: bool,
    /// Batches of one write transaction.
    batches_per_transaction: usize,
}

impl Options {
    fn of(mode: Mode) -> Self {
        let (threads, piece_keys) = if mode.writes() { (16, 64) } else { (64, 32) };
        Self { threads, piece_keys, write_map: true, batches_per_transaction: 1 }
    }
}

fn version() -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: LMDB writes three integers to places that are such, and returns a constant.
    unsafe { ffi::mdb_version(&raw mut major, &raw mut minor, &raw mut patch) };
    format!("LMDB {major}.{minor}.{patch}")
}

fn check(code: c_int, what: &str) -> Result<()> {
    if code == ffi::MDB_SUCCESS {
        return Ok(());
    }
    // SAFETY: LMDB returns a constant or a static buffer, ended by zero, for every code.
    let text = unsafe { CStr::from_ptr(ffi::mdb_strerror(code)) };
    Err(Error::new(format!("lmdb: {what}: {}", text.to_string_lossy())))
}

/// An open environment with its one database.
struct Environment {
    env: *mut ffi::MDB_env,
    database: ffi::MDB_dbi,
}

// SAFETY: LMDB's environments may be used by many threads at once.
unsafe impl Send for Environment {}
// SAFETY: as above.
unsafe impl Sync for Environment {}

impl Drop for Environment {
    fn drop(&mut self) {
        // SAFETY: transactions hold an `Arc` of this, so none is left.
        unsafe { ffi::mdb_env_close(self.env) };
    }
}

impl Environment {
    fn open(settings: &Settings, options: &Options) -> Result<Arc<Self>> {
        let path = settings.place.to_string_lossy().into_owned();
        let path = CString::new(path).doing(|| "lmdb: place".into())?;
        let mut flags = ffi::MDB_NORDAHEAD | ffi::MDB_NOSYNC | ffi::MDB_NOMETASYNC;
        flags |= ffi::MDB_NOTLS | ffi::MDB_NOMEMINIT;
        if options.write_map {
            flags |= ffi::MDB_WRITEMAP | ffi::MDB_MAPASYNC;
        }
        // Every row may have two copies, of which the older is free for the transaction after next.
        let map = 4 * settings.rows * (settings.row_bytes() as u64 + 32) + MAP_SLACK_BYTES;
        let map = map as usize / 4096 * 4096;
        let readers = options.threads as c_uint + 1;
        let mut env = ptr::null_mut();
        // SAFETY: LMDB writes a new environment's address, which is closed by `drop` even if
        // opening fails, and is used by no other thread yet; the path is ended by zero.
        unsafe {
            check(ffi::mdb_env_create(&raw mut env), "new environment")?;
            let mut environment = Self { env, database: 0 };
            check(ffi::mdb_env_set_mapsize(env, map), "size of the map")?;
            check(ffi::mdb_env_set_maxreaders(env, readers), "number of readers")?;
            check(ffi::mdb_env_open(env, path.as_ptr(), flags, 0o644), "opening")?;
            let mut transaction = ptr::null_mut();
            check(
                ffi::mdb_txn_begin(env, ptr::null_mut(), 0, &raw mut transaction),
                "first transaction",
            )?;
            let flags = ffi::MDB_INTEGERKEY | ffi::MDB_CREATE;
            let database = &raw mut environment.database;
            let opened = ffi::mdb_dbi_open(transaction, ptr::null(), flags, database);
            check(ffi::mdb_txn_commit(transaction), "first transaction")?;
            check(opened, "database")?;
            Ok(Arc::new(environment))
        }
    }

    /// Writes everything to the device.
    fn sync(&self) -> Result<()> {
        // SAFETY: the environment is open.
        check(unsafe { ffi::mdb_env_sync(self.env, 1) }, "sync")
    }
}

/// A transaction with a cursor. It ends, uncommitted, when dropped.
struct Transaction {
    environment: Arc<Environment>,
    transaction: *mut ffi::MDB_txn,
    cursor: *mut ffi::MDB_cursor,
}

// SAFETY: with MDB_NOTLS a read transaction belongs to no thread; write transactions stay with the
// engine, which is not `Send`.
unsafe impl Send for Transaction {}

impl Transaction {
    fn begin(environment: &Arc<Environment>, writes: bool) -> Result<Self> {
        let flags = if writes { 0 } else { ffi::MDB_RDONLY };
        let (mut transaction, mut cursor) = (ptr::null_mut(), ptr::null_mut());
        let (env, database) = (environment.env, environment.database);
        // SAFETY: environment and database are open; LMDB writes addresses to places for such, and
        // the transaction is owned by the value returned, or aborted.
        unsafe {
            let begun = ffi::mdb_txn_begin(env, ptr::null_mut(), flags, &raw mut transaction);
            check(begun, "transaction")?;
            let opened = ffi::mdb_cursor_open(transaction, database, &raw mut cursor);
            if opened != ffi::MDB_SUCCESS {
                ffi::mdb_txn_abort(transaction);
            }
            check(opened, "cursor")?;
        }
        Ok(Self { environment: Arc::clone(environment), transaction, cursor })
    }

    /// A read transaction moves on to the newest snapshot.
    fn renew(&mut self) -> Result<()> {
        // SAFETY: this is a read transaction that is open, and its cursor.
        unsafe {
            ffi::mdb_txn_reset(self.transaction);
            check(ffi::mdb_txn_renew(self.transaction), "new snapshot")?;
            check(ffi::mdb_cursor_renew(self.transaction, self.cursor), "cursor")
        }
    }

    fn commit(mut self) -> Result<()> {
        let transaction = std::mem::replace(&mut self.transaction, ptr::null_mut());
        // SAFETY: both are open; the transaction is not used after this, as `drop` sees its null.
        unsafe {
            ffi::mdb_cursor_close(std::mem::replace(&mut self.cursor, ptr::null_mut()));
            check(ffi::mdb_txn_commit(transaction), "commit")
        }
    }

    /// The bytes of the row of `key`, and whether there are any.
    fn get(&mut self, key: u64, row: &mut [f32]) -> Result<()> {
        let mut name = value_of(&key);
        let mut data = ffi::MDB_val { mv_size: 0, mv_data: ptr::null_mut() };
        let set = ffi::MDB_SET;
        // SAFETY: the cursor is open; key and data outlive the call.
        let code = unsafe { ffi::mdb_cursor_get(self.cursor, &raw mut name, &raw mut data, set) };
        if code == ffi::MDB_NOTFOUND {
            row.fill(f32::NAN);
            return Ok(());
        }
        check(code, "reading")?;
        if data.mv_size != size_of_val(row) {
            let (found, wanted) = (data.mv_size, size_of_val(row));
            return Err(Error::new(format!(
                "lmdb: row of key {key} has {found} bytes, expected {wanted}"
            )));
        }
        // SAFETY: LMDB says that `mv_size` bytes lie there until the next write; they are copied
        // as bytes, since rows are aligned to 2 only.
        unsafe {
            let to = row.as_mut_ptr().cast::<u8>();
            ptr::copy_nonoverlapping(data.mv_data.cast::<u8>(), to, data.mv_size);
        }
        Ok(())
    }

    /// Writes the row of `key` into the place that LMDB reserves for it.
    fn put(&mut self, key: u64, row: &[f32], flags: c_uint) -> Result<()> {
        let mut name = value_of(&key);
        let mut data = ffi::MDB_val { mv_size: size_of_val(row), mv_data: ptr::null_mut() };
        let flags = flags | ffi::MDB_RESERVE;
        // SAFETY: the cursor is open, in a write transaction; key and data outlive the call.
        let code = unsafe { ffi::mdb_cursor_put(self.cursor, &raw mut name, &raw mut data, flags) };
        check(code, "writing")?;
        // SAFETY: LMDB reserved `mv_size` bytes there, as many as the row has.
        unsafe {
            let from = row.as_ptr().cast::<u8>();
            ptr::copy_nonoverlapping(from, data.mv_data.cast::<u8>(), size_of_val(row));
        }
        Ok(())
    }
}

fn value_of(key: &u64) -> ffi::MDB_val {
    ffi::MDB_val { mv_size: size_of::<u64>(), mv_data: ptr::from_ref(key).cast_mut().cast() }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // SAFETY: what is not null is open; a read transaction's cursor has to be closed before.
        unsafe {
            if !self.cursor.is_null() {
                ffi::mdb_cursor_close(self.cursor);
            }
            if !self.transaction.is_null() {
                ffi::mdb_txn_abort(self.transaction);
            }
        }
        debug_assert!(!self.environment.env.is_null());
    }
}

impl Reader for Transaction {
    fn read(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        self.renew()?;
        let words = rows.len() / keys.len().max(1);
        let mut pairs = keys.iter().zip(rows.chunks_exact_mut(words.max(1)));
        pairs.try_for_each(|(&key, row)| self.get(key, row))
    }
}

struct Lmdb {
    // Transactions come first: they end before the environment is closed.
    writer: Option<Transaction>,
    crew: Option<Crew<Transaction>>,
    environment: Arc<Environment>,
    options: Options,
    purpose: Purpose,
    words: usize,
    sorted: Sorted,
    /// Rows are written that were not read, so that their pages may not be in memory.
    blind: bool,
    scratch: Vec<f32>,
    /// Batches in the open write transaction.
    batches: usize,
    faults_before: u64,
}

impl Lmdb {
    fn open(settings: &Settings, purpose: Purpose) -> Result<Self> {
        let options = settings.options(Options::of(settings.mode))?;
        if options.threads > 1 && options.batches_per_transaction > 1 {
            return Err(settings.wrong(
                "threads read what is committed, expected batches_per_transaction 1".into(),
            ));
        }
        let environment = Environment::open(settings, &options)?;
        let snapshots = purpose == Purpose::Run && (options.threads > 1 || !settings.mode.writes());
        let crew = if snapshots {
            let readers = (0..options.threads).map(|_| Transaction::begin(&environment, false));
            Some(Crew::new(readers.collect::<Result<_>>()?, options.piece_keys)?)
        } else {
            None
        };
        Ok(Self {
            writer: None,
            crew,
            environment,
            options,
            purpose,
            words: settings.row_words(),
            sorted: Sorted::default(),
            blind: settings.mode.writes_blindly(),
            scratch: Vec::new(),
            batches: 0,
            faults_before: sys::major_faults(),
        })
    }

    fn writer(&mut self) -> Result<&mut Transaction> {
        if self.writer.is_none() {
            self.writer = Some(Transaction::begin(&self.environment, true)?);
        }
        self.writer.as_mut().ok_or_else(|| Error::new("lmdb: no transaction"))
    }
}

impl Engine for Lmdb {
    fn get_batch(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        let words = self.words;
        self.sorted.set(keys);
        if let Some(crew) = &mut self.crew {
            return crew.get(&self.sorted, words, rows);
        }
        self.writer()?;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let mut outcome = Ok(());
        self.sorted.gather(words, rows, |key, row| {
            if outcome.is_ok() {
                outcome = writer.get(key, row);
            }
        });
        outcome
    }

    fn put_batch(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        let words = self.words;
        if self.blind
            && let Some(crew) = &mut self.crew
        {
            // Brings the pages into memory side by side; writing alone would wait for each.
            self.sorted.set(keys);
            self.scratch.resize(rows.len(), 0.0);
            crew.get(&self.sorted, words, &mut self.scratch)?;
        }
        let flags = if self.purpose == Purpose::Load { ffi::MDB_APPEND } else { 0 };
        self.sorted.set(keys);
        self.writer()?;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        self.sorted.rows(words, rows).try_for_each(|(key, row)| writer.put(key, row, flags))
    }

    fn end_batch(&mut self) -> Result<()> {
        self.batches += 1;
        if self.batches < self.options.batches_per_transaction {
            return Ok(());
        }
        self.batches = 0;
        self.writer.take().map_or(Ok(()), Transaction::commit)
    }

    fn finish_load(&mut self) -> Result<()> {
        self.writer.take().map_or(Ok(()), Transaction::commit)?;
        self.environment.sync()
    }

    fn figures(&self) -> Figures {
        let faults = sys::major_faults() - self.faults_before;
        Figures {
            read_requests: Some(faults),
            settings: serde_json::to_value(&self.options).unwrap_or(Value::Null),
            ..Figures::default()
        }
    }
}
