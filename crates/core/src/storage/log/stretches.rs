//! Append points for stretches of a schedule: how many there may be, and taking them.

use super::ClassLog;
use super::staging::StretchPoints;
use crate::error::Result;
use crate::storage::StorageStretches;

/// The most append points, and the fewest with which stretches are told apart at all.
const POINTS: (u64, u64) = (4, 256);
/// A segment has so many more pages than there are points: a reader of the journal may take a
/// filling to have begun as many pages earlier, which must not reach the filling before it.
const PAGES_BESIDE_POINTS: u64 = 4;
/// The part of a log's room that segments being filled for stretches may take: each is half empty
/// in the middle.
const ROOM_PER_POINTS: u64 = 4;

impl StorageStretches for ClassLog {
    fn stretch_points(&self, furthest: u32, memory: u64, disk: u64) -> Option<StretchPoints> {
        // A next use may be in the stretch at hand, too.
        let stretches = u64::from(furthest) + 1;
        let one = StretchPoints { count: 1, width: 1 }.bytes(self.layout().page_bytes);
        let rows: u64 = self.indexes().map(|(_, index)| index.ids_or_rows()).sum();
        let room = (rows / self.rows_per_segment() * self.segment_bytes).min(disk);
        let pages = self.segment_bytes / self.layout().page_bytes as u64;
        let most = (memory / one)
            .min(room / ROOM_PER_POINTS / self.segment_bytes)
            .min(pages - PAGES_BESIDE_POINTS)
            .min(POINTS.1);
        if most < POINTS.0 {
            return None;
        }
        let width = stretches.div_ceil(most);
        // The stretch at hand may be any of those that share its point.
        let count = stretches.div_ceil(width) + u64::from(width > 1);
        Some(StretchPoints { count: count.min(most) as u32, width: width as u32 })
    }

    fn open_stretches(&mut self, points: StretchPoints) -> Result<()> {
        if self.writer.stretch_points() == Some(points) {
            return Ok(());
        }
        self.close_stretches()?;
        self.writer.open_stretches(points);
        self.stretches_most = self.stretches_most.max(self.stretches_open());
        Ok(())
    }

    fn reserve_apart(&mut self, rows: u64, spare: u64) -> Result<()> {
        if self.writer.stretch_points().is_none() {
            return Ok(());
        }
        // The rest of a segment of one stretch has no room for rows of another.
        let left = self.writer.pages_left_of_streams(&self.segments);
        self.make_segments(self.segments_for(rows, spare, left))
    }

    fn close_stretches(&mut self) -> Result<()> {
        if self.writer.stretch_points().is_some() {
            self.writer.finish(&mut self.segments)?;
            self.writer.close_stretches(&mut self.segments);
        }
        Ok(())
    }

    fn segment_growth(&self) -> u64 {
        self.segments.growth_bytes() as u64
    }

    fn stretch_bytes(&self) -> u64 {
        self.writer.staging_bytes()
    }
}

impl ClassLog {
    /// Append points of stretches that there are now.
    pub(super) fn stretches_open(&self) -> u64 {
        self.writer.stretch_points().map_or(0, |points| points.count.into())
    }
}
