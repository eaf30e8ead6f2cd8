//! Upper bounds of the journal bytes of commits and new tables, beside the changes of rows: that
//! much is reserved before they begin.

/// For a commit beside the rows and its meta: its record, counters, one piece.
pub(crate) const JOURNAL_BYTES_PER_COMMIT: u64 = 192 << 10;
/// For the records of a table and its class.
pub(crate) const JOURNAL_BYTES_PER_TABLE: u64 = 8 << 10;
