use super::super::{LogRecovery, create_log};
use super::*;
use crate::config::{Merging, StorageKind};
use crate::error::ErrorKind;
use crate::hash::{mix, table_salt};
use crate::io::{Buffers, File, Medium, OpenMode, SimMedium};
use crate::storage::{
    ClassFacts, Demand, DirtyRow, OpenAt, StorageBudget, StorageCounts, StorageJournal,
    StorageRead, StorageRecovery, StorageSpace, StorageTables, TableFacts,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const DENSE: u16 = 0;
const GROWING: u16 = 1;
/// Ids of the dense table, few of which are stored.
const IDS: u64 = 100_000;
const WORDS: usize = 16;

fn class_facts() -> ClassFacts {
    ClassFacts {
        class: 0,
        kind: StorageKind::Log,
        row_bytes: WORDS * 4,
        page_bytes: 512,
        segment_bytes: 16 * 512,
        seed: 7,
        merging: Merging::default(),
    }
}

fn facts_of(table: u16, partitions: Option<u32>) -> TableFacts<'static> {
    let is_dense = table == DENSE;
    TableFacts {
        table,
        name: if is_dense { "dense" } else { "growing" },
        salt: table_salt("growing"),
        num_embeddings: is_dense.then_some(IDS),
        expected_rows: None,
        packed: is_dense,
        capacity: None,
        partitions,
        born: true,
    }
}

/// The position of a table's key in the order of the layer below.
fn position(table: u16, key: u64) -> u64 {
    if table == DENSE { key } else { mix(key, table_salt("growing")).reverse_bits() }
}

/// The word that a change of a row has in all places.
fn word(table: u16, key: u64, change: u64) -> f32 {
    (mix(key + change, u64::from(table)) % 65_521) as f32
}

/// A log on top, and where its rows are.
struct Top {
    medium: Arc<dyn Medium>,
    file: Arc<dyn File>,
    log: ClassLog,
    reader: PageReader,
    partitions: u32,
    /// Slot and last change by table and key.
    rows: BTreeMap<(u16, u64), (u32, u64)>,
}

impl Top {
    fn new() -> Self {
        let medium: Arc<dyn Medium> = Arc::new(SimMedium::new(1));
        let file = medium.open("rows", OpenMode::CreateNew).unwrap();
        let mut log = create_log(&class_facts(), file.clone(), 1, &medium).unwrap();
        assert_eq!(log.create_table(&facts_of(DENSE, None)).unwrap(), None);
        let partitions = log.create_table(&facts_of(GROWING, None)).unwrap().unwrap();
        let demand = Demand {
            kind: StorageKind::Log,
            row_bytes: WORDS * 4,
            page_bytes: class_facts().page_bytes,
        };
        log.equip(demand.share_of(0), &*medium).unwrap();
        let reader = PageReader::new(
            medium.queue(8, Buffers::equal(8, 1024)).unwrap(),
            class_facts().page_bytes,
            None,
            true,
        );
        Self { medium, file, log, reader, partitions, rows: BTreeMap::new() }
    }

    /// A top with 3001 rows of each table, the last of which have not reached the device.
    fn filled() -> Self {
        let mut top = Self::new();
        for at in 0..3001 {
            top.write(DENSE, at * 31 % IDS, 0);
            top.write(GROWING, mix(at, 9), 0);
        }
        assert!(top.log.writer.pages_in_memory().count() > 0);
        top
    }

    fn write(&mut self, table: u16, key: u64, change: u64) {
        self.log.reserve(1, 0, u64::MAX).unwrap();
        let old = self.rows.get(&(table, key)).map_or(0, |(slot, _)| *slot);
        let words = [word(table, key, change); WORDS];
        let row = DirtyRow {
            table,
            key,
            dirty_since: 0,
            origin: Some(old),
            stretch: None,
            words: &words,
        };
        let slot = self.log.append(row).unwrap();
        self.rows.insert((table, key), (slot, change));
    }

    /// Rows of a table whose positions lie within both ends.
    fn within(&self, table: u16, first: u64, last: u64) -> BTreeSet<u32> {
        let of_table = self.rows.iter().filter(|((id, _), _)| *id == table);
        let inside = of_table.filter(|((_, key), _)| {
            let position = position(table, *key);
            (first..=last).contains(&position)
        });
        inside.map(|(_, (slot, _))| *slot).collect()
    }

