//! The state of permits: batches in flight, and their deferred rows.
//!
//! Plain data under one lock, so that tests can walk through every order of events. Invariants: a
//! permit counts in each of its distinct rows; a deferred row of a permit says how many lower
//! permits must still leave before it may be read; a permit is granted when it has none.

use super::PermitStats;
use super::rows::{AHEAD, RowCounts, row_of, salt_of};
use crate::config::TableId;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::thread::ThreadId;
use std::time::Duration;

/// Row lists that are kept for later permits instead of being freed.
const SPARE_LISTS: usize = 8;
const NONE: u32 = u32::MAX;

/// A row of an entered batch that may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ready {
    /// The permit of the batch.
    pub permit: u64,
    /// Index of the part of the batch.
    pub part: u32,
    /// Index of the key in the part.
    pub position: u32,
}

/// A row of a batch that may not be read yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Deferred {
    pub(super) part: u32,
    pub(super) position: u32,
}

#[derive(Clone, Debug)]
struct Permit {
    /// Its rows; distinct, and counted, once they are `counted`.
    rows: Vec<u64>,
    /// Whether the conflict map has its rows. A permit that is alone in flight conflicts with
    /// nobody: its rows are only listed until another batch comes, which a loop that holds one
    /// permit at a time never sees.
    counted: bool,
    /// The thread that alone can release it.
    owner: Option<ThreadId>,
    /// Rows that are deferred.
    missing: usize,
    /// Whether a thread waits for it, and nobody for its single rows.
    whole: bool,
}

/// A deferred row, in the list of all that are deferred for that row.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    ready: Ready,
    /// Lower permits that touch the row and must leave first.
    excess: u32,
    next: u32,
}

/// Deferred rows by row.
#[derive(Clone, Debug, Default)]
struct Queue {
    first: HashMap<u64, u32, BuildHasherDefault<Mixed>>,
    entries: Vec<Waiting>,
    free: Vec<u32>,
}

/// Hashes names of rows, which are mixed already.
#[derive(Debug, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("names of rows are hashed as numbers");
    }

    fn write_u64(&mut self, row: u64) {
        self.0 = row;
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    rows: RowCounts,
    in_flight: BTreeMap<u64, Permit>,
    queue: Queue,
    last: u64,
    spare: Vec<Vec<u64>>,
    stats: PermitStats,
    waited: Duration,
}

impl State {
    /// Numbers a batch, counts its rows and finds those that may not be read yet.
    pub(super) fn enter(
        &mut self,
        bound: u64,
        batch: &[(TableId, &[u64])],
        owner: Option<ThreadId>,
        whole: bool,
    ) -> (u64, Vec<Deferred>) {
        self.last += 1;
        let permit = self.last;
        let total = batch.iter().map(|(_, keys)| keys.len()).sum();
        let mut rows = self.spare.pop().unwrap_or_default();
        rows.reserve(total);
        self.stats.granted += 1;
        if self.in_flight.is_empty() {
            for (table, keys) in batch {
                let salt = salt_of(*table);
                rows.extend(keys.iter().map(|key| row_of(*key, salt)));
            }
            let alone = Permit { rows, counted: false, owner, missing: 0, whole };
            self.in_flight.insert(permit, alone);
            return (permit, Vec::new());
        }
        self.count_alone();
        self.rows.reserve(total);
        let (mut deferred, mut staleness) = (Vec::new(), 0);
        for (part, (table, keys)) in batch.iter().enumerate() {
            let salt = salt_of(*table);
            for (position, key) in keys.iter().enumerate() {
                if let Some(coming) = keys.get(position + AHEAD) {
                    self.rows.prefetch(row_of(*coming, salt));
                }
                let row = row_of(*key, salt);
                let Some(earlier) = self.rows.add(row, permit) else { continue };
                rows.push(row);
                if u64::from(earlier) <= bound {
                    staleness = staleness.max(earlier);
                    continue;
                }
                staleness = staleness.max(bound as u32);
                let place = Deferred { part: part as u32, position: position as u32 };
                let ready = Ready { permit, part: place.part, position: place.position };
                self.queue.push(row, ready, earlier - bound as u32);
                deferred.push(place);
            }
        }
        self.stats.staleness_max = self.stats.staleness_max.max(u64::from(staleness));
        self.stats.deferred_rows += deferred.len() as u64;
        let missing = deferred.len();
        self.in_flight.insert(permit, Permit { rows, counted: true, owner, missing, whole });
        (permit, deferred)
    }

    /// Counts the rows of a permit that was alone in flight so far.
    fn count_alone(&mut self) {
        let Some((number, permit)) = self.in_flight.first_key_value() else { return };
        if permit.counted {
            return;
        }
        let number = *number;
        let mut permit = self.in_flight.remove(&number).expect("it was there");
        self.rows.reserve(permit.rows.len());
        permit.rows.retain(|row| self.rows.add(*row, number).is_some());
        permit.counted = true;
        self.in_flight.insert(number, permit);
    }

    /// Whether all rows of a permit may be read.
    pub(super) fn is_granted(&self, permit: u64) -> bool {
        self.in_flight.get(&permit).is_some_and(|permit| permit.missing == 0)
    }

