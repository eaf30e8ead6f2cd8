//! Room on disk that only commits may take: a file without meaning, which gives its bytes back when
//! a commit finds no other room. Format: `docs/formats/README.md`.
//!
//! A commit, the journal that replaces this one, and the cleaning that makes room again all need
//! room themselves. Verbs leave it within a disk bound; that the device has it too is certain only
//! if somebody has taken it before. Verbs fill the spare room, or say `Full`; commits draw on it.

use super::super::has_file;
use crate::error::{ErrorKind, Result};
use crate::io::{BLOCK_BYTES, File, Medium, OpenMode};
use std::sync::Arc;

pub(in crate::store) const NAME: &str = "spare";
/// It grows in steps of so many bytes, so that not every verb makes it longer.
const STEP_BYTES: u64 = 64 << 10;

/// The file, once there is one.
#[derive(Debug, Default)]
pub(in crate::store) struct Spare {
    file: Option<Arc<dyn File>>,
    bytes: u64,
}

impl Spare {
    /// That of an earlier life of the store, to write.
    pub(in crate::store) fn open(medium: &dyn Medium) -> Result<Self> {
        if !has_file(medium, NAME)? {
            return Ok(Self::default());
        }
        let file = medium.open(NAME, OpenMode::ReadWrite)?;
        let mut bytes = file.len()?;
        // A crash may have left a length without the room.
        if bytes > 0
            && let Err(error) = file.allocate(0, bytes)
        {
            if error.kind() != ErrorKind::Full {
                return Err(error);
            }
            file.set_len(0)?;
            bytes = 0;
        }
        Ok(Self { file: Some(file), bytes })
    }

    /// Bytes that it takes.
    pub(in crate::store) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// By how much it has to grow to have `bytes`.
    pub(in crate::store) fn growth_for(&self, bytes: u64) -> u64 {
        if bytes <= self.bytes { 0 } else { bytes.next_multiple_of(STEP_BYTES) - self.bytes }
    }

    /// Makes sure that it has `bytes`; `Full` otherwise, and nothing changed.
    pub(in crate::store) fn fill(&mut self, medium: &dyn Medium, bytes: u64) -> Result<()> {
        let growth = self.growth_for(bytes);
        if growth == 0 {
            return Ok(());
        }
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(medium.open(NAME, OpenMode::CreateNew)?),
        };
        file.allocate(self.bytes, growth)?;
        self.bytes += growth;
        Ok(())
    }

    /// Gives `bytes` of it back, or what it has.
    pub(in crate::store) fn draw(&mut self, bytes: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let left = self.bytes.saturating_sub(bytes) / BLOCK_BYTES * BLOCK_BYTES;
        if left < self.bytes {
            file.set_len(left)?;
            self.bytes = left;
        }
        Ok(())
    }
}
