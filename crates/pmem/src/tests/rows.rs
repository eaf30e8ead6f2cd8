//! Regions in files: opening, durability, room, damage, other sizes.

use super::{ROW_BYTES, get_one, keys_of_home, row, slot_of, small, verify};
use crate::error::ErrorKind;
use crate::map::Mapped;
use crate::medium::{Durability, Medium};
use crate::region::{Geometry, HINT_WORD, ROWS_MOST_WORD, ROWS_WORD};
use crate::resize::resize;
use crate::rows::Rows;
use std::collections::HashMap;
use std::path::Path;

fn rows_of(keys: impl Iterator<Item = u64>, version: u64) -> Vec<u8> {
    keys.flat_map(|key| row(key, version)).collect()
}

#[test]
fn rows_in_a_file_are_there_when_it_is_opened_again() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("region");
    let keys: Vec<u64> = (0..1000).map(|i| i << 40 | i).collect();
    let model: HashMap<u64, u64> = keys.iter().map(|key| (*key, 2)).collect();
    let rows = Rows::create(&path, Geometry::new(1000, ROW_BYTES).expect("sizes")).expect("create");
    rows.put(&keys, &rows_of(keys.iter().copied(), 1)).expect("put");
    rows.put(&keys, &rows_of(keys.iter().copied(), 2)).expect("put");
    let durability = rows.durability();
    drop(rows);
    let rows = Rows::open(&path).expect("open");
    assert_eq!((rows.durability(), rows.geometry().capacity), (durability, 1000));
    assert_eq!(rows.slab_use().known, 0, "opening looks at no row");
    verify(&rows, &model);
}

#[test]
fn a_region_that_is_full_names_its_sizes_and_the_way_out() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("region");
    let geometry = Geometry::new(3000, ROW_BYTES).expect("sizes");
    let rows = Rows::create(&path, geometry).expect("create");
    rows.put(&(0..3000).collect::<Vec<_>>(), &rows_of(0..3000, 1)).expect("3000 fit");
    let error = rows.put(&[1, 5000, 5001], &[7; 3 * ROW_BYTES]).expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Full);
    let message = error.to_string();
    assert!(message.contains("room for 3000 rows and has 3000, 2 more"), "{message}");
    assert!(message.contains("resize"), "{message}");
    assert_eq!(get_one(&rows, 1), Some(row(1, 1)), "nothing was written");
    drop(rows);
    // Also where what is free was not known before, and updates go on.
    let rows = Rows::open(&path).expect("open");
    assert_eq!(rows.put(&[5000], &row(1, 1)).expect_err("no room").kind(), ErrorKind::Full);
    for version in 2..6 {
        rows.put(&(0..3000).collect::<Vec<_>>(), &rows_of(0..3000, version)).expect("updates");
    }
    assert_eq!(rows.remove(&[4, 4, 9999]).expect("remove"), 1);
    rows.put(&[5000], &row(5000, 1)).expect("room for one");
    drop(rows);
    let model: HashMap<u64, u64> =
        (0..3000).filter(|key| *key != 4).map(|key| (key, 5)).chain([(5000, 1)]).collect();
    verify(&Rows::open(&path).expect("open"), &model);
}

/// The remains of a killed process: the file as it is while the region is open.
fn killed(path: &Path) -> Rows<Mapped> {
    let copy = path.with_extension("killed");
    std::fs::copy(path, &copy).expect("copy");
    let rows = Rows::open(&copy).expect("open");
    std::fs::remove_file(&copy).expect("the mapping keeps it");
    rows
}

