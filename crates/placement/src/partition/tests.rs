use super::*;
use crate::evaluate::{EvaluateOptions, evaluate};
use crate::pages::Pages;
use crate::trace::Trace;

fn run(trace: &Trace, options: &PartitionOptions<'_>) -> Placement {
    partition(trace.queries(), options, |_| Next::Continue).unwrap()
}

fn pages_read(trace: &Trace, placement: &Placement) -> u64 {
    let pages = Pages::of(placement);
    evaluate(&pages, trace.queries(), &EvaluateOptions::default()).unwrap().pages
}

/// Queries of `len` rows drawn from one of the communities of `size` rows, whose numbers are
/// scattered; one row in `noise` is any row (0: none).
fn planted(seed: u64, rows: usize, size: usize, queries: usize, len: usize, noise: u64) -> Trace {
    let mut random = Random::new(seed);
    let mut numbers = (0..rows as u32).collect::<Vec<_>>();
    random.shuffle(&mut numbers);
    let mut values = Vec::with_capacity(queries * len);
    for _ in 0..queries {
        let first = random.below((rows / size) as u64) * size as u64;
        for _ in 0..len {
            let any = noise > 0 && random.below(noise) == 0;
            let row =
                if any { random.below(rows as u64) } else { first + random.below(size as u64) };
            values.push(numbers[row as usize]);
        }
    }
    Trace::new(rows, values, (0..=queries).map(|query| query * len).collect()).unwrap()
}

/// Queries of 0 to `len_max` of up to `rows` rows.
fn random_trace(random: &mut Random, rows: usize, queries: usize, len_max: u64) -> Trace {
    let query = |random: &mut Random| {
        let len = random.below(len_max + 1);
        (0..len).map(|_| random.below(rows as u64) as u32).collect::<Vec<_>>()
    };
    Trace::from_queries(rows, (0..queries).map(|_| query(random)).collect::<Vec<_>>()).unwrap()
}

/// The fewest pages that queries read if the rows are in two pages of half of them each.
fn best_bisection(trace: &Trace) -> u64 {
    let rows = trace.queries().num_rows();
    let sets = (0u32..1 << rows).filter(|set| set.count_ones() as usize == rows / 2);
    let pages = |set: u32| -> u64 {
        let sides = |query: &[u32]| {
            let right = query.iter().filter(|&&row| set >> row & 1 == 1).count();
            u64::from(right > 0) + u64::from(right < query.len())
        };
        trace.queries().iter().map(sides).sum()
    };
    sets.map(pages).min().unwrap()
}

#[test]
fn a_bisection_is_near_the_best_of_all() {
    let mut random = Random::new(1);
    let (mut found, mut best) = (0, 0);
    for case in 0..40 {
        let rows = 4 + 2 * (case % 5);
        let trace = random_trace(&mut random, rows, 3 + case, 4);
        let options = PartitionOptions { seed: case as u64, ..PartitionOptions::new(rows / 2) };
        let (pages, fewest) = (pages_read(&trace, &run(&trace, &options)), best_bisection(&trace));
        assert!(pages >= fewest, "case {case}: {pages} pages, the fewest are {fewest}");
        found += pages;
        best += fewest;
    }
    assert!(found * 100 <= best * 108, "{found} pages, the fewest are {best}");
}

#[test]
fn planted_communities_are_found() {
    for objective in [Objective::Fanout, Objective::Projected] {
        for (seed, size) in [(1, 16), (2, 32)] {
            let trace = planted(seed, 4096, size, 8_000, 8, 0);
            let options = PartitionOptions { objective, seed, ..PartitionOptions::new(size) };
            let pages = pages_read(&trace, &run(&trace, &options));
            let share = trace.queries().len() as f64 / pages as f64;
            assert!(share >= 0.95, "{objective:?}, {size} rows per page: {share} of the ideal");
        }
    }
}

#[test]
fn a_placement_depends_on_the_seed_and_not_on_threads() {
    // More pins than all threads share a part for, and parts of one thread each below.
    let trace = planted(3, 60_000, 64, 80_000, 16, 4);
    let weights = (0..60_000).map(|row| (row % 5) as f32 / 4.0).collect::<Vec<_>>();
    for (weights, exchange_all) in [(None, false), (Some(&weights[..]), false), (None, true)] {
        let of = |threads, seed| {
            let options = PartitionOptions {
                threads,
                seed,
                weights,
                passes_max: 5,
                exchange_all,
                ..PartitionOptions::new(16)
            };
            let mut reports = Vec::new();
            let placement = partition(trace.queries(), &options, |progress| {
                reports.push(*progress);
                Next::Continue
            });
            (placement.unwrap(), reports)
        };
        let one = of(1, 7);
        assert!(one == of(2, 7), "2 threads");
        assert!(one == of(3, 7), "3 threads");
        assert!(one.0 != of(2, 8).0, "another seed");
    }
}

