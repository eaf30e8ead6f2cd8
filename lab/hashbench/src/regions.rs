//! Regions of rows in files: made, opened again, and left by a process that is killed.

use crate::keys::scatter;
use embedrock_pmem::{Geometry, Rows};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Rows of a call while a region is made: few calls have fewer fences, which wait for the disk.
const MAKE_ROWS: u64 = 65_536;

/// Work on a region that is opened.
pub(crate) struct Opening {
    /// Rows that [`make`] has put.
    pub(crate) rows: u64,
    /// Keys of a request.
    pub(crate) keys: u64,
    pub(crate) seed: u64,
    /// Whether new keys are put, too, and removed again.
    pub(crate) put: bool,
    /// Requests that [`push`] has acknowledged: their keys follow those of `make`.
    pub(crate) pushes: u64,
}

/// The row of a number: its key, over and over, as far as the row goes.
fn row_of(number: u64, row: &mut [u8]) {
    let word = scatter(number ^ 1 << 63).to_le_bytes();
    row.chunks_mut(word.len()).for_each(|part| part.copy_from_slice(&word[..part.len()]));
}

fn rows_of(numbers: impl Iterator<Item = u64>, row_bytes: usize) -> (Vec<u64>, Vec<u8>) {
    let numbers: Vec<u64> = numbers.collect();
    let mut bytes = vec![0; numbers.len() * row_bytes];
    for (number, row) in numbers.iter().zip(bytes.chunks_exact_mut(row_bytes)) {
        row_of(*number, row);
    }
    (numbers.into_iter().map(scatter).collect(), bytes)
}

/// Makes a region with the rows of the first numbers.
pub(crate) fn make(
    file: &Path,
    count: u64,
    capacity: u64,
    row_bytes: usize,
) -> Result<Value, String> {
    let began = Instant::now();
    let geometry = Geometry::new(capacity, row_bytes).map_err(|error| error.to_string())?;
    let rows = Rows::create(file, geometry).map_err(|error| error.to_string())?;
    let mut first = 0;
    while first < count {
        let end = (first + MAKE_ROWS).min(count);
        let (keys, bytes) = rows_of(first..end, row_bytes);
        rows.put(&keys, &bytes).map_err(|error| error.to_string())?;
        first = end;
    }
    let seconds = began.elapsed().as_secs_f64();
    let durability = rows.durability().to_string();
    Ok(json!({ "seconds": seconds, "bytes": geometry.bytes(), "durability": durability }))
}

/// Opens a region and reads uniform rows, against the clock; then puts rows of new keys, also
/// timed. Rows are compared outside of both times.
pub(crate) fn open(file: &Path, of: &Opening) -> Result<Value, String> {
    let numbers: Vec<u64> = (0..of.keys).map(|i| scatter(i ^ of.seed << 40) % of.rows).collect();
    let keys: Vec<u64> = numbers.iter().map(|number| scatter(*number)).collect();
    let began = Instant::now();
    let rows = Rows::open(file).map_err(|error| error.to_string())?;
    let open_ms = began.elapsed().as_secs_f64() * 1e3;
    let row_bytes = rows.geometry().row_bytes;
    let mut bytes = vec![0; keys.len() * row_bytes];
    let mut found = vec![false; keys.len()];
    rows.get(&keys, &mut bytes, &mut found).map_err(|error| error.to_string())?;
    let first_pull_ms = began.elapsed().as_secs_f64() * 1e3;
    let mut mismatches = wrong(&numbers, &bytes, &found);
    // From the device, before anything else is read: a file that was in memory shows here.
    let pages_read = bytes_read() / 4096;
    let mut answer =
        json!({ "open_ms": open_ms, "first_pull_ms": first_pull_ms, "pages_read": pages_read });
    let mut verified = keys.len() as u64;
    for push in 0..of.pushes {
        let numbers: Vec<u64> = pushed(of.rows, of.keys, push).collect();
        let keys: Vec<u64> = numbers.iter().map(|number| scatter(*number)).collect();
        rows.get(&keys, &mut bytes, &mut found).map_err(|error| error.to_string())?;
        mismatches += wrong(&numbers, &bytes, &found);
        verified += of.keys;
    }
    if of.put {
        // Nobody has put these: the largest numbers.
        let (keys, bytes) = rows_of(u64::MAX - of.keys..u64::MAX, row_bytes);
        let began = Instant::now();
        rows.put(&keys, &bytes).map_err(|error| error.to_string())?;
        answer["first_put_ms"] = (began.elapsed().as_secs_f64() * 1e3).into();
        answer["slots_looked_up"] = rows.slab_use().known.into();
        rows.remove(&keys).map_err(|error| error.to_string())?;
    }
    answer["rows_verified"] = verified.into();
    answer["mismatches"] = mismatches.into();
    Ok(answer)
}

/// Bytes that this process has had read from a device; 0 where the kernel does not count them.
fn bytes_read() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
    count.unwrap_or(0)
}

fn wrong(numbers: &[u64], bytes: &[u8], found: &[bool]) -> u64 {
    let row_bytes = bytes.len() / numbers.len().max(1);
    let mut expected = vec![0; row_bytes];
    let mut mismatches = 0;
    for ((number, found), row) in numbers.iter().zip(found).zip(bytes.chunks_exact(row_bytes)) {
        row_of(*number, &mut expected);
        mismatches += u64::from(!found || row != expected);
    }
    mismatches
}

/// The numbers of a request that is pushed.
fn pushed(rows: u64, keys: u64, push: u64) -> impl Iterator<Item = u64> {
    let first = rows + push * keys;
    first..first + keys
}

/// Puts requests of new keys, and prints how many there are after each.
pub(crate) fn push(file: &Path, count: u64, keys: u64) -> Result<Value, String> {
    let rows = Rows::open(file).map_err(|error| error.to_string())?;
    let row_bytes = rows.geometry().row_bytes;
    for push in 0.. {
        let (keys, bytes) = rows_of(pushed(count, keys, push), row_bytes);
        rows.put(&keys, &bytes).map_err(|error| error.to_string())?;
        let mut output = std::io::stdout().lock();
        writeln!(output, "{}", json!({ "acknowledged": push + 1 }))
            .and_then(|()| output.flush())
            .map_err(|error| error.to_string())?;
    }
    unreachable!("a region that is full ends the loop before")
}
