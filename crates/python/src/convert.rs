//! Conversions that several files share: values of the engine as objects, progress, amounts as
//! texts.

use crate::error::{Carried, misuse};
use embedrock_core::{Amount, Result};
use pyo3::prelude::*;
use serde::Serialize;

/// A serializable value as plain Python objects: the result of `json.loads`.
///
/// The way through text is meant. A number of 32 bits becomes the number that it is written as, 0.1
/// and not 0.10000000149011612, a sequence a list, and what is no number None.
pub(crate) fn json_value(py: Python<'_>, value: &impl Serialize) -> PyResult<Py<PyAny>> {
    let text = serde_json::to_string(value).map_err(|error| misuse(py, error.to_string()))?;
    Ok(py.import("json")?.call_method1("loads", (text,))?.unbind())
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

/// Bytes or per cent that a text names, and whether it is per cent; None for what names neither.
#[pyfunction]
pub(crate) fn amount_of(text: &str) -> Option<(f64, bool)> {
    text.parse().ok().map(|amount| match amount {
        Amount::Bytes(bytes) => (bytes, false),
        Amount::Percent(percent) => (percent, true),
    })
}
