//! The free row slots of a region.
//!
//! **No list of them is on the medium.** A row slot has the key of its row, and the index has the
//! slot of a key: a slot is in use if both agree, and free otherwise. So a crash can neither leak a
//! slot nor have it handed out twice, whatever was stored by then.
//!
//! **Found out as needed.** After opening, no slot is known to be free. When room is wanted, the
//! slots of one more chunk are looked up: first where free ones were found last, a hint on the
//! medium, then further on, or far away if rows lie densely. In memory are two bits for each row
//! slot: free, and replaced but perhaps still read.
//!
//! **A bound on the rows** is on the medium, so that new rows are admitted or refused as a whole
//! before all slots are known. It is raised ahead of rows, many at a time, and exact after a close.
//!
//! A slot is *replaced* while its key is locked in the index, and chunks are looked up under the
//! same locks. So each slot is freed once: by the look-up, or by the call that replaced it.

use crate::epoch::Readings;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::{ABSENT, PetHash};
use crate::medium::{Durability, Medium};
use crate::region::Geometry;
use crate::slot_word::slot_of;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Slots of a chunk: looking up so many takes about 0.1 ms.
const CHUNK: u64 = 1024;
/// The longest time that a call looks again for slots that others hold.
const WAIT_MOST: Duration = Duration::from_secs(5);
/// Number of looks without a pause; then it pauses between two looks.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(50);
/// The time after which a wait is reported.
const MOMENT: Duration = Duration::from_millis(2);
/// A chunk with fewer free slots lies among rows.
const POOR: usize = CHUNK as usize / 64;
/// The distance to the next look-up among densely lying rows, as a share of all chunks: the golden
/// ratio leaves no long stretch unvisited.
const STRIDE: f64 = 0.618_033_988_75;
/// Rows that are claimed ahead, as a share of the capacity.
const CLAIM_SHARE: u64 = 64;

/// The row slots of a region.
pub(crate) struct Slab {
    row_slots: u64,
    capacity: u64,
    /// A bit for each slot that was replaced and is not yet free.
    replaced: Box<[AtomicU64]>,
    state: Mutex<State>,
    /// Number of calls that pause for slots which others hold, and of those that ever did.
    pausing: AtomicUsize,
    pauses: AtomicU64,
}

/// A call that pauses for slots.
struct Pausing<'a>(&'a AtomicUsize);

impl Drop for Pausing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct State {
    /// A bit for each slot that is known to be free.
    free: Box<[u64]>,
    free_slots: u64,
    /// The next word to search for a free slot.
    next_word: usize,
    /// A bit for each chunk that was looked up.
    looked_up: Box<[u64]>,
    /// Slots of those.
    known: u64,
    /// The chunk to look up next, if it was not looked up yet.
    next_chunk: u64,
    /// Whether the last one had few free slots.
    poor: bool,
    /// Upper bound of the number of rows, those that calls under way will make included.
    rows: u64,
    /// The durable upper bound of the number of rows.
    claimed: u64,
    /// Replaced slots by the epoch in which they were.
    waiting: VecDeque<(u64, Vec<u64>)>,
    waiting_slots: u64,
    /// Slots that calls under way will give back.
    owed: u64,
    /// New rows that calls under way may still take slots for.
    promised: u64,
}

/// The use of row slots, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabUse {
    /// All row slots.
    pub row_slots: u64,
    /// Slots that were looked up since the region was opened.
    pub known: u64,
    /// Known slots without a row.
    pub free: u64,
    /// Slots of replaced rows that may still be read.
    pub waiting: u64,
    /// Upper bound of the number of rows; exact since the region was made, or if it was closed
    /// before it was opened.
    pub rows_at_most: u64,
}

