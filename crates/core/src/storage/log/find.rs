//! Finding rows: in memory first, then in the pages that may hold them.

use super::{ClassLog, TableIndex};
use crate::error::{Result, bail};
use crate::io::File;
use crate::planted::{self, Bug};
use crate::storage::{
    DirtyRow, Found, PageAddress, PageLayout, PageSource, Resolved, StorageRead, StorageWrite, Want,
};
use std::sync::Arc;

/// The file of a log and the layout of its pages.
pub(super) struct LogPages {
    pub(super) layout: PageLayout,
    pub(super) file: Arc<dyn File>,
}

impl PageSource for LogPages {
    fn file(&self, _: u16) -> Arc<dyn File> {
        self.file.clone()
    }

    fn page_bytes(&self) -> usize {
        self.layout.page_bytes
    }

    fn verify(&self, at: PageAddress, page: &[u8]) -> Result<()> {
        self.layout.verify(page, at.page, self.file.name()).map(drop)
    }
}

impl StorageRead for ClassLog {
    fn pages(&self) -> Arc<dyn PageSource> {
        self.pages.clone()
    }

    fn begin_read(&mut self) -> u64 {
        self.segments.begin_read()
    }

    fn end_read(&mut self, ticket: u64) {
        self.segments.end_read(ticket);
    }

    fn prefetch(&self, table: u16, key: u64) {
        self.index(table).prefetch(key);
    }

    fn find(
        &mut self,
        table: u16,
        key: u64,
        miss: u32,
        seen: &[Want],
        wants: &mut Vec<Want>,
    ) -> Found<'_> {
        if let Some(at) = self.buffer.find(table, key) {
            let DirtyRow { dirty_since, origin, words, .. } = self.buffer.at(at);
            return Found::Parked { words, dirty_since, origin };
        }
        let mut slots = std::mem::take(&mut self.slots);
        let index = self.index(table);
        index.candidates(key, &mut slots);
        let known = slots.first().copied().filter(|_| !index.is_sparse());
        let before = wants.len();
        let mut in_memory = None;
        for slot in &slots {
            if self.page_in_memory(*slot).is_none() {
                let want = Want { at: self.address_of(*slot), hint: *slot, miss };
                if seen.binary_search(&want).is_err() {
                    wants.push(want);
                }
            } else if self.row_in_memory(table, key, *slot).is_some() {
                in_memory = Some(*slot);
                break;
            }
        }
        self.slots = slots;
        if let Some(origin) = in_memory
            && let Some(words) = self.row_in_memory(table, key, origin)
        {
            wants.truncate(before);
            return Found::InMemory { words, origin };
        }
        if wants.len() == before { Found::Absent } else { Found::Stored { origin: known } }
    }

    fn read_order(&self, table: u16, key: u64) -> Option<u32> {
        if self.is_parked(table, key) {
            return Some(0);
        }
        Some(self.address_of(self.index(table).first_candidate(key)?).page)
    }

    fn contains(&self, table: u16, key: u64) -> Option<bool> {
        let index = self.index(table);
        let found = index.may_contain(key);
        if found && !index.is_sparse() || self.is_parked(table, key) {
            return Some(true);
        }
        if found { None } else { Some(false) }
    }

    fn is_exact(&self, table: u16) -> bool {
        !self.index(table).is_sparse()
    }

    fn verify_newest(&self, at: PageAddress, page: &[u8]) -> Result<()> {
        self.verify_sequence(page, at.page)
    }

    fn resolve<'p>(
        &self,
        table: u16,
        key: u64,
        want: &Want,
        page: &'p [u8],
    ) -> Result<Resolved<'p>> {
        let slot = want.hint;
        let layout = self.layout();
        let at = slot as usize % layout.rows_per_page;
        let entry = layout.entry(page, at);
        let index = self.index(table);
        if entry == (table, key) {
            let waits = self.is_parked(table, key);
            if waits || !index.is_newest(key, slot) {
                return Ok(Resolved::Moved);
            }
            return Ok(Resolved::Row { words: layout.row(page, at), origin: slot });
        }
        // If the index still names the slot, it names it for the row that is there, whose tag and
        // partition are then the same; for no other. Of a dense table it names no other at all.
        let (owner, found) = entry;
        let wrong = match index {
            TableIndex::Dense(_) => {
                Some(format!("id {key}, the page says table {owner} key {found}"))
            }
            TableIndex::Sparse(..) => {
                let moved = !index.is_newest(key, slot);
                let explained = moved || (owner == table && index.is_newest(found, slot));
                (!explained).then(|| {
                    format!(
                        "a row of this table, the page says table {owner} key {found}, which is \
                         indexed elsewhere or not at all"
                    )
                })
            }
        };
        if let Some(wrong) = wrong
            && !planted::is(Bug::WrongPageAccepted)
        {
            bail!(
                Corrupt,
                "{}, slot {slot}: the index says {wrong}; restore from a copy, or open an earlier \
                 commit with step=",
                self.file().name()
            );
        }
        Ok(Resolved::Other)
    }
}

impl ClassLog {
    fn address_of(&self, slot: u32) -> PageAddress {
        PageAddress { file: 0, page: slot / self.layout().rows_per_page as u32 }
    }

    /// The row of a slot whose page is in memory, if it is that of this key.
    fn row_in_memory(&self, table: u16, key: u64, slot: u32) -> Option<&[f32]> {
        let (layout, page) = (self.layout(), self.page_in_memory(slot)?);
        let at = slot as usize % layout.rows_per_page;
        (layout.entry(page, at) == (table, key)).then(|| layout.row(page, at))
    }
}
