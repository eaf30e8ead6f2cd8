//! Iteration over what commits have changed.

use crate::convert::json_value;
use crate::error::OrRaise;
use crate::logs::CallEngine;
use crate::store::{Store, TableId};
use embedrock_core as core;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Name of the table, keys and values of rows that were written, their state, deleted keys.
type Batch<'py> = (
    String,
    Bound<'py, PyArray1<u64>>,
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<u64>>,
);

/// The changes between two commits, in batches.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct Changes {
    store: core::Store,
    /// `None` once it was closed.
    changes: Mutex<Option<core::Changes>>,
    to: Option<core::CommitInfo>,
}

#[pymethods]
impl Changes {
    /// Begins to read what changed since a commit: its step, and with `named` its number, time and
    /// bytes written, which tell it from others of that step. Without `since` all rows are given.
    #[new]
    #[pyo3(signature = (store, tables=None, since=None, named=None))]
    fn new(
        py: Python<'_>,
        store: PyRef<'_, Store>,
        tables: Option<Vec<PyRef<'_, TableId>>>,
        since: Option<u64>,
        named: Option<(u64, u64, u64)>,
    ) -> PyResult<Self> {
        let since = match (since, named) {
            (None, _) => core::Since::Nothing,
            (Some(step), None) => core::Since::Step(step),
            (Some(step), Some((sequence, unix_time, bytes_written))) => {
                core::Since::Commit { sequence, step, unix_time, bytes_written }
            }
        };
        let store = store.core().clone();
        let tables: Option<Vec<core::TableId>> =
            tables.map(|tables| tables.iter().map(|table| table.id()).collect());
        let changes = py.call_engine(|| store.changes(&since, tables.as_deref())).or_raise(py)?;
        let to = changes.commit().cloned();
        Ok(Self { store, changes: Mutex::new(Some(changes)), to })
    }

    /// The next changes, of one table: at most `most` rows, and as many deleted keys. None at the
    /// end. Values and state are flat.
    fn next_batch<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        state: bool,
    ) -> PyResult<Option<Batch<'py>>> {
        py.check_signals()?;
        // Before the lock: another thread may hold it while it waits for the engine.
        self.store.check_call().or_raise(py)?;
        let batch = py
            .call_engine(|| {
                let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
                changes.as_mut().map_or(Ok(None), |changes| changes.next_batch(most, state))
            })
            .or_raise(py)?;
        Ok(batch.map(|core::ChangedRows { table, keys, values, state, deleted }| {
            (
                table,
                keys.into_pyarray(py),
                values.into_pyarray(py),
                state.into_pyarray(py),
                deleted.into_pyarray(py),
            )
        }))
    }

    /// The commit that the changes lead to; None for a store without any.
    fn commit(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        json_value(py, &self.to)
    }

    /// Changes of tables in between, in order, each as a dict of one entry.
    fn table_events(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let events = py.call_engine(|| {
            let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            changes.as_ref().map_or_else(Vec::new, |of| of.table_events().to_vec())
        });
        json_value(py, &events)
    }

    /// Bytes that were read: of the journal, and of pages so far.
    fn bytes_read(&self, py: Python<'_>) -> (u64, u64) {
        py.call_engine(|| {
            let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            changes.as_ref().map_or((0, 0), |of| (of.journal_bytes(), of.bytes_read()))
        })
    }

    /// Lets go of the commits. The remaining changes are not given.
    fn close(&self, py: Python<'_>) {
        py.call_engine(|| self.changes.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
