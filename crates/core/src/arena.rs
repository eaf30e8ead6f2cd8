//! Anonymous memory for large fixed tables: zero-filled, on huge pages where the system gives them,
//! not inherited by forks.
//!
//! An [`Arena`] hands out addresses and never looks at what lies there; its owner decides on their
//! meaning, and on access to them. It never grows or moves. Parts can be given back early with
//! [`Arena::release`] and read as zeros afterwards.
#![expect(unsafe_code, reason = "memory mappings exist only as system calls on raw addresses")]

use crate::error::{Error, ErrorKind, Result};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

/// The alignment that every arena has at least: the smallest base page in use.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Less than this is not worth huge pages.
const HUGE_BYTES_MIN: usize = 4 << 20;

/// One anonymous private mapping.
#[derive(Debug)]
pub(crate) struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    /// The unit in which the system takes memory back.
    page_bytes: usize,
    /// The process that made the mapping. A forked child does not have it, and may have something
    /// else at its addresses, so it must not unmap them.
    process: u32,
}

// SAFETY: an arena only knows addresses; it reads and writes nothing through a shared reference.
// Code that dereferences them is responsible for its accesses. The mapping belongs to no thread.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` of zeros (at least one). Memory is taken from the system page by page, when
    /// first touched.
    ///
    /// *Errors*: `Budget`, with the bytes, when the system refuses the mapping.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1);
        let start = system::map(bytes).map_err(|source| {
            let message = format!(
                "the system refused {bytes} bytes of memory ({source}); open with less memory"
            );
            Error::new(ErrorKind::Budget, message)
        })?;
        Ok(Self { start, bytes, page_bytes: system::page_bytes(), process: std::process::id() })
    }

    /// The first address, aligned to [`PAGE_BYTES`]. All `len()` bytes from it are mapped until the
    /// arena is dropped.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Gives the whole pages inside `range` back to the system; they read as zeros afterwards.
    /// Returns how many bytes that were.
    ///
    /// # Safety
    /// During the call nobody may hold a reference into `range`, write there, or rely on what is
    /// read there.
    pub(crate) unsafe fn release(&self, range: Range<usize>) -> usize {
        assert!(range.end <= self.bytes, "release {range:?} of an arena of {} bytes", self.bytes);
        let first = range.start.next_multiple_of(self.page_bytes);
        let end = range.end / self.page_bytes * self.page_bytes;
        if first >= end || self.process != std::process::id() {
            return 0;
        }
        // SAFETY: the pages lie inside the mapping by the assertion above, and the caller promises
        // that nobody uses them.
        unsafe { system::release(self.start.add(first), end - first) };
        end - first
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: `start` and `bytes` are those of the mapping, and `&mut self` says that
            // nobody borrows it; owners of addresses keep the arena beside them.
            unsafe { system::unmap(self.start, self.bytes) };
        }
    }
}

/// Asks for huge pages behind `bytes`, best before they are touched: a part of a large table at
/// random then costs one line of memory, not the way to it as well. Contents stay as they are.
pub(crate) fn advise_huge(bytes: &mut [u8]) {
    let all = bytes.as_mut_ptr_range();
    let (first, end) = (all.start.addr(), all.end.addr());
    let skipped = first.next_multiple_of(PAGE_BYTES) - first;
    if end - first >= skipped + HUGE_BYTES_MIN {
        system::advise_huge(all.start.wrapping_add(skipped), end - first - skipped);
    }
}

/// Sets all of `numbers` to 0 and gives the whole pages among them back to the system, which come
/// again as zeros when they are touched.
pub(crate) fn release_zeroed(numbers: &[AtomicU16]) {
    let all = numbers.as_ptr_range();
    let (first, end) = (all.start.addr().next_multiple_of(system::page_bytes()), all.end.addr());
    let end = end / system::page_bytes() * system::page_bytes();
    for number in numbers {
        let at = std::ptr::from_ref(number).addr();
        if at < first || at >= end {
            number.store(0, Ordering::Relaxed);
        }
    }
    if first < end {
        let start = NonNull::new(all.start.cast_mut().cast::<u8>()).expect("slices have addresses");
        // SAFETY: the pages lie within the slice, so nothing else does, and its memory comes from
        // the allocator, which is anonymous and private. They turn to zeros as if by relaxed
        // stores, which their type allows through a shared reference.
        unsafe { system::release(start.add(first - all.start.addr()), end - first) };
    }
}

