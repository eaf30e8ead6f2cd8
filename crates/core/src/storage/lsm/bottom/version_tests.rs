//! Edits of versions: what covers all places once is taken, all else refused.

use super::file::Facts;
use super::order::{Place, PlaceRange};
use super::testing::Random;
use super::version::{Edit, Version};
use crate::error::ErrorKind;

fn at(position: u64) -> Place {
    Place { table: 1, rank: 0, position }
}

/// A partition from `first` to the place before `end`, or to the last place.
fn facts(number: u32, first: Place, end: Option<Place>) -> Facts {
    let last = end.map_or(Place::MAX, |end| end.previous().unwrap());
    let range = PlaceRange { first, last };
    let merge = u64::from(number) + 7;
    let header_sum = u64::MAX - u64::from(number);
    Facts { number, merge, range, rows: 3, pages: 1, bytes: 1024, header_sum }
}

/// Three partitions: 1 up to 100, 2 up to 200, 3 from there.
fn three() -> Version {
    let added = vec![
        facts(1, Place::MIN, Some(at(100))),
        facts(2, at(100), Some(at(200))),
        facts(3, at(200), None),
    ];
    Version::default().apply(&Edit { removed: Vec::new(), added }).unwrap()
}

fn refused(version: &Version, removed: &[u32], added: &[Facts], expected: &str) {
    let edit = Edit { removed: removed.to_vec(), added: added.to_vec() };
    for error in [version.apply(&edit).unwrap_err(), version.replay(&edit).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains(expected), "{error}");
        assert!(error.message().contains("restore"), "{error}");
    }
}

#[test]
fn a_place_belongs_to_the_partition_whose_range_has_it() {
    let version = three();
    for (place, expected) in [
        (Place::MIN, 0),
        (at(99), 0),
        (at(100), 1),
        (at(199), 1),
        (at(200), 2),
        (Place { table: 0, rank: 3, position: u64::MAX }, 0),
        (Place { table: 1, rank: 1, position: 0 }, 2),
        (Place::MAX, 2),
    ] {
        assert_eq!(version.find(place), Some(expected), "{place:?}");
    }
    assert_eq!(Version::default().find(Place::MIN), None);
}

#[test]
fn an_edit_may_cut_merge_and_replace_partitions() {
    let version = three();
    let cut = Edit {
        removed: vec![2],
        added: vec![facts(4, at(100), Some(at(150))), facts(5, at(150), Some(at(200)))],
    };
    let cut = version.apply(&cut).unwrap();
    let numbers = |version: &Version| -> Vec<u32> {
        version.partitions().iter().map(|facts| facts.number).collect()
    };
    assert_eq!(numbers(&cut), [1, 4, 5, 3]);
    let merged = Edit { removed: vec![3, 5, 4], added: vec![facts(6, at(100), None)] };
    assert_eq!(numbers(&cut.apply(&merged).unwrap()), [1, 6]);
    refused(&version, &[1, 2, 3], &[], "leaves no partitions, there were 3");
    let nothing = Version::default().apply(&Edit::default()).unwrap();
    assert_eq!(nothing, Version::default());
    assert_eq!(Version::default().apply(&version.as_edit()).unwrap(), version);
}

#[test]
fn gaps_overlaps_and_numbers_that_cannot_be_are_refused() {
    let version = three();
    refused(&version, &[2], &[], "leaves a gap before partition 3");
    refused(&version, &[1], &[], "leaves a gap before partition 2");
    refused(&version, &[3], &[], "leaves a gap from");
    refused(&version, &[2], &[facts(4, at(101), Some(at(200)))], "leaves a gap before");
    refused(&version, &[2], &[facts(4, at(100), Some(at(199)))], "leaves a gap before");
    refused(&version, &[2], &[facts(4, at(99), Some(at(200)))], "overlaps with");
    refused(&version, &[2], &[facts(4, at(100), Some(at(201)))], "overlaps with");
    refused(&version, &[], &[facts(4, at(50), Some(at(60)))], "overlaps with");
    refused(&version, &[3], &[facts(4, at(200), Some(Place::MAX))], "leaves a gap from");
    refused(&version, &[4], &[], "not all are there");
    refused(&version, &[2, 2], &[facts(4, at(100), Some(at(200)))], "not all are there");
    refused(&version, &[2], &[facts(3, at(100), Some(at(200)))], "which is there");
    refused(&version, &[2], &[facts(2, at(100), Some(at(200)))], "which is there");
    refused(&Version::default(), &[], &[facts(1, at(0), None)], "leaves a gap before");
    let mut backwards = facts(4, at(100), Some(at(200)));
    backwards.range.last = at(99);
    refused(&version, &[2], &[backwards], "overlaps with");
}

