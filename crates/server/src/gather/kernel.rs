//! Bytes to a socket from where they lie, copied by the kernel or sent without a copy.
//!
//! [`Message::send`] returns when the kernel has copied. [`ZeroCopy::send`] returns before that:
//! the kernel keeps the pages until the other side has acknowledged them, and tells by a
//! completion, also after the socket was closed. Until then a [`ZeroCopy`] keeps what it was given
//! to hold. One thread sends with it, and it never blocks.

#![expect(unsafe_code, reason = "the kernel takes raw addresses, also of memory that others write")]

use io_uring::{IoUring, Probe, cqueue, opcode, types};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::AtomicU64;

/// Most addresses of one message, as the kernel has it (`UIO_MAXIOV`).
const SLICES_MAX: usize = 1024;
const WORD_BYTES: usize = size_of::<u64>();
const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
/// Sends of a thread that the kernel may have at once; the next ones are copied.
const FLIGHTS_MAX: usize = 1024;
/// From the kernel's interface, `linux/io_uring.h`: ask whether the kernel had to copy, and its
/// answer in the completion.
const REPORT_USAGE: u16 = 1 << 3;
const WAS_COPIED: u32 = 1 << 31;

/// Bytes that are to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    /// As they are.
    Bytes(&'a [u8]),
    /// These many bytes of words that others may write, behind so many.
    Words(&'a [AtomicU64], usize, usize),
}

/// Addresses of bytes for one system call.
pub(crate) struct Message<'a> {
    slices: Vec<libc::iovec>,
    bytes: usize,
    of: PhantomData<&'a [AtomicU64]>,
}

