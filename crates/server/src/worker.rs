//! A thread that serves connections, each request to its end.
//!
//! One turn: sockets that have something are read, and all whole requests in what came are taken.
//! Rows that they ask for are read with one call of the engine, whichever connection asked; then
//! the replies go out. A connection that has too many replies waiting is not read until its client
//! has taken them. No turn reads more than a bounded part of what a connection sends, so that all
//! get their turn.

use crate::cluster::Cluster;
use crate::commands::{Call, Scratch};
use crate::connection::{Buffers, Connection, has_room};
use crate::gather::Gatherer;
use crate::pulls::{Delivered, Pulls};
use crate::refusal::Refusal;
use crate::resp::Limits;
use crate::session::Session;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::timer::Finished;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::{ServerConfig, ServerConnection};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

const WAKER: Token = Token(usize::MAX);
/// What tells that the kernel is done with sends.
const SENDS: Token = Token(usize::MAX - 1);
const EVENTS: usize = 1024;
/// How often connections are looked at that have been silent for too long.
const SWEEP: Duration = Duration::from_millis(500);
/// Bytes that are read of a connection in one turn.
const READ_BYTES: usize = 512 << 10;
/// Rows are read once requests of a turn ask for so many bytes.
const PULL_BYTES: usize = 16 << 20;
/// Replies of all connections of a thread; past it, the connection with most of them is closed.
const OUTPUT_BYTES: usize = 1 << 30;
/// How long a server that stops waits for clients to take their replies.
const LAST_REPLIES: Duration = Duration::from_secs(5);
/// How much longer it waits for the kernel to be done with what was cut off.
const LAST_SENDS: Duration = Duration::from_secs(1);
/// Requests of who has not given the password.
const NOT_ADMITTED: Limits = Limits { frame_bytes: 16 << 10, arguments: 16 };

/// What others have for a thread.
pub(crate) enum Mail {
    /// A connection that was accepted, and its id.
    Connection(mio::net::TcpStream, u64),
    /// What came of a job of a connection.
    Done { connection: usize, id: u64, done: Result<Finished, Refusal> },
    /// Finish what was asked, and end.
    Stop,
}

/// Where a thread gets mail.
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
    tls: Option<Arc<ServerConfig>>,
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
    /// Memory of outputs.
    waiting: usize,
    /// Requests that were taken in this turn.
    taken: u64,
    /// Until when replies go out, once the server stops.
    ends: Option<Instant>,
}

