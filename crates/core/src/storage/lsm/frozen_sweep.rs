//! Sweeps over a frozen bottom, whose rows are in no order of their places.
//!
//! First come all rows of the top, slice by slice, then the pages with rows at home, in the order
//! of the file. Of the first part the sweep remembers which keys had a row in the top or a
//! tombstone, 8 bytes each: what the bottom has of these is older. A key that is written or deleted
//! after its slice comes as it was then.

use super::bottom::{Partition, Place};
use super::pages::LsmPages;
use super::sweep::{Slice, first_within};
use super::{IN_BOTTOM, Lsm};
use crate::error::Result;
use crate::metrics::ReadReport;
use crate::storage::{PageAddress, PageReader, StorageRead, Sweep, SweptRow, TakeRows};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The frozen partition, and which of its pages come next.
struct Below {
    number: u16,
    partition: Arc<Partition>,
    pages: Range<u32>,
}

/// A sweep under way.
pub(super) struct FrozenSweep {
    tables: Vec<u16>,
    pages: Arc<LsmPages>,
    /// The begin of the next slice of the top; `None` after the last.
    next: Option<Place>,
    slice: Option<Slice>,
    /// Positions in each table that something newer is known of, in order.
    newer: BTreeMap<u16, Vec<u64>>,
    below: Option<Below>,
    row_words: usize,
    page_bytes: usize,
    ticket: u64,
    /// Pages that were read together.
    bytes: Vec<f32>,
}

impl FrozenSweep {
    /// A sweep of some tables, in order, from the place `next` on.
    pub(super) fn new(lsm: &mut Lsm, tables: Vec<u16>, next: Option<Place>) -> Self {
        Self {
            tables,
            pages: Arc::clone(&lsm.pages),
            next,
            slice: None,
            newer: BTreeMap::new(),
            below: None,
            row_words: lsm.facts.row_bytes / 4,
            page_bytes: lsm.facts.page_bytes,
            ticket: lsm.begin_read(),
            bytes: Vec::new(),
        }
    }

    /// Looks up the next slice of the top. Behind the last it takes the bottom of this moment:
    /// rows that left the top meanwhile are there.
    pub(super) fn advance(&mut self, lsm: &Lsm) {
        if self.slice.is_some() || self.below.is_some() {
            return;
        }
        match self.next {
            Some(first) => {
                let slice = lsm.slice_above(first, None);
                let behind = slice.range.last.next();
                self.next = behind.and_then(|next| first_within(&self.tables, next));
                self.slice = Some(slice);
            }
            None => {
                self.below = lsm.bottom.snapshot().frozen().map(|open| Below {
                    number: open.number,
                    partition: Arc::clone(&open.partition),
                    pages: 1..1 + open.partition.home_pages(),
                });
            }
        }
    }

    /// Hands over what the top has in a slice, and notes what is newer there.
    fn read_slice(
        &mut self,
        mut slice: Slice,
        reader: &mut PageReader,
        each: &mut TakeRows<'_>,
    ) -> Result<()> {
        slice.read_above(reader)?;
        let table = slice.range.first.table;
        let newer = self.newer.entry(table).or_default();
        let before = newer.len();
        newer.extend(slice.above.iter().map(|row| row.place.position));
        newer.extend(slice.tombstones.iter().map(|place| place.position));
        newer[before..].sort_unstable();
        let words = &slice.words;
        let row_words = self.row_words;
        each(&mut slice.above.iter().map(|row| SweptRow {
            table,
            key: row.key,
            place: row.slot,
            words: &words[row.at..row.at + row_words],
        }))
    }
}

/// Whether something newer is known of a place.
fn is_newer(newer: &BTreeMap<u16, Vec<u64>>, place: Place) -> bool {
    newer.get(&place.table).is_some_and(|of| of.binary_search(&place.position).is_ok())
}

impl Sweep for FrozenSweep {
    fn read(
        &mut self,
        most: usize,
        reader: &mut PageReader,
        each: &mut TakeRows<'_>,
    ) -> Result<Option<ReadReport>> {
        if let Some(slice) = self.slice.take() {
            self.read_slice(slice, reader, each)?;
            return Ok(Some(ReadReport::default()));
        }
        let Some(below) = self.below.as_mut().filter(|below| !below.pages.is_empty()) else {
            return Ok(None);
        };
        let first = below.pages.start;
        let end = below.pages.end.min(first + most.max(1) as u32);
        below.pages.start = end;
        let pages: Vec<PageAddress> =
            (first..end).map(|page| PageAddress { file: below.number, page }).collect();
        self.bytes.resize(pages.len() * self.page_bytes / 4, 0.0);
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.bytes);
        let page_bytes = self.page_bytes;
        let report = reader.read(&*self.pages, &pages, &mut |at, page| {
            let place = (at.page - first) as usize * page_bytes;
            all[place..place + page_bytes].copy_from_slice(page);
            Ok(())
        })?;
        let all: &[u8] = bytemuck::cast_slice(&self.bytes);
        let mut rows: Vec<SweptRow<'_>> = Vec::new();
        for (number, page) in (first..end).zip(all.chunks_exact(page_bytes)) {
            for row in below.partition.rows(number, page) {
                let (place, key, words) = row?;
                if self.tables.binary_search(&place.table).is_ok() && !is_newer(&self.newer, place)
                {
                    let table = place.table;
                    let origin = IN_BOTTOM | u32::from(below.number);
                    rows.push(SweptRow { table, key, place: origin, words });
                }
            }
        }
        each(&mut rows.into_iter())?;
        Ok(Some(report))
    }

    fn ticket(&self) -> u64 {
        self.ticket
    }
}
