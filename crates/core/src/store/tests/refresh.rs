//! Readers that are opened and refreshed while a writer goes back, or while something fails.

use super::super::files::head::{Head, Tells};
use super::super::files::holds;
use super::super::recovery::is_kept;
use super::meddled::Meddled;
use super::*;
use crate::io::{Medium, SimMedium};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const ROWS: u64 = 400;
/// Commits with so long a meta begin a new journal file.
const LONG: usize = 140 << 10;

fn keeping(keep: usize) -> StoreOptions {
    StoreOptions { keep, ..options(1 << 20) }
}

fn reading() -> StoreOptions {
    StoreOptions { read_only: true, ..options(1 << 20) }
}

fn open(medium: &SimMedium, options: StoreOptions) -> Result<Store> {
    Store::open_on(Arc::new(medium.clone()), options)
}

/// Opens to write, at a step.
fn back(medium: &SimMedium, step: u64) -> Store {
    open(medium, StoreOptions { step: Some(step), ..keeping(16) }).unwrap()
}

fn row_of(key: u64, step: u64) -> [f32; DIM] {
    std::array::from_fn(|i| (key * 8 + i as u64) as f32 + step as f32 / 1024.0)
}

/// Writes rows as of a step, without a commit.
fn write(store: &Store, keys: std::ops::Range<u64>, step: u64) {
    let table = store.table(&spec("t", Some(ROWS), OptimizerKind::None)).unwrap();
    let keys: Vec<u64> = keys.collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| row_of(*key, step)).collect();
    store.put(&[put_of(table, &keys, &values)]).unwrap();
}

/// Writes every row and commits, with a meta of so many bytes.
fn train(store: &Store, step: u64, meta: usize) {
    write(store, 0..ROWS, step);
    store.commit(step, &"m".repeat(meta), &[("weights", &[step as u8; 700])]).unwrap();
}

fn read(store: &Store, keys: std::ops::Range<u64>, step: u64) -> Result<()> {
    let table = store.find_table("t").unwrap();
    let keys: Vec<u64> = keys.collect();
    let mut values = vec![0.0; keys.len() * DIM];
    let batch = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
    store.get(&mut [batch])?;
    for (key, row) in keys.iter().zip(values.chunks_exact(DIM)) {
        assert_eq!(row, row_of(*key, step), "key {key} of step {step}");
    }
    Ok(())
}

fn take_holds_away(medium: &SimMedium) {
    holds::living(medium).unwrap().iter().for_each(|h| holds::take_away(medium, h).unwrap());
}

fn step_of(store: &Store) -> u64 {
    store.last_commit().unwrap().step
}

fn place_of(store: &Store) -> (u64, u64) {
    store.inner.history.lock().kept.last().unwrap().place
}

fn expect_gone(reader: &Store, step: u64) {
    for _ in 0..2 {
        let error = read(reader, 0..ROWS, step).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CommitGone, "{error}");
    }
    let error = reader.state().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommitGone, "{error}");
}

// A hold on commit 0 came first, and the writer looked no further.
#[test]
fn a_reader_of_a_store_without_commits_hides_no_other_hold() {
    each_kind(|| {
        let medium = SimMedium::new(1);
        let writer = open(&medium, keeping(2)).unwrap();
        let empty = open(&medium, reading()).unwrap();
        (1..4).for_each(|step| train(&writer, step, 0));
        let reader = open(&medium, reading()).unwrap();
        (4..10).for_each(|step| train(&writer, step, 0));
        drop(writer);
        let writer = open(&medium, keeping(2)).unwrap();
        (10..16).for_each(|step| train(&writer, step, 0));
        read(&reader, 0..ROWS, 3).unwrap();
        drop((reader, empty, writer));
        open(&medium, keeping(2)).unwrap();
    });
}

