//! A store under a disk bound: what is refused, what goes on, and that it goes on for ever.

use super::*;
use crate::storage::log::TableIndex;

/// Puts blocks of rows until the store says that it is full; returns the next key.
pub(super) fn fill(store: &Store, table: TableId, mut next: u64) -> (u64, crate::Error) {
    loop {
        let keys: Vec<u64> = (next..next + 100).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        match store.put(&[put_of(table, &keys, &values)]) {
            Ok(_) => next += 100,
            Err(error) => return (next, error),
        }
        assert!(next < 1_000_000, "the store never got full");
    }
}

pub(super) fn expect_rows(store: &Store, table: TableId, end: u64) {
    let keys: Vec<u64> = (0..end).collect();
    let mut values = vec![0.0; keys.len() * DIM];
    let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
    store.get(&mut [get]).unwrap();
    for key in keys {
        assert_eq!(values[key as usize * DIM], key as f32, "key {key}");
    }
    assert_eq!(store.len(table).unwrap(), end);
}

#[test]
fn a_full_disk_refuses_whole_batches_and_lets_reads_and_commits_go_on() {
    each_kind(|| {
        for bounded in [false, true] {
            let medium = SimMedium::new(3);
            let mut options = options(1 << 20);
            if bounded {
                options.max_disk_bytes = Some(3 << 20);
            } else {
                medium.set_capacity(Some(3 << 20));
            }
            let store = Store::open_on(Arc::new(medium.clone()), options.clone()).unwrap();
            let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
            let (end, error) = fill(&store, table, 0);
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            assert!(end > 1000, "only {end} rows fit");
            expect_rows(&store, table, end);
            store.commit(1, "", &[("s", b"state")]).unwrap();
            expect_rows(&store, table, end);
            store.close().unwrap();
            medium.set_capacity(None);
            options.max_disk_bytes = None;
            let store = Store::open_on(Arc::new(medium), options).unwrap();
            expect_rows(&store, table, end);
            let keys: Vec<u64> = (end..end + 100).collect();
            let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
            store.put(&[put_of(table, &keys, &values)]).unwrap();
            expect_rows(&store, table, end + 100);
        }
    });
}

// Pieces of the index took the room of the record that was to follow them; names of states had
// none.
#[test]
fn a_commit_with_a_long_record_is_made_or_refused_before_anything_is_written() {
    each_kind(|| {
        long_record(&"\u{1}".repeat(256 << 10), 0);
        long_record("", 4000);
    });
}

fn long_record(meta: &str, states: usize) {
    const ROWS: u64 = 100_000;
    const STEP: u64 = 512 << 10;
    let names: Vec<String> = (0..states).map(|i| format!("{i:\u{1}>100}")).collect();
    let state: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &[][..])).collect();
    let keys: Vec<u64> = (0..ROWS).map(|i| i * 7919 % ROWS).collect();
    let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
    let mut refused = 0;
    let step = stride(2);
    let made = (0..100).step_by(step as usize).find(|more| {
        let medium = SimMedium::new(6);
        let store = Store::open_on(Arc::new(medium.clone()), options(64 << 20)).unwrap();
        let table = store.table(&spec("t", Some(ROWS), OptimizerKind::Sgd)).unwrap();
        store.put(&[put_of(table, &keys, &values)]).unwrap();
        store.commit(0, "", &[]).unwrap();
        store.put(&[put_of(table, &keys[..100], &values[..100 * DIM])]).unwrap();
        // A journal that had no room makes the next commit write all of the index.
        let used = store.stats().unwrap().disk_bytes;
        medium.set_capacity(Some(used));
        store.put(&[put_of(table, &keys, &values)]).unwrap_err();
        medium.set_capacity(Some(used + more * STEP));
        let commit = store.commit(1, meta, &state);
        if let Err(error) = &commit {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            // Neither this nor what follows says that the store must be opened again.
            medium.set_capacity(None);
            refused += 1;
            store.commit(1, meta, &state).unwrap();
        }
        store.close().unwrap();
        let store = Store::open_on(Arc::new(medium), options(64 << 20)).unwrap();
        assert_eq!(store.commits().last().unwrap().meta, meta);
        expect_rows(&store, table, keys.len() as u64);
        commit.is_ok()
    });
    assert!(made.is_some() && refused * step > 2, "made with {made:?}, refused {refused} times");
}

