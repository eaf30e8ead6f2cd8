//! Which partitions make up the bottom, and how that changes.
//!
//! A version is a list of partitions that cover all places, each once, or none at all. An edit
//! replaces some by others; the journal has one record for it. Where things go wrong here the
//! journal says what cannot be, which is `Corrupt`.

use super::file::Facts;
use super::order::{PLACE_BYTES, Place, PlaceRange};
use super::partition::Partitions;
use crate::error::{Result, bail};
use std::collections::BTreeSet;

const EDIT_VERSION: u8 = 1;
/// Bytes of an edit before its lists.
const HEAD_BYTES: usize = 16;
const FACTS_BYTES: usize = 72;
const WAY_OUT: &str = "restore the journal from a copy, or open an earlier commit with step=";

/// What a merge changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Numbers of partitions that are no more.
    pub removed: Vec<u32>,
    /// Partitions in their place, in order.
    pub added: Vec<Facts>,
}

impl Edit {
    /// Appends the edit as the content of a journal record.
    pub fn encode(&self, into: &mut Vec<u8>) {
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
    pub fn decode(bytes: &[u8]) -> Result<Self> {
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
pub struct Version {
    partitions: Vec<Facts>,
}

impl Version {
    /// All partitions.
    pub fn partitions(&self) -> &[Facts] {
        &self.partitions
    }

    /// Which partition has the rows at `place`; `None` while there are no partitions.
    pub fn find(&self, place: Place) -> Option<usize> {
        let at = self.partitions.partition_point(|facts| facts.range.last < place);
        (at < self.partitions.len()).then_some(at)
    }

    /// The version as one edit of an empty one: what a new journal file begins with.
    pub fn as_edit(&self) -> Edit {
        Edit { removed: Vec::new(), added: self.partitions.clone() }
    }

    /// The version after `edit`. `Corrupt` when that removes what is not there, adds a number that
    /// is, leaves a gap, or lets ranges overlap.
    pub fn apply(&self, edit: &Edit) -> Result<Self> {
        let removed: BTreeSet<u32> = edit.removed.iter().copied().collect();
        let stay = self.partitions.iter().filter(|facts| !removed.contains(&facts.number));
        let mut partitions: Vec<Facts> = stay.copied().collect();
        if self.partitions.len() - partitions.len() != edit.removed.len() {
            bail!(Corrupt, "an edit removes partitions {removed:?}, not all are there; {WAY_OUT}");
        }
        partitions.extend(&edit.added);
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
        if partitions.len() > Partitions::COUNT_MAX {
            let most = Partitions::COUNT_MAX;
            bail!(Corrupt, "an edit makes {} partitions of at most {most}", partitions.len());
        }
        Ok(Self { partitions })
    }
}
