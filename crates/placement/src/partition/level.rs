//! All parts of one level, and the passes over them.
//!
//! Rows lie in order of their parts, and the pins of a row name edges of its part, numbered from 0.
//! So what a pass over a part touches lies close together, and closer on each level.

use super::passes::{self, Chosen, Curve, Fanout, Pins, Sums, WEIGHT_ONE};
use super::{Next, Objective, PartitionOptions, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::parallel::{self, Carver, chunks};
use crate::random::mix;
use crate::trace::Queries;
use std::ops::Range;
use std::sync::atomic::AtomicU32;

/// Pins of a task: enough that handing it out costs nothing, few enough for an even load.
const TASK_PINS: usize = 1 << 16;
/// A part with more pins is passed over by all threads together.
const SHARED_PINS: usize = 1 << 20;
/// A pass helps if it gains this share of what all passes over the part have gained. On five real
/// traces such a partition reads up to 1.2 % more pages than 32 passes on each level.
const GAIN_MIN: f64 = 5e-3;
/// After so many passes in a row that did not help a part stalls.
const IDLE_PASSES_MAX: usize = 2;
/// The chance by which a row of weight 1 counts as asked for.
const P: f64 = 0.5;

/// Rows that will be some of the pages, cut in two on this level.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    /// Number of rows that go to the left: whole pages.
    pub(super) left: usize,
    pub(super) edges: Range<usize>,
    /// The places of its rows' pins.
    pub(super) pins: Range<usize>,
    fanout: Fanout,
    /// The expected fanout before the first pass.
    first_expected: u64,
    idle_passes: usize,
    stalled: bool,
    moved: u64,
}

impl Part {
    /// A part that is still to be cut.
    pub(super) fn new(
        rows: Range<usize>,
        edges: Range<usize>,
        pins: Range<usize>,
        rows_per_page: usize,
    ) -> Self {
        let left = rows.len().div_ceil(rows_per_page).div_ceil(2) * rows_per_page;
        let fanout = Fanout::default();
        Self {
            rows,
            left,
            edges,
            pins,
            fanout,
            first_expected: 0,
            idle_passes: 0,
            stalled: false,
            moved: 0,
        }
    }

    /// Notes what a pass found and did.
    fn passed(&mut self, pass: usize, fanout: Fanout, moved: usize, stalls: bool) {
        let before = std::mem::replace(&mut self.fanout, fanout).expected as f64;
        let now = fanout.expected as f64;
        if pass == 0 {
            self.first_expected = fanout.expected;
        } else {
            let helped = before - now > (self.first_expected as f64 - now) * GAIN_MIN;
            self.idle_passes = if helped { 0 } else { self.idle_passes + 1 };
        }
        self.stalled = moved == 0 || stalls && self.idle_passes >= IDLE_PASSES_MAX;
        self.moved = moved as u64;
    }
}

/// The sums for the edges of a level: for each, its rows, and its rows on the right.
#[derive(Debug, Default)]
pub(super) struct EdgeSums {
    pub(super) total: Vec<u32>,
    pub(super) right: Vec<AtomicU32>,
}

impl EdgeSums {
    pub(super) fn zero(edges: usize) -> Self {
        let right = std::iter::repeat_with(AtomicU32::default).take(edges).collect();
        Self { total: vec![0; edges], right }
    }

    pub(super) fn of(&self, range: &Range<usize>) -> Sums<'_> {
        Sums { total: &self.total[range.clone()], right: &self.right[range.clone()] }
    }
}

/// The rows, their pins and edges, level after level.
pub(super) struct Levels<'a> {
    pub(super) options: &'a PartitionOptions<'a>,
    pub(super) parts: Vec<Part>,
    /// The row at each place.
    pub(super) order: Vec<u32>,
    pub(super) next_order: Vec<u32>,
    /// True for places whose row is on the right.
    pub(super) side: Vec<bool>,
    bias: Vec<f32>,
    pub(super) starts: Vec<usize>,
    pub(super) next_starts: Vec<usize>,
    pub(super) lens: Vec<u32>,
    pub(super) next_lens: Vec<u32>,
    pub(super) weights: Option<Vec<u32>>,
    pub(super) pins: Vec<u32>,
    pub(super) next_pins: Vec<u32>,
    pub(super) counts: EdgeSums,
    pub(super) weight_sums: Option<EdgeSums>,
    need: Vec<[f32; 2]>,
    /// Pages that queries need of rows that are alone in their part, or whose part is not cut
    /// again.
    pub(super) settled: u64,
    longest: usize,
    level: usize,
    levels: usize,
}

