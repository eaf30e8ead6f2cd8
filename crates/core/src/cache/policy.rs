//! Replacement policies: the choice of the row that leaves a full set.
//!
//! A policy sees which rows of one set were used between two looks, and chooses. It looks when a
//! row comes or has to go, not at every use: so a hit sets one bit, and what a policy keeps
//! ([`Uses`]) lies on a line that hits do not touch. Uses of a row between two looks count as one,
//! and the order between rows used there is lost; a set of 32 rows is looked at after few uses. A
//! policy never moves, writes or counts rows; the set does that.

use crate::config::PolicyKind;

/// The most rows that a set can hold.
pub(crate) const WAYS_MAX: usize = 32;

/// A set's memory of the use of its rows. All zeros is a set without rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Uses {
    /// Uses that the policy was told of since the counts of the set faded last.
    pub since_fading: u16,
    /// Recency: of the k rows in a set, the one used last has rank 0, the one used longest ago
    /// rank k − 1. Ranks of empty ways mean nothing.
    pub ranks: [u8; WAYS_MAX],
    /// Number of uses of each row, fading: 4 bits a way, the even way low.
    pub counts: [u8; WAYS_MAX / 2],
}

/// The largest count.
const COUNT_MAX: u8 = 15;

impl Uses {
    /// Makes `way`'s row the one used last; those that were used after it before move back.
    #[inline(always)]
    fn bring_to_front(&mut self, way: usize) {
        let own = self.ranks[way];
        for rank in &mut self.ranks {
            *rank = rank.wrapping_add(u8::from(*rank < own));
        }
        self.ranks[way] = 0;
    }

    /// Makes a new row in `way` the one used last.
    fn enter_front(&mut self, way: usize) {
        for rank in &mut self.ranks {
            *rank = rank.saturating_add(1);
        }
        self.ranks[way] = 0;
    }

    /// Closes the gap that the row in `way` leaves in the order.
    pub(super) fn leave(&mut self, way: usize) {
        let own = self.ranks[way];
        for rank in &mut self.ranks {
            *rank = rank.wrapping_sub(u8::from(*rank > own));
        }
    }

    /// The row in way `from` moved to the empty way `to`.
    pub(super) fn moved(&mut self, from: usize, to: usize) {
        self.ranks[to] = self.ranks[from];
        self.set_count(to, self.count(from));
    }

    fn count(&self, way: usize) -> u8 {
        self.counts[way / 2] >> (way % 2 * 4) & COUNT_MAX
    }

    fn set_count(&mut self, way: usize, count: u8) {
        let shift = way % 2 * 4;
        let both = &mut self.counts[way / 2];
        *both = *both & !(COUNT_MAX << shift) | count << shift;
    }
}

/// A replacement policy.
pub(crate) trait Policy {
    /// A new row came into the empty `way`.
    fn enter(&self, uses: &mut Uses, way: usize);

    /// The row in `way` was used since the last look.
    fn touch(&self, uses: &mut Uses, way: usize);

    /// The way whose row is worth least among `candidates`: one bit per way, at least one, each
    /// with a row. The `recent` rows used last stay while there are others.
    fn victim(&self, uses: &Uses, candidates: u32, recent: u8) -> usize;
}

/// Least recently used: the victim is the row whose last use is longest ago.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lru;

impl Policy for Lru {
    #[inline(always)]
    fn enter(&self, uses: &mut Uses, way: usize) {
        uses.enter_front(way);
    }

    #[inline(always)]
    fn touch(&self, uses: &mut Uses, way: usize) {
        uses.bring_to_front(way);
    }

    fn victim(&self, uses: &Uses, candidates: u32, _recent: u8) -> usize {
        least_valuable(candidates, |way| uses.ranks[way].into())
    }
}

/// Least frequently used, with fading counts: the victim is the row with the smallest count, of
/// equal ones the least recently used. A new row starts at one.
///
/// Counts stop at 15, and all counts of a set halve each time it was used `fading_uses` times.
/// Halving is what forgets: without it, rows that were popular once keep a set whose new rows,
/// entering at one, only displace each other. Rows that came a moment ago stay as long as the
/// caller says, because what a batch reads it changes next. `docs/decisions/0006` has its misses on
/// ten real traces, for slower and faster fading, beside LRU's.
/// *Source*: the reset of TinyLFU (Einziger, Friedman, Manes: "TinyLFU", section 3.3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lfu {
    /// Uses of a set between two halvings.
    pub fading_uses: u16,
}

impl Default for Lfu {
    fn default() -> Self {
        Self { fading_uses: 15 * WAYS_MAX as u16 }
    }
}

