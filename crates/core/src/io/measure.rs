//! What a device can do: requests per second by request size.
//!
//! The page size of a row class and the merging of neighbouring pages follow this curve, and every
//! benchmark prints the device's rate beside its own.

use super::{Completion, File, Medium, OpenMode, Queue};
use crate::error::{Result, bail};
use crate::hash::mix;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Request sizes in bytes that are worth measuring.
pub const SIZES: [usize; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// Turns of each size when a curve is measured.
const TURNS: usize = 3;

/// A depth suffices that gives this share of what the best depth gives: more in flight takes
/// buffers and makes every answer wait longer.
const SUFFICIENT_SHARE: f64 = 0.97;

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
/// each size keeps the best: whoever else uses the device can only make one worse.
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
    for _ in 0..TURNS {
        for point in &mut points {
            let rate = random_reads(medium, file, &[0], length, point.bytes, depth, slice)?;
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
    let length = file.len()?;
    let mut rates = vec![0.0f64; depths.len()];
    for _ in 0..TURNS {
        for (rate, depth) in rates.iter_mut().zip(depths) {
            *rate = rate.max(random_reads(medium, file, &[0], length, bytes, *depth, slice)?);
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
    random_reads(medium, file, areas, area_bytes, bytes, depth, Duration::from_secs_f64(seconds))
}

/// Creates `name` with `bytes` (rounded up to 256 KiB) of data that does not compress, for
/// measuring. *Durability*: synced; the name is not.
pub fn scratch_file(medium: &dyn Medium, name: &str, bytes: u64) -> Result<Arc<dyn File>> {
    let file = medium.open(name, OpenMode::CreateNew)?;
    let writes = bytes.div_ceil(WRITE_BYTES as u64);
    file.allocate(0, writes * WRITE_BYTES as u64)?;
    let mut queue = medium.queue(8, 8, WRITE_BYTES)?;
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

fn random_reads(
    medium: &dyn Medium,
    file: &Arc<dyn File>,
    areas: &[u64],
    area_bytes: u64,
    bytes: usize,
    depth: usize,
    slice: Duration,
) -> Result<f64> {
    let per_area = area_bytes / (bytes as u64).max(1);
    let places = per_area * areas.len() as u64;
    if bytes == 0 || places == 0 || depth == 0 {
        bail!(Misuse, "measure {}: no reads of {bytes} bytes, {depth} at once", file.name());
    }
    let mut queue = medium.queue(depth, depth, bytes)?;
    let mut done = Vec::with_capacity(depth);
    let mut asked = 0u64;
    let mut ask = |queue: &mut dyn Queue, buffer| {
        asked += 1;
        let place = mix(asked, bytes as u64) % places;
        let offset = areas[(place / per_area) as usize] + place % per_area * bytes as u64;
        queue.read(file, offset, bytes, buffer, asked)
    };
    while let Some(buffer) = queue.acquire() {
        ask(queue.as_mut(), buffer)?;
    }
    // The first depth of answers fills the device's pipeline and is not counted.
    let mut started = None;
    let mut answered = 0;
    loop {
        queue.wait(1, &mut done)?;
        answered += done.len();
        if started.is_none() && answered >= depth {
            (started, answered) = (Some(Instant::now()), 0);
        }
        for completion in done.drain(..) {
            completion.result?;
            ask(queue.as_mut(), completion.buffer)?;
        }
        if let Some(started) = started
            && answered > 0
            && started.elapsed() >= slice
        {
            return Ok(answered as f64 / started.elapsed().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimMedium;

    fn point(bytes: usize, requests_per_s: f64) -> CurvePoint {
        CurvePoint { bytes, requests_per_s }
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
        let medium = SimMedium::new(1);
        let file = scratch_file(&medium, "scratch", 300_000).unwrap();
        let slice = Duration::from_millis(1);
        let depth = sufficient_depth(&medium, &file, 4096, &depths, slice).unwrap();
        assert!(depths.contains(&depth));
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
