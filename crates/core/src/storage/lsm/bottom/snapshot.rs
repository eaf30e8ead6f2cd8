//! The bottom as it is read: snapshots of its version with their files open.
//!
//! Whoever reads keeps a snapshot, which nothing changes; a merge makes the next one. The file of a
//! partition that no snapshot has any more can be removed.

use super::file::{Shape, file_name, files_of};
use super::order::{Orders, Place};
use super::partition::{Partition, Partitions};
use super::version::{Edit, Version};
use crate::error::Result;
use crate::io::Medium;
use crate::storage::PageAddress;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// A version whose partitions are open.
#[derive(Debug, Default)]
pub struct Snapshot {
    version: Version,
    partitions: Partitions,
}

impl Snapshot {
    /// Which partitions there are.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// The partitions, which are the source of its pages.
    pub fn partitions(&self) -> &Partitions {
        &self.partitions
    }

    /// All memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let list = self.partitions.list();
        let each = size_of::<Arc<Partition>>() + size_of_val(self.version.partitions());
        each + list.iter().map(|partition| partition.memory_bytes()).sum::<usize>()
    }

    /// The pages that may hold the row at `place`: none, one, or rarely two.
    pub fn candidates(&self, place: Place) -> impl Iterator<Item = PageAddress> + use<> {
        let at = self.version.find(place);
        let pages = at.map_or(0..0, |at| self.partitions.list()[at].candidates(place));
        let file = at.unwrap_or(0) as u16;
        pages.map(move |page| PageAddress { file, page })
    }

    /// The row at `place` in a verified page that is one of its candidates.
    pub fn find<'p>(
        &self,
        place: Place,
        at: PageAddress,
        page: &'p [u8],
    ) -> Result<Option<&'p [f32]>> {
        self.partitions.list()[usize::from(at.file)].find(place, at.page, page)
    }
}

/// The newest snapshot, and what older ones may still need.
#[derive(Debug)]
pub struct Bottom {
    shape: Shape,
    current: Arc<Snapshot>,
    /// Partitions that the newest snapshot has no more.
    retired: Vec<Retired>,
}

#[derive(Debug)]
struct Retired {
    number: u32,
    partition: Weak<Partition>,
}

impl Bottom {
    /// Opens all partitions of a version.
    pub fn open(
        medium: &dyn Medium,
        shape: &Shape,
        orders: &Orders,
        version: Version,
    ) -> Result<Self> {
        let empty = Self { shape: *shape, current: Arc::default(), retired: Vec::new() };
        let current = Arc::new(empty.opened(medium, orders, version)?);
        Ok(Self { current, ..empty })
    }

    /// The newest snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current)
    }

    /// A snapshot of `version`; what the newest one has open is not opened again.
    fn opened(&self, medium: &dyn Medium, orders: &Orders, version: Version) -> Result<Snapshot> {
        let list = self.current.partitions.list().iter();
        let open: HashMap<u32, &Arc<Partition>> =
            list.map(|partition| (partition.facts().number, partition)).collect();
        let mut partitions = Vec::with_capacity(version.partitions().len());
        for facts in version.partitions() {
            partitions.push(match open.get(&facts.number) {
                Some(partition) if partition.facts() == facts => Arc::clone(partition),
                _ => Arc::new(Partition::open(medium, &self.shape, orders, facts)?),
            });
        }
        Ok(Snapshot { version, partitions: Partitions::new(partitions) })
    }

    /// Makes the snapshot after `edit` the newest. Nothing changes when the edit or one of its
    /// files is refused.
    pub fn install(&mut self, medium: &dyn Medium, orders: &Orders, edit: &Edit) -> Result<()> {
        let version = self.current.version.apply(edit)?;
        let next = Arc::new(self.opened(medium, orders, version)?);
        for partition in self.current.partitions.list() {
            let number = partition.facts().number;
            if edit.removed.contains(&number) {
                let partition = Arc::downgrade(partition);
                self.retired.push(Retired { number, partition });
            }
        }
        self.current = next;
        Ok(())
    }

    /// Names of retired files that no snapshot has any more. They are not told again.
    pub fn removable(&mut self) -> Vec<String> {
        let free = |retired: &mut Retired| retired.partition.strong_count() == 0;
        let class = self.shape.class;
        self.retired.extract_if(.., free).map(|retired| file_name(class, retired.number)).collect()
    }

    /// Names of partition files that neither the newest snapshot nor a kept one has: what a merge
    /// left that ended in a crash.
    pub fn leftovers(&self, medium: &dyn Medium) -> Result<Vec<String>> {
        let list = self.current.partitions.list().iter();
        let mut known: Vec<u32> = list.map(|partition| partition.facts().number).collect();
        known.extend(self.retired.iter().map(|retired| retired.number));
        let files = files_of(medium, self.shape.class)?;
        let left = files.into_iter().filter(|file| !known.contains(&file.number));
        Ok(left.map(|file| file.name).collect())
    }
}
