//! FTRL-Proximal. State: `dim` accumulators `n` (sums of squared gradients), then `dim` linear
//! terms `z`.
//!
//! `n' = n + g * g; s = (n'^p - n^p) / lr; z += g - s * w`, then `w = 0` where `|z| <= l1`, else
//! `w = (sign(z) * l1 - z) / ((n'^p + beta) / lr + 2 * l2)`, with `p = -lr_power`. The weights of a
//! touched row follow from its state alone, so what was put beside it counts for one step only.
//!
//! *Source*: McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm
//! 1, whose lambda 2 is `2 * l2` here, as in TensorFlow's `Ftrl`. A root and powers of 0 and 1 are
//! exact or correctly rounded; other powers come from the `libm` crate, which is software.

use super::{Hyper, decayed};

/// The factors of a batch, rounded to f32.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    lr: f32,
    /// Minus `lr_power`: to which power of the accumulator steps become smaller.
    power: f32,
    l1: f32,
    twice_l2: f32,
    beta: f32,
    weight_decay: f32,
}

impl Factors {
    pub(super) fn new(hyper: &Hyper) -> Self {
        Self {
            lr: hyper.lr as f32,
            power: -hyper.lr_power as f32,
            l1: hyper.l1 as f32,
            twice_l2: (2.0 * hyper.l2) as f32,
            beta: hyper.beta as f32,
            weight_decay: hyper.weight_decay as f32,
        }
    }
}

/// One step on one row. All slices have the same length.
#[inline(always)]
pub(super) fn step<const DECAY: bool>(
    values: &mut [f32],
    accumulators: &mut [f32],
    linear: &mut [f32],
    gradient: &[f32],
    factors: &Factors,
) {
    match factors.power {
        0.5 => step_with::<DECAY>(values, accumulators, linear, gradient, factors, f32::sqrt),
        0.0 => step_with::<DECAY>(values, accumulators, linear, gradient, factors, |_| 1.0),
        1.0 => step_with::<DECAY>(values, accumulators, linear, gradient, factors, |n| n),
        power => step_with::<DECAY>(values, accumulators, linear, gradient, factors, |n| {
            libm::powf(n, power)
        }),
    }
}

/// Not inlined: as arguments the slices are known not to overlap, so that the loop vectorises.
#[inline(never)]
fn step_with<const DECAY: bool>(
    values: &mut [f32],
    accumulators: &mut [f32],
    linear: &mut [f32],
    gradient: &[f32],
    factors: &Factors,
    power_of: impl Fn(f32) -> f32,
) {
    let Factors { lr, l1, twice_l2, beta, weight_decay, .. } = *factors;
    for (((w, n), z), &g) in values.iter_mut().zip(accumulators).zip(linear).zip(gradient) {
        let g = decayed::<DECAY>(g, *w, weight_decay);
        let before = power_of(*n);
        *n += g * g;
        let after = power_of(*n);
        *z += g - (after - before) / lr * *w;
        let scale = (after + beta) / lr + twice_l2;
        // The scale is 0 where all squares so far were too small for a number and nothing is added.
        *w = if z.abs() > l1 && scale > 0.0 { (l1.copysign(*z) - *z) / scale } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_too_small_for_a_number_leave_a_finite_row() {
        let factors =
            Factors { lr: 0.1, power: 0.5, l1: 0.0, twice_l2: 0.0, beta: 0.0, weight_decay: 0.0 };
        let (mut w, mut n, mut z) = ([0.5], [0.0], [0.0]);
        step::<false>(&mut w, &mut n, &mut z, &[1e-30], &factors);
        assert_eq!((w, n, z), ([0.0], [0.0], [1e-30]));
        step::<false>(&mut w, &mut n, &mut z, &[1.0], &factors);
        assert!(w[0].is_finite() && w[0] < 0.0, "{w:?}");
    }
}
