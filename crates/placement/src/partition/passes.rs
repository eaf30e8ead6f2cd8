//! The inner loops of a pass over one part: how near its queries are to each side, what each row
//! would gain on the other side, and which rows change sides.
//!
//! All of them are the same whatever the number of threads: counts are integers, and what is added
//! up in floats is added up by one thread, in the order of a row's pins.

use crate::random::mix;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// One row weight of 1, in the fixed point in which weights are added up.
pub(super) const WEIGHT_ONE: u32 = 1 << 8;

/// The pins of rows: those of a row at a place are `pins[starts[place]..]`, `lens[place]` of them,
/// each the number of an edge within the part.
#[derive(Clone, Copy)]
pub(super) struct Pins<'a> {
    pub(super) starts: &'a [usize],
    pub(super) lens: &'a [u32],
    pub(super) pins: &'a [u32],
    /// The weight of a pin of the row, if rows have weights.
    pub(super) weights: Option<&'a [u32]>,
}

impl<'a> Pins<'a> {
    #[inline]
    pub(super) fn of(&self, place: usize) -> &'a [u32] {
        let start = self.starts[place];
        &self.pins[start..start + self.lens[place] as usize]
    }
}

/// The sums of the rows of edges: all of them, and those on the right side.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    pub(super) total: &'a [u32],
    pub(super) right: &'a [AtomicU32],
}

/// The chance that a side need not be read, by the rows that a query has there: `keep` to their
/// power. The table has 1 minus that chance, which is exact when `keep` is nearly 1.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    keep: f64,
    need: Vec<f32>,
    /// Number of pages of a side, in 2^-20.
    scale: f32,
}

impl Curve {
    /// For queries of up to `rows_max` rows and sides of so many pages, if each row is wanted with
    /// the chance `p`.
    pub(super) fn new(p: f64, pages: f64, rows_max: usize) -> Self {
        let keep = 1.0 - p / pages;
        let need = (0..=rows_max).map(|rows| -(rows as f64 * keep.ln()).exp_m1() as f32);
        Self { keep, need: need.collect(), scale: (pages * f64::from(1 << 20)) as f32 }
    }

    fn of_weight(&self, weight: u32) -> f32 {
        -(weight as f32 * (self.keep.ln() as f32 / WEIGHT_ONE as f32)).exp_m1()
    }
}

/// The sums of a pass over edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fanout {
    /// The quantity that a cut should minimise, in 2^-20 of a page.
    pub(super) expected: u64,
    /// Sides with a row of the query, over all queries.
    pub(super) sides: u64,
}

impl std::ops::AddAssign for Fanout {
    fn add_assign(&mut self, other: Self) {
        self.expected += other.expected;
        self.sides += other.sides;
    }
}

/// Fills `need` with the chance that a query needs the left and the right side.
pub(super) fn fill_need(
    curve: &Curve,
    counts: Sums<'_>,
    weights: Option<Sums<'_>>,
    need: &mut [[f32; 2]],
) -> Fanout {
    let mut fanout = Fanout::default();
    for (edge, need) in need.iter_mut().enumerate() {
        let right = counts.right[edge].load(Relaxed);
        let left = counts.total[edge] - right;
        *need = match weights {
            None => [curve.need[left as usize], curve.need[right as usize]],
            Some(weights) => {
                let right = weights.right[edge].load(Relaxed);
                [weights.total[edge] - right, right].map(|weight| curve.of_weight(weight))
            }
        };
        fanout.sides += u64::from(left > 0) + u64::from(right > 0);
        fanout.expected += ((need[0] + need[1]) * curve.scale) as u64;
    }
    fanout
}

