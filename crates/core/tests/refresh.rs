//! Readers that move to the newest commit beside a writer, in real directories.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::{Model, Random, get, options, spec, update};
use embedrock_core::hash::mix;
use embedrock_core::optimizer::OptimizerKind;
use embedrock_core::{Error, ErrorKind, Memory, Store, StoreOptions};
use std::path::{Path, PathBuf};

const DIM: usize = 8;
const DENSE_ROWS: u64 = 3000;
const BUDGET: u64 = 1 << 20;
const SMALL: u64 = 420 << 10;

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    (directory, path)
}

fn model() -> Model {
    Model::new(vec![
        spec("dense", DIM, Some(DENSE_ROWS), OptimizerKind::Adagrad),
        spec("growing", DIM, None, OptimizerKind::Adagrad),
        spec("other", 2 * DIM, None, OptimizerKind::Sgd),
    ])
}

/// Keys of every table, written or not.
fn all_keys() -> Vec<Vec<u64>> {
    vec![
        (0..DENSE_ROWS).collect(),
        (0..4000).map(|i| mix(i, 5)).collect(),
        (0..500).map(|i| i << 40).collect(),
    ]
}

/// One random change of store and model.
fn step(store: &Store, model: &mut Model, random: &mut Random) {
    let table = random.below(3) as usize;
    let id = store.find_table(&model.specs[table].name).unwrap();
    let all = &all_keys()[table];
    let n = 1 + random.below(200);
    let keys: Vec<u64> = (0..n).map(|_| all[random.below(all.len() as u64) as usize]).collect();
    if random.below(5) == 0 {
        store.delete(id, &keys).unwrap();
        model.delete(table, &keys);
        return;
    }
    let dim = model.specs[table].embedding_dim;
    let gradients: Vec<f32> = (0..keys.len() * dim).map(|_| random.value()).collect();
    update(store, id, &keys, &gradients).unwrap();
    model.update(table, &keys, &gradients);
}

fn reading(bytes: u64) -> StoreOptions {
    StoreOptions { read_only: true, ..options(bytes) }
}

fn expect(store: &Store, model: &Model, what: &str) {
    let difference = model.difference(store, &all_keys());
    assert!(difference.is_none(), "{what}: {}", difference.unwrap());
}

fn digests(store: &Store) -> Vec<u64> {
    let digest = |table| store.digest(table, &mut |_, _| Ok(())).unwrap();
    store.tables().iter().map(|table| digest(table.id)).collect()
}

/// Trains a store, with readers of two budgets beside it that are refreshed now and then.
fn refresh_beside_a_writer(path: &Path, seed: u64, rounds: u64) {
    let store = Store::open(path, options(BUDGET)).unwrap();
    let mut random = Random(seed);
    let mut model = model();
    model.open_tables(&store).unwrap();
    let mut points = Vec::new();
    let mut readers: Vec<(Store, u64)> = Vec::new();
    for round in 1..=rounds {
        for _ in 0..1 + random.below(6) {
            step(&store, &mut model, &mut random);
        }
        store.commit(round, &format!("at {round}"), &[("round", &round.to_le_bytes())]).unwrap();
        points.push(model.clone());
        if readers.is_empty() {
            for bytes in [BUDGET, 16 << 20] {
                readers.push((Store::open(path, reading(bytes)).unwrap(), round));
            }
        }
        for (reader, at) in &mut readers {
            let what = format!("seed {seed} round {round} reader at {at}");
            if random.below(3) == 0 {
                // Rows of its commit, so that there is something to keep.
                expect(reader, &points[*at as usize - 1], &what);
            }
            if random.below(4) != 0 {
                continue;
            }
            let found = reader.refresh().unwrap().map(|info| info.step);
            assert_eq!(found, (*at < round).then_some(round), "{what}");
            *at = round;
            let what = format!("seed {seed} refreshed in round {round}");
            expect(reader, &model, &what);
            let last = reader.last_commit().unwrap();
            assert_eq!((last.step, last.meta), (round, format!("at {round}")), "{what}");
            assert_eq!(reader.state().unwrap()[0].1, round.to_le_bytes(), "{what}");
            let fresh = Store::open(path, reading(BUDGET)).unwrap();
            assert_eq!(digests(reader), digests(&fresh), "{what}");
            let steps = |store: &Store| -> Vec<u64> {
                store.commits().iter().map(|commit| commit.step).collect()
            };
            assert_eq!(steps(reader), steps(&fresh), "{what}");
            let stats = reader.stats().unwrap();
            assert!(stats.memory.total() <= stats.budget_bytes, "{what}: {:?}", stats.memory);
        }
    }
}

