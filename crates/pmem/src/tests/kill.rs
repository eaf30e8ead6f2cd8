//! A process that puts rows is killed, again and again: what it has acknowledged is there.

use super::{ROW_BYTES, fast_folder, row, verify_slots};
use crate::error::ErrorKind;
use crate::region::Geometry;
use crate::rows::Rows;
use crate::shadow::Random;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const REGION: &str = "EMBEDROCK_KILLED_REGION";
const FIRST: &str = "EMBEDROCK_KILLED_FIRST";
const GROUPS: u64 = 10;
const KEYS: u64 = 400;

/// The keys of a version; every tenth version changes the same ones.
fn keys_of(version: u64) -> Vec<u64> {
    (0..KEYS).filter(|key| key % GROUPS == version % GROUPS).map(|key| key << 33).collect()
}

/// The work of the killed process; a test that does nothing in any other.
#[test]
fn child() {
    let Some(path) = std::env::var_os(REGION) else { return };
    let first: u64 = std::env::var(FIRST).expect("first").parse().expect("a number");
    let rows = Rows::open(path.as_ref()).expect("open");
    for version in first.. {
        let keys = keys_of(version);
        // Removed first: so every other change is an insertion, some of them displaced.
        if version % 3 == 0 {
            rows.remove(&keys).expect("remove");
        }
        let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, version)).collect();
        rows.put(&keys, &bytes).expect("put");
        if version % 5 == 0 {
            rows.rehome(7).expect("rehome");
        }
        writeln!(std::io::stdout(), "acknowledged {version}").expect("the parent listens");
    }
}

#[test]
fn what_a_killed_process_has_acknowledged_is_there() {
    let folder = fast_folder();
    let path = folder.path().join("region");
    let geometry = Geometry::new(KEYS, ROW_BYTES).expect("sizes");
    drop(Rows::create(&path, geometry).expect("create"));
    let mut random = Random(6);
    let mut last = 0;
    for run in 0..20 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "tests::kill::child", "--nocapture", "--test-threads=1"])
            .env(REGION, &path)
            .env(FIRST, (last + 1).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("child");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut acknowledged = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<u64>().ok());
        let wanted = last + 1 + random.below(200);
        assert!(acknowledged.any(|version| version >= wanted), "the child ended");
        if run == 0 {
            let error = Rows::open(&path).err().expect("the child has it");
            assert_eq!(error.kind(), ErrorKind::Locked);
        }
        child.kill().expect("kill");
        child.wait().expect("wait");
        // The process's output before it was killed.
        last = acknowledged.last().unwrap_or(wanted).max(wanted);
        let rows = Rows::open(&path).expect("open");
        let checked = rows.check().expect("nothing is damaged");
        let mut present = Vec::new();
        for version in last.saturating_sub(GROUPS - 1).max(1)..=last {
            for key in keys_of(version) {
                let found = super::get_one(&rows, key);
                // One more may have been under way.
                let next = (last + 1) % GROUPS == version % GROUPS;
                match found {
                    None => assert!(next && (last + 1) % 3 == 0, "key {key} of {version} lost"),
                    Some(bytes) => {
                        let newer = next && bytes == row(key, last + 1);
                        assert!(newer || bytes == row(key, version), "key {key} of {version}");
                        present.push(key);
                    }
                }
            }
        }
        assert!(checked.keys <= present.len() as u64 || last < GROUPS, "run {run}");
        if last >= GROUPS {
            verify_slots(&rows, present.into_iter());
        }
    }
}
