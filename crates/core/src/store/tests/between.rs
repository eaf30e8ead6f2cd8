//! Readers between every two operations of a writer that changes names: whatever is there at that
//! instant is a sound store, and is called so.

use super::meddled::{Doing, Meddled};
use super::*;
use crate::store::sweeps::freeze::FreezeOptions;
use std::sync::atomic::AtomicU64;

const ROWS: u64 = 500;
const COMMITS: u64 = 27;

fn reading() -> StoreOptions {
    StoreOptions { read_only: true, ..options(1 << 20) }
}

fn spec_of_rows() -> TableSpec {
    spec("t", Some(ROWS), OptimizerKind::None)
}

fn write(store: &Store, table: TableId, step: u64) {
    let keys: Vec<u64> = (0..ROWS).collect();
    let values: Vec<f32> = keys.iter().flat_map(|key| [(key + 1000 * step) as f32; DIM]).collect();
    store.put(&[put_of(table, &keys, &values)]).unwrap();
}

/// Every row of the commit that is open, which is of the step of that commit.
fn read(store: &Store, what: &str) {
    let Some(commit) = store.last_commit() else { return };
    let Some(table) = store.find_table("t") else { return };
    let keys: Vec<u64> = (0..ROWS).step_by(7).collect();
    let mut values = vec![0.0; keys.len() * DIM];
    let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
    store.get(&mut [get]).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    for (key, row) in keys.iter().zip(values.chunks_exact(DIM)) {
        assert_eq!(row, [(key + 1000 * commit.step) as f32; DIM], "{what}: key {key}");
    }
    let state = store.state().unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_eq!(state[0].1, [commit.step as u8; 300], "{what}");
}

/// The readers at work between two operations.
struct Readers {
    medium: SimMedium,
    /// Moves on at each instant.
    follower: Store,
    /// Stays where it is for a while.
    idle: Store,
    looks: Arc<AtomicU64>,
}

impl Readers {
    fn new(medium: &SimMedium, looks: &Arc<AtomicU64>) -> Self {
        let open = || Store::open_on(Arc::new(medium.clone()), reading()).unwrap();
        let (follower, idle) = (open(), open());
        Self { medium: medium.clone(), follower, idle, looks: Arc::clone(looks) }
    }

    fn look(&mut self, (verb, name): Doing<'_>) {
        if !matches!(verb, "remove" | "rename" | "open") {
            return;
        }
        let what = format!("before the writer is about to {verb} {name}");
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        let fail = |error: Error| -> ! { panic!("{what}: {error:?}") };
        let opened = Store::open_on(Arc::new(self.medium.clone()), reading());
        let opened = opened.unwrap_or_else(|error| fail(error));
        read(&opened, &what);
        let before = self.follower.last_commit().map_or(0, |commit| commit.step);
        self.follower.refresh().unwrap_or_else(|error| fail(error));
        read(&self.follower, &what);
        match self.follower.changes(&Since::Step(before), None) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => fail(error),
        }
        read(&self.idle, &what);
        if looks % 40 == 39 {
            self.idle.refresh().unwrap_or_else(|error| fail(error));
        }
    }
}

// A sound store was called damaged ("journal-7 is missing; restore it from a copy") by a reader
// beside a writer that dropped that file.
#[test]
fn a_reader_between_any_two_removals_finds_a_sound_store() {
    for kind in [StorageKind::Log, StorageKind::Lsm, StorageKind::Pages] {
        with_kind(kind, || {
            let device = SimMedium::new(60);
            let meddled = Meddled::new(&device);
            let writing = StoreOptions { keep: 2, ..options(1 << 20) };
            let store = Store::open_on(meddled.clone(), writing.clone()).unwrap();
            let table = store.table(&spec_of_rows()).unwrap();
            let commit = |store: &Store, step: u64| {
                write(store, table, step);
                if kind == StorageKind::Pages && step.is_multiple_of(5) {
                    let options = FreezeOptions::new(Memory::Bytes(0));
                    store.freeze(&[], &options, &mut |_, _| Ok(())).unwrap();
                }
                store.commit(step, &"m".repeat(9000), &[("state", &[step as u8; 300])]).unwrap();
            };
            (1..4).for_each(|step| commit(&store, step));
            let looks = Arc::new(AtomicU64::new(0));
            let mut readers = Readers::new(&device, &looks);
            meddled.meddle(move |doing| {
                readers.look(doing);
                Ok(())
            });
            for step in 4..COMMITS {
                commit(&store, step);
                if step == 12 {
                    store.pin(step, "pinned").unwrap();
                }
            }
            store.unpin("pinned").unwrap();
            commit(&store, COMMITS);
            meddled.leave();
            let journals = device.list("journal-").unwrap();
            assert!(!journals.contains(&"journal-00000001".to_owned()), "{journals:?}");
            assert!(looks.load(Ordering::Relaxed) > 80, "{looks:?}");
        });
    }
}

// A follower that asked for changes while the writer dropped a journal file was told of damage.
#[test]
fn a_journal_file_that_goes_while_changes_are_looked_for_is_no_damage() {
    let device = SimMedium::new(61);
    let store = Store::open_on(Arc::new(device.clone()), options(1 << 20)).unwrap();
    let table = store.table(&spec_of_rows()).unwrap();
    let commit = |step: u64| {
        write(&store, table, step);
        store.commit(step, &"m".repeat(9000), &[("state", &[step as u8; 300])]).unwrap();
    };
    // Until there are two files of the journal.
    let mut step = 0;
    while device.list("journal-0").unwrap().len() < 2 {
        step += 1;
        commit(step);
    }
    let meddled = Meddled::new(&device);
    let reader = Store::open_on(meddled.clone(), reading()).unwrap();
    let oldest = device.list("journal-0").unwrap()[0].clone();
    let (gone, named) = (device.clone(), oldest.clone());
    meddled.meddle(move |(verb, name)| {
        if verb == "open" && name == named && gone.list(&named)? == [named.clone()] {
            gone.remove(&named)?;
        }
        Ok(())
    });
    let error = reader.changes(&Since::Step(0), None).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(device.list(&oldest).unwrap().is_empty());
}
