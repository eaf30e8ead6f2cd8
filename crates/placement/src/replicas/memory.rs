//! The memory that the search for replica pages allocates.

use super::ReplicaOptions;
use super::others::PARTITIONS;

/// The most bytes that [`connectivity`](super::connectivity) and [`residual`](super::residual)
/// have allocated at a time, the result among them, without the caller's queries and placement: an
/// upper bound, for `pins` rows of `queries` queries over `num_rows` rows.
pub fn memory_needed(
    num_rows: u64,
    queries: u64,
    pins: u64,
    rows_per_page: u64,
    options: &ReplicaOptions,
) -> u64 {
    let threads = options.threads.max(1) as u64;
    let replicas = options.num_pages(num_rows as usize, rows_per_page as usize) as u64;
    let pages = num_rows.div_ceil(rows_per_page.max(1)) + replicas;
    // Scores; the queue while it grows by doubling; where the queries of a row begin, and a cursor
    // while they are filled in.
    let of_rows = 8 + 3 * 24 + 8 + 8 + 4;
    // The queries of each row, and the page that serves each pin.
    let of_pins = 4 + 4;
    // Counts and marks of rows, rows that have a count; pages; queries that ask for a page.
    let of_thread = num_rows * (8 + 1 + 2 * 4) + pages * 4 + queries * (4 + 2 * 4);
    let of_result = replicas * (2 * 24 + 2 * 4 * rows_per_page) + pages * 4;
    num_rows * of_rows + pins * of_pins + queries * 8 + threads * of_thread + of_result
}

/// The memory of [`other_partitions`](super::other_partitions) beside [`memory_needed`] of its
/// choice, or beside a partition: orders, the places of their pages, and the queue of these.
pub fn memory_of_partitions(num_rows: u64, rows_per_page: u64) -> u64 {
    let partitions = PARTITIONS as u64;
    partitions * (num_rows * 4 + num_rows.div_ceil(rows_per_page.max(1)) * (16 + 3 * 24))
}
