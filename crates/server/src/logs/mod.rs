//! Where log lines go: places in which records wait without anybody waiting for a lock, and lines
//! on standard error.
//!
//! A thread of an event loop logs, and so do threads of the engine that hold its locks, so whoever
//! logs never waits: not for another thread, not for who reads standard error, and in a forked
//! child not for a lock that a thread of the parent had. A record that finds no place is counted,
//! and the next line tells how many did.

mod lines;
mod waiting;

pub use lines::{Lines, line};
pub use waiting::Waiting;

use log::Level;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a line says, taken from the call that logs it.
#[derive(Clone, Debug)]
pub struct Record {
    /// How bad it is.
    pub level: Level,
    /// What it is about, as `embedrock::store`.
    pub target: String,
    /// What happened.
    pub message: String,
    /// When, since 1970.
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
    /// What a call of a macro of `log` says.
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
