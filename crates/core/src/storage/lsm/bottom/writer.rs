//! Writes a partition file: rows in order go into pages, pages into large buffers, which the device
//! works on while the next one fills.
//!
//! The header is written last, when pages and footer are durable. Until then, and after any
//! failure, the file is not a partition to anyone who opens it.

use super::fences::{EXTRA_BITS, FenceBuilder};
use super::file::{Facts, Section, Shape, encode_footer, encode_header, file_name, header_sum};
use super::filter::FilterBuilder;
use super::order::{LastOrder, Orders, Place, PlaceRange, TableOrder};
use crate::error::{Result, bail};
use crate::io::{BufferId, File, Medium, OpenMode, Queue, blocks_of};
use crate::storage::PageLayout;
use std::sync::Arc;

/// Room on disk is taken for so many buffers at once.
const BUFFERS_AHEAD: u64 = 8;

/// Room on disk that was taken before, for the files of a merge.
pub trait Room: Send + Sync {
    /// Gives `bytes` of it back to the device, for a file that is about to take them. `Full` where
    /// there are not so many.
    fn draw(&self, bytes: u64) -> Result<()>;

    /// Makes durable what was given back.
    fn sync(&self) -> Result<()>;
}

/// The buffer that is being filled.
#[derive(Debug)]
struct Chunk {
    buffer: BufferId,
    first_page: u32,
    /// Sealed pages.
    pages: u32,
    /// Rows of the page behind them.
    rows: usize,
}

/// The section that is being written.
struct Open {
    place: Place,
    first_row: u64,
    fences: FenceBuilder,
    filter: Option<FilterBuilder>,
}

/// A partition file that was written.
pub struct Finished {
    /// What it is.
    pub facts: Facts,
    /// The queue that its writer had.
    pub queue: Box<dyn Queue>,
}

/// A partition file that is being written.
pub struct PartitionWriter {
    shape: Shape,
    number: u32,
    merge: u64,
    first: Place,
    file: Arc<dyn File>,
    layout: PageLayout,
    queue: Box<dyn Queue>,
    /// Where its room on disk comes from, if not from the device.
    room: Option<Arc<dyn Room>>,
    chunk: Option<Chunk>,
    sections: Vec<Section>,
    open: Option<Open>,
    last_order: LastOrder,
    rows: u64,
    /// Bytes of the file that have room on disk.
    reserved: u64,
    /// At most so many rows come.
    most_rows: u64,
    /// Room is taken ahead of the rows up to here.
    most_ahead: u64,
    /// A write failed: what of the file is right, nobody knows.
    failed: bool,
}

impl PartitionWriter {
    /// Creates the file of partition `number`, which must not exist, for rows from `first` on. The
    /// buffers of `queue` are what is written at once.
    pub fn create(
        medium: &dyn Medium,
        shape: &Shape,
        number: u32,
        merge: u64,
        first: Place,
        queue: Box<dyn Queue>,
    ) -> Result<Self> {
        let layout = shape.layout(number)?;
        assert!(queue.buffer_bytes() >= shape.page_bytes, "a buffer holds at least one page");
        let file = medium.open(&file_name(shape.class, number), OpenMode::CreateNew)?;
        Ok(Self {
            shape: *shape,
            number,
            merge,
            first,
            file,
            layout,
            queue,
            room: None,
            chunk: None,
            sections: Vec::new(),
            open: None,
            last_order: LastOrder::default(),
            rows: 0,
            reserved: 0,
            most_rows: u64::MAX,
            most_ahead: u64::MAX,
            failed: false,
        })
    }

    /// All that it takes of the disk is drawn from `room`.
    pub fn draw_from(&mut self, room: Option<Arc<dyn Room>>) {
        self.room = room;
    }

    /// At most so many rows will come: no room on disk is taken ahead of them for more.
    pub fn expect_rows(&mut self, rows: u64) {
        self.most_rows = rows;
        let pages = 1 + rows.div_ceil(self.layout.rows_per_page as u64);
        self.most_ahead = pages.saturating_mul(self.layout.page_bytes as u64);
    }

