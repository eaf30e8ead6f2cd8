//! Quantised rows: codes of 8 or 4 bits, with one scale and one zero point for the row.
//!
//! A value is `(code × 2^f − zero) × scale / 2^f`, where `f` is the number of fractional bits of
//! the zero point. Scale and zero point share a word (`docs/formats/page.md`): a scale of 10
//! significant bits with the exponents of float32, and 14 bits of zero point. So the product above
//! has at most 24 significant bits: decoding never rounds, whatever the processor.
//!
//! Invariants: a value is within half a step, and a thousandth of it, of the given one. A step is
//! one 255th (one 15th) of the span between the smallest and the largest value, with zero among
//! them. Rows of equal values are exact. A row that was decoded is encoded to the same words:
//! reading a row and putting it back does not change it. Nothing is left to chance.
//!
//! *Source* of a scale and a zero point for each row: rowwise quantisation of FBGEMM. It has 8
//! bytes of them, which are no better (`docs/decisions/0022-quantised-rows.md`).

/// The bits of the scale in the first word of a row, as those of a float32 without a sign.
const SCALE: u32 = 0x7FFF_C000;
/// Half a unit in the last place of a scale, less one.
const SCALE_ROUND: u32 = 0x1FFF;
const SCALE_LAST: u32 = 14;
/// The smallest scale, 2^-112; rows for which it is too large become zero. A step of the zero point
/// is still a normal float32, and equal where a program flushes small numbers to zero.
const SCALE_MIN: f32 = f32::from_bits((127 - 112) << 23);
const ZERO: u32 = 0x3FFF;
/// Adding this to a number of less than 2^51 leaves the nearest whole one in its low bits.
const MAGIC: f64 = 1.5 * (1u64 << 52) as f64;

/// Codes of 8 bits, one in each byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8;

/// Codes of 4 bits. The lower halves of the bytes have the first half of the row, the upper ones
/// the second; of an odd number the first half has one more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int4;

/// The width of codes, and their places in a row.
pub(crate) trait Codes {
    /// Bits of a code.
    const BITS: u32;
    /// Fractional bits of the zero point: the rest of its 14 bits.
    const FRACTION: u32 = 14 - Self::BITS;
    /// The largest code.
    const LAST: u32 = (1 << Self::BITS) - 1;
    /// The largest span of a row, zero included: all codes with the largest scale. So the decoded
    /// values of such a row are finite, and span no more.
    const SPAN_MAX: f64 = Self::LAST as f64 * (1u128 << (127 - Self::BITS)) as f64;

    /// Calls `decode` for each code and the place of its value.
    fn read(bytes: &[u8], values: &mut [f32], decode: impl Fn(u8) -> f32);

    /// Writes the codes that `encode` makes of values.
    fn write(bytes: &mut [u8], values: &[f32], encode: impl Fn(f32) -> u8);
}

impl Codes for Int8 {
    const BITS: u32 = 8;

    #[inline(always)]
    fn read(bytes: &[u8], values: &mut [f32], decode: impl Fn(u8) -> f32) {
        for (value, code) in values.iter_mut().zip(bytes) {
            *value = decode(*code);
        }
    }

    #[inline(always)]
    fn write(bytes: &mut [u8], values: &[f32], encode: impl Fn(f32) -> u8) {
        for (code, value) in bytes.iter_mut().zip(values) {
            *code = encode(*value);
        }
    }
}

impl Codes for Int4 {
    const BITS: u32 = 4;

    #[inline(always)]
    fn read(bytes: &[u8], values: &mut [f32], decode: impl Fn(u8) -> f32) {
        let (first, second) = values.split_at_mut(values.len().div_ceil(2));
        for (value, codes) in first.iter_mut().zip(bytes) {
            *value = decode(codes & 0xF);
        }
        for (value, codes) in second.iter_mut().zip(bytes) {
            *value = decode(codes >> 4);
        }
    }

    #[inline(always)]
    fn write(bytes: &mut [u8], values: &[f32], encode: impl Fn(f32) -> u8) {
        let (first, second) = values.split_at(values.len().div_ceil(2));
        for (codes, value) in bytes.iter_mut().zip(first) {
            *codes = encode(*value) & 0xF;
        }
        for (codes, value) in bytes.iter_mut().zip(second) {
            *codes |= encode(*value) << 4;
        }
    }
}

