//! Keys that have left the log, in bounded memory: as many passes over the journal as it takes.
//!
//! A pass that meets more of them than there is room for goes on with those alone of a share of the
//! hashes, and others follow for the rest.

use crate::error::Result;
use crate::hash::mix;
use crate::storage::RowChange;

/// Sets the shares apart from other uses of the hash.
const SALT: u64 = 0x00C4_A86E;

/// State of a key, as far as changes were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Removed {
    pub(super) table: u16,
    pub(super) key: u64,
    /// A copy was written.
    pub(super) was_written: bool,
    /// None is in the log; `None` before anything was read of the key.
    is_gone: Option<bool>,
}

/// Hands over all changes of the tables that are asked for, in their order.
pub(super) type ReadAll<'a> = dyn FnMut(&mut dyn FnMut(RowChange)) -> Result<()> + 'a;

/// The keys that have left the log, share by share.
#[derive(Debug)]
pub(super) struct Shares {
    most: usize,
    /// The share of the next pass, of `2^bits`.
    next: u64,
    bits: u32,
}

impl Shares {
    /// Of at most so many keys at a time.
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(2), next: 0, bits: 0 }
    }

    /// The keys of the next share that are not in the log in the end, in order; `None` behind the
    /// last share.
    pub(super) fn next(&mut self, read: &mut ReadAll<'_>) -> Result<Option<Vec<Removed>>> {
        if self.next >> self.bits > 0 {
            return Ok(None);
        }
        let mut found: Vec<Removed> = Vec::new();
        read(&mut |change| {
            let (RowChange::Removed { table, key } | RowChange::Deleted { table, key }) = change
            else {
                return;
            };
            if self.has(table, key) {
                found.push(Removed { table, key, was_written: false, is_gone: None });
                if found.len() > self.most {
                    self.make_room(&mut found);
                }
            }
        })?;
        sort(&mut found);
        read(&mut |change| {
            let (RowChange::Written { table, key, .. }
            | RowChange::Removed { table, key }
            | RowChange::Deleted { table, key }) = change;
            if let Ok(at) = found.binary_search_by_key(&(table, key), |of| (of.table, of.key)) {
                found[at].change(change);
            }
        })?;
        found.retain(|of| of.is_gone == Some(true));
        self.next += 1;
        Ok(Some(found))
    }

    fn has(&self, table: u16, key: u64) -> bool {
        mix(key ^ u64::from(table).rotate_right(16), SALT) & ((1 << self.bits) - 1) == self.next
    }

    /// Takes a smaller share where the keys are too many. Those of the others come later.
    fn make_room(&mut self, found: &mut Vec<Removed>) {
        sort(found);
        while self.next == 0 && found.len() > self.most / 2 && self.bits < u64::BITS - 1 {
            self.bits += 1;
            found.retain(|of| self.has(of.table, of.key));
        }
        // A later share that is larger than the first one has room.
        self.most = self.most.max(2 * found.len());
    }
}

fn sort(found: &mut Vec<Removed>) {
    found.sort_unstable();
    found.dedup();
}

impl Removed {
    fn change(&mut self, change: RowChange) {
        match change {
            RowChange::Written { .. } => {
                (self.was_written, self.is_gone) = (true, Some(false));
            }
            RowChange::Removed { .. } => self.is_gone = Some(true),
            // Within a portion it may come behind a copy that was written later. If the log had a
            // copy of the key, its removal is recorded too, and decides.
            RowChange::Deleted { .. } => _ = self.is_gone.get_or_insert(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(1);
        mix(*state, 77)
    }

    #[test]
    fn whatever_there_is_room_for_the_keys_are_those_that_were_removed_last() {
        let mut state = 5;
        let changes: Vec<RowChange> = (0..20_000)
            .map(|_| {
                let (table, key) = ((random(&mut state) % 2) as u16, random(&mut state) % 3000);
                match random(&mut state) % 3 {
                    0 => RowChange::Removed { table, key },
                    _ => RowChange::Written { table, key, slot: 1 },
                }
            })
            .collect();
        let mut last: BTreeMap<(u16, u64), (bool, bool)> = BTreeMap::new();
        for change in &changes {
            match *change {
                RowChange::Written { table, key, .. } => {
                    last.insert((table, key), (true, false));
                }
                RowChange::Removed { table, key } | RowChange::Deleted { table, key } => {
                    last.entry((table, key)).or_default().1 = true;
                }
            }
        }
        last.retain(|_, (_, gone)| *gone);
        for most in [30, 200, 700, 1 << 20] {
            let (mut shares, mut passes) = (Shares::new(most), 0);
            let mut read = |each: &mut dyn FnMut(RowChange)| {
                changes.iter().copied().for_each(each);
                Ok(())
            };
            let mut found: BTreeSet<Removed> = BTreeSet::new();
            while let Some(share) = shares.next(&mut read).unwrap() {
                passes += 1;
                for of in share {
                    assert!(found.insert(of), "{of:?} twice");
                }
            }
            assert!(passes > 2 || most > 700, "{passes} passes with room for {most}");
            let found: BTreeMap<(u16, u64), (bool, bool)> =
                found.into_iter().map(|of| ((of.table, of.key), (of.was_written, true))).collect();
            assert_eq!(found, last, "with room for {most}");
        }
    }

    #[test]
    fn a_tombstone_that_comes_behind_the_copy_written_later_is_none() {
        let (table, key) = (0, 9);
        let all = |changes: &[RowChange]| {
            let mut read = |each: &mut dyn FnMut(RowChange)| {
                changes.iter().copied().for_each(each);
                Ok(())
            };
            Shares::new(100).next(&mut read).unwrap().unwrap().len()
        };
        let (written, removed, deleted) = (
            RowChange::Written { table, key, slot: 4 },
            RowChange::Removed { table, key },
            RowChange::Deleted { table, key },
        );
        assert_eq!(all(&[written, deleted]), 0);
        assert_eq!(all(&[deleted]), 1);
        assert_eq!(all(&[deleted, written]), 0);
        assert_eq!(all(&[written, removed, deleted]), 1);
        assert_eq!(all(&[written, removed]), 1);
        assert_eq!(all(&[written]), 0);
    }
}
