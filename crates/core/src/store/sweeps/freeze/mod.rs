//! Freeze: a commit of a store as a new store for serving, or frozen pages of a store written anew.
//!
//! Rows of a class lie in pages in the order of a placement, with replicas. Every page of the
//! source is read once, in its own order, whatever the placement; what does not fit into memory is
//! sorted by way of a file.

mod difference;
mod plans;
mod room;
mod run;

pub use difference::FreezeError;
pub use plans::PlannedPages;

use self::plans::{named, pages_of_plans};
use self::run::Run;
use super::copy::{begin_copy, end_copy, open_commit};
use crate::config::{CommitInfo, Memory, StorageKind, StoreOptions, TableSpec};
use crate::error::{Result, bail};
use crate::init::Initializer;
use crate::optimizer::{OptimizerKind, OptimizerSpec};
use crate::row::Dtype;
use crate::store::Store;
use crate::store::engine::Table;
use crate::store::events::Sweep;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::Ordering;

/// The index names at most so many pages of a row, whatever is asked.
pub const CANDIDATES_MAX: usize = 16;

/// Options of a freeze.
#[derive(Clone, Debug)]
pub struct FreezeOptions {
    /// The commit with this step; the last one without it.
    pub step: Option<u64>,
    /// The memory budget of the source, and of the new store.
    pub memory: Memory,
    /// Bytes of memory for rows that are being put in order, beside the budgets.
    pub sort_bytes: usize,
    /// Type of the frozen values; each table keeps its own without it.
    pub dtype: Option<Dtype>,
    /// Values of rows that were never written; each table keeps its own without it.
    pub unknown: Option<Initializer>,
    /// At most so many pages of a row are chosen from, from 1 to [`CANDIDATES_MAX`].
    pub candidates_max: usize,
    /// Bytes of a page; chosen by measuring the device without it.
    pub page_bytes: Option<usize>,
}

impl FreezeOptions {
    /// With 256 MiB to sort in and ten pages of a row to choose from, all else as it is.
    pub fn new(memory: Memory) -> Self {
        Self {
            step: None,
            memory,
            sort_bytes: 256 << 20,
            dtype: None,
            unknown: None,
            candidates_max: 10,
            page_bytes: None,
        }
    }

    fn check(&self) -> Result<()> {
        if self.candidates_max == 0 || self.candidates_max > CANDIDATES_MAX {
            bail!(
                Misuse,
                "candidates is {}, expected 1 to {CANDIDATES_MAX} pages of a row",
                self.candidates_max
            );
        }
        Ok(())
    }
}

/// Rows and pages of a freeze, in numbers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Frozen {
    /// Rows frozen, each once.
    pub rows: u64,
    /// Rows of them that a plan has.
    pub placed: u64,
    /// Rows that a plan has and the store has not.
    pub missing: u64,
    /// Pages, those of replicas among them.
    pub pages: u64,
    /// Largest difference of a value from that of the source, where the type of values changed.
    pub error_max: f32,
}

/// Results of a freeze.
#[derive(Clone, Debug, Serialize)]
pub struct FreezeReport {
    /// The commit that has the frozen rows.
    pub commit: CommitInfo,
    /// Numbers of rows and pages.
    #[serde(flatten)]
    pub frozen: Frozen,
    /// Tables of which the type of values changed.
    pub errors: Vec<FreezeError>,
    /// Bytes of the store on disk.
    pub disk_bytes: u64,
}

