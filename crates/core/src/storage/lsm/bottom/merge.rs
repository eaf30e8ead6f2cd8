//! Merges the rows of adjacent partitions with newer rows and deletions into new partitions.
//!
//! Old rows are read in portions, new files are written through a few buffers, so that memory is
//! bounded whatever a partition has. A merge stops between portions as long as its caller likes.
//! It changes nothing that exists: the new files count once a version names them.

use super::file::{Facts, Shape, file_name, footer_bytes_most};
use super::old_rows::OldRows;
use super::order::{LastOrder, Orders, Place, PlaceRange};
use super::page_writer::{Finished, Room};
use super::partition::{Partition, Partitions};
use super::version::Version;
use super::writer::PartitionWriter;
use crate::error::{Result, bail};
use crate::io::{BLOCK_BYTES, Medium, Queue};
use crate::storage::{PageLayout, PageReader};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A change that is newer than the partitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Newer<'a> {
    /// A row: its values and state.
    Row(&'a [f32]),
    /// The key was deleted.
    Deleted,
}

/// A key of which something newer is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Change<'a> {
    /// Table of the row.
    pub table: u16,
    /// Its rank.
    pub rank: u8,
    /// Its key.
    pub key: u64,
    /// The change.
    pub newer: Newer<'a>,
    /// The tag by which its owner knows it.
    pub tag: u32,
}

/// Newer rows and deletions in the order of their places, each place once.
pub(crate) trait Changes {
    /// The next one; `None` behind the last.
    fn next(&mut self) -> Result<Option<Change<'_>>>;
}

/// Rows that are appended leave no empty partition behind them if they fill fewer pages.
const PAGES_APPENDED_MIN: u64 = 16;

/// The work of a merge.
pub(crate) struct MergePlan {
    /// The shape of all files.
    pub shape: Shape,
    /// The orders of the tables.
    pub orders: Arc<Orders>,
    /// The places that are merged: those of `inputs` together, all where there are none.
    pub range: PlaceRange,
    /// The partitions to merge, adjacent and in order.
    pub inputs: Vec<Arc<Partition>>,
    /// Upper bound of the number of changes.
    pub changes: u64,
    /// The number of the first new file; the others follow it.
    pub first_number: u32,
    /// The number of this merge, larger than those of its inputs.
    pub merge: u64,
    /// Bytes of pages that a new file has at most, if they hold a row.
    pub target_bytes: u64,
    /// Bytes of old pages that are read at once and merged in one step, at least a page.
    pub portion_bytes: usize,
}

impl MergePlan {
    /// Upper bound of the number of rows.
    fn rows(&self) -> u64 {
        self.inputs.iter().map(|input| input.facts().rows).sum::<u64>() + self.changes
    }

    /// Upper bound of the number of new files.
    pub(crate) fn files(&self) -> Result<u64> {
        let layout = self.shape.layout(self.first_number)?;
        Ok(files_of_merge(self.rows(), &layout, self.target_bytes))
    }

    /// `Full` where its files, all of them if there are as many as there can be, would leave more
    /// partitions than a version may have, or need more numbers than there are.
    pub(crate) fn check_room(&self, version: &Version) -> Result<()> {
        self.numbers()?;
        version.check_room(self.inputs.len(), self.files()? as usize + 1)
    }

    /// Rows at the end that make it leave an empty partition behind them, all in files of so many.
    fn rows_appended_min(&self, rows_per_file: u64, rows_per_page: usize) -> u64 {
        (rows_per_file / 2).max(PAGES_APPENDED_MIN * rows_per_page as u64)
    }

    /// The numbers that its files have, all of them if there are as many as there can be. `Full`
    /// when there are not so many numbers.
    pub(crate) fn numbers(&self) -> Result<RangeInclusive<u32>> {
        // One more may be left empty.
        let (first, files) = (self.first_number, self.files()? + 1);
        match u32::try_from(u64::from(first).saturating_add(files - 1)) {
            Ok(last) => Ok(first..=last),
            Err(_) => {
                let most = u32::MAX;
                bail!(Full, "{files} files from number {first} on, of numbers up to {most}")
            }
        }
    }
}

/// Upper bound of the number of files that a merge of so many rows makes, with `target_bytes` of
/// pages each, beside one that may be left empty.
fn files_of_merge(rows: u64, layout: &PageLayout, target_bytes: u64) -> u64 {
    let pages = (target_bytes / layout.page_bytes as u64).max(1);
    rows.div_ceil(pages.saturating_mul(layout.rows_per_page as u64)).max(1)
}

