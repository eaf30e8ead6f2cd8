//! A store's knowledge of its commits and of the journal that contains them.

use super::super::files::state::StateRef;
use super::super::journal::{
    ClassCounters, CommitRecord, JOURNAL_BYTES_PER_COMMIT, JournalFile, RecordKind, TableCounters,
};
use super::refused::Refused;
use super::spare::Spare;
use crate::config::{CommitInfo, JOURNAL_BYTES_MIN};
use crate::error::Result;
use crate::io::{BLOCK_BYTES, File, blocks_of};
use std::sync::Arc;

/// States of commits to come for which room is left, at most.
const STATES_AHEAD: usize = 3;
/// Disk space of the superblock, the head and the lock.
const SMALL_FILES_BYTES: u64 = 3 * BLOCK_BYTES;

/// A commit that is captured and not recorded yet.
pub(in crate::store) struct InFlightCommit {
    pub(super) info: CommitInfo,
    /// Bytes of its record, at most.
    pub(super) record_bytes: u64,
    pub(super) state: Option<StateRef>,
    pub(super) tables: Vec<TableCounters>,
    pub(super) oldest_kept: u64,
    /// Files to be synced before it is recorded.
    pub(super) files: Vec<Arc<dyn File>>,
    /// Of the classes all of whose rows are written: their counters, and sums over them.
    pub(super) classes: Vec<ClassCounters>,
    pub(super) rows_written: u64,
    pub(super) page_bytes: u64,
    pub(super) index_bytes: u64,
    /// Partitions of growing tables, by table.
    pub(super) partitions: Vec<(u16, u32)>,
    /// Whether a journal file may begin with it.
    pub(super) wants_fillings: bool,
    /// Beginnings of the fillings of segments, by class, if they are wanted. Their bytes count
    /// among those of the indexes, because a journal file that holds the one holds the other.
    pub(super) fillings: Vec<(u16, String)>,
    /// Batches and rows since the commit before, for the case that this one fails.
    pub(super) batches: u64,
    pub(super) rows: u64,
}

/// Sums over the kept commits that every batch asks for. Their states may have many names.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct KeptSums {
    largest_state_bytes: u64,
    state_disk_bytes: u64,
    last_record_bytes: u64,
}

impl KeptSums {
    pub(in crate::store) fn of(kept: &[CommitRecord]) -> Self {
        let states = || kept.iter().filter_map(|commit| commit.state.as_ref()).map(StateRef::bytes);
        let record_bytes = |commit: &CommitRecord| {
            let strings = commit.state.iter().flat_map(|state| &state.strings);
            let names = strings.map(|(name, _)| name.as_str());
            record_bytes(&commit.info.meta, names, commit.tables.len(), commit.classes.len())
        };
        Self {
            largest_state_bytes: states().max().unwrap_or(0),
            state_disk_bytes: states().map(blocks_of).sum(),
            last_record_bytes: kept.last().map_or(0, record_bytes),
        }
    }
}

/// The point where a cycle continues.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct CycleCursor {
    /// Class, as an index, and id of the table whose pieces are written next; tables before it,
    /// class by class, are complete. There may be no such table: then the next one behind it.
    pub(in crate::store) class: usize,
    pub(in crate::store) table: u32,
    /// The piece of it that is written next.
    pub(in crate::store) piece: u32,
}

