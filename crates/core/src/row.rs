//! The layout of a row: its values, then its optimizer state.
//!
//! Values have the table's [`Dtype`]; state is float32. A row is a whole number of 4-byte words:
//! values of 2 bytes lie in pairs, the first in the lower half, and an odd one is followed by two
//! zero bytes. Quantised values are codes behind a word that says what they mean (`quantized.rs`).
//! Words are carried as f32 whatever is in them, and only copied.
//!
//! A [`RowLayout`] is arithmetic only. It knows nothing of pages, caches or optimizers; it never
//! allocates. `row_bytes` is always a multiple of four, and equal for all tables of a row class.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, bail};
use crate::half::{self, Bf16, F16, Rounding};
use crate::quantized::{self, Int4, Int8};

/// The largest row, values plus state, of any storage: the limit of a region on persistent memory.
/// Storages with pages have a lower limit: a row never straddles pages and a page has at most
/// [`PAGE_BYTES_MAX`], of which its header takes some.
pub const ROW_BYTES_MAX: usize = 1 << 20;
/// The largest page.
pub const PAGE_BYTES_MAX: usize = 64 * 1024;

/// The type of the stored values. Table records carry its name; the numeric codes are reserved for
/// records that carry numbers (`docs/formats/journal.md`). Code 0 is never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32, little-endian on storage.
    #[default]
    Float32 = 1,
    /// IEEE 754 binary16, little-endian on storage.
    Float16 = 2,
    /// The upper half of a binary32, little-endian on storage.
    Bfloat16 = 3,
    /// Codes of 8 bits with a scale and a zero point for each row. Not for rows that are trained.
    Int8 = 4,
    /// Codes of 4 bits with a scale and a zero point for each row. Not for rows that are trained.
    Int4 = 5,
}

impl Dtype {
    const ALL: [Self; 5] = [Self::Float32, Self::Float16, Self::Bfloat16, Self::Int8, Self::Int4];

    /// The code of this dtype in stored records.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The dtype of a stored `code`. Errors: `Unsupported` for an unknown code.
    pub fn from_code(code: u8) -> Result<Self> {
        match Self::ALL.into_iter().find(|dtype| dtype.code() == code) {
            Some(dtype) => Ok(dtype),
            None => bail!(Unsupported, "dtype code {code} is unknown, expected 1 to 5"),
        }
    }

    /// The name that users read and write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// True where values are 16-bit floats, whose bits a caller may ask for.
    pub fn is_half(self) -> bool {
        matches!(self, Self::Float16 | Self::Bfloat16)
    }

    /// True where values are codes with a scale for each row. They are read as float32 alone, and
    /// such rows are put whole, never updated.
    pub fn is_quantized(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4)
    }

    /// True where every value of a row is finite, also once it is rounded to this dtype.
    #[inline]
    pub fn all_fit(self, values: &[f32]) -> bool {
        const EXPONENT: u32 = 0x7F80_0000;
        match self {
            // Branch-free, so that it runs at memory speed.
            Self::Float32 => {
                values.iter().fold(true, |all, x| all & (x.to_bits() & EXPONENT != EXPONENT))
            }
            Self::Float16 => half::all_fit::<F16>(values),
            Self::Bfloat16 => half::all_fit::<Bf16>(values),
            Self::Int8 => quantized::fits::<Int8>(values),
            Self::Int4 => quantized::fits::<Int4>(values),
        }
    }
}

impl std::str::FromStr for Dtype {
    type Err = Error;

    /// Errors: `Misuse` for a name that no dtype has.
    fn from_str(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|dtype| dtype.name() == name) {
            Some(dtype) => Ok(dtype),
            None => bail!(
                Misuse,
                "dtype is {name:?}, expected one of {}",
                Self::ALL.map(|dtype| format!("{:?}", dtype.name())).join(", ")
            ),
        }
    }
}

/// The choice of the neighbour for an update's result that lies between two values of the dtype.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundingMode {
    /// The more likely the nearer it is, by a hash of (seed, table, key, element, count of the
    /// table's update batches): right on average, so that small updates are not lost.
    #[default]
    Stochastic,
    /// The nearest, ties to even.
    Nearest,
}

/// The dtype and the widths of a row: `embedding_dim` values, then `state_words` words of optimizer
/// state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowLayout {
    dtype: Dtype,
    embedding_dim: usize,
    value_words: usize,
    state_words: usize,
}

