//! Recovery: what the journal says of one row class becomes its log.
//!
//! Indexes are put together from pieces and changes, in the order of the journal. On the way it is
//! noted which outdated copies the kept commits have and where the fillings of segments began, so
//! that no page is read. Nothing is written.

use super::delta::{Decoded, Delta, DenseRow, decode, id_of};
use super::file::check_header;
use super::fillings::Fillings;
use super::{ClassLog, Segments, TableIndex};
use crate::config::{Merging, StorageKind};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::hash::mix;
use crate::index::{DenseIndex, SparseIndex};
use crate::io::{File, Medium};
use crate::storage::{
    ClassFacts, Hearer, OpenAt, PageLayout, Storage, StorageRecovery, StorageRefresh, TableFacts,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Deltas that are decoded before the first of them is applied: the time that a word of the index
/// takes to come from memory.
const BLOCK_DELTAS: usize = 32;

/// The log of one row class while the journal is replayed.
pub(crate) struct LogRecovery {
    facts: ClassFacts,
    layout: PageLayout,
    /// By id, ascending.
    tables: Vec<RecoveredTable>,
    /// Tables that were dropped, and whether they were growing ones.
    dropped: Vec<(u16, bool)>,
    /// By id, where a table is among `tables`; 0 for ids of other classes, too.
    positions: Vec<u16>,
    fillings: Fillings,
    /// Outdated copies that kept commits still have.
    retained: Vec<Retained>,
    /// The oldest commit that is kept.
    oldest: u64,
    epoch: u64,
    /// Slots written in this epoch: first → one past the last.
    written: BTreeMap<u32, u32>,
    /// Table, and part of its index, that is copied next from an open log.
    next_part: (usize, usize),
}

struct RecoveredTable {
    id: u16,
    name: String,
    index: TableIndex,
    /// The missing pieces; `None` if there are none.
    missing: Option<Vec<bool>>,
}

/// The first epoch of a recovery, and the oldest commit it keeps.
struct Begin {
    epoch: u64,
    /// The oldest commit that is kept.
    oldest: u64,
}

/// A copy that was outdated in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Retained {
    epoch: u64,
    slot: u32,
}

