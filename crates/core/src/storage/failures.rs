//! Places that upkeep could not read: the error, the number of failures, and whether they are
//! skipped.
//!
//! Damage is permanent, so a damaged place is skipped from the first failure on. An error of the
//! device may pass: its place is tried again, later each time, and skipped after repeated failures.
//! Each place is reported until it has been read or no longer exists.

use crate::error::{Error, ErrorKind};
use std::collections::BTreeMap;

/// An error of the device that came so often at one place does not pass.
const TIMES_MAX: u32 = 3;
/// A place is tried again after so many events, and twice as many the next time.
const EVENTS_FIRST: u64 = 8;
/// Places that are remembered, and messages of them.
const PLACES_MAX: usize = 32;
const TEXTS_MAX: usize = 8;
/// Bytes of a message at most.
const TEXT_BYTES_MAX: usize = 256;
/// Bytes that all of it takes at most, whatever a place is.
pub(super) const FAILURES_BYTES: usize = 6 << 10;

/// The known facts of a place.
#[derive(Clone, Debug, Default)]
struct Failure {
    times: u32,
    is_aside: bool,
    /// It is not tried before this event.
    not_before: u64,
    /// Empty where others take all the room for messages.
    text: String,
}

impl Failure {
    fn rests(&self, now: u64) -> bool {
        self.is_aside || now < self.not_before
    }
}

/// Places that could not be read.
#[derive(Clone, Debug)]
pub(super) struct Failures<K> {
    places: BTreeMap<K, Failure>,
}

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self { places: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Failures<K> {
    /// Notes that `at` could not be read, after so many events. True when it is to be left alone
    /// from here on. Of more places than can be remembered nothing is: they will be met again.
    pub(super) fn note(&mut self, at: K, error: &Error, now: u64) -> bool {
        if self.places.len() == PLACES_MAX && !self.places.contains_key(&at) {
            return false;
        }
        let texts = self.texts_told();
        let failure = self.places.entry(at).or_default();
        if texts < TEXTS_MAX || !failure.text.is_empty() {
            failure.text = shortened(error.message()).to_owned();
        }
        failure.not_before = now.saturating_add(EVENTS_FIRST << failure.times.min(32));
        failure.times += 1;
        failure.is_aside |= error.kind() != ErrorKind::Io || failure.times >= TIMES_MAX;
        failure.is_aside
    }

    /// Makes sure that `at` can be noted and told, at the cost of one of the places that `may_go`
    /// where so many are remembered.
    pub(super) fn make_room(&mut self, at: K, may_go: impl Fn(K) -> bool) {
        if self.places.contains_key(&at) {
            return;
        }
        let is_untold = self.texts_told() == TEXTS_MAX;
        let others = self.places.iter_mut().filter(|(other, _)| may_go(**other));
        let Some((other, failure)) = others.max_by_key(|(_, other)| !other.text.is_empty()) else {
            return;
        };
        let other = *other;
        if is_untold {
            failure.text = String::new();
        }
        if self.places.len() == PLACES_MAX {
            self.places.remove(&other);
        }
    }

    fn texts_told(&self) -> usize {
        self.places.values().filter(|failure| !failure.text.is_empty()).count()
    }

    /// Whether a place is left alone.
    pub(super) fn is_aside(&self, at: K) -> bool {
        self.places.get(&at).is_some_and(|failure| failure.is_aside)
    }

    /// Whether a place is not tried now, after so many events.
    pub(super) fn rests(&self, at: K, now: u64) -> bool {
        self.places.get(&at).is_some_and(|failure| failure.rests(now))
    }

    /// Places that are not tried now, in order.
    pub(super) fn resting(&self, now: u64) -> impl Iterator<Item = K> + '_ {
        self.places.iter().filter(move |(_, failure)| failure.rests(now)).map(|(at, _)| *at)
    }

    /// Places that are tried again.
    pub(super) fn tried_again(&self) -> impl Iterator<Item = K> + '_ {
        self.places.iter().filter(|(_, failure)| !failure.is_aside).map(|(at, _)| *at)
    }

    /// Forgets places that are there no more, or that were read.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(K) -> bool) {
        self.places.retain(|at, _| stays(*at));
    }

    /// The errors, and their consequences: for places that are left alone, as `aside` says.
    pub(super) fn texts(&self, aside: &str) -> Vec<String> {
        let told = self.places.values().filter(|failure| !failure.text.is_empty());
        let mut texts: Vec<String> = told
            .map(|Failure { times, is_aside, text, .. }| match is_aside {
                true => format!("{text}; {aside}"),
                false => {
                    format!("{text}; it failed {times} times of {TIMES_MAX}, and is tried again")
                }
            })
            .collect();
        let more = self.places.len() - texts.len();
        if more > 0 {
            texts.push(format!("{more} more places cannot be read; check the store"));
        }
        texts
    }

    /// Allocated bytes, about.
    pub(super) fn memory_bytes(&self) -> usize {
        let texts: usize = self.places.values().map(|failure| failure.text.capacity()).sum();
        // A tree holds a third more than what is in it.
        texts + self.places.len() * (size_of::<K>() + size_of::<Failure>()) * 4 / 3
    }
}

