//! Copy: one commit of a store, also of one that is being written to, into a new store.
//!
//! Every page of the commit is read and verified, and only live rows are written, so the copy is
//! as small as can be. The source's commit is held meanwhile.

use crate::buckets::{Buckets, bucket_of};
use crate::config::{
    CommitInfo, DENSE_IDS_MAX, Memory, NonFinite, PutBatch, StorageKind, StoreOptions, TableId,
    TableInfo, TableSpec,
};
use crate::error::{Error, Result, bail};
use crate::io::{DirectoryMedium, IoChoice, Medium, OpenMode};
use crate::storage;
use crate::store::commit::SPARE;
use crate::store::events::Sweep;
use crate::store::files::class_file::{has_rows, lies_apart};
use crate::store::files::lock::WriterLock;
use crate::store::files::place::check_place;
use crate::store::files::place::{UNFINISHED, absolute, is_there};
use crate::store::files::{head, pairing, pins, state, superblock};
use crate::store::tables::MEASURE;
use crate::store::{Store, cold, journal};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows moved at once.
const ROWS: usize = 16_384;

/// Results of a copy.
#[derive(Clone, Debug, Serialize)]
pub struct CopyReport {
    /// The commit that was copied.
    pub commit: CommitInfo,
    /// Rows copied.
    pub rows: u64,
    /// Bytes of the copy on disk.
    pub disk_bytes: u64,
}

/// Content and form of a copy.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// The commit of this step; the last one without.
    pub step: Option<u64>,
    /// The commit that is pinned under this name.
    pub pin: Option<String>,
    /// The budget of each of the two stores.
    pub memory: Memory,
    /// Layout of the rows of all tables in the copy; without it each is stored as it was.
    pub storage: Option<StorageKind>,
    /// Directory of the copy's partitions; without it they lie in the copy.
    pub cold_directory: Option<PathBuf>,
    /// Directory of the copy's regions on persistent memory; without it they lie in the copy.
    pub pmem_directory: Option<PathBuf>,
    /// Rows for which each region has room: all ids, or as many as before, or twice the rows, if
    /// nobody says.
    pub capacity: Option<u64>,
    /// Keys of these buckets alone, which keep their numbers; without it all.
    pub buckets: Option<Buckets>,
}

impl CopyOptions {
    /// The whole last commit, stored as it was.
    pub fn new(memory: Memory) -> Self {
        Self {
            step: None,
            pin: None,
            memory,
            storage: None,
            cold_directory: None,
            pmem_directory: None,
            capacity: None,
            buckets: None,
        }
    }

    fn spec(&self, info: &TableInfo) -> TableSpec {
        let spec = &info.spec;
        let storage = self.storage.unwrap_or(spec.storage);
        let ids = spec.num_embeddings;
        let twice = || spec.expected_rows.unwrap_or(0).max(info.rows.saturating_mul(2)).max(1);
        let room = || self.capacity.or(spec.capacity).or(ids).unwrap_or_else(twice);
        let capacity = storage.is_direct().then(|| room().min(ids.unwrap_or(u64::MAX)));
        let expected_rows = expected_in(spec, self.buckets.as_ref());
        TableSpec { storage, capacity, expected_rows, ..spec.clone() }
    }
}

