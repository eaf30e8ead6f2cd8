//! Rows as one flat array in mapped memory: a file's pages, or anonymous ones. The array is the
//! index, so a key is its row's number.
#![expect(unsafe_code, reason = "memory mappings exist only as system calls on raw addresses")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::error::{Error, Result};

/// The kernel's page, in bytes; the smallest unit of its advice.
const PAGE_BYTES: usize = 4096;
/// `process_madvise` takes at most this many ranges a call (UIO_MAXIOV).
const RANGES_MAX: usize = 1024;

/// An array of float32 in mapped memory.
pub(crate) struct Mapping {
    address: *mut f32,
    words: usize,
    /// This process, as `process_madvise` wants it named; -1 where the kernel lacks the call.
    process: libc::c_int,
    ranges: Vec<libc::iovec>,
}

impl Mapping {
    /// Maps `words` words of `file`, which has to be that long; or anonymous memory of zeros.
    pub(crate) fn new(words: usize, file: Option<&File>) -> Result<Self> {
        let (flags, descriptor) = match file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let bytes = 4 * words;
        // SAFETY: the kernel chooses the address, so no mapping that exists is replaced.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, descriptor, 0) };
        if address == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            return Err(Error::new(format!("mapping {bytes} bytes: {error}")));
        }
        // SAFETY: the call names a process by its id and touches no memory.
        let process = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
        let ranges = Vec::with_capacity(RANGES_MAX);
        Ok(Self { address: address.cast(), words, process: process as libc::c_int, ranges })
    }

    /// Tells the kernel that the pages are used in no order, so that it reads none beside them.
    pub(crate) fn random(&self) {
        // SAFETY: the range is this mapping; the advice changes no content.
        unsafe { libc::madvise(self.address.cast(), 4 * self.words, libc::MADV_RANDOM) };
    }

    /// Tells the kernel not to make huge pages, which a row of 128 bytes would drag along.
    pub(crate) fn small_pages(&self) {
        // SAFETY: the range is this mapping; the advice changes no content.
        unsafe { libc::madvise(self.address.cast(), 4 * self.words, libc::MADV_NOHUGEPAGE) };
    }

    pub(crate) fn words(&self) -> &[f32] {
        // SAFETY: the mapping is that long and lives as long as `self`; every bit pattern is a
        // float; only this process has the file open, and `&mut self` writes it.
        unsafe { std::slice::from_raw_parts(self.address, self.words) }
    }

    pub(crate) fn words_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `words`, and `&mut self` makes this the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.words) }
    }

    /// Asks the kernel to begin reading the pages of these ranges of words, with one system call
    /// for many ranges where it can.
    pub(crate) fn will_need(&mut self, starts: impl Iterator<Item = usize>, words: usize) {
        let mut last = usize::MAX;
        for start in starts {
            assert!(start + words <= self.words, "range beyond the end of the mapping");
            let begin = 4 * start / PAGE_BYTES * PAGE_BYTES;
            if begin == last {
                continue;
            }
            last = begin;
            let bytes = 4 * (start + words) - begin;
            // The kernel's advice wants page-aligned beginnings, and rounds lengths itself.
            let base = self.address.cast::<u8>().wrapping_add(begin).cast();
            self.ranges.push(libc::iovec { iov_base: base, iov_len: bytes });
            if self.ranges.len() == RANGES_MAX {
                self.advise();
            }
        }
        self.advise();
    }

    fn advise(&mut self) {
        if self.ranges.is_empty() {
            return;
        }
        let (ranges, count) = (self.ranges.as_ptr(), self.ranges.len());
        let advice = libc::MADV_WILLNEED;
        let call = libc::SYS_process_madvise;
        // SAFETY: all ranges lie in this mapping (asserted in `will_need`); the advice changes no
        // content, and the list of ranges outlives the call.
        let done = unsafe { libc::syscall(call, self.process, ranges, count, advice, 0) };
        if done < 0 {
            for range in &self.ranges {
                // SAFETY: as above, one range at a time.
                unsafe { libc::madvise(range.iov_base, range.iov_len, advice) };
            }
        }
        self.ranges.clear();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing borrowed from `self` is left, and the descriptor is ours.
        unsafe {
            libc::munmap(self.address.cast(), 4 * self.words);
            if self.process >= 0 {
                libc::close(self.process);
            }
        }
    }
}
