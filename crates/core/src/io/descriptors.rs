//! Descriptors that this process may have, and more of them where they run short.
//!
//! An lsm has all its partitions open, by two descriptors each. The limit that a process begins
//! with is often 1,024, for programs that call `select`; a process may raise it up to a second one.

#![expect(unsafe_code, reason = "limits of a process are known and set only by system calls")]

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

/// The limit is raised no further: programs that close all that they may have open would be slow.
/// Two for each partition of an lsm with as many as there can be.
const LIMIT_MOST: u64 = 1 << 17;

/// Opens a file, by a call that may be repeated. The limit is raised where none is left, or the
/// file has one of the upper half: the rest of the program needs some, too.
pub(super) fn open(attempt: impl Fn() -> io::Result<fs::File>) -> io::Result<fs::File> {
    match attempt() {
        Ok(file) => {
            if limit().is_some_and(|limit| file.as_raw_fd() as u64 >= limit.rlim_cur / 2) {
                raise();
            }
            Ok(file)
        }
        Err(error) if is_lack(&error) && raise() => attempt(),
        refused => refused,
    }
}

/// Whether all descriptors are taken that this process may have.
fn is_lack(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMFILE)
}

/// The way out of an error, where it is a lack of descriptors.
pub(super) fn way_out(error: &io::Error) -> Option<String> {
    let limit = is_lack(error).then(limit).flatten()?;
    Some(format!(
        "this process may have {} files open, and an lsm has each partition open twice; raise the \
         limit (`ulimit -n`)",
        limit.rlim_cur
    ))
}

fn limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable and lives through the call.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (status == 0).then_some(limit)
}

/// Raises the limit as far as it may be; false where it is there already, or the system refuses.
fn raise() -> bool {
    let Some(libc::rlimit { rlim_cur, rlim_max }) = limit() else { return false };
    let raised = libc::rlimit { rlim_cur: rlim_max.min(LIMIT_MOST), rlim_max };
    if raised.rlim_cur <= rlim_cur {
        return false;
    }
    // SAFETY: `raised` lives through the call, which only reads it.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 }
}
