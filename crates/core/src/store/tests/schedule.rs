//! Training with a schedule: the same results, far fewer pages, and nothing lost.

use super::*;
use crate::storage::StorageCounts;
use std::time::Duration;

const ROWS: u64 = 12_000;
/// Values of a row, and as many of state.
const WIDTH: usize = 24;
const BUDGET: u64 = 900 << 10;
const EPOCHS: u64 = 3;
/// Batches of an epoch, of a stretch, and announced ahead.
const BATCHES: u64 = 96;
const STRETCH: u64 = 12;
const DEPTH: usize = 40;
const LONG: Duration = Duration::from_secs(60);

/// Announcement of the batches to come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    /// Their keys alone.
    Keys,
    /// Their keys, and the next use of each row.
    Schedule,
    /// The schedule of another order of the samples.
    OtherOrder,
    /// A schedule that ends in the middle.
    Half,
}

/// The keys of the batches of all epochs: every epoch has the same samples in another order.
fn epochs(seed: u64) -> Vec<Vec<u64>> {
    let mut random = Random(11);
    // Half of a batch's keys are from a tenth of the table.
    let mut key = || {
        let below = if random.below(2) == 0 { ROWS / 10 } else { ROWS };
        random.below(below) * 7 % ROWS
    };
    let samples: Vec<[u64; 4]> =
        (0..BATCHES * 16).map(|_| std::array::from_fn(|_| key())).collect();
    let mut random = Random(seed);
    let mut batches = Vec::new();
    for _ in 0..EPOCHS {
        let mut order: Vec<usize> = (0..samples.len()).collect();
        (1..order.len()).rev().for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
        for part in order.chunks(16) {
            let mut keys: Vec<u64> = part.iter().flat_map(|at| samples[*at]).collect();
            keys.sort_unstable();
            keys.dedup();
            batches.push(keys);
        }
    }
    batches
}

/// Of each key of each batch in how many stretches it is used again, plus 1; 0 for never.
fn schedule(batches: &[Vec<u64>]) -> Vec<Vec<u16>> {
    let mut later = BTreeMap::new();
    let mut next: Vec<Vec<u16>> = Vec::new();
    for (batch, keys) in batches.iter().enumerate().rev() {
        let stretch = batch as u64 / STRETCH;
        let of = |key: &u64| later.get(key).map_or(0, |of: &u64| (of - stretch) as u16 + 1);
        next.push(keys.iter().map(of).collect());
        later.extend(keys.iter().map(|key| (*key, stretch)));
    }
    next.reverse();
    next
}

/// Counters of the last epoch of a training, and its result.
#[derive(Debug)]
struct Trained {
    pages: u64,
    written: u64,
    moved: u64,
    disk: u64,
    window: WindowStats,
    digest: u64,
}

struct Training {
    store: Store,
    table: TableId,
    batches: Vec<Vec<u64>>,
    next: Vec<Vec<u16>>,
    said: Said,
    /// Its rows are looked up, and do not change.
    only_reads: bool,
}

impl Training {
    fn new(medium: &SimMedium, options: StoreOptions, said: Said) -> Self {
        Self::of_table(medium, options, said, Some(ROWS))
    }

    /// Of a table with so many ids, or of a growing one.
    fn of_table(medium: &SimMedium, options: StoreOptions, said: Said, ids: Option<u64>) -> Self {
        let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
        store.window_by_hand();
        let spec = TableSpec { embedding_dim: WIDTH, ..spec("t", ids, OptimizerKind::Adagrad) };
        let table = store.table(&spec).unwrap();
        let batches = epochs(1);
        let mut next = match said {
            Said::OtherOrder => schedule(&epochs(2)),
            _ => schedule(&batches),
        };
        for (next, keys) in next.iter_mut().zip(&batches) {
            next.resize(keys.len(), 0);
        }
        Self { store, table, batches, next, said, only_reads: false }
    }

    /// Rows that were written in the order of their keys, and committed as step 1.
    fn over_rows(medium: &SimMedium, options: StoreOptions, said: Said, ids: Option<u64>) -> Self {
        let training = Self::of_table(medium, options, said, ids);
        let keys: Vec<u64> = (0..ROWS).collect();
        for keys in keys.chunks(100) {
            training.update(keys, &vec![0.01; keys.len() * WIDTH]);
        }
        training.store.commit(1, "", &[]).unwrap();
        training
    }

