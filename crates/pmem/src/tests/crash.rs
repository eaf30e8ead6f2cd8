//! Power is cut, or the process killed, at every store of every kind of change.

use super::{get_one, keys_of_home, row, small, verify_slots};
use crate::error::ErrorKind;
use crate::region::Geometry;
use crate::rows::Rows;
use crate::shadow::{Contents, Event, Random, Shadow};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Store = Rows<Arc<Shadow>>;
/// The version of each key; 0 for none.
type Model = HashMap<u64, u64>;

/// A change of one call, and what it makes of the rows.
#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u64>, u64),
    Remove(Vec<u64>),
    /// A removal and an insertion, with no fence in between.
    Swap(u64, u64, u64),
    Rehome,
    Promote(u64),
}

impl Op {
    fn run(&self, rows: &Store, model: &Model) {
        match self {
            Self::Put(keys, version) => {
                let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, *version)).collect();
                rows.put(keys, &bytes).expect("put");
            }
            Self::Remove(keys) => {
                let there = keys.iter().filter(|key| model.get(key).is_some_and(|v| *v > 0));
                assert_eq!(rows.remove(keys).expect("remove"), there.count());
            }
            Self::Swap(old, new, version) => {
                let mut slot = 0;
                rows.index
                    .remove(*old, |value| slot = crate::slot_word::slot_of(value))
                    .expect("remove");
                assert!(rows.slab.replace(slot));
                rows.put(&[*new], &row(*new, *version)).expect("put");
                rows.slab.give_back(0, &[], vec![slot], -1, &rows.readings);
            }
            Self::Rehome => {
                assert!(rows.rehome(u64::MAX).expect("rehome").moved > 0);
            }
            Self::Promote(key) => assert_eq!(rows.promote(&[*key]).expect("promote"), 1),
        }
    }

    fn after(&self, model: &Model) -> Model {
        let mut after = model.clone();
        match self {
            Self::Put(keys, version) => after.extend(keys.iter().map(|key| (*key, *version))),
            Self::Remove(keys) => keys.iter().for_each(|key| {
                after.insert(*key, 0);
            }),
            Self::Swap(old, new, version) => {
                after.extend([(*old, 0), (*new, *version)]);
            }
            Self::Rehome | Self::Promote(_) => {}
        }
        after
    }
}

/// Every key has the version of before or after, in one place, and no slot is lost.
fn verify_either(rows: &Store, before: &Model, after: &Model) -> Model {
    let checked = rows.check().expect("index, counters and rows agree");
    let bound = rows.slab_use().rows_at_most;
    assert!(bound >= checked.keys, "{} rows, at most {bound}", checked.keys);
    let mut found = Model::new();
    for (key, version) in after {
        let versions = [before.get(key).copied().unwrap_or(0), *version];
        let bytes = get_one(rows, *key);
        let is = |version: &&u64| (**version > 0).then(|| row(*key, **version)) == bytes;
        let version = versions.iter().find(is);
        let version = version.unwrap_or_else(|| panic!("key {key} has neither row: {bytes:?}"));
        found.insert(*key, *version);
    }
    let present = || found.iter().filter(|(_, version)| **version > 0).map(|(key, _)| *key);
    assert_eq!(checked.keys, present().count() as u64);
    verify_slots(rows, present());
    found
}

fn open(image: &[u64]) -> Store {
    Rows::recover(Shadow::new(image)).expect("recovery")
}

/// Runs operations one after the other, cuts power at every store of each, and verifies.
fn cut_everywhere(geometry: Geometry, ops: &[Op], seed: u64) -> usize {
    let mut random = Random(seed);
    let shadow = Shadow::new(&vec![0; geometry.bytes() / 8]);
    let rows = Rows::format(Arc::clone(&shadow), geometry).expect("format");
    let mut contents = Contents::durable(shadow.image());
    shadow.take_events();
    let (mut model, mut images) = (Model::new(), 0);
    for op in ops {
        op.run(&rows, &model);
        let after = op.after(&model);
        for event in shadow.take_events() {
            contents.apply(&event);
            if matches!(event, Event::Flush(_)) {
                continue;
            }
            for image in contents.images(&mut random, 6) {
                verify_either(&open(&image), &model, &after);
                images += 1;
            }
        }
        // Acknowledged changes are durable, whatever else is not.
        for image in contents.images(&mut random, 20) {
            verify_either(&open(&image), &after, &after);
        }
        model = after;
    }
    images
}

