//! Versions of the journal: where the next one begins, who reads it, and what a crash leaves.

use super::*;
use crate::store::journal::{JournalFile, JournalReader, name_of, numbers};

/// The version of files with a class that is no log.
fn later() -> u32 {
    let class = |storage| crate::store::journal::ClassRecord {
        id: 0,
        storage,
        row_bytes: 32,
        page_bytes: 4096,
        segment_bytes: 65_536,
        curve: None,
        fillings: String::new(),
    };
    let version = |classes: &[_]| JournalFile::version_for(classes.iter(), [].iter());
    let (log, lsm) = (class(StorageKind::Log), class(StorageKind::Lsm));
    assert_eq!((version(&[]), version(&[log.clone(), log.clone()])), (1, 1));
    let later = version(std::slice::from_ref(&lsm));
    assert_eq!((version(&[log, lsm]), later), (2, 2));
    later
}

fn begin(store: &Store) {
    let inner = &store.inner;
    inner.prepare_writing().unwrap();
    let engine = inner.exclusive().unwrap();
    inner.begin_version(&engine, later(), "a test").unwrap();
    assert_eq!(inner.history.lock().journal().version(), later());
}

/// Hands all that was changed to the journal.
fn hand_over(store: &Store) {
    let engine = store.inner.exclusive_to_change().unwrap();
    store.inner.flush_all(&engine).unwrap();
    for class in &engine.classes {
        store.inner.journal_changes(class, &mut **class.log.lock()).unwrap();
    }
}

/// The outcome of each file of the journal for a build that reads versions up to `newest`.
fn says(medium: &SimMedium, seed: u64, newest: u32) -> Vec<(u64, Result<()>)> {
    let open = |number| JournalReader::open_up_to(newest, medium, seed, number).map(drop);
    numbers(medium).unwrap().into_iter().map(|number| (number, open(number))).collect()
}

/// Files that an earlier build refuses, all of them as of a newer version.
fn refused(medium: &SimMedium, seed: u64) -> Vec<u64> {
    assert!(says(medium, seed, 2).iter().all(|(_, said)| said.is_ok()));
    let refuses = |(number, said): (u64, Result<()>)| {
        let error = said.err()?;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let says = format!("{} has version 2, this build reads up to 1", name_of(number));
        assert!(error.message().contains(&says), "{error}");
        assert!(error.message().contains("use a newer embedrock"), "{error}");
        Some(number)
    };
    says(medium, seed, 1).into_iter().filter_map(refuses).collect()
}

#[test]
fn a_version_begins_behind_the_last_commit_with_all_that_was_changed_since() {
    let fixture = Fixture::new();
    let (mut began, mut in_cycle, mut with_tail) = (0, 0, 0);
    for seed in 1..=6 {
        let medium = SimMedium::new(seed);
        let (mut random, mut model) = (Random(seed), Model::default());
        let mut committed = Model::default();
        let mut store = fixture.open(&medium, options(tight()));
        for step in 1..=24u64 {
            for _ in 0..random.below(8) {
                fixture.step(&store, &mut model, &mut random);
            }
            let begins = random.below(4) == 0;
            if begins {
                if random.below(2) == 0 {
                    hand_over(&store);
                }
                store.inner.prepare_writing().unwrap();
                let before = numbers(&medium).unwrap();
                let (version, file, has_commit) = {
                    let mut history = store.inner.history.lock();
                    in_cycle += u32::from(history.cursor.is_some());
                    let end = history.kept.last().map_or((0, 0), |commit| commit.place);
                    let journal = history.journal();
                    with_tail += u32::from(end.0 == journal.number() && end.1 < journal.position());
                    (journal.version(), journal.number(), end.0 == journal.number())
                };
                begin(&store);
                let now = store.inner.history.lock().journal().number();
                // A file with a commit is left as it is.
                assert_eq!(now, file + u64::from(version == 1 && has_commit), "{before:?}");
                assert!(refused(&medium, store.inner.seed).contains(&now));
                began += u32::from(version == 1);
            }
            for _ in 0..random.below(4) {
                fixture.step(&store, &mut model, &mut random);
            }
            match random.below(4) {
                0 => {
                    // Uncommitted changes are gone, and so is everything begun for them.
                    drop(store);
                    store = Store::open_on(Arc::new(medium.clone()), options(tight())).unwrap();
                    for spec in &fixture.specs {
                        store.table(spec).unwrap();
                    }
                    model = committed.clone();
                }
                _ => {
                    store.commit(step, "", &[]).unwrap();
                    committed = model.clone();
                    let reader = StoreOptions { read_only: true, ..options(tight()) };
                    let reader = Store::open_on(Arc::new(medium.clone()), reader).unwrap();
                    fixture.check_all(&reader, &model);
                }
            }
        }
        fixture.check_all(&store, &model);
    }
    assert!(began > 15 && in_cycle > 0 && with_tail > 5, "{began}, {in_cycle}, {with_tail}");
}

