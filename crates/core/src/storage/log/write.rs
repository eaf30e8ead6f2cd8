//! Dirty rows on their way to storage: those that wait, writing them, and deletes.

use super::delta::Delta;
use super::{ClassLog, Segments, Stream, TableIndex, Writer};
use crate::activation::{Branch, note};
use crate::error::{Result, bail};
use crate::hash::mix;
use crate::io::File;
use crate::planted::{self, Bug};
use crate::storage::{DirtyRow, PageLayout, StorageWrite};
use std::sync::Arc;

/// A row is hot when its last copy lived while this share of a table's rows was written. Shares
/// from 0.15 to 0.5 moved equally many rows.
const HOT_SHARE: f64 = 0.25;

impl StorageWrite for ClassLog {
    fn parked(&self) -> usize {
        self.buffer.len()
    }

    fn room(&self) -> usize {
        self.buffer.free()
    }

    #[inline]
    fn park(&mut self, row: DirtyRow<'_>) {
        self.buffer.push(row);
    }

    #[inline]
    fn is_parked(&self, table: u16, key: u64) -> bool {
        self.buffer.find(table, key).is_some()
    }

    #[inline]
    fn unpark(&mut self, table: u16, key: u64) -> bool {
        self.buffer.remove(table, key)
    }

    fn write_place(&self, _: u16, _: u64) -> u64 {
        0
    }

    fn sorts_writes(&self) -> bool {
        false
    }

    fn flush(&mut self, now: u32) -> Result<u64> {
        let mut order = std::mem::take(&mut self.order);
        self.buffer.longest_dirty_first(now, &mut order);
        if self.writer.stretch_points().is_some() {
            // Neighbouring slots share what the journal says of them.
            self.buffer.sort_by_stretch(&mut order);
        }
        self.order = order;
        self.flush_in_order()
    }

    fn append(&mut self, row: DirtyRow<'_>) -> Result<u32> {
        let DirtyRow { table, key, origin, stretch, words, .. } = row;
        let for_stretch = stretch.and_then(|stretch| {
            self.writer.append_for(&mut self.segments, stretch, (table, key), words)
        });
        let slot = match for_stretch {
            Some(slot) => {
                note(Branch::WrittenForStretch);
                slot?
            }
            None => {
                let stream = match self.separates {
                    true => self.stream_of(table, key, origin),
                    false => Stream::Flushed,
                };
                self.writer.append(&mut self.segments, stream, table, key, words)?
            }
        };
        self.rows_written += 1;
        self.publish(table, key, origin, slot)?;
        Ok(slot)
    }

    fn delete(&mut self, table: u16, key: u64, origin: Option<u32>) {
        let slot = origin.unwrap_or_else(|| self.index(table).slot_of(key));
        if slot == 0 {
            return;
        }
        self.forget(table, key, slot);
        *self.deleted.entry(self.segments.epoch()).or_default() += 1;
    }

    fn shrink_index(&mut self, table: u16, most: usize) {
        let mut merged = 0;
        if let TableIndex::Sparse(index, _) = self.index_mut(table) {
            while merged < most && index.needs_merge() && index.merge().is_some() {
                merged += 1;
            }
        }
        for _ in 0..merged {
            note(Branch::Merged);
            self.deltas.push(Delta::Merge { table }, true);
        }
    }
}

impl ClassLog {
    /// Writes the rows that wait in the order of `place`, given a table and a key.
    pub(crate) fn flush_by(&mut self, place: impl Fn(u16, u64) -> u64) -> Result<u64> {
        let mut order = std::mem::take(&mut self.order);
        self.buffer.longest_dirty_first(0, &mut order);
        order.sort_by_cached_key(|at| {
            let DirtyRow { table, key, .. } = self.buffer.at(*at);
            place(table, key)
        });
        self.order = order;
        self.flush_in_order()
    }

    /// Writes the rows that wait, in the order that was made.
    fn flush_in_order(&mut self) -> Result<u64> {
        let rows = self.buffer.len() as u64;
        let order = std::mem::take(&mut self.order);
        let mut words = std::mem::take(&mut self.scratch);
        for at in &order {
            let row = self.buffer.at(*at);
            words.clear();
            words.extend_from_slice(row.words);
            let row = DirtyRow { words: &[], ..row };
            self.append(DirtyRow { words: &words, ..row })?;
        }
        self.buffer.clear();
        self.order = order;
        self.scratch = words;
        Ok(rows)
    }

    /// Takes a key out of the index, whose newest copy is at `slot`, and notes that it did.
    pub(super) fn forget(&mut self, table: u16, key: u64, slot: u32) {
        let sparse = match self.index_mut(table) {
            TableIndex::Dense(index) => {
                assert_eq!(index.set(key, 0), slot, "a row's origin is its newest copy");
                false
            }
            TableIndex::Sparse(index, salt) => {
                let hash = mix(key, *salt);
                assert!(index.remove(hash, slot), "a row's origin is indexed");
                true
            }
        };
        self.segments.outdated(slot);
        if !planted::is(Bug::DeleteDeltaLost) {
            self.deltas.push(Delta::Delete { table, key, old: slot }, sparse);
        }
    }

