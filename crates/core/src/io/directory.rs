//! A directory of the operating system as a medium.
//!
//! Each file has a buffered descriptor for the blocking calls and, where the file system allows,
//! an O_DIRECT one for queue requests. Both may be used on one file, within these limits, which the
//! kernel's page cache rules give: a direct write drops cached pages of its range, a direct read
//! first writes them back, so calls that follow one another always see one another. Only calls
//! that *overlap in time* may not share a 4-KiB block when one of them is a buffered write. The
//! engine keeps to this by writing row pages through queues alone; a file's header is written and
//! synced before its first row page. Files are never mapped.
//!
//! The back end is chosen once, when the medium is opened. A queue for which the kernel then has
//! too little memory to lock does without: [`Medium::notes`] says what could not be had and why.

#![expect(unsafe_code, reason = "fallocate, statvfs and statx have no safe wrapper in std")]

use super::aligned::BufferPool;
use super::kill::{Operation, Point};
use super::pread::{PreadQueue, Workers};
use super::request::{check_name, check_queue, short_file};
use super::{
    BLOCK_BYTES, Buffers, File, FileState, IoChoice, IoKind, Locking, Medium, OpenMode, Queue,
    RegionFolders, descriptors, lock,
};
use crate::error::{Error, ErrorKind, Result, bail};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Alignment of every direct I/O that a current disk and file system cannot refuse.
const ALIGNMENT_MAX: usize = 4096;
/// The unit of sectors, and the smallest row page.
const ALIGNMENT_MIN: usize = 512;
/// One write of the zero-filling fallback of `allocate`.
static ZEROS: [u8; 65_536] = [0; 65_536];

/// A directory of the operating system.
#[derive(Debug)]
pub struct DirectoryMedium {
    path: PathBuf,
    directory: fs::File,
    choice: IoChoice,
    kind: IoKind,
    /// The alignment of direct requests; `None` where the file system refuses them.
    direct: Option<usize>,
    notes: Vec<String>,
    lacking: Arc<Lacking>,
    workers: OnceLock<Arc<Workers>>,
    /// The folder of new files that are mapped.
    regions: Option<PathBuf>,
    #[cfg(target_os = "linux")]
    make_ring: super::uring::MakeRing,
}

/// What queues and files had to do without, each said once.
#[derive(Debug, Default)]
struct Lacking {
    holes: OnceLock<String>,
    depth: OnceLock<String>,
    registration: OnceLock<String>,
    ring: OnceLock<String>,
}

impl DirectoryMedium {
    /// Opens a directory that exists.
    ///
    /// `Auto` takes io_uring where the kernel lets this process use it, else pread; `Uring` is an
    /// `Unsupported` error where it does not. O_DIRECT is used where the file system has it.
    /// *Blocking*: writes and reads one block of an unnamed file, to see what works.
    pub fn open(path: impl AsRef<Path>, choice: IoChoice) -> Result<Self> {
        Self::open_with(path.as_ref(), choice, true)
    }

    /// As `open`, without ever using O_DIRECT: for tests and comparisons.
    pub fn open_buffered(path: impl AsRef<Path>, choice: IoChoice) -> Result<Self> {
        Self::open_with(path.as_ref(), choice, false)
    }

    fn open_with(path: &Path, choice: IoChoice, direct: bool) -> Result<Self> {
        let what = || format!("open directory {}", path.display());
        // Absolute, so that a later change of the working directory does not move the store.
        let path = fs::canonicalize(path).map_err(|source| os_or_missing(what(), source))?;
        let directory = fs::File::open(&path).map_err(|source| os_or_missing(what(), source))?;
        if !directory.metadata().map_err(|source| Error::os(what(), source))?.is_dir() {
            bail!(Misuse, "{} is no directory", path.display());
        }
        let mut notes = Vec::new();
        let kind = choose(choice, &mut notes)?;
        let direct = match direct.then(|| probe_direct(&path)) {
            Some(Ok(alignment)) => Some(alignment),
            Some(Err(reason)) => {
                notes.push(format!("buffered instead of direct I/O: {reason}"));
                None
            }
            None => None,
        };
        Ok(Self {
            path,
            directory,
            choice,
            kind,
            direct,
            notes,
            lacking: Arc::default(),
            workers: OnceLock::new(),
            regions: None,
            #[cfg(target_os = "linux")]
            make_ring: super::uring::build,
        })
    }

