//! 64-bit keys of texts: `embedrock.hash_keys`, and tokens of the columns of a file; buckets of
//! keys.

use crate::error::misuse;
use embedrock_core::buckets::bucket_of;
use embedrock_core::hash::text_key;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

/// The keys of a list of texts or bytes. Raises `MisuseError` with the place of the first element
/// that is neither, or no Unicode.
#[pyfunction]
pub(crate) fn hash_texts<'py>(
    py: Python<'py>,
    texts: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let mut keys = Vec::with_capacity(texts.len());
    for (place, text) in texts.iter().enumerate() {
        let key = if let Ok(text) = text.cast::<PyString>() {
            text.to_str().ok().map(|text| text_key(text.as_bytes()))
        } else {
            text.cast::<PyBytes>().ok().map(|bytes| text_key(bytes.as_bytes()))
        };
        let Some(key) = key else {
            let what = text.repr()?;
            let message = format!("strings[{place}] is {what}, expected str or bytes");
            return Err(misuse(py, message));
        };
        keys.push(key);
    }
    Ok(keys.into_pyarray(py))
}

/// The keys of pieces of a text: those of the `lengths` bytes from each of `starts`.
#[pyfunction]
pub(crate) fn hash_pieces<'py>(
    py: Python<'py>,
    text: &[u8],
    starts: PyReadonlyArray1<'py, i64>,
    lengths: PyReadonlyArray1<'py, i64>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (starts, lengths) = (starts.as_slice()?, lengths.as_slice()?);
    let piece = |(start, length): (&i64, &i64)| {
        let start = usize::try_from(*start).ok()?;
        let end = start.checked_add(usize::try_from(*length).ok()?)?;
        text.get(start..end).map(text_key)
    };
    let keys: Option<Vec<u64>> = starts.iter().zip(lengths).map(piece).collect();
    match keys {
        Some(keys) if starts.len() == lengths.len() => Ok(keys.into_pyarray(py)),
        _ => Err(misuse(py, "a piece lies outside the text")),
    }
}

/// The bucket of each key: of a table with `num_embeddings` where `is_dense`.
#[pyfunction]
pub(crate) fn buckets_of<'py>(
    py: Python<'py>,
    keys: PyReadonlyArray1<'py, u64>,
    is_dense: bool,
) -> PyResult<Bound<'py, PyArray1<u16>>> {
    let buckets = keys.as_slice()?.iter().map(|key| bucket_of(*key, is_dense));
    Ok(buckets.collect::<Vec<u16>>().into_pyarray(py))
}
