//! The bytes of a connection, as they are or encrypted. Never blocks.

use mio::net::TcpStream;
use rustix::net::sockopt::set_socket_linger;
use rustls::ServerConnection;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::Duration;

/// Most encrypted bytes that wait for the socket.
const TLS_BUFFER_BYTES: usize = 256 << 10;
/// The first byte from a client of TLS.
pub(crate) const HANDSHAKE: u8 = 0x16;
const NOT_TLS: &[u8] =
    b"-ERR this server speaks TLS: connect with a rediss:// URL, or redis-cli --tls\r\n";

/// A socket, and the encryption of what goes over it.
pub(crate) enum Stream {
    /// The socket, and the bytes that it has taken. It is shared with nobody for longer than it
    /// takes to cut it off.
    Plain {
        socket: Arc<TcpStream>,
        sent: u64,
    },
    Tls(Box<Tls>),
}

/// A socket and its session.
pub(crate) struct Tls {
    socket: TcpStream,
    session: ServerConnection,
    /// Bytes that the socket has taken.
    sent: u64,
    /// Whether the client is known to speak TLS.
    is_known: bool,
    /// Whether it is known not to, and was told.
    is_refused: bool,
}

impl Stream {
    /// The bytes as they are.
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self::Plain { socket: Arc::new(socket), sent: 0 }
    }

    /// A session that the client begins.
    pub(crate) fn tls(socket: TcpStream, mut session: ServerConnection) -> Self {
        session.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        Self::Tls(Box::new(Tls { socket, session, sent: 0, is_known: false, is_refused: false }))
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain { socket, .. } => socket,
            Self::Tls(tls) => &tls.socket,
        }
    }

    /// Bytes that the socket has taken so far.
    pub(crate) fn sent(&self) -> u64 {
        match self {
            Self::Plain { sent, .. } => *sent,
            Self::Tls(tls) => tls.sent,
        }
    }

    /// Whether encryption is still being agreed upon.
    pub(crate) fn is_beginning(&self) -> bool {
        matches!(self, Self::Tls(tls) if !tls.is_refused && tls.session.is_handshaking())
    }

    /// Reads what there is. 0 bytes are the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain { socket, .. } => {
                let mut socket = &**socket;
                uninterrupted(|| socket.read(buffer))
            }
            Self::Tls(tls) => tls.read(buffer),
        }
    }

    /// Reads what there is, to be dropped: bytes are not decrypted any more. 0 bytes are the end.
    pub(crate) fn discard(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tls(tls) if !tls.is_refused && tls.session.is_handshaking() => tls.read(buffer),
            stream => {
                let mut socket = stream.socket();
                uninterrupted(|| socket.read(buffer))
            }
        }
    }

    /// Whether the client was told that it has to speak TLS.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.is_refused)
    }

    /// Ends the sending side, behind all that was written.
    pub(crate) fn end_sending(&mut self) {
        self.close();
        // A peer that is gone already cannot be told.
        let _ = self.socket().shutdown(std::net::Shutdown::Write);
    }

    /// Gives the socket what was encrypted. True when nothing is left of it.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain { .. } => Ok(true),
            Self::Tls(tls) => tls.flush(),
        }
    }

    /// Gives up what was sent and not acknowledged: the kernel is soon done with it.
    pub(crate) fn abandon(&mut self) {
        // A socket that is gone already has nothing left.
        let _ = set_socket_linger(self.socket(), Some(Duration::ZERO));
    }

    /// Tells the other side that nothing follows.
    pub(crate) fn close(&mut self) {
        if let Self::Tls(tls) = self
            && !tls.is_refused
        {
            tls.session.send_close_notify();
            // A peer that is gone cannot be told.
            let _ = tls.flush();
        }
    }
}

impl Tls {
    /// Refuses, in words that it understands, a client that does not speak TLS.
    fn greet(&mut self) -> io::Result<()> {
        let mut first = [0];
        let socket = &self.socket;
        if uninterrupted(|| socket.peek(&mut first))? == 1 && first[0] != HANDSHAKE {
            // A client that does not read it learns of it by the end of the connection.
            let _ = self.socket.write(NOT_TLS);
            self.is_refused = true;
            return Err(io::Error::new(ErrorKind::InvalidData, "the client does not speak TLS"));
        }
        self.is_known = true;
        Ok(())
    }

    /// Takes some of these bytes. `WouldBlock` when it takes none now.
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = self.session.writer().write_vectored(slices)?;
        if !self.flush()? || taken > 0 {
            return if taken > 0 { Ok(taken) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        taken = self.session.writer().write_vectored(slices)?;
        self.flush()?;
        Ok(taken)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.is_known {
            self.greet()?;
        }
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            let Self { socket, session, .. } = self;
            if uninterrupted(|| session.read_tls(socket))? == 0 {
                return Ok(0);
            }
            if let Err(error) = self.session.process_new_packets() {
                // The alert says what was wrong, if the client still listens.
                let _ = self.flush();
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        while self.session.wants_write() {
            let Self { socket, session, .. } = self;
            match uninterrupted(|| session.write_tls(socket)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                written => self.sent += written? as u64,
            }
        }
        Ok(true)
    }
}

fn uninterrupted(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
