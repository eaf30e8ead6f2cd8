//! The head: the newest commit, the oldest that is still whole, and the term, beside the journal.
//!
//! Format: `docs/formats/head-and-holds.md`. It notices a journal that has lost its end, and
//! outlives the commits that are given up when a writer goes back: those had dropped older ones,
//! whatever the record of the commit gone back to says. Always whole, for it lies in one sector.

use crate::error::Result;
use crate::io::{File, Medium, OpenMode};
use crate::store::has_file;
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(in crate::store) const NAME: &str = "head";
/// Bytes that `write` writes.
pub(in crate::store) const BYTES: u64 = 48;
/// Bytes of a head by a version that does not note the oldest commit.
const BYTES_WITHOUT_OLDEST: u64 = 16;
/// A term has so many sequences for the pages of a class: at 512 bytes a page, 2 TiB.
const TERM_SHIFT: u32 = 32;
/// Largest term: sequences of its pages stay within the range of counters.
const TERM_MAX: u64 = (1 << 24) - 2;

/// Reads of a head that tells nothing, at most, and the pause between them: that of one write.
const TRIES_MAX: usize = 3;
const WRITING: Duration = Duration::from_millis(1);

/// The numbers of a head that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Tells {
    /// Both numbers, of one moment.
    All,
    /// A version that does not note the oldest commit wrote it last.
    Newest,
    /// It is missing, or holds what no write of it leaves; the numbers are 0, or lower than they
    /// were.
    Nothing,
}

/// Content of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Head {
    /// The number of a commit that was durable; 0 when there is none, or it cannot be told.
    pub(in crate::store) sequence: u64,
    /// No commit before this one is whole.
    pub(in crate::store) oldest: u64,
    /// The last term: the time from a writer's first change until it closes or dies. 0 when it
    /// cannot be told.
    pub(in crate::store) term: u64,
    pub(in crate::store) tells: Tells,
}

impl Head {
    pub(in crate::store) fn new(sequence: u64, oldest: u64, term: u64) -> Self {
        Self { sequence, oldest, term, tells: Tells::All }
    }

    pub(in crate::store) fn encode(self, seed: u64) -> Vec<u8> {
        let mut bytes = self.sequence.to_le_bytes().to_vec();
        bytes.extend_from_slice(&xxh3_64_with_seed(&bytes, seed).to_le_bytes());
        let mut second = self.oldest.to_le_bytes().to_vec();
        // Again, to notice a version that writes the first 16 bytes only.
        second.extend_from_slice(&self.sequence.to_le_bytes());
        second.extend_from_slice(&self.term.to_le_bytes());
        second.extend_from_slice(&xxh3_64_with_seed(&second, seed).to_le_bytes());
        bytes.extend_from_slice(&second);
        bytes
    }

    fn decode(bytes: &[u8; BYTES as usize], seed: u64) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let first = word(8) == xxh3_64_with_seed(&bytes[..8], seed);
        let second = word(40) == xxh3_64_with_seed(&bytes[16..40], seed);
        let sequence = if first { word(0) } else { 0 };
        let (oldest, term) = if second { (word(16), word(32)) } else { (0, 0) };
        let tells = match (first, second) {
            (true, true) if word(24) == sequence => Tells::All,
            (true, true) => Tells::Newest,
            (true, false) if bytes[BYTES_WITHOUT_OLDEST as usize..].iter().all(|b| *b == 0) => {
                Tells::Newest
            }
            _ => Tells::Nothing,
        };
        Self { sequence, oldest, term, tells }
    }

    /// Reads what there is; again where that tells nothing, for a writer beside may be writing it.
    pub(in crate::store) fn read(medium: &dyn Medium, seed: u64) -> Result<Self> {
        let mut head = Self::decode(&[0; BYTES as usize], seed);
        if !has_file(medium, NAME)? {
            return Ok(head);
        }
        for again in 0..TRIES_MAX {
            if again > 0 {
                std::thread::sleep(WRITING);
            }
            let mut bytes = [0; BYTES as usize];
            let file = medium.open(NAME, OpenMode::ReadOnly)?;
            let len = file.len()?.min(BYTES) as usize;
            file.read_at(&mut bytes[..len], 0)?;
            head = Self::decode(&bytes, seed);
            if head.tells != Tells::Nothing {
                break;
            }
        }
        Ok(head)
    }

    /// Notes a commit that is durable. Not synced: the head may lag, never lead.
    pub(in crate::store) fn write(self, medium: &dyn Medium, seed: u64) -> Result<()> {
        rewrite(medium, &self.encode(seed)).map(drop)
    }

    /// As `write`, and durable on return but for its name: before later commits are given up, so
    /// that no head names one that is gone, none is forgotten that they had dropped, and no other
    /// term has this number.
    pub(in crate::store) fn write_durably(self, medium: &dyn Medium, seed: u64) -> Result<()> {
        rewrite(medium, &self.encode(seed))?.sync()
    }
}