#[test]
fn the_partition_of_maxembed_has_eight_passes_and_needs_more_pages() {
    let trace = planted(5, 4_000, 64, 20_000, 8, 3);
    let run = |options: &PartitionOptions<'_>| {
        let mut passes = 0;
        let placement = partition(trace.queries(), options, |progress| {
            passes = passes.max(progress.pass + 1);
            Next::Continue
        });
        let pages = Pages::of(&placement.unwrap());
        (passes, evaluate(&pages, trace.queries(), &EvaluateOptions::default()).unwrap().pages)
    };
    let (ours, theirs) = (run(&PartitionOptions::new(16)), run(&PartitionOptions::of_maxembed(16)));
    assert_eq!(theirs.0, 8);
    assert!(ours.0 > 8 && ours.1 < theirs.1, "{ours:?} and {theirs:?} passes and pages");
}

#[test]
fn what_is_settled_by_the_cuts_is_what_queries_read() {
    let mut random = Random::new(9);
    for case in 0..60u64 {
        let rows = 1 + random.below(300) as usize;
        let trace = random_trace(&mut random, rows, 80, 12);
        let weights = (0..rows).map(|_| random.below(5) as f32 / 4.0).collect::<Vec<_>>();
        let options = PartitionOptions {
            seed: case,
            weights: (case % 2 == 0).then_some(&weights[..]),
            ..PartitionOptions::new(1 + random.below(9) as usize)
        };
        let linked = linked_rows(trace.queries());
        let order = in_order(0..rows as u32, &linked);
        let mut levels = Levels::new(trace.queries(), &options, order);
        levels.run(&mut |_| Next::Continue).unwrap();
        let settled = levels.settled;
        let mut order = levels.into_order();
        order.extend((0..rows as u32).filter(|&row| !linked[row as usize]));
        let placement = Placement::new(order, options.rows_per_page).unwrap();
        assert_eq!(settled, pages_read(&trace, &placement), "case {case}, {rows} rows");
    }
}

#[test]
fn progress_tells_the_pages_and_may_end_the_work() {
    let trace = planted(5, 1024, 16, 3_000, 6, 5);
    let options = PartitionOptions::new(16);
    let mut reports = Vec::new();
    let placement = partition(trace.queries(), &options, |progress| {
        reports.push(*progress);
        Next::Continue
    });
    let last = reports[reports.len() - 1];
    assert_eq!((last.level, last.levels), (5, 6));
    assert!(reports.iter().all(|report| report.pass < options.passes_max));
    // Each cut makes more sides at first, and passes make fewer.
    let first = |level| reports.iter().find(|report| report.level == level).unwrap().pages;
    assert!((1..6).all(|level| first(level) > first(level - 1)), "{reports:?}");
    assert!(last.pages < first(5));
    assert!(pages_read(&trace, &placement.unwrap()) <= last.pages);

    let mut calls = 0;
    let finished = partition(trace.queries(), &options, |progress| {
        calls += 1;
        if progress.level == 2 { Next::Finish } else { Next::Continue }
    });
    assert_eq!(calls, reports.iter().filter(|report| report.level < 2).count() + 1);
    let finished = pages_read(&trace, &finished.unwrap());
    assert!(finished > last.pages && finished < 3_000 * 5, "{finished} pages");

    let error = partition(trace.queries(), &options, |_| Next::Abandon).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopped);
    assert_eq!(error.to_string(), "stopped at level 0, pass 0");
}

#[test]
fn an_order_to_begin_with_is_kept_where_nothing_is_better() {
    let trace = planted(6, 2048, 16, 6_000, 8, 0);
    let first = run(&trace, &PartitionOptions::new(16));
    let options = PartitionOptions {
        start: Start::Order(first.order()),
        passes_max: 1,
        seed: 99,
        ..PartitionOptions::new(16)
    };
    let again = run(&trace, &options);
    assert!(pages_read(&trace, &again) <= pages_read(&trace, &first));
    let cold = PartitionOptions { start: Start::Random, ..options };
    assert!(pages_read(&trace, &run(&trace, &cold)) > 2 * pages_read(&trace, &first));
}

