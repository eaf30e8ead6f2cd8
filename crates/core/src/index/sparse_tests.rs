//! The sparse index against a plain map, across splits, merges, snapshots and replays.
#![expect(clippy::print_stdout, reason = "a failed test shows its seed")]

use std::collections::HashMap;

use super::SparseIndex;
use super::sparse::{Merge, Split};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::mix;

pub(super) const SALT: u64 = 0x5EED_0000_0000_0001;

/// Pseudo-random numbers: the mixing hash of a counter.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 += 1;
        mix(self.0, 0xA5A5)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// An index, the map that it must agree with, and the keys as storage would hold them.
struct Model {
    index: SparseIndex,
    /// Slot number of each key.
    rows: HashMap<u64, u32>,
    /// Key of each slot number in use.
    stored: HashMap<u32, u64>,
    /// Keys, for a random choice among them.
    keys: Vec<u64>,
    next_slot: u32,
}

impl Model {
    fn new(expected_rows: u64) -> Self {
        Self {
            index: SparseIndex::new(expected_rows).unwrap(),
            rows: HashMap::new(),
            stored: HashMap::new(),
            keys: vec![],
            next_slot: 1,
        }
    }

    fn slot(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot - 1
    }

    fn insert(&mut self, key: u64) -> (u64, u32) {
        let slot = self.slot();
        self.index.insert(mix(key, SALT), slot);
        assert_eq!(self.rows.insert(key, slot), None);
        self.stored.insert(slot, key);
        self.keys.push(key);
        (mix(key, SALT), slot)
    }

    fn replace(&mut self, at: usize) -> (u64, u32, u32) {
        let (key, new) = (self.keys[at], self.slot());
        let old = self.rows.insert(key, new).unwrap();
        assert!(self.index.replace(mix(key, SALT), old, new));
        assert!(!self.index.replace(mix(key, SALT), old, new), "replaced twice");
        self.stored.remove(&old);
        self.stored.insert(new, key);
        (mix(key, SALT), old, new)
    }

    fn remove(&mut self, at: usize) -> (u64, u32) {
        let key = self.keys.swap_remove(at);
        let slot = self.rows.remove(&key).unwrap();
        assert!(self.index.remove(mix(key, SALT), slot));
        assert!(!self.index.remove(mix(key, SALT), slot), "removed twice");
        self.stored.remove(&slot);
        (mix(key, SALT), slot)
    }

    fn split(&mut self) -> Split {
        let stored = &self.stored;
        self.index.split(&mut |slot| Ok(mix(stored[&slot], SALT))).unwrap()
    }

    /// Every key is found at its slot and all slots are found; `absent` keys are not confirmed.
    fn check(&self, absent: impl Iterator<Item = u64>) {
        self.index.assert_consistent();
        assert_eq!(self.index.len(), self.rows.len() as u64);
        let mut slots = vec![];
        for (key, slot) in &self.rows {
            slots.clear();
            let hash = mix(*key, SALT);
            self.index.candidates(hash, &mut slots);
            assert_eq!(slots.iter().filter(|found| *found == slot).count(), 1, "key {key}");
            assert!(self.index.contains_slot(hash, *slot));
            assert!(!self.index.contains_slot(hash, self.next_slot));
        }
        for key in absent.filter(|key| !self.rows.contains_key(key)) {
            slots.clear();
            self.index.candidates(mix(key, SALT), &mut slots);
            assert!(slots.iter().all(|slot| self.stored[slot] != key));
        }
        let mut all: Vec<u32> =
            (0..self.index.partitions()).flat_map(|at| self.index.slots(at)).collect();
        all.sort_unstable();
        let mut expected: Vec<u32> = self.stored.keys().copied().collect();
        expected.sort_unstable();
        assert_eq!(all, expected);
    }
}

/// Keys that have broken hash tables: extremes, and strides that leave low bits equal.
fn awkward_key(random: &mut Random, range: u64) -> u64 {
    let i = random.below(range);
    match random.below(6) {
        0 => i,
        1 => u64::MAX - i,
        2 => i << 12,
        3 => i << 32,
        4 => i.reverse_bits(),
        _ => mix(i, 99),
    }
}

fn no_keys(slot: u32) -> Result<u64> {
    Err(Error::new(ErrorKind::Corrupt, format!("the key of slot {slot} was asked for")))
}