    /// Position of each stored row of a table, by slot.
    fn positions(&self, table: u16) -> BTreeMap<u32, u64> {
        let of_table = self.rows.iter().filter(|((id, _), _)| *id == table);
        of_table.map(|((_, key), (slot, _))| (*slot, position(table, *key))).collect()
    }

    /// Reads slots of a table, and compares the rows with what was written.
    fn check_read(
        &mut self,
        reader: &TopReader,
        table: u16,
        slots: &[u32],
        rows: &BTreeMap<(u16, u64), (u32, u64)>,
    ) {
        let mut found = Vec::new();
        let read = reader.read_group(table, slots, &mut self.reader, &mut |row| {
            let (slot, change) = rows[&(row.table, row.key)];
            assert_eq!((row.table, row.place), (table, slot));
            assert_eq!(row.words, [word(table, row.key, change); WORDS]);
            found.push(slot);
            Ok(())
        });
        let per_page = self.log.layout().rows_per_page as u32;
        let pages: BTreeSet<u32> = slots.iter().map(|slot| slot / per_page).collect();
        assert!(read.unwrap().pages <= pages.len() as u64);
        found.sort_unstable();
        let mut slots = slots.to_vec();
        slots.sort_unstable();
        assert_eq!(found, slots);
    }
}

#[test]
fn slots_of_a_range_come_in_groups_that_follow_each_other() {
    let top = Top::filled();
    for table in [DENSE, GROWING] {
        let end = if table == DENSE { IDS - 1 } else { u64::MAX };
        let positions = top.positions(table);
        for part in 0..40 {
            let (first, last) = (end / 40 * part, (end / 40 * part).saturating_add(end / 7));
            let found = top.log.slots_of(table, first, last, usize::MAX, true);
            assert_eq!(found.until, last);
            let slots: BTreeSet<u32> = found.slots.iter().copied().collect();
            assert_eq!(slots.len(), found.slots.len(), "a slot came twice");
            assert!(top.within(table, first, last).is_subset(&slots));
            if table == DENSE {
                assert_eq!(slots, top.within(table, first, last));
            }
            let spans: Vec<(u64, u64)> = found
                .groups()
                .map(|group| {
                    let all = || group.iter().map(|slot| positions[slot]);
                    (all().min().unwrap(), all().max().unwrap())
                })
                .collect();
            assert!(spans.is_sorted_by(|(_, a), (b, _)| a < b), "{spans:?}");
            // The last ids of the dense table have no copies.
            assert!(spans.len() > 1 || part > 30);
            assert_eq!(found.groups().map(<[u32]>::len).sum::<usize>(), found.slots.len());
        }
    }
}

#[test]
fn a_look_at_a_range_ends_with_the_group_that_has_enough() {
    let top = Top::filled();
    for table in [DENSE, GROWING] {
        let end = if table == DENSE { IDS - 1 } else { u64::MAX };
        let whole = top.log.slots_of(table, 0, end, usize::MAX, true);
        for most in [1, 127, 128, 129, 500] {
            // Looks that go on behind each other find everything once.
            let (mut next, mut all) = (0, Vec::new());
            loop {
                let found = top.log.slots_of(table, next, end, most, true);
                if found.until < end {
                    assert!(found.slots.len() >= most);
                }
                let last = found.groups().last().map_or(0, <[u32]>::len);
                assert!(found.slots.len() < most + last.max(1), "a group too many");
                all.extend(found.slots);
                if found.until == end {
                    break;
                }
                next = found.until + 1;
            }
            assert_eq!(all, whole.slots, "table {table}, most {most}");
        }
    }
}

#[test]
fn an_empty_range_has_no_groups() {
    let top = Top::new();
    for table in [DENSE, GROWING] {
        let found = top.log.slots_of(table, 5, 900, 10, true);
        assert_eq!(found, SlotsOf { until: 900, ..SlotsOf::default() });
        assert_eq!(found.groups().count(), 0);
    }
}