    fn update(&self, keys: &[u64], gradients: &[f32]) {
        let (table, hyper, non_finite, step) = (self.table, HYPER, NonFinite::Refuse, None);
        let update = UpdateBatch { table, keys, gradients, hyper, non_finite, step };
        self.store.update(&[update]).unwrap();
    }

    fn announce(&self, at: usize) -> Option<u64> {
        let (table, keys) = (self.table, &self.batches[at][..]);
        let stretch = at as u64 / STRETCH;
        let furthest = (2 * BATCHES / STRETCH) as u32;
        let is_over = self.said == Said::Half && at >= self.batches.len() / 2;
        if self.said == Said::Keys || is_over {
            return self.store.announce(&[LookaheadBatch { table, keys, next: &[] }]).unwrap();
        }
        // Some keys occur twice: of the first occurrence the next use is in this batch.
        let twice = keys.len() / 8;
        let keys = [&keys[..twice], keys].concat();
        let next = [&vec![1; twice][..], &self.next[at]].concat();
        let batch = [LookaheadBatch { table, keys: &keys, next: &next }];
        let scheduled = ScheduledBatch { stretch, batches: STRETCH as u32, furthest };
        self.store.announce_scheduled(&batch, scheduled).unwrap()
    }

    /// Trains on some batches; `between` is called after each.
    fn run(&self, batches: std::ops::Range<usize>, mut between: impl FnMut(usize)) {
        let (store, table) = (&self.store, self.table);
        let mut numbers = std::collections::VecDeque::new();
        let mut announced = batches.start;
        for at in batches.clone() {
            while announced < batches.end.min(at + 1 + DEPTH) {
                match self.announce(announced) {
                    Some(number) => numbers.push_back(number),
                    None => break,
                }
                announced += 1;
            }
            while store.window_turn().unwrap() {}
            let number = numbers.pop_front().expect("a window has room for a batch");
            assert!(store.begin(number, LONG).unwrap());
            while store.window_turn().unwrap() {}
            let keys = &self.batches[at][..];
            let mut values = vec![0.0; keys.len() * WIDTH];
            let get = GetBatch { table, keys, values: (&mut values).into(), state: None };
            store.get(&mut [get]).unwrap();
            if !self.only_reads {
                let gradients: Vec<f32> = values.iter().map(|value| value / 64.0 + 0.01).collect();
                self.update(keys, &gradients);
            }
            store.finish(number).unwrap();
            while store.window_turn().unwrap() {}
            let stats = store.stats().unwrap();
            assert!(stats.memory.total() <= stats.budget_bytes, "{:?}", stats.memory);
            between(at);
        }
    }
}

fn within(bytes: u64) -> StoreOptions {
    let (page_bytes, segment_bytes) = (Some(1024), Some(32 << 10));
    StoreOptions { page_bytes, segment_bytes, ..options(bytes) }
}

fn train(said: Said) -> Trained {
    let training = Training::new(&SimMedium::new(1), within(BUDGET), said);
    let all = training.batches.len();
    let begin = all / EPOCHS as usize * (EPOCHS as usize - 1);
    training.run(0..begin, |_| ());
    let before = training.store.stats().unwrap();
    training.run(begin..all, |_| ());
    let after = training.store.stats().unwrap();
    let log = log_of(&training.store.inner.engine.read().classes[0]).stats();
    Trained {
        pages: after.pages_read - before.pages_read,
        written: after.rows_written - before.rows_written,
        moved: log.written.rows_moved,
        disk: after.disk_bytes,
        window: training.store.window_stats().unwrap(),
        digest: digest(&training.store, training.table),
    }
}

#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn with_a_schedule_a_third_of_the_pages_is_read_and_all_bits_are_equal() {
    let (plain, scheduled) = (train(Said::Keys), train(Said::Schedule));
    assert_eq!(plain.digest, scheduled.digest);
    assert!(3 * scheduled.pages <= plain.pages, "{scheduled:?} {plain:?}");
    assert!(scheduled.written <= plain.written, "{scheduled:?} {plain:?}");
    assert_eq!(scheduled.moved, 0, "pages of stretches die as a whole");
    assert!(2 * scheduled.disk <= 3 * plain.disk, "{scheduled:?} {plain:?}");
    let window = &scheduled.window;
    assert_eq!((window.schedule_wrong, window.schedule_set_aside), (0, 0), "{window:?}");
    assert!(window.schedule_right > 1000, "{window:?}");
}

