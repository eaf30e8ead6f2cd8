//! Stores in real directories: who may open them, the views of readers and copies, refusals and
//! their messages, forks.
#![expect(unsafe_code, reason = "fork has no safe interface")]
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::{DISK_BYTES, child_path, get, hear, options, put, say, spawn, spec, update};
use embedrock_core::optimizer::OptimizerKind;
use embedrock_core::{
    ErrorKind, GetBatch, Memory, Store, StoreOptions, TableId, TableSpec, check, copy,
};
use std::path::{Path, PathBuf};

const DIM: usize = 8;
const ROWS: u64 = 3000;
const BUDGET: u64 = 600 << 10;

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    (directory, path)
}

fn table() -> TableSpec {
    spec("t", DIM, Some(ROWS), OptimizerKind::None)
}

/// A row that tells its key and the step in which it was written.
fn row_of(key: u64, step: u64) -> [f32; DIM] {
    std::array::from_fn(|i| (key * 10 + i as u64) as f32 + step as f32 / 1024.0)
}

/// The step in which a key was last written, when every step writes a third of all keys.
fn written_at(key: u64, step: u64) -> u64 {
    step - (step + 3 - key % 3) % 3
}

/// One step: writes a third of all keys.
fn train(store: &Store, table: TableId, step: u64) {
    let keys: Vec<u64> = (0..ROWS).filter(|key| key % 3 == step % 3).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| row_of(*key, step)).collect();
    put(store, table, &keys, &values).unwrap();
}

fn expect_step(store: &Store, step: u64) {
    let table = store.find_table("t").unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    let values = get(store, table, &keys).unwrap();
    for (key, row) in keys.iter().zip(values.chunks_exact(DIM)) {
        assert_eq!(row, row_of(*key, written_at(*key, step)), "step {step} key {key}");
    }
}

/// A store with commits 3 to 6; the last two stay.
fn trained(path: &Path) -> Store {
    let store = Store::open(path, options(BUDGET)).unwrap();
    let table = store.table(&table()).unwrap();
    for step in 1..=6 {
        train(&store, table, step);
        if step >= 3 {
            store.commit(step, "", &[("weights", &[step as u8; 5000])]).unwrap();
        }
    }
    store
}

fn refused(path: &Path, options: StoreOptions) -> embedrock_core::Error {
    Store::open(path, options).err().expect("this must be refused")
}

// ---------------------------------------------------------------- one writer

#[test]
#[ignore = "the body of a child process"]
fn writer() {
    let Some(path) = child_path() else { return };
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let table = store.table(&table()).unwrap();
    say("open");
    if !hear() {
        return;
    }
    for step in 7..207 {
        train(&store, table, step);
        store.commit(step, "", &[]).unwrap();
        if step == 20 {
            say("20");
        }
    }
    let retained = store.stats().unwrap().classes[0].retained_copies;
    assert!(retained > 0, "nothing is retained for the reader");
    say("committed");
    hear();
}

#[test]
fn a_second_writer_is_refused_by_the_pid_of_the_first_until_that_is_killed() {
    let (_directory, path) = directory();
    let mut first = spawn("store::writer", &path, &[]);
    first.expect("open");
    let error = refused(&path, options(BUDGET));
    assert_eq!(error.kind(), ErrorKind::Locked);
    let holder = format!("process {} on ", first.pid());
    assert!(error.message().contains(&holder), "{error}");
    assert!(error.message().contains("read_only=True"), "{error}");
    // Failing to open must not take the lock away from the holder.
    assert_eq!(refused(&path, options(BUDGET)).kind(), ErrorKind::Locked);
    first.kill();
    Store::open(&path, options(BUDGET)).unwrap();
}

#[test]
fn a_second_handle_in_the_same_process_is_refused_until_the_first_is_closed_or_dropped() {
    let (_directory, path) = directory();
    let first = Store::open(&path, options(BUDGET)).unwrap();
    let around = path.join("..").join("store");
    let error = refused(&around, options(BUDGET));
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.message().contains("in this process already"), "{error}");
    first.close().unwrap();
    drop(Store::open(&path, options(BUDGET)).unwrap());
    Store::open(&path, options(BUDGET)).unwrap();
}

