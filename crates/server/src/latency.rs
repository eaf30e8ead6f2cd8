//! Latencies of requests, counted so that quantiles of any span of time can be computed.
//!
//! Times are counted in buckets that are at most a sixteenth wide, from a microsecond to a minute.
//! Counters only rise: the quantiles of a span are those of the difference of two readings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of an octave, as a power of two.
const FINE_BITS: u32 = 4;
const FINE: usize = 1 << FINE_BITS;
/// Octaves above the first buckets, which are a quarter of a microsecond wide.
const OCTAVES: usize = 25;
const BUCKETS: usize = FINE * (OCTAVES + 1);
/// Nanoseconds of the first buckets, as a power of two.
const UNIT_BITS: u32 = 8;

/// Counts of a moment, by bucket.
pub(crate) type Counts = [u64; BUCKETS];

/// Counts requests by their time. Relaxed: counters order nothing.
pub(crate) struct Latency(Box<[AtomicU64; BUCKETS]>);

impl Latency {
    /// Nothing is counted.
    pub(crate) fn new() -> Self {
        Self(Box::new(std::array::from_fn(|_| AtomicU64::new(0))))
    }

    /// Counts so many requests that took so long each.
    pub(crate) fn observe(&self, time: Duration, requests: u64) {
        self.0[bucket_of(time)].fetch_add(requests, Ordering::Relaxed);
    }

    /// All counts.
    pub(crate) fn counts(&self) -> Box<Counts> {
        Box::new(std::array::from_fn(|bucket| self.0[bucket].load(Ordering::Relaxed)))
    }
}

/// Seconds that this share of the requests counted between two readings did not exceed; `None`
/// where there were none.
pub(crate) fn quantile(before: &Counts, after: &Counts, share: f64) -> Option<f64> {
    let between = |bucket: usize| after[bucket].saturating_sub(before[bucket]);
    let all: u64 = (0..BUCKETS).map(between).sum();
    let rank = (all as f64 * share).ceil().max(1.0) as u64;
    let mut seen = 0;
    let found = (0..BUCKETS).find(|bucket| {
        seen += between(*bucket);
        seen >= rank
    });
    found.filter(|_| all > 0).map(|bucket| end_of(bucket) as f64 / 1e9)
}

fn bucket_of(time: Duration) -> usize {
    let units = (time.as_nanos() >> UNIT_BITS).min(u128::from(u32::MAX)) as u64;
    if units < FINE as u64 {
        return units as usize;
    }
    let shift = units.ilog2() - FINE_BITS;
    let bucket = FINE * (shift as usize + 1) + (units >> shift) as usize - FINE;
    bucket.min(BUCKETS - 1)
}

/// Nanoseconds at which a bucket ends.
fn end_of(bucket: usize) -> u64 {
    let (octave, fine) = (bucket / FINE, (bucket % FINE) as u64);
    let units = match octave {
        0 => fine + 1,
        octave => (FINE as u64 + fine + 1) << (octave - 1),
    };
    units << UNIT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_at_most_a_sixteenth_above_what_it_counts() {
        let mut nanos = 300u64;
        while nanos < 60_000_000_000 {
            let end = end_of(bucket_of(Duration::from_nanos(nanos)));
            assert!(end > nanos && end <= nanos + nanos / 15 + 256, "{nanos} ends at {end}");
            nanos += nanos / 7 + 1;
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
        assert_eq!(bucket_of(Duration::ZERO), 0);
    }

    #[test]
    fn quantiles_are_those_of_the_requests_between_two_readings() {
        let latency = Latency::new();
        latency.observe(Duration::from_secs(5), 1_000);
        let before = latency.counts();
        assert_eq!(quantile(&before, &before, 0.5), None);
        latency.observe(Duration::from_micros(100), 98);
        latency.observe(Duration::from_millis(3), 2);
        let after = latency.counts();
        let about = |share: f64, expected: f64| {
            let found = quantile(&before, &after, share).unwrap();
            assert!(found >= expected && found < expected * 1.07, "{found} at {share}");
        };
        about(0.5, 100e-6);
        about(0.98, 100e-6);
        about(0.99, 3e-3);
        about(1.0, 3e-3);
    }
}
