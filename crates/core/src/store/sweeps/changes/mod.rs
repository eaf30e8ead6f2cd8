//! Changes: the rows that were written and the keys that were deleted since an earlier commit.
//!
//! The journal names every row whose place changed. Those slots that it names and that still hold
//! the newest copy are read in one sweep; a key that left the log was deleted, or is looked up if a
//! layout has rows below its log. If the journal no longer reaches back to a commit that is pinned,
//! the indexes of both commits are compared. So no page is read that was written before,
//! except for keys that may have been deleted since a pinned commit.
//!
//! A row that upkeep has moved is given like one that was written: nothing tells them apart without
//! reading both. Deleted keys are exact.

mod journal;
mod removed;
mod since;

use crate::config::{CommitInfo, TableId, TableSpec};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::row::RowLayout;
use crate::storage::{RowChange, SlotSet};
use crate::store::engine::Engine;
use crate::store::sweeps::scan::Scan;
use crate::store::verbs::rows::{Effect, Keys, RowOp, RowView};
use crate::store::{Inner, Store};
use journal::{Between, OfTable};
use removed::{Removed, Shares};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Keys that have left the log of which so many are known at a time: 24 MiB.
const REMOVED_MAX: usize = 1 << 20;

/// The point at which changes begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// Before everything: all rows are given.
    Nothing,
    /// Behind the last commit of this step.
    Step(u64),
    /// Behind this very commit, by what is known of it. Another one of the same step, of a store
    /// that has gone back, does not pass for it.
    Commit {
        /// Number of the commit.
        sequence: u64,
        /// Its step.
        step: u64,
        /// When it was made, in seconds since 1970.
        unix_time: u64,
        /// Bytes that were written for it.
        bytes_written: u64,
    },
}

/// Some changes of one table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangedRows {
    /// Name of the table.
    pub table: String,
    /// Keys of rows that were written, `(N,)`.
    pub keys: Vec<u64>,
    /// Their values, `(N, embedding_dim)`.
    pub values: Vec<f32>,
    /// Their optimizer state, `(N, state_words)`; empty where it was not asked for.
    pub state: Vec<f32>,
    /// Keys that have no row any more.
    pub deleted: Vec<u64>,
}

/// A change of a table between two commits.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TableEvent {
    /// It was made, as it was then.
    Made(Box<TableSpec>),
    /// The one of this name was dropped.
    Dropped(String),
    /// The first is its name before, the second from there on.
    Renamed(String, String),
    /// The one of this name has so many ids.
    Grown(String, u64),
}

/// The changes between two commits, batch by batch. The later one is held meanwhile.
pub struct Changes {
    reader: Store,
    to: Option<CommitInfo>,
    tables: Vec<TableId>,
    events: Vec<TableEvent>,
    /// Whether the reader was moved to another commit: what is left is gone.
    moves: u64,
    source: Source,
    /// Tables whose rows are still to come; the first one's are under way.
    rows: VecDeque<TableId>,
    scan: Option<Scan>,
    deletes: Deletes,
    /// Keys to look up, of the share at hand.
    removed: VecDeque<Removed>,
}

/// Source of the changed rows.
enum Source {
    /// Nothing tells which rows changed: all rows are given.
    All,
    /// The journal.
    Journal {
        between: Between,
        /// By class, slots that were written.
        written: Vec<SlotSet>,
    },
    /// The earlier commit, which is pinned.
    Pinned(Store),
}

/// Source of deleted keys.
enum Deletes {
    /// From the journal, share by share.
    Shares(Shares),
    /// From rows of the earlier commit: tables to come, and the rows under way.
    Old(VecDeque<TableId>, Option<(TableId, Scan)>),
    /// There are none.
    None,
}

impl Store {
    /// The changes from a commit to the one that is open; of a store that is open to write, to its
    /// last one. Of these tables, or of all. A table that came since has all its rows.
    ///
    /// Each row that a verb wrote is given once, as it is in the later commit, and each key that
    /// was deleted since and has no row then. Rows that upkeep moved may be given, too.
    ///
    /// *Errors*: `NotFound` where neither the journal nor a pin leads back to the commit, with the
    /// steps from which there is a way; `Unsupported` where a table has storage `pmem`; `Budget`;
    /// as `open`. *Blocking*: reads the journal behind the earlier commit. *Memory*: a bit for each
    /// slot of the files of rows. A store that is open to write opens its last commit to read: a
    /// second index beside the budget, as long as the changes are read. Changes since a pinned
    /// commit that the journal does not reach take another one.
    pub fn changes(&self, since: &Since, tables: Option<&[TableId]>) -> Result<Changes> {
        self.changes_within(since, tables, REMOVED_MAX)
    }

