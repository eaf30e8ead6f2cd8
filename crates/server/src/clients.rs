//! The resources that connections use: places, and memory of requests and replies.

use embedrock_core::trim_heap;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections beyond the limit that are told so at a time; those beyond learn it by their end.
pub(crate) const REFUSED_MAX: usize = 256;
/// Memory that is given back to the system once so much of it is no longer in use.
const TRIM_LEAST: usize = 8 << 20;
/// For so long it has to be out of use: what comes and goes with every batch is kept.
const TRIM_AFTER: Duration = Duration::from_secs(3);

/// The resources of all connections of a server. Relaxed throughout: counters order nothing.
pub(crate) struct Clients {
    /// Number of connections that are served.
    open: Arc<AtomicUsize>,
    /// Number of connections that are told that there is no place for them.
    refused: Arc<AtomicUsize>,
    /// Memory of their requests and replies.
    bytes: AtomicUsize,
    /// The most of it since the last look.
    bytes_most: AtomicUsize,
    /// The bound on memory, beyond which the largest user is disconnected.
    bytes_max: usize,
    /// Guards itself alone.
    trimming: Mutex<Trimming>,
}

/// The time of the last look at memory, and the bytes that the process may still have.
struct Trimming {
    last: Instant,
    had: usize,
}

/// A connection's place, given back when it is dropped.
pub(crate) struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(places: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let fits = |taken: usize| (taken < most).then_some(taken + 1);
        places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Self(places.clone()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Clients {
    /// None yet; their memory has a bound.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            open: Arc::default(),
            refused: Arc::default(),
            bytes: AtomicUsize::new(0),
            bytes_most: AtomicUsize::new(0),
            bytes_max,
            trimming: Mutex::new(Trimming { last: Instant::now(), had: 0 }),
        }
    }

    /// A place for one more, where there are fewer than `most`.
    pub(crate) fn seat(&self, most: usize) -> Option<Seat> {
        Seat::take(&self.open, most)
    }

    /// A place for one that is told that there is none.
    pub(crate) fn refused_seat(&self) -> Option<Seat> {
        Seat::take(&self.refused, REFUSED_MAX)
    }

    /// Connections that are served.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Memory of requests and replies.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Its bound.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// A connection that has counted `before` takes `after`.
    pub(crate) fn count(&self, before: usize, after: usize) {
        if after >= before {
            let all = self.bytes.fetch_add(after - before, Ordering::Relaxed) + after - before;
            self.bytes_most.fetch_max(all, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Whether a thread with so much of it, one of so many, has to have less: all together take too
    /// much, and it more than its part. There is such a thread wherever there is too much.
    pub(crate) fn is_too_much(&self, own: usize, coming: usize, threads: usize) -> bool {
        self.bytes() + coming > self.bytes_max && own + coming > self.bytes_max / threads.max(1)
    }

    /// Whether a connection may take so much more for requests that have to wait: others, and its
    /// replies, need the other half.
    pub(crate) fn has_room_ahead(&self, bytes: usize) -> bool {
        self.bytes().saturating_add(bytes) <= self.bytes_max / 2
    }

    /// Gives memory back to the system that clients have had, and that nobody has had for a while.
    /// Any thread may call it as often as it likes.
    pub(crate) fn trim(&self) {
        let Some(mut trimming) = self.trimming.try_lock() else { return };
        if trimming.last.elapsed() < TRIM_AFTER {
            return;
        }
        trimming.last = Instant::now();
        let most = self.bytes_most.swap(self.bytes(), Ordering::Relaxed);
        if most.saturating_add(TRIM_LEAST) <= trimming.had {
            trim_heap();
            trimming.had = most;
        }
        trimming.had = trimming.had.max(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back_with_their_connections() {
        let clients = Clients::new(0);
        let seats: Vec<_> = (0..2).map(|_| clients.seat(2).unwrap()).collect();
        assert!(clients.seat(2).is_none() && clients.refused_seat().is_some());
        drop(seats);
        assert_eq!(clients.open(), 0);
    }

    #[test]
    fn the_thread_with_more_than_its_part_has_to_have_less_and_no_other() {
        let clients = Clients::new(100);
        clients.count(0, 90);
        clients.count(0, 30);
        assert!(clients.is_too_much(90, 0, 2) && !clients.is_too_much(30, 0, 2));
        clients.count(90, 60);
        assert!(!clients.is_too_much(60, 0, 2) && clients.is_too_much(60, 11, 2));
        assert_eq!(clients.bytes(), 90);
        clients.count(60, 10);
        assert!(clients.has_room_ahead(10) && !clients.has_room_ahead(11));
    }
}
