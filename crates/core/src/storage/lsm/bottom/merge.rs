//! Merges the rows of adjacent partitions with newer rows and deletions into new partitions.
//!
//! Old rows are read in portions, new files are written through a few buffers, so that memory is
//! bounded whatever a partition has. A merge stops between portions as long as its caller likes.
//! It changes nothing that exists: the new files count once a version names them.

use super::file::{Facts, Shape, file_name};
use super::order::{Orders, Place, PlaceRange};
use super::partition::{Partition, Partitions};
use super::writer::{Finished, PartitionWriter};
use crate::error::{Result, bail};
use crate::io::{Medium, Queue};
use crate::storage::{PageAddress, PageLayout, PageReader};
use std::cmp::Ordering;
use std::sync::Arc;

/// Bytes of old pages that are read at once, and are merged in one step.
pub const PORTION_BYTES: usize = 256 << 10;

/// What is newer than the partitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Newer<'a> {
    /// A row: its values and state.
    Row(&'a [f32]),
    /// The key was deleted.
    Deleted,
}

/// A key of which something newer is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change<'a> {
    /// Table of the row.
    pub table: u16,
    /// Its rank.
    pub rank: u8,
    /// Its key.
    pub key: u64,
    /// What became of it.
    pub newer: Newer<'a>,
}

/// Newer rows and deletions in the order of their places, each place once.
pub trait Changes {
    /// The next one; `None` behind the last.
    fn next(&mut self) -> Result<Option<Change<'_>>>;
}

/// What a merge is to do.
pub struct MergePlan {
    /// The shape of all files.
    pub shape: Shape,
    /// The orders of the tables.
    pub orders: Arc<Orders>,
    /// The places that are merged: those of `inputs` together, all where there are none.
    pub range: PlaceRange,
    /// The partitions to merge, adjacent and in order.
    pub inputs: Vec<Arc<Partition>>,
    /// At most so many changes will come.
    pub changes: u64,
    /// The number of the first new file; the others follow it.
    pub first_number: u32,
    /// The number of this merge, larger than those of its inputs.
    pub merge: u64,
    /// Bytes of pages that a new file has at most, if they hold a row.
    pub target_bytes: u64,
}

/// What a merge has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The new partitions, in order. They are durable, and cover the range of the merge.
    pub added: Vec<Facts>,
    /// The numbers of the partitions that they replace.
    pub removed: Vec<u32>,
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

/// A change that waits until the old rows before it are written.
#[derive(Debug)]
struct Waiting {
    place: Place,
    key: u64,
    deleted: bool,
}

/// A merge under way.
pub struct Merge<C> {
    plan: MergePlan,
    old: OldRows,
    changes: C,
    waiting: Option<Waiting>,
    /// The row of the change that waits.
    words: Vec<f32>,
    writer: Option<PartitionWriter>,
    /// The queue of the writer, between two files.
    queue: Option<Box<dyn Queue>>,
    rows_per_file: u64,
    /// Where the next file begins.
    next_first: Place,
    merged: Merged,
    done: bool,
    failed: bool,
}

impl<C: Changes> Merge<C> {
    /// Begins a merge. `reader` reads old pages, and `queue` writes new ones, in its longest
    /// buffers.
    pub fn new(
        plan: MergePlan,
        changes: C,
        reader: PageReader,
        queue: Box<dyn Queue>,
    ) -> Result<Self> {
        check_plan(&plan)?;
        let layout = plan.shape.layout(plan.first_number)?;
        let pages = (plan.target_bytes / plan.shape.page_bytes as u64).max(1);
        let most = pages * layout.rows_per_page as u64;
        // Files of equal length: of rows for one and a bit, the second would be next to nothing.
        let rows: u64 = plan.inputs.iter().map(|input| input.facts().rows).sum();
        let rows = rows + plan.changes;
        let rows_per_file = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
        let merged = Merged {
            removed: plan.inputs.iter().map(|input| input.facts().number).collect(),
            ..Default::default()
        };
        let mut merge = Self {
            old: OldRows::new(reader, Partitions::new(plan.inputs.clone()), &layout),
            words: vec![0.0; plan.shape.row_bytes / 4],
            next_first: plan.range.first,
            plan,
            changes,
            waiting: None,
            writer: None,
            queue: Some(queue),
            rows_per_file,
            merged,
            done: false,
            failed: false,
        };
        merge.take_change()?;
        Ok(merge)
    }

    /// Bytes of memory that it takes, without the queue of the reader.
    pub fn memory_bytes(&self) -> usize {
        let queue = self.queue.as_ref().map_or(0, |queue| queue.memory_bytes());
        let writer = self.writer.as_ref().map_or(0, PartitionWriter::memory_bytes);
        size_of::<Self>() + self.old.bytes.capacity() * 4 + self.words.len() * 4 + queue + writer
    }