    /// New files that are mapped lie in this folder, which need not exist.
    #[must_use]
    pub fn with_regions_in(self, folder: Option<PathBuf>) -> Self {
        Self { regions: folder, ..self }
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A ring for `depth` requests, or for as many as the kernel gives; `None` when threads serve
    /// instead.
    #[cfg(target_os = "linux")]
    fn ring(&self, depth: usize) -> Result<Option<super::uring::Ring>> {
        use super::uring::{Ring, why_refused};
        match Ring::new(depth, self.make_ring) {
            Ok(ring) => {
                if let Some(error) = &ring.refused {
                    let found = ring.depth;
                    self.lacking.depth.get_or_init(|| {
                        let why = why_refused(error);
                        format!("io_uring for {found} requests, not {depth}: {why}")
                    });
                }
                Ok(Some(ring))
            }
            Err(source) if self.choice == IoChoice::Uring => {
                let what = format!("make an io_uring of {depth} entries (io=\"pread\" needs none)");
                Err(Error::os(what, source))
            }
            Err(error) => {
                self.lacking.ring.get_or_init(|| {
                    let why = why_refused(&error);
                    format!("pread instead of io_uring for {depth} requests: {why}")
                });
                Ok(None)
            }
        }
    }

    fn what(&self, verb: &str, name: &str) -> String {
        format!("{verb} {}", self.path.join(name).display())
    }
}

/// The back end for a choice.
fn choose(choice: IoChoice, notes: &mut Vec<String>) -> Result<IoKind> {
    if choice == IoChoice::Pread {
        return Ok(IoKind::Pread);
    }
    #[cfg(target_os = "linux")]
    let works = super::uring::uring_works();
    #[cfg(not(target_os = "linux"))]
    let works: std::result::Result<(), String> = Err("this system has no io_uring".to_owned());
    match works {
        Ok(()) => Ok(IoKind::Uring),
        Err(reason) if choice == IoChoice::Uring => {
            bail!(Unsupported, "io_uring cannot be used: {reason}; open with io=\"pread\"")
        }
        Err(reason) => {
            notes.push(format!("pread instead of io_uring: {reason}"));
            Ok(IoKind::Pread)
        }
    }
}

impl Medium for DirectoryMedium {
    fn kind(&self) -> IoKind {
        self.kind
    }

    fn direct(&self) -> bool {
        self.direct.is_some()
    }

