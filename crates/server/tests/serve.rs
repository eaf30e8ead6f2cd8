//! A server with a real store behind real sockets: what each command does, and what bad input does.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::*;
use embedrock_core::{NonFinite, PutBatch, Store};
use embedrock_server::{Options, Server};
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn rows_come_in_every_form_and_what_was_never_written_is_told() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(&folder));
    let store = Store::open(folder.path().join("store"), options_of_store(true)).unwrap();
    let server = Server::start(store, options()).unwrap();
    let mut client = Client::new(&server);
    let initial = vec![0.5; DIM];

    let rows = [row(0, 4), initial.clone(), row(0, 2), row(0, 4)].concat();
    let expected = (vec![1], rows);
    assert_eq!(pulled(&client.say("EMB.PULL user 4 3 2 4")), expected);
    assert_eq!(pulled(&client.call(&[b"EMB.PULLB", b"user", &packed(&[4, 3, 2, 4])])), expected);
    assert_eq!(pulled(&client.call(&[b"emb.pullb", b"item", b""])), (vec![], vec![]));
    let rows = [initial.clone(), row(1, 6)].concat();
    assert_eq!(pulled(&client.say("EMB.PULL item -1 6")), (vec![0], rows));

    assert_eq!(client.say("GET user:000008").bulk(), bytes(&row(0, 8)));
    assert_eq!(client.say("GET user:9"), Reply::Null);
    let value = |table, key| Reply::Bulk(bytes(&row(table, key)));
    let mixed = [value(0, 2), value(1, 2), Reply::Null, value(1, 4), value(0, 8)];
    let asked = "MGET user:2 item:2 item:7 item:4 user:8";
    assert_eq!(client.say(asked), Reply::Array(mixed.to_vec()));
    assert_eq!(client.say("MGET item:2"), Reply::Array(vec![value(1, 2)]));
    server.stop().unwrap();
    assert!(client.is_closed());
}

#[test]
fn a_pipeline_is_answered_in_order_and_sees_its_own_writes() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    let (new, keys) = (vec![9.0; DIM], packed(&[3]));
    let mut stream = Vec::new();
    for _ in 0..50 {
        stream.extend(request(&[b"EMB.PULLB", b"user", &keys]));
        stream.extend(request(&[b"EMB.PUSH", b"user", &keys, &bytes(&new)]));
        stream.extend(request(&[b"GET", b"user:3"]));
        stream.extend(request(&[b"GET", b"nobody:3"]));
        stream.extend(request(&[b"SET", b"user:3", &bytes(&[1.0; DIM])]));
        stream.extend(request(&[b"PING"]));
    }
    client.send_raw(&stream);
    for turn in 0..50 {
        let before = if turn == 0 { (vec![0], vec![0.5; DIM]) } else { (vec![], vec![1.0; DIM]) };
        assert_eq!(pulled(&client.reply()), before);
        assert!(matches!(client.reply(), Reply::Array(counts) if counts[1] == Reply::Integer(1)));
        assert_eq!(client.reply().bulk(), bytes(&new));
        assert!(client.reply().error().starts_with("NOTFOUND no table 'nobody'"));
        assert_eq!(client.reply(), ok());
        assert_eq!(client.reply(), Reply::Simple("PONG".into()));
    }
}

#[test]
fn gradients_are_one_step_and_equal_keys_are_summed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    let gradients = bytes(&[1.0; 3 * DIM]);
    let update: &[&[u8]] =
        &[b"EMB.UPDATE", b"item", &packed(&[2, 4, 2]), &gradients, b"LR", b"0.5"];
    let counts = client.call(update);
    let Reply::Array(counts) = counts else { panic!("{counts:?}") };
    assert_eq!(counts[1], Reply::Integer(2));
    let stepped = |key, by: f32| row(1, key).iter().map(|v| v - by).collect::<Vec<_>>();
    let (_, rows) = pulled(&client.say("EMB.PULL item 2 4"));
    assert_eq!(rows, [stepped(2, 1.0), stepped(4, 0.5)].concat());

    let without = client.call(&update[..4]);
    assert!(without.error().contains("takes LR"), "{without:?}");
    let cut_short = client.call(&update[..5]);
    assert!(cut_short.error().contains("LR has no value"), "{cut_short:?}");
    let bad = client.call(&[update, &[b"SPEED", b"1"]].concat());
    assert!(bad.error().contains("no option 'SPEED'"), "{bad:?}");
    let no_numbers = bytes(&[f32::NAN; 3 * DIM]);
    let nan = [&update[..3], &[&no_numbers], &update[4..]].concat();
    assert!(client.call(&nan).error().starts_with("NONFINITE "));
    assert_eq!(pulled(&client.say("EMB.PULL item 2")).1, stepped(2, 1.0));
}

