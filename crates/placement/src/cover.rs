//! Selection of the pages to read for a query, when rows are in several pages.
//!
//! The fewest pages are a minimum set cover, which is NP-hard. [`Selector::one_pass`] is the
//! selection of the MaxEmbed paper (section 6.1): rows with the fewest pages first, for each the
//! page that has most of the missing rows. [`Selector::greedy`] takes the best page of all each
//! time (Johnson 1974), to compare with. Both are exact without replicas.

use crate::error::{Error, Result};
use crate::pages::Pages;

/// The method of selecting pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One pass over the rows of a query, which looks at no more than so many pages of each: its
    /// home, and the first of its replicas. Pages whose every replica is behind that limit are read
    /// if another row needs them, and serve all rows that they have.
    OnePass {
        /// The limit, at least 1; the paper uses 10.
        candidates_max: usize,
    },
    /// The page with the most missing rows each time, of all pages of all missing rows.
    Greedy,
}

/// Selects pages for one query after another, with memory for a mark per row.
pub struct Selector<'a> {
    pages: &'a Pages,
    /// Of a row that is missing: the number of this selection.
    missing_in: Vec<u32>,
    selection: u32,
    todo: Vec<u32>,
    served: Vec<u32>,
}

impl<'a> Selector<'a> {
    /// For queries of these pages.
    pub fn new(pages: &'a Pages) -> Self {
        let missing_in = vec![0; pages.num_rows()];
        Self { pages, missing_in, selection: 0, todo: Vec::new(), served: Vec::new() }
    }

    /// Calls `read(page, rows)` for each page to read, with the rows of `query` that it serves, as
    /// soon as it is chosen; each row is served once. Rows may repeat in `query`. Returns how many
    /// pages there are.
    ///
    /// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) for a row that does not exist or a limit of
    /// 0, before any page is chosen.
    pub fn select(
        &mut self,
        query: &[u32],
        method: Method,
        mut read: impl FnMut(u32, &[u32]),
    ) -> Result<usize> {
        let num_rows = self.pages.num_rows();
        if let Some(row) = query.iter().find(|&&row| row as usize >= num_rows) {
            return Err(Error::misuse(format!(
                "the query has row {row}, expected below {num_rows}"
            )));
        }
        match method {
            Method::OnePass { candidates_max: 0 } => {
                Err(Error::misuse("candidates_max is 0, expected at least 1"))
            }
            Method::OnePass { candidates_max } => {
                Ok(self.one_pass(query, candidates_max, &mut read))
            }
            Method::Greedy => Ok(self.greedy(query, &mut read)),
        }
    }

    /// Makes the rows of `query` missing.
    fn begin(&mut self, query: &[u32]) {
        if self.selection == u32::MAX {
            self.missing_in.fill(0);
            self.selection = 0;
        }
        self.selection += 1;
        self.todo.clear();
        for &row in query {
            if std::mem::replace(&mut self.missing_in[row as usize], self.selection)
                != self.selection
            {
                self.todo.push(row);
            }
        }
    }

    fn is_missing(&self, row: u32) -> bool {
        self.missing_in[row as usize] == self.selection
    }

    /// Number of missing rows that a page has.
    fn count(&self, page: u32) -> usize {
        self.pages.rows_of(page).iter().filter(|&&row| self.is_missing(row)).count()
    }

    /// Removes the rows of a page from the missing ones.
    fn serve(&mut self, page: u32, read: &mut impl FnMut(u32, &[u32])) {
        self.served.clear();
        for &row in self.pages.rows_of(page) {
            if self.missing_in[row as usize] == self.selection {
                self.missing_in[row as usize] = 0;
                self.served.push(row);
            }
        }
        read(page, &self.served);
    }

    fn one_pass(
        &mut self,
        query: &[u32],
        candidates_max: usize,
        read: &mut impl FnMut(u32, &[u32]),
    ) -> usize {
        self.begin(query);
        let pages = self.pages;
        let mut todo = std::mem::take(&mut self.todo);
        todo.sort_unstable_by_key(|&row| (pages.pages_of(row).len(), row));
        let mut read_pages = 0;
        for &row in &todo {
            if !self.is_missing(row) {
                continue;
            }
            let candidates = pages.pages_of(row);
            let candidates = &candidates[..candidates.len().min(candidates_max)];
            let mut best = candidates[0];
            if candidates.len() > 1 {
                let mut most = 0;
                for &page in candidates {
                    let count = self.count(page);
                    if count > most {
                        (best, most) = (page, count);
                    }
                }
            }
            self.serve(best, read);
            read_pages += 1;
        }
        self.todo = todo;
        read_pages
    }