// Between the writer's look at the holds and its cut a reader could take one, and kept it.
#[test]
fn a_hold_that_comes_while_a_writer_goes_back_is_taken_away() {
    each_kind(|| {
        for meta in [0, LONG] {
            let medium = SimMedium::new(2);
            let writer = open(&medium, keeping(16)).unwrap();
            (1..4).for_each(|step| train(&writer, step, meta));
            drop(writer);
            let meddled = Meddled::new(&medium);
            let at = StoreOptions { step: Some(2), ..keeping(16) };
            let writer = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, at).unwrap();
            let opened: Arc<Mutex<Option<Store>>> = Arc::default();
            let (slot, device) = (Arc::clone(&opened), medium.clone());
            meddled.meddle(move |doing| {
                if doing == ("open", "head") && slot.lock().is_none() {
                    let reader = open(&device, reading()).unwrap();
                    assert_eq!(step_of(&reader), 3);
                    assert!(reader.is_held());
                    *slot.lock() = Some(reader);
                }
                Ok(())
            });
            train(&writer, 30, 0);
            meddled.leave();
            let reader = opened.lock().take().expect("the writer has written the head");
            assert!(!reader.is_held(), "meta {meta}");
            expect_gone(&reader, 3);
            assert_eq!(reader.refresh().unwrap().unwrap().step, 30);
            assert!(reader.is_held());
            read(&reader, 0..ROWS, 30).unwrap();
        }
    });
}

// The file that the reader had open was removed, not changed: its commit seemed to be in place.
#[test]
fn a_reader_without_its_hold_notices_that_its_whole_journal_file_was_given_up() {
    each_kind(|| {
        let medium = SimMedium::new(3);
        let writer = open(&medium, keeping(16)).unwrap();
        (1..4).for_each(|step| train(&writer, step, LONG));
        let reader = open(&medium, reading()).unwrap();
        drop(writer);
        let files = medium.list("journal-").unwrap().len();
        assert!(files > 1);
        take_holds_away(&medium);
        let writer = back(&medium, 2);
        write(&writer, 0..1, 29);
        assert!(medium.list("journal-").unwrap().len() < files, "no file was given up");
        train(&writer, 30, 0);
        assert_eq!(writer.last_commit().unwrap().sequence, 3);
        expect_gone(&reader, 3);
        assert_eq!(reader.refresh().unwrap().unwrap().step, 30);
        read(&reader, 0..ROWS, 30).unwrap();
    });
}

/// Trains step 3 on a store that is gone back in, so that its record ends where another did.
fn train_to(medium: &SimMedium, place: (u64, u64), meta: usize) -> Store {
    let fits = |meta: &usize| {
        let copy = medium.reboot(1);
        train(&back(&copy, 2), 3, *meta);
        place_of(&open(&copy, reading()).unwrap()) == place
    };
    let meta = (0..2 * meta).rev().find(fits).expect("a meta with which the record ends there");
    let writer = back(medium, 2);
    train(&writer, 3, meta);
    writer
}

/// Three commits, the last with the rows of step 17.
fn trained_17(medium: &SimMedium) -> Store {
    let writer = open(medium, keeping(16)).unwrap();
    (1..3).for_each(|step| train(&writer, step, 200));
    write(&writer, 0..ROWS, 17);
    writer.commit(3, &"m".repeat(200), &[("weights", &[3; 700])]).unwrap();
    writer
}

// Number and place were all that was compared: the reader stayed where it was, with other rows.
#[test]
fn a_reader_without_its_hold_takes_no_other_commit_of_the_same_number_and_place_for_its_own() {
    each_kind(|| {
        let medium = SimMedium::new(4);
        let writer = trained_17(&medium);
        let reader = open(&medium, reading()).unwrap();
        let place = place_of(&reader);
        read(&reader, 0..ROWS, 17).unwrap();
        drop(writer);
        medium.sync_dir().unwrap();
        take_holds_away(&medium);
        let _writer = train_to(&medium, place, 200);
        let fresh = open(&medium, reading()).unwrap();
        assert_eq!((place_of(&fresh), step_of(&fresh)), (place, 3));
        assert!(!reader.is_held());
        assert_eq!(reader.refresh().unwrap().map(|info| info.step), Some(3));
        assert_eq!(reader.last_commit(), fresh.last_commit());
        assert!(reader.is_held() && reader.refresh().unwrap().is_none());
        read(&reader, 0..ROWS, 3).unwrap();
    });
}

