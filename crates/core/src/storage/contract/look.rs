//! Looking at a life: rows as verbs look them up, and all else that a storage says of them.

use super::life::{Life, RowKey, reader, words_of};
use crate::error::Result;
use crate::storage::{Found, PageAddress, Resolved, Want};
use std::collections::BTreeMap;

/// Origins from here on are of the lower of two layers.
const BELOW: u32 = 1 << 31;

/// The result of a look-up of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looked {
    pub(super) change: u32,
    pub(super) origin: Option<u32>,
    pub(super) is_parked: bool,
}

impl Life {
    /// Looks rows up as a verb does: in memory first, then, after what happens `meanwhile`, in
    /// pages. Each is what the model has at the moment in which it is found.
    pub(super) fn look_up(
        &mut self,
        keys: &[RowKey],
        meanwhile: &mut dyn FnMut(&mut Self),
    ) -> Vec<Option<Looked>> {
        let mut found = vec![None; keys.len()];
        let mut open: Vec<usize> = (0..keys.len()).collect();
        let mut is_first = true;
        while !open.is_empty() {
            let ticket = self.storage.begin_read();
            let (mut wants, mut left) = (Vec::new(), BTreeMap::new());
            for at in open {
                let before = wants.len();
                match self.find(keys[at], at as u32, &[], &mut wants) {
                    Some(row) => found[at] = row,
                    None => _ = left.insert(at, wants.len() - before),
                }
            }
            if self.storage.pages().select(&mut wants) {
                left.values_mut().for_each(|left| *left = 0);
                for want in &wants {
                    *left.get_mut(&(want.miss as usize)).expect("a miss without a want") += 1;
                }
                assert!(left.values().all(|left| *left > 0), "a miss has no want left");
            }
            if std::mem::replace(&mut is_first, false) {
                meanwhile(self);
            }
            let again = self.resolve(keys, &mut wants, &mut left, &mut found);
            open = again.expect("no page is damaged");
            self.moved += open.len() as u64;
            self.storage.end_read(ticket);
        }
        found
    }

    /// The result from memory alone; `None` if pages have to be read.
    fn find(
        &mut self,
        key: RowKey,
        miss: u32,
        seen: &[Want],
        wants: &mut Vec<Want>,
    ) -> Option<Option<Looked>> {
        let (parked, stored) = (self.parked.get(&key).copied(), self.stored.get(&key).copied());
        let before = wants.len();
        let origin = match self.storage.find(key.0, key.1, miss, seen, wants) {
            Found::Absent => {
                assert_eq!(parked.or(stored), None, "{key:?} is lost");
                assert_eq!(wants.len(), before);
                return Some(None);
            }
            Found::Parked { words, origin, dirty_since } => {
                let change = parked.expect("no such row waits");
                assert_eq!((words, dirty_since), (&words_of(key, change)[..], change));
                assert_eq!(wants.len(), before);
                return Some(Some(Looked { change, origin, is_parked: true }));
            }
            Found::InMemory { words, origin } => {
                assert_eq!(parked, None, "{key:?} waits");
                let change = stored.expect("no such row is stored");
                assert_eq!(words, words_of(key, change));
                assert_eq!(wants.len(), before);
                origin
            }
            Found::Stored { origin } => {
                assert!(wants.len() > before && parked.is_none());
                let known = origin.zip(self.origins.get(&key).copied());
                assert!(known.is_none_or(|(origin, known)| origin == known));
                return None;
            }
        };
        self.check_origin(key, origin);
        stored.map(|change| Some(Looked { change, origin: Some(origin), is_parked: false }))
    }

    fn check_origin(&self, key: RowKey, origin: u32) {
        let known = self.origins.get(&key).copied().unwrap_or(origin);
        if self.subject.has_layers && origin >= BELOW && known >= BELOW {
            return;
        }
        assert_eq!(origin, known, "{key:?} is where it was written");
        assert!(self.storage.is_newest(key.0, key.1, origin));
    }

    /// Reads the pages of `wants`, and those that are named after them; returns which rows have to
    /// be looked for again.
    fn resolve(
        &mut self,
        keys: &[RowKey],
        wants: &mut Vec<Want>,
        left: &mut BTreeMap<usize, usize>,
        found: &mut [Option<Looked>],
    ) -> Result<Vec<usize>> {
        let (mut again, mut next) = (Vec::new(), wants.clone());
        wants.sort_unstable();
        while !next.is_empty() {
            next.sort_unstable();
            let further = self.read(keys, (&next, wants), left, found, &mut again)?;
            wants.extend_from_slice(&further);
            wants.sort_unstable();
            next = further;
        }
        assert!(left.is_empty(), "a page was not read");
        Ok(again)
    }

