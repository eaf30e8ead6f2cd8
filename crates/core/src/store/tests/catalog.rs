//! Tables that are dropped, renamed and grown, beside a plain map.

use super::*;
use crate::hash::table_salt;
use crate::store::journal::numbers;
use crate::store::sweeps::check::check_commit;

/// A table: its first name, its ids and its rows, all of whose values are equal.
#[derive(Clone, Debug, PartialEq)]
struct Plain {
    first: String,
    ids: Option<u64>,
    rows: BTreeMap<u64, f32>,
}

/// All tables by name.
type Catalog = BTreeMap<String, Plain>;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The pieces of an index of so many ids take some commits.
const IDS: u64 = 30_000;
const IDS_MAX: u64 = 90_000;
/// Commits with so long a meta begin a new journal file.
const META_BYTES: usize = 140 << 10;

fn plain_options(keep: usize) -> StoreOptions {
    StoreOptions { keep, ..options(6 << 20) }
}

fn open(medium: &SimMedium, options: StoreOptions) -> Result<Store> {
    Store::open_on(Arc::new(medium.clone()), options)
}

fn find(store: &Store, name: &str) -> TableId {
    store.find_table(name).unwrap_or_else(|| panic!("there is no table {name}"))
}

fn put(store: &Store, table: TableId, keys: &[u64], value: f32) -> Result<()> {
    let values = vec![value; keys.len() * DIM];
    store.put(&[put_of(table, keys, &values)]).map(drop)
}

fn get(store: &Store, table: TableId, keys: &[u64]) -> Result<Vec<f32>> {
    let mut values = vec![9.0; keys.len() * DIM];
    let (batch, state) = ((&mut values).into(), None);
    store.get(&mut [GetBatch { table, keys, values: batch, state }])?;
    Ok(values)
}

/// The row of a key that was never written.
fn initial(first_name: &str, key: u64) -> Vec<f32> {
    let spec = spec(first_name, None, OptimizerKind::Sgd);
    let mut values = vec![0.0; DIM];
    spec.initializer.fill(0, table_salt(first_name), key, &mut values);
    values
}

fn sample(ids: Option<u64>, random: &mut Random, most: u64) -> Vec<u64> {
    let n = 1 + random.below(most);
    let key = |at: u64| ids.map_or(crate::hash::mix(at % 90, 3), |ids| at % ids);
    (0..n).map(|_| key(random.next())).collect()
}

/// Everything is as the map has it.
fn check(store: &Store, catalog: &Catalog, what: &str) {
    let names: Vec<String> = store.tables().into_iter().map(|info| info.spec.name).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!(sorted, catalog.keys().cloned().collect::<Vec<_>>(), "{what}");
    for (name, plain) in catalog {
        let table = find(store, name);
        let info = store.table_info(table).unwrap();
        let said = (info.spec.num_embeddings, info.spec.hashed_name(), info.rows);
        let expected = (plain.ids, plain.first.as_str(), plain.rows.len() as u64);
        assert_eq!(said, expected, "{what}: table {name}");
        let others = sample(plain.ids, &mut Random(plain.rows.len() as u64), 40);
        let last = plain.ids.map(|ids| ids - 1);
        let keys: Vec<u64> = plain.rows.keys().copied().chain(others).chain(last).collect();
        let values = get(store, table, &keys).unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        for (key, found) in keys.iter().zip(values.chunks(DIM)) {
            let written = plain.rows.get(key).map(|value| vec![*value; DIM]);
            let expected = written.unwrap_or_else(|| initial(&plain.first, *key));
            assert_eq!(found, expected, "{what}: table {name} key {key}");
        }
        if let Some(ids) = plain.ids {
            let error = get(store, table, &[ids]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::KeyRange, "{what}: {error}");
        }
    }
}