/// Bytes of the disk that a merge takes at most, which writes so many rows of so many tables to
/// files with `target_bytes` of pages each.
pub(crate) fn merge_bytes_most(
    rows: u64,
    tables: u64,
    layout: &PageLayout,
    target_bytes: u64,
    filters: bool,
) -> u64 {
    let page = layout.page_bytes as u64;
    let files = files_of_merge(rows, layout, target_bytes) + 1;
    // Each file has a page that is not full, and what lies around them.
    let pages = rows.div_ceil(layout.rows_per_page as u64) + files;
    // Rows of a table follow each other, so a file more is at most a section more.
    let footers = footer_bytes_most(tables + files, pages, rows, filters);
    (pages + 2 * files) * page + footers + files * BLOCK_BYTES
}

/// A change that a merge has taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Table of the row.
    pub table: u16,
    /// Its key.
    pub key: u64,
    /// The tag by which its owner knows it.
    pub tag: u32,
}

/// The outcome for the rows of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Old rows that were copied.
    pub kept: u64,
    /// Old rows in whose place a newer one was written.
    pub replaced: u64,
    /// New rows without an older one.
    pub new: u64,
    /// Old rows that a deletion dropped.
    pub deleted: u64,
    /// Deletions of keys that had no row.
    pub vain: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.kept += other.kept;
        self.replaced += other.replaced;
        self.new += other.new;
        self.deleted += other.deleted;
        self.vain += other.vain;
    }
}

/// The result of a merge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// The new partitions, in order. They are durable, and cover the range of the merge.
    pub added: Vec<Facts>,
    /// The numbers of the partitions that they replace.
    pub removed: Vec<u32>,
    /// The changes that it took in, rows and deletions, in order.
    pub taken: Vec<Taken>,
    /// The outcome for each table that had rows, or a change.
    pub counts: BTreeMap<u16, Counts>,
}

impl Merged {
    /// The outcome for the rows of all tables.
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.counts.values().for_each(|counts| total.add(*counts));
        total
    }
}

/// Counts of the table whose rows are being merged: rows of a table follow each other.
#[derive(Debug, Default)]
struct Counting {
    table: u16,
    counts: Counts,
}

/// New rows without an old one among or behind them.
#[derive(Clone, Copy, Debug)]
struct Appended {
    rows: u64,
    last: Place,
}

/// A change that waits until the old rows before it are written.
#[derive(Debug)]
struct Waiting {
    place: Place,
    key: u64,
    deleted: bool,
    tag: u32,
}

/// A merge under way.
pub(crate) struct Merge<C> {
    medium: Arc<dyn Medium>,
    plan: MergePlan,
    old: OldRows,
    changes: C,
    waiting: Option<Waiting>,
    /// The row of the change that waits.
    words: Vec<f32>,
    writer: Option<PartitionWriter>,
    /// The queue of the writer, between two files.
    queue: Option<Box<dyn Queue>>,
    /// The source of space for new files, if not the device.
    room: Option<Arc<dyn Room>>,
    rows_per_file: u64,
    /// Number of appended rows from which on an empty partition is left behind them.
    appended_min: u64,
    appended: Option<Appended>,
    /// The begin of the next file.
    next_first: Place,
    last_order: LastOrder,
    counting: Counting,
    merged: Merged,
    /// Whether the first change was taken.
    begun: bool,
    done: bool,
    failed: bool,
    /// The unreadable place, if it failed for that.
    unread: Option<Unread>,
}

/// A place that a merge could not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Old rows, of the partition with this number.
    Partition(u32),
    /// Changes.
    Changes,
}

/// Notes where an error came of what was read.
fn of_reading<T>(unread: &mut Option<Unread>, at: Unread, read: Result<T>) -> Result<T> {
    if read.is_err() {
        *unread = Some(at);
    }
    read
}

impl<C: Changes> Merge<C> {
    /// Begins a merge, of which nothing is read yet. `reader` reads old pages, and `queue` writes
    /// new ones, in its longest buffers.
    pub(crate) fn new(
        medium: Arc<dyn Medium>,
        plan: MergePlan,
        changes: C,
        reader: PageReader,
        queue: Box<dyn Queue>,
    ) -> Result<Self> {
        check_plan(&plan)?;
        plan.numbers()?;
        let layout = plan.shape.layout(plan.first_number)?;
        // Files of equal length: of rows for one and a bit, the second would be next to nothing.
        let rows_per_file = plan.rows().div_ceil(plan.files()?).max(1);
        let merged = Merged {
            removed: plan.inputs.iter().map(|input| input.facts().number).collect(),
            // Growth would take up to twice that, and both while it is copied.
            taken: Vec::with_capacity(plan.changes as usize),
            ..Default::default()
        };
        Ok(Self {
            medium,
            old: OldRows::new(
                reader,
                Partitions::new(plan.inputs.clone()),
                &layout,
                plan.portion_bytes,
            ),
            words: vec![0.0; plan.shape.row_bytes / 4],
            next_first: plan.range.first,
            appended_min: plan.rows_appended_min(rows_per_file, layout.rows_per_page),
            appended: None,
            plan,
            changes,
            waiting: None,
            writer: None,
            queue: Some(queue),
            room: None,
            rows_per_file,
            last_order: LastOrder::default(),
            counting: Counting::default(),
            merged,
            begun: false,
            done: false,
            failed: false,
            unread: None,
        })
    }

