//! Folders that are moved, removed or replaced under an open store, lock files that are removed,
//! and backups made of hard links: in directories of the operating system, as people meet it.

use super::*;
use std::fs;

const ROWS: u64 = 300;

/// A place for a store, which goes with the first.
fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap().join("store");
    (directory, path)
}

fn open(path: &Path) -> Store {
    Store::open(path, StoreOptions { keep: 1, ..options(1 << 20) }).unwrap()
}

fn table(store: &Store) -> TableId {
    store.table(&spec("t", Some(2 * ROWS), OptimizerKind::Adagrad)).unwrap()
}

/// Puts every row as the step says. Without a commit it is only in memory.
fn write(store: &Store, step: u64) -> Result<()> {
    let keys: Vec<u64> = (0..ROWS).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| [(key + 1000 * step) as f32; DIM]).collect();
    store.put(&[put_of(table(store), &keys, &values)]).map(drop)
}

fn train(store: &Store, step: u64) -> Result<CommitInfo> {
    write(store, step)?;
    store.commit(step, "", &[("state", &[step as u8; 600])])
}

fn expect_rows_of(store: &Store, step: u64) {
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut values = vec![0.0; keys.len() * DIM];
    let table = store.find_table("t").unwrap();
    let out = ValuesOut::Float32(&mut values);
    store.get(&mut [GetBatch { table, keys: &keys, values: out, state: None }]).unwrap();
    for (key, row) in keys.iter().zip(values.chunks_exact(DIM)) {
        assert_eq!(row, [(key + 1000 * step) as f32; DIM], "key {key} of step {step}");
    }
}

/// A store that nobody has open has this last commit, is whole, and can be written.
fn expect_whole(path: &Path, step: u64) {
    let report = check(path, &mut |_, _| Ok(())).unwrap();
    assert_eq!(report.problem_count, 0, "{}: {:?}", path.display(), report.problems);
    let store = open(path);
    assert_eq!(store.last_commit().map(|commit| commit.step), Some(step), "{}", path.display());
    expect_rows_of(&store, step);
    train(&store, step + 1).unwrap();
}

fn files_of(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    named.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

fn refused<T>(result: Result<T>, kind: ErrorKind, says: &[&str]) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind(), kind, "{error}");
    for part in says {
        assert!(error.message().contains(part), "{part}: {error}");
    }
}

// Commits went to whatever lay at the path: they removed the journal of another store, wrote their
// own in its place, and lost their own folder's rows as well.
#[test]
fn a_store_whose_folder_was_moved_refuses_commits_until_it_is_back() {
    each_kind_or_direct(|| {
        let (_directory, path) = place();
        let store = open(&path);
        (1..=4).for_each(|step| drop(train(&store, step).unwrap()));
        let moved = path.with_file_name("moved");
        fs::rename(&path, &moved).unwrap();
        let names = [path.to_str().unwrap(), moved.to_str().unwrap(), "put the folder"];
        assert!(store.displaced().unwrap().is_some());
        for _ in 0..3 {
            refused(train(&store, 5), ErrorKind::NotFound, &names);
            refused(write(&store, 6), ErrorKind::NotFound, &names);
        }
        if !KIND.get().is_direct() {
            refused(store.pin(4, "best"), ErrorKind::NotFound, &[]);
        }
        assert!(!store.is_poisoned());
        expect_rows_of(&store, 5);
        assert!(!path.exists(), "nothing is made in its place");
        fs::rename(&moved, &path).unwrap();
        assert_eq!(store.displaced().unwrap(), None);
        (6..=9).for_each(|step| drop(train(&store, step).unwrap()));
        store.close().unwrap();
        expect_whole(&path, 9);
    });
}

#[test]
fn a_store_in_the_place_of_another_stays_as_it_is() {
    each_kind_or_direct(|| {
        let (_directory, path) = place();
        let (first, second) = (open(&path), path.with_file_name("moved"));
        (1..=4).for_each(|step| drop(train(&first, step).unwrap()));
        let last = if KIND.get().is_direct() { 5 } else { 4 };
        fs::rename(&path, &second).unwrap();
        let other = open(&path);
        (50..=53).for_each(|step| drop(train(&other, step).unwrap()));
        other.close().unwrap();
        let before = files_of(&path);
        for step in [5, 5, 5] {
            refused(train(&first, step), ErrorKind::NotFound, &["another one is in its place"]);
        }
        first.close().unwrap();
        drop(first);
        assert!(before == files_of(&path), "the other one was changed");
        expect_whole(&path, 53);
        if last == 4 {
            expect_whole(&second, 4);
        }
    });
}

