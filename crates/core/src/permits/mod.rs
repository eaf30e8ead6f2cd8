//! Bounded staleness: permits for batches in flight.
//!
//! A batch is in flight from the moment its rows are read until its updates are applied. A row may
//! be read while at most `bound` earlier batches that touch it are in flight: 0 is bulk
//! synchronous, a number stale synchronous, [`UNBOUNDED`] asynchronous. That is MLKV's clock of
//! each row (its III-C) without a clock in each row: what is kept is a count for each row that is
//! in flight, here, in memory. A batch waits only for batches that share a row with it.
//!
//! *Order.* Permits are numbered as they are asked for, and a batch waits only for lower numbers.
//! So none starves, and waiting alone never closes a circle; threads that ask for a second permit
//! while they hold one can, and get an error instead.
//!
//! *Two ways.* [`Permits::acquire`] waits until all rows of a batch may be read.
//! [`Permits::enter`] never waits: it says which rows may not be read yet, and
//! [`Permits::release`] says which of them may, so that a pipeline reads the others meanwhile.
//!
//! Rows that are read by nobody who updates them (inference) need no permit.

mod rows;
mod state;
#[cfg(test)]
mod tests;

use crate::config::TableId;
use crate::error::{Error, ErrorKind, Result, bail};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use state::{Deferred, State};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

pub use state::Ready;

/// The bound that never makes a batch wait.
pub const UNBOUNDED: u64 = u64::MAX;

/// The interval at which a waiting thread checks for signals.
const POLL: Duration = Duration::from_millis(50);

/// Counters of permits.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PermitStats {
    /// The bound; None: there is none.
    pub bound: Option<u64>,
    /// Batches in flight.
    pub in_flight: u64,
    /// Different rows that they touch.
    pub rows_in_flight: u64,
    /// Permits given so far.
    pub granted: u64,
    /// Permits that were taken back without an update: errors, abandoned batches.
    pub given_back: u64,
    /// The most earlier batches in flight that touched a row when it could be read.
    pub staleness_max: u64,
    /// Rows that could not be read at once, summed over batches.
    pub deferred_rows: u64,
    /// Batches that waited.
    pub waits: u64,
    /// Seconds that they waited, summed.
    pub wait_s: f64,
    /// Bytes of what is kept of rows in flight.
    pub bytes: u64,
}

/// Rows of a batch that was entered and may not be read yet.
#[derive(Debug, PartialEq)]
pub struct Entered {
    /// The permit.
    pub permit: u64,
    /// For each part of the batch, positions of keys whose rows may not be read yet; of equal keys
    /// the first.
    pub deferred: Vec<Vec<u32>>,
}

/// Permits over the rows of one store.
#[derive(Debug)]
pub struct Permits {
    bound: u64,
    pid: u32,
    state: Mutex<State>,
    /// Told whenever a batch that waits may go on.
    granted: Condvar,
}

impl Permits {
    /// Permits of a bound, none of them given.
    pub fn new(bound: u64) -> Self {
        let pid = std::process::id();
        Self { bound, pid, state: Mutex::default(), granted: Condvar::new() }
    }

    /// The bound; [`UNBOUNDED`] when there is none.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// A permit for a batch, once every row of it may be read.
    ///
    /// The calling thread owns it, until [`Self::hand_over`]. `poll` is called now and then while
    /// waiting, without a lock; its error ends the wait.
    ///
    /// *Errors*: `Misuse` when the batch could wait for ever: for permits of this thread, or of
    /// threads that wait for it in turn; `Forked`; what `poll` returns. The permit is given back
    /// then. *Blocking*: until enough earlier batches that share a row are released.
    pub fn acquire(
        &self,
        batch: &[(TableId, &[u64])],
        poll: &mut dyn FnMut() -> Result<()>,
    ) -> Result<u64> {
        let mut state = self.lock()?;
        let owner = std::thread::current().id();
        let (permit, _) = state.enter(self.bound, batch, Some(owner), true);
        if state.is_granted(permit) {
            return Ok(permit);
        }
        let begin = Instant::now();
        let outcome = self.wait(&mut state, permit, owner, poll);
        state.waited(begin.elapsed());
        if outcome.is_err() {
            state.give_back(permit);
            self.granted.notify_all();
        }
        outcome.map(|()| permit)
    }

    /// A permit for a batch at once, and which of its rows may not be read yet. Nobody owns it.
    ///
    /// *Errors*: `Forked`.
    pub fn enter(&self, batch: &[(TableId, &[u64])]) -> Result<Entered> {
        let mut state = self.lock()?;
        let (permit, found) = state.enter(self.bound, batch, None, false);
        let mut deferred = vec![Vec::new(); batch.len()];
        for Deferred { part, position } in found {
            deferred[part as usize].push(position);
        }
        Ok(Entered { permit, deferred })
    }

    /// Takes a permit back, whose updates are applied. Returned are the rows of entered batches
    /// that may be read because of it.
    ///
    /// *Errors*: `Misuse` when it is not in flight; `Forked`.
    pub fn release(&self, permit: u64) -> Result<Vec<Ready>> {
        let mut state = self.lock()?;
        let Some(ready) = state.release(permit) else {
            bail!(Misuse, "permit {permit} is not in flight; it was released or never given");
        };
        self.granted.notify_all();
        Ok(ready)
    }

    /// Takes a permit back whose batch ends without an update; nothing when it is not in flight.
    ///
    /// *Errors*: `Forked`.
    pub fn give_back(&self, permit: u64) -> Result<Vec<Ready>> {
        let mut state = self.lock()?;
        let ready = state.give_back(permit);
        self.granted.notify_all();
        Ok(ready)
    }

    /// Says that another thread will release the permit, so that its owner may wait for it.
    ///
    /// *Errors*: `Misuse` when it is not in flight; `Forked`.
    pub fn hand_over(&self, permit: u64) -> Result<()> {
        if !self.lock()?.disown(permit) {
            bail!(Misuse, "permit {permit} is not in flight; it was released or never given");
        }
        Ok(())
    }

    /// Counters.
    ///
    /// *Errors*: `Forked`.
    pub fn stats(&self) -> Result<PermitStats> {
        let mut stats = self.lock()?.stats();
        stats.bound = (self.bound != UNBOUNDED).then_some(self.bound);
        Ok(stats)
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        if self.pid != std::process::id() {
            bail!(Forked, "permits were made by process {}, this is its forked child", self.pid);
        }
        Ok(self.state.lock())
    }

    fn wait(
        &self,
        state: &mut MutexGuard<'_, State>,
        permit: u64,
        owner: ThreadId,
        poll: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        // The last to enter a circle finds it: the others wait already.
        if state.is_stuck(self.bound, permit) {
            return Err(stuck(state.owned(owner, permit), self.bound));
        }
        while !state.is_granted(permit) {
            if self.granted.wait_for(state, POLL).timed_out() {
                MutexGuard::unlocked(state, &mut *poll)?;
            }
        }
        Ok(())
    }
}

fn stuck(owned: Vec<u64>, bound: u64) -> Error {
    let own: Vec<String> = owned.iter().map(u64::to_string).collect();
    Error::new(
        ErrorKind::Misuse,
        format!(
            "this batch would wait for ever: it shares rows with more than {bound} batches whose \
             permits only this thread, or threads that wait for it, could release (this thread \
             holds {}); release a permit when the batch's updates are applied, before the next \
             batch is read, hand it over to the thread that will, or raise staleness_bound",
            if own.is_empty() { "none".to_owned() } else { own.join(", ") }
        ),
    )
}
