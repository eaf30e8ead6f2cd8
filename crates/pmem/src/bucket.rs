//! A bucket's words: which bits are what, and how fingerprints are compared.
//!
//! | word | content |
//! |---|---|
//! | 0 | opening (32 bits), version (31), locked (1) |
//! | 1 | fingerprints of slots 0 to 7 |
//! | 2 | fingerprints of slots 8 to 13, then the overflow counter (16 bits) |
//! | 3 | check of the fingerprints, the counter and the keys |
//! | 4 + 2 i | key of slot i |
//! | 5 + 2 i | its value |
//!
//! A fingerprint of 0 says that the slot is free; storing another publishes key and value. Values
//! are one word each, which changes alone: their users check them (`slot_word.rs`).

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Slots of a bucket, which the paper fits into 256 bytes (figure 4).
pub(crate) const SLOTS: usize = 14;
pub(crate) const BUCKET_WORDS: usize = 32;
/// Offsets of words in a bucket.
pub(crate) const STATE: usize = 0;
pub(crate) const PRINTS: usize = 1;
pub(crate) const CHECK: usize = 3;
const KEYS: usize = 4;
const CHECK_SEED: u64 = u64::from_le_bytes(*b"ERPMBCKT");

/// Words that the check covers: two of fingerprints and the counter, and the keys.
pub(crate) const CHECKED_WORDS: usize = 2 + SLOTS;

/// The offset in a bucket of each word that the check covers, in order.
#[inline(always)]
pub(crate) fn checked_word(at: usize) -> usize {
    if at < 2 { PRINTS + at } else { KEYS + 2 * (at - 2) }
}

/// The place of a word of a bucket among those that the check covers.
pub(crate) fn position_in_check(word: usize) -> Option<usize> {
    match word {
        1..=2 => Some(word - PRINTS),
        KEYS.. if (word - KEYS).is_multiple_of(2) => Some(2 + (word - KEYS) / 2),
        _ => None,
    }
}

/// The check of a bucket with these words, never 0: a page of zeros has none. It is one of the
/// bucket's place, too.
#[inline(always)]
pub(crate) fn check_of(words: &[u64; CHECKED_WORDS], bucket: u64, salt: u64) -> u64 {
    let mut bytes = [0; CHECKED_WORDS * 8];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64_with_seed(&bytes, CHECK_SEED ^ mix(bucket ^ salt)).max(1)
}

const LOCKED: u64 = 1 << 63;
const VERSION_ONE: u64 = 1 << 32;
const VERSION: u64 = LOCKED - VERSION_ONE;
const OPENING: u64 = VERSION_ONE - 1;
const OVERFLOW_SHIFT: u32 = 48;
const PRINTS_OF_SECOND: u64 = (1 << OVERFLOW_SHIFT) - 1;
const LOWEST: u64 = 0x0101_0101_0101_0101;
const HIGHEST: u64 = LOWEST << 7;

/// The word with the lock of a bucket, the opening that locked it, and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(pub(crate) u64);

impl State {
    /// Whether a thread of this opening holds the bucket. A lock of another opening was left by a
    /// dead process, and binds nobody.
    pub(crate) fn is_locked(self, opening: u32) -> bool {
        self.0 & LOCKED != 0 && self.0 as u32 == opening
    }

    /// Locked in this opening.
    pub(crate) fn locked(self, opening: u32) -> Self {
        Self(self.0 & !OPENING | u64::from(opening) | LOCKED)
    }

    pub(crate) fn unlocked(self) -> Self {
        Self(self.0 & !LOCKED)
    }

    /// The next version: slots may be filled from here on.
    pub(crate) fn bumped(self) -> Self {
        Self(self.0 & !VERSION | self.0.wrapping_add(VERSION_ONE) & VERSION)
    }

    /// The version: two loads have the same if no slot was filled in between.
    pub(crate) fn version(self) -> u64 {
        self.0 & VERSION
    }
}

/// The words with a bucket's fingerprints and its overflow counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prints(pub(crate) [u64; 2]);

impl Prints {
    /// Slots with this fingerprint.
    #[inline(always)]
    pub(crate) fn matching(self, print: u8) -> Matches {
        let wanted = LOWEST * u64::from(print);
        Matches([zero_bytes(self.0[0] ^ wanted), zero_bytes(self.0[1] ^ wanted) & PRINTS_OF_SECOND])
    }

    pub(crate) fn first_free(self) -> Option<usize> {
        self.matching(0).next()
    }

    pub(crate) fn occupied(self) -> impl Iterator<Item = usize> {
        (0..SLOTS).filter(move |slot| self.get(*slot) != 0)
    }

    pub(crate) fn get(self, slot: usize) -> u8 {
        (self.0[slot / 8] >> (slot % 8 * 8)) as u8
    }

    /// The index, 0 or 1, of the word with the slot's fingerprint, and its new value.
    pub(crate) fn with(self, slot: usize, print: u8) -> (usize, u64) {
        let (word, shift) = (slot / 8, slot % 8 * 8);
        (word, self.0[word] & !(0xff << shift) | u64::from(print) << shift)
    }

    /// Number of keys that lie further on because this bucket had no room.
    #[inline(always)]
    pub(crate) fn overflow(self) -> u16 {
        (self.0[1] >> OVERFLOW_SHIFT) as u16
    }

