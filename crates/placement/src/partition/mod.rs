//! Social hash partition by recursive bisection: rows that queries ask for together get into one
//! page.
//!
//! Every level cuts each part of the rows in two, so that queries need few sides. A pass computes
//! for each row what the expected fanout loses if it changes sides, and lets the best rows of both
//! sides change places. All parts of a level run through a pass together, on all threads.
//!
//! Sources: Kabiljo et al., *Social Hash Partitioner*, VLDB 2017 (objective, passes, bisection);
//! the MaxEmbed paper, section 5 (its use for pages); Mackenzie, Petri, Moffat, *Tradeoff
//! Options for Bipartite Graph Partitioning*, 2022, and Lucene's reordering of documents (selection
//! in place of sorting).

mod level;
mod passes;
mod split;
#[cfg(test)]
mod tests;

use crate::baselines::frequency_order;
use crate::error::{Error, ErrorKind, Result};
use crate::placement::{Placement, ranks};
use crate::random::Random;
use crate::trace::Queries;
use level::Levels;

/// The quantity that a bisection minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Σ over sides of 1 - (1 - p)^n for n rows of a query on a side, p = 0.5: the paper's.
    #[default]
    Fanout,
    /// Σ over sides of t (1 - (1 - p/t)^n), where t pages will be made of the side: the fanout in
    /// the end, if its rows are spread over its pages by chance (after Kabiljo et al.).
    /// Queries that are longer than a few rows count on upper levels too. Measured on held-out
    /// queries: 2 % fewer pages on hotel impressions, 3 to 6 % fewer on made communities larger
    /// than a page, 3 to 8 % more on Criteo's click log, within 1 % on three other traces.
    Projected,
}

/// The order of rows that the first bisection begins with.
#[derive(Clone, Copy, Debug, Default)]
pub enum Start<'a> {
    /// Drawn by the seed.
    #[default]
    Random,
    /// All rows in an order, for example of an earlier placement, or by frequency.
    Order(&'a [u32]),
}

/// Options of a partition.
#[derive(Clone, Debug)]
pub struct PartitionOptions<'a> {
    /// Rows of a full page.
    pub rows_per_page: usize,
    /// The quantity that a bisection minimises.
    pub objective: Objective,
    /// The most passes on one level.
    pub passes_max: usize,
    /// Every pair of rows that gains is exchanged, and passes end only where none does: what
    /// MaxEmbed does, to compare with. Otherwise one pair in four stays, and parts stall.
    pub exchange_all: bool,
    /// The order to begin with.
    pub start: Start<'a>,
    /// Decides the first order and which rows stay for a pass. The same seed gives the same
    /// placement, whatever the number of threads.
    pub seed: u64,
    /// Threads that work, the caller's among them.
    pub threads: usize,
    /// The weight of each row's pins, from 0 to 1: for example its chance to miss a cache.
    /// *Shape*: (num_rows,). Without weights each pin counts 1. Rows of little weight go wherever
    /// there is room, and hold nothing in place: weights above a half are steadier.
    pub weights: Option<&'a [f32]>,
    /// The most bytes that may be allocated at a time, the result among them. None: no limit.
    pub memory_bytes_max: Option<u64>,
}

impl PartitionOptions<'_> {
    /// Pages of so many rows, and the usual values for everything else: 1 thread, 32 passes at
    /// most.
    pub fn new(rows_per_page: usize) -> Self {
        Self {
            rows_per_page,
            objective: Objective::default(),
            passes_max: 32,
            exchange_all: false,
            start: Start::default(),
            seed: 0,
            threads: 1,
            weights: None,
            memory_bytes_max: None,
        }
    }

    /// The partition of the MaxEmbed paper, to compare with: 8 passes at most, all exchanges.
    pub fn of_maxembed(rows_per_page: usize) -> Self {
        Self { passes_max: 8, exchange_all: true, ..Self::new(rows_per_page) }
    }
}

/// The progress of a partition, after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The level, from 0 on, and how many there are at most.
    pub level: usize,
    /// See `level`.
    pub levels: usize,
    /// The pass on this level, from 0 on.
    pub pass: usize,
    /// Rows that changed sides in this pass.
    pub moved: u64,
    /// Parts with at least one row of the query, over all queries, as it was before this pass: what
    /// pages will be in the end.
    pub pages: u64,
}

/// The caller's decision after it has seen the progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To go on.
    Continue,
    /// The placement as it is now.
    Finish,
    /// No placement; the partition returns an error of kind [`ErrorKind::Stopped`].
    Abandon,
}

