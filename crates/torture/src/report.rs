//! The counts of lives.

use crate::faults::{Fault, fired};
use embedrock_core::io::SimFired;
use std::collections::BTreeMap;

/// Something rare that happened to a store, as a life sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Event {
    /// Closed and opened again.
    Reopened,
    /// Dropped without a close, and opened again on the same machine.
    Killed,
    /// The power was cut.
    Crashed,
    /// The power was cut while a store was opened.
    CutWhileOpening,
    /// Opened at an earlier commit.
    WentBack,
    /// Opened at a pinned commit.
    WentBackToPin,
    /// A commit was pinned.
    Pinned,
    /// A name was taken away from a commit.
    Unpinned,
    /// A verb was refused for want of room.
    Full,
    /// A budget was refused.
    Budget,
    /// A verb failed with the error of the device.
    Error,
    /// A store refused changes after an error.
    Poisoned,
    /// The device has lied.
    Doomed,
    /// The store has said so.
    DamageReported,
    /// A reader was opened.
    ReaderOpened,
    /// A reader read a commit that the writer does not keep any more.
    ReaderHeld,
    /// A reader was told that its commit is gone.
    CommitGone,
    /// A reader moved to the newest commit.
    Refreshed,
    /// A writer had to wait for a reader.
    HeldBack,
    /// A commit.
    Commit,
    /// A verb ran beside a commit.
    BesideCommit,
    /// A table was added to a store with rows.
    TableAdded,
    /// A table was dropped.
    TableDropped,
    /// A table got another name.
    TableRenamed,
    /// A dense table got more ids.
    TableGrown,
    /// A batch was read ahead.
    ReadAhead,
    /// A store that was full again and again had to take something.
    Insisted,
    /// Another folder came to the place of the store's.
    FolderReplaced,
    /// The lock file was removed, and another writer came.
    LockRemoved,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 29] = [
        Self::Reopened,
        Self::Killed,
        Self::Crashed,
        Self::CutWhileOpening,
        Self::WentBack,
        Self::WentBackToPin,
        Self::Pinned,
        Self::Unpinned,
        Self::Full,
        Self::Budget,
        Self::Error,
        Self::Poisoned,
        Self::Doomed,
        Self::DamageReported,
        Self::ReaderOpened,
        Self::ReaderHeld,
        Self::CommitGone,
        Self::Refreshed,
        Self::HeldBack,
        Self::Commit,
        Self::BesideCommit,
        Self::TableAdded,
        Self::TableDropped,
        Self::TableRenamed,
        Self::TableGrown,
        Self::ReadAhead,
        Self::Insisted,
        Self::FolderReplaced,
        Self::LockRemoved,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reopened => "reopened",
            Self::Killed => "killed",
            Self::Crashed => "crashed",
            Self::CutWhileOpening => "cut_while_opening",
            Self::WentBack => "went_back",
            Self::WentBackToPin => "went_back_to_pin",
            Self::Pinned => "pinned",
            Self::Unpinned => "unpinned",
            Self::Full => "full",
            Self::Budget => "budget",
            Self::Error => "error",
            Self::Poisoned => "poisoned",
            Self::Doomed => "device_lied",
            Self::DamageReported => "damage_reported",
            Self::ReaderOpened => "reader_opened",
            Self::ReaderHeld => "reader_held",
            Self::CommitGone => "commit_gone",
            Self::Refreshed => "refreshed",
            Self::HeldBack => "held_back",
            Self::Commit => "commit",
            Self::BesideCommit => "beside_commit",
            Self::TableAdded => "table_added",
            Self::TableDropped => "table_dropped",
            Self::TableRenamed => "table_renamed",
            Self::TableGrown => "table_grown",
            Self::ReadAhead => "read_ahead",
            Self::Insisted => "insisted",
            Self::FolderReplaced => "folder_replaced",
            Self::LockRemoved => "lock_removed",
        }
    }
}

/// The counts of one or many lives.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Lives.
    pub seeds: u64,
    /// Operations.
    pub operations: u64,
    /// Number of times each fault struck.
    pub faults: [u64; Fault::ALL.len()],
    /// Number of times each event happened.
    pub events: [u64; Event::ALL.len()],
    /// Number of calls of each verb.
    pub verbs: BTreeMap<&'static str, u64>,
}

impl Counts {
    pub(crate) fn event(&mut self, event: Event) {
        self.events[event as usize] += 1;
        if matches!(event, Event::Crashed | Event::CutWhileOpening) {
            self.faults[Fault::Power as usize] += 1;
        }
    }

    pub(crate) fn verb(&mut self, name: &'static str) {
        *self.verbs.entry(name).or_default() += 1;
    }

    /// Adds what struck a machine that is done with.
    pub(crate) fn add_fired(&mut self, machine: &SimFired) {
        for fault in Fault::ALL {
            self.faults[fault as usize] += fired(machine, fault);
        }
    }

    /// Adds what other lives have counted.
    pub fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        let sum = |a: &mut [u64], b: &[u64]| a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        sum(&mut self.faults, &other.faults);
        sum(&mut self.events, &other.events);
        other.verbs.iter().for_each(|(verb, n)| *self.verbs.entry(verb).or_default() += n);
    }
}
