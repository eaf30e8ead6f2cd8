//! Pinned commits beside a model of the rows at each step: what is pinned stays whatever follows,
//! survives every power cut, and can be gone back to.

use super::plain::{Rows, change, check, commit, open, options};
use super::*;
use crate::io::OpenMode;

type Points = BTreeMap<u64, Rows>;
/// Steps by name.
type Names = BTreeMap<String, u64>;

fn at_pin(name: &str, read_only: bool, keep: usize) -> StoreOptions {
    StoreOptions { pin: Some(name.to_owned()), read_only, ..options(keep) }
}

fn names(store: &Store) -> Names {
    store.pins().unwrap().into_iter().map(|pin| (pin.name, pin.step)).collect()
}

/// Every pinned commit opens to read, by its name and by its step, with exactly its rows.
fn check_pins(medium: &SimMedium, pins: &Names, points: &Points, what: &str) {
    for (name, step) in pins {
        let what = format!("{what}: pin {name} of step {step}");
        let by_step = StoreOptions { step: Some(*step), read_only: true, ..options(2) };
        for asked in [at_pin(name, true, 2), by_step] {
            let reader = open(medium, asked).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(reader.last_commit().unwrap().step, *step, "{what}");
            check(&reader, &points[step], &what);
        }
    }
}

#[test]
fn a_random_life_of_commits_and_pins_is_that_of_a_model() {
    each_kind(|| {
        let (mut pinned, mut returned, mut reopened) = (0, 0, 0);
        for seed in 0..2 {
            let keep = 1 + (seed % 3) as usize;
            let (medium, mut random) = (SimMedium::new(seed), Random(seed));
            let mut store = open(&medium, options(keep)).unwrap();
            let (mut rows, mut points, mut pins) = (Rows::default(), Points::new(), Names::new());
            for step in 1..90 {
                let what = format!("seed {seed} step {step}");
                for _ in 0..1 + random.below(2) {
                    change(&store, &mut rows, &mut random).unwrap();
                }
                match random.below(5) {
                    0 => {
                        let name = format!("p{}", random.below(4));
                        store.commit_pinned(step, "", &[], &name).unwrap();
                        pins.insert(name, step);
                    }
                    1 => {
                        let pending = store.commit_pinned_in_background(step, "", &[], "late");
                        pending.unwrap().wait(None).unwrap();
                        pins.insert("late".to_owned(), step);
                    }
                    _ => _ = commit(&store, step, &mut random).unwrap(),
                }
                points.insert(step, rows.clone());
                match random.below(12) {
                    0 | 1 => {
                        let kept = store.commits();
                        let commit = &kept[random.below(kept.len() as u64) as usize];
                        let name = format!("p{}", random.below(4));
                        store.pin(commit.step, &name).unwrap();
                        pins.insert(name, commit.step);
                        pinned += 1;
                    }
                    2 => {
                        if let Some(name) = pins.keys().next().cloned() {
                            store.unpin(&name).unwrap();
                            pins.remove(&name);
                        }
                    }
                    3 => {
                        store.close().unwrap();
                        drop(store);
                        store = open(&medium, options(keep)).unwrap();
                        reopened += 1;
                    }
                    4 => {
                        // Back to the newest pin, whose steps are the largest: none is later.
                        let Some((name, to)) = pins.iter().max_by_key(|(_, step)| **step) else {
                            continue;
                        };
                        let (name, to) = (name.clone(), *to);
                        drop(store);
                        store = open(&medium, at_pin(&name, false, keep)).unwrap();
                        rows = points[&to].clone();
                        check(&store, &rows, &what);
                        change(&store, &mut rows, &mut random).unwrap();
                        returned += 1;
                    }
                    _ => {}
                }
                assert_eq!(names(&store), pins, "{what}");
                if step % 9 == 0 {
                    check_pins(&medium, &pins, &points, &what);
                    check(&store, &rows, &what);
                }
            }
            check_pins(&medium, &pins, &points, "at the end");
            for name in pins.keys() {
                store.unpin(name).unwrap();
            }
            assert_eq!(crate::store::files::pins::files(&medium).unwrap(), Vec::<String>::new());
            let (taken, said) = (medium.taken_bytes(), store.stats().unwrap().disk_bytes);
            // Of an lsm, a merge that was given up leaves files until the next.
            let exact = KIND.get() == StorageKind::Log;
            assert!(taken <= said || !exact, "{taken} bytes are taken, and {said} said");
        }
        assert!(pinned > 5 && returned > 2 && reopened > 2, "{pinned} {returned} {reopened}");
    });
}

