//! The bottom as it is read, and the files behind it.
//!
//! A reader keeps a snapshot, which never changes; a merge makes the next one. The file of a
//! partition that an edit has removed stays until no kept commit from before the edit is left.

use super::candidates::Candidates;
use super::file::{Shape, file_name, files_of};
use super::order::{Orders, Place, TableOrder};
use super::pages::OpenPartitions;
use super::partition::Partition;
use super::version::{Edit, Version};
use crate::error::{ErrorKind, Result, bail};
use crate::io::Medium;
use crate::storage::PageAddress;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// An open partition with the number that page addresses have for it.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    /// The file of its page addresses.
    pub number: u16,
    /// The partition.
    pub partition: Arc<Partition>,
}

/// The result of looking for a place in a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Looked<'p> {
    /// Its row.
    Row(&'p [f32]),
    /// Rows of other places.
    Absent,
    /// The page is of a partition that the snapshot does not have at the place.
    Left,
}

/// A version whose partitions are open.
#[derive(Debug)]
pub(crate) struct Snapshot {
    version: Version,
    /// In the order of the version.
    partitions: Box<[Numbered]>,
    /// Rows of each table.
    rows: BTreeMap<u16, u64>,
}

impl Snapshot {
    fn new(version: Version, partitions: Box<[Numbered]>) -> Self {
        let mut rows = BTreeMap::new();
        for (table, of_table) in partitions.iter().flat_map(|open| open.partition.table_rows()) {
            *rows.entry(table).or_default() += of_table;
        }
        Self { version, partitions, rows }
    }

    /// Rows of a table.
    pub(crate) fn rows_of(&self, table: u16) -> u64 {
        self.rows.get(&table).copied().unwrap_or(0)
    }

    /// Its list of partitions.
    pub(crate) fn version(&self) -> &Version {
        &self.version
    }

    /// The partitions, in order.
    pub(crate) fn partitions(&self) -> &[Numbered] {
        &self.partitions
    }

    /// The frozen partition, if it has one: that has the rows of all places.
    pub(crate) fn frozen(&self) -> Option<&Numbered> {
        self.partitions.first().filter(|open| open.partition.is_frozen())
    }

    /// All memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let each = self.partitions.iter().map(|open| open.partition.memory_bytes());
        size_of_val(&*self.partitions) + self.version.memory_bytes() + each.sum::<usize>()
    }

    /// The partition that has the rows at `place`, and its pages that may hold that row.
    pub(crate) fn look_up(&self, place: Place) -> Option<(&Numbered, Candidates<'_>)> {
        let open = &self.partitions[self.version.find(place)?];
        Some((open, open.partition.candidates(place)))
    }

    /// The pages that may hold the row at `place`: none, one, or rarely two, of a frozen partition
    /// all that have it.
    pub(crate) fn candidates(&self, place: Place) -> impl Iterator<Item = PageAddress> + use<'_> {
        let found = self.look_up(place).into_iter();
        found.flat_map(|(open, candidates)| {
            candidates.iter().map(|page| PageAddress { file: open.number, page })
        })
    }

    /// Rank of the first page that may hold the row at `place` among all pages, which follow each
    /// other as their rows do; `None` if no page may hold it.
    pub(crate) fn order_of(&self, place: Place) -> Option<u32> {
        let at = self.version.find(place)?;
        let page = *self.partitions[at].partition.candidates(place).pages().first()?;
        Some(self.version.order_of(at, page))
    }

    /// Looks for `place` in a verified page, which was a candidate of it when its read began.
    pub(crate) fn find<'p>(
        &self,
        place: Place,
        at: PageAddress,
        page: &'p [u8],
    ) -> Result<Looked<'p>> {
        let open = self.version.find(place).map(|at| &self.partitions[at]);
        match open.filter(|open| open.number == at.file) {
            Some(open) => {
                let found = open.partition.find(place, at.page, page)?;
                Ok(found.map_or(Looked::Absent, Looked::Row))
            }
            None => Ok(Looked::Left),
        }
    }
}

