//! The store against a plain map, and against power cuts, on the simulated device.

mod aside;
mod back;
mod between;
mod bounds;
mod budget;
mod catalog;
mod changes;
mod cleaning;
mod cold;
mod cold_places;
mod commit;
mod cycles;
mod damage;
mod descriptors;
mod failed_writes;
mod files;
mod folder;
mod freeze;
mod full;
mod harm;
mod hidden;
mod holds;
mod hot;
mod logged;
mod meddled;
mod memory;
mod merge_room;
mod merges;
mod packed;
mod pins;
mod plain;
mod pmem;
mod power;
mod probe;
mod quantized;
mod ranges;
mod refresh;
mod samples;
mod schedule;
mod sharing;
mod slices;
mod space;
mod sparse_ids;
mod stale;
mod strays;
mod syncs;
mod threads;
mod upkeep;
mod versions;
mod window;

use super::*;
use crate::config::*;
use crate::half::Rounding;
use crate::init::Initializer;
use crate::io::SimMedium;
use crate::optimizer::{Hyper, OptimizerKind, OptimizerSpec};
use crate::row::{Dtype, RoundingMode, RowLayout};
use crate::storage::log::ClassLog;
use crate::storage::lsm::Lsm;
use crate::test_extent::{seeds, stride};
use parking_lot::{MappedMutexGuard, MutexGuard};
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const DIM: usize = 5;
const HYPER: Hyper = Hyper { lr: 0.5, eps: 1e-8, momentum: 0.5, ..Hyper::DEFAULT };

thread_local! {
    /// The kind of storage of the tables that a test makes.
    static KIND: Cell<StorageKind> = const { Cell::new(StorageKind::Log) };
}

/// Runs a test with tables of each kind of storage that trains; the one that fails is named.
fn each_kind(test: impl Fn()) {
    [StorageKind::Log, StorageKind::Lsm].into_iter().for_each(|kind| with_kind(kind, &test));
}

/// As `each_kind`, with tables whose rows are durable by update, too: for what holds of all.
fn each_kind_or_direct(test: impl Fn()) {
    each_kind(&test);
    with_kind(StorageKind::Pmem, &test);
}

fn with_kind(kind: StorageKind, test: impl Fn()) {
    run_with_kind(kind, &test);
}

/// Not generic: each of two hundred tests would have all of it compiled again.
fn run_with_kind(kind: StorageKind, test: &dyn Fn()) {
    KIND.set(kind);
    let done = catch_unwind(AssertUnwindSafe(test));
    KIND.set(StorageKind::Log);
    if let Err(panic) = done {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        panic!("with storage {}: {}", kind.name(), text.unwrap_or_default());
    }
}

fn spec(name: &str, rows: Option<u64>, kind: OptimizerKind) -> TableSpec {
    TableSpec {
        name: name.to_owned(),
        first_name: None,
        embedding_dim: DIM,
        num_embeddings: rows,
        expected_rows: rows.is_none().then_some(1000),
        dtype: Dtype::Float32,
        rounding: RoundingMode::default(),
        storage: KIND.get(),
        capacity: (KIND.get().is_direct() && rows.is_none()).then_some(2000),
        optimizer: OptimizerSpec::new(kind),
        initializer: Initializer::Uniform { low: -1.0, high: 1.0 },
    }
}

/// Options of a store in whose budget tables in a log have so many bytes.
fn options(bytes: u64) -> StoreOptions {
    let bytes = match KIND.get() {
        StorageKind::Log => bytes,
        // Merges have buffers, too.
        _ => 9 * bytes / 4,
    };
    StoreOptions {
        page_bytes: Some(512),
        segment_bytes: Some(8 << 10),
        check_disk: false,
        ..StoreOptions::new(Memory::Bytes(bytes))
    }
}

/// Options of a store with exactly this budget, whatever its tables are stored in.
fn options_within(bytes: u64) -> StoreOptions {
    StoreOptions { memory: Memory::Bytes(bytes), ..options(bytes) }
}

