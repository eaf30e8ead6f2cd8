//! The files of a commit, taken while a writer goes on, are a store with that commit alone.

use super::plain::{Rows, change, check, commit, make_tables, options};
use super::*;
use crate::store::files::place::UNFINISHED;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

const BLOCK: u64 = 64 << 10;

/// Copies what the list names, bytes by bytes, as a push and a pull do.
fn take(held: &CommitFiles, files: &[CommitFile], to: &Path) {
    fs::create_dir(to).unwrap();
    fs::write(to.join(UNFINISHED), b"").unwrap();
    for file in files {
        let mut from = fs::File::open(&file.path).unwrap();
        let mut copy = fs::File::create(to.join(&file.name)).unwrap();
        copy.set_len(file.bytes).unwrap();
        for (at, length) in &file.ranges {
            let mut bytes = vec![0; *length as usize];
            from.seek(SeekFrom::Start(*at)).unwrap();
            from.read_exact(&mut bytes).unwrap();
            copy.seek(SeekFrom::Start(*at)).unwrap();
            copy.write_all(&bytes).unwrap();
        }
    }
    fs::write(to.join("head"), held.head().unwrap()).unwrap();
}

fn finish(path: &Path, sequence: u64) -> Result<CheckReport> {
    finish_pull(path, sequence, &mut |_, _| Ok(()))
}

#[test]
fn files_of_a_commit_are_a_store_with_it_alone_whatever_the_writer_did_meanwhile() {
    each_kind(|| {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("s");
        let mut random = Random(7);
        let store = Store::open(&path, options(2)).unwrap();
        make_tables(&store).unwrap();
        let mut rows = Rows::default();
        let (mut first, mut taken) = (None, 0);
        for step in 1..70 {
            change(&store, &mut rows, &mut random).unwrap();
            let made = commit(&store, step, &mut random).unwrap();
            if step == 9 {
                store.pin(step, "nine").unwrap();
                first = Some((made.clone(), rows.clone()));
            }
            if step % 13 != 0 {
                continue;
            }
            // Of a pinned commit that the journal has not any more, every other time.
            let pin = (taken % 2 == 1).then(|| "nine".to_owned());
            let (made, expected) = match pin {
                Some(_) => first.clone().unwrap(),
                None => (made, rows.clone()),
            };
            let held = CommitFiles::open(&path, None, pin, None).unwrap();
            assert_eq!(*held.commit(), made);
            let files = held.list(BLOCK).unwrap();
            for step in 0..8 {
                change(&store, &mut rows, &mut random).unwrap();
                commit(&store, 100 + step, &mut random).unwrap();
            }
            let to = root.path().join(format!("taken {taken}"));
            take(&held, &files, &to);
            held.expect().unwrap();
            assert_eq!(held.list(BLOCK).unwrap(), files, "nothing of it changes while it is held");
            let error = Store::open(&to, options(2)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            let wrong = finish(&to, made.sequence + 1).unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Corrupt, "{wrong}");
            assert!(finish(&to, made.sequence).unwrap().pages > 0);
            let mut copy = Store::open(&to, options(2)).unwrap();
            assert_eq!(copy.commits(), std::slice::from_ref(&made));
            check(&copy, &expected, "taken");
            let mut own = expected.clone();
            for step in 200..210 {
                change(&copy, &mut own, &mut random).unwrap();
                commit(&copy, step, &mut random).unwrap();
                if step % 4 == 0 {
                    copy.close().unwrap();
                    copy = Store::open(&to, options(2)).unwrap();
                }
                check(&copy, &own, "going on");
            }
            copy.close().unwrap();
            assert_eq!(crate::check(&to, &mut |_, _| Ok(())).unwrap().problem_count, 0);
            taken += 1;
        }
        assert_eq!(taken, 5);
    });
}

#[test]
fn damage_keeps_what_was_taken_from_being_a_store() {
    let root = tempfile::tempdir().unwrap();
    let [path, to] = ["s", "t"].map(|name| root.path().join(name));
    let store = Store::open(&path, options(2)).unwrap();
    make_tables(&store).unwrap();
    change(&store, &mut Rows::default(), &mut Random(3)).unwrap();
    let made = store.commit(1, "", &[]).unwrap();
    let held = CommitFiles::open(&path, None, None, None).unwrap();
    take(&held, &held.list(BLOCK).unwrap(), &to);
    let rows = to.join("rows-0");
    let whole = fs::read(&rows).unwrap();
    let mut damaged = whole.clone();
    damaged[700] ^= 1;
    fs::write(&rows, &damaged).unwrap();
    let error = finish(&to, made.sequence).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("rows-0, page 1"), "{error}");
    assert!(to.join(UNFINISHED).exists());
    fs::write(&rows, &whole).unwrap();
    finish(&to, made.sequence).unwrap();
    let again = finish(&to, made.sequence).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Misuse, "{again}");
}

#[test]
fn a_commit_whose_hold_is_taken_away_is_told_from_one_that_is_kept() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("s");
    let store = Store::open(&path, options(2)).unwrap();
    make_tables(&store).unwrap();
    let (mut rows, mut random) = (Rows::default(), Random(5));
    change(&store, &mut rows, &mut random).unwrap();
    store.commit(1, "", &[]).unwrap();
    let held = CommitFiles::open(&path, None, None, None).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("hold-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    // The store keeps it still.
    held.expect().unwrap();
    for step in 2..5 {
        change(&store, &mut rows, &mut random).unwrap();
        store.commit(step, "", &[]).unwrap();
    }
    assert_eq!(held.expect().unwrap_err().kind(), ErrorKind::CommitGone);
    assert_eq!(held.list(BLOCK).unwrap_err().kind(), ErrorKind::CommitGone);
}
