//! Allowed places of a cold directory, and the notes of an opening that fails.

use super::cold::{Pair, cold, files, has_only, lsm, open, text, with_cold, write, write_once};
use super::meddled::Meddled;
use super::*;
use crate::error::Result;
use crate::io::{DirectoryMedium, IoChoice, Medium, RoutedMedium};
use crate::store::cold::{Found, Joined, Joining};
use crate::store::files::class_file::PARTITION_PREFIX;
use crate::store::files::pairing::{MARKER, NAME, Pairing};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The error of opening, which is of this kind and says all of these.
fn refused(path: &Path, cold: &Path, kind: ErrorKind, says: &[&str]) {
    refused_with(path, with_cold(Some(cold)), kind, says);
}

fn refused_with(path: &Path, options: StoreOptions, kind: ErrorKind, says: &[&str]) {
    let opened = Store::open(path, options);
    let error = opened.err().unwrap_or_else(|| panic!("opened; expected {says:?}"));
    assert_eq!(error.kind(), kind, "{error}");
    for text in says {
        assert!(error.message().contains(text), "{error} does not say {text:?}");
    }
}

// `cold` in a store is the file that says where the directory is. A directory of that name made the
// store unreadable for good, and one of another name was left out of copies by files.
#[test]
fn a_directory_inside_a_store_is_refused_before_anything_is_made() {
    lsm(|| {
        let root = tempfile::tempdir().unwrap();
        let [path, other, link, to_sub] =
            ["store", "other", "link", "sub-link"].map(|name| root.path().join(name));
        write(&open(&path, None).unwrap(), 1.0);
        write(&open(&other, None).unwrap(), 2.0);
        fs::create_dir(path.join("sub")).unwrap();
        symlink(&path, &link).unwrap();
        symlink(path.join("sub"), &to_sub).unwrap();
        let inside = [
            path.join("cold"),
            path.join("parts"),
            path.join("sub"),
            path.join("sub/deeper"),
            path.join("sub/../parts"),
            link.join("cold"),
            to_sub.clone(),
            to_sub.join("deeper"),
        ];
        let before = files(&path);
        for place in &inside {
            refused(&path, place, ErrorKind::Misuse, &[text(place), "inside the store"]);
            // Nor is it another store's.
            refused(&other, place, ErrorKind::Misuse, &[text(place), "inside the store"]);
        }
        assert_eq!(files(&path), before);
        assert!(files(&path.join("sub")).is_empty());
        // The store inside the directory.
        for place in [root.path().to_path_buf(), root.path().join(".")] {
            refused(&path, &place, ErrorKind::Misuse, &["inside"]);
        }
        has_only(&open(&path, None).unwrap(), 1.0);
        has_only(&open(&other, None).unwrap(), 2.0);
    });
}

#[test]
fn a_new_store_around_its_cold_directory_is_not_made() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("store");
    for place in ["store", "store/cold", "store/parts/"].map(|name| root.path().join(name)) {
        refused(&path, &place, ErrorKind::Misuse, &["store"]);
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        refused(&path, &place, ErrorKind::Misuse, &["store"]);
        assert!(files(&path).is_empty());
        fs::remove_dir(&path).unwrap();
    }
    let memory = Memory::Bytes(4 << 20);
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    lsm(|| write(&open(&from, None).unwrap(), 1.0));
    let copied = crate::store::copy(&from, &to, None, memory, None, Some(&to.join("cold")), &mut {
        |_, _| Ok(())
    });
    assert_eq!(copied.unwrap_err().kind(), ErrorKind::Misuse);
    assert!(!to.exists());
}

// The first thing that opening did was to note the new directory in both places, for good.
#[test]
fn a_fresh_directory_for_partitions_that_lie_elsewhere_is_refused_and_not_noted() {
    lsm(|| {
        let pair = Pair::new(1.0);
        fs::remove_file(pair.store.join(NAME)).unwrap();
        let fresh = pair.beside("fresh");
        refused(&pair.store, &fresh, ErrorKind::Corrupt, &["part-0-", "cold_directory="]);
        assert!(!pair.store.join(NAME).exists() && !fresh.join(MARKER).exists());
        has_only(&open(&pair.store, Some(&pair.cold)).unwrap(), 1.0);
        has_only(&open(&pair.store, None).unwrap(), 1.0);
    });
}

