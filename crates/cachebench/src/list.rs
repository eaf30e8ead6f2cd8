//! What both list caches are made of: entries in a slab, linked by number, found by a hash map.

use embedrock_core::hash::mix;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// One row's entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: u32,
    /// The row, of one word.
    pub(crate) word: u32,
    /// Neighbours in its list: the one used later, and the one used earlier.
    pub(crate) newer: u32,
    pub(crate) older: u32,
}

/// The two ends of a doubly linked list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    pub(crate) newest: u32,
    pub(crate) oldest: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { newest: NONE, oldest: NONE };

    pub(crate) fn push_newest(&mut self, entries: &mut [Entry], at: u32) {
        let entry = &mut entries[at as usize];
        (entry.newer, entry.older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = at,
            newest => entries[newest as usize].newer = at,
        }
        self.newest = at;
    }

    pub(crate) fn remove(&mut self, entries: &mut [Entry], at: u32) {
        let Entry { newer, older, .. } = entries[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => entries[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => entries[older as usize].newer = newer,
        }
    }
}

/// The entry of each key. The standard library's map is hashbrown; its usual hash, which withstands
/// attacks, would cost more than the rest, so it gets the engine's.
pub(crate) type Map = HashMap<u32, u32, BuildHasherDefault<Mixed>>;

/// An empty map for so many keys, which never grows.
pub(crate) fn map_for(capacity: usize) -> Map {
    Map::with_capacity_and_hasher(capacity + 1, BuildHasherDefault::default())
}

/// Bytes of a map: a power of two of pairs at a load of at most 7/8, with a byte of hash each.
pub(crate) fn map_bytes(map: &Map) -> u64 {
    let places = (map.capacity() * 8 / 7).next_power_of_two();
    (places * (size_of::<(u32, u32)>() + 1)) as u64
}

/// The engine's mixing hash.
#[derive(Default)]
pub(crate) struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0, u64::from(*byte)));
    }

    fn write_u32(&mut self, key: u32) {
        self.0 = mix(u64::from(key), 7);
    }
}