/// The file of a partition that an edit has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retired {
    /// Number of the file.
    pub number: u32,
    /// Bytes that it takes of the disk.
    pub bytes: u64,
    /// The first commit that has the edit.
    pub epoch: u64,
}

impl Retired {
    /// The files that `edit`, an edit of `version`, retires.
    pub(crate) fn by(version: &Version, edit: &Edit, epoch: u64) -> Vec<Self> {
        let removed: BTreeSet<u32> = edit.removed.iter().copied().collect();
        let leave = version.partitions().iter().filter(|facts| removed.contains(&facts.number));
        leave.map(|facts| Self { number: facts.number, bytes: facts.disk_bytes(), epoch }).collect()
    }
}

/// The newest snapshot, and the files of older ones.
#[derive(Debug)]
pub(crate) struct Bottom {
    medium: Arc<dyn Medium>,
    shape: Shape,
    orders: Arc<Orders>,
    pages: Arc<OpenPartitions>,
    current: Arc<Snapshot>,
    /// Files that a kept commit may have, or a pinned one.
    pub(super) retired: Vec<Retired>,
    /// Files that no kept commit has, and no pinned one.
    pub(super) removable: Vec<Retired>,
    /// The files of each pinned commit.
    pub(super) pins: BTreeMap<u64, BTreeSet<u32>>,
    /// Commits before this one are no more, but for pinned ones.
    pub(super) released: u64,
    /// Of these, those that reads kept when files were last removed.
    being_read: BTreeSet<u32>,
    /// The oldest commit that is kept for more than a reader.
    oldest_kept: u64,
    /// Files that edits of the epoch `added_epoch` have added.
    added: BTreeSet<u32>,
    added_epoch: u64,
    /// The largest number that a file of any version had.
    pub(super) largest_number: u32,
    /// The largest number of a file that there was when somebody last looked.
    largest_there: Option<u32>,
}

impl Bottom {
    /// Opens all partitions of a version. `retired` are those that edits have removed since the
    /// oldest kept commit.
    pub(crate) fn open(
        medium: Arc<dyn Medium>,
        shape: &Shape,
        orders: Orders,
        version: Version,
        retired: Vec<Retired>,
    ) -> Result<Self> {
        Self::going_on(medium, shape, orders, version, retired, &[])
    }

    /// As [`open`](Self::open), with the partitions that a reader has open already: what of them
    /// the version has is not read again.
    pub(crate) fn going_on(
        medium: Arc<dyn Medium>,
        shape: &Shape,
        orders: Orders,
        version: Version,
        retired: Vec<Retired>,
        open: &[Arc<Partition>],
    ) -> Result<Self> {
        let open: HashMap<u32, &Arc<Partition>> =
            open.iter().map(|partition| (partition.facts().number, partition)).collect();
        let mut partitions = Vec::with_capacity(version.partitions().len());
        for facts in version.partitions() {
            partitions.push(match open.get(&facts.number) {
                Some(partition) if partition.facts() == facts => Arc::clone(partition),
                _ => Arc::new(Partition::open(&*medium, shape, &orders, facts)?),
            });
        }
        let pages = Arc::new(OpenPartitions::new(shape.page_bytes));
        let numbers = pages.add_all(&partitions)?;
        let numbered = numbers.into_iter().zip(partitions);
        let partitions = numbered.map(|(number, partition)| Numbered { number, partition });
        // A number that a later edit has added again is that of a newer file: the old one was
        // removed before, and the new one must not be.
        let there: BTreeSet<u32> = version.partitions().iter().map(|facts| facts.number).collect();
        let left = retired.into_iter().filter(|file| !there.contains(&file.number));
        let retired: BTreeMap<u32, Retired> = left.map(|file| (file.number, file)).collect();
        let largest_number = there.iter().chain(retired.keys()).copied().max().unwrap_or(0);
        let partitions = partitions.collect();
        Ok(Self {
            medium,
            shape: *shape,
            orders: Arc::new(orders),
            pages,
            current: Arc::new(Snapshot::new(version, partitions)),
            retired: retired.into_values().collect(),
            removable: Vec::new(),
            pins: BTreeMap::new(),
            released: 0,
            being_read: BTreeSet::new(),
            oldest_kept: 0,
            added: BTreeSet::new(),
            added_epoch: 0,
            largest_number,
            largest_there: None,
        })
    }

