//! Shared parts of the integration tests: a generator of decisions, a model that recomputes every
//! row, and children that run a part of a test in a process of their own.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

pub(crate) mod promises;
pub(crate) mod training;
pub(crate) mod witness;

use embedrock_core::StorageKind;
use embedrock_core::init::Initializer;
use embedrock_core::optimizer::{Hyper, OptimizerKind, OptimizerSpec};
use embedrock_core::row::{Dtype, RoundingMode};
use embedrock_core::{
    GetBatch, Memory, NonFinite, PutBatch, Store, StoreOptions, TableId, TableSpec, UpdateBatch,
    hash,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Too little disk to measure its speed in, which takes a quarter of a second.
pub(crate) const DISK_BYTES: u64 = 100 << 20;
pub(crate) const HYPER: Hyper = Hyper { lr: 0.5, eps: 1e-8, ..Hyper::DEFAULT };

/// Options with this budget, small pages, and no measurement of the disk.
pub(crate) fn options(bytes: u64) -> StoreOptions {
    StoreOptions {
        page_bytes: Some(4096),
        segment_bytes: Some(64 << 10),
        max_disk_bytes: Some(DISK_BYTES),
        ..StoreOptions::new(Memory::Bytes(bytes))
    }
}

/// Parameters of a table, dense when `rows` is given.
pub(crate) fn spec(name: &str, dim: usize, rows: Option<u64>, kind: OptimizerKind) -> TableSpec {
    TableSpec {
        name: name.to_owned(),
        first_name: None,
        embedding_dim: dim,
        num_embeddings: rows,
        expected_rows: rows.is_none().then_some(2000),
        dtype: Dtype::Float32,
        rounding: RoundingMode::default(),
        storage: StorageKind::default(),
        capacity: None,
        optimizer: OptimizerSpec::new(kind),
        initializer: Initializer::Uniform { low: -1.0, high: 1.0 },
    }
}

/// A generator of test decisions.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        hash::mix(self.0, 11)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn value(&mut self) -> f32 {
        (self.next() % 2001) as f32 / 1000.0 - 1.0
    }
}

/// Values, or values and state, of some keys.
pub(crate) fn get(store: &Store, table: TableId, keys: &[u64]) -> embedrock_core::Result<Vec<f32>> {
    let dim = store.table_info(table)?.spec.embedding_dim;
    let mut values = vec![f32::NAN; keys.len() * dim];
    store.get(&mut [GetBatch { table, keys, values: (&mut values).into(), state: None }])?;
    Ok(values)
}

pub(crate) fn put(
    store: &Store,
    table: TableId,
    keys: &[u64],
    values: &[f32],
) -> embedrock_core::Result<()> {
    let non_finite = NonFinite::Refuse;
    let batch = PutBatch { table, keys, values, state: None, reset_state: false, non_finite };
    store.put(&[batch]).map(drop)
}

pub(crate) fn update(
    store: &Store,
    table: TableId,
    keys: &[u64],
    gradients: &[f32],
) -> embedrock_core::Result<()> {
    let non_finite = NonFinite::Refuse;
    let batch = UpdateBatch { table, keys, gradients, hyper: HYPER, non_finite, step: None };
    store.update(&[batch]).map(drop)
}

/// The rows that a store must hold: those that were written; every other row is initial.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) specs: Vec<TableSpec>,
    pub(crate) rows: BTreeMap<(u16, u64), Vec<f32>>,
    pub(crate) updates: Vec<u64>,
}

impl Model {
    pub(crate) fn new(specs: Vec<TableSpec>) -> Self {
        let updates = vec![0; specs.len()];
        Self { specs, rows: BTreeMap::new(), updates }
    }

    /// The row of a key: values, then state.
    pub(crate) fn row(&self, table: usize, key: u64) -> Vec<f32> {
        if let Some(row) = self.rows.get(&(table as u16, key)) {
            return row.clone();
        }
        let spec = &self.specs[table];
        let dim = spec.embedding_dim;
        let mut row = vec![0.0; dim + spec.optimizer.state_words(dim)];
        spec.initializer.fill(0, hash::table_salt(&spec.name), key, &mut row[..dim]);
        spec.optimizer.init_state(dim, &mut row[dim..]);
        row
    }

