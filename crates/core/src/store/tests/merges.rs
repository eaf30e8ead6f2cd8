//! Merges of a store with an lsm: what is counted of its top, which partitions are joined.

use super::*;
use crate::store::space::UnitUnderWay;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Rows of the table.
const ROWS: u64 = 20_000;

/// A store with one table in an lsm, dense or growing.
pub(super) struct Merging {
    pub(super) store: Store,
    pub(super) table: TableId,
    pub(super) rows: BTreeMap<u64, f32>,
    random: Random,
}

fn lsm_of(class: &engine::Class) -> MappedMutexGuard<'_, Lsm> {
    MutexGuard::map(class.log.lock(), |storage| {
        let storage: &mut dyn Any = &mut **storage;
        storage.downcast_mut().expect("the class has an lsm")
    })
}

impl Merging {
    pub(super) fn open(
        medium: &SimMedium,
        dense: bool,
        more: impl FnOnce(StoreOptions) -> StoreOptions,
    ) -> Self {
        let options = more(StoreOptions { memory: Memory::Bytes(900 << 10), ..options(0) });
        let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
        let lsm = TableSpec {
            storage: StorageKind::Lsm,
            ..spec("t", dense.then_some(ROWS), OptimizerKind::Sgd)
        };
        let table = store.table(&lsm).unwrap();
        Self { store, table, rows: BTreeMap::new(), random: Random(7) }
    }

    /// Puts a batch, or deletes a few rows.
    pub(super) fn step(&mut self, deletes: bool) {
        let keys: BTreeSet<u64> = (0..200).map(|_| self.random.below(ROWS)).collect();
        let keys: Vec<u64> = keys.into_iter().collect();
        if deletes {
            self.store.delete(self.table, &keys[..50]).unwrap();
            keys[..50].iter().for_each(|key| _ = self.rows.remove(key));
            return;
        }
        let value = self.random.below(1000) as f32;
        self.store.put(&[put_of(self.table, &keys, &vec![value; keys.len() * DIM])]).unwrap();
        self.rows.extend(keys.iter().map(|key| (*key, value)));
    }

    pub(super) fn with_lsm<T>(&self, look: impl FnOnce(&mut Lsm) -> T) -> T {
        look(&mut lsm_of(&self.store.inner.engine.read().classes[0]))
    }

    pub(super) fn random(&mut self, below: u64) -> u64 {
        self.random.below(below)
    }

    pub(super) fn check_rows(&self) {
        let keys: Vec<u64> = self.rows.keys().copied().collect();
        let mut values = vec![0.0; keys.len() * DIM];
        let out = (&mut values[..]).into();
        let batch = GetBatch { table: self.table, keys: &keys, values: out, state: None };
        self.store.get(&mut [batch]).unwrap();
        for (value, expected) in values.chunks_exact(DIM).zip(self.rows.values()) {
            assert_eq!(value, [*expected; DIM]);
        }
        assert_eq!(self.store.table_info(self.table).unwrap().rows, self.rows.len() as u64);
    }
}

#[test]
fn entries_of_the_top_are_counted_as_they_come_and_go() {
    for dense in [true, false] {
        let medium = SimMedium::new(3);
        let mut merging = Merging::open(&medium, dense, |options| options);
        let mut compared = 0;
        for round in 0..600u64 {
            merging.step(round > 150 && round % 4 == 0);
            if round % 70 == 69 {
                merging.store.commit(round, "", &[]).unwrap();
            }
            if round % 10 == 0
                && let Some(recount) = merging.with_lsm(|lsm| lsm.recount())
            {
                assert_eq!(recount.counted, recount.there, "dense: {dense}, round {round}");
                compared += recount.there.len();
            }
        }
        assert!(compared > 100, "{compared} counts of partitions");
        assert!(merges(&merging.store) > 10, "{} merges", merges(&merging.store));
        merging.check_rows();
        // A count that is wrong is seen.
        merging.with_lsm(|lsm| {
            lsm.miscount(0);
            let recount = lsm.recount().unwrap();
            assert_ne!(recount.counted, recount.there);
        });
    }
}

