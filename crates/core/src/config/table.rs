//! The description of a table.

use crate::error::{Error, Result, bail};
use crate::init::Initializer;
use crate::optimizer::{OptimizerKind, OptimizerSpec};
use crate::row::{Dtype, PAGE_BYTES_MAX, ROW_BYTES_MAX, RoundingMode, RowLayout};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The storage of rows that are not in memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum StorageKind {
    /// A log of pages with an exact index: 4 to 8 bytes of memory per stored row, one page read
    /// for each.
    #[default]
    Log,
    /// A log of the newest rows above partitions of sorted ones: less than a byte of memory per
    /// stored row, for small rows or very many.
    Lsm,
    /// A log of the newest rows above frozen pages in the order of a placement, with replicas of
    /// rows that are asked for with many others: for serving, 4 to 8 bytes of memory per stored
    /// row.
    Pages,
    /// A region of fixed capacity on persistent memory, on tmpfs or in a mapped file: rows are
    /// durable by update, outside the commit, and take no memory but two bits.
    Pmem,
}

impl StorageKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Log, Self::Lsm, Self::Pages, Self::Pmem];

    /// The name that records and options have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Lsm => "lsm",
            Self::Pages => "pages",
            Self::Pmem => "pmem",
        }
    }

    /// Whether its rows lie in partition files, and the newest of them in a log above these.
    pub(crate) fn has_bottom(self) -> bool {
        matches!(self, Self::Lsm | Self::Pages)
    }

    /// Whether rows are durable by update, outside the commit, and never in the cache.
    pub fn is_direct(self) -> bool {
        self == Self::Pmem
    }
}

impl FromStr for StorageKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|kind| kind.name() == text) {
            Some(kind) => Ok(kind),
            None => bail!(
                Misuse,
                "storage is \"{text}\"; expected \"log\", \"lsm\", \"pages\" or \"pmem\""
            ),
        }
    }
}

/// A table in an lsm of which fewer than one id in so many is expected to have a row is stored as a
/// growing one. By id it takes 0.15 bytes of memory per id and 0.64 per row, else 1.09 per row.
const SPARSE_SHARE: u64 = 3;
/// Most ids of a table that is stored by id.
pub(crate) const DENSE_IDS_MAX: u64 = u32::MAX as u64;

/// The description of a table: fixed at creation, except its name and the number of dense ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Unique name within the store.
    pub name: String,
    /// The name that it was created with, where it was renamed since: initial rows and the order of
    /// growing tables are made of that.
    #[serde(default, skip_serializing_if = "is_default")]
    pub first_name: Option<String>,
    /// Values per row.
    pub embedding_dim: usize,
    /// Ids are `0..num_embeddings`; `None` is a growing table of arbitrary 64-bit keys.
    pub num_embeddings: Option<u64>,
    /// Expected number of rows of the table: sizes the index and the budget of a growing one. With
    /// less than a third of `num_embeddings` a new table in an lsm is stored as a growing one,
    /// whose index is then the smaller; and so is one of more ids than a dense index takes. A new
    /// table in a log that is stored by id has a packed index where that is the smaller.
    pub expected_rows: Option<u64>,
    /// Type of the stored values.
    pub dtype: Dtype,
    /// The rounding of updates to it. Without effect with float32, whose records do not have it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rounding: RoundingMode,
    /// The storage of rows that are not in memory. Records of tables in a log do not have it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub storage: StorageKind,
    /// Rows for which a table on persistent memory has room: all its ids unless it says less. A
    /// resized table has another number than its record.
    #[serde(default, skip_serializing_if = "is_default")]
    pub capacity: Option<u64>,
    /// The optimizer whose state the row carries.
    pub optimizer: OptimizerSpec,
    /// Values of rows that were never written.
    pub initializer: Initializer,
}

impl TableSpec {
    /// The name that all hashes of its keys are made with.
    pub fn hashed_name(&self) -> &str {
        self.first_name.as_deref().unwrap_or(&self.name)
    }

    /// Ids of a new table where it is stored by id; `None` where it is stored as a growing one.
    /// Of a table that is there its record says it.
    pub(crate) fn new_dense_ids(&self) -> Option<u64> {
        let is_sparse = |ids: u64, expected: u64| {
            expected.saturating_mul(SPARSE_SHARE) < ids || ids > DENSE_IDS_MAX
        };
        match (self.storage, self.num_embeddings, self.expected_rows) {
            // Its index is the region's, which needs no ids.
            (StorageKind::Pmem, ..) => None,
            (kind, Some(ids), Some(expected)) if kind.has_bottom() && is_sparse(ids, expected) => {
                None
            }
            (_, ids, _) => ids,
        }
    }

