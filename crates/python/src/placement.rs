//! Placements for `embedrock.placement`: rows of keys, their pages, replica pages, what they cost.
//!
//! A trace comes as flat arrays: the rows of all queries, one query after another, and where each
//! begins. Everything is computed detached, and looks for signals some ten times a second.

use crate::convert::report;
use crate::error::{Carried, OrRaise, misuse};
use crate::logs::CallEngine;
use embedrock_core as core;
use embedrock_placement as placement;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use placement::cover::Method;
use placement::evaluate::{EvaluateOptions, evaluate, evaluate_after};
use placement::keys::{Numbered, TableKeys, number};
use placement::partition::{Next, PartitionOptions, memory_at_most, partition};
use placement::replicas::{
    ReplicaOptions, before_partition, connectivity, fill_finer, frequency, memory_needed,
    memory_of_partitions, other_partitions, random, residual,
};
use placement::trace::Trace;
use placement::{ErrorKind, Pages, Placement, baselines};
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// Progress is told, and signals are looked for, so often.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Queries that are counted between two looks for signals.
const QUERIES_PER_LOOK: usize = 1 << 18;
/// Bytes of a pin and of a query in a trace.
const TRACE_BYTES: [u64; 2] = [4, 8];

type Array<'py, T> = Bound<'py, PyArray1<T>>;
type ReadArray<'py, T> = PyReadonlyArray1<'py, T>;

/// Numbers the distinct keys of tables by table and key.
///
/// Shapes: each table `(values (K,) uint64, offsets (Q + 1,) int64)` -> `(table (N,) uint16, key
/// (N,) uint64, rows (P,) uint32, offsets (Q + 1,) int64)`, of each row, and of the queries.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "arrays, named in the documentation")]
pub(crate) fn number_rows<'py>(
    py: Python<'py>,
    tables: Vec<(ReadArray<'py, u64>, ReadArray<'py, i64>)>,
) -> PyResult<(Array<'py, u16>, Array<'py, u64>, Array<'py, u32>, Array<'py, i64>)> {
    let slices = tables
        .iter()
        .map(|(values, offsets)| Ok::<_, PyErr>((values.as_slice()?, offsets.as_slice()?)));
    let slices = slices.collect::<PyResult<Vec<_>>>()?;
    let outcome = py.call_engine(|| {
        let offsets = slices.iter().map(|(_, offsets)| places(offsets));
        let offsets = offsets.collect::<core::Result<Vec<_>>>()?;
        let tables = slices.iter().zip(&offsets);
        let tables = tables.map(|((values, _), offsets)| TableKeys { values, offsets });
        mirror(number(&tables.collect::<Vec<_>>()))
    });
    let Numbered { tables, keys, values, offsets } = outcome.or_raise(py)?;
    let offsets = signed(offsets);
    Ok((
        tables.into_pyarray(py),
        keys.into_pyarray(py),
        values.into_pyarray(py),
        offsets.into_pyarray(py),
    ))
}

/// All rows in the order of their home pages.
///
/// `method` is partition, shp (that of MaxEmbed), identity, random or frequency.
/// `progress(done, total)` is called at most ten times a second; what it raises ends the call. The
/// same for a seed, whatever the threads.
///
/// Shapes: `rows (P,) uint32, offsets (Q + 1,) int64 -> (num_rows,) uint32`.
#[pyfunction]
#[pyo3(signature = (rows, offsets, num_rows, rows_per_page, method, seed=0, threads=1,
    progress=None))]
#[expect(clippy::too_many_arguments, reason = "arguments of a Python function")]
pub(crate) fn place_rows<'py>(
    py: Python<'py>,
    rows: ReadArray<'py, u32>,
    offsets: ReadArray<'py, i64>,
    num_rows: usize,
    rows_per_page: usize,
    method: &str,
    seed: u64,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Array<'py, u32>> {
    let (rows, offsets) = (rows.as_slice()?, offsets.as_slice()?);
    let mut teller = Teller::new(progress.as_ref());
    let outcome = py.call_engine(|| {
        let trace = trace(num_rows, rows, offsets)?;
        let usual = match method {
            "shp" => PartitionOptions::of_maxembed(rows_per_page),
            _ => PartitionOptions::new(rows_per_page),
        };
        let options = PartitionOptions { seed, threads, ..usual };
        let placement = match method {
            "partition" | "shp" => partition(trace.queries(), &options, |at| {
                let passes = options.passes_max;
                teller.tell(at.level * passes + at.pass + 1, at.levels.max(1) * passes)
            }),
            "identity" => baselines::identity(num_rows, rows_per_page),
            "random" => baselines::random(num_rows, rows_per_page, seed),
            "frequency" => baselines::frequency(trace.queries(), rows_per_page),
            _ => return Err(unknown(method)),
        };
        Ok(mirror(placement)?.order().to_vec())
    });
    Ok(teller.resolve(py, outcome)?.into_pyarray(py))
}

