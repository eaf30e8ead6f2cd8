//! The log of a store: which events, how often, and that no key and no row is in it.

use super::merges::Merging;
use super::*;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::cell::RefCell;
use std::sync::Once;
use std::time::Instant;

thread_local! {
    /// Lines of this thread, while it is to have any.
    static LINES: RefCell<Option<Vec<(Level, String, String)>>> = const { RefCell::new(None) };
}

struct Capture;

impl Log for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A thread that ends has none any more.
        let _ = LINES.try_with(|lines| {
            if let Some(lines) = &mut *lines.borrow_mut() {
                let (target, said) = (record.target().to_owned(), record.args().to_string());
                lines.push((record.level(), target, said));
            }
        });
    }

    fn flush(&self) {}
}

/// The lines that this thread logs while it runs something, as `LEVEL target: message`.
fn logged(run: impl FnOnce()) -> Vec<String> {
    static LOGGER: Capture = Capture;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&LOGGER).unwrap();
        log::set_max_level(LevelFilter::Trace);
    });
    LINES.set(Some(Vec::new()));
    run();
    let lines = LINES.take().unwrap();
    lines.into_iter().map(|(level, target, said)| format!("{level} {target}: {said}")).collect()
}

/// Number of lines that begin so, and have all these words.
fn count(lines: &[String], begins: &str, words: &[&str]) -> usize {
    let has = |line: &&String| {
        line.starts_with(&format!("{begins}: simulated: "))
            && words.iter().all(|word| line.contains(word))
    };
    lines.iter().filter(has).count()
}

fn open(medium: &SimMedium, options: StoreOptions) -> Result<Store> {
    Store::open_on(Arc::new(medium.clone()), options)
}

fn put(store: &Store, keys: std::ops::Range<u64>) -> Result<()> {
    let table = store.table(&spec("t", Some(4000), OptimizerKind::Adagrad))?;
    let keys: Vec<u64> = keys.collect();
    store.put(&[put_of(table, &keys, &vec![0.765_625; keys.len() * DIM])]).map(drop)
}

#[test]
fn opening_committing_and_closing_are_told_with_what_an_operator_wants_to_know() {
    let medium = SimMedium::new(3);
    let first = logged(|| {
        let store = open(&medium, options(1 << 20)).unwrap();
        put(&store, 0..500).unwrap();
        store.commit(7, "", &[]).unwrap();
        put(&store, 0..3).unwrap();
        store.close().unwrap();
        store.close().unwrap();
    });
    assert_eq!(count(&first, "INFO embedrock::store", &["opened to write at no commit"]), 1);
    let committed = ["committed step 7 (commit 1)", "500 rows", "KiB written"];
    assert_eq!(count(&first, "DEBUG embedrock::commit", &committed), 1, "{first:#?}");
    let closed = ["closed, 1 batches with 3 rows"];
    assert_eq!(count(&first, "INFO embedrock::store", &closed), 1, "{first:#?}");
    assert_eq!(first.len(), 3, "{first:#?}");

    let again = logged(|| drop(open(&medium, options(1 << 20)).unwrap()));
    let recovered = ["recovered step 7 (commit 1) from 1 journal files of", " s,"];
    assert_eq!(count(&again, "INFO embedrock::recovery", &recovered), 1, "{again:#?}");
    let opened =
        ["at step 7 (commit 1), 1 tables (log) with 500 rows", "memory 1.0 MiB", "simulated"];
    assert_eq!(count(&again, "INFO embedrock::store", &opened), 1, "{again:#?}");
    assert_eq!(count(&again, "INFO embedrock::store", &["closed"]), 1, "{again:#?}");
    assert_eq!(again.len(), 3, "{again:#?}");
}

