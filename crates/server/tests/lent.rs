//! Rows of tables on persistent memory, which are sent from where they lie while others replace
//! them: they arrive whole, and clients that take nothing hold up nobody.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use crate::common::{Client, Reply, packed, request};
use embedrock_core::config::{Memory, StoreOptions, TableSpec};
use embedrock_core::init::Initializer;
use embedrock_core::{StorageKind, Store};
use embedrock_server::gather::{Gather, Mode};
use embedrock_server::{Options, Server};
use std::io::{ErrorKind, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DIM: usize = 256;
const IDS: u64 = 2000;
/// Row slots that its region has beyond its rows.
const RESERVE: u64 = 2048;
const MODES: [Mode; 3] = [Mode::Copy, Mode::Vectored, Mode::ZeroCopy];
const LENDING: [Mode; 2] = [Mode::Vectored, Mode::ZeroCopy];

fn open(folder: &TempDir) -> Store {
    let options = StoreOptions::new(Memory::Bytes(64 << 20));
    Store::open(folder.path().join("store"), options).unwrap()
}

/// A server of a table with a region. Keys without a row have version 0.
fn serve(folder: &TempDir, mode: Mode, threads: usize) -> Server {
    let store = open(folder);
    let spec = TableSpec {
        embedding_dim: DIM,
        storage: StorageKind::Pmem,
        initializer: Initializer::Constant(0.0),
        ..crate::common::spec("user", Some(IDS))
    };
    store.table(&spec).unwrap();
    let gather = Gather::Fixed(mode);
    let options = Options { threads, gather, commit_every: None, ..Options::new("127.0.0.1:0") };
    Server::start(store, options).unwrap()
}

/// Gives rows of keys a version, of which all their values tell.
fn push(client: &mut Client, keys: &[u64], version: u32) {
    let rows = crate::common::bytes(&vec![version as f32; keys.len() * DIM]);
    let reply = client.call(&[b"EMB.PUSH", b"user", &packed(keys), &rows]);
    assert!(matches!(reply, Reply::Array(_)), "version {version}: {reply:?}");
}

/// The versions of rows, each of which is whole. A part of a row at the end is left out.
fn versions(rows: &[u8]) -> Vec<u32> {
    let version = |row: &[u8]| {
        // Each value is the one before it.
        assert!(row[4..] == row[..row.len() - 4], "a row of two versions");
        f32::from_le_bytes(row[..4].try_into().unwrap()) as u32
    };
    rows.chunks_exact(4 * DIM).map(version).collect()
}

/// The versions of a reply, and the positions of keys without a row.
fn pulled(reply: &Reply) -> (Vec<u32>, Vec<u32>) {
    let bytes = reply.bulk();
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    let header = words(&bytes[..12]);
    let rows = 12 + 4 * header[2] as usize;
    let versions = versions(&bytes[rows..]);
    assert_eq!((header[0], header[1] as usize), (1, versions.len()));
    (versions, words(&bytes[12..rows]))
}

fn pull(client: &mut Client, keys: &[u64]) -> (Vec<u32>, Vec<u32>) {
    pulled(&client.call(&[b"EMB.PULLB", b"user", &packed(keys)]))
}

/// A number that `INFO` tells.
fn told(client: &mut Client, name: &str) -> u64 {
    let text = String::from_utf8(client.say("INFO").bulk().to_vec()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// Asks for many rows, and takes none.
fn ask_and_take_nothing(client: &mut Client) -> Vec<Vec<u64>> {
    let batches: Vec<Vec<u64>> =
        (0..20).map(|n| (0..1500).map(|i| (n * 13 + i) % IDS).collect()).collect();
    for keys in &batches {
        client.send_raw(&request(&[b"EMB.PULLB", b"user", &packed(keys)]));
    }
    batches
}

/// Takes what still comes, and checks that rows are whole; says whether that is all.
fn take_all(client: &mut Client, batches: &[Vec<u64>]) -> bool {
    for keys in batches {
        let head = format!("${}\r\n", 12 + keys.len() * DIM * 4);
        let mut reply = vec![0; head.len() + 12 + keys.len() * DIM * 4 + 2];
        let mut got = 0;
        while got < reply.len() {
            match client.0.read(&mut reply[got..]) {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}"),
            }
        }
        versions(&reply[head.len() + 12..][..got.saturating_sub(head.len() + 14)]);
        if got < reply.len() {
            return false;
        }
    }
    true
}

#[test]
fn rows_that_are_replaced_meanwhile_arrive_whole_in_every_mode() {
    for mode in MODES {
        let folder = TempDir::new().unwrap();
        let server = serve(&folder, mode, 2);
        let is_done = AtomicBool::new(false);
        let ids = 300;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut client = Client::new(&server);
                for version in 1..=100 {
                    // All keys but the last ones, in another order each time.
                    let keys: Vec<u64> = (0..ids).map(|i| (i + version * 7) % ids).collect();
                    push(&mut client, &keys, version as u32);
                }
                is_done.store(true, Ordering::Release);
            });
            for reader in 1..=2 {
                let (server, is_done) = (&server, &is_done);
                scope.spawn(move || {
                    let (mut client, mut state) = (Client::new(server), reader);
                    let mut newest = vec![0; 2 * ids as usize];
                    while !is_done.load(Ordering::Acquire) {
                        let mut next = || {
                            // Knuth's multiplier; the upper bits are random enough.
                            state = u64::wrapping_mul(state, 6_364_136_223_846_793_005);
                            state = state.wrapping_add(1);
                            (state >> 33) % (2 * ids)
                        };
                        let count = 1 + next();
                        let keys: Vec<u64> = (0..count).map(|_| next()).collect();
                        let (versions, missing) = pull(&mut client, &keys);
                        for (at, (key, version)) in keys.iter().zip(versions).enumerate() {
                            let newest = &mut newest[*key as usize];
                            assert!(version >= *newest, "{mode:?}: an older row of key {key}");
                            *newest = version;
                            let is_missing = missing.binary_search(&(at as u32)).is_ok();
                            assert!(is_missing || version > 0 && *key < ids, "{mode:?}");
                        }
                    }
                });
            }
            writer.join().unwrap();
        });
        let mut client = Client::new(&server);
        let (versions, missing) = pull(&mut client, &[0, ids, 1, ids]);
        assert_eq!((versions, missing), (vec![100, 0, 100, 0], vec![1, 3]));
        assert_eq!(told(&mut client, "lent_pulls") > 0, mode != Mode::Copy, "{mode:?}");
        server.stop().unwrap();
        drop(server);
        // Nothing is lent any more: the region can be opened.
        open(&folder);
    }
}