    /// Rows that a new table will have, as far as is known.
    pub(crate) fn new_rows_to_come(&self) -> Option<u64> {
        match self.storage {
            StorageKind::Pmem => self.room(),
            _ => self.new_dense_ids().or(self.expected_rows),
        }
    }

    /// Rows for which a region of the table has room; `None` for other storages.
    pub(crate) fn room(&self) -> Option<u64> {
        self.storage.is_direct().then(|| self.capacity.or(self.num_embeddings)).flatten()
    }

    /// Refuses a capacity that does not fit the storage.
    fn check_capacity(&self) -> Result<()> {
        let name = &self.name;
        match (self.storage, self.capacity, self.num_embeddings) {
            (StorageKind::Pmem, None, None) => bail!(
                Misuse,
                "table '{name}' grows, and a region on persistent memory has a fixed size: give \
                 capacity= the most rows that it will have (embedrock resize changes it later)"
            ),
            (StorageKind::Pmem, Some(0), _) => {
                bail!(Misuse, "table '{name}': capacity is 0, expected at least 1 row")
            }
            (StorageKind::Pmem, Some(capacity), Some(ids)) if capacity > ids => bail!(
                Misuse,
                "table '{name}': capacity is {capacity}, and there are {ids} ids; leave it out for \
                 room for all of them"
            ),
            (StorageKind::Pmem, ..) | (_, None, _) => Ok(()),
            (kind, Some(capacity), _) => bail!(
                Misuse,
                "table '{name}': capacity is {capacity}, and storage \"{}\" grows as it needs to; \
                 leave it out, or use storage=\"pmem\"",
                kind.name()
            ),
        }
    }

    /// Checks the parameters; returns how rows of the table lie in memory and on storage.
    pub(crate) fn validate(&self) -> Result<RowLayout> {
        let name = &self.name;
        if name.is_empty() || name.len() > 200 || name.contains('\0') {
            bail!(Misuse, "table name {name:?} is unusable, expected 1 to 200 bytes without NUL");
        }
        let context = |e: crate::Error| e.context(format!("table '{name}'"));
        self.optimizer.validate_spec().map_err(context)?;
        self.initializer.validate().map_err(context)?;
        self.check_capacity()?;
        if self.num_embeddings == Some(0) {
            bail!(Misuse, "table '{name}': num_embeddings is 0, expected at least 1");
        }
        if self.dtype.is_quantized() && self.optimizer.kind != OptimizerKind::None {
            bail!(
                Misuse,
                "table '{name}': rows of {} are put whole and not trained, and the optimizer is \
                 {}; use optimizer \"none\", or train in another dtype and freeze to this one",
                self.dtype.name(),
                self.optimizer.kind.name()
            );
        }
        let (dim, reach) = (self.embedding_dim, self.initializer.reach());
        if !self.dtype.all_fit(&[reach, -reach]) {
            bail!(
                Misuse,
                "table '{name}': initial values up to {reach} leave the range of {}; use bfloat16, \
                 or smaller ones",
                self.dtype.name()
            );
        }
        let state_words = self.optimizer.state_words(dim);
        let layout = RowLayout::new(self.dtype, dim, state_words).map_err(context)?;
        if !self.storage.is_direct() && layout.row_bytes() > PAGE_BYTES_MAX {
            bail!(
                Misuse,
                "table '{name}': row of embedding_dim {dim} in {} with {state_words} words of \
                 optimizer state is {} bytes, at most {PAGE_BYTES_MAX} fit a page; use a smaller \
                 embedding_dim, an optimizer with less state, or storage=\"pmem\", which takes \
                 rows of {ROW_BYTES_MAX}",
                self.dtype.name(),
                layout.row_bytes()
            );
        }
        Ok(layout)
    }
}

/// True of what a record leaves out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Names a table within its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TableId(pub(crate) u16);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A store's facts about a table.
#[derive(Clone, Debug, Serialize)]
pub struct TableInfo {
    /// Its handle.
    pub id: TableId,
    /// Its parameters.
    pub spec: TableSpec,
    /// Whether its rows are stored by id: not those of a growing table, nor of one with
    /// `num_embeddings` of which few ids are expected to have a row.
    pub by_id: bool,
    /// Stored bytes of a row: values and state.
    pub row_bytes: usize,
    /// Optimizer state per row, in 4-byte words.
    pub state_words: usize,
    /// Keys written and not deleted, uncommitted ones included.
    pub rows: u64,
    /// Update batches applied so far.
    pub updates: u64,
    /// Of a table on persistent memory, what its rows survive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<String>,
}
