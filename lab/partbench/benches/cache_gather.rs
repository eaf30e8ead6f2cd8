//! Resident gathers: rows copied from a full cache into a reused output.
//!
//! 10 M x 32 float32, uniform keys, batches of 65,536 and 2,048, one and two threads; beside them
//! the same gather by a plain loop over a dense array. Prints million rows per second of wall time
//! and, for busy machines, per second that the threads had a core (Linux; elsewhere both are wall
//! time).
//!
//! `cargo bench -p embedrock-partbench --bench cache_gather -- [--words N] [--rows N] [--cold]
//! [--interactive]`. With `--interactive` it reads lines `BATCH THREADS SECONDS` and answers each
//! with the two rates, so that another program can be measured in turns with it. With `--cold`,
//! eight times as much other memory as the output is written before each batch, as by a program
//! that computes with it.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use embedrock_core::config::PolicyKind;
use embedrock_core::hash::mix;
use embedrock_core::laboratory::{Cache, CacheShape, RowMut};
use std::io::BufRead;
use std::time::Instant;

struct Setting {
    rows: u64,
    words: usize,
    cold: bool,
}

/// Bytes that are written before each cold batch, per byte of output.
const OTHER: usize = 8;

fn filled(setting: &Setting) -> Cache {
    let shape = CacheShape {
        row_bytes: setting.words * 4,
        sets: u32::try_from(setting.rows.div_ceil(32)).expect("rows below 2^37"),
        ways: 32,
        policy: PolicyKind::Lru,
        headers: true,
    };
    let cache = Cache::new(shape).expect("memory for the cache");
    for key in 0..setting.rows {
        let fill = |row: RowMut<'_>, _| row.words.fill(key as f32);
        let at = cache.locate_dense(key);
        cache.admit(at, 0, key, 0, fill, |_| panic!("every row has a place"));
    }
    cache
}

fn keys(setting: &Setting, batch: usize, seed: u64) -> Vec<u64> {
    (0..batch as u64).map(|i| mix(seed * batch as u64 + i, 1) % setting.rows).collect()
}

/// Seconds that this thread has had a core, as the scheduler counts them.
fn on_core() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}

/// Million rows per second: of wall time, and of time on a core.
#[derive(Clone, Copy, Default)]
struct Rate {
    wall: f64,
    core: f64,
}

impl std::ops::Add for Rate {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { wall: self.wall + other.wall, core: self.core + other.core }
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} {:.2}", self.wall, self.core)
    }
}

/// The rate of `gather(batch, output)` over `seconds`. Keys are made outside the timed part, and
/// every row of the last batch is verified.
fn rate(
    setting: &Setting,
    batch: usize,
    seconds: f64,
    seed: u64,
    mut gather: impl FnMut(&[u64], &mut [f32]),
) -> Rate {
    let mut output = vec![1.0; batch * setting.words];
    let rounds = (1 << 19) / batch;
    let mut other = vec![0u8; if setting.cold { OTHER * size_of_val(&output[..]) } else { 0 }];
    // Only cold batches are timed one by one.
    let at_once = if setting.cold { 1 } else { rounds };
    let (mut wall, mut core) = (0.0, 0.0);
    let mut rows = 0;
    let mut seed = seed << 24;
    while core < seconds {
        let batches: Vec<_> = (0..rounds as u64).map(|i| keys(setting, batch, seed + i)).collect();
        seed += rounds as u64;
        for batches in batches.chunks(at_once) {
            other.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
            let (start_core, start) = (on_core(), Instant::now());
            for keys in batches {
                gather(keys, &mut output);
            }
            let elapsed = start.elapsed().as_secs_f64();
            wall += elapsed;
            core += on_core().zip(start_core).map_or(elapsed, |(end, start)| end - start);
        }
        rows += rounds * batch;
        let last = &batches[rounds - 1];
        for (key, row) in last.iter().zip(output.chunks_exact(setting.words)) {
            assert!(row.iter().all(|&word| word == *key as f32), "row {key}: {row:?}");
        }
    }
    Rate { wall: rows as f64 / wall / 1e6, core: rows as f64 / core / 1e6 }
}

fn gather_cache(cache: &Cache, keys: &[u64], output: &mut [f32]) {
    let words = cache.row_bytes() / 4;
    let missed = |position: usize| panic!("row {} is resident", keys[position]);
    cache.gather(0, keys, words, output, |key| cache.locate_dense(key), missed);
}

fn cache_rate(cache: &Cache, setting: &Setting, batch: usize, threads: u64, seconds: f64) -> Rate {
    std::thread::scope(|scope| {
        let run = |thread| {
            rate(setting, batch, seconds, thread + 1, |keys, output| {
                gather_cache(cache, keys, output);
            })
        };
        let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || run(t))).collect();
        others.into_iter().fold(run(0), |sum, other| sum + other.join().expect("no panic"))
    })
}

fn dense_rate(dense: &[f32], setting: &Setting, batch: usize, seconds: f64) -> Rate {
    rate(setting, batch, seconds, 99, |keys, output| {
        for (key, out) in keys.iter().zip(output.chunks_exact_mut(setting.words)) {
            out.copy_from_slice(&dense[*key as usize * setting.words..][..setting.words]);
        }
    })
}

fn interactive(cache: &Cache, setting: &Setting) {
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a readable line");
        let numbers: Vec<f64> =
            line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [batch, threads, seconds] = numbers[..] else { panic!("BATCH THREADS SECONDS") };
        println!("{}", cache_rate(cache, setting, batch as usize, threads as u64, seconds));
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: u64| {
        let at = arguments.iter().position(|argument| argument == name);
        at.map_or(default, |at| arguments[at + 1].parse().expect("a number"))
    };
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    let setting = Setting {
        rows: number("--rows", 10_000_000),
        words: number("--words", 32) as usize,
        cold: given("--cold"),
    };
    let cache = filled(&setting);
    if given("--interactive") {
        return interactive(&cache, &setting);
    }
    let mut dense = vec![0.0; setting.rows as usize * setting.words];
    for (key, row) in dense.chunks_exact_mut(setting.words).enumerate() {
        row.fill(key as f32);
    }
    println!(
        "{} rows of {} words; million rows/s of wall and core time",
        setting.rows, setting.words
    );
    for batch in [65_536, 2_048] {
        let one = cache_rate(&cache, &setting, batch, 1, 1.0);
        let two = cache_rate(&cache, &setting, batch, 2, 1.0);
        let plain = dense_rate(&dense, &setting, batch, 1.0);
        println!("batch {batch}: one thread {one}, two {two}, plain loop {plain}");
    }
}
