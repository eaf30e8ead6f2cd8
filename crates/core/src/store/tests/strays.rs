//! Files that no commit of the store explains: damage, and never an empty store to begin anew in.

use super::plain::{Rows, change, commit, make_tables, open, options};
use super::*;
use std::fs;
use tempfile::TempDir;

/// A store in a directory, with `commits` commits and changes after them.
fn stored(commits: u64) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = Store::open(&path, options(2)).unwrap();
    make_tables(&store).unwrap();
    let mut random = Random(5);
    for step in 1..=commits {
        change(&store, &mut Rows::default(), &mut random).unwrap();
        // With so long a meta the journal soon goes on in another file.
        store.commit(step, &"m".repeat(140 << 10), &[("step", &step.to_le_bytes())]).unwrap();
    }
    change(&store, &mut Rows::default(), &mut random).unwrap();
    store.close().unwrap();
    (directory, path)
}

/// Names and contents of the files that belong to the store itself.
fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let named = files.map(|file| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read(file).unwrap())
    });
    named.filter(|(name, _)| name != "lock").collect()
}

/// Opening in any way is `Corrupt` and names all of `names`, `check` says the same, and nothing in
/// the directory changes.
fn refused(path: &Path, names: &[&str]) {
    let before = contents(path);
    let says = |message: &str, how: &str| {
        for name in names {
            assert!(message.contains(name), "{how}: no {name} in: {message}");
        }
    };
    for (create, read_only, step) in [
        (true, false, None),
        (false, false, None),
        (false, true, None),
        (true, false, Some(1)),
        (false, true, Some(1)),
    ] {
        let how = format!("create {create} read_only {read_only} step {step:?}");
        let options = StoreOptions { create, read_only, step, ..options(2) };
        let error = match Store::open(path, options) {
            Ok(store) => panic!("{how}: opened at {:?}", store.last_commit().map(|c| c.step)),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{how}: {error}");
        says(error.message(), &how);
    }
    let report = crate::store::check(path, &mut |_, _| Ok(())).unwrap();
    assert_eq!(report.problem_count, 1, "{:?}", report.problems);
    says(&report.problems[0].message, "check");
    assert!(contents(path) == before, "a file was changed or removed");
}

/// The store opened empty, even with `create=False`, and the first change removed its journal.
#[test]
fn a_superblock_of_another_store_is_damage() {
    let (_other_directory, other) = stored(0);
    for commits in [0, 1, 5] {
        let (_directory, path) = stored(commits);
        fs::copy(other.join("superblock"), path.join("superblock")).unwrap();
        // Without a commit the header of the journal may never have reached the disk.
        refused(&path, &["superblock", "journal-0000"]);
        for file in contents(&path).into_keys().filter(|name| name.starts_with("journal-")) {
            fs::write(path.join(file), []).unwrap();
        }
        let _ = fs::remove_file(path.join("head"));
        match commits {
            5 => refused(&path, &["journal-0000", "which follows a commit"]),
            _ => refused(&path, &["superblock", "rows-0"]),
        }
    }
}

/// As above, where the head could not tell that there were commits.
#[test]
fn a_damaged_header_of_the_journal_before_commits_is_damage() {
    for commits in [1, 5] {
        for head in [true, false] {
            let (_directory, path) = stored(commits);
            let journals: Vec<String> =
                contents(&path).into_keys().filter(|name| name.starts_with("journal-")).collect();
            for name in &journals {
                let mut bytes = fs::read(path.join(name)).unwrap();
                bytes[9] ^= 1;
                fs::write(path.join(name), bytes).unwrap();
            }
            if !head {
                fs::remove_file(path.join("head")).unwrap();
            }
            // The first of them that has a commit.
            refused(&path, &["journal-0000", "damaged header", "a commit follows"]);
        }
    }
}

/// The newest file was taken for one whose epoch had crashed, and its commits were given up.
#[test]
fn a_damaged_header_of_the_newest_journal_file_is_damage() {
    let (_directory, path) = stored(5);
    fs::remove_file(path.join("head")).unwrap();
    let with_commits = contents(&path).into_iter().rfind(|(name, bytes)| {
        let commit = b"\"info\":{\"sequence\"";
        name.starts_with("journal-") && bytes.windows(commit.len()).any(|w| w == commit)
    });
    let (name, mut bytes) = with_commits.unwrap();
    bytes[20] ^= 0x40;
    fs::write(path.join(&name), bytes).unwrap();
    refused(&path, &[&name, "damaged header"]);
}

#[test]
fn a_journal_file_under_another_name_is_damage() {
    let (_directory, path) = stored(1);
    fs::rename(path.join("journal-00000001"), path.join("journal-00000009")).unwrap();
    refused(&path, &["journal-00000009", "journal file 1"]);
}

#[test]
fn rows_and_states_without_a_journal_are_damage() {
    for commits in [0, 1, 5] {
        for head in [true, false] {
            let (_directory, path) = stored(commits);
            for name in contents(&path).into_keys() {
                if name.starts_with("journal-") || (!head && name == "head") {
                    fs::remove_file(path.join(name)).unwrap();
                }
            }
            let told = commits > 0 && head;
            refused(&path, if told { &["the journal ends at commit 0"] } else { &["is there"] });
        }
    }
}

/// A store whose superblock was lost began anew over its rows once its journal was lost, too.
#[test]
fn what_is_left_of_a_store_without_its_superblock_is_damage() {
    for left in ["rows-0", "part-0-3", "state-0000000005", "journal-"] {
        let (_directory, path) = stored(5);
        fs::write(path.join("part-0-3"), b"rows of a partition").unwrap();
        for name in contents(&path).into_keys().filter(|name| !name.starts_with(left)) {
            fs::remove_file(path.join(name)).unwrap();
        }
        refused(&path, &["superblock is missing", left]);
    }
    // Files of these names that no store has are no store.
    let directory = tempfile::tempdir().unwrap();
    for name in ["rows-of-a-table", "state-machine.txt", "journal-2.pdf", "rows-007", "part-0-07"] {
        fs::write(directory.path().join(name), b"something else").unwrap();
    }
    let error = Store::open(directory.path(), options(2)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    assert!(error.message().contains("holds no store, but other files"), "{error}");
    assert_eq!(fs::read(directory.path().join("rows-007")).unwrap(), b"something else");
}

/// A file of rows of another store was removed to make place for one of a new class.
#[test]
fn a_file_of_rows_of_another_store_is_not_removed() {
    let (_directory, path) = stored(1);
    let (_other_directory, other) = stored(0);
    fs::copy(other.join("rows-0"), path.join("rows-1")).unwrap();
    let before = fs::read(path.join("rows-1")).unwrap();
    let store = Store::open(&path, options(2)).unwrap();
    let wider = TableSpec { embedding_dim: 40, ..spec("wide", Some(10), OptimizerKind::Sgd) };
    let error = store.table(&wider).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.message().contains("superblock and rows-1"), "{error}");
    assert!(fs::read(path.join("rows-1")).unwrap() == before);
}

/// Partitions of a class that a crash kept from its first commit stayed for ever.
#[test]
fn partitions_of_a_class_that_never_committed_are_removed_with_its_rows() {
    let medium = SimMedium::new(4);
    let partitions = || Medium::list(&medium, "part-").unwrap();
    for storage in [StorageKind::Lsm, StorageKind::Log] {
        let crashed = Store::open_on(Arc::new(medium.clone()), super::options(600 << 10)).unwrap();
        let lsm = TableSpec { storage: StorageKind::Lsm, ..spec("t", None, OptimizerKind::Sgd) };
        let table = crashed.table(&lsm).unwrap();
        assert_eq!(partitions(), Vec::<String>::new(), "those of the crash before are removed");
        for first in (0..20_000).step_by(500) {
            let keys: Vec<u64> = (first..first + 500).collect();
            crashed.put(&[put_of(table, &keys, &[0.5; 500 * DIM])]).unwrap();
        }
        assert!(!partitions().is_empty(), "nothing was merged");
        // Its lock goes, its files stay.
        drop(crashed);
        let store = Store::open_on(Arc::new(medium.clone()), super::options(600 << 10)).unwrap();
        assert!(store.tables().is_empty());
        store.table(&TableSpec { storage, ..spec("t", None, OptimizerKind::Sgd) }).unwrap();
        assert_eq!(partitions(), Vec::<String>::new(), "{storage:?}");
        drop(store);
    }
}

/// The message advised `step=`, and every step was then `NotFound`.
#[test]
fn damage_names_the_steps_that_can_be_opened_and_no_others() {
    for keep in [1, 3] {
        for head in [true, false] {
            let medium = SimMedium::new(3);
            let store = open(&medium, options(keep)).unwrap();
            let mut rows = Rows::default();
            let mut random = Random(3);
            let mut ends = Vec::new();
            for step in 1..=6 {
                change(&store, &mut rows, &mut random).unwrap();
                store.commit(step, "", &[]).unwrap();
                ends.push(store.inner.history.lock().journal().position());
            }
            drop(store);
            medium.flip_bit("journal-00000001", ends[4] + 40);
            if !head {
                medium.remove("head").unwrap();
            }
            let error = open(&medium, options(keep)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            let openable: Vec<u64> = (1..=6)
                .filter(|step| {
                    let at = StoreOptions { step: Some(*step), ..options(keep) };
                    open(&medium, at).is_ok()
                })
                .collect();
            let advice = format!("with step=, one of {openable:?}");
            let advised = error.message().contains("step=");
            assert_eq!(advised, !openable.is_empty(), "keep {keep} head {head}: {error}");
            assert!(!advised || error.message().ends_with(&advice), "{openable:?}: {error}");
            assert_eq!(openable.is_empty(), keep == 1 || !head, "keep {keep} head {head}");
        }
    }
}

/// Crashes before the first commit, twice in a row, leave a store that opens empty and works.
#[test]
fn crashes_before_the_first_commit_leave_a_store_that_opens() {
    let run = |medium: &SimMedium, rows: &mut Rows| -> Result<()> {
        let mut random = Random(7);
        let store = open(medium, options(2))?;
        rows.clone_from(&Rows::default());
        if store.last_commit().is_some() {
            return Ok(());
        }
        change(&store, rows, &mut random)?;
        commit(&store, 1, &mut random).map(drop)
    };
    let (mut crashes, every) = (0, stride(2));
    for first in 1.. {
        let medium = SimMedium::new(first);
        medium.power_cut_after(first);
        if run(&medium, &mut Rows::default()).is_ok() {
            break;
        }
        for second in (1 + first % every..).step_by(every as usize) {
            let machine = medium.reboot(first + second);
            machine.power_cut_after(second);
            let mut rows = Rows::default();
            let ended = run(&machine, &mut rows).is_ok();
            let machine = machine.reboot(second);
            let what = format!("cuts {first} and {second}");
            run(&machine, &mut rows).unwrap_or_else(|e| panic!("{what}: {e}"));
            crashes += 1;
            if ended {
                break;
            }
        }
    }
    assert!(crashes * every > 200, "only {crashes} crashes, every {every}th");
}
