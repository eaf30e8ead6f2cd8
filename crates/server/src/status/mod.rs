//! The status page: what it shows, and the thread that looks at the server every few seconds.
//!
//! Pages read what the newest look has seen; however many are open, none asks the store. Ten
//! minutes are kept, some tens of KiB beside the store's budget, so that a page that is opened
//! shows what was before.

mod document;
mod history;

use crate::shared::Shared;
use document::{Document, Seen};
use history::{EVERY, History, Reading, Sample};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The page. Everything is in it; it asks for `status.json` and for nothing else.
pub(crate) const PAGE: &str = include_str!("page.html");
/// The rights of the page: run its one script, use its one style sheet, ask its own server. The
/// hashes are of the content of the tags; a test compares them with the page.
pub(crate) const PAGE_POLICY: &str = "default-src 'none'; \
    script-src 'sha256-b/G+LCMLAc1J0BN2SscdKr2ttoblcLNq96Qw80mpVUQ='; \
    style-src 'sha256-oT4zQeMphsQjrgRdE8F6a1UZxa8vwpvdpzLoW9wAYsM='; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// The results of the last samples.
#[derive(Default)]
pub(crate) struct Status(Mutex<Looks>);

/// Guards itself alone; its holder waits for nothing.
#[derive(Default)]
struct Looks {
    history: History,
    /// The store as it was last seen.
    seen: Option<Arc<Seen>>,
    /// Why the newest look has not seen it.
    failure: Option<String>,
}

/// Looks at the server until it stops, which somebody tells by unparking the thread.
pub(crate) fn run(shared: &Arc<Shared>) {
    let (mut before, seen) = look(shared, None);
    shared.status.note(None, seen);
    while !shared.is_stopping.load(Ordering::Acquire) {
        let left = EVERY.saturating_sub(before.at.elapsed());
        if !left.is_zero() {
            std::thread::park_timeout(left);
            continue;
        }
        let (reading, seen) = look(shared, Some(&before));
        let curve = seen.as_ref().ok().and_then(|seen| seen.stats.device.curve.as_ref());
        let mut sample = Sample::between(&before, &reading, curve);
        sample.unix_s = (unix_s() * 10.0).round() / 10.0;
        sample.connections = shared.clients.open() as u64;
        shared.status.note(Some(sample), seen);
        before = reading;
    }
}

/// Reads the counters of now, and the store. If the store cannot be read, its counters stand still.
fn look(shared: &Shared, before: Option<&Reading>) -> (Reading, Result<Seen, String>) {
    let stats = shared.store.stats();
    let last = |of: fn(&Reading) -> u64| before.map_or(0, of);
    let m = &shared.metrics;
    let mut reading = Reading {
        at: Instant::now(),
        requests: m.requests(),
        errors: m.refused.get(),
        rows_read: m.rows_read.get(),
        rows_written: m.rows_put.get() + m.rows_updated.get(),
        hits: last(|r| r.hits),
        misses: last(|r| r.misses),
        reads: last(|r| r.reads),
        bytes_read: last(|r| r.bytes_read),
        bytes_written: last(|r| r.bytes_written),
        bytes_in: m.bytes_in.get(),
        bytes_out: m.bytes_out.get(),
        latency: m.latency.counts(),
    };
    let seen = stats.map_err(|error| error.to_string()).map(|stats| {
        (reading.hits, reading.misses) = (stats.hits + stats.rescued, stats.misses);
        (reading.reads, reading.bytes_read) = (stats.read_requests, stats.bytes_read);
        reading.bytes_written = stats.bytes_written;
        let commit_unix_s = shared.store.last_commit().map_or(0, |commit| commit.unix_time);
        let uncommitted = shared.store.uncommitted();
        Seen { unix_s: unix_s(), stats, commit_unix_s, uncommitted }
    });
    (reading, seen)
}

impl Status {
    fn note(&self, sample: Option<Sample>, seen: Result<Seen, String>) {
        let mut looks = self.0.lock();
        match seen {
            Ok(seen) => (looks.seen, looks.failure) = (Some(Arc::new(seen)), None),
            Err(failure) => looks.failure = Some(failure),
        }
        let Some(mut sample) = sample else { return };
        match &looks.seen {
            Some(seen) => {
                sample.memory_bytes = seen.stats.memory.total();
                sample.disk_bytes = seen.stats.disk_bytes;
            }
            None => debug_assert!(looks.failure.is_some(), "a look sees the store or says why not"),
        }
        looks.history.push(sample);
    }

    /// `/status.json`, with the samples from this number on.
    ///
    /// *Errors*: as text, where it cannot be written as JSON.
    pub(crate) fn json(&self, shared: &Shared, since: u64) -> Result<String, String> {
        let said = |error: serde_json::Error| error.to_string();
        let (seen, failure, history) = {
            let looks = self.0.lock();
            (looks.seen.clone(), looks.failure.clone(), looks.history.columns(since).map_err(said)?)
        };
        let problem = shared.problem().or(failure);
        let document = Document::new(shared, seen.as_deref(), problem, history);
        serde_json::to_string(&document).map_err(said)
    }
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
