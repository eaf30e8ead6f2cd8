//! Permits against a plain model: every order of events of small programs, random orders of larger
//! ones, and real threads.

use super::*;
use crate::hash::mix;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

const ONE: TableId = TableId(0);
const TWO: TableId = TableId(1);

/// A permit's state in its simplest form.
#[derive(Clone, Debug, Default)]
struct Model(BTreeMap<u64, BTreeSet<(TableId, u64)>>);

impl Model {
    fn enter(&mut self, permit: u64, batch: &[(TableId, &[u64])]) {
        let rows = batch.iter().flat_map(|(t, keys)| keys.iter().map(|k| (*t, *k))).collect();
        self.0.insert(permit, rows);
    }

    /// Lower permits in flight that touch the row.
    fn earlier(&self, permit: u64, row: &(TableId, u64)) -> u64 {
        self.0.range(..permit).filter(|(_, rows)| rows.contains(row)).count() as u64
    }

    fn deferred(&self, bound: u64, permit: u64) -> BTreeSet<(TableId, u64)> {
        let rows = self.0[&permit].iter();
        rows.filter(|row| self.earlier(permit, row) > bound).copied().collect()
    }
}

/// A thread of a small program: the batches that it acquires and releases, one after the other.
#[derive(Clone, Debug, Default)]
struct Actor {
    batches: Vec<Vec<u64>>,
    next: usize,
    permit: Option<u64>,
}

/// Walks through every order in which the actors can go on. Returns how many ends there were.
fn walk(bound: u64, state: State, model: Model, actors: Vec<Actor>) -> u64 {
    for permit in model.0.keys() {
        let granted = model.deferred(bound, *permit).is_empty();
        assert_eq!(state.is_granted(*permit), granted, "permit {permit} of {actors:?}");
        assert!(granted || !state.is_stuck(bound, *permit), "permit {permit} of {actors:?}");
    }
    let (mut moved, mut ends) = (false, 0);
    for i in 0..actors.len() {
        let (mut state, mut model, mut actors) = (state.clone(), model.clone(), actors.clone());
        match actors[i].permit {
            None if actors[i].next == actors[i].batches.len() => continue,
            None => {
                let keys = actors[i].batches[actors[i].next].clone();
                // Each actor is a thread of its own; which one does not matter to the order.
                let (permit, _) = state.enter(bound, &[(ONE, &keys)], None, true);
                model.enter(permit, &[(ONE, &keys)]);
                actors[i].next += 1;
                actors[i].permit = Some(permit);
            }
            Some(permit) if state.is_granted(permit) => {
                assert_eq!(state.release(permit), Some(vec![]));
                model.0.remove(&permit);
                actors[i].permit = None;
            }
            Some(_) => continue,
        }
        moved = true;
        ends += walk(bound, state, model, actors);
    }
    if moved {
        return ends;
    }
    let done = |actor: &Actor| actor.permit.is_none() && actor.next == actor.batches.len();
    assert!(actors.iter().all(done), "nobody can go on: {actors:?}");
    assert_eq!(state.clone().stats().rows_in_flight, 0);
    1
}

#[test]
fn in_every_order_of_events_the_bound_holds_and_nobody_waits_for_ever() {
    let actors = |batches: &[&[&[u64]]]| -> Vec<Actor> {
        let actor = |own: &&[&[u64]]| Actor {
            batches: own.iter().map(|keys| keys.to_vec()).collect(),
            ..Actor::default()
        };
        batches.iter().map(actor).collect()
    };
    let programs = [
        actors(&[&[&[1], &[1]], &[&[1], &[1]], &[&[1]]]),
        actors(&[&[&[1, 2], &[3]], &[&[2, 3], &[1, 1]], &[&[3, 1]]]),
        actors(&[&[&[1, 2]], &[&[2, 3]], &[&[3, 4]], &[&[4, 1]]]),
        actors(&[&[&[1, 2], &[2], &[]], &[&[2, 1], &[1, 2]]]),
    ];
    for bound in [0, 1, 2, UNBOUNDED] {
        let found: Vec<u64> = programs
            .iter()
            .map(|program| walk(bound, State::default(), Model::default(), program.clone()))
            .collect();
        assert!(found.iter().all(|ends| *ends > 20), "bound {bound}: {found:?} orders");
    }
}

