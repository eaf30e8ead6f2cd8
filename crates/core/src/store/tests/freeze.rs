//! Frozen pages: rows in the order of plans, with replicas, and what is written on top of them.

use super::*;
use crate::storage::PageLayout;
use crate::store::sweeps::freeze::{FreezeOptions, Frozen, PlannedPages};

/// The fixture with frozen pages below all tables.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.specs.iter_mut().for_each(|spec| spec.storage = StorageKind::Pages);
    fixture
}

fn rows_per_page(fixture: &Fixture, table: usize) -> usize {
    PageLayout::new(512, fixture.layout(table).row_bytes(), 0, 0).unwrap().rows_per_page
}

/// Plans of all tables: those with equal rows share pages. They have most keys of the tables,
/// written or not, in no order, and some replicas.
fn plans(fixture: &Fixture, random: &mut Random) -> Vec<PlannedPages> {
    let mut of_size: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for table in 0..fixture.specs.len() {
        of_size.entry(fixture.layout(table).row_bytes()).or_default().push(table);
    }
    let plan = |tables: Vec<usize>| {
        let holds = rows_per_page(fixture, tables[0]);
        let mut rows: Vec<(u64, u16, u64)> = Vec::new();
        for (at, table) in (0..).zip(&tables) {
            let keys = fixture.keys[*table].iter().filter(|_| random.below(10) > 0);
            rows.extend(keys.map(|key| (random_of(*key, at), at, *key)));
        }
        rows.sort_unstable();
        let (mut replica_starts, mut replica_rows) = (vec![0], Vec::new());
        for _ in 0..rows.len() / holds / 2 {
            let mut page: Vec<u32> = (0..1 + random.below(holds as u64))
                .map(|_| random.below(rows.len() as u64) as u32)
                .collect();
            page.sort_unstable();
            page.dedup();
            replica_rows.extend(page);
            replica_starts.push(replica_rows.len() as u32);
        }
        PlannedPages {
            tables: tables.iter().map(|table| fixture.specs[*table].name.clone()).collect(),
            rows_per_page: holds,
            table: rows.iter().map(|row| row.1).collect(),
            key: rows.iter().map(|row| row.2).collect(),
            replica_starts,
            replica_rows,
        }
    };
    of_size.into_values().map(plan).collect()
}

fn random_of(key: u64, table: u16) -> u64 {
    crate::hash::mix(key, u64::from(table) + 99)
}

fn freeze(store: &Store, plans: &[PlannedPages], sort_bytes: usize) -> Result<Frozen> {
    let options = FreezeOptions { sort_bytes, ..FreezeOptions::new(Memory::Bytes(0)) };
    store.freeze(plans, &options, &mut |_, _| Ok(()))
}

#[test]
fn rows_are_what_was_written_however_often_they_are_frozen() {
    let fixture = fixture();
    for (seed, bytes, sort_bytes) in [(1, tight(), 1), (2, 3 << 20, 8 << 20)] {
        let medium = SimMedium::new(seed);
        let mut random = Random(seed);
        let (mut model, mut committed) = (Model::default(), Model::default());
        let mut store = fixture.open(&medium, options(9 * bytes / 4));
        let mut frozen = Frozen::default();
        for round in 0..400u64 {
            fixture.step(&store, &mut model, &mut random);
            if random.below(40) == 0 {
                let plans = match random.below(4) {
                    0 => Vec::new(),
                    _ => plans(&fixture, &mut random),
                };
                let done = freeze(&store, &plans, sort_bytes).unwrap();
                assert_eq!(done.rows, model.rows.len() as u64, "round {round}");
                assert!(plans.is_empty() == (done.placed == 0) || model.rows.is_empty());
                frozen.rows += done.rows;
                frozen.pages += done.pages;
                fixture.check_all(&store, &model);
            }
            if random.below(60) == 0 {
                store.commit(round, "", &[]).unwrap();
                committed = model.clone();
            }
            if random.below(80) == 0 && store.last_commit().is_some() {
                drop(store);
                model = committed.clone();
                store = fixture.open(&medium, options(9 * bytes / 4));
                fixture.check_all(&store, &model);
            }
        }
        freeze(&store, &plans(&fixture, &mut random), sort_bytes).unwrap();
        store.commit(1000, "", &[]).unwrap();
        fixture.check_all(&store, &model);
        let report = check_store(&store);
        assert_eq!(report, Vec::<String>::new());
        assert!(frozen.rows > 1000 && frozen.pages > 100, "{frozen:?}");
        assert!(medium.list("part-").unwrap().iter().all(|name| !name.ends_with("freeze")));
    }
}

