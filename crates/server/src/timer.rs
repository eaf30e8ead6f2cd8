//! The thread that commits and refreshes: on a timer, when a client asks for it, and at the end.

use crate::events;
use crate::refusal::Refusal;
use crate::server::reload_map;
use crate::shared::Shared;
use crate::worker::{Mail, Post};
use embedrock_core::{CommitInfo, Error, ErrorKind, Result, TableSpec};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The longest sleep without a task on a timer.
const LONG: Duration = Duration::from_secs(3600);
/// The highest step of a commit.
pub(crate) const STEP_MOST: u64 = i64::MAX as u64;

/// A task to perform.
#[derive(Debug)]
pub(crate) enum Task {
    /// Commit, as this step or the next.
    Commit(Option<u64>),
    /// Move to the newest commit, and follow it from now on.
    Refresh,
    /// Move to the last commit of a step, and stay there.
    Switch(u64),
    /// Make a table.
    Create(Box<TableSpec>),
    /// Read the map of the cluster again.
    ReloadMap,
}

/// The result of a task.
#[derive(Debug)]
pub(crate) enum Finished {
    /// Made a commit, or moved to one.
    Commit(CommitInfo),
    /// There was none newer to move to.
    NoneNewer,
    /// The table is there.
    Created,
    /// The map was read.
    Reloaded,
}

impl Finished {
    /// The step of the commit, if it is about one.
    fn step(&self) -> Option<u64> {
        match self {
            Self::Commit(commit) => Some(commit.step),
            Self::NoneNewer | Self::Created | Self::Reloaded => None,
        }
    }

