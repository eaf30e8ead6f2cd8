//! The fifteen edge cases that broke published systems of this kind, each by its words. If a unit
//! test proves one already, this page names it and adds what only a whole store can show.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]
#![allow(clippy::doc_lazy_continuation, reason = "comments begin with the number of their case")]

use crate::common::{DISK_BYTES, HYPER, Model, Random, get, options, put, spec, update};
use embedrock_core::config::{IoChoice, PolicyKind};
use embedrock_core::optimizer::OptimizerKind;
use embedrock_core::{
    ErrorKind, GetBatch, Memory, NonFinite, Store, StoreOptions, TableId, TableSpec, UpdateBatch,
};
use std::path::PathBuf;

const DIM: usize = 5;
/// A budget at which most rows of these tests live on storage.
const TIGHT: u64 = 600 << 10;
/// Keys that other systems keep for themselves: 0, -1 and -2 as signed numbers, and around.
const RESERVED: [u64; 8] =
    [0, u64::MAX, u64::MAX - 1, 1, 1 << 63, (1 << 63) - 1, u32::MAX as u64, 1 << 32];

struct Fixture {
    _directory: tempfile::TempDir,
    path: PathBuf,
    store: Store,
    tables: Vec<TableId>,
    model: Model,
}

impl Fixture {
    fn new(bytes: u64, specs: Vec<TableSpec>) -> Self {
        Self::with(options(bytes), specs)
    }

    fn with(options: StoreOptions, specs: Vec<TableSpec>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let store = Store::open(&path, options).unwrap();
        let model = Model::new(specs);
        let tables = model.open_tables(&store).unwrap();
        Self { _directory: directory, path, store, tables, model }
    }

    fn update(&mut self, table: usize, keys: &[u64], gradients: &[f32]) {
        update(&self.store, self.tables[table], keys, gradients).unwrap();
        self.model.update(table, keys, gradients);
    }

    fn put(&mut self, table: usize, keys: &[u64], values: &[f32]) {
        put(&self.store, self.tables[table], keys, values).unwrap();
        self.model.put(table, keys, values);
    }

    /// Compares every row; `others` are keys that were not written in each table.
    fn expect(&self, others: &[&[u64]]) {
        let others: Vec<Vec<u64>> = (0..self.tables.len())
            .map(|table| others.get(table).map_or_else(Vec::new, |keys| keys.to_vec()))
            .collect();
        let difference = self.model.difference(&self.store, &others);
        assert!(difference.is_none(), "{}", difference.unwrap());
    }

    fn reopen(&mut self, options: StoreOptions) {
        self.store.close().unwrap();
        self.store = Store::open(&self.path, options).unwrap();
    }
}

fn gradients(random: &mut Random, rows: usize, dim: usize) -> Vec<f32> {
    (0..rows * dim).map(|_| random.value()).collect()
}

/// 1. "Duplicate ids inside one batch: sum gradients, one optimizer step, one write."
/// Also `gradients_of_equal_keys_are_summed_in_order_of_occurrence` in `distinct`.
#[test]
fn case_01_duplicate_ids_inside_one_batch_sum_gradients_one_optimizer_step_one_write() {
    let dense = spec("dense", DIM, Some(10), OptimizerKind::Adagrad);
    let growing = spec("growing", DIM, None, OptimizerKind::Adagrad);
    let mut fixture = Fixture::new(TIGHT, vec![dense, growing]);
    let mut random = Random(1);
    for table in 0..2 {
        // A batch of one key a hundred times: one row, one step.
        let all = gradients(&mut random, 100, DIM);
        fixture.update(table, &[7; 100], &all);
        assert_eq!(fixture.store.len(fixture.tables[table]).unwrap(), 1);
        // Of equal keys of a put the last one wins.
        let values: Vec<f32> = (0..100 * DIM).map(|i| i as f32).collect();
        fixture.put(table, &[3; 100], &values);
        let found = get(&fixture.store, fixture.tables[table], &[3, 7, 3]).unwrap();
        assert_eq!(found[..DIM], values[99 * DIM..]);
        assert_eq!(found[2 * DIM..], values[99 * DIM..]);
        let deleted = fixture.store.delete(fixture.tables[table], &[3, 3, 3]).unwrap();
        assert_eq!(deleted, 1);
        fixture.model.delete(table, &[3]);
    }
    fixture.expect(&[&[3], &[3]]);
    fixture.store.commit(1, "", &[]).unwrap();
    assert_eq!(fixture.store.stats().unwrap().rows_written, 2);
}

