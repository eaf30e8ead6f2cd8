//! Finding rows: what waits, then tombstones, then the top, then the one page of the bottom.

use super::bottom::Looked;
use super::pages::TOP;
use super::{IN_BOTTOM, Lsm};
use crate::error::Result;
use crate::storage::{Found, PageAddress, PageSource, Resolved, StorageRead, StorageWrite, Want};
use std::sync::Arc;

impl StorageRead for Lsm {
    fn pages(&self) -> Arc<dyn PageSource> {
        self.pages.clone()
    }

    fn begin_read(&mut self) -> u64 {
        let ticket = self.top.begin_read();
        self.tickets.insert(ticket);
        self.next_ticket = ticket + 1;
        ticket
    }

    fn end_read(&mut self, ticket: u64) {
        self.top.end_read(ticket);
        self.tickets.remove(&ticket);
        self.bottom.reads_ended(self.tickets.first().copied());
    }

    fn prefetch(&self, table: u16, key: u64) {
        self.top.prefetch(table, key);
    }

    fn find(
        &mut self,
        table: u16,
        key: u64,
        miss: u32,
        seen: &[Want],
        wants: &mut Vec<Want>,
    ) -> Found<'_> {
        let place = self.place(table, key);
        if self.tombstones.contains(place) && !self.top.is_parked(table, key) {
            return Found::Absent;
        }
        // If the top has no row, all its present candidates hold other keys: the pages in `seen`,
        // and those in memory. `resolve` compares them with the candidates of that time.
        let hint = match self.is_dense(table) {
            true => 0,
            false => self.top.candidate_sum(table, key),
        };
        let found = self.top.find(table, key, miss, seen, wants);
        if found != Found::Absent {
            return found;
        }
        let before = wants.len();
        let pages = self.bottom.snapshot().candidates(place);
        let unseen = pages.map(|at| Want { at, hint, miss });
        wants.extend(unseen.filter(|want| seen.binary_search(want).is_err()));
        if wants.len() == before { Found::Absent } else { Found::Stored { origin: None } }
    }

    fn read_order(&self, table: u16, key: u64) -> Option<u32> {
        if let Some(order) = self.top.read_order(table, key) {
            return Some(order.min(IN_BOTTOM - 1));
        }
        let place = self.place(table, key);
        if self.tombstones.contains(place) {
            return None;
        }
        self.bottom.snapshot().order_of(place)
    }

    fn contains(&self, table: u16, key: u64) -> Option<bool> {
        if self.top.is_parked(table, key) {
            return Some(true);
        }
        let place = self.place(table, key);
        if self.tombstones.contains(place) {
            return Some(false);
        }
        match self.top.contains(table, key) {
            Some(false) if self.bottom.snapshot().candidates(place).next().is_some() => None,
            found => found,
        }
    }

    fn is_exact(&self, _: u16) -> bool {
        false
    }

    fn verify_newest(&self, at: PageAddress, page: &[u8]) -> Result<()> {
        // The file of a partition was written once, and its pages tell by which merge.
        if at.file == TOP { self.top.verify_newest(at, page) } else { Ok(()) }
    }

    fn resolve<'p>(
        &self,
        table: u16,
        key: u64,
        want: &Want,
        page: &'p [u8],
    ) -> Result<Resolved<'p>> {
        if want.at.file == TOP {
            return self.top.resolve(table, key, want, page);
        }
        let place = self.place(table, key);
        if self.top.is_parked(table, key)
            || self.tombstones.contains(place)
            || self.top.candidate_sum(table, key) != want.hint
        {
            return Ok(Resolved::Moved);
        }
        Ok(match self.bottom.snapshot().find(place, want.at, page)? {
            Looked::Row(words) => {
                Resolved::Row { words, origin: IN_BOTTOM | u32::from(want.at.file) }
            }
            Looked::Absent => Resolved::Other,
            Looked::Left => Resolved::Moved,
        })
    }
}
