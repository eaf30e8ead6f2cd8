//! Passes over the rows of regions, and their check.

use super::Pmem;
use super::region::Region;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::metrics::ReadReport;
use crate::storage::{
    Areas, Checked, Finding, PageReader, StorageRead, StorageSweeps, Sweep, SweptRow, TakeRows,
};
use std::sync::{Arc, Weak};

/// Every stored row has this origin: there is one copy of it.
pub(super) const STORED: u32 = 1;
/// Buckets that count as a page of a sweep: a few hundred rows.
const BUCKETS_PER_PAGE: usize = 16;
/// Rows of a bucket at most.
const ROWS_PER_BUCKET: usize = 14;
/// Of wide rows fewer buckets are read at once, so that their rows take about so many bytes.
const BYTES_AT_ONCE: usize = 4 << 20;
/// Damage that a check lists of one table.
const FINDINGS_MAX: usize = 100;

/// Bucket after bucket of some tables.
struct PmemSweep {
    /// Weak: a sweep that nobody ends does not keep a closed store's region locked.
    tables: Vec<(u16, Weak<Region>)>,
    row_words: usize,
    table: usize,
    bucket: u64,
    keys: Vec<u64>,
    words: Vec<f32>,
    ticket: u64,
}

impl Sweep for PmemSweep {
    fn read(
        &mut self,
        most: usize,
        _: &mut PageReader,
        each: &mut TakeRows<'_>,
    ) -> Result<Option<ReadReport>> {
        let Some((table, region)) = self.tables.get(self.table) else { return Ok(None) };
        let Some(region) = region.upgrade() else {
            let message = "the store of a scan was closed; open it again";
            return Err(Error::new(ErrorKind::Closed, message));
        };
        let widest = (BYTES_AT_ONCE / (ROWS_PER_BUCKET * self.row_words * 4)).max(1);
        let end = self.bucket + (most * BUCKETS_PER_PAGE).min(widest) as u64;
        let end = end.min(region.rows.buckets());
        self.keys.clear();
        (self.bucket..end)
            .try_for_each(|bucket| region.rows.keys_beside_writers(bucket, &mut self.keys))
            .map_err(|error| region.named(error))?;
        let width = self.row_words;
        self.words.resize(self.keys.len() * width, 0.0);
        let mut found = vec![false; self.keys.len()];
        region.get(&self.keys, &mut self.words, &mut found)?;
        if found.contains(&false) {
            region.explain_missing(&self.keys, &found)?;
        }
        let rows = self.keys.iter().zip(self.words.chunks_exact(width)).zip(&found);
        let rows = rows.filter(|(_, found)| **found);
        each(&mut rows.map(|((key, words), _)| SweptRow {
            table: *table,
            key: *key,
            place: STORED,
            words,
        }))?;
        self.bucket = end;
        if end == region.rows.buckets() {
            (self.table, self.bucket) = (self.table + 1, 0);
        }
        Ok(Some(ReadReport::default()))
    }

    fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl Region {
    /// A key of a bucket that look-ups do not find was removed since it was seen, or is damaged.
    fn explain_missing(self: &Arc<Self>, keys: &[u64], found: &[bool]) -> Result<()> {
        let missing = keys.iter().zip(found).filter(|(_, found)| !**found).map(|(key, _)| *key);
        let missing: Vec<u64> = missing.collect();
        // With no thread that removes one, every key of a bucket is found.
        let _alone = self.write();
        self.rows.check_keys(&missing).map_err(|error| self.named(error))
    }
}

impl StorageSweeps for Pmem {
    fn sweep(&mut self, only: Option<u16>) -> Box<dyn Sweep> {
        let of_it = |(id, _): &(&u16, &Option<Arc<Region>>)| only.is_none_or(|only| only == **id);
        let tables = self.tables.iter().filter(of_it);
        let tables = tables.filter_map(|(id, region)| Some((*id, Arc::clone(region.as_ref()?))));
        let tables: Vec<(u16, Arc<Region>)> = tables.collect();
        let ticket = self.begin_read();
        let weak = tables.iter().map(|(id, region)| (*id, Arc::downgrade(region))).collect();
        let regions: Vec<Arc<Region>> = tables.into_iter().map(|(_, region)| region).collect();
        regions.iter().for_each(|region| region.begin_sweep());
        self.tickets.insert(ticket, regions);
        let row_words = self.facts.row_bytes / 4;
        let (keys, words) = (Vec::new(), Vec::new());
        Box::new(PmemSweep { tables: weak, row_words, table: 0, bucket: 0, keys, words, ticket })
    }

    fn advance(&mut self, _: &mut dyn Sweep) {}

    fn is_newest(&self, table: u16, key: u64, place: u32) -> bool {
        place == STORED && self.contains(table, key) == Some(true)
    }

    fn areas(&self) -> Areas {
        Areas { file: Arc::clone(&self.pages.file), begins: Vec::new(), area_bytes: 0 }
    }

    fn check(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
        said: &mut dyn FnMut(Finding),
    ) -> Result<Checked> {
        if self.is_locked {
            bail!(
                Locked,
                "rows on persistent memory are checked by the process that has them open, and \
                 another one has: close the store there first"
            );
        }
        let mut checked = Checked::default();
        for (table, region) in &self.tables {
            let Some(region) = region else { continue };
            region.begin_sweep();
            let all = region.rows.check_all(FINDINGS_MAX, &mut *progress);
            region.end_sweep();
            let (found, damage) = all?;
            let is_sound = damage.is_empty();
            damage.into_iter().for_each(|error| said(Finding::Damage(region.named(error))));
            let indexed = region.count();
            if is_sound && indexed != found {
                said(Finding::Rows { table: *table, indexed, found });
            }
            checked.rows += found;
        }
        Ok(checked)
    }
}
