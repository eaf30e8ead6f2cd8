//! The request of the parent: one JSON object on the first line of standard input.
//!
//! Options of an engine are laid over its defaults for the mode, so that a report always holds the
//! complete settings of a run; an option that the engine does not have is an error, never ignored.

use std::ops::Range;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Doing, Error, Result};

/// The settings of one run. Settings for other programs may be beside these.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Settings {
    pub(crate) engine: String,
    pub(crate) mode: Mode,
    /// float32 values of a row.
    pub(crate) dim: usize,
    pub(crate) rows: u64,
    pub(crate) place: PathBuf,
    /// All memory that the engine may take beyond what the process has when it says `ready`.
    pub(crate) memory_bytes: u64,
    #[serde(default)]
    pub(crate) trace: Option<TraceFiles>,
    /// Largest number of batches; 0 is all of the trace.
    #[serde(default)]
    pub(crate) batches: usize,
    #[serde(default)]
    pub(crate) seconds_max: Option<f64>,
    /// Settings of mode `window`.
    #[serde(default)]
    pub(crate) window: Option<Window>,
    #[serde(default)]
    pub(crate) options: Map<String, Value>,
}

/// Settings of reading rows ahead in mode `window`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Window {
    /// Batches whose rows are read together.
    pub(crate) batches: usize,
    /// Computing of each batch, between reading and writing its rows.
    pub(crate) compute_ns: u64,
    /// Rows are read in the order of their keys; else in that of the batches that use them first.
    #[serde(default = "sorted_usually")]
    pub(crate) sorted: bool,
}

fn sorted_usually() -> bool {
    true
}

/// The files of the trace.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceFiles {
    pub(crate) values: PathBuf,
    pub(crate) offsets: PathBuf,
}

/// The operation on the keys of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    Train,
    /// As `train`, with the rows of whole windows of batches read ahead.
    Window,
    Update,
    Read,
    YcsbA,
    YcsbB,
    YcsbC,
    YcsbF,
}

/// Origin of the rows that a batch writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Rows as they were read, each value plus one step.
    Step,
    /// Rows as they were read after one step of row-wise Adagrad.
    Adagrad,
    /// Rows that were not read: the value after one more step, known beforehand.
    Blind,
}

/// The keys of a batch that are read, and those that are written afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) gets: Range<usize>,
    pub(crate) puts: Range<usize>,
    pub(crate) change: Change,
}

impl Mode {
    /// The operation on a batch of `count` keys. The parts of YCSB are rounded down: of 7 keys
    /// workload A reads 3 and writes 4.
    pub(crate) fn plan(self, count: usize) -> Plan {
        let half = count / 2;
        let most = count * 95 / 100;
        let (gets, puts, change) = match self {
            Self::Train | Self::Window => (0..count, 0..count, Change::Step),
            Self::Update => (0..count, 0..count, Change::Adagrad),
            Self::Read | Self::YcsbC => (0..count, 0..0, Change::Step),
            Self::YcsbA => (0..half, half..count, Change::Blind),
            Self::YcsbB => (0..most, most..count, Change::Blind),
            Self::YcsbF => (0..count, half..count, Change::Step),
        };
        Plan { gets, puts, change }
    }

    /// Whether rows are written that the batch did not read before.
    pub(crate) fn writes_blindly(self) -> bool {
        self.plan(0).change == Change::Blind
    }

    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::YcsbC)
    }
}

impl Settings {
    /// Reads and checks the settings of `line`.
    pub(crate) fn parse(line: &str) -> Result<Self> {
        let settings: Self =
            serde_json::from_str(line).doing(|| "settings on the first line".into())?;
        if settings.dim == 0 || settings.rows == 0 {
            let (dim, rows) = (settings.dim, settings.rows);
            return Err(settings.wrong(format!("{rows} rows of dim {dim}, expected at least 1")));
        }
        // Positions within a batch and versions of a row are kept in 32 bits.
        if settings.rows > u64::from(u32::MAX) {
            return Err(settings.wrong(format!("{} rows, expected below 2^32", settings.rows)));
        }
        if let (Mode::Window, Some(0) | None) = (settings.mode, settings.window.map(|w| w.batches))
        {
            return Err(settings.wrong("mode window without `window`, or one of 0 batches".into()));
        }
        if settings.seconds_max.is_some_and(|seconds| seconds.is_nan() || seconds <= 0.0) {
            return Err(settings.wrong("seconds_max is not above 0".into()));
        }
        Ok(settings)
    }

