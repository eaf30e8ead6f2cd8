//! Ranges of ids that are announced: read in order, held until they are let go, counted.

use super::*;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const ROWS: u64 = 20_000;

/// A store whose rows are all written, and whose cache holds a part of them.
fn with_rows(bytes: u64) -> (Store, TableId) {
    with_rows_on(&SimMedium::new(1), bytes, None)
}

fn with_rows_on(medium: &SimMedium, bytes: u64, disk: Option<u64>) -> (Store, TableId) {
    let beside = match KIND.get() {
        StorageKind::Log => 0,
        // Buffers of merges, less what its smaller index leaves.
        _ => 128 << 10,
    };
    let options = StoreOptions {
        window_bytes: Some(bytes / 3),
        max_disk_bytes: disk,
        ..options_within(bytes + beside)
    };
    let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
    let table = store.table(&spec("t", Some(ROWS), OptimizerKind::None)).unwrap();
    put(&store, table, 0..ROWS, |key| key as f32);
    store.commit(1, "", &[]).unwrap();
    (store, table)
}

fn put(store: &Store, table: TableId, keys: std::ops::Range<u64>, value: impl Fn(u64) -> f32) {
    let keys: Vec<u64> = keys.collect();
    for keys in keys.chunks(500) {
        let values: Vec<f32> = keys.iter().flat_map(|key| [value(*key); DIM]).collect();
        let batch = PutBatch { reset_state: true, ..put_of(table, keys, &values) };
        store.put(&[batch]).unwrap();
    }
}

fn get(store: &Store, table: TableId, keys: &[u64]) -> Vec<f32> {
    let mut values = vec![0.0; keys.len() * DIM];
    store.get(&mut [GetBatch { table, keys, values: (&mut values).into(), state: None }]).unwrap();
    values.chunks_exact(DIM).map(|row| row[0]).collect()
}

/// Number of rows of these keys that a get has to read.
fn missed(store: &Store, table: TableId, keys: std::ops::Range<u64>) -> u64 {
    let before = store.stats().unwrap().misses;
    let keys: Vec<u64> = keys.collect();
    let expected: Vec<f32> = keys.iter().map(|key| *key as f32).collect();
    assert_eq!(get(store, table, &keys), expected);
    store.stats().unwrap().misses - before
}

/// Rows of this many ids, a third of what the cache holds.
fn third(store: &Store) -> u64 {
    store.inner.engine.read().classes[0].cache().row_capacity() / 3
}

/// Waits for a range. Beside other tests the window's threads may have no core for a while, for
/// which a store does not wait.
fn begin(store: &Store, number: u64) {
    let begun = Instant::now();
    while !store.inner.window.has_range(number) {
        assert!(store.begin(number, LONG).unwrap() && begun.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until every finished range is let go.
fn settled(store: &Store) {
    let begun = Instant::now();
    while store.inner.window.has_finished_ranges() {
        assert!(begun.elapsed() < LONG, "{:?}", store.window_stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn rows_of_a_range_are_there_and_stay_whatever_else_is_read() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        let rows = third(&store);
        missed(&store, table, rows..ROWS);
        let number = store.announce_range(table, &[(0, rows)]).unwrap().unwrap();
        begin(&store, number);
        let before = store.window_stats().unwrap();
        assert_eq!((before.ranges, before.failed, before.turned_away), (1, 0, 0));
        assert!(before.rows_loaded > rows / 2, "{before:?}");
        for _ in 0..3 {
            assert_eq!(missed(&store, table, 0..rows), 0);
            missed(&store, table, rows..ROWS);
        }
        assert!(before.memory_bytes <= before.most_bytes, "{before:?}");
        let stats = store.stats().unwrap();
        assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
        // Once it is let go it leaves as others do.
        store.finish(number).unwrap();
        store.finish(number).unwrap();
        let others = ROWS - third(&store) * 5 / 2;
        let number = store.announce_range(table, &[(others, ROWS)]).unwrap().unwrap();
        begin(&store, number);
        assert_eq!(missed(&store, table, others..ROWS), 0);
        assert!(missed(&store, table, 0..rows) > rows / 4);
    });
}

#[test]
fn ranges_are_read_in_few_long_requests() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        let rows = third(&store);
        missed(&store, table, rows..ROWS);
        let number = store.announce_range(table, &[(0, rows)]).unwrap().unwrap();
        begin(&store, number);
        let window = store.window_stats().unwrap();
        assert!(window.rows_loaded > rows / 2, "{window:?}");
        // Rows were written in the order of their ids: nearly each page is read once.
        assert!(window.pages_again == 0, "{window:?}");
        // The reader of so small a window has buffers of four pages.
        assert!(window.requests * 3 <= window.pages, "{window:?}");
        let row_bytes = (DIM * 4) as u64;
        assert!(window.bytes < 3 * rows * row_bytes, "{window:?}");
    });
}

