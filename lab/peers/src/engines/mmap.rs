//! A flat file of rows, mapped shared: the kernel's page cache is the cache, and its size is what
//! the memory limit leaves. Without a limit on the process it has all of the machine's memory.
//!
//! Pages that a batch needs are asked for all at once before the first is touched, so that the
//! device works on many; without that each page fault waits for its own read.

use std::fs::File;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::mapping::Mapping;
use super::{Engine, Figures, Kind, Purpose};
use crate::error::{Doing, Result};
use crate::settings::Settings;
use crate::sorted::Sorted;
use crate::sys;

pub(super) const KIND: Kind = Kind {
    name: "mmap",
    version: || format!("Linux {}", sys::kernel()),
    absent: || None,
    defaults: |_| serde_json::to_value(Options::default()).doing(|| "mmap: options".into()),
    open: |settings, purpose| Ok(Box::new(Mmap::open(settings, purpose)?)),
    keeps_rows: true,
    makes: &["rows"],
};

#[derive(Debug, Deserialize, Serialize)]
struct Options {
    /// Ask for the pages of a batch before touching them.
    prefetch: bool,
    /// Go through a batch in the order of the file.
    sorted: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { prefetch: true, sorted: true }
    }
}

struct Mmap {
    file: File,
    mapping: Mapping,
    words: usize,
    options: Options,
    /// Rows are written that were not read, so that their pages may not be in memory.
    blind: bool,
    sorted: Sorted,
    faults_before: u64,
}

impl Mmap {
    fn open(settings: &Settings, purpose: Purpose) -> Result<Self> {
        let options = settings.options(Options::default())?;
        let path: PathBuf = settings.place.join("rows");
        let doing = || format!("mmap: {}", path.display());
        let mut how = File::options();
        how.read(true).write(true).create(purpose == Purpose::Load);
        let file = how.open(&path).doing(doing)?;
        let bytes = settings.data_bytes();
        if purpose == Purpose::Load {
            file.set_len(bytes).doing(doing)?;
        }
        let found = file.metadata().doing(doing)?.len();
        if found != bytes {
            let path = path.display();
            return Err(settings.wrong(format!("{path} has {found} bytes, expected {bytes}")));
        }
        let mapping = Mapping::new(bytes as usize / 4, Some(&file))?;
        if purpose == Purpose::Run {
            mapping.random();
        }
        Ok(Self {
            file,
            mapping,
            words: settings.row_words(),
            options,
            blind: settings.mode.writes_blindly(),
            sorted: Sorted::default(),
            faults_before: sys::major_faults(),
        })
    }
}

impl Engine for Mmap {
    fn get_batch(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        let words = self.words;
        if !self.options.sorted {
            if self.options.prefetch {
                self.mapping.will_need(keys.iter().map(|&key| key as usize * words), words);
            }
            copy_rows(self.mapping.words(), words, keys, rows);
            return Ok(());
        }
        self.sorted.set(keys);
        if self.options.prefetch {
            let starts = self.sorted.keys().iter().map(|&key| key as usize * words);
            self.mapping.will_need(starts, words);
        }
        let all = self.mapping.words();
        self.sorted.gather(words, rows, |key, row| {
            row.copy_from_slice(&all[key as usize * words..][..words]);
        });
        Ok(())
    }

    fn put_batch(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        let words = self.words;
        if self.options.prefetch && self.blind {
            self.mapping.will_need(keys.iter().map(|&key| key as usize * words), words);
        }
        let all = self.mapping.words_mut();
        for (&key, row) in keys.iter().zip(rows.chunks_exact(words)) {
            all[key as usize * words..][..words].copy_from_slice(row);
        }
        Ok(())
    }

    fn finish_load(&mut self) -> Result<()> {
        self.file.sync_all().doing(|| "mmap: syncing the rows".into())
    }

    fn figures(&self) -> Figures {
        let faults = sys::major_faults() - self.faults_before;
        Figures {
            // Pages that were asked for are no faults when they are touched later.
            read_requests: (!self.options.prefetch).then_some(faults),
            settings: serde_json::to_value(&self.options).unwrap_or(Value::Null),
            ..Figures::default()
        }
    }
}

/// Copies the row of each key from the array `all`.
pub(super) fn copy_rows(all: &[f32], words: usize, keys: &[u64], rows: &mut [f32]) {
    for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(words)) {
        row.copy_from_slice(&all[key as usize * words..][..words]);
    }
}
