//! The replay against a model: random runs of deltas, replayed at once where that is allowed and
//! one by one where it is not, give the same indexes word by word.

use super::super::delta::DeltaWriter;
use super::*;
use crate::hash::table_salt;
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

/// Bytes of a row, by class.
const ROW_BYTES: [usize; 2] = [16, 32];

/// The writer's knowledge of a row class.
#[derive(Default)]
struct Class {
    deltas: DeltaWriter,
    /// The slot at which the log continues.
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

/// A record of a journal file.
enum Record {
    /// Of a class.
    Changes(usize, Vec<u8>),
    /// Of a table.
    Piece(u16, u32, Vec<u8>),
    Commit(u64),
}

/// A store's writer without rows: makes the records of a journal file.
struct Writer {
    random: Random,
    classes: [Class; 2],
    tables: Vec<Table>,
    epoch: u64,
    packed: bool,
    /// Whether the tables are born in the file, and into how many parts their indexes were divided
    /// when it began.
    born: bool,
    partitions: Vec<Option<u32>>,
    records: Vec<Record>,
    /// As `LogRecovery::retained`, of every epoch, by class.
    retained: BTreeSet<(u16, Retained)>,
}

/// Both forms of the index of dense tables, in turns.
fn is_packed(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

fn name_of(table: usize) -> String {
    format!("table {table}")
}

impl Writer {
    /// Tables that are `born` in the file, or have rows from before, whose pieces come with time.
    fn new(seed: u64, born: bool, packed: bool) -> Self {
        let index = |at: usize, rows: Option<u64>| match rows {
            Some(rows) => TableIndex::Dense(match packed {
                false => DenseIndex::new(rows).unwrap(),
                true => DenseIndex::packed(rows).unwrap(),
            }),
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
            packed,
            born,
            partitions: Vec::new(),
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
        let partitions = writer.tables.iter().map(|table| match &table.index {
            TableIndex::Dense(_) => None,
            TableIndex::Sparse(index, _) => Some(index.partitions()),
        });
        writer.partitions = partitions.collect();
        writer
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
            self.retained.insert((class, Retained { epoch: self.epoch, slot }));
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
            if class.deltas.len() > 0 {
                let mut bytes = Vec::new();
                class.deltas.drain(&mut bytes);
                self.records.push(Record::Changes(id, bytes));
            }
        }
    }

    /// The next piece of a table whose round is not complete.
    fn piece(&mut self, at: usize) {
        self.spill();
        let table = &mut self.tables[at];
        let Some(piece) = table.piece else { return };
        let mut bytes = Vec::new();
        table.index.write_piece(piece, &mut bytes);
        table.piece = Some(piece + 1).filter(|next| *next < table.index.pieces());
        self.records.push(Record::Piece(at as u16, piece, bytes));
    }

    fn commit(&mut self) {
        self.spill();
        self.records.push(Record::Commit(self.epoch));
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
    fn replay(&self, first_epoch: u64, oldest: u64) -> Replayed {
        let mut replayed = Replayed::new(self, first_epoch, oldest);
        for record in &self.records {
            replayed.record(record).unwrap();
        }
        replayed.0.iter().for_each(|class| class.check_complete().unwrap());
        replayed
    }
}

/// The classes as the journal has them.
struct Replayed(Vec<LogRecovery>);

impl Replayed {
    fn new(writer: &Writer, epoch: u64, oldest: u64) -> Self {
        let classes = (0u16..).zip(ROW_BYTES).map(|(class, row_bytes)| {
            let (page_bytes, segment_bytes) = (512, 1 << 18);
            let facts = ClassFacts {
                class,
                kind: StorageKind::Log,
                row_bytes,
                page_bytes,
                segment_bytes,
                seed: 0,
                merging: Merging::default(),
            };
            LogRecovery::new(&facts, "", epoch, oldest).unwrap()
        });
        let mut replayed = Self(classes.collect());
        for (at, (class, num_embeddings)) in TABLES.into_iter().enumerate() {
            let facts = TableFacts {
                table: at as u16,
                name: &name_of(at),
                salt: table_salt(&name_of(at)),
                num_embeddings,
                expected_rows: None,
                packed: writer.packed,
                capacity: None,
                partitions: writer.partitions[at],
                born: writer.born,
            };
            replayed.0[usize::from(class)].table(&facts).unwrap();
        }
        replayed
    }

    fn record(&mut self, record: &Record) -> Result<()> {
        match record {
            Record::Changes(class, bytes) => self.0[*class].changes(bytes, None),
            Record::Piece(table, piece, bytes) => {
                self.0[usize::from(TABLES[usize::from(*table)].0)].piece(*table, *piece, bytes)
            }
            Record::Commit(number) => {
                self.0.iter_mut().for_each(|class| class.commit(*number, None));
                Ok(())
            }
        }
    }

    fn index(&self, table: usize) -> &TableIndex {
        let class = &self.0[usize::from(TABLES[table].0)];
        &class.tables[class.position_of(table as u16).unwrap()].index
    }

    /// By class.
    fn retained(&self) -> impl Iterator<Item = (u16, Retained)> {
        let of = |(id, class): (u16, &LogRecovery)| {
            class.retained.iter().map(move |retained| (id, *retained)).collect::<Vec<_>>()
        };
        (0..).zip(&self.0).flat_map(of)
    }
}

/// The words of a dense index; the partitions of a growing one, as bytes.
fn words(index: &TableIndex) -> Vec<u32> {
    match index {
        TableIndex::Dense(index) => (0..index.num_embeddings()).map(|id| index.get(id)).collect(),
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

fn check(replayed: &Replayed, writer: &Writer, what: &str) {
    assert_eq!(replayed.0.iter().map(|class| class.tables.len()).sum::<usize>(), TABLES.len());
    for (at, table) in writer.tables.iter().enumerate() {
        let found = replayed.index(at);
        assert_eq!(found.len(), table.slots.len() as u64, "{what}, table {at}");
        assert!(words(found) == words(&table.index), "{what}, table {at}");
        for (key, slot) in &table.slots {
            assert!(found.is_newest(*key, *slot), "{what}, table {at}, key {key}");
        }
    }
}

#[test]
fn rows_replayed_at_once_and_one_by_one_give_the_same_indexes() {
    for seed in 0..24 {
        let mut writer = Writer::new(seed, true, is_packed(seed));
        writer.run();
        for oldest in [0, 1, 2, 3, u64::MAX] {
            let what = format!("seed {seed}, oldest {oldest}");
            let replayed = writer.replay(1, oldest);
            check(&replayed, &writer, &what);
            let retained: BTreeSet<_> = replayed.retained().collect();
            assert_eq!(retained.len(), replayed.retained().count(), "{what}: noted twice");
            let expected = writer.retained.iter().copied().filter(|(_, r)| r.epoch > oldest);
            assert!(retained == expected.collect(), "{what}: retained copies differ");
        }
    }
}

#[test]
fn pieces_that_come_between_the_deltas_give_the_same_indexes() {
    for seed in 100..124 {
        let mut writer = Writer::new(seed, false, is_packed(seed));
        writer.run();
        for oldest in [0, 3, u64::MAX] {
            let replayed = writer.replay(2, oldest);
            check(&replayed, &writer, &format!("seed {seed}, oldest {oldest}"));
        }
    }
}

#[test]
fn a_run_of_rows_beyond_its_table_is_damage_either_way() {
    for oldest in [0, u64::MAX] {
        let mut writer = Writer::new(1, true, false);
        let deltas = &mut writer.classes[0].deltas;
        for (key, slot) in [5, 299, 300, 6].into_iter().zip(100..) {
            deltas.push(Delta::Row { table: 2, key, old: 0, slot }, false);
        }
        writer.spill();
        let mut replayed = Replayed::new(&writer, 1, oldest);
        let (last, others) = writer.records.split_last().unwrap();
        for record in others {
            replayed.record(record).unwrap();
        }
        let error = replayed.record(last).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("names id 300 of 300"), "{error}");
    }
}
