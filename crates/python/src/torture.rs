//! The torture run of `embedrock torture`: stores on a simulated device, inside this module.

use crate::convert::json_value;
use crate::error::misuse;
use crate::logs::quietly;
use embedrock_torture::{Failure, minimise, parse, text};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::sync::mpsc;
use std::time::Duration;

/// The command that replays a seed from a shell.
const COMMAND: &str = "embedrock torture";
/// The search for a smaller life looks for signals so often.
const LOOK_FOR_SIGNALS: Duration = Duration::from_millis(50);

/// Runs what `options` say, which are those of the command, from `seed` on where they name none.
///
/// `progress(line)` is called a few times a second. Ctrl-C ends the run, which tells what it has
/// counted and found by then, or the search for a smaller life that fails, which is then left out.
/// Any other exception of `progress` ends the run, too, and is raised.
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
    // Simulated stores are nobody's, and fail all the time.
    let run = || {
        let outcome = command.soak.run(&mut |at| {
            Python::attach(|py| {
                if py.check_signals().is_err() {
                    return false;
                }
                let told = progress.as_ref().map(|tell| tell.call1(py, (text::progress(at),)));
                let Some(Err(error)) = told else { return true };
                if !error.is_instance_of::<PyKeyboardInterrupt>(py) {
                    raised = Some(error);
                }
                false
            })
        });
        let mut report = text::json(&outcome, command.soak.first, COMMAND);
        let smaller =
            outcome.failures.iter().find(|f| !f.hangs && !outcome.stopped).and_then(smaller);
        let failures: Vec<String> = outcome
            .failures
            .iter()
            .chain(&smaller)
            .map(|failure| text::failure(failure, COMMAND))
            .collect();
        report["text"] = text::outcome(&outcome).into();
        report["failure_texts"] = failures.into();
        report
    };
    let report = py.detach(|| quietly(run));
    match raised {
        Some(raised) => Err(raised),
        None => json_value(py, &report),
    }
}

/// The smallest part of a failed life that still fails; none after a Ctrl-C, which leaves the
/// search to its thread.
fn smaller(failure: &Failure) -> Option<Failure> {
    let (tell, told) = mpsc::channel();
    let failure = failure.clone();
    std::thread::spawn(move || drop(tell.send(minimise(&failure))));
    loop {
        match told.recv_timeout(LOOK_FOR_SIGNALS) {
            Ok(found) => return Some(found),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Python::attach(|py| py.check_signals()).ok()?;
            }
        }
    }
}
