//! Changes between two commits, beside the difference of what a plain map had at both.

use super::super::sweeps::changes::Since;
use super::*;
use std::collections::BTreeSet;

/// A commit with so long a meta begins a new journal file.
const LONG: usize = 140 << 10;

type Rows = BTreeMap<(u16, u64), Vec<f32>>;

/// Rows by step.
type Points = BTreeMap<u64, Rows>;

fn reading(bytes: u64) -> StoreOptions {
    StoreOptions { read_only: true, ..options(bytes) }
}

fn of_step(step: u64) -> Since {
    Since::Step(step)
}

/// The changes that were read.
#[derive(Default)]
struct Given {
    to: u64,
    rows: Rows,
    deleted: BTreeSet<(u16, u64)>,
    batches: usize,
}

fn given(store: &Store, since: &Since, most: usize, removed_max: usize) -> Result<Given> {
    let mut changes = store.changes_within(since, None, removed_max)?;
    let mut given =
        Given { to: changes.commit().map_or(0, |commit| commit.step), ..Given::default() };
    while let Some(batch) = changes.next_batch(most, true)? {
        let info = store.table_info(store.find_table(&batch.table).unwrap()).unwrap();
        assert!(batch.keys.len() <= most && batch.deleted.len() <= most);
        assert!(!batch.keys.is_empty() || !batch.deleted.is_empty());
        for (i, key) in batch.keys.iter().enumerate() {
            let mut row = batch.values[i * DIM..][..DIM].to_vec();
            row.extend_from_slice(&batch.state[i * info.state_words..][..info.state_words]);
            let again = given.rows.insert((info.id.0, *key), row);
            assert_eq!(again, None, "key {key} of table {} twice", batch.table);
        }
        for key in &batch.deleted {
            assert!(given.deleted.insert((info.id.0, *key)), "key {key} deleted twice");
        }
        given.batches += 1;
    }
    Ok(given)
}

/// Checks what was given against the difference; returns how many rows had not changed.
fn check_difference(given: &Given, points: &Points, since: Option<u64>, what: &str) -> usize {
    let none = Rows::new();
    let (before, after) = (since.map_or(&none, |step| &points[&step]), &points[&given.to]);
    for (key, row) in &given.rows {
        assert_eq!(Some(row), after.get(key), "{what}: row {key:?}");
    }
    let mut unchanged = given.rows.len();
    for (key, row) in after.iter().filter(|(key, row)| before.get(key) != Some(row)) {
        assert_eq!(given.rows.get(key), Some(row), "{what}: row {key:?} is not given");
        unchanged -= 1;
    }
    for key in &given.deleted {
        assert!(!after.contains_key(key), "{what}: {key:?} is not deleted");
    }
    for key in before.keys().filter(|key| !after.contains_key(key)) {
        assert!(given.deleted.contains(key), "{what}: {key:?} was deleted");
    }
    unchanged
}

/// Follows changes since a step, where there is a way back to it.
fn follow(store: &Store, points: &Points, since: u64, random: &mut Random, what: &str) -> bool {
    let what = format!("{what} since {since}");
    let most = [1, 7, 100, 100_000][random.below(4) as usize];
    let most = if most == 1 && random.below(8) > 0 { 33 } else { most };
    let removed_max = [10, 90, 1 << 20][random.below(3) as usize];
    match given(store, &of_step(since), most, removed_max) {
        Ok(given) => {
            check_difference(&given, points, Some(since), &what);
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: {error}");
            false
        }
    }
}

