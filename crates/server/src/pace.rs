//! The rate of bytes while a thread waits for a peer. Silence is not the only way to hold a
//! connection for ever: a byte a minute is another.

use std::time::{Duration, Instant};

/// Bytes a second that a client has to send of a request, or to take of its replies, on average
/// over the time after which silence ends a connection. A modem does more.
pub(crate) const BYTES_PER_SECOND_MIN: f64 = 1024.0;

/// The progress since a moment.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), bytes: 0 }
    }

    /// Counts more bytes.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Whether it was too little over this time; begins anew once the time is over and it was
    /// enough.
    pub(crate) fn is_too_slow(&mut self, time: Duration) -> bool {
        if self.since.elapsed() < time {
            return false;
        }
        if (self.bytes as f64) < BYTES_PER_SECOND_MIN * time.as_secs_f64() {
            return true;
        }
        *self = Self::new();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_now_and_then_is_too_slow_and_a_kilobyte_a_second_is_not() {
        let minute = Duration::from_secs(60);
        let passed = |seconds: u64, bytes: usize| {
            let since = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            let mut pace = Pace { since, bytes: 0 };
            pace.add(bytes);
            (pace.is_too_slow(minute), pace.bytes)
        };
        assert_eq!(passed(59, 1), (false, 1));
        assert_eq!(passed(61, 60), (true, 60));
        assert_eq!(passed(61, 61 << 10), (false, 0));
        assert!(!Pace::new().is_too_slow(Duration::MAX));
    }
}
