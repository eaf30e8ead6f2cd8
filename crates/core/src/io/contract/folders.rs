//! Directories that are moved or replaced while they are open, and files with further names.

use super::*;
use crate::io::GuardedMedium;
use std::path::Path;

/// A directory of each kind, and how somebody moves it away, makes another in its place, and puts
/// it back.
struct Movable {
    label: &'static str,
    medium: Arc<dyn Medium>,
    replace: Box<dyn Fn() -> Arc<dyn Medium>>,
    put_back: Box<dyn Fn()>,
    _directory: Option<tempfile::TempDir>,
}

fn movable() -> Vec<Movable> {
    let sim = SimMedium::new(44);
    let (one, two) = (sim.clone(), sim.clone());
    let mut all = vec![Movable {
        label: "sim",
        medium: Arc::new(sim),
        replace: Box::new(move || Arc::new(one.replace_folder())),
        put_back: Box::new(move || two.put_folder_back()),
        _directory: None,
    }];
    for (label, choice) in [("auto", IoChoice::Auto), ("pread", IoChoice::Pread)] {
        let directory = tempfile::tempdir().unwrap();
        let [place, moved] = ["store", "moved"].map(|name| directory.path().join(name));
        std::fs::create_dir(&place).unwrap();
        let open = |place: &Path| DirectoryMedium::open(place, choice).unwrap();
        let medium = Arc::new(open(&place));
        let again = (place.clone(), moved.clone());
        let replace = move || -> Arc<dyn Medium> {
            std::fs::rename(&place, &moved).unwrap();
            std::fs::create_dir(&place).unwrap();
            Arc::new(DirectoryMedium::open(&place, choice).unwrap())
        };
        let put_back = move || {
            let (place, moved) = &again;
            std::fs::remove_dir_all(place).unwrap();
            std::fs::rename(moved, place).unwrap();
        };
        let (replace, put_back) = (Box::new(replace), Box::new(put_back));
        all.push(Movable { label, medium, replace, put_back, _directory: Some(directory) });
    }
    all
}

fn create(medium: &dyn Medium, name: &str, text: &[u8]) {
    let file = medium.open(name, OpenMode::CreateNew).unwrap();
    file.write_at(text, 0).unwrap();
    file.sync().unwrap();
}

fn text_of(medium: &dyn Medium, name: &str) -> Vec<u8> {
    let file = medium.open(name, OpenMode::ReadOnly).unwrap();
    let mut text = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut text, 0).unwrap();
    text
}

// Names were looked up by path: a medium whose directory was moved wrote over, and removed, the
// files of the one that had come to its place.
#[test]
fn names_are_those_of_the_directory_that_was_opened_whatever_is_in_its_place() {
    for Movable { label, medium, replace, put_back, _directory } in movable() {
        for name in ["head", "journal-1", "journal-2"] {
            create(&*medium, name, b"old");
        }
        assert_eq!(medium.displaced().unwrap(), None, "{label}");
        let other = replace();
        for name in ["head", "journal-1", "journal-2"] {
            create(&*other, name, b"new");
        }
        let displaced = medium.displaced().unwrap().expect(label);
        assert!(displaced.contains("another one is in its place"), "{label}: {displaced}");
        assert_eq!(other.displaced().unwrap(), None, "{label}");
        // All that changes names, or finds files by them.
        medium.remove("journal-1").unwrap();
        medium.rename("journal-2", "journal-3").unwrap();
        medium.open("head", OpenMode::ReadWrite).unwrap().write_at(b"own", 0).unwrap();
        create(&*medium, "state-1", b"state");
        let Locking::Taken(lock) = medium.lock("lock").unwrap() else { panic!("{label}") };
        assert!(lock.is_current().unwrap(), "{label}");
        assert!(matches!(other.lock("lock").unwrap(), Locking::Taken(_)), "{label}");
        assert!(lock.is_current().unwrap(), "{label}");
        medium.sync_dir().unwrap();
        assert_eq!(other.list("").unwrap(), ["head", "journal-1", "journal-2", "lock"], "{label}");
        assert_eq!(medium.list("").unwrap(), ["head", "journal-3", "lock", "state-1"], "{label}");
        assert_eq!(text_of(&*other, "head"), b"new", "{label}");
        assert_eq!(text_of(&*medium, "head"), b"own", "{label}");
        assert_eq!(medium.state_of("state-1").unwrap().bytes, 5, "{label}");
        drop(other);
        put_back();
        assert_eq!(medium.displaced().unwrap(), None, "{label}");
        assert_eq!(text_of(&*medium, "journal-3"), b"old", "{label}");
    }
}

#[test]
fn a_directory_that_was_moved_or_removed_says_where_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let [place, moved] = ["store", "moved"].map(|name| root.join(name));
    let parent = root.join("parent");
    std::fs::create_dir(&place).unwrap();
    let medium = DirectoryMedium::open(&place, IoChoice::Pread).unwrap();
    std::fs::rename(&place, &moved).unwrap();
    let said = medium.displaced().unwrap().unwrap();
    let wanted = format!("{} is at {} now, and none", place.display(), moved.display());
    assert!(said.contains(&wanted), "{said}");
    // A folder above it counts as well, and what is no folder.
    std::fs::create_dir(&parent).unwrap();
    std::fs::rename(&moved, parent.join("store")).unwrap();
    let inner = DirectoryMedium::open(parent.join("store"), IoChoice::Pread).unwrap();
    std::fs::rename(&parent, root.join("other")).unwrap();
    std::fs::write(&parent, b"").unwrap();
    let said = inner.displaced().unwrap().unwrap();
    assert!(said.contains("other/store now, and none"), "{said}");
    std::fs::remove_dir_all(root.join("other")).unwrap();
    let said = inner.displaced().unwrap().unwrap();
    assert!(said.ends_with("was removed, and none is in its place"), "{said}");
    assert_eq!(inner.list("").unwrap(), Vec::<String>::new());
    assert!(inner.open("rows-0", OpenMode::CreateNew).is_err());
}

