use super::*;
use crate::cover::Method;
use crate::evaluate::{EvaluateOptions, evaluate};
use crate::random::Random;

/// Queries of 6 rows of one of 96 topics of 12 rows. A row is in 1 to 3 topics, so no placement
/// without replicas serves all of them.
fn overlapping(seed: u64, queries: usize) -> Trace {
    let mut random = Random::new(77);
    let topics = (0..96).map(|_| (0..12).map(|_| random.below(512) as u32).collect::<Vec<_>>());
    let topics = topics.collect::<Vec<_>>();
    let mut random = Random::new(seed);
    let query = |random: &mut Random| {
        let topic = &topics[random.below(96) as usize];
        (0..6).map(|_| topic[random.below(12) as usize]).collect::<Vec<_>>()
    };
    Trace::from_queries(512, (0..queries).map(|_| query(&mut random)).collect::<Vec<_>>()).unwrap()
}

fn placement_of(trace: &Trace) -> Placement {
    partition(trace.queries(), &PartitionOptions::new(8), |_| Next::Continue).unwrap()
}

fn pages_read(pages: &Pages, trace: &Trace) -> u64 {
    let options = EvaluateOptions { method: Method::Greedy, ..Default::default() };
    evaluate(pages, trace.queries(), &options).unwrap().pages
}

