//! Faults of a simulated device: probabilities, single faults, and counts of those that struck.

use super::inode::{BLOCK_BYTES, sectors};
use super::rng::Rng;
use crate::error::Error;
use std::ops::Range;

/// Chances are given in parts of this.
const MILLION: u64 = 1_000_000;
const FAULTS: usize = 13;

/// The probability of each fault, in parts per million of the operations that it may strike; all 0
/// by default. The device's own generator decides, so that a seed replays.
///
/// Through the first group a store must keep every row: a verb may fail with the error, the store
/// may ask to be opened again, but what is read is right and every acknowledged commit is there.
/// The second group is a device that lies. A store may answer it with `Corrupt` or `Io` and lose
/// what it cannot read; what it may not do is return a wrong row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimFaults {
    /// A read fails with EIO.
    pub read_error: u32,
    /// A read ends early: an `Io` error that says how much came. Queues of real media ask for the
    /// rest; this is what they report when nothing more comes.
    pub short_read: u32,
    /// A write fails with EIO; some of its sectors are done.
    pub write_error: u32,
    /// A sync of a file or of the directory fails with EIO; see [`super::SimMedium::fail_sync`].
    pub sync_error: u32,
    /// A write fails with ENOSPC or EDQUOT, whether or not it needs room; some of its blocks, from
    /// the first on, may be done.
    pub full_write: u32,
    /// An allocation fails with ENOSPC or EDQUOT and changes nothing.
    pub full_allocate: u32,
    /// A request of a queue comes back many waits later than others.
    pub latency: u32,

    /// A write is acknowledged and not done: all of it, some of its blocks of 4 KiB, or some of its
    /// sectors keep what they had, as seen and as stored, for ever.
    pub lost_write: u32,
    /// A write is acknowledged and done at another aligned place of the same file; where it belongs
    /// all stays as it was.
    pub misdirected_write: u32,
    /// A read returns, for all or some of its sectors, what was there before their last write. The
    /// next read is right.
    pub stale_read: u32,
    /// Before a read, a bit flips somewhere in the file that is read, as seen and as stored.
    pub bit_flip: u32,
}

/// Number of times each fault of [`SimFaults`] struck since the device was made or rebooted, single
/// faults included, and number of rare events that happened without being asked for. A fault counts
/// only if it can be noticed: a lost write of bytes that were there already does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimFired {
    /// Reads that failed.
    pub read_error: u64,
    /// Reads that ended early.
    pub short_read: u64,
    /// Writes that failed.
    pub write_error: u64,
    /// Syncs that failed.
    pub sync_error: u64,
    /// Writes that found no room, other than by the capacity.
    pub full_write: u64,
    /// Allocations that found no room, other than by the capacity.
    pub full_allocate: u64,
    /// Requests that were held back.
    pub latency: u64,
    /// Writes that were not done, or not everywhere.
    pub lost_write: u64,
    /// Writes that were done elsewhere.
    pub misdirected_write: u64,
    /// Reads of what was there before.
    pub stale_read: u64,
    /// Bits that flipped.
    pub bit_flip: u64,
    /// Failed syncs after which the machine reads what the disk does not have, and no later sync
    /// alone brings there.
    pub syncs_apart: u64,
    /// Writes of which the power cut before this machine left some sectors and not others.
    pub torn_writes: u64,
    /// Creations, removals and renames that the power cut before this machine undid.
    pub lost_names: u64,
}

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    ReadError,
    ShortRead,
    WriteError,
    SyncError,
    FullWrite,
    FullAllocate,
    Latency,
    LostWrite,
    MisdirectedWrite,
    StaleRead,
    BitFlip,
    ShrinkError,
    LookError,
}

/// Decides which operations fail, and how.
#[derive(Debug)]
pub(super) struct Injector {
    chances: [u32; FAULTS],
    /// Number of further operations that pass before a single fault strikes.
    once: [Option<u64>; FAULTS],
    fired: SimFired,
    pub(super) rng: Rng,
}

impl Injector {
    pub(super) fn new(seed: u64, fired: SimFired) -> Self {
        Self { chances: [0; FAULTS], once: [None; FAULTS], fired, rng: Rng::new(seed) }
    }

    pub(super) fn set(&mut self, faults: SimFaults) {
        self.chances = [
            faults.read_error,
            faults.short_read,
            faults.write_error,
            faults.sync_error,
            faults.full_write,
            faults.full_allocate,
            faults.latency,
            faults.lost_write,
            faults.misdirected_write,
            faults.stale_read,
            faults.bit_flip,
            // Only as single faults.
            0,
            0,
        ];
    }

    pub(super) fn once(&mut self, fault: Fault, after: u64) {
        self.once[fault as usize] = Some(after);
    }

    pub(super) fn end_single(&mut self) {
        self.once = [None; FAULTS];
    }

    /// Whether a single fault is still to strike.
    pub(super) fn waits(&self, fault: Fault) -> bool {
        self.once[fault as usize].is_some()
    }

    pub(super) fn fired(&self) -> SimFired {
        self.fired
    }

    pub(super) fn fired_mut(&mut self) -> &mut SimFired {
        &mut self.fired
    }

    /// Whether `fault` strikes the operation at hand. The caller counts it.
    pub(super) fn strikes(&mut self, fault: Fault) -> bool {
        if let Some(after) = &mut self.once[fault as usize] {
            if *after == 0 {
                self.once[fault as usize] = None;
                return true;
            }
            *after -= 1;
        }
        let chance = u64::from(self.chances[fault as usize]);
        chance > 0 && self.rng.chance(chance, MILLION)
    }

    /// The parts of a request that a lying device strikes: all of it, blocks that lie side by side,
    /// or some of its sectors. In order, relative to `offset`.
    pub(super) fn struck(&mut self, offset: usize, bytes: usize) -> Vec<Range<usize>> {
        let all: Vec<_> = std::iter::once(0..bytes).collect();
        if bytes == 0 {
            return Vec::new();
        }
        match self.rng.below(3) {
            0 => {
                let first = offset / BLOCK_BYTES;
                let blocks = (offset + bytes).div_ceil(BLOCK_BYTES) - first;
                let from = self.rng.below(blocks);
                let to = from + 1 + self.rng.below(blocks - from);
                let start = ((first + from) * BLOCK_BYTES).saturating_sub(offset);
                let end = ((first + to) * BLOCK_BYTES - offset).min(bytes);
                std::iter::once(start..end).collect()
            }
            1 => {
                let some = sectors(offset, bytes).map(|(_, start, end)| start..end);
                let some: Vec<_> = some.filter(|_| self.rng.chance(1, 2)).collect();
                if some.is_empty() { all } else { some }
            }
            _ => all,
        }
    }

    /// One of the errors of a disk without room.
    pub(super) fn full(&mut self, what: impl std::fmt::Display) -> Error {
        let code = if self.rng.chance(1, 2) { libc::ENOSPC } else { libc::EDQUOT };
        os_error(what, code)
    }
}

/// An error of the operating system, as the other media report it.
pub(super) fn os_error(what: impl std::fmt::Display, code: i32) -> Error {
    Error::os(what, std::io::Error::from_raw_os_error(code))
}
