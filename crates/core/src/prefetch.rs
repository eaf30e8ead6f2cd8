//! Software prefetch: asks the processor for a cache line before it is needed.
//!
//! A hint only. It never faults, never changes a result, and is nothing on processors other than
//! x86-64.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "the prefetch instruction is reached only through an intrinsic")
)]

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Asks for the cache line in which `place` begins, into all levels, for reading.
#[inline(always)]
pub fn prefetch_read<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the intrinsic's only duty is SSE, which every x86-64 processor has; prefetching
        // never faults, and the address comes from a valid reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Asks for every cache line of `places`.
#[inline(always)]
pub fn prefetch_slice<T>(places: &[T]) {
    let step = (LINE_BYTES / size_of::<T>().max(1)).max(1);
    for place in places.iter().step_by(step) {
        prefetch_read(place);
    }
}