// The hold went between two looks: what lies behind the other commit was laid over this one.
#[test]
fn a_reader_that_loses_its_commit_while_it_is_refreshed_does_not_go_on_from_it() {
    each_kind(|| {
        let medium = SimMedium::new(5);
        let writer = trained_17(&medium);
        let meddled = Meddled::new(&medium);
        let reader = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, reading()).unwrap();
        let place = place_of(&reader);
        read(&reader, 0..ROWS, 17).unwrap();
        drop(writer);
        medium.sync_dir().unwrap();
        let (device, mut done) = (medium.clone(), false);
        meddled.meddle(move |doing| {
            if doing == ("open", "head") && !done {
                done = true;
                take_holds_away(&device);
                let writer = train_to(&device, place, 200);
                write(&writer, 0..10, 3);
                writer.commit(4, "", &[]).unwrap();
            }
            Ok(())
        });
        assert_eq!(reader.refresh().unwrap().unwrap().step, 4);
        read(&reader, 0..ROWS, 3).unwrap();
    });
}

/// A reader of a store at step 3, and what a refresh to step 5 does while its n-th operation fails.
fn refresh_failing(held: bool, n: usize) -> (Store, Arc<Meddled>, Result<Option<CommitInfo>>) {
    let medium = SimMedium::new(6);
    let writer = open(&medium, keeping(2)).unwrap();
    (1..4).for_each(|step| train(&writer, step, 0));
    let meddled = Meddled::new(&medium);
    let reader = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, reading()).unwrap();
    read(&reader, 0..ROWS, 3).unwrap();
    if !held {
        take_holds_away(&medium);
    }
    write(&writer, 0..50, 5);
    writer.commit(4, "", &[]).unwrap();
    writer.commit(5, "", &[]).unwrap();
    let mut done = 0;
    meddled.meddle(move |doing| {
        done += 1;
        if done == n {
            return Err(Error::new(ErrorKind::Io, format!("{doing:?} fails, as the test asks")));
        }
        Ok(())
    });
    let refreshed = reader.refresh();
    meddled.leave();
    (reader, meddled, refreshed)
}

// A failure after the move gave an error although the reader had moved, or closed the reader.
#[test]
fn a_refresh_that_fails_leaves_the_reader_where_it_is() {
    each_kind(|| {
        for held in [true, false] {
            let mut failed = 0;
            for n in 1.. {
                let (reader, _meddled, refreshed) = refresh_failing(held, n);
                let what = format!("held {held}, operation {n}: {refreshed:?}");
                let moved = matches!(&refreshed, Ok(Some(_)));
                assert_eq!(step_of(&reader), if moved { 5 } else { 3 }, "{what}");
                if moved {
                    read(&reader, 0..50, 5).unwrap();
                    read(&reader, 50..ROWS, 3).unwrap();
                    if !what.contains("as the test asks") && failed > 0 && n > 60 {
                        break;
                    }
                    continue;
                }
                failed += 1;
                let error = refreshed.expect_err(&what);
                assert!(error.message().contains("as the test asks"), "{what}");
                read(&reader, 0..ROWS, 3).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(reader.refresh().unwrap().unwrap().step, 5, "{what}");
            }
            assert!(failed > 5, "{failed} refreshes failed");
        }
    });
}

// A store without tables had, as it seemed, lost its index.
#[test]
fn a_reader_of_a_store_without_tables_outlives_a_refresh_that_fails() {
    each_kind(|| {
        let medium = SimMedium::new(7);
        let writer = open(&medium, keeping(2)).unwrap();
        writer.commit(1, "", &[]).unwrap();
        let meddled = Meddled::new(&medium);
        let reader = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, reading()).unwrap();
        assert!(reader.tables().is_empty());
        train(&writer, 2, 0);
        meddled.meddle(|doing| match doing {
            ("open", "rows-0") => Err(Error::new(ErrorKind::Io, "as the test asks".to_owned())),
            _ => Ok(()),
        });
        let error = reader.refresh().unwrap_err();
        assert_eq!(error.message(), "as the test asks");
        meddled.leave();
        assert_eq!(step_of(&reader), 1);
        assert_eq!(reader.refresh().unwrap().unwrap().step, 2);
        read(&reader, 0..ROWS, 2).unwrap();
    });
}

