//! Monitoring of a server: its page, its numbers, and hot rows that came without a pull.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use embedrock_core::config::{Memory, StoreOptions, TableSpec};
use embedrock_core::{NonFinite, PutBatch, Store};
use embedrock_server::{Options, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const IDS: u64 = 1000;

/// A store that only reads, whose rows are on disk: key `k` has the row `[k, k]`, if it is even.
fn cold(folder: &TempDir) -> Store {
    let path = folder.path().join("store");
    let options =
        |read_only| StoreOptions { read_only, ..StoreOptions::new(Memory::Bytes(16 << 20)) };
    let store = Store::open(&path, options(false)).unwrap();
    let spec = TableSpec { embedding_dim: 2, ..crate::common::spec("user", Some(IDS)) };
    let table = store.table(&spec).unwrap();
    let keys: Vec<u64> = (0..IDS).step_by(2).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; 2]).collect();
    let (keys, values, non_finite) = (&keys[..], &values[..], NonFinite::Refuse);
    let batch = PutBatch { table, keys, values, state: None, reset_state: false, non_finite };
    store.put(&[batch]).unwrap();
    store.commit(7, "", &[]).unwrap();
    store.close().unwrap();
    Store::open(&path, options(true)).unwrap()
}

fn served(folder: &TempDir) -> Server {
    let options = Options {
        threads: 1,
        refresh_every: None,
        metrics: Some("127.0.0.1:0".into()),
        ..Options::new("127.0.0.1:0")
    };
    Server::start(cold(folder), options).unwrap()
}

/// The answer to a GET, headers included.
fn ask(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn json(server: &Server, path: &str) -> serde_json::Value {
    let answer = ask(server, path);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"), "{head}");
    serde_json::from_str(body).unwrap()
}

/// The first line of the reply to a request.
fn say(server: &Server, arguments: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        request.extend(format!("${}\r\n", argument.len()).bytes());
        request.extend(*argument);
        request.extend(b"\r\n");
    }
    stream.write_all(&request).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn packed(keys: impl IntoIterator<Item = u64>) -> Vec<u8> {
    keys.into_iter().flat_map(u64::to_le_bytes).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn hot_rows_come_into_memory_and_count_as_no_pull() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    let hot = packed((0..200).map(|i| i * 2));
    assert_eq!(say(&server, &[b"EMB.HOT", b"user", &hot]), "+OK");
    let is_there = |line: &str| ask(&server, "/metrics").contains(line);
    until("they come", || is_there("embedrock_rows_promoted_total 200\n"));
    for line in [
        "embedrock_commands_total{command=\"emb.hot\"} 1\n",
        "embedrock_rows_read_total 0\n",
        "embedrock_store_hits_total 0\n",
        "embedrock_store_misses_total 0\n",
        "embedrock_hot_failures_total 0\n",
    ] {
        assert!(is_there(line), "{line} is not in {}", ask(&server, "/metrics"));
    }
    assert_eq!(say(&server, &[b"EMB.PULLB", b"user", &hot]), format!("${}", 12 + 200 * 8));
    assert!(is_there("embedrock_store_misses_total 0\n"));
    assert!(is_there("embedrock_rows_read_total 200\n"));
}

#[test]
fn a_hot_set_that_cannot_be_is_refused_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    for (arguments, said) in [
        (&[b"EMB.HOT", &b"user"[..], &packed([1, IDS])][..], "-KEYRANGE key 1000 of table 'user'"),
        (&[b"EMB.HOT", b"nobody", &packed([1])], "-NOTFOUND no table 'nobody'"),
        (&[b"EMB.HOT", b"user", b"123"], "-ERR keys of 3 bytes, expected a multiple of 8"),
        (&[b"EMB.HOT", b"user", &vec![0; 65_537 * 8]], "-ERR 65537 keys, expected at most 65536"),
        (&[b"EMB.HOT", b"user"], "-ERR wrong number of arguments for 'EMB.HOT'"),
    ] {
        let reply = say(&server, arguments);
        assert!(reply.starts_with(said), "{reply}");
    }
    assert_eq!(say(&server, &[b"EMB.HOT", b"user", b""]), "+OK");
}

#[test]
fn the_page_allows_itself_alone_and_its_numbers_follow_the_load() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    let page = ask(&server, "/");
    for header in [
        "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n",
        "Content-Security-Policy: default-src 'none'; script-src 'sha256-",
        "X-Content-Type-Options: nosniff\r\n",
        "Cache-Control: no-store\r\n",
    ] {
        assert!(page.contains(header), "{header} is not in {page}");
    }
    until("it looks at the store", || json(&server, "/status.json")["store"].is_object());
    let first = json(&server, "/status.json");
    assert_eq!(first["store"]["commit"]["step"], 7);
    assert_eq!(first["store"]["tables"][0]["rows"], IDS / 2);
    assert_eq!(first["problem"], serde_json::Value::Null);

    say(&server, &[b"EMB.PULLB", b"user", &packed([2, 4, 5])]);
    until("a sample has what was read", || {
        let found = json(&server, "/status.json");
        let rates = found["history"]["rows_read_per_s"].as_array().unwrap().clone();
        rates.iter().any(|rate| rate.as_f64() > Some(0.0))
    });
    let found = json(&server, "/status.json");
    assert_eq!(found["rows"]["read"], 3);
    assert_eq!(found["requests"]["by_command"]["EMB.PULLB"], 1);
    let next = found["history"]["next"].as_u64().unwrap();
    let rest = json(&server, &format!("/status.json?since={next}"));
    assert_eq!(rest["history"]["first"], next);
    assert!(rest["history"]["unix_s"].as_array().unwrap().len() <= 1);
}

#[test]
fn the_status_says_whether_the_commit_is_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    let is_pinned = || json(&server, "/status.json")["server"]["pinned"].as_bool();
    assert_eq!(is_pinned(), Some(false));
    say(&server, &[b"EMB.SWITCH", b"7"]);
    until("the switch is told", || is_pinned() == Some(true));
    say(&server, &[b"EMB.REFRESH"]);
    until("the refresh is told", || is_pinned() == Some(false));
}

// One connection at a time was served: a browser's spare ones held up all others for two seconds
// each.
#[test]
fn connections_that_say_nothing_hold_up_no_monitor() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    let address = server.metrics_address().unwrap();
    let silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begin = Instant::now();
    assert!(ask(&server, "/healthz").ends_with("ok\ncommit step 7, follows\n"));
    assert!(begin.elapsed() < Duration::from_secs(1), "it took {:?}", begin.elapsed());
    for mut stream in silent {
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "silence is the end");
    }
}

// More monitors than are served at a time: the others wait, and all are answered.
#[test]
fn more_monitors_than_are_served_at_a_time_are_all_answered() {
    let folder = tempfile::tempdir().unwrap();
    let server = served(&folder);
    let address = server.metrics_address().unwrap();
    let mut streams: Vec<TcpStream> =
        (0..150).map(|_| TcpStream::connect(address).unwrap()).collect();
    let last = streams.split_off(70);
    for mut stream in last {
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("ok\ncommit step 7, follows\n"), "{answer}");
    }
    server.stop().unwrap();
}
