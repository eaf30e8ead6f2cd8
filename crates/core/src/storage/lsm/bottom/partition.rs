//! An open partition: which page may hold a row, whether a page is sound, where in it a row is.
//!
//! Opening reads the header and the footer; pages are read when rows are asked for.

use super::candidates::Candidates;
use super::file::{self, Body, Facts, Section, Shape, damaged};
use super::frozen::Frozen;
use super::order::{Orders, Place, PlaceRange, TableOrder};
use crate::error::{Error, Result, bail};
use crate::io::{File, Medium};
use crate::storage::{PageAddress, PageLayout, PageSource};
use std::ops::Range;
use std::sync::Arc;

/// An open partition file. Its rows never change.
#[derive(Debug)]
pub(crate) struct Partition {
    facts: Facts,
    layout: PageLayout,
    file: Arc<dyn File>,
    body: Body,
}

impl Partition {
    /// Opens the file that `facts` tells of. `Corrupt` for one that is missing, damaged, of another
    /// partition or of another merge.
    pub(crate) fn open(
        medium: &dyn Medium,
        shape: &Shape,
        orders: &Orders,
        facts: &Facts,
    ) -> Result<Self> {
        let layout = shape.layout(facts.number)?;
        let file::Opened { file, body } = file::open(medium, shape, orders, facts)?;
        Ok(Self { facts: *facts, layout, file, body })
    }

    /// The facts about it.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its file.
    pub(crate) fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    /// The layout of its pages.
    pub(crate) fn layout(&self) -> &PageLayout {
        &self.layout
    }

    /// Its sections, in order; none of a frozen one.
    pub(crate) fn sections(&self) -> &[Section] {
        match &self.body {
            Body::Sorted(sections) => sections,
            Body::Frozen(_) => &[],
        }
    }

