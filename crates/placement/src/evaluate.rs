//! The cost of a placement: the pages that queries read, with and without a cache of rows.
//!
//! Learn a placement from the first part of a trace and evaluate it on the held-out part:
//! co-occurrences that happened once are learned too, and do not come again.

use crate::cover::{Method, Selector};
use crate::error::{Error, Result};
use crate::pages::Pages;
use crate::trace::Queries;

/// The options of serving queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvaluateOptions {
    /// Rows that an LRU cache holds, which is empty at first. It admits rows that were asked for,
    /// not their neighbours in a page. 0: no cache.
    pub cache_rows: usize,
    /// The method of selecting pages.
    pub method: Method,
    /// Queries that are served together: their rows are read once.
    pub queries_per_batch: usize,
}

impl Default for EvaluateOptions {
    /// No cache, one query at a time, pages selected in one pass with 10 candidates.
    fn default() -> Self {
        let method = Method::OnePass { candidates_max: 10 };
        Self { cache_rows: 0, method, queries_per_batch: 1 }
    }
}

/// The reads of queries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// Batches that were served; queries, unless several are served together.
    pub batches: u64,
    /// Rows that batches asked for, each once per batch.
    pub rows: u64,
    /// Of them, found in the cache.
    pub hits: u64,
    /// Pages that were read.
    pub pages: u64,
    /// Number of batches that read so many pages: `fanout[pages]`.
    pub fanout: Vec<u64>,
    /// Number of pages that served so many rows of their batch: `served[rows]`.
    pub served: Vec<u64>,
}

impl Evaluation {
    /// Pages read per batch, 0 without batches.
    pub fn pages_per_batch(&self) -> f64 {
        self.pages as f64 / self.batches.max(1) as f64
    }

    /// Rows used per page that was read, 0 without pages.
    pub fn rows_per_page(&self) -> f64 {
        (self.rows - self.hits) as f64 / self.pages.max(1) as f64
    }

    /// The share of rows found in the cache, 0 without rows.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.rows.max(1) as f64
    }
}

/// Serves `queries` in their order from `pages`.
///
/// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) if pages and queries have other rows, or options
/// are 0 that must not be.
pub fn evaluate(
    pages: &Pages,
    queries: Queries<'_>,
    options: &EvaluateOptions,
) -> Result<Evaluation> {
    evaluate_after(pages, queries.range(0..0), queries, options)
}

/// The same after the queries `before`, which fill the cache and do not count.
///
/// *Errors*: as [`evaluate`].
pub fn evaluate_after(
    pages: &Pages,
    before: Queries<'_>,
    queries: Queries<'_>,
    options: &EvaluateOptions,
) -> Result<Evaluation> {
    for given in [before, queries] {
        if pages.num_rows() != given.num_rows() {
            return Err(Error::misuse(format!(
                "the pages have {} rows, the queries are over {}; expected the same",
                pages.num_rows(),
                given.num_rows()
            )));
        }
    }
    if options.queries_per_batch == 0 {
        return Err(Error::misuse("queries_per_batch is 0, expected at least 1"));
    }
    let mut batches = Batches {
        cache: LruRows::new(options.cache_rows, pages.num_rows()),
        batch_of: vec![0; pages.num_rows()],
        batch: 0,
        wanted: Vec::new(),
        missed: Vec::new(),
    };
    if options.cache_rows > 0 {
        batches.run(before, options.queries_per_batch, |_, _| Ok(()))?;
    }
    let mut selector = Selector::new(pages);
    let mut evaluation = Evaluation::default();
    batches.run(queries, options.queries_per_batch, |wanted, missed| {
        evaluation.batches += 1;
        evaluation.rows += wanted.len() as u64;
        evaluation.hits += (wanted.len() - missed.len()) as u64;
        let fanout = selector.select(missed, options.method, |_, rows| {
            count(&mut evaluation.served, rows.len());
        })?;
        evaluation.pages += fanout as u64;
        count(&mut evaluation.fanout, fanout);
        Ok(())
    })?;
    Ok(evaluation)
}

/// The rows of one batch after another, and those that the cache has not.
struct Batches {
    cache: LruRows,
    /// Of each row: the last batch that asked for it.
    batch_of: Vec<u64>,
    batch: u64,
    wanted: Vec<u32>,
    missed: Vec<u32>,
}

