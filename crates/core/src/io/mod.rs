//! Files and queues of requests: the only way the engine touches a medium.
//!
//! A [`Medium`] is one directory. Small, rare data (journal, state, superblock) goes through the
//! blocking calls of [`File`]; row pages go through a [`Queue`], which owns aligned buffers and
//! keeps a bounded number of requests in flight. Nothing here knows what the bytes mean. A write
//! is durable only after `sync` of its file, a new or renamed name only after `sync_dir`.
//!
//! [`DirectoryMedium`] is a directory of the operating system, `SimMedium` the simulated device of
//! the tests, [`RoutedMedium`] two directories as one. All pass one contract suite. [`measure`]
//! tells what a device can do.

mod aligned;
mod descriptors;
mod direct;
mod directory;
mod folder;
mod guarded;
mod kill;
mod lock;
pub mod measure;
mod pread;
mod request;
mod routed;
#[cfg(any(test, feature = "testing"))]
mod sim;
#[cfg(target_os = "linux")]
mod uring;

#[cfg(test)]
mod contract;

pub use crate::config::IoChoice;
pub use directory::DirectoryMedium;
pub(crate) use guarded::GuardedMedium;
pub use measure::DeviceCurve;
pub use routed::RoutedMedium;
#[cfg(any(test, feature = "testing"))]
pub use sim::{SimCounters, SimFaults, SimFired, SimMedium};

use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Debug, Display};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The unit in which files take room: the smallest of a current file system.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Bytes that a file of this length takes.
pub(crate) fn blocks_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// The mode in which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Create a file that must not exist; read and write.
    CreateNew,
    /// Open an existing file; read and write.
    ReadWrite,
    /// Open an existing file; read only.
    ReadOnly,
}

/// The back end of a medium's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoKind {
    /// io_uring with direct I/O.
    Uring,
    /// A pool of threads calling pread and pwrite, with direct I/O where the file system has it.
    Pread,
    /// The simulated device of the tests.
    Simulated,
}

impl Display for IoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "uring",
            Self::Pread => "pread",
            Self::Simulated => "simulated",
        })
    }
}

/// A lock on a file, until it is dropped. It ends with the process, however that ends, and no
/// forked child has a part in it.
pub trait FileLock: Send + Sync + Debug {
    /// True while the name that was locked leads to the locked file; false in a forked child.
    fn is_current(&self) -> Result<bool>;
}

/// The result of asking for a lock.
#[derive(Debug)]
pub enum Locking {
    /// The lock.
    Taken(Box<dyn FileLock>),
    /// Somebody else has the file locked.
    Held {
        /// This process does, by another handle.
        here: bool,
    },
}

/// The state of a file, for a process that watches another one change it.
#[derive(Clone, Copy, Debug)]
pub struct FileState {
    /// Length in bytes.
    pub bytes: u64,
    /// Differs after a change, unless that came within one tick of the clock of the file system.
    pub stamp: u128,
    /// Time since the last change; zero if that lies in the future, where it means nothing.
    pub ago: Duration,
    /// Names that the file has, in this directory and elsewhere.
    pub links: u64,
}

/// The folders of mapped files: regions of rows on persistent memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionFolders {
    /// The medium's own folder.
    pub own: PathBuf,
    /// The folder where new ones are made instead.
    pub apart: Option<PathBuf>,
}

