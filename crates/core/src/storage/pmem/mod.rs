//! Rows on persistent memory: each table has a region of fixed capacity (`crates/pmem`), mapped
//! from a file in the store's folder or in one apart.
//!
//! **Durable by update, outside the commit.** A change is durable when its verb returns, as far as
//! the medium allows. So rows of such tables are never in the cache: the store reads and changes
//! them through [`Region`], without the lock of the class. Commits, the journal and upkeep have
//! nothing to do here. `docs/decisions/0025` has the reasons.

mod place;
mod recovery;
mod region;
mod rehome;
mod resize;
mod sweep;

pub(crate) use place::{has_regions, remove_other_regions, table_of_region};
pub(crate) use recovery::PmemRecovery;
pub(crate) use region::{LentRows, Region, Writer};
pub(crate) use resize::{Resize, resize};

use super::{
    Begun, ClassFacts, Cut, DirtyRow, Found, MergeCounts, PageAddress, PageSource, Residents,
    Resolved, Share, SpaceBound, Storage, StorageBudget, StorageChanges, StorageCounts,
    StorageFreeze, StorageJournal, StorageMemory, StoragePins, StorageRead, StorageSpace,
    StorageStats, StorageTables, StorageUpkeep, StorageWrite, TableFacts, UnitReport, Want,
    Written, log,
};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{File, Medium};
use embedrock_pmem::{Geometry, Mapped, Rows};
use place::Place;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sweep::STORED;

/// An error of a region as one of the engine.
fn told(error: embedrock_pmem::Error) -> Error {
    use embedrock_pmem::ErrorKind as Kind;
    let source = std::error::Error::source(&error);
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    let code = source.and_then(std::io::Error::raw_os_error);
    let kind = match error.kind() {
        Kind::Misuse => ErrorKind::Misuse,
        Kind::Corrupt => ErrorKind::Corrupt,
        Kind::Unsupported => ErrorKind::Unsupported,
        Kind::Full => ErrorKind::Full,
        Kind::Locked => {
            return Error::new(ErrorKind::Locked, error.to_string()).followed_by(
                "a store with tables on persistent memory is open once at a time, to read or to \
                 write: close it there first, or ask the process that has it (embedrock serve)",
            );
        }
        _ if matches!(code, Some(libc::ENOSPC | libc::EDQUOT)) => ErrorKind::Full,
        _ => ErrorKind::Io,
    };
    Error::new(kind, error.to_string())
}

impl From<embedrock_pmem::Error> for Error {
    fn from(error: embedrock_pmem::Error) -> Self {
        told(error)
    }
}

fn no_folder() -> Error {
    let message = "rows on persistent memory need a directory, and this medium has none";
    Error::new(ErrorKind::Unsupported, message)
}

/// Bytes of the region and of memory for a table of so many rows.
pub(crate) fn region_bytes(capacity: u64, row_bytes: usize) -> Result<(u64, u64)> {
    let geometry = Geometry::new(capacity, row_bytes).map_err(told)?;
    let memory = Rows::<Mapped>::memory_bytes(&geometry) as u64;
    Ok((geometry.bytes() as u64, memory))
}

/// The class's file, of which no page is ever read.
struct NoPages {
    file: Arc<dyn File>,
    page_bytes: usize,
}

impl PageSource for NoPages {
    fn file(&self, _: u16) -> Arc<dyn File> {
        self.file.clone()
    }

    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn verify(&self, at: PageAddress, _: &[u8]) -> Result<()> {
        bail!(Corrupt, "{} has no page {}", self.file.name(), at.page)
    }
}

