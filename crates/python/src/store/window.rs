//! Verbs of the look-ahead window.

use super::{LookaheadParts, ScheduledParts};
use crate::arrays::Keys;
use crate::error::{OrRaise, misuse};
use crate::logs::CallEngine;
use embedrock_core as core;
use pyo3::prelude::*;
use std::time::Duration;

/// The time that a wait goes on before the interpreter is asked for signals.
const PATIENCE: Duration = Duration::from_millis(50);

pub(super) fn announce(
    py: Python<'_>,
    store: &core::Store,
    batch: &[LookaheadParts<'_>],
) -> PyResult<Option<u64>> {
    let mut parts = Vec::with_capacity(batch.len());
    for (table, keys) in batch {
        parts.push(core::LookaheadBatch { table: table.0, keys: keys.as_slice(), next: &[] });
    }
    py.call_engine(|| store.announce(&parts)).or_raise(py)
}

pub(super) fn announce_scheduled(
    py: Python<'_>,
    store: &core::Store,
    batch: &[ScheduledParts<'_>],
    scheduled: core::ScheduledBatch,
) -> PyResult<Option<u64>> {
    // As the engine has it: one more, and 0 where nobody knows.
    let number = |stretches: &i32| stretches.saturating_add(1).clamp(0, u16::MAX.into()) as u16;
    let mut uses = Vec::with_capacity(batch.len());
    for (_, _, next) in batch {
        uses.push(next.as_slice()?.iter().map(number).collect::<Vec<_>>());
    }
    let mut parts = Vec::with_capacity(batch.len());
    for ((table, keys, _), next) in batch.iter().zip(&uses) {
        parts.push(core::LookaheadBatch { table: table.0, keys: keys.as_slice(), next });
    }
    py.call_engine(|| store.announce_scheduled(&parts, scheduled)).or_raise(py)
}

pub(super) fn announce_range(
    py: Python<'_>,
    store: &core::Store,
    table: core::TableId,
    (first, last): (&Keys, &Keys),
) -> PyResult<Option<u64>> {
    let (first, last) = (first.as_slice(), last.as_slice());
    if first.len() != last.len() {
        return Err(misuse(
            py,
            format!("first has {} ids and last {}, expected as many", first.len(), last.len()),
        ));
    }
    let runs: Vec<_> = first.iter().copied().zip(last.iter().copied()).collect();
    py.call_engine(|| store.announce_range(table, &runs)).or_raise(py)
}

/// Waits without the interpreter lock; Ctrl-C ends the wait.
pub(super) fn begin(py: Python<'_>, store: &core::Store, number: u64) -> PyResult<()> {
    while !py.call_engine(|| store.begin(number, PATIENCE)).or_raise(py)? {
        py.check_signals()?;
    }
    Ok(())
}
