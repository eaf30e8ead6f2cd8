//! Room of a log on disk: made before it is used, and given back when it is not needed.
//!
//! Room is reserved before rows are written. Ready segments come before those that may have lost
//! their room, and these before a longer file. Room is given back in whole segments: at the end of
//! the file by cutting it, elsewhere by a hole. Only free segments are given back, so nothing that
//! a commit, a running read or a request in flight needs is touched.

use super::ClassLog;
use super::segments::SegmentId;
use crate::error::{ErrorKind, Result, bail};
use crate::io::BLOCK_BYTES;
use crate::storage::StorageSpace;

/// Epochs whose writes find ready segments, before room is given back that nobody asks for.
const EPOCHS_READY: f64 = 2.0;
/// Room that nobody asks for is given back when it is more than this share of the file.
const READY_SHARE: f64 = 0.25;

impl StorageSpace for ClassLog {
    fn disk_bytes(&self) -> u64 {
        // A file without segments has a header.
        (u64::from(self.segments.taken()) * self.segment_bytes).max(BLOCK_BYTES)
    }

    fn rows_of_cut(&self) -> u64 {
        (self.writer.points() * self.layout().rows_per_page) as u64
    }

    fn lacking_bytes(&self, rows: u64, spare: u64) -> u64 {
        self.lacking_segments(rows, spare) * self.segment_bytes
    }

    fn growth_for(&self, rows: u64, spare: u64) -> u64 {
        let (unsure, _) = self.segments.not_ready();
        self.lacking_segments(rows, spare).saturating_sub(unsure) * self.segment_bytes
    }

    fn reserve(&mut self, rows: u64, spare: u64, grow_bytes: u64) -> Result<()> {
        let lacking = self.lacking_segments(rows, spare);
        if lacking == 0 {
            return Ok(());
        }
        let growth = self.growth_for(rows, spare);
        if growth > grow_bytes {
            bail!(
                Full,
                "{} needs {growth} more bytes for {rows} changed rows and may grow by {grow_bytes}",
                self.pages.file.name(),
            );
        }
        self.make_segments(lacking)?;
        assert_eq!(self.lacking_segments(rows, spare), 0, "less was made ready than was asked");
        Ok(())
    }

    fn give_back(
        &mut self,
        unwritten: u64,
        refused: u64,
        spare: u64,
        wanted: Option<u64>,
    ) -> Result<()> {
        let keep = self.segments_to_keep(unwritten + refused, spare);
        let mut ids = self.segments.may_go();
        let free = ids.len() as u64;
        let most = match wanted {
            Some(bytes) => bytes.div_ceil(self.segment_bytes).min(free.saturating_sub(keep)),
            None => {
                // Not more than the rows themselves take, however much was written before.
                let rows = EPOCHS_READY * self.clean.per_epoch();
                let rows = (rows as u64).min(self.segments.newest_total());
                let keep = keep + rows.div_ceil(self.rows_per_segment());
                let share = (READY_SHARE * f64::from(self.segments.taken())) as u64;
                if free > keep + share { free - keep } else { 0 }
            }
        };
        ids.truncate(most as usize);
        for run in runs(&ids) {
            if !self.give_run_back(run)? {
                break;
            }
        }
        Ok(())
    }

    fn held_bytes(&self, first: u64, oldest_kept: u64) -> u64 {
        let copies = self.segments.retained_between(first, oldest_kept);
        copies * (self.layout().page_bytes / self.layout().rows_per_page) as u64
    }
}

impl ClassLog {
    fn pages_per_segment(&self) -> u64 {
        self.segment_bytes / self.pages.layout.page_bytes as u64
    }

    /// Pages in free segments that `rows` more rows need, where so many are left of those that are
    /// being filled.
    fn pages_for(&self, rows: u64, left: u64) -> u64 {
        // One page that is not full, and one that a commit seals for each append point.
        let needed =
            rows.div_ceil(self.pages.layout.rows_per_page as u64) + 1 + self.writer.points() as u64;
        needed.saturating_sub(left)
    }

    /// Segments that are to be made ready, so that `rows` more rows can be written and `spare`
    /// bytes are left, which are whole segments.
    fn lacking_segments(&self, rows: u64, spare: u64) -> u64 {
        self.segments_for(rows, spare, self.writer.pages_left(&self.segments))
    }

    /// The same, where so many pages are left of the segments that are being filled.
    pub(super) fn segments_for(&self, rows: u64, spare: u64, left: u64) -> u64 {
        let needed = self.pages_for(rows, left)
            + spare.div_ceil(self.segment_bytes) * self.pages_per_segment();
        let have = self.segments.available_pages();
        if have >= needed {
            return 0;
        }
        // The first segment gives a page to the header of the file.
        let header = u64::from(self.segments.count() == 0 || self.segments.first_is_unsure());
        (needed - have + header).div_ceil(self.pages_per_segment())
    }

