//! The speed of a device: requests per second by request size.
//!
//! The page size of a row class and the merging of neighbouring pages follow this curve, and every
//! benchmark prints the device's rate beside its own.

use super::{Buffers, Completion, File, IoKind, Medium, OpenMode, Queue};
use crate::error::{Result, bail};
use crate::hash::mix;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time since some moment in the past. Devices are measured by the machine's clock; the tests
/// have devices with a clock of their own.
type Clock<'a> = &'a dyn Fn() -> Duration;

/// Request sizes in bytes that are worth measuring.
pub const SIZES: [usize; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// Turns of each size when a curve is measured.
const TURNS: usize = 3;

/// A depth suffices that gives this share of what the best depth gives: more in flight takes
/// buffers and makes every answer wait longer.
const SUFFICIENT_SHARE: f64 = 0.97;

/// For so long a curve is taken for that of its device: others may make it slower or faster.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Bytes of one write of `scratch_file`.
const WRITE_BYTES: usize = 256 << 10;

/// Random reads of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Size of each request.
    pub bytes: usize,
    /// Requests completed per second.
    pub requests_per_s: f64,
}

/// Random reads of several sizes, smallest first, with `depth` requests in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCurve {
    /// Requests in flight while measuring.
    pub depth: usize,
    /// One point for each size, sizes rising.
    pub points: Vec<CurvePoint>,
}

/// The subject of a curve: a device, as the system numbers it, and a kind of queue.
pub(crate) type Measured = (u64, IoKind);

/// A curve that this process has measured.
struct Remembered {
    of: Measured,
    /// The length of each of its turns, and the time of the measurement.
    slice: Duration,
    at: Instant,
    curve: DeviceCurve,
}

/// The longest wait for another thread that holds the lock of the curves.
const LOCKED: Duration = Duration::from_millis(50);

/// The curves of this process, one of each device. Guards itself alone.
static REMEMBERED_CURVES: Mutex<Vec<Remembered>> = Mutex::new(Vec::new());

/// The curve of a device that this process has measured lately, with turns of `slice` or longer.
pub(crate) fn remembered(of: Measured, slice: Duration) -> Option<DeviceCurve> {
    // A fork may have taken place while another thread had the lock, which nobody gives back then.
    let curves = REMEMBERED_CURVES.try_lock_for(LOCKED)?;
    let is_of =
        |one: &&Remembered| one.of == of && one.slice >= slice && one.at.elapsed() < REMEMBERED;
    curves.iter().find(is_of).map(|one| one.curve.clone())
}

/// Remembers what was measured of a device.
pub(crate) fn remember(of: Measured, slice: Duration, curve: &DeviceCurve) {
    if let Some(mut curves) = REMEMBERED_CURVES.try_lock_for(LOCKED) {
        curves.retain(|one| one.of != of);
        curves.push(Remembered { of, slice, at: Instant::now(), curve: curve.clone() });
    }
}

impl DeviceCurve {
    /// True when sizes rise and rates are above 0, as those of `measure` are.
    pub(crate) fn is_usable(&self) -> bool {
        self.points.iter().all(|p| p.bytes > 0 && p.requests_per_s > 0.0)
            && self.points.is_sorted_by(|a, b| a.bytes < b.bytes)
    }

    /// Seconds of the device that one request of `bytes` costs while the queue is full, the
    /// reciprocal of the rate: linear in between, the smallest point's below, and beyond the
    /// largest along the line of the last two.
    pub fn cost(&self, bytes: usize) -> f64 {
        let seconds = |point: &CurvePoint| 1.0 / point.requests_per_s;
        match self.points.as_slice() {
            [] => 0.0,
            [only] => seconds(only) * (bytes as f64 / only.bytes as f64).max(1.0),
            points if bytes <= points[0].bytes => seconds(&points[0]),
            points => {
                let upper = points.iter().position(|point| bytes <= point.bytes);
                let upper = upper.unwrap_or(points.len() - 1);
                let (a, b) = (&points[upper - 1], &points[upper]);
                let slope = (seconds(b) - seconds(a)) / (b.bytes - a.bytes) as f64;
                // Noise must not make a longer request cheaper beyond what was measured.
                let slope = if bytes > b.bytes { slope.max(0.0) } else { slope };
                seconds(b) + slope * (bytes as f64 - b.bytes as f64)
            }
        }
    }
}