    /// The newest snapshot.
    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.current
    }

    /// The source of the pages of all snapshots.
    pub(crate) fn pages(&self) -> &Arc<OpenPartitions> {
        &self.pages
    }

    /// The orders of the tables.
    pub(crate) fn orders(&self) -> &Arc<Orders> {
        &self.orders
    }

    /// Takes a new table in.
    pub(crate) fn add_table(&mut self, table: u16, order: TableOrder) {
        Arc::make_mut(&mut self.orders).insert(table, order);
    }

    /// Takes a table out of which no partition has a row.
    pub(crate) fn remove_table(&mut self, table: u16) {
        Arc::make_mut(&mut self.orders).remove(table);
    }

    /// Takes a table out whose rows merges leave out from now on.
    pub(crate) fn drop_table(&mut self, table: u16) {
        Arc::make_mut(&mut self.orders).drop(table);
    }

    /// Whether a partition has rows of a table that was dropped.
    pub(crate) fn has_dropped_rows(&self) -> bool {
        self.current.rows.keys().any(|table| self.orders.is_dropped(*table))
    }

    /// Files of partitions that kept commits may have and the newest snapshot has not.
    #[cfg(test)]
    pub(crate) fn retired(&self) -> &[Retired] {
        &self.retired
    }

    /// Makes the snapshot after `edit`, which is new and belongs to the commit `epoch`, the newest.
    /// Reads that have begun, with tickets before `next_ticket`, may go on in the partitions that
    /// it removes. Nothing changes when the edit or one of its files is refused.
    pub(crate) fn install(&mut self, edit: &Edit, epoch: u64, next_ticket: u64) -> Result<()> {
        let version = self.current.version.apply(edit)?;
        let waiting = |number| {
            self.retired.iter().chain(&self.removable).any(|file: &Retired| file.number == number)
        };
        let mut added = Vec::with_capacity(edit.added.len());
        for facts in &edit.added {
            if waiting(facts.number) {
                bail!(
                    Misuse,
                    "a merge has written partition {}, whose old file is to be removed yet; number \
                     files by next_number",
                    facts.number
                );
            }
            let opened = Partition::open(&*self.medium, &self.shape, &self.orders, facts)?;
            added.push(Arc::new(opened));
        }
        let numbers = self.pages.add_all(&added)?;
        let fresh = numbers.into_iter().zip(added);
        let fresh = fresh.map(|(number, partition)| Numbered { number, partition });
        let old = self.current.partitions.iter().cloned();
        let mut open: HashMap<u32, Numbered> =
            old.chain(fresh).map(|open| (open.partition.facts().number, open)).collect();
        let take = |number: u32| {
            open.remove(&number).unwrap_or_else(|| panic!("partition {number} is not open"))
        };
        let partitions = version.partitions().iter().map(|facts| facts.number).map(take).collect();
        // The old partitions that remain are those that the edit removes.
        for left in open.values() {
            self.pages.leave(left.number, next_ticket);
        }
        // Partitions added in this very epoch are in no commit.
        if self.added_epoch != epoch {
            self.added.clear();
            self.added_epoch = epoch;
        }
        for file in Retired::by(&self.current.version, edit, epoch) {
            match self.added.remove(&file.number) {
                true => self.removable.push(file),
                false => self.retired.push(file),
            }
        }
        self.added.extend(edit.added.iter().map(|facts| facts.number));
        let most = edit.added.iter().map(|facts| facts.number).max().unwrap_or(0);
        self.largest_number = self.largest_number.max(most);
        self.current = Arc::new(Snapshot::new(version, partitions));
        Ok(())
    }

    /// Frees page numbers that no read under way can have; the oldest has the ticket
    /// `oldest_running`. To be said when a read ends, and after an edit while none is under way.
    pub(crate) fn reads_ended(&self, oldest_running: Option<u64>) {
        self.pages.ended(oldest_running);
    }

    /// Commits before `released` are no more: files that only they have can be removed. Those
    /// before `oldest_kept` stay for readers alone.
    pub(crate) fn drop_commits_before(&mut self, released: u64, oldest_kept: u64) {
        (self.released, self.oldest_kept) = (released, oldest_kept);
        self.release();
    }

    /// Removes the files that neither a kept commit nor a read under way has; returns their bytes.
    /// After an error those that are still there are removed by the next call.
    pub(crate) fn remove_files(&mut self) -> Result<u64> {
        // A file takes its room until it is closed, with a name or without.
        self.being_read = self.pages.files_left();
        let mut bytes = 0;
        for at in (0..self.removable.len()).rev() {
            let file = self.removable[at];
            if !self.being_read.contains(&file.number) {
                self.remove(&file_name(self.shape.class, file.number))?;
                bytes += file.bytes;
                self.removable.remove(at);
            }
        }
        Ok(bytes)
    }

    /// Removes a file, or finds that it was removed before.
    fn remove(&self, name: &str) -> Result<()> {
        match self.medium.remove(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes the partition files that no commit has and no merge is writing, those with the
    /// numbers `running` are: what a crash has left. Returns how many there were.
    pub(crate) fn remove_leftovers(&mut self, running: &[RangeInclusive<u32>]) -> Result<usize> {
        let partitions = self.current.version.partitions().iter();
        let waiting = self.retired.iter().chain(&self.removable);
        let known: BTreeSet<u32> = partitions
            .map(|facts| facts.number)
            .chain(waiting.map(|retired| retired.number))
            .collect();
        let mut removed = 0;
        let files = files_of(&*self.medium, self.shape.class)?;
        self.largest_there = Some(files.iter().map(|file| file.number).max().unwrap_or(0));
        for file in files {
            let is_running = running.iter().any(|numbers| numbers.contains(&file.number));
            if !known.contains(&file.number) && !is_running {
                self.remove(&file.name)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Bytes of the files of the newest snapshot, and of those that are not removed yet.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.current.version.disk_bytes() + self.leaving_bytes()
    }

    /// Bytes of files that the newest snapshot has no more.
    fn leaving_bytes(&self) -> u64 {
        self.retired.iter().chain(&self.removable).map(|file| file.bytes).sum()
    }

    /// Those of them that commits alone, or the next removal, will give back: what readers or pins
    /// keep may stay for long.
    pub(crate) fn coming_bytes(&self) -> u64 {
        let goes = |file: &&Retired| file.epoch > self.oldest_kept && !self.is_pinned(file.number);
        let retired = self.retired.iter().filter(goes);
        let is_read = |file: &&Retired| self.being_read.contains(&file.number);
        let removable = self.removable.iter().filter(|file| !is_read(file));
        retired.chain(removable).map(|file| file.bytes).sum()
    }

    /// Bytes of files that commits from `first` on have and that go when those before `oldest_kept`
    /// are dropped.
    pub(crate) fn retired_bytes_between(&self, first: u64, oldest_kept: u64) -> u64 {
        let between = first + 1..=oldest_kept.max(first + 1);
        let goes = |file: &&Retired| between.contains(&file.epoch) && !self.is_pinned(file.number);
        let files = self.retired.iter().filter(goes);
        files.map(|file| file.bytes).sum()
    }

    /// A number larger than that of any file that there was when leftovers were last removed, or
    /// the first number was asked for, or that a version of this bottom had. `Full` when there is
    /// none.
    pub(crate) fn next_number(&mut self) -> Result<u32> {
        let there = match self.largest_there {
            Some(there) => there,
            None => {
                let files = files_of(&*self.medium, self.shape.class)?;
                *self.largest_there.insert(files.iter().map(|file| file.number).max().unwrap_or(0))
            }
        };
        match self.largest_number.max(there).checked_add(1) {
            Some(number) => Ok(number),
            None => bail!(
                Full,
                "all numbers of partition files up to {} are used; copy the store to a new one",
                u32::MAX
            ),
        }
    }

    /// All memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let files = self.retired.capacity() + self.removable.capacity();
        let beside = size_of::<Self>() + files * size_of::<Retired>();
        beside + self.pages.memory_bytes() + self.current.memory_bytes()
    }
}
