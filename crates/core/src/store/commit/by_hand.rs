//! Commits that a test completes by hand, portion by portion, on the thread that runs the verbs: so
//! that verbs fall into every stage of a commit, and the same calls do the same.
//!
//! A verb that would wait for a stage of such a commit brings the commit to that stage itself.

use super::super::engine::Engine;
use super::super::{Inner, Store};
use super::{CommitOver, Made, Work};
use crate::config::CommitInfo;
use crate::error::{Error, Result, bail};
use parking_lot::MutexGuard;

/// Stage of a commit by hand.
#[derive(Default)]
pub(super) enum ByHand {
    /// There is none, or its outcome was told.
    #[default]
    None,
    /// Captured, and not recorded.
    Captured(Work),
    /// Recorded, or it has failed; the rest waits until no class is locked.
    Recorded(Result<Made>),
    /// Over, and not told.
    Over(Result<CommitInfo>),
}

impl std::fmt::Debug for ByHand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Captured(_) => "captured",
            Self::Recorded(_) => "recorded",
            Self::Over(_) => "over",
        })
    }
}

impl Store {
    /// As [`commit_in_background`](Self::commit_in_background), without a thread: the caller
    /// completes the commit by [`commit_step`](Self::commit_step). One whose outcome was not told
    /// is finished first, and its outcome is lost.
    pub fn commit_by_hand(&self, step: u64, meta: &str, state: &[(&str, &[u8])]) -> Result<()> {
        let work = self.inner.capture(step, meta, state)?;
        *self.inner.by_hand() = ByHand::Captured(work);
        Ok(())
    }

    /// Does a portion of the commit that is completed by hand; its outcome once it is over, once.
    ///
    /// *Errors*: those of the commit; `Misuse` when there is none.
    pub fn commit_step(&self) -> Result<Option<CommitInfo>> {
        let inner = &*self.inner;
        inner.check_process()?;
        let mut by_hand = inner.by_hand();
        match std::mem::take(&mut *by_hand) {
            ByHand::None => bail!(Misuse, "no commit is completed by hand"),
            ByHand::Over(outcome) => return outcome.map(Some),
            ByHand::Recorded(made) => return inner.end_by_hand(made).map(Some),
            ByHand::Captured(mut work) => {
                let engine = inner.engine.read_recursive();
                *by_hand = inner.step_by_hand(&engine, &mut work);
                if matches!(*by_hand, ByHand::None) {
                    *by_hand = ByHand::Captured(work);
                }
            }
        }
        Ok(None)
    }

    /// Waits until what was written has landed, as it has after a while of any device.
    ///
    /// *Errors*: those of the writes.
    pub fn land_writes(&self) -> Result<()> {
        let engine = self.inner.engine.read();
        engine.classes.iter().try_for_each(|class| class.log.lock().write_out())
    }
}

impl Inner {
    fn by_hand(&self) -> MutexGuard<'_, ByHand> {
        self.commit_gate.by_hand.lock()
    }

    /// One portion; `None` when there are more.
    fn step_by_hand(&self, engine: &Engine, work: &mut Work) -> ByHand {
        let _guard = self.poison_on_panic();
        match self.poison_on_error(self.commit_step(engine, work)) {
            Ok(None) => ByHand::None,
            Ok(Some(made)) => ByHand::Recorded(Ok(made)),
            Err(error) => {
                // Threads that wait for the record go on first, and give up their classes.
                self.commit_gate.recorded();
                ByHand::Recorded(Err(error))
            }
        }
    }

    /// Completes the commit until it is recorded. The caller may hold a class that is closed.
    pub(in crate::store) fn record_by_hand(&self) {
        let mut by_hand = self.by_hand();
        while let ByHand::Captured(work) = &mut *by_hand {
            let engine = self.engine.read_recursive();
            let next = self.step_by_hand(&engine, work);
            if !matches!(next, ByHand::None) {
                *by_hand = next;
            }
        }
    }

    /// Completes the commit. The caller holds no lock of the store.
    pub(in crate::store) fn finish_by_hand(&self) {
        self.record_by_hand();
        let mut by_hand = self.by_hand();
        if matches!(*by_hand, ByHand::Recorded(_))
            && let ByHand::Recorded(made) = std::mem::take(&mut *by_hand)
        {
            *by_hand = ByHand::Over(self.end_by_hand(made));
        }
    }

    fn end_by_hand(&self, made: Result<Made>) -> Result<CommitInfo> {
        let _over = CommitOver { inner: self, made: made.is_ok() };
        let made = made?;
        let released = self.release(&self.engine.read_recursive(), &made);
        self.poison_on_error(released)?;
        Ok::<_, Error>(made.info)
    }
}
