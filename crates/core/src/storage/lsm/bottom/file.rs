//! The bytes of a partition file around its pages: the header in front, the footer behind.
//!
//! Format: `docs/formats/partition-file.md`. The header is written when all else is durable, so a
//! file with a sound header is whole.

use super::fences::Fences;
use super::filter::Filter;
use super::frozen::{self, Frozen};
use super::increasing::Cut;
use super::order::{Orders, PLACE_BYTES, Place, PlaceRange, TableOrder};
use super::page_writer::Ending;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::hash::mix;
use crate::io::{File, Medium, OpenMode, blocks_of};
use crate::storage::{ClassFacts, PageLayout};
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const PREFIX: &str = "part-";
const MAGIC: [u8; 6] = *b"ERPART";
/// Version of a file without filters, of one with some, and of a frozen one.
const VERSION: u8 = 1;
const VERSION_WITH_FILTERS: u8 = 2;
pub(super) const VERSION_FROZEN: u8 = 3;
/// Bytes of the header; the rest of page 0 is unused.
pub(super) const HEADER_BYTES: usize = 512;
const CHECKSUM_AT: usize = 128;
/// Bytes of a section in the footer, without its fences.
const SECTION_BYTES: usize = 32;
const WAY_OUT: &str = "restore from a copy, or open an earlier commit with step=";

/// The common shape of all partition files of a row class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The row class.
    pub class: u16,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Checksum seed of the store.
    pub seed: u64,
    /// Whether sections get filters from here on.
    pub filters: bool,
}

impl Shape {
    /// The shape of a row class.
    pub(crate) fn of(facts: &ClassFacts) -> Self {
        let ClassFacts { class, row_bytes, page_bytes, seed, merging, .. } = *facts;
        Self { class, page_bytes, row_bytes, seed, filters: merging.filters }
    }

    /// The layout of the pages of the file with this number. Each has a seed of its own, so a page
    /// of one never passes for that of another.
    pub(crate) fn layout(&self, number: u32) -> Result<PageLayout> {
        let seed = mix(u64::from(number), self.seed);
        PageLayout::new(self.page_bytes, self.row_bytes, self.class, seed)
    }
}

/// A version's facts about a partition, which its file has to confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Number of its file, never used twice for one that was committed.
    pub number: u32,
    /// The merge that wrote it, which is the sequence of its pages.
    pub merge: u64,
    /// The places that it has the rows of.
    pub range: PlaceRange,
    /// Its rows.
    pub rows: u64,
    /// Its row pages.
    pub pages: u32,
    /// Bytes of its file.
    pub bytes: u64,
    /// Checksum of its header, which has that of the footer: no other file passes for this one.
    pub header_sum: u64,
}

impl Facts {
    /// Bytes that its file takes of the disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        blocks_of(self.bytes)
    }
}

/// The rows of one table and rank in a partition. They lie one behind the other, and the first of
/// them may share a page with the section before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// Table of the rows.
    pub table: u16,
    /// Their rank.
    pub rank: u8,
    /// Mapping of its keys to positions.
    pub order: TableOrder,
    /// The number of the first row, counted over the file.
    pub first_row: u64,
    /// Number of rows.
    pub rows: u64,
    /// The begins of its pages.
    pub fences: Fences,
    /// The filter of positions without a row.
    pub filter: Option<Filter>,
}

impl Section {
    /// All memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let filter = self.filter.as_ref().map_or(0, Filter::heap_bytes);
        size_of::<Self>() - size_of::<Fences>() + self.fences.memory_bytes() + filter
    }
}

/// The file name of a partition.
pub(crate) fn file_name(class: u16, number: u32) -> String {
    format!("{PREFIX}{class}-{number}")
}

/// A file that is named as a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedFile {
    /// The number in its name.
    pub number: u32,
    /// Its name.
    pub name: String,
}

/// The files on `medium` that are named as partitions of `class`.
pub(crate) fn files_of(medium: &dyn Medium, class: u16) -> Result<Vec<NamedFile>> {
    let prefix = format!("{PREFIX}{class}-");
    let numbered = |name: String| {
        let number = name.strip_prefix(&prefix)?.parse().ok()?;
        (file_name(class, number) == name).then_some(NamedFile { number, name })
    };
    Ok(medium.list(&prefix)?.into_iter().filter_map(numbered).collect())
}

/// `Corrupt` for some bytes of a file, with the way out.
pub(super) fn damaged(file: &str, from: u64, until: u64, what: &str) -> Error {
    let message = format!("{file}, bytes {from} to {until}: {what}; {WAY_OUT}");
    Error::new(ErrorKind::Corrupt, message)
}

