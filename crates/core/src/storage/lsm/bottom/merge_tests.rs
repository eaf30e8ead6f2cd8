//! Merges beside a plain map, through power cuts, failed writes and full disks.

use super::file::{Facts, Shape, file_name, files_of};
use super::merge::{Counts, Merge, MergePlan, Merged, Taken};
use super::order::{Place, PlaceRange};
use super::pages::OpenPartitions;
use super::partition::Partition;
use super::testing::{
    List, Model, PORTION_BYTES, Random, Row, SMALL, TAG_FIRST, contents, insert, open, orders,
    queue, read_all, reader, small_model, words, write,
};
use super::version::{Edit, Version};
use super::writer::PartitionWriter;
use crate::error::{ErrorKind, Result};
use crate::io::{Medium, SimMedium};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The number of the merges of these tests.
const MERGE: u64 = 9;

type Changed = BTreeMap<Place, (u64, Option<Vec<f32>>)>;

fn begin(
    medium: &SimMedium,
    shape: &Shape,
    inputs: Vec<Arc<Partition>>,
    changes: &Changed,
    target_bytes: u64,
) -> Result<Merge<List>> {
    let plan = MergePlan {
        shape: *shape,
        orders: Arc::new(orders()),
        range: PlaceRange::ALL,
        inputs,
        changes: changes.len() as u64,
        first_number: 10,
        merge: MERGE,
        target_bytes,
        portion_bytes: PORTION_BYTES,
    };
    let medium_of_merge = Arc::new(medium.clone());
    Merge::new(
        medium_of_merge,
        plan,
        List::new(changes),
        reader(medium, shape),
        queue(medium, shape),
    )
}

/// Runs a merge to its end. One that fails is abandoned.
fn run(mut merge: Merge<List>) -> Result<Merged> {
    loop {
        match merge.step() {
            Ok(true) => {}
            Ok(false) => return Ok(merge.finish()),
            Err(error) => {
                let again = merge.step().unwrap_err();
                assert_eq!(again.kind(), ErrorKind::Poisoned);
                let _ = merge.abandon();
                return Err(error);
            }
        }
    }
}

/// Replaces 3 rows, adds 6, deletes 2, and deletes one that is not there.
fn some_changes() -> Changed {
    let mut changes = Changed::new();
    let mut change = |table, rank, key, stamp: Option<u64>| {
        let place = orders().place(table, rank, key).unwrap();
        changes.insert(place, (key, stamp.map(|stamp| words(&SMALL, key, stamp))));
    };
    for key in [0, 9, 20, 21, 22] {
        change(0, 0, key, Some(6));
    }
    change(1, 0, 5, Some(6));
    for key in [300, 301, 302] {
        change(2, 0, key, Some(6));
    }
    change(0, 0, 3, None);
    change(1, 1, 103, None);
    change(1, 1, 999, None);
    changes
}

fn after(old: &Model, changes: &Changed) -> Model {
    let mut model = old.clone();
    for (place, (key, words)) in changes {
        match words {
            Some(words) => model.insert(*place, Row { key: *key, words: words.clone() }),
            None => model.remove(place),
        };
    }
    model
}

/// Reads all rows of a merge, each from the file whose range has it.
fn read_merged(medium: &SimMedium, shape: &Shape, added: &[Facts], model: &Model) -> Result<()> {
    for facts in added {
        let part = model.range(facts.range.first..=facts.range.last);
        let part: Model = part.map(|(place, row)| (*place, row.clone())).collect();
        assert_eq!(facts.rows, part.len() as u64);
        read_all(medium, shape, facts, &part)?;
    }
    Ok(())
}

