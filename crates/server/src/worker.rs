//! A thread that serves connections, each request to its end.
//!
//! One turn: sockets that have something are read, and all whole requests in what came are taken.
//! Rows that they ask for are read with one call of the engine, whichever connection asked; then
//! the replies go out. A connection that has too many replies waiting is not read until its client
//! has taken them. No turn reads more than a bounded part of what a connection sends, so that all
//! get their turn.

use crate::acceptor::TOO_MANY;
use crate::clients::Seat;
use crate::cluster::Cluster;
use crate::commands::{Call, Scratch};
use crate::connection::{Buffers, Connection, has_room};
use crate::gather::Gatherer;
use crate::linger::Linger;
use crate::options::Options;
use crate::pulls::{Delivered, Pulls};
use crate::refusal::Refusal;
use crate::resp::{Decoded, Limits};
use crate::session::Session;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::timer::Finished;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::ServerConnection;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

const WAKER: Token = Token(usize::MAX);
/// The token of completed sends of the kernel.
const SENDS: Token = Token(usize::MAX - 1);
const EVENTS: usize = 1024;
/// The interval between checks for connections that have been silent for too long.
const SWEEP: Duration = Duration::from_millis(500);
/// Bytes that are read of a connection in one turn.
const READ_BYTES: usize = 512 << 10;
/// Rows are read once requests of a turn ask for so many bytes.
const PULL_BYTES: usize = 16 << 20;
/// The longest time that a server that stops waits for clients to take their replies.
const LAST_REPLIES: Duration = Duration::from_secs(5);
/// The additional time that it waits for the kernel to be done with sends that were cut off.
const LAST_SENDS: Duration = Duration::from_secs(1);
/// Limits of a client without the password, for which nothing is skipped.
const NOT_ADMITTED: Limits = Limits { frame_bytes: 16 << 10, arguments: 16, skipped_bytes: 0 };
/// Bytes of a request that is read to its end though it is refused. Redis takes no longer argument
/// (`proto-max-bulk-len`), so that clients send none; the server does not wait for one that
/// announces more.
const SKIPPED_BYTES: usize = 512 << 20;

/// Sweeps without a request after which memory for the next ones is given up.
const QUIET_SWEEPS: u32 = 6;

/// The reason to refuse a client that sends, and does not take its replies.
fn not_taken(options: &Options) -> String {
    format!(
        "replies of {} bytes wait to be read, and requests of {} bytes for them, but the client \
         only sends: read replies while sending, or send fewer requests at a time; larger \
         --max-reply-bytes and --client-memory of the server let more wait",
        options.max_reply_bytes, options.max_request_bytes
    )
}

/// Why a client is refused whose requests take more memory than there is for all.
fn too_much(options: &Options) -> String {
    format!(
        "requests and replies of all connections take more than {} bytes (--client-memory), and \
         this one most of it: send smaller requests, or fewer at a time",
        options.client_memory()
    )
}

/// A message for a thread.
pub(crate) enum Mail {
    /// A connection that was accepted; one that is refused is told that there is no place.
    Connection { socket: mio::net::TcpStream, id: u64, seat: Seat, is_refused: bool },
    /// The result of a job of a connection.
    Done { connection: usize, id: u64, done: Result<Finished, Refusal> },
    /// Finish what was asked, and end.
    Stop,
}

/// A thread's mailbox.
#[derive(Clone)]
pub(crate) struct Post {
    sender: Sender<Mail>,
    waker: Arc<Waker>,
}

impl Post {
    /// Leaves mail. A thread that has ended gets none.
    pub(crate) fn send(&self, mail: Mail) {
        if self.sender.send(mail).is_ok() {
            // The kernel's counter of an eventfd does not overflow by ones.
            let _ = self.waker.wake();
        }
    }
}

/// A thread's connections, and all that it works with.
pub(crate) struct Worker {
    number: usize,
    shared: Arc<Shared>,
    poll: Poll,
    mail: Receiver<Mail>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Connections with something to do in the next turn.
    due: Vec<usize>,
    buffers: Buffers,
    pulls: Pulls,
    gatherer: Gatherer,
    /// Sends that were counted.
    counted_sends: (u64, u64),
    scratch: Scratch,
    limits: Limits,
    last_sweep: Instant,
    /// Memory of its connections' requests and replies.
    waiting: usize,
    /// Requests that were taken in this turn.
    taken: u64,
    /// Requests of the server at the last sweep, and for how many sweeps there were no more.
    requests_seen: u64,
    quiet: u32,
    /// Until when replies go out, once the server stops.
    ends: Option<Instant>,
}

