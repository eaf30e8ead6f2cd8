//! Commits that are completed while verbs go on.

use super::*;
use crate::store::engine::ClassPhase;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Verbs that several commits may overlap; the others wait for a commit's end.
fn verb(fixture: &Fixture, store: &Store, model: &mut Model, random: &mut Random) {
    let table = random.below(fixture.specs.len() as u64) as usize;
    let keys = fixture.pick(random, table, 120);
    match random.below(3) {
        0 => fixture.check(store, model, table, &keys),
        _ => fixture.update(store, model, random, table, &keys),
    }
}

/// Completes a commit once `go` says so, or a verb has closed a class, and would wait for it.
fn completes(store: &Store, work: crate::store::commit::Work, go: &AtomicBool) -> CommitInfo {
    let closed = || {
        let engine = store.inner.engine.read_recursive();
        engine.classes.iter().any(|class| class.phase() == ClassPhase::Closed)
    };
    while !go.load(Ordering::Acquire) && !closed() {
        std::thread::sleep(Duration::from_micros(20));
    }
    store.inner.complete(work).unwrap()
}

#[test]
fn a_commit_holds_what_was_there_at_the_call_whatever_is_changed_meanwhile() {
    each_kind(|| {
        let fixture = Fixture::new();
        let (mut written_before, mut changed) = (0, 0);
        for (seed, bytes) in [(1, tight()), (2, tight()), (3, 1 << 20), (4, 16 << 20)] {
            let medium = SimMedium::new(seed);
            let mut random = Random(seed);
            let mut model = Model::default();
            let store = fixture.open(&medium, options(bytes));
            for step in 1..=25u64 {
                for _ in 0..random.below(12) {
                    verb(&fixture, &store, &mut model, &mut random);
                }
                let state = [("dense", &step.to_le_bytes()[..])];
                let mut work = store.inner.capture(step, "", &state).unwrap();
                let captured = model.clone();
                assert_eq!(store.uncommitted(), Uncommitted::default());
                // Some portions, with verbs in between.
                for _ in 0..random.below(6) {
                    if random.below(2) == 0 {
                        let engine = store.inner.engine.read_recursive();
                        let first = &engine.classes[0];
                        let dirty = || first.cache().dirty_rows();
                        // The last portion would close the class, and this thread wait for itself.
                        if first.phase() == ClassPhase::Captured && dirty() > 64 {
                            store.inner.commit_step(&engine, &mut work).unwrap();
                        }
                    }
                }
                let go = AtomicBool::new(false);
                let info = std::thread::scope(|scope| {
                    let completed = scope.spawn(|| completes(&store, work, &go));
                    let ended = SetOnDrop(&go);
                    for _ in 0..random.below(10) {
                        verb(&fixture, &store, &mut model, &mut random);
                        changed += 1;
                    }
                    drop(ended);
                    for _ in 0..random.below(4) {
                        verb(&fixture, &store, &mut model, &mut random);
                    }
                    completed.join().unwrap()
                });
                assert_eq!((info.step, store.last_commit().unwrap().step), (step, step));
                written_before += info.rows_flushed;
                let survivor = medium.reboot(seed * 100 + step);
                let survivor = Store::open_on(Arc::new(survivor), options(bytes)).unwrap();
                assert_eq!(survivor.last_commit().unwrap().step, step);
                fixture.check_all(&survivor, &captured);
                survivor.close().unwrap();
                if random.below(6) == 0 {
                    fixture.check_all(&store, &model);
                }
                if random.below(6) == 0 {
                    // Scans and deletes wait for a commit, and find what it left.
                    let table = TableId(random.below(fixture.specs.len() as u64) as u16);
                    let before = digest(&store, table);
                    let pending = store.commit_in_background(step, "again", &[]).unwrap();
                    assert_eq!(digest(&store, table), before);
                    assert_eq!(pending.wait(None).unwrap().unwrap().meta, "again");
                }
            }
            fixture.check_all(&store, &model);
            let stats = store.stats().unwrap();
            assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
        }
        assert!(written_before > 5_000 && changed > 200, "{written_before} rows, {changed} verbs");
    });
}

