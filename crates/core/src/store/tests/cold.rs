//! Stores whose partitions lie in a directory apart: how the two find each other, and what a full
//! device behind one of them does.

use super::meddled::Meddled;
use super::*;
use crate::error::Result;
use crate::io::{DirectoryMedium, IoChoice, RoutedMedium};
use crate::store::files::class_file::PARTITION_PREFIX;
use crate::store::files::pairing::{MARKER, NAME, Pairing};
use std::fs;
use std::path::Path;

pub(super) const ROWS: u64 = 3000;

pub(super) fn lsm(test: impl Fn()) {
    with_kind(StorageKind::Lsm, test);
}

pub(super) fn with_cold(directory: Option<&Path>) -> StoreOptions {
    StoreOptions { cold_directory: directory.map(Path::to_path_buf), ..options(1 << 20) }
}

pub(super) fn open(path: &Path, cold: Option<&Path>) -> Result<Store> {
    Store::open(path, with_cold(cold))
}

/// Writes all rows of the store's table several times, and commits: much of it is merged.
pub(super) fn write(store: &Store, value: f32) {
    (0..3).for_each(|_| write_once(store, value).unwrap());
}

pub(super) fn write_once(store: &Store, value: f32) -> Result<()> {
    let table = store.table(&spec("t", None, OptimizerKind::Sgd))?;
    for first in (0..ROWS).step_by(300) {
        let keys: Vec<u64> = (first..first + 300).collect();
        let values = vec![value; keys.len() * DIM];
        store.put(&[put_of(table, &keys, &values)])?;
    }
    let step = store.last_commit().map_or(0, |commit| commit.step) + 1;
    store.commit(step, "", &[]).map(drop)
}

/// The directory of partitions on a simulated device.
pub(super) fn cold(device: &SimMedium) -> SimMedium {
    device.folder("cold")
}

fn open_on(device: &SimMedium) -> Result<Store> {
    let (own, apart) = (Arc::new(device.clone()), Arc::new(cold(device)));
    let medium = RoutedMedium::new(own, apart, PARTITION_PREFIX, true);
    Store::open_on(Arc::new(medium), options(1 << 20))
}

/// Writes with a power cut after `operation`; what survives is the last commit that was
/// acknowledged, or the one under way. False once the operation is never reached.
fn power_cut(operation: u64) -> bool {
    let device = SimMedium::new(operation);
    device.power_cut_after(operation);
    let mut acknowledged = 0;
    let _ = (|| -> Result<()> {
        let store = open_on(&device)?;
        for step in 1..=5 {
            write_once(&store, step as f32)?;
            acknowledged = step;
        }
        Ok(())
    })();
    for reboot in 0..2 {
        let survivor = device.reboot(operation * 31 + reboot);
        let store = open_on(&survivor).unwrap_or_else(|e| panic!("{operation}.{reboot}: {e}"));
        let step = store.last_commit().map_or(0, |commit| commit.step);
        let what = format!("operation {operation}.{reboot}: step {step}, had {acknowledged}");
        assert!(step == acknowledged || step == acknowledged + 1, "{what}");
        if step > 0 {
            has_only(&store, step as f32);
        }
        write_once(&store, 9.0).unwrap_or_else(|e| panic!("{what}: {e}"));
        has_only(&store, 9.0);
    }
    if !device.power_is_off() {
        let merged = cold(&device).list(PARTITION_PREFIX).unwrap();
        assert!(merged.len() > 1, "only {merged:?} are merged");
    }
    device.power_is_off()
}

#[test]
fn power_cuts_leave_the_last_commit_with_its_partitions() {
    lsm(|| {
        let operations = (1..).step_by(stride(17) as usize);
        let cuts = operations.take_while(|operation| power_cut(*operation)).count();
        assert!(cuts as u64 * stride(17) > 270, "only {cuts} operations were cut");
    });
}

pub(super) fn has_only(store: &Store, value: f32) {
    let table = store.find_table("t").unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    let mut values = vec![f32::NAN; keys.len() * DIM];
    let out = (&mut values[..]).into();
    store.get(&mut [GetBatch { table, keys: &keys, values: out, state: None }]).unwrap();
    assert!(values.iter().all(|found| *found == value));
}

/// Names of files, those of partitions without their numbers once.
pub(super) fn files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.iter_mut().filter(|name| name.starts_with(PARTITION_PREFIX)).for_each(|name| {
        name.truncate(PARTITION_PREFIX.len());
    });
    names.sort();
    names.dedup();
    names
}

