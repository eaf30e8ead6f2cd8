//! Bounds of disk and memory, and errors of the device.

use super::*;
use crate::io::DeviceCurve;
use crate::io::measure::CurvePoint;
use crate::storage::log::TableIndex;

fn batch<'a>(table: TableId, keys: &'a [u64], values: &'a [f32]) -> PutBatch<'a> {
    let non_finite = NonFinite::Refuse;
    PutBatch { table, keys, values, state: None, reset_state: false, non_finite }
}

/// Puts blocks of rows until the store says that it is full; returns the next key.
fn fill(store: &Store, table: TableId, mut next: u64) -> (u64, crate::Error) {
    loop {
        let keys: Vec<u64> = (next..next + 100).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        match store.put(&[batch(table, &keys, &values)]) {
            Ok(_) => next += 100,
            Err(error) => return (next, error),
        }
        assert!(next < 1_000_000, "the store never got full");
    }
}

fn expect_rows(store: &Store, table: TableId, end: u64) {
    let keys: Vec<u64> = (0..end).collect();
    let mut values = vec![0.0; keys.len() * DIM];
    let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
    store.get(&mut [get]).unwrap();
    for key in keys {
        assert_eq!(values[key as usize * DIM], key as f32, "key {key}");
    }
    assert_eq!(store.len(table).unwrap(), end);
}

#[test]
fn a_full_disk_refuses_whole_batches_and_lets_reads_and_commits_go_on() {
    for bounded in [false, true] {
        let medium = SimMedium::new(3);
        let mut options = options(1 << 20);
        if bounded {
            options.max_disk_bytes = Some(3 << 20);
        } else {
            medium.set_capacity(Some(3 << 20));
        }
        let store = Store::open_on(Arc::new(medium.clone()), options.clone()).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        let (end, error) = fill(&store, table, 0);
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(end > 1000, "only {end} rows fit");
        expect_rows(&store, table, end);
        store.commit(1, "", &[("s", b"state")]).unwrap();
        expect_rows(&store, table, end);
        store.close().unwrap();
        medium.set_capacity(None);
        options.max_disk_bytes = None;
        let store = Store::open_on(Arc::new(medium), options).unwrap();
        expect_rows(&store, table, end);
        let keys: Vec<u64> = (end..end + 100).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        store.put(&[batch(table, &keys, &values)]).unwrap();
        expect_rows(&store, table, end + 100);
    }
}

// The journal had room for what the class changed last said of its rows, not for that of others.
#[test]
fn a_store_of_several_classes_that_is_full_can_commit_what_it_took() {
    for bounded in [false, true] {
        let medium = SimMedium::new(4);
        let mut options = options(16 << 20);
        if bounded {
            options.max_disk_bytes = Some(8 << 20);
        } else {
            medium.set_capacity(Some(8 << 20));
        }
        let store = Store::open_on(Arc::new(medium), options).unwrap();
        let kinds = [OptimizerKind::Sgd, OptimizerKind::Adagrad, OptimizerKind::Adam];
        let tables = kinds.map(|kind| {
            let spec = TableSpec { expected_rows: Some(30_000), ..spec("", None, kind) };
            store.table(&TableSpec { name: format!("{kind:?}"), ..spec }).unwrap()
        });
        let mut ends = [0; 3];
        let refused = (0..3).cycle().find_map(|i| {
            let keys: Vec<u64> = (ends[i]..ends[i] + 100).collect();
            let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
            let put = store.put(&[batch(tables[i], &keys, &values)]);
            ends[i] += 100;
            put.err().map(|error| (i, error))
        });
        let (last, error) = refused.unwrap();
        ends[last] -= 100;
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(ends[2] > 5_000, "only {ends:?} rows fit");
        store.commit(1, "", &[]).unwrap();
        let used = store.stats().unwrap().disk_bytes;
        assert!(used <= 8 << 20, "{used} bytes are used");
        for (table, end) in tables.into_iter().zip(ends) {
            expect_rows(&store, table, end);
        }
    }
}

// Pieces of the index took the room of the record that was to follow them; names of states had
// none.
#[test]
fn a_commit_with_a_long_record_is_made_or_refused_before_anything_is_written() {
    long_record(&"\u{1}".repeat(256 << 10), 0);
    long_record("", 4000);
}

