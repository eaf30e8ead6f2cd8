//! Pages that are filled for stretches of training to come: an append point of the log for each of
//! some stretches ahead, whose pages are filled in memory of their own.
//!
//! A row that leaves memory is written to the page of the stretch that uses it next, as a schedule
//! of the training tells. So the rows of a stretch lie together and are read together, and their
//! copies are outdated together, so that whole segments become free and cleaning moves nothing.
//! (External-memory algorithms call that time-forward processing.) A row that is in no schedule
//! goes where rows go without one.

use super::writer::Stream;
use crate::config::Stretch;
use crate::storage::buffer::KeyHasher;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// Number of append points for stretches, and number of stretches that share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StretchPoints {
    /// Append points.
    pub count: u32,
    /// Stretches in a row that share one: they come so close together that what is read for the
    /// first is there for the others, or memory has no room for more points.
    pub width: u32,
}

impl StretchPoints {
    /// Bytes that they take, of pages of so many bytes.
    pub(crate) fn bytes(self, page_bytes: usize) -> u64 {
        // Beside a page, its number in a table that is never more than seven eighths full.
        u64::from(self.count) * (page_bytes as u64 + 64)
    }

    /// The append point of a stretch, from 0 on. A stretch that comes later than there are points
    /// has that of one that comes before.
    fn of(self, stretch: Stretch) -> usize {
        (stretch.number() / self.width % self.count) as usize
    }
}

/// The pages of all append points of stretches.
#[derive(Debug)]
pub(super) struct Staging {
    points: StretchPoints,
    page_words: usize,
    /// A page for each point. Words, because rows are read from them as such.
    words: Vec<u32>,
    /// The append point of each page that is being filled, by its number.
    begun: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
}

impl Staging {
    /// For pages of so many bytes.
    pub(super) fn new(points: StretchPoints, page_bytes: usize) -> Self {
        let mut begun = HashMap::default();
        begun.reserve(points.count as usize);
        let page_words = page_bytes / size_of::<u32>();
        let words = vec![0; points.count as usize * page_words];
        Self { points, page_words, words, begun }
    }

    pub(super) fn points(&self) -> StretchPoints {
        self.points
    }

    /// Allocated bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.points.bytes(self.page_words * size_of::<u32>())
    }

    /// The append point, among all of the log, of the rows that a stretch uses next.
    pub(super) fn point_of(&self, stretch: Stretch) -> usize {
        Stream::COUNT + self.points.of(stretch)
    }

    fn place(&self, point: usize) -> std::ops::Range<usize> {
        let first = (point - Stream::COUNT) * self.page_words;
        first..first + self.page_words
    }

    /// The bytes of the page of an append point.
    pub(super) fn page(&self, point: usize) -> &[u8] {
        bytemuck::cast_slice(&self.words[self.place(point)])
    }

    /// The same, to be filled.
    pub(super) fn page_mut(&mut self, point: usize) -> &mut [u8] {
        let place = self.place(point);
        bytemuck::cast_slice_mut(&mut self.words[place])
    }

    /// A page is being filled at an append point from here on.
    pub(super) fn begin(&mut self, page: u32, point: usize) {
        self.begun.insert(u64::from(page), point as u32);
    }

    /// A page has been handed on.
    pub(super) fn end(&mut self, page: u32) {
        self.begun.remove(&u64::from(page));
    }

    /// The append point where a page is being filled.
    pub(super) fn point_at(&self, page: u32) -> Option<usize> {
        self.begun.get(&u64::from(page)).map(|point| *point as usize)
    }
}