/// Writes rows, with a commit where the store is full; panics when three do not help.
fn put_with_commits(store: &Store, table: TableId, keys: &[u64], step: &mut u64, state: &[u8]) {
    let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
    for attempt in 0.. {
        match store.put(&[put_of(table, keys, &values)]) {
            Ok(_) => return,
            Err(error) if attempt < 3 => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
            Err(error) => panic!("after {attempt} commits: {error}"),
        }
        *step += 1;
        let named = [("s", state)];
        store.commit(*step, "", if state.is_empty() { &[] } else { &named }).unwrap();
    }
}

// Records of commits filled the journal, and only deltas counted towards the next.
#[test]
fn a_full_store_takes_a_row_and_a_commit_for_ever() {
    each_kind(|| {
        let most = 4 << 20;
        let options = StoreOptions { max_disk_bytes: Some(most), ..options(1 << 20) };
        let store = Store::open_on(Arc::new(SimMedium::new(12)), options).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        let (all, _) = fill(&store, table, 0);
        let (mut step, meta, end) = (0, "m".repeat(8000), all / 2);
        // The file of rows stays as large as it is.
        for first in (end..all).step_by(100) {
            let keys: Vec<u64> = (first..all.min(first + 100)).collect();
            while store.delete(table, &keys).is_err() {
                step += 1;
                store.commit(step, "", &[]).unwrap();
                assert!(step < 1000, "no room for deletes");
            }
        }
        for i in 0..2000 {
            put_with_commits(&store, table, &[i * 7 % end], &mut step, &[]);
            step += 1;
            store.commit(step, &meta, &[]).unwrap();
            let used = store.stats().unwrap().disk_bytes;
            assert!(used <= most, "{used} of {most} bytes after {i}");
        }
        expect_rows(&store, table, end);
    });
}

// One state's room was kept, where two commits are kept and a third comes before the first goes.
#[test]
fn states_of_commits_find_their_room_within_a_disk_bound() {
    each_kind(|| {
        let most = 12 << 20;
        let state = vec![7; 900 << 10];
        let options = StoreOptions { max_disk_bytes: Some(most), ..options(1 << 20) };
        let store = Store::open_on(Arc::new(SimMedium::new(13)), options).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        let put = |keys: &[u64]| {
            let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
            store.put(&[put_of(table, keys, &values)]).map(drop)
        };
        put(&[0]).unwrap();
        store.commit(1, "", &[("s", &state)]).unwrap();
        let (end, _) = fill(&store, table, 0);
        let mut random = Random(4);
        let mut step = 1;
        for _ in 0..60 {
            let keys: Vec<u64> = (0..1000).map(|_| random.below(end)).collect();
            put_with_commits(&store, table, &keys, &mut step, &state);
            step += 1;
            store.commit(step, "", &[("s", &state)]).unwrap();
            let used = store.stats().unwrap().disk_bytes;
            assert!(used <= most, "{used} of {most} bytes at step {step}");
        }
        let error = store.commit(step + 1, "", &[("s", &vec![0; 4 << 20])]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        store.commit(step + 1, "", &[("s", &state)]).unwrap();
        expect_rows(&store, table, end);
    });
}

/// On a device without room for more, rows that are taken beside a commit can be committed.
#[test]
fn what_a_full_device_takes_beside_a_commit_has_room_for_the_next() {
    each_kind(|| {
        let mut taken = 0;
        for rows in (500..8_000).step_by(500) {
            let medium = SimMedium::new(14);
            let store = Store::open_on(Arc::new(medium.clone()), options(64 << 20)).unwrap();
            let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
            let keys: Vec<u64> = (0..rows).collect();
            let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
            store.put(&[put_of(table, &keys, &values)]).unwrap();
            let meta = "m".repeat(2000);
            let work = store.inner.capture(1, &meta, &[]).unwrap();
            medium.set_capacity(Some(store.stats().unwrap().disk_bytes));
            // Few enough that none of them waits for the record.
            let refused = (rows..rows + 500).find_map(|key| {
                let values = [key as f32; DIM];
                let put = store.put(&[put_of(table, &[key], &values)]);
                put.err().map(|error| (key, error))
            });
            let end = refused.map_or(rows + 500, |(key, error)| {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                key
            });
            taken += end - rows;
            store.inner.complete(work).unwrap();
            store.commit(2, &meta, &[]).unwrap();
            expect_rows(&store, table, end);
        }
        assert!(taken > 100, "{taken} rows were taken beside commits");
    });
}

// Deltas that wait for the journal had no room in it, and deletes make nothing else.
#[test]
fn a_full_device_takes_the_deletes_of_many_classes_or_refuses_them_before() {
    each_kind(|| {
        const ROWS: u64 = 1_000;
        let medium = SimMedium::new(5);
        // Large enough segments that deltas wait.
        let (page_bytes, segment_bytes) = (Some(4096), Some(1 << 20));
        let options = StoreOptions { page_bytes, segment_bytes, ..options(256 << 20) };
        let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
        let tables: Vec<TableId> = (0..24)
            .map(|i| {
                let dim = DIM + i;
                let spec = spec(&format!("t{i}"), None, OptimizerKind::Sgd);
                let spec = TableSpec { embedding_dim: dim, expected_rows: Some(ROWS), ..spec };
                store.table(&spec).unwrap()
            })
            .collect();
        let keys: Vec<u64> = (0..ROWS).collect();
        for (i, table) in tables.iter().enumerate() {
            let values = vec![1.0; keys.len() * (DIM + i)];
            store.put(&[put_of(*table, &keys, &values)]).unwrap();
        }
        store.commit(1, "", &[]).unwrap();
        medium.set_capacity(Some(0));
        let mut deleted = 0;
        for table in &tables {
            match store.delete(*table, &keys) {
                Ok(_) => deleted += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    break;
                }
            }
        }
        assert!((1..tables.len()).contains(&deleted), "{deleted} tables");
        store.commit(2, "", &[]).unwrap();
        for (i, table) in tables.iter().enumerate() {
            let left = if i < deleted { 0 } else { ROWS };
            assert_eq!(store.len(*table).unwrap(), left, "table {i}");
        }
    });
}

