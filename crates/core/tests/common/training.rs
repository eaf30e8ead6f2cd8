//! A training whose every step is known beforehand, and the process that does it until it is
//! killed.

use super::promises::{Promise, Promises};
use super::{Model, Random, options, say, spec, update};
use embedrock_core::config::IoChoice;
use embedrock_core::hash::mix;
use embedrock_core::optimizer::OptimizerKind;
use embedrock_core::{PendingCommit, Store, StoreOptions, TableId};
use std::path::Path;

pub(crate) const STEPS_PER_COMMIT: u64 = 3;
const DENSE_ROWS: u64 = 12_000;
const GROWING_KEYS: u64 = 4000;
const PLAIN_KEYS: u64 = 2000;
const DIM: usize = 8;
/// A trainer that nobody kills ends after so many steps.
const STEPS_MAX: u64 = 90;

/// Two tables of one row class, one with another width: dense, growing, growing.
pub(crate) fn empty() -> Model {
    Model::new(vec![
        spec("dense", DIM, Some(DENSE_ROWS), OptimizerKind::Adagrad),
        spec("growing", DIM, None, OptimizerKind::Adagrad),
        spec("plain", DIM, None, OptimizerKind::Sgd),
    ])
}

/// All keys of each table.
pub(crate) fn others() -> Vec<Vec<u64>> {
    vec![
        (0..DENSE_ROWS).collect(),
        (0..GROWING_KEYS).map(|key| mix(key, 5)).collect(),
        (0..PLAIN_KEYS).map(|key| key << 40).collect(),
    ]
}

pub(crate) fn train_options(io: &str) -> StoreOptions {
    let io = if io == "uring" { IoChoice::Uring } else { IoChoice::Pread };
    StoreOptions { io, keep: 3, ..options(1 << 20) }
}

/// The changes of a step, as a function of the step and of the process's life alone: after going
/// back the same step is another.
pub(crate) struct Step {
    updates: Vec<(usize, Vec<u64>, Vec<f32>)>,
    deleted: Vec<u64>,
}

impl Step {
    pub(crate) fn of(life: u64, step: u64) -> Self {
        let mut random = Random(mix(step, life));
        let updates = (0..3)
            .map(|table| {
                let n = 50 + random.below(500);
                let keys: Vec<u64> = (0..n).map(|_| key(table, &mut random, step)).collect();
                let gradients = (0..keys.len() * DIM).map(|_| random.value()).collect();
                (table, keys, gradients)
            })
            .collect();
        let deleted = (0..random.below(60)).map(|_| key(1, &mut random, step)).collect();
        Self { updates, deleted }
    }

    pub(crate) fn on_store(&self, store: &Store, tables: &[TableId]) {
        for (table, keys, gradients) in &self.updates {
            update(store, tables[*table], keys, gradients).unwrap();
        }
        store.delete(tables[1], &self.deleted).unwrap();
    }

    pub(crate) fn on_model(&self, model: &mut Model) {
        for (table, keys, gradients) in &self.updates {
            model.update(*table, keys, gradients);
        }
        model.delete(1, &self.deleted);
    }
}

/// A key of a table; those of growing tables get more with the steps.
fn key(table: usize, random: &mut Random, step: u64) -> u64 {
    match table {
        0 => random.below(DENSE_ROWS).min(random.below(DENSE_ROWS)),
        1 => mix(random.below((1000 + 20 * step).min(GROWING_KEYS)), 5),
        _ => random.below((500 + 10 * step).min(PLAIN_KEYS)) << 40,
    }
}

/// The dense parameters of a step, as a trainer would hand them to a commit.
pub(crate) fn dense_state(life: u64, step: u64) -> Vec<(String, Vec<u8>)> {
    let mut random = Random(!mix(step, life));
    let weights = (0..random.below(20_000)).map(|_| random.next() as u8).collect();
    vec![("weights".to_owned(), weights), ("step".to_owned(), step.to_le_bytes().to_vec())]
}

pub(crate) fn meta(life: u64, step: u64) -> String {
    format!("life {life} at {step}")
}

/// Trains until it is killed. `LIFE` numbers the process, `BACK` is the commit that it goes back
/// to, `PROMISES` the file in which it notes what it promised.
pub(crate) fn train(path: &Path) {
    let variable = |name: &str| std::env::var(name).unwrap();
    let life: u64 = variable("LIFE").parse().unwrap();
    let step = std::env::var("BACK").ok().map(|step| step.parse().unwrap());
    let mut promises = Promises::open(Path::new(&variable("PROMISES")));
    let opened = StoreOptions { step, ..train_options(&variable("IO")) };
    let store = Store::open(path, opened).unwrap();
    let first = store.last_commit().map_or(0, |c| c.step) + 1;
    promises.note(Promise::Change);
    let tables = empty().open_tables(&store).unwrap();
    let mut pending: Option<PendingCommit> = None;
    for step in first..first + STEPS_MAX {
        Step::of(life, step).on_store(&store, &tables);
        say("step");
        if step % STEPS_PER_COMMIT != 0 {
            continue;
        }
        let state = dense_state(life, step);
        let state: Vec<(&str, &[u8])> = state.iter().map(|(n, b)| (&**n, &**b)).collect();
        if let Some(pending) = pending.take() {
            acknowledge(&mut promises, pending.wait(None).unwrap().unwrap().step);
        }
        promises.note(Promise::Commit(step));
        say("commit");
        // Most commits are written while the next steps change rows.
        if (step / STEPS_PER_COMMIT).is_multiple_of(3) {
            store.commit(step, &meta(life, step), &state).unwrap();
            acknowledge(&mut promises, step);
        } else {
            pending = Some(store.commit_in_background(step, &meta(life, step), &state).unwrap());
        }
    }
}

fn acknowledge(promises: &mut Promises, step: u64) {
    promises.note(Promise::Done(step));
    say(&format!("done {step}"));
}
