//! What a caller chooses: options of a store, parameters of a table, requests of a batch.

use crate::error::{Error, Result, bail};
use crate::init::Initializer;
use crate::optimizer::{Hyper, OptimizerKind, OptimizerSpec};
use crate::row::{Dtype, RoundingMode, RowLayout};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// The memory budget: cache, index, buffers and staging together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// A number of bytes.
    Bytes(u64),
    /// Per cent of the bytes of all rows (values and state): `num_embeddings`, or `expected_rows`
    /// of growing tables, times row bytes, summed over tables. Where that is less than works, what
    /// works.
    Percent(f64),
}

/// Units of memory that [`MemoryUnit`] has names for, those of a family behind each other.
const UNITS: [(&str, f64); 8] = [
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("TiB", 1099511627776.0),
];

/// The unit that a caller gives memory in, in which messages answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryUnit {
    /// A number of bytes.
    #[default]
    Bytes,
    /// One of the units with a name, or a smaller one of its family.
    Named(usize),
}

impl MemoryUnit {
    /// The unit that a text is in which [`Memory`] reads.
    pub fn of(text: &str) -> Self {
        let unit = text.trim().trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').trim();
        let unit = match unit.len() {
            1 => format!("{unit}iB"),
            _ => unit.to_owned(),
        };
        let named = UNITS.iter().position(|(name, _)| name.eq_ignore_ascii_case(&unit));
        named.map_or(Self::Bytes, Self::Named)
    }

    /// The amount as it is given: `1048576`, or in another unit `"1MiB"` with quotes, never less.
    pub fn spell(self, bytes: u64) -> String {
        let Self::Named(most) = self else { return bytes.to_string() };
        let family = most / 4 * 4;
        let fits = |unit: &usize| bytes as f64 >= UNITS[*unit].1;
        let unit = (family..=most).rev().find(fits).unwrap_or(family);
        // A hundredth of a small unit is less than what numbers of many digits differ by.
        let short = |unit: &usize| bytes as f64 / UNITS[*unit].1 < 1e6;
        let (name, factor) = UNITS[(unit..family + 4).find(short).unwrap_or(family + 3)];
        let mut hundredths = (bytes as f64 / factor * 100.0).ceil();
        while ((hundredths / 100.0 * factor) as u64) < bytes {
            hundredths += 1.0;
        }
        format!("\"{}{name}\"", hundredths / 100.0)
    }
}

impl FromStr for Memory {
    type Err = crate::Error;

    /// Reads `"10%"`, `"2GiB"`, `"512MB"` or a plain number of bytes.
    fn from_str(text: &str) -> Result<Self> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let (number, unit) = trimmed.split_at(split.unwrap_or(trimmed.len()));
        let Ok(number) = number.parse::<f64>() else {
            bail!(Misuse, "memory is {text:?}, expected bytes, \"10%\", \"512MB\" or \"2GiB\"");
        };
        let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
            "%" => {
                if number <= 0.0 {
                    bail!(Misuse, "memory is {text:?}, expected more than 0%");
                }
                return Ok(Memory::Percent(number));
            }
            "" | "b" => 1.0,
            "kb" => 1e3,
            "mb" => 1e6,
            "gb" => 1e9,
            "tb" => 1e12,
            "kib" | "k" => 1024.0,
            "mib" | "m" => 1024.0 * 1024.0,
            "gib" | "g" => 1024.0 * 1024.0 * 1024.0,
            "tib" | "t" => 1024.0f64.powi(4),
            unit => {
                bail!(
                    Misuse,
                    "memory is {text:?}: unit {unit:?} is none of %, KB, MB, GB, KiB, \
                               MiB, GiB"
                )
            }
        };
        Ok(Memory::Bytes((number * factor) as u64))
    }
}

/// Which back end the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoChoice {
    /// io_uring where the kernel allows it, else pread.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// Threads that call pread and pwrite.
    Pread,
}

impl FromStr for IoChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "pread" => Ok(Self::Pread),
            _ => bail!(Misuse, "io is \"{text}\"; expected \"auto\", \"uring\" or \"pread\""),
        }
    }
}