/// The checksum of a header, which is a part of it.
pub(super) fn header_sum(header: &[u8; HEADER_BYTES]) -> u64 {
    word(header, CHECKSUM_AT)
}

/// The version of a file with these sections.
pub(super) fn version_of(sections: &[Section]) -> u8 {
    let has_filters = sections.iter().any(|section| section.filter.is_some());
    if has_filters { VERSION_WITH_FILTERS } else { VERSION }
}

/// The header of a file whose footer has the checksum `footer_sum`. The header's own in `facts` is
/// not looked at.
pub(super) fn encode_header(
    shape: &Shape,
    facts: &Facts,
    ending: &Ending,
    footer_sum: u64,
) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..6].copy_from_slice(&MAGIC);
    header[6] = ending.version;
    let words = [
        u64::from(shape.class),
        u64::from(facts.number),
        facts.merge,
        shape.page_bytes as u64,
        shape.row_bytes as u64,
        shape.seed,
        facts.rows,
        u64::from(facts.pages),
        ending.sections as u64,
        ending.footer_bytes,
        footer_sum,
    ];
    for (at, word) in words.into_iter().enumerate() {
        header[8 + 8 * at..][..8].copy_from_slice(&word.to_le_bytes());
    }
    header[96..][..PLACE_BYTES].copy_from_slice(&facts.range.first.encode());
    header[96 + PLACE_BYTES..][..PLACE_BYTES].copy_from_slice(&facts.range.last.encode());
    let sum = xxh3_64(&header[..CHECKSUM_AT]);
    header[CHECKSUM_AT..][..8].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The footer of a file with these sections.
pub(super) fn encode_footer(sections: &[Section], seed: u64) -> Vec<u8> {
    let mut footer = Vec::new();
    for section in sections {
        let (kind, salt) = match section.order {
            TableOrder::ByKey => (0, 0),
            TableOrder::Mixed { salt } => (1, salt),
        };
        footer.extend_from_slice(&section.table.to_le_bytes());
        footer.extend_from_slice(&[section.rank, kind]);
        let filter_bytes = section.filter.as_ref().map_or(0, Filter::encoded_bytes);
        footer.extend_from_slice(&(filter_bytes as u32).to_le_bytes());
        footer.extend_from_slice(&salt.to_le_bytes());
        footer.extend_from_slice(&section.rows.to_le_bytes());
        footer.extend_from_slice(&(section.fences.encoded_bytes() as u64).to_le_bytes());
    }
    for section in sections {
        section.fences.encode(seed, &mut footer);
        if let Some(filter) = &section.filter {
            filter.encode(seed, &mut footer);
        }
    }
    footer
}

