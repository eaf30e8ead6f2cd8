//! SGD, without state, and with momentum. State of the latter: `dim` words, the buffer.

use super::{Hyper, decayed};

/// One step without momentum on one row, `w += -lr * g`. All slices have the same length.
#[inline(always)]
pub(super) fn step<const DECAY: bool>(
    values: &mut [f32],
    gradient: &[f32],
    weight_decay: f32,
    negative_lr: f32,
) {
    for (w, &g) in values.iter_mut().zip(gradient) {
        let g = decayed::<DECAY>(g, *w, weight_decay);
        *w += negative_lr * g;
    }
}

/// The factors of a step with momentum, rounded to f32 as torch rounds a Python scalar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Momentum {
    negative_lr: f32,
    momentum: f32,
    /// The factor of a gradient that enters the buffer: `1 - dampening`.
    undampened: f32,
    nesterov: bool,
    weight_decay: f32,
}

impl Momentum {
    pub(super) fn new(hyper: &Hyper) -> Self {
        Self {
            negative_lr: -hyper.lr as f32,
            momentum: hyper.momentum as f32,
            undampened: (1.0 - hyper.dampening) as f32,
            nesterov: hyper.nesterov,
            weight_decay: hyper.weight_decay as f32,
        }
    }

    /// One step on one row, in the order of `torch.optim.SGD`:
    /// `b = b * momentum + (1 - dampening) * g`, then `w += -lr * b`, with Nesterov
    /// `w += -lr * (g + momentum * b)`. All slices have the same length.
    ///
    /// torch takes the first gradient whole, whatever the dampening. A row whose buffer is zero
    /// throughout takes its gradient whole for the same reason: nothing has entered the buffer.
    #[inline(always)]
    pub(super) fn step<const DECAY: bool>(
        &self,
        values: &mut [f32],
        buffer: &mut [f32],
        gradient: &[f32],
    ) {
        let whole = self.undampened == 1.0 || buffer.iter().all(|b| *b == 0.0);
        let entering = if whole { 1.0 } else { self.undampened };
        match self.nesterov {
            true => self.step_with::<DECAY, true>(values, buffer, gradient, entering),
            false => self.step_with::<DECAY, false>(values, buffer, gradient, entering),
        }
    }

    /// Not inlined: as arguments the slices are known not to overlap, so that the loop vectorises.
    #[inline(never)]
    fn step_with<const DECAY: bool, const NESTEROV: bool>(
        &self,
        values: &mut [f32],
        buffer: &mut [f32],
        gradient: &[f32],
        entering: f32,
    ) {
        for ((w, b), &g) in values.iter_mut().zip(buffer).zip(gradient) {
            let g = decayed::<DECAY>(g, *w, self.weight_decay);
            *b = *b * self.momentum + entering * g;
            let direction = if NESTEROV { g + self.momentum * *b } else { *b };
            *w += self.negative_lr * direction;
        }
    }
}
