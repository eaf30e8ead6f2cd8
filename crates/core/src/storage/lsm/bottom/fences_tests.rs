//! Fences beside the positions that they stand for.

use super::fences::{EXTRA_BITS, FenceBuilder, Fences};
use super::testing::Random;
use crate::error::ErrorKind;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Fences of pages of `per_page` rows, of which the first has room for `room`.
fn build(positions: &[u64], per_page: usize, room: usize, extra_bits: u32) -> Fences {
    let mut builder = FenceBuilder::new(extra_bits, positions[0]);
    for (number, position) in positions.iter().enumerate().skip(1) {
        builder.push(*position, number >= room && (number - room).is_multiple_of(per_page));
    }
    builder.finish()
}

fn page_of(number: usize, per_page: usize, room: usize) -> u32 {
    number.checked_sub(room).map_or(0, |behind| (behind / per_page) as u32 + 1)
}

fn sorted(mut positions: Vec<u64>) -> Vec<u64> {
    positions.sort_unstable();
    positions.dedup();
    positions
}

/// Positions of many kinds, with names.
fn kinds() -> Vec<(&'static str, Vec<u64>)> {
    let mut random = Random(5);
    let mut some = |n: usize, each: &mut dyn FnMut(&mut Random) -> u64| {
        sorted((0..n).map(|_| each(&mut random)).collect())
    };
    let clusters = |random: &mut Random| (random.below(20) << 40) + random.below(2000);
    let two_densities = |random: &mut Random| match random.below(10) {
        0 => random.next() >> 20,
        _ => random.below(1 << 16),
    };
    vec![
        ("one", vec![7]),
        ("two", vec![0, u64::MAX]),
        ("a few", vec![3, 4, 5, 6]),
        ("dense", (1000..21_000).collect()),
        ("dense and one far away", (0..9000).chain([1 << 40]).collect()),
        ("with holes", some(20_000, &mut |random| random.below(40_000))),
        ("even", some(20_000, &mut |random| random.next())),
        ("even and a few in a row", {
            let even = some(20_000, &mut |random| random.next());
            sorted(even.into_iter().chain(1 << 50..(1 << 50) + 100).collect())
        }),
        ("clusters", some(20_000, &mut { clusters })),
        ("two densities", some(20_000, &mut { two_densities })),
        ("powers", (0..64).map(|bit| 1 << bit).collect()),
        ("at the end", (u64::MAX - 5000..=u64::MAX).collect()),
    ]
}