#[test]
fn deferred_rows_are_told_as_soon_as_they_may_be_read() {
    for seed in 0..300u64 {
        let random = |i: u64, below: u64| mix(i, seed) % below;
        let bound = [0, 1, 3, 40, UNBOUNDED][seed as usize % 5];
        let permits = Permits::new(bound);
        let mut model = Model::default();
        let mut keys_of: BTreeMap<u64, [Vec<u64>; 2]> = BTreeMap::new();
        let mut most = 0;
        for i in 0..120u64 {
            let place = format!("seed {seed} event {i}");
            if model.0.is_empty() || (model.0.len() < 12 && random(i, 2) == 0) {
                let draw = |salt| -> Vec<u64> {
                    (0..random(i + salt, 9)).map(|j| random(i + salt + j, 12)).collect()
                };
                let keys = [draw(1000), draw(2000)];
                let batch = [(ONE, &keys[0][..]), (TWO, &keys[1][..])];
                let entered = permits.enter(&batch).unwrap();
                model.enter(entered.permit, &batch);
                let deferred = model.deferred(bound, entered.permit);
                let mut told = BTreeSet::new();
                for (part, (table, keys)) in batch.iter().enumerate() {
                    for position in &entered.deferred[part] {
                        let key = keys[*position as usize];
                        let first = keys.iter().position(|k| *k == key);
                        assert_eq!(first, Some(*position as usize), "{place}");
                        assert!(told.insert((*table, key)), "{place}: told twice");
                    }
                }
                assert_eq!(told, deferred, "{place}");
                let rows = model.0[&entered.permit].iter();
                most = rows
                    .map(|row| model.earlier(entered.permit, row).min(bound))
                    .fold(most, u64::max);
                keys_of.insert(entered.permit, keys);
                continue;
            }
            // Released in any order, as several trainers do.
            let permit = *model.0.keys().nth(random(i, model.0.len() as u64) as usize).unwrap();
            let before: BTreeMap<_, _> =
                model.0.keys().map(|p| (*p, model.deferred(bound, *p))).collect();
            let ready = match random(i + 3000, 4) {
                0 => permits.give_back(permit),
                _ => permits.release(permit),
            };
            model.0.remove(&permit);
            let mut expected = BTreeSet::new();
            for other in model.0.keys() {
                let after = model.deferred(bound, *other);
                expected.extend(before[other].difference(&after).map(|row| (*other, *row)));
            }
            let row = |r: &Ready| {
                let table = [ONE, TWO][r.part as usize];
                (r.permit, (table, keys_of[&r.permit][r.part as usize][r.position as usize]))
            };
            let ready = ready.unwrap();
            assert_eq!(ready.iter().map(row).collect::<BTreeSet<_>>(), expected, "{place}");
            assert_eq!(ready.len(), expected.len(), "{place}: told twice");
        }
        let stats = permits.stats().unwrap();
        assert_eq!((stats.in_flight, stats.staleness_max), (model.0.len() as u64, most));
        let rows: BTreeSet<_> = model.0.values().flatten().collect();
        assert_eq!(stats.rows_in_flight, rows.len() as u64, "seed {seed}");
    }
}

#[test]
fn threads_never_hold_a_row_beyond_the_bound_and_all_end() {
    for (seed, bound) in [(1, 0u64), (2, 1), (3, 2)] {
        let permits = Permits::new(bound);
        let holders: Vec<AtomicU64> = (0..20).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (permits, holders) = (&permits, &holders);
                scope.spawn(move || {
                    for i in 0..400u64 {
                        let random = |j: u64| mix(i * 64 + j, seed * 100 + thread) % 20;
                        let keys: Vec<u64> = (0..1 + random(0) % 5).map(random).collect();
                        let rows: BTreeSet<u64> = keys.iter().copied().collect();
                        let permit = permits.acquire(&[(ONE, &keys)], &mut || Ok(())).unwrap();
                        for row in &rows {
                            let others = holders[*row as usize].fetch_add(1, Ordering::SeqCst);
                            assert!(others <= bound, "{others} others hold row {row}");
                        }
                        if i % 7 == 0 {
                            std::thread::yield_now();
                        }
                        for row in &rows {
                            holders[*row as usize].fetch_sub(1, Ordering::SeqCst);
                        }
                        permits.release(permit).unwrap();
                    }
                });
            }
        });
        let stats = permits.stats().unwrap();
        assert_eq!((stats.granted, stats.in_flight, stats.rows_in_flight), (2400, 0, 0));
        assert!(stats.staleness_max <= bound);
    }
}

