//! Going over a batch in stages: each key's lines are asked for well before they are used.
//!
//! A batch goes by in blocks, and each stage is a tight loop over a block. That matters: a prefetch
//! retires only when its address is translated, and a row of a large cache is always a miss of the
//! translation buffer. In a loop that does everything for one key at a time, the work of a key
//! fills the reorder buffer and translations wait for each other: half of the time of a gather over
//! 10 M rows went there. In a loop that only prefetches, several are under way at once.

use super::sets::BLOCK;
use super::{Cache, Location};

impl Cache {
    /// Visits the keys 0 to `n` of a batch in order, with their rows on the way into the
    /// processor's caches. This is how verbs go over their batches that do more than copy values.
    ///
    /// `locate(i)` is called once per key in order, less than 3 blocks ([`BLOCK`] keys at most)
    /// ahead of `visit(i, location)`. `changes` says that the visits will make rows dirty.
    ///
    /// ```
    /// use embedrock_core::config::PolicyKind;
    /// use embedrock_core::laboratory::{Cache, CacheShape};
    /// use embedrock_core::hash::mix;
    /// # fn main() -> embedrock_core::Result<()> {
    /// let (ways, policy) = (32, PolicyKind::Lru);
    /// let shape = CacheShape { row_bytes: 8, sets: 4, ways, policy, headers: true };
    /// let cache = Cache::new(shape)?;
    /// let keys = [7, 3, 7];
    /// cache.staged(
    ///     keys.len(),
    ///     false,
    ///     |i| cache.locate_hashed(mix(keys[i], 0)),
    ///     |i, at| {
    ///         let found = cache.access(at, 0, keys[i], |row| row.words[0]);
    ///         assert!(found.is_none(), "the cache is empty");
    ///     },
    /// );
    /// # Ok(())
    /// # }
    /// ```
    #[inline(always)]
    pub fn staged(
        &self,
        n: usize,
        changes: bool,
        mut locate: impl FnMut(usize) -> Location,
        mut visit: impl FnMut(usize, Location),
    ) {
        let at_once = self.sets.rows_at_once();
        let mut blocks = [[Location::NOWHERE; BLOCK]; 3];
        let mut prepare = |first: usize, block: &mut [Location; BLOCK]| {
            let keys = n.saturating_sub(first).min(at_once);
            for (i, at) in block.iter_mut().enumerate().take(keys) {
                *at = locate(first + i);
            }
            self.sets.prefetch_sets(&block[..keys]);
            keys
        };
        let mut sizes = [0; 3];
        sizes[0] = prepare(0, &mut blocks[0]);
        sizes[1] = prepare(at_once, &mut blocks[1]);
        self.sets.find_rows(&mut blocks[0][..sizes[0]], changes);
        for (round, first) in (0..n).step_by(at_once).enumerate() {
            let [this, next, after] = [0, 1, 2].map(|ahead| (round + ahead) % 3);
            sizes[after] = prepare(first + 2 * at_once, &mut blocks[after]);
            self.sets.find_rows(&mut blocks[next][..sizes[next]], changes);
            for (i, &at) in blocks[this].iter().enumerate().take(sizes[this]) {
                visit(first + i, at);
            }
        }
    }
}