fn long_record(meta: &str, states: usize) {
    const ROWS: u64 = 100_000;
    const STEP: u64 = 256 << 10;
    let names: Vec<String> = (0..states).map(|i| format!("{i:\u{1}>100}")).collect();
    let state: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &[][..])).collect();
    let keys: Vec<u64> = (0..ROWS).map(|i| i * 7919 % ROWS).collect();
    let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
    let mut refused = 0;
    let made = (0..100).find(|more| {
        let medium = SimMedium::new(6);
        let store = Store::open_on(Arc::new(medium.clone()), options(64 << 20)).unwrap();
        let table = store.table(&spec("t", Some(ROWS), OptimizerKind::Sgd)).unwrap();
        store.put(&[batch(table, &keys, &values)]).unwrap();
        store.commit(0, "", &[]).unwrap();
        store.put(&[batch(table, &keys[..100], &values[..100 * DIM])]).unwrap();
        // A journal that had no room makes the next commit write all of the index.
        let used = store.stats().unwrap().disk_bytes;
        medium.set_capacity(Some(used));
        store.put(&[batch(table, &keys, &values)]).unwrap_err();
        medium.set_capacity(Some(used + more * STEP));
        let commit = store.commit(1, meta, &state);
        if let Err(error) = &commit {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            // Neither this nor what follows says that the store must be opened again.
            medium.set_capacity(None);
            refused += 1;
            store.commit(1, meta, &state).unwrap();
        }
        store.close().unwrap();
        let store = Store::open_on(Arc::new(medium), options(64 << 20)).unwrap();
        assert_eq!(store.commits().last().unwrap().meta, meta);
        expect_rows(&store, table, keys.len() as u64);
        commit.is_ok()
    });
    assert!(made.is_some() && refused > 2, "made with {made:?}, refused {refused} times");
}

/// Writes rows, with a commit where the store is full; panics when three do not help.
fn put_with_commits(store: &Store, table: TableId, keys: &[u64], step: &mut u64, state: &[u8]) {
    let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
    for attempt in 0.. {
        match store.put(&[batch(table, keys, &values)]) {
            Ok(_) => return,
            Err(error) if attempt < 3 => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
            Err(error) => panic!("after {attempt} commits: {error}"),
        }
        *step += 1;
        let named = [("s", state)];
        store.commit(*step, "", if state.is_empty() { &[] } else { &named }).unwrap();
    }
}

// Records of commits filled the journal, and only deltas counted towards the next.
#[test]
fn a_full_store_takes_a_row_and_a_commit_for_ever() {
    let most = 4 << 20;
    let options = StoreOptions { max_disk_bytes: Some(most), ..options(1 << 20) };
    let store = Store::open_on(Arc::new(SimMedium::new(12)), options).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
    let (all, _) = fill(&store, table, 0);
    let (mut step, meta, end) = (0, "m".repeat(8000), all / 2);
    // The file of rows stays as large as it is.
    for first in (end..all).step_by(100) {
        let keys: Vec<u64> = (first..all.min(first + 100)).collect();
        while store.delete(table, &keys).is_err() {
            step += 1;
            store.commit(step, "", &[]).unwrap();
            assert!(step < 1000, "no room for deletes");
        }
    }
    for i in 0..2000 {
        put_with_commits(&store, table, &[i * 7 % end], &mut step, &[]);
        step += 1;
        store.commit(step, &meta, &[]).unwrap();
        let used = store.stats().unwrap().disk_bytes;
        assert!(used <= most, "{used} of {most} bytes after {i}");
    }
    expect_rows(&store, table, end);
}

// One state's room was kept, where two commits are kept and a third comes before the first goes.
#[test]
fn states_of_commits_find_their_room_within_a_disk_bound() {
    let most = 12 << 20;
    let state = vec![7; 900 << 10];
    let options = StoreOptions { max_disk_bytes: Some(most), ..options(1 << 20) };
    let store = Store::open_on(Arc::new(SimMedium::new(13)), options).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
    let put = |keys: &[u64]| {
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        store.put(&[batch(table, keys, &values)]).map(drop)
    };
    put(&[0]).unwrap();
    store.commit(1, "", &[("s", &state)]).unwrap();
    let (end, _) = fill(&store, table, 0);
    let mut random = Random(4);
    let mut step = 1;
    for _ in 0..60 {
        let keys: Vec<u64> = (0..1000).map(|_| random.below(end)).collect();
        put_with_commits(&store, table, &keys, &mut step, &state);
        step += 1;
        store.commit(step, "", &[("s", &state)]).unwrap();
        let used = store.stats().unwrap().disk_bytes;
        assert!(used <= most, "{used} of {most} bytes at step {step}");
    }
    let error = store.commit(step + 1, "", &[("s", &vec![0; 4 << 20])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    store.commit(step + 1, "", &[("s", &state)]).unwrap();
    expect_rows(&store, table, end);
}

/// On a device without room for more, rows that are taken beside a commit can be committed.
#[test]
fn what_a_full_device_takes_beside_a_commit_has_room_for_the_next() {
    let mut taken = 0;
    for rows in (500..8_000).step_by(500) {
        let medium = SimMedium::new(14);
        let store = Store::open_on(Arc::new(medium.clone()), options(64 << 20)).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..rows).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        store.put(&[batch(table, &keys, &values)]).unwrap();
        let meta = "m".repeat(2000);
        let work = store.inner.capture(1, &meta, &[]).unwrap();
        medium.set_capacity(Some(store.stats().unwrap().disk_bytes));
        // Few enough that none of them waits for the record.
        let refused = (rows..rows + 500).find_map(|key| {
            let values = [key as f32; DIM];
            let put = store.put(&[batch(table, &[key], &values)]);
            put.err().map(|error| (key, error))
        });
        let end = refused.map_or(rows + 500, |(key, error)| {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            key
        });
        taken += end - rows;
        store.inner.complete(work).unwrap();
        store.commit(2, &meta, &[]).unwrap();
        expect_rows(&store, table, end);
    }
    assert!(taken > 100, "{taken} rows were taken beside commits");
}

// Deltas that wait for the journal had no room in it, and deletes make nothing else.
#[test]
fn a_full_device_takes_the_deletes_of_many_classes_or_refuses_them_before() {
    const ROWS: u64 = 1_000;
    let medium = SimMedium::new(5);
    // Large enough segments that deltas wait.
    let (page_bytes, segment_bytes) = (Some(4096), Some(1 << 20));
    let options = StoreOptions { page_bytes, segment_bytes, ..options(256 << 20) };
    let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
    let tables: Vec<TableId> = (0..24)
        .map(|i| {
            let dim = DIM + i;
            let spec = spec(&format!("t{i}"), None, OptimizerKind::Sgd);
            let spec = TableSpec { embedding_dim: dim, expected_rows: Some(ROWS), ..spec };
            store.table(&spec).unwrap()
        })
        .collect();
    let keys: Vec<u64> = (0..ROWS).collect();
    for (i, table) in tables.iter().enumerate() {
        let values = vec![1.0; keys.len() * (DIM + i)];
        store.put(&[batch(*table, &keys, &values)]).unwrap();
    }
    store.commit(1, "", &[]).unwrap();
    medium.set_capacity(Some(0));
    let mut deleted = 0;
    for table in &tables {
        match store.delete(*table, &keys) {
            Ok(_) => deleted += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                break;
            }
        }
    }
    assert!((1..tables.len()).contains(&deleted), "{deleted} tables");
    store.commit(2, "", &[]).unwrap();
    for (i, table) in tables.iter().enumerate() {
        let left = if i < deleted { 0 } else { ROWS };
        assert_eq!(store.len(*table).unwrap(), left, "table {i}");
    }
}

