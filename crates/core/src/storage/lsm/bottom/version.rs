//! The list of partitions that make up the bottom, and its changes.
//!
//! A version is a list of partitions that cover all places, each once, or none at all. An edit
//! replaces some by others; the journal has one record for it. In the replay of a journal, an
//! impossible edit is `Corrupt`.

use super::file::Facts;
use super::order::{PLACE_BYTES, Place, PlaceRange};
use super::pages::OpenPartitions;
use crate::error::{Result, bail};
use crate::io::BLOCK_BYTES;
use std::collections::BTreeSet;

const EDIT_VERSION: u8 = 1;
/// The first order of a page.
const ORDER_FIRST: u32 = 1 << 31;
/// Bytes of an edit before its lists.
const HEAD_BYTES: usize = 16;
const FACTS_BYTES: usize = 72;
const WAY_OUT: &str = "restore the journal from a copy, or open an earlier commit with step=";

/// The changes that a merge makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    /// Numbers of partitions that are no more.
    pub removed: Vec<u32>,
    /// Partitions in their place, in order.
    pub added: Vec<Facts>,
}

impl Edit {
    /// Appends the edit as the content of a journal record.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&[EDIT_VERSION, 0, 0, 0, 0, 0, 0, 0]);
        into.extend_from_slice(&(self.removed.len() as u32).to_le_bytes());
        into.extend_from_slice(&(self.added.len() as u32).to_le_bytes());
        for number in &self.removed {
            into.extend_from_slice(&number.to_le_bytes());
        }
        for facts in &self.added {
            into.extend_from_slice(&facts.number.to_le_bytes());
            into.extend_from_slice(&facts.pages.to_le_bytes());
            for word in [facts.merge, facts.rows, facts.bytes, facts.header_sum] {
                into.extend_from_slice(&word.to_le_bytes());
            }
            into.extend_from_slice(&facts.range.first.encode());
            into.extend_from_slice(&facts.range.last.encode());
        }
    }

    /// The edit that `encode` wrote; `Corrupt` for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        match Self::of_bytes(bytes) {
            Some(edit) => Ok(edit),
            None if bytes.first().is_some_and(|version| *version > EDIT_VERSION) => bail!(
                Unsupported,
                "an edit of version {}, this build reads {EDIT_VERSION}; use a newer embedrock",
                bytes[0]
            ),
            None => bail!(Corrupt, "{} bytes are no edit of partitions; {WAY_OUT}", bytes.len()),
        }
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, lists) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        if head[..8] != [EDIT_VERSION, 0, 0, 0, 0, 0, 0, 0] {
            return None;
        }
        let removed_bytes = (four(head, 8)? as usize).checked_mul(4)?;
        let added_bytes = (four(head, 12)? as usize).checked_mul(FACTS_BYTES)?;
        if removed_bytes.checked_add(added_bytes)? != lists.len() {
            return None;
        }
        let (removed, added) = lists.split_at(removed_bytes);
        let removed = removed.chunks_exact(4).map(|number| four(number, 0));
        let facts = |bytes: &[u8]| {
            let place = |at: usize| bytes[at..].first_chunk().and_then(Place::decode);
            Some(Facts {
                number: four(bytes, 0)?,
                pages: four(bytes, 4)?,
                merge: eight(bytes, 8)?,
                rows: eight(bytes, 16)?,
                bytes: eight(bytes, 24)?,
                header_sum: eight(bytes, 32)?,
                range: PlaceRange { first: place(40)?, last: place(40 + PLACE_BYTES)? },
            })
        };
        Some(Self {
            removed: removed.collect::<Option<_>>()?,
            added: added.chunks_exact(FACTS_BYTES).map(facts).collect::<Option<_>>()?,
        })
    }
}

