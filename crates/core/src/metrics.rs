//! Counters of a store. Relaxed: they order nothing and are read as they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The counts of a bulk read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadReport {
    /// Requests to the device.
    pub requests: u64,
    /// Pages that were asked for.
    pub pages: u64,
    /// Bytes read, pages between merged neighbours included.
    pub bytes: u64,
    /// Time blocked waiting for the device.
    pub waited: Duration,
}

impl ReadReport {
    /// Adds what another bulk read did.
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.pages += other.pages;
        self.bytes += other.bytes;
        self.waited += other.waited;
    }
}

/// The counters of a store since it was opened.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Positions whose row was resident.
    pub hits: AtomicU64,
    /// Positions whose row had to be read.
    pub misses: AtomicU64,
    /// Positions whose row waited in a flush buffer or a chunk being written.
    pub rescued: AtomicU64,
    /// Positions whose key was never written.
    pub first_touches: AtomicU64,
    /// Pages read for a growing table whose key was another one.
    pub tag_collisions: AtomicU64,
    /// Requests to the device.
    pub requests: AtomicU64,
    /// Pages asked for.
    pub pages_read: AtomicU64,
    /// Bytes read.
    pub bytes_read: AtomicU64,
    /// Nanoseconds blocked in reads.
    pub read_wait_ns: AtomicU64,
    /// Nanoseconds in which pages were chosen for rows that have several.
    pub select_ns: AtomicU64,
    /// Rows brought into the cache from storage.
    pub loaded: AtomicU64,
    /// Rows made resident with their initial values.
    pub initial: AtomicU64,
    /// Rows that left the cache.
    pub evicted: AtomicU64,
    /// Those of them that had changed.
    pub evicted_dirty: AtomicU64,
    /// Pages that cleaning read back.
    pub cleaned_pages: AtomicU64,
    /// Rows that cleaning wrote again.
    pub moved_rows: AtomicU64,
    /// Rows with NaN or infinity that came in.
    pub non_finite: AtomicU64,
    /// Rows of which an update left the range of their dtype.
    pub saturated: AtomicU64,
    /// Keys announced by look-ahead.
    pub announced: AtomicU64,
    /// Journal bytes written, and bytes of the head.
    pub journal_bytes: AtomicU64,
    /// Those of them that are deltas.
    pub delta_bytes: AtomicU64,
    /// Those of them that are pieces of indexes.
    pub piece_bytes: AtomicU64,
    /// Bytes of named byte strings written.
    pub state_bytes: AtomicU64,
    /// Holds of readers that were taken away because they kept too much.
    pub holds_taken: AtomicU64,
    /// Nanoseconds in commits.
    pub commit_ns: AtomicU64,
    /// Nanoseconds in verbs that visit rows.
    pub verb_ns: AtomicU64,
    /// Those of them in which equal keys were joined, and their gradients summed and looked at.
    pub merge_ns: AtomicU64,
    /// Those of them spent on resident rows.
    pub resident_ns: AtomicU64,
    /// Those of them in which evicted rows were packed and written, and segments cleaned.
    pub write_ns: AtomicU64,
    /// Those of them in which other threads held what was needed.
    pub lock_wait_ns: AtomicU64,
}

/// Adds the time from its making until it is dropped to a counter.
#[derive(Debug)]
pub(crate) struct Timed<'a> {
    counter: &'a AtomicU64,
    begin: Instant,
}

impl<'a> Timed<'a> {
    /// Begins now.
    pub(crate) fn new(counter: &'a AtomicU64) -> Self {
        Self { counter, begin: Instant::now() }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.counter.fetch_add(self.begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Metrics {
    /// Counts a bulk read of a verb.
    pub(crate) fn add_read(&self, report: &ReadReport) {
        self.add_read_ahead(report);
        self.read_wait_ns.fetch_add(report.waited.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts a bulk read ahead of verbs, which do not wait for it.
    pub(crate) fn add_read_ahead(&self, report: &ReadReport) {
        self.requests.fetch_add(report.requests, Ordering::Relaxed);
        self.pages_read.fetch_add(report.pages, Ordering::Relaxed);
        self.bytes_read.fetch_add(report.bytes, Ordering::Relaxed);
    }
}
