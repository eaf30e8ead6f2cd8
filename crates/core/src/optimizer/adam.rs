//! Adam, AdamW and row-wise Adam, on touched rows only. State: `dim` first moments, `dim` second
//! moments (one for the whole row with row-wise Adam) and, with
//! [`BiasCorrection::Row`](super::BiasCorrection::Row), one word with the row's own step count.
//!
//! The order of operations of Adam is that of `torch.optim.SparseAdam`:
//! `dm = (g - m) * (1 - beta1); m' = m + dm`, the same for `v` with `g * g`, then
//! `w += -step_size * (m' / (sqrt(v') + eps))` with
//! `step_size = lr * sqrt(1 - beta2^t) / (1 - beta1^t)` in double precision, rounded once.
//!
//! That of AdamW is that of `torch.optim.AdamW`, which corrects the bias of the second moment
//! before `eps` is added: `w *= 1 - lr * weight_decay`, `m` as above, `v = v * beta2 +
//! (1 - beta2) * g * g`, then `w += -step_size * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)` with
//! `step_size = lr / (1 - beta1^t)`.
//!
//! Row-wise Adam takes Adam's steps with the mean of the squared gradient for `g * g`, and divides
//! once a row. (Source: FBGEMM's `PARTIAL_ROWWISE_ADAM`.)

use super::{Hyper, decayed};

/// The factors of a batch that do not depend on the step, rounded to f32 as torch rounds a Python
/// scalar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    weight_decay: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    eps: f32,
    /// AdamW: what remains of a touched row.
    shrunk: f32,
}

impl Factors {
    pub(super) fn new(hyper: &Hyper) -> Self {
        Self {
            weight_decay: hyper.weight_decay as f32,
            one_minus_beta1: (1.0 - hyper.beta1) as f32,
            beta2: hyper.beta2 as f32,
            one_minus_beta2: (1.0 - hyper.beta2) as f32,
            eps: hyper.eps as f32,
            shrunk: (1.0 - hyper.lr * hyper.weight_decay) as f32,
        }
    }
}

/// The factors of a row's `t`-th step: what corrects the bias of its moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Correction {
    lr: f64,
    beta1_power: f64,
    beta2_power: f64,
}

impl Correction {
    /// With the power function of the `libm` crate: the same bits on every platform.
    pub(super) fn of_step(hyper: &Hyper, step: u64) -> Self {
        let t = step as f64;
        let (beta1_power, beta2_power) = (libm::pow(hyper.beta1, t), libm::pow(hyper.beta2, t));
        Self { lr: hyper.lr, beta1_power, beta2_power }
    }

    /// Minus the step size of Adam: `-lr * sqrt(1 - beta2^t) / (1 - beta1^t)`.
    #[inline]
    pub(super) fn adam(&self) -> f32 {
        -(self.lr * (1.0 - self.beta2_power).sqrt() / (1.0 - self.beta1_power)) as f32
    }

    /// Minus the step size of AdamW and its root: `-lr / (1 - beta1^t)` and `sqrt(1 - beta2^t)`.
    #[inline]
    pub(super) fn adamw(&self) -> (f32, f32) {
        let step_size = self.lr / (1.0 - self.beta1_power);
        (-step_size as f32, (1.0 - self.beta2_power).sqrt() as f32)
    }
}

/// One step of Adam on one row. All slices have the same length.
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

/// One step of AdamW on one row. All slices have the same length.
#[inline(always)]
pub(super) fn step_decoupled(
    values: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    factors: &Factors,
    (negative_step_size, root): (f32, f32),
) {
    let step = match factors.one_minus_beta1 < 0.5 {
        true => step_decoupled_with::<false>,
        false => step_decoupled_with::<true>,
    };
    step(values, first, second, gradient, factors, negative_step_size, root);
}

/// `FROM_END`: torch interpolates from the nearer end, the gradient where `beta1` is at most 0.5.
#[inline(never)]
fn step_decoupled_with<const FROM_END: bool>(
    values: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    gradient: &[f32],
    factors: &Factors,
    negative_step_size: f32,
    root: f32,
) {
    let weight = factors.one_minus_beta1;
    for (((w, m), v), &g) in values.iter_mut().zip(first).zip(second).zip(gradient) {
        *w *= factors.shrunk;
        *m = if FROM_END { g - (g - *m) * (1.0 - weight) } else { *m + weight * (g - *m) };
        *v = *v * factors.beta2 + factors.one_minus_beta2 * g * g;
        *w += negative_step_size * *m / (v.sqrt() / root + factors.eps);
    }
}

/// One step of row-wise Adam on one row, given the mean square of its gradient. `values`, `first`
/// and `gradient` have the same length.
#[inline(never)]
pub(super) fn step_row_wise<const DECAY: bool>(
    values: &mut [f32],
    first: &mut [f32],
    second: &mut f32,
    gradient: &[f32],
    mean: f32,
    factors: &Factors,
    negative_step_size: f32,
) {
    *second += (mean - *second) * factors.one_minus_beta2;
    let scale = negative_step_size / (second.sqrt() + factors.eps);
    for ((w, m), &g) in values.iter_mut().zip(first).zip(gradient) {
        let g = decayed::<DECAY>(g, *w, factors.weight_decay);
        *m += (g - *m) * factors.one_minus_beta1;
        *w += scale * *m;
    }
}

/// The correction of any step count at the price of a few products, for rows that count their own
/// steps. Holds `beta^(2^k)`; a power is the product over the set bits of the count, lowest first.
#[derive(Clone, Debug)]
pub(super) struct Corrections {
    lr: f64,
    powers: [(f64, f64); 32],
}

impl Corrections {
    pub(super) fn new(hyper: &Hyper) -> Self {
        let mut powers = [(hyper.beta1, hyper.beta2); 32];
        for k in 1..powers.len() {
            let (beta1, beta2) = powers[k - 1];
            powers[k] = (beta1 * beta1, beta2 * beta2);
        }
        Self { lr: hyper.lr, powers }
    }

    #[inline]
    pub(super) fn of_step(&self, step: u32) -> Correction {
        let (mut beta1_power, mut beta2_power) = (1.0, 1.0);
        let mut rest = step;
        while rest != 0 {
            let power = self.powers[rest.trailing_zeros() as usize];
            beta1_power *= power.0;
            beta2_power *= power.1;
            rest &= rest - 1;
        }
        Correction { lr: self.lr, beta1_power, beta2_power }
    }

    /// Counts one more step in a row's last word, and corrects by that count, which stays at its
    /// end.
    #[inline]
    pub(super) fn count(&self, word: &mut f32) -> Correction {
        let step = word.to_bits().saturating_add(1);
        *word = f32::from_bits(step);
        self.of_step(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_counts_and_global_steps_give_the_same_factors_within_one_ulp() {
        let hyper = Hyper { lr: 1e-3, eps: 1e-8, ..Hyper::DEFAULT };
        let corrections = Corrections::new(&hyper);
        let near = |a: f32, b: f32| (a.to_bits() as i64 - b.to_bits() as i64).abs() <= 1;
        for step in (1..3000).chain([1 << 20, u32::MAX]) {
            let global = Correction::of_step(&hyper, u64::from(step));
            let row = corrections.of_step(step);
            let adam = (global.adam(), row.adam());
            assert!(near(adam.0, adam.1), "step {step}: {adam:?}");
            let (global, row) = (global.adamw(), row.adamw());
            assert!(near(global.0, row.0) && near(global.1, row.1), "step {step}: {row:?}");
        }
        assert_eq!(corrections.of_step(u32::MAX).adam(), -1e-3);
    }
}
