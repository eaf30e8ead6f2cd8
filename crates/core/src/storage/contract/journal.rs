//! The journal of a life: files that begin with a catalog, and what a storage has handed out.

use super::life::Rows;
use crate::error::Result;
use crate::hash::table_salt;
use crate::storage::{Hearer, Storage, StorageRecovery, TableFacts};

/// A table, as its record says.
#[derive(Clone)]
pub(super) struct TableOfLife {
    pub(super) id: u16,
    pub(super) name: String,
    /// Ids of a dense table.
    pub(super) rows: Option<u64>,
    /// Keys that are used.
    pub(super) keys: u64,
    /// Whether its index is packed, if it is dense.
    pub(super) packed: bool,
    pub(super) partitions: Option<u32>,
}

impl TableOfLife {
    pub(super) fn facts(&self, born: bool) -> TableFacts<'_> {
        TableFacts {
            table: self.id,
            name: &self.name,
            salt: table_salt(&self.name),
            num_embeddings: self.rows,
            expected_rows: None,
            packed: self.packed,
            capacity: Some(self.keys.max(1)),
            partitions: self.partitions,
            born,
        }
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys
    }
}

/// A commit, and what it has.
#[derive(Clone)]
pub(super) struct Commit {
    pub(super) number: u64,
    /// Its file, and how many records of that end with it.
    pub(super) place: (usize, usize),
    pub(super) began: Option<u64>,
    pub(super) position: u64,
    pub(super) rows: Rows,
    pub(super) tables: Vec<TableOfLife>,
}

pub(super) enum Record {
    Table(TableOfLife),
    Changes(Vec<u8>),
    Piece(u16, u32, Vec<u8>),
    Commit { number: u64, began: Option<u64> },
}

/// A file of the journal.
pub(super) struct JournalFile {
    /// The catalog's entry for the class and its tables.
    pub(super) record: String,
    pub(super) tables: Vec<TableOfLife>,
    records: Vec<Record>,
    /// The commit by which it had all pieces.
    complete: Option<u64>,
}

pub(super) struct Journal {
    files: Vec<JournalFile>,
    pub(super) commits: Vec<Commit>,
    /// The oldest commit that is kept.
    pub(super) oldest: u64,
    /// The next piece of the newest file, while there are any: by position of its table.
    cursor: Option<(usize, u32)>,
}

impl Journal {
    pub(super) fn new() -> Self {
        let (record, tables) = (String::new(), Vec::new());
        let file = JournalFile { record, tables, records: Vec::new(), complete: Some(0) };
        Self { files: vec![file], commits: Vec::new(), oldest: 1, cursor: None }
    }

    fn file(&mut self) -> &mut JournalFile {
        self.files.last_mut().expect("a journal has a file")
    }

    pub(super) fn push(&mut self, record: Record) {
        self.file().records.push(record);
    }

    /// Whether the newest file does not have all pieces yet.
    pub(super) fn is_in_cycle(&self) -> bool {
        self.cursor.is_some()
    }

    /// Number of files begun so far.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    pub(super) fn next_number(&self) -> u64 {
        self.commits.last().map_or(1, |commit| commit.number + 1)
    }

    /// Commits that can be opened.
    pub(super) fn kept(&self) -> Vec<Commit> {
        self.commits.iter().filter(|commit| commit.number >= self.oldest).cloned().collect()
    }

    /// Writes pieces of the commit to come, after all its changes.
    pub(super) fn write_pieces(
        &mut self,
        storage: &dyn Storage,
        tables: impl Iterator<Item = u16>,
        most: u64,
    ) {
        let Some((mut at, mut piece)) = self.cursor else { return };
        let (tables, number): (Vec<u16>, _) = (tables.collect(), self.next_number());
        for _ in 0..most {
            while at < tables.len() && piece >= storage.pieces(tables[at]) {
                (at, piece) = (at + 1, 0);
            }
            let Some(table) = tables.get(at) else {
                self.cursor = None;
                self.file().complete = Some(number);
                return;
            };
            let mut bytes = Vec::new();
            storage.write_piece(*table, piece, &mut bytes);
            self.push(Record::Piece(*table, piece, bytes));
            piece += 1;
        }
        self.cursor = Some((at, piece));
    }

    pub(super) fn commit(&mut self, mut commit: Commit) {
        self.push(Record::Commit { number: commit.number, began: commit.began });
        commit.place = (self.files.len() - 1, self.file().records.len());
        self.commits.push(commit);
    }

    /// Begins a file behind a commit, of which the record and the tables are.
    pub(super) fn begin_file(&mut self, record: String, tables: Vec<TableOfLife>) {
        self.files.push(JournalFile { record, tables, records: Vec::new(), complete: None });
        self.cursor = Some((0, 0));
    }

    /// Forgets what came behind a commit.
    pub(super) fn cut_behind(&mut self, commit: &Commit) {
        let (file, end) = commit.place;
        self.files.truncate(file + 1);
        self.file().records.truncate(end);
        self.commits.retain(|other| other.number <= commit.number);
        let is_complete = |at: &u64| *at <= commit.number;
        let file = self.file();
        file.complete = file.complete.filter(is_complete);
        self.cursor = file.complete.is_none().then_some((0, 0));
    }

    /// The newest file that had all pieces by the oldest commit, and its number.
    pub(super) fn base(&self) -> (&JournalFile, usize) {
        let is_base = |file: &JournalFile| file.complete.is_some_and(|at| at <= self.oldest);
        let number = self.files.iter().rposition(is_base).expect("the first file has all");
        (&self.files[number], number)
    }

    /// Tells a recovery what lies behind a place, up to a commit. Pieces are those of the file
    /// that it begins with, if it takes any.
    pub(super) fn replay(
        &self,
        recovery: &mut dyn StorageRecovery,
        (first, behind): (usize, usize),
        to: &Commit,
        takes_pieces: bool,
        hear: &mut Hearer<'_>,
    ) -> Result<()> {
        for (number, file) in self.files.iter().enumerate().skip(first) {
            let skipped = if number == first { behind } else { 0 };
            for record in file.records.iter().skip(skipped) {
                match record {
                    Record::Table(table) => recovery.table(&table.facts(true))?,
                    Record::Piece(table, piece, bytes) if takes_pieces && number == first => {
                        recovery.piece(*table, *piece, bytes)?;
                    }
                    Record::Piece(..) => {}
                    Record::Changes(bytes) => {
                        let hear = hear.as_mut();
                        recovery
                            .changes(bytes, hear.map(|h| &mut **h as &mut dyn FnMut(u16, u64)))?;
                    }
                    Record::Commit { number, began } => {
                        recovery.commit(*number, *began);
                        if *number == to.number {
                            return Ok(());
                        }
                    }
                }
            }
        }
        panic!("commit {} is in the journal", to.number)
    }

    /// The pieces and the catalog of the newest file.
    pub(super) fn newest(&self) -> &JournalFile {
        &self.files[self.files.len() - 1]
    }

    /// The newest record of changes.
    pub(super) fn last_changes(&self) -> &[u8] {
        let records = self.files.iter().rev().flat_map(|file| file.records.iter().rev());
        let mut changes = records.filter_map(|record| match record {
            Record::Changes(bytes) => Some(&bytes[..]),
            _ => None,
        });
        changes.next().expect("something was changed")
    }
}
