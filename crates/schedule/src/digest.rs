//! The digest of a batch's keys, by which a schedule knows its own batches. It is part of the
//! format of files: `docs/formats/schedule.md`.

/// Takes keys, and tells equal batches from others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digest(u64);

impl Digest {
    /// Takes the keys of one table, their number first.
    pub(crate) fn add(&mut self, table: u32, keys: &[u64]) {
        self.take(u64::from(table));
        self.take(keys.len() as u64);
        keys.iter().for_each(|key| self.take(*key));
    }

    #[inline(always)]
    fn take(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(29) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    pub(crate) fn value(self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}
