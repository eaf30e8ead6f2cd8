//! Faults of a device, by name.

use crate::random::Random;
use embedrock_core::io::{Medium, OpenMode, SimFaults, SimFired, SimMedium};
use std::fmt;
use std::str::FromStr;

/// The folder of partitions that lie apart.
pub(crate) const COLD: &str = "cold";

/// A kind of fault. `judge` says what a store may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Fault {
    /// The power is cut at some operation of the device; unsynced sectors and names are lost.
    Power,
    /// A read fails.
    Read,
    /// A read ends early.
    Short,
    /// A write fails, and some of its sectors are done.
    Write,
    /// A sync fails; what it should have written counts as clean.
    Sync,
    /// An allocation finds no room.
    Full,
    /// A write finds no room.
    FullWrite,
    /// Requests come back late and in another order.
    Latency,
    /// A bit flips.
    Flip,
    /// A write is acknowledged and not done.
    Lost,
    /// A write is acknowledged and done elsewhere.
    Misdirected,
    /// A read returns what was there before the last write.
    Stale,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Power,
        Self::Read,
        Self::Short,
        Self::Write,
        Self::Sync,
        Self::Full,
        Self::FullWrite,
        Self::Latency,
        Self::Flip,
        Self::Lost,
        Self::Misdirected,
        Self::Stale,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Read => "read",
            Self::Short => "short",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Full => "full",
            Self::FullWrite => "full-write",
            Self::Latency => "latency",
            Self::Flip => "flip",
            Self::Lost => "lost",
            Self::Misdirected => "misdirected",
            Self::Stale => "stale",
        }
    }

    /// True for a device that lies: what is stored or read is not what was written.
    pub fn lies(self) -> bool {
        self >= Self::Flip
    }
}

impl Fault {
    /// True for a device that does not do what it says it has written.
    pub(crate) fn lies_in_writes(self) -> bool {
        matches!(self, Self::Lost | Self::Misdirected)
    }
}

/// The faults that may strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSet(u16);

impl FaultSet {
    /// Every fault.
    pub fn all() -> Self {
        Self((1 << Fault::ALL.len()) - 1)
    }

    /// No fault.
    pub fn none() -> Self {
        Self(0)
    }

    /// True when the fault is among them.
    pub fn has(self, fault: Fault) -> bool {
        self.0 >> fault as u8 & 1 == 1
    }

    /// These without one.
    #[must_use]
    pub fn without(self, fault: Fault) -> Self {
        Self(self.0 & !(1 << fault as u8))
    }

    /// The faults, in order.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(move |fault| self.has(*fault))
    }
}

impl fmt::Display for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::all() {
            return f.write_str("all");
        }
        let names: Vec<&str> = self.iter().map(Fault::name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

impl FromStr for FaultSet {
    type Err = String;

    /// Reads `all`, `none`, or names with commas between them; `-name` takes one of all away.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut set = if text.starts_with('-') { Self::all() } else { Self::none() };
        for name in text.split(',').map(str::trim) {
            let (name, takes) = match name.strip_prefix('-') {
                Some(name) => (name, true),
                None => (name, false),
            };
            set = match name {
                "all" => Self::all(),
                "none" => Self::none(),
                _ => {
                    let Some(fault) = Fault::ALL.into_iter().find(|fault| fault.name() == name)
                    else {
                        let known = Fault::ALL.map(Fault::name).join(", ");
                        return Err(format!(
                            "fault is {name:?}, expected all, none or some of {known}"
                        ));
                    };
                    let without = set.without(fault);
                    if takes { without } else { Self(set.0 | 1 << fault as u8) }
                }
            };
        }
        Ok(set)
    }
}

/// Makes a fault strike soon, once. True when it has struck already.
pub(crate) fn arm(medium: &SimMedium, fault: Fault, random: &mut Random) -> bool {
    let soon = random.below(*random.clone().pick(&[2, 10, 40]));
    match fault {
        Fault::Power => medium.power_cut_after(medium.counters().operations + soon),
        Fault::Read => medium.fail_read(soon),
        Fault::Short => medium.short_read(soon),
        Fault::Write => medium.fail_write(soon),
        Fault::Sync => medium.fail_sync(soon / 4),
        Fault::Full => medium.full_allocate(soon / 8),
        Fault::FullWrite => medium.full_write(soon),
        Fault::Latency => {
            medium.set_faults(SimFaults { latency: 100_000, ..SimFaults::default() });
        }
        Fault::Lost => medium.lose_write(soon),
        Fault::Misdirected => medium.misdirect_write(soon),
        Fault::Stale => medium.stale_read(soon),
        Fault::Flip => return flip(medium, random),
    }
    false
}

/// Flips bits of one file, where something was written more often than in its reserved end.
fn flip(medium: &SimMedium, random: &mut Random) -> bool {
    let cold = medium.folder(COLD);
    let (Ok(mut names), Ok(apart)) = (medium.list(""), cold.list("")) else { return false };
    names.extend(apart.iter().cloned());
    if names.is_empty() {
        return false;
    }
    // Files of rows and journals more often than their number says.
    let mut name = random.pick(&names);
    for _ in 0..2 {
        if !name.starts_with("rows-") && !name.starts_with("journal-") {
            name = random.pick(&names);
        }
    }
    let medium = if apart.contains(name) { &cold } else { medium };
    let Ok(len) = medium.open(name, OpenMode::ReadOnly).and_then(|file| file.len()) else {
        return false;
    };
    let most = if random.chance(3, 4) { len.min(24 << 10) } else { len };
    if most > 0 {
        for _ in 0..1 + random.below(8) {
            medium.flip_bit(name, random.below(most));
        }
    }
    most > 0
}

/// Number of times a fault struck this machine.
pub(crate) fn fired(fired: &SimFired, fault: Fault) -> u64 {
    match fault {
        Fault::Power => 0,
        Fault::Read => fired.read_error,
        Fault::Short => fired.short_read,
        Fault::Write => fired.write_error,
        Fault::Sync => fired.sync_error,
        Fault::Full => fired.full_allocate,
        Fault::FullWrite => fired.full_write,
        Fault::Latency => fired.latency,
        Fault::Flip => fired.bit_flip,
        Fault::Lost => fired.lost_write,
        Fault::Misdirected => fired.misdirected_write,
        Fault::Stale => fired.stale_read,
    }
}
