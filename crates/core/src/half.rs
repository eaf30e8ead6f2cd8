//! 16-bit floats: conversions between float32 and the two formats that rows can have.
//!
//! Plain arithmetic on bits, without a branch where the values of a row go by, so that the loops
//! vectorise on any processor; the same bits everywhere, also where a program has told its
//! processor to flush small numbers to zero. Widening is exact. Narrowing rounds to the nearest
//! value, ties to even, or *stochastically*: to one of the two neighbours, to each the more likely
//! the nearer it is, so that the mean is the value itself and updates far below a unit in the last
//! place are kept on average. A value that the format has stays as it is either way.
//!
//! *Source* of the bit arithmetic of binary16: Fabian Giesen, "half <-> float conversions"
//! (float_to_half_fast3_rtne, half_to_float_fast2).

/// IEEE 754 binary16: 11 significant bits, at most 65,504.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16;

/// The upper half of a binary32: 8 significant bits, the range of float32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bf16;

/// A 16-bit float format.
pub(crate) trait Half: Copy {
    /// The magnitude, as bits of a float32, from which on values round to infinity.
    const OVERFLOW: u32;

    /// The value of these bits, exactly.
    fn widen(bits: u16) -> f32;

    /// The nearest value, ties to even; infinite beyond the range.
    fn nearest(value: f32) -> u16;

    /// One of the neighbours, by 16 random bits, within the range; NaN stays NaN. Wrong for values
    /// that are [`rare`](Self::rare).
    fn stochastic(value: f32, random: u16) -> u16;

    /// True where [`stochastic_rare`](Self::stochastic_rare) must round.
    fn rare(value: f32) -> bool;

    /// As [`stochastic`](Self::stochastic) for every value: by more bits, as rare ones have more to
    /// lose, and with branches. The upper half of the bits are those of `stochastic`.
    fn stochastic_rare(value: f32, random: u32) -> u16;
}

use crate::hash::mix;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7F80_0000;

/// The smaller of two numbers below 2^31, in a form that vectorises without SSE 4.1.
#[inline(always)]
fn smaller(a: u32, b: u32) -> u32 {
    if (a as i32) < (b as i32) { a } else { b }
}

impl F16 {
    const MAX_BITS: u32 = 0x7BFF;
    /// The smallest normal value, 2^-14, as bits of a float32.
    const NORMAL: u32 = 113 << 23;
    /// From a float32's exponent to a float16's, before the shift by 13.
    const REBIAS: u32 = 112 << 23;
}