#[test]
fn changes_are_the_difference_of_two_commits_whatever_happened_between_them() {
    each_kind(|| {
        let fixture = Fixture::new();
        let (mut found, mut pinned, mut returned, mut reopened, mut moved) = (0, 0, 0, 0, 0);
        let seeds = seeds(2) as usize;
        // The first two move no rows of a log.
        for seed in 2..2 + seeds as u64 {
            let (medium, mut random) = (SimMedium::new(seed), Random(seed));
            let bytes = [1 << 20, 2 << 20][seed as usize % 2];
            let mut store = fixture.open(&medium, options(bytes));
            let (mut model, mut points) = (Model::default(), Points::new());
            let mut pins: BTreeSet<u64> = BTreeSet::new();
            for step in 1..45u64 {
                let what = format!("seed {seed} step {step}");
                // So many that cleaning begins, every other time.
                let verbs = if seed % 2 == 0 { 40 } else { 5 };
                for _ in 0..verbs + random.below(20) {
                    fixture.step(&store, &mut model, &mut random);
                }
                let meta = "m".repeat(LONG * (random.below(4) == 0) as usize);
                if random.below(6) == 0 {
                    let name = format!("p{step}");
                    store.commit_pinned(step, &meta, &[], &name).unwrap();
                    pins.insert(step);
                } else {
                    store.commit(step, &meta, &[]).unwrap();
                }
                points.insert(step, model.rows.clone());
                // A change that no commit has is not given yet.
                let committed = model.clone();
                fixture.step(&store, &mut model, &mut random);
                let steps: Vec<u64> = points.keys().copied().collect();
                for _ in 0..2 {
                    let since = steps[random.below(steps.len() as u64) as usize];
                    let is_there = follow(&store, &points, since, &mut random, &what);
                    assert!(is_there || !pins.contains(&since), "{what}: {since} is pinned");
                    found += usize::from(is_there);
                    pinned += usize::from(is_there && pins.contains(&since));
                }
                let kept: Vec<u64> = store.commits().iter().map(|commit| commit.step).collect();
                match random.below(6) {
                    0 => {
                        moved += store.stats().unwrap().rows_moved;
                        drop(store);
                        store = fixture.open(&medium, options(bytes));
                        model = committed;
                        reopened += 1;
                    }
                    1 if kept.len() > 1 && pins.iter().all(|pin| *pin <= kept[0]) => {
                        let back = kept[0];
                        drop(store);
                        let at = StoreOptions { step: Some(back), ..options(bytes) };
                        store = Store::open_on(Arc::new(medium.clone()), at).unwrap();
                        model = Model { rows: points[&back].clone(), ..model };
                        let counts = store.tables().into_iter();
                        model.updates = counts.map(|info| (info.id.0, info.updates)).collect();
                        points.retain(|step, _| *step <= back);
                        pins.retain(|step| *step <= back);
                        returned += 1;
                    }
                    _ => {}
                }
                if step % 3 == 0 {
                    let reading = reading(bytes + (256 << 10));
                    let reader = Store::open_on(Arc::new(medium.clone()), reading).unwrap();
                    let last = reader.last_commit().unwrap().step;
                    if !points.contains_key(&last) {
                        // A commit that the store went back from is there until the first change.
                        continue;
                    }
                    assert!(follow(&reader, &points, last, &mut random, &what));
                    let before = kept.iter().copied().filter(|step| points.contains_key(step));
                    for since in before.collect::<Vec<_>>() {
                        assert!(follow(&reader, &points, since, &mut random, &what));
                    }
                    let all = given(&reader, &Since::Nothing, 100, 9).unwrap();
                    assert_eq!(all.rows, points[&last], "{what}: all rows");
                    assert_eq!(all.deleted, BTreeSet::new());
                }
            }
            moved += store.stats().unwrap().rows_moved;
        }
        assert!(found > 15 * seeds && pinned >= seeds, "{found} found, {pinned} pinned");
        assert!(returned >= seeds && reopened >= seeds, "{returned} back, {reopened} reopened");
        assert!(moved > 100, "{moved} rows were moved");
    });
}

/// A growing and a dense table of one value a row.
fn plain(medium: &SimMedium, options: StoreOptions) -> Store {
    let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
    for (name, rows) in [("dense", Some(4000)), ("growing", None)] {
        store.table(&spec(name, rows, OptimizerKind::None)).unwrap();
    }
    store
}

