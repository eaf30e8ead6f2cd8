//! The engine's `Store` for Python: one call a batch, detached from the interpreter.

mod hyper;
mod modify;
mod window;

use crate::arrays::{Keys, Rows, RowsOut, ValuesOut, to_fill};
use crate::commit::PendingCommit;
use crate::convert::{json_value, report};
use crate::error::{Carried, OrRaise, misuse};
use crate::lent::Arrays;
use crate::logs::CallEngine;
use crate::scan::Scan;
use embedrock_core as core;
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use hyper::Hyper;

/// The handle of a table within its store.
#[pyclass(frozen, eq, hash, module = "embedrock._core")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TableId(core::TableId);

impl TableId {
    /// The engine's handle.
    pub(crate) fn id(&self) -> core::TableId {
        self.0
    }
}

#[pymethods]
impl TableId {
    fn __repr__(&self) -> String {
        format!("TableId({})", self.0)
    }
}

/// A handle, keys, values to fill and state to fill.
type GetParts<'py> = (PyRef<'py, TableId>, Keys, ValuesOut<'py>, Option<RowsOut<'py>>);
/// A handle, keys, values and state.
type PutParts<'py> = (PyRef<'py, TableId>, Keys, Rows<'py>, Option<Rows<'py>>);
/// A handle, keys, gradients and hyperparameters.
type UpdateParts<'py> = (PyRef<'py, TableId>, Keys, Rows<'py>, PyRef<'py, Hyper>);
/// A handle and keys.
type LookaheadParts<'py> = (PyRef<'py, TableId>, Keys);
/// As that, and where in the schedule the rows are used next.
type ScheduledParts<'py> = (PyRef<'py, TableId>, Keys, PyReadonlyArray1<'py, i32>);
/// Bounds on gradients: of elements, of rows, of all together with those of this norm.
type Bounds = (Option<f64>, Option<f64>, Option<f64>, f64);

/// An open store, and what it has to tell of its budget.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct Store(core::Store, Budget);

/// The budget as it was given, and whether the user was told what became of it.
struct Budget {
    memory: String,
    told: AtomicBool,
}

impl Store {
    /// The engine's store.
    pub(crate) fn core(&self) -> &core::Store {
        &self.0
    }

    /// Has the user told, once, when the budget that was divided is not what was asked for, or
    /// more than the machine has. For the end of verbs that divide it.
    fn tell_budget(&self, py: Python<'_>) -> PyResult<()> {
        let Some((asked, budget)) = self.0.take_divided() else { return Ok(()) };
        if self.1.told.load(Ordering::Relaxed) {
            return Ok(());
        }
        let module = py.import("embedrock._memory")?;
        let told = module.call_method1("tell_divided", (&self.1.memory, asked, budget))?;
        self.1.told.store(told.extract()?, Ordering::Relaxed);
        Ok(())
    }
}

