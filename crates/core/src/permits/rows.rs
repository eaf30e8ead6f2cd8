//! The conflict map: how many permits in flight touch a row.
//!
//! Owns an open-addressing table of 16-byte entries, one for each row in flight and none for any
//! other. A row is named by a mixed hash of table and key (`row_of`), so that the name is its own
//! hash; two rows of one name count as one, which can make a batch wait longer and never shorter.
//! The table is at most half full; it shrinks when nothing is in flight and little was.

use crate::config::TableId;
use crate::hash::mix;
use crate::prefetch::prefetch_read;

/// Number of rows ahead whose entries are prefetched: the latency of memory over the time of one
/// row.
pub(super) const AHEAD: usize = 16;
/// Entries for each row from which on the table is made anew instead of being wiped.
const SPARSE: usize = 64;
/// Bits of pi, so that tables with small numbers and small keys do not meet.
const SALT: u64 = 0x2436_F6A8_885A_308D;

/// The salt of a table for [`row_of`].
pub(super) fn salt_of(table: TableId) -> u64 {
    mix(u64::from(table.0) + 1, SALT)
}

/// The name of a row in flight.
#[inline(always)]
pub(super) fn row_of(key: u64, salt: u64) -> u64 {
    mix(key, salt)
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    row: u64,
    /// Permits that touch it; 0: the entry is empty.
    permits: u32,
    /// Low bits of the last permit that was counted, so that a batch counts a row once. Meaningful
    /// as long as the entry is: 2^32 later permits do not come while one is in flight.
    last: u32,
}

/// Permits in flight by row.
#[derive(Clone, Debug)]
pub(super) struct RowCounts {
    entries: Vec<Entry>,
    used: usize,
}

impl Default for RowCounts {
    fn default() -> Self {
        Self { entries: vec![Entry::default(); 64], used: 0 }
    }
}

impl RowCounts {
    /// Rows in flight.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Bytes that are allocated.
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Makes room for `more` rows, so that [`Self::add`] never moves an entry.
    pub(super) fn reserve(&mut self, more: usize) {
        let wanted = (2 * (self.used + more)).next_power_of_two();
        if wanted <= self.entries.len() {
            return;
        }
        let old = std::mem::replace(&mut self.entries, vec![Entry::default(); wanted]);
        for entry in old.into_iter().filter(|entry| entry.permits > 0) {
            let at = self.find(entry.row);
            self.entries[at] = entry;
        }
    }

    /// Forgets all rows, of which each may have a permit at most.
    pub(super) fn clear(&mut self) {
        if self.entries.len() > SPARSE * self.used.max(32) {
            *self = Self::default(); // a large batch has passed by: its memory goes, too
            return;
        }
        self.entries.fill(Entry::default());
        self.used = 0;
    }

    /// Asks for the entry of a row that comes soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: u64) {
        prefetch_read(&self.entries[self.home(row)]);
    }

    /// Counts `permit` for a row: how many others touch it, or None when it was counted already.
    #[inline(always)]
    pub(super) fn add(&mut self, row: u64, permit: u64) -> Option<u32> {
        let at = self.find(row);
        let entry = &mut self.entries[at];
        let others = entry.permits;
        if others == 0 {
            self.used += 1;
        } else if entry.last == permit as u32 {
            return None;
        }
        *entry = Entry { row, permits: others + 1, last: permit as u32 };
        Some(others)
    }

    /// Takes one permit from a row that [`Self::add`] counted.
    #[inline(always)]
    pub(super) fn subtract(&mut self, row: u64) {
        let at = self.find(row);
        let entry = &mut self.entries[at];
        assert!(entry.permits > 0, "a row was released that no permit holds");
        entry.permits -= 1;
        if entry.permits == 0 {
            self.used -= 1;
            self.close_gap(at);
        }
    }

    /// The entry of a row, or the empty one where it would be.
    #[inline(always)]
    fn find(&self, row: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = self.home(row);
        while self.entries[at].permits > 0 && self.entries[at].row != row {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline(always)]
    fn home(&self, row: u64) -> usize {
        (row >> (64 - self.entries.len().trailing_zeros())) as usize
    }

    /// Moves entries that were pushed on by the one that left back towards their homes.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.entries.len() - 1;
        let mut at = (gap + 1) & mask;
        while self.entries[at].permits > 0 {
            let from_home = at.wrapping_sub(self.home(self.entries[at].row)) & mask;
            if from_home >= at.wrapping_sub(gap) & mask {
                self.entries[gap] = self.entries[at];
                gap = at;
            }
            at = (at + 1) & mask;
        }
        self.entries[gap] = Entry::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn counts_match_a_hash_map_through_growth_and_gaps() {
        for seed in 0..20u64 {
            let (mut counts, mut model) = (RowCounts::default(), HashMap::<u64, Vec<u64>>::new());
            let range = [3, 60, 5000][seed as usize % 3];
            for permit in 0..3000u64 {
                // Names in a narrow range collide and run over the end of the table.
                let row = mix(permit, seed) % range * (u64::MAX / 65_536);
                let entry = model.entry(row).or_default();
                counts.reserve(1);
                match mix(permit, seed + 100) % 3 {
                    0 if !entry.is_empty() => {
                        entry.pop();
                        counts.subtract(row);
                    }
                    _ => {
                        assert_eq!(counts.add(row, permit), Some(entry.len() as u32));
                        assert_eq!(counts.add(row, permit), None, "counted once");
                        entry.push(permit);
                    }
                }
                model.retain(|_, permits| !permits.is_empty());
                assert_eq!(counts.len(), model.len(), "seed {seed} permit {permit}");
            }
            for (row, permits) in model {
                for left in (0..permits.len()).rev() {
                    counts.subtract(row);
                    let others = counts.add(row, 1_000_000 + left as u64);
                    assert_eq!(others, Some(left as u32), "seed {seed}");
                    counts.subtract(row);
                }
            }
            assert_eq!(counts.len(), 0);
            assert!(counts.entries.iter().all(|entry| entry.permits == 0));
        }
    }

    #[test]
    #[should_panic(expected = "a row was released that no permit holds")]
    fn a_row_that_nobody_holds_cannot_be_released() {
        RowCounts::default().subtract(7);
    }

    #[test]
    fn equal_keys_of_two_tables_are_two_rows() {
        let salts = [salt_of(TableId(0)), salt_of(TableId(1))];
        for key in [0, 1, u64::MAX, 1 << 48] {
            assert_ne!(row_of(key, salts[0]), row_of(key, salts[1]));
        }
    }
}