impl Worker {
    /// A thread's worker, and where it gets mail.
    pub(crate) fn new(
        number: usize,
        shared: Arc<Shared>,
        tls: Option<Arc<ServerConfig>>,
    ) -> io::Result<(Self, Post)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, mail) = std::sync::mpsc::channel();
        let options = &shared.options;
        // A row and its key are two arguments.
        let arguments = options.max_keys.saturating_mul(2).saturating_add(64);
        let limits = Limits { frame_bytes: options.max_request_bytes, arguments };
        let worker = Self {
            number,
            tls,
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
                Mail::Connection(socket, id) => self.begin(socket, id),
                Mail::Done { connection, id, done } => self.end_job(connection, id, done),
                Mail::Stop => {
                    self.ends = Some(Instant::now() + LAST_REPLIES);
                    (0..self.connections.len()).for_each(|number| self.make_due(number));
                }
            }
        }
    }

    /// Takes a connection in. What fails here is the connection's end.
    fn begin(&mut self, socket: mio::net::TcpStream, id: u64) {
        let session = match &self.tls {
            Some(config) => match ServerConnection::new(config.clone()) {
                Ok(session) => Some(session),
                Err(_) => return self.forget_one(),
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
            return self.forget_one();
        }
        let is_admitted = self.shared.options.password.is_none();
        let session = Session::new(id, is_admitted);
        self.connections[number] = Some(Connection::new(stream, session));
        self.make_due(number);
    }

    fn forget_one(&self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
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
                if self.waiting + self.pulls.bytes() > OUTPUT_BYTES {
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
        let shared = &*self.shared;
        let most_waiting = shared.options.max_reply_bytes;
        let tables = shared.catalog.tables();
        let view = shared.cluster.as_ref().map(Cluster::view);
        let (mut bytes, mut is_again, mut has_taken) = (0, false, false);
        loop {
            let Connection { session, decoder, input, .. } = connection;
            let mut is_whole = true;
            while !session.is_ending && !session.has_job && is_whole {
                if !has_room(session, most_waiting) {
                    break;
                }
                // What `EXEC` runs comes before what the client has sent behind it.
                let mut running = session.running.take();
                let queued = running.as_mut().and_then(|queue| queue.next());
                let limits = if session.is_admitted { &self.limits } else { &NOT_ADMITTED };
                let decoded = match queued {
                    Some(_) => Ok(Some(0)),
                    None => decoder.decode(input.filled(), limits),
                };
                let length = match decoded {
                    Ok(Some(length)) => length,
                    Ok(None) => {
                        is_whole = false;
                        continue;
                    }
                    Err(error) => {
                        shared.metrics.malformed.inc();
                        let text = error.to_string();
                        session.output.write(session.protocol, |w| w.error("ERR", &text));
                        session.is_ending = true;
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
                has_taken = true;
                if length == 0 {
                    session.running = running;
                }
            }
            connection.is_held_up = is_whole;
            if is_whole || !connection.is_readable || self.ends.is_some() {
                break;
            }
            if bytes >= READ_BYTES {
                is_again = true;
                break;
            }
            match connection.read(&mut self.buffers, self.limits.frame_bytes) {
                Ok(0) => break,
                Ok(count) => bytes += count,
                Err(_) => {
                    connection.session.is_ending = true;
                    connection.is_writable = false;
                    connection.session.has_failed = true;
                    break;
                }
            }
        }
        connection.note_arrived(bytes, has_taken);
        connection.input.release(&mut self.buffers);
        if connection.input.is_empty() && connection.decoder.memory_bytes() > 64 << 10 {
            connection.decoder.shrink();
        }
        shared.metrics.bytes_in.inc_by(bytes as u64);
        if is_again {
            self.make_due(number);
        }
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
        let Delivered { missing, failed, lent } = delivered;
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
        let is_stopping = self.ends.is_some();
        if is_broken || connection.is_over(is_stopping) {
            return self.end(number);
        }
        let is_read = connection.is_readable && !is_stopping;
        if (connection.is_held_up || is_read) && connection.takes_requests(most_waiting) {
            self.make_due(number);
        }
    }

    /// Counts the memory of a connection's replies anew.
    fn count(&mut self, number: usize) {
        let Some(Some(connection)) = self.connections.get_mut(number) else { return };
        let held = connection.session.output.memory_bytes();
        self.waiting = self.waiting + held - std::mem::replace(&mut connection.counted, held);
    }

    /// Ends a connection, whatever is under way on it.
    fn end(&mut self, number: usize) {
        let Some(mut connection) = self.connections[number].take() else { return };
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
        self.waiting -= connection.counted;
        self.free.push(number);
        self.forget_one();
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
            let is_idle = !connection.session.has_job && idle.is_some_and(|idle| silent >= idle);
            if is_idle || connection.is_stalled(stall) {
                self.shared.metrics.timed_out.inc();
                self.end(number);
            }
        }
    }

    /// Keeps the replies that wait within bounds.
    fn close_greediest(&mut self) {
        while self.waiting > OUTPUT_BYTES {
            let counted = |c: &Option<Connection>| c.as_ref().map_or(0, |c| c.counted);
            let numbers = 0..self.connections.len();
            let Some(most) = numbers.max_by_key(|n| counted(&self.connections[*n])) else { return };
            self.shared.metrics.overflowed.inc();
            self.end(most);
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
