//! Requests to the program, and the state that it keeps between two lines.

use crate::maps::{LookUps, Map, MapName};
use crate::{probes, regions};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;

/// A line of the input.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Ask {
    /// Buckets that look-ups visit in a full index; without `shift` keys are random, with it
    /// multiples of 2^shift.
    Probes { keys: u64, shift: Option<u32> },
    /// The same after twice as many keys were exchanged for new ones as there are.
    Turnover { keys: u64, rehoming: bool },
    /// Makes a map that later lines look keys up in.
    Build { map: MapName, keys: u64, folder: PathBuf },
    /// Frees it.
    Free { map: MapName },
    /// Looks up every key of a draw and compares each value, unless only time is asked for.
    LookUps { map: MapName, look_ups: LookUps },
    /// Makes a region with rows.
    Make { file: PathBuf, rows: u64, capacity: u64, row_bytes: usize },
    /// Opens it, reads a request, and puts a request of new keys.
    Open { file: PathBuf, rows: u64, keys: u64, seed: u64, put: bool, pushes: u64 },
    /// Puts rows and says so, until the process is killed.
    Push { file: PathBuf, rows: u64, keys: u64 },
}

/// The maps that are there.
#[derive(Default)]
pub(crate) struct Bench {
    maps: HashMap<MapName, Map>,
}

impl Bench {
    /// Does what a line asks; the message says why it cannot be done.
    pub(crate) fn answer(&mut self, ask: Ask) -> Result<Value, String> {
        match ask {
            Ask::Probes { keys, shift } => probes::fresh(keys, shift),
            Ask::Turnover { keys, rehoming } => probes::after_turnover(keys, rehoming),
            Ask::Build { map, keys, folder } => {
                self.maps.remove(&map);
                self.maps.insert(map, Map::build(map, keys, &folder)?);
                Ok(json!({}))
            }
            Ask::Free { map } => {
                self.maps.remove(&map);
                Ok(json!({}))
            }
            Ask::LookUps { map, look_ups } => {
                let found = self.maps.get(&map).ok_or_else(|| format!("{map:?} was not built"))?;
                found.look_up(&look_ups)
            }
            Ask::Make { file, rows, capacity, row_bytes } => {
                regions::make(&file, rows, capacity, row_bytes)
            }
            Ask::Open { file, rows, keys, seed, put, pushes } => {
                regions::open(&file, &regions::Opening { rows, keys, seed, put, pushes })
            }
            Ask::Push { file, rows, keys } => regions::push(&file, rows, keys),
        }
    }
}
