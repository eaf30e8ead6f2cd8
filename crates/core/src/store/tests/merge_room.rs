//! Room for merges of a store with an lsm: under a disk bound and on a full device merges go on,
//! and one that finds no room is not begun again and again.

use super::bounds::{expect_rows, fill};
use super::meddled::Meddled;
use super::*;
use std::sync::atomic::AtomicU64;

/// The file of the room of the first class.
const ROOM: &str = "part-0-room";
const MIB: u64 = 1 << 20;

fn lsm(test: impl Fn()) {
    with_kind(StorageKind::Lsm, test);
}

fn bounded(most: Option<u64>) -> StoreOptions {
    StoreOptions { max_disk_bytes: most, ..options(1 << 20) }
}

fn open(medium: &SimMedium, options: StoreOptions) -> (Store, TableId) {
    let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
    (store, table)
}

fn put(store: &Store, table: TableId, keys: &[u64]) -> Result<()> {
    let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
    store.put(&[put_of(table, keys, &values)]).map(drop)
}

/// Puts rows that are there again, with commits where they are refused, at most so many for each.
/// Returns how many were refused.
fn rewrite(store: &Store, table: TableId, end: u64, batches: u64, commits: u64) -> u64 {
    let (mut random, mut refused) = (Random(end), 0);
    for step in 0..batches {
        let keys: Vec<u64> = (0..60).map(|_| random.below(end)).collect();
        for tries in 0.. {
            let Err(error) = put(store, table, &keys) else { break };
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            assert!(tries < commits, "batch {step}: {error}: {:#?}", store.stats());
            refused += 1;
            store.commit(step, "", &[]).unwrap();
        }
    }
    refused
}

/// Deletes rows from `from` on, with commits where the journal has no room for that.
fn delete(store: &Store, table: TableId, from: u64, end: u64) {
    for first in (from..end).step_by(100) {
        let keys: Vec<u64> = (first..end.min(first + 100)).collect();
        let mut tries = 0;
        while let Err(error) = store.delete(table, &keys) {
            assert!(matches!(error.kind(), ErrorKind::Full | ErrorKind::Budget), "{error}");
            assert!(tries < 8, "at {first}: {error}: {:#?}", store.stats());
            tries += 1;
            store.commit(first + tries, "", &[]).unwrap();
        }
    }
}

/// The device counts no more bytes than the bound allows, and no more than the store says.
fn check_disk(medium: &SimMedium, store: &Store, most: u64) {
    let (taken, said) = (medium.taken_bytes(), store.stats().unwrap().disk_bytes);
    assert!(taken <= said && taken <= most, "{taken} bytes, {said} said, {most} allowed");
}

#[test]
fn a_full_store_merges_and_gets_on_with_commits() {
    lsm(|| {
        for is_bounded in [true, false] {
            let medium = SimMedium::new(1);
            medium.set_capacity((!is_bounded).then_some(6 * MIB));
            let (store, table) = open(&medium, bounded(is_bounded.then_some(6 * MIB)));
            let (end, error) = fill(&store, table, 0);
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            let before = merges(&store);
            assert!(before > 5 && end > 5000, "{before} merges of {end} rows");
            expect_rows(&store, table, end);
            // Reads go on, and rows that are deleted make room, wherever they lie.
            delete(&store, table, end / 2, end);
            let refused = rewrite(&store, table, end / 2, 400, 4);
            assert!(merges(&store) > before + 5, "{refused} refused");
            expect_rows(&store, table, end / 2);
            check_disk(&medium, &store, 6 * MIB);
        }
    });
}