/// The log of a class, for tests of what is inside.
fn log_of(class: &engine::Class) -> MappedMutexGuard<'_, ClassLog> {
    MutexGuard::map(class.log.lock(), |storage| {
        let storage: &mut dyn Any = &mut **storage;
        storage.downcast_mut().expect("the class has a log")
    })
}

/// Merges that were taken over since a store was opened; none where its classes have logs.
fn merges(store: &Store) -> u64 {
    let of_class = |class: &engine::Class| {
        let storage = class.log.lock();
        let storage: &dyn Any = &**storage;
        storage.downcast_ref().map_or(0, Lsm::merges)
    };
    store.inner.engine.read().classes.iter().map(of_class).sum()
}

fn digest(store: &Store, table: TableId) -> u64 {
    store.digest(table, &mut |_, _| Ok(())).unwrap()
}

/// A generator of test decisions.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        crate::hash::mix(self.0, 11)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn value(&mut self) -> f32 {
        (self.next() % 2001) as f32 / 1000.0 - 1.0
    }
}

/// Expected content of a store: rows as they were written, everything else initial.
#[derive(Clone, Default)]
struct Model {
    rows: BTreeMap<(u16, u64), Vec<f32>>,
    updates: BTreeMap<u16, u64>,
}

/// A put of values that keeps stored state and refuses what is not finite.
fn put_of<'a>(table: TableId, keys: &'a [u64], values: &'a [f32]) -> PutBatch<'a> {
    let non_finite = NonFinite::Refuse;
    PutBatch { table, keys, values, state: None, reset_state: false, non_finite }
}

struct Fixture {
    specs: Vec<TableSpec>,
    keys: Vec<Vec<u64>>,
}

impl Fixture {
    fn new() -> Self {
        let specs = vec![
            spec("dense", Some(700), OptimizerKind::Adagrad),
            spec("sparse", None, OptimizerKind::Adagrad),
            spec("rowwise", Some(40), OptimizerKind::RowWiseAdagrad),
            spec("plain", None, OptimizerKind::Sgd),
            spec("momentum", Some(60), OptimizerKind::Momentum),
            TableSpec { dtype: Dtype::Float16, ..spec("half", Some(500), OptimizerKind::Adagrad) },
            TableSpec {
                dtype: Dtype::Bfloat16,
                rounding: RoundingMode::Nearest,
                ..spec("upper", None, OptimizerKind::Adagrad)
            },
        ];
        let mut odd: Vec<u64> = (0..900u64).map(|i| i << 40).collect();
        odd.extend([u64::MAX, u64::MAX - 1, 1, 2, 3, 1 << 63]);
        let keys = vec![
            (0..700).collect(),
            odd,
            (0..40).collect(),
            (0..50).map(|i| crate::hash::mix(i, 5)).collect(),
            (0..60).collect(),
            (0..500).collect(),
            (0..300).map(|i| i << 50).collect(),
        ];
        Self { specs, keys }
    }

    fn open(&self, medium: &SimMedium, options: StoreOptions) -> Store {
        let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
        for spec in &self.specs {
            store.table(spec).unwrap();
        }
        store
    }

    fn layout(&self, table: usize) -> RowLayout {
        let spec = &self.specs[table];
        RowLayout::new(spec.dtype, DIM, spec.optimizer.state_words(DIM)).unwrap()
    }

    /// The values as the table holds them.
    fn round(&self, table: usize, values: &mut [f32]) {
        let mut words = [0.0; DIM];
        self.layout(table).write_values(&mut words, values);
        self.layout(table).read_values(&words, values);
    }

    /// Values and state of a row in float32.
    fn width(&self, table: usize) -> usize {
        DIM + self.specs[table].optimizer.state_words(DIM)
    }

    fn initial(&self, table: usize, key: u64) -> Vec<f32> {
        let spec = &self.specs[table];
        let mut row = vec![0.0; self.width(table)];
        let salt = crate::hash::table_salt(&spec.name);
        spec.initializer.fill(0, salt, key, &mut row[..DIM]);
        self.round(table, &mut row[..DIM]);
        spec.optimizer.init_state(DIM, &mut row[DIM..]);
        row
    }

