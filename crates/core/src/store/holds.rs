//! Holds: a reader in another process keeps a commit from being dropped.
//!
//! A hold is a file whose name says the commit and the reader (`docs/formats/head-and-holds.md`)
//! and which the reader keeps locked; the lock dies with the reader. The reader makes its hold first and then checks that the newest commit record still
//! keeps that commit; the writer writes the record first and then looks for holds. So one of the
//! two always sees the other.

use super::lock::try_lock;
use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

const PREFIX: &str = "hold-";

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
        try_lock(&file, libc::F_WRLCK as i16)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The oldest commit that a living reader of another process holds. Holds of dead readers are
/// removed. A hold of this process counts as living.
pub(super) fn oldest(directory: &Path) -> Option<u64> {
    let mut oldest = None;
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name.strip_prefix(PREFIX).unwrap_or("").split('-');
        let sequence = parts.next().and_then(|s| s.parse::<u64>().ok());
        let pid = parts.next().and_then(|s| s.parse::<u32>().ok());
        let (Some(sequence), Some(pid)) = (sequence, pid) else { continue };
        let living = pid == std::process::id()
            || OpenOptions::new()
                .read(true)
                .write(true)
                .open(entry.path())
                .is_ok_and(|file| !try_lock(&file, libc::F_WRLCK as i16).unwrap_or(false));
        if living {
            oldest = Some(oldest.map_or(sequence, |o: u64| o.min(sequence)));
        } else {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    oldest
}
