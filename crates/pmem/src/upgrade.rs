//! Checks for a region of version 1, which had none.
//!
//! One pass over the index, in place, and again from the start after a crash: what a word says is
//! there already stays. The header says first that the version is the next one, and last that every
//! bucket has its check. No row is read.
//!
//! A bucket that contradicts itself (a fingerprint that is not the key's, a key that no look-up
//! finds there, a counter that is wrong) gets a check that does not match: from then on a look-up
//! of a key in it reports damage.

use crate::bucket::{CHECK, SLOTS, check_of};
use crate::error::Result;
use crate::hash::{PROBES_MAX, PetHash};
use crate::medium::Medium;
use crate::slot_word::{has_no_check, without_row};

/// Number of buckets ahead that the pass asks a disk for, and of those between two write-backs.
const BUCKETS_AT_ONCE: u64 = 2048;

impl<M: Medium> PetHash<M> {
    /// Gives every bucket its check, unless all have them.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn make_checks(&self) -> Result<()> {
        if self.region.has_checks() {
            return Ok(());
        }
        self.region.begin_checks()?;
        let passed = self.count_passed();
        let medium = &self.region.medium;
        for first in (0..self.buckets()).step_by(BUCKETS_AT_ONCE as usize) {
            let end = (first + BUCKETS_AT_ONCE).min(self.buckets());
            for bucket in first..end {
                self.make_check(bucket, passed[bucket as usize]);
            }
            medium.flush(self.word(first)..self.word(end));
        }
        self.region.end_checks()
    }

    /// Number of keys that pass each bucket, by their places.
    fn count_passed(&self) -> Vec<u16> {
        let mut passed = vec![0u16; self.buckets() as usize];
        for bucket in 0..self.buckets() {
            if bucket % BUCKETS_AT_ONCE == 0 {
                let ahead = (bucket + BUCKETS_AT_ONCE).min(self.buckets());
                self.region.medium.expect(self.word(bucket)..self.word(ahead));
            }
            for slot in self.prints(bucket).occupied() {
                if let Some(before) = self.buckets_before(bucket, slot) {
                    let mut count = |at: &u64| {
                        let count = &mut passed[*at as usize];
                        *count = count.saturating_add(1);
                    };
                    before.iter().for_each(&mut count);
                }
            }
        }
        passed
    }

    /// The buckets that the key of a slot has passed; `None` where it does not belong there.
    fn buckets_before(&self, bucket: u64, slot: usize) -> Option<Vec<u64>> {
        let key = self.region.medium.load(self.key_word(bucket, slot));
        let path = self.path(key);
        let (mut at, mut before) = (path.home, Vec::new());
        while at != bucket {
            before.push(at);
            if before.len() as u64 == PROBES_MAX {
                return None;
            }
            at = path.next(at, self.buckets());
        }
        (self.prints(bucket).get(slot) == path.print).then_some(before)
    }

    fn make_check(&self, bucket: u64, passed: u16) {
        let medium = &self.region.medium;
        let prints = self.prints(bucket);
        let has_rows = self.region.geometry.row_bytes > 0;
        let mut is_whole = [passed, u16::MAX].contains(&prints.overflow());
        for slot in (0..SLOTS).filter(|slot| prints.get(*slot) != 0) {
            is_whole &= self.buckets_before(bucket, slot).is_some();
            let word = self.key_word(bucket, slot);
            let (key, value) = (medium.load(word), medium.load(word + 1));
            if has_rows && has_no_check(value) {
                medium.store(word + 1, without_row(key, value, self.region.geometry.salt));
            }
        }
        let word = self.word(bucket) + CHECK;
        // The work of an interrupted pass stays.
        if medium.load(word) == 0 {
            let salt = self.region.geometry.salt;
            let check = check_of(&self.region.checked_words(bucket), bucket, salt);
            medium.store(word, if is_whole { check } else { !check });
        }
    }
}
