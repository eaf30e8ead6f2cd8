//! Batches of which a cache holds few: fewer pages are read with notice than without, and results
//! are the same.

use super::*;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);
const ROWS: u64 = 60_000;
/// Values of a row, and as many of state.
const WIDTH: usize = 24;
const BUDGET: u64 = 2400 << 10;
/// Batches that are announced behind the one at hand.
const DEPTH: usize = 6;

/// When the window works, where its threads do not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turns {
    BeforeReads,
    AfterReads,
    AfterUpdates,
    /// Threads do it.
    Threads,
}

/// Counters of a training, and its result.
#[derive(Debug)]
struct Trained {
    pages: u64,
    window: WindowStats,
    digest: u64,
    values: Vec<f32>,
    capacity: u64,
}

/// A training on batches of so many distinct rows, some used by many batches; with notice or not.
fn train(rows: usize, batches: usize, turns: Option<Turns>) -> Trained {
    let window =
        StoreOptions { page_bytes: Some(1024), segment_bytes: Some(64 << 10), ..options(BUDGET) };
    let store = Store::open_on(Arc::new(SimMedium::new(1)), window).unwrap();
    if turns.is_some_and(|turns| turns != Turns::Threads) {
        store.window_by_hand();
    }
    let spec = TableSpec { embedding_dim: WIDTH, ..spec("t", Some(ROWS), OptimizerKind::Adagrad) };
    let table = store.table(&spec).unwrap();
    let (state, non_finite, reset_state) = (None, NonFinite::Refuse, true);
    let all: Vec<u64> = (0..ROWS).collect();
    for keys in all.chunks(500) {
        let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; WIDTH]).collect();
        let values = values.as_slice();
        store.put(&[PutBatch { table, keys, values, state, reset_state, non_finite }]).unwrap();
    }
    store.commit(1, "", &[]).unwrap();
    let batches = draw(rows, batches);
    let before = store.stats().unwrap().pages_read;
    let work = |at: Turns| {
        while turns == Some(at) && store.window_turn().unwrap() {}
    };
    let (mut numbers, mut read) = (Vec::new(), Vec::new());
    for (i, keys) in batches.iter().enumerate() {
        if let Some(turns) = turns {
            while numbers.len() < batches.len().min(i + 1 + DEPTH) {
                let keys = &batches[numbers.len()];
                match store.announce(&[LookaheadBatch { table, keys, next: &[] }]).unwrap() {
                    Some(number) => numbers.push(number),
                    None if numbers.len() > i => break,
                    None => work(turns),
                }
            }
            assert!(store.begin(numbers[i], LONG).unwrap());
            work(Turns::BeforeReads);
        }
        let mut values = vec![0.0; keys.len() * WIDTH];
        store
            .get(&mut [GetBatch { table, keys, values: (&mut values).into(), state: None }])
            .unwrap();
        work(Turns::AfterReads);
        if turns == Some(Turns::Threads) {
            // They read while a step computes, once others leave them a core.
            let begun = Instant::now();
            let waits = || store.window_stats().unwrap().filled <= numbers[i];
            while waits() && begun.elapsed() < Duration::from_secs(1) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let gradients: Vec<f32> = values.iter().map(|value| value / 1024.0).collect();
        let (gradients, hyper, step) = (gradients.as_slice(), HYPER, None);
        store.update(&[UpdateBatch { table, keys, gradients, hyper, non_finite, step }]).unwrap();
        read.extend_from_slice(&values[..WIDTH]);
        if turns.is_some() {
            store.finish(numbers[i]).unwrap();
            work(Turns::AfterUpdates);
        }
    }
    // Nobody is at a batch: what verbs bring now is used by none.
    assert!(turns.is_none() || store.inner.engine.read().classes[0].cache().at_hand().is_none());
    let stats = store.stats().unwrap();
    assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
    let window = store.window_stats().unwrap();
    Trained {
        pages: stats.pages_read - before,
        window,
        digest: digest(&store, table),
        values: read,
        capacity: stats.classes[0].cache_capacity,
    }
}

/// Distinct keys of each batch; a third of them from a tenth of all.
fn draw(rows: usize, batches: usize) -> Vec<Vec<u64>> {
    let mut random = Random(5);
    let one = |random: &mut Random| {
        let mut keys = Vec::new();
        while keys.len() < rows {
            let below = if random.below(3) == 0 { ROWS / 10 } else { ROWS };
            keys.extend((keys.len()..rows).map(|_| random.below(below) * 7 % ROWS));
            keys.sort_unstable();
            keys.dedup();
        }
        keys
    };
    (0..batches).map(|_| one(&mut random)).collect()
}

