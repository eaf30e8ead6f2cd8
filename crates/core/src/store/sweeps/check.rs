//! Check: reads every page that a kept commit needs and says what is wrong, and where.

use crate::config::{Memory, StoreOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Finding;
use crate::store::Store;
use crate::store::files::head::{Head, Tells};
use crate::store::files::place::absolute;
use crate::store::files::state;
use serde::Serialize;
use std::path::Path;

/// Problems that are listed one by one; more are only counted.
const PROBLEMS_MAX: usize = 100;
/// Number of tries of a check whose commits are dropped meanwhile.
const TRIES_MAX: usize = 20;

/// One thing that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// Step of the commit that it concerns.
    pub step: u64,
    /// The fault, and its place.
    pub message: String,
}

/// Results of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Commits checked.
    pub commits: usize,
    /// Pages read.
    pub pages: u64,
    /// Rows whose place, table and key were compared with the index.
    pub rows: u64,
    /// The problems found, at most 100.
    pub problems: Vec<Problem>,
    /// Number of problems found.
    pub problem_count: u64,
}

impl CheckReport {
    fn problem(&mut self, step: u64, message: String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { step, message });
        }
    }

    fn add(&mut self, other: Self) {
        self.commits += other.commits;
        self.pages += other.pages;
        self.rows += other.rows;
        self.problem_count += other.problem_count;
        let room = PROBLEMS_MAX - self.problems.len();
        self.problems.extend(other.problems.into_iter().take(room));
    }
}

/// Verifies the store at `path`: journal, state, every page of every kept commit, every row's
/// place. Writes nothing; may run beside a writer. `progress(done, all)` counts pages and may end
/// the check by an error.
///
/// *Errors*: `NotFound`, `Io` for a store that may not be read, and what `progress` returns;
/// `CommitGone` where commits cannot be held and a writer drops them faster than they are checked.
/// Damage is reported, not returned.
pub fn check(
    path: impl AsRef<Path>,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<CheckReport> {
    // Absolute, so that `progress` may change the working directory.
    let path = absolute(path.as_ref())?;
    // No verb runs, so no cache is planned and the budget does not matter.
    let memory = Memory::Bytes(0);
    let options = StoreOptions { read_only: true, create: false, ..StoreOptions::new(memory) };
    for _ in 1..TRIES_MAX {
        match check_all(&path, &options, progress) {
            Err(error) if error.kind() == ErrorKind::CommitGone => {}
            outcome => return outcome,
        }
    }
    check_all(&path, &options, progress)
}

fn check_all(
    path: &Path,
    options: &StoreOptions,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let newest = match Store::open(path, options.clone()) {
        Ok(store) => store,
        Err(error) if is_damage(&error) => {
            report.problem(0, error.message().to_owned());
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let commits = newest.commits();
    let (medium, path) = (newest.inner.medium.clone(), newest.path().to_path_buf());
    let head = Head::read(&*medium, newest.inner.seed)?;
    if head.tells == Tells::Nothing && !commits.is_empty() {
        let what = "head: it is missing or has a wrong checksum; the store opens without it, but \
                     at its last commit only, and could not tell that a newer one was lost; the \
                     next change writes it anew";
        report.problem(commits.last().map_or(0, |c| c.step), what.to_owned());
    }
    check_kept(&newest, &mut report, progress)?;
    let pinned = match newest.pins() {
        Ok(pins) => pins,
        Err(error) if is_damage(&error) => {
            report.problem(commits.last().map_or(0, |c| c.step), error.message().to_owned());
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let mut others: Vec<(u64, u64)> =
        commits.iter().rev().skip(1).map(|commit| (commit.sequence, commit.step)).collect();
    let is_kept = |sequence| commits.iter().any(|commit| commit.sequence == sequence);
    let pinned = pinned.iter().filter(|pin| !is_kept(pin.sequence));
    others.extend(pinned.map(|pin| (pin.sequence, pin.step)));
    // One commit may have several names.
    others.dedup();
    drop(newest);
    for (sequence, step) in others {
        let store = match Store::open_commit(&medium, &path, options, sequence) {
            Ok(store) => store,
            // The writer beside has dropped it.
            Err(error) if error.kind() == ErrorKind::CommitGone => continue,
            Err(error) if is_damage(&error) => {
                report.problem(step, error.message().to_owned());
                continue;
            }
            Err(error) => return Err(error),
        };
        match check_kept(&store, &mut report, progress) {
            Err(error) if error.kind() == ErrorKind::CommitGone => {}
            outcome => outcome?,
        }
    }
    Ok(report)
}

/// False for what says nothing of the store's bytes.
fn is_damage(error: &Error) -> bool {
    use ErrorKind::{Callback, CommitGone, Locked, Mismatch, Misuse, NotFound};
    let others = [Callback, CommitGone, Locked, Mismatch, Misuse, NotFound];
    !error.is_refusal() && !others.contains(&error.kind())
}

/// Checks a commit. `CommitGone`, and nothing is reported, when it could not be held and was
/// dropped meanwhile.
fn check_kept(
    store: &Store,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let mut found = CheckReport::default();
    let checked = check_commit(store, &mut found, progress);
    store.inner.expect_commit()?;
    checked?;
    report.add(found);
    Ok(())
}

pub(in crate::store) fn check_commit(
    store: &Store,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let Some(commit) = store.last_commit() else { return Ok(()) };
    report.commits += 1;
    let inner = &*store.inner;
    let state = inner.history.lock().last_state();
    if let Some(state) = state
        && let Err(error) = state::read(&*inner.medium, inner.seed, &state)
    {
        let error = inner.with_whole_state(error, &state);
        report.problem(commit.step, error.message().to_owned());
    }
    let engine = inner.engine.read();
    for class in &engine.classes {
        let mut said = |finding| {
            let message = match finding {
                Finding::Damage(error) => error.message().to_owned(),
                Finding::Rows { table, indexed, found } => {
                    let records = engine.table_records();
                    let name = &records[usize::from(table)].spec.name;
                    format!("table '{name}' has {indexed} rows by its index, {found} were found")
                }
            };
            report.problem(commit.step, message);
        };
        let checked = class.log.lock().check(progress, &mut said)?;
        report.pages += checked.pages;
        report.rows += checked.rows;
    }
    Ok(())
}
