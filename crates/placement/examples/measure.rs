//! Measures placements on a trace: what learning them costs, and what held-out queries read.
//!
//! Without arguments it draws 1 million queries of 20 rows over 1 million rows. `measure FILE`
//! reads queries from a file (`-`: standard input), one a line, `<name><TAB><row> <row> ...`. Rows
//! may be any words. The first half of the queries is learned from, the other half is read.
//! Options are in the environment: `ROWS_PER_PAGE`, `THREADS`, `PASSES`, `RATIOS` (of replicas),
//! `CACHES` (shares of the rows), `ONLY` (the first letters of placements), `SEED`.
#![expect(clippy::print_stdout, reason = "the table goes to standard output")]

use embedrock_placement::evaluate::{EvaluateOptions, evaluate, miss_ratios};
use embedrock_placement::partition::{
    Next, Objective, PartitionOptions, Start, memory_needed, partition,
};
use embedrock_placement::replicas::{
    ReplicaOptions, before_partition, connectivity, fill_finer, residual,
};
use embedrock_placement::trace::{Queries, Trace};
use embedrock_placement::{Pages, Placement, baselines};
use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::time::Instant;

type Failure = Box<dyn Error>;

fn main() -> Result<(), Failure> {
    let rows_per_page = number("ROWS_PER_PAGE", 16)?;
    let began = Instant::now();
    let (trace, ideal) = match std::env::args().nth(1) {
        Some(path) => (read(&path)?, None),
        None => draw(1_000_000, 1_000_000, 20, number("SEED", 1)? as u64)
            .map(|(trace, ideal)| (trace, Some(ideal)))?,
    };
    let (learned, held_out) = trace.split(0.5)?;
    println!(
        "{} rows, {} + {} queries, {} pins, {rows_per_page} rows per page, {:.1} s to get them",
        learned.num_rows(),
        learned.len(),
        held_out.len(),
        trace.queries().pins(),
        began.elapsed().as_secs_f64(),
    );
    let caches = list("CACHES", &[0.0, 0.1])?;
    let report = Report { held_out, caches: caches.clone() };
    report.head();
    let show = |name: &str, began: Instant, placement: &Placement| {
        report.line(name, began, &Pages::of(placement))
    };
    let wanted = std::env::var("ONLY").unwrap_or_default();
    let wants = |name: &str| wanted.is_empty() || wanted.split(' ').any(|w| name.starts_with(w));
    if wants("identity") {
        let began = Instant::now();
        show("identity", began, &baselines::identity(learned.num_rows(), rows_per_page)?)?;
    }
    if let (true, Some(order)) = (wants("ideal"), ideal) {
        show("ideal", Instant::now(), &Placement::new(order, rows_per_page)?)?;
    }
    if wants("random") {
        let began = Instant::now();
        show("random", began, &baselines::random(learned.num_rows(), rows_per_page, 1)?)?;
    }
    if wants("frequency") {
        let began = Instant::now();
        show("frequency", began, &baselines::frequency(learned, rows_per_page)?)?;
    }
    let usual = PartitionOptions {
        threads: number("THREADS", std::thread::available_parallelism()?.get())?,
        passes_max: number("PASSES", PartitionOptions::new(1).passes_max)?,
        seed: number("SEED", 1)? as u64,
        ..PartitionOptions::new(rows_per_page)
    };
    let learn = |name: &str, options: PartitionOptions<'_>| -> Result<Option<Placement>, Failure> {
        if !wants(name) {
            return Ok(None);
        }
        let began = Instant::now();
        let mut levels = Vec::new();
        let cpu_before = cpu_seconds()?;
        let placement = partition(learned, &options, |progress| {
            levels.resize(progress.levels, (0, 0.0));
            levels[progress.level] = (progress.pass + 1, began.elapsed().as_secs_f64());
            Next::Continue
        })?;
        let (seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu_before);
        show(name, began, &placement)?;
        println!(
            "    {:.2} M pins/s by {} threads, {:.2} per second of a core; {} MB at most; \
             passes of levels, ends in s: {levels:.1?}",
            learned.pins() as f64 / seconds / 1e6,
            options.threads,
            learned.pins() as f64 / cpu_seconds / 1e6,
            memory_needed(learned, &options) >> 20,
        );
        Ok(Some(placement))
    };
    learn("projected", PartitionOptions { objective: Objective::Projected, ..usual.clone() })?;
    let best = learn("partition", usual.clone())?;
    for ratio in list("RATIOS", &[0.1])? {
        let options = ReplicaOptions { threads: usual.threads, ..ReplicaOptions::new(ratio) };
        if let Some(placement) = &best {
            let began = Instant::now();
            let replicas = connectivity(placement, learned, &options, |_, _| Next::Continue)?;
            let pages = Pages::with_replicas(placement, &replicas)?;
            report.line(&format!("  connectivity {ratio}"), began, &pages)?;
            let began = Instant::now();
            let replicas = residual(placement, learned, &options, |_, _| Next::Continue)?;
            let pages = Pages::with_replicas(placement, &replicas)?;
            report.line(&format!("  residual {ratio}"), began, &pages)?;
        }
        if wants("strawmen") {
            let began = Instant::now();
            let pages = before_partition(learned, &usual, &options, |_| Next::Continue)?;
            report.line(&format!("  RPP {ratio}"), began, &pages)?;
            let began = Instant::now();
            let pages = fill_finer(learned, &usual, &options, |_| Next::Continue)?;
            report.line(&format!("  FPR {ratio}"), began, &pages)?;
        }
    }
    learn("one-thread", PartitionOptions { threads: 1, ..usual.clone() })?;
    let by_frequency = baselines::frequency(learned, rows_per_page)?;
    let start = Start::Order(by_frequency.order());
    learn("warm", PartitionOptions { start, ..usual.clone() })?;
    if let Some(&share) = caches.iter().find(|&&share| share > 0.0) {
        let cache_rows = (learned.num_rows() as f64 * share) as usize;
        let soften = |ratio: f32| 1.0 - 0.5 * (1.0 - ratio.max(0.1));
        let weights = miss_ratios(learned, cache_rows).into_iter().map(soften);
        let weights = weights.collect::<Vec<_>>();
        learn("weighted", PartitionOptions { weights: Some(&weights), ..usual.clone() })?;
    }
    println!("peak memory of the process: {} MB", peak_memory_mb()?);
    Ok(())
}

