//! Places where records wait for the thread that passes them on.
//!
//! Each place has a lock that is only tried. One that is taken is passed by: a thread is at it, or
//! was at it in the parent of this process. Nobody ever sleeps, and a process has no lock of all.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Records that wait at most.
const PLACES: usize = 256;

/// Records, or whatever it is, that wait: a bounded number of them.
pub struct Waiting<T> {
    places: [Mutex<Option<(u64, T)>>; PLACES],
    /// Number of the next record: their order, and the place that is tried first.
    next: AtomicU64,
    has_some: AtomicBool,
    left_out: AtomicU64,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Waiting<T> {
    /// None waits.
    pub const fn new() -> Self {
        Self {
            places: [const { Mutex::new(None) }; PLACES],
            next: AtomicU64::new(0),
            has_some: AtomicBool::new(false),
            left_out: AtomicU64::new(0),
        }
    }

    /// Lets one wait; where there is no place it is dropped and counted. Never blocks.
    pub fn push(&self, record: T) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let first = (number % PLACES as u64) as usize;
        let place = (first..PLACES).chain(0..first).find_map(|at| {
            let place = self.places[at].try_lock().ok()?;
            place.is_none().then_some(place)
        });
        match place {
            Some(mut place) => *place = Some((number, record)),
            None => {
                self.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Pairs with the swap in `take`: a thread that finds it set finds the record.
        self.has_some.store(true, Ordering::SeqCst);
    }

    /// Whether none waits. For frequent calls.
    pub fn is_empty(&self) -> bool {
        !self.has_some.load(Ordering::SeqCst)
    }

    /// All that wait, in order, and how many were dropped since the last time. Never blocks: one
    /// that is being put in comes the next time.
    pub fn take(&self) -> (Vec<T>, u64) {
        if !self.has_some.swap(false, Ordering::SeqCst) {
            return (Vec::new(), 0);
        }
        let taken = |place: &Mutex<Option<(u64, T)>>| place.try_lock().ok()?.take();
        let mut records: Vec<(u64, T)> = self.places.iter().filter_map(taken).collect();
        records.sort_unstable_by_key(|(number, _)| *number);
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        (records.into_iter().map(|(_, record)| record).collect(), left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn records_come_in_order_and_those_beyond_the_places_are_counted() {
        let waiting = Waiting::new();
        assert!(waiting.is_empty() && waiting.take() == (Vec::<u32>::new(), 0));
        for round in 0..3 {
            (0..1000).for_each(|record| waiting.push(record + round));
            assert!(!waiting.is_empty());
            let (records, left_out) = waiting.take();
            assert!(records == (round..round + PLACES as u32).collect::<Vec<_>>());
            assert_eq!(left_out, 1000 - PLACES as u64);
            assert!(waiting.is_empty());
        }
    }

    // As in a child that was forked while threads of its parent were at their places.
    #[test]
    fn places_that_stay_locked_are_passed_by() {
        let waiting = Waiting::new();
        let _locked: Vec<_> =
            waiting.places.iter().step_by(2).map(|place| place.lock().unwrap()).collect();
        (0..PLACES).for_each(|record| waiting.push(record));
        let (records, left_out) = waiting.take();
        assert!(records == (0..PLACES / 2).collect::<Vec<_>>());
        assert_eq!(left_out, PLACES as u64 / 2);
        assert!(waiting.is_empty());
    }

    #[test]
    fn of_many_threads_no_record_is_lost_or_comes_twice() {
        let waiting = Waiting::new();
        let mut seen = BTreeSet::new();
        let (mut lost, mut came) = (0, 0);
        let mut take = || {
            let (records, left_out) = waiting.take();
            came += records.len() as u64;
            lost += left_out;
            seen.extend(records);
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let waiting = &waiting;
                    scope.spawn(move || (0..5000).for_each(|n| waiting.push(thread * 5000 + n)))
                })
                .collect();
            while !threads.iter().all(|thread| thread.is_finished()) {
                take();
            }
        });
        take();
        assert_eq!((came + lost, came), (20_000, seen.len() as u64));
    }
}