#[test]
fn the_first_new_rows_after_opening_look_few_slots_up() {
    const CAPACITY: u64 = 200_000;
    let folder = super::fast_folder();
    let path = folder.path().join("region");
    let geometry = Geometry::new(CAPACITY, ROW_BYTES).expect("sizes");
    let rows = Rows::create(&path, geometry).expect("create");
    let keys: Vec<u64> = (0..CAPACITY).collect();
    let put = |rows: &Rows<Mapped>, keys: &[u64]| rows.put(keys, &rows_of(keys.iter().copied(), 1));
    put(&rows, &keys[..140_000]).expect("put");
    let known = |rows: &Rows<Mapped>, keys: &[u64]| {
        put(rows, keys).expect("there is room");
        rows.slab_use().known
    };
    assert!(known(&killed(&path), &keys[140_000..140_500]) <= 2 * 1024, "the hint was wrong");
    drop(rows);
    let rows = Rows::open(&path).expect("open");
    assert_eq!(rows.slab_use().rows_at_most, 140_000);
    assert!(known(&rows, &keys[140_000..140_500]) <= 2 * 1024, "the hint was wrong");
    // Almost full: what is free is known, and a thirty-second of all slots.
    put(&rows, &keys[140_500..199_000]).expect("put");
    drop(rows);
    let rows = Rows::open(&path).expect("open");
    assert!(known(&rows, &keys[199_000..199_500]) <= 3 * 1024);
    // A bound that is claimed ahead leaves no room: slots are looked up, and there is.
    let found = killed(&path);
    assert!(found.slab_use().rows_at_most > 199_500);
    put(&found, &keys[199_500..]).expect("there is room");
    assert_eq!(put(&found, &[CAPACITY]).expect_err("full").kind(), ErrorKind::Full);
    drop(found);
    put(&rows, &keys[199_500..]).expect("put");
    drop(rows);
    // Without a hint, and where rows lie densely: a few looks here and there find room.
    let rows = Rows::open(&path).expect("open");
    rows.remove(&keys[100_000..110_000]).expect("remove");
    drop(rows);
    Mapped::open(&path).expect("map").store(HINT_WORD, u64::MAX / 3);
    let rows = Rows::open(&path).expect("open");
    assert!(known(&rows, &keys[100_000..100_500]) <= 30 * 1024, "{:?}", rows.slab_use());
    drop(rows);
    let there: Vec<u64> = (0..CAPACITY).filter(|key| !(100_500..110_000).contains(key)).collect();
    verify(&Rows::open(&path).expect("open"), &there.iter().map(|key| (*key, 1)).collect());
}

#[test]
fn a_bound_on_rows_of_another_opening_is_none() {
    let folder = super::fast_folder();
    let path = folder.path().join("region");
    let rows = Rows::create(&path, Geometry::new(3000, ROW_BYTES).expect("sizes")).expect("create");
    rows.put(&(0..2990).collect::<Vec<_>>(), &rows_of(0..2990, 1)).expect("put");
    drop(rows);
    // A build that does not know the word leaves the one of before; damage is anything.
    let stale = Mapped::open(&path).expect("map").load(ROWS_MOST_WORD);
    drop(Rows::open(&path).expect("open"));
    for word in [stale, 0, u64::MAX, 5 << 44] {
        let medium = Mapped::open(&path).expect("map");
        medium.store(ROWS_MOST_WORD, word);
        drop(medium);
        let rows = Rows::open(&path).expect("open");
        assert_eq!(rows.slab_use().rows_at_most, rows.geometry().row_slots);
        let eleven: Vec<u64> = (3000..3011).collect();
        let error = rows.put(&eleven, &rows_of(3000..3011, 1)).expect_err("ten fit");
        assert!(error.to_string().contains("for 3000 rows and has 2990, 11 more"), "{error}");
        rows.put(&eleven[..10], &rows_of(3000..3010, 1)).expect("ten fit");
        assert_eq!(rows.remove(&eleven).expect("remove"), 10);
        drop(rows);
        assert_eq!(Rows::open(&path).expect("open").slab_use().rows_at_most, 2990);
    }
}

#[test]
fn a_region_of_another_size_has_the_same_rows() {
    let folder = tempfile::tempdir().expect("folder");
    let (path, to) = (folder.path().join("region"), folder.path().join("larger"));
    let rows = Rows::create(&path, Geometry::new(700, ROW_BYTES).expect("sizes")).expect("create");
    rows.put(&(0..700).collect::<Vec<_>>(), &rows_of(0..700, 1)).expect("put");
    assert_eq!(resize(&path, &to, 2000).expect_err("in use").kind(), ErrorKind::Locked);
    drop(rows);
    assert_eq!(resize(&path, &to, 600).expect_err("too small").kind(), ErrorKind::Full);
    let left = || std::fs::read_dir(folder.path()).expect("folder").count();
    assert_eq!(left(), 1, "nothing unfinished stays");
    assert_eq!(resize(&path, &to, 2000).expect("resize"), 700);
    assert_eq!(left(), 2);
    assert_eq!(resize(&path, &to, 2000).expect_err("exists").kind(), ErrorKind::Misuse);
    let rows = Rows::open(&to).expect("open");
    assert_eq!(rows.geometry().capacity, 2000);
    verify(&rows, &(0..700).map(|key| (key, 1)).collect());
}