// A handle of a folder that was removed, in the same process, wrote into the one made anew.
#[test]
fn a_store_that_was_removed_and_made_anew_is_not_that_of_the_old_handle() {
    each_kind_or_direct(|| {
        let (_directory, path) = place();
        let old = open(&path);
        (1..=3).for_each(|step| drop(train(&old, step).unwrap()));
        fs::remove_dir_all(&path).unwrap();
        refused(train(&old, 4), ErrorKind::NotFound, &["was removed, and none is in its place"]);
        let new = open(&path);
        train(&new, 1).unwrap();
        for step in 4..8 {
            refused(train(&old, step), ErrorKind::NotFound, &["another one is in its place"]);
            train(&new, step - 2).unwrap();
        }
        drop(old);
        (6..9).for_each(|step| drop(train(&new, step).unwrap()));
        new.close().unwrap();
        expect_whole(&path, 8);
    });
}

// "It is stale": with the lock file gone a second writer came, both committed, and the commits of
// one were lost without a word.
#[test]
fn a_writer_whose_lock_file_was_removed_is_refused_and_the_store_stays_whole() {
    each_kind(|| {
        for writes_first in [false, true] {
            let (_directory, path) = place();
            let first = open(&path);
            (1..=4).for_each(|step| drop(train(&first, step).unwrap()));
            if writes_first {
                write(&first, 99).unwrap();
            }
            fs::remove_file(path.join("lock")).unwrap();
            let second = open(&path);
            (5..=9).for_each(|step| drop(train(&second, step).unwrap()));
            refused(first.commit(5, "", &[]), ErrorKind::Locked, &["lock file", "removed"]);
            refused(train(&first, 6), ErrorKind::Poisoned, &["lock file"]);
            assert!(first.is_poisoned());
            let begin = first.commit_in_background(7, "", &[]).map(drop);
            refused(begin, ErrorKind::Poisoned, &[]);
            refused(first.unpin("best"), ErrorKind::Poisoned, &[]);
            (10..=12).for_each(|step| drop(train(&second, step).unwrap()));
            first.close().unwrap();
            drop(first);
            train(&second, 13).unwrap();
            second.close().unwrap();
            expect_whole(&path, 13);
        }
    });
}

#[test]
fn every_change_of_a_writer_without_its_lock_is_refused() {
    let (_directory, path) = place();
    type Change = fn(&Store) -> Result<()>;
    let changes: [(&str, Change); 6] = [
        ("pin", |store| store.pin(2, "best").map(drop)),
        ("unpin", |store| store.unpin("first")),
        ("table", |store| store.table(&spec("u", Some(9), OptimizerKind::Sgd)).map(drop)),
        ("delete", |store| store.delete(table(store), &[1]).map(drop)),
        ("commit", |store| store.commit(3, "", &[]).map(drop)),
        ("pinned", |store| store.commit_pinned(3, "", &[], "x").map(drop)),
    ];
    for (what, change) in changes {
        let _ = fs::remove_dir_all(&path);
        let store = open(&path);
        train(&store, 1).unwrap();
        store.pin(1, "first").unwrap();
        train(&store, 2).unwrap();
        fs::remove_file(path.join("lock")).unwrap();
        let before = files_of(&path);
        let error = change(&store).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{what}: {error}");
        drop(store);
        assert!(before == files_of(&path), "{what} changed files");
    }
}

// A backup of hard links had the rows of what was trained after it, and passed its check.
#[test]
fn a_backup_of_hard_links_keeps_its_rows_while_training_goes_on() {
    each_kind_or_direct(|| {
        let (_directory, path) = place();
        let store = open(&path);
        (1..=5).for_each(|step| drop(train(&store, step).unwrap()));
        store.close().unwrap();
        let backup = path.with_file_name("backup");
        fs::create_dir(&backup).unwrap();
        for entry in fs::read_dir(&path).unwrap() {
            let entry = entry.unwrap();
            fs::hard_link(entry.path(), backup.join(entry.file_name())).unwrap();
        }
        let before = files_of(&backup);
        let store = open(&path);
        (6..=30).for_each(|step| drop(train(&store, step).unwrap()));
        store.close().unwrap();
        assert!(before == files_of(&backup), "the backup has changed");
        expect_whole(&path, 30);
        expect_whole(&backup, 5);
    });
}

#[test]
fn a_reader_of_a_folder_that_was_moved_reads_on_and_is_told_at_its_refresh() {
    let (_directory, path) = place();
    let store = open(&path);
    (1..=2).for_each(|step| drop(train(&store, step).unwrap()));
    store.close().unwrap();
    let reader = Store::open(&path, StoreOptions { read_only: true, ..options(1 << 20) }).unwrap();
    let moved = path.with_file_name("moved");
    fs::rename(&path, &moved).unwrap();
    let other = open(&path);
    train(&other, 70).unwrap();
    refused(reader.refresh(), ErrorKind::NotFound, &["another one is in its place"]);
    expect_rows_of(&reader, 2);
    assert!(reader.is_held());
    drop(reader);
    // The hold that it removes is its own.
    assert!(files_of(&moved).keys().all(|name| !name.starts_with("hold-")));
    train(&other, 71).unwrap();
}