    fn alignment(&self) -> usize {
        self.direct.unwrap_or(ALIGNMENT_MIN)
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        check_name(name)?;
        let path = self.path.join(name);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(mode != OpenMode::ReadOnly);
        let mut first = options.clone();
        first.create_new(mode == OpenMode::CreateNew);
        let _point = (mode == OpenMode::CreateNew).then(|| Point::begin(Operation::Create));
        let file = descriptors::open(&first, &path)
            .map_err(|source| os_or_missing(self.what("open", name), source))?;
        let direct = self.direct.and_then(|_| direct_twin(&path, &options, &file));
        let lacking = Arc::clone(&self.lacking);
        Ok(Arc::new(DirectoryFile { name: name.to_owned(), file, direct, lacking }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let what = || self.what("list", "");
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(|source| Error::os(what(), source))? {
            let entry = entry.map_err(|source| Error::os(what(), source))?;
            let is_dir = entry.file_type().map_err(|source| Error::os(what(), source))?.is_dir();
            if let (false, Ok(name)) = (is_dir, entry.file_name().into_string())
                && name.starts_with(prefix)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let _point = Point::begin(Operation::Remove);
        fs::remove_file(self.path.join(name))
            .map_err(|source| os_or_missing(self.what("remove", name), source))
    }

    fn link(&self, from: &str, to: &str) -> Result<bool> {
        check_name(from)?;
        check_name(to)?;
        let _point = Point::begin(Operation::Create);
        match fs::hard_link(self.path.join(from), self.path.join(to)) {
            Ok(()) => Ok(true),
            // A file system without second names, or with too many of this file.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(
                        libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK | libc::EXDEV
                    )
                ) =>
            {
                Ok(false)
            }
            Err(source) => {
                Err(os_or_missing(format!("{} to {to}", self.what("link", from)), source))
            }
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        let _point = Point::begin(Operation::Rename);
        fs::rename(self.path.join(from), self.path.join(to)).map_err(|source| {
            os_or_missing(format!("{} to {to}", self.what("rename", from)), source)
        })
    }

    fn lock(&self, name: &str) -> Result<Locking> {
        check_name(name)?;
        lock::alone(&self.path.join(name))
    }

    fn lock_to_look(&self, name: &str) -> Result<Locking> {
        check_name(name)?;
        lock::shared(&self.path.join(name))
    }

    fn state_of(&self, name: &str) -> Result<FileState> {
        check_name(name)?;
        let failed = |source| os_or_missing(self.what("stat", name), source);
        let found = fs::metadata(self.path.join(name)).map_err(failed)?;
        let changed: SystemTime = found.modified().map_err(failed)?;
        let stamp = changed.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos();
        let ago = changed.elapsed().unwrap_or(Duration::ZERO);
        Ok(FileState { bytes: found.len(), stamp, ago })
    }

    fn sync_dir(&self) -> Result<()> {
        let _point = Point::begin(Operation::SyncDir);
        self.directory.sync_all().map_err(|source| Error::os(self.what("sync", ""), source))
    }

    fn free_bytes(&self) -> Result<u64> {
        free_bytes(&self.directory)
            .map_err(|source| Error::os(self.what("ask for the free space of", ""), source))
    }

    fn queue(&self, depth: usize, buffers: Buffers) -> Result<Box<dyn Queue>> {
        let alignment = self.alignment();
        check_queue(depth, buffers, alignment)?;
        let depth = depth.min(buffers.pieces);
        let pool = BufferPool::new(buffers)?;
        #[cfg(target_os = "linux")]
        if self.kind == IoKind::Uring
            && let Some(ring) = self.ring(depth)?
        {
            use super::uring::{UringQueue, why_refused};
            let (queue, refused) = UringQueue::new(ring, pool, alignment, true);
            if let Some(error) = refused {
                self.lacking.registration.get_or_init(|| {
                    format!("io_uring without registered buffers: {}", why_refused(&error))
                });
            }
            return Ok(Box::new(queue));
        }
        let workers = Arc::clone(self.workers.get_or_init(Workers::new));
        Ok(Box::new(PreadQueue::new(depth, pool, alignment, workers)?))
    }

    fn notes(&self) -> Vec<String> {
        let Lacking { holes, depth, registration, ring } = &*self.lacking;
        let later = [holes, depth, registration, ring].into_iter().filter_map(OnceLock::get);
        self.notes.iter().chain(later).cloned().collect()
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn regions(&self) -> Option<RegionFolders> {
        Some(RegionFolders { own: self.path.clone(), apart: self.regions.clone() })
    }
}

/// One open file of a directory.
#[derive(Debug)]
struct DirectoryFile {
    name: String,
    file: fs::File,
    direct: Option<fs::File>,
    lacking: Arc<Lacking>,
}

impl DirectoryFile {
    fn failed(&self, verb: &str, source: io::Error) -> Error {
        Error::os(format!("{verb} {}", self.name), source)
    }

    /// Makes room without the help of the file system: every block of the range that is a hole, or
    /// lies beyond the end, is written. The sync is what detects a lack of space on file systems
    /// that find the place for data only then.
    fn allocate_by_writing(&self, offset: u64, end: u64) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        let mut at = offset;
        let mut block = [0; BLOCK_BYTES as usize];
        while at < end.min(length) {
            // Block by block, because a block with data in it has room already.
            let next = (at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            let part = &mut block[..(next.min(end).min(length) - at) as usize];
            self.file.read_exact_at(part, at)?;
            if part.iter().all(|&byte| byte == 0) {
                self.file.write_all_at(part, at)?;
            }
            at += part.len() as u64;
        }
        while at < end {
            let bytes = (end - at).min(ZEROS.len() as u64) as usize;
            self.file.write_all_at(&ZEROS[..bytes], at)?;
            at += bytes as u64;
        }
        self.file.sync_data()
    }

    /// Whether the blocks of the file system begin and end where this range does.
    fn has_whole_blocks(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        let block = self.file.metadata()?.blksize().max(1);
        Ok(offset.is_multiple_of(block) && bytes.is_multiple_of(block))
    }

    /// Gives back what a failed allocation left beyond the old end.
    fn undo_allocation(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }
}

impl File for DirectoryFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|source| self.failed("stat", source))?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        match self.file.read_exact_at(buffer, offset) {
            Err(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
                Err(short_file(&self.name, offset, buffer.len(), self.len()?))
            }
            result => result.map_err(|source| {
                let what = format!("read {}: {} bytes at {offset}", self.name, buffer.len());
                Error::os(what, source)
            }),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let point = Point::begin(Operation::Write);
        point.middle(|| drop(self.file.write_all_at(&bytes[..bytes.len() / 2], offset)));
        self.file.write_all_at(bytes, offset).map_err(|source| {
            Error::os(format!("write {}: {} bytes at {offset}", self.name, bytes.len()), source)
        })
    }

    fn sync(&self) -> Result<()> {
        let _point = Point::begin(Operation::Sync);
        self.file.sync_data().map_err(|source| self.failed("sync", source))
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        let Some(end) = offset.checked_add(bytes).filter(|&end| end <= i64::MAX as u64) else {
            bail!(Misuse, "allocate {}: {bytes} bytes at {offset} are no file range", self.name);
        };
        if bytes == 0 {
            return Ok(());
        }
        let length = self.len()?;
        // Asked first, so that a hopeless request does not fill the disk for a moment.
        let free =
            free_bytes(&self.file).map_err(|source| self.failed("free space for", source))?;
        if end.saturating_sub(length) > free {
            let name = &self.name;
            bail!(Full, "allocate {name}: {bytes} bytes at {offset}, {free} bytes are free");
        }
        let point = Point::begin(Operation::Allocate);
        point.middle(|| drop(fallocate(self.file.as_raw_fd(), offset, bytes / 2)));
        let result = match fallocate(self.file.as_raw_fd(), offset, bytes) {
            Err(source) if unsupported(&source) => self.allocate_by_writing(offset, end),
            result => result,
        };
        result.map_err(|source| {
            let what = format!("allocate {}: {bytes} bytes at {offset}", self.name);
            match self.undo_allocation(length) {
                Ok(()) => Error::os(what, source),
                Err(undo) => Error::os(format!("{what}, then cut back ({undo})"), source),
            }
        })
    }

    fn give_back(&self, offset: u64, bytes: u64) -> Result<bool> {
        let failed = |source| {
            Error::os(format!("give back {bytes} bytes at {offset} of {}", self.name), source)
        };
        let given = match self.has_whole_blocks(offset, bytes).map_err(failed)? {
            true => punch(self.file.as_raw_fd(), offset, bytes),
            false => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        };
        match given {
            Ok(()) => Ok(true),
            Err(source) if unsupported(&source) => {
                self.lacking.holes.get_or_init(|| {
                    "the file system takes no room back from within a file: what rows have taken \
                     stays taken, but for the end of the file"
                        .to_owned()
                });
                Ok(false)
            }
            Err(source) => Err(failed(source)),
        }
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        let _point = Point::begin(Operation::SetLen);
        self.file
            .set_len(bytes)
            .map_err(|source| self.failed(&format!("set the length {bytes} of"), source))
    }

    fn direct_file(&self) -> Option<&fs::File> {
        Some(self.direct.as_ref().unwrap_or(&self.file))
    }

    fn simulated_id(&self) -> Option<u64> {
        None
    }
}

/// `NotFound` for a missing name, `Io` or `Full` for the rest.
fn os_or_missing(what: String, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::NotFound {
        return Error::new(ErrorKind::NotFound, format!("{what}: there is no such file"));
    }
    let way_out = descriptors::way_out(&source);
    let error = Error::os(what, source);
    match way_out {
        Some(way_out) => error.followed_by(way_out),
        None => error,
    }
}

/// Bytes that an ordinary user may still allocate on the file system of `file`.
fn free_bytes(file: &fs::File) -> io::Result<u64> {
    // SAFETY: statvfs is plain data, for which all zeros is a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open for as long as `file`, and `stat` is writable.
    let status = unsafe { libc::fstatvfs(file.as_raw_fd(), &mut stat) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    #[allow(clippy::unnecessary_cast, reason = "the field widths differ between systems")]
    Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
}

fn unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP) | Some(libc::ENOSYS))
}

