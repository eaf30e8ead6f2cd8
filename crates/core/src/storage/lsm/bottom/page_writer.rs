//! Writes the pages of a partition file, its footer and its header: rows go into pages, pages into
//! large buffers, which the device works on while the next one fills.
//!
//! The header is written last, when pages and footer are durable. Until then, and after any
//! failure, the file cannot be opened as a partition.

use super::file::{Facts, Shape, encode_header, file_name, header_sum};
use super::order::PlaceRange;
use crate::error::{Result, bail};
use crate::io::{BufferId, File, Medium, OpenMode, Queue, blocks_of};
use crate::storage::PageLayout;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Room on disk is taken for so many buffers at once.
const BUFFERS_AHEAD: u64 = 8;
/// Bytes of a footer that are written at once.
const FOOTER_PIECE_BYTES: usize = 1 << 20;

/// Room on disk that was taken before, for the files of a merge.
pub(crate) trait Room: Send + Sync {
    /// Gives `bytes` of it back to the device, for a file that is about to take them. `Full` where
    /// there are not so many.
    fn draw(&self, bytes: u64) -> Result<()>;

    /// Makes durable what was given back.
    fn sync(&self) -> Result<()>;
}

/// A partition file that was written.
pub(crate) struct Finished {
    /// Its facts.
    pub facts: Facts,
    /// The queue that its writer had.
    pub queue: Box<dyn Queue>,
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

/// The header's description of a file, apart from its pages.
pub(super) struct Ending {
    pub(super) version: u8,
    pub(super) range: PlaceRange,
    pub(super) rows: u64,
    pub(super) sections: usize,
    pub(super) footer_bytes: u64,
}

/// A partition file whose pages are being written.
pub(super) struct PageWriter {
    shape: Shape,
    number: u32,
    merge: u64,
    file: Arc<dyn File>,
    layout: PageLayout,
    queue: Box<dyn Queue>,
    /// Source of its room on disk, if that is not the device.
    room: Option<Arc<dyn Room>>,
    chunk: Option<Chunk>,
    /// Sealed pages.
    pages: u32,
    /// Bytes of the file that have room on disk.
    reserved: u64,
    /// Room is taken ahead of the rows up to here.
    most_ahead: u64,
    /// A write failed: the content of the file is unknown.
    failed: bool,
}

impl PageWriter {
    /// Creates the file of partition `number`, which must not exist. The buffers of `queue` are
    /// what is written at once.
    pub(super) fn create(
        medium: &dyn Medium,
        shape: &Shape,
        number: u32,
        merge: u64,
        queue: Box<dyn Queue>,
    ) -> Result<Self> {
        let layout = shape.layout(number)?;
        assert!(queue.buffer_bytes() >= shape.page_bytes, "a buffer holds at least one page");
        let file = medium.open(&file_name(shape.class, number), OpenMode::CreateNew)?;
        Ok(Self {
            shape: *shape,
            number,
            merge,
            file,
            layout,
            queue,
            room: None,
            chunk: None,
            pages: 0,
            reserved: 0,
            most_ahead: u64::MAX,
            failed: false,
        })
    }

    /// All that it takes of the disk is drawn from `room`.
    pub(super) fn draw_from(&mut self, room: Option<Arc<dyn Room>>) {
        self.room = room;
    }

    /// Bounds the number of pages to come: no room on disk is taken ahead of them for more.
    pub(super) fn expect_pages(&mut self, pages: u64) {
        self.most_ahead = (1 + pages).saturating_mul(self.layout.page_bytes as u64);
    }

    /// The name of its file.
    pub(super) fn name(&self) -> &str {
        self.file.name()
    }

    /// The layout of its pages.
    pub(super) fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// The number of the page that the next row comes to.
    pub(super) fn page(&self) -> u32 {
        1 + self.pages
    }

    /// Rows of that page so far.
    pub(super) fn rows_in_page(&self) -> usize {
        self.chunk.as_ref().map_or(0, |chunk| chunk.rows)
    }

    /// Memory beside the value itself.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.queue.memory_bytes()
    }

    /// `Poisoned` after an error.
    pub(super) fn check_sound(&self) -> Result<()> {
        if self.failed {
            bail!(Poisoned, "{} continues after an error; abandon it", self.file.name());
        }
        Ok(())
    }

    /// Notes that the file can only be abandoned, if `done` is an error.
    pub(super) fn note_failure<T>(&mut self, done: Result<T>) -> Result<T> {
        self.failed |= done.is_err();
        done
    }

    /// Adds a row to the page. May wait for a buffer to be written. `Full` when there is no room
    /// on disk; after any error all else is `Poisoned`.
    pub(super) fn put(&mut self, table: u16, key: u64, row: &[f32]) -> Result<()> {
        let put = self.put_row(table, key, row);
        self.note_failure(put)
    }