/// Fills `bias`, from the place `first` on, with what the fanout loses if the row is on the right
/// rather than on the left: positive for rows that belong on the right.
pub(super) fn fill_bias(
    curve: &Curve,
    pins: Pins<'_>,
    need: &[[f32; 2]],
    first: usize,
    side: &[bool],
    bias: &mut [f32],
) {
    let whole = Pull::new(curve.keep, WEIGHT_ONE);
    for (i, (bias, &on_right)) in bias.iter_mut().zip(side).enumerate() {
        let edges = pins.of(first + i);
        let mut sums = [0f32; 2];
        for &edge in edges {
            let need = need[edge as usize];
            sums[0] += need[0];
            sums[1] += need[1];
        }
        let pull = match pins.weights {
            None => whole,
            Some(weights) => Pull::new(curve.keep, weights[first + i]),
        };
        let [own, other] = if on_right { [sums[1], sums[0]] } else { sums };
        let gain = pull.scale * (pull.alone * edges.len() as f32 - pull.own * own + other);
        *bias = if on_right { -gain } else { gain };
    }
}

/// The effect of a row of some weight w: with k = keep^w it gains (1 - k) · Σ (1/k - 1) -
/// need(own)/k + need(other) by a change of sides.
#[derive(Clone, Copy)]
struct Pull {
    scale: f32,
    alone: f32,
    own: f32,
}

impl Pull {
    fn new(keep: f64, weight: u32) -> Self {
        let log = keep.ln() * f64::from(weight) / f64::from(WEIGHT_ONE);
        let scale = -log.exp_m1() as f32;
        Self { scale, alone: (-log).exp_m1() as f32, own: (-log).exp() as f32 }
    }
}

/// Scratch memory for [`choose`].
#[derive(Default)]
pub(super) struct Chosen {
    values: Vec<f32>,
    /// Places within the part of rows that go to the right, and to the left.
    pub(super) to_right: Vec<u32>,
    pub(super) to_left: Vec<u32>,
}

/// Chooses the rows that change sides so that those with the greatest bias are on the right, as
/// many as were there: what exchanging the best pairs while both sides gain would do, without a
/// sort. Of equal rows those stay that can. With a seed, one pair in four stays as well, which
/// keeps rows that belong together from changing places for ever.
pub(super) fn choose(side: &[bool], bias: &[f32], left: usize, seed: Option<u64>, to: &mut Chosen) {
    let Chosen { values, to_right, to_left } = to;
    to_right.clear();
    to_left.clear();
    if left == 0 || left >= side.len() {
        return;
    }
    values.clear();
    values.extend_from_slice(bias);
    let (_, &mut limit, _) = values.select_nth_unstable_by(left, f32::total_cmp);
    let above = bias.iter().filter(|&&bias| bias > limit).count();
    let equal_right = side.iter().zip(bias).filter(|&(&side, &bias)| side && bias == limit).count();
    // Of the equal rows so many are on the right in the end.
    let wanted = side.len() - left - above;
    let mut stay_right = wanted.min(equal_right);
    let mut enter_right = wanted - stay_right;
    for (place, (&on_right, &bias)) in side.iter().zip(bias).enumerate() {
        let mut goes_right = bias > limit;
        if bias == limit {
            let free = if on_right { &mut stay_right } else { &mut enter_right };
            goes_right = *free > 0;
            *free -= usize::from(goes_right);
        }
        match (on_right, goes_right) {
            (false, true) => to_right.push(place as u32),
            (true, false) => to_left.push(place as u32),
            _ => {}
        }
    }
    debug_assert_eq!(to_right.len(), to_left.len());
    let Some(seed) = seed else { return };
    let mut kept = 0;
    for pair in 0..to_right.len() {
        let places = u64::from(to_right[pair]) << 32 | u64::from(to_left[pair]);
        if mix(seed ^ mix(places)) >> 62 != 0 {
            to_right[kept] = to_right[pair];
            to_left[kept] = to_left[pair];
            kept += 1;
        }
    }
    to_right.truncate(kept);
    to_left.truncate(kept);
}