/// Says so when a test is over, however it went.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Two tables whose rows are always changed together, by several threads: a commit has both
/// changes of a batch, or neither.
#[test]
fn a_commit_in_background_never_parts_a_batch() {
    each_kind(|| {
        let keys: Vec<u64> = (0..500).collect();
        let open = |medium: &SimMedium| {
            Store::open_on(Arc::new(medium.clone()), options(440 << 10)).unwrap()
        };
        let medium = SimMedium::new(7);
        let store = open(&medium);
        let table = |name: &str, rows| {
            let initializer = Initializer::Constant(0.0);
            let kind = OptimizerKind::Sgd;
            store.table(&TableSpec { initializer, ..spec(name, rows, kind) }).unwrap()
        };
        let (a, b) = (table("a", Some(500)), table("b", None));
        let add = |random: &mut Random| {
            let n = 1 + random.below(60) as usize;
            let batch: Vec<u64> = (0..n).map(|_| random.below(500)).collect();
            let gradients = vec![-1.0; n * DIM];
            let update = |table| UpdateBatch {
                table,
                keys: &batch,
                gradients: &gradients,
                hyper: Hyper { lr: 1.0, ..HYPER },
                non_finite: NonFinite::Refuse,
                step: None,
            };
            store.update(&[update(a), update(b)]).unwrap();
        };
        let values = |store: &Store, table| {
            let mut values = vec![0.0; keys.len() * DIM];
            let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
            store.get(&mut [get]).unwrap();
            values
        };
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (over, add) = (&over, &add);
                scope.spawn(move || {
                    let mut random = Random(thread);
                    while !over.load(Ordering::Relaxed) {
                        add(&mut random);
                    }
                });
            }
            let _over = SetOnDrop(&over);
            let mut seen = 0.0;
            for step in 1..=12u64 {
                while store.uncommitted().batches < 5 {
                    std::thread::yield_now();
                }
                let pending = store.commit_in_background(step, "", &[]).unwrap();
                let handle = pending.clone();
                if step % 3 == 0 {
                    // The next one waits for it.
                    continue;
                }
                handle.wait(None).unwrap();
                let survivor = open(&medium.reboot(step));
                assert!(survivor.last_commit().unwrap().step >= step);
                let (a, b) = (values(&survivor, a), values(&survivor, b));
                assert_eq!(a, b);
                let sum: f32 = a.iter().sum();
                assert!(sum > seen, "commit {step} has nothing new");
                seen = sum;
            }
        });
        store.commit(99, "", &[]).unwrap();
        assert_eq!(values(&store, a), values(&store, b));
    });
}

// A verb that had closed one class waited for the record with its lock, while the commit's thread
// was at another class, or asked that class what a reader keeps.
#[test]
fn a_verb_that_waits_for_the_record_does_not_keep_it_from_being_made() {
    each_kind(|| {
        for held in [false, true] {
            record_beside_a_waiting_verb(held);
        }
    });
}

