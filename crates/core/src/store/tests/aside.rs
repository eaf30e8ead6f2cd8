//! Upkeep that cannot read something: what it leaves alone, tries again, and does beside it.

use super::merges::Merging;
use super::*;
use crate::storage::StorageBudget;

fn damage(store: &Store) -> Vec<String> {
    store.stats().unwrap().classes[0].damage.clone()
}

/// Merges went on until no tombstone was left, with partitions that had none, too.
#[test]
fn tombstones_are_dropped_by_merges_of_their_partitions_alone() {
    for dense in [true, false] {
        let medium = SimMedium::new(21);
        let mut merging = Merging::open(&medium, dense, |options| options);
        (0..500).for_each(|_| merging.step(false));
        for step in 1..=3 {
            merging.store.commit(step, "", &[]).unwrap();
        }
        let Merging { store, table, rows, .. } = &mut merging;
        // Few enough that they lie in some of the partitions alone.
        let doomed: Vec<u64> = rows.keys().copied().take(if dense { 60 } else { 2 }).collect();
        store.delete(*table, &doomed).unwrap();
        doomed.iter().for_each(|key| _ = rows.remove(key));
        let before = merging.with_lsm(|lsm| lsm.partitions_with_tombstones());
        let with = before.iter().filter(|(_, has)| *has).count();
        assert!(with > 0 && before.len() >= with + 2, "{before:?}");
        merging.with_lsm(StorageBudget::drop_deleted_soon);
        for step in 4..10 {
            merging.store.commit(step, "", &[]).unwrap();
        }
        let after = merging.with_lsm(|lsm| lsm.partitions_with_tombstones());
        assert!(after.iter().all(|(_, has)| !has), "dense: {dense}, {after:?}");
        assert!(!merging.with_lsm(|lsm| lsm.drops_tombstones()));
        let stays = |(number, has): &&(u32, bool)| !has && after.contains(&(*number, false));
        let stayed = before.iter().filter(stays).count();
        // A small one may have joined.
        assert!(stayed + 1 >= before.len() - with, "dense: {dense}, {before:?} became {after:?}");
        merging.check_rows();
    }
}

/// Tombstones of a partition that is set aside were waited for as long as the store was open.
#[test]
fn tombstones_of_damaged_partitions_are_not_waited_for() {
    let medium = SimMedium::new(22);
    let mut merging = Merging::open(&medium, true, |options| options);
    (0..500).for_each(|_| merging.step(false));
    for step in 1..=3 {
        merging.store.commit(step, "", &[]).unwrap();
    }
    let first = merging.with_lsm(|lsm| lsm.partitions_with_tombstones()[0].0);
    let file = Medium::list(&medium, "part-0-").unwrap().into_iter().find(|name| {
        let digits = name.rsplit('-').next().unwrap();
        digits.parse::<u32>().is_ok_and(|number| number == first)
    });
    let Merging { store, table, rows, .. } = &mut merging;
    let doomed: Vec<u64> = rows.keys().copied().take(60).collect();
    store.delete(*table, &doomed).unwrap();
    medium.flip_bit(&file.expect("the first partition has a file"), 512 + 100);
    merging.with_lsm(StorageBudget::drop_deleted_soon);
    for step in 4..8 {
        merging.store.commit(step, "", &[]).unwrap();
    }
    let named = damage(&merging.store);
    assert!(named.len() == 1 && named[0].contains("part-0-"), "{named:?}");
    let partitions = merging.with_lsm(|lsm| lsm.partitions_with_tombstones());
    assert!(partitions[0] == (first, true), "{partitions:?}");
    assert!(!merging.with_lsm(|lsm| lsm.drops_tombstones()));
    for step in 8..12 {
        merging.store.commit(step, "", &[]).unwrap();
    }
    assert_eq!(merging.with_lsm(|lsm| lsm.partitions_with_tombstones()), partitions);
}

