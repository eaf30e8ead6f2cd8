//! The replay against a model: random runs of deltas, replayed at once where that is allowed and
//! one by one where it is not, give the same indexes word by word.

use super::super::journal::{CommitRecord, piece_header};
use super::super::pieces::read_piece_from;
use super::*;
use crate::config::{CommitInfo, TableSpec};
use crate::init::Initializer;
use crate::optimizer::{OptimizerKind, OptimizerSpec};
use crate::row::{Dtype, RoundingMode};
use crate::storage::log::delta::DeltaWriter;
use std::collections::BTreeSet;

const SALT: u64 = 11;
/// Rows of the dense tables: several pieces, one piece, less than a block, the last class's.
const TABLES: [(u16, Option<u64>); 6] =
    [(0, Some(50_000)), (0, None), (0, Some(300)), (0, Some(7)), (1, Some(20_000)), (1, None)];

/// A generator of test decisions.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0, SALT)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a row class of the writer knows.
#[derive(Default)]
struct Class {
    deltas: DeltaWriter,
    /// Where the log goes on.
    slot: u32,
    /// Epoch in which a slot was last written.
    written: BTreeMap<u32, u64>,
}

/// A table as the writer has it: the model, and the index whose pieces and splits it writes.
struct Table {
    class: u16,
    slots: BTreeMap<u64, u32>,
    index: TableIndex,
    /// Next piece of the round, for a table that is older than the journal file.
    piece: Option<u32>,
}

/// A store's writer without rows: makes the records of a journal file.
struct Writer {
    random: Random,
    classes: [Class; 2],
    tables: Vec<Table>,
    epoch: u64,
    records: Vec<(RecordKind, Vec<u8>)>,
    /// As `Recovered::retained`, of every epoch.
    retained: BTreeSet<(u16, u64, u32)>,
}

fn name_of(table: usize) -> String {
    format!("table {table}")
}

fn spec(table: usize, rows: Option<u64>) -> TableSpec {
    TableSpec {
        name: name_of(table),
        embedding_dim: if TABLES[table].0 == 0 { 4 } else { 8 },
        num_embeddings: rows,
        expected_rows: None,
        dtype: Dtype::Float32,
        rounding: RoundingMode::default(),
        optimizer: OptimizerSpec::new(OptimizerKind::Sgd),
        initializer: Initializer::Constant(0.0),
    }
}

impl Writer {
    /// Tables that are `born` in the file, or have rows from before, whose pieces come with time.
    fn new(seed: u64, born: bool) -> Self {
        let index = |at: usize, rows: Option<u64>| match rows {
            Some(rows) => TableIndex::Dense(DenseIndex::new(rows).unwrap()),
            None => {
                TableIndex::Sparse(SparseIndex::restore(4, 0).unwrap(), table_salt(&name_of(at)))
            }
        };
        let tables = TABLES.iter().enumerate();
        let tables = tables.map(|(at, (class, rows))| {
            let piece = (!born).then_some(0);
            Table { class: *class, slots: BTreeMap::new(), index: index(at, *rows), piece }
        });
        let mut writer = Self {
            random: Random(seed),
            classes: Default::default(),
            tables: tables.collect(),
            epoch: 1,
            records: Vec::new(),
            retained: BTreeSet::new(),
        };
        writer.classes.iter_mut().for_each(|class| class.slot = 60);
        if !born {
            (0..40).for_each(|_| writer.change());
            // Nobody needs what led here but the pieces.
            writer.classes.iter_mut().for_each(|class| class.deltas.drain(&mut Vec::new()));
            writer.records.clear();
            writer.retained.clear();
            writer.epoch = 2;
        }
        for (id, row_bytes) in [(0, 16), (1, 32)] {
            let (curve, fillings) = (None, String::new());
            let record = ClassRecord {
                id,
                row_bytes,
                page_bytes: 512,
                segment_bytes: 1 << 18,
                curve,
                fillings,
            };
            writer.json(RecordKind::Class, &record);
        }
        for (id, (class, rows)) in TABLES.into_iter().enumerate() {
            let partitions = match &writer.tables[id].index {
                TableIndex::Dense(_) => None,
                TableIndex::Sparse(index, _) => Some(index.partitions()),
            };
            let spec = spec(id, rows);
            let record = TableRecord { id: id as u16, class, spec, partitions, born };
            writer.json(RecordKind::Table, &record);
        }
        writer
    }

    fn json<T: serde::Serialize>(&mut self, kind: RecordKind, record: &T) {
        self.records.push((kind, serde_json::to_vec(record).unwrap()));
    }

    /// A key that a verb might change next: `near` the one before, or any.
    fn key(&mut self, table: usize, before: u64, near: bool) -> u64 {
        let any = self.random.next();
        match TABLES[table].1 {
            Some(rows) if near => (before + 1) % rows,
            Some(rows) => any % rows,
            // A few keys, so that they come again, all over the range.
            None => mix(any % 3000, SALT),
        }
    }

