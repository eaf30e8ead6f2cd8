//! Expectations of Redis tools and scrapers: fields by name, patterns, quotation marks, null for
//! things that cannot be there, and the reason of a refusal however much a client still sends.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::*;
use embedrock_server::{Options, Server};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The fields of `INFO`, of the sections that a line names.
fn info(client: &mut Client, line: &str) -> HashMap<String, String> {
    let reply = client.say(line);
    let text = String::from_utf8(reply.bulk().to_vec()).unwrap();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn config(client: &mut Client, line: &str) -> Vec<String> {
    let Reply::Array(pairs) = client.say(line) else { panic!("no pairs") };
    pairs.iter().step_by(2).map(|key| String::from_utf8(key.bulk().to_vec()).unwrap()).collect()
}

#[test]
fn info_has_the_fields_that_tools_ask_for_with_what_is_so() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    client.say("EMB.PULL user 2 3 4");
    assert_eq!(client.call(&[b"SET", b"user:9", &bytes(&row(0, 9))]), ok());
    let all = info(&mut client, "INFO");
    for (key, value) in [
        ("redis_mode", "standalone"),
        ("role", "master"),
        ("connected_slaves", "0"),
        ("loading", "0"),
        ("connected_clients", "1"),
        ("blocked_clients", "0"),
        ("total_commands_processed", "2"),
        ("keyspace_hits", "2"),
        ("keyspace_misses", "1"),
        ("rdb_changes_since_last_save", "1"),
        ("rdb_last_bgsave_status", "ok"),
        ("maxmemory", "16777216"),
        ("db0", "keys=1001,expires=0,avg_ttl=0"),
    ] {
        assert_eq!(all.get(key).map(String::as_str), Some(value), "{key} of {all:?}");
    }
    for key in [
        "redis_version",
        "process_id",
        "uptime_in_seconds",
        "instantaneous_ops_per_sec",
        "total_net_output_bytes",
    ] {
        assert!(all.contains_key(key), "{key} of {all:?}");
    }
    let number = |key: &str| all[key].parse::<u64>().unwrap();
    assert!((1..=number("maxmemory")).contains(&number("used_memory")));
    assert!(number("total_net_input_bytes") > 0);
    assert_eq!(all["run_id"].len(), 40);

    let one = info(&mut client, "INFO REPLICATION");
    assert!(one.contains_key("role") && !one.contains_key("redis_version"));
    let two = info(&mut client, "INFO replication cluster");
    assert_eq!((two["role"].as_str(), two["cluster_enabled"].as_str()), ("master", "0"));
    let role = [Reply::Bulk(b"master".to_vec()), Reply::Integer(0), Reply::Array(vec![])];
    assert_eq!(client.say("ROLE"), Reply::Array(role.to_vec()));
    let other = tempfile::tempdir().unwrap();
    let other = Server::start(filled(&other), options()).unwrap();
    let id = info(&mut Client::new(&other), "INFO server").remove("run_id");
    assert!(id.is_some() && id != all.get("run_id").cloned());
}

#[test]
fn settings_are_found_by_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    let found = config(&mut client, "CONFIG GET MAX*");
    let expected = ["maxclients", "maxmemory-clients", "maxmemory-policy", "max-keys"];
    assert_eq!(found[..4], expected);
    assert_eq!(config(&mut client, "CONFIG GET tcp-keepaliv? sav[d-f]"), ["save", "tcp-keepalive"]);
    assert_eq!(config(&mut client, "CONFIG GET nothing*").len(), 0);
    assert!(config(&mut client, "CONFIG GET *").len() > 10);
}

#[test]
fn words_between_quotation_marks_are_one_argument() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    client.send_raw(b"ECHO \"hello world\"\r\nECHO 'a b'\nECHO \"\\x00\\n\"\r\nPING\r\n");
    for expected in [&b"hello world"[..], b"a b", b"\0\n"] {
        assert_eq!(client.reply(), Reply::Bulk(expected.to_vec()));
    }
    assert_eq!(client.reply(), Reply::Simple("PONG".into()));
    client.send_raw(b"ECHO \"hello\r\n");
    assert_eq!(client.reply().error(), "ERR Protocol error: unbalanced quotes in request");
    assert!(client.is_closed());
}