#[test]
fn random_operations_agree_with_a_plain_map() {
    for seed in 0..4 {
        println!("seed {seed}");
        let mut random = Random(seed << 32);
        let mut model = Model::new(0);
        for key in [0, 1, u64::MAX, 1 << 63] {
            model.insert(key);
        }
        for step in 0..120_000u64 {
            // Phases of growth and of decline, so that splits and merges both come.
            let grow = if (step / 30_000) % 2 == 0 { 70 } else { 15 };
            let at = random.below(model.keys.len().max(1) as u64) as usize;
            match random.below(100) {
                choice if choice < grow || model.keys.is_empty() => {
                    let key = awkward_key(&mut random, 1 << 14);
                    if !model.rows.contains_key(&key) {
                        model.insert(key);
                    }
                }
                choice if choice < grow + 10 => {
                    model.replace(at);
                }
                _ => {
                    model.remove(at);
                }
            }
            if model.index.needs_split() {
                model.split();
                assert!(!model.index.needs_split());
            }
            if model.index.needs_merge() {
                model.index.merge().unwrap();
            }
            if step % 40_000 == 39_999 {
                model.check((0..1000).map(|_| awkward_key(&mut random, 1 << 15)));
            }
        }
        assert!(model.index.partitions() < 600);
    }
}

#[test]
fn entries_survive_more_doublings_than_their_tags_have_bits() {
    let mut model = Model::new(0);
    let mut random = Random(7);
    for key in 0..600 {
        model.insert(key << 12);
    }
    let mut refreshed = 0;
    // From 16 to 2^19 partitions: 15 doublings use up each tag, and the next one asks for its key.
    while model.index.partitions() < 1 << 20 {
        let before = model.index.partitions();
        let split = model.split();
        assert_eq!((split.child, model.index.partitions()), (before, before + 1));
        assert_eq!(split.parent, before - (1 << before.ilog2()));
        refreshed += split.refreshed.len();
        for (slot, hash) in split.refreshed {
            assert_eq!(mix(model.stored[&slot], SALT), hash);
        }
        if before == 1 << 12 {
            assert_eq!(refreshed, 0);
            for at in 0..300 {
                model.replace(at);
            }
        }
        if before.is_power_of_two() || before % 65_536 == 12_345 {
            model.check((0..100).map(|_| random.next()));
        }
    }
    // The 300 that were replaced at 2^12 partitions had bits to spare until 2^27.
    assert_eq!(refreshed, 300);
    while let Some(Merge { parent, child }) = model.index.merge() {
        assert_eq!((child, parent), (model.index.partitions(), child - (1 << child.ilog2())));
        if child.is_power_of_two() {
            model.check((0..100).map(|_| random.next()));
        }
    }
    assert_eq!(model.index.partitions(), 1);
    model.check(0..100);
}

#[test]
fn a_replaced_entry_has_a_full_length_tag_again() {
    let mut model = Model::new(0);
    let (hash, slot) = model.insert(77);
    // Flipping one hash bit at a time tells how many bits address and tag have together.
    let known_bits = |model: &Model| {
        let loses = |bit: &u32| {
            let mut slots = vec![];
            model.index.candidates(hash ^ (1 << bit), &mut slots);
            slots.is_empty()
        };
        (0..64).filter(loses).count()
    };
    assert_eq!(known_bits(&model), 4 + 15);
    for _ in 0..16 * 31 {
        model.split();
    }
    assert_eq!((model.index.partitions(), known_bits(&model)), (512, 4 + 15));
    assert!(model.index.replace(hash, slot, slot));
    assert_eq!(known_bits(&model), 9 + 15);
}