/// Which policy a cache follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The least recently used row leaves: `cache::Lru`.
    Lru,
    /// The least frequently used row leaves, counts fade: `cache::Lfu`.
    #[default]
    Lfu,
}

/// Which partition of an lsm is merged next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergePicker {
    /// The one whose merge drops most rows from the top for the time that it takes.
    #[default]
    Score,
    /// The one with most bytes, of those of which the top has no fewer rows than of others.
    Largest,
    /// The next one behind the last that was merged, in the order of the rows.
    RoundRobin,
    /// The one whose last merge is longest ago.
    Oldest,
}

impl MergePicker {
    /// All pickers.
    pub const ALL: [Self; 4] = [Self::Score, Self::Largest, Self::RoundRobin, Self::Oldest];

    /// The name that options have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Score => "score",
            Self::Largest => "largest",
            Self::RoundRobin => "round_robin",
            Self::Oldest => "oldest",
        }
    }
}

impl FromStr for MergePicker {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|picker| picker.name() == text) {
            Some(picker) => Ok(picker),
            None => bail!(
                Misuse,
                "merge_picker is {text:?}; expected \"score\", \"largest\", \"round_robin\" or \
                 \"oldest\""
            ),
        }
    }
}

/// When steps of merges and units of cleaning run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpkeepScheduler {
    /// As soon as rows that are written have paid for them.
    #[default]
    Off,
    /// Then, and only while batches that were read ahead and wait cover the time of a step.
    Gate,
    /// Then, and for no more than a share of the time that passes.
    Share,
}

impl UpkeepScheduler {
    /// All schedulers.
    pub const ALL: [Self; 3] = [Self::Off, Self::Gate, Self::Share];

    /// The name that options have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Gate => "gate",
            Self::Share => "share",
        }
    }
}

impl FromStr for UpkeepScheduler {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|scheduler| scheduler.name() == text) {
            Some(scheduler) => Ok(scheduler),
            None => bail!(
                Misuse,
                "upkeep_scheduler is {text:?}; expected \"off\", \"gate\" or \"share\""
            ),
        }
    }
}

/// The share of all rows that the top of an lsm has before merges are due, unless options say.
pub const TOP_SHARE: f64 = 0.1;
/// What options may say.
const TOP_SHARES: RangeInclusive<f64> = 0.01..=0.5;

/// What a store tells an lsm of merges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merging {
    /// Which partition is merged next.
    pub picker: MergePicker,
    /// The share of all rows that the top has before merges are due.
    pub top_share: f64,
    /// Whether what merges write of growing tables has filters.
    pub filters: bool,
}

impl Default for Merging {
    fn default() -> Self {
        Self { picker: MergePicker::default(), top_share: TOP_SHARE, filters: false }
    }
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The memory budget.
    pub memory: Memory,
    /// The unit in which messages name a budget that works.
    pub memory_unit: MemoryUnit,
    /// Most bytes the store may take on disk; `None` leaves it to the file system.
    pub max_disk_bytes: Option<u64>,
    /// Most bytes on disk that readers may keep beyond the kept commits; past it the oldest of
    /// their commits go, and such a reader gets `CommitGone`. `None` is a quarter of
    /// `max_disk_bytes`, and without that no bound.
    pub max_held_bytes: Option<u64>,
    /// Page size of row classes created from here on, 512 × 2^n up to 65,536; `None` measures the
    /// device.
    pub page_bytes: Option<usize>,
    /// Unit of allocation and cleaning of row classes created from here on, a power of two from
    /// 16 pages to 4 MiB; `None` takes 1/64 (under a disk bound 1/512) of what the first table of
    /// the class will hold, at least 256 KiB where `max_disk_bytes` leaves room for that.
    pub segment_bytes: Option<u64>,
    /// Where the partitions of tables in an lsm lie, apart from the store. The store remembers it;
    /// then this is where the directory was moved to.
    pub cold_directory: Option<PathBuf>,
    /// Where regions of new tables on persistent memory lie: a folder on it or on tmpfs, which may
    /// be shared by stores; also where those were moved to that are not where they were made.
    pub pmem_directory: Option<PathBuf>,
    /// Which back end reads and writes row pages.
    pub io: IoChoice,
    /// Read neighbouring pages in one request where the device's curve says that it is cheaper.
    pub merge_reads: bool,
    /// Who leaves the DRAM tier first.
    pub policy: PolicyKind,
    /// Most bytes of the budget that the look-ahead window takes, up to a half of it; an eighth
    /// where a cache holds few batches. `None` takes a quarter, or a third of the caches' bytes.
    pub window_bytes: Option<u64>,
    /// Most batches whose rows the look-ahead window reads together, at least 1.
    pub window_group: usize,
    /// Which partition of an lsm is merged next.
    pub merge_picker: MergePicker,
    /// When steps of merges and units of cleaning run.
    pub upkeep_scheduler: UpkeepScheduler,
    /// The share of all rows that the top of an lsm has before merges are due, 0.01 to 0.5.
    pub top_share: f64,
    /// Whether merges of an lsm write filters of growing tables, which take 0.6 to 0.9 bytes of
    /// memory per row: a key that was never written then hardly ever costs a page read.
    pub filters: bool,
    /// How many commits stay, at least 1.
    pub keep: usize,
    /// Seed of initial rows; fixed when the store is created.
    pub seed: u64,
    /// Create the store when there is none.
    pub create: bool,
    /// Go back to the commit of this step; `None` opens the last one.
    pub step: Option<u64>,
    /// Go back to the commit that is pinned under this name.
    pub pin: Option<String>,
    /// Refuse every change and take no writer lock; sees the last commit.
    pub read_only: bool,
    /// Refuse a table whose rows, all written, would not fit on the disk.
    pub check_disk: bool,
}