    /// The second word with one key more or less displaced. A counter that has reached its end
    /// stays there, because the true number is lost.
    pub(crate) fn with_overflow(self, more: bool) -> u64 {
        let overflow = match (self.overflow(), more) {
            (u16::MAX, _) => u16::MAX,
            (count, true) => count + 1,
            (count, false) => count.saturating_sub(1),
        };
        self.0[1] & PRINTS_OF_SECOND | u64::from(overflow) << OVERFLOW_SHIFT
    }
}

/// Slots, in order.
pub(crate) struct Matches([u64; 2]);

impl Iterator for Matches {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        for word in 0..2 {
            if self.0[word] != 0 {
                let slot = self.0[word].trailing_zeros() as usize / 8 + word * 8;
                self.0[word] &= self.0[word] - 1;
                return Some(slot);
            }
        }
        None
    }
}

/// The highest bit of each byte that is 0, exactly.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    !((word & !HIGHEST).wrapping_add(!HIGHEST) | word | !HIGHEST)
}

/// The path of a key: its home bucket, the step from bucket to bucket, its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) home: u64,
    step: u64,
    pub(crate) print: u8,
}

impl Path {
    #[inline(always)]
    pub(crate) fn new(key: u64, salt: u64, buckets: u64) -> Self {
        let mixed = mix(key ^ salt);
        // The home takes the upper bits, fingerprint and step the lower ones.
        let home = ((u128::from(mixed) * u128::from(buckets)) >> 64) as u64;
        let step = 1 + (((mixed >> 8 & 0xff) * (buckets - 1).min(256)) >> 8);
        Self { home, step, print: (mixed as u8).max(1) }
    }

    /// The bucket after `bucket`.
    #[inline(always)]
    pub(crate) fn next(self, bucket: u64, buckets: u64) -> u64 {
        let next = bucket + self.step;
        if next < buckets { next } else { next - buckets }
    }
}

/// Every bit of the key reaches every bit of the result, so that keys with any stride spread.
/// (Constants: Pelle Evensen's "moremur", as in the engine's `hash.rs`.)
#[inline(always)]
pub(crate) fn mix(key: u64) -> u64 {
    let mut x = key;
    x ^= x >> 27;
    x = x.wrapping_mul(0x3C79_AC49_2BA7_B653);
    x ^= x >> 33;
    x = x.wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    x ^ (x >> 27)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn fingerprints_match_exactly() {
        // Neighbours of a match are what inexact tricks get wrong.
        let bytes = [5, 6, 5, 4, 0, 1, 0x80, 0x81, 0xff, 5, 0, 1, 2, 5, 5, 5];
        let word = |part: &[u8]| u64::from_le_bytes(part.try_into().expect("8 bytes"));
        let prints = Prints([word(&bytes[..8]), word(&bytes[8..])]);
        for print in 0..=255 {
            let expected: Vec<usize> = (0..SLOTS).filter(|i| bytes[*i] == print).collect();
            assert_eq!(prints.matching(print).collect::<Vec<_>>(), expected, "{print}");
        }
        assert_eq!(prints.first_free(), Some(4));
        assert_eq!(prints.occupied().count(), 12);
        assert_eq!(prints.overflow(), 0x0505);
    }

    #[test]
    fn a_fingerprint_is_stored_beside_the_others() {
        let mut prints = Prints([u64::MAX, 3 << OVERFLOW_SHIFT]);
        for slot in 0..SLOTS {
            let (word, value) = prints.with(slot, slot as u8 + 1);
            prints.0[word] = value;
        }
        for slot in 0..SLOTS {
            assert_eq!(prints.get(slot), slot as u8 + 1);
        }
        assert_eq!(prints.overflow(), 3);
    }

    #[test]
    fn an_overflow_counter_that_is_full_stays() {
        let mut prints = Prints([0, 7]);
        for count in 1..=u16::MAX {
            prints.0[1] = prints.with_overflow(true);
            assert_eq!(prints.overflow(), count);
        }
        prints.0[1] = prints.with_overflow(true);
        prints.0[1] = prints.with_overflow(false);
        assert_eq!((prints.overflow(), prints.get(8)), (u16::MAX, 7));
        prints.0[1] = 1 << OVERFLOW_SHIFT;
        prints.0[1] = prints.with_overflow(false);
        assert_eq!(prints.with_overflow(false), 0);
    }

    #[test]
    fn versions_wrap_within_their_bits_and_locks_belong_to_an_opening() {
        assert_eq!(State(LOCKED | VERSION | 9).bumped(), State(LOCKED | 9));
        let locked = State(0).bumped().locked(9);
        assert!(locked.is_locked(9) && !locked.is_locked(10));
        assert_eq!(locked.version(), VERSION_ONE);
        assert!(locked.locked(10).is_locked(10) && !locked.unlocked().is_locked(9));
    }

    #[test]
    fn a_path_visits_every_bucket_once() {
        for buckets in [3, 5, 97, 251, 257, 1009] {
            for key in 0..200 {
                let path = Path::new(key, 11, buckets);
                let mut seen = HashSet::from([path.home]);
                let mut bucket = path.home;
                for _ in 1..buckets {
                    bucket = path.next(bucket, buckets);
                    assert!(bucket < buckets && seen.insert(bucket), "{buckets} {key}");
                }
                assert_eq!(path.next(bucket, buckets), path.home);
                assert_ne!(path.print, 0);
            }
        }
    }
}
