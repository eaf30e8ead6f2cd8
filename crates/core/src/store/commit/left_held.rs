//! Commits that readers hold since before this writer opened the store.
//!
//! The writer before had kept what they need: the copies of their rows, their states, the journal
//! files that lead to them. This one recovers the index of each from the journal, which tells the
//! files of rows that have its copies, and keeps those as it keeps the files of pinned commits; so
//! it goes on as the one before would have. The next commit releases those whose readers have
//! ended.

use super::first_write::Beside;
use crate::config::StoreOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Medium;
use crate::storage::Parts;
use crate::store::Inner;
use crate::store::engine::{Class, Engine};
use crate::store::files::holds;
use crate::store::open::build;
use crate::store::recovery::recover_held;
use std::path::Path;
use std::sync::Arc;

/// A commit that a reader holds, and what it needs of the files of rows, by class.
#[derive(Debug)]
pub(in crate::store) struct LeftHeld {
    sequence: u64,
    classes: Vec<Parts>,
}

/// Keeps what these commits need of an engine that is being opened to write, before anything is
/// written. *Memory*: one of their indexes at a time, beside that of the engine.
///
/// *Errors*: `Locked` where it cannot be told what one of them needs.
pub(in crate::store) fn keep_left_held(
    engine: &Engine,
    medium: &Arc<dyn Medium>,
    path: &Path,
    options: &StoreOptions,
    seed: u64,
    older: &[u64],
) -> Result<Vec<LeftHeld>> {
    let mut kept: Vec<LeftHeld> = Vec::new();
    for sequence in older {
        let done = parts_of(medium, options, seed, *sequence).and_then(|classes| {
            keep(engine, *sequence, &classes)?;
            Ok(LeftHeld { sequence: *sequence, classes })
        });
        match done {
            Ok(held) => kept.push(held),
            // Damage, or a reader that is about to find out that its commit is gone.
            Err(error) if error.kind() != ErrorKind::Io => {
                let what = format!("what it needs cannot be told: {}", error.message());
                return Err(Beside::Older(*sequence).refusal(path).followed_by(what));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(kept)
}

/// The parts of the files of rows that a commit needs, by class.
fn parts_of(
    medium: &Arc<dyn Medium>,
    options: &StoreOptions,
    seed: u64,
    sequence: u64,
) -> Result<Vec<Parts>> {
    let reading = StoreOptions { read_only: true, create: false, ..options.clone() };
    let mut recovered = recover_held(&**medium, seed, options.merging(), sequence)?;
    let mut engine = Engine::default();
    build(&mut engine, medium, &reading, 0, &mut recovered)?;
    Ok(engine.classes.iter().map(|class| class.log.lock().parts()).collect())
}

fn keep(engine: &Engine, sequence: u64, classes: &[Parts]) -> Result<()> {
    if classes.len() > engine.classes.len() {
        let what = format!("commit {sequence} has more classes of rows than the store");
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    let each = |(class, parts): (&Class, &Parts)| class.log.lock().pin(sequence, parts);
    engine.classes.iter().zip(classes).try_for_each(each)
}

impl Inner {
    /// Lets go of commits whose readers have ended, or have lost their holds. The caller holds no
    /// class.
    pub(super) fn release_left_held(&self, engine: &Engine) -> Result<()> {
        let mut left = self.left_held.lock();
        if left.is_empty() {
            return Ok(());
        }
        let living = holds::living(&*self.medium)?;
        left.retain(|held| {
            let is_held = living.iter().any(|one| one.sequence == held.sequence);
            if !is_held {
                engine.classes.iter().for_each(|class| class.log.lock().unpin(held.sequence));
            }
            is_held
        });
        Ok(())
    }

    /// Whether what a commit needs is kept since the store was opened.
    pub(in crate::store) fn is_left_held(&self, sequence: u64) -> bool {
        self.left_held.lock().iter().any(|held| held.sequence == sequence)
    }

    /// Bytes of rows that only such commits from `first` on keep.
    pub(super) fn left_held_bytes(&self, engine: &Engine, first: u64) -> u64 {
        let left = self.left_held.lock();
        let counted: Vec<&LeftHeld> = left.iter().filter(|held| held.sequence >= first).collect();
        let mut bytes = 0;
        for (at, held) in counted.iter().enumerate() {
            for (number, class) in engine.classes.iter().enumerate() {
                let of = |held: &&'_ LeftHeld| held.classes.get(number).cloned();
                let others: Vec<Parts> = counted[at + 1..].iter().filter_map(of).collect();
                let others: Vec<&Parts> = others.iter().collect();
                if let Some(parts) = held.classes.get(number) {
                    bytes += class.log.lock().bytes_of_pin(parts, &others);
                }
            }
        }
        bytes
    }
}