/// Replica pages behind the home pages of `order`, the best first.
///
/// `method` is residual, partitions, connectivity, random or frequency; `ratio` of the rows are
/// stored again at most. `progress` is as of `place_rows`.
///
/// Shapes: `order (N,) uint32 -> (starts (R + 1,) int64, replicas (M,) uint32)`: page `j` has the
/// rows `order[replicas[starts[j]:starts[j + 1]]]`.
#[pyfunction]
#[pyo3(signature = (rows, offsets, order, rows_per_page, method, ratio, seed=0, threads=1,
    progress=None))]
#[expect(clippy::too_many_arguments, reason = "arguments of a Python function")]
pub(crate) fn place_replicas<'py>(
    py: Python<'py>,
    rows: ReadArray<'py, u32>,
    offsets: ReadArray<'py, i64>,
    order: ReadArray<'py, u32>,
    rows_per_page: usize,
    method: &str,
    ratio: f64,
    seed: u64,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Array<'py, i64>, Array<'py, u32>)> {
    let (rows, offsets, order) = (rows.as_slice()?, offsets.as_slice()?, order.as_slice()?);
    let mut teller = Teller::new(progress.as_ref());
    let outcome = py.call_engine(|| {
        let placement = mirror(Placement::new(order.to_vec(), rows_per_page))?;
        let trace = trace(order.len(), rows, offsets)?;
        let queries = trace.queries();
        let options = ReplicaOptions { threads, ..ReplicaOptions::new(ratio) };
        let tell = |done, total| teller.tell(done, total);
        let pages = mirror(match method {
            "residual" => residual(&placement, queries, &options, tell),
            "partitions" => {
                let of_partition =
                    PartitionOptions { seed, threads, ..PartitionOptions::new(rows_per_page) };
                other_partitions(&placement, queries, &of_partition, &options, tell)
            }
            "connectivity" => connectivity(&placement, queries, &options, tell),
            "random" => random(&placement, queries, &options, seed),
            "frequency" => frequency(&placement, queries, &options),
            _ => return Err(unknown(method)),
        })?;
        let (mut starts, mut ranks) = (Vec::with_capacity(pages.len() + 1), Vec::new());
        starts.push(0);
        for page in pages {
            ranks.extend(page.iter().map(|&row| placement.rank()[row as usize]));
            starts.push(ranks.len() as i64);
        }
        Ok((starts, ranks))
    });
    let (starts, ranks) = teller.resolve(py, outcome)?;
    Ok((starts.into_pyarray(py), ranks.into_pyarray(py)))
}

/// Reads of queries: (rows that they ask for, each once a query; pages).
///
/// Pages are selected in one pass over the rows of a query, which looks at `candidates_max` pages
/// of each, or, if `greedy`, each as the best of all pages. `starts` and `replicas` are as
/// `place_replicas` returns them.
#[pyfunction]
#[pyo3(signature = (rows, offsets, order, rows_per_page, starts, replicas, candidates_max=10,
    progress=None, greedy=false))]
#[expect(clippy::too_many_arguments, reason = "arguments of a Python function")]
pub(crate) fn count_pages<'py>(
    py: Python<'py>,
    rows: ReadArray<'py, u32>,
    offsets: ReadArray<'py, i64>,
    order: ReadArray<'py, u32>,
    rows_per_page: usize,
    starts: ReadArray<'py, i64>,
    replicas: ReadArray<'py, u32>,
    candidates_max: usize,
    progress: Option<Py<PyAny>>,
    greedy: bool,
) -> PyResult<(u64, u64)> {
    let (rows, offsets, order) = (rows.as_slice()?, offsets.as_slice()?, order.as_slice()?);
    let (starts, replicas) = (starts.as_slice()?, replicas.as_slice()?);
    let mut teller = Teller::new(progress.as_ref());
    let outcome = py.call_engine(|| {
        let placement = mirror(Placement::new(order.to_vec(), rows_per_page))?;
        let trace = trace(order.len(), rows, offsets)?;
        let starts = places(starts)?;
        let page = |pair: &[usize]| {
            let ranks = replicas.get(pair[0]..pair[1])?;
            ranks.iter().map(|&rank| order.get(rank as usize).copied()).collect()
        };
        let pages = starts.windows(2).map(page).collect::<Option<Vec<Vec<u32>>>>();
        let pages = pages.ok_or_else(|| misused("a replica page has a place beyond the arrays"))?;
        let pages = mirror(Pages::with_replicas(&placement, &pages))?;
        let method = match greedy {
            true => Method::Greedy,
            false => Method::OnePass { candidates_max },
        };
        let options = EvaluateOptions { method, ..EvaluateOptions::default() };
        let (queries, mut found) = (trace.queries(), (0, 0));
        for first in (0..queries.len()).step_by(QUERIES_PER_LOOK) {
            if teller.tell(first, queries.len()) == Next::Abandon {
                return Err(core::Error::new(core::ErrorKind::Callback, "stopped"));
            }
            let last = (first + QUERIES_PER_LOOK).min(queries.len());
            let part = mirror(evaluate(&pages, queries.range(first..last), &options))?;
            found = (found.0 + part.rows, found.1 + part.pages);
        }
        Ok(found)
    });
    teller.resolve(py, outcome)
}