#[test]
fn lengths_that_do_not_fit_are_refused_before_anything_is_written() {
    let geometry = small(3, 30);
    let medium = Mapped::anonymous(geometry.bytes()).expect("memory");
    let rows = Rows::format(medium, geometry).expect("format");
    assert_eq!(rows.durability(), Durability::Process);
    let error = rows.put(&[1, 2], &row(1, 1)).expect_err("one row");
    assert!(error.to_string().contains("20 bytes for 2 keys"), "{error}");
    let error = rows.get(&[1], &mut [0; ROW_BYTES], &mut [false; 2]).expect_err("one key");
    assert!(error.to_string().contains("1 keys, and room to say of 2"), "{error}");
    assert_eq!(rows.get(&[1], &mut [0; 3], &mut [false]).expect_err("3").kind(), ErrorKind::Misuse);
    assert_eq!(rows.get(&[], &mut [], &mut []).expect("nothing"), 0);
    rows.put(&[], &[]).expect("nothing");
    assert_eq!(get_one(&rows, 1), None);
    let index = Geometry::of_index(10).expect("sizes");
    let error = Rows::format(Mapped::anonymous(index.bytes()).expect("memory"), index);
    assert!(error.err().expect("no rows").to_string().contains("an index without rows"));
}

#[test]
fn a_slot_that_a_damaged_word_names_is_not_freed() {
    let geometry = small(3, 30);
    let medium = Mapped::anonymous(geometry.bytes()).expect("memory");
    let rows = Rows::format(medium, geometry).expect("format");
    let (first, second) = (keys_of_home(&geometry, 0, 1)[0], keys_of_home(&geometry, 1, 1)[0]);
    rows.put(&[first, second], &rows_of([first, second].into_iter(), 1)).expect("put");
    // The slot of another key: freeing it would let a later row overwrite that key's.
    let word = rows.index.key_word(0, 0) + 1;
    rows.medium().store(word, rows.index.get(second).expect("sound"));
    for version in 2..60 {
        rows.put(&[first], &row(first, version)).expect("put over damage");
        assert_eq!(get_one(&rows, first), Some(row(first, version)));
        assert_eq!(get_one(&rows, second), Some(row(second, 1)), "version {version}");
    }
    // A free slot that had a row of the same key, which is free once.
    rows.medium().store(geometry.row_word(37), first);
    rows.medium().store(word, 37);
    rows.put(&[first], &row(first, 60)).expect("put over damage");
    assert_eq!(rows.remove(&[first, second]).expect("remove"), 2);
    rows.slab.give_back(0, &[], Vec::new(), 0, &rows.readings);
    // The two slots whose number was lost are found when the region is opened again.
    assert_eq!((rows.slab_use().known, rows.slab_use().free), (38, 36));
}

#[test]
fn a_region_with_a_row_too_many_takes_updates() {
    let geometry = small(3, 30);
    let medium = Mapped::anonymous(geometry.bytes()).expect("memory");
    let rows = Rows::format(medium, geometry).expect("format");
    rows.put(&(1..=30).collect::<Vec<_>>(), &rows_of(1..=30, 1)).expect("put");
    // An update of key 1 is under way while it is removed and another key takes the room.
    let mut slots = Vec::new();
    rows.slab.take(&mut slots, 1, 0, &rows.index, &rows.readings).expect("one slot");
    rows.remove(&[1]).expect("remove");
    rows.put(&[31], &row(31, 1)).expect("room for one");
    let made = rows.put_part(&[1], &row(1, 2), &slots);
    made.done.expect("put");
    assert_eq!((made.placed, made.inserted, made.replaced.len()), (1, 1, 0));
    rows.slab.give_back(1, &[], made.replaced, 1, &rows.readings);
    for version in 2..9 {
        for keys in (1..=31).collect::<Vec<u64>>().chunks(7) {
            rows.put(keys, &rows_of(keys.iter().copied(), version)).expect("updates");
        }
    }
    assert_eq!(rows.put(&[32], &row(32, 1)).expect_err("full").kind(), ErrorKind::Full);
    verify(&rows, &(1..=31).map(|key| (key, 8)).collect());
}