#[pymethods]
impl Store {
    /// Opens the store at `path`, creating it when there is none and `create` is set.
    #[new]
    #[pyo3(signature = (path, memory, *, max_disk_bytes=None, max_held_bytes=None, page_bytes=None,
        segment_bytes=None, cold_directory=None, pmem_path=None,
        io="auto", policy="lfu", window_bytes=None, window_group=256, merge_picker="score",
        upkeep_scheduler="off", top_share=None, filters=false, keep=2, seed=0, create=true,
        step=None, pin=None, later_pins_stay=false, read_only=false,
        check_disk=true, merge_reads=true))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        memory: &str,
        max_disk_bytes: Option<u64>,
        max_held_bytes: Option<u64>,
        page_bytes: Option<usize>,
        segment_bytes: Option<u64>,
        cold_directory: Option<PathBuf>,
        pmem_path: Option<PathBuf>,
        io: &str,
        policy: &str,
        window_bytes: Option<u64>,
        window_group: usize,
        merge_picker: &str,
        upkeep_scheduler: &str,
        top_share: Option<f64>,
        filters: bool,
        keep: usize,
        seed: u64,
        create: bool,
        step: Option<u64>,
        pin: Option<String>,
        later_pins_stay: bool,
        read_only: bool,
        check_disk: bool,
        merge_reads: bool,
    ) -> PyResult<Self> {
        let options = core::StoreOptions {
            memory: core::Memory::from_str(memory).or_raise(py)?,
            memory_unit: core::MemoryUnit::of(memory),
            max_disk_bytes,
            max_held_bytes,
            page_bytes,
            segment_bytes,
            cold_directory,
            pmem_directory: pmem_path,
            merge_reads,
            io: core::config::IoChoice::from_str(io).or_raise(py)?,
            policy: policy_kind(py, policy)?,
            window_bytes,
            window_group,
            merge_picker: core::MergePicker::from_str(merge_picker).or_raise(py)?,
            upkeep_scheduler: core::UpkeepScheduler::from_str(upkeep_scheduler).or_raise(py)?,
            top_share,
            filters,
            journal_bytes_min: core::config::JOURNAL_BYTES_MIN,
            keep,
            seed,
            create,
            step,
            pin,
            later_pins_stay,
            read_only,
            check_disk,
        };
        let core = py.call_engine(|| core::Store::open(&path, options)).or_raise(py)?;
        let store = Self(core, Budget { memory: memory.to_owned(), told: AtomicBool::new(false) });
        store.tell_budget(py)?;
        Ok(store)
    }

    /// Creates the table that the JSON text describes, or opens it when it has equal parameters.
    fn table(&self, py: Python<'_>, spec: &str) -> PyResult<TableId> {
        let spec: core::TableSpec = serde_json::from_str(spec)
            .map_err(|error| misuse(py, format!("table parameters: {error}")))?;
        py.call_engine(|| self.0.table(&spec)).map(TableId).or_raise(py)
    }

    /// The table of that name, or None.
    fn find_table(&self, py: Python<'_>, name: &str) -> PyResult<Option<TableId>> {
        self.check_call(py)?;
        Ok(py.call_engine(|| self.0.find_table(name)).map(TableId))
    }

    /// Handles of all tables, in order of creation.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<TableId>> {
        self.check_call(py)?;
        let tables = py.call_engine(|| self.0.tables());
        Ok(tables.into_iter().map(|info| TableId(info.id)).collect())
    }

    /// The facts about a table, as a dict.
    fn table_info(&self, py: Python<'_>, table: PyRef<'_, TableId>) -> PyResult<Py<PyAny>> {
        let table = table.0;
        let info = py.call_engine(|| self.0.table_info(table)).or_raise(py)?;
        json_value(py, &info)
    }

    /// Drops a table with all its rows, with the next commit.
    fn drop_table(&self, py: Python<'_>, table: PyRef<'_, TableId>) -> PyResult<()> {
        let table = table.0;
        py.call_engine(|| self.0.drop_table(table)).or_raise(py)
    }

    /// Gives a table another name, with the next commit.
    fn rename_table(&self, py: Python<'_>, table: PyRef<'_, TableId>, name: &str) -> PyResult<()> {
        let table = table.0;
        py.call_engine(|| self.0.rename_table(table, name)).or_raise(py)
    }

    /// Gives a dense table more ids, with the next commit.
    fn grow_table(
        &self,
        py: Python<'_>,
        table: PyRef<'_, TableId>,
        num_embeddings: u64,
    ) -> PyResult<()> {
        let table = table.0;
        py.call_engine(|| self.0.grow_table(table, num_embeddings)).or_raise(py)
    }

    /// Fills each batch's values (and state) with the rows of its keys. Values are float32, or
    /// uint16 to take the bits of the table's own dtype of 2 bytes.
    fn get(&self, py: Python<'_>, batches: Vec<GetParts<'_>>) -> PyResult<()> {
        let mut arrays = Arrays::default();
        let mut outputs = Vec::with_capacity(batches.len());
        for (_, keys, values, state) in &batches {
            keys.note(&mut arrays);
            values.note(&mut arrays)?;
            state.iter().try_for_each(|state| arrays.fill(state))?;
        }
        let _loan = arrays.lend(py)?;
        for (_, _, values, state) in &batches {
            outputs.push((values.to_fill()?, state.as_ref().map(to_fill).transpose()?));
        }
        let mut requests = Vec::with_capacity(batches.len());
        for ((table, keys, _, _), (values, state)) in batches.iter().zip(&mut outputs) {
            requests.push(core::GetBatch {
                table: table.0,
                keys: keys.as_slice(),
                values: values.as_out()?,
                state: state.as_mut().map(|state| state.as_slice_mut()).transpose()?,
            });
        }
        py.call_engine(|| self.0.get(&mut requests)).or_raise(py)?;
        self.tell_budget(py)
    }

    /// Writes rows; of equal keys the last one wins.
    fn put(
        &self,
        py: Python<'_>,
        batches: Vec<PutParts<'_>>,
        reset_state: bool,
        non_finite: &str,
    ) -> PyResult<()> {
        let non_finite = non_finite_choice(py, non_finite)?;
        let mut arrays = Arrays::default();
        let mut requests = Vec::with_capacity(batches.len());
        for (table, keys, values, state) in &batches {
            values.note(&mut arrays, "values")?;
            state.iter().try_for_each(|state| state.note(&mut arrays, "state"))?;
            requests.push(core::PutBatch {
                table: table.0,
                keys: keys.as_slice(),
                values: values.as_slice()?,
                state: state.as_ref().map(|state| state.as_slice()).transpose()?,
                reset_state,
                non_finite,
            });
        }
        let _loan = arrays.lend(py)?;
        py.call_engine(|| self.0.put(&requests)).or_raise(py)?;
        self.tell_budget(py)
    }

    /// One optimizer step per distinct key, with gradients within the bounds (value, row_norm,
    /// norm) and the norm of others; returns (rows updated, rows skipped, rows saturated, norm).
    #[pyo3(signature = (batches, non_finite, step=None, clip=None))]
    fn update(
        &self,
        py: Python<'_>,
        batches: Vec<UpdateParts<'_>>,
        non_finite: &str,
        step: Option<u64>,
        clip: Option<Bounds>,
    ) -> PyResult<(u64, u64, u64, Option<f64>)> {
        let (requests, clip) = (update_batches(py, &batches, non_finite, step)?, bounds(clip));
        let _loan = gradients(&batches)?.lend(py)?;
        let report = py.call_engine(|| self.0.update_within(&requests, &clip)).or_raise(py)?;
        self.tell_budget(py)?;
        Ok((report.rows, report.skipped, report.saturated, report.norm))
    }

    /// The norm that an update with the same bounds would scale.
    #[pyo3(signature = (batches, non_finite, clip=None))]
    fn gradient_norm(
        &self,
        py: Python<'_>,
        batches: Vec<UpdateParts<'_>>,
        non_finite: &str,
        clip: Option<Bounds>,
    ) -> PyResult<f64> {
        let (requests, clip) = (update_batches(py, &batches, non_finite, None)?, bounds(clip));
        let _loan = gradients(&batches)?.lend(py)?;
        py.call_engine(|| self.0.gradient_norm(&requests, &clip)).or_raise(py)
    }

    /// Calls `function(values, state)` with the rows of the distinct keys and stores what the two
    /// arrays hold afterwards.
    fn modify(
        &self,
        py: Python<'_>,
        table: PyRef<'_, TableId>,
        keys: Keys,
        function: Py<PyAny>,
    ) -> PyResult<()> {
        modify::modify(py, &self.0, table.0, keys.as_slice(), &function)?;
        self.tell_budget(py)
    }

    /// Raises what every call raises that would wait for ever: `ForkedError` in a forked child,
    /// `MisuseError` on a thread that runs the function of a `modify` of this store.
    fn check_call(&self, py: Python<'_>) -> PyResult<()> {
        self.0.check_call().or_raise(py)
    }

    /// Whether the store refuses changes after an error.
    fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    /// The identity of the store.
    fn id(&self) -> String {
        format!("{:032x}", self.0.id())
    }

    /// The seed of initial rows.
    fn seed(&self) -> u64 {
        self.0.seed()
    }

    /// Raises where a reader holds a commit later than that of this number, or one is pinned that
    /// is not to stay.
    fn check_may_go_back(
        &self,
        py: Python<'_>,
        sequence: u64,
        later_pins_stay: bool,
    ) -> PyResult<()> {
        self.check_call(py)?;
        py.call_engine(|| self.0.check_may_go_back(sequence, later_pins_stay)).or_raise(py)
    }

    /// Whether the commit at hand is held, so that no writer drops it.
    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_call(py)?;
        Ok(py.call_engine(|| self.0.is_held()))
    }

    /// Deletes keys; returns how many had a row.
    fn delete(&self, py: Python<'_>, table: PyRef<'_, TableId>, keys: Keys) -> PyResult<u64> {
        let (table, keys) = (table.0, keys.as_slice());
        py.call_engine(|| self.0.delete(table, keys)).or_raise(py)
    }

    /// Sets `out[i]` where `keys[i]` has a row.
    fn contains(
        &self,
        py: Python<'_>,
        table: PyRef<'_, TableId>,
        keys: Keys,
        mut out: PyReadwriteArray1<'_, bool>,
    ) -> PyResult<()> {
        let (table, keys, out) = (table.0, keys.as_slice(), out.as_slice_mut()?);
        py.call_engine(|| self.0.contains(table, keys, out)).or_raise(py)
    }

    /// Brings hot rows to where they are read soonest; returns how many came.
    fn promote(&self, py: Python<'_>, table: PyRef<'_, TableId>, keys: Keys) -> PyResult<u64> {
        let (table, keys) = (table.0, keys.as_slice());
        let promoted = py.call_engine(|| self.0.promote(table, keys)).or_raise(py)?;
        self.tell_budget(py)?;
        Ok(promoted)
    }

    /// Announces the keys of one coming get of the table.
    fn lookahead(&self, py: Python<'_>, table: PyRef<'_, TableId>, keys: Keys) -> PyResult<()> {
        let (table, keys) = (table.0, keys.as_slice());
        py.call_engine(|| self.0.lookahead(table, keys)).or_raise(py)?;
        self.tell_budget(py)
    }

    /// Announces the keys of one coming batch; returns its number, or None when the window is
    /// full.
    fn announce(&self, py: Python<'_>, batch: Vec<LookaheadParts<'_>>) -> PyResult<Option<u64>> {
        let number = window::announce(py, &self.0, &batch)?;
        self.tell_budget(py)?;
        Ok(number)
    }

    /// Announces the keys of one coming batch and in how many stretches of the schedule each row is
    /// used again; -1 where nobody knows.
    fn announce_scheduled(
        &self,
        py: Python<'_>,
        batch: Vec<ScheduledParts<'_>>,
        stretch: u64,
        batches: u32,
        furthest: u32,
    ) -> PyResult<Option<u64>> {
        let scheduled = core::ScheduledBatch { stretch, batches, furthest };
        let number = window::announce_scheduled(py, &self.0, &batch, scheduled)?;
        self.tell_budget(py)?;
        Ok(number)
    }

    /// Announces runs of ids, each from one of `first` to before the same of `last`; returns their
    /// number, or None when there is no room for them.
    fn announce_range(
        &self,
        py: Python<'_>,
        table: PyRef<'_, TableId>,
        first: Keys,
        last: Keys,
    ) -> PyResult<Option<u64>> {
        let number = window::announce_range(py, &self.0, table.0, (&first, &last))?;
        self.tell_budget(py)?;
        Ok(number)
    }

    /// Waits until a batch that is about to be read was read ahead.
    fn begin(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        window::begin(py, &self.0, number)
    }

    /// Batches up to this one, or one range, are done with; the rows of a range leave then, with
    /// `evict`.
    #[pyo3(signature = (number, evict=false))]
    fn finish(&self, py: Python<'_>, number: u64, evict: bool) -> PyResult<()> {
        py.call_engine(|| match evict {
            true => self.0.finish_range(number),
            false => self.0.finish(number),
        })
        .or_raise(py)
    }

    /// Forgets what is announced.
    fn clear_announced(&self, py: Python<'_>) -> PyResult<()> {
        py.call_engine(|| self.0.clear_announced()).or_raise(py)
    }

    /// Forgets what is announced and gives the window's memory back.
    fn release_window(&self, py: Python<'_>) -> PyResult<()> {
        py.call_engine(|| self.0.release_window()).or_raise(py)
    }

    /// Lets the window rest, or go on.
    fn pause_window(&self, py: Python<'_>, pause: bool) -> PyResult<()> {
        py.call_engine(|| self.0.pause_window(pause)).or_raise(py)
    }

    /// The counters of the look-ahead window, as a dict.
    fn window_stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = py.call_engine(|| self.0.window_stats()).or_raise(py)?;
        json_value(py, &stats)
    }

    /// Rows used by verbs, those of them that were missing, rows read ahead; seconds blocked in
    /// reads.
    fn row_reads(&self) -> (u64, u64, u64, f64) {
        let reads = self.0.row_reads();
        (reads.used, reads.missed, reads.ahead, reads.wait_s)
    }

    /// Number of keys of the table that are written and not deleted.
    fn len(&self, py: Python<'_>, table: PyRef<'_, TableId>) -> PyResult<u64> {
        let table = table.0;
        py.call_engine(|| self.0.len(table)).or_raise(py)
    }

    /// Starts an iteration over the written rows of the table; `stored` wants them in the order of
    /// storage, each page once, where that is another one than that of ids.
    #[pyo3(signature = (table, stored=false))]
    fn scan(&self, py: Python<'_>, table: PyRef<'_, TableId>, stored: bool) -> PyResult<Scan> {
        let table = table.0;
        let begin =
            if stored { embedrock_core::Store::scan_stored } else { embedrock_core::Store::scan };
        let scan = py.call_engine(|| begin(&self.0, table)).or_raise(py)?;
        Ok(Scan::new(self.0.clone(), scan))
    }

    /// A hash of all written rows, values and state, independent of their order.
    ///
    /// `progress(done, total)` is called now and then, in rows; what it raises ends the digest.
    #[pyo3(signature = (table, progress=None))]
    fn digest(
        &self,
        py: Python<'_>,
        table: PyRef<'_, TableId>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let table = table.0;
        let mut carried = Carried::default();
        let outcome = py.call_engine(|| {
            self.0.digest(table, &mut |done, total| {
                report(&mut carried, progress.as_ref(), done, total)
            })
        });
        carried.resolve(py, outcome)
    }

    /// Fills the cache with stored rows; returns how many were loaded.
    fn warm(&self, py: Python<'_>) -> PyResult<u64> {
        let rows = py.call_engine(|| self.0.warm()).or_raise(py)?;
        self.tell_budget(py)?;
        Ok(rows)
    }

    /// Makes everything so far durable under `step`, and pins it under a name if there is one;
    /// returns the commit as a dict.
    #[pyo3(signature = (step, meta, state, pin=None))]
    fn commit(
        &self,
        py: Python<'_>,
        step: u64,
        meta: &str,
        state: Vec<(PyBackedStr, PyBackedBytes)>,
        pin: Option<&str>,
    ) -> PyResult<Py<PyAny>> {
        let state: Vec<(&str, &[u8])> =
            state.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
        let made = py.call_engine(|| match pin {
            Some(name) => self.0.commit_pinned(step, meta, &state, name),
            None => self.0.commit(step, meta, &state),
        });
        let info = made.or_raise(py)?;
        json_value(py, &info)
    }

    /// As `commit`, with the named byte strings of the commit before.
    fn commit_with_last_state(&self, py: Python<'_>, step: u64, meta: &str) -> PyResult<Py<PyAny>> {
        let info = py.call_engine(|| self.0.commit_with_last_state(step, meta)).or_raise(py)?;
        json_value(py, &info)
    }

    /// As `commit`, without waiting for the disk.
    #[pyo3(signature = (step, meta, state, pin=None))]
    fn commit_in_background(
        &self,
        py: Python<'_>,
        step: u64,
        meta: &str,
        state: Vec<(PyBackedStr, PyBackedBytes)>,
        pin: Option<&str>,
    ) -> PyResult<PendingCommit> {
        let state: Vec<(&str, &[u8])> =
            state.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
        let pending = py.call_engine(|| match pin {
            Some(name) => self.0.commit_pinned_in_background(step, meta, &state, name),
            None => self.0.commit_in_background(step, meta, &state),
        });
        Ok(PendingCommit(pending.or_raise(py)?))
    }

    /// Keeps the commit of a step until the name is taken away; returns the pin as a dict.
    fn pin(&self, py: Python<'_>, step: u64, name: &str) -> PyResult<Py<PyAny>> {
        let pin = py.call_engine(|| self.0.pin(step, name)).or_raise(py)?;
        json_value(py, &pin)
    }

    /// Takes a name away from its commit.
    fn unpin(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.call_engine(|| self.0.unpin(name)).or_raise(py)
    }

    /// The pinned commits, oldest first, as dicts.
    fn pins(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let pins = py.call_engine(|| self.0.pins()).or_raise(py)?;
        json_value(py, &pins)
    }

    /// The commits that are kept, oldest first, as dicts.
    fn commits(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.check_call(py)?;
        let commits = py.call_engine(|| self.0.commits());
        json_value(py, &commits)
    }

    /// The commit opened at or made last, as a dict, or None.
    fn last_commit(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.check_call(py)?;
        let commit = py.call_engine(|| self.0.last_commit());
        json_value(py, &commit)
    }

    /// Moves a reader to the newest commit; that commit as a dict, or None when it was open.
    fn refresh(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let commit = py.call_engine(|| self.0.refresh()).or_raise(py)?;
        json_value(py, &commit)
    }

    /// The named byte strings of the commit opened at or made last.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
        let state = py.call_engine(|| self.0.state()).or_raise(py)?;
        Ok(state.into_iter().map(|(name, bytes)| (name, PyBytes::new(py, &bytes))).collect())
    }

    /// The changes that closing would lose: (batches, rows touched) since the last commit.
    fn uncommitted(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.check_call(py)?;
        let uncommitted = self.0.uncommitted();
        Ok((uncommitted.batches, uncommitted.rows))
    }

    /// Counters and sizes, as a nested dict.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = py.call_engine(|| self.0.stats()).or_raise(py)?;
        json_value(py, &stats)
    }

    /// Random reads per second of the device under the store's pages, measured for `seconds`.
    #[pyo3(signature = (seconds, bytes=None, depth=None))]
    fn device_rate(
        &self,
        py: Python<'_>,
        seconds: f64,
        bytes: Option<usize>,
        depth: Option<usize>,
    ) -> PyResult<f64> {
        py.call_engine(|| self.0.device_rate(bytes, depth, seconds)).or_raise(py)
    }

    /// Closes the store; returns the (batches, rows) that no commit holds.
    fn close(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let lost = py.call_engine(|| self.0.close()).or_raise(py)?;
        Ok((lost.batches, lost.rows))
    }
}

