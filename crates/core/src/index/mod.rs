//! The indexes: where the newest stored copy of each row of a table is.
//!
//! An index maps keys to slot numbers of the table's row class; 0 means no stored copy. It does no
//! I/O, knows nothing of pages, and takes no lock: all changes happen through `&mut self`, under
//! the owner's lock, and look-ups through `&self`. [`DenseIndex`] answers exactly, with an entry
//! for every id or for those alone that have a copy. [`SparseIndex`] keeps no keys, so its answers
//! are candidates whose stored key the caller compares.
//!
//! Both are written to and rebuilt from small pieces, one at a time, so that a snapshot of an index
//! spreads over many commits. `docs/formats` draws the pieces; here they are little endian.

mod dense;
mod full;
#[cfg(test)]
mod measure;
mod packed;
mod partition;
mod sparse;
#[cfg(test)]
mod sparse_tests;

pub use dense::DenseIndex;
pub use sparse::SparseIndex;

/// Bytes that a new key of a growing table may need.
pub(crate) const INDEX_BYTES_PER_KEY: u64 = 8;
/// Bytes that the allocator is taken to spend on an allocation besides what was asked for.
/// (glibc: 8 bytes of header, rounded up to 16.)
const ALLOCATION_BYTES: usize = 16;