/// 2. "Missing key: deterministic initialisation from (seed, table, id); reading does not insert;
/// found/absent is reported." Also `bits_of_initial_rows_are_fixed` in `init`.
#[test]
fn case_02_missing_key_has_deterministic_initialisation_and_reading_does_not_insert() {
    let specs = || {
        vec![
            spec("a", DIM, Some(3000), OptimizerKind::Sgd),
            spec("b", DIM, None, OptimizerKind::Sgd),
        ]
    };
    let mut rows = Vec::new();
    for seed in [0, 0, 1] {
        let fixture = Fixture::with(StoreOptions { seed, ..options(TIGHT) }, specs());
        let keys: Vec<u64> = (0..3000).collect();
        for table in 0..2 {
            rows.push(get(&fixture.store, fixture.tables[table], &keys).unwrap());
            let mut found = vec![true; keys.len()];
            fixture.store.contains(fixture.tables[table], &keys, &mut found).unwrap();
            assert!(!found.contains(&true));
            assert_eq!(fixture.store.len(fixture.tables[table]).unwrap(), 0);
        }
        fixture.store.commit(1, "", &[]).unwrap();
        assert_eq!(fixture.store.stats().unwrap().rows_written, 0);
    }
    assert_eq!(rows[0], rows[2], "same seed, same table");
    assert_eq!(rows[1], rows[3]);
    assert_ne!(rows[0], rows[1], "another table");
    assert_ne!(rows[0], rows[4], "another seed");
}

/// 3. "Results in request order, also with hits, replicas and duplicates mixed."
/// Also `random_verbs_agree_with_a_plain_map_at_any_budget` of the store's unit tests.
#[test]
fn case_03_results_in_request_order_with_hits_misses_and_duplicates_mixed() {
    let dense = spec("dense", DIM, Some(20_000), OptimizerKind::None);
    let growing = spec("growing", DIM, None, OptimizerKind::None);
    let mut fixture = Fixture::new(TIGHT, vec![dense, growing]);
    let keys: Vec<u64> = (0..20_000).collect();
    let values: Vec<f32> = (0..20_000 * DIM).map(|i| i as f32).collect();
    for table in 0..2 {
        fixture.put(table, &keys, &values);
    }
    fixture.store.commit(1, "", &[]).unwrap();
    let mut random = Random(3);
    for _ in 0..20 {
        let batch = |random: &mut Random| -> Vec<u64> {
            // Half from a few hot keys, half from all over, in no order, with repetitions.
            (0..1000)
                .map(|i| if i % 2 == 0 { random.below(50) } else { random.below(20_000) })
                .collect()
        };
        // The same table twice and another between, in one call.
        let asked = [batch(&mut random), batch(&mut random), batch(&mut random)];
        let mut found = [(); 3].map(|()| vec![0.0; 1000 * DIM]);
        let tables = [fixture.tables[0], fixture.tables[1], fixture.tables[0]];
        let mut batches: Vec<GetBatch<'_>> = tables
            .iter()
            .zip(&asked)
            .zip(&mut found)
            .map(|((table, keys), values)| GetBatch {
                table: *table,
                keys,
                values: values.into(),
                state: None,
            })
            .collect();
        fixture.store.get(&mut batches).unwrap();
        for (keys, rows) in asked.iter().zip(&found) {
            for (key, row) in keys.iter().zip(rows.chunks_exact(DIM)) {
                assert_eq!(row, &values[*key as usize * DIM..][..DIM], "key {key}");
            }
        }
    }
    let stats = fixture.store.stats().unwrap();
    assert!(stats.hits > 0 && stats.misses > 0, "{} {}", stats.hits, stats.misses);
}

