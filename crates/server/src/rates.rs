//! Current rates of requests and replies, for clients that ask for them in one number.

use crate::metrics::Metrics;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of readings that are kept, and the least time between two: rates are those of 2 seconds.
const READINGS: usize = 5;
const APART: Duration = Duration::from_millis(500);

/// Counters of the last moments.
#[derive(Default)]
pub(crate) struct Rates(Mutex<VecDeque<Reading>>);

struct Reading {
    at: Instant,
    counts: [u64; 3],
}

/// Requests, bytes of requests and bytes of replies, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Now {
    pub(crate) requests: f64,
    pub(crate) received_bytes: f64,
    pub(crate) sent_bytes: f64,
}

impl Rates {
    /// Reads the counters, where the last reading is old enough.
    pub(crate) fn read(&self, metrics: &Metrics) {
        let counts = || [metrics.requests(), metrics.bytes_in.get(), metrics.bytes_out.get()];
        self.note(Instant::now(), counts);
    }

    fn note(&self, at: Instant, counts: impl FnOnce() -> [u64; 3]) {
        // Another thread does it just now.
        let Some(mut readings) = self.0.try_lock() else { return };
        if readings.back().is_some_and(|last| at.duration_since(last.at) < APART) {
            return;
        }
        if readings.len() == READINGS {
            readings.pop_front();
        }
        readings.push_back(Reading { at, counts: counts() });
    }

    /// The rates of the last two seconds; 0 until two readings are there.
    pub(crate) fn now(&self) -> Now {
        let readings = self.0.lock();
        let (Some(first), Some(last)) = (readings.front(), readings.back()) else {
            return Now::default();
        };
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        if seconds <= 0.0 {
            return Now::default();
        }
        let [requests, received_bytes, sent_bytes] = std::array::from_fn(|at| {
            last.counts[at].saturating_sub(first.counts[at]) as f64 / seconds
        });
        Now { requests, received_bytes, sent_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_two_seconds() {
        let (rates, begin) = (Rates::default(), Instant::now());
        assert_eq!(rates.now(), Now::default());
        for second in 0..10u64 {
            let at = begin + Duration::from_millis(500 * second);
            rates.note(at, || [second * second, 10 * second, 0]);
            rates.note(at + Duration::from_millis(1), || panic!("too soon"));
        }
        // From the sixth reading to the tenth.
        let expected = Now { requests: (81.0 - 25.0) / 2.0, received_bytes: 20.0, sent_bytes: 0.0 };
        assert_eq!(rates.now(), expected);
    }
}
