//! The index of a dense table, in one of two forms: a slot number for every id, in as many bits as
//! the file needs, or one for those alone that have a stored copy.
//!
//! Both are exact: an id has a stored copy if and only if its slot number is not 0.

use super::full::FullIndex;
use super::packed::PackedIndex;
use crate::config::DENSE_IDS_MAX;
use crate::error::{Error, ErrorKind, Result, bail};
use std::ops::{Range, RangeInclusive};

/// Ids of a snapshot piece.
pub(super) const PIECE_IDS: usize = 16_384;
/// Number of ids ahead for which `set_all` prefetches memory.
const SETS_AHEAD: usize = 32;

/// Slot numbers of the ids `0..num_embeddings` of a dense table.
///
/// Verbs that take an id panic when it is not below `num_embeddings`: batches are validated before
/// they reach the index.
#[derive(Debug)]
pub struct DenseIndex(Form);

#[derive(Debug)]
enum Form {
    /// 2 to 4 bytes per id, by the slots of the file.
    Full(FullIndex),
    /// 0.14 bytes per id, and about 4.3 for each that has a stored copy.
    Packed(PackedIndex),
}

impl DenseIndex {
    /// An index with an entry for every id, none of which has a stored copy.
    ///
    /// *Errors*: `Misuse` when `num_embeddings` is above 2^32 - 1, because a slot number has 32
    /// bits and 0 is taken; `Budget` when the machine does not have the addresses. The caller has
    /// checked the memory budget: the address space is taken at once, though memory only as ids are
    /// written.
    pub fn new(num_embeddings: u64) -> Result<Self> {
        Ok(Self(Form::Full(FullIndex::new(ids_of(num_embeddings)?)?)))
    }

    /// An index for a table of which few ids have a stored copy; none has one yet.
    ///
    /// *Errors*: as `new`.
    pub fn packed(num_embeddings: u64) -> Result<Self> {
        Ok(Self(Form::Packed(PackedIndex::new(ids_of(num_embeddings)?)?)))
    }

    /// Makes room for more ids, none of which has a stored copy yet.
    ///
    /// *Errors*: as `new`; nothing changed then.
    pub fn grow(&mut self, num_embeddings: u64) -> Result<()> {
        let count = ids_of(num_embeddings)?;
        assert!(num_embeddings >= self.num_embeddings(), "an index does not shrink");
        match &mut self.0 {
            Form::Full(index) => index.grow(count),
            Form::Packed(index) => index.grow(count),
        }
    }

    /// An index of as many ids, in the same form, none of which has a stored copy yet.
    ///
    /// *Errors*: as `new`.
    pub fn empty_copy(&self) -> Result<Self> {
        let count = self.num_embeddings() as usize;
        Ok(Self(match &self.0 {
            Form::Full(index) => Form::Full(index.empty_copy()?),
            Form::Packed(_) => Form::Packed(PackedIndex::new(count)?),
        }))
    }

    /// Makes sure that every slot number below `slots` fits an entry, as [`set`](Self::set) does
    /// for its own. Entries move apart with the changes that follow: nobody waits for all of them.
    ///
    /// *Errors*: `Budget` when the machine does not have the memory; nothing changed then.
    pub fn fit(&mut self, slots: u64) -> Result<()> {
        match &mut self.0 {
            Form::Full(index) => index.fit(slots),
            Form::Packed(_) => Ok(()),
        }
    }

    /// Bytes by which [`fit`](Self::fit) makes it grow.
    pub fn growth_to_fit(&self, slots: u64) -> u64 {
        match &self.0 {
            Form::Full(index) => index.growth_to_fit(slots),
            Form::Packed(_) => 0,
        }
    }

    /// Copies a part of it, of a number, into what `empty_copy` gave: some megabytes. Says whether
    /// parts follow; once none does, the copy is whole.
    pub fn copy_part(&self, part: usize, copy: &mut Self) -> bool {
        match (&self.0, &mut copy.0) {
            (Form::Full(index), Form::Full(copy)) => index.copy_part(part, copy),
            (Form::Packed(index), Form::Packed(copy)) => index.copy_part(part, copy),
            _ => unreachable!("a copy has the form of its index"),
        }
    }

    /// The slot number of `id`, 0 if it has no stored copy.
    #[inline]
    pub fn get(&self, id: u64) -> u32 {
        match &self.0 {
            Form::Full(index) => index.get(id),
            Form::Packed(index) => index.get(id),
        }
    }

    /// Makes `slot` the slot number of `id` (0 removes it) and returns the one before.
    #[inline]
    pub fn set(&mut self, id: u64, slot: u32) -> u32 {
        match &mut self.0 {
            Form::Full(index) => index.set(id, slot),
            Form::Packed(index) => index.set(id, slot),
        }
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
        match &self.0 {
            Form::Full(index) => index.prefetch(id),
            Form::Packed(index) => index.prefetch(id),
        }
    }