    pub(crate) fn update(&mut self, table: usize, keys: &[u64], gradients: &[f32]) {
        let spec = self.specs[table].clone();
        let dim = spec.embedding_dim;
        self.updates[table] += 1;
        let prepared = spec.optimizer.prepare(&HYPER, self.updates[table], dim);
        let mut sums: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for (key, gradient) in keys.iter().zip(gradients.chunks_exact(dim)) {
            match sums.get_mut(key) {
                Some(sum) => sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += g),
                None => drop(sums.insert(*key, gradient.to_vec())),
            }
        }
        for (key, gradient) in sums {
            let mut row = self.row(table, key);
            let (values, state) = row.split_at_mut(dim);
            prepared.apply(values, state, &gradient);
            self.rows.insert((table as u16, key), row);
        }
    }

    pub(crate) fn put(&mut self, table: usize, keys: &[u64], values: &[f32]) {
        let dim = self.specs[table].embedding_dim;
        for (key, values) in keys.iter().zip(values.chunks_exact(dim)) {
            let mut row = self.row(table, *key);
            row[..dim].copy_from_slice(values);
            self.rows.insert((table as u16, *key), row);
        }
    }

    pub(crate) fn delete(&mut self, table: usize, keys: &[u64]) {
        keys.iter().for_each(|key| drop(self.rows.remove(&(table as u16, *key))));
    }

    /// The handles of all tables, in the order of the specs.
    pub(crate) fn open_tables(&self, store: &Store) -> embedrock_core::Result<Vec<TableId>> {
        self.specs.iter().map(|spec| store.table(spec)).collect()
    }

    /// Says what differs between the store and this model, over every written row and `others`.
    pub(crate) fn difference(&self, store: &Store, others: &[Vec<u64>]) -> Option<String> {
        for (table, spec) in self.specs.iter().enumerate() {
            let id = store.find_table(&spec.name)?;
            let range = (table as u16, 0)..=(table as u16, u64::MAX);
            let mut keys: Vec<u64> = self.rows.range(range).map(|((_, key), _)| *key).collect();
            let written = keys.len() as u64;
            keys.extend(&others[table]);
            let dim = spec.embedding_dim;
            let words = spec.optimizer.state_words(dim);
            let mut values = vec![f32::NAN; keys.len() * dim];
            let mut state = vec![f32::NAN; keys.len() * words];
            let (v, s) = (&mut values[..], Some(&mut state[..]));
            let batch = GetBatch { table: id, keys: &keys, values: v.into(), state: s };
            if let Err(error) = store.get(&mut [batch]) {
                return Some(error.to_string());
            }
            for (i, key) in keys.iter().enumerate() {
                let expected = self.row(table, *key);
                let found = [&values[i * dim..][..dim], &state[i * words..][..words]].concat();
                if found != expected {
                    return Some(format!("{} key {key}: {found:?} not {expected:?}", spec.name));
                }
            }
            let mut contained = vec![false; keys.len()];
            store.contains(id, &keys, &mut contained).unwrap();
            for (key, contained) in keys.iter().zip(contained) {
                if contained != self.rows.contains_key(&(table as u16, *key)) {
                    return Some(format!("{} contains key {key}: {contained}", spec.name));
                }
            }
            let info = store.table_info(id).unwrap();
            if (info.rows, info.updates) != (written, self.updates[table]) {
                return Some(format!("{} has {info:?}, expected {written} rows", spec.name));
            }
        }
        None
    }
}

/// Runs the test function `role` (`locks::writer`) in a process of its own, with `path` as its
/// store. The function is ignored elsewhere: it is no test, and would count as one that passes.
/// The child reads its part from `child_path`; without it the function does nothing.
pub(crate) fn spawn(role: &str, path: &Path, more: &[(&str, &str)]) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", role, "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("EMBEDROCK_CHILD", path).envs(more.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    Running { child, lines }
}

/// The store of a child process; `None` in the test run itself.
pub(crate) fn child_path() -> Option<std::path::PathBuf> {
    std::env::var_os("EMBEDROCK_CHILD").map(Into::into)
}

/// Tells the parent.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n> {line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Waits until the parent says something; false when the parent is gone.
pub(crate) fn hear() -> bool {
    let mut byte = [0];
    std::io::stdin().lock().read(&mut byte).unwrap() == 1
}

/// A child process.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next thing that the child says; `None` when it is gone.
    pub(crate) fn listen(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // A line that the end of the child cut in two was never said.
            if let Some(said) = line.strip_prefix("> ").and_then(|l| l.strip_suffix('\n')) {
                return Some(said.to_owned());
            }
        }
    }

    pub(crate) fn expect(&mut self, line: &str) {
        assert_eq!(self.listen().as_deref(), Some(line));
    }

    /// Lets the child go on.
    pub(crate) fn nod(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b".").unwrap();
    }

    /// `kill -9`, and everything that was said before.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::iter::from_fn(|| self.listen()).collect()
    }

    /// Waits for the end, with everything said before; the signal that ended the child, or `None`
    /// when it passed.
    pub(crate) fn end(mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        while self.listen().is_some() {}
        let status = self.child.wait().unwrap();
        assert!(status.success() || status.signal().is_some(), "the child failed: {status}");
        status.signal()
    }

    /// Waits for the end; the child must have passed.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        if let Some(line) = self.listen() {
            panic!("the child says {line:?} and nobody expects it");
        }
        assert!(self.child.wait().unwrap().success(), "the child failed");
    }
}
