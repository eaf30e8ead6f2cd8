//! A random life of a storage beside a plain model, led as the store leads it: room before rows,
//! changes to a journal, commits, pieces in cycles, upkeep that is paid for.

use super::journal::{Commit, Journal, Record, TableOfLife};
use super::look::Looked;
use super::{Random, Subject};
use crate::config::{Merging, StorageKind, Stretch};
use crate::error::ErrorKind;
use crate::hash::mix;
use crate::io::{Buffers, File, Medium, OpenMode, SimMedium};
use crate::storage::{
    ClassFacts, Cut, Demand, DirtyRow, FreezePlan, OpenAt, PageLayout, PageReader, Parts,
    Placement, Residents, SpaceBound, Storage, StorageRecovery, StretchPoints, SweptRow, Unit,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const ROW_WORDS: usize = 64;
const PAGE_BYTES: usize = 2048;
/// Pages written after an opening have larger sequences than those before, by the term.
const TERM_SHIFT: u32 = 40;
/// After so many changes a schedule has ended and another begun.
const CHANGES_PER_SCHEDULE: u32 = 400;

/// A table and a key.
pub(super) type RowKey = (u16, u64);
/// Rows by what they hold: the number of the change that made them.
pub(super) type Rows = BTreeMap<RowKey, u32>;

/// The words that a change gives a row.
pub(super) fn words_of((table, key): RowKey, change: u32) -> [f32; ROW_WORDS] {
    std::array::from_fn(|at| match at {
        0 => f32::from(table),
        1 => (mix(key, 3) & 0xFFFF) as f32,
        _ => change as f32 + at as f32 / 64.0,
    })
}

/// A storage and what it should have.
pub(super) struct Life {
    pub(super) subject: &'static Subject,
    pub(super) medium: Arc<SimMedium>,
    pub(super) file: Arc<dyn File>,
    pub(super) facts: ClassFacts,
    pub(super) storage: Box<dyn Storage>,
    pub(super) reader: PageReader,
    pub(super) random: Random,
    pub(super) tables: Vec<TableOfLife>,
    /// Newest stored copies, and rows that wait.
    pub(super) stored: Rows,
    pub(super) parked: Rows,
    /// Origins of stored rows, as a cache would remember them, where they are known.
    pub(super) origins: BTreeMap<RowKey, u32>,
    pub(super) journal: Journal,
    /// Whether more rows are deleted than changed, so that indexes become smaller.
    shrinks: bool,
    /// Changes so far.
    change: u32,
    term: u64,
    /// Rows written since the storage began, and rows changed since the journal had all.
    pub(super) written: u64,
    unjournaled: u64,
    /// The unit of upkeep that is under way.
    unit: Option<Box<dyn Unit>>,
    /// Whether rows that are put may wait.
    parks: bool,
    /// Units whose outcome was taken over.
    pub(super) units: u64,
    /// Rows that were read from pages, and that had moved meanwhile.
    pub(super) read: u64,
    pub(super) moved: u64,
}

impl Life {
    /// The medium as storages take it.
    pub(super) fn medium(&self) -> Arc<dyn Medium> {
        self.medium.clone()
    }

    /// A life that begins with empty tables: two dense, two growing.
    pub(super) fn new(subject: &'static Subject, seed: u64) -> Self {
        let medium = Arc::new(SimMedium::new(seed));
        let file = medium.open("rows-0", OpenMode::CreateNew).unwrap();
        let facts = ClassFacts {
            class: 0,
            kind: subject.kind,
            row_bytes: ROW_WORDS * 4,
            page_bytes: PAGE_BYTES,
            segment_bytes: 16 * PAGE_BYTES as u64,
            seed: 7,
            merging: Merging::default(),
        };
        let shared: Arc<dyn Medium> = medium.clone();
        let storage = (subject.create)(&facts, file.clone(), 1, &shared).unwrap();
        let mut life = Self {
            subject,
            reader: reader(&medium),
            medium,
            file,
            facts,
            storage,
            random: Random(seed),
            tables: Vec::new(),
            stored: Rows::new(),
            parked: Rows::new(),
            origins: BTreeMap::new(),
            journal: Journal::new(),
            shrinks: false,
            change: 0,
            term: 1,
            written: 0,
            unjournaled: 0,
            unit: None,
            // A storage that is durable by update never parks rows.
            parks: !subject.is_direct,
            units: 0,
            read: 0,
            moved: 0,
        };
        life.equip(0);
        for (rows, keys) in [(Some(150), 150), (None, 600), (None, 40), (Some(30), 30)] {
            life.create_table(rows, keys);
        }
        life
    }

    /// A reader of one of the kept commits, beside this life.
    pub(super) fn reader_at(&self, commit: &Commit) -> Self {
        self.reader_of(self.replayed(commit), commit)
    }

    /// A reader of a commit, of which there is a recovery.
    pub(super) fn reader_of(&self, recovery: Box<dyn StorageRecovery>, commit: &Commit) -> Self {
        let at = OpenAt {
            commit: commit.number,
            position: commit.position,
            is_newest: true,
            write_after: None,
        };
        let file = self.medium.open("rows-0", OpenMode::ReadOnly).unwrap();
        Self {
            subject: self.subject,
            medium: self.medium.clone(),
            reader: reader(&self.medium),
            storage: recovery.finish(&at, file.clone(), &self.medium()).unwrap(),
            file,
            facts: self.facts,
            random: Random(commit.number),
            tables: commit.tables.clone(),
            stored: commit.rows.clone(),
            parked: Rows::new(),
            origins: BTreeMap::new(),
            journal: Journal::new(),
            shrinks: false,
            change: self.change,
            term: 0,
            written: 0,
            unjournaled: 0,
            unit: None,
            parks: true,
            units: 0,
            read: 0,
            moved: 0,
        }
    }

    /// The storage after a replay of the journal up to a commit.
    pub(super) fn replayed(&self, commit: &Commit) -> Box<dyn StorageRecovery> {
        let (base, number) = self.journal.base();
        let begin = |record: &str| {
            (self.subject.recovery)(&self.facts, record, 0, self.journal.oldest).unwrap()
        };
        let mut recovery = begin(&base.record);
        for table in &base.tables {
            recovery.table(&table.facts(false)).unwrap();
        }
        self.journal.replay(&mut *recovery, (number, 0), commit, true, &mut None).unwrap();
        recovery
    }

    /// Opens the storage again to write, at one of the kept commits; those behind it are given up.
    pub(super) fn reopen(&mut self, commit: &Commit) {
        self.reopen_beside(commit, &[]);
    }

    /// As [`reopen`](Self::reopen), with pinned commits: the storage is told of them first.
    pub(super) fn reopen_beside(&mut self, commit: &Commit, pins: &[(u64, &Parts)]) {
        self.journal.cut_behind(commit);
        let recovery = self.replayed(commit);
        self.term += 1;
        let write_after = Some(self.term << TERM_SHIFT);
        let at = OpenAt {
            commit: commit.number,
            position: commit.position,
            is_newest: true,
            write_after,
        };
        self.storage = recovery.finish(&at, self.file.clone(), &self.medium()).unwrap();
        pins.iter().for_each(|(pin, parts)| self.storage.pin(*pin, parts).unwrap());
        // Anything written after that commit is left over.
        self.unit = None;
        self.tables.clone_from(&commit.tables);
        self.stored.clone_from(&commit.rows);
        self.parked.clear();
        self.origins.clear();
        (self.written, self.unjournaled) = (0, 0);
        self.equip(0);
    }

    /// Opens a storage again that is durable by update: all its rows are there.
    pub(super) fn reopen_by_update(&mut self) {
        self.commit(2);
        let newest = self.journal.kept().pop().expect("there is a commit");
        let recovery = self.replayed(&newest);
        // The one that is open has the regions.
        let other = self.medium.open(&format!("rows-{}", self.term), OpenMode::CreateNew).unwrap();
        let facts = ClassFacts { class: 1, ..self.facts };
        self.storage = (self.subject.create)(&facts, other, 1, &self.medium()).unwrap();
        self.term += 1;
        let write_after = Some(self.term << TERM_SHIFT);
        let (commit, position) = (newest.number, newest.position);
        let at = OpenAt { commit, position, is_newest: true, write_after };
        self.storage = recovery.finish(&at, self.file.clone(), &self.medium()).unwrap();
        self.origins.clear();
        (self.written, self.unjournaled) = (0, 0);
        self.equip(0);
    }

    /// Makes a storage of it at a later commit, while it is open.
    pub(super) fn go_on_by_update(&mut self) {
        let tables = self.tables.clone();
        let facts: Vec<_> = tables.iter().map(|table| table.facts(false)).collect();
        let mut recovery = self.storage.go_on(&facts, 1, 1).unwrap();
        while self.storage.copy_more(&mut *recovery) {}
        let at = OpenAt { commit: 1, position: 0, is_newest: true, write_after: Some(1) };
        self.storage = recovery.finish(&at, self.file.clone(), &self.medium()).unwrap();
    }

    /// Fills a region of a growing table: `Full` changes nothing, and rows that are there are
    /// changed all the same.
    pub(super) fn fill_a_region(&mut self) {
        let table = self.tables[1].clone();
        (0..table.keys).for_each(|at| self.put(self.key_of(&table, at)));
        let before = self.storage.stats();
        let (key, words) = (self.key_of(&table, table.keys), [0.0; ROW_WORDS]);
        let row = DirtyRow {
            table: key.0,
            key: key.1,
            dirty_since: 1,
            origin: Some(0),
            stretch: None,
            words: &words,
        };
        let error = self.storage.append(row).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert!(error.message().contains("embedrock resize"), "{error}");
        assert_eq!(self.storage.stats(), before);
        self.put(self.key_of(&table, 0));
        self.delete(self.key_of(&table, 1));
        self.put(self.key_of(&table, 1));
        self.check();
    }

    pub(super) fn create_table(&mut self, rows: Option<u64>, keys: u64) {
        let (id, packed) = (self.tables.len() as u16, self.subject.packed);
        let name = format!("table {id}");
        let mut table = TableOfLife { id, name, rows, keys, packed, partitions: None };
        table.partitions = self.storage.create_table(&table.facts(true)).unwrap();
        self.journal.push(Record::Table(table.clone()));
        self.tables.push(table);
    }

    /// Gives the storage what it would get of so many bytes.
    pub(super) fn equip(&mut self, bytes: u64) {
        let demand = Demand {
            kind: self.facts.kind,
            row_bytes: self.facts.row_bytes,
            page_bytes: PAGE_BYTES,
        };
        let share = demand.share_of(bytes);
        self.flush();
        self.reserve(0);
        self.storage.write_out().unwrap();
        let changes = self.storage.change_bytes();
        self.storage.equip(share, &*self.medium).unwrap();
        assert_eq!(self.storage.change_bytes(), changes);
        assert!(self.subject.is_direct || self.storage.room() == share.parked_rows());
    }

    /// A key of a table, by its number.
    pub(super) fn key_of(&self, table: &TableOfLife, at: u64) -> RowKey {
        (table.id, if table.rows.is_some() { at } else { mix(at, 77) })
    }

    /// All rows that could be.
    pub(super) fn keys(&self) -> Vec<RowKey> {
        let keys = |table| (0..TableOfLife::keys(table)).map(move |at| self.key_of(table, at));
        self.tables.iter().flat_map(keys).collect()
    }

    pub(super) fn random_key(&mut self) -> RowKey {
        // The largest table, which is a growing one, has half of the changes.
        let others = self.random.below(self.tables.len() as u64) as usize;
        let table = if self.random.one_in(2) { 1 } else { others };
        let at = self.random.below(self.tables[table].keys);
        self.key_of(&self.tables[table], at)
    }

    pub(super) fn newest(&self, key: RowKey) -> Option<u32> {
        self.parked.get(&key).or_else(|| self.stored.get(&key)).copied()
    }

    /// Makes room for what waits, `rows` more and the end of an epoch.
    pub(super) fn reserve(&mut self, rows: u64) {
        let rows = self.storage.parked() as u64 + rows + self.storage.rows_of_cut();
        let spare = self.storage.room_for_upkeep(None);
        self.storage.reserve(rows, spare, u64::MAX).unwrap();
        assert_eq!(self.storage.lacking_bytes(rows, spare), 0);
    }

    /// Changes a row, which waits then or is written.
    pub(super) fn put(&mut self, key: RowKey) {
        let parks = self.parks && self.random.one_in(2);
        if parks && self.storage.room() == 0 {
            self.flush();
        }
        // Whether it is written now or later.
        self.reserve(1);
        let looked = self.look_up(&[key], &mut |_| {})[0];
        if looked.is_some_and(|looked| looked.is_parked) {
            assert!(self.storage.unpark(key.0, key.1));
            self.parked.remove(&key);
        }
        let origin = self.origin_to_tell(key, looked);
        self.change += 1;
        let words = words_of(key, self.change);
        let dirty_since = self.change;
        self.change_schedule();
        let stretch = self.stretch();
        let row =
            DirtyRow { table: key.0, key: key.1, dirty_since, origin, stretch, words: &words };
        if parks {
            self.storage.park(row);
            self.parked.insert(key, self.change);
            return;
        }
        let origin = self.storage.append(row).unwrap();
        assert_ne!(origin, 0, "0 stands for no copy");
        self.origins.insert(key, origin);
        self.stored.insert(key, self.change);
        self.count_changes(1);
        self.keep_up(1);
    }

    /// Now and then a schedule begins, or ends.
    fn change_schedule(&mut self) {
        match self.change % CHANGES_PER_SCHEDULE {
            0 => self.storage.close_stretches().unwrap(),
            at if at == CHANGES_PER_SCHEDULE / 2 => {
                let points = StretchPoints { count: 5, width: 2 };
                self.storage.open_stretches(points).unwrap();
                // Rows of each stretch may take a page of their own.
                self.reserve(1);
            }
            _ => {}
        }
    }

    /// The stretch that uses the row of this change next, of most rows.
    fn stretch(&self) -> Option<Stretch> {
        let stretch = mix(self.change.into(), 78) % 12;
        (stretch < 10).then(|| Stretch::of(u64::from(self.change / 50) + stretch))
    }

    /// The origin of a row; of a dense table the storage may know it alone.
    fn origin_to_tell(&mut self, (table, _): RowKey, looked: Option<Looked>) -> Option<u32> {
        let is_dense = self.tables[usize::from(table)].rows.is_some();
        if is_dense && self.random.one_in(2) {
            return None;
        }
        looked.map_or(Some(0), |looked| looked.origin)
    }

    pub(super) fn delete(&mut self, key: RowKey) {
        let looked = self.look_up(&[key], &mut |_| {})[0];
        let waited = self.parked.remove(&key).is_some();
        assert_eq!(self.storage.unpark(key.0, key.1), waited);
        let origin = self.origin_to_tell(key, looked);
        self.storage.delete(key.0, key.1, origin);
        self.stored.remove(&key);
        self.origins.remove(&key);
        self.count_changes(1);
        if !self.journal.is_in_cycle() {
            self.storage.shrink_index(key.0, 1);
        }
    }

    pub(super) fn flush(&mut self) {
        self.reserve(0);
        let rows = self.storage.flush(self.change).unwrap();
        assert_eq!(rows, self.parked.len() as u64);
        assert_eq!(self.storage.parked(), 0);
        for (key, change) in std::mem::take(&mut self.parked) {
            self.stored.insert(key, change);
            self.origins.remove(&key);
        }
        self.count_changes(rows);
        self.keep_up(rows);
    }

    /// Counts written and deleted rows; the journal takes no more for them than is said.
    fn count_changes(&mut self, rows: u64) {
        self.written = self.storage.stats().written.rows;
        self.unjournaled += rows;
        if self.storage.changes_are_many() && self.random.one_in(4) {
            self.spill();
        }
    }

    /// Upkeep that these rows pay for.
    fn keep_up(&mut self, rows: u64) {
        self.storage.owe(rows);
        while self.storage.settle(u64::MAX) {
            let moves = Moves::default();
            let rows = self.storage.parked() as u64 + self.storage.rows_per_unit();
            let bound = SpaceBound::Most(u64::MAX);
            let unit = self.storage.clean_unit(bound, rows, u64::MAX, &moves).unwrap();
            let Some(unit) = unit else { break };
            let moves = moves.0.into_inner();
            assert_eq!(unit.rows_moved, moves.len() as u64);
            self.unjournaled += unit.rows_moved;
            for (key, old, new) in moves {
                assert!(self.stored.contains_key(&key) && !self.parked.contains_key(&key));
                if let Some(origin) = self.origins.get_mut(&key) {
                    assert_eq!(std::mem::replace(origin, new), old);
                }
            }
        }
        self.reserve(0);
        self.go_on_with_unit();
    }

    /// Does the unit that is due, as far as rows have paid for it.
    fn go_on_with_unit(&mut self) {
        if self.unit.is_none() && self.random.one_in(2) {
            let before = self.storage.disk_bytes();
            // With what was left for upkeep, or else with more.
            self.unit = self.storage.begin_unit(0).unwrap();
            assert!(self.storage.disk_bytes() <= before);
            if self.unit.is_none() {
                self.unit = self.storage.begin_unit(u64::MAX).unwrap();
            }
            if self.subject.kind == StorageKind::Pages && self.random.one_in(8) {
                self.begin_freeze();
            }
        }
        while let Some(mut unit) = self.unit.take() {
            if self.random.one_in(60) {
                self.storage.abandon_unit(unit, None).unwrap();
                return;
            }
            if !self.storage.owes_steps() {
                self.unit = Some(unit);
                return;
            }
            self.storage.pay_step();
            let goes_on = unit.step().unwrap();
            match goes_on {
                true => self.unit = Some(unit),
                false => self.take_over(unit),
            }
        }
    }

    /// Begins to freeze what is stored: most keys have places, whether they are stored or not, and
    /// some have replicas.
    fn begin_freeze(&mut self) {
        let mut rows = self.keys();
        rows.retain(|_| !self.random.one_in(9));
        rows.sort_unstable_by_key(|(table, key)| mix(*key, u64::from(*table)));
        let holds = PageLayout::new(PAGE_BYTES, ROW_WORDS * 4, 0, 0).unwrap().rows_per_page;
        let count = rows.len() as u32;
        let mut placement = Placement { rows, replica_starts: vec![0], ..Placement::default() };
        placement.page_ends.extend((0..count).step_by(holds).skip(1));
        placement.page_ends.push(count);
        for _ in 0..count / 20 {
            let mut page: Vec<u32> =
                (0..holds).map(|_| self.random.below(u64::from(count)) as u32).collect();
            page.sort_unstable();
            page.dedup();
            placement.replica_rows.extend(page);
            placement.replica_starts.push(placement.replica_rows.len() as u32);
        }
        let plan = FreezePlan { placement, candidates_max: 4, memory: 0 };
        let Ok(mut unit) = self.storage.begin_freeze(plan) else { return };
        for table in 0..self.tables.len() as u16 {
            let mut sweep = self.storage.sweep(Some(table));
            loop {
                self.storage.advance(&mut *sweep);
                let mut push = |rows: &mut dyn Iterator<Item = SweptRow<'_>>| {
                    for row in rows {
                        unit.push(row, true)?;
                    }
                    Ok(())
                };
                if sweep.read(3, &mut self.reader, &mut push).unwrap().is_none() {
                    break;
                }
            }
            self.storage.end_read(sweep.ticket());
        }
        self.unit = Some(unit);
    }

    /// Gives up the unit that is under way, if one is.
    pub(super) fn abandon_unit(&mut self) {
        if let Some(unit) = self.unit.take() {
            self.storage.abandon_unit(unit, None).unwrap();
        }
    }

    fn take_over(&mut self, unit: Box<dyn Unit>) {
        let per_unit = self.storage.rows_per_unit();
        self.storage.install(unit, &Moves::default()).unwrap();
        self.unjournaled += per_unit;
        self.units += 1;
        loop {
            // Rows that the unit took may be written again, in the very places that they had.
            self.parks = false;
            for _ in 0..self.random.below(60) {
                let key = self.random_key();
                self.put(key);
            }
            self.parks = !self.subject.is_direct;
            let moves = Moves::default();
            let goes_on = self.storage.install_more(&moves).unwrap();
            self.unjournaled += per_unit;
            for (key, old, new) in moves.0.into_inner() {
                assert!(self.stored.contains_key(&key) && !self.parked.contains_key(&key));
                if let Some(origin) = self.origins.get_mut(&key) {
                    assert_eq!(std::mem::replace(origin, new), old);
                }
            }
            if !goes_on {
                return;
            }
        }
    }

    /// Hands the changes that wait to the journal.
    pub(super) fn spill(&mut self) {
        let (bytes, mut changes) = (self.storage.change_bytes(), Vec::new());
        // A merge follows a delete, and takes its bytes.
        let most = self.storage.journal_bytes_for(self.unjournaled);
        assert!(bytes as u64 <= most, "{bytes} bytes for {} rows", self.unjournaled);
        self.storage.drain_changes(&mut changes);
        assert_eq!((changes.len(), self.storage.change_bytes()), (bytes, 0));
        self.unjournaled = 0;
        if bytes > 0 {
            self.journal.push(Record::Changes(changes));
        }
    }

    /// Commits all rows, of which the journal keeps the last `keep` commits.
    pub(super) fn commit(&mut self, keep: u64) {
        self.flush();
        self.reserve(0);
        let wants_record = !self.journal.is_in_cycle();
        let cut = self.storage.cut(wants_record).unwrap();
        assert_eq!(cut.record.is_some(), wants_record);
        self.spill();
        let tables = self.tables.iter().map(|table| table.id);
        let number = self.journal.next_number();
        // Most cycles last for several commits, during which tables change and are divided.
        let pieces = if self.random.one_in(8) { u64::MAX } else { 1 + self.random.below(3) };
        self.journal.write_pieces(&*self.storage, tables, pieces);
        let Cut { began, position, .. } = cut;
        assert!(began.is_none_or(|began| began <= position));
        self.journal.commit(Commit {
            number,
            place: (0, 0),
            began,
            position,
            rows: self.stored.clone(),
            tables: self.tables.clone(),
        });
        if let Some(record) = cut.record.filter(|_| self.random.one_in(2)) {
            for table in &mut self.tables {
                let found = cut.partitions.iter().find(|(id, _)| *id == table.id);
                table.partitions = found.map(|(_, partitions)| *partitions);
            }
            self.journal.begin_file(record, self.tables.clone());
        }
        self.journal.oldest = (number + 1).saturating_sub(keep).max(self.journal.oldest);
        self.storage.drop_commits_before(self.journal.oldest, self.journal.oldest);
    }

    /// A step of a life.
    pub(super) fn step(&mut self) {
        if self.random.one_in(700) {
            self.shrinks = !self.shrinks;
        }
        let puts = if self.shrinks { 20 } else { 165 };
        match self.random.below(200) {
            kind if kind < puts => {
                let key = self.random_key();
                self.put(key);
            }
            0..180 => {
                let key = self.random_key();
                self.delete(key);
            }
            180..184 => self.flush(),
            184..192 => self.spill(),
            192..194 => self.give_back(),
            194 => {
                let bytes = self.random.below(64) << 20;
                self.equip(bytes);
            }
            _ => {
                let keep = 1 + self.random.below(4);
                self.commit(keep);
            }
        }
    }

    fn give_back(&mut self) {
        let rows = self.storage.parked() as u64 + self.storage.rows_of_cut();
        let spare = self.storage.room_for_upkeep(None);
        let wanted = self.random.one_in(2).then_some(1 << 20);
        // The bytes held for reads are known only once files were removed.
        self.storage.give_back(rows, 0, spare, Some(0)).unwrap();
        let (lacking, bytes) = (self.storage.lacking_bytes(rows, spare), self.storage.disk_bytes());
        self.storage.give_back(rows, 0, spare, wanted).unwrap();
        assert!(self.storage.lacking_bytes(rows, spare) <= lacking, "what is needed stays");
        assert!(self.storage.disk_bytes() <= bytes);
    }
}

/// A reader of its own queue.
pub(super) fn reader(medium: &SimMedium) -> PageReader {
    let queue = medium.queue(8, Buffers::equal(8, 2 * PAGE_BYTES)).unwrap();
    PageReader::new(queue, PAGE_BYTES, None, true)
}

/// Rows that upkeep has moved: from where and to where. No row is dirty in a cache.
#[derive(Default)]
struct Moves(RefCell<Vec<(RowKey, u32, u32)>>);

impl Residents for Moves {
    fn is_dirty(&self, _: u16, _: u64) -> bool {
        false
    }

    fn are_being_written(&self) -> bool {
        false
    }

    fn moved(&self, table: u16, key: u64, old: u32, new: u32) {
        self.0.borrow_mut().push(((table, key), old, new));
    }
}
