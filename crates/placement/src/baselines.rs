//! Placements that learn little or nothing, to compare with.

use crate::error::{Error, Result};
use crate::placement::Placement;
use crate::random::Random;
use crate::trace::Queries;

/// Rows in the order of their numbers.
///
/// *Errors*: as [`Placement::new`].
pub fn identity(num_rows: usize, rows_per_page: usize) -> Result<Placement> {
    Placement::new(all_rows(num_rows)?, rows_per_page)
}

/// Rows in an order drawn by `seed`.
///
/// *Errors*: as [`Placement::new`].
pub fn random(num_rows: usize, rows_per_page: usize, seed: u64) -> Result<Placement> {
    let mut order = all_rows(num_rows)?;
    Random::new(seed).shuffle(&mut order);
    Placement::new(order, rows_per_page)
}

/// Rows by how many queries ask for them, the most first; equal ones by number.
///
/// *Errors*: as [`Placement::new`].
pub fn frequency(queries: Queries<'_>, rows_per_page: usize) -> Result<Placement> {
    Placement::new(frequency_order(&queries.frequency()), rows_per_page)
}

fn all_rows(num_rows: usize) -> Result<Vec<u32>> {
    match u32::try_from(num_rows) {
        Ok(num_rows) => Ok((0..num_rows).collect()),
        Err(_) => {
            Err(Error::misuse(format!("num_rows is {num_rows}, expected at most {}", u32::MAX)))
        }
    }
}

/// All rows by frequency, falling, then by number.
pub(crate) fn frequency_order(frequency: &[u32]) -> Vec<u32> {
    let mut order = (0..frequency.len() as u32).collect::<Vec<_>>();
    order.sort_by_key(|&row| std::cmp::Reverse(frequency[row as usize]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;

    #[test]
    fn baselines_order_by_number_by_chance_and_by_use() {
        assert_eq!(identity(3, 2).unwrap().order(), [0, 1, 2]);
        let drawn = random(100, 8, 7).unwrap();
        assert_eq!(drawn, random(100, 8, 7).unwrap());
        assert_ne!(drawn, random(100, 8, 8).unwrap());
        let trace = Trace::from_queries(5, [&[3, 1][..], &[3, 4], &[1, 3]]).unwrap();
        assert_eq!(frequency(trace.queries(), 2).unwrap().order(), [3, 1, 4, 0, 2]);
        assert_eq!(identity(0, 4).unwrap().num_pages(), 0);
    }
}