    /// As `changes`, with room for so many removed keys at a time.
    pub(in crate::store) fn changes_within(
        &self,
        since: &Since,
        tables: Option<&[TableId]>,
        removed_max: usize,
    ) -> Result<Changes> {
        let inner = &*self.inner;
        inner.check_call()?;
        let moves = inner.moves.load(Ordering::Relaxed);
        let reader = match inner.options.read_only {
            true => self.clone(),
            false => inner.reader_of_last()?,
        };
        let to = reader.last_commit();
        let of_reader: Vec<TableId> = reader.tables().into_iter().map(|info| info.id).collect();
        let tables = match tables {
            None => of_reader,
            // One that was made after the commit has no changes in it.
            Some(tables) => of_reader.into_iter().filter(|id| tables.contains(id)).collect(),
        };
        let mut changes = Changes {
            reader,
            to,
            rows: tables.iter().copied().collect(),
            tables,
            events: Vec::new(),
            moves,
            source: Source::All,
            scan: None,
            deletes: Deletes::None,
            removed: VecDeque::new(),
        };
        changes.refuse_unversioned()?;
        let found = changes.find(since, removed_max);
        changes.reader.inner.as_committed(found)?;
        Ok(changes)
    }
}

impl Changes {
    /// The commit that the changes lead to; `None` for a store without any.
    pub fn commit(&self) -> Option<&CommitInfo> {
        self.to.as_ref()
    }

    /// Changes of all tables in between, in order: rows that come are of tables as they are in the
    /// later commit. None if the changes begin before everything.
    pub fn table_events(&self) -> &[TableEvent] {
        &self.events
    }

    /// Bytes of the journal that say what changed.
    pub fn journal_bytes(&self) -> u64 {
        match &self.source {
            Source::Journal { between, .. } => between.bytes(),
            _ => 0,
        }
    }

    /// Bytes read from pages so far, by the store that reads the later commit.
    pub fn bytes_read(&self) -> u64 {
        self.reader.inner.metrics.bytes_read.load(Ordering::Relaxed)
    }

    /// The next changes, of one table: at most so many rows, and as many deleted keys. `None` at
    /// the end.
    ///
    /// *Errors*: `Misuse` when the reader was refreshed meanwhile; as `get`.
    pub fn next_batch(&mut self, most: usize, with_state: bool) -> Result<Option<ChangedRows>> {
        if self.reader.inner.moves.load(Ordering::Relaxed) != self.moves
            && self.reader.inner.options.read_only
        {
            bail!(
                Misuse,
                "store {} was refreshed while its changes were read; ask for them again",
                self.reader.inner.path.display()
            );
        }
        let next = self.next_of_any(most.max(1), with_state);
        let inner = &self.reader.inner;
        inner.note_read();
        inner.as_committed(next)
    }

    fn next_of_any(&mut self, most: usize, with_state: bool) -> Result<Option<ChangedRows>> {
        while let Some(table) = self.rows.front().copied() {
            if let Some(batch) = self.next_rows(table, most, with_state)? {
                return Ok(Some(batch));
            }
            self.scan = None;
            self.rows.pop_front();
        }
        loop {
            while !self.removed.is_empty() {
                if let Some(batch) = self.next_removed(most, with_state)? {
                    return Ok(Some(batch));
                }
            }
            match &mut self.deletes {
                Deletes::None => return Ok(None),
                Deletes::Old(..) => return self.next_of_old(most),
                Deletes::Shares(_) => {
                    if !self.take_share()? {
                        self.deletes = Deletes::None;
                    }
                }
            }
        }
    }

    fn refuse_unversioned(&self) -> Result<()> {
        let engine = self.reader.inner.engine.read();
        let is_meant = |id: u16| self.tables.contains(&TableId(id));
        let direct = engine
            .tables
            .iter()
            .find(|table| is_meant(table.id()) && table.record.spec.storage.is_direct());
        if let Some(table) = direct {
            bail!(
                Unsupported,
                "table '{}' has storage \"pmem\": its rows are changed in place and have no \
                 versions, so nobody knows which changed since a commit; name other tables, or \
                 read all rows",
                table.record.spec.name
            );
        }
        Ok(())
    }