#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn a_schedule_of_another_order_changes_no_bit_and_is_set_aside() {
    let (plain, other) = (train(Said::Keys), train(Said::OtherOrder));
    assert_eq!(plain.digest, other.digest);
    assert_eq!(other.window.schedule_set_aside, 1, "{:?}", other.window);
    let half = train(Said::Half);
    assert_eq!(plain.digest, half.digest);
    assert_eq!(half.window.schedule_set_aside, 0, "{:?}", half.window);
}

// Stretches have append points while a schedule is announced, and no longer.
#[test]
fn append_points_come_and_go_with_the_schedule_and_count_in_the_budget() {
    let training = Training::new(&SimMedium::new(1), within(BUDGET), Said::Schedule);
    let bytes = || training.store.inner.engine.read().classes[0].log.lock().stretch_bytes();
    let of_window = || training.store.stats().unwrap().memory.window_bytes;
    training.run(0..60, |_| ());
    assert!(bytes() > 10 << 10, "{} bytes", bytes());
    assert!(of_window() > bytes());
    // Rows of pages that are being filled are found, and those of others.
    let digest_before = digest(&training.store, training.table);
    let spec = spec("another", Some(9), OptimizerKind::Sgd);
    training.store.table(&spec).unwrap();
    assert_eq!(digest(&training.store, training.table), digest_before);
    training.run(60..90, |_| ());
    assert!(bytes() > 10 << 10, "they are there again after a new plan");
    training.store.release_window().unwrap();
    while training.store.window_turn().unwrap() {}
    assert_eq!((bytes(), of_window()), (0, 0));
    training.run(90..100, |_| ());
}

// A reader has a window, too, and no room on disk to fill pages in.
#[test]
fn a_reader_takes_no_append_points_for_a_schedule() {
    let medium = SimMedium::new(1);
    let training = Training::new(&medium, within(BUDGET), Said::Schedule);
    training.run(0..40, |_| ());
    training.store.commit(1, "", &[]).unwrap();
    let (digest_before, table) = (digest(&training.store, training.table), training.table);
    training.store.close().unwrap();
    let options = StoreOptions { read_only: true, ..within(BUDGET) };
    let store = Store::open_on(Arc::new(medium.clone()), options).unwrap();
    store.window_by_hand();
    let reading = Training { store, ..training };
    for at in 0..20 {
        let number = reading.announce(at).expect("a window has room for some batches");
        while reading.store.window_turn().unwrap() {}
        assert!(reading.store.begin(number, LONG).unwrap());
    }
    let window = reading.store.window_stats().unwrap();
    assert!(window.rows_loaded > 0 && window.failed == 0, "{window:?}");
    let bytes = reading.store.inner.engine.read().classes[0].log.lock().stretch_bytes();
    assert_eq!((bytes, digest(&reading.store, table)), (0, digest_before));
}

#[test]
fn a_schedule_without_a_number_for_each_key_is_refused() {
    let training = Training::new(&SimMedium::new(1), within(BUDGET), Said::Schedule);
    let (table, keys) = (training.table, &[1, 2, 3][..]);
    let scheduled = ScheduledBatch { stretch: 0, batches: 8, furthest: 3 };
    let announce = |next, scheduled| {
        training.store.announce_scheduled(&[LookaheadBatch { table, keys, next }], scheduled)
    };
    let error = announce(&[1, 2], scheduled).unwrap_err();
    assert_eq!(error.message(), "2 next uses for 3 keys, expected one for each");
    let error = announce(&[1, 2, 0], ScheduledBatch { batches: 0, ..scheduled }).unwrap_err();
    assert_eq!(error.message(), "a stretch of the schedule has 0 batches, expected 1 or more");
    announce(&[1, 2, 0], scheduled).unwrap().expect("an empty window has room");
}

// A commit in the middle of every stretch, and a power cut a while after one.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn after_a_power_cut_training_goes_on_from_the_commit_with_the_same_schedule() {
    let expected = train(Said::Schedule).digest;
    let step = stride(7);
    for cut in (30..2 * BATCHES as usize).step_by(17 * step as usize) {
        let medium = SimMedium::new(cut as u64);
        let training = Training::new(&medium, within(BUDGET), Said::Schedule);
        let mut committed = 0;
        training.run(0..cut, |at| {
            if at % 13 == 5 {
                training.store.commit(at as u64 + 1, "", &[]).unwrap();
                committed = at + 1;
            }
        });
        drop(training);
        let medium = medium.reboot(cut as u64 + 1000);
        let training = Training::new(&medium, within(BUDGET), Said::Schedule);
        let step = training.store.commits().last().expect("commits were made").step;
        assert_eq!(step, committed as u64, "cut after batch {cut}");
        training.run(committed..training.batches.len(), |at| {
            if at % 31 == 9 {
                training.store.commit(at as u64 + 1, "", &[]).unwrap();
            }
        });
        assert_eq!(digest(&training.store, training.table), expected, "cut after batch {cut}");
    }
}