#[test]
fn what_is_there_when_a_store_is_opened_is_counted_too() {
    for dense in [true, false] {
        let medium = SimMedium::new(4);
        let mut merging = Merging::open(&medium, dense, |options| options);
        (0..300u64).for_each(|round| merging.step(round > 150 && round % 4 == 0));
        // Twice, for merges become durable with the next one.
        for step in 1..=2 {
            merging.store.commit(step, "", &[]).unwrap();
        }
        let above = merging.with_lsm(|lsm| lsm.recount().unwrap().there.iter().sum::<u64>());
        let Merging { store, rows, random, .. } = merging;
        store.close().unwrap();
        drop(store);
        let mut merging = Merging::open(&medium, dense, |options| options);
        (merging.rows, merging.random) = (rows, random);
        assert!(merging.with_lsm(|lsm| lsm.recount()).is_none(), "before the first merge is due");
        let before = merges(&merging.store);
        let mut seen = 0;
        for round in 0..300u64 {
            merging.step(round % 4 == 0);
            let Some(recount) = merging.with_lsm(|lsm| lsm.recount()) else { continue };
            seen += 1;
            if dense {
                assert_eq!(recount.counted, recount.there, "round {round}");
            }
            let sums = [&recount.counted, &recount.there].map(|of| of.iter().sum::<u64>());
            // Those of a growing table are near until each partition was merged once.
            assert!(sums[0].abs_diff(sums[1]) <= above / 4, "{recount:?}");
        }
        assert!(seen > 100 && merges(&merging.store) > before + 5, "{seen} recounts");
        merging.check_rows();
    }
}

