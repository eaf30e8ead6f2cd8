//! Fills segments with pages: rows go into chunks of pages, chunks are written in the background.
//!
//! There are several open ends, one for each [`Stream`], so that rows that will be outdated soon do
//! not share a segment with rows that will not; and, with a schedule, one for each of the stretches
//! to come (`staging.rs`). One without room or buffer takes another's: what is free can be written
//! to the last page whatever the mixture.
//!
//! A page that is not yet durable is found here by `page`, so a read never asks the device for
//! bytes that are still in memory. Waiting happens only when every chunk buffer is in flight.
//!
//! After a write that failed nothing is written any more: what of the file is right, nobody knows.
//! The pages that it should have brought stay in memory, where `page` finds them.

use super::segments::{SegmentId, Segments};
use super::staging::{Staging, StretchPoints};
use crate::config::Stretch;
use crate::error::{Result, bail};
use crate::io::{BufferId, Completion, File, Queue};
use crate::planted::{self, Bug};
use crate::storage::PageLayout;
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug)]
struct Chunk {
    /// The buffer that is filled; `None` of a page that is filled for a stretch.
    buffer: Option<BufferId>,
    first_page: u32,
    /// Sealed pages.
    pages: u32,
    capacity: u32,
    /// Rows of the page being filled.
    rows: usize,
}

/// The append point of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Flushed rows; when they are told apart, those that were rewritten soon the last time.
    Flushed = 0,
    /// Flushed rows whose last copy lived long.
    Cold = 1,
    /// Rows that cleaning moves: those that are still live then.
    Moved = 2,
}

impl Stream {
    /// Number of streams.
    pub(crate) const COUNT: usize = 3;
}

/// The number by which segments are known that were filled for stretches.
pub(super) const FOR_STRETCH: u8 = Stream::COUNT as u8;

/// The next page of the segments being filled: segment and page, by append point.
pub(crate) type OpenSegments = Vec<Option<(SegmentId, u32)>>;

#[derive(Debug, Default)]
struct AppendPoint {
    open: Option<Chunk>,
    /// The segment being filled and its next page that belongs to no chunk yet.
    segment: Option<(SegmentId, u32)>,
}

/// The open ends of a row class's log.
pub(crate) struct Writer {
    file: Arc<dyn File>,
    layout: PageLayout,
    queue: Box<dyn Queue>,
    chunk_pages: u32,
    /// The append points of the streams, then those of stretches.
    points: Vec<AppendPoint>,
    staging: Option<Staging>,
    in_flight: Vec<(BufferId, u32, u32)>,
    /// Chunks whose write failed: buffer, first page, pages.
    lost: Vec<(BufferId, u32, u32)>,
    /// Why nothing is written any more.
    failed: Option<String>,
    done: Vec<Completion>,
    sequence: u64,
    pages_written: u64,
    /// Slots of sealed pages that no row took, until somebody asks.
    unfilled: u64,
    /// Rows that lie with those of another stretch, for want of a segment.
    #[cfg(test)]
    strayed: u64,
}

impl Writer {
    /// A writer whose queue has buffers of whole pages. `sequence` is the last one used.
    pub(crate) fn new(
        file: Arc<dyn File>,
        layout: PageLayout,
        queue: Box<dyn Queue>,
        sequence: u64,
    ) -> Self {
        let chunk_pages = (queue.buffer_bytes() / layout.page_bytes) as u32;
        assert!(chunk_pages > 0, "a chunk holds at least one page");
        Self {
            file,
            layout,
            queue,
            chunk_pages,
            points: (0..Stream::COUNT).map(|_| AppendPoint::default()).collect(),
            staging: None,
            in_flight: Vec::new(),
            lost: Vec::new(),
            failed: None,
            done: Vec::new(),
            sequence,
            pages_written: 0,
            unfilled: 0,
            #[cfg(test)]
            strayed: 0,
        }
    }