#[test]
fn a_refreshed_reader_has_the_rows_of_the_newest_commit() {
    for seed in 1..=2 {
        let (_directory, path) = directory();
        refresh_beside_a_writer(&path, seed, 40);
    }
}

#[test]
fn rows_that_did_not_change_stay_resident() {
    let (_directory, path) = directory();
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let table = store.table(&model().specs[0]).unwrap();
    let keys: Vec<u64> = (0..DENSE_ROWS).collect();
    let gradients = vec![0.5; keys.len() * DIM];
    update(&store, table, &keys, &gradients).unwrap();
    store.commit(1, "", &[]).unwrap();
    let reader = Store::open(&path, reading(16 << 20)).unwrap();
    get(&reader, table, &keys).unwrap();
    let misses = |store: &Store| store.stats().unwrap().misses;
    let before = misses(&reader);
    update(&store, table, &keys[..10], &gradients[..10 * DIM]).unwrap();
    store.commit(2, "", &[]).unwrap();
    assert_eq!(reader.refresh().unwrap().unwrap().step, 2);
    let values = get(&reader, table, &keys).unwrap();
    assert_eq!(misses(&reader) - before, 10);
    assert_eq!(values, get(&store, table, &keys).unwrap());
    assert!(reader.refresh().unwrap().is_none());
}

#[test]
fn a_refreshed_reader_sees_tables_that_came_since() {
    let (_directory, path) = directory();
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let model = model();
    let first = store.table(&model.specs[0]).unwrap();
    update(&store, first, &[1, 2], &[0.5; 2 * DIM]).unwrap();
    store.commit(1, "", &[]).unwrap();
    let reader = Store::open(&path, reading(BUDGET)).unwrap();
    let before = get(&reader, first, &[1, 2, 3]).unwrap();
    let third = store.table(&model.specs[2]).unwrap();
    update(&store, third, &[7], &[0.5; 2 * DIM]).unwrap();
    assert!(reader.refresh().unwrap().is_none());
    assert!(reader.find_table("other").is_none());
    store.commit(2, "", &[]).unwrap();
    reader.refresh().unwrap();
    let third = reader.find_table("other").unwrap();
    assert_eq!(get(&reader, third, &[7, 8]).unwrap(), get(&store, third, &[7, 8]).unwrap());
    assert_eq!(get(&reader, first, &[1, 2, 3]).unwrap(), before);
}

#[test]
fn a_reader_that_was_opened_before_the_first_commit_is_refreshed() {
    let (_directory, path) = directory();
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let reader = Store::open(&path, reading(BUDGET)).unwrap();
    assert!(reader.refresh().unwrap().is_none());
    let table = store.table(&model().specs[1]).unwrap();
    update(&store, table, &[1, 2], &[0.5; 2 * DIM]).unwrap();
    store.commit(1, "", &[]).unwrap();
    assert_eq!(reader.refresh().unwrap().unwrap().step, 1);
    let table = reader.find_table("growing").unwrap();
    assert_eq!(get(&reader, table, &[1, 2]).unwrap(), get(&store, table, &[1, 2]).unwrap());
}

/// The memory that a refusal names.
fn named_bytes(error: &Error) -> u64 {
    assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
    error.message().rsplit("memory=").next().and_then(|bytes| bytes.parse().ok()).unwrap()
}

/// A memory with which a reader works, and with hardly less would not.
fn smallest_bytes(path: &Path) -> u64 {
    let refusal = |bytes| Store::open(path, reading(bytes)).unwrap().warm().err();
    let (mut less, mut works) = (1, named_bytes(&refusal(1).unwrap()));
    while works - less > 4 << 10 {
        let bytes = less.midpoint(works);
        match refusal(bytes) {
            Some(_) => less = bytes,
            None => works = bytes,
        }
    }
    works
}