/// Gives memory that was freed, and that the allocator keeps for later, back to the system: threads
/// that have ended leave some behind. For moments after which a process lives on with less.
pub fn trim_heap() {
    #[cfg(any(test, feature = "testing"))]
    if KEEPS_FREED.load(std::sync::atomic::Ordering::Relaxed) {
        return;
    }
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: the allocator's own call; it takes its locks, and touches free memory alone.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(any(test, feature = "testing"))]
static KEEPS_FREED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Makes the allocator of this process keep what is freed: for programs that open small stores by
/// the thousand, which else spend half of their time on getting the same pages back.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn keep_freed() {
    if KEEPS_FREED.swap(true, std::sync::atomic::Ordering::Relaxed) {
        return;
    }
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: the allocator's own calls, which set thresholds under its locks.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_TOP_PAD, 16 << 20);
    }
}

pub(crate) use system::{map_anonymous, unmap};

#[cfg(not(miri))]
mod system {
    use super::{NonNull, PAGE_BYTES};
    use std::io::Error;

    pub(super) fn page_bytes() -> usize {
        // SAFETY: reads a constant of the system.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).unwrap_or(PAGE_BYTES).max(PAGE_BYTES)
    }

    /// Zeroed pages of their own, private and anonymous.
    pub(crate) fn map_anonymous(bytes: usize) -> Result<NonNull<u8>, Error> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory
        // that anybody has.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(NonNull::new(start.cast::<u8>()).expect("the kernel never chooses address 0"))
    }

    /// As `map_anonymous`, of huge pages where there are some; forked children do not inherit it.
    pub(super) fn map(bytes: usize) -> Result<NonNull<u8>, Error> {
        let start = map_anonymous(bytes)?;
        #[cfg(target_os = "linux")]
        {
            // SAFETY: the range is the new mapping; neither advice changes its contents. A kernel
            // without huge pages refuses the first, which only costs speed.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
            // SAFETY: as above.
            let kept = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTFORK) };
            if kept != 0 {
                let error = Error::last_os_error();
                // SAFETY: the mapping is new and nobody else knows it.
                unsafe { unmap(start, bytes) };
                return Err(error);
            }
        }
        Ok(start)
    }

    /// `start` is where a page begins.
    pub(super) fn advise_huge(start: *mut u8, bytes: usize) {
        #[cfg(target_os = "linux")]
        // SAFETY: the advice changes no contents, and fails where nothing is mapped. Without huge
        // pages it is refused, which only costs speed.
        unsafe {
            libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
        }
    }

    /// # Safety
    /// Whole pages of one mapping that nobody uses.
    pub(super) unsafe fn release(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise. MADV_DONTNEED on private anonymous memory replaces it by
        // zeros.
        let result = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
        assert_eq!(result, 0, "release of {bytes} bytes: {}", Error::last_os_error());
    }

    /// # Safety
    /// A whole mapping that nobody uses.
    pub(crate) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

/// Miri has no memory advice: the same contract on the ordinary allocator.
#[cfg(miri)]
mod system {
    use super::{NonNull, PAGE_BYTES};
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::io::{Error, ErrorKind};

    pub(super) fn page_bytes() -> usize {
        PAGE_BYTES
    }

    pub(super) fn advise_huge(_start: *mut u8, _bytes: usize) {}

    fn layout(bytes: usize) -> Result<Layout, Error> {
        let rounded = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(ErrorKind::OutOfMemory)?;
        Layout::from_size_align(rounded, PAGE_BYTES).map_err(|_| ErrorKind::OutOfMemory.into())
    }

