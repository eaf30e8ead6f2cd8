//! Robustness of a server: moves between commits, slow clients, a full disk.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::*;
use embedrock_core::config::{StoreOptions, TableSpec};
use embedrock_core::{NonFinite, PutBatch, StorageKind, Store};
use embedrock_server::{Options, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn put(store: &Store, keys: &[u64], value: f32) {
    let table = store.find_table("user").unwrap();
    let values = vec![value; keys.len() * DIM];
    let batch = PutBatch {
        table,
        keys,
        values: &values,
        state: None,
        reset_state: false,
        non_finite: NonFinite::Refuse,
    };
    store.put(&[batch]).unwrap();
}

/// A store whose rows are all equal at each of the steps 7 to 10, to the step; and a reader of it.
fn with_steps(folder: &TempDir, step: Option<u64>) -> (Store, Store) {
    drop(filled(folder));
    let path = folder.path().join("store");
    let writing = StoreOptions { keep: 4, ..options_of_store(false) };
    let writer = Store::open(&path, writing).unwrap();
    let keys: Vec<u64> = (0..IDS).collect();
    for step in 8..11 {
        put(&writer, &keys, step as f32);
        writer.commit(step, "", &[("dense", b"weights")]).unwrap();
    }
    let reading = StoreOptions { step, ..options_of_store(true) };
    (writer, Store::open(path, reading).unwrap())
}

fn health(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn with_metrics() -> Options {
    Options { metrics: Some("127.0.0.1:0".into()), ..options() }
}

fn step_of(reply: &Reply) -> i64 {
    let Reply::Array(pairs) = reply else { panic!("no commit: {reply:?}") };
    let Reply::Integer(step) = pairs[1] else { panic!("no step: {reply:?}") };
    step
}

/// The row of key 3, whose values are all equal.
fn seen(client: &mut Client) -> f32 {
    let (_, rows) = pulled(&client.say("EMB.PULL user 3 5 7"));
    assert!(rows.iter().all(|value| *value == rows[0]), "rows of two commits: {rows:?}");
    rows[0]
}

#[test]
fn clients_are_served_while_the_store_moves_and_see_one_commit_in_a_reply() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, reader) = with_steps(&folder, None);
    let server = Server::start(reader, options()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pulling = || {
            let (mut client, mut last, mut pulls) = (Client::new(&server), 0.0, 0u32);
            while !is_over.load(Ordering::Relaxed) {
                let value = seen(&mut client);
                assert!(value >= last, "{value} after {last}");
                (last, pulls) = (value, pulls + 1);
            }
            pulls
        };
        let pullers: Vec<_> = (0..2).map(|_| scope.spawn(pulling)).collect();
        let mut client = Client::new(&server);
        let keys: Vec<u64> = (0..IDS).collect();
        for step in 11..60 {
            put(&writer, &keys, step as f32);
            writer.commit(step, "", &[]).unwrap();
            assert_eq!(step_of(&client.say("EMB.REFRESH")), step as i64);
            assert_eq!(seen(&mut client), step as f32);
        }
        is_over.store(true, Ordering::Relaxed);
        for puller in pullers {
            assert!(puller.join().unwrap() > 0);
        }
    });
}

/// Waits until another server, which looks for newer commits as often, has moved to this one and to
/// one more behind it: by then a server that does follow has had the time for it.
fn another_follows(folder: &TempDir, writer: &Store, every: Option<Duration>, newest: u64) {
    let reader = Store::open(folder.path().join("store"), options_of_store(true)).unwrap();
    let server = Server::start(reader, Options { refresh_every: every, ..options() }).unwrap();
    let mut client = Client::new(&server);
    let until = Instant::now() + Duration::from_secs(20);
    for step in [newest, newest + 1] {
        put(writer, &(0..IDS).collect::<Vec<u64>>(), step as f32);
        writer.commit(step, "", &[]).unwrap();
        while seen(&mut client) != step as f32 {
            assert!(Instant::now() < until, "the other server does not follow");
        }
    }
}

