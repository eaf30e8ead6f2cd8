//! Software prefetch: asks the processor for a cache line before it is needed.
//!
//! The best level of the cache differs between processors (`cache/lines.rs`).
//!
//! A hint only. It never faults, never changes a result, and is nothing on processors other than
//! x86-64 and 64-bit ARM.
#![cfg_attr(
    all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)),
    expect(unsafe_code, reason = "prefetch instructions have no safe interface")
)]

/// The family of AMD's processors that this one belongs to; 0 for others.
pub(crate) fn amd_family() -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // AMD's processors and their kin alone have these instructions.
    if std::arch::is_x86_feature_detected!("sse4a") {
        // SAFETY: every 64-bit processor has the instruction, which changes nothing.
        #[allow(unused_unsafe, reason = "safe to call in later releases of Rust")]
        let version = unsafe { std::arch::x86_64::__cpuid(1) }.eax;
        let (family, extended) = (version >> 8 & 0xf, version >> 20 & 0xff);
        return if family == 0xf { family + extended } else { family };
    }
    0
}

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks for the cache line in which `place` begins, into all levels, for reading.
#[inline(always)]
pub(crate) fn prefetch_read<T>(place: &T) {
    prefetch_line::<true, T>(place);
}

/// Asks for every cache line of `places`.
#[inline(always)]
pub(crate) fn prefetch_slice<T>(places: &[T]) {
    let step = (LINE_BYTES / size_of::<T>().max(1)).max(1);
    for place in places.iter().step_by(step) {
        prefetch_read(place);
    }
}

/// Asks for the line that holds `place`, into the first level or the second. Any address will do.
///
/// The level is fixed when the loop around it is compiled: a test for every line costs a tenth of a
/// gather.
#[inline(always)]
pub(crate) fn prefetch_line<const FIRST: bool, T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: the instructions access nothing and fault on no address.
        unsafe {
            match FIRST {
                true => _mm_prefetch::<_MM_HINT_T0>(place.cast()),
                false => _mm_prefetch::<_MM_HINT_T1>(place.cast()),
            }
        }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        match FIRST {
            true => {
                std::arch::asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, readonly));
            }
            false => {
                std::arch::asm!("prfm pldl2keep, [{}]", in(reg) place, options(nostack, readonly));
            }
        }
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = place;
}

/// Asks for a line per 64 bytes of `words`, to be written soon.
#[inline(always)]
pub(crate) fn prefetch_for_writing(words: &mut [f32]) {
    let start = words.as_mut_ptr().cast::<u8>();
    for line in 0..size_of_val(words).div_ceil(LINE_BYTES) {
        let place = start.wrapping_add(line * LINE_BYTES);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the instruction changes nothing and faults on no address; 64-bit processors
        // without it take it for a no-operation.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags));
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: the instruction changes nothing and faults on no address.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) place, options(nostack));
        }
        #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
        let _ = place;
    }
}
