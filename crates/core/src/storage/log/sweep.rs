//! Sweeps of a log: the newest copies of its rows, page after page.

use super::ClassLog;
use super::snapshot::{PageSnapshot, ReadPage};
use crate::error::{Result, bail};
use crate::metrics::ReadReport;
use crate::storage::{
    Areas, Checked, Finding, PageLayout, PageReader, StorageSweeps, Sweep, SweptRow, TakeRows,
};
use std::sync::Arc;

/// The places of the newest copies at one moment: a bit for each slot for one table, a bit for each
/// page for all tables, which divides the memory by the number of rows of a page.
pub(super) struct NewestCopies {
    bits: Vec<u64>,
    per_page: u32,
    slots_per_bit: u32,
}

impl NewestCopies {
    fn contains(&self, slot: u32) -> bool {
        let bit = slot / self.slots_per_bit;
        self.bits.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }

    /// The bits, of slots where the copies are of one table.
    pub(super) fn into_bits(self) -> Vec<u64> {
        self.bits
    }

    /// The same, to be changed.
    pub(super) fn bits_mut(&mut self) -> &mut [u64] {
        &mut self.bits
    }

    fn has_page(&self, page: u32) -> bool {
        let slots = page * self.per_page..(page + 1) * self.per_page;
        { slots }.step_by(self.slots_per_bit as usize).any(|slot| self.contains(slot))
    }

    /// The pages with newest copies, in the order of the file, from page `from` on.
    pub(super) fn pages(&self, from: u32) -> impl Iterator<Item = u32> {
        let slots = self.bits.len() as u64 * 64 * u64::from(self.slots_per_bit);
        let end = (slots / u64::from(self.per_page)) as u32;
        (from..end).filter(|page| self.has_page(*page))
    }

    /// The ones of the first `rows` rows of a page that may be newest copies: exact for one table,
    /// unchecked for all tables.
    pub(super) fn rows_of<'a>(
        &'a self,
        layout: &'a PageLayout,
        number: u32,
        page: &'a [u8],
        rows: usize,
    ) -> impl Iterator<Item = SweptRow<'a>> {
        let slots = (0..rows).map(move |at| (at, number * self.per_page + at as u32));
        slots.filter(|(_, slot)| self.contains(*slot)).map(move |(at, place)| {
            let (table, key) = layout.entry(page, at);
            SweptRow { table, key, place, words: layout.row(page, at) }
        })
    }
}

impl StorageSweeps for ClassLog {
    fn sweep(&mut self, table: Option<u16>) -> Box<dyn Sweep> {
        let copies = self.newest_copies(table);
        let ticket = self.segments.begin_read();
        Box::new(self.page_sweep(table, copies, ticket))
    }

    fn advance(&mut self, _: &mut dyn Sweep) {}

    fn is_newest(&self, table: u16, key: u64, place: u32) -> bool {
        self.is_indexed(table, key, place) && self.buffer.find(table, key).is_none()
    }

    fn areas(&self) -> Areas {
        let page_bytes = self.layout().page_bytes as u64;
        let begin = |id| u64::from(self.segments.first_page(id)) * page_bytes;
        // The file's first segment is shorter by its header.
        let begins = self.segments.sealed().filter(|id| *id > 0).map(begin).collect();
        Areas { file: Arc::clone(self.file()), begins, area_bytes: self.segment_bytes }
    }

    fn check(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
        said: &mut dyn FnMut(Finding),
    ) -> Result<Checked> {
        self.check_pages(progress, said)
    }
}

impl ClassLog {
    /// A sweep of these copies, which a read ticket protects.
    pub(super) fn page_sweep(
        &self,
        table: Option<u16>,
        copies: NewestCopies,
        ticket: u64,
    ) -> PageSweep {
        let pages = self.page_snapshot(|page| copies.has_page(page));
        PageSweep { pages, table, copies, next: 0, ticket }
    }

    /// The newest copies of a table, or of all tables.
    pub(super) fn newest_copies(&self, table: Option<u16>) -> NewestCopies {
        let per_page = self.layout().rows_per_page as u32;
        let slots_per_bit = if table.is_some() { 1 } else { per_page };
        let slots = u64::from(self.segments.count()) * self.rows_per_segment();
        let mut bits = vec![0u64; (slots / u64::from(slots_per_bit)).div_ceil(64) as usize];
        for (_, index) in self.indexes().filter(|(id, _)| table.is_none_or(|table| table == *id)) {
            for slot in index.slots() {
                let bit = slot / slots_per_bit;
                bits[bit as usize / 64] |= 1 << (bit % 64);
            }
        }
        NewestCopies { bits, per_page, slots_per_bit }
    }

    /// Whether the index says that the newest stored copy of a row is at `place`; false for a key
    /// or a table that the log does not have.
    pub(super) fn is_indexed(&self, table: u16, key: u64, place: u32) -> bool {
        let found = self.indexes().find(|(id, _)| *id == table);
        found.is_some_and(|(_, index)| index.covers(key) && index.is_newest(key, place))
    }
}

