//! The commits that readers hold beyond the kept ones, and the bound of their bytes.
//!
//! A hold keeps the copies that its commit has, its state and the journal that leads there. Without
//! a bound, one forgotten reader fills the disk.

use super::super::Inner;
use super::super::engine::Engine;
use super::super::files::holds::{self, Held};
use super::super::files::state;
use super::super::journal::number_of;
use crate::error::Result;
use crate::io::OpenMode;
use std::sync::atomic::Ordering;

/// Part of a disk bound that readers may fill where nothing else is said.
const SHARE_OF_BOUND: u64 = 4;

impl Inner {
    /// The oldest commit of which something must stay: the oldest that is kept, or that a reader
    /// holds. If the holds cannot be read, everything stays.
    pub(super) fn oldest_needed(&self, oldest_kept: u64) -> u64 {
        let oldest = |held: Vec<Held>| held.first().map_or(oldest_kept, |held| held.sequence);
        self.held_before(oldest_kept).map_or(0, oldest)
    }

    /// Takes away the oldest holds where they keep more bytes on disk than readers may; their
    /// readers get `CommitGone` when they need what is dropped. Returns the oldest commit of which
    /// something must stay. The caller holds no class: the holder of one may wait for a commit.
    pub(super) fn take_holds_beyond_bound(&self, engine: &Engine, oldest_kept: u64) -> Result<u64> {
        let held = self.held_before(oldest_kept)?;
        let oldest = held.first().map_or(oldest_kept, |held| held.sequence);
        let Some(most) = self.most_held_bytes() else { return Ok(oldest) };
        for Held { sequence, .. } in &held {
            if self.held_bytes(engine, *sequence, oldest_kept)? <= most {
                return Ok(*sequence);
            }
            let mut taken = 0;
            for gone in held.iter().filter(|held| held.sequence == *sequence) {
                holds::take_away(&*self.medium, gone)?;
                self.metrics.holds_taken.fetch_add(1, Ordering::Relaxed);
                taken += 1;
            }
            self.log_holds_taken(*sequence, taken, most);
        }
        Ok(oldest_kept)
    }

    /// Bytes that readers may keep beyond the kept commits, if there is a bound.
    pub(in crate::store) fn most_held_bytes(&self) -> Option<u64> {
        let share = || self.options.max_disk_bytes.map(|most| most / SHARE_OF_BOUND);
        self.options.max_held_bytes.or_else(share)
    }

    /// Holds of commits that are neither kept nor pinned, oldest first.
    pub(super) fn held_before(&self, oldest_kept: u64) -> Result<Vec<Held>> {
        let mut held = holds::living(&*self.medium)?;
        // Commit 0 is a store without commits: its readers need nothing.
        // A pinned commit stays whole, with or without readers.
        let pins = self.pins.lock();
        let is_beside = |of: u64| (1..oldest_kept).contains(&of) && !pins.has(of);
        held.retain(|held| is_beside(held.sequence));
        held.sort_unstable_by_key(|held| held.sequence);
        Ok(held)
    }

    /// Bytes on disk that only commits from `first` up to `oldest_kept` need.
    fn held_bytes(&self, engine: &Engine, first: u64, oldest_kept: u64) -> Result<u64> {
        let mut bytes = 0;
        for class in &engine.classes {
            bytes += class.log.lock().held_bytes(first, oldest_kept);
        }
        bytes += self.left_held_bytes(engine, first);
        let bytes_of = |name: &str| self.medium.open(name, OpenMode::ReadOnly)?.len();
        for name in self.medium.list(state::PREFIX)? {
            let of = state::sequence_of(&name);
            let is_pinned = |sequence| self.pins.lock().has(sequence);
            let is_held = |of| (first..oldest_kept).contains(&of) && !is_pinned(of);
            if of.is_some_and(is_held) {
                bytes += bytes_of(&name)?;
            }
        }
        let base = |of: u64| {
            let history = self.history.lock();
            history.cycles.iter().rfind(|(_, at)| *at <= of).map_or(0, |(file, _)| *file)
        };
        let files = base(first)..base(oldest_kept);
        for name in self.medium.list("journal-")? {
            if number_of(&name).is_some_and(|number| files.contains(&number)) {
                bytes += bytes_of(&name)?;
            }
        }
        Ok(bytes)
    }
}
