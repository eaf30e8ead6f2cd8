//! Rows that are read ahead: the same results, no update lost, nothing kept that should not be.

use super::*;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// Read by tests of what is read ahead, written by those that leave the window no core.
static CORES: RwLock<()> = RwLock::new(());

fn with_window(bytes: u64, window_group: usize) -> StoreOptions {
    StoreOptions { window_bytes: Some(bytes / 3), window_group, ..options(bytes) }
}

/// The same for tables of one class, whose cache is about as large whatever they are stored in: one
/// that holds all rows has none to read ahead, and a larger one leaves a window no room for groups.
fn with_window_of_one(bytes: u64, window_group: usize) -> StoreOptions {
    let all = match KIND.get() {
        // Slot numbers of 20,000 rows have 16 bits of the 32 that they may have.
        StorageKind::Log => bytes - (56 << 10),
        // Buffers of merges, less what its smaller index leaves.
        _ => bytes + (128 << 10),
    };
    StoreOptions { window_bytes: Some(bytes / 3), window_group, ..options_within(all) }
}

type Batch = Vec<(usize, Vec<u64>)>;

/// The keys of coming batches, of one to three tables each.
fn draw(fixture: &Fixture, random: &mut Random, batches: usize) -> Vec<Batch> {
    let mut one = || {
        let first = random.below(fixture.specs.len() as u64) as usize;
        let tables = 1 + random.below(3) as usize;
        let table = |i| (first + i) % fixture.specs.len();
        (0..tables).map(|i| (table(i), fixture.pick(random, table(i), 30))).collect()
    };
    (0..batches).map(|_| one()).collect()
}

/// Announces a batch, once the window has room: its threads may have no core for a while.
fn announced(store: &Store, table: TableId, keys: &[u64]) -> u64 {
    announced_parts(store, &[LookaheadBatch { table, keys, next: &[] }])
}