/// One random verb on store and map.
fn step(store: &Store, catalog: &mut Catalog, random: &mut Random) -> Result<()> {
    let is_there = |name: &&str| catalog.contains_key(*name);
    let pick = |of: Vec<&'static str>, random: &mut Random| match of.len() {
        0 => None,
        n => Some(of[random.below(n as u64) as usize]),
    };
    let there = pick(NAMES.into_iter().filter(is_there).collect(), random);
    let free = pick(NAMES.into_iter().filter(|name| !is_there(name)).collect(), random);
    let verb = random.below(14);
    if let (0..=2, Some(name)) = (verb, free) {
        let ids = (random.below(3) > 0).then_some(IDS);
        let kind = [OptimizerKind::Sgd, OptimizerKind::Adagrad][random.below(2) as usize];
        store.table(&spec(name, ids, kind))?;
        let plain = Plain { first: name.to_owned(), ids, rows: BTreeMap::new() };
        catalog.insert(name.to_owned(), plain);
        return Ok(());
    }
    let Some(name) = there else { return Ok(()) };
    let table = find(store, name);
    match (verb, free) {
        (3, _) => {
            store.drop_table(table)?;
            catalog.remove(name);
        }
        (4, Some(new)) => {
            store.rename_table(table, new)?;
            let plain = catalog.remove(name).unwrap();
            catalog.insert(new.to_owned(), plain);
        }
        (5..=6, _) => {
            let plain = catalog.get_mut(name).unwrap();
            if let Some(ids) = plain.ids.filter(|ids| *ids < IDS_MAX) {
                let more = ids + 1 + random.below(20_000);
                store.grow_table(table, more)?;
                plain.ids = Some(more);
            }
        }
        _ => {
            let plain = catalog.get_mut(name).unwrap();
            let (keys, gone) = (sample(plain.ids, random, 200), sample(plain.ids, random, 9));
            let value = random.value();
            put(store, table, &keys, value)?;
            plain.rows.extend(keys.iter().map(|key| (*key, value)));
            store.delete(table, &gone)?;
            plain.rows.retain(|key, _| !gone.contains(key));
        }
    }
    Ok(())
}

/// Random verbs with commits, each of which begins a journal file as often as not; the catalog of
/// each step is noted before it is committed.
fn run(
    store: &Store,
    catalog: &mut Catalog,
    points: &mut BTreeMap<u64, Catalog>,
    (steps, verbs): (std::ops::Range<u64>, u64),
    random: &mut Random,
) -> Result<()> {
    for at in steps {
        for _ in 0..verbs {
            step(store, catalog, random)?;
        }
        points.insert(at, catalog.clone());
        let meta = "m".repeat(META_BYTES * random.below(2) as usize);
        store.commit(at, &meta, &[])?;
    }
    Ok(())
}

#[test]
fn random_catalogs_agree_with_a_plain_map_in_every_kept_commit_and_reader() {
    each_kind(|| {
        let (mut files, mut seen) = (0, 0);
        let seeds = seeds(1);
        for seed in 0..seeds {
            let medium = SimMedium::new(seed);
            let (mut random, mut points) = (Random(seed), BTreeMap::from([(0, Catalog::new())]));
            let mut store = open(&medium, plain_options(3)).unwrap();
            let mut catalog = Catalog::new();
            let read_only = || StoreOptions { read_only: true, ..plain_options(3) };
            let mut reader: Option<Store> = None;
            for life in 0..8 {
                let steps = life * 5 + 1..life * 5 + 6;
                for at in steps {
                    let one = (at..at + 1, 6);
                    run(&store, &mut catalog, &mut points, one, &mut random).unwrap();
                    check(&store, &catalog, &format!("seed {seed} step {at}"));
                    let reader = reader.get_or_insert_with(|| open(&medium, read_only()).unwrap());
                    reader.refresh().unwrap();
                    check(reader, &catalog, &format!("seed {seed}: a reader at step {at}"));
                    seen += 1;
                }
                files = files.max(*numbers(&medium).unwrap().last().unwrap());
                for _ in 0..5 {
                    step(&store, &mut catalog, &mut random).unwrap();
                }
                // Uncommitted changes are gone.
                store.close().unwrap();
                let last = life * 5 + 5;
                for back in 0..3 {
                    let at = StoreOptions { step: Some(last - back), ..read_only() };
                    let what = format!("seed {seed} opened at step {}", last - back);
                    let earlier = open(&medium, at).unwrap();
                    check(&earlier, &points[&(last - back)], &what);
                    let mut report = CheckReport::default();
                    check_commit(&earlier, &mut report, &mut |_, _| Ok(())).unwrap();
                    assert!(report.problems.is_empty(), "{what}: {:?}", report.problems);
                }
                // Going back needs nobody at a later commit.
                drop(reader.take());
                let to = last - random.below(2);
                let at = StoreOptions { step: Some(to), ..plain_options(3) };
                store = open(&medium, at).unwrap();
                catalog = points[&to].clone();
                check(&store, &catalog, &format!("seed {seed}: went on from {to}"));
            }
        }
        assert!(files > 5, "{files} journal files");
        assert_eq!(seen, 40 * seeds, "commits");
    });
}