#[test]
fn newer_rows_win_deletions_drop_and_all_is_counted() {
    let old = small_model(5);
    let changes = some_changes();
    for (target_bytes, files, most) in [(1, 5, 6), (512, 5, 6), (1024, 3, 12), (1 << 20, 1, 27)] {
        let medium = SimMedium::new(1);
        let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
        let input = open(&medium, &SMALL, &facts).unwrap();
        let merge = begin(&medium, &SMALL, vec![input], &changes, target_bytes).unwrap();
        let merged = run(merge).unwrap();
        let model = after(&old, &changes);
        let counts =
            |kept, replaced, new, deleted, vain| Counts { kept, replaced, new, deleted, vain };
        assert_eq!(merged.total(), counts(18, 3, 6, 2, 1));
        let of_tables = [counts(7, 2, 3, 1, 0), counts(11, 1, 0, 1, 1), counts(0, 0, 3, 0, 0)];
        assert_eq!(merged.counts, (0..3).zip(of_tables).collect());
        // All changes were taken, deletions and those in vain, too.
        let taken = changes.iter().zip(TAG_FIRST..);
        let taken =
            taken.map(|((place, (key, _)), tag)| Taken { table: place.table, key: *key, tag });
        assert_eq!(merged.taken, taken.collect::<Vec<_>>());
        assert_eq!(merged.removed, [1]);
        assert_eq!(merged.added.len(), files);
        assert!(merged.added.iter().all(|facts| facts.rows <= most), "{merged:?}");
        assert!(merged.added.iter().all(|facts| facts.merge == MERGE));
        read_merged(&medium, &SMALL, &merged.added, &model).unwrap();
        // Together they cover all places.
        assert_eq!(merged.added[0].range.first, Place::MIN);
        assert_eq!(merged.added[merged.added.len() - 1].range.last, Place::MAX);
        for pair in merged.added.windows(2) {
            assert_eq!(pair[0].range.last.next(), Some(pair[1].range.first));
            assert_eq!(pair[0].number + 1, pair[1].number);
        }
    }
}

#[test]
fn merges_without_old_rows_without_changes_and_without_either_leave_a_partition() {
    let none = Changed::new();
    let medium = SimMedium::new(1);
    let merge = begin(&medium, &SMALL, Vec::new(), &none, 512).unwrap();
    let empty = run(merge).unwrap();
    assert_eq!(empty.added.len(), 1);
    assert_eq!((empty.added[0].rows, empty.added[0].range), (0, PlaceRange::ALL));

    let medium = SimMedium::new(1);
    let changes = some_changes();
    let merge = begin(&medium, &SMALL, Vec::new(), &changes, 1 << 20).unwrap();
    let loaded = run(merge).unwrap();
    assert_eq!((loaded.total().new, loaded.total().vain), (9, 3));
    read_merged(&medium, &SMALL, &loaded.added, &after(&Model::new(), &changes)).unwrap();

    let medium = SimMedium::new(1);
    let old = small_model(5);
    let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
    let input = open(&medium, &SMALL, &facts).unwrap();
    let merge = begin(&medium, &SMALL, vec![input.clone()], &none, 1 << 20).unwrap();
    let copied = run(merge).unwrap();
    assert_eq!(copied.total().kept, 23);
    assert!(copied.taken.is_empty());
    read_merged(&medium, &SMALL, &copied.added, &old).unwrap();

    let medium = SimMedium::new(1);
    write(&medium, &SMALL, 1, 5, &old).unwrap();
    let all: Changed = old.iter().map(|(place, row)| (*place, (row.key, None))).collect();
    let input = open(&medium, &SMALL, &facts).unwrap();
    let merge = begin(&medium, &SMALL, vec![input], &all, 512).unwrap();
    let deleted = run(merge).unwrap();
    assert_eq!((deleted.total().deleted, deleted.added.len(), deleted.added[0].rows), (23, 1, 0));
}

