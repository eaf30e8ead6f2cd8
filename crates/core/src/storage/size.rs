//! Page sizes: which ones rows of a length may be given, and which one a device is best at.

use super::PageLayout;
use crate::io::DeviceCurve;

/// Page sizes that a new class considers, smallest first.
pub(crate) const PAGE_SIZES: [usize; 6] = [512, 1024, 2048, 4096, 8192, 16_384];
/// A larger page is taken while its request rate stays above this share of the best.
const PAGE_RATE_SHARE: f64 = 0.85;
/// Rows fill at least this share of a page, and under a disk bound this share of what they can.
const FILLED_MIN: f64 = 0.75;
const FILLED_SHARE: f64 = 0.95;
const PAGE_BYTES_DEFAULT: usize = 4096;

/// The page sizes allowed for rows of a length, whatever the device.
struct Pages {
    alignment: usize,
    row_bytes: usize,
    /// Rows fill at least this share of a page.
    filled_min: f64,
    /// The page where the device was not measured, or no other is good.
    usual: usize,
}

impl Pages {
    fn of(row_bytes: usize, alignment: usize, bounded: bool) -> Self {
        let sizes = || PAGE_SIZES.into_iter().chain([32_768, 65_536]);
        let best_filled = sizes().map(|page| filled(page, row_bytes)).fold(0.0, f64::max);
        // Rows that are hardly longer than their entry in the directory fill no page well.
        let least_filled = FILLED_MIN.min(FILLED_SHARE * best_filled);
        let filled_min = if bounded { FILLED_SHARE * best_filled } else { 0.0 }.max(least_filled);
        let enough = |page: &usize| {
            *page >= alignment.max(PAGE_BYTES_DEFAULT) && filled(*page, row_bytes) >= least_filled
        };
        let usual = sizes().find(enough).unwrap_or(65_536);
        Self { alignment, row_bytes, filled_min, usual }
    }

    /// Whether a device may be such that this page is chosen for it.
    fn suits(&self, page: usize) -> bool {
        page >= self.alignment && filled(page, self.row_bytes) >= self.filled_min
    }

    /// All of them, smallest first.
    fn possible(&self) -> Vec<usize> {
        let mut pages: Vec<usize> =
            PAGE_SIZES.into_iter().filter(|page| self.suits(*page)).collect();
        pages.push(self.usual);
        pages.sort_unstable();
        pages.dedup();
        pages
    }
}

/// The share of a page that rows fill.
fn filled(page_bytes: usize, row_bytes: usize) -> f64 {
    let rows = PageLayout::new(page_bytes, row_bytes, 0, 0).map_or(0, |l| l.rows_per_page);
    (rows * row_bytes) as f64 / page_bytes as f64
}

/// All pages that a class of such rows may get, smallest first, whatever the device does; `bounded`
/// tells whether the disk is.
pub(crate) fn possible_pages(row_bytes: usize, alignment: usize, bounded: bool) -> Vec<usize> {
    Pages::of(row_bytes, alignment, bounded).possible()
}

/// The largest page whose request rate is close to the best, and which rows fill well: under a disk
/// bound nearly as well as any, because what pages leave empty is room that cleaning lacks.
pub(crate) fn choose_page(
    row_bytes: usize,
    alignment: usize,
    curve: Option<&DeviceCurve>,
    bounded: bool,
) -> usize {
    let pages = Pages::of(row_bytes, alignment, bounded);
    let Some(curve) = curve else { return pages.usual };
    // If a longer request measured faster, somebody else was using the device meanwhile.
    let rate = |page: usize| {
        let longer = PAGE_SIZES.iter().filter(|size| **size >= page);
        longer.map(|size| 1.0 / curve.cost(*size)).fold(0.0, f64::max)
    };
    let best = rate(alignment);
    let usable = |page: &usize| pages.suits(*page) && rate(*page) >= PAGE_RATE_SHARE * best;
    PAGE_SIZES.iter().copied().rfind(usable).unwrap_or(pages.usual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::measure::CurvePoint;

    fn curve(rates: [f64; 6]) -> DeviceCurve {
        let point = |(bytes, requests_per_s)| CurvePoint { bytes, requests_per_s };
        DeviceCurve { depth: 64, points: PAGE_SIZES.into_iter().zip(rates).map(point).collect() }
    }

    #[test]
    fn a_page_is_the_largest_that_reads_at_nearly_the_best_rate() {
        let page = |rates| choose_page(128, 512, Some(&curve(rates)), false);
        assert_eq!(page([100.0, 100.0, 100.0, 95.0, 70.0, 40.0]), 4096);
        assert_eq!(page([200.0, 150.0, 120.0, 100.0, 70.0, 40.0]), 512);
        // A dip before a faster, longer request is noise.
        assert_eq!(page([100.0, 60.0, 60.0, 95.0, 70.0, 40.0]), 4096);
        assert_eq!(choose_page(128, 4096, Some(&curve([200.0; 6])), false), 16_384);
    }

    #[test]
    fn rows_of_every_length_get_a_page_of_a_useful_size() {
        for row_bytes in [4, 8, 12, 16, 64, 132, 512, 1024] {
            assert_eq!(choose_page(row_bytes, 512, None, false), 4096, "{row_bytes}");
            let page = choose_page(row_bytes, 512, Some(&curve([100.0; 6])), true);
            assert!((4096..=16_384).contains(&page), "{row_bytes}: {page}");
        }
        assert_eq!(choose_page(60_000, 512, None, false), 65_536);
    }
}
