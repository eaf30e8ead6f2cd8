//! Tables over rows that lie in files of others: tensors of a checkpoint, arrays, raw rows.
//!
//! Nothing is copied and nothing is written. A row's place follows from its number, so there is no
//! index. A batch of rows is looked up in the cache; the others are sorted by place, neighbours
//! become one request, and requests go to the device as deep as it allows ([`Attached::get`]).
//! Rows may begin anywhere and reach over blocks: requests are aligned around them.
//!
//! * `rows.rs`: which bytes of which file a row is, and the requests for many (pure)
//! * `files.rs`: the files, as they were when they were opened
//! * `reader.rs`: requests in flight, and the rows that they bring
//! * `cache.rs`: rows that stay in memory
//!
//! Memory is what the caller gives: readers first, then the cache.

mod cache;
mod files;
mod reader;
mod rows;

use cache::RowCache;
use embedrock_core::config::IoChoice;
use embedrock_core::error::{Error, ErrorKind, Result};
use files::Files;
use parking_lot::{Condvar, Mutex};
use reader::Reader;
pub use rows::Part;
use rows::Rows;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests in flight of a reader.
const DEPTH: usize = 128;
/// Bytes of the longest request, and of all buffers of a reader.
const LONGEST_BYTES: usize = 64 << 10;
const BUFFER_BYTES: usize = 1 << 20;
/// Readers, at most: so many callers read at once, others wait.
const READERS: usize = 4;

/// What may be chosen when files are attached.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of memory for readers and the cache.
    pub memory: u64,
    /// How files are read.
    pub io: IoChoice,
}

/// Counters since the files were attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rows that were asked for.
    pub rows: u64,
    /// Rows of these that were in the cache.
    pub hits: u64,
    /// Requests to the device, and their bytes.
    pub requests: u64,
    /// See `requests`.
    pub bytes_read: u64,
    /// Rows that the cache holds at most.
    pub cache_rows: u64,
    /// Bytes of memory that readers and cache take.
    pub memory_bytes: u64,
    /// Whether requests bypass the page cache.
    pub direct: bool,
}

/// Rows of files that exist, by number.
///
/// Any number of threads may read at once; four of them at a time, others wait.
pub struct Attached {
    rows: Rows,
    files: Files,
    cache: Option<RowCache>,
    idle: Mutex<Vec<Reader>>,
    returned: Condvar,
    memory_bytes: u64,
    asked: AtomicU64,
    hits: AtomicU64,
    requests: AtomicU64,
    bytes_read: AtomicU64,
}

impl Attached {
    /// Attaches rows of `row_bytes` bytes that lie in these parts, one behind the other: row 0 is
    /// the first one of the first part.
    ///
    /// *Errors*: `Misuse` for no rows, and for parts that a file does not hold; `Budget` for less
    /// memory than one reader takes, naming what works; `NotFound`; `Io`. *Blocking*: opens each
    /// file, and reads its last bytes.
    pub fn open(row_bytes: usize, parts: Vec<Part>, options: Options) -> Result<Self> {
        let rows = Rows::new(row_bytes, parts)?;
        let files = Files::open(&rows, options.io)?;
        let buffers = Reader::buffers(row_bytes, files.alignment());
        let each = Reader::memory_bytes(buffers) as u64;
        if options.memory < each {
            let message = format!(
                "memory of {} bytes is less than a reader takes; attach with at least {each}",
                options.memory
            );
            return Err(Error::new(ErrorKind::Budget, message));
        }
        // Half of a small budget is for rows.
        let readers = (options.memory / 2 / each).clamp(1, READERS as u64);
        let idle =
            (0..readers).map(|_| Reader::new(&files, buffers)).collect::<Result<Vec<_>>>()?;
        let cache = RowCache::new(row_bytes, rows.len(), options.memory - readers * each);
        let cached = cache.as_ref().map_or(0, RowCache::memory_bytes);
        Ok(Self {
            rows,
            files,
            cache,
            idle: Mutex::new(idle),
            returned: Condvar::new(),
            memory_bytes: readers * each + cached,
            asked: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
        })
    }

    /// Rows of the table.
    pub fn len(&self) -> u64 {
        self.rows.len()
    }

    /// False: a table has a row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.rows.row_bytes()
    }

    /// Copies the bytes of rows: that of `keys[i]` to `out[i * stride..]`.
    ///
    /// *Errors*: `KeyRange` for a number that no row has; `Misuse` for an `out` that is too short;
    /// `Mismatch` for a file that has changed since it was attached, `Corrupt` for one that was cut
    /// short; `Io`. After an error `out` holds anything. *Blocking*: until the rows are there.
    pub fn get(&self, keys: &[u64], out: &mut [u8], stride: usize) -> Result<()> {
        let row_bytes = self.row_bytes();
        if let Some(key) = keys.iter().find(|key| **key >= self.len()) {
            let message = format!("key {key} is not in 0 to {}", self.len() - 1);
            return Err(Error::new(ErrorKind::KeyRange, message));
        }
        let needed = match keys.len() {
            0 => return Ok(()),
            rows => (rows - 1) * stride + row_bytes,
        };
        if stride < row_bytes || out.len() < needed {
            let message = format!(
                "{} bytes with a stride of {stride} for {} rows of {row_bytes} bytes, expected a \
                 stride of {row_bytes} or more, and {needed} bytes",
                out.len(),
                keys.len()
            );
            return Err(Error::new(ErrorKind::Misuse, message));
        }
        self.files.check()?;
        self.asked.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let mut reader = self.take_reader();
        let read = self.read(&mut reader, keys, out, stride);
        self.idle.lock().push(reader);
        self.returned.notify_one();
        read
    }

    fn read(&self, reader: &mut Reader, keys: &[u64], out: &mut [u8], stride: usize) -> Result<()> {
        let row_bytes = self.row_bytes();
        reader.missing.clear();
        for (at, key) in keys.iter().enumerate() {
            let to = &mut out[at * stride..at * stride + row_bytes];
            if !self.cache.as_ref().is_some_and(|cache| cache.get(*key, to)) {
                reader.missing.push((*key, at as u32));
            }
        }
        self.hits.fetch_add((keys.len() - reader.missing.len()) as u64, Ordering::Relaxed);
        if reader.missing.is_empty() {
            return Ok(());
        }
        reader.missing.sort_unstable();
        let (requests, bytes) = reader.read(&self.rows, &self.files, &mut |key, places, row| {
            for (_, at) in places {
                let at = *at as usize * stride;
                out[at..at + row_bytes].copy_from_slice(row);
            }
            if let Some(cache) = &self.cache {
                cache.put(key, row);
            }
        })?;
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn take_reader(&self) -> Reader {
        let mut idle = self.idle.lock();
        loop {
            match idle.pop() {
                Some(reader) => return reader,
                None => self.returned.wait(&mut idle),
            }
        }
    }

    /// Features that were asked for and not to be had, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.files.notes()
    }

    /// Counters since the files were attached.
    pub fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            rows: get(&self.asked),
            hits: get(&self.hits),
            requests: get(&self.requests),
            bytes_read: get(&self.bytes_read),
            cache_rows: self.cache.as_ref().map_or(0, RowCache::rows),
            memory_bytes: self.memory_bytes,
            direct: self.files.direct(),
        }
    }
}

#[cfg(test)]
mod tests;
