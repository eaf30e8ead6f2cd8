//! The memory of a cache: set metadata, row headers and rows in arenas, lent out under set locks.
//!
//! Set `s` has one cache line that every access needs ([`Set`]: tags, lock, a bit per row for each
//! frequent question), and one that only misses need ([`Rest`]). The row in way `w` of set `s` is
//! number `w * sets + s` in the arena of rows, and its header has the same number in the arena of
//! headers: way after way, so that the last way of all sets is one range that can be given back.
//! Rows lie apart from headers because most hits need no header, and because a row of whole cache
//! lines then fills whole lines. A row's stamp lies behind it if that takes no further line
//! ([`stamped`]), and otherwise in two lines of its set.
//! A cache of dense rows alone has no headers: place and tag tell which row it is (`identity`).
//!
//! Invariants: metadata, headers and rows of a set are written by the holder of its lock
//! ([`LockedSet`]) and nobody else, except for the bits of used rows, which are hints. Anyone may
//! read tags and dirty bits, which are atomics, as a hint what to prefetch, and copy a row without
//! the lock (`gather`): the lock word counts how often the set was locked, and a copy during which
//! it moved is thrown away (a sequence lock). No slot of a way at or above a set's `usable` is
//! written, and `usable` never grows.
//!
//! Lock order: class lock, then one set lock. No thread holds two set locks.
#![expect(unsafe_code, reason = "rows lie in mapped memory and are lent out under a spin lock")]

use super::bits;
use super::lines::{Level, Lines};
use super::locate::{Location, NO_HINT};
use super::policy::{Uses, WAYS_MAX};
use super::tags::Tags;
use crate::arena::{Arena, PAGE_BYTES};
use crate::error::{Result, bail};
use crate::prefetch::{LINE_BYTES, prefetch_line};
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Bytes that are known about a row beside its set's.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();
/// The most places that are prefetched together: enough for many translations of addresses to be
/// under way, few enough that the lines of three blocks stay in the first-level cache until used.
pub(crate) const BLOCK: usize = 32;
/// Looks at a taken lock before the thread gives up its time slice: about a microsecond, ten times
/// what a holder needs for a row that it has prefetched.
const SPINS: u32 = 100;
/// Time slices that the thread gives up before it sleeps: a holder that has what time others leave
/// needs a core to go on.
const YIELDS: u32 = 16;

/// The line of a set that every access needs.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Set {
    /// Written by the lock's holder, read by anyone.
    pub(super) tags: Tags,
    /// Odd while somebody holds the set; even numbers grow from one holder to the next.
    lock: AtomicU32,
    /// Bit per way: its row was used since the policy looked last. A hint: a thread that sets a bit
    /// without the lock may undo what another thread does at the same moment, so that a use is
    /// forgotten or an empty way looks used.
    used: AtomicU32,
    /// Bit per way: its row differs from the copy on storage. Written by the lock's holder, read by
    /// anyone.
    dirty: AtomicU32,
    /// Bit per way: its row's key was written, so that it is dirty or has a stored copy.
    written: UnsafeCell<u32>,
}

/// The part of a set on a line of its own, guarded by the lock.
#[repr(C, align(64))]
pub(super) struct Rest {
    uses: Uses,
    /// Ways that were taken away from this set.
    taken: u32,
    /// Bit per way: its row is dirty, and has not changed since [`super::Cache::capture`].
    captured: u32,
}

/// A cache's knowledge about a row beside its set's lines.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Header {
    pub(super) key: u64,
    pub(super) origin: u32,
    pub(super) table: u16,
}

const _: () = assert!(size_of::<Set>() == LINE_BYTES && size_of::<Rest>() == LINE_BYTES);
const _: () = assert!(size_of::<Header>() == 16);

/// The stamps of a set whose rows have none behind them: of the change that made each way's row
/// dirty. A stamp means nothing while its row is clean.
type Stamps = [u32; WAYS_MAX];

/// Bytes from one row to the next, and whether its stamp is among them: where rows have an odd
/// number of words. With their stamps they begin at multiples of 8 bytes at least, and lie in no
/// more lines than without.
fn stamped(row_bytes: usize) -> (usize, bool) {
    match row_bytes / size_of::<u32>() % 2 == 1 {
        true => (row_bytes + size_of::<u32>(), true),
        false => (row_bytes, false),
    }
}

