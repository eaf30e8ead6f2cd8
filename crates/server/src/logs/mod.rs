//! Destinations of log lines: places in which records wait without any wait for a lock, and lines
//! on standard error.
//!
//! A thread of an event loop logs, and so do threads of the engine that hold its locks, so logging
//! never waits: not for another thread, not for the reader of standard error, and in a forked child
//! not for a lock that a thread of the parent had. A record that finds no place is counted, and the
//! next line tells the count.

mod lines;
mod waiting;

pub use lines::{Lines, line};
pub use waiting::Waiting;

use log::Level;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The content of a line, taken from the call that logs it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its severity.
    pub level: Level,
    /// Its subject, as `embedrock::store`.
    pub target: String,
    /// The event.
    pub message: String,
    /// Its time, since 1970.
    pub unix_time: Duration,
    /// The name of the thread, empty for one without.
    pub thread: String,
    /// The source that says it.
    pub file: String,
    /// The line there.
    pub line: u32,
    /// The process, for a child that was forked has what its parent's threads said.
    pub process: u32,
}

impl Record {
    /// The content of a call of a macro of `log`.
    pub fn of(record: &log::Record<'_>) -> Self {
        Self {
            level: record.level(),
            target: record.target().to_owned(),
            message: record.args().to_string(),
            unix_time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            thread: std::thread::current().name().unwrap_or_default().to_owned(),
            file: record.file().unwrap_or_default().to_owned(),
            line: record.line().unwrap_or_default(),
            process: std::process::id(),
        }
    }
}