/// The findings of a check of all classes.
fn check_store(store: &Store) -> Vec<String> {
    let mut found = Vec::new();
    for class in &store.inner.engine.read().classes {
        let said = &mut |finding| found.push(format!("{finding:?}"));
        class.log.lock().check(&mut |_, _| Ok(()), said).unwrap();
    }
    found
}

#[test]
fn readers_keep_what_they_have_until_they_move_on() {
    let fixture = fixture();
    let (medium, mut random) = (SimMedium::new(5), Random(5));
    let mut model = Model::default();
    let store = fixture.open(&medium, options(9 * tight() / 4));
    let fill = |model: &mut Model, random: &mut Random| {
        (0..60).for_each(|_| fixture.step(&store, model, random));
    };
    fill(&mut model, &mut random);
    freeze(&store, &plans(&fixture, &mut random), 1 << 20).unwrap();
    store.commit(1, "", &[]).unwrap();
    let first = model.clone();
    let read = StoreOptions { read_only: true, create: false, ..options(9 * tight() / 4) };
    let reader = Store::open_on(Arc::new(medium.clone()), read.clone()).unwrap();
    fixture.check_all(&reader, &first);
    for step in 2..6 {
        fill(&mut model, &mut random);
        freeze(&store, &plans(&fixture, &mut random), 1 << 20).unwrap();
        store.commit(step, "", &[]).unwrap();
        fixture.check_all(&reader, &first);
    }
    reader.refresh().unwrap();
    fixture.check_all(&reader, &model);
    drop(reader);
    // The commit before is there to go back to.
    let back = StoreOptions { step: Some(4), ..read };
    let before = Store::open_on(Arc::new(medium.clone()), back).unwrap();
    assert_eq!(before.last_commit().unwrap().step, 4);
}

#[test]
fn a_power_cut_within_a_freeze_leaves_one_of_the_commits() {
    let fixture = fixture();
    let mut cuts = 0;
    for operation in (1..).step_by(3) {
        let medium = SimMedium::new(operation);
        let mut random = Random(77);
        let mut model = Model::default();
        let mut points = vec![(0, model.clone())];
        let mut acknowledged = 0;
        {
            let store = fixture.open(&medium, options(9 * tight() / 4));
            medium.power_cut_after(operation);
            let _ = (|| -> Result<()> {
                for step in 1..4 {
                    for _ in 0..2 {
                        let keys = fixture.pick(&mut random, 1, 300);
                        let values: Vec<f32> =
                            (0..keys.len() * DIM).map(|_| random.value()).collect();
                        store.put(&[PutBatch {
                            reset_state: true,
                            ..put_of(TableId(1), &keys, &values)
                        }])?;
                        for (i, key) in keys.iter().enumerate() {
                            let mut row = fixture.initial(1, *key);
                            row[..DIM].copy_from_slice(&values[i * DIM..][..DIM]);
                            model.rows.insert((1, *key), row);
                        }
                    }
                    freeze(&store, &plans(&fixture, &mut random), 1)?;
                    points.push((step, model.clone()));
                    acknowledged = store.commit(step, "", &[])?.step;
                }
                Ok(())
            })();
        }
        let cut = medium.power_is_off();
        let medium = medium.reboot(operation);
        let store = fixture.open(&medium, options(9 * tight() / 4));
        let step = store.last_commit().map_or(0, |commit| commit.step);
        assert!(step >= acknowledged, "cut after {operation}: step {step} of {acknowledged}");
        let (_, model) = points.iter().find(|(of, _)| *of == step).expect("one of the commits");
        fixture.check_all(&store, model);
        // The files of a freeze that was cut off are no hindrance.
        freeze(&store, &plans(&fixture, &mut random), 1).unwrap();
        store.commit(9, "", &[]).unwrap();
        fixture.check_all(&store, model);
        if !cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 30, "{cuts} cuts");
}

/// A store of one table whose rows were frozen in the order of their ids, 16 of which share a page
/// with each of their neighbours' replicas.
fn queries(replicas: bool) -> (SimMedium, Store, TableId, usize) {
    let medium = SimMedium::new(8);
    let spec = TableSpec {
        storage: StorageKind::Pages,
        optimizer: OptimizerSpec::new(OptimizerKind::None),
        ..spec("items", Some(2000), OptimizerKind::None)
    };
    let store = Store::open_on(Arc::new(medium.clone()), options(9 * tight() / 4)).unwrap();
    let table = store.table(&spec).unwrap();
    let keys: Vec<u64> = (0..2000).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
    store.put(&[put_of(table, &keys, &values)]).unwrap();
    let holds = PageLayout::new(512, 4 * DIM, 0, 0).unwrap().rows_per_page;
    // A replica page has rows of as many home pages as it has rows.
    let pages = 2000 / holds as u32;
    let replica =
        |page: u32| (0..holds as u32).map(move |at| (page + at) % pages * holds as u32 + at);
    let plan = PlannedPages {
        tables: vec!["items".to_owned()],
        rows_per_page: holds,
        table: vec![0; 2000],
        key: keys,
        replica_starts: if replicas {
            (0..=20).map(|page| page * holds as u32).collect()
        } else {
            Vec::new()
        },
        replica_rows: if replicas { (0..20).flat_map(replica).collect() } else { Vec::new() },
    };
    freeze(&store, &[plan], 1 << 20).unwrap();
    store.commit(1, "", &[]).unwrap();
    (medium, store, table, holds)
}

