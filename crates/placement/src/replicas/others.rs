//! Replica pages from other partitions of the same rows.
//!
//! A partition that begins with another order ends with other pages, about as good. Rows that are
//! asked for with two groups lie with one of them here and with the other there. Of all pages of
//! some partitions those are taken that save most, each after those before it, counted exactly in
//! the covers of all queries. Each was made to serve many queries, so what it saves of those that
//! it was learned from, it saves of others too; a page around one base learns its queries by heart.
//! If no page of a partition saves anything more, pages around bases follow.

use super::greedy::best_of;
use super::{ReplicaOptions, go_on};
use crate::error::Result;
use crate::partition::{Next, PartitionOptions, partition};
use crate::placement::Placement;
use crate::trace::Queries;

/// Number of partitions to choose from. With 32 queries in a batch and a cache for a tenth of the
/// rows, replicas for 80 % save half a per cent more of two or three real traces' pages with
/// twelve, and one less with four.
pub(super) const PARTITIONS: usize = 8;
/// Parts of the progress: what a partition takes, and choosing.
const PARTS: usize = 1000;

/// Replica pages of other partitions, the best first. There are fewer than the ratio allows if no
/// further page saves anything. The partitions begin with orders by the seeds that follow on that
/// of `partition_options`; so `placement` is best one of that seed itself.
///
/// `progress(done, of)` is called often, on the caller's thread; [`Next::Finish`] before all
/// partitions are there gives no pages.
///
/// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) for options or queries that do not fit, those of
/// [`partition`], [`Stopped`](crate::ErrorKind::Stopped) if `progress` says so.
pub fn other_partitions(
    placement: &Placement,
    queries: Queries<'_>,
    partition_options: &PartitionOptions<'_>,
    options: &ReplicaOptions,
    mut progress: impl FnMut(usize, usize) -> Next,
) -> Result<Vec<Vec<u32>>> {
    options.check(queries, placement.num_rows())?;
    let all = (PARTITIONS + 1) * PARTS;
    let mut orders = Vec::with_capacity(PARTITIONS);
    for number in 0..PARTITIONS {
        let seed = partition_options.seed.wrapping_add(1 + number as u64);
        let options = PartitionOptions { seed, ..partition_options.clone() };
        let mut ends = false;
        let other = partition(queries, &options, |at| {
            let passes = at.level * options.passes_max + at.pass;
            let of_all = (at.levels.max(1) * options.passes_max).max(1);
            let next = progress(number * PARTS + PARTS * passes.min(of_all) / of_all, all);
            ends |= next == Next::Finish;
            next
        })?;
        if ends {
            return Ok(Vec::new());
        }
        orders.push(other.into_order());
    }
    if !go_on(progress(PARTITIONS * PARTS, all), 0)? {
        return Ok(Vec::new());
    }
    let pages = orders.iter().flat_map(|order| order.chunks(placement.rows_per_page()));
    best_of(pages.collect(), placement, queries, options, |done, of| {
        progress(PARTITIONS * PARTS + (PARTS as f64 * done as f64 / of.max(1) as f64) as usize, all)
    })
}