/// A store of some commits of which one that is kept no more is pinned as `old`, and what it has.
fn with_old_pin(seed: u64) -> (SimMedium, Points, Rows) {
    let (medium, mut random, mut rows) = (SimMedium::new(seed), Random(seed), Rows::default());
    let mut points = Points::new();
    let store = open(&medium, options(2)).unwrap();
    for step in 1..=9 {
        change(&store, &mut rows, &mut random).unwrap();
        commit(&store, step, &mut random).unwrap();
        points.insert(step, rows.clone());
        if step == 3 {
            store.pin(3, "old").unwrap();
        }
    }
    store.close().unwrap();
    (medium, points, rows)
}

/// Cuts the power after every so many operations of `act`, and looks at what is left: the pins of
/// before or of afterwards, all of them whole, and a store that goes on. Returns how many
/// operations there were.
fn cut_everywhere(
    before: &Names,
    after: &Names,
    every: u64,
    act: &dyn Fn(&SimMedium) -> Result<()>,
) -> u64 {
    let (made, points, _) = with_old_pin(1);
    let mut operation = 1;
    loop {
        let machine = made.reboot(operation);
        machine.power_cut_after(operation);
        let acted = act(&machine);
        // Operations after the call, such as the removal of a hold, may be cut, too.
        assert!(acted.is_ok() || machine.power_is_off(), "cut {operation}: {acted:?}");
        {
            let what = format!("cut {operation}");
            let survivor = machine.reboot(operation);
            let store = open(&survivor, options(2)).unwrap_or_else(|e| panic!("{what}: {e}"));
            let last = store.last_commit().unwrap().step;
            let mut rows = points[&last].clone();
            check(&store, &rows, &what);
            let found = names(&store);
            assert!(found == *after || (acted.is_err() && found == *before), "{what}: {found:?}");
            let mut random = Random(operation);
            for step in 50..53 {
                change(&store, &mut rows, &mut random).unwrap();
                commit(&store, step, &mut random).unwrap();
            }
            check(&store, &rows, &what);
            check_pins(&survivor, &found, &points, &what);
            drop(store);
            check_pins(&survivor, &found, &points, &what);
            let there = crate::store::files::pins::files(&survivor).unwrap().len();
            let steps: std::collections::BTreeSet<u64> = found.values().copied().collect();
            assert_eq!(there, steps.len(), "{what}: files of {found:?}");
        }
        if !machine.power_is_off() {
            return operation;
        }
        operation += every;
    }
}

fn map(pins: &[(&str, u64)]) -> Names {
    pins.iter().map(|(name, step)| ((*name).to_owned(), *step)).collect()
}

#[test]
fn a_power_cut_at_any_operation_leaves_a_pin_whole_or_none() {
    each_kind(|| {
        let old = map(&[("old", 3)]);
        let both = map(&[("best", 8), ("old", 3)]);
        // Fewer cuts for other kinds: nothing that is written here differs by kind.
        let every = stride(if KIND.get() == StorageKind::Log { 3 } else { 7 });
        let cuts = cut_everywhere(&old, &both, every, &|medium| {
            open(medium, options(2))?.pin(8, "best").map(drop)
        });
        assert!(cuts > 20, "{cuts} cuts of a pin");
        let moved = map(&[("old", 9)]);
        cut_everywhere(&old, &moved, every, &|medium| {
            open(medium, options(2))?.pin(9, "old").map(drop)
        });
        let cuts = cut_everywhere(&old, &Names::new(), every, &|medium| {
            open(medium, options(2))?.unpin("old")
        });
        assert!(cuts > 8, "{cuts} cuts of an unpin");
    });
}

