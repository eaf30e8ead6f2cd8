//! A storage over maps in memory: the second subject of the contract suite.
//!
//! It has no pages, no index and no segments, so abilities of a log alone have no place in the
//! contract. It hands whole rows and deletes to the journal, so recovery brings the rows back. Its
//! file only takes the room that the rows would. The origin of a row is the number of its writes:
//! different rows may have equal origins, which name no place.

use super::{
    Areas, Checked, ClassFacts, Cut, DirtyRow, Finding, Found, MergeCounts, PageAddress,
    PageReader, PageSource, Residents, Resolved, Share, SpaceBound, Storage, StorageBudget,
    StorageCounts, StorageJournal, StorageMemory, StorageRead, StorageSpace, StorageStats,
    StorageSweeps, StorageTables, StorageUpkeep, StorageWrite, Sweep, SweptRow, TableFacts,
    TakeRows, UnitReport, Want, Written,
};
use crate::error::{Result, bail};
use crate::io::{File, Medium};
use crate::metrics::ReadReport;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod recovery;

pub(super) use recovery::recovery;

/// Pieces of a table: a key belongs to the one that its remainder names.
const PIECES: u32 = 3;
/// Bytes that are counted beside a row.
const BESIDE_ROW: u64 = 16;
/// Rows that count as a page of a sweep.
const ROWS_TOGETHER: usize = 4;
/// Rows that may wait before a plan.
const ROOM_MIN: usize = 8;
/// Changes are handed to the journal when they are so long.
const PORTION_BYTES: usize = 4096;
/// Kinds of changes.
const ROW: u8 = 1;
const DELETE: u8 = 2;

/// Rows of a table, and how often each was written, deleted ones included.
#[derive(Clone, Default)]
struct MapTable {
    rows: BTreeMap<u64, Vec<f32>>,
    writes: BTreeMap<u64, u32>,
}

impl MapTable {
    /// Writes a row and says how often it was.
    fn put(&mut self, key: u64, words: &[f32]) -> u32 {
        self.rows.insert(key, words.to_vec());
        let writes = self.writes.entry(key).or_default();
        *writes += 1;
        *writes
    }

    /// The origin of a stored row, 0 for none.
    fn origin(&self, key: u64) -> u32 {
        if self.rows.contains_key(&key) { self.writes[&key] } else { 0 }
    }
}

type Tables = BTreeMap<u16, MapTable>;

/// A row that waits.
struct Parked {
    words: Vec<f32>,
    dirty_since: u32,
    origin: Option<u32>,
}

/// The file, of which no page is ever read.
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
        unreachable!("a map asked for {at:?}")
    }
}

/// The rows of one row class.
pub(super) struct MapStorage {
    facts: ClassFacts,
    pages: Arc<NoPages>,
    tables: Tables,
    parked: BTreeMap<(u16, u64), Parked>,
    /// Rows that may wait.
    capacity: usize,
    changes: Vec<u8>,
    /// Bytes that the file takes.
    taken: u64,
    tickets: BTreeSet<u64>,
    next_ticket: u64,
    /// Rows written since the begin, which is its position, and when the epoch began.
    position: u64,
    epoch_began: u64,
    written: u64,
}

impl super::StorageFreeze for MapStorage {}

impl super::StorageStretches for MapStorage {}

/// It has no files that a commit needs: its pieces are the rows.
impl super::StoragePins for MapStorage {}

impl super::StorageChanges for MapStorage {}

impl Storage for MapStorage {}

/// A map without tables.
pub(super) fn create(
    facts: &ClassFacts,
    file: Arc<dyn File>,
    _: u64,
    _: &Arc<dyn Medium>,
) -> Result<Box<dyn Storage>> {
    Ok(Box::new(MapStorage::new(*facts, file, Tables::new(), 0)?))
}

impl MapStorage {
    fn new(facts: ClassFacts, file: Arc<dyn File>, tables: Tables, position: u64) -> Result<Self> {
        let taken = file.len()?;
        Ok(Self {
            facts,
            pages: Arc::new(NoPages { file, page_bytes: facts.page_bytes }),
            tables,
            parked: BTreeMap::new(),
            capacity: ROOM_MIN,
            changes: Vec::new(),
            taken,
            tickets: BTreeSet::new(),
            next_ticket: 1,
            position,
            epoch_began: position,
            written: 0,
        })
    }