// Segments that are filled for stretches take a part of the bound, and no batch is refused.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn a_disk_bound_is_kept_with_a_schedule() {
    let expected = train(Said::Keys).digest;
    for most in [5 << 20, 7 << 20] {
        let bound = StoreOptions { max_disk_bytes: Some(most), ..within(BUDGET) };
        let training = Training::new(&SimMedium::new(3), bound, Said::Schedule);
        training.run(0..training.batches.len(), |at| {
            if at % 20 == 19 {
                training.store.commit(at as u64, "", &[]).unwrap();
            }
            assert!(training.store.stats().unwrap().disk_bytes <= most);
        });
        assert_eq!(digest(&training.store, training.table), expected);
    }
}

// Reservations counted what was left of the segments of all stretches as room for any row: a commit
// found no segment for most, and wrote their rows to the pages of other stretches.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn a_commit_writes_rows_of_each_stretch_to_pages_of_their_own() {
    let (mut plain, mut scheduled, mut strayed, mut written) = (0, 0, 0, 0);
    for commits in [24, 36, 48] {
        for said in [Said::Keys, Said::Schedule] {
            let training = Training::new(&SimMedium::new(1), within(BUDGET), said);
            let all = training.batches.len();
            let begin = all - BATCHES as usize;
            let commit = |at: usize| {
                if at % commits == commits - 1 {
                    training.store.commit(at as u64, "", &[]).unwrap();
                }
            };
            training.run(0..begin, commit);
            let before = training.store.stats().unwrap().pages_read;
            training.run(begin..all, commit);
            let stats = training.store.stats().unwrap();
            let pages = stats.pages_read - before;
            if said == Said::Keys {
                plain += pages;
                continue;
            }
            scheduled += pages;
            written += stats.rows_written;
            strayed += log_of(&training.store.inner.engine.read().classes[0]).strayed();
        }
    }
    assert!(5 * scheduled <= 2 * plain, "{scheduled} pages, {plain} without a schedule");
    assert!(60 * strayed <= written, "{strayed} of {written} rows are with those of others");
}

/// Reads the rows of all epochs, from a store that is opened for it. The pages of the last epoch.
fn pages_of_reading(reading: &Training) -> u64 {
    let all = reading.batches.len();
    let begin = all - BATCHES as usize;
    reading.run(0..begin, |_| ());
    let before = reading.store.stats().unwrap().pages_read;
    reading.run(begin..all, |_| ());
    reading.store.stats().unwrap().pages_read - before
}

/// With pages of many rows.
fn of_wide_pages() -> StoreOptions {
    let (page_bytes, segment_bytes) = (Some(4096), Some(128 << 10));
    StoreOptions { page_bytes, segment_bytes, ..options(BUDGET) }
}

// Features of a graph are read and never changed: they kept their places, and a page came for each
// of them.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn rows_that_are_only_read_come_together_by_their_next_uses() {
    for ids in [Some(ROWS), None] {
        let mut pages = Vec::new();
        for said in [Said::Keys, Said::Schedule] {
            let medium = SimMedium::new(1);
            let written = Training::over_rows(&medium, of_wide_pages(), said, ids);
            let expected = digest(&written.store, written.table);
            written.store.close().unwrap();
            let open = || Training::of_table(&medium, of_wide_pages(), said, ids);
            let reading = Training { only_reads: true, ..open() };
            pages.push(pages_of_reading(&reading));
            let window = reading.store.window_stats().unwrap();
            let moved = window.rows_rewritten;
            assert_eq!(moved > 1000, said == Said::Schedule, "{window:?}");
            let reserved =
                |engine: &Engine| engine.classes[0].reserved_rows.load(Ordering::Relaxed);
            assert_eq!(reserved(&reading.store.inner.engine.read()), 0);
            assert_eq!(digest(&reading.store, reading.table), expected);
            let Uncommitted { batches, rows } = reading.store.uncommitted();
            assert_eq!((batches, rows), (0, 0), "nothing would be lost");
            reading.store.close().unwrap();
            assert_eq!(digest(&open().store, reading.table), expected);
        }
        assert!(2 * pages[1] <= pages[0], "{ids:?}: {} pages, {} without", pages[1], pages[0]);
    }
}

