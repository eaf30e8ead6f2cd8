//! Check: the top as a log, and every page of every partition.
//!
//! Rows of a sorted partition follow each other; those of a frozen one are where its index says.

use super::Lsm;
use super::bottom::{Numbered, Partition, Place};
use crate::error::{Error, Result};
use crate::storage::{Checked, Finding, StorageSweeps};
use std::collections::BTreeMap;

/// Pages that are read at once, and between two reports of progress.
const PAGES: u32 = 256;

impl Lsm {
    /// As [`StorageSweeps::check`].
    pub(super) fn check_all(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
        said: &mut dyn FnMut(Finding),
    ) -> Result<Checked> {
        let snapshot = self.bottom.snapshot();
        let pages = |open: &Numbered| u64::from(open.partition.facts().pages);
        let below: u64 = snapshot.partitions().iter().map(pages).sum();
        let mut above = 0;
        let mut checked = self.top.check(
            &mut |done, all| {
                above = all;
                progress(done, all + below)
            },
            said,
        )?;
        for Numbered { partition, .. } in snapshot.partitions() {
            self.check_partition(partition, said, &mut checked, &mut |done| {
                progress(done, above + below)
            })?;
        }
        Ok(checked)
    }

    fn check_partition(
        &self,
        partition: &Partition,
        said: &mut dyn FnMut(Finding),
        checked: &mut Checked,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let page_bytes = self.facts.page_bytes;
        let facts = partition.facts();
        let mut words = Vec::new();
        let mut before = None;
        let mut frozen = FrozenRows::default();
        let mut is_damaged = false;
        let mut page = 1;
        // Of pages that could not be read together each is read alone, up to this one.
        let mut alone_before = 0;
        while page <= facts.pages {
            let count = match page < alone_before {
                true => 1,
                false => PAGES.min(facts.pages + 1 - page),
            };
            words.resize(count as usize * page_bytes / 4, 0.0f32);
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
            let read = partition.file().read_at(bytes, u64::from(page) * page_bytes as u64);
            match read {
                Ok(()) => {
                    for (number, bytes) in (page..).zip(bytes.chunks_exact(page_bytes)) {
                        checked.pages += 1;
                        let rows = match partition.is_frozen() {
                            true => frozen.check_page(partition, number, bytes),
                            false => check_page(partition, number, bytes, &mut before),
                        };
                        match rows {
                            Ok(rows) => checked.rows += rows,
                            Err(error) => {
                                is_damaged = true;
                                said(Finding::Damage(error));
                            }
                        }
                    }
                }
                Err(_) if count > 1 => {
                    alone_before = page + count;
                    continue;
                }
                Err(error) => {
                    is_damaged = true;
                    checked.pages += 1;
                    said(Finding::Damage(error));
                }
            }
            page += count;
            progress(checked.pages)?;
        }
        // If pages are damaged, it is known why rows are missing.
        if partition.is_frozen() && !is_damaged {
            frozen.compare(partition, said);
        }
        Ok(())
    }
}

/// Rows at home of the pages of a frozen partition that were checked.
#[derive(Default)]
struct FrozenRows {
    found: BTreeMap<u16, u64>,
    /// Places of the page at hand.
    places: Vec<Place>,
}

impl FrozenRows {
    /// Checks a page and that the index names it for each of its rows, none of which comes twice;
    /// returns how many are at home there.
    fn check_page(&mut self, partition: &Partition, number: u32, bytes: &[u8]) -> Result<u64> {
        partition.verify(number, bytes)?;
        let is_home = number <= partition.home_pages();
        let most = partition.candidates_max().unwrap_or(0);
        self.places.clear();
        for (row, entry) in (0..).zip(partition.rows(number, bytes)) {
            let (place, ..) = entry?;
            let candidates = partition.candidates(place);
            let named = candidates.pages();
            // Replicas beyond those that are named are the last ones.
            let is_beyond =
                !is_home && named.len() >= most && named.last().is_some_and(|last| *last < number);
            if !named.contains(&number) && !is_beyond {
                return Err(partition.misplaced(number, row));
            }
            self.places.push(place);
        }
        self.places.sort_unstable();
        if let Some(at) = self.places.windows(2).position(|two| two[0] == two[1]) {
            return Err(partition.twice(number, self.places[at]));
        }
        if !is_home {
            return Ok(0);
        }
        for of_table in self.places.chunk_by(|a, b| a.table == b.table) {
            *self.found.entry(of_table[0].table).or_default() += of_table.len() as u64;
        }
        Ok(self.places.len() as u64)
    }

    fn compare(&self, partition: &Partition, said: &mut dyn FnMut(Finding)) {
        for (table, indexed) in partition.table_rows() {
            let found = self.found.get(&table).copied().unwrap_or(0);
            if found != indexed {
                said(Finding::Rows { table, indexed, found });
            }
        }
    }
}

/// Checks a page and that its rows follow those before; returns how many it has.
fn check_page(
    partition: &Partition,
    number: u32,
    bytes: &[u8],
    before: &mut Option<Place>,
) -> std::result::Result<u64, Error> {
    partition.verify(number, bytes)?;
    let mut rows = 0;
    for row in partition.rows(number, bytes) {
        let (place, ..) = row?;
        if before.is_some_and(|before| before >= place)
            || !partition.facts().range.contains(place)
            || !partition.candidates(place).pages().contains(&number)
        {
            return Err(partition.misplaced(number, rows));
        }
        *before = Some(place);
        rows += 1;
    }
    Ok(rows)
}
