//! The newest changes in a range, above the bottom: rows of the top and tombstones, in order.
//!
//! Their slots are looked up under the lock of the class; their pages are read without it, some
//! groups at a time. The index of a growing table does not have the keys; a page has the table and
//! key of each of its rows.

use super::Lsm;
use super::bottom::{Change, Changes, Newer, Orders, Place, PlaceRange};
use super::unit::UnreadPages;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::log::{SlotsOf, TopReader};
use crate::storage::{PageReader, SweptRow};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The tag of a deletion, which has no slot.
pub(super) const TOMBSTONE: u32 = u32::MAX;
/// Upper bound of the share of tombstones among rows and tombstones: one part in this many.
const TOMBSTONE_PART: usize = 4;
/// A merge goes on without so many pages of the top that cannot be read.
const SKIPPED_MAX: usize = 64;
/// A tombstone takes the memory of so many slots.
const SLOTS_PER_TOMBSTONE: usize = size_of::<u64>() / size_of::<u32>();

/// A row that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) place: Place,
    pub(super) key: u64,
    pub(super) slot: u32,
    /// The begin of its words.
    pub(super) at: usize,
}

/// Slots of a table, and which of its groups come next.
struct TableSlots {
    table: u16,
    slots: SlotsOf,
    next_group: usize,
}

impl TableSlots {
    fn group(&self, group: usize) -> Range<usize> {
        let begin = group.checked_sub(1).map_or(0, |before| self.slots.groups[before] as usize);
        begin..self.slots.groups[group] as usize
    }

    /// The slots of the next groups, until there are `most`; none at the end.
    fn take(&mut self, most: usize) -> &[u32] {
        let begin = self.next_group;
        let mut end = begin;
        let first = self.slots.groups.get(begin).map_or(0, |_| self.group(begin).start);
        while end < self.slots.groups.len() {
            let upto = self.group(end).end;
            if end > begin && upto - first > most {
                break;
            }
            end += 1;
        }
        self.next_group = end;
        match end {
            0 => &[],
            end if end == begin => &[],
            end => &self.slots.slots[first..self.group(end - 1).end],
        }
    }
}

/// Positions of tombstones of a table, those that come last first.
struct TombstonesOf {
    table: u16,
    positions: Vec<u64>,
}

/// Rows of the top and tombstones in a range.
pub(super) struct Newest {
    range: PlaceRange,
    orders: Arc<Orders>,
    tables: VecDeque<TableSlots>,
    top: TopReader,
    tombstones: VecDeque<TombstonesOf>,
    /// Rows of the groups at hand, in order, and the next of them.
    rows: Vec<Read>,
    words: Vec<f32>,
    next: usize,
    row_words: usize,
    /// Rows that are read together, about.
    together: usize,
    /// Bytes of pages that were read.
    bytes_read: u64,
    /// Pages that failed before by errors that may pass, and were not read yet.
    tried_again: Vec<u32>,
}