#[test]
fn tables_of_one_call_must_fit_the_disk_together_or_none_is_changed() {
    const N: u64 = 60_000;
    let options = StoreOptions { max_disk_bytes: Some(6 << 20), ..options(2 << 20) };
    let store = Store::open_on(Arc::new(SimMedium::new(3)), options).unwrap();
    let spec = |name, kind| TableSpec { expected_rows: Some(N), ..spec(name, None, kind) };
    let [one, two] = ["one", "two"].map(|n| store.table(&spec(n, OptimizerKind::Sgd)).unwrap());
    let other = store.table(&spec("other", OptimizerKind::Adagrad)).unwrap();
    let keys: Vec<u64> = (0..N).collect();
    let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
    let few = |table| batch(table, &keys[..100], &values[..100 * DIM]);
    let all = |table| batch(table, &keys, &values);
    // Two tables of one class; two classes, of which the first is refused, or has its room when the
    // second asks.
    let together = vec![all(one), all(two)];
    let first = vec![all(one), all(two), few(other)];
    for tables in [together, first, vec![few(one), all(other), all(two)]] {
        let error = store.put(&tables).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        for class in &store.inner.planned_engine().unwrap().classes {
            assert_eq!(class.promised.load(Ordering::Relaxed), 0);
        }
        for table in [one, two, other] {
            assert_eq!(store.len(table).unwrap(), 0);
        }
    }
    // One alone fits.
    store.put(&[all(one), few(two), few(other)]).unwrap();
    expect_rows(&store, one, N);
    for table in [two, other] {
        expect_rows(&store, table, 100);
    }
}

#[test]
fn rewriting_rows_within_a_disk_bound_goes_on_for_ever_with_commits() {
    let medium = SimMedium::new(4);
    let options = StoreOptions { max_disk_bytes: Some(6 << 20), ..options(400 << 10) };
    let store = Store::open_on(Arc::new(medium), options).unwrap();
    let table = store.table(&spec("t", Some(20_000), OptimizerKind::Adagrad)).unwrap();
    let mut random = Random(8);
    let mut expected = vec![None; 20_000];
    for step in 0..400u64 {
        let keys: Vec<u64> = (0..500).map(|_| random.below(20_000)).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32 + step as f32; DIM]).collect();
        store.put(&[batch(table, &keys, &values)]).unwrap_or_else(|e| panic!("step {step}: {e}"));
        keys.iter().for_each(|k| expected[*k as usize] = Some(*k as f32 + step as f32));
        store.commit(step, "", &[]).unwrap();
        assert!(store.stats().unwrap().disk_bytes <= 6 << 20);
    }
    let stats = store.stats().unwrap();
    assert!(stats.rows_moved > 0, "nothing was cleaned");
    let keys: Vec<u64> = (0..20_000).filter(|k| expected[*k as usize].is_some()).collect();
    let mut values = vec![0.0; keys.len() * DIM];
    let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
    store.get(&mut [get]).unwrap();
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(Some(values[i * DIM]), expected[*key as usize], "key {key}");
    }
}