impl Batches {
    /// Calls `serve(wanted, missed)` for each batch, then admits what was missed.
    fn run(
        &mut self,
        queries: Queries<'_>,
        queries_per_batch: usize,
        mut serve: impl FnMut(&[u32], &[u32]) -> Result<()>,
    ) -> Result<()> {
        let Self { cache, batch_of, batch, wanted, missed } = self;
        for first in (0..queries.len()).step_by(queries_per_batch) {
            let last = queries_per_batch.saturating_add(first).min(queries.len());
            *batch += 1;
            wanted.clear();
            for query in queries.range(first..last).iter() {
                for &row in query {
                    if std::mem::replace(&mut batch_of[row as usize], *batch) != *batch {
                        wanted.push(row);
                    }
                }
            }
            missed.clear();
            missed.extend(wanted.iter().copied().filter(|&row| !cache.touch(row)));
            serve(wanted, missed)?;
            missed.iter().for_each(|&row| cache.admit(row));
        }
        Ok(())
    }
}

/// The share of the queries' rows that each row misses in an LRU cache of `cache_rows` rows, empty
/// at first: weights for a partition that serves what a cache leaves. Rows that nobody asks for
/// have 1. *Shape*: (num_rows,).
pub fn miss_ratios(queries: Queries<'_>, cache_rows: usize) -> Vec<f32> {
    let mut cache = LruRows::new(cache_rows, queries.num_rows());
    let mut misses = vec![0u32; queries.num_rows()];
    for query in queries.iter() {
        for &row in query {
            if !cache.touch(row) {
                misses[row as usize] += 1;
                cache.admit(row);
            }
        }
    }
    let ratio =
        |(misses, asked): (u32, u32)| if asked == 0 { 1.0 } else { misses as f32 / asked as f32 };
    misses.into_iter().zip(queries.frequency()).map(ratio).collect()
}

fn count(histogram: &mut Vec<u64>, value: usize) {
    if histogram.len() <= value {
        histogram.resize(value + 1, 0);
    }
    histogram[value] += 1;
}

/// Not in the list.
const NONE: u32 = u32::MAX;

/// An exact LRU cache of row numbers: a list through two arrays, most recent first.
struct LruRows {
    capacity: usize,
    len: usize,
    newer: Vec<u32>,
    older: Vec<u32>,
    is_in: Vec<bool>,
    newest: u32,
    oldest: u32,
}

impl LruRows {
    fn new(capacity: usize, num_rows: usize) -> Self {
        let num_rows = if capacity == 0 { 0 } else { num_rows };
        Self {
            capacity,
            len: 0,
            newer: vec![NONE; num_rows],
            older: vec![NONE; num_rows],
            is_in: vec![false; num_rows],
            newest: NONE,
            oldest: NONE,
        }
    }

    /// True if the row is in the cache, where it becomes the newest.
    fn touch(&mut self, row: u32) -> bool {
        if self.capacity == 0 || !self.is_in[row as usize] {
            return false;
        }
        if self.newest != row {
            self.unlink(row);
            self.link(row);
        }
        true
    }

    /// Takes a row in that is not there; the oldest leaves if the cache is full.
    fn admit(&mut self, row: u32) {
        if self.capacity == 0 {
            return;
        }
        if self.len == self.capacity {
            let victim = self.oldest;
            self.unlink(victim);
            self.is_in[victim as usize] = false;
            self.len -= 1;
        }
        self.link(row);
        self.is_in[row as usize] = true;
        self.len += 1;
    }

    fn link(&mut self, row: u32) {
        self.newer[row as usize] = NONE;
        self.older[row as usize] = self.newest;
        match self.newest {
            NONE => self.oldest = row,
            newest => self.newer[newest as usize] = row,
        }
        self.newest = row;
    }

