//! A page: rows, a directory of their keys, and a header that proves it.
//!
//! Format: `docs/formats/page.md`. A page is written once, whole, and never changed. Every page
//! that is read is verified here first; no other code looks at unverified bytes.

use crate::error::{Error, ErrorKind, Result, bail};
use crate::planted::{self, Bug};
use std::ops::RangeInclusive;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: [u8; 4] = *b"ERPG";
const VERSION: u8 = 1;
const KIND_ROWS: u8 = 1;
/// Bytes before the first row.
pub(crate) const HEADER_BYTES: usize = 32;
/// Directory bytes per row: key and table.
pub(crate) const ENTRY_BYTES: usize = 10;
/// Smallest and largest page.
pub(crate) const PAGE_BYTES_RANGE: RangeInclusive<usize> = 512..=65_536;

/// The layout of the pages of one row class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Bytes of a row, a multiple of 4.
    pub row_bytes: usize,
    /// Rows of a full page.
    pub rows_per_page: usize,
    /// The row class, to tell a page of another class.
    pub class: u16,
    /// Seed of the checksum, to tell a page of another store.
    pub seed: u64,
    /// Newest page that the opened commit has; later ones mean that a writer has reused its place.
    /// `u64::MAX` for the writer itself.
    pub sequence_max: u64,
}

impl PageLayout {
    /// The layout of pages of `page_bytes`; refuses sizes that hold no row.
    pub fn new(page_bytes: usize, row_bytes: usize, class: u16, seed: u64) -> Result<Self> {
        if !PAGE_BYTES_RANGE.contains(&page_bytes) || !page_bytes.is_power_of_two() {
            bail!(Misuse, "page_bytes is {page_bytes}, expected a power of two from 512 to 65536");
        }
        let rows_per_page = (page_bytes - HEADER_BYTES) / (row_bytes + ENTRY_BYTES);
        if rows_per_page == 0 {
            bail!(
                Misuse,
                "a row of {row_bytes} bytes does not fit a page of {page_bytes} bytes; \
                 use page_bytes={} or a smaller embedding_dim",
                (row_bytes + ENTRY_BYTES + HEADER_BYTES).next_power_of_two()
            );
        }
        Ok(Self { page_bytes, row_bytes, rows_per_page, class, seed, sequence_max: u64::MAX })
    }

    fn key_at(&self, slot: usize) -> usize {
        HEADER_BYTES + self.rows_per_page * self.row_bytes + slot * 8
    }

    fn table_at(&self, slot: usize) -> usize {
        HEADER_BYTES + self.rows_per_page * (self.row_bytes + 8) + slot * 2
    }

    /// Puts a row and its directory entry in a page under construction.
    pub fn put(&self, page: &mut [u8], slot: usize, table: u16, key: u64, row: &[f32]) {
        let at = HEADER_BYTES + slot * self.row_bytes;
        page[at..at + self.row_bytes].copy_from_slice(bytemuck::cast_slice(row));
        let at = self.key_at(slot);
        page[at..at + 8].copy_from_slice(&key.to_le_bytes());
        let at = self.table_at(slot);
        page[at..at + 2].copy_from_slice(&table.to_le_bytes());
    }

    /// Clears unused slots, writes the header, seals with the checksum.
    pub fn seal(&self, page: &mut [u8], number: u32, rows: usize, sequence: u64) {
        let end = HEADER_BYTES + rows * self.row_bytes;
        let keys = self.key_at(0);
        page[end..keys].fill(0);
        for slot in rows..self.rows_per_page {
            let at = self.key_at(slot);
            page[at..at + 8].fill(0);
            let at = self.table_at(slot);
            page[at..at + 2].fill(0);
        }
        page[self.table_at(self.rows_per_page)..].fill(0);
        page[8..12].copy_from_slice(&MAGIC);
        page[12] = VERSION;
        page[13] = KIND_ROWS;
        page[14..16].fill(0);
        page[16..20].copy_from_slice(&number.to_le_bytes());
        page[20..22].copy_from_slice(&self.class.to_le_bytes());
        page[22..24].copy_from_slice(&(rows as u16).to_le_bytes());
        page[24..32].copy_from_slice(&sequence.to_le_bytes());
        let sum = xxh3_64_with_seed(&page[8..], self.seed);
        page[..8].copy_from_slice(&sum.to_le_bytes());
    }