    /// Number of ids that have a stored copy.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Form::Full(index) => index.len(),
            Form::Packed(index) => index.len(),
        }
    }

    /// Whether no id has a stored copy.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of ids, with or without a stored copy.
    pub fn num_embeddings(&self) -> u64 {
        match &self.0 {
            Form::Full(index) => index.num_embeddings(),
            Form::Packed(index) => index.num_embeddings(),
        }
    }

    /// Bytes that the index of a new table of `num_embeddings` rows takes, alone in its file.
    pub fn memory_of_new(num_embeddings: u64) -> u64 {
        FullIndex::memory_of_new(num_embeddings)
    }

    /// Bytes that the index of a table of `num_embeddings` rows takes at most, however many slots
    /// its file has.
    pub fn memory_for(num_embeddings: u64) -> u64 {
        FullIndex::memory_for(num_embeddings)
    }

    /// An upper bound of the bytes of a packed index of `num_embeddings` ids of which `rows` have a
    /// stored copy, where none was removed.
    pub fn packed_memory_for(num_embeddings: u64, rows: u64) -> u64 {
        PackedIndex::memory_for(num_embeddings, rows)
    }

    /// Bytes that it takes at most with so many ids that have a stored copy, where none was
    /// removed, in a file of as many slots.
    pub fn memory_with(&self, rows: u64) -> u64 {
        let ids = self.num_embeddings();
        match &self.0 {
            Form::Full(index) => index.memory_bytes() as u64,
            Form::Packed(_) => PackedIndex::memory_for(ids, rows.min(ids)),
        }
    }

    /// Bytes of memory; with an entry for every id fewer are resident until each was written.
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Form::Full(index) => index.memory_bytes(),
            Form::Packed(index) => index.memory_bytes(),
        }
    }

    /// The ids that have a stored copy and their slot numbers, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.range(0..=u64::MAX)
    }

    /// As `iter`, of the ids in `ids`; those behind the last are allowed.
    pub fn range(&self, ids: RangeInclusive<u64>) -> impl Iterator<Item = (u64, u32)> + '_ {
        let (full, packed) = match &self.0 {
            Form::Full(index) => (Some(index.range(ids)), None),
            Form::Packed(index) => (None, Some(index.range(ids))),
        };
        full.into_iter().flatten().chain(packed.into_iter().flatten())
    }

    /// Whether only ids with a stored copy have a slot number.
    pub fn is_packed(&self) -> bool {
        matches!(&self.0, Form::Packed(_))
    }

    /// Number of snapshot pieces of the index.
    pub fn piece_count(&self) -> usize {
        piece_count(self.num_embeddings())
    }

    /// The snapshot piece that holds `id`.
    pub fn piece_of(&self, id: u64) -> usize {
        id as usize / PIECE_IDS
    }

    /// Appends piece `piece` to `out`. Panics if there is no such piece.
    pub fn write_piece(&self, piece: usize, out: &mut Vec<u8>) {
        match &self.0 {
            Form::Full(index) => index.write_piece(piece, out),
            Form::Packed(index) => index.write_piece(piece, out),
        }
    }

    /// Replaces piece `piece` by what `write_piece` of an index in the same form wrote.
    ///
    /// *Errors*: `Corrupt` when there is no such piece or the bytes cannot be it; nothing changed
    /// then.
    pub fn load_piece(&mut self, piece: usize, bytes: &[u8]) -> Result<()> {
        match &mut self.0 {
            Form::Full(index) => index.load_piece(piece, bytes),
            Form::Packed(index) => index.load_piece(piece, bytes),
        }
    }
}

/// The number of ids of a table that a machine can index.
fn ids_of(num_embeddings: u64) -> Result<usize> {
    if num_embeddings > DENSE_IDS_MAX {
        bail!(
            Misuse,
            "num_embeddings is {num_embeddings}, a table holds at most {DENSE_IDS_MAX} rows; split \
             it into several tables, or give storage=\"lsm\" and expected_rows="
        );
    }
    let Ok(ids) = usize::try_from(num_embeddings) else {
        bail!(Unsupported, "num_embeddings is {num_embeddings}, beyond this machine's addresses");
    };
    Ok(ids)
}

/// The machine does not give the memory of an index.
pub(super) fn refused(num_embeddings: usize, bytes: usize) -> Error {
    let what = format!(
        "the index of {num_embeddings} rows takes {bytes} bytes, which this machine does not give; \
         use a machine with more memory, or fewer rows"
    );
    Error::new(ErrorKind::Budget, what)
}

fn piece_count(num_embeddings: u64) -> usize {
    (num_embeddings as usize).div_ceil(PIECE_IDS)
}

/// Refuses a piece that an index of so many ids does not have.
pub(super) fn check_piece(num_embeddings: u64, piece: usize) -> Result<()> {
    let count = piece_count(num_embeddings);
    if piece >= count {
        bail!(Corrupt, "index piece {piece} came, the index has {count} pieces");
    }
    Ok(())
}