#[test]
fn rows_are_read_as_they_were_whatever_is_written_meanwhile() {
    for in_memory in [false, true] {
        let mut top = Top::filled();
        let ticket = top.log.begin_read();
        let rows = top.rows.clone();
        let found = [DENSE, GROWING]
            .map(|table| top.log.slots_of(table, 0, u64::MAX, usize::MAX, in_memory));
        let slots: Vec<u32> = found.iter().flat_map(|found| &found.slots).copied().collect();
        let left_out = rows.len() - slots.len();
        assert_eq!(left_out == 0, in_memory, "{left_out} rows are in memory");
        let memory: Vec<u32> = rows
            .values()
            .map(|(slot, _)| *slot)
            .filter(|slot| top.log.page_in_memory(*slot).is_some())
            .collect();
        assert_eq!(slots.iter().any(|slot| memory.contains(slot)), in_memory);
        let reader = top.log.top_reader(&slots);
        for change in 1..4 {
            for (table, key) in rows.keys() {
                top.write(*table, *key, change);
            }
        }
        for (table, found) in [DENSE, GROWING].into_iter().zip(&found) {
            for group in found.groups() {
                top.check_read(&reader, table, group, &rows);
            }
            top.check_read(&reader, table, &found.slots, &rows);
        }
        let before = top.log.segments.available_pages();
        top.log.end_read(ticket);
        assert!(top.log.segments.available_pages() > before, "nothing waited for the reader");
    }
}

#[test]
fn a_slot_of_another_table_or_a_damaged_page_is_corrupt() {
    for written in [false, true] {
        let mut top = Top::filled();
        if written {
            top.log.write_out().unwrap();
        }
        let (last, _) = *top.rows.values().max().unwrap();
        let owner = *top.rows.iter().find(|(_, (slot, _))| *slot == last).unwrap().0;
        let other = if owner.0 == DENSE { GROWING } else { DENSE };
        let reader = top.log.top_reader(&[last]);
        let error = |table, slot, top: &mut Top| {
            let read = reader.read_group(table, &[slot], &mut top.reader, &mut |_| Ok(()));
            read.unwrap_err()
        };
        let wrong = error(other, last, &mut top);
        assert_eq!(wrong.kind(), ErrorKind::Corrupt);
        assert!(wrong.message().contains(&format!("slot {last}: the index says")), "{wrong}");
        // Nothing was written there yet.
        let behind = error(owner.0, last + 1, &mut top);
        assert_eq!(behind.kind(), ErrorKind::Corrupt);
        if written {
            let page = u64::from(last) / top.log.layout().rows_per_page as u64;
            top.file.write_at(&[0; 512], page * 512).unwrap();
            let damaged = error(owner.0, last, &mut top);
            assert_eq!(damaged.kind(), ErrorKind::Corrupt);
            assert!(damaged.message().contains(&format!("page {page} ")), "{damaged}");
        }
    }
}

#[test]
fn only_the_newest_copy_of_a_row_that_does_not_wait_is_dropped() {
    let mut top = Top::filled();
    for (table, key) in [(DENSE, 31), (GROWING, mix(5, 9))] {
        let (old, _) = top.rows[&(table, key)];
        top.write(table, key, 1);
        let (slot, _) = top.rows[&(table, key)];
        let (stored, newest) = (top.log.rows_stored(table), top.log.segments.newest_total());
        assert!(!top.log.drop_copy(table, key, old), "an outdated copy");
        assert!(!top.log.drop_copy(table, key, 0), "no copy");
        assert!(!top.log.drop_copy(table, u64::MAX - 7, slot), "another key");
        assert!(!top.log.drop_copy(9, key, slot), "no such table");
        let words = [0.0; WORDS];
        top.log.park(DirtyRow {
            table,
            key,
            dirty_since: 1,
            origin: Some(slot),
            stretch: None,
            words: &words,
        });
        assert!(!top.log.drop_copy(table, key, slot), "a newer row waits");
        assert!(top.log.unpark(table, key));
        assert_eq!((top.log.rows_stored(table), top.log.segments.newest_total()), (stored, newest));

        assert!(top.log.drop_copy(table, key, slot));
        assert!(!top.log.drop_copy(table, key, slot), "it was dropped before");
        let left = (top.log.rows_stored(table), top.log.segments.newest_total());
        assert_eq!(left, (stored - 1, newest - 1));
        top.rows.remove(&(table, key));
        // As a new row, which it is for the log.
        top.write(table, key, 2);
    }
    let missing = top.rows.keys().find(|(table, _)| *table == DENSE).unwrap().1 + 1;
    assert!(!top.log.drop_copy(DENSE, missing, 0), "an id without a copy");
    assert!(top.log.deleted.is_empty(), "dropped rows would pay for cleaning once more");
}