/// Before there was a partition, one page that could not be read kept all rows in the top.
#[test]
fn a_damaged_page_of_the_top_keeps_its_rows_there_and_no_others() {
    for dense in [true, false] {
        let medium = SimMedium::new(23);
        let mut merging = Merging::open(&medium, dense, |options| options);
        // Its keys cannot look like one of the page that is damaged.
        let others = TableSpec {
            storage: StorageKind::Lsm,
            ..spec("u", dense.then_some(20_000), OptimizerKind::Sgd)
        };
        let others = merging.store.table(&others).unwrap();
        merging.step(false);
        merging.store.commit(1, "", &[]).unwrap();
        assert_eq!(merging.with_lsm(|lsm| lsm.rows_of_partitions()), [] as [u64; 0]);
        // A page in the middle of the rows of that commit.
        medium.flip_bit("rows-0", 5 * 512 + 100);
        let mut written = BTreeMap::new();
        while merges(&merging.store) < 12 {
            let keys: Vec<u64> = (0..200).map(|_| merging.random(20_000)).collect();
            let value = written.len() as f32;
            let values = vec![value; keys.len() * DIM];
            merging.store.put(&[put_of(others, &keys, &values)]).unwrap();
            written.extend(keys.iter().map(|key| (*key, value)));
            merging.store.commit(2, "", &[]).unwrap();
        }
        let named = damage(&merging.store);
        assert!((1..=2).contains(&named.len()), "{named:?}");
        assert!(
            named.iter().all(|one| one.contains("rows-0") && one.contains("page 5")),
            "{named:?}"
        );
        let below: u64 = merging.with_lsm(|lsm| lsm.rows_of_partitions()).iter().sum();
        assert!(below > 1000, "dense: {dense}, {below} rows were merged");
        let Merging { store, table, rows, .. } = merging;
        store.commit(3, "", &[]).unwrap();
        store.close().unwrap();
        drop(store);
        let merging = Merging::open(&medium, dense, |options| options);
        let value_of = |table, key: u64| {
            let mut values = [0.0; DIM];
            let out = (&mut values[..]).into();
            let get = GetBatch { table, keys: &[key], values: out, state: None };
            merging.store.get(&mut [get]).map(|_| values)
        };
        for (key, value) in &written {
            assert_eq!(value_of(others, *key).unwrap(), [*value; DIM], "dense: {dense}, {key}");
        }
        let mut lost = 0;
        for (key, value) in &rows {
            match value_of(table, *key) {
                Ok(values) => assert_eq!(values, [*value; DIM], "dense: {dense}, key {key}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    lost += 1;
                }
            }
        }
        assert!((1..30).contains(&lost), "dense: {dense}, {lost} rows are lost");
    }
}

/// One read that failed counted as damage until the store was opened again.
#[test]
fn an_error_of_the_device_that_passes_is_told_and_tried_again() {
    each_kind(|| {
        let medium = SimMedium::new(24);
        let store = Store::open_on(Arc::new(medium.clone()), options(300 << 10)).unwrap();
        let table = store.table(&spec("t", Some(8000), OptimizerKind::Sgd)).unwrap();
        let mut random = Random(24);
        let mut rows = BTreeMap::new();
        let mut write = |step: u64, fails: bool| {
            let keys: Vec<u64> = (0..200).map(|_| random.below(8000)).collect();
            let value = step as f32;
            let is_log = KIND.get() == StorageKind::Log;
            // Puts to a log read nothing, and commits to none: upkeep alone does.
            if fails && is_log {
                medium.fail_read(0);
            }
            store.put(&[put_of(table, &keys, &vec![value; keys.len() * DIM])]).unwrap();
            rows.extend(keys.iter().map(|key| (*key, value)));
            if fails && !is_log {
                medium.fail_read(random.below(20));
            }
            if step.is_multiple_of(3) || !is_log {
                store.commit(step, "", &[]).unwrap();
            }
            medium.fail_read(u64::MAX);
        };
        (0..200).for_each(|step| write(step, false));
        let (mut told, mut step) = (0, 200);
        for _ in 0..5 {
            while damage(&store).is_empty() {
                write(step, true);
                step += 1;
                assert!(step < 1200, "upkeep meets no error");
            }
            let named = damage(&store);
            assert!(named.iter().all(|one| one.contains("is tried again")), "{named:?}");
            told += named.len();
            let until = step + 400;
            while !damage(&store).is_empty() {
                write(step, false);
                step += 1;
                assert!(step < until, "{:?} is told for ever", damage(&store));
            }
        }
        assert!(told >= 5, "{told} errors were told");
        let before = (store.stats().unwrap().rows_moved, merges(&store));
        (step..step + 200).for_each(|step| write(step, false));
        let stats = store.stats().unwrap();
        assert!(stats.rows_moved > before.0 + 500, "upkeep goes on");
        assert!(KIND.get() == StorageKind::Log || merges(&store) > before.1);
        let keys: Vec<u64> = rows.keys().copied().collect();
        let mut values = vec![0.0; keys.len() * DIM];
        let out = (&mut values[..]).into();
        store.get(&mut [GetBatch { table, keys: &keys, values: out, state: None }]).unwrap();
        for (value, expected) in values.chunks_exact(DIM).zip(rows.values()) {
            assert_eq!(value, [*expected; DIM]);
        }
    });
}