    fn put_row(&mut self, table: u16, key: u64, row: &[f32]) -> Result<()> {
        let page_bytes = self.layout.page_bytes;
        let chunk = match &mut self.chunk {
            Some(chunk) => chunk,
            None => {
                let buffer = acquire(&mut *self.queue)?;
                let first_page = 1 + self.pages;
                self.chunk.insert(Chunk { buffer, first_page, pages: 0, rows: 0 })
            }
        };
        let at = chunk.pages as usize * page_bytes;
        let page = &mut self.queue.buffer_mut(chunk.buffer)[at..at + page_bytes];
        self.layout.put(page, chunk.rows, table, key, row);
        chunk.rows += 1;
        if chunk.rows == self.layout.rows_per_page {
            return self.seal_page();
        }
        Ok(())
    }

    /// Ends the page that has rows and is not full, if there is one.
    pub(super) fn end_page(&mut self) -> Result<()> {
        let sealed = self.seal_page();
        self.note_failure(sealed)
    }

    fn seal_page(&mut self) -> Result<()> {
        let Some(chunk) = self.chunk.as_mut().filter(|chunk| chunk.rows > 0) else {
            return Ok(());
        };
        let page_bytes = self.layout.page_bytes;
        let at = chunk.pages as usize * page_bytes;
        let page = &mut self.queue.buffer_mut(chunk.buffer)[at..at + page_bytes];
        self.layout.seal(page, chunk.first_page + chunk.pages, chunk.rows, self.merge);
        chunk.pages += 1;
        chunk.rows = 0;
        self.pages += 1;
        if chunk.pages as usize == self.queue.buffer_bytes() / page_bytes {
            self.send()?;
        }
        Ok(())
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

    /// Ends the file and makes it durable with its name. `write_footer` writes as many bytes as
    /// `ending` says.
    pub(super) fn finish(
        mut self,
        medium: &dyn Medium,
        ending: &Ending,
        write_footer: impl FnOnce(&mut FooterWriter) -> Result<()>,
    ) -> Result<Finished> {
        self.check_sound()?;
        self.seal_page()?;
        self.send()?;
        while self.queue.in_flight() > 0 {
            reap(&mut *self.queue)?;
        }
        let page_bytes = self.layout.page_bytes as u64;
        let footer_at = (u64::from(self.pages) + 1) * page_bytes;
        let mut facts = Facts {
            number: self.number,
            merge: self.merge,
            range: ending.range,
            rows: ending.rows,
            pages: self.pages,
            bytes: footer_at + ending.footer_bytes.next_multiple_of(page_bytes),
            header_sum: 0,
        };
        self.reserve(facts.bytes, 0)?;
        if self.reserved > facts.bytes {
            self.file.set_len(facts.bytes)?;
        }
        let mut footer = FooterWriter::new(&self.file, footer_at, self.shape.seed);
        write_footer(&mut footer)?;
        let footer_sum = footer.finish(ending.footer_bytes, facts.bytes)?;
        self.file.sync()?;
        let header = encode_header(&self.shape, &facts, ending, footer_sum);
        facts.header_sum = header_sum(&header);
        self.file.write_at(&header, 0)?;
        self.file.sync()?;
        medium.sync_dir()?;
        Ok(Finished { facts, queue: self.queue })
    }

    /// Gives the file up and removes it.
    pub(super) fn abandon(self, medium: &dyn Medium) -> Result<()> {
        let name = file_name(self.shape.class, self.number);
        // Requests in flight end first.
        drop(self);
        medium.remove(&name)
    }
}

/// Writes a footer piece by piece.
pub(super) struct FooterWriter {
    file: Arc<dyn File>,
    /// Offset of the next piece.
    at: u64,
    begins: u64,
    piece: Vec<u8>,
    sum: Xxh3,
}

impl FooterWriter {
    fn new(file: &Arc<dyn File>, at: u64, seed: u64) -> Self {
        let (file, sum) = (Arc::clone(file), Xxh3::with_seed(seed));
        Self { file, at, begins: at, piece: Vec::new(), sum }
    }

    /// Appends bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.update(bytes);
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= FOOTER_PIECE_BYTES { self.write_piece() } else { Ok(()) }
    }

    fn write_piece(&mut self) -> Result<()> {
        if !self.piece.is_empty() {
            self.file.write_at(&self.piece, self.at)?;
            self.at += self.piece.len() as u64;
            self.piece.clear();
        }
        Ok(())
    }

    /// Fills the file with zeros up to `end` and returns the checksum of the footer.
    fn finish(mut self, bytes: u64, end: u64) -> Result<u64> {
        let written = self.at + self.piece.len() as u64;
        assert_eq!(written - self.begins, bytes, "bytes of the footer of {}", self.file.name());
        self.piece.resize((end - self.at) as usize, 0);
        self.write_piece()?;
        Ok(self.sum.digest())
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
