//! The superblock: what a store is. Written once, when the store is created.
//!
//! Format: `docs/formats/superblock.md`. It is the first file of a store and the last to go, so a
//! directory that has others and not this one has lost it.

use crate::error::{Error, Result, bail};
use crate::io::{Medium, OpenMode};
use crate::store::files::leftovers;
use crate::store::has_file;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

pub(in crate::store) const NAME: &str = "superblock";
pub(in crate::store) const NEW_NAME: &str = "superblock.new";
const MAGIC: [u8; 8] = *b"EMBEDROK";
const VERSION: u32 = 1;
const BYTES: usize = 4096;

/// Whether a store's superblock is in a directory, sound or not. One that may not be read is none.
///
/// *Errors*: `Io` where the device does not tell.
pub(in crate::store) fn is_in(directory: &Path) -> Result<bool> {
    let mut magic = [0; MAGIC.len()];
    let path = directory.join(NAME);
    match File::open(&path).and_then(|mut file| file.read_exact(&mut magic)) {
        Ok(()) => Ok(magic == MAGIC),
        Err(error) if error.raw_os_error() == Some(libc::EIO) => {
            Err(Error::os(path.display(), error))
        }
        Err(_) => Ok(false),
    }
}

/// The identity of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Superblock {
    /// Tells this store's bytes from any other's.
    pub(crate) uuid: u128,
    /// Seed of initial rows.
    pub(crate) seed: u64,
    /// The version that created it.
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
        if has_file(medium, NAME)? {
            return Ok(true);
        }
        if let Some(name) = leftovers::file_of_a_store(medium)? {
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
        if has_file(medium, NEW_NAME)? {
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
