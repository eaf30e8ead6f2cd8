//! Facts about the whole cache: a model test against a map, threads, residency, shrinking.

use super::*;
use crate::hash::mix;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

const WORDS: usize = 3;

fn cache(sets: u32, ways: usize, policy: PolicyKind) -> Cache {
    Cache::new(CacheShape { row_bytes: WORDS * 4, sets, ways, policy, headers: true }).unwrap()
}

/// A cache without headers for two dense tables.
fn dense_cache(sets: u32, ways: usize, policy: PolicyKind) -> Cache {
    let shape = CacheShape { row_bytes: WORDS * 4, sets, ways, policy, headers: false };
    let tables = [(0, 0), (KEYS, 1)].map(|(first, table)| DenseTable { first, table });
    Cache::of_dense_rows(shape, tables.to_vec()).unwrap()
}

/// Keys of each table of a model.
const KEYS: u64 = 400;

fn at(cache: &Cache, table: u16, key: u64) -> Location {
    cache.locate_hashed(mix(key, table.into()))
}

/// Locations of the model's rows: those of table 0 are dense, the first ones with exact tags.
/// Without headers all are.
fn place(cache: &Cache, table: u16, key: u64) -> Location {
    match table {
        _ if !cache.dense.is_empty() => cache.locate_dense(u64::from(table) * KEYS + key),
        0 => cache.locate_dense((key >> 40) * 16 * u64::from(cache.sets()) + (key >> 40)),
        _ => at(cache, table, key),
    }
}

/// Admits a row that must not be resident, and returns the key of the row that left for it.
fn admit_new(cache: &Cache, location: Location, key: u64, words: f32) -> Option<u64> {
    let mut left = None;
    let fill = |row: RowMut<'_>, fresh: bool| {
        assert!(fresh, "key {key} is already resident");
        row.words.fill(words);
    };
    cache.admit(location, 0, key, 0, fill, |row| left = Some(row.key));
    left
}

#[derive(Clone, Debug)]
struct ModelRow {
    words: [f32; WORDS],
    /// 0 also where the cache does not keep it.
    origin: u32,
    /// The origin was not 0.
    stored: bool,
    dirty: bool,
    /// 0 while the row is clean.
    dirty_since: u32,
    set: u32,
}

impl PartialEq for ModelRow {
    /// Whether a row is stored shows in no row that was handed out, only in `is_written`.
    fn eq(&self, other: &Self) -> bool {
        let known = |row: &Self| (row.words, row.origin, row.dirty, row.dirty_since, row.set);
        known(self) == known(other)
    }
}

/// A cache and the map that says what it must hold.
struct Model {
    cache: Cache,
    policy: PolicyKind,
    rows: HashMap<(u16, u64), ModelRow>,
    /// The last use of each row: twice the number of its set's looks so far, and one more if it was
    /// used after the last.
    used: HashMap<(u16, u64), u64>,
    /// Number of looks of the policy at each set.
    looks: HashMap<u32, u64>,
    random: u64,
    seed: u64,
    evictions: u64,
    /// Ways at the beginning, and the number of times that one came back.
    ways: usize,
    returned: u64,
}

impl Model {
    fn new(seed: u64, cache: Cache) -> Self {
        let policy = cache.policy;
        let rows = HashMap::new();
        let (used, looks) = (HashMap::new(), HashMap::new());
        let ways = cache.ways();
        let (random, evictions, returned) = (seed, 0, 0);
        Self { cache, policy, rows, used, looks, random, seed, evictions, ways, returned }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random += 1;
        mix(self.random, self.seed) % n
    }

    /// Checks a row that leaves and forgets it. LRU gives up the row of the set that was used
    /// longest ago, as far as its looks can tell.
    fn leaves(&mut self, row: (u16, u64, ModelRow)) {
        let (table, key, row) = row;
        let seed = self.seed;
        assert_eq!(self.rows.remove(&(table, key)).as_ref(), Some(&row), "seed {seed}: {key}");
        if self.policy == PolicyKind::Lru {
            let mates = self.rows.iter().filter(|(_, mate)| mate.set == row.set);
            let oldest = mates.map(|(id, _)| self.used[id]).min();
            let used = self.used[&(table, key)];
            assert!(oldest.is_none_or(|oldest| oldest >= used), "seed {seed}: {row:?}");
        }
        self.evictions += 1;
    }