#[test]
fn replicas_save_pages_and_bring_the_same_rows() {
    let mut pages = Vec::new();
    for replicas in [false, true] {
        let (medium, store, table, holds) = queries(replicas);
        drop(store);
        let read = StoreOptions { read_only: true, ..options(9 * tight() / 4) };
        let store = Store::open_on(Arc::new(medium), read).unwrap();
        let home_pages = 2000 / holds as u64;
        let mut read = 0;
        for page in 0..20u64 {
            let of_query: Vec<u64> = (0..holds as u64)
                .map(|at| (page + at) % home_pages * holds as u64 + at)
                .chain([5, 5, 1_999_999 % 2000])
                .collect();
            let mut values = vec![0.0; of_query.len() * DIM];
            let before = store.stats().unwrap().pages_read;
            store
                .get(&mut [GetBatch {
                    table,
                    keys: &of_query,
                    values: (&mut values).into(),
                    state: None,
                }])
                .unwrap();
            read += store.stats().unwrap().pages_read - before;
            for (key, row) in of_query.iter().zip(values.chunks(DIM)) {
                assert_eq!(row, [*key as f32; DIM], "key {key}");
            }
        }
        pages.push(read);
    }
    assert!(pages[1] * 3 < pages[0], "{pages:?}: a replica page has all rows of a query");
}