/// Bytes at most of footers with so many sections in all, of so many pages and rows.
pub(super) fn footer_bytes_most(sections: u64, pages: u64, rows: u64, filters: bool) -> u64 {
    let each = (SECTION_BYTES + Cut::BYTES_BESIDE) as u64;
    let fences = sections * each + pages * Fences::BYTES_PER_PAGE_MOST;
    match filters {
        true => fences + sections * Cut::BYTES_BESIDE as u64 + rows * Filter::BYTES_PER_ROW_MOST,
        false => fences,
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn place(bytes: &[u8], at: usize) -> Option<Place> {
    bytes[at..].first_chunk().and_then(Place::decode)
}

/// The known facts about the rows of a partition.
#[derive(Debug)]
pub(super) enum Body {
    /// They are in the order of their places.
    Sorted(Box<[Section]>),
    /// They are in the order of a placement.
    Frozen(Frozen),
}

/// The file of a partition and what is around its pages.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Arc<dyn File>,
    pub(super) body: Body,
}

/// The place of a footer, and its description in the header.
#[derive(Clone, Copy, Debug)]
pub(super) struct FooterAt {
    pub(super) at: u64,
    /// Without the padding.
    pub(super) bytes: u64,
    /// The end of the padding.
    pub(super) end: u64,
    pub(super) sections: u64,
    pub(super) sum: u64,
}

/// Opens the file of a partition and reads what is around its pages. Everything in it must be as
/// `facts` and `shape` say.
pub(super) fn open(
    medium: &dyn Medium,
    shape: &Shape,
    orders: &Orders,
    facts: &Facts,
) -> Result<Opened> {
    let name = file_name(shape.class, facts.number);
    let file = match medium.open(&name, OpenMode::ReadOnly) {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            Corrupt,
            "{name} is missing, the journal has it with {} rows of merge {}; if it is in another \
             directory, name that with cold_directory=, else {WAY_OUT}",
            facts.rows,
            facts.merge
        ),
        other => other?,
    };
    let bytes = file.len()?;
    let mut header = [0; HEADER_BYTES];
    if bytes >= HEADER_BYTES as u64 {
        file.read_at(&mut header, 0)?;
        check_header(&name, &header, shape, facts)?;
    }
    if bytes != facts.bytes {
        let (from, until) = (bytes.min(facts.bytes), bytes.max(facts.bytes));
        let what = format!("the file has {bytes} bytes, expected {}", facts.bytes);
        return Err(damaged(&name, from, until, &what));
    }
    let mut padding = vec![0; shape.page_bytes - HEADER_BYTES];
    if !padding.is_empty() {
        file.read_at(&mut padding, HEADER_BYTES as u64)?;
    }
    if padding.iter().any(|byte| *byte != 0) {
        let (from, until) = (HEADER_BYTES as u64, shape.page_bytes as u64);
        return Err(damaged(&name, from, until, "bytes after the header are not zero"));
    }
    let footer_at = (u64::from(facts.pages) + 1) * shape.page_bytes as u64;
    if bytes.checked_sub(footer_at).is_none_or(|padded| padded < word(&header, 80)) {
        return Err(damaged(&name, 0, HEADER_BYTES as u64, "its footer does not fit the file"));
    }
    let footer = FooterAt {
        at: footer_at,
        bytes: word(&header, 80),
        end: bytes,
        sections: word(&header, 72),
        sum: word(&header, 88),
    };
    let read = if header[6] == VERSION_FROZEN {
        if facts.range != PlaceRange::ALL {
            let what = "a frozen file has all places, the journal has it with some";
            return Err(damaged(&name, 0, HEADER_BYTES as u64, what));
        }
        frozen::read_footer(&*file, &footer, shape, orders, facts).map(Body::Frozen)
    } else {
        let has_filters = header[6] == VERSION_WITH_FILTERS;
        read_footer(&*file, &footer, has_filters, shape, orders, facts).map(Body::Sorted)
    };
    let body = read.map_err(|error| match error.kind() {
        ErrorKind::Corrupt => {
            damaged(&name, footer_at, bytes, &format!("footer: {}", error.message()))
        }
        _ => error,
    })?;
    Ok(Opened { file, body })
}

fn check_header(
    name: &str,
    header: &[u8; HEADER_BYTES],
    shape: &Shape,
    facts: &Facts,
) -> Result<()> {
    let refuse = |what: &str| Err(damaged(name, 0, HEADER_BYTES as u64, what));
    if header.iter().all(|byte| *byte == 0) {
        return refuse("all bytes are zero: the file was never finished, or its header is lost");
    }
    let sum = word(header, CHECKSUM_AT);
    let padding = &header[CHECKSUM_AT + 8..];
    if header[..6] != MAGIC
        || sum != xxh3_64(&header[..CHECKSUM_AT])
        || padding.iter().any(|byte| *byte != 0)
    {
        return refuse("not the header of a partition: overwritten, torn, or bits flipped");
    }
    if !(VERSION..=VERSION_FROZEN).contains(&header[6]) || header[7] != 0 {
        bail!(
            Unsupported,
            "{name}: partition version {}, this build reads {VERSION} to {VERSION_FROZEN}; use a \
             newer embedrock",
            header[6]
        );
    }
    for (what, at, expected) in [
        ("checksum seed", 48, shape.seed),
        ("row class", 8, u64::from(shape.class)),
        ("number", 16, u64::from(facts.number)),
    ] {
        let found = word(header, at);
        if found != expected {
            return refuse(&format!(
                "the {what} is {found:#x}, expected {expected:#x}: another file is in its place"
            ));
        }
    }
    let merge = word(header, 24);
    if merge != facts.merge {
        let age = if merge < facts.merge { "older" } else { "newer" };
        return refuse(&format!(
            "it was written by merge {merge}, expected {}: the file is {age} than the journal",
            facts.merge
        ));
    }
    let places = (place(header, 96), place(header, 96 + PLACE_BYTES));
    let as_expected = word(header, 32) == shape.page_bytes as u64
        && word(header, 40) == shape.row_bytes as u64
        && word(header, 56) == facts.rows
        && word(header, 64) == u64::from(facts.pages)
        && places == (Some(facts.range.first), Some(facts.range.last));
    if !as_expected {
        return refuse("pages, rows or range are not those that the journal has");
    }
    if sum != facts.header_sum {
        return refuse(&format!(
            "its checksum is {sum:#x}, expected {:#x}: it is not the file that the journal has",
            facts.header_sum
        ));
    }
    Ok(())
}

