//! The keys of one part, and in which stretch each is used next: a hash table that is looked into
//! once for each use.

/// More slots are not made: 64 MiB. A part with more keys is gone through several times.
const SLOTS_MAX: usize = 1 << 22;
#[cfg(test)]
thread_local! {
    /// Fewer than those, so that small parts are gone through several times.
    pub(crate) static SLOTS_MAX_OF_TEST: std::cell::Cell<Option<usize>> = const {
        std::cell::Cell::new(None)
    };
}
const SLOTS_LEAST: usize = 1 << 10;
/// Uses of a key, as a guess.
const USES_OF_KEY: usize = 8;
/// A table is fuller than this by no means: three quarters.
const FULL: (usize, usize) = (3, 4);

/// Mixes all bits of a key. The upper bits select the part that a key belongs to, the lower ones
/// its place in a table. (Finaliser constants: Pelle Evensen's "moremur".)
#[inline(always)]
pub(crate) fn mix(key: u64) -> u64 {
    let mut x = key ^ (key >> 27);
    x = x.wrapping_mul(0x3C79_AC49_2BA7_B653);
    x ^= x >> 33;
    x = x.wrapping_mul(0x1C69_B3F7_4AC4_AE35);
    x ^ (x >> 27)
}

fn slots_max() -> usize {
    #[cfg(test)]
    if let Some(most) = SLOTS_MAX_OF_TEST.get() {
        return most;
    }
    SLOTS_MAX
}

/// A key and the number of its next use; 0 in a slot without key.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    key: u64,
    use_number: u64,
}

/// The next use of each key.
#[derive(Debug)]
pub(crate) struct NextUses {
    slots: Vec<Slot>,
    keys: usize,
}

impl NextUses {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), keys: 0 }
    }

    /// Forgets all keys; so many uses will follow.
    pub(crate) fn reset(&mut self, uses: usize) {
        let slots = (uses / USES_OF_KEY)
            .next_power_of_two()
            .clamp(SLOTS_LEAST.min(slots_max()), slots_max());
        self.slots.clear();
        self.slots.resize(slots, Slot::default());
        self.keys = 0;
    }

    /// Notes a use of a key. The number of the one noted before, 0 of the first; `None` where a new
    /// key has no room. `number` is not 0.
    #[inline(always)]
    pub(crate) fn replace(&mut self, mixed: u64, key: u64, number: u64) -> Option<u64> {
        let mask = self.slots.len() - 1;
        let mut at = mixed as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.key == key && slot.use_number != 0 {
                return Some(std::mem::replace(&mut slot.use_number, number));
            }
            if slot.use_number == 0 {
                break;
            }
            at = (at + 1) & mask;
        }
        if self.keys >= self.slots.len() / FULL.1 * FULL.0 {
            if self.slots.len() >= slots_max() {
                return None;
            }
            self.grow();
            at = self.free(mixed);
        }
        self.slots[at] = Slot { key, use_number: number };
        self.keys += 1;
        Some(0)
    }

    /// Adds to the numbers of all keys.
    pub(crate) fn shift(&mut self, by: u64) {
        let used = self.slots.iter_mut().filter(|slot| slot.use_number != 0);
        used.for_each(|slot| slot.use_number += by);
    }

    fn free(&self, mixed: u64) -> usize {
        let mask = self.slots.len() - 1;
        let places = (0..self.slots.len()).map(|step| (mixed as usize + step) & mask);
        let mut free = places.filter(|at| self.slots[*at].use_number == 0);
        free.next().expect("a table is never full")
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![Slot::default(); self.slots.len() * 2];
        for slot in std::mem::replace(&mut self.slots, larger) {
            if slot.use_number != 0 {
                let at = self.free(mix(slot.key));
                self.slots[at] = slot;
            }
        }
    }
}
