//! Check: the top as a log, and every page of every partition.

use super::Lsm;
use super::bottom::{Numbered, Partition, Place};
use crate::error::{Error, Result};
use crate::storage::{Checked, Finding, StorageSweeps};

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
                        match check_page(partition, number, bytes, &mut before) {
                            Ok(rows) => checked.rows += rows,
                            Err(error) => said(Finding::Damage(error)),
                        }
                    }
                }
                Err(_) if count > 1 => {
                    alone_before = page + count;
                    continue;
                }
                Err(error) => {
                    checked.pages += 1;
                    said(Finding::Damage(error));
                }
            }
            page += count;
            progress(checked.pages)?;
        }
        Ok(())
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
            || !partition.candidates(place).contains(&number)
        {
            return Err(partition.misplaced(number, rows));
        }
        *before = Some(place);
        rows += 1;
    }
    Ok(rows)
}
