//! Compares an index with itself: every key where look-ups find it, once, and counted.

use crate::error::{Error, Result};
use crate::hash::{PROBES_MAX, PetHash};
use crate::medium::Medium;

/// The findings of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Keys.
    pub keys: u64,
    /// Keys behind their home bucket.
    pub displaced: u64,
}

impl<M: Medium> PetHash<M> {
    /// Reads the whole index and says what is wrong. Takes 2 bytes of memory per bucket. Nobody may
    /// change the index meanwhile.
    ///
    /// # Errors
    /// `Corrupt`, naming the key or the bucket.
    pub fn check(&self) -> Result<Checked> {
        let mut passed = vec![0u16; self.buckets() as usize];
        let mut checked = Checked::default();
        for bucket in 0..self.buckets() {
            self.region.verify(bucket)?;
            let prints = self.prints(bucket);
            for slot in prints.occupied() {
                let path = self.path(self.key_at(bucket, slot)?);
                let mut at = path.home;
                let mut steps = 0;
                while at != bucket && steps < PROBES_MAX {
                    passed[at as usize] = passed[at as usize].saturating_add(1);
                    at = path.next(at, self.buckets());
                    steps += 1;
                }
                checked.keys += 1;
                checked.displaced += u64::from(steps > 0);
            }
        }
        for (bucket, expected) in passed.into_iter().enumerate() {
            let found = self.prints(bucket as u64).overflow();
            if found != expected && found != u16::MAX {
                return Err(Error::corrupt(format!(
                    "{}: bucket {bucket} counts {found} displaced keys, there are {expected}",
                    self.region.medium.name()
                )));
            }
        }
        Ok(checked)
    }

    /// The key in a slot that has one, if look-ups find it there. Nobody may change the index
    /// meanwhile.
    pub(crate) fn key_at(&self, bucket: u64, slot: usize) -> Result<u64> {
        let key = self.region.medium.load(self.key_word(bucket, slot));
        let path = self.path(key);
        let print = self.prints(bucket).get(slot);
        let what = match self.locate(path, key)? {
            _ if print != path.print => {
                format!("has fingerprint {print}, expected {}", path.print)
            }
            Some(found) if found.bucket == bucket && found.slot == slot => return Ok(key),
            Some(found) => format!("is in slot {} of bucket {}, too", found.slot, found.bucket),
            None => "is not found by look-ups".to_owned(),
        };
        Err(Error::corrupt(format!(
            "{}: key {key} in slot {slot} of bucket {bucket} {what}",
            self.region.medium.name()
        )))
    }
}
