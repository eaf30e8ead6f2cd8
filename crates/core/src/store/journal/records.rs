//! The records of the journal that are not deltas.

use crate::config::{CommitInfo, Merging, StorageKind, TableSpec, is_default};
use crate::error::{Result, bail};
use crate::hash::table_salt;
use crate::io::DeviceCurve;
use crate::storage::{ClassFacts, TableFacts};
use crate::store::files::state::StateRef;
use serde::{Deserialize, Serialize};

/// A row class: every table whose rows take the same number of bytes and are stored alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClassRecord {
    pub(crate) id: u16,
    /// Layout of its rows on storage. Records of logs do not have it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) storage: StorageKind,
    pub(crate) row_bytes: usize,
    pub(crate) page_bytes: usize,
    pub(crate) segment_bytes: u64,
    /// The measurement of the device when the class was created.
    pub(crate) curve: Option<DeviceCurve>,
    /// Beginnings of the fillings of its segments before this file; empty if there were none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) fillings: String,
}

impl ClassRecord {
    /// Whether a table of such rows belongs to it.
    pub(crate) fn is_for(&self, row_bytes: usize, storage: StorageKind) -> bool {
        self.row_bytes == row_bytes && self.storage == storage
    }

    /// Bytes of its rows in the cache. For a class without cached rows, wide ones cost no more than
    /// others.
    pub(crate) fn cached_row_bytes(&self) -> usize {
        const DIRECT_MOST: usize = 512;
        if self.storage.is_direct() { self.row_bytes.min(DIRECT_MOST) } else { self.row_bytes }
    }

    /// The facts about the class for its layout, in a store with this seed of checksums.
    pub(crate) fn facts(&self, seed: u64, merging: Merging) -> ClassFacts {
        let Self { id, storage, row_bytes, page_bytes, segment_bytes, .. } = *self;
        ClassFacts { class: id, kind: storage, row_bytes, page_bytes, segment_bytes, seed, merging }
    }
}

/// A table and, for a growing one, how its index was divided when this record was written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TableRecord {
    pub(crate) id: u16,
    pub(crate) class: u16,
    pub(crate) spec: TableSpec,
    /// Partitions of the index of a table that is not stored by id.
    pub(crate) partitions: Option<u32>,
    /// Whether the index of a table that is stored by id in a log is packed.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) packed: bool,
    /// True when the table was created here: its index is empty, and no piece need be loaded.
    pub(crate) born: bool,
    /// True of a table that was dropped before: its id is never given again, and files may have
    /// rows of it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) dropped: bool,
}

/// A change of a table since its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableChange {
    pub(crate) id: u16,
    /// Its name before the change.
    pub(crate) name: String,
    pub(crate) change: ChangeOf,
}

/// See [`TableChange`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChangeOf {
    /// It was dropped, with all its rows.
    Drop,
    /// It has another name.
    Rename(String),
    /// A dense one has so many ids.
    Grow(u64),
}

impl ChangeOf {
    /// Makes a record what it is after the change.
    pub(crate) fn apply(&self, record: &mut TableRecord) {
        let spec = &mut record.spec;
        match self {
            Self::Drop => record.dropped = true,
            Self::Rename(name) => {
                let before = std::mem::replace(&mut spec.name, name.clone());
                let first = spec.first_name.take().unwrap_or(before);
                spec.first_name = Some(first).filter(|first| first != name);
            }
            Self::Grow(num_embeddings) => spec.num_embeddings = Some(*num_embeddings),
        }
    }
}

impl TableRecord {
    /// Ids of a table that is stored by id; `None` where it is stored as a growing one.
    pub(crate) fn dense_ids(&self) -> Option<u64> {
        self.partitions.map_or(self.spec.num_embeddings, |_| None)
    }

    /// Rows that the table will have, as far as is known.
    pub(crate) fn rows_to_come(&self) -> Option<u64> {
        match (self.dense_ids(), self.spec.expected_rows) {
            (Some(ids), Some(expected)) if self.packed => Some(ids.min(expected)),
            (ids, expected) => ids.or_else(|| self.spec.room()).or(expected),
        }
    }

    /// The facts about the table for its layout.
    pub(crate) fn facts(&self) -> TableFacts<'_> {
        let Self { id, ref spec, partitions, packed, born, .. } = *self;
        TableFacts {
            table: id,
            name: &spec.name,
            salt: table_salt(spec.hashed_name()),
            num_embeddings: self.dense_ids(),
            expected_rows: spec.expected_rows,
            packed,
            capacity: spec.room(),
            partitions,
            born,
        }
    }
}

/// A table's counters at a commit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TableCounters {
    pub(crate) id: u16,
    pub(crate) rows: u64,
    pub(crate) updates: u64,
}

/// A class's counters at a commit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ClassCounters {
    pub(crate) id: u16,
    /// No page of the commit has a larger one.
    pub(crate) sequence: u64,
    /// Of the class's newest page when the epoch began; pages of this epoch have larger ones.
    /// `None` in commits of builds that did not note it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) began: Option<u64>,
}

/// A durable point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommitRecord {
    pub(crate) info: CommitInfo,
    pub(crate) state: Option<StateRef>,
    pub(crate) tables: Vec<TableCounters>,
    pub(crate) classes: Vec<ClassCounters>,
    /// The oldest commit that stays when this one is durable.
    pub(crate) oldest_kept: u64,
    /// Whether a store has gone back to it, a pinned commit: what earlier files of the journal hold
    /// is given up.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) gone_back: bool,
    /// The share of all rows that the newest ones may be, of a store with an lsm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) top_share: Option<f64>,
    /// Journal file of this record, and its end there.
    #[serde(skip)]
    pub(crate) place: (u64, u64),
    /// Checksum of this record as it was read; 0 in the writer that made it.
    #[serde(skip)]
    pub(crate) checksum: u64,
}

impl CommitRecord {
    /// Whether both were read from the same record. After a writer has gone back another commit may
    /// have the same number and end at the same place; but its classes have later sequences.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.place == other.place && self.checksum == other.checksum
    }

    /// Whether both are of one commit, wherever they were read.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let sequences = |record: &Self| -> Vec<(u16, u64)> {
            record.classes.iter().map(|class| (class.id, class.sequence)).collect()
        };
        self.info == other.info && sequences(self) == sequences(other)
    }
}

/// Bytes before the content of a piece.
const PIECE_HEADER_BYTES: usize = 8;

/// The first bytes of a piece record.
pub(crate) fn piece_header(table: u16, piece: u32) -> [u8; PIECE_HEADER_BYTES] {
    let mut header = [0; PIECE_HEADER_BYTES];
    header[..2].copy_from_slice(&table.to_le_bytes());
    header[4..].copy_from_slice(&piece.to_le_bytes());
    header
}

/// Table, piece and content of a piece record.
pub(crate) fn read_piece_header(payload: &[u8]) -> Result<(u16, u32, &[u8])> {
    let Some((header, content)) = payload.split_first_chunk::<PIECE_HEADER_BYTES>() else {
        bail!(Corrupt, "a piece record of {} bytes is too short", payload.len());
    };
    let table = u16::from_le_bytes([header[0], header[1]]);
    let piece = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    Ok((table, piece, content))
}