#[test]
fn rewriting_rows_within_a_disk_bound_goes_on_for_ever_with_commits() {
    each_kind(|| {
        let medium = SimMedium::new(4);
        let options = StoreOptions { max_disk_bytes: Some(6 << 20), ..options(400 << 10) };
        let store = Store::open_on(Arc::new(medium), options).unwrap();
        let table = store.table(&spec("t", Some(20_000), OptimizerKind::Adagrad)).unwrap();
        let mut random = Random(8);
        let mut expected = vec![None; 20_000];
        for step in 0..400u64 {
            let keys: Vec<u64> = (0..500).map(|_| random.below(20_000)).collect();
            let values: Vec<f32> =
                keys.iter().flat_map(|k| [*k as f32 + step as f32; DIM]).collect();
            store
                .put(&[put_of(table, &keys, &values)])
                .unwrap_or_else(|e| panic!("step {step}: {e}"));
            keys.iter().for_each(|k| expected[*k as usize] = Some(*k as f32 + step as f32));
            store.commit(step, "", &[]).unwrap();
            assert!(store.stats().unwrap().disk_bytes <= 6 << 20);
        }
        let stats = store.stats().unwrap();
        assert!(stats.rows_moved > 0, "nothing was cleaned");
        let keys: Vec<u64> = (0..20_000).filter(|k| expected[*k as usize].is_some()).collect();
        let mut values = vec![0.0; keys.len() * DIM];
        let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
        store.get(&mut [get]).unwrap();
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(Some(values[i * DIM]), expected[*key as usize], "key {key}");
        }
    });
}

#[test]
fn a_store_at_seven_tenths_of_its_disk_goes_on_with_a_commit_after_each_full() {
    each_kind(|| {
        let rows = 40_000u64;
        // Rows of an lsm lie below, too, until they merge.
        let (tenths, memory) = match KIND.get() {
            StorageKind::Log => (7, 1 << 20),
            _ => (4, 450 << 10),
        };
        let bound = rows * 4 * (DIM as u64 + 1) * 10 / tenths + (15 << 17);
        let options = StoreOptions { max_disk_bytes: Some(bound), ..options(memory) };
        let store = Store::open_on(Arc::new(SimMedium::new(5)), options).unwrap();
        let table = store.table(&spec("t", Some(rows), OptimizerKind::RowWiseAdagrad)).unwrap();
        let mut expected = vec![0.0; rows as usize];
        let mut step = 0;
        let mut write = |keys: &[u64], value: f32| {
            let values = vec![value; keys.len() * DIM];
            for attempt in 0.. {
                match store.put(&[put_of(table, keys, &values)]) {
                    Ok(_) => break,
                    Err(error) if attempt < 3 => {
                        assert_eq!(error.kind(), ErrorKind::Full, "{error}")
                    }
                    Err(error) => panic!("after {attempt} commits: {error}"),
                }
                step += 1;
                store.commit(step, "", &[]).unwrap();
            }
            keys.iter().for_each(|k| expected[*k as usize] = value);
        };
        for first in (0..rows).step_by(500) {
            write(&(first..first + 500).collect::<Vec<_>>(), 1.0);
        }
        let mut random = Random(9);
        for i in 0..600 {
            // Squares prefer low numbers: some rows are hot.
            let draw = |random: &mut Random| random.below(200) * random.below(200);
            write(&(0..300).map(|_| draw(&mut random)).collect::<Vec<_>>(), 2.0 + i as f32);
        }
        let stats = store.stats().unwrap();
        let used = (stats.disk_bytes, stats.rows_moved);
        assert!(used.0 <= bound && used.1 > 0, "{used:?} of {bound}");
        let keys: Vec<u64> = (0..rows).collect();
        let mut values = vec![0.0; keys.len() * DIM];
        let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
        store.get(&mut [get]).unwrap();
        for (key, row) in values.chunks_exact(DIM).enumerate() {
            assert!(row.iter().all(|v| *v == expected[key]), "key {key}");
        }
    });
}

