//! Sends rows from memory to a socket, in one of three modes.
//!
//! *Copy*: the engine copies rows into the reply, and the kernel copies that into the socket's
//! buffer. *Vectored*: the kernel copies rows from where they lie, by their addresses. *Zero-copy*:
//! it sends pages as they are, and tells when it is done with them; rows are sent from where they
//! lie, or from the reply if a storage does not give their addresses.
//!
//! A client sees the same in all modes. Rows are lent out as [`RowViews`], which keep them
//! unchanged: to the end of the call in the vectored mode, and until the client's machine has
//! acknowledged them in the zero-copy mode. If a client takes nothing, the remaining rows are
//! copied out in the first, and the client is cut off in the second after [`VIEWS_HELD_MOST`], or
//! [`VIEWS_WANTED_MOST`].
//!
//! Source: PetPS, sections 3.3 and 4.3 of the paper.

mod chunk;
mod kernel;
mod loans;
mod measure;
mod plan;

pub use chunk::RowViews;
pub(crate) use chunk::{Chunk, Views};
pub(crate) use kernel::{Message, Piece, ZeroCopy};
pub(crate) use loans::Loans;
pub use measure::{Check, Cost, Costs, Pull, measure};
pub(crate) use plan::Plan;
pub use plan::{Gather, Mode};

use crate::output::Output;
use loans::{Flight, Ring, Socket};
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// The longest time that a client may leave rows untaken that are lent to the kernel.
pub const VIEWS_HELD_MOST: Duration = Duration::from_secs(2);
/// The same, if a writer waits for the room of rows that were replaced. A client that takes all may
/// acknowledge it 200 ms later.
pub const VIEWS_WANTED_MOST: Duration = Duration::from_secs(1);

/// The place of rows.
pub trait RowSource: Sync {
    /// The rows of keys, each verified, or why they cannot be lent: `keys (N,)`. `None` where too
    /// much is lent already; then they are copied.
    fn views(&self, keys: &[u64]) -> io::Result<Option<Box<dyn RowViews>>>;

    /// Copies rows: `keys (N,) → rows (N × row bytes)`. Those of keys without a row stay.
    fn copy(&self, keys: &[u64], rows: &mut [u8]) -> io::Result<()>;
}

/// The senders of a thread.
#[derive(Default)]
pub(crate) struct Gatherer {
    zero_copy: Option<Arc<Ring>>,
}

/// A gatherer at work. Nobody else changes what is lent meanwhile.
pub(crate) struct Sending<'a> {
    zero_copy: Option<MutexGuard<'a, ZeroCopy<Flight>>>,
}

impl Gatherer {
    /// One for copies alone, or also for zero-copy sends. *Errors*: the kernel has none.
    pub(crate) fn new(has_zero_copy: bool) -> io::Result<Self> {
        let zero_copy = has_zero_copy.then(ZeroCopy::new).transpose()?;
        Ok(Self { zero_copy: zero_copy.map(Mutex::new).map(Arc::new) })
    }

    /// Has what it lends looked after.
    pub(crate) fn join(&self, loans: &Loans) {
        if let Some(ring) = &self.zero_copy {
            loans.add(ring);
        }
    }

    /// The descriptor that is readable when [`land`](Self::land) has something to do.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.zero_copy.as_ref().map(|ring| ring.lock().descriptor())
    }

    /// Zero-copy sends, and those of them that the kernel has copied nevertheless.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.zero_copy.as_ref().map_or((0, 0), |ring| ring.lock().counts())
    }

    /// Begins to send.
    pub(crate) fn begin(&self) -> Sending<'_> {
        Sending { zero_copy: self.zero_copy.as_ref().map(|ring| ring.lock()) }
    }

    /// Tells what the kernel is done with: connection, its id, and chunks that nobody else has.
    pub(crate) fn land(&self, mut landed: impl FnMut(usize, u64, Vec<Chunk>)) {
        if let Some(ring) = &self.zero_copy {
            ring.lock().reap(|flight| {
                let (connection, id) = (flight.connection, flight.id);
                landed(connection, id, flight.end());
            });
        }
    }

    /// Whether the kernel has anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.zero_copy.as_ref().is_none_or(|ring| ring.lock().in_flight().next().is_none())
    }
}

impl Sending<'_> {
    /// Sends once what comes first of an output. Returns how many bytes, and whether a send is now
    /// under way, which also one that failed can be.
    pub(crate) fn send<S: AsFd + Send + Sync + 'static>(
        &mut self,
        socket: &Arc<S>,
        who: (usize, u64),
        output: &Output,
    ) -> (io::Result<usize>, bool) {
        let mut message = Message::of(output.pieces());
        let Some(ring) = &mut self.zero_copy else { return (message.send(socket.as_fd()), false) };
        if !output.is_zero_copy(message.bytes()) {
            return (message.send(socket.as_fd()), false);
        }
        let mut is_held = false;
        let sent = ring.send(socket.as_fd(), &mut message, |bytes| {
            is_held = true;
            let socket: Arc<Socket> = socket.clone();
            Flight::new(who, Arc::downgrade(&socket), output.first_chunks(bytes))
        });
        (sent, is_held)
    }
}
