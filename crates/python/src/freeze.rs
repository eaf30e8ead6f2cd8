//! Freezing: a commit of a store as frozen pages, in the order of a plan.

use crate::convert::{json_value, report};
use crate::error::{Carried, OrRaise};
use crate::logs::CallEngine;
use embedrock_core::init::Initializer;
use embedrock_core::{FreezeOptions, Memory, PlannedPages};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::str::FromStr;

/// Tables that share pages: their names, rows of a page; of each row its table and key; where
/// replica pages begin, and the rows of these.
type Planned<'py> = (
    Vec<String>,
    usize,
    PyReadonlyArray1<'py, u16>,
    PyReadonlyArray1<'py, u64>,
    PyReadonlyArray1<'py, u32>,
    PyReadonlyArray1<'py, u32>,
);

/// Freezes the commit of `step` (the last one without it) into a new store at `destination`, or
/// without one what has changed in the store itself.
///
/// `progress(done, total)` is called now and then, in rows; what it raises ends the freeze.
#[pyfunction]
#[pyo3(signature = (path, destination, plans, memory, step=None, sort_bytes=268_435_456, dtype=None,
    unknown_zeros=false, candidates=10, page_bytes=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub(crate) fn freeze(
    py: Python<'_>,
    path: PathBuf,
    destination: Option<PathBuf>,
    plans: Vec<Planned<'_>>,
    memory: &str,
    step: Option<u64>,
    sort_bytes: usize,
    dtype: Option<&str>,
    unknown_zeros: bool,
    candidates: usize,
    page_bytes: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let options = FreezeOptions {
        step,
        sort_bytes,
        dtype: dtype.map(FromStr::from_str).transpose().or_raise(py)?,
        unknown: unknown_zeros.then_some(Initializer::Constant(0.0)),
        candidates_max: candidates,
        page_bytes,
        ..FreezeOptions::new(Memory::from_str(memory).or_raise(py)?)
    };
    let planned = |(tables, rows_per_page, table, key, starts, rows): Planned<'_>| {
        PyResult::Ok(PlannedPages {
            tables,
            rows_per_page,
            table: table.as_slice()?.to_vec(),
            key: key.as_slice()?.to_vec(),
            replica_starts: starts.as_slice()?.to_vec(),
            replica_rows: rows.as_slice()?.to_vec(),
        })
    };
    let plans = plans.into_iter().map(planned).collect::<PyResult<Vec<_>>>()?;
    let mut carried = Carried::default();
    let outcome = py.call_engine(|| {
        let progress = &mut |done, total| report(&mut carried, progress.as_ref(), done, total);
        match destination {
            Some(to) => embedrock_core::freeze(&path, to, &plans, &options, progress),
            None => embedrock_core::freeze_again(&path, &plans, &options, progress),
        }
    });
    json_value(py, &carried.resolve(py, outcome)?)
}