/// With filters and little memory a partition had the rows of a segment, whose filter took more
/// than the plan of the budget has for a merge.
#[test]
fn partitions_with_filters_have_no_more_rows_than_a_merge_has_memory_for() {
    let medium = SimMedium::new(25);
    let more = |options| StoreOptions {
        filters: true,
        segment_bytes: Some(1 << 20),
        memory: Memory::Bytes(1400 << 10),
        ..options
    };
    let mut merging = Merging::open(&medium, false, more);
    for first in (0..160_000u64).step_by(2000) {
        let keys: Vec<u64> = (first..first + 2000).collect();
        let values = vec![1.5; keys.len() * DIM];
        merging.store.put(&[put_of(merging.table, &keys, &values)]).unwrap();
        merging.rows.extend(keys.iter().map(|key| (*key, 1.5)));
        if first % 20_000 == 0 {
            merging.store.commit(first, "", &[]).unwrap();
        }
    }
    let rows = merging.with_lsm(|lsm| lsm.rows_of_partitions());
    // Two portions of 16 KiB, 5 bytes for each row.
    assert!(rows.len() > 4 && rows.iter().all(|rows| *rows <= 2 * (16 << 10) / 5), "{rows:?}");
    merging.check_rows();
}

/// Tombstones took the room that a plan of the budget has left for the index of a dense table, and
/// changes that wait and what came beside a merge were not in the plan.
#[test]
fn an_lsm_stays_within_its_budget() {
    with_kind(StorageKind::Lsm, || {
        for (seed, rows, segment_bytes) in
            [(1, 3000, 8 << 10), (2, 60_000, 8 << 10), (3, 60_000, 32 << 10)]
        {
            for more in [0, 400 << 10, 1 << 20] {
                for dense in [true, false] {
                    load_within_budget(seed, rows, segment_bytes, dense, more);
                }
            }
        }
    });
}

/// Puts and deletes rows within the least budget that works and so many bytes more.
fn load_within_budget(seed: u64, rows: u64, segment_bytes: u64, dense: bool, more: u64) {
    let medium = SimMedium::new(seed);
    let asked = TableSpec {
        expected_rows: Some(rows),
        ..spec("t", dense.then_some(rows), OptimizerKind::Sgd)
    };
    let open = |bytes| {
        let segment_bytes = Some(segment_bytes);
        let options = StoreOptions { segment_bytes, ..options_within(bytes) };
        Store::open_on(Arc::new(medium.clone()), options).unwrap()
    };
    let store = open(1);
    let error = store.table(&asked).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
    let named: u64 = error.message().rsplit("memory=").next().unwrap().parse().unwrap();
    store.close().unwrap();
    drop(store);
    let budget = named + more;
    let store = open(budget);
    let table = store.table(&asked).unwrap();
    let mut random = Random(seed);
    let check = |what: &str, round: u64| {
        let memory = store.stats().unwrap().memory;
        assert!(
            memory.total() <= budget,
            "{rows} rows, dense: {dense}, {more} more, {what} of round {round}: {memory:?}, {} of \
             {budget}",
            memory.total()
        );
    };
    for round in 0..200u64 {
        let keys: Vec<u64> = (0..200).map(|_| random.below(rows)).collect();
        match round % 7 {
            6 => match store.delete(table, &keys) {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Budget, "{error}"),
                Ok(_) => check("deletes", round),
            },
            _ => {
                store.put(&[put_of(table, &keys, &vec![0.5; 200 * DIM])]).unwrap();
                check("puts", round);
            }
        }
        if round % 20 == 19 {
            store.commit(round, "", &[]).unwrap();
            check("commit", round);
        }
    }
}