/// A sweep under way. It has all that it needs of the log as that was when it began. Its ticket
/// keeps pages on the device from being written again.
pub(crate) struct PageSweep {
    pages: PageSnapshot,
    table: Option<u16>,
    copies: NewestCopies,
    /// The next page to look at.
    next: u32,
    ticket: u64,
}

impl PageSweep {
    /// Hands over the rows of a page.
    fn take(&self, page: &ReadPage<'_>, each: &mut TakeRows<'_>) -> Result<()> {
        let ReadPage { number, bytes: page, rows } = *page;
        let layout = self.pages.layout();
        let Some(table) = self.table else {
            return each(&mut self.copies.rows_of(layout, number, page, rows));
        };
        let past = number * layout.rows_per_page as u32 + rows as u32;
        let mut wrong = None;
        let all = self.copies.rows_of(layout, number, page, layout.rows_per_page);
        each(&mut { all }.map_while(|row| {
            let is_there = row.place < past && row.table == table;
            if !is_there {
                wrong = Some(row.place);
            }
            is_there.then_some(row)
        }))?;
        if let Some(slot) = wrong {
            bail!(
                Corrupt,
                "{}, slot {slot}: the index says table {table}, the page has another row or none; \
                 restore from a copy, or open an earlier commit with step=",
                self.pages.file_name()
            );
        }
        Ok(())
    }
}

impl Sweep for PageSweep {
    fn read(
        &mut self,
        most: usize,
        reader: &mut PageReader,
        each: &mut TakeRows<'_>,
    ) -> Result<Option<ReadReport>> {
        let pages: Vec<u32> = self.copies.pages(self.next).take(most).collect();
        let Some(last) = pages.last() else { return Ok(None) };
        self.next = last + 1;
        let report = self.pages.read(&pages, reader, &mut |page| self.take(&page, each))?;
        self.pages.forget_before(self.next);
        Ok(Some(report))
    }

    fn ticket(&self) -> u64 {
        self.ticket
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Segments, TableIndex, Writer};
    use super::*;
    use crate::error::ErrorKind;
    use crate::index::{DenseIndex, SparseIndex};
    use crate::io::{Buffers, Medium, OpenMode, SimMedium};
    use crate::storage::{DirtyRow, FlushBuffer};
    use crate::storage::{StorageJournal, StorageRead, StorageSpace, StorageWrite};

    pub(in super::super) const ROWS: u64 = 1000;
    const GROWING: u16 = 0;
    pub(in super::super) const DENSE: u16 = 1;

    /// A log with rows of a growing and a dense table side by side, and where those of the growing
    /// one are. The last pages have not reached the device.
    pub(in super::super) fn two_tables() -> (ClassLog, PageReader, Vec<u32>) {
        let medium = SimMedium::new(1);
        let layout = PageLayout::new(512, 64, 0, 7).unwrap();
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let segments = Segments::new(16, layout.rows_per_page as u32, 1);
        let queue =
            |buffers: usize, bytes| medium.queue(buffers, Buffers::equal(buffers, bytes)).unwrap();
        let reader = PageReader::new(queue(8, 1024), layout.page_bytes, None, true);
        let writer = Writer::new(file.clone(), layout.clone(), queue(4, 2048), 0);
        let buffer = FlushBuffer::new(8, 16);
        let mut log = ClassLog::new(layout, file, 16 * 512, segments, writer, buffer);
        log.add_table(GROWING, TableIndex::Sparse(SparseIndex::new(ROWS).unwrap(), 5));
        log.add_table(DENSE, TableIndex::Dense(DenseIndex::new(ROWS).unwrap()));
        let mut places = vec![0; ROWS as usize];
        write_all(&mut log, &mut places, 0.0);
        (log, reader, places)
    }

    /// Writes all rows again.
    fn write_all(log: &mut ClassLog, places: &mut [u32], add: f32) {
        for key in 0..ROWS {
            log.reserve(2, 0, u64::MAX).unwrap();
            let (origin, words) = (&mut places[key as usize], [key as f32 + add; 16]);
            *origin = append(log, (GROWING, key), Some(*origin), &words);
            append(log, (DENSE, key), None, &words);
        }
    }

    fn append(
        log: &mut ClassLog,
        (table, key): (u16, u64),
        origin: Option<u32>,
        words: &[f32],
    ) -> u32 {
        log.append(DirtyRow { table, key, dirty_since: 0, origin, stretch: None, words }).unwrap()
    }