/// One directory on one medium, or two that are used as one.
pub trait Medium: Send + Sync + Debug {
    /// The back end of its queues.
    fn kind(&self) -> IoKind;
    /// True when queue requests bypass the page cache.
    fn direct(&self) -> bool;
    /// Alignment in bytes that queue offsets, lengths and buffers must have (512 or more).
    fn alignment(&self) -> usize;
    /// Opens a file by name. Files opened here serve both blocking calls and queue requests. A
    /// missing file is a `NotFound` error.
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>>;
    /// Names of the files that begin with `prefix`, sorted; directories are left out.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;
    /// Removes a file's name; a process that has it open goes on using it. A missing one is
    /// `NotFound`.
    fn remove(&self, name: &str) -> Result<()>;
    /// Renames a file, replacing `to`. After a crash either the old or the new state is found.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Gives a file, which nobody will change any more, a second name that was free. False where
    /// the medium cannot do that: nothing changed then.
    fn link(&self, from: &str, to: &str) -> Result<bool> {
        let _ = (from, to);
        Ok(false)
    }
    /// Locks a file alone, without waiting, and creates it where there is none. Opening and closing
    /// the file elsewhere does not end the lock.
    fn lock(&self, name: &str) -> Result<Locking>;
    /// As `lock`, for a caller that only wants to know whether the file is locked: it must exist,
    /// or is `NotFound`, and need not be writable. Several such callers may lock it at once.
    fn lock_to_look(&self, name: &str) -> Result<Locking>;
    /// The state of a file; `NotFound` for a missing one.
    fn state_of(&self, name: &str) -> Result<FileState>;
    /// Makes creations, removals and renames durable.
    fn sync_dir(&self) -> Result<()>;
    /// Bytes that could still be allocated.
    fn free_bytes(&self) -> Result<u64>;
    /// As `free_bytes`, with those of the device of files that lie apart.
    fn free_bytes_in_all(&self) -> Result<u64> {
        self.free_bytes()
    }
    /// A queue of `depth` requests over aligned buffers; of fewer requests when there are fewer
    /// pieces for them, or the system refuses so many.
    fn queue(&self, depth: usize, buffers: Buffers) -> Result<Box<dyn Queue>>;
    /// The device's curve, if the medium knows it without measuring.
    fn known_curve(&self) -> Option<DeviceCurve> {
        None
    }
    /// Features that were requested but not available, one sentence each, for people.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// The path of the directory; `None` for a simulated one.
    fn path(&self) -> Option<&Path> {
        None
    }
    /// A description of what happened to the directory if its path does not lead to it any more,
    /// for people; else `None`. It was moved or removed then, and another may be in its place.
    /// Files are still those of the directory that was opened.
    fn displaced(&self) -> Result<Option<String>> {
        Ok(None)
    }
    /// Fails with `Locked` where names are changed under a lock and that is not this medium's any
    /// more ([`GuardedMedium`]): somebody has removed the locked file, and another may have a new
    /// one.
    fn check_lock(&self) -> Result<()> {
        Ok(())
    }
    /// The folders of mapped files; `None` if there can be none.
    fn regions(&self) -> Option<RegionFolders> {
        None
    }
    /// The directory of files that lie apart from the others, where some do.
    fn apart(&self) -> Option<&Arc<dyn Medium>> {
        None
    }
}

/// One open file.
pub trait File: Send + Sync + Debug {
    /// The name within its medium, for messages.
    fn name(&self) -> &str;
    /// Length in bytes.
    fn len(&self) -> Result<u64>;
    /// True when the file holds nothing.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Fills `buffer` from `offset`; a short file is a `Corrupt` error naming the file and offset.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Makes all completed writes to this file durable.
    fn sync(&self) -> Result<()>;
    /// Reserves room so that writes within `offset..offset + bytes` cannot run out of space, and
    /// extends the file to at least that end; new bytes read as zero. `Full` when there is no room:
    /// the length is as before. Durable, like a write, after `sync`.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Gives the room of `offset..offset + bytes` back to the file system. The length stays, the
    /// range reads as zero, and a write there needs room again. False if the medium cannot do that:
    /// nothing changed then. Durable, like a write, after `sync`: a power cut before may bring
    /// bytes and room back.
    fn give_back(&self, offset: u64, bytes: u64) -> Result<bool>;
    /// Cuts the file to `bytes`, or extends it by zeros without reserving room.
    fn set_len(&self, bytes: u64) -> Result<()>;
    /// The system file that queue requests of a [`DirectoryMedium`] use, opened with O_DIRECT where
    /// the medium is direct; `None` for a simulated file.
    fn direct_file(&self) -> Option<&std::fs::File>;
    /// Number of a simulated file, unique in the process; `None` for a file of a directory.
    fn simulated_id(&self) -> Option<u64>;
}

/// The largest power of two that is not above, at least 1.
pub(crate) fn pow2_below(bytes: usize) -> usize {
    1 << bytes.max(1).ilog2()
}

/// The memory of a queue's buffers: pieces of equal length, of which a buffer takes one or several
/// that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Number of pieces.
    pub pieces: usize,
    /// Bytes of a piece: a multiple of the medium's alignment, and a power of two where buffers
    /// take several.
    pub piece_bytes: usize,
    /// Pieces of the longest buffer.
    pub longest: usize,
}

impl Buffers {
    /// Largest number of pieces that are worth keeping account of.
    const PIECES_MAX: usize = 1024;
    /// Upper bound of the notes about a request in flight, for every back end. (For a ring's
    /// entries, which are a power of two, it may be two of 100 bytes.)
    const REQUEST_NOTES_BYTES: usize = 384;
    /// The memory of the notes about a piece.
    const PIECE_NOTES_BYTES: usize = 16;