#[test]
fn a_power_cut_at_any_write_leaves_the_catalog_of_a_commit() {
    each_kind(|| {
        let mut cuts = 0;
        for seed in 0..2 {
            let made = SimMedium::new(seed);
            let (mut random, mut points) = (Random(seed + 90), BTreeMap::new());
            let mut catalog = Catalog::new();
            let store = open(&made, plain_options(2)).unwrap();
            run(&store, &mut catalog, &mut points, (1..4, 12), &mut random).unwrap();
            store.close().unwrap();
            for cut in (1 + seed..).step_by(stride(11) as usize) {
                let machine = made.reboot(cut);
                machine.power_cut_after(cut);
                let (mut points, mut catalog) = (points.clone(), catalog.clone());
                let ended = open(&machine, plain_options(2)).and_then(|store| {
                    let random = &mut Random(seed * 1000 + 7);
                    run(&store, &mut catalog, &mut points, (4..8, 5), random)
                });
                let what = format!("seed {seed}: cut {cut}");
                assert!(ended.is_ok() || machine.power_is_off(), "{what}: {ended:?}");
                let after = machine.reboot(cut + 1);
                let store =
                    open(&after, plain_options(2)).unwrap_or_else(|e| panic!("{what}: {e}"));
                let step = store.last_commit().unwrap().step;
                check(&store, &points[&step], &format!("{what}: step {step}"));
                for earlier in store.commits() {
                    let at = StoreOptions {
                        read_only: true,
                        step: Some(earlier.step),
                        ..plain_options(2)
                    };
                    let reader = open(&after, at).unwrap_or_else(|e| panic!("{what}: {e}"));
                    check(&reader, &points[&earlier.step], &format!("{what}: {}", earlier.step));
                }
                // It goes on from there.
                let mut catalog = points[&step].clone();
                let random = &mut Random(cut);
                run(&store, &mut catalog, &mut points, (20..22, 4), random).unwrap();
                check(&store, &catalog, &what);
                cuts += 1;
                if ended.is_ok() {
                    break;
                }
            }
        }
        assert!(cuts * stride(11) > 150, "{cuts} cuts");
    });
}

#[test]
fn a_name_that_was_dropped_is_free_at_once_and_its_rows_are_never_those_of_the_next() {
    each_kind_or_direct(|| {
        for ids in [Some(300), None] {
            let medium = SimMedium::new(1);
            let store = open(&medium, plain_options(1)).unwrap();
            let asked = spec("t", ids, OptimizerKind::Sgd);
            let old = store.table(&asked).unwrap();
            let keys: Vec<u64> = (0..300).collect();
            put(&store, old, &keys, 0.5).unwrap();
            store.commit(1, "", &[]).unwrap();
            put(&store, old, &keys[..9], 0.75).unwrap();
            store.drop_table(old).unwrap();
            assert_eq!((store.find_table("t"), store.tables().len()), (None, 0));
            let error = get(&store, old, &[1]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.message().contains("'t' was dropped"), "{error}");
            let new = store.table(&asked).unwrap();
            assert_ne!(old, new);
            let all: Vec<f32> = keys.iter().flat_map(|key| initial("t", *key)).collect();
            assert_eq!(get(&store, new, &keys).unwrap(), all);
            put(&store, new, &[3], 0.25).unwrap();
            store.commit(2, "", &[]).unwrap();
            store.close().unwrap();
            let store = open(&medium, plain_options(1)).unwrap();
            let table = find(&store, "t");
            assert_eq!((table, store.len(table).unwrap()), (new, 1));
            assert_eq!(get(&store, table, &[3]).unwrap(), vec![0.25; DIM]);
            assert_eq!(get(&store, table, &[4]).unwrap(), initial("t", 4));
            let other = store.table(&spec("u", ids, OptimizerKind::Sgd)).unwrap();
            assert_eq!(other, TableId(2), "ids are never given again");
        }
    });
}

