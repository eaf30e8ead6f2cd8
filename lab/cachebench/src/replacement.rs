//! The measured interface: a place for rows by key with a replacement policy.

use embedrock_core::hash::mix;

/// Results of a batch of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Keys whose rows were there.
    pub(crate) hits: u64,
    /// Rows that had to go.
    pub(crate) evicted: u64,
    /// Rows that held something else than their key's word.
    pub(crate) wrong: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.evicted += other.evicted;
        self.wrong += other.wrong;
    }
}

/// A cache of rows of one word. Several threads may use it at once.
pub(crate) trait Replacement: Sync {
    /// Uses the row of each key, in order. A row that is not there is admitted, with the word of
    /// its key, and somebody else's may have to go. With `check` the rows that are there, and those
    /// that go, are verified.
    fn access(&self, keys: &[u32], check: bool) -> Counts;

    /// Calls `f` with key and word of every resident row. Nobody else may use the cache meanwhile.
    fn for_each_resident(&self, f: &mut dyn FnMut(u32, u32));

    /// Rows that fit.
    fn capacity(&self) -> u64;

    /// Bytes beside the rows, of a full cache.
    fn bytes_beside_rows(&self) -> u64;
}

/// The content of the row of a key.
#[inline(always)]
pub(crate) fn word_of(key: u32) -> u32 {
    mix(u64::from(key), 5) as u32
}
