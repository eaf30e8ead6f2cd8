//! A dense index with a word for every id: its 32-bit slot number.
//!
//! The words come from zeroed memory, which the operating system backs where ids were written
//! (large tables: in huge pages; small ones may be backed whole).

use super::ALLOCATION_BYTES;
use super::dense::{check_piece, piece_ids, refused};
use crate::arena::advise_huge;
use crate::error::{Result, bail};
use crate::prefetch::prefetch_read;
use std::ops::RangeInclusive;

/// Words that are copied at a time: 2 MB.
const PART_WORDS: usize = 512 << 10;

/// Slot numbers of the ids `0..num_embeddings` of a dense table; 4 bytes per id.
///
/// Verbs that take an id panic when it is not below `num_embeddings`: batches are validated before
/// they reach the index.
#[derive(Debug)]
pub(super) struct FullIndex {
    words: Vec<u32>,
    /// Words that are not 0.
    live: u64,
}

impl FullIndex {
    /// An index of so many ids in which none has a stored copy.
    ///
    /// *Errors*: `Budget` when the machine does not have the addresses.
    pub(super) fn new(count: usize) -> Result<Self> {
        // Zeroed memory cannot be asked for without an abort when there is none, so ask beforehand
        // for as much that is not.
        if Vec::<u32>::new().try_reserve_exact(count).is_err() {
            return Err(refused(count, count * size_of::<u32>()));
        }
        let mut words = vec![0; count];
        advise_huge(&mut words);
        Ok(Self { words, live: 0 })
    }

    /// Makes room for so many ids in all.
    ///
    /// *Errors*: as `new`; nothing changed then.
    pub(super) fn grow(&mut self, count: usize) -> Result<()> {
        let more = count - self.words.len();
        if self.words.try_reserve_exact(more).is_err() {
            return Err(refused(count, count * size_of::<u32>()));
        }
        self.words.resize(count, 0);
        advise_huge(&mut self.words);
        Ok(())
    }

    /// Copies a part of it, of a number, into an index of as many ids. Says whether parts follow.
    pub(super) fn copy_part(&self, part: usize, copy: &mut Self) -> bool {
        let begin = (part * PART_WORDS).min(self.words.len());
        let end = (begin + PART_WORDS).min(self.words.len());
        copy.words[begin..end].copy_from_slice(&self.words[begin..end]);
        copy.live = self.live;
        end < self.words.len()
    }

    /// The slot number of `id`, 0 if it has no stored copy.
    #[inline]
    pub(super) fn get(&self, id: u64) -> u32 {
        self.words[id as usize]
    }

    /// Makes `slot` the slot number of `id` (0 removes it) and returns the one before.
    #[inline]
    pub(super) fn set(&mut self, id: u64, slot: u32) -> u32 {
        let old = std::mem::replace(&mut self.words[id as usize], slot);
        self.live += u64::from(slot != 0);
        self.live -= u64::from(old != 0);
        old
    }

    /// Asks for the memory that `get(id)` will read; any id is allowed.
    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        if let Some(word) = self.words.get(id as usize) {
            prefetch_read(word);
        }
    }

    /// How many ids have a stored copy.
    pub(super) fn len(&self) -> u64 {
        self.live
    }

    /// Bytes that the index of a table of `num_embeddings` rows takes.
    pub(super) fn memory_for(num_embeddings: u64) -> u64 {
        num_embeddings.saturating_mul(size_of::<u32>() as u64) + ALLOCATION_BYTES as u64
    }

    /// Bytes of memory once every id was written; fewer are resident before.
    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u32>() + ALLOCATION_BYTES
    }

    /// The ids in `ids` that have a stored copy and their slot numbers, ascending by id. Ids behind
    /// the last are allowed.
    pub(super) fn range(&self, ids: RangeInclusive<u64>) -> impl Iterator<Item = (u64, u32)> + '_ {
        let count = self.words.len() as u64;
        let first = (*ids.start()).min(count);
        let end = ids.end().saturating_add(1).clamp(first, count);
        let words = (first..).zip(&self.words[first as usize..end as usize]);
        words.filter(|(_, slot)| **slot != 0).map(|(id, slot)| (id, *slot))
    }

    /// The slot number of every id, 0 where there is no stored copy.
    pub(super) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Appends piece `piece` to `out`: its words, 4 bytes each. Panics if there is no such piece.
    pub(super) fn write_piece(&self, piece: usize, out: &mut Vec<u8>) {
        let words = &self.words[piece_ids(self.words.len() as u64, piece)];
        out.reserve(words.len() * 4);
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Replaces the words of piece `piece` by those that `write_piece` wrote.
    ///
    /// *Errors*: `Corrupt` when there is no such piece or its size is wrong; nothing changed then.
    pub(super) fn load_piece(&mut self, piece: usize, bytes: &[u8]) -> Result<()> {
        check_piece(self.words.len() as u64, piece)?;
        let range = piece_ids(self.words.len() as u64, piece);
        if bytes.len() != range.len() * 4 {
            bail!(
                Corrupt,
                "index piece {piece} is {} bytes, expected {}",
                bytes.len(),
                range.len() * 4
            );
        }
        let (encoded, _) = bytes.as_chunks::<4>();
        for (word, bytes) in self.words[range].iter_mut().zip(encoded) {
            let slot = u32::from_le_bytes(*bytes);
            // A word that stays 0 is not written, so that memory never used stays unbacked.
            if slot != *word {
                self.live += u64::from(slot != 0);
                self.live -= u64::from(*word != 0);
                *word = slot;
            }
        }
        Ok(())
    }
}