/// Bytes of a set beside its headers and rows.
pub(super) fn set_bytes(row_bytes: usize) -> usize {
    let stamps = if stamped(row_bytes).1 { 0 } else { size_of::<Stamps>() };
    size_of::<Set>() + size_of::<Rest>() + stamps
}

/// Bytes of a row and its header.
pub(super) fn slot_bytes(row_bytes: usize, headers: bool) -> usize {
    stamped(row_bytes).0 + if headers { HEADER_BYTES } else { 0 }
}

/// The dirty bits of a set whose lock this thread holds.
#[derive(Debug)]
pub(super) struct DirtyBits<'a>(&'a AtomicU32);

impl DirtyBits<'_> {
    #[inline(always)]
    pub(super) fn get(&self, way: usize) -> bool {
        self.0.load(Ordering::Relaxed) >> way & 1 == 1
    }

    #[inline(always)]
    pub(super) fn set(&mut self, way: usize, dirty: bool) {
        let others = self.0.load(Ordering::Relaxed) & !(1 << way);
        self.0.store(others | u32::from(dirty) << way, Ordering::Relaxed);
    }
}

/// A row and all that is known about it, for change.
pub(super) struct Parts<'a> {
    pub(super) dirty: DirtyBits<'a>,
    pub(super) written: &'a mut u32,
    pub(super) header: Option<&'a mut Header>,
    pub(super) dirty_since: &'a mut u32,
    pub(super) words: &'a mut [f32],
}

impl Parts<'_> {
    /// The stored copy of the row in `way` is at `origin` from here on.
    pub(super) fn set_origin(&mut self, way: usize, origin: u32) {
        if let Some(header) = &mut self.header {
            header.origin = origin;
        }
        let written = origin != 0 || self.dirty.get(way);
        *self.written = *self.written & !(1 << way) | u32::from(written) << way;
    }
}