    /// Keys are multiples of this. Those of tables that are not dense use the upper bits too.
    fn stride(&self) -> u64 {
        if self.cache.dense.is_empty() { 1 << 40 } else { 1 }
    }

    /// The origin that the cache keeps.
    fn origin(&self, origin: u32) -> u32 {
        if self.cache.dense.is_empty() { origin } else { 0 }
    }

    fn uses(&mut self, table: u16, key: u64, set: u32) {
        self.used.insert((table, key), 2 * self.looks.get(&set).unwrap_or(&0) + 1);
    }

    fn step(&mut self, stamp: u32) {
        let (table, key) = (self.below(2) as u16, self.below(KEYS) * self.stride());
        let location = place(&self.cache, table, key);
        let known = self.rows.get(&(table, key)).cloned();
        let stamp = stamp + 1;
        let words = [stamp as f32, key as f32, table.into()];
        let (write, seed) = (self.below(2) == 0, self.seed);
        match self.below(20) {
            0..10 => self.admit(table, key, stamp, words, write),
            10..13 => {
                let found = self.cache.visits().access(location, table, key, |mut row| {
                    let before = seen(&row, known.as_ref());
                    if write {
                        row.words.copy_from_slice(&words);
                        row.mark_dirty(stamp);
                    }
                    before
                });
                assert_eq!(found, known, "seed {seed}: access of {key}");
                if let Some(row) = self.rows.get_mut(&(table, key)) {
                    if write {
                        let dirty_since = if row.dirty { row.dirty_since } else { stamp };
                        (row.words, row.dirty, row.dirty_since) = (words, true, dirty_since);
                    }
                    self.uses(table, key, location.set);
                }
            }
            13 => self.gather(table, key),
            14 => {
                let peeked =
                    self.cache.peek(location, table, key, |row| seen(&row, known.as_ref()));
                assert_eq!(peeked, known, "seed {seed}: peek of {key}");
            }
            15 => {
                let removed = self.cache.remove(location, table, key, |removed| removed);
                let keeps = self.cache.dense.is_empty();
                let expected = known
                    .map(|row| Removed { origin: keeps.then_some(row.origin), dirty: row.dirty });
                assert_eq!(removed, expected, "seed {seed}: remove of {key}");
                self.rows.remove(&(table, key));
            }
            16 => {
                let stored = known.as_ref().map_or(1, |row| row.origin);
                let expected = if write { stored } else { stored + 1 };
                let resident = self.cache.set_origin(location, table, key, expected, stamp);
                match known {
                    None => assert_eq!(resident, Resident::Absent, "seed {seed}"),
                    Some(row) if row.dirty => assert_eq!(resident, Resident::Dirty, "seed {seed}"),
                    Some(_) => assert_eq!(resident, Resident::Clean, "seed {seed}"),
                }
                let keeps = self.cache.dense.is_empty();
                if let Some(row) = self.rows.get_mut(&(table, key)).filter(|_| write && keeps) {
                    (row.origin, row.stored) = (stamp, true);
                }
            }
            17 => self.write_back_some(),
            18 if self.below(150) == 0 => self.take_way(),
            18 if self.below(300) == 0 => self.return_way(),
            _ => self.check_totals(),
        }
    }

