//! Initial rows: what a key that was never written reads as.
//!
//! A row is a pure function of (seed, table salt, key, element), so reading stores nothing and the
//! same store gives the same rows on every machine, in any order, with any number of threads. All
//! arithmetic is integer or correctly rounded IEEE 754 in a fixed order; transcendental functions
//! are those of the `libm` crate, which are software. Changing anything here changes what existing
//! stores read, so it is part of the format.
//!
//! Generator: SplitMix64 with a stream of its own per row (Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", OOPSLA 2014), the finaliser replaced by [`mix`]. The row's
//! start and its odd increment are two hashes of the key, so two rows share a stretch of their
//! streams only if both agree. One 64-bit output serves two elements, its low half first.

mod truncated;

use serde::{Deserialize, Serialize};

use crate::error::{Result, bail};
use crate::hash::mix;
use truncated::Truncated;

/// Turns the key of a row's start into the key of its increment (2^64 / golden ratio, odd).
const INCREMENT_SALT: u64 = 0x9E37_79B9_7F4A_7C15;

/// The largest deviate that 32 random bits can give, in standard deviations, rounded up.
const DEVIATE_MAX: f64 = 6.5;

/// The initializer of the values of a never-written row. State comes from the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Initializer {
    /// Every element is this number.
    Constant(f32),
    /// Uniform in `[low, high)`, on a grid of 2^32 steps; `low` everywhere if both are equal.
    Uniform {
        /// The smallest possible value.
        low: f32,
        /// Above every possible value, unless equal to `low`.
        high: f32,
    },
    /// Normal with this mean and standard deviation, at most 6.4 deviations from the mean.
    Normal {
        /// The mean.
        mean: f32,
        /// The standard deviation.
        std: f32,
    },
    /// Normal with this mean and standard deviation, of which only `[a, b]` is kept, as
    /// `torch.nn.init.trunc_normal_` has it.
    TruncatedNormal {
        /// The mean of the whole distribution.
        mean: f32,
        /// Its standard deviation.
        std: f32,
        /// The smallest possible value.
        a: f32,
        /// The largest possible value.
        b: f32,
    },
}

impl Initializer {
    /// Checks the parameters, once when a table is created.
    ///
    /// Errors: `Misuse` naming the parameter and its value.
    pub fn validate(&self) -> Result<()> {
        match *self {
            Self::Constant(value) => check_finite("constant", value),
            Self::Uniform { low, high } => {
                check_finite("low", low)?;
                check_finite("high", high)?;
                if low > high {
                    bail!(Misuse, "initializer low is {low}, above high, which is {high}");
                }
                Ok(())
            }
            Self::Normal { mean, std } => {
                check_finite("mean", mean)?;
                check_finite("std", std)?;
                if std < 0.0 {
                    bail!(Misuse, "initializer std is {std}, expected at least 0");
                }
                let reach = f64::from(mean).abs() + DEVIATE_MAX * f64::from(std);
                if reach > f64::from(f32::MAX) {
                    bail!(
                        Misuse,
                        "initializer mean {mean} with std {std} leaves the range of float32"
                    );
                }
                Ok(())
            }
            Self::TruncatedNormal { mean, std, a, b } => {
                check_finite("mean", mean)?;
                check_finite("std", std)?;
                check_finite("a", a)?;
                check_finite("b", b)?;
                if std <= 0.0 {
                    bail!(Misuse, "initializer std is {std}, expected more than 0");
                }
                if a >= b {
                    bail!(Misuse, "initializer a is {a}, expected less than b, which is {b}");
                }
                Truncated::new(mean, std, a, b).validate()
            }
        }
    }

    /// No value is larger than this in magnitude.
    pub fn reach(&self) -> f32 {
        match *self {
            Self::Constant(value) => value.abs(),
            Self::Uniform { low, high } => low.abs().max(high.abs()),
            Self::Normal { mean, std } => {
                (f64::from(mean).abs() + DEVIATE_MAX * f64::from(std)) as f32
            }
            Self::TruncatedNormal { a, b, .. } => a.abs().max(b.abs()),
        }
    }

