//! Freeze: a commit of a store as a new store for serving, or frozen pages of a store written anew.
//!
//! Rows of a class lie in pages in the order of a placement, with replicas. Every page of the
//! source is read once, in its own order, whatever the placement; what does not fit into memory is
//! sorted by way of a file.

use super::copy::{begin_copy, end_copy, open_commit};
use super::difference::{Difference, FreezeError};
use crate::config::{CommitInfo, Memory, StorageKind, StoreOptions, TableSpec};
use crate::error::{Result, bail};
use crate::init::Initializer;
use crate::optimizer::{OptimizerKind, OptimizerSpec};
use crate::row::Dtype;
use crate::storage::{Freeze, FreezePlan, PageLayout, Placement, SweptRow};
use crate::store::engine::{Class, Engine, Table};
use crate::store::{Inner, Store};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering;

/// Pages of a sweep read at once.
const PAGES: usize = 256;
/// Bytes of the index of frozen rows at most: of an id, of a key, and of a replica whose row has no
/// other.
const INDEX_BYTES_PER_ID: u64 = 4;
const INDEX_BYTES_PER_KEY: u64 = 7;
const INDEX_BYTES_PER_REPLICA: u64 = 12;
/// Bytes of a key while the index of a growing table is made.
const BUILDER_BYTES_PER_KEY: u64 = 21;
/// Bytes of a row that is sorted beside its own.
const SORTED_BYTES_BESIDE: u64 = 20;
/// The index names at most so many pages of a row, whatever is asked.
pub const CANDIDATES_MAX: usize = 16;

/// Rows of tables that share pages, in an order, with replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedPages {
    /// Names of the tables.
    pub tables: Vec<String>,
    /// Rows of a page at home; the last page may have fewer.
    pub rows_per_page: usize,
    /// Of each row in order, its table, as a place in `tables`. *Shape*: (rows,).
    pub table: Vec<u16>,
    /// Of each row in order, its key. *Shape*: (rows,).
    pub key: Vec<u64>,
    /// Where in `replica_rows` each replica page begins, and where the last ends. *Shape*:
    /// (replica pages + 1,), or none without replicas.
    pub replica_starts: Vec<u32>,
    /// Rows of the replica pages, as places in the order.
    pub replica_rows: Vec<u32>,
}

/// How rows are frozen.
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

/// What a freeze did to the rows.
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

/// What a freeze did, and where the rows are.
#[derive(Clone, Debug, Serialize)]
pub struct FreezeReport {
    /// The commit that has the frozen rows.
    pub commit: CommitInfo,
    /// What became of the rows.
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
/// an error. What is left of one that failed or was cut off is no store; the source is not changed.
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
    let source = open_commit(path.as_ref(), options.step, options.memory)?;
    let tables = source.tables();
    let names: Vec<&str> = tables.iter().map(|info| info.spec.name.as_str()).collect();
    let named = named(&names, plans)?;
    let specs: Vec<TableSpec> =
        tables.iter().map(|info| frozen_spec(&info.spec, info.rows, options)).collect();
    let pages = pages_of_plans(plans, &named, &specs)?;
    let target = begin_copy(&source, destination.as_ref(), None, &|target| StoreOptions {
        // How many rows there are is known.
        check_disk: false,
        ..target
    })?;
    for spec in &specs {
        let of_plan = pages.get(&spec.validate()?.row_bytes()).copied();
        target.table_in_pages(spec, options.page_bytes.or(of_plan))?;
    }
    let (all, is_own) = (tables.iter().map(|info| info.rows).sum(), false);
    let (frozen, errors) = (Frozen::default(), Vec::new());
    let mut run = Run { options, plans, named, is_own, done: 0, all, progress, frozen, errors };
    run.freeze_from(&source, &target)?;
    for info in &tables {
        target.inner.set_updates(info.id, info.updates)?;
    }
    let (frozen, errors) = (run.frozen, run.errors);
    let (commit, disk_bytes) = end_copy(&source, &target)?;
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
        let is_own = true;
        let (frozen, errors) = (Frozen::default(), Vec::new());
        let mut run = Run { options, plans, named, is_own, done: 0, all, progress, frozen, errors };
        run.freeze_classes(inner, &engine, &tables, &mut |run, class, _, unit| {
            run.take_own(inner, class, unit)
        })?;
        Ok(run.frozen)
    }
}

