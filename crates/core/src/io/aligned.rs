//! Aligned buffers of a queue: one anonymous mapping cut into equal pieces.
//!
//! The pool knows which buffer belongs to whom and asserts it: a free buffer is nobody's, an
//! acquired one is the caller's, a lent one belongs to the request that carries its [`Loan`]. A
//! loan keeps the mapping alive, so that memory which a thread or the kernel still uses is never
//! unmapped, whatever happens to the pool. A forked child does not inherit the mapping: fork must
//! neither copy it nor leave a page of it shared while the device writes there.

#![expect(unsafe_code, reason = "hands out slices of one anonymous mapping")]

use super::BufferId;
use crate::error::{Error, Result, bail};
use std::ptr::NonNull;
use std::sync::Arc;

/// Every buffer starts at a multiple of this, which satisfies every direct I/O alignment in use;
/// a shorter one at a multiple of its own length, as a request is no longer than its buffer and a
/// multiple of the alignment. So a buffer of a power of two takes no memory but its own.
const BUFFER_ALIGNMENT: usize = 4096;

/// The mapping. Nobody dereferences it except through a pool or a loan.
#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// The process that made the mapping: a forked child has none at this address.
    process: u32,
}

// SAFETY: the region is plain memory without thread affinity; who may touch which part of it is
// decided by the pool's buffer states, which only change under `&mut BufferPool`.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` alone gives no access to the bytes.
unsafe impl Sync for Region {}

impl Region {
    fn new(bytes: usize) -> Result<Self> {
        // SAFETY: a new anonymous private mapping at an address the kernel chooses touches no
        // existing memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let base = NonNull::new(address.cast::<u8>()).filter(|_| address != libc::MAP_FAILED);
        let Some(base) = base else {
            let source = std::io::Error::last_os_error();
            return Err(Error::os(format!("map {bytes} bytes of request buffers"), source));
        };
        #[cfg(all(target_os = "linux", not(miri)))]
        // SAFETY: advice about the mapping made above; refusal changes nothing we rely on.
        let _ = unsafe { libc::madvise(address, bytes, libc::MADV_DONTFORK) };
        Ok(Self { base, bytes, process: std::process::id() })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            // SAFETY: this process made the mapping, nothing refers to it any more (the last
            // owner is being dropped), and it is unmapped once.
            let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}

/// Who may use a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Acquired,
    /// Lent to a read: nobody else may touch it.
    Reading,
    /// Lent to a write: it may be read by all and changed by nobody.
    Writing,
}

/// Equal aligned buffers and who may use each of them.
#[derive(Debug)]
pub(crate) struct BufferPool {
    region: Arc<Region>,
    buffer_bytes: usize,
    stride: usize,
    states: Vec<State>,
    free: Vec<BufferId>,
}

impl BufferPool {
    /// Maps `buffers` zeroed buffers of `buffer_bytes` each.
    pub(crate) fn new(buffers: usize, buffer_bytes: usize) -> Result<Self> {
        let alignment = buffer_bytes.checked_next_power_of_two().map(|b| b.min(BUFFER_ALIGNMENT));
        let stride = alignment.and_then(|a| buffer_bytes.checked_next_multiple_of(a));
        let bytes = stride.and_then(|stride| stride.checked_mul(buffers));
        let (Some(stride), Some(bytes)) = (stride, bytes) else {
            bail!(Misuse, "{buffers} buffers of {buffer_bytes} bytes exceed the address space");
        };
        if bytes == 0 || bytes > isize::MAX as usize {
            bail!(Misuse, "a queue needs buffers, {buffers} of {buffer_bytes} bytes were asked");
        }
        Ok(Self {
            region: Arc::new(Region::new(bytes)?),
            buffer_bytes,
            stride,
            states: vec![State::Free; buffers],
            free: (0..buffers).rev().collect(),
        })
    }

