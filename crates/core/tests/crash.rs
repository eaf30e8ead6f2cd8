//! Training processes that end by SIGKILL: at random moments, and at points inside the I/O layer.
//! The store that they leave is compared, row by row, with their promises, and the next one goes on
//! from there or from an earlier commit. `EMBEDROCK_KILLS` sets the number of kills.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]
#![allow(clippy::print_stdout, reason = "tests say how many kills, and what they skipped")]

use crate::common::training::{train, train_options};
use crate::common::witness::{Committed, Witness};
use crate::common::{Random, Running, child_path, spawn};
use embedrock_core::{ErrorKind, Store, StoreOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// A store is begun anew after so many lives, since much happens in its first ones only.
const LIVES: u64 = 25;

#[test]
#[ignore = "the body of a child process"]
fn trainer() {
    if let Some(path) = child_path() {
        train(&path);
    }
}

/// The end of a life.
#[cfg_attr(not(feature = "kill"), allow(dead_code, reason = "points need the feature"))]
enum Death {
    /// After the trainer said so many lines and a little time, in a commit or anywhere.
    Late { lines: u64, in_commit: bool, micros: u64 },
    /// At an operation of the I/O layer.
    Point(String),
}

impl Death {
    fn at_a_moment(random: &mut Random) -> Self {
        // One in eight is killed while it opens the store; half of the others in or just before a
        // commit, most of whose time goes into waiting for the disk.
        let lines = if random.below(8) == 0 { 0 } else { 1 + random.below(30) };
        let in_commit = random.below(2) == 0;
        // Most of a commit is over within a millisecond, some take many.
        let bits = random.below(15);
        Self::Late { lines, in_commit, micros: random.below(1 << bits) }
    }

    /// `fresh` is a store that is yet to be made.
    #[cfg(feature = "kill")]
    fn at_a_point(random: &mut Random, io: &str, fresh: bool) -> Self {
        let (operation, most) = loop {
            // With the highest number that a life reaches easily.
            let picked = match random.below(12) {
                0 | 1 => ("any", 1500),
                2 => ("write", 1000),
                3 => ("sync", 60),
                4 => ("create", 24),
                5 => ("allocate", 24),
                6 => ("set_len", 2),
                7 => ("rename", 1),
                8 => ("remove", 16),
                9 => ("sync_dir", 24),
                10 => ("submit", 400),
                _ => ("complete", 1000),
            };
            let there_is = match picked.0 {
                "submit" | "complete" => io == "uring",
                // Only making a store renames.
                "rename" => fresh,
                _ => true,
            };
            if there_is {
                break picked;
            }
        };
        // Low numbers are the opening and the first commit.
        let most = if random.below(2) == 0 { 8.min(most) } else { most };
        let place = ["before", "middle", "after"][random.below(3) as usize];
        Self::Point(format!("{operation}:{}:{place}", 1 + random.below(most)))
    }
}

/// A reader that looks at a commit while the trainer goes on, and after it is dead.
struct Reader {
    store: Store,
    commit: Rc<Committed>,
}

impl Reader {
    fn open(path: &Path, io: &str, witness: &Witness, life: u64, back: Option<u64>) -> Self {
        let options = StoreOptions { read_only: true, ..train_options(io) };
        let store = Store::open(path, options).unwrap();
        let step = store.last_commit().expect("one was acknowledged").step;
        let reader = Self { store, commit: witness.foresee(life, back, step) };
        reader.look("beside the trainer");
        reader
    }

    fn look(&self, what: &str) {
        let difference = self.commit.difference(&self.store);
        assert!(difference.is_none(), "a reader {what}: {}", difference.unwrap());
    }
}

/// Counts of the results of some kills.
#[derive(Default)]
struct Tally {
    in_flight: u64,
    barren: u64,
    unhurt: u64,
    back: u64,
    readers: u64,
    earlier: u64,
    points: BTreeMap<String, u64>,
}

/// Lets a trainer live until `death`; the reader that was opened beside it, and whether it was
/// killed.
fn live(
    mut trainer: Running,
    death: &Death,
    mut open_reader: impl FnMut() -> Option<Reader>,
) -> (Option<Reader>, bool) {
    let mut reader = None;
    let mut heard = 0;
    loop {
        if let Death::Late { lines, in_commit: _, micros } = death
            && heard >= *lines
        {
            std::thread::sleep(Duration::from_micros(*micros));
            trainer.kill();
            return (reader, true);
        }
        let Some(line) = trainer.listen() else {
            return (reader, trainer.end().is_some());
        };
        if line.starts_with("done") && reader.is_none() {
            reader = open_reader();
        }
        heard += 1;
        if let Death::Late { lines, in_commit: true, .. } = death
            && heard == *lines
            && line != "commit"
        {
            heard -= 1;
        }
    }
}

/// Kills trainers and verifies what they leave.
fn kill_rounds(io: &str, seed: u64, rounds: u64, death: fn(&mut Random, &str, bool) -> Death) {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random(seed);
    let mut tally = Tally::default();
    let mut steps = 0;
    for first in (0..rounds).step_by(LIVES as usize) {
        let path = directory.path().join(format!("store-{first}"));
        let mut witness = Witness::new(&path, train_options(io));
        for round in first..rounds.min(first + LIVES) {
            one_life(io, seed, round, &mut witness, &mut random, &mut tally, death);
        }
        steps += witness.last().step;
        std::fs::remove_dir_all(&path).unwrap();
    }
    assert!(steps > 0, "no trainer got as far as a commit");
    let Tally { in_flight, barren, unhurt, back, readers, earlier, points } = tally;
    println!(
        "{io}: {rounds} lives, {unhurt} of them not killed, {steps} steps, {in_flight} ended after \
         the commit in flight, {barren} without a commit, {back} went back, {readers} had a reader \
         beside them, {earlier} earlier commits compared, kill points {points:?}"
    );
}

fn one_life(
    io: &str,
    seed: u64,
    round: u64,
    witness: &mut Witness,
    random: &mut Random,
    tally: &mut Tally,
    death: fn(&mut Random, &str, bool) -> Death,
) {
    let path = witness.path().to_owned();
    let life = round + 1;
    let death = death(random, io, witness.last().step == 0);
    let back = (random.below(4) == 0).then(|| witness.earlier(random)).flatten();
    let promises = witness.promises();
    let life_text = life.to_string();
    let mut variables =
        vec![("IO", io), ("LIFE", &life_text), ("PROMISES", promises.to_str().unwrap())];
    let back_text = back.map(|step| step.to_string());
    variables.extend(back_text.as_deref().map(|step| ("BACK", step)));
    let point = match &death {
        Death::Point(point) => Some(point.as_str()),
        Death::Late { .. } => None,
    };
    variables.extend(point.map(|point| ("EMBEDROCK_KILL_POINT", point)));
    let with_reader = random.below(3) == 0;
    let trainer = spawn("crash::trainer", &path, &variables);
    let (reader, killed) =
        live(trainer, &death, || with_reader.then(|| Reader::open(&path, io, witness, life, back)));
    let what = format!("seed {seed} round {round} {io} {variables:?}");
    if let Some(reader) = reader {
        // Closed before the store is opened to write, which an older commit in use would forbid.
        reader.look("whose trainer is dead");
        tally.readers += 1;
    }
    let verdict = witness.verify(life, back, &what);
    tally.in_flight += u64::from(verdict.in_flight);
    tally.barren += u64::from(verdict.barren);
    tally.unhurt += u64::from(!killed);
    tally.back += u64::from(back.is_some());
    tally.earlier += verdict.earlier;
    if let Some(point) = point.filter(|_| killed) {
        let (operation, _) = point.split_once(':').unwrap();
        let (_, place) = point.rsplit_once(':').unwrap();
        *tally.points.entry(format!("{operation} {place}")).or_default() += 1;
    }
}

/// Kills in all, over both back ends and both ways to die: few in a test run, 50 and more by hand.
fn rounds() -> u64 {
    std::env::var("EMBEDROCK_KILLS").map_or(24u64, |n| n.parse().unwrap()).div_ceil(4)
}

fn at_moments(random: &mut Random, _io: &str, _fresh: bool) -> Death {
    Death::at_a_moment(random)
}

/// Whether this machine has io_uring; says so where it does not.
fn has_uring() -> bool {
    let directory = tempfile::tempdir().unwrap();
    match Store::open(directory.path().join("probe"), train_options("uring")) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            println!("skipped, this machine has no io_uring: {error}");
            false
        }
    }
}

#[test]
fn a_killed_trainer_leaves_its_last_commit_with_pread() {
    kill_rounds("pread", 1, rounds(), at_moments);
}

#[test]
fn a_killed_trainer_leaves_its_last_commit_with_io_uring() {
    if has_uring() {
        kill_rounds("uring", 2, rounds(), at_moments);
    }
}

#[test]
#[cfg(feature = "kill")]
fn a_trainer_killed_inside_an_operation_leaves_its_last_commit_with_pread() {
    kill_rounds("pread", 3, rounds(), Death::at_a_point);
}

#[test]
#[cfg(feature = "kill")]
fn a_trainer_killed_inside_an_operation_leaves_its_last_commit_with_io_uring() {
    if has_uring() {
        kill_rounds("uring", 4, rounds(), Death::at_a_point);
    }
}
