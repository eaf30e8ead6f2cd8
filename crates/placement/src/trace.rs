//! Traces: which rows were asked for together, query by query.
//!
//! A [`Trace`] owns the queries and is checked once; a [`Queries`] is a stretch of it, free to
//! copy. No query has a row twice. Rows and queries are numbered in 32 bits.

use crate::error::{Error, Result};

/// Queries in order, each a set of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    num_rows: usize,
    values: Vec<u32>,
    offsets: Vec<usize>,
}

impl Trace {
    /// A trace of the queries `values[offsets[q]..offsets[q + 1]]` over the rows `0..num_rows`. A
    /// row that a query has twice counts once, at its first place. An empty query stays.
    ///
    /// *Shapes*: values (pins,), offsets (queries + 1,).
    ///
    /// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) if `offsets` do not rise from 0 to the number
    /// of values, a value is no row, or rows or queries do not fit 32 bits.
    pub fn new(num_rows: usize, values: Vec<u32>, offsets: Vec<usize>) -> Result<Self> {
        check(num_rows, &values, &offsets)?;
        let mut trace = Self { num_rows, values, offsets };
        trace.drop_duplicates();
        Ok(trace)
    }

    /// A trace of queries given one by one.
    ///
    /// *Errors*: as [`Trace::new`].
    pub fn from_queries<Q: AsRef<[u32]>>(
        num_rows: usize,
        queries: impl IntoIterator<Item = Q>,
    ) -> Result<Self> {
        let (mut values, mut offsets) = (Vec::new(), vec![0]);
        for query in queries {
            values.extend_from_slice(query.as_ref());
            offsets.push(values.len());
        }
        Self::new(num_rows, values, offsets)
    }

    /// Keeps the first of equal rows of a query, in place.
    fn drop_duplicates(&mut self) {
        let mut seen_in = vec![0u32; self.num_rows];
        let (mut kept, mut start) = (0, 0);
        for query in 1..self.offsets.len() {
            let end = self.offsets[query];
            for i in start..end {
                let row = self.values[i];
                if seen_in[row as usize] != query as u32 {
                    seen_in[row as usize] = query as u32;
                    self.values[kept] = row;
                    kept += 1;
                }
            }
            self.offsets[query] = kept;
            start = end;
        }
        self.values.truncate(kept);
    }

    /// All queries.
    pub fn queries(&self) -> Queries<'_> {
        Queries { num_rows: self.num_rows, values: &self.values, offsets: &self.offsets }
    }

    /// The first queries, to learn from, and the others, to measure on. `first_share` of the
    /// queries, rounded down, are in the first part.
    ///
    /// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) if the share is not from 0 to 1.
    pub fn split(&self, first_share: f64) -> Result<(Queries<'_>, Queries<'_>)> {
        if !(0.0..=1.0).contains(&first_share) {
            return Err(Error::misuse(format!(
                "first_share is {first_share}, expected a share of the queries from 0 to 1"
            )));
        }
        let all = self.queries();
        let first = (all.len() as f64 * first_share) as usize;
        Ok((all.range(0..first), all.range(first..all.len())))
    }
}

fn check(num_rows: usize, values: &[u32], offsets: &[usize]) -> Result<()> {
    let limit = u32::MAX as usize;
    if num_rows > limit {
        return Err(Error::misuse(format!("num_rows is {num_rows}, expected at most {limit}")));
    }
    if offsets.len() > limit {
        return Err(Error::misuse(format!(
            "the trace has {} queries, expected fewer than {limit}; take a part of it",
            offsets.len() - 1
        )));
    }
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return Err(Error::misuse("offsets are empty, expected one more than there are queries"));
    };
    if first != 0 || last != values.len() {
        return Err(Error::misuse(format!(
            "offsets go from {first} to {last}, expected from 0 to {}, the number of values",
            values.len()
        )));
    }
    if let Some(query) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        return Err(Error::misuse(format!(
            "offsets fall from {} to {} at query {query}, expected none smaller than the last",
            offsets[query],
            offsets[query + 1]
        )));
    }
    if let Some(place) = values.iter().position(|&row| row as usize >= num_rows) {
        return Err(Error::misuse(format!(
            "values[{place}] is row {}, expected rows below num_rows = {num_rows}",
            values[place]
        )));
    }
    Ok(())
}

/// A stretch of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    num_rows: usize,
    values: &'a [u32],
    offsets: &'a [usize],
}

impl<'a> Queries<'a> {
    /// Rows are `0..num_rows`, asked for or not.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Number of queries.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// True without queries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of rows that all queries ask for together.
    pub fn pins(&self) -> usize {
        self.offsets[self.len()] - self.offsets[0]
    }

