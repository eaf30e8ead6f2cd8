//! Rows on persistent memory: read and changed in their regions, without cache and class lock.
//!
//! Verbs that only copy values copy them from the region to the output. Others are shown rows on
//! scratch, a portion at a time; what they wrote of it is put back as one batch, whose rows share
//! their fences. A change holds the writer of its region from reading to putting back.

use crate::config::ValuesOut;
use crate::error::{Error, ErrorKind, Result};
use crate::row::RowLayout;
use crate::storage::{Region, RegionWriter};
use crate::store::Inner;
use crate::store::engine::Table;
use crate::store::verbs::rows::{Effect, Keys, RowOp, RowView};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rows that are changed together: as many as share the fences of a region.
const ROWS: usize = 512;
/// Of wide rows fewer, so that scratch stays small.
const SCRATCH_BYTES: usize = 1 << 20;
/// Number of visits ahead for which a verb is asked to prefetch its data for a row.
const PREFETCHED_AHEAD: usize = 16;
/// The origin of a row that a region has, and of one that it has not.
const STORED: Option<u32> = Some(1);
const NONE: Option<u32> = Some(0);

/// The batches of tables whose rows go through the cache.
pub(in crate::store) fn cached_of<'k, 'a>(keys: &'k [Keys<'a>]) -> Cow<'k, [Keys<'a>]> {
    let is_cached = |batch: &&Keys<'_>| !batch.table.record.spec.storage.is_direct();
    match keys.iter().all(|batch| is_cached(&batch)) {
        true => Cow::Borrowed(keys),
        false => Cow::Owned(keys.iter().filter(is_cached).copied().collect()),
    }
}

/// The region of a table.
pub(in crate::store) fn region_of(table: &Table) -> Result<&Arc<Region>> {
    table.region.as_ref().ok_or_else(|| {
        let message = format!(
            "rows of table '{}' with storage \"pmem\" cannot be read here: one process has them \
             open at a time, and another one had when this reader was opened; ask that process \
             (embedrock serve), or close the store there and open it again",
            table.record.spec.name
        );
        Error::new(ErrorKind::Locked, message)
    })
}