    /// Whether its rows are in the order of a placement, not in that of their places.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen().is_some()
    }

    pub(super) fn frozen(&self) -> Option<&Frozen> {
        match &self.body {
            Body::Frozen(frozen) => Some(frozen),
            Body::Sorted(_) => None,
        }
    }

    /// Tables that have rows, with how many; one may come several times.
    pub(crate) fn table_rows(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let sorted = self.sections().iter().map(|section| (section.table, section.rows));
        let frozen = self.frozen().map_or(&[][..], |frozen| &frozen.tables);
        sorted.chain(frozen.iter().map(|table| (table.table, table.rows)))
    }

    /// Number of pages with rows at home, the first ones of the file: all but the replicas of a
    /// frozen partition.
    pub(crate) fn home_pages(&self) -> u32 {
        self.frozen().map_or(self.facts.pages, |frozen| frozen.home_pages)
    }

    /// Largest number of pages that the index names of a row, if it is frozen.
    pub(crate) fn candidates_max(&self) -> Option<usize> {
        self.frozen().map(|frozen| frozen.candidates_max)
    }

    /// All memory that it takes: what is known of its sections, fences and filters included, or
    /// the indexes of its tables.
    pub(crate) fn memory_bytes(&self) -> usize {
        let body = match &self.body {
            Body::Sorted(sections) => sections.iter().map(Section::memory_bytes).sum::<usize>(),
            Body::Frozen(frozen) => frozen.heap_bytes(),
        };
        size_of::<Self>() + body
    }

    fn section_of(&self, place: Place) -> Option<&Section> {
        let (sections, wanted) = (self.sections(), (place.table, place.rank));
        let at = sections.binary_search_by_key(&wanted, |s| (s.table, s.rank)).ok()?;
        Some(&sections[at])
    }

    /// The pages of the file that may hold the row at `place`: none, one, or rarely two. Of a
    /// frozen one that of its home, and those with replicas.
    pub(crate) fn candidates(&self, place: Place) -> Candidates<'_> {
        if let Body::Frozen(frozen) = &self.body {
            return frozen.candidates(place);
        }
        let Some(section) = self.section_of(place) else { return Candidates::NONE };
        if section.filter.as_ref().is_some_and(|filter| !filter.may_have(place.position)) {
            return Candidates::NONE;
        }
        let found = section.fences.candidates(place.position);
        let first = 1 + (section.first_row / self.layout.rows_per_page as u64) as u32;
        Candidates::of_range(&(first + found.start..first + found.end))
    }

    /// Rows of a page in order: all are full but the last one.
    fn rows_in_order(&self, page: u32) -> usize {
        let full = self.layout.rows_per_page;
        let before = u64::from(page - 1) * full as u64;
        (self.facts.rows - before).min(full as u64) as usize
    }

    /// Rows of a verified page.
    fn rows_of(&self, page: u32, bytes: &[u8]) -> usize {
        match &self.body {
            Body::Sorted(_) => self.rows_in_order(page),
            Body::Frozen(_) => self.layout.rows_in(bytes),
        }
    }

    /// The pages of the file that may have rows of a range; of a frozen one all that have rows at
    /// home.
    pub(crate) fn pages_of(&self, range: PlaceRange) -> Range<u32> {
        if let Some(frozen) = self.frozen() {
            return 1..1 + frozen.home_pages;
        }
        let (mut begin, mut end) = (u32::MAX, 0);
        let per_page = self.layout.rows_per_page as u64;
        for section in self.sections() {
            let place = |position| Place { table: section.table, rank: section.rank, position };
            let (first, last) = section.fences.ends().into_inner();
            if place(last) < range.first || range.last < place(first) {
                continue;
            }
            let begins = 1 + (section.first_row / per_page) as u32;
            let page_of = |at: Place| begins + section.fences.candidates(at.position).start;
            let from = if range.first <= place(first) { begins } else { page_of(range.first) };
            let to = match range.last < place(last) {
                true => begins + section.fences.candidates(range.last.position).end,
                false => 2 + ((section.first_row + section.rows - 1) / per_page) as u32,
            };
            (begin, end) = (begin.min(from), end.max(to));
        }
        if begin < end { begin..end } else { 1..1 }
    }

    /// The rows of a verified page: place, key and words of each.
    pub(crate) fn rows<'p>(
        &'p self,
        page: u32,
        bytes: &'p [u8],
    ) -> impl Iterator<Item = Result<(Place, u64, &'p [f32])>> {
        let before = u64::from(page - 1) * self.layout.rows_per_page as u64;
        (0..self.rows_of(page, bytes)).map(move |at| {
            let (place, key) = match &self.body {
                Body::Sorted(sections) => self.entry_in(sections, before + at as u64, bytes)?,
                Body::Frozen(frozen) => self.frozen_entry(frozen, page, at, bytes)?,
            };
            Ok((place, key, self.layout.row(bytes, at)))
        })
    }

    /// Place and key of a row of a page of a frozen partition.
    fn frozen_entry(
        &self,
        frozen: &Frozen,
        page: u32,
        row: usize,
        bytes: &[u8],
    ) -> Result<(Place, u64)> {
        let (table, key) = self.layout.entry(bytes, row);
        let Some(of) = frozen.of(table) else {
            let what = format!("row {row} is of table {table}, which the file has no index of");
            return Err(self.damaged(page, &what));
        };
        Ok((Place { table, rank: 0, position: of.order.position(key) }, key))
    }

    /// `Corrupt` for a row of a page that does not follow the one before it, or is not where the
    /// fences or the index say.
    pub(crate) fn misplaced(&self, page: u32, row: u64) -> Error {
        self.damaged(page, &format!("row {row} is not in the place that its key has"))
    }

    /// `Corrupt` for a row that a page has twice.
    pub(crate) fn twice(&self, page: u32, place: Place) -> Error {
        self.damaged(page, &format!("the row of table {} at {place:?} is there twice", place.table))
    }

    /// Checks the bytes of a page: that they are sound, of this file and this merge.
    pub(crate) fn verify(&self, page: u32, bytes: &[u8]) -> Result<()> {
        let merge = self.facts.merge;
        let name = self.file.name();
        let rows = self.layout.verify(bytes, page, name)?;
        self.layout.verify_sequence(bytes, page, name, &(merge..=merge))?;
        let is_there = page > 0 && page <= self.facts.pages;
        if !is_there || rows == 0 || !self.is_frozen() && rows != self.rows_in_order(page) {
            let what = format!("it has {rows} rows, of {} in the file", self.facts.rows);
            return Err(self.damaged(page, &what));
        }
        Ok(())
    }

    fn damaged(&self, page: u32, what: &str) -> Error {
        let at = u64::from(page) * self.layout.page_bytes as u64;
        let end = at + self.layout.page_bytes as u64;
        damaged(self.file.name(), at, end, &format!("page {page}: {what}"))
    }

    /// The row at `place` in a verified page that is one of its candidates; `None` when it is not
    /// there.
    pub(crate) fn find<'p>(
        &self,
        place: Place,
        page: u32,
        bytes: &'p [u8],
    ) -> Result<Option<&'p [f32]>> {
        if let Body::Frozen(frozen) = &self.body {
            return self.find_frozen(frozen, place, page, bytes);
        }
        let Some(section) = self.section_of(place) else { return Ok(None) };
        let page_begins = u64::from(page - 1) * self.layout.rows_per_page as u64;
        let page_ends = page_begins + self.rows_in_order(page) as u64;
        let section_ends = section.first_row + section.rows;
        let mut from = (section.first_row.max(page_begins) - page_begins) as usize;
        let mut to = section_ends.min(page_ends).saturating_sub(page_begins) as usize;
        while from < to {
            let middle = from.midpoint(to);
            let (table, key) = self.layout.entry(bytes, middle);
            if table != place.table {
                let what = format!("row {middle} is of table {table}, expected {}", place.table);
                return Err(self.damaged(page, &what));
            }
            match section.order.position(key).cmp(&place.position) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Equal => return Ok(Some(self.layout.row(bytes, middle))),
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        Ok(None)
    }

    /// Rows of a frozen page are in no order, so its directory is looked through.
    fn find_frozen<'p>(
        &self,
        frozen: &Frozen,
        place: Place,
        page: u32,
        bytes: &'p [u8],
    ) -> Result<Option<&'p [f32]>> {
        let Some(of) = frozen.of(place.table).filter(|_| place.rank == 0) else { return Ok(None) };
        let wanted = (place.table, of.order.key(place.position));
        let rows = self.layout.rows_in(bytes);
        match (0..rows).find(|at| self.layout.entry(bytes, *at) == wanted) {
            Some(at) => Ok(Some(self.layout.row(bytes, at))),
            // A page that the index of a dense table names has the row: without this check the
            // initial row would be returned.
            None if of.order == TableOrder::ByKey
                && frozen.candidates(place).pages().contains(&page) =>
            {
                let (table, key) = wanted;
                Err(self.damaged(page, &format!("it has no row {key} of table {table}")))
            }
            None => Ok(None),
        }
    }

    /// Place and key of the row that has this number in a sorted file, as its page says. `Misuse`
    /// for a frozen one, whose rows have no numbers.
    pub(super) fn entry(&self, row: u64, bytes: &[u8]) -> Result<(Place, u64)> {
        match &self.body {
            Body::Sorted(sections) => self.entry_in(sections, row, bytes),
            Body::Frozen(_) => {
                bail!(Misuse, "{} is frozen and cannot be merged", self.file.name())
            }
        }
    }

    fn entry_in(&self, sections: &[Section], row: u64, bytes: &[u8]) -> Result<(Place, u64)> {
        let per_page = self.layout.rows_per_page as u64;
        let at = sections.partition_point(|s| s.first_row + s.rows <= row);
        let section = &sections[at];
        let (table, key) = self.layout.entry(bytes, (row % per_page) as usize);
        if table != section.table {
            let what = format!("row {} is of table {table}, not {}", row % per_page, section.table);
            return Err(self.damaged((row / per_page) as u32 + 1, &what));
        }
        let position = section.order.position(key);
        Ok((Place { table, rank: section.rank, position }, key))
    }

    /// `Corrupt` for a row that does not follow the one before it.
    pub(super) fn out_of_order(&self, row: u64) -> Error {
        let per_page = self.layout.rows_per_page as u64;
        let what = format!("row {} does not follow the row before it", row % per_page);
        self.damaged((row / per_page) as u32 + 1, &what)
    }
}

/// Partitions that one reader has for itself: the file of a page address is the place in this list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partitions(Box<[Arc<Partition>]>);

impl Partitions {
    /// At most as many as the files of page addresses, from 0 on.
    pub(crate) const COUNT_MAX: usize = 1 << 16;

    /// A list of at most `COUNT_MAX` partitions of one class.
    ///
    /// # Panics
    /// When there are more.
    pub(crate) fn new(partitions: Vec<Arc<Partition>>) -> Self {
        assert!(partitions.len() <= Self::COUNT_MAX, "{} partitions", partitions.len());
        Self(partitions.into())
    }

    /// All of them.
    pub(crate) fn list(&self) -> &[Arc<Partition>] {
        &self.0
    }
}

impl PageSource for Partitions {
    fn file(&self, number: u16) -> Arc<dyn File> {
        self.0[usize::from(number)].file().clone()
    }

    fn page_bytes(&self) -> usize {
        self.0.first().map_or(0, |partition| partition.layout.page_bytes)
    }

    fn verify(&self, at: PageAddress, page: &[u8]) -> Result<()> {
        self.0[usize::from(at.file)].verify(at.page, page)
    }
}