/// Measures random reads of each of `sizes`, `depth` in flight. Sizes that the medium's alignment
/// or the file's length excludes are left out. The sizes take turns, `slice` each, and of its turns
/// each size keeps the best: other users of the device can only make one worse.
///
/// The file must hold written data: file systems answer holes and reserved blocks without asking
/// the device, and a buffered medium answers from memory what it wrote a moment ago.
/// *Blocking*: for about three times `slice` times the number of sizes.
pub fn measure(
    medium: &dyn Medium,
    file: &Arc<dyn File>,
    sizes: &[usize],
    depth: usize,
    slice: Duration,
) -> Result<DeviceCurve> {
    let length = file.len()?;
    let mut sizes = sizes.to_vec();
    sizes.retain(|&bytes| {
        bytes > 0 && bytes.is_multiple_of(medium.alignment()) && bytes as u64 <= length
    });
    sizes.sort_unstable();
    sizes.dedup();
    let mut points: Vec<CurvePoint> =
        sizes.iter().map(|bytes| CurvePoint { bytes: *bytes, requests_per_s: 0.0 }).collect();
    let begin = Instant::now();
    let clock: Clock<'_> = &|| begin.elapsed();
    for _ in 0..TURNS {
        for point in &mut points {
            let bytes = point.bytes;
            let rate = random_reads(medium, file, &[0], length, bytes, depth, slice, clock)?;
            point.requests_per_s = point.requests_per_s.max(rate);
        }
    }
    Ok(DeviceCurve { depth, points })
}

/// The least of `depths`, which rise, at which random reads of `bytes` come nearly as fast as at
/// any of them. The depths take turns as the sizes of [`measure`] do.
///
/// *Blocking*: for about three times `slice` times the number of depths.
pub fn sufficient_depth(
    medium: &dyn Medium,
    file: &Arc<dyn File>,
    bytes: usize,
    depths: &[usize],
    slice: Duration,
) -> Result<usize> {
    let begin = Instant::now();
    sufficient_by(&|| begin.elapsed(), medium, file, bytes, depths, slice)
}

fn sufficient_by(
    clock: Clock<'_>,
    medium: &dyn Medium,
    file: &Arc<dyn File>,
    bytes: usize,
    depths: &[usize],
    slice: Duration,
) -> Result<usize> {
    let length = file.len()?;
    let mut rates = vec![0.0f64; depths.len()];
    for _ in 0..TURNS {
        for (rate, depth) in rates.iter_mut().zip(depths) {
            let turn = random_reads(medium, file, &[0], length, bytes, *depth, slice, clock)?;
            *rate = rate.max(turn);
        }
    }
    Ok(sufficient(depths, &rates))
}

fn sufficient(depths: &[usize], rates: &[f64]) -> usize {
    let best = rates.iter().copied().fold(0.0, f64::max);
    let enough = rates.iter().position(|rate| *rate >= SUFFICIENT_SHARE * best);
    enough.map_or(1, |at| depths[at])
}

/// Requests per second of random reads of `bytes` each, `depth` in flight, for `seconds`.
pub fn random_read_rate(
    medium: &dyn Medium,
    file: &Arc<dyn File>,
    bytes: usize,
    depth: usize,
    seconds: f64,
) -> Result<f64> {
    let length = file.len()?;
    random_read_rate_in(medium, file, &[0], length, bytes, depth, seconds)
}

/// As [`random_read_rate`], within areas of `area_bytes` each that begin at `areas`: the parts of
/// a file that hold written data.
pub fn random_read_rate_in(
    medium: &dyn Medium,
    file: &Arc<dyn File>,
    areas: &[u64],
    area_bytes: u64,
    bytes: usize,
    depth: usize,
    seconds: f64,
) -> Result<f64> {
    let (slice, begin) = (Duration::from_secs_f64(seconds), Instant::now());
    let clock: Clock<'_> = &|| begin.elapsed();
    random_reads(medium, file, areas, area_bytes, bytes, depth, slice, clock)
}

