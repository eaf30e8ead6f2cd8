//! Upkeep: cleaning of the top, and merges of the top into the bottom.
//!
//! A merge is due when the top has more than its share of all rows. The partition that is merged is
//! the one of which the top has most rows for each byte that has to be written. Rows that come to
//! the top pay for steps of the merge, as many as the bytes that they make it write.

use super::bottom::{
    BUILDER_BYTES_PER_ROW, Edit, Merge, MergePlan, Partition, Place, PlaceRange, Taken, file_name,
};
use super::create::shape;
use super::newest::{Newest, TOMBSTONE, ToMerge};
use super::unit::{GivenOut, MergeUnit};
use super::{IN_BOTTOM, Lsm};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{BLOCK_BYTES, Buffers, pow2_below};
use crate::storage::log::MERGE_PORTIONS;
use crate::storage::{
    PageReader, Residents, SpaceBound, StorageCounts, StorageRead, StorageUpkeep, Unit, UnitReport,
    Written,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Segments of rows that the top may have in any case.
const TOP_SEGMENTS_MIN: u64 = 2;
/// Beyond so many times what it may have, every change pays for steps until it has less.
const HURRY: f64 = 1.5;
/// Segments of the top in a partition.
const SEGMENTS_PER_PARTITION: u64 = 8;
/// The longest portion that a step reads and writes.
const PORTION_BYTES_MAX: usize = 256 << 10;
/// A merge takes at most one row out of the top for so many bytes of a portion.
const PORTION_BYTES_PER_ROW: usize = 4;
/// What a row takes while the filter of its file is made: its cell, and then its bits.
const FILTER_BYTES_PER_ROW: usize = BUILDER_BYTES_PER_ROW + 1;
/// Portions of a merge that filters take of what rows that are taken would need.
const FILTER_PORTIONS: usize = 2;
/// Reads of a merge in flight, of old pages and of those of the top each.
const DEPTH: usize = 64;
/// The longest read is this part of a portion.
const LONGEST_PARTS: usize = 4;

/// Progress of upkeep.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    given_out: Option<GivenOut>,
    /// Rows that a merge has taken and the top may still have, the next one last.
    taken: Vec<Taken>,
    /// Until all of them are dropped, no slot of theirs gets another row: it would be dropped, too.
    taken_ticket: Option<u64>,
    /// Bytes of merging that rows have paid for.
    credit: u64,
    /// A commit has found a unit under way, which goes on to its end: until then no segment of the
    /// top that became free meanwhile can be used again, or given back.
    is_to_end: bool,
    portion_bytes: usize,
    merged: Merges,
    /// Rows that had come to the top when a merge began that took all that it found in the range of
    /// a partition, by the number of the partition's file. Later rows are the most that the range
    /// can have: what the index tells of a range counts neighbours, too, and one that is merged for
    /// these would be merged for ever.
    came_before: BTreeMap<u32, u64>,
    /// Whether files that a crash has left were removed.
    is_tidy: bool,
    /// Tombstones take too much memory: merges go on until none is left, and wait for nothing.
    drops_tombstones: bool,
}

/// What merges did since open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Merges {
    /// Merges whose outcome was taken over.
    pub(super) merges: u64,
    /// Rows of the files that they wrote.
    pub(super) rows: u64,
    /// Pages of these.
    pub(super) pages: u64,
}

impl Upkeep {
    /// Whether a unit under way takes the row at `place`.
    pub(super) fn takes(&self, place: Place) -> bool {
        self.given_out.is_some_and(|unit| unit.takes(place))
    }

    /// Bytes of the disk that count as taken by a unit under way.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.given_out.map_or(0, |unit| unit.bytes)
    }

    /// Memory of a unit, whether one is under way or not: what others took of it meanwhile they
    /// would not give back when one begins. And of what is left of the last.
    pub(super) fn memory_bytes(&self) -> u64 {
        let left = self.taken.capacity() * size_of::<Taken>();
        let came = self.came_before.len() * 2 * size_of::<(u32, u64)>();
        let of_next = (MERGE_PORTIONS * self.portion_bytes) as u64;
        let unit = self.given_out.map_or(0, |unit| unit.memory_bytes).max(of_next);
        unit + (left + came) as u64
    }

    /// Merges are due until no tombstone is left.
    pub(super) fn drop_tombstones_soon(&mut self) {
        self.drops_tombstones = true;
    }

    /// What merges did since open.
    pub(super) fn merged(&self) -> Merges {
        self.merged
    }

    /// Bytes that a step reads together.
    pub(super) fn portion_bytes(&self) -> usize {
        self.portion_bytes.max(4096)
    }

    /// Takes the portion of a plan of the budget.
    pub(super) fn equip(&mut self, portion_bytes: usize) {
        self.portion_bytes = portion_bytes.min(PORTION_BYTES_MAX);
    }
}