impl Slab {
    /// The slots of a region in which there are at most so many rows, if that is known.
    pub(crate) fn new(geometry: &Geometry, rows_at_most: Option<u64>, hint: u64) -> Self {
        let words = (geometry.row_slots as usize).div_ceil(64);
        let chunks = geometry.row_slots.div_ceil(CHUNK);
        let mut looked_up = vec![0; chunks.div_ceil(64) as usize].into_boxed_slice();
        if let Some(last) = looked_up.last_mut() {
            // There are no such chunks.
            *last = !(u64::MAX >> (63 - (chunks - 1) % 64));
        }
        let rows = rows_at_most.unwrap_or(geometry.row_slots).min(geometry.row_slots);
        Self {
            row_slots: geometry.row_slots,
            capacity: geometry.capacity,
            replaced: (0..words).map(|_| AtomicU64::new(0)).collect(),
            state: Mutex::new(State {
                free: vec![0; words].into_boxed_slice(),
                free_slots: 0,
                next_word: 0,
                looked_up,
                known: 0,
                next_chunk: hint % chunks,
                poor: false,
                rows,
                claimed: rows,
                waiting: VecDeque::new(),
                waiting_slots: 0,
                owed: 0,
                promised: 0,
            }),
            pausing: AtomicUsize::new(0),
            pauses: AtomicU64::new(0),
        }
    }

    /// Bytes of memory that row slots take, whatever happens.
    pub(crate) fn memory_bytes(geometry: &Geometry) -> usize {
        let (slots, chunks) = (geometry.row_slots, geometry.row_slots.div_ceil(CHUNK));
        (slots.div_ceil(64) * 2 + chunks.div_ceil(64)) as usize * size_of::<u64>()
    }

    /// Makes sure of room for new rows beside the reserve for updates. Updates alone pass at once:
    /// a region that is full takes them, also where a race of a put and a removal made one row too
    /// many.
    ///
    /// If the bound on rows leaves no room, slots are looked up until there is: those that were not
    /// count as rows.
    pub(crate) fn admit<M: Medium>(&self, new: u64, index: &PetHash<M>) -> Result<()> {
        if new == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        loop {
            let not_spare = (self.row_slots + state.promised).saturating_sub(state.spare());
            state.rows = state.rows.min(not_spare);
            if state.rows + new <= self.capacity {
                break;
            }
            if !self.look_up_chunk(&mut state, index)? {
                return Err(Error::full(format!(
                    "{} has room for {} rows and has {}, {new} more do not fit; remove rows, or \
                     resize it into a region with more",
                    index.region.medium.name(),
                    self.capacity,
                    state.rows
                )));
            }
        }
        self.claim(&mut state, new, index)?;
        state.promised += new;
        state.rows += new;
        Ok(())
    }

    /// Makes a bound durable that holds with so many rows more.
    ///
    /// An update makes a row more where a removal of its key comes between: hence all that calls
    /// under way owe.
    fn claim<M: Medium>(&self, state: &mut State, more: u64, index: &PetHash<M>) -> Result<()> {
        let wanted = (state.rows + state.owed + more).min(self.row_slots);
        if wanted > state.claimed {
            let ahead = (self.capacity / CLAIM_SHARE).max(1);
            let claimed = (wanted + ahead).min(self.row_slots);
            index.region.claim_rows(claimed)?;
            state.claimed = claimed;
        }
        Ok(())
    }

    /// The rows that there are at most, where the medium has a larger bound and no call is under
    /// way.
    pub(crate) fn unclaimed(&self) -> Option<u64> {
        let state = self.state.lock();
        let quiet = state.owed == 0 && state.promised == 0;
        (quiet && state.rows < state.claimed).then_some(state.rows)
    }

