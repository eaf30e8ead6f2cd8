//! The memory of a cache: set metadata and row slots in two arenas, reached only under set locks.
//!
//! Set `s` has 128 bytes of metadata, which the hardware fetches as one pair of lines. The row in
//! way `w` of set `s` lies in the row arena at `(w * sets + s) * stride`: way after way, so that
//! the last way of all sets is one range that can be given back. A slot is a 20-byte header and the
//! row's words.
//!
//! What always holds: metadata and slots of a set are read and written by the holder of its lock
//! ([`LockedSet`]) and nobody else, except that anyone may read the tags, which are atomics, as a
//! hint where to prefetch. No slot of a way at or above a set's `usable` is touched, and `usable`
//! never grows.
//!
//! Lock order: class lock, then one set lock. No thread holds two set locks.
#![expect(unsafe_code, reason = "rows lie in mapped memory and are lent out under a spin lock")]

use super::locate::Location;
use super::policy::{Uses, WAYS_MAX};
use crate::arena::{Arena, PAGE_BYTES};
use crate::error::{Result, bail};
use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Bytes of set metadata: 8 per way.
pub(super) const SET_BYTES: usize = size_of::<Set>();
/// Bytes before a row in its slot.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();
/// The longest part of a slot that is worth prefetching; the hardware follows from there.
const PREFETCH_BYTES: usize = 8 * LINE_BYTES;
/// Places that are prefetched together: enough for many translations of addresses to be under way,
/// few enough that the lines of three blocks stay in the caches next to the core until used.
pub const BLOCK: usize = 16;
/// Looks at a taken lock before the thread gives up its time slice: about a microsecond, ten times
/// what a holder needs for a row that it has prefetched.
const SPINS: u32 = 100;

/// One set's metadata: a line of tags and a line of everything else.
#[repr(C, align(128))]
struct Set {
    /// Four 16-bit tags each, that of way 0 lowest; 0 is an empty way. Written by the lock's
    /// holder, read by anyone.
    tags: [AtomicU64; WAYS_MAX / 4],
    /// 1 while somebody holds the set. The acquire in `lock` pairs with the release in `drop`.
    lock: AtomicU32,
    state: UnsafeCell<State>,
}

/// What the lock guards, beside the slots.
#[repr(C)]
pub(super) struct State {
    /// Bit per way: it holds a row.
    pub(super) valid: u32,
    /// Bit per way: its row differs from the copy on storage.
    pub(super) dirty: u32,
    /// Ways that were taken away from this set.
    taken: u16,
    pub(super) uses: Uses,
}

/// What a slot knows about its row. Slots are aligned to 4 bytes only.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
pub(super) struct Header {
    pub(super) key: u64,
    pub(super) origin: u32,
    /// The stamp of the last use.
    pub(super) last_use: u32,
    pub(super) table: u16,
    /// Uses that the look-ahead window has announced.
    pub(super) pins: u16,
}

const _: () = assert!(size_of::<Set>() == 128 && size_of::<Header>() == 20);
const _: () = assert!(offset_of!(Set, lock) == LINE_BYTES);

/// All sets of one cache.
#[derive(Debug)]
pub(super) struct Sets {
    /// `count` of [`Set`]; all zeros is an empty, unlocked set.
    metadata: Arena,
    rows: Arena,
    count: u32,
    /// Ways of every set at the beginning.
    ways: usize,
    words: usize,
    /// Bytes from one slot to the next.
    stride: usize,
    /// Where in a slot its second, third and last line may begin; a line may come twice.
    prefetch_offsets: [usize; 3],
}

