//! Errors of the engine as Python exceptions.
//!
//! The class of an error is the name of its kind with `Error` behind it, looked up in
//! `embedrock.errors`; a kind without a class becomes the root class, and a test compares the two
//! lists so that this does not happen unseen.

use embedrock_core::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::error::Error as _;

/// The exception for `error`, with `errno` set where the operating system gave a number.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|failure| failure)
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let module = py.import("embedrock.errors")?;
    let name = format!("{:?}Error", error.kind());
    let class = match module.getattr(name.as_str()) {
        Ok(class) => class,
        Err(_) => module.getattr("EmbedrockError")?,
    };
    let exception = class.cast_into::<PyType>()?.call1((error.message(),))?;
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    if let (ErrorKind::Io, Some(number)) =
        (error.kind(), source.and_then(std::io::Error::raw_os_error))
    {
        exception.setattr("errno", number)?;
    }
    Ok(PyErr::from_value(exception))
}

/// Turns the engine's result into Python's.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception that mirrors the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for embedrock_core::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| to_python(py, &error))
    }
}

/// A `MisuseError` that says `message`.
pub(crate) fn misuse(py: Python<'_>, message: impl Into<String>) -> PyErr {
    to_python(py, &Error::new(ErrorKind::Misuse, message))
}

/// Carries an exception of a caller's callback through the engine.
///
/// The engine only sees an error of kind `Callback`; afterwards [`Self::resolve`] raises the
/// exception that was set aside, unchanged.
#[derive(Default)]
pub(crate) struct Carried(Option<PyErr>);

impl Carried {
    /// Sets the exception of `result` aside and gives the engine an error of its own.
    pub(crate) fn keep<T>(&mut self, result: PyResult<T>) -> embedrock_core::Result<T> {
        result.map_err(|exception| {
            self.0 = Some(exception);
            Error::new(ErrorKind::Callback, "the caller's function raised an exception")
        })
    }

    /// The engine's result, or the exception that was set aside.
    pub(crate) fn resolve<T>(
        self,
        py: Python<'_>,
        result: embedrock_core::Result<T>,
    ) -> PyResult<T> {
        match (self.0, result) {
            (Some(exception), _) => Err(exception),
            (None, result) => result.or_raise(py),
        }
    }
}