    /// The stream of a flushed row when rows are told apart: a row is expected to be rewritten soon
    /// if less than [`HOT_SHARE`] of the newest copies was written while its last copy lived, and
    /// if cleaning did not have to move that copy. (SepBIT, FAST'22: the last lifespan predicts the
    /// next.) Rows that are not told apart stay in order, so that rows read together share pages.
    fn stream_of(&self, table: u16, key: u64, origin: Option<u32>) -> Stream {
        let old = match (origin, self.index(table)) {
            (Some(slot), _) => slot,
            (None, TableIndex::Dense(index)) => index.get(key),
            (None, TableIndex::Sparse(..)) => 0,
        };
        if old == 0 {
            return Stream::Cold;
        }
        let (age, stream) = self.segments.age_of_slot(old);
        let written = (age * self.rows_per_segment()) as f64;
        let soon = written < HOT_SHARE * self.segments.newest_total() as f64;
        if soon && stream != Stream::Moved as u8 { Stream::Flushed } else { Stream::Cold }
    }

    pub(super) fn publish(
        &mut self,
        table: u16,
        key: u64,
        origin: Option<u32>,
        slot: u32,
    ) -> Result<()> {
        let mut split = false;
        let old = match self.index_mut(table) {
            TableIndex::Dense(index) => {
                let old = index.set(key, slot);
                let known = origin.unwrap_or(old);
                assert_eq!(old, known, "a row's origin is its newest stored copy");
                old
            }
            TableIndex::Sparse(index, salt) => {
                let hash = mix(key, *salt);
                let origin = origin.expect("rows of growing tables carry their origin");
                if origin == 0 {
                    index.insert(hash, slot);
                } else {
                    assert!(index.replace(hash, origin, slot), "a row's origin is indexed");
                }
                split = index.needs_split();
                origin
            }
        };
        if old != 0 {
            self.segments.outdated(old);
        }
        let sparse = self.index(table).is_sparse();
        self.deltas.push(Delta::Row { table, key, old, slot }, sparse);
        if split { self.split(table) } else { Ok(()) }
    }

    /// Splits one partition of a growing table's index, and writes down that it did.
    fn split(&mut self, table: u16) -> Result<()> {
        let at = self.position_of(table);
        let (_, index) = &mut self.tables[at];
        let TableIndex::Sparse(index, salt) = index else { return Ok(()) };
        let (layout, file, writer, salt) =
            (&self.pages.layout, &self.pages.file, &self.writer, *salt);
        let segments = &self.segments;
        let mut refreshed = Vec::new();
        index.split(&mut |slot| {
            let key = key_of_slot(layout, file, (writer, segments), table, slot)?;
            refreshed.push((key, slot));
            Ok(mix(key, salt))
        })?;
        for (key, slot) in refreshed {
            self.deltas.push(Delta::Refresh { table, key, slot }, true);
        }
        note(Branch::Split);
        if !planted::is(Bug::SplitNotLogged) {
            self.deltas.push(Delta::Split { table }, true);
        }
        Ok(())
    }
}

#[cfg(test)]
impl ClassLog {
    /// Keys of a table that have a copy here, in no useful order.
    pub(crate) fn keys_of(&self, table: u16) -> Vec<u64> {
        let key = |slot| {
            let (layout, file) = (&self.pages.layout, &self.pages.file);
            key_of_slot(layout, file, (&self.writer, &self.segments), table, slot).unwrap()
        };
        self.index(table).slots().map(key).collect()
    }
}

/// Reads the key of a stored row, for an index entry that ran out of tag bits.
fn key_of_slot(
    layout: &PageLayout,
    file: &Arc<dyn File>,
    (writer, segments): (&Writer, &Segments),
    table: u16,
    slot: u32,
) -> Result<u64> {
    let rows = layout.rows_per_page as u32;
    let (page, at) = (slot / rows, (slot % rows) as usize);
    let (owner, key) = match writer.page(page) {
        Some(bytes) => layout.entry(bytes, at),
        None => {
            let mut bytes = vec![0u8; layout.page_bytes];
            file.read_at(&mut bytes, u64::from(page) * layout.page_bytes as u64)?;
            layout.verify(&bytes, page, file.name())?;
            let expected = segments.sequences_of(page);
            layout.verify_sequence(&bytes, page, file.name(), &expected)?;
            layout.entry(&bytes, at)
        }
    };
    if owner != table {
        bail!(
            Corrupt,
            "{}, slot {slot}: the index says table {table}, the page says table {owner} key {key}; \
             restore from a copy, or open an earlier commit with step=",
            file.name()
        );
    }
    Ok(key)
}
