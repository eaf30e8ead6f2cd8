//! A store within its memory budget: what is refused, and that the named bytes work.

use super::bounds::{expect_rows, fill};
use super::*;
use crate::io::DeviceCurve;
use crate::io::measure::CurvePoint;

#[test]
fn a_growing_index_takes_from_the_cache_and_then_names_the_budget_that_works() {
    each_kind(|| {
        let medium = SimMedium::new(6);
        let store = Store::open_on(Arc::new(medium.clone()), options(600 << 10)).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        let (end, error) = fill(&store, table, 0);
        assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
        let stats = store.stats().unwrap();
        assert!(stats.classes[0].cache_capacity > 0 && stats.memory.index_bytes > 100 << 10);
        expect_rows(&store, table, end);
        store.commit(1, "", &[]).unwrap();
        store.close().unwrap();
        let named: u64 = error.message().rsplit('=').next().unwrap().parse().unwrap();
        let store = Store::open_on(Arc::new(medium), options_within(named)).unwrap();
        expect_rows(&store, table, end);
        let keys: Vec<u64> = (end..end + 100).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        store.put(&[put_of(table, &keys, &values)]).unwrap();
    });
}

/// Deletes of rows that lie in the bottom of an lsm leave tombstones, which nobody had planned for.
#[test]
fn deletes_that_leave_too_much_in_memory_are_refused_until_a_commit_has_merged_those_before() {
    const ROWS: u64 = 60_000;
    const BUDGET: u64 = 1100 << 10;
    KIND.set(StorageKind::Lsm);
    let medium = SimMedium::new(12);
    let store = Store::open_on(Arc::new(medium), options_within(BUDGET)).unwrap();
    let table = store.table(&spec("t", Some(ROWS), OptimizerKind::Sgd)).unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    for keys in keys.chunks(2000) {
        store.put(&[put_of(table, keys, &vec![0.5; keys.len() * DIM])]).unwrap();
    }
    store.commit(1, "", &[]).unwrap();
    store.commit(2, "", &[]).unwrap();
    let memory = |store: &Store| store.stats().unwrap().memory;
    let capacity = || store.stats().unwrap().classes[0].cache_capacity;
    let kept = capacity();
    let error = store.delete(table, &keys).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
    assert!(error.message().contains("nothing was deleted; delete fewer keys"), "{error}");
    // The cache was emptied for deletes that were refused all the same.
    assert_eq!(capacity(), kept);
    assert_eq!(store.len(table).unwrap(), ROWS);
    let before = memory(&store);
    let mut refused = 0;
    for (i, keys) in keys.chunks(12_000).enumerate() {
        let deleted = store.delete(table, keys).or_else(|error| {
            assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
            refused += 1;
            store.commit(3, "", &[]).unwrap();
            store.delete(table, keys)
        });
        assert_eq!(deleted.unwrap(), 12_000, "piece {i} after {refused} refusals");
        let used = memory(&store).total();
        assert!(used <= BUDGET, "piece {i}: {used} bytes of {BUDGET}");
    }
    assert!(refused > 0 && merges(&store) > 0, "{refused} refusals");
    assert_eq!(store.len(table).unwrap(), 0);
    for step in 4..9 {
        store.commit(step, "", &[]).unwrap();
    }
    assert!(memory(&store).index_bytes <= before.index_bytes, "{before:?}, {:?}", memory(&store));
    KIND.set(StorageKind::Log);
}

// The plan has room for as many rows of the top as there are where merges go on. While they are put
// off there are more, and nobody made room for these.
#[test]
fn a_top_that_grows_while_merges_are_put_off_takes_from_the_cache() {
    const ROWS: u64 = 400_000;
    KIND.set(StorageKind::Lsm);
    let gated = StoreOptions {
        upkeep_scheduler: UpkeepScheduler::Gate,
        top_share: Some(0.5),
        segment_bytes: Some(64 << 10),
        ..options_within(3 << 20)
    };
    let store = Store::open_on(Arc::new(SimMedium::new(13)), gated).unwrap();
    let table = store.table(&spec("t", Some(ROWS), OptimizerKind::Sgd)).unwrap();
    // Nothing is read ahead, so the gate is shut.
    store.window_by_hand();
    store.announce(&[LookaheadBatch { table, keys: &[1, 2], next: &[] }]).unwrap().unwrap();
    let capacity = || store.stats().unwrap().classes[0].cache_capacity;
    let (mut random, before) = (Random(13), capacity());
    let drawn = (0..400).map(|_| (0..500).map(|_| random.below(ROWS)).collect());
    let all: Vec<u64> = (0..ROWS).collect();
    let batches: Vec<Vec<u64>> = all.chunks(500).map(<[u64]>::to_vec).chain(drawn).collect();
    for (round, keys) in batches.iter().enumerate() {
        store.put(&[put_of(table, keys, &[0.5; 500 * DIM])]).unwrap();
        let engine = store.inner.engine.read();
        let (used, most) = (engine.memory().total(), engine.budget_bytes);
        assert!(used <= most, "round {round}: {used} of {most} bytes, {:?}", engine.memory());
    }
    assert!(store.stats().unwrap().upkeep.put_off > 0);
    assert!(capacity() < before, "the top has not outgrown the plan");
    KIND.set(StorageKind::Log);
}