#[test]
fn a_store_at_seven_tenths_of_its_disk_goes_on_with_a_commit_after_each_full() {
    let rows = 40_000u64;
    let bound = rows * 4 * (DIM as u64 + 1) * 10 / 7 + (15 << 17);
    let options = StoreOptions { max_disk_bytes: Some(bound), ..options(1 << 20) };
    let store = Store::open_on(Arc::new(SimMedium::new(5)), options).unwrap();
    let table = store.table(&spec("t", Some(rows), OptimizerKind::RowWiseAdagrad)).unwrap();
    let mut expected = vec![0.0; rows as usize];
    let mut step = 0;
    let mut write = |keys: &[u64], value: f32| {
        let values = vec![value; keys.len() * DIM];
        for attempt in 0.. {
            match store.put(&[batch(table, keys, &values)]) {
                Ok(_) => break,
                Err(error) if attempt < 3 => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
                Err(error) => panic!("after {attempt} commits: {error}"),
            }
            step += 1;
            store.commit(step, "", &[]).unwrap();
        }
        keys.iter().for_each(|k| expected[*k as usize] = value);
    };
    for first in (0..rows).step_by(500) {
        write(&(first..first + 500).collect::<Vec<_>>(), 1.0);
    }
    let mut random = Random(9);
    for i in 0..600 {
        // Squares prefer low numbers: some rows are hot.
        let draw = |random: &mut Random| random.below(200) * random.below(200);
        write(&(0..300).map(|_| draw(&mut random)).collect::<Vec<_>>(), 2.0 + i as f32);
    }
    let stats = store.stats().unwrap();
    assert!(stats.disk_bytes <= bound && stats.rows_moved > 0);
    let keys: Vec<u64> = (0..rows).collect();
    let mut values = vec![0.0; keys.len() * DIM];
    let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
    store.get(&mut [get]).unwrap();
    for (key, row) in values.chunks_exact(DIM).enumerate() {
        assert!(row.iter().all(|v| *v == expected[key]), "key {key}");
    }
}

#[test]
fn a_growing_index_takes_from_the_cache_and_then_names_the_budget_that_works() {
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
    let store = Store::open_on(Arc::new(medium), options(named)).unwrap();
    expect_rows(&store, table, end);
    let keys: Vec<u64> = (end..end + 100).collect();
    let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
    store.put(&[batch(table, &keys, &values)]).unwrap();
}

#[test]
fn the_first_segment_has_a_page_less_and_growth_counts_it() {
    // Growing asserted when a first batch needed exactly whole segments.
    for rows in (1..1200).step_by(7) {
        let medium = SimMedium::new(2);
        let store = Store::open_on(Arc::new(medium), options(1 << 20)).unwrap();
        let table = store.table(&spec("t", Some(2000), OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..rows).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        store.put(&[batch(table, &keys, &values)]).unwrap();
        store.commit(1, "", &[]).unwrap();
    }
}

/// Trains until an injected error; the store must refuse to go on, and reopen at a commit.
fn device_error(fixture: &Fixture, inject: &dyn Fn(&SimMedium)) -> Option<ErrorKind> {
    let medium = SimMedium::new(12);
    let mut random = Random(12);
    let mut model = Model::default();
    let mut points = BTreeMap::from([(0, model.clone())]);
    let store = fixture.open(&medium, options(tight()));
    inject(&medium);
    let mut failed = None;
    for step in 1..=8u64 {
        let mut next = model.clone();
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..4 {
                let table = random.below(fixture.specs.len() as u64) as usize;
                let keys = fixture.pick(&mut random, table, 150);
                fixture.update(&store, &mut next, &mut random, table, &keys);
            }
        }));
        // A failed update panics in the fixture; the verbs tell how the store sees it.
        let committed = store.commit(step, "", &[]);
        if run.is_err() || committed.is_err() {
            let error = store.commit(step, "", &[]).err().or(committed.err()).unwrap();
            failed = Some(error.kind());
            if error.kind() == ErrorKind::Poisoned {
                let refused = store.update(&[]).err().map(|e| e.kind());
                assert_eq!(refused, Some(ErrorKind::Poisoned));
            }
            points.insert(step, next);
            break;
        }
        model = next;
        points.insert(step, model.clone());
    }
    drop(store);
    let survivor = medium.reboot(1);
    let store = Store::open_on(Arc::new(survivor), options(tight())).unwrap();
    let step = store.last_commit().map_or(0, |c| c.step);
    assert!(step + 1 >= points.len() as u64 - 1, "step {step} of {}", points.len() - 1);
    if step > 0 && failed != Some(ErrorKind::Io) {
        fixture.check_all(&store, &points[&step]);
    }
    failed
}

#[test]
fn an_error_of_the_device_poisons_writes_and_loses_no_commit() {
    let fixture = Fixture::new();
    let mut kinds = Vec::new();
    for n in (1..120).step_by(7) {
        kinds.extend(device_error(&fixture, &|m| m.fail_write(n)));
        kinds.extend(device_error(&fixture, &|m| m.fail_sync(n)));
    }
    let poisoned = kinds.iter().filter(|k| **k == ErrorKind::Poisoned).count();
    assert!(poisoned > 10, "{kinds:?}");
}

