//! `/metrics` and `/healthz` over HTTP/1.1, for monitors on the same machine.
//!
//! One request at a time, one request a connection: monitors ask every few seconds. Who sends or
//! takes slowly is waited for `PATIENCE` altogether, and not at all once the server stops.

use crate::shared::Shared;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(2);
/// How often it looks whether the server stops.
const LOOK: Duration = Duration::from_millis(100);
/// Longest request, headers included.
const REQUEST_BYTES: usize = 8 << 10;
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until the server stops, which somebody then tells by connecting.
pub(crate) fn run(shared: &Arc<Shared>, listener: &TcpListener) {
    for stream in listener.incoming() {
        if shared.is_stopping.load(Ordering::Acquire) {
            return;
        }
        match stream {
            // A monitor that has gone asks again.
            Ok(stream) => drop(serve(shared, stream)),
            // Out of descriptors, most likely: others have to close theirs first.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn serve(shared: &Arc<Shared>, mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(LOOK))?;
    let deadline = Instant::now() + PATIENCE;
    let request = read_request(shared, &mut stream, deadline)?;
    let mut words = request.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/healthz") => match sickness(shared) {
            None => ("200 OK", TEXT, format!("ok\n{}\n", place(shared))),
            Some(why) => ("503 Service Unavailable", TEXT, format!("{why}\n")),
        },
        (b"GET" | b"HEAD", b"/metrics") => match shared.metrics.encode(shared) {
            Ok(text) => ("200 OK", METRICS, text),
            Err(error) => ("503 Service Unavailable", TEXT, format!("{error}\n")),
        },
        (b"GET" | b"HEAD", _) => {
            ("404 Not Found", TEXT, "there are /metrics and /healthz\n".to_owned())
        }
        _ => ("405 Method Not Allowed", TEXT, "GET it\n".to_owned()),
    };
    let length = body.len();
    let body = if method == b"HEAD" { "" } else { &body };
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    );
    let mut left = reply.as_bytes();
    while !left.is_empty() {
        let count = within(shared, deadline, || stream.write(left))?;
        if count == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        left = &left[count..];
    }
    Ok(())
}

/// Reads or writes once, until the deadline or the server's end.
fn within(
    shared: &Shared,
    deadline: Instant,
    mut attempt: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    while Instant::now() < deadline && !shared.is_stopping.load(Ordering::Acquire) {
        match attempt() {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            done => return done,
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// Which commit is served, and which will be.
fn place(shared: &Shared) -> String {
    let step = shared.store.last_commit().map_or("none".to_owned(), |c| c.step.to_string());
    let then = match (shared.is_writable(), shared.is_pinned.load(Ordering::Relaxed)) {
        (true, _) => "writes",
        (_, true) => "pinned",
        _ => "follows",
    };
    format!("commit step {step}, {then}")
}

/// What keeps the server from doing all that it should.
fn sickness(shared: &Shared) -> Option<String> {
    if shared.store.is_poisoned() {
        return Some("the store refuses writes and commits after an error".to_owned());
    }
    let failed = shared.timer_failure.lock().clone();
    failed.or_else(|| shared.store.stats().err().map(|error| error.to_string()))
}

/// The request up to the empty line behind its headers.
fn read_request(shared: &Shared, stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    loop {
        let count = within(shared, deadline, || stream.read(&mut part))?;
        request.extend(&part[..count]);
        let is_whole = request.windows(4).any(|end| end == b"\r\n\r\n");
        if is_whole {
            return Ok(request);
        }
        if count == 0 || request.len() > REQUEST_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
    }
}