#[test]
fn a_commit_is_durable_and_keeps_what_a_trainer_has_put_into_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    assert_eq!(client.call(&[b"SET", b"user:1", &bytes(&[3.0; DIM])]), ok());
    // Requests behind a commit wait for it, in their order.
    client.send_raw(b"EMB.COMMIT 40\r\nPING\r\n");
    let Reply::Array(commit) = client.reply() else { panic!("no commit") };
    assert_eq!(commit[1], Reply::Integer(40));
    assert_eq!(client.reply(), Reply::Simple("PONG".into()));
    assert!(client.say("EMB.COMMIT -1").error().contains("'-1', expected a whole number"));
    assert!(client.say("EMB.COMMIT 9223372036854775808").error().contains("2^63 - 1"));
    let refused = client.say("EMB.COMMIT 39");
    assert!(refused.error().starts_with("MISUSE a commit of step 39, the last one is of step 40"));
    assert!(client.say("EMB.REFRESH").error().contains("only one that reads"));
    assert_eq!(client.call(&[b"SET", b"user:1", &bytes(&[4.0; DIM])]), ok());
    server.stop().unwrap();
    drop(server);

    let store = Store::open(folder.path().join("store"), options_of_store(true)).unwrap();
    let last = store.last_commit().unwrap();
    assert_eq!((last.step, last.meta.as_str()), (41, "\"kept\""));
    assert_eq!(store.state().unwrap(), [("dense".to_owned(), b"weights".to_vec())]);
    let server = Server::start(store, options()).unwrap();
    assert_eq!(Client::new(&server).say("GET user:1").bulk(), bytes(&[4.0; DIM]));
}

#[test]
fn a_reader_follows_the_commits_of_a_writer_and_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let writer = filled(&folder);
    let reader = Store::open(folder.path().join("store"), options_of_store(true)).unwrap();
    let server = Server::start(reader, options()).unwrap();
    let mut client = Client::new(&server);
    let refused = client.call(&[b"SET", b"user:1", &bytes(&[3.0; DIM])]);
    assert!(refused.error().starts_with("READONLY "), "{refused:?}");
    assert!(client.say("EMB.COMMIT").error().starts_with("READONLY "));
    assert!(client.say("EMB.PULL other 1").error().starts_with("NOTFOUND "));

    writer.table(&spec("other", None)).unwrap();
    writer.commit(8, "", &[]).unwrap();
    let Reply::Array(moved) = client.say("EMB.REFRESH") else { panic!("no commit") };
    assert_eq!(moved[1], Reply::Integer(8));
    assert_eq!(client.say("EMB.REFRESH"), Reply::Null);
    assert_eq!(pulled(&client.say("EMB.PULL other 1")), (vec![0], vec![0.5; DIM]));
}

#[test]
fn a_row_that_goes_is_missing_after_the_refresh_where_all_were_there() {
    let folder = tempfile::tempdir().unwrap();
    let writer = filled(&folder);
    let table = writer.find_table("user").unwrap();
    let keys: Vec<u64> = (0..IDS).collect();
    let values = vec![1.0; keys.len() * DIM];
    let non_finite = NonFinite::Refuse;
    let (keys, values) = (&keys[..], &values[..]);
    let all = PutBatch { table, keys, values, state: None, reset_state: false, non_finite };
    writer.put(&[all]).unwrap();
    writer.commit(8, "", &[]).unwrap();
    let reader = Store::open(folder.path().join("store"), options_of_store(true)).unwrap();
    let server = Server::start(reader, options()).unwrap();
    let mut client = Client::new(&server);
    assert_eq!(pulled(&client.say("EMB.PULL user 3 5")), (vec![], vec![1.0; 2 * DIM]));
    assert_eq!(client.say("MGET user:3 item:3"), {
        Reply::Array(vec![Reply::Bulk(bytes(&[1.0; DIM])), Reply::Null])
    });
    writer.delete(table, &[5]).unwrap();
    writer.commit(9, "", &[]).unwrap();
    client.say("EMB.REFRESH");
    let (missing, rows) = pulled(&client.say("EMB.PULL user 3 5"));
    assert_eq!((missing, &rows[DIM..]), (vec![1], &[0.5; DIM][..]));
}