    fn admit(&mut self, table: u16, key: u64, stamp: u32, words: [f32; WORDS], wrote: bool) {
        let location = place(&self.cache, table, key);
        let known = self.rows.get(&(table, key)).cloned();
        let mut left = None;
        let fill = |mut row: RowMut<'_>, fresh: bool| {
            assert_eq!(fresh, known.is_none());
            assert_eq!(row.is_dirty(), known.as_ref().is_some_and(|row| row.dirty));
            row.words.copy_from_slice(&words);
            let was_dirty = known.as_ref().is_some_and(|row| row.dirty);
            assert_eq!(wrote && row.mark_dirty(stamp), wrote && !was_dirty);
            (row.origin().unwrap_or(0), row.is_dirty())
        };
        let (origin, dirty) = self.cache.admit(location, table, key, stamp + 1, fill, |row| {
            left = Some((row.table, row.key, kept(&row, location.set)));
        });
        if let Some(left) = left {
            self.leaves(left);
        }
        let before = self.rows.get(&(table, key));
        let stored = before.is_none_or(|row| row.stored);
        let expected = before.map_or(self.origin(stamp + 1), |row| row.origin);
        assert_eq!(origin, expected, "seed {}", self.seed);
        let dirty_since = match (dirty, &known) {
            (true, Some(row)) if row.dirty => row.dirty_since,
            (true, _) => stamp,
            (false, _) => 0,
        };
        let row = ModelRow { words, origin, stored, dirty, dirty_since, set: location.set };
        self.rows.insert((table, key), row);
        if known.is_some() {
            self.uses(table, key, location.set);
        } else {
            let looks = self.looks.entry(location.set).or_insert(0);
            *looks += 1;
            self.used.insert((table, key), 2 * *looks);
        }
    }

    /// Gathers a few keys, twice the given one, and the first words of their rows.
    fn gather(&mut self, table: u16, key: u64) {
        let stride = self.stride();
        let near = |i| (key + i * stride) % (KEYS * stride);
        let keys: Vec<u64> = (0..self.below(140)).map(near).collect();
        let keys = [&[key, key], &keys[..]].concat();
        let words = 1 + self.below(WORDS as u64) as usize;
        let mut rows = vec![-1.0; keys.len() * words];
        let (mut missed, cache) = (Vec::new(), &self.cache);
        let locate = |key| place(cache, table, key);
        cache.gather(table, &keys, words, &mut rows, locate, |position| missed.push(position));
        let mut expected = Vec::new();
        for (position, (key, row)) in keys.iter().zip(rows.chunks_exact(words)).enumerate() {
            match self.rows.get(&(table, *key)) {
                Some(known) => assert_eq!(row, &known.words[..words], "seed {}", self.seed),
                None => expected.push(position),
            }
        }
        assert_eq!(missed, expected, "seed {}", self.seed);
        for key in keys {
            if let Some(set) = self.rows.get(&(table, key)).map(|row| row.set) {
                self.uses(table, key, set);
            }
        }
    }

    fn write_back_some(&mut self) {
        let mut dirty = Vec::new();
        self.cache.capture();
        self.cache.for_each_captured(|dirty_since, slot| dirty.push((dirty_since, slot)));
        for (dirty_since, slot) in dirty {
            let origin = self.below(1 << 32) as u32;
            let mut id = None;
            let mut stored = |row: RowRef<'_>| {
                assert!(row.dirty && row.dirty_since == dirty_since);
                id = Some((row.table, row.key));
            };
            match self.below(4) {
                0 => {
                    self.cache.with_slot(slot, stored);
                    assert!(self.cache.write_back(slot, |_| Some(origin)).is_some());
                }
                1 => {
                    let written = self.cache.write_back(slot, |row| {
                        stored(row);
                        Some(origin)
                    });
                    assert_eq!(written, Some(origin));
                }
                _ => continue,
            }
            let kept = self.origin(origin);
            let row = self.rows.get_mut(&id.unwrap()).unwrap();
            (row.origin, row.stored, row.dirty, row.dirty_since) = (kept, origin != 0, false, 0);
        }
    }

    fn take_way(&mut self) {
        let (ways, capacity) = (self.cache.ways(), self.cache.row_capacity());
        let bytes = self.cache.memory_bytes();
        let mut left = Vec::new();
        let taken = self.cache.take_way(|row| {
            let set = place(&self.cache, row.table, row.key).set;
            left.push((row.table, row.key, kept(&row, set)));
        });
        if ways == WAYS_MIN {
            assert_eq!(taken, TakeWay::Floor);
            assert!(left.is_empty());
        } else {
            assert_eq!(self.cache.ways(), ways - 1);
            assert_eq!(self.cache.row_capacity(), capacity - u64::from(self.cache.sets()));
            assert_eq!(taken, TakeWay::Released(bytes - self.cache.memory_bytes()));
        }
        if ways > WAYS_MIN {
            for set in 0..self.cache.sets() {
                *self.looks.entry(set).or_insert(0) += 1;
            }
        }
        for row in left {
            self.leaves(row);
        }
        self.check_totals();
    }

    fn return_way(&mut self) {
        let (ways, bytes) = (self.cache.ways(), self.cache.memory_bytes());
        match self.cache.return_way() {
            Some(returned) => {
                assert_eq!(self.cache.ways(), ways + 1);
                assert_eq!(self.cache.memory_bytes(), bytes + returned);
                self.returned += 1;
            }
            None => assert_eq!(self.cache.ways(), self.ways),
        }
        self.check_totals();
    }

    fn check_totals(&self) {
        let seed = self.seed;
        assert_eq!(self.cache.resident_rows(), self.rows.len() as u64, "seed {seed}");
        let dirty = self.rows.values().filter(|row| row.dirty).count();
        assert_eq!(self.cache.dirty_rows(), dirty as u64, "seed {seed}");
        let mut walked = BTreeSet::new();
        self.cache.capture();
        self.cache.for_each_captured(|dirty_since, slot| {
            let row = self.cache.with_slot(slot, |row| {
                assert_eq!(row.dirty_since, dirty_since);
                (row.table, row.key)
            });
            assert!(walked.insert(row.unwrap()));
        });
        assert_eq!(walked.len(), dirty, "seed {seed}");
        assert_eq!(self.cache.captured_rows(), dirty as u64, "seed {seed}");
        let mut resident = 0;
        for (table, sets) in (0..3).flat_map(|t| [(t, 0..2), (t, 2..u32::MAX)]) {
            self.cache.for_each_resident(sets, table, |row| {
                let set = place(&self.cache, row.table, row.key).set;
                assert_eq!(row.table, table);
                assert_eq!(self.rows.get(&(table, row.key)), Some(&kept(&row, set)), "seed {seed}");
                resident += 1;
            });
        }
        assert_eq!(resident, self.rows.len(), "seed {seed}");
    }
}

