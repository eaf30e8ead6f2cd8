//! Memory of the sparse index while it grows and shrinks, and measurements of all made by hand:
//! `cargo test --release index::measure -- --ignored --nocapture`.
#![expect(clippy::print_stdout, reason = "measurements are for people")]

use super::sparse_tests::{Random, SALT};
use super::{DenseIndex, SparseIndex};
use crate::hash::mix;

/// Fills, empties and fills an index, and returns the most bytes per row seen at any moment.
fn growth(from: u64, to: u64, mut report: impl FnMut(&str, &SparseIndex)) -> f64 {
    let mut index = SparseIndex::new(0).unwrap();
    let mut worst = 0f64;
    let mut keys = |slot: u32| Ok(mix(u64::from(slot), SALT));
    let mut grow =
        |index: &mut SparseIndex, slots: std::ops::RangeInclusive<u64>, worst: &mut f64| {
            for slot in slots {
                index.insert(mix(slot, SALT), slot as u32);
                if index.needs_split() {
                    index.split(&mut keys).unwrap();
                }
                if index.len() >= from {
                    let bytes = index.memory_bytes() as u64;
                    assert!(bytes <= SparseIndex::planned_bytes(index.len()));
                    *worst = worst.max(bytes as f64 / index.len() as f64);
                }
            }
        };
    let mut size = from;
    grow(&mut index, 1..=from, &mut worst);
    while size < to {
        report("grown", &index);
        grow(&mut index, size + 1..=size * 5 / 4, &mut worst);
        size = size * 5 / 4;
    }
    report("grown", &index);
    for slot in (1..=size).filter(|slot| mix(*slot, 3) & 1 == 0) {
        assert!(index.remove(mix(slot, SALT), slot as u32));
        while index.needs_merge() {
            index.merge();
        }
        worst = worst.max(index.memory_bytes() as f64 / index.len() as f64);
    }
    report("half deleted", &index);
    grow(&mut index, size + 1..=size + size / 2, &mut worst);
    report("filled again", &index);
    index.assert_consistent();
    worst
}

#[test]
fn memory_stays_below_eight_bytes_a_row_while_growing_and_shrinking() {
    let worst = growth(1 << 18, 1 << 20, |_, _| ());
    assert!(worst <= 8.0, "{worst} bytes a row");
}

#[test]
#[ignore = "a measurement, of a minute"]
fn memory_and_likeness_of_sixteen_million_keys() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or(0) * 4096
    };
    let before = resident();
    let mut random = Random(1);
    let mut slots = vec![];
    let worst = growth(1_000_000, 16_000_000, |what, index| {
        let probes = 2_000_000;
        slots.clear();
        for _ in 0..probes {
            index.candidates(random.next(), &mut slots);
        }
        println!(
            "{what}: {} rows, {:.3} B/row allocated, {:.3} B/row resident, {:.3} % of absent keys \
             have a candidate",
            index.len(),
            index.memory_bytes() as f64 / index.len() as f64,
            (resident() - before) as f64 / index.len() as f64,
            slots.len() as f64 * 100.0 / f64::from(probes)
        );
    });
    println!("worst: {worst:.3} B/row");
}

#[test]
#[ignore = "a measurement, of a minute"]
fn time_of_look_ups() {
    for (rows, expected) in [(32_768, 32_768), (16_000_000, 16_000_000), (16_000_000, 0)] {
        time_look_ups(rows, expected);
    }
}

