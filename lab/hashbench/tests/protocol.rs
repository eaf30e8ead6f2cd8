//! The program as `embedrock bench pethash` talks to it: a line of JSON in, a line of JSON out.

#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn started() -> Child {
    Command::new(env!("CARGO_BIN_EXE_embedrock-hashbench"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn answers(asks: &[Value]) -> Vec<Value> {
    let mut program = started();
    let mut input = program.stdin.take().unwrap();
    asks.iter().for_each(|ask| writeln!(input, "{ask}").unwrap());
    drop(input);
    let done = program.wait_with_output().unwrap();
    assert!(done.status.success());
    let lines = String::from_utf8(done.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn buckets_are_counted_and_a_bad_line_says_what_is_wrong() {
    let found = answers(&[
        json!({"probes": {"keys": 20_000, "shift": null}}),
        json!({"probes": {"keys": 20_000, "shift": 32}}),
        json!({"turnover": {"keys": 20_000, "rehoming": true}}),
        json!({"probes": {"keys": 20_000, "shift": 60}}),
        json!({"probe": {}}),
    ]);
    for counted in &found[..3] {
        assert_eq!(counted["mismatches"], 0);
        assert!((1.0..1.1).contains(&counted["hit"].as_f64().unwrap()), "{counted}");
        assert!((1.1..1.4).contains(&counted["miss"].as_f64().unwrap()), "{counted}");
        assert!(counted["within_three"].as_f64().unwrap() > 0.99, "{counted}");
    }
    assert!(found[2]["moved"].as_u64().unwrap() > 0);
    assert!(found[3]["error"].as_str().unwrap().contains("too large"), "{}", found[3]);
    assert!(found[4]["error"].as_str().unwrap().contains("unknown variant `probe`"));
}

#[test]
fn every_map_finds_every_key() {
    let folder = tempfile::tempdir().unwrap();
    let look_ups = |map: &str, ahead: &str, verify: bool| {
        json!({"look_ups": {"map": map, "look_ups": {
            "keys": 5000, "count": 20_001, "batch": 500, "seed": 3, "ahead": ahead,
            "verify": verify,
        }}})
    };
    let maps = ["pethash", "pethash-file", "papaya", "dashmap", "scc", "hashbrown"];
    for map in maps {
        let mut asks = vec![json!({"build": {"map": map, "keys": 5000, "folder": folder.path()}})];
        for ahead in ["none", "next-key", "staged"] {
            asks.extend([look_ups(map, ahead, true), look_ups(map, ahead, false)]);
        }
        asks.extend([json!({"free": {"map": map}}), look_ups(map, "none", true)]);
        let found = answers(&asks);
        for pair in found[1..7].chunks(2) {
            assert_eq!(
                (&pair[0]["rows_verified"], &pair[1]["look_ups"]),
                (&20_001.into(), &20_001.into())
            );
            assert_eq!((&pair[0]["mismatches"], &pair[1]["mismatches"]), (&0.into(), &0.into()));
            assert!(pair[1]["seconds"].as_f64().unwrap() > 0.0);
        }
        assert!(found[8]["error"].as_str().unwrap().contains("was not built"), "{}", found[8]);
    }
}

fn open(file: &Path, pushes: u64, put: bool) -> Value {
    let asked = json!({"file": file, "rows": 3000, "keys": 100, "seed": 1, "pushes": pushes,
        "put": put});
    answers(&[json!({ "open": asked })]).remove(0)
}

#[test]
fn what_a_killed_process_has_acknowledged_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("region");
    let made = json!({"file": file, "rows": 3000, "capacity": 9000, "row_bytes": 20});
    assert!(answers(&[json!({ "make": made })])[0]["bytes"].as_u64().unwrap() > 3000 * 36);
    let found = open(&file, 0, false);
    assert_eq!((&found["mismatches"], &found["rows_verified"]), (&0.into(), &100.into()));
    assert!(found["first_pull_ms"].as_f64() >= found["open_ms"].as_f64());
    let mut program = started();
    let asked = json!({"push": {"file": file, "rows": 3000, "keys": 100}});
    writeln!(program.stdin.as_mut().unwrap(), "{asked}").unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let acknowledged = (0..3).map(|_| lines.next().unwrap().unwrap()).last().unwrap();
    assert_eq!(acknowledged, json!({"acknowledged": 3}).to_string());
    program.kill().unwrap();
    program.wait().unwrap();
    let found = open(&file, 3, true);
    assert_eq!((&found["mismatches"], &found["rows_verified"]), (&0.into(), &400.into()));
    assert!(found["first_put_ms"].as_f64().unwrap() > 0.0);
    // Pushes that nobody made are missing rows.
    assert_eq!(open(&file, 55, false)["mismatches"].as_u64().unwrap() % 100, 0);
    assert!(open(&file, 55, false)["mismatches"].as_u64().unwrap() > 0);
}
