//! The log of a server about its clients: each refusal and cut-off, once a second at most, and
//! never the bytes they sent.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

#[allow(dead_code, reason = "the other test program uses all of it")]
mod common;

use common::*;
use embedrock_server::{Options, Server};
use log::{LevelFilter, Log, Metadata, Record};
use std::sync::{Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// One test at a time has lines.
static ALONE: Mutex<()> = Mutex::new(());

struct Capture;

impl Log for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("embedrock")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = format!("{} {}: {}", record.level(), record.target(), record.args());
            LINES.lock().unwrap().push(line);
        }
    }

    fn flush(&self) {}
}

/// Lines come from here on, until this is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static LOGGER: Capture = Capture;
    static ONCE: Once = Once::new();
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    ONCE.call_once(|| log::set_logger(&LOGGER).unwrap());
    log::set_max_level(LevelFilter::Debug);
    LINES.lock().unwrap().clear();
    alone
}

fn lines(words: &[&str]) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
    lines.iter().filter(has_all).cloned().collect()
}

/// Waits for a line with these words.
fn until(words: &[&str]) -> String {
    let begun = Instant::now();
    loop {
        if let Some(line) = lines(words).pop() {
            return line;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{words:?} in {:#?}", lines(&[]));
        std::thread::yield_now();
    }
}

#[test]
fn connections_beyond_the_limit_are_told_once_a_second_at_most() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let options = Options { max_connections: 1, ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut only = Client::new(&server);
    assert_eq!(only.say("PING"), Reply::Simple("PONG".into()));
    let begun = Instant::now();
    for _ in 0..200 {
        let mut other = Client::new(&server);
        assert!(other.reply().error().contains("max number of clients"));
    }
    let seconds = begun.elapsed().as_secs() as usize + 1;
    let told = lines(&["WARN embedrock::server::clients", "127.0.0.1:", "(--max-connections)"]);
    assert!((1..=seconds).contains(&told.len()), "{told:#?}");
    server.stop().unwrap();
    let started = ["INFO embedrock::server: ", "serving at 127.0.0.1:", "without TLS", "2 threads"];
    assert_eq!(lines(&started).len(), 1, "{:#?}", lines(&[]));
    assert_eq!(lines(&["INFO embedrock::server: stopped after"]).len(), 1, "{:#?}", lines(&[]));
}

#[test]
fn wrong_passwords_are_told_and_no_line_has_one_nor_what_a_client_sends() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { password: Some("right-battery".into()), max_request_bytes: 1 << 16, ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let begun = Instant::now();
    for _ in 0..5 {
        let mut client = Client::new(&server);
        for _ in 0..8 {
            assert!(client.say("AUTH wrong-horse").error().contains("WRONGPASS"));
        }
        assert!(client.is_closed());
    }
    let seconds = begun.elapsed().as_secs() as usize + 1;
    let told = lines(&["WARN embedrock::server::clients", "gave a wrong password"]);
    assert!((1..=seconds).contains(&told.len()), "{told:#?}");

    let mut client = Client::new(&server);
    assert_eq!(client.say("AUTH right-battery"), ok());
    client.send(&[b"SET", b"user:17", &[b'v'; 1 << 17]]);
    assert!(client.reply().error().contains("expected at most"));
    until(&["WARN", "a request beyond --max-request-bytes"]);
    // Silent behind the error of a request that was dropped.
    until(&["INFO", "has left its connection behind a request"]);
    let mut client = Client::new(&server);
    client.send_raw(b"*2\r\n$3\r\nGET\r\n$x987654\r\n");
    assert!(client.reply().error().contains("ERR"));
    until(&["WARN", "was cut off: it sent what is no request"]);
    server.stop().unwrap();
    for line in lines(&[]) {
        let said = ["battery", "horse", "vvvv", "987654", "user:17"];
        assert!(!said.iter().any(|word| line.contains(word)), "{line}");
    }
}

#[test]
fn a_commit_on_the_timer_that_fails_is_told_and_that_it_succeeds_again() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let options = Options { commit_every: Some(Duration::from_millis(20)), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut client = Client::new(&server);
    let aside = folder.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    assert_eq!(client.call(&[b"SET", b"user:2", &bytes(&row(0, 4))]), ok());
    let begun = Instant::now();
    until(&["ERROR embedrock::server::timer: commit: ", "not in its place"]);
    std::fs::rename(&aside, &path).unwrap();
    until(&["INFO embedrock::server::timer: ", "succeed again"]);
    let failed = lines(&["ERROR embedrock::server::timer"]).len() as u64;
    assert!(failed <= begun.elapsed().as_secs() + 1, "{:#?}", lines(&[]));
    server.stop().unwrap();
}
