//! The thread that commits and refreshes: on a timer, when a client asks for it, and at the end.

use crate::refusal::Refusal;
use crate::server::reload_map;
use crate::shared::Shared;
use crate::worker::{Mail, Post};
use embedrock_core::{CommitInfo, Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long it sleeps when it has nothing to do on a timer.
const LONG: Duration = Duration::from_secs(3600);
/// The highest step of a commit.
pub(crate) const STEP_MOST: u64 = i64::MAX as u64;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Commit, as this step or the next.
    Commit(Option<u64>),
    /// Move to the newest commit.
    Refresh,
    /// Read the map of the cluster again.
    ReloadMap,
}

/// What came of a client's task.
#[derive(Debug)]
pub(crate) enum Done {
    /// The commit that was made or moved to, if there was one.
    Commit(Option<CommitInfo>),
    /// The map was read.
    Reloaded,
}

/// A task of a client.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) task: Task,
    /// The thread of the connection, its number there, and its id.
    pub(crate) worker: usize,
    pub(crate) connection: usize,
    pub(crate) id: u64,
}

/// Runs until no job can come any more; then commits what is left.
///
/// *Errors*: those of the last commit.
pub(crate) fn run(shared: &Arc<Shared>, jobs: &Receiver<Job>, posts: &[Post]) -> Result<()> {
    let every = match shared.is_writable() {
        true => shared.options.commit_every,
        false => shared.options.refresh_every,
    };
    let mut last = Instant::now();
    loop {
        let wait = every.map_or(LONG, |every| every.saturating_sub(last.elapsed()));
        match jobs.recv_timeout(wait) {
            Ok(job) => {
                let done = run_task(shared, job.task).map_err(Refusal::from);
                posts[job.worker].send(Mail::Done { connection: job.connection, id: job.id, done });
            }
            Err(RecvTimeoutError::Timeout) => {
                last = Instant::now();
                on_timer(shared, every.is_some());
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    match shared.is_writable() && shared.store.uncommitted().batches > 0 {
        true => commit(shared, None).map(drop),
        false => Ok(()),
    }
}

/// What the timer does. A failure is counted, and tried again the next time.
fn on_timer(shared: &Arc<Shared>, is_due: bool) {
    let has_failed = shared.timer_failure.lock().is_some();
    let has_changes = shared.store.uncommitted().batches > 0;
    if !is_due || (shared.is_writable() && !has_changes && !has_failed) {
        return;
    }
    let task = if shared.is_writable() { Task::Commit(None) } else { Task::Refresh };
    if run_task(shared, task).is_err() {
        shared.metrics.failed_tasks.inc();
    }
}

/// Runs a task, and tells who asks for the server's health how it went. A task that a client should
/// not have asked for tells nothing of it.
fn run_task(shared: &Arc<Shared>, task: Task) -> Result<Done> {
    let (what, done) = match task {
        Task::Commit(step) => ("commit", commit(shared, step).map(Some)),
        Task::Refresh => ("refresh", refresh(shared)),
        Task::ReloadMap => return reload_map(shared).map(|_| Done::Reloaded),
    };
    match &done {
        Err(error) if error.kind() == ErrorKind::Misuse => {}
        done => {
            let failure = done.as_ref().err().map(|error| format!("{what}: {error}"));
            *shared.timer_failure.lock() = failure;
        }
    }
    done.map(Done::Commit)
}

/// Commits with the named byte strings and the text of the commit before, which a trainer may have
/// put there: it finds them again.
fn commit(shared: &Shared, step: Option<u64>) -> Result<CommitInfo> {
    let last = shared.store.last_commit();
    let state = shared.store.state()?;
    let named: Vec<(&str, &[u8])> =
        state.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let before = last.as_ref().map_or(0, |commit| commit.step);
    let step = step.unwrap_or(before.saturating_add(1).min(STEP_MOST.max(before)));
    if step < before {
        let message = format!(
            "a commit of step {step}, the last one is of step {before}; give that or a later one, \
             or none for the next"
        );
        return Err(Error::new(ErrorKind::Misuse, message));
    }
    let meta = last.map(|commit| commit.meta).unwrap_or_default();
    let made = shared.store.commit(step, &meta, &named)?;
    shared.metrics.commits.inc();
    Ok(made)
}

/// Moves to the newest commit between two turns, and looks which tables there are then.
fn refresh(shared: &Shared) -> Result<Option<CommitInfo>> {
    let _alone = shared.moves.write();
    let moved = shared.store.refresh()?;
    if moved.is_some() {
        shared.catalog.update(&shared.store);
        shared.metrics.refreshes.inc();
    }
    Ok(moved)
}