    fn table(&self, table: u16) -> &MapTable {
        self.tables.get(&table).expect("the table belongs to this class")
    }

    fn rows(&self) -> u64 {
        self.tables.values().map(|table| table.rows.len() as u64).sum()
    }

    fn bytes_of(&self, rows: u64) -> u64 {
        rows * (self.facts.row_bytes as u64 + BESIDE_ROW)
    }

    /// Bytes that are free beside those of `rows` more rows, if not less.
    fn free_beside(&self, rows: u64) -> u64 {
        self.taken.saturating_sub(self.bytes_of(self.rows() + rows))
    }

    fn change(&mut self, kind: u8, table: u16, key: u64, words: &[f32]) {
        self.changes.push(kind);
        self.changes.extend_from_slice(&table.to_le_bytes());
        put_row(&mut self.changes, key, words);
    }
}

fn put_row(out: &mut Vec<u8>, key: u64, words: &[f32]) {
    out.extend_from_slice(&key.to_le_bytes());
    out.extend_from_slice(bytemuck::cast_slice(words));
}

impl StorageRead for MapStorage {
    fn pages(&self) -> Arc<dyn PageSource> {
        self.pages.clone()
    }

    fn begin_read(&mut self) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.tickets.insert(ticket);
        ticket
    }

    fn end_read(&mut self, ticket: u64) {
        assert!(self.tickets.remove(&ticket), "ticket {ticket} runs");
    }

    fn prefetch(&self, table: u16, _: u64) {
        self.table(table);
    }

    fn find(&mut self, table: u16, key: u64, _: u32, _: &[Want], _: &mut Vec<Want>) -> Found<'_> {
        if let Some(Parked { words, dirty_since, origin }) = self.parked.get(&(table, key)) {
            return Found::Parked { words, dirty_since: *dirty_since, origin: *origin };
        }
        let table = self.table(table);
        match table.rows.get(&key) {
            Some(words) => Found::InMemory { words, origin: table.origin(key) },
            None => Found::Absent,
        }
    }

    fn read_order(&self, table: u16, key: u64) -> Option<u32> {
        self.contains(table, key)?.then_some(0)
    }

    fn is_exact(&self, _: u16) -> bool {
        true
    }

    fn contains(&self, table: u16, key: u64) -> Option<bool> {
        Some(self.is_parked(table, key) || self.table(table).rows.contains_key(&key))
    }

    fn verify_newest(&self, at: PageAddress, _: &[u8]) -> Result<()> {
        unreachable!("a map asked for {at:?}")
    }

    fn resolve<'p>(&self, _: u16, _: u64, want: &Want, _: &'p [u8]) -> Result<Resolved<'p>> {
        unreachable!("a map asked for {want:?}")
    }
}

/// Copies of the rows, some of which count as a page.
struct MapSweep {
    rows: Vec<(u16, u64, u32, Vec<f32>)>,
    next: usize,
    ticket: u64,
}

impl Sweep for MapSweep {
    fn read(
        &mut self,
        most: usize,
        _: &mut PageReader,
        each: &mut TakeRows<'_>,
    ) -> Result<Option<ReadReport>> {
        let end = (self.next + most * ROWS_TOGETHER).min(self.rows.len());
        let rows = &self.rows[self.next..end];
        if rows.is_empty() {
            return Ok(None);
        }
        self.next = end;
        each(&mut rows.iter().map(|(table, key, place, words)| SweptRow {
            table: *table,
            key: *key,
            place: *place,
            words,
        }))?;
        Ok(Some(ReadReport::default()))
    }

    fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl StorageSweeps for MapStorage {
    fn sweep(&mut self, only: Option<u16>) -> Box<dyn Sweep> {
        let tables = self.tables.iter().filter(|(id, _)| only.is_none_or(|only| only == **id));
        let rows = tables.flat_map(|(id, table)| {
            let row =
                |(key, words): (&u64, &Vec<f32>)| (*id, *key, table.origin(*key), words.clone());
            table.rows.iter().map(row)
        });
        let rows = rows.collect();
        Box::new(MapSweep { rows, next: 0, ticket: self.begin_read() })
    }

    fn advance(&mut self, _: &mut dyn Sweep) {}

    fn is_newest(&self, table: u16, key: u64, place: u32) -> bool {
        let found = self.tables.get(&table);
        place != 0
            && found.is_some_and(|table| table.origin(key) == place)
            && !self.is_parked(table, key)
    }

    fn areas(&self) -> Areas {
        Areas { file: self.pages.file.clone(), begins: Vec::new(), area_bytes: 0 }
    }

    fn check(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
        _: &mut dyn FnMut(Finding),
    ) -> Result<Checked> {
        progress(0, 0)?;
        Ok(Checked { pages: 0, rows: self.rows() })
    }
}

impl StorageWrite for MapStorage {
    fn parked(&self) -> usize {
        self.parked.len()
    }

    fn room(&self) -> usize {
        self.capacity - self.parked.len()
    }

    fn park(&mut self, row: DirtyRow<'_>) {
        assert!(self.room() > 0, "no row more can wait");
        let DirtyRow { table, key, dirty_since, origin, words, .. } = row;
        let parked = Parked { words: words.to_vec(), dirty_since, origin };
        assert!(self.parked.insert((table, key), parked).is_none(), "a row waits twice");
    }

    fn is_parked(&self, table: u16, key: u64) -> bool {
        self.parked.contains_key(&(table, key))
    }

    fn unpark(&mut self, table: u16, key: u64) -> bool {
        self.parked.remove(&(table, key)).is_some()
    }

    fn write_place(&self, _: u16, _: u64) -> u64 {
        0
    }

    fn sorts_writes(&self) -> bool {
        false
    }

    fn flush(&mut self, _: u32) -> Result<u64> {
        let parked = std::mem::take(&mut self.parked);
        let rows = parked.len() as u64;
        for ((table, key), Parked { words, dirty_since, origin }) in parked {
            self.append(DirtyRow {
                table,
                key,
                dirty_since,
                origin,
                stretch: None,
                words: &words,
            })?;
        }
        Ok(rows)
    }

    fn append(&mut self, row: DirtyRow<'_>) -> Result<u32> {
        let DirtyRow { table, key, origin, words, .. } = row;
        let before = self.table(table).origin(key);
        assert_eq!(before, origin.unwrap_or(before), "a row's origin is its newest stored copy");
        let bytes = self.bytes_of(self.rows() + 1);
        assert!(before != 0 || bytes <= self.taken, "room is made before it is used");
        self.change(ROW, table, key, words);
        self.position += 1;
        self.written += 1;
        let table = self.tables.get_mut(&table).expect("the table belongs to this class");
        Ok(table.put(key, words))
    }

    fn delete(&mut self, table: u16, key: u64, origin: Option<u32>) {
        let before = self.table(table).origin(key);
        assert_eq!(before, origin.unwrap_or(before), "a row's origin is its newest stored copy");
        let found = self.tables.get_mut(&table).and_then(|table| table.rows.remove(&key));
        if found.is_some() {
            self.change(DELETE, table, key, &[]);
        }
    }

    fn shrink_index(&mut self, _: u16, _: usize) {}
}

impl StorageJournal for MapStorage {
    fn cut(&mut self, wants_record: bool) -> Result<Cut> {
        let began = std::mem::replace(&mut self.epoch_began, self.position);
        Ok(Cut {
            unsynced: None,
            began: Some(began),
            position: self.position,
            index_bytes: self.bytes_of(self.rows()),
            record: wants_record.then(String::new),
            partitions: Vec::new(),
            written: self.stats().written,
        })
    }

    fn change_bytes(&self) -> usize {
        self.changes.len()
    }

    fn drain_changes(&mut self, into: &mut Vec<u8>) {
        into.append(&mut self.changes);
    }

    fn write_out(&mut self) -> Result<()> {
        Ok(())
    }

    fn journal_bytes_for(&self, rows: u64) -> u64 {
        self.bytes_of(rows)
    }

    fn changes_are_many(&self) -> bool {
        self.changes.len() >= PORTION_BYTES
    }

    fn pieces(&self, _: u16) -> u32 {
        PIECES
    }