impl StorageRecovery for LogRecovery {
    fn table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        if facts.num_embeddings.is_none() && facts.partitions.is_none() {
            bail!(Corrupt, "growing table '{}' has no partitions", facts.name);
        }
        let index = TableIndex::empty(facts)?;
        let all = || vec![true; index.pieces() as usize];
        let missing = (!facts.born).then(all).filter(|missing| !missing.is_empty());
        self.push(facts, index, missing);
        Ok(())
    }

    fn drop_table(&mut self, facts: &TableFacts<'_>) -> Result<()> {
        self.dropped.push((facts.table, facts.num_embeddings.is_none()));
        let Some(at) = self.position_of(facts.table) else { return Ok(()) };
        let dropped = self.tables.remove(at);
        for (at, table) in self.tables.iter().enumerate() {
            self.positions[usize::from(table.id)] = at as u16;
        }
        if self.epoch > self.oldest {
            let epoch = self.epoch;
            let kept = dropped.index.slots().filter(|slot| !self.was_written(*slot));
            let kept: Vec<Retained> = kept.map(|slot| Retained { epoch, slot }).collect();
            self.retained.extend(kept);
        }
        Ok(())
    }

    fn grow_table(&mut self, table: u16, num_embeddings: u64) -> Result<()> {
        let Some(at) = self.position_of(table) else {
            bail!(Corrupt, "table {table} has grown, which does not exist");
        };
        let table = &mut self.tables[at];
        table.index.grow(num_embeddings)?;
        // Its pieces are being written: those of the new ids come with the others.
        if let Some(missing) = &mut table.missing {
            missing.resize(table.index.pieces() as usize, true);
        }
        Ok(())
    }

    fn piece(&mut self, table: u16, piece: u32, bytes: &[u8]) -> Result<()> {
        let Some(at) = self.position_of(table) else {
            bail!(Corrupt, "a piece names table {table}, which does not exist");
        };
        let table = &mut self.tables[at];
        table.index.load_piece(piece, bytes)?;
        if let Some(missing) = &mut table.missing
            && let Some(flag) = missing.get_mut(piece as usize)
            && std::mem::replace(flag, false)
            && !missing.contains(&true)
        {
            table.missing = None;
        }
        Ok(())
    }

    fn changes(&mut self, bytes: &[u8], mut changed: Hearer<'_>) -> Result<()> {
        let mut kinds = vec![None; self.positions.len()];
        for table in &self.tables {
            kinds[usize::from(table.id)] = Some(table.index.is_sparse());
        }
        let kind = |table: u16| kinds.get(usize::from(table)).copied().flatten();
        let mut block = Vec::with_capacity(BLOCK_DELTAS);
        decode(bytes, &kind, &mut |decoded| match decoded {
            Decoded::One(delta) => {
                if let Delta::Row { table, key, slot, .. } = delta {
                    self.fillings.appended(u64::from(slot)..u64::from(slot) + 1);
                    self.tables[self.known_position_of(table)].index.prefetch(key);
                }
                block.push(delta);
                if block.len() < BLOCK_DELTAS {
                    return Ok(());
                }
                block.drain(..).try_for_each(|delta| self.delta(delta, &mut changed))
            }
            Decoded::Dense { table, first, rows } => {
                self.fillings.appended(u64::from(first)..u64::from(first) + rows.len() as u64);
                block.drain(..).try_for_each(|delta| self.delta(delta, &mut changed))?;
                self.dense_rows(table, first, rows, &mut changed)
            }
        })?;
        block.drain(..).try_for_each(|delta| self.delta(delta, &mut changed))
    }

    fn commit(&mut self, number: u64, began: Option<u64>) {
        self.fillings.commit(began);
        self.epoch = number + 1;
        self.written.clear();
    }

    fn check_complete(&self) -> Result<()> {
        for table in &self.tables {
            if let Some(missing) = &table.missing {
                let count = missing.iter().filter(|missing| **missing).count();
                bail!(
                    Corrupt,
                    "the journal lacks {count} pieces of the index of table {}",
                    table.id
                );
            }
        }
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        at: &OpenAt,
        file: Arc<dyn File>,
        medium: &Arc<dyn Medium>,
    ) -> Result<Box<dyn Storage>> {
        Ok(Box::new(self.finish_log(at, file, medium)?))
    }
}

impl LogRecovery {
    /// Begins with a class without tables, in `epoch`. `fillings` is what its record says of the
    /// begin of fillings; commits before `oldest` are not kept.
    pub(crate) fn new(facts: &ClassFacts, fillings: &str, epoch: u64, oldest: u64) -> Result<Self> {
        let ClassFacts { class, row_bytes, page_bytes, segment_bytes, seed, .. } = *facts;
        let layout = PageLayout::new(page_bytes, row_bytes, class, seed)?;
        let pages = segment_bytes / page_bytes as u64;
        let fillings = Fillings::new(layout.rows_per_page, pages, fillings)?;
        let begin = Begin { epoch, oldest };
        Ok(Self::with_fillings(*facts, layout, fillings, begin))
    }

    fn with_fillings(
        facts: ClassFacts,
        layout: PageLayout,
        fillings: Fillings,
        begin: Begin,
    ) -> Self {
        let Begin { epoch, oldest } = begin;
        Self {
            facts,
            layout,
            tables: Vec::new(),
            dropped: Vec::new(),
            positions: Vec::new(),
            fillings,
            retained: Vec::new(),
            oldest,
            epoch,
            written: BTreeMap::new(),
            next_part: (0, 0),
        }
    }

