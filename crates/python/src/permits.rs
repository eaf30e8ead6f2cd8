//! Permits of bounded staleness for Python: waits are detached and look for signals.

use crate::arrays::Keys;
use crate::convert::json_value;
use crate::error::{Carried, OrRaise};
use crate::logs::CallEngine;
use crate::store::TableId;
use embedrock_core as core;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

/// A handle and keys.
type KeyParts<'py> = (PyRef<'py, TableId>, Keys);
/// Positions of keys of one part of a batch.
type Positions<'py> = Bound<'py, PyArray1<u32>>;

/// Permits for batches in flight over the rows of one store.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct Permits(core::Permits);

#[pymethods]
impl Permits {
    /// Permits of a bound, or without one.
    #[new]
    #[pyo3(signature = (bound=None))]
    fn new(bound: Option<u64>) -> Self {
        Self(core::Permits::new(bound.unwrap_or(core::UNBOUNDED)))
    }

    /// The number of a permit for a batch, once all of its rows may be read. Ctrl-C ends the wait.
    fn acquire(&self, py: Python<'_>, batch: Vec<KeyParts<'_>>) -> PyResult<u64> {
        let parts = parts(&batch);
        let mut carried = Carried::default();
        let outcome = py.call_engine(|| {
            self.0.acquire(&parts, &mut || Python::attach(|py| carried.keep(py.check_signals())))
        });
        carried.resolve(py, outcome)
    }

    /// The number of a permit for a batch, at once, and for each part the positions of keys whose
    /// rows may not be read yet.
    fn enter<'py>(
        &self,
        py: Python<'py>,
        batch: Vec<KeyParts<'py>>,
    ) -> PyResult<(u64, Vec<Positions<'py>>)> {
        let parts = parts(&batch);
        let entered = py.call_engine(|| self.0.enter(&parts)).or_raise(py)?;
        let deferred = entered.deferred.into_iter().map(|positions| positions.into_pyarray(py));
        Ok((entered.permit, deferred.collect()))
    }

    /// Takes a permit back; returns (permit, part, positions) of what may be read because of it.
    #[pyo3(signature = (permit, applied=true))]
    fn release<'py>(
        &self,
        py: Python<'py>,
        permit: u64,
        applied: bool,
    ) -> PyResult<Vec<(u64, u32, Positions<'py>)>> {
        let take = || match applied {
            true => self.0.release(permit),
            false => self.0.give_back(permit),
        };
        let mut ready = py.call_engine(take).or_raise(py)?;
        ready.sort_unstable();
        let groups = ready.chunk_by(|a, b| (a.permit, a.part) == (b.permit, b.part));
        let told = groups.map(|group| {
            let positions: Vec<u32> = group.iter().map(|ready| ready.position).collect();
            (group[0].permit, group[0].part, positions.into_pyarray(py))
        });
        Ok(told.collect())
    }

    /// Lets other threads than the one that acquired a permit release it.
    fn hand_over(&self, py: Python<'_>, permit: u64) -> PyResult<()> {
        py.call_engine(|| self.0.hand_over(permit)).or_raise(py)
    }

    /// Counters, as a dict.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = py.call_engine(|| self.0.stats()).or_raise(py)?;
        json_value(py, &stats)
    }
}

fn parts<'a>(batch: &'a [KeyParts<'_>]) -> Vec<(core::TableId, &'a [u64])> {
    batch.iter().map(|(table, keys)| (table.id(), keys.as_slice())).collect()
}
