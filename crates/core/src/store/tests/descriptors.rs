//! Stores in processes that may have few files open.

use super::*;
use crate::io::{DirectoryMedium, IoChoice};
use std::process::Command;

/// Rows of the table: those of a hundred partitions.
const ROWS: u64 = 200_000;
const CHILD: &str = "EMBEDROCK_FEW_DESCRIPTORS";

/// Runs a test of this file in a process of its own, with such limits. False in that process.
fn is_run_within(limits: &str, name: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return false;
    }
    let name = format!("store::tests::descriptors::{name}");
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{limits} && exec \"$0\" \"$@\""));
    command.arg(std::env::current_exe().unwrap()).args(["--exact", &name, "--test-threads=1"]);
    let output = command.env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
    true
}

fn open(directory: &std::path::Path) -> (Store, TableId) {
    let medium = DirectoryMedium::open(directory, IoChoice::Pread).unwrap();
    let store = Store::open_on(Arc::new(medium), options(2 << 20)).unwrap();
    let table = store.table(&spec("t", Some(ROWS), OptimizerKind::Sgd)).unwrap();
    (store, table)
}

fn put(store: &Store, table: TableId, first: u64) -> Result<()> {
    let keys: Vec<u64> = (first..first + 1000).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
    store.put(&[put_of(table, &keys, &values)]).map(drop)
}

/// An lsm with more partitions than a process may have files open could not merge, nor be opened.
#[test]
fn partitions_are_had_beyond_the_soft_limit_of_descriptors() {
    let name = "partitions_are_had_beyond_the_soft_limit_of_descriptors";
    if is_run_within("ulimit -Sn 64 && ulimit -Hn 4096", name) {
        return;
    }
    with_kind(StorageKind::Lsm, || {
        let directory = tempfile::tempdir().unwrap();
        let (store, table) = open(directory.path());
        for first in (0..ROWS).step_by(1000) {
            put(&store, table, first).unwrap();
            if first % 20_000 == 0 {
                store.commit(first, "", &[]).unwrap();
            }
        }
        store.commit(ROWS, "", &[]).unwrap();
        store.close().unwrap();
        drop(store);
        let (store, table) = open(directory.path());
        let files = std::fs::read_dir(directory.path()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let partitions = names.filter(|name| name.starts_with("part-0-")).count();
        assert!(partitions > 64, "{partitions} partitions");
        super::bounds::expect_rows(&store, table, ROWS);
    });
}

#[test]
fn a_lack_of_descriptors_names_the_limit() {
    if is_run_within("ulimit -n 64", "a_lack_of_descriptors_names_the_limit") {
        return;
    }
    with_kind(StorageKind::Lsm, || {
        let directory = tempfile::tempdir().unwrap();
        let (store, table) = open(directory.path());
        let damage = || store.stats().unwrap().classes[0].damage.clone();
        let told = (0..ROWS).step_by(1000).find_map(|first| match put(&store, table, first) {
            Err(error) => Some(error.message().to_owned()),
            Ok(()) => damage().first().cloned(),
        });
        let told = told.expect("a hundred partitions have no 64 descriptors");
        assert!(told.contains("`ulimit -n`") && told.contains("64 files"), "{told}");
    });
}
