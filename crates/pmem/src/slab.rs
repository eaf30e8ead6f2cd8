//! Which row slots are free.
//!
//! **Nothing of this is on the medium.** A row slot has the key of its row, and the index has the
//! slot of a key: a slot is in use if both agree, and free otherwise. So a crash can neither leak a
//! slot nor have it handed out twice, whatever was stored by then.
//!
//! **Found out as needed.** After opening, no slot is known to be free. Where room is wanted, the
//! slots of one more chunk are looked up. In memory are two bits for each row slot: free, and
//! replaced but perhaps still read.
//!
//! A slot is *replaced* while its key is locked in the index, and chunks are looked up under the
//! same locks. So each slot is freed once: by the look-up, or by who replaced it.

use crate::epoch::Readings;
use crate::error::{Error, Result};
use crate::hash::PetHash;
use crate::medium::{Durability, Medium};
use crate::region::Geometry;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Slots of a chunk: looking up so many takes about 0.1 ms.
const CHUNK: u64 = 1024;
/// How long a call looks again for slots that others hold.
const WAIT_MOST: Duration = Duration::from_secs(5);
/// How often it looks at once; then it pauses between two looks.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_micros(50);

/// The row slots of a region.
pub(crate) struct Slab {
    row_slots: u64,
    capacity: u64,
    /// A bit for each slot that was replaced and is not yet free.
    replaced: Box<[AtomicU64]>,
    state: Mutex<State>,
}

struct State {
    /// A bit for each slot that is known to be free.
    free: Box<[u64]>,
    free_slots: u64,
    /// Where to look for a free slot next.
    next_word: usize,
    /// Slots below were looked up.
    known: u64,
    /// Replaced slots by the epoch in which they were.
    waiting: VecDeque<(u64, Vec<u64>)>,
    waiting_slots: u64,
    /// Slots that calls under way will give back.
    owed: u64,
    /// New rows that calls under way may still take slots for.
    promised: u64,
}

/// How row slots are used, as far as it is known.
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
}

impl Slab {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let words = (geometry.row_slots as usize).div_ceil(64);
        Self {
            row_slots: geometry.row_slots,
            capacity: geometry.capacity,
            replaced: (0..words).map(|_| AtomicU64::new(0)).collect(),
            state: Mutex::new(State {
                free: vec![0; words].into_boxed_slice(),
                free_slots: 0,
                next_word: 0,
                known: 0,
                waiting: VecDeque::new(),
                waiting_slots: 0,
                owed: 0,
                promised: 0,
            }),
        }
    }

    /// Bytes of memory that row slots take, whatever happens.
    pub(crate) fn memory_bytes(geometry: &Geometry) -> usize {
        (geometry.row_slots as usize).div_ceil(64) * 2 * size_of::<u64>()
    }

    /// Makes sure of room for new rows beside the reserve for updates. Updates alone pass at once:
    /// a region that is full takes them, also where a race of a put and a removal made one row too
    /// many.
    ///
    /// The first new rows after opening wait until the reserve, a thirty-second of the capacity, is
    /// known to be free: in a full region that looks up all slots.
    pub(crate) fn admit<M: Medium>(&self, new: u64, index: &PetHash<M>) -> Result<()> {
        if new == 0 {
            return Ok(());
        }
        let mut state = self.state.lock();
        let reserve = self.row_slots - self.capacity;
        while state.spare() < state.promised + new + reserve {
            if !self.look_up_chunk(&mut state, index)? {
                let rows = state.known.saturating_sub(state.spare());
                return Err(Error::full(format!(
                    "{} has room for {} rows and has {rows}, {new} more do not fit; remove rows, \
                     or resize it into a region with more",
                    index.region.medium.name(),
                    self.capacity
                )));
            }
        }
        state.promised += new;
        Ok(())
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
        let (mut tries, begin) = (0, Instant::now());
        while state.free_slots < count as u64 {
            if self.look_up_chunk(&mut state, index)? {
                continue;
            }
            // Calls under way give slots back, and no call waits here with slots of its own.
            tries += 1;
            if begin.elapsed() < WAIT_MOST && state.owed + state.waiting_slots > 0 {
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
        self.state.lock().promised -= new;
    }

    /// Notes that a slot has lost its key, and says whether that is new: of two keys that damage
    /// has given the same slot, one frees it. Called while the key is locked.
    pub(crate) fn replace(&self, slot: u64) -> bool {
        let bit = 1 << (slot % 64);
        self.replaced[slot as usize / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Ends a call that took slots: `unused` have no row, `replaced` lost theirs, durably.
    pub(crate) fn give_back(
        &self,
        owed: u64,
        unused: &[u64],
        replaced: Vec<u64>,
        readings: &Readings,
    ) {
        let epoch = readings.advance();
        let mut state = self.state.lock();
        state.owed -= owed;
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
                if slot < state.known {
                    state.set_free(slot);
                }
            }
        }
    }

    /// Finds the free slots of one more chunk; `false` where there is none.
    ///
    /// Waits for locks of buckets, whose holders never wait for `state`.
    fn look_up_chunk<M: Medium>(&self, state: &mut State, index: &PetHash<M>) -> Result<bool> {
        let first = state.known;
        let end = (first + CHUNK).min(self.row_slots);
        if first == end {
            return Ok(false);
        }
        let (medium, geometry) = (&index.region.medium, &index.region.geometry);
        if medium.durability() == Durability::Sync {
            medium.expect(geometry.row_word(first)..geometry.row_word(end));
        }
        let mut free_slots = Vec::new();
        for slot in first..end {
            let word = geometry.row_word(slot);
            let (key, checksum) = (medium.load(word), medium.load(word + 1));
            // A row's checksum is never 0: this slot never had one.
            let free = checksum == 0
                || index.inspect(key, |found| {
                    let replaced = self.replaced[slot as usize / 64].load(Ordering::Acquire);
                    found != slot && replaced & 1 << (slot % 64) == 0
                });
            if free {
                free_slots.push(slot);
            }
        }
        // What proves that they are free is durable before they are overwritten.
        index.fence()?;
        free_slots.into_iter().for_each(|slot| state.set_free(slot));
        state.known = end;
        Ok(true)
    }

    pub(crate) fn used(&self) -> SlabUse {
        let state = self.state.lock();
        SlabUse {
            row_slots: self.row_slots,
            known: state.known,
            free: state.free_slots,
            waiting: state.waiting_slots,
        }
    }
}

impl State {
    /// Slots that are free, or will be once calls and readings end.
    fn spare(&self) -> u64 {
        self.free_slots + self.waiting_slots + self.owed
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