/// Freezes the last commit of the store at `path`, or that of the step asked for, into a new store
/// at `destination`, which must not hold a store. `plans` say which rows lie together; rows that no
/// plan has follow in the order of the source. `progress(done, all)` counts rows and may end it by
/// an error. A freeze that failed or was cut off leaves no store; the source is not changed.
///
/// *Errors*: `NotFound`, `Misuse` for a plan of other tables or pages and where the destination
/// holds a store, `Corrupt`, `Full`, `Io`. *Durability*: the new store is durable on return.
pub fn freeze(
    path: impl AsRef<Path>,
    destination: impl AsRef<Path>,
    plans: &[PlannedPages],
    options: &FreezeOptions,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<FreezeReport> {
    options.check()?;
    let sweep = Sweep::begin("freeze", path.as_ref(), Some(destination.as_ref()));
    let source = open_commit(path.as_ref(), options.step, None, options.memory, None)?;
    let tables = source.tables();
    let names: Vec<&str> = tables.iter().map(|info| info.spec.name.as_str()).collect();
    let named = named(&names, plans)?;
    let specs: Vec<TableSpec> =
        tables.iter().map(|info| frozen_spec(&info.spec, info.rows, options)).collect();
    let pages = pages_of_plans(plans, &named, &specs)?;
    let target = begin_copy(&source, destination.as_ref(), None, &|target| StoreOptions {
        // The number of rows is known.
        check_disk: false,
        ..target
    })?;
    for spec in &specs {
        let of_plan = pages.get(&spec.validate()?.row_bytes()).copied();
        target.table_in_pages(spec, options.page_bytes.or(of_plan))?;
    }
    let all = tables.iter().map(|info| info.rows).sum();
    let mut run = Run::new(options, plans, named, all, progress);
    run.freeze_from(&source, &target)?;
    for info in &tables {
        target.inner.set_updates(info.id, info.updates)?;
    }
    let (frozen, errors) = (run.frozen, run.errors);
    let (commit, disk_bytes) = end_copy(&source, &target)?;
    sweep.done(all, disk_bytes);
    Ok(FreezeReport { commit, frozen, errors, disk_bytes })
}

/// As [`freeze`], within the store at `path`, whose rows are frozen already or wait to be: what has
/// changed since goes into new pages. The commit that has them has the step, the description and
/// the state of the last one. All commits stay that were kept.
///
/// *Errors*: as `freeze`; `Misuse` for a store without such tables, and for options of a new store.
pub fn freeze_again(
    path: impl AsRef<Path>,
    plans: &[PlannedPages],
    options: &FreezeOptions,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<FreezeReport> {
    let of_new = [
        ("step", options.step.is_some()),
        ("dtype", options.dtype.is_some()),
        ("unknown", options.unknown.is_some()),
        ("page_bytes", options.page_bytes.is_some()),
    ];
    if let Some((name, _)) = of_new.iter().find(|(_, is_given)| *is_given) {
        bail!(
            Misuse,
            "{name} is given without a destination: what is frozen in its place keeps it; leave it \
             out, or freeze into a store of its own"
        );
    }
    let path = path.as_ref();
    let sweep = Sweep::begin("freeze", path, None);
    let open = StoreOptions { create: false, ..StoreOptions::new(options.memory) };
    let kept = Store::open(path, StoreOptions { read_only: true, ..open.clone() })?.commits().len();
    let store = Store::open(path, StoreOptions { keep: kept + 1, ..open })?;
    let Some(last) = store.last_commit() else {
        bail!(NotFound, "{} has no commit to freeze", store.path().display());
    };
    let frozen = store.freeze(plans, options, progress)?;
    let state = store.state()?;
    let state: Vec<(&str, &[u8])> =
        state.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let commit = store.commit(last.step, &last.meta, &state)?;
    let disk_bytes = store.stats()?.disk_bytes;
    sweep.done(store.tables().iter().map(|table| table.rows).sum(), disk_bytes);
    Ok(FreezeReport { commit, frozen, errors: Vec::new(), disk_bytes })
}

impl Store {
    /// Writes all rows of tables with frozen pages anew, in the order of `plans`. Readers go on
    /// with what they have; the next commit has the new pages, and a power cut before it leaves the
    /// old ones. Of `options` how rows are sorted and chosen from counts alone.
    ///
    /// *Errors*: as [`freeze`]. *Blocking*: other verbs and commits of this process wait until it
    /// is through. *Durability*: with the next commit.
    pub fn freeze(
        &self,
        plans: &[PlannedPages],
        options: &FreezeOptions,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Frozen> {
        options.check()?;
        let inner = &*self.inner;
        let engine = inner.exclusive_to_change()?;
        inner.forget_ended_scans(&engine);
        let is_frozen = |table: &&Table| table.record.spec.storage == StorageKind::Pages;
        let tables: Vec<&Table> = engine.tables.iter().filter(is_frozen).collect();
        if tables.is_empty() {
            bail!(
                Misuse,
                "{} has no table with frozen pages; freeze it into a store of its own, with a \
                 destination",
                self.path().display()
            );
        }
        let names: Vec<&str> = tables.iter().map(|t| t.record.spec.name.as_str()).collect();
        let named = named(&names, plans)?;
        inner.reserve(&engine, &[])?;
        inner.poison_on_error(inner.flush_all(&engine))?;
        let all = tables.iter().map(|table| table.rows.load(Ordering::Relaxed)).sum();
        let mut run = Run::new(options, plans, named, all, progress);
        run.freeze_own(inner, &engine, &tables)?;
        Ok(run.frozen)
    }
}

/// The spec of a table once it is frozen.
fn frozen_spec(spec: &TableSpec, rows: u64, options: &FreezeOptions) -> TableSpec {
    TableSpec {
        storage: StorageKind::Pages,
        capacity: None,
        expected_rows: Some(rows),
        optimizer: OptimizerSpec::new(OptimizerKind::None),
        dtype: options.dtype.unwrap_or(spec.dtype),
        initializer: options.unknown.unwrap_or(spec.initializer),
        ..spec.clone()
    }
}