#[test]
fn bad_requests_get_errors_that_name_what_is_wrong_and_the_next_one_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { max_keys: 8, max_reply_bytes: 100, ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut client = Client::new(&server);
    for (line, said) in [
        ("FLUSHALL", "ERR unknown command 'FLUSHALL'"),
        ("GET", "ERR wrong number of arguments for 'GET': 0, expected 1"),
        ("GET user", "expected table:key"),
        ("GET user:x", "'x' is no key"),
        ("EMB.PULL user 1000", "KEYRANGE key 1000 of table 'user', expected 0 to 999"),
        ("EMB.PULL user 1 2 3 4 5 6 7 8 9", "9 keys, expected at most 8"),
        ("EMB.PULL user 1 2 3 4 5 6 7 8", "a reply of 172 bytes, expected at most 100"),
        ("EMB.PULL nobody 1", "NOTFOUND no table 'nobody'"),
        ("EMB.PULLB user 123", "3 bytes, expected a multiple of 8"),
        ("SET user:1 abc", "MISUSE a row of 3 bytes for 1 keys, table 'user' takes 16"),
        ("SET user:1 abc EX 5", "rows do not expire"),
        ("SELECT 1", "one store, number 0"),
        ("AUTH x", "no password"),
        ("HELLO 4", "NOPROTO"),
        ("CONFIG SET save 1", "configured when it is started"),
        ("MGET user:1 item:x", "'x' is no key"),
    ] {
        let reply = client.say(line);
        assert!(reply.error().contains(said), "{line}: {reply:?}");
    }
    // Refused requests have left nothing behind.
    assert_eq!(pulled(&client.say("EMB.PULL user 2")), (vec![], row(0, 2)));
}

#[test]
fn malformed_frames_end_their_connection_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { max_request_bytes: 1000, ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut other = Client::new(&server);
    for (frame, said) in [
        (&b"*1\r\n*1\r\n$4\r\nPING\r\n"[..], "expected '$'"),
        (b"*x\r\n", "invalid multibulk length"),
        // More than the server reads of a request that it refuses.
        (b"*2\r\n$3\r\nGET\r\n$600000000\r\n", "expected at most 1000"),
    ] {
        let mut client = Client::new(&server);
        client.send_raw(b"PING\r\n");
        client.send_raw(frame);
        assert_eq!(client.reply(), Reply::Simple("PONG".into()));
        let reply = client.reply();
        assert!(reply.error().contains(said), "{reply:?}");
        assert!(client.is_closed());
        assert_eq!(other.say("PING"), Reply::Simple("PONG".into()));
    }
}

