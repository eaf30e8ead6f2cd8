//! Sweeps: all rows of a table, or of all, in order of their places.
//!
//! A sweep goes slice by slice. Under the lock of the class it takes the next range of one
//! partition, and of the top what is newer there; without it, it reads both and puts them together.
//! Rows merged between two slices are found in their new places. Rows that are written meanwhile
//! may come as they were or as they are, or not at all.

use super::bottom::{Numbered, Partition, Place, PlaceRange};
use super::frozen_sweep::FrozenSweep;
use super::newest::{Newest, Read};
use super::pages::LsmPages;
use super::{IN_BOTTOM, Lsm};
use crate::error::Result;
use crate::metrics::ReadReport;
use crate::storage::{
    Areas, Checked, Finding, PageAddress, PageReader, StorageRead, StorageSweeps, StorageWrite,
    Sweep, SweptRow, TakeRows,
};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of rows of the top in a slice, about.
const SLICE_BYTES: usize = 1 << 20;

/// The partition that a slice reads.
struct Below {
    number: u16,
    partition: Arc<Partition>,
    pages: Range<u32>,
}

/// A range that a sweep has looked up.
pub(super) struct Slice {
    pub(super) range: PlaceRange,
    newest: Newest,
    pub(super) tombstones: Vec<Place>,
    below: Option<Below>,
    /// All rows of the top in it, in order, once they are read, and which of them is next.
    pub(super) above: Vec<Read>,
    pub(super) words: Vec<f32>,
    next: usize,
    is_read: bool,
}

/// A sweep under way.
struct LsmSweep {
    tables: Vec<u16>,
    pages: Arc<LsmPages>,
    /// The begin of the next slice; `None` at the end.
    next: Option<Place>,
    slice: Option<Slice>,
    row_words: usize,
    page_bytes: usize,
    ticket: u64,
    /// Pages of the bottom that were read together.
    bytes: Vec<f32>,
}

impl StorageSweeps for Lsm {
    fn sweep(&mut self, table: Option<u16>) -> Box<dyn Sweep> {
        let tables: Vec<u16> = match table {
            Some(table) => vec![table],
            None => self.bottom.orders().tables().collect(),
        };
        let next = first_within(&tables, Place::MIN);
        if self.bottom.snapshot().frozen().is_some() {
            return Box::new(FrozenSweep::new(self, tables, next));
        }
        Box::new(LsmSweep {
            tables,
            pages: Arc::clone(&self.pages),
            next,
            slice: None,
            row_words: self.facts.row_bytes / 4,
            page_bytes: self.facts.page_bytes,
            ticket: self.begin_read(),
            bytes: Vec::new(),
        })
    }

    fn advance(&mut self, sweep: &mut dyn Sweep) {
        let any: &mut dyn Any = sweep;
        if let Some(sweep) = any.downcast_mut::<FrozenSweep>() {
            return sweep.advance(self);
        }
        // A sweep of slots of the top has looked all of them up when it began.
        let Some(sweep) = any.downcast_mut::<LsmSweep>() else { return };
        if sweep.slice.is_none() {
            sweep.slice = sweep.next.map(|first| self.slice(first));
        }
        let Some(slice) = &sweep.slice else { return };
        sweep.next = slice.range.last.next().and_then(|next| first_within(&sweep.tables, next));
    }

    fn is_newest(&self, table: u16, key: u64, place: u32) -> bool {
        if place < IN_BOTTOM {
            return self.top.is_newest(table, key, place);
        }
        let number = (place - IN_BOTTOM) as u16;
        self.bottom.orders().has(table)
            && !self.top.is_parked(table, key)
            && self.bottom.pages().get(number).is_some()
            && !self.tombstones.contains(self.place(table, key))
            // A row of another key may look like one of this: then it is not worth a read.
            && self.top.candidate_sum(table, key) == 0
    }

    fn areas(&self) -> Areas {
        let partitions = self.bottom.snapshot().partitions().iter();
        let largest = partitions.map(|open| &open.partition).max_by_key(|p| p.facts().pages);
        let page_bytes = self.facts.page_bytes as u64;
        match largest
            .filter(|p| u64::from(p.facts().pages) * page_bytes >= self.facts.segment_bytes)
        {
            Some(partition) => {
                let area_bytes = self.facts.segment_bytes;
                let areas = u64::from(partition.facts().pages) * page_bytes / area_bytes;
                let begins = (0..areas).map(|area| page_bytes + area * area_bytes).collect();
                Areas { file: Arc::clone(partition.file()), begins, area_bytes }
            }
            None => self.top.areas(),
        }
    }

    fn check(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
        said: &mut dyn FnMut(Finding),
    ) -> Result<Checked> {
        self.check_all(progress, said)
    }
}

