//! From one level to the next: each part becomes two, and queries lose what needs no more care.
//!
//! A query goes on in a half where it has two rows or more. The others are settled: with one row in
//! a half it will read one page for it, whatever happens there.

use super::level::{EdgeSums, Levels, Part, edges_of, groups, is_shared, rows_of};
use super::passes::{Pins, Sums, add};
use crate::parallel::{self, Carver, chunks};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// In place of the number of an edge: the half has none of it.
const DROPPED: u32 = u32::MAX;

/// The future of one half of a part.
#[derive(Clone, Debug)]
struct Half {
    rows: Range<usize>,
    /// One page or less: it is not cut again.
    is_page: bool,
    edges: Range<usize>,
    /// The begin of its first row's pins, and the end of its last row's.
    pins: Range<usize>,
}

/// The halves of a part, and the pages that are settled by the cut.
#[derive(Clone, Debug)]
struct Cut {
    halves: [Half; 2],
    settled: u64,
}

impl Levels<'_> {
    /// Cuts all parts.
    pub(super) fn split(&mut self) {
        let mut numbers = vec![[DROPPED; 2]; self.counts.total.len()];
        let mut cuts = self.number_edges(&mut numbers);
        let mut edges = 0;
        for cut in &mut cuts {
            self.settled += cut.settled;
            for half in &mut cut.halves {
                half.edges = edges..edges + half.edges.len();
                edges = half.edges.end;
            }
        }
        let mut counts = EdgeSums::zero(edges);
        carry_totals(&self.parts, &cuts, &self.counts, &self.counts, &mut counts);
        let mut weight_sums = self.weight_sums.as_ref().map(|_| EdgeSums::zero(edges));
        if let (Some(old), Some(new)) = (&self.weight_sums, &mut weight_sums) {
            carry_totals(&self.parts, &cuts, &self.counts, old, new);
        }
        self.move_rows(&numbers, &mut cuts, &counts, weight_sums.as_ref());
        self.counts = counts;
        self.weight_sums = weight_sums;
        std::mem::swap(&mut self.starts, &mut self.next_starts);
        std::mem::swap(&mut self.lens, &mut self.next_lens);
        std::mem::swap(&mut self.pins, &mut self.next_pins);
        let rows_per_page = self.options.rows_per_page;
        self.parts.clear();
        for half in cuts.into_iter().flat_map(|cut| cut.halves) {
            if !half.edges.is_empty() {
                self.parts.push(Part::new(half.rows, half.edges, half.pins, rows_per_page));
            }
        }
    }

    /// Numbers the edges of each half from 0 on.
    fn number_edges(&self, numbers: &mut [[u32; 2]]) -> Vec<Cut> {
        let rows_per_page = self.options.rows_per_page;
        let cuts = self.parts.iter().map(|part| first_cut(part, rows_per_page));
        let mut cuts = cuts.collect::<Vec<_>>();
        let mut numbers = Carver::new(numbers);
        let mut cut = Carver::new(&mut cuts);
        let mut tasks = Vec::new();
        for group in groups(&self.parts, self.options.threads) {
            let parts = &self.parts[group.clone()];
            tasks.push((parts, numbers.take(&edges_of(parts)), cut.take(&group)));
        }
        parallel::run(
            self.options.threads,
            tasks,
            || (),
            |(), (parts, numbers, cuts)| {
                let mut numbers = Carver::new(numbers);
                for (part, cut) in parts.iter().zip(cuts) {
                    let first = parts[0].edges.start;
                    let edges = part.edges.start - first..part.edges.end - first;
                    number_part(self.counts.of(&part.edges), numbers.take(&edges), cut);
                }
            },
        );
        cuts
    }

    /// Puts the rows of each half together, with what is left of their pins.
    fn move_rows(
        &mut self,
        numbers: &[[u32; 2]],
        cuts: &mut [Cut],
        counts: &EdgeSums,
        weight_sums: Option<&EdgeSums>,
    ) {
        let mut next_weights = self.weights.as_ref().map(|weights| vec![0; weights.len()]);
        let source = Source {
            order: &self.order,
            side: &self.side,
            pins: Pins {
                starts: &self.starts,
                lens: &self.lens,
                pins: &self.pins,
                weights: self.weights.as_deref(),
            },
            numbers,
            counts,
            weight_sums,
            rows_per_page: self.options.rows_per_page,
        };
        let threads = self.options.threads;
        let mut order = Carver::new(&mut self.next_order);
        let mut starts = Carver::new(&mut self.next_starts);
        let mut lens = Carver::new(&mut self.next_lens);
        let mut pins = Carver::new(&mut self.next_pins);
        let mut weights = next_weights.as_deref_mut().map(Carver::new);
        let mut cut = Carver::new(cuts);
        let (mut tasks, mut alone) = (Vec::new(), Vec::new());
        for group in groups(&self.parts, threads) {
            let parts = &self.parts[group.clone()];
            let rows = rows_of(parts);
            let region = parts[0].pins.start..parts[parts.len() - 1].pins.end;
            let target = Target {
                first_row: rows.start,
                first_pin: region.start,
                order: order.take(&rows),
                starts: starts.take(&rows),
                lens: lens.take(&rows),
                pins: pins.take(&region),
                weights: weights.as_mut().map(|weights| weights.take(&rows)),
            };
            let task = (parts, &*cut.take(&group), target);
            if is_shared(&parts[0], threads) { alone.push(task) } else { tasks.push(task) }
        }
        for (parts, cuts, target) in alone {
            source.move_by_all(threads, &parts[0], &cuts[0], target);
        }
        parallel::run(
            threads,
            tasks,
            || (),
            |(), (parts, cuts, mut target)| {
                for (part, cut) in parts.iter().zip(cuts) {
                    let mut target = target.stretch(&part.rows, &part.pins);
                    source.list_places(part, target.order);
                    source.move_rows::<false>(part, cut, &mut target);
                }
            },
        );
        for (part, cut) in self.parts.iter().zip(cuts) {
            let middle = self.next_starts[part.rows.start + part.left];
            cut.halves[0].pins = part.pins.start..middle;
            cut.halves[1].pins = middle..part.pins.end;
        }
        for part in &self.parts {
            self.order[part.rows.clone()].copy_from_slice(&self.next_order[part.rows.clone()]);
        }
        for half in cuts_of(&self.parts, self.options.rows_per_page) {
            let left = half.start + left_of(half.len(), self.options.rows_per_page);
            for place in half {
                self.side[place] = place >= left;
            }
        }
        if next_weights.is_some() {
            self.weights = next_weights;
        }
    }
}

