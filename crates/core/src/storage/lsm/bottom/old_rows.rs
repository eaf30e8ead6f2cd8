//! The rows of the partitions that a merge replaces, read a portion at a time.

use super::merge::Unread;
use super::order::Place;
use super::partition::Partitions;
use crate::error::Result;
use crate::storage::{PageAddress, PageLayout, PageReader};

/// The rows of partitions, one behind the other.
pub(super) struct OldRows {
    inputs: Partitions,
    reader: PageReader,
    /// The input being read.
    input: usize,
    /// The next row of it.
    row: u64,
    /// Rows of it whose pages are in `bytes`.
    portion_end: u64,
    /// The first page in `bytes`.
    first_page: u32,
    bytes: Vec<f32>,
    /// Pages of a portion.
    portion_pages: u32,
    /// Rows of a full portion.
    portion_rows: u64,
    page_bytes: usize,
    /// The place of the last row.
    before: Option<Place>,
}

impl OldRows {
    /// Rows of `inputs`, which are read `portion_bytes` of pages at a time, at least one page.
    pub(super) fn new(
        reader: PageReader,
        inputs: Partitions,
        layout: &PageLayout,
        portion_bytes: usize,
    ) -> Self {
        let portion_pages = (portion_bytes / layout.page_bytes).max(1);
        Self {
            inputs,
            reader,
            input: 0,
            row: 0,
            portion_end: 0,
            first_page: 1,
            bytes: Vec::new(),
            portion_pages: portion_pages as u32,
            portion_rows: (portion_pages * layout.rows_per_page) as u64,
            page_bytes: layout.page_bytes,
            before: None,
        }
    }

    /// Rows of a full portion.
    pub(super) fn portion_rows(&self) -> u64 {
        self.portion_rows
    }

    /// Bytes of memory for pages.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() * 4
    }

    /// The partition that is being read, as what cannot be.
    pub(super) fn input(&self) -> Unread {
        let input = self.inputs.list().get(self.input);
        input.map_or(Unread::Changes, |input| Unread::Partition(input.facts().number))
    }

    /// True when no row is in memory.
    pub(super) fn is_spent(&self) -> bool {
        self.row == self.portion_end
    }

    /// Reads the next pages, unless there are none.
    pub(super) fn read_portion(&mut self) -> Result<()> {
        while let Some(input) = self.inputs.list().get(self.input) {
            let facts = input.facts();
            if self.row == facts.rows {
                self.input += 1;
                (self.row, self.portion_end) = (0, 0);
                continue;
            }
            let rows_per_page = input.layout().rows_per_page as u64;
            let first = 1 + (self.row / rows_per_page) as u32;
            let count = self.portion_pages.min(facts.pages + 1 - first);
            let file = self.input as u16;
            let pages: Vec<_> =
                (first..first + count).map(|page| PageAddress { file, page }).collect();
            self.bytes.resize(count as usize * self.page_bytes / 4, 0.0);
            let (bytes, page_bytes) = (&mut self.bytes, self.page_bytes);
            self.reader.read(&self.inputs, &pages, &mut |at, page| {
                let place = (at.page - first) as usize * page_bytes;
                let portion: &mut [u8] = bytemuck::cast_slice_mut(bytes);
                portion[place..place + page_bytes].copy_from_slice(page);
                Ok(())
            })?;
            self.first_page = first;
            self.portion_end = facts.rows.min(u64::from(first + count - 1) * rows_per_page);
            return Ok(());
        }
        Ok(())
    }

    /// The page of the next row, and which row of it that is.
    fn page(&self) -> (&[u8], usize) {
        let layout = self.inputs.list()[self.input].layout();
        let per_page = layout.rows_per_page as u64;
        let page = (self.row / per_page) as usize + 1 - self.first_page as usize;
        let bytes: &[u8] = bytemuck::cast_slice(&self.bytes);
        let page = &bytes[page * self.page_bytes..][..self.page_bytes];
        (page, (self.row % per_page) as usize)
    }

    /// Place and key of the next row in memory.
    pub(super) fn peek(&self) -> Result<Option<(Place, u64)>> {
        if self.is_spent() {
            return Ok(None);
        }
        let input = &self.inputs.list()[self.input];
        let (place, key) = input.entry(self.row, self.page().0)?;
        if self.before.is_some_and(|before| before >= place) || !input.facts().range.contains(place)
        {
            return Err(input.out_of_order(self.row));
        }
        Ok(Some((place, key)))
    }

    /// Values and state of the next row in memory.
    pub(super) fn row(&self) -> &[f32] {
        let (page, slot) = self.page();
        self.inputs.list()[self.input].layout().row(page, slot)
    }

    /// Goes on behind the next row, whose place is `place`.
    pub(super) fn pass(&mut self, place: Place) {
        self.before = Some(place);
        self.row += 1;
    }
}