#[test]
fn a_server_switches_to_a_kept_commit_and_stays_until_it_is_told_to_follow() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, reader) = with_steps(&folder, None);
    let every = Some(Duration::from_millis(20));
    let server = Server::start(reader, Options { refresh_every: every, ..with_metrics() }).unwrap();
    let mut client = Client::new(&server);
    assert!(health(&server).ends_with("ok\ncommit step 10, follows\n"), "{}", health(&server));
    for step in [8, 9, 8, 8] {
        assert_eq!(step_of(&client.say(&format!("EMB.SWITCH {step}"))), step);
        assert_eq!(seen(&mut client), step as f32);
    }
    another_follows(&folder, &writer, every, 11);
    assert_eq!(seen(&mut client), 8.0);
    assert!(health(&server).ends_with("ok\ncommit step 8, pinned\n"), "{}", health(&server));
    let info = client.say("INFO store");
    let info = String::from_utf8_lossy(info.bulk()).into_owned();
    assert!(info.contains("commit_step:8\r\n") && info.contains("pinned:1\r\n"), "{info}");
    let Reply::Array(tables) = client.say("EMB.TABLES") else { panic!("no tables") };
    let Reply::Array(of_first) = &tables[0] else { panic!("no table") };
    let place = of_first.iter().position(|word| *word == Reply::Bulk(b"commit_step".into()));
    assert_eq!(of_first[place.unwrap() + 1], Reply::Integer(8));

    let refused = client.say("EMB.SWITCH 5");
    assert!(refused.error().starts_with("NOTFOUND there is no commit of step 5"), "{refused:?}");
    assert!(client.say("EMB.SWITCH x").error().contains("'x', expected a whole number"));
    assert_eq!(seen(&mut client), 8.0);
    assert!(health(&server).starts_with("HTTP/1.1 200"), "{}", health(&server));

    assert_eq!(step_of(&client.say("EMB.REFRESH")), 12);
    assert_eq!(pulled(&client.say("EMB.PULL user 1")).1, [12.0; DIM]);
    put(&writer, &[1], 13.0);
    writer.commit(13, "", &[]).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while pulled(&client.say("EMB.PULL user 1")).1 != [13.0; DIM] {
        assert!(Instant::now() < until, "the server does not follow");
    }
}

#[test]
fn a_server_that_is_started_at_a_step_stays_there() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, reader) = with_steps(&folder, Some(8));
    let every = Some(Duration::from_millis(20));
    let server = Server::start(reader, Options { refresh_every: every, ..with_metrics() }).unwrap();
    let mut client = Client::new(&server);
    another_follows(&folder, &writer, every, 11);
    assert_eq!(seen(&mut client), 8.0);
    assert!(health(&server).ends_with("commit step 8, pinned\n"));
    assert_eq!(step_of(&client.say("EMB.REFRESH")), 12);
    assert_eq!(seen(&mut client), 12.0);
}

// A reader that could not follow was closed, and answered so for ever.
#[test]
fn a_refresh_that_fails_is_told_and_the_server_follows_again_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, reader) = with_steps(&folder, None);
    let every = Some(Duration::from_millis(50));
    let server = Server::start(reader, Options { refresh_every: every, ..with_metrics() }).unwrap();
    let mut client = Client::new(&server);
    put(&writer, &[1], 11.0);
    writer.commit(11, "", &[]).unwrap();
    drop(writer);
    let rows = std::fs::read_dir(folder.path().join("store")).unwrap();
    let journal = rows
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("journal-"));
    let journal = journal.max().unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    // The newest commit was taken over; then the journal behind it is damaged, and mended.
    while pulled(&client.say("EMB.PULL user 1")).1 != [11.0; DIM] {
        assert!(Instant::now() < until, "the server does not follow");
    }
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &whole[..100]).unwrap();
    while !health(&server).starts_with("HTTP/1.1 503") {
        assert!(Instant::now() < until, "the damage is not told");
    }
    assert!(health(&server).contains("refresh: "), "{}", health(&server));
    assert_eq!(pulled(&client.say("EMB.PULL user 1")).1, [11.0; DIM]);
    std::fs::write(&journal, &whole).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !health(&server).starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < until, "it stays ill: {}", health(&server));
    }
    let writing = StoreOptions { keep: 4, ..options_of_store(false) };
    let writer = Store::open(folder.path().join("store"), writing).unwrap();
    put(&writer, &[1], 12.0);
    writer.commit(12, "", &[]).unwrap();
    while pulled(&client.say("EMB.PULL user 1")).1 != [12.0; DIM] {
        assert!(Instant::now() < until, "the server does not follow any more");
    }
}

