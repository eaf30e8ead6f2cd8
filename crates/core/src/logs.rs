//! Common parts of log lines: a limit on their rate, and the spelling of amounts.
//!
//! Lines go to any logger that the program has set (crate `log`); without one they cost a look at a
//! static. No line is written in a loop over rows or pages, nor in code that reads and changes
//! rows: a test holds the list of the folders that have none. A line names the store, and the
//! tables it is about, never the content of a row, and never a key.

use std::borrow::Cow;
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two lines about the same.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets one line a second through of what may come often, and counts the others.
#[derive(Debug)]
pub struct Limit {
    since: Instant,
    /// Milliseconds after `since` from which on the next line may come.
    next: AtomicU64,
    left_out: AtomicU64,
}

impl Default for Limit {
    fn default() -> Self {
        Self { since: Instant::now(), next: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }
}

impl Limit {
    /// Whether a line may be written now: how many were left out since the last one.
    pub fn pass(&self) -> Option<LeftOut> {
        self.pass_at(self.since.elapsed())
    }

    fn pass_at(&self, now: Duration) -> Option<LeftOut> {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Relaxed);
        let after = now.saturating_add(PAUSE.as_millis() as u64);
        let exchange = |next| {
            // Of two threads one writes.
            self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
        };
        if now < next || exchange(next).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(LeftOut(self.left_out.swap(0, Ordering::Relaxed)))
    }
}

/// Number of lines that were left out before this one: the end of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut(pub u64);

impl Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" (and 1 like this since the last line)"),
            more => write!(f, " (and {more} like this since the last line)"),
        }
    }
}

/// An amount of bytes, for people: `3.4 MiB`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} bytes", self.0);
        }
        let (mut amount, mut unit) = (self.0 as f64 / 1024.0, 0);
        while amount >= 1023.95 && unit + 1 < UNITS.len() {
            (amount, unit) = (amount / 1024.0, unit + 1);
        }
        write!(f, "{amount:.1} {}", UNITS[unit])
    }
}

/// A time in seconds, for people: `0.012 s`.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(pub Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let digits = if seconds < 10.0 { 3 } else { 1 };
        write!(f, "{seconds:.digits$} s")
    }
}

/// The message of an error without the keys that it may name, for they may be people's; in one
/// line.
pub fn without_keys(message: &str) -> Cow<'_, str> {
    const WORD: &str = "key ";
    let is_key = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let named = message.match_indices(WORD).any(|(at, _)| is_key(&message[at + WORD.len()..]));
    if !named && !message.contains(['\n', '\r']) {
        return Cow::Borrowed(message);
    }
    let mut parts = message.split(WORD);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(WORD);
        match is_key(part) {
            true => {
                text.push_str("...");
                text.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-'));
            }
            false => text.push_str(part),
        }
    }
    Cow::Owned(text.replace(['\n', '\r'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_passes_and_tells_how_many_did_not() {
        let limit = Limit::default();
        let at = |ms| limit.pass_at(Duration::from_millis(ms));
        assert_eq!(at(0), Some(LeftOut(0)));
        for ms in 1..1000 {
            assert_eq!(at(ms), None);
        }
        assert_eq!(at(1000), Some(LeftOut(999)));
        assert_eq!(at(1999), None);
        assert_eq!(at(60_000), Some(LeftOut(1)));
        assert_eq!(at(61_000), Some(LeftOut(0)));
        assert_eq!(LeftOut(0).to_string(), "");
        assert_eq!(LeftOut(7).to_string(), " (and 7 like this since the last line)");
    }

    #[test]
    fn of_many_threads_one_passes() {
        let limit = Limit::default();
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let passes = limit.pass_at(Duration::from_millis(5)).is_some();
                        passed.fetch_add(u64::from(passes), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 1);
        assert_eq!(limit.pass_at(Duration::from_secs(9)), Some(LeftOut(7999)));
    }

    #[test]
    fn amounts_have_units() {
        let bytes = |bytes| Bytes(bytes).to_string();
        assert_eq!((bytes(0), bytes(1023)), ("0 bytes".to_owned(), "1023 bytes".to_owned()));
        assert_eq!((bytes(1024), bytes(3 << 29)), ("1.0 KiB".to_owned(), "1.5 GiB".to_owned()));
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
        assert_eq!(Seconds(Duration::from_micros(12_345)).to_string(), "0.012 s");
        assert_eq!(Seconds(Duration::from_secs(75)).to_string(), "75.0 s");
    }

    #[test]
    fn messages_name_no_keys_and_are_one_line() {
        let said = without_keys("slot 3: table 7 key 123456, expected key -9; a key of 3 bytes");
        assert_eq!(said, "slot 3: table 7 key ..., expected key ...; a key of 3 bytes");
        assert_eq!(without_keys("a\nb"), "a b");
        assert!(matches!(without_keys("the key file is missing"), Cow::Borrowed(_)));
    }
}