#[test]
fn a_failed_split_changes_nothing() {
    let mut model = Model::new(0);
    for key in 0..64 {
        model.insert(key);
    }
    let bare = |index: &SparseIndex| index.partitions() == 1 << 19;
    while !bare(&model.index) {
        model.split();
    }
    let (mut failures, stored) = (0, model.stored.clone());
    for parent in 0..1 << 19 {
        let dump = |index: &SparseIndex| {
            let mut bytes = vec![];
            index.write_partition(parent, &mut bytes);
            (index.partitions(), index.len(), index.memory_bytes(), bytes)
        };
        let before = dump(&model.index);
        let Err(error) = model.index.split(&mut no_keys) else {
            continue;
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(before, dump(&model.index));
        let wrong = model.index.split(&mut |slot| Ok(mix(stored[&slot], SALT) ^ 1)).unwrap_err();
        assert!(wrong.message().contains("belongs to index partition"), "{wrong}");
        assert_eq!(before, dump(&model.index));
        failures += 1;
        let split = model.split();
        assert_eq!((split.parent, split.refreshed.is_empty()), (parent, false));
    }
    assert!(failures > 32, "{failures} partitions had bare tags");
    model.check(0..100);
}

/// The contents of a journal, in order.
enum Event {
    Insert(u64, u32),
    Replace(u64, u32, u32),
    Remove(u64, u32),
    Split(Split),
    Merge(Merge),
    Piece(u32, Vec<u8>),
}

fn replay(index: &mut SparseIndex, events: &[Event]) {
    for event in events {
        match event {
            Event::Insert(hash, slot) => index.insert(*hash, *slot),
            // False where the partition is not loaded yet.
            Event::Replace(hash, old, new) => {
                index.replace(*hash, *old, *new);
            }
            Event::Remove(hash, slot) => {
                index.remove(*hash, *slot);
            }
            Event::Split(split) => {
                for (slot, hash) in &split.refreshed {
                    index.replace(*hash, *slot, *slot);
                }
                let again = index.split(&mut no_keys).unwrap();
                assert_eq!((again.parent, again.child), (split.parent, split.child));
            }
            Event::Merge(merge) => assert_eq!(index.merge().as_ref(), Some(merge)),
            Event::Piece(partition, bytes) => index.load_partition(*partition, bytes).unwrap(),
        }
    }
}

/// A cycle of pieces interleaved with changes; `resize` splits or merges as the step wants.
fn recorded_cycle(
    model: &mut Model,
    random: &mut Random,
    resize: impl Fn(u64, &mut Model) -> Option<Event>,
) -> Vec<Event> {
    let piece = |model: &Model, partition| {
        let mut bytes = vec![];
        model.index.write_partition(partition, &mut bytes);
        Event::Piece(partition, bytes)
    };
    let (mut events, mut swept, mut steps_after) = (vec![], 0, 0);
    for step in 0.. {
        let at = random.below(model.keys.len() as u64) as usize;
        events.push(match random.below(4) {
            0 | 1 => {
                let (hash, slot) = model.insert(random.next());
                Event::Insert(hash, slot)
            }
            2 => {
                let (hash, old, new) = model.replace(at);
                Event::Replace(hash, old, new)
            }
            _ => {
                let (hash, slot) = model.remove(at);
                Event::Remove(hash, slot)
            }
        });
        let resized = resize(step, model);
        let merged =
            if let Some(Event::Merge(merge)) = &resized { Some(merge.parent) } else { None };
        events.extend(resized);
        events.extend(merged.map(|parent| piece(model, parent)));
        // One piece every third step until the cycle has reached the last partition.
        if swept >= model.index.partitions() {
            steps_after += 1;
        } else if step % 3 == 0 {
            events.push(piece(model, swept));
            swept += 1;
        }
        if steps_after > 2_000 {
            break;
        }
    }
    events
}

/// Records a cycle from `partitions` partitions on, replays it, and compares every entry.
fn assert_replay_rebuilds(
    partitions: u32,
    resize: impl Fn(u64, &mut Model) -> Option<Event> + Copy,
) {
    for seed in 0..3 {
        println!("seed {seed}");
        let mut random = Random(seed << 40);
        let mut model = Model::new(0);
        model.index = SparseIndex::restore(1, 0).unwrap();
        for _ in 0..6_000 {
            model.insert(random.next());
        }
        while model.index.partitions() < partitions {
            model.split();
        }
        let mut rebuilt = SparseIndex::restore(partitions, 0).unwrap();
        let events = recorded_cycle(&mut model, &mut random, resize);
        let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
        println!(
            "{} splits, {} with refreshed tags, {} merges",
            count(|event| matches!(event, Event::Split(_))),
            count(|event| matches!(event, Event::Split(split) if !split.refreshed.is_empty())),
            count(|event| matches!(event, Event::Merge(_))),
        );
        assert!(count(|event| matches!(event, Event::Split(_) | Event::Merge(_))) > 10);
        replay(&mut rebuilt, &events);
        rebuilt.assert_consistent();
        model.check(0..10);
        assert_eq!(rebuilt.partitions(), model.index.partitions());
        for partition in 0..rebuilt.partitions() {
            let (mut got, mut expected) = (vec![], vec![]);
            rebuilt.write_partition(partition, &mut got);
            model.index.write_partition(partition, &mut expected);
            assert_eq!(got, expected, "partition {partition}");
        }
    }
}

#[test]
fn replaying_pieces_and_splits_rebuilds_every_entry() {
    assert_replay_rebuilds(63, |step, model| (step % 40 == 0).then(|| Event::Split(model.split())));
}

#[test]
fn replaying_splits_that_asked_for_keys_asks_for_none() {
    // Tags of the first entries have no bit left from 2^15 partitions on.
    assert_replay_rebuilds((1 << 15) - 5_000, |step, model| {
        (step % 8 == 0).then(|| Event::Split(model.split()))
    });
}

#[test]
fn replaying_merges_with_their_parents_pieces_rebuilds_every_entry() {
    assert_replay_rebuilds(600, |step, model| match step % 20 {
        0 | 10 => model.index.merge().map(Event::Merge),
        5 if step % 3 == 0 => Some(Event::Split(model.split())),
        _ => None,
    });
}

#[test]
fn a_damaged_or_misplaced_partition_is_refused_and_changes_nothing() {
    let mut model = Model::new(0);
    for key in 0..1000 {
        model.insert(key);
    }
    let mut bytes = vec![];
    model.index.write_partition(3, &mut bytes);
    assert_eq!(model.index.load_partition(16, &bytes).unwrap_err().kind(), ErrorKind::Corrupt);
    let error = model.index.load_partition(3, &bytes[..bytes.len() - 1]).unwrap_err();
    assert!(error.message().starts_with("index partition 3: "), "{error}");
    // Written with 4 address bits, but partition 0 has 5 after the split.
    let mut first = vec![];
    model.index.write_partition(0, &mut first);
    model.split();
    assert!(model.index.load_partition(0, &first).is_err());
    model.index.load_partition(3, &bytes).unwrap();
    model.check(1000..2000);
    assert!(SparseIndex::restore(0, 0).is_err());
    assert!(SparseIndex::restore(u32::MAX, 0).is_err());
    assert_eq!(SparseIndex::new(1 << 32).unwrap_err().kind(), ErrorKind::Misuse);
}

/// Every partition has a range of reversed hashes, beside those of its neighbours, and all its
/// entries lie there.
fn check_ranges(model: &Model, random: &mut Random) {
    let index = &model.index;
    let order: Vec<u32> = index.partitions_in(0, u64::MAX).collect();
    assert_eq!(order.len(), index.partitions() as usize);
    let mut next = Some(0);
    for partition in &order {
        let range = index.range_of(*partition);
        assert_eq!(Some(*range.start()), next, "partition {partition}");
        next = range.end().checked_add(1);
    }
    assert_eq!(next, None, "the last range ends before the last hash");
    for (key, slot) in &model.rows {
        let hash = mix(*key, SALT);
        let partition = index.partition_of(hash);
        assert!(index.range_of(partition).contains(&hash.reverse_bits()), "key {key}");
        assert!(index.slots(partition).any(|found| found == *slot), "key {key}");
    }
    for _ in 0..50 {
        let (a, b) = (random.next(), random.next() >> random.below(64));
        for (first, last) in [(a.min(b), a.max(b)), (a, a), (a, a.saturating_add(b))] {
            let meets = |partition: &&u32| {
                let range = index.range_of(**partition);
                *range.start() <= last && first <= *range.end()
            };
            assert!(index.partitions_in(first, last).eq(order.iter().filter(meets).copied()));
        }
        assert_eq!(index.partitions_in(a.max(1), 0).next(), None);
    }
}

#[test]
fn partitions_are_ranges_of_reversed_hashes_across_splits_and_merges() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut random = Random(seed << 36);
        let mut model = Model::new(0);
        model.index = SparseIndex::restore(1, 0).unwrap();
        check_ranges(&model, &mut random);
        for key in 0..2_000 {
            model.insert(awkward_key(&mut Random(key << 20), 1 << 40) ^ key << 41);
        }
        for _ in 0..40 {
            for _ in 0..random.below(60) {
                match random.below(5) < 3 {
                    true => _ = model.split(),
                    false => _ = model.index.merge(),
                }
            }
            check_ranges(&model, &mut random);
        }
        assert!(model.index.partitions() > 40);
    }
}