#[test]
fn a_region_with_a_damaged_index_is_not_resized() {
    let folder = tempfile::tempdir().expect("folder");
    let (path, to) = (folder.path().join("region"), folder.path().join("larger"));
    let rows = Rows::create(&path, Geometry::new(700, ROW_BYTES).expect("sizes")).expect("create");
    rows.put(&(0..700).collect::<Vec<_>>(), &rows_of(0..700, 1)).expect("put");
    let word = rows.index.key_word(rows.index.path(9).home, 0);
    drop(rows);
    // The lowest bit makes another key of the region, the highest one that no row has.
    for bit in [0, 63] {
        let flip = || {
            let medium = Mapped::open(&path).expect("map");
            medium.store(word, medium.load(word) ^ 1 << bit);
        };
        flip();
        let error = resize(&path, &to, 2000).expect_err("a key is lost");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(!to.exists());
        flip();
    }
    // The remains of a crash are named.
    let unfinished = folder.path().join("larger.unfinished");
    std::fs::write(&unfinished, "cut off").expect("write");
    let error = resize(&path, &to, 2000).expect_err("unfinished");
    assert!(error.to_string().contains("larger.unfinished exists: a resize"), "{error}");
    std::fs::remove_file(&unfinished).expect("delete it");
    assert_eq!(resize(&path, &to, 2000).expect("resize"), 700);
}

#[test]
fn a_header_row_or_counter_that_is_damaged_is_found_by_check() {
    let geometry = small(3, 40);
    let medium = Mapped::anonymous(geometry.bytes()).expect("memory");
    let rows = Rows::format(medium, geometry).expect("format");
    rows.put(&(1..=40).collect::<Vec<_>>(), &rows_of(1..=40, 1)).expect("put");
    assert!(rows.check().expect("whole").displaced > 0);
    let word = geometry.index_words().start + 2;
    let before = rows.medium().load(word);
    rows.medium().store(word, before + (1 << 48));
    let error = rows.check().expect_err("counter");
    assert!(error.to_string().contains("bucket 0 of the index"), "{error}");
    rows.medium().store(word, before);
    let slot = slot_of(&rows, 9);
    rows.medium().store(geometry.row_word(slot) + 2, 0);
    let error = rows.check().expect_err("row");
    assert!(error.to_string().contains("row of key 9: checksum"), "{error}");
}

#[test]
fn rows_are_visited_one_by_one_and_keys_looked_up_alone() {
    let geometry = Geometry::new(100, ROW_BYTES).expect("sizes");
    let medium = Mapped::anonymous(geometry.bytes()).expect("memory");
    let rows = Rows::format(medium, geometry).expect("format");
    rows.put(&[1, 2, 3], &rows_of(1..4, 7)).expect("put");
    rows.remove(&[2]).expect("remove");
    let (keys, mut seen) = ([3, 2, 1, 3], Vec::new());
    let see = |at: usize, row: &mut [u8], found: bool| seen.push((at, found.then(|| row.to_vec())));
    rows.visit(&keys, &mut [0; ROW_BYTES], see).expect("visit");
    let expected = [Some(row(3, 7)), None, Some(row(1, 7)), Some(row(3, 7))];
    assert_eq!(seen, expected.into_iter().enumerate().collect::<Vec<_>>());
    let mut found = [false; 4];
    rows.contains(&keys, &mut found).expect("contains");
    assert_eq!(found, [true, false, true, true]);
    let short = rows.visit(&keys, &mut [0; 1], |_, _, _| ());
    for short in [short, rows.contains(&keys, &mut [])] {
        assert_eq!(short.expect_err("too short").kind(), ErrorKind::Misuse);
    }
    let mut all = Vec::new();
    for bucket in 0..rows.buckets() {
        rows.keys_beside_writers(bucket, &mut all).expect("sound");
    }
    all.sort_unstable();
    assert_eq!(all, [1, 3]);
    rows.check_keys(&[1, 2, 3]).expect("sound");
}