#[test]
fn a_table_whose_index_the_budget_cannot_hold_is_refused_when_it_is_made() {
    each_kind(|| {
        let growing =
            TableSpec { expected_rows: Some(200_000), ..spec("t", None, OptimizerKind::Sgd) };
        for asked in [spec("t", Some(400_000), OptimizerKind::Sgd), growing] {
            let medium = SimMedium::new(8);
            let usual = |bytes| StoreOptions {
                page_bytes: Some(4096),
                segment_bytes: None,
                ..options_within(bytes)
            };
            let little = match KIND.get() {
                StorageKind::Log => 1 << 20,
                // Its index is the smaller part of what it needs.
                _ => 512 << 10,
            };
            let store = Store::open_on(Arc::new(medium.clone()), usual(little)).unwrap();
            let error = store.table(&asked).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
            assert!(store.tables().is_empty());
            store.close().unwrap();
            let named: u64 = error.message().rsplit('=').next().unwrap().parse().unwrap();
            let store = Store::open_on(Arc::new(medium.clone()), usual(named)).unwrap();
            let table = store.table(&asked).unwrap();
            for first in (0..200_000).step_by(10_000) {
                let keys: Vec<u64> = (first..first + 10_000).collect();
                let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
                store.put(&[put_of(table, &keys, &values)]).unwrap();
            }
            expect_rows(&store, table, 200_000);
            // The budget named for a log has no room for its facts about segments.
            if KIND.get() == StorageKind::Lsm {
                store.commit(1, "", &[]).unwrap();
                store.close().unwrap();
                let store = Store::open_on(Arc::new(medium), usual(named)).unwrap();
                expect_rows(&store, table, 200_000);
            }
        }
    });
}

/// A device on which requests cost the same up to `page_bytes`, and twice as much beyond.
fn curve(page_bytes: usize, depth: usize) -> DeviceCurve {
    let point = |bytes| {
        let requests_per_s = if bytes <= page_bytes { 1000.0 } else { 500.0 };
        CurvePoint { bytes, requests_per_s }
    };
    let points = [512, 1024, 2048, 4096, 8192, 16_384].map(point).to_vec();
    DeviceCurve { depth, points }
}

/// A store that chooses its pages: tables of classes of their own are made and used, nothing is
/// committed.
fn use_tables(medium: &SimMedium, specs: &[TableSpec], memory: Memory) -> Result<()> {
    let options =
        StoreOptions { page_bytes: None, segment_bytes: None, memory, ..options(1 << 20) };
    let store = Store::open_on(Arc::new(medium.clone()), options)?;
    for spec in specs {
        let table = store.table(spec)?;
        store.put(&[put_of(table, &[7], &[7.0; DIM])])?;
    }
    store.close().map(drop)
}

fn named_bytes(error: &crate::Error) -> u64 {
    assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
    error.message().rsplit("memory=").next().unwrap().parse().unwrap()
}

// The device is measured anew until a commit has the class. A refusal named what page and depth of
// that moment needed, and the next measurement chose others, which needed more. An empty index was
// not counted before it was made.
#[test]
fn the_memory_that_a_refusal_names_works_whatever_the_device_is_measured_to_do_next() {
    each_kind(|| {
        let devices: Vec<DeviceCurve> = [512, 4096, 16_384]
            .into_iter()
            .flat_map(|page| [16, 64, 128].map(|depth| curve(page, depth)))
            .collect();
        let all = [
            [Some(20_000), Some(20_000)],
            [Some(1_000_000), Some(1_000_000)],
            [Some(1_000_000), None],
            [None, Some(20_000)],
        ];
        let medium = SimMedium::new(8);
        for (dense, first) in all.iter().flat_map(|d| devices.iter().map(move |f| (d, f))) {
            let kinds = [OptimizerKind::Sgd, OptimizerKind::Adam];
            let specs: Vec<TableSpec> = (0..2)
                .map(|i| TableSpec {
                    expected_rows: dense[i].is_none().then_some(30_000),
                    ..spec(["a", "b"][i], dense[i], kinds[i])
                })
                .collect();
            let mut memory = Memory::Bytes(1);
            for count in [1, 2] {
                medium.set_curve(Some(first.clone()));
                let Err(error) = use_tables(&medium, &specs[..count], memory) else { continue };
                memory = Memory::Bytes(named_bytes(&error));
                for other in &devices {
                    medium.set_curve(Some(other.clone()));
                    let again = use_tables(&medium, &specs[..count], memory);
                    assert!(
                        again.is_ok(),
                        "{dense:?}: named at {first:?}, at {other:?}: {again:?}"
                    );
                }
            }
        }
    });
}

// Pages and depths of a better device took more memory than there was.
#[test]
fn a_budget_that_worked_works_whatever_the_device_is_measured_to_do_next() {
    each_kind(|| {
        let medium = SimMedium::new(9);
        for rows in [Some(20_000), Some(5_000_000), None] {
            let specs = [TableSpec { expected_rows: None, ..spec("a", rows, OptimizerKind::Sgd) }];
            let mut bytes = rows.unwrap_or(0) * 4;
            medium.set_curve(Some(curve(512, 16)));
            while use_tables(&medium, &specs, Memory::Bytes(bytes)).is_err() {
                bytes += 4096;
            }
            for (page, depth) in [(512, 128), (16_384, 16), (16_384, 128)] {
                medium.set_curve(Some(curve(page, depth)));
                let again = use_tables(&medium, &specs, Memory::Bytes(bytes));
                assert!(again.is_ok(), "{rows:?} rows, {bytes} bytes, {page}, {depth}: {again:?}");
            }
        }
    });
}