#[test]
fn the_first_segment_has_a_page_less_and_growth_counts_it() {
    // Growing asserted when a first batch needed exactly whole segments.
    for rows in (1..1200).step_by(7) {
        let medium = SimMedium::new(2);
        let store = Store::open_on(Arc::new(medium), options(1 << 20)).unwrap();
        let table = store.table(&spec("t", Some(2000), OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..rows).collect();
        let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
        store.put(&[put_of(table, &keys, &values)]).unwrap();
        store.commit(1, "", &[]).unwrap();
    }
}

/// Updates 40,000 rows of 128 bytes at random under a disk bound, with a commit every so often, and
/// after a `Full`. Returns how many updates had to wait for commits.
fn long_run(times_live: f64, steps_per_commit: u64, steps: u64) -> u64 {
    const ROWS: u64 = 40_000;
    const WIDE: usize = 16;
    let most = (times_live * (ROWS * 128) as f64) as u64;
    let medium = SimMedium::new(11);
    let options = StoreOptions {
        page_bytes: Some(4096),
        segment_bytes: None,
        max_disk_bytes: Some(most),
        ..options(2 << 20)
    };
    let store = Store::open_on(Arc::new(medium), options).unwrap();
    let wide = TableSpec { embedding_dim: WIDE, ..spec("t", None, OptimizerKind::Adagrad) };
    let table = store.table(&wide).unwrap();
    let mut random = Random(5);
    let mut waited = 0;
    for step in 1..=steps {
        let keys: Vec<u64> = (0..2000).map(|_| random.below(ROWS)).collect();
        let gradients = vec![0.5; keys.len() * WIDE];
        let batch = UpdateBatch {
            table,
            keys: &keys,
            gradients: &gradients,
            hyper: HYPER,
            non_finite: NonFinite::Refuse,
            step: None,
        };
        let mut result = store.update(&[batch]);
        for _ in 0..4 {
            let Err(error) = &result else { break };
            assert_eq!(error.kind(), ErrorKind::Full, "step {step}: {error}");
            waited += 1;
            store.commit(step, "", &[]).unwrap();
            result = store.update(&[batch]);
        }
        result.unwrap_or_else(|error| panic!("step {step} of {times_live}: {error}"));
        if step % steps_per_commit == 0 {
            store.commit(step, "", &[("weights", &[1; 500])]).unwrap();
        }
        let stats = store.stats().unwrap();
        assert!(stats.disk_bytes <= most, "step {step}: {} of {most}", stats.disk_bytes);
        assert!(stats.memory.total() <= stats.budget_bytes, "step {step}: {:?}", stats.memory);
    }
    waited
}

#[test]
fn a_long_run_within_a_disk_bound_keeps_it_and_goes_on() {
    each_kind(|| {
        let all = [(4.0, 1), (3.0, 5), (4.0, 5), (4.0, 20), (5.0, 1000)];
        // Each step updates a twentieth of the rows: what is written is some times the bound.
        let steps = if stride(3) == 1 { 240 } else { 120 };
        for (times_live, steps_per_commit) in all.into_iter().step_by(stride(3) as usize) {
            let waited = long_run(times_live, steps_per_commit, steps);
            assert!(
                240 * waited < 100 * steps,
                "{times_live} x, commit every {steps_per_commit}: {waited} waits"
            );
        }
    });
}

#[test]
fn deletes_at_a_full_budget_delete_and_leave_the_others() {
    each_kind(|| {
        for seed in 1..6 {
            let medium = SimMedium::new(seed);
            let store = Store::open_on(Arc::new(medium.clone()), options(700 << 10)).unwrap();
            let table = store.table(&spec("t", None, OptimizerKind::Adagrad)).unwrap();
            let put = |keys: &[u64], add: f32| {
                let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32 + add; DIM]).collect();
                store.put(&[put_of(table, keys, &values)]).unwrap();
            };
            let all: Vec<u64> = (0..12_000).collect();
            all.chunks(500).for_each(|keys| put(keys, 0.0));
            store.commit(1, "", &[]).unwrap();
            let mut random = Random(seed);
            let again: Vec<u64> = (0..6000).map(|_| random.below(12_000)).collect();
            put(&again, 0.5);
            let doomed: Vec<u64> = (0..12_000).filter(|key| key % 2 == seed % 2).collect();
            assert_eq!(store.delete(table, &doomed).unwrap(), 6000);
            let mut there = vec![false; all.len()];
            store.contains(table, &all, &mut there).unwrap();
            assert!(all.iter().zip(&there).all(|(key, there)| *there == (key % 2 != seed % 2)));
            assert_eq!(store.len(table).unwrap(), 6000);
            store.commit(2, "", &[]).unwrap();
            store.close().unwrap();
            let store = Store::open_on(Arc::new(medium), options(700 << 10)).unwrap();
            store.contains(table, &all, &mut there).unwrap();
            assert!(all.iter().zip(&there).all(|(key, there)| *there == (key % 2 != seed % 2)));
        }
    });
}