// ---------------------------------------------------------------- readers and copies

#[test]
fn a_reader_keeps_the_rows_of_its_commit_while_another_process_commits() {
    let (_directory, path) = directory();
    drop(trained(&path));
    let mut writer = spawn("store::writer", &path, &[]);
    writer.expect("open");
    let reader = Store::open(&path, StoreOptions { read_only: true, ..options(BUDGET) }).unwrap();
    assert_eq!(reader.last_commit().unwrap().step, 6);
    writer.nod();
    writer.expect("20");
    expect_step(&reader, 6);
    writer.expect("committed");
    expect_step(&reader, 6);
    assert_eq!(reader.state().unwrap()[0].1, [6; 5000]);
    let table = reader.find_table("t").unwrap();
    let row = row_of(1, 1);
    assert_eq!(put(&reader, table, &[1], &row).unwrap_err().kind(), ErrorKind::Misuse);
    assert_eq!(reader.commit(9, "", &[]).unwrap_err().kind(), ErrorKind::Misuse);
    drop(reader);
    let late = Store::open(&path, StoreOptions { read_only: true, ..options(BUDGET) }).unwrap();
    assert_eq!(late.last_commit().unwrap().step, 206);
    expect_step(&late, 206);
    writer.finish();
}

#[test]
#[ignore = "the body of a child process"]
fn busy_writer() {
    let Some(path) = child_path() else { return };
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let table = store.table(&table()).unwrap();
    say("open");
    for step in 7.. {
        train(&store, table, step);
        store.commit(step, "", &[]).unwrap();
    }
}

#[test]
fn readers_checks_and_copies_can_begin_at_any_moment_of_a_busy_writer() {
    let (directory, path) = directory();
    drop(trained(&path));
    let mut writer = spawn("store::busy_writer", &path, &[]);
    writer.expect("open");
    for round in 0..40 {
        let reading = StoreOptions { read_only: true, ..options(BUDGET) };
        let reader = Store::open(&path, reading).unwrap_or_else(|e| panic!("round {round}: {e:?}"));
        expect_step(&reader, reader.last_commit().unwrap().step);
        drop(reader);
        if round % 10 == 0 {
            let report = check(&path, &mut |_, _| Ok(())).unwrap();
            assert!(report.problems.is_empty(), "round {round}: {:?}", report.problems);
            let to = directory.path().join(format!("copy-{round}"));
            let memory = Memory::Bytes(BUDGET);
            let report = copy(&path, &to, None, memory, None, None, &mut |_, _| Ok(())).unwrap();
            let copied = Store::open(&to, options(BUDGET)).unwrap();
            assert_eq!(copied.last_commit().unwrap().step, report.commit.step);
            expect_step(&copied, report.commit.step);
        }
    }
    writer.kill();
}

#[test]
fn a_copy_of_a_live_store_holds_one_commit_whole() {
    let (directory, path) = directory();
    let store = trained(&path);
    let table = store.find_table("t").unwrap();
    // Uncommitted changes are not copied.
    train(&store, table, 7);
    for (step, expected) in [(None, 6), (Some(5), 5)] {
        let to = directory.path().join(format!("copy-{expected}"));
        let memory = Memory::Bytes(BUDGET);
        let report = copy(&path, &to, step, memory, None, None, &mut |_, _| Ok(())).unwrap();
        assert_eq!((report.commit.step, report.rows), (expected, ROWS));
        let copied = Store::open(&to, options(BUDGET)).unwrap();
        expect_step(&copied, expected);
        assert_eq!(copied.state().unwrap()[0].1, [expected as u8; 5000]);
        drop(copied);
        let report = check(&to, &mut |_, _| Ok(())).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        let again = copy(&path, &to, None, memory, None, None, &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Misuse, "{again}");
    }
    expect_step(&store, 7);
}