/// An upper bound of what [`Levels`] and its caller have allocated at a time.
pub(super) fn memory_bytes(
    rows: u64,
    pins: u64,
    edges: u64,
    longest: u64,
    options: &PartitionOptions<'_>,
) -> u64 {
    let weighted = u64::from(options.weights.is_some());
    // Two orders, starts and lengths, sides, biases and their copy, frequencies, marks, and places
    // or rows that move; weights before and after a split.
    let of_rows = 8 + 16 + 8 + 1 + 8 + 4 + 1 + 4 + 4 * weighted * 2;
    // Sums before and after a split, and either needs or the numbers of children.
    let of_edges = (8 + 8) * (1 + weighted) + 8;
    let parts = rows.div_ceil(options.rows_per_page as u64).min(rows) * 2;
    let curves = 3 * 4 * (longest + 1);
    let tasks = (pins / TASK_PINS as u64 + 1) * 512;
    let scratch = options.threads as u64 * 4096;
    rows * of_rows
        + pins * 8
        + edges * of_edges
        + parts * size_of::<Part>() as u64
        + curves
        + tasks
        + scratch
}

impl<'a> Levels<'a> {
    /// One part of all rows in `order`, which are those that queries link.
    pub(super) fn new(
        queries: Queries<'_>,
        options: &'a PartitionOptions<'a>,
        order: Vec<u32>,
    ) -> Self {
        let rows = order.len();
        let mut place_of = vec![u32::MAX; queries.num_rows()];
        order.iter().enumerate().for_each(|(place, &row)| place_of[row as usize] = place as u32);
        let linking = || queries.iter().filter(|query| query.len() > 1);
        let mut lens = vec![0u32; rows];
        for query in linking() {
            query.iter().for_each(|&row| lens[place_of[row as usize] as usize] += 1);
        }
        let mut starts = Vec::with_capacity(rows);
        let mut end = 0;
        for &len in &lens {
            starts.push(end);
            end += len as usize;
        }
        lens.fill(0);
        let mut pins = vec![0; end];
        for (edge, query) in linking().enumerate() {
            for &row in query {
                let place = place_of[row as usize] as usize;
                pins[starts[place] + lens[place] as usize] = edge as u32;
                lens[place] += 1;
            }
        }
        drop(place_of);
        let edges = linking().count();
        let mut counts = EdgeSums::zero(edges);
        counts.total.iter_mut().zip(linking()).for_each(|(total, query)| {
            *total = query.len() as u32;
        });
        let units =
            |row: u32, weights: &[f32]| (weights[row as usize] * WEIGHT_ONE as f32).round() as u32;
        let weight_sums = options.weights.map(|weights| {
            let mut sums = EdgeSums::zero(edges);
            sums.total.iter_mut().zip(linking()).for_each(|(total, query)| {
                *total = query.iter().map(|&row| units(row, weights)).sum();
            });
            sums
        });
        let part = Part::new(0..rows, 0..edges, 0..end, options.rows_per_page);
        let mut levels = Self {
            options,
            settled: queries.iter().filter(|query| query.len() == 1).count() as u64,
            longest: queries.iter().map(<[u32]>::len).max().unwrap_or(0),
            side: (0..rows).map(|place| place >= part.left).collect(),
            weights: options
                .weights
                .map(|weights| order.iter().map(|&row| units(row, weights)).collect()),
            next_order: vec![0; rows],
            bias: vec![0.0; rows],
            next_starts: vec![0; rows],
            next_lens: vec![0; rows],
            next_pins: vec![0; end],
            need: Vec::new(),
            level: 0,
            levels: levels_of(rows.div_ceil(options.rows_per_page)),
            parts: vec![part],
            order,
            starts,
            lens,
            pins,
            counts,
            weight_sums,
        };
        levels.count_first_sides();
        if rows <= options.rows_per_page {
            levels.parts.clear();
        }
        levels
    }

    fn count_first_sides(&mut self) {
        let left = self.parts[0].left.min(self.order.len());
        let right = (left as u32..self.order.len() as u32).collect::<Vec<_>>();
        let sums = self.weight_sums.as_ref().map(|sums| &sums.right[..]);
        passes::count_moved::<false>(self.all_pins(), 0, &right, true, &self.counts.right, sums);
    }

