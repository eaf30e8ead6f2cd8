//! Index pieces: how an index of any kind is cut up for the journal, and put together again.

use crate::error::Result;
use crate::storage::log::TableIndex;

/// Number of pieces of an index.
pub(super) fn pieces_of(index: &TableIndex) -> u32 {
    match index {
        TableIndex::Dense(index) => index.piece_count() as u32,
        TableIndex::Sparse(index, _) => index.partitions(),
    }
}

/// Appends a piece to `out`.
pub(super) fn read_piece_from(index: &TableIndex, piece: u32, out: &mut Vec<u8>) {
    match index {
        TableIndex::Dense(index) => index.write_piece(piece as usize, out),
        TableIndex::Sparse(index, _) => index.write_partition(piece, out),
    }
}

/// Replaces a piece by what the journal kept of it.
pub(super) fn write_piece_into(index: &mut TableIndex, piece: u32, bytes: &[u8]) -> Result<()> {
    match index {
        TableIndex::Dense(index) => index.load_piece(piece as usize, bytes),
        TableIndex::Sparse(index, _) => index.load_partition(piece, bytes),
    }
}