// The journal behind it could not be followed: the reader was closed, though it held its commit.
#[test]
fn a_held_reader_stays_at_its_commit_where_it_cannot_move() {
    each_kind(|| {
        let medium = SimMedium::new(8);
        let writer = open(&medium, keeping(1)).unwrap();
        (1..4).for_each(|step| train(&writer, step, LONG));
        let meddled = Meddled::new(&medium);
        let reader = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, reading()).unwrap();
        read(&reader, 0..ROWS, 3).unwrap();
        (4..8).for_each(|step| train(&writer, step, LONG));
        let mut left = 2;
        meddled.meddle(move |doing| {
            if doing == ("open", "rows-0") && left > 0 {
                left -= 1;
                return Err(Error::new(ErrorKind::Io, "as the test asks".to_owned()));
            }
            Ok(())
        });
        let error = reader.refresh().unwrap_err();
        assert_eq!(error.message(), "as the test asks");
        meddled.leave();
        assert!(reader.is_held());
        assert_eq!((step_of(&reader), reader.commits().len()), (3, 1));
        read(&reader, 0..ROWS, 3).unwrap();
        assert_eq!(reader.state().unwrap()[0].1, [3; 700]);
        assert_eq!(reader.refresh().unwrap().unwrap().step, 7);
        read(&reader, 0..ROWS, 7).unwrap();
    });
}

#[test]
fn a_refresh_that_lacks_memory_or_fails_anywhere_leaves_the_reader_where_it_is() {
    let medium = SimMedium::new(9);
    let writer = open(&medium, StoreOptions { keep: 2, ..options(16 << 20) }).unwrap();
    train(&writer, 1, 0);
    let refreshed = |n: usize| {
        let meddled = Meddled::new(&medium);
        let reader = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, reading()).unwrap();
        read(&reader, 0..ROWS, 1).unwrap();
        (reader, meddled, n)
    };
    let mut readers: Vec<_> = (1..80).map(refreshed).collect();
    writer.table(&spec("large", Some(1_000_000), OptimizerKind::None)).unwrap();
    writer.commit(2, "", &[]).unwrap();
    let (mut lacked, mut failed) = (0, 0);
    for (reader, meddled, n) in &mut readers {
        let (n, mut done) = (*n, 0);
        meddled.meddle(move |_| {
            done += 1;
            match done < n {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::Io, "as the test asks".to_owned())),
            }
        });
        let error = reader.refresh().unwrap_err();
        meddled.leave();
        lacked += u32::from(error.kind() == ErrorKind::Budget);
        failed += u32::from(error.kind() == ErrorKind::Io);
        read(reader, 0..ROWS, 1).unwrap_or_else(|e| panic!("operation {n}: {e}, {error}"));
        assert!(reader.is_held(), "operation {n}: {error}");
    }
    assert!(lacked > 0 && failed > 0, "{lacked} lacked memory, {failed} failed");
}

// Verbs waited while the journal was read and the index changed: fifteen seconds for 10 M rows.
#[test]
fn a_reader_is_read_at_its_commit_until_the_moment_of_the_move() {
    each_kind(|| {
        let medium = SimMedium::new(13);
        let writer = open(&medium, keeping(4)).unwrap();
        train(&writer, 1, 0);
        let reader = open(&medium, reading()).unwrap();
        read(&reader, 0..ROWS, 1).unwrap();
        write(&writer, 50..ROWS, 2);
        writer.commit(2, "", &[]).unwrap();
        let meant = reader.refresh_to(None, &mut |go| {
            // Old rows come to the cache once more, after those that changed have left it.
            read(&reader, 0..ROWS, 1).unwrap();
            assert_eq!(step_of(&reader), 1);
            go()?;
            assert_eq!(step_of(&reader), 2);
            read(&reader, 50..ROWS, 2)
        });
        assert_eq!(meant.unwrap().unwrap().step, 2);
        read(&reader, 0..50, 1).unwrap();
        read(&reader, 50..ROWS, 2).unwrap();
    });
}

