//! The tables by name, as requests look them up.

use embedrock_core::row::Dtype;
use embedrock_core::{Store, TableId, TableInfo};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// What requests need of a table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) id: TableId,
    pub(crate) name: String,
    /// Values per row.
    pub(crate) dim: usize,
    /// Ids of a dense table.
    pub(crate) ids: Option<u64>,
    /// Whether its rows lie on persistent memory.
    pub(crate) is_direct: bool,
    /// Whether its storage lends rows, which are as they go over the wire.
    pub(crate) lends: bool,
    /// Whether every id has a row, and keeps it: nobody need look which keys were written.
    pub(crate) is_full: bool,
}

impl Table {
    /// Of a store that only reads, which changes when it moves to another commit and not between.
    fn new(info: TableInfo, is_reader: bool) -> Self {
        let TableInfo { id, spec, rows, .. } = info;
        let ids = spec.num_embeddings;
        let is_full = is_reader && ids == Some(rows);
        let is_direct = spec.storage.is_direct();
        let lends = is_direct && spec.dtype == Dtype::Float32;
        Self { id, dim: spec.embedding_dim, ids, name: spec.name, is_direct, lends, is_full }
    }

    /// Whether a key can have a row: a dense table has ids from 0 on.
    pub(crate) fn has_id(&self, key: u64) -> bool {
        self.ids.is_none_or(|ids| key < ids)
    }

    /// Bytes of a row on the wire: float32 values, whatever the dtype that is stored.
    pub(crate) fn row_bytes(&self) -> usize {
        self.dim * size_of::<f32>()
    }
}

/// All tables of a moment.
#[derive(Debug, Default)]
pub(crate) struct Tables(HashMap<Vec<u8>, Table>);

impl Tables {
    /// The table of this name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Table> {
        self.0.get(name)
    }

    /// Whether the storage of any lends rows.
    pub(crate) fn lend_any(&self) -> bool {
        self.0.values().any(|table| table.lends)
    }
}

/// The tables now.
#[derive(Debug, Default)]
pub(crate) struct Catalog(RwLock<Arc<Tables>>);

impl Catalog {
    /// Those of a store.
    pub(crate) fn of(store: &Store) -> Self {
        let catalog = Self::default();
        catalog.update(store);
        catalog
    }

    /// The tables now.
    pub(crate) fn tables(&self) -> Arc<Tables> {
        self.0.read().clone()
    }

    /// Takes over which tables the store has.
    pub(crate) fn update(&self, store: &Store) {
        let is_reader = store.options().read_only;
        let tables = store.tables().into_iter().map(|info| Table::new(info, is_reader));
        let by_name = tables.map(|table| (table.name.clone().into_bytes(), table)).collect();
        *self.0.write() = Arc::new(Tables(by_name));
    }
}