/// Copies the last commit of the store at `path`, or that of `step`, to `destination`, which must
/// not hold a store; one without a commit, as a copy that was cut off leaves it, is removed.
/// `storage` is how the copy stores the rows of all tables; without it each is stored as it was.
/// `cold_directory` is where the copy has its partitions; without it they lie in the copy itself. A
/// table in an lsm that is not stored by id, for few of its `num_embeddings` have a row, is stored
/// by id in a log. `memory` is the budget of each of the two. `progress(done, all)` counts rows and
/// may end the copy by an error. A copy that failed or was cut off leaves no store: its files are
/// not opened.
///
/// *Errors*: `NotFound`, `Misuse` when the destination holds a store, or a table has more ids than
/// one in a log can have; `Budget` where its index does not fit, `Corrupt`, `Full`, `Io`.
/// *Durability*: the copy is complete and durable on return.
pub fn copy(
    path: impl AsRef<Path>,
    destination: impl AsRef<Path>,
    step: Option<u64>,
    memory: Memory,
    storage: Option<StorageKind>,
    cold_directory: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<CopyReport> {
    let cold_directory = cold_directory.map(Path::to_path_buf);
    let options = CopyOptions { step, storage, cold_directory, ..CopyOptions::new(memory) };
    copy_with(path, destination, &options, progress)
}

/// [`copy`], with its options in one place and some more. `progress` counts rows of the source that
/// were looked at, the report those that were copied.
pub fn copy_with(
    path: impl AsRef<Path>,
    destination: impl AsRef<Path>,
    to: &CopyOptions,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<CopyReport> {
    let sweep = Sweep::begin("copy", path.as_ref(), Some(destination.as_ref()));
    let source = open_commit(path.as_ref(), to.step, to.pin.clone(), to.memory, None)?;
    let tables = source.tables();
    tables.iter().try_for_each(|info| check_ids(&to.spec(info)))?;
    let cold_directory = to.cold_directory.as_deref();
    let target = begin_copy(&source, destination.as_ref(), cold_directory, &|options| {
        // Rows that are there are copied, however many could be.
        let pmem_directory = to.pmem_directory.clone();
        StoreOptions { check_disk: false, pmem_directory, ..options }
    })?;
    if to.buckets.is_none() {
        // Regions in a folder of their own reserve their room there.
        let lies_here =
            |info: &&TableInfo| !(to.pmem_directory.is_some() && to.spec(info).storage.is_direct());
        let here: Vec<TableInfo> = tables.iter().filter(lies_here).cloned().collect();
        check_disk(&*target.inner.medium, &here)?;
    }
    let all: u64 = tables.iter().map(|t| t.rows).sum();
    let (mut done, mut copied) = (0, 0);
    for info in &tables {
        target.table(&to.spec(info))?;
    }
    for info in &tables {
        let id = target.table(&to.spec(info))?;
        copied += copy_rows((&source, info), (&target, id), to.buckets.as_ref(), &mut |rows| {
            done += rows;
            progress(done, all)
        })?;
        target.inner.set_updates(id, info.updates)?;
    }
    let (commit, disk_bytes) = end_copy(&source, &target)?;
    sweep.done(copied, disk_bytes);
    Ok(CopyReport { commit, rows: copied, disk_bytes })
}

/// Copies the rows of a table, of some buckets if they are given, to one with as long rows.
/// `progress` gets the rows that were looked at. Returns how many were copied.
pub(super) fn copy_rows(
    (source, info): (&Store, &TableInfo),
    (target, id): (&Store, TableId),
    buckets: Option<&Buckets>,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    let dim = info.spec.embedding_dim;
    let mut keys = vec![0; ROWS];
    let mut values = vec![0.0; ROWS * dim];
    let mut state = vec![0.0; ROWS * info.state_words];
    let mut scan = source.scan(info.id)?;
    let mut copied = 0;
    loop {
        let looked_at = scan.next_batch(&mut keys, &mut values, Some(&mut state))?;
        if looked_at == 0 {
            return Ok(copied);
        }
        let (keys, values) = (&mut keys[..looked_at], &mut values[..looked_at * dim]);
        let state = &mut state[..looked_at * info.state_words];
        let rows = match buckets {
            None => looked_at,
            Some(buckets) => {
                let is_dense = info.spec.num_embeddings.is_some();
                keep_rows(keys, values, state, |key| buckets.contains(bucket_of(key, is_dense)))
            }
        };
        if rows > 0 {
            target.put(&[PutBatch {
                table: id,
                keys: &keys[..rows],
                values: &values[..rows * dim],
                state: Some(&state[..rows * info.state_words]),
                reset_state: false,
                non_finite: NonFinite::Apply,
            }])?;
        }
        copied += rows as u64;
        progress(looked_at as u64)?;
    }
}

/// Rows that a table is expected to have of some buckets: of a dense one no more than ids in them.
pub(super) fn expected_in(spec: &TableSpec, buckets: Option<&Buckets>) -> Option<u64> {
    match (spec.num_embeddings, buckets) {
        (Some(ids), Some(buckets)) => {
            let here = buckets.ids_below(ids).max(1);
            let expected = spec.expected_rows.map_or(here, |expected| expected.min(here));
            if expected < ids { Some(expected) } else { spec.expected_rows }
        }
        _ => spec.expected_rows,
    }
}

/// Brings the rows of keys that are kept to the front, in their order. Returns how many they are.
fn keep_rows(
    keys: &mut [u64],
    values: &mut [f32],
    state: &mut [f32],
    keeps: impl Fn(u64) -> bool,
) -> usize {
    let rows = keys.len();
    let (dim, words) = (values.len() / rows, state.len() / rows);
    let mut kept = 0;
    for row in 0..rows {
        if keeps(keys[row]) {
            keys[kept] = keys[row];
            values.copy_within(row * dim..(row + 1) * dim, kept * dim);
            state.copy_within(row * words..(row + 1) * words, kept * words);
            kept += 1;
        }
    }
    kept
}

/// The last commit of the store at `path`, or that of `step` or `pin`, to read. `cold_directory` is
/// where its partitions are, if they were moved.
pub(super) fn open_commit(
    path: &Path,
    step: Option<u64>,
    pin: Option<String>,
    memory: Memory,
    cold_directory: Option<PathBuf>,
) -> Result<Store> {
    // Absolute, so that it stays right when the working directory changes meanwhile.
    let path = absolute(path)?;
    let options = StoreOptions { step, pin, cold_directory, ..StoreOptions::new(memory) };
    let options = StoreOptions { read_only: true, create: false, ..options };
    let source = Store::open(path, options)?;
    if source.last_commit().is_none() {
        bail!(NotFound, "{} has no commit to copy", source.path().display());
    }
    Ok(source)
}

/// A new store for what `source` has, which counts as none until [`end_copy`]. One that was cut off
/// before is removed first.
pub(super) fn begin_copy(
    source: &Store,
    destination: &Path,
    cold_directory: Option<&Path>,
    change: &dyn Fn(StoreOptions) -> StoreOptions,
) -> Result<Store> {
    let destination = &absolute(destination)?;
    if is_there(&destination.join(superblock::NAME))? {
        remove_if_unfinished(destination, cold_directory)?;
    } else {
        check_place(destination)?;
    }
    let options = change(StoreOptions {
        keep: source.options().keep,
        seed: source.inner.superblock.seed,
        cold_directory: cold_directory.map(Path::to_path_buf),
        ..StoreOptions::new(source.options().memory)
    });
    cold::check_for_new(destination, &options)?;
    mark_unfinished(destination)?;
    Store::open_any(destination, options)
}

/// Commits a copy, as `source` was committed, and makes it a store. Returns its commit and what it
/// takes of the disk.
pub(super) fn end_copy(source: &Store, target: &Store) -> Result<(CommitInfo, u64)> {
    let Some(commit) = source.last_commit() else {
        bail!(NotFound, "{} has no commit to copy", source.path().display());
    };
    let state = source.state()?;
    let borrowed: Vec<(&str, &[u8])> =
        state.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    finish(target, commit.step, &commit.meta, &borrowed)
}

/// Commits a copy and makes it a store.
pub(super) fn finish(
    target: &Store,
    step: u64,
    meta: &str,
    state: &[(&str, &[u8])],
) -> Result<(CommitInfo, u64)> {
    let copied = target.commit(step, meta, state)?;
    let disk_bytes = target.stats()?.disk_bytes;
    let medium = &*target.inner.medium;
    medium.remove(UNFINISHED)?;
    medium.sync_dir()?;
    Ok((copied, disk_bytes))
}

/// Refuses a table that has more ids than one in a log can have.
fn check_ids(stored: &TableSpec) -> Result<()> {
    let ids = stored.num_embeddings.unwrap_or(0);
    if stored.storage == StorageKind::Log && ids > DENSE_IDS_MAX {
        bail!(
            Misuse,
            "table '{}' has {ids} ids, and in a log it can have at most {DENSE_IDS_MAX}: copy \
             without storage \"log\", or put its rows into a growing table of another store",
            stored.name
        );
    }
    Ok(())
}

/// Refuses a copy whose rows alone the disk could not hold.
pub(in crate::store) fn check_disk(medium: &dyn Medium, tables: &[TableInfo]) -> Result<()> {
    let bytes = |info: &TableInfo| info.rows.saturating_mul(info.row_bytes as u64);
    let needed = tables.iter().map(bytes).fold(0, u64::saturating_add);
    let free = medium.free_bytes_in_all()?;
    if needed > free {
        bail!(
            Full,
            "the rows to copy take {needed} bytes, and {free} are free where the copy shall lie; \
             make room, or copy to another disk"
        );
    }
    Ok(())
}

/// Refuses what a copy has left that failed, was cut off or goes on.
pub(in crate::store) fn refuse_unfinished(path: &Path) -> Result<()> {
    if is_there(&path.join(UNFINISHED))? {
        bail!(
            NotFound,
            "{} is no store: a copy into it goes on, or was not finished; copy again to the same \
             place, or remove it",
            path.display()
        );
    }
    Ok(())
}

/// Marks a directory, which is made if need be, before anything of a store is in it.
fn mark_unfinished(destination: &Path) -> Result<()> {
    let named = |error| Error::os(destination.display(), error);
    std::fs::create_dir_all(destination).map_err(named)?;
    let medium = DirectoryMedium::open(destination, IoChoice::default())?;
    if !is_there(&destination.join(UNFINISHED))? {
        medium.open(UNFINISHED, OpenMode::CreateNew)?;
    }
    medium.sync_dir()
}

/// Removes what a copy that never ended has left: a store without a commit.
fn remove_if_unfinished(destination: &Path, cold_directory: Option<&Path>) -> Result<()> {
    let own = DirectoryMedium::open(destination, IoChoice::default())?;
    let _lock = WriterLock::take(&own, destination)?;
    let options = StoreOptions { read_only: true, ..StoreOptions::new(Memory::Bytes(0)) };
    let store = Store::open_any(destination, options)?;
    let (last, cold) = (store.last_commit(), store.inner.medium.apart().cloned());
    let uuid = store.inner.superblock.uuid;
    // Both were opened by path: what is removed is what is locked.
    for medium in [&own as &dyn Medium, &*store.inner.medium] {
        if let Some(what) = medium.displaced()? {
            bail!(NotFound, "{what}; nothing was removed; copy again");
        }
    }
    // With the partitions that lie apart.
    let medium = Arc::clone(&store.inner.medium);
    drop(store);
    if last.is_some() && !is_there(&destination.join(UNFINISHED))? {
        bail!(Misuse, "{} holds a store already; copy to another place", destination.display());
    }
    // With those that lie apart.
    storage::remove_other_regions(&*medium, &[])?;
    // In an order in which what is left is never damage: only a journal explains rows and state,
    // and only a superblock a journal.
    let others = |name: &str| {
        has_rows(name)
            || lies_apart(name)
            || state::sequence_of(name).is_some()
            || [head::NAME, MEASURE, SPARE, superblock::NEW_NAME, pins::NAME, pins::NEW_NAME]
                .contains(&name)
            || journal::pin_of_name(name).is_some()
    };
    let journals = |name: &str| journal::number_of(name).is_some();
    let place = |name: &str| name == pairing::NAME;
    let last = |name: &str| name == superblock::NAME;
    let rounds: [&dyn Fn(&str) -> bool; 4] = [&others, &place, &journals, &last];
    for is_next in rounds {
        for name in medium.list("")?.iter().filter(|name| is_next(name)) {
            medium.remove(name)?;
        }
        medium.sync_dir()?;
    }
    if let Some(cold) = cold {
        cold.remove(pairing::MARKER)?;
    }
    // One that the copy was cut off before it had noted it.
    cold_directory.map_or(Ok(()), |given| cold::release(given, IoChoice::default(), uuid))
}