    /// Writes the initial values of `key`. A prefix of a longer row is the shorter row.
    ///
    /// Parameters must have passed [`validate`](Self::validate).
    #[inline]
    pub fn fill(&self, seed: u64, salt: u64, key: u64, values: &mut [f32]) {
        match *self {
            Self::Constant(value) => values.fill(value),
            Self::Uniform { low, high } => {
                let start = f64::from(low);
                let width = (f64::from(high) - start) * SCALE;
                // The sum may round up to `high` in f32; the largest number below it then serves.
                let last = if high > low { high.next_down() } else { low };
                fill_from_bits(seed, salt, key, values, |bits| {
                    ((start + width * f64::from(bits)) as f32).min(last)
                });
            }
            Self::Normal { mean, std } => {
                let (mean, std) = (f64::from(mean), f64::from(std));
                fill_from_bits(seed, salt, key, values, |bits| {
                    (mean + std * normal_deviate(bits)) as f32
                });
            }
            Self::TruncatedNormal { mean, std, a, b } => {
                let truncated = Truncated::new(mean, std, a, b);
                fill_from_bits(seed, salt, key, values, |bits| truncated.value(bits));
            }
        }
    }
}

fn check_finite(name: &str, value: f32) -> Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    bail!(Misuse, "initializer {name} is {value}, expected a finite number")
}

/// Elements whose random bits are made before they are converted, so that conversion vectorises.
const BLOCK: usize = 16;

/// One step of 32 random bits in the unit interval.
const SCALE: f64 = 1.0 / 4_294_967_296.0;

/// Calls `value_of` with 32 random bits for each element.
#[inline(always)]
fn fill_from_bits(
    seed: u64,
    salt: u64,
    key: u64,
    values: &mut [f32],
    value_of: impl Fn(u32) -> f32,
) {
    let stream = mix(seed, salt);
    let mut state = mix(key, stream);
    let increment = mix(key, mix(stream, INCREMENT_SALT)) | 1;
    for block in values.chunks_mut(BLOCK) {
        let mut bits = [0u32; BLOCK];
        for pair in bits[..block.len().next_multiple_of(2)].as_chunks_mut::<2>().0 {
            state = state.wrapping_add(increment);
            let hash = mix(state, 0);
            *pair = [hash as u32, (hash >> 32) as u32];
        }
        for (value, &bits) in block.iter_mut().zip(&bits) {
            *value = value_of(bits);
        }
    }
}

/// The standard normal deviate at the middle of step `bits` of 2^32, odd around the centre.
///
/// Source: M. J. Wichura, "Algorithm AS 241: The percentage points of the normal distribution",
/// Applied Statistics 37 (1988), routine PPND7, about seven correct digits.
#[inline(always)]
fn normal_deviate(bits: u32) -> f64 {
    let q = (f64::from(bits) + 0.5) * SCALE - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q
            * (((59.109_374_720 * r + 159.291_132_02) * r + 50.434_271_938) * r + 3.387_132_717_9)
            / (((67.187_563_600 * r + 78.757_757_664) * r + 17.895_169_469) * r + 1.0);
    }
    normal_tail(q)
}

