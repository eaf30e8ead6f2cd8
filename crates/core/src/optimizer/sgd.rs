//! SGD without momentum: no state. `w += -lr * g`.

use super::decayed;

/// One step on one row. All slices have the same length.
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