// It moved, and every verb said from then on that its memory was too little.
#[test]
fn a_refresh_to_a_commit_that_the_budget_does_not_hold_is_refused_and_changes_nothing() {
    for held in [true, false] {
        let (_directory, path) = directory();
        let store = Store::open(&path, options(16 << 20)).unwrap();
        let table = store.table(&model().specs[1]).unwrap();
        let keys: Vec<u64> = (0..1000).map(|i| mix(i, 5)).collect();
        update(&store, table, &keys, &vec![0.5; keys.len() * DIM]).unwrap();
        store.commit(1, "", &[]).unwrap();
        let first = get(&store, table, &keys).unwrap();
        let tiny = Store::open(&path, reading(1)).unwrap();
        let reader = Store::open(&path, reading(smallest_bytes(&path))).unwrap();
        assert_eq!(get(&reader, table, &keys).unwrap(), first);
        if !held {
            for entry in std::fs::read_dir(&path).unwrap().map(Result::unwrap) {
                if entry.file_name().to_string_lossy().starts_with("hold-") {
                    std::fs::remove_file(entry.path()).unwrap();
                }
            }
        }
        let all: Vec<u64> = (0..100_000).map(|i| mix(i, 5)).collect();
        update(&store, table, &all, &vec![0.25; all.len() * DIM]).unwrap();
        // A commit that is not held stays for one more.
        (2..3 + u64::from(held)).for_each(|step| drop(store.commit(step, "", &[]).unwrap()));
        let last = store.last_commit().unwrap().step;
        for _ in 0..2 {
            let error = reader.refresh().unwrap_err();
            let named = named_bytes(&error);
            assert_eq!(reader.last_commit().unwrap().step, 1);
            assert_eq!(reader.is_held(), held);
            assert_eq!(get(&reader, table, &keys).unwrap(), first, "held {held}");
            assert_eq!(reader.len(table).unwrap(), 1000);
            let larger = Store::open(&path, reading(named)).unwrap();
            assert_eq!(get(&larger, table, &all).unwrap(), get(&store, table, &all).unwrap());
        }
        // The budget named by the first refusal, now with a cache to give room from.
        let error = reader.refresh().unwrap_err();
        let grows = StoreOptions { step: Some(1), ..reading(named_bytes(&error)) };
        if let Ok(grows) = Store::open(&path, grows) {
            assert_eq!(get(&grows, table, &keys).unwrap(), first);
            assert_eq!(grows.refresh().unwrap().unwrap().step, last);
            assert_eq!(get(&grows, table, &all).unwrap(), get(&store, table, &all).unwrap());
            let stats = grows.stats().unwrap();
            assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
        } else {
            assert!(held, "step 1 is kept");
        }
        // A reader that never had a budget to work with only wants to look.
        assert_eq!(tiny.refresh().unwrap().unwrap().step, last);
    }
}

#[test]
fn a_reader_of_an_earlier_step_moves_to_the_newest() {
    let (_directory, path) = directory();
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let (mut model, mut random) = (model(), Random(9));
    model.open_tables(&store).unwrap();
    for round in 1..=3 {
        step(&store, &mut model, &mut random);
        store.commit(round, "", &[]).unwrap();
    }
    let reader = Store::open(&path, StoreOptions { step: Some(2), ..reading(BUDGET) }).unwrap();
    assert_eq!(reader.refresh().unwrap().unwrap().step, 3);
    expect(&reader, &model, "at 3");
    // Its hold moved along: the commit before can go.
    for round in 4..=6 {
        step(&store, &mut model, &mut random);
        store.commit(round, "", &[]).unwrap();
    }
    let kept: Vec<u64> = store.commits().iter().map(|commit| commit.step).collect();
    assert_eq!(kept, [5, 6]);
    assert_eq!(reader.refresh().unwrap().unwrap().step, 6);
    expect(&reader, &model, "at 6");
}

// A record that does not check ended what was read, and the reader stayed where it was for ever.
#[test]
fn a_journal_that_lost_a_commit_is_damage_to_a_reader_too() {
    let (_directory, path) = directory();
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let table = store.table(&model().specs[0]).unwrap();
    update(&store, table, &[1], &[0.5; DIM]).unwrap();
    store.commit(1, "", &[]).unwrap();
    let reader = Store::open(&path, reading(BUDGET)).unwrap();
    update(&store, table, &[2], &[0.5; DIM]).unwrap();
    store.commit(2, "", &[("a", b"b")]).unwrap();
    store.close().unwrap();
    let journal = path.join("journal-00000001");
    let mut bytes = std::fs::read(&journal).unwrap();
    let at = bytes.windows(9).rposition(|part| part == b"\"step\":2,").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    let error = reader.refresh().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(reader.last_commit().unwrap().step, 1);
}

