//! Schedules beside a model of them: the next use of each use, looked for one by one.

use crate::{Ends, ErrorKind, Maker, Part, Result, Schedule};
use std::path::Path;

/// The keys of each table in each batch; `None` of one that a batch does not use.
type Batches = Vec<Vec<Option<Vec<u64>>>>;

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % most
    }
}

/// Batches of some tables, of which some are seldom used and one has keys of all bits.
fn batches(seed: u64, tables: usize, count: usize) -> Batches {
    let mut random = Random(seed);
    let mut keys = |table: usize| {
        if table > 0 && random.below(3) == 0 {
            return None;
        }
        let mut key = || match table % 3 {
            0 => random.below(40),
            1 => random.below(2_000),
            _ => mix_up(random.below(500)),
        };
        Some((0..7).map(|_| key()).collect())
    };
    (0..count).map(|_| (0..tables).map(&mut keys).collect()).collect()
}

fn mix_up(key: u64) -> u64 {
    key.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn names(tables: usize) -> Vec<String> {
    (0..tables).map(|table| format!("table {table}")).collect()
}

fn make(path: &Path, batches: &Batches, stretch_batches: u32, ends: Ends) -> Result<Schedule> {
    make_of(path, batches, stretch_batches, ends, None)
}

/// A schedule of the first `own` batches.
fn make_of(
    path: &Path,
    batches: &Batches,
    stretch_batches: u32,
    ends: Ends,
    own: Option<usize>,
) -> Result<Schedule> {
    let mut maker = Maker::new(path, &names(batches[0].len()), stretch_batches)?;
    for (at, batch) in batches.iter().enumerate() {
        if own == Some(at) {
            maker.end()?;
        }
        let tables = (0..).zip(batch);
        let parts = tables.filter_map(|(table, keys)| Some(Part { table, keys: keys.as_ref()? }));
        maker.add(&parts.collect::<Vec<_>>())?;
    }
    maker.finish(ends, |_| true)?;
    Schedule::open(path)
}

fn slices(batch: &[Option<Vec<u64>>]) -> Vec<Option<&[u64]>> {
    batch.iter().map(Option::as_deref).collect()
}

/// Stretches until the next use of each key, plus 1, by looking at everything behind it.
fn expected(batches: &Batches, at: usize, stretch_batches: usize, repeats: bool) -> Vec<Vec<u16>> {
    let stretches = batches.len().div_ceil(stretch_batches);
    let stretch = at / stretch_batches;
    let of_table = |table: usize, keys: &[u64]| {
        let of_key = |place: usize| {
            let used = |at: usize| batches[at][table].iter().flatten();
            if keys[place + 1..].contains(&keys[place]) {
                return 1;
            }
            let later = (at + 1..batches.len())
                .find(|later| used(*later).any(|key| *key == keys[place]))
                .map(|later| later / stretch_batches - stretch);
            let again = || {
                let first = (0..=at).find(|first| used(*first).any(|key| *key == keys[place]));
                first.map(|first| stretches + first / stretch_batches - stretch)
            };
            let found = if repeats { later.or_else(again) } else { later };
            found.map_or(0, |after| after as u16 + 1)
        };
        (0..keys.len()).map(of_key).collect()
    };
    let tables = batches[at].iter().enumerate();
    tables.map(|(table, keys)| keys.as_ref().map_or(vec![], |keys| of_table(table, keys))).collect()
}

#[test]
fn next_uses_are_those_of_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.schedule");
    for (seed, tables, count, stretch_batches) in
        [(1, 1, 1, 1), (2, 1, 200, 7), (3, 3, 300, 16), (4, 5, 64, 64), (5, 40, 50, 3)]
    {
        let batches = batches(seed, tables, count);
        for ends in [Ends::Here, Ends::Repeats] {
            let schedule = make(&path, &batches, stretch_batches, ends).expect("it is made");
            assert_eq!(schedule.batches(), count as u64);
            assert_eq!(schedule.tables(), names(tables));
            assert_eq!(schedule.repeats(), ends == Ends::Repeats);
            let mut furthest = 0;
            for (at, batch) in batches.iter().enumerate() {
                let found = schedule.next_uses(at as u64, &slices(batch)).expect("it is read");
                let repeats = ends == Ends::Repeats;
                let expected = expected(&batches, at, stretch_batches as usize, repeats);
                furthest = expected.iter().flatten().copied().fold(furthest, u16::max);
                assert_eq!(found, Some(expected), "batch {at} of seed {seed}, {ends:?}");
            }
            assert_eq!(schedule.furthest(), u32::from(furthest.saturating_sub(1)));
        }
    }
}

