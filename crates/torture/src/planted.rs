//! Number of seeds that it takes to find each planted bug.

use crate::plan::{Habit, Limits};
use crate::report::Counts;
use crate::run::run;
pub use embedrock_core::planted::Bug;
use embedrock_core::planted::plant;
use std::time::{Duration, Instant};

/// Ranges of seeds, apart from each other, of a whole count.
pub const RANGES: usize = 5;
/// Seeds of a range at most.
pub const SEEDS_MAX: u64 = 100;
/// The median of the ranges at most.
pub const MEDIAN_MAX: u64 = 10;
/// Between the first seeds of two ranges.
const APART: u64 = 1_000_003;

/// The effort of finding a bug.
#[derive(Clone, Debug)]
pub struct Caught<const N: usize> {
    /// The bug.
    pub bug: Bug,
    /// Seeds of each range; `None` where it was not found.
    pub seeds: [Option<u64>; N],
    /// Operations and time of all ranges.
    pub operations: u64,
    /// See `operations`.
    pub elapsed: Duration,
    /// The finding of the first range.
    pub what: String,
}

impl<const N: usize> Caught<N> {
    /// The median of the ranges; `None` when most have not found it.
    pub fn median(&self) -> Option<u64> {
        let mut seeds = self.seeds.map(|seeds| seeds.unwrap_or(u64::MAX));
        seeds.sort_unstable();
        Some(seeds[N / 2]).filter(|median| *median != u64::MAX)
    }

    /// True when every range has found it, soon enough.
    pub fn is_good(&self) -> bool {
        self.seeds.iter().all(Option::is_some) && self.median().is_some_and(|m| m <= MEDIAN_MAX)
    }
}

/// Plants a bug and runs so many ranges until each has found it.
pub fn catch<const N: usize>(bug: Bug, first: u64, limits: &Limits) -> Caught<N> {
    let begin = Instant::now();
    let mut counts = Counts::default();
    let mut what = String::new();
    // No bug is one of pins, and lives with them go back for a part of their time.
    let without = [&limits.without[..], &[Habit::Pins]].concat();
    // One life in eight has stretches.
    let scheduled = matches!(bug, Bug::StretchReleasedEarly | Bug::StretchReadEarly);
    let limits = &Limits { without, scheduled, ..limits.clone() };
    plant(Some(bug));
    let seeds = std::array::from_fn(|range| {
        let from = first + range as u64 * APART;
        let found = (1..=SEEDS_MAX).find_map(|n| {
            let failure = run(from + n - 1, limits, &mut counts).err()?;
            // The seed finds the bug only if it finds nothing without it.
            plant(None);
            let sound = run(from + n - 1, limits, &mut Counts::default()).is_ok();
            plant(Some(bug));
            sound.then_some((n, failure.what))
        });
        found.map(|(n, found)| {
            if what.is_empty() {
                what = found;
            }
            n
        })
    });
    plant(None);
    Caught { bug, seeds, operations: counts.operations, elapsed: begin.elapsed(), what }
}