    fn unlink(&mut self, row: u32) {
        let (newer, older) = (self.newer[row as usize], self.older[row as usize]);
        match newer {
            NONE => self.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines;
    use crate::placement::Placement;
    use crate::random::Random;
    use crate::trace::Trace;

    /// 400 queries of up to 7 of 40 rows, some rows hot.
    fn trace(seed: u64) -> Trace {
        let mut random = Random::new(seed);
        let query = |random: &mut Random| {
            let row = |random: &mut Random| random.below(1 + random.clone().below(40)) as u32;
            (0..random.below(8)).map(|_| row(random)).collect::<Vec<_>>()
        };
        Trace::from_queries(40, (0..400).map(|_| query(&mut random)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn pages_are_counted_as_queries_read_them() {
        let placement = Placement::new(vec![0, 1, 2, 3, 4, 5], 3).unwrap();
        let queries = [&[0, 1, 2][..], &[0, 4], &[], &[3, 5]];
        let trace = Trace::from_queries(6, queries).unwrap();
        let pages = Pages::of(&placement);
        let found = evaluate(&pages, trace.queries(), &EvaluateOptions::default()).unwrap();
        assert_eq!((found.batches, found.rows, found.hits, found.pages), (4, 7, 0, 4));
        assert_eq!(found.fanout, [1, 2, 1]);
        assert_eq!(found.served, [0, 2, 1, 1]);
        assert_eq!((found.pages_per_batch(), found.rows_per_page()), (1.0, 1.75));
        let two = EvaluateOptions { queries_per_batch: 2, ..Default::default() };
        let found = evaluate(&pages, trace.queries(), &two).unwrap();
        assert_eq!((found.batches, found.rows, found.pages), (2, 6, 3));
    }

    #[test]
    fn the_cache_hits_as_a_plain_list_does() {
        let trace = trace(1);
        let pages = Pages::of(&baselines::random(40, 4, 2).unwrap());
        for cache_rows in [0, 1, 2, 5, 20, 40, 60] {
            let (mut list, mut hits, mut read) = (Vec::new(), 0, 0);
            for query in trace.queries().iter() {
                let missed = query.iter().copied().filter(|row| !list.contains(row));
                let missed = missed.collect::<Vec<_>>();
                hits += query.len() - missed.len();
                let hit = query.iter().filter(|row| !missed.contains(row));
                for &row in hit.chain(&missed) {
                    list.retain(|&other| other != row);
                    list.push(row);
                }
                list.drain(..list.len().saturating_sub(cache_rows));
                let mut homes =
                    missed.iter().map(|&row| pages.pages_of(row)[0]).collect::<Vec<_>>();
                homes.sort_unstable();
                homes.dedup();
                read += homes.len();
            }
            let options = EvaluateOptions { cache_rows, ..Default::default() };
            let found = evaluate(&pages, trace.queries(), &options).unwrap();
            assert_eq!((found.hits, found.pages), (hits as u64, read as u64), "{cache_rows} rows");
        }
    }

    #[test]
    fn queries_before_fill_the_cache_and_do_not_count() {
        let trace = trace(9);
        let pages = Pages::of(&baselines::random(40, 4, 2).unwrap());
        let (all, options) =
            (trace.queries(), EvaluateOptions { cache_rows: 7, ..Default::default() });
        let of = |range| evaluate(&pages, all.range(range), &options).unwrap();
        let after = |at, queries_per_batch| {
            let options = EvaluateOptions { queries_per_batch, ..options };
            let (before, counted) = (all.range(0..at), all.range(at..all.len()));
            evaluate_after(&pages, before, counted, &options).unwrap()
        };
        for at in [0, 1, 160, 399] {
            let (first, whole) = (of(0..at), of(0..400));
            let second = after(at, 1);
            assert_eq!(second.hits, whole.hits - first.hits, "{at} queries before");
            assert_eq!(second.pages, whole.pages - first.pages);
        }
        assert!(after(200, 1).hits > of(200..400).hits);
        assert!(after(200, 8).rows < after(200, 1).rows);
    }

    #[test]
    fn miss_ratios_are_those_of_the_cache() {
        let trace = trace(5);
        let frequency = trace.queries().frequency();
        assert!(miss_ratios(trace.queries(), 0).iter().all(|&ratio| ratio == 1.0));
        let all = miss_ratios(trace.queries(), 40);
        for (row, ratio) in all.into_iter().enumerate() {
            assert_eq!(ratio, 1.0 / frequency[row].max(1) as f32, "row {row}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let pages = Pages::of(&baselines::identity(3, 2).unwrap());
        let trace = Trace::from_queries(4, [[0, 3]]).unwrap();
        let refused = |queries_per_batch| {
            let options = EvaluateOptions { queries_per_batch, ..Default::default() };
            evaluate(&pages, trace.queries(), &options).unwrap_err().to_string()
        };
        assert!(refused(1).contains("have 3 rows, the queries are over 4"));
        let pages = Pages::of(&baselines::identity(4, 2).unwrap());
        let none = EvaluateOptions { queries_per_batch: 0, ..Default::default() };
        let message = evaluate(&pages, trace.queries(), &none).unwrap_err().to_string();
        assert!(message.contains("queries_per_batch is 0"));
    }
}