/// Kills the process at some stores, goes on with `next` in another, and cuts power in that.
fn kill_then_cut(geometry: Geometry, ops: &[Op], next: &[Op], seed: u64) -> usize {
    let mut random = Random(seed);
    let shadow = Shadow::new(&vec![0; geometry.bytes() / 8]);
    let rows = Rows::format(Arc::clone(&shadow), geometry).expect("format");
    let mut contents = Contents::durable(shadow.image());
    let (mut model, mut images) = (Model::new(), 0);
    shadow.take_events();
    for op in ops {
        op.run(&rows, &model);
        let after = op.after(&model);
        for event in shadow.take_events() {
            contents.apply(&event);
            // A removal at home has few stores, and no lane that is replayed.
            let each = matches!(op, Op::Remove(_)) || matches!(event, Event::Fence);
            if !each && random.below(12) > 0 {
                continue;
            }
            let again = Shadow::new(&contents.newest());
            let found = verify_either(&open(&contents.newest()), &model, &after);
            let rows = Rows::recover(Arc::clone(&again)).expect("recovery");
            let (mut contents, mut found) = (contents.clone(), found);
            // Not yet acknowledged: a power cut may undo it until another call acknowledges.
            let mut before = model.clone();
            for op in next {
                op.run(&rows, &found);
                let then = op.after(&found);
                let names = |key: &u64| match op {
                    Op::Put(keys, _) | Op::Remove(keys) => keys.contains(key),
                    _ => false,
                };
                for event in again.take_events() {
                    contents.apply(&event);
                    if matches!(event, Event::Fence) || random.below(16) == 0 {
                        for image in contents.images(&mut random, 1) {
                            verify_any(&open(&image), &[&before, &found, &then]);
                            images += 1;
                        }
                    }
                }
                for (key, version) in &then {
                    if names(key) {
                        before.insert(*key, *version);
                        found.insert(*key, *version);
                    }
                }
                for image in contents.images(&mut random, 4) {
                    verify_any(&open(&image), &[&before, &found]);
                }
            }
        }
        model = after;
    }
    images
}

fn verify_any(rows: &Store, models: &[&Model]) {
    let checked = rows.check().expect("index, counters and rows agree");
    let bound = rows.slab_use().rows_at_most;
    assert!(bound >= checked.keys, "{} rows, at most {bound}", checked.keys);
    let mut present = Vec::new();
    let keys = models.iter().flat_map(|model| model.keys());
    for key in keys.copied().collect::<std::collections::BTreeSet<u64>>() {
        let bytes = get_one(rows, key);
        let version = |model: &&Model| model.get(&key).copied().unwrap_or(0);
        let fits = |version: u64| (version > 0).then(|| row(key, version)) == bytes;
        assert!(
            models.iter().map(version).any(fits),
            "key {key} has {bytes:?}, versions {:?}",
            models.iter().map(version).collect::<Vec<_>>()
        );
        present.extend(bytes.map(|_| key));
    }
    verify_slots(rows, present.into_iter());
}

/// Puts that fill bucket 0 of 3 and go on behind it, then every other kind of change.
fn life(geometry: &Geometry) -> (Vec<Op>, Vec<u64>) {
    let keys = keys_of_home(geometry, 0, 18);
    let ops = vec![
        Op::Put(keys[..1].to_vec(), 1),
        Op::Put(keys[..1].to_vec(), 2),
        Op::Put(keys[1..14].to_vec(), 3),
        // Displaced.
        Op::Put(keys[14..16].to_vec(), 4),
        Op::Put(vec![keys[15], keys[2], keys[15]], 5),
        Op::Remove(vec![keys[14]]),
        Op::Put(vec![keys[16]], 6),
        // Home again.
        Op::Remove(vec![keys[3]]),
        Op::Rehome,
        Op::Put(vec![keys[17]], 7),
        Op::Promote(keys[17]),
        Op::Swap(keys[17], keys[14], 8),
        Op::Remove(vec![keys[0], keys[1], keys[14]]),
        Op::Rehome,
        Op::Put(keys[..5].to_vec(), 9),
    ];
    (ops, keys)
}

#[test]
fn a_power_cut_at_any_store_leaves_each_row_old_or_new() {
    let geometry = small(3, 40);
    let (ops, _) = life(&geometry);
    let images = cut_everywhere(geometry, &ops, 1);
    assert!(images > 5_000, "{images} images");
}

#[test]
fn row_slots_are_used_again_and_again_through_power_cuts() {
    // Five rows and eight slots more: slots of replaced rows come back all the time.
    let geometry = small(3, 5);
    let keys = keys_of_home(&geometry, 1, 5);
    let mut random = Random(5);
    let ops: Vec<Op> = (1..40)
        .map(|version| {
            let key = keys[random.below(5) as usize];
            Op::Put(vec![key, keys[random.below(5) as usize]], version)
        })
        .collect();
    cut_everywhere(geometry, &ops, 2);
}

#[test]
fn random_changes_survive_power_cuts() {
    for seed in 1..4 {
        let geometry = small(5, 60);
        let mut random = Random(seed);
        let keys: Vec<u64> = (0..2).flat_map(|home| keys_of_home(&geometry, home, 22)).collect();
        let mut model = Model::new();
        let mut ops = Vec::new();
        for version in 1..60 {
            let key = keys[random.below(keys.len() as u64) as usize];
            let op = match model.get(&key) {
                Some(known) if *known > 0 && random.below(3) == 0 => Op::Remove(vec![key]),
                _ => Op::Put(vec![key], version),
            };
            model = op.after(&model);
            ops.push(op);
        }
        cut_everywhere(geometry, &ops, seed);
    }
}

