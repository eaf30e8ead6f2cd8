//! The caller's choices: options of a store, parameters of a table, requests of a batch.

mod options;
mod table;

pub use options::{
    Amount, IoChoice, JOURNAL_BYTES_MIN, Memory, MemoryUnit, MergePicker, Merging, PolicyKind,
    StoreOptions, TOP_SHARE, UpkeepScheduler,
};
pub(crate) use table::{DENSE_IDS_MAX, is_default};
pub use table::{StorageKind, TableId, TableInfo, TableSpec};

use crate::optimizer::Hyper;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// One table's part of a batch that is announced.
#[derive(Clone, Copy, Debug)]
pub struct LookaheadBatch<'a> {
    /// The table.
    pub table: TableId,
    /// Keys that the batch will use; duplicates are allowed.
    pub keys: &'a [u64],
    /// With a schedule: of each key in how many stretches it is used again, plus 1 (1: later in
    /// this stretch); 0 where nobody knows. Of a key that occurs several times the last one counts.
    /// Empty without.
    pub next: &'a [u16],
}

/// A stretch of training: some batches in a row, whose rows are written so that they lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stretch(NonZeroU32);

impl Stretch {
    /// The `n`th one; numbers of 32 bits go round.
    pub fn of(n: u64) -> Self {
        let number = (n % u64::from(u32::MAX)) as u32 + 1;
        Self(NonZeroU32::new(number).expect("one more than a number is not 0"))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0.get() - 1
    }
}

/// The place of a batch that is announced in the schedule of the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledBatch {
    /// The number of its stretch; that of a later batch is the same or larger.
    pub stretch: u64,
    /// Batches of each stretch, all but the first and the last.
    pub batches: u32,
    /// Largest number of stretches that a next use is ahead.
    pub furthest: u32,
}

/// The destination of the values of a get.
#[derive(Debug)]
pub enum ValuesOut<'a> {
    /// Float32, whatever the dtype of the table.
    Float32(&'a mut [f32]),
    /// The bits of the table's own dtype, which has 2 bytes.
    Bits(&'a mut [u16]),
}

impl ValuesOut<'_> {
    /// Elements to fill.
    pub fn len(&self) -> usize {
        match self {
            Self::Float32(values) => values.len(),
            Self::Bits(bits) => bits.len(),
        }
    }

    /// True when there is nothing to fill.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same place for a shorter time.
    pub fn reborrow(&mut self) -> ValuesOut<'_> {
        match self {
            Self::Float32(values) => ValuesOut::Float32(values),
            Self::Bits(bits) => ValuesOut::Bits(bits),
        }
    }
}

impl<'a> From<&'a mut [f32]> for ValuesOut<'a> {
    fn from(values: &'a mut [f32]) -> Self {
        Self::Float32(values)
    }
}

impl<'a> From<&'a mut Vec<f32>> for ValuesOut<'a> {
    fn from(values: &'a mut Vec<f32>) -> Self {
        Self::Float32(values)
    }
}

/// One table's part of a batched get.
#[derive(Debug)]
pub struct GetBatch<'a> {
    /// The table.
    pub table: TableId,
    /// `(N,)` keys, duplicates allowed.
    pub keys: &'a [u64],
    /// `(N, embedding_dim)` values to fill, in request order.
    pub values: ValuesOut<'a>,
    /// `(N, state_words)` optimizer state to fill, if wanted.
    pub state: Option<&'a mut [f32]>,
}

/// One table's part of a batched put.
#[derive(Clone, Copy, Debug)]
pub struct PutBatch<'a> {
    /// The table.
    pub table: TableId,
    /// `(N,)` keys; of equal keys the last one wins.
    pub keys: &'a [u64],
    /// `(N, embedding_dim)` values.
    pub values: &'a [f32],
    /// `(N, state_words)` optimizer state; `None` keeps what is stored.
    pub state: Option<&'a [f32]>,
    /// Write initial state without looking at the stored row.
    pub reset_state: bool,
    /// The treatment of values that are not finite once rounded to the table's dtype: NaN,
    /// infinity, and what lies beyond the range of float16 or bfloat16.
    pub non_finite: NonFinite,
}

/// One table's part of a batched update.
#[derive(Clone, Copy, Debug)]
pub struct UpdateBatch<'a> {
    /// The table.
    pub table: TableId,
    /// `(N,)` keys; gradients of equal keys are summed first.
    pub keys: &'a [u64],
    /// `(N, embedding_dim)` gradients.
    pub gradients: &'a [f32],
    /// Learning rate and the like.
    pub hyper: Hyper,
    /// The treatment of NaN and infinite gradients.
    pub non_finite: NonFinite,
    /// The optimizer's step number (1 at the first), `None`: one more than the table's count of
    /// update batches.
    pub step: Option<u64>,
}

/// The treatment of NaN and infinite input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// Refuse the whole call before any row changes; counted.
    #[default]
    Refuse,
    /// Leave out the rows concerned; counted.
    Skip,
    /// Take them as they are; counted. Refused for values of a quantised dtype, which has none.
    Apply,
}

/// The result of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateReport {
    /// Distinct rows updated.
    pub rows: u64,
    /// Distinct rows left out because of NaN or infinite gradients.
    pub skipped: u64,
    /// Rows of which a value left the range of float16 or bfloat16 and was brought to its end.
    pub saturated: u64,
    /// The norm of all gradients of the call and of what counts with them, before they were scaled
    /// down to [`Clip::norm`](crate::Clip::norm); `None` without that bound.
    pub norm: Option<f64>,
}

/// A durable point of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitInfo {
    /// Number of the commit within the store, from 1.
    pub sequence: u64,
    /// The caller's step.
    pub step: u64,
    /// The caller's text.
    pub meta: String,
    /// Seconds since 1970.
    pub unix_time: u64,
    /// Rows written since the commit before.
    pub rows_flushed: u64,
    /// All bytes written for it since the commit before: pages, journal, state.
    pub bytes_written: u64,
    /// Bytes of the named byte strings.
    pub state_bytes: u64,
    /// Drawn by each opening of a store to write: tells its commits from those that a copy of the
    /// store has made. 0: an earlier version made it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub writer: u64,
}

/// A name that keeps a commit until it is taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinInfo {
    /// The name.
    pub name: String,
    /// The commit's step.
    pub step: u64,
    /// The commit's number within the store.
    pub sequence: u64,
    /// The time of the commit, in seconds since 1970.
    pub committed: u64,
    /// The time when it got the name.
    pub unix_time: u64,
    /// Bytes on disk that only this commit keeps: what unpinning all its names gives back.
    pub bytes: u64,
}

/// The changes that closing without a commit would lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Uncommitted {
    /// Batches of put, update, modify and delete since the last commit.
    pub batches: u64,
    /// Rows they touched, counted once a batch.
    pub rows: u64,
}