    /// Goes on where another writer of the same log finished.
    pub(crate) fn continue_at(&mut self, points: OpenSegments, sequence: u64) {
        self.sequence = sequence;
        assert_eq!(points.len(), self.points.len(), "stretches end before a writer does");
        for (point, segment) in self.points.iter_mut().zip(points) {
            assert!(point.open.is_none(), "a writer continues before it writes");
            point.segment = segment;
        }
    }

    /// Allocated bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.queue.memory_bytes()
    }

    /// Sequence number of the newest page.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Pages handed to the device so far.
    pub(crate) fn pages_written(&self) -> u64 {
        self.pages_written
    }

    /// Pages that can still be begun in the segments being filled, open pages not counted.
    pub(crate) fn pages_left(&self, segments: &Segments) -> u64 {
        Self::left_of(&self.points, segments)
    }

    /// The same, of segments that are not filled for stretches.
    pub(super) fn pages_left_of_streams(&self, segments: &Segments) -> u64 {
        Self::left_of(&self.points[..Stream::COUNT], segments)
    }

    fn left_of(points: &[AppendPoint], segments: &Segments) -> u64 {
        let left = |point: &AppendPoint| {
            let chunk =
                point.open.as_ref().map_or(0, |c| c.capacity - c.pages - u32::from(c.rows > 0));
            let segment = point
                .segment
                .map_or(0, |(id, next)| segments.first_page(id) + segments.pages_of(id) - next);
            u64::from(chunk) + u64::from(segment)
        };
        points.iter().map(left).sum()
    }

    /// The bytes of a page that is still in memory, perhaps not sealed yet.
    pub(crate) fn page(&self, page: u32) -> Option<&[u8]> {
        let within = |first: u32, pages: u32| (first..first + pages).contains(&page);
        if let Some(staging) = &self.staging
            && let Some(point) = staging.point_at(page)
            && !planted::is(Bug::StretchReadEarly)
        {
            return Some(staging.page(point));
        }
        let mut open = self.points[..Stream::COUNT].iter().filter_map(|point| point.open.as_ref());
        let begun = |c: &&Chunk| within(c.first_page, c.pages + u32::from(c.rows > 0));
        let (buffer, first) = match open.find(begun) {
            Some(c) => (c.buffer.expect("streams fill buffers"), c.first_page),
            None => {
                let mut sent = self.in_flight.iter().chain(&self.lost);
                let found = sent.find(|(_, first, pages)| within(*first, *pages));
                found.map(|(buffer, first, _)| (*buffer, *first))?
            }
        };
        let at = (page - first) as usize * self.layout.page_bytes;
        Some(&self.queue.buffer(buffer)[at..at + self.layout.page_bytes])
    }

    /// Rows that a page in memory holds, which is perhaps not sealed yet; behind them is garbage.
    pub(super) fn rows_in(&self, number: u32, page: &[u8]) -> usize {
        let mut open = self.points.iter().filter_map(|point| point.open.as_ref());
        let being_filled = open.find(|c| c.first_page + c.pages == number && c.rows > 0);
        being_filled.map_or_else(|| self.layout.rows_in(page), |c| c.rows)
    }

    /// The pages that are still in memory.
    pub(super) fn pages_in_memory(&self) -> impl Iterator<Item = u32> {
        let open = self.points.iter().filter_map(|point| point.open.as_ref());
        let begun = open.map(|c| (c.first_page, c.pages + u32::from(c.rows > 0)));
        let sent = self.in_flight.iter().chain(&self.lost);
        begun.chain(sent.map(|(_, first, n)| (*first, *n))).flat_map(|(first, n)| first..first + n)
    }

    /// Adds a row behind the others of its stream, counts it and returns its slot. May wait for a
    /// chunk to be written.
    pub(crate) fn append(
        &mut self,
        segments: &mut Segments,
        stream: Stream,
        table: u16,
        key: u64,
        row: &[f32],
    ) -> Result<u32> {
        self.append_at(segments, stream as usize, (table, key), row)
    }

    /// As [`append`](Self::append), of a row that a stretch uses next; `None` where stretches have
    /// no append points.
    pub(super) fn append_for(
        &mut self,
        segments: &mut Segments,
        stretch: Stretch,
        row: (u16, u64),
        words: &[f32],
    ) -> Option<Result<u32>> {
        let point = self.staging.as_ref()?.point_of(stretch);
        Some(self.append_at(segments, point, row, words))
    }

    fn append_at(
        &mut self,
        segments: &mut Segments,
        wanted: usize,
        (table, key): (u16, u64),
        row: &[f32],
    ) -> Result<u32> {
        self.check_sound()?;
        let at_point = self.open_point(segments, wanted)?;
        #[cfg(test)]
        {
            self.strayed += u64::from(wanted >= Stream::COUNT && at_point != wanted);
        }
        let chunk = self.points[at_point].open.as_mut().expect("a chunk was opened above");
        let page = chunk.first_page + chunk.pages;
        let bytes = match (chunk.buffer, &mut self.staging) {
            (Some(buffer), _) => {
                let at = chunk.pages as usize * self.layout.page_bytes;
                &mut self.queue.buffer_mut(buffer)[at..at + self.layout.page_bytes]
            }
            (None, staging) => {
                let staging = staging.as_mut().expect("a chunk without a buffer is a stretch's");
                if chunk.rows == 0 {
                    staging.begin(page, at_point);
                }
                staging.page_mut(at_point)
            }
        };
        let slot = page * self.layout.rows_per_page as u32 + chunk.rows as u32;
        self.layout.put(bytes, chunk.rows, table, key, row);
        chunk.rows += 1;
        // Before its segment may be sealed: without this copy it could look empty, and be freed.
        segments.written(slot);
        if chunk.rows == self.layout.rows_per_page {
            self.seal_page(at_point);
            if self.points[at_point].open.as_ref().is_some_and(|c| c.pages == c.capacity) {
                self.send(segments, at_point)?;
            }
        }
        Ok(slot)
    }

    /// Whether no write has failed.
    pub(super) fn is_sound(&self) -> bool {
        self.failed.is_none()
    }

    /// Fails after a write that failed.
    fn check_sound(&self) -> Result<()> {
        if let Some(why) = &self.failed {
            bail!(
                Poisoned,
                "{} is not written to any more after an error ({why}); close the store and open it \
                 again: it will be at its last commit",
                self.file.name()
            );
        }
        Ok(())
    }

    /// Notes that nothing may be written any more when `result` is an error.
    fn sound<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.failed.get_or_insert_with(|| error.message().to_owned());
        }
        result
    }

    /// An append point with an open chunk: the one that is wanted, or, where there is no room or no
    /// buffer for it, another's.
    fn open_point(&mut self, segments: &mut Segments, wanted: usize) -> Result<usize> {
        if self.points[wanted].open.is_some() {
            return Ok(wanted);
        }
        // One buffer stays for what cleaning reads back.
        let streams = &self.points[..Stream::COUNT];
        let open = streams.iter().filter(|point| point.open.is_some()).count();
        let has_memory = self.is_staged(wanted) || open + 1 < self.queue.depth();
        if has_memory && self.open_chunk(segments, wanted)? {
            return Ok(wanted);
        }
        if let Some(other) = self.points.iter().position(|point| point.open.is_some()) {
            return Ok(other);
        }
        for other in 0..self.points.len() {
            if self.points[other].segment.is_some() && self.open_chunk(segments, other)? {
                return Ok(other);
            }
        }
        bail!(Full, "no free segment in {}; commit to release some", self.file.name())
    }

    /// Begins a chunk; false when there is no segment for it.
    fn open_chunk(&mut self, segments: &mut Segments, point: usize) -> Result<bool> {
        let (id, next) = match self.points[point].segment {
            Some(position) => position,
            None => match segments.open((point as u8).min(FOR_STRETCH), self.sequence) {
                Some(id) => (id, segments.first_page(id)),
                None => return Ok(false),
            },
        };
        self.points[point].segment = Some((id, next));
        let end = segments.first_page(id) + segments.pages_of(id);
        let most = if self.is_staged(point) { 1 } else { self.chunk_pages };
        let capacity = most.min(end - next);
        // A segment that was freed soon after it was written may still have a write under way, and
        // two writes of one page have no order.
        self.wait_for_writes(next..next + capacity)?;
        let buffer = if self.is_staged(point) { None } else { Some(self.acquire()?) };
        self.points[point] = AppendPoint {
            open: Some(Chunk { buffer, first_page: next, pages: 0, capacity, rows: 0 }),
            segment: Some((id, next + capacity)),
        };
        Ok(true)
    }

    /// Whether an append point is a stretch's, whose page is filled in memory of its own.
    fn is_staged(&self, point: usize) -> bool {
        point >= Stream::COUNT && self.staging.is_some()
    }

    /// A buffer, once there is one.
    fn acquire(&mut self) -> Result<BufferId> {
        loop {
            if let Some(buffer) = self.queue.acquire() {
                return Ok(buffer);
            }
            self.reap(1)?;
        }
    }

    fn seal_page(&mut self, point: usize) {
        let Some(chunk) = &mut self.points[point].open else { return };
        self.sequence += 1;
        self.unfilled += (self.layout.rows_per_page - chunk.rows) as u64;
        let bytes = match (chunk.buffer, &mut self.staging) {
            (Some(buffer), _) => {
                let at = chunk.pages as usize * self.layout.page_bytes;
                &mut self.queue.buffer_mut(buffer)[at..at + self.layout.page_bytes]
            }
            (None, Some(staging)) => staging.page_mut(point),
            (None, None) => return,
        };
        self.layout.seal(bytes, chunk.first_page + chunk.pages, chunk.rows, self.sequence);
        chunk.pages += 1;
        chunk.rows = 0;
    }

    /// Hands an open chunk to the device. Pages it did not fill go back to the segment.
    fn send(&mut self, segments: &mut Segments, point: usize) -> Result<()> {
        // It stays open, and its pages are found there, until there is room for it.
        while self.queue.in_flight() >= self.queue.depth() {
            self.reap(1)?;
        }
        let copied = if self.is_staged(point) { Some(self.acquire()?) } else { None };
        let Some(chunk) = self.points[point].open.take() else { return Ok(()) };
        let bytes = chunk.pages as usize * self.layout.page_bytes;
        let offset = u64::from(chunk.first_page) * self.layout.page_bytes as u64;
        if let (Some(buffer), Some(staging)) = (copied, &mut self.staging) {
            self.queue.buffer_mut(buffer)[..bytes].copy_from_slice(staging.page(point));
            staging.end(chunk.first_page);
        }
        let buffer = copied.or(chunk.buffer).expect("a chunk is in a buffer, or was copied to one");
        self.in_flight.push((buffer, chunk.first_page, chunk.pages));
        let asked = self.queue.write(&self.file, offset, bytes, buffer, buffer as u64);
        let asked = asked.and_then(|()| self.queue.submit());
        self.sound(asked)?;
        self.pages_written += u64::from(chunk.pages);
        if let Some((id, _)) = self.points[point].segment {
            let next = chunk.first_page + chunk.pages;
            if next == segments.first_page(id) + segments.pages_of(id) {
                segments.seal(id);
                self.points[point].segment = None;
            } else {
                self.points[point].segment = Some((id, next));
            }
        }
        self.reap(0)
    }

    fn reap(&mut self, at_least: usize) -> Result<()> {
        if at_least == 0 && self.in_flight.is_empty() {
            return Ok(());
        }
        self.check_sound()?;
        let mut done = std::mem::take(&mut self.done);
        let waited = self.queue.wait(at_least, &mut done);
        let mut ended = Ok(());
        for completion in done.drain(..) {
            ended = ended.and(self.end_write(completion));
        }
        self.done = done;
        self.sound(waited.and(ended))
    }

    /// A write has come to its end. One that failed keeps its buffer.
    fn end_write(&mut self, completion: Completion) -> Result<()> {
        let at = self.in_flight.iter().position(|(buffer, _, _)| *buffer == completion.buffer);
        let chunk = self.in_flight.swap_remove(at.expect("a write that ends was in flight"));
        match completion.result {
            Ok(()) => self.queue.release(completion.buffer),
            Err(_) => self.lost.push(chunk),
        }
        self.sound(completion.result)
    }

    /// Waits until no write of these pages is in flight.
    pub(super) fn wait_for_writes(&mut self, pages: Range<u32>) -> Result<()> {
        while self
            .in_flight
            .iter()
            .any(|(_, first, n)| *first < pages.end && pages.start < first + n)
        {
            self.reap(1)?;
        }
        Ok(())
    }

    /// Seals the open pages, writes the open chunks and waits until the device has everything.
    /// Returns where the segments being filled go on. Nothing is durable before a sync.
    pub(crate) fn finish(&mut self, segments: &mut Segments) -> Result<OpenSegments> {
        self.check_sound()?;
        for point in 0..self.points.len() {
            if self.points[point].open.as_ref().is_some_and(|c| c.rows > 0) {
                self.seal_page(point);
            }
            if self.points[point].open.as_ref().is_some_and(|c| c.pages > 0) {
                self.send(segments, point)?;
            } else if let Some(chunk) = self.points[point].open.take() {
                if let Some(buffer) = chunk.buffer {
                    self.queue.release(buffer);
                }
                let segment = &mut self.points[point].segment;
                *segment = segment.map(|(id, _)| (id, chunk.first_page));
            }
        }
        while !self.in_flight.is_empty() {
            self.reap(1)?;
        }
        Ok(self.points.iter().map(|point| point.segment).collect())
    }

    /// Append points, those of stretches among them.
    pub(super) fn points(&self) -> usize {
        self.points.len()
    }

    /// The append points of stretches, where there are some.
    pub(super) fn stretch_points(&self) -> Option<StretchPoints> {
        self.staging.as_ref().map(Staging::points)
    }

    /// Rows of stretches that went to the pages of another one, or of a stream.
    #[cfg(test)]
    pub(crate) fn strayed(&self) -> u64 {
        self.strayed
    }

    /// Bytes that they take.
    pub(super) fn staging_bytes(&self) -> u64 {
        self.staging.as_ref().map_or(0, Staging::memory_bytes)
    }

    /// Gives stretches append points. There are none.
    pub(super) fn open_stretches(&mut self, points: StretchPoints) {
        assert!(self.staging.is_none(), "stretches have append points already");
        self.staging = Some(Staging::new(points, self.layout.page_bytes));
        let all = Stream::COUNT + points.count as usize;
        self.points.resize_with(all, AppendPoint::default);
    }

    /// Takes the append points of stretches back, whose pages are finished, and ends the segments
    /// that were filled for them: what is left of these belongs to no page.
    pub(super) fn close_stretches(&mut self, segments: &mut Segments) {
        for point in self.points.drain(Stream::COUNT..) {
            assert!(point.open.is_none(), "a page of a stretch is not finished");
            if let Some((id, next)) = point.segment {
                let left = segments.first_page(id) + segments.pages_of(id) - next;
                self.unfilled += u64::from(left) * self.layout.rows_per_page as u64;
                segments.seal(id);
            }
        }
        self.staging = None;
    }

    /// Reads `pages` neighbouring pages, at most one chunk, into `bytes`, waiting for them. They
    /// are not verified yet. Used by cleaning, which runs under the class lock.
    pub(crate) fn read_back(
        &mut self,
        first_page: u32,
        pages: u32,
        bytes: &mut Vec<f32>,
    ) -> Result<()> {
        assert!(pages <= self.chunk_pages, "a read-back is at most one chunk");
        self.check_sound()?;
        self.wait_for_writes(first_page..first_page + pages)?;
        let buffer = self.acquire()?;
        while self.queue.in_flight() >= self.queue.depth() {
            self.reap(1)?;
        }
        let len = pages as usize * self.layout.page_bytes;
        let offset = u64::from(first_page) * self.layout.page_bytes as u64;
        self.queue.read(&self.file, offset, len, buffer, u64::MAX)?;
        let (mut read, mut written) = (None, Ok(()));
        while read.is_none() {
            let mut done = std::mem::take(&mut self.done);
            let waited = self.queue.wait(1, &mut done);
            for completion in done.drain(..) {
                if completion.token != u64::MAX {
                    written = written.and(self.end_write(completion));
                    continue;
                }
                if completion.result.is_ok() {
                    bytes.clear();
                    let read = &self.queue.buffer(buffer)[..len];
                    bytes.extend_from_slice(bytemuck::cast_slice(read));
                }
                self.queue.release(buffer);
                read = Some(completion.result);
            }
            self.done = done;
            self.sound(waited)?;
        }
        written.and(read.unwrap_or(Ok(())))
    }

    /// Slots of pages sealed since the last call that no row took: a commit seals its last page.
    pub(super) fn take_unfilled(&mut self) -> u64 {
        std::mem::take(&mut self.unfilled)
    }

    /// Pages of one chunk.
    pub(crate) fn chunk_pages(&self) -> u32 {
        self.chunk_pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{Buffers, Medium, OpenMode, SimMedium};

    #[test]
    fn a_segment_whose_last_row_alone_is_live_is_not_freed() {
        let medium = SimMedium::new(1);
        let layout = PageLayout::new(512, 64, 0, 7).unwrap();
        let rows = 4 * layout.rows_per_page;
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.allocate(0, 2 * 4 * 512).unwrap();
        let mut segments = Segments::new(4, layout.rows_per_page as u32, 1);
        segments.grow();
        segments.grow();
        let mut writer =
            Writer::new(file, layout, medium.queue(2, Buffers::equal(2, 512)).unwrap(), 0);
        // The first segment gives a page to the header; the second is filled to its end.
        let mut slots = Vec::new();
        while slots.len() < 2 * rows - rows / 4 {
            if slots.len() + 1 == 2 * rows - rows / 4 {
                slots.iter().for_each(|slot| segments.outdated(*slot));
            }
            let stream = Stream::Flushed;
            slots.push(writer.append(&mut segments, stream, 0, 1, &[0.5; 16]).unwrap());
        }
        assert_eq!(segments.newest_of(1), 1);
        assert_eq!(segments.free_pages(), 3, "the first segment is free, the second is not");
    }

    fn small(segments: u64) -> (Segments, Writer) {
        let medium = SimMedium::new(1);
        let layout = PageLayout::new(512, 64, 0, 7).unwrap();
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        file.allocate(0, segments * 4 * 512).unwrap();
        let mut table = Segments::new(4, layout.rows_per_page as u32, 1);
        for _ in 0..segments {
            table.grow();
        }
        (table, Writer::new(file, layout, medium.queue(4, Buffers::equal(4, 512)).unwrap(), 0))
    }

    #[test]
    fn rows_of_different_streams_share_no_segment_while_there_are_enough() {
        let (mut segments, mut writer) = small(3);
        let streams = [Stream::Flushed, Stream::Cold, Stream::Moved];
        for key in 0..12 {
            for stream in streams {
                let slot = writer.append(&mut segments, stream, 0, key, &[0.5; 16]).unwrap();
                assert_eq!(segments.age_of_slot(slot).1, stream as u8);
            }
        }
        let points = writer.finish(&mut segments).unwrap();
        let segments: Vec<SegmentId> = points.iter().map(|point| point.unwrap().0).collect();
        assert_eq!(segments, [0, 1, 2]);
    }

    #[test]
    fn rows_of_a_stretch_share_pages_that_are_found_before_and_after_they_are_written() {
        let (mut segments, mut writer) = small(8);
        let per_page = writer.layout.rows_per_page as u64;
        writer.open_stretches(StretchPoints { count: 4, width: 2 });
        let mut slots = Vec::new();
        // Stretches 6 to 13, in turns: two neighbours share an append point.
        for at in 0..8 * 2 * per_page {
            let stretch = Stretch::of(6 + at % 8);
            let slot = writer.append_for(&mut segments, stretch, (0, at), &[at as f32; 16]);
            slots.push((slot.unwrap().unwrap(), at));
        }
        let pages = |of: u64| -> Vec<u32> {
            let of = slots.iter().filter(|(_, at)| at % 8 / 2 == of);
            let mut pages: Vec<u32> = of.map(|(slot, _)| slot / per_page as u32).collect();
            pages.dedup();
            pages
        };
        let all: std::collections::BTreeSet<u32> = (0..4).flat_map(pages).collect();
        assert_eq!(all.len(), 16, "four full pages of each of four points");
        assert!((0..4).all(|of| pages(of).len() == 4));
        // One more row each begins a page that is in memory alone.
        let begun = writer.append_for(&mut segments, Stretch::of(6), (0, 99), &[0.5; 16]);
        let begun = begun.unwrap().unwrap();
        let page = writer.page(begun / per_page as u32).expect("it is being filled");
        assert_eq!(writer.layout.entry(page, (begun % per_page as u32) as usize), (0, 99));
        assert_eq!(writer.rows_in(begun / per_page as u32, page), 1);
        writer.finish(&mut segments).unwrap();
        writer.close_stretches(&mut segments);
        assert!(writer.page(begun / per_page as u32).is_none(), "it is on the device");
        assert_eq!(writer.points(), Stream::COUNT);
        assert_eq!(writer.staging_bytes(), 0);
        // Each segment has ended: when its rows are outdated it is free.
        let free = segments.free_pages();
        slots.iter().for_each(|(slot, _)| segments.outdated(*slot));
        segments.outdated(begun);
        assert!(segments.free_pages() > free);
        assert_eq!(segments.newest_total(), 0);
        assert_eq!(segments.available_pages(), 8 * 4 - 1, "nothing is held");
    }

    #[test]
    fn stretches_without_a_segment_fill_those_of_others_to_the_last_page() {
        let (mut segments, mut writer) = small(2);
        let per_page = writer.layout.rows_per_page as u64;
        writer.open_stretches(StretchPoints { count: 8, width: 1 });
        for key in 0..7 * per_page {
            let to = writer.append_for(&mut segments, Stretch::of(key), (0, key), &[0.5; 16]);
            to.unwrap().unwrap();
        }
        let full = writer.append_for(&mut segments, Stretch::of(1), (0, 1), &[0.5; 16]).unwrap();
        assert_eq!(full.unwrap_err().kind(), crate::error::ErrorKind::Full);
    }

    #[test]
    fn a_stream_without_a_segment_fills_those_of_the_others_to_the_last_page() {
        let (mut segments, mut writer) = small(2);
        let rows_per_page = writer.layout.rows_per_page as u64;
        let mut append = |stream| writer.append(&mut segments, stream, 0, 1, &[0.5; 16]);
        append(Stream::Flushed).unwrap();
        append(Stream::Moved).unwrap();
        // Of eight pages one is the header of the file.
        for _ in 2..7 * rows_per_page {
            append(Stream::Cold).unwrap();
        }
        let error = append(Stream::Cold).unwrap_err();
        assert_eq!(error.kind(), crate::error::ErrorKind::Full);
    }
}