#[test]
#[ignore = "a measurement, of a minute"]
fn memory_and_time_of_dense_indexes() {
    const IDS: u64 = 16 << 20;
    for share in [1, 2, 8] {
        for (form, mut index) in
            [("full", DenseIndex::new(IDS).unwrap()), ("packed", DenseIndex::packed(IDS).unwrap())]
        {
            // The ids of a run of buckets, in an order that is not theirs.
            let rows = IDS / share;
            let id = |place: u64| place / (1024 / share) * 1024 + place % (1024 / share);
            let start = core_time_ns();
            for place in 0..rows {
                index.set(id(place * 0x9E37_79B1 % rows), place as u32 + 1);
            }
            let set = (core_time_ns() - start) as f64 / rows as f64;
            let bytes = index.memory_bytes() as f64;
            let (ns, sum) = time_dense(&index, (0..4 << 20).map(|at| id(mix(at, 3) % rows)));
            println!(
                "{form}, rows for 1/{share} of {IDS} ids: {:.3} B/id, {:.2} B/row, {ns:.1} ns a \
                 look-up in batches, {set:.0} ns a first set ({sum})",
                bytes / IDS as f64,
                bytes / rows as f64
            );
        }
    }
}

/// Nanoseconds of a look-up, asked for some look-ups ahead as the log does.
fn time_dense(index: &DenseIndex, wanted: impl Iterator<Item = u64>) -> (f64, u64) {
    const AHEAD: usize = 32;
    let wanted: Vec<u64> = wanted.collect();
    let (mut best, mut sum) = (f64::INFINITY, 0u64);
    for _ in 0..3 {
        let start = core_time_ns();
        for at in 0..wanted.len() - AHEAD {
            index.prefetch(wanted[at + AHEAD]);
            sum = sum.wrapping_add(u64::from(index.get(wanted[at])));
        }
        best = best.min((core_time_ns() - start) as f64 / wanted.len() as f64);
    }
    (best, sum)
}

/// Nanoseconds that this thread has spent on a core.
fn core_time_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Times look-ups, in batches with the tags of later ones asked for, beside plain reads.
fn time_look_ups(rows: u64, expected_rows: u64) {
    const BATCH: usize = 4096;
    const AHEAD: usize = 8;
    let mut index = SparseIndex::new(expected_rows).unwrap();
    for slot in 1..=rows {
        index.insert(mix(slot, SALT), slot as u32);
        if index.needs_split() {
            index.split(&mut |slot| Ok(mix(u64::from(slot), SALT))).unwrap();
        }
    }
    let mut random = Random(2);
    let wanted: Vec<u64> = (0..4 << 20).map(|_| mix(1 + random.below(rows), SALT)).collect();
    let mut slots = Vec::with_capacity(2 * BATCH);
    for _ in 0..3 {
        let (start, mut found) = (core_time_ns(), 0);
        for hashes in wanted.chunks(BATCH) {
            slots.clear();
            for (place, hash) in hashes.iter().enumerate() {
                if let Some(later) = hashes.get(place + AHEAD) {
                    index.prefetch(*later);
                }
                index.candidates(*hash, &mut slots);
            }
            found += slots.len();
        }
        let ns = (core_time_ns() - start) as f64 / wanted.len() as f64;
        let start = core_time_ns();
        for hash in &wanted {
            slots.clear();
            index.candidates(*hash, &mut slots);
        }
        let alone = (core_time_ns() - start) as f64 / wanted.len() as f64;
        println!(
            "{rows} rows, {expected_rows} expected: {ns:.1} ns a look-up in batches, {alone:.1} ns \
             alone, {found} candidates of {} keys",
            wanted.len()
        );
    }
    // The limit of the machine at this moment: independent reads of single words of as many bytes.
    let words: Vec<u32> = (0..index.memory_bytes() as u32 / 4).collect();
    for ahead in [16, 64] {
        let start = core_time_ns();
        let mut sum = 0u32;
        for at in 0..wanted.len() - ahead {
            crate::prefetch::prefetch_read(
                &words[(wanted[at + ahead] % words.len() as u64) as usize],
            );
            sum = sum.wrapping_add(words[(wanted[at] % words.len() as u64) as usize]);
        }
        let ns = (core_time_ns() - start) as f64 / wanted.len() as f64;
        println!("one word, prefetched {ahead} ahead: {ns:.1} ns ({sum})");
    }
}
