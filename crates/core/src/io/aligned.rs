//! Aligned buffers of a queue: one anonymous mapping cut into equal pieces, of which a buffer takes
//! one or several side by side, from the first place where they are free.
//!
//! The pool knows the owner of each buffer and asserts it: a free buffer is nobody's, an acquired
//! one is the caller's, a lent one belongs to the request that carries its [`Loan`]. A loan keeps
//! the mapping alive, so that memory which a thread or the kernel still uses is never unmapped,
//! whatever happens to the pool. A forked child does not inherit the mapping: fork must neither
//! copy it nor leave a page of it shared while the device writes there.

#![expect(unsafe_code, reason = "hands out slices of one anonymous mapping")]

use super::{BufferId, Buffers};
use crate::arena::{map_anonymous, unmap};
use crate::error::{Error, Result, bail};
use std::ptr::NonNull;
use std::sync::Arc;

/// Every piece starts at a multiple of this, which satisfies every direct I/O alignment in use; a
/// shorter one at a multiple of its own length, as a request is a multiple of the alignment and the
/// pieces are. So a piece of a power of two takes no memory but its own.
const BUFFER_ALIGNMENT: usize = 4096;

/// The mapping. Nobody dereferences it except through a pool or a loan.
#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    bytes: usize,
    /// The process that made the mapping: a forked child has none at this address.
    process: u32,
}

// SAFETY: the region is plain memory without thread affinity; access to its parts is decided by the
// pool's buffer states, which only change under `&mut BufferPool`.
unsafe impl Send for Region {}
// SAFETY: as above; `&Region` alone gives no access to the bytes.
unsafe impl Sync for Region {}

impl Region {
    fn new(bytes: usize) -> Result<Self> {
        let base = map_anonymous(bytes)
            .map_err(|source| Error::os(format!("map {bytes} bytes of request buffers"), source))?;
        #[cfg(all(target_os = "linux", not(miri)))]
        // SAFETY: advice about the mapping made above; refusal changes nothing we rely on.
        let _ = unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
        Ok(Self { base, bytes, process: std::process::id() })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            // SAFETY: this process made the mapping, nothing refers to it any more (the last
            // owner is being dropped), and it is unmapped once.
            unsafe { unmap(self.base, self.bytes) };
        }
    }
}

/// The state of a buffer, which decides on access to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Acquired,
    /// Lent to a read: nobody else may touch it.
    Reading,
    /// Lent to a write: it may be read by all and changed by nobody.
    Writing,
}

/// The state of a piece.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// The state of the buffer that begins here. Pieces in which none begins are `Free`.
    state: State,
    /// Pieces of the buffer that begins here.
    span: u32,
}

/// Aligned buffers and their states. A buffer has the number of its first piece.
#[derive(Debug)]
pub(crate) struct BufferPool {
    region: Arc<Region>,
    buffers: Buffers,
    stride: usize,
    pieces: Vec<Piece>,
    /// A bit for each piece that belongs to a buffer which is not free, and for those beyond the
    /// last.
    taken: Vec<u64>,
}

impl BufferPool {
    /// Maps zeroed memory for `buffers`.
    pub(crate) fn new(buffers: Buffers) -> Result<Self> {
        let Buffers { pieces, piece_bytes, longest } = buffers;
        let alignment = piece_bytes.checked_next_power_of_two().map(|b| b.min(BUFFER_ALIGNMENT));
        let stride = alignment.and_then(|a| piece_bytes.checked_next_multiple_of(a));
        let bytes = stride.and_then(|stride| stride.checked_mul(pieces));
        let (Some(stride), Some(bytes)) = (stride, bytes) else {
            bail!(Misuse, "{pieces} buffers of {piece_bytes} bytes exceed the address space");
        };
        if bytes == 0 || bytes > isize::MAX as usize {
            bail!(Misuse, "a queue needs buffers, {pieces} of {piece_bytes} bytes were asked");
        }
        assert!(longest == 1 || stride == piece_bytes, "pieces of a buffer lie side by side");
        let mut taken = vec![0; pieces.div_ceil(64)];
        if let (Some(last), 1..) = (taken.last_mut(), pieces % 64) {
            *last = u64::MAX << (pieces % 64);
        }
        Ok(Self {
            region: Arc::new(Region::new(bytes)?),
            buffers,
            stride,
            pieces: vec![Piece { state: State::Free, span: 0 }; pieces],
            taken,
        })
    }