    fn greedy(&mut self, query: &[u32], read: &mut impl FnMut(u32, &[u32])) -> usize {
        self.begin(query);
        let pages = self.pages;
        let todo = std::mem::take(&mut self.todo);
        let candidates = todo.iter().flat_map(|&row| pages.pages_of(row));
        let mut candidates = candidates.copied().collect::<Vec<_>>();
        candidates.sort_unstable();
        candidates.dedup();
        let (mut read_pages, mut missing) = (0, todo.len());
        while missing > 0 {
            let (mut best, mut most) = (candidates[0], 0);
            for &page in &candidates {
                let count = self.count(page);
                if count > most {
                    (best, most) = (page, count);
                }
            }
            self.serve(best, read);
            missing -= most;
            read_pages += 1;
        }
        self.todo = todo;
        read_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines;
    use crate::random::Random;

    /// The fewest pages that have all rows, by trying all sets of pages.
    fn fewest(pages: &Pages, query: &[u32]) -> usize {
        (0u32..1 << pages.num_pages())
            .filter(|set| {
                let has = |row| pages.pages_of(row).iter().any(|page| set >> page & 1 == 1);
                query.iter().all(|&row| has(row))
            })
            .map(u32::count_ones)
            .min()
            .unwrap() as usize
    }

    /// 12 rows in 4 pages, and 6 replica pages of random rows.
    fn random_pages(random: &mut Random) -> Pages {
        let placement = baselines::random(12, 3, random.next()).unwrap();
        let mut replica_page = || {
            let mut rows = (0..12).collect::<Vec<_>>();
            random.shuffle(&mut rows);
            rows.truncate(3);
            rows
        };
        let replicas = (0..6).map(|_| replica_page()).collect::<Vec<_>>();
        Pages::with_replicas(&placement, &replicas).unwrap()
    }

    #[test]
    fn every_row_is_served_once_by_few_pages() {
        let mut random = Random::new(3);
        let [mut optimum, mut one_pass, mut greedy] = [0; 3];
        for case in 0..300 {
            let pages = random_pages(&mut random);
            let mut selector = Selector::new(&pages);
            let query = (0..random.below(9)).map(|_| random.below(12) as u32).collect::<Vec<_>>();
            let mut distinct = query.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let mut run = |method| {
                let (mut all, mut reads) = (Vec::new(), 0);
                let count = selector.select(&query, method, |page, rows| {
                    assert!(!rows.is_empty(), "case {case}: a page for nothing");
                    assert!(rows.iter().all(|row| pages.rows_of(page).contains(row)));
                    all.extend_from_slice(rows);
                    reads += 1;
                });
                all.sort_unstable();
                assert_eq!(all, distinct, "case {case}: {method:?}");
                assert_eq!(count.unwrap(), reads);
                reads
            };
            let best = fewest(&pages, &query);
            let counts = [run(Method::OnePass { candidates_max: 10 }), run(Method::Greedy)];
            assert!(counts.iter().all(|&count| count >= best), "case {case}: {counts:?}");
            // Of 3 missing rows or fewer in a page, greedy reads at most 1 + 1/2 + 1/3 as much.
            assert!(counts[1] * 6 <= best * 11, "case {case}: {counts:?}, {best}");
            optimum += best;
            one_pass += counts[0];
            greedy += counts[1];
        }
        assert!(one_pass * 100 <= optimum * 110, "{one_pass} pages in one pass, {optimum} needed");
        assert!(greedy * 100 <= optimum * 107, "{greedy} pages by greedy, {optimum} needed");
    }

    #[test]
    fn without_replicas_a_query_reads_the_homes_of_its_rows() {
        let placement = baselines::random(50, 4, 1).unwrap();
        let pages = Pages::of(&placement);
        let query = [3, 17, 44, 8, 21, 3, 9];
        let mut homes = query.map(|row| placement.page_of(row) as u32).to_vec();
        homes.sort_unstable();
        homes.dedup();
        for method in [Method::OnePass { candidates_max: 1 }, Method::Greedy] {
            let mut read = Vec::new();
            Selector::new(&pages).select(&query, method, |page, _| read.push(page)).unwrap();
            read.sort_unstable();
            assert_eq!(read, homes, "{method:?}");
        }
    }

    #[test]
    fn the_limit_hides_pages_but_not_what_they_have() {
        // Pages 2, 3 and 4 are replicas. Row 0 knows 0 and 2 of its pages 0, 2, 3, 4.
        let placement = Placement::new(vec![0, 1, 2, 3], 2).unwrap();
        let replicas = [vec![0, 1], vec![0, 1], vec![0, 3]];
        let pages = Pages::with_replicas(&placement, &replicas).unwrap();
        let mut selector = Selector::new(&pages);
        let mut read = |query: &[u32], candidates_max| {
            let mut read = Vec::new();
            let method = Method::OnePass { candidates_max };
            selector.select(query, method, |page, _| read.push(page)).unwrap();
            read
        };
        assert_eq!(read(&[0, 3], 10), [4]);
        // Row 3 has fewer pages, comes first, and finds page 4, which row 0 does not know.
        assert_eq!(read(&[0, 3], 2), [4]);
        assert_eq!(read(&[0, 3], 1), [1, 0]);
    }

    #[test]
    fn an_unusable_query_is_refused_before_a_page_is_chosen() {
        let pages = Pages::of(&baselines::identity(4, 2).unwrap());
        let mut selector = Selector::new(&pages);
        let mut select = |query: &[u32], method| {
            selector.select(query, method, |_, _| panic!("chose a page")).unwrap_err().to_string()
        };
        assert!(select(&[1, 4], Method::Greedy).contains("row 4, expected below 4"));
        let none = Method::OnePass { candidates_max: 0 };
        assert!(select(&[1], none).contains("candidates_max is 0"));
    }

    use crate::placement::Placement;
}
