//! Counters of rare branches, for test runs that must reach all of them.
//!
//! Without the feature `testing` nothing is counted and `note` is empty.

macro_rules! branches {
    ($($(#[doc = $doc:literal])+ $branch:ident = $name:literal,)+) => {
        /// A rare branch of the engine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Branch {
            $($(#[doc = $doc])+ $branch,)+
        }

        impl Branch {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$branch,)+];

            /// The name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$branch => $name,)+
                }
            }
        }
    };
}

branches! {
    /// A row was taken back from the flush buffer.
    Rescued = "rescued",
    /// A row was found in a page that has not reached the device.
    PageInMemory = "page_in_memory",
    /// Every candidate page held another key.
    TagCollision = "tag_collision",
    /// A partition of an index was split.
    Split = "split",
    /// Partitions of an index were merged.
    Merged = "merged",
    /// A growing index took a way from a cache.
    IndexTookWay = "index_took_way",
    /// A unit of cleaning moved rows.
    Cleaned = "cleaned",
    /// Cleaning found space tight.
    CleanedTight = "cleaned_tight",
    /// Cleaning moved rows that are dirty in memory.
    CleanedDirty = "cleaned_dirty",
    /// A commit paid for rows that were refused.
    CleanedForRefused = "cleaned_for_refused",
    /// A verb wrote rows of a commit before it changed them.
    PortionByVerb = "portion_by_verb",
    /// A verb wrote all that was left of a commit's rows.
    FinishedByVerb = "finished_by_verb",
    /// A row of a commit left the cache before the commit had written it.
    CapturedVictim = "captured_victim",
    /// A verb waited for the record of a commit.
    WaitedForRecord = "waited_for_record",
    /// A new journal file was begun.
    JournalBegun = "journal_begun",
    /// A journal file was removed that no kept commit needs.
    JournalDropped = "journal_dropped",
    /// An incomplete record that a crash had left in a journal was cut off.
    TailCut = "tail_cut",
    /// A row was written to the page of the stretch that uses it next.
    WrittenForStretch = "written_for_stretch",
    /// A row that was read ahead found its set full of rows that are used sooner.
    TurnedAway = "turned_away",
    /// A row that had not changed was written as it left, for the stretch that uses it next.
    VictimMoved = "victim_moved",
}

#[cfg(any(test, feature = "testing"))]
mod counts {
    use super::Branch;
    use std::sync::atomic::{AtomicU64, Ordering};

    static COUNTS: [AtomicU64; Branch::ALL.len()] =
        [const { AtomicU64::new(0) }; Branch::ALL.len()];

    /// Counts that a branch was taken, by any store of the process.
    #[inline]
    pub(crate) fn note(branch: Branch) {
        COUNTS[branch as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of times a branch was taken since the process began.
    pub fn count(branch: Branch) -> u64 {
        COUNTS[branch as usize].load(Ordering::Relaxed)
    }
}

#[cfg(any(test, feature = "testing"))]
pub use counts::count;

#[cfg(any(test, feature = "testing"))]
pub(crate) use counts::note;

/// Counts nothing.
#[cfg(not(any(test, feature = "testing")))]
#[inline(always)]
pub(crate) const fn note(_: Branch) {}