impl StoreOptions {
    /// The defaults, with this memory budget.
    pub fn new(memory: Memory) -> Self {
        Self {
            memory,
            memory_unit: MemoryUnit::Bytes,
            max_disk_bytes: None,
            max_held_bytes: None,
            page_bytes: None,
            segment_bytes: None,
            cold_directory: None,
            pmem_directory: None,
            io: IoChoice::Auto,
            merge_reads: true,
            policy: PolicyKind::Lfu,
            window_bytes: None,
            window_group: 256,
            merge_picker: MergePicker::Score,
            upkeep_scheduler: UpkeepScheduler::Off,
            top_share: TOP_SHARE,
            filters: false,
            keep: 2,
            seed: 0,
            create: true,
            step: None,
            pin: None,
            read_only: false,
            check_disk: true,
        }
    }

    /// What an lsm is told of merges.
    pub fn merging(&self) -> Merging {
        Merging { picker: self.merge_picker, top_share: self.top_share, filters: self.filters }
    }

    /// Refuses what no store works with.
    pub(crate) fn validate(&self) -> Result<()> {
        if let (Some(step), Some(pin)) = (self.step, &self.pin) {
            bail!(Misuse, "both step {step} and pin '{pin}' were given, expected one of them");
        }
        if self.keep == 0 {
            bail!(Misuse, "keep is 0, expected at least 1 commit to keep");
        }
        // NaN lies in no range.
        if !TOP_SHARES.contains(&self.top_share) {
            let (least, most) = TOP_SHARES.into_inner();
            bail!(Misuse, "top_share is {}, expected {least} to {most}", self.top_share);
        }
        Ok(())
    }
}

/// One table's part of a batch that is announced.
#[derive(Clone, Copy, Debug)]
pub struct LookaheadBatch<'a> {
    /// The table.
    pub table: TableId,
    /// Keys that the batch will use; duplicates are allowed.
    pub keys: &'a [u64],
}

/// How rows are stored that are not in memory.
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

/// What a table is: fixed when it is created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Unique name within the store.
    pub name: String,
    /// Values per row.
    pub embedding_dim: usize,
    /// Ids are `0..num_embeddings`; `None` is a growing table of arbitrary 64-bit keys.
    pub num_embeddings: Option<u64>,
    /// How many rows a growing table is expected to reach: sizes the index and the budget. With
    /// less than a third of `num_embeddings` a new table in an lsm is stored as a growing one,
    /// whose index is then the smaller; and so is one of more ids than a dense index takes.
    pub expected_rows: Option<u64>,
    /// Type of the stored values.
    pub dtype: Dtype,
    /// How updates round to it. Without effect with float32, whose records do not have it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rounding: RoundingMode,
    /// Where its rows live when they are not in memory. Records of tables in a log do not have it.
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
        RowLayout::new(self.dtype, dim, self.optimizer.state_words(dim)).map_err(context)
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