#[test]
fn every_position_has_its_page_among_at_most_two_candidates_and_hardly_ever_two() {
    for (name, positions) in kinds() {
        for (per_page, room) in [(1, 1), (6, 6), (26, 3), (26, 26), (50, 1), (400, 77)] {
            let what = format!("{name}, {per_page} rows a page, {room} on the first");
            let fences = build(&positions, per_page, room, EXTRA_BITS);
            let last = positions.len() - 1;
            assert_eq!(fences.pages(), page_of(last, per_page, room) + 1, "{what}");
            let mut extra = 0;
            for (number, position) in positions.iter().enumerate() {
                let found = fences.candidates(*position);
                assert!(found.contains(&page_of(number, per_page, room)), "{what}: {found:?}");
                assert!(found.len() <= 2, "{what}: {found:?}");
                extra += found.len() - 1;
            }
            assert!(extra << EXTRA_BITS <= positions.len(), "{what}: {extra} pages too many");
            // Absent keys cost no more, and keys outside cost nothing.
            let mut random = Random(6);
            for _ in 0..1000 {
                let position = positions[random.below(positions.len() as u64) as usize];
                let bits = random.below(40);
                let position = position.wrapping_add(random.below(1 << bits));
                let found = fences.candidates(position);
                let inside = (positions[0]..=positions[last]).contains(&position);
                assert!(found.len() <= 2 && found.is_empty() != inside, "{what}: {found:?}");
                assert!(found.end <= fences.pages(), "{what}: {found:?}");
            }
            if positions[0] > 0 {
                assert!(fences.candidates(positions[0] - 1).is_empty(), "{what}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "follows")]
fn a_position_that_does_not_increase_is_refused() {
    FenceBuilder::new(EXTRA_BITS, 7).push(7, false);
}

#[test]
fn encoded_fences_come_back_equal_and_take_what_they_say() {
    for (name, positions) in kinds() {
        let fences = build(&positions, 6, 2, EXTRA_BITS);
        let mut bytes = vec![1, 2, 3];
        fences.encode(4, &mut bytes);
        assert_eq!(bytes.len(), 3 + fences.encoded_bytes(), "{name}");
        assert_eq!(Fences::decode(&bytes[3..], 4).unwrap(), fences, "{name}");
        let error = Fences::decode(&bytes[3..], 5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
    }
}

#[test]
fn every_flipped_bit_and_every_shorter_encoding_is_refused() {
    let positions: Vec<u64> = (0..40).map(|key| crate::hash::mix(key, 1)).collect();
    let fences = build(&sorted(positions), 6, 6, EXTRA_BITS);
    let mut bytes = Vec::new();
    fences.encode(4, &mut bytes);
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = Fences::decode(&bytes, 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    for length in 0..bytes.len() {
        assert!(Fences::decode(&bytes[..length], 4).is_err(), "{length} bytes");
    }
    Fences::decode(&bytes, 4).unwrap();
}

#[test]
fn nonsense_with_a_valid_checksum_is_refused_or_gives_pages_that_there_are() {
    let mut random = Random(9);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..20_000 {
        let kinds = [1, 5, 100, 3000];
        let count = 1 + random.below(kinds[round % 4]);
        let positions = sorted((0..count).map(|_| random.next() >> (round % 50)).collect());
        let mut bytes = Vec::new();
        build(&positions, 1 + round % 30, 1, EXTRA_BITS).encode(4, &mut bytes);
        bytes.truncate(bytes.len() - 8);
        for _ in 0..1 + random.below(3) {
            let end = if random.below(2) == 0 { bytes.len() } else { bytes.len().min(32) };
            let at = random.below(end as u64) as usize;
            bytes[at] = match random.below(4) {
                0 => random.next() as u8,
                1 => bytes[at].wrapping_add(1),
                2 => bytes[at] ^ (1 << random.below(8)),
                _ => [0, 0xFF][random.below(2) as usize],
            };
        }
        if random.below(8) == 0 {
            bytes = (0..random.below(200)).map(|_| random.next() as u8).collect();
        }
        let sum = xxh3_64_with_seed(&bytes, 4);
        bytes.extend_from_slice(&sum.to_le_bytes());
        match Fences::decode(&bytes, 4) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                refused += 1;
            }
            Ok(fences) => {
                taken += 1;
                let (first, last) = fences.ends().into_inner();
                for position in [first, last, first.midpoint(last), random.next()] {
                    let found = fences.candidates(position);
                    assert!(found.len() <= 2 && found.end <= fences.pages(), "{found:?}");
                }
            }
        }
    }
    assert!(refused > 1000 && taken > 1000, "{refused} refused, {taken} taken");
}

#[test]
fn fences_that_do_not_increase_are_refused_whatever_their_checksum_says() {
    let positions: Vec<u64> = (0..40).collect();
    let fences = build(&positions, 1, 1, EXTRA_BITS);
    let mut sound = Vec::new();
    fences.encode(4, &mut sound);
    // Fences 1, 2, 3 … in unary: every other bit. One moves down: the first to 0, the third to 2.
    assert_eq!(sound[32], 0b1010_1010);
    for moved in [0b1010_1001, 0b1001_1010] {
        let mut bytes = sound.clone();
        bytes[32] = moved;
        let end = bytes.len() - 8;
        let sum = xxh3_64_with_seed(&bytes[..end], 4);
        bytes[end..].copy_from_slice(&sum.to_le_bytes());
        let error = Fences::decode(&bytes, 4).unwrap_err();
        assert!(error.message().contains("not strictly increasing"), "{error}");
    }
}

/// `cargo test -p embedrock-core --lib bytes_of_fences -- --ignored --nocapture`
#[test]
#[ignore = "prints the memory of fences by row size"]
#[expect(clippy::print_stdout, reason = "a table for people")]
fn bytes_of_fences_per_row() {
    const ROWS: u64 = 1_000_000;
    let hashed = sorted((0..ROWS).map(|key| crate::hash::mix(key, 1)).collect());
    let dense: Vec<u64> = (0..ROWS).collect();
    let mut random = Random(1);
    let sparse = sorted((0..ROWS).map(|_| random.below(1 << 40)).collect());
    println!("row bytes, rows a page, keys, extra bits: bytes per row, pages per key");
    for row_bytes in [72, 144, 260] {
        let layout = crate::storage::PageLayout::new(4096, row_bytes, 0, 0).unwrap();
        let per_page = layout.rows_per_page;
        for (name, positions) in [("dense", &dense), ("2^40", &sparse), ("hashed", &hashed)] {
            for extra_bits in [4, 6, 7, 8] {
                let fences = build(positions, per_page, per_page, extra_bits);
                let pages: usize = positions.iter().map(|p| fences.candidates(*p).len()).sum();
                let rows = positions.len() as f64;
                println!(
                    "{row_bytes:4} {per_page:3} {name:7} {extra_bits}: {:.4} {:.4}",
                    fences.memory_bytes() as f64 / rows,
                    pages as f64 / rows
                );
            }
        }
    }
}
