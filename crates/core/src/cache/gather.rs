//! Copying resident rows to an output: the one verb that takes no locks.
//!
//! A block of keys goes through three stages of tight loops, one block apart: find the sets and ask
//! for their lines; find the rows, note their sets' versions and ask for the rows; copy them and
//! look at the versions again. A copy counts only if its set's version is still the noted one: then
//! nobody held the set's lock in between, and the row was where it was seen and was not being
//! written. Otherwise the key is read under the lock.
//!
//! *Source*: staged prefetching, PetPS; sequence locks, the Linux kernel's `seqlock`.
#![expect(unsafe_code, reason = "rows are copied that are not borrowed")]

use super::lines::{Level, Lines};
use super::sets::{BLOCK, Sets};
use super::{Cache, Location, racing};
use crate::prefetch::{prefetch_for_writing, prefetch_line};
use std::ptr::null;
use std::sync::atomic::{Ordering, fence};

/// The result of looking up the keys of a block without a lock.
struct Seen {
    located: [Location; BLOCK],
    /// The versions of the keys' sets; of a set that was held, the one before, which is gone.
    versions: [u32; BLOCK],
    /// The rows; for a key without one, some row.
    rows: [*const f32; BLOCK],
    /// Bit per key: its row is not resident.
    absent: u32,
    ways: [u8; BLOCK],
    /// Whether some tag does not tell which row it is.
    inexact: bool,
}

impl Seen {
    const NOTHING: Self = Self {
        located: [Location::NOWHERE; BLOCK],
        versions: [0; BLOCK],
        rows: [null(); BLOCK],
        ways: [0; BLOCK],
        absent: 0,
        inexact: false,
    };
}

/// The bit of a version that says that somebody holds the set.
const HELD: u32 = 1;

impl Cache {
    /// Copies the first `words` words of the row of each key to its place in `output`, and counts
    /// the rows as used. Calls `missed` with the position of each key whose row is not resident, in
    /// order; its place in `output` may then hold anything.
    ///
    /// Shapes: `output` has `keys.len() * words` elements. `locate` says where a key's row lies, as
    /// [`locate_dense`](Self::locate_dense) or [`locate_hashed`](Self::locate_hashed) do.
    ///
    /// ```
    /// use embedrock_core::config::PolicyKind;
    /// use embedrock_core::laboratory::{Cache, CacheShape};
    /// # fn main() -> embedrock_core::Result<()> {
    /// let (ways, policy) = (32, PolicyKind::Lru);
    /// let shape = CacheShape { row_bytes: 8, sets: 4, ways, policy, headers: true };
    /// let cache = Cache::new(shape)?;
    /// let locate = |key| cache.locate_dense(key);
    /// cache.admit(locate(3), 0, 3, 0, |row, _| row.words.fill(0.5), |_| ());
    /// let (mut rows, mut missed) = ([0.0; 6], Vec::new());
    /// cache.gather(0, &[3, 7, 3], 2, &mut rows, locate, |position| missed.push(position));
    /// assert_eq!((missed, rows[0], rows[5]), (vec![1], 0.5, 0.5));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn gather(
        &self,
        table: u16,
        keys: &[u64],
        words: usize,
        output: &mut [f32],
        locate: impl Fn(u64) -> Location,
        missed: impl FnMut(usize),
    ) {
        let most = self.row_bytes() / 4;
        assert!((1..=most).contains(&words), "{words} words of rows of {most}");
        assert_eq!(
            Some(output.len()),
            keys.len().checked_mul(words),
            "{} rows of {words} words",
            keys.len()
        );
        match self.sets.level() {
            Level::First => self.gather_into::<true>(table, keys, words, output, locate, missed),
            Level::Second => self.gather_into::<false>(table, keys, words, output, locate, missed),
        }
    }

    #[inline(always)]
    fn gather_into<const FIRST: bool>(
        &self,
        table: u16,
        keys: &[u64],
        words: usize,
        output: &mut [f32],
        locate: impl Fn(u64) -> Location,
        mut missed: impl FnMut(usize),
    ) {
        let sets = &self.sets;
        let lines = Lines::of(words * 4, self.sets.stride_bytes());
        let at_once = lines.rows_at_once();
        let block = |number: usize| {
            let begin = keys.len().min(number * at_once);
            &keys[begin..keys.len().min(begin + at_once)]
        };
        let mut seen = [Seen::NOTHING; 3];
        seen[0].ask_for_sets::<FIRST>(sets, block(0), &locate);
        seen[1].ask_for_sets::<FIRST>(sets, block(1), &locate);
        seen[0].ask_for_rows::<FIRST>(sets, lines, block(0).len());
        for (number, output) in output.chunks_mut(at_once * words).enumerate() {
            let [this, next, after] = [0, 1, 2].map(|ahead| (number + ahead) % 3);
            seen[after].ask_for_sets::<FIRST>(sets, block(number + 2), &locate);
            seen[next].ask_for_rows::<FIRST>(sets, lines, block(number + 1).len());
            prefetch_for_writing(output);
            let (seen, keys) = (&seen[this], block(number));
            let doubtful = seen.copy(sets, table, keys, words, output);
            let mut left = seen.absent | doubtful;
            while left != 0 {
                let i = left.trailing_zeros() as usize;
                left &= left - 1;
                let to = &mut output[i * words..][..words];
                if doubtful >> i & 1 == 0 || !self.copy_locked(seen.located[i], table, keys[i], to)
                {
                    missed(number * at_once + i);
                }
            }
        }
    }

    #[cold]
    fn copy_locked(&self, at: Location, table: u16, key: u64, to: &mut [f32]) -> bool {
        let words = to.len();
        self.access(at, table, key, |row| to.copy_from_slice(&row.words[..words])).is_some()
    }
}

