//! Adam on touched rows only. State: `dim` first moments, `dim` second moments and, with
//! [`BiasCorrection::Row`](super::BiasCorrection::Row), one word with the row's own step count.
//!
//! The order of operations is that of `torch.optim.SparseAdam`:
//! `dm = (g - m) * (1 - beta1); m' = m + dm`, the same for `v` with `g * g`, then
//! `w += -step_size * (m' / (sqrt(v') + eps))` with
//! `step_size = lr * sqrt(1 - beta2^t) / (1 - beta1^t)` in double precision, rounded once.

use super::{Hyper, decayed};

/// The factors of one row's step, rounded to f32 as torch rounds a Python scalar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    pub(super) weight_decay: f32,
    pub(super) one_minus_beta1: f32,
    pub(super) one_minus_beta2: f32,
    pub(super) eps: f32,
}

impl Factors {
    pub(super) fn new(hyper: &Hyper) -> Self {
        Self {
            weight_decay: hyper.weight_decay as f32,
            one_minus_beta1: (1.0 - hyper.beta1) as f32,
            one_minus_beta2: (1.0 - hyper.beta2) as f32,
            eps: hyper.eps as f32,
        }
    }
}

/// One step on one row. All slices have the same length.
///
/// Not inlined: as arguments the four slices are known not to overlap, without which the loop is
/// not vectorised and takes four times as long.
#[inline(never)]
pub(super) fn step<const DECAY: bool>(
    values: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    factors: &Factors,
    negative_step_size: f32,
) {
    for (((w, m), v), &g) in values.iter_mut().zip(first).zip(second).zip(gradient) {
        let g = decayed::<DECAY>(g, *w, factors.weight_decay);
        *m += (g - *m) * factors.one_minus_beta1;
        *v += (g * g - *v) * factors.one_minus_beta2;
        *w += negative_step_size * (*m / (v.sqrt() + factors.eps));
    }
}

/// `-step_size` of the `step`-th update, with the power function of the `libm` crate: the same bits
/// on every platform.
pub(super) fn negative_step_size(hyper: &Hyper, step: u64) -> f32 {
    let exponent = step as f64;
    combine(hyper.lr, libm::pow(hyper.beta1, exponent), libm::pow(hyper.beta2, exponent))
}

fn combine(lr: f64, beta1_power: f64, beta2_power: f64) -> f32 {
    -(lr * (1.0 - beta2_power).sqrt() / (1.0 - beta1_power)) as f32
}

/// `-step_size` for any step count at the price of a few products, for rows that count their own
/// steps. Holds `beta^(2^k)`; a power is the product over the set bits of the count, lowest first.
#[derive(Clone, Debug)]
pub(super) struct StepSizes {
    lr: f64,
    powers: [(f64, f64); 32],
}

impl StepSizes {
    pub(super) fn new(hyper: &Hyper) -> Self {
        let mut powers = [(hyper.beta1, hyper.beta2); 32];
        for k in 1..powers.len() {
            let (beta1, beta2) = powers[k - 1];
            powers[k] = (beta1 * beta1, beta2 * beta2);
        }
        Self { lr: hyper.lr, powers }
    }

    #[inline]
    pub(super) fn negative_step_size(&self, step: u32) -> f32 {
        let (mut beta1, mut beta2) = (1.0, 1.0);
        let mut rest = step;
        while rest != 0 {
            let power = self.powers[rest.trailing_zeros() as usize];
            beta1 *= power.0;
            beta2 *= power.1;
            rest &= rest - 1;
        }
        combine(self.lr, beta1, beta2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_counts_and_global_steps_give_the_same_step_size_within_one_ulp() {
        let hyper = Hyper { lr: 1e-3, eps: 1e-8, beta1: 0.9, beta2: 0.999, weight_decay: 0.0 };
        let sizes = StepSizes::new(&hyper);
        for step in (1..3000).chain([1 << 20, u32::MAX]) {
            let global = negative_step_size(&hyper, u64::from(step));
            let row = sizes.negative_step_size(step);
            let ulps = (global.to_bits() as i64 - row.to_bits() as i64).abs();
            assert!(ulps <= 1, "step {step}: {global} and {row}");
        }
        assert_eq!(sizes.negative_step_size(u32::MAX), -1e-3);
    }
}
