//! Replica pages: rows that are stored a second time, beside others that they are asked for with.
//!
//! [`connectivity`] is the MaxEmbed paper's strategy (section 5.3), [`residual`] a greedy one that
//! counts the pages each new page saves after those before it. [`other_partitions`] chooses so of
//! the pages of further partitions. All add pages behind those of a placement, best first: the
//! pages of a smaller ratio are the first ones of a larger ratio. To compare with, there are
//! [`frequency`] and [`random`], which learn little or nothing, and the paper's strawmen:
//! [`before_partition`] (RPP) and [`fill_finer`] (FPR).

mod baselines;
mod greedy;
mod memory;
mod others;
#[cfg(test)]
mod tests;

pub use baselines::{frequency, random};
pub use greedy::residual;
pub use memory::{memory_needed, memory_of_partitions};
pub use others::other_partitions;

use crate::error::{Error, ErrorKind, Result};
use crate::pages::Pages;
use crate::parallel;
use crate::partition::{Next, PartitionOptions, Progress, partition};
use crate::placement::Placement;
use crate::trace::{Queries, Trace};

/// Bases that a thread takes at a time.
const BASES_PER_TASK: usize = 64;

/// The number of replicas, and the effort of the search for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaOptions {
    /// Rows stored again, as a share of all rows, from 0 to 1: r of the paper, which goes to 0.8.
    pub ratio: f64,
    /// Threads that work, the caller's among them. They change no result.
    pub threads: usize,
    /// Of a row that more queries ask for, so many of them are looked at, evenly spread over the
    /// trace. `usize::MAX` looks at all.
    pub queries_per_row_max: usize,
}

impl ReplicaOptions {
    /// This ratio, one thread, and at most 2,000 queries per row.
    pub fn new(ratio: f64) -> Self {
        Self { ratio, threads: 1, queries_per_row_max: 2_000 }
    }

    /// Largest number of replica pages of a table of so many rows: r · N / d, rounded down.
    pub fn num_pages(&self, num_rows: usize, rows_per_page: usize) -> usize {
        (num_rows as f64 * self.ratio / rows_per_page as f64) as usize
    }

    fn check(&self, queries: Queries<'_>, num_rows: usize) -> Result<()> {
        if !(0.0..=1.0).contains(&self.ratio) {
            return Err(Error::misuse(format!(
                "ratio is {}, expected a share of the rows from 0 to 1",
                self.ratio
            )));
        }
        if self.queries_per_row_max == 0 {
            return Err(Error::misuse("queries_per_row_max is 0, expected at least 1"));
        }
        if queries.num_rows() != num_rows {
            return Err(Error::misuse(format!(
                "the placement has {num_rows} rows, the queries are over {}; expected the same",
                queries.num_rows()
            )));
        }
        Ok(())
    }

    /// At most `queries_per_row_max` of a row's queries, evenly spread.
    fn sample<'a>(&self, queries: &'a [u32]) -> impl Iterator<Item = u32> + use<'a> {
        let taken = queries.len().min(self.queries_per_row_max);
        (0..taken)
            .map(move |i| queries[(i as u128 * queries.len() as u128 / taken as u128) as usize])
    }
}

