//! Log records of the engine on their way to Python's `logging`, or to standard error.
//!
//! A thread that logs may hold locks of a store, and must not wait for the interpreter: the thread
//! that has it may wait for the same store, a handler of the program may call it, a forked child
//! has locks that nobody opens, and a thread that asks for the interpreter while it ends never runs
//! again. So no record is handed over by the thread that makes it (as `pyo3-log` does). It waits in
//! one of a bounded number of places that are never waited for, and goes to Python where a call
//! from Python comes back from the engine: attached, without a lock, in the order in which records
//! were made and with the time and the thread of then. A record of a thread of the engine comes
//! with the next call, of any thread, or at the end of the program. A thread of our own that waits
//! for records would bring them at once, but Python warns of every fork of a process with threads.
//!
//! A verb pays a look at one flag for it. Records beyond the places are counted, and told.
//!
//! `embedrock serve` has its records written to standard error by the thread that makes them, at
//! once, so that the last one before a crash is there ([`embedrock_server::logs::Lines`]).

use embedrock_server::logs::{Lines, Record, Waiting, line};
use log::{Level, LevelFilter, Log, Metadata};
use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit, PyValueError};
use pyo3::marker::Ungil;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::cell::Cell;
use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Targets of the crates of this program begin with this; others are left out.
const OURS: &str = "embedrock";

static WAITING: Waiting<Record> = Waiting::new();
/// The destination of lines, in a program that has asked for them.
static LINES: OnceLock<Lines> = OnceLock::new();
/// The function of Python that takes records.
static RECEIVER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
/// The interpreter is about to end: no more of its code is called.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread hands records over, or is in a function that the engine calls with locks held.
    static IS_BUSY: Cell<bool> = const { Cell::new(false) };
}

struct ToPython;

impl Log for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with(OURS)
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        match LINES.get() {
            Some(lines) => lines.push(record),
            None if IS_CLOSED.load(Ordering::Relaxed) => {}
            None => WAITING.push(Record::of(record)),
        }
    }

    fn flush(&self) {}
}

/// Has records of the engine come here.
pub(crate) fn begin() {
    static LOGGER: ToPython = ToPython;
    // The crate is part of this library alone, so that nobody was faster.
    if log::set_logger(&LOGGER).is_ok() {
        // A program filters records with its own loggers: there are few records.
        log::set_max_level(LevelFilter::Debug);
    }
}

/// Calls of the engine from Python.
pub(crate) trait CallEngine {
    /// Runs a call detached from the interpreter, and hands over what was logged until then.
    fn call_engine<T: Ungil, F: Ungil + FnOnce() -> T>(self, call: F) -> T;
}

impl CallEngine for Python<'_> {
    fn call_engine<T: Ungil, F: Ungil + FnOnce() -> T>(self, call: F) -> T {
        let outcome = self.detach(call);
        if !WAITING.is_empty() {
            hand_over(self);
        }
        outcome
    }
}

/// Runs a function of Python that the engine calls with locks held: what calls of other stores log
/// meanwhile is handed over later.
pub(crate) fn with_locks_held<T>(call: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_BUSY.set(self.0);
        }
    }
    let _before = Before(IS_BUSY.replace(true));
    call()
}

/// Runs something that logs nothing.
pub(crate) fn quietly<T>(run: impl FnOnce() -> T) -> T {
    struct Before(LevelFilter);
    impl Drop for Before {
        fn drop(&mut self) {
            log::set_max_level(self.0);
        }
    }
    let _before = Before(log::max_level());
    log::set_max_level(LevelFilter::Off);
    run()
}

#[cold]
fn hand_over(py: Python<'_>) {
    // A handler that calls a store gets the records of that behind this one.
    if IS_CLOSED.load(Ordering::Relaxed) || IS_BUSY.get() {
        return;
    }
    let Some(receiver) = RECEIVER.get(py) else { return };
    let (records, left_out) = WAITING.take();
    let own = std::process::id();
    let own = records.into_iter().filter(|record| record.process == own).map(|record| {
        let Record { level, target, message, unix_time, thread, file, line, .. } = record;
        let target = target.replace("::", ".");
        (number_of(level), target, message, unix_time.as_secs_f64(), thread, file, line)
    });
    let own: Vec<_> = own.collect();
    if own.is_empty() && left_out == 0 {
        return;
    }
    with_locks_held(|| {
        if let Err(error) = receiver.call1(py, (own, left_out)) {
            raise_later(py, error);
        }
    });
}

/// An exception that a filter or a handler raises ends no call of the engine. An exception of a
/// signal that came meanwhile is raised once more, when the call has returned.
fn raise_later(py: Python<'_>, error: PyErr) {
    const SIGINT: i32 = 2;
    const SIGTERM: i32 = 15;
    let signal = if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        SIGINT
    } else if error.is_instance_of::<PySystemExit>(py) {
        SIGTERM
    } else {
        return error.write_unraisable(py, None);
    };
    // Only notes it: no code of Python runs before the call has returned.
    let noted = py.import("_thread").and_then(|m| m.call_method1("interrupt_main", (signal,)));
    if let Err(error) = noted {
        error.write_unraisable(py, None);
    }
}

/// The level that Python's `logging` has for one of ours.
fn number_of(level: Level) -> u8 {
    match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug => 10,
        Level::Trace => 5,
    }
}

/// Has records go to `receiver(records, left_out)`: a list of (level, logger, message, time,
/// thread, file, line), and how many were left out before them. Once for a process.
#[pyfunction]
pub(crate) fn set_log_receiver(py: Python<'_>, receiver: Py<PyAny>) {
    // A module that is loaded again has the same function.
    let _ = RECEIVER.set(py, receiver);
}

/// Hands over what waits; with `is_last` nothing is handed over from then on.
#[pyfunction]
#[pyo3(signature = (*, is_last=false))]
pub(crate) fn hand_over_logs(py: Python<'_>, is_last: bool) {
    if let Some(lines) = LINES.get() {
        lines.flush();
    }
    hand_over(py);
    if is_last {
        IS_CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Has records written to standard error by the thread that makes them, from now on: those of this
/// level (`error`, `warn`, `info`, `debug`) and worse. The descriptor is copied, so that no file
/// that is opened later ever gets a line. Once for a process.
#[pyfunction]
pub(crate) fn log_to_stderr(level: &str) -> PyResult<()> {
    let level: Level = level.parse().map_err(|_| {
        PyValueError::new_err(format!("{level:?} is no level, expected error, warn, info or debug"))
    })?;
    use std::os::fd::AsFd;
    let copied = std::io::stderr().as_fd().try_clone_to_owned()?;
    let _ = LINES.set(Lines::new(File::from(copied), level));
    Ok(())
}

/// A line as `log_to_stderr` writes it, for records of Python's `logging`.
#[pyfunction]
pub(crate) fn log_line(level: &str, logger: &str, message: &str, created: f64) -> String {
    let level: Level = level.parse().unwrap_or(Level::Debug);
    let unix_time = std::time::Duration::try_from_secs_f64(created).unwrap_or_default();
    let target = logger.replace('.', "::");
    let record = Record {
        level,
        target,
        message: message.to_owned(),
        unix_time,
        thread: String::new(),
        file: String::new(),
        line: 0,
        process: 0,
    };
    String::from_utf8_lossy(&line(&record)).into_owned()
}
