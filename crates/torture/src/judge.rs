//! The answers that a store may give after each fault. docs/testing.md lists the rules.

use crate::faults::{Fault, fired};
use embedrock_core::io::{SimFired, SimMedium};
use embedrock_core::{Error, ErrorKind};

/// Faults after which an operation may fail with the error that the device gave.
const ERRORS: [Fault; 4] = [Fault::Read, Fault::Short, Fault::Write, Fault::Sync];

/// The faults that struck a machine since some moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blame {
    since: SimFired,
    /// The same for errors of a full disk.
    full_since: SimFired,
    /// The disk or the device has a bound.
    pub(crate) bounded: bool,
    /// A bit was flipped by hand, which the device does not count.
    pub(crate) flipped: bool,
}

impl Blame {
    /// Nothing has struck since now.
    pub(crate) fn from_now(medium: &SimMedium, bounded: bool) -> Self {
        let now = medium.faults_fired();
        Self { since: now, full_since: now, bounded, flipped: false }
    }

    /// A verb has told its error, and the store goes on. A write or a sync that failed may be told
    /// later than a read: when somebody comes to what should have been written.
    pub(crate) fn was_told(&mut self, medium: &SimMedium) {
        let now = medium.faults_fired();
        self.full_since = now;
        (self.since.read_error, self.since.short_read) = (now.read_error, now.short_read);
    }

    fn count(&self, medium: &SimMedium, fault: Fault) -> u64 {
        fired(&medium.faults_fired(), fault) - fired(&self.since, fault)
    }

    fn found_full(&self, medium: &SimMedium) -> bool {
        let count = |fault| fired(&medium.faults_fired(), fault) - fired(&self.full_since, fault);
        count(Fault::Full) + count(Fault::FullWrite) > 0
    }

    /// True when the device has lied.
    pub(crate) fn lied(&self, medium: &SimMedium) -> bool {
        self.flipped
            || Fault::ALL.into_iter().any(|fault| fault.lies() && self.count(medium, fault) > 0)
    }

    /// True when an operation of the device has failed.
    pub(crate) fn failed(&self, medium: &SimMedium) -> bool {
        ERRORS.into_iter().any(|fault| self.count(medium, fault) > 0)
            || self.count(medium, Fault::FullWrite) > 0
    }

    /// Whether a verb of a sound store may fail with this error; the reason why not.
    pub(crate) fn allows(&self, medium: &SimMedium, error: &Error) -> Result<(), String> {
        let full = self.bounded || self.found_full(medium);
        let (right, why) = match error.kind() {
            ErrorKind::Io => (self.failed(medium), "no operation of the device has failed"),
            ErrorKind::Full => (full, "there is room"),
            ErrorKind::Poisoned => (self.failed(medium), "nothing has failed before"),
            ErrorKind::Corrupt => (self.lied(medium), "the device has told the truth"),
            _ => (false, "nothing here asks for it"),
        };
        if right || self.lied(medium) {
            return Ok(());
        }
        Err(format!("{:?} although {why}: {}", error.kind(), error.message()))
    }
}