/// Brings the sums of edges up to date with rows that changed sides. `SHARED` if other threads add
/// to the same sums.
pub(super) fn count_moved<const SHARED: bool>(
    pins: Pins<'_>,
    first: usize,
    places: &[u32],
    to_right: bool,
    counts: &[AtomicU32],
    weights: Option<&[AtomicU32]>,
) {
    for &place in places {
        let place = first + place as usize;
        let edges = pins.of(place);
        for &edge in edges {
            add::<SHARED>(&counts[edge as usize], if to_right { 1 } else { 1u32.wrapping_neg() });
        }
        if let (Some(sums), Some(weights)) = (weights, pins.weights) {
            let weight = weights[place];
            for &edge in edges {
                let by = if to_right { weight } else { weight.wrapping_neg() };
                add::<SHARED>(&sums[edge as usize], by);
            }
        }
    }
}

/// Adds to a sum, by a locked instruction only if it is shared.
#[inline]
pub(super) fn add<const SHARED: bool>(sum: &AtomicU32, by: u32) {
    if SHARED {
        sum.fetch_add(by, Relaxed);
    } else {
        sum.store(sum.load(Relaxed).wrapping_add(by), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Exchanges the best rows of both sides, pair by pair, while that gains.
    fn exchange_sorted(side: &[bool], bias: &[f32]) -> Vec<bool> {
        let mut sides = side.to_vec();
        let mut of_side = [false, true].map(|right| {
            let mut places = (0..side.len()).filter(|&i| side[i] == right).collect::<Vec<_>>();
            places.sort_by(|&a, &b| bias[a].total_cmp(&bias[b]));
            places
        });
        of_side[0].reverse();
        for (&left, &right) in of_side[0].iter().zip(&of_side[1]) {
            if bias[left] <= bias[right] {
                break;
            }
            (sides[left], sides[right]) = (true, false);
        }
        sides
    }

    #[test]
    fn selection_moves_what_exchanging_sorted_pairs_moves() {
        let mut random = Random::new(11);
        let mut chosen = Chosen::default();
        for case in 0..500 {
            let rows = 2 + random.below(40) as usize;
            let left = 1 + random.below(rows as u64 - 1) as usize;
            let mut side = (0..rows).map(|i| i >= left).collect::<Vec<_>>();
            random.shuffle(&mut side);
            // All different, then with many that are equal.
            let values = if case % 2 == 0 { 1 << 20 } else { 6 };
            let bias = (0..rows).map(|_| random.below(values) as f32 - 3.0).collect::<Vec<_>>();
            choose(&side, &bias, left, None, &mut chosen);
            let expected = exchange_sorted(&side, &bias);
            let sum = |sides: &[bool]| -> f32 {
                sides.iter().zip(&bias).filter(|(side, _)| **side).map(|(_, bias)| bias).sum()
            };
            let mut sides = side.clone();
            chosen.to_right.iter().for_each(|&i| sides[i as usize] = true);
            chosen.to_left.iter().for_each(|&i| sides[i as usize] = false);
            assert_eq!(sum(&sides), sum(&expected), "case {case}");
            assert_eq!(chosen.to_right.len(), chosen.to_left.len(), "case {case}");
            let moved = |sides: &[bool]| sides.iter().zip(&side).filter(|(a, b)| a != b).count();
            assert_eq!(moved(&sides), moved(&expected), "case {case}");
        }
    }

    #[test]
    fn a_seed_keeps_one_pair_in_four() {
        let side = (0..20_000).map(|i| i >= 10_000).collect::<Vec<_>>();
        let bias = side.iter().map(|&right| if right { -1.0 } else { 1.0 }).collect::<Vec<_>>();
        let mut chosen = Chosen::default();
        choose(&side, &bias, 10_000, Some(5), &mut chosen);
        assert_eq!(chosen.to_right.len(), chosen.to_left.len());
        assert!((7_300..7_700).contains(&chosen.to_left.len()), "{}", chosen.to_left.len());
    }

    #[test]
    fn a_bias_of_weighted_rows_is_what_the_fanout_loses() {
        let (side, edges) = ([false, false, true, true, true], [[0, 1, 2, 3], [0, 2, 3, 4]]);
        let weights = [256u32, 128, 64, 0, 200];
        for keep in [0.5f64, 0.99] {
            let sum = |edge: &[usize], side: &[bool], right: bool| -> u32 {
                edge.iter().filter(|&&row| side[row] == right).map(|&row| weights[row]).sum()
            };
            let expected = |side: &[bool]| -> f64 {
                let sides = edges.iter().flat_map(|edge| [false, true].map(|r| sum(edge, side, r)));
                sides.map(|weight| 1.0 - keep.powf(f64::from(weight) / 256.0)).sum()
            };
            let (total, right) = ([4, 4], [2, 3].map(AtomicU32::new));
            let totals = edges.map(|edge| edge.iter().map(|&row| weights[row]).sum::<u32>());
            let rights = edges.map(|edge| AtomicU32::new(sum(&edge, &side, true)));
            let sums = Sums { total: &total, right: &right };
            let weight_sums = Sums { total: &totals, right: &rights };
            let curve = Curve::new(0.5, 0.5 / (1.0 - keep), 4);
            let mut need = [[0.0; 2]; 2];
            fill_need(&curve, sums, Some(weight_sums), &mut need);
            for row in 0..5 {
                let pins = (0..2u32).filter(|&edge| edges[edge as usize].contains(&row));
                let (pins, lens) = (pins.clone().collect::<Vec<_>>(), [pins.count() as u32]);
                let weights = Some(&weights[row..=row]);
                let pins = Pins { starts: &[0], lens: &lens, pins: &pins, weights };
                let mut bias = [0.0];
                fill_bias(&curve, pins, &need, 0, &side[row..=row], &mut bias);
                let at = |right| {
                    let mut side = side;
                    side[row] = right;
                    expected(&side)
                };
                let loss = at(false) - at(true);
                let error = (f64::from(bias[0]) - loss).abs();
                assert!(error <= 1e-3 * loss.abs() + 1e-7, "{keep} {row}: {bias:?}, {loss}");
            }
        }
    }

    #[test]
    fn a_bias_is_what_the_fanout_loses_by_a_change_of_sides() {
        // Edges of 4 rows; row 0 is in both, on the left.
        let (side, edges) = ([false, false, true, true, true], [[0, 1, 2, 3], [0, 2, 3, 4]]);
        for keep in [0.5f64, 0.9, 0.9999] {
            let expected = |side: &[bool]| -> f64 {
                let on = |edge: &[usize], right| {
                    edge.iter().filter(|&&row| side[row] == right).count() as i32
                };
                let sides =
                    edges.iter().flat_map(|edge| [false, true].map(|right| on(edge, right)));
                sides.map(|rows| 1.0 - keep.powi(rows)).sum()
            };
            let total = vec![4, 4];
            let right = [2, 3].map(AtomicU32::new);
            let curve = Curve::new(0.5, 0.5 / (1.0 - keep), 4);
            let mut need = [[0.0; 2]; 2];
            let sums = Sums { total: &total, right: &right };
            let fanout = fill_need(&curve, sums, None, &mut need);
            assert_eq!(fanout.sides, 4);
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.abs() + 1e-8;
            let units = f64::from(1 << 20) * 0.5 / (1.0 - keep);
            assert!(close(fanout.expected as f64 / units, expected(&side)));
            for row in 0..5 {
                let pins = (0..2u32).filter(|&edge| edges[edge as usize].contains(&row));
                let pins = pins.collect::<Vec<_>>();
                let lens = [pins.len() as u32];
                for weights in [None, Some(&[WEIGHT_ONE][..])] {
                    let pins = Pins { starts: &[0], lens: &lens, pins: &pins, weights };
                    let mut bias = [0.0];
                    fill_bias(&curve, pins, &need, 0, &side[row..=row], &mut bias);
                    let at = |right| {
                        let mut side = side;
                        side[row] = right;
                        expected(&side)
                    };
                    let loss = at(false) - at(true);
                    assert!(close(f64::from(bias[0]), loss), "{keep} {row}: {bias:?}, {loss}");
                }
            }
        }
    }
}
