//! The maps that are compared, and how a batch of keys is looked up in each.
//!
//! All have 8-byte keys and values and [`Mixing`] as their hash function. PETHash takes a batch and
//! asks for memory ahead. No other map offers that: their look-ups come one after the other, and
//! whatever guard a map wants is taken once for a batch where its interface allows it.

use crate::keys::{Mixing, scatter, waited};
use crate::probes::in_memory;
use embedrock_pmem::{ABSENT, Geometry, Mapped, PetHash, Prefetch};
use serde::Deserialize;
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// The measured map.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MapName {
    /// PETHash in memory of this process, on huge pages where the kernel gives them.
    Pethash,
    /// PETHash in a file that has no name any longer.
    PethashFile,
    Papaya,
    Dashmap,
    Scc,
    Hashbrown,
}

/// The prefetching of PETHash.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Ahead {
    None,
    NextKey,
    Staged,
}

/// Uniform keys of a map with so many keys, in batches.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LookUps {
    keys: u64,
    count: u64,
    batch: usize,
    seed: u64,
    ahead: Ahead,
    /// Every value is compared, and nothing is timed.
    verify: bool,
}

/// A map that was built.
pub(crate) enum Map {
    Pethash(PetHash<Mapped>),
    Papaya(papaya::HashMap<u64, u64, Mixing>),
    Dashmap(dashmap::DashMap<u64, u64, Mixing>),
    Scc(scc::HashIndex<u64, u64, Mixing>),
    Hashbrown(hashbrown::HashMap<u64, u64, Mixing>),
}

fn pairs(keys: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..keys).map(|i| (scatter(i), i))
}

impl Map {
    /// Makes a map with room for so many keys, and puts them in.
    pub(crate) fn build(name: MapName, keys: u64, folder: &Path) -> Result<Self, String> {
        let filled = |index: PetHash<Mapped>| {
            for (key, value) in pairs(keys) {
                index.put(key, value).map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(Self::Pethash(index))
        };
        let capacity = usize::try_from(keys).map_err(|error| error.to_string())?;
        Ok(match name {
            MapName::Pethash => filled(in_memory(keys)?)?,
            MapName::PethashFile => filled(in_file(keys, folder)?)?,
            MapName::Papaya => {
                let map = papaya::HashMap::builder().capacity(capacity).hasher(Mixing).build();
                pairs(keys).for_each(|(key, value)| {
                    map.pin().insert(key, value);
                });
                Self::Papaya(map)
            }
            MapName::Dashmap => {
                let map = dashmap::DashMap::with_capacity_and_hasher(capacity, Mixing);
                pairs(keys).for_each(|(key, value)| {
                    map.insert(key, value);
                });
                Self::Dashmap(map)
            }
            MapName::Scc => {
                let map = scc::HashIndex::with_capacity_and_hasher(capacity, Mixing);
                for (key, value) in pairs(keys) {
                    map.insert_sync(key, value).map_err(|(key, _)| format!("{key} came twice"))?;
                }
                Self::Scc(map)
            }
            MapName::Hashbrown => {
                let mut map = hashbrown::HashMap::with_capacity_and_hasher(capacity, Mixing);
                map.extend(pairs(keys));
                Self::Hashbrown(map)
            }
        })
    }

    /// Times look-ups, or verifies them.
    pub(crate) fn look_up(&self, of: &LookUps) -> Result<Value, String> {
        if of.keys == 0 || of.batch == 0 {
            return Err("expected keys, and batches of at least one".into());
        }
        // A seed has look-ups of its own.
        let draw = |i: u64| scatter(i ^ of.seed << 40) % of.keys;
        let expected: Vec<u64> = (0..of.count).map(draw).collect();
        let keys: Vec<u64> = expected.iter().map(|value| scatter(*value)).collect();
        if of.verify {
            let mut verified = 0;
            let mut mismatches = 0;
            self.batches(&keys, of, |values| {
                let wanted = &expected[verified..verified + values.len()];
                mismatches += values.iter().zip(wanted).filter(|(a, b)| a != b).count();
                verified += values.len();
            })?;
            return Ok(json!({ "rows_verified": verified, "mismatches": mismatches }));
        }
        let mut sum = 0u64;
        let waited_before = waited();
        let began = Instant::now();
        self.batches(black_box(&keys), of, |values| {
            sum = values.iter().fold(sum, |sum, value| sum.wrapping_add(*value));
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let waited = waited_before.zip(waited()).map(|(before, after)| after - before);
        let wanted = expected.iter().fold(0u64, |sum, value| sum.wrapping_add(*value));
        Ok(json!({
            "look_ups": keys.len(),
            "seconds": seconds,
            "waited": waited,
            "mismatches": u64::from(sum != wanted),
        }))
    }

    /// Gives the values of each batch to `take`.
    fn batches(
        &self,
        keys: &[u64],
        of: &LookUps,
        mut take: impl FnMut(&[u64]),
    ) -> Result<(), String> {
        let mut values = vec![0; of.batch];
        for keys in keys.chunks(of.batch) {
            let values = &mut values[..keys.len()];
            match self {
                Self::Pethash(index) => {
                    let ahead = match of.ahead {
                        Ahead::None => Prefetch::None,
                        Ahead::NextKey => Prefetch::NextKey,
                        Ahead::Staged => Prefetch::Staged,
                    };
                    index.get_batch(keys, ahead, values).map_err(|error| error.to_string())?;
                }
                Self::Papaya(map) => {
                    let pinned = map.pin();
                    one_by_one(keys, values, |key| pinned.get(key).copied());
                }
                Self::Dashmap(map) => {
                    one_by_one(keys, values, |key| map.get(key).map(|value| *value));
                }
                Self::Scc(map) => {
                    let guard = scc::Guard::new();
                    one_by_one(keys, values, |key| map.peek(key, &guard).copied());
                }
                Self::Hashbrown(map) => one_by_one(keys, values, |key| map.get(key).copied()),
            }
            take(values);
        }
        Ok(())
    }
}

#[inline(always)]
fn one_by_one(keys: &[u64], values: &mut [u64], get: impl Fn(&u64) -> Option<u64>) {
    for (key, value) in keys.iter().zip(values) {
        *value = get(key).unwrap_or(ABSENT);
    }
}

fn in_file(keys: u64, folder: &Path) -> Result<PetHash<Mapped>, String> {
    let geometry = Geometry::of_index(keys).map_err(|error| error.to_string())?;
    let path = folder.join(format!("pethash-{}", std::process::id()));
    let medium = Mapped::create(&path, geometry.bytes()).map_err(|error| error.to_string())?;
    // The mapping keeps it.
    std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    PetHash::format(medium, geometry).map_err(|error| error.to_string())
}
