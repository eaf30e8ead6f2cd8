//! The superblock: what a store is. Written once, when the store is created.
//!
//! Format: `docs/formats/superblock.md`. The `head` beside it names the newest commit, written
//! after that commit is durable; a journal that ends before it has lost something.

use crate::error::{Result, bail};
use crate::io::{File, Medium, OpenMode};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

const NAME: &str = "superblock";
const NEW_NAME: &str = "superblock.new";
pub(super) const HEAD_NAME: &str = "head";
const MAGIC: [u8; 8] = *b"EMBEDROK";
const VERSION: u32 = 1;
const BYTES: usize = 4096;

/// What a store is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Superblock {
    /// Tells this store's bytes from any other's.
    pub(crate) uuid: u128,
    /// Seed of initial rows.
    pub(crate) seed: u64,
    /// Which version created it.
    pub(crate) created_by: String,
}

impl Superblock {
    /// Seed of the checksums of this store's pages and records.
    pub(crate) fn checksum_seed(&self) -> u64 {
        xxh3_64(&self.uuid.to_le_bytes())
    }

    /// True when the directory holds a store. `Corrupt` when it holds all of one but this file,
    /// which is the first that a store gets.
    pub(crate) fn exists(medium: &dyn Medium) -> Result<bool> {
        if medium.list(NAME)?.iter().any(|name| name == NAME) {
            return Ok(true);
        }
        if let Some(name) = medium.list("journal-")?.first() {
            bail!(
                Corrupt,
                "superblock is missing, though {name} is there; restore it from a copy of this \
                 store"
            );
        }
        Ok(false)
    }

    /// Writes the superblock, durable and atomically named.
    pub(crate) fn create(&self, medium: &dyn Medium) -> Result<()> {
        if medium.list(NEW_NAME)?.iter().any(|name| name == NEW_NAME) {
            medium.remove(NEW_NAME)?;
        }
        let body = serde_json::to_vec(self).expect("a superblock is plain data");
        let mut block = Vec::with_capacity(BYTES);
        block.extend_from_slice(&MAGIC);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&(body.len() as u32).to_le_bytes());
        block.extend_from_slice(&body);
        block.resize(BYTES - 8, 0);
        let sum = xxh3_64(&block);
        block.extend_from_slice(&sum.to_le_bytes());
        let file = medium.open(NEW_NAME, OpenMode::CreateNew)?;
        file.write_at(&block, 0)?;
        file.sync()?;
        medium.rename(NEW_NAME, NAME)?;
        medium.sync_dir()
    }

    /// Reads and checks the superblock.
    pub(crate) fn read(medium: &dyn Medium) -> Result<Self> {
        let file = medium.open(NAME, OpenMode::ReadOnly)?;
        let mut block = vec![0; BYTES];
        file.read_at(&mut block, 0)?;
        if block[..8] != MAGIC {
            bail!(Corrupt, "superblock, bytes 0 to 8: not a store of embedrock");
        }
        let mut sum = [0; 8];
        sum.copy_from_slice(&block[BYTES - 8..]);
        if u64::from_le_bytes(sum) != xxh3_64(&block[..BYTES - 8]) {
            bail!(Corrupt, "superblock: checksum does not match; restore it from a copy");
        }
        let version = u32::from_le_bytes([block[8], block[9], block[10], block[11]]);
        if version != VERSION {
            bail!(
                Unsupported,
                "the store has format version {version}, this build reads {VERSION}; \
                 use a newer embedrock"
            );
        }
        let len = u32::from_le_bytes([block[12], block[13], block[14], block[15]]) as usize;
        match block.get(16..16 + len).map(serde_json::from_slice) {
            Some(Ok(superblock)) => Ok(superblock),
            _ => bail!(Corrupt, "superblock: its {len} bytes of JSON cannot be read"),
        }
    }
}

/// Bytes that `write_head` writes.
pub(crate) const HEAD_BYTES: u64 = 16;
/// A term has so many sequences for the pages of a class: at 512 bytes a page, 2 TiB.
const TERM_SHIFT: u32 = 32;
/// What a counter can be ends there.
const TERM_MAX: u64 = (1 << 24) - 2;

/// Writes the number of the newest durable commit. Not synced: it may lag, never lead.
pub(crate) fn write_head(medium: &dyn Medium, seed: u64, sequence: u64) -> Result<()> {
    head_file(medium)?.write_at(&head_bytes(seed, sequence), 0)
}