#[test]
fn a_power_cut_at_any_operation_of_the_first_pin_leaves_a_store_that_opens() {
    each_kind(|| {
        let (made, mut random, mut rows) = (SimMedium::new(3), Random(3), Rows::default());
        let store = open(&made, options(2)).unwrap();
        for step in 1..=3 {
            change(&store, &mut rows, &mut random).unwrap();
            commit(&store, step, &mut random).unwrap();
        }
        drop(store);
        let points = Points::from([(3, rows.clone())]);
        for operation in (1..).step_by(stride(3) as usize) {
            let machine = made.reboot(operation);
            machine.power_cut_after(operation);
            let pinned = open(&machine, options(2)).and_then(|store| store.pin(3, "first"));
            let what = format!("cut {operation}");
            let survivor = machine.reboot(operation);
            let store = open(&survivor, options(2)).unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&store, &rows, &what);
            let found = names(&store);
            assert!(pinned.is_err() || found.len() == 1, "{what}: {found:?}");
            check_pins(&survivor, &found, &points, &what);
            store.pin(3, "again").unwrap_or_else(|e| panic!("{what}: {e}"));
            if !machine.power_is_off() {
                assert!(operation > 20, "{operation} operations");
                break;
            }
        }
    });
}

#[test]
fn a_power_cut_at_any_operation_of_going_back_leaves_the_newest_commit_or_the_pinned_one() {
    each_kind(|| {
        let (made, points, _) = with_old_pin(2);
        let mut both = std::collections::BTreeSet::new();
        let mut operation = 1;
        loop {
            let machine = made.reboot(operation);
            machine.power_cut_after(operation);
            let went = open(&machine, at_pin("old", false, 2)).and_then(|store| {
                change(&store, &mut points[&3].clone(), &mut Random(1))?;
                store.commit(70, "", &[]).map(drop)
            });
            assert!(went.is_ok() || machine.power_is_off(), "cut {operation}: {went:?}");
            for reboot in 0..2 {
                let what = format!("cut {operation}, reboot {reboot}");
                let survivor = machine.reboot(reboot);
                check_pins(&survivor, &map(&[("old", 3)]), &points, &what);
                let store = open(&survivor, options(2)).unwrap_or_else(|e| panic!("{what}: {e}"));
                let last = store.last_commit().unwrap().step;
                assert!(went.is_err() || last == 70, "{what}: {last}");
                both.insert(last);
                let mut random = Random(operation);
                if last == 70 {
                    continue;
                }
                let mut rows = points[&last].clone();
                check(&store, &rows, &what);
                for step in 80..84 {
                    change(&store, &mut rows, &mut random).unwrap();
                    commit(&store, step, &mut random).unwrap();
                }
                drop(store);
                let store = open(&survivor, options(2)).unwrap_or_else(|e| panic!("{what}: {e}"));
                check(&store, &rows, &what);
                check_pins(&survivor, &map(&[("old", 3)]), &points, &what);
            }
            if !machine.power_is_off() {
                break;
            }
            operation += stride(if KIND.get() == StorageKind::Log { 5 } else { 11 });
        }
        let found: Vec<u64> = both.into_iter().collect();
        assert!(found == [3, 9, 70] || KIND.get() != StorageKind::Log, "{found:?}");
    });
}

// Commits between the pinned one and those that are kept were listed, though they had been dropped.
#[test]
fn a_power_cut_while_going_back_to_a_pin_lists_no_commit_that_had_been_dropped() {
    each_kind(|| {
        let (made, points, _) = with_old_pin(2);
        // The record of commit 8 keeps 7, which 9 has dropped: the head alone says so.
        let store = open(&made, StoreOptions { step: Some(8), ..options(2) }).unwrap();
        change(&store, &mut points[&8].clone(), &mut Random(1)).unwrap();
        drop(store);
        let mut seen = std::collections::BTreeSet::new();
        for operation in (1..).step_by(stride(3) as usize) {
            let machine = made.reboot(operation);
            machine.power_cut_after(operation);
            let went = open(&machine, at_pin("old", false, 2))
                .and_then(|store| change(&store, &mut points[&3].clone(), &mut Random(1)));
            let store = open(&machine.reboot(operation), options(2)).unwrap();
            let listed: Vec<u64> = store.commits().iter().map(|commit| commit.step).collect();
            assert!([[8], [3]].iter().any(|one| listed == one), "cut {operation}: {listed:?}");
            check(&store, &points[&listed[0]], &format!("cut {operation}"));
            seen.insert(listed[0]);
            if !machine.power_is_off() {
                assert!(went.is_ok(), "{went:?}");
                break;
            }
        }
        assert_eq!(seen.len(), 2, "{seen:?}");
    });
}