fn put(store: &Store, table: u16, keys: &[u64], value: f32) {
    let values = vec![value; keys.len() * DIM];
    store.put(&[put_of(TableId(table), keys, &values)]).unwrap();
}

#[test]
fn few_changes_of_many_rows_read_few_pages() {
    each_kind(|| {
        let medium = SimMedium::new(3);
        let store = plain(&medium, StoreOptions { keep: 2, ..options(2 << 20) });
        let keys: Vec<u64> = (0..4000).collect();
        (0..2).for_each(|table| put(&store, table, &keys, 1.0));
        store.commit(1, "", &[]).unwrap();
        let (some, gone): (Vec<u64>, Vec<u64>) =
            ((0..4000).step_by(100).collect(), vec![7, 8, 9, 2001]);
        for table in 0..2 {
            put(&store, table, &some, 2.0);
            store.delete(TableId(table), &gone).unwrap();
        }
        store.commit(2, "", &[]).unwrap();
        let reader = Store::open_on(Arc::new(medium.clone()), reading(2 << 20)).unwrap();
        let found = given(&reader, &of_step(1), 1000, 1 << 20).unwrap();
        let read = reader.stats().unwrap().bytes_read;
        let keys = |of: &[u64]| -> BTreeSet<(u16, u64)> {
            (0..2).flat_map(|table| of.iter().map(move |key| (table, *key))).collect()
        };
        assert_eq!(found.rows.keys().copied().collect::<BTreeSet<_>>(), keys(&some));
        assert_eq!(found.deleted, keys(&gone));
        given(&reader, &Since::Nothing, 1000, 1000).unwrap();
        let all = reader.stats().unwrap().bytes_read - read;
        // Rows that were merged since count as written since, and deleted keys are looked up.
        let most = if KIND.get() == StorageKind::Log { all / 10 } else { all + all / 8 };
        assert!(read <= most, "{read} bytes of {all}");
    });
}

#[test]
fn a_step_that_nothing_leads_back_to_is_not_found_with_the_way_out() {
    each_kind(|| {
        let medium = SimMedium::new(4);
        let store = plain(&medium, options(1 << 20));
        let error = given(&store, &of_step(0), 10, 10).err().unwrap();
        assert!(error.message().contains("has no commit yet"), "{error}");
        let keys: Vec<u64> = (0..700).collect();
        let long = "m".repeat(LONG);
        for step in 1..12 {
            (0..2).for_each(|table| put(&store, table, &keys, step as f32));
            store.commit(step, &long, &[]).unwrap();
            if step == 2 {
                store.pin(2, "two").unwrap();
            }
        }
        for missing in [1, 3, 40] {
            let error = given(&store, &of_step(missing), 10, 10).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            for text in ["open at step 11", "[11, 10", "'two' (step 2)", "since=None", "pin"] {
                assert!(error.message().contains(text), "{text}: {error}");
            }
        }
        assert_eq!(given(&store, &of_step(2), 500, 10).unwrap().rows.len(), 1400);
        assert_eq!(given(&store, &of_step(11), 500, 10).unwrap().batches, 0);
        // Of one table, and of one that no commit has yet.
        let late = store.table(&spec("late", Some(9), OptimizerKind::None)).unwrap();
        let mut some = store.changes(&of_step(10), Some(&[TableId(1), late])).unwrap();
        while let Some(batch) = some.next_batch(100, false).unwrap() {
            assert_eq!((batch.table.as_str(), batch.state.len()), ("growing", 0));
        }
    });
}

