//! Going back to an earlier commit, and what is left when that ends without a commit of its own.

use super::plain::{Rows, change, check, commit, open, options};
use super::*;
use crate::store::recovery::{Target, recover};

/// The rows of every commit that was made, by its step.
type Points = BTreeMap<u64, Rows>;

/// A store of some commits, and what a power cut during one in the background has left of it.
fn trained(keep: usize, seed: u64) -> (SimMedium, Points, Vec<u64>) {
    let medium = SimMedium::new(seed);
    let (mut random, mut rows) = (Random(seed), Rows::default());
    let mut points = Points::new();
    let store = open(&medium, options(keep)).unwrap();
    for step in 1..=16 {
        change(&store, &mut rows, &mut random).unwrap();
        commit(&store, step, &mut random).unwrap();
        points.insert(step, rows.clone());
    }
    change(&store, &mut rows, &mut random).unwrap();
    points.insert(17, rows.clone());
    medium.power_cut_after(medium.counters().operations + 1 + random.below(15));
    let pending = store.commit_in_background(17, "", &[]);
    let _ = pending.and_then(|pending| pending.wait(None));
    drop(store);
    let medium = medium.reboot(seed);
    let kept = steps(&open(&medium, options(keep)).unwrap());
    assert_eq!(kept.len(), keep);
    (medium, points, kept)
}

/// Seeds to try, and how many operations lie between two cuts.
fn rounds() -> (u64, u64) {
    (seeds(1), stride(17))
}

fn steps(store: &Store) -> Vec<u64> {
    store.commits().iter().map(|c| c.step).collect()
}