impl Set {
    /// The lock word: odd while somebody holds the set.
    #[inline(always)]
    pub(super) fn version(&self) -> u32 {
        // Pairs with the release in `LockedSet::drop`.
        self.lock.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn mark_used(&self, way: usize) {
        let used = self.used.load(Ordering::Relaxed);
        if used >> way & 1 == 0 {
            self.used.store(used | 1 << way, Ordering::Relaxed);
        }
    }
}

/// All sets of one cache.
#[derive(Debug)]
pub(super) struct Sets {
    /// `count` of [`Set`]; all zeros is an empty, unlocked set.
    lines: Arena,
    /// `count` of [`Rest`].
    rest: Arena,
    /// Of a cache whose places and tags do not tell rows.
    headers: Option<Arena>,
    rows: Arena,
    /// `count` of [`Stamps`], where rows have no stamps behind them.
    stamps: Option<Arena>,
    count: u32,
    /// Ways of every set at the beginning.
    ways: usize,
    /// Words of a row.
    words: usize,
    /// Words from one row to the next.
    stride: usize,
    /// The lines of a whole row.
    lines_of_row: Lines,
    /// The level of the processor's cache to which lines are prefetched.
    level: Level,
    /// Held while memory of ways is released and while sets get more of them.
    resizing: Mutex<()>,
}

impl Sets {
    /// Maps `count` sets of `ways` rows of `row_bytes`, with a header each or without.
    ///
    /// *Errors*: `Misuse` for an impossible shape, `Budget` when the memory cannot be had.
    pub(super) fn new(count: u32, ways: usize, row_bytes: usize, headers: bool) -> Result<Self> {
        if row_bytes == 0 || !row_bytes.is_multiple_of(4) || row_bytes > 1 << 30 {
            bail!(Misuse, "a row of {row_bytes} bytes: expected a multiple of 4 up to 1 GiB");
        }
        if count == 0 || !(1..=WAYS_MAX).contains(&ways) {
            bail!(Misuse, "{count} sets of {ways} rows: expected at least 1 set, 1 to 32 rows");
        }
        if u64::from(count) * ways as u64 > u64::from(u32::MAX) {
            bail!(Misuse, "{count} sets of {ways} rows are more rows than 32 bits can number");
        }
        let (stride, in_rows) = stamped(row_bytes);
        let slots = count as usize * ways;
        let Some(bytes) = slots.checked_mul(HEADER_BYTES + stride) else {
            bail!(Budget, "a cache of {count} x {ways} rows of {row_bytes} bytes: too large");
        };
        let header_bytes = slots * HEADER_BYTES;
        let headers = match headers {
            true => Some(Arena::new(header_bytes.next_multiple_of(PAGE_BYTES))?),
            false => None,
        };
        let Some(stamps) = (count as usize).checked_mul(size_of::<Stamps>()) else {
            bail!(Budget, "a cache of {count} sets: too large");
        };
        Ok(Self {
            lines: Arena::new(count as usize * size_of::<Set>())?,
            rest: Arena::new(count as usize * size_of::<Rest>())?,
            headers,
            rows: Arena::new((bytes - header_bytes).next_multiple_of(PAGE_BYTES))?,
            stamps: if in_rows { None } else { Some(Arena::new(stamps)?) },
            count,
            ways,
            words: row_bytes / 4,
            stride: stride / 4,
            lines_of_row: Lines::of(stride, stride),
            level: Level::of_this_processor(),
            resizing: Mutex::default(),
        })
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Ways of every set at the beginning.
    #[inline(always)]
    pub(super) fn ways(&self) -> usize {
        self.ways
    }

    /// Bytes of one way of all sets.
    pub(super) fn way_bytes(&self) -> usize {
        self.count as usize * slot_bytes(self.words * 4, self.headers.is_some())
    }

    /// Bytes of all sets beside their ways.
    pub(super) fn bytes_beside_ways(&self) -> usize {
        self.count as usize * set_bytes(self.words * 4)
    }

    /// Bytes from one row to the next.
    #[inline(always)]
    pub(super) fn stride_bytes(&self) -> usize {
        self.stride * 4
    }

    #[inline(always)]
    pub(super) fn set(&self, index: u32) -> &Set {
        if index >= self.count {
            no_such_set(index, self.count);
        }
        // SAFETY: the arena holds `count` sets and `index` is below; it is page-aligned, so every
        // set is aligned to its 64 bytes. All-zero bytes, which it starts with, are a valid `Set`.
        // Nobody makes an exclusive reference to a set; what changes in it is atomic or in a cell.
        unsafe { &*self.lines.as_ptr().cast::<Set>().add(index as usize) }
    }

    #[inline(always)]
    fn slot(&self, index: u32, way: usize) -> usize {
        way * self.count as usize + index as usize
    }

    /// The header's address, if there are headers. It lies in the arena for every set and way of
    /// this cache.
    #[inline(always)]
    pub(super) fn header(&self, index: u32, way: usize) -> Option<*mut Header> {
        let headers = self.headers.as_ref()?;
        Some(header_in(headers, self.slot(index, way)))
    }

    /// The address of a row's stamp. It lies in the arena for every set and way of this cache.
    #[inline(always)]
    fn dirty_since(&self, index: u32, way: usize) -> *mut u32 {
        match &self.stamps {
            Some(stamps) => stamp_in(stamps, index, way),
            None => self.row(index, way).cast::<u32>().wrapping_add(self.words),
        }
    }

    /// The row's address. It lies in the arena for every set and way of this cache.
    #[inline(always)]
    pub(super) fn row(&self, index: u32, way: usize) -> *mut f32 {
        self.rows.as_ptr().cast::<f32>().wrapping_add(self.slot(index, way) * self.stride)
    }

    /// Waits for the set's lock and takes it. It is held until the result is dropped.
    #[inline(always)]
    pub(super) fn lock(&self, index: u32) -> LockedSet<'_> {
        let set = self.set(index);
        // Pairs with the release in `LockedSet::drop`.
        if set.lock.fetch_or(1, Ordering::Acquire) & 1 != 0 {
            wait_for(&set.lock);
        }
        // A thread that does not see the odd number sees no write of the holder: pairs with the
        // acquire fence in `gather`.
        fence(Ordering::Release);
        LockedSet { sets: self, set, index }
    }

    /// Number of keys that a stage takes that prefetches whole rows, [`BLOCK`] at most.
    #[inline(always)]
    pub(super) fn rows_at_once(&self) -> usize {
        self.lines_of_row.rows_at_once()
    }

    /// The level of the processor's cache to which lines are prefetched.
    #[inline(always)]
    pub(super) fn level(&self) -> Level {
        self.level
    }