// Rows of a partition that had changed were written one by one as others came, mixed with rows of
// others: the next read of the partition took many times its pages.
#[test]
fn a_range_whose_rows_leave_is_written_in_order_and_read_again_in_as_few_pages() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        // Of an lsm the newest rows take of the cache meanwhile.
        let rows = third(&store) / 4 * 3;
        let read = |from: u64| {
            let before = store.window_stats().unwrap();
            let number = store.announce_range(table, &[(from, from + rows)]).unwrap().unwrap();
            begin(&store, number);
            let after = store.window_stats().unwrap();
            (number, after.pages - before.pages)
        };
        let (number, first) = read(0);
        // Changed by chance, as training does.
        let mut keys: Vec<u64> = (0..rows).collect();
        let mut random = Random(6);
        (1..keys.len()).for_each(|i| keys.swap(i, random.below(i as u64 + 1) as usize));
        for keys in keys.chunks(100) {
            let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
            store.put(&[put_of(table, keys, &values)]).unwrap();
        }
        let (other, _) = read(rows);
        let resident = || store.stats().unwrap().classes[0].resident_rows;
        let before = resident();
        store.finish_range(number).unwrap();
        settled(&store);
        let left = before - resident();
        // Those that were turned away, because others of their set were held, never were there.
        assert!(left >= rows / 4 * 3, "{left} of {rows} rows have left");
        let (_, again) = read(0);
        assert!(again <= first + first / 2, "{again} pages, {first} at first");
        assert_eq!(missed(&store, table, 0..rows), 0);
        store.finish(other).unwrap();
    });
}

/// Trains a table part by part, some rows of each, which are noted: the pages that each pass reads.
fn train_by_parts(store: &Store, table: TableId, noted: &mut [bool], passes: u64) -> Vec<u64> {
    let (mut random, rows) = (Random(5), noted.len() as u64);
    let mut pass = |_| {
        let before = store.window_stats().unwrap().pages;
        for from in (0..rows).step_by(third(store) as usize / 4 * 3) {
            let part = from..rows.min(from + third(store) / 4 * 3);
            let number = store.announce_range(table, &[(part.start, part.end)]).unwrap().unwrap();
            begin(store, number);
            let changed: Vec<u64> = part.filter(|_| random.below(3) == 0).collect();
            for keys in changed.chunks(100) {
                let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
                let mut commits = 0;
                while let Err(error) = store.put(&[put_of(table, keys, &values)]) {
                    assert!(error.kind() == ErrorKind::Full && commits < 3, "{error}");
                    store.commit(2, "", &[]).unwrap();
                    commits += 1;
                }
                keys.iter().for_each(|key| noted[*key as usize] = true);
            }
            store.finish_range(number).unwrap();
            settled(store);
        }
        store.commit(2, "", &[]).unwrap();
        store.window_stats().unwrap().pages - before
    };
    (0..passes).map(&mut pass).collect()
}

// Rows of a partition that had not changed stayed on pages with outdated rows and were moved among
// those of other partitions: a table of KGE read 2.6 times the bytes of its rows.
#[test]
fn a_range_on_too_many_pages_is_written_as_a_whole() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        let mut noted = vec![false; ROWS as usize / 2];
        let pages = train_by_parts(&store, table, &mut noted, 12);
        let window = store.window_stats().unwrap();
        if KIND.get() == StorageKind::Log {
            assert!(window.rows_rewritten > ROWS / 2, "{window:?}");
            assert!(pages[4..].iter().sum::<u64>() < 8 * 7 / 4 * pages[0], "{pages:?}");
        } else {
            assert_eq!(window.rows_rewritten, 0, "merges bring rows together");
        }
        missed(&store, table, 0..ROWS);
    });
}