/// 4. "Reserved key values (0, −1, −2) accepted as ordinary ids." Also `no_key_is_reserved` in
/// `distinct`.
#[test]
fn case_04_reserved_key_values_are_accepted_as_ordinary_ids_by_every_verb() {
    let mut fixture = Fixture::new(TIGHT, vec![spec("t", DIM, None, OptimizerKind::Adagrad)]);
    let table = fixture.tables[0];
    let mut random = Random(4);
    let many: Vec<u64> = (0..5000).map(|i| 1000 + i).collect();
    for round in 0..3 {
        let all = gradients(&mut random, RESERVED.len(), DIM);
        fixture.update(0, &RESERVED, &all);
        fixture.put(0, &[u64::MAX], &[9.0; DIM]);
        fixture
            .store
            .modify(table, &RESERVED, &mut |keys, values, _| {
                assert_eq!(keys, RESERVED);
                values.iter_mut().for_each(|v| *v += 1.0);
                Ok(())
            })
            .unwrap();
        for key in RESERVED {
            let row = fixture.model.row(0, key);
            let values: Vec<f32> = row[..DIM].iter().map(|v| v + 1.0).collect();
            fixture.model.put(0, &[key], &values);
        }
        // Enough others to push them to storage.
        let all = gradients(&mut random, many.len(), DIM);
        fixture.update(0, &many, &all);
        fixture.expect(&[&[2, u64::MAX - 2]]);
        fixture.store.commit(round, "", &[]).unwrap();
        fixture.reopen(options(TIGHT));
        fixture.expect(&[&[2, u64::MAX - 2]]);
    }
    assert_eq!(fixture.store.delete(table, &[0, u64::MAX, u64::MAX - 1, 2]).unwrap(), 3);
    fixture.model.delete(0, &[0, u64::MAX, u64::MAX - 1]);
    fixture.expect(&[&RESERVED]);
    let mut scan = fixture.store.scan(table).unwrap();
    let (mut keys, mut values) = (vec![0; 6000], vec![0.0; 6000 * DIM]);
    let rows = scan.next_batch(&mut keys, &mut values, None).unwrap();
    assert_eq!(rows, many.len() + RESERVED.len() - 3);
    keys.truncate(rows);
    for key in RESERVED {
        assert_eq!(keys.contains(&key), ![0, u64::MAX, u64::MAX - 1].contains(&key), "{key}");
    }
}

/// 5. "Odd sizes: ... last page of a table, row size not dividing the page, ...".
#[test]
fn case_05_odd_sizes_row_size_not_dividing_the_page_and_last_page_of_a_table() {
    for (dim, page_bytes, rows) in [
        (1, 4096, 1_u64),
        (1, 4096, 291 + 1),
        (7, 4096, 1000),
        (33, 4096, 997),
        (509, 4096, 50),
        (1013, 4096, 13),
        (1014, 8192, 13),
        (16_373, 65_536, 5),
    ] {
        let segment_bytes = Some(page_bytes as u64 * 16);
        let options =
            StoreOptions { page_bytes: Some(page_bytes), segment_bytes, ..options(4 << 20) };
        let dense = spec("dense", dim, Some(rows), OptimizerKind::None);
        let mut growing = spec("growing", dim, None, OptimizerKind::None);
        growing.expected_rows = Some(rows);
        let mut fixture = Fixture::with(options.clone(), vec![dense, growing]);
        let keys: Vec<u64> = (0..rows).collect();
        for round in 1..4 {
            let of = |key: u64, i: usize| (key * 7 + round) as f32 + i as f32 / 64.0;
            let values: Vec<f32> =
                keys.iter().flat_map(|key| (0..dim).map(move |i| of(*key, i))).collect();
            fixture.put(0, &keys, &values);
            fixture.put(1, &keys, &values);
            fixture.store.commit(round, "", &[]).unwrap();
        }
        fixture.reopen(options);
        fixture.expect(&[&[], &[rows, rows + 1]]);
        let error = get(&fixture.store, fixture.tables[0], &[0, rows]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KeyRange);
        let report = embedrock_core::check(&fixture.path, &mut |_, _| Ok(())).unwrap();
        assert!(report.problems.is_empty(), "dim {dim}: {:?}", report.problems);
    }
}

