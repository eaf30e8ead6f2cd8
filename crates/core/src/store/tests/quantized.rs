//! Tables of int8 and int4: what is put, read, modified, frozen and refused.

use super::*;
use crate::store::sweeps::freeze::FreezeOptions;

/// Tables of both dtypes, dense and growing, beside one that trains.
fn fixture(storage: StorageKind) -> Fixture {
    let of = |name, rows, dtype| TableSpec { dtype, ..spec(name, rows, OptimizerKind::None) };
    let mut specs = vec![
        of("eight", Some(500), Dtype::Int8),
        of("four", Some(400), Dtype::Int4),
        of("grown", None, Dtype::Int8),
        spec("trained", Some(300), OptimizerKind::Adagrad),
    ];
    specs.iter_mut().for_each(|spec| spec.storage = storage);
    let odd = (0..400u64).map(|i| i << 40).collect();
    Fixture { specs, keys: vec![(0..500).collect(), (0..400).collect(), odd, (0..300).collect()] }
}

#[test]
fn quantised_rows_are_what_was_put_whatever_happens_to_them() {
    for storage in [StorageKind::Log, StorageKind::Lsm, StorageKind::Pages] {
        let (fixture, medium) = (fixture(storage), SimMedium::new(7));
        let bytes = 9 * tight() / 4;
        let mut random = Random(7);
        let (mut model, mut committed) = (Model::default(), Model::default());
        let mut store = fixture.open(&medium, options(bytes));
        let mut frozen = 0;
        for round in 0..300u64 {
            fixture.step(&store, &mut model, &mut random);
            if storage == StorageKind::Pages && random.below(30) == 0 {
                let options = FreezeOptions::new(Memory::Bytes(0));
                let done = store.freeze(&[], &options, &mut |_, _| Ok(())).unwrap();
                assert_eq!((done.rows, done.error_max), (model.rows.len() as u64, 0.0));
                frozen += 1;
                fixture.check_all(&store, &model);
            }
            if random.below(50) == 0 {
                store.commit(round, "", &[]).unwrap();
                committed = model.clone();
            }
            if random.below(60) == 0 && store.last_commit().is_some() {
                drop(store);
                model = committed.clone();
                store = fixture.open(&medium, options(bytes));
                fixture.check_all(&store, &model);
            }
        }
        fixture.check_all(&store, &model);
        assert_eq!(storage == StorageKind::Pages, frozen > 3, "{frozen} freezes");
    }
}

/// A store with a table of a dtype, of which row 3 is there.
fn one(dtype: Dtype) -> (Store, TableId) {
    let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
    let table = TableSpec { dtype, ..spec("items", Some(10), OptimizerKind::None) };
    let table = store.table(&table).unwrap();
    store.put(&[put_of(table, &[3], &[0.5; DIM])]).unwrap();
    (store, table)
}

fn row(store: &Store, table: TableId) -> Vec<f32> {
    let mut values = vec![0.0; DIM];
    let mut batch = [GetBatch { table, keys: &[3], values: (&mut values).into(), state: None }];
    store.get(&mut batch).unwrap();
    values
}

// Codes have no NaN: one that is taken would come back as a number.
#[test]
fn what_a_quantised_row_cannot_hold_is_refused_with_its_table_and_key() {
    for dtype in [Dtype::Int8, Dtype::Int4] {
        let (store, table) = one(dtype);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2e38] {
            let mut values = vec![0.25; 2 * DIM];
            values[2 * DIM - 1] = bad;
            for non_finite in [NonFinite::Refuse, NonFinite::Apply] {
                let batch = PutBatch { non_finite, ..put_of(table, &[1, 3], &values) };
                let error = store.put(&[batch]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NonFinite);
                let says = format!("beyond the range of {}, the first for key 3", dtype.name());
                assert!(error.message().contains("table 'items'"), "{error}");
                assert!(error.message().contains(&says), "{error}");
            }
            let spoil = &mut |_: &[u64], values: &mut [f32], _: &mut [f32]| {
                values[0] = bad;
                Ok(())
            };
            let error = store.modify(table, &[3], spoil).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NonFinite);
            assert_eq!(row(&store, table), [0.5; DIM]);
        }
        let values: Vec<f32> = [f32::NAN; DIM].into_iter().chain([0.25; DIM]).collect();
        let batch = PutBatch { non_finite: NonFinite::Skip, ..put_of(table, &[1, 3], &values) };
        assert_eq!(store.put(&[batch]).unwrap().skipped, 1);
        assert_eq!(row(&store, table), [0.25; DIM]);
    }
}

#[test]
fn quantised_rows_are_neither_trained_nor_asked_for_as_bits() {
    let (store, table) = one(Dtype::Int8);
    for kind in [OptimizerKind::Sgd, OptimizerKind::RowWiseAdagrad] {
        let trained = TableSpec { dtype: Dtype::Int4, ..spec("new", Some(10), kind) };
        let error = store.table(&trained).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        for says in ["table 'new'", "int4", "optimizer \"none\"", "freeze"] {
            assert!(error.message().contains(says), "{error}");
        }
    }
    let update = UpdateBatch {
        table,
        keys: &[3],
        gradients: &[1.0; DIM],
        hyper: HYPER,
        non_finite: NonFinite::Refuse,
        step: None,
    };
    let error = store.update(&[update]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.message().contains("takes no updates"), "{error}");
    let mut bits = vec![0; DIM];
    let values = ValuesOut::Bits(&mut bits);
    let error = store.get(&mut [GetBatch { table, keys: &[3], values, state: None }]).unwrap_err();
    assert!(error.message().contains("'items' is int8"), "{error}");
    assert_eq!(row(&store, table), [0.5; DIM]);
}
