//! Locks and holds on the simulated device: readers beside a writer, holds that are taken away,
//! calls from inside a modify.

use super::super::files::holds;
use super::*;
use crate::clip::Clip;
use crate::io::SimMedium;

const ROWS: u64 = 400;

fn open(medium: &SimMedium, options: StoreOptions) -> Result<Store> {
    Store::open_on(Arc::new(medium.clone()), options)
}

fn reading() -> StoreOptions {
    StoreOptions { read_only: true, ..options(1 << 20) }
}

fn row_of(key: u64, step: u64) -> [f32; DIM] {
    std::array::from_fn(|i| (key * 8 + i as u64) as f32 + step as f32 / 1024.0)
}

/// Writes every row and commits.
fn train(store: &Store, step: u64) {
    let table = store.table(&spec("t", Some(ROWS), OptimizerKind::None)).unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| row_of(*key, step)).collect();
    store.put(&[put_of(table, &keys, &values)]).unwrap();
    store.commit(step, "", &[("weights", &[step as u8; 700])]).unwrap();
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

fn retained(store: &Store) -> u64 {
    store.stats().unwrap().classes[0].retained_copies
}

#[test]
fn a_reader_keeps_its_commit_while_the_writer_commits_on_and_releases_it_when_it_closes() {
    each_kind(|| {
        let medium = SimMedium::new(1);
        let writer = open(&medium, options(1 << 20)).unwrap();
        (1..4).for_each(|step| train(&writer, step));
        let without_readers = retained(&writer);
        let reader = open(&medium, reading()).unwrap();
        assert!(reader.is_held() && writer.is_held());
        for step in 4..60 {
            train(&writer, step);
            let from = step % 40 * 10;
            read(&reader, from..from + 10, 3).unwrap();
        }
        assert!(retained(&writer) > without_readers, "nothing is kept for the reader");
        read(&reader, 0..ROWS, 3).unwrap();
        assert_eq!(reader.state().unwrap()[0].1, [3; 700]);
        reader.close().unwrap();
        assert_eq!(medium.list("hold-").unwrap(), Vec::<String>::new());
        train(&writer, 60);
        assert_eq!(retained(&writer), without_readers);
        drop(writer);
        read(&open(&medium, options(1 << 20)).unwrap(), 0..ROWS, 60).unwrap();
        drop(reader);
    });
}

// A writer that was started again was refused for as long as any reader had an older commit open,
// although the one before would have gone on beside it.
#[test]
fn a_writer_that_comes_again_goes_on_beside_a_reader_of_an_older_commit() {
    each_kind(|| {
        for killed in [false, true] {
            let medium = SimMedium::new(6);
            let mut writer = open(&medium, options(1 << 20)).unwrap();
            (1..4).for_each(|step| train(&writer, step));
            let reader = open(&medium, reading()).unwrap();
            (4..12).for_each(|step| train(&writer, step));
            let mut step = 11;
            for _ in 0..4 {
                if killed {
                    // Changes that no commit has are on the disk as well.
                    let table = writer.find_table("t").unwrap();
                    let keys: Vec<u64> = (0..ROWS).collect();
                    writer.put(&[put_of(table, &keys, &[7.0; ROWS as usize * DIM])]).unwrap();
                } else {
                    writer.close().unwrap();
                }
                drop(writer);
                writer = open(&medium, options(1 << 20)).unwrap();
                read(&writer, 0..ROWS, step).unwrap();
                for _ in 0..15 {
                    step += 1;
                    train(&writer, step);
                    let from = step % 40 * 10;
                    read(&reader, from..from + 10, 3).unwrap();
                }
                assert!(reader.is_held());
            }
            read(&reader, 0..ROWS, 3).unwrap();
            assert_eq!(reader.state().unwrap()[0].1, [3; 700]);
            let with_reader = writer.stats().unwrap().disk_bytes;
            reader.refresh().unwrap();
            read(&reader, 0..ROWS, step).unwrap();
            (step + 1..step + 20).for_each(|step| train(&writer, step));
            assert!(writer.inner.left_held.lock().is_empty());
            assert!(writer.stats().unwrap().disk_bytes <= with_reader);
            read(&reader, 0..ROWS, step).unwrap();
            drop((reader, writer));
            let found = open(&medium, options(1 << 20)).unwrap();
            read(&found, 0..ROWS, step + 19).unwrap();
        }
    });
}

