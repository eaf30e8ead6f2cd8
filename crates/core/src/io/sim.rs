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
//! * A device may have several directories, each with names and syncs of its own.
//! * Locks end with the machine: after a reboot nobody has any.
//! * After a failed sync what was written counts as clean: some of it is on the disk, and a later
//!   sync does not bring the rest, although the machine reads it, until it is written again.
//!
//! Beyond that, anything may go wrong that [`SimFaults`] lists.
//!
//! Cheap clones share one device, so a test keeps a handle for the faults. With one thread, the
//! same seed and the same calls give the same bytes.

mod device;
mod faults;
mod inode;
mod queue;
mod regions;
mod rng;
#[cfg(test)]
mod tests;

use super::request::{check_name, check_queue};
use super::{
    Buffers, DeviceCurve, File, FileLock, FileState, IoKind, Locking, Medium, OpenMode, Queue,
    RegionFolders,
};
use crate::error::Result;
use device::{Device, LockKind};
use faults::{Fault, os_error};
use parking_lot::Mutex;
use queue::SimQueue;
use regions::Regions;
use std::sync::Arc;

pub use faults::{SimFaults, SimFired};

/// The unit in which a write is whole or not.
pub(crate) const SECTOR_BYTES: usize = 512;

/// A simulated directory on a simulated device.
#[derive(Clone, Debug)]
pub struct SimMedium {
    device: Arc<Mutex<Device>>,
    /// The device's prefix for the names of this directory: nothing, or its name and a slash.
    folder: Arc<str>,
    /// Files that are mapped. Power cuts leave them as they are, like kills.
    regions: Arc<Regions>,
}

