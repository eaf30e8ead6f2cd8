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
        let batch = [LookaheadBatch { table, keys: &keys, next: &[] }];
        let number = store.announce(&batch).unwrap().unwrap();
        assert!(store.begin(number, std::time::Duration::from_secs(60)).unwrap());
        assert_eq!(store.row_reads().ahead, 0);
        store.finish(number).unwrap();
        assert_eq!(store.stats().unwrap().classes[0].resident_rows, 0);
    });
}

#[test]
fn lent_rows_are_those_of_get_and_stay_whatever_is_written_meanwhile() {
    with_pmem(|| {
        let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
        // Optimizer state lies behind the values.
        let tables = [OptimizerKind::Sgd, OptimizerKind::Adam].map(|kind| {
            let table = store.table(&spec(kind.name(), Some(100), kind)).unwrap();
            let keys: Vec<u64> = (0..100).step_by(3).collect();
            let values: Vec<f32> = (0..keys.len() * DIM).map(|i| i as f32).collect();
            store.put(&[put_of(table, &keys, &values)]).unwrap();
            table
        });
        let keys: Vec<u64> = (0..100).rev().chain([3, 3, 4]).collect();
        let got = tables.map(|table| {
            let mut values = vec![0.0; keys.len() * DIM];
            let batch =
                GetBatch { table, keys: &keys, values: (&mut values[..]).into(), state: None };
            store.get(&mut [batch]).unwrap();
            values
        });
        let views = store.view(&tables.map(|table| (table, &keys[..]))).unwrap().expect("lent");
        for table in tables {
            store.put(&[put_of(table, &[3, 4, 9], &[-1.0; 3 * DIM])]).unwrap();
            store.delete(table, &[6]).unwrap();
        }
        store.close().unwrap();
        for (views, got) in views.iter().zip(&got) {
            assert_eq!((views.len(), views.row_bytes()), (103, DIM * 4));
            let mut initial = views.missing().iter().zip(views.initial().chunks_exact(DIM));
            for (at, expected) in got.chunks_exact(DIM).enumerate() {
                let Some(words) = views.row(at) else {
                    assert_eq!(initial.next(), Some((&(at as u32), expected)), "key {}", keys[at]);
                    continue;
                };
                let words = words.iter().map(|word| word.load(Ordering::Relaxed));
                let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take(DIM * 4).collect();
                assert_eq!(bytes, bytemuck::cast_slice::<f32, u8>(expected));
                assert!(keys[at].is_multiple_of(3));
            }
            assert_eq!((initial.next(), views.missing().len()), (None, 67));
        }
    });
}

#[test]
fn rows_that_are_not_float32_in_mapped_memory_are_not_lent() {
    with_pmem(|| {
        let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
        let of = |name: &str, change: fn(&mut TableSpec)| {
            let mut spec = spec(name, Some(100), OptimizerKind::Sgd);
            change(&mut spec);
            store.table(&spec).unwrap()
        };
        let lent = of("lent", |_| ());
        let half = of("half", |spec| spec.dtype = Dtype::Float16);
        let log = of("log", |spec| spec.storage = StorageKind::Log);
        let view = |tables: &[TableId]| {
            let batches: Vec<(TableId, &[u64])> = tables.iter().map(|t| (*t, &[1][..])).collect();
            store.view(&batches).unwrap().map(|views| views.len())
        };
        assert_eq!((view(&[]), view(&[lent, lent])), (Some(0), Some(2)));
        assert_eq!((view(&[half]), view(&[lent, log])), (None, None));
        let error = store.view(&[(lent, &[100])]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KeyRange);
    });
}

#[test]
fn nothing_is_lent_for_a_while_once_a_writer_had_to_wait_for_lent_rows() {
    with_pmem(|| {
        let store = Store::open_on(Arc::new(SimMedium::new(1)), options(1 << 20)).unwrap();
        let table = store.table(&spec("t", Some(100), OptimizerKind::Sgd)).unwrap();
        let keys: Vec<u64> = (0..100).collect();
        let views = store.view(&[(table, &keys)]).unwrap().expect("lent");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Many times the row slots of the region.
                for version in 0..40 {
                    store.put(&[put_of(table, &keys, &[version as f32; 100 * DIM])]).unwrap();
                }
            });
            while !views[0].is_wanted() {
                std::thread::yield_now();
            }
            assert!(store.view(&[(table, &keys)]).unwrap().is_none());
            drop(views);
        });
        assert!(store.view(&[(table, &keys)]).unwrap().is_none());
    });
}

#[test]
fn rows_may_be_as_wide_as_a_region_takes() {
    use crate::row::{PAGE_BYTES_MAX, ROW_BYTES_MAX};
    with_kind(StorageKind::Pmem, || {
        let dim = ROW_BYTES_MAX / 4;
        let wide = TableSpec {
            embedding_dim: dim,
            capacity: Some(3),
            initializer: Initializer::Constant(0.25),
            ..spec("wide", None, OptimizerKind::None)
        };
        let too_wide = TableSpec { embedding_dim: dim + 1, ..wide.clone() };
        let in_pages = TableSpec {
            storage: StorageKind::Log,
            capacity: None,
            embedding_dim: PAGE_BYTES_MAX / 4 + 1,
            ..wide.clone()
        };
        let medium = SimMedium::new(1);
        // Rows that are never in memory take none of the budget.
        let open = || Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
        let store = open();
        for (spec, most) in [(too_wide, "at most 1048576"), (in_pages, "at most 65536 fit a page")]
        {
            let error = store.table(&spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
            assert!(error.message().contains(most), "{error}");
        }
        let table = store.table(&wide).unwrap();
        let values: Vec<f32> = (0..2 * dim).map(|i| i as f32).collect();
        store.put(&[put_of(table, &[7, 1 << 40], &values)]).unwrap();
        store.put(&[put_of(table, &[1 << 40], &values[..dim])]).unwrap();
        store.commit(1, "", &[]).unwrap();
        store.close().unwrap();
        let store = open();
        assert_eq!((store.len(table).unwrap(), store.table(&wide).unwrap()), (2, table));
        let mut found = vec![9.0; 3 * dim];
        let keys = [7, 1 << 40, 8];
        let out = (&mut found[..]).into();
        store.get(&mut [GetBatch { table, keys: &keys, values: out, state: None }]).unwrap();
        assert_eq!(found[..dim], values[..dim]);
        assert_eq!(found[dim..2 * dim], values[..dim]);
        assert!(found[2 * dim..].iter().all(|value| *value == 0.25));
        let mut scan = store.scan(table).unwrap();
        let (mut keys, mut rows) = (vec![0; 4], vec![0.0; 4 * dim]);
        assert_eq!(scan.next_batch(&mut keys, &mut rows, None).unwrap(), 2);
        drop(scan);
        assert_eq!(store.delete(table, &[7]).unwrap(), 1);
    });
}
