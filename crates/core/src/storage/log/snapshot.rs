//! Pages of a log as they were at one moment, to be read without the lock of the class.

use super::ClassLog;
use super::find::LogPages;
use super::segments::Sequences;
use crate::error::Result;
use crate::metrics::ReadReport;
use crate::storage::{PageAddress, PageLayout, PageReader};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A page that had not reached the device.
struct CopiedPage {
    rows: usize,
    words: Vec<f32>,
}

/// A verified page with rows, as a [`PageSnapshot`] hands it over.
pub(super) struct ReadPage<'a> {
    pub(super) number: u32,
    pub(super) bytes: &'a [u8],
    /// Number of rows it holds.
    pub(super) rows: usize,
}

/// All that it takes to read pages of a log, copies of those included that had not reached the
/// device. A read ticket of the same moment keeps the others from being written again.
pub(super) struct PageSnapshot {
    pages: Arc<LogPages>,
    sequences: Sequences,
    in_memory: BTreeMap<u32, CopiedPage>,
}

impl PageSnapshot {
    pub(super) fn layout(&self) -> &PageLayout {
        &self.pages.layout
    }

    /// Name of the file of pages.
    pub(super) fn file_name(&self) -> &str {
        self.pages.file.name()
    }

    /// Gives `each` every one of `pages` (sorted, distinct), in no useful order. Pages read from
    /// the device are verified, and each must be the last one written in its place.
    pub(super) fn read(
        &self,
        pages: &[u32],
        reader: &mut PageReader,
        each: &mut dyn FnMut(ReadPage<'_>) -> Result<()>,
    ) -> Result<ReadReport> {
        let LogPages { layout, file } = &*self.pages;
        let mut left = Vec::with_capacity(pages.len());
        for number in pages.iter().copied() {
            match self.in_memory.get(&number) {
                Some(CopiedPage { rows, words }) => {
                    each(ReadPage { number, bytes: bytemuck::cast_slice(words), rows: *rows })?;
                }
                None => left.push(PageAddress { file: 0, page: number }),
            }
        }
        reader.read(&*self.pages, &left, &mut |at, bytes| {
            let number = at.page;
            layout.verify_sequence(bytes, number, file.name(), &self.sequences.of_page(number))?;
            each(ReadPage { number, bytes, rows: layout.rows_in(bytes) })
        })
    }

    /// Frees the copies of pages before `page`, which nobody will read again.
    pub(super) fn forget_before(&mut self, page: u32) {
        self.in_memory = self.in_memory.split_off(&page);
    }
}

impl ClassLog {
    /// The pages as they are now; of those in memory it has a copy where `wanted` says so.
    pub(super) fn page_snapshot(&self, wanted: impl Fn(u32) -> bool) -> PageSnapshot {
        let copied = |number| {
            let page = self.writer.page(number)?;
            let rows = self.writer.rows_in(number, page);
            Some((number, CopiedPage { rows, words: bytemuck::cast_slice(page).to_vec() }))
        };
        let in_memory = self.writer.pages_in_memory().filter(|page| wanted(*page));
        PageSnapshot {
            pages: Arc::clone(&self.pages),
            sequences: self.segments.sequences(),
            in_memory: in_memory.filter_map(copied).collect(),
        }
    }
}