#[test]
fn going_back_is_refused_while_later_commits_are_pinned() {
    each_kind(|| {
        let (medium, points, _) = with_old_pin(4);
        let store = open(&medium, options(2)).unwrap();
        store.pin(9, "last").unwrap();
        drop(store);
        let by_step = StoreOptions { step: Some(8), ..options(2) };
        for asked in [at_pin("old", false, 2), by_step] {
            let error = open(&medium, asked).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
            assert!(error.message().contains("'last' (step 9)"), "{error}");
        }
        let store = open(&medium, options(2)).unwrap();
        store.unpin("last").unwrap();
        let unknown = store.unpin("last").unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown}");
        assert!(unknown.message().contains("'old' (step 3)"), "{unknown}");
        drop(store);
        let store = open(&medium, at_pin("old", false, 2)).unwrap();
        check(&store, &points[&3], "back");
        // Nothing is lost until the next change.
        drop(store);
        assert_eq!(open(&medium, options(2)).unwrap().last_commit().unwrap().step, 9);
        let missing = open(&medium, at_pin("none", true, 2)).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
        assert!(missing.message().contains("'old' (step 3)"), "{missing}");
    });
}

#[test]
fn a_store_that_goes_back_from_under_pins_loses_none_of_them_and_refuses_changes_until_they_go() {
    each_kind(|| {
        let (medium, points, _) = with_old_pin(4);
        let store = open(&medium, options(2)).unwrap();
        store.pin(8, "best").unwrap();
        store.pin(9, "last").unwrap();
        store.check_may_go_back(3, true).unwrap();
        drop(store);
        let back = |name| StoreOptions { later_pins_stay: true, ..at_pin(name, false, 2) };
        let all = map(&[("old", 3), ("best", 8), ("last", 9)]);
        let store = open(&medium, back("old")).unwrap();
        check(&store, &points[&3], "back");
        assert_eq!(names(&store), all);
        let (mut rows, mut random) = (points[&3].clone(), Random(4));
        for name in ["best", "last"] {
            let error = change(&store, &mut rows.clone(), &mut random).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
            assert!(error.message().contains("'last' (step 9)"), "{error}");
            let error = commit(&store, 4, &mut random).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
            // One that is pinned gets a name without a change.
            store.pin(3, "more").unwrap();
            assert_eq!(names(&store)["more"], 3);
            store.pin(3, "old").unwrap();
            let unknown = store.unpin("none").unwrap_err();
            assert!(
                [ErrorKind::Misuse, ErrorKind::NotFound].contains(&unknown.kind()),
                "{unknown}"
            );
            drop(open(&medium, at_pin("last", true, 2)).unwrap());
            check(&store, &points[&3], "refused");
            store.unpin(name).unwrap();
        }
        drop(store);
        // They are gone by name, and the commits among the kept ones stay until the next change.
        let store = open(&medium, options(2)).unwrap();
        let two = map(&[("old", 3), ("more", 3)]);
        assert_eq!((store.last_commit().unwrap().step, names(&store)), (9, two));
        check(&store, &points[&9], "the last");
        store.unpin("more").unwrap();
        drop(store);
        let store = open(&medium, back("old")).unwrap();
        change(&store, &mut rows, &mut random).unwrap();
        commit(&store, 4, &mut random).unwrap();
        drop(store);
        check(&open(&medium, options(2)).unwrap(), &rows, "gone on");
        check_pins(&medium, &map(&[("old", 3)]), &points, "gone on");
    });
}

#[test]
fn a_reader_of_a_commit_that_is_unpinned_keeps_it_until_it_closes_or_moves() {
    each_kind(|| {
        let (medium, points, mut rows) = with_old_pin(5);
        let writer = open(&medium, options(2)).unwrap();
        let mut random = Random(5);
        let reader = open(&medium, at_pin("old", true, 2)).unwrap();
        let other = open(&medium, at_pin("old", true, 2)).unwrap();
        assert!(reader.is_held());
        writer.unpin("old").unwrap();
        assert_eq!(names(&writer), Names::new());
        assert!(open(&medium, at_pin("old", true, 2)).is_err());
        for step in 10..30 {
            change(&writer, &mut rows, &mut random).unwrap();
            commit(&writer, step, &mut random).unwrap();
        }
        check(&reader, &points[&3], "after it was unpinned");
        assert_eq!(reader.refresh().unwrap().unwrap().step, 29);
        check(&reader, &rows, "the newest");
        drop(other);
        let files = || crate::store::files::pins::files(&medium).unwrap().len();
        assert_eq!(files(), 1);
        change(&writer, &mut rows, &mut random).unwrap();
        commit(&writer, 30, &mut random).unwrap();
        assert_eq!(files(), 0, "the next commit lets it go");
    });
}