    /// Makes so many segments ready.
    pub(super) fn make_segments(&mut self, lacking: u64) -> Result<()> {
        let (unsure, absent) = self.segments.not_ready();
        let more = lacking.saturating_sub(unsure + absent);
        let per_segment = self.pages_per_segment() * self.pages.layout.rows_per_page as u64;
        if (u64::from(self.segments.count()) + more) * per_segment > u64::from(u32::MAX) {
            bail!(
                Full,
                "{} would need more than 2^32 row slots; use a larger page or fewer rows a store",
                self.pages.file.name()
            );
        }
        if more > 0 {
            self.fit_indexes(self.slots_with(more * self.segment_bytes))?;
            // The longer file first: of all this it is what most likely fails.
            let end = u64::from(self.segments.count()) * self.segment_bytes;
            self.pages.file.allocate(end, more * self.segment_bytes)?;
            for _ in 0..more {
                self.segments.grow();
            }
        }
        for _ in 0..lacking - more {
            self.make_ready()?;
        }
        Ok(())
    }

    /// Makes one free segment ready.
    fn make_ready(&mut self) -> Result<()> {
        let next = self.segments.next_not_ready();
        let (id, is_taken) = next.expect("the caller counted those that are not ready");
        let (offset, bytes) = self.range_of(id, 1);
        if let Err(error) = self.pages.file.allocate(offset, bytes) {
            // A part of it may have found room.
            if !is_taken && !matches!(self.pages.file.give_back(offset, bytes), Ok(true)) {
                self.segments.doubt(id..=id);
            }
            return Err(error);
        }
        self.segments.made_ready(id);
        Ok(())
    }

    /// Segments that stay free when room is given back: those for `unwritten` rows, and the
    /// `spare` bytes.
    pub(super) fn segments_to_keep(&self, unwritten: u64, spare: u64) -> u64 {
        spare.div_ceil(self.segment_bytes)
            + self
                .pages_for(unwritten, self.writer.pages_left(&self.segments))
                .div_ceil(self.pages_per_segment())
    }

    /// Gives the room of neighbouring free segments back; false when no more can be given.
    fn give_run_back(&mut self, ids: &[SegmentId]) -> Result<bool> {
        let (Some(&last), Some(&first)) = (ids.first(), ids.last()) else { return Ok(true) };
        let end = self.segments.first_page(last) + self.segments.pages_of(last);
        // A write that lands later would take the room again.
        self.writer.wait_for_writes(self.segments.first_page(first)..end)?;
        if self.segments.is_end(last) {
            // Counted only once it is done: after an error the file is as long as it was.
            let left = self.segments.left_before(first);
            self.pages.file.set_len(u64::from(left) * self.segment_bytes)?;
            self.segments.cut(left);
            return Ok(true);
        }
        if self.keeps_room {
            return Ok(true);
        }
        let (offset, bytes) = self.range_of(first, ids.len() as u64);
        match self.pages.file.give_back(offset, bytes) {
            Ok(true) => self.segments.gave_back(first..=last),
            Ok(false) => self.keeps_room = true,
            // A hole may need room of its own.
            Err(error) if error.kind() == ErrorKind::Full => {
                self.segments.doubt(first..=last);
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn range_of(&self, first: SegmentId, segments: u64) -> (u64, u64) {
        (u64::from(first) * self.segment_bytes, segments * self.segment_bytes)
    }
}

/// Cuts falling numbers into neighbours.
fn runs(ids: &[SegmentId]) -> impl Iterator<Item = &[SegmentId]> {
    ids.chunk_by(|one, next| *one == *next + 1)
}

#[cfg(test)]
mod tests {
    use super::super::{Segments, Writer};
    use super::*;
    use crate::io::{Buffers, Medium, OpenMode, SimMedium};
    use crate::storage::{FlushBuffer, PageLayout};

    const PAGES: u32 = 16;

    // The end of the file counted as given back as soon as it was to be cut, whatever came before.
    #[test]
    fn after_an_error_the_file_takes_no_more_than_the_log_says() {
        let mut failed = 0;
        for after in 0.. {
            let medium = SimMedium::new(1);
            let layout = PageLayout::new(512, 64, 0, 7).unwrap();
            let file = medium.open("rows", OpenMode::CreateNew).unwrap();
            let mut segments = Segments::new(PAGES, layout.rows_per_page as u32, 1);
            file.allocate(0, 10 * u64::from(PAGES) * 512).unwrap();
            (0..10).for_each(|_| _ = segments.grow());
            (0..7).for_each(|id| assert_eq!(segments.open(0, 0), Some(id)));
            [2, 3, 5].into_iter().for_each(|id| segments.seal(id));
            let queue = medium.queue(4, Buffers::equal(4, 512)).unwrap();
            let writer = Writer::new(file.clone(), layout.clone(), queue, 0);
            let buffer = FlushBuffer::new(8, 16);
            let bytes = u64::from(PAGES) * 512;
            let mut log = ClassLog::new(layout, file, bytes, segments, writer, buffer);
            assert_eq!(log.disk_bytes(), medium.taken_bytes());
            medium.fail_shrink(after);
            let given = log.give_back(0, 0, 0, Some(u64::MAX));
            assert_eq!(log.disk_bytes(), medium.taken_bytes(), "failed after {after}");
            if given.is_ok() {
                break;
            }
            failed += 1;
            log.give_back(0, 0, 0, Some(u64::MAX)).unwrap();
            assert_eq!(log.disk_bytes(), medium.taken_bytes(), "failed after {after}");
            assert_eq!(log.disk_bytes(), 5 * bytes, "failed after {after}");
        }
        assert!(failed > 1, "{failed} calls failed");
    }
}