#[test]
fn what_was_not_committed_of_the_catalog_is_gone_after_a_close() {
    each_kind_or_direct(|| {
        let medium = SimMedium::new(2);
        let store = open(&medium, plain_options(2)).unwrap();
        for name in ["dropped", "renamed", "grown"] {
            let table = store.table(&spec(name, Some(100), OptimizerKind::Sgd)).unwrap();
            put(&store, table, &[1, 2, 99], 0.5).unwrap();
        }
        store.commit(1, "", &[]).unwrap();
        store.drop_table(find(&store, "dropped")).unwrap();
        store.rename_table(find(&store, "renamed"), "dropped").unwrap();
        store.grow_table(find(&store, "grown"), 200).unwrap();
        assert_eq!(store.uncommitted().batches, 3);
        store.close().unwrap();
        let store = open(&medium, plain_options(2)).unwrap();
        for name in ["dropped", "renamed", "grown"] {
            let table = find(&store, name);
            assert_eq!(store.table_info(table).unwrap().spec.num_embeddings, Some(100));
            assert_eq!(get(&store, table, &[1, 99]).unwrap(), vec![0.5; 2 * DIM], "{name}");
            assert_eq!(get(&store, table, &[3]).unwrap(), initial(name, 3));
        }
    });
}

#[test]
fn a_renamed_table_is_what_it_was_and_updates_round_as_they_did() {
    each_kind_or_direct(|| {
        let of = |renames: bool| {
            let medium = SimMedium::new(3);
            let store = open(&medium, plain_options(1)).unwrap();
            let half = TableSpec {
                dtype: Dtype::Bfloat16,
                ..spec("half", Some(50), OptimizerKind::Adagrad)
            };
            store.table(&half).unwrap();
            if renames {
                store.rename_table(find(&store, "half"), "x").unwrap();
            }
            store.commit(1, "", &[]).unwrap();
            store.close().unwrap();
            let store = open(&medium, plain_options(1)).unwrap();
            let table = find(&store, if renames { "x" } else { "half" });
            let (keys, gradients): (Vec<u64>, Vec<f32>) =
                ((0..50).collect(), (0..50 * DIM).map(|at| at as f32 / 77.0).collect());
            for _ in 0..5 {
                let batch = UpdateBatch {
                    table,
                    keys: &keys[..40],
                    gradients: &gradients[..40 * DIM],
                    hyper: HYPER,
                    non_finite: NonFinite::Refuse,
                    step: None,
                };
                store.update(&[batch]).unwrap();
            }
            store.commit(2, "", &[]).unwrap();
            (get(&store, table, &keys).unwrap(), digest(&store, table))
        };
        assert_eq!(of(true), of(false));
        // With its first name again, nothing is to be told of it.
        let medium = SimMedium::new(4);
        let store = open(&medium, plain_options(1)).unwrap();
        let table = store.table(&spec("a", Some(5), OptimizerKind::Sgd)).unwrap();
        store.rename_table(table, "b").unwrap();
        assert_eq!(store.table_info(table).unwrap().spec.first_name.as_deref(), Some("a"));
        store.rename_table(table, "a").unwrap();
        assert_eq!(store.table_info(table).unwrap().spec.first_name, None);
    });
}