    /// A move to a commit, or none.
    fn moved(commit: Option<CommitInfo>) -> Self {
        commit.map_or(Self::NoneNewer, Self::Commit)
    }
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

/// A task that was run, as the status page tells it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Done {
    kind: &'static str,
    /// The time of its end.
    unix_s: f64,
    seconds: f64,
    /// The step of the commit that was made or moved to; none where there was nothing newer.
    step: Option<u64>,
    failure: Option<String>,
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
    // A store counts rows that no commit has, and not tables.
    let mut has_new_table = false;
    loop {
        let wait = every.map_or(LONG, |every| every.saturating_sub(last.elapsed()));
        // Jobs that never end do not put off what is due.
        let next = match wait.is_zero() {
            true => Err(RecvTimeoutError::Timeout),
            false => jobs.recv_timeout(wait),
        };
        match next {
            Ok(job) => {
                let done = run_task(shared, job.task).map_err(Refusal::from);
                if let Ok(done) = &done {
                    note(done, &mut has_new_table);
                }
                shared.blocked.fetch_sub(1, Ordering::Relaxed);
                posts[job.worker].send(Mail::Done { connection: job.connection, id: job.id, done });
            }
            Err(RecvTimeoutError::Timeout) => {
                last = Instant::now();
                if every.is_some() {
                    on_timer(shared, &mut has_new_table);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let has_changes = has_new_table || shared.store.uncommitted().batches > 0;
    match shared.is_writable() && has_changes {
        true => commit(shared, step_of(shared, None)?).map(drop),
        false => Ok(()),
    }
}

/// The timer's work. A failure is counted, and tried again the next time.
fn on_timer(shared: &Arc<Shared>, has_new_table: &mut bool) {
    let has_failed = shared.timer_failure.lock().is_some();
    let has_changes = *has_new_table || shared.store.uncommitted().batches > 0;
    let is_pinned = shared.is_pinned.load(Ordering::Relaxed);
    if is_pinned || (shared.is_writable() && !has_changes && !has_failed) {
        return;
    }
    let task = if shared.is_writable() { Task::Commit(None) } else { Task::Refresh };
    match run_task(shared, task) {
        Ok(done) => note(&done, has_new_table),
        Err(_) => {
            shared.metrics.failed_tasks.inc();
        }
    }
}

/// Runs a task, and records its result for the health of the server. A task that a client should
/// not have asked for records nothing.
fn run_task(shared: &Arc<Shared>, task: Task) -> Result<Finished> {
    let begin = Instant::now();
    let (what, done) = match task {
        Task::Commit(step) => {
            let step = step_of(shared, step)?;
            ("commit", commit(shared, step).map(Finished::Commit))
        }
        Task::Refresh => {
            shared.is_pinned.store(false, Ordering::Relaxed);
            ("refresh", move_to(shared, None).map(Finished::moved))
        }
        Task::Switch(step) => ("switch", switch(shared, step).map(Finished::moved)),
        // A commit that does not fit is for the client to resolve.
        Task::Create(spec) => return create(shared, &spec),
        Task::ReloadMap => return reload_map(shared).map(|_| Finished::Reloaded),
    };
    match &done {
        // A server that follows the newest commit does that still.
        Err(_) if matches!(task, Task::Switch(_)) => {}
        done => {
            let failure = done.as_ref().err().map(|error| format!("{what}: {error}"));
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            *shared.last_task.lock() = Some(Done {
                kind: what,
                unix_s: now.as_secs_f64(),
                seconds: begin.elapsed().as_secs_f64(),
                step: done.as_ref().ok().and_then(Finished::step),
                failure: failure.clone(),
            });
            let was_failing = std::mem::replace(&mut *shared.timer_failure.lock(), failure.clone());
            events::task(shared, failure.as_deref(), was_failing.is_some(), begin.elapsed());
        }
    }
    done
}

/// Commits with the named byte strings and the text of the commit before, which a trainer may have
/// put there: it finds them again.
fn commit(shared: &Shared, step: u64) -> Result<CommitInfo> {
    let meta = shared.store.last_commit().map(|commit| commit.meta).unwrap_or_default();
    let made = shared.store.commit_with_last_state(step, &meta)?;
    shared.metrics.commits.inc();
    Ok(made)
}

/// The step of the next commit: the one that is asked for, or one more than the last.
///
/// *Errors*: `Misuse` for one before the last, which says nothing of the server.
fn step_of(shared: &Shared, step: Option<u64>) -> Result<u64> {
    let before = shared.store.last_commit().map_or(0, |commit| commit.step);
    let step = step.unwrap_or(before.saturating_add(1).min(STEP_MOST.max(before)));
    if step < before {
        let message = format!(
            "a commit of step {step}, the last one is of step {before}; give that or a later one, \
             or none for the next"
        );
        return Err(Error::new(ErrorKind::Misuse, message));
    }
    Ok(step)
}

/// Moves to the last commit of a step, and stays there until somebody asks for a refresh.
fn switch(shared: &Shared, step: u64) -> Result<Option<CommitInfo>> {
    let moved = move_to(shared, Some(step))?;
    shared.is_pinned.store(true, Ordering::Relaxed);
    Ok(moved.or_else(|| shared.store.last_commit()))
}

/// Makes a table, which requests find from their next turn on.
fn create(shared: &Shared, spec: &TableSpec) -> Result<Finished> {
    shared.store.table(spec)?;
    shared.catalog.update(&shared.store);
    Ok(Finished::Created)
}

/// Notes whether there is a table that no commit has.
fn note(done: &Finished, has_new_table: &mut bool) {
    match done {
        Finished::Commit(_) => *has_new_table = false,
        Finished::Created => *has_new_table = true,
        Finished::NoneNewer | Finished::Reloaded => {}
    }
}

/// Moves to the newest commit, or to that of a step. Turns go on until it is ready, and wait for
/// the move and for a look at which tables there are then.
fn move_to(shared: &Shared, step: Option<u64>) -> Result<Option<CommitInfo>> {
    let moved = shared.store.refresh_to(step, &mut |go| {
        let _alone = shared.moves.write();
        go()?;
        shared.catalog.update(&shared.store);
        Ok(())
    })?;
    if moved.is_some() {
        shared.metrics.refreshes.inc();
    }
    Ok(moved)
}
