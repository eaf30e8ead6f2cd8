//! Files and queues of requests: the only way the engine touches a medium.
//!
//! A [`Medium`] is one directory. Small, rare data (journal, state, superblock) goes through the
//! blocking calls of [`File`]; row pages go through a [`Queue`], which owns aligned buffers and
//! keeps a bounded number of requests in flight. Nothing here knows what the bytes mean. A write
//! is durable only after `sync` of its file, a new or renamed name only after `sync_dir`.

use crate::error::Result;
use std::fmt::Debug;
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Create a file that must not exist; read and write.
    CreateNew,
    /// Open an existing file; read and write.
    ReadWrite,
    /// Open an existing file; read only.
    ReadOnly,
}

/// Which back end serves a medium's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// io_uring with direct I/O.
    Uring,
    /// A pool of threads calling pread and pwrite, with direct I/O where the file system has it.
    Pread,
    /// The simulated device of the tests.
    Simulated,
}

/// One directory on one medium.
pub trait Medium: Send + Sync + Debug {
    /// Which back end serves its queues.
    fn kind(&self) -> IoKind;
    /// True when queue requests bypass the page cache.
    fn direct(&self) -> bool;
    /// Alignment in bytes that queue offsets, lengths and buffers must have (512 or more).
    fn alignment(&self) -> usize;
    /// Opens a file by name. Files opened here serve both blocking calls and queue requests.
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>>;
    /// Names of the files that begin with `prefix`, sorted.
    fn list(&self, prefix: &str) -> Result<Vec<String>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> Result<()>;
    /// Renames a file, replacing `to`.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Makes creations, removals and renames durable.
    fn sync_dir(&self) -> Result<()>;
    /// Bytes that could still be allocated.
    fn free_bytes(&self) -> Result<u64>;
    /// A queue of `depth` requests over `buffers` aligned buffers of `buffer_bytes` each.
    fn queue(&self, depth: usize, buffers: usize, buffer_bytes: usize) -> Result<Box<dyn Queue>>;
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
    /// extends the file to at least that end. `Full` when there is no room: nothing changed.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<()>;
    /// Cuts the file to `bytes`.
    fn set_len(&self, bytes: u64) -> Result<()>;
    /// Back-end handle (a file descriptor, or a number of the simulated device).
    fn handle(&self) -> u64;
    /// Handle for direct queue requests (the O_DIRECT descriptor); equals `handle` without one.
    fn direct_handle(&self) -> u64;
}

/// Names a buffer of a queue.
pub type BufferId = usize;

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// What the caller gave with the request.
    pub token: u64,
    /// The buffer of the request. A read's buffer belongs to the caller until `release`; a
    /// write's buffer is still acquired, too, until `release`.
    pub buffer: BufferId,
    /// Failure of this request. A short read or write is finished by the queue, not reported.
    pub result: Result<()>,
}

/// Requests in flight, at most `depth`, over the queue's own aligned buffers.
///
/// A buffer is free, acquired (the caller may read and write it), being read into (nobody may
/// touch it) or being written from (it may be read, not changed); wrong use asserts.
/// Dropping a queue waits for what is in flight.
pub trait Queue: Send {
    /// Most requests in flight.
    fn depth(&self) -> usize;
    /// Requests now in flight.
    fn in_flight(&self) -> usize;
    /// Bytes of one buffer.
    fn buffer_bytes(&self) -> usize;
    /// All memory this queue holds.
    fn memory_bytes(&self) -> usize;
    /// Takes a free buffer, if there is one.
    fn acquire(&mut self) -> Option<BufferId>;
    /// Gives an acquired buffer back.
    fn release(&mut self, buffer: BufferId);
    /// The bytes of a buffer that is acquired or being written from.
    fn buffer(&self, buffer: BufferId) -> &[u8];
    /// The bytes of an acquired buffer.
    fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8];
    /// Queues a read of `bytes` at `offset` into an acquired buffer. Needs `in_flight < depth`.
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
    /// Submits, waits until at least `at_least` requests finished (0: polls), appends them to
    /// `done` in any order.
    fn wait(&mut self, at_least: usize, done: &mut Vec<Completion>) -> Result<()>;
}