#[test]
fn changes_that_cannot_be_are_refused_with_the_way_out_and_change_nothing() {
    each_kind_or_direct(|| {
        let medium = SimMedium::new(5);
        let store = open(&medium, plain_options(1)).unwrap();
        let dense = store.table(&spec("dense", Some(100), OptimizerKind::Sgd)).unwrap();
        let growing = store.table(&spec("growing", None, OptimizerKind::Sgd)).unwrap();
        let refused = |result: Result<()>, kind, says: &str| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(says), "{error}");
        };
        use ErrorKind::{Misuse, NotFound};
        refused(store.grow_table(dense, 99), Misuse, "never fewer");
        refused(store.grow_table(growing, 99), Misuse, "grows by itself");
        if !KIND.get().is_direct() {
            refused(store.grow_table(dense, u64::MAX), Misuse, "num_embeddings");
        }
        refused(store.rename_table(dense, "growing"), Misuse, "another table's name");
        refused(store.rename_table(dense, ""), Misuse, "name");
        refused(store.drop_table(TableId(9)), NotFound, "number 9");
        store.grow_table(dense, 100).unwrap();
        store.rename_table(dense, "dense").unwrap();
        assert_eq!(store.uncommitted().batches, 0, "that changed nothing");
        store.commit(1, "", &[]).unwrap();
        store.close().unwrap();
        let read_only = StoreOptions { read_only: true, ..plain_options(1) };
        let reader = open(&medium, read_only).unwrap();
        refused(reader.drop_table(dense), Misuse, "read_only");
        refused(reader.grow_table(dense, 200), Misuse, "read_only");
    });
}

#[test]
fn a_budget_without_room_for_the_index_names_one_that_has() {
    let medium = SimMedium::new(6);
    let store = open(&medium, options_within(1 << 20)).unwrap();
    let table = store.table(&spec("t", Some(1000), OptimizerKind::Sgd)).unwrap();
    put(&store, table, &[7], 0.5).unwrap();
    let error = store.grow_table(table, 1_000_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Budget, "{error}");
    assert!(error.message().contains("table 't' with 1000000 ids"), "{error}");
    let bytes = error.message().split(|c: char| !c.is_ascii_digit());
    let works = bytes.filter_map(|part| part.parse::<u64>().ok()).max().unwrap();
    store.commit(1, "", &[]).unwrap();
    store.close().unwrap();
    let store = open(&medium, options_within(works + 4096)).unwrap();
    store.grow_table(table, 1_000_000).unwrap();
    assert_eq!(get(&store, table, &[7]).unwrap(), vec![0.5; DIM]);
    assert_eq!(get(&store, table, &[999_999]).unwrap(), initial("t", 999_999));
    let stats = store.stats().unwrap();
    assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
}