    /// Keys and values of what a sweep gives, by table.
    fn rows_of(sweep: &mut dyn Sweep, reader: &mut PageReader) -> Result<Vec<(u16, u64, f32)>> {
        let mut found = Vec::new();
        let mut take = |rows: &mut dyn Iterator<Item = SweptRow<'_>>| {
            found.extend(rows.map(|row| (row.table, row.key, row.words[0])));
            Ok(())
        };
        while sweep.read(7, reader, &mut take)?.is_some() {}
        found.sort_unstable_by_key(|(table, key, _)| (*table, *key));
        Ok(found)
    }

    #[test]
    fn a_sweep_gives_the_rows_that_were_there_when_it_began() {
        for table in [Some(GROWING), Some(DENSE), None] {
            let (mut log, mut reader, mut places) = two_tables();
            assert!(log.writer.pages_in_memory().count() > 1);
            let mut sweep = log.sweep(table);
            for round in 1..5 {
                write_all(&mut log, &mut places, 0.5 * round as f32);
            }
            let tables = [GROWING, DENSE].into_iter().filter(|id| table.is_none_or(|t| t == *id));
            let all = tables.flat_map(|id| (0..ROWS).map(move |key| (id, key, key as f32)));
            assert_eq!(rows_of(&mut *sweep, &mut reader).unwrap(), all.collect::<Vec<_>>());
            let before = log.segments.available_pages();
            log.end_read(sweep.ticket());
            assert!(log.segments.available_pages() > before, "nothing waited for the sweep");
        }
    }

    #[test]
    fn a_page_without_the_row_that_the_index_names_is_damage_to_a_sweep_of_its_table() {
        for read_out in [false, true] {
            let (mut log, mut reader, places) = two_tables();
            if read_out {
                log.write_out().unwrap();
            }
            let TableIndex::Dense(index) = log.index_mut(DENSE) else { panic!("it is dense") };
            index.set(ROWS - 1, *places.last().unwrap());
            let mut sweep = log.sweep(Some(DENSE));
            let error = rows_of(&mut *sweep, &mut reader).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.message().contains("the index says table 1"), "{error}");
            // Its row is outdated, which a sweep of all tables leaves to `is_newest`.
            let mut sweep = log.sweep(None);
            let found = rows_of(&mut *sweep, &mut reader).unwrap();
            assert_eq!(found.len() as u64, 2 * ROWS);
        }
    }

    #[test]
    fn a_row_is_the_newest_until_another_is_written_or_waits() {
        let (mut log, mut reader, mut places) = two_tables();
        let mut sweep = log.sweep(Some(GROWING));
        let row = DirtyRow {
            table: GROWING,
            key: 3,
            dirty_since: 1,
            origin: Some(places[3]),
            stretch: None,
            words: &[0.0; 16],
        };
        log.park(row);
        places[4] = append(&mut log, (GROWING, 4), Some(places[4]), &[0.0; 16]);
        let mut newest = Vec::new();
        let mut ask = |rows: &mut dyn Iterator<Item = SweptRow<'_>>| {
            newest.extend(rows.filter(|r| log.is_newest(r.table, r.key, r.place)).map(|r| r.key));
            Ok(())
        };
        while sweep.read(64, &mut reader, &mut ask).unwrap().is_some() {}
        newest.sort_unstable();
        assert_eq!(newest, (0..ROWS).filter(|key| ![3, 4].contains(key)).collect::<Vec<_>>());
        assert!(!log.is_newest(DENSE, ROWS, places[0]), "no such id");
        assert!(!log.is_newest(9, 0, places[0]), "no such table");
    }

    #[test]
    fn rows_of_one_page_are_read_together_and_pages_in_the_order_of_the_file() {
        let (mut log, _, places) = two_tables();
        let per_page = log.layout().rows_per_page as u32;
        for key in 0..ROWS {
            let page = log.index(DENSE).slot_of(key) / per_page;
            assert_eq!(log.read_order(DENSE, key), Some(page));
            assert_eq!(log.contains(DENSE, key), Some(true));
            // Another row may have the same tag.
            let mut slots = Vec::new();
            log.index(GROWING).candidates(key, &mut slots);
            assert!(slots.contains(&places[key as usize]));
            assert_eq!(log.read_order(GROWING, key), Some(slots[0] / per_page));
            assert_eq!(log.contains(GROWING, key), None);
        }
        let row = DirtyRow {
            table: DENSE,
            key: 3,
            dirty_since: 1,
            origin: None,
            stretch: None,
            words: &[0.0; 16],
        };
        log.park(row);
        assert_eq!(log.read_order(DENSE, 3), Some(0));
        let old = log.index(DENSE).slot_of(4);
        log.delete(DENSE, 4, Some(old));
        assert_eq!((log.read_order(DENSE, 4), log.contains(DENSE, 4)), (None, Some(false)));
    }

    #[test]
    fn the_sequences_of_a_sweep_are_those_of_the_segments() {
        let (log, ..) = two_tables();
        let sequences = log.segments.sequences();
        for page in 1..log.segments.count() * 16 {
            assert_eq!(sequences.of_page(page), log.segments.sequences_of(page), "page {page}");
        }
    }
}
