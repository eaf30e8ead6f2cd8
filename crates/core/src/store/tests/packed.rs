//! Dense tables of a log of whose ids few have a row: their index is packed.

use super::*;
use crate::store::journal::numbers;

const IDS: u64 = 40_000;

fn packed_spec(expected: Option<u64>) -> TableSpec {
    TableSpec { expected_rows: expected, ..spec("t", Some(IDS), OptimizerKind::Adagrad) }
}

fn is_packed(store: &Store) -> bool {
    store.inner.engine.read().tables[0].record.packed
}

fn index_bytes(store: &Store) -> u64 {
    store.stats().unwrap().memory.index_bytes
}

/// Puts the ids of a residue, as the machine has that owns them.
fn fill(store: &Store, table: TableId, each: u64, value: f32) {
    let keys: Vec<u64> = (0..IDS).filter(|id| id % each == 1).collect();
    for keys in keys.chunks(500) {
        store.put(&[put_of(table, keys, &vec![value; keys.len() * DIM])]).unwrap();
    }
}

fn reopened(medium: &SimMedium, store: Store, bytes: u64) -> (Store, TableId) {
    store.close().unwrap();
    let store = Store::open_on(Arc::new(medium.clone()), options_within(bytes)).unwrap();
    let table = store.find_table("t").unwrap();
    (store, table)
}

/// Commits until the files that the journal has begin with the catalog as it is now.
fn into_new_files(store: &Store, table: TableId, medium: &SimMedium) {
    let first = *numbers(medium).unwrap().last().unwrap();
    let mut step = store.last_commit().map_or(0, |commit| commit.step);
    while numbers(medium).unwrap()[0] <= first {
        step += 1;
        assert!(step < 900, "the journal has no new file: {:?}", numbers(medium).unwrap());
        fill(store, table, 8, step as f32);
        store.commit(step, "", &[]).unwrap();
    }
}

#[test]
fn a_table_of_a_log_has_a_packed_index_where_few_rows_are_expected() {
    for (expected, packed) in [(None, false), (Some(IDS / 8), true), (Some(IDS - 1), false)] {
        let medium = SimMedium::new(1);
        let store = Store::open_on(Arc::new(medium.clone()), options(2 << 20)).unwrap();
        let table = store.table(&packed_spec(expected)).unwrap();
        fill(&store, table, 8, 1.0);
        store.commit(1, "", &[]).unwrap();
        assert_eq!(is_packed(&store), packed, "{expected:?}");
        into_new_files(&store, table, &medium);
        let written = digest(&store, table);
        let (store, table) = reopened(&medium, store, 2 << 20);
        let info = store.table_info(table).unwrap();
        assert_eq!((info.by_id, info.spec.expected_rows, info.rows), (true, expected, IDS / 8));
        assert_eq!((is_packed(&store), digest(&store, table)), (packed, written));
        // 17 bits of each id, or a seventh of a byte and four and a half bytes for each row.
        let most = if packed { IDS / 7 + IDS / 8 * 9 / 2 } else { IDS * 17 / 8 };
        let bytes = index_bytes(&store);
        assert!(bytes < most + (16 << 10), "{expected:?}: {bytes} bytes");
        assert!(packed || bytes >= IDS * 17 / 8, "{expected:?}: {bytes} bytes");
    }
}

// Its pieces are words of all ids, whatever the option beside it has come to mean since.
#[test]
fn a_store_made_before_keeps_the_index_that_its_record_says() {
    let medium = SimMedium::new(2);
    let store = Store::open_on(Arc::new(medium.clone()), options(2 << 20)).unwrap();
    let table = store.table(&packed_spec(None)).unwrap();
    fill(&store, table, 8, 1.0);
    {
        let mut engine = store.inner.exclusive().unwrap();
        engine.tables[0].record.spec.expected_rows = Some(IDS / 8);
    }
    into_new_files(&store, table, &medium);
    let written = digest(&store, table);
    let (store, table) = reopened(&medium, store, 2 << 20);
    assert_eq!(store.table_info(table).unwrap().spec.expected_rows, Some(IDS / 8));
    assert!(!is_packed(&store));
    assert_eq!(digest(&store, table), written);
}