    /// Rows of a table that were written; `None` when all were given.
    fn next_rows(
        &mut self,
        table: TableId,
        most: usize,
        with_state: bool,
    ) -> Result<Option<ChangedRows>> {
        if self.scan.is_none() {
            self.scan = Some(self.scan_of(table)?);
        }
        let (name, layout) = self.shape(table)?;
        let compares = match &self.source {
            Source::Pinned(old) if !self.knows_slots(table)? => Some(old),
            _ => None,
        };
        let mut batch = ChangedRows { table: name, ..ChangedRows::default() };
        while batch.keys.len() < most {
            let Some(scan) = &mut self.scan else { break };
            let (keys, words) = scan.next_words(most - batch.keys.len())?;
            if keys.is_empty() {
                break;
            }
            let same = match compares {
                Some(old) => equal_rows(old, table, keys, words, layout.row_words())?,
                None => Vec::new(),
            };
            for (i, (key, row)) in keys.iter().zip(words.chunks(layout.row_words())).enumerate() {
                if same.get(i) != Some(&true) {
                    batch.push(*key, row, layout, with_state);
                }
            }
        }
        Ok((!batch.keys.is_empty()).then_some(batch))
    }

    /// Whether a table has all its rows in slots of a log.
    fn knows_slots(&self, table: TableId) -> Result<bool> {
        let inner = &*self.reader.inner;
        let engine = inner.planned_engine()?;
        let class = inner.table_of(&engine, table)?.class;
        Ok(!engine.classes[class].log.lock().has_rows_below())
    }

    /// The rows among which those of a table that were written are.
    fn scan_of(&self, table: TableId) -> Result<Scan> {
        match &self.source {
            Source::All => self.reader.scan_stored(table),
            Source::Journal { written, .. } => {
                let inner = &*self.reader.inner;
                let class = inner.table_of(&*inner.planned_engine()?, table)?.class;
                match written.get(class) {
                    Some(slots) => self.reader.scan_slots(table, slots),
                    None => self.reader.scan_slots(table, &SlotSet::default()),
                }
            }
            Source::Pinned(old) => match stored_slots(old, table)? {
                Some(slots) if self.knows_slots(table)? => {
                    self.reader.scan_slots(table, &slots.complement())
                }
                _ => self.reader.scan_stored(table),
            },
        }
    }

    fn shape(&self, table: TableId) -> Result<(String, RowLayout)> {
        let inner = &*self.reader.inner;
        let engine = inner.planned_engine()?;
        let found = inner.table_of(&engine, table)?;
        Ok((found.record.spec.name.clone(), found.layout))
    }

    /// Takes the next share of the keys that left the log; false where there is none.
    fn take_share(&mut self) -> Result<bool> {
        let inner = &*self.reader.inner;
        let engine = inner.planned_engine()?;
        let (Deletes::Shares(shares), Source::Journal { between, .. }) =
            (&mut self.deletes, &mut self.source)
        else {
            return Ok(false);
        };
        let tables = &self.tables;
        let share = shares.next(&mut |each| {
            let mut of_row = |_, change| {
                if tables.contains(&TableId(table_of(change))) {
                    each(change);
                }
            };
            read_changes(between, &engine, &mut of_row, &mut |_| Ok(()))
        })?;
        let Some(mut share) = share else { return Ok(false) };
        // In the order of the pages that are looked into, so that each is read once.
        let order = |of: &Removed| {
            let class = &engine.classes[engine.table(of.table)?.class];
            let log = class.log.lock();
            log.has_rows_below().then(|| log.read_order(of.table, of.key))
        };
        share.sort_by_cached_key(|of| (of.table, order(of)));
        self.removed = share.into();
        Ok(true)
    }

    /// Some removed keys of one table: deleted, or rows below the log that were written since.
    fn next_removed(&mut self, most: usize, with_state: bool) -> Result<Option<ChangedRows>> {
        let Some(table) = self.removed.front().map(|of| of.table) else { return Ok(None) };
        let alike = self.removed.iter().take(most).take_while(|of| of.table == table).count();
        let some: Vec<Removed> = self.removed.drain(..alike).collect();
        let table = TableId(table);
        let (name, layout) = self.shape(table)?;
        let mut batch = ChangedRows { table: name, ..ChangedRows::default() };
        if self.knows_slots(table)? {
            batch.deleted = some.iter().map(|of| of.key).collect();
            return Ok(Some(batch));
        }
        let keys: Vec<u64> = some.iter().map(|of| of.key).collect();
        let found = look_up(&self.reader, table, &keys, layout.row_words())?;
        for (i, of) in some.iter().enumerate() {
            if !found.written[i] {
                batch.deleted.push(of.key);
            } else if of.was_written {
                batch.push(of.key, found.row(i), layout, with_state);
            }
        }
        Ok((!batch.keys.is_empty() || !batch.deleted.is_empty()).then_some(batch))
    }

