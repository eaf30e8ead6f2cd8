//! A filled store, and a client that speaks the protocol.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use embedrock_core::config::{Memory, StoreOptions, TableSpec};
use embedrock_core::init::Initializer;
use embedrock_core::optimizer::{OptimizerKind, OptimizerSpec};
use embedrock_core::row::{Dtype, RoundingMode};
use embedrock_core::{NonFinite, PutBatch, StorageKind, Store};
use embedrock_server::{Options, Server};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const DIM: usize = 4;
pub(crate) const IDS: u64 = 1000;

pub(crate) fn spec(name: &str, ids: Option<u64>) -> TableSpec {
    TableSpec {
        name: name.into(),
        first_name: None,
        embedding_dim: DIM,
        num_embeddings: ids,
        expected_rows: None,
        dtype: Dtype::Float32,
        rounding: RoundingMode::default(),
        storage: StorageKind::Log,
        capacity: None,
        optimizer: OptimizerSpec {
            kind: OptimizerKind::Sgd,
            bias_correction: Default::default(),
            initial_accumulator: 0.0,
        },
        initializer: Initializer::Constant(0.5),
    }
}

pub(crate) fn row(table: u64, key: u64) -> Vec<f32> {
    (0..DIM as u64).map(|i| (table * 1_000_000 + key * 10 + i) as f32).collect()
}

pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * values.len());
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    bytes
}

pub(crate) fn packed(keys: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * keys.len());
    keys.iter().for_each(|key| bytes.extend_from_slice(&key.to_le_bytes()));
    bytes
}

pub(crate) fn options_of_store(read_only: bool) -> StoreOptions {
    StoreOptions { read_only, ..StoreOptions::new(Memory::Bytes(16 << 20)) }
}

/// A store of two tables whose even keys have rows, committed as step 7.
pub(crate) fn filled(folder: &TempDir) -> Store {
    let store = Store::open(folder.path().join("store"), options_of_store(false)).unwrap();
    for (number, (name, ids)) in [("user", Some(IDS)), ("item", None)].into_iter().enumerate() {
        let table = store.table(&spec(name, ids)).unwrap();
        let keys: Vec<u64> = (0..IDS).step_by(2).collect();
        let values: Vec<f32> = keys.iter().flat_map(|key| row(number as u64, *key)).collect();
        let batch = PutBatch {
            table,
            keys: &keys,
            values: &values,
            state: None,
            reset_state: false,
            non_finite: NonFinite::Refuse,
        };
        store.put(&[batch]).unwrap();
    }
    store.commit(7, "\"kept\"", &[("dense", b"weights")]).unwrap();
    store
}

pub(crate) fn options() -> Options {
    Options { threads: 2, commit_every: None, refresh_every: None, ..Options::new("127.0.0.1:0") }
}

/// A reply as tests compare it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) fn error(&self) -> &str {
        let Self::Error(text) = self else { panic!("no error: {self:?}") };
        text
    }

    pub(crate) fn bulk(&self) -> &[u8] {
        let Self::Bulk(bytes) = self else { panic!("no bulk string: {self:?}") };
        bytes
    }
}

pub(crate) struct Client(pub(crate) BufReader<TcpStream>);

impl Client {
    pub(crate) fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub(crate) fn send(&mut self, arguments: &[&[u8]]) {
        self.send_raw(&request(arguments));
    }

    pub(crate) fn call(&mut self, arguments: &[&[u8]]) -> Reply {
        self.send(arguments);
        self.reply()
    }

    /// Calls with the words of a line.
    pub(crate) fn say(&mut self, line: &str) -> Reply {
        self.call(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    pub(crate) fn reply(&mut self) -> Reply {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the connection was closed");
        let text = line[1..].trim_end().to_owned();
        let length = || text.parse::<i64>().unwrap();
        match line.as_bytes()[0] {
            b'+' => Reply::Simple(text),
            b'-' => Reply::Error(text),
            b':' => Reply::Integer(length()),
            b'_' => Reply::Null,
            b'$' if length() < 0 => Reply::Null,
            b'$' => {
                let mut bytes = vec![0; length() as usize + 2];
                self.0.read_exact(&mut bytes).unwrap();
                assert!(bytes.ends_with(b"\r\n"));
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            b'*' => Reply::Array((0..length()).map(|_| self.reply()).collect()),
            b'%' => Reply::Array((0..2 * length()).map(|_| self.reply()).collect()),
            kind => panic!("a reply begins with {kind}"),
        }
    }

    /// True when the server has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }
}

pub(crate) fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.len()).bytes());
        bytes.extend(*argument);
        bytes.extend(b"\r\n");
    }
    bytes
}

pub(crate) fn ok() -> Reply {
    Reply::Simple("OK".into())
}

/// Missing positions and rows of a reply to a pull.
pub(crate) fn pulled(reply: &Reply) -> (Vec<u32>, Vec<f32>) {
    let words: Vec<u32> =
        reply.bulk().chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
    assert_eq!(words[0], 1, "version 1, float32");
    let (rows, missing) = (words[1] as usize, words[2] as usize);
    let values = words[3 + missing..].iter().map(|word| f32::from_bits(*word)).collect::<Vec<_>>();
    assert_eq!(values.len(), rows * DIM);
    (words[3..3 + missing].to_vec(), values)
}
