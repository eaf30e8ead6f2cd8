//! Hot rows that are brought into memory before anybody asks for them.

use super::*;

const ROWS: u64 = 4000;
/// The even keys have rows.
const WRITTEN: u64 = ROWS / 2;

fn open(medium: &SimMedium, rows: Option<u64>) -> (Store, TableId) {
    let store = Store::open_on(Arc::new(medium.clone()), options(256 << 10)).unwrap();
    let table = store.table(&spec("t", rows, OptimizerKind::Adagrad)).unwrap();
    (store, table)
}

/// A store whose rows are on disk and not in memory.
fn cold(medium: &SimMedium, rows: Option<u64>) -> (Store, TableId) {
    let (store, table) = open(medium, rows);
    for keys in (0..ROWS).step_by(2).collect::<Vec<_>>().chunks(100) {
        let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
        let (state, reset_state, non_finite) = (None, false, NonFinite::Refuse);
        let values = &values[..];
        store.put(&[PutBatch { table, keys, values, state, reset_state, non_finite }]).unwrap();
    }
    store.commit(1, "", &[]).unwrap();
    store.close().unwrap();
    open(medium, rows)
}

fn get(store: &Store, table: TableId, keys: &[u64]) -> Vec<f32> {
    let mut values = vec![0.0; keys.len() * DIM];
    let out = values.as_mut_slice().into();
    store.get(&mut [GetBatch { table, keys, values: out, state: None }]).unwrap();
    values
}

#[test]
fn hot_rows_are_read_once_and_count_as_no_use() {
    each_kind(|| {
        for rows in [Some(ROWS), None] {
            let (store, table) = cold(&SimMedium::new(1), rows);
            let hot: Vec<u64> = (0..100).map(|i| (i * 14) % ROWS).collect();
            let capacity = store.stats().unwrap().classes[0].cache_capacity;
            assert!(capacity > 300, "{capacity} rows would not hold them");
            assert_eq!(store.promote(table, &hot).unwrap(), 100);
            let before = store.stats().unwrap();
            assert_eq!((before.hits, before.misses, before.rescued), (0, 0, 0));
            assert_eq!(before.rows_loaded, 100);
            assert_eq!(store.promote(table, &hot).unwrap(), 0, "they are there");

            let values = get(&store, table, &hot);
            let expected: Vec<f32> = hot.iter().flat_map(|key| [*key as f32; DIM]).collect();
            assert_eq!(values, expected);
            let after = store.stats().unwrap();
            assert_eq!((after.hits, after.misses), (100, 0));
            assert_eq!(after.read_requests, before.read_requests);
        }
    });
}

#[test]
fn no_more_comes_than_half_of_what_the_cache_holds() {
    each_kind(|| {
        let (store, table) = cold(&SimMedium::new(2), Some(ROWS));
        let all: Vec<u64> = (0..ROWS).step_by(2).collect();
        let capacity = store.stats().unwrap().classes[0].cache_capacity;
        assert!(capacity / 2 < WRITTEN, "{capacity} rows are more than there are");
        let came = store.promote(table, &all).unwrap();
        assert_eq!(came, capacity / 2);
        // The first ones, which are the hottest, are there. A few sets have had too many.
        let first: Vec<u64> = (0..200).step_by(2).collect();
        get(&store, table, &first);
        assert!(store.stats().unwrap().misses < 20);
    });
}

#[test]
fn what_nobody_has_written_stays_away_and_a_wrong_key_is_refused() {
    each_kind(|| {
        let (store, table) = cold(&SimMedium::new(3), Some(ROWS));
        assert_eq!(store.promote(table, &[1, 3, 5, 4]).unwrap(), 1);
        assert_eq!(store.stats().unwrap().classes[0].resident_rows, 1);
        assert_eq!(store.promote(table, &[]).unwrap(), 0);
        let error = store.promote(table, &[2, ROWS]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KeyRange);
        assert_eq!(store.stats().unwrap().classes[0].resident_rows, 1, "nothing else was read");
    });
}

#[test]
fn dirty_rows_that_make_room_for_hot_ones_are_not_lost() {
    each_kind(|| {
        let (store, table) = cold(&SimMedium::new(4), Some(ROWS));
        let all: Vec<u64> = (0..ROWS).step_by(2).collect();
        let values: Vec<f32> = all.iter().flat_map(|key| [-(*key as f32); DIM]).collect();
        for (keys, values) in all.chunks(100).zip(values.chunks(100 * DIM)) {
            let (state, reset_state, non_finite) = (None, false, NonFinite::Refuse);
            store.put(&[PutBatch { table, keys, values, state, reset_state, non_finite }]).unwrap();
            store.promote(table, &all).unwrap();
        }
        assert_eq!(get(&store, table, &all), values);
        store.commit(2, "", &[]).unwrap();
        assert_eq!(get(&store, table, &all), values);
    });
}
