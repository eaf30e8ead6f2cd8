//! The pages of a partition in which a look-up may find a row.

use std::ops::Range;

/// Pages that may have one row, found without an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidates<'a> {
    /// The candidates, if there are no more than two.
    few: [u32; 2],
    few_count: u8,
    listed: &'a [u32],
}

impl<'a> Candidates<'a> {
    /// No page.
    pub(crate) const NONE: Self = Self { few: [0; 2], few_count: 0, listed: &[] };

    /// Pages of a sorted partition, at most two: one of them may have the row.
    #[inline]
    pub(super) fn of_range(pages: &Range<u32>) -> Self {
        let count = pages.end - pages.start;
        debug_assert!(count <= 2, "{pages:?}");
        let few = [pages.start, pages.start.wrapping_add(1)];
        Self { few, few_count: count as u8, listed: &[] }
    }

    /// The one page that may have it.
    #[inline]
    pub(super) fn of_page(page: u32) -> Self {
        Self { few: [page, 0], few_count: 1, listed: &[] }
    }

    /// Some pages of a frozen partition.
    #[inline]
    pub(super) fn of_list(listed: &'a [u32]) -> Self {
        Self { few: [0; 2], few_count: 0, listed }
    }

    /// The pages; of a frozen partition those with rows at home first, then replicas.
    #[inline]
    pub(crate) fn pages(&self) -> &[u32] {
        match self.listed {
            [] => &self.few[..usize::from(self.few_count)],
            listed => listed,
        }
    }

    /// The pages, one by one.
    #[inline]
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> + 'a {
        (0..self.pages().len()).map(move |at| self.pages()[at])
    }
}
