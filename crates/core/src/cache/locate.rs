//! The set and tag of a key's row: a pure function of the key and the number of sets.

use super::tags::TAG_MAX;

/// The set in which a row lies if it is resident, and the tag that it has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The set.
    pub(super) set: u32,
    /// Distinguishes rows of a set: exactly from 1 to 2047, nearly from 2048 to 4095.
    pub(super) tag: u16,
    /// The way that was seen when the row was prefetched, or `NO_HINT`.
    pub(super) hint: u8,
}

/// No way.
pub(super) const NO_HINT: u8 = u8::MAX;

impl Location {
    /// The set in which it is.
    #[inline(always)]
    pub fn set(self) -> u32 {
        self.set
    }

    /// A place holder.
    pub(super) const NOWHERE: Self = Self { set: 0, tag: 1, hint: NO_HINT };

    fn exact(set: u32, tag: u16) -> Self {
        Self { set, tag, hint: NO_HINT }
    }

    fn nearly(set: u32, tag: u64) -> Self {
        Self { set, tag: FIRST_INEXACT | tag as u16 & (TAG_MAX - FIRST_INEXACT), hint: NO_HINT }
    }

    /// True when no other row of the set has this tag.
    #[inline(always)]
    pub(super) fn is_exact(self) -> bool {
        self.tag < FIRST_INEXACT
    }
}

/// The first tag that several rows of a set may have.
const FIRST_INEXACT: u16 = 0x800;

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The set in which block `block` begins. A multiple of the golden ratio alone would do for blocks
/// in a row; with some strides and numbers of sets, a few sets got all rows.
fn start(block: u64, sets: u32) -> u32 {
    let multiple = block.wrapping_mul(GOLDEN);
    reduce((multiple ^ multiple >> 32).wrapping_mul(GOLDEN), sets)
}

/// A number below `sets` from a hash.
#[inline(always)]
fn reduce(hash: u64, sets: u32) -> u32 {
    (((hash >> 32) * u64::from(sets)) >> 32) as u32
}

/// Largest number of dense rows per set of a cache that set and tag alone can tell apart.
pub(super) const ROWS_PER_SET_MAX: u64 = FIRST_INEXACT as u64 - 1;

/// Bytes of a cache that do not depend on its shape: the starts of blocks.
pub(crate) const CACHE_FIXED_BYTES: u64 = (STARTS * size_of::<u32>()) as u64;

/// The number of blocks of rows of which an eighth fits. With less memory storage sets the pace,
/// and the rows behind these blocks may take some nanoseconds more.
const STARTS: usize = 256;
const _: () = assert!((STARTS as u64) < ROWS_PER_SET_MAX);

/// Maps keys to sets.
#[derive(Debug)]
pub(super) struct Locator {
    sets: u32,
    /// 2^64 ÷ sets, rounded down (less one where that is exact).
    reciprocal: u64,
    /// The sets in which the first blocks begin. With them computed, gathers are 5 % slower.
    starts: Box<[u32; STARTS]>,
}

impl Locator {
    pub(super) fn new(sets: u32) -> Self {
        let starts = Box::new(std::array::from_fn(|block| start(block as u64, sets)));
        Self { sets, reciprocal: u64::MAX / u64::from(sets), starts }
    }