#[test]
fn what_was_dropped_is_gone_after_recovery_and_indexes_are_packed_again() {
    let mut top = Top::filled();
    let dense = top.log.index(DENSE).memory_bytes();
    assert!(dense < IDS as usize / 2, "{dense} bytes");
    let all = top.rows.clone();
    for (at, ((table, key), (slot, _))) in all.iter().enumerate() {
        if at % 3 != 0 {
            assert!(top.log.drop_copy(*table, *key, *slot));
            top.rows.remove(&(*table, *key));
        }
    }
    let cut = top.log.cut(true).unwrap();
    let mut changes = Vec::new();
    top.log.drain_changes(&mut changes);
    top.file.sync().unwrap();

    let mut recovery = LogRecovery::new(&class_facts(), "", 1, 1).unwrap();
    recovery.table(&facts_of(DENSE, None)).unwrap();
    recovery.table(&facts_of(GROWING, Some(top.partitions))).unwrap();
    recovery.changes(&changes, None).unwrap();
    recovery.commit(1, cut.began);
    let at =
        OpenAt { commit: 1, position: cut.position, is_newest: true, write_after: Some(1 << 40) };
    let log = recovery.finish_log(&at, top.file.clone(), &top.medium).unwrap();
    let again = |table: u16| log.index(table).memory_bytes();
    assert!(again(DENSE) < IDS as usize / 2, "{} bytes", again(DENSE));
    assert_eq!(log.segments.newest_total(), top.rows.len() as u64);
    assert_eq!(log.rows_stored(DENSE) + log.rows_stored(GROWING), top.rows.len() as u64);
    for ((table, key), (slot, _)) in &top.rows {
        assert!(log.is_indexed(*table, *key, *slot), "table {table}, key {key}");
    }
    top.log = log;
    let rows = top.rows.clone();
    for table in [DENSE, GROWING] {
        let found = top.log.slots_of(table, 0, u64::MAX, usize::MAX, false);
        let reader = top.log.top_reader(&found.slots);
        top.check_read(&reader, table, &found.slots, &rows);
    }
}

#[test]
fn the_sum_over_candidates_tells_of_every_other_copy_and_of_no_order() {
    let mut top = Top::filled();
    for (table, key) in [(DENSE, 31), (GROWING, mix(5, 9))] {
        let mut sums = BTreeSet::new();
        for change in 1..50 {
            let sum = top.log.candidate_sum(table, key);
            assert_ne!(sum, 0);
            assert!(sums.insert(sum), "another copy, the same sum");
            assert_eq!(top.log.candidate_sum(table, key), sum);
            top.write(table, key, change);
        }
    }
    assert_eq!(top.log.candidate_sum(DENSE, 32), 0);
    let absent = (0..).find(|key| !top.log.index(GROWING).may_contain(*key)).unwrap();
    assert_eq!(top.log.candidate_sum(GROWING, absent), 0);

    // Several candidates of one key, as keys with equal tags are.
    let sum = |slots: &[u32]| {
        let mut index = TableIndex::empty(&facts_of(GROWING, None)).unwrap();
        let TableIndex::Sparse(hashes, salt) = &mut index else { panic!("it grows") };
        slots.iter().for_each(|slot| hashes.insert(mix(3, *salt), *slot));
        index.candidate_sum(3)
    };
    assert_eq!(sum(&[10, 20, 30]), sum(&[30, 10, 20]));
    let sums = BTreeSet::from([sum(&[10, 20]), sum(&[10]), sum(&[20]), sum(&[11, 19]), sum(&[30])]);
    assert_eq!(sums.len(), 5);
}
