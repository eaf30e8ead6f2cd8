//! The memory that the rest of this crate needs: words, and how they become durable.
//!
//! All access is by words of 8 bytes, the unit that a power cut leaves whole. Loads acquire and
//! stores release, so that a reader which sees a word sees all that was stored before it.

use crate::error::Result;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Bytes of a word.
pub const WORD_BYTES: usize = 8;

/// The durability after [`Medium::fence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Nothing: memory of this process alone.
    Process,
    /// A killed process, but no power cut: a file on tmpfs.
    Kill,
    /// A power cut, by `msync` of what was flushed: an ordinary file.
    Sync,
    /// A power cut, by write-back of cache lines: persistent memory, mapped with `MAP_SYNC`.
    Lines,
}

impl Durability {
    /// Whether an acknowledged write is there after a power cut.
    pub fn survives_power_cut(self) -> bool {
        matches!(self, Self::Sync | Self::Lines)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Process => "memory of this process: nothing survives it",
            Self::Kill => "memory of this machine: rows survive a killed process, no power cut",
            Self::Sync => "a file, synced: rows survive a power cut",
            Self::Lines => "persistent memory, by cache lines: rows survive a power cut",
        })
    }
}

/// Memory of a fixed number of words.
///
/// A word that was stored is durable once a [`flush`](Self::flush) that names it was called after
/// the store, and then a [`fence`](Self::fence) by the same thread has returned. Before that it may
/// become durable at any time, in any order with other words.
pub trait Medium: Send + Sync {
    /// Number of words.
    fn words(&self) -> usize;

    /// A word (acquire).
    fn load(&self, word: usize) -> u64;

    /// Changes a word (release).
    fn store(&self, word: usize, value: u64);

    /// Changes a word from `current` to `new`, and says whether it did (acquire and release).
    fn exchange(&self, word: usize, current: u64, new: u64) -> bool;

    /// Begins to write words back.
    fn flush(&self, words: Range<usize>);

    /// Waits until all words that this thread has flushed are durable. May do I/O.
    ///
    /// # Errors
    /// `Io` if the device fails. It is then unknown which words are durable.
    fn fence(&self) -> Result<()>;

    /// The durability of the medium.
    fn durability(&self) -> Durability;

    /// Asks the processor for the cache line of a word. A hint.
    #[inline(always)]
    fn prefetch(&self, word: usize) {
        let _ = word;
    }

    /// Asks the kernel to read words that may not be in memory. A hint.
    fn expect(&self, words: Range<usize>) {
        let _ = words;
    }

    /// Words to be read where they lie, `None` where a medium cannot share them.
    fn share(&self, words: Range<usize>) -> Option<&[AtomicU64]> {
        let _ = words;
        None
    }

    /// Copies bytes out, from the first byte of a word on.
    fn read(&self, word: usize, to: &mut [u8]) {
        let mut parts = to.chunks_exact_mut(WORD_BYTES);
        let mut at = word;
        for part in &mut parts {
            part.copy_from_slice(&self.load(at).to_le_bytes());
            at += 1;
        }
        let rest = parts.into_remainder();
        if !rest.is_empty() {
            rest.copy_from_slice(&self.load(at).to_le_bytes()[..rest.len()]);
        }
    }

    /// Copies bytes in; what is left of the last word becomes 0.
    fn write(&self, word: usize, from: &[u8]) {
        for (at, part) in from.chunks(WORD_BYTES).enumerate() {
            let mut bytes = [0; WORD_BYTES];
            bytes[..part.len()].copy_from_slice(part);
            self.store(word + at, u64::from_le_bytes(bytes));
        }
    }

    /// The place of the words, for messages.
    fn name(&self) -> String {
        "memory".to_owned()
    }
}