    /// Takes slots for rows, `new` of which were admitted.
    pub(crate) fn take<M: Medium>(
        &self,
        slots: &mut Vec<u64>,
        count: usize,
        new: u64,
        index: &PetHash<M>,
        readings: &Readings,
    ) -> Result<()> {
        let mut state = self.state.lock();
        self.reclaim(&mut state, readings);
        let (mut tries, begin, mut pausing) = (0, Instant::now(), None);
        while state.free_slots < count as u64 {
            if self.look_up_chunk(&mut state, index)? {
                continue;
            }
            // Calls under way give slots back, and no call waits here with slots of its own.
            tries += 1;
            if begin.elapsed() < WAIT_MOST && state.owed + state.waiting_slots > 0 {
                if pausing.is_none() && begin.elapsed() >= MOMENT {
                    self.pausing.fetch_add(1, Ordering::Relaxed);
                    self.pauses.fetch_add(1, Ordering::Relaxed);
                    pausing = Some(Pausing(&self.pausing));
                }
                parking_lot::MutexGuard::unlocked(&mut state, || match tries < TRIES {
                    true => std::thread::yield_now(),
                    false => std::thread::sleep(PAUSE),
                });
                self.reclaim(&mut state, readings);
            } else {
                return Err(Error::full(format!(
                    "{}: {count} row slots are wanted for updates, {} are free; {} more hold \
                     replaced rows that {} readings may still use; end those, or put fewer rows \
                     at a time",
                    index.region.medium.name(),
                    state.free_slots,
                    state.waiting_slots,
                    readings.count()
                )));
            }
        }
        self.claim(&mut state, count as u64 - new, index)?;
        slots.clear();
        while slots.len() < count {
            let word = state.next_word;
            if state.free[word] == 0 {
                state.next_word = (word + 1) % state.free.len();
                continue;
            }
            let bit = state.free[word].trailing_zeros();
            state.free[word] &= state.free[word] - 1;
            slots.push(word as u64 * 64 + u64::from(bit));
        }
        state.free_slots -= count as u64;
        state.promised -= new;
        state.owed += count as u64 - new;
        Ok(())
    }

    /// Takes back what was promised and not taken.
    pub(crate) fn dismiss(&self, new: u64) {
        let mut state = self.state.lock();
        state.promised -= new;
        state.rows -= new;
    }