/// The sections of a footer, which is padded with zeros.
fn read_footer(
    file: &dyn File,
    at: &FooterAt,
    has_filters: bool,
    shape: &Shape,
    orders: &Orders,
    facts: &Facts,
) -> Result<Box<[Section]>> {
    let mut padded = vec![0; (at.end - at.at) as usize];
    file.read_at(&mut padded, at.at)?;
    let (footer, padding) = padded.split_at(at.bytes as usize);
    let sum = xxh3_64_with_seed(footer, shape.seed);
    if sum != at.sum || padding.iter().any(|byte| *byte != 0) {
        bail!(Corrupt, "checksum does not match (overwritten, torn, or bits flipped)");
    }
    let count = at.sections as usize;
    let Some(table_bytes) = count.checked_mul(SECTION_BYTES).filter(|b| *b <= footer.len()) else {
        bail!(Corrupt, "{count} sections do not fit {} bytes", footer.len());
    };
    let rows_per_page = shape.layout(facts.number)?.rows_per_page as u64;
    let (table, mut left) = footer.split_at(table_bytes);
    let mut take = |bytes: usize, what: &str| {
        let Some((own, rest)) = left.split_at_checked(bytes) else {
            bail!(Corrupt, "{what} of {bytes} bytes do not fit the {} left", left.len());
        };
        left = rest;
        Ok(own)
    };
    let mut sections: Vec<Section> = Vec::with_capacity(count);
    let mut first_row = 0u64;
    for entry in table.chunks_exact(SECTION_BYTES) {
        let fences = Fences::decode(take(word(entry, 24) as usize, "fences")?, shape.seed)?;
        let filter = match u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]) {
            0 => None,
            bytes if has_filters => {
                Some(Filter::decode(take(bytes as usize, "cells of a filter")?, shape.seed)?)
            }
            bytes => bail!(Corrupt, "a filter of {bytes} bytes, in a file without filters"),
        };
        let section = Section {
            table: u16::from_le_bytes([entry[0], entry[1]]),
            rank: entry[2],
            order: match (entry[3], word(entry, 8)) {
                (0, 0) => TableOrder::ByKey,
                (1, salt) => TableOrder::Mixed { salt },
                (kind, _) => bail!(Corrupt, "order {kind} is none of 0 and 1"),
            },
            first_row,
            rows: word(entry, 16),
            fences,
            filter,
        };
        let last_row = first_row.checked_add(section.rows).and_then(|end| end.checked_sub(1));
        let Some(last_row) = last_row.filter(|last| section.rows > 0 && *last < facts.rows) else {
            bail!(Corrupt, "a section of {} rows, the file has {}", section.rows, facts.rows);
        };
        check_section(&section, sections.last(), orders, facts)?;
        let pages = last_row / rows_per_page - first_row / rows_per_page + 1;
        if u64::from(section.fences.pages()) != pages {
            let has = section.fences.pages();
            bail!(Corrupt, "table {} has {pages} pages and fences of {has}", section.table);
        }
        first_row = last_row + 1;
        sections.push(section);
    }
    let pages = facts.rows.div_ceil(rows_per_page);
    if first_row != facts.rows || !left.is_empty() || pages != u64::from(facts.pages) {
        bail!(Corrupt, "its sections have {first_row} rows, the file has {}", facts.rows);
    }
    Ok(sections.into())
}

fn check_section(
    section: &Section,
    before: Option<&Section>,
    orders: &Orders,
    facts: &Facts,
) -> Result<()> {
    let Section { table, rank, .. } = *section;
    if before.is_some_and(|before| (before.table, before.rank) >= (table, rank)) {
        bail!(Corrupt, "table {table} with rank {rank} does not follow the section before it");
    }
    let (first, last) = section.fences.ends().into_inner();
    let within = |position| facts.range.contains(Place { table, rank, position });
    if !within(first) || !within(last) {
        bail!(Corrupt, "rows of table {table} lie outside the range of the partition");
    }
    let expected = orders.of(table);
    if expected != Some(section.order) {
        bail!(Corrupt, "table {table} is in order {:?}, expected {expected:?}", section.order);
    }
    Ok(())
}
