//! The end of a connection that is refused, whose client may still be sending.
//!
//! A socket that is closed while bytes of its client are unread is reset, and a client that is told
//! of a reset does not read why. So the sending side alone is shut behind the reason, and what
//! comes is read and dropped until the client ends its side, within bounds of bytes and time.

use std::time::{Duration, Instant};

/// Bytes that are read and dropped of one connection, and of one that has not given the password.
const BYTES_MAX: usize = 256 << 20;
const BYTES_OUTSIDE_MAX: usize = 4 << 20;
/// The time that a client has to end its side, once it was sent the reason.
const TIME_MAX: Duration = Duration::from_secs(30);
const TIME_OUTSIDE_MAX: Duration = Duration::from_secs(5);

/// The progress of the end.
#[derive(Debug)]
pub(crate) struct Linger {
    is_outside: bool,
    dropped: usize,
    since: Instant,
    /// The time when the sending side was shut, once it was.
    shut: Option<Instant>,
}

impl Linger {
    /// It begins; `is_outside`: the client has not been let in.
    pub(crate) fn new(is_outside: bool) -> Self {
        Self { is_outside, dropped: 0, since: Instant::now(), shut: None }
    }

    /// Counts bytes that were read and dropped.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.dropped += bytes;
    }

    /// Whether it has just begun: then a client that sends need not take its replies yet.
    pub(crate) fn is_new(&self) -> bool {
        self.since.elapsed() < TIME_MAX
    }

    /// All was sent, and the sending side was shut.
    pub(crate) fn shut(&mut self) {
        self.shut = Some(Instant::now());
    }

    /// Whether the sending side was shut.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.is_some()
    }

    /// Whether the client has had its time, or has sent too much.
    pub(crate) fn is_over(&self) -> bool {
        let (bytes, time) = match self.is_outside {
            true => (BYTES_OUTSIDE_MAX, TIME_OUTSIDE_MAX),
            false => (BYTES_MAX, TIME_MAX),
        };
        self.dropped > bytes || self.shut.is_some_and(|shut| shut.elapsed() >= time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_some_bytes_and_some_time_and_more_of_both_once_it_is_let_in() {
        let passed = |is_outside: bool, bytes: usize, seconds: Option<u64>| {
            let ago = |s| Instant::now().checked_sub(Duration::from_secs(s)).unwrap();
            let since = Instant::now();
            let linger = Linger { is_outside, dropped: bytes, since, shut: seconds.map(ago) };
            linger.is_over()
        };
        assert!(!passed(false, BYTES_MAX, Some(29)) && !passed(false, 0, None));
        assert!(passed(false, BYTES_MAX + 1, None) && passed(false, 0, Some(31)));
        assert!(passed(true, 5 << 20, None) && passed(true, 0, Some(6)));
    }
}