// What is written as it is finds its room first: it must not take that of rows that have changed.
#[test]
fn a_range_is_written_as_a_whole_only_where_the_disk_has_room() {
    let mut rewritten = Vec::new();
    for kib in [2_450, 64 << 10] {
        let (store, table) = with_rows_on(&SimMedium::new(1), 600 << 10, Some(kib << 10));
        train_by_parts(&store, table, &mut vec![false; ROWS as usize / 2], 12);
        missed(&store, table, 0..ROWS);
        let stats = store.stats().unwrap();
        assert!(stats.disk_bytes <= kib << 10, "{kib} KiB: {} bytes", stats.disk_bytes);
        rewritten.push(store.window_stats().unwrap().rows_rewritten);
    }
    assert!(rewritten[0] == 0 && rewritten[1] > ROWS, "{rewritten:?}");
}

// The first change of a store that was opened at an earlier commit drops the later ones.
#[test]
fn a_store_that_is_only_read_writes_no_range() {
    let medium = SimMedium::new(1);
    let (store, table) = with_rows_on(&medium, 600 << 10, None);
    train_by_parts(&store, table, &mut vec![false; ROWS as usize / 2], 4);
    assert!(store.window_stats().unwrap().rows_rewritten > 0);
    put(&store, table, 0..100, |key| key as f32);
    let last = store.commit(3, "", &[]).unwrap().sequence;
    store.close().unwrap();
    let bytes = 600 << 10;
    let options =
        StoreOptions { step: Some(2), window_bytes: Some(bytes / 3), ..options_within(bytes) };
    let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
    let rows = third(&store) / 4 * 3;
    for from in (0..ROWS / 2).step_by(rows as usize) {
        let number = store.announce_range(table, &[(from, from + rows)]).unwrap().unwrap();
        begin(&store, number);
        store.finish_range(number).unwrap();
        settled(&store);
    }
    assert_eq!(store.window_stats().unwrap().rows_rewritten, 0);
    store.close().unwrap();
    let store = Store::open_on(Arc::new(medium), options_within(bytes)).unwrap();
    assert_eq!(store.commits().last().unwrap().sequence, last);
}

#[test]
fn a_power_cut_after_ranges_were_written_as_a_whole_leaves_the_last_commit() {
    let medium = SimMedium::new(1);
    let (store, table) = with_rows_on(&medium, 600 << 10, None);
    let rows = third(&store) / 4 * 3;
    let mut committed: Vec<f32> = (0..ROWS).map(|key| key as f32).collect();
    let mut values = committed.clone();
    for pass in 1..12 {
        for from in (0..ROWS / 2).step_by(rows as usize) {
            let number = store.announce_range(table, &[(from, from + rows)]).unwrap().unwrap();
            begin(&store, number);
            for key in (from + pass % 3..from + rows).step_by(3) {
                values[key as usize] = (pass * ROWS + key) as f32;
            }
            let changed: Vec<u64> = (from + pass % 3..from + rows).step_by(3).collect();
            for keys in changed.chunks(100) {
                let new: Vec<f32> = keys.iter().flat_map(|k| [values[*k as usize]; DIM]).collect();
                store.put(&[put_of(table, keys, &new)]).unwrap();
            }
            store.finish_range(number).unwrap();
            settled(&store);
            let survivor = medium.reboot(pass * ROWS + from);
            let survived = Store::open_on(Arc::new(survivor), options(600 << 10)).unwrap();
            let all: Vec<u64> = (0..ROWS).collect();
            assert!(get(&survived, table, &all) == committed, "pass {pass}, rows from {from}");
        }
        store.commit(1 + pass, "", &[]).unwrap();
        committed.clone_from(&values);
    }
    let window = store.window_stats().unwrap();
    assert!(window.rows_rewritten > ROWS, "{window:?}");
}

