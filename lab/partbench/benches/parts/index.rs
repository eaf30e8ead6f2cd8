//! Both indexes: look-ups and changes of random keys. Lines are asked for ahead but for changes of
//! the sparse index, which come one at a time.

use super::{Draws, TIMES};
use criterion::{BatchSize, Criterion, Throughput};
use embedrock_core::hash::mix;
use embedrock_core::laboratory::{DenseIndex, SparseIndex};
use std::hint::black_box;

const DENSE_IDS: u64 = 16 << 20;
const SPARSE_KEYS: u64 = 4 << 20;
const GROWN_KEYS: u32 = 100_000;
const AHEAD: usize = 16;
const SALT: u64 = 3;

pub(super) fn benches(criterion: &mut Criterion) {
    dense(criterion);
    sparse(criterion);
    growth(criterion);
}

fn dense(criterion: &mut Criterion) {
    let mut index = DenseIndex::new(DENSE_IDS).expect("memory for the index");
    (0..DENSE_IDS).for_each(|id| assert_eq!(index.set(id, id as u32 + 1), 0));
    let mut draws = Draws::new(DENSE_IDS);
    let mut group = criterion.benchmark_group("index/dense");
    group.throughput(Throughput::Elements(TIMES as u64));
    group.bench_function("get", |bencher| {
        let get = |ids: &mut Vec<u64>| {
            let mut wrong = 0;
            for (place, id) in ids.iter().enumerate() {
                if let Some(later) = ids.get(place + AHEAD) {
                    index.prefetch(*later);
                }
                wrong += u32::from(index.get(*id) != *id as u32 + 1);
            }
            assert_eq!(wrong, 0);
        };
        bencher.iter_batched_ref(|| draws.next(), get, BatchSize::SmallInput);
    });
    group.bench_function("set", |bencher| {
        let set = |ids: &mut Vec<u64>| {
            for (place, id) in ids.iter().enumerate() {
                if let Some(later) = ids.get(place + AHEAD) {
                    index.prefetch(*later);
                }
                black_box(index.set(*id, *id as u32 + 2));
            }
        };
        bencher.iter_batched_ref(|| draws.next(), set, BatchSize::SmallInput);
    });
    assert_eq!(index.len(), DENSE_IDS);
    group.finish();
}

fn sparse(criterion: &mut Criterion) {
    let mut index = SparseIndex::new(0).expect("an empty index");
    grow(&mut index, 1..=SPARSE_KEYS as u32);
    // The slot of each key moves between two that nobody else has.
    let mut moved = vec![false; SPARSE_KEYS as usize + 1];
    let slot_of = |key: u64, moved: bool| key as u32 | u32::from(moved) << 31;
    let hash_of = |key: u64| mix(key, SALT);
    let mut draws = Draws::new(SPARSE_KEYS);
    let hashes = |keys: Vec<u64>, first: u64| keys.iter().map(|k| hash_of(first + k)).collect();
    let mut group = criterion.benchmark_group("index/sparse");
    group.throughput(Throughput::Elements(TIMES as u64));
    // Tags are short: some say yes to keys of others.
    for (name, first, expected) in [
        ("candidates", 1, TIMES..=TIMES + TIMES / 5),
        ("candidates_absent", 1 << 32, 0..=TIMES / 5),
    ] {
        let find = |hashes: &mut Vec<u64>| {
            let mut found = 0;
            for (place, hash) in hashes.iter().enumerate() {
                if let Some(later) = hashes.get(place + AHEAD) {
                    index.prefetch(*later);
                }
                index.visit_candidates(*hash, |slot| {
                    black_box(slot);
                    found += 1;
                });
            }
            assert!(expected.contains(&found), "{name}: {found} slots of {TIMES} keys");
        };
        group.bench_function(name, |bencher| {
            let setup = || -> Vec<u64> { hashes(draws.next(), first) };
            bencher.iter_batched_ref(setup, find, BatchSize::SmallInput);
        });
    }
    group.bench_function("replace", |bencher| {
        let replace = |keys: &mut Vec<u64>| {
            for key in keys.iter().map(|key| key + 1) {
                let moved = &mut moved[key as usize];
                assert!(index.replace(hash_of(key), slot_of(key, *moved), slot_of(key, !*moved)));
                *moved = !*moved;
            }
        };
        bencher.iter_batched_ref(|| draws.next(), replace, BatchSize::SmallInput);
    });
    group.bench_function("insert_and_remove", |bencher| {
        let change = |keys: &mut Vec<u64>| {
            for key in keys.iter().map(|key| key + 1 + SPARSE_KEYS) {
                index.insert(hash_of(key), key as u32);
                assert!(index.remove(hash_of(key), key as u32));
            }
        };
        bencher.iter_batched_ref(|| draws.next(), change, BatchSize::SmallInput);
    });
    assert_eq!(index.len(), SPARSE_KEYS);
    group.finish();
}

/// Inserts from empty, splits of partitions included.
fn growth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index/sparse");
    group.throughput(Throughput::Elements(GROWN_KEYS.into())).sample_size(10);
    group.bench_function("grow_to_100000", |bencher| {
        let setup = || SparseIndex::new(0).expect("an empty index");
        let fill = |index: &mut SparseIndex| grow(index, 1..=GROWN_KEYS);
        bencher.iter_batched_ref(setup, fill, BatchSize::PerIteration);
    });
    group.finish();
}

fn grow(index: &mut SparseIndex, keys: std::ops::RangeInclusive<u32>) {
    for key in keys {
        index.insert(mix(key.into(), SALT), key);
        if index.needs_split() {
            let split = index.split(&mut |slot| Ok(mix(slot.into(), SALT)));
            split.expect("every slot has its key");
        }
    }
}