    /// Asks for the lines that every access of these sets needs.
    #[inline(always)]
    pub(super) fn prefetch_sets(&self, block: &[Location]) {
        match self.level {
            Level::First => self.prefetch_sets_into::<true>(block),
            Level::Second => self.prefetch_sets_into::<false>(block),
        }
    }

    #[inline(always)]
    fn prefetch_sets_into<const FIRST: bool>(&self, block: &[Location]) {
        for at in block {
            prefetch_line::<FIRST, _>(self.set(at.set));
        }
    }

    /// Asks for the lines of the rows that seem to be in these places, [`BLOCK`] at most, and notes
    /// their ways: a hint that takes no lock. It may see tags in the middle of a change, or another
    /// row's, and then asks for the wrong lines. Headers are asked for where a tag does not tell
    /// which row it is, and of rows that will be changed and are clean, stamps that lie apart.
    #[inline(always)]
    pub(super) fn find_rows(&self, block: &mut [Location], changes: bool) {
        match self.level {
            Level::First => self.find_rows_into::<true>(block, changes),
            Level::Second => self.find_rows_into::<false>(block, changes),
        }
    }

    #[inline(always)]
    fn find_rows_into<const FIRST: bool>(&self, block: &mut [Location], changes: bool) {
        let (mut rows, mut stamps) = ([null(); BLOCK], [null(); BLOCK]);
        let (mut count, mut clean, mut inexact) = (0, 0, false);
        let apart = if changes { self.stamps.as_ref() } else { None };
        for at in &mut *block {
            let set = self.set(at.set);
            let found = set.tags.matches(at.tag);
            if found == 0 {
                at.hint = NO_HINT;
                continue;
            }
            at.hint = found.trailing_zeros() as u8;
            inexact |= !at.is_exact();
            if let Some(apart) = apart {
                // Without a branch: which rows are dirty nobody can guess.
                stamps[clean] = stamp_in(apart, at.set, at.hint.into()).cast_const();
                clean += usize::from(set.dirty.load(Ordering::Relaxed) >> at.hint & 1 == 0);
            }
            rows[count] = self.row(at.set, at.hint.into()).cast_const();
            count += 1;
        }
        self.lines_of_row.prefetch::<FIRST>(&rows[..count]);
        let found = || block.iter().filter(|at| at.hint != NO_HINT);
        if inexact && let Some(headers) = &self.headers {
            for at in found().filter(|at| !at.is_exact()) {
                prefetch_line::<FIRST, _>(header_in(headers, self.slot(at.set, at.hint.into())));
            }
        }
        for stamp in &stamps[..clean] {
            prefetch_line::<FIRST, _>(*stamp);
        }
    }

    /// Asks for the stamps of a set's dirty rows where those lie behind them: a hint, as above.
    pub(super) fn prefetch_stamps(&self, index: u32) {
        if self.stamps.is_none() {
            for way in bits(self.set(index).dirty.load(Ordering::Relaxed)) {
                prefetch_line::<false, _>(self.dirty_since(index, way).cast_const());
            }
        }
    }

    /// Lets every set use the first `ways` ways again; those that it did not use are empty.
    pub(super) fn extend(&self, ways: usize) {
        let _resizing = self.resizing.lock();
        for index in 0..self.count {
            let mut set = self.lock(index);
            assert!(ways >= set.usable() && ways <= self.ways);
            set.rest_mut().taken = (self.ways - ways) as u32;
        }
    }