#[test]
fn rows_are_counted_after_a_crash_and_known_after_an_end() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("region");
    let rows = Rows::create(&path, Geometry::new(500, ROW_BYTES).expect("sizes")).expect("create");
    assert_eq!(rows.count(), 0);
    rows.put(&(0..400).collect::<Vec<_>>(), &rows_of(0..400, 1)).expect("put");
    rows.remove(&[5, 6]).expect("remove");
    drop(rows);
    let rows = Rows::open(&path).expect("open");
    assert_eq!(rows.count(), 398);
    // Taken at its word.
    rows.end(7).expect("end");
    drop(rows);
    let rows = Rows::open(&path).expect("open");
    assert_eq!(rows.count(), 7);
    drop(rows);
    assert_eq!(Rows::open(&path).expect("open").count(), 398);
}

#[test]
fn a_resize_keeps_the_owner_and_ends_where_its_progress_says() {
    let folder = tempfile::tempdir().expect("folder");
    let (path, to) = (folder.path().join("region"), folder.path().join("larger"));
    let rows = Rows::create(&path, Geometry::new(700, ROW_BYTES).expect("sizes")).expect("create");
    rows.put(&(0..700).collect::<Vec<_>>(), &rows_of(0..700, 1)).expect("put");
    rows.bind([1, 2]).expect("bind");
    drop(rows);
    let stop = |_, _| Err(crate::error::Error::misuse("enough"));
    let stopped = crate::resize::resize_with(&path, &to, 900, stop);
    assert_eq!(stopped.expect_err("it was ended").to_string(), "enough");
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 1);
    let mut told = Vec::new();
    let tell = |done, all| {
        told.push((done, all));
        Ok::<(), crate::error::Error>(())
    };
    assert_eq!(crate::resize::resize_with(&path, &to, 900, tell).expect("resize"), 700);
    assert_eq!(told.last().map(|(done, all)| done == all), Some(true));
    let rows = Rows::open(&to).expect("open");
    assert_eq!((rows.owner().expect("owner"), rows.count()), (Some([1, 2]), 700));
}

#[test]
fn a_check_of_all_goes_on_behind_damage() {
    let geometry = Geometry::new(100, ROW_BYTES).expect("sizes");
    let medium = Mapped::anonymous(geometry.bytes()).expect("memory");
    let rows = Rows::format(medium, geometry).expect("format");
    rows.put(&(0..50).collect::<Vec<_>>(), &rows_of(0..50, 1)).expect("put");
    let all = |most| rows.check_all(most, |_, _| Ok::<(), ()>(())).expect("no progress ends it");
    assert_eq!((all(9).0, all(9).1.len()), (50, 0));
    for key in [7, 8, 9] {
        let word = geometry.row_word(slot_of(&rows, key)) + 2;
        let medium = rows.medium();
        medium.store(word, medium.load(word) ^ 1);
    }
    let (sound, damage) = all(2);
    assert_eq!((sound, damage.len()), (47, 2));
    assert!(damage.iter().all(|error| error.kind() == ErrorKind::Corrupt));
}

#[test]
fn a_region_of_a_build_without_these_words_is_counted_and_takes_rows() {
    let folder = super::fast_folder();
    let path = folder.path().join("region");
    let rows = Rows::create(&path, Geometry::new(3000, ROW_BYTES).expect("sizes")).expect("create");
    rows.put(&(0..2990).collect::<Vec<_>>(), &rows_of(0..2990, 1)).expect("put");
    drop(rows);
    // Nothing, as the first builds left it; and anything, in every word at a time.
    for word in [0, 7, u64::MAX] {
        let medium = Mapped::open(&path).expect("map");
        (ROWS_WORD..=HINT_WORD).for_each(|at| medium.store(at, word));
        drop(medium);
        let rows = Rows::open(&path).expect("open");
        assert_eq!(rows.count(), 2990);
        assert_eq!(rows.slab_use().rows_at_most, rows.geometry().row_slots);
        let ten: Vec<u64> = (3000..3010).collect();
        rows.put(&ten, &rows_of(3000..3010, 1)).expect("ten fit");
        assert_eq!(rows.remove(&ten).expect("remove"), 10);
    }
}