    /// Buffers of the same length.
    pub const fn equal(buffers: usize, bytes: usize) -> Self {
        Self { pieces: buffers, piece_bytes: bytes, longest: 1 }
    }

    /// Buffers of `shortest` to `longest` bytes, both powers of two, that share `bytes`. If very
    /// many of the shortest would fit, pieces are longer than that.
    pub fn sharing(bytes: usize, shortest: usize, longest: usize) -> Self {
        let few = bytes.div_ceil(Self::PIECES_MAX).next_power_of_two();
        let piece_bytes = few.min(longest).max(shortest);
        let pieces = bytes / piece_bytes;
        Self { pieces, piece_bytes, longest: (longest / piece_bytes).clamp(1, pieces.max(1)) }
    }

    /// Bytes of all pieces.
    pub const fn bytes(&self) -> usize {
        self.pieces * self.piece_bytes
    }

    /// Bytes of the longest buffer.
    pub const fn longest_bytes(&self) -> usize {
        self.longest * self.piece_bytes
    }

    /// Bytes at most of a queue with these buffers and so many requests in flight: the buffers, and
    /// what it and the kernel note of each request and piece.
    pub const fn queue_bytes(&self, depth: usize) -> usize {
        self.bytes() + depth * Self::REQUEST_NOTES_BYTES + self.pieces * Self::PIECE_NOTES_BYTES
    }
}

/// Names a buffer of a queue.
pub type BufferId = usize;

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// The value that the caller gave with the request.
    pub token: u64,
    /// The buffer of the request. A read's buffer belongs to the caller until `release`; a
    /// write's buffer is still acquired, too, until `release`.
    pub buffer: BufferId,
    /// Failure of this request. A short read or write is finished by the queue, not reported.
    pub result: Result<()>,
}

/// Requests in flight, at most `depth`, over the queue's own aligned buffers.
///
/// A buffer is free, acquired (the caller may read and write it), being read into (nobody may touch
/// it) or being written from (it may be read, not changed); wrong use asserts, as do requests that
/// break the alignment, the depth or the buffer's size. Requests in flight have no order: a caller
/// that needs one waits for both ends. A queue serves files of its own medium only.
///
/// Dropping a queue waits for what is in flight. A forked child must not use a queue it inherited,
/// not even look at its buffers; dropping it there does nothing.
pub trait Queue: Send {
    /// Most requests in flight; buffers may be more.
    fn depth(&self) -> usize;
    /// Requests taken and not yet reported by `wait`.
    fn in_flight(&self) -> usize;
    /// Bytes of the longest buffer.
    fn buffer_bytes(&self) -> usize;
    /// All memory this queue holds.
    fn memory_bytes(&self) -> usize;
    /// Takes a free buffer of at least so many bytes, at most `buffer_bytes`, if there is one. When
    /// all buffers are free there is.
    fn acquire_for(&mut self, bytes: usize) -> Option<BufferId>;
    /// Takes a free buffer of `buffer_bytes`, if there is one.
    fn acquire(&mut self) -> Option<BufferId> {
        self.acquire_for(self.buffer_bytes())
    }
    /// Gives an acquired buffer back.
    fn release(&mut self, buffer: BufferId);
    /// The bytes of a buffer that is acquired or being written from.
    fn buffer(&self, buffer: BufferId) -> &[u8];
    /// The bytes of an acquired buffer.
    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8];
    /// Queues a read of `bytes` at `offset` into an acquired buffer. Needs `in_flight < depth`. A
    /// file that ends before `offset + bytes` completes as a `Corrupt` error.
    fn read(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        bytes: usize,
        buffer: BufferId,
        token: u64,
    ) -> Result<()>;
    /// Queues a write of the first `bytes` of an acquired buffer. Needs `in_flight < depth`.
    fn write(
        &mut self,
        file: &Arc<dyn File>,
        offset: u64,
        bytes: usize,
        buffer: BufferId,
        token: u64,
    ) -> Result<()>;
    /// Hands what was queued to the device without waiting.
    fn submit(&mut self) -> Result<()>;
    /// Submits, waits until at least `at_least` requests finished (0: polls; more than are in
    /// flight: all), appends all that finished to `done` in any order. An error here is the
    /// queue's, not a request's: what had finished before is in `done`.
    fn wait(&mut self, at_least: usize, done: &mut Vec<Completion>) -> Result<()>;
}