    /// Keys of the earlier commit that have no row in the later one.
    fn next_of_old(&mut self, most: usize) -> Result<Option<ChangedRows>> {
        let Source::Pinned(old) = &self.source else { return Ok(None) };
        let old = old.clone();
        loop {
            let Deletes::Old(tables, under_way) = &mut self.deletes else { return Ok(None) };
            if under_way.is_none() {
                let Some(table) = tables.pop_front() else { return Ok(None) };
                let scan = match (stored_slots(&old, table)?, stored_slots(&self.reader, table)?) {
                    (Some(_), Some(now)) => old.scan_slots(table, &now.complement())?,
                    _ => old.scan_stored(table)?,
                };
                *under_way = Some((table, scan));
            }
            let Some((table, scan)) = under_way else { continue };
            let table = *table;
            let keys = scan.next_words(most)?.0.to_vec();
            if keys.is_empty() {
                *under_way = None;
                continue;
            }
            let mut is_there = vec![false; keys.len()];
            self.reader.contains(table, &keys, &mut is_there)?;
            let gone = keys.iter().zip(is_there).filter(|(_, there)| !there);
            let deleted: Vec<u64> = gone.map(|(key, _)| *key).collect();
            if !deleted.is_empty() {
                let (table, _) = self.shape(table)?;
                return Ok(Some(ChangedRows { table, deleted, ..ChangedRows::default() }));
            }
        }
    }
}

impl ChangedRows {
    fn push(&mut self, key: u64, row: &[f32], layout: RowLayout, with_state: bool) {
        let at = self.values.len();
        self.keys.push(key);
        self.values.resize(at + layout.embedding_dim(), 0.0);
        layout.read_values(row, &mut self.values[at..]);
        if with_state {
            self.state.extend_from_slice(layout.split(row).1);
        }
    }
}

fn table_of(change: RowChange) -> u16 {
    match change {
        RowChange::Written { table, .. }
        | RowChange::Removed { table, .. }
        | RowChange::Deleted { table, .. } => table,
    }
}

/// Hands over the changes of rows in the journal, with the number of the class.
fn read_changes(
    between: &mut Between,
    engine: &Engine,
    each: &mut dyn FnMut(usize, RowChange),
    of_table: &mut dyn FnMut(OfTable) -> Result<()>,
) -> Result<()> {
    let mut of_class = |class: usize, changes: &[u8]| {
        let Some(of_class) = engine.classes.get(class) else {
            bail!(Corrupt, "a delta record names class {class}, which does not exist");
        };
        if of_class.is_direct {
            return Ok(());
        }
        of_class.log.lock().read_changes(changes, &mut |change| each(class, change))
    };
    between.read(&mut of_class, of_table)
}

/// Slots of the newest copies of a table; `None` where it has rows elsewhere, or is not there.
fn stored_slots(store: &Store, table: TableId) -> Result<Option<SlotSet>> {
    let engine = store.inner.planned_engine()?;
    let Some(found) = engine.table(table.0) else { return Ok(None) };
    Ok(engine.classes[found.class].log.lock().stored_slots(found.id()))
}

/// Rows that were looked up.
struct Looked {
    written: Vec<bool>,
    words: Vec<f32>,
    width: usize,
}

impl Looked {
    fn row(&self, at: usize) -> &[f32] {
        &self.words[at * self.width..][..self.width]
    }
}

impl RowOp for Looked {
    fn visit(&mut self, _: usize, position: usize, row: RowView<'_>) -> Effect {
        self.written[position] = row.written;
        self.words[position * self.width..][..self.width].copy_from_slice(row.words);
        Effect::Read
    }

    fn admits(&self) -> bool {
        false
    }
}

fn look_up(store: &Store, table: TableId, keys: &[u64], width: usize) -> Result<Looked> {
    let inner: &Inner = &store.inner;
    let engine = inner.planned_engine()?;
    let table = inner.table_of(&engine, table)?;
    let words = vec![0.0; keys.len() * width];
    let mut op = Looked { written: vec![false; keys.len()], words, width };
    inner.visit_rows(&engine, &[Keys { table, keys }], &mut op)?;
    Ok(op)
}

/// For each row, whether the earlier commit has it with equal bits.
fn equal_rows(
    old: &Store,
    table: TableId,
    keys: &[u64],
    words: &[f32],
    width: usize,
) -> Result<Vec<bool>> {
    if old.inner.planned_engine()?.table(table.0).is_none() {
        return Ok(Vec::new());
    }
    let found = look_up(old, table, keys, width)?;
    let bits = |row: &[f32]| -> Vec<u32> { row.iter().map(|word| word.to_bits()).collect() };
    let rows = words.chunks(width).enumerate();
    Ok(rows.map(|(i, row)| found.written[i] && bits(row) == bits(found.row(i))).collect())
}

/// The error of a commit that nothing leads back to.
fn not_found(message: String) -> Error {
    Error::new(ErrorKind::NotFound, message)
}
