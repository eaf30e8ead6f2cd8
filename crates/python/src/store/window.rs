//! Verbs of the look-ahead window.

use super::LookaheadParts;
use crate::error::OrRaise;
use embedrock_core as core;
use pyo3::prelude::*;
use std::time::Duration;

/// How long a wait goes on before the interpreter is asked for signals.
const PATIENCE: Duration = Duration::from_millis(50);

pub(super) fn announce(
    py: Python<'_>,
    store: &core::Store,
    batch: &[LookaheadParts<'_>],
) -> PyResult<Option<u64>> {
    let mut parts = Vec::with_capacity(batch.len());
    for (table, keys) in batch {
        parts.push(core::LookaheadBatch { table: table.0, keys: keys.as_slice() });
    }
    py.detach(|| store.announce(&parts)).or_raise(py)
}

/// Waits without the interpreter lock; Ctrl-C ends the wait.
pub(super) fn begin(py: Python<'_>, store: &core::Store, number: u64) -> PyResult<()> {
    while !py.detach(|| store.begin(number, PATIENCE)).or_raise(py)? {
        py.check_signals()?;
    }
    Ok(())
}
