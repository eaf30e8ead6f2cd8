//! The engine's policies by their rules alone, for sets of any size: hits, no rows.
//!
//! The engine's sets have at most 32 rows, whose tags fill one cache line. This model gives the
//! hits of larger sets. The tests compare it with the engine's cache, hit for hit, for the sizes
//! that both have.

use embedrock_core::config::PolicyKind;
use embedrock_core::hash::mix;

/// The largest count of uses, as in the engine.
const COUNT_MAX: u8 = 15;

/// Many sets under one policy.
pub(crate) struct Model {
    sets: Vec<Set>,
    ways: usize,
    policy: PolicyKind,
    fading_uses: u32,
}

#[derive(Clone, Default)]
struct Set {
    /// Rows in order of last use, the last first.
    rows: Vec<Row>,
    uses: u32,
}

#[derive(Clone, Copy)]
struct Row {
    key: u32,
    count: u8,
    /// Used since the policy looked last.
    used: bool,
}

impl Model {
    /// Sets of `ways` rows, at least `capacity` rows in all, whose counts halve after so many uses.
    pub(crate) fn new(capacity: u64, ways: usize, policy: PolicyKind, fading_uses: u32) -> Self {
        let sets = vec![Set::default(); capacity.div_ceil(ways as u64) as usize];
        Self { sets, ways, policy, fading_uses }
    }

    /// Uses each key's row; how many were there.
    pub(crate) fn hits(&mut self, keys: &[u32]) -> u64 {
        let mut hits = 0;
        for key in keys {
            let set = ((mix(u64::from(*key), 3) >> 32) * self.sets.len() as u64) >> 32;
            let set = &mut self.sets[set as usize];
            if let Some(row) = set.rows.iter_mut().find(|row| row.key == *key) {
                row.used = true;
                hits += 1;
                continue;
            }
            set.look(self.fading_uses);
            if set.rows.len() == self.ways {
                let victim = set.victim(self.policy);
                set.rows.remove(victim);
            }
            set.rows.insert(0, Row { key: *key, count: 1, used: false });
            set.count_use(self.fading_uses);
        }
        hits
    }

    /// Rows that fit.
    pub(crate) fn capacity(&self) -> u64 {
        (self.sets.len() * self.ways) as u64
    }
}

impl Set {
    /// Takes note of the uses since the last look: one each, in the order of the uses before.
    fn look(&mut self, fading_uses: u32) {
        let (mut front, back): (Vec<Row>, Vec<Row>) = self.rows.iter().partition(|row| row.used);
        front.iter_mut().for_each(|row| row.used = false);
        let used = front.len();
        self.rows = front;
        self.rows.extend(back);
        for at in (0..used).rev() {
            self.rows[at].count = (self.rows[at].count + 1).min(COUNT_MAX);
            self.count_use(fading_uses);
        }
    }

    fn count_use(&mut self, fading_uses: u32) {
        self.uses += 1;
        if self.uses >= fading_uses {
            self.uses = 0;
            self.rows.iter_mut().for_each(|row| row.count /= 2);
        }
    }

    fn victim(&self, policy: PolicyKind) -> usize {
        let last = self.rows.len() - 1;
        match policy {
            PolicyKind::Lru => last,
            PolicyKind::Lfu => {
                let least = self.rows.iter().map(|row| row.count).min();
                self.rows.iter().rposition(|row| Some(row.count) == least).unwrap_or(last)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replacement::Replacement;
    use crate::sets::SetCache;

    #[test]
    fn one_set_of_the_engine_hits_exactly_what_the_model_does() {
        for policy in [PolicyKind::Lru, PolicyKind::Lfu] {
            for ways in [8, 16, 32] {
                // Popularity moves on slowly, so that fading matters.
                let draw = |i: u64| ((mix(i, 2) % (1 + mix(i, 4) % 150)) + i / 500) as u32 % 2000;
                let keys: Vec<u32> = (0..50_000).map(draw).collect();
                let cache = SetCache::new(2000, ways as u64, ways, policy, true).unwrap();
                let mut model = Model::new(ways as u64, ways, policy, 480);
                for keys in keys.chunks(1_000) {
                    let engine = cache.access(keys, true);
                    assert_eq!(engine.wrong, 0);
                    assert_eq!(engine.hits, model.hits(keys), "{policy:?}, {ways} ways");
                }
            }
        }
    }
}
