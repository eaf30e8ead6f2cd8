//! The footer of a frozen partition: its tables and their indexes.
//!
//! Format: `docs/formats/partition-file.md`. It is written and read piece by piece, for the indexes
//! of a large file are no less large in memory.

use super::index::{Addressing, FrozenIndex, LISTED, bucket_count};
use super::{CANDIDATES_MOST, Frozen, FrozenTable};
use crate::error::{Result, bail};
use crate::io::File;
use crate::storage::lsm::bottom::file::{Facts, FooterAt, Shape};
use crate::storage::lsm::bottom::order::{Orders, TableOrder};
use crate::storage::lsm::bottom::page_writer::FooterWriter;
use xxhash_rust::xxh3::Xxh3;

/// Bytes before the tables, and of each of them.
const HEAD_BYTES: u64 = 8;
const TABLE_BYTES: u64 = 40;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 20;
/// Tags fill whole words.
const TAGS_ALIGN: u64 = 4;

/// The sizes in a table's entry about its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    order: TableOrder,
    rows: u64,
    words: u64,
    list: u64,
}

impl Sizes {
    fn of(table: &FrozenTable) -> Self {
        let (words, list) = (table.index.words.len() as u64, table.index.list.len() as u64);
        Self { order: table.order, rows: table.rows, words, list }
    }

    fn starts(&self) -> u64 {
        match self.order {
            TableOrder::ByKey => 0,
            TableOrder::Mixed { .. } => bucket_count(self.rows) + 1,
        }
    }

    /// Bytes of the index; `None` for more than there can be.
    fn bytes(&self) -> Option<u64> {
        let starts = self.starts().checked_mul(4)?;
        let words = self.words.checked_mul(4)?.checked_add(self.list.checked_mul(4)?)?;
        let tags = match self.order {
            TableOrder::ByKey => 0,
            TableOrder::Mixed { .. } => tag_bytes(self.words)?,
        };
        starts.checked_add(words)?.checked_add(tags)
    }
}

fn tag_bytes(tags: u64) -> Option<u64> {
    tags.checked_mul(2)?.checked_next_multiple_of(TAGS_ALIGN)
}

/// Bytes of the footer.
pub(super) fn footer_bytes(frozen: &Frozen) -> u64 {
    let of_table = |table: &FrozenTable| TABLE_BYTES + Sizes::of(table).bytes().unwrap_or(0);
    HEAD_BYTES + frozen.tables.iter().map(of_table).sum::<u64>()
}

/// Writes the footer.
pub(super) fn write_footer(frozen: &Frozen, into: &mut FooterWriter) -> Result<()> {
    into.push(&(frozen.candidates_max as u32).to_le_bytes())?;
    into.push(&frozen.home_pages.to_le_bytes())?;
    for table in &frozen.tables {
        let Sizes { order, rows, words, list } = Sizes::of(table);
        let (kind, salt) = match order {
            TableOrder::ByKey => (0, 0),
            TableOrder::Mixed { salt } => (1, salt),
        };
        let [low, high] = table.table.to_le_bytes();
        into.push(&[low, high, kind, 0, 0, 0, 0, 0])?;
        for word in [salt, rows, words, list] {
            into.push(&word.to_le_bytes())?;
        }
    }
    for FrozenTable { index, .. } in &frozen.tables {
        if let Addressing::ByTag { starts, .. } = &index.addressing {
            write_words(starts, u32::to_le_bytes, into)?;
        }
        write_words(&index.words, u32::to_le_bytes, into)?;
        write_words(&index.list, u32::to_le_bytes, into)?;
        if let Addressing::ByTag { tags, .. } = &index.addressing {
            write_words(tags, u16::to_le_bytes, into)?;
            let padding = tags.len() * 2 % TAGS_ALIGN as usize;
            into.push(&[0; TAGS_ALIGN as usize][..padding])?;
        }
    }
    Ok(())
}

fn write_words<T: Copy, const N: usize>(
    words: &[T],
    bytes_of: impl Fn(T) -> [u8; N],
    into: &mut FooterWriter,
) -> Result<()> {
    const TOGETHER: usize = 512;
    let mut bytes = [[0; N]; TOGETHER];
    for words in words.chunks(TOGETHER) {
        for (bytes, word) in bytes.iter_mut().zip(words) {
            *bytes = bytes_of(*word);
        }
        into.push(bytes[..words.len()].as_flattened())?;
    }
    Ok(())
}

/// Reads a footer, piece by piece.
struct FooterReader<'f> {
    file: &'f dyn File,
    at: u64,
    sum: Xxh3,
    piece: Vec<u8>,
}

impl FooterReader<'_> {
    fn words<T, const N: usize>(
        &mut self,
        count: u64,
        of_bytes: impl Fn([u8; N]) -> T,
    ) -> Result<Box<[T]>> {
        let count = count as usize;
        let mut words = Vec::with_capacity(count);
        while words.len() < count {
            let together = (count - words.len()).min(PIECE_BYTES / N);
            self.piece.resize(together * N, 0);
            self.file.read_at(&mut self.piece, self.at)?;
            self.sum.update(&self.piece);
            self.at += self.piece.len() as u64;
            let (read, _) = self.piece.as_chunks::<N>();
            words.extend(read.iter().map(|bytes| of_bytes(*bytes)));
        }
        Ok(words.into())
    }
}

