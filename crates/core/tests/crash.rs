//! `kill -9` of a training process at random moments: the store reopens at the last commit that
//! was acknowledged, or at the one in flight, and training goes on from there.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]
#![allow(clippy::print_stdout, reason = "tests say how many kills, and what they skipped")]

mod common;

use common::{Model, Random, Running, child_path, options, say, spawn, spec};
use embedrock_core::config::IoChoice;
use embedrock_core::hash::mix;
use embedrock_core::optimizer::OptimizerKind;
use embedrock_core::{ErrorKind, PendingCommit, Store, StoreOptions, TableId, check};
use std::path::Path;
use std::time::Duration;

const DENSE_ROWS: u64 = 12_000;
const STEPS_PER_COMMIT: u64 = 3;
const DIM: usize = 8;

/// Two tables of one row class, one with another width: dense, growing, growing.
fn empty() -> Model {
    Model::new(vec![
        spec("dense", DIM, Some(DENSE_ROWS), OptimizerKind::Adagrad),
        spec("growing", DIM, None, OptimizerKind::Adagrad),
        spec("plain", DIM, None, OptimizerKind::Sgd),
    ])
}

fn train_options(io: &str) -> StoreOptions {
    let io = if io == "uring" { IoChoice::Uring } else { IoChoice::Pread };
    StoreOptions { io, ..options(1 << 20) }
}

/// What happens in a step, as a function of the step alone.
struct Step {
    updates: Vec<(usize, Vec<u64>, Vec<f32>)>,
    deleted: Vec<u64>,
}

impl Step {
    fn of(step: u64) -> Self {
        let mut random = Random(step);
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

    fn on_store(&self, store: &Store, tables: &[TableId]) {
        for (table, keys, gradients) in &self.updates {
            common::update(store, tables[*table], keys, gradients).unwrap();
        }
        store.delete(tables[1], &self.deleted).unwrap();
    }

    fn on_model(&self, model: &mut Model) {
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
        1 => mix(random.below(2000 + 20 * step), 5),
        _ => random.below(1000 + 10 * step) << 40,
    }
}

/// The dense parameters of a step, as a trainer would hand them to a commit.
fn dense_state(step: u64) -> Vec<(String, Vec<u8>)> {
    let mut random = Random(!step);
    let weights = (0..random.below(20_000)).map(|_| random.next() as u8).collect();
    vec![("weights".to_owned(), weights), ("step".to_owned(), step.to_le_bytes().to_vec())]
}

#[test]
fn trainer() {
    let Some(path) = child_path() else { return };
    let store = Store::open(&path, train_options(&std::env::var("IO").unwrap())).unwrap();
    let tables = empty().open_tables(&store).unwrap();
    let first = store.last_commit().map_or(0, |c| c.step) + 1;
    let mut pending: Option<PendingCommit> = None;
    for step in first.. {
        Step::of(step).on_store(&store, &tables);
        say("step");
        if step % STEPS_PER_COMMIT == 0 {
            let state = dense_state(step);
            let state: Vec<(&str, &[u8])> = state.iter().map(|(n, b)| (&**n, &**b)).collect();
            if let Some(pending) = pending.take() {
                say(&format!("done {}", pending.wait(None).unwrap().unwrap().step));
            }
            say("commit");
            let meta = format!("at {step}");
            // Most commits are written while the next steps change rows.
            if (step / STEPS_PER_COMMIT).is_multiple_of(3) {
                store.commit(step, &meta, &state).unwrap();
                say(&format!("done {step}"));
            } else {
                pending = Some(store.commit_in_background(step, &meta, &state).unwrap());
            }
        }
    }
}

/// Lets a trainer run for a random while and kills it; returns the last commit that it reported.
fn run_and_kill(path: &Path, io: &str, random: &mut Random) -> Option<u64> {
    let mut trainer: Running = spawn("trainer", path, &[("IO", io)]);
    let mut done = None;
    let mut hear = |line: &str| {
        if let Some(step) = line.strip_prefix("done ") {
            done = Some(step.parse::<u64>().unwrap());
        }
    };
    // One in eight is killed while it opens the store; half of the others in or just before a
    // commit, most of whose time goes into waiting for the disk.
    let lines = if random.below(8) == 0 { 0 } else { 1 + random.below(30) };
    let in_commit = random.below(2) == 0;
    let mut heard = 0;
    while heard < lines {
        let line = trainer.listen().expect("the trainer goes on until it is killed");
        heard += 1;
        hear(&line);
        if heard == lines && in_commit && line != "commit" {
            heard -= 1;
        }
    }
    // Most of a commit is over within a millisecond, some take many.
    let bits = random.below(15);
    let micros = random.below(1 << bits);
    std::thread::sleep(Duration::from_micros(micros));
    for line in trainer.kill() {
        hear(&line);
    }
    done
}

/// Kills trainers and verifies what they leave. Returns how many were killed in a commit.
fn kill_rounds(io: &str, seed: u64, rounds: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let mut random = Random(seed);
    let (mut model, mut step) = (empty(), 0);
    let (mut in_flight, mut without_commit) = (0, 0);
    for round in 0..rounds {
        let acknowledged = run_and_kill(&path, io, &mut random).unwrap_or(step);
        let store = Store::open(&path, train_options(io))
            .unwrap_or_else(|e| panic!("seed {seed} round {round} {io}: {e:?}"));
        let found = store.last_commit().map_or(0, |c| c.step);
        let what = format!("seed {seed} round {round} {io}: at {found}, told {acknowledged}");
        assert!(found == acknowledged || found == acknowledged + STEPS_PER_COMMIT, "{what}");
        in_flight += u64::from(found > acknowledged);
        without_commit += u64::from(found == step);
        for step in step + 1..=found {
            Step::of(step).on_model(&mut model);
        }
        step = found;
        let expected = if step == 0 { Vec::new() } else { dense_state(step) };
        assert_eq!(store.state().unwrap(), expected, "{what}");
        if step > 0 {
            assert_eq!(store.last_commit().unwrap().meta, format!("at {step}"));
            let others = vec![
                (0..DENSE_ROWS).collect(),
                (0..5000).map(|i| mix(i, 5)).collect(),
                (0..2000u64).map(|i| i << 40).collect(),
            ];
            let difference = model.difference(&store, &others);
            assert!(difference.is_none(), "{what}: {}", difference.unwrap());
        }
        drop(store);
        let report = check(&path, &mut |_, _| Ok(())).unwrap();
        assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
    }
    assert!(step > 0, "no trainer got as far as a commit");
    println!(
        "{io}: {rounds} kills, step {step}, {in_flight} ended after the commit in flight, \
         {without_commit} before any"
    );
}

/// Kills in all, over both back ends: few in a test run, 50 and more by hand.
fn rounds() -> u64 {
    std::env::var("EMBEDROCK_KILLS").map_or(12u64, |n| n.parse().unwrap()).div_ceil(2)
}

#[test]
fn a_killed_trainer_leaves_its_last_commit_with_pread() {
    kill_rounds("pread", 1, rounds());
}

#[test]
fn a_killed_trainer_leaves_its_last_commit_with_io_uring() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { io: IoChoice::Uring, ..options(1 << 20) };
    match Store::open(directory.path().join("probe"), options) {
        Ok(_) => kill_rounds("uring", 2, rounds()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            println!("skipped, this machine has no io_uring: {error}");
        }
    }
}
