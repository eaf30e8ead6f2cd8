//! The caller's named byte strings of a commit: dense parameters, their optimizer, generators.
//!
//! Format: `docs/formats/state.md`. One file per commit, durable before the commit names it.

use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{File, Medium, OpenMode};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Rows leave room within the disk bound for states as large as the last, and this much more.
pub(in crate::store) const STATE_BYTES_KEPT_FREE: u64 = 64 << 10;
/// Bytes of a state that are copied at a time.
const COPIED_AT_ONCE: u64 = 1 << 20;
/// Prefix of the names of state files.
pub(in crate::store) const PREFIX: &str = "state-";

/// The name of a commit's state file.
pub(in crate::store) fn name_of(sequence: u64) -> String {
    format!("{PREFIX}{sequence:010}")
}

/// The commit of a state file; `None` for names that `name_of` does not give.
pub(in crate::store) fn sequence_of(name: &str) -> Option<u64> {
    let sequence = name.strip_prefix(PREFIX)?.parse().ok()?;
    (name_of(sequence) == name).then_some(sequence)
}

/// The description of a state file in a commit record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateRef {
    /// File name.
    pub(crate) file: String,
    /// Name and length of each byte string, in file order.
    pub(crate) strings: Vec<(String, u64)>,
    /// Checksum over all bytes.
    pub(crate) checksum: u64,
}

impl StateRef {
    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.strings.iter().map(|(_, len)| len).sum()
    }
}

/// A state file that is not synced yet, nor its name.
pub(crate) struct Written {
    /// Its description for the commit record.
    pub(crate) state: StateRef,
    /// The file.
    pub(crate) file: Arc<dyn File>,
}

/// Writes the byte strings of commit `sequence`. `None` when there are none. `Full` leaves nothing
/// behind.
pub(crate) fn write(
    medium: &dyn Medium,
    seed: u64,
    sequence: u64,
    state: &[(&str, &[u8])],
) -> Result<Option<Written>> {
    if state.is_empty() {
        return Ok(None);
    }
    for (i, (name, _)) in state.iter().enumerate() {
        if state[..i].iter().any(|(other, _)| other == name) {
            bail!(Misuse, "state {name:?} is given twice");
        }
    }
    let name = name_of(sequence);
    if crate::store::has_file(medium, &name)? {
        medium.remove(&name)?;
    }
    let mut hash = Xxh3::with_seed(seed);
    let result = (|| {
        let file = medium.open(&name, OpenMode::CreateNew)?;
        let total: u64 = state.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        if total > 0 {
            file.allocate(0, total)?;
        }
        let mut at = 0;
        for (_, bytes) in state {
            hash.update(bytes);
            file.write_at(bytes, at)?;
            at += bytes.len() as u64;
        }
        Ok(file)
    })();
    let file = result.map_err(|error: crate::Error| {
        let _ = medium.remove(&name);
        error.context("state of the commit")
    })?;
    let strings = state.iter().map(|(n, bytes)| ((*n).to_owned(), bytes.len() as u64)).collect();
    let state = StateRef { file: name, strings, checksum: hash.digest() };
    Ok(Some(Written { state, file }))
}

/// Gives commit `sequence` the byte strings of an earlier one: unread where the medium lets a file
/// have two names; else they are copied, and checked, part by part.
pub(crate) fn keep(
    medium: &dyn Medium,
    seed: u64,
    sequence: u64,
    last: &StateRef,
) -> Result<Written> {
    let name = name_of(sequence);
    if crate::store::has_file(medium, &name)? {
        medium.remove(&name)?;
    }
    let has_link = medium.link(&last.file, &name).map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing(&last.file),
        _ => error,
    })?;
    let file = match has_link {
        true => medium.open(&name, OpenMode::ReadWrite),
        false => copy(medium, seed, &name, last),
    };
    let file = file.map_err(|error| {
        let _ = medium.remove(&name);
        error.context("state of the commit")
    })?;
    let state = StateRef { file: name, ..last.clone() };
    Ok(Written { state, file })
}

fn copy(medium: &dyn Medium, seed: u64, to: &str, last: &StateRef) -> Result<Arc<dyn File>> {
    let from = medium.open(&last.file, OpenMode::ReadOnly).map_err(|error| {
        if error.kind() == ErrorKind::NotFound { missing(&last.file) } else { error }
    })?;
    let total = last.bytes();
    let file = medium.open(to, OpenMode::CreateNew)?;
    if total > 0 {
        file.allocate(0, total)?;
    }
    let mut hash = Xxh3::with_seed(seed);
    let mut part = vec![0; total.min(COPIED_AT_ONCE) as usize];
    let mut at = 0;
    while at < total {
        let part = &mut part[..(total - at).min(COPIED_AT_ONCE) as usize];
        from.read_at(part, at)?;
        hash.update(part);
        file.write_at(part, at)?;
        at += part.len() as u64;
    }
    if hash.digest() != last.checksum {
        return Err(damaged(&last.file, total));
    }
    Ok(file)
}

/// Whether the byte strings of a commit are there and check. Reads them part by part.
pub(crate) fn is_whole(medium: &dyn Medium, seed: u64, state: &StateRef) -> bool {
    let whole = || -> Result<bool> {
        let file = medium.open(&state.file, OpenMode::ReadOnly)?;
        let total = state.bytes();
        if file.len()? < total {
            return Ok(false);
        }
        let mut hash = Xxh3::with_seed(seed);
        let mut part = vec![0; total.min(COPIED_AT_ONCE) as usize];
        let mut at = 0;
        while at < total {
            let part = &mut part[..(total - at).min(COPIED_AT_ONCE) as usize];
            file.read_at(part, at)?;
            hash.update(part);
            at += part.len() as u64;
        }
        Ok(hash.digest() == state.checksum)
    };
    whole().unwrap_or(false)
}

fn missing(name: &str) -> Error {
    let message = format!("{name} is missing");
    Error::new(ErrorKind::Corrupt, message)
}

fn damaged(name: &str, bytes: u64) -> Error {
    let message = format!("{name}: checksum does not match over bytes 0 to {bytes}");
    Error::new(ErrorKind::Corrupt, message)
}

/// Reads and checks the byte strings of a commit. Damage has no way out yet: commits whose byte
/// strings are the same share them.
pub(crate) fn read(
    medium: &dyn Medium,
    seed: u64,
    state: &StateRef,
) -> Result<Vec<(String, Vec<u8>)>> {
    let file = medium.open(&state.file, OpenMode::ReadOnly).map_err(|error| {
        if error.kind() == ErrorKind::NotFound { missing(&state.file) } else { error }
    })?;
    let (have, want) = (file.len()?, state.bytes());
    if have < want {
        bail!(Corrupt, "{} has {have} of {want} bytes", state.file);
    }
    let mut hash = Xxh3::with_seed(seed);
    let mut found = Vec::with_capacity(state.strings.len());
    let mut at = 0;
    for (name, len) in &state.strings {
        let mut bytes = vec![0; *len as usize];
        file.read_at(&mut bytes, at)?;
        hash.update(&bytes);
        at += len;
        found.push((name.clone(), bytes));
    }
    if hash.digest() != state.checksum {
        return Err(damaged(&state.file, at));
    }
    Ok(found)
}