#[test]
fn a_torn_tail_is_told_and_going_back_is() {
    let medium = SimMedium::new(4);
    let store = open(&medium, options(1 << 20)).unwrap();
    for step in 1..=3 {
        put(&store, 0..300).unwrap();
        store.commit(step, "", &[]).unwrap();
    }
    let (file, end) = store.inner.history.lock().kept.last().unwrap().place;
    store.close().unwrap();
    let name = journal::name_of(file);
    let whole = logged(|| drop(open(&medium, options(1 << 20)).unwrap()));
    assert_eq!(count(&whole, "WARN embedrock::recovery", &[]), 0, "{whole:#?}");
    // The beginning of a record, and nothing behind it.
    medium.replace(&name, end, &[200, 0, 0, 0, 3, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
    let torn = logged(|| drop(open(&medium, options(1 << 20)).unwrap()));
    let what = [&format!("journal file {file} ends in a torn record at byte {end}")[..]];
    assert_eq!(count(&torn, "WARN embedrock::recovery", &what), 1, "{torn:#?}");
    let back = logged(|| {
        let at = StoreOptions { step: Some(2), ..options(1 << 20) };
        drop(open(&medium, at).unwrap());
    });
    let gone = ["goes back to step 2 (commit 2)", "commits up to 3 are given up"];
    assert_eq!(count(&back, "INFO embedrock::store", &gone), 1, "{back:#?}");
}

#[test]
fn refusals_for_want_of_room_are_told_once_a_second_at_most() {
    let medium = SimMedium::new(5);
    let bound = StoreOptions { max_disk_bytes: Some(6 << 20), ..options(2 << 20) };
    let store = open(&medium, bound).unwrap();
    let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
    let begun = Instant::now();
    let (mut refused, mut next) = (0, 0);
    let lines = logged(|| {
        while refused < 60 {
            let keys: Vec<u64> = (next..next + 200).collect();
            next += 200;
            let put = store.put(&[put_of(table, &keys, &vec![0.5; keys.len() * DIM])]);
            refused += u32::from(put.is_err());
        }
    });
    let told =
        count(&lines, "WARN embedrock::space", &["a change of rows was refused for want of"]);
    let seconds = begun.elapsed().as_secs() as usize + 1;
    assert!((1..=seconds).contains(&told), "{told} lines for {refused} refusals: {lines:#?}");
}

#[test]
fn a_store_that_refuses_changes_from_here_on_says_why_and_says_it_once() {
    let medium = SimMedium::new(6);
    let store = open(&medium, options(1 << 20)).unwrap();
    put(&store, 0..500).unwrap();
    medium.fail_write(0);
    let lines = logged(|| {
        store.commit(1, "", &[]).unwrap_err();
        store.commit(1, "", &[]).unwrap_err();
        put(&store, 0..5).unwrap_err();
    });
    let poisoned = ["refuses changes and commits from here on", "its last commit: "];
    assert_eq!(count(&lines, "ERROR embedrock::store", &poisoned), 1, "{lines:#?}");
}

#[test]
fn merges_are_told_with_rows_bytes_and_seconds() {
    let medium = SimMedium::new(7);
    let lines = logged(|| {
        let mut merging = Merging::open(&medium, true, |options| options);
        let mut step = 0;
        while merges(&merging.store) < 3 {
            step += 1;
            merging.step(false);
            if step % 20 == 0 {
                merging.store.commit(step, "", &[]).unwrap();
            }
        }
    });
    assert!(count(&lines, "DEBUG embedrock::merge", &["tables t: a merge begins"]) >= 3);
    let merged = ["tables t: merged ", " rows into ", " read and ", " written, ", " s of work in "];
    let told = count(&lines, "INFO embedrock::merge", &merged);
    assert!(told >= 1, "{lines:#?}");
}

#[test]
fn a_reader_tells_from_which_commit_to_which_it_moves_and_that_it_lost_its_hold() {
    let medium = SimMedium::new(8);
    let bound = StoreOptions { max_held_bytes: Some(0), keep: 1, ..options(1 << 20) };
    let store = open(&medium, bound).unwrap();
    put(&store, 0..4000).unwrap();
    store.commit(1, "", &[]).unwrap();
    let reading = StoreOptions { read_only: true, ..options(1 << 20) };
    let reader = open(&medium, reading).unwrap();
    put(&store, 0..4000).unwrap();
    let lines = logged(|| _ = store.commit(2, "", &[]).unwrap());
    let taken = ["took 1 holds of readers on commit 1 away"];
    assert_eq!(count(&lines, "WARN embedrock::space", &taken), 1, "{lines:#?}");
    let lines = logged(|| {
        let keys: Vec<u64> = (0..4000).collect();
        let mut values = vec![0.0; keys.len() * DIM];
        let values = (&mut values).into();
        let table = reader.find_table("t").unwrap();
        // The rows that it reads are gone, or are not.
        let _ = reader.get(&mut [GetBatch { table, keys: &keys, values, state: None }]);
        reader.refresh().unwrap().unwrap();
    });
    assert_eq!(count(&lines, "WARN embedrock::reader", &["has lost its hold"]), 1, "{lines:#?}");
    let moved = ["refreshed from step 1 (commit 1) to step 2 (commit 2) in "];
    assert_eq!(count(&lines, "INFO embedrock::reader", &moved), 1, "{lines:#?}");
}

#[test]
fn a_folder_that_is_not_in_its_place_is_told_when_it_goes_and_when_it_is_back() {
    let medium = SimMedium::new(9);
    let store = open(&medium, options(1 << 20)).unwrap();
    put(&store, 0..10).unwrap();
    let _other = medium.replace_folder();
    let lines = logged(|| (0..5).for_each(|_| _ = store.commit(1, "", &[]).unwrap_err()));
    let gone = ["the folder is not in its place"];
    assert_eq!(count(&lines, "ERROR embedrock::store", &gone), 1, "{lines:#?}");
    medium.put_folder_back();
    let lines = logged(|| _ = store.commit(1, "", &[]).unwrap());
    let back = ["the folder is in its place"];
    assert_eq!(count(&lines, "INFO embedrock::store", &back), 1, "{lines:#?}");
}

// Keys may be people's, and rows are nobody's business but the model's.
#[test]
fn no_line_has_a_key_or_a_value() {
    const KEY: u64 = 987_654_321_987_654;
    let medium = SimMedium::new(10);
    let lines = logged(|| {
        let bound = StoreOptions { max_disk_bytes: Some(6 << 20), ..options(400 << 10) };
        let store = open(&medium, bound).unwrap();
        let table = store.table(&spec("people", None, OptimizerKind::Sgd)).unwrap();
        let mut number = 0;
        loop {
            let keys: Vec<u64> = (0..200).map(|n| KEY + number + n).collect();
            number += 200;
            let values = vec![0.765_625; keys.len() * DIM];
            if store.put(&[put_of(table, &keys, &values)]).is_err() {
                break;
            }
        }
        let _ = store.commit(1, "secret meta", &[("secret name", b"secret state")]);
        medium.fail_write(0);
        let _ = store.delete(table, &[KEY]).and_then(|_| store.commit(2, "", &[]).map(|_| 0));
        drop(store);
        drop(open(&medium, options(1 << 20)));
    });
    assert!(lines.len() > 4, "{lines:#?}");
    for line in &lines {
        let said = ["98765432198", "0.765625", "secret"].iter().any(|word| line.contains(word));
        assert!(!said, "{line}");
    }
}
