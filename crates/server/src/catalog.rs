//! The tables by name, as requests look them up.

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
}

impl Table {
    fn new(info: TableInfo) -> Self {
        let TableInfo { id, spec, .. } = info;
        Self { id, dim: spec.embedding_dim, ids: spec.num_embeddings, name: spec.name }
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
        let tables = store.tables().into_iter().map(Table::new);
        let by_name = tables.map(|table| (table.name.clone().into_bytes(), table)).collect();
        *self.0.write() = Arc::new(Tables(by_name));
    }
}