#[test]
fn a_merge_stops_between_portions_and_its_memory_is_bounded() {
    let shape = Shape { page_bytes: 4096, row_bytes: 256, ..SMALL };
    let mut old = Model::new();
    for key in 0..10_000 {
        insert(&mut old, &shape, 1, 0, key, 5);
    }
    let mut changes = Changed::new();
    for key in 5000..15_000 {
        let place = orders().place(1, 0, key).unwrap();
        changes.insert(place, (key, Some(words(&shape, key, 6))));
    }
    let medium = SimMedium::new(1);
    let facts = write(&medium, &shape, 1, 5, &old).unwrap();
    let input = open(&medium, &shape, &facts).unwrap();
    let mut merge = begin(&medium, &shape, vec![input], &changes, 1 << 20).unwrap();
    let (mut steps, mut most) = (1, 0);
    let mut reads = medium.counters().reads;
    while merge.step().unwrap() {
        steps += 1;
        most = most.max(merge.memory_bytes());
        // The longest request has 8 pages.
        let now = medium.counters().reads;
        assert!(now - reads <= PORTION_BYTES as u64 / 32_768, "{} reads in one step", now - reads);
        reads = now;
    }
    let merged = merge.finish();
    assert!(steps >= 2 * 10_000 * 256 / PORTION_BYTES, "{steps} steps");
    // A list of what was taken, which doubles as it grows.
    let taken = 16_384 * size_of::<Taken>();
    let bound = PORTION_BYTES + queue(&medium, &shape).memory_bytes() + taken + 16_384;
    assert!(most <= bound, "{most} bytes, expected at most {bound}");
    let total = merged.total();
    assert_eq!((total.kept, total.replaced, total.new), (5000, 5000, 5000));
    assert_eq!(merged.taken.len(), 10_000);
    // Of 20,000 rows there may be, of which a file of 1 MiB has 3,840: six of equal length.
    assert_eq!(merged.added.len(), 5);
    read_merged(&medium, &shape, &merged.added, &after(&old, &changes)).unwrap();
}

/// A merge of the small partition; the old rows must be readable whatever becomes of it.
fn merge_small(medium: &SimMedium, facts: &Facts) -> Result<Merged> {
    let input = open(medium, &SMALL, facts)?;
    let merge = begin(medium, &SMALL, vec![input], &some_changes(), 1024)?;
    run(merge)
}

#[test]
fn a_power_cut_at_any_operation_of_a_merge_leaves_the_old_partition() {
    let old = small_model(5);
    let model = after(&old, &some_changes());
    let medium = SimMedium::new(0);
    let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
    let expected = merge_small(&medium, &facts).unwrap().added;
    assert!(expected.len() > 1);
    let (mut cuts, mut good, mut bad) = (0, 0, 0);
    loop {
        let medium = SimMedium::new(cuts);
        write(&medium, &SMALL, 1, 5, &old).unwrap();
        medium.power_cut_after(cuts);
        let merged = merge_small(&medium, &facts);
        if !medium.power_is_off() {
            assert_eq!(merged.unwrap().added, expected);
            break;
        }
        assert!(merged.is_err());
        for seed in 0..10 {
            let medium = medium.reboot(seed);
            read_all(&medium, &SMALL, &facts, &old).unwrap();
            for new in &expected {
                match read_merged(&medium, &SMALL, std::slice::from_ref(new), &model) {
                    Ok(()) => good += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                        assert!(open(&medium, &SMALL, new).is_err(), "half a file opens: {error}");
                        bad += 1;
                    }
                }
            }
        }
        cuts += 1;
    }
    assert!(cuts > 20 && good > 0 && bad > 0, "{cuts} operations, {good} good, {bad} bad");
}

#[test]
fn a_failed_operation_of_a_merge_is_told_and_leaves_the_old_partition_alone() {
    let old = small_model(5);
    type Fault = fn(&SimMedium, u64);
    let faults: [(&str, Fault, usize); 6] = [
        ("read", SimMedium::fail_read, 3),
        ("short read", SimMedium::short_read, 3),
        ("write", SimMedium::fail_write, 6),
        ("sync", SimMedium::fail_sync, 6),
        ("full write", SimMedium::full_write, 6),
        ("full allocation", SimMedium::full_allocate, 2),
    ];
    for (what, fault, least) in faults {
        let mut failed = 0;
        for after_operations in 0.. {
            let medium = SimMedium::new(after_operations);
            let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
            let before = medium.faults_fired();
            fault(&medium, after_operations);
            let merged = merge_small(&medium, &facts);
            let struck = medium.faults_fired() != before;
            if let Ok(merged) = merged {
                if !struck {
                    break;
                }
                let model = after(&old, &some_changes());
                read_merged(&medium, &SMALL, &merged.added, &model).unwrap();
            } else {
                assert!(struck, "{what} {after_operations}");
                failed += 1;
                let files = files_of(&medium, 3).unwrap();
                let numbers: Vec<u32> = files.iter().map(|file| file.number).collect();
                assert_eq!(numbers, [1], "{what} {after_operations}");
            }
            read_all(&medium, &SMALL, &facts, &old).unwrap();
        }
        assert!(failed >= least, "{what} failed {failed} times");
    }
}

