//! A failure within a call leaves the store as it was, or refusing writes.

use super::*;

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
    each_kind(|| {
        let fixture = Fixture::new();
        let mut kinds = Vec::new();
        for n in (1..120).step_by(7) {
            kinds.extend(device_error(&fixture, &|m| m.fail_write(n)));
            kinds.extend(device_error(&fixture, &|m| m.fail_sync(n)));
        }
        let poisoned = kinds.iter().filter(|k| **k == ErrorKind::Poisoned).count();
        assert!(poisoned > 10, "{kinds:?}");
    });
}

#[test]
fn a_refused_table_leaves_the_others_as_they_were() {
    each_kind(|| {
        let store = Store::open_on(Arc::new(SimMedium::new(4)), options(2 << 20)).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..1000).collect();
        let values = vec![1.5; keys.len() * DIM];
        store.put(&[put_of(table, &keys, &values)]).unwrap();
        for rows in [1 << 33, 10_000_000] {
            let wide =
                TableSpec { embedding_dim: 64, ..spec("big", Some(rows), OptimizerKind::Sgd) };
            store.table(&wide).unwrap_err();
            store.put(&[put_of(table, &keys, &values)]).unwrap();
            store.stats().unwrap();
            store.commit(1, "", &[]).unwrap();
        }
        assert_eq!(store.tables().len(), 1);
    });
}

#[test]
fn a_panic_within_a_change_poisons_the_store() {
    each_kind(|| {
        let store = Store::open_on(Arc::new(SimMedium::new(4)), options(2 << 20)).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        let inner = store.inner.clone();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = inner.poison_on_panic();
            panic!("as a broken invariant would");
        }));
        assert!(panicked.is_err());
        let error = store.put(&[put_of(table, &[1], &[1.0; DIM])]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        assert_eq!(store.commit(1, "", &[]).unwrap_err().kind(), ErrorKind::Poisoned);
    });
}

#[test]
fn a_scan_gives_every_row_once_while_other_tables_are_written() {
    each_kind(|| {
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
            store.put(&[put_of(scanned, some, &values.0), put_of(other, more, &values.1)]).unwrap();
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
            store.put(&[put_of(other, others, &rows_of(others, add))]).unwrap();
            store.commit(1, "", &[]).unwrap();
        }
        drop(scan);
        found.sort_unstable();
        assert!(found == keys, "{} rows, {} expected", found.len(), keys.len());
        let moved = store.stats().unwrap().rows_moved - before;
        assert!(moved > 1000, "{moved} rows moved during the scan");
    });
}

#[test]
fn a_table_whose_record_cannot_be_written_leaves_a_store_that_goes_on() {
    each_kind(|| {
        let mut classes_without_a_table = 0;
        for writes in 0..8 {
            let medium = SimMedium::new(9);
            let store = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
            let table = store.table(&spec("t", Some(100), OptimizerKind::Sgd)).unwrap();
            store.put(&[put_of(table, &[1], &[2.0; DIM])]).unwrap();
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
    });
}

#[test]
fn stats_hold_while_another_thread_counts_deltas() {
    each_kind(|| {
        let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
        let table = store.table(&spec("t", Some(1000), OptimizerKind::Sgd)).unwrap();
        store.put(&[put_of(table, &[1], &[0.0; DIM])]).unwrap();
        // State after `journal_changes` has counted deltas and not yet the whole journal.
        store.inner.metrics.delta_bytes.fetch_add(64 << 10, std::sync::atomic::Ordering::Relaxed);
        let written = store.stats().unwrap().written;
        assert_eq!((written.deltas, written.commits), (64 << 10, 0));
    });
}
