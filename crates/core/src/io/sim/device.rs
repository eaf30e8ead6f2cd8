//! The state of a simulated device: what is seen, what is stored, and what lies between.

use super::rng::Rng;
use super::{SECTOR_BYTES, SimCounters};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::OpenMode;
use crate::io::request::short_file;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit in which room is taken.
const BLOCK_BYTES: u64 = 4096;

/// Numbers files across all simulated devices of the process, so that a file given to another
/// device's queue is noticed.
static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// A change of a file since it was last synced.
#[derive(Clone, Debug)]
enum Change {
    Length(usize),
    Write { offset: usize, bytes: Vec<u8> },
}

/// A change of the directory since it was last synced.
#[derive(Clone, Debug)]
enum NameChange {
    Create { name: String, file: u64 },
    Remove { name: String, file: u64 },
    Rename { from: String, to: String, file: u64 },
}

/// One file, with or without a name.
#[derive(Clone, Debug, Default)]
struct Inode {
    /// What the running machine reads.
    live: Vec<u8>,
    /// What is found after a power cut, before any of `changes`.
    durable: Vec<u8>,
    changes: Vec<Change>,
    /// Writes that a queue handed over and that have not completed, by serial number.
    flying: BTreeMap<u64, (usize, Vec<u8>)>,
    /// Which blocks have room of their own; others are holes.
    blocks: Vec<bool>,
    /// Blocks given back since the last sync: a power cut may bring them back.
    given_back: BTreeSet<usize>,
    handles: usize,
}

/// What the power does to an operation.
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
    pub(super) cut_after: Option<u64>,
    pub(super) off: bool,
    pub(super) fail_read: Option<u64>,
    pub(super) fail_write: Option<u64>,
    pub(super) fail_sync: Option<u64>,
    pub(super) full_write: Option<u64>,
    pub(super) full_allocate: Option<u64>,
    pub(super) counters: SimCounters,
    files: HashMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_changes: Vec<NameChange>,
    next_serial: u64,
}

/// An error of the operating system, as the other media report it.
pub(super) fn os_error(what: impl std::fmt::Display, code: i32) -> Error {
    Error::os(what, std::io::Error::from_raw_os_error(code))
}

fn power_is_off() -> Error {
    Error::new(ErrorKind::Io, "power is off")
}

/// Counts a fault down; true when it strikes.
fn strikes(fault: &mut Option<u64>) -> bool {
    match fault {
        Some(0) => {
            *fault = None;
            true
        }
        Some(after) => {
            *after -= 1;
            false
        }
        None => false,
    }
}

/// Splits `offset..offset + bytes` at sector borders: (sector, start, end) relative to `offset`.
fn sectors(offset: usize, bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let first = offset / SECTOR_BYTES;
    let last = (offset + bytes).div_ceil(SECTOR_BYTES);
    (first..last).map(move |sector| {
        let start = (sector * SECTOR_BYTES).max(offset) - offset;
        let end = ((sector + 1) * SECTOR_BYTES).min(offset + bytes) - offset;
        (sector, start, end)
    })
}