/// What a store knows of a table.
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

/// Where a get puts values.
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
    /// What to do with values that are not finite once they are rounded to the table's dtype: NaN,
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
    /// What to do with NaN and infinite gradients.
    pub non_finite: NonFinite,
    /// The optimizer's step number (1 at the first), `None`: one more than the table's count of
    /// update batches.
    pub step: Option<u64>,
}

/// What to do with NaN and infinite input.
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

/// What an update did.
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
    /// When the commit was made, in seconds since 1970.
    pub committed: u64,
    /// When it got the name.
    pub unix_time: u64,
    /// Bytes on disk that only this commit keeps: what unpinning all its names gives back.
    pub bytes: u64,
}

/// What would be lost by closing without a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Uncommitted {
    /// Batches of put, update, modify and delete since the last commit.
    pub batches: u64,
    /// Rows they touched, counted once a batch.
    pub rows: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_spelled_in_the_unit_that_it_was_given_in() {
        let spell = |given, bytes| MemoryUnit::of(given).spell(bytes);
        assert_eq!(spell("4096", 1_046_888), "1046888");
        assert_eq!(spell("512KiB", 1_046_888), "\"1022.36KiB\"");
        assert_eq!(spell("512 kb", 1_046_888), "\"1046.89KB\"");
        assert_eq!(spell("1g", 1_046_888), "\"1022.36KiB\"");
        assert_eq!(spell("1 GB", 2_500_000_000), "\"2.5GB\"");
        assert_eq!(spell("9KiB", 1 << 31), "\"2048MiB\"");
        for bytes in (0..64).map(|bit| (1u64 << bit).saturating_add(12_345)) {
            for given in ["1k", "1MB", "1gib", "1TB"] {
                let spelled = spell(given, bytes);
                let read = spelled.trim_matches('"').parse::<Memory>().unwrap();
                let Memory::Bytes(read) = read else { panic!("{spelled}") };
                assert!(read >= bytes && read as f64 <= bytes as f64 * 1.02 + 1000.0, "{spelled}");
            }
        }
    }

    #[test]
    fn options_of_merges_are_read_by_name_and_refused_by_what_came() {
        for picker in MergePicker::ALL {
            assert_eq!(picker.name().parse::<MergePicker>().unwrap(), picker);
        }
        for scheduler in UpkeepScheduler::ALL {
            assert_eq!(scheduler.name().parse::<UpkeepScheduler>().unwrap(), scheduler);
        }
        let error = "newest".parse::<MergePicker>().unwrap_err();
        assert!(error.message().contains("\"newest\"") && error.message().contains("\"oldest\""));
        let error = "on".parse::<UpkeepScheduler>().unwrap_err();
        assert!(error.message().contains("\"on\"") && error.message().contains("\"gate\""));
        let share = |top_share| StoreOptions { top_share, ..StoreOptions::new(Memory::Bytes(1)) };
        for top_share in [0.01, 0.1, 0.5] {
            share(top_share).validate().unwrap();
        }
        for top_share in [0.0, 0.009, 0.51, -0.1, f64::NAN, f64::INFINITY] {
            let error = share(top_share).validate().unwrap_err();
            assert!(error.message().contains(&format!("top_share is {top_share}")), "{error}");
        }
    }

    #[test]
    fn memory_reads_per_cent_and_units() {
        assert_eq!("10%".parse::<Memory>().unwrap(), Memory::Percent(10.0));
        assert_eq!("2GiB".parse::<Memory>().unwrap(), Memory::Bytes(2 << 30));
        assert_eq!("1.5 MB".parse::<Memory>().unwrap(), Memory::Bytes(1_500_000));
        assert_eq!("4096".parse::<Memory>().unwrap(), Memory::Bytes(4096));
        for bad in ["", "ten", "10 parsecs", "0%", "-5%"] {
            assert!(bad.parse::<Memory>().is_err(), "{bad}");
        }
    }
}
