//! The journal: what the index became, commit by commit.
//!
//! It alone rebuilds the index. A file begins with the catalog; then come deltas in the order of
//! change, and pieces of every index, written round by round so that a commit costs what changed
//! and not what the table holds. A file whose *cycle* is complete (all pieces are in) makes the
//! files before it unnecessary, once no kept commit is older than the end of its cycle.

mod bounds;
mod file;
mod json;
mod records;
mod verify;

pub(super) use bounds::{JOURNAL_BYTES_PER_COMMIT, JOURNAL_BYTES_PER_TABLE};
pub(super) use file::{
    JournalFile, JournalReader, PIN_PREFIX, RecordKind, VERSION_OF_CHANGES, VERSION_OF_PINS,
    name_of, number_of, numbers, pin_number, pin_of, pin_of_name,
};
pub(super) use json::read_json;
pub(super) use records::{
    ChangeOf, ClassCounters, ClassRecord, CommitRecord, TableChange, TableCounters, TableRecord,
    piece_header, read_piece_header,
};
pub(super) use verify::verify_catalog;