#[test]
fn a_later_commit_that_was_unpinned_is_in_the_way_of_going_back_only_while_a_reader_has_it() {
    each_kind(|| {
        let (medium, points, _) = with_old_pin(12);
        let store = open(&medium, options(2)).unwrap();
        store.pin(9, "last").unwrap();
        let reader = open(&medium, at_pin("last", true, 2)).unwrap();
        store.unpin("last").unwrap();
        let error = store.check_may_go_back(3, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        assert!(error.message().contains("holds commit 9"), "{error}");
        drop(store);
        assert_eq!(open(&medium, at_pin("old", false, 2)).err().unwrap().kind(), ErrorKind::Locked);
        drop(reader);
        let files = || crate::store::files::pins::files(&medium).unwrap().len();
        assert_eq!(files(), 2, "it goes with the next change");
        let (mut rows, mut random) = (points[&3].clone(), Random(12));
        let store = open(&medium, at_pin("old", false, 2)).unwrap();
        assert_eq!(files(), 2, "nothing is lost until the next change");
        for step in 4..12 {
            change(&store, &mut rows, &mut random).unwrap();
            commit(&store, step, &mut random).unwrap();
            assert_eq!(files(), 1);
        }
        drop(store);
        check(&open(&medium, options(2)).unwrap(), &rows, "gone on");
        check_pins(&medium, &map(&[("old", 3)]), &points, "gone on");
    });
}

#[test]
fn readers_move_to_pinned_commits_and_the_writer_opens_again_beside_them() {
    each_kind(|| {
        let (medium, points, rows) = with_old_pin(6);
        let reader = open(&medium, StoreOptions { read_only: true, ..options(2) }).unwrap();
        let moved = reader.refresh_to(Some(3), &mut |go| go()).unwrap().unwrap();
        assert_eq!(moved.step, 3);
        check(&reader, &points[&3], "moved back");
        // One that is older than the kept commits, but known.
        let writer = open(&medium, options(2)).unwrap();
        let mut after = rows.clone();
        change(&writer, &mut after, &mut Random(1)).unwrap();
        commit(&writer, 10, &mut Random(1)).unwrap();
        check(&reader, &points[&3], "beside a writer");
        assert_eq!(reader.refresh().unwrap().unwrap().step, 10);
        check(&reader, &after, "moved on");
    });
}

#[test]
fn readers_may_keep_a_commit_that_was_unpinned_as_long_as_the_bound_allows() {
    each_kind(|| {
        let (medium, points, mut rows) = with_old_pin(7);
        let bounded = StoreOptions { max_held_bytes: Some(0), ..options(2) };
        let writer = open(&medium, bounded).unwrap();
        let reader = open(&medium, at_pin("old", true, 2)).unwrap();
        check(&reader, &points[&3], "while it is pinned");
        let mut random = Random(1);
        change(&writer, &mut rows, &mut random).unwrap();
        commit(&writer, 10, &mut random).unwrap();
        assert!(reader.is_held(), "what is pinned is not the reader's");
        writer.unpin("old").unwrap();
        assert!(!reader.is_held());
        assert_eq!(crate::store::files::pins::files(&medium).unwrap(), Vec::<String>::new());
    });
}

#[test]
fn what_pins_keep_is_counted_and_named_when_a_store_is_full() {
    each_kind(|| {
        let bound = 3 << 20;
        let bounded = || StoreOptions { max_disk_bytes: Some(bound), ..super::options(1 << 20) };
        let medium = SimMedium::new(8);
        let store = Store::open_on(Arc::new(medium.clone()), bounded()).unwrap();
        let table = store.table(&spec("t", None, OptimizerKind::Sgd)).unwrap();
        let write = |value: f32| -> Result<()> {
            for first in (0..5000u64).step_by(500) {
                let keys: Vec<u64> = (first..first + 500).collect();
                store.put(&[put_of(table, &keys, &vec![value; keys.len() * DIM])])?;
            }
            Ok(())
        };
        let mut full = None;
        let mut step = 0;
        while full.is_none() && step < 400 {
            step += 1;
            let name = format!("p{step}");
            let made = write(step as f32)
                .and_then(|()| store.commit(step, "", &[]).map(drop))
                .and_then(|()| store.pin(step, &name).map(drop));
            full = made.err();
            assert!(store.stats().unwrap().disk_bytes <= bound, "step {step}");
            assert!(medium.taken_bytes() <= bound, "step {step}");
        }
        let full = full.expect("pins fill the disk");
        assert_eq!(full.kind(), ErrorKind::Full, "{full}");
        assert!(full.message().contains("of pinned commits 'p"), "{full}");
        let pins = store.pins().unwrap();
        assert!(pins.len() > 1, "{pins:?}");
        // The first has rows that no other commit has any more.
        assert!(pins[0].bytes > 20_000, "{pins:?}");
        for pin in &pins {
            store.unpin(&pin.name).unwrap();
        }
        // Commits alone bring it back to work.
        for more in 0..12 {
            let _ = write(more as f32);
            store.commit(1000 + more, "", &[]).unwrap();
        }
        write(7.0).unwrap();
    });
}

#[test]
fn pins_of_tables_that_are_durable_by_update_are_refused() {
    with_kind(StorageKind::Pmem, || {
        let medium = SimMedium::new(9);
        let store = open(&medium, options(2)).unwrap();
        store.commit(1, "", &[]).unwrap();
        let error = store.pin(1, "best").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("pmem"), "{error}");
        let error = store.commit_pinned(2, "", &[], "best").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(store.last_commit().unwrap().step, 1, "refused before it is made");
    });
}