    /// Number of buffers.
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Bytes of one buffer.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// All memory of the pool, its tables included.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.region.bytes + self.len() * (size_of::<State>() + size_of::<BufferId>())
    }

    /// Address and length of the whole mapping, to register it with the kernel.
    #[cfg(target_os = "linux")]
    pub(crate) fn mapping(&self) -> (*mut u8, usize) {
        (self.region.base.as_ptr(), self.region.bytes)
    }

    /// A free buffer, which is the caller's from here to `release`.
    #[inline]
    pub(crate) fn acquire(&mut self) -> Option<BufferId> {
        let buffer = self.free.pop()?;
        self.states[buffer] = State::Acquired;
        Some(buffer)
    }

    /// Gives an acquired buffer back.
    #[inline]
    pub(crate) fn release(&mut self, buffer: BufferId) {
        self.expect(buffer, State::Acquired, "release");
        self.states[buffer] = State::Free;
        self.free.push(buffer);
    }

    /// The bytes of a buffer that is acquired or being written from.
    #[inline]
    pub(crate) fn bytes(&self, buffer: BufferId) -> &[u8] {
        let state = self.states[buffer];
        assert!(
            matches!(state, State::Acquired | State::Writing),
            "buffer {buffer} is {state:?}: only an acquired or written one may be looked at"
        );
        // SAFETY: the range lies in the mapping, which lives as long as `self`. In these two states
        // the only other access is a write request's, which reads; changing needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.address(buffer), self.buffer_bytes) }
    }

    /// The bytes of an acquired buffer.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.expect(buffer, State::Acquired, "change");
        // SAFETY: the range lies in the mapping and no other buffer overlaps it. An acquired buffer
        // is not lent, and `&mut self` excludes every other slice of this pool.
        unsafe { std::slice::from_raw_parts_mut(self.address(buffer), self.buffer_bytes) }
    }

    /// Lends the first `bytes` of an acquired buffer to a read.
    #[inline]
    pub(crate) fn lend_to_read(&mut self, buffer: BufferId, bytes: usize) -> Loan {
        self.lend(buffer, bytes, State::Reading)
    }

    /// Lends the first `bytes` of an acquired buffer to a write.
    #[inline]
    pub(crate) fn lend_to_write(&mut self, buffer: BufferId, bytes: usize) -> Loan {
        self.lend(buffer, bytes, State::Writing)
    }

    #[inline]
    fn lend(&mut self, buffer: BufferId, bytes: usize, state: State) -> Loan {
        self.expect(buffer, State::Acquired, "use");
        assert!(
            0 < bytes && bytes <= self.buffer_bytes,
            "a request of {bytes} bytes does not fit a buffer of {}",
            self.buffer_bytes
        );
        self.states[buffer] = state;
        Loan { region: Arc::clone(&self.region), start: buffer * self.stride, bytes, buffer, state }
    }

    /// Ends a loan: the buffer is the caller's again.
    #[inline]
    pub(crate) fn take_back(&mut self, loan: Loan) -> BufferId {
        assert!(Arc::ptr_eq(&loan.region, &self.region), "a loan returns to the pool it is from");
        self.expect(loan.buffer, loan.state, "take back");
        self.states[loan.buffer] = State::Acquired;
        loan.buffer
    }

    #[inline]
    fn expect(&self, buffer: BufferId, wanted: State, verb: &str) {
        let state = self.states[buffer];
        assert!(
            state == wanted,
            "cannot {verb} buffer {buffer}: it is {state:?} and must be {wanted:?}"
        );
    }

    #[inline]
    fn address(&self, buffer: BufferId) -> *mut u8 {
        debug_assert!(buffer < self.len());
        // SAFETY: buffer < len (the states were indexed before), so the offset is in the mapping.
        unsafe { self.region.base.as_ptr().add(buffer * self.stride) }
    }
}

/// The right of one request to its part of a buffer. It is neither copied nor cloned, so at most
/// one exists for a buffer; a lost one leaves its buffer unusable, never shared.
#[derive(Debug)]
pub(crate) struct Loan {
    region: Arc<Region>,
    start: usize,
    bytes: usize,
    buffer: BufferId,
    state: State,
}