/// How a table is stored once it is frozen.
fn frozen_spec(spec: &TableSpec, rows: u64, options: &FreezeOptions) -> TableSpec {
    TableSpec {
        storage: StorageKind::Pages,
        expected_rows: Some(rows),
        optimizer: OptimizerSpec::new(OptimizerKind::None),
        dtype: options.dtype.unwrap_or(spec.dtype),
        initializer: options.unknown.unwrap_or(spec.initializer),
        ..spec.clone()
    }
}

/// By the bytes of rows, the smallest page that holds as many of them as the plans of these say.
fn pages_of_plans(
    plans: &[PlannedPages],
    named: &[Vec<String>],
    specs: &[TableSpec],
) -> Result<BTreeMap<usize, usize>> {
    let mut pages = BTreeMap::new();
    for (plan, named) in plans.iter().zip(named) {
        let Some(spec) = specs.iter().find(|spec| named.contains(&spec.name)) else { continue };
        let row_bytes = spec.validate()?.row_bytes();
        let holds = |page_bytes: &usize| {
            PageLayout::new(*page_bytes, row_bytes, 0, 0)
                .is_ok_and(|layout| layout.rows_per_page >= plan.rows_per_page)
        };
        // Where no page does, the plan is refused by name later.
        if let Some(page_bytes) = (9..=16).map(|bits| 1 << bits).find(holds) {
            let most = pages.entry(row_bytes).or_insert(page_bytes);
            *most = page_bytes.max(*most);
        }
    }
    Ok(pages)
}

/// The plans with the tables that they are of; those that are not there, or twice, are refused. A
/// plan of a table without a name is of the only one that there is.
fn named(names: &[&str], plans: &[PlannedPages]) -> Result<Vec<Vec<String>>> {
    let mut seen = Vec::new();
    let listed = || names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let mut of_plan = |name: &String| {
        let name = match (name.as_str(), names) {
            ("", [only]) if !names.contains(&"") => *only,
            ("", _) if !names.contains(&"") => bail!(
                Misuse,
                "the plan does not say which table it is of, the store has {}; name it when the \
                 trace is made",
                listed()
            ),
            (name, _) => name,
        };
        if !names.contains(&name) {
            bail!(
                Misuse,
                "the plan has table '{name}', the store has {}; place again with a trace of its \
                 tables",
                listed()
            );
        }
        if seen.contains(&name.to_owned()) {
            bail!(Misuse, "the plan has table '{name}' twice, expected it once");
        }
        seen.push(name.to_owned());
        Ok(name.to_owned())
    };
    plans.iter().map(|plan| plan.tables.iter().map(&mut of_plan).collect()).collect()
}

/// Makes room in the budget for the index of frozen rows.
fn make_index_room(inner: &Inner, engine: &Engine, needed: u64) -> Result<()> {
    if !inner.make_window_room(engine, needed)? {
        bail!(
            Budget,
            "the index of frozen rows takes up to {needed} bytes more while it is made, and the \
             budget is {}; open with that much more memory, or replicate less",
            engine.budget_bytes
        );
    }
    Ok(())
}

/// What frozen rows of a class take of the disk.
struct DiskNeed {
    rows: u64,
    stays: u64,
    meanwhile: u64,
}

/// Gives a freeze the rows of tables of a class.
type TakeClass<'a, Run> =
    dyn FnMut(&mut Run, &Class, &[&Table], &mut dyn Freeze) -> Result<()> + 'a;

/// A freeze under way.
struct Run<'a> {
    options: &'a FreezeOptions,
    plans: &'a [PlannedPages],
    /// Names of the tables of each plan.
    named: Vec<Vec<String>>,
    /// Rows come from the store that is frozen.
    is_own: bool,
    done: u64,
    all: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> Result<()>,
    frozen: Frozen,
    errors: Vec<FreezeError>,
}

