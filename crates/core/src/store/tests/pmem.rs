//! Tables on persistent memory: verbs beside a plain map, rows that no commit has, what is refused.

use super::*;
use crate::config::LookaheadBatch;

fn with_pmem(test: impl Fn()) {
    with_kind(StorageKind::Pmem, test);
}

#[test]
fn random_verbs_beside_a_plain_map_whatever_commits_and_openings_come_between() {
    with_pmem(|| {
        let fixture = Fixture::new();
        for seed in 1..=3 {
            let medium = SimMedium::new(seed);
            let (mut random, mut model) = (Random(seed), Model::default());
            let mut store = fixture.open(&medium, options(1 << 20));
            store.commit(0, "", &[]).unwrap();
            for step in 1..=400 {
                fixture.step(&store, &mut model, &mut random);
                match random.below(40) {
                    0 => drop(store.commit(step, "", &[]).unwrap()),
                    1 => {
                        // Counts of updates belong to commits, rows do not.
                        if random.below(2) == 0 {
                            store.commit(step, "", &[]).unwrap();
                        } else {
                            let counts = fixture.counts_of(&store);
                            model.updates = counts;
                        }
                        let lost = store.close().unwrap();
                        assert_eq!(lost.rows, 0, "all of it is durable");
                        store = fixture.open(&medium, options(1 << 20));
                    }
                    _ => {}
                }
            }
            fixture.check_all(&store, &model);
        }
    });
}

impl Fixture {
    /// Updates of each table by the last commit: what an opening goes on from.
    fn counts_of(&self, store: &Store) -> BTreeMap<u16, u64> {
        let kept = store.inner.history.lock().kept.last().cloned().unwrap();
        kept.tables.iter().filter(|t| t.updates > 0).map(|t| (t.id, t.updates)).collect()
    }
}

#[test]
fn keys_of_a_batch_that_do_not_fit_change_nothing_of_any_table() {
    with_pmem(|| {
        let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
        let small = TableSpec { capacity: Some(10), ..spec("small", None, OptimizerKind::Sgd) };
        let small = store.table(&small).unwrap();
        let log = TableSpec {
            storage: StorageKind::Log,
            capacity: None,
            ..spec("log", Some(50), OptimizerKind::Sgd)
        };
        let log = store.table(&log).unwrap();
        let keys: Vec<u64> = (0..11).collect();
        let values = vec![1.0; 11 * DIM];
        for batches in [
            vec![put_of(log, &keys, &values), put_of(small, &keys, &values)],
            // Together they have too many, and a key of both counts once.
            vec![
                put_of(small, &keys[..6], &values[..6 * DIM]),
                put_of(small, &keys[5..], &values[..6 * DIM]),
            ],
        ] {
            let error = store.put(&batches).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            assert_eq!((store.len(small).unwrap(), store.len(log).unwrap()), (0, 0));
        }
        let batches = [
            put_of(small, &keys[..6], &values[..6 * DIM]),
            put_of(small, &keys[5..10], &values[..5 * DIM]),
        ];
        store.put(&batches).unwrap();
        assert_eq!(store.len(small).unwrap(), 10);
        assert!(!store.is_poisoned());
    });
}

#[test]
fn announced_keys_of_such_tables_are_not_read_ahead() {
    with_pmem(|| {
        let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
        let table = store.table(&spec("t", Some(100), OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..50).collect();
        store.put(&[put_of(table, &keys, &[1.0; 50 * DIM])]).unwrap();
        let batch = [LookaheadBatch { table, keys: &keys }];
        let number = store.announce(&batch).unwrap().unwrap();
        assert!(store.begin(number, std::time::Duration::from_secs(60)).unwrap());
        assert_eq!(store.row_reads().ahead, 0);
        store.finish(number).unwrap();
        assert_eq!(store.stats().unwrap().classes[0].resident_rows, 0);
    });
}