    /// Reads the pages of some wants; returns those that are named when they have other keys.
    fn read(
        &mut self,
        keys: &[RowKey],
        (wants, seen): (&[Want], &[Want]),
        left: &mut BTreeMap<usize, usize>,
        found: &mut [Option<Looked>],
        again: &mut Vec<usize>,
    ) -> Result<Vec<Want>> {
        let mut pages: Vec<PageAddress> = wants.iter().map(|want| want.at).collect();
        pages.dedup();
        let (source, mut further) = (self.storage.pages(), Vec::new());
        let mut reader = std::mem::replace(&mut self.reader, reader(&self.medium));
        let report = reader.read(&*source, &pages, &mut |at, page| {
            self.storage.verify_newest(at, page)?;
            for want in wants.iter().filter(|want| want.at == at) {
                let number = want.miss as usize;
                let (key, Some(pages)) = (keys[number], left.get_mut(&number)) else { continue };
                match self.storage.resolve(key.0, key.1, want, page)? {
                    Resolved::Row { words, origin } => {
                        assert!(!self.parked.contains_key(&key), "{key:?} waits");
                        let change = self.stored[&key];
                        assert_eq!(words, words_of(key, change));
                        self.check_origin(key, origin);
                        let origin = Some(origin);
                        found[number] = Some(Looked { change, origin, is_parked: false });
                        self.read += 1;
                    }
                    Resolved::Moved => again.push(number),
                    Resolved::Other if *pages > 1 => {
                        *pages -= 1;
                        continue;
                    }
                    // All pages had other keys: it is absent, further pages may have it, or it was
                    // written meanwhile.
                    Resolved::Other => {
                        let before = further.len();
                        match self.find(key, want.miss, seen, &mut further) {
                            Some(None) => {}
                            Some(Some(_)) => again.push(number),
                            None => {
                                *pages = further.len() - before;
                                continue;
                            }
                        }
                    }
                }
                left.remove(&number);
            }
            Ok(())
        });
        self.reader = reader;
        report?;
        Ok(further)
    }

    /// Compares all that the storage says of rows with the model.
    pub(super) fn check(&mut self) {
        let keys = self.keys();
        let found = self.look_up(&keys, &mut |_| {});
        for (key, found) in keys.iter().zip(&found) {
            assert_eq!(found.map(|found| found.change), self.newest(*key), "{key:?}");
            self.check_answers(*key, *found);
        }
        self.check_order(&keys);
        let stats = self.storage.stats();
        let rows = |table: u16| self.stored.range((table, 0)..=(table, u64::MAX)).count() as u64;
        for table in &self.tables {
            let (counted, rows) = (self.storage.rows_stored(table.id), rows(table.id));
            assert!(counted == rows || self.subject.has_layers && counted < rows);
        }
        let (counted, rows) = (stats.newest_copies, self.stored.len() as u64);
        assert!(counted == rows || self.subject.has_layers && counted > rows);
        assert!(stats.used_slots >= stats.newest_copies + stats.retained_copies);
        assert_eq!(stats.disk_bytes, self.storage.disk_bytes());
        assert_eq!(stats.index_bytes, self.storage.memory().index_bytes);
        assert_eq!(stats.written.rows, self.written);
        assert!(self.storage.outdated_bytes() <= stats.disk_bytes);
        assert_eq!(self.storage.parked(), self.parked.len());
    }

    /// All answers about a row say the same.
    fn check_answers(&self, key: RowKey, found: Option<Looked>) {
        let (storage, (table, id)) = (&self.storage, key);
        let is_parked = self.parked.contains_key(&key);
        assert_eq!(storage.is_parked(table, id), is_parked);
        let contains = storage.contains(table, id);
        assert!(contains.is_none_or(|contains| contains == found.is_some()), "{key:?}");
        let order = storage.read_order(table, id);
        assert!(found.is_none() || order.is_some());
        assert!(!is_parked || order == Some(0), "nothing is read for a row that waits");
        assert!(contains != Some(false) || order.is_none());
        let Some(origin) = found.and_then(|found| found.origin) else { return };
        if self.subject.has_layers && (origin >= BELOW || is_parked) {
            return;
        }
        assert_eq!(storage.is_newest(table, id, origin), !is_parked, "{key:?}");
        assert!(!storage.is_newest(table, id, origin + 1));
        assert!(!storage.is_newest(self.tables.len() as u16, id, origin), "no such table");
    }

    /// Rows are read in the order of their pages.
    fn check_order(&mut self, keys: &[RowKey]) {
        let mut reads = Vec::new();
        let ticket = self.storage.begin_read();
        for key in keys {
            let mut wants = Vec::new();
            self.find(*key, 0, &[], &mut wants);
            // With several pages it is that of any.
            if let [want] = &wants[..]
                && let Some(order) = self.storage.read_order(key.0, key.1)
            {
                reads.push((want.at, order));
            }
        }
        self.storage.end_read(ticket);
        reads.sort_unstable();
        // Numbers of partitions say nothing of their order.
        for pair in reads.windows(2).filter(|pair| pair[0].0.file == pair[1].0.file) {
            assert_eq!(pair[0].0.cmp(&pair[1].0), pair[0].1.cmp(&pair[1].1), "{pair:?}");
        }
    }
}
