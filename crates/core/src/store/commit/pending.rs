//! Waiting for a commit that is under way, and the handle of one that runs in the background.

use super::super::Store;
use super::Work;
use crate::config::CommitInfo;
use crate::error::{Error, ErrorKind, Result, bail};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Stage of the commit that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// No commit is under way.
    #[default]
    Over,
    /// Captured, and not recorded.
    Captured,
    /// Recorded; what older commits held is being released.
    Recorded,
}

/// Lets the threads that wait for the commit under way through, when it is far enough.
#[derive(Debug, Default)]
pub(in crate::store) struct CommitGate {
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Number of threads that have begun to wait for a record, since the store was opened.
    #[cfg(test)]
    pub(in crate::store) waiters: std::sync::atomic::AtomicU64,
    /// The commit that is completed by hand, if it is.
    #[cfg(any(test, feature = "testing"))]
    pub(super) by_hand: Mutex<super::by_hand::ByHand>,
}

impl CommitGate {
    /// A commit was captured. The caller has the store alone.
    pub(super) fn begin(&self) {
        *self.phase.lock() = Phase::Captured;
    }

    pub(super) fn recorded(&self) {
        *self.phase.lock() = Phase::Recorded;
        self.changed.notify_all();
    }

    pub(super) fn over(&self) {
        *self.phase.lock() = Phase::Over;
        self.changed.notify_all();
    }

    /// True when no commit is under way.
    pub(in crate::store) fn is_over(&self) -> bool {
        *self.phase.lock() == Phase::Over
    }

    /// Waits until no commit is under way. The caller holds no lock of the store.
    pub(in crate::store) fn wait_until_over(&self) {
        let mut phase = self.phase.lock();
        self.changed.wait_while(&mut phase, |phase| *phase != Phase::Over);
    }

    pub(super) fn wait_until_recorded(&self) {
        let mut phase = self.phase.lock();
        #[cfg(test)]
        self.waiters.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.changed.wait_while(&mut phase, |phase| *phase == Phase::Captured);
    }
}

type Outcome = std::result::Result<CommitInfo, (ErrorKind, String)>;

#[derive(Debug, Default)]
struct Shared {
    outcome: Mutex<Option<Outcome>>,
    told: Condvar,
}

/// A commit that runs by itself. Dropping the handle changes nothing.
#[derive(Clone, Debug)]
pub struct PendingCommit {
    shared: Arc<Shared>,
    pid: u32,
}

impl PendingCommit {
    /// Starts a thread that completes the commit; where there can be none, completes it here.
    pub(super) fn start(store: Store, work: Work, pin: Option<String>) -> Self {
        let shared = Arc::new(Shared::default());
        let pending = Self { shared: Arc::clone(&shared), pid: std::process::id() };
        let slot = Arc::new(Mutex::new(Some((store, work))));
        let run = {
            let slot = Arc::clone(&slot);
            move || {
                let Some((store, work)) = slot.lock().take() else { return };
                let on_panic = TellOnDrop(&shared);
                let made = store.inner.complete(work).and_then(|info| {
                    pin.as_ref().map_or(Ok(()), |name| store.inner.pin_made(&info, name))?;
                    Ok(info)
                });
                // First, because a caller that learns the outcome may open the store again.
                drop(store);
                on_panic.tell(made.map_err(|error| (error.kind(), error.message().to_owned())));
            }
        };
        let run = Arc::new(run);
        let thread = Arc::clone(&run);
        let spawned =
            std::thread::Builder::new().name("embedrock-commit".to_owned()).spawn(move || thread());
        if spawned.is_err() {
            run();
        }
        pending
    }

    /// Waits until the commit is durable, for at most `timeout`; `None` when it is not by then.
    ///
    /// *Errors*: what kept it from becoming durable, at every call; `Forked` in a process that was
    /// forked since, where nobody works on it.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CommitInfo>> {
        self.check_process()?;
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut outcome = self.shared.outcome.lock();
        while outcome.is_none() {
            match until {
                None => self.shared.told.wait(&mut outcome),
                Some(until) => {
                    if self.shared.told.wait_until(&mut outcome, until).timed_out() {
                        break;
                    }
                }
            }
        }
        match &*outcome {
            None => Ok(None),
            Some(Ok(info)) => Ok(Some(info.clone())),
            Some(Err((kind, message))) => Err(Error::new(*kind, message.clone())),
        }
    }

    /// True when the commit is durable or has failed. *Errors*: `Forked`, as `wait`.
    pub fn is_done(&self) -> Result<bool> {
        self.check_process()?;
        Ok(self.shared.outcome.lock().is_some())
    }

    fn check_process(&self) -> Result<()> {
        if self.pid != std::process::id() {
            bail!(
                Forked,
                "the commit runs in process {}, this is its forked child {}; wait for it there",
                self.pid,
                std::process::id()
            );
        }
        Ok(())
    }
}

/// Tells how a commit went; that of a thread that panicked, too.
struct TellOnDrop<'a>(&'a Shared);

impl TellOnDrop<'_> {
    fn tell(self, outcome: Outcome) {
        *self.0.outcome.lock() = Some(outcome);
        self.0.told.notify_all();
    }
}

impl Drop for TellOnDrop<'_> {
    fn drop(&mut self) {
        let mut outcome = self.0.outcome.lock();
        let panicked = || Err((ErrorKind::Poisoned, "a panic in the engine".to_owned()));
        outcome.get_or_insert_with(panicked);
        self.0.told.notify_all();
    }
}
