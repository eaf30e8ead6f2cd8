//! Rows that are lent to the kernel for longer than a call, and the thread that ends that.
//!
//! A thread that serves may wait in a verb of the store for a writer that waits for rows that this
//! same thread has lent, and a commit that waits for one may be between them. So rows are given
//! back by a thread that never waits for the store.

use super::{Chunk, VIEWS_HELD_MOST, VIEWS_WANTED_MOST, ZeroCopy};
use parking_lot::{Condvar, Mutex};
use rustix::net::connect_unspec;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The interval between two checks.
const LOOK: Duration = Duration::from_millis(50);

/// A socket, to be cut off.
pub(crate) type Socket = dyn AsFd + Send + Sync;

/// The ring with which a thread sends without copies. Held while chunks are shared with the kernel
/// or come back from it, so that the last holder of each is known; no thread waits for anything
/// meanwhile.
pub(crate) type Ring = Mutex<ZeroCopy<Flight>>;

/// A send that the kernel is not done with.
pub(crate) struct Flight {
    /// Number of the connection, and its id.
    pub(super) connection: usize,
    pub(super) id: u64,
    since: Instant,
    socket: Weak<Socket>,
    chunks: Vec<Arc<Chunk>>,
    /// Chunks that nobody else has, once the kernel is done with them.
    ended: Vec<Chunk>,
    is_cut: bool,
}

impl Flight {
    pub(super) fn new(
        (connection, id): (usize, u64),
        socket: Weak<Socket>,
        chunks: Vec<Arc<Chunk>>,
    ) -> Self {
        let (since, ended, is_cut) = (Instant::now(), Vec::new(), false);
        Self { connection, id, since, socket, chunks, ended, is_cut }
    }

    /// The chunks that nobody else has.
    pub(super) fn end(mut self) -> Vec<Chunk> {
        self.ended.extend(self.chunks.drain(..).filter_map(Arc::into_inner));
        self.ended
    }

    /// Gives rows back that the kernel is done with.
    fn give_back(&mut self) {
        let ended = self.chunks.drain(..).filter_map(Arc::into_inner);
        self.ended.extend(ended.map(Chunk::without_rows));
    }

    /// Whether its rows are lent for too long, or wanted and lent for so long.
    fn is_late(&self, wanted: Duration) -> bool {
        let views = || self.chunks.iter().filter_map(|chunk| chunk.views());
        let held = self.since.elapsed();
        (held >= VIEWS_HELD_MOST && views().next().is_some())
            || (held >= wanted && views().any(|views| views.is_wanted()))
    }

    /// Ends the connection: the kernel drops what it would still send, and is soon done with it.
    fn cut(&mut self) {
        self.is_cut = true;
        if let Some(socket) = self.socket.upgrade() {
            // One that is closed already has nothing left.
            let _ = connect_unspec(socket.as_fd());
        }
    }
}

/// The loans of all threads.
#[derive(Default)]
pub(crate) struct Loans {
    rings: Mutex<Vec<Weak<Ring>>>,
    is_over: Mutex<bool>,
    told: Condvar,
}

impl Loans {
    pub(super) fn add(&self, ring: &Arc<Ring>) {
        self.rings.lock().push(Arc::downgrade(ring));
    }

    /// Looks after what is lent until [`end`](Self::end), and tells of each connection that it cuts
    /// off.
    pub(crate) fn run(&self, cut: impl Fn()) {
        let mut is_over = self.is_over.lock();
        while !*is_over {
            self.told.wait_for(&mut is_over, LOOK);
            let rings = self.rings.lock().clone();
            for ring in rings.iter().filter_map(Weak::upgrade) {
                (0..tend(&ring)).for_each(|_| cut());
            }
        }
    }

    /// Ends the thread that looks.
    pub(crate) fn end(&self) {
        *self.is_over.lock() = true;
        self.told.notify_all();
    }
}

/// Gives chunks back that are wanted or late and that the kernel is done with, and cuts off
/// connections that hold some for too long. Returns how many it has cut off.
fn tend(ring: &Ring) -> usize {
    let mut ring = ring.lock();
    // A later send may have learnt that an earlier one has ended, before its thread has.
    ring.landed_mut().for_each(Flight::give_back);
    // Completions for others are left to their thread, which the kernel wakes.
    if !ring.in_flight().any(|flight| flight.is_late(Duration::ZERO)) {
        return 0;
    }
    ring.settle();
    ring.landed_mut().for_each(Flight::give_back);
    let mut count = 0;
    let is_late = |flight: &&mut Flight| !flight.is_cut && flight.is_late(VIEWS_WANTED_MOST);
    for flight in ring.in_flight_mut().filter(is_late) {
        flight.cut();
        count += 1;
    }
    count
}
