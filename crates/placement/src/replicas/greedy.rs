//! Residual greedy: each replica page is the one that saves most of what queries still read.
//!
//! Every query of the trace has a current cover, the page that serves each of its rows. A page is
//! made around a base, of rows that the base's queries read other pages for; rows that are alone in
//! their page count most, because such a page need not be read if the row lies here. Its saving is
//! counted exactly in the covers of the base's queries: the pages of which it has every row that is
//! asked for, less one for itself. (To count the other queries of its rows too would visit nearly
//! the whole trace for each base, since hot rows are in most pages.) Then the covers of all queries
//! change, and other bases save less: a queue is keyed by the saving of each when it was looked at
//! last, and the first ones are looked at again until the first is up to date (lazy greedy, Minoux
//! 1978).

use super::{Counter, ReplicaOptions, go_on, scores};
use crate::error::Result;
use crate::parallel;
use crate::partition::Next;
use crate::placement::Placement;
use crate::trace::{Inverse, Queries};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most bases that are looked at together.
const BATCH_MAX: usize = 64;
/// With more rows of a query in a page, marks are faster than a search among their pages.
const FEW_ROWS: u32 = 16;
/// The count of the only row of a page for a base that is alone, too.
const COUNT_ONE: u64 = 1 << 20;

/// Replica pages by residual greedy, the best first. There are fewer than the ratio allows if no
/// further page saves anything.
///
/// `progress(done, of)` is called often, on the caller's thread: pages that are chosen and bases
/// that were looked at, and how many there may be.
///
/// *Errors*: [`Misuse`](crate::ErrorKind::Misuse) for options or queries that do not fit,
/// [`Stopped`](crate::ErrorKind::Stopped) if `progress` says so.
pub fn residual(
    placement: &Placement,
    queries: Queries<'_>,
    options: &ReplicaOptions,
    progress: impl FnMut(usize, usize) -> Next,
) -> Result<Vec<Vec<u32>>> {
    options.check(queries, placement.num_rows())?;
    let queue = queue_of(&scores(placement, queries));
    let mut covers = Covers::new(placement, queries, options);
    choose(&Around, &mut covers, queue, progress)
}

/// Bases by what their pages could save.
fn queue_of(scores: &[u64]) -> BinaryHeap<Entry> {
    let scores = (0u32..).zip(scores).filter(|(_, score)| **score > 0);
    scores.map(|(row, score)| Entry { saved: *score, base: Reverse(row), seen: 0 }).collect()
}

/// Replica pages of those that are `made`, then, where none of them saves anything more, around
/// bases. See [`residual`].
pub(super) fn best_of(
    made: Vec<&[u32]>,
    placement: &Placement,
    queries: Queries<'_>,
    options: &ReplicaOptions,
    mut progress: impl FnMut(usize, usize) -> Next,
) -> Result<Vec<Vec<u32>>> {
    let mut covers = Covers::new(placement, queries, options);
    let (mut ends, all) = (false, made.len() + covers.num_pages);
    // Nothing is known of them: each is looked at before one is chosen.
    let entry = |number| Entry { saved: u64::MAX, base: Reverse(number), seen: 0 };
    let queue = (0..made.len() as u32).map(entry).collect();
    let mut pages = choose(&Made(&made), &mut covers, queue, |done, _| {
        let next = progress(done, all);
        ends |= next == Next::Finish;
        next
    })?;
    if !ends && pages.len() < covers.num_pages {
        let queue = queue_of(&covers.scores());
        pages.extend(choose(&Around, &mut covers, queue, |_, _| progress(all, all))?);
    }
    Ok(pages)
}

