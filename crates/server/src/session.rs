//! What a connection has told of itself, and its replies.

use crate::output::Output;
use crate::resp::Protocol;

/// A connection's side of a conversation.
#[derive(Debug)]
pub(crate) struct Session {
    /// Unique among all connections of the server.
    pub(crate) id: u64,
    pub(crate) protocol: Protocol,
    /// Whether it may ask for more than to be let in.
    pub(crate) is_admitted: bool,
    /// Wrong passwords so far.
    pub(crate) failures: u32,
    pub(crate) name: Vec<u8>,
    pub(crate) output: Output,
    /// Bytes of rows in this turn that will be in the output.
    pub(crate) promised: usize,
    /// No request of it is taken any more; it ends when its replies are out.
    pub(crate) is_ending: bool,
    /// Whether it has announced keys, which are forgotten when it ends.
    pub(crate) has_announced: bool,
    /// Whether the socket has failed.
    pub(crate) has_failed: bool,
    /// Whether a job runs for it, whose reply comes before those of later requests.
    pub(crate) has_job: bool,
}

impl Session {
    /// A new connection's.
    pub(crate) fn new(id: u64, is_admitted: bool) -> Self {
        Self {
            id,
            protocol: Protocol::default(),
            is_admitted,
            failures: 0,
            name: Vec::new(),
            output: Output::default(),
            promised: 0,
            is_ending: false,
            has_announced: false,
            has_failed: false,
            has_job: false,
        }
    }

    /// Bytes that the client has yet to take.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.output.queued() + self.promised
    }

    /// Forgets all but its id, for `RESET`.
    pub(crate) fn reset(&mut self, is_admitted: bool) {
        self.protocol = Protocol::default();
        self.is_admitted = is_admitted;
        self.name.clear();
    }
}
