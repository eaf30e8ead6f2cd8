//! Errors from freezing rows in another type of values: differences from the source.

use crate::row::{Dtype, RowLayout};
use serde::Serialize;

/// Errors of the values of a table that was frozen in another type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FreezeError {
    /// Name of the table.
    pub table: String,
    /// The type of the frozen values.
    pub dtype: Dtype,
    /// Rows frozen.
    pub rows: u64,
    /// Largest difference of a value from that of the source.
    pub error_max: f32,
    /// The same as a share of the largest magnitude in the value's row.
    pub relative_error_max: f64,
    /// The mean of these shares over all values of rows that are not zero.
    pub relative_error_mean: f64,
}

/// Differences from encoding rows in another type of values, so far.
pub(super) struct Difference {
    dtype: Dtype,
    again: Vec<f32>,
    /// Largest difference of a value.
    pub(super) most: f32,
    relative_most: f64,
    relative_sum: f64,
    values: u64,
}

impl Difference {
    /// Of no row yet, of tables whose rows are encoded so.
    pub(super) fn new(layout: &RowLayout) -> Self {
        let (dtype, again) = (layout.dtype(), vec![0.0; layout.embedding_dim()]);
        Self { dtype, again, most: 0.0, relative_most: 0.0, relative_sum: 0.0, values: 0 }
    }

    /// Counts a row that `words` hold.
    pub(super) fn add(&mut self, values: &[f32], layout: &RowLayout, words: &[f32]) {
        layout.read_values(words, &mut self.again);
        let (mut largest, mut most, mut sum) = (0f32, 0f32, 0f64);
        for (value, again) in values.iter().zip(&self.again) {
            let off = (value - again).abs();
            largest = largest.max(value.abs());
            most = most.max(off);
            sum += f64::from(off);
        }
        self.most = self.most.max(most);
        if largest > 0.0 {
            let largest = f64::from(largest);
            self.relative_most = self.relative_most.max(f64::from(most) / largest);
            self.relative_sum += sum / largest;
            self.values += values.len() as u64;
        }
    }

    /// The errors to report for a table of so many rows.
    pub(super) fn told(&self, table: &str, rows: u64) -> FreezeError {
        FreezeError {
            table: table.to_owned(),
            dtype: self.dtype,
            rows,
            error_max: self.most,
            relative_error_max: self.relative_most,
            relative_error_mean: self.relative_sum / self.values.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_told_as_shares_of_the_largest_value_of_a_row() {
        let layout = RowLayout::new(Dtype::Int4, 2, 0).unwrap();
        let mut difference = Difference::new(&layout);
        let mut words = vec![0.0; layout.row_words()];
        // Off by nothing; by a hundredth of the largest; a zero row, which is not counted.
        for row in [[0.0, 15.0], [15.0, 0.15], [0.0, 0.0]] {
            layout.write_values(&mut words, &row);
            difference.add(&row, &layout, &words);
        }
        let told = difference.told("items", 3);
        assert_eq!((told.table.as_str(), told.dtype, told.rows), ("items", Dtype::Int4, 3));
        assert_eq!(told.error_max, 0.15);
        assert!((told.relative_error_max - 0.01).abs() < 1e-7, "{told:?}");
        assert!((told.relative_error_mean - 0.01 / 4.0).abs() < 1e-7, "{told:?}");
        assert_eq!(Difference::new(&layout).told("none", 0).relative_error_mean, 0.0);
    }
}
