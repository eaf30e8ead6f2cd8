//! The options with which a store is opened.

use crate::error::{Error, Result, bail};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

/// The memory budget: cache, index, buffers and staging together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// A number of bytes.
    Bytes(u64),
    /// Per cent of the bytes of all rows (values and state): `num_embeddings`, or `expected_rows`
    /// of growing tables and of those whose index is packed, times row bytes, summed over tables.
    /// If that is less than the least budget that works, that budget.
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
    type Err = Error;

    /// Reads an [`Amount`]; of bytes the fraction is left out.
    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.parse()? {
            Amount::Bytes(bytes) => Self::Bytes(bytes as u64),
            Amount::Percent(percent) => Self::Percent(percent),
        })
    }
}

/// An amount of memory or disk as a text names it, before anyone asks whether that is enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, from 0 on; infinitely many where the text has too many digits.
    Bytes(f64),
    /// Per cent of something, more than 0.
    Percent(f64),
}

impl FromStr for Amount {
    type Err = Error;

    /// Reads `"10%"`, `"2GiB"`, `"2G"`, `"512MB"` or a plain number of bytes.
    fn from_str(text: &str) -> Result<Self> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let (number, unit) = trimmed.split_at(split.unwrap_or(trimmed.len()));
        let Ok(number) = number.parse::<f64>() else {
            bail!(Misuse, "memory is {text:?}, expected bytes, \"10%\", \"512MB\" or \"2GiB\"");
        };
        match (unit.trim(), MemoryUnit::of(unit)) {
            ("%", _) if number <= 0.0 => {
                bail!(Misuse, "memory is {text:?}, expected more than 0%");
            }
            ("%", _) => Ok(Self::Percent(number)),
            ("" | "b" | "B", _) => Ok(Self::Bytes(number)),
            (_, MemoryUnit::Named(unit)) => Ok(Self::Bytes(number * UNITS[unit].1)),
            (unit, MemoryUnit::Bytes) => bail!(
                Misuse,
                "memory is {text:?}: unit {:?} is none of %, KB, MB, GB, KiB, MiB, GiB",
                unit.to_ascii_lowercase()
            ),
        }
    }
}

/// The back end that the user wants.
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

/// The replacement policy of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The least recently used row leaves: `cache::Lru`.
    Lru,
    /// The least frequently used row leaves, counts fade: `cache::Lfu`.
    #[default]
    Lfu,
}

/// The choice of the partition of an lsm that is merged next.
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

/// The least size of changes and commits in a journal file when it is replaced.
pub const JOURNAL_BYTES_MIN: u64 = 128 << 10;

/// The share of all rows that the top of an lsm has before merges are due, unless options say.
pub const TOP_SHARE: f64 = 0.1;
/// The allowed values of the option.
const TOP_SHARES: RangeInclusive<f64> = 0.01..=0.5;

/// A store's settings of merges for an lsm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merging {
    /// The choice of the partition that is merged next.
    pub picker: MergePicker,
    /// The share of all rows that the top has before merges are due.
    pub top_share: f64,
    /// Whether what merges write has filters.
    pub filters: bool,
}

impl Default for Merging {
    fn default() -> Self {
        Self { picker: MergePicker::default(), top_share: TOP_SHARE, filters: false }
    }
}

/// The options with which a store is opened.
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
    /// 16 pages to 4 MiB; `None` takes 1/512 (1/64 of other storages than logs, without a disk
    /// bound) of what the first table of the class will hold, at least 256 KiB where
    /// `max_disk_bytes` leaves room for that.
    pub segment_bytes: Option<u64>,
    /// The directory for partitions of lsm tables, apart from the store. The store remembers it;
    /// name it again only if the directory was moved.
    pub cold_directory: Option<PathBuf>,
    /// Folder of the regions of new tables on persistent memory, on that memory or on tmpfs; stores
    /// may share it. Regions that were moved away from their first folder are looked for there,
    /// too.
    pub pmem_directory: Option<PathBuf>,
    /// The back end that reads and writes row pages.
    pub io: IoChoice,
    /// Read neighbouring pages in one request where the device's curve says that it is cheaper.
    pub merge_reads: bool,
    /// The policy that chooses which row leaves the DRAM tier first.
    pub policy: PolicyKind,
    /// Most bytes of the budget that the look-ahead window takes, up to a half of it; an eighth
    /// where a cache holds few batches. `None` takes a quarter, or a third of the caches' bytes.
    pub window_bytes: Option<u64>,
    /// Most batches whose rows the look-ahead window reads together, at least 1.
    pub window_group: usize,
    /// The choice of the partition of an lsm that is merged next.
    pub merge_picker: MergePicker,
    /// When steps of merges and units of cleaning run.
    pub upkeep_scheduler: UpkeepScheduler,
    /// The share of all rows that the top of an lsm has before merges are due, 0.01 to 0.5. Commits
    /// store it; `None` takes what the commit has that is opened, and 0.1 without one.
    pub top_share: Option<f64>,
    /// Whether merges of an lsm write filters, which take 0.6 to 0.9 bytes of memory per row of a
    /// growing table and up to 0.4 per id of a dense one: a key that was never written then hardly
    /// ever costs a page read.
    pub filters: bool,
    /// A journal file is replaced once the changes and commits in it are as long as the indexes, at
    /// least this.
    pub journal_bytes_min: u64,
    /// Number of commits that stay, at least 1.
    pub keep: usize,
    /// Seed of initial rows; fixed when the store is created.
    pub seed: u64,
    /// Create the store when there is none.
    pub create: bool,
    /// Go back to the commit of this step; `None` opens the last one.
    pub step: Option<u64>,
    /// Go back to the commit that is pinned under this name.
    pub pin: Option<String>,
    /// Go back although later commits are pinned: every change is refused until none is.
    pub later_pins_stay: bool,
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
            top_share: None,
            filters: false,
            journal_bytes_min: JOURNAL_BYTES_MIN,
            keep: 2,
            seed: 0,
            create: true,
            step: None,
            pin: None,
            later_pins_stay: false,
            read_only: false,
            check_disk: true,
        }
    }

    /// The settings of merges for an lsm.
    pub fn merging(&self) -> Merging {
        let top_share = self.top_share.unwrap_or(TOP_SHARE);
        Merging { picker: self.merge_picker, top_share, filters: self.filters }
    }

    /// Takes over what a commit has stored, where nothing else was asked for.
    pub(crate) fn with_stored(&self, top_share: Option<f64>) -> Self {
        Self { top_share: self.top_share.or(top_share), ..self.clone() }
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
        if let Some(share) = self.top_share.filter(|share| !TOP_SHARES.contains(share)) {
            let (least, most) = TOP_SHARES.into_inner();
            bail!(Misuse, "top_share is {share}, expected {least} to {most}");
        }
        Ok(())
    }
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
        let share =
            |share| StoreOptions { top_share: Some(share), ..StoreOptions::new(Memory::Bytes(1)) };
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
