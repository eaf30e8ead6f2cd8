//! Locks on files of a directory: open-file-description locks of fcntl.
//!
//! Such a lock belongs to an open file, not to a process. It stays when the process opens and
//! closes the file elsewhere (a copy or a backup of the directory does), it keeps two handles of
//! one process apart, and the kernel drops it with the last descriptor, however the process ends.
//! It excludes the record locks of older builds, and they exclude it. Locks of `flock` would not:
//! where a file system has no others, nothing is locked and nothing is written.
//!
//! A forked child shares the open file, and with it the lock, which must end with its holder. So
//! descriptors are noted in a table, and a handler of `pthread_atfork` closes them in the child;
//! `O_CLOEXEC` does in programs that are started. All of it is atomics: a child may be forked
//! while another thread is anywhere in here.

#![expect(unsafe_code, reason = "fcntl locks and pthread_atfork have no safe interface in std")]

use super::folder::Folder;
use super::{FileLock, Locking};
use crate::error::{Error, ErrorKind, Result, bail};
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Locks of one process at a time: one for each open store, and for a moment others.
const LOCKS_MAX: usize = 4096;

/// A descriptor that a forked child has to close.
struct Slot {
    /// A serial number above the descriptor plus 1; 0 where there is none. The serial tells a
    /// guard that a child inherited from a lock that the child has taken since.
    owner: AtomicU64,
    /// The number of the locked file; 0 until it is locked.
    file: AtomicU64,
}

static SLOTS: [Slot; LOCKS_MAX] =
    [const { Slot { owner: AtomicU64::new(0), file: AtomicU64::new(0) } }; LOCKS_MAX];
/// Slots from here on were never used.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);
static SERIAL: AtomicU32 = AtomicU32::new(1);
static HANDLES_FORKS: AtomicBool = AtomicBool::new(false);
/// Forks that have begun, and those that are over as far as this process is concerned.
static FORKS_BEGUN: AtomicU64 = AtomicU64::new(0);
static FORKS_ENDED: AtomicU64 = AtomicU64::new(0);

