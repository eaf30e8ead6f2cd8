//! The truncated normal distribution: the inverse of its distribution function, applied to one step
//! of 2^32 per element.

use crate::error::{Result, bail};

/// Beyond so many deviations what is left of the distribution is too small for a double.
const DEVIATIONS_MAX: f64 = 37.0;

/// A normal distribution of which only an interval is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Truncated {
    mean: f64,
    /// Negative where the interval lies mostly above the mean: it is mirrored then, because small
    /// probabilities are exact near 0 and not near 1.
    std: f64,
    a: f32,
    b: f32,
    /// The interval's upper end in deviations, after mirroring.
    upper: f64,
    /// The probability below the interval, after mirroring, and that of one step of 2^32 in it.
    below: f64,
    step: f64,
}

impl Truncated {
    /// Panics never; for parameters that [`validate`](Self::validate) refuses, values mean nothing.
    pub(super) fn new(mean: f32, std: f32, a: f32, b: f32) -> Self {
        let (mean, std) = (f64::from(mean), f64::from(std));
        let (low, high) = ((f64::from(a) - mean) / std, (f64::from(b) - mean) / std);
        let (lower, upper, std) =
            if low + high > 0.0 { (-high, -low, -std) } else { (low, high, std) };
        let below = probability(lower);
        let step = (probability(upper) - below) * super::SCALE;
        Self { mean, std, a, b, upper, below, step }
    }

    /// Errors: `Misuse` where hardly anything of the distribution lies in the interval.
    pub(super) fn validate(&self) -> Result<()> {
        if self.upper >= -DEVIATIONS_MAX {
            return Ok(());
        }
        bail!(
            Misuse,
            "initializer a {} and b {} lie more than {DEVIATIONS_MAX} standard deviations of {} \
             from the mean {}",
            self.a,
            self.b,
            self.std.abs(),
            self.mean
        )
    }

    /// The value at the middle of step `bits`.
    #[inline(always)]
    pub(super) fn value(&self, bits: u32) -> f32 {
        let p = self.below + self.step * (f64::from(bits) + 0.5);
        // Roundings may lead past the ends.
        ((self.mean + self.std * deviate(p)) as f32).clamp(self.a, self.b)
    }
}

/// The probability of the standard normal distribution below `x`.
fn probability(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

/// The standard normal deviate below which probability `p` lies.
///
/// Source: M. J. Wichura, "Algorithm AS 241: The percentage points of the normal distribution",
/// Applied Statistics 37 (1988), routine PPND16, about sixteen correct digits. Its long form is
/// needed: with a narrow interval the error of the short one would be a part of the interval.
#[inline(always)]
fn deviate(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * (polynomial(&CENTRE_NUM, r) / polynomial(&CENTRE_DEN, r));
    }
    let tail = tail_deviate(if q < 0.0 { p } else { 1.0 - p });
    if q < 0.0 { -tail } else { tail }
}

/// The outer 15 % of [`deviate`], without the sign. `p` is the smaller of both probabilities.
#[inline(never)]
fn tail_deviate(p: f64) -> f64 {
    let r = (-libm::log(p)).sqrt();
    match r <= 5.0 {
        true => polynomial(&TAIL_NUM, r - 1.6) / polynomial(&TAIL_DEN, r - 1.6),
        false => polynomial(&FAR_NUM, r - 5.0) / polynomial(&FAR_DEN, r - 5.0),
    }
}

/// Horner's rule, the highest power first, each operation rounded.
#[inline(always)]
fn polynomial(coefficients: &[f64; 8], x: f64) -> f64 {
    coefficients[1..].iter().fold(coefficients[0], |sum, c| sum * x + c)
}

