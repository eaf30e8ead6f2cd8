//! A small run of fixed seeds, with every fault; and that planted bugs are found. `make nightly`
//! has larger ones, by `make torture` and `make planted`.
#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use embedrock_torture::{Fault, Limits, Soak};
use std::sync::Mutex;

/// A planted bug is in every store of the process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn stores_hold_through_every_fault() {
    let _alone = ALONE.lock();
    let limits = Limits::default();
    let soak = Soak { first: 7_000, seeds: Some(10), time: None, limits, jobs: 2, failures_max: 1 };
    let outcome = soak.run(&mut |_| true);
    let failures: Vec<String> = outcome
        .failures
        .iter()
        .map(|failure| embedrock_torture::text::failure(failure, "embedrock torture"))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(outcome.counts.operations > 2_000, "{} operations", outcome.counts.operations);
    for fault in Fault::ALL {
        assert!(outcome.counts.faults[fault as usize] > 0, "{} never struck", fault.name());
    }
}

/// Of a range of seeds of which few find each of these bugs.
#[cfg(feature = "planted")]
const FIRST: u64 = 4_000_013;

#[cfg(feature = "planted")]
#[test]
#[ignore = "a minute on one core; make contests runs it"]
fn planted_bugs_are_found() {
    use embedrock_torture::planted::{Bug, catch};
    let _alone = ALONE.lock();
    let bugs = [
        Bug::RecordSyncSkipped,
        Bug::ChecksumNotCompared,
        Bug::DeleteDeltaLost,
        Bug::RecordRefused,
        Bug::BucketNotChecked,
        Bug::BudgetNotAsked,
        Bug::FolderUnchecked,
        Bug::StretchReleasedEarly,
        Bug::StretchReadEarly,
    ];
    for bug in bugs {
        let caught = catch::<1>(bug, FIRST, &Limits::default());
        assert!(caught.is_good(), "{}: {:?}", bug.name(), caught.seeds);
    }
}
