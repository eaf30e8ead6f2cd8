//! Room on disk: the top's, and the files of partitions.

use super::{IN_BOTTOM, Lsm};
use crate::error::{Result, bail};
use crate::storage::StorageSpace;

impl StorageSpace for Lsm {
    fn disk_bytes(&self) -> u64 {
        self.top.disk_bytes() + self.bytes_below()
    }

    fn rows_of_cut(&self) -> u64 {
        self.top.rows_of_cut()
    }

    fn lacking_bytes(&self, rows: u64, spare: u64) -> u64 {
        self.top.lacking_bytes(rows, spare)
    }

    fn growth_for(&self, rows: u64, spare: u64) -> u64 {
        self.top.growth_for(rows, spare)
    }

    fn reserve(&mut self, rows: u64, spare: u64, grow_bytes: u64) -> Result<()> {
        // Larger origins are those of the bottom.
        let most = u64::from(IN_BOTTOM);
        if self.top.slots_with(self.top.lacking_bytes(rows, spare)) > most {
            bail!(
                Full,
                "the newest rows of a class would need more than {most} slots; change fewer rows \
                 between commits, or use more tables with rows of other sizes"
            );
        }
        // What a crash has left is in no count, and goes before the first change.
        self.tidy()?;
        self.top.reserve(rows, spare, grow_bytes)
    }

    fn give_back(&mut self, unwritten: u64, spare: u64, wanted: Option<u64>) -> Result<()> {
        self.bottom.remove_files()?;
        self.top.give_back(unwritten, spare, wanted)
    }

    fn held_bytes(&self, first: u64, oldest_kept: u64) -> u64 {
        self.top.held_bytes(first, oldest_kept)
            + self.bottom.retired_bytes_between(first, oldest_kept)
    }
}

impl Lsm {
    /// Bytes that files of partitions take, those that a unit writes included.
    pub(super) fn bytes_below(&self) -> u64 {
        self.bottom.disk_bytes() + self.upkeep.reserved_bytes()
    }
}
