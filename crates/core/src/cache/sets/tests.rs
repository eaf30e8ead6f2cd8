//! Sets: their limits, and the access that their locks allow.

use super::*;

#[test]
fn a_set_costs_8_bytes_per_row_and_its_headers_16() {
    for row_bytes in (4..=1040).step_by(4) {
        let slots = WAYS_MAX * (slot_bytes(row_bytes, true) - row_bytes);
        assert_eq!(set_bytes(row_bytes) + slots, (8 + 16) * WAYS_MAX, "{row_bytes}");
    }
}

#[test]
fn stamps_lie_in_rows_where_those_take_no_line_more() {
    let stamped = |numbers: [usize; 4]| numbers.map(|n| stamped(4 * n));
    // With and without a word of state; 4 lines and 8 lines.
    let expected = [(136, true), (128, false), (256, false), (512, false)];
    assert_eq!(stamped([33, 32, 64, 128]), expected);
    assert_eq!(stamped([65, 129, 96, 8]), [(264, true), (520, true), (384, false), (32, false)]);
}

#[test]
fn slots_do_not_overlap() {
    for row_bytes in [12, 16, 132] {
        slots_of_rows_do_not_overlap(row_bytes);
    }
}

fn slots_of_rows_do_not_overlap(row_bytes: usize) {
    let sets = Sets::new(5, 9, row_bytes, true).unwrap();
    for (round, set) in (0..2).flat_map(|round| (0..5).map(move |set| (round, set))) {
        let mut set = sets.lock(set);
        for way in 0..9 {
            let name = set.index() * 100 + way as u32;
            if round == 1 {
                let key = set.header(way).unwrap().key;
                assert_eq!((key, set.dirty_since(way)), (u64::from(name), name));
                assert_eq!(set.words(way), vec![name as f32; row_bytes / 4]);
            }
            let row = set.row_mut(way);
            *row.header.unwrap() = Header { key: name.into(), origin: name, table: 1 };
            *row.dirty_since = name;
            row.words.fill(name as f32);
        }
    }
}

#[test]
fn rows_are_found_whatever_level_they_are_brought_to() {
    let mut sets = Sets::new(3, 9, 12, true).unwrap();
    let at = |set, tag, hint| Location { set, tag, hint };
    for (set, way, tag) in [(0, 8, 7), (2, 0, 0x900), (2, 3, 7)] {
        sets.lock(set).set_tag(way, tag);
    }
    for level in [Level::First, Level::Second] {
        sets.level = level;
        let mut block = [at(0, 7, NO_HINT), at(1, 7, 4), at(2, 0x900, 5), at(2, 7, NO_HINT)];
        sets.prefetch_sets(&block);
        for changes in [false, true] {
            sets.find_rows(&mut block, changes);
            assert_eq!(block.map(|at| at.hint), [8, NO_HINT, 0, 3], "{level:?}");
        }
    }
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "way 8 of 8")]
fn a_way_that_was_taken_cannot_be_reached() {
    let sets = Sets::new(1, 9, 12, false).unwrap();
    let mut set = sets.lock(0);
    set.limit(8);
    set.words(8);
}

#[test]
#[should_panic(expected = "set 1 still uses 9 ways")]
fn memory_in_use_is_not_released() {
    let sets = Sets::new(2, 9, 12, true).unwrap();
    sets.lock(0).limit(8);
    sets.release_from(8);
}