#[test]
fn weights_decide_how_much_rows_move() {
    let trace = planted(8, 2048, 16, 6_000, 8, 4);
    let of = |weight| {
        let weights = vec![weight; 2048];
        let order = (0..2048).collect::<Vec<_>>();
        let options = PartitionOptions {
            weights: Some(&weights),
            start: Start::Order(&order),
            ..PartitionOptions::new(16)
        };
        run(&trace, &options)
    };
    // Nothing is gained by a move if no row counts.
    assert_eq!(of(0.0).order(), (0..2048).collect::<Vec<_>>());
    let [none, whole] = [of(0.0), of(1.0)].map(|placement| pages_read(&trace, &placement));
    let unweighted = pages_read(&trace, &run(&trace, &PartitionOptions::new(16)));
    assert!(whole * 2 < none, "{whole} pages with weights of 1, {none} of 0");
    assert!(whole.abs_diff(unweighted) * 50 < unweighted, "{whole}, {unweighted} unweighted");
}

#[test]
fn odd_traces_have_placements() {
    let none: [&[u32]; 0] = [];
    let empty = Trace::from_queries(0, none).unwrap();
    assert_eq!(run(&empty, &PartitionOptions::new(4)).num_pages(), 0);
    let unasked = Trace::from_queries(10, none).unwrap();
    let unasked = run(&unasked, &PartitionOptions::new(4));
    assert_eq!(unasked.order(), (0..10).collect::<Vec<_>>());
    let one_row = Trace::from_queries(1, [[0], [0]]).unwrap();
    assert_eq!(run(&one_row, &PartitionOptions::new(4)).order(), [0]);

    // One query longer than a page, and rows that nobody asks for with another, by frequency.
    let long = Trace::from_queries(12, [&[11, 3, 5, 7, 9, 1][..], &[4], &[2], &[2]]).unwrap();
    let placement = run(&long, &PartitionOptions::new(2));
    assert_eq!(placement.order()[6..], [2, 4, 0, 6, 8, 10]);
    assert_eq!(pages_read(&long, &placement), 3 + 3);

    let equal = Trace::from_queries(64, vec![[5, 60, 17, 33]; 1000]).unwrap();
    for rows_per_page in [1, 3, 4, 64, 1000] {
        let placement = run(&equal, &PartitionOptions::new(rows_per_page));
        assert_eq!(pages_read(&equal, &placement), 1000 * 4u64.div_ceil(rows_per_page as u64));
    }
}

#[test]
fn pages_are_full_and_every_row_has_one() {
    let mut random = Random::new(12);
    for case in 0..100 {
        let rows = random.below(500) as usize + 1;
        let queries = random.below(60) as usize;
        let trace = random_trace(&mut random, rows, queries, 20);
        let rows_per_page = 1 + random.below(20) as usize;
        let placement = run(&trace, &PartitionOptions::new(rows_per_page));
        let sizes = placement.pages().map(<[u32]>::len).collect::<Vec<_>>();
        let (last, full) = sizes.split_last().unwrap();
        assert!(full.iter().all(|&size| size == rows_per_page), "case {case}: {sizes:?}");
        assert!((1..=rows_per_page).contains(last));
        let mut all = placement.order().to_vec();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..rows as u32), "case {case}");
        let of_row = |row| placement.rank()[row as usize] as usize / rows_per_page;
        assert!((0..rows as u32).all(|row| placement.page_of(row) == of_row(row)));
    }
}

#[test]
fn options_that_do_not_fit_are_refused_by_name() {
    let trace = planted(4, 256, 16, 500, 6, 0);
    let refused = |options: PartitionOptions<'_>| {
        partition(trace.queries(), &options, |_| panic!("began")).unwrap_err()
    };
    let usual = || PartitionOptions::new(16);
    let message = |options| refused(options).to_string();
    assert!(message(PartitionOptions::new(0)).contains("rows_per_page is 0"));
    let order = (0..255).collect::<Vec<_>>();
    let start = Start::Order(&order);
    assert!(message(PartitionOptions { start, ..usual() }).contains("start has 255 rows"));
    let order = vec![0; 256];
    let start = Start::Order(&order);
    assert!(message(PartitionOptions { start, ..usual() }).contains("start: order has row 0 at 0"));
    let mut weights = vec![1.0; 256];
    weights[9] = f32::NAN;
    let bad = PartitionOptions { weights: Some(&weights), ..usual() };
    assert!(message(bad).contains("weights[9] is NaN"));
    let few = PartitionOptions { weights: Some(&weights[..3]), ..usual() };
    assert!(message(few).contains("weights has 3 rows"));

    let needed = memory_needed(trace.queries(), &usual());
    let small = PartitionOptions { memory_bytes_max: Some(needed - 1), ..usual() };
    let error = refused(small);
    assert_eq!(error.kind(), ErrorKind::Memory);
    assert!(error.to_string().contains(&format!("needs {needed} bytes")), "{error}");
    assert!(error.to_string().contains(&format!("memory_bytes_max is {}", needed - 1)));
    let enough = PartitionOptions { memory_bytes_max: Some(needed), ..usual() };
    assert_eq!(run(&trace, &enough), run(&trace, &usual()));
}
