//! Clipping: bounds on gradients, applied before an optimizer sees them.
//!
//! Three bounds, applied in this order after the gradients of equal keys were summed: on each
//! element, on the norm of each row, and on the norm of everything that is updated in one call,
//! together with gradients that the caller counts elsewhere (dense parameters, another store).
//! Invariants: without a bound a gradient keeps its bits; norms are sums of squares in double
//! precision in an order that does not follow the vector width, so the same gradients give the same
//! bits on every machine. Formulas are those of `torch.nn.utils.clip_grad_value_` and
//! `clip_grad_norm_`.

use crate::error::{Result, bail};

/// Added to a norm before the bound is divided by it, as torch does.
const NORM_EPS: f64 = 1e-6;
/// Partial sums of [`square_sum`]; part of what clipping computes.
const LANES: usize = 8;

/// Bounds on gradients; `None` leaves them as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clip {
    /// Every element is brought into `-value..=value`.
    pub value: Option<f64>,
    /// The gradient of a row is scaled down to this norm.
    pub row_norm: Option<f64>,
    /// All gradients of the call are scaled down together to this norm.
    pub norm: Option<f64>,
    /// The norm of gradients elsewhere that count with those of the call for `norm`.
    pub other_norm: f64,
}

impl Clip {
    /// Errors: `Misuse` naming the bound and its value.
    pub fn validate(&self) -> Result<()> {
        let bounds = [("value", self.value), ("row_norm", self.row_norm), ("norm", self.norm)];
        for (name, bound) in bounds {
            if let Some(bound) = bound
                && !(bound > 0.0 && bound.is_finite())
            {
                bail!(Misuse, "clip {name} is {bound}, expected a finite number above 0");
            }
        }
        if self.other_norm < 0.0 {
            bail!(Misuse, "other_norm is {}, expected at least 0", self.other_norm);
        }
        Ok(())
    }

    /// True when nothing is bounded.
    pub fn is_none(&self) -> bool {
        self.value.is_none() && self.row_norm.is_none() && self.norm.is_none()
    }

    /// Applies the bounds on elements and rows to the gradients of one table. Returns the result
    /// and the sum of squares afterwards.
    pub(crate) fn rows<'a>(&self, gradients: impl Iterator<Item = &'a [f32]>) -> (Clipped, f64) {
        let limit = self.value.map_or(f32::INFINITY, |value| value as f32);
        let (mut scales, mut squares) = (Vec::new(), 0.0);
        for gradient in gradients {
            let row = square_sum(gradient, limit);
            let scale = match self.row_norm {
                Some(bound) => coefficient(bound, row.sqrt()),
                None => 1.0,
            };
            squares += row * scale * scale;
            scales.push(scale);
        }
        (Clipped { limit, scales }, squares)
    }

    /// The norm of everything, from the sum of squares of the call's gradients.
    pub(crate) fn total_norm(&self, squares: f64) -> f64 {
        (squares + self.other_norm * self.other_norm).sqrt()
    }
}

/// The factor that scales a norm to stay within a bound, at most 1.
///
/// A norm of NaN gives NaN, as torch's does: gradients that were let through without being finite
/// have no norm to be scaled to.
pub fn coefficient(bound: f64, norm: f64) -> f64 {
    let coefficient = bound / (norm + NORM_EPS);
    if coefficient > 1.0 { 1.0 } else { coefficient }
}

/// The bounds of one batch of gradients, ready to be applied row by row.
#[derive(Clone, Debug)]
pub(crate) struct Clipped {
    limit: f32,
    /// Of each row.
    scales: Vec<f64>,
}

impl Clipped {
    /// Scales all rows once more.
    pub(crate) fn scale(&mut self, coefficient: f64) {
        self.scales.iter_mut().for_each(|scale| *scale *= coefficient);
    }

    /// Writes the gradient of the `row`-th row as it is within its bounds.
    #[inline]
    pub(crate) fn write(&self, row: usize, gradient: &[f32], bounded: &mut [f32]) {
        let (limit, scale) = (self.limit, self.scales[row] as f32);
        for (to, &g) in bounded.iter_mut().zip(gradient) {
            *to = limited(g, limit) * scale;
        }
    }
}

/// The element within the limit; NaN stays NaN.
#[inline(always)]
fn limited(g: f32, limit: f32) -> f32 {
    let g = if g > limit { limit } else { g };
    if g < -limit { -limit } else { g }
}

