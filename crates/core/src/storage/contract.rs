//! One contract suite for every storage: the log, in both forms of its indexes, the lsm, a map in
//! memory that has neither pages nor an index, and regions. Tests use the traits alone, as the
//! store does. Tests about commits expect durability by update of a storage that promises it.

use super::{
    ClassFacts, DirtyRow, Finding, OpenAt, Storage, StorageRecovery, StorageStats, SweptRow, map,
};
use crate::config::StorageKind;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::mix;
use crate::io::{File, Medium};
use journal::TableOfLife;
use life::{Life, RowKey, Rows, words_of};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

mod journal;
mod life;
mod look;
mod pins;

type Create = fn(&ClassFacts, Arc<dyn File>, u64, &Arc<dyn Medium>) -> Result<Box<dyn Storage>>;
type Recovery = fn(&ClassFacts, &str, u64, u64) -> Result<Box<dyn StorageRecovery>>;

/// A kind of storage.
struct Subject {
    label: &'static str,
    kind: StorageKind,
    /// Whether rows are read from pages.
    has_pages: bool,
    /// Whether a row can lie above and below. It counts twice then, a sweep may give it as it is by
    /// the time it comes to it, and the lower copy is called the newest only where that is sure.
    has_layers: bool,
    /// Whether rows are durable by update: no commit has them, and a sweep gives a row as it is by
    /// the time it comes to it.
    is_direct: bool,
    /// Whether the indexes of its dense tables are packed.
    packed: bool,
    create: Create,
    recovery: Recovery,
}

static SUBJECTS: [Subject; 6] = [
    Subject {
        label: "log",
        kind: StorageKind::Log,
        has_pages: true,
        has_layers: false,
        is_direct: false,
        packed: false,
        create: super::create,
        recovery: super::recovery,
    },
    Subject {
        label: "lsm",
        kind: StorageKind::Lsm,
        has_pages: true,
        has_layers: true,
        is_direct: false,
        packed: false,
        create: super::create,
        recovery: super::recovery,
    },
    Subject {
        label: "pages",
        kind: StorageKind::Pages,
        has_pages: true,
        has_layers: true,
        is_direct: false,
        packed: false,
        create: super::create,
        recovery: super::recovery,
    },
    Subject {
        label: "packed log",
        kind: StorageKind::Log,
        has_pages: true,
        has_layers: false,
        is_direct: false,
        packed: true,
        create: super::create,
        recovery: super::recovery,
    },
    Subject {
        label: "map",
        kind: StorageKind::Log,
        has_pages: false,
        has_layers: false,
        is_direct: false,
        packed: false,
        create: map::create,
        recovery: map::recovery,
    },
    Subject {
        label: "pmem",
        kind: StorageKind::Pmem,
        has_pages: false,
        has_layers: false,
        is_direct: true,
        packed: false,
        create: super::create,
        recovery: super::recovery,
    },
];

/// A generator of test decisions.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0, 11) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Runs `test` on a new life of every kind, with several seeds, or as many as `EMBEDROCK_SEEDS`
/// says; a failure names both.
fn each(usual: u64, test: impl Fn(Life)) {
    on_each(usual, &test);
}

/// Not generic: it would be compiled again for each test.
fn on_each(usual: u64, test: &dyn Fn(Life)) {
    for subject in &SUBJECTS {
        for seed in 1..=crate::test_extent::seeds(usual) {
            let result = catch_unwind(AssertUnwindSafe(|| test(Life::new(subject, seed))));
            if let Err(panic) = result {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                panic!("{} with seed {seed}: {}", subject.label, text.unwrap_or_default());
            }
        }
    }
}

#[test]
fn a_random_life_finds_what_a_plain_map_has() {
    each(2, |mut life| {
        for step in 0..1500 {
            life.step();
            if step % 100 == 0 {
                life.check();
            }
            if step == 700 {
                life.create_table(None, 90);
                life.create_table(Some(50), 50);
            }
        }
        life.check();
        assert_eq!(life.read > 0, life.subject.has_pages);
        assert_eq!(life.units > 0, life.subject.has_layers);
    });
}