    /// Number of pieces, and of buffers at most.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes of the longest buffer.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffers.longest_bytes()
    }

    /// All memory of the pool, its tables included.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.region.bytes + self.len() * size_of::<Piece>() + self.taken.len() * size_of::<u64>()
    }

    /// Address and length of the whole mapping, to register it with the kernel.
    #[cfg(target_os = "linux")]
    pub(crate) fn mapping(&self) -> (*mut u8, usize) {
        (self.region.base.as_ptr(), self.region.bytes)
    }

    /// A free buffer of at least so many bytes, which is the caller's from here to `release`.
    #[inline]
    pub(crate) fn acquire(&mut self, bytes: usize) -> Option<BufferId> {
        let span = bytes.div_ceil(self.buffers.piece_bytes).max(1);
        assert!(
            span <= self.buffers.longest,
            "no buffer has {bytes} bytes, the longest has {}",
            self.buffer_bytes()
        );
        let buffer = self.find(span)?;
        self.mark(buffer, span, true);
        self.pieces[buffer] = Piece { state: State::Acquired, span: span as u32 };
        Some(buffer)
    }

    /// The first piece of so many that are free side by side.
    #[inline]
    fn find(&self, span: usize) -> Option<usize> {
        let mut from = 0;
        loop {
            let begin = self.next_piece(from, false)?;
            if span == 1 {
                return Some(begin);
            }
            let end = self.next_piece(begin, true).unwrap_or(self.len());
            if end - begin >= span {
                return Some(begin);
            }
            from = end;
        }
    }

    /// The first piece from `from` on that is taken, or that is not.
    #[inline]
    fn next_piece(&self, from: usize, taken: bool) -> Option<usize> {
        let mut hidden = u64::MAX << (from % 64);
        for (word, bits) in self.taken.iter().enumerate().skip(from / 64) {
            let wanted = (if taken { *bits } else { !*bits }) & hidden;
            if wanted != 0 {
                let at = 64 * word + wanted.trailing_zeros() as usize;
                return (at < self.len()).then_some(at);
            }
            hidden = u64::MAX;
        }
        None
    }

    #[inline]
    fn mark(&mut self, first: usize, span: usize, taken: bool) {
        for piece in first..first + span {
            let bit = 1 << (piece % 64);
            match taken {
                true => self.taken[piece / 64] |= bit,
                false => self.taken[piece / 64] &= !bit,
            }
        }
    }

    /// Gives an acquired buffer back.
    #[inline]
    pub(crate) fn release(&mut self, buffer: BufferId) {
        self.expect(buffer, State::Acquired, "release");
        self.mark(buffer, self.pieces[buffer].span as usize, false);
        self.pieces[buffer] = Piece { state: State::Free, span: 0 };
    }

    /// The bytes of a buffer that is acquired or being written from.
    #[inline]
    pub(crate) fn bytes(&self, buffer: BufferId) -> &[u8] {
        let state = self.pieces[buffer].state;
        assert!(
            matches!(state, State::Acquired | State::Writing),
            "buffer {buffer} is {state:?}: only an acquired or written one may be looked at"
        );
        // SAFETY: the range lies in the mapping, which lives as long as `self`: a buffer's pieces
        // are among those that there are, side by side. In these two states the only other access
        // is a write request's, which reads; changing needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.address(buffer), self.bytes_of(buffer)) }
    }

    /// The bytes of an acquired buffer.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, buffer: BufferId) -> &mut [u8] {
        self.expect(buffer, State::Acquired, "change");
        // SAFETY: the range lies in the mapping and no other buffer overlaps it: its pieces are
        // taken until it is free. An acquired buffer is not lent, and `&mut self` excludes every
        // other slice of this pool.
        unsafe { std::slice::from_raw_parts_mut(self.address(buffer), self.bytes_of(buffer)) }
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
            0 < bytes && bytes <= self.bytes_of(buffer),
            "a request of {bytes} bytes does not fit a buffer of {}",
            self.bytes_of(buffer)
        );
        self.pieces[buffer].state = state;
        Loan { region: Arc::clone(&self.region), start: buffer * self.stride, bytes, buffer, state }
    }

    /// Ends a loan: the buffer is the caller's again.
    #[inline]
    pub(crate) fn take_back(&mut self, loan: Loan) -> BufferId {
        assert!(Arc::ptr_eq(&loan.region, &self.region), "a loan returns to the pool it is from");
        self.expect(loan.buffer, loan.state, "take back");
        self.pieces[loan.buffer].state = State::Acquired;
        loan.buffer
    }

    #[inline]
    fn expect(&self, buffer: BufferId, wanted: State, verb: &str) {
        let state = self.pieces[buffer].state;
        assert!(
            state == wanted,
            "cannot {verb} buffer {buffer}: it is {state:?} and must be {wanted:?}"
        );
    }

    /// Bytes of a buffer that is not free.
    #[inline]
    fn bytes_of(&self, buffer: BufferId) -> usize {
        self.pieces[buffer].span as usize * self.buffers.piece_bytes
    }

    #[inline]
    fn address(&self, buffer: BufferId) -> *mut u8 {
        debug_assert!(buffer < self.len());
        // SAFETY: buffer < len (the pieces were indexed before), so the offset is in the mapping.
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
    use crate::hash::mix;

    #[test]
    fn buffers_are_aligned_disjoint_and_come_back() {
        let mut pool = BufferPool::new(Buffers::equal(3, 1000)).unwrap();
        let ids: Vec<_> = std::iter::from_fn(|| pool.acquire(1000)).collect();
        assert_eq!(ids.len(), 3);
        for &id in &ids {
            assert_eq!(pool.bytes(id).as_ptr() as usize % 1024, 0);
            pool.bytes_mut(id).fill(id as u8 + 1);
        }
        for &id in &ids {
            assert!(pool.bytes(id).iter().all(|&b| b == id as u8 + 1));
            pool.release(id);
        }
        assert_eq!(std::iter::from_fn(|| pool.acquire(1000)).count(), 3);
    }

    #[test]
    fn buffers_of_a_power_of_two_lie_side_by_side() {
        for bytes in [512, 1024, 4096, 65_536] {
            let mut pool = BufferPool::new(Buffers::equal(6, bytes)).unwrap();
            assert_eq!(pool.mapping().1, 6 * bytes);
            let ids: Vec<_> = std::iter::from_fn(|| pool.acquire(bytes)).collect();
            let aligned = bytes.min(BUFFER_ALIGNMENT);
            assert!(ids.iter().all(|id| pool.bytes(*id).as_ptr().addr().is_multiple_of(aligned)));
        }
        assert_eq!(BufferPool::new(Buffers::equal(2, 5000)).unwrap().mapping().1, 2 * 8192);
    }

    // Buffers of 1 to 8 pieces come and go as a seed has it; beside them a map of whose each piece
    // is.
    #[test]
    fn buffers_of_several_pieces_are_disjoint_and_found_wherever_they_fit() {
        for (pieces, seed) in [(8, 1), (63, 2), (64, 3), (65, 4), (200, 5)] {
            let buffers = Buffers { pieces, piece_bytes: 512, longest: 8 };
            let mut pool = BufferPool::new(buffers).unwrap();
            let mut owners = vec![0u8; pieces];
            let mut held: Vec<(BufferId, usize, u8)> = Vec::new();
            let mut refused = 0;
            for step in 0..if cfg!(miri) { 300 } else { 3_000 } {
                let random = mix(step, seed);
                if random.is_multiple_of(2) && !held.is_empty() {
                    let (buffer, span, mark) = held.swap_remove(random as usize / 2 % held.len());
                    assert!(pool.bytes(buffer).iter().all(|byte| *byte == mark));
                    pool.release(buffer);
                    owners[buffer..buffer + span].fill(0);
                    continue;
                }
                let (span, mark) = (1 + random as usize / 2 % 8, 1 + (step % 255) as u8);
                let bytes = span * 512 - random as usize / 16 % 512;
                let fits = owners.windows(span).position(|w| w.iter().all(|owner| *owner == 0));
                let found = pool.acquire(bytes);
                assert_eq!(found, fits, "{span} pieces of {owners:?}");
                let Some(buffer) = found else {
                    refused += 1;
                    continue;
                };
                assert_eq!(pool.bytes(buffer).len(), span * 512);
                assert_eq!(pool.bytes(buffer).as_ptr() as usize % 512, 0);
                pool.bytes_mut(buffer).fill(mark);
                owners[buffer..buffer + span].fill(mark);
                held.push((buffer, span, mark));
            }
            assert!(refused > 0, "never full with {pieces} pieces");
            held.into_iter().for_each(|(buffer, ..)| pool.release(buffer));
            assert_eq!(std::iter::from_fn(|| pool.acquire(512)).count(), pieces);
        }
    }

    #[test]
    #[should_panic(expected = "the longest has 1024")]
    fn a_buffer_longer_than_the_longest_is_refused() {
        let buffers = Buffers { pieces: 4, piece_bytes: 512, longest: 2 };
        let _ = BufferPool::new(buffers).unwrap().acquire(1025);
    }

    #[test]
    #[should_panic(expected = "does not fit a buffer of 512")]
    fn a_request_does_not_reach_into_the_next_buffer() {
        let buffers = Buffers { pieces: 4, piece_bytes: 512, longest: 2 };
        let mut pool = BufferPool::new(buffers).unwrap();
        let buffer = pool.acquire(512).unwrap();
        let _ = pool.lend_to_read(buffer, 1024);
    }

    #[test]
    #[should_panic(expected = "it is Free")]
    fn a_piece_within_a_buffer_is_no_buffer() {
        let buffers = Buffers { pieces: 4, piece_bytes: 512, longest: 2 };
        let mut pool = BufferPool::new(buffers).unwrap();
        let buffer = pool.acquire(1024).unwrap();
        pool.release(buffer + 1);
    }

    #[test]
    fn a_written_buffer_stays_readable_and_a_loan_outlives_its_pool() {
        let mut pool = BufferPool::new(Buffers::equal(2, 4096)).unwrap();
        let (read, write) = (pool.acquire(4096).unwrap(), pool.acquire(4096).unwrap());
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
        let mut pool = BufferPool::new(Buffers::equal(1, 4096)).unwrap();
        let id = pool.acquire(4096).unwrap();
        pool.release(id);
        pool.release(id);
    }

    #[test]
    #[should_panic(expected = "returns to the pool it is from")]
    fn a_loan_of_another_pool_is_refused() {
        let mut one = BufferPool::new(Buffers::equal(1, 4096)).unwrap();
        let mut two = BufferPool::new(Buffers::equal(1, 4096)).unwrap();
        let (a, b) = (one.acquire(4096).unwrap(), two.acquire(4096).unwrap());
        let loan = one.lend_to_read(a, 4096);
        let _ = two.lend_to_read(b, 4096);
        two.take_back(loan);
    }
}