/// Words of a row of `dim` values: one for scale and zero point, then the codes.
pub(crate) fn words<C: Codes>(dim: usize) -> usize {
    1 + dim.div_ceil(32 / C::BITS as usize)
}

/// True where a row of these values can be encoded: all are finite, and none are too far apart.
#[inline]
pub(crate) fn fits<C: Codes>(values: &[f32]) -> bool {
    let finite = |value: &f32| value.to_bits() & 0x7F80_0000 < 0x7F80_0000;
    let (least, greatest) = ends(values);
    let span = f64::from(greatest.max(0.0)) - f64::from(least.min(0.0));
    values.iter().fold(span <= C::SPAN_MAX, |all, value| all & finite(value))
}

/// The smallest and the largest value.
#[inline(always)]
fn ends(values: &[f32]) -> (f32, f32) {
    let (mut least, mut greatest) = (values[0], values[0]);
    for value in values {
        least = if *value < least { *value } else { least };
        greatest = if *value > greatest { *value } else { greatest };
    }
    (least, greatest)
}

/// Decodes a row, which is exact.
#[inline(always)]
pub(crate) fn widen<C: Codes>(words: &[f32], values: &mut [f32]) {
    let head = words[0].to_bits();
    let scale = f32::from_bits(head & SCALE);
    if scale == 0.0 {
        values.fill(words[1]);
        return;
    }
    let unit = scale * (1.0 / (1u32 << C::FRACTION) as f32);
    let zero = (head & ZERO) as i32;
    C::read(bytemuck::cast_slice(&words[1..]), values, |code| {
        ((i32::from(code) << C::FRACTION) - zero) as f32 * unit
    });
}

/// Encodes a row to the nearest codes. It must [fit](fits).
#[inline]
pub(crate) fn narrow<C: Codes>(values: &[f32], words: &mut [f32]) {
    words.fill(0.0);
    let (least, greatest) = ends(values);
    // The word behind a head of zero is the value of all; zero has no sign.
    if least == greatest {
        words[1] = least + 0.0;
        return;
    }
    // With zero in the range of every row 14 bits are enough for zero points.
    let (low, high) = (least.min(0.0), greatest.max(0.0));
    let scale = scale_of((f64::from(high) - f64::from(low)) / f64::from(C::LAST));
    if scale < SCALE_MIN {
        return;
    }
    let (steps, fraction) = (1.0 / f64::from(scale), f64::from(1u32 << C::FRACTION));
    let last = C::LAST << C::FRACTION;
    let zero = match high > 0.0 {
        true => ((f64::from(low) * -steps * fraction).round_ties_even() as u32).min(last),
        // The end of the range that is zero is exact, as it is where no value is negative.
        false => last,
    };
    let shift = f64::from(zero) / fraction;
    // The values to round lie between -0.26 and the last code plus 0.26: nothing has to be clipped.
    let encode = |value: f32| (f64::from(value) * steps + shift + MAGIC).to_bits() as u8;
    if encode(least) == encode(greatest) {
        words[1] = ((f64::from(least) + f64::from(greatest)) / 2.0) as f32;
        return;
    }
    words[0] = f32::from_bits(scale.to_bits() | zero);
    C::write(bytemuck::cast_slice_mut(&mut words[1..]), values, encode);
}

