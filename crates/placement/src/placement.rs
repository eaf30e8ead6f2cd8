//! A placement: the order of all rows, cut into pages.

use crate::error::{Error, Result};

/// An order of all rows of a table, cut into pages of `rows_per_page` rows; only the last page may
/// have fewer. Each row is in exactly one page, its home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    rows_per_page: usize,
    order: Vec<u32>,
    rank: Vec<u32>,
}

impl Placement {
    /// The placement in which `order[rank]` is the row of a rank.
    ///
    /// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) if `order` does not have each row from 0 to
    /// its length once, or a page has no rows.
    pub fn new(order: Vec<u32>, rows_per_page: usize) -> Result<Self> {
        if rows_per_page == 0 {
            return Err(Error::misuse("rows_per_page is 0, expected at least 1"));
        }
        let rank = ranks(&order)?;
        Ok(Self { rows_per_page, order, rank })
    }

    /// Number of rows of a full page.
    pub fn rows_per_page(&self) -> usize {
        self.rows_per_page
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.order.len()
    }

    /// Number of pages.
    pub fn num_pages(&self) -> usize {
        self.order.len().div_ceil(self.rows_per_page)
    }

    /// The rows in order of their ranks. *Shape*: (num_rows,).
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// The rows in order of their ranks, without a copy.
    pub(crate) fn into_order(self) -> Vec<u32> {
        self.order
    }

    /// The rank of each row: its place in the order. *Shape*: (num_rows,).
    pub fn rank(&self) -> &[u32] {
        &self.rank
    }

    /// The page of a row.
    pub fn page_of(&self, row: u32) -> usize {
        self.rank[row as usize] as usize / self.rows_per_page
    }

    /// The rows of each page.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.order.chunks(self.rows_per_page)
    }
}

/// The inverse of an order of rows, which is checked.
pub(crate) fn ranks(order: &[u32]) -> Result<Vec<u32>> {
    let num_rows = order.len();
    if num_rows > u32::MAX as usize {
        return Err(Error::misuse(format!("{num_rows} rows, expected at most {}", u32::MAX)));
    }
    let mut rank = vec![u32::MAX; num_rows];
    for (place, &row) in order.iter().enumerate() {
        match rank.get_mut(row as usize) {
            Some(free) if *free == u32::MAX => *free = place as u32,
            Some(&mut earlier) => {
                return Err(Error::misuse(format!(
                    "order has row {row} at {earlier} and at {place}, expected each row once"
                )));
            }
            None => {
                return Err(Error::misuse(format!(
                    "order[{place}] is row {row}, expected rows below its length, {num_rows}"
                )));
            }
        }
    }
    Ok(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_order_of_all_rows_is_a_placement() {
        let placement = Placement::new(vec![4, 0, 3, 1, 2], 2).unwrap();
        assert_eq!(placement.rank(), [1, 3, 4, 2, 0]);
        assert_eq!(placement.pages().collect::<Vec<_>>(), [&[4, 0][..], &[3, 1], &[2]]);
        assert_eq!((placement.num_pages(), placement.page_of(2)), (3, 2));
        let message = |order: &[u32], rows_per_page| {
            Placement::new(order.to_vec(), rows_per_page).unwrap_err().to_string()
        };
        assert!(message(&[0, 1, 0], 2).contains("row 0 at 0 and at 2"));
        assert!(message(&[0, 3, 1], 2).contains("order[1] is row 3"));
        assert!(message(&[0, 1], 0).contains("rows_per_page is 0"));
    }
}