/// Creates `name` with `bytes` (rounded up to 256 KiB) of data that does not compress, for
/// measuring. *Durability*: synced; the name is not.
pub fn scratch_file(medium: &dyn Medium, name: &str, bytes: u64) -> Result<Arc<dyn File>> {
    let file = medium.open(name, OpenMode::CreateNew)?;
    let writes = bytes.div_ceil(WRITE_BYTES as u64);
    file.allocate(0, writes * WRITE_BYTES as u64)?;
    let mut queue = medium.queue(8, Buffers::equal(8, WRITE_BYTES))?;
    let mut done = Vec::new();
    for write in 0..writes {
        if queue.in_flight() == queue.depth() {
            queue.wait(1, &mut done)?;
            release_all(queue.as_mut(), &mut done)?;
        }
        let buffer = queue.acquire().expect("a buffer for each request of the depth");
        let words = queue.buffer_mut(buffer).chunks_exact_mut(8);
        for (word, chunk) in words.enumerate() {
            chunk.copy_from_slice(&mix(word as u64, write).to_le_bytes());
        }
        queue.write(&file, write * WRITE_BYTES as u64, WRITE_BYTES, buffer, write)?;
        queue.submit()?;
    }
    queue.wait(queue.in_flight(), &mut done)?;
    release_all(queue.as_mut(), &mut done)?;
    file.sync()?;
    Ok(file)
}

