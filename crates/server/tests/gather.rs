//! Replies in every mode of sending: the same bytes, whatever clients do with their sockets.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use embedrock_core::config::{Memory, StoreOptions, TableSpec};
use embedrock_core::{NonFinite, PutBatch, StorageKind, Store};
use embedrock_server::gather::{Gather, Mode};
use embedrock_server::{Options, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DIM: usize = 256;
const IDS: u64 = 2000;
/// One that lends rows, and one that does not.
const STORAGES: [StorageKind; 2] = [StorageKind::Log, StorageKind::Pmem];
const MODES: [Mode; 3] = [Mode::Copy, Mode::Vectored, Mode::ZeroCopy];

fn row(key: u64) -> Vec<f32> {
    match key.is_multiple_of(2) {
        true => (0..DIM as u64).map(|i| (key * 1000 + i) as f32).collect(),
        false => vec![0.5; DIM],
    }
}

/// Rows as replies have them.
static ROWS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| (0..IDS).map(|key| crate::common::bytes(&row(key))).collect());

/// A server of a table whose even keys have rows.
fn serve(folder: &TempDir, mode: Mode, change: impl FnOnce(&mut Options)) -> Server {
    serve_from(StorageKind::Log, folder, mode, change)
}

fn serve_from(
    storage: StorageKind,
    folder: &TempDir,
    mode: Mode,
    change: impl FnOnce(&mut Options),
) -> Server {
    let options = StoreOptions::new(Memory::Bytes(64 << 20));
    let store = Store::open(folder.path().join("store"), options).unwrap();
    let spec = TableSpec { embedding_dim: DIM, storage, ..crate::common::spec("user", Some(IDS)) };
    let table = store.table(&spec).unwrap();
    let keys: Vec<u64> = (0..IDS).step_by(2).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| row(*key)).collect();
    let (state, non_finite) = (None, NonFinite::Refuse);
    let batch =
        PutBatch { table, keys: &keys, values: &values, state, reset_state: false, non_finite };
    store.put(&[batch]).unwrap();
    let mut options = Options {
        threads: 1,
        commit_every: None,
        gather: Gather::Fixed(mode),
        ..Options::new("127.0.0.1:0")
    };
    change(&mut options);
    Server::start(store, options).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

fn request(keys: &[u64]) -> Vec<u8> {
    let packed = crate::common::packed(keys);
    let head = format!("*3\r\n$9\r\nEMB.PULLB\r\n$4\r\nuser\r\n${}\r\n", packed.len());
    let mut request = head.into_bytes();
    request.extend(packed);
    request.extend(b"\r\n");
    request
}

fn reply(keys: &[u64]) -> Vec<u8> {
    let missing: Vec<u32> =
        (0..keys.len() as u32).filter(|at| keys[*at as usize] % 2 == 1).collect();
    let length = 12 + 4 * missing.len() + keys.len() * DIM * 4;
    let mut bytes = format!("${length}\r\n").into_bytes();
    let header = [1, keys.len() as u32, missing.len() as u32].into_iter().chain(missing);
    header.for_each(|word| bytes.extend(word.to_le_bytes()));
    keys.iter().for_each(|key| bytes.extend_from_slice(&ROWS[*key as usize]));
    bytes.extend(b"\r\n");
    bytes
}

fn batch(number: u64, count: u64) -> Vec<u64> {
    (0..count).map(|i| (number * 7919 + i * 31) % IDS).collect()
}

fn pull(client: &mut TcpStream, keys: &[u64]) {
    client.write_all(&request(keys)).unwrap();
    let expected = reply(keys);
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).unwrap();
    assert!(got == expected, "{} keys", keys.len());
}

/// A number that `INFO` tells.
fn told(client: &mut TcpStream, name: &str) -> u64 {
    client.write_all(b"INFO\r\n").unwrap();
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let count = match client.read(&mut part) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(count > 0, "the server closed the connection");
        text.extend(&part[..count]);
        let head = text.windows(2).position(|two| two == b"\r\n").unwrap_or(0);
        let length = std::str::from_utf8(&text[..head]).ok().and_then(|text| text.get(1..));
        if length.and_then(|text| text.parse().ok()) == Some(text.len().saturating_sub(head + 4)) {
            break;
        }
    }
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:"))).unwrap();
    line.parse().unwrap()
}

