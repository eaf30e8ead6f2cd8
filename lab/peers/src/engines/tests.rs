//! Every engine against a plain map, and whole runs of every mode.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{KINDS, Kind, Purpose, find, list};
use crate::run::{self, Run};
use crate::settings::{Mode, Settings, TraceFiles, Window};

const ROWS: u64 = 700;
const MODES: [Mode; 7] =
    [Mode::Train, Mode::Update, Mode::Read, Mode::YcsbA, Mode::YcsbB, Mode::YcsbC, Mode::YcsbF];

/// Engines with options that take other paths through them.
fn subjects() -> Vec<(&'static Kind, Value)> {
    let more = [
        ("rocksdb", json!({"threads": 1, "block_bytes": 1024, "block_align": false})),
        ("rocksdb", json!({"threads": 3, "piece_keys": 5, "in_place": false, "filter": "ribbon"})),
        ("rocksdb", json!({"memtable": "skip-list", "in_place": true})),
        ("rocksdb", json!({"memtables_in_cache": false, "block_hash": false})),
        ("rocksdb", json!({"compaction": "universal", "block_cache": "hyper-clock"})),
        ("rocksdb", json!({"row_cache_share": 0.9, "more": "max_background_jobs=1"})),
        ("lmdb", json!({"threads": 1})),
        ("lmdb", json!({"threads": 1, "write_map": false, "batches_per_transaction": 3})),
        ("mmap", json!({"prefetch": false, "sorted": false})),
        ("swap", json!({"prefetch": false})),
    ];
    let built = KINDS.iter().filter(|kind| kind.name != "faster" || cfg!(faster));
    let defaults = built.map(|kind| (kind.name, json!({})));
    defaults.chain(more).map(|(name, options)| (find(name).unwrap(), options)).collect()
}

