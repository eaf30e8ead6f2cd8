//! A connection: bytes in, requests, replies, bytes out.

use crate::clients::{Clients, Seat};
use crate::gather::{Chunk, Gatherer};
use crate::linger::Linger;
use crate::pace::Pace;
use crate::resp::Decoder;
use crate::session::Session;
use crate::stream::Stream;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// A read buffer begins with so many bytes, and grows with what has come.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// A client that is silent for so long behind a request beyond a limit has left its connection.
const LEFT_AFTER: Duration = Duration::from_millis(250);
/// Most bytes of idle read buffers of a thread.
const IDLE_BYTES: usize = 4 << 20;
/// Bytes of replies that may wait for a client without the password.
const OUTSIDE_BYTES: usize = 16 << 10;

/// A connection and what is under way on it.
pub(crate) struct Connection {
    pub(crate) stream: Stream,
    pub(crate) session: Session,
    pub(crate) decoder: Decoder,
    pub(crate) input: Input,
    /// Whether the socket may have more to read than was read.
    pub(crate) is_readable: bool,
    /// Whether it may take more than was written.
    pub(crate) is_writable: bool,
    /// Whether the client sends no more.
    pub(crate) is_at_end: bool,
    /// Whether the end, or an error, is known to lie behind what is there to be read.
    pub(crate) will_end: bool,
    /// Whether requests are left in the input because they had to wait.
    pub(crate) is_held_up: bool,
    /// Memory of requests and replies that was counted.
    pub(crate) counted: usize,
    /// Whether it is in the list of those that have something to do.
    pub(crate) is_due: bool,
    /// The time when bytes last came or went.
    pub(crate) last_active: Instant,
    /// The progress of an incomplete request, if there is one.
    arriving: Option<Pace>,
    /// The client's progress in reading waiting replies, if there are some.
    leaving: Option<Pace>,
    /// Sends that the kernel is not done with.
    in_flight: usize,
    /// Its place, until it ends.
    seat: Option<Seat>,
}

impl Connection {
    /// One that has just begun.
    pub(crate) fn new(stream: Stream, session: Session, seat: Seat) -> Self {
        Self {
            stream,
            session,
            decoder: Decoder::default(),
            input: Input::default(),
            is_readable: true,
            is_writable: true,
            is_at_end: false,
            will_end: false,
            is_held_up: false,
            counted: 0,
            is_due: false,
            last_active: Instant::now(),
            arriving: None,
            leaving: None,
            in_flight: 0,
            seat: Some(seat),
        }
    }

    /// Lets another connection have its place.
    pub(crate) fn give_place(&mut self) {
        self.seat = None;
    }

    /// Whether requests of it may be taken now.
    pub(crate) fn takes_requests(&self, most_waiting: usize) -> bool {
        let session = &self.session;
        !session.is_ending && !session.has_job && has_room(session, most_waiting)
    }