    fn expected(&self, model: &Model, table: usize, key: u64) -> Vec<f32> {
        let found = model.rows.get(&(table as u16, key)).cloned();
        found.unwrap_or_else(|| self.initial(table, key))
    }

    fn pick(&self, random: &mut Random, table: usize, most: u64) -> Vec<u64> {
        let keys = &self.keys[table];
        let n = 1 + random.below(most);
        (0..n).map(|_| keys[random.below(keys.len() as u64) as usize]).collect()
    }

    fn check(&self, store: &Store, model: &Model, table: usize, keys: &[u64]) {
        let words = self.width(table) - DIM;
        let mut values = vec![0.0; keys.len() * DIM];
        let mut state = vec![0.0; keys.len() * words];
        let mut batch = [GetBatch {
            table: TableId(table as u16),
            keys,
            values: (&mut values).into(),
            state: Some(&mut state),
        }];
        store.get(&mut batch).unwrap();
        for (i, key) in keys.iter().enumerate() {
            let expected = self.expected(model, table, *key);
            assert_eq!(values[i * DIM..][..DIM], expected[..DIM], "table {table} key {key}");
            assert_eq!(state[i * words..][..words], expected[DIM..], "table {table} key {key}");
        }
    }

    fn check_all(&self, store: &Store, model: &Model) {
        for table in 0..self.specs.len() {
            self.check(store, model, table, &self.keys[table]);
            let id = TableId(table as u16);
            let rows = model.rows.range((table as u16, 0)..=(table as u16, u64::MAX)).count();
            assert_eq!(store.len(id).unwrap(), rows as u64, "rows of table {table}");
            let mut contained = vec![false; self.keys[table].len()];
            store.contains(id, &self.keys[table], &mut contained).unwrap();
            for (key, contained) in self.keys[table].iter().zip(contained) {
                let written = model.rows.contains_key(&(table as u16, *key));
                assert_eq!(contained, written, "table {table} key {key}");
            }
            let updates = model.updates.get(&(table as u16)).copied().unwrap_or(0);
            assert_eq!(store.table_info(id).unwrap().updates, updates);
        }
    }

    /// One random verb on store and model.
    fn step(&self, store: &Store, model: &mut Model, random: &mut Random) {
        let table = random.below(self.specs.len() as u64) as usize;
        let id = TableId(table as u16);
        let keys = self.pick(random, table, 120);
        let trains = self.specs[table].optimizer.kind != OptimizerKind::None;
        match random.below(10) {
            0..=3 if trains => self.update(store, model, random, table, &keys),
            4..=5 => {
                let values: Vec<f32> = (0..keys.len() * DIM).map(|_| random.value()).collect();
                let reset_state = random.below(2) == 0;
                let batch = PutBatch { reset_state, ..put_of(id, &keys, &values) };
                store.put(&[batch]).unwrap();
                for (i, key) in keys.iter().enumerate() {
                    let mut row = self.expected(model, table, *key);
                    row[..DIM].copy_from_slice(&values[i * DIM..][..DIM]);
                    self.round(table, &mut row[..DIM]);
                    if reset_state {
                        self.specs[table].optimizer.init_state(DIM, &mut row[DIM..]);
                    }
                    model.rows.insert((table as u16, *key), row);
                }
            }
            6 => {
                let keys = &keys[..keys.len().min(30)];
                let deleted = store.delete(id, keys).unwrap();
                let before = model.rows.len();
                for key in keys {
                    model.rows.remove(&(table as u16, *key));
                }
                assert_eq!(deleted, (before - model.rows.len()) as u64);
            }
            7 => {
                store
                    .modify(id, &keys, &mut |_, values, _| {
                        values.iter_mut().for_each(|v| *v = *v * 0.5 + 1.0);
                        Ok(())
                    })
                    .unwrap();
                let mut seen = std::collections::BTreeSet::new();
                for key in keys.iter().filter(|k| seen.insert(**k)) {
                    let mut row = self.expected(model, table, *key);
                    row[..DIM].iter_mut().for_each(|v| *v = *v * 0.5 + 1.0);
                    self.round(table, &mut row[..DIM]);
                    model.rows.insert((table as u16, *key), row);
                }
            }
            _ => self.check(store, model, table, &keys),
        }
    }