#[test]
fn rows_that_did_not_change_stay_resident_over_a_refresh() {
    each_kind(|| {
        let medium = SimMedium::new(14);
        let writer = open(&medium, keeping(4)).unwrap();
        train(&writer, 1, 0);
        let reader = open(&medium, reading()).unwrap();
        read(&reader, 0..ROWS, 1).unwrap();
        write(&writer, 0..10, 2);
        writer.commit(2, "", &[]).unwrap();
        reader.refresh().unwrap().unwrap();
        let before = reader.stats().unwrap();
        read(&reader, 10..ROWS, 1).unwrap();
        let after = reader.stats().unwrap();
        assert_eq!((after.hits - before.hits, after.misses), (ROWS - 10, before.misses));
        read(&reader, 0..10, 2).unwrap();
        assert!(reader.stats().unwrap().misses > before.misses);
    });
}

#[test]
fn a_reader_moves_to_any_commit_that_is_kept() {
    each_kind(|| {
        for meta in [0, LONG] {
            let medium = SimMedium::new(15);
            let writer = open(&medium, keeping(4)).unwrap();
            (1..7).for_each(|step| train(&writer, step, meta));
            let reader = open(&medium, reading()).unwrap();
            read(&reader, 0..ROWS, 6).unwrap();
            let go = |step: u64| reader.refresh_to(Some(step), &mut |go| go());
            for step in [3, 5, 4, 6, 3] {
                assert_eq!(go(step).unwrap().unwrap().step, step);
                assert!(go(step).unwrap().is_none());
                assert!(reader.is_held());
                read(&reader, 0..ROWS, step).unwrap();
                assert_eq!(reader.state().unwrap()[0].1, [step as u8; 700]);
            }
            let error = go(2).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.message().contains("keeps steps [3, 4, 5, 6]"), "{error}");
            // A writer keeps what a reader holds.
            (7..12).for_each(|step| train(&writer, step, meta));
            read(&reader, 0..ROWS, 3).unwrap();
            assert_eq!(reader.refresh().unwrap().unwrap().step, 11);
            read(&reader, 0..ROWS, 11).unwrap();
        }
    });
}

// One commit was returned, and another was opened.
#[test]
fn the_commit_that_refresh_returns_is_the_one_that_is_open() {
    each_kind(|| {
        let medium = SimMedium::new(9);
        let writer = open(&medium, keeping(16)).unwrap();
        (1..4).for_each(|step| train(&writer, step, 0));
        let meddled = Meddled::new(&medium);
        let reader = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, reading()).unwrap();
        (4..6).for_each(|step| train(&writer, step, 0));
        drop(writer);
        take_holds_away(&medium);
        let (device, mut done) = (medium.clone(), false);
        meddled.meddle(move |(verb, name)| {
            if verb == "lock" && name.starts_with("hold-") && !done {
                done = true;
                train(&back(&device, 4), 50, 0);
            }
            Ok(())
        });
        let found = reader.refresh().unwrap();
        assert_eq!(found, reader.last_commit());
        assert_eq!(step_of(&reader), 50);
        read(&reader, 0..ROWS, 50).unwrap();
    });
}

// A journal file that went passed for one that still keeps the commit.
#[test]
fn a_commit_that_goes_while_a_refresh_takes_its_hold_is_not_moved_to() {
    each_kind(|| {
        let medium = SimMedium::new(10);
        let writer = open(&medium, keeping(16)).unwrap();
        (1..4).for_each(|step| train(&writer, step, LONG));
        let meddled = Meddled::new(&medium);
        let reader = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, reading()).unwrap();
        (4..6).for_each(|step| train(&writer, step, LONG));
        drop(writer);
        let (device, mut done) = (medium.clone(), false);
        meddled.meddle(move |(verb, name)| {
            if verb == "lock" && name.starts_with("hold-") && !done {
                done = true;
                write(&back(&device, 4), 0..1, 99);
            }
            Ok(())
        });
        assert_eq!(reader.refresh().unwrap().unwrap().step, 4);
        assert!(reader.is_held());
        read(&reader, 0..ROWS, 4).unwrap();
    });
}

