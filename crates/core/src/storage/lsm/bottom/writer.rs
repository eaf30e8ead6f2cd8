//! Writes the file of a sorted partition: rows in order, with the fences of their pages.

use super::fences::{EXTRA_BITS, FenceBuilder};
use super::file::{Section, Shape, encode_footer, version_of};
use super::filter::FilterBuilder;
use super::order::{LastOrder, Orders, Place, PlaceRange, TableOrder};
use super::page_writer::{Ending, Finished, PageWriter, Room};
use crate::error::Result;
use crate::io::{Medium, Queue};
use std::sync::Arc;

/// The section that is being written.
struct Open {
    place: Place,
    first_row: u64,
    fences: FenceBuilder,
    filter: Option<FilterBuilder>,
}

/// A partition file that is being written.
pub(crate) struct PartitionWriter {
    shape: Shape,
    first: Place,
    pages: PageWriter,
    sections: Vec<Section>,
    open: Option<Open>,
    last_order: LastOrder,
    rows: u64,
    /// Upper bound of the number of rows.
    most_rows: u64,
}

impl PartitionWriter {
    /// Creates the file of partition `number`, which must not exist, for rows from `first` on. The
    /// buffers of `queue` are what is written at once.
    pub(crate) fn create(
        medium: &dyn Medium,
        shape: &Shape,
        number: u32,
        merge: u64,
        first: Place,
        queue: Box<dyn Queue>,
    ) -> Result<Self> {
        Ok(Self {
            shape: *shape,
            first,
            pages: PageWriter::create(medium, shape, number, merge, queue)?,
            sections: Vec::new(),
            open: None,
            last_order: LastOrder::default(),
            rows: 0,
            most_rows: u64::MAX,
        })
    }

    /// All that it takes of the disk is drawn from `room`.
    pub(crate) fn draw_from(&mut self, room: Option<Arc<dyn Room>>) {
        self.pages.draw_from(room);
    }

    /// Bounds the number of rows to come: no room on disk is taken ahead of them for more.
    pub(crate) fn expect_rows(&mut self, rows: u64) {
        self.most_rows = rows;
        self.pages.expect_pages(rows.div_ceil(self.pages.layout().rows_per_page as u64));
    }

    /// Rows added so far.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// All memory that it takes.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        let done: usize = self.sections.iter().map(Section::memory_bytes).sum();
        let open = self.open.as_ref().map_or(0, Open::memory_bytes);
        size_of::<Self>() + self.pages.heap_bytes() + done + open
    }

    /// Adds the next row. May wait for a buffer to be written. `Full` when there is no room on
    /// disk; after any error the file can only be abandoned, all else is `Poisoned`.
    ///
    /// # Panics
    /// When the row does not follow the one before, or its place is not that of its key.
    pub(crate) fn push(
        &mut self,
        orders: &Orders,
        place: Place,
        key: u64,
        row: &[f32],
    ) -> Result<()> {
        self.pages.check_sound()?;
        let expected = self.last_order.place(orders, place.table, place.rank, key)?;
        assert!(expected == place && place >= self.first, "{place:?} is no place of key {key:#x}");
        let begins_page = self.pages.rows_in_page() == 0;
        match &mut self.open {
            Some(open) if (open.place.table, open.place.rank) == (place.table, place.rank) => {
                open.fences.push(place.position, begins_page);
                if let Some(filter) = &mut open.filter {
                    filter.push(place.position);
                }
            }
            open => {
                if let Some(before) = open.take() {
                    assert!(before.place < place, "{place:?} follows {:?}", before.place);
                    self.sections.push(before.finish(orders, self.rows)?);
                }
                let fences = FenceBuilder::new(EXTRA_BITS, place.position);
                let new = || FilterBuilder::new(place.position, self.most_rows - self.rows);
                let filter = self.shape.filters.then(new);
                *open = Some(Open { place, first_row: self.rows, fences, filter });
            }
        }
        self.pages.put(place.table, key, row)?;
        self.rows += 1;
        Ok(())
    }

    /// Ends the file, which has the rows of all places up to `last`, and makes it durable with its
    /// name.
    pub(crate) fn finish(
        mut self,
        medium: &dyn Medium,
        orders: &Orders,
        last: Place,
    ) -> Result<Finished> {
        self.pages.check_sound()?;
        if let Some(open) = self.open.take() {
            let section = open.finish(orders, self.rows)?;
            let position = *section.fences.ends().end();
            let end = Place { table: section.table, rank: section.rank, position };
            assert!(end <= last, "a row at {end:?} lies behind the end of its partition, {last:?}");
            self.sections.push(section);
        }
        let footer = encode_footer(&self.sections, self.shape.seed);
        let ending = Ending {
            version: version_of(&self.sections),
            range: PlaceRange { first: self.first, last },
            rows: self.rows,
            sections: self.sections.len(),
            footer_bytes: footer.len() as u64,
        };
        self.pages.finish(medium, &ending, |into| into.push(&footer))
    }

    /// Gives the file up and removes it.
    pub(crate) fn abandon(self, medium: &dyn Medium) -> Result<()> {
        self.pages.abandon(medium)
    }
}

impl Open {
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        let filter = self.filter.as_ref().map_or(0, FilterBuilder::memory_bytes);
        self.fences.memory_bytes() + filter
    }

    fn finish(self, orders: &Orders, rows: u64) -> Result<Section> {
        let Place { table, rank, .. } = self.place;
        let order = orders.known(table)?;
        let (first_row, fences) = (self.first_row, self.fences.finish());
        let (first, last) = fences.ends().into_inner();
        // Between them every position has a row.
        let is_whole = last - first == rows - first_row - 1;
        let filter = self.filter.filter(|_| !is_whole || order != TableOrder::ByKey);
        let filter = filter.map(FilterBuilder::finish);
        Ok(Section { table, rank, order, first_row, rows: rows - first_row, fences, filter })
    }
}