impl<'a> Message<'a> {
    /// A message of as many pieces as one call takes.
    pub(crate) fn of(pieces: impl Iterator<Item = Piece<'a>>) -> Self {
        let (mut slices, mut bytes) = (Vec::with_capacity(8), 0);
        for piece in pieces.take(SLICES_MAX) {
            let (base, len) = match piece {
                Piece::Bytes(part) => (part.as_ptr(), part.len()),
                Piece::Words(words, skip, len) => {
                    assert!(skip + len <= words.len() * WORD_BYTES, "bytes behind the words");
                    (words.as_ptr().cast::<u8>().wrapping_add(skip), len)
                }
            };
            slices.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len });
            bytes += len;
        }
        Self { slices, bytes, of: PhantomData }
    }

    /// All its bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: all zeros are a message without address, bytes and control data.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.slices.as_mut_ptr();
        header.msg_iovlen = self.slices.len() as _;
        header
    }

    /// Sends some of it, copied. `WouldBlock` when the socket takes nothing now.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let header = self.header();
        loop {
            // SAFETY: header and addresses live until the call returns; what they name is borrowed
            // for `'a`, and the kernel only reads it.
            let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, FLAGS) };
            if let Ok(sent) = usize::try_from(sent) {
                return Ok(sent);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// A ring for sends without a copy, and what they hold.
pub(crate) struct ZeroCopy<H> {
    ring: IoUring,
    /// Data the kernel may still read, by the number of the send, and whether that sent anything.
    flights: Vec<Option<(H, bool)>>,
    free: Vec<usize>,
    /// Data that the kernel no longer reads, and nobody has taken back.
    landed: Vec<H>,
    /// The ring has failed amid a call, and takes no more.
    is_broken: bool,
    sent: u64,
    copied: u64,
}

/// A completion of a send.
enum Answer {
    /// The number of bytes it took, or an error; and whether its end follows.
    Result(i32, bool),
    /// The kernel is done with its memory, and whether it had copied it.
    End(bool),
}

impl<H> ZeroCopy<H> {
    /// A ring. *Errors*: the kernel's, also where it lacks such sends (before Linux 6.1).
    pub(crate) fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_coop_taskrun().setup_cqsize(2 * FLIGHTS_MAX as u32);
        let ring = builder.build(4)?;
        let mut operations = Probe::new();
        ring.submitter().register_probe(&mut operations)?;
        if !operations.is_supported(opcode::SendMsgZc::CODE) {
            return Err(io::Error::other("the kernel lacks SENDMSG_ZC, which came with Linux 6.1"));
        }
        Ok(Self {
            ring,
            flights: Vec::new(),
            free: Vec::new(),
            landed: Vec::new(),
            is_broken: false,
            sent: 0,
            copied: 0,
        })
    }

    /// Readable when the kernel may be done with something.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Sends so far, and those of them for which the kernel has reported a copy nevertheless.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.sent, self.copied)
    }

    /// Data that the kernel may still read.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &H> {
        self.flights.iter().flatten().map(|(held, _)| held)
    }

    /// The same, to be changed.
    pub(crate) fn in_flight_mut(&mut self) -> impl Iterator<Item = &mut H> {
        self.flights.iter_mut().flatten().map(|(held, _)| held)
    }

    /// Data that it no longer reads, and that was not reaped.
    pub(crate) fn landed_mut(&mut self) -> impl Iterator<Item = &mut H> {
        self.landed.iter_mut()
    }

    /// Learns what the kernel has done with. Any thread may.
    pub(crate) fn settle(&mut self) {
        self.take_answers(|_, _| {});
    }

    /// Sends some of a message. The bytes sent must not change until the kernel is done with them:
    /// `hold` gets their number and returns the owner of these first bytes of the message.
    /// `WouldBlock` when the socket takes nothing now. If the kernel cannot send so, it copies.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        message: &mut Message<'_>,
        hold: impl FnOnce(usize) -> H,
    ) -> io::Result<usize> {
        let Some(number) = self.number() else { return message.send(socket) };
        let header = message.header();
        let entry = opcode::SendMsgZc::new(types::Fd(socket.as_raw_fd()), &raw const header)
            .flags(FLAGS as u32)
            .ioprio(REPORT_USAGE)
            .build()
            .user_data(number as u64);
        // SAFETY: header and addresses live until the result is there, which is waited for below;
        // a ring that fails before is never entered again. The kernel only reads what they name,
        // from pages that it pins.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.is_broken = true;
        }
        let (mut result, mut ended) = (None, None);
        while result.is_none() && !self.is_broken {
            if let Err(error) = self.ring.submit_and_wait(1)
                && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY))
            {
                self.is_broken = true;
            }
            self.take_answers(|of, answer| match answer {
                Answer::Result(bytes, more) if of == number => result = Some((bytes, more)),
                Answer::End(was_copied) if of == number => ended = Some(was_copied),
                _ => {}
            });
        }
        let Some((code, more)) = result else {
            // Nobody knows whether the message went out.
            self.flights[number] = Some((hold(message.bytes()), true));
            return Err(io::Error::other("a ring for zero-copy sends has failed"));
        };
        let sent = usize::try_from(code).unwrap_or(0);
        match (more, ended) {
            (true, None) => self.flights[number] = Some((hold(sent), sent > 0)),
            (_, was_copied) => {
                self.copied += u64::from(sent > 0 && was_copied == Some(true));
                self.free.push(number);
            }
        }
        match -code {
            _ if code >= 0 => {
                self.sent += 1;
                Ok(sent)
            }
            // The limit of locked memory, or of the socket's options; or a socket that cannot.
            libc::ENOBUFS | libc::ENOMEM | libc::EOPNOTSUPP | libc::EINVAL => message.send(socket),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Gives back what the kernel has done with since the last call.
    pub(crate) fn reap(&mut self, landed: impl FnMut(H)) {
        self.settle();
        self.landed.drain(..).for_each(landed);
    }

    /// A number for a send, if one more can be under way.
    fn number(&mut self) -> Option<usize> {
        if self.is_broken {
            return None;
        }
        self.free.pop().or_else(|| {
            (self.flights.len() < FLIGHTS_MAX).then(|| {
                self.flights.push(None);
                self.flights.len() - 1
            })
        })
    }

    fn take_answers(&mut self, mut seen: impl FnMut(usize, Answer)) {
        let Self { ring, flights, free, landed, copied, .. } = self;
        for answer in ring.completion() {
            let number = answer.user_data() as usize;
            if cqueue::notif(answer.flags()) {
                let was_copied = answer.result() as u32 & WAS_COPIED != 0;
                match flights[number].take() {
                    Some((held, has_sent)) => {
                        *copied += u64::from(has_sent && was_copied);
                        landed.push(held);
                        free.push(number);
                    }
                    // Its result came in the same call, and it has nothing in flight yet.
                    None => seen(number, Answer::End(was_copied)),
                }
            } else {
                seen(number, Answer::Result(answer.result(), cqueue::more(answer.flags())));
            }
        }
    }
}