// Rows that had found their room were refused because nobody could say how much is free.
#[test]
fn a_look_at_the_device_that_fails_refuses_nothing() {
    each_kind(|| {
        let medium = SimMedium::new(24);
        let store = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        for (step, first) in (0..3000).step_by(1000).enumerate() {
            let keys: Vec<u64> = (first..first + 1000).collect();
            let values: Vec<f32> = keys.iter().flat_map(|k| [*k as f32; DIM]).collect();
            medium.fail_look(0);
            store.put(&[put_of(table, &keys, &values)]).unwrap();
            medium.fail_look(0);
            store.commit(step as u64, "", &[]).unwrap();
        }
        expect_rows(&store, table, 3000);
    });
}

// The room that was made for a journal file did not count what its catalog takes.
#[test]
fn a_journal_file_with_a_long_catalog_begins_on_a_full_device() {
    each_kind(|| {
        let begun = |full: bool| {
            let medium = SimMedium::new(23);
            let store = Store::open_on(Arc::new(medium.clone()), options(64 << 20)).unwrap();
            for i in 0..220 {
                let name = format!("{i:\u{1}>200}");
                store.table(&spec(&name, Some(1), OptimizerKind::Sgd)).unwrap();
            }
            (1..=40).find(|step| {
                store.put(&[put_of(TableId(0), &[0], &[0.0; DIM])]).unwrap();
                // All that is left is what was kept free.
                medium.set_capacity(full.then(|| medium.taken_bytes()));
                store.commit(*step, &"m".repeat(100 << 10), &[]).unwrap();
                let found = medium.list("journal-00000002").unwrap().len() == 1;
                medium.set_capacity(None);
                found
            })
        };
        let (full, roomy) = (begun(true), begun(false));
        assert!(roomy.is_some() && full == roomy, "begun by commit {full:?}, with room {roomy:?}");
    });
}

/// While an index is being written its partitions are not merged. The merges that deletes owe then
/// come with later ones, as many at a time as these have room for in the journal.
#[test]
fn a_delete_makes_no_more_merges_than_it_has_keys() {
    let medium = SimMedium::new(9);
    let store = Store::open_on(Arc::new(medium.clone()), options(2 << 20)).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::None)).unwrap();
    let all: Vec<u64> = (0..12_000).collect();
    for keys in all.chunks(500) {
        let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
        store.put(&[put_of(table, keys, &values)]).unwrap();
    }
    store.commit(1, "", &[]).unwrap();
    let partitions = || {
        let engine = store.inner.engine.read();
        match log_of(&engine.classes[0]).index(table.0) {
            TableIndex::Sparse(index, _) => index.partitions(),
            TableIndex::Dense(_) => unreachable!("the table grows"),
        }
    };
    let before = partitions();
    store.inner.history.lock().cursor = Some(Default::default());
    assert_eq!(store.delete(table, &all[..10_000]).unwrap(), 10_000);
    assert_eq!(partitions(), before);
    store.inner.history.lock().cursor = None;
    store.delete(table, &all[10_000..10_005]).unwrap();
    assert_eq!(partitions(), before - 5);
    store.delete(table, &all[10_005..11_000]).unwrap();
    assert!(partitions() < before / 2, "{} of {before}", partitions());
    store.commit(2, "", &[]).unwrap();
    store.close().unwrap();
    let store = Store::open_on(Arc::new(medium), options(2 << 20)).unwrap();
    let mut there = vec![false; all.len()];
    store.contains(table, &all, &mut there).unwrap();
    assert!(there.iter().enumerate().all(|(key, there)| *there == (key >= 11_000)));
}