// A device without room for a merge made every change begin one that failed.
#[test]
fn a_merge_that_finds_no_room_is_begun_again_by_a_commit_and_no_sooner() {
    lsm(|| {
        for most in [None, Some(64 * MIB)] {
            let medium = SimMedium::new(2);
            let meddled = Meddled::new(&medium);
            let store = Store::open_on(meddled.clone(), bounded(most)).unwrap();
            let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
            let fresh = |first: u64| -> Vec<u64> { (first..first + 100).collect() };
            (0..100).for_each(|i| put(&store, table, &fresh(100 * i)).unwrap());
            store.commit(1, "", &[]).unwrap();
            assert!(merges(&store) > 0);
            let begun = Arc::new(AtomicU64::new(0));
            let counted = Arc::clone(&begun);
            meddled.meddle(move |(verb, name)| {
                if verb == "open" && name.starts_with("part-") {
                    counted.fetch_add(1, Ordering::Relaxed);
                    let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
                    return Err(Error::os(format!("open {name}"), full));
                }
                Ok(())
            });
            let said = store.stats().unwrap().disk_bytes;
            let mut end = 10_000;
            for commits in 1..=5 {
                for _ in 0..40 {
                    put(&store, table, &fresh(end)).unwrap();
                    end += 100;
                }
                let begun = begun.load(Ordering::Relaxed);
                assert!(begun <= 1 + commits, "{begun} begun, {commits} commits");
                store.commit(1 + commits, "", &[]).unwrap();
            }
            assert!(begun.load(Ordering::Relaxed) > 3);
            expect_rows(&store, table, end);
            let stopped = merges(&store);
            meddled.leave();
            store.commit(9, "", &[]).unwrap();
            put(&store, table, &fresh(end)).unwrap();
            assert!(merges(&store) > stopped, "no merge since there is room");
            assert!(store.stats().unwrap().disk_bytes > said);
            check_disk(&medium, &store, u64::MAX);
        }
    });
}

#[test]
fn the_file_of_the_room_may_be_whole_cut_long_or_missing() {
    lsm(|| {
        let made = SimMedium::new(3);
        let (store, table) = open(&made, bounded(Some(5 * MIB)));
        let (end, _) = fill(&store, table, 0);
        delete(&store, table, end * 3 / 4, end);
        store.commit(1_000_000, "", &[]).unwrap();
        rewrite(&store, table, end / 2, 100, 5);
        store.commit(1_000_001, "", &[]).unwrap();
        store.close().unwrap();
        drop(store);
        for (what, change) in [
            ("whole", None),
            ("cut", Some(Some(5000))),
            ("long", Some(Some(2 * MIB))),
            ("empty", Some(Some(0))),
            ("missing", Some(None)),
        ] {
            let medium = made.reboot(3);
            match change {
                Some(Some(bytes)) => {
                    medium.open(ROOM, OpenMode::ReadWrite).unwrap().set_len(bytes).unwrap();
                }
                Some(None) => medium.remove(ROOM).unwrap(),
                None => {}
            }
            let before = medium.state_of(ROOM).map(|state| state.bytes).unwrap_or(0);
            let (store, table) = open(&medium, bounded(Some(5 * MIB)));
            expect_rows(&store, table, end * 3 / 4);
            assert_eq!(medium.state_of(ROOM).map_or(0, |state| state.bytes), before, "{what}");
            rewrite(&store, table, end / 2, 200, 5);
            assert!(merges(&store) > 0, "{what}");
            expect_rows(&store, table, end * 3 / 4);
            check_disk(&medium, &store, 5 * MIB);
        }
    });
}

#[test]
fn a_bound_may_be_raised_lowered_and_left_out_at_an_opening() {
    lsm(|| {
        let medium = SimMedium::new(4);
        let mut end = 0;
        let mut step = 0;
        // Larger partitions come from the openings with more room.
        for most in [Some(5 * MIB), None, Some(9 * MIB), Some(16 * MIB)] {
            let (store, table) = open(&medium, bounded(most));
            expect_rows(&store, table, end);
            end = match most {
                Some(_) => fill(&store, table, end).0,
                None => {
                    let keys: Vec<u64> = (end..end + 5000).collect();
                    keys.chunks(500).for_each(|keys| put(&store, table, keys).unwrap());
                    end + 5000
                }
            };
            if most == Some(16 * MIB) {
                delete(&store, table, end / 6, end);
            }
            step += 1;
            store.commit(step, "", &[]).unwrap();
            store.close().unwrap();
        }
        // Far beneath what is in use: what is there can be read, and commits alone get below.
        let (store, table) = open(&medium, bounded(Some(8 * MIB)));
        expect_rows(&store, table, end / 6);
        assert!(store.stats().unwrap().disk_bytes > 10 * MIB);
        assert_eq!(put(&store, table, &[1]).unwrap_err().kind(), ErrorKind::Full);
        let is_taken = |step: &u64| {
            store.commit(1_000_000 + step, "", &[]).unwrap();
            put(&store, table, &[1]).is_ok()
        };
        let commits = (1..60).find(is_taken);
        assert!(commits.is_some(), "{:#?}", store.stats());
        rewrite(&store, table, end / 6, 200, 5);
        expect_rows(&store, table, end / 6);
        check_disk(&medium, &store, 8 * MIB);
    });
}
