//! Replacement policies: who leaves a full set.
//!
//! A policy sees when and how often the rows of one set were used, and chooses. It never moves,
//! writes or counts rows; the set does that. Everything it may keep lies in [`Uses`].

use serde::{Deserialize, Serialize};

/// The most rows that a set can hold.
pub const WAYS_MAX: usize = 32;

/// Which policy a cache follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The least recently used row leaves: [`Lru`].
    #[default]
    Lru,
    /// The least frequently used row leaves, counts fade: [`Lfu`].
    Lfu,
}

/// What a set remembers about the use of its rows, one entry per way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Uses {
    /// How often a row was used, fading.
    pub frequency: [u8; WAYS_MAX],
    /// Uses of the whole set since its frequencies faded last.
    pub since_fading: u16,
    pub(super) spare: [u16; 7],
    /// The stamp of the last use.
    pub last_use: [u32; WAYS_MAX],
}

/// How far stamps of concurrent callers may lie apart. A row touched by a caller whose stamp is
/// ahead of ours by less than this counts as just used, not as 2^32 stamps old. The rest of the
/// circle, 2^32 − 2^26 stamps, is the longest time without use that is still told apart.
const STAMPS_AHEAD: u32 = 1 << 26;

impl Uses {
    /// How long ago a way was used, on the circle of 32-bit stamps; larger is longer ago.
    #[inline(always)]
    pub fn age(&self, way: usize, stamp: u32) -> u32 {
        stamp.wrapping_add(STAMPS_AHEAD).wrapping_sub(self.last_use[way])
    }

    /// Copies what is known about the row in way `from` to way `to`, with the row.
    pub(super) fn copy(&mut self, from: usize, to: usize) {
        self.frequency[to] = self.frequency[from];
        self.last_use[to] = self.last_use[from];
    }
}

/// A replacement policy.
pub trait Policy {
    /// A new row came into `way`.
    fn enter(&self, uses: &mut Uses, way: usize, stamp: u32);

    /// The row in `way` was used.
    fn touch(&self, uses: &mut Uses, way: usize, stamp: u32);

    /// The way whose row is worth least among `candidates` (one bit per way, at least one set).
    fn victim(&self, uses: &Uses, candidates: u32, stamp: u32) -> usize;
}

/// Least recently used: the victim is the row whose last use is longest ago.
#[derive(Clone, Copy, Debug)]
pub struct Lru;

impl Policy for Lru {
    #[inline(always)]
    fn enter(&self, uses: &mut Uses, way: usize, stamp: u32) {
        uses.last_use[way] = stamp;
    }

    #[inline(always)]
    fn touch(&self, uses: &mut Uses, way: usize, stamp: u32) {
        uses.last_use[way] = stamp;
    }

    fn victim(&self, uses: &Uses, candidates: u32, stamp: u32) -> usize {
        least_valuable(candidates, |way| u64::from(uses.age(way, stamp)))
    }
}

/// Least frequently used, with fading counts: the victim is the row with the smallest count, of
/// equal ones the least recently used. A new row starts at one.
///
/// All counts of a set halve when one reaches 255, and whenever the set was used `fading_uses`
/// times. The second rule is what forgets: without it, rows that were popular once keep a set
/// whose new rows, entering at one, only displace each other and never reach 255.
/// *Source*: the reset of TinyLFU (Einziger, Friedman, Manes: "TinyLFU", section 3.3).
#[derive(Clone, Copy, Debug)]
pub struct Lfu {
    /// Uses of a set between two halvings.
    pub fading_uses: u16,
}

impl Default for Lfu {
    fn default() -> Self {
        Self { fading_uses: 10 * WAYS_MAX as u16 }
    }
}

impl Lfu {
    #[inline(always)]
    fn used(&self, uses: &mut Uses, way: usize, frequency: u8, stamp: u32) {
        uses.last_use[way] = stamp;
        uses.frequency[way] = frequency;
        uses.since_fading += 1;
        if frequency == u8::MAX || uses.since_fading >= self.fading_uses {
            fade(uses);
        }
    }
}

#[cold]
fn fade(uses: &mut Uses) {
    uses.since_fading = 0;
    for frequency in &mut uses.frequency {
        *frequency /= 2;
    }
}