    /// Reads into the input. Returns the bytes that came; 0 when none are there now, or ever.
    pub(crate) fn read(&mut self, buffers: &mut Buffers, most: usize) -> io::Result<usize> {
        let room = self.input.room(buffers, most, self.is_held_up);
        let bytes = room.len();
        if bytes == 0 {
            return Ok(0);
        }
        match self.stream.read(room) {
            Ok(0) => {
                (self.is_at_end, self.is_readable) = (true, false);
                Ok(0)
            }
            Ok(count) => {
                self.input.end += count;
                // The poll reports data that arrives after a socket was read empty.
                let is_empty = count < bytes && matches!(self.stream, Stream::Plain { .. });
                self.is_readable = !is_empty || self.will_end;
                self.last_active = Instant::now();
                Ok(count)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_readable = false;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads what a client sends that was refused, and drops it. Returns how many bytes.
    pub(crate) fn discard(&mut self, buffers: &mut Buffers, most: usize) -> usize {
        self.input = Input::default();
        let (mut buffer, mut dropped) = (buffers.take(), 0);
        while self.is_readable && dropped < most {
            match self.stream.discard(&mut buffer) {
                Ok(0) => (self.is_at_end, self.is_readable) = (true, false),
                Ok(count) => dropped += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_readable = false,
                Err(_) => (self.session.has_failed, self.is_readable) = (true, false),
            }
        }
        buffers.give(buffer);
        if let Some(linger) = &mut self.session.linger {
            linger.add(dropped);
            self.session.has_failed |= linger.is_over();
            if dropped > 0 && linger.is_new() {
                self.leaving = None;
            }
        }
        self.last_active = Instant::now();
        dropped
    }

    /// Shuts the sending side of one that was refused, once it was sent why.
    pub(crate) fn end_refused(&mut self) {
        let is_out = self.is_out() && !self.stream.is_beginning();
        if let Some(linger) = self.session.linger.as_mut().filter(|l| is_out && !l.is_shut()) {
            linger.shut();
            self.stream.end_sending();
        }
    }

    /// Writes what the socket takes, as the thread's connection of this number. Memory of rows that
    /// are gone goes to `free`. Returns how many bytes.
    pub(crate) fn write(
        &mut self,
        number: usize,
        gatherer: &Gatherer,
        mut free: impl FnMut(Vec<f32>),
    ) -> io::Result<usize> {
        let (before, sent) = (self.session.output.queued(), self.stream.sent());
        let mut has_taken = false;
        let mut sending = gatherer.begin();
        while self.is_writable && !self.session.output.is_empty() {
            let Self { session, stream, .. } = self;
            let output = &mut session.output;
            let sent = match stream {
                Stream::Tls(tls) => output.send(|slices| tls.write(slices), &mut free),
                Stream::Plain { socket, sent: all_sent } => {
                    let who = (number, session.id);
                    let (sent, is_under_way) = sending.send(socket, who, output);
                    self.in_flight += usize::from(is_under_way);
                    sent.map(|count| {
                        *all_sent += count as u64;
                        output.take(count, &mut free);
                    })
                }
            };
            match sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) => return Err(error),
                Ok(()) => has_taken = true,
            }
        }
        // Rows are lent for a call of the kernel, not for as long as the client likes.
        self.session.output.copy_views();
        drop(sending);
        if self.is_writable && !self.stream.flush()? {
            self.is_writable = false;
        }
        if has_taken {
            self.last_active = Instant::now();
        }
        if self.is_out() {
            self.leaving = None;
        } else {
            let taken = self.stream.sent() - sent;
            self.leaving.get_or_insert_with(Pace::new).add(taken as usize);
        }
        Ok(before - self.session.output.queued())
    }

    /// The kernel is done with a send, and nobody else has these chunks of it.
    pub(crate) fn end_send(&mut self, chunks: Vec<Chunk>, mut free: impl FnMut(Vec<f32>)) {
        self.in_flight -= 1;
        for chunk in chunks {
            self.session.output.end_lent(chunk, &mut free);
        }
        self.last_active = Instant::now();
        self.leaving = (!self.is_out()).then(Pace::new);
    }

    /// Whether the kernel still has memory of replies.
    pub(crate) fn has_lent(&self) -> bool {
        self.in_flight > 0
    }

    /// Whether all replies are out, and their memory is back.
    fn is_out(&self) -> bool {
        self.session.output.is_empty() && self.is_writable && self.in_flight == 0
    }

    /// Whether nothing has come of a client since a request beyond a limit, whose error it has had
    /// a while ago. Many clients give such a connection up without closing it, and it would keep a
    /// place among `--max-connections`; others connect again.
    pub(crate) fn is_left(&self, silent: Duration) -> bool {
        let session = &self.session;
        session.was_refused
            && silent >= LEFT_AFTER
            && !session.has_job
            && session.queue.is_none()
            && session.linger.is_none()
            && !self.is_due
            && !self.is_readable
            && self.input.is_empty()
            && !self.decoder.is_skipping()
            && self.is_out()
    }

    /// Whether nothing is left to do for it.
    pub(crate) fn is_over(&self, is_stopping: bool) -> bool {
        let is_last = self.session.is_ending
            || (self.is_at_end && !self.is_held_up)
            || (is_stopping && !self.is_held_up);
        let lingers = match &self.session.linger {
            Some(linger) => !self.is_at_end && !is_stopping && !linger.is_over(),
            None => false,
        };
        is_last && !lingers && !self.session.has_job && self.is_out()
    }

    /// Notes the bytes that came in a turn, and whether whole requests were taken; the rest of the
    /// input waits for more bytes, unless it is held up. Of a request that is skipped nothing need
    /// be left.
    pub(crate) fn note_arrived(&mut self, bytes: usize, has_taken: bool) {
        let is_between = self.input.is_empty() && !self.decoder.is_skipping();
        if is_between || self.is_held_up {
            self.arriving = None;
        } else if has_taken {
            self.arriving = Some(Pace::new());
        } else {
            self.arriving.get_or_insert_with(Pace::new).add(bytes);
        }
    }

    /// Whether the other side was waited for too long: a request comes, or replies are taken, not
    /// at all or too slowly, whatever else comes, or the client has not shown that it may ask for
    /// anything.
    pub(crate) fn is_stalled(&mut self, stall: Duration) -> bool {
        let session = &self.session;
        if session.has_job {
            return false;
        }
        if session.linger.as_ref().is_some_and(Linger::is_shut) {
            return false;
        }
        let is_outside = !session.is_admitted || self.stream.is_beginning();
        (is_outside && session.outside_since.elapsed() >= stall)
            || self.arriving.as_mut().is_some_and(|pace| pace.is_too_slow(stall))
            || self.leaving.as_mut().is_some_and(|pace| pace.is_too_slow(stall))
    }
}

impl Connection {
    /// Memory of what came and of what waits to go.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.session.output.memory_bytes() + self.input.bytes.len()
    }

