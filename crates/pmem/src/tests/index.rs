//! Indexes against a map, and how many buckets look-ups visit.

use crate::batch::Prefetch;
use crate::error::ErrorKind;
use crate::hash::{ABSENT, PetHash};
use crate::map::Mapped;
use crate::region::Geometry;
use crate::shadow::Random;
use std::collections::HashMap;

fn index(geometry: Geometry) -> PetHash<Mapped> {
    PetHash::format(Mapped::anonymous(geometry.bytes()).expect("memory"), geometry).expect("format")
}

fn of_capacity(capacity: u64) -> PetHash<Mapped> {
    index(Geometry { salt: 3, ..Geometry::of_index(capacity).expect("geometry") })
}

#[test]
fn random_operations_agree_with_a_map() {
    for seed in 1..=20 {
        let mut random = Random(seed);
        // 70 slots, up to 66 keys: many are displaced, some by many buckets.
        let geometry =
            Geometry { buckets: 5, salt: seed, ..Geometry::of_index(66).expect("geometry") };
        let index = index(geometry);
        let mut map = HashMap::new();
        for step in 0..4000 {
            let key = random.below(100) << 20;
            match random.below(8) {
                0..4 if map.len() < 66 || map.contains_key(&key) => {
                    let old = index.put(key, step).expect("put");
                    assert_eq!(old, map.insert(key, step).unwrap_or(ABSENT), "seed {seed}");
                }
                4..7 => {
                    let old = index.remove(key, |_| {}).expect("remove");
                    assert_eq!(old, map.remove(&key).unwrap_or(ABSENT), "seed {seed}");
                }
                7 if step % 3 == 0 => {
                    index.rehome(random.below(5), 1 + random.below(5)).expect("rehome");
                }
                7 => {
                    let hot = |other: u64| other >> 20 < 50;
                    index.promote(key, hot).expect("promote");
                }
                _ => assert_eq!(
                    index.get(key).expect("sound"),
                    map.get(&key).copied().unwrap_or(ABSENT)
                ),
            }
        }
        let keys: Vec<u64> = (0..100).map(|key| key << 20).collect();
        let expected: Vec<u64> =
            keys.iter().map(|key| map.get(key).copied().unwrap_or(ABSENT)).collect();
        for ahead in [Prefetch::None, Prefetch::NextKey, Prefetch::Staged] {
            for count in [0, 1, 7, 8, 15, 16, 17, 100] {
                let mut values = vec![0; count];
                index.get_batch(&keys[..count], ahead, &mut values).expect("get");
                assert_eq!(values, expected[..count], "{ahead:?}, seed {seed}");
            }
        }
        assert_eq!(index.check().expect("consistent").keys, map.len() as u64);
        for key in keys {
            index.remove(key, |_| {}).expect("remove");
        }
        // Counters are exact: nobody is displaced any longer.
        assert_eq!(index.check().expect("consistent").keys, 0);
        assert_eq!(index.get_counted(1 << 20).expect("sound"), (ABSENT, 1));
    }
}

#[test]
fn misuse_is_told() {
    let index = of_capacity(10);
    assert_eq!(index.put(1, ABSENT).expect_err("no value").kind(), ErrorKind::Misuse);
    let error = index.get_batch(&[1, 2], Prefetch::Staged, &mut [0]).expect_err("too short");
    assert!(error.to_string().contains("2 keys, and room for 1"), "{error}");
    let geometry = Geometry::of_index(10_000).expect("geometry");
    let error = PetHash::format(Mapped::anonymous(4096).expect("memory"), geometry);
    assert_eq!(error.err().expect("too small").kind(), ErrorKind::Misuse);
}

#[test]
fn every_value_of_a_key_is_a_key() {
    let index = of_capacity(100);
    for key in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63] {
        assert_eq!(index.put(key, key & 7).expect("put"), ABSENT);
        assert_eq!(index.get(key).expect("sound"), key & 7);
    }
}

#[test]
fn an_index_without_room_on_a_path_says_what_to_do_and_is_as_before() {
    let index = index(Geometry { buckets: 3, salt: 3, ..Geometry::of_index(42).expect("sizes") });
    (0..42).for_each(|key| assert_eq!(index.put(key, key).expect("room"), ABSENT));
    let error = index.put(42, 42).expect_err("42 slots");
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("made for 42 rows; resize"), "{error}");
    assert_eq!(index.check().expect("consistent").keys, 42);
    assert_eq!(index.get(42).expect("sound"), ABSENT);
    index.remove(7, |_| {}).expect("remove");
    index.put(42, 42).expect("room again");
}

