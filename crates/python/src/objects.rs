//! The files of one commit, and a store made of them again.

use crate::convert::{json_value, report};
use crate::error::{Carried, OrRaise, to_python};
use crate::logs::CallEngine;
use embedrock_core as core;
use embedrock_core::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// An offset and a length.
type Range = (u64, u64);

/// One commit of a store, held until it is closed.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct CommitFiles(Mutex<Option<Arc<core::CommitFiles>>>);

impl CommitFiles {
    fn open(&self, py: Python<'_>) -> PyResult<Arc<core::CommitFiles>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        held.ok_or_else(|| to_python(py, &Error::new(ErrorKind::Closed, "the commit was let go")))
    }
}

#[pymethods]
impl CommitFiles {
    #[new]
    #[pyo3(signature = (path, step=None, pin=None, cold_directory=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        step: Option<u64>,
        pin: Option<String>,
        cold_directory: Option<PathBuf>,
    ) -> PyResult<Self> {
        let held = py.call_engine(|| core::CommitFiles::open(&path, step, pin, cold_directory));
        Ok(Self(Mutex::new(Some(Arc::new(held.or_raise(py)?)))))
    }

    /// The commit.
    fn commit(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        json_value(py, self.open(py)?.commit())
    }

    /// The identity of the store, 32 digits.
    fn uuid(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("{:032x}", self.open(py)?.uuid()))
    }

    /// Bytes of all files of rows of the store.
    fn rows_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.open(py)?.rows_bytes())
    }

    /// Of each file its name, where it is, its length, the ranges that the commit needs, and those
    /// that must have room.
    #[expect(clippy::type_complexity, reason = "a list of tuples of Python")]
    fn list(
        &self,
        py: Python<'_>,
        block_bytes: u64,
    ) -> PyResult<Vec<(String, PathBuf, u64, Vec<Range>, Vec<Range>)>> {
        let held = self.open(py)?;
        let files = py.call_engine(|| held.list(block_bytes)).or_raise(py)?;
        let tuple =
            |file: core::CommitFile| (file.name, file.path, file.bytes, file.ranges, file.room);
        Ok(files.into_iter().map(tuple).collect())
    }

    /// The content of the file `head` of a store that has this commit alone.
    fn head<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let held = self.open(py)?;
        let head = py.call_engine(|| held.head()).or_raise(py)?;
        Ok(PyBytes::new(py, &head))
    }

    /// Raises `CommitGoneError` where the commit was dropped meanwhile.
    fn expect(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.open(py)?;
        py.call_engine(|| held.expect()).or_raise(py)
    }

    /// Lets go of the commit.
    fn close(&self, py: Python<'_>) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.call_engine(|| drop(held));
    }
}

/// Verifies what was pulled to a directory, and makes it a store.
///
/// `progress(done, total)` is called now and then, in pages; what it raises ends it.
#[pyfunction]
#[pyo3(signature = (path, sequence, progress=None))]
pub(crate) fn finish_pull(
    py: Python<'_>,
    path: PathBuf,
    sequence: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let mut carried = Carried::default();
    let outcome = py.call_engine(|| {
        core::finish_pull(&path, sequence, &mut |done, total| {
            report(&mut carried, progress.as_ref(), done, total)
        })
    });
    json_value(py, &carried.resolve(py, outcome)?)
}