impl Inode {
    /// Applies a write to what is seen, and notes it for the next sync.
    fn change(&mut self, offset: usize, bytes: &[u8]) {
        if offset + bytes.len() > self.live.len() {
            self.resize(offset + bytes.len());
        }
        self.live[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.changes.push(Change::Write { offset, bytes: bytes.to_vec() });
    }

    fn resize(&mut self, length: usize) {
        self.live.resize(length, 0);
        self.changes.push(Change::Length(length));
    }

    /// Makes all changes durable.
    fn settle(&mut self) {
        self.given_back.clear();
        for change in self.changes.drain(..) {
            match change {
                Change::Length(length) => self.durable.resize(length, 0),
                Change::Write { offset, bytes } => {
                    self.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
    }

    /// Drops about half of the written sectors from what the next sync would make durable.
    fn forget_some(&mut self, rng: &mut Rng) {
        let mut kept = Vec::new();
        for change in self.changes.drain(..) {
            let Change::Write { offset, bytes } = change else {
                kept.push(change);
                continue;
            };
            for (_, start, end) in sectors(offset, bytes.len()) {
                if rng.chance(1, 2) {
                    let bytes = bytes[start..end].to_vec();
                    kept.push(Change::Write { offset: offset + start, bytes });
                }
            }
        }
        self.changes = kept;
    }

    /// What a power cut leaves of the contents. `eagerness` of 8 cases keep a change.
    fn survivor(&self, rng: &mut Rng, eagerness: u64) -> Vec<u8> {
        let mut changes = self.changes.clone();
        let mut length = self.live.len();
        for (offset, bytes) in self.flying.values() {
            if offset + bytes.len() > length {
                length = offset + bytes.len();
                changes.push(Change::Length(length));
            }
            changes.push(Change::Write { offset: *offset, bytes: bytes.clone() });
        }
        let lengths = changes.iter().filter(|c| matches!(c, Change::Length(_))).count();
        let mut lengths_kept = prefix(rng, lengths, eagerness);
        let mut touches: BTreeMap<usize, usize> = BTreeMap::new();
        for change in &changes {
            if let Change::Write { offset, bytes } = change {
                sectors(*offset, bytes.len())
                    .for_each(|(sector, ..)| *touches.entry(sector).or_default() += 1);
            }
        }
        // From the number of states of each sector to how many of them are reached.
        touches.values_mut().for_each(|states| *states = prefix(rng, *states, eagerness));
        let mut found = self.durable.clone();
        for change in changes {
            match change {
                Change::Length(length) if lengths_kept > 0 => {
                    lengths_kept -= 1;
                    found.resize(length, 0);
                }
                Change::Length(_) => {}
                Change::Write { offset, bytes } => {
                    for (sector, start, end) in sectors(offset, bytes.len()) {
                        let left = touches.get_mut(&sector).expect("every sector was counted");
                        if *left > 0 {
                            *left -= 1;
                            let end = end.min(found.len().saturating_sub(offset));
                            if start < end {
                                found[offset + start..offset + end]
                                    .copy_from_slice(&bytes[start..end]);
                            }
                        }
                    }
                }
            }
        }
        found
    }

    fn taken(&self) -> u64 {
        self.blocks.iter().filter(|&&taken| taken).count() as u64 * BLOCK_BYTES
    }
}

/// How many of `count` changes in order survive.
fn prefix(rng: &mut Rng, count: usize, eagerness: u64) -> usize {
    match eagerness {
        0 => 0,
        8 => count,
        _ if rng.chance(eagerness, 8) => count,
        _ if count > 0 => rng.below(count),
        _ => 0,
    }
}

impl Device {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            capacity: None,
            cut_after: None,
            off: false,
            fail_read: None,
            fail_write: None,
            fail_sync: None,
            full_write: None,
            full_allocate: None,
            counters: SimCounters::default(),
            files: HashMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            next_serial: 0,
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
            if strikes(&mut self.full_allocate) {
                return Err(os_error(format!("open {name}"), libc::ENOSPC));
            }
            let power = self.begin()?;
            let file = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
            self.files.insert(file, Inode::default());
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

    pub(super) fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.check_power()?;
        Ok(self.names.keys().filter(|name| name.starts_with(prefix)).cloned().collect())
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<()> {
        self.check_power()?;
        let file = self.find("remove", name)?;
        let power = self.begin()?;
        self.names.remove(name);
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
        self.names.insert(to.to_owned(), file);
        let (from, to) = (from.to_owned(), to.to_owned());
        self.name_changes.push(NameChange::Rename { from, to, file });
        Self::end(power)
    }

    pub(super) fn sync_dir(&mut self) -> Result<()> {
        let power = self.begin()?;
        self.counters.dir_syncs += 1;
        Self::end(power)?;
        if strikes(&mut self.fail_sync) {
            return Err(os_error("sync the directory", libc::EIO));
        }
        self.durable_names = self.names.clone();
        self.name_changes.clear();
        let (names, files) = (&self.names, &mut self.files);
        files.retain(|file, inode| inode.handles > 0 || names.values().any(|named| named == file));
        Ok(())
    }

    pub(super) fn free_bytes(&self) -> Result<u64> {
        self.check_power()?;
        Ok(self.capacity.unwrap_or(1 << 50).saturating_sub(self.taken_bytes()))
    }

    /// Bytes of all blocks that files have.
    pub(super) fn taken_bytes(&self) -> u64 {
        // Files without a name and without a user have given their room back.
        let in_use = |file: &u64| self.names.values().any(|named| named == file);
        let taken = self.files.iter().filter(|(file, inode)| inode.handles > 0 || in_use(file));
        taken.map(|(_, inode)| inode.taken()).sum()
    }

    pub(super) fn len(&mut self, file: u64) -> Result<u64> {
        self.check_power()?;
        Ok(self.file(file).live.len() as u64)
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
        if strikes(&mut self.fail_read) {
            let what = format!("read {name}: {} bytes at {offset}", buffer.len());
            return Err(os_error(what, libc::EIO));
        }
        let inode = self.files.get(&file).expect("an open file is on this device");
        let end = offset.saturating_add(buffer.len() as u64);
        if end > inode.live.len() as u64 {
            return Err(short_file(name, offset, buffer.len(), inode.live.len() as u64));
        }
        let offset = offset as usize;
        buffer.copy_from_slice(&inode.live[offset..offset + buffer.len()]);
        // A write in flight may have reached some of the sectors.
        for (at, bytes) in inode.flying.values() {
            for (_, start, end) in sectors(*at, bytes.len()) {
                let from = (at + start).max(offset);
                let to = (at + end).min(offset + buffer.len());
                if from < to && self.rng.chance(1, 2) {
                    buffer[from - offset..to - offset].copy_from_slice(&bytes[from - at..to - at]);
                }
            }
        }
        Ok(())
    }

    /// Takes room for the blocks of a range that have none; `Full` leaves all as it is.
    fn reserve(&mut self, file: u64, what: &str, offset: u64, bytes: u64) -> Result<()> {
        let Some(end) = offset.checked_add(bytes).filter(|&end| end < 1 << 40) else {
            bail!(Full, "{what}: {bytes} bytes at {offset} are beyond the simulated device");
        };
        let free = self.free_bytes()?;
        let blocks = &mut self.file(file).blocks;
        let range = (offset / BLOCK_BYTES) as usize..end.div_ceil(BLOCK_BYTES) as usize;
        let missing = range.clone().filter(|&block| !blocks.get(block).is_some_and(|&taken| taken));
        if missing.count() as u64 * BLOCK_BYTES > free {
            bail!(Full, "{what}: {bytes} bytes at {offset}, {free} bytes are free");
        }
        if blocks.len() < range.end {
            blocks.resize(range.end, false);
        }
        blocks[range].fill(true);
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
        if power == Power::On && strikes(&mut self.full_allocate) {
            return Err(os_error(format!("allocate {name}"), libc::ENOSPC));
        }
        if power == Power::On {
            self.reserve(file, &format!("allocate {name}"), offset, bytes)?;
        }
        let end = (offset + bytes) as usize;
        if bytes > 0 && end > self.file(file).live.len() {
            self.file(file).resize(end);
        }
        Self::end(power)
    }

    pub(super) fn give_back(&mut self, file: u64, offset: u64, bytes: u64) -> Result<bool> {
        let power = self.begin()?;
        let inode = self.file(file);
        let end = (offset + bytes).min(inode.live.len() as u64);
        if offset < end {
            inode.change(offset as usize, &vec![0; (end - offset) as usize]);
        }
        // A block of which a part stays keeps its room.
        let blocks = offset.div_ceil(BLOCK_BYTES)..(offset + bytes) / BLOCK_BYTES;
        for block in blocks.map(|block| block as usize) {
            if let Some(taken) = inode.blocks.get_mut(block)
                && std::mem::replace(taken, false)
            {
                inode.given_back.insert(block);
            }
        }
        Self::end(power).map(|()| true)
    }

    pub(super) fn set_len(&mut self, file: u64, bytes: u64) -> Result<()> {
        let power = self.begin()?;
        let inode = self.file(file);
        inode.resize(bytes as usize);
        inode.blocks.truncate(bytes.div_ceil(BLOCK_BYTES) as usize);
        Self::end(power)
    }

    pub(super) fn write(&mut self, file: u64, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let power = self.begin()?;
        self.counters.writes += 1;
        self.counters.bytes_written += bytes.len() as u64;
        let what = format!("write {name}");
        if power == Power::On {
            self.reserve(file, &what, offset, bytes.len() as u64)?;
        }
        let fails = match power {
            Power::On if strikes(&mut self.fail_write) => Some(libc::EIO),
            Power::On if strikes(&mut self.full_write) => Some(libc::ENOSPC),
            _ => None,
        };
        if let Some(code) = fails {
            for (_, start, end) in sectors(offset as usize, bytes.len()) {
                if self.rng.chance(1, 2) {
                    self.file(file).change(offset as usize + start, &bytes[start..end]);
                }
            }
            let what = format!("{what}: {} bytes at {offset}", bytes.len());
            return Err(os_error(what, code));
        }
        self.file(file).change(offset as usize, bytes);
        Self::end(power)
    }

    /// Notes a write that a queue hands over; the number is for `land`.
    pub(super) fn launch(&mut self, file: u64, offset: u64, bytes: &[u8]) -> u64 {
        self.next_serial += 1;
        let serial = self.next_serial;
        if !self.off {
            self.file(file).flying.insert(serial, (offset as usize, bytes.to_vec()));
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
        let (_, bytes) = self.file(file).flying.remove(&serial).expect("launched, not landed");
        self.write(file, name, offset, &bytes)
    }

    pub(super) fn sync(&mut self, file: u64, name: &str) -> Result<()> {
        let power = self.begin()?;
        self.counters.syncs += 1;
        Self::end(power)?;
        if strikes(&mut self.fail_sync) {
            let mut rng = self.rng.clone();
            self.file(file).forget_some(&mut rng);
            self.rng = rng;
            return Err(os_error(format!("sync {name}"), libc::EIO));
        }
        self.file(file).settle();
        Ok(())
    }

    pub(super) fn flip_bit(&mut self, name: &str, offset: u64) {
        let bit = 1u8 << self.rng.below(8);
        let file = self.find("flip a bit of", name).expect("the test names a file that exists");
        let inode = self.file(file);
        let offset = offset as usize;
        inode.live[offset] ^= bit;
        if let Some(byte) = inode.durable.get_mut(offset) {
            *byte ^= bit;
        }
        for change in &mut inode.changes {
            if let Change::Write { offset: at, bytes } = change
                && let Some(byte) = offset.checked_sub(*at).and_then(|i| bytes.get_mut(i))
            {
                *byte ^= bit;
            }
        }
    }

    /// The device after a power cut now; see `SimMedium::reboot`.
    pub(super) fn reboot(&self, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        // All, nothing, and what lies between: each kind of luck gets its share of the seeds.
        let eagerness = [0, 1, 2, 4, 4, 6, 7, 8][rng.below(8)];
        let mut device = Self::new(rng.next());
        device.capacity = self.capacity;
        for (name, file) in self.surviving_names(&mut rng, eagerness) {
            let inode = &self.files[&file];
            let durable = inode.survivor(&mut rng, eagerness);
            let mut blocks = inode.blocks.clone();
            blocks.resize(durable.len().div_ceil(BLOCK_BYTES as usize), true);
            for block in inode.given_back.iter().filter(|_| rng.chance(1, 2)) {
                if let Some(taken) = blocks.get_mut(*block) {
                    *taken = true;
                }
            }
            let live = durable.clone();
            let file = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
            device.files.insert(file, Inode { live, durable, blocks, ..Inode::default() });
            device.names.insert(name, file);
        }
        device.durable_names = device.names.clone();
        device
    }

    fn surviving_names(&self, rng: &mut Rng, eagerness: u64) -> BTreeMap<String, u64> {
        let mut names = self.durable_names.clone();
        let in_order = rng.chance(1, 2);
        let kept = prefix(rng, self.name_changes.len(), eagerness);
        for (index, change) in self.name_changes.iter().enumerate() {
            let survives = if in_order { index < kept } else { prefix(rng, 1, eagerness) == 1 };
            if !survives {
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
        names
    }
}
