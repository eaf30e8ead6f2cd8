//! Promises of a process that may be killed, in a file beside its store: written before and after
//! each commit, so that they are known even if the pipe to the parent is cut off.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// The first change of this life is about to be made: from here on, later commits than the one
    /// that was opened may be gone.
    Change,
    /// A commit is about to begin.
    Commit(u64),
    /// It was acknowledged.
    Done(u64),
}

/// The file, open to be written.
pub(crate) struct Promises(File);

impl Promises {
    pub(crate) fn open(path: &Path) -> Self {
        Self(OpenOptions::new().create(true).append(true).open(path).unwrap())
    }

    /// Adds a line and makes it durable before anything else is done.
    pub(crate) fn note(&mut self, promise: Promise) {
        let line = match promise {
            Promise::Change => "change\n".to_owned(),
            Promise::Commit(step) => format!("commit {step}\n"),
            Promise::Done(step) => format!("done {step}\n"),
        };
        self.0.write_all(line.as_bytes()).unwrap();
        self.0.sync_data().unwrap();
    }
}

/// The lines from `offset` on, and where the next one will begin. A line that the end of its writer
/// cut in two is none.
pub(crate) fn read(path: &Path, offset: u64) -> (Vec<Promise>, u64) {
    let mut text = String::new();
    let Ok(mut file) = File::open(path) else { return (Vec::new(), 0) };
    file.seek(SeekFrom::Start(offset)).unwrap();
    file.read_to_string(&mut text).unwrap();
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let promises = text[..whole].lines().map(|line| match line.split_once(' ') {
        None => Promise::Change,
        Some(("commit", step)) => Promise::Commit(step.parse().unwrap()),
        Some((_, step)) => Promise::Done(step.parse().unwrap()),
    });
    (promises.collect(), offset + whole as u64)
}