#[test]
fn batches_behind_the_schedule_are_next_uses_from_a_new_stretch_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.schedule");
    let all = batches(6, 2, 100);
    let schedule = make_of(&path, &all, 8, Ends::Here, Some(50)).expect("it is made");
    assert_eq!(schedule.batches(), 50);
    // 50 batches are six stretches and a quarter; the others begin with the eighth.
    let gap = vec![vec![None; 2]; 6];
    let with_gap = [&all[..50], &gap, &all[50..]].concat();
    for (at, batch) in all.iter().enumerate().take(50) {
        let found = schedule.next_uses(at as u64, &slices(batch)).expect("it is read");
        assert_eq!(found, Some(expected(&with_gap, at, 8, false)));
    }
    let error = schedule.next_uses(50, &slices(&all[50])).expect_err("it has 50");
    assert_eq!(error.kind(), ErrorKind::Misuse);
    for (ends, own) in [(Ends::Here, Some(0)), (Ends::Repeats, Some(50))] {
        let error = make_of(&path, &all, 8, ends, own).expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Misuse);
    }
}

#[test]
fn more_keys_than_a_table_holds_are_found_in_several_rounds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.schedule");
    let batches = batches(7, 2, 400);
    crate::keys::SLOTS_MAX_OF_TEST.set(Some(1 << 4));
    let schedule = make(&path, &batches, 16, Ends::Repeats);
    crate::keys::SLOTS_MAX_OF_TEST.set(None);
    let schedule = schedule.expect("it is made");
    for (at, batch) in batches.iter().enumerate() {
        let found = schedule.next_uses(at as u64, &slices(batch)).expect("it is read");
        assert_eq!(found, Some(expected(&batches, at, 16, true)), "batch {at}");
    }
}

#[test]
fn other_keys_are_told_from_those_of_a_batch() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.schedule");
    let batches: Batches =
        vec![vec![Some(vec![1, 2, 3]), Some(vec![4])], vec![Some(vec![5]), None]];
    let schedule = make(&path, &batches, 1, Ends::Here).expect("it is made");
    let is_known = |batch, keys: &[Option<&[u64]>]| {
        schedule.next_uses(batch, keys).expect("it is read").is_some()
    };
    assert!(is_known(0, &[Some(&[1, 2, 3]), Some(&[4])]));
    assert!(is_known(1, &[Some(&[5]), None]));
    for (batch, other) in [
        (0, [Some(&[1u64, 3, 2][..]), Some(&[4u64][..])]),
        (0, [Some(&[1, 2]), Some(&[4])]),
        (0, [Some(&[1, 2, 3]), None]),
        (0, [Some(&[1, 2, 3]), Some(&[5])]),
        (1, [Some(&[5]), Some(&[])]),
        (1, [None, Some(&[5])]),
    ] {
        assert!(!is_known(batch, &other), "{other:?}");
    }
    let keys = [Some(&[5u64][..]), None];
    assert_eq!(schedule.find(0, &keys).expect("it is read"), Some(1));
    assert_eq!(schedule.find(1, &keys).expect("it is read"), Some(1));
    assert_eq!(schedule.find(2, &keys).expect("it is read"), Some(1));
    assert_eq!(schedule.find(0, &[None, Some(&[5])]).expect("it is read"), None);
}