/// The regions of the tables of a row class.
pub(crate) struct Pmem {
    facts: ClassFacts,
    medium: Arc<dyn Medium>,
    pages: Arc<NoPages>,
    /// `None` at a commit that is not the newest, which regions do not have, and in a reader whose
    /// region another process has open.
    tables: BTreeMap<u16, Option<Arc<Region>>>,
    /// The growing ones of these tables.
    growing: BTreeSet<u16>,
    /// Tables that were dropped since the last commit, which has them yet.
    dropped: Vec<u16>,
    /// Rows written to regions of tables that were dropped since open.
    written_before: u64,
    /// Sweeps under way, by ticket.
    tickets: BTreeMap<u64, Vec<Arc<Region>>>,
    next_ticket: u64,
    /// Larger with each commit that regions were told of.
    position: u64,
    /// The number of the last commit.
    commit: u64,
    /// Whether another process has a region open, so that this reader has not.
    is_locked: bool,
    /// A row that was found.
    scratch: Vec<f32>,
}

/// A storage without tables in a new file, whose header is durable on return; `epoch` is the number
/// of the commit to come.
pub(crate) fn create(
    facts: &ClassFacts,
    file: Arc<dyn File>,
    epoch: u64,
    medium: &Arc<dyn Medium>,
) -> Result<Box<dyn Storage>> {
    log::write_header(&*file, facts)?;
    let mut created = Pmem::new(*facts, file, medium, BTreeMap::new(), 0);
    created.commit = epoch.saturating_sub(1);
    Ok(Box::new(created))
}

impl Pmem {
    fn new(
        facts: ClassFacts,
        file: Arc<dyn File>,
        medium: &Arc<dyn Medium>,
        tables: BTreeMap<u16, Option<Arc<Region>>>,
        position: u64,
    ) -> Self {
        Self {
            facts,
            medium: Arc::clone(medium),
            pages: Arc::new(NoPages { file, page_bytes: facts.page_bytes }),
            tables,
            growing: BTreeSet::new(),
            dropped: Vec::new(),
            written_before: 0,
            tickets: BTreeMap::new(),
            next_ticket: 1,
            position,
            commit: 0,
            is_locked: false,
            scratch: vec![0.0; facts.row_bytes / 4],
        }
    }

    fn region(&self, table: u16) -> Option<&Arc<Region>> {
        self.tables.get(&table).and_then(Option::as_ref)
    }

    /// Remains are removed when the store is opened again.
    fn remove_region(&self, table: u16) {
        // It goes by path, where another folder may be by now.
        let is_ours = self.medium.check_lock().is_ok();
        let is_here = is_ours && matches!(self.medium.displaced(), Ok(None));
        if let (true, Some(folders)) = (is_here, &self.medium.regions()) {
            let _ = Place { folders, seed: self.facts.seed, table, name: "" }.remove();
        }
    }

    fn regions(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.tables.values().flatten()
    }

    /// Number of parts of each growing table: a region is one.
    fn partitions(&self) -> Vec<(u16, u32)> {
        self.growing.iter().map(|table| (*table, 1)).collect()
    }

    fn sum(&self, of: impl Fn(&Region) -> u64) -> u64 {
        self.regions().map(|region| of(region)).sum()
    }
}

impl Drop for Pmem {
    fn drop(&mut self) {
        self.regions().for_each(|region| region.rehoming.stop());
    }
}

impl Storage for Pmem {}

/// Rows are newer than any commit: a store that has some pins none.
impl StoragePins for Pmem {
    fn begun(&self) -> Begun {
        Begun { record: String::new(), partitions: self.partitions() }
    }
}

impl StorageChanges for Pmem {}

impl StorageFreeze for Pmem {}

impl crate::storage::StorageStretches for Pmem {}

impl StorageRead for Pmem {
    fn direct(&self, table: u16) -> Option<Arc<Region>> {
        self.region(table).cloned()
    }

    fn pages(&self) -> Arc<dyn PageSource> {
        self.pages.clone()
    }

    fn begin_read(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(ticket, Vec::new());
        ticket
    }

    fn end_read(&mut self, ticket: u64) {
        for region in self.tickets.remove(&ticket).into_iter().flatten() {
            region.end_sweep();
        }
    }

    fn prefetch(&self, _: u16, _: u64) {}