// One id that a dense table does not have failed a whole MGET, with the rows of all others.
#[test]
fn an_id_beyond_a_dense_table_is_null_to_readers_and_an_error_to_writers() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    let value = |table, key| Reply::Bulk(bytes(&row(table, key)));
    client.send_raw(b"GET user:2\r\nGET user:1000\r\nGET user:-1\r\nGET user:4\r\n");
    let replies: Vec<Reply> = (0..4).map(|_| client.reply()).collect();
    assert_eq!(replies, [value(0, 2), Reply::Null, Reply::Null, value(0, 4)]);
    for (line, expected) in [
        ("MGET user:2 user:99999 user:4", vec![value(0, 2), Reply::Null, value(0, 4)]),
        ("MGET user:1000 user:3 user:1001", vec![Reply::Null; 3]),
        ("MGET user:-1", vec![Reply::Null]),
        (
            "MGET user:1000 item:2 user:4 item:1001",
            vec![Reply::Null, value(1, 2), value(0, 4), Reply::Null],
        ),
    ] {
        assert_eq!(client.say(line), Reply::Array(expected), "{line}");
    }
    let missing = info(&mut client, "INFO stats").remove("keyspace_misses");
    assert_eq!(missing.unwrap(), "9");
    for request in [
        &[&b"SET"[..], b"user:1000", &bytes(&row(0, 0))][..],
        &[b"MSET", b"user:1", &bytes(&row(0, 0)), b"user:1000", &bytes(&row(0, 0))],
        &[b"EMB.PULL", b"user", b"1000"],
        &[b"EMB.PULLB", b"user", &packed(&[1000])],
    ] {
        let reply = client.call(request);
        assert!(
            reply.error().starts_with("KEYRANGE ") && reply.error().contains("1000"),
            "{reply:?}"
        );
    }
}

#[test]
fn a_scraper_gets_the_format_that_it_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { metrics: Some("127.0.0.1:0".into()), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let ask = |accept: &str| {
        let mut stream = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for accept in ["Accept: text/plain\r\n", "Accept: */*\r\n"] {
        let plain = ask(accept);
        assert!(plain.contains("Content-Type: text/plain; version=0.0.4"), "{plain}");
        assert!(plain.contains("# TYPE embedrock_rows_read_total counter\n"), "{plain}");
        assert!(!plain.contains("# EOF"));
    }
    for accept in ["", "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n"] {
        let open = ask(accept);
        assert!(open.contains("Content-Type: application/openmetrics-text; version=1.0.0"));
        assert!(open.contains("# TYPE embedrock_rows_read counter\n"), "{open}");
        assert!(open.ends_with("# EOF\n"));
    }
}

// The connection was closed with bytes of the client unread, which resets it: the client saw that
// instead of the reason.
#[test]
fn a_client_that_still_sends_gets_the_reason_of_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let few = Options { max_request_bytes: 1 << 20, ..options() };
    let server = Server::start(filled(&folder), few).unwrap();
    // More than the buffers of both sockets take.
    for megabytes in [2, 40] {
        let mut client = Client::new(&server);
        client.send_raw(b"*3\r\n$3\r\nSET\r\n$6\r\nuser:7\r\n$600000000\r\n");
        client.send_raw(&vec![b'x'; megabytes << 20]);
        let reply = client.reply();
        assert!(reply.error().contains("expected at most 1048576"), "{reply:?}");
        assert!(client.is_closed());
    }
    let folder = tempfile::tempdir().unwrap();
    let few = Options { max_connections: 2, ..options() };
    let server = Server::start(filled(&folder), few).unwrap();
    let mut held: Vec<Client> = (0..2).map(|_| Client::new(&server)).collect();
    held.iter_mut().for_each(|client| assert_eq!(client.say("ECHO x").bulk(), b"x"));
    for _ in 0..5 {
        let mut beyond = Client::new(&server);
        beyond.send(&[b"ECHO", &vec![b'x'; 1 << 20]]);
        assert!(beyond.reply().error().contains("max number of clients"));
        assert!(beyond.is_closed());
    }
}