/// A new folder with a store and its cold directory, which has rows of this value.
pub(super) struct Pair {
    _root: tempfile::TempDir,
    pub(super) store: PathBuf,
    pub(super) cold: PathBuf,
}

impl Pair {
    pub(super) fn new(value: f32) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (store, cold) = (root.path().join("store"), root.path().join("cold"));
        write(&open(&store, Some(&cold)).unwrap(), value);
        Self { _root: root, store, cold }
    }

    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.store.with_file_name(name)
    }
}

/// The error of opening, whose kind is `Mismatch` and which says all of these.
fn refused(path: &Path, cold: Option<&Path>, says: &[&str]) {
    for read_only in [false, true] {
        let opened = Store::open(path, StoreOptions { read_only, ..with_cold(cold) });
        let error = opened.err().unwrap_or_else(|| panic!("opened; expected {says:?}"));
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        for text in says {
            assert!(error.message().contains(text), "{error} does not say {text:?}");
        }
    }
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn partitions_lie_in_the_cold_directory_and_the_store_remembers_it() {
    lsm(|| {
        let pair = Pair::new(1.0);
        assert_eq!(files(&pair.cold), [MARKER, "lock", "part-"]);
        assert!(!files(&pair.store).contains(&"part-".to_owned()));
        let store = open(&pair.store, None).unwrap();
        has_only(&store, 1.0);
        let stats = store.stats().unwrap();
        assert_eq!(stats.cold_directory.as_deref(), Some(text(&pair.cold)));
        assert!(stats.cold_bytes > 0 && stats.cold_bytes < stats.disk_bytes);
        write(&store, 2.0);
        let reader =
            Store::open(&pair.store, StoreOptions { read_only: true, ..with_cold(None) }).unwrap();
        has_only(&reader, 2.0);
        write(&store, 3.0);
        reader.refresh().unwrap();
        has_only(&reader, 3.0);
        drop((store, reader));
        // Files of others are left alone, and those of crashes are not.
        fs::write(pair.cold.join("notes.txt"), "mine").unwrap();
        fs::write(pair.cold.join("part-0-900000"), "left").unwrap();
        let step = crate::store::check(&pair.store, &mut |_, _| Ok(())).unwrap().commits;
        assert_eq!(step, 2);
        let back = StoreOptions { step: Some(8), ..with_cold(None) };
        let store = Store::open(&pair.store, back).unwrap();
        has_only(&store, 3.0);
        write(&store, 4.0);
        assert!(pair.cold.join("notes.txt").exists());
        assert!(!pair.cold.join("part-0-900000").exists());
        drop(store);
        has_only(&open(&pair.store, None).unwrap(), 4.0);
    });
}

#[test]
fn a_directory_that_was_moved_is_named_once_and_remembered() {
    lsm(|| {
        let pair = Pair::new(1.0);
        let moved = pair.beside("moved");
        fs::rename(&pair.cold, &moved).unwrap();
        let (cold, store) = (text(&pair.cold), text(&pair.store));
        refused(&pair.store, None, &[cold, store, "is not there", "cold_directory="]);
        let read = StoreOptions { read_only: true, ..with_cold(Some(&moved)) };
        has_only(&Store::open(&pair.store, read).unwrap(), 1.0);
        refused(&pair.store, None, &["is not there"]);
        has_only(&open(&pair.store, Some(&moved)).unwrap(), 1.0);
        has_only(&open(&pair.store, None).unwrap(), 1.0);
        // The store moves, too, and its cold directory learns of it.
        let elsewhere = pair.beside("elsewhere");
        fs::rename(&pair.store, &elsewhere).unwrap();
        has_only(&open(&elsewhere, None).unwrap(), 1.0);
        let medium = DirectoryMedium::open(&moved, IoChoice::Pread).unwrap();
        let marker = Pairing::read(&medium, MARKER).unwrap().unwrap();
        assert_eq!(marker.path, text(&elsewhere));
    });
}

#[test]
fn a_wrong_directory_is_refused_and_nothing_is_written_there() {
    lsm(|| {
        let (pair, other) = (Pair::new(1.0), Pair::new(2.0));
        let says = [text(&other.cold), text(&other.store), text(&pair.store), text(&pair.cold)];
        refused(&pair.store, Some(&other.cold), &says);
        let (empty, missing) = (pair.beside("empty"), pair.beside("missing"));
        fs::create_dir(&empty).unwrap();
        refused(&pair.store, Some(&empty), &[text(&empty), MARKER, text(&pair.cold)]);
        refused(&pair.store, Some(&missing), &[text(&missing), "is not there"]);
        assert!(files(&empty).is_empty() && !missing.exists());
        // Nor when the right one is not there, so that nobody knows what it has.
        let away = pair.beside("away");
        fs::rename(&pair.cold, &away).unwrap();
        refused(&pair.store, Some(&empty), &[text(&pair.cold)]);
        fs::rename(&away, &pair.cold).unwrap();
        // Two stores, one directory.
        let third = pair.beside("third");
        refused_as_taken(&third, &pair);
        let error = open(&pair.store, Some(&pair.store)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        has_only(&open(&pair.store, None).unwrap(), 1.0);
        has_only(&open(&other.store, None).unwrap(), 2.0);
    });
}

/// A new store is not made with the cold directory of another one.
fn refused_as_taken(path: &Path, pair: &Pair) {
    let error = open(path, Some(&pair.cold)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.message().contains(text(&pair.store)), "{error}");
    assert!(!path.join("superblock").exists());
}

#[test]
fn a_copy_of_the_store_by_its_files_does_not_share_the_cold_directory() {
    lsm(|| {
        let pair = Pair::new(1.0);
        let copied = pair.beside("copied");
        fs::create_dir(&copied).unwrap();
        for entry in fs::read_dir(&pair.store).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copied.join(entry.file_name())).unwrap();
        }
        refused(&copied, None, &[text(&copied), text(&pair.store), "copy"]);
        // A store renamed over mounts, or restored from a backup, is the store itself.
        let gone = pair.beside("gone");
        fs::rename(&pair.store, &gone).unwrap();
        fs::remove_dir_all(&gone).unwrap();
        let store = open(&copied, None).unwrap();
        has_only(&store, 1.0);
        let error = WriterLock::take(
            &DirectoryMedium::open(&pair.cold, IoChoice::Pread).unwrap(),
            &pair.cold,
        );
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Locked);
    });
}

