//! Iteration over the written rows of a table.

use crate::arrays::{RowsOut, to_fill};
use crate::error::OrRaise;
use crate::logs::CallEngine;
use numpy::PyReadwriteArray1;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// An iteration over the written rows of a table, in the engine's order.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct Scan {
    store: embedrock_core::Store,
    scan: Mutex<embedrock_core::Scan>,
}

impl Scan {
    pub(crate) fn new(store: embedrock_core::Store, scan: embedrock_core::Scan) -> Self {
        Self { store, scan: Mutex::new(scan) }
    }
}

#[pymethods]
impl Scan {
    /// Fills the arrays with the next rows and returns how many; 0 at the end.
    ///
    /// Shapes: `keys (N,) uint64, values (N, D) float32, state (N, S) float32`.
    #[pyo3(signature = (keys, values, state=None))]
    fn next_batch<'py>(
        &self,
        py: Python<'py>,
        mut keys: PyReadwriteArray1<'py, u64>,
        values: RowsOut<'py>,
        state: Option<RowsOut<'py>>,
    ) -> PyResult<usize> {
        py.check_signals()?;
        // Before the lock: another thread may hold it while it waits for the engine.
        self.store.check_call().or_raise(py)?;
        let mut values = to_fill(&values)?;
        let mut state = state.as_ref().map(to_fill).transpose()?;
        let (keys, values) = (keys.as_slice_mut()?, values.as_slice_mut()?);
        let state = state.as_mut().map(|state| state.as_slice_mut()).transpose()?;
        py.call_engine(|| {
            let mut scan = self.scan.lock().unwrap_or_else(PoisonError::into_inner);
            scan.next_batch(keys, values, state)
        })
        .or_raise(py)
    }
}
