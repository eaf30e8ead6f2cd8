//! Cache lines that the processor is asked for before they are needed.
#![expect(unsafe_code, reason = "prefetch instructions are reached only through intrinsics")]

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;
/// The longest part of a row that is worth asking for; the hardware follows from there.
const BYTES_MAX: usize = 8 * LINE_BYTES;

/// The level of the processor's caches that lines are brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    First,
    Second,
}

/// [`Level::First`] for loops that are compiled for each level: to look at it for every line costs
/// a tenth of a gather.
pub(super) const FIRST: bool = true;
/// [`Level::Second`], likewise.
pub(super) const SECOND: bool = false;

impl Level {
    /// What suits this processor. Into the second level, gathers of 2,048 rows are 17 % slower on
    /// an EPYC of family 26; into the first, which can wait for only a dozen lines, gathers of rows
    /// of 148 bytes took 94 to 105 ns for each on a Xeon (Sapphire Rapids), not 76 to 99.
    pub(super) fn of_this_processor() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let vendor = std::arch::x86_64::__cpuid(0);
            let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
            if name.as_flattened() == b"AuthenticAMD" {
                return Self::First;
            }
        }
        Self::Second
    }
}

/// The lines in which a part of a row lies, wherever the row begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    /// How many there may be.
    count: usize,
    /// Where in the row the last of them is asked for.
    last: usize,
}

impl Lines {
    /// The first `bytes` of a row. Rows of `row_bytes` lie one after another from where a line
    /// begins.
    pub(super) fn of(bytes: usize, row_bytes: usize) -> Self {
        let bytes = bytes.min(BYTES_MAX);
        let aligned = 1 << row_bytes.trailing_zeros().min(LINE_BYTES.trailing_zeros());
        let count = (LINE_BYTES - aligned + bytes).div_ceil(LINE_BYTES);
        Self { count, last: bytes - 1 }
    }

    /// Asks for the lines of the row that begins at `row`. Any address will do.
    #[inline(always)]
    pub(super) fn prefetch<const LEVEL: bool>(self, row: *const f32) {
        let row = row.cast::<u8>();
        prefetch::<LEVEL, _>(row);
        if self.count > 1 {
            prefetch::<LEVEL, _>(row.wrapping_add(LINE_BYTES.min(self.last)));
        }
        for line in 2..self.count {
            prefetch::<LEVEL, _>(row.wrapping_add((line * LINE_BYTES).min(self.last)));
        }
    }
}

/// Asks for the line that holds `place`. Any address will do.
#[inline(always)]
pub(super) fn prefetch<const LEVEL: bool, T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: the instructions access nothing and fault on no address.
        unsafe {
            match LEVEL {
                FIRST => _mm_prefetch::<_MM_HINT_T0>(place.cast()),
                SECOND => _mm_prefetch::<_MM_HINT_T1>(place.cast()),
            }
        }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        match LEVEL {
            FIRST => {
                std::arch::asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, readonly));
            }
            SECOND => {
                std::arch::asm!("prfm pldl2keep, [{}]", in(reg) place, options(nostack, readonly));
            }
        }
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = place;
}

/// Asks for all lines of `words`, to be written soon.
#[inline(always)]
pub(super) fn prefetch_for_writing(words: &mut [f32]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that asking for them touches, from where the row's first one begins.
    fn asked(lines: Lines, start: usize) -> Vec<usize> {
        (0..lines.count)
            .map(|line| (start + (line * LINE_BYTES).min(lines.last)) / LINE_BYTES)
            .collect()
    }

    #[test]
    fn every_line_of_a_row_is_asked_for_and_none_that_no_row_has() {
        for row_bytes in (4..=512).step_by(4) {
            for bytes in (4..=row_bytes).step_by(4) {
                let lines = Lines::of(bytes, row_bytes);
                let mut most = 0;
                for row in 0..16 {
                    let start = row * row_bytes % LINE_BYTES;
                    let needed: Vec<_> =
                        (start / LINE_BYTES..=(start + bytes - 1) / LINE_BYTES).collect();
                    let mut asked = asked(lines, start);
                    asked.dedup();
                    assert_eq!(asked, needed, "{bytes} of {row_bytes} bytes, row {row}");
                    most = most.max(needed.len());
                }
                assert_eq!(lines.count, most, "{bytes} of {row_bytes} bytes");
            }
        }
    }
}
