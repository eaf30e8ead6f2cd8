//! Deliberate bugs, to see that tests find such: `make planted` chooses them one by one.
//!
//! Without the feature `planted` the engine has none of them: `is` is the constant false.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $bug:ident = $name:literal,)+) => {
        /// A deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Bug {
            $($(#[doc = $doc])+ $bug,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)+];

            /// The name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)+
                }
            }
        }
    };
}

bugs! {
    /// The journal is not synced before a commit's record is appended.
    JournalSyncSkipped = "journal_sync_skipped",
    /// Files of rows are not synced before the record that needs them.
    RecordBeforeData = "record_before_data",
    /// The record of a commit is not synced before the commit is acknowledged.
    RecordSyncSkipped = "record_sync_skipped",
    /// The state of a commit is not synced.
    StateSyncSkipped = "state_sync_skipped",
    /// Recovery applies a record of deltas twice.
    DeltasReplayedTwice = "deltas_replayed_twice",
    /// The delta of a delete is not journalled.
    DeleteDeltaLost = "delete_delta_lost",
    /// The split of an index is not journalled.
    SplitNotLogged = "split_not_logged",
    /// The last piece of each index is left out of a new journal file.
    PieceLost = "piece_lost",
    /// Deltas of the class that is closed last do not reach the journal before the record.
    DeltasLeftBehind = "deltas_left_behind",
    /// Copies of the oldest kept commit are released when it still is kept.
    ReleasedEarly = "released_early",
    /// A copy that kept commits have counts as one of this epoch when it is outdated.
    OutdatedInWrongEpoch = "outdated_in_wrong_epoch",
    /// Copies that were written for a stretch are released when they are outdated, before the
    /// commit that no longer has them.
    StretchReleasedEarly = "stretch_released_early",
    /// A page that is filled for a stretch is read from the device, where it is not written yet.
    StretchReadEarly = "stretch_read_early",
    /// One commit fewer is kept than was asked for.
    KeepOffByOne = "keep_off_by_one",
    /// The checksum of a page is not compared.
    ChecksumNotCompared = "checksum_not_compared",
    /// Neither the number of a page nor the keys of its rows are compared with what was asked for.
    WrongPageAccepted = "wrong_page_accepted",
    /// The sequence of a page is not compared with those that its place may have.
    SequenceNotCompared = "sequence_not_compared",
    /// The head is not lowered when a store goes back.
    HeadNotLowered = "head_not_lowered",
    /// A row that is taken back from the flush buffer counts as clean.
    DirtyLostOnRescue = "dirty_lost_on_rescue",
    /// A row counts as clean once no announced batch uses it any more.
    WindowRowNotWritten = "window_row_not_written",
    /// A row that a verb changes beside a commit is in the commit as it is afterwards.
    ChangedBesideCommit = "changed_beside_commit",
    /// The flush buffer is written before what is left of the commit under way.
    BufferBeforeCommit = "buffer_before_commit",
    /// The cache is not told where cleaning has moved the stored copy of a row.
    OriginNotMoved = "origin_not_moved",
    /// A new journal file does not say into how many parts growing tables are divided.
    RecordRefused = "record_refused",
    /// The check of a bucket of a region is not compared.
    BucketNotChecked = "bucket_not_checked",
    /// Nobody asks for memory before rows are written.
    BudgetNotAsked = "budget_not_asked",
    /// The gradient of a key that occurs again is left out.
    DuplicateGradientLost = "duplicate_gradient_lost",
    /// A writer does not look whether folder and lock file are those that it has opened.
    FolderUnchecked = "folder_unchecked",
}

#[cfg(feature = "planted")]
mod chosen {
    use super::Bug;
    use std::sync::atomic::{AtomicU8, Ordering};

    const NONE: u8 = u8::MAX;
    static CHOSEN: AtomicU8 = AtomicU8::new(NONE);

    /// Plants a bug in all stores of the process, or none.
    pub fn plant(bug: Option<Bug>) {
        CHOSEN.store(bug.map_or(NONE, |bug| bug as u8), Ordering::Relaxed);
        embedrock_pmem::plant_unchecked_buckets(bug == Some(Bug::BucketNotChecked));
    }

    /// True when the bug is planted.
    pub(crate) fn is(bug: Bug) -> bool {
        CHOSEN.load(Ordering::Relaxed) == bug as u8
    }
}

#[cfg(feature = "planted")]
pub use chosen::plant;

#[cfg(feature = "planted")]
pub(crate) use chosen::is;

/// False: this build has no deliberate bugs.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
