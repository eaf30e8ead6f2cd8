//! Holds: a reader in another process keeps a commit from being dropped.
//!
//! A hold is a file whose name says the commit and the reader (`docs/formats/head-and-holds.md`)
//! and which the reader keeps locked; the lock dies with the reader. The reader makes its hold
//! first and then checks that the newest commit record still keeps that commit; the writer writes
//! the record first and then looks for holds. So one of the two always sees the other.

use super::lock::try_lock;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PREFIX: &str = "hold-";

/// Holds that this process has.
static OWN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A reader's claim on a commit.
#[derive(Debug)]
pub(super) struct Hold {
    path: PathBuf,
    _file: File,
}

impl Hold {
    /// Claims a commit. The caller checks afterwards that it is still kept.
    pub(super) fn take(directory: &Path, sequence: u64) -> Result<Self> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        loop {
            // A name that another process has is one from a machine, or a container, with equal
            // process numbers.
            let unique = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let name = format!("{PREFIX}{sequence:010}-{}-{unique}", std::process::id());
            let path = directory.join(name);
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
                .map_err(|e| Error::os(path.display(), e))?;
            // A writer that looks between the two takes the file for a dead reader's.
            if try_lock(&file, libc::F_WRLCK as i16)? && is_at(&file, &path) {
                OWN.lock().push(path.clone());
                return Ok(Self { path, _file: file });
            }
        }
    }
}

/// True when `path` still names this file.
fn is_at(file: &File, path: &Path) -> bool {
    let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(file), Ok(path)) => inode(file) == inode(path),
        _ => false,
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        OWN.lock().retain(|path| *path != self.path);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The oldest and the newest commit that living readers hold. Holds of dead readers are removed.
/// A lock says nothing about holds of this process itself, and opening such a file would lose it.
pub(super) fn span(directory: &Path) -> Option<(u64, u64)> {
    let mut span = None;
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name.strip_prefix(PREFIX).unwrap_or("").split('-');
        let sequence = parts.next().and_then(|s| s.parse::<u64>().ok());
        let pid = parts.next().and_then(|s| s.parse::<u32>().ok());
        let (Some(sequence), Some(pid)) = (sequence, pid) else { continue };
        let path = entry.path();
        let own = pid == std::process::id() && OWN.lock().contains(&path);
        if own || is_alive(&path) {
            let (oldest, newest) = span.unwrap_or((sequence, sequence));
            span = Some((sequence.min(oldest), sequence.max(newest)));
        }
    }
    span
}

/// Whether the reader of a hold lives; if not, its file is removed.
fn is_alive(path: &Path) -> bool {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => {
            let dead = try_lock(&file, libc::F_WRLCK as i16).unwrap_or(false);
            if dead {
                // While this process has the lock, so that no reader can have taken it meanwhile.
                let _ = std::fs::remove_file(path);
            }
            !dead
        }
        // The file of another user cannot be told from one that is held.
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}
