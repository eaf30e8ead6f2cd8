//! The state that a connection has set for itself, and its replies.

use crate::commands::Queue;
use crate::events::Peer;
use crate::linger::Linger;
use crate::output::Output;
use crate::resp::Protocol;
use std::net::SocketAddr;
use std::time::Instant;

/// A connection's side of a conversation.
#[derive(Debug)]
pub(crate) struct Session {
    /// Unique among all connections of the server.
    pub(crate) id: u64,
    /// The address of the peer, if it was known at the beginning.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) protocol: Protocol,
    /// Whether it may ask for more than to be let in.
    pub(crate) is_admitted: bool,
    /// If it is not admitted, since when: its beginning, or when it gave admission up.
    pub(crate) outside_since: Instant,
    /// Wrong passwords so far.
    pub(crate) failures: u32,
    pub(crate) name: Vec<u8>,
    pub(crate) output: Output,
    /// Bytes of rows in this turn that will be in the output.
    pub(crate) promised: usize,
    /// No request of it is taken any more; it ends when its replies are out.
    pub(crate) is_ending: bool,
    /// Its last reply says why it ends: what the client still sends is read until it has that.
    pub(crate) linger: Option<Linger>,
    /// Whether it has announced keys, which are forgotten when it ends.
    pub(crate) has_announced: bool,
    /// Whether the socket has failed.
    pub(crate) has_failed: bool,
    /// Whether a job runs for it, whose reply comes before those of later requests.
    pub(crate) has_job: bool,
    /// Whether a request beyond a limit was refused, and none has come since.
    pub(crate) was_refused: bool,
    /// The requests since `MULTI`.
    pub(crate) queue: Option<Box<Queue>>,
    /// The requests that `EXEC` runs, before those that came after it.
    pub(crate) running: Option<Box<Queue>>,
}

impl Session {
    /// A new connection's.
    pub(crate) fn new(id: u64, is_admitted: bool) -> Self {
        Self {
            id,
            address: None,
            protocol: Protocol::default(),
            is_admitted,
            outside_since: Instant::now(),
            failures: 0,
            name: Vec::new(),
            output: Output::default(),
            promised: 0,
            is_ending: false,
            linger: None,
            has_announced: false,
            has_failed: false,
            has_job: false,
            was_refused: false,
            queue: None,
            running: None,
        }
    }

    /// The peer, for the log.
    pub(crate) fn peer(&self) -> Peer {
        Peer(self.address)
    }

    /// Refuses one request, of which no more is known than what is wrong with it. Those behind it
    /// are taken, and none of those since `MULTI` will run.
    pub(crate) fn refuse_one(&mut self, reason: &str) {
        if let Some(queue) = &mut self.queue {
            queue.fail();
        }
        self.output.write(self.protocol, |writer| writer.error("ERR", reason));
        self.was_refused = true;
    }

    /// Refuses all that comes from here on, with the reason as the last reply.
    pub(crate) fn refuse(&mut self, code: &str, reason: &str) {
        self.output.write(self.protocol, |writer| writer.error(code, reason));
        self.end_with_reason();
    }

    /// It ends, and the last reply that was written says why.
    pub(crate) fn end_with_reason(&mut self) {
        self.is_ending = true;
        self.linger = Some(Linger::new(!self.is_admitted));
    }

    /// Memory of replies that the client has yet to take.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.output.memory_bytes() + self.promised
    }

    /// Forgets all but its id, for `RESET`.
    pub(crate) fn reset(&mut self, is_admitted: bool) {
        self.protocol = Protocol::default();
        if self.is_admitted {
            self.outside_since = Instant::now();
        }
        self.is_admitted = is_admitted;
        self.name.clear();
        self.queue = None;
    }
}
