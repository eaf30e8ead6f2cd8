//! The kernel's figures for this process: clocks, bytes, waits, memory; and the page cache of the
//! files of a store.
#![expect(unsafe_code, reason = "clocks, fault counts and file advice have no interface in std")]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Doing, Result};

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to a place that is one.
    let code = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(code, 0, "clock {clock} of this process does not exist");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// User and system time of all threads so far.
pub(crate) fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// User and system time of the calling thread so far.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Page faults of all threads so far that waited for a device.
pub(crate) fn major_faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one rusage, a plain struct of integers for which zeros are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_majflt as u64
}

/// Bytes that this process had read from and written to devices so far.
pub(crate) fn device_bytes() -> (u64, u64) {
    let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
    (field(&text, "read_bytes:"), field(&text, "write_bytes:"))
}

/// Time that the calling thread has waited for a core so far.
pub(crate) fn wait_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// The most memory that was resident at any moment.
pub(crate) fn peak_rss_bytes() -> u64 {
    field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:") << 10
}

/// The kernel's release.
pub(crate) fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into()
}

/// Whether there is swap space in use.
pub(crate) fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

fn field(text: &str, name: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// All files below `place`.
fn files(place: &Path) -> Result<Vec<PathBuf>> {
    let doing = || format!("place {}", place.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(place).doing(doing)? {
        let path = entry.doing(doing)?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Bytes that the files below `place` take on the device.
pub(crate) fn disk_bytes(place: &Path) -> Result<u64> {
    let sizes = files(place)?.into_iter().map(|path| {
        fs::metadata(&path).map(|about| about.blocks() * 512).doing(|| path.display().to_string())
    });
    sizes.sum()
}

/// Writes the files below `place` to the device and takes them out of the page cache: what is
/// cached is charged to whoever read it first, and would be memory for nothing.
pub(crate) fn forget_cached(place: &Path) -> Result<()> {
    for path in files(place)? {
        let doing = || path.display().to_string();
        let file = File::open(&path).doing(doing)?;
        file.sync_all().doing(doing)?;
        forget_file(&file);
    }
    Ok(())
}

/// Takes a file that is on the device as it is out of the page cache.
pub(crate) fn forget_file(file: &File) {
    // SAFETY: advice about an open file touches no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}