/// The begin of a message, where it is long.
fn shortened(message: &str) -> &str {
    let mut end = message.len().min(TEXT_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind, text: &str) -> Error {
        Error::new(kind, text)
    }

    #[test]
    fn damage_is_left_alone_at_once_and_an_error_that_may_pass_the_third_time() {
        let mut failures = Failures::default();
        assert!(failures.note(1, &error(ErrorKind::Corrupt, "page 1 is damaged"), 0));
        let io = error(ErrorKind::Io, "page 2: EIO");
        assert!(!failures.note(2, &io, 10));
        assert!(failures.rests(2, 17) && !failures.rests(2, 18));
        assert!(!failures.note(2, &io, 20));
        assert!(failures.rests(2, 35) && !failures.rests(2, 36), "twice as long");
        let texts = failures.texts("left alone");
        assert_eq!(texts[0], "page 1 is damaged; left alone");
        assert_eq!(texts[1], "page 2: EIO; it failed 2 times of 3, and is tried again");
        assert_eq!(failures.tried_again().collect::<Vec<_>>(), [2]);
        assert!(failures.note(2, &io, 40));
        assert!(failures.rests(2, u64::MAX) && !failures.rests(3, 0));
        assert_eq!(failures.resting(1000).collect::<Vec<_>>(), [1, 2]);
        failures.retain(|at| at != 1);
        assert!(!failures.is_aside(1) && failures.is_aside(2));
    }

    #[test]
    fn a_place_that_has_to_be_remembered_takes_the_room_of_another() {
        let mut failures = Failures::default();
        for at in 0..2 * PLACES_MAX as u32 {
            failures.note(at, &error(ErrorKind::Corrupt, &format!("page {at}")), 0);
        }
        let damage = error(ErrorKind::Corrupt, "all of it");
        failures.make_room(1000, |at| at >= 1000);
        assert!(!failures.note(1000, &damage, 0), "none of them may go");
        failures.make_room(1000, |at| at < 1000);
        assert!(failures.note(1000, &damage, 0) && failures.rests(1000, 9));
        let texts = failures.texts("left alone");
        assert_eq!((texts.len(), &*texts[TEXTS_MAX - 1]), (TEXTS_MAX + 1, "all of it; left alone"));
        assert_eq!(failures.resting(0).count(), PLACES_MAX);
        let before = failures.texts("");
        failures.make_room(1000, |_| true);
        assert_eq!(failures.texts(""), before, "it is there already");
    }

    #[test]
    fn what_is_remembered_of_many_places_is_bounded() {
        let mut failures = Failures::default();
        for at in 0..10_000u32 {
            let text = format!("{at} {}", "ä".repeat(2000));
            let is_remembered =
                failures.note((at, u64::from(at)), &error(ErrorKind::Corrupt, &text), 0);
            assert_eq!(is_remembered, at < PLACES_MAX as u32);
        }
        let texts = failures.texts("left alone");
        assert_eq!(texts.len(), TEXTS_MAX + 1, "{texts:?}");
        assert!(texts[TEXTS_MAX].starts_with("24 more places"), "{}", texts[TEXTS_MAX]);
        let bytes = failures.memory_bytes();
        assert!(bytes <= FAILURES_BYTES && bytes > FAILURES_BYTES / 2, "{bytes}");
    }
}