impl Policy for Lfu {
    #[inline(always)]
    fn enter(&self, uses: &mut Uses, way: usize, stamp: u32) {
        self.used(uses, way, 1, stamp);
    }

    #[inline(always)]
    fn touch(&self, uses: &mut Uses, way: usize, stamp: u32) {
        self.used(uses, way, uses.frequency[way].saturating_add(1), stamp);
    }

    fn victim(&self, uses: &Uses, candidates: u32, stamp: u32) -> usize {
        least_valuable(candidates, |way| {
            u64::from(u8::MAX - uses.frequency[way]) << 32 | u64::from(uses.age(way, stamp))
        })
    }
}

/// The candidate with the largest `worthlessness`; of equal ones the first.
#[inline(always)]
fn least_valuable(candidates: u32, worthlessness: impl Fn(usize) -> u64) -> usize {
    assert!(candidates != 0, "a victim is chosen among at least one way");
    let mut worst = (0, candidates.trailing_zeros() as usize);
    for way in 0..WAYS_MAX {
        let value = worthlessness(way);
        if candidates >> way & 1 == 1 && value > worst.0 {
            worst = (value, way);
        }
    }
    worst.1
}

impl Policy for PolicyKind {
    #[inline(always)]
    fn enter(&self, uses: &mut Uses, way: usize, stamp: u32) {
        match self {
            Self::Lru => Lru.enter(uses, way, stamp),
            Self::Lfu => Lfu::default().enter(uses, way, stamp),
        }
    }

    #[inline(always)]
    fn touch(&self, uses: &mut Uses, way: usize, stamp: u32) {
        match self {
            Self::Lru => Lru.touch(uses, way, stamp),
            Self::Lfu => Lfu::default().touch(uses, way, stamp),
        }
    }