/// The outer 15 % of [`normal_deviate`].
#[inline(never)]
fn normal_tail(q: f64) -> f64 {
    // The routine has a third branch for roots above 5; 32 random bits end at 4.79.
    let r = (-libm::log(0.5 - q.abs())).sqrt() - 1.6;
    let deviate = (((0.170_238_211_03 * r + 1.306_728_481_6) * r + 2.756_815_390_0) * r
        + 1.423_437_277_7)
        / ((0.120_211_329_75 * r + 0.737_001_642_50) * r + 1.0);
    if q < 0.0 { -deviate } else { deviate }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const UNIFORM: Initializer = Initializer::Uniform { low: -1.0, high: 1.0 };
    const NORMAL: Initializer = Initializer::Normal { mean: 0.0, std: 1.0 };
    const DIM: usize = 32;

    fn truncated(mean: f32, std: f32, a: f32, b: f32) -> Initializer {
        Initializer::TruncatedNormal { mean, std, a, b }
    }

    fn rows(initializer: Initializer, salt: u64, keys: impl Iterator<Item = u64>) -> Vec<f32> {
        let mut all = Vec::new();
        for key in keys {
            let mut row = [0.0; DIM];
            initializer.fill(0, salt, key, &mut row);
            all.extend(row);
        }
        all
    }

    fn moment(numbers: &[f32], power: i32) -> f64 {
        numbers.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / numbers.len() as f64
    }

    fn correlation(a: &[f32], b: &[f32]) -> f64 {
        let product: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        product / a.len() as f64 / (moment(a, 2) * moment(b, 2)).sqrt()
    }

    /// Stored stores depend on these bits: they change only with the format.
    #[test]
    fn bits_of_initial_rows_are_fixed() {
        let bits = |initializer: Initializer, key| {
            let mut row = [0.0; 5];
            initializer.fill(1, 2, key, &mut row);
            row.map(f32::to_bits)
        };
        let got = [
            bits(UNIFORM, 0),
            bits(UNIFORM, u64::MAX),
            bits(NORMAL, 0),
            bits(NORMAL, 7),
            bits(truncated(0.0, 1.0, -2.0, 2.0), 0),
            bits(truncated(0.5, 0.02, 0.53, 0.6), 7),
            bits(truncated(0.0, 1.0, -9.0, -6.0), u64::MAX),
        ];
        assert_eq!(got, GOLDEN, "{got:#010X?}");
    }

    #[test]
    fn a_shorter_row_is_a_prefix_of_a_longer_one() {
        let mut long = [0.0; 67];
        NORMAL.fill(3, 4, 5, &mut long);
        for dim in 0..67 {
            let mut short = vec![0.0; dim];
            NORMAL.fill(3, 4, 5, &mut short);
            assert_eq!(short, long[..dim]);
        }
    }

    #[test]
    fn moments_are_those_of_the_distribution() {
        for (keys, stride) in [(0..40_000u64, 1), (0..40_000, 1 << 32)] {
            let keys = keys.map(|key| key * stride);
            // One standard error of these means is below 1.5e-3 for powers up to 2.
            let uniform = rows(UNIFORM, 9, keys.clone());
            assert!(moment(&uniform, 1).abs() < 4e-3);
            assert!((moment(&uniform, 2) - 1.0 / 3.0).abs() < 4e-3);
            let normal = rows(NORMAL, 9, keys);
            assert!(moment(&normal, 1).abs() < 5e-3);
            assert!((moment(&normal, 2) - 1.0).abs() < 7e-3);
            assert!(moment(&normal, 3).abs() < 2e-2);
            assert!((moment(&normal, 4) - 3.0).abs() < 5e-2);
        }
    }

    #[test]
    fn uniform_numbers_fill_their_bins_evenly() {
        let numbers = rows(UNIFORM, 1, 0..32_768);
        let mut bins = vec![0u32; 1024];
        for x in numbers {
            bins[((f64::from(x) + 1.0) * 512.0) as usize] += 1;
        }
        let chi: f64 = bins.iter().map(|&n| (f64::from(n) - 1024.0).powi(2) / 1024.0).sum();
        // 1023 degrees of freedom: mean 1023, standard deviation 45.
        assert!((800.0..1250.0).contains(&chi), "chi squared {chi}");
    }

    #[test]
    fn neighbouring_keys_elements_tables_and_seeds_are_uncorrelated() {
        // One standard error of a correlation of 2^20 pairs is 0.001.
        let keys = 32_768;
        let base = rows(NORMAL, 1, 0..keys);
        let shuffled = |seed, salt| {
            let mut all = vec![0.0; base.len()];
            for (key, row) in all.chunks_exact_mut(DIM).enumerate() {
                NORMAL.fill(seed, salt, key as u64, row);
            }
            all
        };
        for (what, other) in [
            ("next key", rows(NORMAL, 1, 1..keys + 1)),
            ("key with another high bit", rows(NORMAL, 1, (0..keys).map(|key| key | 1 << 63))),
            ("next element", [&base[1..], &base[..1]].concat()),
            ("element after next", [&base[2..], &base[..2]].concat()),
            ("next salt", rows(NORMAL, 2, 0..keys)),
            ("next seed", shuffled(1, 1)),
        ] {
            let correlation = correlation(&base, &other);
            assert!(correlation.abs() < 0.005, "{what}: {correlation}");
        }
    }

    #[test]
    fn truncated_normal_has_the_moments_of_its_interval() {
        // Mean and variance of what is left, from the densities and probabilities at both ends.
        let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let probability = |x: f64| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        for (mean, std, a, b) in [
            (0.0, 1.0, -2.0, 2.0),
            (0.0, 0.02, -0.04, 0.04),
            (0.5, 2.0, -1.0, 0.25),
            (0.0, 1.0, 2.0, 3.0),
            (0.0, 1.0, -9.0, -6.0),
            (1.0, 5.0, -1.0, 1.0),
        ] {
            let numbers = rows(truncated(mean, std, a, b), 4, 0..40_000);
            assert!(numbers.iter().all(|x| (a..=b).contains(x)));
            let (mean, std) = (f64::from(mean), f64::from(std));
            let (low, high) = ((f64::from(a) - mean) / std, (f64::from(b) - mean) / std);
            let mass = probability(high) - probability(low);
            let shift = (density(low) - density(high)) / mass;
            let spread = (low * density(low) - high * density(high)) / mass;
            let (expected, variance) =
                (mean + std * shift, std * std * (1.0 + spread - shift * shift));
            let centred: Vec<f32> =
                numbers.iter().map(|x| (f64::from(*x) - expected) as f32).collect();
            // 1.28 million numbers: one standard error is below 1e-3 deviations, 2e-3 variances.
            let deviation = variance.sqrt();
            assert!(moment(&centred, 1).abs() < 4e-3 * deviation, "[{a}, {b}]");
            assert!((moment(&centred, 2) / variance - 1.0).abs() < 8e-3, "[{a}, {b}]");
        }
    }

    #[test]
    fn truncated_normal_fills_equally_likely_bins_evenly() {
        let numbers = rows(truncated(0.0, 1.0, -1.0, 2.5), 6, 0..32_768);
        let probability = |x: f32| 0.5 * libm::erfc(-f64::from(x) * 0.5f64.sqrt());
        let (below, above) = (probability(-1.0), probability(2.5));
        let mut bins = vec![0u32; 1024];
        for x in numbers {
            let share = (probability(x) - below) / (above - below);
            bins[((share * 1024.0) as usize).min(1023)] += 1;
        }
        let chi: f64 = bins.iter().map(|&n| (f64::from(n) - 1024.0).powi(2) / 1024.0).sum();
        assert!((800.0..1250.0).contains(&chi), "chi squared {chi}");
    }

    #[test]
    fn uniform_never_reaches_its_upper_end() {
        // Between 1 and its successor the f32 sum would round up half of the time.
        let high = 1.0f32.next_up();
        let numbers = rows(Initializer::Uniform { low: 1.0, high }, 1, 0..64);
        assert!(numbers.iter().all(|&x| x == 1.0));
        let wide = Initializer::Uniform { low: -f32::MAX, high: f32::MAX };
        wide.validate().unwrap();
        assert!(rows(wide, 1, 0..64).iter().all(|x| x.is_finite() && *x < f32::MAX));
        let point = Initializer::Uniform { low: 0.5, high: 0.5 };
        point.validate().unwrap();
        assert!(rows(point, 1, 0..4).iter().all(|&x| x == 0.5));
    }

    #[test]
    fn normal_deviates_are_odd_and_match_known_quantiles() {
        for bits in [0, 1, 12_345, 0x1000_0000, 0x1333_3333, 0x4000_0000, 0x7FFF_FFFF] {
            assert_eq!(normal_deviate(bits), -normal_deviate(!bits), "{bits}");
        }
        // Quantiles of (bits + 1/2) / 2^32 to ten digits, from erfc by Newton's method.
        for (bits, expected) in QUANTILES {
            let got = normal_deviate(bits);
            assert!((got - expected).abs() < 1e-6 * expected.abs(), "{bits}: {got} not {expected}");
        }
        let largest = normal_deviate(u32::MAX);
        assert!(largest < DEVIATE_MAX, "{largest}");
    }

    #[test]
    fn unusable_parameters_are_refused_by_name_and_value() {
        for (bad, words) in [
            (Initializer::Constant(f32::NAN), "constant is NaN"),
            (Initializer::Uniform { low: 1.0, high: -1.0 }, "low is 1, above high, which is -1"),
            (Initializer::Uniform { low: 0.0, high: f32::INFINITY }, "high is inf"),
            (Initializer::Normal { mean: 0.0, std: -1.0 }, "std is -1"),
            (Initializer::Normal { mean: f32::NAN, std: 1.0 }, "mean is NaN"),
            (Initializer::Normal { mean: 0.0, std: 1e38 }, "leaves the range of float32"),
            (truncated(0.0, 0.0, -1.0, 1.0), "std is 0"),
            (truncated(0.0, 1.0, 1.0, 1.0), "a is 1, expected less than b"),
            (truncated(0.0, 1.0, -1.0, f32::INFINITY), "b is inf"),
            (truncated(0.0, 1.0, 50.0, 60.0), "lie more than 37 standard deviations"),
            (truncated(0.0, 1e-3, -9.0, -1.0), "lie more than 37 standard deviations"),
        ] {
            let error = bad.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse);
            assert!(error.message().contains(words), "{error}");
        }
        Initializer::Normal { mean: 0.0, std: 0.0 }.validate().unwrap();
        let mut row = [7.0; 3];
        Initializer::Constant(0.25).fill(1, 2, 3, &mut row);
        assert_eq!(row, [0.25; 3]);
    }

    #[test]
    fn initializers_keep_their_bits_through_json() {
        let cut = truncated(0.1, 0.5, -1.0, 2.0);
        for initializer in [Initializer::Constant(0.1), UNIFORM, NORMAL, cut] {
            let text = serde_json::to_string(&initializer).unwrap();
            assert_eq!(serde_json::from_str::<Initializer>(&text).unwrap(), initializer);
        }
        let text = "{\"normal\":{\"mean\":0.0,\"std\":0.01}}";
        let parsed: Initializer = serde_json::from_str(text).unwrap();
        assert_eq!(parsed, Initializer::Normal { mean: 0.0, std: 0.01 });
    }

    // Computed by a second implementation, in Python.
    const GOLDEN: [[u32; 5]; 7] = [
        [0x3EE2_AA0C, 0xBF44_2C1B, 0xBF50_0987, 0xBECB_7055, 0xBE92_F21D],
        [0xBF56_B31F, 0x3F4C_7AB5, 0x3EAA_4237, 0x3F79_4646, 0xBF1D_6715],
        [0x3F16_3C97, 0xBF98_6EA6, 0xBFA8_C2D1, 0xBF05_44CE, 0xBEBC_54D1],
        [0xBF60_0D01, 0x3F01_4784, 0x3E7C_1E70, 0x3DA5_7A59, 0xBF4C_B757],
        [0x3F0E_9FFC, 0xBF8D_9D5B, 0xBF9B_8835, 0xBEFD_5716, 0xBEB3_64B3],
        [0x3F0B_701B, 0x3F08_9C41, 0x3F08_F82E, 0x3F09_3D8E, 0x3F0B_3A2D],
        [0xC0CC_AEA9, 0xC0C0_8CE2, 0xC0C2_195A, 0xC0C0_1196, 0xC0C8_629C],
    ];

    const QUANTILES: [(u32, f64); 12] = [
        (0, -6.337_957_755),
        (1, -6.166_429_518),
        (1_000, -5.039_851_126),
        (42_949_673, -2.326_347_869),
        (322_122_547, -1.439_531_47),
        (322_122_548, -1.439_531_469),
        (429_496_730, -1.281_551_564),
        (1_073_741_824, -0.674_489_749_8),
        (2_000_000_000, -0.086_180_949),
        (3_000_000_000, 0.520_068_061_8),
        (4_000_000_000, 1.485_713_756),
        (4_294_967_295, 6.337_957_755),
    ];
}
