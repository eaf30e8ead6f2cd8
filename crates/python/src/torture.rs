//! The torture run of `embedrock torture`: stores on a simulated device, inside this module.

use crate::error::misuse;
use crate::store::json_value;
use embedrock_torture::{minimise, parse, text};
use pyo3::prelude::*;

/// What replays a seed from a shell.
const COMMAND: &str = "embedrock torture";

/// Runs what `options` say, which are those of the command, from `seed` on where they name none.
///
/// `progress(line)` is called a few times a second. Ctrl-C ends the run, which tells what it has
/// counted by then; what `progress` raises ends it, too, and is raised.
#[pyfunction]
#[pyo3(signature = (options, seed, progress=None))]
pub(crate) fn torture(
    py: Python<'_>,
    options: Vec<String>,
    seed: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let command = parse(&options, seed, cores).map_err(|what| misuse(py, what))?;
    let mut raised = None;
    let report = py.detach(|| {
        let outcome = command.soak.run(&mut |at| {
            Python::attach(|py| {
                if py.check_signals().is_err() {
                    return false;
                }
                let told = progress.as_ref().map(|tell| tell.call1(py, (text::progress(at),)));
                raised = raised.take().or(told.and_then(Result::err));
                raised.is_none()
            })
        });
        let mut report = text::json(&outcome, command.soak.first, COMMAND);
        let smaller = outcome.failures.iter().find(|f| !f.hangs && !outcome.stopped).map(minimise);
        let failures: Vec<String> = outcome
            .failures
            .iter()
            .chain(&smaller)
            .map(|failure| text::failure(failure, COMMAND))
            .collect();
        report["text"] = text::outcome(&outcome).into();
        report["failure_texts"] = failures.into();
        report
    });
    match raised {
        Some(raised) => Err(raised),
        None => json_value(py, &report),
    }
}