#[test]
fn an_opening_that_fails_notes_no_new_and_no_other_place() {
    lsm(|| {
        let root = tempfile::tempdir().unwrap();
        let [path, typo, moved] = ["store", "typo", "moved"].map(|name| root.path().join(name));
        write(&open(&path, None).unwrap(), 1.0);
        let tiny =
            |cold: &Path| StoreOptions { memory: Memory::Bytes(1000), ..with_cold(Some(cold)) };
        refused_with(&path, tiny(&typo), ErrorKind::Budget, &[]);
        assert!(!path.join(NAME).exists() && !typo.join(MARKER).exists());
        has_only(&open(&path, None).unwrap(), 1.0);
        // The directory that it has made is no hindrance.
        let store = open(&path, Some(&typo)).unwrap();
        write(&store, 2.0);
        drop(store);
        fs::rename(&typo, &moved).unwrap();
        let record = fs::read(path.join(NAME)).unwrap();
        refused_with(&path, tiny(&moved), ErrorKind::Budget, &[]);
        assert_eq!(fs::read(path.join(NAME)).unwrap(), record);
        has_only(&open(&path, Some(&moved)).unwrap(), 2.0);
    });
}

#[test]
fn without_the_store_s_own_note_a_directory_is_gone_on_with_or_taken_back() {
    lsm(|| {
        let root = tempfile::tempdir().unwrap();
        let [path, cold] = ["store", "cold"].map(|name| root.path().join(name));
        for goes_on in [true, false] {
            write(&open(&path, None).unwrap(), 1.0);
            drop(open(&path, Some(&cold)).unwrap());
            // As a power cut between the two files leaves it.
            fs::remove_file(path.join(NAME)).unwrap();
            let given = goes_on.then_some(&*cold);
            let store = open(&path, given).unwrap();
            has_only(&store, 1.0);
            write(&store, 2.0);
            drop(store);
            assert_eq!(files(&cold).contains(&"part-".to_owned()), goes_on);
            has_only(&open(&path, None).unwrap(), 2.0);
            // A directory that was taken back may come again.
            has_only(&open(&path, Some(&cold)).unwrap(), 2.0);
            fs::remove_dir_all(&path).unwrap();
            fs::remove_dir_all(&cold).unwrap();
        }
    });
}

fn reader(path: &Path, cold: Option<&Path>) -> Store {
    Store::open(path, StoreOptions { read_only: true, ..with_cold(cold) }).unwrap()
}

/// The reader is told to open again, and stays where it is; one that is opened anew goes on.
fn told_to_open_again(store: &Store, path: &Path, value: f32) {
    for _ in 0..2 {
        let error = store.refresh().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.message().contains("open it again"), "{error}");
    }
    has_only(store, value);
    has_only(&reader(path, None), value + 1.0);
}

// A partition that a reader did not find where it had looked was damage.
#[test]
fn a_reader_whose_store_gets_or_moves_its_cold_directory_is_told_to_open_again() {
    lsm(|| {
        let root = tempfile::tempdir().unwrap();
        let [path, first, second, moved] =
            ["store", "first", "second", "moved"].map(|name| root.path().join(name));
        write(&open(&path, None).unwrap(), 1.0);
        let before = reader(&path, None);
        let store = open(&path, Some(&first)).unwrap();
        // Nothing is to be found there yet.
        assert!(before.refresh().unwrap().is_none());
        drop(store);
        let at_first = reader(&path, None);
        let store = open(&path, Some(&second)).unwrap();
        write(&store, 2.0);
        for reader in [before, at_first] {
            told_to_open_again(&reader, &path, 1.0);
        }
        let at_second = reader(&path, None);
        drop(store);
        fs::rename(&second, &moved).unwrap();
        let there = reader(&path, Some(&moved));
        write(&open(&path, Some(&moved)).unwrap(), 3.0);
        told_to_open_again(&at_second, &path, 2.0);
        // A reader that has it open at the new place already goes on.
        there.refresh().unwrap();
        has_only(&there, 3.0);
    });
}

