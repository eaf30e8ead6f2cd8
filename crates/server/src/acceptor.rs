//! The thread that accepts connections, and hands each to the thread with its turn.

use crate::shared::Shared;
use crate::worker::{Mail, Post};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// How long it waits before it accepts again, after the system had no descriptor to give.
const PAUSE: Duration = Duration::from_millis(100);

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
                Ok((socket, _)) => self.hand_over(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::Interrupted
                            | ErrorKind::ConnectionAborted
                            | ErrorKind::ConnectionReset
                    ) => {}
                Err(_) => return Some(PAUSE),
            }
        }
    }

    fn hand_over(&mut self, mut socket: TcpStream) {
        let metrics = &self.shared.metrics;
        let most = self.shared.options.max_connections;
        if self.shared.connections.load(Ordering::Relaxed) >= most {
            metrics.rejected.inc();
            // Whoever does not take it learns of it by the end of the connection.
            let _ = socket.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        // Replies are written whole; where the system refuses, they come a little later.
        let _ = socket.set_nodelay(true);
        metrics.accepted.inc();
        self.accepted += 1;
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        let post = &self.posts[self.accepted as usize % self.posts.len()];
        post.send(Mail::Connection(socket, self.accepted));
    }
}