impl RowLayout {
    /// A row of `embedding_dim` values and `state_words` state words.
    ///
    /// Errors: `Misuse` when `embedding_dim` is 0 or the row exceeds [`ROW_BYTES_MAX`].
    pub fn new(dtype: Dtype, embedding_dim: usize, state_words: usize) -> Result<Self> {
        if embedding_dim == 0 {
            bail!(Misuse, "embedding_dim is 0, expected at least 1");
        }
        let value_words = match dtype {
            Dtype::Float32 => embedding_dim,
            Dtype::Float16 | Dtype::Bfloat16 => embedding_dim.div_ceil(2),
            Dtype::Int8 => quantized::words::<Int8>(embedding_dim),
            Dtype::Int4 => quantized::words::<Int4>(embedding_dim),
        };
        let words = value_words.saturating_add(state_words);
        if words > ROW_BYTES_MAX / 4 {
            bail!(
                Misuse,
                "row of embedding_dim {embedding_dim} in {} with {state_words} words of optimizer \
                 state is {} bytes, a row has at most {ROW_BYTES_MAX}; use a smaller embedding_dim \
                 or an optimizer with less state",
                dtype.name(),
                words.saturating_mul(4)
            );
        }
        Ok(Self { dtype, embedding_dim, value_words, state_words })
    }

    /// The type of the values.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Values per row.
    #[inline(always)]
    pub fn embedding_dim(&self) -> usize {
        self.embedding_dim
    }

    /// Words that the values take.
    #[inline(always)]
    pub fn value_words(&self) -> usize {
        self.value_words
    }

    /// Words of optimizer state per row.
    pub fn state_words(&self) -> usize {
        self.state_words
    }

    /// Words of a whole row.
    pub fn row_words(&self) -> usize {
        self.value_words + self.state_words
    }

    /// Bytes of a whole row, a multiple of 4.
    pub fn row_bytes(&self) -> usize {
        self.row_words() * 4
    }

    /// True when the words of the values are float32 numbers.
    #[inline(always)]
    pub fn is_float32(&self) -> bool {
        self.dtype == Dtype::Float32
    }