impl StorageUpkeep for Lsm {
    fn drop_commits_before(&mut self, oldest_kept: u64) {
        self.upkeep.is_to_end = self.upkeep.given_out.is_some();
        self.top.drop_commits_before(oldest_kept);
        self.bottom.drop_commits_before(oldest_kept);
    }

    fn owe(&mut self, rows: u64) {
        self.top.owe(rows);
        // A row makes its share of a partition be read and written.
        let bytes = (self.facts.row_bytes as f64 / self.facts.merging.top_share) as u64;
        self.upkeep.credit = self.upkeep.credit.saturating_add(2 * rows * bytes);
    }

    fn rows_per_unit(&self) -> u64 {
        self.top.rows_per_unit()
    }

    fn room_for_upkeep(&self, most_bytes: Option<u64>) -> u64 {
        let top = self.top.room_for_upkeep(most_bytes.map(|most| self.left_for_top(most)));
        // A merge writes a partition anew before the old one can go.
        top + most_bytes.map_or(0, |_| self.partition_bytes() * 2)
    }

    fn lacks(&self, bytes: u64, unwritten: u64, spare: u64) -> bool {
        self.top.lacks(bytes, unwritten, spare)
    }

    fn settle(&mut self, most_bytes: u64) -> bool {
        let most = self.left_for_top(most_bytes);
        self.top.settle(most)
    }

    fn clean_unit(
        &mut self,
        bound: SpaceBound,
        rows: u64,
        grow_bytes: u64,
        residents: &dyn Residents,
    ) -> Result<Option<UnitReport>> {
        let bound = match bound {
            SpaceBound::Most(bytes) => SpaceBound::Most(self.left_for_top(bytes)),
            SpaceBound::Beside => SpaceBound::Beside,
        };
        self.top.clean_unit(bound, rows, grow_bytes, residents)
    }

    fn has_units(&self) -> bool {
        true
    }

    fn begin_unit(&mut self, grow_bytes: u64) -> Result<Option<Box<dyn Unit>>> {
        let goes_on = self.upkeep.given_out.is_some() || self.upkeep.taken_ticket.is_some();
        if goes_on || !self.is_due() {
            return Ok(None);
        }
        // Until a merge begins: what none can take is waited for no more.
        let drops_tombstones = std::mem::take(&mut self.upkeep.drops_tombstones);
        self.bottom.remove_files()?;
        if !self.upkeep.is_tidy {
            self.bottom.remove_leftovers(&[])?;
            self.upkeep.is_tidy = true;
        }
        let input = self.pick();
        if input.is_none() && !self.bottom.snapshot().partitions().is_empty() {
            return Ok(None);
        }
        let range = input.as_ref().map_or(PlaceRange::ALL, |input| input.facts().range);
        if self.set_aside.has(range) {
            return Ok(None);
        }
        let tables: Vec<u16> = self.bottom.orders().tables().collect();
        let (newest, found) = Newest::of(self, range, &tables, self.most_per_merge(), false);
        if found.rows == 0 {
            return Ok(None);
        }
        let old = input.as_ref().map_or(0, |input| input.facts().disk_bytes());
        let bytes = old + self.bytes_of_rows(found.rows as u64);
        if bytes > grow_bytes {
            return Ok(None);
        }
        let portion_bytes = self.upkeep.portion_bytes();
        let number = self.bottom.next_number()?;
        let plan = MergePlan {
            shape: shape(&self.facts),
            orders: Arc::clone(self.bottom.orders()),
            range,
            inputs: input.into_iter().collect(),
            changes: found.rows as u64,
            first_number: number,
            merge: self.next_merge(),
            target_bytes: self.partition_bytes(),
            portion_bytes,
        };
        let page_bytes = self.facts.page_bytes;
        let reader = || -> Result<PageReader> {
            // Old pages lie side by side, those of the top hardly.
            let longest = pow2_below(portion_bytes / LONGEST_PARTS).max(page_bytes);
            let buffers = Buffers::sharing(portion_bytes.max(page_bytes), page_bytes, longest);
            let queue = self.medium.queue(buffers.pieces.min(DEPTH), buffers)?;
            Ok(PageReader::new(queue, page_bytes, None, true))
        };
        let writes = Buffers::equal(2, portion_bytes.max(page_bytes));
        let queue = self.medium.queue(2, writes)?;
        let changes = ToMerge::new(newest, reader()?);
        let memory_bytes = (MERGE_PORTIONS * portion_bytes) as u64;
        let merge = Merge::new(Arc::clone(&self.medium), plan, changes, reader()?, queue)?;
        let ticket = self.begin_read();
        let came_before = (found.until == range.last).then(|| self.came());
        let unit = GivenOut { range, bytes, memory_bytes, ticket, came_before };
        self.upkeep.given_out = Some(unit);
        self.upkeep.drops_tombstones = drops_tombstones && !self.tombstones.is_empty();
        Ok(Some(Box::new(MergeUnit { merge })))
    }