    /// Rows added so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// All memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let done: usize = self.sections.iter().map(Section::memory_bytes).sum();
        let open = self.open.as_ref().map_or(0, Open::memory_bytes);
        size_of::<Self>() + self.queue.memory_bytes() + done + open
    }

    /// Adds the next row. May wait for a buffer to be written. `Full` when there is no room on
    /// disk; after any error the file can only be abandoned, all else is `Poisoned`.
    ///
    /// # Panics
    /// When the row does not follow the one before, or its place is not that of its key.
    pub fn push(&mut self, orders: &Orders, place: Place, key: u64, row: &[f32]) -> Result<()> {
        self.check_sound()?;
        let expected = self.last_order.place(orders, place.table, place.rank, key)?;
        assert!(expected == place && place >= self.first, "{place:?} is no place of key {key:#x}");
        let begins_page = self.rows.is_multiple_of(self.layout.rows_per_page as u64);
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
                // A dense table has its rows early, and its keys lie too close for few bits.
                let is_mixed = orders.known(place.table)? != TableOrder::ByKey;
                let filter = (self.shape.filters && is_mixed)
                    .then(|| FilterBuilder::new(place.position, self.most_rows - self.rows));
                *open = Some(Open { place, first_row: self.rows, fences, filter });
            }
        }
        let put = self.put(place.table, key, row);
        self.failed = put.is_err();
        put
    }

    fn check_sound(&self) -> Result<()> {
        if self.failed {
            bail!(Poisoned, "{} goes on after an error; abandon it", self.file.name());
        }
        Ok(())
    }

    fn put(&mut self, table: u16, key: u64, row: &[f32]) -> Result<()> {
        let page_bytes = self.layout.page_bytes;
        let chunk = match &mut self.chunk {
            Some(chunk) => chunk,
            None => {
                let buffer = acquire(&mut *self.queue)?;
                let first_page = 1 + (self.rows / self.layout.rows_per_page as u64) as u32;
                self.chunk.insert(Chunk { buffer, first_page, pages: 0, rows: 0 })
            }
        };
        let at = chunk.pages as usize * page_bytes;
        let page = &mut self.queue.buffer_mut(chunk.buffer)[at..at + page_bytes];
        self.layout.put(page, chunk.rows, table, key, row);
        chunk.rows += 1;
        self.rows += 1;
        if chunk.rows == self.layout.rows_per_page {
            self.seal_page();
            let full = (self.queue.buffer_bytes() / page_bytes) as u32;
            if self.chunk.as_ref().is_some_and(|chunk| chunk.pages == full) {
                self.send()?;
            }
        }
        Ok(())
    }

    fn seal_page(&mut self) {
        let Some(chunk) = self.chunk.as_mut().filter(|chunk| chunk.rows > 0) else { return };
        let at = chunk.pages as usize * self.layout.page_bytes;
        let page = &mut self.queue.buffer_mut(chunk.buffer)[at..at + self.layout.page_bytes];
        self.layout.seal(page, chunk.first_page + chunk.pages, chunk.rows, self.merge);
        chunk.pages += 1;
        chunk.rows = 0;
    }

    /// Hands the buffer to the device.
    fn send(&mut self) -> Result<()> {
        let Some(chunk) = self.chunk.take() else { return Ok(()) };
        let bytes = chunk.pages as usize * self.layout.page_bytes;
        let offset = u64::from(chunk.first_page) * self.layout.page_bytes as u64;
        let end = offset + bytes as u64;
        let ahead = BUFFERS_AHEAD * self.queue.buffer_bytes() as u64;
        self.reserve(end, ahead.min(self.most_ahead.saturating_sub(end)))?;
        while self.queue.in_flight() >= self.queue.depth() {
            reap(&mut *self.queue)?;
        }
        self.queue.write(&self.file, offset, bytes, chunk.buffer, 0)?;
        self.queue.submit()
    }

    /// Takes room on disk up to `end`, and `ahead` bytes more where they can be had.
    fn reserve(&mut self, end: u64, ahead: u64) -> Result<()> {
        if end <= self.reserved {
            return Ok(());
        }
        let more = end - self.reserved;
        if let Some(room) = &self.room {
            room.draw(blocks_of(end + ahead) - blocks_of(self.reserved))?;
        }
        let taken = match self.file.allocate(self.reserved, more + ahead) {
            Ok(()) => more + ahead,
            Err(_) if ahead > 0 => {
                self.file.allocate(self.reserved, more)?;
                more
            }
            Err(error) => return Err(error),
        };
        self.reserved += taken;
        Ok(())
    }

    /// Ends the file, which has the rows of all places up to `last`, and makes it durable with its
    /// name.
    pub fn finish(mut self, medium: &dyn Medium, orders: &Orders, last: Place) -> Result<Finished> {
        self.check_sound()?;
        if let Some(open) = self.open.take() {
            let section = open.finish(orders, self.rows)?;
            let position = *section.fences.ends().end();
            let end = Place { table: section.table, rank: section.rank, position };
            assert!(end <= last, "a row at {end:?} lies behind the end of its partition, {last:?}");
            self.sections.push(section);
        }
        self.seal_page();
        self.send()?;
        while self.queue.in_flight() > 0 {
            reap(&mut *self.queue)?;
        }
        let page_bytes = self.layout.page_bytes as u64;
        let pages = self.rows.div_ceil(self.layout.rows_per_page as u64);
        let footer = encode_footer(&self.sections, self.shape.seed);
        let footer_at = (pages + 1) * page_bytes;
        let mut facts = Facts {
            number: self.number,
            merge: self.merge,
            range: PlaceRange { first: self.first, last },
            rows: self.rows,
            pages: pages as u32,
            bytes: footer_at + (footer.len() as u64).next_multiple_of(page_bytes),
            header_sum: 0,
        };
        self.reserve(facts.bytes, 0)?;
        if self.reserved > facts.bytes {
            self.file.set_len(facts.bytes)?;
        }
        let mut padded = footer.clone();
        padded.resize((facts.bytes - footer_at) as usize, 0);
        self.file.write_at(&padded, footer_at)?;
        self.file.sync()?;
        let header = encode_header(&self.shape, &facts, &self.sections, &footer);
        facts.header_sum = header_sum(&header);
        self.file.write_at(&header, 0)?;
        self.file.sync()?;
        medium.sync_dir()?;
        Ok(Finished { facts, queue: self.queue })
    }

    /// Gives the file up and removes it.
    pub fn abandon(self, medium: &dyn Medium) -> Result<()> {
        let name = file_name(self.shape.class, self.number);
        // What is in flight ends first.
        drop(self);
        medium.remove(&name)
    }
}

impl Open {
    fn memory_bytes(&self) -> usize {
        let filter = self.filter.as_ref().map_or(0, FilterBuilder::memory_bytes);
        self.fences.memory_bytes() + filter
    }

    fn finish(self, orders: &Orders, rows: u64) -> Result<Section> {
        let Place { table, rank, .. } = self.place;
        let order = orders.known(table)?;
        let (first_row, fences) = (self.first_row, self.fences.finish());
        let filter = self.filter.map(FilterBuilder::finish);
        Ok(Section { table, rank, order, first_row, rows: rows - first_row, fences, filter })
    }
}

/// A free buffer, after waiting for one where all are being written.
fn acquire(queue: &mut dyn Queue) -> Result<BufferId> {
    loop {
        if let Some(buffer) = queue.acquire() {
            return Ok(buffer);
        }
        reap(queue)?;
    }
}

/// Waits for a write and releases its buffer.
fn reap(queue: &mut dyn Queue) -> Result<()> {
    let mut done = Vec::new();
    let waited = queue.wait(1, &mut done);
    let mut ended = Ok(());
    for completion in done {
        queue.release(completion.buffer);
        ended = ended.and(completion.result);
    }
    waited.and(ended)
}
