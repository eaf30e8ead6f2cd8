//! Taking rows out of a log on top of another layer: which copies lie in a range of positions,
//! reads of them without the lock of the class, and dropping what the layer below has taken over.
//!
//! The position of a row is its key in a dense table and the reversed hash of its key in a growing
//! one, so that a partition of the index is a range of positions.

use super::snapshot::{PageSnapshot, ReadPage};
use super::{ClassLog, TableIndex};
use crate::error::{Result, bail};
use crate::metrics::ReadReport;
use crate::storage::{DirtyRow, PageReader, StorageWrite, SweptRow};

/// Slots of a group of a dense table: about as many as a partition of a growing one has.
const GROUP_SLOTS: usize = 128;

/// Slots of the newest copies of keys in a range of positions of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotsOf {
    /// The slots, group after group. Positions of a group lie before those of the next; within a
    /// group there is no order.
    pub slots: Vec<u32>,
    /// The ends of the groups in `slots`. None is empty.
    pub groups: Vec<u32>,
    /// Slots that were left out because their pages have not reached the device.
    pub left_out: Vec<u32>,
    /// The last position that was looked at.
    pub until: u64,
}

impl SlotsOf {
    /// The slots of each group.
    #[cfg(test)]
    pub(crate) fn groups(&self) -> impl Iterator<Item = &[u32]> {
        let begins = std::iter::once(0).chain(self.groups.iter().copied());
        begins.zip(&self.groups).map(|(begin, end)| &self.slots[begin as usize..*end as usize])
    }

    /// The slots since the end of the last group become a group, if there are any.
    fn end_group(&mut self) {
        let end = self.slots.len() as u32;
        if self.groups.last().copied().unwrap_or(0) < end {
            self.groups.push(end);
        }
    }
}

impl ClassLog {
    /// The slots of the newest copies of keys of a table whose positions lie in `first..=last`, up
    /// to the end of the group in which there are `most`. Of a growing table whole partitions are
    /// looked at, so copies of keys just outside the range may be among them. Unless `in_memory`,
    /// copies whose page has not reached the device are left out, and those of pages that
    /// [`leave_pages`](Self::leave_pages) has named are not there at all.
    pub(crate) fn slots_of(
        &self,
        table: u16,
        first: u64,
        last: u64,
        most: usize,
        in_memory: bool,
    ) -> SlotsOf {
        let mut found = SlotsOf { until: last, ..SlotsOf::default() };
        let is_wanted = |slot| in_memory || self.page_in_memory(slot).is_none();
        let is_left = |slot| !in_memory && self.is_left(slot);
        match self.index(table) {
            TableIndex::Dense(index) => {
                for (id, slot) in index.range(first..=last) {
                    if is_left(slot) {
                        continue;
                    }
                    if !is_wanted(slot) {
                        found.left_out.push(slot);
                        continue;
                    }
                    found.slots.push(slot);
                    if found.slots.len().is_multiple_of(GROUP_SLOTS) || found.slots.len() >= most {
                        found.end_group();
                    }
                    if found.slots.len() >= most {
                        found.until = id;
                        break;
                    }
                }
                found.end_group();
            }
            TableIndex::Sparse(index, _) => {
                for partition in index.partitions_in(first, last) {
                    for slot in index.slots(partition).filter(|slot| !is_left(*slot)) {
                        match is_wanted(slot) {
                            true => found.slots.push(slot),
                            false => found.left_out.push(slot),
                        }
                    }
                    found.end_group();
                    if found.slots.len() >= most {
                        found.until = last.min(*index.range_of(partition).end());
                        break;
                    }
                }
            }
        }
        found
    }

    /// Rows of these sorted pages are not taken, in place of those that were named before.
    pub(crate) fn leave_pages(&mut self, pages: Vec<u32>) {
        self.left_pages = pages;
    }

    fn is_left(&self, slot: u32) -> bool {
        let page = slot / self.layout().rows_per_page as u32;
        !self.left_pages.is_empty() && self.left_pages.binary_search(&page).is_ok()
    }

    /// The first sequence of the filling that a page belongs to, which sets its rows apart from
    /// those of earlier fillings; `None` if its segment was cut off the file.
    pub(crate) fn filling_of(&self, page: u32) -> Option<u64> {
        let is_there = self.segments.of_page(page) < self.segments.count();
        is_there.then(|| *self.segments.sequences_of(page).start())
    }

    /// Keys of a table at positions `first..=last` that have a copy here. Of a growing table those
    /// of a partition of the index count where it begins.
    pub(crate) fn rows_in(&self, table: u16, first: u64, last: u64) -> u64 {
        match self.index(table) {
            TableIndex::Dense(index) => index.range(first..=last).count() as u64,
            TableIndex::Sparse(index, _) => {
                let within = index.partitions_in(first, last);
                let within =
                    within.filter(|partition| *index.range_of(*partition).start() >= first);
                within.map(|partition| index.slots(partition).count() as u64).sum()
            }
        }
    }