    fn write_piece(&self, table: u16, piece: u32, out: &mut Vec<u8>) {
        let rows = self.table(table).rows.iter();
        for (key, words) in rows.filter(|(key, _)| piece_of(**key) == piece) {
            put_row(out, *key, words);
        }
    }
}

fn piece_of(key: u64) -> u32 {
    (key % u64::from(PIECES)) as u32
}

impl StorageSpace for MapStorage {
    fn disk_bytes(&self) -> u64 {
        self.taken
    }

    fn rows_of_cut(&self) -> u64 {
        0
    }

    fn lacking_bytes(&self, rows: u64, spare: u64) -> u64 {
        (self.bytes_of(self.rows() + rows) + spare).saturating_sub(self.taken)
    }

    fn growth_for(&self, rows: u64, spare: u64) -> u64 {
        self.lacking_bytes(rows, spare)
    }

    fn reserve(&mut self, rows: u64, spare: u64, grow_bytes: u64) -> Result<()> {
        let growth = self.growth_for(rows, spare);
        let file = &self.pages.file;
        if growth > grow_bytes {
            bail!(Full, "{} needs {growth} bytes and may grow by {grow_bytes}", file.name());
        }
        if growth > 0 {
            file.allocate(self.taken, growth)?;
            self.taken += growth;
        }
        Ok(())
    }

    fn give_back(
        &mut self,
        unwritten: u64,
        refused: u64,
        spare: u64,
        wanted: Option<u64>,
    ) -> Result<()> {
        let free = self.free_beside(unwritten + refused).saturating_sub(spare);
        let left = self.taken - wanted.map_or(free, |wanted| wanted.min(free));
        self.pages.file.set_len(left)?;
        self.taken = left;
        Ok(())
    }

    fn held_bytes(&self, _: u64, _: u64) -> u64 {
        0
    }
}

impl StorageUpkeep for MapStorage {
    fn drop_commits_before(&mut self, _: u64, _: u64) {}

    fn owe(&mut self, _: u64) {}

    fn rows_per_unit(&self) -> u64 {
        0
    }

    fn room_for_upkeep(&self, _: Option<u64>) -> u64 {
        0
    }

    fn lacks(&self, bytes: u64, unwritten: u64, spare: u64) -> bool {
        self.free_beside(unwritten) < spare + bytes
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

impl StorageBudget for MapStorage {
    fn equip(&mut self, share: Share, _: &dyn Medium) -> Result<()> {
        assert!(self.parked.is_empty(), "a plan is made when no row waits");
        self.capacity = share.parked_rows();
        Ok(())
    }

    fn index_growth(&self, table: u16, expected: u64) -> u64 {
        self.bytes_of(expected.saturating_sub(self.rows_stored(table)))
    }

    fn memory(&self) -> StorageMemory {
        let buffer_bytes = self.bytes_of(self.capacity as u64) + self.changes.capacity() as u64;
        StorageMemory { index_bytes: self.bytes_of(self.rows()), buffer_bytes }
    }
}

impl StorageCounts for MapStorage {
    fn stats(&self) -> StorageStats {
        StorageStats {
            merged: MergeCounts::default(),
            disk_bytes: self.taken,
            newest_copies: self.rows(),
            retained_copies: 0,
            rows_per_page: 1,
            used_slots: self.rows(),
            index_bytes: self.bytes_of(self.rows()),
            written: Written { rows: self.written, rows_moved: 0, pages: 0 },
        }
    }

    fn rows_stored(&self, table: u16) -> u64 {
        self.table(table).rows.len() as u64
    }

    fn outdated_bytes(&self) -> u64 {
        0
    }
}

impl StorageTables for MapStorage {
    fn create_table(&mut self, facts: &TableFacts<'_>) -> Result<Option<u32>> {
        self.tables.insert(facts.table, MapTable::default());
        Ok(None)
    }

    fn remove_table(&mut self, table: u16) {
        let table = self.tables.remove(&table).expect("the table belongs to this class");
        assert!(table.rows.is_empty(), "no row of it was written");
    }

    fn drop_table(&mut self, table: u16) {
        self.tables.remove(&table).expect("the table belongs to this class");
    }

    fn grow_table(&mut self, _: u16, _: u64) -> Result<()> {
        Ok(())
    }
}
