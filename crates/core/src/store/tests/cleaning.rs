//! Number of rows that cleaning moves, with commits and without. Tables are in a log: an lsm cleans
//! its top alone, and its merges move another proportion.

use super::*;
use crate::storage::StorageWrite;

const ROWS: u64 = 20_000;
const BATCH: u64 = 1000;

/// Counters of a stretch of batches.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    written: u64,
    moved: u64,
    /// Slots that are not free, at its end.
    used: u64,
}

/// All rows, committed twice, so that no older copies are kept; a tenth of them in memory.
fn committed_rows(seed: u64) -> (Store, TableId) {
    let store = Store::open_on(Arc::new(SimMedium::new(seed)), options(340 << 10)).unwrap();
    let table = store.table(&spec("t", Some(ROWS), OptimizerKind::Sgd)).unwrap();
    let mut random = Random(seed);
    for first in (0..ROWS).step_by(BATCH as usize) {
        write(&store, table, (first..first + BATCH).collect(), random.value());
    }
    for step in 1..4 {
        store.commit(step, "", &[]).unwrap();
    }
    (store, table)
}

fn write(store: &Store, table: TableId, keys: Vec<u64>, value: f32) {
    let values = vec![value; keys.len() * DIM];
    store.put(&[put_of(table, &keys, &values)]).unwrap();
}

/// Rewrites rows that `draw` picks, `rounds` times as many as there are; counters of each round.
fn rewrite(
    store: &Store,
    table: TableId,
    rounds: u64,
    commit_every: Option<u64>,
    draw: &mut dyn FnMut() -> u64,
) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut before = store.stats().unwrap();
    for round in 0..rounds {
        for batch in 0..ROWS / BATCH {
            write(store, table, (0..BATCH).map(|_| draw()).collect(), round as f32);
            if commit_every.is_some_and(|every| (batch + 1) % every == 0) {
                store.commit(100 + round, "", &[]).unwrap();
            }
        }
        let now = store.stats().unwrap();
        let class = &now.classes[0];
        stretches.push(Stretch {
            written: now.rows_written - before.rows_written,
            moved: now.rows_moved - before.rows_moved,
            used: class.used_slots,
        });
        before = now;
    }
    stretches
}

/// Draws all rows equally often, or with `skew` low numbers more often.
fn draws(seed: u64, skew: u32) -> impl FnMut() -> u64 {
    let mut random = Random(seed);
    move || {
        let unit = (0..skew).map(|_| random.below(10_000) as f64 / 10_000.0);
        (unit.product::<f64>() * ROWS as f64) as u64
    }
}

fn expect_proportional(stretches: &[Stretch], what: &str) {
    for (round, stretch) in stretches.iter().enumerate() {
        assert!(2 * stretch.moved <= stretch.written, "{what}, round {round}: {stretch:?}");
    }
}

// Without commits cleaning went on where it could release nothing: it moved three to four rows for
// each one written, and the store was no smaller for it.
#[test]
fn without_commits_cleaning_stays_in_proportion_to_what_is_written() {
    for skew in [1, 2, 3] {
        for commit_every in [None, Some(5), Some(1)] {
            let what = format!("skew {skew}, a commit every {commit_every:?} batches at first");
            let (store, table) = committed_rows(1);
            let mut draw = draws(7, skew);
            let before = rewrite(&store, table, 5, commit_every, &mut draw);
            expect_proportional(&before, &what);
            // All at once the commits stay away.
            let without = rewrite(&store, table, 8, None, &mut draw);
            expect_proportional(&without, &what);
            assert!(without.iter().any(|stretch| stretch.moved > 0), "{what}: nothing was cleaned");
            for stretch in without {
                // Newest, retained, two thirds of the newest dead, and what only commits release.
                assert!(stretch.used < 7 * ROWS, "{what}: {stretch:?}");
            }
        }
    }
}

// Moving rows out of a segment that a commit holds releases nothing before the commit after the
// next, which is far in a long epoch; the rows are likely to be outdated before. (Most rows of
// those segments are newest here, so none is a leftover.)
#[test]
fn in_a_long_epoch_rows_stay_in_segments_that_a_commit_holds() {
    let (store, table) = committed_rows(2);
    let mut draw = draws(8, 1);
    rewrite(&store, table, 4, Some(5), &mut draw);
    // Some rows are written over and over, more often than there are rows: from here on only newer
    // segments are cleaned. The others stay where the commit has them.
    let others = ROWS * 7 / 10;
    let mut upper = || others + draw() * (ROWS - others) / ROWS;
    rewrite(&store, table, 2, None, &mut upper);
    // The slots of those others.
    let held = || -> Vec<(u64, u32)> {
        let engine = store.inner.engine.read();
        let (class, table) = (&engine.classes[0], &engine.tables[0]);
        let (cache, log) = (class.cache(), log_of(class));
        let slot_of = |key: u64| {
            let at = table.locate(cache, key);
            let dirty = cache.peek(at, table.id(), key, |row| row.is_dirty()) == Some(true);
            let waits = dirty || log.is_parked(table.id(), key);
            let slot = log.index(table.id()).slot_of(key);
            let segment = u64::from(slot) / log.rows_per_segment();
            (slot != 0 && !waits && log.segments().is_held(segment as u32)).then_some((key, slot))
        };
        (0..others).filter_map(slot_of).collect()
    };
    let before = held();
    assert!(before.len() > 100, "{} rows are where a commit has them", before.len());
    for stretch in rewrite(&store, table, 6, None, &mut upper) {
        assert!(10 * stretch.moved <= stretch.written, "{stretch:?}");
        assert!(stretch.moved > 0, "nothing was cleaned");
    }
    assert_eq!(held(), before);
}

// Rows that are seldom written kept whole segments: without commits those that are dirty in DRAM,
// with commits far apart those that the commits have. The log held up to nine times the rows then,
// and without commits it grew with all that was written.
#[test]
fn rows_that_are_seldom_written_do_not_keep_the_log_large() {
    for skew in [1, 2, 3] {
        for (commit_every, most) in [(None, 2.8), (Some(20), 3.95), (Some(10), 3.5)] {
            let (store, table) = committed_rows(3);
            let mut draw = draws(9, skew);
            let rounds = rewrite(&store, table, 24, commit_every, &mut draw);
            let what = format!("skew {skew}, a commit every {commit_every:?} batches");
            expect_proportional(&rounds, &what);
            for round in &rounds[12..] {
                let used = round.used as f64 / ROWS as f64;
                assert!(used < most, "{what}: {used} slots for each row: {round:?}");
            }
        }
    }
}