/// Number of rows of a part that go to the left: half of its pages, all of them full.
pub(super) fn left_of(rows: usize, rows_per_page: usize) -> usize {
    (rows.div_ceil(rows_per_page).div_ceil(2) * rows_per_page).min(rows)
}

/// The rows of all halves.
fn cuts_of(parts: &[Part], rows_per_page: usize) -> impl Iterator<Item = Range<usize>> {
    parts.iter().flat_map(move |part| first_cut(part, rows_per_page).halves.map(|half| half.rows))
}

/// The cut of a part before its edges are numbered: both halves name the part's edges.
fn first_cut(part: &Part, rows_per_page: usize) -> Cut {
    let middle = part.rows.start + part.left;
    let half = |rows: Range<usize>| Half {
        is_page: rows.len() <= rows_per_page,
        rows,
        edges: part.edges.clone(),
        pins: part.pins.clone(),
    };
    Cut { halves: [half(part.rows.start..middle), half(middle..part.rows.end)], settled: 0 }
}

/// Gives edges numbers in both halves, and leaves in `cut` how many there are.
fn number_part(counts: Sums<'_>, numbers: &mut [[u32; 2]], cut: &mut Cut) {
    let mut next = [0u32; 2];
    let is_page = [cut.halves[0].is_page, cut.halves[1].is_page];
    for (edge, numbers) in numbers.iter_mut().enumerate() {
        let right = counts.right[edge].load(Relaxed);
        let rows = [counts.total[edge] - right, right];
        for half in 0..2 {
            if rows[half] < 2 || is_page[half] {
                cut.settled += u64::from(rows[half] > 0);
            } else {
                numbers[half] = next[half];
                next[half] += 1;
            }
        }
    }
    for (half, edges) in cut.halves.iter_mut().zip(next) {
        half.edges = 0..edges as usize;
    }
}

/// Totals of the halves' edges: what the old edges had on each side.
fn carry_totals(
    parts: &[Part],
    cuts: &[Cut],
    counts: &EdgeSums,
    old: &EdgeSums,
    new: &mut EdgeSums,
) {
    for (part, cut) in parts.iter().zip(cuts) {
        let mut next = [cut.halves[0].edges.start, cut.halves[1].edges.start];
        for edge in part.edges.clone() {
            let right = counts.right[edge].load(Relaxed);
            let rows = [counts.total[edge] - right, right];
            let right = old.right[edge].load(Relaxed);
            let sums = [old.total[edge] - right, right];
            for half in 0..2 {
                if rows[half] >= 2 && !cut.halves[half].is_page {
                    new.total[next[half]] = sums[half];
                    next[half] += 1;
                }
            }
        }
    }
}

/// The source of the rows of a cut.
struct Source<'a> {
    order: &'a [u32],
    side: &'a [bool],
    pins: Pins<'a>,
    numbers: &'a [[u32; 2]],
    counts: &'a EdgeSums,
    weight_sums: Option<&'a EdgeSums>,
    rows_per_page: usize,
}