    /// float32 words of a stored row: its values, and in mode `update` one word of state.
    pub(crate) fn row_words(&self) -> usize {
        self.dim + usize::from(self.mode == Mode::Update)
    }

    pub(crate) fn row_bytes(&self) -> usize {
        4 * self.row_words()
    }

    /// Bytes of all rows, without anything that a store keeps beside them.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.rows * self.row_bytes() as u64
    }

    /// An error in the name of the engine.
    pub(crate) fn wrong(&self, what: String) -> Error {
        Error::new(format!("{}: {what}", self.engine))
    }

    /// The engine's options: `defaults` with what was given laid over them.
    pub(crate) fn options<T: Serialize + DeserializeOwned>(&self, defaults: T) -> Result<T> {
        let mut all =
            serde_json::to_value(defaults).doing(|| format!("{}: default options", self.engine))?;
        let Some(known) = all.as_object_mut() else {
            return Err(self.wrong("its options are not an object".into()));
        };
        for (name, value) in &self.options {
            let Some(place) = known.get_mut(name) else {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                let names = names.join(", ");
                return Err(self.wrong(format!("no option {name:?}, expected one of: {names}")));
            };
            *place = value.clone();
        }
        serde_json::from_value(all).doing(|| format!("{}: options", self.engine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(extra: &str) -> Result<Settings> {
        Settings::parse(&format!(
            r#"{{"engine": "mmap", "mode": "train", "dim": 4, "rows": 8, "place": "x",
                "memory_bytes": 1{extra}}}"#
        ))
    }

    #[test]
    fn parts_of_a_batch_are_rounded_down() {
        let plan = Mode::YcsbA.plan(7);
        assert_eq!((plan.gets, plan.puts, plan.change), (0..3, 3..7, Change::Blind));
        assert_eq!(Mode::YcsbB.plan(39).gets, 0..37);
        assert_eq!(Mode::YcsbF.plan(5).gets, 0..5);
        assert_eq!(Mode::YcsbF.plan(5).puts, 2..5);
        assert!(Mode::YcsbC.plan(5).puts.is_empty());
    }

    #[test]
    fn modes_have_the_names_of_the_protocol() {
        let mode: Mode = serde_json::from_str("\"ycsb-a\"").unwrap();
        assert_eq!(mode, Mode::YcsbA);
    }

    #[test]
    fn update_stores_one_word_of_state() {
        let mut settings = settings("").unwrap();
        assert_eq!(settings.row_words(), 4);
        settings.mode = Mode::Update;
        assert_eq!(settings.row_words(), 5);
    }

    #[test]
    fn an_option_that_does_not_exist_is_an_error_that_names_those_that_do() {
        let settings = settings(r#", "options": {"tread": 2}"#).unwrap();
        let error = settings.options(serde_json::json!({"threads": 1})).unwrap_err().to_string();
        assert!(error.contains("mmap") && error.contains("tread") && error.contains("threads"));
    }

    #[test]
    fn settings_without_rows_are_refused() {
        assert!(Settings::parse("{}").is_err());
        assert!(settings(r#", "seconds_max": 0"#).is_err());
    }

    #[test]
    fn mode_window_needs_batches_of_its_window() {
        let parse = |window: &str| {
            Settings::parse(&format!(
                r#"{{"engine": "rocksdb", "mode": "window", "dim": 4, "rows": 8, "place": "x",
                    "memory_bytes": 1{window}}}"#
            ))
        };
        assert!(parse("").is_err());
        assert!(parse(r#", "window": {"batches": 0, "compute_ns": 0}"#).is_err());
        let window = parse(r#", "window": {"batches": 3, "compute_ns": 5}"#).unwrap().window;
        assert_eq!(window.map(|one| (one.batches, one.compute_ns)), Some((3, 5)));
    }
}
