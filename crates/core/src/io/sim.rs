//! A simulated device for the tests: one directory in memory, driven by a seed.
//!
//! It keeps two states: what the running machine sees, and what would be found after a power cut.
//! The second is as bad as a real disk and file system may make it:
//!
//! * Contents are durable after `sync` of the file. Until then each 512-byte sector is found in any
//!   of the states it went through since, independently of all others: writes are torn, dropped and
//!   reordered. Requests in flight count as such writes.
//! * Lengths (by `allocate`, `set_len`, or a write at the end) are durable after `sync`, too. Until
//!   then any length since is found; what was written beyond it is gone, what was reserved and not
//!   written reads as zero.
//! * Room given back is free at once. Until `sync` a power cut may bring it back, and its sectors.
//! * Names are durable after `sync_dir`. Until then a created file may be missing, a removed one be
//!   back, a renamed one have its old name; a rename is atomic. Half of the reboots keep a prefix
//!   of the changes, as a journalling file system does, half keep any subset.
//! * A failed sync drops some of what it should have made durable: a later sync that succeeds does
//!   not bring it back, although the running machine still reads it.
//!
//! Cheap clones share one device, so a test keeps a handle for the faults. With one thread, the
//! same seed and the same calls give the same bytes.

mod device;
mod queue;
mod rng;
#[cfg(test)]
mod tests;

use super::request::{check_name, check_queue};
use super::{Buffers, File, IoKind, Medium, OpenMode, Queue};
use crate::error::Result;
use device::Device;
use parking_lot::Mutex;
use queue::SimQueue;
use std::sync::Arc;

/// The unit in which a write is whole or not.
pub(crate) const SECTOR_BYTES: usize = 512;

/// A simulated directory on a simulated device.
#[derive(Clone, Debug)]
pub struct SimMedium {
    device: Arc<Mutex<Device>>,
}

/// What a simulated device has done since it was made or rebooted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounters {
    /// Everything that changes the medium or makes a change durable, in the order done: writes,
    /// syncs, allocations, length changes, creations, removals, renames, directory syncs. The unit
    /// of [`SimMedium::power_cut_after`].
    pub operations: u64,
    /// Reads, blocking and by queue.
    pub reads: u64,
    /// Writes, blocking and by queue.
    pub writes: u64,
    /// Bytes of those writes.
    pub bytes_written: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// Syncs of the directory.
    pub dir_syncs: u64,
}

impl SimMedium {
    /// An empty directory on a device without a bound.
    pub fn new(seed: u64) -> Self {
        Self { device: Arc::new(Mutex::new(Device::new(seed))) }
    }

    /// Bounds the device: what would take more than `bytes`, counted in blocks of 4 KiB, is a
    /// `Full` error. `None` lifts the bound.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.device.lock().capacity = bytes;
    }

    /// Cuts the power after the `operations`-th operation since the start of this machine: every
    /// later call fails with an `Io` error "power is off". The call that hits the cut fails, and
    /// like anything unsynced it may be found done, undone or half done after `reboot`.
    pub fn power_cut_after(&self, operations: u64) {
        self.device.lock().cut_after = Some(operations);
    }

    /// True once the power was cut.
    pub fn power_is_off(&self) -> bool {
        self.device.lock().off
    }

    /// A new machine on what a power cut at this instant leaves: everything synced, and of the rest
    /// what `seed` picks. This machine is not touched, so that several seeds can be tried. The
    /// capacity stays, faults and counters start anew.
    pub fn reboot(&self, seed: u64) -> Self {
        Self { device: Arc::new(Mutex::new(self.device.lock().reboot(seed))) }
    }

    /// Makes the read that follows `after` further ones fail, once.
    pub fn fail_read(&self, after: u64) {
        self.device.lock().fail_read = Some(after);
    }

    /// Makes the write that follows `after` further ones fail, once; some of its sectors are done.
    pub fn fail_write(&self, after: u64) {
        self.device.lock().fail_write = Some(after);
    }

    /// Makes the sync of a file or the directory that follows `after` further ones fail, once.
    pub fn fail_sync(&self, after: u64) {
        self.device.lock().fail_sync = Some(after);
    }

    /// Makes the write that follows `after` further ones find no room, once, as on a file system
    /// that copies on write; some of its sectors are done.
    pub fn full_write(&self, after: u64) {
        self.device.lock().full_write = Some(after);
    }

    /// Makes the allocation, or the creation of a file, that follows `after` further ones find no
    /// room, once.
    pub fn full_allocate(&self, after: u64) {
        self.device.lock().full_allocate = Some(after);
    }

    /// True while one of these two is still to come.
    pub fn has_faults(&self) -> bool {
        let device = self.device.lock();
        device.full_write.is_some() || device.full_allocate.is_some()
    }

    /// Bytes of all blocks that files have.
    pub fn taken_bytes(&self) -> u64 {
        self.device.lock().taken_bytes()
    }

    /// Flips one bit of the byte at `offset`, as stored and as seen.
    ///
    /// # Panics
    /// When there is no such file or byte.
    pub fn flip_bit(&self, file: &str, offset: u64) {
        self.device.lock().flip_bit(file, offset);
    }

    /// What was done so far.
    pub fn counters(&self) -> SimCounters {
        self.device.lock().counters
    }
}

impl Medium for SimMedium {
    fn kind(&self) -> IoKind {
        IoKind::Simulated
    }

    fn direct(&self) -> bool {
        true
    }

    fn alignment(&self) -> usize {
        SECTOR_BYTES
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
        check_name(name)?;
        let id = self.device.lock().open(name, mode)?;
        let writable = mode != OpenMode::ReadOnly;
        let device = Arc::clone(&self.device);
        Ok(Arc::new(SimFile { device, id, name: name.to_owned(), writable }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.device.lock().list(prefix)
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.device.lock().remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.device.lock().rename(from, to)
    }

    fn sync_dir(&self) -> Result<()> {
        self.device.lock().sync_dir()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.device.lock().free_bytes()
    }

    fn queue(&self, depth: usize, buffers: Buffers) -> Result<Box<dyn Queue>> {
        check_queue(depth, buffers, SECTOR_BYTES)?;
        let seed = self.device.lock().rng.next();
        Ok(Box::new(SimQueue::new(&self.device, seed, depth, buffers)?))
    }
}

/// One open file of a simulated device.
#[derive(Debug)]
struct SimFile {
    device: Arc<Mutex<Device>>,
    id: u64,
    name: String,
    writable: bool,
}

impl SimFile {
    fn check_writable(&self, verb: &str) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(device::os_error(format!("{verb} {}", self.name), libc::EBADF))
    }
}

impl File for SimFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64> {
        self.device.lock().len(self.id)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.device.lock().read(self.id, &self.name, offset, buffer)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check_writable("write")?;
        self.device.lock().write(self.id, &self.name, offset, bytes)
    }

    fn sync(&self) -> Result<()> {
        self.device.lock().sync(self.id, &self.name)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<()> {
        self.check_writable("allocate")?;
        self.device.lock().allocate(self.id, &self.name, offset, bytes)
    }

    fn give_back(&self, offset: u64, bytes: u64) -> Result<bool> {
        self.check_writable("give back room of")?;
        self.device.lock().give_back(self.id, offset, bytes)
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.check_writable("set the length of")?;
        self.device.lock().set_len(self.id, bytes)
    }

    fn direct_file(&self) -> Option<&std::fs::File> {
        None
    }

    fn simulated_id(&self) -> Option<u64> {
        Some(self.id)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.device.lock().close(self.id);
    }
}
