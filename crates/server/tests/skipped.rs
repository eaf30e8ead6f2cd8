//! Requests beyond a limit: each is one error in its place, and those behind it are served.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::*;
use embedrock_server::{Options, Server};
use std::io::Write;
use std::time::{Duration, Instant};

const MOST: usize = 1 << 20;

fn small() -> Options {
    Options { max_request_bytes: MOST, ..options() }
}

fn pong() -> Reply {
    Reply::Simple("PONG".into())
}

/// A request that is larger than it may be, and what is said of it.
fn large(name: &str, bytes: usize) -> (Vec<u8>, String) {
    let frame = request(&[b"SET", name.as_bytes(), &vec![b'x'; bytes]]);
    let said = format!(
        "ERR a request of {} bytes, expected at most {MOST}; send it in parts",
        frame.len()
    );
    (frame, said)
}

/// A number of `INFO`.
fn info(client: &mut Client, field: &str) -> usize {
    let reply = client.say("INFO");
    let text = String::from_utf8(reply.bulk().to_vec()).unwrap();
    let mut found = text.lines().filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.next().unwrap().parse().unwrap()
}

/// Waits until the server has read so many bytes more of clients than `before`, and all of them
/// have at most so much memory.
fn wait(client: &mut Client, before: usize, bytes: usize, most: usize) {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let came = info(client, "total_net_input_bytes") - before;
        let kept = info(client, "mem_clients_normal");
        if came >= bytes && kept <= most {
            return;
        }
        assert!(Instant::now() < until, "{came} bytes of {bytes} came, {kept} are kept");
    }
}

// The connection ended behind the error, and a client that sends a pipeline before it reads the
// replies was told of that instead.
#[test]
fn a_large_request_amid_a_pipeline_is_an_error_in_its_place_and_the_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), small()).unwrap();
    let mut client = Client::new(&server);
    let new = bytes(&row(5, 1));
    for megabytes in [2, 8, 40] {
        let (frame, said) = large("user:2", megabytes << 20);
        client.send(&[b"SET", b"user:1", &new]);
        client.send(&[b"GET", b"user:4"]);
        client.send_raw(&frame);
        client.send(&[b"GET", b"user:2"]);
        client.send_raw(&frame);
        client.send(&[b"PING"]);
        assert_eq!(client.reply(), ok());
        assert_eq!(client.reply().bulk(), bytes(&row(0, 4)));
        assert_eq!(client.reply().error(), said);
        assert_eq!(client.reply().bulk(), bytes(&row(0, 2)));
        assert_eq!(client.reply().error(), said);
        assert_eq!(client.reply(), pong());
    }
    // Many small arguments that are too large together.
    let names: Vec<String> = (0..100_000).map(|key| format!("user:{}", key % IDS)).collect();
    let mut words: Vec<&[u8]> = vec![b"MSET"];
    names.iter().for_each(|name| words.extend([name.as_bytes(), &new]));
    let reply = client.call(&words);
    assert!(reply.error().contains("bytes, expected at most 1048576"), "{reply:?}");
    assert_eq!(client.say("GET user:2").bulk(), bytes(&row(0, 2)));
}

// Clients that give a connection up behind an error often leave it open: it kept its place.
#[test]
fn a_client_that_is_silent_behind_a_large_request_leaves_its_place_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), Options { max_connections: 1, ..small() }).unwrap();
    let mut client = Client::new(&server);
    let (frame, said) = large("user:2", 2 << 20);
    // One that goes on keeps it, however long it is silent then.
    client.send_raw(&frame);
    assert_eq!(client.reply().error(), said);
    assert_eq!(client.say("PING"), pong());
    // One that did not go on is closed after two seconds (see below), which have passed then.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(client.say("PING"), pong());
    // A request in the same pipeline does not show that the client goes on.
    client.send_raw(&[frame, request(&[b"PING"])].concat());
    assert_eq!(client.reply().error(), said);
    assert_eq!(client.reply(), pong());
    assert!(client.is_closed());
    assert_eq!(Client::new(&server).say("PING"), pong());
}

#[test]
fn a_request_of_too_many_arguments_is_an_error_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), Options { max_keys: 100, ..small() }).unwrap();
    let mut client = Client::new(&server);
    let names: Vec<&[u8]> = vec![b"user:2"; 1000];
    client.send(&[&[&b"MGET"[..]], &names[..]].concat());
    client.send(&[b"GET", b"user:2"]);
    let said = "ERR a request of 1001 arguments, expected at most 264; send it in parts";
    assert_eq!(client.reply().error(), said);
    assert_eq!(client.reply().bulk(), bytes(&row(0, 2)));
}