#[test]
fn a_full_disk_ends_a_merge_and_room_lets_the_next_one_through() {
    let old = small_model(5);
    let medium = SimMedium::new(1);
    let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
    let room = medium.taken_bytes() + 4096;
    medium.set_capacity(Some(room));
    let error = merge_small(&medium, &facts).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(files_of(&medium, 3).unwrap().len(), 1);
    read_all(&medium, &SMALL, &facts, &old).unwrap();
    medium.set_capacity(None);
    let merged = merge_small(&medium, &facts).unwrap();
    let model = after(&old, &some_changes());
    read_merged(&medium, &SMALL, &merged.added, &model).unwrap();
}

#[test]
fn damage_in_an_old_page_ends_the_merge_with_its_name() {
    let old = small_model(5);
    let medium = SimMedium::new(1);
    let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
    let sound = contents(&medium, &SMALL, 1);
    for page in 1..=u64::from(facts.pages) {
        medium.flip_bit("part-3-1", page * 512 + 77);
        let error = merge_small(&medium, &facts).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(&format!("part-3-1, page {page}")), "{error}");
        assert_eq!(files_of(&medium, 3).unwrap().len(), 1);
        medium.replace("part-3-1", 0, &sound);
    }
    // A page with a valid checksum whose rows are out of order, or of another table.
    let layout = SMALL.layout(1).unwrap();
    for (slot, table, key, expected) in
        [(3, 0, 1, "row 3 does not follow"), (2, 1, 2, "row 2 is of table 1, not 0")]
    {
        let mut page = vec![0.0f32; 128];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut page);
        bytes.copy_from_slice(&sound[512..1024]);
        layout.put(bytes, slot, table, key, &words(&SMALL, key, 5));
        layout.seal(bytes, 1, 6, 5);
        medium.replace("part-3-1", 512, bytes);
        let error = merge_small(&medium, &facts).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(expected), "{error}");
        medium.replace("part-3-1", 0, &sound);
    }
    merge_small(&medium, &facts).unwrap();
}

#[test]
fn inputs_that_are_not_what_is_merged_are_refused() {
    let medium = SimMedium::new(1);
    let all = write(&medium, &SMALL, 1, 5, &small_model(5)).unwrap();
    let newer = write(&medium, &SMALL, 2, 9, &small_model(5)).unwrap();
    let opened = |facts: &Facts| open(&medium, &SMALL, facts).unwrap();
    // The first half of an older partition, and the second.
    let half = |number, first, last| {
        let queue = queue(&medium, &SMALL);
        let writer = PartitionWriter::create(&medium, &SMALL, number, 5, first, queue).unwrap();
        writer.finish(&medium, &orders(), last).unwrap().facts
    };
    let middle = Place { table: 1, rank: 0, position: 7 };
    let halves = [half(3, Place::MIN, middle), half(4, middle.next().unwrap(), Place::MAX)];
    for inputs in [
        vec![opened(&all), opened(&all)],
        vec![opened(&newer)],
        vec![opened(&halves[0])],
        vec![opened(&halves[1])],
        vec![opened(&halves[1]), opened(&halves[0])],
    ] {
        let Err(error) = begin(&medium, &SMALL, inputs, &Changed::new(), 512) else {
            panic!("taken");
        };
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    }
    let both = vec![opened(&halves[0]), opened(&halves[1])];
    let merge = begin(&medium, &SMALL, both, &some_changes(), 512).unwrap();
    assert_eq!(run(merge).unwrap().total().new, 9);
}

#[test]
fn changes_out_of_order_are_a_bug_of_the_caller() {
    struct Backwards(u64);
    impl super::merge::Changes for Backwards {
        fn next(&mut self) -> Result<Option<super::merge::Change<'_>>> {
            self.0 -= 1;
            let newer = super::merge::Newer::Deleted;
            Ok(Some(super::merge::Change { table: 0, rank: 0, key: self.0, newer, tag: 0 }))
        }
    }
    let medium = SimMedium::new(1);
    let plan = MergePlan {
        shape: SMALL,
        orders: Arc::new(orders()),
        range: PlaceRange::ALL,
        inputs: Vec::new(),
        changes: 9,
        first_number: 10,
        merge: 9,
        target_bytes: 512,
        portion_bytes: PORTION_BYTES,
    };
    let (reader, queue) = (reader(&medium, &SMALL), queue(&medium, &SMALL));
    let mut merge =
        Merge::new(Arc::new(medium.clone()), plan, Backwards(9), reader, queue).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| merge.step())).is_err());
}

