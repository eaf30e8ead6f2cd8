//! Reads of memory that another thread may be writing at the same time.
//!
//! These reads may return a mix of old and new bytes. The caller finds out afterwards, by the set's
//! version, whether another thread wrote, and throws the result away if so. Rows are read by
//! machine instructions that the compiler cannot see into, so that it can assume nothing about
//! their result; headers, the last words of a row, and on other processors than x86-64 all words,
//! by relaxed atomics. A writer's plain stores beside them are a race by the letter of the
//! language, as in every sequence lock.
#![expect(unsafe_code, reason = "loads of memory that is not borrowed")]

use super::sets::Header;

/// Copies `to.len()` words from `from`.
///
/// # Safety
/// `from` is aligned to 4 and so many words from it are mapped.
#[inline(always)]
pub(super) unsafe fn copy_words(from: *const f32, to: &mut [f32]) {
    let (mut at, words) = (0, to.len());
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::asm;
        let to = to.as_mut_ptr();
        while at + 16 <= words {
            let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: reads and writes 64 bytes that are mapped, the written ones inside `to`.
            unsafe {
                asm!(
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + 32]",
                    "movups {d}, [{from} + 48]",
                    "movups [{to}], {a}",
                    "movups [{to} + 16], {b}",
                    "movups [{to} + 32], {c}",
                    "movups [{to} + 48], {d}",
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    from = in(reg) from,
                    to = in(reg) to,
                    options(nostack, preserves_flags),
                );
            }
            at += 16;
        }
        while at + 4 <= words {
            let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: as above, 16 bytes.
            unsafe {
                asm!(
                    "movups {a}, [{from}]",
                    "movups [{to}], {a}",
                    a = out(xmm_reg) _,
                    from = in(reg) from,
                    to = in(reg) to,
                    options(nostack, preserves_flags),
                );
            }
            at += 4;
        }
    }
    while at < words {
        // SAFETY: the caller's promise: the word is mapped and aligned.
        to[at] = f32::from_bits(unsafe { load_word(from.wrapping_add(at).cast()) });
        at += 1;
    }
}

/// A copy of a header.
///
/// # Safety
/// `from` is aligned to 4 and mapped.
#[inline(always)]
pub(super) unsafe fn load_header(from: *const Header) -> Header {
    let words: [u32; size_of::<Header>() / 4] =
        // SAFETY: the caller's promise; a header is so many words.
        std::array::from_fn(|at| unsafe { load_word(from.cast::<u32>().wrapping_add(at)) });
    // SAFETY: any bytes are a header.
    unsafe { std::mem::transmute(words) }
}

#[inline(always)]
unsafe fn load_word(from: *const u32) -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    // SAFETY: the caller's promise; an atomic has the layout of its integer.
    unsafe { &*from.cast::<AtomicU32>() }.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_every_length_are_copied_whole_and_no_further() {
        let from: Vec<f32> = (0..100u8).map(f32::from).collect();
        for words in 0..90 {
            for start in 0..4 {
                let mut to = vec![-1.0; words + 2];
                // SAFETY: `from` has as many words after `start`.
                unsafe { copy_words(from[start..].as_ptr(), &mut to[1..=words]) };
                assert_eq!(to[1..=words], from[start..start + words]);
                assert_eq!([to[0], to[words + 1]], [-1.0, -1.0]);
            }
        }
    }
}
