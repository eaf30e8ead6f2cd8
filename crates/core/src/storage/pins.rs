//! The parts of a row class's files that a pinned commit needs.

use crate::error::{Result, bail};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The parts of a class's files that have rows of a commit. They stay as long as it is pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parts {
    /// Segments of the file of pages, as rising ranges: the first and the last one of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<(u32, u32)>,
    /// Partition files, by number, and the bytes that each takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<(u32, u64)>,
}

impl Parts {
    /// The parts made of segments whose numbers rise.
    pub(crate) fn of_segments(ids: impl Iterator<Item = u32>) -> Self {
        let mut segments: Vec<(u32, u32)> = Vec::new();
        for id in ids {
            match segments.last_mut() {
                Some((_, last)) if *last + 1 == id => *last = id,
                _ => segments.push((id, id)),
            }
        }
        Self { segments, partitions: Vec::new() }
    }

    /// Its segments, range by range.
    pub(crate) fn segments(&self) -> impl Iterator<Item = RangeInclusive<u32>> + '_ {
        self.segments.iter().map(|(first, last)| *first..=*last)
    }

    /// Whether it has a segment.
    pub(crate) fn has_segment(&self, id: u32) -> bool {
        let behind = self.segments.partition_point(|(first, _)| *first <= id);
        behind > 0 && self.segments[behind - 1].1 >= id
    }

    /// Whether it has a partition file.
    pub(crate) fn has_partition(&self, number: u32) -> bool {
        self.partitions.binary_search_by_key(&number, |(number, _)| *number).is_ok()
    }

    /// Refuses what no store writes: numbers that do not rise.
    pub(crate) fn verify(&self) -> Result<()> {
        let ordered = self.segments.iter().all(|(first, last)| first <= last)
            && self.segments.windows(2).all(|pair| pair[0].1 < pair[1].0)
            && self.partitions.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !ordered {
            bail!(Corrupt, "the parts of a pinned commit are not in order");
        }
        Ok(())
    }
}

/// The facts about a class that a journal file needs which begins with the commit at hand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Begun {
    /// As the record of a [`Cut`](super::Cut).
    pub record: String,
    /// Partitions of growing tables, by table.
    pub partitions: Vec<(u16, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_ranges_and_each_is_found_in_its_own() {
        let ids = [0, 1, 2, 5, 9, 10];
        let parts = Parts::of_segments(ids.into_iter());
        assert_eq!(parts.segments, [(0, 2), (5, 5), (9, 10)]);
        parts.verify().unwrap();
        for id in 0..12 {
            assert_eq!(parts.has_segment(id), ids.contains(&id), "{id}");
        }
        assert!(parts.segments().flatten().eq(ids));
        let mut odd = parts.clone();
        odd.segments[1] = (2, 5);
        assert!(odd.verify().is_err());
        let partitions = vec![(4, 9), (3, 9)];
        assert!(Parts { partitions, ..Parts::default() }.verify().is_err());
    }
}
