//! Making and reading schedules, for `embedrock.schedule` and `embedrock.ahead`.

use crate::arrays::Keys;
use crate::convert::report;
use crate::error::{Carried, OrRaise, misuse};
use crate::logs::CallEngine;
use embedrock_core as core;
use embedrock_schedule as schedule;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use schedule::{Ends, ErrorKind, Part};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Takes the keys of batches in their order and writes a schedule.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct ScheduleMaker(Mutex<Option<schedule::Maker>>);

#[pymethods]
impl ScheduleMaker {
    /// A schedule to be written to `path`, of batches that read the tables of these names.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        tables: Vec<String>,
        stretch_batches: u32,
    ) -> PyResult<Self> {
        let made = schedule::Maker::new(&path, &tables, stretch_batches);
        Ok(Self(Mutex::new(Some(mirror(made).or_raise(py)?))))
    }

    /// Takes the keys of the next batch: of each table once, in ascending order of their numbers.
    fn add(&self, py: Python<'_>, batch: Vec<(u32, Keys)>) -> PyResult<()> {
        let parts = batch.iter().map(|(table, keys)| Part { table: *table, keys: keys.as_slice() });
        let parts: Vec<_> = parts.collect();
        self.with(py, |maker| maker.add(&parts))
    }

    /// Takes many batches of one table: batch `i` has `values[offsets[i]:offsets[i + 1]]`.
    fn add_many(
        &self,
        py: Python<'_>,
        values: Keys,
        offsets: PyReadonlyArray1<'_, i64>,
    ) -> PyResult<()> {
        let offsets = offsets.as_slice()?.to_vec();
        let values = values.as_slice();
        let fits = |pair: &[i64]| pair[0] >= 0 && pair[0] <= pair[1];
        let ends = offsets.last().is_none_or(|last| *last <= values.len() as i64);
        if !offsets.windows(2).all(fits) || !ends {
            return Err(misuse(py, "offsets do not divide the values"));
        }
        self.with(py, |maker| {
            for pair in offsets.windows(2) {
                let keys = &values[pair[0] as usize..pair[1] as usize];
                maker.add(&[Part { table: 0, keys }])?;
            }
            Ok(())
        })
    }

    /// Says that what was added are its batches: those added from here on come behind them.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, schedule::Maker::end)
    }

    /// Writes the schedule, whose batches come again behind the last with `repeats`.
    /// `progress(done, total)` is told of uses. It can be called once.
    #[pyo3(signature = (repeats=false, progress=None))]
    fn finish(&self, py: Python<'_>, repeats: bool, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let ends = if repeats { Ends::Repeats } else { Ends::Here };
        let mut carried = Carried::default();
        let outcome = py.call_engine(|| {
            let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            let maker = taken.ok_or_else(finished)?;
            let total = maker.uses();
            mirror(maker.finish(ends, |share| {
                let done = (share * total as f64) as u64;
                report(&mut carried, progress.as_ref(), done, total).is_ok()
            }))
        });
        carried.resolve(py, outcome)
    }
}

impl ScheduleMaker {
    fn with(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut schedule::Maker) -> schedule::Result<()> + Send,
    ) -> PyResult<()> {
        let outcome = py.call_engine(|| {
            let mut maker = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            mirror(work(maker.as_mut().ok_or_else(finished)?))
        });
        outcome.or_raise(py)
    }
}

/// A schedule that was made.
#[pyclass(frozen, module = "embedrock._core")]
pub(crate) struct Schedule(schedule::Schedule);

#[pymethods]
impl Schedule {
    /// Opens the file of a schedule.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.call_engine(|| mirror(schedule::Schedule::open(Path::new(&path))));
        opened.or_raise(py).map(Self)
    }

    /// The names of its tables.
    fn tables(&self) -> Vec<String> {
        self.0.tables().to_vec()
    }

    /// Number of batches.
    fn batches(&self) -> u64 {
        self.0.batches()
    }

    /// Number of uses in these batches.
    fn uses(&self) -> u64 {
        self.0.uses()
    }

    /// Batches of each stretch but the last.
    fn stretch_batches(&self) -> u32 {
        self.0.stretch_batches()
    }

    /// Largest number of stretches that a next use is ahead.
    fn furthest(&self) -> u32 {
        self.0.furthest()
    }

    /// Whether its batches come again behind the last.
    fn repeats(&self) -> bool {
        self.0.repeats()
    }

    /// The next uses of the keys of a batch, for each table: stretches until then, -1 where none is
    /// known. None where the batch has other keys.
    ///
    /// Shapes: `(N,) uint64 -> (N,) int32` for each table, None for one that it does not use.
    fn next_uses<'py>(
        &self,
        py: Python<'py>,
        batch: u64,
        keys: Vec<Option<Keys>>,
    ) -> PyResult<Option<Vec<Bound<'py, PyArray1<i32>>>>> {
        let slices = slices(&keys);
        let found = py.call_engine(|| mirror(self.0.next_uses(batch, &slices))).or_raise(py)?;
        let stretches = |uses: Vec<u16>| uses.into_iter().map(|next| i32::from(next) - 1);
        let array = |uses| stretches(uses).collect::<Vec<_>>().into_pyarray(py);
        Ok(found.map(|uses| uses.into_iter().map(array).collect()))
    }

    /// The first batch from `start` on that has these keys; then those before it are looked at.
    fn find(&self, py: Python<'_>, start: u64, keys: Vec<Option<Keys>>) -> PyResult<Option<u64>> {
        let slices = slices(&keys);
        py.call_engine(|| mirror(self.0.find(start, &slices))).or_raise(py)
    }
}

fn slices(keys: &[Option<Keys>]) -> Vec<Option<&[u64]>> {
    keys.iter().map(|keys| keys.as_ref().map(Keys::as_slice)).collect()
}

fn finished() -> core::Error {
    core::Error::new(core::ErrorKind::Misuse, "the schedule was finished before")
}

/// An error of a schedule as one of the engine, whose kinds Python has classes for.
fn mirror<T>(outcome: schedule::Result<T>) -> core::Result<T> {
    outcome.map_err(|error| {
        let kind = match error.kind() {
            ErrorKind::Corrupt => core::ErrorKind::Corrupt,
            ErrorKind::Unsupported => core::ErrorKind::Unsupported,
            ErrorKind::Stopped => core::ErrorKind::Callback,
            ErrorKind::Io => core::ErrorKind::Io,
            _ => core::ErrorKind::Misuse,
        };
        match error.into_parts() {
            (message, Some(source)) if source.kind() == std::io::ErrorKind::NotFound => {
                core::Error::new(core::ErrorKind::NotFound, format!("{message}: {source}"))
            }
            (message, Some(source)) => core::Error::os(message, source),
            (message, None) => core::Error::new(kind, message),
        }
    })
}