#[test]
fn rows_that_change_between_find_and_resolve_come_as_they_are_then() {
    each(2, |mut life| {
        (0..600).for_each(|_| life.step());
        for _ in 0..20 {
            life.commit(2);
            let keys = life.keys();
            life.look_up(&keys, &mut |life| {
                for _ in 0..1 + life.random.below(60) {
                    life.step();
                }
            });
            life.check();
        }
        assert_eq!(life.moved > 0, life.subject.has_pages, "rows have moved");
    });
}

/// Rows of a sweep, in the order of their keys; `between` happens after each part of it.
fn swept(
    life: &mut Life,
    only: Option<u16>,
    between: &mut dyn FnMut(&mut Life),
) -> Vec<(RowKey, u32)> {
    let mut sweep = life.storage.sweep(only);
    let at_begin = life.stored.clone();
    let mut rows = Vec::new();
    loop {
        // A row may come as it is by then.
        let has_layers = life.subject.has_layers || life.subject.is_direct;
        let Life { storage, reader, stored, parked, .. } = &mut *life;
        storage.advance(&mut *sweep);
        let mut take = |swept: &mut dyn Iterator<Item = SweptRow<'_>>| {
            for row in swept {
                let key = (row.table, row.key);
                let is_newest = storage.is_newest(row.table, row.key, row.place);
                let now = stored.get(&key).filter(|_| has_layers);
                let known = [at_begin.get(&key), now].into_iter().flatten();
                let is_it = |change: &&u32| row.words == words_of(key, **change);
                let Some(change) = known.copied().find(|change| is_it(&change)) else {
                    assert!((only.is_none() || has_layers) && !is_newest, "{key:?} is outdated");
                    continue;
                };
                if is_newest {
                    assert_eq!(stored.get(&key), Some(&change), "{key:?} is not the newest");
                    assert!(!parked.contains_key(&key), "{key:?} waits");
                }
                rows.push((key, change));
            }
            Ok(())
        };
        if sweep.read(3, reader, &mut take).unwrap().is_none() {
            break;
        }
        between(life);
    }
    life.storage.end_read(sweep.ticket());
    rows.sort_unstable();
    if only.is_none() {
        // Cleaning has moved some: the copy before is outdated, and the same.
        rows.dedup();
    }
    rows
}

fn of_table(rows: &Rows, only: Option<u16>) -> Vec<(RowKey, u32)> {
    let is_of = |key: &RowKey| only.is_none_or(|only| only == key.0);
    rows.iter().filter(|(key, _)| is_of(key)).map(|(key, change)| (*key, *change)).collect()
}

#[test]
fn a_sweep_gives_every_row_once_as_it_was_when_it_began() {
    each(1, |mut life| {
        for _ in 0..12 {
            (0..150).for_each(|_| life.step());
            for only in [None, Some(0), Some(1)] {
                let began = of_table(&life.stored, only);
                let rows = swept(&mut life, only, &mut |life| {
                    (0..life.random.below(20)).for_each(|_| life.step());
                });
                if life.subject.has_layers || life.subject.is_direct {
                    let is_still = |row: &&(RowKey, u32)| life.stored.get(&row.0) == Some(&row.1);
                    let still = |rows: &[(RowKey, u32)]| -> Vec<(RowKey, u32)> {
                        rows.iter().filter(|row| is_still(row)).copied().collect()
                    };
                    let (given, expected) = (still(&rows), still(&began));
                    assert!(expected.iter().all(|row| given.contains(row)), "{only:?}");
                    let mut once = given.clone();
                    once.dedup();
                    assert_eq!(given, once, "{only:?}");
                    continue;
                }
                assert_eq!(rows, began);
            }
        }
        life.check();
    });
}