#[test]
fn a_killed_process_and_then_a_power_cut_lose_nothing_acknowledged() {
    let geometry = small(3, 40);
    let (ops, keys) = life(&geometry);
    // The next process changes the same rows, and takes slots that the first one freed.
    let next = [
        // It may have removed this one: then there is nothing to remove, durably.
        Op::Remove(vec![keys[3]]),
        Op::Put(vec![keys[0], keys[14]], 101),
        Op::Put(keys[10..16].to_vec(), 102),
        Op::Remove(vec![keys[15]]),
        Op::Put(vec![keys[17], keys[3]], 103),
    ];
    assert!(kill_then_cut(geometry, &ops, &next, 3) > 2_000);
}

#[test]
fn a_power_cut_during_recovery_changes_nothing() {
    let geometry = small(3, 40);
    let keys = keys_of_home(&geometry, 0, 16);
    let mut random = Random(9);
    let shadow = Shadow::new(&vec![0; geometry.bytes() / 8]);
    let rows = Rows::format(Arc::clone(&shadow), geometry).expect("format");
    let before = Op::Put(keys[..15].to_vec(), 1);
    before.run(&rows, &Model::new());
    let model = before.after(&Model::new());
    let mut contents = Contents::durable(vec![0; geometry.bytes() / 8]);
    shadow.take_events().iter().for_each(|event| contents.apply(event));
    let op = Op::Put(vec![keys[15]], 2);
    op.run(&rows, &model);
    let after = op.after(&model);
    for event in shadow.take_events() {
        contents.apply(&event);
        for image in contents.images(&mut random, 2) {
            let shadow = Shadow::new(&image);
            let found = Rows::recover(Arc::clone(&shadow)).expect("recovery");
            let events = shadow.take_events();
            let found = verify_either(&found, &model, &after);
            let mut contents = Contents::durable(image);
            for event in events {
                contents.apply(&event);
                for image in contents.images(&mut random, 1) {
                    verify_either(&open(&image), &found, &found);
                }
            }
        }
    }
}

#[test]
fn the_bound_on_rows_holds_where_a_removal_turns_an_update_into_a_new_row() {
    let geometry = small(3, 40);
    let shadow = Shadow::new(&vec![0; geometry.bytes() / 8]);
    let rows = Rows::format(Arc::clone(&shadow), geometry).expect("format");
    let keys: Vec<u64> = (1..=20).collect();
    let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, 1)).collect();
    rows.put(&keys, &bytes).expect("put");
    drop(rows);
    // The bound is exact, and nothing is claimed ahead.
    let rows = open(&shadow.image());
    assert_eq!(rows.slab_use().rows_at_most, 20);
    drop(rows);
    let shadow = Shadow::new(&shadow.image());
    let rows = Rows::recover(Arc::clone(&shadow)).expect("recovery");
    let mut contents = Contents::durable(shadow.image());
    shadow.take_events();
    // Updates of five keys are under way while those are removed and five others come.
    let mut slots = Vec::new();
    rows.slab.take(&mut slots, 5, 0, &rows.index, &rows.readings).expect("slots");
    assert_eq!(rows.remove(&keys[..5]).expect("remove"), 5);
    let others: Vec<u64> = (101..=105).collect();
    let bytes: Vec<u8> = others.iter().flat_map(|key| row(*key, 1)).collect();
    rows.put(&others, &bytes).expect("put");
    let bytes: Vec<u8> = keys[..5].iter().flat_map(|key| row(*key, 2)).collect();
    assert_eq!(rows.put_part(&keys[..5], &bytes, &slots).placed, 5);
    let mut random = Random(4);
    for event in shadow.take_events() {
        contents.apply(&event);
        for image in contents.images(&mut random, 4) {
            let rows = open(&image);
            let (found, bound) = (rows.check().expect("whole").keys, rows.slab_use().rows_at_most);
            assert!(bound >= found, "{found} rows, at most {bound}");
        }
    }
    assert_eq!(open(&contents.newest()).check().expect("whole").keys, 25);
}

#[test]
fn after_a_failed_sync_a_region_takes_no_changes_and_is_read() {
    let geometry = small(3, 40);
    let shadow = Shadow::new(&vec![0; geometry.bytes() / 8]);
    let rows = Rows::format(Arc::clone(&shadow), geometry).expect("format");
    rows.put(&[1], &row(1, 1)).expect("put");
    shadow.fails.store(true, Ordering::Relaxed);
    assert_eq!(rows.put(&[2], &row(2, 1)).expect_err("no sync").kind(), ErrorKind::Io);
    shadow.fails.store(false, Ordering::Relaxed);
    let error = rows.put(&[2], &row(2, 1)).expect_err("refused");
    assert!(error.to_string().contains("open it again"), "{error}");
    assert_eq!(rows.remove(&[1]).expect_err("refused").kind(), ErrorKind::Io);
    assert_eq!(rows.rehome(1).expect_err("refused").kind(), ErrorKind::Io);
    assert_eq!(rows.promote(&[1]).expect_err("refused").kind(), ErrorKind::Io);
    assert_eq!(get_one(&rows, 1), Some(row(1, 1)));
    let rows = open(&shadow.image());
    rows.put(&[2], &row(2, 1)).expect("opened again");
}