    /// Table and key of the row at a slot whose page is in memory.
    pub(crate) fn entry_in_memory(&self, slot: u32) -> Option<(u16, u64)> {
        let at = (slot % self.layout().rows_per_page as u32) as usize;
        self.page_in_memory(slot).map(|page| self.layout().entry(page, at))
    }

    /// Whether the next copy of a row with this origin outdates one here.
    pub(crate) fn has_copy(&self, table: u16, key: u64, origin: Option<u32>) -> bool {
        origin.unwrap_or_else(|| self.index(table).slot_of(key)) != 0
    }

    /// Bytes of the index of a table.
    pub(crate) fn index_bytes_of(&self, table: u16) -> u64 {
        self.index(table).memory_bytes() as u64
    }

    /// Rows that have their newest copy here.
    pub(crate) fn newest_total(&self) -> u64 {
        self.segments.newest_total()
    }

    /// Slots that there are once the file has grown by so many bytes.
    pub(crate) fn slots_with(&self, more_bytes: u64) -> u64 {
        let segments = u64::from(self.segments.count()) + more_bytes / self.segment_bytes;
        segments * self.rows_per_segment()
    }

    /// Number of the commit to come.
    pub(crate) fn epoch(&self) -> u64 {
        self.segments.epoch()
    }

    /// Keys that wait to be written, by table, and whether one has a copy here.
    pub(crate) fn parked_keys(&self) -> impl Iterator<Item = (u16, u64, bool)> + '_ {
        self.buffer.rows().map(|DirtyRow { table, key, origin, .. }| {
            (table, key, self.has_copy(table, key, origin))
        })
    }

    /// Drops the stored copy of a key at `slot`, which the layer below has, too, by now. False, and
    /// nothing happens, where it is not the newest any more: another was written or waits to be,
    /// or the key was deleted.
    pub(crate) fn drop_copy(&mut self, table: u16, key: u64, slot: u32) -> bool {
        if slot == 0 || !self.is_indexed(table, key, slot) || self.is_parked(table, key) {
            return false;
        }
        // Not counted among deleted rows, which pay for cleaning once more: a row that passes
        // through this log takes one slot, for which it has paid, and leaves one dead.
        self.forget(table, key, slot);
        true
    }

    /// A checksum over the slots that may hold a key, whatever their order; 0 where there are none.
    /// As long as it stays the same, the log has, but for rare chance, no other copy of the key.
    pub(crate) fn candidate_sum(&self, table: u16, key: u64) -> u32 {
        self.index(table).candidate_sum(key)
    }

    /// A reader of the rows at `slots`, which [`slots_of`](Self::slots_of) gave under the same hold
    /// of the lock. It has a copy of each page in memory that has one of them; other pages stay
    /// unchanged until the caller ends the read ticket that it has drawn under the same hold, too.
    pub(crate) fn top_reader(&self, slots: &[u32]) -> TopReader {
        let per_page = self.layout().rows_per_page as u32;
        let mut in_memory: Vec<u32> = self.writer.pages_in_memory().collect();
        in_memory.sort_unstable();
        let mut wanted = vec![false; in_memory.len()];
        for slot in slots {
            if let Ok(at) = in_memory.binary_search(&(slot / per_page)) {
                wanted[at] = true;
            }
        }
        let is_wanted = |page| in_memory.binary_search(&page).is_ok_and(|at| wanted[at]);
        TopReader { pages: self.page_snapshot(is_wanted) }
    }
}

/// Reads rows of a log as they were at one moment, without the lock of the class.
pub(crate) struct TopReader {
    pages: PageSnapshot,
}

impl TopReader {
    /// The page of a slot.
    pub(crate) fn page_of(&self, slot: u32) -> u32 {
        slot / self.pages.layout().rows_per_page as u32
    }

    /// Gives `each` the row at each of `slots`, which are of `table`, in no useful order. Every
    /// page is read once.
    ///
    /// *Errors*: `Corrupt` for a damaged page, or one that has no row of the table in such a slot.
    pub(crate) fn read_group(
        &self,
        table: u16,
        slots: &[u32],
        reader: &mut PageReader,
        each: &mut dyn FnMut(SweptRow<'_>) -> Result<()>,
    ) -> Result<ReadReport> {
        let layout = self.pages.layout();
        let per_page = layout.rows_per_page as u32;
        let mut slots = slots.to_vec();
        slots.sort_unstable();
        let mut pages: Vec<u32> = slots.iter().map(|slot| slot / per_page).collect();
        pages.dedup();
        self.pages.read(&pages, reader, &mut |ReadPage { number, bytes, rows }| {
            let begin = slots.partition_point(|slot| slot / per_page < number);
            let here = slots[begin..].iter().take_while(|slot| **slot / per_page == number);
            for slot in here.copied() {
                let at = (slot % per_page) as usize;
                let (owner, key) = layout.entry(bytes, at);
                if at >= rows || owner != table {
                    bail!(
                        Corrupt,
                        "{}, slot {slot}: the index says table {table}, the page has another row \
                         or none; restore from a copy, or open an earlier commit with step=",
                        self.pages.file_name()
                    );
                }
                each(SweptRow { table, key, place: slot, words: layout.row(bytes, at) })?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
