//! Rows that a training with a schedule reads and does not change: where they lie scattered.
//!
//! A row that has changed is written to the stretch that uses it next when it leaves. One that has
//! not keeps its place, among rows that are used at other times: its next read takes a page for
//! itself. Where pages have brought few rows, those that leave for others are written as they are,
//! so that the stretches that use them next find them together.
//!
//! It is not taken back when pages bring many rows: they do because rows were written so.

/// Rows are scattered where a page could hold more than so many times the rows that it brought:
/// writing a row costs more of the processor than reading one, and a page has few wide rows.
/// `docs/decisions/0032-rows-that-are-only-read-move-too.md` has what this gains.
const SCATTERED: u64 = 12;
/// Pages that were read before anything is decided, and before they are half forgotten.
const DECIDED_AFTER: u64 = 64;
const FORGOTTEN_AFTER: u64 = 64 * DECIDED_AFTER;

/// The rows that were read ahead, and the pages that brought them, by class.
#[derive(Debug, Default)]
pub(super) struct Scatter {
    classes: Vec<Read>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Read {
    rows: u64,
    pages: u64,
    is_scattered: bool,
}

impl Scatter {
    /// Counts rows and pages that were read for a class of so many rows a page.
    pub(super) fn count(&mut self, class: usize, (rows, pages): (u64, u64), rows_per_page: u64) {
        if self.classes.len() <= class {
            self.classes.resize(class + 1, Read::default());
        }
        let read = &mut self.classes[class];
        read.rows += rows;
        read.pages += pages;
        if read.pages >= DECIDED_AFTER && SCATTERED * read.rows < read.pages * rows_per_page {
            read.is_scattered = true;
        }
        if read.pages >= FORGOTTEN_AFTER {
            (read.rows, read.pages) = (read.rows / 2, read.pages / 2);
        }
    }

    /// Whether pages have brought few rows of a class.
    pub(super) fn is_scattered(&self, class: usize) -> bool {
        self.classes.get(class).is_some_and(|read| read.is_scattered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_scattered_where_pages_bring_a_twelfth_of_what_fits() {
        let mut scatter = Scatter::default();
        assert!(!scatter.is_scattered(0), "nothing was read");
        scatter.count(1, (DECIDED_AFTER * 2, DECIDED_AFTER), 24);
        assert!(!scatter.is_scattered(1), "a page has a twelfth of its rows");
        scatter.count(2, (DECIDED_AFTER - 1, DECIDED_AFTER - 1), 13);
        assert!(!scatter.is_scattered(2), "of too few pages nothing is said");
        scatter.count(2, (1, 1), 13);
        assert!(scatter.is_scattered(2));
        assert!(!scatter.is_scattered(0) && !scatter.is_scattered(1), "each class is apart");
        scatter.count(2, (DECIDED_AFTER * 100, DECIDED_AFTER * 25), 13);
        assert!(scatter.is_scattered(2), "they come together because they are written so");
    }

    #[test]
    fn what_was_read_long_ago_hides_nothing() {
        let mut scatter = Scatter::default();
        scatter.count(0, (FORGOTTEN_AFTER * 100, FORGOTTEN_AFTER), 16);
        let mut pages = 0;
        while !scatter.is_scattered(0) {
            scatter.count(0, (DECIDED_AFTER, DECIDED_AFTER), 16);
            pages += DECIDED_AFTER;
            assert!(pages < 16 * FORGOTTEN_AFTER);
        }
    }
}