fn announced_parts(store: &Store, parts: &[LookaheadBatch<'_>]) -> u64 {
    let begun = Instant::now();
    loop {
        if let Some(number) = store.announce(parts).unwrap() {
            return number;
        }
        let full = || store.window_stats().unwrap();
        assert!(begun.elapsed() < LONG, "the window stays full: {:?}", full());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn announce(store: &Store, batch: &Batch) -> Option<u64> {
    let part =
        |(table, keys): &'_ (usize, Vec<u64>)| (TableId(*table as u16), keys.as_slice().to_vec());
    let parts: Vec<_> = batch.iter().map(part).collect();
    let batches: Vec<_> = parts
        .iter()
        .map(|(table, keys)| LookaheadBatch { table: *table, keys, next: &[] })
        .collect();
    store.announce(&batches).unwrap()
}

/// As [`announce`], once the window's threads have made room where they soon do: batches that come
/// faster than these have a core for are not looked at, and nothing of them is read.
fn announce_in_time(store: &Store, batch: &Batch) -> Option<u64> {
    (0..20).find_map(|_| {
        let number = announce(store, batch);
        if number.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        number
    })
}

// Two threads of a pool that compute together waited for each other at every step while the
// window's had a core.
#[cfg(target_os = "linux")]
#[test]
fn the_windows_threads_give_way_to_others() {
    each_kind(|| {
        let fixture = Fixture::new();
        let store = fixture.open(&SimMedium::new(7), with_window(16 << 20, 16));
        let number = announce(&store, &vec![(0, fixture.keys[0][..9].to_vec())]).unwrap();
        assert!(store.begin(number, LONG).unwrap());
        // A caller that waited may have done all of it before the threads came to that.
        let begun = Instant::now();
        for name in ["embedrock-plan", "embedrock-read"] {
            while !policies().contains(&(name.into(), libc::SCHED_IDLE)) {
                assert!(begun.elapsed() < LONG, "{name}: {:?}", policies());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

/// The name of each thread of this process, and how it is scheduled.
#[cfg(target_os = "linux")]
fn policies() -> Vec<(String, i32)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread of another test may end meanwhile.
    let stats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats
        .map(|stat| {
            let (name, rest) = stat.split_once('(').unwrap().1.rsplit_once(')').unwrap();
            (name.to_owned(), rest.split_whitespace().nth(38).unwrap().parse().unwrap())
        })
        .collect()
}

// Work of milliseconds would take half a minute: the scheduler gives a thread of the idle class
// three thousandths of what it gives another. Callers waited 30 ms for every batch, for 5 s.
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "threads are not scheduled by classes")]
#[test]
fn where_all_cores_are_taken_callers_do_not_stand_still() {
    each_kind(|| {
        let _cores = CORES.write();
        // While cores are busy nothing else gets on: the stores are made before.
        let [one, other] = [(); 2].map(|()| with_rows(with_window_of_one(600 << 10, 8)));
        let others: Vec<Busy> = (0..cores()).map(|_| Busy::new()).collect();
        use_ahead_beside_busy_cores(one);
        drop(others);
        let busy = AtomicBool::new(true);
        std::thread::scope(|scope| {
            for _ in 0..cores() {
                scope.spawn(|| {
                    while busy.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let _ends = Ends(&busy);
            use_ahead_beside_busy_cores(other);
        });
    });
}

// The memory of a window stayed with it for as long as the store was open, even if nothing was
// announced any more, and the cache lacked it.
#[test]
fn a_window_that_is_released_gives_its_memory_back_to_the_cache() {
    each_kind(|| {
        let _cores = CORES.read();
        let (store, table) = with_rows(with_window_of_one(600 << 10, 8));
        let ways = || store.inner.engine.read().classes[0].cache().ways();
        let window_bytes = || store.stats().unwrap().memory.window_bytes;
        let whole = ways();
        let mut random = Random(9);
        for _ in 0..3 {
            for keys in draw_keys(&mut random, 20) {
                let number = announced(&store, table, &keys);
                assert!(store.begin(number, LONG).unwrap());
                store.finish(number).unwrap();
            }
            assert!(window_bytes() > 0 && ways() < whole);
            store.release_window().unwrap();
            let begun = Instant::now();
            while window_bytes() > 0 || ways() < whole {
                assert!(begun.elapsed() < LONG, "{} bytes, {} ways", window_bytes(), ways());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let window = store.window_stats().unwrap();
        assert!(window.rows_loaded > 100 || window.starved > 0, "{window:?}");
    });
}

// A caller that helped waited for a verb that had the class, longer than it was ready to wait, and
// Ctrl-C did not reach it.
#[test]
fn who_helps_waits_for_no_verb() {
    each_kind(|| {
        let _cores = CORES.read();
        let (store, table) = with_rows(with_window_of_one(600 << 10, 8));
        store.rest_window();
        for keys in draw_keys(&mut Random(9), 10) {
            let number = announced(&store, table, &keys);
            // A verb that changes rows has their class to itself, `modify` all of the store.
            let engine = store.inner.engine.read();
            begin_beside(&store, number, engine.classes[0].log.lock());
            drop(engine);
            begin_beside(&store, number, store.inner.engine.write());
        }
    });
}

/// Begins a batch on another thread while this one holds a lock.
fn begin_beside<L>(store: &Store, number: u64, lock: L) {
    let (ends, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            store.begin(number, Duration::from_millis(20)).unwrap();
            ends.send(()).unwrap();
        });
        let ended = ended.recv_timeout(Duration::from_secs(5));
        drop(lock);
        assert!(ended.is_ok(), "the caller waits for {}", std::any::type_name::<L>());
    });
}

/// Batches that are read ahead take little longer than those that are not, and bring their rows.
#[cfg(target_os = "linux")]
fn use_ahead_beside_busy_cores((store, table): (Store, TableId)) {
    let mut random = Random(8);
    let batches = draw_keys(&mut random, 100);
    use_ahead(&store, table, &batches);
    let stats = store.window_stats().unwrap();
    assert!(stats.wait_s < 1.3 && stats.failed == 0, "{stats:?}");
    assert!(stats.helped > 0, "{stats:?}");
    // A thread may have lost its core in the middle of a group: verbs read what it lacks.
    assert!(stats.rows_loaded > 1000 || stats.starved > 0, "{stats:?}");
    let (window_lives, begun) = (store.inner.window.lives(), Instant::now());
    drop(store);
    while window_lives() {
        assert!(begun.elapsed() < LONG, "a thread of the window has not ended");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(target_os = "linux")]
fn cores() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

/// A program that takes what it gets of a core until it is dropped.
#[cfg(target_os = "linux")]
struct Busy(std::process::Child);

#[cfg(target_os = "linux")]
impl Busy {
    fn new() -> Self {
        let mut shell = std::process::Command::new("sh");
        Self(shell.args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

#[cfg(target_os = "linux")]
impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Threads that run until a flag falls end also when a test fails.
#[cfg(target_os = "linux")]
struct Ends<'a>(&'a AtomicBool);

#[cfg(target_os = "linux")]
impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn batches_that_are_announced_give_what_a_plain_map_holds() {
    each_kind(|| {
        let _cores = CORES.read();
        let fixture = Fixture::new();
        for (seed, bytes, depth, group) in
            [(1, tight(), 3, 2), (2, tight(), 30, 256), (3, 1 << 20, 12, 4), (4, 16 << 20, 50, 16)]
        {
            let medium = SimMedium::new(seed);
            let mut random = Random(seed);
            let mut model = Model::default();
            let store = fixture.open(&medium, with_window(bytes, group));
            // Rows to read: all are written, and most are on storage.
            for table in 0..fixture.specs.len() {
                for keys in fixture.keys[table].chunks(100) {
                    fixture.update(&store, &mut model, &mut random, table, keys);
                }
            }
            store.commit(0, "", &[]).unwrap();
            let batches = draw(&fixture, &mut random, 400);
            let mut numbers: Vec<Option<u64>> = Vec::new();
            for (i, batch) in batches.iter().enumerate() {
                while numbers.len() < batches.len().min(i + 1 + depth) {
                    // Some batches come without notice; some are announced and never come.
                    let number = match random.below(12) {
                        0 => None,
                        1 => {
                            announce(&store, &draw(&fixture, &mut random, 1)[0]);
                            announce(&store, &batches[numbers.len()])
                        }
                        _ => announce_in_time(&store, &batches[numbers.len()]),
                    };
                    numbers.push(number);
                }
                if let Some(number) = numbers[i]
                    && random.below(5) != 0
                {
                    assert!(
                        store.begin(number, LONG).unwrap(),
                        "batch {number} was not read ahead"
                    );
                }
                for (table, keys) in batch {
                    fixture.check(&store, &model, *table, keys);
                    fixture.update(&store, &mut model, &mut random, *table, keys);
                }
                if let Some(number) = numbers[i] {
                    store.finish(number).unwrap();
                }
                match random.below(40) {
                    0..=4 => fixture.step(&store, &mut model, &mut random),
                    5 if i % 2 == 0 => drop(store.commit(i as u64, "", &[]).unwrap()),
                    5 => drop(store.commit_in_background(i as u64, "", &[]).unwrap()),
                    6 => {
                        store.clear_announced().unwrap();
                        numbers.iter_mut().skip(i + 1).for_each(|number| *number = None);
                    }
                    _ => {}
                }
            }
            fixture.check_all(&store, &model);
            let (window, stats) = (store.window_stats().unwrap(), store.stats().unwrap());
            assert_eq!((window.failed, &window.error), (0, &None));
            assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
            assert!(window.memory_bytes <= window.most_bytes);
            // Callers do not wait for threads that other programs leave no core. So the number of
            // rows read ahead varies, and the bounds here are wide.
            if bytes == tight() && window.starved == 0 {
                assert!(window.rows_loaded > 100, "{window:?}");
                let (groups, batches) = (window.groups, window.group_batches);
                // Groups are a third of what is announced: of three batches one at a time, each
                // once.
                let most = if depth < 6 { window.batches + 1 } else { batches };
                assert!(groups < most, "{groups} groups of {batches} batches, depth {depth}");
            }
        }
    });
}

/// Every read of a batch that was begun finds its rows resident, and the device reads none of its
/// pages twice.
/// A store with 20,000 rows, of which its cache holds a part.
fn with_rows(options: StoreOptions) -> (Store, TableId) {
    let store = Store::open_on(Arc::new(SimMedium::new(1)), options).unwrap();
    let table = store.table(&spec("t", Some(20_000), OptimizerKind::None)).unwrap();
    for from in (0..20_000).step_by(500) {
        let keys: Vec<u64> = (from..from + 500).collect();
        let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; DIM]).collect();
        let batch = PutBatch { reset_state: true, ..put_of(table, &keys, &values) };
        store.put(&[batch]).unwrap();
    }
    store.commit(1, "", &[]).unwrap();
    (store, table)
}

/// Keys of batches, small ones more often.
fn draw_keys(random: &mut Random, batches: usize) -> Vec<Vec<u64>> {
    (0..batches)
        .map(|_| (0..100).map(|_| random.below(20_000).min(random.below(20_000))).collect())
        .collect()
}

/// Announces 40 batches ahead, and gets each.
fn use_ahead(store: &Store, table: TableId, batches: &[Vec<u64>]) {
    use_ahead_between(store, table, batches, || ());
}

/// As [`use_ahead`]; `turn` is called before each batch and when it has begun.
fn use_ahead_between(store: &Store, table: TableId, batches: &[Vec<u64>], turn: impl Fn()) {
    let mut numbers = Vec::new();
    for (i, keys) in batches.iter().enumerate() {
        while numbers.len() < batches.len().min(i + 40) {
            let batch = LookaheadBatch { table, keys: &batches[numbers.len()], next: &[] };
            match store.announce(&[batch]).unwrap() {
                Some(number) => numbers.push(number),
                None if numbers.len() > i => break,
                None => {}
            }
        }
        turn();
        assert!(store.begin(numbers[i], LONG).unwrap());
        turn();
        let mut values = vec![0.0; keys.len() * DIM];
        store
            .get(&mut [GetBatch { table, keys, values: (&mut values).into(), state: None }])
            .unwrap();
        for (key, values) in keys.iter().zip(values.chunks_exact(DIM)) {
            assert_eq!(values, [*key as f32; DIM]);
        }
        store.finish(numbers[i]).unwrap();
    }
}

#[test]
fn what_is_read_ahead_is_there_when_it_is_used() {
    each_kind(|| {
        let _cores = CORES.read();
        // Callers whose threads get no core read themselves: another try may find an idle core.
        let counts = |by_hand: bool| {
            let (store, table) = with_rows(with_window_of_one(600 << 10, 8));
            if by_hand {
                store.window_by_hand();
            }
            let before = store.stats().unwrap();
            let turn = || while by_hand && store.window_turn().unwrap() {};
            use_ahead_between(&store, table, &draw_keys(&mut Random(3), 200), turn);
            let (window, stats) = (store.window_stats().unwrap(), store.stats().unwrap());
            assert_eq!(window.rows_loaded, stats.rows_loaded - before.rows_loaded);
            assert!(window.pages < window.rows_loaded, "{window:?}");
            assert_eq!((window.filled, window.pages_again), (200, 0));
            (stats.misses - before.misses, window)
        };
        let (missed, window) = counts(true);
        assert_eq!((missed, window.lost, window.turned_away), (0, 0, 0), "{window:?}");
        // Of threads it depends on the time which rows meet in a set: one may be full.
        let of_threads = |_| Some(counts(false)).filter(|(_, window)| window.starved == 0);
        let Some((missed, window)) = (0..5).find_map(of_threads) else { return };
        let without_place = window.lost + window.turned_away;
        assert!(missed <= without_place && without_place * 1000 < window.rows_loaded, "{window:?}");
    });
}

/// More than the budget would leave caches no rows, and turned the window off.
#[test]
fn a_window_takes_half_of_the_budget_at_most() {
    each_kind(|| {
        let _cores = CORES.read();
        let (store, table) = with_rows(StoreOptions {
            window_bytes: Some(u64::MAX),
            ..with_window_of_one(700 << 10, 8)
        });
        let budget = store.stats().unwrap().budget_bytes;
        use_ahead(&store, table, &draw_keys(&mut Random(3), 100));
        let window = store.window_stats().unwrap();
        assert_eq!((window.most_bytes, window.skipped), (budget / 2, 0), "{window:?}");
        assert!(window.rows_loaded > 0 || window.starved > 0, "{window:?}");
        let memory = store.stats().unwrap().memory;
        assert!(memory.total() <= budget, "{memory:?}");
    });
}

/// Rows that are read ahead would drive out rows that are used before them.
#[test]
fn batches_of_which_a_cache_holds_too_few_are_passed_over() {
    each_kind(|| {
        let (store, table) = with_rows(with_window_of_one(600 << 10, 8));
        let capacity = store.stats().unwrap().classes[0].cache_capacity;
        let announce = |keys: &[u64]| {
            store
                .announce(&[LookaheadBatch { table, keys, next: &[] }])
                .unwrap()
                .expect("there is room")
        };
        let large: Vec<u64> = (0..capacity).collect();
        for skipped in 1..4 {
            let number = announce(&large);
            store.begin(number, LONG).unwrap();
            let stats = once_counted(&store, |stats| stats.skipped == skipped);
            let (loaded, bytes) = (stats.rows_loaded, stats.memory_bytes);
            assert_eq!((stats.skipped, loaded, bytes), (skipped, 0, 0), "{stats:?}");
            store.finish(number).unwrap();
        }
        // Keys that occur often are few.
        let number = announce(&[5; 2000]);
        store.begin(number, LONG).unwrap();
        let stats = once_counted(&store, |stats| stats.distinct > 0);
        assert_eq!((stats.skipped, stats.distinct), (3, 1), "{stats:?}");
    });
}

/// Statistics of the window once they are as expected, or after long: its threads may have no core,
/// and callers go on without them.
fn once_counted(store: &Store, is_counted: impl Fn(&WindowStats) -> bool) -> WindowStats {
    let begun = Instant::now();
    loop {
        let stats = store.window_stats().unwrap();
        if is_counted(&stats) || begun.elapsed() > LONG {
            return stats;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A get of announced keys begins and finishes batches by itself, of several tables in turn.
#[test]
fn announcements_of_single_gets_are_used_up_by_them() {
    each_kind(|| {
        let _cores = CORES.read();
        let fixture = Fixture::new();
        let store = fixture.open(&SimMedium::new(5), with_window(2 << 20, 4));
        let (mut random, mut model) = (Random(5), Model::default());
        for table in [0, 1] {
            fixture.update(&store, &mut model, &mut random, table, &fixture.keys[table]);
        }
        let batches: Vec<(usize, Vec<u64>)> =
            (0..60).map(|i| (i % 2, fixture.pick(&mut random, i % 2, 60))).collect();
        for (i, (table, keys)) in batches.iter().enumerate() {
            if i % 10 == 0 {
                for (table, keys) in &batches[i..i + 10] {
                    store.lookahead(TableId(*table as u16), keys).unwrap();
                }
            }
            // One of them never comes; the next that does finishes it.
            if i != 35 {
                let mut keys = keys.clone();
                keys.reverse();
                keys.push(keys[0]);
                fixture.check(&store, &model, *table, &keys);
                fixture.update(&store, &mut model, &mut random, *table, &keys);
            }
        }
        let window = store.window_stats().unwrap();
        // Both tables' last batches are under way.
        assert_eq!((window.announced, window.finished), (60, 58));
        fixture.check_all(&store, &model);
    });
}

/// Threads that change rows while the window brings the same rows in and others out.
#[test]
fn no_update_is_lost_beside_reads_ahead() {
    each_kind(|| {
        let _cores = CORES.read();
        const ROWS: u64 = 30_000;
        let medium = SimMedium::new(9);
        let options =
            StoreOptions { window_bytes: Some(280 << 10), ..with_window_of_one(700 << 10, 6) };
        let store = Store::open_on(Arc::new(medium), options).unwrap();
        let spec = TableSpec {
            initializer: Initializer::Constant(0.0),
            ..spec("shared", Some(ROWS), OptimizerKind::Sgd)
        };
        let table = store.table(&spec).unwrap();
        let rate = Hyper { lr: 1.0, ..HYPER };
        let all: Vec<u64> = (0..ROWS).collect();
        for keys in all.chunks(500) {
            let values = vec![0.0; keys.len() * DIM];
            let batch = PutBatch { reset_state: true, ..put_of(table, keys, &values) };
            store.put(&[batch]).unwrap();
        }
        let train = |seed: u64| {
            let mut random = Random(seed);
            let mut sums: BTreeMap<u64, f32> = BTreeMap::new();
            let mut draw = || -> Vec<u64> { (0..60).map(|_| random.below(ROWS)).collect() };
            let batches: Vec<Vec<u64>> = (0..150).map(|_| draw()).collect();
            let mut numbers = Vec::new();
            for (i, keys) in batches.iter().enumerate() {
                if i % 8 == 0 {
                    for keys in &batches[i..(i + 8).min(batches.len())] {
                        numbers.push(
                            store.announce(&[LookaheadBatch { table, keys, next: &[] }]).unwrap(),
                        );
                    }
                }
                if let Some(number) = numbers[i] {
                    store.begin(number, LONG).unwrap();
                }
                let gradients = vec![-1.0; keys.len() * DIM];
                let update = UpdateBatch {
                    table,
                    keys,
                    gradients: &gradients,
                    hyper: rate,
                    non_finite: NonFinite::Refuse,
                    step: None,
                };
                store.update(&[update]).unwrap();
                keys.iter().for_each(|key| *sums.entry(*key).or_insert(0.0) += 1.0);
                if let Some(number) = numbers[i] {
                    store.finish(number).unwrap();
                }
                if i % 50 == 25 {
                    store.commit(i as u64, "", &[]).unwrap();
                }
            }
            sums
        };
        let train = &train;
        let sums: Vec<BTreeMap<u64, f32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|seed| scope.spawn(move || train(seed))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let keys = all;
        let mut values = vec![0.0; keys.len() * DIM];
        store.clear_announced().unwrap();
        store
            .get(&mut [GetBatch { table, keys: &keys, values: (&mut values).into(), state: None }])
            .unwrap();
        for (key, row) in keys.iter().zip(values.chunks_exact(DIM)) {
            let sum: f32 = sums.iter().filter_map(|sums| sums.get(key)).sum();
            assert_eq!(row, [sum; DIM], "key {key}");
        }
        let window = store.window_stats().unwrap();
        assert!(window.failed == 0, "{window:?}");
        // Beside other tests the window's threads may have had no core.
        assert!(window.rows_loaded > 100 || window.starved > 0, "{window:?}");
    });
}

#[test]
fn numbers_that_were_not_announced_are_refused_and_a_full_window_says_so() {
    each_kind(|| {
        let store =
            Store::open_on(Arc::new(SimMedium::new(2)), with_window_of_one(600 << 10, 8)).unwrap();
        let table = store.table(&spec("t", Some(20_000), OptimizerKind::None)).unwrap();
        assert_eq!(store.begin(1, LONG).unwrap_err().kind(), ErrorKind::Misuse);
        assert_eq!(store.finish(1).unwrap_err().kind(), ErrorKind::Misuse);
        let beyond = [LookaheadBatch { table, keys: &[20_000], next: &[] }];
        assert_eq!(store.announce(&beyond).unwrap_err().kind(), ErrorKind::KeyRange);
        let keys: Vec<u64> = (0..1000).collect();
        let batch = [LookaheadBatch { table, keys: &keys, next: &[] }];
        let mut last = 0;
        let mut refused = 0;
        for _ in 0..2000 {
            match store.announce(&batch).unwrap() {
                Some(number) => {
                    assert_eq!(number, last + 1);
                    last = number;
                }
                None => refused += 1,
            }
        }
        assert!(refused > 0, "a window of 200 KiB took 2,000 batches of 1,000 keys");
        let window = store.window_stats().unwrap();
        assert_eq!(window.refused, refused);
        assert!(window.memory_bytes <= window.most_bytes, "{window:?}");
        // A batch that does not fit is passed over, not waited for.
        assert!(store.begin(last, LONG).unwrap());
        store.finish(last).unwrap();
        // There is room again as soon as the window has taken note.
        let again = (0..10_000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            store.announce(&batch).unwrap()
        });
        assert_eq!(again, Some(last + 1));
        store.close().unwrap();
        assert_eq!(store.announce(&batch).unwrap_err().kind(), ErrorKind::Closed);
    });
}

/// A window in a store that is going away keeps nobody waiting.
#[test]
fn closing_a_store_ends_its_window() {
    each_kind(|| {
        for close in [true, false] {
            let store =
                Store::open_on(Arc::new(SimMedium::new(7)), with_window(600 << 10, 8)).unwrap();
            let table = store.table(&spec("t", Some(5_000), OptimizerKind::None)).unwrap();
            let keys: Vec<u64> = (0..500).collect();
            let number = announced(&store, table, &keys);
            if close {
                store.close().unwrap();
                let closed = [
                    store.begin(number, LONG).map(drop),
                    store.finish(number),
                    store.clear_announced(),
                    store.pause_window(true),
                    store.window_stats().map(drop),
                ];
                for result in closed {
                    assert_eq!(result.unwrap_err().kind(), ErrorKind::Closed);
                }
            }
            drop(store);
        }
    });
}

/// A table that a batch names twice has one list of keys; rows that come for batches which are over
/// leave before those that are needed.
#[test]
fn parts_of_one_table_are_one_and_batches_that_are_over_keep_no_rows() {
    each_kind(|| {
        let store =
            Store::open_on(Arc::new(SimMedium::new(4)), with_window_of_one(600 << 10, 8)).unwrap();
        let table = store.table(&spec("t", Some(20_000), OptimizerKind::None)).unwrap();
        let mut random = Random(4);
        for _ in 0..600 {
            let keys: Vec<u64> = (0..60).map(|_| random.below(300)).collect();
            let more: Vec<u64> = (0..6).map(|_| random.below(20_000)).collect();
            let parts = [&keys, &more, &keys].map(|keys| LookaheadBatch { table, keys, next: &[] });
            let number = announced_parts(&store, &parts);
            assert!(store.begin(number, LONG).unwrap());
            if random.below(3) == 0 {
                store.finish(number).unwrap();
            }
        }
        let window = store.window_stats().unwrap();
        assert_eq!((window.failed, window.announced), (0, 600));
        assert!(window.distinct < 600 * 66, "{window:?}");
    });
}