impl Newest {
    /// Looks up what is newer in `range`, at most about `most` rows and tombstones, in `tables`,
    /// which are in order; those whose pages are in memory only where `in_memory` says so. Returns
    /// how many there are at most, and the last place up to which all are among them.
    pub(super) fn of(
        lsm: &Lsm,
        range: PlaceRange,
        tables: &[u16],
        most: usize,
        in_memory: bool,
    ) -> (Self, Found) {
        // A tombstone takes the memory of two slots, so a quarter leaves half of it to rows.
        let cut = lsm.tombstones.in_range(range).nth((most / TOMBSTONE_PART).max(1) - 1);
        let range = PlaceRange { last: cut.unwrap_or(range.last), ..range };
        let of_tombstones = lsm.tombstones.count_in(range);
        let most = most.saturating_sub(SLOTS_PER_TOMBSTONE * of_tombstones).max(1);
        let mut found = Found { rows: 0, until: range.last, left_out: Vec::new() };
        let mut slots: VecDeque<TableSlots> = VecDeque::new();
        for table in tables.iter().copied() {
            let (least, largest) = (Place { table, ..Place::MIN }, Place { table, ..Place::MAX });
            let (first, last) = (range.first.max(least), range.last.min(largest));
            if first > last {
                continue;
            }
            if found.rows >= most {
                found.until = first.previous().unwrap_or(first);
                break;
            }
            let left = most - found.rows;
            let of_table = lsm.top.slots_of(table, first.position, last.position, left, in_memory);
            found.rows += of_table.slots.len();
            let left_out =
                of_table.left_out.iter().filter_map(|slot| lsm.top.entry_in_memory(*slot));
            found.left_out.extend(left_out.map(|(table, key)| lsm.place(table, key)));
            let until = of_table.until;
            if !of_table.slots.is_empty() {
                slots.push_back(TableSlots { table, slots: of_table, next_group: 0 });
            }
            if until < last.position {
                found.until = Place { table, rank: 0, position: until };
                break;
            }
        }
        let covered = PlaceRange { first: range.first, last: found.until };
        // The index of a growing table names neighbours, too.
        found.left_out.retain(|place| covered.contains(*place));
        let mut tombstones: VecDeque<TombstonesOf> = VecDeque::new();
        for Place { table, position, .. } in lsm.tombstones.in_range(covered) {
            found.rows += 1;
            match tombstones.back_mut() {
                Some(last) if last.table == table => last.positions.push(position),
                _ => tombstones.push_back(TombstonesOf { table, positions: vec![position] }),
            }
        }
        for of_table in &mut tombstones {
            of_table.positions.reverse();
            of_table.positions.shrink_to_fit();
        }
        let mut maybe_in_memory = Vec::new();
        if in_memory {
            slots.iter().for_each(|table| maybe_in_memory.extend_from_slice(&table.slots.slots));
        }
        let newest = Self {
            range: covered,
            orders: Arc::clone(lsm.bottom.orders()),
            top: lsm.top.top_reader(&maybe_in_memory),
            tables: slots,
            tombstones,
            rows: Vec::new(),
            words: Vec::new(),
            next: 0,
            row_words: lsm.facts.row_bytes / 4,
            together: (lsm.upkeep.portion_bytes() / lsm.facts.row_bytes).max(1),
            bytes_read: 0,
            tried_again: lsm.set_aside.pages_tried_again(),
        };
        (newest, found)
    }

    /// Makes sure that the next row of the top is in memory, if there is one. A page that cannot be
    /// read is an error, or goes to `skipped`, and is left out.
    pub(super) fn read_on(
        &mut self,
        reader: &mut PageReader,
        mut skipped: Option<&mut Skipped>,
    ) -> Result<()> {
        while self.next == self.rows.len() && !self.tables.is_empty() {
            self.rows.clear();
            self.words.clear();
            self.next = 0;
            let table = self.tables[0].table;
            let slots = self.tables[0].take(self.together);
            if slots.is_empty() {
                self.tables.pop_front();
                continue;
            }
            let mut taken = Taken {
                range: self.range,
                orders: &self.orders,
                rows: &mut self.rows,
                words: &mut self.words,
            };
            let mut read = |slots: &[u32]| {
                let before = (taken.rows.len(), taken.words.len());
                let mut take = |row: SweptRow<'_>| taken.take(row);
                match self.top.read_group(table, slots, reader, &mut take) {
                    Ok(read) => {
                        self.bytes_read += read.bytes;
                        self.tried_again.retain(|page| {
                            !slots.iter().any(|slot| self.top.page_of(*slot) == *page)
                        });
                        Ok(())
                    }
                    Err(error) => {
                        taken.rows.truncate(before.0);
                        taken.words.truncate(before.1);
                        Err(error)
                    }
                }
            };
            match (read(slots), &mut skipped) {
                (Ok(()), _) => {}
                (Err(error), None) => return Err(error),
                (Err(_), Some(skipped)) => {
                    // Reading each page alone finds out which of them failed.
                    let mut slots = slots.to_vec();
                    slots.sort_unstable();
                    for slots in slots.chunk_by(|a, b| self.top.page_of(*a) == self.top.page_of(*b))
                    {
                        if let Err(error) = read(slots) {
                            skipped.add(self.top.page_of(slots[0]), error)?;
                        }
                    }
                }
            }
            self.rows.sort_unstable_by_key(|row| row.place);
        }
        Ok(())
    }

    /// The next row of the top; none at the end, or before [`read_on`](Self::read_on).
    pub(super) fn row(&self) -> Option<Read> {
        self.rows.get(self.next).copied()
    }

    /// The words of a row at hand.
    pub(super) fn words(&self, row: Read) -> &[f32] {
        &self.words[row.at..row.at + self.row_words]
    }

