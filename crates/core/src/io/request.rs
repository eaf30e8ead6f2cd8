//! One request on its way: what it wants, how far it got, how it ends.
//!
//! Shared by the queues, so that short transfers, interruptions and short files mean the same
//! thing on all of them.

use super::aligned::Loan;
use super::{Buffers, File};
use crate::error::{Error, ErrorKind, Result, bail};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Upper bound of the number of times that one request is handed to the system again after "try
/// again" without progress. Only memory pressure and exiting threads cause it, and both pass.
const RETRIES_MAX: u32 = 1000;

/// A request with its part of a buffer and the file it keeps open.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) loan: Loan,
    pub(crate) file: Arc<dyn File>,
    pub(crate) offset: u64,
    pub(crate) token: u64,
    /// Bytes moved so far, a multiple of the alignment until the last step.
    pub(crate) done: usize,
    retries: u32,
    /// Largest number of bytes that are asked for at once: a test's way to short transfers.
    #[cfg(test)]
    most: u32,
}

#[cfg(test)]
thread_local! {
    /// The `most` of requests that are made on this thread.
    pub(crate) static TRANSFER_MAX: std::cell::Cell<u32> =
        const { std::cell::Cell::new(u32::MAX) };
}

impl Request {
    #[inline]
    pub(crate) fn new(loan: Loan, file: &Arc<dyn File>, offset: u64, token: u64) -> Self {
        Self {
            loan,
            file: Arc::clone(file),
            offset,
            token,
            done: 0,
            retries: 0,
            #[cfg(test)]
            most: TRANSFER_MAX.get(),
        }
    }

    /// The part of the buffer that is to be asked for next.
    #[inline]
    pub(crate) fn rest(&self) -> Range<usize> {
        let end = self.loan.len();
        #[cfg(test)]
        let end = end.min(self.done.saturating_add(self.most as usize));
        self.done..end
    }

    /// Takes the outcome of one system transfer; `None` when the rest must be asked for.
    ///
    /// Progress counts in whole multiples of `alignment`, because a direct transfer cannot go on
    /// from anywhere else; the few bytes moved beyond are moved again.
    #[inline]
    pub(crate) fn advance(
        &mut self,
        outcome: io::Result<usize>,
        alignment: usize,
    ) -> Option<Result<()>> {
        match outcome {
            Ok(moved) if self.done + moved >= self.loan.len() => {
                self.done = self.loan.len();
                Some(Ok(()))
            }
            Ok(moved) => self.advance_short(moved, alignment),
            Err(error) => self.advance_failed(error),
        }
    }

    #[cold]
    fn advance_short(&mut self, moved: usize, alignment: usize) -> Option<Result<()>> {
        let reached = self.done + moved;
        let aligned = reached - reached % alignment;
        if aligned > self.done {
            self.done = aligned;
            return None;
        }
        let (wanted, offset, name) = (self.loan.len(), self.offset, self.file.name());
        Some(Err(if self.loan.is_write() {
            Error::new(
                ErrorKind::Io,
                format!("write {name}: only {reached} of {wanted} bytes at {offset} were taken"),
            )
        } else {
            short_file(name, offset, wanted, offset + reached as u64)
        }))
    }

    #[cold]
    fn advance_failed(&mut self, error: io::Error) -> Option<Result<()>> {
        let again = matches!(
            error.raw_os_error(),
            Some(libc::EINTR) | Some(libc::EAGAIN) | Some(libc::ECANCELED)
        );
        if again && self.retries < RETRIES_MAX {
            self.retries += 1;
            return None;
        }
        let verb = if self.loan.is_write() { "write" } else { "read" };
        let (wanted, offset) = (self.loan.len(), self.offset);
        let what = format!("{verb} {}: {wanted} bytes at {offset}", self.file.name());
        Some(Err(Error::os(what, error)))
    }
}

