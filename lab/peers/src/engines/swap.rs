//! Rows in anonymous memory that the kernel swaps out when the memory limit bites. Nothing is
//! stored, so every run writes the rows first.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::mapping::Mapping;
use super::mmap::copy_rows;
use super::{Engine, Figures, Kind, Purpose};
use crate::error::{Doing, Result};
use crate::settings::Settings;
use crate::sys;

pub(super) const KIND: Kind = Kind {
    name: "swap",
    version: || format!("Linux {}", sys::kernel()),
    absent: || (!sys::has_swap()).then(|| "this system has no swap space in use".into()),
    defaults: |_| serde_json::to_value(Options::default()).doing(|| "swap: options".into()),
    open: |settings, purpose| Ok(Box::new(Swap::open(settings, purpose)?)),
    keeps_rows: false,
    makes: &[],
};

#[derive(Debug, Deserialize, Serialize)]
struct Options {
    /// Ask for the pages of a batch before touching them.
    prefetch: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { prefetch: true }
    }
}

struct Swap {
    mapping: Mapping,
    words: usize,
    options: Options,
    /// Rows are written that were not read, so that their pages may not be in memory.
    blind: bool,
    faults_before: u64,
}

impl Swap {
    fn open(settings: &Settings, purpose: Purpose) -> Result<Self> {
        let options = settings.options(Options::default())?;
        let words = match purpose {
            Purpose::Load => 1,
            Purpose::Run => settings.data_bytes() as usize / 4,
        };
        let mapping = Mapping::new(words, None)?;
        mapping.small_pages();
        let (words, faults_before) = (settings.row_words(), sys::major_faults());
        let blind = settings.mode.writes_blindly();
        Ok(Self { mapping, words, options, blind, faults_before })
    }
}

impl Engine for Swap {
    fn get_batch(&mut self, keys: &[u64], rows: &mut [f32]) -> Result<()> {
        let words = self.words;
        if self.options.prefetch {
            self.mapping.will_need(keys.iter().map(|&key| key as usize * words), words);
        }
        copy_rows(self.mapping.words(), words, keys, rows);
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

    fn figures(&self) -> Figures {
        let faults = sys::major_faults() - self.faults_before;
        Figures {
            read_requests: (!self.options.prefetch).then_some(faults),
            settings: serde_json::to_value(&self.options).unwrap_or(Value::Null),
            ..Figures::default()
        }
    }
}
