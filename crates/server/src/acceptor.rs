//! The thread that accepts connections, and hands each to the thread with its turn.

use crate::shared::Shared;
use crate::worker::{Mail, Post};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
};
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// The pause before it accepts again, after the system had no descriptor to give.
const PAUSE: Duration = Duration::from_millis(100);

/// The error for a connection beyond the limit.
pub(crate) const TOO_MANY: &str = "max number of clients reached";

/// Has the system ask the other side of a silent connection after so long whether it is there; it
/// ends when three questions, a third of the time apart, are not answered.
fn keep_alive(socket: &TcpStream, time: Duration) -> rustix::io::Result<()> {
    // Linux counts in whole seconds, to 32,767.
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, 32_767));
    set_socket_keepalive(socket, true)?;
    set_tcp_keepidle(socket, seconds(time))?;
    set_tcp_keepintvl(socket, seconds(time / 3))?;
    set_tcp_keepcnt(socket, 3)
}

/// Accepts connections until the server stops.
pub(crate) struct Acceptor {
    shared: Arc<Shared>,
    listener: TcpListener,
    poll: Poll,
    posts: Vec<Post>,
    accepted: u64,
}

impl Acceptor {
    /// One that accepts from `listener`, and what wakes it when the server stops.
    pub(crate) fn new(
        shared: Arc<Shared>,
        mut listener: TcpListener,
        posts: Vec<Post>,
    ) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        Ok((Self { shared, listener, poll, posts, accepted: 0 }, waker))
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(8);
        let mut wait = None;
        loop {
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            if self.shared.is_stopping.load(Ordering::Acquire) {
                return Ok(());
            }
            wait = self.accept_all();
        }
    }

    /// Accepts all that wait. Returns after what time to look again, if not only when more come.
    fn accept_all(&mut self) -> Option<Duration> {
        loop {
            match self.listener.accept() {
                Ok((socket, peer)) => self.hand_over(socket, peer),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted
                            | ErrorKind::ConnectionAborted
                            | ErrorKind::ConnectionReset
                    ) => {}
                Err(error) => {
                    self.shared.limits.not_accepted(&error);
                    return Some(PAUSE);
                }
            }
        }
    }

    fn hand_over(&mut self, mut socket: TcpStream, peer: SocketAddr) {
        let metrics = &self.shared.metrics;
        let most = self.shared.options.max_connections;
        let seat = self.shared.clients.seat(most);
        let is_refused = seat.is_none();
        let counter = if is_refused { &metrics.rejected } else { &metrics.accepted };
        counter.inc();
        if is_refused {
            self.shared.limits.full(peer, most);
        }
        let Some(seat) = seat.or_else(|| self.shared.clients.refused_seat()) else {
            // A client that does not read it learns of it by the end of the connection.
            let _ = socket.write(format!("-ERR {TOO_MANY}\r\n").as_bytes());
            return;
        };
        // Replies are written whole; where the system refuses, they come a little later.
        let _ = socket.set_nodelay(true);
        if let Some(time) = self.shared.options.tcp_keepalive {
            // One that is gone already is found out by the first read.
            let _ = keep_alive(&socket, time);
        }
        self.accepted += 1;
        let post = &self.posts[self.accepted as usize % self.posts.len()];
        post.send(Mail::Connection { socket, id: self.accepted, seat, is_refused });
    }
}