// The saving by notice depends on the part of a budget that is left for the cache. Merges of an lsm
// take some of it, so the shares are those of a log.
// Nothing was read ahead and no row was kept for its next use where a cache held the rows of fewer
// than four batches: at 10 % memory that was every batch. In groups such batches read up to 2.1
// times as many pages as without notice.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn where_a_cache_holds_few_batches_notice_saves_pages() {
    let capacity = train(10, 1, None).capacity;
    let all = [(15, 0.9), (20, 0.92), (30, 0.92), (50, 0.96)];
    // The first and the last, but for all at night.
    for (tenths, most) in all.into_iter().step_by(stride(3) as usize) {
        let rows = (capacity * 10 / tenths) as usize;
        let plain = train(rows, 24, None);
        for turns in [Turns::BeforeReads, Turns::AfterReads, Turns::AfterUpdates] {
            let ahead = train(rows, 24, Some(turns));
            let share = ahead.pages as f64 / plain.pages as f64;
            assert!(share <= most, "{tenths} tenths, {turns:?}: {share}, {:?}", ahead.window);
            let window = &ahead.window;
            // A window beside one and a half batches has room for the keys of few.
            let passed_over = if tenths == 15 { 0 } else { window.skipped };
            let in_vain = (passed_over, window.turned_away, window.failed);
            assert_eq!(in_vain, (0, 0, 0), "{tenths} tenths, {turns:?}: {window:?}");
            assert!(window.pages_again <= 2, "{tenths} tenths, {turns:?}: {window:?}");
            // A smaller window has room for what is known and for no reader.
            assert_eq!(window.rows_loaded > 0, tenths == 50, "{turns:?}: {window:?}");
            assert!(ahead.digest == plain.digest && ahead.values == plain.values);
        }
    }
}

/// The window's threads read while verbs do.
#[test]
fn what_threads_read_in_slices_changes_no_result() {
    each_kind(|| {
        let rows = (train(10, 1, None).capacity / 5) as usize;
        let plain = train(rows, 24, None);
        let ahead = train(rows, 24, Some(Turns::Threads));
        assert!(ahead.digest == plain.digest && ahead.values == plain.values);
        let window = &ahead.window;
        assert!(window.rows_loaded > 0 && window.failed == 0, "{window:?}");
    });
}

// A caller at the begin of a batch waited for `modify`, which has the store to itself, whatever its
// patience was. The reader of groups stayed where slices followed, and counted as a smaller one.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn a_window_of_changing_batches_counts_what_it_holds_and_waits_for_no_verb() {
    each_kind(|| {
        let options = StoreOptions {
            page_bytes: Some(1024),
            segment_bytes: Some(64 << 10),
            ..options(8 << 20)
        };
        let store = Store::open_on(Arc::new(SimMedium::new(1)), options).unwrap();
        store.window_by_hand();
        let budget = store.stats().unwrap().budget_bytes;
        let rows = 150_000;
        let spec =
            TableSpec { embedding_dim: WIDTH, ..spec("t", Some(rows), OptimizerKind::Adagrad) };
        let table = store.table(&spec).unwrap();
        let all: Vec<u64> = (0..rows).collect();
        let (state, non_finite, reset_state) = (None, NonFinite::Refuse, true);
        for keys in all.chunks(500) {
            let values = &vec![1.0; keys.len() * WIDTH][..];
            store.put(&[PutBatch { table, keys, values, state, reset_state, non_finite }]).unwrap();
        }
        store.commit(1, "", &[]).unwrap();
        let capacity = store.stats().unwrap().classes[0].cache_capacity as usize;
        let class = || store.inner.engine.read();
        let (mut random, mut paces) = (Random(3), [0; 3]);
        for round in 0..60 {
            // Groups, slices, and batches that are passed over, some of each in a row.
            let kind = round / 5 % 3;
            let size = [capacity / 40, capacity / 4, capacity * 2][kind];
            let mut keys: Vec<u64> = (0..size).map(|_| random.below(rows)).collect();
            keys.sort_unstable();
            keys.dedup();
            let before = store.window_stats().unwrap();
            let number = store
                .announce(&[LookaheadBatch { table, keys: &keys, next: &[] }])
                .unwrap()
                .unwrap();
            while store.window_turn().unwrap() {}
            {
                let _modifies = store.inner.engine.write();
                std::thread::scope(|scope| {
                    scope.spawn(|| store.begin(number, Duration::from_millis(5)).unwrap());
                });
            }
            let mut values = vec![0.0; keys.len() * WIDTH];
            let get = GetBatch { table, keys: &keys, values: (&mut values).into(), state: None };
            store.get(&mut [get]).unwrap();
            while store.window_turn().unwrap() {}
            store.finish(number).unwrap();
            while store.window_turn().unwrap() {}
            let after = store.window_stats().unwrap();
            paces[kind] += after.skipped - before.skipped;
            let held = class().classes[0].held_ahead_bytes();
            let memory = store.stats().unwrap().memory;
            assert!(memory.window_bytes >= held, "{kind}: {} < {held}", memory.window_bytes);
            assert!(memory.total() <= budget, "{kind}: {memory:?}");
            assert!(class().classes[0].cache().at_hand().is_none());
        }
        assert!(paces[0] == 0 && paces[1] == 0 && paces[2] == 20, "{paces:?}");
    });
}