/// As `write_head`, before the commits behind `sequence` are cut off and the first page of a term
/// is written: durable on return, once the directory is synced, so that a head never names a commit
/// that is gone, and no other term has this number.
pub(crate) fn begin_term(medium: &dyn Medium, seed: u64, sequence: u64, term: u64) -> Result<()> {
    let file = head_file(medium)?;
    file.write_at(&[head_bytes(seed, sequence), head_bytes(seed, term)].concat(), 0)?;
    file.sync()
}

/// The number of the term that begins with the next change: above that of every term before, as
/// far as the head tells it, or the largest sequence of a page that a commit tells of.
pub(crate) fn next_term(medium: &dyn Medium, seed: u64, sequence_max: u64) -> Result<u64> {
    let mut last = 0;
    if medium.list(HEAD_NAME)?.iter().any(|name| name == HEAD_NAME) {
        let file = medium.open(HEAD_NAME, OpenMode::ReadOnly)?;
        if file.len()? >= 2 * HEAD_BYTES {
            let mut bytes = [0; HEAD_BYTES as usize];
            file.read_at(&mut bytes, HEAD_BYTES)?;
            last = number_in_head(&bytes, seed).unwrap_or(0);
        }
    }
    Ok((last.max(sequence_max >> TERM_SHIFT) + 1).min(TERM_MAX))
}

/// The sequence that the pages of a term come behind.
pub(crate) fn sequence_of_term(term: u64) -> u64 {
    term << TERM_SHIFT
}

fn head_file(medium: &dyn Medium) -> Result<Arc<dyn File>> {
    let exists = medium.list(HEAD_NAME)?.iter().any(|name| name == HEAD_NAME);
    medium.open(HEAD_NAME, if exists { OpenMode::ReadWrite } else { OpenMode::CreateNew })
}

fn head_bytes(seed: u64, number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend_from_slice(&xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, seed).to_le_bytes());
    bytes
}

/// The number of a commit that was durable; 0 when there is none, or it cannot be told.
pub(crate) fn read_head(medium: &dyn Medium, seed: u64) -> Result<u64> {
    Ok(look_at_head(medium, seed)?.unwrap_or(0))
}

/// False when the head holds what no write of it can have left.
pub(crate) fn head_is_sound(medium: &dyn Medium, seed: u64) -> Result<bool> {
    Ok(look_at_head(medium, seed)?.is_some())
}

/// As `read_head`; `None` for a wrong checksum. A head of zeros was never written.
fn look_at_head(medium: &dyn Medium, seed: u64) -> Result<Option<u64>> {
    if !medium.list(HEAD_NAME)?.iter().any(|name| name == HEAD_NAME) {
        return Ok(Some(0));
    }
    let file = medium.open(HEAD_NAME, OpenMode::ReadOnly)?;
    if file.len()? < 16 {
        return Ok(Some(0));
    }
    let mut bytes = [0; 16];
    file.read_at(&mut bytes, 0)?;
    Ok(number_in_head(&bytes, seed))
}

fn number_in_head(bytes: &[u8; HEAD_BYTES as usize], seed: u64) -> Option<u64> {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[..8]);
    let number = u64::from_le_bytes(number);
    (*bytes == [0; 16] || *bytes == *head_bytes(seed, number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimMedium;

    #[test]
    fn every_term_has_a_number_above_those_before() {
        let medium = SimMedium::new(1);
        let next = |sequence_max| next_term(&medium, 7, sequence_max).unwrap();
        assert_eq!(next(0), 1);
        for term in [1, 2, 9] {
            begin_term(&medium, 7, 40 + term, term).unwrap();
            write_head(&medium, 7, 50 + term).unwrap();
            assert_eq!((next(0), read_head(&medium, 7).unwrap()), (term + 1, 50 + term));
        }
        medium.sync_dir().unwrap();
        assert_eq!(next_term(&medium.reboot(3), 7, 0).unwrap(), 10);
        // Without the head, commits tell.
        medium.flip_bit(HEAD_NAME, 17);
        assert_eq!((next(0), next(sequence_of_term(4) + 5)), (1, 5));
        assert!(head_is_sound(&medium, 7).unwrap());
        medium.remove(HEAD_NAME).unwrap();
        write_head(&medium, 7, 3).unwrap();
        assert_eq!((next(0), next(1 << 56)), (1, TERM_MAX));
    }
}