    /// Merges a portion; false when all is written and durable. After an error the merge can only
    /// be abandoned, all else is `Poisoned`.
    pub fn step(&mut self, medium: &dyn Medium) -> Result<bool> {
        if self.failed {
            bail!(Poisoned, "merge {} goes on after an error; abandon it", self.plan.merge);
        }
        if self.done {
            return Ok(false);
        }
        let merged = self.merge_portion(medium);
        self.failed = merged.is_err();
        merged
    }

    fn merge_portion(&mut self, medium: &dyn Medium) -> Result<bool> {
        if self.old.is_spent() {
            self.old.read_portion()?;
        }
        let at_end = self.old.is_spent();
        for _ in 0..self.old.portion_rows {
            let old = self.old.peek()?;
            match (old, &self.waiting) {
                (None, None) if at_end => return self.end(medium).map(|()| false),
                // The change may belong behind rows of the next portion.
                (None, _) if !at_end => return Ok(true),
                (Some((place, key)), waiting) => {
                    let order = match waiting {
                        Some(waiting) => place.cmp(&waiting.place),
                        None => Ordering::Less,
                    };
                    match order {
                        Ordering::Less => {
                            self.merged.kept += 1;
                            self.make_writer(medium, place)?;
                            let writer = self.writer.as_mut().expect("a writer was made above");
                            writer.push(&self.plan.orders, place, key, self.old.row())?;
                            self.old.pass(place);
                        }
                        Ordering::Equal => {
                            self.old.pass(place);
                            self.write_change(medium, true)?;
                        }
                        Ordering::Greater => self.write_change(medium, false)?,
                    }
                }
                (None, _) => self.write_change(medium, false)?,
            }
        }
        Ok(true)
    }

    /// Writes the change that waits, if it is a row, and takes the next.
    fn write_change(&mut self, medium: &dyn Medium, over_old: bool) -> Result<()> {
        let Some(Waiting { place, key, deleted }) = self.waiting.take() else { return Ok(()) };
        let counter = match (over_old, deleted) {
            (true, true) => &mut self.merged.deleted,
            (true, false) => &mut self.merged.replaced,
            (false, true) => &mut self.merged.vain,
            (false, false) => &mut self.merged.new,
        };
        *counter += 1;
        if !deleted {
            self.make_writer(medium, place)?;
            let writer = self.writer.as_mut().expect("a writer was made above");
            writer.push(&self.plan.orders, place, key, &self.words)?;
        }
        self.take_change()?;
        let next = self.waiting.as_ref().map(|waiting| waiting.place);
        assert!(next.is_none_or(|next| place < next), "{next:?} follows {place:?}");
        Ok(())
    }

    fn take_change(&mut self) -> Result<()> {
        self.waiting = None;
        if let Some(Change { table, rank, key, newer }) = self.changes.next()? {
            let place = self.plan.orders.place(table, rank, key)?;
            let range = &self.plan.range;
            assert!(range.contains(place), "{place:?} lies outside of the merge, {range:?}");
            if let Newer::Row(words) = newer {
                self.words.copy_from_slice(words);
            }
            self.waiting = Some(Waiting { place, key, deleted: newer == Newer::Deleted });
        }
        Ok(())
    }

    /// Makes sure that there is a writer for a row at `place`: a file that is full ends before it.
    fn make_writer(&mut self, medium: &dyn Medium, place: Place) -> Result<()> {
        if self.writer.as_ref().is_some_and(|writer| writer.rows() == self.rows_per_file) {
            let last = place.previous().expect("a place that follows others has one before it");
            self.finish_file(medium, last)?;
        }
        self.begin_file(medium)
    }

    /// Begins a file where there is none that is being written.
    fn begin_file(&mut self, medium: &dyn Medium) -> Result<()> {
        if self.writer.is_some() {
            return Ok(());
        }
        let queue = self.queue.take().expect("the last writer has given it back");
        let number = self.plan.first_number + self.merged.added.len() as u32;
        let (shape, merge, first) = (&self.plan.shape, self.plan.merge, self.next_first);
        self.writer = Some(PartitionWriter::create(medium, shape, number, merge, first, queue)?);
        Ok(())
    }