fn record_beside_a_waiting_verb(held: bool) {
    let medium = SimMedium::new(11);
    let bounded = StoreOptions { keep: 1, max_held_bytes: Some(1 << 30), ..options(1 << 20) };
    let store = Store::open_on(Arc::new(medium.clone()), bounded).unwrap();
    let table = |name: &str, kind| store.table(&spec(name, Some(60_000), kind)).unwrap();
    let (first, second) = (table("a", OptimizerKind::Adagrad), table("b", OptimizerKind::Sgd));
    let writer = store.clone();
    let put = move |table, keys: std::ops::Range<u64>| {
        let keys: Vec<u64> = keys.collect();
        let values = vec![1.0; keys.len() * DIM];
        let batch = PutBatch { reset_state: true, ..put_of(table, &keys, &values) };
        writer.put(&[batch]).unwrap();
    };
    put(first, 0..5_000);
    put(second, 0..5_000);
    let reader = held.then(|| {
        store.commit(0, "", &[]).unwrap();
        let reading = StoreOptions { read_only: true, ..options(1 << 20) };
        Store::open_on(Arc::new(medium.clone()), reading).unwrap()
    });
    if held {
        put(first, 0..5_000);
        put(second, 0..5_000);
    }
    let work = store.inner.capture(1, "", &[]).unwrap();
    // So much goes through the second class that it is closed, and has to wait.
    let verb = std::thread::spawn(move || put(second, 5_000..60_000));
    let begin = std::time::Instant::now();
    while store.inner.commit_gate.waiters.load(Ordering::Relaxed) == 0 {
        assert!(!verb.is_finished(), "the verb did not have to wait");
        assert!(begin.elapsed() < Duration::from_secs(20), "the verb does not wait for the record");
        std::thread::yield_now();
    }
    let second_phase = store.inner.engine.read_recursive().classes[1].phase();
    assert_eq!(second_phase, ClassPhase::Closed);
    let (tell, told) = std::sync::mpsc::channel();
    let committing = store.clone();
    std::thread::spawn(move || tell.send(committing.inner.complete(work)));
    let made = told.recv_timeout(Duration::from_secs(20));
    let told = made.expect("the commit and the verb wait for each other");
    verb.join().unwrap();
    assert_eq!(told.unwrap().step, 1);
    assert_eq!(store.len(second).unwrap(), 60_000);
    if let Some(reader) = reader {
        assert_eq!(reader.len(second).unwrap(), 5_000);
        let of = reader.last_commit().unwrap().step;
        assert!(of == 0 && store.commits().len() == 1, "the reader's commit is kept");
    }
    let survivor = Store::open_on(Arc::new(medium.reboot(1)), options(1 << 20)).unwrap();
    assert_eq!((survivor.len(first).unwrap(), survivor.len(second).unwrap()), (5_000, 5_000));
}