#[test]
fn more_rows_than_expected_take_from_the_cache_and_then_name_the_budget_that_works() {
    let medium = SimMedium::new(3);
    let options = options_within(600 << 10);
    let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
    let spec = TableSpec {
        num_embeddings: Some(400_000),
        expected_rows: Some(20_000),
        ..spec("t", None, OptimizerKind::Sgd)
    };
    let table = store.table(&spec).unwrap();
    let (mut random, mut rows) = (Random(5), 0);
    let error = loop {
        let keys: Vec<u64> = (0..200).map(|_| random.below(400_000)).collect();
        match store.put(&[put_of(table, &keys, &vec![1.0; keys.len() * DIM])]) {
            Err(error) => break error,
            Ok(_) => rows = store.len(table).unwrap(),
        }
        let engine = store.inner.engine.read();
        let (used, most) = (engine.memory().total(), engine.budget_bytes);
        assert!(used <= most, "{rows} rows: {used} of {most} bytes, {:?}", engine.memory());
    };
    assert_eq!(error.kind(), crate::error::ErrorKind::Budget, "{error}");
    assert!(rows > 22_000 && store.len(table).unwrap() == rows, "{rows} rows");
    store.commit(1, "", &[]).unwrap();
    let written = digest(&store, table);
    let named: u64 = error.message().rsplit('=').next().unwrap().parse().unwrap();
    let (store, table) = reopened(&medium, store, named);
    assert_eq!(digest(&store, table), written);
    let keys: Vec<u64> = (0..200).map(|id| 2000 * id).collect();
    store.put(&[put_of(table, &keys, &vec![2.0; keys.len() * DIM])]).unwrap();
}

#[test]
fn per_cent_and_disk_are_of_the_rows_that_are_expected() {
    let asked = |expected: Option<u64>| {
        let medium = SimMedium::new(4);
        medium.set_capacity(Some(8 << 20));
        let options = StoreOptions {
            page_bytes: Some(512),
            segment_bytes: Some(8 << 10),
            ..StoreOptions::new(Memory::Percent(50.0))
        };
        let store = Store::open_on(Arc::new(medium), options)?;
        let ids = Some(400_000);
        let spec = TableSpec { num_embeddings: ids, ..packed_spec(expected) };
        let table = store.table(&spec)?;
        store.put(&[put_of(table, &[1], &[0.0; DIM])])?;
        Ok::<_, crate::Error>(store.stats()?.asked_bytes)
    };
    let row_bytes = (2 * DIM * 4) as u64;
    assert_eq!(asked(Some(50_000)).unwrap(), 50_000 * row_bytes / 2);
    let error = asked(None).unwrap_err();
    assert_eq!(error.kind(), crate::error::ErrorKind::Full, "{error}");
}

#[test]
fn a_random_life_with_a_packed_index_agrees_with_a_plain_map() {
    for seed in 0..4 {
        let ids = 3 * 4096 + 77;
        let spec = |name: &str, expected| TableSpec {
            expected_rows: Some(expected),
            ..spec(name, Some(ids), OptimizerKind::Adagrad)
        };
        // One beside it is full: both lie in one class.
        let fixture = Fixture {
            specs: vec![spec("packed", 700), spec("full", ids)],
            keys: vec![(0..ids).step_by(11).collect(), (0..ids).step_by(17).collect()],
        };
        let medium = SimMedium::new(seed);
        let mut store = fixture.open(&medium, options(600 << 10));
        let packed = |store: &Store| {
            let engine = store.inner.engine.read();
            engine.tables.iter().map(|table| table.record.packed).collect::<Vec<_>>()
        };
        let (mut model, mut random) = (Model::default(), Random(seed));
        let mut committed = model.clone();
        for step in 1..=160 {
            for _ in 0..6 {
                fixture.step(&store, &mut model, &mut random);
            }
            if random.below(3) > 0 {
                store.commit(step, "", &[]).unwrap();
                committed = model.clone();
            }
            if random.below(12) == 0 {
                drop(store);
                store = fixture.open(&medium, options(600 << 10));
                model = committed.clone();
                assert_eq!(packed(&store), [true, false]);
                fixture.check_all(&store, &model);
            }
        }
        fixture.check_all(&store, &model);
    }
}