impl Lsm {
    /// The range from `first` on that is swept next, within a table and a partition.
    fn slice(&self, first: Place) -> Slice {
        let snapshot = self.bottom.snapshot();
        self.slice_above(first, snapshot.version().find(first).map(|at| &snapshot.partitions()[at]))
    }

    /// The same, where `found` is the partition, or with the top alone.
    pub(super) fn slice_above(&self, first: Place, found: Option<&Numbered>) -> Slice {
        let table_ends = Place { table: first.table, ..Place::MAX };
        let last =
            found.map_or(table_ends, |open| open.partition.facts().range.last.min(table_ends));
        let most = (SLICE_BYTES / self.facts.row_bytes).max(1);
        let range = PlaceRange { first, last };
        let (newest, looked_up) = Newest::of(self, range, &[first.table], most, true);
        let range = PlaceRange { first, last: looked_up.until };
        let below = found.map(|open| Below {
            number: open.number,
            partition: Arc::clone(&open.partition),
            pages: open.partition.pages_of(range),
        });
        let tombstones = self.tombstones.in_range(range).collect();
        Slice {
            range,
            newest,
            tombstones,
            below,
            above: Vec::new(),
            words: Vec::new(),
            next: 0,
            is_read: false,
        }
    }
}

/// The first place from `place` on that is of one of the tables, which are in order.
pub(super) fn first_within(tables: &[u16], place: Place) -> Option<Place> {
    let table = tables.iter().copied().find(|table| *table >= place.table)?;
    Some(place.max(Place { table, ..Place::MIN }))
}

impl Slice {
    /// Reads all rows of the top.
    pub(super) fn read_above(&mut self, reader: &mut PageReader) -> Result<()> {
        if std::mem::replace(&mut self.is_read, true) {
            return Ok(());
        }
        loop {
            self.newest.read_on(reader, None)?;
            let Some(row) = self.newest.row() else { return Ok(()) };
            let at = self.words.len();
            self.words.extend_from_slice(self.newest.words(row));
            self.above.push(Read { at, ..row });
            self.newest.pass_row();
        }
    }
}

impl Sweep for LsmSweep {
    fn read(
        &mut self,
        most: usize,
        reader: &mut PageReader,
        each: &mut TakeRows<'_>,
    ) -> Result<Option<ReadReport>> {
        let Some(slice) = &mut self.slice else { return Ok(None) };
        slice.read_above(reader)?;
        let Slice { range, tombstones, below, above, words: words_above, next, .. } = slice;
        let mut report = ReadReport::default();
        let mut rows: Vec<(Place, SweptRow<'_>)> = Vec::new();
        let mut last = range.last;
        let mut ends = true;
        if let Some(below) = below
            && !below.pages.is_empty()
        {
            let first = below.pages.start;
            let end = below.pages.end.min(first + most.max(1) as u32);
            below.pages.start = end;
            ends = below.pages.is_empty();
            let pages: Vec<PageAddress> =
                (first..end).map(|page| PageAddress { file: below.number, page }).collect();
            self.bytes.resize(pages.len() * self.page_bytes / 4, 0.0);
            let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.bytes);
            let page_bytes = self.page_bytes;
            report = reader.read(&*self.pages, &pages, &mut |at, page| {
                let place = (at.page - first) as usize * page_bytes;
                all[place..place + page_bytes].copy_from_slice(page);
                Ok(())
            })?;
            let all: &[u8] = bytemuck::cast_slice(&self.bytes);
            for (number, page) in (first..end).zip(all.chunks_exact(page_bytes)) {
                for row in below.partition.rows(number, page) {
                    let (place, key, words) = row?;
                    rows.push((
                        place,
                        SweptRow {
                            table: place.table,
                            key,
                            place: IN_BOTTOM | u32::from(below.number),
                            words,
                        },
                    ));
                }
            }
            if !ends && let Some((place, _)) = rows.last() {
                last = *place;
            }
        }
        // Something newer is known of these.
        let is_shadowed = |place: &Place| {
            above.binary_search_by_key(place, |row| row.place).is_ok()
                || tombstones.binary_search(place).is_ok()
        };
        rows.retain(|(place, _)| range.contains(*place) && !is_shadowed(place));
        let end = *next + above[*next..].partition_point(|row| row.place <= last);
        for row in &above[std::mem::replace(next, end)..end] {
            let words = &words_above[row.at..row.at + self.row_words];
            let swept = SweptRow { table: row.place.table, key: row.key, place: row.slot, words };
            rows.push((row.place, swept));
        }
        rows.sort_by_key(|(place, _)| *place);
        each(&mut rows.iter().map(|(_, row)| *row))?;
        if ends {
            self.slice = None;
        }
        Ok(Some(report))
    }

    fn ticket(&self) -> u64 {
        self.ticket
    }
}
