//! De-duplication of a batch: its distinct keys in order of first occurrence, and for each key of
//! the batch where its distinct key stands.
//!
//! First-occurrence order is a promise, not an accident: rows used together stay together on their
//! way to storage, and gradients of equal keys are summed in the order in which they occur. Every
//! 64-bit key is valid; none is reserved to mark an empty slot.

use crate::hash::mix;
use crate::planted::{self, Bug};
use crate::prefetch::prefetch_read;

/// Keys whose slots are asked for together.
const BLOCK: usize = 32;

/// A word of the table: 0 is empty, otherwise 1 + the position of a distinct key, in as many bits
/// as that needs in this batch, and above them bits of the key's hash, which tell most other keys
/// apart without a look at the key.
type Slot = u32;

/// Reusable scratch memory for de-duplication: no allocation once it has seen the largest batch,
/// but for keys that were taken.
///
/// Keeps 12 bytes per key, and 8 to 16 per key of open-addressing table.
#[derive(Debug, Default)]
pub(crate) struct Distinct {
    slots: Vec<Slot>,
    distinct: Vec<u64>,
    inverse: Vec<u32>,
}

impl Distinct {
    /// Scratch memory that allocates when first used.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// The distinct keys of a batch in first-occurrence order, and for each key the position of its
    /// distinct key. Shapes: `keys (N,)` → `(distinct (U,), inverse (N,))`.
    ///
    /// Panics when the batch has 2^31 keys or more.
    pub(crate) fn run(&mut self, keys: &[u64]) -> (&[u64], &[u32]) {
        assert!(keys.len() < 1 << 31, "a batch of {} keys, at most 2^31 - 1", keys.len());
        let slots = (2 * keys.len()).next_power_of_two().max(2);
        self.slots.clear();
        self.slots.resize(slots, 0);
        self.distinct.clear();
        self.distinct.reserve(keys.len());
        self.inverse.clear();
        self.inverse.reserve(keys.len());
        let shift = 64 - slots.trailing_zeros();
        // There are more slots than positions, 1 added.
        let positions = (slots - 1) as u32;
        let mut hashes = [0; BLOCK];
        for block in keys.chunks(BLOCK) {
            // Some keys find their slot taken, which the processor cannot foresee: what it had
            // begun for the keys behind is lost then, but for the lines that it was asked for.
            for (hash, &key) in hashes.iter_mut().zip(block) {
                *hash = mix(key, 0);
                prefetch_read(&self.slots[(*hash >> shift) as usize]);
            }
            for (&hash, &key) in hashes.iter().zip(block) {
                let position = self.find_or_insert((hash >> shift) as usize, hash, positions, key);
                self.inverse.push(position);
            }
        }
        (&self.distinct, &self.inverse)
    }

    /// The distinct keys of the last batch; the next one allocates its own.
    pub(crate) fn take(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.distinct)
    }

    /// The position of `key` among the distinct keys, appended if it is new. The table is at most
    /// half full, so the walk ends. `positions` are the bits of a slot that hold a position.
    #[inline(always)]
    fn find_or_insert(&mut self, home: usize, hash: u64, positions: u32, key: u64) -> u32 {
        let mask = self.slots.len() - 1;
        let hash = hash as u32 & !positions;
        let mut at = home;
        loop {
            let slot = self.slots[at & mask];
            if slot == 0 {
                let position = self.distinct.len() as u32;
                self.slots[at & mask] = hash | (position + 1);
                self.distinct.push(key);
                return position;
            }
            let position = (slot & positions) - 1;
            if slot & !positions == hash && self.distinct[position as usize] == key {
                return position;
            }
            at += 1;
        }
    }
}

