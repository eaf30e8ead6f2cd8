//! Loading a store, and the loop of a run: batch after batch, with a clock around what the store
//! does and none around what proves it right.
//!
//! Memory that a run needs for itself (trace, counters, rows of a batch, figures) is resident
//! before `ready` is printed, so that a limit set then is the engine's budget and nothing else.

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::engines::{self, Engine, Figures, Kind, Purpose};
use crate::error::{Doing, Error, Result};
use crate::rows::{self, Expected};
use crate::settings::{Change, Mode, Settings};
use crate::sys;
use crate::trace::Trace;
use crate::window::Windows;

/// Bytes of rows that loading writes at once.
const LOAD_BYTES: usize = 32 << 20;
/// The same where a run has to write the rows, within the memory limit.
const FILL_BYTES: usize = 512 << 10;

/// Finds the engine and whether it can run here.
fn engine_of(settings: &Settings) -> Result<&'static Kind> {
    let kind = engines::find(&settings.engine)?;
    match (kind.absent)() {
        Some(reason) => Err(settings.wrong(format!("not available: {reason}"))),
        None => Ok(kind),
    }
}

/// Writes every row into a new store, instead of one that the engine left there, and makes them
/// durable. Anything else in the place is an error: it is somebody's.
pub(crate) fn load(settings: &Settings) -> Result<Value> {
    let kind = engine_of(settings)?;
    let place = &settings.place;
    let doing = || format!("{}: place {}", settings.engine, place.display());
    std::fs::create_dir_all(place).doing(doing)?;
    for name in kind.makes {
        let path = place.join(name);
        if path.is_dir() {
            std::fs::remove_dir_all(&path).doing(doing)?;
        } else if path.exists() {
            std::fs::remove_file(&path).doing(doing)?;
        }
    }
    if std::fs::read_dir(place).doing(doing)?.next().is_some() {
        let place = place.display();
        return Err(settings.wrong(format!("{place} is not empty, expected an empty directory")));
    }
    let begun = Instant::now();
    let written_before = sys::device_bytes().1;
    if kind.keeps_rows {
        let mut engine = (kind.open)(settings, Purpose::Load)?;
        fill(settings, engine.as_mut(), LOAD_BYTES)?;
        engine.finish_load()?;
        drop(engine);
        sys::forget_cached(place)?;
    }
    Ok(json!({
        "bytes_written": sys::device_bytes().1 - written_before,
        "seconds": begun.elapsed().as_secs_f64(),
        "disk_bytes": sys::disk_bytes(place)?,
    }))
}

/// Writes all rows, in order of their ids, so many bytes at once.
fn fill(settings: &Settings, engine: &mut dyn Engine, bytes: usize) -> Result<()> {
    let words = settings.row_words();
    let count = (bytes / settings.row_bytes()).clamp(1, settings.rows as usize);
    let mut buffer = vec![0.0; count * words];
    let mut keys = Vec::with_capacity(count);
    for first in (0..settings.rows).step_by(count) {
        keys.clear();
        keys.extend(first..(first + count as u64).min(settings.rows));
        let part = &mut buffer[..keys.len() * words];
        rows::fill_base(settings, first, part);
        engine.put_batch(&keys, part)?;
        engine.end_batch()?;
    }
    Ok(())
}

/// Figures of each batch.
#[derive(Default)]
struct Series {
    get_ns: Vec<u64>,
    blocked_ns: Vec<u64>,
    compute_ns: Vec<u64>,
    put_ns: Vec<u64>,
    cpu_ns: Vec<u64>,
    verify_cpu_ns: Vec<u64>,
    read_bytes: Vec<u64>,
    write_bytes: Vec<u64>,
    wait_ns: Vec<u64>,
}

impl Series {
    fn with_room(batches: usize) -> Self {
        let room = || {
            let mut counts = vec![1; batches];
            std::hint::black_box(&mut counts).clear();
            counts
        };
        Self {
            get_ns: room(),
            blocked_ns: room(),
            compute_ns: room(),
            put_ns: room(),
            cpu_ns: room(),
            verify_cpu_ns: room(),
            read_bytes: room(),
            write_bytes: room(),
            wait_ns: room(),
        }
    }
}

/// Counters of the process at the beginning of the first batch.
struct Before {
    cpu_ns: u64,
    bytes: (u64, u64),
    wait_ns: u64,
}

