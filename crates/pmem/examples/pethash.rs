//! Measures PETHash: buckets visited per look-up, look-ups beside other maps, and rows.
//!
//! `pethash [probes|turnover|lookups|rows|reopen]...`, all but `reopen` without arguments. Options
//! are in the environment: `KEYS` (16 million for look-ups, 4 million for the rest), `ROUNDS` (5),
//! `FOLDER` (where region files lie, `/dev/shm`). All maps hash with the same mixing function, and
//! have 8-byte keys and values. PETHash lies on huge pages and, for comparison, in a file of
//! `FOLDER`; give the peers huge pages by `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`.
#![expect(clippy::print_stdout, reason = "the figures go to standard output")]

use embedrock_pmem::{ABSENT, Geometry, Mapped, PetHash, Prefetch, Rows};
use std::error::Error;
use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

type Failure = Box<dyn Error>;
type Timing<'a> = (&'a str, Box<dyn FnMut(&[u64]) -> u64 + 'a>);

/// Keys of a request, as in the paper.
const BATCH: usize = 500;
/// Look-ups of a round.
const LOOK_UPS: usize = 4_000_000;
/// A round in which the thread waited longer for a processor is repeated.
const WAIT_MAX: f64 = 0.03;

fn main() -> Result<(), Failure> {
    let mut parts: Vec<String> = std::env::args().skip(1).collect();
    if parts.is_empty() {
        parts = ["probes", "turnover", "lookups", "rows"].map(String::from).into();
    }
    for part in parts {
        match part.as_str() {
            "probes" => probes()?,
            "turnover" => turnover()?,
            "lookups" => look_ups()?,
            "rows" => rows()?,
            "reopen" => reopen()?,
            _ => {
                return Err(
                    format!("no part {part}: probes, turnover, lookups, rows, reopen").into()
                );
            }
        }
    }
    Ok(())
}

fn number(name: &str, default: u64) -> Result<u64, Failure> {
    match std::env::var(name) {
        Ok(text) => Ok(text.replace('_', "").parse().map_err(|_| format!("{name}={text}"))?),
        Err(_) => Ok(default),
    }
}

fn folder() -> PathBuf {
    std::env::var_os("FOLDER").map_or_else(|| PathBuf::from("/dev/shm"), PathBuf::from)
}