/// The number of the term that begins with the next change: above that of every term before, as
/// far as the head tells it, or the largest sequence of a page that a commit tells of.
pub(in crate::store) fn next_term(
    medium: &dyn Medium,
    seed: u64,
    sequence_max: u64,
) -> Result<u64> {
    let last = Head::read(medium, seed)?.term;
    Ok((last.max(sequence_max >> TERM_SHIFT) + 1).min(TERM_MAX))
}

/// The sequence that the pages of a term come behind.
pub(in crate::store) fn sequence_of_term(term: u64) -> u64 {
    term << TERM_SHIFT
}

fn rewrite(medium: &dyn Medium, bytes: &[u8]) -> Result<Arc<dyn File>> {
    let exists = has_file(medium, NAME)?;
    let mode = if exists { OpenMode::ReadWrite } else { OpenMode::CreateNew };
    let file = medium.open(NAME, mode)?;
    file.write_at(bytes, 0)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimMedium;

    const SEED: u64 = 5;

    fn found(bytes: &[u8]) -> Head {
        let medium = SimMedium::new(1);
        rewrite(&medium, bytes).unwrap();
        Head::read(&medium, SEED).unwrap()
    }

    #[test]
    fn a_head_tells_what_was_written_and_no_more() {
        let nothing = Head { sequence: 0, oldest: 0, term: 0, tells: Tells::Nothing };
        assert_eq!(Head::read(&SimMedium::new(1), SEED).unwrap(), nothing);
        let written = Head::new(9, 4, 3);
        let bytes = written.encode(SEED);
        assert_eq!(bytes.len() as u64, BYTES);
        assert_eq!(found(&bytes), written);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let found = found(&damaged);
            assert_eq!(found.tells, Tells::Nothing, "byte {at}");
            assert!([0, 9].contains(&found.sequence) && [0, 4].contains(&found.oldest));
            assert!([0, 3].contains(&found.term));
        }
        for len in [0, 1, 8, 15] {
            assert_eq!(found(&bytes[..len]), nothing, "{len} bytes");
        }
        assert_eq!(found(&[0; BYTES as usize]), nothing);
        assert_eq!(Head::decode(bytes[..].try_into().unwrap(), SEED + 1), nothing);
    }

    #[test]
    fn every_term_has_a_number_above_those_before() {
        let medium = SimMedium::new(1);
        let next = |sequence_max| next_term(&medium, SEED, sequence_max).unwrap();
        assert_eq!(next(0), 1);
        for term in [1, 2, 9] {
            Head::new(40, 30, term).write_durably(&medium, SEED).unwrap();
            Head::new(41, 31, term).write(&medium, SEED).unwrap();
            assert_eq!(next(0), term + 1);
        }
        medium.sync_dir().unwrap();
        assert_eq!(next_term(&medium.reboot(3), SEED, 0).unwrap(), 10);
        // Without the head, commits tell.
        medium.flip_bit(NAME, 33);
        assert_eq!((next(0), next(sequence_of_term(4) + 5), next(1 << 56)), (1, 5, TERM_MAX));
    }

    #[test]
    fn heads_of_a_version_without_the_oldest_commit_are_read() {
        let newest = |oldest, term| Head { sequence: 9, oldest, term, tells: Tells::Newest };
        let bytes = Head::new(9, 4, 3).encode(SEED);
        assert_eq!(found(&bytes[..16]), newest(0, 0));
        // It wrote over the first bytes of one that had both.
        let mut both = Head::new(12, 6, 3).encode(SEED);
        both[..16].copy_from_slice(&bytes[..16]);
        assert_eq!(found(&both), newest(6, 3));
    }
}