extern "C" fn fork_begins() {
    FORKS_BEGUN.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn fork_ends() {
    FORKS_ENDED.fetch_add(1, Ordering::SeqCst);
}

/// Runs in a forked child before anything else does, on its only thread.
extern "C" fn child_begins() {
    FORKS_ENDED.store(FORKS_BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
    for slot in &SLOTS[..SLOTS_USED.load(Ordering::SeqCst)] {
        // Looked at first: a write costs the child a copy of the page.
        if slot.owner.load(Ordering::SeqCst) == 0 {
            continue;
        }
        slot.file.store(0, Ordering::SeqCst);
        let owner = slot.owner.swap(0, Ordering::SeqCst);
        if owner != 0 {
            // SAFETY: the number is that of a descriptor which this child inherited and nobody in
            // it uses: guards look at their slot first. `close` may be called after a fork.
            unsafe { libc::close(descriptor_of(owner)) };
        }
    }
}

fn descriptor_of(owner: u64) -> RawFd {
    (owner as u32).wrapping_sub(1) as RawFd
}

/// Makes sure that children close what is noted. Two threads may do it at once; then the handlers
/// run twice, which does no harm. (A `Once` that is under way at a fork never ends in the child.)
fn handle_forks() -> Result<()> {
    if HANDLES_FORKS.load(Ordering::SeqCst) {
        return Ok(());
    }
    // SAFETY: the handlers take no arguments, live as long as the program, and only use atomics
    // and `close`.
    let refused =
        unsafe { libc::pthread_atfork(Some(fork_begins), Some(fork_ends), Some(child_begins)) };
    if refused != 0 {
        let source = io::Error::from_raw_os_error(refused);
        return Err(Error::os("prepare locks for forks", source));
    }
    HANDLES_FORKS.store(true, Ordering::SeqCst);
    Ok(())
}

/// A file whose descriptor is noted.
#[derive(Debug)]
struct Noted {
    /// Closed by `drop`, unless a fork has closed it.
    file: ManuallyDrop<File>,
    slot: usize,
    owner: u64,
}

impl Noted {
    /// Opens a file and notes it, so that no forked child keeps it open.
    fn open(folder: &Folder, name: &str, flags: OFlags) -> Result<Self> {
        handle_forks()?;
        loop {
            let begun = FORKS_BEGUN.load(Ordering::SeqCst);
            if FORKS_ENDED.load(Ordering::SeqCst) < begun {
                std::thread::yield_now();
                continue;
            }
            let opened = folder.open_file(name, flags);
            let file = opened.map_err(|source| os_or_missing(&folder.path().join(name), source))?;
            let noted = Self::note(file)?;
            if FORKS_BEGUN.load(Ordering::SeqCst) == begun {
                return Ok(noted);
            }
            // A child may have been forked between the two, and has a descriptor that nobody
            // closes there. This file is not locked yet and never will be.
        }
    }

    fn note(file: File) -> Result<Self> {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let owner = u64::from(serial) << 32 | u64::from(file.as_raw_fd() as u32 + 1);
        for (number, slot) in SLOTS.iter().enumerate() {
            SLOTS_USED.fetch_max(number + 1, Ordering::SeqCst);
            if slot.owner.compare_exchange(0, owner, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Ok(Self { file: ManuallyDrop::new(file), slot: number, owner });
            }
        }
        bail!(Misuse, "this process has {LOCKS_MAX} stores open; close some of them first")
    }

    /// False in a forked child, where the descriptor is closed and may be another file's.
    fn is_ours(&self) -> bool {
        SLOTS[self.slot].owner.load(Ordering::SeqCst) == self.owner
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let slot = &SLOTS[self.slot];
        slot.file.store(0, Ordering::SeqCst);
        // Not by closing alone: a child that is just being forked has the file open as well.
        let _ = set(&self.file, libc::F_UNLCK);
        slot.owner.store(0, Ordering::SeqCst);
        // SAFETY: this is the only place that drops it, and it runs once.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// A lock on a file of a directory.
#[derive(Debug)]
struct DirectoryLock {
    noted: Noted,
    folder: Arc<Folder>,
    name: String,
}

impl FileLock for DirectoryLock {
    fn is_current(&self) -> Result<bool> {
        if !self.noted.is_ours() {
            return Ok(false);
        }
        let named = self.folder.is_named(&self.noted.file, &self.name);
        named.map_err(|source| Error::os(self.folder.path().join(&self.name).display(), source))
    }
}

/// Locks a file alone, creating it where there is none.
pub(super) fn alone(folder: &Arc<Folder>, name: &str) -> Result<Locking> {
    lock(folder, name, OFlags::RDWR | OFlags::CREATE, libc::F_WRLCK)
}

/// Locks a file that is there against those who want it alone. Needs only the right to read it.
pub(super) fn shared(folder: &Arc<Folder>, name: &str) -> Result<Locking> {
    lock(folder, name, OFlags::RDONLY, libc::F_RDLCK)
}

fn lock(folder: &Arc<Folder>, name: &str, flags: OFlags, kind: i32) -> Result<Locking> {
    let noted = Noted::open(folder, name, flags)?;
    let path: PathBuf = folder.path().join(name);
    let metadata = noted.file.metadata().map_err(|source| Error::os(path.display(), source))?;
    // Never 0, which stands for no file.
    let file = crate::hash::mix(metadata.ino(), metadata.dev()) | 1;
    match set(&noted.file, kind) {
        Ok(()) => {
            SLOTS[noted.slot].file.store(file, Ordering::SeqCst);
            let (folder, name) = (Arc::clone(folder), name.to_owned());
            Ok(Locking::Taken(Box::new(DirectoryLock { noted, folder, name })))
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => {
            let here = SLOTS.iter().any(|slot| slot.file.load(Ordering::SeqCst) == file);
            Ok(Locking::Held { here })
        }
        Err(error) => Err(refused(&path, error)),
    }
}

/// The error for a file system that does not lock.
fn refused(path: &Path, source: io::Error) -> Error {
    let lacks = [libc::EINVAL, libc::ENOLCK, libc::ENOSYS, libc::EOPNOTSUPP];
    if !source.raw_os_error().is_some_and(|code| lacks.contains(&code)) {
        return Error::os(format!("lock {}", path.display()), source);
    }
    let directory = path.parent().unwrap_or(path).display();
    let message = format!(
        "the file system of {directory} has no locks that belong to open files (fcntl says: \
         {source}), without which two writers could damage the store; put it on a local file \
         system such as ext4, xfs, btrfs or tmpfs"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// Sets the lock of a whole open file without waiting.
#[cfg(target_os = "linux")]
fn set(file: &File, kind: i32) -> io::Result<()> {
    let request = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        // Must be 0 for these locks.
        l_pid: 0,
    };
    loop {
        // SAFETY: the descriptor is open for as long as `file` is borrowed, and `request` is a
        // valid structure that the call only reads.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn set(_file: &File, _kind: i32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// `NotFound` for a missing file, `Io` or `Full` for the rest.
fn os_or_missing(path: &Path, source: io::Error) -> Error {
    let what = format!("open {}", path.display());
    if source.kind() == io::ErrorKind::NotFound {
        return Error::new(ErrorKind::NotFound, format!("{what}: there is no such file"));
    }
    Error::os(what, source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Locking::Taken;
    use std::fs;

    /// Locks the file at a path.
    fn alone(path: &Path) -> Result<Locking> {
        let folder = Folder::open(path.parent().unwrap().to_path_buf()).unwrap();
        super::alone(&Arc::new(folder), path.file_name().unwrap().to_str().unwrap())
    }

    fn taken(path: &Path) -> Box<dyn FileLock> {
        match alone(path).unwrap() {
            Locking::Taken(lock) => lock,
            Locking::Held { here } => panic!("{} is locked, here {here}", path.display()),
        }
    }

    fn held(path: &Path) -> Option<bool> {
        match alone(path).unwrap() {
            Locking::Taken(_) => None,
            Locking::Held { here } => Some(here),
        }
    }

    // The kernel drops a record lock when its process closes any descriptor of the file: a copy of
    // the directory by the training process itself let a second writer in.
    #[test]
    fn a_lock_stays_when_the_process_opens_and_closes_the_file_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = taken(&path);
        fs::write(directory.path().join("copy"), fs::read(&path).unwrap()).unwrap();
        drop(File::options().read(true).write(true).open(&path).unwrap());
        assert_eq!(held(&path), Some(true));
        drop(lock);
        assert_eq!(held(&path), None);
    }

    /// The end of a child that locks a file of its own, and has nothing of its parent's lock.
    fn forked(own: &Path, inherited: &dyn FileLock) -> i32 {
        // SAFETY: the child uses a file and a lock of its own and memory that it allocates, and
        // leaves without running anything else. One that hangs is killed by the alarm.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: the call takes a number.
            unsafe { libc::alarm(60) };
            let locked = matches!(alone(own), Ok(Taken(_)));
            let none = matches!(inherited.is_current(), Ok(false));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!(locked && none))) };
        }
        let mut status = -1;
        // SAFETY: waits for the process forked above; `status` is a valid place.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        status
    }

    // The list of what a process had open was behind a mutex: a child hung that was forked while
    // another thread held it.
    #[test]
    fn children_forked_while_other_threads_lock_can_lock_and_keep_nothing() {
        const FORKS: u64 = 100;
        let directory = tempfile::tempdir().unwrap();
        let file = |name: u64| directory.path().join(name.to_string());
        let stop = AtomicBool::new(false);
        let kept = taken(&file(FORKS));
        let statuses = std::thread::scope(|scope| {
            for name in FORKS + 1..FORKS + 4 {
                let (path, stop) = (file(name), &stop);
                scope.spawn(move || {
                    // That a child kept a lock would be seen here.
                    while !stop.load(Ordering::Relaxed) && matches!(alone(&path), Ok(Taken(_))) {}
                    assert!(stop.load(Ordering::Relaxed), "{} is locked", path.display());
                });
            }
            let statuses: Vec<i32> = (0..FORKS).map(|name| forked(&file(name), &*kept)).collect();
            stop.store(true, Ordering::Relaxed);
            statuses
        });
        assert_eq!(statuses, [0; FORKS as usize]);
        drop(kept);
    }

    #[test]
    fn slots_are_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        for _ in 0..3 * LOCKS_MAX {
            drop(taken(&path));
        }
    }

    #[test]
    fn a_file_system_without_locks_is_named_with_the_way_out() {
        let path = Path::new("/mnt/odd/store/lock");
        for code in [libc::EINVAL, libc::ENOLCK, libc::EOPNOTSUPP] {
            let error = refused(path, io::Error::from_raw_os_error(code));
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.message().contains("/mnt/odd/store has no locks"), "{error}");
            assert!(error.message().contains("ext4"), "{error}");
        }
        let error = refused(path, io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    }
}
