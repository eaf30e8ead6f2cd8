//! Index pieces: how an index of any kind is cut up for the journal, and put together again.

use super::TableIndex;
use crate::error::Result;

impl TableIndex {
    /// Number of pieces.
    pub(crate) fn pieces(&self) -> u32 {
        match self {
            TableIndex::Dense(index) => index.piece_count() as u32,
            TableIndex::Sparse(index, _) => index.partitions(),
        }
    }

    /// Appends a piece to `out`.
    pub(crate) fn write_piece(&self, piece: u32, out: &mut Vec<u8>) {
        match self {
            TableIndex::Dense(index) => index.write_piece(piece as usize, out),
            TableIndex::Sparse(index, _) => index.write_partition(piece, out),
        }
    }

    /// Replaces a piece by what the journal kept of it.
    pub(crate) fn load_piece(&mut self, piece: u32, bytes: &[u8]) -> Result<()> {
        match self {
            TableIndex::Dense(index) => index.load_piece(piece as usize, bytes),
            TableIndex::Sparse(index, _) => index.load_partition(piece, bytes),
        }
    }
}