impl Half for F16 {
    const OVERFLOW: u32 = 0x477F_F000; // 65,520: half a unit beyond the largest value

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        let magnitude = u32::from(bits & 0x7FFF) << 13;
        let exponent = magnitude & (0x1F << 23);
        let beyond = if exponent == 0x1F << 23 { Self::REBIAS } else { 0 };
        let normal = magnitude + Self::REBIAS + beyond;
        // A subnormal: its bits are the fraction above 2^-14, from which that is taken again.
        let small = f32::from_bits(magnitude + Self::NORMAL) - f32::from_bits(Self::NORMAL);
        let widened = if exponent == 0 { small.to_bits() } else { normal };
        f32::from_bits(widened | u32::from(bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn nearest(value: f32) -> u16 {
        /// 0.5: its unit in the last place is that of subnormal values, to which adding it rounds.
        const MAGIC: u32 = 126 << 23;
        let bits = value.to_bits();
        let magnitude = bits & !SIGN;
        let small =
            (f32::from_bits(magnitude) + f32::from_bits(MAGIC)).to_bits().wrapping_sub(MAGIC);
        let odd = magnitude >> 13 & 1;
        let normal = magnitude.wrapping_sub(Self::REBIAS).wrapping_add(0xFFF + odd) >> 13;
        let beyond = if magnitude > INFINITY { 0x7E00 } else { 0x7C00 };
        let within = if magnitude < Self::NORMAL { small } else { normal };
        let narrowed = if magnitude >= Self::OVERFLOW { beyond } else { within };
        (narrowed | bits >> 16 & 0x8000) as u16
    }

    #[inline(always)]
    fn stochastic(value: f32, random: u16) -> u16 {
        let bits = value.to_bits();
        let magnitude = bits & !SIGN;
        let rounded =
            magnitude.wrapping_sub(Self::REBIAS).wrapping_add(u32::from(random >> 3)) >> 13;
        let within = smaller(rounded, Self::MAX_BITS);
        let narrowed = if magnitude > INFINITY { 0x7E00 } else { within };
        (narrowed | bits >> 16 & 0x8000) as u16
    }

    #[inline(always)]
    fn rare(value: f32) -> bool {
        value.to_bits() & !SIGN < Self::NORMAL
    }

    fn stochastic_rare(value: f32, random: u32) -> u16 {
        if !Self::rare(value) {
            return Self::stochastic(value, (random >> 16) as u16);
        }
        // Units of the smallest value, 2^-24: below 1024, and exact in a double.
        let units = f64::from(f32::from_bits(value.to_bits() & !SIGN)) * f64::from(1 << 24);
        let whole = units as u32;
        let up = f64::from(random) < (units - f64::from(whole)) * 4_294_967_296.0;
        ((whole + u32::from(up)) | value.to_bits() >> 16 & 0x8000) as u16
    }
}

impl Half for Bf16 {
    const OVERFLOW: u32 = 0x7F7F_8000;

    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn nearest(value: f32) -> u16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        (if bits & !SIGN > INFINITY { quiet } else { rounded }) as u16
    }

    #[inline(always)]
    fn stochastic(value: f32, random: u16) -> u16 {
        let bits = value.to_bits();
        let magnitude = bits & !SIGN;
        let within = smaller(magnitude.wrapping_add(u32::from(random)) >> 16, 0x7F7F);
        let narrowed = if magnitude > INFINITY { magnitude >> 16 | 0x40 } else { within };
        (narrowed | bits >> 16 & 0x8000) as u16
    }

    #[inline(always)]
    fn rare(_: f32) -> bool {
        false
    }

    fn stochastic_rare(value: f32, random: u32) -> u16 {
        Self::stochastic(value, (random >> 16) as u16)
    }
}

/// The random bits of one row's rounding: a function of seed, table, key, and which update of the
/// table it is. Element `i` has a quarter of the output `i / 4`, the lowest first.
///
/// Generator: wyrand (Wang Yi, "wyhash"), which takes one product for 64 bits, started at a hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

/// The random bits of one batch of updates of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounding(u64);

/// Tells the hashes of roundings from those of initial rows (digits of pi).
const ROUNDING_SALT: u64 = 0x2432_F6A8_885A_308D;
/// Elements whose random bits are made before they are used, so that rounding vectorises.
const BLOCK: usize = 16;

impl Rounding {
    /// The bits of the table's `count`-th batch of updates.
    pub(crate) fn new(seed: u64, salt: u64, count: u64) -> Self {
        Self(mix(count, mix(mix(seed, ROUNDING_SALT), salt)))
    }

    /// The bits of one row.
    #[inline(always)]
    pub(crate) fn of_row(&self, key: u64) -> Random {
        Random(mix(key, self.0))
    }
}

impl Random {
    #[inline(always)]
    fn block(&mut self) -> [u16; BLOCK] {
        const STEP: u64 = 0xA076_1D64_78BD_642F;
        const KEY: u64 = 0xE703_7ED1_A0B4_28DB;
        let mut bits = [0; BLOCK];
        for four in bits.as_chunks_mut::<4>().0 {
            self.0 = self.0.wrapping_add(STEP);
            let product = u128::from(self.0) * u128::from(self.0 ^ KEY);
            let output = product as u64 ^ (product >> 64) as u64;
            *four = [0, 16, 32, 48].map(|shift| (output >> shift) as u16);
        }
        bits
    }