/// The row as a verb shows it; fields that it does not show are taken from the model.
fn seen(row: &RowMut<'_>, known: Option<&ModelRow>) -> ModelRow {
    let (dirty_since, set) = known.map_or((0, 0), |row| (row.dirty_since, row.set));
    let stored = known.is_some_and(|row| row.stored);
    assert_eq!(row.is_written(), row.is_dirty() || stored);
    let words = (&*row.words).try_into().unwrap();
    let origin = row.origin().unwrap_or(0);
    ModelRow { words, origin, stored, dirty: row.is_dirty(), dirty_since, set }
}

fn kept(row: &RowRef<'_>, set: u32) -> ModelRow {
    let words = row.words.try_into().unwrap();
    let dirty_since = if row.dirty { row.dirty_since } else { 0 };
    let origin = row.origin.unwrap_or(0);
    ModelRow { words, origin, stored: false, dirty: row.dirty, dirty_since, set }
}

#[test]
fn a_cache_behaves_like_a_map_with_eviction() {
    let (seeds, steps) = if cfg!(miri) { (1, 400) } else { (7, 4000) };
    for seed in 1..=seeds {
        let (sets, ways) = (1 + (seed % 7) as u32, 12 + seed as usize);
        let caches = [PolicyKind::Lru, PolicyKind::Lfu]
            .map(|policy| [cache(sets, ways, policy), dense_cache(sets, ways, policy)]);
        for cache in caches.into_iter().flatten() {
            let mut model = Model::new(seed, cache);
            for stamp in 0..steps {
                model.step(stamp);
            }
            while model.cache.ways() > WAYS_MIN {
                model.take_way();
            }
            model.take_way();
            while model.cache.ways() < model.ways {
                model.return_way();
            }
            for stamp in steps..steps + steps / 4 {
                model.step(stamp);
            }
            assert!(model.returned > 0, "seed {seed}");
            assert!(model.evictions > 50, "seed {seed}: {} evictions", model.evictions);
        }
    }
}