/// Fills `distinct` with the distinct keys of a batch in first-occurrence order and `inverse` with
/// the position of each key's distinct key: `distinct[inverse[i]] == keys[i]`.
///
/// Shapes: `keys (N,)` → `distinct (U,)`, `inverse (N,)`. Both vectors are cleared first. Allocates
/// scratch memory; a caller with many batches keeps a [`Distinct`].
pub fn distinct(keys: &[u64], distinct: &mut Vec<u64>, inverse: &mut Vec<i64>) {
    let mut scratch = Distinct::new();
    scratch.run(keys);
    *distinct = scratch.take();
    inverse.clear();
    inverse.extend(scratch.inverse.iter().map(|&position| i64::from(position)));
}

/// Gradients of distinct keys, without copying those of keys that occur once.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// Row of each distinct key: below the batch length a row of the given gradients, from there
    /// on a row of `sums`.
    pub(crate) rows: Vec<u32>,
    /// Sums of keys that occur several times, `(S, dim)`.
    pub(crate) sums: Vec<f32>,
    /// First position in the batch of each of these keys, `(S,)`.
    first_of_sums: Vec<u32>,
}

impl Merged {
    /// The merged gradient in `row` of `rows`, for a batch of `gradients (N, dim)`.
    #[inline(always)]
    pub(crate) fn gradient<'a>(&'a self, row: u32, gradients: &'a [f32], dim: usize) -> &'a [f32] {
        let at = row as usize * dim;
        match at < gradients.len() {
            true => &gradients[at..at + dim],
            false => &self.sums[at - gradients.len()..][..dim],
        }
    }

    /// First position in a batch of `count` keys of the key whose merged gradient is in `row`.
    #[inline(always)]
    pub(crate) fn first(&self, row: u32, count: usize) -> u32 {
        match (row as usize).checked_sub(count) {
            None => row,
            Some(sum) => self.first_of_sums[sum],
        }
    }
}

