//! Selection of one page to read for a row that lies in several: frozen pages have replicas.
//!
//! The fewest pages that have all rows of a batch are a minimum set cover, which is NP-hard. One
//! pass reads few more (MaxEmbed, ASPLOS 2024, section 6.1): rows with the fewest pages come first,
//! and for each that no chosen page has, the page is chosen that has most such rows. The wants of
//! the batch give these counts, so no table from pages to rows is kept in memory.

use crate::storage::{PageAddress, Want};
use std::cell::RefCell;

thread_local! {
    /// The memory of a selection, kept for the next one of the thread.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Batches longer than this leave nothing behind in a thread.
const KEPT_WANTS_MAX: usize = 1 << 14;

/// A miss, by its wants.
#[derive(Clone, Copy, Debug)]
struct Miss {
    begin: u32,
    end: u32,
    /// Whether a page was chosen that has it.
    is_served: bool,
}

/// The wants of a batch by miss and by page.
#[derive(Debug, Default)]
struct Scratch {
    misses: Vec<Miss>,
    /// Index in `misses` of the miss that each want belongs to.
    miss_of: Vec<u32>,
    /// The page of each want and its place, those of a page one behind the other.
    by_page: Vec<(PageAddress, u32)>,
    /// The begin in `by_page` of the page of each want.
    page_begins: Vec<u32>,
    /// Misses by how many pages have them, the fewest first.
    order: Vec<u32>,
    is_chosen: Vec<bool>,
}

/// Leaves one want of each miss that has several, if all of its pages have replicas: then each has
/// its row. Wants of a miss follow each other. Returns whether any was left out.
pub(super) fn select(wants: &mut Vec<Want>, has_replicas: impl Fn(PageAddress) -> bool) -> bool {
    if wants.windows(2).all(|pair| pair[0].miss != pair[1].miss) {
        return false;
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.index(wants);
        scratch.choose(wants, has_replicas);
        let before = wants.len();
        let mut chosen = scratch.is_chosen.iter();
        wants.retain(|_| chosen.next() == Some(&true));
        if before > KEPT_WANTS_MAX {
            *scratch = Scratch::default();
        }
        wants.len() < before
    })
}

impl Scratch {
    /// Takes the wants of a batch in.
    fn index(&mut self, wants: &[Want]) {
        let Self { misses, miss_of, by_page, page_begins, order, is_chosen } = self;
        misses.clear();
        miss_of.clear();
        let mut begin = 0;
        for of_miss in wants.chunk_by(|a, b| a.miss == b.miss) {
            let end = begin + of_miss.len() as u32;
            miss_of.resize(end as usize, misses.len() as u32);
            misses.push(Miss { begin, end, is_served: false });
            begin = end;
        }
        by_page.clear();
        by_page.extend((0..).zip(wants).map(|(at, want)| (want.at, at)));
        by_page.sort_unstable();
        page_begins.clear();
        page_begins.resize(wants.len(), 0);
        let mut begin = 0;
        for of_page in by_page.chunk_by(|a, b| a.0 == b.0) {
            of_page.iter().for_each(|(_, at)| page_begins[*at as usize] = begin);
            begin += of_page.len() as u32;
        }
        order.clear();
        order.extend(0..misses.len() as u32);
        // Rows with the fewest pages first; all others have a choice by then.
        order.sort_unstable_by_key(|miss| {
            let Miss { begin, end, .. } = misses[*miss as usize];
            (end - begin, *miss)
        });
        is_chosen.clear();
        is_chosen.resize(wants.len(), false);
    }

    /// Chooses pages until each miss has one.
    fn choose(&mut self, wants: &[Want], has_replicas: impl Fn(PageAddress) -> bool) {
        for at in 0..self.order.len() {
            let miss = self.order[at] as usize;
            let Miss { begin, end, is_served } = self.misses[miss];
            let (begin, end) = (begin as usize, end as usize);
            if is_served {
                continue;
            }
            if end - begin > 1 && !wants[begin..end].iter().all(|want| has_replicas(want.at)) {
                // Each of these pages alone can tell.
                self.misses[miss].is_served = true;
                self.is_chosen[begin..end].fill(true);
                continue;
            }
            let (mut best, mut most) = (begin, 0);
            if end - begin > 1 {
                // Of equal ones the first, which is the home of the row.
                for want in begin..end {
                    let unserved = self.unserved(want);
                    if unserved > most {
                        (best, most) = (want, unserved);
                    }
                }
            }
            self.serve(best);
        }
    }

