//! The budget is held by commits, merges, reads that drive out dirty rows, and by what comes back.

use super::*;
use crate::config::PolicyKind;

/// Rows of the table; a row of one value is small, so what finds it again is no small part of it.
const ROWS: u64 = 60_000;
const BATCH: usize = 1000;
/// Room for half of the rows in the cache.
const MEMORY: u64 = 1200 << 10;

fn small(kind: StorageKind, dense: bool) -> TableSpec {
    TableSpec {
        embedding_dim: 1,
        storage: kind,
        expected_rows: (!dense).then_some(ROWS),
        capacity: (kind.is_direct() && !dense).then_some(ROWS),
        ..spec("t", dense.then_some(ROWS), OptimizerKind::Sgd)
    }
}

/// Checks that the memory that the store counts is within its budget.
fn expect_within(store: &Store, what: &str) {
    let engine = store.inner.engine.read();
    let (memory, most) = (engine.memory(), engine.budget_bytes);
    assert!(memory.total() <= most, "{what}: {} of {most} bytes, {memory:?}", memory.total());
}

fn put_all(store: &Store, table: TableId, keys: &[u64], value: f32) {
    for keys in keys.chunks(BATCH) {
        let values = vec![value; keys.len()];
        let put = PutBatch {
            table,
            keys,
            values: &values,
            state: None,
            reset_state: false,
            non_finite: NonFinite::Refuse,
        };
        store.put(&[put]).unwrap();
        expect_within(store, "put");
    }
}

fn expect_all(store: &Store, table: TableId, keys: &[u64], value: f32) {
    for keys in keys.chunks(BATCH) {
        let mut values = vec![0.0; keys.len()];
        let get = GetBatch { table, keys, values: (&mut values).into(), state: None };
        store.get(&mut [get]).unwrap();
        expect_within(store, "get");
        assert!(values.iter().all(|found| *found == value));
    }
}

/// The keys in an order of no table.
fn shuffled(seed: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..ROWS).collect();
    let mut random = Random(seed);
    for at in (1..keys.len()).rev() {
        keys.swap(at, random.below(at as u64 + 1) as usize);
    }
    keys
}

fn loaded(
    medium: &SimMedium,
    kind: StorageKind,
    dense: bool,
    policy: PolicyKind,
) -> (Store, TableId) {
    let options = StoreOptions { policy, segment_bytes: Some(8 << 10), ..options_within(MEMORY) };
    let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
    let table = store.table(&small(kind, dense)).unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    put_all(&store, table, &keys, 1.0);
    for step in 1..3 {
        store.commit(step, "", &[]).unwrap();
        expect_within(&store, "commit");
    }
    (store, table)
}

const KINDS: [StorageKind; 3] = [StorageKind::Log, StorageKind::Lsm, StorageKind::Pmem];

// The index of the newest rows grows when rows are written, and nobody asked for it but verbs: a
// commit of a cache full of dirty rows took a tenth more than there was.
#[test]
fn a_commit_of_many_dirty_rows_stays_within_the_budget_at_every_portion() {
    for (kind, dense) in KINDS.iter().flat_map(|kind| [(*kind, true), (*kind, false)]) {
        let medium = SimMedium::new(31);
        let (store, table) = loaded(&medium, kind, dense, PolicyKind::Lru);
        let keys = shuffled(31);
        put_all(&store, table, &keys, 2.0);
        let dirty: u64 = store.stats().unwrap().classes.iter().map(|c| c.dirty_rows).sum();
        assert!(dirty > ROWS / 4 || kind.is_direct(), "{kind:?}: {dirty} rows are dirty");
        store.commit_by_hand(3, "", &[]).unwrap();
        let mut portions = 0;
        while store.commit_step().unwrap().is_none() {
            portions += 1;
            expect_within(&store, &format!("{kind:?}, dense: {dense}, portion {portions}"));
        }
        expect_within(&store, &format!("{kind:?}, dense: {dense}, after the commit"));
        expect_all(&store, table, &keys, 2.0);
        store.close().unwrap();
        let store = Store::open_on(Arc::new(medium), options_within(MEMORY)).unwrap();
        expect_all(&store, table, &keys, 2.0);
    }
}