#[test]
fn silence_amid_a_request_ends_a_connection_and_idle_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { stall: Duration::from_millis(300), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let (mut half, mut idle) = (Client::new(&server), Client::new(&server));
    assert_eq!(idle.say("PING"), Reply::Simple("PONG".into()));
    half.send_raw(b"*2\r\n$3\r\nGET\r\n$6\r\nuse");
    assert!(half.is_closed());
    assert_eq!(idle.say("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn who_gives_no_password_or_takes_no_reply_is_cut_off_whatever_else_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { stall: Duration::from_millis(300), password: Some("secret".into()), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let (outside, mut inside) = (Client::new(&server), Client::new(&server));
    let mut steady = Client::new(&server);
    for client in [&mut inside, &mut steady] {
        assert_eq!(client.say("AUTH secret"), ok());
    }
    let large = vec![b'x'; 8 << 20];
    (0..4).for_each(|_| inside.send(&[b"ECHO", &large]));
    let deadline = Instant::now() + Duration::from_secs(10);
    for mut client in [outside, inside] {
        while client.0.get_mut().write_all(b"PING\r\n").is_ok() {
            assert!(Instant::now() < deadline, "a client that stalls is not cut off");
            assert_eq!(steady.say("PING"), Reply::Simple("PONG".into()));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn without_the_password_nothing_is_served_and_guessing_ends() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { password: Some("secret".into()), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut client = Client::new(&server);
    assert!(client.say("GET user:2").error().starts_with("NOAUTH"));
    assert!(client.say("HELLO 3").error().starts_with("NOAUTH"));
    for _ in 0..7 {
        assert!(client.say("AUTH guess").error().starts_with("WRONGPASS"));
    }
    assert!(client.say("AUTH guess").error().starts_with("WRONGPASS"));
    assert!(client.is_closed());

    let mut client = Client::new(&server);
    assert_eq!(client.say("AUTH default secret"), ok());
    assert_eq!(client.say("GET user:2").bulk(), bytes(&row(0, 2)));
    assert_eq!(client.say("RESET"), Reply::Simple("RESET".into()));
    assert!(client.say("GET user:2").error().starts_with("NOAUTH"));
    assert!(matches!(client.say("HELLO 3 AUTH default secret"), Reply::Array(_)));
    assert_eq!(client.say("GET user:3"), Reply::Null);

    // A large frame is refused before it came.
    let mut client = Client::new(&server);
    client.send_raw(b"*2\r\n$4\r\nAUTH\r\n$100000\r\n");
    assert!(client.reply().error().contains("expected at most 16384"));
}

#[test]
fn a_client_that_takes_no_replies_holds_up_nobody_and_gets_them_all_later() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { threads: 1, max_reply_bytes: 1 << 20, ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let keys: Vec<u64> = (0..IDS).collect();
    let one = request(&[b"EMB.PULLB", b"user", &packed(&keys)]);
    // Replies of 16 MB, which no socket buffer takes.
    let mut slow = Client::new(&server);
    let mut sender = slow.0.get_ref().try_clone().unwrap();
    let sending =
        std::thread::spawn(move || (0..1000).for_each(|_| sender.write_all(&one).unwrap()));
    let mut other = Client::new(&server);
    for _ in 0..100 {
        assert_eq!(pulled(&other.say("EMB.PULL user 2")).1, row(0, 2));
    }
    let mut first = None;
    for _ in 0..1000 {
        let reply = slow.reply();
        assert_eq!(*first.get_or_insert_with(|| reply.clone()), reply);
    }
    sending.join().unwrap();
    assert_eq!(pulled(&first.unwrap()).0.len(), 500);
}

// The socket was closed before its place was given back: a client that came again at once was
// refused.
#[test]
fn who_sees_the_end_of_its_connection_may_come_again_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let one = Options { max_connections: 1, ..options() };
    let server = Server::start(filled(&folder), one).unwrap();
    for _ in 0..1000 {
        let mut client = Client::new(&server);
        assert_eq!(client.say("QUIT"), ok());
        assert!(client.is_closed());
    }
}

#[test]
fn connections_beyond_the_limit_are_told_and_a_thousand_work() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { max_connections: 1000, ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut clients: Vec<Client> = (0..1000).map(|_| Client::new(&server)).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&[b"GET", format!("user:{}", n / 2 * 2).as_bytes()]);
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.reply().bulk(), bytes(&row(0, n as u64 / 2 * 2)));
    }
    let mut beyond = Client::new(&server);
    assert!(beyond.reply().error().contains("max number of clients"));
    drop(clients);
    // Their ends are seen in some turn; the place is free then.
    let is_served = |_| {
        let mut client = Client::new(&server);
        client.0.get_mut().write_all(b"PING\r\n").is_ok() && {
            let mut line = String::new();
            client.0.read_line(&mut line).is_ok() && line == "+PONG\r\n"
        }
    };
    assert!((0..10_000).any(is_served));
}

#[test]
fn garbage_does_not_end_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let names: [&[u8]; 8] =
        [b"EMB.PULLB", b"MGET", b"EMB.PUSH", b"SET", b"HELLO", b"EMB.UPDATE", b"INFO", b"CLIENT"];
    for _ in 0..300 {
        let mut client = Client::new(&server);
        let mut stream = Vec::new();
        for _ in 0..random() % 8 {
            let count = random() % 5;
            let mut arguments = vec![names[random() as usize % 8].to_vec()];
            for _ in 0..count {
                let length = random() as usize % 40;
                arguments.push((0..length).map(|_| random() as u8).collect());
            }
            let borrowed: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            stream.extend(request(&borrowed));
        }
        if random() % 2 == 0 && !stream.is_empty() {
            let at = random() as usize % stream.len();
            stream[at] = random() as u8;
        }
        // The server may have closed the connection at the first bad frame.
        let _ = client.0.get_mut().write_all(&stream);
        let _ = client.0.get_mut().shutdown(std::net::Shutdown::Write);
        let mut replies = Vec::new();
        let _ = client.0.read_to_end(&mut replies);
    }
    assert_eq!(Client::new(&server).say("PING"), Reply::Simple("PONG".into()));
    assert!(server.is_running());
    server.stop().unwrap();
}

