//! Whole-store work: check every page, copy a commit.
//!
//! Both run detached and look for signals whenever the engine reports progress, so that Ctrl-C
//! ends them between two batches; what a store itself does at length reports in the same way.

use crate::error::{Carried, OrRaise};
use crate::store::json_value;
use embedrock_core::buckets::Buckets;
use embedrock_core::{CopyOptions, Memory, ResizeTo, Result, StorageKind};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::str::FromStr;

/// Raises what opening a store at `path`, to make one, would say of the place.
#[pyfunction]
pub(crate) fn check_place(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    py.detach(|| embedrock_core::check_place(&path)).or_raise(py)
}

/// Tells Python how far the engine is, and lets Ctrl-C through.
pub(crate) fn report(
    carried: &mut Carried,
    progress: Option<&Py<PyAny>>,
    done: u64,
    total: u64,
) -> Result<()> {
    Python::attach(|py| {
        let outcome = py.check_signals().and_then(|()| match progress {
            Some(progress) => progress.call1(py, (done, total)).map(drop),
            None => Ok(()),
        });
        carried.keep(outcome)
    })
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
    let outcome = py.detach(|| {
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
    let outcome = py.detach(|| {
        embedrock_core::copy_with(&path, &destination, &options, &mut |done, total| {
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
    let outcome = py.detach(|| {
        let to = ResizeTo { capacity, pmem_directory: pmem_path.as_deref(), make_empty };
        embedrock_core::resize(&path, table, &to, &mut |done, total| {
            report(&mut carried, progress.as_ref(), done, total)
        })
    });
    json_value(py, &carried.resolve(py, outcome)?)
}