#[test]
fn what_a_sweep_kept_is_room_again_when_its_ticket_ends() {
    each(1, |mut life| {
        let keys = life.keys();
        let write_all = |life: &mut Life| {
            keys.iter().for_each(|key| life.put(*key));
            life.commit(1);
        };
        (0..4).for_each(|_| write_all(&mut life));
        let usual = life.storage.disk_bytes();
        let sweep = life.storage.sweep(None);
        (0..4).for_each(|_| write_all(&mut life));
        let kept = life.storage.disk_bytes();
        // A freeze under way keeps room before and after.
        let freezes = life.subject.kind == StorageKind::Pages;
        assert!(freezes || (kept > 2 * usual) == life.subject.has_pages, "{usual}, then {kept}");
        life.storage.end_read(sweep.ticket());
        (0..4).for_each(|_| write_all(&mut life));
        // Files below go when room is given back.
        assert!(life.storage.disk_bytes() <= kept || life.subject.has_layers);
        // One under way keeps what it reads, and a commit what was written before it.
        (0..2).for_each(|_| life.commit(1));
        life.abandon_unit();
        let spare = life.storage.room_for_upkeep(None);
        life.storage.give_back(0, 0, spare, Some(u64::MAX)).unwrap();
        let left = life.storage.disk_bytes();
        // A freeze between has written rows and replicas below.
        let most = if freezes { kept } else { usual };
        assert!(left <= most, "{most}, then {left}");
        life.check();
    });
}

#[test]
fn a_full_disk_changes_nothing_and_room_lets_it_go_on() {
    each(2, |mut life| {
        (0..600).for_each(|_| life.step());
        if life.subject.is_direct {
            life.fill_a_region();
            return;
        }
        let rows = life.storage.parked() as u64 + 2000;
        let growth = life.storage.growth_for(rows, 0);
        assert!(growth > 0 && growth <= life.storage.lacking_bytes(rows, 0));
        let (stats, memory) = (life.storage.stats(), life.storage.memory());
        let disk_bytes = stats.disk_bytes + growth;
        let refused = |life: &mut Life, grow: u64| {
            let error = life.storage.reserve(rows, 0, grow).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            // Room found before the disk was full is kept for the next request.
            let now = life.storage.stats();
            assert_eq!(StorageStats { disk_bytes: stats.disk_bytes, ..now }, stats);
            assert_eq!(now.disk_bytes + life.storage.growth_for(rows, 0), disk_bytes);
            assert_eq!(life.storage.memory(), memory);
        };
        refused(&mut life, growth - 1);
        life.medium.set_capacity(Some(life.medium.taken_bytes() + growth / 2));
        refused(&mut life, growth);
        life.check();
        life.medium.set_capacity(None);
        life.storage.reserve(rows, 0, growth).unwrap();
        assert_eq!(life.storage.disk_bytes(), disk_bytes);
        assert_eq!((life.storage.growth_for(rows, 0), life.storage.lacking_bytes(rows, 0)), (0, 0));
        // All of them find room without being asked for again.
        life.medium.set_capacity(Some(life.medium.taken_bytes()));
        for at in 0..2000 {
            let key = (1, mix(at | 1 << 20, 77));
            let words = words_of(key, 1);
            let row = DirtyRow {
                table: 1,
                key: key.1,
                dirty_since: 1,
                origin: Some(0),
                stretch: None,
                words: &words,
            };
            life.storage.append(row).unwrap();
        }
        life.storage.flush(1).unwrap();
        assert_eq!(life.storage.disk_bytes(), disk_bytes);
    });
}

/// The rows that differ between two commits.
fn difference(one: &Rows, other: &Rows) -> BTreeSet<RowKey> {
    let keys = one.keys().chain(other.keys()).copied();
    keys.filter(|key| one.get(key) != other.get(key)).collect()
}

#[test]
fn every_kept_commit_is_recovered_from_changes_and_pieces() {
    each(2, |mut life| {
        let mut opened = 0;
        for step in 0..2400 {
            life.step();
            if step == 500 {
                life.create_table(None, 60);
                life.create_table(Some(20), 20);
            }
            if step % 100 != 0 {
                continue;
            }
            if life.subject.is_direct {
                life.reopen_by_update();
                life.check();
                assert_eq!(swept(&mut life, None, &mut |_| {}), of_table(&life.stored, None));
                let mut say = |finding: Finding| panic!("{finding:?}");
                let checked = life.storage.check(&mut |_, _| Ok(()), &mut say).unwrap();
                assert_eq!(checked.rows, life.stored.len() as u64);
                opened += 1;
                continue;
            }
            for commit in life.journal.kept() {
                let mut reader = life.reader_at(&commit);
                reader.check();
                assert_eq!(swept(&mut reader, None, &mut |_| {}), of_table(&commit.rows, None));
                let mut said = Vec::new();
                let mut say = |finding: Finding| said.push(format!("{finding:?}"));
                let checked = reader.storage.check(&mut |_, _| Ok(()), &mut say).unwrap();
                assert_eq!(said, Vec::<String>::new());
                let rows = commit.rows.len() as u64;
                assert!(checked.rows == rows || life.subject.has_layers && checked.rows > rows);
                opened += 1;
            }
        }
        assert!(opened > 20 && life.journal.files() > 2, "{opened} of {}", life.journal.files());
    });
}