/// All pages of the MaxEmbed paper's strawmen, in which `ratio` of the rows are stored again.
///
/// `method` is rpp (replicas before the partition) or fpr (finer partition, filled up). Their pages
/// have no order of rows in full pages, so they are no plan. `progress` is as of `place_rows`.
///
/// Shapes: `(starts (pages + 1,) int64, rows (M,) uint32)`: page `j` has the rows
/// `rows[starts[j]:starts[j + 1]]`.
#[pyfunction]
#[pyo3(signature = (rows, offsets, num_rows, rows_per_page, method, ratio, seed=0, threads=1,
    progress=None))]
#[expect(clippy::too_many_arguments, reason = "arguments of a Python function")]
pub(crate) fn place_strawman<'py>(
    py: Python<'py>,
    rows: ReadArray<'py, u32>,
    offsets: ReadArray<'py, i64>,
    num_rows: usize,
    rows_per_page: usize,
    method: &str,
    ratio: f64,
    seed: u64,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Array<'py, i64>, Array<'py, u32>)> {
    let (rows, offsets) = (rows.as_slice()?, offsets.as_slice()?);
    let mut teller = Teller::new(progress.as_ref());
    let outcome = py.call_engine(|| {
        let trace = trace(num_rows, rows, offsets)?;
        let queries = trace.queries();
        let usual = PartitionOptions { seed, threads, ..PartitionOptions::new(rows_per_page) };
        let options = ReplicaOptions { threads, ..ReplicaOptions::new(ratio) };
        let tell = |at: &placement::partition::Progress| {
            let passes = usual.passes_max;
            teller.tell(at.level * passes + at.pass + 1, at.levels.max(1) * passes)
        };
        let pages = mirror(match method {
            "rpp" => before_partition(queries, &usual, &options, tell),
            "fpr" => fill_finer(queries, &usual, &options, tell),
            _ => return Err(unknown(method)),
        })?;
        let (mut starts, mut all) = (Vec::with_capacity(pages.num_pages() + 1), Vec::new());
        starts.push(0);
        for page in 0..pages.num_pages() as u32 {
            all.extend_from_slice(pages.rows_of(page));
            starts.push(all.len() as i64);
        }
        Ok((starts, all))
    });
    let (starts, all) = teller.resolve(py, outcome)?;
    Ok((starts.into_pyarray(py), all.into_pyarray(py)))
}

/// The reads of queries served from any pages, by the exact LRU cache of `placement::evaluate`.
///
/// Queries before `first` fill the cache and do not count. `queries_per_batch` of them are served
/// together. `candidates_max` pages of each row are looked at in one pass; 0 takes the greedy cover
/// over all.
///
/// Shapes: page `j` has the rows `page_rows[starts[j]:starts[j + 1]]`, each row being in one at
/// least. Returns (batches, rows, hits, pages, served (n,) uint64: how many pages served so many
/// rows).
#[pyfunction]
#[pyo3(signature = (rows, offsets, num_rows, rows_per_page, starts, page_rows, first=0,
    cache_rows=0, queries_per_batch=1, candidates_max=10))]
#[expect(clippy::too_many_arguments, reason = "arguments of a Python function")]
pub(crate) fn serve_pages<'py>(
    py: Python<'py>,
    rows: ReadArray<'py, u32>,
    offsets: ReadArray<'py, i64>,
    num_rows: usize,
    rows_per_page: usize,
    starts: ReadArray<'py, i64>,
    page_rows: ReadArray<'py, u32>,
    first: usize,
    cache_rows: usize,
    queries_per_batch: usize,
    candidates_max: usize,
) -> PyResult<(u64, u64, u64, u64, Array<'py, u64>)> {
    let (rows, offsets) = (rows.as_slice()?, offsets.as_slice()?);
    let (starts, page_rows) = (starts.as_slice()?, page_rows.as_slice()?);
    let outcome = py.call_engine(|| {
        let trace = trace(num_rows, rows, offsets)?;
        let queries = trace.queries();
        if first > queries.len() {
            return Err(misused(format!(
                "first is {first}, expected at most {}, the number of queries",
                queries.len()
            )));
        }
        let starts = places(starts)?;
        let page = |pair: &[usize]| page_rows.get(pair[0]..pair[1]).map(<[u32]>::to_vec);
        let pages = starts.windows(2).map(page).collect::<Option<Vec<_>>>();
        let pages = pages.ok_or_else(|| misused("a page has a place beyond the arrays"))?;
        let pages = mirror(Pages::new(num_rows, rows_per_page, &pages))?;
        let method = match candidates_max {
            0 => Method::Greedy,
            _ => Method::OnePass { candidates_max },
        };
        let options = EvaluateOptions { cache_rows, method, queries_per_batch };
        let (before, counted) = (queries.range(0..first), queries.range(first..queries.len()));
        mirror(evaluate_after(&pages, before, counted, &options))
    });
    let found = outcome.or_raise(py)?;
    Ok((found.batches, found.rows, found.hits, found.pages, found.served.into_pyarray(py)))
}