fn four(bytes: &[u8], at: usize) -> Option<u32> {
    bytes[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn eight(bytes: &[u8], at: usize) -> Option<u64> {
    bytes[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The partitions of the bottom, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    partitions: Vec<Facts>,
    /// The begin of each partition, beside each other for the search.
    firsts: Vec<Place>,
    /// Pages of all partitions before each.
    pages_before: Vec<u64>,
    rows: u64,
    /// Rows of the partition that has most.
    rows_largest: u64,
    disk_bytes: u64,
}

impl Version {
    /// All partitions.
    pub(crate) fn partitions(&self) -> &[Facts] {
        &self.partitions
    }

    /// Index of the partition that has the rows at `place`; `None` while there are no partitions.
    pub(crate) fn find(&self, place: Place) -> Option<usize> {
        self.firsts.partition_point(|first| *first <= place).checked_sub(1)
    }

    /// Rank of the page `page` of the partition at `at` among all pages, as an order of reads: 2^31
    /// and more, so that other numbers come before it.
    pub(crate) fn order_of(&self, at: usize, page: u32) -> u32 {
        let before = self.pages_before[at] + u64::from(page);
        ORDER_FIRST | before.min(u64::from(!ORDER_FIRST)) as u32
    }

    /// Rows of all partitions.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Rows of the partition that has most.
    pub(crate) fn rows_largest(&self) -> u64 {
        self.rows_largest
    }

    /// Bytes that their files take of the disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// All memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.partitions.capacity() * size_of::<Facts>()
            + self.firsts.capacity() * size_of::<Place>()
            + self.pages_before.capacity() * size_of::<u64>()
    }

    /// The version as one edit of an empty one: what a new journal file begins with.
    pub(crate) fn as_edit(&self) -> Edit {
        Edit { removed: Vec::new(), added: self.partitions.clone() }
    }

    /// Number of partitions after so many were removed and added.
    fn count_after(&self, removed: usize, added: usize) -> usize {
        self.partitions.len().saturating_sub(removed).saturating_add(added)
    }

    /// `Full` when an edit that removes and adds so many partitions would leave too many: to be
    /// asked before any of them is written.
    pub(crate) fn check_room(&self, removed: usize, added: usize) -> Result<()> {
        let (count, most) = (self.count_after(removed, added), OpenPartitions::COUNT_MAX);
        if count > most {
            bail!(Full, "a merge would leave {count} partitions of at most {most} in a class");
        }
        Ok(())
    }

    /// The version after an edit that a merge has made. `Full` when it leaves too many partitions,
    /// else as [`replay`](Self::replay).
    pub(crate) fn apply(&self, edit: &Edit) -> Result<Self> {
        self.check_room(edit.removed.len(), edit.added.len())?;
        self.replay(edit)
    }

    /// The version after an edit of the journal. `Corrupt` when that removes what is not there, or
    /// all there is, adds a number that is there, leaves a gap, lets ranges overlap, or leaves more
    /// partitions than there can be.
    pub(crate) fn replay(&self, edit: &Edit) -> Result<Self> {
        let (removed, added) = (edit.removed.len(), edit.added.len());
        let (count, most) = (self.count_after(removed, added), OpenPartitions::COUNT_MAX);
        if count > most {
            bail!(Corrupt, "an edit leaves {count} partitions of at most {most}; {WAY_OUT}");
        }
        let removed: BTreeSet<u32> = edit.removed.iter().copied().collect();
        let stay = self.partitions.iter().filter(|facts| !removed.contains(&facts.number));
        let mut partitions: Vec<Facts> = stay.copied().collect();
        if self.partitions.len() - partitions.len() != edit.removed.len() {
            bail!(Corrupt, "an edit removes partitions {removed:?}, not all are there; {WAY_OUT}");
        }
        partitions.extend(&edit.added);
        if partitions.is_empty() && !self.partitions.is_empty() {
            let count = self.partitions.len();
            bail!(Corrupt, "an edit leaves no partitions, there were {count}; {WAY_OUT}");
        }
        partitions.sort_unstable_by_key(|facts| facts.range.first);
        let mut numbers = BTreeSet::new();
        let mut next = Some(Place::MIN);
        for facts in &partitions {
            let Facts { number, range, .. } = *facts;
            if !numbers.insert(number) || removed.contains(&number) {
                bail!(Corrupt, "an edit adds partition {number}, which is there; {WAY_OUT}");
            }
            if next != Some(range.first) || range.last < range.first {
                let what = if next.is_some_and(|next| next < range.first) {
                    "leaves a gap before"
                } else {
                    "overlaps with"
                };
                bail!(
                    Corrupt,
                    "an edit {what} partition {number} of {:?} to {:?}, expected one from \
                     {next:?} on; {WAY_OUT}",
                    range.first,
                    range.last
                );
            }
            next = range.last.next();
        }
        if let (Some(next), false) = (next, partitions.is_empty()) {
            bail!(Corrupt, "an edit leaves a gap from {next:?} on; {WAY_OUT}");
        }
        Self::of(partitions)
    }

    fn of(partitions: Vec<Facts>) -> Result<Self> {
        let firsts = partitions.iter().map(|facts| facts.range.first).collect();
        let mut version = Self { firsts, ..Default::default() };
        let mut pages = 0;
        for facts in &partitions {
            let rows = version.rows.checked_add(facts.rows);
            let bytes = facts.bytes.checked_next_multiple_of(BLOCK_BYTES);
            let bytes = bytes.and_then(|bytes| version.disk_bytes.checked_add(bytes));
            let (Some(rows), Some(disk_bytes)) = (rows, bytes) else {
                bail!(Corrupt, "rows or bytes of all partitions exceed 2^64; {WAY_OUT}");
            };
            (version.rows, version.disk_bytes) = (rows, disk_bytes);
            version.rows_largest = version.rows_largest.max(facts.rows);
            version.pages_before.push(pages);
            pages += u64::from(facts.pages);
        }
        Ok(Self { partitions, ..version })
    }
}
