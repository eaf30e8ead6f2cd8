//! The writer lock: one handle at a time changes a store.
//!
//! A lock on the file `lock`, which ends with its process however that ends, and which no forked
//! child keeps (`io/lock.rs`). The file names the holder, for the error of the next one; its text
//! may be out of date, the lock is not. Removing the file lets another writer in, which the one
//! before notices before it changes anything more (`io/guarded.rs`).

use super::state;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{FileLock, GuardedMedium, Locking, Medium, OpenMode};
use std::path::Path;
use std::sync::Arc;

pub(in crate::store) const NAME: &str = "lock";
/// A lock file on its way to its place.
const OWN_NAME: &str = "own-lock";
/// Largest part of the file that is read for the name of its holder.
const HOLDER_BYTES_MAX: u64 = 4096;
/// Number of times that the file may be removed or replaced while it is being locked.
const TRIES_MAX: usize = 100;

/// The right to write to a store, until it is dropped.
#[derive(Debug)]
pub(in crate::store) struct WriterLock {
    lock: Arc<dyn FileLock>,
    /// That of the store's cold directory.
    _cold: Option<Box<WriterLock>>,
}

impl WriterLock {
    /// Takes the lock. `Locked` names who holds it. `path` is the store's, for messages.
    pub(in crate::store) fn take(medium: &dyn Medium, path: &Path) -> Result<Self> {
        for _ in 0..TRIES_MAX {
            match medium.lock(NAME).map_err(or_read_only)? {
                Locking::Taken(lock) if lock.is_current()? => {
                    if medium.state_of(NAME)?.links > 1 {
                        // As in a backup of hard links: two stores would share one lock.
                        make_own(medium).map_err(or_read_only)?;
                        continue;
                    }
                    // Only people read it: where it cannot be written, the lock holds as well.
                    let _ = name_holder(medium);
                    return Ok(Self { lock: Arc::from(lock), _cold: None });
                }
                // Somebody has removed the file meanwhile, and another may lock a new one.
                Locking::Taken(_) => {}
                Locking::Held { here: true } => bail!(
                    Locked,
                    "store {} is open in this process already; close that handle first, or use it",
                    path.display()
                ),
                Locking::Held { here: false } => {
                    let holder = holder(medium).unwrap_or_default();
                    bail!(
                        Locked,
                        "store {} is written to by another process ({}); wait for it or stop it, \
                         or open with read_only=True",
                        path.display(),
                        if holder.is_empty() { "unknown" } else { holder.trim() },
                    );
                }
            }
        }
        bail!(Locked, "the lock file of store {} is removed again and again", path.display())
    }

    /// The medium of the locked file, whose names are changed only while the lock is held, and
    /// whose files are written in place only where they have no other names.
    pub(in crate::store) fn guard(&self, medium: Arc<dyn Medium>) -> Result<Arc<dyn Medium>> {
        Ok(Arc::new(GuardedMedium::new(medium, &self.lock, is_written_in_place)?))
    }

    /// Keeps the lock of the store's cold directory, too.
    pub(in crate::store) fn with_cold(self, cold: Option<Self>) -> Self {
        Self { _cold: cold.map(Box::new), ..self }
    }
}

/// Replaces a lock file that has further names by a new one, which goes to the first to lock it.
fn make_own(medium: &dyn Medium) -> Result<()> {
    match medium.remove(OWN_NAME) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    drop(medium.open(OWN_NAME, OpenMode::CreateNew)?);
    medium.rename(OWN_NAME, NAME)
}

/// Whether files of this name are written in place. Those with states of commits never are, and
/// have second names where commits share one.
fn is_written_in_place(name: &str) -> bool {
    state::sequence_of(name).is_none()
}

/// Says what a process may still do that must not write.
fn or_read_only(error: Error) -> Error {
    if !error.is_refusal() {
        return error;
    }
    let (kind, message) = (error.kind(), error.message());
    Error::new(kind, format!("{message}; to read the store, open it with read_only=True"))
}

fn name_holder(medium: &dyn Medium) -> Result<()> {
    let text = format!("process {} on {}: {}\n", std::process::id(), host(), command());
    let file = medium.open(NAME, OpenMode::ReadWrite)?;
    file.set_len(0)?;
    file.write_at(text.as_bytes(), 0)
}

fn holder(medium: &dyn Medium) -> Result<String> {
    let file = medium.open(NAME, OpenMode::ReadOnly)?;
    let mut text = vec![0; file.len()?.min(HOLDER_BYTES_MAX) as usize];
    file.read_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| "this host".to_owned(), |name| name.trim().to_owned())
}

fn command() -> String {
    let mut words: Vec<String> = std::env::args_os().map(|w| w.to_string_lossy().into()).collect();
    if let Ok(line) = std::fs::read("/proc/self/cmdline") {
        words = line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into()).collect();
    }
    let mut line = words.join(" ");
    if let Some((at, _)) = line.char_indices().nth(200) {
        line.truncate(at);
    }
    line.trim().to_owned()
}