// The whole index was recovered, to learn one number.
#[test]
fn a_reader_without_its_hold_looks_at_the_journal_once_to_learn_that_nothing_came() {
    each_kind(|| {
        let medium = SimMedium::new(11);
        let writer = open(&medium, keeping(16)).unwrap();
        (1..4).for_each(|step| train(&writer, step, LONG));
        let meddled = Meddled::new(&medium);
        let reader = Store::open_on(Arc::clone(&meddled) as Arc<dyn Medium>, reading()).unwrap();
        take_holds_away(&medium);
        let looks: Arc<AtomicUsize> = Arc::default();
        let counted = Arc::clone(&looks);
        meddled.meddle(move |(verb, name)| {
            if verb == "open" && name.starts_with("journal-") {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        assert!(reader.refresh().unwrap().is_none());
        let files = medium.list("journal-").unwrap().len();
        assert!(files > 1);
        assert_eq!(looks.load(Ordering::Relaxed), files);
    });
}

// A head that was being written told a reader that its commit was not kept.
#[test]
fn a_head_that_is_being_written_is_read_again() {
    each_kind(|| {
        let medium = SimMedium::new(12);
        let writer = open(&medium, keeping(2)).unwrap();
        (1..4).for_each(|step| train(&writer, step, 0));
        let at = StoreOptions { step: Some(2), ..reading() };
        let reader = open(&medium, at).unwrap();
        let record = reader.inner.history.lock().kept.last().cloned().unwrap();
        let (meddled, device) = (Meddled::new(&medium), medium.clone());
        let whole = medium.contents("head");
        let damaged = [!whole[40]];
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        meddled.meddle(move |doing| {
            if doing == ("open", "head") {
                let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
                device.replace("head", 40, if first { &damaged } else { &whole[40..41] });
            }
            Ok(())
        });
        let seed = reader.inner.seed;
        assert!(is_kept(&*meddled, seed, &record).unwrap());
        assert_eq!(looks.swap(0, Ordering::Relaxed), 2);
        assert_eq!(Head::read(&*meddled, seed).unwrap().tells, Tells::All);
        meddled.leave();
        // One that stays so is damaged.
        medium.replace("head", 40, &damaged);
        assert_eq!(Head::read(&medium, seed).unwrap().tells, Tells::Nothing);
    });
}

// An error of the device was told as a commit that is gone, and so it stayed.
#[test]
fn a_reader_without_its_hold_tells_an_error_of_the_device_as_such() {
    each_kind(|| {
        let medium = SimMedium::new(31);
        let writer = open(&medium, keeping(4)).unwrap();
        train(&writer, 1, 0);
        let reader = open(&medium, reading()).unwrap();
        take_holds_away(&medium);
        read(&reader, 0..ROWS, 1).unwrap();
        assert!(!reader.is_held());
        // All rows are resident: what is read is the record of the commit.
        medium.fail_read(0);
        let error = read(&reader, 0..ROWS, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        read(&reader, 0..ROWS, 1).unwrap();
    });
}

// A warming had the engine to its end, and a move that waited for it kept all verbs waiting.
#[test]
fn warming_lets_a_move_between_its_pieces_and_begins_again() {
    each_kind(|| {
        let medium = SimMedium::new(5);
        let writer = open(&medium, keeping(4)).unwrap();
        train(&writer, 1, 0);
        let reader = open(&medium, reading()).unwrap();
        let inner = &reader.inner;
        let mut pass = inner.begin_pass();
        assert!(inner.warm_on(&mut pass, 1).unwrap());
        train(&writer, 2, 0);
        assert_eq!(reader.refresh().unwrap().map(|commit| commit.step), Some(2));
        while inner.warm_on(&mut pass, 1).unwrap() {
            assert!(inner.engine.try_write().is_some(), "the engine is held between two pieces");
        }
        let misses = reader.stats().unwrap().misses;
        read(&reader, 0..ROWS, 2).unwrap();
        assert_eq!(reader.stats().unwrap().misses, misses, "rows were not warm");
        assert_eq!(reader.warm().unwrap(), 0);
    });
}
