//! What changes and commits take of the journal at most: that much is reserved before they begin.

/// For one written row: its delta, or that of a delete and of a merge.
pub(crate) const JOURNAL_BYTES_PER_ROW: u64 = 24;
/// For a commit beside the rows and its meta: its record, counters, one piece.
pub(crate) const JOURNAL_BYTES_PER_COMMIT: u64 = 192 << 10;
/// For the records of a table and its class.
pub(crate) const JOURNAL_BYTES_PER_TABLE: u64 = 8 << 10;