struct Probes {
    mean_hit: f64,
    mean_miss: f64,
    within_three: f64,
}

fn probes(index: &PetHash<Mapped>, present: &[u64], absent: impl Iterator<Item = u64>) -> Probes {
    let (mut visited, mut near) = (0, 0);
    for key in present {
        let (value, probes) = index.get_counted(*key).expect("sound");
        assert_ne!(value, ABSENT);
        visited += probes;
        near += u64::from(probes <= 3);
    }
    let (mut missed, mut misses) = (0, 0);
    for key in absent {
        let (value, probes) = index.get_counted(key).expect("sound");
        assert_eq!(value, ABSENT);
        missed += probes;
        misses += 1;
    }
    let count = present.len() as f64;
    Probes {
        mean_hit: visited as f64 / count,
        mean_miss: missed as f64 / misses as f64,
        within_three: near as f64 / count,
    }
}

#[test]
fn look_ups_visit_few_buckets_whatever_the_keys() {
    let count = 200_000;
    let mut kinds: Vec<(String, Vec<u64>)> = [0, 8, 16, 24, 32]
        .map(|shift| (format!("stride 2^{shift}"), (0..2 * count).map(|i| i << shift).collect()))
        .into();
    let mut random = Random(4);
    kinds.push(("random".to_owned(), (0..2 * count).map(|_| random.next()).collect()));
    for (name, keys) in kinds {
        let index = of_capacity(count);
        let (present, absent) = keys.split_at(count as usize);
        for key in present {
            index.put(*key, 1).expect("put");
        }
        let found = probes(&index, present, absent.iter().copied());
        assert!(found.mean_hit <= 1.055, "{name}: {} on a hit", found.mean_hit);
        assert!(found.mean_miss <= 1.30, "{name}: {} on a miss", found.mean_miss);
        assert!(found.within_three >= 0.998, "{name}: {} within three", found.within_three);
    }
}

#[test]
fn after_turnover_re_homing_keeps_look_ups_short() {
    let count = 100_000;
    let run = |rehome: bool| {
        let index = of_capacity(count);
        (0..count).for_each(|key| assert_eq!(index.put(key, 1).expect("put"), ABSENT));
        let mut random = Random(8);
        let mut present: Vec<u64> = (0..count).collect();
        for turn in 0..2 * count {
            let at = random.below(count) as usize;
            index.remove(present[at], |_| {}).expect("remove");
            present[at] = count + turn;
            index.put(present[at], 1).expect("put");
            if rehome && turn % 10 == 0 {
                index.rehome(turn / 10 * 4 % index.buckets(), 4).expect("rehome");
            }
        }
        if rehome {
            index.rehome(0, u64::MAX).expect("rehome");
        }
        index.check().expect("consistent");
        probes(&index, &present, (0..count).map(|i| u64::MAX - i))
    };
    let (without, with) = (run(false), run(true));
    assert!(with.mean_hit <= 1.06, "{} on a hit", with.mean_hit);
    assert!(with.mean_miss <= 1.32, "{} on a miss", with.mean_miss);
    assert!(without.mean_miss > 1.6, "without, {} on a miss", without.mean_miss);
}

#[test]
fn a_hot_key_is_moved_home_and_a_cold_one_out_of_its_way() {
    let geometry = Geometry { buckets: 5, salt: 1, ..Geometry::of_index(50).expect("geometry") };
    let index = index(geometry);
    let keys = super::keys_of_home(&geometry, 2, 16);
    keys.iter().for_each(|key| assert_eq!(index.put(*key, 1).expect("put"), ABSENT));
    let hot = keys[15];
    let counted = |key| index.get_counted(key).expect("sound");
    assert_eq!(counted(hot).1, 2);
    assert!(index.promote(hot, |key| key != keys[3]).expect("promote"));
    assert_eq!((counted(hot), counted(keys[3])), ((1, 1), (1, 2)));
    // All that is home is hot: nobody makes room.
    assert!(!index.promote(keys[3], |_| true).expect("promote"));
    assert!(!index.promote(12345, |_| false).expect("promote"));
    assert_eq!(index.check().expect("consistent").displaced, 2);
}