#[test]
fn a_table_whose_index_the_budget_cannot_hold_is_refused_when_it_is_made() {
    let growing = TableSpec { expected_rows: Some(200_000), ..spec("t", None, OptimizerKind::Sgd) };
    for asked in [spec("t", Some(400_000), OptimizerKind::Sgd), growing] {
        let medium = SimMedium::new(8);
        let usual =
            |bytes| StoreOptions { page_bytes: Some(4096), segment_bytes: None, ..options(bytes) };
        let store = Store::open_on(Arc::new(medium.clone()), usual(1 << 20)).unwrap();
        let error = store.table(&asked).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
        assert!(store.tables().is_empty());
        store.close().unwrap();
        let named: u64 = error.message().rsplit('=').next().unwrap().parse().unwrap();
        let store = Store::open_on(Arc::new(medium), usual(named)).unwrap();
        let table = store.table(&asked).unwrap();
        for first in (0..200_000).step_by(10_000) {
            let keys: Vec<u64> = (first..first + 10_000).collect();
            let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
            store.put(&[batch(table, &keys, &values)]).unwrap();
        }
        expect_rows(&store, table, 200_000);
    }
}

/// Updates 40,000 rows of 128 bytes at random under a disk bound, with a commit every so often, and
/// after a `Full`. Returns how many updates had to wait for commits.
fn long_run(times_live: f64, steps_per_commit: u64) -> u64 {
    const ROWS: u64 = 40_000;
    const WIDE: usize = 16;
    let most = (times_live * (ROWS * 128) as f64) as u64;
    let medium = SimMedium::new(11);
    let options = StoreOptions {
        page_bytes: Some(4096),
        segment_bytes: None,
        max_disk_bytes: Some(most),
        ..options(2 << 20)
    };
    let store = Store::open_on(Arc::new(medium), options).unwrap();
    let wide = TableSpec { embedding_dim: WIDE, ..spec("t", None, OptimizerKind::Adagrad) };
    let table = store.table(&wide).unwrap();
    let mut random = Random(5);
    let mut waited = 0;
    for step in 1..=400u64 {
        let keys: Vec<u64> = (0..2000).map(|_| random.below(ROWS)).collect();
        let gradients = vec![0.5; keys.len() * WIDE];
        let batch = UpdateBatch {
            table,
            keys: &keys,
            gradients: &gradients,
            hyper: HYPER,
            non_finite: NonFinite::Refuse,
            step: None,
        };
        let mut result = store.update(&[batch]);
        for _ in 0..4 {
            let Err(error) = &result else { break };
            assert_eq!(error.kind(), ErrorKind::Full, "step {step}: {error}");
            waited += 1;
            store.commit(step, "", &[]).unwrap();
            result = store.update(&[batch]);
        }
        result.unwrap_or_else(|error| panic!("step {step} of {times_live}: {error}"));
        if step % steps_per_commit == 0 {
            store.commit(step, "", &[("weights", &[1; 500])]).unwrap();
        }
        let stats = store.stats().unwrap();
        assert!(stats.disk_bytes <= most, "step {step}: {} of {most}", stats.disk_bytes);
        assert!(stats.memory.total() <= stats.budget_bytes, "step {step}: {:?}", stats.memory);
    }
    waited
}

#[test]
fn a_long_run_within_a_disk_bound_keeps_it_and_goes_on() {
    for (times_live, steps_per_commit) in [(4.0, 1), (3.0, 5), (4.0, 5), (4.0, 20), (5.0, 1000)] {
        let waited = long_run(times_live, steps_per_commit);
        assert!(waited < 100, "{times_live} x, commit every {steps_per_commit}: {waited} waits");
    }
}

#[test]
fn deletes_at_a_full_budget_delete_and_leave_the_others() {
    for seed in 1..6 {
        let medium = SimMedium::new(seed);
        let store = Store::open_on(Arc::new(medium.clone()), options(700 << 10)).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Adagrad)).unwrap();
        let put = |keys: &[u64], add: f32| {
            let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32 + add; DIM]).collect();
            store.put(&[batch(table, keys, &values)]).unwrap();
        };
        let all: Vec<u64> = (0..12_000).collect();
        all.chunks(500).for_each(|keys| put(keys, 0.0));
        store.commit(1, "", &[]).unwrap();
        let mut random = Random(seed);
        let again: Vec<u64> = (0..6000).map(|_| random.below(12_000)).collect();
        put(&again, 0.5);
        let doomed: Vec<u64> = (0..12_000).filter(|key| key % 2 == seed % 2).collect();
        assert_eq!(store.delete(table, &doomed).unwrap(), 6000);
        let mut there = vec![false; all.len()];
        store.contains(table, &all, &mut there).unwrap();
        assert!(all.iter().zip(&there).all(|(key, there)| *there == (key % 2 != seed % 2)));
        assert_eq!(store.len(table).unwrap(), 6000);
        store.commit(2, "", &[]).unwrap();
        store.close().unwrap();
        let store = Store::open_on(Arc::new(medium), options(700 << 10)).unwrap();
        store.contains(table, &all, &mut there).unwrap();
        assert!(all.iter().zip(&there).all(|(key, there)| *there == (key % 2 != seed % 2)));
    }
}

