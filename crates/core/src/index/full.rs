//! The index of a dense table: one 32-bit slot number per id.
//!
//! The words come from zeroed memory, which the operating system backs where ids were written
//! (large tables: in huge pages; small ones may be backed whole).
//! Exact: an id has a stored copy if and only if its word is not 0.

use super::ALLOCATION_BYTES;
use crate::arena::advise_huge;
use crate::error::{Result, bail};
use crate::prefetch::prefetch_read;

/// Ids in a snapshot piece: 64 KiB of words.
const PIECE_WORDS: usize = 16_384;
/// How many ids ahead `set_all` asks for memory.
const SETS_AHEAD: usize = 32;

/// Slot numbers of the ids `0..num_embeddings` of a dense table; 4 bytes per id.
///
/// Verbs that take an id panic when it is not below `num_embeddings`: batches are validated before
/// they reach the index.
#[derive(Debug)]
pub struct DenseIndex {
    words: Vec<u32>,
    /// Words that are not 0.
    live: u64,
}

impl DenseIndex {
    /// An index in which no id has a stored copy.
    ///
    /// *Errors*: `Misuse` when `num_embeddings` is above 2^32 - 1, because a slot number has 32
    /// bits and 0 is taken; `Budget` when the machine does not have the addresses. The caller has
    /// checked the memory budget: the address space is taken at once, though memory only as ids are
    /// written.
    pub fn new(num_embeddings: u64) -> Result<Self> {
        if num_embeddings > u64::from(u32::MAX) {
            bail!(
                Misuse,
                "num_embeddings is {num_embeddings}, a table holds at most {} rows; split it into \
                 several tables",
                u32::MAX
            );
        }
        let Ok(count) = usize::try_from(num_embeddings) else {
            bail!(
                Unsupported,
                "num_embeddings is {num_embeddings}, beyond this machine's addresses"
            );
        };
        // Zeroed memory cannot be asked for without an abort when there is none, so ask beforehand
        // for as much that is not.
        if Vec::<u32>::new().try_reserve_exact(count).is_err() {
            bail!(
                Budget,
                "the index of {num_embeddings} rows takes {} bytes, which this machine does not \
                 give; use a machine with more memory, or fewer rows",
                count * size_of::<u32>()
            );
        }
        let mut words = vec![0; count];
        advise_huge(&mut words);
        Ok(Self { words, live: 0 })
    }

    /// The slot number of `id`, 0 if it has no stored copy.
    #[inline]
    pub fn get(&self, id: u64) -> u32 {
        self.words[id as usize]
    }

    /// Makes `slot` the slot number of `id` (0 removes it) and returns the one before.
    #[inline]
    pub fn set(&mut self, id: u64, slot: u32) -> u32 {
        let old = std::mem::replace(&mut self.words[id as usize], slot);
        self.live += u64::from(slot != 0);
        self.live -= u64::from(old != 0);
        old
    }

    /// As `set` for each of `ids` in order, with `first` and the slots behind it.
    pub fn set_all<T>(&mut self, ids: &[T], id_of: impl Fn(&T) -> u32, first: u32) {
        // The slots come second: nobody asks for one behind the last.
        for ((place, id), slot) in ids.iter().enumerate().zip(first..) {
            if let Some(later) = ids.get(place + SETS_AHEAD) {
                self.prefetch(u64::from(id_of(later)));
            }
            self.set(u64::from(id_of(id)), slot);
        }
    }

    /// Asks for the memory that `get(id)` will read; any id is allowed.
    #[inline]
    pub fn prefetch(&self, id: u64) {
        if let Some(word) = self.words.get(id as usize) {
            prefetch_read(word);
        }
    }

    /// How many ids have a stored copy.
    pub fn len(&self) -> u64 {
        self.live
    }

    /// Whether no id has a stored copy.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// The number of ids, with or without a stored copy.
    pub fn num_embeddings(&self) -> u64 {
        self.words.len() as u64
    }

    /// Bytes that the index of a table of `num_embeddings` rows takes.
    pub fn memory_for(num_embeddings: u64) -> u64 {
        num_embeddings.saturating_mul(size_of::<u32>() as u64) + ALLOCATION_BYTES as u64
    }