    /// The row in a slot of a verified page, or of one under construction.
    pub fn row<'a>(&self, page: &'a [u8], slot: usize) -> &'a [f32] {
        let at = HEADER_BYTES + slot * self.row_bytes;
        bytemuck::cast_slice(&page[at..at + self.row_bytes])
    }

    /// Table and key of a slot.
    pub fn entry(&self, page: &[u8], slot: usize) -> (u16, u64) {
        let at = self.table_at(slot);
        let table = u16::from_le_bytes([page[at], page[at + 1]]);
        let at = self.key_at(slot);
        let mut key = [0; 8];
        key.copy_from_slice(&page[at..at + 8]);
        (table, u64::from_le_bytes(key))
    }

    /// Number of rows of a verified page.
    pub fn rows_in(&self, page: &[u8]) -> usize {
        usize::from(u16::from_le_bytes([page[22], page[23]]))
    }

    /// Checks a page that was read as number `number` of `file`; returns how many rows it holds.
    /// `Corrupt` names the file, the page, its place and the first table its directory names.
    pub fn verify(&self, page: &[u8], number: u32, file: &str) -> Result<usize> {
        let mut sum = [0; 8];
        sum.copy_from_slice(&page[..8]);
        let stored = u64::from_le_bytes(sum);
        if !planted::is(Bug::ChecksumNotCompared)
            && stored != xxh3_64_with_seed(&page[8..], self.seed)
        {
            let what = if page.iter().all(|b| *b == 0) {
                "all bytes are zero (never written, or lost)"
            } else {
                "checksum does not match (overwritten, torn, or bits flipped)"
            };
            return Err(self.damaged(page, number, file, what));
        }
        let found = u32::from_le_bytes([page[16], page[17], page[18], page[19]]);
        let class = u16::from_le_bytes([page[20], page[21]]);
        let rows = self.rows_in(page);
        if page[8..12] != MAGIC || page[13] != KIND_ROWS || class != self.class {
            return Err(self.damaged(page, number, file, "not a row page of this class"));
        }
        if page[12] != VERSION || page[14..16] != [0, 0] {
            bail!(
                Unsupported,
                "{file}, page {number}: page version {} with features {:#x}, this build reads {}; \
                 use a newer embedrock",
                page[12],
                u16::from_le_bytes([page[14], page[15]]),
                VERSION
            );
        }
        if found != number && !planted::is(Bug::WrongPageAccepted) {
            let what = format!("it is page {found}, written to the wrong place");
            return Err(self.damaged(page, number, file, &what));
        }
        if self.sequence(page) > self.sequence_max {
            bail!(
                CommitGone,
                "{file}, page {number} was written again after the commit that is open; refresh to \
                 the newest commit"
            );
        }
        if rows == 0 || rows > self.rows_per_page {
            let what = format!("it claims {rows} rows of at most {}", self.rows_per_page);
            return Err(self.damaged(page, number, file, &what));
        }
        Ok(rows)
    }

    /// Checks that the sequence of a verified page is one of those that `expected` says a page in
    /// its place can have; else `Corrupt`: the page is another one that lay there.
    #[inline]
    pub fn verify_sequence(
        &self,
        page: &[u8],
        number: u32,
        file: &str,
        expected: &RangeInclusive<u64>,
    ) -> Result<()> {
        let found = self.sequence(page);
        if expected.contains(&found) || planted::is(Bug::SequenceNotCompared) {
            return Ok(());
        }
        let what = if found < *expected.start() {
            format!(
                "its sequence is {found}, expected at least {}: its last write was lost, or the \
                 file is older than the journal",
                expected.start()
            )
        } else {
            format!(
                "its sequence is {found}, expected at most {}: the file is newer than the journal",
                expected.end()
            )
        };
        Err(self.damaged(page, number, file, &what))
    }

    fn damaged(&self, page: &[u8], number: u32, file: &str, what: &str) -> Error {
        let (table, _) = self.entry(page, 0);
        let at = u64::from(number) * self.page_bytes as u64;
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "{file}, page {number} (bytes {at} to {}, table {table} by its directory): {what}; \
                 restore from a copy, or open an earlier commit with step=",
                at + self.page_bytes as u64
            ),
        )
    }

    /// The sequence number of a verified page.
    pub fn sequence(&self, page: &[u8]) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&page[24..32]);
        u64::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(layout: &PageLayout) -> Vec<f32> {
        vec![7.0; layout.page_bytes / 4]
    }

    #[test]
    fn a_sealed_page_gives_back_its_rows() {
        for (page_bytes, words) in [(512, 1), (512, 117), (4096, 33), (4096, 128), (65_536, 1000)] {
            let layout = PageLayout::new(page_bytes, words * 4, 3, 99).unwrap();
            let mut words_of_page = page(&layout);
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words_of_page);
            let rows = layout.rows_per_page.div_ceil(2);
            for slot in 0..rows {
                let row = vec![slot as f32; words];
                layout.put(bytes, slot, slot as u16, u64::MAX - slot as u64, &row);
            }
            layout.seal(bytes, 12, rows, 5);
            assert_eq!(layout.verify(bytes, 12, "rows-3").unwrap(), rows);
            assert_eq!(layout.sequence(bytes), 5);
            for slot in 0..rows {
                assert_eq!(layout.entry(bytes, slot), (slot as u16, u64::MAX - slot as u64));
                assert!(layout.row(bytes, slot).iter().all(|x| *x == slot as f32));
            }
        }
    }

    #[test]
    fn every_single_bit_flip_is_found() {
        let layout = PageLayout::new(512, 64, 0, 1).unwrap();
        let mut words = page(&layout);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        layout.put(bytes, 0, 1, 42, &[0.5; 16]);
        layout.seal(bytes, 7, 1, 1);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = layout.verify(bytes, 7, "rows-0").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        layout.verify(bytes, 7, "rows-0").unwrap();
    }

    #[test]
    fn a_page_of_another_place_class_or_store_is_refused() {
        let layout = PageLayout::new(512, 64, 0, 1).unwrap();
        let mut words = page(&layout);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        layout.put(bytes, 0, 1, 42, &[0.5; 16]);
        layout.seal(bytes, 7, 1, 1);
        assert!(layout.verify(bytes, 8, "rows-0").is_err());
        assert!(PageLayout { class: 1, ..layout.clone() }.verify(bytes, 7, "rows-1").is_err());
        assert!(PageLayout { seed: 2, ..layout.clone() }.verify(bytes, 7, "rows-0").is_err());
    }

    #[test]
    fn a_row_that_no_page_holds_is_refused_with_the_size_that_works() {
        let error = PageLayout::new(4096, 4096, 0, 0).unwrap_err();
        assert!(error.message().contains("page_bytes=8192"), "{error}");
        assert!(PageLayout::new(131_072, 64, 0, 0).is_err());
    }
}