#[test]
fn a_scan_that_began_before_a_refresh_says_so() {
    let (_directory, path) = directory();
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let table = store.table(&model().specs[1]).unwrap();
    let keys: Vec<u64> = (0..2000).collect();
    update(&store, table, &keys, &vec![0.5; keys.len() * DIM]).unwrap();
    store.commit(1, "", &[]).unwrap();
    let reader = Store::open(&path, reading(BUDGET)).unwrap();
    let mut scan = reader.scan(table).unwrap();
    let (mut found, mut values) = (vec![0; 10], vec![0.0; 10 * DIM]);
    assert_eq!(scan.next_batch(&mut found, &mut values, None).unwrap(), 10);
    update(&store, table, &[3000], &[0.5; DIM]).unwrap();
    store.commit(2, "", &[]).unwrap();
    reader.refresh().unwrap();
    let (mut found, mut values) = (vec![0; 2000], vec![0.0; 2000 * DIM]);
    let error = scan.next_batch(&mut found, &mut values, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
}

#[test]
fn a_store_that_is_open_to_write_is_not_refreshed() {
    let (_directory, path) = directory();
    let store = Store::open(&path, StoreOptions::new(Memory::Bytes(BUDGET))).unwrap();
    assert_eq!(store.refresh().unwrap_err().kind(), ErrorKind::Misuse);
}

/// Reads every row a few at a time: each as the model has it, or `CommitGone`. Returns how often
/// that came.
fn right_or_gone(reader: &Store, model: &Model) -> u64 {
    let mut gone = 0;
    for (table, keys) in all_keys().iter().enumerate() {
        let id = reader.find_table(&model.specs[table].name).unwrap();
        let dim = model.specs[table].embedding_dim;
        for keys in keys.chunks(50) {
            match get(reader, id, keys) {
                Ok(values) => {
                    for (key, found) in keys.iter().zip(values.chunks_exact(dim)) {
                        assert_eq!(
                            found,
                            &model.row(table, *key)[..dim],
                            "table {table} key {key}"
                        );
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::CommitGone, "{error}");
                    gone += 1;
                }
            }
        }
    }
    gone
}

// A reader that was forgotten kept every later copy of every row, until the disk was full.
#[test]
fn a_reader_that_keeps_more_than_it_may_loses_its_commit_and_sees_no_other_rows() {
    for seed in 1..=2 {
        let (_directory, path) = directory();
        let bounded = StoreOptions { max_held_bytes: Some(100 << 10), ..options(BUDGET) };
        let store = Store::open(&path, bounded).unwrap();
        let (mut model, mut random) = (model(), Random(seed));
        model.open_tables(&store).unwrap();
        for _ in 0..30 {
            step(&store, &mut model, &mut random);
        }
        store.commit(1, "", &[("s", &[1; 100])]).unwrap();
        let first = model.clone();
        // Too little for all rows, or none of them would be read again.
        let reader = Store::open(&path, reading(SMALL)).unwrap();
        let taken = |store: &Store| store.stats().unwrap().commits.holds_taken;
        let mut rounds = 1;
        while taken(&store) == 0 {
            rounds += 1;
            assert!(rounds < 200, "seed {seed}: the reader keeps its commit for ever");
            step(&store, &mut model, &mut random);
            store.commit(rounds, "", &[]).unwrap();
            if taken(&store) == 0 {
                expect(&reader, &first, "while it is held");
            }
        }
        let mut gone = 0;
        while gone == 0 {
            rounds += 1;
            assert!(rounds < 600, "seed {seed}: nothing of what was released is used again");
            step(&store, &mut model, &mut random);
            store.commit(rounds, "", &[]).unwrap();
            if rounds.is_multiple_of(10) {
                gone += right_or_gone(&reader, &first);
            }
        }
        assert_eq!(reader.state().unwrap_err().kind(), ErrorKind::CommitGone);
        assert_eq!(reader.refresh().unwrap().unwrap().step, rounds);
        expect(&reader, &model, "refreshed after its commit was gone");
        assert_eq!(taken(&store), 1);
    }
}

#[test]
fn a_disk_bound_bounds_what_readers_keep() {
    let (_directory, path) = directory();
    let bounded = StoreOptions { max_disk_bytes: Some(6 << 20), ..options(BUDGET) };
    let store = Store::open(&path, bounded).unwrap();
    let (mut model, mut random) = (model(), Random(3));
    model.open_tables(&store).unwrap();
    let mut readers = Vec::new();
    let taken = |store: &Store| store.stats().unwrap().commits.holds_taken;
    for round in 1.. {
        assert!(round < 400, "readers keep what they like");
        for _ in 0..10 {
            step(&store, &mut model, &mut random);
        }
        store.commit(round, "", &[]).unwrap();
        if round % 10 == 5 {
            readers.push((Store::open(&path, reading(SMALL)).unwrap(), model.clone()));
        }
        if taken(&store) > 1 {
            break;
        }
    }
    for (reader, model) in &readers {
        right_or_gone(reader, model);
    }
    expect(&store, &model, "the writer");
}