/// 5. "Odd sizes: ... row > page": refused when the table is made, with the size that works.
#[test]
fn case_05_odd_sizes_a_row_larger_than_the_page_is_refused_with_the_size_that_works() {
    let fixture = Fixture::new(4 << 20, vec![]);
    let wide = spec("wide", 1200, Some(10), OptimizerKind::None);
    let error = fixture.store.table(&wide).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.message().contains("page_bytes=8192"), "{error}");
    assert!(fixture.store.find_table("wide").is_none());
    // No page holds this one.
    let error = fixture.store.table(&spec("w", 20_000, None, OptimizerKind::None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.message().contains("20000"), "{error}");
    // The refusals left nothing behind that a commit would keep.
    let table = fixture.store.table(&spec("t", 4, Some(10), OptimizerKind::None)).unwrap();
    put(&fixture.store, table, &[1], &[1.0; 4]).unwrap();
    fixture.store.commit(1, "", &[]).unwrap();
    fixture.store.close().unwrap();
    let store = Store::open(&fixture.path, options(4 << 20)).unwrap();
    assert_eq!(get(&store, table, &[1]).unwrap(), [1.0; 4]);
    assert_eq!(store.tables().len(), 1);
}

/// 5. "Odd sizes: batch not divisible by threads": and empty, larger than the cache, all equal.
#[test]
fn case_05_odd_sizes_of_batches_empty_larger_than_the_cache_and_all_duplicates() {
    for policy in [PolicyKind::Lru, PolicyKind::Lfu] {
        let options = StoreOptions { policy, ..options(700 << 10) };
        let mut fixture = Fixture::with(
            options.clone(),
            vec![
                spec("dense", DIM, Some(30_000), OptimizerKind::Adagrad),
                spec("growing", DIM, None, OptimizerKind::Adagrad),
            ],
        );
        let mut random = Random(5);
        for table in 0..2 {
            let id = fixture.tables[table];
            fixture.update(table, &[], &[]);
            fixture.put(table, &[], &[]);
            assert!(get(&fixture.store, id, &[]).unwrap().is_empty());
            assert_eq!(fixture.store.delete(id, &[]).unwrap(), 0);
            fixture.store.contains(id, &[], &mut []).unwrap();
            fixture.store.modify(id, &[], &mut |_, _, _| Ok(())).unwrap();
            fixture.store.lookahead(id, &[]).unwrap();
        }
        fixture.store.get(&mut []).unwrap();
        fixture.store.update(&[]).unwrap();
        let capacity = fixture.store.stats().unwrap().classes[0].cache_capacity;
        for n in [1, 3, 61, 20_011] {
            for table in 0..2 {
                let keys: Vec<u64> = (0..n).map(|_| random.below(30_000)).collect();
                let all = gradients(&mut random, keys.len(), DIM);
                fixture.update(table, &keys, &all);
            }
        }
        assert!(capacity < 10_000, "the cache holds {capacity} rows");
        let equal = vec![29_999; 20_011];
        let all = vec![0.25; equal.len() * DIM];
        fixture.update(0, &equal, &all);
        fixture.update(1, &equal, &all);
        let all: Vec<u64> = (0..30_000).collect();
        fixture.expect(&[&all, &all]);
        fixture.store.commit(1, "", &[]).unwrap();
        fixture.reopen(options);
        fixture.expect(&[&all, &all]);
    }
}