/// The scale nearest to a step, ties to even.
fn scale_of(step: f64) -> f32 {
    let bits = (step as f32).to_bits();
    let rounded = bits + SCALE_ROUND + (bits >> SCALE_LAST & 1);
    f32::from_bits(rounded & SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;

    /// The row that words are by the definition, in arithmetic that is exact.
    fn reference<C: Codes>(words: &[f32], dim: usize) -> Vec<f64> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let head = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        if head == 0 {
            return vec![f64::from(f32::from_le_bytes(bytes[4..8].try_into().unwrap())); dim];
        }
        let scale = f64::from(f32::from_bits(head >> 14 << 14));
        let code = |i: usize| match C::BITS {
            8 => u32::from(bytes[4 + i]),
            _ if i < dim.div_ceil(2) => u32::from(bytes[4 + i] % 16),
            _ => u32::from(bytes[4 + i - dim.div_ceil(2)] / 16),
        };
        let unit = f64::from(1u32 << (14 - C::BITS));
        (0..dim).map(|i| (f64::from(code(i)) - f64::from(head % 16_384) / unit) * scale).collect()
    }

    fn encode<C: Codes>(values: &[f32]) -> Vec<f32> {
        // The earlier content does not matter.
        let mut row = vec![f32::from_bits(0x5A5A_5A5A); words::<C>(values.len())];
        narrow::<C>(values, &mut row);
        row
    }

    fn decode<C: Codes>(words: &[f32], dim: usize) -> Vec<f32> {
        let mut values = vec![f32::NAN; dim];
        widen::<C>(words, &mut values);
        values
    }

    fn bits(row: &[f32]) -> Vec<u32> {
        row.iter().map(|word| word.to_bits()).collect()
    }

    /// Rows of a kind: normal-like, of one sign, far from zero, with zeros, of every magnitude,
    /// with almost nothing above zero, with one value that is far larger.
    fn row(dim: usize, seed: u64) -> Vec<f32> {
        let unit = |i: usize, salt| (mix(i as u64, seed * 16 + salt) >> 40) as f32 / 16_777_216.0;
        let bell = |i| (0..4).map(|salt| unit(i, salt)).sum::<f32>() - 2.0;
        let magnitude = 2f32.powi((mix(seed, 1) % 200) as i32 - 90);
        let kind = seed % 8;
        let value = |i| match kind {
            0 => bell(i),
            1 => unit(i, 5),
            2 => -unit(i, 5),
            3 => 100.0 + unit(i, 5) * if seed % 16 == 3 { 1.0 } else { 40.0 },
            4 => bell(i).max(0.0),
            5 => bell(i) * 2f32.powi((mix(i as u64, seed) % 24) as i32 - 12),
            6 => unit(i, 5) * if i % 5 == 0 { 1e-4 } else { -1.0 },
            _ => bell(i) * if i == 0 { 1000.0 } else { 1.0 },
        };
        (0..dim).map(|i| value(i) * magnitude).collect()
    }

    fn rows_are_what_the_definition_says<C: Codes>() {
        for dim in 1..=67 {
            for seed in 0..120 {
                let given = row(dim, seed);
                assert!(fits::<C>(&given));
                let encoded = encode::<C>(&given);
                assert_eq!(encoded.len(), 1 + (dim * C::BITS as usize).div_ceil(32));
                let found = decode::<C>(&encoded, dim);
                let told = |i: usize| format!("dim {dim} seed {seed} at {i}: {given:?} {found:?}");
                let low = given.iter().fold(0f64, |low, x| low.min(f64::from(*x)));
                let high = given.iter().fold(0f64, |high, x| high.max(f64::from(*x)));
                // A scale is off by one part in 1024 at most.
                let step = (high - low) / f64::from(C::LAST) * (1.0 + 1.0 / 1024.0);
                for (i, exact) in reference::<C>(&encoded, dim).into_iter().enumerate() {
                    assert_eq!(f64::from(found[i]), exact, "{}", told(i));
                    let off = (f64::from(given[i]) - exact).abs();
                    assert!(off <= step / 2.0 * (1.0 + 1e-6), "{off} of {step}; {}", told(i));
                }
                assert_eq!(bits(&encode::<C>(&found)), bits(&encoded), "{}", told(0));
            }
        }
    }

    #[test]
    fn rows_are_what_the_definition_says_within_half_a_step() {
        rows_are_what_the_definition_says::<Int8>();
        rows_are_what_the_definition_says::<Int4>();
    }

    fn codes_are_the_nearest<C: Codes>() {
        for seed in 0..200 {
            let given = row(9, seed);
            let encoded = encode::<C>(&given);
            let head = encoded[0].to_bits();
            if head == 0 {
                continue;
            }
            let (scale, zero) = (f64::from(f32::from_bits(head & SCALE)), f64::from(head & ZERO));
            let zero = zero / f64::from(1u32 << C::FRACTION);
            for (value, found) in given.iter().zip(decode::<C>(&encoded, 9)) {
                let off = |code: u32| ((f64::from(code) - zero) * scale - f64::from(*value)).abs();
                let least = (0..=C::LAST).map(off).fold(f64::INFINITY, f64::min);
                let is = (f64::from(found) - f64::from(*value)).abs();
                assert!(is <= least * (1.0 + 1e-9), "seed {seed}: {found} for {value}");
            }
        }
    }

    #[test]
    fn every_value_has_the_nearest_code() {
        codes_are_the_nearest::<Int8>();
        codes_are_the_nearest::<Int4>();
    }

    fn equal_values_are_exact<C: Codes>() {
        let most = C::SPAN_MAX as f32;
        let tiny = f32::from_bits(1);
        for value in [0.0, 1.0, -1.0, 0.1, -3.7e-9, f32::MIN_POSITIVE, tiny, -tiny, most, -most] {
            for dim in 1..=67 {
                let encoded = encode::<C>(&vec![value; dim]);
                assert_eq!(bits(&decode::<C>(&encoded, dim)), vec![value.to_bits(); dim]);
                assert_eq!(encoded[0].to_bits(), 0);
            }
        }
        // Zero has no sign.
        assert_eq!(bits(&encode::<C>(&[-0.0, 0.0, -0.0])), vec![0; words::<C>(3)]);
    }

    #[test]
    fn rows_of_equal_values_are_exact_at_every_dim() {
        equal_values_are_exact::<Int8>();
        equal_values_are_exact::<Int4>();
    }

    fn edges<C: Codes>() {
        let most = C::SPAN_MAX as f32;
        for share in [1.0, 0.75, 0.5, 0.25, 1.0 / 1024.0, 0.0] {
            let given = [most * share, most * (share - 1.0), 0.0, 1.0];
            assert!(fits::<C>(&given));
            let encoded = encode::<C>(&given);
            let found = decode::<C>(&encoded, 4);
            // A row that was read can be put back.
            assert!(fits::<C>(&found), "{found:?}");
            assert_eq!(bits(&encode::<C>(&found)), bits(&encoded));
            for (found, given) in found.iter().zip(given) {
                assert!((found - given).abs() <= most / 29.9, "{found} for {given}");
            }
            assert!(!fits::<C>(&[most * share, most * (share - 1.001)]));
        }
        for refused in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2f32.powi(127), f32::MIN] {
            assert!(!fits::<C>(&[1.0, refused]) && !fits::<C>(&[refused]), "{refused}");
        }
        // Too small for any scale, which is told as an error of the row.
        assert_eq!(decode::<C>(&encode::<C>(&[1e-36, -1e-36, 0.0]), 3), [0.0; 3]);
        // All nearer to each other than a step.
        let close = decode::<C>(&encode::<C>(&[1.0, 1.0002]), 2);
        assert_eq!(close, [1.0001; 2]);
        // Ends of a range on one side of zero, which is the other.
        assert_eq!(decode::<C>(&encode::<C>(&[0.0, 255.0]), 2), [0.0, 255.0]);
        assert_eq!(decode::<C>(&encode::<C>(&[-255.0, 0.0]), 2), [-255.0, 0.0]);
    }

    #[test]
    fn rows_at_the_ends_of_what_there_is_stay_finite_and_near() {
        edges::<Int8>();
        edges::<Int4>();
    }

    #[test]
    fn scales_are_the_nearest_of_ten_significant_bits() {
        for i in 0..10_000u64 {
            let step = f64::from(f32::from_bits((mix(i, 3) >> 34) as u32 + (20 << 23)));
            let scale = scale_of(step);
            assert_eq!(scale.to_bits() & !SCALE, 0);
            let off = |scale: f32| (f64::from(scale) / step - 1.0).abs();
            let neighbours = [1 << SCALE_LAST, -(1i32 << SCALE_LAST)];
            for by in neighbours {
                let other = f32::from_bits(scale.to_bits().wrapping_add_signed(by));
                assert!(off(scale) <= off(other), "{scale:e} for {step:e}, not {other:e}");
            }
        }
    }

    #[test]
    fn bytes_of_rows_are_those_of_the_format() {
        let bytes = |row: Vec<f32>| bytemuck::cast_slice::<f32, u8>(&row).to_vec();
        // A scale of 0.5, and a zero point of 51 codes with 6 bits behind the point.
        let row = [-25.5, 0.0, 102.0];
        assert_eq!(bytes(encode::<Int8>(&row)), [0xC0, 0x0C, 0, 0x3F, 0, 51, 255, 0]);
        // One of 2 and of 3 codes with 10 bits; the first three are in the lower halves.
        let row = [-6.0, 0.0, 24.0, 4.0, -2.0];
        let codes = [5 << 4, 2 << 4 | 3, 15];
        let expected = [0x00, 0x0C, 0, 0x40, codes[0], codes[1], codes[2], 0];
        assert_eq!(bytes(encode::<Int4>(&row)), expected);
    }
}
