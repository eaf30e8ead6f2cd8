//! The effect of the journal's changes on rows; and sets of slots to read rows from.

/// The effect of one change on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowChange {
    /// A copy was written to this slot, by a verb or by upkeep.
    Written {
        /// The table.
        table: u16,
        /// The key.
        key: u64,
        /// The slot of the copy.
        slot: u32,
    },
    /// The log has no copy any more: the key was deleted, or merged into what lies below.
    Removed {
        /// The table.
        table: u16,
        /// The key.
        key: u64,
    },
    /// The key was deleted, and may have had its row below the log.
    Deleted {
        /// The table.
        table: u16,
        /// The key.
        key: u64,
    },
}

/// Slots of a log, a bit for each; or all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotSet {
    words: Vec<u64>,
    is_complement: bool,
}

impl SlotSet {
    /// Those whose bits are set, 64 in a word.
    pub(crate) fn of_bits(words: Vec<u64>) -> Self {
        Self { words, is_complement: false }
    }

    /// Adds a slot to a set that is not a complement.
    pub(crate) fn insert(&mut self, slot: u32) {
        let at = slot as usize / 64;
        if at >= self.words.len() {
            self.words.resize((at + 1).next_multiple_of(1024), 0);
        }
        self.words[at] |= 1 << (slot % 64);
    }

    /// All slots that are not in it.
    pub(crate) fn complement(self) -> Self {
        Self { is_complement: !self.is_complement, ..self }
    }

    /// Clears the bits of slots that are not in it.
    pub(crate) fn retain_in(&self, bits: &mut [u64]) {
        for (at, word) in bits.iter_mut().enumerate() {
            let of_set = self.words.get(at).copied().unwrap_or(0);
            *word &= if self.is_complement { !of_set } else { of_set };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_and_its_complement_part_the_slots() {
        let mut set = SlotSet::default();
        [3, 64, 100_000].into_iter().for_each(|slot| set.insert(slot));
        let all = vec![u64::MAX; 2000];
        let (mut within, mut others) = (all.clone(), all.clone());
        set.retain_in(&mut within);
        set.complement().retain_in(&mut others);
        assert_eq!(within.iter().map(|word| word.count_ones()).sum::<u32>(), 3);
        assert_eq!((within[0], within[1]), (8, 1));
        assert!(within.iter().zip(&others).all(|(a, b)| a ^ b == u64::MAX));
    }
}