    /// The log of the class at a commit, in its file, with the smallest buffers.
    pub(crate) fn finish_log(
        mut self,
        at: &OpenAt,
        file: Arc<dyn File>,
        medium: &Arc<dyn Medium>,
    ) -> Result<ClassLog> {
        self.check_complete()?;
        check_header(&*file, &self.facts)?;
        let ClassFacts { page_bytes, segment_bytes, .. } = self.facts;
        let per_segment = segment_bytes / page_bytes as u64;
        // The file grows by whole segments, and a commit makes its length durable.
        let pages = file.len()? / segment_bytes * per_segment;
        let rows_per_page = self.layout.rows_per_page as u32;
        let epoch = at.commit + 1;
        let mut segments = Segments::new(per_segment as u32, rows_per_page, epoch);
        for _ in 0..pages / per_segment {
            segments.grow();
        }
        self.count_copies(&mut segments, file.name(), pages)?;
        segments.recovered(epoch).map_err(|error| error.context(file.name()))?;
        segments.recovered_firsts(self.fillings.firsts(), at.position);
        let sequence = match at.write_after {
            Some(sequence) => at.position.max(sequence),
            None => {
                self.layout.sequence_max = at.position;
                at.position
            }
        };
        let mut log = ClassLog::bare(self.layout, file, segment_bytes, segments, sequence, medium)?;
        for table in self.tables {
            log.add_table(table.id, table.index);
        }
        log.fit_indexes(log.slots_with(0))?;
        log.dropped = self.dropped;
        Ok(log)
    }

    fn push(&mut self, facts: &TableFacts<'_>, index: TableIndex, missing: Option<Vec<bool>>) {
        let (id, name) = (facts.table, facts.name.to_owned());
        self.positions.resize(usize::from(id) + 1, 0);
        self.positions[usize::from(id)] = self.tables.len() as u16;
        self.tables.push(RecoveredTable { id, name, index, missing });
    }

    /// The place of a table among those of this class.
    fn position_of(&self, table: u16) -> Option<usize> {
        let at = usize::from(*self.positions.get(usize::from(table))?);
        self.tables.get(at).filter(|found| found.id == table).map(|_| at)
    }

    fn known_position_of(&self, table: u16) -> usize {
        self.position_of(table).expect("the decoder checked the table")
    }

