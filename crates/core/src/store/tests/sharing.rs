//! Several classes under one disk bound: room goes to a class that was refused; none is starved.

use super::bounds::{expect_rows, fill};
use super::*;

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
    let beside = inner.charge_growth(&mut **a, rows, 0, |a, grow| {
        let beside = inner.charge_growth(&mut **b, rows, 0, |b, grow| b.reserve(rows, 0, grow));
        a.reserve(rows, 0, grow)?;
        Ok(beside)
    });
    assert_eq!(beside.unwrap().unwrap_err().kind(), ErrorKind::Full);
    let files = a.disk_bytes() + b.disk_bytes();
    assert_eq!(inner.rows_disk_bytes.load(Ordering::Relaxed), files);
    // A request that does not fit keeps nobody from taking room for one that does.
    let little = (1..).find(|rows| b.growth_for(*rows, 0) > 0).unwrap();
    let beside = inner.charge_growth(&mut **a, 2 * rows, 0, |a, grow| {
        let beside = inner.charge_growth(&mut **b, little, 0, |b, grow| b.reserve(little, 0, grow));
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
    // The deleted rows lie together, and are fewer than a class keeps free while no other asks.
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

/// Puts rows of a table. After each refusal others go on, and a commit is made. Returns the number
/// of refusals.
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
        while let Err(error) = store.put(&[put_of(table, &keys, &values)]) {
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
        served += u64::from(store.put(&[put_of(one, &[key], &[key as f32; DIM])]).is_ok());
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

// The journal had room for what the class changed last said of its rows, not for that of others.
#[test]
fn a_store_of_several_classes_that_is_full_can_commit_what_it_took() {
    each_kind(|| {
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
                let put = store.put(&[put_of(tables[i], &keys, &values)]);
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
    });
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
    let few = |table| put_of(table, &keys[..100], &values[..100 * DIM]);
    let all = |table| put_of(table, &keys, &values);
    // Two tables of one class; two classes, of which the first is refused, or has its room when the
    // second asks.
    let together = vec![all(one), all(two)];
    let first = vec![all(one), all(two), few(other)];
    for tables in [together, first, vec![few(one), all(other), all(two)]] {
        let error = store.put(&tables).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        for class in &store.inner.planned_engine().unwrap().classes {
            assert_eq!(class.reserved_rows.load(Ordering::Relaxed), 0);
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