impl Seen {
    #[inline(always)]
    fn ask_for_sets<const FIRST: bool>(
        &mut self,
        sets: &Sets,
        keys: &[u64],
        locate: &impl Fn(u64) -> Location,
    ) {
        for (key, at) in keys.iter().zip(&mut self.located) {
            *at = locate(*key);
            prefetch_line::<FIRST, _>(sets.set(at.set));
        }
    }

    /// Finds the rows of the first `keys` keys and asks for them. Those that their tags tell count
    /// as used from here on, also if the copy is thrown away: the way through the lock uses them
    /// then.
    #[inline(always)]
    fn ask_for_rows<const FIRST: bool>(&mut self, sets: &Sets, lines: Lines, keys: usize) {
        if cfg!(miri) {
            // Copies beside a writer are what the model of memory does not know.
            return;
        }
        let keys = keys.min(BLOCK);
        let (mut absent, mut inexact) = (0, false);
        for i in 0..keys {
            let at = self.located[i];
            let set = sets.set(at.set);
            // Pairs with the release of the lock: what its last holder wrote is seen.
            self.versions[i] = set.version() & !HELD;
            inexact |= !at.is_exact();
            let way = set.tags.matches(at.tag).trailing_zeros() as usize;
            if way >= sets.ways() {
                self.rows[i] = sets.row(0, 0);
                absent |= 1 << i;
                continue;
            }
            (self.rows[i], self.ways[i]) = (sets.row(at.set, way), way as u8);
            if at.is_exact() {
                set.mark_used(way);
            }
        }
        (self.absent, self.inexact) = (absent, inexact);
        let rows = &self.rows[..keys];
        lines.prefetch::<FIRST>(rows);
        if inexact {
            for i in (0..keys).filter(|&i| self.has_header(i)) {
                if let Some(header) = sets.header(self.located[i].set, self.ways[i].into()) {
                    prefetch_line::<FIRST, _>(header);
                }
            }
        }
    }

    /// Whether only its header tells whose this row is.
    #[inline(always)]
    fn has_header(&self, i: usize) -> bool {
        !self.located[i].is_exact() && self.absent >> i & 1 == 0
    }

    /// Copies the rows that were seen. A bit per key of which only the holder of its set's lock can
    /// say whether it is resident, and whose place in `output` may hold anything.
    #[inline(always)]
    fn copy(&self, sets: &Sets, table: u16, keys: &[u64], words: usize, output: &mut [f32]) -> u32 {
        if cfg!(miri) {
            return u32::MAX >> (u32::BITS as usize - keys.len());
        }
        let mut doubtful = 0;
        for (i, (row, to)) in self.rows.iter().zip(output.chunks_exact_mut(words)).enumerate() {
            if self.absent >> i & 1 == 1 {
                continue;
            }
            // SAFETY: the row is in the arena, because set and way are of this cache, and no
            // shorter than was asserted. It may be written meanwhile, or taken away from the
            // cache, which leaves the memory mapped.
            unsafe { racing::copy_words(*row, to) };
        }
        if self.inexact {
            for i in (0..keys.len()).filter(|&i| self.has_header(i)) {
                let (set, way) = (self.located[i].set, self.ways[i].into());
                // SAFETY: the header is in the arena, because set and way are of this cache.
                let header = sets.header(set, way).map(|at| unsafe { racing::load_header(at) });
                if header.is_none_or(|header| header.key == keys[i] && header.table == table) {
                    sets.set(set).mark_used(way);
                } else {
                    doubtful |= 1 << i;
                }
            }
        }
        // The loads above are done before the versions are looked at again: pairs with the release
        // fence in `Sets::lock`.
        fence(Ordering::Acquire);
        for (i, (at, version)) in
            self.located.iter().zip(&self.versions).enumerate().take(keys.len())
        {
            doubtful |= u32::from(sets.set(at.set).version() != *version) << i;
        }
        doubtful
    }
}
