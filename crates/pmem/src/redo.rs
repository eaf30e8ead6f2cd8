//! Changes of several words that a crash leaves whole or undone.
//!
//! A change is first written to a lane as words and their new values, with a checksum, and made
//! durable. Then the words are stored, and the lane is cleared. Opening the region stores the words
//! of every whole lane again, which changes nothing if they were stored already.
//!
//! That works because a thread that changes words holds the locks of their buckets until the lane
//! is clear: no other thread changes them meanwhile.

use crate::bucket::{CHECK, check_of, position_in_check};
use crate::error::{Error, Result};
use crate::medium::{Medium, WORD_BYTES};
use crate::region::Region;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Behind the header of a region.
const AREA: usize = 512;
const LANES: usize = 16;
const LANE_WORDS: usize = 1024;
pub(crate) const AREA_WORDS: usize = LANES * LANE_WORDS;
/// Checksum and count, then pairs of a word's number and its value.
const HEAD_WORDS: usize = 2;
pub(crate) const ENTRIES_MAX: usize = (LANE_WORDS - HEAD_WORDS) / 2;
const CHECKSUM_SEED: u64 = u64::from_le_bytes(*b"ERPMREDO");

/// Changes whose words are being stored, by threads of this process: words and checks that are read
/// meanwhile may not belong together.
#[derive(Default)]
pub(crate) struct Stores {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Stores {
    /// Before the first word: a reader that sees the word sees this.
    fn begin(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// After the last word. Pairs with `ended`.
    fn end(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Number of changes that have ended: their words are visible from here on.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether no other change had begun by the time of the caller's earlier loads.
    pub(crate) fn none_since(&self, ended: u64) -> bool {
        self.begun.load(Ordering::Acquire) == ended
    }
}

/// The lanes that are in use by threads of this process.
#[derive(Default)]
pub(crate) struct Lanes(AtomicU64);

/// The new values of some words, in the order in which readers may see them.
///
/// All that the words publish is among them: a lane may be durable before anything else is.
#[derive(Default)]
pub(crate) struct Change(Vec<(usize, u64)>);

impl Change {
    /// A word as it will be after the changes so far.
    pub(crate) fn load(&self, medium: &impl Medium, word: usize) -> u64 {
        let last = self.0.iter().rev().find(|entry| entry.0 == word);
        last.map_or_else(|| medium.load(word), |entry| entry.1)
    }

    pub(crate) fn store(&mut self, word: usize, value: u64) {
        self.0.push((word, value));
    }

    /// Stores all words, durably, all of them or none, and forgets them. Buckets whose
    /// fingerprints, counter or keys are among them get a new check, and are held by this thread.
    ///
    /// # Errors
    /// `Corrupt` where one of those is damaged: nothing is stored, so that no check covers damage.
    /// `Io`.
    pub(crate) fn commit<M: Medium>(&mut self, region: &Region<M>) -> Result<()> {
        region.writable()?;
        self.add_checks(region)?;
        assert!(
            self.0.len() <= ENTRIES_MAX,
            "groups and paths are bounded so that a lane has room"
        );
        let medium = &region.medium;
        let lane = region.lanes.take();
        let start = lane_word(lane.index);
        for (entry, (word, value)) in self.0.iter().enumerate() {
            medium.store(start + HEAD_WORDS + 2 * entry, *word as u64);
            medium.store(start + HEAD_WORDS + 2 * entry + 1, *value);
        }
        medium.store(start + 1, self.0.len() as u64);
        medium.store(start, checksum(medium, start, self.0.len()));
        medium.flush(start..start + HEAD_WORDS + 2 * self.0.len());
        region.fence()?;
        region.stores.begin();
        for (word, value) in &self.0 {
            medium.store(*word, *value);
            medium.flush(*word..word + 1);
        }
        region.stores.end();
        region.fence()?;
        medium.store(start, 0);
        medium.flush(start..start + 1);
        region.fence()?;
        self.0.clear();
        Ok(())
    }

    /// Adds the checks of the buckets that change.
    fn add_checks<M: Medium>(&mut self, region: &Region<M>) -> Result<()> {
        let geometry = &region.geometry;
        let of_entry = |(word, _): &(usize, u64)| geometry.bucket_of_word(*word);
        let mut buckets: Vec<u64> = self.0.iter().map(of_entry).collect();
        buckets.sort_unstable();
        buckets.dedup();
        if let Some(damaged) = buckets.iter().find(|bucket| !region.is_sound(**bucket)) {
            return Err(region.damaged(*damaged));
        }
        let before: Vec<_> = buckets.iter().map(|bucket| region.checked_words(*bucket)).collect();
        let mut after = before.clone();
        for entry in &self.0 {
            let at = buckets.partition_point(|bucket| *bucket < of_entry(entry));
            let in_bucket = entry.0 - geometry.bucket_word(buckets[at]);
            if let Some(checked) = position_in_check(in_bucket) {
                after[at][checked] = entry.1;
            }
        }
        for (at, bucket) in buckets.iter().enumerate().filter(|(at, _)| before[*at] != after[*at]) {
            let check = check_of(&after[at], *bucket, geometry.salt);
            self.store(geometry.bucket_word(*bucket) + CHECK, check);
        }
        Ok(())
    }
}

/// A lane that is this thread's.
struct Lane<'a> {
    lanes: &'a Lanes,
    index: usize,
}

impl Lanes {
    fn take(&self) -> Lane<'_> {
        loop {
            let taken = self.0.load(Ordering::Relaxed);
            let index = taken.trailing_ones() as usize;
            if index < LANES {
                let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
                let new = taken | 1 << index;
                if self.0.compare_exchange(taken, new, success, failure).is_ok() {
                    return Lane { lanes: self, index };
                }
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.lanes.0.fetch_and(!(1 << self.index), Ordering::Release);
    }
}

fn lane_word(lane: usize) -> usize {
    AREA + lane * LANE_WORDS
}

/// Of the count and the entries; never 0, which is a clear lane.
fn checksum(medium: &impl Medium, start: usize, entries: usize) -> u64 {
    let mut bytes = [0; LANE_WORDS * WORD_BYTES];
    let bytes = &mut bytes[..(1 + 2 * entries) * WORD_BYTES];
    medium.read(start + 1, bytes);
    xxh3_64_with_seed(bytes, CHECKSUM_SEED).max(1)
}

/// Finishes the changes of lanes that are whole, and clears all lanes.
///
/// A lane that is not whole was cut off before any of its words was stored.
pub(crate) fn replay(medium: &impl Medium, index: Range<usize>) -> Result<()> {
    for start in (0..LANES).map(lane_word) {
        let found = medium.load(start);
        if found == 0 {
            // A killed process may have cleared it without making that durable.
            medium.flush(start..start + 1);
            continue;
        }
        let entries = medium.load(start + 1) as usize;
        if entries <= ENTRIES_MAX && found == checksum(medium, start, entries) {
            let pairs = (start + HEAD_WORDS..).step_by(2).take(entries);
            let pairs = pairs.map(|at| (medium.load(at) as usize, medium.load(at + 1)));
            // A killed process may have stored the lane without making it durable.
            medium.flush(start..start + LANE_WORDS);
            for (word, _) in pairs.clone() {
                if !index.contains(&word) {
                    return Err(Error::corrupt(format!(
                        "{}: a change that was under way names word {word}, outside the index",
                        medium.name()
                    )));
                }
            }
            medium.fence()?;
            for (word, value) in pairs {
                medium.store(word, value);
                medium.flush(word..word + 1);
            }
            medium.fence()?;
        }
        medium.store(start, 0);
        medium.flush(start..start + 1);
    }
    medium.fence()
}