#[test]
fn a_file_knows_how_many_names_it_has() {
    each(|medium| {
        create(medium, "rows-0", b"rows");
        assert_eq!(medium.state_of("rows-0").unwrap().links, 1);
        if medium.link("rows-0", "rows-1").unwrap() {
            assert_eq!(medium.state_of("rows-0").unwrap().links, 2);
            medium.remove("rows-1").unwrap();
            assert_eq!(medium.state_of("rows-0").unwrap().links, 1);
        }
    });
}

/// A medium that is guarded by a lock on one of its files, which is the whole life of the lock.
fn guarded(medium: &Arc<dyn Medium>) -> (GuardedMedium, Arc<dyn FileLock>) {
    let Locking::Taken(lock) = medium.lock("lock").unwrap() else { panic!("somebody has it") };
    let lock: Arc<dyn FileLock> = Arc::from(lock);
    let is_written = |name: &str| !name.starts_with("state");
    (GuardedMedium::new(Arc::clone(medium), &lock, is_written).unwrap(), lock)
}

#[test]
fn names_change_only_while_the_lock_file_is_the_locked_one() {
    for Movable { label, medium, _directory, .. } in movable() {
        create(&*medium, "rows-0", b"rows");
        let (guard, lock) = guarded(&medium);
        guard.rename("rows-0", "rows-1").unwrap();
        guard.check_lock().unwrap();
        medium.remove("lock").unwrap();
        let (second, of_second) = guarded(&medium);
        let refused = |done: crate::error::Result<()>| {
            let error = done.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Locked, "{label}: {error}");
            assert!(error.message().contains("was removed or replaced"), "{label}: {error}");
        };
        refused(guard.check_lock());
        refused(guard.remove("rows-1"));
        refused(guard.rename("rows-1", "rows-2"));
        refused(guard.link("rows-1", "rows-2").map(drop));
        for mode in [OpenMode::CreateNew, OpenMode::ReadWrite] {
            refused(guard.open("rows-1", mode).map(drop));
        }
        assert_eq!(text_of(&guard, "rows-1"), b"rows", "{label}: reads go on");
        drop(lock);
        assert_eq!(medium.list("").unwrap(), ["lock", "rows-1"], "{label}");
        second.remove("rows-1").unwrap();
        // One that was given back is nobody's.
        drop(of_second);
        refused(second.open("rows-0", OpenMode::CreateNew).map(drop));
    }
}

// A backup of hard links had the rows of whatever was trained after it.
#[test]
fn a_file_with_names_elsewhere_is_copied_before_it_is_written_in_place() {
    let directory = tempfile::tempdir().unwrap();
    let [place, backup] = ["store", "backup"].map(|name| directory.path().join(name));
    [&place, &backup].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
    let medium = DirectoryMedium::open(&place, IoChoice::Auto).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(medium);
    let long: Vec<u8> = (0..3_000_000u32).map(|at| (at / 70_000) as u8).collect();
    for (name, text) in [("rows-0", &*long), ("state-1", b"state"), ("head", b"head")] {
        create(&*medium, name, text);
        std::fs::hard_link(place.join(name), backup.join(name)).unwrap();
    }
    // A copy that a crash left unfinished; it belongs to no file.
    create(&*medium, "own-rows-0", b"left");
    let (guard, _lock) = guarded(&medium);
    assert!(!medium.list("").unwrap().contains(&"own-rows-0".to_owned()));
    for name in ["rows-0", "state-1"] {
        let file = guard.open(name, OpenMode::ReadWrite).unwrap();
        assert_eq!(text_of(&guard, name), std::fs::read(backup.join(name)).unwrap());
        file.write_at(b"changed", 0).unwrap();
    }
    assert_eq!(std::fs::read(backup.join("rows-0")).unwrap(), long);
    assert_eq!(text_of(&guard, "rows-0")[..7], *b"changed");
    assert_eq!(std::fs::read(backup.join("state-1")).unwrap(), b"changed", "it is not copied");
    // Opening a file to read it, or removing it, makes no copy.
    drop(guard.open("head", OpenMode::ReadOnly).unwrap());
    assert_eq!(medium.state_of("head").unwrap().links, 2);
    guard.remove("head").unwrap();
    assert_eq!(std::fs::read(backup.join("head")).unwrap(), b"head");
    assert_eq!(medium.list("").unwrap(), ["lock", "rows-0", "state-1"]);
}

#[test]
fn a_copy_without_room_is_refused_with_the_way_out_and_leaves_nothing() {
    let device = SimMedium::new(45);
    create(&device, "rows-0", &[7; 9000]);
    device.link_elsewhere("rows-0");
    let medium: Arc<dyn Medium> = Arc::new(device.clone());
    let (guard, _lock) = guarded(&medium);
    device.set_capacity(Some(device.taken_bytes() + 4096));
    let error = guard.open("rows-0", OpenMode::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.message().contains("rows-0 has 2 names"), "{error}");
    assert!(error.message().contains("remove the others"), "{error}");
    assert_eq!(device.list("").unwrap(), ["lock", "rows-0"]);
    device.set_capacity(None);
    let old = device.open("rows-0", OpenMode::ReadOnly).unwrap();
    guard.open("rows-0", OpenMode::ReadWrite).unwrap().write_at(&[1; 9000], 0).unwrap();
    let mut text = [0; 9000];
    old.read_at(&mut text, 0).unwrap();
    assert_eq!(text, [7; 9000]);
    assert_eq!(device.state_of("rows-0").unwrap().links, 1);
}