#[test]
fn every_damaged_byte_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.schedule");
    let batches = batches(8, 2, 12);
    make(&path, &batches, 2, Ends::Here).expect("it is made");
    let whole = std::fs::read(&path).expect("the file");
    let read_all = || -> Result<bool> {
        let schedule = Schedule::open(&path)?;
        for (at, batch) in batches.iter().enumerate() {
            if schedule.next_uses(at as u64, &slices(batch))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    };
    assert!(read_all().expect("it is whole"));
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, damaged).expect("a file");
        let kind = read_all().expect_err("it is damaged").kind();
        assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Unsupported), "byte {at}: {kind:?}");
    }
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).expect("a file");
        let kind = read_all().expect_err("it is cut").kind();
        assert_eq!(kind, ErrorKind::Corrupt, "{length} bytes");
    }
}

#[test]
fn what_is_stopped_leaves_the_schedule_that_was_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.schedule");
    let batches = batches(9, 1, 10);
    make(&path, &batches, 2, Ends::Here).expect("it is made");
    let before = std::fs::read(&path).expect("the file");
    let mut told = 0;
    loop {
        let mut maker = Maker::new(&path, &names(1), 3).expect("a maker");
        maker.add(&[Part { table: 0, keys: &[1, 2] }]).expect("it is taken");
        let mut left = told;
        let outcome = maker.finish(Ends::Here, |share| {
            assert!((0.0..=1.0).contains(&share));
            left -= 1;
            left >= 0
        });
        if outcome.is_ok() {
            break;
        }
        assert_eq!(outcome.expect_err("it was stopped").kind(), ErrorKind::Stopped);
        assert_eq!(std::fs::read(&path).expect("the file"), before);
        let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
        assert_eq!(left.len(), 1, "no temporary file stays: {left:?}");
        told += 1;
    }
    assert!(told > 2);
    assert_eq!(Schedule::open(&path).expect("the new one").stretch_batches(), 3);
}

#[test]
fn what_is_out_of_range_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.schedule");
    let misuse = |outcome: Result<()>| {
        assert_eq!(outcome.expect_err("it is refused").kind(), ErrorKind::Misuse);
    };
    misuse(Maker::new(&path, &[], 1).map(drop));
    misuse(Maker::new(&path, &names(1), 0).map(drop));
    let mut maker = Maker::new(&path, &names(2), 1).expect("a maker");
    let part = |table| Part { table, keys: &[1] };
    misuse(maker.add(&[part(2)]));
    misuse(maker.add(&[part(1), part(0)]));
    misuse(maker.add(&[part(1), part(1)]));
    misuse(maker.finish(Ends::Here, |_| true));
    assert!(!path.exists());
    let nowhere = folder.path().join("none/one.schedule");
    let error = Maker::new(&nowhere, &names(1), 1).expect_err("there is no folder");
    assert_eq!(error.kind(), ErrorKind::Io);
}

/// Files of the first version are read for ever.
#[test]
fn the_golden_file_is_read_and_made() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1.schedule");
    let batches: Batches = vec![
        vec![Some(vec![1, 2, 3]), Some(vec![u64::MAX])],
        vec![Some(vec![2, 3, 4]), None],
        vec![Some(vec![1, 4, 4]), Some(vec![0, u64::MAX])],
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("one.schedule");
    make(&path, &batches, 1, Ends::Repeats).expect("it is made");
    let made = std::fs::read(&path).expect("the file");
    assert_eq!(made, std::fs::read(&golden).expect("the golden file"));
    let schedule = Schedule::open(&golden).expect("it is read");
    let found = schedule.next_uses(2, &slices(&batches[2])).expect("it is read");
    assert_eq!(found, Some(vec![vec![2, 1, 3], vec![4, 2]]));
}
