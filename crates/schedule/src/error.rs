//! The error type of this crate: a kind for programs, a message for people.

use std::path::Path;
use std::{fmt, io};

/// The kind of an error, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is unusable; the message says what came and what was expected.
    Misuse,
    /// The operating system refused to read or write.
    Io,
    /// A file is damaged, or is no schedule.
    Corrupt,
    /// A file is of a newer version.
    Unsupported,
    /// The caller's progress function asked to stop.
    Stopped,
}

/// An error of this crate.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
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

    pub(crate) fn corrupt(path: &Path, what: impl fmt::Display) -> Self {
        let message = format!("{}: {what}; make the schedule again", path.display());
        Self::new(ErrorKind::Corrupt, message)
    }

    /// The kind of the error, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The failed action, and the error of the operating system that caused it; the whole message,
    /// if that was not the cause.
    pub fn into_parts(self) -> (String, Option<io::Error>) {
        (self.message, self.source)
    }
}

/// Says what was to be done with which file.
pub(crate) trait Doing<T> {
    fn doing(self, what: &str, path: &Path) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(|error| Error {
            kind: ErrorKind::Io,
            message: format!("{what} {}", path.display()),
            source: Some(error),
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(to, "{}: {source}", self.message),
            None => to.write_str(&self.message),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
