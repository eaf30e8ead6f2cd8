//! The tags of one set: 32 of 12 bits in 48 bytes, all compared at once.
//!
//! Tag 0 is an empty way. The low byte of way `w`'s tag is byte `w` of `low`; its upper four bits
//! lie in byte `w % 16` of `high`, in the lower half for the first 16 ways. Tags are atomics,
//! because everybody may look at them for a hint; only the holder of the set's lock writes them.
#![cfg_attr(
    all(target_arch = "x86_64", not(miri)),
    expect(unsafe_code, reason = "one comparison of 32 tags takes vector instructions")
)]

use super::policy::WAYS_MAX;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest tag.
pub(super) const TAG_MAX: u16 = 0xfff;

/// The tags of a set.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Tags {
    low: [AtomicU64; WAYS_MAX / 8],
    high: [AtomicU64; WAYS_MAX / 16],
}

impl Tags {
    /// Bit per way whose tag is `tag`.
    #[inline(always)]
    pub(super) fn matches(&self, tag: u16) -> u32 {
        matches(self, tag)
    }

    /// The tag of a way.
    #[inline(always)]
    pub(super) fn get(&self, way: usize) -> u16 {
        let low = self.low[way / 8].load(Ordering::Relaxed) >> (way % 8 * 8);
        let high = self.high[way % 16 / 8].load(Ordering::Relaxed) >> high_shift(way);
        (low & 0xff) as u16 | ((high & 0xf) as u16) << 8
    }

    /// Sets a way's tag; 0 says that it is empty.
    pub(super) fn set(&self, way: usize, tag: u16) {
        debug_assert!(tag <= TAG_MAX, "tag {tag:#x}");
        let change = |word: &AtomicU64, shift: usize, bits: u64, mask: u64| {
            let others = word.load(Ordering::Relaxed) & !(mask << shift);
            word.store(others | (bits & mask) << shift, Ordering::Relaxed);
        };
        change(&self.low[way / 8], way % 8 * 8, tag.into(), 0xff);
        change(&self.high[way % 16 / 8], high_shift(way), (tag >> 8).into(), 0xf);
    }
}

/// The shift of the upper bits of a way's tag in its word of `high`.
#[inline(always)]
fn high_shift(way: usize) -> usize {
    way % 8 * 8 + way / 16 * 4
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn matches(tags: &Tags, tag: u16) -> u32 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8, _mm_srli_epi16,
    };
    // Two words at once. The compiler cannot see into the load, so it does not matter that others
    // may be writing; the processor loads each byte whole.
    let load = |words: *const AtomicU64| {
        let loaded: __m128i;
        // SAFETY: reads 16 bytes of the tags.
        unsafe {
            asm!(
                "movdqu {loaded}, [{words}]",
                loaded = out(xmm_reg) loaded,
                words = in(reg) words,
                options(nostack, readonly, preserves_flags),
            );
        }
        loaded
    };
    let (first, second) = (load(&raw const tags.low[0]), load(&raw const tags.low[2]));
    let both = load(&raw const tags.high[0]);
    // SAFETY: the intrinsics' only duty is SSE2, which every x86-64 processor has.
    unsafe {
        let (low, high) = (_mm_set1_epi8(tag as i8), _mm_set1_epi8((tag >> 8) as i8));
        let half = _mm_set1_epi8(0xf);
        let sixteen = |lows, highs| {
            let highs = _mm_cmpeq_epi8(_mm_and_si128(highs, half), high);
            _mm_movemask_epi8(_mm_and_si128(_mm_cmpeq_epi8(lows, low), highs)).cast_unsigned()
        };
        sixteen(first, both) | sixteen(second, _mm_srli_epi16::<4>(both)) << 16
    }
}

#[cfg(any(test, miri, not(target_arch = "x86_64")))]
fn matches_one_by_one(tags: &Tags, tag: u16) -> u32 {
    (0..WAYS_MAX).fold(0, |found, way| found | u32::from(tags.get(way) == tag) << way)
}

#[cfg(any(miri, not(target_arch = "x86_64")))]
use matches_one_by_one as matches;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;

    fn empty() -> Tags {
        Tags { low: Default::default(), high: Default::default() }
    }

    #[test]
    fn a_tag_is_found_in_every_way_by_both_forms() {
        for way in 0..WAYS_MAX {
            let other = (way + 7) % WAYS_MAX;
            let tags = empty();
            tags.set(way, 0xabc);
            tags.set(other, TAG_MAX);
            for tag in [0xabc, TAG_MAX, 0, 0x800, 0xbca, 0xabd, 0x0bc, 0xa0c, 0xab0] {
                assert_eq!(tags.matches(tag), matches_one_by_one(&tags, tag), "tag {tag:x}");
            }
            assert_eq!([tags.matches(0xabc), tags.matches(TAG_MAX)], [1 << way, 1 << other]);
            assert_eq!([tags.get(way), tags.get(other)], [0xabc, TAG_MAX]);
            assert_eq!(tags.matches(0), !(1 << way | 1 << other));
            tags.set(way, 0);
            tags.set(other, 0);
            assert_eq!(tags.matches(0), u32::MAX);
        }
    }

    #[test]
    fn ways_do_not_disturb_each_other() {
        let (tags, mut model) = (empty(), [0; WAYS_MAX]);
        for step in 0..if cfg!(miri) { 200 } else { 20_000 } {
            let (way, tag) = (mix(step, 1) as usize % WAYS_MAX, mix(step, 2) as u16 & TAG_MAX);
            tags.set(way, tag);
            model[way] = tag;
            assert_eq!(std::array::from_fn(|way| tags.get(way)), model, "step {step}");
            let same = |found: u32, way| found | u32::from(model[way] == tag) << way;
            assert_eq!(tags.matches(tag), (0..WAYS_MAX).fold(0, same), "step {step}");
        }
    }
}