/// Sums the gradients of equal keys in float32, in order of occurrence, as torch does when it
/// coalesces a sparse gradient: the first is taken, the others are added.
///
/// Shapes: `inverse (N,)` of first-occurrence positions, `gradients (N, dim)`.
///
/// Panics when a shape does not fit or `inverse` is not in first-occurrence order.
pub(crate) fn merge_gradients(inverse: &[u32], gradients: &[f32], dim: usize) -> Merged {
    assert!(dim > 0, "dim is 0");
    assert_eq!(gradients.len(), inverse.len() * dim, "numbers in gradients");
    let mut merged = Merged { rows: Vec::with_capacity(inverse.len()), ..Merged::default() };
    for (i, &position) in inverse.iter().enumerate() {
        let position = position as usize;
        if position == merged.rows.len() {
            merged.rows.push(i as u32);
            continue;
        }
        assert!(position < merged.rows.len(), "position {position} occurs before its first");
        if planted::is(Bug::DuplicateGradientLost) {
            continue;
        }
        let mut row = merged.rows[position] as usize;
        if row < inverse.len() {
            merged.sums.extend_from_slice(&gradients[row * dim..][..dim]);
            merged.first_of_sums.push(row as u32);
            row = inverse.len() + merged.sums.len() / dim - 1;
            merged.rows[position] = row as u32;
        }
        let sum = &mut merged.sums[(row - inverse.len()) * dim..][..dim];
        for (sum, &gradient) in sum.iter_mut().zip(&gradients[i * dim..][..dim]) {
            *sum += gradient;
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn model(keys: &[u64]) -> (Vec<u64>, Vec<u32>) {
        let (mut seen, mut distinct) = (HashMap::new(), Vec::new());
        let inverse = keys
            .iter()
            .map(|&key| {
                *seen.entry(key).or_insert_with(|| {
                    distinct.push(key);
                    distinct.len() as u32 - 1
                })
            })
            .collect();
        (distinct, inverse)
    }

    /// A batch of `count` keys out of about `range`, shaped to collide in various bits.
    fn batch(seed: u64, count: usize, range: u64, shift: u32) -> Vec<u64> {
        (0..count as u64).map(|i| (mix(i, seed) % range) << shift).collect()
    }

    #[test]
    fn batches_of_every_shape_match_a_hash_map() {
        let mut scratch = Distinct::new();
        for seed in 0..40u64 {
            let count = [0, 1, 2, 3, 31, 32, 33, 1000, 5000, 65_536][seed as usize % 10];
            for (range, shift) in [(1, 0), (7, 60), (900, 0), (900, 48), (1 << 32, 32)] {
                let keys = batch(seed, count, range, shift);
                let (distinct, inverse) = scratch.run(&keys);
                let expected = model(&keys);
                assert_eq!((distinct, inverse), (&expected.0[..], &expected.1[..]), "seed {seed}");
            }
        }
    }

    #[test]
    fn no_key_is_reserved() {
        let keys = [u64::MAX, 0, 1, u64::MAX, 1 << 63, 0, u64::MAX - 1, 1];
        let (mut distinct_keys, mut inverse) = (vec![9; 9], vec![9; 9]);
        distinct(&keys, &mut distinct_keys, &mut inverse);
        assert_eq!(distinct_keys, [u64::MAX, 0, 1, 1 << 63, u64::MAX - 1]);
        assert_eq!(inverse, [0, 1, 2, 0, 3, 1, 4, 2]);
        distinct(&[], &mut distinct_keys, &mut inverse);
        assert!(distinct_keys.is_empty() && inverse.is_empty());
    }

    #[test]
    fn scratch_allocates_only_for_a_larger_batch() {
        let mut scratch = Distinct::new();
        scratch.run(&batch(1, 5000, u64::MAX, 0));
        let sizes =
            |s: &Distinct| (s.slots.capacity(), s.distinct.capacity(), s.inverse.capacity());
        let before = sizes(&scratch);
        for count in [10, 5000, 0, 4999] {
            scratch.run(&batch(2, count, u64::MAX, 0));
            assert_eq!(sizes(&scratch), before, "batch of {count}");
        }
    }

    #[test]
    fn gradients_of_equal_keys_are_summed_in_order_of_occurrence() {
        // In any other order one of these sums is 0 or 1 and not 2.
        let inverse = [0, 1, 0, 0, 1, 0];
        let gradients = [1e8f32, -0.0, -1e8, 1.0, -0.0, 1.0];
        let merged = merge_gradients(&inverse, &gradients, 1);
        let out: Vec<f32> =
            merged.rows.iter().map(|row| merged.gradient(*row, &gradients, 1)[0]).collect();
        assert_eq!(out[0], 2.0);
        assert_eq!(out[1].to_bits(), (-0.0f32).to_bits(), "the first gradient is copied");
    }

    #[test]
    fn merged_gradients_match_a_plain_loop() {
        let (keys, dim) = (batch(5, 2000, 300, 0), 5);
        let number = |i: u64| (mix(i, 6) >> 40) as f32 / 1e6 - 8.0;
        let gradients: Vec<f32> = (0..(keys.len() * dim) as u64).map(number).collect();
        let mut scratch = Distinct::new();
        let (distinct, inverse) = scratch.run(&keys);
        let merged = merge_gradients(inverse, &gradients, dim);
        for (position, &key) in distinct.iter().enumerate() {
            let first = keys.iter().position(|other| *other == key);
            let row = merged.rows[position];
            assert_eq!(Some(merged.first(row, keys.len()) as usize), first);
            for element in 0..dim {
                let mut own = (0..keys.len()).filter(|&i| keys[i] == key);
                let first = own.next().map(|i| gradients[i * dim + element]).unwrap();
                let sum = own.fold(first, |sum, i| sum + gradients[i * dim + element]);
                let got = merged.gradient(merged.rows[position], &gradients, dim)[element];
                assert_eq!(got.to_bits(), sum.to_bits());
            }
        }
    }

    #[test]
    #[should_panic(expected = "position 1 occurs before its first")]
    fn an_inverse_that_skips_a_position_panics() {
        merge_gradients(&[1], &[1.0], 1);
    }
}