fn update_batches<'a>(
    py: Python<'_>,
    batches: &'a [UpdateParts<'_>],
    non_finite: &str,
    step: Option<u64>,
) -> PyResult<Vec<core::UpdateBatch<'a>>> {
    let non_finite = non_finite_choice(py, non_finite)?;
    let request = |(table, keys, gradients, hyper): &'a UpdateParts<'_>| {
        Ok(core::UpdateBatch {
            table: table.0,
            keys: keys.as_slice(),
            gradients: gradients.as_slice()?,
            hyper: hyper.0,
            non_finite,
            step,
        })
    };
    batches.iter().map(request).collect()
}

fn gradients<'py>(batches: &[UpdateParts<'py>]) -> PyResult<Arrays<'py>> {
    let mut arrays = Arrays::default();
    batches.iter().try_for_each(|(_, _, gradients, _)| gradients.note(&mut arrays, "gradients"))?;
    Ok(arrays)
}

fn bounds(given: Option<Bounds>) -> core::Clip {
    let (value, row_norm, norm, other_norm) = given.unwrap_or_default();
    core::Clip { value, row_norm, norm, other_norm }
}

fn policy_kind(py: Python<'_>, name: &str) -> PyResult<core::config::PolicyKind> {
    match name {
        "lru" => Ok(core::config::PolicyKind::Lru),
        "lfu" => Ok(core::config::PolicyKind::Lfu),
        _ => Err(misuse(py, format!("policy is {name:?}, expected \"lru\" or \"lfu\""))),
    }
}

fn non_finite_choice(py: Python<'_>, name: &str) -> PyResult<core::NonFinite> {
    match name {
        "refuse" => Ok(core::NonFinite::Refuse),
        "skip" => Ok(core::NonFinite::Skip),
        "apply" => Ok(core::NonFinite::Apply),
        _ => Err(misuse(
            py,
            format!("non_finite is {name:?}, expected \"refuse\", \"skip\" or \"apply\""),
        )),
    }
}
