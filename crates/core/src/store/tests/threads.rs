//! Verbs from several threads: no update is lost, whatever is evicted, cleaned or committed.

use super::*;

/// With SGD at rate 1 and small whole gradients, sums in float32 are exact in any order.
const RATE: Hyper = Hyper { lr: 1.0, ..HYPER };

fn train(store: &Store, table: TableId, keys: &[u64], seed: u64) -> BTreeMap<u64, f32> {
    let mut random = Random(seed);
    let mut sums = BTreeMap::new();
    for _ in 0..60 {
        let n = 1 + random.below(200) as usize;
        let batch: Vec<u64> =
            (0..n).map(|_| keys[random.below(keys.len() as u64) as usize]).collect();
        let gradients: Vec<f32> =
            batch.iter().flat_map(|key| [(key % 3) as f32 - 4.0; DIM]).collect();
        for key in &batch {
            *sums.entry(*key).or_insert(0.0) += (*key % 3) as f32 - 4.0;
        }
        let update = UpdateBatch {
            table,
            keys: &batch,
            gradients: &gradients,
            hyper: RATE,
            non_finite: NonFinite::Refuse,
            step: None,
        };
        store.update(&[update]).unwrap();
        let mut values = vec![0.0; n * DIM];
        let get = GetBatch { table, keys: &batch, values: (&mut values).into(), state: None };
        store.get(&mut [get]).unwrap();
        for row in values.chunks_exact(DIM) {
            assert!(row.iter().all(|v| *v == row[0]), "a row was seen half updated: {row:?}");
        }
    }
    sums
}

#[test]
fn four_threads_lose_no_update_and_see_no_half_row() {
    each_kind_or_direct(|| {
        for (seed, rows) in [(1, Some(600)), (2, None)] {
            let medium = SimMedium::new(seed);
            let store = Store::open_on(Arc::new(medium.clone()), options(400 << 10)).unwrap();
            let spec = TableSpec {
                initializer: Initializer::Constant(0.0),
                ..spec("shared", rows, OptimizerKind::Sgd)
            };
            let table = store.table(&spec).unwrap();
            let keys: Vec<u64> = match rows {
                Some(rows) => (0..rows).collect(),
                None => (0..600u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect(),
            };
            let mut expected: BTreeMap<u64, f32> = BTreeMap::new();
            std::thread::scope(|scope| {
                let trainers: Vec<_> = (0..4)
                    .map(|i| {
                        let (store, keys) = (&store, &keys);
                        scope.spawn(move || train(store, table, keys, seed * 100 + i))
                    })
                    .collect();
                let committer = scope.spawn(|| {
                    for step in 0..10 {
                        store.commit(step, "", &[]).unwrap();
                    }
                });
                for trainer in trainers {
                    for (key, sum) in trainer.join().unwrap() {
                        *expected.entry(key).or_insert(0.0) -= sum;
                    }
                }
                committer.join().unwrap();
            });
            store.commit(99, "", &[]).unwrap();
            store.close().unwrap();
            let store = Store::open_on(Arc::new(medium), options(400 << 10)).unwrap();
            let keys: Vec<u64> = expected.keys().copied().collect();
            let mut values = vec![0.0; keys.len() * DIM];
            let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
            store.get(&mut [get]).unwrap();
            for (i, key) in keys.iter().enumerate() {
                assert_eq!(values[i * DIM], expected[key], "seed {seed} key {key}");
            }
            assert_eq!(store.table_info(table).unwrap().updates, 240);
        }
    });
}

// The device was measured while the engine was held, and all verbs waited for up to seconds.
#[test]
fn rows_are_read_while_the_device_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = Store::open(&path, StoreOptions::new(Memory::Bytes(16 << 20))).unwrap();
    if !store.stats().unwrap().device.direct {
        return; // Nothing is measured if reads do not reach the device.
    }
    let first = spec("first", Some(100), OptimizerKind::None);
    let table = store.table_in_pages(&first, Some(4096)).unwrap();
    let (keys, values) = ([1, 2], [1.0; 2 * DIM]);
    store.put(&[put_of(table, &keys, &values)]).unwrap();
    let is_measuring = || path.join(super::super::tables::MEASURE).exists();
    std::thread::scope(|scope| {
        let making = scope.spawn(|| {
            // So large that what a smaller one has measured in this process does not do.
            let ids = Some(600_000);
            let wide = TableSpec { embedding_dim: 64, ..spec("wide", ids, OptimizerKind::None) };
            store.table(&wide).unwrap()
        });
        while !is_measuring() && !making.is_finished() {
            std::thread::yield_now();
        }
        let mut reads = 0;
        while is_measuring() {
            let mut found = [0.0; 2 * DIM];
            let get = GetBatch { table, keys: &keys, values: (&mut found[..]).into(), state: None };
            store.get(&mut [get]).unwrap();
            assert_eq!(found, values);
            reads += 1;
        }
        making.join().unwrap();
        assert!(reads > 5, "{reads} reads while the device was measured");
    });
    assert!(store.stats().unwrap().device.curve.is_some(), "nothing was measured");
}

#[test]
fn threads_that_make_one_table_get_the_same() {
    let medium = SimMedium::new(3);
    let store = Store::open_on(Arc::new(medium), options(1 << 20)).unwrap();
    let made: Vec<TableId> = std::thread::scope(|scope| {
        let make = || store.table(&spec("t", Some(10), OptimizerKind::None)).unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|table| *table == made[0]));
    assert_eq!(store.tables().len(), 1);
}