#[test]
fn damage_in_a_frozen_page_is_named_and_never_returned() {
    let (medium, store, table, _) = queries(false);
    drop(store);
    let name = medium.list("part-").unwrap().into_iter().find(|name| !name.ends_with("room"));
    let name = name.expect("a frozen file");
    medium.flip_bit(&name, 2 * 512 + 100);
    let read = StoreOptions { read_only: true, ..options(9 * tight() / 4) };
    let store = Store::open_on(Arc::new(medium), read).unwrap();
    let mut failed = 0;
    for key in 0..2000 {
        let mut values = vec![0.0; DIM];
        let mut batch =
            [GetBatch { table, keys: &[key], values: (&mut values).into(), state: None }];
        match store.get(&mut batch) {
            Ok(_) => assert_eq!(values, [key as f32; DIM]),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert!(error.to_string().contains(&name), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0 && failed < 40, "{failed} rows of one page");
}

#[test]
fn plans_that_do_not_fit_are_refused_and_nothing_changes() {
    let fixture = fixture();
    let (medium, mut random) = (SimMedium::new(6), Random(6));
    let mut model = Model::default();
    let store = fixture.open(&medium, options(9 * tight() / 4));
    (0..60).for_each(|_| fixture.step(&store, &mut model, &mut random));
    let said = |change: &dyn Fn(&mut PlannedPages)| {
        let mut plans = plans(&fixture, &mut Random(3));
        plans.iter_mut().for_each(change);
        freeze(&store, &plans, 1 << 20).unwrap_err().to_string()
    };
    let holds = said(&|plan| plan.rows_per_page += 1);
    assert!(holds.contains("rows_per_page="), "{holds}");
    let other = said(&|plan| plan.tables[0] = "other".to_owned());
    assert!(other.contains("table 'other'"), "{other}");
    let twice = said(&|plan| plan.key[1] = plan.key[0]);
    assert!(twice.contains("twice") || twice.contains("table"), "{twice}");
    let replica = said(&|plan| plan.replica_rows[0] = 1 << 30);
    assert!(replica.contains("replica page"), "{replica}");
    let options = FreezeOptions { candidates_max: 17, ..FreezeOptions::new(Memory::Bytes(0)) };
    let most = store.freeze(&[], &options, &mut |_, _| Ok(())).unwrap_err().to_string();
    assert!(most.contains("candidates is 17"), "{most}");
    let ended = store.freeze(&[], &FreezeOptions::new(Memory::Bytes(0)), &mut |_, _| {
        bail!(Misuse, "ended by the caller")
    });
    assert!(ended.unwrap_err().to_string().contains("ended by the caller"));
    fixture.check_all(&store, &model);
    freeze(&store, &plans(&fixture, &mut random), 1 << 20).unwrap();
    fixture.check_all(&store, &model);
}

// The files of such a freeze were never removed, for nothing else was written, and took the room.
#[test]
fn what_a_freeze_that_was_cut_off_has_left_is_gone_before_room_is_asked_for() {
    let fixture = fixture();
    let mut found_room = 0;
    for operation in (20..400).step_by(20) {
        let medium = SimMedium::new(operation);
        let (mut model, mut random) = (Model::default(), Random(9));
        let store = fixture.open(&medium, options(9 * tight() / 4));
        (0..80).for_each(|_| fixture.step(&store, &mut model, &mut random));
        store.commit(1, "", &[]).unwrap();
        let taken = medium.taken_bytes();
        medium.power_cut_after(operation);
        if freeze(&store, &[], 1 << 20).is_ok() {
            break;
        }
        drop(store);
        let medium = medium.reboot(operation);
        let store = fixture.open(&medium, options(9 * tight() / 4));
        let left = medium.taken_bytes().saturating_sub(taken);
        // Not enough beside what is left, and enough without it, where nearly all was written.
        medium.set_capacity(Some(medium.taken_bytes() + left / 4));
        match freeze(&store, &[], 1 << 20) {
            Ok(_) => found_room += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
        }
        fixture.check_all(&store, &model);
    }
    assert!(found_room > 0);
}

#[test]
fn a_refused_delete_on_frozen_pages_names_the_freeze() {
    let medium = SimMedium::new(3);
    let ids = 150_000;
    let spec =
        TableSpec { storage: StorageKind::Pages, ..spec("t", Some(ids), OptimizerKind::None) };
    let store = Store::open_on(Arc::new(medium.clone()), options_within(3 << 20)).unwrap();
    let table = store.table(&spec).unwrap();
    let keys: Vec<u64> = (0..ids).collect();
    for keys in keys.chunks(1000) {
        let values = vec![1.0; keys.len() * DIM];
        store.put(&[put_of(table, keys, &values)]).unwrap();
    }
    freeze(&store, &[], 1 << 20).unwrap();
    store.commit(1, "", &[]).unwrap();
    let refused = keys.chunks(1000).find_map(|keys| store.delete(table, keys).err());
    let error = refused.expect("tombstones take more than the budget");
    assert_eq!(error.kind(), ErrorKind::Budget);
    assert!(error.message().contains("freeze the store again"), "{error}");
}

#[test]
fn a_freeze_reads_the_pages_of_all_tables_of_a_class_once() {
    let medium = SimMedium::new(4);
    let store = Store::open_on(Arc::new(medium), options(9 * tight() / 4)).unwrap();
    let keys: Vec<u64> = (0..2000).collect();
    let values = vec![1.0; keys.len() * DIM];
    for name in ["a", "b", "c", "d"] {
        let spec = TableSpec {
            storage: StorageKind::Pages,
            ..spec(name, Some(2000), OptimizerKind::None)
        };
        let table = store.table(&spec).unwrap();
        store.put(&[put_of(table, &keys, &values)]).unwrap();
    }
    let pages = freeze(&store, &[], 1 << 20).unwrap().pages;
    store.commit(1, "", &[]).unwrap();
    let before = store.stats().unwrap().pages_read;
    freeze(&store, &[], 1 << 20).unwrap();
    let read = store.stats().unwrap().pages_read - before;
    assert!(read <= pages + pages / 10, "{read} pages read of {pages}");
}

// Each refresh read the index of all frozen rows again.
#[test]
fn a_refresh_over_changes_of_the_top_reads_nothing_of_the_frozen_file() {
    let (medium, store, table, _) = queries(true);
    let read = StoreOptions { read_only: true, ..options(9 * tight() / 4) };
    let reader = Store::open_on(Arc::new(medium.clone()), read).unwrap();
    let keys: Vec<u64> = (0..10).collect();
    store.put(&[put_of(table, &keys, &[7.0; 10 * DIM])]).unwrap();
    store.commit(2, "", &[]).unwrap();
    let name = medium.list("part-").unwrap().into_iter().find(|name| !name.ends_with("room"));
    // From here on, reading the header again finds damage.
    let header = medium.contents(name.as_ref().unwrap())[..512].to_vec();
    medium.replace(name.as_ref().unwrap(), 0, &[0; 512]);
    assert_eq!(reader.refresh().unwrap().unwrap().step, 2);
    let mut values = vec![0.0; 11 * DIM];
    let keys: Vec<u64> = (0..11).collect();
    let mut batch = [GetBatch { table, keys: &keys, values: (&mut values).into(), state: None }];
    reader.get(&mut batch).unwrap();
    assert_eq!(values[..10 * DIM], [7.0; 10 * DIM]);
    assert_eq!(values[10 * DIM..], [10.0; DIM]);
    medium.replace(name.as_ref().unwrap(), 0, &header);
}