#[test]
fn what_kept_commits_have_stays_while_everything_is_written_again() {
    each(1, |mut life| {
        for _ in 0..12 {
            for key in life.keys() {
                if !life.random.one_in(4) {
                    life.put(key);
                }
            }
            life.commit(3);
            // All free room is given back, so that later writes reuse it at once.
            life.storage.give_back(0, 0, 0, Some(u64::MAX)).unwrap();
            if life.subject.is_direct {
                // It is the newest rows that stay.
                life.reopen_by_update();
                life.check();
                continue;
            }
            for commit in life.journal.kept() {
                life.reader_at(&commit).check();
            }
        }
    });
}

#[test]
fn a_growing_table_is_recovered_while_it_grows_and_shrinks() {
    each(1, |mut life| {
        life.create_table(None, 2600);
        let table = life.tables[4].clone();
        let (mut pieces, mut indexed) = (BTreeSet::new(), BTreeSet::new());
        for at in 0..5000 {
            let key = life.key_of(&table, at % table.keys);
            if at < table.keys {
                life.put(key)
            } else {
                life.delete(key)
            }
            if at % 40 == 0 {
                life.commit(2);
                pieces.insert(life.storage.pieces(table.id));
                indexed.insert(life.storage.memory().index_bytes);
            }
            if at % 500 == 499 && life.subject.is_direct {
                life.reopen_by_update();
                life.check();
            } else if at % 500 == 499 {
                life.journal.kept().iter().for_each(|commit| life.reader_at(commit).check());
            }
        }
        if life.subject.is_direct {
            // The index has a fixed size, and the journal holds none of it.
            assert_eq!((pieces.len(), pieces.first(), indexed.len()), (1, Some(&0), 1));
            return;
        }
        if life.subject.has_layers {
            // The size of the index depends on merges, not on the rows of the table.
            return;
        }
        // Only the log divides a table.
        assert_eq!(pieces.len() > 10, life.subject.has_pages, "{pieces:?}");
        let most = indexed.last().unwrap();
        assert!(life.storage.memory().index_bytes < most / 2 + most / 4, "{indexed:?}");
    });
}

#[test]
fn a_life_goes_on_from_the_last_commit_or_an_earlier_one() {
    each(2, |mut life| {
        for round in 0..14 {
            (0..90).for_each(|_| life.step());
            if round == 5 {
                life.create_table(None, 60);
            }
            if life.subject.is_direct {
                // There is no going back.
                life.reopen_by_update();
                life.check();
                continue;
            }
            let kept = life.journal.kept();
            if kept.is_empty() {
                continue;
            }
            let at = if round % 2 == 0 { kept.len() as u64 - 1 } else { 0 };
            let commit = &kept[at as usize];
            life.reopen(commit);
            life.check();
        }
    });
}

#[test]
fn a_reader_goes_on_to_a_later_commit_and_is_read_meanwhile() {
    each(2, |mut life| {
        let mut moves = 0;
        for round in 0..10 {
            (0..40).for_each(|_| life.step());
            life.commit(1);
            if life.subject.is_direct {
                // The regions go along: another process cannot have changed them.
                life.go_on_by_update();
                life.check();
                moves = usize::MAX;
                continue;
            }
            let from = life.journal.kept()[0].clone();
            let mut reader = life.reader_at(&from);
            reader.check();
            // Dropped rows are overwritten: a reader holds the commit that has them.
            for _ in 0..2 {
                (0..12).for_each(|_| {
                    let key = life.random_key();
                    life.put(key);
                });
                life.commit(8);
            }
            if round == 4 {
                life.create_table(None, 30);
                life.commit(8);
            }
            let to = life.journal.kept().pop().unwrap();
            let facts: Vec<_> = from.tables.iter().map(|table| table.facts(false)).collect();
            let mut recovery = reader.storage.go_on(&facts, from.number + 1, to.number).unwrap();
            while reader.storage.copy_more(&mut *recovery) {}
            let mut heard = BTreeSet::new();
            let mut hear = |table: u16, key: u64| _ = heard.insert((table, key));
            life.journal
                .replay(&mut *recovery, from.place, &to, false, &mut Some(&mut hear))
                .unwrap();
            assert!(difference(&from.rows, &to.rows).is_subset(&heard));
            moves += heard.len();
            reader.check();
            if round % 2 == 0 {
                continue;
            }
            let at = OpenAt {
                commit: to.number,
                position: to.position,
                is_newest: true,
                write_after: None,
            };
            let file = life.file.clone();
            reader.storage = recovery.finish(&at, file, &life.medium()).unwrap();
            reader.tables.clone_from(&to.tables);
            reader.stored.clone_from(&to.rows);
            reader.check();
        }
        assert!(moves > 100, "{moves} rows were heard of");
    });
}