#[test]
fn what_readers_held_before_a_writer_came_counts_towards_the_bound() {
    let medium = SimMedium::new(7);
    let writer = open(&medium, options(1 << 20)).unwrap();
    (1..4).for_each(|step| train(&writer, step));
    let reader = open(&medium, reading()).unwrap();
    (4..12).for_each(|step| train(&writer, step));
    drop(writer);
    let bound = StoreOptions { max_held_bytes: Some(4096), ..options(1 << 20) };
    let writer = open(&medium, bound).unwrap();
    assert!(reader.is_held());
    train(&writer, 12);
    assert!(!reader.is_held());
    train(&writer, 13);
    assert!(writer.inner.left_held.lock().is_empty());
}

#[test]
fn a_held_commit_to_which_the_journal_does_not_lead_is_refused_as_before() {
    let medium = SimMedium::new(8);
    let writer = open(&medium, options(1 << 20)).unwrap();
    (1..90).for_each(|step| train(&writer, step));
    drop(writer);
    // As of a writer that has dropped the commit, and not yet seen this one.
    let shared: Arc<dyn Medium> = Arc::new(medium.clone());
    let hold = holds::Hold::take(&shared, 1).unwrap();
    assert!(!medium.list("journal-0").unwrap().contains(&"journal-00000001".to_owned()));
    let error = open(&medium, options(1 << 20)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    assert!(error.message().contains("holds commit 1, which is older"), "{error}");
    assert!(error.message().contains("what it needs cannot be told"), "{error}");
    drop(hold);
    train(&open(&medium, options(1 << 20)).unwrap(), 90);
}

#[test]
fn a_device_has_one_writer_and_after_a_reboot_neither_lock_nor_hold() {
    each_kind(|| {
        let medium = SimMedium::new(2);
        let writer = open(&medium, options(1 << 20)).unwrap();
        (1..4).for_each(|step| train(&writer, step));
        let second = open(&medium, options(1 << 20)).err().unwrap();
        assert_eq!(second.kind(), ErrorKind::Locked, "{second}");
        assert!(second.message().contains("in this process already"), "{second}");
        let reader = open(&medium, reading()).unwrap();
        medium.sync_dir().unwrap();
        let rebooted = medium.reboot(1);
        assert_eq!(rebooted.list("hold-").unwrap().len(), 1, "the hold's file is found again");
        let next = open(&rebooted, options(1 << 20)).unwrap();
        (4..20).for_each(|step| train(&next, step));
        assert_eq!(rebooted.list("hold-").unwrap(), Vec::<String>::new());
        read(&reader, 0..ROWS, 3).unwrap();
        drop(writer);
        open(&medium, options(1 << 20)).unwrap();
    });
}

#[test]
fn a_hold_that_is_taken_away_keeps_nothing_and_its_reader_finds_out() {
    each_kind(|| {
        for keep_reading in [true, false] {
            let medium = SimMedium::new(3);
            let writer = open(&medium, options(1 << 20)).unwrap();
            (1..4).for_each(|step| train(&writer, step));
            let reader = open(&medium, reading()).unwrap();
            read(&reader, 0..10, 3).unwrap();
            let living = holds::living(&medium).unwrap();
            assert_eq!(living.iter().map(|held| held.sequence).collect::<Vec<_>>(), [3]);
            living.iter().for_each(|held| holds::take_away(&medium, held).unwrap());
            living.iter().for_each(|held| holds::take_away(&medium, held).unwrap());
            assert!(!reader.is_held() && !reader.stats().unwrap().commits.held);
            assert!(holds::outside(&medium, &Default::default()).unwrap().is_empty());
            for step in 4..60 {
                train(&writer, step);
                if keep_reading {
                    let error = read(&reader, 0..ROWS, 3).err();
                    assert!(error.is_none_or(|error| error.kind() == ErrorKind::CommitGone));
                }
            }
            read(&reader, 0..10, 3).unwrap();
            if !keep_reading {
                assert_eq!(read(&reader, 0..ROWS, 3).unwrap_err().kind(), ErrorKind::CommitGone);
            }
            assert_eq!(reader.state().unwrap_err().kind(), ErrorKind::CommitGone);
            // Nor does dropping it remove another's hold.
            let other = open(&medium, reading()).unwrap();
            drop(reader);
            assert!(other.is_held());
        }
    });
}

// Numbers of pages and commits begin again behind an earlier commit: a reader of a page of the new
// history cannot tell by its number.
#[test]
fn a_reader_without_its_hold_sees_no_row_of_another_history() {
    each_kind(|| {
        let medium = SimMedium::new(5);
        let writer = open(&medium, options(1 << 20)).unwrap();
        (1..4).for_each(|step| train(&writer, step));
        let reader = open(&medium, reading()).unwrap();
        let back = StoreOptions { step: Some(2), ..options(1 << 20) };
        drop(writer);
        let error = open(&medium, back.clone()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        holds::living(&medium).unwrap().iter().for_each(|h| holds::take_away(&medium, h).unwrap());
        let writer = open(&medium, back).unwrap();
        read(&reader, 0..10, 3).unwrap();
        train(&writer, 30);
        assert_eq!(writer.last_commit().unwrap().sequence, 3);
        for _ in 0..2 {
            assert_eq!(read(&reader, 0..ROWS, 3).unwrap_err().kind(), ErrorKind::CommitGone);
        }
        assert_eq!(reader.state().unwrap_err().kind(), ErrorKind::CommitGone);
        read(&open(&medium, reading()).unwrap(), 0..ROWS, 30).unwrap();
    });
}

// The function of a modify that asked its store for anything waited for itself.
#[test]
fn calls_from_inside_a_modify_are_refused_on_its_thread_and_wait_on_others() {
    each_kind(|| {
        let medium = SimMedium::new(4);
        let store = open(&medium, options(1 << 20)).unwrap();
        train(&store, 1);
        let table = store.find_table("t").unwrap();
        let other = std::sync::Mutex::new(None);
        let mut refused = 0;
        let changed = store.modify(table, &[1, 2], &mut |_, values, _| {
            values.fill(7.0);
            let (keys, mut out) = ([1u64], [false]);
            let mut one = [0.0; DIM];
            let batch =
                GetBatch { table, keys: &keys, values: one[..].as_mut().into(), state: None };
            let errors = [
                store.check_call().err(),
                store.get(&mut [batch]).err(),
                store.put(&[]).err(),
                store.update(&[]).err(),
                store.gradient_norm(&[], &Clip::default()).err(),
                store.modify(table, &keys, &mut |_, _, _| Ok(())).err(),
                store.delete(table, &keys).err(),
                store.contains(table, &keys, &mut out).err(),
                store.lookahead(table, &keys).err(),
                store.announce(&[]).err(),
                store.begin(1, std::time::Duration::ZERO).err(),
                store.finish(1).err(),
                store.pause_window(true).err(),
                store.clear_announced().err(),
                store.window_stats().err(),
                store.commit(2, "", &[]).err(),
                store.commit_in_background(2, "", &[]).err(),
                store.scan(table).err(),
                store.digest(table, &mut |_, _| Ok(())).err(),
                store.warm().err(),
                store.state().err(),
                store.stats().err(),
                store.device_rate(None, None, 0.0).err(),
                store.len(table).err(),
                store.table_info(table).err(),
                store.table(&spec("t", Some(ROWS), OptimizerKind::None)).err(),
                store.close().err(),
            ];
            let misuse =
                |e: &&Error| e.kind() == ErrorKind::Misuse && e.message().contains("modify");
            assert_eq!(errors.iter().flatten().filter(misuse).count(), errors.len(), "{errors:?}");
            assert!(store.commits().is_empty() && store.last_commit().is_none());
            assert!(store.tables().is_empty() && store.find_table("t").is_none());
            assert!(!store.is_held());
            refused = errors.len();
            // Another thread's call is no misuse: it waits.
            let (waiting, store) = (std::sync::Barrier::new(2), store.clone());
            let waiting = Arc::new(waiting);
            let there = Arc::clone(&waiting);
            let thread = std::thread::spawn(move || {
                there.wait();
                store.commits().len() + store.tables().len() + usize::from(store.len(table).is_ok())
            });
            waiting.wait();
            *other.lock().unwrap() = Some(thread);
            Ok(())
        });
        assert_eq!((changed.unwrap().rows, refused), (2, 27));
        let thread = other.lock().unwrap().take().unwrap();
        assert_eq!(thread.join().unwrap(), 3);
        // A function that fails or panics leaves no mark.
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            store.modify(table, &[1], &mut |_, _, _| panic!("of the caller"))
        }));
        assert!(panicked.is_err());
        assert_eq!(store.commits().len(), 1);
        store.stats().unwrap();
    });
}