#[test]
fn the_files_of_a_merge_are_of_equal_length() {
    let mut random = Random(4);
    let mut old = Model::new();
    for _ in 0..400 {
        insert(&mut old, &SMALL, random.below(3) as u16, 0, random.below(500), 5);
    }
    let medium = SimMedium::new(1);
    let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
    let input = open(&medium, &SMALL, &facts).unwrap();
    let merge = begin(&medium, &SMALL, vec![input], &Changed::new(), 1500).unwrap();
    let merged = run(merge).unwrap();
    let most = merged.added.iter().map(|facts| facts.rows).max();
    let least = merged.added.iter().map(|facts| facts.rows).min();
    assert!(most.unwrap() - least.unwrap() <= merged.added.len() as u64, "{merged:?}");
    read_merged(&medium, &SMALL, &merged.added, &old).unwrap();
}

#[test]
fn a_portion_has_the_length_of_the_plan_and_a_page_at_least() {
    let mut old = Model::new();
    for key in 0..120 {
        insert(&mut old, &SMALL, 1, 0, key, 5);
    }
    let medium = SimMedium::new(1);
    let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
    assert_eq!(facts.pages, 20);
    for (portion_bytes, steps) in [(0, 20), (512, 20), (1535, 10), (2048, 5), (20 * 512, 1)] {
        let plan = MergePlan {
            shape: SMALL,
            orders: Arc::new(orders()),
            range: PlaceRange::ALL,
            inputs: vec![open(&medium, &SMALL, &facts).unwrap()],
            changes: 0,
            first_number: 10,
            merge: MERGE,
            target_bytes: 1 << 20,
            portion_bytes,
        };
        let changes = List::new(&Changed::new());
        let (reader, queue) = (reader(&medium, &SMALL), queue(&medium, &SMALL));
        let device = Arc::new(medium.clone());
        let mut merge = Merge::new(device.clone(), plan, changes, reader, queue).unwrap();
        let mut taken = 0;
        while merge.step().unwrap() {
            taken += 1;
        }
        assert_eq!(taken, steps, "{portion_bytes} bytes");
        let merged = merge.finish();
        assert_eq!(merged.total().kept, 120);
        for facts in merged.added {
            device.remove(&file_name(3, facts.number)).unwrap();
        }
    }
}

#[test]
fn a_plan_says_its_files_and_needs_a_number_for_each() {
    let medium = SimMedium::new(1);
    let old = small_model(5);
    let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
    let plan = |target_bytes, first_number| MergePlan {
        shape: SMALL,
        orders: Arc::new(orders()),
        range: PlaceRange::ALL,
        inputs: vec![open(&medium, &SMALL, &facts).unwrap()],
        changes: 2,
        first_number,
        merge: MERGE,
        target_bytes,
        portion_bytes: PORTION_BYTES,
    };
    // 25 rows, of which a page has 6.
    for (target_bytes, files) in [(1, 5), (512, 5), (1024, 3), (1 << 20, 1), (u64::MAX, 1)] {
        assert_eq!(plan(target_bytes, 10).files().unwrap(), files);
        assert_eq!(plan(target_bytes, 10).numbers().unwrap(), 10..=10 + files as u32);
    }
    assert_eq!(plan(512, u32::MAX - 5).numbers().unwrap(), u32::MAX - 5..=u32::MAX);
    assert_eq!(plan(512, u32::MAX - 4).numbers().unwrap_err().kind(), ErrorKind::Full);
    let version = Version::default();
    assert_eq!(plan(512, u32::MAX - 4).check_room(&version).unwrap_err().kind(), ErrorKind::Full);
    let changes = List::new(&Changed::new());
    let (reader, queue) = (reader(&medium, &SMALL), queue(&medium, &SMALL));
    let medium_of_merge = Arc::new(medium.clone());
    let merge = Merge::new(medium_of_merge, plan(512, u32::MAX - 4), changes, reader, queue);
    assert_eq!(merge.err().unwrap().kind(), ErrorKind::Full);
    // Nothing was written.
    assert_eq!(files_of(&medium, 3).unwrap().len(), 1);
}