/// A run that is ready to begin.
pub(crate) struct Run<'a> {
    settings: &'a Settings,
    kind: &'static Kind,
    trace: Arc<Trace>,
    expected: Expected,
    rows: Vec<f32>,
    series: Series,
    /// Counters of the store at the beginning of each window, and at the end.
    counts: Vec<Value>,
    verified: u64,
    mismatches: u64,
    verify_cpu_ns: u64,
}

impl<'a> Run<'a> {
    /// Reads the trace and takes all memory that the loop needs.
    pub(crate) fn prepare(settings: &'a Settings) -> Result<Self> {
        let kind = engine_of(settings)?;
        let Some(files) = &settings.trace else {
            return Err(
                settings.wrong("no trace, expected the paths of its values and offsets".into())
            );
        };
        let change = settings.mode.plan(0).change;
        let mut expected = Expected::new(settings, change);
        let trace = Trace::load(files, settings.batches, expected.scratch())
            .doing(|| settings.engine.clone())?;
        expected.clear();
        let mut rows = vec![1.0; trace.keys_max() * settings.row_words()];
        std::hint::black_box(&mut rows).fill(0.0);
        let series = Series::with_room(trace.len());
        let (verified, mismatches, verify_cpu_ns) = (0, 0, 0);
        Ok(Self {
            settings,
            kind,
            trace: Arc::new(trace),
            expected,
            rows,
            series,
            counts: Vec::new(),
            verified,
            mismatches,
            verify_cpu_ns,
        })
    }

    /// Says that it is ready, waits for a line, and runs.
    pub(crate) fn serve(
        mut self,
        input: &mut dyn BufRead,
        output: &mut dyn Write,
    ) -> Result<Value> {
        writeln!(output, "ready")
            .and_then(|()| output.flush())
            .doing(|| "standard output".into())?;
        let mut line = String::new();
        if input.read_line(&mut line).doing(|| "standard input".into())? == 0 {
            return Err(self.settings.wrong("standard input ended before the run began".into()));
        }
        self.go()
    }

    /// Opens the store and runs batch after batch.
    pub(crate) fn go(&mut self) -> Result<Value> {
        if self.kind.keeps_rows {
            sys::forget_cached(&self.settings.place)?;
        }
        let mut engine = (self.kind.open)(self.settings, Purpose::Run)?;
        if !self.kind.keeps_rows {
            fill(self.settings, engine.as_mut(), FILL_BYTES)?;
        }
        let before = Before {
            cpu_ns: sys::process_cpu_ns(),
            bytes: sys::device_bytes(),
            wait_ns: sys::wait_ns(),
        };
        let mut windows = self.windows(engine.as_ref())?;
        let begun = Instant::now();
        for batch in 0..self.trace.len() {
            if windows.as_ref().is_some_and(|windows| windows.begins(batch)) {
                self.count(engine.as_ref())?;
            }
            self.batch(batch, engine.as_mut(), windows.as_mut())?;
            self.note(&before);
            if self.settings.seconds_max.is_some_and(|most| begun.elapsed().as_secs_f64() >= most) {
                break;
            }
        }
        if windows.is_some() {
            self.count(engine.as_ref())?;
        }
        let report = self.report(engine.figures());
        // Its readers are the engine's.
        drop(windows);
        drop(engine);
        Ok(report)
    }

    /// The reader of rows ahead, in mode `window`.
    fn windows(&self, engine: &dyn Engine) -> Result<Option<Windows>> {
        let (Mode::Window, Some(window)) = (self.settings.mode, self.settings.window) else {
            return Ok(None);
        };
        let Some(reader) = engine.read_ahead()? else {
            return Err(self.settings.wrong("reads nothing ahead, expected another mode".into()));
        };
        Windows::new(&self.trace, window, self.settings.row_words(), reader).map(Some)
    }

    fn count(&mut self, engine: &dyn Engine) -> Result<()> {
        let counts = serde_json::to_value(engine.counts()?).doing(|| "counts".into())?;
        self.counts.push(counts);
        Ok(())
    }

