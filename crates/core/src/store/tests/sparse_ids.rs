//! Tables with both `num_embeddings` and `expected_rows`: how they are stored, opened and copied.

use super::*;
use crate::error::ErrorKind;
use crate::store::copy;
use crate::store::journal::numbers;
use crate::store::sweeps::copy::check_disk;
use std::path::Path;

const IDS: u64 = 3000;

fn both(ids: u64, expected: u64, storage: StorageKind) -> TableSpec {
    let spec = spec("t", Some(ids), OptimizerKind::Adagrad);
    TableSpec { expected_rows: Some(expected), storage, ..spec }
}

/// Puts every id that is a multiple of `each`, in an order that is not theirs.
fn fill(store: &Store, table: TableId, ids: u64, each: u64) {
    let keys: Vec<u64> = (0..ids).rev().filter(|id| id % each == 0).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
    store.put(&[put_of(table, &keys, &values)]).unwrap();
}

/// The keys of all rows, in the order in which a scan gives them.
fn scanned(store: &Store, table: TableId) -> Vec<u64> {
    let (mut scan, mut found) = (store.scan(table).unwrap(), Vec::new());
    let (mut keys, mut values) = (vec![0; 64], vec![0.0; 64 * DIM]);
    loop {
        let rows = scan.next_batch(&mut keys, &mut values, None).unwrap();
        if rows == 0 {
            return found;
        }
        for (key, row) in keys[..rows].iter().zip(values.chunks(DIM)) {
            assert_eq!(row, [*key as f32; DIM]);
        }
        found.extend_from_slice(&keys[..rows]);
    }
}

/// Whether the table has partitions in its record, as one that is not stored by id.
fn partitions(store: &Store) -> Option<u32> {
    store.inner.engine.read().tables[0].record.partitions
}

fn reopened(medium: &SimMedium, store: Store) -> (Store, TableId) {
    store.close().unwrap();
    let store = Store::open_on(Arc::new(medium.clone()), options(2 << 20)).unwrap();
    let table = store.find_table("t").unwrap();
    (store, table)
}

// Any number below that of the ids made it growing.
#[test]
fn a_table_of_which_a_third_of_the_ids_is_expected_is_stored_by_id() {
    for (expected, by_id) in [(999, false), (1000, true), (2999, true), (3000, true)] {
        let medium = SimMedium::new(expected);
        let store = Store::open_on(Arc::new(medium.clone()), options(2 << 20)).unwrap();
        let spec = both(IDS, expected, StorageKind::Lsm);
        let mut table = store.table(&spec).unwrap();
        fill(&store, table, IDS, 4);
        store.commit(1, "", &[]).unwrap();
        let mut store = store;
        for _ in 0..2 {
            let info = store.table_info(table).unwrap();
            assert_eq!((info.by_id, info.rows), (by_id, IDS / 4), "{expected} expected");
            assert_eq!(info.spec, spec);
            assert_eq!(partitions(&store).is_none(), by_id, "{expected} expected");
            let mut keys = scanned(&store, table);
            assert_eq!(keys.is_sorted(), by_id, "{expected} expected");
            keys.sort_unstable();
            assert!(keys.into_iter().eq((0..IDS).step_by(4)));
            (store, table) = reopened(&medium, store);
            assert_eq!(store.table(&spec).unwrap(), table);
        }
    }
}

// A table that was made while the rule was another one stays as it is.
#[test]
fn a_table_stays_stored_as_its_record_says_whatever_is_expected() {
    for (made_with, recorded) in [(10, 1500), (2000, 10)] {
        let medium = SimMedium::new(recorded);
        let store = Store::open_on(Arc::new(medium.clone()), options(2 << 20)).unwrap();
        let table = store.table(&both(IDS, made_with, StorageKind::Lsm)).unwrap();
        let by_id = store.table_info(table).unwrap().by_id;
        assert_eq!(by_id, made_with > recorded);
        fill(&store, table, IDS, 4);
        {
            let mut engine = store.inner.exclusive().unwrap();
            engine.tables[0].record.spec.expected_rows = Some(recorded);
        }
        // Until the files that the journal has begin with the record as it is now.
        let first = *numbers(&medium).unwrap().last().unwrap();
        let mut step = 0;
        while numbers(&medium).unwrap()[0] <= first {
            step += 1;
            assert!(step < 500, "the journal has no new file: {:?}", numbers(&medium).unwrap());
            fill(&store, table, IDS, 4);
            store.commit(step, "", &[]).unwrap();
        }
        let written = digest(&store, table);
        let (store, table) = reopened(&medium, store);
        let info = store.table_info(table).unwrap();
        assert_eq!((info.by_id, info.spec.expected_rows), (by_id, Some(recorded)));
        assert_eq!(partitions(&store).is_none(), by_id);
        assert_eq!(digest(&store, table), written);
        let spec = both(IDS, 10, StorageKind::Lsm);
        assert_eq!(store.table(&spec).unwrap(), table);
        fill(&store, table, IDS, 1);
        store.commit(step + 1, "", &[]).unwrap();
        let (store, table) = reopened(&medium, store);
        let mut keys = scanned(&store, table);
        assert_eq!(keys.is_sorted(), by_id);
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..IDS));
    }
}

fn open(path: &Path) -> (Store, Option<TableId>) {
    let store = Store::open(path, options(2 << 20)).unwrap();
    let table = store.find_table("t");
    (store, table)
}

fn copied(from: &Path, to: &Path, storage: StorageKind, memory: u64) -> Result<CopyReport> {
    copy(from, to, None, Memory::Bytes(memory), Some(storage), None, &mut |_, _| Ok(()))
}