    fn find(&mut self, table: u16, key: u64, _: u32, _: &[Want], _: &mut Vec<Want>) -> Found<'_> {
        let mut found = [false];
        let region = self.tables.get(&table).and_then(Option::as_ref);
        let got = region.map(|region| region.get(&[key], &mut self.scratch, &mut found));
        match got {
            // The store reads regions itself, and is told of damage there.
            Some(Ok(())) if found[0] => Found::InMemory { words: &self.scratch, origin: STORED },
            Some(Ok(())) | None => Found::Absent,
            Some(Err(_)) => Found::Stored { origin: Some(STORED) },
        }
    }

    fn read_order(&self, table: u16, key: u64) -> Option<u32> {
        self.contains(table, key)?.then_some(0)
    }

    fn contains(&self, table: u16, key: u64) -> Option<bool> {
        let mut found = [false];
        let asked = self.region(table)?.contains(&[key], &mut found);
        asked.ok().map(|()| found[0])
    }

    /// Rows come in the order of buckets, not of ids.
    fn is_exact(&self, _: u16) -> bool {
        false
    }

    fn verify_newest(&self, at: PageAddress, page: &[u8]) -> Result<()> {
        self.pages.verify(at, page)
    }

    fn resolve<'p>(&self, _: u16, _: u64, _: &Want, _: &'p [u8]) -> Result<Resolved<'p>> {
        Ok(Resolved::Other)
    }
}

impl StorageWrite for Pmem {
    fn parked(&self) -> usize {
        0
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn park(&mut self, row: DirtyRow<'_>) {
        unreachable!("row {} of table {} is not in the cache", row.key, row.table)
    }

    fn is_parked(&self, _: u16, _: u64) -> bool {
        false
    }

    fn unpark(&mut self, _: u16, _: u64) -> bool {
        false
    }

    fn flush(&mut self, _: u32) -> Result<u64> {
        Ok(0)
    }

    fn write_place(&self, _: u16, _: u64) -> u64 {
        0
    }

    fn sorts_writes(&self) -> bool {
        false
    }

    /// Durable on return.
    fn append(&mut self, row: DirtyRow<'_>) -> Result<u32> {
        let Some(region) = self.region(row.table) else {
            bail!(Unsupported, "table {} has no region at this commit", row.table);
        };
        let writer = region.write();
        writer.check_room(&[row.key])?;
        let mut found = [false];
        region.contains(&[row.key], &mut found)?;
        writer.put(&[row.key], row.words, u64::from(!found[0]))?;
        Ok(STORED)
    }

    fn delete(&mut self, table: u16, key: u64, _: Option<u32>) {
        if let Some(region) = self.region(table) {
            // A region that could not remove it takes no changes any more, and says so.
            let _ = region.write().remove(&[key]);
        }
    }

    fn shrink_index(&mut self, _: u16, _: usize) {}
}

impl StorageJournal for Pmem {
    fn cut(&mut self, wants_record: bool) -> Result<Cut> {
        let began = self.position;
        (self.position, self.commit) = (began + 1, self.commit + 1);
        self.regions().try_for_each(|region| region.note_commit(self.commit))?;
        Ok(Cut {
            unsynced: None,
            began: Some(began),
            position: self.position,
            index_bytes: 0,
            record: wants_record.then(String::new),
            partitions: self.partitions(),
            written: self.stats().written,
        })
    }

    fn change_bytes(&self) -> usize {
        0
    }

    fn drain_changes(&mut self, _: &mut Vec<u8>) {}

    fn write_out(&mut self) -> Result<()> {
        Ok(())
    }

    fn journal_bytes_for(&self, _: u64) -> u64 {
        0
    }

    fn changes_are_many(&self) -> bool {
        false
    }

    fn pieces(&self, _: u16) -> u32 {
        0
    }

    fn write_piece(&self, _: u16, _: u32, _: &mut Vec<u8>) {}
}

impl StorageSpace for Pmem {
    fn disk_bytes(&self) -> u64 {
        self.sum(Region::disk_bytes)
    }

    fn rows_of_cut(&self) -> u64 {
        0
    }

    fn lacking_bytes(&self, _: u64, _: u64) -> u64 {
        0
    }