    fn finish_file(&mut self, medium: &dyn Medium, last: Place) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let number = self.plan.first_number + self.merged.added.len() as u32;
        match writer.finish(medium, &self.plan.orders, last) {
            Ok(Finished { facts, queue }) => {
                self.queue = Some(queue);
                self.merged.added.push(facts);
                self.next_first = last.next().unwrap_or(last);
                Ok(())
            }
            Err(error) => {
                // Nobody has its writer any more to abandon it.
                let name = file_name(self.plan.shape.class, number);
                Err(match medium.remove(&name) {
                    Ok(()) => error,
                    Err(also) => error.followed_by(format_args!("{name} is left over: {also}")),
                })
            }
        }
    }

    /// The last file ends where the range does, and has to be there even without rows.
    fn end(&mut self, medium: &dyn Medium) -> Result<()> {
        self.begin_file(medium)?;
        self.finish_file(medium, self.plan.range.last)?;
        self.done = true;
        Ok(())
    }

    /// What was done, once `step` has said that all is written.
    ///
    /// # Panics
    /// Before that.
    pub fn finish(self) -> Merged {
        assert!(self.done, "a merge is finished before all is written");
        self.merged
    }

    /// Gives the merge up and removes the files that it has written.
    pub fn abandon(self, medium: &dyn Medium) -> Result<()> {
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

/// The rows of partitions, one behind the other.
struct OldRows {
    inputs: Partitions,
    reader: PageReader,
    /// The input being read.
    input: usize,
    /// The next row of it.
    row: u64,
    /// Rows of it whose pages are in `bytes`.
    portion_end: u64,
    /// The first page in `bytes`.
    first_page: u32,
    bytes: Vec<f32>,
    /// Pages of a portion.
    portion_pages: u32,
    /// Rows of a full portion.
    portion_rows: u64,
    page_bytes: usize,
    /// The place of the last row.
    before: Option<Place>,
}

impl OldRows {
    fn new(reader: PageReader, inputs: Partitions, layout: &PageLayout) -> Self {
        let portion_pages = (PORTION_BYTES / layout.page_bytes).max(1);
        Self {
            inputs,
            reader,
            input: 0,
            row: 0,
            portion_end: 0,
            first_page: 1,
            bytes: Vec::new(),
            portion_pages: portion_pages as u32,
            portion_rows: (portion_pages * layout.rows_per_page) as u64,
            page_bytes: layout.page_bytes,
            before: None,
        }
    }

    /// True when no row is in memory.
    fn is_spent(&self) -> bool {
        self.row == self.portion_end
    }

    /// Reads the next pages, unless there are none.
    fn read_portion(&mut self) -> Result<()> {
        while let Some(input) = self.inputs.list().get(self.input) {
            let facts = input.facts();
            if self.row == facts.rows {
                self.input += 1;
                (self.row, self.portion_end) = (0, 0);
                continue;
            }
            let rows_per_page = input.layout().rows_per_page as u64;
            let first = 1 + (self.row / rows_per_page) as u32;
            let count = self.portion_pages.min(facts.pages + 1 - first);
            let file = self.input as u16;
            let pages: Vec<_> =
                (first..first + count).map(|page| PageAddress { file, page }).collect();
            self.bytes.resize(count as usize * self.page_bytes / 4, 0.0);
            let (bytes, page_bytes) = (&mut self.bytes, self.page_bytes);
            self.reader.read(&self.inputs, &pages, &mut |at, page| {
                let place = (at.page - first) as usize * page_bytes;
                let portion: &mut [u8] = bytemuck::cast_slice_mut(bytes);
                portion[place..place + page_bytes].copy_from_slice(page);
                Ok(())
            })?;
            self.first_page = first;
            self.portion_end = facts.rows.min(u64::from(first + count - 1) * rows_per_page);
            return Ok(());
        }
        Ok(())
    }

    /// The page of the next row, and which row of it that is.
    fn page(&self) -> (&[u8], usize) {
        let layout = self.inputs.list()[self.input].layout();
        let per_page = layout.rows_per_page as u64;
        let page = (self.row / per_page) as usize + 1 - self.first_page as usize;
        let bytes: &[u8] = bytemuck::cast_slice(&self.bytes);
        let page = &bytes[page * self.page_bytes..][..self.page_bytes];
        (page, (self.row % per_page) as usize)
    }

    /// Place and key of the next row in memory.
    fn peek(&self) -> Result<Option<(Place, u64)>> {
        if self.is_spent() {
            return Ok(None);
        }
        let input = &self.inputs.list()[self.input];
        let (place, key) = input.entry(self.row, self.page().0)?;
        if self.before.is_some_and(|before| before >= place) || !input.facts().range.contains(place)
        {
            return Err(input.out_of_order(self.row));
        }
        Ok(Some((place, key)))
    }

    fn row(&self) -> &[f32] {
        let (page, slot) = self.page();
        self.inputs.list()[self.input].layout().row(page, slot)
    }

    /// Goes on behind the next row, whose place is `place`.
    fn pass(&mut self, place: Place) {
        self.before = Some(place);
        self.row += 1;
    }
}
