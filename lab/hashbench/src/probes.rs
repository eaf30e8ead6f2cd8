//! Buckets that look-ups visit, counted by PETHash itself.

use crate::keys::scatter;
use embedrock_pmem::{ABSENT, Geometry, Mapped, PetHash};
use serde_json::{Value, json};

/// Changes between two calls of re-homing, which then goes over as many buckets as make four
/// passes in all.
const CHANGES_PER_REHOMING: u64 = 64;

/// An empty index for so many keys at its load, which is 0.8, in memory of this process.
pub(crate) fn in_memory(keys: u64) -> Result<PetHash<Mapped>, String> {
    let geometry = Geometry::of_index(keys).map_err(|error| error.to_string())?;
    let medium = Mapped::anonymous(geometry.bytes()).map_err(|error| error.to_string())?;
    PetHash::format(medium, geometry).map_err(|error| error.to_string())
}

/// Adds up what look-ups visit.
#[derive(Default)]
struct Visited {
    buckets: u64,
    within_three: u64,
    look_ups: u64,
    mismatches: u64,
}

impl Visited {
    fn of(index: &PetHash<Mapped>, pairs: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut visited = Self::default();
        for (key, expected) in pairs {
            let (value, probes) = index.get_counted(key).expect("nobody damages it");
            visited.buckets += probes;
            visited.within_three += u64::from(probes <= 3);
            visited.look_ups += 1;
            visited.mismatches += u64::from(value != expected);
        }
        visited
    }

    fn mean(&self) -> f64 {
        self.buckets as f64 / self.look_ups as f64
    }
}

fn answer(hits: &Visited, misses: &Visited) -> Value {
    json!({
        "hit": hits.mean(),
        "miss": misses.mean(),
        "within_three": hits.within_three as f64 / hits.look_ups as f64,
        "rows_verified": hits.look_ups + misses.look_ups,
        "mismatches": hits.mismatches + misses.mismatches,
    })
}

/// Visits in an index that was filled in one go.
pub(crate) fn fresh(keys: u64, shift: Option<u32>) -> Result<Value, String> {
    if keys == 0 || shift.is_some_and(|shift| keys.leading_zeros() <= shift + 1) {
        return Err(format!("{keys} keys, shifted by {shift:?} bits, are none or too large"));
    }
    let key = |i: u64| shift.map_or_else(|| scatter(i), |shift| i << shift);
    let index = in_memory(keys)?;
    for i in 0..keys {
        index.put(key(i), i).map_err(|error| error.to_string())?;
    }
    let hits = Visited::of(&index, (0..keys).map(|i| (key(i), i)));
    let misses = Visited::of(&index, (keys..2 * keys).map(|i| (key(i), ABSENT)));
    Ok(answer(&hits, &misses))
}

/// Visits after twice as many removals and insertions as there are keys, one after the other. With
/// re-homing, four passes over all buckets go on beside them, and one follows.
pub(crate) fn after_turnover(keys: u64, rehoming: bool) -> Result<Value, String> {
    let index = in_memory(keys)?;
    for key in 0..keys {
        index.put(key, key).map_err(|error| error.to_string())?;
    }
    let mut present: Vec<u64> = (0..keys).collect();
    let mut moved = 0;
    for turn in 0..2 * keys {
        let at = scatter(turn) as usize % present.len();
        index.remove(present[at], |_| {}).map_err(|error| error.to_string())?;
        present[at] = keys + turn;
        index.put(present[at], present[at]).map_err(|error| error.to_string())?;
        if rehoming && (turn + 1) % CHANGES_PER_REHOMING == 0 {
            let step = index.buckets() * 4 * CHANGES_PER_REHOMING / (2 * keys) + 1;
            let first = turn / CHANGES_PER_REHOMING * step % index.buckets();
            moved += index.rehome(first, step).map_err(|error| error.to_string())?.moved;
        }
    }
    let count = || {
        let hits = Visited::of(&index, present.iter().map(|key| (*key, *key)));
        let misses = Visited::of(&index, (0..keys).map(|i| (u64::MAX - i, ABSENT)));
        answer(&hits, &misses)
    };
    let mut found = count();
    if rehoming {
        let before = found;
        moved += index.rehome(0, u64::MAX).map_err(|error| error.to_string())?.moved;
        found = count();
        found["hit_before_last_pass"] = before["hit"].clone();
        found["miss_before_last_pass"] = before["miss"].clone();
    }
    found["moved"] = moved.into();
    let checked = index.check().map_err(|error| error.to_string())?;
    found["displaced"] = checked.displaced.into();
    Ok(found)
}