    fn growth_for(&self, _: u64, _: u64) -> u64 {
        0
    }

    fn reserve(&mut self, _: u64, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn give_back(&mut self, _: u64, _: u64, _: u64, _: Option<u64>) -> Result<()> {
        Ok(())
    }

    fn held_bytes(&self, _: u64, _: u64) -> u64 {
        0
    }
}

impl StorageUpkeep for Pmem {
    /// Regions have the rows of the last commit alone, which has no table that was dropped before.
    fn drop_commits_before(&mut self, _: u64, _: u64) {
        for table in std::mem::take(&mut self.dropped) {
            self.remove_region(table);
        }
    }

    fn owe(&mut self, _: u64) {}

    fn rows_per_unit(&self) -> u64 {
        0
    }

    fn room_for_upkeep(&self, _: Option<u64>) -> u64 {
        0
    }

    fn lacks(&self, _: u64, _: u64, _: u64) -> bool {
        false
    }

    fn settle(&mut self, _: u64) -> bool {
        false
    }

    fn clean_unit(
        &mut self,
        _: SpaceBound,
        _: u64,
        _: u64,
        _: &dyn Residents,
    ) -> Result<Option<UnitReport>> {
        Ok(None)
    }

    fn expect_bound(&mut self, _: Option<u64>) {}
}

impl StorageBudget for Pmem {
    fn equip(&mut self, _: Share, _: &dyn Medium) -> Result<()> {
        Ok(())
    }

    fn index_growth(&self, _: u16, _: u64) -> u64 {
        0
    }

    fn memory(&self) -> StorageMemory {
        StorageMemory { index_bytes: self.sum(Region::memory_bytes), buffer_bytes: 0 }
    }
}

impl StorageCounts for Pmem {
    fn stats(&self) -> StorageStats {
        let rows = self.sum(Region::count);
        StorageStats {
            disk_bytes: self.sum(Region::disk_bytes),
            newest_copies: rows,
            retained_copies: 0,
            rows_per_page: 1,
            used_slots: rows,
            index_bytes: self.sum(Region::memory_bytes),
            written: Written {
                rows: self.written_before + self.sum(Region::written),
                rows_moved: 0,
                pages: 0,
            },
            merged: MergeCounts::default(),
        }
    }

    fn rows_stored(&self, table: u16) -> u64 {
        self.region(table).map_or(0, |region| region.count())
    }

    fn outdated_bytes(&self) -> u64 {
        0
    }
}

impl StorageTables for Pmem {
    fn create_table(&mut self, facts: &TableFacts<'_>) -> Result<Option<u32>> {
        let folders = &self.medium.regions().ok_or_else(no_folder)?;
        let capacity = facts.capacity.or(facts.num_embeddings);
        let Some(capacity) = capacity else {
            bail!(Misuse, "table '{}' grows and has no capacity", facts.name);
        };
        let geometry = Geometry::new(capacity, self.facts.row_bytes).map_err(told)?;
        let (seed, table, name) = (self.facts.seed, facts.table, facts.name);
        let place = Place { folders, seed, table, name };
        let region = Region::create(&place, geometry)?;
        self.tables.insert(facts.table, Some(region));
        let grows = facts.num_embeddings.is_none();
        if grows {
            self.growing.insert(facts.table);
        }
        // A growing table's record says so.
        Ok(grows.then_some(1))
    }

    fn remove_table(&mut self, table: u16) {
        self.drop_table(table);
        self.dropped.retain(|dropped| *dropped != table);
        self.remove_region(table);
    }

    /// Its region goes with the next commit.
    fn drop_table(&mut self, table: u16) {
        self.growing.remove(&table);
        if let Some(Some(region)) = self.tables.remove(&table) {
            self.written_before += region.written();
            region.rehoming.stop();
        }
        self.dropped.push(table);
    }

    /// The region finds any id, and has room for as many rows as before.
    fn grow_table(&mut self, _: u16, _: u64) -> Result<()> {
        Ok(())
    }
}