impl Lfu {
    #[inline(always)]
    fn used(&self, uses: &mut Uses, way: usize, count: u8) {
        uses.set_count(way, count);
        uses.since_fading = uses.since_fading.saturating_add(1);
        if uses.since_fading >= self.fading_uses {
            fade(uses);
        }
    }
}

#[cold]
fn fade(uses: &mut Uses) {
    uses.since_fading = 0;
    for both in &mut uses.counts {
        *both = *both >> 1 & 0b0111_0111;
    }
}

impl Policy for Lfu {
    #[inline(always)]
    fn enter(&self, uses: &mut Uses, way: usize) {
        uses.enter_front(way);
        self.used(uses, way, 1);
    }

    #[inline(always)]
    fn touch(&self, uses: &mut Uses, way: usize) {
        uses.bring_to_front(way);
        self.used(uses, way, (uses.count(way) + 1).min(COUNT_MAX));
    }

    fn victim(&self, uses: &Uses, candidates: u32, recent: u8) -> usize {
        least_valuable(candidates, |way| {
            u16::from(uses.ranks[way] >= recent) << 15
                | u16::from(COUNT_MAX - uses.count(way)) << 8
                | u16::from(uses.ranks[way])
        })
    }
}

/// The candidate with the largest `worthlessness`; of equal ones the first.
#[inline(always)]
fn least_valuable(candidates: u32, worthlessness: impl Fn(usize) -> u16) -> usize {
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
    fn enter(&self, uses: &mut Uses, way: usize) {
        match self {
            Self::Lru => Lru.enter(uses, way),
            Self::Lfu => Lfu::default().enter(uses, way),
        }
    }

    #[inline(always)]
    fn touch(&self, uses: &mut Uses, way: usize) {
        match self {
            Self::Lru => Lru.touch(uses, way),
            Self::Lfu => Lfu::default().touch(uses, way),
        }
    }

    fn victim(&self, uses: &Uses, candidates: u32, recent: u8) -> usize {
        match self {
            Self::Lru => Lru.victim(uses, candidates, recent),
            Self::Lfu => Lfu::default().victim(uses, candidates, recent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;

    /// A set of `ways` rows named by letters. Plays accesses one by one and returns the rows that
    /// left, in order: a row that is there is touched, another one enters, by eviction when the set
    /// is full.
    fn evicted(policy: &impl Policy, ways: usize, accesses: &str) -> String {
        let mut rows = vec![None; ways];
        let mut uses = Uses::default();
        let mut left = String::new();
        for name in accesses.chars().filter(|c| c.is_alphabetic()) {
            left.extend(play(policy, &mut rows, &mut uses, name).1);
        }
        left
    }

    /// One access: whether it hit, and the row that left.
    fn play<K: Copy + PartialEq>(
        policy: &impl Policy,
        rows: &mut [Option<K>],
        uses: &mut Uses,
        key: K,
    ) -> (bool, Option<K>) {
        if let Some(way) = rows.iter().position(|row| *row == Some(key)) {
            policy.touch(uses, way);
            return (true, None);
        }
        let way = rows.iter().position(Option::is_none).unwrap_or_else(|| {
            let way = policy.victim(uses, u32::MAX >> (WAYS_MAX - rows.len()), 0);
            uses.leave(way);
            way
        });
        policy.enter(uses, way);
        (false, rows[way].replace(key))
    }

    #[test]
    fn lru_evicts_in_order_of_last_use() {
        assert_eq!(evicted(&Lru, 4, "abcd efgh"), "abcd");
        assert_eq!(evicted(&Lru, 4, "abcd a efgh"), "bcda");
        assert_eq!(evicted(&Lru, 4, "abcd dcba efgh"), "dcba");
        assert_eq!(evicted(&Lru, 4, "abcd b e b f b g b h"), "acde");
    }

    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    #[test]
    fn ranks_follow_a_list_ordered_by_last_use() {
        let mut uses = Uses::default();
        let mut order: Vec<usize> = Vec::new();
        for step in 0..20_000u64 {
            let way = (mix(step, 1) % 32) as usize;
            match order.iter().position(|&w| w == way) {
                Some(at) if mix(step, 2).is_multiple_of(4) => {
                    order.remove(at);
                    uses.leave(way);
                    // Sometimes another row moves into the hole.
                    if let Some(from) = order.iter_mut().find(|_| mix(step, 3).is_multiple_of(2)) {
                        uses.moved(*from, way);
                        *from = way;
                    }
                }
                Some(at) => {
                    order[..=at].rotate_right(1);
                    Lru.touch(&mut uses, way);
                }
                None => {
                    order.insert(0, way);
                    Lru.enter(&mut uses, way);
                }
            }
            for (rank, &way) in order.iter().enumerate() {
                assert_eq!(usize::from(uses.ranks[way]), rank, "step {step}: {order:?}");
            }
            if let Some(&last) = order.last() {
                let rows = order.iter().fold(0, |rows, way| rows | 1 << way);
                assert_eq!(Lru.victim(&uses, rows, 0), last, "step {step}");
            }
        }
    }

    #[test]
    fn lfu_evicts_the_smallest_count_and_of_equal_ones_the_oldest() {
        let lfu = Lfu::default();
        assert_eq!(evicted(&lfu, 4, "abcd efgh"), "abcd");
        assert_eq!(evicted(&lfu, 4, "abcd aab dd c e f"), "be");
        assert_eq!(evicted(&lfu, 4, "aaa bb cccc ddddd e bb e"), "beb");
    }

    #[test]
    fn only_candidates_are_chosen() {
        let mut uses = Uses::default();
        for way in (0..WAYS_MAX).rev() {
            Lfu::default().enter(&mut uses, way);
        }
        for way in 0..WAYS_MAX {
            assert_eq!(Lru.victim(&uses, u32::MAX >> way, 0), WAYS_MAX - 1 - way);
            assert_eq!(Lfu::default().victim(&uses, u32::MAX >> way, 0), WAYS_MAX - 1 - way);
        }
    }

    #[test]
    fn counts_stop_at_15_and_halve_after_so_many_uses_of_the_set() {
        let lfu = Lfu { fading_uses: 40 };
        let mut uses = Uses::default();
        lfu.enter(&mut uses, 0);
        lfu.enter(&mut uses, 1);
        for way in [0; 9].into_iter().chain([1; 28]) {
            lfu.touch(&mut uses, way);
        }
        assert_eq!([0, 1, 2].map(|way| uses.count(way)), [10, 15, 0]);
        lfu.enter(&mut uses, 2);
        assert_eq!([0, 1, 2].map(|way| uses.count(way)), [5, 7, 0]);
        assert_eq!(uses.since_fading, 0);
    }

    /// Hit share of the popular rows in one set of 8 ways, where seven rows are used again and
    /// again between rows used once, and then where seven others are.
    fn hits_before_and_after_drift(policy: &impl Policy) -> [f64; 2] {
        let mut rows = [None; 8];
        let mut uses = Uses::default();
        [0u64, 7].map(|popular| {
            let mut hits = 0;
            for step in 0..4_000 {
                let key = popular + mix(step, popular) % 7;
                hits += u32::from(play(policy, &mut rows, &mut uses, key).0);
                play(policy, &mut rows, &mut uses, (popular + 1) << 32 | step);
            }
            f64::from(hits) / 4_000.0
        })
    }

    #[cfg_attr(miri, ignore = "long, and no unsafe code")]
    #[test]
    fn lfu_forgets_rows_that_are_popular_no_longer() {
        let [before, after] = hits_before_and_after_drift(&Lfu::default());
        assert!(before > 0.95, "hits {before} before the drift");
        assert!(after > 0.7, "hits {after} after the drift");
        let [before, after] = hits_before_and_after_drift(&Lfu { fading_uses: u16::MAX });
        assert!(before > 0.95, "hits {before} before the drift, counts that never fade");
        assert!(after < 0.1, "hits {after} after the drift, counts that never fade");
    }

    #[test]
    fn a_policy_is_named_in_snake_case() {
        assert_eq!(serde_json::to_string(&PolicyKind::Lfu).unwrap(), "\"lfu\"");
        assert_eq!(serde_json::from_str::<PolicyKind>("\"lru\"").unwrap(), PolicyKind::Lru);
    }

    #[test]
    fn rows_used_a_moment_ago_stay_while_there_are_others() {
        let (lfu, mut uses) = (Lfu::default(), Uses::default());
        for way in 0..4 {
            lfu.enter(&mut uses, way);
            lfu.touch(&mut uses, way);
        }
        // Ways 4 and 5 came last and were used least.
        lfu.enter(&mut uses, 4);
        lfu.enter(&mut uses, 5);
        assert_eq!(lfu.victim(&uses, 0b11_1111, 0), 4);
        assert_eq!(lfu.victim(&uses, 0b11_1111, 1), 4);
        assert_eq!(lfu.victim(&uses, 0b11_1111, 2), 0);
        assert_eq!(lfu.victim(&uses, 0b11_0000, 2), 4);
        assert_eq!(lfu.victim(&uses, 0b11_1111, 32), 4);
    }
}