// Rows that verbs change beside a commit are written before, and those that others drive out.
#[test]
fn verbs_beside_a_commit_stay_within_the_budget_and_lose_no_row_of_it() {
    for (dense, policy) in [(true, PolicyKind::Lru), (false, PolicyKind::Lfu)] {
        let medium = SimMedium::new(32);
        let (store, table) = loaded(&medium, StorageKind::Lsm, dense, policy);
        let keys = shuffled(32);
        put_all(&store, table, &keys, 2.0);
        store.commit_by_hand(3, "", &[]).unwrap();
        let mut rest = keys.chunks(BATCH);
        loop {
            let done = store.commit_step().unwrap().is_some();
            if let Some(keys) = rest.next() {
                put_all(&store, table, keys, 3.0);
                expect_all(&store, table, keys, 3.0);
            }
            expect_within(&store, "beside a commit");
            if done {
                break;
            }
        }
        // The committed rows are there, without the changes beside them.
        drop(store);
        let options = StoreOptions { policy, ..options_within(MEMORY) };
        let store = Store::open_on(Arc::new(medium), options).unwrap();
        expect_all(&store, table, &keys, 2.0);
    }
}

// Reads make no row dirty, and were not asked for what they drive out.
#[test]
fn reads_that_drive_out_dirty_rows_stay_within_the_budget() {
    for dense in [true, false] {
        let medium = SimMedium::new(33);
        let (store, table) = loaded(&medium, StorageKind::Lsm, dense, PolicyKind::Lru);
        let keys = shuffled(33);
        let (changed, others) = keys.split_at(keys.len() / 2);
        put_all(&store, table, changed, 2.0);
        for _ in 0..3 {
            expect_all(&store, table, others, 1.0);
        }
        expect_all(&store, table, changed, 2.0);
    }
}

// A cache got back the memory of tombstones and a long top only when the store was opened again.
#[test]
fn a_cache_gets_back_what_deletes_and_commits_have_taken() {
    let medium = SimMedium::new(34);
    let (store, table) = loaded(&medium, StorageKind::Lsm, true, PolicyKind::Lru);
    let capacity = || store.stats().unwrap().classes[0].cache_capacity;
    let before = capacity();
    let keys = shuffled(34);
    let (deleted, others) = keys.split_at(ROWS as usize / 3);
    for keys in deleted.chunks(BATCH) {
        store.delete(table, keys).unwrap();
        expect_within(&store, "delete");
    }
    let least = capacity();
    assert!(least < before, "deletes took nothing of {before} rows");
    for step in 3..9 {
        put_all(&store, table, others, step as f32);
        store.commit(step, "", &[]).unwrap();
        expect_within(&store, "commit");
    }
    // At rest: merges have dropped what was deleted.
    for step in 9..12 {
        store.commit(step, "", &[]).unwrap();
    }
    // But for a way that the next rows to be written would take again.
    assert!(capacity() + before / 16 >= before, "{} of {before}, {least} at least", capacity());
    assert!(capacity() > least);
    expect_all(&store, table, others, 8.0);
}

// A slot is where a row was when the commit looked it up; a cache that shrinks moves rows.
#[test]
fn a_cache_that_shrinks_in_the_middle_of_a_commit_loses_none_of_its_rows() {
    let medium = SimMedium::new(35);
    let (store, table) = loaded(&medium, StorageKind::Log, true, PolicyKind::Lru);
    let growing = store.table(&TableSpec {
        name: "growing".to_owned(),
        expected_rows: Some(1000),
        ..small(StorageKind::Log, false)
    });
    let growing = growing.unwrap();
    let keys = shuffled(35);
    put_all(&store, table, &keys, 2.0);
    store.commit_by_hand(3, "", &[]).unwrap();
    let capacity =
        || -> u64 { store.stats().unwrap().classes.iter().map(|c| c.cache_capacity).sum() };
    let before = capacity();
    let mut next = 0;
    while store.commit_step().unwrap().is_none() {
        // New keys make an index grow, which takes ways.
        let new: Vec<u64> = (next..next + 2000).collect();
        next += 2000;
        let values = vec![5.0; new.len()];
        let put = PutBatch {
            table: growing,
            keys: &new,
            values: &values,
            state: None,
            reset_state: false,
            non_finite: NonFinite::Refuse,
        };
        if store.put(&[put]).is_err() {
            break;
        }
    }
    while store.commit_step().is_ok_and(|made| made.is_none()) {}
    assert!(capacity() < before, "no way was taken");
    drop(store);
    let store = Store::open_on(Arc::new(medium), options_within(MEMORY)).unwrap();
    expect_all(&store, table, &keys, 2.0);
}