// 6. "Update while a prefetch of the same row is in flight; eviction while a gradient is being
// applied; cleaning while both": `four_threads_lose_no_update_and_see_no_half_row` of the store's
// unit tests and `rows_stay_whole_between_threads` of the cache's run on the simulated device; here
// on a real one, with real reads in flight.
#[test]
fn case_06_update_eviction_and_cleaning_while_reads_of_the_same_rows_are_in_flight() {
    let rows = 8000u64;
    for io in [IoChoice::Auto, IoChoice::Pread] {
        let specs = vec![spec("t", DIM, Some(rows), OptimizerKind::Sgd)];
        let fixture = Fixture::with(StoreOptions { io, ..options(450 << 10) }, specs);
        let (store, table) = (&fixture.store, fixture.tables[0]);
        let keys: Vec<u64> = (0..rows).collect();
        put(store, table, &keys, &vec![0.0; keys.len() * DIM]).unwrap();
        store.commit(0, "", &[]).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for _ in 0..60 {
                        let keys: Vec<u64> = (0..300).map(|_| random.below(rows)).collect();
                        update(store, table, &keys, &vec![-2.0; keys.len() * DIM]).unwrap();
                        let found = get(store, table, &keys).unwrap();
                        for row in found.chunks_exact(DIM) {
                            assert!(row.iter().all(|v| *v == row[0]), "half a row: {row:?}");
                        }
                    }
                });
            }
            for step in 1..10 {
                store.commit(step, "", &[]).unwrap();
            }
        });
        // With the learning rate 0.5 every key of a batch adds 1 to its row.
        let total: f64 = get(store, table, &keys).unwrap().iter().map(|v| f64::from(*v)).sum();
        assert_eq!(total, (3 * 60 * 300 * DIM) as f64);
        let stats = store.stats().unwrap();
        assert!(stats.pages_read > 100 && stats.evicted_dirty > 100, "{}", stats.pages_read);
    }
}

/// 7. "Same row in two batches in flight with bound 0": the second one sees the first.
#[test]
fn case_07_same_row_in_two_batches_with_bound_0_sees_every_earlier_update() {
    let specs = vec![spec("t", DIM, None, OptimizerKind::Sgd)];
    let fixture = Fixture::new(TIGHT, specs);
    let (store, table) = (&fixture.store, fixture.tables[0]);
    put(store, table, &[1, 2], &[0.0; 2 * DIM]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let (mine, mut before) = (1 + thread as u64, f32::NEG_INFINITY);
                for i in 0..500 {
                    update(store, table, &[1, 2], &[-2.0; 2 * DIM]).unwrap();
                    let now = get(store, table, &[mine]).unwrap()[0];
                    assert!(now > before && now >= (i + 1) as f32, "{now} after {before}");
                    before = now;
                }
            });
        }
    });
    assert_eq!(get(store, table, &[1, 2]).unwrap(), [1000.0; 2 * DIM]);
}

// 8. "Counter saturation and wrap": 2^32 uses take minutes in a whole store, so the stamps of the
// cache wrap in `stamps_of_use_wrap_without_a_change_of_order` of the cache's unit tests. A test of
// a store can pass values at the end of every range that a caller can name.
#[test]
fn case_08_counter_saturation_steps_keys_and_seeds_at_the_end_of_their_range() {
    let mut adam = spec("adam", DIM, None, OptimizerKind::Adam);
    adam.expected_rows = None;
    let options = StoreOptions { seed: u64::MAX, ..options(64 << 20) };
    let fixture = Fixture::with(options.clone(), vec![adam]);
    let table = fixture.tables[0];
    let batch = |step| UpdateBatch {
        table,
        keys: &[u64::MAX, 0],
        gradients: &[0.5; 2 * DIM],
        hyper: HYPER,
        non_finite: NonFinite::Refuse,
        step,
    };
    for step in [Some(1), Some(u64::from(u32::MAX)), Some(u64::MAX), None] {
        fixture.store.update(&[batch(step)]).unwrap();
    }
    let before = get(&fixture.store, table, &[u64::MAX, 0]).unwrap();
    assert!(before.iter().all(|v| v.is_finite()));
    for step in [u64::MAX - 1, u64::MAX] {
        let info = fixture.store.commit(step, "", &[]).unwrap();
        assert_eq!(info.step, step);
    }
    fixture.store.close().unwrap();
    for step in [None, Some(u64::MAX - 1), Some(u64::MAX)] {
        let options = StoreOptions { step, ..options.clone() };
        let store = Store::open(&fixture.path, options).unwrap();
        assert_eq!(store.last_commit().unwrap().step, step.unwrap_or(u64::MAX));
        assert_eq!(get(&store, table, &[u64::MAX, 0]).unwrap(), before);
    }
}