#[test]
fn going_back_to_a_commit_before_it_leaves_what_an_earlier_build_reads() {
    let fixture = Fixture::new();
    let medium = SimMedium::new(3);
    let store = fixture.open(&medium, options(tight()));
    let (mut random, mut model) = (Random(3), Model::default());
    fixture.update(&store, &mut model, &mut random, 0, &[1, 2, 3]);
    store.commit(1, "", &[]).unwrap();
    let seed = store.inner.seed;
    let first = model.clone();
    assert_eq!(refused(&medium, seed), Vec::<u64>::new());
    fixture.update(&store, &mut model, &mut random, 1, &[4, 5]);
    begin(&store);
    store.commit(2, "", &[]).unwrap();
    assert_eq!(refused(&medium, seed), [2]);
    store.close().unwrap();
    let store = Store::open_on(Arc::new(medium.clone()), options(tight())).unwrap();
    fixture.check_all(&store, &model);
    store.close().unwrap();
    let back = StoreOptions { step: Some(1), ..options(tight()) };
    let store = Store::open_on(Arc::new(medium.clone()), back).unwrap();
    let mut model = first;
    fixture.check_all(&store, &model);
    fixture.update(&store, &mut model, &mut random, 1, &[6]);
    assert_eq!(refused(&medium, seed), Vec::<u64>::new());
    store.commit(3, "", &[]).unwrap();
    assert_eq!(refused(&medium, seed), Vec::<u64>::new());
    fixture.check_all(&store, &model);
}

/// Begins a version with a power cut after `operation`, behind a commit or before the first.
fn cut_while_it_begins(fixture: &Fixture, operation: u64, commits: u64) -> bool {
    let medium = SimMedium::new(operation);
    let (mut random, mut model) = (Random(9), Model::default());
    let store = fixture.open(&medium, options(tight()));
    let mut points = vec![model.clone()];
    for step in 1..=commits {
        let keys = fixture.pick(&mut random, 1, 200);
        fixture.update(&store, &mut model, &mut random, 1, &keys);
        store.commit(step, "", &[]).unwrap();
        points.push(model.clone());
    }
    for table in [0, 1] {
        let keys = fixture.pick(&mut random, table, 300);
        fixture.update(&store, &mut model, &mut random, table, &keys);
    }
    hand_over(&store);
    medium.power_cut_after(operation);
    let done = (|| {
        let engine = store.inner.exclusive()?;
        store.inner.begin_version(&engine, later(), "a test")?;
        drop(engine);
        store.commit(commits + 1, "", &[])
    })();
    let cut = medium.power_is_off();
    assert_eq!(cut, done.is_err());
    points.push(model);
    drop(store);
    for reboot in 0..4 {
        let what = format!("{operation}.{reboot} behind {commits}");
        let survivor = medium.reboot(operation * 31 + reboot);
        let store = Store::open_on(Arc::new(survivor), options(tight()))
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let step = store.last_commit().map_or(0, |c| c.step);
        assert!(step == commits + 1 || (cut && step == commits), "{what}: step {step}");
        for spec in &fixture.specs {
            store.table(spec).unwrap();
        }
        let mut model = points[step as usize].clone();
        fixture.check_all(&store, &model);
        fixture.update(&store, &mut model, &mut random, 0, &[1, 2, 3]);
        store.commit(100, "", &[]).unwrap();
        fixture.check_all(&store, &model);
    }
    cut
}

#[test]
fn power_cuts_while_a_version_begins_leave_the_last_commit() {
    let fixture = Fixture::new();
    for commits in [0, 1, 3] {
        let cuts = |operation: &u64| cut_while_it_begins(&fixture, *operation, commits);
        let every = stride(5) as usize;
        let cuts = (1..).step_by(every).take_while(cuts).count();
        assert!(cuts * every > 4, "only {cuts} operations were cut, every {every}th");
    }
}

#[test]
fn a_version_that_has_no_room_is_refused_and_nothing_changed() {
    let fixture = Fixture::new();
    let medium = SimMedium::new(4);
    let store = fixture.open(&medium, options(tight()));
    let (mut random, mut model) = (Random(4), Model::default());
    fixture.update(&store, &mut model, &mut random, 0, &[1, 2, 3]);
    store.commit(1, "", &[]).unwrap();
    store.close().unwrap();
    let reopen = |options| Store::open_on(Arc::new(medium.clone()), options).unwrap();
    let store = reopen(options(tight()));
    store.inner.prepare_writing().unwrap();
    let spare = store.inner.history.lock().spare.bytes();
    let used = store.stats().unwrap().disk_bytes - spare;
    store.close().unwrap();
    let bounded = StoreOptions { max_disk_bytes: Some(used + 4096), ..options(tight()) };
    let store = reopen(bounded);
    store.inner.prepare_writing().unwrap();
    let engine = store.inner.exclusive().unwrap();
    let error = store.inner.begin_version(&engine, later(), "a test").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    drop(engine);
    assert_eq!(numbers(&medium).unwrap(), [1]);
    assert_eq!(refused(&medium, store.inner.seed), Vec::<u64>::new());
    fixture.check_all(&store, &model);
    store.close().unwrap();
    let store = reopen(options(tight()));
    fixture.update(&store, &mut model, &mut random, 0, &[1, 2]);
    store.commit(2, "", &[]).unwrap();
    fixture.check_all(&store, &model);
}