// The number that was expected was forgotten, for it decides nothing in a log.
#[test]
fn a_copy_of_a_log_into_an_lsm_is_told_how_many_rows_are_expected() {
    let directory = tempfile::tempdir().unwrap();
    let (log, lsm) = (directory.path().join("log"), directory.path().join("lsm"));
    let spec = both(IDS, 500, StorageKind::Log);
    let (store, _) = open(&log);
    let table = store.table(&spec).unwrap();
    fill(&store, table, IDS, 10);
    store.commit(1, "", &[]).unwrap();
    store.close().unwrap();
    let (store, table) = open(&log);
    let info = store.table_info(table.unwrap()).unwrap();
    assert_eq!((info.spec, info.by_id), (spec, true));
    let written = digest(&store, table.unwrap());
    store.close().unwrap();
    copied(&log, &lsm, StorageKind::Lsm, 8 << 20).unwrap();
    let (store, table) = open(&lsm);
    let info = store.table_info(table.unwrap()).unwrap();
    assert_eq!((info.by_id, info.spec.expected_rows), (false, Some(500)));
    assert!(partitions(&store).is_some());
    assert_eq!(digest(&store, table.unwrap()), written);
}

// It asked for the disk of all ids, and named an option that a copy does not have.
#[test]
fn a_copy_into_a_log_needs_disk_for_the_rows_that_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let (lsm, log) = (directory.path().join("lsm"), directory.path().join("log"));
    // All of them would take a terabyte.
    let (ids, dim, memory) = (1u64 << 24, 15_000, 256 << 20);
    let optimizer = OptimizerSpec::new(OptimizerKind::Sgd);
    let both = both(ids, 100, StorageKind::Lsm);
    let spec = TableSpec { embedding_dim: dim, optimizer, ..both };
    let at = |path: &Path| Store::open(path, StoreOptions::new(Memory::Bytes(memory))).unwrap();
    let (store, keys) = (at(&lsm), [0, 7, ids - 1]);
    let table = store.table(&spec).unwrap();
    let values: Vec<f32> = keys.iter().flat_map(|key| vec![*key as f32; dim]).collect();
    store.put(&[put_of(table, &keys, &values)]).unwrap();
    store.commit(1, "", &[]).unwrap();
    let written = digest(&store, table);
    store.close().unwrap();
    let error = copied(&lsm, &log, StorageKind::Log, 4 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
    assert_eq!(copied(&lsm, &log, StorageKind::Log, memory).unwrap().rows, 3);
    let store = at(&log);
    let table = store.find_table("t").unwrap();
    let info = store.table_info(table).unwrap();
    assert_eq!((info.by_id, info.rows), (true, 3));
    assert_eq!(info.spec, TableSpec { storage: StorageKind::Log, ..spec });
    assert_eq!(digest(&store, table), written);
}

#[test]
fn more_ids_than_a_log_can_have_are_copied_into_an_lsm_alone() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let (store, _) = open(&place("lsm"));
    let ids = 1u64 << 40;
    let table = store.table(&both(ids, 100, StorageKind::Lsm)).unwrap();
    fill(&store, table, 100, 1);
    store.commit(1, "", &[]).unwrap();
    let written = digest(&store, table);
    store.close().unwrap();
    let error = copied(&place("lsm"), &place("log"), StorageKind::Log, 8 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    for part in ["table 't'", "1099511627776 ids", "4294967295", "without storage \"log\""] {
        assert!(error.message().contains(part), "{error}");
    }
    assert!(!place("log").exists());
    copied(&place("lsm"), &place("again"), StorageKind::Lsm, 8 << 20).unwrap();
    let (store, table) = open(&place("again"));
    let info = store.table_info(table.unwrap()).unwrap();
    assert_eq!((info.by_id, info.rows, info.spec.num_embeddings), (false, 100, Some(ids)));
    assert_eq!(digest(&store, table.unwrap()), written);
}

#[test]
fn rows_that_the_disk_of_a_copy_could_not_hold_are_named_with_their_bytes() {
    let medium = SimMedium::new(1);
    let store = Store::open_on(Arc::new(medium.clone()), options(2 << 20)).unwrap();
    let table = store.table(&both(IDS, 10, StorageKind::Lsm)).unwrap();
    fill(&store, table, IDS, 1);
    let tables = store.tables();
    let bytes = IDS * tables[0].row_bytes as u64;
    let disk = SimMedium::new(2);
    disk.set_capacity(Some(bytes));
    check_disk(&disk, &tables).unwrap();
    disk.set_capacity(Some(bytes - 1));
    let error = check_disk(&disk, &tables).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.message().contains(&bytes.to_string()), "{error}");
}

#[test]
fn a_budget_without_room_for_very_many_ids_is_told_of_expected_rows() {
    let ids = 1u64 << 31;
    let medium = SimMedium::new(1);
    let store = Store::open_on(Arc::new(medium), options(2 << 20)).unwrap();
    for (expected, is_told) in [(None, true), (Some(ids - 1), true), (Some(1 << 25), false)] {
        let spec = TableSpec { expected_rows: expected, ..both(ids, 1, StorageKind::Lsm) };
        let error = store.table(&spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
        assert_eq!(error.message().contains("give expected_rows="), is_told, "{error}");
        let named: u64 = error.message().rsplit("memory=").next().unwrap().parse().unwrap();
        assert!(named > 2 << 20, "{error}");
    }
    store.table(&both(ids, 1000, StorageKind::Lsm)).unwrap();
}