/// While one class grows, another one may take what that leaves, and no more.
#[test]
fn classes_that_grow_at_once_keep_the_disk_bound() {
    let most = 16 << 20;
    let bound = StoreOptions { max_disk_bytes: Some(most), ..options(4 << 20) };
    let store = Store::open_on(Arc::new(SimMedium::new(1)), bound).unwrap();
    store.table(&spec("a", Some(1 << 16), OptimizerKind::None)).unwrap();
    store.table(&spec("b", Some(1 << 16), OptimizerKind::Adagrad)).unwrap();
    store.stats().unwrap();
    let (inner, engine) = (&store.inner, store.inner.engine.read());
    let [mut a, mut b] = [0, 1].map(|class| engine.classes[class].log.lock());
    let rows = (1..).find(|rows| a.growth_for(*rows, 0) > most / 2).unwrap();
    let beside = inner.charge_growth(&mut a, rows, 0, |a, grow| {
        let beside = inner.charge_growth(&mut b, rows, 0, |b, grow| b.reserve(rows, 0, grow));
        a.reserve(rows, 0, grow)?;
        Ok(beside)
    });
    assert_eq!(beside.unwrap().unwrap_err().kind(), ErrorKind::Full);
    let files = a.disk_bytes() + b.disk_bytes();
    assert_eq!(inner.rows_disk_bytes.load(Ordering::Relaxed), files);
    // What does not fit keeps nobody from taking what does.
    let little = (1..).find(|rows| b.growth_for(*rows, 0) > 0).unwrap();
    let beside = inner.charge_growth(&mut a, 2 * rows, 0, |a, grow| {
        let beside = inner.charge_growth(&mut b, little, 0, |b, grow| b.reserve(little, 0, grow));
        assert_eq!(a.reserve(2 * rows, 0, grow).unwrap_err().kind(), ErrorKind::Full);
        Ok(beside)
    });
    beside.unwrap().unwrap();
    let files = a.disk_bytes() + b.disk_bytes();
    assert_eq!(inner.rows_disk_bytes.load(Ordering::Relaxed), files);
    drop((a, b));
    assert!(inner.disk_bytes() <= most, "{} of {most}", inner.disk_bytes());
}

/// A store under a bound with two classes, of which the first was refused at so many rows and has
/// lost a fifth of them since; and the commits so far.
fn with_a_class_that_was_refused() -> (Store, [TableId; 2], u64, u64) {
    let bound = StoreOptions { max_disk_bytes: Some(6 << 20), ..options(8 << 20) };
    let store = Store::open_on(Arc::new(SimMedium::new(21)), bound).unwrap();
    let expecting =
        |name, kind| TableSpec { expected_rows: Some(60_000), ..spec(name, None, kind) };
    let one = store.table(&expecting("one", OptimizerKind::Sgd)).unwrap();
    let other = store.table(&expecting("other", OptimizerKind::Adagrad)).unwrap();
    let (end, _) = fill(&store, one, 0);
    let mut step = 0;
    // What goes lies together, and is less than a class keeps that nobody asks.
    let left = end * 4 / 5;
    for first in (left..end).step_by(100) {
        let keys: Vec<u64> = (first..end.min(first + 100)).collect();
        while store.delete(one, &keys).is_err() {
            step += 1;
            store.commit(step, "", &[]).unwrap();
            assert!(step < 1000, "no room for deletes");
        }
    }
    for _ in 0..4 {
        step += 1;
        store.commit(step, "", &[]).unwrap();
    }
    (store, [one, other], end, step)
}

/// Puts rows of a table. Where they are refused others go on, and a commit is made. Returns how
/// often that was.
fn insist(
    store: &Store,
    table: TableId,
    rows: u64,
    mut step: u64,
    mut meanwhile: impl FnMut(u64),
) -> u64 {
    let mut refused = 0;
    for first in (0..rows).step_by(50) {
        let keys: Vec<u64> = (first..rows.min(first + 50)).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        let mut commits = 0;
        while let Err(error) = store.put(&[batch(table, &keys, &values)]) {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            assert!(commits < 4, "at row {first} of {rows}: {error}: {:#?}", store.stats());
            meanwhile(refused);
            (refused, step, commits) = (refused + 1, step + 1, commits + 1);
            store.commit(step, "", &[]).unwrap();
        }
    }
    expect_rows(store, table, rows);
    refused
}

// Each batch that was taken cleared what others were refused, so that nobody made room for them.
#[test]
fn a_class_that_was_refused_gets_room_although_another_goes_on() {
    let (store, [one, other], end, step) = with_a_class_that_was_refused();
    let mut served = 0;
    let refused = insist(&store, other, end / 20, step, |refused| {
        let key = refused % (end * 4 / 5);
        served += u64::from(store.put(&[batch(one, &[key], &[key as f32; DIM])]).is_ok());
    });
    assert!(refused > 1 && served > 1, "{refused} refused, {served} served");
}

// A class that had been refused gave nothing back, what it did not need for that neither, until
// its refusal was forgotten.
#[test]
fn a_class_that_was_refused_gives_room_to_another() {
    let (store, [_, other], end, step) = with_a_class_that_was_refused();
    let refused = insist(&store, other, end / 20, step, |_| {});
    assert!(refused > 1, "{refused} refused");
}