/// Different for different numbers, and without any order.
fn scatter(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

fn in_memory(capacity: u64) -> Result<PetHash<Mapped>, Failure> {
    let geometry = Geometry::of_index(capacity)?;
    Ok(PetHash::format(Mapped::anonymous(geometry.bytes())?, geometry)?)
}

/// Mean buckets visited, and the share of keys within three.
fn visited(index: &PetHash<Mapped>, keys: impl Iterator<Item = u64>) -> (f64, f64) {
    let (mut sum, mut near, mut count) = (0, 0, 0u64);
    for key in keys {
        let (_, probes) = index.get_counted(key);
        sum += probes;
        near += u64::from(probes <= 3);
        count += 1;
    }
    (sum as f64 / count as f64, near as f64 / count as f64)
}

fn probes() -> Result<(), Failure> {
    let count = number("KEYS", 4_000_000)?;
    println!("probes at load 0.8, {count} keys");
    println!("{:14} {:>8} {:>8} {:>9}", "keys", "hit", "miss", "within 3");
    let strides = [0, 8, 12, 16, 20, 24, 28, 32].map(Some).into_iter();
    for shift in std::iter::once(None).chain(strides) {
        let key = |i: u64| shift.map_or_else(|| scatter(i), |shift| i << shift);
        let index = in_memory(count)?;
        for i in 0..count {
            index.put(key(i), i)?;
        }
        let (hit, near) = visited(&index, (0..count).map(key));
        let (miss, _) = visited(&index, (count..2 * count).map(key));
        let name = match shift {
            None => "random".to_owned(),
            Some(0) => "sequential".to_owned(),
            Some(shift) => format!("stride 2^{shift}"),
        };
        println!("{name:14} {hit:8.4} {miss:8.4} {:8.3}%", near * 100.0);
    }
    Ok(())
}

fn turnover() -> Result<(), Failure> {
    let count = number("KEYS", 4_000_000)?;
    println!("after 200 % turnover at load 0.8, {count} keys");
    for rehome in [false, true] {
        let index = in_memory(count)?;
        for key in 0..count {
            index.put(key, key)?;
        }
        let mut present: Vec<u64> = (0..count).collect();
        let began = Instant::now();
        let mut moved = 0;
        for turn in 0..2 * count {
            let at = scatter(turn) as usize % present.len();
            index.remove(present[at], |_| {})?;
            present[at] = count + turn;
            index.put(present[at], turn)?;
            // Beside the changes, four passes over all buckets.
            if rehome && turn % 64 == 63 {
                let step = index.buckets() * 4 * 64 / (2 * count) + 1;
                moved += index.rehome(turn / 64 * step % index.buckets(), step)?.moved;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        if rehome {
            moved += index.rehome(0, u64::MAX)?.moved;
        }
        let (hit, near) = visited(&index, present.iter().copied());
        let (miss, _) = visited(&index, (0..count).map(|i| u64::MAX - i));
        let name = if rehome { "with re-homing" } else { "without" };
        println!(
            "{name:14} {hit:8.4} {miss:8.4} {:8.3}%   {moved} moved, {seconds:.1} s, {} displaced",
            near * 100.0,
            index.check()?.displaced
        );
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Mixing;

struct Mixed(u64);

impl BuildHasher for Mixing {
    type Hasher = Mixed;

    fn build_hasher(&self) -> Mixed {
        Mixed(0)
    }
}

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are words");
    }

    fn write_u64(&mut self, key: u64) {
        let mut x = key ^ key >> 27;
        x = x.wrapping_mul(0x3C79_AC49_2BA7_B653);
        x ^= x >> 33;
        x = x.wrapping_mul(0x1C69_B3F7_4AC4_AE35);
        self.0 = x ^ x >> 27;
    }
}

/// Nanoseconds that this thread has waited for a processor.
fn waited() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|wait| wait.parse().ok()).unwrap_or(0)
}

/// Million look-ups a second of each, as medians over rounds that take turns.
fn race(timings: &mut [Timing<'_>], keys: &[u64], expected: u64) -> Result<Vec<f64>, Failure> {
    let rounds = number("ROUNDS", 5)? as usize;
    let mut rates = vec![Vec::new(); timings.len()];
    let mut voided = 0;
    while rates.iter().any(|rates| rates.len() < rounds) {
        for ((name, look_up), rates) in timings.iter_mut().zip(&mut rates) {
            let (began, wait) = (Instant::now(), waited());
            let sum = look_up(black_box(keys));
            let seconds = began.elapsed().as_secs_f64();
            if sum != expected {
                return Err(format!("{name} found {sum}, expected {expected}").into());
            }
            // A machine that is never quiet is measured all the same.
            if (waited() - wait) as f64 / 1e9 > WAIT_MAX * seconds && voided < 6 * rounds {
                voided += 1;
            } else {
                rates.push(keys.len() as f64 / seconds / 1e6);
            }
        }
    }
    Ok(rates.into_iter().map(median).collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pethash<'a>(index: &'a PetHash<Mapped>, name: &'a str, ahead: Prefetch) -> Timing<'a> {
    let look_up = move |keys: &[u64]| {
        let mut values = [0; BATCH];
        let mut sum = 0u64;
        for keys in keys.chunks(BATCH) {
            let values = &mut values[..keys.len()];
            index.get_batch(keys, ahead, values).expect("as many values as keys");
            sum = values.iter().fold(sum, |sum, value| sum.wrapping_add(*value));
        }
        sum
    };
    (name, Box::new(look_up))
}

/// Look-ups one after the other, as maps offer them.
fn one_by_one<'a>(name: &'a str, get: impl Fn(&u64) -> u64 + 'a) -> Timing<'a> {
    let look_up = move |keys: &[u64]| keys.iter().fold(0u64, |sum, key| sum.wrapping_add(get(key)));
    (name, Box::new(look_up))
}

fn look_ups() -> Result<(), Failure> {
    let count = number("KEYS", 16_000_000)?;
    let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
    println!("look-ups of {count} keys in batches of {BATCH}, one thread, M/s {tunables}");
    let index = in_memory(count)?;
    let path = folder().join(format!("pethash-{}", std::process::id()));
    let geometry = Geometry::of_index(count)?;
    let in_file = PetHash::format(Mapped::create(&path, geometry.bytes())?, geometry)?;
    // The mapping keeps it.
    std::fs::remove_file(&path)?;
    for i in 0..count {
        index.put(scatter(i), i)?;
        in_file.put(scatter(i), i)?;
    }
    let asked: Vec<u64> = (0..LOOK_UPS as u64).map(|i| scatter(i ^ 1 << 60) % count).collect();
    let keys: Vec<u64> = asked.iter().map(|i| scatter(*i)).collect();
    let expected = asked.iter().fold(0u64, |sum, i| sum.wrapping_add(*i));
    let ours = |names: [&'static str; 3], index| {
        let ways = [Prefetch::None, Prefetch::NextKey, Prefetch::Staged];
        names.into_iter().zip(ways).map(move |(name, ahead)| pethash(index, name, ahead))
    };
    let names = ["pethash, no prefetch", "pethash, next key", "pethash, staged"];
    let in_file_names = ["in a file, no prefetch", "in a file, next key", "in a file, staged"];
    let mut timings: Vec<Timing<'_>> =
        ours(names, &index).chain(ours(in_file_names, &in_file)).collect();
    let found = race(&mut timings, &keys, expected)?;
    for ((name, _), rate) in timings.iter().zip(&found) {
        println!("{name:24} {rate:6.1}");
    }
    let (none, staged) = (found[0], found[2]);
    drop(timings);
    drop(in_file);

    // One at a time beside PETHash, so that memory holds them.
    let beside = |peer: Timing<'_>| {
        let name = peer.0.to_owned();
        let mut timings = [pethash(&index, "pethash", Prefetch::Staged), peer];
        let found = race(&mut timings, &keys, expected)?;
        println!("{name:24} {:6.1}   pethash beside it {:6.1}", found[1], found[0]);
        Ok::<_, Failure>(found[0] / found[1])
    };
    let pairs = || (0..count).map(|i| (scatter(i), i));
    let map = papaya::HashMap::builder().capacity(count as usize).hasher(Mixing).build();
    pairs().for_each(|(key, value)| {
        map.pin().insert(key, value);
    });
    let pinned = map.pin();
    let papaya = beside(one_by_one("papaya", |key| pinned.get(key).copied().unwrap_or(ABSENT)))?;
    drop(pinned);
    drop(map);
    let map = dashmap::DashMap::with_capacity_and_hasher(count as usize, Mixing);
    pairs().for_each(|(key, value)| {
        map.insert(key, value);
    });
    let dashmap = beside(one_by_one("dashmap", |key| map.get(key).map_or(ABSENT, |value| *value)))?;
    drop(map);
    let map = scc::HashIndex::with_capacity_and_hasher(count as usize, Mixing);
    for (key, value) in pairs() {
        map.insert_sync(key, value).map_err(|_| "a key came twice")?;
    }
    let get = |key: &u64| map.peek_with(key, |_, value| *value).unwrap_or(ABSENT);
    let scc = beside(one_by_one("scc::HashIndex", get))?;
    drop(map);
    let mut map = hashbrown::HashMap::with_capacity_and_hasher(count as usize, Mixing);
    map.extend(pairs());
    let get = |key: &u64| map.get(key).copied().unwrap_or(ABSENT);
    let hashbrown = beside(one_by_one("hashbrown", get))?;
    println!(
        "lookups_vs_best          {:6.2}   (papaya, dashmap, scc)",
        papaya.min(dashmap).min(scc)
    );
    println!("lookups_vs_hashbrown     {hashbrown:6.2}");
    println!("staged_vs_none           {:6.2}", staged / none);
    Ok(())
}

fn rows() -> Result<(), Failure> {
    let count = number("KEYS", 4_000_000)? / 4;
    println!("{count} rows in batches of {BATCH}, one thread, M rows/s, {}", folder().display());
    println!("{:>9} {:>7} {:>7} {:>7}", "row bytes", "insert", "update", "get");
    for row_bytes in [64, 256, 512, 2048] {
        let path = folder().join(format!("pethash-{}", std::process::id()));
        let rows = Rows::create(&path, Geometry::new(count, row_bytes)?)?;
        std::fs::remove_file(&path)?;
        let keys: Vec<u64> = (0..count).map(scatter).collect();
        let bytes = vec![7; BATCH * row_bytes];
        let put = |keys: &[u64]| {
            let began = Instant::now();
            for keys in keys.chunks(BATCH) {
                rows.put(keys, &bytes[..keys.len() * row_bytes])?;
            }
            Ok::<_, Failure>(keys.len() as f64 / began.elapsed().as_secs_f64() / 1e6)
        };
        let insert = put(&keys)?;
        let asked: Vec<u64> = keys.iter().map(|key| keys[(*key % count) as usize]).collect();
        let update = put(&asked)?;
        let (mut bytes, mut found) = (vec![0; BATCH * row_bytes], [false; BATCH]);
        let mut rates = Vec::new();
        for _ in 0..number("ROUNDS", 5)? {
            let began = Instant::now();
            for keys in asked.chunks(BATCH) {
                let (bytes, found) =
                    (&mut bytes[..keys.len() * row_bytes], &mut found[..keys.len()]);
                rows.get(keys, bytes, found)?;
            }
            rates.push(asked.len() as f64 / began.elapsed().as_secs_f64() / 1e6);
        }
        println!("{row_bytes:9} {insert:7.2} {update:7.2} {:7.2}", median(rates));
    }
    Ok(())
}

/// Makes a region of `KEYS` rows of 128 bytes in `FOLDER`, or opens the one that is there and reads
/// one request. Drop the page cache in between for a cold one.
fn reopen() -> Result<(), Failure> {
    let count = number("KEYS", 4_000_000)?;
    let path = folder().join(format!("reopen-{count}"));
    if !path.exists() {
        let loading = Rows::create(&path, Geometry::new(count, 128)?)?;
        let keys: Vec<u64> = (0..count).map(scatter).collect();
        for keys in keys.chunks(BATCH) {
            loading.put(keys, &vec![7; keys.len() * 128])?;
        }
        println!("made {} ({})", path.display(), loading.durability());
        return Ok(());
    }
    let seed = u64::from(std::process::id()) << 32;
    let keys: Vec<u64> = (0..BATCH as u64).map(|i| scatter(scatter(seed + i) % count)).collect();
    let (mut bytes, mut found) = (vec![0; BATCH * 128], [false; BATCH]);
    let began = Instant::now();
    let rows = Rows::open(&path)?;
    let opened = began.elapsed().as_secs_f64() * 1e3;
    let there = rows.get(&keys, &mut bytes, &mut found)?;
    let read = began.elapsed().as_secs_f64() * 1e3;
    println!("{count} rows: open {opened:.2} ms, with the first {there} rows {read:.2} ms");
    Ok(())
}