    /// Gives the memory of all ways from `way` on back to the system. Every set must have been
    /// limited to `way` ways before.
    pub(super) fn release_from(&self, way: usize) {
        let _resizing = self.resizing.lock();
        for index in 0..self.count {
            let usable = self.lock(index).usable();
            assert!(usable <= way, "set {index} still uses {usable} ways, {way} are to stay");
        }
        let slots = way * self.count as usize;
        // SAFETY: references to headers, rows and stamps are lent only by `LockedSet`, for usable
        // ways, and end with its lock. Each set was just seen, under its lock, to use fewer ways,
        // and `usable` grows only in `extend`, under `resizing`. A thread that copies a row without
        // the lock has no reference, reads zeros, and finds that the version moved.
        unsafe {
            if let Some(headers) = &self.headers {
                headers.release(slots * HEADER_BYTES..headers.len());
            }
            self.rows.release(slots * self.stride_bytes()..self.rows.len());
        }
    }
}

#[inline(always)]
fn stamp_in(stamps: &Arena, set: u32, way: usize) -> *mut u32 {
    stamps.as_ptr().cast::<Stamps>().wrapping_add(set as usize).cast::<u32>().wrapping_add(way)
}

#[inline(always)]
fn header_in(headers: &Arena, slot: usize) -> *mut Header {
    headers.as_ptr().cast::<Header>().wrapping_add(slot)
}

/// Takes numbers, so that the loops that check them keep them in registers.
#[cold]
#[inline(never)]
fn no_such_set(index: u32, count: u32) -> ! {
    panic!("set {index} of {count}")
}

#[cold]
fn wait_for(lock: &AtomicU32) {
    let mut spins = 0u32;
    loop {
        while lock.load(Ordering::Relaxed) & 1 != 0 {
            spins += 1;
            if !spins.is_multiple_of(SPINS) {
                std::hint::spin_loop();
            } else if spins <= SPINS * YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        // Pairs with the release in `LockedSet::drop`.
        if lock.fetch_or(1, Ordering::Acquire) & 1 == 0 {
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
        let next = self.set.lock.load(Ordering::Relaxed).wrapping_add(1);
        // Pairs with the acquires in `Sets::lock`, `wait_for` and `Set::version`.
        self.set.lock.store(next, Ordering::Release);
    }
}

impl LockedSet<'_> {
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Bit per way whose row is dirty.
    #[inline(always)]
    pub(super) fn dirty(&self) -> u32 {
        self.set.dirty.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn dirty_mut(&mut self) -> DirtyBits<'_> {
        DirtyBits(&self.set.dirty)
    }

    /// Bit per way whose row's key was written.
    #[inline(always)]
    pub(super) fn written_mut(&mut self) -> &mut u32 {
        // SAFETY: this thread holds the lock, and `&mut self` excludes every other reference.
        unsafe { &mut *self.set.written.get() }
    }

    #[inline(always)]
    fn rest(&self) -> &Rest {
        // SAFETY: the arena holds one `Rest` per set, aligned to its 64 bytes, all zeros at first,
        // which is a valid one. This thread holds the lock, and `&self` excludes the exclusive
        // references that other methods lend from `&mut self`.
        unsafe { &*self.sets.rest.as_ptr().cast::<Rest>().add(self.index as usize) }
    }

    #[inline(always)]
    fn rest_mut(&mut self) -> &mut Rest {
        // SAFETY: as in `rest`, and `&mut self` excludes every other reference.
        unsafe { &mut *self.sets.rest.as_ptr().cast::<Rest>().add(self.index as usize) }
    }

    pub(super) fn uses_mut(&mut self) -> &mut Uses {
        &mut self.rest_mut().uses
    }

    /// The stamp of the change that made the row in `way` dirty.
    #[inline(always)]
    pub(super) fn dirty_since(&self, way: usize) -> u32 {
        self.check(way);
        // SAFETY: the stamp lies in an arena, aligned to 4, and any bytes are one. This thread
        // holds the lock and `&self` excludes exclusive references.
        unsafe { *self.sets.dirty_since(self.index, way) }
    }

    /// Bit per way whose row is captured.
    pub(super) fn captured(&self) -> u32 {
        self.rest().captured
    }

    pub(super) fn set_captured(&mut self, ways: u32) {
        self.rest_mut().captured = ways;
    }

    /// Notes a use of the row in `way`.
    #[inline(always)]
    pub(super) fn mark_used(&mut self, way: usize) {
        self.set.mark_used(way);
    }

    /// Takes note of nobody having used the row in `way`.
    pub(super) fn forget_use(&mut self, way: usize) {
        let used = self.set.used.load(Ordering::Relaxed);
        self.set.used.store(used & !(1 << way), Ordering::Relaxed);
    }

    /// Bit per way whose row was used since the last call.
    pub(super) fn take_used(&mut self) -> u32 {
        let used = self.set.used.load(Ordering::Relaxed);
        self.set.used.store(0, Ordering::Relaxed);
        used & self.valid()
    }

    /// Bit per way that holds a row.
    #[inline(always)]
    pub(super) fn valid(&self) -> u32 {
        !self.matches(0)
    }

    /// Number of ways this set may use.
    #[inline(always)]
    pub(super) fn usable(&self) -> usize {
        self.sets.ways - self.rest().taken as usize
    }

    /// Bit per way that may be used.
    pub(super) fn usable_mask(&self) -> u32 {
        u32::MAX >> (WAYS_MAX - self.usable())
    }

    /// Lets the set use no more than the first `ways` ways from here on. The others are empty.
    pub(super) fn limit(&mut self, ways: usize) {
        assert!(ways <= self.usable() && u64::from(self.valid()) >> ways == 0);
        self.rest_mut().taken = (self.sets.ways - ways) as u32;
    }

    /// Bit per way whose tag is `tag`.
    #[inline(always)]
    pub(super) fn matches(&self, tag: u16) -> u32 {
        self.set.tags.matches(tag)
    }

    /// Sets a way's tag; 0 says that it is empty.
    pub(super) fn set_tag(&mut self, way: usize, tag: u16) {
        self.set.tags.set(way, tag);
    }

    #[inline(always)]
    pub(super) fn tag(&self, way: usize) -> u16 {
        self.set.tags.get(way)
    }

    /// Callers ask for ways that hold a row, or that they have just found to be usable and empty.
    #[inline(always)]
    fn check(&self, way: usize) {
        debug_assert!(way < self.usable(), "way {way} of {}", self.usable());
        assert!(way < self.sets.ways, "way {way} of {}", self.sets.ways);
    }

    #[inline(always)]
    pub(super) fn header(&self, way: usize) -> Option<&Header> {
        self.check(way);
        let header = self.sets.header(self.index, way)?;
        // SAFETY: the header lies in the arena, aligned to its 16 bytes, and any bytes are a
        // header. This thread holds the lock and `&self` excludes exclusive references.
        Some(unsafe { &*header })
    }

    #[inline(always)]
    pub(super) fn words(&self, way: usize) -> &[f32] {
        self.check(way);
        // SAFETY: the row lies in the arena, aligned to 4; mapped memory is initialised, and any
        // bytes are floats. Lock and `&self` as above.
        unsafe { std::slice::from_raw_parts(self.sets.row(self.index, way), self.sets.words) }
    }

    /// Everything about the row in a usable way, for change.
    #[inline(always)]
    pub(super) fn row_mut(&mut self, way: usize) -> Parts<'_> {
        self.check(way);
        let sets = self.sets;
        // SAFETY: as in `written_mut`, `header`, `dirty_since` and `words`; the four lie in
        // different memory, and `&mut self` excludes every other reference to them.
        unsafe {
            Parts {
                dirty: DirtyBits(&self.set.dirty),
                written: &mut *self.set.written.get(),
                header: sets.header(self.index, way).map(|header| &mut *header),
                dirty_since: &mut *sets.dirty_since(self.index, way),
                words: std::slice::from_raw_parts_mut(sets.row(self.index, way), sets.words),
            }
        }
    }

    /// Moves a row to another usable way, which is empty, with everything known about it beside
    /// its uses.
    pub(super) fn move_row(&mut self, from: usize, to: usize) {
        assert!(from != to && self.tag(to) == 0, "a row moves from way {from} to {to}");
        let header = self.header(from).copied();
        let (dirty_since, tag) = (self.dirty_since(from), self.tag(from));
        let row = self.sets.row(self.index, from);
        let mut parts = self.row_mut(to);
        if let (Some(to), Some(from)) = (parts.header, header) {
            *to = from;
        }
        *parts.dirty_since = dirty_since;
        let (dirty, written) = (parts.dirty.get(from), *parts.written >> from & 1);
        parts.dirty.set(to, dirty);
        parts.dirty.set(from, false);
        *parts.written = *parts.written & !(1 << from | 1 << to) | written << to;
        // SAFETY: `from` is usable, as `header` asserted, and lies apart from the row that is lent
        // in `parts`, because the ways differ; lock and `&mut self` as above.
        parts.words.copy_from_slice(unsafe { std::slice::from_raw_parts(row, parts.words.len()) });
        self.set_tag(to, tag);
        self.set_tag(from, 0);
    }
}

#[cfg(test)]
mod tests;