impl Sets {
    /// Maps `count` sets of `ways` rows of `row_bytes`.
    ///
    /// *Errors*: `Misuse` for an impossible shape, `Budget` when the memory cannot be had.
    pub(super) fn new(count: u32, ways: usize, row_bytes: usize) -> Result<Self> {
        if row_bytes == 0 || !row_bytes.is_multiple_of(4) || row_bytes > 1 << 30 {
            bail!(Misuse, "a row of {row_bytes} bytes: expected a multiple of 4 up to 1 GiB");
        }
        if count == 0 || !(1..=WAYS_MAX).contains(&ways) {
            bail!(Misuse, "{count} sets of {ways} rows: expected at least 1 set, 1 to 32 rows");
        }
        if u64::from(count) * ways as u64 > u64::from(u32::MAX) {
            bail!(Misuse, "{count} sets of {ways} rows are more rows than 32 bits can number");
        }
        let stride = HEADER_BYTES + row_bytes;
        let Some(bytes) = (count as usize * ways).checked_mul(stride) else {
            bail!(Budget, "a cache of {count} x {ways} rows of {row_bytes} bytes: too large");
        };
        Ok(Self {
            metadata: Arena::new(count as usize * SET_BYTES)?,
            rows: Arena::new(bytes.next_multiple_of(PAGE_BYTES))?,
            count,
            ways,
            words: row_bytes / 4,
            stride,
            prefetch_offsets: [LINE_BYTES, 2 * LINE_BYTES, PREFETCH_BYTES]
                .map(|offset| offset.min(stride - 1)),
        })
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of one way of all sets.
    pub(super) fn way_bytes(&self) -> usize {
        self.count as usize * self.stride
    }

    #[inline(always)]
    fn set(&self, index: u32) -> &Set {
        assert!(index < self.count, "set {index} of {}", self.count);
        // SAFETY: the arena holds `count` sets and `index` is below; it is page-aligned, so every
        // set is aligned to 256. All-zero bytes, which it starts with, are a valid `Set`. Nobody
        // makes an exclusive reference to a set; what changes in it is atomic or in a cell.
        unsafe { &*self.metadata.as_ptr().cast::<Set>().add(index as usize) }
    }

    /// The slot's address. It lies in the arena for every set and way of this cache.
    #[inline(always)]
    fn slot(&self, index: u32, way: usize) -> *mut u8 {
        let offset = (way * self.count as usize + index as usize) * self.stride;
        self.rows.as_ptr().wrapping_add(offset)
    }

    /// Waits for the set's lock and takes it. It is held until the result is dropped.
    #[inline(always)]
    pub(super) fn lock(&self, index: u32) -> LockedSet<'_> {
        let set = self.set(index);
        if set.lock.swap(1, Ordering::Acquire) != 0 {
            wait_for(&set.lock);
        }
        LockedSet { sets: self, set, index }
    }

    /// Asks for the lines that every access of these sets needs.
    #[inline(always)]
    pub(super) fn prefetch_sets(&self, block: &[Location]) {
        for at in block {
            let set = self.set(at.set);
            prefetch(&raw const set.tags);
            prefetch(&raw const set.lock);
        }
    }

    /// Asks for the lines of the rows that seem to be in these places, [`BLOCK`] at most, and notes
    /// their ways: a hint that takes no lock. It may see tags in the middle of a change, or another
    /// row's, and then asks for the wrong lines.
    #[inline(always)]
    pub(super) fn prefetch_rows(&self, block: &mut [Location]) {
        // Where nothing is found, the set's own line, which is there already.
        let mut slots = [std::ptr::null::<u8>(); BLOCK];
        for (at, slot) in block.iter_mut().zip(&mut slots) {
            let set = self.set(at.set);
            *slot = std::ptr::from_ref(set).cast();
            let found = matches(load(&set.tags), at.tag);
            if found != 0 {
                let way = found.trailing_zeros();
                at.hint = way as u8;
                *slot = self.slot(at.set, way as usize);
            }
        }
        let slots = &slots[..block.len()];
        for &slot in slots {
            prefetch(slot);
        }
        let [second, third, last] = self.prefetch_offsets;
        for &slot in slots {
            prefetch(slot.wrapping_add(second));
            prefetch(slot.wrapping_add(third));
            prefetch(slot.wrapping_add(last));
        }
        if self.stride > 4 * LINE_BYTES {
            for &slot in slots {
                for offset in (3 * LINE_BYTES..self.stride.min(PREFETCH_BYTES)).step_by(LINE_BYTES)
                {
                    prefetch(slot.wrapping_add(offset));
                }
            }
        }
    }

    /// Gives the memory of all ways from `way` on back to the system. Every set must have been
    /// limited to `way` ways before.
    pub(super) fn release_from(&self, way: usize) {
        for index in 0..self.count {
            let usable = self.lock(index).usable();
            assert!(usable <= way, "set {index} still uses {usable} ways, {way} are to stay");
        }
        // SAFETY: slots are reached only through `LockedSet`, which asserts under the set's lock
        // that the way is usable. Each set was just seen, under its lock, to use fewer, and
        // `usable` never grows; who accessed these slots before has unlocked before.
        unsafe { self.rows.release(way * self.way_bytes()..self.rows.len()) };
    }
}