type Strategy = fn(&Placement, Queries<'_>, &ReplicaOptions) -> Result<Vec<Vec<u32>>>;
const STRATEGIES: [Strategy; 3] = [
    |placement, queries, options| connectivity(placement, queries, options, |_, _| Next::Continue),
    |placement, queries, options| residual(placement, queries, options, |_, _| Next::Continue),
    |placement, queries, options| {
        let of_partition = PartitionOptions::new(placement.rows_per_page());
        other_partitions(placement, queries, &of_partition, options, |_, _| Next::Continue)
    },
];
const BASELINES: [Strategy; 2] =
    [frequency, |placement, queries, options| random(placement, queries, options, 5)];

#[test]
fn pages_of_a_smaller_ratio_are_the_first_of_a_larger_one() {
    let trace = overlapping(1, 3_000);
    let placement = placement_of(&trace);
    for (i, strategy) in STRATEGIES.into_iter().chain(BASELINES).enumerate() {
        let of =
            |ratio| strategy(&placement, trace.queries(), &ReplicaOptions::new(ratio)).unwrap();
        let most = of(0.8);
        assert_eq!(most.len(), (0.8 * 512.0 / 8.0) as usize, "strategy {i}");
        for ratio in [0.0, 0.05, 0.1, 0.2, 0.4, 0.79] {
            let pages = of(ratio);
            assert_eq!(pages.len(), (ratio * 64.0) as usize, "strategy {i}, {ratio}");
            assert_eq!(pages, most[..pages.len()], "strategy {i}, {ratio}");
        }
    }
}

#[test]
fn replicas_do_not_depend_on_threads() {
    let trace = overlapping(2, 2_000);
    let placement = placement_of(&trace);
    for strategy in STRATEGIES {
        let of = |threads| {
            let options = ReplicaOptions { threads, ..ReplicaOptions::new(0.5) };
            strategy(&placement, trace.queries(), &options).unwrap()
        };
        assert!(of(1) == of(2) && of(1) == of(3));
    }
}

#[test]
fn replicas_save_pages_of_queries_that_were_not_seen() {
    let (trace, held_out) = (overlapping(3, 4_000), overlapping(4, 2_000));
    let placement = placement_of(&trace);
    let mut last = [pages_read(&Pages::of(&placement), &held_out); 3];
    let none = last[0];
    for ratio in [0.1, 0.2, 0.4, 0.8] {
        let read = STRATEGIES.map(|strategy| {
            let pages = strategy(&placement, trace.queries(), &ReplicaOptions::new(ratio)).unwrap();
            pages_read(&Pages::with_replicas(&placement, &pages).unwrap(), &held_out)
        });
        assert!(read[0] <= last[0] && read[1] < last[1], "{ratio}: {read:?} after {last:?}");
        assert!(read[1] < read[0], "{ratio}: {read:?} by connectivity and by residual greedy");
        assert!(read[2] < last[2], "{ratio}: {read:?} after {last:?}");
        last = read;
    }
    assert!(
        last[1..].iter().all(|read| read * 10 < none * 9),
        "{last:?} pages with replicas, {none} without"
    );
}

#[test]
fn a_connectivity_page_is_the_base_and_what_is_asked_for_with_it_elsewhere() {
    // Pages 0 1 2 | 3 4 5 | 6 7 8. Scores: row 0 has 2 + 1 + 1, row 3 has 2 + 1, row 4 has 1.
    let placement = crate::baselines::identity(9, 3).unwrap();
    let queries = [&[0, 3, 6][..], &[0, 1, 3], &[0, 4, 1], &[7, 8]];
    let trace = Trace::from_queries(9, queries).unwrap();
    assert_eq!(scores(&placement, trace.queries()), [4, 2, 0, 3, 1, 0, 2, 0, 0]);
    let pages = STRATEGIES[0](&placement, trace.queries(), &ReplicaOptions::new(0.7)).unwrap();
    // Row 3 is asked for twice with row 0, row 4 and 6 once; row 1 lies with row 0 already.
    assert_eq!(pages, [vec![0, 3, 4], vec![3, 0, 1]]);
}

#[test]
fn baselines_repeat_the_hottest_rows_or_any() {
    let placement = crate::baselines::identity(6, 2).unwrap();
    let trace = Trace::from_queries(6, [&[5, 1][..], &[5, 2], &[1, 5], &[2, 3]]).unwrap();
    let options = ReplicaOptions::new(0.8);
    let pages = frequency(&placement, trace.queries(), &options).unwrap();
    assert_eq!(pages, [[5, 1], [2, 3]]);
    let drawn = |seed| random(&placement, trace.queries(), &options, seed).unwrap();
    assert_eq!(drawn(1), drawn(1));
    assert!((2..9).any(|seed| drawn(seed) != drawn(1)));
    assert_eq!(drawn(1).len(), 2);
    assert!(Pages::with_replicas(&placement, &drawn(1)).is_ok());
}

#[test]
fn whoever_waits_for_replicas_can_end_or_give_up() {
    let trace = overlapping(7, 3_000);
    let placement = placement_of(&trace);
    let options = ReplicaOptions::new(0.8);
    let all = STRATEGIES[1](&placement, trace.queries(), &options).unwrap();
    let (mut calls, mut last) = (0, 0);
    let ended = residual(&placement, trace.queries(), &options, |done, of| {
        assert!(last <= done && done <= of, "{done} of {of} after {last}");
        (calls, last) = (calls + 1, done);
        if calls < 100 { Next::Continue } else { Next::Finish }
    });
    let ended = ended.unwrap();
    assert!(!ended.is_empty() && ended.len() < all.len(), "{} of {} pages", ended.len(), all.len());
    assert_eq!(ended, all[..ended.len()]);
    let ended = connectivity(&placement, trace.queries(), &options, |_, _| Next::Finish);
    assert_eq!(ended.unwrap(), Vec::<Vec<u32>>::new());
    let of_partition = PartitionOptions::new(8);
    let others = |next: fn(usize, usize) -> Next| {
        let mut last = 0;
        other_partitions(&placement, trace.queries(), &of_partition, &options, |done, of| {
            assert!(last <= done && done <= of, "{done} of {of} after {last}");
            last = done;
            next(done, of)
        })
    };
    let all = others(|_, _| Next::Continue).unwrap();
    assert_eq!(others(|_, _| Next::Finish).unwrap(), Vec::<Vec<u32>>::new());
    let late = |done, of| if done * 200 < of * 199 { Next::Continue } else { Next::Finish };
    let ended = others(late).unwrap();
    assert!(!ended.is_empty() && ended.len() < all.len(), "{} of {} pages", ended.len(), all.len());
    assert_eq!(ended, all[..ended.len()]);
    assert_eq!(others(|_, _| Next::Abandon).unwrap_err().kind(), ErrorKind::Stopped);
    for error in [
        residual(&placement, trace.queries(), &options, |_, _| Next::Abandon).unwrap_err(),
        connectivity(&placement, trace.queries(), &options, |_, _| Next::Abandon).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Stopped);
        assert!(error.to_string().contains("stopped after 0 replica pages"));
    }
}