/// The ids of a piece of an index of so many ids. Panics if there is no such piece.
pub(super) fn piece_ids(num_embeddings: u64, piece: usize) -> Range<usize> {
    let count = piece_count(num_embeddings);
    assert!(piece < count, "piece {piece} of {count}");
    let start = piece * PIECE_IDS;
    start..(start + PIECE_IDS).min(num_embeddings as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index of so many ids in either form.
    fn both(ids: u64) -> [DenseIndex; 2] {
        [DenseIndex::new(ids).unwrap(), DenseIndex::packed(ids).unwrap()]
    }

    #[test]
    fn len_counts_the_ids_with_a_stored_copy() {
        for mut index in both(100) {
            assert!(index.is_empty());
            assert_eq!(index.set(0, 7), 0);
            assert_eq!(index.set(99, u32::MAX), 0);
            assert_eq!(index.set(99, 8), u32::MAX);
            assert_eq!(index.len(), 2);
            assert_eq!(index.iter().collect::<Vec<_>>(), [(0, 7), (99, 8)]);
            assert_eq!(index.range(1..=99).collect::<Vec<_>>(), [(99, 8)]);
            assert_eq!(index.range(0..=98).collect::<Vec<_>>(), [(0, 7)]);
            assert_eq!(index.range(100..=u64::MAX).next(), None);
            assert_eq!(index.set(0, 0), 7);
            assert_eq!(index.set(1, 0), 0);
            assert_eq!((index.len(), index.get(0), index.get(99)), (1, 0, 8));
            index.prefetch(99);
            index.prefetch(u64::MAX);
        }
    }

    #[test]
    fn more_rows_than_slot_numbers_are_refused() {
        for error in [DenseIndex::new(1 << 32), DenseIndex::packed(1 << 32)] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse);
            assert!(error.message().contains("4294967296"), "{error}");
        }
    }

    #[test]
    fn an_index_costs_what_its_form_says() {
        let [full, packed] = both(1_000_000);
        assert!(full.memory_bytes() <= 21 * 125_000 + 100);
        assert_eq!(full.memory_bytes() as u64, DenseIndex::memory_of_new(1_000_000));
        assert!(packed.memory_bytes() <= 150_000);
        assert!(packed.memory_bytes() as u64 <= DenseIndex::packed_memory_for(1_000_000, 0));
        assert!(!full.is_packed() && packed.is_packed());
    }

    #[test]
    fn pieces_rebuild_the_index() {
        let rows = 3 * PIECE_IDS as u64 + 5;
        for (mut index, mut rebuilt) in both(rows).into_iter().zip(both(rows)) {
            for id in (0..rows).filter(|id| id % 3 == 1) {
                index.set(id, (id * 17 + 1) as u32);
            }
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
            assert_eq!(index.piece_of(PIECE_IDS as u64 - 1), 0);
            assert_eq!(index.piece_of(rows - 1), 3);
        }
    }

    #[test]
    fn a_piece_of_the_wrong_size_or_number_changes_nothing() {
        for mut index in both(PIECE_IDS as u64 + 1) {
            index.set(PIECE_IDS as u64, 9);
            for (piece, size) in [(1, 0), (1, 3), (1, 8), (0, 4), (2, 4), (usize::MAX, 4)] {
                let error = index.load_piece(piece, &vec![1; size]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "piece {piece} of {size} bytes");
            }
            assert_eq!((index.len(), index.get(PIECE_IDS as u64)), (1, 9));
        }
    }

    #[test]
    fn a_table_without_rows_has_no_pieces() {
        for index in both(0) {
            assert_eq!((index.piece_count(), index.len()), (0, 0));
            assert_eq!(index.iter().next(), None);
        }
    }

    #[test]
    fn a_run_may_end_at_the_last_slot() {
        for mut index in both(100) {
            let ids: Vec<u32> = (0..90).map(|at| at * 37 % 100).collect();
            index.set_all(&ids, |id| *id, u32::MAX - 90);
            for (id, slot) in ids.iter().zip(u32::MAX - 90..) {
                assert_eq!(index.get(u64::from(*id)), slot);
            }
            assert_eq!(index.len(), 90);
        }
    }

    #[test]
    fn a_copy_that_was_made_part_by_part_is_equal() {
        const IDS: u64 = 1_300_000;
        for mut index in [DenseIndex::new(IDS).unwrap(), DenseIndex::packed(IDS).unwrap()] {
            for id in (0..IDS).step_by(7) {
                index.set(id, id as u32 + 1);
            }
            let mut copy = index.empty_copy().unwrap();
            let mut parts = 0;
            while index.copy_part(parts, &mut copy) {
                parts += 1;
            }
            assert!(parts > 1, "{parts} parts");
            assert!(copy.iter().eq(index.iter()));
            assert_eq!(copy.len(), index.len());
            assert!(copy.memory_bytes() <= index.memory_bytes());
        }
    }
}