/// Their target: stretches that begin with the row at `first_row`, and the pin at `first_pin`.
struct Target<'a> {
    first_row: usize,
    first_pin: usize,
    order: &'a mut [u32],
    starts: &'a mut [usize],
    lens: &'a mut [u32],
    pins: &'a mut [u32],
    weights: Option<&'a mut [u32]>,
}

impl Target<'_> {
    /// A part of these stretches.
    fn stretch(&mut self, rows: &Range<usize>, pins: &Range<usize>) -> Target<'_> {
        let within = rows.start - self.first_row..rows.end - self.first_row;
        Target {
            first_row: rows.start,
            first_pin: pins.start,
            order: &mut self.order[within.clone()],
            starts: &mut self.starts[within.clone()],
            lens: &mut self.lens[within.clone()],
            pins: &mut self.pins[pins.start - self.first_pin..pins.end - self.first_pin],
            weights: self.weights.as_mut().map(|weights| &mut weights[within]),
        }
    }
}

impl Source<'_> {
    /// Lists the places of a part's rows, those on the left first.
    fn list_places(&self, part: &Part, places: &mut [u32]) {
        let (left, right) = places.split_at_mut(part.left);
        let (mut left, mut right) = (left.iter_mut(), right.iter_mut());
        for place in part.rows.clone() {
            let next = if self.side[place] { right.next() } else { left.next() };
            *next.expect("passes keep the number of rows on each side") = place as u32;
        }
    }

    /// Moves rows from the places that `target.order` lists. `SHARED` if other threads move rows of
    /// the same part.
    fn move_rows<const SHARED: bool>(&self, part: &Part, cut: &Cut, target: &mut Target<'_>) {
        let numbers = &self.numbers[part.edges.clone()];
        let mut end = 0;
        for i in 0..target.order.len() {
            let (from, to) = (target.order[i] as usize, target.first_row + i);
            target.order[i] = self.order[from];
            target.starts[i] = target.first_pin + end;
            if let (Some(target), Some(weights)) = (&mut target.weights, self.pins.weights) {
                target[i] = weights[from];
            }
            let which = usize::from(to >= part.rows.start + part.left);
            let half = &cut.halves[which];
            let begin = end;
            if !half.edges.is_empty() {
                for &edge in self.pins.of(from) {
                    let number = numbers[edge as usize][which];
                    if number != DROPPED {
                        target.pins[end] = number;
                        end += 1;
                    }
                }
                if to >= half.rows.start + left_of(half.rows.len(), self.rows_per_page) {
                    let weight = self.pins.weights.map(|weights| weights[from]);
                    self.count::<SHARED>(&target.pins[begin..end], half, weight);
                }
            }
            target.lens[i] = (end - begin) as u32;
        }
    }

    /// Counts the pins of a row that is on the right of its half.
    fn count<const SHARED: bool>(&self, edges: &[u32], half: &Half, weight: Option<u32>) {
        let add_all = |sums: &[AtomicU32], by: u32| {
            edges.iter().for_each(|&edge| add::<SHARED>(&sums[edge as usize], by));
        };
        add_all(&self.counts.right[half.edges.clone()], 1);
        if let (Some(weight), Some(sums)) = (weight, self.weight_sums) {
            add_all(&sums.right[half.edges.clone()], weight);
        }
    }

    /// Moves the rows of one part by all threads.
    fn move_by_all(&self, threads: usize, part: &Part, cut: &Cut, target: Target<'_>) {
        self.list_places(part, target.order);
        let step = (part.rows.len() / (threads * 8)).max(1 << 10);
        let mut tasks = Vec::new();
        let mut first_pin = target.first_pin;
        let mut pins = Carver::new(target.pins);
        let mut starts = Carver::new(target.starts);
        let mut lens = Carver::new(target.lens);
        let mut weights = target.weights.map(Carver::new);
        for (chunk, places) in chunks(0..part.rows.len(), step).zip(target.order.chunks_mut(step)) {
            let len: usize =
                places.iter().map(|&from| self.pins.lens[from as usize] as usize).sum();
            let begin = first_pin - target.first_pin;
            tasks.push(Target {
                first_row: part.rows.start + chunk.start,
                first_pin,
                order: places,
                starts: starts.take(&chunk),
                lens: lens.take(&chunk),
                pins: pins.take(&(begin..begin + len)),
                weights: weights.as_mut().map(|weights| weights.take(&chunk)),
            });
            first_pin += len;
        }
        parallel::run(
            threads,
            tasks,
            || (),
            |(), mut target| {
                self.move_rows::<true>(part, cut, &mut target);
            },
        );
    }
}