    fn update(
        &self,
        store: &Store,
        model: &mut Model,
        random: &mut Random,
        table: usize,
        keys: &[u64],
    ) {
        let gradients: Vec<f32> = (0..keys.len() * DIM).map(|_| random.value()).collect();
        let batch = UpdateBatch {
            table: TableId(table as u16),
            keys,
            gradients: &gradients,
            hyper: HYPER,
            non_finite: NonFinite::Refuse,
            step: None,
        };
        store.update(&[batch]).unwrap();
        let count = model.updates.entry(table as u16).or_default();
        *count += 1;
        let count = *count;
        let mut sums: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for (i, key) in keys.iter().enumerate() {
            let gradient = &gradients[i * DIM..][..DIM];
            match sums.get_mut(key) {
                Some(sum) => sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += g),
                None => drop(sums.insert(*key, gradient.to_vec())),
            }
        }
        for (key, gradient) in sums {
            self.step_row(model, table, key, count, &gradient);
        }
    }

    /// The `count`-th update of a table, of one row.
    fn step_row(&self, model: &mut Model, table: usize, key: u64, count: u64, gradient: &[f32]) {
        let (spec, layout) = (&self.specs[table], self.layout(table));
        let mut row = self.expected(model, table, key);
        let (values, state) = row.split_at_mut(DIM);
        spec.optimizer.prepare(&HYPER, count, DIM).apply(values, state, gradient);
        if spec.dtype != Dtype::Float32 {
            let rounding = Rounding::new(0, crate::hash::table_salt(&spec.name), count);
            let stochastic = spec.rounding == RoundingMode::Stochastic;
            let mut words = [0.0; DIM];
            layout.write_updated(&mut words, values, stochastic.then_some(&rounding), key);
            layout.read_values(&words, values);
        }
        model.rows.insert((table as u16, key), row);
    }
}

/// A budget at which most rows live on storage.
fn tight() -> u64 {
    800 << 10
}

#[test]
fn random_verbs_agree_with_a_plain_map_at_any_budget() {
    each_kind(|| {
        let fixture = Fixture::new();
        let (mut moved, mut merged) = (0, 0);
        for (seed, bytes) in [(1, tight()), (2, tight()), (3, 1 << 20), (4, 16 << 20)] {
            let medium = SimMedium::new(seed);
            let mut random = Random(seed);
            let mut model = Model::default();
            let mut committed = model.clone();
            let mut store = fixture.open(&medium, options(bytes));
            let rounds = if bytes == tight() { 4000u64 } else { 400 };
            for round in 0..rounds {
                fixture.step(&store, &mut model, &mut random);
                if random.below(150) == 0 {
                    let info =
                        store.commit(round, "meta", &[("dense", &round.to_le_bytes())]).unwrap();
                    assert_eq!(info.step, round);
                    committed = model.clone();
                }
                if random.below(rounds / 10) == 0 && store.last_commit().is_some() {
                    moved += store.stats().unwrap().rows_moved;
                    merged += merges(&store);
                    store.close().unwrap();
                    store = fixture.open(&medium, options(bytes));
                    model = committed.clone();
                    fixture.check_all(&store, &model);
                }
            }
            fixture.check_all(&store, &model);
            if bytes == tight() {
                let stats = store.stats().unwrap();
                assert!(stats.pages_read > 1000, "seed {seed}: {} pages read", stats.pages_read);
                moved += stats.rows_moved;
                merged += merges(&store);
                assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
            }
        }
        assert!(moved > 500, "{moved} rows were moved by cleaning and merges");
        match KIND.get() {
            StorageKind::Log => assert_eq!(merged, 0),
            _ => assert!(merged > 100, "{merged} merges"),
        }
    });
}