    fn victim(&self, uses: &Uses, candidates: u32, stamp: u32) -> usize {
        match self {
            Self::Lru => Lru.victim(uses, candidates, stamp),
            Self::Lfu => Lfu::default().victim(uses, candidates, stamp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;

    const EMPTY: Uses = Uses {
        frequency: [0; WAYS_MAX],
        since_fading: 0,
        spare: [0; 7],
        last_use: [0; WAYS_MAX],
    };

    /// A set of `ways` rows named by letters. Plays accesses one by one and returns who left, in
    /// order: a row that is there is touched, another one enters, by eviction when the set is full.
    fn evicted(policy: &impl Policy, ways: usize, first_stamp: u32, accesses: &str) -> String {
        let mut rows = vec![None; ways];
        let mut uses = EMPTY;
        let mut left = String::new();
        for (at, name) in accesses.chars().filter(|c| c.is_alphabetic()).enumerate() {
            let stamp = first_stamp.wrapping_add(at as u32);
            if let Some(way) = rows.iter().position(|r| *r == Some(name)) {
                policy.touch(&mut uses, way, stamp);
                continue;
            }
            let way = rows.iter().position(Option::is_none).unwrap_or_else(|| {
                policy.victim(&uses, u32::MAX >> (WAYS_MAX - ways), stamp)
            });
            left.extend(rows[way].replace(name));
            policy.enter(&mut uses, way, stamp);
        }
        left
    }

    #[test]
    fn lru_evicts_in_order_of_last_use() {
        assert_eq!(evicted(&Lru, 4, 0, "abcd efgh"), "abcd");
        assert_eq!(evicted(&Lru, 4, 0, "abcd a efgh"), "bcda");
        assert_eq!(evicted(&Lru, 4, 0, "abcd dcba efgh"), "dcba");
        assert_eq!(evicted(&Lru, 4, 0, "abcd b e b f b g b h"), "acde");
    }

    #[test]
    fn lru_order_survives_the_wrap_of_the_stamps() {
        for before_the_wrap in 0..12 {
            let first = 0u32.wrapping_sub(before_the_wrap);
            assert_eq!(evicted(&Lru, 4, first, "abcd dcba efgh"), "dcba");
        }
    }

    #[test]
    fn a_row_used_by_a_caller_with_a_later_stamp_counts_as_just_used() {
        let mut uses = EMPTY;
        uses.last_use[..4].copy_from_slice(&[100, 90, 110, 95]);
        assert_eq!(Lru.victim(&uses, 0b1111, 100), 1);
        assert_eq!(Lru.victim(&uses, 0b0101, 100), 0);
    }

    #[test]
    fn lfu_evicts_the_smallest_count_and_of_equal_ones_the_oldest() {
        let lfu = Lfu::default();
        assert_eq!(evicted(&lfu, 4, 0, "abcd efgh"), "abcd");
        assert_eq!(evicted(&lfu, 4, 0, "abcd aab dd c e f"), "be");
        assert_eq!(evicted(&lfu, 4, 0, "aaa bb cccc ddddd e bb e"), "beb");
    }

    #[test]
    fn only_candidates_are_chosen() {
        let mut uses = EMPTY;
        for way in 0..WAYS_MAX {
            uses.last_use[way] = way as u32;
            uses.frequency[way] = way as u8;
        }
        for way in 0..WAYS_MAX {
            assert_eq!(Lru.victim(&uses, u32::MAX << way, 50), way);
            assert_eq!(Lfu::default().victim(&uses, u32::MAX << way, 50), way);
        }
    }

    #[test]
    fn a_saturated_count_halves_all_counts_of_the_set() {
        let lfu = Lfu { fading_uses: u16::MAX };
        let mut uses = EMPTY;
        for _ in 0..100 {
            lfu.touch(&mut uses, 1, 0);
        }
        for _ in 0..254 {
            lfu.touch(&mut uses, 0, 0);
        }
        assert_eq!(uses.frequency[..3], [254, 100, 0]);
        lfu.touch(&mut uses, 0, 0);
        assert_eq!(uses.frequency[..3], [127, 50, 0]);
        assert_eq!(uses.since_fading, 0);
    }

    /// Hit share of the popular rows in one set of 8 ways, where seven rows are used again and
    /// again between rows used once, and then where seven others are.
    fn hits_before_and_after_drift(policy: &impl Policy) -> [f64; 2] {
        let mut rows = [None; 8];
        let mut uses = EMPTY;
        let mut stamp = 0;
        [0u64, 7].map(|popular| {
            let mut hits = 0;
            for _ in 0..4_000 {
                for key in [popular + mix(stamp.into(), 0) % 7, 1_000_000 + u64::from(stamp)] {
                    stamp += 1;
                    if let Some(way) = rows.iter().position(|r| *r == Some(key)) {
                        policy.touch(&mut uses, way, stamp);
                        hits += 1;
                        continue;
                    }
                    let empty = rows.iter().position(Option::is_none);
                    let way = empty.unwrap_or_else(|| policy.victim(&uses, 0xff, stamp));
                    rows[way] = Some(key);
                    policy.enter(&mut uses, way, stamp);
                }
            }
            f64::from(hits) / 4_000.0
        })
    }

    /// Counts that never fade, for comparison.
    struct LfuWithoutFading;

    impl Policy for LfuWithoutFading {
        fn enter(&self, uses: &mut Uses, way: usize, stamp: u32) {
            (uses.last_use[way], uses.frequency[way]) = (stamp, 1);
        }

        fn touch(&self, uses: &mut Uses, way: usize, stamp: u32) {
            uses.last_use[way] = stamp;
            uses.frequency[way] = uses.frequency[way].saturating_add(1);
        }

        fn victim(&self, uses: &Uses, candidates: u32, stamp: u32) -> usize {
            Lfu::default().victim(uses, candidates, stamp)
        }
    }

    #[test]
    fn lfu_forgets_rows_that_are_popular_no_longer() {
        let [before, after] = hits_before_and_after_drift(&Lfu::default());
        assert!(before > 0.95, "hits {before} before the drift");
        assert!(after > 0.6, "hits {after} after the drift");
        let [before, after] = hits_before_and_after_drift(&LfuWithoutFading);
        assert!(before > 0.95, "hits {before} before the drift, counts that never fade");
        assert!(after < 0.1, "hits {after} after the drift, counts that never fade");
        let [_, saturating_only] =
            hits_before_and_after_drift(&Lfu { fading_uses: u16::MAX });
        assert!(saturating_only < 0.1, "hits {saturating_only}: halving on saturation would do");
    }

    #[test]
    fn a_policy_is_named_in_snake_case() {
        assert_eq!(serde_json::to_string(&PolicyKind::Lfu).unwrap(), "\"lfu\"");
        assert_eq!(serde_json::from_str::<PolicyKind>("\"lru\"").unwrap(), PolicyKind::Lru);
    }
}