fn release_all(queue: &mut dyn Queue, done: &mut Vec<Completion>) -> Result<()> {
    for completion in done.drain(..) {
        queue.release(completion.buffer);
        completion.result?;
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "one measurement, named by the functions above")]
fn random_reads(
    medium: &dyn Medium,
    file: &Arc<dyn File>,
    areas: &[u64],
    area_bytes: u64,
    bytes: usize,
    depth: usize,
    slice: Duration,
    clock: Clock<'_>,
) -> Result<f64> {
    let per_area = area_bytes / (bytes as u64).max(1);
    let places = per_area * areas.len() as u64;
    if bytes == 0 || places == 0 || depth == 0 {
        bail!(Misuse, "measure {}: no reads of {bytes} bytes, {depth} at once", file.name());
    }
    let mut queue = medium.queue(depth, Buffers::equal(depth, bytes))?;
    let mut done = Vec::with_capacity(depth);
    let mut asked = 0u64;
    let mut ask = |queue: &mut dyn Queue, buffer| {
        asked += 1;
        let place = mix(asked, bytes as u64) % places;
        let offset = areas[(place / per_area) as usize] + place % per_area * bytes as u64;
        queue.read(file, offset, bytes, buffer, asked)
    };
    // The system may give less than was asked for.
    let depth = queue.depth();
    while queue.in_flight() < depth {
        let buffer = queue.acquire().expect("a buffer for each request of the depth");
        ask(queue.as_mut(), buffer)?;
    }
    // The first depth of answers fills the device's pipeline and is not counted.
    let mut started = None;
    let mut answered = 0;
    loop {
        queue.wait(1, &mut done)?;
        answered += done.len();
        if started.is_none() && answered >= depth {
            (started, answered) = (Some(clock()), 0);
        }
        for completion in done.drain(..) {
            completion.result?;
            ask(queue.as_mut(), completion.buffer)?;
        }
        if let Some(started) = started
            && answered > 0
        {
            let took = clock().saturating_sub(started);
            if took >= slice {
                return Ok(answered as f64 / took.as_secs_f64());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{BufferId, FileState, IoKind, Locking, SimMedium};
    use std::sync::atomic::{AtomicU64, Ordering};

    fn point(bytes: usize, requests_per_s: f64) -> CurvePoint {
        CurvePoint { bytes, requests_per_s }
    }

    #[test]
    fn a_curve_is_remembered_for_its_device_and_for_turns_as_long() {
        let curve = DeviceCurve {
            depth: 8,
            points: vec![CurvePoint { bytes: 4096, requests_per_s: 1000.0 }],
        };
        // No device has such a number.
        let (of, ms) = ((u64::MAX - 7, IoKind::Pread), Duration::from_millis);
        assert_eq!(remembered(of, ms(1)), None);
        remember(of, ms(12), &curve);
        assert_eq!(remembered(of, ms(12)), Some(curve.clone()));
        assert_eq!(remembered(of, ms(3)), Some(curve.clone()));
        assert_eq!(remembered(of, ms(40)), None, "shorter turns tell less");
        assert_eq!(remembered((of.0 - 1, of.1), ms(1)), None);
        assert_eq!(remembered((of.0, IoKind::Simulated), ms(1)), None);
        let faster = DeviceCurve { depth: 9, ..curve };
        remember(of, ms(40), &faster);
        assert_eq!(remembered(of, ms(40)), Some(faster.clone()));
        assert_eq!(remembered(of, ms(12)), Some(faster));
    }

    #[test]
    fn cost_interpolates_between_sizes_and_extends_the_last_slope() {
        let points = vec![point(4096, 1000.0), point(8192, 500.0), point(16_384, 250.0)];
        let curve = DeviceCurve { depth: 64, points };
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(curve.cost(512), 0.001));
        assert!(close(curve.cost(4096), 0.001));
        assert!(close(curve.cost(6144), 0.0015));
        assert!(close(curve.cost(16_384), 0.004));
        assert!(close(curve.cost(32_768), 0.008));
        assert!(close(DeviceCurve { depth: 1, points: vec![] }.cost(4096), 0.0));
    }

    #[test]
    fn the_least_depth_that_is_nearly_as_fast_suffices() {
        let depths = [16, 32, 64, 128];
        assert_eq!(sufficient(&depths, &[10.0, 50.0, 98.0, 100.0]), 64);
        assert_eq!(sufficient(&depths, &[10.0, 50.0, 90.0, 100.0]), 128);
        assert_eq!(sufficient(&depths, &[100.0, 50.0, 90.0, 100.0]), 16);
        assert_eq!(sufficient(&depths, &[0.0; 4]), 16);
        assert_eq!(sufficient(&[], &[]), 1);
    }

    /// A device that works on at most `parallel` reads at once, each for 100 µs of its own time.
    #[derive(Debug)]
    struct TimedDevice {
        medium: SimMedium,
        parallel: usize,
        /// Most requests that its queues take.
        depth_max: usize,
        noise: Noise,
        nanoseconds: Arc<AtomicU64>,
    }

    /// The effect of another user of the device on the time that answers take.
    #[derive(Clone, Copy, Debug)]
    enum Noise {
        None,
        /// Each wait up to twice as long.
        Each,
        /// For a third of all slices only half of the device.
        Slices,
    }

    const LATENCY_NS: u64 = 100_000;
    const SLICE: Duration = Duration::from_millis(2);

    impl TimedDevice {
        fn new(seed: u64, parallel: usize, noise: Noise) -> Self {
            let medium = SimMedium::new(seed);
            Self { medium, parallel, depth_max: 128, noise, nanoseconds: Arc::default() }
        }

        fn sufficient(&self) -> usize {
            let file = scratch_file(&self.medium, "scratch", 300_000).unwrap();
            let time = &self.nanoseconds;
            let clock: Clock<'_> = &|| Duration::from_nanos(time.load(Ordering::Relaxed));
            sufficient_by(clock, self, &file, 512, &[16, 32, 64, 128], SLICE).unwrap()
        }
    }

    impl Medium for TimedDevice {
        fn queue(&self, depth: usize, buffers: Buffers) -> Result<Box<dyn Queue>> {
            let queue = self.medium.queue(depth.min(self.depth_max), buffers)?;
            let (parallel, noise) = (self.parallel, self.noise);
            Ok(Box::new(TimedQueue { queue, parallel, noise, time: self.nanoseconds.clone() }))
        }

        fn kind(&self) -> IoKind {
            self.medium.kind()
        }
        fn direct(&self) -> bool {
            self.medium.direct()
        }
        fn alignment(&self) -> usize {
            self.medium.alignment()
        }
        fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn File>> {
            self.medium.open(name, mode)
        }
        fn list(&self, prefix: &str) -> Result<Vec<String>> {
            self.medium.list(prefix)
        }
        fn remove(&self, name: &str) -> Result<()> {
            self.medium.remove(name)
        }
        fn rename(&self, from: &str, to: &str) -> Result<()> {
            self.medium.rename(from, to)
        }
        fn lock(&self, name: &str) -> Result<Locking> {
            self.medium.lock(name)
        }
        fn lock_to_look(&self, name: &str) -> Result<Locking> {
            self.medium.lock_to_look(name)
        }
        fn state_of(&self, name: &str) -> Result<FileState> {
            self.medium.state_of(name)
        }
        fn sync_dir(&self) -> Result<()> {
            self.medium.sync_dir()
        }
        fn free_bytes(&self) -> Result<u64> {
            self.medium.free_bytes()
        }
    }

    struct TimedQueue {
        queue: Box<dyn Queue>,
        parallel: usize,
        noise: Noise,
        time: Arc<AtomicU64>,
    }

    impl Queue for TimedQueue {
        fn wait(&mut self, at_least: usize, done: &mut Vec<Completion>) -> Result<()> {
            let (at_once, before) = (self.in_flight().min(self.parallel), done.len());
            self.queue.wait(at_least, done)?;
            let ns = LATENCY_NS * (done.len() - before) as u64 / at_once as u64;
            let now = self.time.load(Ordering::Relaxed);
            let slice = now / SLICE.as_nanos() as u64;
            let more = match self.noise {
                Noise::Each => mix(now, 1) % (ns + 1),
                Noise::Slices if mix(slice, 2).is_multiple_of(3) => ns,
                Noise::Slices | Noise::None => 0,
            };
            self.time.store(now + ns + more, Ordering::Relaxed);
            Ok(())
        }

        fn depth(&self) -> usize {
            self.queue.depth()
        }
        fn in_flight(&self) -> usize {
            self.queue.in_flight()
        }
        fn buffer_bytes(&self) -> usize {
            self.queue.buffer_bytes()
        }
        fn memory_bytes(&self) -> usize {
            self.queue.memory_bytes()
        }
        fn acquire_for(&mut self, bytes: usize) -> Option<BufferId> {
            self.queue.acquire_for(bytes)
        }
        fn release(&mut self, buffer: BufferId) {
            self.queue.release(buffer);
        }
        fn buffer(&self, buffer: BufferId) -> &[u8] {
            self.queue.buffer(buffer)
        }
        fn buffer_mut(&mut self, buffer: BufferId) -> &mut [u8] {
            self.queue.buffer_mut(buffer)
        }
        fn read(
            &mut self,
            file: &Arc<dyn File>,
            offset: u64,
            bytes: usize,
            buffer: BufferId,
            token: u64,
        ) -> Result<()> {
            self.queue.read(file, offset, bytes, buffer, token)
        }
        fn write(
            &mut self,
            file: &Arc<dyn File>,
            offset: u64,
            bytes: usize,
            buffer: BufferId,
            token: u64,
        ) -> Result<()> {
            self.queue.write(file, offset, bytes, buffer, token)
        }
        fn submit(&mut self) -> Result<()> {
            self.queue.submit()
        }
    }

    #[test]
    fn the_depth_is_the_one_from_which_on_the_device_is_no_faster() {
        for (parallel, wanted) in [(1, 16), (16, 16), (32, 32), (50, 64), (64, 64), (128, 128)] {
            for seed in 0..3 {
                let found = TimedDevice::new(seed, parallel, Noise::None).sufficient();
                assert_eq!(found, wanted, "{parallel} at once, seed {seed}");
            }
        }
        // A device that goes on growing a little: 64 of 65 are enough, 64 of 67 are not.
        assert_eq!(TimedDevice::new(1, 65, Noise::None).sufficient(), 64);
        assert_eq!(TimedDevice::new(1, 67, Noise::None).sufficient(), 128);
    }

    #[test]
    fn noise_does_not_make_a_depth_suffice_that_is_too_small() {
        for (parallel, least) in [(32, 32), (128, 128)] {
            for seed in 0..5 {
                for noise in [Noise::Each, Noise::Slices] {
                    let device = TimedDevice::new(seed, parallel, noise);
                    // Any moment of the neighbour's work.
                    device.nanoseconds.store(seed * 123_456_789, Ordering::Relaxed);
                    let found = device.sufficient();
                    assert_eq!(found, least, "{parallel} at once, {noise:?}, seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_depth_that_the_system_does_not_give_is_not_chosen() {
        for (depth_max, wanted) in [(100, 128), (64, 64), (20, 32)] {
            let device = TimedDevice { depth_max, ..TimedDevice::new(1, 128, Noise::None) };
            assert_eq!(device.sufficient(), wanted, "at most {depth_max}");
        }
    }

    #[test]
    fn a_curve_has_a_point_for_each_size_the_file_allows() {
        let medium = SimMedium::new(1);
        let file = scratch_file(&medium, "scratch", 300_000).unwrap();
        assert_eq!(file.len().unwrap(), 524_288);
        let sizes = [4096, 100, 512, 1 << 20];
        let curve = measure(&medium, &file, &sizes, 8, Duration::from_millis(1)).unwrap();
        assert_eq!(curve.points.iter().map(|p| p.bytes).collect::<Vec<_>>(), [512, 4096]);
        assert!(curve.points.iter().all(|p| p.requests_per_s > 0.0));
    }
}