/// The reads of held-out queries, one line per placement.
struct Report<'a> {
    held_out: Queries<'a>,
    caches: Vec<f64>,
}

impl Report<'_> {
    fn head(&self) {
        print!("{:24} {:>9} {:>9}", "placement", "pages", "learn s");
        for cache in &self.caches {
            print!(" | {:>4.0} % cache: pages/query  rows/page", cache * 100.0);
        }
        println!();
    }

    fn line(&self, name: &str, began: Instant, pages: &Pages) -> Result<(), Failure> {
        let seconds = began.elapsed().as_secs_f64();
        print!("{name:24} {:9} {seconds:9.2}", pages.num_pages());
        for cache in &self.caches {
            let cache_rows = (pages.num_rows() as f64 * cache) as usize;
            let options = EvaluateOptions { cache_rows, ..Default::default() };
            let found = evaluate(pages, self.held_out, &options)?;
            print!(" | {:25.4} {:10.4}", found.pages_per_batch(), found.rows_per_page());
        }
        println!();
        Ok(())
    }
}

/// Queries whose rows come from one community of 64 (seven of eight), or from anywhere by Zipf's
/// law. Communities are asked for by Zipf's law, too. Numbers of rows are scattered. Beside the
/// trace: the rows in the order of their communities.
fn draw(rows: usize, queries: usize, len: usize, seed: u64) -> Result<(Trace, Vec<u32>), Failure> {
    const COMMUNITY: usize = 64;
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let mut numbers = (0..rows as u32).collect::<Vec<_>>();
    for last in (1..rows).rev() {
        numbers.swap(last, (next() % (last as u64 + 1)) as usize);
    }
    // The inverse of the integral of x^-0.9 from 1 to n.
    let zipf = |n: usize, random: u64| {
        let share = random as f64 / u64::MAX as f64;
        let top = (n as f64).powf(0.1) - 1.0;
        ((share * top + 1.0).powf(10.0) as usize).clamp(1, n) - 1
    };
    let mut values = Vec::with_capacity(queries * len);
    for _ in 0..queries {
        let community = zipf(rows / COMMUNITY, next()) * COMMUNITY;
        for _ in 0..len {
            let row = match next() % 8 {
                0 => zipf(rows, next()),
                _ => community + (next() % COMMUNITY as u64) as usize,
            };
            values.push(numbers[row]);
        }
    }
    let trace = Trace::new(rows, values, (0..=queries).map(|query| query * len).collect())?;
    Ok((trace, numbers))
}

fn read(path: &str) -> Result<Trace, Failure> {
    let lines: Box<dyn BufRead> = match path {
        "-" => Box::new(std::io::stdin().lock()),
        path => Box::new(BufReader::new(std::fs::File::open(path)?)),
    };
    let mut numbers = HashMap::<String, u32>::new();
    let (mut values, mut offsets) = (Vec::new(), vec![0]);
    for line in lines.lines() {
        let line = line?;
        let (_, rows) = line.split_once('\t').ok_or("a line without a tab")?;
        for word in rows.split_ascii_whitespace() {
            let new = numbers.len() as u32;
            values.push(*numbers.entry(word.to_owned()).or_insert(new));
        }
        offsets.push(values.len());
    }
    Ok(Trace::new(numbers.len(), values, offsets)?)
}

fn number(name: &str, usual: usize) -> Result<usize, Failure> {
    Ok(std::env::var(name).ok().map_or(Ok(usual), |text| text.parse())?)
}

fn list(name: &str, usual: &[f64]) -> Result<Vec<f64>, Failure> {
    match std::env::var(name) {
        Ok(text) => Ok(text.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?),
        Err(_) => Ok(usual.to_vec()),
    }
}

/// The processor time of all threads so far, with a resolution of 10 ms.
fn cpu_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("no name in stat")?;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()? as f64 / 100.0)
}

fn peak_memory_mb() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM")).ok_or("no VmHWM")?;
    let words = line.split_ascii_whitespace().nth(1).ok_or("no peak")?;
    Ok(words.parse::<u64>()? >> 10)
}