#[cfg(target_os = "linux")]
fn fallocate(file: RawFd, offset: u64, bytes: u64) -> io::Result<()> {
    fallocate_mode(file, 0, offset, bytes)
}

#[cfg(target_os = "linux")]
fn punch(file: RawFd, offset: u64, bytes: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate_mode(file, mode, offset, bytes)
}

#[cfg(target_os = "linux")]
fn fallocate_mode(file: RawFd, mode: i32, offset: u64, bytes: u64) -> io::Result<()> {
    loop {
        // SAFETY: the call takes a descriptor and numbers; the caller's file is open. A range that
        // does not fit off_t is refused by the kernel.
        let status = unsafe { libc::fallocate64(file, mode, offset as i64, bytes as i64) };
        if status == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn fallocate(_file: RawFd, _offset: u64, _bytes: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

#[cfg(not(target_os = "linux"))]
fn punch(_file: RawFd, _offset: u64, _bytes: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

#[cfg(target_os = "linux")]
const DIRECT_FLAG: Option<i32> = Some(libc::O_DIRECT);
#[cfg(not(target_os = "linux"))]
const DIRECT_FLAG: Option<i32> = None;

/// A second, direct descriptor of the file just opened. `None`, which means buffered requests for
/// this file, where it cannot be had or another file took the name in between.
fn direct_twin(path: &Path, options: &fs::OpenOptions, file: &fs::File) -> Option<fs::File> {
    let twin = descriptors::open(options.clone().custom_flags(DIRECT_FLAG?), path).ok()?;
    let (one, two) = (file.metadata().ok()?, twin.metadata().ok()?);
    (one.dev() == two.dev() && one.ino() == two.ino()).then_some(twin)
}

/// The alignment that direct I/O needs in a directory, or why it cannot be used there.
fn probe_direct(path: &Path) -> std::result::Result<usize, String> {
    let Some(flag) = DIRECT_FLAG else {
        return Err("this system has no O_DIRECT".to_owned());
    };
    let refused = |error: io::Error| format!("{}: {error}", path.display());
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    match probe_file(path, &options, flag) {
        Ok(file) => probe_alignment(&file, true).map_err(refused),
        // Not ours to write: a file that is there already can tell, too.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EACCES) | Some(libc::EROFS) | Some(libc::EPERM)
            ) =>
        {
            probe_existing(path, flag).map_err(refused)
        }
        Err(error) => Err(refused(error)),
    }
}

/// A file for probing that no crash can leave behind: unnamed, or else unlinked at once.
fn probe_file(path: &Path, options: &fs::OpenOptions, flag: i32) -> io::Result<fs::File> {
    #[cfg(target_os = "linux")]
    if let Ok(file) = options.clone().custom_flags(flag | libc::O_TMPFILE).open(path) {
        return Ok(file);
    }
    let path = path.join(format!(".io-probe-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    let opened = options.clone().create_new(true).custom_flags(flag).open(&path);
    let _ = fs::remove_file(&path);
    opened
}

/// The first file of the directory that is long enough to tell.
fn probe_existing(path: &Path, flag: i32) -> io::Result<usize> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_file() && metadata.len() >= 2 * ALIGNMENT_MAX as u64 {
            let file = fs::OpenOptions::new().read(true).custom_flags(flag).open(entry.path())?;
            return probe_alignment(&file, false);
        }
    }
    Err(io::Error::other("not writable, and no file in it to try"))
}

/// Finds the alignment by asking the kernel, else by trying; either way a transfer must succeed.
fn probe_alignment(file: &fs::File, write: bool) -> io::Result<usize> {
    let mut pool = BufferPool::new(Buffers::equal(1, ALIGNMENT_MAX)).map_err(io::Error::other)?;
    let buffer = pool.acquire(ALIGNMENT_MAX).expect("a new pool has a free buffer");
    let bytes = pool.bytes_mut(buffer);
    let known = told_alignment(file)?;
    if let Some(known) = known
        && known > ALIGNMENT_MAX
    {
        return Err(io::Error::other(format!("direct I/O needs an alignment of {known} bytes")));
    }
    if write {
        file.write_all_at(bytes, 0)?;
    }
    let tries = known.map_or(vec![ALIGNMENT_MIN, ALIGNMENT_MAX], |known| vec![known]);
    let mut outcome = Ok(());
    for alignment in tries {
        // From the second unit where the block has one, so that the offset is tried, too.
        let offset = if alignment < ALIGNMENT_MAX { alignment } else { 0 };
        outcome = file.read_exact_at(&mut bytes[..alignment], offset as u64);
        if outcome.is_ok() {
            return Ok(alignment);
        }
    }
    Err(outcome.err().unwrap_or_else(|| io::Error::other("no alignment to try")))
}

/// The alignment of direct I/O according to statx (Linux 6.1), if it says.
#[cfg(target_os = "linux")]
fn told_alignment(file: &fs::File) -> io::Result<Option<usize>> {
    // SAFETY: statx is plain data, for which all zeros is a value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the path is an empty C string, `stat` is writable.
    let status = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &mut stat,
        )
    };
    if status != 0 || stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok(None);
    }
    if stat.stx_dio_offset_align == 0 {
        return Err(io::Error::other("the file system has no direct I/O for its files"));
    }
    let needed = stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) as usize;
    Ok(Some(needed.max(ALIGNMENT_MIN).next_power_of_two()))
}