impl Worker {
    /// A thread's worker, and where it gets mail.
    pub(crate) fn new(number: usize, shared: Arc<Shared>) -> io::Result<(Self, Post)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, mail) = std::sync::mpsc::channel();
        let options = &shared.options;
        // A row and its key are two arguments.
        let arguments = options.max_keys.saturating_mul(2).saturating_add(64);
        let limits = Limits {
            frame_bytes: options.max_request_bytes,
            arguments,
            skipped_bytes: SKIPPED_BYTES,
        };
        let worker = Self {
            number,
            poll,
            mail,
            connections: Vec::new(),
            free: Vec::new(),
            due: Vec::new(),
            buffers: Buffers::default(),
            pulls: Pulls::default(),
            gatherer: Gatherer::default(),
            counted_sends: (0, 0),
            scratch: Scratch::default(),
            limits,
            last_sweep: Instant::now(),
            waiting: 0,
            taken: 0,
            requests_seen: 0,
            quiet: 0,
            ends: None,
            shared,
        };
        Ok((worker, Post { sender, waker }))
    }

    /// Serves until the server stops.
    pub(crate) fn run(mut self) -> io::Result<()> {
        // A ring belongs to its thread. One that is refused here is done without.
        self.gatherer = Gatherer::new(self.shared.plan.has_zero_copy()).unwrap_or_default();
        self.gatherer.join(&self.shared.loans);
        if let Some(descriptor) = self.gatherer.descriptor() {
            let mut source = SourceFd(&descriptor);
            self.poll.registry().register(&mut source, SENDS, Interest::READABLE)?;
        }
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let wait = if self.due.is_empty() { SWEEP } else { Duration::ZERO };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                self.note(event);
            }
            self.end_sends();
            self.take_mail();
            self.turn();
            self.sweep();
            if self.is_done() {
                return Ok(());
            }
        }
    }

    /// Notes what a socket can do.
    fn note(&mut self, event: &mio::event::Event) {
        let Token(number) = event.token();
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        connection.is_readable |= event.is_readable() || event.is_read_closed();
        connection.will_end |= event.is_read_closed() || event.is_error();
        connection.is_writable |= event.is_writable();
        self.make_due(number);
    }

    /// Takes back what the kernel is done with.
    fn end_sends(&mut self) {
        let mut ended = Vec::new();
        self.gatherer.land(|number, id, chunks| ended.push((number, id, chunks)));
        for (number, id, chunks) in ended {
            let Some(Some(connection)) = self.connections.get_mut(number) else { continue };
            if connection.session.id != id {
                continue;
            }
            let pulls = &mut self.pulls;
            connection.end_send(chunks, |rows| pulls.give_buffer(rows));
            let waits_for_memory = connection.is_held_up || !connection.has_lent();
            self.count(number);
            if waits_for_memory {
                self.make_due(number);
            }
        }
        let ((sends, copied), before) = (self.gatherer.counts(), self.counted_sends);
        self.shared.metrics.zero_copy_sends.inc_by(sends - before.0);
        self.shared.metrics.zero_copy_copied.inc_by(copied - before.1);
        self.counted_sends = (sends, copied);
    }

    fn make_due(&mut self, number: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(number)
            && !std::mem::replace(&mut connection.is_due, true)
        {
            self.due.push(number);
        }
    }

    fn take_mail(&mut self) {
        while let Ok(mail) = self.mail.try_recv() {
            match mail {
                Mail::Connection { socket, id, seat, is_refused } => {
                    self.begin(socket, id, seat, is_refused);
                }
                Mail::Done { connection, id, done } => self.end_job(connection, id, done),
                Mail::Stop => {
                    self.ends = Some(Instant::now() + LAST_REPLIES);
                    (0..self.connections.len()).for_each(|number| self.make_due(number));
                }
            }
        }
    }

    /// Takes a connection in. A failure here ends the connection.
    fn begin(&mut self, socket: mio::net::TcpStream, id: u64, seat: Seat, is_refused: bool) {
        let session = match &self.shared.tls {
            Some(tls) => match ServerConnection::new(tls.config()) {
                Ok(session) => Some(session),
                Err(_) => return,
            },
            None => None,
        };
        let stream = match session {
            Some(session) => Stream::tls(socket, session),
            None => Stream::plain(socket),
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        let descriptor = stream.socket().as_raw_fd();
        let mut source = SourceFd(&descriptor);
        if self.poll.registry().register(&mut source, Token(number), interest).is_err() {
            self.free.push(number);
            return;
        }
        let is_admitted = self.shared.options.password.is_none() && !is_refused;
        let mut session = Session::new(id, is_admitted);
        session.address = stream.socket().peer_addr().ok();
        if is_refused {
            session.refuse("ERR", TOO_MANY);
        }
        self.connections[number] = Some(Connection::new(stream, session, seat));
        self.make_due(number);
    }

    /// Replies to a job's connection, if it is still there.
    fn end_job(&mut self, number: usize, id: u64, done: Result<Finished, Refusal>) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let session = &mut connection.session;
        if session.id != id {
            return;
        }
        session.has_job = false;
        session.output.write(session.protocol, |writer| match done {
            Ok(Finished::Commit(commit)) => {
                writer.map(2);
                writer.bulk(b"step");
                writer.integer(commit.step as i64);
                writer.bulk(b"sequence");
                writer.integer(commit.sequence as i64);
            }
            Ok(Finished::NoneNewer) => writer.null(),
            Ok(Finished::Created | Finished::Reloaded) => writer.simple("OK"),
            Err(refusal) => writer.error(refusal.code, &refusal.message),
        });
        self.make_due(number);
    }

    /// One turn for all that have something to do.
    fn turn(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let begin = Instant::now();
        let turn = std::mem::take(&mut self.due);
        let mut sent = 0;
        {
            // The store does not move to another commit between a look at the tables and the rows.
            let shared = self.shared.clone();
            let _still = shared.moves.read();
            for (index, number) in turn.iter().enumerate() {
                if self.has_too_much(self.pulls.bytes()) {
                    // They stay due; the next turn begins within the bound.
                    self.due.extend(&turn[index..]);
                    break;
                }
                self.take_requests(*number);
                self.count(*number);
                if self.pulls.bytes() >= PULL_BYTES {
                    self.read_rows();
                    turn[sent..=index].iter().for_each(|number| self.send_replies(*number));
                    sent = index + 1;
                }
            }
            self.read_rows();
        }
        turn[sent..].iter().for_each(|number| self.send_replies(*number));
        self.scratch.shrink();
        self.close_greediest();
        let time = begin.elapsed();
        self.shared.metrics.turn_seconds.observe(time.as_secs_f64());
        let taken = std::mem::take(&mut self.taken);
        if taken > 0 {
            self.shared.metrics.latency.observe(time, taken);
        }
    }

    /// Reads a connection, and takes the whole requests in what came.
    fn take_requests(&mut self, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        connection.is_due = false;
        if connection.session.linger.is_some() {
            return self.discard(number);
        }
        let shared = &*self.shared;
        let most_waiting = shared.options.max_reply_bytes;
        let tables = shared.catalog.tables();
        let view = shared.cluster.as_ref().map(Cluster::view);
        let (mut bytes, mut is_again, mut has_taken, mut has_refused) = (0, false, false, false);
        loop {
            let Connection { session, decoder, input, .. } = connection;
            let mut is_whole = true;
            while !session.is_ending && !session.has_job && is_whole {
                if !has_room(session, most_waiting) {
                    break;
                }
                // The requests that `EXEC` runs come before later ones of the client.
                let mut running = session.running.take();
                let queued = running.as_mut().and_then(|queue| queue.next());
                let limits = if session.is_admitted { &self.limits } else { &NOT_ADMITTED };
                let decoded = match queued {
                    Some(_) => Ok(Decoded::Request(0)),
                    None => decoder.decode(input.filled(), limits),
                };
                let length = match decoded {
                    Ok(Decoded::Request(length)) => length,
                    Ok(Decoded::More) => {
                        is_whole = false;
                        continue;
                    }
                    Ok(Decoded::Part(length)) => {
                        input.consume(length);
                        continue;
                    }
                    Ok(Decoded::Refused(length, reason)) => {
                        shared.metrics.refused.inc();
                        session.refuse_one(&reason);
                        shared.limits.oversized(&session.peer());
                        has_refused = true;
                        input.consume(length);
                        has_taken = true;
                        continue;
                    }
                    Err(error) => {
                        shared.metrics.malformed.inc();
                        shared.limits.malformed(&session.peer());
                        session.refuse("ERR", &error.to_string());
                        break;
                    }
                };
                let mut call = Call {
                    shared,
                    tables: &tables,
                    cluster: view.as_deref(),
                    pulls: &mut self.pulls,
                    session,
                    arguments: queued.unwrap_or_else(|| decoder.arguments(input.filled())),
                    worker: self.number,
                    connection: number,
                    scratch: &mut self.scratch,
                };
                if let Some(command) = call.run() {
                    shared.metrics.commands[command].inc();
                    self.taken += 1;
                }
                input.consume(length);
                // Requests that came with a refused one do not show that the client goes on.
                session.was_refused &= has_refused;
                has_taken = true;
                if length == 0 {
                    session.running = running;
                }
            }
            connection.is_held_up = is_whole;
            let most = self.limits.frame_bytes;
            let may_read = !is_whole || connection.reads_ahead(most, &shared.clients);
            if !may_read || !connection.is_readable || self.ends.is_some() {
                break;
            }
            if bytes >= READ_BYTES {
                is_again = true;
                break;
            }
            match connection.read(&mut self.buffers, most) {
                Ok(0) => break,
                Ok(count) => bytes += count,
                Err(error) if connection.stream.is_refused() => {
                    shared.limits.handshake(&connection.session.peer(), &error);
                    connection.session.end_with_reason();
                    break;
                }
                Err(error) => {
                    if connection.stream.is_beginning() {
                        shared.limits.handshake(&connection.session.peer(), &error);
                    }
                    connection.session.is_ending = true;
                    connection.is_writable = false;
                    connection.session.has_failed = true;
                    break;
                }
            }
        }
        connection.note_arrived(bytes, has_taken);
        connection.input.release(&mut self.buffers);
        if connection.decoder.is_skipping() {
            connection.input.shrink(&mut self.buffers);
        }
        if connection.input.is_empty() && connection.decoder.memory_bytes() > 64 << 10 {
            connection.decoder.shrink();
        }
        shared.metrics.bytes_in.inc_by(bytes as u64);
        if is_again {
            self.make_due(number);
        }
    }

    /// Reads what a client still sends that was refused.
    fn discard(&mut self, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let bytes = connection.discard(&mut self.buffers, READ_BYTES);
        self.shared.metrics.bytes_in.inc_by(bytes as u64);
    }

    /// Reads the rows that were asked for, and writes the replies, which are to be sent before
    /// anything else is done: rows may be lent to them.
    fn read_rows(&mut self) {
        if self.pulls.is_waiting() {
            let rows = self.pulls.read(&self.shared.store, Some(&self.shared.plan));
            self.shared.metrics.rows_read.inc_by(rows);
        }
        let connections = &mut self.connections;
        let delivered = self.pulls.deliver(&self.shared.plan, |number, give| {
            if let Some(Some(connection)) = connections.get_mut(number) {
                connection.session.promised = 0;
                give(&mut connection.session.output);
            }
        });
        let Delivered { looked, missing, failed, lent } = delivered;
        self.shared.metrics.keys_found.inc_by(looked - missing);
        self.shared.metrics.rows_missing.inc_by(missing);
        self.shared.metrics.refused.inc_by(failed);
        self.shared.metrics.lent_pulls.inc_by(lent);
    }

    /// Writes what a connection's socket takes, and ends what is over.
    fn send_replies(&mut self, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let most_waiting = self.shared.options.max_reply_bytes;
        let pulls = &mut self.pulls;
        let sent = connection.write(number, &self.gatherer, |rows| pulls.give_buffer(rows));
        let is_broken = sent.is_err() || connection.session.has_failed;
        self.shared.metrics.bytes_out.inc_by(sent.unwrap_or(0) as u64);
        self.count(number);
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        connection.end_refused();
        let is_stopping = self.ends.is_some();
        if is_broken || connection.is_over(is_stopping) {
            return self.end(number);
        }
        let is_read = connection.is_readable && !is_stopping;
        let is_refused = connection.session.linger.is_some();
        let is_taken = connection.takes_requests(most_waiting);
        if ((connection.is_held_up || is_read) && is_taken) || (is_read && is_refused) {
            self.make_due(number);
        }
    }

    /// Counts the memory of a connection's requests and replies anew.
    fn count(&mut self, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let held = connection.memory_bytes();
        let before = std::mem::replace(&mut connection.counted, held);
        self.waiting = self.waiting + held - before;
        self.shared.clients.count(before, held);
    }

    /// Whether this thread's connections have to take less memory than they and `coming` do.
    fn has_too_much(&self, coming: usize) -> bool {
        self.shared.clients.is_too_much(self.waiting, coming, self.shared.options.threads)
    }

    /// Ends a connection, whatever is under way on it.
    fn end(&mut self, number: usize) {
        let Some(mut connection) = self.connections[number].take() else { return };
        // Its seat and memory are free before its client can see the end: it may come again at
        // once.
        connection.give_place();
        self.waiting -= connection.counted;
        self.shared.clients.count(connection.counted, 0);
        if connection.has_lent() {
            connection.stream.abandon();
        }
        connection.stream.close();
        // A socket that is closed is in no poll any more.
        let descriptor = connection.stream.socket().as_raw_fd();
        let _ = self.poll.registry().deregister(&mut SourceFd(&descriptor));
        if connection.session.has_announced {
            // Announcements of others go, too, which costs reads and no results.
            let _ = self.shared.store.clear_announced();
        }
        self.free.push(number);
    }

    /// Ends connections that have been silent for too long.
    fn sweep(&mut self) {
        if self.last_sweep.elapsed() < SWEEP {
            return;
        }
        self.last_sweep = Instant::now();
        let (idle, stall) = (self.shared.options.idle, self.shared.options.stall);
        for number in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[number] else { continue };
            let silent = connection.last_active.elapsed();
            if connection.session.linger.as_ref().is_some_and(Linger::is_over) {
                self.end(number);
                continue;
            }
            if connection.is_left(silent) {
                self.shared.metrics.timed_out.inc();
                self.shared.limits.abandoned(&connection.session.peer());
                self.end(number);
                continue;
            }
            let is_idle = !connection.session.has_job && idle.is_some_and(|idle| silent >= idle);
            if is_idle || connection.is_stalled(stall) {
                self.shared.metrics.timed_out.inc();
                self.shared.limits.timed_out(&connection.session.peer(), silent, is_idle);
                if connection.is_stuck() {
                    connection.refuse(&not_taken(&self.shared.options));
                    self.make_due(number);
                } else {
                    self.end(number);
                }
            }
        }
        self.close_greediest();
        self.release_idle();
        self.shared.rates.read(&self.shared.metrics);
        self.shared.clients.trim();
    }

    /// Gives up memory that is kept for the next requests, where none came for some sweeps.
    fn release_idle(&mut self) {
        let now = self.shared.metrics.requests();
        self.quiet = if now == self.requests_seen { self.quiet + 1 } else { 0 };
        self.requests_seen = now;
        if self.quiet == QUIET_SWEEPS {
            self.pulls.release_idle();
            self.buffers = Buffers::default();
        }
    }

    /// Keeps the memory of requests and replies within its bound: closes the connections that hold
    /// most. One that was sending gets the reason.
    fn close_greediest(&mut self) {
        while self.has_too_much(0) {
            let counted = |c: &Option<Connection>| c.as_ref().map_or(0, |c| c.counted);
            let numbers = 0..self.connections.len();
            let Some(most) = numbers.max_by_key(|n| counted(&self.connections[*n])) else { return };
            self.shared.metrics.overflowed.inc();
            if let Some(connection) = &self.connections[most] {
                let peer = connection.session.peer();
                self.shared.limits.overflowed(&peer, connection.counted);
            }
            match &mut self.connections[most] {
                Some(connection) if connection.is_mostly_input() && !connection.has_lent() => {
                    connection.refuse(&too_much(&self.shared.options));
                    self.count(most);
                    self.make_due(most);
                }
                _ => self.end(most),
            }
        }
    }

    /// Whether the server has stopped and all replies are out, or had their time.
    fn is_done(&mut self) -> bool {
        let Some(ends) = self.ends else { return false };
        let is_late = ends <= Instant::now();
        let is_empty = self.connections.iter().all(Option::is_none);
        if is_late {
            (0..self.connections.len()).for_each(|number| self.end(number));
        }
        let is_past = ends + LAST_SENDS <= Instant::now();
        (is_late || is_empty) && (self.gatherer.is_idle() || is_past)
    }
}