    /// Notes that a slot has lost its key, and says whether that is new: of two keys that damage
    /// has given the same slot, one frees it. Called while the key is locked.
    pub(crate) fn replace(&self, slot: u64) -> bool {
        let bit = 1 << (slot % 64);
        self.replaced[slot as usize / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Ends a call that took slots: `unused` have no row, `replaced` lost theirs, durably. There
    /// are `grown` rows more than the call was admitted for.
    pub(crate) fn give_back(
        &self,
        owed: u64,
        unused: &[u64],
        replaced: Vec<u64>,
        grown: i64,
        readings: &Readings,
    ) {
        let epoch = readings.advance();
        let mut state = self.state.lock();
        state.owed -= owed;
        state.rows = state.rows.saturating_add_signed(grown);
        for slot in unused {
            state.set_free(*slot);
        }
        if !replaced.is_empty() {
            state.waiting_slots += replaced.len() as u64;
            // Calls end in any order: the queue stays one of rising epochs.
            let epoch = state.waiting.back().map_or(epoch, |last| last.0.max(epoch));
            state.waiting.push_back((epoch, replaced));
        }
        self.reclaim(&mut state, readings);
    }

    fn reclaim(&self, state: &mut State, readings: &Readings) {
        if state.waiting.is_empty() {
            return;
        }
        let oldest = readings.oldest();
        while state.waiting.front().is_some_and(|first| first.0 < oldest) {
            let (_, slots) = state.waiting.pop_front().expect("there is a first");
            state.waiting_slots -= slots.len() as u64;
            for slot in slots {
                let bit = 1 << (slot % 64);
                self.replaced[slot as usize / 64].fetch_and(!bit, Ordering::AcqRel);
                // Of a chunk that was not looked up, the look-up will find it.
                if state.is_known(slot) {
                    state.set_free(slot);
                }
            }
        }
    }

    /// Finds the free slots of one more chunk; `false` where there is none.
    ///
    /// Waits for locks of buckets, whose holders never wait for `state`.
    fn look_up_chunk<M: Medium>(&self, state: &mut State, index: &PetHash<M>) -> Result<bool> {
        let Some(chunk) = state.next_unknown() else { return Ok(false) };
        let first = chunk * CHUNK;
        let end = (first + CHUNK).min(self.row_slots);
        let (medium, geometry) = (&index.region.medium, &index.region.geometry);
        let head = |slot| {
            let word = geometry.row_word(slot);
            (medium.load(word), medium.load(word + 1))
        };
        if medium.durability() == Durability::Sync {
            medium.expect(geometry.row_word(first)..geometry.row_word(end));
            for (key, _) in (first..end).map(head).filter(|(_, checksum)| *checksum != 0) {
                index.expect_home(key);
            }
        }
        let mut free_slots = Vec::new();
        for slot in first..end {
            let (key, checksum) = head(slot);
            // A row's checksum is never 0: this slot never had one.
            let is_free = |found| {
                let replaced = self.replaced[slot as usize / 64].load(Ordering::Acquire);
                (found == ABSENT || slot_of(found) != slot) && replaced & 1 << (slot % 64) == 0
            };
            // If damage may hide a key, its row is not overwritten.
            let free = checksum == 0
                || match index.inspect(key, is_free) {
                    Err(error) if error.kind() == ErrorKind::Corrupt => false,
                    free => free?,
                };
            if free {
                free_slots.push(slot);
            }
        }
        if free_slots.len() >= POOR {
            index.region.set_hint(chunk);
        }
        // The proof that they are free is durable before they are overwritten.
        index.fence()?;
        state.looked_up[chunk as usize / 64] |= 1 << (chunk % 64);
        state.known += end - first;
        if state.free_slots == 0 {
            state.next_word = first as usize / 64;
        }
        // Rows are put side by side: two dense chunks are followed by more.
        let poor = free_slots.len() < POOR;
        let chunks = self.row_slots.div_ceil(CHUNK);
        let step = if poor && state.poor { (chunks as f64 * STRIDE) as u64 } else { 1 };
        state.next_chunk = (chunk + step.max(1)) % chunks;
        state.poor = poor;
        free_slots.into_iter().for_each(|slot| state.set_free(slot));
        Ok(true)
    }

    /// Whether a call pauses for slots that others hold, and how many ever did.
    pub(crate) fn pauses(&self) -> (bool, u64) {
        (self.pausing.load(Ordering::Relaxed) > 0, self.pauses.load(Ordering::Relaxed))
    }

    pub(crate) fn used(&self) -> SlabUse {
        let state = self.state.lock();
        SlabUse {
            row_slots: self.row_slots,
            known: state.known,
            free: state.free_slots,
            waiting: state.waiting_slots,
            rows_at_most: state.rows,
        }
    }
}

impl State {
    /// Slots that are free, or will be once calls and readings end.
    fn spare(&self) -> u64 {
        self.free_slots + self.waiting_slots + self.owed
    }

    fn is_known(&self, slot: u64) -> bool {
        let chunk = slot / CHUNK;
        self.looked_up[chunk as usize / 64] & 1 << (chunk % 64) != 0
    }

    /// The first chunk from the next one on that was not looked up.
    fn next_unknown(&self) -> Option<u64> {
        let first = self.next_chunk as usize / 64;
        let words = self.looked_up.len();
        (0..=words).find_map(|i| {
            let word = (first + i) % words;
            let skipped = if i == 0 { self.next_chunk % 64 } else { 0 };
            let unknown = !self.looked_up[word] >> skipped << skipped;
            (unknown != 0).then(|| word as u64 * 64 + u64::from(unknown.trailing_zeros()))
        })
    }

    /// A slot that is free already was named by a damaged word of the index, and stays as it is.
    fn set_free(&mut self, slot: u64) {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if self.free[word] & bit == 0 {
            self.free[word] |= bit;
            self.free_slots += 1;
        }
    }
}