    pub(super) fn map(bytes: usize) -> Result<NonNull<u8>, Error> {
        map_anonymous(bytes)
    }

    pub(crate) fn map_anonymous(bytes: usize) -> Result<NonNull<u8>, Error> {
        // SAFETY: the layout is not empty, because `bytes` is at least one.
        NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) }).ok_or(ErrorKind::OutOfMemory.into())
    }

    /// # Safety
    /// Whole pages of one mapping that nobody uses.
    pub(super) unsafe fn release(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { start.write_bytes(0, bytes) };
    }

    /// # Safety
    /// A whole mapping that nobody uses.
    pub(crate) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise; the layout was valid when it was mapped.
        unsafe { dealloc(start.as_ptr(), layout(bytes).expect("the layout was valid before")) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::mut_from_ref, reason = "an arena lends addresses, not borrows")]
    fn bytes_of(arena: &Arena) -> &mut [u8] {
        // SAFETY: the arena is mapped for as long as it is borrowed, zero-filled, and no test here
        // makes two of these.
        unsafe { std::slice::from_raw_parts_mut(arena.as_ptr(), arena.len()) }
    }

    #[test]
    fn memory_is_zero_writable_and_page_aligned() {
        let arena = Arena::new(3 * PAGE_BYTES + 5).unwrap();
        assert!(arena.as_ptr().addr().is_multiple_of(PAGE_BYTES));
        let bytes = bytes_of(&arena);
        assert!(bytes.iter().all(|&b| b == 0));
        bytes.fill(7);
        assert!(bytes.iter().all(|&b| b == 7));
    }

    #[test]
    fn released_pages_read_as_zeros_and_their_neighbours_stay() {
        let page = system::page_bytes();
        let arena = Arena::new(4 * page).unwrap();
        bytes_of(&arena).fill(7);
        // SAFETY: no reference into the arena is alive.
        let released = unsafe { arena.release(page - 1..3 * page + 1) };
        assert_eq!(released, 2 * page);
        for (at, &byte) in bytes_of(&arena).iter().enumerate() {
            let inside = (page..3 * page).contains(&at);
            assert_eq!(byte, if inside { 0 } else { 7 }, "byte {at}");
        }
        // SAFETY: as above.
        assert_eq!(unsafe { arena.release(10..page + 10) }, 0);
    }

    #[cfg(not(miri))]
    #[test]
    fn a_refused_mapping_is_a_budget_error_that_names_the_bytes() {
        let bytes = isize::MAX as usize - PAGE_BYTES;
        let error = Arena::new(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Budget);
        assert!(error.message().contains(&bytes.to_string()), "{error}");
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_forked_child_does_not_have_the_memory_and_does_not_unmap_its_addresses() {
        let arena = Arena::new(PAGE_BYTES).unwrap();
        bytes_of(&arena).fill(7);
        let start = arena.as_ptr().cast::<libc::c_void>();
        // SAFETY: the child calls only mmap, mincore and _exit, which are safe after a fork of a
        // threaded process, and drops an arena, which allocates nothing.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let mut resident = 0u8;
            // SAFETY: asks about addresses, touches none; then maps over addresses that the first
            // call said are free, drops the arena and asks again.
            unsafe {
                let had = libc::mincore(start, PAGE_BYTES, &raw mut resident) == 0;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                libc::mmap(start, PAGE_BYTES, libc::PROT_READ, flags, -1, 0);
                drop(arena);
                let kept = libc::mincore(start, PAGE_BYTES, &raw mut resident) == 0;
                libc::_exit(i32::from(had) + 2 * i32::from(!kept));
            }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        let code = libc::WEXITSTATUS(status);
        assert_eq!(code & 1, 0, "the child inherited the memory");
        assert_eq!(code & 2, 0, "the child unmapped addresses that were not the arena's");
        assert_eq!(bytes_of(&arena)[0], 7);
    }
}