// A client that sent or took a little now and then was waited for without end.
#[test]
fn who_sends_or_takes_a_few_bytes_now_and_then_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { stall: Duration::from_millis(500), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let (mut sender, mut taker) = (Client::new(&server), Client::new(&server));
    let mut steady = Client::new(&server);
    let large = vec![b'x'; 8 << 20];
    (0..4).for_each(|_| taker.send(&[b"ECHO", &large]));
    sender.send_raw(b"*2\r\n$4\r\nECHO\r\n$1000000\r\n");
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut is_cut = [false; 2];
    // The sockets hold more bytes than are taken in this time.
    taker.0.get_ref().set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut byte = [0];
    while is_cut != [true; 2] {
        assert!(Instant::now() < deadline, "not cut off: {is_cut:?} of sender and taker");
        is_cut[0] |= sender.0.get_mut().write_all(b"x").is_err();
        // The taker's socket was closed with bytes in it once its side cannot send any more.
        let _ = taker.0.get_mut().read(&mut byte);
        // A whole request each time, so that only what it takes can be too slow.
        is_cut[1] |= taker.0.get_mut().write_all(b"PING\r\n").is_err();
        assert_eq!(steady.say("PING"), Reply::Simple("PONG".into()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_takes_a_large_reply_steadily_gets_it_however_long_it_takes() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { stall: Duration::from_millis(300), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut client = Client::new(&server);
    let large = vec![b'x'; 16 << 20];
    client.send(&[b"ECHO", &large]);
    let (mut part, mut got) = (vec![0; 256 << 10], 0);
    let begin = Instant::now();
    while got < large.len() {
        got += client.0.get_mut().read(&mut part).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begin.elapsed() > Duration::from_millis(600), "it took {:?}", begin.elapsed());
}

#[test]
fn a_full_disk_is_told_to_who_writes_and_all_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(&folder));
    let bound = StoreOptions { max_disk_bytes: Some(6 << 20), ..options_of_store(false) };
    let store = Store::open(folder.path().join("store"), bound).unwrap();
    let server = Server::start(store, options()).unwrap();
    let (mut pusher, mut other) = (Client::new(&server), Client::new(&server));
    let mut refusal = None;
    for round in 0..2000u64 {
        let keys: Vec<u64> = (round * 1000..(round + 1) * 1000).map(|k| k + IDS).collect();
        let rows = bytes(&vec![round as f32; keys.len() * DIM]);
        let reply = pusher.call(&[b"EMB.PUSH", b"item", &packed(&keys), &rows]);
        assert_eq!(other.say("GET user:2").bulk(), bytes(&row(0, 2)));
        if let Reply::Error(text) = reply {
            refusal = Some(text);
            break;
        }
    }
    let refusal = refusal.expect("6 MB hold so many rows");
    assert!(refusal.starts_with("FULL ") && refusal.contains("max_disk_bytes"), "{refusal}");
    assert_eq!(pulled(&pusher.say("EMB.PULL item 2")).1, row(1, 2));
    assert!(matches!(other.say("EMB.COMMIT"), Reply::Array(_)));
    assert_eq!(other.say("PING"), Reply::Simple("PONG".into()));
    server.stop().unwrap();
}

#[test]
fn a_full_region_is_told_to_who_writes_and_all_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder);
    let small = TableSpec { storage: StorageKind::Pmem, capacity: Some(4), ..spec("small", None) };
    store.table(&small).unwrap();
    let server = Server::start(store, options()).unwrap();
    let (mut pusher, mut other) = (Client::new(&server), Client::new(&server));
    let rows = |keys: &[u64]| bytes(&keys.iter().flat_map(|key| row(2, *key)).collect::<Vec<_>>());
    let mut push = |keys: &[u64]| pusher.call(&[b"EMB.PUSH", b"small", &packed(keys), &rows(keys)]);
    assert!(matches!(push(&[1, 2, 3]), Reply::Array(_)));
    let refused = push(&[3, 4, 5]);
    for words in ["FULL ", "'small'", "for 4", "embedrock resize STORE 'small' --capacity 5"] {
        assert!(refused.error().contains(words), "{words} is not in {refused:?}");
    }
    // Nothing of it was taken, what fits is taken on, and other tables know nothing of it.
    assert_eq!(other.say("EMB.PULL small 3 4 5"), other.say("EMB.PULL small 3 98 99"));
    assert!(matches!(push(&[3, 4]), Reply::Array(_)));
    assert_eq!(pulled(&other.say("EMB.PULL small 4")), (vec![], row(2, 4)));
    assert_eq!(other.call(&[b"SET", b"user:1", &bytes(&row(0, 1))]), ok());
    let gradients = bytes(&[1.0; 2 * DIM]);
    let update = |name: &[u8], keys: &[u64]| -> Vec<Vec<u8>> {
        let keys = packed(keys);
        let said: [&[u8]; 6] = [b"EMB.UPDATE", name, &keys, &gradients, b"LR", b"1"];
        said.map(<[u8]>::to_vec).to_vec()
    };
    let mut say =
        |said: Vec<Vec<u8>>| other.call(&said.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert!(say(update(b"small", &[1, 77])).error().starts_with("FULL "));
    assert!(matches!(say(update(b"user", &[1, 2])), Reply::Array(_)));
    assert!(matches!(other.say("EMB.COMMIT"), Reply::Array(_)));
    server.stop().unwrap();
}

#[test]
fn a_client_of_tls_is_told_that_the_server_does_not_encrypt() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    client.send_raw(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]);
    assert!(client.reply().error().contains("a client speaks TLS"));
    assert!(client.is_closed());
}