/// The next merge panicked, and with it every verb.
#[test]
fn a_page_that_is_set_aside_may_be_cut_off_the_file() {
    let medium = SimMedium::new(26);
    let mut merging = Merging::open(&medium, true, |options| options);
    let mut step = 0;
    let mut commit = |merging: &Merging| {
        step += 1;
        merging.store.commit(step, "", &[]).unwrap();
    };
    let rows_bytes = || medium.contents("rows-0").len() as u64;
    // A page towards the end of the file that a merge has met.
    let mut tries = 0;
    let page = loop {
        tries += 1;
        assert!(tries < 100, "no merge meets a page that is damaged");
        (0..10).for_each(|_| merging.step(false));
        commit(&merging);
        let (end, table) = (rows_bytes() / 512, merging.table.0);
        let above = merging.with_lsm(|lsm| lsm.pages_above(table, 20_000));
        // A merge may have left none.
        let Some(last) = above.into_iter().rfind(|page| u64::from(*page) < end) else { continue };
        medium.flip_bit("rows-0", u64::from(last) * 512 + 100);
        for _ in 0..20 {
            merging.step(false);
            commit(&merging);
        }
        let met = merging.with_lsm(|lsm| lsm.pages_not_read());
        if let Some(page) = met.last().filter(|page| 2 * u64::from(**page) > end) {
            break u64::from(*page);
        }
    };
    let all: Vec<u64> = merging.rows.keys().copied().collect();
    for keys in all.chunks(200) {
        while let Err(error) = merging.store.delete(merging.table, keys) {
            assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
            commit(&merging);
        }
    }
    merging.rows.clear();
    let few: Vec<u64> = (0..40).collect();
    merging.rows.extend(few.iter().map(|key| (*key, 1.0)));
    for commits in 0.. {
        // Rows that are written again leave the segment that was being filled.
        merging.store.put(&[put_of(merging.table, &few, &[1.0; 40 * DIM])]).unwrap();
        commit(&merging);
        if rows_bytes() <= page * 512 {
            break;
        }
        assert!(commits < 40, "page {page} stays, of {} bytes", rows_bytes());
    }
    let before = merges(&merging.store);
    for _ in 0..100 {
        merging.step(false);
        commit(&merging);
    }
    assert!(merges(&merging.store) > before + 3);
    merging.check_rows();
}

/// Once many pages were remembered no partition was, and one that cannot be merged was picked for
/// ever.
#[test]
fn a_partition_is_set_aside_where_many_pages_are_already() {
    let medium = SimMedium::new(27);
    let mut merging = Merging::open(&medium, true, |options| options);
    (0..300).for_each(|_| merging.step(false));
    merging.store.commit(1, "", &[]).unwrap();
    let named = merging.with_lsm(|lsm| lsm.note_damage(40));
    let named = named.expect("the first partition rests");
    let told = damage(&merging.store);
    let of_partition = told.iter().find(|one| one.starts_with(&named));
    assert!(of_partition.is_some_and(|one| one.contains("cannot be merged")), "{told:#?}");
    let before = merges(&merging.store);
    (0..200).for_each(|_| merging.step(false));
    assert!(merges(&merging.store) > before + 3, "the others are merged");
    merging.check_rows();
}