    /// Goes on behind the next row.
    pub(super) fn pass_row(&mut self) {
        self.next += 1;
    }

    /// The next tombstone.
    pub(super) fn tombstone(&self) -> Option<Place> {
        let TombstonesOf { table, positions } = self.tombstones.front()?;
        Some(Place { table: *table, rank: 0, position: *positions.last()? })
    }

    /// Goes on behind the next tombstone, of which the key is returned.
    pub(super) fn pass_tombstone(&mut self) -> Option<u64> {
        let TombstonesOf { table, positions } = self.tombstones.front_mut()?;
        let (table, position) = (*table, positions.pop()?);
        if positions.is_empty() {
            self.tombstones.pop_front();
        }
        self.orders.of(table).map(|order| order.key(position))
    }
}

/// The destination of rows of the top that are read.
struct Taken<'a> {
    range: PlaceRange,
    orders: &'a Orders,
    rows: &'a mut Vec<Read>,
    words: &'a mut Vec<f32>,
}

impl Taken<'_> {
    fn take(&mut self, row: SweptRow<'_>) -> Result<()> {
        let place = self.orders.place(row.table, 0, row.key)?;
        // The index of a growing table names neighbours, too.
        if self.range.contains(place) {
            self.rows.push(Read { place, key: row.key, slot: row.place, at: self.words.len() });
            self.words.extend_from_slice(row.words);
        }
        Ok(())
    }
}

/// Pages of the top that a merge could not read, whose rows stay where they are.
#[derive(Debug, Default)]
pub(super) struct Skipped {
    pub(super) pages: Vec<(u32, Error)>,
}

impl Skipped {
    /// Adds a page; an error where there are too many, which are not damage of one place.
    fn add(&mut self, page: u32, error: Error) -> Result<()> {
        if self.pages.iter().any(|(skipped, _)| *skipped == page) {
            return Ok(());
        }
        if self.pages.len() == SKIPPED_MAX {
            let what = format!("a merge cannot read more than {SKIPPED_MAX} pages: {error}");
            return Err(Error::new(ErrorKind::Io, what));
        }
        self.pages.push((page, error));
        Ok(())
    }
}

/// The findings in a range.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Rows and tombstones at most.
    pub(super) rows: usize,
    /// The last place up to which all are among them.
    pub(super) until: Place,
    /// Rows up to there that are not, because their pages are in memory.
    pub(super) left_out: Vec<Place>,
}

/// The rows that a merge takes out of the top, with the reader that reads them.
pub(super) struct ToMerge {
    newest: Newest,
    reader: PageReader,
    /// The row that was handed out last.
    words: Vec<f32>,
    skipped: Skipped,
}

impl ToMerge {
    pub(super) fn new(newest: Newest, reader: PageReader) -> Self {
        Self { newest, reader, words: Vec::new(), skipped: Skipped::default() }
    }

    /// Pages of the top that could not be read, and those that were to be tried again and were not
    /// read, either.
    pub(super) fn take_unread(&mut self) -> UnreadPages {
        UnreadPages {
            skipped: std::mem::take(&mut self.skipped.pages),
            not_yet: std::mem::take(&mut self.newest.tried_again),
        }
    }

    /// Bytes of pages of the top that were read.
    pub(super) fn bytes_read(&self) -> u64 {
        self.newest.bytes_read
    }
}

impl Changes for ToMerge {
    fn next(&mut self) -> Result<Option<Change<'_>>> {
        let newest = &mut self.newest;
        newest.read_on(&mut self.reader, Some(&mut self.skipped))?;
        let (row, tombstone) = (newest.row(), newest.tombstone());
        if let Some(place) = tombstone
            && row.is_none_or(|row| place < row.place)
            && let Some(key) = newest.pass_tombstone()
        {
            let Place { table, rank, .. } = place;
            return Ok(Some(Change { table, rank, key, newer: Newer::Deleted, tag: TOMBSTONE }));
        }
        let Some(row) = row else { return Ok(None) };
        self.words.clear();
        self.words.extend_from_slice(newest.words(row));
        newest.pass_row();
        let Place { table, rank, .. } = row.place;
        let newer = Newer::Row(&self.words);
        Ok(Some(Change { table, rank, key: row.key, newer, tag: row.slot }))
    }
}
