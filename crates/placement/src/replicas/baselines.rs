//! Replica pages that learn little or nothing, to compare with.

use super::ReplicaOptions;
use crate::baselines::frequency_order;
use crate::error::Result;
use crate::placement::Placement;
use crate::random::Random;
use crate::trace::Queries;

/// Replica pages of the rows that most queries ask for, the first ones together; equal ones by
/// number.
///
/// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) for options or queries that do not fit.
pub fn frequency(
    placement: &Placement,
    queries: Queries<'_>,
    options: &ReplicaOptions,
) -> Result<Vec<Vec<u32>>> {
    options.check(queries, placement.num_rows())?;
    Ok(first_pages(&frequency_order(&queries.frequency()), placement, options))
}

/// Replica pages of rows drawn by `seed`.
///
/// *Errors*: as [`frequency`].
pub fn random(
    placement: &Placement,
    queries: Queries<'_>,
    options: &ReplicaOptions,
    seed: u64,
) -> Result<Vec<Vec<u32>>> {
    options.check(queries, placement.num_rows())?;
    let mut rows = placement.order().to_vec();
    // Not the sequence by which a placement is drawn: equal pages would save nothing.
    Random::new(!seed).shuffle(&mut rows);
    Ok(first_pages(&rows, placement, options))
}

fn first_pages(rows: &[u32], placement: &Placement, options: &ReplicaOptions) -> Vec<Vec<u32>> {
    let rows_per_page = placement.rows_per_page();
    let num_pages = options.num_pages(placement.num_rows(), rows_per_page);
    rows.chunks(rows_per_page).take(num_pages).map(<[u32]>::to_vec).collect()
}