/// Errors of the device that verbs meet while a commit is under way: it is not made without what
/// they could not write.
#[test]
fn a_commit_part_of_which_a_verb_could_not_write_is_not_made() {
    each_kind(|| {
        let fixture = Fixture::new();
        let (mut failed, mut made) = (0, 0);
        for n in 1..160 {
            let medium = SimMedium::new(n);
            let (mut random, mut model) = (Random(n), Model::default());
            let store = fixture.open(&medium, options(tight()));
            for _ in 0..12 {
                verb(&fixture, &store, &mut model, &mut random);
            }
            store.commit(1, "", &[]).unwrap();
            let first = model.clone();
            for _ in 0..12 {
                verb(&fixture, &store, &mut model, &mut random);
            }
            let Ok(work) = store.inner.capture(2, "", &[]) else { continue };
            let captured = model.clone();
            let go = AtomicBool::new(false);
            medium.fail_write(n % 40 + 1);
            let told = std::thread::scope(|scope| {
                let completed = scope.spawn(|| {
                    while !go.load(Ordering::Acquire) {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    store.inner.complete(work)
                });
                let ended = SetOnDrop(&go);
                // A verb may close a class; it must not then have to wait for this thread.
                for _ in 0..random.below(4) {
                    let table = random.below(fixture.specs.len() as u64) as usize;
                    let keys = fixture.pick(&mut random, table, 30);
                    let gradients = vec![0.5; keys.len() * DIM];
                    let _ = store.update(&[UpdateBatch {
                        table: TableId(table as u16),
                        keys: &keys,
                        gradients: &gradients,
                        hyper: HYPER,
                        non_finite: NonFinite::Refuse,
                        step: None,
                    }]);
                }
                drop(ended);
                completed.join().unwrap()
            });
            failed += u64::from(told.is_err());
            made += u64::from(told.is_ok());
            // Reads go on, or say what failed; no page that was never written is taken for damage.
            let keys = &fixture.keys[0];
            let mut values = vec![0.0; keys.len() * DIM];
            let get =
                GetBatch { table: TableId(0), keys, values: (&mut values).into(), state: None };
            if let Err(error) = store.get(&mut [get]) {
                assert!(told.is_err() && error.kind() == ErrorKind::Poisoned, "seed {n}: {error}");
            }
            let _ = store.close();
            let survivor = Store::open_on(Arc::new(medium.reboot(n)), options(tight())).unwrap();
            match survivor.last_commit().unwrap().step {
                1 => {
                    assert!(told.is_err(), "seed {n}: the commit was told and is gone");
                    fixture.check_all(&survivor, &first);
                }
                step => {
                    assert_eq!(step, 2);
                    fixture.check_all(&survivor, &captured);
                }
            }
        }
        assert!(failed > 20 && made > 20, "{failed} commits failed, {made} were made");
    });
}

/// Errors of the device while a commit runs by itself: told by the handle and by later changes;
/// reads go on, and the store is at an earlier commit when it is opened again.
#[test]
fn an_error_of_a_commit_in_background_is_told_by_handle_and_next_change() {
    each_kind(|| {
        let fixture = Fixture::new();
        let mut failed = 0;
        for n in 1..40 {
            for sync in [false, true] {
                let medium = SimMedium::new(n);
                let (mut random, mut model) = (Random(n), Model::default());
                let store = fixture.open(&medium, options(16 << 20));
                for _ in 0..20 {
                    verb(&fixture, &store, &mut model, &mut random);
                }
                store.commit(1, "", &[]).unwrap();
                let first = model.clone();
                for _ in 0..20 {
                    verb(&fixture, &store, &mut model, &mut random);
                }
                let lost = store.uncommitted();
                match sync {
                    true => medium.fail_sync(n),
                    false => medium.fail_write(n),
                }
                let Ok(pending) = store.commit_in_background(2, "", &[("s", &[1; 9])]) else {
                    continue;
                };
                let told = pending.wait(None);
                let Err(error) = told else { continue };
                failed += 1;
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                assert!(pending.is_done().unwrap() && pending.wait(None).is_err());
                assert_eq!(store.uncommitted(), lost);
                let refused = store.update(&[]).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Poisoned);
                let again = store.commit_in_background(3, "", &[]).unwrap_err();
                assert_eq!(again.kind(), ErrorKind::Poisoned);
                fixture.check_all(&store, &model);
                assert_eq!(store.close().unwrap(), lost);
                let survivor = medium.reboot(n);
                let store = Store::open_on(Arc::new(survivor), options(16 << 20)).unwrap();
                // A record that reached the device without its sync may be there.
                match store.last_commit().unwrap().step {
                    1 => fixture.check_all(&store, &first),
                    step => {
                        assert_eq!(step, 2);
                        fixture.check_all(&store, &model);
                    }
                }
            }
        }
        assert!(failed > 15, "only {failed} commits failed");
    });
}

/// After a write failed, reads met pages that were never written and told of damage, or stored rows
/// twice to make room, and panicked.
#[test]
fn reads_after_a_failed_write_give_the_row_or_the_reason() {
    each_kind(|| {
        let fixture = Fixture::new();
        let mut given = 0;
        for n in 0..60 {
            let medium = SimMedium::new(n);
            let (mut random, mut model) = (Random(n), Model::default());
            let store = fixture.open(&medium, options(tight()));
            for _ in 0..60 {
                verb(&fixture, &store, &mut model, &mut random);
            }
            medium.fail_write(n % 20);
            let pending = store.commit_in_background(1, "", &[]);
            if pending.is_ok_and(|pending| pending.wait(None).is_ok()) {
                continue;
            }
            for _ in 0..200 {
                let table = random.below(fixture.specs.len() as u64) as usize;
                let keys = fixture.pick(&mut random, table, 8);
                let mut values = vec![0.0; keys.len() * DIM];
                let mut batch = [GetBatch {
                    table: TableId(table as u16),
                    keys: &keys,
                    values: (&mut values).into(),
                    state: None,
                }];
                match store.get(&mut batch) {
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Poisoned, "{n}: {error}");
                    }
                    Ok(_) => {
                        fixture.check(&store, &model, table, &keys);
                        given += 1;
                    }
                }
            }
        }
        assert!(given > 500, "only {given} batches of rows were given");
    });
}

