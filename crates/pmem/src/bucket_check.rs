//! Checks of buckets: whether their words are those that were written, compared beside writers.
//!
//! A change of a bucket stores several words and then the check. A reader that loads them meanwhile
//! may find words and a check that do not belong together, and looks again until no thread stores
//! any.

use crate::bucket::{CHECK, CHECKED_WORDS, check_of, checked_word};
use crate::error::{Error, Result};
use crate::medium::Medium;
use crate::planted::buckets_are_unchecked;
use crate::region::Region;

impl<M: Medium> Region<M> {
    /// The words of a bucket that its check covers.
    #[inline(always)]
    pub(crate) fn checked_words(&self, bucket: u64) -> [u64; CHECKED_WORDS] {
        let first = self.geometry.bucket_word(bucket);
        std::array::from_fn(|at| self.medium.load(first + checked_word(at)))
    }

    /// Whether a bucket has the check of its words, which nobody changes meanwhile.
    #[inline(always)]
    pub(crate) fn is_sound(&self, bucket: u64) -> bool {
        let found = self.medium.load(self.geometry.bucket_word(bucket) + CHECK);
        found == check_of(&self.checked_words(bucket), bucket, self.geometry.salt)
            || !self.has_checks()
            || buckets_are_unchecked()
    }

    /// Compares a bucket with its check, beside writers.
    ///
    /// # Errors
    /// `Corrupt`.
    #[inline(always)]
    pub(crate) fn verify(&self, bucket: u64) -> Result<()> {
        if self.is_sound(bucket) { Ok(()) } else { self.verify_again(bucket) }
    }

    /// Looks again, because the words may have been loaded while another thread stored them. (Locks
    /// do not tell: the caller may hold the bucket.)
    #[cold]
    fn verify_again(&self, bucket: u64) -> Result<()> {
        loop {
            let ended = self.stores.ended();
            if self.is_sound(bucket) {
                return Ok(());
            }
            if self.stores.none_since(ended) {
                return Err(self.damaged(bucket));
            }
            std::thread::yield_now();
        }
    }

    #[cold]
    pub(crate) fn damaged(&self, bucket: u64) -> Error {
        Error::corrupt(format!(
            "{}: bucket {bucket} of the index does not match its check, so that rows in it may not \
             be found; restore the store from a copy",
            self.medium.name()
        ))
    }
}
