//! A simulated device: its names, its power, and what each operation does to the files.

use super::SimCounters;
use super::faults::{Fault, Injector, SimFired, os_error};
use super::inode::{BLOCK_BYTES, Inode, eagerness, prefix, sectors};
use super::rng::Rng;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::request::short_file;
use crate::io::{DeviceCurve, FileState, OpenMode};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sets the sequence that faults are drawn from apart from all others.
const FAULT_SEED: u64 = 0x6661_756C_7473;

/// Numbers files across all simulated devices of the process, so that a file given to another
/// device's queue is noticed.
static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// A change of the directory since it was last synced.
#[derive(Clone, Debug)]
enum NameChange {
    Create { name: String, file: u64 },
    Remove { name: String, file: u64 },
    Rename { from: String, to: String, file: u64 },
}

impl NameChange {
    /// The name that is changed: a rename stays within its directory.
    fn name(&self) -> &str {
        match self {
            Self::Create { name, .. } | Self::Remove { name, .. } => name,
            Self::Rename { from, .. } => from,
        }
    }

    fn file(&self) -> u64 {
        let (Self::Create { file, .. } | Self::Remove { file, .. } | Self::Rename { file, .. }) =
            self;
        *file
    }
}

/// The directory of a name: all before its file's, with the slash.
fn folder_of(name: &str) -> &str {
    &name[..name.rfind('/').map_or(0, |slash| slash + 1)]
}

/// The purpose of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockKind {
    Alone,
    ToLook,
}

/// The effect of a power cut on an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    /// The operation is under way when the power goes.
    Failing,
}

#[derive(Debug)]
pub(super) struct Device {
    pub(super) rng: Rng,
    pub(super) capacity: Option<u64>,
    pub(super) curve: Option<DeviceCurve>,
    /// Prefix of the names of the files that the device lies about.
    pub(super) lies_about: String,
    pub(super) cut_after: Option<u64>,
    /// Prefix of the names of some files, and the number of their syncs that pass before the power
    /// goes.
    pub(super) cut_in_sync: Option<(String, u64)>,
    pub(super) off: bool,
    pub(super) faults: Injector,
    pub(super) counters: SimCounters,
    files: HashMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_changes: Vec<NameChange>,
    next_serial: u64,
    /// Directories that are not where their paths lead any more.
    pub(super) displaced: HashSet<String>,
    /// Files that have a name elsewhere, too.
    linked: HashSet<u64>,
}

fn power_is_off() -> Error {
    Error::new(ErrorKind::Io, "power is off")
}

impl Device {
    pub(super) fn new(seed: u64, fired: SimFired) -> Self {
        Self {
            rng: Rng::new(seed),
            capacity: None,
            curve: None,
            lies_about: String::new(),
            cut_after: None,
            cut_in_sync: None,
            off: false,
            faults: Injector::new(seed ^ FAULT_SEED, fired),
            counters: SimCounters::default(),
            files: HashMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            next_serial: 0,
            displaced: HashSet::new(),
            linked: HashSet::new(),
        }
    }

    fn check_power(&self) -> Result<()> {
        if self.off { Err(power_is_off()) } else { Ok(()) }
    }

    /// Counts an operation that is about to be done.
    fn begin(&mut self) -> Result<Power> {
        self.check_power()?;
        if self.cut_after.is_some_and(|operations| self.counters.operations >= operations) {
            self.off = true;
            return Ok(Power::Failing);
        }
        self.counters.operations += 1;
        Ok(Power::On)
    }

    /// The outcome of an operation that was done under `power`.
    fn end(power: Power) -> Result<()> {
        if power == Power::On { Ok(()) } else { Err(power_is_off()) }
    }

    fn file(&mut self, file: u64) -> &mut Inode {
        self.files.get_mut(&file).expect("an open file is on this device")
    }

    fn find(&self, verb: &str, name: &str) -> Result<u64> {
        match self.names.get(name) {
            Some(&file) => Ok(file),
            None => bail!(NotFound, "{verb} {name}: there is no such file"),
        }
    }

