//! How rows get from memory into a socket, in one of three modes.
//!
//! *Copy*: the engine copies rows into the reply, and the kernel copies that into the socket's
//! buffer. *Vectored*: the kernel copies rows from where they lie, by their addresses. *Zero-copy*:
//! it sends pages as they are, and tells when it is done with them; rows are sent from where they
//! lie, or from the reply where a storage does not say where they lie.
//!
//! What a client sees is the same in all modes. Rows are lent out as [`RowViews`], which keep them
//! as they are: to the end of the call in the vectored mode, and until the client's machine has
//! acknowledged them in the zero-copy mode. A client that takes nothing has what is left copied out
//! in the first, and is cut off in the second after [`VIEWS_HELD_MOST`].
//!
//! Source: PetPS, sections 3.3 and 4.3 of the paper.

mod chunk;
mod kernel;
mod measure;
mod plan;

pub(crate) use chunk::{Chunk, Views};
pub(crate) use kernel::{Message, Piece, ZeroCopy};
pub use measure::{Check, Cost, Costs, Pull, measure};
pub(crate) use plan::Plan;
pub use plan::{Gather, Mode};

use crate::output::Output;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// How long a client may leave rows untaken that are lent to the kernel. Writers that need the room
/// of replaced rows wait for them.
pub const VIEWS_HELD_MOST: Duration = Duration::from_secs(2);

/// Rows where they lie, which stay as they are until this is dropped.
pub trait RowViews: Send + Sync {
    /// The words that begin with the row's bytes; `None` where a key has no row.
    fn row(&self, position: usize) -> Option<&[AtomicU64]>;
}

/// Where rows lie.
pub trait RowSource: Sync {
    /// The rows of keys, each verified, or why they cannot be lent: `keys (N,)`. `None` where too
    /// much is lent already; then they are copied.
    fn views(&self, keys: &[u64]) -> io::Result<Option<Box<dyn RowViews>>>;

    /// Copies rows: `keys (N,) → rows (N × row bytes)`. Those of keys without a row stay.
    fn copy(&self, keys: &[u64], rows: &mut [u8]) -> io::Result<()>;
}

/// A send that the kernel is not done with.
pub(crate) struct Flight {
    /// Number of the connection, and its id.
    pub(crate) connection: usize,
    pub(crate) id: u64,
    pub(crate) since: Instant,
    chunks: Vec<Arc<Chunk>>,
}

/// What a thread sends with.
#[derive(Default)]
pub(crate) struct Gatherer {
    zero_copy: Option<ZeroCopy<Flight>>,
}

impl Gatherer {
    /// One for copies alone, or also for zero-copy sends. *Errors*: the kernel has none.
    pub(crate) fn new(has_zero_copy: bool) -> io::Result<Self> {
        let zero_copy = has_zero_copy.then(ZeroCopy::new).transpose()?;
        Ok(Self { zero_copy })
    }

    /// What is readable when [`land`](Self::land) has something to do.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.zero_copy.as_ref().map(ZeroCopy::descriptor)
    }

    /// Zero-copy sends, and those of them that the kernel has copied nevertheless.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.zero_copy.as_ref().map_or((0, 0), ZeroCopy::counts)
    }

    /// Sends once what comes first of an output. Returns how many bytes, and whether a send is now
    /// under way, which also one that failed can be.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        (connection, id): (usize, u64),
        output: &Output,
    ) -> (io::Result<usize>, bool) {
        let mut message = Message::of(output.pieces());
        let Some(ring) = &mut self.zero_copy else { return (message.send(socket), false) };
        if !output.is_zero_copy(message.bytes()) {
            return (message.send(socket), false);
        }
        let mut is_held = false;
        let sent = ring.send(socket, &mut message, |bytes| {
            is_held = true;
            let chunks = output.first_chunks(bytes);
            Flight { connection, id, since: Instant::now(), chunks }
        });
        (sent, is_held)
    }

    /// Tells what the kernel is done with: connection, its id, and chunks that nobody else has.
    pub(crate) fn land(&mut self, mut landed: impl FnMut(usize, u64, Vec<Chunk>)) {
        if let Some(ring) = &mut self.zero_copy {
            ring.reap(|flight| {
                let chunks = flight.chunks.into_iter().filter_map(Arc::into_inner).collect();
                landed(flight.connection, flight.id, chunks);
            });
        }
    }

    /// Whether the kernel has anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.zero_copy.as_ref().is_none_or(|ring| ring.in_flight().next().is_none())
    }

    /// Connections that have held lent rows for too long, with their ids.
    pub(crate) fn late(&self) -> Vec<(usize, u64)> {
        let flights = self.zero_copy.iter().flat_map(ZeroCopy::in_flight);
        let is_late = |flight: &&Flight| {
            flight.since.elapsed() >= VIEWS_HELD_MOST
                && flight.chunks.iter().any(|chunk| matches!(**chunk, Chunk::Views(_)))
        };
        flights.filter(is_late).map(|flight| (flight.connection, flight.id)).collect()
    }
}