#[test]
fn replies_are_the_same_in_every_mode() {
    for (storage, mode) in STORAGES.iter().flat_map(|s| MODES.map(|mode| (*s, mode))) {
        let folder = TempDir::new().unwrap();
        let server = serve_from(storage, &folder, mode, |_| ());
        let mut client = connect(&server);
        for (number, count) in [1, 2, 15, 16, 17, 100, 500, 1999].into_iter().enumerate() {
            pull(&mut client, &batch(number as u64, count));
        }
        // Many under way: replies of several requests go out together.
        let batches: Vec<Vec<u64>> = (0..50).map(|number| batch(number, 10 + number * 5)).collect();
        let all: Vec<u8> = batches.iter().flat_map(|keys| request(keys)).collect();
        client.write_all(&all).unwrap();
        for keys in &batches {
            let mut got = vec![0; reply(keys).len()];
            client.read_exact(&mut got).unwrap();
            assert!(got == reply(keys), "{mode:?}, {} keys", keys.len());
        }
        let sends = told(&mut client, "zero_copy_sends");
        assert_eq!(sends > 0, mode == Mode::ZeroCopy, "{mode:?}: {sends} sends");
        assert!(told(&mut client, "zero_copy_copied") <= sends);
        let lends = storage == StorageKind::Pmem && mode != Mode::Copy;
        assert_eq!(told(&mut client, "lent_pulls") > 0, lends, "{storage:?}, {mode:?}");
        server.stop().unwrap();
    }
}

#[test]
fn a_client_that_takes_nothing_holds_up_neither_others_nor_commits() {
    for mode in MODES {
        let folder = TempDir::new().unwrap();
        let server = serve(&folder, mode, |options| options.max_reply_bytes = 16 << 20);
        let (mut slow, mut client) = (connect(&server), connect(&server));
        let batches: Vec<Vec<u64>> = (0..30).map(|number| batch(number, 1500)).collect();
        let all: Vec<u8> = batches.iter().flat_map(|keys| request(keys)).collect();
        slow.write_all(&all).unwrap();
        let begin = Instant::now();
        for number in 0..20 {
            pull(&mut client, &batch(number, 300));
            client.write_all(b"EMB.COMMIT\r\n").unwrap();
            let mut byte = [0; 4];
            client.read_exact(&mut byte).unwrap();
            assert_eq!(&byte, b"*4\r\n", "{mode:?}");
            // `step`, its number, `sequence`, its number.
            let mut lines = 0;
            while lines < 6 {
                client.read_exact(&mut byte[..1]).unwrap();
                lines += usize::from(byte[0] == b'\n');
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(15), "{mode:?}: {:?}", begin.elapsed());
        for keys in &batches {
            let mut got = vec![0; reply(keys).len()];
            slow.read_exact(&mut got).unwrap();
            assert!(got == reply(keys), "{mode:?}");
        }
        server.stop().unwrap();
    }
}

#[test]
fn clients_that_leave_amid_a_reply_leave_nothing_behind() {
    for (storage, mode) in STORAGES.iter().flat_map(|s| MODES.map(|mode| (*s, mode))) {
        let folder = TempDir::new().unwrap();
        let server = serve_from(storage, &folder, mode, |_| ());
        for number in 0..40 {
            let mut leaves = connect(&server);
            (0..4).for_each(|at| leaves.write_all(&request(&batch(number + at, 1500))).unwrap());
            let mut part = vec![0; 1 + number as usize * 30_000];
            leaves.read_exact(&mut part).unwrap();
        }
        let mut client = connect(&server);
        pull(&mut client, &batch(1, 500));
        let begin = Instant::now();
        while told(&mut client, "connected_clients") > 1 {
            assert!(begin.elapsed() < Duration::from_secs(10), "{mode:?}: a connection stays");
            std::thread::sleep(Duration::from_millis(10));
        }
        server.stop().unwrap();
    }
}

#[test]
fn a_client_that_never_takes_its_last_reply_is_cut_off_and_stopping_ends() {
    for mode in MODES {
        let folder = TempDir::new().unwrap();
        let server = serve(&folder, mode, |options| options.stall = Duration::from_millis(500));
        let (mut slow, mut client) = (connect(&server), connect(&server));
        (0..10).for_each(|number| slow.write_all(&request(&batch(number, 1999))).unwrap());
        let begin = Instant::now();
        while told(&mut client, "connected_clients") > 1 {
            assert!(begin.elapsed() < Duration::from_secs(10), "{mode:?}: it stays");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut last = connect(&server);
        (0..10).for_each(|number| last.write_all(&request(&batch(number, 1999))).unwrap());
        let begin = Instant::now();
        server.stop().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(8), "{mode:?}: {:?}", begin.elapsed());
    }
}