fn settings(kind: &Kind, mode: Mode, options: &Value, place: &Path) -> Settings {
    Settings {
        engine: kind.name.into(),
        mode,
        dim: 5,
        rows: ROWS,
        place: place.join("store"),
        memory_bytes: 64 << 20,
        trace: Some(TraceFiles { values: place.join("values"), offsets: place.join("offsets") }),
        batches: 0,
        seconds_max: None,
        window: None,
        options: options.as_object().cloned().unwrap_or_default(),
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Distinct keys in no order, of which low ones come more often.
    fn keys(&mut self, count: u64) -> Vec<u64> {
        let mut keys = Vec::new();
        for _ in 0..count {
            let bound = 1 + self.below(ROWS);
            let key = self.below(bound);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }
}

fn write_trace(place: &Path, batches: &[Vec<u64>]) {
    let (mut values, mut offsets, mut end) = (Vec::new(), 0_i64.to_le_bytes().to_vec(), 0_i64);
    for batch in batches {
        values.extend(batch.iter().flat_map(|key| key.to_le_bytes()));
        end += batch.len() as i64;
        offsets.extend(end.to_le_bytes());
    }
    fs::write(place.join("values"), values).unwrap();
    fs::write(place.join("offsets"), offsets).unwrap();
}

#[test]
fn engines_agree_with_a_map() {
    for (subject, (kind, options)) in subjects().into_iter().enumerate() {
        let place = tempfile::tempdir().unwrap();
        let settings = settings(kind, Mode::Train, &options, place.path());
        let words = settings.row_words();
        let mut map: HashMap<u64, Vec<f32>> = HashMap::new();
        fs::create_dir_all(&settings.place).unwrap();
        let purpose = if kind.keeps_rows { Purpose::Load } else { Purpose::Run };
        let mut engine = (kind.open)(&settings, purpose).unwrap();
        let keys: Vec<u64> = (0..ROWS).collect();
        let rows: Vec<f32> = (0..ROWS as usize * words).map(|word| word as f32).collect();
        engine.put_batch(&keys, &rows).unwrap();
        engine.end_batch().unwrap();
        map.extend(keys.into_iter().zip(rows.chunks(words).map(<[f32]>::to_vec)));
        if kind.keeps_rows {
            engine.finish_load().unwrap();
            drop(engine);
            engine = (kind.open)(&settings, Purpose::Run).unwrap();
        }
        let mut random = Random(subject as u64);
        for step in 0..200 {
            let count = random.below(90);
            let keys = random.keys(count);
            let mut rows = vec![-1.0; keys.len() * words];
            engine.get_batch(&keys, &mut rows).unwrap();
            for (key, row) in keys.iter().zip(rows.chunks(words)) {
                assert_eq!(row, map[key], "{} {options} step {step} key {key}", kind.name);
            }
            let (put, _) = keys.split_at(keys.len() / (1 + random.below(2) as usize));
            let rows: Vec<f32> = (0..put.len() * words).map(|_| random.below(99) as f32).collect();
            engine.put_batch(put, &rows).unwrap();
            engine.end_batch().unwrap();
            map.extend(put.iter().copied().zip(rows.chunks(words).map(<[f32]>::to_vec)));
        }
    }
}

/// Loads a store and runs a random trace of `count` batches on it.
fn whole_run(kind: &Kind, mode: Mode, options: &Value, count: u64) -> Value {
    let place = tempfile::tempdir().unwrap();
    let mut random = Random(count);
    let batches: Vec<Vec<u64>> = (0..count)
        .map(|_| {
            let count = random.below(90);
            random.keys(count)
        })
        .collect();
    write_trace(place.path(), &batches);
    let settings = settings(kind, mode, options, place.path());
    if (kind.absent)().is_some() {
        return Value::Null;
    }
    let loaded = run::load(&settings).unwrap();
    assert_eq!(loaded["disk_bytes"].as_u64().unwrap() > 0, kind.keeps_rows);
    let report = Run::prepare(&settings).unwrap().go().unwrap();
    let reads: usize = batches.iter().map(|batch| mode.plan(batch.len()).gets.len()).sum();
    assert_eq!(report["rows_verified"], reads, "{} {mode:?}", kind.name);
    report
}

#[test]
fn every_mode_runs_on_every_engine_without_a_mismatch() {
    for (kind, options) in subjects() {
        for mode in MODES {
            let report = whole_run(kind, mode, &options, 40);
            if report.is_null() {
                continue;
            }
            assert_eq!(report["mismatches"], 0, "{} {options} {mode:?}", kind.name);
            for name in ["get_ns", "put_ns", "cpu_ns", "read_bytes", "write_bytes", "wait_ns"] {
                assert_eq!(report[name].as_array().unwrap().len(), 40, "{name}");
            }
        }
    }
}

#[test]
fn windows_of_any_length_are_read_ahead_without_a_mismatch() {
    for (kind, options) in subjects().into_iter().filter(|(kind, _)| kind.name == "rocksdb") {
        for batches in [1, 7, 40, 50] {
            let place = tempfile::tempdir().unwrap();
            let mut random = Random(batches as u64);
            let trace: Vec<Vec<u64>> = (0..40).map(|_| random.keys(60)).collect();
            write_trace(place.path(), &trace);
            let mut settings = settings(kind, Mode::Window, &options, place.path());
            let sorted = batches % 2 == 1;
            settings.window = Some(Window { batches, compute_ns: 50_000, sorted });
            run::load(&settings).unwrap();
            let report = Run::prepare(&settings).unwrap().go().unwrap();
            assert_eq!((&report["mismatches"], &report["batches"]), (&json!(0), &json!(40)));
            let computed = report["compute_ns"].as_array().unwrap();
            assert!(computed.iter().all(|ns| ns.as_u64().unwrap() >= 50_000));
            let windows = report["windows"].as_array().unwrap();
            assert_eq!(windows.len(), 40_usize.div_ceil(batches) + 1);
            assert!(windows.last().unwrap()["blocks_read"].as_u64().unwrap() > 0, "{options}");
        }
    }
    let place = tempfile::tempdir().unwrap();
    write_trace(place.path(), &[vec![1]]);
    let mut other = settings(find("lmdb").unwrap(), Mode::Window, &json!({}), place.path());
    other.window = Some(Window { batches: 1, compute_ns: 0, sorted: true });
    run::load(&other).unwrap();
    let error = Run::prepare(&other).unwrap().go().unwrap_err().to_string();
    assert!(error.contains("reads nothing ahead"), "{error}");
}

#[test]
fn a_row_that_is_wrong_or_missing_is_counted() {
    for kind in KINDS.iter().filter(|kind| kind.keeps_rows) {
        let place = tempfile::tempdir().unwrap();
        write_trace(place.path(), &[vec![3, 1, 2], vec![8]]);
        let settings = settings(kind, Mode::Read, &json!({}), place.path());
        run::load(&settings).unwrap();
        let mut writing = settings.clone();
        writing.mode = Mode::Train;
        let mut engine = (kind.open)(&writing, Purpose::Run).unwrap();
        engine.put_batch(&[1], &[0.5; 5]).unwrap();
        engine.end_batch().unwrap();
        engine.finish_load().unwrap();
        drop(engine);
        let report = Run::prepare(&settings).unwrap().go().unwrap();
        assert_eq!((&report["mismatches"], &report["rows_verified"]), (&json!(1), &json!(4)));
    }
}

#[test]
fn loading_again_replaces_a_store_and_nothing_else() {
    for kind in KINDS.iter().filter(|kind| kind.keeps_rows) {
        let place = tempfile::tempdir().unwrap();
        write_trace(place.path(), &[vec![3, 1, 2]]);
        let settings = settings(kind, Mode::Train, &json!({}), place.path());
        for _ in 0..2 {
            run::load(&settings).unwrap();
            let report = Run::prepare(&settings).unwrap().go().unwrap();
            assert_eq!(report["mismatches"], 0, "{}", kind.name);
        }
        fs::write(settings.place.join("thesis"), "").unwrap();
        let error = run::load(&settings).unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
        assert!(settings.place.join("thesis").exists());
    }
}

#[test]
fn a_run_ends_after_the_batches_asked_for() {
    let place = tempfile::tempdir().unwrap();
    write_trace(place.path(), &[vec![1], vec![2], vec![3]]);
    let mut settings = settings(find("mmap").unwrap(), Mode::Train, &json!({}), place.path());
    run::load(&settings).unwrap();
    settings.batches = 2;
    assert_eq!(Run::prepare(&settings).unwrap().go().unwrap()["batches"], 2);
    settings.seconds_max = Some(1e-9);
    let mut output = Vec::new();
    let run = Run::prepare(&settings).unwrap();
    let report = run.serve(&mut &b"go\n"[..], &mut output);
    // The rows were stepped by the first run, so the second finds them changed.
    assert_eq!(report.unwrap()["batches"], 1);
    assert_eq!(output, b"ready\n");
}

#[test]
fn what_cannot_run_says_what_would() {
    let place = tempfile::tempdir().unwrap();
    let kind = find("rocksdb").unwrap();
    let mut small = settings(kind, Mode::Train, &json!({}), place.path());
    small.memory_bytes = 1 << 20;
    let error = run::load(&small).unwrap_err().to_string();
    assert!(error.starts_with("rocksdb: 1048576 bytes of memory, expected at least"), "{error}");

    let mut other = settings(kind, Mode::Train, &json!({"threads": 0}), place.path());
    assert!(run::load(&other).unwrap_err().to_string().contains("threads"));
    other.engine = "leveldb".into();
    assert!(run::load(&other).unwrap_err().to_string().contains("expected one of: rocksdb"));
    other.engine = "mmap".into();
    other.options = Map::new();
    other.trace = None;
    assert!(Run::prepare(&other).err().unwrap().to_string().contains("no trace"));
}

#[test]
fn the_list_has_every_engine_with_version_and_reason() {
    let all = list().unwrap();
    assert!(all["rocksdb"]["version"].as_str().unwrap().starts_with("RocksDB 11"));
    for kind in &KINDS {
        let about = &all[kind.name];
        assert_eq!(about["available"].as_bool().unwrap(), about["reason"].is_null());
        assert!(about["settings"]["train"].is_object());
    }
}