/// Requests for 48 MB of replies, 24 MB long: more than sockets hold of either.
fn large_pipeline() -> (usize, Vec<u8>) {
    let keys: Vec<u64> = (0..500).collect();
    (6_000, request(&[b"EMB.PULLB", b"user", &packed(&keys)]).repeat(6_000))
}

// Clients such as redis-py send all they have before they read anything: the server waited for
// them to read, they for it.
#[test]
fn a_client_that_sends_all_before_it_reads_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let stall = Duration::from_secs(10);
    // Half of it is for requests that wait, whose buffer doubles: 16 MiB and then 32.
    let options =
        Options { stall, max_reply_bytes: 1 << 20, client_memory: Some(128 << 20), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let (count, requests) = large_pipeline();
    let mut client = Client::new(&server);
    client.send_raw(&requests);
    let first = client.reply();
    assert_eq!(pulled(&first).1.len(), 500 * DIM);
    assert!((1..count).all(|_| client.reply() == first));
    assert_eq!(client.say("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn a_client_that_sends_more_than_is_kept_and_reads_nothing_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        stall: Duration::from_secs(1),
        max_reply_bytes: 1 << 20,
        max_request_bytes: 1 << 20,
        ..options()
    };
    let server = Server::start(filled(&folder), options).unwrap();
    let (count, requests) = large_pipeline();
    let mut client = Client::new(&server);
    client.send_raw(&requests);
    let mut replies = 0;
    let said = loop {
        match client.reply() {
            Reply::Error(said) => break said,
            reply => assert_eq!(pulled(&reply).1.len(), 500 * DIM),
        }
        replies += 1;
    };
    assert!(said.contains("read replies while sending"), "{said}");
    assert!((1..count).contains(&replies), "{replies} replies");
    assert!(client.is_closed());
}

#[test]
fn requests_and_replies_of_all_clients_together_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (reply, all) = (1 << 20, 4 << 20);
    let options =
        Options { max_reply_bytes: reply, client_memory: Some(all), threads: 2, ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut steady = Client::new(&server);
    let keys: Vec<u64> = (0..IDS).collect();
    let pull = request(&[b"EMB.PULLB", b"user", &packed(&keys)]);
    let mut greedy: Vec<TcpStream> = Vec::new();
    for _ in 0..12 {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_nonblocking(true).unwrap();
        greedy.push(stream);
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        for stream in &mut greedy {
            // If one was cut off, or takes no more, the others go on.
            let _ = stream.write(&pull.repeat(50));
        }
        let found = info(&mut steady, "INFO memory");
        let taken: usize = found["mem_clients_normal"].parse().unwrap();
        // A turn of each thread may go beyond it by the replies of one connection.
        assert!(taken <= all + 2 * 2 * reply, "{taken} bytes");
        assert_eq!(found["maxmemory_clients"], all.to_string());
        assert_eq!(pulled(&steady.say("EMB.PULL user 2")).1, row(0, 2));
        let clients: usize =
            info(&mut steady, "INFO clients")["connected_clients"].parse().unwrap();
        if clients < 13 {
            break;
        }
        assert!(Instant::now() < deadline, "nobody was cut off");
    }
    drop(greedy);
    let deadline = Instant::now() + Duration::from_secs(30);
    while info(&mut steady, "INFO memory")["mem_clients_normal"].parse::<usize>().unwrap() > 1 << 17
    {
        assert!(Instant::now() < deadline, "the memory was not given back");
    }
}