// A budget that was enough was refused by an opening that did not know the share.
#[test]
fn commits_store_the_share_of_the_newest_rows_and_older_ones_have_the_usual_one() {
    let medium = SimMedium::new(36);
    let open = |top_share| {
        let options = StoreOptions { top_share, ..options_within(MEMORY) };
        Store::open_on(Arc::new(medium.clone()), options).unwrap()
    };
    let share = |store: &Store| store.options().merging().top_share;
    let store = open(Some(0.3));
    store.table(&small(StorageKind::Lsm, true)).unwrap();
    store.commit(1, "", &[]).unwrap();
    store.close().unwrap();
    let store = open(None);
    assert_eq!(share(&store), 0.3);
    store.close().unwrap();
    let store = open(Some(0.05));
    assert_eq!(share(&store), 0.05);
    // Not until a commit has it.
    store.close().unwrap();
    assert_eq!(share(&open(None)), 0.3);
    let store = open(Some(0.05));
    store.commit(2, "", &[]).unwrap();
    store.close().unwrap();
    let store = open(None);
    assert_eq!(share(&store), 0.05);
    let record = store.inner.history.lock().kept.last().unwrap().clone();
    let mut text = serde_json::to_value(&record).unwrap();
    assert_eq!(text["top_share"], 0.05);
    text.as_object_mut().unwrap().remove("top_share");
    let older: crate::store::journal::CommitRecord = serde_json::from_value(text).unwrap();
    assert_eq!(older.top_share, None);
    assert_eq!(options(0).with_stored(older.top_share).merging().top_share, TOP_SHARE);
}

// Filters were written of growing tables alone, and a dense one ignored the option.
#[test]
fn filters_spare_the_reads_of_ids_without_a_row_in_a_dense_table_too() {
    let mut pages = [0, 0];
    for (filters, pages) in [false, true].into_iter().zip(&mut pages) {
        let options = StoreOptions { filters, ..options_within(MEMORY) };
        let store = Store::open_on(Arc::new(SimMedium::new(37)), options).unwrap();
        let table = store.table(&small(StorageKind::Lsm, true)).unwrap();
        let keys: Vec<u64> = (0..ROWS).collect();
        let (odd, even): (Vec<u64>, Vec<u64>) = keys.iter().partition(|key| **key % 2 == 1);
        put_all(&store, table, &odd, 1.0);
        for step in 1..4 {
            store.commit(step, "", &[]).unwrap();
        }
        let before = store.stats().unwrap().pages_read;
        for keys in even.chunks(BATCH) {
            let mut values = vec![0.0; keys.len()];
            let get = GetBatch { table, keys, values: (&mut values).into(), state: None };
            store.get(&mut [get]).unwrap();
            expect_within(&store, "get");
        }
        *pages = store.stats().unwrap().pages_read - before;
        expect_all(&store, table, &odd, 1.0);
    }
    assert!(pages[1] * 4 < pages[0], "{pages:?} pages");
}

// Slot numbers of a longer file are wider: the index takes more than when the budget was divided.
#[test]
fn a_file_that_grows_widens_the_index_within_the_budget() {
    let medium = SimMedium::new(38);
    let open = |read_only| {
        let segment_bytes = Some(64 << 10);
        let within = StoreOptions { segment_bytes, ..options_within(800 << 10) };
        let options = StoreOptions { keep: 12, read_only, ..within };
        Store::open_on(Arc::new(medium.clone()), options).unwrap()
    };
    let store = open(false);
    let table = store.table(&small(StorageKind::Log, true)).unwrap();
    let keys = shuffled(38);
    put_all(&store, table, &keys, 0.0);
    store.commit(1, "", &[]).unwrap();
    let reader = open(true);
    expect_all(&reader, table, &keys, 0.0);
    let index_bytes = |store: &Store| store.stats().unwrap().budget.index_bytes;
    let index = index_bytes(&store);
    // Every commit is kept, with rows of its own.
    for step in 2..11 {
        put_all(&store, table, &keys, step as f32);
        store.commit(step, "", &[]).unwrap();
        expect_within(&store, "commit");
    }
    // From 17 bits to 20.
    let wider = index_bytes(&store);
    assert!(wider >= index + 3 * ROWS / 8, "{index}, then {wider}");
    expect_all(&store, table, &keys, 10.0);
    reader.refresh().unwrap();
    expect_within(&reader, "refresh");
    expect_all(&reader, table, &keys, 10.0);
    assert!(index_bytes(&reader) >= index + 3 * ROWS / 8);
    reader.close().unwrap();
    store.close().unwrap();
    let store = open(false);
    expect_all(&store, table, &keys, 10.0);
    assert!(index_bytes(&store) >= index + 3 * ROWS / 8);
    put_all(&store, table, &keys, 11.0);
    store.commit(11, "", &[]).unwrap();
    expect_all(&store, table, &keys, 11.0);
}