fn is_corrupt(result: Result<()>) -> Error {
    let error = result.expect_err("it is damaged");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    error
}

#[test]
fn what_the_journal_lacks_or_garbles_is_corrupt() {
    each(2, |mut life| {
        if life.subject.is_direct {
            // The journal has nothing of rows, and what it has is of another storage.
            let begin = |begun: &str| (life.subject.recovery)(&life.facts, begun, 0, 1);
            is_corrupt(begin("").unwrap().changes(&[1, 2], None));
            is_corrupt(begin("").unwrap().piece(1, 0, &[]));
            is_corrupt(begin("fillings").map(drop));
            return;
        }
        let begun = life.journal.files();
        while life.journal.files() == begun || life.stored.len() < 100 {
            life.step();
        }
        let newest = life.journal.newest();
        let begin = || {
            let recovery = (life.subject.recovery)(&life.facts, &newest.record, 0, 1);
            let mut recovery = recovery.unwrap();
            newest.tables.iter().for_each(|table| recovery.table(&table.facts(false)).unwrap());
            recovery
        };
        let recovery = begin();
        is_corrupt(recovery.check_complete());
        let at = OpenAt { commit: 1, position: 0, is_newest: true, write_after: None };
        let file = life.file.clone();
        is_corrupt(recovery.finish(&at, file, &life.medium()).map(drop));
        let changes = life.journal.last_changes();
        is_corrupt(begin().changes(&changes[..changes.len() - 1], None));
        let mut piece = Vec::new();
        let number = (0..life.storage.pieces(1)).find(|number| {
            life.storage.write_piece(1, *number, &mut piece);
            !piece.is_empty()
        });
        let number = number.expect("some piece has bytes");
        is_corrupt(begin().piece(99, number, &piece));
        is_corrupt(begin().piece(1, number, &piece[..piece.len() - 1]));
        let mut without_tables = (life.subject.recovery)(&life.facts, "", 0, 1).unwrap();
        is_corrupt(without_tables.changes(changes, None));
    });
}

#[test]
fn a_table_that_came_to_nothing_leaves_nothing() {
    each(1, |mut life| {
        (0..400).for_each(|_| life.step());
        life.spill();
        let before = life.storage.stats();
        for rows in [None, Some(1000)] {
            let (id, packed) = (life.tables.len() as u16, life.subject.packed);
            let name = "passing".to_owned();
            let table = TableOfLife { id, name, rows, keys: 0, packed, partitions: None };
            life.storage.create_table(&table.facts(true)).unwrap();
            assert_eq!(life.storage.rows_stored(id), 0);
            assert_eq!(life.storage.contains(id, 5), Some(false));
            assert_eq!(life.storage.read_order(id, 5), None);
            life.storage.remove_table(id);
            assert_eq!((life.storage.stats(), life.storage.change_bytes()), (before, 0));
        }
        life.create_table(None, 50);
        (0..400).for_each(|_| life.step());
        life.check();
    });
}

#[test]
fn another_share_keeps_rows_and_changes() {
    each(2, |mut life| {
        (0..500).for_each(|_| life.step());
        for bytes in [64 << 20, 0, 1 << 30, 4 << 20] {
            (0..50).for_each(|_| life.step());
            life.equip(bytes);
            assert_eq!(life.storage.memory().buffer_bytes > 0, !life.subject.is_direct);
            life.check();
        }
    });
}