#[test]
fn strawmen_have_each_row_and_no_more_pages_than_allowed() {
    let trace = overlapping(5, 2_000);
    let usual = PartitionOptions::new(8);
    for ratio in [0.0, 0.1, 0.4, 0.8] {
        let options = ReplicaOptions::new(ratio);
        let pages_max = ((1.0 + ratio) * 64.0_f64).ceil() as usize;
        let go_on = |_: &Progress| Next::Continue;
        let finer = fill_finer(trace.queries(), &usual, &options, go_on).unwrap();
        let doubled = before_partition(trace.queries(), &usual, &options, go_on).unwrap();
        let none = pages_read(&Pages::of(&placement_of(&trace)), &trace);
        // Twins lie together, so what replicas gain before a partition may be nothing.
        assert!(ratio < 0.8 || pages_read(&finer, &trace) < none);
        for pages in [finer, doubled] {
            assert!(pages.num_pages() <= pages_max, "{} pages, {ratio}", pages.num_pages());
            assert!((0..512).all(|row| !pages.pages_of(row).is_empty()));
            let copies: usize = (0..512).map(|row| pages.pages_of(row).len() - 1).sum();
            // A tenth of 8 rows is no whole row of a page.
            assert!(ratio < 0.2 || copies > 0, "{ratio}");
            assert!(copies <= pages_max * 8 - 512, "{copies} replicas, {ratio}");
        }
    }
}

#[test]
fn what_has_nothing_to_save_has_no_replicas() {
    let none: [&[u32]; 0] = [];
    for queries in [&none[..], &[&[0, 1][..], &[1], &[2, 3]]] {
        let trace = Trace::from_queries(4, queries).unwrap();
        let placement = crate::baselines::identity(4, 2).unwrap();
        for strategy in STRATEGIES {
            let pages = strategy(&placement, trace.queries(), &ReplicaOptions::new(1.0)).unwrap();
            assert!(pages.is_empty(), "{pages:?}");
        }
    }
}

#[test]
fn sampled_queries_are_spread_evenly() {
    let options = ReplicaOptions { queries_per_row_max: 4, ..ReplicaOptions::new(0.1) };
    let queries = (0..10).collect::<Vec<_>>();
    assert_eq!(options.sample(&queries).collect::<Vec<_>>(), [0, 2, 5, 7]);
    assert_eq!(options.sample(&queries[..3]).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn options_that_do_not_fit_are_refused_by_name() {
    let trace = overlapping(6, 10);
    let placement = placement_of(&trace);
    for strategy in STRATEGIES {
        let refused = |options: ReplicaOptions| {
            strategy(&placement, trace.queries(), &options).unwrap_err().to_string()
        };
        assert!(refused(ReplicaOptions::new(-0.1)).contains("ratio is -0.1"));
        let none = ReplicaOptions { queries_per_row_max: 0, ..ReplicaOptions::new(0.1) };
        assert!(refused(none).contains("queries_per_row_max is 0"));
        let other = Trace::from_queries(3, [[0, 1]]).unwrap();
        let error = strategy(&placement, other.queries(), &ReplicaOptions::new(0.1)).unwrap_err();
        assert!(error.to_string().contains("512 rows, the queries are over 3"));
    }
}