#[test]
fn a_store_gets_a_cold_directory_later_and_leaves_one_that_is_empty() {
    lsm(|| {
        let root = tempfile::tempdir().unwrap();
        let [path, first, second] = ["store", "first", "second"].map(|name| root.path().join(name));
        write(&open(&path, None).unwrap(), 1.0);
        assert!(files(&path).contains(&"part-".to_owned()));
        let read = StoreOptions { read_only: true, ..with_cold(Some(&first)) };
        assert_eq!(Store::open(&path, read).err().unwrap().kind(), ErrorKind::Misuse);
        has_only(&open(&path, Some(&first)).unwrap(), 1.0);
        // No partition has come there yet: another one will do, and the first is free again.
        has_only(&open(&path, Some(&second)).unwrap(), 1.0);
        assert_eq!(files(&first), ["lock"]);
        let store = open(&path, None).unwrap();
        for value in [2.0, 3.0, 4.0] {
            write(&store, value);
        }
        has_only(&store, 4.0);
        drop(store);
        assert!(files(&second).contains(&"part-".to_owned()));
        refused(&path, Some(&first), &[text(&second)]);
        has_only(&open(&path, None).unwrap(), 4.0);
    });
}

#[test]
fn a_place_that_can_be_no_cold_directory_is_refused_before_a_store_is_made() {
    let root = tempfile::tempdir().unwrap();
    let [path, used, file] = ["store", "used", "file"].map(|name| root.path().join(name));
    fs::create_dir(&used).unwrap();
    fs::write(used.join("letters.txt"), "dear").unwrap();
    fs::write(&file, "").unwrap();
    let deep = root.path().join("no/such");
    for (cold, says) in [(&used, "letters.txt"), (&deep, "there is no folder")] {
        let error = open(&path, Some(cold)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.message().contains(says), "{error}");
    }
    assert!(open(&path, Some(&file)).is_err());
    assert!(!path.join("superblock").exists());
    // The files in the root of a file system are no hindrance.
    fs::remove_file(used.join("letters.txt")).unwrap();
    fs::create_dir(used.join("lost+found")).unwrap();
    open(&path, Some(&used)).unwrap();
}

/// Between the two files a crash leaves a marker and a store that knows nothing of it.
#[test]
fn a_store_that_has_lost_its_file_takes_its_own_directory_back() {
    lsm(|| {
        let pair = Pair::new(1.0);
        fs::remove_file(pair.store.join(NAME)).unwrap();
        let error = open(&pair.store, None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("part-0-"), "{error}");
        has_only(&open(&pair.store, Some(&pair.cold)).unwrap(), 1.0);
        has_only(&open(&pair.store, None).unwrap(), 1.0);
    });
}