/// The error of a file that ends too early.
pub(crate) fn short_file(name: &str, offset: u64, wanted: usize, end: u64) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("{name} is cut short: {wanted} bytes at {offset} are wanted, it ends at {end}"),
    )
}

/// Refuses the names that would leave the medium's directory.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        bail!(Misuse, "\"{name}\" is no file name: expected one path component");
    }
    Ok(())
}

/// Asserts what every queue demands of a request.
#[inline]
pub(crate) fn check_request(offset: u64, bytes: usize, alignment: usize, room: bool) {
    assert!(room, "the queue is full: take completions before queueing more");
    assert!(
        offset.is_multiple_of(alignment as u64) && bytes.is_multiple_of(alignment),
        "request of {bytes} bytes at {offset} is not aligned to {alignment}"
    );
}

/// Refuses queue shapes that cannot work.
pub(crate) fn check_queue(depth: usize, buffers: Buffers, alignment: usize) -> Result<()> {
    let Buffers { pieces, piece_bytes, longest } = buffers;
    // 1 GiB is the most that one registered io_uring buffer may have, 32,768 the most entries of a
    // submission ring.
    let most = longest.saturating_mul(piece_bytes).max(piece_bytes);
    let fits = most <= 1 << 30 && depth <= 32_768 && pieces <= 1 << 20;
    if depth == 0 || pieces == 0 || piece_bytes == 0 || !fits {
        bail!(
            Misuse,
            "a queue of depth {depth} over {pieces} buffers of {piece_bytes} bytes cannot be made"
        );
    }
    if !piece_bytes.is_multiple_of(alignment) {
        bail!(Misuse, "buffers of {piece_bytes} bytes are not a multiple of {alignment}");
    }
    if !(1..=pieces).contains(&longest) || longest > 1 && !piece_bytes.is_power_of_two() {
        bail!(Misuse, "{pieces} pieces of {piece_bytes} bytes make no buffers of {longest} pieces");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::aligned::BufferPool;
    use crate::io::{Medium, OpenMode, SimMedium};

    fn request(write: bool) -> Request {
        let mut pool = BufferPool::new(Buffers::equal(1, 4096)).unwrap();
        let buffer = pool.acquire(4096).unwrap();
        let file = SimMedium::new(0).open("rows", OpenMode::CreateNew).unwrap();
        let loan =
            if write { pool.lend_to_write(buffer, 4096) } else { pool.lend_to_read(buffer, 4096) };
        Request::new(loan, &file, 8192, 0)
    }

    fn os(code: i32) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(code))
    }

    #[test]
    fn a_short_transfer_goes_on_from_the_last_aligned_byte() {
        for write in [false, true] {
            let mut request = request(write);
            assert!(request.advance(Ok(1000), 512).is_none());
            assert_eq!(request.done, 512);
            assert!(request.advance(Ok(1024), 512).is_none());
            assert_eq!(request.done, 1536);
            assert!(request.advance(Ok(2560), 512).unwrap().is_ok());
        }
    }

    #[test]
    fn a_transfer_without_progress_ends_as_short_file_or_failed_write() {
        let mut read = request(false);
        assert!(read.advance(Ok(700), 512).is_none());
        let error = read.advance(Ok(188), 512).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("ends at 8892"), "{error}");
        let error = request(true).advance(Ok(0), 512).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }

    #[test]
    fn interruptions_are_repeated_a_bounded_number_of_times_and_failures_are_not() {
        let mut interrupted = request(false);
        let mut tries = 0;
        while interrupted.advance(os(libc::EINTR), 512).is_none() {
            tries += 1;
        }
        assert_eq!(tries, RETRIES_MAX);
        let error = request(true).advance(os(libc::ENOSPC), 512).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        let error = request(false).advance(os(libc::EIO), 512).unwrap().unwrap_err();
        assert!(error.message().starts_with("read rows: 4096 bytes at 8192"), "{error}");
    }
}