impl<H> Drop for ZeroCopy<H> {
    fn drop(&mut self) {
        // Data that the kernel may still send is left to it, unchanged.
        self.flights.drain(..).flatten().for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn words(count: u64) -> Arc<Vec<AtomicU64>> {
        Arc::new((0..count).map(AtomicU64::new).collect())
    }

    fn wait(ring: &mut ZeroCopy<Arc<Vec<AtomicU64>>>) -> usize {
        let (begin, mut landed) = (Instant::now(), 0);
        while ring.in_flight().next().is_some() || !ring.landed.is_empty() {
            ring.reap(|_| landed += 1);
            std::thread::sleep(Duration::from_millis(1));
            assert!(begin.elapsed() < Duration::from_secs(10), "the kernel never ended a send");
        }
        landed
    }

    #[test]
    fn bytes_and_words_arrive_in_order_with_both_ways_of_sending() {
        let words = words(1000);
        let pieces = || {
            let words = (0..1000).map(|at| Piece::Words(&words[at..at + 1], 1, 6));
            std::iter::once(Piece::Bytes(b"head")).chain(words)
        };
        let mut expected = b"head".to_vec();
        (0..1000u64).for_each(|word| expected.extend(&word.to_le_bytes()[1..7]));
        let mut ring = ZeroCopy::new().unwrap();
        for is_zero_copy in [false, true] {
            let (near, mut far) = pair();
            let mut message = Message::of(pieces());
            assert_eq!(message.bytes(), expected.len());
            let sent = match is_zero_copy {
                false => message.send(near.as_fd()),
                true => ring.send(near.as_fd(), &mut message, |_| words.clone()),
            };
            // Few pages go into one packet: of so many pieces not all may be taken.
            let sent = sent.unwrap();
            assert!(sent > 1000, "{sent} bytes");
            let mut got = vec![0; sent];
            far.read_exact(&mut got).unwrap();
            assert_eq!(got, expected[..sent]);
        }
        wait(&mut ring);
        assert_eq!(ring.counts().0, 1);
        assert_eq!(Arc::strong_count(&words), 1);
    }

    #[test]
    fn memory_is_held_while_the_client_takes_nothing_and_until_the_socket_is_cut() {
        let (near, far) = pair();
        let words = words(1 << 20);
        let mut ring = ZeroCopy::new().unwrap();
        let mut sends = 0;
        loop {
            let mut message = Message::of(std::iter::once(Piece::Words(&words, 0, 8 << 20)));
            match ring.send(near.as_fd(), &mut message, |_| words.clone()) {
                Ok(_) => sends += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        ring.reap(drop);
        assert!(sends > 0 && ring.in_flight().count() > 0, "{sends} sends");
        rustix::net::sockopt::set_socket_linger(&near, Some(Duration::ZERO)).unwrap();
        drop(near);
        wait(&mut ring);
        assert_eq!(Arc::strong_count(&words), 1);
        drop(far);
    }

    #[test]
    fn a_closed_connection_is_an_error_of_the_send_and_holds_nothing() {
        let (near, far) = pair();
        drop(far);
        let words = words(1 << 10);
        let mut ring = ZeroCopy::new().unwrap();
        let begin = Instant::now();
        let error = loop {
            let mut message = Message::of(std::iter::once(Piece::Words(&words, 0, 8 << 10)));
            match ring.send(near.as_fd(), &mut message, |_| words.clone()) {
                Err(error) => break error,
                Ok(_) => assert!(begin.elapsed() < Duration::from_secs(10)),
            }
        };
        let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        assert!(kinds.contains(&error.kind()), "{error}");
        drop(near);
        wait(&mut ring);
        assert_eq!(Arc::strong_count(&words), 1);
    }

    #[test]
    fn what_the_kernel_still_has_outlives_the_ring() {
        let (near, _far) = pair();
        let words = words(1 << 20);
        let mut ring = ZeroCopy::new().unwrap();
        let mut message = Message::of(std::iter::once(Piece::Words(&words, 0, 8 << 20)));
        ring.send(near.as_fd(), &mut message, |_| words.clone()).unwrap();
        drop(message);
        let held = ring.in_flight().count();
        drop(ring);
        assert_eq!(Arc::strong_count(&words), 1 + held);
    }
}