#[test]
fn a_copy_that_was_cut_off_can_be_made_again() {
    let (directory, path) = directory();
    trained(&path).close().unwrap();
    let to = directory.path().join("copy");
    let memory = Memory::Bytes(BUDGET);
    let stop = |_, _| Err(embedrock_core::Error::new(ErrorKind::Misuse, "stopped".to_owned()));
    let error = copy(&path, &to, None, memory, None, None, &mut { stop }).unwrap_err();
    assert_eq!(error.message(), "stopped");
    // It was taken for a store without commits.
    for read_only in [false, true] {
        let error = Store::open(&to, StoreOptions { read_only, ..options(BUDGET) }).map(drop);
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("was not finished"), "{error}");
    }
    assert_eq!(check(&to, &mut |_, _| Ok(())).unwrap_err().kind(), ErrorKind::NotFound);
    copy(&path, &to, None, memory, None, None, &mut |_, _| Ok(())).unwrap();
    expect_step(&Store::open(&to, options(BUDGET)).unwrap(), 6);
}

// Files whose names began like one of a store's were taken for its own.
#[test]
fn a_copy_that_is_made_again_leaves_files_that_are_not_of_a_store() {
    let (directory, path) = directory();
    trained(&path).close().unwrap();
    let to = directory.path().join("copy");
    let memory = Memory::Bytes(BUDGET);
    let stop = |_, _| Err(embedrock_core::Error::new(ErrorKind::Misuse, "stopped".to_owned()));
    copy(&path, &to, None, memory, None, None, &mut { stop }).unwrap_err();
    let foreign = [
        "headlines.csv",
        "head.bak",
        "measurements",
        "spare-parts",
        "rows-of-houses.csv",
        "rows-00",
        "state-1",
        "state-of-the-art.md",
        "journal-1",
        "journal-club.txt",
        "superblock.old",
    ];
    for name in foreign {
        std::fs::write(to.join(name), name).unwrap();
    }
    copy(&path, &to, None, memory, None, None, &mut |_, _| Ok(())).unwrap();
    for name in foreign {
        assert_eq!(std::fs::read_to_string(to.join(name)).unwrap(), name);
    }
    expect_step(&Store::open(&to, options(BUDGET)).unwrap(), 6);
}

#[test]
fn an_earlier_step_opens_for_reading_beside_the_writer_and_for_writing_after_it() {
    let (_directory, path) = directory();
    let store = trained(&path);
    let at = |step, read_only| StoreOptions { step: Some(step), read_only, ..options(BUDGET) };
    let reader = Store::open(&path, at(5, true)).unwrap();
    expect_step(&reader, 5);
    expect_step(&store, 6);
    drop((reader, store));
    let gone = refused(&path, at(4, false));
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert!(gone.message().contains("step 4") && gone.message().contains("[5, 6]"), "{gone}");
    // Only looking at an earlier commit changes nothing.
    let store = Store::open(&path, at(5, false)).unwrap();
    expect_step(&store, 5);
    drop(store);
    let store = Store::open(&path, options(BUDGET)).unwrap();
    expect_step(&store, 6);
    drop(store);
    // Going on from it drops the later one.
    let store = Store::open(&path, at(5, false)).unwrap();
    let table = store.find_table("t").unwrap();
    train(&store, table, 6);
    train(&store, table, 7);
    store.commit(70, "", &[]).unwrap();
    drop(store);
    let store = Store::open(&path, options(BUDGET)).unwrap();
    assert_eq!(store.commits().iter().map(|c| c.step).collect::<Vec<_>>(), [5, 70]);
    expect_step(&store, 7);
    drop(store);
    assert!(check(&path, &mut |_, _| Ok(())).unwrap().problems.is_empty());
}

#[test]
#[ignore = "the body of a child process"]
fn reader_of_the_last_commit() {
    let Some(path) = child_path() else { return };
    let reader = Store::open(&path, StoreOptions { read_only: true, ..options(BUDGET) }).unwrap();
    say("open");
    hear();
    expect_step(&reader, 6);
}

