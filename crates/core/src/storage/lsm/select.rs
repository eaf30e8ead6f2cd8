//! Which of several pages to read for a row: frozen pages have replicas of some rows.
//!
//! The fewest pages that have all rows of a batch are a minimum set cover, which is NP-hard. One
//! pass reads few more (MaxEmbed, ASPLOS 2024, section 6.1): rows with the fewest pages come first,
//! and for each that no chosen page has, the page is chosen that has most such rows. How many these
//! are the wants of the batch tell, so no table from pages to rows is kept in memory.

use crate::storage::{PageAddress, Want};
use std::ops::Range;

/// The wants of one batch by miss and by page.
struct Batch<'a> {
    wants: &'a [Want],
    /// Which miss each want is of: misses are numbered here from 0 on.
    miss_of: Vec<u32>,
    /// Places of wants, those of a page one behind the other.
    by_page: Vec<u32>,
    /// Where in `by_page` the page of each want begins.
    page_begins: Vec<u32>,
    /// Whether each miss has a page that was chosen.
    is_served: Vec<bool>,
}

/// Leaves one want of each miss that has several, where all of its pages have replicas: each has
/// its row. Wants of a miss follow each other. Returns whether any was left out.
pub(super) fn select(wants: &mut Vec<Want>, has_replicas: impl Fn(PageAddress) -> bool) -> bool {
    if wants.windows(2).all(|pair| pair[0].miss != pair[1].miss) {
        return false;
    }
    let misses = misses_of(wants);
    let mut batch = Batch::new(wants, &misses);
    let mut is_chosen = vec![false; wants.len()];
    // Rows with the fewest pages first; all others have a choice by then.
    let mut order: Vec<u32> = (0..misses.len() as u32).collect();
    order.sort_by_key(|miss| misses[*miss as usize].len());
    for miss in order {
        if batch.is_served[miss as usize] {
            continue;
        }
        let of_miss = misses[miss as usize].clone();
        if of_miss.len() > 1 && !wants[of_miss.clone()].iter().all(|want| has_replicas(want.at)) {
            // Each of these pages alone can tell.
            batch.is_served[miss as usize] = true;
            is_chosen[of_miss].fill(true);
            continue;
        }
        let best = match of_miss.len() {
            1 => of_miss.start,
            // Of equal ones the first, which is the home of the row.
            _ => of_miss.rev().max_by_key(|want| batch.unserved(*want).count()).unwrap_or(0),
        };
        let served: Vec<usize> = batch.unserved(best).collect();
        for want in served {
            is_chosen[want] = true;
            batch.is_served[batch.miss_of[want] as usize] = true;
        }
    }
    let before = wants.len();
    let mut chosen = is_chosen.into_iter();
    wants.retain(|_| chosen.next() == Some(true));
    wants.len() < before
}

/// Which wants each miss has.
fn misses_of(wants: &[Want]) -> Vec<Range<usize>> {
    let mut at = 0;
    let of_miss = wants.chunk_by(|a, b| a.miss == b.miss);
    of_miss.map(|wants| (at, at += wants.len()).0..at).collect()
}

impl<'a> Batch<'a> {
    fn new(wants: &'a [Want], misses: &[Range<usize>]) -> Self {
        let mut miss_of = vec![0; wants.len()];
        for (miss, of_miss) in (0..).zip(misses) {
            miss_of[of_miss.clone()].fill(miss);
        }
        let page = |at: &u32| wants[*at as usize].at;
        let mut by_page: Vec<u32> = (0..wants.len() as u32).collect();
        by_page.sort_unstable_by_key(|at| (page(at), *at));
        let mut page_begins = vec![0; wants.len()];
        let mut begin = 0;
        for of_page in by_page.chunk_by(|a, b| page(a) == page(b)) {
            of_page.iter().for_each(|at| page_begins[*at as usize] = begin);
            begin += of_page.len() as u32;
        }
        let is_served = vec![false; misses.len()];
        Self { wants, miss_of, by_page, page_begins, is_served }
    }

    /// Wants of the page of a want whose misses no chosen page serves yet.
    fn unserved(&self, want: usize) -> impl Iterator<Item = usize> + '_ {
        let page = self.wants[want].at;
        let from = self.by_page[self.page_begins[want] as usize..].iter();
        let of_page = from.map(|at| *at as usize).take_while(move |at| self.wants[*at].at == page);
        of_page.filter(|at| !self.is_served[self.miss_of[*at] as usize])
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
