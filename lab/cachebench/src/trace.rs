//! The requested keys: skewed draws whose popularity may drift.

use embedrock_core::hash::mix;
use serde::Deserialize;

/// Skew of the popularity of ranks.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Skew {
    /// Rank r is drawn with weight r^-exponent.
    Zipf(f64),
    /// The first of these shares of the draws goes to the second of these shares of the ids.
    Share(f64, f64),
}

/// The parameters that determine a trace.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    /// Ids are 0 to this.
    pub(crate) ids: u32,
    /// Popularity by rank.
    pub(crate) skew: Skew,
    /// Share of the ranks that pass their ids on in a circle after each batch, drawn anew.
    pub(crate) drift: f64,
    /// Batches, and keys of each.
    pub(crate) batches: usize,
    pub(crate) batch: usize,
    /// The same seed draws the same keys.
    pub(crate) seed: u64,
}

/// A drawn workload.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) keys: Vec<u32>,
    /// Keys of a batch.
    pub(crate) batch: usize,
    /// Distinct keys.
    pub(crate) distinct: u64,
}

impl Workload {
    /// Draws the trace; the message says why it cannot be.
    pub(crate) fn draw(&self) -> Result<Trace, String> {
        let sane = match self.skew {
            Skew::Zipf(exponent) => exponent.is_finite() && exponent >= 0.0,
            Skew::Share(draws, ids) => [draws, ids].iter().all(|s| (0.0..1.0).contains(s)),
        };
        if self.ids < 2 || self.batches == 0 || self.batch == 0 || !sane {
            return Err(format!("{self:?} is no workload: expected ids, batches and shares of 1"));
        }
        if !(0.0..=1.0).contains(&self.drift) {
            return Err(format!("drift is {}, expected a share from 0 to 1", self.drift));
        }
        let mut random = Random { seed: mix(self.seed, 1), drawn: 0 };
        let mut ids: Vec<u32> = (0..self.ids).collect();
        for last in (1..ids.len()).rev() {
            ids.swap(last, random.below(last + 1));
        }
        let ranks = Ranks::new(self);
        let mut keys = Vec::with_capacity(self.batches * self.batch);
        for _ in 0..self.batches {
            keys.extend((0..self.batch).map(|_| ids[ranks.draw(&mut random)]));
            self.pass_on(&mut ids, &mut random);
        }
        let mut seen = vec![false; ids.len()];
        let distinct =
            keys.iter().filter(|key| !std::mem::replace(&mut seen[**key as usize], true));
        let distinct = distinct.count() as u64;
        Ok(Trace { keys, batch: self.batch, distinct })
    }

    fn pass_on(&self, ids: &mut [u32], random: &mut Random) {
        let moved = (self.drift * ids.len() as f64) as usize;
        let mut previous = random.below(ids.len());
        for _ in 1..moved {
            let next = random.below(ids.len());
            ids.swap(previous, next);
            previous = next;
        }
    }
}

/// Draws ranks.
enum Ranks {
    /// Share of the draws that go to a rank or a more popular one.
    Summed(Vec<f64>),
    /// Share of the draws that go to the first ranks, how many these are, and all ranks.
    Split(f64, usize, usize),
}

impl Ranks {
    fn new(workload: &Workload) -> Self {
        match workload.skew {
            Skew::Share(draws, ids) => {
                let all = workload.ids as usize;
                Self::Split(draws, ((ids * all as f64) as usize).clamp(1, all - 1), all)
            }
            Skew::Zipf(exponent) => {
                let mut sum = 0.0;
                let mut shares = Vec::with_capacity(workload.ids as usize);
                for rank in 1..=workload.ids {
                    sum += f64::from(rank).powf(-exponent);
                    shares.push(sum);
                }
                shares.iter_mut().for_each(|share| *share /= sum);
                Self::Summed(shares)
            }
        }
    }

    fn draw(&self, random: &mut Random) -> usize {
        match self {
            Self::Summed(shares) => {
                let share = random.share();
                shares.partition_point(|sum| *sum <= share).min(shares.len() - 1)
            }
            Self::Split(draws, popular, all) => match random.share() < *draws {
                true => random.below(*popular),
                false => popular + random.below(all - popular),
            },
        }
    }
}

/// Numbers that look random.
struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.drawn, self.seed)
    }

    /// From 0 to below 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(skew: Skew, drift: f64) -> Workload {
        Workload { ids: 1000, skew, drift, batches: 20, batch: 10_000, seed: 3 }
    }

    /// Number of draws of each id of a batch.
    fn counts(keys: &[u32]) -> Vec<u64> {
        let mut counts = vec![0; 1000];
        keys.iter().for_each(|key| counts[*key as usize] += 1);
        counts
    }

    #[test]
    fn draws_have_the_skew_that_was_asked_for() {
        let trace = workload(Skew::Share(0.8, 0.2), 0.0).draw().unwrap();
        let mut sorted = counts(&trace.keys);
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let popular: u64 = sorted[..200].iter().sum();
        assert!((popular as f64 / 200_000.0 - 0.8).abs() < 0.01, "{popular} of 200,000");
        let trace = workload(Skew::Zipf(0.9), 0.0).draw().unwrap();
        sorted = counts(&trace.keys);
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let all: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.9)).sum();
        let (first, found) = (1.0 / all, sorted[0] as f64 / 200_000.0);
        assert!((found / first - 1.0).abs() < 0.05, "{found}, expected {first}");
        assert_eq!(trace.distinct, sorted.iter().filter(|count| **count > 0).count() as u64);
    }

    #[test]
    fn popular_ids_change_gradually_under_drift_and_not_without() {
        // Of the hundred ids popular at first, how many are in the second and in the last batch.
        let kept = |drift| {
            let trace = workload(Skew::Share(0.99, 0.1), drift).draw().unwrap();
            let popular = |batch: usize| {
                let counts = counts(&trace.keys[batch * 10_000..][..10_000]);
                (0..1000).filter(|id| counts[*id] > 30).collect::<Vec<_>>()
            };
            let first = popular(0);
            assert_eq!(first.len(), 100);
            [1, 19].map(|b| popular(b).iter().filter(|id| first.contains(id)).count())
        };
        assert_eq!(kept(0.0), [100, 100]);
        let [soon, late] = kept(0.05);
        assert!((85..100).contains(&soon) && (30..60).contains(&late), "{soon}, {late}");
    }

    #[test]
    fn what_is_no_workload_is_refused() {
        for broken in [
            Workload { ids: 1, ..workload(Skew::Zipf(1.0), 0.0) },
            Workload { batch: 0, ..workload(Skew::Zipf(1.0), 0.0) },
            workload(Skew::Zipf(f64::NAN), 0.0),
            workload(Skew::Share(0.8, 1.0), 0.0),
            workload(Skew::Zipf(1.0), 1.5),
        ] {
            assert!(broken.draw().is_err(), "{broken:?}");
        }
    }
}
