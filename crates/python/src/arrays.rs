//! NumPy arrays as slices of the engine, and `distinct`.

use crate::error::misuse;
use numpy::{
    BorrowError, Element, IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArray1,
    PyReadonlyArrayDyn, PyReadwriteArrayDyn,
};
use pyo3::prelude::*;

/// `(N,)` uint64 keys to read.
pub(crate) type Keys<'py> = PyReadonlyArray1<'py, u64>;
/// float32 rows to read, C-contiguous.
pub(crate) type Rows<'py> = PyReadonlyArrayDyn<'py, f32>;
/// float32 rows to fill, C-contiguous.
pub(crate) type RowsOut<'py> = Bound<'py, PyArrayDyn<f32>>;

/// Values to fill, C-contiguous: float32, or the bits of values of 2 bytes.
#[derive(FromPyObject)]
pub(crate) enum ValuesOut<'py> {
    /// float32.
    Float32(RowsOut<'py>),
    /// uint16.
    Bits(Bound<'py, PyArrayDyn<u16>>),
}

/// Values that this call alone fills.
pub(crate) enum FilledValues<'py> {
    Float32(PyReadwriteArrayDyn<'py, f32>),
    Bits(PyReadwriteArrayDyn<'py, u16>),
}

impl<'py> ValuesOut<'py> {
    /// As [`to_fill`].
    pub(crate) fn to_fill(&self) -> PyResult<FilledValues<'py>> {
        Ok(match self {
            Self::Float32(array) => FilledValues::Float32(to_fill(array)?),
            Self::Bits(array) => FilledValues::Bits(to_fill(array)?),
        })
    }
}

impl FilledValues<'_> {
    /// The values as the engine fills them.
    pub(crate) fn as_out(&mut self) -> PyResult<embedrock_core::ValuesOut<'_>> {
        Ok(match self {
            Self::Float32(array) => embedrock_core::ValuesOut::Float32(array.as_slice_mut()?),
            Self::Bits(array) => embedrock_core::ValuesOut::Bits(array.as_slice_mut()?),
        })
    }
}

/// Takes an array to fill for this call alone.
///
/// Errors: `MisuseError` when another array of the call, or of a call on another thread, shares its
/// memory.
pub(crate) fn to_fill<'py, T: Element>(
    array: &Bound<'py, PyArrayDyn<T>>,
) -> PyResult<PyReadwriteArrayDyn<'py, T>> {
    array.try_readwrite().map_err(|error| {
        let reason = match error {
            BorrowError::AlreadyBorrowed => {
                "out overlaps an array that this call or another thread is using; give each its own"
            }
            _ => "out is read-only, expected an array to fill",
        };
        misuse(array.py(), reason)
    })
}

/// Distinct keys in order of first occurrence, and each key's place among them.
///
/// Shapes: `keys (N,) uint64 -> (distinct (U,) uint64, inverse (N,) int64)`.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a pair of arrays, named in the documentation")]
pub(crate) fn distinct<'py>(
    py: Python<'py>,
    keys: Keys<'py>,
) -> PyResult<(Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<i64>>)> {
    let slice = keys.as_slice()?;
    let (distinct, inverse) = py.detach(|| {
        let (mut distinct, mut inverse) = (Vec::new(), Vec::new());
        embedrock_core::distinct(slice, &mut distinct, &mut inverse);
        (distinct, inverse)
    });
    Ok((distinct.into_pyarray(py), inverse.into_pyarray(py)))
}