#[test]
fn the_same_inputs_give_the_same_digest_at_any_budget() {
    each_kind(|| {
        let fixture = Fixture::new();
        let mut digests = Vec::new();
        for (bytes, policy, page) in [
            (tight(), PolicyKind::Lru, 512),
            (1100 << 10, PolicyKind::Lfu, 1024),
            (32 << 20, PolicyKind::Lru, 4096),
        ] {
            let medium = SimMedium::new(9);
            let segment_bytes = Some(page as u64 * 16);
            let options =
                StoreOptions { policy, page_bytes: Some(page), segment_bytes, ..options(bytes) };
            let store = fixture.open(&medium, options);
            let (mut random, mut model) = (Random(77), Model::default());
            for _ in 0..150 {
                fixture.step(&store, &mut model, &mut random);
            }
            let all: Vec<u64> = store.tables().iter().map(|t| digest(&store, t.id)).collect();
            digests.push(all);
        }
        assert_eq!(digests[0], digests[1]);
        assert_eq!(digests[0], digests[2]);
    });
}

#[test]
fn an_earlier_commit_can_be_opened_and_left_again() {
    each_kind(|| {
        let fixture = Fixture::new();
        let medium = SimMedium::new(5);
        let store = fixture.open(&medium, options(tight()));
        let (mut random, mut model) = (Random(5), Model::default());
        let mut models = Vec::new();
        for step in 0..5u64 {
            for _ in 0..10 {
                let table = random.below(fixture.specs.len() as u64) as usize;
                let keys = fixture.pick(&mut random, table, 200);
                fixture.update(&store, &mut model, &mut random, table, &keys);
            }
            store.commit(step, "", &[]).unwrap();
            models.push(model.clone());
        }
        store.close().unwrap();
        let at = |step| StoreOptions { step, ..options(tight()) };
        let store = Store::open_on(Arc::new(medium.clone()), at(Some(3))).unwrap();
        fixture.check_all(&store, &models[3]);
        store.close().unwrap();
        let store = Store::open_on(Arc::new(medium.clone()), at(None)).unwrap();
        fixture.check_all(&store, &models[4]);
        store.close().unwrap();
        let error = Store::open_on(Arc::new(medium.clone()), at(Some(0))).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("[3, 4]"), "{error}");
        let store = Store::open_on(Arc::new(medium.clone()), at(Some(3))).unwrap();
        let mut model = models[3].clone();
        fixture.update(&store, &mut model, &mut random, 1, &[7, 8]);
        store.commit(9, "", &[]).unwrap();
        store.close().unwrap();
        let store = Store::open_on(Arc::new(medium), at(None)).unwrap();
        assert_eq!(store.commits().iter().map(|c| c.step).collect::<Vec<_>>(), [3, 9]);
        fixture.check_all(&store, &model);
    });
}

#[test]
fn a_table_added_between_writes_leaves_a_commit_that_readers_can_read() {
    each_kind(|| {
        // The writer of the new plan went on with the number before the last page's, so that a
        // reader took the commit's last page for one written later.
        let medium = SimMedium::new(5);
        let store = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
        let first = store.table(&spec("first", Some(700), OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..500).collect();
        let values = vec![0.5; keys.len() * DIM];
        for name in ["second", "third"] {
            let batch = PutBatch { reset_state: true, ..put_of(first, &keys, &values) };
            store.put(&[batch]).unwrap();
            store.table(&spec(name, Some(10), OptimizerKind::Sgd)).unwrap();
        }
        store.commit(1, "", &[]).unwrap();
        let options = StoreOptions { read_only: true, ..options(1 << 20) };
        let reader = Store::open_on(Arc::new(medium), options).unwrap();
        let mut values = vec![0.0; keys.len() * DIM];
        reader
            .get(&mut [GetBatch {
                table: first,
                keys: &keys,
                values: (&mut values).into(),
                state: None,
            }])
            .unwrap();
        assert!(values.iter().all(|v| *v == 0.5));
    });
}