    fn batch(
        &mut self,
        batch: usize,
        engine: &mut dyn Engine,
        mut windows: Option<&mut Windows>,
    ) -> Result<()> {
        let words = self.settings.row_words();
        let keys = self.trace.batch(batch);
        let plan = self.settings.mode.plan(keys.len());
        let (read, written) = (&keys[plan.gets.clone()], &keys[plan.puts.clone()]);
        let puts = plan.puts.start * words..plan.puts.end * words;
        if plan.change == Change::Blind {
            self.expected.fill_next(written, &mut self.rows[puts.clone()]);
        }

        let begun = Instant::now();
        let mut blocked = Duration::ZERO;
        let rows = &mut self.rows[..read.len() * words];
        match &mut windows {
            Some(windows) => {
                if windows.begins(batch) {
                    blocked = windows.begin()?;
                }
                windows.get(read, rows)?;
            }
            None => engine.get_batch(read, rows)?,
        }
        let get = begun.elapsed();
        let arrived = Instant::now();

        let cpu_before = sys::thread_cpu_ns();
        let wrong = self.expected.mismatches(read, &self.rows[..read.len() * words]);
        self.mismatches += wrong as u64;
        self.verified += read.len() as u64;
        self.verify_cpu_ns += sys::thread_cpu_ns() - cpu_before;
        let compute = match windows {
            Some(_) => spin(arrived, self.settings.window.map_or(0, |window| window.compute_ns)),
            None => Duration::ZERO,
        };

        let begun = Instant::now();
        let changed = &mut self.rows[puts];
        match plan.change {
            Change::Step => rows::step(changed),
            Change::Adagrad => rows::adagrad(self.settings.dim, changed),
            Change::Blind => {}
        }
        engine.put_batch(written, changed)?;
        engine.end_batch()?;
        if let Some(windows) = windows {
            windows.put(changed);
        }
        let put = begun.elapsed();

        self.expected.written(written);
        self.series.get_ns.push(get.as_nanos() as u64);
        self.series.blocked_ns.push(blocked.as_nanos() as u64);
        self.series.compute_ns.push(compute.as_nanos() as u64);
        self.series.put_ns.push(put.as_nanos() as u64);
        Ok(())
    }

    fn note(&mut self, before: &Before) {
        let (read, written) = sys::device_bytes();
        self.series.cpu_ns.push(sys::process_cpu_ns() - before.cpu_ns);
        self.series.verify_cpu_ns.push(self.verify_cpu_ns);
        self.series.read_bytes.push(read - before.bytes.0);
        self.series.write_bytes.push(written - before.bytes.1);
        self.series.wait_ns.push(sys::wait_ns() - before.wait_ns);
    }

    fn report(&self, figures: Figures) -> Value {
        let series = &self.series;
        let (hits, misses) = figures.hits.unzip();
        let rate = figures.hits.map(|(hits, misses)| hits as f64 / (hits + misses).max(1) as f64);
        json!({
            "batches": series.get_ns.len(),
            "get_ns": series.get_ns,
            "blocked_ns": series.blocked_ns,
            "compute_ns": series.compute_ns,
            "put_ns": series.put_ns,
            "cpu_ns": series.cpu_ns,
            "verify_cpu_ns": series.verify_cpu_ns,
            "read_bytes": series.read_bytes,
            "write_bytes": series.write_bytes,
            "wait_ns": series.wait_ns,
            "windows": self.counts,
            "mismatches": self.mismatches,
            "rows_verified": self.verified,
            "memory": figures.memory,
            "hits": hits,
            "misses": misses,
            "hit_rate": rate,
            "read_requests": figures.read_requests,
            "settings": figures.settings,
            "peak_rss_bytes": sys::peak_rss_bytes(),
            "version": (self.kind.version)(),
        })
    }
}

/// Computes until so long after `begun`, of which comparing rows was a part; how long that was.
fn spin(begun: Instant, compute_ns: u64) -> Duration {
    let until = Duration::from_nanos(compute_ns);
    loop {
        let took = begun.elapsed();
        if took >= until {
            return took;
        }
        std::hint::spin_loop();
    }
}

/// Reads the settings from the first line of `input`.
pub(crate) fn settings_from(input: &mut dyn BufRead) -> Result<Settings> {
    let mut line = String::new();
    input.read_line(&mut line).doing(|| "standard input".into())?;
    if line.trim().is_empty() {
        return Err(Error::new("no settings, expected a JSON object on the first line of input"));
    }
    Settings::parse(&line)
}

/// One line of JSON on `output`.
pub(crate) fn print(output: &mut dyn Write, value: &Value) -> Result<()> {
    let line = serde_json::to_string(value).map_err(io::Error::from);
    let written = line.and_then(|line| writeln!(output, "{line}"));
    written.and_then(|()| output.flush()).doing(|| "standard output".into())
}
