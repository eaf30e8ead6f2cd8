//! The stores, each behind one trait with batches from end to end, and what is known of each
//! without opening it.

mod faster;
mod lmdb;
mod mapping;
mod mmap;
mod rocksdb;
mod swap;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::settings::{Mode, Settings};
use crate::sorted::Sorted;

/// A store that is open.
pub(crate) trait Engine {
    /// Reads the row of each key into `rows`, in the order of `keys`, which are distinct. A row
    /// that the store does not have becomes NaN.
    fn get_batch(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()>;

    /// Writes the row of each key.
    fn put_batch(&mut self, keys: &[u64], rows: &[f32]) -> Result<()>;

    /// Ends a batch: what was put may become visible to others. Timed with the puts.
    fn end_batch(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends loading: everything is on the device, in the store's steady shape.
    fn finish_load(&mut self) -> Result<()> {
        Ok(())
    }

    /// The engine's own figures.
    fn figures(&self) -> Figures;

    /// Readers that go on beside the store; `None` where the engine has none.
    fn read_ahead(&self) -> Result<Option<Box<dyn ReadAhead>>> {
        Ok(None)
    }

    /// Counters since the store was opened.
    fn counts(&self) -> Result<Counts> {
        Ok(Counts::default())
    }
}

/// Reads rows on a thread of its own while the store is used.
pub(crate) trait ReadAhead: Send {
    /// Keys that are read together and have to be in order: a multiple of it begins anew.
    fn piece_keys(&self) -> usize;

    /// Reads the rows of `sorted` to where they belong in `rows`. One that is missing becomes NaN.
    fn read(&mut self, sorted: &Sorted, rows: &mut [f32]) -> Result<()>;
}

/// Operations of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Counts {
    /// Blocks that reads of rows loaded.
    pub(crate) blocks_read: u64,
    /// Bytes that memory gave to the device, and that compactions read and wrote.
    pub(crate) flushed_bytes: u64,
    pub(crate) compact_read_bytes: u64,
    pub(crate) compact_written_bytes: u64,
    /// Time in which writers were held back.
    pub(crate) stall_us: u64,
    pub(crate) merges: Merges,
    pub(crate) disk_bytes: u64,
}

/// Merges that have ended, and rows that went in and came out.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Merges {
    pub(crate) count: u64,
    pub(crate) seconds: f64,
    pub(crate) seconds_max: f64,
    pub(crate) rows_in: u64,
    pub(crate) rows_out: u64,
}

/// An engine's own figures after a run.
#[derive(Default)]
pub(crate) struct Figures {
    /// Bytes by name.
    pub(crate) memory: Map<String, Value>,
    /// Look-ups that memory answered, and those that it did not.
    pub(crate) hits: Option<(u64, u64)>,
    /// Requests to the device for reading, if they can be counted.
    pub(crate) read_requests: Option<u64>,
    pub(crate) settings: Value,
}

/// Purpose of opening a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An empty place; rows come in order of their keys and are not read.
    Load,
    Run,
}

/// An engine by its name.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) version: fn() -> String,
    /// Why it cannot run here, if so.
    pub(crate) absent: fn() -> Option<String>,
    /// The options of a mode before any is given.
    pub(crate) defaults: fn(Mode) -> Result<Value>,
    pub(crate) open: fn(&Settings, Purpose) -> Result<Box<dyn Engine>>,
    /// Rows stay when the process ends; otherwise a run has to write them before it begins.
    pub(crate) keeps_rows: bool,
    /// Files and folders that it makes in its place: what loading again replaces.
    pub(crate) makes: &'static [&'static str],
}

const KINDS: [Kind; 5] = [rocksdb::KIND, lmdb::KIND, faster::KIND, mmap::KIND, swap::KIND];

/// The engine of this name.
pub(crate) fn find(name: &str) -> Result<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        Error::new(format!("no engine {name:?}, expected one of: {}", names.join(", ")))
    })
}

/// All engines: version, whether they can run here, and what they are tuned to.
pub(crate) fn list() -> Result<Value> {
    let mut all = Map::new();
    for kind in &KINDS {
        let reason = (kind.absent)();
        let settings = json!({
            "train": (kind.defaults)(Mode::Train)?,
            "read": (kind.defaults)(Mode::Read)?,
        });
        all.insert(
            kind.name.into(),
            json!({
                "version": (kind.version)(),
                "available": reason.is_none(),
                "reason": reason,
                "settings": settings,
            }),
        );
    }
    Ok(Value::Object(all))
}