#[test]
fn the_smallest_table_takes_a_few_kib() {
    let mut index = SparseIndex::new(0).unwrap();
    assert!(index.memory_bytes() <= 2_048, "{} bytes empty", index.memory_bytes());
    index.insert(1, 1);
    assert!(index.memory_bytes() <= 2_048);
    assert!(index.memory_bytes() as u64 <= SparseIndex::planned_bytes(1));
}

#[test]
fn an_expected_size_needs_no_split_and_is_not_merged_away() {
    let rows = 200_000;
    let mut index = SparseIndex::new(rows).unwrap();
    for key in 0..rows {
        index.insert(mix(key, SALT), key as u32 + 1);
        assert!(!index.needs_split() && !index.needs_merge());
    }
    assert!(index.memory_bytes() as u64 <= SparseIndex::planned_bytes(rows));
    for key in 0..rows {
        assert!(index.remove(mix(key, SALT), key as u32 + 1));
        assert!(!index.needs_merge());
    }
    index.assert_consistent();
}

#[test]
fn a_copy_that_was_made_part_by_part_is_equal() {
    let mut index = SparseIndex::new(6_000_000).unwrap();
    let hashes: Vec<u64> = (0..100_000).map(|key| mix(key, 7)).collect();
    for (slot, hash) in (1..).zip(&hashes) {
        index.insert(*hash, slot);
    }
    let mut copy = index.empty_copy();
    let mut parts = 0;
    while index.copy_part(parts, &mut copy) {
        parts += 1;
    }
    assert!(parts > 1, "{parts} parts");
    assert_eq!(copy.len(), index.len());
    assert!(copy.memory_bytes() <= index.memory_bytes());
    assert!((1..).zip(&hashes).all(|(slot, hash)| copy.contains_slot(*hash, slot)));
}