/// The footer that `write_footer` wrote to a file of these facts. `Corrupt` for anything else,
/// whatever it is: nothing is allocated that the footer is not long enough for.
pub(in super::super) fn read_footer(
    file: &dyn File,
    footer: &FooterAt,
    shape: &Shape,
    orders: &Orders,
    facts: &Facts,
) -> Result<Frozen> {
    let rows_per_page = shape.layout(facts.number)?.rows_per_page as u64;
    let (count, bytes) = (footer.sections, footer.bytes);
    let table_bytes = count.checked_mul(TABLE_BYTES).and_then(|b| b.checked_add(HEAD_BYTES));
    let Some(mut needed) = table_bytes.filter(|needed| *needed <= bytes) else {
        bail!(Corrupt, "{count} tables do not fit {bytes} bytes");
    };
    let sum = Xxh3::with_seed(shape.seed);
    let mut reader = FooterReader { file, at: footer.at, sum, piece: Vec::new() };
    let head = reader.words(2, u32::from_le_bytes)?;
    let (candidates_max, home_pages) = (head[0] as usize, head[1]);
    let entries = reader.words(count * TABLE_BYTES / 8, u64::from_le_bytes)?;
    let mut all = Vec::with_capacity(count as usize);
    for entry in entries.chunks_exact(TABLE_BYTES as usize / 8) {
        let (named, order) = order_of(entry[0], entry[1])?;
        let sizes = Sizes { order, rows: entry[2], words: entry[3], list: entry[4] };
        let added = sizes.bytes().and_then(|more| needed.checked_add(more));
        let Some(added) = added.filter(|needed| *needed <= bytes && sizes.rows <= facts.rows)
        else {
            bail!(Corrupt, "the index of table {named} does not fit {bytes} bytes");
        };
        needed = added;
        all.push((named, sizes));
    }
    if needed != bytes {
        bail!(Corrupt, "its indexes have {needed} bytes of {bytes}");
    }
    let mut tables = Vec::with_capacity(all.len());
    let mut padding_is_zero = true;
    for (table, sizes) in all {
        let is_tagged = sizes.order != TableOrder::ByKey;
        let starts = reader.words(sizes.starts(), u32::from_le_bytes)?;
        let words = reader.words(sizes.words, u32::from_le_bytes)?;
        let list = reader.words(sizes.list, u32::from_le_bytes)?;
        let mut addressing = Addressing::ById;
        if is_tagged {
            let tags = reader.words(sizes.words, u16::from_le_bytes)?;
            let padding = reader.words(sizes.words % 2, u16::from_le_bytes)?;
            padding_is_zero &= padding.iter().all(|tag| *tag == 0);
            addressing = Addressing::ByTag { starts, tags };
        }
        let index = FrozenIndex { addressing, words, list };
        tables.push(FrozenTable { table, order: sizes.order, rows: sizes.rows, index });
    }
    let sum = reader.sum.digest();
    let behind = reader.words(footer.end - reader.at, |[byte]: [u8; 1]| byte)?;
    if sum != footer.sum || behind.iter().any(|byte| *byte != 0) {
        bail!(Corrupt, "checksum does not match (overwritten, torn, or bits flipped)");
    }
    let at_home = u64::from(home_pages);
    let are_pages = (facts.rows.div_ceil(rows_per_page)..=facts.rows).contains(&at_home)
        && home_pages <= facts.pages
        && facts.pages < LISTED;
    let is_empty = facts.rows == 0 && facts.pages > 0;
    if !padding_is_zero || !(1..=CANDIDATES_MOST).contains(&candidates_max) {
        bail!(Corrupt, "{candidates_max} candidates of a row, expected 1 to {CANDIDATES_MOST}");
    }
    if !are_pages || is_empty {
        bail!(
            Corrupt,
            "{home_pages} of {} pages are home to {} rows, {rows_per_page} each",
            facts.pages,
            facts.rows
        );
    }
    let frozen = Frozen { candidates_max, home_pages, tables: tables.into() };
    check_tables(&frozen, orders, facts)?;
    Ok(frozen)
}

fn order_of(head: u64, salt: u64) -> Result<(u16, TableOrder)> {
    let (table, kind) = (head as u16, head >> 16);
    match (kind, salt) {
        (0, 0) => Ok((table, TableOrder::ByKey)),
        (1, salt) => Ok((table, TableOrder::Mixed { salt })),
        _ => bail!(Corrupt, "table {table} is in order {kind} with salt {salt:#x}"),
    }
}

fn check_tables(frozen: &Frozen, orders: &Orders, facts: &Facts) -> Result<()> {
    let mut rows = 0u64;
    let mut before = None;
    for FrozenTable { table, order, rows: of_table, index } in &frozen.tables {
        if before.is_some_and(|before| before >= *table) {
            bail!(Corrupt, "table {table} does not follow the one before it");
        }
        before = Some(*table);
        let expected = orders.of(*table);
        if expected != Some(*order) {
            bail!(Corrupt, "table {table} is in order {order:?}, expected {expected:?}");
        }
        // None has more than the file, so the sum of two stays small.
        rows = rows.saturating_add(*of_table);
        if *of_table == 0 {
            bail!(Corrupt, "table {table} has no row");
        }
        index
            .check(*of_table, frozen.home_pages, facts.pages, frozen.candidates_max)
            .map_err(|error| error.context(format!("the index of table {table}")))?;
    }
    if rows != facts.rows {
        bail!(Corrupt, "its tables have {rows} rows, the file has {}", facts.rows);
    }
    Ok(())
}
