//! The writer lock: one process at a time changes a store.
//!
//! A POSIX record lock on the file `lock`: the kernel drops it when its process ends, however it
//! ends, and a forked child does not inherit it. The file names the holder, for the error of the
//! next one. Record locks do not keep two handles of one process apart, so paths that this
//! process has open are remembered.
#![expect(unsafe_code, reason = "fcntl record locks have no safe interface in std")]

use crate::error::{Error, Result, bail};
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Who opened what: a forked child inherits the list, but not the locks.
static OPEN_HERE: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

/// The right to write to a store.
#[derive(Debug)]
pub(super) struct WriterLock {
    file: Mutex<Option<File>>,
    path: PathBuf,
}

impl WriterLock {
    /// Takes the lock. `Locked` names who holds it, and what several trainers should do.
    pub(super) fn take(directory: &Path) -> Result<Self> {
        let path = directory.canonicalize().map_err(|e| Error::os(directory.display(), e))?;
        let name = path.join("lock");
        let mut open = OPEN_HERE.lock();
        if open.contains(&(std::process::id(), path.clone())) {
            bail!(
                Locked,
                "store {} is open in this process already; close that handle first, or use it",
                path.display()
            );
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&name)
            .map_err(|e| Error::os(name.display(), e))?;
        if !try_lock(&file, libc::F_WRLCK as i16)? {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            bail!(
                Locked,
                "store {} is written to by another process ({}); wait for it or stop it, or open \
                 with read_only=True{}",
                path.display(),
                if holder.is_empty() { "unknown" } else { holder.trim() },
                distributed_advice()
            );
        }
        let holder = format!("process {} on {}: {}\n", std::process::id(), host(), command());
        let written = file.set_len(0).and_then(|()| file.rewind());
        written
            .and_then(|()| file.write_all(holder.as_bytes()))
            .map_err(|e| Error::os(name.display(), e))?;
        open.push((std::process::id(), path.clone()));
        Ok(Self { file: Mutex::new(Some(file)), path })
    }

    /// Gives the lock back.
    pub(super) fn release(&self) {
        if self.file.lock().take().is_some() {
            let here = std::process::id();
            OPEN_HERE.lock().retain(|(pid, path)| *pid != here || *path != self.path);
        }
    }
}

impl Drop for WriterLock {
    fn drop(&mut self) {
        self.release();
    }
}

/// Tries to lock a whole file; false when another process holds it.
pub(super) fn try_lock(file: &File, kind: i16) -> Result<bool> {
    let request = libc::flock {
        l_type: kind,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and `request` is a valid
    // flock that the call only reads.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &request) };
    if result == 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EACCES) | Some(libc::EAGAIN) => Ok(false),
        _ => Err(Error::os("lock", error)),
    }
}

fn distributed_advice() -> &'static str {
    let set =
        |name| std::env::var_os(name).is_some_and(|value| value != "1" || name != "WORLD_SIZE");
    if set("WORLD_SIZE") && (set("RANK") || set("LOCAL_RANK")) {
        "; this looks like a distributed job (RANK and WORLD_SIZE are set): a store has one \
         writer, so give each rank a store of its own (path/rank-0, path/rank-1, ...), or let \
         rank 0 alone hold the tables"
    } else {
        ""
    }
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
