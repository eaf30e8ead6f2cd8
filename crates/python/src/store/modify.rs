//! `modify`: a Python function from rows to rows, called back by the engine.
//!
//! The arrays that the function sees are copies, so that it may keep them; what they hold when it
//! returns is written back. While it runs the engine holds locks of the store, and refuses calls
//! of the same store from inside it.

use super::{Carried, core, misuse};
use crate::logs::{CallEngine, with_locks_held};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;

/// Calls `function(values, state)` for the rows of the distinct keys and writes back what the two
/// arrays hold afterwards. An exception of the function changes nothing and is raised as it is.
pub(super) fn modify(
    py: Python<'_>,
    store: &core::Store,
    table: core::TableId,
    keys: &[u64],
    function: &Py<PyAny>,
) -> PyResult<()> {
    let mut carried = Carried::default();
    let outcome = py.call_engine(|| {
        store.modify(table, keys, &mut |keys, values, state| {
            carried.keep(with_locks_held(|| {
                Python::attach(|py| call(py, function, keys.len(), values, state))
            }))
        })
    });
    carried.resolve(py, outcome).map(drop)
}

fn call(
    py: Python<'_>,
    function: &Py<PyAny>,
    rows: usize,
    values: &mut [f32],
    state: &mut [f32],
) -> PyResult<()> {
    let values_array = matrix(py, values, rows)?;
    let state_array = matrix(py, state, rows)?;
    function.call1(py, (&values_array, &state_array))?;
    write_back(py, &values_array, values)?;
    write_back(py, &state_array, state)
}

fn matrix<'py>(py: Python<'py>, words: &[f32], rows: usize) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let columns = words.len().checked_div(rows).unwrap_or(0);
    PyArray1::from_slice(py, words).reshape([rows, columns])
}

fn write_back(py: Python<'_>, array: &Bound<'_, PyArray2<f32>>, words: &mut [f32]) -> PyResult<()> {
    let filled = "an array that the function given to modify got is being filled by another call";
    let array = array.try_readonly().map_err(|_| misuse(py, filled))?;
    let resized = "the function given to modify resized an array it was given";
    let slice = array.as_slice().map_err(|_| misuse(py, resized))?;
    if slice.len() != words.len() {
        return Err(misuse(py, resized));
    }
    words.copy_from_slice(slice);
    Ok(())
}