#[test]
fn a_thread_that_would_wait_for_itself_gets_an_error() {
    for bound in 0..3u64 {
        let permits = Permits::new(bound);
        let acquire = |keys: &[u64]| permits.acquire(&[(ONE, keys)], &mut || Ok(()));
        let held: Vec<u64> = (0..=bound).map(|_| acquire(&[7, 8]).unwrap()).collect();
        let error = acquire(&[9, 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse);
        assert!(error.message().contains("would wait for ever"), "{error}");
        let named = held.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        assert!(error.message().contains(&format!("holds {named})")), "{error}");
        let other = acquire(&[9]).unwrap(); // the row of the batch that failed is free again
        permits.release(held[0]).unwrap();
        let again = acquire(&[9, 8]);
        assert_eq!(again.is_ok(), bound > 0, "row 9 is held once more");
        permits.release(other).unwrap();
        assert_eq!(permits.stats().unwrap().given_back, 1 + u64::from(bound == 0));
    }
}

#[test]
fn a_permit_that_was_handed_over_is_waited_for() {
    let permits = Permits::new(0);
    let first = permits.acquire(&[(ONE, &[1])], &mut || Ok(())).unwrap();
    permits.hand_over(first).unwrap();
    let mut polls = 0;
    let second = permits.acquire(&[(ONE, &[1])], &mut || {
        polls += 1;
        permits.release(first).map(drop)
    });
    assert_eq!((second.unwrap(), polls), (2, 1));
    assert_eq!(permits.hand_over(first).unwrap_err().kind(), ErrorKind::Misuse);
    let stats = permits.stats().unwrap();
    assert_eq!((stats.waits, stats.staleness_max), (1, 0));
    assert!(stats.wait_s > 0.0);
}

#[test]
fn threads_that_wait_for_each_other_are_found_out() {
    let permits = Permits::new(0);
    let acquire = |key: u64| permits.acquire(&[(ONE, &[key])], &mut || Ok(()));
    let (told, wait) = mpsc::channel();
    let own = acquire(2).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let first = acquire(1).unwrap();
            told.send(()).unwrap();
            let second = acquire(2).unwrap(); // waits for the main thread's
            (first, second)
        });
        wait.recv().unwrap();
        while permits.stats().unwrap().in_flight < 3 {
            std::thread::yield_now();
        }
        let refused = acquire(1);
        permits.release(own).unwrap(); // before anything is asserted: the other thread waits
        let error = refused.unwrap_err();
        assert!(error.message().contains("threads that wait for it"), "{error}");
        let (first, second) = other.join().unwrap();
        permits.release(second).unwrap();
        permits.release(first).unwrap();
    });
}

#[test]
fn a_wait_that_is_broken_off_gives_the_permit_back() {
    let permits = Permits::new(0);
    let first = permits.enter(&[(ONE, &[1])]).unwrap().permit;
    let stop = || Err(Error::new(ErrorKind::Callback, "stop"));
    let error = permits.acquire(&[(ONE, &[1, 2])], &mut { stop }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback);
    assert_eq!(permits.stats().unwrap().rows_in_flight, 1);
    assert_eq!(permits.release(first).unwrap(), vec![]);
    assert!(permits.acquire(&[(ONE, &[1])], &mut || Ok(())).is_ok());
    assert_eq!(permits.release(first).unwrap_err().kind(), ErrorKind::Misuse);
    assert_eq!(permits.give_back(first).unwrap(), vec![]);
}