#[test]
fn rows_of_a_range_that_nobody_wrote_are_not_written() {
    each_kind(|| {
        let (store, _) = with_rows(600 << 10);
        let new = store.table(&spec("new", Some(ROWS), OptimizerKind::None)).unwrap();
        let mut noted = vec![false; ROWS as usize / 2];
        train_by_parts(&store, new, &mut noted, 6);
        let all: Vec<u64> = (0..ROWS).collect();
        let mut written = vec![false; all.len()];
        store.contains(new, &all, &mut written).unwrap();
        noted.resize(all.len(), false);
        assert_eq!(written, noted);
        let rewritten = store.window_stats().unwrap().rows_rewritten;
        assert_eq!(rewritten > 0, KIND.get() == StorageKind::Log, "{rewritten} rows");
    });
}

#[test]
fn runs_are_one_range_and_rows_that_verbs_bring_are_held_too() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        let runs: Vec<_> = (0..200).map(|i| (100 * i, 100 * i + 3)).collect();
        let number = store.announce_range(table, &runs).unwrap().unwrap();
        begin(&store, number);
        let new = store.table(&spec("new", Some(1000), OptimizerKind::None)).unwrap();
        // The caches were made anew for the table: what is announced next holds all again.
        let next = store.announce_range(new, &[(0, 500)]).unwrap().unwrap();
        begin(&store, next);
        // Nobody has written these, so verbs bring them.
        put(&store, new, 0..500, |key| key as f32);
        for _ in 0..2 {
            missed(&store, table, 0..ROWS);
        }
        assert_eq!(missed(&store, new, 0..500), 0);
        assert_eq!(runs.iter().map(|run| missed(&store, table, run.0..run.1)).sum::<u64>(), 0);
        // Of two ranges with the same rows one holds them as long as it lasts.
        let again = store.announce_range(table, &runs[..100]).unwrap().unwrap();
        begin(&store, again);
        store.finish_range(number).unwrap();
        settled(&store);
        store.commit(2, "", &[]).unwrap(); // no row waits in memory to be written
        let of = |runs: &[(u64, u64)]| -> u64 {
            runs.iter().map(|run| missed(&store, table, run.0..run.1)).sum()
        };
        assert_eq!(of(&runs[..100]), 0);
        assert!(of(&runs[100..]) > 0);
    });
}

#[test]
fn a_range_beyond_what_the_cache_holds_is_not_taken_until_another_is_finished() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        let rows = third(&store);
        let announce = |i: u64| store.announce_range(table, &[(i * rows, (i + 1) * rows)]).unwrap();
        let numbers = [announce(0), announce(1)].map(Option::unwrap);
        assert_eq!(announce(2), None);
        assert_eq!(store.window_stats().unwrap().refused, 1);
        store.finish(numbers[0]).unwrap();
        let third = announce(2).expect("there is room again");
        begin(&store, third);
        assert!(store.begin(numbers[0], LONG).unwrap(), "a finished one is not waited for");
        assert_eq!(missed(&store, table, 2 * rows..3 * rows), 0);
        // A range that is forgotten makes room, too.
        store.clear_announced().unwrap();
        assert!(announce(0).is_some() && announce(1).is_some());
        store.release_window().unwrap();
        let begun = Instant::now();
        while store.window_stats().unwrap().memory_bytes > 0 {
            assert!(begun.elapsed() < LONG, "{:?}", store.window_stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

// The window gave its memory back behind the range, and its rows left as others do.
#[test]
fn a_range_that_is_announced_while_the_window_is_given_back_is_held() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        let rows = third(&store);
        missed(&store, table, rows..ROWS);
        let first = store.announce_range(table, &[(rows, 2 * rows)]).unwrap().unwrap();
        begin(&store, first);
        store.pause_window(true).unwrap();
        store.release_window().unwrap();
        let number = store.announce_range(table, &[(0, rows)]).unwrap().unwrap();
        store.pause_window(false).unwrap();
        begin(&store, number);
        settled(&store);
        for _ in 0..2 {
            missed(&store, table, rows..ROWS);
        }
        assert_eq!(missed(&store, table, 0..rows), 0);
    });
}