    fn owes_steps(&mut self) -> bool {
        if self.upkeep.given_out.is_none() {
            self.upkeep.credit = 0;
            return false;
        }
        let hurries = self.upkeep.is_to_end || self.upkeep.drops_tombstones;
        if hurries || self.rows_to_merge() as f64 > HURRY * self.most_above() as f64 {
            return true;
        }
        let portion = self.upkeep.portion_bytes() as u64;
        let pays = self.upkeep.credit >= portion;
        if pays {
            self.upkeep.credit -= portion;
        }
        pays
    }

    fn install(&mut self, unit: Box<dyn Unit>, _: &dyn Residents) -> Result<UnitReport> {
        let any: Box<dyn Any> = unit;
        let unit = any.downcast::<MergeUnit>().expect("an lsm is given its own unit back");
        let merged = unit.merge.finish();
        let edit = Edit { removed: merged.removed.clone(), added: merged.added.clone() };
        let installed = self.bottom.install(&edit, self.top.epoch(), self.next_ticket);
        if let Err(error) = installed {
            self.end_unit();
            self.remove_unknown(&edit);
            return Err(error);
        }
        self.changes.edit(&edit);
        let unit = self.upkeep.given_out.take();
        self.upkeep.is_to_end = false;
        self.upkeep.taken_ticket = unit.map(|unit| unit.ticket);
        edit.removed.iter().for_each(|number| _ = self.upkeep.came_before.remove(number));
        if let Some(came) = unit.and_then(|unit| unit.came_before) {
            let added = edit.added.iter().map(|facts| (facts.number, came));
            self.upkeep.came_before.extend(added);
        }
        let pages = merged.added.iter().map(|facts| u64::from(facts.pages)).sum();
        let rows = merged.added.iter().map(|facts| facts.rows).sum();
        self.upkeep.merged.merges += 1;
        self.upkeep.merged.rows += rows;
        self.upkeep.merged.pages += pages;
        self.upkeep.taken = merged.taken;
        self.upkeep.taken.reverse();
        Ok(UnitReport { pages, rows_moved: rows })
    }