    /// Bytes of memory once every id was written; fewer are resident before.
    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u32>() + ALLOCATION_BYTES
    }

    /// The ids that have a stored copy and their slot numbers, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let words = self.words.iter().enumerate();
        words.filter(|(_, slot)| **slot != 0).map(|(id, slot)| (id as u64, *slot))
    }

    /// The slot number of every id, 0 where there is no stored copy.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// How many snapshot pieces the index has.
    pub fn piece_count(&self) -> usize {
        self.words.len().div_ceil(PIECE_WORDS)
    }

    /// The snapshot piece that holds `id`.
    pub fn piece_of(&self, id: u64) -> usize {
        id as usize / PIECE_WORDS
    }

    /// Appends piece `piece` to `out`: its words, 4 bytes each. Panics if there is no such piece.
    pub fn write_piece(&self, piece: usize, out: &mut Vec<u8>) {
        let words = &self.words[self.piece_range(piece)];
        out.reserve(words.len() * 4);
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Replaces the words of piece `piece` by those that `write_piece` wrote.
    ///
    /// *Errors*: `Corrupt` when there is no such piece or its size is wrong; nothing changed then.
    pub fn load_piece(&mut self, piece: usize, bytes: &[u8]) -> Result<()> {
        if piece >= self.piece_count() {
            bail!(Corrupt, "index piece {piece} came, the index has {} pieces", self.piece_count());
        }
        let range = self.piece_range(piece);
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

    fn piece_range(&self, piece: usize) -> std::ops::Range<usize> {
        assert!(piece < self.piece_count(), "piece {piece} of {}", self.piece_count());
        let start = piece * PIECE_WORDS;
        start..(start + PIECE_WORDS).min(self.words.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn len_counts_the_ids_with_a_stored_copy() {
        let mut index = DenseIndex::new(100).unwrap();
        assert!(index.is_empty());
        assert_eq!(index.set(0, 7), 0);
        assert_eq!(index.set(99, u32::MAX), 0);
        assert_eq!(index.set(99, 8), u32::MAX);
        assert_eq!(index.len(), 2);
        assert_eq!(index.iter().collect::<Vec<_>>(), [(0, 7), (99, 8)]);
        assert_eq!(index.set(0, 0), 7);
        assert_eq!(index.set(1, 0), 0);
        assert_eq!((index.len(), index.get(0), index.get(99)), (1, 0, 8));
        index.prefetch(99);
        index.prefetch(u64::MAX);
    }

    #[test]
    fn more_rows_than_slot_numbers_are_refused() {
        let error = DenseIndex::new(1 << 32).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert!(error.message().contains("4294967296"), "{error}");
    }

    #[test]
    fn an_index_costs_four_bytes_a_row() {
        let index = DenseIndex::new(1_000_000).unwrap();
        assert!(index.memory_bytes() <= 4_000_100);
    }

    #[test]
    fn pieces_rebuild_the_index() {
        let rows = 3 * PIECE_WORDS as u64 + 5;
        let mut index = DenseIndex::new(rows).unwrap();
        for id in (0..rows).filter(|id| id % 3 == 1) {
            index.set(id, (id * 17 + 1) as u32);
        }
        let mut rebuilt = DenseIndex::new(rows).unwrap();
        rebuilt.set(0, 5);
        rebuilt.set(1, 5);
        assert_eq!(index.piece_count(), 4);
        for piece in 0..index.piece_count() {
            let mut bytes = vec![];
            index.write_piece(piece, &mut bytes);
            rebuilt.load_piece(piece, &bytes).unwrap();
        }
        assert_eq!(rebuilt.len(), index.len());
        assert!(rebuilt.iter().eq(index.iter()));
        assert_eq!(index.piece_of(PIECE_WORDS as u64 - 1), 0);
        assert_eq!(index.piece_of(rows - 1), 3);
    }

    #[test]
    fn a_piece_of_the_wrong_size_or_number_changes_nothing() {
        let mut index = DenseIndex::new(PIECE_WORDS as u64 + 1).unwrap();
        index.set(PIECE_WORDS as u64, 9);
        for (piece, size) in [(1, 0), (1, 3), (1, 8), (0, 4), (2, 4), (usize::MAX, 4)] {
            let error = index.load_piece(piece, &vec![1; size]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "piece {piece} of {size} bytes");
        }
        assert_eq!((index.len(), index.get(PIECE_WORDS as u64)), (1, 9));
    }

    #[test]
    fn a_table_without_rows_has_no_pieces() {
        let index = DenseIndex::new(0).unwrap();
        assert_eq!((index.piece_count(), index.len()), (0, 0));
    }

    #[test]
    fn a_run_may_end_at_the_last_slot() {
        let mut index = DenseIndex::new(10).unwrap();
        index.set_all(&[1, 2], |id| *id, u32::MAX - 2);
        assert_eq!((index.get(1), index.get(2)), (u32::MAX - 2, u32::MAX - 1));
    }
}