#[test]
fn dense_rows_are_all_resident_when_there_are_as_many_slots() {
    for sets in if cfg!(miri) { 3..4 } else { 1..40 } {
        let cache = cache(sets, 32, PolicyKind::Lru);
        let rows = u64::from(sets) * 32;
        let location = |id: u64| cache.locate_dense(id);
        for id in 0..rows {
            assert_eq!(admit_new(&cache, location(id), id, id as f32), None, "{sets} sets");
        }
        assert_eq!(cache.resident_rows(), cache.row_capacity());
        for id in 0..rows {
            let word = cache.peek(location(id), 0, id, |row| row.words[WORDS - 1]);
            assert_eq!(word, Some(id as f32));
        }
        assert!(admit_new(&cache, location(rows), rows, 0.0).is_some());
    }
}

#[test]
fn rows_leave_in_the_order_of_the_policy() {
    for (policy, expected) in [
        (PolicyKind::Lru, vec![4, 5, 6, 7, 0, 1, 2, 3]),
        (PolicyKind::Lfu, vec![4, 5, 6, 7, 100, 101, 102, 103]),
    ] {
        let cache = cache(1, 8, policy);
        let location = |key| at(&cache, 0, key);
        for key in 0..8 {
            admit_new(&cache, location(key), key, 0.0);
        }
        for key in 0..4 {
            cache.access(location(key), 0, key, |_| ());
            cache.peek(location(7 - key), 0, 7 - key, |_| ());
        }
        let left = (100..108).map(|key| admit_new(&cache, location(key), key, 0.0));
        assert_eq!(left.map(Option::unwrap).collect::<Vec<_>>(), expected, "{policy:?}");
    }
}

#[test]
fn keys_of_equal_tag_and_tables_of_equal_key_are_told_apart() {
    let cache = cache(1, 8, PolicyKind::Lru);
    let same = cache.locate_hashed(9);
    for key in [0, 1, u64::MAX] {
        for table in [0, 1, u16::MAX] {
            let fill = |row: RowMut<'_>, fresh: bool| {
                assert!(fresh);
                row.words.fill(key as f32 + f32::from(table));
            };
            cache.admit(same, table, key, 0, fill, |_| ());
        }
        for table in [0, 1, u16::MAX] {
            let word = cache.access(same, table, key, |row| row.words[0]);
            assert_eq!(word, Some(key as f32 + f32::from(table)));
            cache.remove(same, table, key, |_| ());
        }
    }
    assert_eq!(cache.resident_rows(), 0);
}

#[test]
fn a_panic_while_a_row_is_filled_leaves_no_row_and_no_lock() {
    let cache = cache(1, 1, PolicyKind::Lru);
    let location = at(&cache, 0, 5);
    let fill = |mut row: RowMut<'_>, _| -> () {
        row.mark_dirty(0);
        panic!("the filling fails");
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        cache.admit(location, 0, 5, 0, fill, |_| ());
    }));
    assert!(outcome.is_err());
    assert_eq!((cache.resident_rows(), cache.dirty_rows()), (0, 0));
    assert!(cache.peek(location, 0, 5, |_| ()).is_none());
    assert_eq!(admit_new(&cache, location, 5, 0.0), None);
    assert_eq!((cache.resident_rows(), cache.dirty_rows()), (1, 0));
}

#[test]
fn a_stage_visits_every_key_once_in_order() {
    let (policy, headers) = (PolicyKind::Lru, true);
    for row_bytes in [12, 516] {
        let cache =
            Cache::new(CacheShape { row_bytes, sets: 3, ways: 8, policy, headers }).unwrap();
        stages_of(&cache);
    }
}

fn stages_of(cache: &Cache) {
    for n in [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 128, 129, 200] {
        let (mut located, mut visited) = (0, 0);
        let location = |i: usize| at(cache, 0, i as u64);
        cache.staged(
            n,
            false,
            |i| {
                assert_eq!(i, located);
                located += 1;
                location(i)
            },
            |i, at| {
                assert_eq!((i, at.set, at.tag), (visited, location(i).set, location(i).tag));
                visited += 1;
            },
        );
        assert_eq!((located, visited), (n, n));
    }
}

