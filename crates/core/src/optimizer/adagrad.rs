//! Adagrad, element-wise (state: `dim` sums of squared gradients) and row-wise (state: one sum of
//! the mean squared gradient).

use super::decayed;

/// Partial sums of [`mean_square`]: one AVX-512 or four SSE2 registers. The number is part of what
/// row-wise Adagrad and Adam compute and must never follow the machine.
const LANES: usize = 16;

/// One element-wise step on one row, in the order of `torch.optim.Adagrad` for sparse gradients:
/// `sum += g * g; w += -lr * (g / (sqrt(sum) + eps))`. All slices have the same length.
#[inline(always)]
pub(super) fn step<const DECAY: bool>(
    values: &mut [f32],
    sums: &mut [f32],
    gradient: &[f32],
    weight_decay: f32,
    negative_lr: f32,
    eps: f32,
) {
    for ((w, sum), &g) in values.iter_mut().zip(sums).zip(gradient) {
        let g = decayed::<DECAY>(g, *w, weight_decay);
        *sum += g * g;
        *w += negative_lr * (g / (sum.sqrt() + eps));
    }
}

/// One row-wise step on one row, given the mean square of its gradient:
/// `sum += mean; w += (-lr / (sqrt(sum) + eps)) * g`.
/// (Source: FBGEMM's `EXACT_ROWWISE_ADAGRAD`, which divides once a row as this does.)
#[inline(always)]
pub(super) fn step_row_wise<const DECAY: bool>(
    values: &mut [f32],
    sum: &mut f32,
    gradient: &[f32],
    mean: f32,
    weight_decay: f32,
    (negative_lr, eps): (f32, f32),
) {
    *sum += mean;
    let scale = negative_lr / (sum.sqrt() + eps);
    for (w, &g) in values.iter_mut().zip(gradient) {
        let g = decayed::<DECAY>(g, *w, weight_decay);
        *w += scale * g;
    }
}

/// The mean of the squared (decayed) gradient in one fixed order, whatever the vector width: lane
/// `i` sums elements `i, i + 16, i + 32, ...` upwards, then lanes `i` and `i + 8` are added, then
/// `i` and `i + 4`, `i + 2`, `i + 1`, and the total is divided by the length.
#[inline(always)]
pub(super) fn mean_square<const DECAY: bool>(
    values: &[f32],
    gradient: &[f32],
    weight_decay: f32,
) -> f32 {
    let mut lanes = [0.0; LANES];
    let (value_chunks, value_tail) = values.as_chunks();
    let (gradient_chunks, gradient_tail) = gradient.as_chunks();
    for (w, g) in value_chunks.iter().zip(gradient_chunks) {
        add_squares::<DECAY>(&mut lanes, w, g, weight_decay);
    }
    if !gradient_tail.is_empty() {
        let (w, g) = (padded(value_tail), padded(gradient_tail));
        add_squares::<DECAY>(&mut lanes, &w, &g, weight_decay);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0] / gradient.len() as f32
}

#[inline(always)]
fn add_squares<const DECAY: bool>(
    lanes: &mut [f32; LANES],
    values: &[f32; LANES],
    gradient: &[f32; LANES],
    weight_decay: f32,
) {
    for lane in 0..LANES {
        let g = decayed::<DECAY>(gradient[lane], values[lane], weight_decay);
        lanes[lane] += g * g;
    }
}

/// The tail of a row filled up with zeros, whose squares leave the bits of a sum of squares alone.
/// (Built from loads of known width: a copy of variable length would stall the loads behind it.)
#[inline(always)]
fn padded(tail: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    for (group, out) in lanes.as_chunks_mut().0.iter_mut().enumerate() {
        *out = match tail[(4 * group).min(tail.len())..] {
            [a, b, c, d, ..] => [a, b, c, d],
            [a, b, c] => [a, b, c, 0.0],
            [a, b] => [a, b, 0.0, 0.0],
            [a] => [a, 0.0, 0.0, 0.0],
            [] => [0.0; 4],
        };
    }
    lanes
}