#[test]
fn a_place_that_is_no_directory_is_named_with_what_was_expected() {
    let root = tempfile::tempdir().unwrap();
    let [path, file, dangling] = ["store", "file", "dangling"].map(|name| root.path().join(name));
    fs::write(&file, "").unwrap();
    symlink(root.path().join("nowhere"), &dangling).unwrap();
    for exists in [false, true] {
        let cases = [
            (file.clone(), "is a file"),
            (file.join("cold"), "is a file"),
            (dangling.clone(), "leads nowhere"),
            (PathBuf::from("~/items.cold"), "expanduser"),
            (PathBuf::from("~"), "expanduser"),
            (PathBuf::from("~me/items.cold"), "expanduser"),
            (PathBuf::from(""), "empty"),
        ];
        for (place, says) in cases {
            refused(&path, &place, ErrorKind::Misuse, &["cold", says]);
            assert_eq!(path.join("superblock").exists(), exists);
        }
        drop(open(&path, None).unwrap());
    }
    assert!(!path.join(NAME).exists());
}

#[test]
fn other_spellings_of_a_place_are_the_same_directory() {
    lsm(|| {
        let pair = Pair::new(1.0);
        let link = pair.beside("link");
        symlink(&pair.cold, &link).unwrap();
        let record = fs::read(pair.store.join(NAME)).unwrap();
        let slash = PathBuf::from(format!("{}/", pair.cold.display()));
        has_only(&open(&pair.store, Some(&slash)).unwrap(), 1.0);
        assert_eq!(fs::read(pair.store.join(NAME)).unwrap(), record);
        let here = std::env::current_dir().unwrap();
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = up.join(pair.cold.strip_prefix("/").unwrap());
        for place in [&link, &relative] {
            has_only(&open(&pair.store, Some(place)).unwrap(), 1.0);
            has_only(&open(&pair.store, None).unwrap(), 1.0);
        }
    });
}

/// A store whose directories take direct requests or do not.
fn open_with_direct(root: &Path, own: bool, cold: bool) -> Result<Store> {
    let medium = |name: &str, direct: bool| {
        let path = root.join(name);
        fs::create_dir_all(&path).unwrap();
        Arc::new(match direct {
            true => DirectoryMedium::open(path, IoChoice::Auto).unwrap(),
            false => DirectoryMedium::open_buffered(path, IoChoice::Auto).unwrap(),
        })
    };
    let (own, cold) = (medium("store", own), medium("cold", cold));
    let medium = RoutedMedium::new(own, cold, PARTITION_PREFIX, true);
    Store::open_on(Arc::new(medium), options(1 << 20))
}

#[test]
fn one_of_the_two_file_systems_may_lack_direct_requests() {
    lsm(|| {
        for (own, cold) in [(true, false), (false, true)] {
            let root = tempfile::tempdir().unwrap();
            let store = open_with_direct(root.path(), own, cold).unwrap();
            for value in [1.0, 2.0, 3.0, 4.0] {
                write_once(&store, value).unwrap();
            }
            has_only(&store, 4.0);
            drop(store);
            has_only(&open_with_direct(root.path(), own, cold).unwrap(), 4.0);
            let parts = files(&root.path().join("cold"));
            assert!(parts.contains(&"part-".to_owned()), "{parts:?}");
        }
    });
}

/// Opens a store on a simulated device beside a directory, which is given as its cold one or, where
/// it is not, is that only if the store remembers it.
fn open_beside(own: &Arc<dyn Medium>, beside: &Arc<dyn Medium>, gives: bool) -> Result<Store> {
    let given = gives.then(|| Path::new("/simulated/cold"));
    Store::open_in(Arc::clone(own), "simulated".into(), with_cold(given), &{
        |own: &Arc<dyn Medium>, options: &StoreOptions, superblock: &Superblock| match Joining::of(
            own,
            Path::new("/simulated"),
            options,
            superblock,
        )? {
            Some(joining) => joining.join(Some(Found::of(Arc::clone(beside))?)),
            None => Ok(Joined { medium: Arc::clone(own), lock: None, notes: None }),
        }
    })
}

/// A store with rows on a simulated device, and a directory beside it that is empty.
fn sim_pair(device: &SimMedium) -> [Arc<dyn Medium>; 2] {
    [Arc::new(device.clone()), Arc::new(cold(device))]
}

fn on_sim(value: f32) -> SimMedium {
    let device = SimMedium::new(7);
    let [own, beside] = sim_pair(&device);
    write(&open_beside(&own, &beside, false).unwrap(), value);
    device
}

fn has(medium: &dyn Medium, prefix: &str) -> bool {
    !medium.list(prefix).unwrap().is_empty()
}

