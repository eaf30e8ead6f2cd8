//! Units of upkeep as the store runs them, with a storage that counts what becomes of them. It says
//! itself which units it has, so that the kind of storage beneath makes no difference.

use super::probe::{Probe, Wishes};
use super::*;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

/// A store with a dense table, whose storage is a probe.
fn probed(medium: &SimMedium) -> (Store, TableId, Arc<Wishes>) {
    let store = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
    let table = store.table(&spec("t", Some(700), OptimizerKind::Sgd)).unwrap();
    let wishes = Probe::around(&store, 0);
    let weak = Arc::downgrade(&store.inner);
    // A thread that has the engine alone has its classes, too.
    let is_locked = move || {
        let inner = weak.upgrade().expect("the store is open");
        let engine = inner.engine.try_read_recursive();
        engine.is_none_or(|engine| engine.classes[0].log.is_locked())
    };
    *wishes.is_locked.lock() = Some(Box::new(is_locked));
    (store, table, wishes)
}

fn put(store: &Store, table: TableId) -> Result<()> {
    let keys: Vec<u64> = (0..50).collect();
    store.put(&[put_of(table, &keys, &[0.5; 50 * DIM])]).map(drop)
}

fn count(of: &AtomicUsize) -> usize {
    of.load(Ordering::Relaxed)
}

fn set(of: &AtomicUsize, n: usize) {
    of.store(n, Ordering::Relaxed);
}

#[test]
fn verbs_do_the_steps_that_are_paid_for_and_install_once() {
    let (store, table, wishes) = probed(&SimMedium::new(1));
    set(&wishes.steps, 3);
    set(&wishes.parts, 4);
    put(&store, table).unwrap();
    assert_eq!((count(&wishes.begun), count(&wishes.stepped)), (1, 0), "nothing was paid");
    set(&wishes.paid, 2);
    put(&store, table).unwrap();
    assert_eq!((count(&wishes.begun), count(&wishes.stepped)), (1, 2));
    set(&wishes.paid, 1);
    let before = store.stats().unwrap();
    store.delete(table, &[1]).unwrap();
    assert_eq!((count(&wishes.stepped), count(&wishes.installed)), (3, 1));
    assert_eq!(count(&wishes.parts_done), 4, "what an install leaves is done");
    assert_eq!(store.stats().unwrap().rows_moved - before.rows_moved, 0, "the log's own count");
    assert_eq!(store.inner.metrics.moved_rows.load(Ordering::Relaxed), 7);
    assert_eq!(store.inner.metrics.cleaned_pages.load(Ordering::Relaxed), 3);
    assert_eq!(count(&wishes.begun), 2, "the next one begins");
    set(&wishes.paid, 3);
    store.commit(1, "", &[]).unwrap();
    assert_eq!((count(&wishes.installed), count(&wishes.abandoned)), (2, 0), "by the commit");
}

/// A step of a modify ran while its thread had the engine alone: nobody else could even read.
#[test]
fn steps_of_a_verb_that_has_the_engine_alone_run_when_others_may_go_on() {
    let (store, table, wishes) = probed(&SimMedium::new(9));
    set(&wishes.steps, 2);
    set(&wishes.paid, 2);
    store
        .modify(table, &[3, 5], &mut |_, values, _| {
            values.fill(1.0);
            Ok(())
        })
        .unwrap();
    assert_eq!((count(&wishes.stepped), count(&wishes.installed)), (2, 1));
    set(&wishes.paid, 2);
    store.delete(table, &[3]).unwrap();
    assert_eq!((count(&wishes.stepped), count(&wishes.installed)), (4, 2));
}

#[test]
fn a_get_does_no_upkeep() {
    let (store, table, wishes) = probed(&SimMedium::new(2));
    set(&wishes.steps, 1);
    set(&wishes.paid, 9);
    let mut values = [0.0; DIM];
    let out = (&mut values[..]).into();
    store.get(&mut [GetBatch { table, keys: &[3], values: out, state: None }]).unwrap();
    assert_eq!(count(&wishes.begun), 0);
}

#[test]
fn a_unit_without_room_is_abandoned_and_begun_later() {
    for of_install in [false, true] {
        let (store, table, wishes) = probed(&SimMedium::new(3));
        put(&store, table).unwrap();
        let before = store.inner.disk_bytes();
        wishes.unit_bytes.store(40_960, Ordering::Relaxed);
        set(&wishes.steps, 2);
        put(&store, table).unwrap();
        assert_eq!(store.inner.disk_bytes(), before + 40_960, "what it may take is charged");
        let fails = if of_install { &wishes.install_fails } else { &wishes.step_fails };
        *fails.lock() = Some(ErrorKind::Full);
        set(&wishes.paid, 2);
        put(&store, table).unwrap();
        assert_eq!(store.inner.disk_bytes(), before);
        assert_eq!(count(&wishes.abandoned), usize::from(!of_install));
        assert_eq!((count(&wishes.begun), count(&wishes.installed)), (1, 0));
        set(&wishes.paid, 0);
        put(&store, table).unwrap();
        assert_eq!(store.inner.disk_bytes(), before + 40_960, "the next one has begun");
        set(&wishes.steps, 0);
        set(&wishes.paid, 2);
        put(&store, table).unwrap();
        assert_eq!(count(&wishes.installed), 1);
        assert_eq!(count(&wishes.begun), 2);
        assert_eq!(store.inner.disk_bytes(), before);
    }
}