// All that a merge had written was refused by the version that it came to.
#[test]
fn a_plan_that_would_leave_too_many_partitions_is_refused_before_anything_is_written() {
    let medium = SimMedium::new(1);
    let facts = write(&medium, &SMALL, 1, 5, &small_model(5)).unwrap();
    let at = |position| Place { table: 9, rank: 0, position };
    // Beside the one with the rows.
    let others = |count: u64| -> Version {
        let first = Facts {
            range: PlaceRange { first: Place::MIN, last: at(1).previous().unwrap() },
            ..facts
        };
        let other = |n: u64| {
            let last = if n == count { Place::MAX } else { at(n + 1).previous().unwrap() };
            let range = PlaceRange { first: at(n), last };
            Facts { number: n as u32 + 1, range, ..facts }
        };
        let added = std::iter::once(first).chain((1..=count).map(other)).collect();
        Version::default().apply(&Edit { removed: vec![], added }).unwrap()
    };
    let most = OpenPartitions::COUNT_MAX as u64;
    let inputs = |count: usize| vec![open(&medium, &SMALL, &facts).unwrap(); count];
    // 23 rows, of which a page has 6, and one that may be left empty.
    for (target_bytes, count, others_most) in [(1 << 20, 1, most - 2), (512, 1, most - 5)] {
        let plan = MergePlan {
            shape: SMALL,
            orders: Arc::new(orders()),
            range: PlaceRange::ALL,
            inputs: inputs(count),
            changes: 0,
            first_number: 70_000,
            merge: MERGE,
            target_bytes,
            portion_bytes: PORTION_BYTES,
        };
        plan.check_room(&others(others_most)).unwrap();
        let error = plan.check_room(&others(others_most + 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        let pair = MergePlan { inputs: inputs(2), target_bytes: 1 << 20, ..plan };
        pair.check_room(&others(most - 1)).unwrap();
    }
}

// Without it each merge of a table that is loaded in order would write the rows before once more.
#[test]
fn many_appended_rows_leave_an_empty_partition_behind_them() {
    let old = small_model(5);
    let most = |model: &Model| *model.keys().rfind(|place| place.table == 2).unwrap();
    // A page has 6 rows.
    for (new, is_cut) in [(95, false), (96, true), (500, true)] {
        for also_behind in [false, true] {
            let medium = SimMedium::new(1);
            let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
            let input = open(&medium, &SMALL, &facts).unwrap();
            let mut changes = Changed::new();
            let mut change = |key, stamp: Option<u64>| {
                let place = orders().place(2, 0, key).unwrap();
                changes.insert(place, (key, stamp.map(|stamp| words(&SMALL, key, stamp))));
            };
            // One that is deleted in vain does not end the run.
            change(700, None);
            (1000..1000 + new).for_each(|key| change(key, Some(6)));
            let mut model = after(&old, &changes);
            let last = most(&model);
            let mut inputs = vec![input];
            if also_behind {
                // An old row behind them ends it.
                let place = orders().place(2, 1, 9_999).unwrap();
                let behind: Model =
                    [(place, Row { key: 9_999, words: words(&SMALL, 9_999, 5) })].into();
                let mut all = old.clone();
                all.extend(behind.clone());
                medium.remove(&file_name(SMALL.class, 1)).unwrap();
                let facts = write(&medium, &SMALL, 1, 5, &all).unwrap();
                inputs = vec![open(&medium, &SMALL, &facts).unwrap()];
                model.extend(behind);
            }
            let merged = run(begin(&medium, &SMALL, inputs, &changes, 1 << 20).unwrap()).unwrap();
            read_merged(&medium, &SMALL, &merged.added, &model).unwrap();
            let rows: Vec<u64> = merged.added.iter().map(|facts| facts.rows).collect();
            let all = model.len() as u64;
            let expected = if is_cut && !also_behind { vec![all, 0] } else { vec![all] };
            assert_eq!(rows, expected, "{new} new rows");
            assert_eq!(merged.added[rows.len() - 1].range.last, Place::MAX);
            if rows.len() == 2 {
                assert_eq!(merged.added[0].range.last, last);
            }
        }
    }
}
