//! The last minutes: samples at regular times, in a ring.

use crate::latency::{Counts, quantile};
use embedrock_core::io::DeviceCurve;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// From one sample to the next.
pub(super) const EVERY: Duration = Duration::from_secs(2);
/// Samples of ten minutes, a few tens of KiB.
pub(super) const SAMPLES_MAX: usize = 300;

/// Counters of a moment, which only rise.
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) rows_read: u64,
    pub(super) rows_written: u64,
    /// Rows of the store that were in memory, and those that were not.
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) reads: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) latency: Box<Counts>,
}

/// The values of one moment: rates since the sample before. `None` if there was nothing to measure.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Sample {
    pub(super) unix_s: f64,
    pub(super) rows_read_per_s: f64,
    pub(super) rows_written_per_s: f64,
    pub(super) requests_per_s: f64,
    pub(super) errors_per_s: f64,
    pub(super) hit_rate: Option<f64>,
    pub(super) request_p50_s: Option<f64>,
    pub(super) request_p99_s: Option<f64>,
    pub(super) device_reads_per_s: f64,
    pub(super) device_read_bytes_per_s: f64,
    pub(super) device_written_bytes_per_s: f64,
    pub(super) device_share: Option<f64>,
    pub(super) received_bytes_per_s: f64,
    pub(super) sent_bytes_per_s: f64,
    pub(super) connections: u64,
    pub(super) memory_bytes: u64,
    pub(super) disk_bytes: u64,
}

impl Sample {
    /// The rates between two readings; `curve` is what the device reached when it was measured.
    pub(super) fn between(before: &Reading, after: &Reading, curve: Option<&DeviceCurve>) -> Self {
        let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-9);
        let rise = |of: fn(&Reading) -> u64| of(after).saturating_sub(of(before));
        let rate = |of: fn(&Reading) -> u64| rounded(rise(of) as f64 / seconds);
        let (hits, misses) = (rise(|r| r.hits), rise(|r| r.misses));
        let time = |share| quantile(&before.latency, &after.latency, share).map(rounded);
        let (reads, bytes) = (rise(|r| r.reads), rise(|r| r.bytes_read));
        let busy = |curve: &DeviceCurve| match reads {
            0 => 0.0,
            reads => rounded(reads as f64 * curve.cost((bytes / reads) as usize) / seconds),
        };
        Self {
            rows_read_per_s: rate(|r| r.rows_read),
            rows_written_per_s: rate(|r| r.rows_written),
            requests_per_s: rate(|r| r.requests),
            errors_per_s: rate(|r| r.errors),
            hit_rate: (hits + misses > 0).then(|| rounded(hits as f64 / (hits + misses) as f64)),
            request_p50_s: time(0.5),
            request_p99_s: time(0.99),
            device_reads_per_s: rate(|r| r.reads),
            device_read_bytes_per_s: rate(|r| r.bytes_read),
            device_written_bytes_per_s: rate(|r| r.bytes_written),
            device_share: curve.map(busy),
            received_bytes_per_s: rate(|r| r.bytes_in),
            sent_bytes_per_s: rate(|r| r.bytes_out),
            ..Self::default()
        }
    }
}

/// Five digits are more than a chart shows; the others would only make replies long.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powi(4 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// The samples of the last minutes.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Number of samples that were dropped.
    gone: u64,
    samples: VecDeque<Sample>,
}

/// Samples as they are sent: one list for each name, all equally long, the oldest first.
#[derive(Debug, Serialize)]
pub(super) struct Columns {
    every_s: f64,
    /// Number of the first sample here; they are numbered from 0.
    first: u64,
    /// Number of the next sample that will be taken: a reader asks from it the next time.
    next: u64,
    #[serde(flatten)]
    series: serde_json::Map<String, serde_json::Value>,
}

impl History {
    pub(super) fn push(&mut self, sample: Sample) {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
            self.gone += 1;
        }
        self.samples.push_back(sample);
    }

    /// The samples from this number on, as far as they are still there.
    pub(super) fn columns(&self, since: u64) -> Result<Columns, serde_json::Error> {
        let next = self.gone + self.samples.len() as u64;
        // A number of another run of the server is none of this one.
        let first = if since > next { self.gone } else { since.max(self.gone) };
        let mut series = serde_json::Map::new();
        // An empty one names the columns where there is no sample.
        let named = serde_json::to_value(Sample::default())?;
        for name in named.as_object().into_iter().flat_map(serde_json::Map::keys) {
            series.insert(name.clone(), serde_json::Value::Array(Vec::new()));
        }
        for sample in self.samples.iter().skip((first - self.gone) as usize) {
            let serde_json::Value::Object(values) = serde_json::to_value(sample)? else { continue };
            for (name, value) in values {
                if let Some(column) = series.get_mut(&name).and_then(|c| c.as_array_mut()) {
                    column.push(value);
                }
            }
        }
        Ok(Columns { every_s: EVERY.as_secs_f64(), first, next, series })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latency;

    fn reading(at: Instant, n: u64) -> Reading {
        let latency = Latency::new();
        latency.observe(Duration::from_millis(1), n);
        Reading {
            at,
            requests: n,
            errors: n / 10,
            rows_read: 500 * n,
            rows_written: n,
            hits: 3 * n,
            misses: n,
            reads: n,
            bytes_read: 4096 * n,
            bytes_written: 0,
            bytes_in: 0,
            bytes_out: 0,
            latency: latency.counts(),
        }
    }

    #[test]
    fn a_sample_has_the_rates_between_two_readings() {
        let begin = Instant::now();
        let end = begin + Duration::from_secs(2);
        let sample = Sample::between(&reading(begin, 100), &reading(end, 300), None);
        assert_eq!((sample.requests_per_s, sample.rows_read_per_s), (100.0, 50_000.0));
        assert_eq!((sample.errors_per_s, sample.hit_rate), (10.0, Some(0.75)));
        assert_eq!((sample.device_read_bytes_per_s, sample.device_share), (409_600.0, None));
        assert!((1e-3..1.1e-3).contains(&sample.request_p99_s.unwrap()));
        let silent = Sample::between(&reading(begin, 100), &reading(end, 100), None);
        assert_eq!(
            (silent.hit_rate, silent.request_p50_s, silent.rows_read_per_s),
            (None, None, 0.0)
        );
        assert_eq!((rounded(123_456.7), rounded(0.001_234_567)), (123_460.0, 0.001_234_6));
    }

    #[test]
    fn ten_minutes_are_kept_and_a_reader_gets_what_it_does_not_have() {
        let mut history = History::default();
        assert_eq!(history.columns(0).unwrap().series["unix_s"], serde_json::json!([]));
        for number in 0..SAMPLES_MAX + 5 {
            history.push(Sample { unix_s: number as f64, ..Sample::default() });
        }
        let all = history.columns(0).unwrap();
        assert_eq!((all.first, all.next), (5, SAMPLES_MAX as u64 + 5));
        assert_eq!(all.series["unix_s"].as_array().unwrap().len(), SAMPLES_MAX);
        assert_eq!(all.series["unix_s"][0], 5.0);
        let last = history.columns(all.next - 1).unwrap();
        assert_eq!(last.series["unix_s"], serde_json::json!([SAMPLES_MAX as f64 + 4.0]));
        assert!(
            history.columns(all.next).unwrap().series["hit_rate"].as_array().unwrap().is_empty()
        );
        assert_eq!(history.columns(1 << 40).unwrap().first, 5, "a number of another run");
    }
}