#[test]
fn the_bytes_of_a_shape_are_those_of_the_cache() {
    let policy = PolicyKind::Lru;
    let shape = CacheShape { row_bytes: 128, sets: 10, ways: 32, policy, headers: true };
    let cache = Cache::new(shape).unwrap();
    assert_eq!(cache.memory_bytes(), shape.bytes());
    assert_eq!(shape.bytes(), 320 * (128 + 24));
    // Stamps in their rows, apart, and without headers.
    for row_bytes in [128, 132, 260, 264] {
        for headers in [false, true] {
            let shape = CacheShape { row_bytes, headers, ..shape };
            let memory_bytes = match headers {
                true => Cache::new(shape).unwrap().memory_bytes(),
                false => {
                    let table = DenseTable { first: 0, table: 0 };
                    Cache::of_dense_rows(shape, vec![table]).unwrap().memory_bytes()
                }
            };
            assert_eq!(memory_bytes, shape.bytes());
            let beside = if headers { 24 } else { 8 };
            assert_eq!(shape.bytes(), 320 * (row_bytes as u64 + beside));
        }
    }
}

#[test]
fn an_impossible_shape_is_misuse_and_an_impossible_size_a_budget_error() {
    let policy = PolicyKind::Lru;
    let good = CacheShape { row_bytes: 128, sets: 10, ways: 32, policy, headers: true };
    for bad in [
        CacheShape { row_bytes: 0, ..good },
        CacheShape { row_bytes: 130, ..good },
        CacheShape { sets: 0, ..good },
        CacheShape { ways: 0, ..good },
        CacheShape { ways: 33, ..good },
        CacheShape { sets: 1 << 27, ..good },
    ] {
        assert_eq!(Cache::new(bad).unwrap_err().kind(), crate::ErrorKind::Misuse, "{bad:?}");
    }
    if cfg!(miri) {
        return;
    }
    let huge = CacheShape { row_bytes: 1 << 30, sets: 1 << 26, ..good };
    assert_eq!(Cache::new(huge).unwrap_err().kind(), crate::ErrorKind::Budget);
}

/// Two threads use, admit, remove and write back rows of few sets while a third shrinks the cache
/// and lets it grow.
/// Every row that anyone sees is whole: all its words are equal and belong to its key.
#[test]
fn rows_stay_whole_between_threads() {
    let (ways, rounds) = if cfg!(miri) { (10, 60) } else { (32, 60_000) };
    for policy in [PolicyKind::Lru, PolicyKind::Lfu] {
        let cache = cache(2, ways, policy);
        let whole = |key: u64, words: &[f32]| {
            assert!(words.iter().all(|&w| w == words[0]), "torn row {key}: {words:?}");
            assert_eq!(words[0] as u64 % 97, key, "row {key} holds another's words");
        };
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (cache, whole) = (&cache, &whole);
                scope.spawn(move || {
                    let pick = |i: usize| mix(i as u64, thread) % 97;
                    let visit = |i: usize, location: Location| {
                        let (key, stamp) = (pick(i), i as u32);
                        let change = |mut row: RowMut<'_>, fresh: bool| {
                            if !fresh {
                                whole(key, row.words);
                            }
                            row.words.fill((97 * (i as u64 % 1000) + key) as f32);
                            row.mark_dirty(stamp);
                        };
                        match i % 8 {
                            0 => drop(cache.remove(location, 0, key, |removed| removed)),
                            1 => {
                                let slot = (mix(i as u64, 3) % cache.row_capacity()) as u32;
                                cache.write_back(slot, |row| {
                                    whole(row.key, row.words);
                                    Some(row.origin.unwrap() + 1)
                                });
                            }
                            2..4 => drop(cache.access(location, 0, key, |row| {
                                change(row, false);
                            })),
                            _ => cache.admit(location, 0, key, 0, change, |row| {
                                whole(row.key, row.words);
                            }),
                        }
                    };
                    cache.staged(rounds, true, |i| at(cache, 0, pick(i)), visit);
                });
            }
            scope.spawn(|| {
                for stamp in 0..rounds {
                    if stamp.is_multiple_of(rounds / 20) {
                        cache.take_way_step(1, Leaving::Any, |row| whole(row.key, row.words));
                        if stamp / (rounds / 20) % 4 == 3 {
                            assert!(cache.return_way().is_some());
                        }
                    }
                    cache.for_each_resident(0..2, 0, |row| whole(row.key, row.words));
                }
            });
        });
        assert_eq!(cache.ways(), (ways - 5).max(WAYS_MIN + 1));
        let (mut resident, mut dirty) = (0, 0);
        cache.for_each_resident(0..2, 0, |_| resident += 1);
        cache.capture();
        cache.for_each_captured(|_, _| dirty += 1);
        assert_eq!((cache.resident_rows(), cache.dirty_rows()), (resident, dirty));
    }
}