// The first change gives up what follows a commit that was asked for: that must be a user's.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn rows_that_are_only_read_stay_where_commits_would_be_lost_and_where_the_disk_is_full() {
    let medium = SimMedium::new(1);
    let written = Training::over_rows(&medium, of_wide_pages(), Said::Schedule, Some(ROWS));
    let first = digest(&written.store, written.table);
    let full = written.store.stats().unwrap().disk_bytes;
    written.update(&[5], &[0.5; WIDTH]);
    written.store.commit(2, "", &[]).unwrap();
    let second = digest(&written.store, written.table);
    written.store.close().unwrap();
    let earlier = StoreOptions { step: Some(1), ..of_wide_pages() };
    let bound = |most| StoreOptions { max_disk_bytes: Some(most), ..of_wide_pages() };
    let all = [
        (earlier, first, false),
        (StoreOptions { read_only: true, ..of_wide_pages() }, second, false),
        (bound(full + full / 8), second, false),
        (bound(8 * full), second, true),
    ];
    for (options, expected, moves) in all {
        let shown = format!("{options:?}");
        let most = options.max_disk_bytes.unwrap_or(u64::MAX);
        let reading = Training::new(&medium, options, Said::Schedule);
        let reading = Training { only_reads: true, ..reading };
        pages_of_reading(&reading);
        let window = reading.store.window_stats().unwrap();
        assert_eq!((window.rows_rewritten > 0, window.failed), (moves, 0), "{shown} {window:?}");
        assert!(reading.store.stats().unwrap().disk_bytes <= most);
        assert_eq!(digest(&reading.store, reading.table), expected);
        reading.store.close().unwrap();
    }
    let newest = Training::new(&medium, of_wide_pages(), Said::Schedule);
    assert_eq!(digest(&newest.store, newest.table), second);
}

// What the journal says of rows that moved stays until a commit.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn without_commits_rows_move_until_the_journal_has_said_enough_of_them() {
    let medium = SimMedium::new(1);
    let reading = Training::over_rows(&medium, of_wide_pages(), Said::Schedule, Some(ROWS));
    let reading = Training { only_reads: true, ..reading };
    // In the last epoch no row has a next use.
    let (one, two, three) = (BATCHES as usize, 3 * BATCHES as usize / 2, 2 * BATCHES as usize);
    reading.run(0..one, |_| ());
    let moved = || reading.store.window_stats().unwrap().rows_rewritten;
    let before = moved();
    assert!(before > 100, "{before}");
    let epoch_deltas = || reading.store.inner.history.lock().epoch_deltas;
    let most = 2 << 20;
    assert!(epoch_deltas() < most, "{}", epoch_deltas());
    reading.store.inner.history.lock().epoch_deltas = most + 1;
    reading.run(one..two, |_| ());
    assert_eq!(moved(), before);
    reading.store.commit(2, "", &[]).unwrap();
    assert_eq!(epoch_deltas(), 0);
    reading.run(two..three, |_| ());
    assert!(moved() > before + 100, "{before}, then {}", moved());
}

// Rows that move are in two places until a commit says which one counts.
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
#[test]
fn a_power_cut_while_rows_move_leaves_every_row() {
    let step = stride(5);
    let mut moved = 0;
    for cut in (40..BATCHES as usize * 2).step_by(5 * step as usize) {
        let (medium, ids) = (SimMedium::new(cut as u64), [Some(ROWS), None][cut / 5 % 2]);
        let reading = Training::over_rows(&medium, of_wide_pages(), Said::Schedule, ids);
        let (expected, table) = (digest(&reading.store, reading.table), reading.table);
        let reading = Training { only_reads: true, ..reading };
        let mut pending = None;
        reading.run(0..cut, |at| match at % 13 {
            // Rows move while it is under way.
            5 => {
                let commit = reading.store.commit_in_background(at as u64 + 2, "", &[]);
                pending = Some(commit.unwrap());
            }
            9 => {
                if let Some(commit) = pending.take() {
                    commit.wait(None).unwrap().expect("it is waited for without end");
                }
            }
            _ => {}
        });
        moved += reading.store.window_stats().unwrap().rows_rewritten;
        drop((pending, reading));
        let medium = medium.reboot(cut as u64 + 1000);
        let store = Store::open_on(Arc::new(medium.clone()), of_wide_pages()).unwrap();
        assert_eq!(digest(&store, table), expected, "cut after batch {cut}");
    }
    assert!(moved > 500, "{moved}");
}