    /// Takes a permit back; None when it is not in flight.
    pub(super) fn release(&mut self, permit: u64) -> Option<Vec<Ready>> {
        let mut gone = self.in_flight.remove(&permit)?;
        if gone.counted && self.in_flight.is_empty() {
            self.rows.clear();
        } else if gone.counted {
            for (i, row) in gone.rows.iter().enumerate() {
                if let Some(coming) = gone.rows.get(i + AHEAD) {
                    self.rows.prefetch(*coming);
                }
                self.rows.subtract(*row);
            }
        }
        let mut ready = Vec::new();
        if !self.queue.first.is_empty() {
            for row in &gone.rows {
                self.queue.leave(*row, permit, &mut ready);
            }
        }
        let in_flight = &mut self.in_flight;
        ready.retain(|row: &Ready| {
            let waiting = in_flight.get_mut(&row.permit).expect("a deferred row has a permit");
            waiting.missing -= 1;
            !waiting.whole
        });
        if self.spare.len() < SPARE_LISTS {
            gone.rows.clear();
            self.spare.push(gone.rows);
        }
        Some(ready)
    }

    /// As [`Self::release`] for a batch that ends without an update; nothing when it is gone.
    pub(super) fn give_back(&mut self, permit: u64) -> Vec<Ready> {
        let ready = self.release(permit);
        self.stats.given_back += u64::from(ready.is_some());
        ready.unwrap_or_default()
    }

    /// Lets any thread release a permit; false when it is not in flight.
    pub(super) fn disown(&mut self, permit: u64) -> bool {
        self.in_flight.get_mut(&permit).map(|permit| permit.owner = None).is_some()
    }

    /// Permits of a thread below a number.
    pub(super) fn owned(&self, owner: ThreadId, below: u64) -> Vec<u64> {
        let own = self.in_flight.range(..below).filter(|(_, permit)| permit.owner == Some(owner));
        own.map(|(number, _)| *number).collect()
    }

    /// Notes how long a thread has waited.
    pub(super) fn waited(&mut self, time: Duration) {
        self.stats.waits += 1;
        self.waited += time;
    }

    /// Whether the thread that waits for `permit` waits for ever, however the threads that do not
    /// wait go on.
    ///
    /// Begins with all threads that wait and takes away, as long as there is one, a thread whose
    /// permit needs nobody that is left.
    pub(super) fn is_stuck(&self, bound: u64, permit: u64) -> bool {
        let mut waiting: Vec<(u64, ThreadId)> = self
            .in_flight
            .iter()
            .filter(|(_, permit)| permit.whole && permit.missing > 0)
            .filter_map(|(number, permit)| Some((*number, permit.owner?)))
            .collect();
        loop {
            let threads: Vec<ThreadId> = waiting.iter().map(|(_, owner)| *owner).collect();
            let able = |(number, _): &(u64, ThreadId)| !self.needs(bound, *number, &threads);
            let Some(free) = waiting.iter().position(able) else {
                return waiting.iter().any(|(number, _)| *number == permit);
            };
            waiting.swap_remove(free);
        }
    }

    /// Whether a permit has a deferred row that more than `bound` lower permits of `threads` touch.
    fn needs(&self, bound: u64, permit: u64, threads: &[ThreadId]) -> bool {
        let Some(own) = self.in_flight.get(&permit) else { return false };
        let deferred = own.rows.iter().filter(|row| self.queue.has(**row, permit));
        let mut held: HashMap<u64, u64> = deferred.map(|row| (*row, 0)).collect();
        let lower = self.in_flight.range(..permit);
        for (_, other) in lower.filter(|(_, p)| p.owner.is_some_and(|o| threads.contains(&o))) {
            for row in &other.rows {
                if let Some(count) = held.get_mut(row) {
                    *count += 1;
                    if *count > bound {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Counters; the bound is not known here.
    pub(super) fn stats(&mut self) -> PermitStats {
        self.count_alone();
        let lists = self.in_flight.values().map(|permit| &permit.rows).chain(&self.spare);
        let listed: usize = lists.map(|rows| rows.capacity() * size_of::<u64>()).sum();
        let queued = self.queue.entries.capacity() * size_of::<Waiting>()
            + self.queue.free.capacity() * size_of::<u32>()
            + self.queue.first.capacity() * (size_of::<(u64, u32)>() + 1);
        PermitStats {
            in_flight: self.in_flight.len() as u64,
            rows_in_flight: self.rows.len() as u64,
            wait_s: self.waited.as_secs_f64(),
            bytes: (self.rows.bytes() + listed + queued) as u64,
            ..self.stats.clone()
        }
    }
}

impl Queue {
    fn push(&mut self, row: u64, ready: Ready, excess: u32) {
        let first = self.first.entry(row).or_insert(NONE);
        let entry = Waiting { ready, excess, next: *first };
        *first = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
    }

    /// Whether the row of a permit is deferred.
    fn has(&self, row: u64, permit: u64) -> bool {
        let mut at = self.first.get(&row).copied().unwrap_or(NONE);
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.ready.permit == permit {
                return true;
            }
            at = entry.next;
        }
        false
    }

    /// A permit no longer touches a row: forgets its own wait for it, and tells higher ones.
    fn leave(&mut self, row: u64, permit: u64, ready: &mut Vec<Ready>) {
        let Some(&first) = self.first.get(&row) else { return };
        let (mut at, mut kept) = (first, NONE);
        while at != NONE {
            let entry = &mut self.entries[at as usize];
            let next = entry.next;
            if entry.ready.permit > permit {
                entry.excess -= 1;
            }
            if entry.ready.permit == permit || entry.excess == 0 {
                if entry.ready.permit != permit {
                    ready.push(entry.ready);
                }
                self.free.push(at);
            } else {
                entry.next = kept;
                kept = at;
            }
            at = next;
        }
        match kept {
            NONE => drop(self.first.remove(&row)),
            kept => drop(self.first.insert(row, kept)),
        }
    }
}