// Rows that had found their room were refused because nobody could say how much is free.
#[test]
fn a_look_at_the_device_that_fails_refuses_nothing() {
    let medium = SimMedium::new(24);
    let store = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
    for (step, first) in (0..3000).step_by(1000).enumerate() {
        let keys: Vec<u64> = (first..first + 1000).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        medium.fail_look(0);
        store.put(&[batch(table, &keys, &values)]).unwrap();
        medium.fail_look(0);
        store.commit(step as u64, "", &[]).unwrap();
    }
    expect_rows(&store, table, 3000);
}

// The room that was made for a journal file did not count what its catalog takes.
#[test]
fn a_journal_file_with_a_long_catalog_begins_on_a_full_device() {
    let begun = |full: bool| {
        let medium = SimMedium::new(23);
        let store = Store::open_on(Arc::new(medium.clone()), options(64 << 20)).unwrap();
        for i in 0..220 {
            let name = format!("{i:\u{1}>200}");
            store.table(&spec(&name, Some(1), OptimizerKind::Sgd)).unwrap();
        }
        (1..=40).find(|step| {
            store.put(&[batch(TableId(0), &[0], &[0.0; DIM])]).unwrap();
            // All that is left is what was kept free.
            medium.set_capacity(full.then(|| medium.taken_bytes()));
            store.commit(*step, &"m".repeat(100 << 10), &[]).unwrap();
            let found = medium.list("journal-00000002").unwrap().len() == 1;
            medium.set_capacity(None);
            found
        })
    };
    let (full, roomy) = (begun(true), begun(false));
    assert!(roomy.is_some() && full == roomy, "begun by commit {full:?}, with room {roomy:?}");
}

/// While an index is being written its partitions are not merged. What deletes owe then comes with
/// later ones, as much at a time as these have room for in the journal.
#[test]
fn a_delete_makes_no_more_merges_than_it_has_keys() {
    let medium = SimMedium::new(9);
    let store = Store::open_on(Arc::new(medium.clone()), options(2 << 20)).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::None)).unwrap();
    let all: Vec<u64> = (0..12_000).collect();
    for keys in all.chunks(500) {
        let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
        store.put(&[batch(table, keys, &values)]).unwrap();
    }
    store.commit(1, "", &[]).unwrap();
    let partitions = || {
        let engine = store.inner.engine.read();
        match engine.classes[0].log.lock().index(table.0) {
            TableIndex::Sparse(index, _) => index.partitions(),
            TableIndex::Dense(_) => unreachable!("the table grows"),
        }
    };
    let before = partitions();
    store.inner.history.lock().cursor = Some((0, 0));
    assert_eq!(store.delete(table, &all[..10_000]).unwrap(), 10_000);
    assert_eq!(partitions(), before);
    store.inner.history.lock().cursor = None;
    store.delete(table, &all[10_000..10_005]).unwrap();
    assert_eq!(partitions(), before - 5);
    store.delete(table, &all[10_005..11_000]).unwrap();
    assert!(partitions() < before / 2, "{} of {before}", partitions());
    store.commit(2, "", &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(Arc::new(medium), options(2 << 20)).unwrap();
    let mut there = vec![false; all.len()];
    store.contains(table, &all, &mut there).unwrap();
    assert!(there.iter().enumerate().all(|(key, there)| *there == (key >= 11_000)));
}

#[test]
fn a_refused_table_leaves_the_others_as_they_were() {
    let store = Store::open_on(Arc::new(SimMedium::new(4)), options(2 << 20)).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
    let keys: Vec<u64> = (0..1000).collect();
    let values = vec![1.5; keys.len() * DIM];
    store.put(&[batch(table, &keys, &values)]).unwrap();
    for rows in [1 << 33, 10_000_000] {
        let wide = TableSpec { embedding_dim: 64, ..spec("big", Some(rows), OptimizerKind::Sgd) };
        store.table(&wide).unwrap_err();
        store.put(&[batch(table, &keys, &values)]).unwrap();
        store.stats().unwrap();
        store.commit(1, "", &[]).unwrap();
    }
    assert_eq!(store.tables().len(), 1);
}