#[test]
fn going_back_to_an_earlier_step_waits_for_the_readers_of_later_ones() {
    let (_directory, path) = directory();
    drop(trained(&path));
    let mut reader = spawn("store::reader_of_the_last_commit", &path, &[]);
    reader.expect("open");
    let at = StoreOptions { step: Some(5), ..options(BUDGET) };
    let error = refused(&path, at.clone());
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    assert!(error.message().contains("reader"), "{error}");
    reader.nod();
    reader.finish();
    let store = Store::open(&path, at).unwrap();
    expect_step(&store, 5);
}

// ---------------------------------------------------------------- damage

/// The files of a store, sorted.
fn files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn newest(path: &Path, prefix: &str) -> PathBuf {
    let name = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
    files(path).into_iter().rfind(|p| name(p).starts_with(prefix)).unwrap()
}

fn problems(path: &Path) -> Vec<String> {
    let report = check(path, &mut |_, _| Ok(())).unwrap();
    assert!(report.problem_count as usize >= report.problems.len());
    report.problems.into_iter().map(|p| p.message).collect()
}

#[test]
fn a_sound_store_checks_clean_and_the_check_leaves_no_trace() {
    let (_directory, path) = directory();
    let store = trained(&path);
    let bytes = |path: &PathBuf| (path.clone(), std::fs::read(path).unwrap());
    let before: Vec<_> = files(&path).iter().map(bytes).collect();
    for open in [true, false] {
        let report = check(&path, &mut |done, all| {
            assert!(done <= all);
            Ok(())
        })
        .unwrap();
        assert!(report.problems.is_empty(), "{open} {:?}", report.problems);
        assert_eq!((report.commits, report.rows), (2, 2 * ROWS));
        assert_eq!(files(&path).iter().map(bytes).collect::<Vec<_>>(), before);
        store.close().unwrap();
    }
    let error = check(path.join("none"), &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_flipped_byte_is_found_and_located_in_every_file() {
    let (directory, path) = directory();
    drop(trained(&path));
    // Rows: somewhere in the middle of the pages of the last commit. Journal: in the middle of what
    // was written, which a commit follows. State: anywhere.
    let rows = {
        let bytes = std::fs::read(newest(&path, "rows-")).unwrap();
        (1..bytes.len() / 4096).rfind(|p| bytes[p * 4096 + 8..][..4] == *b"ERPG").unwrap() * 4096
    };
    for (prefix, offset, where_) in [
        ("rows-", rows + 100, format!("page {}", rows / 4096)),
        ("rows-", 20, "bytes 0 to 512".to_owned()),
        ("journal-", 1000, "journal-00000001".to_owned()),
        ("state-", 777, "state-0000000004".to_owned()),
        ("superblock", 100, "superblock".to_owned()),
        ("head", 3, "head".to_owned()),
    ] {
        let damaged = directory.path().join("damaged");
        let _ = std::fs::remove_dir_all(&damaged);
        std::fs::create_dir(&damaged).unwrap();
        for file in files(&path) {
            std::fs::copy(&file, damaged.join(file.file_name().unwrap())).unwrap();
        }
        let file = newest(&damaged, prefix);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[offset] ^= 0x10;
        std::fs::write(&file, bytes).unwrap();
        let found = problems(&damaged);
        assert!(!found.is_empty(), "{prefix}{offset}: not found");
        assert!(found.iter().any(|p| p.contains(&where_)), "{prefix}{offset}: {found:?}");
    }
}

#[test]
fn before_damage_in_the_journal_a_kept_commit_can_be_opened_and_gone_on_from() {
    let (_directory, path) = directory();
    trained(&path).close().unwrap();
    let journal = newest(&path, "journal-");
    let mut bytes = std::fs::read(&journal).unwrap();
    let place = |what: &[u8]| bytes.windows(what.len()).position(|w| w == what).unwrap();
    let between = usize::midpoint(place(b"\"step\":5"), place(b"\"step\":6"));
    bytes[between] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    assert_eq!(refused(&path, options(BUDGET)).kind(), ErrorKind::Corrupt);
    let at = |step| StoreOptions { step: Some(step), ..options(BUDGET) };
    // Commit 6 has dropped commit 4, whose pages may have been written again.
    assert_eq!(refused(&path, at(4)).kind(), ErrorKind::NotFound);
    expect_step(&Store::open(&path, StoreOptions { read_only: true, ..at(5) }).unwrap(), 5);
    let store = Store::open(&path, at(5)).unwrap();
    expect_step(&store, 5);
    let table = store.find_table("t").unwrap();
    for step in 6..9 {
        train(&store, table, step);
        store.commit(step, "", &[]).unwrap();
    }
    store.close().unwrap();
    assert_eq!(problems(&path), Vec::<String>::new());
    expect_step(&Store::open(&path, options(BUDGET)).unwrap(), 8);
}

#[test]
fn damage_to_a_commit_is_found_when_the_next_has_the_same_step() {
    let (_directory, path) = directory();
    let store = trained(&path);
    store.commit(6, "", &[("weights", &[9; 5000])]).unwrap();
    store.close().unwrap();
    let states: Vec<PathBuf> =
        files(&path).into_iter().filter(|p| p.to_string_lossy().contains("state-")).collect();
    assert_eq!(states.len(), 2);
    std::fs::write(&states[0], [1; 100]).unwrap();
    let name = states[0].file_name().unwrap().to_string_lossy().into_owned();
    let found = problems(&path);
    assert!(found.iter().any(|p| p.contains(&name)), "{found:?}");
}

#[test]
fn a_truncated_or_missing_file_is_found_and_named() {
    let (directory, path) = directory();
    drop(trained(&path));
    for prefix in ["rows-", "journal-", "state-", "superblock"] {
        for remove in [false, true] {
            let damaged = directory.path().join("damaged");
            let _ = std::fs::remove_dir_all(&damaged);
            std::fs::create_dir(&damaged).unwrap();
            for file in files(&path) {
                std::fs::copy(&file, damaged.join(file.file_name().unwrap())).unwrap();
            }
            let file = newest(&damaged, prefix);
            if remove {
                std::fs::remove_file(&file).unwrap();
            } else {
                let len = std::fs::metadata(&file).unwrap().len().min(4000) / 2;
                std::fs::File::options().write(true).open(&file).unwrap().set_len(len).unwrap();
            }
            let what = format!("{prefix} removed {remove}");
            match check(&damaged, &mut |_, _| Ok(())) {
                Ok(report) => {
                    assert!(report.problem_count > 0, "{what}: nothing found");
                    let told = report
                        .problems
                        .iter()
                        .any(|p| p.message.contains(prefix.trim_end_matches('-')));
                    assert!(told, "{what}: {:?}", report.problems);
                }
                Err(error) => assert!(error.message().contains("superblock"), "{what}: {error:?}"),
            }
            // Opening to write must not take the rest for an empty store either.
            match Store::open(&damaged, options(BUDGET)) {
                Ok(store) => {
                    assert_eq!(prefix, "state-", "{what}: opened");
                    expect_step(&store, 6);
                    assert!(store.state().is_err(), "{what}");
                }
                Err(error) => {
                    let kinds = [ErrorKind::Corrupt, ErrorKind::Io, ErrorKind::NotFound];
                    assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
                }
            }
        }
    }
}

// ---------------------------------------------------------------- forks

#[test]
#[ignore = "the body of a child process"]
fn forking_trainer() {
    let Some(path) = child_path() else { return };
    let store = trained(&path);
    let table = store.find_table("t").unwrap();
    train(&store, table, 7);
    // SAFETY: the child only calls verbs that are refused, writes to pipes that it owns and leaves
    // by `_exit`, so no lock of another thread is waited for and no destructor runs twice.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid > 0 {
        say("forked");
        hear();
        return;
    }
    let mut values = [0.0; DIM];
    let keys = [1];
    let batch = GetBatch { table, keys: &keys, values: values[..].as_mut().into(), state: None };
    let mut out = [false];
    let errors = [
        store.get(&mut [batch]).err(),
        put(&store, table, &keys, &[1.0; DIM]).err(),
        update(&store, table, &keys, &[1.0; DIM]).err(),
        store.modify(table, &keys, &mut |_, _, _| Ok(())).err(),
        store.delete(table, &keys).err(),
        store.contains(table, &keys, &mut out).err(),
        store.lookahead(table, &keys).err(),
        store.commit(8, "", &[]).err(),
        store.scan(table).err(),
        store.digest(table, &mut |_, _| Ok(())).err(),
        store.state().err(),
        store.stats().err(),
        store.len(table).err(),
        store.table(&spec("new", 4, None, OptimizerKind::Sgd)).err(),
        store.close().err(),
    ];
    let forked = errors.iter().flatten().filter(|e| e.kind() == ErrorKind::Forked).count();
    let named = errors.iter().flatten().all(|e| {
        e.message().contains(&std::process::id().to_string()) && e.message().contains("read_only")
    });
    drop(store);
    say(&format!(
        "{forked} of {} verbs, named {named}, child {}",
        errors.len(),
        std::process::id()
    ));
    // The parent is killed now; this process lives on.
    while hear() {}
    say("alive");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_forked_child_is_refused_and_keeps_nothing_locked_when_its_parent_is_killed() {
    let (_directory, path) = directory();
    let mut parent = spawn("store::forking_trainer", &path, &[]);
    let said = [parent.listen().unwrap(), parent.listen().unwrap()];
    let told = said.iter().find(|line| line.contains("verbs")).unwrap();
    assert!(told.starts_with("15 of 15 verbs, named true"), "{told}");
    let child: i32 = told.rsplit(' ').next().unwrap().parse().unwrap();
    let error = refused(&path, options(BUDGET));
    assert_eq!(error.kind(), ErrorKind::Locked);
    assert!(error.message().contains(&format!("process {} ", parent.pid())), "{error}");
    parent.child.kill().unwrap();
    parent.child.wait().unwrap();
    drop(parent.child.stdin.take());
    parent.expect("alive");
    let store = Store::open(&path, options(BUDGET)).unwrap();
    assert_eq!(store.last_commit().unwrap().step, 6);
    expect_step(&store, 6);
    // SAFETY: a signal to the process that this test started through its child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

#[test]
#[ignore = "the body of a child process"]
fn opening_in_a_forked_child() {
    let Some(path) = child_path() else { return };
    let store = trained(&path);
    // SAFETY: as above; the store that the child opens is its own.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid > 0 {
        store.close().unwrap();
        drop(store);
        say("closed");
        let mut status = 0;
        // SAFETY: waits for the process forked above; `status` is a valid place.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
        return;
    }
    if !hear() {
        std::process::abort();
    }
    let reader = Store::open(&path, StoreOptions { read_only: true, ..options(BUDGET) }).unwrap();
    expect_step(&reader, 6);
    let own = Store::open(&path, options(BUDGET)).unwrap();
    expect_step(&own, 6);
    train(&own, own.find_table("t").unwrap(), 7);
    own.commit(7, "", &[]).unwrap();
    expect_step(&reader, 6);
    drop((reader, own));
    say("child done");
    // SAFETY: ends this process without the destructors of its parent's test run.
    unsafe { libc::_exit(0) };
}

#[test]
fn a_forked_child_may_open_a_store_that_its_parent_closed() {
    let (_directory, path) = directory();
    let mut parent = spawn("store::opening_in_a_forked_child", &path, &[]);
    parent.expect("closed");
    parent.nod();
    parent.expect("child done");
    parent.finish();
    let store = Store::open(&path, options(BUDGET)).unwrap();
    expect_step(&store, 7);
}

// ---------------------------------------------------------------- what is refused, and how

#[test]
fn other_parameters_than_stored_are_refused_with_both() {
    let (_directory, path) = directory();
    let store = trained(&path);
    let stored = table();
    let asked = |change: &dyn Fn(&mut TableSpec)| {
        let mut spec = stored.clone();
        change(&mut spec);
        let error = store.table(&spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.message().contains("'t'"), "{error}");
        error.message().to_owned()
    };
    let message = asked(&|s| s.embedding_dim = 16);
    assert!(message.contains("embedding_dim is 8, asked 16"), "{message}");
    let message = asked(&|s| s.num_embeddings = Some(4000));
    assert!(message.contains("num_embeddings is 3000, asked 4000"), "{message}");
    let message = asked(&|s| s.num_embeddings = None);
    assert!(message.contains("num_embeddings is 3000, asked None"), "{message}");
    let message = asked(&|s| s.optimizer.kind = OptimizerKind::Adam);
    assert!(message.contains("none") && message.contains("adam"), "{message}");
    let message = asked(&|s| {
        s.embedding_dim = 4;
        s.initializer = embedrock_core::init::Initializer::Constant(0.5);
    });
    assert!(message.contains("embedding_dim") && message.contains("constant"), "{message}");
    // Expected rows only size buffers.
    store.table(&TableSpec { expected_rows: Some(1), ..stored.clone() }).unwrap();
}

#[test]
fn a_budget_that_cannot_work_names_the_bytes_that_do_and_harms_nothing() {
    let (_directory, path) = directory();
    drop(trained(&path));
    let error = refused(&path, options(50_000));
    assert_eq!(error.kind(), ErrorKind::Budget);
    let named: u64 = error.message().rsplit("memory=").next().unwrap().parse().unwrap();
    assert_eq!(refused(&path, options(named - 1)).kind(), ErrorKind::Budget);
    let store = Store::open(&path, options(named)).unwrap();
    expect_step(&store, 6);
    train(&store, store.find_table("t").unwrap(), 7);
    store.commit(7, "", &[]).unwrap();
    let stats = store.stats().unwrap();
    assert!(stats.memory.total() <= named, "{:?} of {named}", stats.memory);
}

#[test]
fn a_path_that_is_a_file_missing_or_not_writable_is_refused_and_named() {
    let (directory, path) = directory();
    let none = StoreOptions { create: false, ..options(BUDGET) };
    let reader = StoreOptions { read_only: true, ..options(BUDGET) };
    for options in [&none, &reader] {
        let error = refused(&path, options.clone());
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.message().contains(path.to_str().unwrap()), "{error}");
        assert!(!path.exists());
        // A directory without a store is none, and stays as it is.
        let error = refused(directory.path(), options.clone());
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(files(directory.path()), Vec::<PathBuf>::new());
    }
    let file = directory.path().join("file");
    std::fs::write(&file, b"precious").unwrap();
    let error = refused(&file, options(BUDGET));
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    assert!(error.message().contains("is a file"), "{error}");
    let error = refused(&file.join("store"), options(BUDGET));
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.message().contains("file/store"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    // Nobody can create a directory there, not even root.
    let error = refused(Path::new("/proc/embedrock"), options(BUDGET));
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.message().contains("/proc/embedrock"), "{error}");
}

#[test]
fn disk_that_is_not_there_is_named_before_anything_is_written() {
    let (_directory, path) = directory();
    let store = Store::open(&path, options(BUDGET)).unwrap();
    let large = TableSpec { num_embeddings: Some(10_000_000), ..table() };
    let error = store.table(&large).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.message().contains(&DISK_BYTES.to_string()), "{error}");
    assert!(error.message().contains("check_disk"), "{error}");
    assert!(store.find_table("t").is_none());
    store.table(&table()).unwrap();
}

/// Cleaning was paid for by flushed rows alone. A page that a commit sealed half empty, and the
/// segment that a close left half empty, were not, so a store of 96 KiB grew by 4 KiB with each
/// small commit and by a segment with each opening, without end.
#[test]
fn many_small_commits_and_short_lives_do_not_grow_the_file_without_end() {
    for (lives, commits) in [(3, 150), (150, 1)] {
        let (_directory, path) = directory();
        let mut step = 0;
        for _ in 0..lives {
            let store = Store::open(&path, options(BUDGET)).unwrap();
            let table = store.table(&table()).unwrap();
            for _ in 0..commits {
                let key = step * 7 % ROWS;
                put(&store, table, &[key], &row_of(key, step)).unwrap();
                store.commit(step, "", &[]).unwrap();
                step += 1;
            }
        }
        let bytes = std::fs::metadata(path.join("rows-0")).unwrap().len();
        // Live rows, and the segments that cleaning tolerates and kept commits hold.
        assert!(bytes <= 12 * (64 << 10), "{lives} lives of {commits} commits: {bytes} bytes");
    }
}
