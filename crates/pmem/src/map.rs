//! Words in a mapping: of a file on persistent memory, on tmpfs or on a disk, or of no file.
//!
//! A file is locked while it is mapped, and its room is reserved before, so that no store to the
//! mapping finds the device full. Nothing guards against another program that cuts the file, or a
//! device that fails to read a page: the kernel ends the process then (SIGBUS).
#![expect(unsafe_code, reason = "memory mappings and cache lines exist only as raw addresses")]

use crate::error::{Error, ErrorKind, Result};
use crate::medium::{Durability, Medium, WORD_BYTES};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE_BYTES: usize = 4096;
const LINE_WORDS: usize = 64 / WORD_BYTES;

/// From statfs(2).
const FILE_SYSTEMS_IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// A mapping, and how its words become durable.
pub struct Mapped {
    address: NonNull<AtomicU64>,
    words: usize,
    durability: Durability,
    write_back: WriteBack,
    /// Held during `msync`: later fences wait for it.
    unsynced: Mutex<Unsynced>,
    /// A bit for each page that was read ahead since the mapping was made; empty if none need be.
    expected: Box<[AtomicU64]>,
    path: Option<PathBuf>,
    /// Keeps the lock of the file.
    file: Option<File>,
    /// The process that mapped it. A forked child has a part in the mapping and in the lock.
    process: u32,
}

/// The parts of a file that are not synced yet.
#[derive(Default)]
struct Unsynced {
    /// Pages from the first to the last one that was flushed.
    pages: Option<Range<usize>>,
    /// The kernel reports a page that it could not write once: what comes later proves nothing.
    failed: bool,
}

// SAFETY: the mapping is of atomic words, belongs to this value alone, and lives as long as it.
unsafe impl Send for Mapped {}
// SAFETY: as above; words are accessed as atomics only.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Zeroed memory of this process alone, on huge pages where the kernel gives them.
    ///
    /// # Errors
    /// `Io` where there is not enough memory.
    pub fn anonymous(bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let made =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        let address =
            made.map_err(|error| Error::io(format!("cannot map {bytes} bytes"), error))?;
        // SAFETY: advice on the mapping above changes no contents. Kernels may refuse it.
        let _ = unsafe { madvise(address, bytes, Advice::LinuxHugepage) };
        Ok(Self::over(address, bytes, Durability::Process, None, None))
    }

    /// Makes a file of `bytes` (zeroed, room reserved, locked) and maps it.
    ///
    /// # Errors
    /// `Misuse` if the file exists; `Io`, also where the device has no room.
    pub fn create(path: &Path, bytes: usize) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Error::misuse(format!(
                "{} exists; open it, or choose another name for the new region",
                path.display()
            )),
            _ => Error::io(format!("cannot create {}", path.display()), error),
        })?;
        lock(&file, path)?;
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        fallocate(&file, FallocateFlags::empty(), 0, bytes as u64).map_err(|error| {
            // The incomplete file is useless, and room is short.
            let _ = std::fs::remove_file(path);
            Error::io(format!("cannot reserve {bytes} bytes for {}", path.display()), error)
        })?;
        Self::of_file(file, path, bytes)
    }

    /// Maps a file, which stays locked while it is mapped.
    ///
    /// # Errors
    /// `Locked` where another process has it; `Io`; `Misuse` where it is no regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let cannot = |error| Error::io(format!("cannot open {}", path.display()), error);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(cannot)?;
        let about = file.metadata().map_err(cannot)?;
        if !about.is_file() {
            return Err(Error::misuse(format!(
                "{} is no regular file; for persistent memory make a file on a file system \
                 mounted with -o dax",
                path.display()
            )));
        }
        lock(&file, path)?;
        let bytes = about.len() as usize / PAGE_BYTES * PAGE_BYTES;
        if bytes == 0 {
            return Err(Error::corrupt(format!(
                "{} has {} bytes, a region has at least {PAGE_BYTES}",
                path.display(),
                about.len()
            )));
        }
        // A copy may have holes where the region has nothing yet. A write there, on a disk without
        // room, would end the process.
        if std::os::unix::fs::MetadataExt::blocks(&about) * 512 < about.len() {
            fallocate(&file, FallocateFlags::empty(), 0, about.len()).map_err(|error| {
                Error::io(format!("cannot reserve {bytes} bytes for {}", path.display()), error)
            })?;
        }
        Self::of_file(file, path, bytes)
    }

    fn of_file(file: File, path: &Path, bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let map = |flags| {
            // SAFETY: a new mapping at an address of the kernel's choice.
            unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0) }
        };
        let (address, durability) = match map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
            Ok(address) if WriteBack::exists() => (address, Durability::Lines),
            found => {
                if let Ok(address) = found {
                    // SAFETY: the mapping above, which nobody knows.
                    let _ = unsafe { rustix::mm::munmap(address, bytes) };
                }
                let address = map(MapFlags::SHARED).map_err(|error| {
                    Error::io(format!("cannot map {} ({bytes} bytes)", path.display()), error)
                })?;
                (address, durability_of(&file, path)?)
            }
        };
        if durability == Durability::Sync {
            // Rows lie at random: reading around a fault would read what nobody asked for.
            // SAFETY: advice on the mapping above changes no contents.
            let _ = unsafe { madvise(address, bytes, Advice::Random) };
        }
        Ok(Self::over(address, bytes, durability, Some(path.to_owned()), Some(file)))
    }

    fn over(
        address: *mut std::ffi::c_void,
        bytes: usize,
        durability: Durability,
        path: Option<PathBuf>,
        file: Option<File>,
    ) -> Self {
        let pages = if durability == Durability::Sync { bytes / PAGE_BYTES } else { 0 };
        Self {
            address: NonNull::new(address.cast()).expect("the kernel maps nothing at address 0"),
            words: bytes / WORD_BYTES,
            durability,
            write_back: WriteBack::best(),
            unsynced: Mutex::default(),
            expected: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            path,
            file,
            process: std::process::id(),
        }
    }

    #[inline(always)]
    fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, aligned to pages, and lives as long as `self`.
        // The memory is accessed through these atomics alone.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.words) }
    }

    /// Whole pages around words.
    fn pages(words: Range<usize>) -> Range<usize> {
        words.start * WORD_BYTES / PAGE_BYTES..(words.end * WORD_BYTES).div_ceil(PAGE_BYTES)
    }

    fn address_of_page(&self, page: usize) -> *mut std::ffi::c_void {
        self.all()[page * (PAGE_BYTES / WORD_BYTES)..].as_ptr().cast_mut().cast()
    }
}

