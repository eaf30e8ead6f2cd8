//! Copying resident rows to an output: the one verb that takes no locks.
//!
//! A block of keys goes through three stages of tight loops, one block apart: find the sets and ask
//! for their lines; find the rows, note their sets' versions and ask for the rows; copy them. A
//! copy counts only if its set's version is still the noted one: then nobody held the set's lock in
//! between, and the row was where it was seen and was not being written. Whatever else happened,
//! the key takes the way through the lock.
//!
//! *Source*: staged prefetching, PetPS; sequence locks, the Linux kernel's `seqlock`.
#![expect(unsafe_code, reason = "rows are copied that are not borrowed")]

use super::lines::{Level, Lines};
use super::sets::{BLOCK, Header, Set, Sets};
use super::{Cache, Location, racing};
use crate::prefetch::{prefetch_for_writing, prefetch_line};
use std::ptr::null;
use std::sync::atomic::{Ordering, fence};

/// What a look without lock showed of a key.
#[derive(Clone, Copy)]
struct Seen<'a> {
    /// `None` when nothing can be said: somebody held the lock.
    set: Option<&'a Set>,
    version: u32,
    way: u32,
    /// Null when the row is not resident.
    row: *const f32,
    /// Of the row, where its tag does not tell which row it is; otherwise null.
    header: *const Header,
}

impl Seen<'_> {
    const NOTHING: Self = Self { set: None, version: 0, way: 0, row: null(), header: null() };
}

impl Cache {
    /// Copies the first `words` words of the row of each key to its place in `output`, and counts
    /// the rows as used. Calls `missed` with the position of each key whose row is not resident, in
    /// order; its place in `output` may then hold anything.
    ///
    /// Shapes: `output` has `keys.len() * words` elements. `locate` says where a key's row lies, as
    /// [`locate_dense`](Self::locate_dense) or [`locate_hashed`](Self::locate_hashed) do.
    ///
    /// ```
    /// use embedrock_core::cache::{Cache, CacheShape, PolicyKind};
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
        mut missed: impl FnMut(usize),
    ) {
        let most = self.row_bytes() / 4;
        assert!((1..=most).contains(&words), "{words} words of rows of {most}");
        assert_eq!(
            Some(output.len()),
            keys.len().checked_mul(words),
            "{} rows of {words} words",
            keys.len()
        );
        let block = |number: usize| {
            let begin = keys.len().min(number * BLOCK);
            &keys[begin..keys.len().min(begin + BLOCK)]
        };
        let mut located = [[Location::NOWHERE; BLOCK]; 2];
        let mut seen = [[Seen::NOTHING; BLOCK]; 2];
        let sets = &self.sets;
        let lines = Lines::of(words * 4, self.row_bytes());
        ask_for_sets(sets, block(0), &mut located[0], &locate);
        ask_for_sets(sets, block(1), &mut located[1], &locate);
        ask_for_rows(sets, lines, &located[0][..block(0).len()], &mut seen[0]);
        for (number, output) in output.chunks_mut(BLOCK * words).enumerate() {
            let (this, next) = (number % 2, (number + 1) % 2);
            ask_for_sets(sets, block(number + 2), &mut located[this], &locate);
            ask_for_rows(sets, lines, &located[next][..block(number + 1).len()], &mut seen[next]);
            prefetch_for_writing(output);
            let keys = block(number);
            for ((i, to), seen) in output.chunks_exact_mut(words).enumerate().zip(&seen[this]) {
                let found = match copy(seen, table, keys[i], to) {
                    Some(found) => found,
                    None => self.copy_locked(locate(keys[i]), table, keys[i], to),
                };
                if !found {
                    missed(number * BLOCK + i);
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

#[inline(always)]
fn ask_for_sets(
    sets: &Sets,
    keys: &[u64],
    located: &mut [Location; BLOCK],
    locate: &impl Fn(u64) -> Location,
) {
    for (key, at) in keys.iter().zip(located.iter_mut()) {
        *at = locate(*key);
    }
    sets.prefetch_sets(&located[..keys.len().min(BLOCK)]);
}

#[inline(always)]
fn ask_for_rows<'a>(
    sets: &'a Sets,
    lines: Lines,
    located: &[Location],
    seen: &mut [Seen<'a>; BLOCK],
) {
    if cfg!(miri) {
        // Copies beside a writer are what the model of memory does not know.
        return;
    }
    match sets.level() {
        Level::First => ask_for_rows_into::<true>(sets, lines, located, seen),
        Level::Second => ask_for_rows_into::<false>(sets, lines, located, seen),
    }
}

#[inline(always)]
fn ask_for_rows_into<'a, const FIRST: bool>(
    sets: &'a Sets,
    lines: Lines,
    located: &[Location],
    seen: &mut [Seen<'a>; BLOCK],
) {
    for (at, seen) in located.iter().zip(seen.iter_mut()) {
        let set = sets.set(at.set);
        // Pairs with the release of the lock: what its last holder wrote is seen.
        let version = set.version();
        let unlocked = (version & 1 == 0).then_some(set);
        *seen = Seen { set: unlocked, version, ..Seen::NOTHING };
        let way = set.tags.matches(at.tag).trailing_zeros();
        if way as usize >= sets.ways() {
            continue;
        }
        let row = sets.row(at.set, way as usize).cast_const();
        (seen.way, seen.row) = (way, row);
        if !at.is_exact()
            && let Some(header) = sets.header(at.set, way as usize)
        {
            seen.header = header;
        }
    }
    // First lines in a loop that does nothing else: several translations are under way at once.
    let resident = || seen[..located.len()].iter().filter(|seen| !seen.row.is_null());
    for seen in resident() {
        prefetch_line::<FIRST, _>(seen.row);
    }
    for seen in resident() {
        lines.prefetch_rest::<FIRST>(seen.row);
        if !seen.header.is_null() {
            prefetch_line::<FIRST, _>(seen.header);
        }
    }
}

/// Copies a row that was seen. True when it was copied, false when it is not resident, `None` when
/// only the holder of the lock can say.
#[inline(always)]
fn copy(seen: &Seen<'_>, table: u16, key: u64, to: &mut [f32]) -> Option<bool> {
    let set = seen.set?;
    if !seen.header.is_null() {
        // SAFETY: the header is in the arena, because set and way are of this cache.
        let header = unsafe { racing::load_header(seen.header) };
        if header.key != key || header.table != table {
            return None;
        }
    }
    if !seen.row.is_null() {
        // SAFETY: the row is in the arena, because set and way are of this cache, and no shorter
        // than was asserted. It may be written meanwhile, or taken away from the cache, which
        // leaves the memory mapped.
        unsafe { racing::copy_words(seen.row, to) };
    }
    // The loads above are done before the version is looked at again: pairs with the release fence
    // in `Sets::lock`.
    fence(Ordering::Acquire);
    if set.version() != seen.version {
        return None;
    }
    if !seen.row.is_null() {
        set.mark_used(seen.way as usize);
    }
    Some(!seen.row.is_null())
}
