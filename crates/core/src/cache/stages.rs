//! Going over a batch in stages: each key's lines are asked for well before they are used.

use super::locate::NO_HINT;
use super::{Cache, Location};

/// How many keys ahead the row's lines are asked for, once the set's tags have arrived.
const ROW_AHEAD: usize = 12;
/// How many keys ahead the set's lines are asked for.
const SET_AHEAD: usize = 24;
/// Locations kept between the first stage and the visit; a power of two above `SET_AHEAD`.
const RING: usize = 32;

const _: () = assert!(ROW_AHEAD < SET_AHEAD && SET_AHEAD < RING && RING.is_power_of_two());

impl Cache {
    /// Asks the processor for the metadata of the set at `at`.
    #[inline(always)]
    pub fn prefetch_set(&self, at: Location) {
        self.sets.prefetch_set(at);
    }

    /// Asks the processor for the row at `at`, if its set seems to hold it, and notes there where
    /// it saw it. A hint: it takes no lock, and is worth something only when the set's metadata has
    /// arrived.
    #[inline(always)]
    pub fn prefetch_row(&self, at: &mut Location) {
        self.sets.prefetch_row(at);
    }

    /// Visits the keys 0 to `n` of a batch in order, with their rows on the way into the
    /// processor's caches. This is how every verb goes over its batch.
    ///
    /// `locate(i)` is called once per key, up to 24 keys ahead of `visit(i, location)`.
    ///
    /// ```
    /// use embedrock_core::cache::{Cache, CacheShape, PolicyKind};
    /// use embedrock_core::hash::mix;
    /// # fn main() -> embedrock_core::Result<()> {
    /// let shape = CacheShape { row_bytes: 8, sets: 4, ways: 32, policy: PolicyKind::Lru };
    /// let cache = Cache::new(shape)?;
    /// let keys = [7, 3, 7];
    /// let mut rows = [0.0; 6];
    /// cache.staged(
    ///     keys.len(),
    ///     |i| cache.locate_hashed(mix(keys[i], 0)),
    ///     |i, at| {
    ///         let out = &mut rows[2 * i..][..2];
    ///         let found = cache.access(at, 0, keys[i], 1, |row| out.copy_from_slice(row.words));
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
        mut locate: impl FnMut(usize) -> Location,
        mut visit: impl FnMut(usize, Location),
    ) {
        let mut ring = [Location { set: 0, tag: 1, hint: NO_HINT }; RING];
        for (i, slot) in ring.iter_mut().enumerate().take(SET_AHEAD.min(n)) {
            *slot = locate(i);
            self.prefetch_set(*slot);
        }
        for at in ring.iter_mut().take(ROW_AHEAD.min(n)) {
            self.prefetch_row(at);
        }
        for i in 0..n {
            if i + SET_AHEAD < n {
                let at = locate(i + SET_AHEAD);
                self.prefetch_set(at);
                ring[(i + SET_AHEAD) % RING] = at;
            }
            if i + ROW_AHEAD < n {
                self.prefetch_row(&mut ring[(i + ROW_AHEAD) % RING]);
            }
            visit(i, ring[i % RING]);
        }
    }
}
