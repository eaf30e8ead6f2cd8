//! The expected contents of a store: a plain map of rows; a commit keeps a cheap copy of it.

use crate::plan::TablePlan;
use embedrock_core::hash::table_salt;
use embedrock_core::optimizer::Hyper;
use std::collections::BTreeMap;
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Parts of a table that copies share until one of them changes.
const BUCKETS: usize = 32;

/// Values, then state, in float32.
pub(crate) type Row = Rc<[f32]>;

/// The rows of one table.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    buckets: Vec<Rc<BTreeMap<u64, Row>>>,
    count: u64,
}

impl Rows {
    fn new() -> Self {
        Self { buckets: vec![Rc::default(); BUCKETS], count: 0 }
    }

    fn bucket(key: u64) -> usize {
        embedrock_core::hash::mix(key, 1) as usize % BUCKETS
    }

    fn get(&self, key: u64) -> Option<&Row> {
        self.buckets[Self::bucket(key)].get(&key)
    }

    fn insert(&mut self, key: u64, row: Row) {
        let bucket = Rc::make_mut(&mut self.buckets[Self::bucket(key)]);
        self.count += u64::from(bucket.insert(key, row).is_none());
    }

    fn remove(&mut self, key: u64) -> bool {
        let bucket = Rc::make_mut(&mut self.buckets[Self::bucket(key)]);
        let removed = bucket.remove(&key).is_some();
        self.count -= u64::from(removed);
        removed
    }
}

/// One table: what it is, its rows, and how many updates it had.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) plan: Rc<TablePlan>,
    salt: u64,
    seed: u64,
    rows: Rows,
    pub(crate) updates: u64,
}

impl Table {
    pub(crate) fn new(plan: &Rc<TablePlan>, seed: u64) -> Self {
        let salt = table_salt(&plan.spec.name);
        Self { plan: Rc::clone(plan), salt, seed, rows: Rows::new(), updates: 0 }
    }

    pub(crate) fn dim(&self) -> usize {
        self.plan.spec.embedding_dim
    }

    pub(crate) fn state_words(&self) -> usize {
        self.plan.layout.state_words()
    }

    /// Keys that were written.
    pub(crate) fn len(&self) -> u64 {
        self.rows.count
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.rows.get(key).is_some()
    }

