//! Rows lent out where they lie, of tables whose rows are in mapped memory as callers want them.

use crate::config::TableId;
use crate::error::Result;
use crate::metrics::Timed;
use crate::storage::LentRows;
use crate::store::engine::Table;
use crate::store::verbs::direct::region_of;
use crate::store::verbs::get_put::check_keys;
use crate::store::{Inner, Store};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of a batch where they lie, as they were when they were lent out, whatever is written
/// meanwhile.
///
/// Readers and writers go on beside it. But a writer may come to need the room of rows that were
/// replaced since: it waits then, 5 seconds at most, and is refused as `Full`, which its store does
/// not forgive. So it is to be dropped within a second or two, soon once it
/// [`is_wanted`](Self::is_wanted), and before its thread waits for anything that a writer may hold,
/// as every verb of the store does. It outlasts the store; until it is dropped, the table's region
/// counts as open.
pub struct RowViews {
    rows: LentRows,
    row_bytes: usize,
    missing: Vec<u32>,
    initial: Vec<f32>,
}

impl RowViews {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True where there is no key.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes of the values of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The words that begin with the float32 values of a row, little-endian; behind them may be its
    /// optimizer state. `None` for a key without a row, or a position that there is not.
    pub fn row(&self, position: usize) -> Option<&[AtomicU64]> {
        self.rows.row(position)
    }

    /// Positions of keys without a row, ascending.
    pub fn missing(&self) -> &[u32] {
        &self.missing
    }

    /// The initial values of those, `(missing, embedding_dim)`.
    pub fn initial(&self) -> &[f32] {
        &self.initial
    }

    /// Takes [`missing`](Self::missing) and [`initial`](Self::initial) out.
    pub fn take_missing(&mut self) -> (Vec<u32>, Vec<f32>) {
        (std::mem::take(&mut self.missing), std::mem::take(&mut self.initial))
    }

    /// Whether a writer waits for room that this may hold. Takes no lock.
    pub fn is_wanted(&self) -> bool {
        self.rows.is_wanted()
    }
}

impl fmt::Debug for RowViews {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "RowViews({} rows of {} bytes)", self.len(), self.row_bytes)
    }
}

impl Store {
    /// Lends the rows of all batches out where they lie: of each a table and its `(N,)` keys, which
    /// may repeat. Each row is verified, and the values are those of [`get`](Self::get).
    ///
    /// `None` where one of them cannot be lent, so that all are to be read with `get`: rows that
    /// are not in mapped memory as float32, which those of storage `pmem` and dtype `float32` are;
    /// too many batches that are lent already; or writers that had to wait for lent rows a few
    /// seconds ago.
    ///
    /// *Errors*: those of `get`. *Blocking*: as `get`, but for rows that were lent meanwhile.
    pub fn view(&self, batches: &[(TableId, &[u64])]) -> Result<Option<Vec<RowViews>>> {
        self.inner.check_call()?;
        self.inner.begin_awaited(batches.iter().copied());
        let _timed = Timed::new(&self.inner.metrics.verb_ns);
        let engine = self.inner.planned_engine()?;
        for (table, keys) in batches {
            let table = self.inner.table_of(&engine, *table)?;
            check_keys(table, keys)?;
            if !table.record.spec.storage.is_direct() || !table.layout.is_float32() {
                return Ok(None);
            }
        }
        // From the first to the last nothing here waits for a writer.
        let lend = |(table, keys): &(TableId, &[u64])| {
            self.inner.lend_direct(self.inner.table_of(&engine, *table)?, keys)
        };
        let lent: Result<Option<Vec<RowViews>>> = batches.iter().map(lend).collect();
        if let Ok(Some(lent)) = &lent {
            // Batches that are read with `get` instead are counted there.
            let keys: u64 = lent.iter().map(|views| views.len() as u64).sum();
            let absent: u64 = lent.iter().map(|views| views.missing.len() as u64).sum();
            self.inner.metrics.hits.fetch_add(keys - absent, Ordering::Relaxed);
            self.inner.metrics.first_touches.fetch_add(absent, Ordering::Relaxed);
        }
        self.inner.as_committed(lent)
    }
}

impl Inner {
    /// Lends rows of a region, of a table whose dtype is float32.
    fn lend_direct(&self, table: &Table, keys: &[u64]) -> Result<Option<RowViews>> {
        let Some(rows) = region_of(table)?.views(keys)? else { return Ok(None) };
        let dim = table.layout.embedding_dim();
        let (mut missing, mut initial) = (Vec::new(), Vec::new());
        let mut row = vec![0.0; table.layout.row_words()];
        for (at, key) in keys.iter().enumerate().filter(|(at, _)| rows.row(*at).is_none()) {
            self.fill_initial(table, *key, &mut row);
            missing.push(at as u32);
            initial.extend_from_slice(&row[..dim]);
        }
        Ok(Some(RowViews { rows, row_bytes: dim * size_of::<f32>(), missing, initial }))
    }
}