impl Inner {
    /// The right to change the rows of these batches that lie in regions, of each with room for its
    /// new keys: `Full` before anything changed.
    pub(in crate::store) fn write_direct<'a>(
        &self,
        batches: &[Keys<'a>],
    ) -> Result<Vec<RegionWriter<'a>>> {
        let is_direct = |batch: &&Keys<'a>| batch.table.record.spec.storage.is_direct();
        let mut direct: Vec<&Keys<'a>> = batches.iter().filter(is_direct).collect();
        // In one order, so that no two callers wait for each other.
        direct.sort_by_key(|batch| batch.table.id());
        let mut writers: Vec<RegionWriter<'a>> = Vec::with_capacity(direct.len());
        for of_table in direct.chunk_by(|one, other| one.table.id() == other.table.id()) {
            let writer = region_of(of_table[0].table)?.write();
            match of_table {
                [batch] => writer.check_room(batch.keys)?,
                // A key of several batches counts once.
                several => {
                    let keys = several.iter().flat_map(|batch| batch.keys).copied();
                    let keys: std::collections::BTreeSet<u64> = keys.collect();
                    writer.check_room(&keys.into_iter().collect::<Vec<_>>())?;
                }
            }
            writers.push(writer);
        }
        Ok(writers)
    }

    /// Hands every row of a batch to `op`, whose writer the caller holds if it changes rows.
    pub(in crate::store) fn visit_direct<O: RowOp>(
        &self,
        (batch, keys): (usize, &Keys<'_>),
        op: &mut O,
    ) -> Result<()> {
        let region = region_of(keys.table)?;
        if O::AHEAD || keys.keys.is_empty() {
            return Ok(());
        }
        if op.changes() {
            return self.change_direct(region, (batch, keys), op);
        }
        let absent = match op.output(batch) {
            Some(output) => self.copy_direct(region, keys, output)?,
            None => self.show_direct(region, (batch, keys), op)?,
        };
        let found = (keys.keys.len() as u64).saturating_sub(absent);
        self.metrics.hits.fetch_add(found, Ordering::Relaxed);
        self.metrics.first_touches.fetch_add(absent, Ordering::Relaxed);
        Ok(())
    }

    /// Copies values to the output; returns how many keys have no row.
    fn copy_direct(
        &self,
        region: &Region,
        Keys { table, keys }: &Keys<'_>,
        mut output: ValuesOut<'_>,
    ) -> Result<u64> {
        let (layout, mut absent) = (&table.layout, 0);
        let mut row = vec![0.0; layout.row_words()];
        if let ValuesOut::Float32(values) = &mut output
            && layout.is_float32()
            && layout.state_words() == 0
        {
            // A row is its values.
            let mut found = vec![false; keys.len()];
            region.get(keys, values, &mut found)?;
            let rows = values.chunks_exact_mut(row.len());
            for ((key, values), found) in keys.iter().zip(rows).zip(found) {
                if !found {
                    self.fill_initial(table, *key, values);
                    absent += 1;
                }
            }
            return Ok(absent);
        }
        region.visit(keys, &mut row, |at, words, found| {
            if !found {
                self.fill_initial(table, keys[at], words);
                absent += 1;
            }
            copy_row(layout, words, &mut output, at);
        })?;
        Ok(absent)
    }

    /// Shows rows to a verb that changes none; returns how many keys have none.
    fn show_direct<O: RowOp>(
        &self,
        region: &Region,
        (batch, Keys { table, keys }): (usize, &Keys<'_>),
        op: &mut O,
    ) -> Result<u64> {
        let mut absent = 0;
        let mut row = vec![0.0; table.layout.row_words()];
        region.visit(keys, &mut row, |at, words, found| {
            if !found {
                self.fill_initial(table, keys[at], words);
                absent += 1;
            }
            let origin = if found { STORED } else { NONE };
            op.visit(batch, at, RowView { words, written: found, blank: false, origin });
        })?;
        Ok(absent)
    }

    /// Reads rows, shows them to a verb and puts back what it wrote. Keys are distinct.
    fn change_direct<O: RowOp>(
        &self,
        region: &Arc<Region>,
        (batch, Keys { table, keys }): (usize, &Keys<'_>),
        op: &mut O,
    ) -> Result<()> {
        let width = table.layout.row_words();
        let together = (SCRATCH_BYTES / (4 * width)).clamp(1, ROWS).min(keys.len());
        let mut words = vec![0.0; together * width];
        let mut found = vec![false; together];
        let (mut wrote, blank) = (Vec::with_capacity(together), op.blind());
        for (part, keys) in keys.chunks(together).enumerate() {
            let (begin, found) = (part * together, &mut found[..keys.len()]);
            let words = &mut words[..keys.len() * width];
            match blank {
                true => region.contains(keys, found)?,
                false => region.get(keys, words, found)?,
            }
            wrote.clear();
            let mut new = 0;
            for (i, key) in keys.iter().enumerate() {
                if i + PREFETCHED_AHEAD < keys.len() {
                    op.prefetch(batch, begin + i + PREFETCHED_AHEAD);
                }
                let row = &mut words[i * width..][..width];
                if !found[i] && !blank {
                    self.fill_initial(table, *key, row);
                }
                let origin = if found[i] { STORED } else { NONE };
                let view = RowView { words: row, written: found[i], blank, origin };
                if op.visit(batch, begin + i, view) == Effect::Wrote {
                    new += u64::from(!found[i]);
                    let to = wrote.len();
                    wrote.push(*key);
                    if to < i {
                        words.copy_within(i * width..(i + 1) * width, to * width);
                    }
                }
            }
            // The caller holds the writer.
            region.put_held(&wrote, &words[..wrote.len() * width], new)?;
            table.rows.fetch_add(new, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Deletes rows and returns how many there were. The engine is taken alone.
    pub(in crate::store) fn delete_direct(&self, table: &Table, keys: &[u64]) -> Result<u64> {
        let writer = region_of(table)?.write();
        let _guard = self.poison_on_panic();
        let deleted = self.poison_on_error(writer.remove(keys))?;
        table.rows.fetch_sub(deleted, Ordering::Relaxed);
        table.changes.fetch_add(1, Ordering::Relaxed);
        Ok(deleted)
    }
}

fn copy_row(layout: &RowLayout, words: &[f32], output: &mut ValuesOut<'_>, at: usize) {
    let dim = layout.embedding_dim();
    match output {
        ValuesOut::Float32(values) => layout.read_values(words, &mut values[at * dim..][..dim]),
        ValuesOut::Bits(bits) => bits[at * dim..][..dim].copy_from_slice(layout.bits(words)),
    }
}
