//! The handle of a commit that runs by itself: waits are detached and look for signals.

use crate::convert::json_value;
use crate::error::OrRaise;
use crate::logs::CallEngine;
use embedrock_core as core;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// A wait looks for signals so often.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

/// A commit that runs by itself.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct PendingCommit(pub(crate) core::PendingCommit);

#[pymethods]
impl PendingCommit {
    /// True when the commit is durable or has failed.
    fn is_done(&self, py: Python<'_>) -> PyResult<bool> {
        py.call_engine(|| self.0.is_done()).or_raise(py)
    }

    /// The commit as a dict once it is durable; None when it is not within `timeout` seconds.
    /// Ctrl-C ends the wait.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        // A timeout that is too long to be added means to wait without end.
        let timeout = timeout.and_then(|s| Duration::try_from_secs_f64(s.max(0.0)).ok());
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = until.map_or(LOOK_FOR_SIGNALS, |until| until - Instant::now());
            let waited =
                py.call_engine(|| self.0.wait(Some(left.min(LOOK_FOR_SIGNALS)))).or_raise(py)?;
            if let Some(info) = waited {
                return json_value(py, &info).map(Some);
            }
            py.check_signals()?;
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(None);
            }
        }
    }
}