    /// Whether what came takes more memory than what waits to go.
    pub(crate) fn is_mostly_input(&self) -> bool {
        self.input.bytes.len() > self.session.output.memory_bytes()
    }

    /// Whether requests may be read that have to wait until the client has taken replies. Clients
    /// that send all they have before they read anything are served so: requests are the smaller
    /// part.
    pub(crate) fn reads_ahead(&self, most: usize, clients: &Clients) -> bool {
        let session = &self.session;
        let has_memory = clients.has_room_ahead(self.input.bytes.len().max(BUFFER_BYTES));
        let is_held_by_client = !session.is_ending && !session.has_job && session.running.is_none();
        is_held_by_client && session.is_admitted && has_memory && self.input.has_room_ahead(most)
    }

    /// Whether the client sends more than is kept, and takes no replies meanwhile.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_held_up && self.is_readable && self.leaving.is_some() && !self.session.is_ending
    }

    /// Refuses all that comes from here on, with the reason behind the replies that wait.
    pub(crate) fn refuse(&mut self, reason: &str) {
        self.session.refuse("ERR", reason);
        self.input = Input::default();
        self.is_held_up = false;
        self.arriving = None;
        self.leaving = None;
    }
}

/// Whether the replies that wait of a session leave room for more.
pub(crate) fn has_room(session: &Session, most_waiting: usize) -> bool {
    let outside = if session.is_admitted { usize::MAX } else { OUTSIDE_BYTES };
    session.waiting_bytes() < most_waiting.min(outside)
}

/// Bytes that came and are not used up.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// Empty while nothing is there.
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Input {
    /// The filled part.
    pub(crate) fn filled(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// True when nothing is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// The first bytes were used up.
    pub(crate) fn consume(&mut self, count: usize) {
        self.begin += count;
    }

    /// Gives the buffer back while it is empty.
    pub(crate) fn release(&mut self, buffers: &mut Buffers) {
        if self.is_empty() {
            (self.begin, self.end) = (0, 0);
            buffers.give(std::mem::take(&mut self.bytes));
        }
    }

    /// Gives a buffer back that has grown, where what is left fits one that has not.
    pub(crate) fn shrink(&mut self, buffers: &mut Buffers) {
        let count = self.end - self.begin;
        if self.bytes.len() > BUFFER_BYTES && count < BUFFER_BYTES {
            let mut bytes = buffers.take();
            bytes[..count].copy_from_slice(self.filled());
            (self.bytes, self.begin, self.end) = (bytes, 0, count);
        }
    }

    /// Whether there is room for requests that have to wait.
    fn has_room_ahead(&self, most: usize) -> bool {
        self.end < self.bytes.len() || self.bytes.len() < most || self.is_half_free()
    }

    /// Whether half of the buffer is used up, so that moving the rest costs less than it brings.
    fn is_half_free(&self) -> bool {
        self.begin > 0 && self.begin >= self.bytes.len() / 2
    }

    /// Room behind what is there. The buffer doubles when it is full, and never exceeds what one
    /// request may take. `is_ahead`: whole requests are there already, which wait; then there may
    /// be no room.
    fn room(&mut self, buffers: &mut Buffers, most: usize, is_ahead: bool) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes = buffers.take();
        }
        if self.end == self.bytes.len() {
            let is_full = self.bytes.len() >= most;
            if is_ahead && is_full && !self.is_half_free() {
                return &mut [];
            }
            if self.begin > 0 && (!is_ahead || self.is_half_free()) {
                self.bytes.copy_within(self.begin..self.end, 0);
                (self.begin, self.end) = (0, self.end - self.begin);
            } else {
                let bytes = (self.bytes.len() * 2).min(most.max(self.bytes.len() + 1));
                self.bytes.resize(bytes, 0);
            }
        }
        &mut self.bytes[self.end..]
    }
}

/// Read buffers of connections that have nothing to read, for those that have.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_else(|| vec![0; BUFFER_BYTES])
    }

    fn give(&mut self, buffer: Vec<u8>) {
        if buffer.len() == BUFFER_BYTES && self.0.len() < IDLE_BYTES / BUFFER_BYTES {
            self.0.push(buffer);
        }
    }
}