/// Counters of a simulated device since it was made or rebooted.
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
        // Tests open small stores by the thousand.
        #[cfg(any(test, feature = "testing"))]
        crate::arena::keep_freed();
        Self::on(Device::new(seed, SimFired::default()))
    }

    fn on(device: Device) -> Self {
        let (device, regions) = (Arc::new(Mutex::new(device)), Arc::default());
        Self { device, folder: Arc::from(""), regions }
    }

    /// Another directory on the same device: it has names of its own, and shares all else, power
    /// and faults included.
    #[must_use]
    pub fn folder(&self, name: &str) -> Self {
        Self { folder: Arc::from(format!("{name}/")), ..self.clone() }
    }

    /// Moves this directory away, as somebody may while it is open, and makes an empty one in its
    /// place, which is returned.
    #[must_use]
    pub fn replace_folder(&self) -> Self {
        let mut device = self.device.lock();
        device.displaced.insert(self.folder.to_string());
        let number = device.displaced.len();
        let folder = Arc::from(format!("{}-{number}/", self.folder.trim_end_matches('/')));
        Self { folder, ..self.clone() }
    }

    /// Puts this directory back in its place.
    pub fn put_folder_back(&self) {
        self.device.lock().displaced.remove(&*self.folder);
    }

    /// Gives a file a second name elsewhere, as a backup of hard links does.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn link_elsewhere(&self, file: &str) {
        self.device.lock().link_elsewhere(&self.on_device(file));
    }

    /// The name that the device has for a file.
    fn on_device(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    /// Bounds the device: what would take more than `bytes`, counted in blocks of 4 KiB, is a
    /// `Full` error. `None` lifts the bound.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.device.lock().capacity = bytes;
    }

    /// Makes stores choose pages and depths as for a device that was measured to do this.
    pub fn set_curve(&self, curve: Option<DeviceCurve>) {
        self.device.lock().curve = curve;
    }

    /// Cuts the power after the `operations`-th operation since the start of this machine: every
    /// later call fails with an `Io` error "power is off". The call that hits the cut fails, and
    /// like anything unsynced it may be found done, undone or half done after `reboot`.
    pub fn power_cut_after(&self, operations: u64) {
        self.device.lock().cut_after = Some(operations);
    }

    /// Cuts the power in a sync of a file whose name begins so, after `more` others of such files:
    /// what was written to it since the last one has reached the disk in part.
    pub fn power_cut_in_sync(&self, names: &str, more: u64) {
        self.device.lock().cut_in_sync = Some((names.to_owned(), more));
    }

    /// True once the power was cut.
    pub fn power_is_off(&self) -> bool {
        self.device.lock().off
    }

    /// A new machine on what a power cut at this instant leaves: everything synced, and of the rest
    /// what `seed` picks. This machine is not touched, so that several seeds can be tried. The
    /// capacity and curve stay, faults and counters start anew.
    pub fn reboot(&self, seed: u64) -> Self {
        let Self { folder, regions, .. } = self.clone();
        Self { folder, regions, ..Self::on(self.device.lock().reboot(seed)) }
    }

    /// Lets faults strike by chance from now on; may be called at any time. `SimFaults::default()`
    /// ends them.
    pub fn set_faults(&self, faults: SimFaults) {
        self.device.lock().faults.set(faults);
    }

    /// Number of times each fault struck since this machine started.
    pub fn faults_fired(&self) -> SimFired {
        self.device.lock().faults.fired()
    }

    fn once(&self, fault: Fault, after: u64) {
        self.device.lock().faults.once(fault, after);
    }

    /// Makes the read that follows `after` further ones fail, once.
    pub fn fail_read(&self, after: u64) {
        self.once(Fault::ReadError, after);
    }

    /// Makes the read that follows `after` further ones end early, once.
    pub fn short_read(&self, after: u64) {
        self.once(Fault::ShortRead, after);
    }

    /// Makes the write that follows `after` further ones fail, once; some of its sectors are done.
    pub fn fail_write(&self, after: u64) {
        self.once(Fault::WriteError, after);
    }

    /// Makes the sync of a file or the directory that follows `after` further ones fail, once.
    ///
    /// As with ext4 and xfs, the written data counts as clean then: the machine reads it, the disk
    /// has some of it, and later syncs do not write the rest. A sector that is written again, be it
    /// in part, is stored by the next sync, and so is the length that a write gave. Changes in the
    /// file system's journal are not forgotten: names, and the lengths of `allocate` and `set_len`,
    /// wait for the next sync. (A file system whose journal fails writes nothing more.)
    pub fn fail_sync(&self, after: u64) {
        self.once(Fault::SyncError, after);
    }

    /// Makes the write that follows `after` further ones find no room, once.
    pub fn full_write(&self, after: u64) {
        self.once(Fault::FullWrite, after);
    }

    /// Makes the allocation that follows `after` further ones find no room, once.
    pub fn full_allocate(&self, after: u64) {
        self.once(Fault::FullAllocate, after);
    }

    /// From now on writes are lost or misdirected and reads are stale only in files whose names
    /// begin so; in all files where it is empty.
    pub fn lie_about(&self, names: &str) {
        names.clone_into(&mut self.device.lock().lies_about);
    }

    /// Makes the change of a file's length, or hole in it, that follows `after` further ones fail
    /// with EIO and change nothing, once.
    pub fn fail_shrink(&self, after: u64) {
        self.once(Fault::ShrinkError, after);
    }

    /// Makes the look for free bytes that follows `after` further ones fail with EIO, once.
    pub fn fail_look(&self, after: u64) {
        self.once(Fault::LookError, after);
    }

    /// Makes the write that follows `after` further ones get lost, once.
    pub fn lose_write(&self, after: u64) {
        self.once(Fault::LostWrite, after);
    }

    /// Makes the write that follows `after` further ones land elsewhere, once.
    pub fn misdirect_write(&self, after: u64) {
        self.once(Fault::MisdirectedWrite, after);
    }

    /// Makes the read that follows `after` further ones return what was there before, once.
    pub fn stale_read(&self, after: u64) {
        self.once(Fault::StaleRead, after);
    }

    /// Ends the single faults and the power cut that have not struck; chances stay.
    pub fn end_single_faults(&self) {
        let mut device = self.device.lock();
        device.faults.end_single();
        (device.cut_after, device.cut_in_sync) = (None, None);
    }

    /// True while a write or an allocation is still to find no room.
    pub fn has_faults(&self) -> bool {
        let device = self.device.lock();
        [Fault::FullWrite, Fault::FullAllocate].into_iter().any(|fault| device.faults.waits(fault))
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
        self.device.lock().flip_bit(&self.on_device(file), offset);
    }

    fn locking(&self, name: &str, taken: Option<(u64, LockKind)>) -> Locking {
        let Some((id, kind)) = taken else { return Locking::Held { here: true } };
        let device = Arc::clone(&self.device);
        Locking::Taken(Box::new(SimLock { device, id, name: self.on_device(name), kind }))
    }

    /// The bytes of a file as the running machine sees them; writes in flight are not among them.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn contents(&self, file: &str) -> Vec<u8> {
        self.device.lock().contents(&self.on_device(file))
    }

    /// Replaces bytes of a file, as stored and as seen: the device has lost a write, or another
    /// file lies in its place.
    ///
    /// # Panics
    /// When there is no such file, or it is shorter.
    pub fn replace(&self, file: &str, offset: u64, bytes: &[u8]) {
        self.device.lock().replace(&self.on_device(file), offset, bytes);
    }

    /// The counters so far.
    pub fn counters(&self) -> SimCounters {
        self.device.lock().counters
    }
}

