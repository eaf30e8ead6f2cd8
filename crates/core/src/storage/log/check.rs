//! Check of a log: every page with the newest copy of a row is read and compared with the index.

use super::ClassLog;
use super::sweep::NewestCopies;
use crate::error::{Error, Result};
use crate::storage::{Checked, Finding};
use std::collections::BTreeMap;

/// Pages that are looked at between two reports of progress, and neighbours read at once.
const PAGES: usize = 256;

impl ClassLog {
    /// Reads every page that the index names, looks for every row where it says, and tells `said`
    /// what is wrong. `progress(done, all)` counts pages and may end it by an error, the only one
    /// that is returned. Nothing may be written meanwhile.
    pub(super) fn check_pages(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
        said: &mut dyn FnMut(Finding),
    ) -> Result<Checked> {
        let copies = self.newest_copies(None);
        let all = copies.pages(0).count() as u64;
        let mut checker = Checker {
            log: self,
            copies: &copies,
            said,
            is_sound: true,
            pages: 0,
            found: self.indexes().map(|(id, _)| (id, 0)).collect(),
            words: Vec::new(),
        };
        let (mut done, mut next) = (0, 0);
        loop {
            let pages: Vec<u32> = copies.pages(next).take(PAGES).collect();
            let Some(last) = pages.last() else { break };
            progress(done, all)?;
            next = last + 1;
            done += pages.len() as u64;
            pages.chunk_by(|page, behind| *behind == page + 1).for_each(|run| checker.run(run));
        }
        progress(all, all)?;
        let Checker { said, mut is_sound, pages, found, .. } = checker;
        for (table, index) in self.indexes() {
            let (indexed, found) = (index.len(), found[&table]);
            // Damage has explained it.
            if found != indexed && std::mem::replace(&mut is_sound, false) {
                said(Finding::Rows { table, indexed, found });
            }
        }
        Ok(Checked { pages, rows: found.values().sum() })
    }
}

struct Checker<'a> {
    log: &'a ClassLog,
    copies: &'a NewestCopies,
    said: &'a mut dyn FnMut(Finding),
    /// Nothing is wrong so far.
    is_sound: bool,
    pages: u64,
    /// Rows found where the index says, by table.
    found: BTreeMap<u16, u64>,
    words: Vec<f32>,
}

impl Checker<'_> {
    fn damage(&mut self, error: Error) {
        self.is_sound = false;
        (self.said)(Finding::Damage(error));
    }

    /// Checks neighbouring pages with one read; when that fails, one by one.
    fn run(&mut self, pages: &[u32]) {
        let page_bytes = self.log.layout().page_bytes;
        let mut words = std::mem::take(&mut self.words);
        words.resize(pages.len() * page_bytes / 4, 0.0);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        match self.log.file().read_at(bytes, u64::from(pages[0]) * page_bytes as u64) {
            Ok(()) => {
                for (page, bytes) in pages.iter().zip(bytes.chunks_exact(page_bytes)) {
                    self.page(*page, bytes);
                }
            }
            Err(error) if pages.len() == 1 => self.damage(error),
            Err(_) => pages.chunks(1).for_each(|page| self.run(page)),
        }
        self.words = words;
    }

    fn page(&mut self, number: u32, bytes: &[u8]) {
        self.pages += 1;
        let (log, layout) = (self.log, self.log.layout());
        let verified = layout.verify(bytes, number, log.file().name());
        match verified.and_then(|rows| log.verify_sequence(bytes, number).map(|()| rows)) {
            Ok(rows) => {
                for row in self.copies.rows_of(layout, number, bytes, rows) {
                    if log.is_indexed(row.table, row.key, row.place) {
                        *self.found.entry(row.table).or_default() += 1;
                    }
                }
            }
            Err(error) => self.damage(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::TableIndex;
    use super::super::sweep::tests::{DENSE, ROWS, two_tables};
    use super::*;
    use crate::storage::{StorageJournal, StorageSweeps};

    fn check(log: &ClassLog) -> (Checked, Vec<Finding>) {
        let (mut said, mut told) = (Vec::new(), Vec::new());
        let mut progress = |done, all| {
            told.push((done, all));
            Ok(())
        };
        let checked = log.check(&mut progress, &mut |finding| said.push(finding)).unwrap();
        let all = told[0].1;
        assert_eq!((told[0], *told.last().unwrap()), ((0, all), (all, all)));
        assert!(told.len() as u64 > all / PAGES as u64, "{told:?}");
        (checked, said)
    }

    #[test]
    fn a_check_finds_all_rows_or_says_which_page_is_damaged() {
        let (mut log, ..) = two_tables();
        log.write_out().unwrap();
        let (checked, said) = check(&log);
        assert_eq!(checked.rows, 2 * ROWS);
        assert!(said.is_empty(), "{said:?}");
        let place = u64::from(log.index(DENSE).slot_of(0));
        let page = place / log.layout().rows_per_page as u64;
        log.file().write_at(&[0; 512], page * 512).unwrap();
        let (damaged, said) = check(&log);
        assert_eq!(damaged.pages, checked.pages);
        assert!(damaged.rows < checked.rows);
        let [Finding::Damage(error)] = &said[..] else { panic!("{said:?}") };
        assert!(error.message().contains(&format!("page {page} ")), "{error}");
    }

    #[test]
    fn a_check_counts_the_rows_that_the_index_names_in_vain() {
        let (mut log, _, places) = two_tables();
        log.write_out().unwrap();
        let TableIndex::Dense(index) = log.index_mut(DENSE) else { panic!("it is dense") };
        index.set(7, places[7]);
        let (checked, said) = check(&log);
        assert_eq!(checked.rows, 2 * ROWS - 1);
        let [Finding::Rows { table, indexed, found }] = &said[..] else { panic!("{said:?}") };
        assert_eq!((*table, *indexed, *found), (DENSE, ROWS, ROWS - 1));
    }
}