/// Opens with a new directory, the power being cut after `operation`, and then with it or without.
/// Both work, and rows that are written then are found again. False once nothing is cut.
fn cut_while_it_begins(device: &SimMedium, operation: u64, gives: bool) -> bool {
    let what = format!("operation {operation}, then {}", if gives { "with it" } else { "without" });
    let machine = device.reboot(operation);
    machine.power_cut_after(operation);
    let [own, beside] = sim_pair(&machine);
    let opened = open_beside(&own, &beside, true);
    assert_eq!(opened.is_err(), machine.power_is_off(), "{what}");
    drop(opened);
    let survivor = machine.reboot(operation * 2 + u64::from(gives));
    let [own, beside] = sim_pair(&survivor);
    let remembers = has(&*own, NAME) && Pairing::read(&*own, NAME).unwrap().is_some();
    assert!(!remembers || has(&*beside, MARKER), "{what}");
    let store = open_beside(&own, &beside, gives).unwrap_or_else(|e| panic!("{what}: {e}"));
    has_only(&store, 1.0);
    write(&store, 2.0);
    drop(store);
    assert_eq!(has(&*beside, PARTITION_PREFIX), gives || remembers, "{what}");
    for gives in [false, true] {
        let store = open_beside(&own, &beside, gives).unwrap_or_else(|e| panic!("{what}: {e}"));
        has_only(&store, 2.0);
    }
    machine.power_is_off()
}

#[test]
fn a_power_cut_while_a_directory_begins_leaves_a_store_that_opens_with_it_and_without() {
    lsm(|| {
        let device = on_sim(1.0);
        for gives in [true, false] {
            let cuts = (1..).take_while(|at| cut_while_it_begins(&device, *at, gives)).count();
            assert!(cuts >= 9, "only {cuts} operations were cut");
        }
    });
}

// A directory without room, or that could not be written, had no note, and its store had one.
#[test]
fn a_directory_that_cannot_be_written_is_not_noted() {
    lsm(|| {
        let device = on_sim(1.0);
        for verb in ["lock", "open", "rename"] {
            for (at_own, code) in [(false, libc::ENOSPC), (false, libc::EROFS), (true, libc::EIO)] {
                let machine = device.reboot(1);
                let [own, beside] = [Meddled::new(&machine), Meddled::new(&cold(&machine))];
                let meddled = if at_own { &own } else { &beside };
                meddled.meddle(move |(doing, name)| {
                    let is_note = name.starts_with(NAME) || name.starts_with(MARKER);
                    if doing != verb || !(is_note && name.ends_with(".new") || verb == "lock") {
                        return Ok(());
                    }
                    let refused = std::io::Error::from_raw_os_error(code);
                    Err(Error::os(format!("{doing} {name}"), refused))
                });
                let media: [Arc<dyn Medium>; 2] = [own.clone(), beside.clone()];
                let [own_medium, cold_medium] = &media;
                let error = open_beside(own_medium, cold_medium, true).err().unwrap();
                let full = [ErrorKind::Full, ErrorKind::Io][usize::from(code != libc::ENOSPC)];
                assert_eq!(error.kind(), full, "{error}");
                assert!(!has(&machine, NAME) || at_own, "{error}");
                own.leave();
                beside.leave();
                let store = open_beside(own_medium, cold_medium, false).unwrap();
                has_only(&store, 1.0);
                drop(store);
                has_only(&open_beside(own_medium, cold_medium, true).unwrap(), 1.0);
            }
        }
    });
}

// Marker and files were looked at before the lock was held: of two stores that began in one
// directory the later one took it from the other.
#[test]
fn a_directory_that_another_store_takes_meanwhile_is_refused() {
    lsm(|| {
        let (device, other) = (on_sim(1.0), Pairing { store: 5, id: 6, path: "/other".into() });
        for is_own in [false, true] {
            let machine = device.reboot(2);
            let beside = Meddled::new(&cold(&machine));
            let [own, plain] = sim_pair(&machine);
            if is_own {
                drop(open_beside(&own, &plain, true).unwrap());
            }
            let (taker, note) = (plain.clone(), other.clone());
            beside.meddle(move |(doing, _)| match doing {
                "lock" => note.write(&*taker, MARKER),
                _ => Ok(()),
            });
            let meddled: Arc<dyn Medium> = beside.clone();
            let error = open_beside(&own, &meddled, true).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.message().contains("/other"), "{error}");
            assert_eq!(Pairing::read(&*plain, MARKER).unwrap().as_ref(), Some(&other));
        }
    });
}

