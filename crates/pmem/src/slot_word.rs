//! The index's value of a key, in a region with rows: the number of its row slot, and a check.
//!
//! | bits | content |
//! |---|---|
//! | 0 to 39 | number of the slot |
//! | 40 | whether the check covers the row's checksum |
//! | 41 to 63 | check of key, number and, with bit 40, the row's checksum |
//!
//! The word is stored alone, whole by a power cut, so that it publishes a row by itself. With the
//! row's checksum in its check a slot whose last row was never written back is told from the row
//! that was put. A word that was made from one of version 1, which had the number alone, leaves the
//! row out, because no row is read for it. It never has 0 in bits 40 to 63, as those had.

use crate::bucket::mix;

const SLOT_BITS: u32 = 40;
const SLOT: u64 = (1 << SLOT_BITS) - 1;
const WITH_ROW: u64 = 1 << SLOT_BITS;
const CHECK_SHIFT: u32 = SLOT_BITS + 1;
const SEED: u64 = u64::from_le_bytes(*b"ERPMSLOT");

/// The word of a row in a slot, with this checksum.
#[inline(always)]
pub(crate) fn with_row(key: u64, slot: u64, checksum: u64, salt: u64) -> u64 {
    slot | WITH_ROW | check(key, slot, checksum, salt) << CHECK_SHIFT
}

/// The word of a row in a slot, whatever the row.
pub(crate) fn without_row(key: u64, slot: u64, salt: u64) -> u64 {
    slot | check(key, slot, 0, salt).max(1) << CHECK_SHIFT
}

/// The number of the slot.
#[inline(always)]
pub(crate) fn slot_of(word: u64) -> u64 {
    word & SLOT
}

/// Whether a word is one of version 1: a number alone.
pub(crate) fn has_no_check(word: u64) -> bool {
    word & !SLOT == 0
}

/// Whether a word is one of this key and of a row with this checksum.
#[inline(always)]
pub(crate) fn is_sound(word: u64, key: u64, checksum: u64, salt: u64) -> bool {
    let slot = slot_of(word);
    word == match word & WITH_ROW {
        0 => without_row(key, slot, salt),
        _ => with_row(key, slot, checksum, salt),
    }
}

#[inline(always)]
fn check(key: u64, slot: u64, checksum: u64, salt: u64) -> u64 {
    mix(mix(mix(key ^ salt ^ SEED) ^ slot) ^ checksum) >> CHECK_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_word_and_of_its_row_matters() {
        for key in [0, 7, u64::MAX] {
            for word in [with_row(key, 41, 99, 5), without_row(key, 41, 5)] {
                assert_eq!(slot_of(word), 41);
                assert!(is_sound(word, key, 99, 5) && !has_no_check(word));
                for bit in 0..64 {
                    assert!(!is_sound(word ^ 1 << bit, key, 99, 5), "bit {bit}");
                }
                assert!(!is_sound(word, key ^ 1, 99, 5) && !is_sound(word, key, 99, 6));
            }
            assert!(!is_sound(with_row(key, 41, 99, 5), key, 98, 5));
            assert!(has_no_check(41));
        }
    }
}