impl Loan {
    /// Bytes lent.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// True when the request writes to the file, from memory that stays unchanged.
    #[inline]
    pub(crate) fn is_write(&self) -> bool {
        self.state == State::Writing
    }

    /// The bytes to write, or what was read.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping, which the loan keeps alive. Lent for a write it is
        // only read, by anybody; lent for a read it is reached through this loan alone.
        unsafe { std::slice::from_raw_parts(self.address(), self.bytes) }
    }

    /// The bytes to read into.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.is_write(), "buffer {} is being written from", self.buffer);
        // SAFETY: as in `bytes`; a buffer lent for a read is reached through this loan alone, which
        // is borrowed exclusively here.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.bytes) }
    }

    /// Start of the lent bytes, valid for `len` bytes while the loan lives. The kernel may write
    /// there for a read and must only read there for a write.
    #[inline]
    pub(crate) fn address(&self) -> *mut u8 {
        // SAFETY: `start + bytes` was inside the mapping when the loan was made, and it never
        // shrinks.
        unsafe { self.region.base.as_ptr().add(self.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_disjoint_and_come_back() {
        let mut pool = BufferPool::new(3, 1000).unwrap();
        let ids: Vec<_> = std::iter::from_fn(|| pool.acquire()).collect();
        assert_eq!(ids.len(), 3);
        for &id in &ids {
            assert_eq!(pool.bytes(id).as_ptr() as usize % 1024, 0);
            pool.bytes_mut(id).fill(id as u8 + 1);
        }
        for &id in &ids {
            assert!(pool.bytes(id).iter().all(|&b| b == id as u8 + 1));
            pool.release(id);
        }
        assert_eq!(std::iter::from_fn(|| pool.acquire()).count(), 3);
    }

    #[test]
    fn buffers_of_a_power_of_two_lie_side_by_side() {
        for bytes in [512, 1024, 4096, 65_536] {
            let mut pool = BufferPool::new(6, bytes).unwrap();
            assert_eq!(pool.mapping().1, 6 * bytes);
            let ids: Vec<_> = std::iter::from_fn(|| pool.acquire()).collect();
            let aligned = bytes.min(BUFFER_ALIGNMENT);
            assert!(ids.iter().all(|id| pool.bytes(*id).as_ptr().addr().is_multiple_of(aligned)));
        }
        assert_eq!(BufferPool::new(2, 5000).unwrap().mapping().1, 2 * 8192);
    }

    #[test]
    fn a_written_buffer_stays_readable_and_a_loan_outlives_its_pool() {
        let mut pool = BufferPool::new(2, 4096).unwrap();
        let (read, write) = (pool.acquire().unwrap(), pool.acquire().unwrap());
        pool.bytes_mut(write).fill(7);
        let loan = pool.lend_to_write(write, 512);
        assert_eq!(pool.bytes(write)[..512], *loan.bytes());
        let mut other = pool.lend_to_read(read, 4096);
        other.bytes_mut().fill(9);
        assert_eq!(pool.take_back(loan), write);
        drop(pool);
        assert_eq!(other.bytes()[4095], 9);
    }

    #[test]
    #[should_panic(expected = "must be Acquired")]
    fn a_buffer_cannot_be_released_twice() {
        let mut pool = BufferPool::new(1, 4096).unwrap();
        let id = pool.acquire().unwrap();
        pool.release(id);
        pool.release(id);
    }

    #[test]
    #[should_panic(expected = "returns to the pool it is from")]
    fn a_loan_of_another_pool_is_refused() {
        let mut one = BufferPool::new(1, 4096).unwrap();
        let mut two = BufferPool::new(1, 4096).unwrap();
        let (a, b) = (one.acquire().unwrap(), two.acquire().unwrap());
        let loan = one.lend_to_read(a, 4096);
        let _ = two.lend_to_read(b, 4096);
        two.take_back(loan);
    }
}