#[test]
fn values_that_are_no_numbers_are_refused_in_the_words_of_the_protocol() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    let rows = bytes(&[f32::NAN; DIM]);
    let refused = client.call(&[b"EMB.PUSH", b"user", &packed(&[1]), &rows]);
    assert!(refused.error().starts_with("NONFINITE "), "{refused:?}");
    assert!(refused.error().contains("NONFINITE SKIP"), "{refused:?}");
    client.say("EMB.PULL user 1 2 3");
    let info = client.say("INFO stats");
    let info = String::from_utf8_lossy(info.bulk()).into_owned();
    assert!(info.contains("keyspace_hits:1\r\nkeyspace_misses:2\r\n"), "{info}");
}

// A web page can have a browser send a request over HTTP whose body is a command.
#[test]
fn what_a_browser_sends_runs_no_command() {
    let folder = tempfile::tempdir().unwrap();
    let store = filled(&folder);
    let server = Server::start(store, options()).unwrap();
    let set = request(&[b"SET", b"user:2", &bytes(&row(9, 9))]);
    for line in ["POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"] {
        let mut browser = Client::new(&server);
        browser.send_raw(&[line.as_bytes(), b"Content-Length: 99\r\n\r\n", &set].concat());
        let mut said = String::new();
        let _ = browser.0.read_to_string(&mut said);
        assert!(!said.contains("+OK"), "{said}");
    }
    assert_eq!(Client::new(&server).say("GET user:2").bulk(), bytes(&row(0, 2)));
}

// Each connection was bounded, and ten thousand of them were not.
#[test]
fn queues_of_all_connections_together_are_bounded() {
    const QUEUES: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let options = Options { max_request_bytes: 4096, ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let large = vec![b'x'; 3900];
    let queued = || Reply::Simple("QUEUED".into());
    let fill = |client: &mut Client| {
        assert_eq!(client.say("MULTI"), ok());
        client.call(&[b"ECHO", &large])
    };
    let mut clients: Vec<Client> = (0..QUEUES).map(|_| Client::new(&server)).collect();
    clients.iter_mut().for_each(|client| assert_eq!(fill(client), queued()));
    let mut late = Client::new(&server);
    let refused = fill(&mut late);
    assert!(refused.error().starts_with("ERR more than 65536 bytes between MULTI"), "{refused:?}");
    assert!(refused.error().contains("larger --max-request-bytes"), "{refused:?}");
    assert_eq!(late.say("PING"), queued());
    assert!(late.say("EXEC").error().starts_with("EXECABORT "));
    // One ends with its transaction, one by giving it up, one with its connection, one by an error.
    assert_eq!(clients[0].say("EXEC"), Reply::Array(vec![Reply::Bulk(large.clone())]));
    assert_eq!(clients[1].say("DISCARD"), ok());
    drop(clients.swap_remove(2));
    assert!(clients[3].say("NONE").error().starts_with("ERR unknown command"));
    let mut others: Vec<Client> = (0..4).map(|_| Client::new(&server)).collect();
    for client in &mut others {
        let until = Instant::now() + Duration::from_secs(20);
        // A connection that was closed is noticed a moment later.
        while fill(client) != queued() {
            assert!(Instant::now() < until, "the room of a queue did not come back");
            assert_eq!(client.say("DISCARD"), ok());
        }
    }
    assert!(fill(&mut late).error().contains("of all connections"));
}