#[cold]
fn wait_for(lock: &AtomicU32) {
    let mut spins = 0;
    loop {
        while lock.load(Ordering::Relaxed) != 0 {
            spins += 1;
            if spins % SPINS == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        // Pairs with the release in `LockedSet::drop`.
        if lock.swap(1, Ordering::Acquire) == 0 {
            return;
        }
    }
}

/// A set whose lock this thread holds.
pub(super) struct LockedSet<'a> {
    sets: &'a Sets,
    set: &'a Set,
    index: u32,
}

impl Drop for LockedSet<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Pairs with the acquire in `Sets::lock` and `wait_for`.
        self.set.lock.store(0, Ordering::Release);
    }
}

impl LockedSet<'_> {
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    #[inline(always)]
    pub(super) fn state(&self) -> &State {
        // SAFETY: this thread holds the lock, and `&self` excludes the exclusive references that
        // the methods below lend from `&mut self`.
        unsafe { &*self.set.state.get() }
    }

    #[inline(always)]
    pub(super) fn state_mut(&mut self) -> &mut State {
        // SAFETY: this thread holds the lock, and `&mut self` excludes every other reference.
        unsafe { &mut *self.set.state.get() }
    }

    /// How many ways this set may use.
    #[inline(always)]
    pub(super) fn usable(&self) -> usize {
        self.sets.ways - self.state().taken as usize
    }

    /// Bit per way that may be used.
    pub(super) fn usable_mask(&self) -> u32 {
        u32::MAX >> (WAYS_MAX - self.usable())
    }

    /// Lets the set use no more than the first `ways` ways from here on. The others are empty.
    pub(super) fn limit(&mut self, ways: usize) {
        assert!(ways <= self.usable() && u64::from(self.state().valid) >> ways == 0);
        self.state_mut().taken = (self.sets.ways - ways) as u16;
    }

    /// Bit per way whose tag is `tag`.
    #[inline(always)]
    pub(super) fn matches(&self, tag: u16) -> u32 {
        matches(load(&self.set.tags), tag)
    }

    /// Sets a way's tag; 0 says that it is empty.
    pub(super) fn set_tag(&mut self, way: usize, tag: u16) {
        let word = &self.set.tags[way / 4];
        let shift = way % 4 * 16;
        let others = word.load(Ordering::Relaxed) & !(0xffff << shift);
        word.store(others | u64::from(tag) << shift, Ordering::Relaxed);
    }

    pub(super) fn tag(&self, way: usize) -> u16 {
        (self.set.tags[way / 4].load(Ordering::Relaxed) >> (way % 4 * 16)) as u16
    }

    /// The slot of a usable way.
    #[inline(always)]
    fn slot(&self, way: usize) -> *mut u8 {
        assert!(way < self.usable(), "way {way} of {}", self.usable());
        self.sets.slot(self.index, way)
    }

    #[inline(always)]
    pub(super) fn header(&self, way: usize) -> &Header {
        // SAFETY: the slot lies in the arena, aligned to 4 as `Header` asks, and any bytes are a
        // header. This thread holds the lock and `&self` excludes exclusive references.
        unsafe { &*self.slot(way).cast::<Header>() }
    }

    #[inline(always)]
    pub(super) fn words(&self, way: usize) -> &[f32] {
        let words = self.slot(way).wrapping_add(HEADER_BYTES).cast::<f32>();
        // SAFETY: the words follow the header in the slot, aligned to 4; mapped memory is
        // initialised, and any bytes are floats. Lock and `&self` as above.
        unsafe { std::slice::from_raw_parts(words, self.sets.words) }
    }

    /// Everything about the row in a usable way, for change.
    #[inline(always)]
    pub(super) fn row_mut(&mut self, way: usize) -> (&mut State, &mut Header, &mut [f32]) {
        let slot = self.slot(way);
        let words = slot.wrapping_add(HEADER_BYTES).cast::<f32>();
        // SAFETY: as in `state_mut`, `header` and `words`; the three lie in different bytes, and
        // `&mut self` excludes every other reference to them.
        unsafe {
            (
                &mut *self.set.state.get(),
                &mut *slot.cast::<Header>(),
                std::slice::from_raw_parts_mut(words, self.sets.words),
            )
        }
    }

    /// Copies header and words of one usable way over another's.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize) {
        assert!(from != to, "a row moves to another way");
        let (from, to) = (self.slot(from), self.slot(to));
        // SAFETY: two slots of this set, `stride` bytes each, that differ and so do not overlap;
        // lock and `&mut self` as above.
        unsafe { std::ptr::copy_nonoverlapping(from, to, self.sets.stride) };
    }
}

#[inline(always)]
fn load(tags: &[AtomicU64; WAYS_MAX / 4]) -> [u64; WAYS_MAX / 4] {
    tags.each_ref().map(|word| word.load(Ordering::Relaxed))
}