// A follower took another commit of the same step for the one that it had followed.
#[test]
fn a_commit_of_a_time_line_that_was_left_is_told_from_another_of_its_step() {
    each_kind(|| {
        let medium = SimMedium::new(5);
        let store = plain(&medium, options(1 << 20));
        (1..4).for_each(|step| {
            put(&store, 0, &[step], step as f32);
            store.commit(step, "", &[]).unwrap();
        });
        let CommitInfo { sequence, step, unix_time, bytes_written, .. } =
            store.last_commit().unwrap();
        let third = Since::Commit { sequence, step, unix_time, bytes_written };
        drop(store);
        let at = StoreOptions { step: Some(2), ..options(1 << 20) };
        let store = Store::open_on(Arc::new(medium.clone()), at).unwrap();
        put(&store, 0, &[9], 9.0);
        store.commit(7, "", &[]).unwrap();
        put(&store, 0, &[10], 9.0);
        store.commit(3, "", &[]).unwrap();
        let error = given(&store, &third, 10, 10).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.message().contains("has gone back since"), "{error}");
        assert_eq!(given(&store, &of_step(3), 10, 10).unwrap().batches, 0);
        assert_eq!(given(&store, &of_step(2), 10, 10).unwrap().rows.len(), 2);
        let CommitInfo { sequence, step, unix_time, bytes_written, .. } =
            store.commits()[0].clone();
        let seventh = Since::Commit { sequence, step, unix_time, bytes_written };
        assert_eq!(given(&store, &seventh, 10, 10).unwrap().rows.len(), 1);
    });
}

#[test]
fn changes_stay_those_of_their_commit_while_the_writer_goes_on() {
    each_kind(|| {
        let medium = SimMedium::new(6);
        let store = plain(&medium, StoreOptions { keep: 1, ..options(1 << 20) });
        let keys: Vec<u64> = (0..1500).collect();
        (0..2).for_each(|table| put(&store, table, &keys, 1.0));
        store.commit(1, "", &[]).unwrap();
        (0..2).for_each(|table| put(&store, table, &keys[..700], 2.0));
        store.delete(TableId(1), &keys[1400..]).unwrap();
        store.commit(2, "", &[]).unwrap();
        let reader = Store::open_on(Arc::new(medium.clone()), reading(1 << 20)).unwrap();
        let mut of_writer = store.changes(&of_step(1), None).unwrap();
        let mut of_reader = reader.changes_within(&of_step(1), None, 20).unwrap();
        let long = "m".repeat(LONG);
        for step in 3..12 {
            (0..2).for_each(|table| put(&store, table, &keys, step as f32));
            store.commit(step, &long, &[]).unwrap();
        }
        for changes in [&mut of_writer, &mut of_reader] {
            let (mut rows, mut deleted) = (0, 0);
            while let Some(batch) = changes.next_batch(64, false).unwrap() {
                assert!(batch.values.iter().all(|value| *value == 2.0));
                (rows, deleted) = (rows + batch.keys.len(), deleted + batch.deleted.len());
            }
            assert_eq!((rows, deleted), (1400, 100));
        }
        drop((of_writer, of_reader));
        // A reader that moves on ends its changes.
        let mut changes = reader.changes(&of_step(1), None).unwrap();
        reader.refresh().unwrap();
        let error = changes.next_batch(64, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(crate::store::files::holds::living(&medium).unwrap().len() == 1);
    });
}

#[test]
fn rows_without_versions_are_refused_with_the_reason() {
    let medium = SimMedium::new(7);
    let store = Store::open_on(Arc::new(medium.clone()), options(4 << 20)).unwrap();
    let usual = store.table(&spec("usual", Some(100), OptimizerKind::None)).unwrap();
    with_kind(StorageKind::Pmem, || {
        store.table(&spec("mapped", Some(100), OptimizerKind::None)).unwrap();
    });
    put(&store, 0, &[1, 2], 1.0);
    store.commit(1, "", &[]).unwrap();
    put(&store, 0, &[2, 3], 2.0);
    store.commit(2, "", &[]).unwrap();
    let error = given(&store, &of_step(1), 10, 10).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("table 'mapped'") && error.message().contains("versions"));
    let mut changes = store.changes(&of_step(1), Some(&[usual])).unwrap();
    assert_eq!(changes.next_batch(10, false).unwrap().unwrap().keys.len(), 2);
}