#[test]
fn copies_lie_in_one_directory_or_in_two_and_what_a_copy_has_left_is_replaced() {
    lsm(|| {
        let pair = Pair::new(1.0);
        let memory = Memory::Bytes(4 << 20);
        let copy = |to: &Path, cold: Option<&Path>, most: u64| {
            let mut leave = |done: u64, _| match done > most {
                true => Err(Error::new(ErrorKind::Callback, "enough")),
                false => Ok(()),
            };
            crate::store::copy(&pair.store, to, None, memory, None, cold, &mut leave)
        };
        let (whole, two, apart) = (pair.beside("whole"), pair.beside("two"), pair.beside("apart"));
        copy(&whole, None, u64::MAX).unwrap();
        let store = open(&whole, None).unwrap();
        has_only(&store, 1.0);
        assert_eq!(store.stats().unwrap().cold_directory, None);
        let taken = copy(&two, Some(&pair.cold), u64::MAX).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Mismatch, "{taken}");
        for _ in 0..2 {
            assert_eq!(copy(&two, Some(&apart), 0).unwrap_err().kind(), ErrorKind::Callback);
            assert!(files(&apart).contains(&MARKER.to_owned()));
        }
        copy(&two, Some(&apart), u64::MAX).unwrap();
        let store = open(&two, None).unwrap();
        has_only(&store, 1.0);
        assert_eq!(store.stats().unwrap().cold_directory.as_deref(), Some(text(&apart)));
    });
}

#[test]
fn a_merge_without_room_in_the_cold_directory_is_left_for_later() {
    lsm(|| {
        let fixture = Fixture::new();
        let device = SimMedium::new(9);
        let apart = Meddled::new(&cold(&device));
        let own = Arc::new(device.clone());
        let medium = RoutedMedium::new(own, apart.clone(), PARTITION_PREFIX, false);
        let store = Store::open_on(Arc::new(medium), options(tight())).unwrap();
        fixture.specs.iter().for_each(|spec| _ = store.table(spec).unwrap());
        let (mut random, mut model) = (Random(4), Model::default());
        let mut rounds = |model: &mut Model, n: u64| {
            for step in 0..n {
                let table = random.below(fixture.specs.len() as u64) as usize;
                let keys = fixture.pick(&mut random, table, 150);
                fixture.update(&store, model, &mut random, table, &keys);
                store.commit(step, "", &[]).unwrap();
            }
        };
        rounds(&mut model, 40);
        let before = merges(&store);
        assert!(before > 0, "nothing was merged");
        let refusals = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&refusals);
        apart.meddle(move |(verb, name)| {
            if verb == "open" && name.starts_with(PARTITION_PREFIX) {
                counted.fetch_add(1, Ordering::Relaxed);
                let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
                return Err(Error::os(format!("open {name}"), full));
            }
            Ok(())
        });
        // A merge that has its file already goes on.
        rounds(&mut model, 40);
        assert!(refusals.load(Ordering::Relaxed) > 0, "no merge wanted room");
        assert!(merges(&store) <= before + 2, "merges went on without room");
        fixture.check_all(&store, &model);
        let stopped = merges(&store);
        apart.leave();
        rounds(&mut model, 40);
        assert!(merges(&store) > stopped, "no merge since there is room");
        fixture.check_all(&store, &model);
    });
}

// The bytes of both devices counted together: the cold one may have all the room that the other
// lacks.
#[test]
fn a_table_must_fit_each_of_two_devices() {
    lsm(|| {
        let spec = spec("t", Some(2_000_000), OptimizerKind::Sgd);
        let table = |own: u64, apart: u64| {
            let devices = [own, apart].map(|bytes| {
                let device = SimMedium::new(bytes);
                device.set_capacity(Some(bytes));
                Arc::new(device)
            });
            let [own, apart] = devices;
            let medium = RoutedMedium::new(own, apart, PARTITION_PREFIX, false);
            let options = StoreOptions { check_disk: true, ..options(64 << 20) };
            let store = Store::open_on(Arc::new(medium), options).unwrap();
            store.table(&spec).map(drop)
        };
        // 36 bytes of a row: a tenth above, 1.2 times below.
        table(16 << 20, 96 << 20).unwrap();
        for (own, apart, what) in [(64 << 20, 64 << 20, "cold"), (4 << 20, 256 << 20, "own")] {
            let error = table(own, apart).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            assert!(error.message().contains(&format!("in its {what} directory")), "{error}");
        }
    });
}
