//! Whole-store work: check every page, copy a commit, reshard, resize.
//!
//! All run detached and look for signals whenever the engine reports progress, so that Ctrl-C
//! ends them between two batches; what a store itself does at length reports in the same way.

use crate::convert::{json_value, report};
use crate::error::{Carried, OrRaise};
use crate::logs::CallEngine;
use embedrock_core::buckets::Buckets;
use embedrock_core::{CopyOptions, Memory, Part, ReshardOptions, ResizeTo, StorageKind};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use std::path::PathBuf;
use std::str::FromStr;

/// Raises what opening a store at `path`, to make one, would say of the place.
#[pyfunction]
pub(crate) fn check_place(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    py.call_engine(|| embedrock_core::check_place(&path)).or_raise(py)
}

/// Reads and verifies every page of the store at `path`.
///
/// `progress(done, total)` is called now and then, in pages; what it raises ends the check.
#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub(crate) fn check(
    py: Python<'_>,
    path: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let mut carried = Carried::default();
    let outcome = py.call_engine(|| {
        embedrock_core::check(&path, &mut |done, total| {
            report(&mut carried, progress.as_ref(), done, total)
        })
    });
    json_value(py, &carried.resolve(py, outcome)?)
}

/// Copies the commit of `step` or `pin` (the last one without) to a new store at `destination`.
///
/// Of `buckets` alone, where they are given. `progress(done, total)` is called now and then, in
/// rows; what it raises ends the copy.
#[pyfunction]
#[pyo3(signature = (path, destination, memory, step=None, pin=None, storage=None,
    cold_directory=None, pmem_path=None, capacity=None, buckets=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub(crate) fn copy(
    py: Python<'_>,
    path: PathBuf,
    destination: PathBuf,
    memory: &str,
    step: Option<u64>,
    pin: Option<String>,
    storage: Option<&str>,
    cold_directory: Option<PathBuf>,
    pmem_path: Option<PathBuf>,
    capacity: Option<u64>,
    buckets: Option<&str>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let options = CopyOptions {
        step,
        pin,
        memory: Memory::from_str(memory).or_raise(py)?,
        storage: storage.map(StorageKind::from_str).transpose().or_raise(py)?,
        cold_directory,
        pmem_directory: pmem_path,
        capacity,
        buckets: buckets.map(Buckets::from_str).transpose().or_raise(py)?,
    };
    let mut carried = Carried::default();
    let outcome = py.call_engine(|| {
        embedrock_core::copy_with(&path, &destination, &options, &mut |done, total| {
            report(&mut carried, progress.as_ref(), done, total)
        })
    });
    json_value(py, &carried.resolve(py, outcome)?)
}

/// Makes a store at `destination` of the rows of some buckets of other stores.
///
/// `parts` are the stores, which of their buckets are taken, and how many buckets each has. The
/// commit is made at `step`, which all have. `progress(done, total)` is called now and then, in
/// rows; what it raises ends it.
#[pyfunction]
#[pyo3(signature = (parts, destination, memory, step, meta, state, progress=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub(crate) fn reshard(
    py: Python<'_>,
    parts: Vec<(PathBuf, PyBackedStr, u64)>,
    destination: PathBuf,
    memory: &str,
    step: u64,
    meta: &str,
    state: Vec<(PyBackedStr, PyBackedBytes)>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let memory = Memory::from_str(memory).or_raise(py)?;
    let part = |(path, buckets, of): (PathBuf, PyBackedStr, u64)| {
        Ok(Part { path, buckets: Buckets::from_str(&buckets).or_raise(py)?, of })
    };
    let parts = parts.into_iter().map(part).collect::<PyResult<Vec<_>>>()?;
    let state: Vec<(&str, &[u8])> = state.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    let to = ReshardOptions { step, memory, meta, state: &state };
    let mut carried = Carried::default();
    let outcome = py.call_engine(|| {
        embedrock_core::reshard(&parts, &destination, &to, &mut |done, total| {
            report(&mut carried, progress.as_ref(), done, total)
        })
    });
    json_value(py, &carried.resolve(py, outcome)?)
}

/// Gives a table on persistent memory room for `capacity` rows; returns what became of it as a
/// dict. `progress(done, total)` is called now and then, in buckets; what it raises ends the
/// resize, which changes nothing then.
#[pyfunction]
#[pyo3(signature = (path, table, capacity, pmem_path=None, make_empty=false, progress=None))]
pub(crate) fn resize(
    py: Python<'_>,
    path: PathBuf,
    table: &str,
    capacity: u64,
    pmem_path: Option<PathBuf>,
    make_empty: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let mut carried = Carried::default();
    let outcome = py.call_engine(|| {
        let to = ResizeTo { capacity, pmem_directory: pmem_path.as_deref(), make_empty };
        embedrock_core::resize(&path, table, &to, &mut |done, total| {
            report(&mut carried, progress.as_ref(), done, total)
        })
    });
    json_value(py, &carried.resolve(py, outcome)?)
}
