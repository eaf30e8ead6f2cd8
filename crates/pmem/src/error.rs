//! The error type of this crate: a kind for programs, a message for people.

use std::fmt;

/// The kind of an error, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is unusable; the message says what came and what was expected.
    Misuse,
    /// The operating system refused; after a failed write or sync a region refuses changes.
    Io,
    /// Bytes of the region are not what was written; they are never returned.
    Corrupt,
    /// The region was written by a newer build.
    Unsupported,
    /// There is no room; the message names capacity, rows and the way out.
    Full,
    /// Another process has the region open.
    Locked,
}

/// An error of this crate.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<std::io::Error>,
}

/// The result of every call that can fail.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn misuse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse, message)
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    pub(crate) fn full(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Full, message)
    }

    /// An I/O error: the attempt, as in `cannot map /dev/shm/rows`, and why it failed.
    pub(crate) fn io(tried: impl fmt::Display, source: impl Into<std::io::Error>) -> Self {
        let source = source.into();
        let message = format!("{tried}: {source}");
        Self { kind: ErrorKind::Io, message, source: Some(source) }
    }

    /// The kind of the error, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