/// Commits that are kept, the journal, and where its cycle is.
pub(in crate::store) struct History {
    /// Kept commits, oldest first. Changed by `keep` and `drop_before`.
    pub(in crate::store) kept: Vec<CommitRecord>,
    pub(in crate::store) kept_sums: KeptSums,
    /// `None` until the first write, and after close.
    pub(in crate::store) journal: Option<JournalFile>,
    /// Bytes of older journal files that are still needed.
    pub(in crate::store) old_journal_bytes: u64,
    /// Bytes of states that are no longer kept, but that readers or pins of their commits hold.
    pub(in crate::store) held_state_bytes: u64,
    /// Bytes of the files of pinned commits, rows and states apart.
    pub(in crate::store) pins_bytes: u64,
    /// (journal file, commit at which its cycle was complete), oldest first.
    pub(in crate::store) cycles: Vec<(u64, u64)>,
    /// The point where the cycle under way continues; `None` when it is complete.
    pub(in crate::store) cursor: Option<CycleCursor>,
    /// Bytes of deltas and commit records since the cycle began; of deltas since the last commit.
    pub(in crate::store) cycle_bytes: u64,
    pub(in crate::store) epoch_deltas: u64,
    /// Bytes of pieces written since the cycle began, and since the last commit.
    pub(in crate::store) cycle_pieces: u64,
    pub(in crate::store) epoch_pieces: u64,
    /// Bytes of all indexes, when they were last looked at.
    pub(in crate::store) index_bytes: u64,
    /// Requests that were refused as `Full`.
    pub(in crate::store) refused: Refused,
    /// True when the journal had no room: the next commit that can begins another file.
    pub(in crate::store) journal_was_full: bool,
    /// True while the pieces of such a file are being written.
    pub(in crate::store) hurries: bool,
    /// Up to here the journal file of the opened commit is known to be on the disk.
    pub(in crate::store) synced_to: u64,
    /// Room for commits alone.
    pub(in crate::store) spare: Spare,
    /// The commit that is being prepared.
    pub(in crate::store) next_sequence: u64,
    /// The commit that is captured and not recorded yet.
    pub(in crate::store) in_flight: Option<InFlightCommit>,
    /// Bytes written when the last commit was made, to tell what the next one cost.
    pub(in crate::store) written_before: u64,
    /// Rows written when the last commit was made.
    pub(in crate::store) rows_before: u64,
    pub(in crate::store) payload: Vec<u8>,
}

impl History {
    pub(in crate::store) fn commits(&self) -> Vec<CommitInfo> {
        self.kept.iter().map(|c| c.info.clone()).collect()
    }

    pub(in crate::store) fn last_state(&self) -> Option<StateRef> {
        self.kept.last().and_then(|c| c.state.clone())
    }

    /// Keeps a commit, the newest.
    pub(super) fn keep(&mut self, record: CommitRecord) {
        self.kept.push(record);
        self.kept_sums = KeptSums::of(&self.kept);
    }

    /// Forgets the commits before this one.
    pub(super) fn drop_before(&mut self, oldest_kept: u64) {
        self.kept.retain(|commit| commit.info.sequence >= oldest_kept);
        self.kept_sums = KeptSums::of(&self.kept);
    }

    /// Bytes of the largest state of the kept commits and of that under way.
    pub(in crate::store) fn largest_state_bytes(&self) -> u64 {
        self.kept_sums.largest_state_bytes.max(self.state_bytes_under_way())
    }

    fn state_bytes_under_way(&self) -> u64 {
        self.in_flight.as_ref().map_or(0, |commit| commit.info.state_bytes)
    }

    /// Number of states that will be added to those on disk, if `keep` commits are kept: the oldest
    /// goes when the newest is durable. Looks at most [`STATES_AHEAD`] states ahead.
    pub(in crate::store) fn states_to_come(&self, keep: usize) -> u64 {
        let written = self.kept.len() + usize::from(self.in_flight.is_some());
        let least = usize::from(self.in_flight.is_none());
        let to_come = keep.max(1).saturating_add(1).saturating_sub(written);
        to_come.clamp(least, STATES_AHEAD) as u64
    }

    /// Room that changes leave within a disk bound for those states, if each is as large as the
    /// largest.
    pub(in crate::store) fn state_bytes_to_come(&self, keep: usize) -> u64 {
        blocks_of(self.largest_state_bytes()) * self.states_to_come(keep)
    }

    pub(in crate::store) fn close(&mut self) {
        self.journal = None;
    }

