//! One measurement: a cache, a trace, some threads.

use super::list_lfu::ListLfu;
use super::list_lru::ListLru;
use super::model::Model;
use super::replacement::{Counts, Replacement, word_of};
use super::sets::SetCache;
use super::trace::{Trace, Workload};
use embedrock_core::config::PolicyKind;
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::time::Instant;

/// A measurement to make.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    workload: Workload,
    /// Rows that fit, as a share of the ids, or of the trace's distinct ids.
    capacity: Capacity,
    cache: Kind,
    policy: PolicyKind,
    threads: usize,
    /// Batches before the timed ones; their rows are verified.
    warm_batches: usize,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Capacity {
    Ids(f64),
    Distinct(f64),
}

/// The measured cache.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Kind {
    /// The engine's.
    Sets { ways: usize, prefetching: bool },
    /// Lists under one lock, which is taken anew after so many keys.
    List { keys_per_lock: usize },
    /// The engine's rules, counted and not timed.
    Model { ways: usize, fading_uses: u32 },
}

/// The results of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Answer {
    accesses: u64,
    hits: u64,
    /// Wall time of the timed batches, and the most that one of the threads waited for a core.
    seconds: Option<f64>,
    waited: Option<f64>,
    distinct: u64,
    capacity: u64,
    bytes_beside_row: Option<f64>,
    resident: Option<u64>,
    /// Rows verified, and those that were wrong, lost or there twice.
    rows_verified: u64,
    mismatches: u64,
}

/// Keeps the last trace, which many runs share.
#[derive(Default)]
pub(crate) struct Runner {
    drawn: Option<(Workload, Trace)>,
}

impl Runner {
    /// Measures; the message says why it cannot be.
    pub(crate) fn answer(&mut self, run: &Run) -> Result<serde_json::Value, String> {
        if self.drawn.as_ref().is_none_or(|(workload, _)| *workload != run.workload) {
            self.drawn = None;
            self.drawn = Some((run.workload.clone(), run.workload.draw()?));
        }
        let Some((_, trace)) = &self.drawn else { return Err("no trace".into()) };
        let answer = run.measure(trace)?;
        serde_json::to_value(answer).map_err(|error| error.to_string())
    }
}

impl Run {
    fn measure(&self, trace: &Trace) -> Result<Answer, String> {
        let capacity = match self.capacity {
            Capacity::Ids(share) => share * f64::from(self.workload.ids),
            Capacity::Distinct(share) => share * trace.distinct as f64,
        } as u64;
        if capacity == 0 || capacity >= u64::from(u32::MAX) {
            return Err(format!("{:?} are {capacity} rows", self.capacity));
        }
        if self.warm_batches >= self.workload.batches || !(1..=64).contains(&self.threads) {
            return Err("expected timed batches, and 1 to 64 threads".into());
        }
        let warm = self.warm_batches * trace.batch;
        let cache: Box<dyn Replacement> = match (self.cache, self.policy) {
            (Kind::Model { ways, fading_uses }, policy) if ways > 0 => {
                return Ok(modelled(Model::new(capacity, ways, policy, fading_uses), trace, warm));
            }
            (Kind::Sets { ways, prefetching }, policy) => {
                Box::new(SetCache::new(self.workload.ids, capacity, ways, policy, prefetching)?)
            }
            (Kind::List { keys_per_lock }, PolicyKind::Lru) if keys_per_lock > 0 => {
                Box::new(ListLru::new(capacity as usize, keys_per_lock))
            }
            (Kind::List { keys_per_lock }, PolicyKind::Lfu) if keys_per_lock > 0 => {
                Box::new(ListLfu::new(capacity as usize, keys_per_lock))
            }
            (kind, _) => return Err(format!("{kind:?} is no cache")),
        };
        Ok(timed(&*cache, trace, warm, self.threads, u64::from(self.workload.ids)))
    }
}

fn modelled(mut model: Model, trace: &Trace, warm: usize) -> Answer {
    model.hits(&trace.keys[..warm]);
    let hits = model.hits(&trace.keys[warm..]);
    Answer {
        accesses: (trace.keys.len() - warm) as u64,
        hits,
        seconds: None,
        waited: None,
        distinct: trace.distinct,
        capacity: model.capacity(),
        bytes_beside_row: None,
        resident: None,
        rows_verified: 0,
        mismatches: 0,
    }
}