    /// One stretch of changes: rows of one table or of several, in a run of slots, with ids that
    /// follow each other, repeat or jump; or deletes.
    fn change(&mut self) {
        let many = [1, 3, 31, 32, 33, 200, 900][self.random.below(7) as usize];
        let first = self.random.below(TABLES.len() as u64) as usize;
        let (mixed, near) = (self.random.one_in(4), !self.random.one_in(3));
        let deletes = self.random.one_in(6);
        let mut table = first;
        let mut key = self.key(table, 0, false);
        for _ in 0..many {
            if mixed {
                table = self.random.below(TABLES.len() as u64) as usize;
            }
            // The same key twice in a run, too.
            if !self.random.one_in(20) {
                key = self.key(table, key, near);
            } else if let Some(rows) = TABLES[table].1 {
                key %= rows;
            }
            match deletes {
                true => self.delete(table, key),
                false => self.write(table, key),
            }
        }
        let class = &mut self.classes[usize::from(TABLES[first].0)];
        if self.random.one_in(3) {
            // The log goes on in another segment, perhaps an older one that is free.
            class.slot = 60 + self.random.below(300) as u32 * 1000;
        }
    }

    fn outdate(&mut self, class: u16, slot: u32) {
        let written = self.classes[usize::from(class)].written.get(&slot);
        if slot != 0 && written != Some(&self.epoch) {
            self.retained.insert((class, self.epoch, slot));
        }
    }

    fn write(&mut self, at: usize, key: u64) {
        let class = self.tables[at].class;
        // A slot is written once here, so that what the journal says of it is about one copy.
        let Class { slot: next, written, .. } = &self.classes[usize::from(class)];
        let slot = (*next..).find(|slot| !written.contains_key(slot)).unwrap();
        let table = &mut self.tables[at];
        let old = table.slots.insert(key, slot).unwrap_or(0);
        let (id, sparse) = (at as u16, table.index.is_sparse());
        match &mut table.index {
            TableIndex::Dense(index) => assert_eq!(index.set(key, slot), old),
            TableIndex::Sparse(index, salt) if old == 0 => index.insert(mix(key, *salt), slot),
            TableIndex::Sparse(index, salt) => assert!(index.replace(mix(key, *salt), old, slot)),
        }
        self.outdate(class, old);
        let class = &mut self.classes[usize::from(class)];
        class.slot = slot + 1;
        class.written.insert(slot, self.epoch);
        class.deltas.push(Delta::Row { table: id, key, old, slot }, sparse);
        self.split(at);
    }

    fn delete(&mut self, at: usize, key: u64) {
        let table = &mut self.tables[at];
        let Some(old) = table.slots.remove(&key) else { return };
        let (class, id, sparse) = (table.class, at as u16, table.index.is_sparse());
        match &mut table.index {
            TableIndex::Dense(index) => assert_eq!(index.set(key, 0), old),
            TableIndex::Sparse(index, salt) => assert!(index.remove(mix(key, *salt), old)),
        }
        self.outdate(class, old);
        self.classes[usize::from(class)].deltas.push(Delta::Delete { table: id, key, old }, sparse);
    }

    /// Splits a partition of a growing table when it is due, as the log does.
    fn split(&mut self, at: usize) {
        let table = &mut self.tables[at];
        let TableIndex::Sparse(index, salt) = &mut table.index else { return };
        if !index.needs_split() {
            return;
        }
        let (slots, salt, id) = (&table.slots, *salt, at as u16);
        let mut refreshed = Vec::new();
        index
            .split(&mut |slot| {
                let (key, _) = slots.iter().find(|(_, s)| **s == slot).unwrap();
                refreshed.push((*key, slot));
                Ok(mix(*key, salt))
            })
            .unwrap();
        let deltas = &mut self.classes[usize::from(table.class)].deltas;
        for (key, slot) in refreshed {
            deltas.push(Delta::Refresh { table: id, key, slot }, true);
        }
        deltas.push(Delta::Split { table: id }, true);
    }

    /// Hands the deltas so far to the journal.
    fn spill(&mut self) {
        for (id, class) in self.classes.iter_mut().enumerate() {
            if !class.deltas.is_empty() {
                let mut payload = (id as u64).to_le_bytes().to_vec();
                class.deltas.drain(&mut payload);
                self.records.push((RecordKind::Deltas, payload));
            }
        }
    }

    /// The next piece of a table whose round is not complete.
    fn piece(&mut self, at: usize) {
        self.spill();
        let table = &mut self.tables[at];
        let Some(piece) = table.piece else { return };
        let mut payload = piece_header(at as u16, piece).to_vec();
        read_piece_from(&table.index, piece, &mut payload);
        table.piece = Some(piece + 1).filter(|next| *next < pieces_of(&table.index));
        self.records.push((RecordKind::Piece, payload));
    }