    /// The rows of a query, in the order of asking.
    pub fn get(&self, query: usize) -> &'a [u32] {
        &self.values[self.offsets[query]..self.offsets[query + 1]]
    }

    /// The queries one after another.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u32]> + use<'a> {
        let values = self.values;
        self.offsets.windows(2).map(move |pair| &values[pair[0]..pair[1]])
    }

    /// The queries of a range of numbers, numbered from 0 again.
    pub fn range(&self, range: std::ops::Range<usize>) -> Queries<'a> {
        Queries { offsets: &self.offsets[range.start..range.end + 1], ..*self }
    }

    /// Number of queries that ask for each row. *Shape*: (num_rows,).
    pub fn frequency(&self) -> Vec<u32> {
        let mut frequency = vec![0; self.num_rows];
        for &row in self.all_values() {
            frequency[row as usize] += 1;
        }
        frequency
    }

    /// From each row to the queries that ask for it, in rising order.
    pub fn inverse(&self) -> Inverse {
        let mut offsets = Vec::with_capacity(self.num_rows + 1);
        let mut end = 0;
        offsets.push(0);
        for count in self.frequency() {
            end += count as usize;
            offsets.push(end);
        }
        let mut queries = vec![0; end];
        let mut next = offsets.clone();
        for (query, rows) in self.iter().enumerate() {
            for &row in rows {
                queries[next[row as usize]] = query as u32;
                next[row as usize] += 1;
            }
        }
        Inverse { offsets, queries }
    }

    fn all_values(&self) -> &'a [u32] {
        &self.values[self.offsets[0]..self.offsets[self.len()]]
    }
}

/// From each row to the queries that ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inverse {
    offsets: Vec<usize>,
    queries: Vec<u32>,
}

impl Inverse {
    /// The queries of a row, in rising order.
    pub fn queries_of(&self, row: u32) -> &[u32] {
        &self.queries[self.offsets[row as usize]..self.offsets[row as usize + 1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(num_rows: usize, values: &[u32], offsets: &[usize]) -> String {
        Trace::new(num_rows, values.to_vec(), offsets.to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn duplicates_within_a_query_count_once_and_order_stays() {
        let trace = Trace::from_queries(9, [&[3, 1, 3, 1, 8][..], &[], &[1, 1], &[8]]).unwrap();
        let queries = trace.queries().iter().collect::<Vec<_>>();
        assert_eq!(queries, [&[3, 1, 8][..], &[], &[1], &[8]]);
        assert_eq!(trace.queries().frequency(), [0, 2, 0, 1, 0, 0, 0, 0, 2]);
    }

    #[test]
    fn an_unusable_trace_is_refused_by_name() {
        assert!(message(2, &[0, 2], &[0, 2]).contains("values[1] is row 2"));
        assert!(message(2, &[0, 1], &[0, 1]).contains("from 0 to 1, expected from 0 to 2"));
        assert!(message(2, &[0, 1], &[1, 2]).contains("go from 1 to 2"));
        assert!(message(2, &[0, 1], &[0, 2, 1, 2]).contains("fall from 2 to 1 at query 1"));
        assert!(message(2, &[], &[]).contains("offsets are empty"));
        assert!(message(1 << 33, &[], &[0]).contains("num_rows is 8589934592"));
    }

    #[test]
    fn the_inverse_has_the_same_pins() {
        let trace = Trace::from_queries(5, [&[0, 4][..], &[4, 2], &[], &[0, 2, 4]]).unwrap();
        let inverse = trace.queries().inverse();
        let lists = (0..5).map(|row| inverse.queries_of(row).to_vec()).collect::<Vec<_>>();
        assert_eq!(lists, [vec![0, 3], vec![], vec![1, 3], vec![], vec![0, 1, 3]]);
        let tail = trace.queries().range(1..4);
        assert_eq!(tail.inverse().queries_of(4), [0, 2]);
        assert_eq!((tail.len(), tail.pins()), (3, 5));
    }

    #[test]
    fn a_split_keeps_the_order() {
        let trace = Trace::from_queries(4, [[0], [1], [2], [3], [0]]).unwrap();
        let (first, held_out) = trace.split(0.5).unwrap();
        assert_eq!(first.iter().collect::<Vec<_>>(), [[0], [1]]);
        assert_eq!(held_out.iter().collect::<Vec<_>>(), [[2], [3], [0]]);
        assert_eq!(trace.split(1.0).unwrap().1.len(), 0);
        assert!(trace.split(f64::NAN).unwrap_err().to_string().contains("NaN"));
    }
}
