//! Holds: a reader keeps a commit from being dropped.
//!
//! A hold is a file whose name says the commit and the reader (`docs/formats/head-and-holds.md`)
//! and which the reader keeps locked; the lock dies with the reader. The reader makes its hold
//! first and then checks that the newest commit record still keeps that commit; the writer writes
//! the record first and then looks for holds. So one of the two always sees the other.
//!
//! A writer takes a hold away by removing its file, and the reader can find that out.

use crate::error::{ErrorKind, Result, bail};
use crate::io::{FileLock, Locking, Medium};
use crate::store::files::pins::Pins;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = "hold-";
/// Number of tries: a writer may mistake a hold that is being made for that of a dead reader.
const TRIES_MAX: usize = 100;

/// A reader's claim on a commit.
#[derive(Debug)]
pub(in crate::store) struct Hold {
    medium: Arc<dyn Medium>,
    name: String,
    lock: Box<dyn FileLock>,
}

impl Hold {
    /// Claims a commit; `None` where this process may not write. The caller checks afterwards that
    /// the commit is still kept.
    pub(in crate::store) fn take(medium: &Arc<dyn Medium>, sequence: u64) -> Result<Option<Self>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..TRIES_MAX {
            // A name that another process has is one from a machine, or a container, with equal
            // process numbers.
            let unique = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{sequence:010}-{}-{unique}", std::process::id());
            match medium.lock(&name) {
                // A writer that looks between creating and locking takes it for a dead reader's.
                Ok(Locking::Taken(lock)) if lock.is_current()? => {
                    return Ok(Some(Self { medium: Arc::clone(medium), name, lock }));
                }
                Ok(_) => {}
                Err(error) if error.is_refusal() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        bail!(Locked, "the hold on commit {sequence} is removed again and again; open it later")
    }

    /// False once the writer, or somebody else, has taken it away.
    pub(in crate::store) fn is_current(&self) -> Result<bool> {
        self.lock.is_current()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // While it is locked, so that the name can have become nobody else's.
        if self.lock.is_current().unwrap_or(false) {
            let _ = self.medium.remove(&self.name);
        }
    }
}

/// A hold of a reader that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Held {
    name: String,
    /// The commit that is held.
    pub(in crate::store) sequence: u64,
}

/// The holds of living readers, of this process too. Those of dead readers are removed.
///
/// *Errors*: what keeps it from looking. Nobody may take that for a store without readers.
pub(in crate::store) fn living(medium: &dyn Medium) -> Result<Vec<Held>> {
    let mut living = Vec::new();
    for name in medium.list(PREFIX)? {
        let mut parts = name.strip_prefix(PREFIX).unwrap_or("").split('-');
        let sequence = parts.next().and_then(|part| part.parse().ok());
        let (Some(sequence), Some(_)) = (sequence, parts.next()) else { continue };
        let held = Held { name, sequence };
        if is_alive(medium, &held)? {
            living.push(held);
        }
    }
    Ok(living)
}

/// Whether the reader of a hold lives; if not, its file is removed.
fn is_alive(medium: &dyn Medium, held: &Held) -> Result<bool> {
    match medium.lock_to_look(&held.name) {
        Ok(Locking::Held { .. }) => Ok(true),
        Ok(Locking::Taken(_lock)) => {
            // While it is locked, so that no reader can have taken it meanwhile. One that cannot
            // be removed stays, and is dead.
            let _ = take_away(medium, held);
            Ok(false)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        // A hold that this process may not look at counts as that of a living reader.
        Err(error) if error.is_refusal() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Takes a hold away. Its reader has nothing from then on that keeps its commit, and finds that
/// out by [`Hold::is_current`].
pub(in crate::store) fn take_away(medium: &dyn Medium, held: &Held) -> Result<()> {
    match medium.remove(&held.name) {
        // The reader was faster.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The commits that living readers hold, pinned ones apart, oldest first. Commit 0, a store without
/// commits, is none: its readers need nothing.
pub(in crate::store) fn outside(medium: &dyn Medium, pins: &Pins) -> Result<Vec<u64>> {
    let held = living(medium)?.into_iter().map(|held| held.sequence);
    let mut held: Vec<u64> = held.filter(|held| *held > 0 && !pins.has(*held)).collect();
    held.sort_unstable();
    held.dedup();
    Ok(held)
}

/// Takes the holds of all commits after one away. The journal behind it was cut before: a reader
/// that takes such a hold later finds its commit's record gone.
pub(in crate::store) fn take_later_away(medium: &dyn Medium, last: u64) -> Result<()> {
    let held = living(medium)?;
    held.iter().filter(|held| held.sequence > last).try_for_each(|held| take_away(medium, held))
}