impl Medium for Mapped {
    fn words(&self) -> usize {
        self.words
    }

    #[inline(always)]
    fn load(&self, word: usize) -> u64 {
        self.all()[word].load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, word: usize, value: u64) {
        self.all()[word].store(value, Ordering::Release);
    }

    #[inline(always)]
    fn exchange(&self, word: usize, current: u64, new: u64) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.all()[word].compare_exchange(current, new, success, failure).is_ok()
    }

    fn flush(&self, words: Range<usize>) {
        if words.is_empty() {
            return;
        }
        assert!(words.end <= self.words, "words {words:?} of {}", self.words);
        match self.durability {
            Durability::Process | Durability::Kill => {}
            Durability::Lines => {
                let first = words.start / LINE_WORDS * LINE_WORDS;
                for line in (first..words.end).step_by(LINE_WORDS) {
                    self.write_back.line(&self.all()[line]);
                }
            }
            Durability::Sync => {
                let pages = Self::pages(words);
                let mut unsynced = self.unsynced.lock();
                unsynced.pages = Some(match unsynced.pages.take() {
                    None => pages,
                    Some(old) => old.start.min(pages.start)..old.end.max(pages.end),
                });
            }
        }
    }

    fn fence(&self) -> Result<()> {
        match self.durability {
            Durability::Process | Durability::Kill => Ok(()),
            Durability::Lines => {
                WriteBack::fence();
                Ok(())
            }
            Durability::Sync => {
                let mut unsynced = self.unsynced.lock();
                let cannot = |why| Error::io(format!("cannot sync {}", self.name()), why);
                if unsynced.failed {
                    let why = "an earlier sync failed, and it is unknown what it left out";
                    return Err(cannot(std::io::Error::other(why)));
                }
                let Some(pages) = unsynced.pages.clone() else { return Ok(()) };
                // One call over all of them: the kernel writes the changed pages among them alone.
                let bytes = pages.len() * PAGE_BYTES;
                // SAFETY: these pages are of the mapping; syncing changes no contents.
                let synced =
                    unsafe { msync(self.address_of_page(pages.start), bytes, MsyncFlags::SYNC) };
                unsynced.failed = synced.is_err();
                unsynced.pages = None;
                synced.map_err(|error| cannot(error.into()))
            }
        }
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    #[inline(always)]
    fn prefetch(&self, word: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let place = self.address.as_ptr().wrapping_add(word).cast::<i8>();
            // SAFETY: the instruction accesses nothing and faults on no address.
            #[allow(unused_unsafe, reason = "safe to call in later releases of Rust")]
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(place);
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = word;
    }

    fn expect(&self, words: Range<usize>) {
        if self.expected.is_empty() || words.is_empty() {
            return;
        }
        for page in Self::pages(words) {
            let (group, bit) = (&self.expected[page / 64], 1 << (page % 64));
            if group.load(Ordering::Relaxed) & bit == 0 {
                group.fetch_or(bit, Ordering::Relaxed);
                let place = self.address_of_page(page);
                // SAFETY: advice on a page of the mapping changes no contents.
                let _ = unsafe { madvise(place, PAGE_BYTES, Advice::WillNeed) };
            }
        }
    }

    fn share(&self, words: Range<usize>) -> Option<&[AtomicU64]> {
        Some(&self.all()[words])
    }

    fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "memory".to_owned(), |path| path.display().to_string())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let (Some(file), true) = (&self.file, self.process == std::process::id()) {
            // Not by closing alone: a forked child that lives on has the file open as well.
            let _ = flock(file, FlockOperation::Unlock);
        }
        // SAFETY: the mapping is this value's alone, and no borrow of it outlives the value.
        let _ =
            unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.words * WORD_BYTES) };
    }
}

