//! The pages of a served table: home pages in the order of a placement, replica pages behind them.

use crate::error::{Error, Result};
use crate::placement::Placement;

/// The rows of each page, and the pages of each row.
///
/// Pages are numbered as they lie on storage. The pages of a row are in rising order, so its home
/// page comes before its replica pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    row_starts: Vec<usize>,
    rows: Vec<u32>,
    page_starts: Vec<usize>,
    pages: Vec<u32>,
}

impl Pages {
    /// The pages of a placement, without replicas.
    pub fn of(placement: &Placement) -> Self {
        let pages = placement.pages();
        Self::from_checked(placement.num_rows(), placement.num_rows(), pages.len(), pages)
    }

    /// The pages of a placement with replica pages behind them, each a set of rows.
    ///
    /// *Errors*: as [`Pages::new`], for the replica pages.
    pub fn with_replicas(placement: &Placement, replicas: &[Vec<u32>]) -> Result<Self> {
        let (num_rows, num_pages) = (placement.num_rows(), placement.num_pages() + replicas.len());
        let copies = check(num_rows, placement.rows_per_page(), num_pages, replicas)?;
        let pages = placement.pages().chain(replicas.iter().map(Vec::as_slice));
        Ok(Self::from_checked(num_rows, num_rows + copies, num_pages, pages))
    }

    /// Any pages in which each row of `0..num_rows` is at least once.
    ///
    /// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) if a page has more rows than `rows_per_page`,
    /// a row twice, or a row that does not exist, or if a row is in no page.
    pub fn new(num_rows: usize, rows_per_page: usize, pages: &[Vec<u32>]) -> Result<Self> {
        let copies = check(num_rows, rows_per_page, pages.len(), pages)?;
        let slices = pages.iter().map(Vec::as_slice);
        let pages = Self::from_checked(num_rows, copies, pages.len(), slices);
        match (0..num_rows as u32).find(|&row| pages.pages_of(row).is_empty()) {
            Some(row) => {
                Err(Error::misuse(format!("row {row} is in no page, expected at least 1")))
            }
            None => Ok(pages),
        }
    }

    fn from_checked<'a>(
        num_rows: usize,
        copies: usize,
        num_pages: usize,
        pages: impl Iterator<Item = &'a [u32]>,
    ) -> Self {
        let mut rows = Vec::with_capacity(copies);
        let mut row_starts = Vec::with_capacity(num_pages + 1);
        row_starts.push(0);
        for page in pages {
            rows.extend_from_slice(page);
            row_starts.push(rows.len());
        }
        // Counts, one place further on, become the starts of the rows behind.
        let mut page_starts = vec![0; num_rows + 1];
        rows.iter().for_each(|&row| page_starts[row as usize + 1] += 1);
        for row in 0..num_rows {
            page_starts[row + 1] += page_starts[row];
        }
        let mut next = page_starts.clone();
        let mut pages = vec![0; rows.len()];
        for page in 0..num_pages {
            for &row in &rows[row_starts[page]..row_starts[page + 1]] {
                pages[next[row as usize]] = page as u32;
                next[row as usize] += 1;
            }
        }
        Self { row_starts, rows, page_starts, pages }
    }

    /// Number of rows, replicas not counted.
    pub fn num_rows(&self) -> usize {
        self.page_starts.len() - 1
    }

    /// Number of pages, replica pages among them.
    pub fn num_pages(&self) -> usize {
        self.row_starts.len() - 1
    }

    /// The rows of a page.
    pub fn rows_of(&self, page: u32) -> &[u32] {
        &self.rows[self.row_starts[page as usize]..self.row_starts[page as usize + 1]]
    }

    /// The pages of a row, its home first.
    pub fn pages_of(&self, row: u32) -> &[u32] {
        &self.pages[self.page_starts[row as usize]..self.page_starts[row as usize + 1]]
    }
}

/// Checks `pages`, of `num_pages` in all. Returns how many rows they have together.
fn check(
    num_rows: usize,
    rows_per_page: usize,
    num_pages: usize,
    pages: &[Vec<u32>],
) -> Result<usize> {
    if num_pages > u32::MAX as usize || num_rows > u32::MAX as usize {
        return Err(Error::misuse(format!(
            "{num_rows} rows in {num_pages} pages, expected at most {} of both",
            u32::MAX
        )));
    }
    let first = num_pages - pages.len();
    let mut seen_in = vec![0u32; num_rows];
    for (i, rows) in pages.iter().enumerate() {
        let page = first + i;
        if rows.len() > rows_per_page {
            return Err(Error::misuse(format!(
                "page {page} has {} rows, expected at most {rows_per_page}",
                rows.len()
            )));
        }
        for &row in rows {
            if row as usize >= num_rows {
                return Err(Error::misuse(format!(
                    "page {page} has row {row}, expected rows below {num_rows}"
                )));
            }
            if std::mem::replace(&mut seen_in[row as usize], i as u32 + 1) == i as u32 + 1 {
                return Err(Error::misuse(format!(
                    "page {page} has row {row} twice, expected it once"
                )));
            }
        }
    }
    Ok(pages.iter().map(Vec::len).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_pages_name_each_other() {
        let placement = Placement::new(vec![2, 0, 1, 4, 3], 2).unwrap();
        let replicas = [vec![3, 2], vec![2, 1]];
        let pages = Pages::with_replicas(&placement, &replicas).unwrap();
        assert_eq!((pages.num_pages(), pages.num_rows()), (5, 5));
        assert_eq!(pages.pages_of(2), [0, 3, 4]);
        assert_eq!(pages.pages_of(3), [2, 3]);
        for page in 0..5 {
            assert!(pages.rows_of(page).iter().all(|&row| pages.pages_of(row).contains(&page)));
        }
        let mut all = placement.pages().map(<[u32]>::to_vec).collect::<Vec<_>>();
        assert_eq!(Pages::of(&placement), Pages::new(5, 2, &all).unwrap());
        all.extend(replicas);
        assert_eq!(pages, Pages::new(5, 2, &all).unwrap());
    }

    #[test]
    fn unusable_pages_are_refused_by_name() {
        let placement = Placement::new(vec![2, 0, 1], 2).unwrap();
        let message = |page: &[u32]| {
            let replicas = [vec![0], page.to_vec()];
            Pages::with_replicas(&placement, &replicas).unwrap_err().to_string()
        };
        assert!(message(&[0, 1, 2]).contains("page 3 has 3 rows, expected at most 2"));
        assert!(message(&[1, 1]).contains("page 3 has row 1 twice"));
        assert!(message(&[3]).contains("page 3 has row 3, expected rows below 3"));
        let missing = Pages::new(3, 2, &[vec![0], vec![2, 0]]).unwrap_err();
        assert!(missing.to_string().contains("row 1 is in no page"));
    }
}
