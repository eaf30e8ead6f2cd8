//! The engine's own row cache: sets with their own locks and replacement.

use super::replacement::{Counts, Replacement, word_of};
use embedrock_core::config::PolicyKind;
use embedrock_core::laboratory::{Cache, CacheShape, DenseTable, RowMut};

/// The engine's cache over the dense rows of one table.
pub(crate) struct SetCache {
    cache: Cache,
    prefetching: bool,
}

impl SetCache {
    /// A cache of at least `capacity` rows in sets of `ways`. With `prefetching` it is gone over as
    /// the engine's verbs do, else one key after the other. The message says why it cannot be.
    pub(crate) fn new(
        ids: u32,
        capacity: u64,
        ways: usize,
        policy: PolicyKind,
        prefetching: bool,
    ) -> Result<Self, String> {
        let sets = u32::try_from(capacity.div_ceil(ways.max(1) as u64))
            .map_err(|_| format!("{capacity} rows are more sets than 32 bits can number"))?;
        if !CacheShape::tells_dense_rows(u64::from(sets), u64::from(ids)) {
            return Err(format!("{sets} sets are too few for {ids} ids"));
        }
        let shape = CacheShape { row_bytes: size_of::<f32>(), sets, ways, policy, headers: false };
        let cache = Cache::of_dense_rows(shape, vec![DenseTable { first: 0, table: 0 }])
            .map_err(|error| error.to_string())?;
        Ok(Self { cache, prefetching })
    }

    fn access<const CHECK: bool>(&self, keys: &[u32]) -> Counts {
        let mut counts = Counts::default();
        let cache = &self.cache;
        let visit = |key: u32, at| {
            let (mut evicted, mut evicted_wrong) = (0, 0);
            let use_row = |row: RowMut<'_>, fresh: bool| {
                if fresh {
                    row.words[0] = f32::from_bits(word_of(key));
                } else if CHECK && row.words[0].to_bits() != word_of(key) {
                    return (1, 1);
                }
                (u64::from(!fresh), 0)
            };
            let (hits, wrong) = cache.admit(at, 0, u64::from(key), 0, use_row, |victim| {
                evicted = 1;
                if CHECK {
                    let word = word_of(victim.key as u32);
                    evicted_wrong = u64::from(victim.words[0].to_bits() != word);
                }
            });
            counts += Counts { hits, evicted, wrong: wrong + evicted_wrong };
        };
        let locate = |key: u32| cache.locate_dense(u64::from(key));
        if self.prefetching {
            let mut visit = visit;
            cache.staged(keys.len(), false, |i| locate(keys[i]), |i, at| visit(keys[i], at));
        } else {
            let mut visit = visit;
            keys.iter().for_each(|key| visit(*key, locate(*key)));
        }
        counts
    }
}

impl Replacement for SetCache {
    fn access(&self, keys: &[u32], check: bool) -> Counts {
        if check { self.access::<true>(keys) } else { self.access::<false>(keys) }
    }

    fn for_each_resident(&self, f: &mut dyn FnMut(u32, u32)) {
        let all = 0..self.cache.sets();
        self.cache.for_each_resident(all, 0, |row| f(row.key as u32, row.words[0].to_bits()));
    }

    fn capacity(&self) -> u64 {
        self.cache.row_capacity()
    }

    fn bytes_beside_rows(&self) -> u64 {
        let rows = self.cache.row_capacity() * self.cache.row_bytes() as u64;
        self.cache.memory_bytes() - rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use embedrock_core::hash::mix;

    #[test]
    fn a_cache_with_room_for_all_hits_each_key_after_its_first_use() {
        for (ways, prefetching) in [(8, true), (16, false), (32, true)] {
            let cache = SetCache::new(320, 320, ways, PolicyKind::Lfu, prefetching).unwrap();
            let keys: Vec<u32> = (0..5_000).map(|i| (mix(i, 1) % 320) as u32).collect();
            let counts = Replacement::access(&cache, &keys, true);
            assert_eq!(counts, Counts { hits: 5_000 - 320, evicted: 0, wrong: 0 });
            let mut seen = [0; 320];
            cache.for_each_resident(&mut |key, word| {
                assert_eq!(word, word_of(key));
                seen[key as usize] += 1;
            });
            assert_eq!(seen, [1; 320]);
        }
    }

    #[test]
    fn a_row_with_a_wrong_word_is_found() {
        let cache = SetCache::new(64, 64, 32, PolicyKind::Lru, true).unwrap();
        Replacement::access(&cache, &[3, 4, 5], true);
        let at = cache.cache.locate_dense(4);
        cache.cache.access(at, 0, 4, |row| row.words[0] = 1.5).unwrap();
        let counts = Replacement::access(&cache, &[3, 4, 5], true);
        assert_eq!((counts.hits, counts.wrong), (3, 1));
    }
}