/// Each thread takes its part of every batch, and all begin a batch together.
fn timed(cache: &dyn Replacement, trace: &Trace, warm: usize, threads: usize, ids: u64) -> Answer {
    let barrier = Barrier::new(threads);
    let work = |thread: usize| {
        let (mut before, mut during) = (Counts::default(), Counts::default());
        let mut began = (Instant::now(), waited_so_far());
        for (number, batch) in trace.keys.chunks(trace.batch).enumerate() {
            let is_warm = number * trace.batch < warm;
            barrier.wait();
            if number * trace.batch == warm {
                began = (Instant::now(), waited_so_far());
            }
            let of = |thread| batch.len() * thread / threads;
            let counts = cache.access(&batch[of(thread)..of(thread + 1)], is_warm);
            if is_warm { before += counts } else { during += counts }
        }
        barrier.wait();
        let seconds = began.0.elapsed().as_secs_f64();
        let waited = waited_so_far().zip(began.1).map(|(now, then)| now - then);
        (before, during, seconds, waited)
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || work(t))).collect();
        let first = work(0);
        let others = others.into_iter().map(|other| other.join().expect("no panic"));
        std::iter::once(first).chain(others).collect()
    });
    let (mut before, mut during) = (Counts::default(), Counts::default());
    for one in &all {
        before += one.0;
        during += one.1;
    }
    let accesses = trace.keys.len() as u64;
    let admitted = accesses - before.hits - during.hits;
    let (resident, wrong) = verify(cache, ids);
    let lost = (admitted - before.evicted - during.evicted).abs_diff(resident);
    Answer {
        accesses: accesses - warm as u64,
        hits: during.hits,
        seconds: Some(all[0].2),
        waited: all.iter().map(|one| one.3).max_by(f64_order).flatten(),
        distinct: trace.distinct,
        capacity: cache.capacity(),
        bytes_beside_row: Some(cache.bytes_beside_rows() as f64 / cache.capacity() as f64),
        resident: Some(resident),
        rows_verified: before.hits + before.evicted + resident,
        mismatches: before.wrong + during.wrong + wrong + lost,
    }
}

fn f64_order(a: &Option<f64>, b: &Option<f64>) -> std::cmp::Ordering {
    a.unwrap_or(0.0).total_cmp(&b.unwrap_or(0.0))
}

/// Resident rows, and how many are wrong or there twice.
fn verify(cache: &dyn Replacement, ids: u64) -> (u64, u64) {
    let (mut resident, mut wrong) = (0, 0);
    let mut seen = vec![false; ids as usize];
    cache.for_each_resident(&mut |key, word| {
        resident += 1;
        let again = std::mem::replace(&mut seen[key as usize], true);
        wrong += u64::from(again || word != word_of(key));
    });
    (resident, wrong)
}

/// Seconds that this thread was runnable without a core, where the kernel counts them.
fn waited_so_far() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(cache: serde_json::Value, policy: &str, threads: usize) -> Answer {
        let run: Run = serde_json::from_value(json!({
            "workload": {
                "ids": 3000, "skew": {"zipf": 0.9}, "drift": 0.02, "batches": 12, "batch": 4000,
                "seed": 1,
            },
            "capacity": {"distinct": 0.5},
            "cache": cache,
            "policy": policy,
            "threads": threads,
            "warm_batches": 4,
        }))
        .unwrap();
        run.measure(&run.workload.draw().unwrap()).unwrap()
    }

    #[test]
    fn every_cache_is_verified_and_loses_no_row_with_one_thread_and_two() {
        for cache in [
            json!({"sets": {"ways": 8, "prefetching": true}}),
            json!({"sets": {"ways": 32, "prefetching": false}}),
            json!({"list": {"keys_per_lock": 1}}),
            json!({"list": {"keys_per_lock": 64}}),
        ] {
            for (policy, threads) in [("lru", 1), ("lfu", 1), ("lru", 2), ("lfu", 3)] {
                let found = answer(cache.clone(), policy, threads);
                assert_eq!(found.mismatches, 0, "{cache}, {policy}, {threads} threads");
                assert_eq!(found.accesses, 32_000);
                assert!((0.4..0.95).contains(&(found.hits as f64 / 32_000.0)), "{found:?}");
                assert!(found.rows_verified > found.capacity && found.seconds > Some(0.0));
                assert!(found.resident.is_some_and(|rows| rows * 10 > found.capacity * 9));
            }
        }
    }

    #[test]
    fn a_model_of_the_same_sets_hits_nearly_as_often() {
        for policy in ["lru", "lfu"] {
            let engine = answer(json!({"sets": {"ways": 32, "prefetching": true}}), policy, 1);
            let model = answer(json!({"model": {"ways": 32, "fading_uses": 480}}), policy, 1);
            let (engine, model) = (engine.hits as f64 / 32e3, model.hits as f64 / 32e3);
            assert!((engine - model).abs() < 0.01, "{policy}: {engine}, {model}");
        }
    }

    #[test]
    fn what_cannot_be_measured_says_why() {
        let mut runner = Runner::default();
        let broken = |cache, share: f64, warm: usize| {
            serde_json::from_value::<Run>(json!({
                "workload": {
                    "ids": 100, "skew": {"share": [0.8, 0.2]}, "drift": 0.0, "batches": 2,
                    "batch": 10, "seed": 1,
                },
                "capacity": {"ids": share}, "cache": cache, "policy": "lru", "threads": 1,
                "warm_batches": warm,
            }))
            .unwrap()
        };
        let list = json!({"list": {"keys_per_lock": 1}});
        for (cache, share, warm, part) in [
            (json!({"sets": {"ways": 64, "prefetching": true}}), 0.9, 1, "64"),
            (json!({"sets": {"ways": 0, "prefetching": true}}), 0.9, 1, "0 rows"),
            (json!({"list": {"keys_per_lock": 0}}), 0.5, 1, "no cache"),
            (list.clone(), 0.0, 1, "0 rows"),
            (list, 0.5, 2, "timed batches"),
        ] {
            let message = runner.answer(&broken(cache, share, warm)).unwrap_err();
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }
}