    /// All that it takes of the disk is drawn from `room`.
    pub(crate) fn draw_from(&mut self, room: Arc<dyn Room>) {
        self.room = Some(room);
    }

    /// The source of its changes.
    pub(crate) fn changes(&mut self) -> &mut C {
        &mut self.changes
    }

    /// Bytes of memory that it takes, without the queue of the reader.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        let queue = self.queue.as_ref().map_or(0, |queue| queue.memory_bytes());
        let writer = self.writer.as_ref().map_or(0, PartitionWriter::memory_bytes);
        let taken = self.merged.taken.capacity() * size_of::<Taken>();
        let rows = self.old.memory_bytes() + self.words.len() * 4;
        size_of::<Self>() + rows + taken + queue + writer
    }

    /// Merges a portion; false when all is written and durable. After an error the merge can only
    /// be abandoned, all else is `Poisoned`.
    pub(crate) fn step(&mut self) -> Result<bool> {
        if self.failed {
            bail!(Poisoned, "merge {} continues after an error; abandon it", self.plan.merge);
        }
        if self.done {
            return Ok(false);
        }
        let merged = self.merge_portion();
        self.failed = merged.is_err();
        merged
    }

    /// The unreadable place, if `step` failed for that.
    pub(crate) fn unread(&self) -> Option<Unread> {
        self.unread
    }

    fn merge_portion(&mut self) -> Result<bool> {
        if !std::mem::replace(&mut self.begun, true) {
            self.take_change()?;
        }
        if self.old.is_spent() {
            let read = self.old.read_portion();
            of_reading(&mut self.unread, self.old.input(), read)?;
        }
        let at_end = self.old.is_spent();
        for _ in 0..self.old.portion_rows() {
            let old = of_reading(&mut self.unread, self.old.input(), self.old.peek())?;
            match (old, &self.waiting) {
                (None, None) if at_end => return self.end().map(|()| false),
                // The change may belong behind rows of the next portion.
                (None, _) if !at_end => return Ok(true),
                (Some((place, key)), waiting) => {
                    let order = match waiting {
                        Some(waiting) => place.cmp(&waiting.place),
                        None => Ordering::Less,
                    };
                    match order {
                        Ordering::Less if self.plan.orders.is_dropped(place.table) => {
                            self.counts_of(place.table).deleted += 1;
                            self.old.pass(place);
                        }
                        Ordering::Less => {
                            self.counts_of(place.table).kept += 1;
                            self.appended = None;
                            self.make_writer(place)?;
                            let writer = self.writer.as_mut().expect("a writer was made above");
                            writer.push(&self.plan.orders, place, key, self.old.row())?;
                            self.old.pass(place);
                        }
                        Ordering::Equal => {
                            self.old.pass(place);
                            self.write_change(true)?;
                        }
                        Ordering::Greater => self.write_change(false)?,
                    }
                }
                (None, _) => self.write_change(false)?,
            }
        }
        Ok(true)
    }

    /// Writes the change that waits, if it is a row, and takes the next.
    fn write_change(&mut self, over_old: bool) -> Result<()> {
        let Some(Waiting { place, key, deleted, tag }) = self.waiting.take() else {
            return Ok(());
        };
        let counts = self.counts_of(place.table);
        let counter = match (over_old, deleted) {
            (true, true) => &mut counts.deleted,
            (true, false) => &mut counts.replaced,
            (false, true) => &mut counts.vain,
            (false, false) => &mut counts.new,
        };
        *counter += 1;
        self.merged.taken.push(Taken { table: place.table, key, tag });
        if !deleted {
            self.make_writer(place)?;
            let writer = self.writer.as_mut().expect("a writer was made above");
            writer.push(&self.plan.orders, place, key, &self.words)?;
            self.appended = match (over_old, self.appended) {
                (true, _) => None,
                (false, before) => {
                    Some(Appended { rows: 1 + before.map_or(0, |before| before.rows), last: place })
                }
            };
        }
        self.take_change()?;
        let next = self.waiting.as_ref().map(|waiting| waiting.place);
        assert!(next.is_none_or(|next| place < next), "{next:?} follows {place:?}");
        Ok(())
    }

    /// The counts of a table, which is the last or one behind it in the order.
    fn counts_of(&mut self, table: u16) -> &mut Counts {
        if self.counting.table != table {
            self.note_counts();
            self.counting.table = table;
        }
        &mut self.counting.counts
    }

    /// Adds what was counted to the table's counts.
    fn note_counts(&mut self) {
        let Counting { table, counts } = std::mem::take(&mut self.counting);
        if counts != Counts::default() {
            self.merged.counts.entry(table).or_default().add(counts);
        }
    }

    fn take_change(&mut self) -> Result<()> {
        self.waiting = None;
        let next = of_reading(&mut self.unread, Unread::Changes, self.changes.next())?;
        if let Some(Change { table, rank, key, newer, tag }) = next {
            let place = self.last_order.place(&self.plan.orders, table, rank, key)?;
            let range = &self.plan.range;
            assert!(range.contains(place), "{place:?} lies outside of the merge, {range:?}");
            if let Newer::Row(words) = newer {
                self.words.copy_from_slice(words);
            }
            self.waiting = Some(Waiting { place, key, deleted: newer == Newer::Deleted, tag });
        }
        Ok(())
    }

    /// Makes sure that there is a writer for a row at `place`: a file that is full ends before it.
    fn make_writer(&mut self, place: Place) -> Result<()> {
        if self.writer.as_ref().is_some_and(|writer| writer.rows() == self.rows_per_file) {
            let last = place.previous().expect("a place that follows others has one before it");
            self.finish_file(last)?;
        }
        self.begin_file()
    }

    /// Begins a file where there is none that is being written.
    fn begin_file(&mut self) -> Result<()> {
        if self.writer.is_some() {
            return Ok(());
        }
        let queue = self.queue.take().expect("the last writer has given it back");
        let number = self.plan.first_number + self.merged.added.len() as u32;
        let (shape, merge, first) = (&self.plan.shape, self.plan.merge, self.next_first);
        let medium = &*self.medium;
        let mut writer = PartitionWriter::create(medium, shape, number, merge, first, queue)?;
        writer.expect_rows(self.rows_per_file);
        writer.draw_from(self.room.clone());
        self.writer = Some(writer);
        Ok(())
    }

    fn finish_file(&mut self, last: Place) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let number = self.plan.first_number + self.merged.added.len() as u32;
        match writer.finish(&*self.medium, &self.plan.orders, last) {
            Ok(Finished { facts, queue }) => {
                self.queue = Some(queue);
                self.merged.added.push(facts);
                self.next_first = last.next().unwrap_or(last);
                Ok(())
            }
            Err(error) => {
                // Nobody has its writer any more to abandon it.
                let name = file_name(self.plan.shape.class, number);
                Err(match self.medium.remove(&name) {
                    Ok(()) => error,
                    Err(also) => error.followed_by(format_args!("{name} is left over: {also}")),
                })
            }
        }
    }

    /// The last file ends where the range does, and has to be there even without rows. Behind many
    /// rows that were appended it has none: where a table is loaded in order the next rows follow
    /// these, and their merge writes no row again.
    fn end(&mut self) -> Result<()> {
        self.begin_file()?;
        if let Some(Appended { rows, last }) = self.appended
            && rows >= self.appended_min
            && last < self.plan.range.last
        {
            self.finish_file(last)?;
            self.begin_file()?;
        }
        self.finish_file(self.plan.range.last)?;
        // A power cut would bring back what the new files have taken since.
        if let Some(room) = &self.room {
            room.sync()?;
        }
        self.note_counts();
        self.done = true;
        Ok(())
    }

    /// The result, once `step` has reported that all is written.
    ///
    /// # Panics
    /// Before that.
    pub(crate) fn finish(self) -> Merged {
        assert!(self.done, "a merge is finished before all is written");
        self.merged
    }

    /// Gives the merge up and removes the files that it has written.
    pub(crate) fn abandon(self) -> Result<()> {
        let medium = &*self.medium;
        let mut result = self.writer.map_or(Ok(()), |writer| writer.abandon(medium));
        for facts in &self.merged.added {
            result = result.and(medium.remove(&file_name(self.plan.shape.class, facts.number)));
        }
        result
    }
}

/// Refuses inputs that are not side by side, or not what the range is made of.
fn check_plan(plan: &MergePlan) -> Result<()> {
    let mut next = Some(plan.range.first);
    for input in &plan.inputs {
        let Facts { number, merge, range, .. } = *input.facts();
        if input.is_frozen() {
            bail!(Misuse, "partition {number} is frozen, and a merge takes sorted ones");
        }
        if next != Some(range.first) || merge >= plan.merge {
            bail!(
                Misuse,
                "partition {number} of merge {merge} begins at {:?}, expected one that begins at \
                 {next:?} and is older than merge {}",
                range.first,
                plan.merge
            );
        }
        next = range.last.next();
    }
    if !plan.inputs.is_empty() && next != plan.range.last.next() {
        bail!(Misuse, "the inputs of a merge end before {next:?}, expected {:?}", plan.range.last);
    }
    Ok(())
}