    fn install_more(&mut self, residents: &dyn Residents) -> Result<bool> {
        for _ in 0..self.top.rows_per_unit() {
            let Some(Taken { table, key, tag }) = self.upkeep.taken.pop() else { break };
            if tag == TOMBSTONE {
                // Set anew meanwhile or not: the bottom has no row of the key.
                self.drop_tombstone(table, key);
            } else if self.top.drop_copy(table, key, tag) {
                residents.moved(table, key, tag, IN_BOTTOM);
            }
        }
        if self.upkeep.taken.is_empty() {
            self.upkeep.taken = Vec::new();
            if let Some(ticket) = self.upkeep.taken_ticket.take() {
                self.end_read(ticket);
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn abandon_unit(&mut self, unit: Box<dyn Unit>, because: Option<Error>) -> Result<()> {
        let any: Box<dyn Any> = unit;
        let unit = any.downcast::<MergeUnit>().expect("an lsm is given its own unit back");
        let met_damage = unit.merge.met_damage();
        let given_out = self.end_unit();
        // What cannot be removed now is left over.
        let abandoned = unit.merge.abandon().inspect_err(|_| self.upkeep.is_tidy = false);
        match (because, given_out) {
            (Some(damage), Some(given_out)) if met_damage => {
                self.set_aside(given_out.range, &damage);
                abandoned
            }
            (Some(error), _) if error.kind() != ErrorKind::Full => Err(error),
            _ => abandoned,
        }
    }

    fn expect_bound(&mut self, is_bounded: bool) {
        self.top.expect_bound(is_bounded);
    }

    fn damage(&self) -> Vec<String> {
        let mut damage = self.top.damage();
        damage.extend_from_slice(self.set_aside.damage());
        damage
    }
}

impl Lsm {
    /// Merges whose outcome was taken over since open.
    #[cfg(test)]
    pub(crate) fn merges(&self) -> u64 {
        self.upkeep.merged().merges
    }

    fn end_unit(&mut self) -> Option<GivenOut> {
        let unit = self.upkeep.given_out.take();
        self.upkeep.is_to_end = false;
        if let Some(GivenOut { ticket, .. }) = unit {
            self.end_read(ticket);
        }
        unit
    }

    /// Removes the files of a merge whose edit was refused: no version names them.
    fn remove_unknown(&mut self, edit: &Edit) {
        for facts in &edit.added {
            if self.medium.remove(&file_name(self.facts.class, facts.number)).is_err() {
                // The next unit looks for leftovers before it begins.
                self.upkeep.is_tidy = false;
            }
        }
    }

    /// What of so many bytes is left for the top.
    fn left_for_top(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.bytes_below())
    }

    /// Rows of the top and tombstones.
    pub(super) fn rows_above(&self) -> u64 {
        self.top.stats().newest_copies + self.tombstones.len() as u64
    }

    /// Rows that the top may have.
    fn most_above(&self) -> u64 {
        let all = self.rows_above() + self.bottom.snapshot().version().rows();
        ((all as f64 * self.facts.merging.top_share) as u64)
            .max(TOP_SEGMENTS_MIN * self.top.rows_per_segment())
    }

    /// Merges are numbered from 1 on.
    fn next_merge(&self) -> u64 {
        let snapshot = self.bottom.snapshot();
        1 + snapshot.version().partitions().iter().map(|facts| facts.merge).max().unwrap_or(0)
    }

    fn is_due(&mut self) -> bool {
        if self.upkeep.drops_tombstones && !self.tombstones.is_empty() {
            return true;
        }
        let most = self.most_above();
        if self.rows_to_merge() > most {
            self.count_aside();
        }
        self.rows_to_merge() > most
    }

    /// Bytes of a partition's pages at most.
    pub(super) fn partition_bytes(&self) -> u64 {
        // Longer ones have more rows in the top than one merge takes, and are written more often.
        let mut rows = self.most_per_merge() as f64 / self.facts.merging.top_share;
        if self.facts.merging.filters {
            let bytes = FILTER_PORTIONS * self.upkeep.portion_bytes();
            rows = rows.min((bytes / FILTER_BYTES_PER_ROW) as f64);
        }
        let most = (rows * self.facts.row_bytes as f64) as u64;
        let usual = SEGMENTS_PER_PARTITION * self.facts.segment_bytes;
        usual.min(most).max(self.facts.segment_bytes)
    }

    /// Rows that a merge takes out of the top at most.
    fn most_per_merge(&self) -> usize {
        let rows = self.upkeep.portion_bytes() / PORTION_BYTES_PER_ROW;
        // What is taken leaves room for the filter of what is written.
        if self.facts.merging.filters { rows / 2 } else { rows }
    }

    /// Bytes of files with so many rows at most, that were not in one before.
    fn bytes_of_rows(&self, rows: u64) -> u64 {
        let per_page = self.top.layout().rows_per_page as u64;
        // Each file has a header, a footer, and a last block that it does not fill.
        let files = 3 + rows * self.facts.row_bytes as u64 / self.partition_bytes();
        let pages = rows.div_ceil(per_page) + 4 * files;
        pages * self.facts.page_bytes as u64 + files * BLOCK_BYTES
    }

    /// Rows that have come to the top since open, those that cleaning moved within it included.
    fn came(&self) -> u64 {
        let Written { rows, rows_moved, .. } = self.top.stats().written;
        rows + rows_moved
    }

    /// The partition of which the top has most rows for each byte; `None` where it has none of any.
    fn pick(&self) -> Option<Arc<Partition>> {
        let came = self.came();
        let score = |partition: &Arc<Partition>| {
            let facts = partition.facts();
            let since = self.upkeep.came_before.get(&facts.number).map_or(came, |at| came - at);
            let tombstones = self.tombstones.count_in(facts.range) as u64;
            let rows = self.rows_above_in(facts.range).min(since) + tombstones;
            rows as f64 / (facts.bytes + self.facts.segment_bytes) as f64
        };
        let snapshot = self.bottom.snapshot();
        let partitions = snapshot.partitions().iter().map(|open| &open.partition);
        let partitions = partitions.filter(|one| !self.set_aside.has(one.facts().range));
        let scored = partitions.map(|partition| (score(partition), partition));
        let best = scored.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|best| best.0 > 0.0);
        best.map(|(_, partition)| Arc::clone(partition))
    }

    /// Rows of a range in the top, nearly: an index partition that lies in two ranges counts in the
    /// one where it begins.
    pub(super) fn rows_above_in(&self, range: PlaceRange) -> u64 {
        let of_table = |table| {
            let first = range.first.max(Place { table, ..Place::MIN });
            let last = range.last.min(Place { table, ..Place::MAX });
            if first > last { 0 } else { self.top.rows_in(table, first.position, last.position) }
        };
        self.bottom.orders().tables().map(of_table).sum()
    }
}