    pub(super) fn open(&mut self, name: &str, mode: OpenMode) -> Result<u64> {
        self.check_power()?;
        let file = if mode == OpenMode::CreateNew {
            if self.names.contains_key(name) {
                return Err(os_error(format!("open {name}"), libc::EEXIST));
            }
            if self.faults.strikes(Fault::FullAllocate) {
                self.faults.fired_mut().full_allocate += 1;
                return Err(self.faults.full(format!("open {name}")));
            }
            let power = self.begin()?;
            let file = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
            self.files.insert(file, Inode::empty());
            self.names.insert(name.to_owned(), file);
            self.name_changes.push(NameChange::Create { name: name.to_owned(), file });
            Self::end(power)?;
            file
        } else {
            self.find("open", name)?
        };
        self.file(file).handles += 1;
        Ok(file)
    }

    pub(super) fn close(&mut self, file: u64) {
        self.file(file).handles -= 1;
    }

    /// Locks a file if nobody has it locked in a way that forbids it.
    pub(super) fn lock_file(
        &mut self,
        name: &str,
        kind: LockKind,
    ) -> Result<Option<(u64, LockKind)>> {
        let id = self.open(name, OpenMode::ReadOnly)?;
        let file = self.file(id);
        if file.alone || kind == LockKind::Alone && file.looking > 0 {
            self.close(id);
            return Ok(None);
        }
        match kind {
            LockKind::Alone => file.alone = true,
            LockKind::ToLook => file.looking += 1,
        }
        Ok(Some((id, kind)))
    }

    pub(super) fn unlock_file(&mut self, id: u64, kind: LockKind) {
        match kind {
            LockKind::Alone => self.file(id).alone = false,
            LockKind::ToLook => self.file(id).looking -= 1,
        }
        self.close(id);
    }

    pub(super) fn is_named(&self, file: u64, name: &str) -> Result<bool> {
        self.check_power()?;
        Ok(self.names.get(name) == Some(&file))
    }

    pub(super) fn state_of(&mut self, name: &str) -> Result<FileState> {
        self.check_power()?;
        let id = self.find("stat", name)?;
        let file = self.file(id);
        let stamp = u128::from(id) << 64 | u128::from(file.changed);
        let bytes = file.len() as u64;
        let links = 1 + u64::from(self.linked.contains(&id));
        Ok(FileState { bytes, stamp, ago: Duration::MAX, links })
    }