#[test]
fn a_large_request_between_multi_and_exec_has_none_of_them_run() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), small()).unwrap();
    let mut client = Client::new(&server);
    let (frame, said) = large("user:4", 2 << 20);
    let set = request(&[b"SET", b"user:2", &bytes(&row(9, 9))]);
    for end in ["EXEC", "DISCARD"] {
        client.send(&[b"MULTI"]);
        client.send_raw(&[&set[..], &frame, &set].concat());
        client.send(&[end.as_bytes()]);
        assert_eq!(client.reply(), ok());
        assert_eq!(client.reply(), Reply::Simple("QUEUED".into()));
        assert_eq!(client.reply().error(), said);
        assert_eq!(client.reply(), Reply::Simple("QUEUED".into()));
        match end {
            "EXEC" => assert!(client.reply().error().starts_with("EXECABORT ")),
            _ => assert_eq!(client.reply(), ok()),
        }
        assert_eq!(client.say("GET user:2").bulk(), bytes(&row(0, 2)));
    }
}

#[test]
fn what_is_skipped_takes_no_memory_and_nobody_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let few = Options { client_memory: Some(4 << 20), max_reply_bytes: 1 << 20, ..small() };
    let server = Server::start(filled(&folder), few).unwrap();
    let (mut client, mut steady) = (Client::new(&server), Client::new(&server));
    let part = vec![b'x'; 1 << 20];
    let before = info(&mut steady, "total_net_input_bytes");
    client.send_raw(format!("*3\r\n$3\r\nSET\r\n${}\r\n", 64 << 20).as_bytes());
    for _ in 0..64 {
        client.send_raw(&part);
        assert_eq!(steady.say("PING"), pong());
    }
    wait(&mut steady, before, 64 << 20, 256 << 10);
    client.send_raw(b"\r\n$1\r\nz\r\n*1\r\n$4\r\nPING\r\n");
    assert!(client.reply().error().contains("expected at most 1048576"));
    assert_eq!(client.reply(), pong());
    // An argument is kept until the next one is known to be too much, and not while half of a line
    // is there to be kept.
    let kept = MOST - 400;
    let before = info(&mut steady, "total_net_input_bytes");
    client.send_raw(format!("*4\r\n$3\r\nSET\r\n${kept}\r\n").as_bytes());
    client.send_raw(&part[..kept]);
    wait(&mut steady, before, kept, 2 * MOST);
    client.send_raw(&[b"\r\n$500\r\n", &part[..500], b"\r\n$"].concat());
    wait(&mut steady, before, MOST, 256 << 10);
    client.send_raw(b"1\r\nz\r\n");
    assert!(client.reply().error().contains("expected at most 1048576"));
    assert_eq!(client.say("PING"), pong());
}

#[test]
fn silence_amid_a_request_that_is_skipped_ends_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { stall: Duration::from_millis(500), ..small() };
    let server = Server::start(filled(&folder), options).unwrap();
    let (mut silent, mut slow) = (Client::new(&server), Client::new(&server));
    let mut steady = Client::new(&server);
    for client in [&mut silent, &mut slow] {
        client.send_raw(b"*2\r\n$4\r\nECHO\r\n$100000000\r\n");
    }
    silent.send_raw(&vec![b'x'; 3 << 20]);
    let deadline = Instant::now() + Duration::from_secs(30);
    while slow.0.get_mut().write_all(b"x").is_ok() {
        assert!(Instant::now() < deadline, "not cut off");
        assert_eq!(steady.say("PING"), pong());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(silent.is_closed());
    assert_eq!(steady.say("PING"), pong());
}

#[test]
fn a_client_without_the_password_has_nothing_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { password: Some("secret".into()), ..small() };
    let server = Server::start(filled(&folder), options).unwrap();
    let (frame, said) = large("user:2", 2 << 20);
    let mut client = Client::new(&server);
    client.send_raw(&frame);
    client.send(&[b"AUTH", b"secret"]);
    assert!(client.reply().error().contains("Protocol error: a request of at least"));
    assert!(client.is_closed());
    let mut client = Client::new(&server);
    client.send(&[b"AUTH", b"secret"]);
    client.send_raw(&frame);
    assert_eq!(client.reply(), ok());
    assert_eq!(client.reply().error(), said);
    assert_eq!(client.say("PING"), pong());
}
