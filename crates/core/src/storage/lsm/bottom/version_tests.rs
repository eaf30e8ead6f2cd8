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
    let error = version.apply(&edit).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.message().contains(expected), "{error}");
    assert!(error.message().contains("restore"), "{error}");
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
    let none = Edit { removed: vec![1, 2, 3], added: Vec::new() };
    assert_eq!(version.apply(&none).unwrap(), Version::default());
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