    fn all_pins(&self) -> Pins<'_> {
        Pins {
            starts: &self.starts,
            lens: &self.lens,
            pins: &self.pins,
            weights: self.weights.as_deref(),
        }
    }

    /// The rows in the order of the last level.
    pub(super) fn into_order(self) -> Vec<u32> {
        self.order
    }

    /// Cuts parts until each is one page.
    pub(super) fn run(&mut self, progress: &mut dyn FnMut(&Progress) -> Next) -> Result<()> {
        while !self.parts.is_empty() {
            let go_on = self.refine(progress)?;
            self.need = Vec::new();
            self.split();
            if !go_on {
                break;
            }
            self.level += 1;
        }
        Ok(())
    }

    /// Passes over all parts of this level until they stall. False if the caller wants no more.
    fn refine(&mut self, progress: &mut dyn FnMut(&Progress) -> Next) -> Result<bool> {
        let curves = self.curves();
        self.need = vec![[0.0; 2]; self.counts.total.len()];
        for pass in 0..self.options.passes_max {
            if self.parts.iter().all(|part| part.stalled) {
                break;
            }
            self.pass(pass, &curves);
            let report = Progress {
                level: self.level,
                levels: self.levels,
                pass,
                moved: self.parts.iter().map(|part| part.moved).sum(),
                pages: self.settled + self.parts.iter().map(|part| part.fanout.sides).sum::<u64>(),
            };
            match progress(&report) {
                Next::Continue => {}
                Next::Finish => return Ok(false),
                Next::Abandon => {
                    return Err(Error::new(
                        ErrorKind::Stopped,
                        format!("stopped at level {}, pass {pass}", self.level),
                    ));
                }
            }
        }
        Ok(true)
    }

    /// The value of a side, by the pages that will be made of a part.
    fn curves(&self) -> Vec<(usize, Curve)> {
        let mut curves = Vec::<(usize, Curve)>::new();
        for part in &self.parts {
            let pages = part.rows.len().div_ceil(self.options.rows_per_page);
            if curves.iter().all(|&(known, _)| known != pages) {
                let of_side = match self.options.objective {
                    Objective::Fanout => 1.0,
                    Objective::Projected => pages as f64 / 2.0,
                };
                curves.push((pages, Curve::new(P, of_side, self.longest)));
            }
        }
        curves
    }

    fn pass(&mut self, pass: usize, curves: &[(usize, Curve)]) {
        let rows_per_page = self.options.rows_per_page;
        let curve_of = |part: &Part| {
            let pages = part.rows.len().div_ceil(rows_per_page);
            let index = curves.iter().position(|&(known, _)| known == pages);
            &curves[index.expect("a level has a curve for each size of its parts")].1
        };
        let shared = Shared {
            threads: self.options.threads,
            pass,
            seed: mix(self.options.seed ^ mix((self.level as u64) << 32 | pass as u64)),
            exchange_all: self.options.exchange_all,
            pins: Pins {
                starts: &self.starts,
                lens: &self.lens,
                pins: &self.pins,
                weights: self.weights.as_deref(),
            },
            counts: &self.counts,
            weight_sums: self.weight_sums.as_ref(),
        };
        let mut side = Carver::new(&mut self.side);
        let mut bias = Carver::new(&mut self.bias);
        let mut need = Carver::new(&mut self.need);
        let mut tasks = Vec::new();
        let mut alone = Vec::new();
        let groups = groups(&self.parts, self.options.threads);
        let mut parts = Carver::new(&mut self.parts);
        for group in groups {
            let parts = parts.take(&group);
            let (rows, edges) = (rows_of(parts), edges_of(parts));
            let view = View {
                side: side.take(&rows),
                bias: bias.take(&rows),
                need: need.take(&edges),
                first_row: rows.start,
                first_edge: edges.start,
                parts,
            };
            let shared = is_shared(&view.parts[0], self.options.threads);
            if shared { alone.push(view) } else { tasks.push(view) }
        }
        let mut chosen = Chosen::default();
        for mut view in alone {
            let curve = curve_of(&view.parts[0]);
            shared.pass_by_all(&mut view, curve, &mut chosen);
        }
        drop(chosen);
        parallel::run(self.options.threads, tasks, Chosen::default, |chosen, mut view| {
            for part in 0..view.parts.len() {
                let curve = curve_of(&view.parts[part]);
                shared.pass_by_one(&mut view, part, curve, chosen);
            }
        });
    }
}

/// The most levels that so many pages take.
fn levels_of(pages: usize) -> usize {
    pages.next_power_of_two().trailing_zeros() as usize
}

/// Runs of parts that are one task each. A part that all threads share is alone.
pub(super) fn groups(parts: &[Part], threads: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut first = 0;
    let mut size = 0;
    for (i, part) in parts.iter().enumerate() {
        if is_shared(part, threads) && first < i {
            groups.push(first..i);
            first = i;
        }
        size += part.pins.len() + part.rows.len();
        if is_shared(part, threads) || size >= TASK_PINS || i + 1 == parts.len() {
            groups.push(first..i + 1);
            (first, size) = (i + 1, 0);
        }
    }
    groups
}

/// True for a part that all threads work on together.
pub(super) fn is_shared(part: &Part, threads: usize) -> bool {
    threads > 1 && part.pins.len() >= SHARED_PINS
}

/// The places of neighbouring parts.
pub(super) fn rows_of(parts: &[Part]) -> Range<usize> {
    parts[0].rows.start..parts[parts.len() - 1].rows.end
}

