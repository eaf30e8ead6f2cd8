//! Single parts of the engine, so that a regression can be located.
//!
//! `cargo bench -p embedrock-partbench --bench parts -- [FILTER] [--save-baseline NAME] [--baseline
//! NAME]`. Each iteration repeats the named operation a thousand times, with other keys every time,
//! so the microseconds of an iteration read as nanoseconds of one. The results are asserted to be
//! right.

mod cache;
mod index;
mod optimizer;
mod page;

use criterion::Criterion;
use embedrock_core::hash::mix;
use std::time::Duration;

/// Number of operations in an iteration.
const TIMES: usize = 1_000;

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_millis(1500))
        .sample_size(30)
        .configure_from_args();
    index::benches(&mut criterion);
    cache::benches(&mut criterion);
    page::benches(&mut criterion);
    optimizer::benches(&mut criterion);
    criterion.final_summary();
}

/// Numbers that look random, a thousand at a time.
struct Draws {
    below: u64,
    drawn: u64,
}

impl Draws {
    /// Numbers from 0 to below `below`.
    fn new(below: u64) -> Self {
        Self { below, drawn: 0 }
    }

    fn next(&mut self) -> Vec<u64> {
        let begin = self.drawn;
        self.drawn += TIMES as u64;
        (begin..self.drawn).map(|i| mix(i, 11) % self.below).collect()
    }
}
