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
