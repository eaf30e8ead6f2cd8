//! Pinned commits: the files of their partitions stay.

use super::snapshot::{Bottom, Retired};
use crate::storage::Parts;

impl Bottom {
    /// The files of the newest snapshot, by number, and their bytes.
    pub(crate) fn parts(&self) -> Vec<(u32, u64)> {
        let partitions = self.snapshot().version().partitions().iter();
        let mut parts: Vec<(u32, u64)> =
            partitions.map(|facts| (facts.number, facts.disk_bytes())).collect();
        parts.sort_unstable();
        parts
    }

    /// Keeps the files of a commit that is kept now, or was pinned when this was opened.
    pub(crate) fn pin(&mut self, pin: u64, partitions: &[(u32, u64)]) {
        let newest: Vec<u32> = self.parts().into_iter().map(|(number, _)| number).collect();
        for (number, bytes) in partitions {
            let is_known = newest.binary_search(number).is_ok()
                || self.retired.iter().any(|file| file.number == *number);
            if !is_known {
                // It was retired before the oldest commit that is kept.
                self.retired.push(Retired { number: *number, bytes: *bytes, epoch: 0 });
                self.largest_number = self.largest_number.max(*number);
            }
        }
        self.pins.insert(pin, partitions.iter().map(|(number, _)| *number).collect());
    }

    /// Releases what only this pinned commit has.
    pub(crate) fn unpin(&mut self, pin: u64) {
        self.pins.remove(&pin);
        self.release();
    }

    /// Files that only commits have that are gone can be removed.
    pub(super) fn release(&mut self) {
        let (released, pins) = (self.released, &self.pins);
        let is_pinned = |number: u32| pins.values().any(|files| files.contains(&number));
        let gone = |file: &mut Retired| file.epoch <= released && !is_pinned(file.number);
        self.removable.extend(self.retired.extract_if(.., gone));
    }

    /// Bytes of files that only a pinned commit keeps, not the `others` and no commit that is kept
    /// otherwise.
    pub(crate) fn bytes_of_pin(&self, parts: &Parts, others: &[&Parts]) -> u64 {
        let newest = self.parts();
        let only = |number: u32| {
            let is_newest = newest.binary_search_by_key(&number, |(number, _)| *number).is_ok();
            let retired = self.retired.iter().find(|file| file.number == number);
            !is_newest
                && retired.is_none_or(|file| file.epoch <= self.released)
                && !others.iter().any(|other| other.has_partition(number))
        };
        let files = parts.partitions.iter().filter(|(number, _)| only(*number));
        files.map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of files that the newest snapshot has not and no pinned commit needs.
    pub(crate) fn outdated_bytes(&self) -> u64 {
        let outdated = self.retired.iter().filter(|file| !self.is_pinned(file.number));
        outdated.map(|file| file.bytes).sum()
    }

    /// Whether a pinned commit has a file.
    pub(super) fn is_pinned(&self, number: u32) -> bool {
        self.pins.values().any(|files| files.contains(&number))
    }
}
