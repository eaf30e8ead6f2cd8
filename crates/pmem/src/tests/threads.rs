//! Readers, writers and re-homing at once: no torn row, none missing, none twice.

use super::{ROW_BYTES, keys_of_home, row, small, verify};
use crate::map::Mapped;
use crate::rows::Rows;
use crate::shadow::Random;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of operations of each thread; fewer under a sanitizer, which sets `EMBEDROCK_STEPS`.
fn steps() -> u64 {
    std::env::var("EMBEDROCK_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(20_000)
}

fn rows_in_memory(buckets: u64, capacity: u64) -> Rows<Mapped> {
    let geometry = small(buckets, capacity);
    Rows::format(Mapped::anonymous(geometry.bytes()).expect("memory"), geometry).expect("format")
}

#[test]
fn rows_that_stay_are_found_whole_whatever_moves_beside_them() {
    // 70 slots of an index, 60 keys: displaced keys move home and away all the time.
    let rows = rows_in_memory(5, 60);
    let geometry = rows.geometry();
    let staying = keys_of_home(&geometry, 0, 20);
    let coming: Vec<u64> = (1..5).flat_map(|home| keys_of_home(&geometry, home, 8)).collect();
    let version = |bytes: &[u8], key: u64| {
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let version = word ^ key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        assert_eq!(bytes, row(key, version), "a torn row");
        version
    };
    for key in &staying {
        rows.put(&[*key], &row(*key, 1)).expect("put");
    }
    let done = AtomicBool::new(false);
    let newest: Vec<AtomicU64> = staying.iter().map(|_| AtomicU64::new(1)).collect();
    std::thread::scope(|scope| {
        let update = scope.spawn(|| {
            let mut random = Random(1);
            for step in 2..steps() {
                let at = random.below(20) as usize;
                rows.put(&[staying[at]], &row(staying[at], step)).expect("update");
                newest[at].store(step, Ordering::Release);
            }
        });
        let turn_over = scope.spawn(|| {
            let mut random = Random(2);
            for step in 1..steps() {
                let key = coming[random.below(32) as usize];
                if random.below(2) == 0 {
                    rows.put(&[key], &row(key, step)).expect("insert");
                } else {
                    rows.remove(&[key]).expect("remove");
                }
            }
        });
        scope.spawn(|| {
            let mut random = Random(3);
            while !done.load(Ordering::Relaxed) {
                rows.rehome(1).expect("rehome");
                let hot = staying[random.below(20) as usize];
                rows.promote(&[hot]).expect("promote");
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut keys = staying.clone();
                keys.extend(&coming);
                let mut bytes = vec![0; keys.len() * ROW_BYTES];
                let mut found = vec![false; keys.len()];
                while !done.load(Ordering::Relaxed) {
                    let before: Vec<u64> =
                        newest.iter().map(|newest| newest.load(Ordering::Acquire)).collect();
                    rows.get(&keys, &mut bytes, &mut found).expect("no damage");
                    for (at, row) in bytes.chunks(ROW_BYTES).enumerate() {
                        if at < staying.len() {
                            assert!(found[at], "key {} is always there", keys[at]);
                            assert!(version(row, keys[at]) >= before[at], "an old row");
                        } else if found[at] {
                            version(row, keys[at]);
                        }
                    }
                }
            });
        }
        // A thread that fails must not leave the others running.
        let ended = [update.join(), turn_over.join()];
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.expect("no failure"));
    });
    let model =
        staying.iter().zip(&newest).map(|(key, newest)| (*key, newest.load(Ordering::Acquire)));
    let mut model: std::collections::HashMap<u64, u64> = model.collect();
    for key in &coming {
        if let Some(bytes) = super::get_one(&rows, *key) {
            model.insert(*key, version(&bytes, *key));
        }
    }
    verify(&rows, &model);
}

#[test]
fn threads_that_put_the_same_new_keys_make_each_one_once() {
    for round in 0..20 {
        let rows = rows_in_memory(7, 90);
        let keys: Vec<u64> = (0..60).map(|key| key * 3 + round).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (rows, keys) = (&rows, &keys);
                scope.spawn(move || {
                    let mut random = Random(thread + 1);
                    for _ in 0..steps() / 400 {
                        let key = keys[random.below(60) as usize];
                        if random.below(3) == 0 {
                            rows.remove(&[key]).expect("remove");
                        } else {
                            // Of some 30 new keys at once, each thread admits one.
                            rows.put(&[key], &row(key, 1)).expect("put");
                        }
                    }
                });
            }
        });
        let present = keys.iter().filter(|key| super::get_one(&rows, **key).is_some());
        verify(&rows, &present.map(|key| (*key, 1)).collect());
    }
}

#[test]
fn slots_are_looked_up_beside_updates_and_none_is_freed_twice() {
    for round in 0..10 {
        // Opened again, nothing is known to be free: the first updates find out.
        let geometry = crate::region::Geometry {
            salt: round,
            ..crate::region::Geometry::new(3000, ROW_BYTES).expect("sizes")
        };
        let folder = super::fast_folder();
        let path = folder.path().join("region");
        let keys: Vec<u64> = (0..3000).collect();
        let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, 1)).collect();
        let rows = Rows::create(&path, geometry).expect("create");
        rows.put(&keys, &bytes).expect("put");
        drop(rows);
        let rows = Rows::open(&path).expect("open");
        std::thread::scope(|scope| {
            for part in keys.chunks(750) {
                let rows = &rows;
                scope.spawn(move || {
                    for version in 2..5 {
                        for keys in part.chunks(250) {
                            let bytes: Vec<u8> =
                                keys.iter().flat_map(|key| row(*key, version)).collect();
                            rows.put(keys, &bytes).expect("update");
                        }
                    }
                });
            }
        });
        verify(&rows, &keys.iter().map(|key| (*key, 4)).collect());
    }
}