/// Replica pages by connectivity priority: the rows of the highest score, each with the rows that
/// most of its queries ask for too and that lie in other pages.
///
/// The score of a row is Σ (λ - 1) over its queries, where a query reads λ pages. Equal rows are
/// taken by number. A base whose queries ask for no row of another page gets no page.
///
/// `progress(pages, of)` is called now and then, on the caller's thread.
///
/// *Errors*: [`Misuse`](ErrorKind::Misuse) for options or queries that do not fit,
/// [`Stopped`](ErrorKind::Stopped) if `progress` says so.
pub fn connectivity(
    placement: &Placement,
    queries: Queries<'_>,
    options: &ReplicaOptions,
    mut progress: impl FnMut(usize, usize) -> Next,
) -> Result<Vec<Vec<u32>>> {
    options.check(queries, placement.num_rows())?;
    let rows_per_page = placement.rows_per_page();
    let num_pages = options.num_pages(placement.num_rows(), rows_per_page);
    let scores = scores(placement, queries);
    let bases = (0..scores.len() as u32).filter(|&row| scores[row as usize] > 0);
    let mut bases = bases.collect::<Vec<_>>();
    bases.sort_by_key(|&row| std::cmp::Reverse(scores[row as usize]));
    bases.truncate(num_pages);
    let inverse = queries.inverse();
    let threads = options.threads.max(1);
    let counters = (0..threads).map(|_| Counter::new(placement.num_rows()));
    let mut counters = counters.collect::<Vec<_>>();
    let mut pages = vec![Vec::new(); bases.len()];
    let round = BASES_PER_TASK * threads;
    for (i, (bases, pages)) in bases.chunks(round).zip(pages.chunks_mut(round)).enumerate() {
        if !go_on(progress(i * round, num_pages), i * round)? {
            break;
        }
        let tasks = bases.chunks(BASES_PER_TASK).zip(pages.chunks_mut(BASES_PER_TASK));
        let tasks = tasks.zip(&mut counters).collect::<Vec<_>>();
        parallel::run(
            threads,
            tasks,
            || (),
            |(), ((bases, pages), counter)| {
                for (&base, page) in bases.iter().zip(pages) {
                    let home = placement.page_of(base);
                    for query in options.sample(inverse.queries_of(base)) {
                        for &row in queries.get(query as usize) {
                            if placement.page_of(row) != home {
                                counter.add(row, 1);
                            }
                        }
                    }
                    page.push(base);
                    counter.take_most(rows_per_page - 1, page);
                }
            },
        );
    }
    pages.retain(|page| !page.is_empty());
    Ok(pages)
}

/// Whether a caller that has seen `pages` pages wants more of them.
fn go_on(next: Next, pages: usize) -> Result<bool> {
    match next {
        Next::Continue => Ok(true),
        Next::Finish => Ok(false),
        Next::Abandon => {
            Err(Error::new(ErrorKind::Stopped, format!("stopped after {pages} replica pages")))
        }
    }
}

/// Σ (λ - 1) over the queries of each row.
fn scores(placement: &Placement, queries: Queries<'_>) -> Vec<u64> {
    let mut scores = vec![0u64; placement.num_rows()];
    let mut seen_in = vec![0u32; placement.num_pages()];
    for (query, rows) in queries.iter().enumerate() {
        let mut pages = 0u64;
        for &row in rows {
            let seen = &mut seen_in[placement.page_of(row)];
            pages += u64::from(*seen != query as u32 + 1);
            *seen = query as u32 + 1;
        }
        rows.iter().for_each(|&row| scores[row as usize] += pages.saturating_sub(1));
    }
    scores
}

/// Counts per row, and the rows that have one.
struct Counter {
    counts: Vec<u64>,
    rows: Vec<u32>,
}

impl Counter {
    fn new(num_rows: usize) -> Self {
        Self { counts: vec![0; num_rows], rows: Vec::new() }
    }

    #[inline]
    fn add(&mut self, row: u32, count: u64) {
        let counts = &mut self.counts[row as usize];
        if *counts == 0 {
            self.rows.push(row);
        }
        *counts += count;
    }

    /// Appends the rows with the greatest counts, then the smallest numbers, and forgets all.
    fn take_most(&mut self, rows_max: usize, to: &mut Vec<u32>) {
        let Self { counts, rows } = self;
        let order = |row: &u32| (std::cmp::Reverse(counts[*row as usize]), *row);
        if rows_max > 0 && rows.len() > rows_max {
            rows.select_nth_unstable_by_key(rows_max - 1, order);
        }
        let most = rows.len().min(rows_max);
        rows[..most].sort_unstable_by_key(order);
        to.extend_from_slice(&rows[..most]);
        rows.iter().for_each(|&row| counts[row as usize] = 0);
        rows.clear();
    }
}