    /// Splits one row in (words of values, state). Panics unless `row` has `row_words` words.
    #[inline(always)]
    pub fn split<'a>(&self, row: &'a [f32]) -> (&'a [f32], &'a [f32]) {
        assert_eq!(row.len(), self.row_words(), "words of a row");
        row.split_at(self.value_words)
    }

    /// Splits one row in (words of values, state), both writable. Panics unless `row` has
    /// `row_words` words.
    #[inline(always)]
    pub fn split_mut<'a>(&self, row: &'a mut [f32]) -> (&'a mut [f32], &'a mut [f32]) {
        assert_eq!(row.len(), self.row_words(), "words of a row");
        row.split_at_mut(self.value_words)
    }

    /// Writes the values that `words` hold to `values` as float32, which is exact.
    ///
    /// Shapes: `words (value_words,)` or longer, `values (embedding_dim,)`.
    #[inline(always)]
    pub fn read_values(&self, words: &[f32], values: &mut [f32]) {
        match self.dtype {
            Dtype::Float32 => values.copy_from_slice(&words[..self.embedding_dim]),
            Dtype::Float16 => half::widen::<F16>(self.bits(words), values),
            Dtype::Bfloat16 => half::widen::<Bf16>(self.bits(words), values),
            Dtype::Int8 => quantized::widen::<Int8>(&words[..self.value_words], values),
            Dtype::Int4 => quantized::widen::<Int4>(&words[..self.value_words], values),
        }
    }

    /// Writes `values` to `words`, rounded to nearest, ties to even. A row must
    /// [fit](Dtype::all_fit) a quantised dtype.
    ///
    /// Shapes: as for [`read_values`](Self::read_values).
    #[inline(always)]
    pub fn write_values(&self, words: &mut [f32], values: &[f32]) {
        match self.dtype {
            Dtype::Float32 => words[..self.embedding_dim].copy_from_slice(values),
            Dtype::Float16 => half::narrow::<F16>(values, self.bits_mut(words)),
            Dtype::Bfloat16 => half::narrow::<Bf16>(values, self.bits_mut(words)),
            Dtype::Int8 => quantized::narrow::<Int8>(values, &mut words[..self.value_words]),
            Dtype::Int4 => quantized::narrow::<Int4>(values, &mut words[..self.value_words]),
        }
    }

    /// Writes what an update has made of the values of `key` to `words`, rounded stochastically or
    /// to nearest. True when one of them was beyond the range of the dtype, to whose end it is
    /// brought.
    ///
    /// Shapes: as for [`read_values`](Self::read_values).
    #[inline]
    pub(crate) fn write_updated(
        &self,
        words: &mut [f32],
        values: &[f32],
        rounding: Option<&Rounding>,
        key: u64,
    ) -> bool {
        let bits = self.bits_mut(words);
        let random = rounding.map(|rounding| rounding.of_row(key));
        match (self.dtype, random) {
            (Dtype::Float32, _) => panic!("rows of float32 are updated in place"),
            // A table of them has no optimizer.
            (Dtype::Int8 | Dtype::Int4, _) => panic!("quantised rows are not updated"),
            (Dtype::Float16, Some(random)) => {
                half::narrow_stochastically::<F16>(values, bits, random)
            }
            (Dtype::Bfloat16, Some(random)) => {
                half::narrow_stochastically::<Bf16>(values, bits, random)
            }
            (Dtype::Float16, None) => half::narrow_within::<F16>(values, bits),
            (Dtype::Bfloat16, None) => half::narrow_within::<Bf16>(values, bits),
        }
    }

    /// Rounds what the `count`-th update of a table has made of the values of `key`, as the row
    /// then holds them: for models that tests compare with. `seed` is the store's, `salt` that of
    /// the table.
    #[cfg(any(test, feature = "testing"))]
    pub fn round_updated(
        &self,
        values: &mut [f32],
        rounding: RoundingMode,
        (seed, salt, count): (u64, u64, u64),
        key: u64,
    ) {
        if !self.is_float32() {
            let stochastic = rounding == RoundingMode::Stochastic;
            let rounding = stochastic.then(|| Rounding::new(seed, salt, count));
            let mut words = vec![0.0; self.value_words];
            self.write_updated(&mut words, values, rounding.as_ref(), key);
            self.read_values(&words, values);
        }
    }

    /// The values of a row of 16-bit floats, as their bits.
    #[inline(always)]
    pub fn bits<'a>(&self, words: &'a [f32]) -> &'a [u16] {
        &bytemuck::cast_slice(&words[..self.value_words])[..self.embedding_dim]
    }

    /// The same to write; what follows an odd last value is set to zero.
    #[inline(always)]
    fn bits_mut<'a>(&self, words: &'a mut [f32]) -> &'a mut [u16] {
        let bits: &mut [u16] = bytemuck::cast_slice_mut(&mut words[..self.value_words]);
        let (bits, padding) = bits.split_at_mut(self.embedding_dim);
        padding.fill(0);
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn values_come_before_state() {
        let layout = RowLayout::new(Dtype::Float32, 3, 2).unwrap();
        assert_eq!((layout.row_words(), layout.row_bytes()), (5, 20));
        let mut row = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(layout.split(&row), (&[1.0, 2.0, 3.0][..], &[4.0, 5.0][..]));
        layout.split_mut(&mut row).1[0] = 9.0;
        assert_eq!(row, [1.0, 2.0, 3.0, 9.0, 5.0]);
    }

    #[test]
    fn empty_and_oversized_rows_are_refused_by_name() {
        let error = RowLayout::new(Dtype::Float32, 0, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert!(error.message().contains("embedding_dim is 0"), "{error}");
        RowLayout::new(Dtype::Float32, 262_144, 0).unwrap();
        for (dim, state) in [(262_144, 1), (usize::MAX, 2)] {
            let error = RowLayout::new(Dtype::Float32, dim, state).unwrap_err();
            assert!(error.message().contains("at most 1048576"), "{error}");
        }
    }

    #[test]
    fn values_of_two_bytes_lie_in_pairs_and_the_rest_of_a_word_is_zero() {
        for dtype in [Dtype::Float16, Dtype::Bfloat16] {
            let layout = RowLayout::new(dtype, 3, 2).unwrap();
            assert_eq!((layout.value_words(), layout.row_bytes()), (2, 16));
            let mut row = [f32::from_bits(u32::MAX); 4];
            layout.write_values(&mut row, &[1.0, -2.0, 0.5]);
            let bytes: &[u8] = bytemuck::cast_slice(&row);
            let expected: [u8; 8] = match dtype {
                Dtype::Float16 => [0x00, 0x3C, 0x00, 0xC0, 0x00, 0x38, 0, 0],
                _ => [0x80, 0x3F, 0x00, 0xC0, 0x00, 0x3F, 0, 0],
            };
            assert_eq!(bytes[..8], expected);
            assert_eq!(bytes[8..], [0xFF; 8], "state stays");
            let mut values = [0.0; 3];
            layout.read_values(&row, &mut values);
            assert_eq!(values, [1.0, -2.0, 0.5]);
            assert_eq!(layout.bits(&row)[0], if dtype == Dtype::Float16 { 0x3C00 } else { 0x3F80 });
            assert_eq!(RowLayout::new(dtype, 1 << 19, 0).unwrap().row_bytes(), ROW_BYTES_MAX);
            assert!(RowLayout::new(dtype, (1 << 19) + 1, 0).is_err());
        }
    }

    #[test]
    fn quantised_rows_have_a_word_before_their_codes() {
        for (dtype, words) in [(Dtype::Int8, [2, 2, 3, 17, 18]), (Dtype::Int4, [2, 2, 2, 9, 10])] {
            assert!(dtype.is_quantized() && !dtype.is_half());
            for (dim, words) in [1, 4, 5, 64, 65].into_iter().zip(words) {
                let layout = RowLayout::new(dtype, dim, 0).unwrap();
                assert_eq!(layout.row_words(), words, "{dim} values of {}", dtype.name());
                let given: Vec<f32> = (0..dim).map(|i| i as f32 - 20.0).collect();
                // A row may be followed by others.
                let mut row = vec![f32::from_bits(7); words + 1];
                layout.write_values(&mut row, &given);
                assert_eq!(row[words].to_bits(), 7);
                let mut values = vec![0.0; dim];
                layout.read_values(&row, &mut values);
                let off = values.iter().zip(&given).map(|(a, b)| (a - b).abs());
                assert!(off.fold(0.0, f32::max) <= 64.0 / 15.0 / 2.0 * 1.001, "{values:?}");
            }
        }
        assert!(RowLayout::new(Dtype::Int8, ROW_BYTES_MAX - 4, 0).is_ok());
        assert!(RowLayout::new(Dtype::Int8, ROW_BYTES_MAX - 3, 0).is_err());
        assert!(RowLayout::new(Dtype::Int4, usize::MAX, 0).is_err());
    }

    #[test]
    fn updated_values_are_rounded_as_asked() {
        let layout = RowLayout::new(Dtype::Float16, 2, 0).unwrap();
        let between = 1.0 + 2f32.powi(-12);
        let (mut row, mut ups) = ([0.0], 0);
        for count in 0..1000 {
            let rounding = Rounding::new(1, 2, count);
            assert!(!layout.write_updated(&mut row, &[between, 1.0], Some(&rounding), 3));
            assert_eq!(layout.bits(&row)[1], 0x3C00);
            ups += u32::from(layout.bits(&row)[0] - 0x3C00);
        }
        assert!((190..310).contains(&ups), "{ups} of 1000, a quarter expected");
        assert!(!layout.write_updated(&mut row, &[between, 1.0], None, 3));
        assert_eq!(layout.bits(&row), [0x3C00; 2]);
        assert!(layout.write_updated(&mut row, &[1e6, 1.0], None, 3));
        assert_eq!(layout.bits(&row), [0x7BFF, 0x3C00]);
    }

    #[test]
    fn dtypes_have_names_and_codes_and_unknown_ones_are_named() {
        for (dtype, code, name) in [
            (Dtype::Float32, 1, "float32"),
            (Dtype::Float16, 2, "float16"),
            (Dtype::Bfloat16, 3, "bfloat16"),
            (Dtype::Int8, 4, "int8"),
            (Dtype::Int4, 5, "int4"),
        ] {
            assert_eq!((dtype.code(), dtype.name()), (code, name));
            assert_eq!(Dtype::from_code(code).unwrap(), dtype);
            assert_eq!(name.parse::<Dtype>().unwrap(), dtype);
            assert_eq!(serde_json::to_string(&dtype).unwrap(), format!("{name:?}"));
        }
        for code in [0, 6] {
            assert_eq!(Dtype::from_code(code).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        let error = "float64".parse::<Dtype>().unwrap_err();
        assert!(error.message().contains("\"float64\", expected one of \"float32\""), "{error}");
    }
}