#[test]
fn a_version_knows_its_rows_and_disk_bytes_and_where_pages_stand() {
    let mut added = three().as_edit().added;
    for (facts, pages) in added.iter_mut().zip([4, 1 << 31, 9]) {
        facts.pages = pages;
        facts.rows = u64::from(pages) * 5;
        facts.bytes = u64::from(pages) * 512;
    }
    let version =
        Version::default().apply(&Edit { removed: vec![], added: added.clone() }).unwrap();
    let pages = (1 << 31) + 13u64;
    assert_eq!(version.rows(), pages * 5);
    assert_eq!((three().rows(), three().disk_bytes()), (9, 3 * 4096));
    let begin = 1u32 << 31;
    for (at, page, expected) in [
        (0, 1, begin + 1),
        (0, 4, begin + 4),
        (1, 1, begin + 5),
        (1, (1 << 31) - 6, u32::MAX - 1),
        (1, (1 << 31) - 5, u32::MAX),
        // There are no larger ones.
        (1, 1 << 31, u32::MAX),
        (2, 9, u32::MAX),
    ] {
        assert_eq!(version.order_of(at, page), expected, "page {page} of {at}");
    }
    for too_many in [Facts { rows: u64::MAX, ..added[0] }, Facts { bytes: u64::MAX, ..added[0] }] {
        let mut added = added.clone();
        added[0] = too_many;
        refused(&Version::default(), &[], &added, "exceed 2^64");
    }
    assert!(version.memory_bytes() >= 3 * (size_of::<Facts>() + size_of::<Place>() + 8));
}

#[test]
fn more_partitions_than_numbers_are_full_for_a_merge_and_corrupt_in_a_journal() {
    let most = 65_535u32;
    let begin = |number: u32| if number == 1 { Place::MIN } else { at(u64::from(number)) };
    let all = |count: u32| -> Vec<Facts> {
        let end = |number| (number < count).then(|| at(u64::from(number) + 1));
        (1..=count).map(|number| facts(number, begin(number), end(number))).collect()
    };
    let version = Version::default().replay(&Edit { removed: vec![], added: all(most) }).unwrap();
    assert_eq!(version.find(at(77)), Some(76));
    let too_many = Edit { removed: vec![], added: all(most + 1) };
    assert_eq!(Version::default().apply(&too_many).unwrap_err().kind(), ErrorKind::Full);
    let error = Version::default().replay(&too_many).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("leaves 65536 partitions of at most 65535"), "{error}");
    // And beside others.
    let last = u64::from(most);
    let added = [facts(70_000, at(last), Some(at(last + 5))), facts(70_001, at(last + 5), None)];
    let one_more = Edit { removed: vec![most], added: added.to_vec() };
    assert_eq!(version.apply(&one_more).unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(version.replay(&one_more).unwrap_err().kind(), ErrorKind::Corrupt);
    version.check_room(1, 1).unwrap();
    version.check_room(3, 2).unwrap();
    assert_eq!(version.check_room(1, 2).unwrap_err().kind(), ErrorKind::Full);
    let fewer =
        Edit { removed: vec![most - 1, most], added: vec![facts(70_000, at(last - 1), None)] };
    assert_eq!(version.apply(&fewer).unwrap().partitions().len(), 65_534);
}

#[test]
fn encoded_edits_come_back_equal() {
    for edit in [
        Edit::default(),
        three().as_edit(),
        Edit { removed: vec![1, u32::MAX], added: vec![facts(u32::MAX, at(1), None)] },
    ] {
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        assert_eq!(Edit::decode(&bytes).unwrap(), edit);
        for length in 0..bytes.len() {
            assert!(Edit::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        bytes.push(0);
        assert_eq!(Edit::decode(&bytes).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let mut newer = Vec::new();
    three().as_edit().encode(&mut newer);
    newer[0] += 1;
    assert_eq!(Edit::decode(&newer).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn nonsense_is_refused_or_an_edit_that_covers_all_places_once() {
    let version = three();
    let mut random = Random(3);
    let (mut refused, mut decoded, mut applied) = (0, 0, 0);
    for round in 0..30_000 {
        let edit = Edit {
            removed: vec![2],
            added: vec![facts(4, at(100), Some(at(150))), facts(5, at(150), Some(at(200)))],
        };
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        match round % 4 {
            0 => bytes = (0..random.below(300)).map(|_| random.next() as u8).collect(),
            1 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            _ => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
        let Ok(edit) = Edit::decode(&bytes) else {
            refused += 1;
            continue;
        };
        decoded += 1;
        if let Ok(version) = version.apply(&edit) {
            applied += 1;
            let mut next = Some(Place::MIN);
            for facts in version.partitions() {
                assert_eq!(next, Some(facts.range.first));
                next = facts.range.last.next();
            }
            assert_eq!(next, None);
        }
    }
    assert!(refused > 1000 && decoded > 1000 && applied > 100, "{refused} {decoded} {applied}");
}