    pub(in crate::store) fn disk_bytes(&self) -> u64 {
        let journal = self.journal.as_ref().map_or(0, |journal| blocks_of(journal.disk_bytes()));
        let states = self.kept_sums.state_disk_bytes + blocks_of(self.state_bytes_under_way());
        let kept = self.old_journal_bytes + self.held_state_bytes + self.spare.bytes();
        SMALL_FILES_BYTES + journal + states + kept + self.pins_bytes
    }

    /// Bytes of the journal that the next one will not have.
    pub(in crate::store) fn outdated_bytes(&self) -> u64 {
        let journal = self.journal.as_ref().map_or(0, JournalFile::disk_bytes);
        (journal + self.old_journal_bytes).saturating_sub(self.bytes_of_next_journal())
    }

    /// Whether another journal would be shorter.
    pub(in crate::store) fn journal_is_long(&self) -> bool {
        self.outdated_bytes() > 0
    }

    /// Room that changes must leave within a disk bound: for commits, and for the journal file that
    /// replaces this one. Without it the store would stay full for ever. While an older file waits
    /// to be dropped this one is that replacement, and what it has of the indexes is there already.
    pub(in crate::store) fn bytes_kept_free(&self) -> u64 {
        let written = if self.old_journal_bytes > 0 { self.cycle_pieces } else { 0 };
        let index = self.index_bytes.max(JOURNAL_BYTES_MIN);
        self.bytes_of_next_journal() - written.min(index)
    }

    /// Room for a journal file that replaces this one, and for commits.
    pub(in crate::store) fn bytes_of_next_journal(&self) -> u64 {
        let commits = 3 * JOURNAL_BYTES_PER_COMMIT + self.last_record_bytes();
        self.index_bytes.max(JOURNAL_BYTES_MIN) + commits
    }

    /// Room that files of rows must leave beside that, because they never shrink: for a journal
    /// file that grows until it is replaced.
    pub(in crate::store) fn journal_bytes_to_come(&self) -> u64 {
        let commits = 2 * (JOURNAL_BYTES_PER_COMMIT + self.last_record_bytes());
        let file = 2 * self.index_bytes.max(JOURNAL_BYTES_MIN) + commits;
        let journal = self.journal.as_ref().map_or(0, JournalFile::disk_bytes);
        file.saturating_sub(journal + self.old_journal_bytes)
    }

    /// Room in the journal, beside deltas, for the commit under way or the next, whose record is
    /// taken to be as long as the last; where nothing is kept free for the one behind that under
    /// way (`bytes_kept_free` of a disk bound), for both.
    pub(in crate::store) fn journal_bytes_of_commits(&self, kept_free: bool) -> u64 {
        let next = JOURNAL_BYTES_PER_COMMIT + self.last_record_bytes();
        match &self.in_flight {
            None => next,
            Some(made) => {
                let behind = if kept_free { 0 } else { next };
                JOURNAL_BYTES_PER_COMMIT + made.record_bytes + behind
            }
        }
    }

    /// Bytes of the last commit's record, at most.
    pub(super) fn last_record_bytes(&self) -> u64 {
        self.kept_sums.last_record_bytes
    }

    pub(in crate::store) fn journal(&mut self) -> &mut JournalFile {
        self.journal.as_mut().expect("writing was prepared")
    }

    pub(in crate::store) fn append_json<T: serde::Serialize>(
        &mut self,
        kind: RecordKind,
        record: &T,
    ) -> Result<()> {
        self.journal().append(kind, &json(record))
    }
}

/// Bytes of a commit's record beyond what every one has, at most: a byte of a string takes six of
/// JSON or fewer, a number 20.
pub(super) fn record_bytes<'a>(
    meta: &str,
    state_names: impl Iterator<Item = &'a str>,
    tables: usize,
    classes: usize,
) -> u64 {
    let names: usize = state_names.map(|name| 6 * name.len() + 32).sum();
    (6 * meta.len() + names + 96 * tables + 96 * classes) as u64
}

pub(super) fn json<T: serde::Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec(record).expect("records are plain data")
}