// Pages that a disk cannot read one by one ended the process at the first miss.
#[test]
fn a_disk_with_larger_blocks_than_pages_is_refused_and_not_noted() {
    lsm(|| {
        let device = on_sim(1.0);
        let beside = Meddled::new(&cold(&device));
        beside.align(4096);
        let (own, meddled): (Arc<dyn Medium>, Arc<dyn Medium>) =
            (Arc::new(device.clone()), beside.clone());
        let error = open_beside(&own, &meddled, true).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        for text in ["cold directory", "4096", "512", "embedrock copy"] {
            assert!(error.message().contains(text), "{error} does not say {text:?}");
        }
        assert!(!has(&device, NAME) && !has(&cold(&device), MARKER));
        has_only(&open_beside(&own, &meddled, false).unwrap(), 1.0);
        beside.align(512);
        has_only(&open_beside(&own, &meddled, true).unwrap(), 1.0);
    });
}

#[test]
fn partitions_of_one_name_in_both_directories_are_told_apart_by_nobody() {
    lsm(|| {
        let root = tempfile::tempdir().unwrap();
        let [plain, apart] = ["plain", "apart"].map(|name| root.path().join(name));
        write(&open(&plain, None).unwrap(), 1.0);
        drop(open(&plain, Some(&apart)).unwrap());
        fs::remove_file(plain.join(NAME)).unwrap();
        let names = fs::read_dir(&plain).unwrap().map(|entry| entry.unwrap().file_name());
        // Not the room for merges, which has no rows: names come in no order.
        let is_part = |n: &String| n.starts_with(PARTITION_PREFIX) && !n.ends_with("-room");
        let part = names.filter_map(|n| n.into_string().ok()).find(is_part);
        fs::write(apart.join(part.unwrap()), "of an epoch that never committed").unwrap();
        refused(&plain, &apart, ErrorKind::Mismatch, &["part-", text(&apart), text(&plain)]);
        has_only(&open(&plain, None).unwrap(), 1.0);
    });
}

/// A power cut while a store goes from one empty directory to another leaves the markers of both.
#[test]
fn a_store_that_was_cut_off_between_two_directories_opens_with_either() {
    lsm(|| {
        for goes_on in ["first", "second"] {
            let root = tempfile::tempdir().unwrap();
            let [path, first, second] =
                ["store", "first", "second"].map(|name| root.path().join(name));
            write(&open(&path, None).unwrap(), 1.0);
            drop(open(&path, Some(&first)).unwrap());
            let notes = [first.join(MARKER), path.join(NAME)];
            let before = notes.clone().map(|note| fs::read(note).unwrap());
            drop(open(&path, Some(&second)).unwrap());
            notes.iter().zip(before).for_each(|(note, bytes)| fs::write(note, bytes).unwrap());
            has_only(&open(&path, Some(&root.path().join(goes_on))).unwrap(), 1.0);
            let store = open(&path, None).unwrap();
            write(&store, 2.0);
            has_only(&store, 2.0);
            let has_parts = |directory: &Path| files(directory).contains(&"part-".to_owned());
            assert_eq!(has_parts(&first), goes_on == "first");
            assert_eq!(has_parts(&second), goes_on == "second");
        }
    });
}

/// The files of a copy that was cut off between the two notes are no other store's.
#[test]
fn a_copy_that_was_cut_off_before_it_had_its_note_is_replaced() {
    lsm(|| {
        let pair = Pair::new(1.0);
        let (two, apart) = (pair.beside("two"), pair.beside("apart"));
        let memory = Memory::Bytes(4 << 20);
        let copy = |ends: bool| {
            let mut progress = |_, _| match ends {
                true => Err(Error::new(ErrorKind::Callback, "enough")),
                false => Ok(()),
            };
            crate::store::copy(&pair.store, &two, None, memory, None, Some(&apart), &mut progress)
        };
        assert_eq!(copy(true).unwrap_err().kind(), ErrorKind::Callback);
        fs::remove_file(two.join(NAME)).unwrap();
        copy(false).unwrap();
        let store = open(&two, None).unwrap();
        has_only(&store, 1.0);
        assert_eq!(store.stats().unwrap().cold_directory.as_deref(), Some(text(&apart)));
    });
}