    fn commit(&mut self) {
        self.spill();
        let info = CommitInfo {
            sequence: self.epoch,
            step: self.epoch,
            meta: String::new(),
            unix_time: 0,
            rows_flushed: 0,
            bytes_written: 0,
            state_bytes: 0,
        };
        let record = CommitRecord {
            info,
            state: None,
            tables: Vec::new(),
            classes: Vec::new(),
            oldest_kept: 1,
            checksum: 0,
            place: (0, 0),
        };
        self.json(RecordKind::Commit, &record);
        self.epoch += 1;
    }

    /// A file of some epochs, in which every round of pieces is completed.
    fn run(&mut self) {
        for epoch in 0..4 {
            for _ in 0..self.random.below(30) {
                self.change();
                if self.random.one_in(4) {
                    self.spill();
                }
                let at = self.random.below(TABLES.len() as u64) as usize;
                if self.random.one_in(2) {
                    self.piece(at);
                }
            }
            for at in 0..TABLES.len() {
                while epoch == 2 && self.tables[at].piece.is_some() {
                    self.piece(at);
                }
            }
            self.commit();
        }
    }

    /// Replays the file; what the commits from `oldest` on need is noted.
    fn replay(&self, first_epoch: u64, oldest: u64) -> Recovered {
        let mut replay = Replay {
            in_base: true,
            file_bytes: 1 << 40,
            epoch: first_epoch,
            oldest,
            ..Replay::default()
        };
        for (kind, payload) in &self.records {
            replay.record(*kind, payload).unwrap();
        }
        replay.finish().unwrap()
    }
}

/// The words of a dense index; the partitions of a growing one, as bytes.
fn words(index: &TableIndex) -> Vec<u32> {
    match index {
        TableIndex::Dense(index) => index.words().to_vec(),
        TableIndex::Sparse(index, _) => {
            let mut bytes = Vec::new();
            (0..index.partitions()).for_each(|partition| {
                index.write_partition(partition, &mut bytes);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            });
            let (words, _) = bytes.as_chunks();
            words.iter().map(|word| u32::from_le_bytes(*word)).collect()
        }
    }
}

fn check(recovered: &Recovered, writer: &Writer, what: &str) {
    assert_eq!(recovered.tables.len(), TABLES.len());
    for (at, (found, table)) in recovered.tables.iter().zip(&writer.tables).enumerate() {
        assert_eq!(found.index.len(), table.slots.len() as u64, "{what}, table {at}");
        assert!(words(&found.index) == words(&table.index), "{what}, table {at}");
        for (key, slot) in &table.slots {
            assert!(found.index.is_newest(*key, *slot), "{what}, table {at}, key {key}");
        }
    }
}

#[test]
fn rows_replayed_at_once_and_one_by_one_give_the_same_indexes() {
    for seed in 0..24 {
        let mut writer = Writer::new(seed, true);
        writer.run();
        for oldest in [0, 1, 2, 3, u64::MAX] {
            let what = format!("seed {seed}, oldest {oldest}");
            let recovered = writer.replay(1, oldest);
            check(&recovered, &writer, &what);
            let retained: BTreeSet<_> = recovered.retained.iter().copied().collect();
            assert_eq!(retained.len(), recovered.retained.len(), "{what}: noted twice");
            let expected = writer.retained.iter().copied().filter(|(_, epoch, _)| *epoch > oldest);
            assert!(retained == expected.collect(), "{what}: retained copies differ");
        }
    }
}

#[test]
fn pieces_that_come_between_the_deltas_give_the_same_indexes() {
    for seed in 100..124 {
        let mut writer = Writer::new(seed, false);
        writer.run();
        for oldest in [0, 3, u64::MAX] {
            let recovered = writer.replay(2, oldest);
            check(&recovered, &writer, &format!("seed {seed}, oldest {oldest}"));
        }
    }
}

#[test]
fn a_run_of_rows_beyond_its_table_is_damage_either_way() {
    for oldest in [0, u64::MAX] {
        let mut writer = Writer::new(1, true);
        let deltas = &mut writer.classes[0].deltas;
        for (key, slot) in [5, 299, 300, 6].into_iter().zip(100..) {
            deltas.push(Delta::Row { table: 2, key, old: 0, slot }, false);
        }
        writer.spill();
        let mut replay =
            Replay { in_base: true, file_bytes: 1 << 40, epoch: 1, oldest, ..Replay::default() };
        let (last, others) = writer.records.split_last().unwrap();
        for (kind, payload) in others {
            replay.record(*kind, payload).unwrap();
        }
        let error = replay.record(last.0, &last.1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("names id 300 of 300"), "{error}");
    }
}