#[test]
fn other_errors_of_a_unit_poison_the_store() {
    for of_install in [false, true] {
        let (store, table, wishes) = probed(&SimMedium::new(4));
        set(&wishes.steps, 1);
        set(&wishes.paid, 9);
        let fails = if of_install { &wishes.install_fails } else { &wishes.step_fails };
        *fails.lock() = Some(ErrorKind::Io);
        assert_eq!(put(&store, table).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(put(&store, table).unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(count(&wishes.abandoned), usize::from(!of_install));
        store.inner.upkeep(&store.inner.engine.read()).unwrap();
        assert_eq!(count(&wishes.begun), 1, "none begins in a store that is poisoned");
    }
}

#[test]
fn a_unit_that_is_under_way_is_abandoned_at_the_end() {
    for is_closed in [true, false] {
        let (store, table, wishes) = probed(&SimMedium::new(5));
        set(&wishes.steps, 2);
        set(&wishes.paid, 1);
        put(&store, table).unwrap();
        assert_eq!(count(&wishes.stepped), 1);
        if is_closed {
            store.close().unwrap();
        }
        drop(store);
        assert_eq!((count(&wishes.abandoned), count(&wishes.installed)), (1, 0));
    }
}

#[test]
fn who_finds_another_at_a_unit_goes_on() {
    let (store, table, wishes) = probed(&SimMedium::new(6));
    set(&wishes.steps, 1);
    set(&wishes.paid, 1);
    let engine = store.inner.engine.read();
    let another = engine.classes[0].unit.lock();
    store.inner.upkeep(&engine).unwrap();
    assert_eq!(count(&wishes.begun), 0);
    drop(another);
    drop(engine);
    put(&store, table).unwrap();
    assert_eq!(count(&wishes.installed), 1);
}

#[test]
fn a_reader_begins_no_unit() {
    let medium = SimMedium::new(7);
    let (writer, table, _) = probed(&medium);
    put(&writer, table).unwrap();
    writer.commit(1, "", &[]).unwrap();
    let options = StoreOptions { read_only: true, ..options(1 << 20) };
    let reader = Store::open_on(Arc::new(medium), options).unwrap();
    let wishes = Probe::around(&reader, 0);
    set(&wishes.steps, 1);
    let engine = reader.inner.planned_engine().unwrap();
    reader.inner.upkeep(&engine).unwrap();
    assert_eq!(count(&wishes.begun), 0);
}

#[test]
fn a_unit_begins_only_where_the_disk_bound_has_room_for_it() {
    let medium = SimMedium::new(8);
    let bounded = StoreOptions { max_disk_bytes: Some(64 << 20), ..options(1 << 20) };
    let store = Store::open_on(Arc::new(medium), bounded).unwrap();
    let table = store.table(&spec("t", Some(700), OptimizerKind::Sgd)).unwrap();
    let wishes = Probe::around(&store, 0);
    set(&wishes.steps, 2);
    wishes.unit_bytes.store(64 << 20, Ordering::Relaxed);
    put(&store, table).unwrap();
    assert_eq!(count(&wishes.begun), 0);
    wishes.unit_bytes.store(1 << 20, Ordering::Relaxed);
    put(&store, table).unwrap();
    assert_eq!(count(&wishes.begun), 1);
}

#[test]
fn a_gate_puts_steps_off_while_nothing_is_read_ahead_and_lets_go_at_the_floor() {
    let gated = StoreOptions { upkeep_scheduler: UpkeepScheduler::Gate, ..options(1 << 20) };
    let store = Store::open_on(Arc::new(SimMedium::new(9)), gated).unwrap();
    let table = store.table(&spec("t", Some(700), OptimizerKind::Sgd)).unwrap();
    let wishes = Probe::around(&store, 0);
    set(&wishes.steps, 4);
    set(&wishes.paid, 1);
    put(&store, table).unwrap();
    assert_eq!((count(&wishes.begun), count(&wishes.stepped)), (1, 1), "no window is in use");
    // The window has no thread that would read.
    store.window_by_hand();
    store.announce(&[LookaheadBatch { table, keys: &[1, 2], next: &[] }]).unwrap().unwrap();
    set(&wishes.paid, 9);
    put(&store, table).unwrap();
    assert_eq!(count(&wishes.stepped), 1, "nothing is read ahead");
    let upkeep = store.stats().unwrap().upkeep;
    assert!(upkeep.put_off > 0 && upkeep.steps == 1, "{upkeep:?}");
    wishes.presses.store(true, Ordering::Relaxed);
    put(&store, table).unwrap();
    assert_eq!((count(&wishes.stepped), count(&wishes.installed)), (10, 2), "at the floor");
}

/// A store whose window is in use, so that its reader does the steps of the unit that has begun.
fn left_to_the_reader(seed: u64) -> (Store, TableId, Arc<Wishes>) {
    let store = Store::open_on(Arc::new(SimMedium::new(seed)), options(1 << 20)).unwrap();
    let table = store.table(&spec("t", Some(700), OptimizerKind::Sgd)).unwrap();
    let wishes = Probe::around(&store, 0);
    set(&wishes.steps, 2);
    put(&store, table).unwrap();
    assert_eq!((count(&wishes.begun), count(&wishes.stepped)), (1, 0));
    store.announce(&[LookaheadBatch { table, keys: &[1, 2], next: &[] }]).unwrap().unwrap();
    (store, table, wishes)
}

fn wait_until(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < LONG, "it does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

// The reader kept the engine for its step: a commit waited for a thread that hardly gets a core,
// and all verbs waited for the commit.
#[test]
fn nobody_waits_for_a_step_of_the_reader_but_who_ends_the_store() {
    let (store, table, wishes) = left_to_the_reader(10);
    let (has_begun, begins) = channel();
    // Dropped before the store, so that a test that fails ends.
    let (goes_on, waits) = channel();
    *wishes.step_waits.lock() = Some((has_begun, waits));
    set(&wishes.paid, 1);
    put(&store, table).unwrap();
    begins.recv_timeout(LONG).unwrap();
    let beside = |verb: fn(&Store)| {
        let (store, (done, is_done)) = (store.clone(), channel());
        std::thread::spawn(move || {
            verb(&store);
            let _ = done.send(());
        });
        is_done
    };
    let committed = beside(|store| _ = store.commit(1, "", &[]).unwrap());
    assert!(committed.recv_timeout(LONG).is_ok(), "a commit waits for the step");
    put(&store, table).unwrap();
    assert_eq!((count(&wishes.begun), count(&wishes.stepped)), (1, 0));
    // The second finds the window ended, and may not give the store up while the step writes.
    let closed = [(); 2].map(|()| beside(|store| _ = store.close().unwrap()));
    assert!(closed[0].recv_timeout(Duration::from_millis(100)).is_err());
    assert!(closed[1].try_recv().is_err());
    goes_on.send(()).unwrap();
    closed.iter().for_each(|closed| closed.recv_timeout(LONG).unwrap());
    assert_eq!((count(&wishes.stepped), count(&wishes.abandoned)), (1, 1));
}

#[test]
fn a_verb_deals_with_the_error_of_a_step_of_the_reader() {
    for kind in [ErrorKind::Full, ErrorKind::Io] {
        let (store, table, wishes) = left_to_the_reader(11);
        *wishes.step_fails.lock() = Some(kind);
        set(&wishes.paid, 1);
        put(&store, table).unwrap();
        wait_until(|| wishes.step_fails.lock().is_none());
        // The reader may still be about to say so.
        wait_until(|| store.inner.engine.read().classes[0].unit.try_lock().is_some());
        let done = put(&store, table);
        assert_eq!(count(&wishes.abandoned), 1);
        match kind {
            ErrorKind::Full => done.unwrap(),
            kind => assert_eq!(done.unwrap_err().kind(), kind),
        }
        assert_eq!(store.inner.poisoned.load(Ordering::Relaxed), kind == ErrorKind::Io);
    }
}

#[test]
fn the_reader_does_steps_of_all_classes_in_turn() {
    let store = Store::open_on(Arc::new(SimMedium::new(12)), options(4 << 20)).unwrap();
    let tables = [DIM, 2 * DIM].map(|embedding_dim| {
        let name = format!("t{embedding_dim}");
        let spec = spec(&name, Some(700), OptimizerKind::Sgd);
        store.table(&TableSpec { embedding_dim, ..spec }).unwrap()
    });
    let wishes = [0, 1].map(|class| Probe::around(&store, class));
    wishes.iter().for_each(|wishes| set(&wishes.steps, usize::MAX));
    put(&store, tables[0]).unwrap();
    assert!(wishes.iter().all(|wishes| count(&wishes.begun) == 1));
    store
        .announce(&[LookaheadBatch { table: tables[0], keys: &[1, 2], next: &[] }])
        .unwrap()
        .unwrap();
    wishes.iter().for_each(|wishes| set(&wishes.paid, usize::MAX));
    put(&store, tables[0]).unwrap();
    wait_until(|| count(&wishes[0].stepped) > 100);
    assert!(count(&wishes[1].stepped) > 80, "{} steps", count(&wishes[1].stepped));
}
