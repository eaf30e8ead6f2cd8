//! Room on disk: the top's, the files of partitions, and room for a merge.
//!
//! Changes leave room for one merge beside that of the top, so that a full storage can merge. Room
//! that its file lacks may be in files of partitions that commits alone give back. A caller that
//! asks for no `spare` bytes, which are for upkeep, does not ask for that room either.

use super::bottom::merge_bytes_most;
use super::{IN_BOTTOM, Lsm};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::storage::StorageSpace;

impl StorageSpace for Lsm {
    fn disk_bytes(&self) -> u64 {
        self.top.disk_bytes() + self.bytes_below()
    }

    fn rows_of_cut(&self) -> u64 {
        self.top.rows_of_cut()
    }

    fn lacking_bytes(&self, rows: u64, spare: u64) -> u64 {
        self.top.lacking_bytes(rows, spare) + self.lacking_for_merge(rows, spare)
    }

    fn growth_for(&self, rows: u64, spare: u64) -> u64 {
        self.top.growth_for(rows, spare) + self.room_growth(rows, spare)
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
        // Files that a crash has left are in no count, and are removed before the first change.
        self.tidy()?;
        let reserved = (|| {
            let left = self.reserve_for_merge(rows, spare, grow_bytes)?;
            self.top.reserve(rows, spare, left)
        })();
        if matches!(&reserved, Err(error) if error.kind() == ErrorKind::Full) {
            self.upkeep.merge_for_room();
        }
        reserved
    }

    fn give_back(
        &mut self,
        unwritten: u64,
        refused: u64,
        spare: u64,
        wanted: Option<u64>,
    ) -> Result<()> {
        self.tidy()?;
        let before = self.disk_bytes();
        self.bottom.remove_files()?;
        // First, for without it nothing that is outdated below becomes free.
        let growth = self.room_growth(unwritten, spare);
        if growth > 0 {
            let freed = before.saturating_sub(self.disk_bytes());
            // If no change was refused, the next one takes this room from the disk.
            if self.upkeep.merges_for_room() {
                self.top.give_back(unwritten, 0, spare, Some(growth.saturating_sub(freed)))?;
            }
            let freed = before.saturating_sub(self.disk_bytes());
            self.fill_room(growth.min(freed))?;
        }
        let given = before.saturating_sub(self.disk_bytes());
        let needed = match spare {
            _ if !self.merges_into_bottom() => 0,
            0 => 0,
            _ => self.room_for_merge(unwritten + refused),
        };
        let more = self.room.bytes().saturating_sub(needed);
        match wanted {
            // Room that is about to be needed again stays unless another class or the journal wants
            // it.
            None if more <= needed => {}
            None => self.room.shrink(more)?,
            Some(wanted) => self.room.shrink(more.min(wanted.saturating_sub(given)))?,
        }
        let given = before.saturating_sub(self.disk_bytes());
        let wanted = wanted.map(|wanted| wanted.saturating_sub(given));
        self.top.give_back(unwritten, refused, spare, wanted)
    }

    fn held_bytes(&self, first: u64, oldest_kept: u64) -> u64 {
        self.top.held_bytes(first, oldest_kept)
            + self.bottom.retired_bytes_between(first, oldest_kept)
    }
}

impl Lsm {
    /// Bytes that files of partitions take, and the room for merges.
    pub(super) fn bytes_below(&self) -> u64 {
        self.bottom.disk_bytes() + self.room.bytes()
    }

    /// Bytes of the disk that a merge takes at most which writes so many rows.
    pub(super) fn bytes_of_merge(&self, rows: u64) -> u64 {
        let tables = self.bottom.orders().table_count() as u64;
        let (target, filters) = (self.partition_bytes(), self.facts.merging.filters);
        merge_bytes_most(rows, tables, self.top.layout(), target, filters)
    }

    /// Bytes that the largest merge takes once there are `rows` more rows to write: that of a
    /// partition and of what one merge takes out of the top.
    fn room_for_merge(&self, rows: u64) -> u64 {
        let version = self.bottom.snapshot().version();
        let above = self.rows_above() + rows;
        let below = self.rows_per_partition().min(above + version.rows());
        let largest = version.rows_largest().max(below);
        let usual = self.bytes_of_merge(largest + above.min(self.most_per_merge() as u64));
        if self.rows_to_merge() == 0 { usual } else { usual.max(self.upkeep.wanted_bytes) }
    }

    /// The existing room, and that which commits alone will return.
    fn room_to_come(&self) -> u64 {
        let has = self.room.bytes() + self.bottom.coming_bytes();
        match &self.upkeep.given_out {
            None => has,
            // Either what it writes goes, or what it replaces.
            Some(unit) => has.saturating_sub(unit.bytes) + unit.old_bytes.min(unit.bytes),
        }
    }

    /// The missing part of the room for a merge.
    pub(super) fn lacking_for_merge(&self, rows: u64, spare: u64) -> u64 {
        match spare {
            _ if !self.merges_into_bottom() => 0,
            0 => 0,
            _ => self.room_for_merge(rows).saturating_sub(self.room_to_come()),
        }
    }

    /// Bytes by which the file of the room has to grow.
    fn room_growth(&self, rows: u64, spare: u64) -> u64 {
        match self.lacking_for_merge(rows, spare) {
            0 => 0,
            lacking => self.room.growth_for(self.room.bytes() + lacking),
        }
    }

    /// Makes sure of the room for a merge, of `grow_bytes` more of the disk or of what the top has
    /// and does not need. Returns what of these is left.
    fn reserve_for_merge(&mut self, rows: u64, spare: u64, grow_bytes: u64) -> Result<u64> {
        let growth = self.room_growth(rows, spare);
        if growth == 0 {
            return Ok(grow_bytes);
        }
        let mut full = None;
        if growth <= grow_bytes {
            match self.room.grow(&*self.medium, growth) {
                Ok(()) => {
                    self.upkeep.found_room();
                    return Ok(grow_bytes - growth);
                }
                Err(error) if error.kind() == ErrorKind::Full => full = Some(error),
                Err(error) => return Err(error),
            }
        }
        let before = self.top.disk_bytes();
        self.top.give_back(rows, 0, spare, Some(growth))?;
        let freed = before - self.top.disk_bytes();
        self.fill_room(growth.min(freed))?;
        if freed >= growth && self.lacking_for_merge(rows, spare) == 0 {
            return Ok(grow_bytes);
        }
        Err(full.unwrap_or_else(|| {
            let class = self.facts.class;
            let message = format!(
                "part-{class}-room, which is for merges, needs {growth} more bytes and may grow \
                 by {grow_bytes}"
            );
            Error::new(ErrorKind::Full, message)
        }))
    }

    /// Makes the room for a merge longer, if the device allows.
    pub(super) fn fill_room(&mut self, growth: u64) -> Result<()> {
        match self.room.grow(&*self.medium, growth) {
            Err(error) if error.kind() != ErrorKind::Full => Err(error),
            _ => Ok(()),
        }
    }
}