    /// Quotient and remainder by the number of sets, by multiplication.
    #[inline(always)]
    fn divide(&self, n: u64) -> (u64, u32) {
        let sets = u64::from(self.sets);
        // `reciprocal` is above 2^64 / sets - 1 or equal, so the estimate is above
        // n / sets - n / 2^64 - 1 and misses the quotient by one at most.
        let estimate = ((u128::from(n) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = n - estimate * sets;
        if rest >= sets { (estimate + 1, (rest - sets) as u32) } else { (estimate, rest as u32) }
    }

    #[inline(always)]
    pub(super) fn hashed(&self, hash: u64) -> Location {
        Location::nearly(reduce(hash, self.sets), hash)
    }

    #[inline(always)]
    pub(super) fn dense(&self, sequence: u64) -> Location {
        let (block, offset) = self.divide(sequence);
        // Dense rows of one set differ in their block. So its number tells them apart, as long as
        // it fits: in a cache for 1/64 of the rows, all of them.
        match block < STARTS as u64 {
            true => {
                let start = self.starts[block as usize];
                Location::exact(self.turned(offset, start), block as u16 + 1)
            }
            false => self.dense_far(block, offset),
        }
    }

    /// Apart from the first blocks, whose loops are tighter for it.
    #[cold]
    fn dense_far(&self, block: u64, offset: u32) -> Location {
        let set = self.turned(offset, start(block, self.sets));
        match block < ROWS_PER_SET_MAX {
            true => Location::exact(set, block as u16 + 1),
            false => Location::nearly(set, block),
        }
    }

    /// The set that is `offset` sets after `start`; behind the last comes the first.
    #[inline(always)]
    fn turned(&self, offset: u32, start: u32) -> u32 {
        let left = self.sets - start;
        if offset >= left { offset - left } else { offset + start }
    }

    /// The dense row that has this exact tag in this set: the inverse of [`dense`](Self::dense).
    pub(super) fn sequence(&self, set: u32, tag: u16) -> u64 {
        assert!((1..FIRST_INEXACT).contains(&tag), "tag {tag} is of several rows");
        let block = u64::from(tag) - 1;
        let start = start(block, self.sets);
        let offset = if set >= start { set - start } else { set + (self.sets - start) };
        block * u64::from(self.sets) + u64::from(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;

    const COUNTS: [u32; 9] = [1, 2, 3, 7, 64, 1000, 312_500, 1 << 31, u32::MAX];

    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    #[test]
    fn division_by_multiplication_is_exact() {
        for sets in COUNTS {
            let locator = Locator::new(sets);
            let s = u64::from(sets);
            let edges = [0, 1, s - 1, s, s + 1, 31 * s, 32 * s - 1, u64::MAX - 1, u64::MAX];
            let multiples = (1..70).map(|k| u64::MAX / s / k * s);
            let near = multiples.flat_map(|n| [n.wrapping_sub(1), n, n.wrapping_add(1)]);
            let random = (0..1000).map(|i| mix(i, 7) >> (i % 64));
            for n in edges.into_iter().chain(near).chain(random) {
                assert_eq!(locator.divide(n), (n / s, (n % s) as u32), "{n} / {sets}");
            }
        }
    }

    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    #[test]
    fn every_location_is_a_set_with_a_tag() {
        for sets in COUNTS {
            let locator = Locator::new(sets);
            let hashes = [0, 1, 0xffff, 0x1_0000, u64::MAX, u64::MAX - 0xffff, 1 << 63];
            for n in hashes.into_iter().chain((0..1000).map(|i| mix(i, 9))) {
                for at in [locator.hashed(n), locator.dense(n)] {
                    assert!(at.set < sets, "{n} of {sets}: {at:?}");
                    assert!((1..=TAG_MAX).contains(&at.tag), "{n} of {sets}: {at:?}");
                }
            }
        }
    }

    #[test]
    fn neighbours_in_a_set_have_different_tags() {
        let locator = Locator::new(10);
        let mut seen = std::collections::HashSet::new();
        for row in 0..320 {
            let at = locator.dense(row);
            assert!(seen.insert((at.set, at.tag)), "row {row}: {at:?} is another row's too");
        }
    }

    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    #[test]
    fn an_exact_tag_is_one_row_alone() {
        let locator = Locator::new(3);
        let mut seen = std::collections::HashSet::new();
        let mut exact = 0;
        for row in 0..3 * 5000 {
            let at = locator.dense(row);
            if at.is_exact() {
                exact += 1;
                assert!(seen.insert((at.set, at.tag)), "row {row}: {at:?} is another row's too");
                assert_eq!(locator.sequence(at.set, at.tag), row);
            }
            assert!(!locator.hashed(mix(row, 3)).is_exact());
        }
        assert_eq!(exact, 3 * 2047);
    }

    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    #[test]
    fn set_and_tag_tell_the_row_for_any_number_of_sets() {
        for sets in COUNTS {
            let locator = Locator::new(sets);
            let most = u64::from(sets) * ROWS_PER_SET_MAX;
            let random = (0..1000).map(|i| mix(i, 11) % most);
            for row in [0, most / 2, most - 1].into_iter().chain(random) {
                let at = locator.dense(row);
                assert!(at.is_exact());
                assert_eq!(locator.sequence(at.set, at.tag), row, "{sets} sets");
            }
            assert!(!locator.dense(most).is_exact());
        }
    }

    /// The fullest set after `rows` rows with ids `first`, `first + stride`, …
    fn fullest(sets: u32, first: u64, stride: u64, rows: u64) -> u32 {
        let locator = Locator::new(sets);
        let mut load = vec![0; sets as usize];
        for row in 0..rows {
            load[locator.dense(first + row * stride).set as usize] += 1;
        }
        load.into_iter().max().unwrap_or(0)
    }

    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    #[test]
    fn consecutive_ids_fill_all_sets_evenly() {
        for sets in [1, 2, 3, 7, 64, 1000, 1023] {
            let rows = u64::from(sets) * 32;
            assert_eq!(fullest(sets, 0, 1, rows), 32, "{sets} sets");
            assert_eq!(fullest(sets, 0, 1, rows + 1), 33, "{sets} sets");
            // A range that begins inside a block ends inside one.
            assert!(fullest(sets, 12_345, 1, rows) <= 34, "{sets} sets");
        }
    }

    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    #[test]
    fn strided_ids_spread_like_random_ones() {
        for stride in [2, 16, 32, 1000, 1024, 4096, 1 << 20, 1000 << 20] {
            for sets in [1000, 1024] {
                // 16 rows per set on average. 16 + 6 deviations; a plain remainder gives all rows
                // to 1 set in `stride`.
                let most = fullest(sets, 5, stride, u64::from(sets) * 16);
                assert!(most <= 40, "stride {stride}, {sets} sets: {most} rows in one set");
            }
        }
        // Blocks that begin at multiples of the golden ratio gave 66 to 204 here.
        let pairs = [(7896, 8), (87_568, 8), (59_665, 10), (16_608, 26), (13_802, 1000), (1508, 8)];
        for (sets, stride) in pairs {
            let most = fullest(sets, 5, stride, u64::from(sets) * 16);
            assert!(most <= 40, "stride {stride}, {sets} sets: {most} rows in one set");
        }
    }
}