    /// Misses of the page of a want that no chosen page has.
    fn unserved(&self, want: usize) -> usize {
        let of_page = self.of_page(want);
        of_page.filter(|at| !self.misses[self.miss_of[*at] as usize].is_served).count()
    }

    /// Wants of the page of a want, by their places.
    fn of_page(&self, want: usize) -> impl Iterator<Item = usize> + '_ {
        let from = &self.by_page[self.page_begins[want] as usize..];
        let page = from[0].0;
        from.iter().take_while(move |(at, _)| *at == page).map(|(_, want)| *want as usize)
    }

    /// Chooses the page of a want for all misses that it has and no other page was chosen for.
    fn serve(&mut self, want: usize) {
        let begin = self.page_begins[want] as usize;
        let page = self.by_page[begin].0;
        for (at, want) in &self.by_page[begin..] {
            if *at != page {
                break;
            }
            let miss = &mut self.misses[self.miss_of[*want as usize] as usize];
            if !std::mem::replace(&mut miss.is_served, true) {
                self.is_chosen[*want as usize] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn want(file: u16, page: u32, miss: u32) -> Want {
        Want { at: PageAddress { file, page }, hint: 7, miss }
    }

    fn pages(wants: &[Want]) -> BTreeSet<PageAddress> {
        wants.iter().map(|want| want.at).collect()
    }

    /// The fewest pages that serve all misses, by trying all sets.
    fn fewest(wants: &[Want]) -> usize {
        let all: Vec<PageAddress> = pages(wants).into_iter().collect();
        let mut of_miss: BTreeMap<u32, u32> = BTreeMap::new();
        for want in wants {
            *of_miss.entry(want.miss).or_default() |= 1 << all.binary_search(&want.at).unwrap();
        }
        let sets = 0u32..1 << all.len();
        let covers = |set: &u32| of_miss.values().all(|pages| pages & set != 0);
        sets.filter(covers).map(u32::count_ones).min().unwrap() as usize
    }

    #[test]
    fn every_miss_keeps_one_of_its_wants_and_few_pages_are_left() {
        let mut state = 5u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let (mut left, mut best, mut homes) = (0, 0, 0);
        for case in 0..400 {
            let mut all = Vec::new();
            for miss in 0..1 + random(9) as u32 {
                let mut of_miss: Vec<u32> = vec![random(12) as u32];
                for _ in 0..random(4) {
                    let page = random(12) as u32;
                    if !of_miss.contains(&page) {
                        of_miss.push(page);
                    }
                }
                // Numbers of misses have gaps: some needed no page.
                all.extend(of_miss.iter().map(|page| want(3, *page, 2 * miss)));
            }
            let mut wants = all.clone();
            let changed = select(&mut wants, |_| true);
            assert_eq!(changed, wants.len() < all.len(), "case {case}");
            let misses = |wants: &[Want]| wants.iter().map(|want| want.miss).collect::<Vec<_>>();
            let mut distinct = misses(&all);
            distinct.dedup();
            assert_eq!(misses(&wants), distinct, "case {case}: one want for each miss");
            assert!(wants.iter().all(|want| all.contains(want)));
            left += pages(&wants).len();
            best += fewest(&all);
            let mut seen = BTreeSet::new();
            let home: Vec<Want> =
                all.iter().filter(|want| seen.insert(want.miss)).copied().collect();
            homes += pages(&home).len();
        }
        assert!(left * 100 <= best * 108, "{left} pages, {best} would do");
        assert!(left * 100 <= homes * 85, "{left} pages, {homes} homes");
    }

    #[test]
    fn pages_that_alone_can_tell_are_all_read() {
        // Two pages of the top, whose rows look alike in the index; then a row with replicas.
        let all = vec![want(0, 4, 0), want(0, 9, 0), want(1, 4, 1), want(1, 6, 1), want(1, 6, 2)];
        let mut wants = all.clone();
        assert!(select(&mut wants, |at| at.file == 1));
        assert_eq!(wants, [all[0], all[1], all[3], all[4]]);
    }

    #[test]
    fn without_a_choice_nothing_changes() {
        let mut wants = vec![want(1, 4, 0), want(1, 4, 1), want(1, 3, 5)];
        let before = wants.clone();
        assert!(!select(&mut wants, |_| panic!("asked about a page")));
        assert_eq!(wants, before);
        assert!(!select(&mut Vec::new(), |_| true));
    }
}
