//! Look-ups of a batch of keys, with the memory of later ones on its way meanwhile.

use crate::bucket::{BUCKET_WORDS, Path};
use crate::error::{Error, Result};
use crate::hash::PetHash;
use crate::medium::{Durability, Medium};

/// How far ahead the first line of a bucket is asked for, and the line of the slot. Calibrated
/// on Zen 3; a few more or less change nothing.
const HEADERS_AHEAD: usize = 16;
const SLOTS_AHEAD: usize = 8;

/// What a batch of look-ups asks the processor for in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefetch {
    /// Nothing.
    None,
    /// The bucket of the next key: the form of the paper (section 3.2, prefetching).
    NextKey,
    /// Buckets 16 keys ahead, and, once their fingerprints are there, slots 8 keys ahead.
    Staged,
}

impl<M: Medium> PetHash<M> {
    /// The values of keys, or [`ABSENT`](crate::ABSENT), in order. Blocks only on a file that is
    /// not in memory.
    ///
    /// # Errors
    /// `Misuse` where there are not as many values as keys.
    pub fn get_batch(&self, keys: &[u64], ahead: Prefetch, values: &mut [u64]) -> Result<()> {
        if keys.len() != values.len() {
            let (keys, values) = (keys.len(), values.len());
            return Err(Error::misuse(format!("{keys} keys, and room for {values} values")));
        }
        if self.region.medium.durability() == Durability::Sync {
            for key in keys {
                let word = self.word(self.path(*key).home);
                self.region.medium.expect(word..word + BUCKET_WORDS);
            }
        }
        match ahead {
            Prefetch::None => {
                for (key, value) in keys.iter().zip(values) {
                    *value = self.get(*key);
                }
            }
            Prefetch::NextKey => {
                let Some(first) = keys.first() else { return Ok(()) };
                let mut path = self.path(*first);
                for (at, value) in values.iter_mut().enumerate() {
                    let next = keys.get(at + 1).map(|key| self.path(*key));
                    if let Some(next) = next {
                        self.ask_for_header(next);
                    }
                    *value = self.find(path, keys[at]).0;
                    path = next.unwrap_or(path);
                }
            }
            Prefetch::Staged => self.get_staged(keys, values),
        }
        Ok(())
    }

    fn get_staged(&self, keys: &[u64], values: &mut [u64]) {
        let none = Path::new(0, 0, self.buckets());
        let mut paths = [none; HEADERS_AHEAD];
        for step in 0..keys.len() + HEADERS_AHEAD {
            let place = step % HEADERS_AHEAD;
            if let Some(at) = step.checked_sub(HEADERS_AHEAD) {
                values[at] = self.find(paths[place], keys[at]).0;
            }
            if let Some(key) = keys.get(step) {
                paths[place] = self.path(*key);
                self.ask_for_header(paths[place]);
            }
            let late = HEADERS_AHEAD - SLOTS_AHEAD;
            if step >= late && step - late < keys.len() {
                self.ask_for_slot(paths[(step - late) % HEADERS_AHEAD]);
            }
        }
    }

    #[inline(always)]
    fn ask_for_header(&self, path: Path) {
        self.region.medium.prefetch(self.word(path.home));
    }

    /// The line of the first slot that may have the key, or, without one, the next bucket.
    #[inline(always)]
    fn ask_for_slot(&self, path: Path) {
        let prints = self.prints(path.home);
        if let Some(slot) = prints.matching(path.print).next() {
            self.region.medium.prefetch(self.key_word(path.home, slot));
        } else if prints.overflow() != 0 {
            self.region.medium.prefetch(self.word(path.next(path.home, self.buckets())));
        }
    }
}
