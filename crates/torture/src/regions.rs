//! Lives with rows on persistent memory: dense and growing tables in regions beside tables in a log
//! and an lsm, with journals that begin anew every few commits.
//!
//! Such rows are newer than any commit, so these lives have a model of their own: after a power cut
//! rows in regions are as they were, all others as in the last commit. A region is a mapped file,
//! of which the simulated device knows nothing. So damage is done to that file, while the store is
//! closed: bits flip, pages become zeros, and an older copy takes its place.

use crate::faults::Fault;
use crate::plan::Limits;
use crate::random::Random;
use embedrock_core::init::Initializer;
use embedrock_core::io::{Medium, SimMedium};
use embedrock_core::optimizer::{OptimizerKind, OptimizerSpec};
use embedrock_core::row::{Dtype, RoundingMode};
use embedrock_core::{
    Error, ErrorKind, GetBatch, Memory, NonFinite, PutBatch, StorageKind, Store, StoreOptions,
    TableId, TableSpec,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

const DIM: usize = 3;
/// Keys that verbs draw from.
const KEYS: u64 = 120;
/// One life in so many goes on with such a store.
const LIVES: u64 = 3;
/// Header and lanes of a region, by `docs/formats/pmem-region.md`; then come buckets.
const INDEX_BEGINS: usize = 135_168;
const BUCKET_BYTES: usize = 256;
/// Damage that is tried at the end of a life.
const TRIALS: u64 = 12;

type Rows = BTreeMap<u64, f32>;

/// A table, and what it holds: a value in all elements of a row.
struct Table {
    spec: TableSpec,
    rows: Rows,
    committed: Rows,
}

impl Table {
    fn is_direct(&self) -> bool {
        self.spec.storage == StorageKind::Pmem
    }

    fn key(&self, i: u64) -> u64 {
        match self.spec.num_embeddings {
            Some(_) => i,
            None => embedrock_core::hash::mix(i, 9),
        }
    }
}

/// Whether a seed has such a life, too: not where single operations of the other are looked for.
pub(crate) fn has_regions(seed: u64, limits: &Limits) -> bool {
    limits.only.is_none() && Random::new(seed, 6).chance(1, LIVES)
}

struct Life {
    random: Random,
    medium: SimMedium,
    options: StoreOptions,
    tables: Vec<Table>,
    store: Option<Store>,
    step: u64,
}

/// Lives the life of a seed. An error says what was expected and what was found.
pub(crate) fn live(seed: u64, limits: &Limits) -> Result<(), String> {
    let mut random = Random::new(seed, 7);
    let options = StoreOptions {
        page_bytes: Some(512),
        segment_bytes: Some(8 << 10),
        check_disk: false,
        journal_bytes_min: *random.pick(&[1 << 10, 4 << 10, 16 << 10]),
        keep: 1 + random.below(3) as usize,
        ..StoreOptions::new(Memory::Bytes(8 << 20))
    };
    let tables = tables(&mut random);
    let medium = SimMedium::new(seed);
    let mut life = Life { random, medium, options, tables, store: None, step: 0 };
    life.open()?;
    // The first commit makes the tables durable.
    life.commit()?;
    for _ in 0..40 + life.random.below(limits.operations.max(1)) {
        life.act(limits)?;
    }
    life.reopen()?;
    life.check()?;
    if limits.faults.has(Fault::Flip) { life.examine() } else { Ok(()) }
}

/// A dense and a growing table in regions, and others beside them, some of which stay empty.
fn tables(random: &mut Random) -> Vec<Table> {
    let kinds = [StorageKind::Pmem, StorageKind::Pmem, StorageKind::Log, StorageKind::Lsm];
    let count = 2 + random.below(5) as usize;
    let of = |at: usize, random: &mut Random| {
        let storage = if at < 2 { StorageKind::Pmem } else { *random.pick(&kinds) };
        let grows = if at < 2 { at == 1 } else { random.chance(1, 2) };
        let spec = TableSpec {
            name: format!("r{at}"),
            first_name: None,
            embedding_dim: DIM,
            num_embeddings: (!grows).then_some(KEYS),
            expected_rows: grows.then_some(KEYS),
            dtype: Dtype::Float32,
            rounding: RoundingMode::default(),
            storage,
            capacity: (grows && storage == StorageKind::Pmem).then_some(KEYS),
            optimizer: OptimizerSpec::new(OptimizerKind::Sgd),
            initializer: Initializer::Constant(-1.0),
        };
        Table { spec, rows: Rows::new(), committed: Rows::new() }
    };
    (0..count).map(|at| of(at, random)).collect()
}

impl Life {
    fn store(&self) -> &Store {
        self.store.as_ref().expect("a store is open between operations")
    }

    fn try_open(&self) -> Result<Store, Error> {
        let store = Store::open_on(Arc::new(self.medium.clone()), self.options.clone())?;
        self.tables.iter().try_for_each(|table| store.table(&table.spec).map(drop))?;
        Ok(store)
    }

    fn open(&mut self) -> Result<(), String> {
        let opened = self.try_open().map_err(|error| format!("with regions: open: {error:?}"))?;
        self.store = Some(opened);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), String> {
        self.step += 1;
        let meta = "m".repeat(self.random.below(600) as usize);
        match self.store().commit(self.step, &meta, &[]) {
            Ok(_) => {
                self.tables.iter_mut().for_each(|table| table.committed = table.rows.clone());
                Ok(())
            }
            Err(error) => Err(format!("with regions: commit {}: {error:?}", self.step)),
        }
    }

    /// Dropped or closed: of what no commit has, rows in regions stay.
    fn reopen(&mut self) -> Result<(), String> {
        if let Some(store) = self.store.take()
            && self.random.chance(1, 2)
        {
            store.close().map_err(|error| format!("with regions: close: {error:?}"))?;
        }
        self.forget();
        self.open()
    }

    fn forget(&mut self) {
        let others = self.tables.iter_mut().filter(|table| !table.is_direct());
        others.for_each(|table| table.rows = table.committed.clone());
    }

    /// The power goes in a commit, which a reboot finds or not.
    fn cut(&mut self) -> Result<(), String> {
        let soon = self.random.below(14);
        self.medium.power_cut_after(self.medium.counters().operations + soon);
        self.step += 1;
        let committed = self.store().commit(self.step, "", &[]);
        self.medium.power_cut_after(u64::MAX);
        self.store = None;
        let acknowledged = committed.is_ok();
        let seed = self.random.next();
        self.medium = self.medium.reboot(seed);
        self.open()?;
        let found = self.store().last_commit().map_or(0, |info| info.step);
        if found != self.step && (acknowledged || found > self.step) {
            return Err(format!("with regions: at step {found}, {} was acknowledged", self.step));
        }
        if found == self.step {
            self.tables.iter_mut().for_each(|table| table.committed = table.rows.clone());
        }
        self.forget();
        self.check()
    }

    fn act(&mut self, limits: &Limits) -> Result<(), String> {
        match self.random.below(20) {
            0..=8 => self.change(),
            9..=13 => self.commit(),
            14..=15 => self.check(),
            16 => self.reopen(),
            17 if limits.faults.has(Fault::Power) => self.cut(),
            _ => self.change(),
        }
    }

    fn change(&mut self) -> Result<(), String> {
        let at = self.random.below(self.tables.len() as u64) as usize;
        let told = |error: Error| format!("with regions: change: {error:?}");
        let many = 1 + self.random.below(20);
        let keys: Vec<u64> =
            (0..many).map(|_| self.tables[at].key(self.random.below(KEYS))).collect();
        let (id, store) = (TableId::clone(&self.id(at)?), self.store.as_ref());
        let store = store.expect("a store is open between operations");
        let table = &mut self.tables[at];
        if self.random.chance(1, 4) {
            let before = table.rows.len();
            let deleted = store.delete(id, &keys).map_err(told)?;
            table.rows.retain(|key, _| !keys.contains(key));
            let expected = (before - table.rows.len()) as u64;
            if deleted != expected {
                return Err(format!("with regions: deleted {deleted} rows, expected {expected}"));
            }
            return Ok(());
        }
        let value = self.random.value();
        let values = vec![value; keys.len() * DIM];
        let non_finite = NonFinite::Refuse;
        let put = PutBatch {
            table: id,
            keys: &keys,
            values: &values,
            state: None,
            reset_state: false,
            non_finite,
        };
        store.put(&[put]).map_err(told)?;
        table.rows.extend(keys.iter().map(|key| (*key, value)));
        Ok(())
    }

    fn id(&self, at: usize) -> Result<TableId, String> {
        let name = &self.tables[at].spec.name;
        self.store().find_table(name).ok_or_else(|| format!("with regions: no table {name}"))
    }

    /// Every row as the model has it.
    fn check(&self) -> Result<(), String> {
        for (at, table) in self.tables.iter().enumerate() {
            let (id, name) = (self.id(at)?, &table.spec.name);
            let len = self.store().len(id).map_err(|error| format!("len of {name}: {error:?}"))?;
            if len != table.rows.len() as u64 {
                let expected = table.rows.len();
                return Err(format!("with regions: {name} has {len} rows, expected {expected}"));
            }
            if let Some(error) = self.read(at)? {
                return Err(format!("with regions: {name}: {error:?}"));
            }
        }
        Ok(())
    }

    /// Reads a table key by key: each right, or an error, of which one is returned.
    fn read(&self, at: usize) -> Result<Option<Error>, String> {
        let (table, id) = (&self.tables[at], self.id(at)?);
        let mut said = None;
        for key in (0..KEYS).map(|i| table.key(i)) {
            let mut values = [0.0; DIM];
            let batch =
                GetBatch { table: id, keys: &[key], values: (&mut values[..]).into(), state: None };
            if let Err(error) = self.store().get(&mut [batch]) {
                said = Some(error);
                continue;
            }
            let expected = table.rows.get(&key).copied().unwrap_or(-1.0);
            if values != [expected; DIM] {
                return Err(format!(
                    "with regions: {} key {key}: found {values:?}, expected {expected} (in a \
                     region: {})",
                    table.spec.name,
                    table.is_direct()
                ));
            }
        }
        Ok(said)
    }

    /// Damages a region, a little at a time, and has the damage undone: rows are right or an error.
    fn examine(&mut self) -> Result<(), String> {
        // It is to be told from a region of before the last commit.
        let at = self.random.below(2) as usize;
        // A commit that a power cut has undone was told to regions, and its number comes again.
        self.commit()?;
        self.store = None;
        let path = self.region(at)?;
        let read = |path: &PathBuf| fs::read(path).map_err(|error| format!("{path:?}: {error}"));
        let older = read(&path)?;
        self.open()?;
        self.change()?;
        self.commit()?;
        self.store = None;
        let whole = read(&path)?;
        let buckets = index_bytes(&whole);
        for trial in 0..TRIALS {
            let mut bytes = whole.clone();
            let is_old = trial == 0;
            match self.random.below(4) {
                _ if is_old => bytes.clone_from(&older),
                0 => {
                    let page = INDEX_BEGINS + self.random.below(buckets) as usize / 4096 * 4096;
                    let end = (page + 4096).min(INDEX_BEGINS + buckets as usize);
                    bytes[page..end].fill(0);
                }
                1 => {
                    // Fingerprints, or the counter behind them.
                    let bucket = self.random.below(buckets) as usize / BUCKET_BYTES * BUCKET_BYTES;
                    let byte = INDEX_BEGINS + bucket + 8 + self.random.below(16) as usize;
                    bytes[byte] ^= 1 << self.random.below(8);
                }
                _ => {
                    let byte = INDEX_BEGINS + self.random.below(buckets) as usize;
                    bytes[byte] ^= 1 << self.random.below(8);
                }
            }
            fs::write(&path, &bytes).map_err(|error| format!("{path:?}: {error}"))?;
            match self.try_open() {
                Ok(_) if is_old => {
                    return Err(format!("with regions: {path:?} of an older commit is taken"));
                }
                Ok(store) => {
                    self.store = Some(store);
                    let told = self.read(at)?;
                    if let Some(error) = told.filter(|e| e.kind() != ErrorKind::Corrupt) {
                        return Err(format!("with regions: damage is told as {error:?}"));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) => return Err(format!("with regions: damage is told as {error:?}")),
            }
            self.store = None;
        }
        fs::write(&path, &whole).map_err(|error| format!("{path:?}: {error}"))
    }

    fn region(&self, at: usize) -> Result<PathBuf, String> {
        let folders = self.medium.regions().ok_or("with regions: no folder for them")?;
        Ok(folders.own.join(format!("pmem-{at}")))
    }
}

/// Bytes of the buckets of a region, whose number is in its header.
fn index_bytes(region: &[u8]) -> u64 {
    let word = region[32..40].try_into().expect("8 bytes");
    u64::from_le_bytes(word) * BUCKET_BYTES as u64
}