/// The source of replica pages, each known by a number.
trait Source: Sync {
    /// The page of a number, by the covers of this moment.
    fn page(&self, number: u32, covers: &Covers<'_>, scratch: &mut Scratch) -> Vec<u32>;

    /// The pages that queries would no more read if they read rows of this page from there.
    fn saved(&self, page: &[u32], covers: &Covers<'_>, scratch: &mut Scratch) -> u64;
}

/// Pages around bases, by number of the base.
struct Around;

impl Source for Around {
    fn page(&self, base: u32, covers: &Covers<'_>, scratch: &mut Scratch) -> Vec<u32> {
        covers.page_of(base, scratch)
    }

    fn saved(&self, page: &[u32], covers: &Covers<'_>, scratch: &mut Scratch) -> u64 {
        covers.saved_by(page, scratch)
    }
}

/// Pages that others have made.
struct Made<'a>(&'a [&'a [u32]]);

impl Source for Made<'_> {
    fn page(&self, number: u32, _: &Covers<'_>, _: &mut Scratch) -> Vec<u32> {
        self.0[number as usize].to_vec()
    }

    fn saved(&self, page: &[u32], covers: &Covers<'_>, scratch: &mut Scratch) -> u64 {
        covers.saved_by_any(page, scratch)
    }
}

/// Adds pages of a source to those that covers have, by a queue of their numbers, while there is
/// room and one saves something. Returns what it has added.
fn choose(
    source: &impl Source,
    covers: &mut Covers<'_>,
    mut queue: BinaryHeap<Entry>,
    mut progress: impl FnMut(usize, usize) -> Next,
) -> Result<Vec<Vec<u32>>> {
    let (options, num_pages) = (covers.options, covers.num_pages - covers.added);
    let bases = queue.len();
    let scratch =
        || Scratch::new(covers.queries.num_rows(), covers.queries.len(), covers.pages_max);
    let scratches = (0..options.threads.clamp(1, BATCH_MAX)).map(|_| scratch());
    let mut scratches = scratches.collect::<Vec<_>>();
    let mut pages = Vec::new();
    // Number of changes of the covers; savings found before the last one are out of date.
    let mut now = 1;
    let mut batch_len = 1;
    let mut looked_at = 0;
    while pages.len() < num_pages {
        let Some(first) = queue.pop() else { break };
        if first.seen == now {
            if first.saved == 0 {
                break;
            }
            let page = source.page(first.base.0, covers, &mut scratches[0]);
            covers.add(&page, &mut scratches[0]);
            pages.push(page);
            now += 1;
            batch_len = 1;
            continue;
        }
        let mut batch = vec![first];
        while batch.len() < batch_len {
            match queue.peek() {
                Some(next) if next.seen != now => batch.extend(queue.pop()),
                _ => break,
            }
        }
        looked_at += batch.iter().filter(|entry| entry.seen == 0).count();
        if !go_on(progress(pages.len() + looked_at, num_pages + bases), pages.len())? {
            break;
        }
        batch_len = (batch_len * 2).min(BATCH_MAX);
        let step = batch.len().div_ceil(scratches.len());
        let tasks = batch.chunks_mut(step).zip(&mut scratches).collect();
        let covers = &*covers;
        parallel::run(
            options.threads,
            tasks,
            || (),
            |(), (entries, scratch)| {
                for entry in entries {
                    let page = source.page(entry.base.0, covers, scratch);
                    (entry.saved, entry.seen) = (source.saved(&page, covers, scratch), now);
                }
            },
        );
        queue.extend(batch);
    }
    Ok(pages)
}

/// A base, or another number of a page, and what the page saved when it was looked at last. Equal
/// ones go by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    saved: u64,
    base: Reverse<u32>,
    seen: u64,
}

/// The pages that queries read, as far as replica pages are chosen.
struct Covers<'a> {
    queries: Queries<'a>,
    options: &'a ReplicaOptions,
    rows_per_page: usize,
    inverse: Inverse,
    /// The page that serves each pin.
    served_by: Vec<u32>,
    /// The begin of each query's pins.
    starts: Vec<usize>,
    /// Home pages, and replica pages there may be, and are.
    home_pages: usize,
    num_pages: usize,
    added: usize,
    pages_max: usize,
}

/// Memory of a thread.
struct Scratch {
    counter: Counter,
    /// Of each page: rows of a query that it serves.
    served: Vec<u32>,
    /// Of each query: rows of a page that it asks for; and the queries that have some.
    rows_in: Vec<u32>,
    asking: Vec<u32>,
    in_page: Vec<bool>,
    /// Pages that a query may no more read.
    vacant: Vec<u32>,
}

impl Scratch {
    fn new(num_rows: usize, num_queries: usize, num_pages: usize) -> Self {
        Self {
            counter: Counter::new(num_rows),
            served: vec![0; num_pages],
            rows_in: vec![0; num_queries],
            asking: Vec::new(),
            in_page: vec![false; num_rows],
            vacant: Vec::new(),
        }
    }
}