#[test]
fn a_client_that_ends_its_side_still_gets_its_replies() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    client.send_raw(b"GET user:2\r\nEMB.COMMIT\r\nPING\r\nGET us");
    client.0.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.reply().bulk(), bytes(&row(0, 2)));
    assert!(matches!(client.reply(), Reply::Array(_)));
    assert_eq!(client.reply(), Reply::Simple("PONG".into()));
    assert!(client.is_closed());
}

#[test]
fn monitors_read_metrics_and_health() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { metrics: Some("127.0.0.1:0".into()), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut client = Client::new(&server);
    client.say("EMB.PULL user 1 2");
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let metrics = ask("GET /metrics");
    for line in [
        "HTTP/1.1 200 OK",
        "embedrock_commands_total{command=\"emb.pull\"} 1\n",
        "embedrock_rows_read_total 2\n",
        "embedrock_rows_missing_total 1\n",
        "embedrock_connections 1",
        "embedrock_store_rows 1000",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert_eq!(metrics.matches("# EOF").count(), 1);
    assert!(ask("GET /healthz").ends_with("\r\n\r\nok\ncommit step 7, writes\n"));
    assert!(ask("GET /other").starts_with("HTTP/1.1 404"));
    assert!(ask("POST /metrics").starts_with("HTTP/1.1 405"));
    server.stop().unwrap();
}

#[test]
fn health_follows_a_refresh_that_a_client_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    drop(filled(&folder));
    let (path, away) = (folder.path().join("store"), folder.path().join("away"));
    let store = Store::open(&path, options_of_store(true)).unwrap();
    let options = Options { metrics: Some("127.0.0.1:0".into()), ..options() };
    let server = Server::start(store, options).unwrap();
    let mut client = Client::new(&server);
    let health = || {
        let mut stream = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    std::fs::rename(&path, &away).unwrap();
    let refused = client.say("EMB.REFRESH");
    assert!(!refused.error().is_empty());
    assert!(health().starts_with("HTTP/1.1 503"), "{}", health());
    assert!(health().contains("away now, and none is in its place"), "{}", health());
    std::fs::rename(&away, &path).unwrap();
    assert_eq!(client.say("EMB.REFRESH"), Reply::Null);
    assert!(health().starts_with("HTTP/1.1 200"), "{}", health());
}

#[test]
fn a_monitor_that_trickles_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { metrics: Some("127.0.0.1:0".into()), ..options() };
    let server = Server::start(filled(&folder), options).unwrap();
    let mut stream = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
    // The server has taken the connection once it tells one that came later.
    stream.write_all(b"x").unwrap();
    let mut later = TcpStream::connect(server.metrics_address().unwrap()).unwrap();
    later.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    later.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let trickle = std::thread::spawn(move || {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(30) && stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let begin = Instant::now();
    server.stop().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    trickle.join().unwrap();
}

#[test]
fn what_tools_ask_for_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(filled(&folder), options()).unwrap();
    let mut client = Client::new(&server);
    assert!(matches!(client.say("CONFIG GET save"), Reply::Array(pair) if pair.len() == 2));
    assert_eq!(client.say("COMMAND DOCS"), Reply::Array(vec![]));
    let Reply::Array(commands) = client.say("COMMAND") else { panic!("no commands") };
    assert_eq!(client.say("COMMAND COUNT"), Reply::Integer(commands.len() as i64));
    assert!(matches!(client.say("CLIENT ID"), Reply::Integer(_)));
    assert_eq!(client.say("CLIENT SETINFO lib-name test"), ok());
    assert_eq!(client.say("CLIENT SETNAME me"), ok());
    assert_eq!(client.say("CLIENT GETNAME"), Reply::Bulk(b"me".to_vec()));
    let info = client.say("INFO server");
    assert!(String::from_utf8_lossy(info.bulk()).starts_with("# Server\r\nredis_version:"));
    let Reply::Array(tables) = client.say("EMB.TABLES") else { panic!("no tables") };
    assert_eq!(tables.len(), 2);
    assert_eq!(client.call(&[b"EMB.LOOKAHEAD", b"item", &packed(&[2, 4])]), ok());
    assert_eq!(pulled(&client.say("EMB.PULL item 2 4")).1, [row(1, 2), row(1, 4)].concat());
    assert_eq!(client.say("ECHO x"), Reply::Bulk(b"x".to_vec()));
    assert_eq!(client.say("QUIT"), ok());
    assert!(client.is_closed());
}
