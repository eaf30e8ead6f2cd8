//! `/metrics`, `/healthz` and the status page over HTTP/1.1, for monitors on the same machine.
//!
//! One request a connection. Connections are served side by side, because browsers open some that
//! are silent for a while. A client that sends or takes slowly has `PATIENCE` altogether, and no
//! time at all once the server stops.

use crate::exposition;
use crate::shared::Shared;
use crate::status::{PAGE, PAGE_POLICY};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const LISTENER: Token = Token(usize::MAX);
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval between checks for clients that have run out of time.
const LOOK: Duration = Duration::from_millis(100);
/// Connections at a time; those beyond wait to be accepted.
const EXCHANGES_MAX: usize = 64;
/// Longest request, headers included.
const REQUEST_BYTES: usize = 8 << 10;
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";

/// The listener for monitors, and their requests.
pub(crate) struct Monitors {
    poll: Poll,
    listener: TcpListener,
    exchanges: Vec<Option<Exchange>>,
}

/// A connection: its request, then the reply.
struct Exchange {
    stream: TcpStream,
    request: Vec<u8>,
    /// Empty until the request is whole.
    reply: Vec<u8>,
    sent: usize,
    deadline: Instant,
}

impl Monitors {
    /// Listens.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let (poll, mut listener) = (Poll::new()?, TcpListener::bind(address)?);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let exchanges = (0..EXCHANGES_MAX).map(|_| None).collect();
        Ok(Self { poll, listener, exchanges })
    }

    /// Its address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until the server stops, which somebody then tells by connecting.
    pub(crate) fn run(mut self, shared: &Arc<Shared>) -> io::Result<()> {
        let mut events = Events::with_capacity(EXCHANGES_MAX + 1);
        let mut may_accept = true;
        // Asked behind every accept: that may have taken the connection which was to tell.
        while !shared.is_stopping.load(Ordering::Acquire) {
            let is_busy = !may_accept || self.exchanges.iter().any(Option::is_some);
            match self.poll.poll(&mut events, is_busy.then_some(LOOK)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for Token(number) in events.iter().map(mio::event::Event::token) {
                self.go_on(shared, number);
            }
            let now = Instant::now();
            for slot in &mut self.exchanges {
                // Its end closes the socket, which is in no poll then.
                slot.take_if(|exchange| exchange.deadline <= now);
            }
            may_accept = self.accept(shared);
        }
        Ok(())
    }

    /// Accepts those that wait, as far as there is room. False when some may wait still.
    fn accept(&mut self, shared: &Arc<Shared>) -> bool {
        while let Some(number) = self.exchanges.iter().position(Option::is_none) {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    let token = Token(number);
                    if self.poll.registry().register(&mut stream, token, interest).is_err() {
                        // A monitor that was let down asks again.
                        continue;
                    }
                    self.exchanges[number] = Some(Exchange {
                        stream,
                        request: Vec::new(),
                        reply: Vec::new(),
                        sent: 0,
                        deadline: Instant::now() + PATIENCE,
                    });
                    self.go_on(shared, number);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Out of descriptors, most likely: others have to close theirs first.
                Err(_) => return false,
            }
        }
        false
    }

    /// Reads and writes what a socket has and takes; a connection that is done, or fails, ends.
    fn go_on(&mut self, shared: &Arc<Shared>, number: usize) {
        let Some(Some(exchange)) = self.exchanges.get_mut(number) else { return };
        match exchange.go_on(shared) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(()) | Err(_) => self.exchanges[number] = None,
        }
    }
}

impl Exchange {
    /// *Errors*: `WouldBlock` where the socket has to be waited for; others end it.
    fn go_on(&mut self, shared: &Arc<Shared>) -> io::Result<()> {
        let mut part = [0; 1024];
        while self.reply.is_empty() {
            match self.stream.read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.request.extend(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.request.windows(4).any(|end| end == b"\r\n\r\n") {
                self.reply = reply_to(shared, &self.request);
            } else if self.request.len() > REQUEST_BYTES {
                return Err(ErrorKind::InvalidData.into());
            }
        }
        while self.sent < self.reply.len() {
            match self.stream.write(&self.reply[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The reply to a request, with its headers.
fn reply_to(shared: &Arc<Shared>, request: &[u8]) -> Vec<u8> {
    let mut words = request.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut parts = target.splitn(2, |byte| *byte == b'?');
    let (path, query) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let unwell = |why: String| ("503 Service Unavailable", TEXT, format!("{why}\n"));
    let (status, kind, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/") => ("200 OK", HTML, PAGE.to_owned()),
        (b"GET" | b"HEAD", b"/status.json") => match shared.status.json(shared, since(query)) {
            Ok(json) => ("200 OK", JSON, json),
            Err(error) => unwell(error),
        },
        (b"GET" | b"HEAD", b"/healthz") => match sickness(shared) {
            None => ("200 OK", TEXT, format!("ok\n{}\n", place(shared))),
            Some(why) => unwell(why),
        },
        (b"GET" | b"HEAD", b"/metrics") => match shared.metrics.encode(shared) {
            Ok(text) if exposition::is_openmetrics(request) => {
                ("200 OK", exposition::OPENMETRICS, text)
            }
            Ok(text) => ("200 OK", exposition::PLAIN, exposition::plain_of(&text)),
            Err(error) => unwell(error),
        },
        (b"GET" | b"HEAD", _) => {
            let there = "there are /, /status.json, /metrics and /healthz\n";
            ("404 Not Found", TEXT, there.to_owned())
        }
        _ => ("405 Method Not Allowed", TEXT, "GET it\n".to_owned()),
    };
    let mut reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\nConnection: close\r\n",
        body.len()
    );
    if path == b"/metrics" {
        reply.push_str("Vary: Accept\r\n");
    }
    if kind == HTML {
        // A string takes all that is written to it.
        let _ = write!(reply, "Content-Security-Policy: {PAGE_POLICY}\r\n");
    }
    reply.push_str("\r\n");
    if method != b"HEAD" {
        reply.push_str(&body);
    }
    reply.into_bytes()
}

/// The number in `since=N`; 0 where there is none.
fn since(query: &[u8]) -> u64 {
    let values = query.split(|byte| *byte == b'&').filter_map(|part| part.strip_prefix(b"since="));
    let mut numbers = values.filter_map(|value| std::str::from_utf8(value).ok()?.parse().ok());
    numbers.next().unwrap_or(0)
}

/// The commit that is served, and the one to come.
fn place(shared: &Shared) -> String {
    let step = shared.store.last_commit().map_or("none".to_owned(), |c| c.step.to_string());
    let then = match (shared.is_writable(), shared.is_pinned.load(Ordering::Relaxed)) {
        (true, _) => "writes",
        (_, true) => "pinned",
        _ => "follows",
    };
    format!("commit step {step}, {then}")
}

/// The reason why the server is not fully working, if any.
fn sickness(shared: &Shared) -> Option<String> {
    shared.problem().or_else(|| shared.store.stats().err().map(|error| error.to_string()))
}