impl Run<'_> {
    /// Freezes all tables of `source` into those of `target`, which have the same numbers.
    fn freeze_from(&mut self, source: &Store, target: &Store) -> Result<()> {
        let (from, to) = (&*source.inner, &*target.inner);
        let of_source = from.planned_engine()?;
        let engine = to.exclusive_to_change()?;
        let tables: Vec<&Table> = engine.tables.iter().collect();
        self.freeze_classes(to, &engine, &tables, &mut |run, _, tables, unit| {
            for table in tables {
                if let Some(old) = of_source.table(table.id()) {
                    let rows = run.take(from, &of_source, old, table, unit)?;
                    table.rows.store(rows, Ordering::Relaxed);
                }
            }
            Ok(())
        })
    }

    /// What the frozen rows of a class take of the disk.
    fn disk_need(
        &self,
        class: &Class,
        tables: &[&Table],
        placement: &Placement,
    ) -> Result<DiskNeed> {
        let record = &class.record;
        let holds = PageLayout::new(record.page_bytes, record.row_bytes, 0, 0)?.rows_per_page;
        let rows: u64 = tables.iter().map(|table| self.rows_to_come(table)).sum();
        let replicas = placement.replica_starts.len().saturating_sub(1) as u64;
        let copies = rows + placement.replica_rows.len() as u64;
        let unplaced = rows.saturating_sub(placement.rows.len() as u64);
        let pages = placement.page_ends.len() as u64 + unplaced.div_ceil(holds as u64) + replicas;
        let index = copies * INDEX_BYTES_PER_KEY;
        let sorted = copies * (record.row_bytes as u64 + SORTED_BYTES_BESIDE);
        let is_sorted_on_disk = sorted > self.options.sort_bytes as u64 / 2;
        Ok(DiskNeed {
            rows,
            stays: pages * record.page_bytes as u64 + index,
            meanwhile: if is_sorted_on_disk { sorted } else { 0 },
        })
    }

    /// Refuses a freeze that the disk cannot hold, before anything is written: pages of all
    /// classes, and the file in which the rows of one are sorted.
    fn check_disk(inner: &Inner, needs: &[DiskNeed]) -> Result<()> {
        let rows: u64 = needs.iter().map(|need| need.rows).sum();
        let meanwhile = needs.iter().map(|need| need.meanwhile).max().unwrap_or(0);
        let needed = needs.iter().map(|need| need.stays).sum::<u64>() + meanwhile;
        let free = inner.medium.apart().unwrap_or(&inner.medium).free_bytes()?;
        let bound = inner.options.max_disk_bytes;
        let room = bound.map_or(free, |most| most.saturating_sub(inner.disk_bytes()).min(free));
        if needed > room {
            bail!(
                Full,
                "freezing {rows} rows and their replicas takes {needed} more bytes on disk, \
                 {meanwhile} of them only meanwhile, and there are {room} for it; make room, raise \
                 max_disk_bytes, or replicate less"
            );
        }
        Ok(())
    }

    /// Rows that a table has, or, of a new store, will have.
    fn rows_to_come(&self, table: &Table) -> u64 {
        match self.is_own {
            true => table.rows.load(Ordering::Relaxed),
            false => table.record.spec.expected_rows.unwrap_or(0),
        }
    }

    /// Bytes of memory that the index of frozen rows takes while it is made, beside the one before.
    fn index_need(&self, tables: &[&Table], placement: &Placement) -> u64 {
        let of_table = |table: &&Table| match table.record.dense_ids() {
            // A plan of a new store has left room for it.
            Some(_) if !self.is_own => 0,
            Some(ids) => ids.saturating_mul(INDEX_BYTES_PER_ID),
            None => self.rows_to_come(table) * BUILDER_BYTES_PER_KEY,
        };
        let replicas = placement.replica_rows.len() as u64 * INDEX_BYTES_PER_REPLICA;
        tables.iter().map(of_table).sum::<u64>().saturating_add(replicas)
    }

    /// Writes all rows of these tables, which `take` gives. Nothing changes before all are written.
    fn freeze_classes(
        &mut self,
        inner: &Inner,
        engine: &Engine,
        tables: &[&Table],
        take: &mut TakeClass<'_, Self>,
    ) -> Result<()> {
        let mut begun: Vec<(&Class, Box<dyn Freeze>)> = Vec::new();
        let mut run = || {
            let (mut planned, mut index, mut needs) = (0, 0u64, Vec::new());
            for (at, class) in engine.classes.iter().enumerate() {
                let of_class: Vec<&Table> =
                    tables.iter().copied().filter(|table| table.class == at).collect();
                if of_class.is_empty() {
                    continue;
                }
                let placement = self.placement(class, &of_class)?;
                needs.push(self.disk_need(class, &of_class, &placement)?);
                index = index.saturating_add(self.index_need(&of_class, &placement));
                planned += placement.rows.len() as u64;
                let plan = FreezePlan {
                    placement,
                    candidates_max: self.options.candidates_max,
                    memory: self.options.sort_bytes,
                };
                begun.push((class, class.log.lock().begin_freeze(plan)?));
            }
            // What a freeze that was cut off has left is gone by now.
            Self::check_disk(inner, &needs)?;
            make_index_room(inner, engine, index)?;
            let classes = tables.iter().map(|table| table.class).collect::<BTreeSet<_>>();
            for (at, (class, unit)) in classes.into_iter().zip(&mut begun) {
                let of_class: Vec<&Table> =
                    tables.iter().copied().filter(|table| table.class == at).collect();
                take(self, class, &of_class, &mut **unit)?;
                self.frozen.placed += unit.placed();
                while unit.step()? {
                    (self.progress)(self.done.min(self.all), self.all)?;
                }
            }
            self.frozen.missing = planned.saturating_sub(self.frozen.placed);
            Ok(())
        };
        let mut done = run();
        let pages = |class: &Class| class.log.lock().stats().merged.pages;
        for (class, unit) in begun {
            let before = pages(class);
            done = match done {
                Ok(()) => inner.install_whole(engine, class, unit),
                // What of it cannot be removed now, the next freeze removes.
                Err(error) => {
                    let abandoned = class.log.lock().abandon_unit(unit, None);
                    abandoned.or(Ok(())).and(Err(error))
                }
            };
            self.frozen.pages += pages(class) - before;
        }
        done
    }

    /// The placement of a class, of all plans of its tables.
    fn placement(&self, class: &Class, tables: &[&Table]) -> Result<Placement> {
        let record = &class.record;
        let holds = PageLayout::new(record.page_bytes, record.row_bytes, 0, 0)?.rows_per_page;
        let ids: BTreeMap<&str, u16> =
            tables.iter().map(|t| (t.record.spec.name.as_str(), t.id())).collect();
        let mut placement = Placement::default();
        for (plan, named) in self.plans.iter().zip(&self.named) {
            let of_plan: Vec<Option<u16>> =
                named.iter().map(|name| ids.get(name.as_str()).copied()).collect();
            if of_plan.iter().all(Option::is_none) {
                continue;
            }
            if let Some(at) = of_plan.iter().position(Option::is_none) {
                let here = of_plan.iter().position(Option::is_some).unwrap_or(0);
                bail!(
                    Misuse,
                    "the plan lets tables '{}' and '{}' share pages, and their rows differ in \
                     size; place again with this store",
                    named[here],
                    named[at]
                );
            }
            if plan.rows_per_page > holds || plan.rows_per_page == 0 {
                bail!(
                    Misuse,
                    "the plan has {} rows a page, a page of {} bytes holds {holds} of table \
                     '{}'; place again with this store, or with rows_per_page={holds}",
                    plan.rows_per_page,
                    record.page_bytes,
                    named[0]
                );
            }
            let first = placement.rows.len() as u32;
            if plan.table.len() != plan.key.len() {
                bail!(
                    Misuse,
                    "the plan has {} tables for {} keys, expected one for each",
                    plan.table.len(),
                    plan.key.len()
                );
            }
            for (table, key) in plan.table.iter().zip(&plan.key) {
                let Some(Some(id)) = of_plan.get(usize::from(*table)) else {
                    bail!(
                        Misuse,
                        "the plan has a row of table {table}, expected below {}",
                        of_plan.len()
                    );
                };
                placement.rows.push((*id, *key));
            }
            let rows = plan.key.len();
            let ends =
                (1..=rows.div_ceil(plan.rows_per_page)).map(|page| page * plan.rows_per_page);
            placement.page_ends.extend(ends.map(|end| first + end.min(rows) as u32));
            let replicas = placement.replica_rows.len() as u32;
            let skip = usize::from(!placement.replica_starts.is_empty());
            let starts = plan.replica_starts.iter().skip(skip);
            let starts = starts.map(|start| replicas.saturating_add(*start));
            placement.replica_starts.extend(starts);
            placement
                .replica_rows
                .extend(plan.replica_rows.iter().map(|row| first.saturating_add(*row)));
        }
        Ok(placement)
    }

    /// Gives a freeze the rows of a table, as `to` stores them. Returns how many there are.
    fn take(
        &mut self,
        inner: &Inner,
        engine: &Engine,
        from: &Table,
        to: &Table,
        unit: &mut dyn Freeze,
    ) -> Result<u64> {
        let class = &engine.classes[from.class];
        let mut sweep = class.log.lock().sweep(Some(from.id()));
        let name = &from.record.spec.name;
        let mut values = vec![0.0; from.layout.embedding_dim()];
        let mut words = vec![0.0; to.layout.row_words()];
        let converts = from.layout != to.layout;
        let (mut rows, mut difference) = (0, Difference::new(&to.layout));
        let swept = loop {
            let before = rows;
            let read = inner.sweep_on(class, &mut *sweep, PAGES, &mut |swept| {
                for row in swept {
                    rows += 1;
                    let mut row = SweptRow { table: to.id(), ..row };
                    if converts {
                        from.layout.read_values(row.words, &mut values);
                        if !to.layout.dtype().all_fit(&values) {
                            bail!(
                                Misuse,
                                "table '{name}', key {}: a value does not fit {}; freeze with \
                                 another dtype",
                                row.key,
                                to.layout.dtype().name()
                            );
                        }
                        to.layout.write_values(&mut words, &values);
                        difference.add(&values, &to.layout, &words);
                        row.words = &words;
                    }
                    unit.push(row, false)?;
                }
                Ok(())
            });
            self.done += rows - before;
            let told = read.map_err(|error| error.context(format!("table '{name}'")));
            match told.and_then(|goes_on| {
                (self.progress)(self.done.min(self.all), self.all)?;
                Ok(goes_on)
            }) {
                Ok(true) => {}
                Ok(false) => break Ok(rows),
                Err(error) => break Err(error),
            }
        };
        class.log.lock().end_read(sweep.ticket());
        self.frozen.rows += rows;
        self.frozen.error_max = self.frozen.error_max.max(difference.most);
        if from.layout.dtype() != to.layout.dtype() {
            self.errors.push(difference.told(name, rows));
        }
        swept
    }

    /// Gives a freeze all rows of its own class.
    fn take_own(&mut self, inner: &Inner, class: &Class, unit: &mut dyn Freeze) -> Result<()> {
        let mut sweep = class.log.lock().sweep(None);
        let taken = loop {
            let mut rows = 0;
            let read = inner.sweep_on(class, &mut *sweep, PAGES, &mut |swept| {
                for row in swept {
                    rows += 1;
                    unit.push(row, true)?;
                }
                Ok(())
            });
            (self.done, self.frozen.rows) = (self.done + rows, self.frozen.rows + rows);
            match read.and_then(|goes_on| {
                (self.progress)(self.done.min(self.all), self.all)?;
                Ok(goes_on)
            }) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        class.log.lock().end_read(sweep.ticket());
        taken
    }
}
