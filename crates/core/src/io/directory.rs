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
//! All names are looked up in the directory that was opened ([`Folder`]), whatever its path leads
//! to by then.
//!
//! The back end is chosen once, when the medium is opened. A queue for which the kernel then has
//! too little memory to lock does without: [`Medium::notes`] says what could not be had and why.

use super::aligned::BufferPool;
use super::direct::{self, ALIGNMENT_MIN};
use super::folder::Folder;
use super::kill::{Operation, Point};
use super::pread::{PreadQueue, Workers};
use super::request::{check_name, check_queue, short_file};
use super::{
    BLOCK_BYTES, Buffers, File, FileState, IoChoice, IoKind, Locking, Medium, OpenMode, Queue,
    RegionFolders, descriptors, lock,
};
use crate::error::{Error, ErrorKind, Result, bail};
use rustix::fs::OFlags;
#[cfg(target_os = "linux")]
use rustix::io::retry_on_intr;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One write of the zero-filling fallback of `allocate`.
static ZEROS: [u8; 65_536] = [0; 65_536];

/// Finds the alignment of direct requests, or why there are none.
type Probe = fn(&Folder) -> io::Result<std::result::Result<usize, String>>;

/// A directory of the operating system.
#[derive(Debug)]
pub struct DirectoryMedium {
    folder: Arc<Folder>,
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

/// Features that queues and files had to do without, each reported once.
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
        Self::open_with(path.as_ref(), choice, Some(direct::probe))
    }

    /// As `open`, of a directory in which nothing is written: the first file that is long enough
    /// tells what works.
    pub fn open_to_read(path: impl AsRef<Path>, choice: IoChoice) -> Result<Self> {
        Self::open_with(path.as_ref(), choice, Some(direct::probe_existing))
    }

    /// As `open`, without ever using O_DIRECT: for tests and comparisons.
    pub fn open_buffered(path: impl AsRef<Path>, choice: IoChoice) -> Result<Self> {
        Self::open_with(path.as_ref(), choice, None)
    }

    fn open_with(path: &Path, choice: IoChoice, probe: Option<Probe>) -> Result<Self> {
        let what = || format!("open directory {}", path.display());
        // Absolute, so that a later change of the working directory does not move the store.
        let path = fs::canonicalize(path).map_err(|source| os_or_missing(what(), source))?;
        let folder = Folder::open(path).map_err(|source| os_or_missing(what(), source))?;
        let metadata = folder.file().metadata().map_err(|source| Error::os(what(), source))?;
        if !metadata.is_dir() {
            bail!(Misuse, "{} is no directory", folder.path().display());
        }
        let mut notes = Vec::new();
        let kind = choose(choice, &mut notes)?;
        let failed = |source| {
            os_or_missing(format!("try direct I/O in {}", folder.path().display()), source)
        };
        let direct = match probe.map(|probe| probe(&folder).map_err(failed)).transpose()? {
            Some(Ok(alignment)) => Some(alignment),
            Some(Err(reason)) => {
                notes.push(format!("buffered instead of direct I/O: {reason}"));
                None
            }
            None => None,
        };
        Ok(Self {
            folder: Arc::new(folder),
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

    /// The absolute path by which it was opened.
    pub fn path(&self) -> &Path {
        self.folder.path()
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
        format!("{verb} {}", self.path().join(name).display())
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
        let failed = |source| os_or_missing(self.what("open", name), source);
        let flags = if mode == OpenMode::ReadOnly { OFlags::RDONLY } else { OFlags::RDWR };
        let creates = mode == OpenMode::CreateNew;
        let first = if creates { flags | OFlags::CREATE | OFlags::EXCL } else { flags };
        let _point = creates.then(|| Point::begin(Operation::Create));
        let file = self.folder.open_file(name, first).map_err(failed)?;
        let direct = match self.direct {
            Some(_) => direct::twin(&self.folder, name, flags, &file).map_err(failed)?,
            None => None,
        };
        let lacking = Arc::clone(&self.lacking);
        Ok(Arc::new(DirectoryFile { name: name.to_owned(), file, direct, lacking }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let names = self.folder.names();
        let mut names = names.map_err(|source| Error::os(self.what("list", ""), source))?;
        names.retain(|name| name.starts_with(prefix));
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let _point = Point::begin(Operation::Remove);
        let removed = self.folder.remove(name);
        removed.map_err(|source| os_or_missing(self.what("remove", name), source))
    }

    fn link(&self, from: &str, to: &str) -> Result<bool> {
        check_name(from)?;
        check_name(to)?;
        let _point = Point::begin(Operation::Create);
        match self.folder.link(from, to) {
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
        self.folder.rename(from, to).map_err(|source| {
            os_or_missing(format!("{} to {to}", self.what("rename", from)), source)
        })
    }

    fn lock(&self, name: &str) -> Result<Locking> {
        check_name(name)?;
        lock::alone(&self.folder, name)
    }

    fn lock_to_look(&self, name: &str) -> Result<Locking> {
        check_name(name)?;
        lock::shared(&self.folder, name)
    }

    fn state_of(&self, name: &str) -> Result<FileState> {
        check_name(name)?;
        let failed = |source| os_or_missing(self.what("stat", name), source);
        let found = self.folder.stat(name).map_err(failed)?;
        // A time before 1970 says nothing, like one in the future.
        let seconds = u64::try_from(found.st_mtime).unwrap_or(0);
        let stamp = Duration::from_secs(seconds) + Duration::from_nanos(found.st_mtime_nsec);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Ok(FileState {
            bytes: found.st_size as u64,
            stamp: stamp.as_nanos(),
            ago: now.saturating_sub(stamp),
            links: found.st_nlink,
        })
    }

    fn sync_dir(&self) -> Result<()> {
        let _point = Point::begin(Operation::SyncDir);
        self.folder.file().sync_all().map_err(|source| Error::os(self.what("sync", ""), source))
    }

    fn free_bytes(&self) -> Result<u64> {
        free_bytes(self.folder.file())
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
        Some(self.folder.path())
    }

    fn displaced(&self) -> Result<Option<String>> {
        let displaced = self.folder.displaced();
        displaced.map_err(|source| Error::os(self.what("look for", ""), source))
    }

    fn regions(&self) -> Option<RegionFolders> {
        Some(RegionFolders { own: self.path().to_path_buf(), apart: self.regions.clone() })
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
        point.middle(|| drop(fallocate(&self.file, offset, bytes / 2)));
        let result = match fallocate(&self.file, offset, bytes) {
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
            true => punch(&self.file, offset, bytes),
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
    let stat = rustix::fs::fstatvfs(file)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP) | Some(libc::ENOSYS))
}

#[cfg(target_os = "linux")]
fn fallocate(file: &fs::File, offset: u64, bytes: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;
    let allocate = || rustix::fs::fallocate(file, FallocateFlags::empty(), offset, bytes);
    Ok(retry_on_intr(allocate)?)
}

#[cfg(target_os = "linux")]
fn punch(file: &fs::File, offset: u64, bytes: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(retry_on_intr(|| rustix::fs::fallocate(file, mode, offset, bytes))?)
}

#[cfg(not(target_os = "linux"))]
fn fallocate(_file: &fs::File, _offset: u64, _bytes: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

#[cfg(not(target_os = "linux"))]
fn punch(_file: &fs::File, _offset: u64, _bytes: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
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