impl<'a> Covers<'a> {
    fn new(placement: &Placement, queries: Queries<'a>, options: &'a ReplicaOptions) -> Self {
        let num_pages = options.num_pages(placement.num_rows(), placement.rows_per_page());
        let mut starts = Vec::with_capacity(queries.len() + 1);
        starts.push(0);
        let mut served_by = Vec::with_capacity(queries.pins());
        for rows in queries.iter() {
            served_by.extend(rows.iter().map(|&row| placement.page_of(row) as u32));
            starts.push(served_by.len());
        }
        Self {
            queries,
            options,
            rows_per_page: placement.rows_per_page(),
            inverse: queries.inverse(),
            served_by,
            starts,
            home_pages: placement.num_pages(),
            num_pages,
            added: 0,
            pages_max: placement.num_pages() + num_pages,
        }
    }

    /// Σ (λ - 1) over the queries of each row, where a query reads λ pages.
    fn scores(&self) -> Vec<u64> {
        let mut scores = vec![0; self.queries.num_rows()];
        let mut seen_in = vec![0u32; self.pages_max];
        for (query, rows) in (0u32..).zip(self.queries.iter()) {
            let mut pages = 0u64;
            for &page in self.pages_of_query(query) {
                let seen = &mut seen_in[page as usize];
                pages += u64::from(std::mem::replace(seen, query + 1) != query + 1);
            }
            rows.iter().for_each(|&row| scores[row as usize] += pages.saturating_sub(1));
        }
        scores
    }

    fn pages_of_query(&self, query: u32) -> &[u32] {
        &self.served_by[self.starts[query as usize]..self.starts[query as usize + 1]]
    }

    /// The page around a base: rows that save most together with it.
    fn page_of(&self, base: u32, scratch: &mut Scratch) -> Vec<u32> {
        let Scratch { counter, served, .. } = scratch;
        for query in self.options.sample(self.inverse.queries_of(base)) {
            let rows = self.queries.get(query as usize);
            let pages = self.pages_of_query(query);
            let mut own = 0;
            for (&row, &page) in rows.iter().zip(pages) {
                served[page as usize] += 1;
                own = if row == base { page } else { own };
            }
            let alone = COUNT_ONE / u64::from(served[own as usize].max(1));
            for (&row, &page) in rows.iter().zip(pages) {
                if page != own {
                    counter.add(row, (alone / u64::from(served[page as usize])).max(1));
                }
            }
            pages.iter().for_each(|&page| served[page as usize] = 0);
        }
        let mut page = vec![base];
        counter.take_most(self.rows_per_page - 1, &mut page);
        page
    }

    /// The pages that the queries of a page's base, its first row, would no more read.
    fn saved_by(&self, page: &[u32], scratch: &mut Scratch) -> u64 {
        page.iter().for_each(|&row| scratch.in_page[row as usize] = true);
        let queries = self.inverse.queries_of(page[0]);
        let (mut saved, mut taken) = (0u64, 0u64);
        for query in self.options.sample(queries) {
            saved += self.saved_of(query, &scratch.in_page, &mut scratch.served);
            taken += 1;
        }
        page.iter().for_each(|&row| scratch.in_page[row as usize] = false);
        saved * queries.len() as u64 / taken.max(1)
    }

    /// The pages that a query would no more read if it read the rows that are in a page from there.
    /// `served` is 0 for all pages, and stays so.
    fn saved_of(&self, query: u32, in_page: &[bool], served: &mut [u32]) -> u64 {
        let rows = self.queries.get(query as usize);
        let pages = self.pages_of_query(query);
        // A page that serves a row that is not here is read all the same.
        for (&row, &page) in rows.iter().zip(pages) {
            if !in_page[row as usize] {
                served[page as usize] = 1;
            }
        }
        let mut unread = 0u64;
        for &page in pages {
            let served = &mut served[page as usize];
            unread += u64::from(*served == 0);
            *served = 1;
        }
        pages.iter().for_each(|&page| served[page as usize] = 0);
        unread.saturating_sub(1)
    }