/// The store opens at one of `legitimate`, and every commit that it lists opens, to read and to
/// write, with exactly its rows. Returns the steps listed.
fn verify(
    medium: &SimMedium,
    keep: usize,
    points: &Points,
    legitimate: &[u64],
    what: &str,
) -> Vec<u64> {
    let at = |step: Option<u64>, read_only| StoreOptions { step, read_only, ..options(keep) };
    let reader = open(medium, at(None, true)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (listed, last) = (steps(&reader), reader.last_commit().unwrap());
    assert!(legitimate.contains(&last.step), "{what}: opened {} of {legitimate:?}", last.step);
    let (seed, commits) = (reader.inner.seed, reader.commits());
    for info in &commits {
        let what = format!("{what}: commit of step {} of {listed:?}", info.step);
        let reader =
            open(medium, at(Some(info.step), true)).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(reader.last_commit().as_ref(), Some(info), "{what}");
        check(&reader, &points[&info.step], &what);
        let found = recover(medium, seed, &options(1 << 20), &Target::Sequence(info.sequence))
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(found.commits.last().map(|c| c.info.step), Some(info.step), "{what}");
        // To write, on a machine of its own.
        let copy = medium.reboot(info.sequence);
        let store =
            open(&copy, at(Some(info.step), false)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut rows = points[&info.step].clone();
        check(&store, &rows, &what);
        let mut random = Random(info.step);
        for step in 900..902 {
            change(&store, &mut rows, &mut random).unwrap();
            commit(&store, step, &mut random).unwrap();
        }
        check(&store, &rows, &what);
    }
    listed
}

/// Goes back twice and on from there; after each call `done` is told which last commits are
/// legitimate from here on.
fn go_back(
    medium: &SimMedium,
    keep: usize,
    kept: &[u64],
    to: u64,
    points: &mut Points,
    legitimate: &mut Vec<u64>,
) -> Result<()> {
    let at = |step: Option<u64>| StoreOptions { step, ..options(keep) };
    let mut random = Random(to);
    // A change that never becomes a commit.
    *legitimate = kept.iter().copied().filter(|step| *step >= to).collect();
    let store = open(medium, at(Some(to)))?;
    change(&store, &mut points[&to].clone(), &mut random)?;
    *legitimate = vec![to];
    drop(store);
    // Once more, from what is kept there.
    let store = open(medium, at(None))?;
    let listed = steps(&store);
    drop(store);
    let again = listed[random.below(listed.len() as u64) as usize];
    *legitimate = listed.into_iter().filter(|step| *step >= again).collect();
    let store = open(medium, at(Some(again)))?;
    let mut rows = points[&again].clone();
    change(&store, &mut rows, &mut random)?;
    *legitimate = vec![again];
    for step in 100..104 {
        points.insert(step, rows.clone());
        legitimate.push(step);
        let pending = store.commit_in_background(step, "", &[])?;
        pending.wait(None)?;
        *legitimate = vec![step];
        change(&store, &mut rows, &mut random)?;
    }
    Ok(())
}

/// After going back, the oldest commit that is kept was taken from the record of the commit gone
/// back to, though later commits had dropped older ones: the store asked for a journal file that
/// was removed, and never opened again, or listed commits whose pages had been written again.
#[test]
fn after_going_back_a_crash_or_a_close_leaves_commits_that_open() {
    each_kind(|| {
        let (mut cuts, mut dropped) = (0, 0);
        let (rounds, stride) = rounds();
        for keep in [1, 2, 4] {
            for seed in 0..rounds {
                let (medium, points, kept) = trained(keep, seed);
                assert_eq!(kept.len(), keep);
                for to in &kept {
                    let mut operation = 1 + (seed + to) % stride;
                    loop {
                        let machine = medium.reboot(seed * 31 + operation);
                        machine.power_cut_after(operation);
                        let (mut points, mut legitimate) = (points.clone(), Vec::new());
                        let went =
                            go_back(&machine, keep, &kept, *to, &mut points, &mut legitimate);
                        let what = format!("keep {keep} seed {seed} back to {to} cut {operation}");
                        assert_eq!(went.is_err(), machine.power_is_off(), "{what}: {went:?}");
                        let listed =
                            verify(&machine.reboot(operation), keep, &points, &legitimate, &what);
                        dropped += usize::from(listed.len() < keep);
                        if went.is_ok() {
                            break;
                        }
                        operation += stride;
                        cuts += 1;
                    }
                }
            }
        }
        assert!(cuts > 20 && dropped > 4, "{cuts} cuts, {dropped} short lists");
    });
}

/// The oldest commit in the head may be lost, or never have been there: a version that did not
/// write it left such stores.
#[test]
fn after_going_back_a_head_that_is_lost_leaves_commits_that_open() {
    each_kind(|| {
        let mut variants = BTreeMap::new();
        let seeds = seeds(1);
        for (keep, seed) in [2, 4].into_iter().flat_map(|keep| (0..seeds).map(move |s| (keep, s))) {
            let (medium, points, kept) = trained(keep, seed);
            for to in &kept {
                let machine = medium.reboot(seed);
                let at = StoreOptions { step: Some(*to), ..options(keep) };
                let store = open(&machine, at).unwrap();
                change(&store, &mut points[to].clone(), &mut Random(seed)).unwrap();
                drop(store);
                for variant in ["missing", "empty", "damaged", "damaged later"] {
                    let machine = machine.reboot(7);
                    match variant {
                        "missing" => machine.remove("head").unwrap(),
                        "damaged" => machine.flip_bit("head", 3),
                        "damaged later" => machine.flip_bit("head", 17),
                        _ => {
                            let file =
                                machine.open("head", crate::io::OpenMode::ReadWrite).unwrap();
                            file.set_len(0).unwrap();
                        }
                    }
                    let what = format!("keep {keep} seed {seed} back to {to}, head {variant}");
                    let listed = verify(&machine, keep, &points, &[*to], &what);
                    *variants.entry(variant).or_insert(0) += listed.len();
                }
            }
        }
        assert_eq!(variants.len(), 4, "{variants:?}");
    });
}

/// A version that does not note the oldest commit has gone back and left it at that.
#[test]
fn a_store_that_an_older_version_went_back_in_opens_at_its_last_commit() {
    each_kind(|| {
        let (mut opened, seeds) = (0, seeds(2));
        for (keep, seed) in [2, 4].into_iter().flat_map(|keep| (0..seeds).map(move |s| (keep, s))) {
            let (medium, points, kept) = trained(keep, seed);
            for to in &kept {
                let machine = medium.reboot(seed);
                let at = StoreOptions { step: Some(*to), ..options(keep) };
                let store = open(&machine, at).unwrap();
                change(&store, &mut points[to].clone(), &mut Random(seed)).unwrap();
                drop(store);
                let head = machine.open("head", crate::io::OpenMode::ReadWrite).unwrap();
                head.set_len(16).unwrap();
                drop(head);
                let what = format!("keep {keep} seed {seed} back to {to}");
                let store = open(&machine, options(keep)).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(store.last_commit().unwrap().step, *to, "{what}");
                let mut rows = points[to].clone();
                check(&store, &rows, &what);
                let mut random = Random(seed);
                for step in 50..54 {
                    change(&store, &mut rows, &mut random).unwrap();
                    commit(&store, step, &mut random).unwrap();
                }
                drop(store);
                let store = open(&machine, options(keep)).unwrap_or_else(|e| panic!("{what}: {e}"));
                check(&store, &rows, &what);
                opened += 1;
            }
        }
        assert_eq!(opened, 6 * seeds, "each of the commits that are kept");
    });
}
/// Of several later journal files, some were removed and others back after a power cut, with a hole
/// in between that was taken for damage.
#[test]
fn later_journal_files_are_given_up_the_last_first() {
    each_kind(|| {
        let (medium, keep) = (SimMedium::new(1), 16);
        let (mut random, mut rows) = (Random(1), Rows::default());
        let store = open(&medium, options(keep)).unwrap();
        for step in 1..=16 {
            change(&store, &mut rows, &mut random).unwrap();
            store.commit(step, &"m".repeat(140 << 10), &[]).unwrap();
        }
        drop(store);
        let journals = medium.list("journal-").unwrap().len();
        assert!(journals > 3, "only {journals} files");
        let at = StoreOptions { step: Some(1), ..options(keep) };
        for operation in (1..).step_by(stride(3) as usize) {
            let machine = medium.reboot(8);
            machine.power_cut_after(operation);
            let went = open(&machine, at.clone())
                .and_then(|store| change(&store, &mut Rows::default(), &mut Random(1)));
            for reboot in 0..6 {
                let what = format!("cut {operation}, reboot {reboot}");
                let survivor = machine.reboot(reboot);
                let store =
                    open(&survivor, options(keep)).unwrap_or_else(|e| panic!("{what}: {e}"));
                let step = store.last_commit().unwrap().step;
                assert!(step == 1 || went.is_err(), "{what}: {step}");
            }
            if went.is_ok() {
                break;
            }
        }
    });
}

// Of the files that going back gives up, the room of some stayed counted, and states stayed.
#[test]
fn what_going_back_gives_up_takes_no_room() {
    each_kind(|| {
        let keep = 16;
        for to in [1, 4, 7, 12] {
            let (medium, mut random, mut rows) = (SimMedium::new(to), Random(3), Rows::default());
            let store = open(&medium, options(keep)).unwrap();
            for step in 1..=12 {
                change(&store, &mut rows, &mut random).unwrap();
                let state = [step as u8; 50 << 10];
                store.commit(step, &"m".repeat(140 << 10), &[("s", &state)]).unwrap();
            }
            store.close().unwrap();
            drop(store);
            let journals = medium.list("journal-").unwrap().len();
            assert!(journals > 3, "only {journals} files");
            let at = StoreOptions { step: Some(to), ..options(keep) };
            let store = open(&medium, at).unwrap();
            store.inner.prepare_writing().unwrap();
            let states = medium.list("state-").unwrap();
            assert_eq!(states.len() as u64, to, "{states:?}");
            let (taken, said) = (medium.taken_bytes(), store.stats().unwrap().disk_bytes);
            let what = format!("back to {to}: {taken} bytes of disk, and the store says {said}");
            // Of the small files some may be shorter than is counted.
            assert!(taken <= said && said - taken <= 8 << 10, "{what}");
            change(&store, &mut Rows::default(), &mut random).unwrap();
            store.commit(20, "", &[]).unwrap();
        }
    });
}