/// Bit per way whose tag is `tag`: four compares of eight tags.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn matches(tags: [u64; WAYS_MAX / 4], tag: u16) -> u32 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x, _mm_set1_epi16,
    };
    // SAFETY: the intrinsics' only duty is SSE2, which every x86-64 processor has.
    unsafe {
        let tag = _mm_set1_epi16(tag.cast_signed());
        let eight = |at: usize| _mm_set_epi64x(tags[at + 1].cast_signed(), tags[at].cast_signed());
        let equal = |at: usize| _mm_cmpeq_epi16(eight(at), tag);
        let low = _mm_movemask_epi8(_mm_packs_epi16(equal(0), equal(2)));
        let high = _mm_movemask_epi8(_mm_packs_epi16(equal(4), equal(6)));
        low.cast_unsigned() | high.cast_unsigned() << 16
    }
}

/// Bit per way whose tag is `tag`.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn matches_one_by_one(tags: [u64; WAYS_MAX / 4], tag: u16) -> u32 {
    (0..WAYS_MAX).fold(0, |found, way| {
        found | u32::from((tags[way / 4] >> (way % 4 * 16)) as u16 == tag) << way
    })
}

#[cfg(not(target_arch = "x86_64"))]
use matches_one_by_one as matches;

/// Asks for the line that holds `place`, into the second-level cache. Any address will do.
///
/// Not into the first: that can wait for only a dozen lines, and many rows are under way at once
/// (rows of 148 bytes in blocks of 16 on a busy Xeon: 76 to 99 ns per row against 94 to 105).
#[inline(always)]
fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: the instruction accesses nothing and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) place, options(nostack, readonly));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = place;
}

/// Asks for all lines of `words`, to be written soon.
#[inline(always)]
pub(super) fn prefetch_for_writing(words: &mut [f32]) {
    for line in words.chunks_mut(LINE_BYTES / size_of::<f32>()) {
        let place = line.as_mut_ptr();
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

    #[test]
    fn a_set_and_its_headers_cost_24_bytes_per_row() {
        assert_eq!(SET_BYTES / WAYS_MAX + HEADER_BYTES, 24);
    }

    #[test]
    fn tags_are_found_in_every_way_by_both_forms() {
        let sets = Sets::new(3, 32, 8).unwrap();
        for way in 0..32 {
            let mut set = sets.lock(1);
            set.set_tag(way, 0xabcd);
            set.set_tag((way + 7) % 32, 0xffff);
            let tags = load(&set.set.tags);
            for tag in [0xabcd, 0xffff, 0, 0x8000, 0xcdab] {
                assert_eq!(matches(tags, tag), matches_one_by_one(tags, tag), "tag {tag:x}");
            }
            assert_eq!(set.matches(0xabcd), 1 << way);
            assert_eq!(set.tag(way), 0xabcd);
            assert_eq!(set.matches(0xffff), 1 << ((way + 7) % 32));
            set.set_tag(way, 0);
            set.set_tag((way + 7) % 32, 0);
            assert_eq!(set.matches(0), u32::MAX);
        }
        assert_eq!(sets.lock(0).matches(0), u32::MAX);
        assert_eq!(sets.lock(2).matches(0), u32::MAX);
    }

    #[test]
    fn slots_do_not_overlap() {
        let sets = Sets::new(5, 9, 12).unwrap();
        for (round, set) in (0..2).flat_map(|round| (0..5).map(move |set| (round, set))) {
            let mut set = sets.lock(set);
            for way in 0..9 {
                let name = set.index() * 100 + way as u32;
                if round == 1 {
                    assert_eq!({ set.header(way).key }, u64::from(name));
                    assert_eq!(set.words(way), [name as f32; 3]);
                }
                let (_, header, words) = set.row_mut(way);
                *header = Header { key: name.into(), origin: name, last_use: 3, table: 1, pins: 2 };
                words.fill(name as f32);
            }
        }
    }

    #[test]
    #[should_panic(expected = "way 8 of 8")]
    fn a_way_that_was_taken_cannot_be_reached() {
        let sets = Sets::new(1, 9, 12).unwrap();
        let mut set = sets.lock(0);
        set.limit(8);
        set.words(8);
    }

    #[test]
    #[should_panic(expected = "set 1 still uses 9 ways")]
    fn memory_in_use_is_not_released() {
        let sets = Sets::new(2, 9, 12).unwrap();
        sets.lock(0).limit(8);
        sets.release_from(8);
    }
}