    /// Rows of a dense table, stored from `first` on. If no commit before the target is kept and no
    /// piece is missing, only the index changes, and all rows are set at once.
    fn dense_rows(
        &mut self,
        table: u16,
        first: u32,
        rows: &[DenseRow],
        changed: &mut Hearer<'_>,
    ) -> Result<()> {
        let at = self.known_position_of(table);
        let plain = self.epoch <= self.oldest && self.tables[at].missing.is_none();
        if plain && let TableIndex::Dense(index) = &mut self.tables[at].index {
            let most = rows.iter().map(id_of).max().unwrap_or(0);
            check_id(index, u64::from(most))?;
            index.set_all(rows, id_of, first);
            if let Some(changed) = changed {
                rows.iter().for_each(|row| changed(table, u64::from(id_of(row))));
            }
            return Ok(());
        }
        for (row, slot) in rows.iter().zip(first..) {
            let delta = Delta::Row { table, key: u64::from(id_of(row)), old: 0, slot };
            self.delta(delta, changed)?;
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta, changed: &mut Hearer<'_>) -> Result<()> {
        let (Delta::Row { table, .. }
        | Delta::Delete { table, .. }
        | Delta::Refresh { table, .. }
        | Delta::Split { table }
        | Delta::Merge { table }) = delta;
        let at = self.known_position_of(table);
        let found = &mut self.tables[at];
        let missing = found.missing.as_mut();
        let outdated = match &mut found.index {
            TableIndex::Dense(index) => dense(index, missing.as_deref(), delta)?,
            TableIndex::Sparse(index, salt) => sparse(index, *salt, missing, delta)?,
        };
        if let Delta::Row { slot, .. } = delta {
            self.note_written(slot);
        }
        if let (Delta::Row { key, .. } | Delta::Delete { key, .. }, Some(changed)) =
            (delta, changed)
        {
            changed(table, key);
        }
        if outdated != 0 && self.epoch > self.oldest && !self.was_written(outdated) {
            self.retained.push(Retained { epoch: self.epoch, slot: outdated });
        }
        Ok(())
    }

    fn note_written(&mut self, slot: u32) {
        if self.epoch <= self.oldest {
            return;
        }
        if let Some((_, end)) = self.written.range_mut(..=slot).next_back()
            && *end >= slot
        {
            *end = (*end).max(slot + 1);
            return;
        }
        self.written.insert(slot, slot + 1);
    }

    fn was_written(&self, slot: u32) -> bool {
        let before = self.written.range(..=slot).next_back();
        before.is_some_and(|(_, end)| slot < *end)
    }

    /// Counts which slots the opened commit and the kept ones before it hold.
    fn count_copies(&self, segments: &mut Segments, file: &str, pages: u64) -> Result<()> {
        let page_of = |slot: u32| slot / self.layout.rows_per_page as u32;
        let fits = |slot: u32| u64::from(page_of(slot)) < pages;
        let rows_per_page = self.layout.rows_per_page as u64;
        for RecoveredTable { name, index, .. } in &self.tables {
            if let TableIndex::Dense(index) = index
                && !index.is_packed()
                && segments.recovered_all(
                    index.num_embeddings() as usize,
                    |id| index.get(id as u64),
                    rows_per_page..pages * rows_per_page,
                )
            {
                continue;
            }
            for slot in index.slots() {
                if page_of(slot) == 0 {
                    bail!(
                        Corrupt,
                        "table '{name}' has a row at slot {slot} of {file}, where its header is"
                    );
                }
                if !fits(slot) {
                    bail!(
                        Corrupt,
                        "{file} was truncated: table '{name}' has rows in page {}, the file has \
                         {pages} pages; restore from a copy",
                        page_of(slot)
                    );
                }
                segments.recovered_newest(slot);
            }
        }
        for Retained { epoch, slot } in self.retained.iter().filter(|r| fits(r.slot)) {
            segments.recovered_retained(*slot, *epoch);
        }
        Ok(())
    }
}

/// A reader that moves on: a recovery begins with a copy of the log's indexes, and goes on there.
impl StorageRefresh for ClassLog {
    fn go_on(
        &self,
        tables: &[TableFacts<'_>],
        epoch: u64,
        oldest: u64,
    ) -> Result<Box<dyn StorageRecovery>> {
        Ok(Box::new(self.go_on_log(tables, epoch, oldest)?))
    }

    fn copy_more(&self, into: &mut dyn StorageRecovery) -> bool {
        let any: &mut dyn Any = into;
        self.copy_more_of_log(any.downcast_mut().expect("a log is given a recovery of a log"))
    }
}

impl ClassLog {
    /// As [`StorageRefresh::go_on`].
    pub(crate) fn go_on_log(
        &self,
        tables: &[TableFacts<'_>],
        epoch: u64,
        oldest: u64,
    ) -> Result<LogRecovery> {
        let layout = PageLayout { sequence_max: u64::MAX, ..self.layout().clone() };
        let PageLayout { class, row_bytes, page_bytes, seed, .. } = layout;
        let segment_bytes = self.segment_bytes;
        let facts = ClassFacts {
            class,
            kind: StorageKind::Log,
            row_bytes,
            page_bytes,
            segment_bytes,
            seed,
            merging: Merging::default(),
        };
        let pages = segment_bytes / page_bytes as u64;
        let fillings = Fillings::going_on(layout.rows_per_page, pages, self.segments.firsts());
        let begin = Begin { epoch, oldest };
        let mut recovery = LogRecovery::with_fillings(facts, layout, fillings, begin);
        recovery.dropped.clone_from(&self.dropped);
        for facts in tables {
            recovery.push(facts, self.index(facts.table).empty_copy()?, None);
        }
        Ok(recovery)
    }

    /// As [`StorageRefresh::copy_more`].
    pub(crate) fn copy_more_of_log(&self, into: &mut LogRecovery) -> bool {
        let (at, part) = into.next_part;
        let Some(table) = into.tables.get_mut(at) else { return false };
        let has_more = self.index(table.id).copy_part(part, &mut table.index);
        into.next_part = if has_more { (at, part + 1) } else { (at + 1, 0) };
        into.next_part.0 < into.tables.len()
    }
}

#[cfg(test)]
impl ClassLog {
    /// Of every segment with newest copies, its number and the least sequence of its first page.
    pub(crate) fn fillings_in_use(&self) -> Vec<(u32, u64)> {
        let firsts = (0..).zip(self.segments.firsts());
        firsts.filter(|(id, _)| self.segments.newest_of(*id) > 0).collect()
    }
}

fn check_id(index: &DenseIndex, id: u64) -> Result<()> {
    if id >= index.num_embeddings() {
        bail!(Corrupt, "a delta names id {id} of {}", index.num_embeddings());
    }
    Ok(())
}

/// Applies a delta to a dense index; returns the slot it outdated.
fn dense(index: &mut DenseIndex, missing: Option<&Vec<bool>>, delta: Delta) -> Result<u32> {
    let (key, slot) = match delta {
        Delta::Row { key, slot, .. } => (key, slot),
        Delta::Delete { key, .. } => (key, 0),
        _ => bail!(Corrupt, "a dense table has a delta of a growing one"),
    };
    check_id(index, key)?;
    if missing.is_some_and(|m| m[index.piece_of(key)]) {
        return Ok(0);
    }
    Ok(index.set(key, slot))
}

/// Applies a delta to a growing table's index; returns the slot it outdated.
fn sparse(
    index: &mut SparseIndex,
    salt: u64,
    mut missing: Option<&mut Vec<bool>>,
    delta: Delta,
) -> Result<u32> {
    let skip = |missing: &Option<&mut Vec<bool>>, index: &SparseIndex, key: u64| {
        let partition = index.partition_of(mix(key, salt)) as usize;
        missing.as_ref().is_some_and(|m| m[partition])
    };
    let lost = |key: u64, slot: u32| {
        let what = format!("key {key} is not indexed at slot {slot}, as its delta says");
        Error::new(ErrorKind::Corrupt, what)
    };
    match delta {
        Delta::Row { key, old, slot, .. } => {
            if skip(&missing, index, key) {
                return Ok(0);
            }
            if old == 0 {
                index.insert(mix(key, salt), slot);
            } else if !index.replace(mix(key, salt), old, slot) {
                return Err(lost(key, old));
            }
            Ok(old)
        }
        Delta::Delete { key, old, .. } => {
            if skip(&missing, index, key) {
                return Ok(0);
            }
            if !index.remove(mix(key, salt), old) {
                return Err(lost(key, old));
            }
            Ok(old)
        }
        Delta::Refresh { key, slot, .. } => {
            if !skip(&missing, index, key) && !index.replace(mix(key, salt), slot, slot) {
                return Err(lost(key, slot));
            }
            Ok(0)
        }
        Delta::Split { .. } => {
            let split = index.split(&mut |slot| {
                bail!(Corrupt, "the index entry of slot {slot} has no tag bits left")
            })?;
            if let Some(missing) = &mut missing {
                let parent = missing[split.parent as usize];
                missing.push(parent);
            }
            Ok(0)
        }
        Delta::Merge { .. } => {
            if missing.is_some() || index.merge().is_none() {
                bail!(Corrupt, "a partition was merged while its index was being written");
            }
            Ok(0)
        }
    }
}

#[cfg(test)]
mod tests;
