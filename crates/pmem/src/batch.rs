//! Look-ups of a batch of keys, with the memory of later ones on its way meanwhile.

use crate::bucket::{BUCKET_WORDS, Path};
use crate::error::{Error, Result};
use crate::hash::PetHash;
use crate::medium::{Durability, Medium};

/// Keys whose buckets are asked for together. Most of the time of a look-up goes into finding the
/// page of its bucket; requests that follow each other closely are translated side by side.
const GROUP: usize = 32;

/// The lines that a batch of look-ups prefetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefetch {
    /// Nothing.
    None,
    /// The bucket of the next key: the form of the paper (section 3.2, prefetching).
    NextKey,
    /// The buckets of a group of 32 keys, while those of the group before arrive; of these, the
    /// slots that may have the keys; then the keys.
    Staged,
}

impl<M: Medium> PetHash<M> {
    /// The values of keys, or [`ABSENT`](crate::ABSENT), in order. Blocks only on a file that is
    /// not in memory.
    ///
    /// # Errors
    /// `Misuse` where there are not as many values as keys; `Corrupt` where a damaged bucket may
    /// hide a key.
    pub fn get_batch(&self, keys: &[u64], ahead: Prefetch, values: &mut [u64]) -> Result<()> {
        if keys.len() != values.len() {
            let (keys, values) = (keys.len(), values.len());
            return Err(Error::misuse(format!("{keys} keys, and room for {values} values")));
        }
        if self.region.medium.durability() == Durability::Sync {
            keys.iter().for_each(|key| self.expect_home(*key));
        }
        match ahead {
            Prefetch::None => {
                for (key, value) in keys.iter().zip(values) {
                    *value = self.get(*key)?;
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
                    *value = self.find(path, keys[at])?.0;
                    path = next.unwrap_or(path);
                }
            }
            Prefetch::Staged => self.get_staged(keys, values)?,
        }
        Ok(())
    }

    /// Asks the kernel for a key's home, which may not be in memory.
    pub(crate) fn expect_home(&self, key: u64) {
        let word = self.word(self.path(key).home);
        self.region.medium.expect(word..word + BUCKET_WORDS);
    }

    fn get_staged(&self, keys: &[u64], values: &mut [u64]) -> Result<()> {
        let none = Path::new(0, 0, self.buckets());
        let (mut paths, mut next) = ([none; GROUP], [none; GROUP]);
        let mut groups = keys.chunks(GROUP).peekable();
        if let Some(first) = groups.peek() {
            self.ask_for_headers(first, &mut paths);
        }
        let mut values = values.chunks_mut(GROUP);
        while let (Some(keys), Some(values)) = (groups.next(), values.next()) {
            if let Some(later) = groups.peek() {
                self.ask_for_headers(later, &mut next);
            }
            for path in &paths[..keys.len()] {
                self.ask_for_slot(*path);
            }
            for ((key, path), value) in keys.iter().zip(&paths).zip(values) {
                *value = self.find(*path, *key)?.0;
            }
            std::mem::swap(&mut paths, &mut next);
        }
        Ok(())
    }

    #[inline(always)]
    fn ask_for_headers(&self, keys: &[u64], paths: &mut [Path; GROUP]) {
        for (key, path) in keys.iter().zip(paths) {
            *path = self.path(*key);
            self.ask_for_header(*path);
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
