//! The tables by name, as requests look them up.

use embedrock_core::row::Dtype;
use embedrock_core::{Store, TableId, TableInfo};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// The facts about a table that requests need.
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

/// Names that a message has.
const NAMED_MOST: usize = 12;

/// Number of bytes to change, remove or insert to turn one name into another; two swapped bytes
/// count as one.
fn distance(one: &[u8], other: &[u8]) -> usize {
    if one.len().abs_diff(other.len()) > 8 || one.len() > 256 {
        return usize::MAX;
    }
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let same = usize::from(one[i - 1] != other[j - 1]);
            let mut least = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// All tables of a moment.
#[derive(Debug, Default)]
pub(crate) struct Tables(HashMap<Vec<u8>, Table>);

impl Tables {
    /// The table of this name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Table> {
        self.0.get(name)
    }

    /// Suggestions for a name that does not exist: some existing names, and the nearest.
    pub(crate) fn names_beside(&self, name: &[u8]) -> String {
        let mut names: Vec<&str> = self.0.values().map(|table| table.name.as_str()).collect();
        names.sort_unstable();
        if names.is_empty() {
            return "there is none".to_owned();
        }
        let text = |name: &str| format!("'{}'", name.as_bytes().escape_ascii());
        let shown: Vec<String> = names.iter().take(NAMED_MOST).map(|name| text(name)).collect();
        let more = match names.len().saturating_sub(NAMED_MOST) {
            0 => String::new(),
            more => format!(" and {more} more (EMB.TABLES lists them)"),
        };
        let distance = |other: &&str| distance(name, other.as_bytes());
        let near = names.iter().copied().min_by_key(distance);
        let near = near.filter(|near| distance(near) <= 1 + name.len() / 4);
        let meant = near.map_or(String::new(), |near| format!("; did you mean {}?", text(near)));
        format!("there are {}{more}{meant}", shown.join(", "))
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
    /// The catalog of a store.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_near_is_meant() {
        let far = usize::MAX;
        for (one, other, expected) in [
            ("itmes", "items", 1),
            ("item", "items", 1),
            ("items", "items", 0),
            ("users", "items", 3),
            ("", "items", 5),
            ("a", "a name that is much longer", far),
        ] {
            assert_eq!(distance(one.as_bytes(), other.as_bytes()), expected, "{one} {other}");
        }
    }
}