#[test]
fn the_room_of_a_dropped_table_comes_back_once_no_commit_keeps_it() {
    each_kind(|| {
        let medium = SimMedium::new(7);
        let store = open(&medium, plain_options(1)).unwrap();
        let (rows, most) = (20_000, 200);
        let large = store.table(&spec("large", Some(rows), OptimizerKind::Sgd)).unwrap();
        let small = store.table(&spec("small", Some(most), OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..rows).collect();
        for some in keys.chunks(1000) {
            put(&store, large, some, 0.5).unwrap();
            put(&store, small, &some.iter().map(|key| key % most).collect::<Vec<_>>(), 0.25)
                .unwrap();
        }
        store.commit(1, "", &[]).unwrap();
        let disk = |store: &Store| store.stats().unwrap().classes[0].disk_bytes;
        let before = disk(&store);
        store.drop_table(large).unwrap();
        for at in 2..40 {
            let keys: Vec<u64> = (0..most).collect();
            put(&store, small, &keys, at as f32).unwrap();
            store.commit(at, "", &[]).unwrap();
        }
        let after = disk(&store);
        assert!(after < before / 2, "{before} bytes before, {after} after");
        assert_eq!(get(&store, small, &[9]).unwrap(), vec![39.0; DIM]);
    });
}

#[test]
fn a_pin_keeps_the_tables_of_its_commit() {
    each_kind(|| {
        let medium = SimMedium::new(8);
        let store = open(&medium, plain_options(1)).unwrap();
        let first = store.table(&spec("first", Some(500), OptimizerKind::Sgd)).unwrap();
        let second = store.table(&spec("second", Some(100), OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..500).collect();
        put(&store, first, &keys, 0.5).unwrap();
        put(&store, second, &[1], 0.5).unwrap();
        store.drop_table(second).unwrap();
        store.rename_table(first, "kept").unwrap();
        store.commit(1, "", &[]).unwrap();
        store.pin(1, "best").unwrap();
        store.drop_table(first).unwrap();
        let third = store.table(&spec("third", Some(500), OptimizerKind::Sgd)).unwrap();
        for at in 2..20 {
            put(&store, third, &keys, at as f32).unwrap();
            store.commit(at, "", &[]).unwrap();
        }
        store.close().unwrap();
        let pinned = |read_only| StoreOptions {
            read_only,
            pin: Some("best".to_owned()),
            ..plain_options(1)
        };
        let looks_right = |store: &Store| {
            let kept = find(store, "kept");
            assert_eq!(store.tables().len(), 1);
            assert_eq!(get(store, kept, &keys).unwrap(), vec![0.5; 500 * DIM]);
        };
        looks_right(&open(&medium, pinned(true)).unwrap());
        // A writer goes on from there.
        let store = open(&medium, pinned(false)).unwrap();
        looks_right(&store);
        store.grow_table(find(&store, "kept"), 600).unwrap();
        let next = store.table(&spec("next", None, OptimizerKind::Sgd)).unwrap();
        assert_eq!(next, TableId(2), "ids of what was given up are free");
        store.commit(30, "", &[]).unwrap();
        store.close().unwrap();
        let store = open(&medium, plain_options(1)).unwrap();
        let kept = find(&store, "kept");
        assert_eq!(get(&store, kept, &[599]).unwrap(), initial("first", 599));
        assert_eq!(get(&store, kept, &[499]).unwrap(), vec![0.5; DIM]);
    });
}

#[test]
fn builds_before_refuse_a_journal_with_such_a_change_until_nothing_is_left_of_it() {
    let medium = SimMedium::new(9);
    let store = open(&medium, plain_options(1)).unwrap();
    let table = store.table(&spec("t", Some(IDS), OptimizerKind::Sgd)).unwrap();
    store.commit(1, "", &[]).unwrap();
    let refuses = |store: &Store| {
        let open = |number| {
            let seed = store.inner.seed;
            crate::store::journal::JournalReader::open_up_to(3, &medium, seed, number)
        };
        let newest = *numbers(&medium).unwrap().last().unwrap();
        open(newest).err().map(|error| error.kind())
    };
    assert_eq!(refuses(&store), None);
    store.grow_table(table, 2 * IDS).unwrap();
    store.commit(2, "", &[]).unwrap();
    assert_eq!(refuses(&store), Some(ErrorKind::Unsupported));
    let meta = "m".repeat(META_BYTES);
    for at in 3..9 {
        store.commit(at, &meta, &[]).unwrap();
    }
    assert_eq!(refuses(&store), None, "a file that begins later has the table as it is");
    store.rename_table(table, "u").unwrap();
    for at in 9..15 {
        store.commit(at, &meta, &[]).unwrap();
    }
    assert_eq!(refuses(&store), Some(ErrorKind::Unsupported), "its hashes need its first name");
}

#[test]
fn a_scan_and_announced_batches_of_a_dropped_table_end_well() {
    each_kind(|| {
        let medium = SimMedium::new(10);
        let store = open(&medium, plain_options(1)).unwrap();
        let first = store.table(&spec("first", Some(3000), OptimizerKind::Sgd)).unwrap();
        let second = store.table(&spec("second", None, OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..3000).collect();
        put(&store, first, &keys, 0.5).unwrap();
        put(&store, second, &keys[..100], 0.5).unwrap();
        let mut scan = store.scan(first).unwrap();
        let (mut some, mut values) = (vec![0; 10], vec![0.0; 10 * DIM]);
        assert_eq!(scan.next_batch(&mut some, &mut values, None).unwrap(), 10);
        for _ in 0..4 {
            store.lookahead(first, &keys[..200]).unwrap();
            store.lookahead(second, &keys[..100]).unwrap();
        }
        store.drop_table(first).unwrap();
        let left = (0..400).find_map(|_| scan.next_batch(&mut some, &mut values, None).err());
        assert_eq!(left.unwrap().kind(), ErrorKind::NotFound);
        drop(scan);
        for _ in 0..4 {
            assert_eq!(get(&store, second, &keys[..100]).unwrap(), vec![0.5; 100 * DIM]);
        }
        store.commit(1, "", &[]).unwrap();
    });
}