    /// All written keys, in an order of their own.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.rows.buckets.iter().flat_map(|bucket| bucket.keys().copied())
    }

    /// The row of a key: as it was written, or initial.
    pub(crate) fn row(&self, key: u64) -> Row {
        self.rows.get(key).cloned().unwrap_or_else(|| self.initial(key))
    }

    fn initial(&self, key: u64) -> Row {
        let (dim, spec) = (self.dim(), &self.plan.spec);
        let mut row = vec![0.0; dim + self.state_words()];
        spec.initializer.fill(self.seed, self.salt, key, &mut row[..dim]);
        self.round(&mut row[..dim]);
        spec.optimizer.init_state(dim, &mut row[dim..]);
        row.into()
    }

    /// The values as the table holds them.
    fn round(&self, values: &mut [f32]) {
        let layout = &self.plan.layout;
        if !layout.is_float32() {
            let mut words = vec![0.0; layout.value_words()];
            layout.write_values(&mut words, values);
            layout.read_values(&words, values);
        }
    }

    pub(crate) fn write(&mut self, key: u64, row: Row) {
        self.rows.insert(key, row);
    }

    /// True when the key had been written.
    pub(crate) fn delete(&mut self, key: u64) -> bool {
        self.rows.remove(key)
    }

    /// The result of a put on a row.
    pub(crate) fn put(&self, key: u64, values: &[f32], state: Option<&[f32]>, reset: bool) -> Row {
        let dim = self.dim();
        let mut row = self.row(key).to_vec();
        row[..dim].copy_from_slice(values);
        self.round(&mut row[..dim]);
        match state {
            Some(state) => row[dim..].copy_from_slice(state),
            None if reset => self.plan.spec.optimizer.init_state(dim, &mut row[dim..]),
            None => {}
        }
        row.into()
    }

    /// The rows of `keys` after the next update of the table: each distinct key with its row.
    /// Gradients of equal keys are summed in order of occurrence. If `skip` says so, keys whose
    /// gradients are not finite stay as they are; `limit` bounds every element.
    pub(crate) fn update(
        &self,
        keys: &[u64],
        gradients: &[f32],
        hyper: &Hyper,
        step: Option<u64>,
        limit: Option<f32>,
    ) -> Vec<(u64, Row)> {
        let (dim, spec) = (self.dim(), &self.plan.spec);
        let count = self.updates + 1;
        let prepared = spec.optimizer.prepare(hyper, step.unwrap_or(count), dim);
        let mut sums: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        for (key, gradient) in keys.iter().zip(gradients.chunks_exact(dim)) {
            match sums.get_mut(key) {
                Some(sum) => sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += g),
                None => drop(sums.insert(*key, gradient.to_vec())),
            }
        }
        let mut rows = Vec::with_capacity(sums.len());
        for (key, mut gradient) in sums {
            if !gradient.iter().all(|g| g.is_finite()) {
                continue;
            }
            if let Some(limit) = limit {
                gradient.iter_mut().for_each(|g| *g = g.clamp(-limit, limit));
            }
            let mut row = self.row(key).to_vec();
            let (values, state) = row.split_at_mut(dim);
            prepared.apply(values, state, &gradient);
            let place = (self.seed, self.salt, count);
            self.plan.layout.round_updated(values, spec.rounding, place, key);
            rows.push((key, row.into()));
        }
        rows
    }

    /// The result of a modify on a row, given the result for its values.
    pub(crate) fn modified(&self, key: u64, f: impl Fn(&mut [f32], &mut [f32])) -> Row {
        let dim = self.dim();
        let mut row = self.row(key).to_vec();
        let (values, state) = row.split_at_mut(dim);
        f(values, state);
        self.round(&mut row[..dim]);
        row.into()
    }

    /// The digest of all written rows.
    pub(crate) fn digest(&self) -> u64 {
        let (dim, layout) = (self.dim(), &self.plan.layout);
        let mut words = vec![0.0; layout.row_words()];
        let mut bytes = Vec::with_capacity(words.len() * 4);
        let mut digest = 0u64;
        for (key, row) in self.rows.buckets.iter().flat_map(|bucket| bucket.iter()) {
            layout.write_values(&mut words, &row[..dim]);
            words[layout.value_words()..].copy_from_slice(&row[dim..]);
            bytes.clear();
            words.iter().for_each(|word| bytes.extend_from_slice(&word.to_bits().to_ne_bytes()));
            digest = digest.wrapping_add(xxh3_64_with_seed(&bytes, *key));
        }
        digest
    }
}

/// A store: its tables, in order of creation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) tables: Vec<Table>,
}

impl Model {
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.tables.iter().position(|table| table.plan.spec.name == name)
    }
}

/// The effect of a changing verb on rows: those it writes, and those it deletes (`None`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub(crate) rows: Vec<(usize, u64, Option<Row>)>,
    /// Tables whose count of updates grows.
    pub(crate) updated: Vec<usize>,
}

impl Change {
    pub(crate) fn apply(self, model: &mut Model) {
        for (table, key, row) in self.rows {
            match row {
                Some(row) => model.tables[table].write(key, row),
                None => drop(model.tables[table].delete(key)),
            }
        }
        self.updated.iter().for_each(|table| model.tables[*table].updates += 1);
    }

    /// The other possible row if it is not known whether the verb reached it.
    pub(crate) fn other(&self, model: &Model, table: usize, key: u64) -> Option<Row> {
        let found = self.rows.iter().find(|(t, k, _)| (*t, *k) == (table, key))?;
        Some(found.2.clone().unwrap_or_else(|| model.tables[table].initial(key)))
    }
}

/// Equal to the last bit.
pub(crate) fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