/// The sum of squares of the elements within the limit: lane `i` sums elements `i, i + 8, ...`
/// upwards, then lanes `i` and `i + 4` are added, then `i` and `i + 2`, `i + 1`.
#[inline]
fn square_sum(gradient: &[f32], limit: f32) -> f64 {
    let mut lanes = [0.0; LANES];
    let (chunks, tail) = gradient.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &g) in lanes.iter_mut().zip(chunk) {
            let g = f64::from(limited(g, limit));
            *lane += g * g;
        }
    }
    for (lane, &g) in lanes.iter_mut().zip(tail) {
        let g = f64::from(limited(g, limit));
        *lane += g * g;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clipped(clip: Clip, gradients: &[f32], dim: usize) -> (Vec<f32>, f64) {
        let (mut clipped, squares) = clip.rows(gradients.chunks_exact(dim));
        let norm = clip.total_norm(squares);
        if let Some(bound) = clip.norm {
            clipped.scale(coefficient(bound, norm));
        }
        let mut out = vec![f32::NAN; gradients.len()];
        for (row, (from, to)) in
            gradients.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate()
        {
            clipped.write(row, from, to);
        }
        (out, norm)
    }

    #[test]
    fn elements_come_first_then_rows_then_everything() {
        let gradients = [3.0, -40.0, 0.5, 0.0, 30.0, 40.0];
        let clip = Clip { value: Some(4.0), row_norm: None, norm: None, other_norm: 0.0 };
        let (found, norm) = clipped(clip, &gradients, 2);
        assert_eq!(found, [3.0, -4.0, 0.5, 0.0, 4.0, 4.0]);
        assert!((norm - (25.0f64 + 0.25 + 32.0).sqrt()).abs() < 1e-12);
        let clip = Clip { row_norm: Some(1.0), ..clip };
        let (found, norm) = clipped(clip, &gradients, 2);
        for (found, expected) in
            found.iter().zip([0.6, -0.8, 0.5, 0.0, 0.5f32.sqrt(), 0.5f32.sqrt()])
        {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        assert!((norm - 1.5).abs() < 1e-6, "{norm}");
        let clip = Clip { norm: Some(1.0), other_norm: 2.0, ..clip };
        let (found, norm) = clipped(clip, &gradients, 2);
        assert!((norm - 2.5).abs() < 1e-6, "{norm}");
        assert!((found[2] - 0.2).abs() < 1e-6 && (found[0] - 0.24).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn gradients_within_their_bounds_keep_their_bits() {
        let gradients: Vec<f32> = (0..105u8).map(|i| f32::from(i) * 1e-3 - 0.05).collect();
        let clip = Clip { value: Some(1.0), row_norm: Some(2.0), norm: Some(5.0), other_norm: 1.0 };
        assert_eq!(clipped(clip, &gradients, 7).0, gradients);
    }

    #[test]
    fn squares_are_summed_in_one_order_at_every_length() {
        for length in 0..40 {
            let gradient: Vec<f32> = (0..length).map(|i| 1.0 + i as f32 * 1e-3).collect();
            let mut lanes = [0.0f64; 8];
            gradient.iter().enumerate().for_each(|(i, g)| lanes[i % 8] += f64::from(*g).powi(2));
            let half: Vec<f64> = (0..4).map(|i| lanes[i] + lanes[i + 4]).collect();
            let expected = (half[0] + half[2]) + (half[1] + half[3]);
            assert_eq!(square_sum(&gradient, f32::INFINITY).to_bits(), expected.to_bits());
        }
    }

    #[test]
    fn what_is_not_finite_behaves_as_in_torch() {
        assert_eq!(coefficient(1.0, f64::INFINITY), 0.0);
        assert!(coefficient(1.0, f64::NAN).is_nan());
        let clip = Clip { value: Some(1.0), ..Clip::default() };
        let (found, _) = clipped(clip, &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN], 3);
        assert!(found[0] == 1.0 && found[1] == -1.0 && found[2].is_nan());
    }

    #[test]
    fn unusable_bounds_are_refused_by_name() {
        Clip::default().validate().unwrap();
        for (clip, words) in [
            (Clip { value: Some(0.0), ..Clip::default() }, "clip value is 0"),
            (Clip { row_norm: Some(f64::NAN), ..Clip::default() }, "clip row_norm is NaN"),
            (Clip { norm: Some(-1.0), ..Clip::default() }, "clip norm is -1"),
            (Clip { other_norm: -1.0, ..Clip::default() }, "other_norm is -1"),
        ] {
            let error = clip.validate().unwrap_err();
            assert!(error.message().starts_with(words), "{error}");
        }
    }
}
