//! The numbers by which page addresses name open partitions.
//!
//! A partition has its number from when it comes until nobody can read it any more: a reader takes
//! addresses under the lock of the class and reads their pages without it, while a merge replaces
//! the partition. So a number that was left is not given again before every read has ended that
//! began until then. Tickets say which these are.

use super::partition::Partition;
use crate::error::{Result, bail};
use crate::io::File;
use crate::storage::{PageAddress, PageSource};
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The open partitions of a class by their numbers, from 1 on, and the source of their pages.
#[derive(Debug)]
pub(crate) struct OpenPartitions {
    page_bytes: usize,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Number 1 is the first.
    slots: Vec<Slot>,
    /// Numbers up to that of the last slot that nobody has.
    free: BTreeSet<u16>,
    /// Slots of partitions that have left.
    left: usize,
}

#[derive(Debug)]
enum Slot {
    Free,
    There(Arc<Partition>),
    /// Tickets before `next_ticket` may still read it.
    Left {
        partition: Arc<Partition>,
        next_ticket: u64,
    },
}

impl Slot {
    fn partition(&self) -> Option<&Arc<Partition>> {
        match self {
            Self::There(partition) | Self::Left { partition, .. } => Some(partition),
            Self::Free => None,
        }
    }
}

impl OpenPartitions {
    /// Largest number of open partitions: page addresses have so many file numbers beside 0.
    pub(crate) const COUNT_MAX: usize = u16::MAX as usize;

    /// An empty table of partitions with such pages.
    pub(crate) fn new(page_bytes: usize) -> Self {
        Self { page_bytes, table: RwLock::default() }
    }

    /// Gives each of some partitions a number, in their order; none of them where these do not
    /// suffice, which is `Full`.
    pub(crate) fn add_all(&self, partitions: &[Arc<Partition>]) -> Result<Vec<u16>> {
        let mut table = self.table.write();
        table.check_room(partitions.len())?;
        Ok(partitions.iter().map(|partition| table.add(Arc::clone(partition))).collect())
    }

    /// The partition of a number is no more. Reads whose tickets are before `next_ticket`, which
    /// the next read will get, may still ask for its pages.
    ///
    /// # Panics
    /// When no partition has the number, or it has left already.
    pub(crate) fn leave(&self, number: u16, next_ticket: u64) {
        let mut table = self.table.write();
        let slot = table.slot_mut(number);
        let Slot::There(partition) = std::mem::replace(slot, Slot::Free) else {
            panic!("partition {number} leaves, which is not there");
        };
        *slot = Slot::Left { partition, next_ticket };
        table.left += 1;
    }

    /// Frees the numbers of partitions that left before all reads under way began; the oldest of
    /// these has the ticket `oldest_running`.
    pub(crate) fn ended(&self, oldest_running: Option<u64>) {
        if self.table.read().left == 0 {
            return;
        }
        let mut table = self.table.write();
        let Table { slots, free, left } = &mut *table;
        for (at, slot) in slots.iter_mut().enumerate() {
            if let Slot::Left { next_ticket, .. } = slot
                && oldest_running.is_none_or(|oldest| *next_ticket <= oldest)
            {
                *slot = Slot::Free;
                *left -= 1;
                free.insert(at as u16 + 1);
            }
        }
    }

    /// Numbers of the files of partitions that have left and that reads under way may still name.
    pub(crate) fn files_left(&self) -> BTreeSet<u32> {
        let table = self.table.read();
        if table.left == 0 {
            return BTreeSet::new();
        }
        let left = table.slots.iter().filter_map(|slot| match slot {
            Slot::Left { partition, .. } => Some(partition.facts().number),
            Slot::There(_) | Slot::Free => None,
        });
        left.collect()
    }

    /// The partition of a number; `None` once it has left.
    pub(crate) fn get(&self, number: u16) -> Option<Arc<Partition>> {
        match self.table.read().slot(number)? {
            Slot::There(partition) => Some(Arc::clone(partition)),
            Slot::Left { .. } | Slot::Free => None,
        }
    }

    /// All memory that it takes, with what is known of partitions that have left; the others are
    /// counted where they are used.
    pub(crate) fn memory_bytes(&self) -> usize {
        let table = self.table.read();
        let left = table.slots.iter().map(|slot| match slot {
            Slot::Left { partition, .. } => partition.memory_bytes(),
            Slot::There(_) | Slot::Free => 0,
        });
        size_of::<Self>()
            + table.slots.capacity() * size_of::<Slot>()
            + table.free.len() * size_of::<u16>()
            + left.sum::<usize>()
    }

    /// The partition that a read under way names.
    ///
    /// # Panics
    /// When no partition has the number: its read has ended, or there never was one.
    fn being_read(&self, number: u16) -> Arc<Partition> {
        let table = self.table.read();
        let Some(partition) = table.slot(number).and_then(Slot::partition) else {
            panic!("a page of partition {number} is read, which nobody protects");
        };
        Arc::clone(partition)
    }
}

impl Table {
    fn check_room(&self, more: usize) -> Result<()> {
        let taken = self.slots.len() - self.free.len();
        if taken + more > OpenPartitions::COUNT_MAX {
            bail!(
                Full,
                "{more} more partitions beside {taken} that are open, or left and still read, of \
                 at most {}; let reads end, or make partitions larger",
                OpenPartitions::COUNT_MAX
            );
        }
        Ok(())
    }

    /// Room was checked before.
    fn add(&mut self, partition: Arc<Partition>) -> u16 {
        let slot = Slot::There(partition);
        if let Some(number) = self.free.pop_first() {
            *self.slot_mut(number) = slot;
            return number;
        }
        self.slots.push(slot);
        self.slots.len() as u16
    }

    fn slot(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number).checked_sub(1)?)
    }

    fn slot_mut(&mut self, number: u16) -> &mut Slot {
        let at = usize::from(number).checked_sub(1);
        let slot = at.and_then(|at| self.slots.get_mut(at));
        slot.unwrap_or_else(|| panic!("no partition ever had number {number}"))
    }
}

impl PageSource for OpenPartitions {
    fn file(&self, number: u16) -> Arc<dyn File> {
        Arc::clone(self.being_read(number).file())
    }

    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn verify(&self, at: PageAddress, page: &[u8]) -> Result<()> {
        self.being_read(at.file).verify(at.page, page)
    }
}