#[test]
fn the_reader_of_a_window_does_steps_of_merges() {
    let medium = SimMedium::new(6);
    // Long partitions: merges of short ones never keep up with keys drawn at random.
    let with_window = |options| StoreOptions {
        memory: Memory::Bytes(2 << 20),
        window_bytes: Some(200 << 10),
        segment_bytes: Some(64 << 10),
        top_share: Some(0.3),
        ..options
    };
    let mut merging = Merging::open(&medium, true, with_window);
    // Its threads begin with the first batch, and are left upkeep until the last one is begun.
    let batch = LookaheadBatch { table: merging.table, keys: &[1, 2, 3], next: &[] };
    merging.store.announce(&[batch]).unwrap().unwrap();
    let steps = |merging: &Merging| merging.store.window_stats().unwrap().upkeep;
    let begun = Instant::now();
    for step in 1.. {
        if steps(&merging) > 20 {
            break;
        }
        merging.step(false);
        if step % 20 == 0 {
            merging.store.commit(step, "", &[]).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", merging.store.window_stats());
    }
    merging.check_rows();
    // One that is paused leaves all to the verbs.
    merging.store.pause_window(true).unwrap();
    let before = (steps(&merging), merges(&merging.store));
    for step in 0..400 {
        merging.step(false);
        if step % 20 == 0 {
            merging.store.commit(10_000_000 + step, "", &[]).unwrap();
        }
    }
    assert_eq!(steps(&merging), before.0);
    assert!(merges(&merging.store) > before.1 + 2, "{} merges", merges(&merging.store));
    merging.check_rows();
}

// Every commit freed segments that the merge still might read, and nobody did its steps: the file
// grew with each of them.
#[test]
fn a_merge_that_commits_meet_does_not_keep_what_they_release() {
    let medium = SimMedium::new(10);
    let gated = |options| StoreOptions { upkeep_scheduler: UpkeepScheduler::Gate, ..options };
    let mut merging = Merging::open(&medium, true, gated);
    let is_under_way = |store: &Store| {
        let engine = store.inner.engine.read();
        matches!(*engine.classes[0].unit.lock(), UnitUnderWay::Running(_))
    };
    (0..300).for_each(|_| merging.step(false));
    // No row waits to come to the top, which has some more than its share and is far from pressed.
    let begun = (0..200).any(|step| {
        if !is_under_way(&merging.store) {
            merging.step(false);
        }
        merging.store.commit(step, "", &[]).unwrap();
        let recount = merging.with_lsm(|lsm| lsm.recount()).unwrap();
        is_under_way(&merging.store) && recount.there.iter().sum::<u64>() < ROWS / 8
    });
    assert!(begun, "{} merges", merges(&merging.store));
    // Nothing is read ahead from here on, so the gate is shut.
    let Merging { store, table, rows, .. } = &mut merging;
    store.window_by_hand();
    store.announce(&[LookaheadBatch { table: *table, keys: &[1, 2], next: &[] }]).unwrap().unwrap();
    let keys: Vec<u64> = (0..200).collect();
    let mut most = [0; 2];
    for round in 0..200 {
        let values = vec![round as f32; keys.len() * DIM];
        store.put(&[put_of(*table, &keys, &values)]).unwrap();
        store.commit(round, "", &[]).unwrap();
        let most = &mut most[round as usize / 100];
        *most = store.inner.disk_bytes().max(*most);
    }
    assert!(most[1] <= most[0], "bytes of disk in the first 100 rounds, and after: {most:?}");
    rows.extend(keys.iter().map(|key| (*key, 199.0)));
    merging.check_rows();
}

#[test]
fn partitions_of_which_most_rows_are_deleted_are_joined() {
    for dense in [true, false] {
        let medium = SimMedium::new(5);
        let mut merging = Merging::open(&medium, dense, |options| options);
        (0..500).for_each(|_| merging.step(false));
        let full = merging.with_lsm(|lsm| lsm.rows_of_partitions());
        assert!(full.len() >= 5, "{full:?}");
        let keys: Vec<u64> = merging.rows.keys().copied().collect();
        for keys in keys.chunks(200) {
            let gone: Vec<u64> = keys.iter().copied().filter(|key| key % 40 != 0).collect();
            let deleted = merging.store.delete(merging.table, &gone).or_else(|error| {
                assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
                merging.store.commit(1, "", &[])?;
                merging.store.delete(merging.table, &gone)
            });
            deleted.unwrap();
            gone.iter().for_each(|key| _ = merging.rows.remove(key));
        }
        // Rows that are put to a few keys make merges go on.
        let kept: Vec<u64> = merging.rows.keys().copied().collect();
        for round in 0..300u64 {
            let value = round as f32;
            let values = vec![value; kept.len() * DIM];
            merging.store.put(&[put_of(merging.table, &kept, &values)]).unwrap();
            merging.rows.values_mut().for_each(|of| *of = value);
            if round % 20 == 0 {
                merging.store.commit(round, "", &[]).unwrap();
            }
        }
        let left = merging.with_lsm(|lsm| lsm.rows_of_partitions());
        assert!(left.len() * 3 < full.len(), "dense: {dense}, {full:?} became {left:?}");
        merging.check_rows();
    }
}

#[test]
fn what_a_crash_has_left_goes_before_the_first_change() {
    let medium = SimMedium::new(6);
    let mut merging = Merging::open(&medium, true, |options| options);
    (0..100).for_each(|_| merging.step(false));
    merging.store.commit(1, "", &[]).unwrap();
    let rows = merging.rows.clone();
    merging.store.close().unwrap();
    drop(merging);
    medium.open("part-0-900", OpenMode::CreateNew).unwrap();
    let mut merging = Merging::open(&medium, true, |options| options);
    merging.rows = rows;
    merging.check_rows();
    assert!(has_file(&medium, "part-0-900").unwrap(), "a store that is only read stays as it is");
    merging.step(false);
    assert!(!has_file(&medium, "part-0-900").unwrap());
    merging.check_rows();
}

#[test]
fn every_picker_merges_all_that_it_has_to() {
    let mut written = Vec::new();
    for merge_picker in MergePicker::ALL {
        let medium = SimMedium::new(8);
        let more = |options| StoreOptions { merge_picker, ..options };
        let mut merging = Merging::open(&medium, false, more);
        for round in 0..400u64 {
            merging.step(round > 200 && round % 5 == 0);
        }
        merging.check_rows();
        let counts = merging.with_lsm(|lsm| crate::storage::StorageCounts::stats(lsm)).merged;
        assert!(counts.merges > 10 && counts.taken > ROWS / 4, "{merge_picker:?}: {counts:?}");
        assert!(counts.bytes_read > counts.bytes_read_above && counts.bytes_read_above > 0);
        assert!(counts.copied <= counts.rows && counts.rows <= counts.copied + counts.taken);
        written.push(counts.bytes_written);
    }
    assert!(written[1..].iter().any(|bytes| *bytes != written[0]), "they pick alike: {written:?}");
}

#[test]
fn a_smaller_top_is_merged_more_often() {
    let merged = |top_share| {
        let medium = SimMedium::new(9);
        let mut merging = Merging::open(&medium, true, |options| StoreOptions {
            top_share: Some(top_share),
            ..options
        });
        (0..300).for_each(|_| merging.step(false));
        merging.check_rows();
        let above = merging.with_lsm(|lsm| lsm.recount().map(|recount| recount.there));
        (merges(&merging.store), above.unwrap().iter().sum::<u64>())
    };
    let (small, large) = (merged(0.05), merged(0.5));
    assert!(small.0 > large.0 && small.1 < large.1, "merges and rows above: {small:?} {large:?}");
}

/// Files that came and went within one epoch counted once the store was opened again.
#[test]
fn files_that_no_commit_had_count_no_more_when_a_store_is_opened_again() {
    for dense in [true, false] {
        let medium = SimMedium::new(10);
        let mut merging = Merging::open(&medium, dense, |options| options);
        for step in 1..=3 {
            (0..50).for_each(|_| merging.step(false));
            merging.store.commit(step, "", &[]).unwrap();
        }
        let before = merges(&merging.store);
        while merges(&merging.store) < before + 12 {
            merging.step(false);
        }
        merging.store.commit(4, "", &[]).unwrap();
        let said = merging.store.stats().unwrap().disk_bytes;
        let files = merging.with_lsm(|lsm| lsm.bytes_of_files());
        let Merging { store, rows, .. } = merging;
        store.close().unwrap();
        drop(store);
        // That leaves room for what changes need.
        let max_disk_bytes = Some(said + (1 << 20));
        let bounded = |options| StoreOptions { max_disk_bytes, ..options };
        let mut merging = Merging::open(&medium, dense, bounded);
        let found = merging.store.stats().unwrap().disk_bytes;
        assert!(found <= said, "dense: {dense}, {found} bytes, {said} before");
        let found = merging.with_lsm(|lsm| lsm.bytes_of_files());
        assert!(found <= files, "dense: {dense}, files of {found} bytes, {files} before");
        merging.rows = rows;
        merging.step(false);
        merging.check_rows();
    }
}

/// Files that a scan had open were removed, and counted as free.
#[test]
fn files_that_a_scan_reads_count_until_it_ends() {
    for dense in [true, false] {
        let medium = SimMedium::new(11);
        let mut merging = Merging::open(&medium, dense, |options| options);
        let scanned =
            TableSpec { storage: StorageKind::Lsm, ..spec("scanned", None, OptimizerKind::Sgd) };
        let scanned = merging.store.table(&scanned).unwrap();
        for first in (0..3000u64).step_by(500) {
            let keys: Vec<u64> = (first..first + 500).collect();
            let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
            merging.store.put(&[put_of(scanned, &keys, &values)]).unwrap();
        }
        (0..150).for_each(|_| merging.step(false));
        merging.store.commit(1, "", &[]).unwrap();
        let mut scan = merging.store.scan(scanned).unwrap();
        let (mut keys, mut values) = (vec![0; 10], vec![0.0; 10 * DIM]);
        let mut count = scan.next_batch(&mut keys, &mut values, None).unwrap();
        let (before, mut step) = (merges(&merging.store), 2);
        let counted = |merging: &Merging| {
            let said = merging.store.stats().unwrap().disk_bytes;
            let taken = medium.taken_bytes();
            assert!(taken <= said, "dense: {dense}, {taken} bytes taken, {said} said");
            said
        };
        while merges(&merging.store) < before + 30 {
            merging.step(false);
            if step % 3 == 0 {
                merging.store.commit(step, "", &[]).unwrap();
                counted(&merging);
            }
            step += 1;
        }
        let mut found = 0;
        while count > 0 {
            for (key, value) in keys.iter().zip(values.chunks_exact(DIM)).take(count) {
                assert_eq!(value, [*key as f32; DIM]);
            }
            found += count;
            count = scan.next_batch(&mut keys, &mut values, None).unwrap();
        }
        assert_eq!(found, 3000);
        let during = counted(&merging);
        drop(scan);
        for step in step..step + 3 {
            merging.store.commit(step, "", &[]).unwrap();
        }
        assert!(counted(&merging) + (512 << 10) < during, "what the scan kept is given back");
        merging.check_rows();
    }
}
