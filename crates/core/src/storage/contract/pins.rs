//! Pinned commits: every storage keeps what they need, whatever is written, dropped or opened.

use super::each;
use super::journal::{Commit, TableOfLife};
use super::life::Life;
use crate::config::StorageKind;
use crate::storage::{Begun, OpenAt, Parts};

/// A pinned commit, as the store writes it down.
struct Pin {
    commit: Commit,
    begun: Begun,
    parts: Parts,
    tables: Vec<TableOfLife>,
    pieces: Vec<(u16, u32, Vec<u8>)>,
}

impl Life {
    /// Pins the newest commit.
    fn pin(&mut self) -> Pin {
        let commit = self.journal.kept().pop().expect("there is a commit");
        let reader = self.reader_at(&commit);
        let (begun, parts) = (reader.storage.begun(), reader.storage.parts());
        parts.verify().unwrap();
        let mut tables = commit.tables.clone();
        let mut pieces = Vec::new();
        for table in &mut tables {
            let found = begun.partitions.iter().find(|(id, _)| *id == table.id);
            table.partitions = found.map(|(_, partitions)| *partitions);
            for piece in 0..reader.storage.pieces(table.id) {
                let mut bytes = Vec::new();
                reader.storage.write_piece(table.id, piece, &mut bytes);
                pieces.push((table.id, piece, bytes));
            }
        }
        self.storage.pin(commit.number, &parts).unwrap();
        Pin { commit, begun, parts, tables, pieces }
    }

    /// A reader of a pinned commit, from what was written down.
    fn reader_at_pin(&self, pin: &Pin) -> Self {
        let number = pin.commit.number;
        let mut recovery =
            (self.subject.recovery)(&self.facts, &pin.begun.record, 0, number).unwrap();
        for table in &pin.tables {
            recovery.table(&table.facts(false)).unwrap();
        }
        for (table, piece, bytes) in &pin.pieces {
            recovery.piece(*table, *piece, bytes).unwrap();
        }
        recovery.commit(number, pin.commit.began);
        self.reader_of(recovery, &pin.commit)
    }

    fn write_all(&mut self, keep: u64) {
        for key in self.keys() {
            if self.random.one_in(2) {
                self.put(key);
            }
        }
        self.commit(keep);
        // All free room is given back, so that later writes reuse it at once.
        self.storage.give_back(0, 0, 0, Some(u64::MAX)).unwrap();
    }
}

#[test]
fn what_pinned_commits_have_stays_whatever_follows_and_goes_when_they_are_unpinned() {
    each(1, |mut life| {
        if life.subject.is_direct {
            // No commit of such rows can be pinned.
            assert_eq!(life.storage.parts(), Parts::default());
            return;
        }
        let mut pins: Vec<Pin> = Vec::new();
        for round in 0..12 {
            life.write_all(1 + round % 3);
            if round % 2 == 0 {
                pins.push(life.pin());
            }
            if round % 5 == 4 {
                let pin = pins.remove(life.random.below(pins.len() as u64) as usize);
                life.storage.unpin(pin.commit.number);
            }
            if round % 5 == 2 {
                let last = life.journal.kept().pop().unwrap();
                let parts: Vec<(u64, &Parts)> =
                    pins.iter().map(|pin| (pin.commit.number, &pin.parts)).collect();
                life.reopen_beside(&last, &parts);
            }
            if round % 3 == 2 {
                pins.iter().for_each(|pin| life.reader_at_pin(pin).check());
                life.check();
            }
        }
        let alone = |life: &Life, pins: &[Pin]| -> u64 {
            let bytes = pins.iter().enumerate().map(|(at, pin)| {
                let others = pins.iter().enumerate().filter(|(other, _)| *other != at);
                let others: Vec<&Parts> = others.map(|(_, pin)| &pin.parts).collect();
                life.storage.bytes_of_pin(&pin.parts, &others)
            });
            bytes.sum()
        };
        let (kept, before) = (alone(&life, &pins), life.storage.disk_bytes());
        assert_eq!(kept > 0, life.subject.has_pages, "{kept} bytes of pins");
        assert!(kept <= before);
        for pin in pins.drain(..) {
            life.storage.unpin(pin.commit.number);
            life.storage.unpin(pin.commit.number);
        }
        (0..4).for_each(|_| life.write_all(1));
        life.abandon_unit();
        life.storage.give_back(0, 0, 0, Some(u64::MAX)).unwrap();
        let after = life.storage.disk_bytes();
        // A freeze under way keeps room before and after.
        let shrinks = life.subject.has_pages && life.subject.kind != StorageKind::Pages;
        assert!(after < before || !shrinks, "{before}, then {after}");
        life.check();
    });
}

#[test]
fn a_life_goes_on_from_a_pinned_commit() {
    each(1, |mut life| {
        if life.subject.is_direct {
            return;
        }
        life.write_all(2);
        let pin = life.pin();
        let later = {
            life.write_all(1);
            life.pin()
        };
        (0..6).for_each(|_| life.write_all(1));
        life.storage.unpin(later.commit.number);
        let mut back = life.reader_at_pin(&pin);
        let at = OpenAt {
            commit: pin.commit.number,
            position: pin.commit.position,
            is_newest: false,
            write_after: Some(1 << 50),
        };
        let recovery = {
            let mut recovery =
                (life.subject.recovery)(&life.facts, &pin.begun.record, 0, pin.commit.number)
                    .unwrap();
            pin.tables.iter().for_each(|table| recovery.table(&table.facts(false)).unwrap());
            for (table, piece, bytes) in &pin.pieces {
                recovery.piece(*table, *piece, bytes).unwrap();
            }
            recovery.commit(pin.commit.number, pin.commit.began);
            recovery
        };
        let mut storage = recovery.finish(&at, life.file.clone(), &life.medium()).unwrap();
        storage.pin(pin.commit.number, &pin.parts).unwrap();
        back.storage = storage;
        back.equip(0);
        back.check();
        for _ in 0..3 {
            back.write_all(1);
            back.check();
        }
        life.reader_at_pin(&pin).check();
    });
}
