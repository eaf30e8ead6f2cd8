//! Rows of a sample are written together, whatever tables they are of.

use super::*;

const ROWS: u64 = 1000;
const SAMPLES: u64 = 400;
/// Tables with one key of each sample, and behind them one with two.
const TABLES: u64 = 7;
const KEYS_OF_SAMPLE: u64 = TABLES + 2;

/// The keys of samples in each table. With another seed other rows are of one sample. The first
/// half of all samples has one row of the first table: its rows are not the places of samples.
fn keys(samples: std::ops::Range<u64>, seed: u64) -> Vec<Vec<u64>> {
    let key = |number: u64, table: u64| (number * 7919 + table * (131 + seed)) % ROWS;
    let of_table = |table: u64| {
        let keys = samples.clone().flat_map(|i| match table {
            0 => vec![key(i.saturating_sub(SAMPLES / 2), table)],
            TABLES => vec![key(2 * i, table), key(2 * i + 1, table)],
            _ => vec![key(i, table)],
        });
        keys.collect()
    };
    (0..=TABLES).map(of_table).collect()
}

fn open(medium: &SimMedium) -> (Store, Vec<TableId>) {
    let store = Store::open_on(Arc::new(medium.clone()), options(4 << 20)).unwrap();
    let table = |number: u64| {
        store.table(&spec(&format!("t{number}"), Some(ROWS), OptimizerKind::Adagrad)).unwrap()
    };
    let tables = (0..=TABLES).map(table).collect();
    (store, tables)
}

fn get(store: &Store, tables: &[TableId], keys: &[Vec<u64>]) {
    let mut values: Vec<Vec<f32>> = keys.iter().map(|keys| vec![0.0; keys.len() * DIM]).collect();
    let mut batches = Vec::new();
    for ((table, keys), values) in tables.iter().zip(keys).zip(&mut values) {
        let values = values.as_mut_slice().into();
        batches.push(GetBatch { table: *table, keys, values, state: None });
    }
    store.get(&mut batches).unwrap();
}

fn update(store: &Store, tables: &[TableId], keys: &[Vec<u64>]) {
    let gradients = vec![1.0; 2 * SAMPLES as usize * DIM];
    let (hyper, non_finite, step) = (HYPER, NonFinite::Refuse, None);
    let mut batches = Vec::new();
    for (table, keys) in tables.iter().zip(keys) {
        let gradients = &gradients[..keys.len() * DIM];
        batches.push(UpdateBatch { table: *table, keys, gradients, hyper, non_finite, step });
    }
    store.update(&batches).unwrap();
}

/// Pages that the later samples read one after another, per sample, from a store that has none in
/// memory.
fn pages_per_sample(medium: &SimMedium, seed: u64) -> f64 {
    let (store, tables) = open(medium);
    let counted = SAMPLES / 2..SAMPLES;
    for sample in counted.clone() {
        get(&store, &tables, &keys(sample..sample + 1, seed));
    }
    let pages = store.stats().unwrap().pages_read;
    store.close().unwrap();
    pages as f64 / counted.count() as f64
}

// A verb stamped its changes table by table, so that each row of a sample had a page of its own.
#[test]
fn rows_of_a_sample_lie_together_whatever_their_tables() {
    let medium = SimMedium::new(1);
    let (store, tables) = open(&medium);
    let rows_per_page = store.stats().unwrap().classes[0].rows_per_page as u64;
    assert_eq!(rows_per_page, KEYS_OF_SAMPLE, "a sample takes one page, or two");
    get(&store, &tables, &keys(0..SAMPLES, 0));
    update(&store, &tables, &keys(0..SAMPLES, 0));
    store.commit(1, "", &[]).unwrap();
    store.close().unwrap();
    let pages = pages_per_sample(&medium, 0);
    assert!(pages <= 2.1, "{pages} pages for the rows of a sample");

    // Rows that the update itself finds on storage: they come in the order of their pages.
    let (store, tables) = open(&medium);
    update(&store, &tables, &keys(0..SAMPLES, 40));
    store.commit(2, "", &[]).unwrap();
    store.close().unwrap();
    let pages = pages_per_sample(&medium, 40);
    assert!(pages <= 2.1, "{pages} pages for the rows of a sample that were not in memory");
}