/// Partitions the rows of `queries` into pages. Rows that no query asks for together with another
/// follow at the end, by frequency, then by number.
///
/// `progress` is called after each pass, on the caller's thread.
///
/// *Errors*: [`Misuse`](ErrorKind::Misuse) for options that do not fit the rows,
/// [`Memory`](ErrorKind::Memory) if [`memory_needed`] is more than may be used, before anything is
/// allocated, [`Stopped`](ErrorKind::Stopped) if `progress` says so.
pub fn partition(
    queries: Queries<'_>,
    options: &PartitionOptions<'_>,
    mut progress: impl FnMut(&Progress) -> Next,
) -> Result<Placement> {
    check(queries, options)?;
    let frequency = queries.frequency();
    let linked = linked_rows(queries);
    let mut order = match options.start {
        Start::Random => {
            let mut order = in_order(0..queries.num_rows() as u32, &linked);
            Random::new(options.seed).shuffle(&mut order);
            order
        }
        Start::Order(order) => {
            ranks(order).map_err(|error| Error::misuse(format!("start: {error}")))?;
            in_order(order.iter().copied(), &linked)
        }
    };
    order.reserve_exact(queries.num_rows() - order.len());
    if !order.is_empty() {
        let mut levels = Levels::new(queries, options, order);
        levels.run(&mut progress)?;
        order = levels.into_order();
    }
    let rest = frequency_order(&frequency);
    order.extend(rest.into_iter().filter(|&row| !linked[row as usize]));
    Placement::new(order, options.rows_per_page)
}

/// The rows that some query asks for together with another row.
fn linked_rows(queries: Queries<'_>) -> Vec<bool> {
    let mut linked = vec![false; queries.num_rows()];
    for rows in queries.iter().filter(|rows| rows.len() > 1) {
        rows.iter().for_each(|&row| linked[row as usize] = true);
    }
    linked
}

fn in_order(rows: impl Iterator<Item = u32>, linked: &[bool]) -> Vec<u32> {
    rows.filter(|&row| linked[row as usize]).collect()
}

fn check(queries: Queries<'_>, options: &PartitionOptions<'_>) -> Result<()> {
    let num_rows = queries.num_rows();
    if options.rows_per_page == 0 {
        return Err(Error::misuse("rows_per_page is 0, expected at least 1"));
    }
    if let Start::Order(order) = options.start
        && order.len() != num_rows
    {
        return Err(Error::misuse(format!(
            "start has {} rows, expected all {num_rows}",
            order.len()
        )));
    }
    if let Some(weights) = options.weights {
        if weights.len() != num_rows {
            return Err(Error::misuse(format!(
                "weights has {} rows, expected all {num_rows}",
                weights.len()
            )));
        }
        if let Some(row) = weights.iter().position(|weight| !(0.0..=1.0).contains(weight)) {
            return Err(Error::misuse(format!(
                "weights[{row}] is {}, expected a weight from 0 to 1",
                weights[row]
            )));
        }
        // The weights of a query are added up in 32 bits.
        let limit = (u32::MAX / passes::WEIGHT_ONE) as usize;
        let longest = queries.iter().map(<[u32]>::len).max().unwrap_or(0);
        if longest > limit {
            return Err(Error::misuse(format!(
                "a query has {longest} rows, expected at most {limit} with weights"
            )));
        }
    }
    let needed = memory_needed(queries, options);
    match options.memory_bytes_max {
        Some(limit) if needed > limit => Err(Error::new(
            ErrorKind::Memory,
            format!(
                "the partition of {num_rows} rows and {} pins needs {needed} bytes, \
                 memory_bytes_max is {limit}; take fewer queries",
                queries.pins()
            ),
        )),
        _ => Ok(()),
    }
}

/// The most bytes that [`partition`] has allocated at a time, without what the caller's `queries`
/// and options take: an upper bound, for queries that are cut as badly as they can be.
pub fn memory_needed(queries: Queries<'_>, options: &PartitionOptions<'_>) -> u64 {
    let (mut pins, mut edges, mut longest) = (0u64, 0u64, 0u64);
    for rows in queries.iter().filter(|rows| rows.len() > 1) {
        pins += rows.len() as u64;
        // No part has a query with one row, so a query has at most half as many edges as rows.
        edges += rows.len() as u64 / 2;
        longest = longest.max(rows.len() as u64);
    }
    level::memory_bytes(queries.num_rows() as u64, pins, edges, longest, options)
}

/// As [`memory_needed`], of queries of which only so much is known: how many rows there are, pins
/// in all, and rows of the longest query.
pub fn memory_at_most(
    num_rows: u64,
    pins: u64,
    longest: u64,
    options: &PartitionOptions<'_>,
) -> u64 {
    level::memory_bytes(num_rows, pins, pins / 2, longest, options)
}
