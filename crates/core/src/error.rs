//! The error type of the engine.
//!
//! An [`Error`] has a kind for programs, a message for people and an optional source. Messages name
//! the thing, what came, what was expected and, where known, the way out. They are lower case and
//! have no full stop. Operating errors are returned; broken invariants of our own assert.

use std::fmt;

/// The kind of an error, for programs. Python mirrors each kind as an exception class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is unusable: wrong shape, dtype, name or combination of options.
    Misuse,
    /// A key lies outside `0..num_embeddings` of a dense table.
    KeyRange,
    /// An existing store or table was opened with other parameters than it has.
    Mismatch,
    /// A gradient or value is NaN or infinite and the caller did not allow it.
    NonFinite,
    /// The memory budget cannot work; the message names the bytes that would.
    Budget,
    /// No room on disk for what was asked. Nothing was changed; reads and commits go on.
    Full,
    /// Another process writes to this store; the message names it.
    Locked,
    /// The store was opened before this process was forked.
    Forked,
    /// The handle was closed.
    Closed,
    /// No such store, table or commit.
    NotFound,
    /// The commit that a reader held is gone.
    CommitGone,
    /// The operating system reported a failure.
    Io,
    /// Stored bytes are damaged; the message names file, page and table.
    Corrupt,
    /// This machine or file system lacks what was asked for.
    Unsupported,
    /// An earlier I/O error left memory and disk apart: reopen at the last commit.
    Poisoned,
    /// A caller's own callback failed.
    Callback,
}

/// An error of the engine: kind, message and source.
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync + 'static>>,
}

/// The result of every fallible call of the engine.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Builds an error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Builds an `Io` error (`Full` for ENOSPC and EDQUOT) around an operating system error.
    pub fn os(what: impl fmt::Display, source: std::io::Error) -> Self {
        let full = matches!(source.raw_os_error(), Some(libc::ENOSPC) | Some(libc::EDQUOT));
        let kind = if full { ErrorKind::Full } else { ErrorKind::Io };
        Self { kind, message: format!("{what}: {source}"), source: Some(Box::new(source)) }
    }

    /// Puts `what: ` before the message, for context that only the caller knows.
    #[must_use]
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// True when the operating system does not let this process do what it tried: on a read-only
    /// medium, or on what belongs to somebody else.
    pub(crate) fn is_refusal(&self) -> bool {
        let source = self.source.as_ref().and_then(|source| source.downcast_ref());
        let code = source.and_then(std::io::Error::raw_os_error);
        matches!(code, Some(libc::EROFS | libc::EACCES | libc::EPERM))
    }

    /// Puts `; what` behind the message: the way out, where only the caller knows it.
    #[must_use]
    pub fn followed_by(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{}; {what}", self.message);
        self
    }

    /// An error that came after something had changed. `Full` says that nothing has, so a lack of
    /// room is an `Io` error then.
    #[must_use]
    pub fn after_changes(mut self) -> Self {
        if self.kind == ErrorKind::Full {
            self.kind = ErrorKind::Io;
            self.source
                .get_or_insert_with(|| Box::new(std::io::Error::from_raw_os_error(libc::ENOSPC)));
            return self.followed_by(
                "rows had changed by then, so the store refuses writes and commits from here on: \
                 make room, close it and open it again, and it will be at its last commit",
            );
        }
        self
    }

    /// The kind of the error, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message of the error, for people.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| &**s as &(dyn std::error::Error + 'static))
    }
}

/// `bail!(Kind, "format {}", args)`: returns an [`Error`] of that kind from the function.
macro_rules! bail {
    ($kind:ident, $($arg:tt)*) => {
        return Err($crate::error::Error::new($crate::error::ErrorKind::$kind, format!($($arg)*)))
    };
}
pub(crate) use bail;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_space_left_is_full_and_not_io() {
        let error = Error::os("extend rows", std::io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(error.kind(), ErrorKind::Full);
        let error = Error::os("read rows", std::io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(error.kind(), ErrorKind::Io);
        let late = Error::os("write rows", std::io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(late.after_changes().kind(), ErrorKind::Io);
        assert!(error.context("store x").message().starts_with("store x: read rows"));
    }
}
