//! The smallest part of a life that still fails in the same way.

use crate::plan::{Habit, Limits};
use crate::report::Counts;
use crate::run::{Failure, run};
use std::collections::BTreeSet;

/// Lives that are tried at most.
const TRIES: u32 = 400;

struct Search {
    seed: u64,
    kind: String,
    tries: u32,
}

impl Search {
    /// The failure of a life with these limits, if it is the same.
    fn fails(&mut self, limits: Limits) -> Option<Failure> {
        self.tries = self.tries.checked_sub(1)?;
        let failure = run(self.seed, &limits, &mut Counts::default()).err()?;
        (kind_of(&failure.what) == self.kind).then_some(*failure)
    }
}

/// The text of a failure, without its numbers.
fn kind_of(what: &str) -> String {
    let words = what.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 2);
    words.take(6).collect::<Vec<_>>().join(" ")
}

/// Leaves out faults, habits, tables and operations as long as a failure stays the same.
/// Not for one that hangs.
pub fn minimise(failure: &Failure) -> Failure {
    let mut search = Search { seed: failure.seed, kind: kind_of(&failure.what), tries: TRIES };
    let mut smallest = failure.clone();
    for fault in failure.limits.faults.iter() {
        let limits = smallest.limits.clone();
        search.shrink(&mut smallest, Limits { faults: limits.faults.without(fault), ..limits });
    }
    for habit in Habit::ALL {
        let mut limits = smallest.limits.clone();
        if !limits.without.contains(&habit) {
            limits.without.push(habit);
            search.shrink(&mut smallest, limits);
        }
    }
    for tables in 1..smallest.limits.tables {
        let limits = Limits { tables, ..smallest.limits.clone() };
        if search.shrink(&mut smallest, limits) {
            break;
        }
    }
    search.fewer_operations(&mut smallest);
    smallest
}

impl Search {
    fn shrink(&mut self, smallest: &mut Failure, limits: Limits) -> bool {
        let found = self.fails(limits);
        let shrinks = found.is_some();
        *smallest = found.unwrap_or_else(|| smallest.clone());
        shrinks
    }

    /// Leaves out stretches of operations, shorter and shorter ones.
    fn fewer_operations(&mut self, smallest: &mut Failure) {
        let mut operations: Vec<u64> = match &smallest.limits.only {
            Some(only) => only.iter().copied().filter(|n| *n <= smallest.operation).collect(),
            None => (1..=smallest.operation).collect(),
        };
        let mut length = operations.len();
        while length > 0 {
            let mut at = 0;
            while at < operations.len() {
                let end = (at + length).min(operations.len());
                let left = operations[..at].iter().chain(&operations[end..]).copied();
                let left: BTreeSet<u64> = left.collect();
                let limits = Limits { only: Some(left.clone()), ..smallest.limits.clone() };
                match self.shrink(smallest, limits) {
                    true => operations = left.into_iter().collect(),
                    false => at = end,
                }
            }
            length /= 2;
        }
    }
}
