//! The row cache, full, with rows of 32 float32: hits, changes, and rows that push others out.
//! `cache_gather` has the gather with more rows, two threads, and beside a dense array.

use super::{Draws, TIMES};
use criterion::{BatchSize, Criterion, Throughput};
use embedrock_core::config::PolicyKind;
use embedrock_core::hash::mix;
use embedrock_core::laboratory::{Cache, CacheShape, DenseTable, Location, RowMut};
use std::hint::black_box;

const ROWS: u64 = 2_000_000;
const WORDS: usize = 32;
const SALT: u64 = 3;
/// Keys from here on were never admitted.
const FRESH: u64 = 1 << 40;

pub(super) fn benches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cache");
    group.throughput(Throughput::Elements(TIMES as u64));
    let mut draws = Draws::new(ROWS);
    for headers in [false, true] {
        let cache = filled(PolicyKind::Lfu, headers);
        let kind = if headers { "headers" } else { "dense" };
        let mut output = vec![0.0; TIMES * WORDS];
        group.bench_function(format!("gather/{kind}"), |bencher| {
            let gather = |keys: &mut Vec<u64>| {
                let missed = |at| panic!("row {at} is resident");
                cache.gather(0, keys, WORDS, &mut output, |key| locate(&cache, key), missed);
                assert_eq!(output[WORDS * (TIMES - 1)], keys[TIMES - 1] as f32);
            };
            bencher.iter_batched_ref(|| draws.next(), gather, BatchSize::SmallInput);
        });
        group.bench_function(format!("update/{kind}"), |bencher| {
            let mut stamp = 0;
            let update = |keys: &mut Vec<u64>| {
                stamp += 1;
                let visits = cache.visits();
                let visit = |i: usize, at| {
                    let change = |mut row: RowMut<'_>| {
                        row.words[1..].iter_mut().for_each(|word| *word += 0.5);
                        row.mark_dirty(stamp)
                    };
                    black_box(visits.access(at, 0, keys[i], change).expect("a resident row"));
                };
                cache.staged(keys.len(), true, |i| locate(&cache, keys[i]), visit);
            };
            bencher.iter_batched_ref(|| draws.next(), update, BatchSize::SmallInput);
        });
    }
    for policy in [PolicyKind::Lru, PolicyKind::Lfu] {
        let cache = filled(policy, true);
        let (mut fresh, mut evicted, mut admitted) = (FRESH, 0, 0);
        group.bench_function(format!("admit_and_evict/{policy:?}").to_lowercase(), |bencher| {
            let mut setup = || {
                fresh += TIMES as u64;
                (fresh - TIMES as u64..fresh).collect()
            };
            let admit = |keys: &mut Vec<u64>| {
                admitted += TIMES;
                let visit = |i: usize, at| {
                    let fill = |row: RowMut<'_>, _| row.words.fill(keys[i] as f32);
                    cache.admit(at, 0, keys[i], 1, fill, |row| {
                        black_box(row.words[0]);
                        evicted += 1;
                    });
                };
                cache.staged(keys.len(), true, |i| locate(&cache, keys[i]), visit);
            };
            bencher.iter_batched_ref(&mut setup, admit, BatchSize::SmallInput);
        });
        // Hashed rows fill the sets unevenly, so some were not full.
        assert!(evicted >= admitted * 9 / 10, "{evicted} rows left for {admitted}");
    }
    group.finish();
}

#[inline(always)]
fn locate(cache: &Cache, key: u64) -> Location {
    if key < FRESH { cache.locate_dense(key) } else { cache.locate_hashed(mix(key, SALT)) }
}

/// A cache in which every row is resident, with its key in all words.
fn filled(policy: PolicyKind, headers: bool) -> Cache {
    let sets = u32::try_from(ROWS / 32).expect("sets of 32 rows");
    let shape = CacheShape { row_bytes: WORDS * 4, sets, ways: 32, policy, headers };
    let cache = match headers {
        true => Cache::new(shape),
        false => Cache::of_dense_rows(shape, vec![DenseTable { first: 0, table: 0 }]),
    };
    let cache = cache.expect("memory for the cache");
    for key in 0..ROWS {
        let fill = |row: RowMut<'_>, _| row.words.fill(key as f32);
        let at = cache.locate_dense(key);
        cache.admit(at, 0, key, 0, fill, |_| panic!("every row has a place"));
    }
    cache
}