fn lock(file: &File, path: &Path) -> Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        Errno::WOULDBLOCK => Error::new(
            ErrorKind::Locked,
            format!("{} is open elsewhere; a region has one process at a time", path.display()),
        ),
        _ => Error::io(format!("cannot lock {}", path.display()), error),
    })
}

fn durability_of(file: &File, path: &Path) -> Result<Durability> {
    let about = fstatfs(file)
        .map_err(|error| Error::io(format!("cannot examine {}", path.display()), error))?;
    let in_memory = FILE_SYSTEMS_IN_MEMORY.contains(&(about.f_type as u64));
    Ok(if in_memory { Durability::Kill } else { Durability::Sync })
}

/// The instruction that writes a cache line back to persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteBack {
    /// The line may stay in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// The line leaves the cache.
    #[cfg(target_arch = "x86_64")]
    Clflushopt,
    /// As above, and in order.
    #[cfg(target_arch = "x86_64")]
    Clflush,
    /// The processor has no instruction that this crate knows: files are synced.
    #[cfg(not(target_arch = "x86_64"))]
    None,
}

impl WriteBack {
    fn exists() -> bool {
        cfg!(target_arch = "x86_64")
    }

    #[cfg(target_arch = "x86_64")]
    fn best() -> Self {
        // Leaf 7 of cpuid, from Intel's manual, volume 2.
        #[allow(unused_unsafe, reason = "safe to call in later releases of Rust")]
        // SAFETY: every 64-bit processor has the instruction, which changes nothing.
        let features = unsafe {
            match std::arch::x86_64::__cpuid(0).eax >= 7 {
                true => std::arch::x86_64::__cpuid_count(7, 0).ebx,
                false => 0,
            }
        };
        match (features >> 24 & 1, features >> 23 & 1) {
            (1, _) => Self::Clwb,
            (0, 1) => Self::Clflushopt,
            _ => Self::Clflush,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn best() -> Self {
        Self::None
    }

    #[inline]
    fn line(self, place: &AtomicU64) {
        #[cfg(target_arch = "x86_64")]
        {
            let place = std::ptr::from_ref(place);
            // SAFETY: the place is valid, the processor has the instruction (`best`), and it
            // changes no contents. It orders after the stores before it: `asm!` clobbers memory.
            unsafe {
                match self {
                    Self::Clwb => std::arch::asm!("clwb [{}]", in(reg) place,
                        options(nostack, preserves_flags)),
                    Self::Clflushopt => std::arch::asm!("clflushopt [{}]", in(reg) place,
                        options(nostack, preserves_flags)),
                    Self::Clflush => std::arch::asm!("clflush [{}]", in(reg) place,
                        options(nostack, preserves_flags)),
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = place;
    }

    #[inline]
    fn fence() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction orders stores and write-backs, and changes nothing.
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_also_of_part_of_a_word() {
        let memory = Mapped::anonymous(4096).expect("memory");
        let bytes: Vec<u8> = (1..=21).collect();
        memory.store(5, u64::MAX);
        memory.write(3, &bytes);
        let mut back = [0; 21];
        memory.read(3, &mut back);
        assert_eq!(back.as_slice(), bytes);
        assert_eq!(memory.load(5), u64::from_le_bytes([17, 18, 19, 20, 21, 0, 0, 0]));
    }

    #[test]
    fn a_synced_file_has_its_words_when_it_is_mapped_again() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("region");
        let file = Mapped::create(&path, 3 * PAGE_BYTES).expect("create");
        assert_eq!(file.words(), 3 * PAGE_BYTES / WORD_BYTES);
        file.store(0, 7);
        file.store(1500, 8);
        file.flush(1500..1501);
        file.flush(0..1);
        file.fence().expect("fence");
        assert!(file.unsynced.lock().pages.is_none());
        file.unsynced.lock().failed = true;
        let error = file.fence().expect_err("not after a failure");
        assert!(error.to_string().contains("an earlier sync failed"), "{error}");
        drop(file);
        let file = Mapped::open(&path).expect("open");
        assert_eq!((file.load(0), file.load(1500)), (7, 8));
    }

    #[test]
    fn a_mapped_file_is_locked_and_one_that_exists_is_not_made_anew() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("region");
        let file = Mapped::create(&path, 1).expect("create");
        let kind = |found: Result<Mapped>| found.err().map(|error| error.kind());
        assert_eq!(kind(Mapped::open(&path)), Some(ErrorKind::Locked));
        assert_eq!(kind(Mapped::create(&path, 1)), Some(ErrorKind::Misuse));
        drop(file);
        assert_eq!(kind(Mapped::open(&path)), None);
        assert_eq!(kind(Mapped::open(folder.path())), Some(ErrorKind::Io));
        assert_eq!(kind(Mapped::open(Path::new("/dev/null"))), Some(ErrorKind::Misuse));
    }

    #[test]
    fn a_file_in_memory_says_that_it_does_not_survive_a_power_cut() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let file = Mapped::create(&folder.path().join("region"), 1).expect("create");
        assert_eq!(file.durability(), Durability::Kill);
        assert!(!file.durability().survives_power_cut());
        file.flush(0..1);
        file.fence().expect("fence");
    }

    #[test]
    fn a_file_larger_than_its_device_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("region");
        let error = Mapped::create(&path, 1 << 56).err().expect("no device is so large");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("cannot reserve"), "{error}");
        assert!(!path.exists());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn rows_on_write_back_by_lines_are_those_on_any_medium() {
        let geometry = crate::Geometry::new(100, 20).expect("sizes");
        let mut medium = Mapped::anonymous(geometry.bytes()).expect("memory");
        // No machine of ours has such memory; its instructions work on any.
        medium.durability = Durability::Lines;
        let rows = crate::Rows::format(medium, geometry).expect("format");
        let bytes: Vec<u8> = (0..2000).map(|i| (i / 20) as u8).collect();
        rows.put(&(0..100).collect::<Vec<_>>(), &bytes).expect("put");
        let (mut back, mut found) = (vec![0; 2000], [false; 100]);
        assert_eq!(
            rows.get(&(0..100).collect::<Vec<_>>(), &mut back, &mut found).expect("get"),
            100
        );
        assert_eq!(back, bytes);
        assert!(rows.durability().survives_power_cut());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn lines_are_written_back_by_every_instruction_that_the_processor_has() {
        let word = AtomicU64::new(3);
        let best = WriteBack::best();
        WriteBack::Clflush.line(&word);
        best.line(&word);
        WriteBack::fence();
        assert_eq!(word.load(Ordering::Relaxed), 3);
    }
}
