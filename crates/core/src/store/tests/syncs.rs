//! Syncs that fail: what is read back afterwards may not be on the disk, and a later sync that
//! succeeds does not bring it there.

use super::plain::{Rows, change, check, commit, open, options};
use super::*;

/// Trains on one machine whatever fails, opening the store again after each error; `failures` say
/// after how many further syncs the next one fails. Returns how many failed.
fn train(medium: &SimMedium, failures: &[u64], seed: u64, commits: u64) -> usize {
    let (mut random, mut rows) = (Random(seed), Rows::default());
    let mut points: BTreeMap<u64, Rows> = BTreeMap::from([(0, rows.clone())]);
    // The last commit that was reported, by a call of its own or on opening.
    let (mut durable, mut reported, mut failed) = (0, 0, 0);
    let mut failures = failures.iter();
    let mut step = 0;
    while step < commits {
        if let Some(after) = failures.next() {
            medium.fail_sync(*after);
        }
        let what = format!("seed {seed}, after failure {failed}");
        let outcome = (|| -> Result<()> {
            let store = open(medium, options(2))?;
            let last = store.last_commit().map_or(0, |c| c.step);
            assert!(last == reported || last == step, "{what}: {last} of {reported} or {step}");
            rows = points[&last].clone();
            check(&store, &rows, &what);
            (step, reported) = (last, last);
            while step < commits {
                change(&store, &mut rows, &mut random)?;
                step += 1;
                points.insert(step, rows.clone());
                commit(&store, step, &mut random)?;
                (durable, reported) = (step, step);
            }
            Ok(())
        })();
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::Io, "{what}: {error}");
            failed += 1;
        }
        survives(medium, durable, &points, step, &what);
    }
    failed
}

/// After any power cut the store has the last commit that was reported durable, or the next.
fn survives(medium: &SimMedium, durable: u64, points: &BTreeMap<u64, Rows>, last: u64, what: &str) {
    for reboot in 0..4 {
        let what = format!("{what}, reboot {reboot}");
        let survivor = medium.reboot(reboot);
        let store = open(&survivor, options(2)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let step = store.last_commit().map_or(0, |c| c.step);
        assert!((durable..=last).contains(&step), "{what}: {step}, not {durable} to {last}");
        check(&store, &points[&step], &what);
    }
}

/// The sync of a commit's record failed. The store was opened again, read the record from the page
/// cache and went on from it, but its bytes counted as clean and never reached the disk: after the
/// next power cut the journal had a hole before commits that had been reported durable.
#[test]
fn a_commit_survives_whichever_sync_failed_before_it() {
    each_kind(|| {
        let every = stride(5) as usize;
        let fails = |after: &u64| train(&SimMedium::new(*after), &[*after], *after, 9) > 0;
        let failed = every * (0..).step_by(every).take_while(fails).count();
        assert!(failed > 40, "only {failed} syncs failed");
    });
}

#[test]
fn a_commit_survives_several_syncs_that_failed_before_it() {
    each_kind(|| {
        for seed in 0..seeds(3) {
            let mut random = Random(seed);
            let failures: Vec<u64> = (0..6).map(|_| random.below(12)).collect();
            let failed = train(&SimMedium::new(seed), &failures, seed, 9);
            assert!(failed > 1, "seed {seed}: {failed} failures");
        }
    });
}

/// Pages that the disk does not have may leave the page cache between opening and the first change.
#[test]
fn a_commit_that_is_gone_since_the_store_was_opened_is_not_built_on() {
    each_kind(|| {
        let medium = SimMedium::new(1);
        let (mut random, mut rows) = (Random(1), Rows::default());
        let store = open(&medium, options(2)).unwrap();
        let mut end = 0;
        for step in 1..=2 {
            change(&store, &mut rows, &mut random).unwrap();
            store.commit(step, "", &[]).unwrap();
            end = store.inner.history.lock().journal().position();
        }
        drop(store);
        // Without it nobody knows that the commit was synced.
        medium.remove("head").unwrap();
        let store = open(&medium, options(2)).unwrap();
        assert_eq!(store.last_commit().unwrap().step, 2);
        medium.flip_bit("journal-00000001", end - 100);
        let error = change(&store, &mut rows, &mut random).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert!(error.message().contains("journal-00000001: bytes"), "{error}");
        drop(store);
        let store = open(&medium, options(2)).unwrap();
        assert_eq!(store.last_commit().unwrap().step, 1);
    });
}
