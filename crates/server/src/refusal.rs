//! Refusals of requests: a code for programs, a text.

use embedrock_core::{Error, ErrorKind};

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// In capitals.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    /// With the code that Redis has for what is wrong with a request.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { code: "ERR", message: message.into() }
    }

    /// With a code of its own.
    pub(crate) fn coded(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl From<Error> for Refusal {
    /// The kind of the engine's error is the code, so that clients raise the same.
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::KeyRange => "KEYRANGE",
            ErrorKind::Mismatch => "MISMATCH",
            ErrorKind::NonFinite => "NONFINITE",
            ErrorKind::Budget => "BUDGET",
            ErrorKind::Full => "FULL",
            ErrorKind::Locked => "LOCKED",
            ErrorKind::Closed => "CLOSED",
            ErrorKind::NotFound => "NOTFOUND",
            ErrorKind::CommitGone => "COMMITGONE",
            ErrorKind::Io => "IO",
            ErrorKind::Corrupt => "CORRUPT",
            ErrorKind::Unsupported => "UNSUPPORTED",
            ErrorKind::Poisoned => "POISONED",
            ErrorKind::Misuse => "MISUSE",
            _ => "ERR",
        };
        // The engine speaks to Python, which has an option of this name.
        let message = error.message().replace("non_finite=\"skip\"", "NONFINITE SKIP");
        Self::coded(code, message)
    }
}