/// The edges of neighbouring parts.
pub(super) fn edges_of(parts: &[Part]) -> Range<usize> {
    parts[0].edges.start..parts[parts.len() - 1].edges.end
}

/// The output of a task: its parts, and their stretches of the level's memory.
struct View<'a> {
    parts: &'a mut [Part],
    first_row: usize,
    first_edge: usize,
    side: &'a mut [bool],
    bias: &'a mut [f32],
    need: &'a mut [[f32; 2]],
}

/// The input of all tasks of a pass.
struct Shared<'a> {
    threads: usize,
    pass: usize,
    seed: u64,
    exchange_all: bool,
    pins: Pins<'a>,
    counts: &'a EdgeSums,
    weight_sums: Option<&'a EdgeSums>,
}

impl Shared<'_> {
    /// The seed that decides which pairs of the part at this place stay; None if all go.
    fn seed_of(&self, first: usize) -> Option<u64> {
        (!self.exchange_all).then_some(self.seed ^ first as u64)
    }

    /// A pass over one part of a view.
    fn pass_by_one(&self, view: &mut View<'_>, part: usize, curve: &Curve, chosen: &mut Chosen) {
        let part = &mut view.parts[part];
        if part.stalled {
            part.moved = 0;
            return;
        }
        let rows = part.rows.start - view.first_row..part.rows.end - view.first_row;
        let edges = part.edges.start - view.first_edge..part.edges.end - view.first_edge;
        let (side, bias) = (&mut view.side[rows.clone()], &mut view.bias[rows]);
        let need = &mut view.need[edges];
        let counts = self.counts.of(&part.edges);
        let weights = self.weight_sums.map(|sums| sums.of(&part.edges));
        let fanout = passes::fill_need(curve, counts, weights, need);
        let first = part.rows.start;
        passes::fill_bias(curve, self.pins, need, first, side, bias);
        passes::choose(side, bias, part.left, self.seed_of(first), chosen);
        for (places, right) in [(&chosen.to_right, true), (&chosen.to_left, false)] {
            places.iter().for_each(|&place| side[place as usize] = right);
            let weights = weights.map(|sums| sums.right);
            passes::count_moved::<false>(self.pins, first, places, right, counts.right, weights);
        }
        let moved = chosen.to_right.len() + chosen.to_left.len();
        part.passed(self.pass, fanout, moved, !self.exchange_all);
    }

    /// The same by all threads, for the only part of a view.
    fn pass_by_all(&self, view: &mut View<'_>, curve: &Curve, chosen: &mut Chosen) {
        let part = &mut view.parts[0];
        if part.stalled {
            part.moved = 0;
            return;
        }
        let step = |len: usize| (len / (self.threads * 8)).max(1 << 10);
        let counts = self.counts.of(&part.edges);
        let weights = self.weight_sums.map(|sums| sums.of(&part.edges));
        let mut need = Carver::new(view.need);
        let ranges = chunks(0..part.edges.len(), step(part.edges.len())).collect::<Vec<_>>();
        let mut fanouts = vec![Fanout::default(); ranges.len()];
        let tasks = ranges.iter().zip(&mut fanouts).map(|(range, fanout)| {
            (part.edges.start + range.start..part.edges.start + range.end, need.take(range), fanout)
        });
        parallel::run(
            self.threads,
            tasks.collect(),
            || (),
            |(), (edges, need, fanout)| {
                let weights = self.weight_sums.map(|sums| sums.of(&edges));
                *fanout = passes::fill_need(curve, self.counts.of(&edges), weights, need);
            },
        );
        let mut fanout = Fanout::default();
        fanouts.into_iter().for_each(|chunk| fanout += chunk);

        let (side, first) = (&mut *view.side, part.rows.start);
        let mut bias = Carver::new(view.bias);
        let tasks = chunks(0..side.len(), step(side.len()))
            .map(|range| (first + range.start, &side[range.clone()], bias.take(&range)));
        let need = &*view.need;
        parallel::run(
            self.threads,
            tasks.collect(),
            || (),
            |(), (first, side, bias)| {
                passes::fill_bias(curve, self.pins, need, first, side, bias);
            },
        );

        passes::choose(side, view.bias, part.left, self.seed_of(first), chosen);
        let mut tasks = Vec::new();
        for (places, right) in [(&chosen.to_right, true), (&chosen.to_left, false)] {
            places.iter().for_each(|&place| side[place as usize] = right);
            tasks.extend(places.chunks(step(places.len())).map(|places| (places, right)));
        }
        let weights = weights.map(|sums| sums.right);
        parallel::run(
            self.threads,
            tasks,
            || (),
            |(), (places, right)| {
                passes::count_moved::<true>(self.pins, first, places, right, counts.right, weights);
            },
        );
        let moved = chosen.to_right.len() + chosen.to_left.len();
        part.passed(self.pass, fanout, moved, !self.exchange_all);
    }
}
