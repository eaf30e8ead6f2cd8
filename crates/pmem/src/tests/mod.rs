//! Tests of whole regions: against a map, through power cuts, with threads, full and damaged.

mod crash;
mod damage;
mod index;
mod kill;
mod model;
mod rows;
mod threads;
mod upgrade;
mod views;

use crate::medium::Medium;
use crate::region::Geometry;
use crate::rows::Rows;
use std::collections::HashMap;

/// Bytes of the rows of these tests: no whole number of words.
pub(super) const ROW_BYTES: usize = 20;

/// A region that is so small that keys are displaced and slots used again.
pub(super) fn small(buckets: u64, capacity: u64) -> Geometry {
    Geometry { capacity, row_bytes: ROW_BYTES, buckets, row_slots: capacity + 8, salt: 77 }
}

/// A row tells its key and its version, in every word.
pub(super) fn row(key: u64, version: u64) -> Vec<u8> {
    let word = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version;
    let bytes = (0..).flat_map(|i: u64| word.rotate_left(7 * i as u32).to_le_bytes());
    bytes.take(ROW_BYTES).collect()
}

/// In memory where the machine has such a file system: syncing takes long elsewhere.
pub(super) fn fast_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("folder")
}

pub(super) fn get_one(rows: &Rows<impl Medium>, key: u64) -> Option<Vec<u8>> {
    let (mut bytes, mut found) = (vec![0; ROW_BYTES], [false]);
    rows.get(&[key], &mut bytes, &mut found).expect("no damage");
    found[0].then_some(bytes)
}

/// Keys with a home bucket, in a region with these sizes.
pub(super) fn keys_of_home(geometry: &Geometry, home: u64, count: usize) -> Vec<u64> {
    let path = |key: &u64| crate::bucket::Path::new(*key, geometry.salt, geometry.buckets);
    (1..).filter(|key| path(key).home == home).take(count).collect()
}

/// Every row as the map has it, nothing else, counters exact, and every slot free or in use.
pub(super) fn verify(rows: &Rows<impl Medium>, model: &HashMap<u64, u64>) {
    let checked = rows.check().expect("nothing is damaged");
    assert_eq!(checked.keys, model.len() as u64);
    assert_eq!(rows.slab_use().rows_at_most, checked.keys, "counted while they came and went");
    for (key, version) in model {
        assert_eq!(get_one(rows, *key), Some(row(*key, *version)), "key {key}");
    }
    verify_slots(rows, model.keys().copied());
}

/// The slot of a key, which has a row.
pub(super) fn slot_of(rows: &Rows<impl Medium>, key: u64) -> u64 {
    crate::slot_word::slot_of(rows.index.get(key).expect("sound"))
}

/// Takes every slot that is free: those and the ones in use are all there are, and none is both.
/// The rows take no changes after that.
pub(super) fn verify_slots(rows: &Rows<impl Medium>, keys: impl Iterator<Item = u64>) {
    let mut seen: Vec<u64> = keys.map(|key| slot_of(rows, key)).collect();
    let all = rows.geometry().row_slots;
    let mut free = Vec::new();
    let count = all as usize - seen.len();
    // Rows that the last calls replaced are free once nobody reads.
    rows.slab.give_back(0, &[], Vec::new(), 0, &rows.readings);
    let waiting = rows.slab_use().waiting;
    assert_eq!(waiting, 0, "nobody reads");
    rows.slab.take(&mut free, count, 0, &rows.index, &rows.readings).expect("no slot leaked");
    seen.extend(free);
    seen.sort_unstable();
    assert_eq!(seen, (0..all).collect::<Vec<_>>(), "no slot is handed out twice");
    assert_eq!(rows.slab_use().free, 0);
}