    /// Gives a file a name elsewhere.
    pub(super) fn link_elsewhere(&mut self, name: &str) {
        let file = self.find("link", name).expect("a file of this name");
        self.linked.insert(file);
    }

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.check_power()?;
        Ok(self.names.keys().filter(|name| name.starts_with(prefix)).cloned().collect())
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        self.check_power()?;
        let file = self.find("remove", name)?;
        let power = self.begin()?;
        self.names.remove(name);
        self.file(file).named = false;
        self.name_changes.push(NameChange::Remove { name: name.to_owned(), file });
        Self::end(power)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.check_power()?;
        let file = self.find("rename", from)?;
        if from == to {
            return Ok(());
        }
        let power = self.begin()?;
        self.names.remove(from);
        if let Some(replaced) = self.names.insert(to.to_owned(), file) {
            self.file(replaced).named = false;
        }
        let (from, to) = (from.to_owned(), to.to_owned());
        self.name_changes.push(NameChange::Rename { from, to, file });
        Self::end(power)
    }

    /// Makes the names of one directory durable; `folder` is what they begin with, up to a slash.
    pub(super) fn sync_dir(&mut self, folder: &str) -> Result<()> {
        let power = self.begin()?;
        self.counters.dir_syncs += 1;
        Self::end(power)?;
        if self.faults.strikes(Fault::SyncError) {
            // Names stay as durable as they were: see `SimMedium::fail_sync`.
            self.faults.fired_mut().sync_error += 1;
            return Err(os_error("sync the directory", libc::EIO));
        }
        let changes = self.name_changes.len();
        self.name_changes.retain(|change| folder_of(change.name()) != folder);
        if self.name_changes.len() < changes {
            let of_others = |name: &String, _: &mut u64| folder_of(name) != folder;
            self.durable_names.retain(of_others);
            let own = self.names.iter().filter(|(name, _)| folder_of(name) == folder);
            self.durable_names.extend(own.map(|(name, file)| (name.clone(), *file)));
        }
        // Files that a power cut may still bring back, in another directory.
        let lasting: HashSet<u64> = self.durable_names.values().copied().collect();
        let changed: HashSet<u64> = self.name_changes.iter().map(NameChange::file).collect();
        self.files.retain(|file, inode| {
            inode.handles > 0 || inode.named || lasting.contains(file) || changed.contains(file)
        });
        Ok(())
    }

    pub(super) fn free_bytes(&self) -> Result<u64> {
        self.check_power()?;
        Ok(self.capacity.unwrap_or(1 << 50).saturating_sub(self.taken_bytes()))
    }

    /// Bytes of all blocks that files have.
    pub(super) fn taken_bytes(&self) -> u64 {
        // Files without a name and without a user have given their room back.
        let used = self.files.values().filter(|inode| inode.handles > 0 || inode.named);
        used.map(Inode::taken).sum()
    }

    pub(super) fn len(&mut self, file: u64) -> Result<u64> {
        self.check_power()?;
        Ok(self.file(file).len() as u64)
    }

    pub(super) fn read(
        &mut self,
        file: u64,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<()> {
        self.check_power()?;
        self.counters.reads += 1;
        let what = || format!("read {name}: {} bytes at {offset}", buffer.len());
        if self.faults.strikes(Fault::ReadError) {
            self.faults.fired_mut().read_error += 1;
            return Err(os_error(what(), libc::EIO));
        }
        let inode = self.files.get_mut(&file).expect("an open file is on this device");
        let end = offset.saturating_add(buffer.len() as u64);
        if end > inode.len() as u64 {
            return Err(short_file(name, offset, buffer.len(), inode.len() as u64));
        }
        if self.faults.strikes(Fault::BitFlip) && inode.len() > 0 {
            self.faults.fired_mut().bit_flip += 1;
            inode.flip(self.faults.rng.below(inode.len()), 1 << self.faults.rng.below(8));
        }
        let offset = offset as usize;
        if self.faults.strikes(Fault::ShortRead) && !buffer.is_empty() {
            self.faults.fired_mut().short_read += 1;
            let came = self.faults.rng.below(buffer.len());
            let message = format!("{}: only {came} came", what());
            inode.read(offset, &mut buffer[..came], &mut self.rng);
            return Err(Error::new(ErrorKind::Io, message));
        }
        inode.read(offset, buffer, &mut self.rng);
        if name.starts_with(&self.lies_about) && self.faults.strikes(Fault::StaleRead) {
            let mut differs = false;
            for range in self.faults.struck(offset, buffer.len()) {
                let before = inode.seen_before(offset + range.start..offset + range.end);
                differs |= before != buffer[range.clone()];
                buffer[range].copy_from_slice(&before);
            }
            self.faults.fired_mut().stale_read += u64::from(differs);
        }
        Ok(())
    }

    /// Takes room for the blocks of a range that have none; `Full` leaves all as it is.
    fn reserve(
        &mut self,
        file: u64,
        verb: &str,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let Some(_) = offset.checked_add(bytes).filter(|&end| end < 1 << 40) else {
            bail!(Full, "{verb} {name}: {bytes} bytes at {offset} are beyond the simulated device");
        };
        if self.capacity.is_some() {
            let free = self.free_bytes()?;
            if self.file(file).missing(offset as usize, bytes as usize) > free {
                bail!(Full, "{verb} {name}: {bytes} bytes at {offset}, {free} bytes are free");
            }
        }
        self.file(file).take(offset as usize, bytes as usize);
        Ok(())
    }

    pub(super) fn allocate(
        &mut self,
        file: u64,
        name: &str,
        offset: u64,
        bytes: u64,
    ) -> Result<()> {
        let power = self.begin()?;
        if power == Power::On {
            if self.faults.strikes(Fault::FullAllocate) {
                self.faults.fired_mut().full_allocate += 1;
                return Err(self
                    .faults
                    .full(format!("allocate {name}: {bytes} bytes at {offset}")));
            }
            self.reserve(file, "allocate", name, offset, bytes)?;
        }
        let end = (offset + bytes) as usize;
        if bytes > 0 && end > self.file(file).len() {
            self.file(file).set_len(end);
        }
        Self::end(power)
    }

    pub(super) fn give_back(&mut self, file: u64, offset: u64, bytes: u64) -> Result<bool> {
        self.check_shrink("give back", file)?;
        let power = self.begin()?;
        self.file(file).punch(offset as usize, bytes as usize);
        Self::end(power).map(|()| true)
    }

    /// Lets a change of a length, or a hole, fail.
    fn check_shrink(&mut self, verb: &str, file: u64) -> Result<()> {
        if self.faults.strikes(Fault::ShrinkError) {
            return Err(os_error(format!("{verb}: file {file}"), libc::EIO));
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, file: u64, bytes: u64) -> Result<()> {
        self.check_shrink("set length", file)?;
        let power = self.begin()?;
        self.file(file).set_len(bytes as usize);
        Self::end(power)
    }

    pub(super) fn write(
        &mut self,
        file: u64,
        name: &str,
        offset: u64,
        bytes: Vec<u8>,
    ) -> Result<()> {
        let power = self.begin()?;
        self.counters.writes += 1;
        self.counters.bytes_written += bytes.len() as u64;
        if power == Power::On {
            self.check_write(file, name, offset, &bytes)?;
            let may = name.starts_with(&self.lies_about);
            if may && self.deceives(file, offset as usize, &bytes) {
                return Ok(());
            }
        }
        self.file(file).write(offset as usize, bytes);
        Self::end(power)
    }

    /// Lets a write fail, or takes room for it.
    fn check_write(&mut self, file: u64, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let what = || format!("write {name}: {} bytes at {offset}", bytes.len());
        let inode = self.files.get_mut(&file).expect("an open file is on this device");
        let at = offset as usize;
        if self.faults.strikes(Fault::FullWrite) {
            self.faults.fired_mut().full_write += 1;
            let blocks = bytes.len().div_ceil(BLOCK_BYTES).max(1);
            let done = self.faults.rng.below(blocks) * BLOCK_BYTES;
            inode.write(at, bytes[..done].to_vec());
            return Err(self.faults.full(what()));
        }
        if self.faults.strikes(Fault::WriteError) {
            self.faults.fired_mut().write_error += 1;
            for (_, start, end) in sectors(at, bytes.len()) {
                if self.faults.rng.chance(1, 2) {
                    inode.write(at + start, bytes[start..end].to_vec());
                }
            }
            return Err(os_error(what(), libc::EIO));
        }
        self.reserve(file, "write", name, offset, bytes.len() as u64)
    }

    /// True when the write is acknowledged, and lost or done elsewhere.
    fn deceives(&mut self, file: u64, offset: usize, bytes: &[u8]) -> bool {
        let inode = self.files.get_mut(&file).expect("an open file is on this device");
        let lost = self.faults.strikes(Fault::LostWrite);
        let misdirected = self.faults.strikes(Fault::MisdirectedWrite);
        if !(lost || misdirected) || bytes.is_empty() {
            return false;
        }
        inode.reach(offset + bytes.len());
        let differs = |inode: &Inode, range: &Range<usize>| {
            inode.seen(offset + range.start..offset + range.end) != &bytes[range.clone()]
        };
        if misdirected {
            let places = inode.len() - bytes.len();
            let unit = if places >= BLOCK_BYTES { BLOCK_BYTES } else { super::SECTOR_BYTES };
            let place = offset % unit + self.faults.rng.below(places / unit + 1) * unit;
            if place != offset && place + bytes.len() <= inode.len() {
                self.faults.fired_mut().misdirected_write += 1;
                inode.write(place, bytes.to_vec());
                return true;
            }
        }
        let struck: Vec<Range<usize>> = if misdirected {
            std::iter::once(0..bytes.len()).collect()
        } else {
            self.faults.struck(offset, bytes.len())
        };
        let noticed = struck.iter().any(|range| differs(inode, range));
        self.faults.fired_mut().lost_write += u64::from(noticed);
        let mut from = 0;
        for range in struck.into_iter().chain(std::iter::once(bytes.len()..bytes.len())) {
            inode.write(offset + from, bytes[from..range.start].to_vec());
            from = range.end;
        }
        true
    }

    /// Number of waits that a request of a queue is late: 0, or up to `most`.
    pub(super) fn delay(&mut self, most: usize) -> usize {
        if !self.faults.strikes(Fault::Latency) {
            return 0;
        }
        self.faults.fired_mut().latency += 1;
        1 + self.faults.rng.below(most)
    }

    /// Notes a write that a queue hands over; the number is for `land`.
    pub(super) fn launch(&mut self, file: u64, offset: u64, bytes: &[u8]) -> u64 {
        self.next_serial += 1;
        let serial = self.next_serial;
        if !self.off {
            self.file(file).launch(serial, offset as usize, bytes.to_vec());
        }
        serial
    }

    /// Completes a write in flight. Without power it stays in flight for ever: `reboot` decides.
    pub(super) fn land(&mut self, file: u64, name: &str, offset: u64, serial: u64) -> Result<()> {
        self.check_power()?;
        if self.cut_after.is_some_and(|operations| self.counters.operations >= operations) {
            self.off = true;
            return Err(power_is_off());
        }
        let bytes = self.file(file).land(serial);
        self.write(file, name, offset, bytes)
    }

    pub(super) fn sync(&mut self, file: u64, name: &str) -> Result<()> {
        match &mut self.cut_in_sync {
            Some((names, 0)) if name.starts_with(names.as_str()) => self.cut_after = Some(0),
            Some((names, more)) if name.starts_with(names.as_str()) => *more -= 1,
            _ => {}
        }
        let power = self.begin()?;
        self.counters.syncs += 1;
        Self::end(power)?;
        let inode = self.files.get_mut(&file).expect("an open file is on this device");
        if self.faults.strikes(Fault::SyncError) {
            let apart = inode.lose_some(&mut self.faults.rng);
            let fired = self.faults.fired_mut();
            fired.sync_error += 1;
            fired.syncs_apart += u64::from(apart);
            return Err(os_error(format!("sync {name}"), libc::EIO));
        }
        inode.settle();
        Ok(())
    }

    pub(super) fn flip_bit(&mut self, name: &str, offset: u64) {
        let bit = 1u8 << self.rng.below(8);
        let file = self.find("flip a bit of", name).expect("the test names a file that exists");
        self.file(file).flip(offset as usize, bit);
    }

    pub(super) fn contents(&self, name: &str) -> Vec<u8> {
        let file = self.find("look at", name).expect("the test names a file that exists");
        let inode = &self.files[&file];
        inode.seen(0..inode.len()).to_vec()
    }

    pub(super) fn replace(&mut self, name: &str, offset: u64, bytes: &[u8]) {
        let file = self.find("replace bytes of", name).expect("the test names a file that exists");
        self.file(file).replace(offset as usize, bytes);
    }

    /// The device after a power cut now; see `SimMedium::reboot`.
    pub(super) fn reboot(&self, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let eagerness = eagerness(&mut rng);
        let mut device = Self::new(rng.next(), SimFired::default());
        device.capacity = self.capacity;
        device.curve = self.curve.clone();
        let (names, lost_names) = self.surviving_names(&mut rng, eagerness);
        device.faults.fired_mut().lost_names = lost_names;
        for (name, file) in names {
            let inode = &self.files[&file];
            let found = inode.survivor(&mut rng, eagerness);
            device.faults.fired_mut().torn_writes += found.torn;
            let file = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
            let inode = Inode::settled(found.bytes, inode.blocks_after_a_cut(&mut rng));
            device.files.insert(file, inode);
            device.names.insert(name, file);
        }
        device.durable_names = device.names.clone();
        device
    }

    /// The names after a power cut, and how many changes of names it undid.
    fn surviving_names(&self, rng: &mut Rng, eagerness: u64) -> (BTreeMap<String, u64>, u64) {
        let mut names = self.durable_names.clone();
        let mut lost = 0;
        let in_order = rng.chance(1, 2);
        let kept = prefix(rng, self.name_changes.len(), eagerness);
        for (index, change) in self.name_changes.iter().enumerate() {
            let survives = if in_order { index < kept } else { prefix(rng, 1, eagerness) == 1 };
            if !survives {
                lost += 1;
                continue;
            }
            match change {
                NameChange::Create { name, file } => {
                    names.insert(name.clone(), *file);
                }
                NameChange::Remove { name, file } => {
                    if names.get(name) == Some(file) {
                        names.remove(name);
                    }
                }
                NameChange::Rename { from, to, file } => {
                    if names.get(from) == Some(file) {
                        names.remove(from);
                        names.insert(to.clone(), *file);
                    }
                }
            }
        }
        (names, lost)
    }
}
