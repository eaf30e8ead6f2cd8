//! Filters beside the positions that they stand for.

use super::filter::{Filter, FilterBuilder};
use super::testing::Random;
use crate::error::ErrorKind;
use crate::hash::mix;
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

fn build(positions: &BTreeSet<u64>) -> Filter {
    let mut rows = positions.iter();
    let mut builder = FilterBuilder::new(*rows.next().unwrap(), positions.len() as u64);
    rows.for_each(|position| builder.push(*position));
    assert!(builder.memory_bytes() <= 4 * positions.len() + 64);
    builder.finish()
}

fn mixed(rows: u64) -> BTreeSet<u64> {
    (0..rows).map(|key| mix(key, 3)).collect()
}

#[test]
fn stored_positions_pass_and_few_others() {
    let mut random = Random(7);
    for rows in [1, 2, 3, 100, 1023, 1024, 1025, 40_000] {
        let positions = mixed(rows);
        let filter = build(&positions);
        assert!(positions.iter().all(|position| filter.may_have(*position)), "{rows} rows");
        let others = 20_000;
        let passed = (0..others).filter(|_| filter.may_have(random.next())).count();
        assert!(passed <= others / 7, "{passed} of {others} passed, {rows} rows");
        if rows > 1000 {
            assert!(passed >= others / 50, "{passed} of {others} passed, {rows} rows");
            let bits = 8.0 * filter.heap_bytes() as f64 / rows as f64;
            assert!((4.5..=7.3).contains(&bits), "{bits} bits, {rows} rows");
        }
        let (first, last) = (*positions.first().unwrap(), *positions.last().unwrap());
        assert!(!filter.may_have(first.wrapping_sub(1)) && !filter.may_have(last.wrapping_add(1)));
    }
}

#[test]
fn positions_in_clusters_pass_too() {
    let clusters = |step: u64| (0..50).flat_map(move |c| (0..60).map(move |i| (c << step) + i));
    for step in [10, 31, 33, 40, 57] {
        let positions: BTreeSet<u64> = clusters(step).collect();
        let filter = build(&positions);
        assert!(positions.iter().all(|position| filter.may_have(*position)), "{step}");
        assert!(filter.cells() as usize <= positions.len());
    }
    let ends: BTreeSet<u64> = [0, 1, u64::MAX - 1, u64::MAX].into();
    let filter = build(&ends);
    assert!(ends.iter().all(|position| filter.may_have(*position)));
}

#[test]
fn an_encoded_filter_comes_back_equal_and_nothing_else_does() {
    let filter = build(&mixed(50));
    let mut bytes = vec![9];
    filter.encode(4, &mut bytes);
    let mut bytes = bytes.split_off(1);
    assert_eq!(bytes.len(), filter.encoded_bytes());
    assert_eq!(Filter::decode(&bytes, 4).unwrap(), filter);
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Filter::decode(&bytes, 4).unwrap_err().kind(), ErrorKind::Corrupt, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    for len in 0..bytes.len() {
        assert_eq!(Filter::decode(&bytes[..len], 4).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

// A checksum that matches does not make cells of what are none, and nothing of it may panic.
#[test]
fn random_bytes_under_a_checksum_are_refused_or_a_filter() {
    let filter = build(&mixed(50));
    let mut sound = Vec::new();
    filter.encode(4, &mut sound);
    let mut random = Random(11);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bytes = sound[..sound.len() - 8].to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        let sum = xxh3_64_with_seed(&bytes, 4);
        bytes.extend_from_slice(&sum.to_le_bytes());
        match Filter::decode(&bytes, 4) {
            Ok(read) => {
                read.may_have(random.next());
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                refused += 1;
            }
        }
    }
    assert!(refused > 10_000, "{refused}");
}
