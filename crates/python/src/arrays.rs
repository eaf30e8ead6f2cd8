//! NumPy arrays as slices of the engine, and `distinct`.

use crate::error::misuse;
use crate::lent::{Arrays, OVERLAPS, being_filled};
use crate::logs::CallEngine;
use numpy::{
    BorrowError, Element, IntoPyArray, PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn,
    PyReadwriteArrayDyn,
};
use pyo3::prelude::*;

/// `(N,)` uint64 keys, copied while nobody else has the interpreter: the engine reads keys several
/// times without it, and what it has checked must be what it uses, whatever other threads do with
/// the caller's array.
pub(crate) struct Keys {
    keys: Vec<u64>,
    /// Address of the caller's array.
    address: usize,
}

impl Keys {
    /// The keys.
    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.keys
    }

    /// Notes where they came from.
    pub(crate) fn note(&self, arrays: &mut Arrays<'_>) {
        arrays.copied(self.address, size_of_val(&*self.keys));
    }
}

impl<'py> FromPyObject<'_, 'py> for Keys {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyArray1<u64>>()?;
        let keys = array.try_readonly().map_err(|_| misuse(object.py(), being_filled("keys")))?;
        Ok(Self { keys: keys.as_slice()?.to_vec(), address: array.data().addr() })
    }
}

/// float32 rows to read, C-contiguous. They are not copied: what another thread writes there while
/// the engine reads may count or not.
pub(crate) struct Rows<'py>(PyReadonlyArrayDyn<'py, f32>);

impl<'py> Rows<'py> {
    /// The rows.
    pub(crate) fn as_slice(&self) -> PyResult<&[f32]> {
        Ok(self.0.as_slice()?)
    }

    /// Notes where they are, and the caller's argument that they are.
    pub(crate) fn note(&self, arrays: &mut Arrays<'py>, name: &'static str) -> PyResult<()> {
        arrays.read(&self.0, name)
    }
}

impl<'py> FromPyObject<'_, 'py> for Rows<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyArrayDyn<f32>>()?;
        array.try_readonly().map(Self).map_err(|_| misuse(object.py(), being_filled("rows")))
    }
}

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
    /// Notes where they are.
    pub(crate) fn note(&self, arrays: &mut Arrays<'py>) -> PyResult<()> {
        match self {
            Self::Float32(array) => arrays.fill(array),
            Self::Bits(array) => arrays.fill(array),
        }
    }

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
            BorrowError::AlreadyBorrowed => OVERLAPS,
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
    keys: Keys,
) -> PyResult<(Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<i64>>)> {
    let slice = keys.as_slice();
    let (distinct, inverse) = py.call_engine(|| {
        let (mut distinct, mut inverse) = (Vec::new(), Vec::new());
        embedrock_core::distinct(slice, &mut distinct, &mut inverse);
        (distinct, inverse)
    });
    Ok((distinct.into_pyarray(py), inverse.into_pyarray(py)))
}
