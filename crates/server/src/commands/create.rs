//! `EMB.CREATE`: a table of a writable server, made if it is not there.

use super::arguments::utf8;
use super::{Call, Outcome};
use crate::refusal::Refusal;
use crate::timer::Task;
use embedrock_core::init::Initializer;
use embedrock_core::optimizer::{OptimizerKind, OptimizerSpec};
use embedrock_core::row::{Dtype, RoundingMode};
use embedrock_core::{StorageKind, TableSpec};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Initial values of a table for which nothing else is asked: from minus this number to this one.
const UNIFORM: f32 = 0.05;

/// A client's request for a table. Parts that it omits are as stored, or the defaults.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    embedding_dim: Option<usize>,
    /// `null` is a table that grows, and something else than nothing.
    #[serde(default, deserialize_with = "present")]
    num_embeddings: Option<Option<u64>>,
    expected_rows: Option<u64>,
    dtype: Option<Dtype>,
    rounding: Option<RoundingMode>,
    storage: Option<StorageKind>,
    /// Of a region of fixed size.
    capacity: Option<u64>,
    /// A name, or the whole description.
    optimizer: Option<Value>,
    initializer: Option<Initializer>,
}

/// `EMB.CREATE table JSON`
pub(super) fn create(call: &mut Call<'_>) -> Outcome {
    let name = utf8("the name of a table", call.argument(1)?)?;
    let text = utf8("JSON", call.argument(2)?)?;
    let asked: Asked = serde_json::from_str(text).map_err(|error| {
        Refusal::coded("MISUSE", format!("parameters of table '{name}': {error}"))
    })?;
    let store = &call.shared.store;
    let stored = store.find_table(name).map(|id| store.table_info(id)).transpose()?;
    let is_there = stored.is_some();
    let spec = asked.resolve(name, stored.map(|info| info.spec))?;
    if is_there {
        store.table(&spec)?; // compares the parameters
        return call.done();
    }
    if !call.shared.is_writable() {
        return Err(Refusal::coded(
            "READONLY",
            format!(
                "no table '{name}', and this server only reads its store; start it with \
                 --writable to create tables"
            ),
        ));
    }
    // Measuring the device and waiting for a commit would hold up the clients of this thread.
    call.begin_job(Task::Create(Box::new(spec)))
}

impl Asked {
    fn resolve(self, name: &str, stored: Option<TableSpec>) -> Result<TableSpec, Refusal> {
        if stored.is_none() && self.storage == Some(StorageKind::Pages) {
            return Err(Refusal::coded(
                "MISUSE",
                format!(
                    "new table '{name}': storage is 'pages', which `embedrock freeze` writes; \
                     expected 'log', 'lsm' or 'pmem'"
                ),
            ));
        }
        let optimizer = self.optimizer.map(|given| optimizer(name, given)).transpose()?;
        let usual = match stored {
            Some(stored) => stored,
            None => TableSpec {
                name: name.to_owned(),
                first_name: None,
                embedding_dim: self.embedding_dim.ok_or_else(|| {
                    Refusal::coded("MISUSE", format!("new table '{name}' without embedding_dim"))
                })?,
                num_embeddings: None,
                expected_rows: None,
                dtype: Dtype::default(),
                rounding: RoundingMode::default(),
                storage: StorageKind::default(),
                capacity: None,
                optimizer: OptimizerSpec::new(OptimizerKind::default()),
                initializer: Initializer::Uniform { low: -UNIFORM, high: UNIFORM },
            },
        };
        Ok(TableSpec {
            embedding_dim: self.embedding_dim.unwrap_or(usual.embedding_dim),
            num_embeddings: self.num_embeddings.unwrap_or(usual.num_embeddings),
            expected_rows: self.expected_rows.or(usual.expected_rows),
            dtype: self.dtype.unwrap_or(usual.dtype),
            rounding: self.rounding.unwrap_or(usual.rounding),
            storage: self.storage.unwrap_or(usual.storage),
            capacity: self.capacity.or(usual.capacity),
            optimizer: optimizer.unwrap_or(usual.optimizer),
            initializer: self.initializer.unwrap_or(usual.initializer),
            name: usual.name,
            first_name: usual.first_name,
        })
    }
}

/// An optimizer by its name, or as it is described.
fn optimizer(table: &str, given: Value) -> Result<OptimizerSpec, Refusal> {
    let parsed = match given {
        Value::String(_) => serde_json::from_value(given).map(OptimizerSpec::new),
        described => serde_json::from_value(described),
    };
    parsed.map_err(|error| {
        Refusal::coded("MISUSE", format!("parameters of table '{table}': optimizer: {error}"))
    })
}

fn present<'de, D: Deserializer<'de>>(given: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(given).map(Some)
}