const CENTRE_NUM: [f64; 8] = [
    2_509.080_928_730_122_7,
    33_430.575_583_588_13,
    67_265.770_927_008_7,
    45_921.953_931_549_87,
    13_731.693_765_509_46,
    1_971.590_950_306_551_3,
    133.141_667_891_784_38,
    3.387_132_872_796_366_5,
];
const CENTRE_DEN: [f64; 8] = [
    5_226.495_278_852_854,
    28_729.085_735_721_943,
    39_307.895_800_092_71,
    21_213.794_301_586_597,
    5_394.196_021_424_751,
    687.187_007_492_057_9,
    42.313_330_701_600_91,
    1.0,
];
const TAIL_NUM: [f64; 8] = [
    0.000_774_545_014_278_341_4,
    0.022_723_844_989_269_184,
    0.241_780_725_177_450_6,
    1.270_458_252_452_368_4,
    3.647_848_324_763_204_5,
    5.769_497_221_460_691,
    4.630_337_846_156_546,
    1.423_437_110_749_683_5,
];
const TAIL_DEN: [f64; 8] = [
    1.050_750_071_644_416_9e-9,
    0.000_547_593_808_499_534_5,
    0.015_198_666_563_616_457,
    0.148_103_976_427_480_08,
    0.689_767_334_985_1,
    1.676_384_830_183_803_8,
    2.053_191_626_637_759,
    1.0,
];
const FAR_NUM: [f64; 8] = [
    2.010_334_399_292_288_1e-7,
    2.711_555_568_743_487_6e-5,
    0.001_242_660_947_388_078_4,
    0.026_532_189_526_576_124,
    0.296_560_571_828_504_87,
    1.784_826_539_917_291_3,
    5.463_784_911_164_114,
    6.657_904_643_501_103,
];
const FAR_DEN: [f64; 8] = [
    2.044_263_103_389_939_7e-15,
    1.421_511_758_316_446e-7,
    1.846_318_317_510_054_8e-5,
    0.000_786_869_131_145_613_3,
    0.014_875_361_290_850_615,
    0.136_929_880_922_735_8,
    0.599_832_206_555_888,
    1.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviates_invert_the_probability_to_twelve_digits() {
        for i in -3700..=800 {
            let x = f64::from(i) / 100.0;
            let got = deviate(probability(x));
            // Above the centre the probability itself has lost the digits.
            let bound = 1e-12 * x.abs().max(1.0) + if x > 0.0 { 1e-16 / density(x) } else { 0.0 };
            assert!((got - x).abs() < bound.max(1e-12), "{x}: {got}");
        }
    }

    fn density(x: f64) -> f64 {
        (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
    }

    #[test]
    fn the_first_and_the_last_step_lie_at_the_ends() {
        for (mean, std, a, b, low, high) in [
            (0.0, 1.0, -2.0, 2.0, -2.0, 2.0),
            (0.0, 0.02, -0.04, 0.04, -0.04, 0.04),
            (5.0, 1.0, -1.0, 0.5, -1.0, 0.5),
            (-5.0, 1.0, 1.0, 1.5, 1.0, 1.5),
            (0.0, 1.0, 30.0, 31.0, 30.0, 30.752),
            (0.0, 1.0, 1.0, 1.0001, 1.0, 1.0001),
            (0.0, 1e-30, -1.0, 1.0, -6.338e-30, 6.338e-30),
            (0.0, 1.0, -f32::MAX, f32::MAX, -6.338, 6.338),
        ] {
            let truncated = Truncated::new(mean, std, a, b);
            truncated.validate().unwrap();
            let mut ends = [truncated.value(0), truncated.value(u32::MAX)];
            ends.sort_by(f32::total_cmp);
            assert!(a <= ends[0] && ends[1] <= b, "{ends:?}");
            let near = |got: f32, end: f32| (got - end).abs() <= 0.01 * (high - low);
            assert!(near(ends[0], low) && near(ends[1], high), "{ends:?}, not {low} {high}");
        }
    }

    #[test]
    fn values_rise_or_fall_with_the_step() {
        for (mean, fall) in [(0.0, false), (-1.5, true)] {
            let truncated = Truncated::new(mean, 1.0, -2.0, 2.0);
            let mut last = truncated.value(0);
            for bits in (0..u32::MAX - (1 << 22)).step_by(1 << 22) {
                let value = truncated.value(bits + (1 << 22));
                assert!(if fall { value <= last } else { value >= last }, "{bits}");
                last = value;
            }
        }
    }
}