// 9. "All segments full; ... disk full; short read; I/O error; checksum error":
// `a_full_disk_refuses_whole_batches_and_lets_reads_and_commits_go_on`,
// `an_error_of_the_device_poisons_writes_and_loses_no_commit`, `flipped_bits_are_found_or_harmless`
// and `truncated_files_are_found` of the store's unit tests; real files in `store.rs`.
#[test]
fn case_09_all_segments_full_is_said_before_anything_is_written_and_commits_make_room() {
    const MOST: u64 = 4 << 20;
    let bound = StoreOptions { max_disk_bytes: Some(MOST), ..options(700 << 10) };
    let specs = vec![spec("t", DIM, Some(20_000), OptimizerKind::Adagrad)];
    let mut fixture = Fixture::with(bound.clone(), specs);
    let mut random = Random(9);
    let mut refused = 0;
    for step in 0..150 {
        let keys: Vec<u64> = (0..1500).map(|_| random.below(20_000)).collect();
        let all = gradients(&mut random, keys.len(), DIM);
        match update(&fixture.store, fixture.tables[0], &keys, &all) {
            Ok(()) => fixture.model.update(0, &keys, &all),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                assert!(error.message().contains("commit"), "{error}");
                refused += 1;
                if refused == 1 {
                    let all: Vec<u64> = (0..20_000).collect();
                    fixture.expect(&[&all]);
                }
                // Outdated copies go when no kept commit has them any more.
                let commits = (1..4).find(|_| {
                    fixture.store.commit(step, "", &[]).unwrap();
                    update(&fixture.store, fixture.tables[0], &keys, &all).is_ok()
                });
                assert!(commits.is_some(), "step {step}: full after many commits");
                fixture.model.update(0, &keys, &all);
            }
        }
        assert!(fixture.store.stats().unwrap().disk_bytes <= MOST);
    }
    assert!(refused > 3, "the disk was full {refused} times");
    fixture.store.commit(999, "", &[]).unwrap();
    fixture.reopen(bound);
    fixture.expect(&[]);
}

// 10. "Kill −9 at any point": `crash.rs`, and `power_cuts_at_every_operation_leave_the_last_commit`
// of the store's unit tests.

/// 11. "Restart keeps placement: no location depends on volatile state": other budgets, policies
/// and back ends read what was written, page for page.
#[test]
fn case_11_restart_keeps_placement_whatever_budget_policy_and_back_end() {
    let specs = vec![
        spec("dense", DIM, Some(9000), OptimizerKind::Adagrad),
        spec("growing", DIM, None, OptimizerKind::Adagrad),
    ];
    let mut fixture = Fixture::new(TIGHT, specs);
    let mut random = Random(11);
    for step in 0..6 {
        for table in 0..2 {
            let keys: Vec<u64> = (0..2000).map(|_| random.below(9000)).collect();
            let all = gradients(&mut random, keys.len(), DIM);
            fixture.update(table, &keys, &all);
        }
        fixture.store.commit(step, "", &[]).unwrap();
    }
    fixture.store.close().unwrap();
    let rows = fixture.path.join("rows-0");
    let before = std::fs::read(&rows).unwrap();
    for (bytes, policy, io) in [
        (TIGHT, PolicyKind::Lfu, IoChoice::Pread),
        (900 << 10, PolicyKind::Lru, IoChoice::Auto),
        (32 << 20, PolicyKind::Lru, IoChoice::Pread),
    ] {
        let options = StoreOptions { policy, io, page_bytes: None, ..options(bytes) };
        fixture.store = Store::open(&fixture.path, options).unwrap();
        let all: Vec<u64> = (0..9000).collect();
        fixture.expect(&[&all, &all]);
        let stats = fixture.store.stats().unwrap();
        assert!(stats.pages_read > 0 && stats.pages_written == 0, "{}", stats.pages_written);
        assert_eq!(stats.classes[0].page_bytes, 4096);
        fixture.store.close().unwrap();
        assert!(std::fs::read(&rows).unwrap() == before, "reading moved rows");
    }
}