    /// Further bits, for values that have more digits to lose.
    fn further(&self) -> Self {
        Self(mix(self.0, ROUNDING_SALT))
    }
}

/// Widens all values.
#[inline]
pub(crate) fn widen<H: Half>(from: &[u16], to: &mut [f32]) {
    for (to, &bits) in to.iter_mut().zip(from) {
        *to = H::widen(bits);
    }
}

/// Narrows all values to the nearest.
#[inline]
pub(crate) fn narrow<H: Half>(from: &[f32], to: &mut [u16]) {
    for (to, &value) in to.iter_mut().zip(from) {
        *to = H::nearest(value);
    }
}

/// True where all values are finite and stay so.
#[inline]
pub(crate) fn all_fit<H: Half>(values: &[f32]) -> bool {
    values.iter().fold(true, |all, value| all & (value.to_bits() & !SIGN < H::OVERFLOW))
}

/// Narrows all values stochastically. True when one was beyond the range, to whose end it is
/// brought.
#[inline]
pub(crate) fn narrow_stochastically<H: Half>(from: &[f32], to: &mut [u16], random: Random) -> bool {
    assert_eq!(from.len(), to.len(), "values to narrow");
    let mut bits = random;
    let mut found = Found::default();
    let (from_blocks, from_tail) = from.as_chunks::<BLOCK>();
    let (to_blocks, to_tail) = to.as_chunks_mut::<BLOCK>();
    for (from, to) in from_blocks.iter().zip(to_blocks) {
        *to = found.narrow::<H>(from, &bits.block());
    }
    if !from_tail.is_empty() {
        // Not with zeros, which are rare.
        let mut last = [1.0; BLOCK];
        last[..from_tail.len()].copy_from_slice(from_tail);
        let narrowed = found.narrow::<H>(&last, &bits.block());
        to_tail.copy_from_slice(&narrowed[..from_tail.len()]);
    }
    if found.rare {
        narrow_rare::<H>(from, to, random);
    }
    found.beyond
}

/// The kinds of values that were found in a row.
#[derive(Clone, Copy, Default)]
struct Found {
    rare: bool,
    beyond: bool,
}

impl Found {
    #[inline(always)]
    fn narrow<H: Half>(&mut self, from: &[f32; BLOCK], bits: &[u16; BLOCK]) -> [u16; BLOCK] {
        let mut to = [0; BLOCK];
        for i in 0..BLOCK {
            to[i] = H::stochastic(from[i], bits[i]);
            self.rare |= H::rare(from[i]);
            self.beyond |= is_beyond::<H>(from[i]);
        }
        to
    }
}

/// Narrows all values to the nearest. True when one was beyond the range, to whose end it is
/// brought.
#[inline]
pub(crate) fn narrow_within<H: Half>(from: &[f32], to: &mut [u16]) -> bool {
    let mut beyond = false;
    for (to, &value) in to.iter_mut().zip(from) {
        beyond |= is_beyond::<H>(value);
        *to = match is_beyond::<H>(value) {
            // The end of the range is what no random bits lead to from anywhere beyond it.
            true => H::stochastic(value, 0),
            false => H::nearest(value),
        };
    }
    beyond
}

#[inline(always)]
fn is_beyond<H: Half>(value: f32) -> bool {
    let magnitude = value.to_bits() & !SIGN;
    (magnitude >= H::OVERFLOW) & (magnitude <= INFINITY)
}

#[cold]
#[inline(never)]
fn narrow_rare<H: Half>(from: &[f32], to: &mut [u16], mut random: Random) {
    let mut further = random.further();
    for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
        let (high, low) = (random.block(), further.block());
        for (i, (to, &value)) in to.iter_mut().zip(from).enumerate() {
            if H::rare(value) {
                *to = H::stochastic_rare(value, u32::from(high[i]) << 16 | u32::from(low[i]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of binary16 bits by the definition.
    fn reference(bits: u16) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f64::from(bits & 0x3FF));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            0x1F if fraction == 0.0 => f64::INFINITY,
            0x1F => f64::NAN,
            _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
        };
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }

    fn random(key: u64) -> u32 {
        let [low, high, ..] = Rounding::new(1, 2, 3).of_row(key).block();
        u32::from(high) << 16 | u32::from(low)
    }

    /// Float32 numbers of every exponent, with neighbours of the values of the format.
    fn samples() -> Vec<f32> {
        let mut samples = vec![0.0, f32::MIN_POSITIVE, f32::MAX, 65_504.0, 65_519.99, 65_520.0];
        for i in 0..200_000u64 {
            samples.push(f32::from_bits(mix(i, 8) as u32));
        }
        for exponent in -26..17 {
            for i in 0..64 {
                let value = (1.0 + f32::from(i as u8) / 64.0) * 2f32.powi(exponent);
                samples.extend([value, value.next_up(), value.next_down()]);
            }
        }
        samples.extend(samples.clone().iter().map(|value| -value));
        samples
    }

    #[test]
    fn every_value_is_widened_exactly_and_narrowed_back() {
        for bits in 0..=u16::MAX {
            let (half, upper) = (F16::widen(bits), Bf16::widen(bits));
            assert_eq!(upper.to_bits(), u32::from(bits) << 16);
            if reference(bits).is_nan() {
                assert!(half.is_nan());
                assert!(F16::widen(F16::nearest(half)).is_nan());
            } else {
                assert_eq!(f64::from(half), reference(bits), "{bits:#x}");
                assert_eq!(half.is_sign_negative(), bits >> 15 == 1);
                assert_eq!(F16::nearest(half), bits);
                if half.is_finite() {
                    for r in [0, u32::MAX, random(u64::from(bits))] {
                        assert_eq!(F16::stochastic_rare(half, r), bits, "{bits:#x} {r}");
                    }
                }
            }
            if upper.is_nan() {
                assert!(Bf16::widen(Bf16::nearest(upper)).is_nan());
                assert!(Bf16::widen(Bf16::stochastic(upper, 7)).is_nan());
            } else {
                assert_eq!(Bf16::nearest(upper), bits);
                if upper.is_finite() {
                    assert_eq!(Bf16::stochastic(upper, u16::MAX), bits);
                }
            }
        }
    }

    /// The two neighbours of a value, the one nearer to zero first, as bits.
    fn neighbours<H: Half>(value: f32) -> (u16, u16) {
        let magnitude = value.abs();
        let mut low = 0u16;
        for bit in (0..15).rev() {
            let candidate = low | 1 << bit;
            let above = H::widen(candidate);
            if above.is_finite() && above <= magnitude {
                low = candidate;
            }
        }
        let sign = (value.to_bits() >> 16 & 0x8000) as u16;
        (low | sign, (low + 1) | sign)
    }

    fn nearest_is_the_nearer_neighbour<H: Half>() {
        for value in samples() {
            let found = H::nearest(value);
            if value.is_nan() {
                assert!(H::widen(found).is_nan());
                continue;
            }
            let (low, high) = neighbours::<H>(value);
            let exact = f64::from(value.abs());
            let near = f64::from(H::widen(low & 0x7FFF));
            // Beyond the largest value the next one would be as far away as the one before.
            let far = match H::widen(high & 0x7FFF).is_finite() {
                true => f64::from(H::widen(high & 0x7FFF)),
                false => 2.0 * near - f64::from(H::widen((low - 1) & 0x7FFF)),
            };
            let expected = match (exact - near).partial_cmp(&(far - exact)) {
                Some(std::cmp::Ordering::Less) => low,
                Some(std::cmp::Ordering::Greater) => high,
                _ => low + (low & 1),
            };
            assert_eq!(found, expected, "{value:e}");
            assert_eq!(H::widen(found).is_finite(), all_fit::<H>(&[value]), "{value:e}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_ties_to_even() {
        nearest_is_the_nearer_neighbour::<F16>();
        nearest_is_the_nearer_neighbour::<Bf16>();
        let to_even = [(2049.0, 2048.0), (2051.0, 2052.0), (2f32.powi(-25), 0.0)];
        for (value, expected) in to_even {
            assert_eq!(F16::widen(F16::nearest(value)), expected);
        }
        assert_eq!(F16::widen(F16::nearest(3.0 * 2f32.powi(-25))), 2f32.powi(-23));
        assert_eq!(F16::nearest(-0.0), 0x8000);
        assert_eq!(F16::nearest(65_519.996), 0x7BFF);
        assert_eq!(F16::nearest(65_520.0), 0x7C00);
    }

    fn stochastic_takes_a_neighbour<H: Half>() {
        for (i, value) in samples().into_iter().enumerate() {
            let found = H::stochastic_rare(value, random(i as u64));
            if value.is_nan() {
                assert!(H::widen(found).is_nan());
                continue;
            }
            let (low, high) = neighbours::<H>(value);
            let exact = H::widen(low) == value || !H::widen(high).is_finite();
            assert!(found == low || (found == high && !exact), "{value:e}: {found:#x}");
            if !H::rare(value) {
                assert_eq!(found, H::stochastic(value, (random(i as u64) >> 16) as u16));
            }
        }
    }

    #[test]
    fn stochastic_rounding_takes_one_of_the_neighbours() {
        stochastic_takes_a_neighbour::<F16>();
        stochastic_takes_a_neighbour::<Bf16>();
    }

    /// Share of all 16-bit prefixes of random bits with which rounding goes up.
    fn share_of_ups<H: Half>(value: f32) -> f64 {
        let (low, _) = neighbours::<H>(value);
        let ups = (0..1u32 << 16)
            .filter(|prefix| H::stochastic_rare(value, prefix << 16 | 0x8000) != low)
            .count();
        ups as f64 / f64::from(1 << 16)
    }

    #[test]
    fn each_neighbour_comes_as_often_as_it_is_near() {
        fn check<H: Half>(value: f32, off: f64) {
            let (low, high) = neighbours::<H>(value);
            let (near, far) = (f64::from(H::widen(low)), f64::from(H::widen(high)));
            if far.is_finite() {
                let expected = (f64::from(value) - near) / (far - near);
                let found = share_of_ups::<H>(value);
                assert!((found - expected).abs() <= off, "{value:e}: {found}, not {expected}");
            }
        }
        for value in samples().into_iter().step_by(911).filter(|value| value.is_finite()) {
            check::<Bf16>(value, 0.0);
            // Subnormal values have more digits to lose than the 16 bits that are tried.
            check::<F16>(value, if F16::rare(value) { 1.0 / 65_536.0 } else { 0.0 });
        }
    }

    #[test]
    fn rows_are_rounded_by_seed_table_key_element_and_count() {
        let values = [1.0 + 1.0 / 4096.0; 40];
        let rounded = |seed, salt, count, key| {
            let mut row = [0; 40];
            let random = Rounding::new(seed, salt, count).of_row(key);
            assert!(!narrow_stochastically::<F16>(&values, &mut row, random));
            row
        };
        let base = rounded(1, 2, 3, 4);
        assert_eq!(base, rounded(1, 2, 3, 4));
        for other in [rounded(2, 2, 3, 4), rounded(1, 3, 3, 4), rounded(1, 2, 4, 4)] {
            assert_ne!(base, other);
        }
        assert_ne!(base, rounded(1, 2, 3, 5));
        let ups = base.iter().filter(|bits| **bits == 0x3C01).count();
        assert!((3..20).contains(&ups), "{ups} of 40, a quarter expected: {base:?}");
        // A shorter row is rounded as the beginning of a longer one.
        let mut short = [0; 7];
        narrow_stochastically::<F16>(&values[..7], &mut short, Rounding::new(1, 2, 3).of_row(4));
        assert_eq!(short, base[..7]);
    }

    #[test]
    fn the_mean_of_many_roundings_is_the_value() {
        // One part in 2^15 of a unit in the last place, and a subnormal.
        for value in [1.0 + 2f32.powi(-12), 0.1, -3.7e-6, 2f32.powi(-27), 60_001.5] {
            let (mut half, mut upper, mut row) = (0.0, 0.0, [0; 1]);
            let times = 200_000;
            for count in 0..times {
                let random = Rounding::new(5, 6, count).of_row(7);
                narrow_stochastically::<F16>(&[value], &mut row, random);
                half += f64::from(F16::widen(row[0]));
                narrow_stochastically::<Bf16>(&[value], &mut row, random);
                upper += f64::from(Bf16::widen(row[0]));
            }
            let off = |sum: f64| (sum / times as f64 - f64::from(value)).abs();
            let unit = |low: f32, high: f32| f64::from((high - low).abs());
            let f16 = neighbours::<F16>(value);
            let bf16 = neighbours::<Bf16>(value);
            // Half a unit is the largest deviation of one rounding; five standard errors.
            let error = 2.5 / (times as f64).sqrt();
            assert!(off(half) < error * unit(F16::widen(f16.0), F16::widen(f16.1)), "{value}");
            assert!(off(upper) < error * unit(Bf16::widen(bf16.0), Bf16::widen(bf16.1)), "{value}");
        }
    }

    #[test]
    fn what_is_beyond_the_range_is_brought_to_its_end_and_told() {
        let random = Rounding::new(0, 0, 0).of_row(0);
        let mut row = [0; 4];
        let values = [65_520.0, -f32::MAX, f32::NEG_INFINITY, 65_519.0];
        assert!(narrow_stochastically::<F16>(&values, &mut row, random));
        assert_eq!(row, [0x7BFF, 0xFBFF, 0xFBFF, 0x7BFF]);
        row = [0; 4];
        assert!(narrow_within::<F16>(&values, &mut row));
        assert_eq!(row, [0x7BFF, 0xFBFF, 0xFBFF, 0x7BFF]);
        let values = [f32::MAX, -f32::MAX, f32::INFINITY, 1.0];
        assert!(narrow_stochastically::<Bf16>(&values, &mut row, random));
        assert_eq!(row, [0x7F7F, 0xFF7F, 0x7F7F, 0x3F80]);
        for within in [65_504.0, -65_519.0, f32::NAN, 1e-9, 0.0] {
            assert!(!narrow_stochastically::<F16>(&[within], &mut row[..1], random), "{within}");
            assert!(!narrow_within::<F16>(&[within], &mut row[..1]), "{within}");
        }
        assert!(!all_fit::<F16>(&[1.0, f32::NAN]) && !all_fit::<F16>(&[7e4]));
        assert!(all_fit::<F16>(&[65_519.0, -0.0]) && all_fit::<Bf16>(&[7e4]));
    }
}
