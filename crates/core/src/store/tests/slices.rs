//! Batches of which a cache holds few: fewer pages are read with notice than without, and results
//! are the same.

use super::*;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const ROWS: u64 = 30_000;
/// Values of a row, and as many of state.
const WIDTH: usize = 24;
const BUDGET: u64 = 1200 << 10;
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

/// What a training read, and what it left.
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
                match store.announce(&[LookaheadBatch { table, keys }]).unwrap() {
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
        let gradients: Vec<f32> = values.iter().map(|value| value / 1024.0).collect();
        let (gradients, hyper, step) = (gradients.as_slice(), HYPER, None);
        store.update(&[UpdateBatch { table, keys, gradients, hyper, non_finite, step }]).unwrap();
        read.extend_from_slice(&values[..WIDTH]);
        if turns.is_some() {
            store.finish(numbers[i]).unwrap();
            work(Turns::AfterUpdates);
        }
    }
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

// Nothing was read ahead and no row was kept for its next use where a cache held the rows of fewer
// than four batches: at 10 % memory that was every batch. In groups such batches read up to 2.1
// times as many pages as without notice.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn where_a_cache_holds_few_batches_notice_saves_pages() {
    let capacity = train(10, 1, None).capacity;
    for (tenths, most) in [(15, 1.0), (20, 0.98), (30, 0.98), (50, 0.95)] {
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
            assert!(ahead.digest == plain.digest && ahead.values == plain.values);
        }
    }
}

/// The window's threads read while verbs do.
#[test]
fn what_threads_read_in_slices_changes_no_result() {
    let rows = (train(10, 1, None).capacity / 3) as usize;
    let plain = train(rows, 24, None);
    let ahead = train(rows, 24, Some(Turns::Threads));
    assert!(ahead.digest == plain.digest && ahead.values == plain.values);
    assert_eq!((ahead.window.skipped, ahead.window.failed), (0, 0), "{:?}", ahead.window);
}