    /// Whether a query that has `rows_in` rows in a page would read fewer pages with it: what
    /// [`Self::saved_of`] says, of a query of which few rows are here, as of most.
    fn saves(&self, query: u32, rows_in: u32, in_page: &[bool], vacant: &mut Vec<u32>) -> bool {
        let pins = || self.queries.get(query as usize).iter().zip(self.pages_of_query(query));
        let mut left = rows_in;
        vacant.clear();
        for (&row, &page) in pins() {
            if in_page[row as usize] {
                if !vacant.contains(&page) {
                    vacant.push(page);
                }
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        for (&row, page) in pins() {
            if vacant.len() < 2 {
                return false;
            }
            if !in_page[row as usize]
                && let Some(i) = vacant.iter().position(|one| one == page)
            {
                vacant.swap_remove(i);
            }
        }
        vacant.len() >= 2
    }

    /// The pages that all queries would no more read. Of rows that many ask for, a part of the
    /// queries stands for all.
    fn saved_by_any(&self, page: &[u32], scratch: &mut Scratch) -> u64 {
        let asked: usize = page.iter().map(|&row| self.inverse.queries_of(row).len()).sum();
        let most = self.options.queries_per_row_max.saturating_mul(page.len()).max(1);
        let step = asked.div_ceil(most).max(1);
        let Scratch { served, rows_in, asking, in_page, .. } = scratch;
        self.ask(page, step, rows_in, asking, in_page);
        let mut saved = 0;
        for query in asking.drain(..) {
            if std::mem::take(&mut rows_in[query as usize]) > 1 {
                saved += self.saved_of(query, in_page, served);
            }
        }
        page.iter().for_each(|&row| in_page[row as usize] = false);
        saved * step as u64
    }

    /// Marks the rows of a page, and counts how many of them each query asks for, of those queries
    /// whose number is a multiple of `step`.
    fn ask(
        &self,
        page: &[u32],
        step: usize,
        rows_in: &mut [u32],
        asking: &mut Vec<u32>,
        in_page: &mut [bool],
    ) {
        for &row in page {
            in_page[row as usize] = true;
            for &query in self.inverse.queries_of(row) {
                if step > 1 && !(query as usize).is_multiple_of(step) {
                    continue;
                }
                if rows_in[query as usize] == 0 {
                    asking.push(query);
                }
                rows_in[query as usize] += 1;
            }
        }
    }

    /// Adds a page: the queries that it saves pages of read their rows from it.
    fn add(&mut self, page: &[u32], scratch: &mut Scratch) {
        let Scratch { served, rows_in, asking, in_page, vacant, .. } = scratch;
        self.ask(page, 1, rows_in, asking, in_page);
        for query in asking.drain(..) {
            let rows_in = std::mem::take(&mut rows_in[query as usize]);
            let saves = match rows_in {
                0..2 => false,
                2..FEW_ROWS => self.saves(query, rows_in, in_page, vacant),
                _ => self.saved_of(query, in_page, served) > 0,
            };
            debug_assert_eq!(saves, self.saved_of(query, in_page, served) > 0);
            if !saves {
                continue;
            }
            let start = self.starts[query as usize];
            for (i, &row) in self.queries.get(query as usize).iter().enumerate() {
                if in_page[row as usize] {
                    self.served_by[start + i] = (self.home_pages + self.added) as u32;
                }
            }
        }
        page.iter().for_each(|&row| in_page[row as usize] = false);
        self.added += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines;
    use crate::random::Random;
    use crate::trace::Trace;

    #[test]
    fn what_a_page_saves_is_what_covers_lose() {
        let mut random = Random::new(21);
        for case in 0..50 {
            let queries = (0..60)
                .map(|_| (0..random.below(9)).map(|_| random.below(40) as u32).collect::<Vec<_>>());
            let trace = Trace::from_queries(40, queries.collect::<Vec<_>>()).unwrap();
            let placement = baselines::random(40, 5, case).unwrap();
            let options = ReplicaOptions::new(0.8);
            let mut covers = Covers::new(&placement, trace.queries(), &options);
            let mut scratch = Scratch::new(40, 60, covers.pages_max);
            let read = |covers: &Covers<'_>, queries: &[u32]| -> usize {
                let distinct = |&query: &u32| {
                    let mut pages = covers.pages_of_query(query).to_vec();
                    pages.sort_unstable();
                    pages.dedup();
                    pages.len()
                };
                queries.iter().map(distinct).sum()
            };
            let all = (0..60).collect::<Vec<_>>();
            for base in 0..6 {
                let page = covers.page_of(base, &mut scratch);
                assert!(page.len() <= 5 && page[0] == base);
                let saved = covers.saved_by(&page, &mut scratch);
                let saved_by_any = covers.saved_by_any(&page, &mut scratch);
                let own = covers.inverse.queries_of(base).to_vec();
                let before = (read(&covers, &own), read(&covers, &all));
                covers.add(&page, &mut scratch);
                let lost = before.0 - read(&covers, &own);
                assert_eq!(lost, saved as usize, "case {case}, base {base}");
                assert_eq!(before.1 - read(&covers, &all), saved_by_any as usize, "case {case}");
                assert!(saved_by_any >= saved);
                assert!(scratch.served.iter().chain(&scratch.rows_in).all(|&count| count == 0));
            }
        }
    }
}