#[test]
fn a_panic_within_a_change_poisons_the_store() {
    let store = Store::open_on(Arc::new(SimMedium::new(4)), options(2 << 20)).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
    let inner = store.inner.clone();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = inner.poison_on_panic();
        panic!("as a broken invariant would");
    }));
    assert!(panicked.is_err());
    let error = store.put(&[batch(table, &[1], &[1.0; DIM])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    assert_eq!(store.commit(1, "", &[]).unwrap_err().kind(), ErrorKind::Poisoned);
}

#[test]
fn a_scan_gives_every_row_once_while_other_tables_are_written() {
    let store = Store::open_on(Arc::new(SimMedium::new(2)), options(700 << 10)).unwrap();
    let [scanned, other] =
        ["a", "b"].map(|name| store.table(&spec(name, None, OptimizerKind::Sgd)).unwrap());
    let rows_of = |keys: &[u64], add: f32| -> Vec<f32> {
        keys.iter().flat_map(|k| [*k as f32 + add; DIM]).collect()
    };
    let (keys, others): (Vec<u64>, Vec<u64>) = ((0..4000).collect(), (0..24_000).collect());
    // Rows of both tables side by side, so that writing one makes the cleaner move the other.
    for (some, more) in keys.chunks(50).zip(others.chunks(300)) {
        let values = (rows_of(some, 0.0), rows_of(more, 0.0));
        store.put(&[batch(scanned, some, &values.0), batch(other, more, &values.1)]).unwrap();
    }
    store.commit(1, "", &[]).unwrap();
    // The fewer rows are left, the fewer dead slots are tolerated.
    let (others, deleted) = others.split_at(others.len() / 4);
    store.delete(other, deleted).unwrap();
    let before = store.stats().unwrap().rows_moved;
    let mut scan = store.scan(scanned).unwrap();
    let (mut found, mut add) = (Vec::new(), 0.0);
    let (mut some, mut rows) = (vec![0; 150], vec![0.0; 150 * DIM]);
    loop {
        let n = scan.next_batch(&mut some, &mut rows, None).unwrap();
        if n == 0 {
            break;
        }
        for (i, key) in some[..n].iter().enumerate() {
            assert_eq!(rows[i * DIM], *key as f32);
        }
        found.extend_from_slice(&some[..n]);
        add += 1.0;
        store.put(&[batch(other, others, &rows_of(others, add))]).unwrap();
        store.commit(1, "", &[]).unwrap();
    }
    drop(scan);
    found.sort_unstable();
    assert!(found == keys, "{} rows, {} expected", found.len(), keys.len());
    let moved = store.stats().unwrap().rows_moved - before;
    assert!(moved > 1000, "{moved} rows moved during the scan");
}

#[test]
fn a_table_whose_record_cannot_be_written_leaves_a_store_that_goes_on() {
    let mut classes_without_a_table = 0;
    for writes in 0..8 {
        let medium = SimMedium::new(9);
        let store = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
        let table = store.table(&spec("t", Some(100), OptimizerKind::Sgd)).unwrap();
        store.put(&[batch(table, &[1], &[2.0; DIM])]).unwrap();
        store.commit(1, "", &[]).unwrap();
        medium.fail_write(writes);
        let other =
            TableSpec { embedding_dim: 2 * DIM, ..spec("u", Some(100), OptimizerKind::Sgd) };
        if store.table(&other).is_ok() {
            continue;
        }
        let engine = store.inner.engine.read();
        let of_table = |class: &super::super::engine::Class| class.dense_rows > 0;
        classes_without_a_table += usize::from(!engine.classes.iter().all(of_table));
        drop(engine);
        let values = |store: &Store| {
            let mut values = vec![0.0; DIM];
            let get = GetBatch { table, keys: &[1], values: (&mut values).into(), state: None };
            store.get(&mut [get]).unwrap();
            values
        };
        assert_eq!(values(&store), [2.0; DIM]);
        store.commit(2, "", &[]).unwrap();
        store.close().unwrap();
        let store = Store::open_on(Arc::new(medium), options(1 << 20)).unwrap();
        assert_eq!(values(&store), [2.0; DIM]);
        store.table(&other).unwrap();
        assert_eq!(values(&store), [2.0; DIM]);
    }
    assert_eq!(classes_without_a_table, 1);
}

#[test]
fn stats_hold_while_another_thread_counts_deltas() {
    let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
    let table = store.table(&spec("t", Some(1000), OptimizerKind::Sgd)).unwrap();
    store.put(&[batch(table, &[1], &[0.0; DIM])]).unwrap();
    // What `spill_deltas` has done when it has counted deltas and not yet the whole journal.
    store.inner.metrics.delta_bytes.fetch_add(64 << 10, std::sync::atomic::Ordering::Relaxed);
    let written = store.stats().unwrap().written;
    assert_eq!((written.deltas, written.commits), (64 << 10, 0));
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
        store.put(&[batch(table, &[7], &[7.0; DIM])])?;
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
    let devices: Vec<DeviceCurve> = [512, 4096, 16_384]
        .into_iter()
        .flat_map(|page| [16, 64, 128].map(|depth| curve(page, depth)))
        .collect();
    let all = [
        [Some(20_000), Some(20_000)],
        [Some(5_000_000), Some(5_000_000)],
        [Some(5_000_000), None],
        [None, Some(20_000)],
    ];
    let medium = SimMedium::new(8);
    for (dense, first) in all.iter().flat_map(|d| devices.iter().map(move |f| (d, f))) {
        let kinds = [OptimizerKind::Sgd, OptimizerKind::Adam];
        let specs: Vec<TableSpec> = (0..2)
            .map(|i| TableSpec {
                expected_rows: Some(30_000),
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
                assert!(again.is_ok(), "{dense:?}: named at {first:?}, at {other:?}: {again:?}");
            }
        }
    }
}

// Pages and depths of a better device took more memory than there was.
#[test]
fn a_budget_that_worked_works_whatever_the_device_is_measured_to_do_next() {
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
}