#[test]
fn pins_that_cannot_be_read_are_damage_to_a_writer_and_its_rows_stay() {
    each_kind(|| {
        let (medium, points, rows) = with_old_pin(10);
        for damage in ["missing", "garbled"] {
            let machine = medium.reboot(1);
            match damage {
                "missing" => machine.remove("pins").unwrap(),
                _ => machine.flip_bit("pins", 20),
            }
            let error = open(&machine, options(2)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage}: {error}");
            assert!(error.message().starts_with("pins"), "{damage}: {error}");
            let reader = open(&machine, StoreOptions { read_only: true, ..options(2) }).unwrap();
            check(&reader, &rows, damage);
        }
        // A pinned commit needs nothing of the journal.
        for name in medium.list("journal-").unwrap() {
            let file = medium.open(&name, OpenMode::ReadWrite).unwrap();
            (60..file.len().unwrap()).step_by(64).for_each(|at| medium.flip_bit(&name, at));
        }
        assert!(open(&medium, StoreOptions { read_only: true, ..options(2) }).is_err());
        check_pins(&medium, &map(&[("old", 3)]), &points, "without a journal");
    });
}

#[test]
fn older_builds_are_told_of_pins_and_a_store_without_them_is_as_it_was() {
    let version = |medium: &SimMedium| {
        let newest = medium.list("journal-").unwrap().into_iter().max().unwrap();
        let mut version = [0; 4];
        medium.open(&newest, OpenMode::ReadOnly).unwrap().read_at(&mut version, 8).unwrap();
        u32::from_le_bytes(version)
    };
    each_kind(|| {
        let (medium, _, _) = with_old_pin(11);
        assert_eq!(version(&medium), 3);
        let (medium, mut random, mut rows) = (SimMedium::new(11), Random(11), Rows::default());
        let store = open(&medium, options(2)).unwrap();
        for step in 1..=9 {
            change(&store, &mut rows, &mut random).unwrap();
            commit(&store, step, &mut random).unwrap();
        }
        let unknown = store.unpin("best").unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown}");
        assert!(unknown.message().contains("none is"), "{unknown}");
        drop(store);
        assert_eq!(version(&medium), if KIND.get() == StorageKind::Log { 1 } else { 2 });
        assert_eq!(medium.list("pin").unwrap(), Vec::<String>::new());
    });
}
