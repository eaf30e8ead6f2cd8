//! What a row looks like: its values, then its optimizer state, all 4-byte words.
//!
//! A [`RowLayout`] is arithmetic only. It knows nothing of pages, caches or optimizers; it never
//! allocates. `row_bytes` is always a multiple of four, and equal for all tables of a row class.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, bail};

/// The largest row, values plus state: a row never straddles pages and a page has at most 64 KiB.
/// A storage layout that keeps a header in its pages has a lower limit of its own.
pub const ROW_BYTES_MAX: usize = 64 * 1024;

/// The type of the stored values. Table records carry its name; the numeric codes are reserved for
/// records that carry numbers (`docs/formats/journal.md`).
///
/// Code 0 is never written. Codes 2 (float16) and 3 (bfloat16) are reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32, little-endian on storage.
    #[default]
    Float32 = 1,
}

impl Dtype {
    /// The code of this dtype in stored records.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The dtype of a stored `code`. Errors: `Unsupported` for a reserved or unknown code.
    pub fn from_code(code: u8) -> Result<Self> {
        match code {
            1 => Ok(Self::Float32),
            2 | 3 => bail!(
                Unsupported,
                "dtype code {code} ({}) is reserved, this version stores float32 (code 1) only",
                if code == 2 { "float16" } else { "bfloat16" }
            ),
            _ => bail!(Unsupported, "dtype code {code} is unknown, expected 1 (float32)"),
        }
    }

    /// The name that users read and write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::Float32 => 4,
        }
    }
}

impl std::str::FromStr for Dtype {
    type Err = Error;

    /// Errors: `Misuse` for any name but `float32`.
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "float32" => Ok(Self::Float32),
            _ => bail!(Misuse, "dtype is {name:?}, expected \"float32\""),
        }
    }
}

/// The widths of a row: `embedding_dim` values, then `state_words` words of optimizer state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowLayout {
    embedding_dim: usize,
    state_words: usize,
}

impl RowLayout {
    /// A row of `embedding_dim` float32 values and `state_words` state words.
    ///
    /// Errors: `Misuse` when `embedding_dim` is 0 or the row exceeds [`ROW_BYTES_MAX`].
    pub fn new(embedding_dim: usize, state_words: usize) -> Result<Self> {
        if embedding_dim == 0 {
            bail!(Misuse, "embedding_dim is 0, expected at least 1");
        }
        let words = embedding_dim.saturating_add(state_words);
        if words > ROW_BYTES_MAX / 4 {
            bail!(
                Misuse,
                "row of embedding_dim {embedding_dim} with {state_words} words of optimizer state \
                 is {} bytes, at most {ROW_BYTES_MAX} fit a page; use a smaller embedding_dim or \
                 an optimizer with less state",
                words.saturating_mul(4)
            );
        }
        Ok(Self { embedding_dim, state_words })
    }

    /// Values per row.
    pub fn embedding_dim(&self) -> usize {
        self.embedding_dim
    }

    /// Words of optimizer state per row.
    pub fn state_words(&self) -> usize {
        self.state_words
    }

    /// Words of a whole row.
    pub fn row_words(&self) -> usize {
        self.embedding_dim + self.state_words
    }

    /// Bytes of a whole row, a multiple of 4.
    pub fn row_bytes(&self) -> usize {
        self.row_words() * 4
    }

    /// Splits one row in (values, state). Panics unless `row` has `row_words` words.
    #[inline]
    pub fn split<'a>(&self, row: &'a [f32]) -> (&'a [f32], &'a [f32]) {
        assert_eq!(row.len(), self.row_words(), "words of a row");
        row.split_at(self.embedding_dim)
    }

    /// Splits one row in (values, state), both writable. Panics unless `row` has `row_words` words.
    #[inline]
    pub fn split_mut<'a>(&self, row: &'a mut [f32]) -> (&'a mut [f32], &'a mut [f32]) {
        assert_eq!(row.len(), self.row_words(), "words of a row");
        row.split_at_mut(self.embedding_dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn values_come_before_state() {
        let layout = RowLayout::new(3, 2).unwrap();
        assert_eq!((layout.row_words(), layout.row_bytes()), (5, 20));
        let mut row = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(layout.split(&row), (&[1.0, 2.0, 3.0][..], &[4.0, 5.0][..]));
        layout.split_mut(&mut row).1[0] = 9.0;
        assert_eq!(row, [1.0, 2.0, 3.0, 9.0, 5.0]);
    }

    #[test]
    fn empty_and_oversized_rows_are_refused_by_name() {
        let error = RowLayout::new(0, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert!(error.message().contains("embedding_dim is 0"), "{error}");
        RowLayout::new(16_384, 0).unwrap();
        for (dim, state) in [(16_384, 1), (usize::MAX, 2)] {
            let error = RowLayout::new(dim, state).unwrap_err();
            assert!(error.message().contains("at most 65536"), "{error}");
        }
    }

    #[test]
    fn reserved_dtype_codes_are_unsupported_and_named() {
        assert_eq!(Dtype::from_code(Dtype::Float32.code()).unwrap(), Dtype::Float32);
        for (code, word) in [(0, "unknown"), (2, "float16"), (3, "bfloat16"), (9, "unknown")] {
            let error = Dtype::from_code(code).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains(word), "{error}");
        }
        assert_eq!("float32".parse::<Dtype>().unwrap(), Dtype::Float32);
        assert!("float64".parse::<Dtype>().is_err());
        assert_eq!(serde_json::to_string(&Dtype::Float32).unwrap(), "\"float32\"");
    }
}