/// Pages with replicas made before the partition (RPP of the paper): the rows that most queries ask
/// for stand twice in every query that has them, and all are partitioned as different rows. A page
/// that would have a row twice has it once.
///
/// `progress` is called as by [`partition`].
///
/// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) for options that do not fit, and those of
/// [`partition`]. The options of the partition may not have an order to begin with or weights,
/// which would lack the replicas.
pub fn before_partition(
    queries: Queries<'_>,
    partition_options: &PartitionOptions<'_>,
    options: &ReplicaOptions,
    progress: impl FnMut(&Progress) -> Next,
) -> Result<Pages> {
    let num_rows = queries.num_rows();
    options.check(queries, num_rows)?;
    let replicas = (num_rows as f64 * options.ratio) as usize;
    let hottest = crate::baselines::frequency_order(&queries.frequency());
    let mut replica_of = vec![None; num_rows];
    for (i, &row) in hottest[..replicas].iter().enumerate() {
        replica_of[row as usize] = Some((num_rows + i) as u32);
    }
    let (mut values, mut offsets) = (Vec::with_capacity(2 * queries.pins()), vec![0]);
    for rows in queries.iter() {
        values.extend_from_slice(rows);
        values.extend(rows.iter().filter_map(|&row| replica_of[row as usize]));
        offsets.push(values.len());
    }
    let doubled = Trace::new(num_rows + replicas, values, offsets)?;
    let placement = partition(doubled.queries(), partition_options, progress)?;
    let original = |&row: &u32| match (row as usize).checked_sub(num_rows) {
        Some(replica) => hottest[replica],
        None => row,
    };
    let pages = placement.pages().map(|rows| {
        let mut rows = rows.iter().map(original).collect::<Vec<_>>();
        rows.sort_unstable();
        rows.dedup();
        rows
    });
    Pages::new(num_rows, placement.rows_per_page(), &pages.collect::<Vec<_>>())
}

/// Pages that are partly filled and then filled up (FPR of the paper): a partition into pages of
/// d / (1 + r) rows, rounded up, each with the rows that most of its queries ask for besides.
///
/// `progress` is called as by [`partition`].
///
/// *Errors*: as [`before_partition`].
pub fn fill_finer(
    queries: Queries<'_>,
    partition_options: &PartitionOptions<'_>,
    options: &ReplicaOptions,
    progress: impl FnMut(&Progress) -> Next,
) -> Result<Pages> {
    let num_rows = queries.num_rows();
    options.check(queries, num_rows)?;
    let rows_per_page = partition_options.rows_per_page;
    let finer = (rows_per_page as f64 / (1.0 + options.ratio)).ceil() as usize;
    let finer = PartitionOptions { rows_per_page: finer, ..partition_options.clone() };
    let placement = partition(queries, &finer, progress)?;
    let inverse = queries.inverse();
    let mut pages = placement.pages().map(<[u32]>::to_vec).collect::<Vec<_>>();
    let tasks = pages.chunks_mut(64).enumerate().collect::<Vec<_>>();
    let counter = || Counter::new(num_rows);
    parallel::run(options.threads, tasks, counter, |counter, (chunk, pages)| {
        let mut asking = Vec::new();
        for (i, page) in pages.iter_mut().enumerate() {
            asking.clear();
            page.iter().for_each(|&row| asking.extend(options.sample(inverse.queries_of(row))));
            asking.sort_unstable();
            asking.dedup();
            for &query in &asking {
                for &row in queries.get(query as usize) {
                    if placement.page_of(row) != chunk * 64 + i {
                        counter.add(row, 1);
                    }
                }
            }
            counter.take_most(rows_per_page - page.len(), page);
        }
    });
    Pages::new(num_rows, rows_per_page, &pages)
}