#[test]
fn a_client_that_takes_nothing_holds_up_neither_changes_nor_commits() {
    for mode in LENDING {
        let folder = TempDir::new().unwrap();
        // The client that changes rows is served by the thread that has lent the others.
        let server = serve(&folder, mode, 1);
        let (mut slow, mut client) = (Client::new(&server), Client::new(&server));
        let keys: Vec<u64> = (0..IDS).collect();
        push(&mut client, &keys, 1);
        let batches = ask_and_take_nothing(&mut slow);
        while told(&mut client, "lent_pulls") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begin = Instant::now();
        let rounds = 3 * (RESERVE / IDS + 1) as u32;
        for version in 2..2 + rounds {
            push(&mut client, &keys, version);
            let committed = client.say(&format!("EMB.COMMIT {version}"));
            assert!(matches!(committed, Reply::Array(_)), "{mode:?}: {committed:?}");
            assert_eq!(pull(&mut client, &keys[..500]).0, [version; 500], "{mode:?}");
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(8), "{mode:?}: {took:?}");
        let has_all = take_all(&mut slow, &batches);
        assert_eq!(has_all, mode == Mode::Vectored, "{mode:?}");
        server.stop().unwrap();
    }
}

#[test]
fn who_takes_no_rows_that_are_lent_is_cut_off_after_two_seconds() {
    let (folder, copied) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let lending = serve(&folder, Mode::ZeroCopy, 1);
    let copying = serve(&copied, Mode::Vectored, 1);
    let mut begin = None;
    let mut clients = [&lending, &copying].map(|server| {
        let (mut slow, mut client) = (Client::new(server), Client::new(server));
        push(&mut client, &(0..IDS).collect::<Vec<u64>>(), 1);
        begin.get_or_insert_with(Instant::now);
        let batches = ask_and_take_nothing(&mut slow);
        (slow, client, batches)
    });
    let begin = begin.unwrap();
    while told(&mut clients[0].1, "connected_clients") > 1 {
        assert!(begin.elapsed() < Duration::from_secs(10), "it stays");
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = begin.elapsed();
    assert!((1900..4000).contains(&took.as_millis()), "{took:?}");
    let [(mut slow, _, asked), (mut copy, mut client, batches)] = clients;
    assert!(!take_all(&mut slow, &asked));
    assert_eq!(told(&mut client, "connected_clients"), 2);
    assert!(take_all(&mut copy, &batches));
    lending.stop().unwrap();
    copying.stop().unwrap();
}