#[cfg(not(target_os = "linux"))]
fn told_alignment(_file: &fs::File) -> io::Result<Option<usize>> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_by_writing_fills_holes_and_keeps_data() {
        let directory = tempfile::tempdir().unwrap();
        let medium = DirectoryMedium::open(directory.path(), IoChoice::Pread).unwrap();
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.write_at(b"kept", 100_000).unwrap();
        let raw = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(directory.path().join("rows"))
            .unwrap();
        let lacking = Arc::default();
        let twin = DirectoryFile { name: "rows".into(), file: raw, direct: None, lacking };
        twin.allocate_by_writing(0, 200_000).unwrap();
        assert_eq!(file.len().unwrap(), 200_000);
        let mut bytes = vec![1; 200_000];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[100_000..100_004], b"kept");
        assert_eq!(bytes.iter().filter(|&&byte| byte != 0).count(), 4);
        assert!(twin.file.metadata().unwrap().blocks() * 512 >= 200_000);
    }

    #[test]
    fn an_allocation_beyond_the_file_systems_room_is_full_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let medium = DirectoryMedium::open(directory.path(), IoChoice::Pread).unwrap();
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.write_at(&[1; 5000], 0).unwrap();
        let free = medium.free_bytes().unwrap();
        let error = file.allocate(0, 1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_eq!(file.len().unwrap(), 5000);
        assert!(medium.free_bytes().unwrap() > free / 2);
    }

    #[test]
    fn probing_leaves_no_file_and_knows_the_alignment() {
        let directory = tempfile::tempdir().unwrap();
        let medium = DirectoryMedium::open(directory.path(), IoChoice::Auto).unwrap();
        assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
        assert!([512, 1024, 2048, 4096].contains(&medium.alignment()));
        let buffered = DirectoryMedium::open_buffered(directory.path(), IoChoice::Pread).unwrap();
        assert!(!buffered.direct() && buffered.alignment() == 512);
    }

    #[test]
    fn a_missing_directory_is_not_found() {
        let directory = tempfile::tempdir().unwrap();
        let error = DirectoryMedium::open(directory.path().join("none"), IoChoice::Auto);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    }

    // Some kernels count rings against the limit of locked memory. A queue that did not get its
    // ring failed, and with it the opening of the store.
    #[test]
    #[cfg(target_os = "linux")]
    #[expect(clippy::print_stderr, reason = "a skipped test says why")]
    fn a_queue_does_without_what_locked_memory_does_not_allow() {
        use crate::io::uring::{build, uring_works};
        if let Err(reason) = uring_works() {
            eprintln!("skipped: io_uring cannot be used: {reason}");
            return;
        }
        fn up_to<const MOST: u32>(entries: u32) -> io::Result<io_uring::IoUring> {
            if entries > MOST {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            build(entries)
        }
        let directory = tempfile::tempdir().unwrap();
        let open = |choice, make_ring| {
            let medium = DirectoryMedium::open(directory.path(), choice).unwrap();
            DirectoryMedium { make_ring, ..medium }
        };
        let refused = "Cannot allocate memory";
        let cases: [(IoChoice, super::super::uring::MakeRing, usize, &str); 4] = [
            (IoChoice::Auto, up_to::<128>, 128, ""),
            (IoChoice::Auto, up_to::<100>, 64, "io_uring for 64 requests, not 128: "),
            (IoChoice::Uring, up_to::<100>, 64, "io_uring for 64 requests, not 128: "),
            (IoChoice::Auto, up_to::<3>, 128, "pread instead of io_uring for 128 requests: "),
        ];
        for (choice, make_ring, depth, said) in cases {
            let medium = open(choice, make_ring);
            let known = medium.notes();
            let name = format!("{choice:?}-{depth}-{}", said.len());
            let file = medium.open(&name, OpenMode::CreateNew).unwrap();
            file.write_at(&[7; 256 * 4096], 0).unwrap();
            for _ in 0..2 {
                let mut queue = medium.queue(128, Buffers::equal(128, 4096)).unwrap();
                assert_eq!(queue.depth(), depth);
                let mut done = Vec::new();
                for page in 0..queue.depth() as u64 {
                    let buffer = queue.acquire().unwrap();
                    queue.read(&file, page * 4096, 4096, buffer, page).unwrap();
                }
                queue.wait(depth, &mut done).unwrap();
                assert!(done.iter().all(|c| c.result.is_ok() && queue.buffer(c.buffer)[5] == 7));
            }
            let later = medium.notes().split_off(known.len());
            assert_eq!(later.len(), usize::from(!said.is_empty()), "said once: {later:?}");
            assert!(later.iter().all(|n| n.starts_with(said) && n.contains(refused)), "{later:?}");
        }
        let error =
            open(IoChoice::Uring, up_to::<3>).queue(128, Buffers::equal(128, 4096)).err().unwrap();
        assert!(error.message().contains("io=\"pread\" needs none"), "{error}");
    }
}