/// The most bytes that `place_rows` and `place_replicas` have allocated at a time, the copy of
/// their arrays among them, for queries of which `longest` is the most rows that one asks for.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "arguments of a Python function")]
pub(crate) fn placement_memory(
    py: Python<'_>,
    num_rows: u64,
    queries: u64,
    pins: u64,
    longest: u64,
    rows_per_page: usize,
    method: &str,
    replicas: &str,
    ratio: f64,
    threads: usize,
) -> PyResult<u64> {
    if rows_per_page == 0 {
        return Err(misuse(py, "rows_per_page is 0, expected at least 1"));
    }
    let options = PartitionOptions { threads, ..PartitionOptions::new(rows_per_page) };
    let partitioning = memory_at_most(num_rows, pins, longest, &options);
    let placing = match method {
        "partition" | "shp" => partitioning,
        // An order, and how often rows are asked for.
        _ => num_rows * 8,
    };
    let options = ReplicaOptions { threads, ..ReplicaOptions::new(ratio) };
    let repeating = match ratio > 0.0 {
        true => memory_needed(num_rows, queries, pins, rows_per_page as u64, &options),
        false => 0,
    };
    let repeating = match replicas {
        "partitions" if ratio > 0.0 => {
            let beside = memory_of_partitions(num_rows, rows_per_page as u64);
            repeating.max(partitioning) + beside
        }
        _ => repeating,
    };
    // The trace, marks of its rows while they are checked, an order and its ranks, the result.
    let held = pins * TRACE_BYTES[0] + (queries + 1) * TRACE_BYTES[1] + num_rows * (4 + 8 + 4);
    Ok(held + placing.max(repeating))
}

/// Tells progress, and lets Ctrl-C through, now and then.
struct Teller<'a> {
    progress: Option<&'a Py<PyAny>>,
    carried: Carried,
    told: Instant,
}

impl<'a> Teller<'a> {
    fn new(progress: Option<&'a Py<PyAny>>) -> Self {
        Self { progress, carried: Carried::default(), told: Instant::now() }
    }

    fn tell(&mut self, done: usize, total: usize) -> Next {
        if self.told.elapsed() < TELL_EVERY {
            return Next::Continue;
        }
        self.told = Instant::now();
        match report(&mut self.carried, self.progress, done as u64, total as u64) {
            Ok(()) => Next::Continue,
            Err(_) => Next::Abandon,
        }
    }

    fn resolve<T>(self, py: Python<'_>, outcome: core::Result<T>) -> PyResult<T> {
        self.carried.resolve(py, outcome)
    }
}

fn trace(num_rows: usize, rows: &[u32], offsets: &[i64]) -> core::Result<Trace> {
    mirror(Trace::new(num_rows, rows.to_vec(), places(offsets)?))
}

/// Places in an array, which are not below 0.
fn places(offsets: &[i64]) -> core::Result<Vec<usize>> {
    let place = |&offset: &i64| {
        usize::try_from(offset)
            .map_err(|_| misused(format!("an offset is {offset}, expected 0 or more")))
    };
    offsets.iter().map(place).collect()
}

fn signed(places: Vec<usize>) -> Vec<i64> {
    places.into_iter().map(|place| place as i64).collect()
}

fn unknown(method: &str) -> core::Error {
    misused(format!("there is no method {method:?}"))
}

fn misused(message: impl Into<String>) -> core::Error {
    core::Error::new(core::ErrorKind::Misuse, message)
}

/// An error of the placement as one of the engine, whose kinds Python has classes for.
fn mirror<T>(outcome: placement::Result<T>) -> core::Result<T> {
    outcome.map_err(|error| {
        let kind = match error.kind() {
            ErrorKind::Memory => core::ErrorKind::Budget,
            ErrorKind::Stopped => core::ErrorKind::Callback,
            _ => core::ErrorKind::Misuse,
        };
        core::Error::new(kind, error.to_string())
    })
}
