//! Random lives of rows against a map, with openings in between.

use super::{ROW_BYTES, row, small, verify};
use crate::error::ErrorKind;
use crate::rows::Rows;
use crate::shadow::{Random, Shadow};
use std::collections::HashMap;
use std::sync::Arc;

#[test]
fn random_lives_agree_with_a_map_over_many_openings() {
    for seed in 1..=30 {
        let mut random = Random(seed);
        let geometry = small(7, 80);
        let shadow = Shadow::new(&vec![0; geometry.bytes() / 8]);
        let mut rows = Rows::format(Arc::clone(&shadow), geometry).expect("format");
        let mut model: HashMap<u64, u64> = HashMap::new();
        for version in 1..600 {
            let keys: Vec<u64> =
                (0..1 + random.below(5)).map(|_| random.below(120) << 32).collect();
            match random.below(10) {
                0..5 => {
                    let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, version)).collect();
                    let new = keys.iter().filter(|key| !model.contains_key(key)).count();
                    match rows.put(&keys, &bytes) {
                        Ok(()) => {
                            model.extend(keys.iter().map(|key| (*key, version)));
                            assert!(model.len() <= 80, "seed {seed}: {} rows", model.len());
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                            assert!(model.len() + new > 80, "{error}");
                        }
                    }
                }
                5..8 => {
                    let present = keys.iter().filter(|key| model.remove(key).is_some()).count();
                    assert_eq!(rows.remove(&keys).expect("remove"), present);
                }
                8 => {
                    rows.rehome(3).expect("rehome");
                    rows.promote(&keys).expect("promote");
                }
                _ => {
                    drop(rows);
                    shadow.take_events();
                    rows = Rows::recover(Arc::clone(&shadow)).expect("recovery");
                }
            }
            let (mut bytes, mut found) =
                (vec![0xee; keys.len() * ROW_BYTES], vec![false; keys.len()]);
            let count = rows.get(&keys, &mut bytes, &mut found).expect("get");
            assert_eq!(count, found.iter().filter(|found| **found).count());
            for ((key, found), bytes) in keys.iter().zip(found).zip(bytes.chunks(ROW_BYTES)) {
                let expected = model.get(key).map(|version| row(*key, *version));
                assert_eq!(found, expected.is_some(), "seed {seed}");
                assert_eq!(bytes, expected.unwrap_or(vec![0xee; ROW_BYTES]), "seed {seed}");
            }
        }
        drop(rows);
        verify(&Rows::recover(Arc::clone(&shadow)).expect("recovery"), &model);
    }
}