#[test]
fn what_cannot_be_a_range_is_refused() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        let kind =
            |table, runs: &[(u64, u64)]| store.announce_range(table, runs).unwrap_err().kind();
        for runs in [&[][..], &[(5, 5)], &[(6, 5)], &[(3, 9), (8, 12)], &[(3, 9), (1, 2)]] {
            assert_eq!(kind(table, runs), ErrorKind::Misuse, "{runs:?}");
        }
        assert_eq!(kind(table, &[(0, ROWS + 1)]), ErrorKind::KeyRange);
        assert_eq!(kind(TableId(77), &[(0, 1)]), ErrorKind::NotFound);
        let growing = store.table(&spec("words", None, OptimizerKind::None)).unwrap();
        let error = store.announce_range(growing, &[(0, 1)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("keys have no order"), "{error}");
        let wrong = super::super::window::RANGES + 1;
        assert_eq!(store.begin(wrong, LONG).unwrap_err().kind(), ErrorKind::Misuse);
        assert_eq!(store.finish(wrong).unwrap_err().kind(), ErrorKind::Misuse);
        store.close().unwrap();
        assert_eq!(kind(table, &[(0, 1)]), ErrorKind::Closed);
    });
    with_kind(StorageKind::Pmem, || {
        let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
        let table = store.table(&spec("t", Some(100), OptimizerKind::None)).unwrap();
        let error = store.announce_range(table, &[(0, 100)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

/// Ranges and batches come and go while rows change and commits are written; what is on the device
/// afterwards is what was written.
#[test]
fn rows_change_beside_ranges_and_batches_and_nothing_is_lost() {
    each_kind(|| {
        let medium = SimMedium::new(3);
        let options = || StoreOptions { window_bytes: Some(300 << 10), ..options_within(1 << 20) };
        let store = Store::open_on(Arc::new(medium.clone()), options()).unwrap();
        let table = store.table(&spec("t", Some(ROWS), OptimizerKind::None)).unwrap();
        put(&store, table, 0..ROWS, |_| 0.0);
        let mut random = Random(5);
        let mut expected = vec![0.0; ROWS as usize];
        let part = (third(&store) / 2).min(ROWS / 8);
        let mut held: Vec<u64> = Vec::new();
        for step in 1..80u64 {
            let from = random.below(ROWS / part) * part;
            if let Some(number) = store.announce_range(table, &[(from, from + part)]).unwrap() {
                held.push(number);
                if random.below(2) == 0 {
                    begin(&store, number);
                }
            }
            while held.len() > 3 || !held.is_empty() && random.below(3) == 0 {
                let number = held.swap_remove(random.below(held.len() as u64) as usize);
                match random.below(2) {
                    0 => store.finish(number).unwrap(),
                    _ => store.finish_range(number).unwrap(),
                }
            }
            let keys: Vec<u64> = (0..50).map(|i| (from + i * 7 + random.below(7)) % ROWS).collect();
            let batch =
                store.announce(&[LookaheadBatch { table, keys: &keys, next: &[] }]).unwrap();
            if let Some(number) = batch {
                store.begin(number, LONG).unwrap();
            }
            for key in &keys {
                expected[*key as usize] = step as f32;
            }
            let mut distinct = keys.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let values = vec![step as f32; distinct.len() * DIM];
            store.put(&[put_of(table, &distinct, &values)]).unwrap();
            if let Some(number) = batch {
                store.finish(number).unwrap();
            }
            match random.below(12) {
                0 => drop(store.commit(step, "", &[]).unwrap()),
                1 => drop(store.commit_in_background(step, "", &[]).unwrap()),
                2 if step % 3 == 0 => {
                    store.clear_announced().unwrap();
                    held.clear();
                }
                _ => {}
            }
        }
        let all: Vec<u64> = (0..ROWS).collect();
        assert_eq!(get(&store, table, &all), expected);
        let window = store.window_stats().unwrap();
        assert!(window.failed == 0 && window.ranges > 20, "{window:?}");
        let stats = store.stats().unwrap();
        assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
        store.commit(100, "", &[]).unwrap();
        store.close().unwrap();
        let store = Store::open_on(Arc::new(medium), options()).unwrap();
        let table = store.table(&spec("t", Some(ROWS), OptimizerKind::None)).unwrap();
        assert_eq!(get(&store, table, &all), expected);
    });
}

#[test]
fn closing_a_store_ends_who_waits_for_a_range() {
    each_kind(|| {
        let (store, table) = with_rows(600 << 10);
        let rows = third(&store);
        let number = store.announce_range(table, &[(0, rows)]).unwrap().unwrap();
        store.close().unwrap();
        assert_eq!(store.begin(number, LONG).unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(store.finish(number).unwrap_err().kind(), ErrorKind::Closed);
    });
}
