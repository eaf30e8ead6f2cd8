//! Units of upkeep as the store runs them, with a storage that counts what becomes of them. It says
//! itself which units it has, so that the kind of storage beneath makes no difference.

use super::probe::{Probe, Wishes};
use super::*;
use std::sync::atomic::AtomicUsize;

/// A store with a dense table, whose storage is a probe.
fn probed(medium: &SimMedium) -> (Store, TableId, Arc<Wishes>) {
    let store = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
    let table = store.table(&spec("t", Some(700), OptimizerKind::Sgd)).unwrap();
    let wishes = Probe::around(&store, 0);
    let weak = Arc::downgrade(&store.inner);
    // Who has the engine alone has its classes, too.
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
    store.announce(&[LookaheadBatch { table, keys: &[1, 2] }]).unwrap().unwrap();
    set(&wishes.paid, 9);
    put(&store, table).unwrap();
    assert_eq!(count(&wishes.stepped), 1, "nothing is read ahead");
    let upkeep = store.stats().unwrap().upkeep;
    assert!(upkeep.put_off > 0 && upkeep.steps == 1, "{upkeep:?}");
    wishes.presses.store(true, Ordering::Relaxed);
    put(&store, table).unwrap();
    assert_eq!((count(&wishes.stepped), count(&wishes.installed)), (10, 2), "at the floor");
}