/// One thread changes, admits and removes rows and takes ways away while two gather them without
/// locks. Every row that is copied is whole.
#[test]
fn gathers_beside_a_writer_copy_whole_rows() {
    let rounds = if cfg!(miri) { 20 } else { 30_000 };
    // Few sets, where threads meet; and so many that a way is pages that go back to the system.
    for (sets, ids) in if cfg!(miri) { [(1, 20), (2, 97)] } else { [(2, 97), (700, 30_000)] } {
        gather_beside_a_writer::<61>(sets, ids, rounds);
    }
    // Rows of more lines go by in smaller blocks.
    gather_beside_a_writer::<100>(2, 97, rounds / 2);
}

/// Says that the writer has ended, also when it panics.
struct Ends<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

fn gather_beside_a_writer<const WORDS: usize>(sets: u32, ids: u64, rounds: u64) {
    // Each block of either size is filled and used more than once.
    const AT_ONCE: usize = 230;
    let policy = PolicyKind::Lru;
    let shape = CacheShape { row_bytes: WORDS * 4, sets, ways: 32, policy, headers: true };
    let place = |cache: &Cache, table, key| match table {
        0 => cache.locate_dense(key),
        _ => at(cache, table, key),
    };
    for table in [0, 1] {
        let cache = Cache::new(shape).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (cache, done) = (&cache, &done);
                scope.spawn(move || {
                    let mut rows = vec![0.0; AT_ONCE * WORDS];
                    let mut round = 0;
                    let mut hits = 0;
                    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
                    // If this thread slept while the writer worked, its rows are still there.
                    while round < 10 || !is_done() || (hits == 0 && round < 10_000) {
                        round += 1;
                        let keys: Vec<u64> =
                            (0..AT_ONCE as u64).map(|i| mix(i, round + thread) % ids).collect();
                        let mut missed = [false; AT_ONCE];
                        let locate = |key| place(cache, table, key);
                        cache.gather(table, &keys, WORDS, &mut rows, locate, |i| missed[i] = true);
                        for (i, row) in
                            rows.chunks_exact(WORDS).enumerate().filter(|r| !missed[r.0])
                        {
                            assert!(
                                row.iter().all(|&w| w == row[0]),
                                "torn row {}: {row:?}",
                                keys[i]
                            );
                            assert_eq!(row[0] as u64 % ids, keys[i], "another row's words");
                            hits += 1;
                        }
                    }
                    assert!(hits > 0, "no row was ever resident");
                });
            }
            let _end = Ends(&done);
            for i in 0..rounds {
                let key = mix(i, 5) % ids;
                let fill = |row: RowMut<'_>, _| row.words.fill((ids * (i % 100) + key) as f32);
                let location = place(&cache, table, key);
                cache.admit(location, table, key, 0, fill, |_| ());
                if i % 16 == 0 {
                    cache.remove(location, table, key, |_| ());
                }
                if i % 5000 == 4999 {
                    cache.take_way(|_| ());
                }
            }
            assert!(cfg!(miri) || cache.ways() < 32);
        });
    }
}