/// 12. "Drift: hit rate recovers after popularity changes (ageing)."
#[test]
fn case_12_drift_hit_rate_recovers_after_popularity_changes() {
    for policy in [PolicyKind::Lru, PolicyKind::Lfu] {
        let options = StoreOptions { policy, ..options(1 << 20) };
        let specs = vec![spec("t", DIM, Some(60_000), OptimizerKind::None)];
        let mut fixture = Fixture::with(options, specs);
        let keys: Vec<u64> = (0..60_000).collect();
        fixture.put(0, &keys, &vec![1.0; keys.len() * DIM]);
        let hot_keys = fixture.store.stats().unwrap().classes[0].cache_capacity / 3;
        assert!(hot_keys > 500, "the cache is too small for this test: {hot_keys}");
        let mut random = Random(12);
        // 90 % of the requests go to the hot keys, which change completely in each phase.
        let mut phase = |hot: u64, batches: u64| {
            let before = fixture.store.stats().unwrap();
            for _ in 0..batches {
                let keys: Vec<u64> = (0..500)
                    .map(|_| match random.below(10) {
                        0 => random.below(60_000),
                        _ => hot + random.below(hot_keys),
                    })
                    .collect();
                get(&fixture.store, fixture.tables[0], &keys).unwrap();
            }
            let after = fixture.store.stats().unwrap();
            let hits = after.hits + after.rescued - before.hits - before.rescued;
            hits as f64 / (hits + after.misses - before.misses) as f64
        };
        phase(0, 400);
        let settled = phase(0, 100);
        let at_once = phase(30_000, 5);
        phase(30_000, 400);
        let recovered = phase(30_000, 100);
        assert!(settled > 0.85, "{policy:?}: {settled}");
        assert!(at_once < settled, "{policy:?}: no drift, {at_once}");
        assert!(recovered > settled - 0.02, "{policy:?}: {settled}, then {recovered}");
    }
}

/// 13. "Strided or shared-low-bit keys: bounded probes." Also
/// `strided_keys_spread_over_low_and_high_bits` in `hash`.
#[test]
fn case_13_strided_and_shared_low_bit_keys_read_no_more_than_random_ones() {
    let rows = 20_000u64;
    let families: [(&str, &dyn Fn(u64) -> u64); 6] = [
        ("random", &|i| Random(i).next()),
        ("consecutive", &|i| i),
        ("stride 4096", &|i| i << 12),
        ("stride 2^44", &|i| i << 44),
        ("low bits all ones", &|i| (i << 20) | 0xF_FFFF),
        ("from the end", &|i| u64::MAX - i * 64),
    ];
    let mut first = None;
    for (name, key) in families {
        let mut growing = spec("t", DIM, None, OptimizerKind::None);
        growing.expected_rows = Some(rows);
        let mut fixture = Fixture::new(1 << 20, vec![growing]);
        let keys: Vec<u64> = (0..rows).map(key).collect();
        for some in keys.chunks(4000) {
            fixture.put(0, some, &vec![2.0; some.len() * DIM]);
        }
        fixture.store.commit(1, "", &[]).unwrap();
        let before = fixture.store.stats().unwrap();
        let mut random = Random(13);
        for _ in 0..40 {
            let batch: Vec<u64> = (0..500).map(|_| keys[random.below(rows) as usize]).collect();
            assert!(
                get(&fixture.store, fixture.tables[0], &batch).unwrap().iter().all(|v| *v == 2.0)
            );
        }
        let after = fixture.store.stats().unwrap();
        // Rows that were pushed out of their set, and pages that held another key.
        let misses = (after.misses - before.misses) as f64;
        let wrong = (after.tag_collisions - before.tag_collisions) as f64;
        let (misses_random, index_random) =
            *first.get_or_insert((misses, after.memory.index_bytes as f64));
        assert!(misses < 1.1 * misses_random + 50.0, "{name}: {misses} of {misses_random}");
        assert!(wrong < 0.02 * misses + 10.0, "{name}: {wrong} wrong pages of {misses} misses");
        let index = after.memory.index_bytes as f64;
        assert!(index < 1.2 * index_random, "{name}: index {index} of {index_random}");
    }
}