#[test]
fn close_waits_for_a_commit_that_runs_by_itself() {
    each_kind(|| {
        let medium = SimMedium::new(3);
        let fixture = Fixture::new();
        let (mut random, mut model) = (Random(3), Model::default());
        let store = fixture.open(&medium, options(1 << 20));
        for _ in 0..40 {
            verb(&fixture, &store, &mut model, &mut random);
        }
        let pending = store.commit_in_background(1, "", &[]).unwrap();
        assert_eq!(store.close().unwrap(), Uncommitted::default());
        assert!(pending.wait(None).unwrap().is_some());
        let store = fixture.open(&medium.reboot(1), options(1 << 20));
        fixture.check_all(&store, &model);
    });
}

/// Commits of a store on a medium, each with the byte strings of the first, while others are kept.
fn keep_state(open: impl Fn(bool) -> Store) {
    let long = vec![7u8; 3 << 20];
    let state: [(&str, &[u8]); 3] = [("dense", &long), ("empty", b""), ("steps", b"12")];
    let expected: Vec<_> = state.iter().map(|(n, b)| ((*n).to_owned(), b.to_vec())).collect();
    let writer = open(false);
    let table = writer.table(&spec("t", Some(100), OptimizerKind::None)).unwrap();
    writer.commit_with_last_state(1, "").unwrap();
    assert!(writer.state().unwrap().is_empty());
    writer.commit(2, "", &state).unwrap();
    let reader = open(true);
    for step in 3..9 {
        writer.put(&[put_of(table, &[step], &[step as f32; DIM])]).unwrap();
        let made = writer.commit_with_last_state(step, "meta").unwrap();
        assert_eq!((made.step, made.state_bytes), (step, long.len() as u64 + 2));
        assert_eq!(writer.state().unwrap(), expected);
    }
    // The reader holds the commit that had them first; all between are gone.
    assert_eq!(reader.state().unwrap(), expected);
    drop(writer);
    assert_eq!(open(true).state().unwrap(), expected);
    reader.refresh().unwrap().unwrap();
    assert_eq!(reader.state().unwrap(), expected);
}

#[test]
fn a_commit_keeps_the_byte_strings_of_the_one_before() {
    let medium = SimMedium::new(21);
    let on = |read_only| StoreOptions { read_only, keep: 2, ..options(1 << 20) };
    keep_state(|read_only| Store::open_on(Arc::new(medium.clone()), on(read_only)).unwrap());

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    keep_state(|read_only| Store::open(&path, on(read_only)).unwrap());
    let names = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap());
    let states = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("state-"));
    use std::os::unix::fs::MetadataExt;
    let inodes: Vec<u64> = states.map(|entry| entry.metadata().unwrap().ino()).collect();
    assert!(inodes.len() >= 2 && inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
}

#[test]
fn byte_strings_that_are_damaged_are_not_kept_in_a_copy() {
    let medium = SimMedium::new(22);
    let writer = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
    writer.table(&spec("t", Some(100), OptimizerKind::None)).unwrap();
    writer.commit(1, "", &[("dense", &[1; 5000])]).unwrap();
    let name = medium.list("state-").unwrap().pop().unwrap();
    let file = medium.open(&name, crate::io::OpenMode::ReadWrite).unwrap();
    file.write_at(&[2], 77).unwrap();
    let error = writer.commit_with_last_state(2, "").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.message().contains("checksum does not match"), "{error}");
    file.write_at(&[1], 77).unwrap();
    assert_eq!(writer.commit_with_last_state(2, "").unwrap().step, 2);
}