impl Medium for SimMedium {
    fn regions(&self) -> Option<RegionFolders> {
        let own = self.regions.folder(&self.folder)?;
        Some(RegionFolders { own, apart: None })
    }

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
        let id = self.device.lock().open(&self.on_device(name), mode)?;
        let writable = mode != OpenMode::ReadOnly;
        let device = Arc::clone(&self.device);
        Ok(Arc::new(SimFile { device, id, name: name.to_owned(), writable }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let names = self.device.lock().list(&self.on_device(prefix))?;
        let own = names.iter().filter_map(|name| name.strip_prefix(&*self.folder));
        Ok(own.filter(|name| !name.contains('/')).map(str::to_owned).collect())
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.device.lock().remove(&self.on_device(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.device.lock().rename(&self.on_device(from), &self.on_device(to))
    }

    fn lock(&self, name: &str) -> Result<Locking> {
        check_name(name)?;
        let (path, mut device) = (self.on_device(name), self.device.lock());
        if device.list(&path)?.iter().all(|found| *found != path) {
            let id = device.open(&path, OpenMode::CreateNew)?;
            device.close(id);
        }
        let taken = device.lock_file(&path, LockKind::Alone)?;
        drop(device);
        Ok(self.locking(name, taken))
    }

    fn lock_to_look(&self, name: &str) -> Result<Locking> {
        check_name(name)?;
        let taken = self.device.lock().lock_file(&self.on_device(name), LockKind::ToLook)?;
        Ok(self.locking(name, taken))
    }

    fn state_of(&self, name: &str) -> Result<FileState> {
        check_name(name)?;
        self.device.lock().state_of(&self.on_device(name))
    }

    fn sync_dir(&self) -> Result<()> {
        self.device.lock().sync_dir(&self.folder)
    }

    fn displaced(&self) -> Result<Option<String>> {
        let is_displaced = self.device.lock().displaced.contains(&*self.folder);
        Ok(is_displaced.then(|| "the folder was moved, and another one is in its place".to_owned()))
    }

    fn free_bytes(&self) -> Result<u64> {
        let mut device = self.device.lock();
        if device.faults.strikes(Fault::LookError) {
            return Err(os_error("look for free bytes", libc::EIO));
        }
        device.free_bytes()
    }

    fn known_curve(&self) -> Option<DeviceCurve> {
        self.device.lock().curve.clone()
    }

    fn queue(&self, depth: usize, buffers: Buffers) -> Result<Box<dyn Queue>> {
        check_queue(depth, buffers, SECTOR_BYTES)?;
        let seed = self.device.lock().rng.next();
        Ok(Box::new(SimQueue::new(&self.device, seed, depth, buffers)?))
    }
}

/// A lock on a file of a simulated device. The device that a reboot leaves has none.
#[derive(Debug)]
struct SimLock {
    device: Arc<Mutex<Device>>,
    id: u64,
    name: String,
    kind: LockKind,
}

impl FileLock for SimLock {
    fn is_current(&self) -> Result<bool> {
        self.device.lock().is_named(self.id, &self.name)
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.device.lock().unlock_file(self.id, self.kind);
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
        Err(os_error(format!("{verb} {}", self.name), libc::EBADF))
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
        self.device.lock().write(self.id, &self.name, offset, bytes.to_vec())
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