/// 14. "Memory accounting includes write buffers, staging, index, cache metadata": the parts add
/// up, stay within the budget, and match what the process really takes.
#[test]
fn case_14_memory_accounting_includes_buffers_staging_index_and_cache_metadata() {
    let specs = vec![
        spec("dense", 16, Some(100_000), OptimizerKind::Adagrad),
        spec("growing", DIM, None, OptimizerKind::Sgd),
    ];
    for budget in [2 << 20, 5 << 20, 20 << 20] {
        let fixture = Fixture::new(budget, specs.clone());
        let mut random = Random(14);
        for step in 0..30 {
            for (table, dim) in [(0, 16), (1, DIM)] {
                let keys: Vec<u64> = (0..3000).map(|_| random.below(60_000)).collect();
                let all = gradients(&mut random, keys.len(), dim);
                update(&fixture.store, fixture.tables[table], &keys, &all).unwrap();
            }
            if step % 10 == 9 {
                fixture.store.commit(step, "", &[]).unwrap();
            }
            let stats = fixture.store.stats().unwrap();
            let memory = stats.memory;
            let parts =
                [memory.cache_bytes, memory.index_bytes, memory.buffer_bytes, memory.staging_bytes];
            assert!(parts.iter().all(|part| *part > 0), "{memory:?}");
            assert!(memory.total() <= budget, "{memory:?} of {budget}");
            let rows: u64 =
                stats.classes.iter().map(|c| c.cache_capacity * c.row_bytes as u64).sum();
            assert!(memory.cache_bytes > rows, "no metadata in {memory:?}, rows {rows}");
        }
    }
}

/// 15. "Config that cannot work is refused at open with a message, not by an abort in the middle."
#[test]
fn case_15_config_that_cannot_work_is_refused_at_once_with_a_message() {
    let fixture = Fixture::new(TIGHT, vec![]);
    let store = &fixture.store;
    let base = || spec("t", DIM, Some(100), OptimizerKind::Adagrad);
    type Change = fn(&mut TableSpec);
    let changes: [(Change, &str); 8] = [
        (|s| s.embedding_dim = 0, "embedding_dim is 0"),
        (|s| s.embedding_dim = usize::MAX / 2, "embedding_dim"),
        (|s| s.num_embeddings = Some(0), "num_embeddings is 0"),
        (|s| s.num_embeddings = Some(1 << 32), "on disk"),
        (|s| s.num_embeddings = Some(u64::MAX), "on disk"),
        (|s| s.name = String::new(), "name"),
        (|s| s.optimizer.initial_accumulator = f32::NAN, "initial_accumulator"),
        (
            |s| s.initializer = embedrock_core::init::Initializer::Uniform { low: 1.0, high: 0.0 },
            "low",
        ),
    ];
    for (change, message) in changes {
        let mut spec = base();
        change(&mut spec);
        let error = store.table(&spec).unwrap_err();
        assert!(error.message().contains(message), "{message}: {error}");
    }
    let huge = TableSpec { num_embeddings: None, expected_rows: Some(u64::MAX), ..base() };
    assert!(store.table(&huge).is_err());
    assert_eq!(store.tables().len(), 0);
    for page_bytes in [0, 100, 511, 4097, 131_072] {
        let directory = tempfile::tempdir().unwrap();
        let options = StoreOptions { page_bytes: Some(page_bytes), ..options(TIGHT) };
        let error = match Store::open(directory.path(), options) {
            Ok(store) => store.table(&base()).map(drop),
            Err(error) => Err(error),
        };
        if page_bytes > 4096 {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Misuse, "{page_bytes}");
        }
    }
    let keep = StoreOptions { keep: 0, ..options(TIGHT) };
    let error = Store::open(fixture.path.join("other"), keep).err().unwrap();
    assert!(error.message().contains("keep is 0"), "{error}");
    // A percentage of a table that does not say how large it will be.
    let memory = Memory::Percent(10.0);
    let options = StoreOptions { memory, max_disk_bytes: Some(DISK_BYTES), ..options(0) };
    let fixture = Fixture::with(options, vec![]);
    let spec = TableSpec { expected_rows: None, num_embeddings: None, ..base() };
    let error = fixture.store.table(&spec).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget);
    assert!(error.message().contains("expected_rows"), "{error}");
    assert!(fixture.store.tables().is_empty());
}
