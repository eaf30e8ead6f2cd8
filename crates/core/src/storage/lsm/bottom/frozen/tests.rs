//! Frozen files, sound and damaged: each row on each page that the index names, or `Corrupt`.

use super::builder::IndexBuilder;
use super::index::Addressing;
use super::{CANDIDATES_MOST, FrozenWriter};
use crate::error::{ErrorKind, Result};
use crate::io::{Medium, OpenMode, SimMedium};
use crate::storage::lsm::bottom::file::{Facts, Shape, file_name};
use crate::storage::lsm::bottom::merge::{Merge, MergePlan};
use crate::storage::lsm::bottom::order::{Place, PlaceRange, TableOrder};
use crate::storage::lsm::bottom::partition::{Partition, Partitions};
use crate::storage::lsm::bottom::testing::{
    List, PORTION_BYTES, Random, SMALL, open, orders, queue, reader, words,
};
use crate::storage::{PageAddress, PageSource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const NAME: &str = "part-3-1";

/// Table and key of a row.
type RowKey = (u16, u64);

/// Rows at home in their order, and pages of replicas.
#[derive(Clone, Debug, Default)]
struct Placement {
    homes: Vec<RowKey>,
    replicas: Vec<Vec<RowKey>>,
}

impl Placement {
    /// Rows of the tables 0, which is dense, and 1 and 2, which are growing, in random order, with
    /// so many pages of replicas of random rows.
    fn random(seed: u64, rows: [u64; 3], pages: usize, rows_per_page: usize) -> Self {
        let mut random = Random(seed);
        let mut homes = Vec::new();
        for (table, rows) in (0..).zip(rows) {
            let spread = if table == 0 { 2 } else { u64::MAX / rows.max(1) };
            homes.extend((0..rows).map(|row| (table, row * spread + random.below(spread))));
        }
        for at in (1..homes.len()).rev() {
            homes.swap(at, random.below(at as u64 + 1) as usize);
        }
        let replicas = (0..pages).map(|_| {
            let count = 1 + random.below(rows_per_page as u64) as usize;
            // Some rows have many replicas.
            let of = [homes.len() as u64, 8.min(homes.len() as u64)][random.below(2) as usize];
            let chosen: BTreeSet<RowKey> =
                (0..count).map(|_| homes[random.below(of) as usize]).collect();
            chosen.into_iter().collect()
        });
        Self { replicas: replicas.collect(), homes }
    }

    /// The pages of each row, home first.
    fn pages(&self, rows_per_page: usize) -> BTreeMap<RowKey, Vec<u32>> {
        let mut pages: BTreeMap<RowKey, Vec<u32>> = BTreeMap::new();
        for (page, of_page) in (1..).zip(self.homes.chunks(rows_per_page)) {
            of_page.iter().for_each(|row| pages.entry(*row).or_default().push(page));
        }
        let first = 1 + self.homes.len().div_ceil(rows_per_page) as u32;
        for (page, of_page) in (first..).zip(&self.replicas) {
            of_page.iter().for_each(|row| pages.entry(*row).or_default().push(page));
        }
        pages
    }

    fn write(
        &self,
        medium: &SimMedium,
        shape: &Shape,
        (number, merge): (u32, u64),
        candidates_max: usize,
    ) -> Result<Facts> {
        let queue = queue(medium, shape);
        let mut writer = FrozenWriter::create(medium, shape, number, merge, candidates_max, queue)?;
        match self.write_rows(&mut writer, shape, merge) {
            Ok(()) => Ok(writer.finish(medium)?.facts),
            Err(error) => {
                assert_eq!(writer.end_homes().unwrap_err().kind(), ErrorKind::Poisoned);
                let _ = writer.abandon(medium);
                Err(error)
            }
        }
    }

    fn write_rows(&self, writer: &mut FrozenWriter, shape: &Shape, stamp: u64) -> Result<()> {
        let orders = orders();
        for (table, key) in &self.homes {
            writer.push(&orders, *table, *key, &words(shape, *key, stamp))?;
        }
        writer.end_homes()?;
        for page in &self.replicas {
            for (table, key) in page {
                writer.push(&orders, *table, *key, &words(shape, *key, stamp))?;
            }
            writer.end_page()?;
        }
        Ok(())
    }

    /// Opens the file and finds each row on each page that the index names, which are its first
    /// ones. Returns how many keys are exact.
    fn read_all(
        &self,
        medium: &SimMedium,
        shape: &Shape,
        facts: &Facts,
        candidates_max: usize,
    ) -> Result<usize> {
        let partition = open(medium, shape, facts)?;
        let bytes = page_bytes_of(shape, &partition)?;
        let rows_per_page = partition.layout().rows_per_page;
        let mut exact = 0;
        for ((table, key), pages) in self.pages(rows_per_page) {
            let place = orders().place(table, 0, key).unwrap();
            let candidates = partition.candidates(place);
            let named = candidates.pages();
            let has_row = |page: u32| -> Result<bool> {
                let found = partition.find(place, page, page_of(&bytes, shape, page))?;
                let expected = words(shape, key, facts.merge);
                assert!(found.is_none_or(|row| row == expected), "{place:?} on page {page}");
                Ok(found.is_some())
            };
            if named == &pages[..pages.len().min(candidates_max)] {
                exact += 1;
                for page in named {
                    assert!(has_row(*page)?, "{place:?} is not on page {page}");
                }
            } else {
                assert!(named.contains(&pages[0]), "{place:?}: {named:?}, of {pages:?}");
            }
            for page in pages {
                assert!(has_row(page)?, "{place:?} is not on page {page}");
            }
        }
        Ok(exact)
    }
}

/// All pages, each of which was verified.
fn page_bytes_of(shape: &Shape, partition: &Partition) -> Result<Vec<f32>> {
    let pages = partition.facts().pages;
    let mut all = vec![0.0f32; (pages as usize + 1) * shape.page_bytes / 4];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut all);
    partition.file().read_at(bytes, 0)?;
    for page in 1..=pages {
        partition.verify(page, &bytes[page as usize * shape.page_bytes..][..shape.page_bytes])?;
    }
    Ok(all)
}

fn page_of<'b>(bytes: &'b [f32], shape: &Shape, page: u32) -> &'b [u8] {
    let bytes: &[u8] = bytemuck::cast_slice(bytes);
    &bytes[page as usize * shape.page_bytes..][..shape.page_bytes]
}

/// 20 rows of three tables on four pages, and three pages of replicas; of merge 5.
fn small() -> (SimMedium, Facts, Placement) {
    let medium = SimMedium::new(1);
    let placement = small_placement(5);
    let facts = placement.write(&medium, &SMALL, (1, 5), 3).unwrap();
    (medium, facts, placement)
}

fn small_placement(seed: u64) -> Placement {
    let mut placement = Placement::random(seed, [9, 8, 3], 2, 6);
    // A row with more pages than are named, and a row with two.
    let row = placement.homes[0];
    placement.replicas = vec![vec![row, placement.homes[7]], vec![row], vec![row]];
    placement
}

fn read_small(medium: &SimMedium, facts: &Facts, placement: &Placement) -> Result<()> {
    placement.read_all(medium, &SMALL, facts, 3).map(drop)
}

/// Refused as `Corrupt`, with the file's name and a way out; returns the message.
fn refused(result: Result<()>, what: &str) -> String {
    let error = result.err().unwrap_or_else(|| panic!("{what}: taken as good"));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    assert!(error.message().contains(NAME), "{what}: {error}");
    assert!(error.message().contains("restore from a copy"), "{what}: {error}");
    error.message().to_owned()
}

fn replace(medium: &SimMedium, bytes: &[u8]) {
    let file = medium.open(NAME, OpenMode::ReadWrite).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_at(bytes, 0).unwrap();
}

#[test]
fn every_row_is_on_each_page_that_the_index_names() {
    for (seed, (page_bytes, row_words)) in
        (0..).zip([(512, 16), (512, 1), (4096, 64), (65_536, 3), (512, 16)])
    {
        for (rows, pages) in [([700, 900, 1], 60), ([300, 0, 0], 9), ([0, 2000, 0], 0)] {
            for candidates_max in [1, 2, 5, CANDIDATES_MOST] {
                let shape = Shape { page_bytes, row_bytes: row_words * 4, ..SMALL };
                let rows_per_page = shape.layout(7).unwrap().rows_per_page;
                let placement = Placement::random(seed, rows, pages, rows_per_page);
                let medium = SimMedium::new(seed);
                let facts = placement.write(&medium, &shape, (7, 2), candidates_max).unwrap();
                let all: u64 = rows.iter().sum();
                let homes = all.div_ceil(rows_per_page as u64) as u32;
                assert_eq!((facts.rows, facts.pages), (all, homes + pages as u32));
                assert_eq!((facts.range, facts.merge), (PlaceRange::ALL, 2));
                let length = medium.contents(&file_name(shape.class, 7)).len() as u64;
                assert_eq!(facts.bytes, length);
                let exact = placement.read_all(&medium, &shape, &facts, candidates_max).unwrap();
                assert!(exact as u64 * 100 >= all * 99, "{exact} of {all} are exact");

                let partition = open(&medium, &shape, &facts).unwrap();
                assert!(partition.is_frozen() && partition.home_pages() == homes);
                let of_tables: BTreeMap<u16, u64> = partition.table_rows().collect();
                let expected = (0..).zip(rows).filter(|(_, rows)| *rows > 0);
                assert_eq!(of_tables, expected.collect());
                assert_eq!(partition.pages_of(PlaceRange::ALL), 1..homes + 1);
            }
        }
    }
}

#[test]
fn the_rows_of_a_page_come_with_their_places() {
    let (medium, facts, placement) = small();
    let partition = open(&medium, &SMALL, &facts).unwrap();
    let bytes = page_bytes_of(&SMALL, &partition).unwrap();
    let homes = placement.homes.chunks(partition.layout().rows_per_page);
    let all = homes.chain(placement.replicas.iter().map(Vec::as_slice));
    for (page, expected) in (1..).zip(all) {
        let rows = partition.rows(page, page_of(&bytes, &SMALL, page));
        let found: Vec<RowKey> = rows
            .map(|row| {
                let (place, key, row) = row.unwrap();
                assert_eq!(place, orders().place(place.table, 0, key).unwrap());
                assert_eq!(row, words(&SMALL, key, 5));
                (place.table, key)
            })
            .collect();
        assert_eq!(found, expected, "page {page}");
    }
}

#[test]
fn absent_keys_are_on_no_page_and_mostly_named_on_none() {
    let placement = Placement::random(3, [1000, 3000, 10], 40, 6);
    let medium = SimMedium::new(1);
    let facts = placement.write(&medium, &SMALL, (1, 5), 4).unwrap();
    let partition = open(&medium, &SMALL, &facts).unwrap();
    let bytes = page_bytes_of(&SMALL, &partition).unwrap();
    let there: BTreeSet<RowKey> = placement.homes.iter().copied().collect();
    let mut random = Random(9);
    let (mut absent, mut named) = (0, 0);
    for at in 0..30_000 {
        for (table, rank, key) in [(0, 0, at), (1, 0, random.next()), (3, 0, at), (1, 1, at)] {
            let orders = orders();
            let position = orders.of(table).map_or(key, |order| order.position(key));
            let place = Place { table, rank, position };
            if rank == 0 && there.contains(&(table, key)) {
                continue;
            }
            absent += 1;
            let candidates = partition.candidates(place);
            named += candidates.pages().len();
            assert!(table == 1 && rank == 0 || candidates.pages().is_empty(), "{place:?}");
            for page in candidates.pages() {
                let found = partition.find(place, *page, page_of(&bytes, &SMALL, *page));
                assert_eq!(found.unwrap(), None, "{place:?}");
            }
        }
    }
    // Of 16 tags of 16 bits one is that of another key.
    assert!(named > 0 && named * 1000 < absent, "{named} pages of {absent} keys");
}

#[test]
fn a_frozen_file_without_rows_is_one() {
    let medium = SimMedium::new(1);
    let facts = Placement::default().write(&medium, &SMALL, (1, 5), 1).unwrap();
    assert_eq!((facts.rows, facts.pages, facts.bytes), (0, 0, 1024));
    let partition = open(&medium, &SMALL, &facts).unwrap();
    assert!(partition.candidates(Place::MIN).pages().is_empty());
    assert!(partition.pages_of(PlaceRange::ALL).is_empty());
}

/// Every tenth row has a replica.
fn with_tenths(order: TableOrder, rows: u64) -> super::index::FrozenIndex {
    let mut builder = IndexBuilder::new(1, order);
    for key in 0..rows {
        builder.push_home(key, 1 + (key / 10) as u32).unwrap();
    }
    let home_pages = rows.div_ceil(10) as u32;
    for key in (0..rows).step_by(10) {
        builder.push_replica(key, home_pages + 1 + (key / 100) as u32).unwrap();
    }
    let copies = rows + rows / 10;
    assert!(builder.heap_bytes() as u64 <= 16 * copies, "{} bytes", builder.heap_bytes());
    builder.finish(home_pages, 4).unwrap()
}

#[test]
fn a_row_takes_at_most_eight_bytes_with_a_replica_for_every_tenth() {
    const ROWS: u64 = 200_000;
    for (order, most) in [(TableOrder::ByKey, 5.3), (TableOrder::Mixed { salt: 11 }, 7.6)] {
        let index = with_tenths(order, ROWS);
        let own = match &index.addressing {
            Addressing::ById => 0,
            Addressing::ByTag { starts, tags } => starts.len() * 4 + tags.len() * 2,
        };
        let heap = own + index.words.len() * 4 + index.list.len() * 4;
        assert_eq!(index.heap_bytes(), heap);
        let each = (size_of_val(&index) + heap) as f64 / ROWS as f64;
        assert!(each > 5.0 && each <= most, "{each} bytes per row of {order:?}");
    }
}

// Positions whose upper bits are equal lie in one bucket and share a tag. Two rows of a table do so
// by chance, once in some thousand.
#[test]
fn rows_that_share_a_tag_are_found_on_the_pages_of_all_of_them() {
    let order = TableOrder::Mixed { salt: 11 };
    for (count, candidates_max) in [(2, 4), (2, 1), (40, 16), (40, 3)] {
        let mut builder = IndexBuilder::new(1, order);
        let positions: Vec<u64> = (0..count).map(|at| 77 << 50 | at).collect();
        for (page, position) in (1..).zip(&positions) {
            builder.push_home(order.key(*position), page).unwrap();
        }
        let alone = order.key(5 << 60);
        builder.push_home(alone, count as u32).unwrap();
        let home_pages = count as u32;
        builder.push_replica(order.key(positions[1]), home_pages + 1).unwrap();
        builder.push_replica(order.key(positions[0]), home_pages + 2).unwrap();
        let index = builder.finish(home_pages, candidates_max).unwrap();
        index.check(count + 1, home_pages, home_pages + 2, candidates_max).unwrap();
        let mut expected: Vec<u32> = (1..=home_pages + 2).collect();
        expected.truncate(candidates_max.max(count as usize));
        for position in positions {
            let candidates = index.candidates(position);
            assert_eq!(candidates.pages(), expected);
        }
        let candidates = index.candidates(5 << 60);
        assert_eq!(candidates.pages(), [home_pages]);
    }
}

#[test]
fn what_is_no_placement_is_misuse_and_leaves_no_file() {
    let sound = small_placement(5);
    let of_table = |table: u16| *sound.homes.iter().find(|row| row.0 == table).unwrap();
    let medium = SimMedium::new(1);
    let refuse = |placement: &Placement, expected: &str| {
        let error = placement.write(&medium, &SMALL, (1, 5), 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.message().contains(expected), "{error}, expected: {expected}");
        assert_eq!(medium.list(NAME).unwrap(), Vec::<String>::new());
    };
    for row in [of_table(0), of_table(1)] {
        let mut other = sound.clone();
        other.homes.push(row);
        refuse(&other, "has its home on page");
        let mut other = sound.clone();
        other.replicas[1] = vec![row, row];
        refuse(&other, "twice");
    }
    for row in [(0, 1000), (1, 12_345), (2, u64::MAX)] {
        let mut other = sound.clone();
        other.replicas[1].push(row);
        refuse(&other, "which has no home");
    }
    let mut other = sound.clone();
    other.replicas.push(Vec::new());
    refuse(&other, "has no row");
    other.replicas = vec![sound.homes[..7].to_vec()];
    refuse(&other, "is full");
    other = sound.clone();
    other.homes.push((0, u64::from(u32::MAX)));
    refuse(&other, "id 4294967295");
    other.homes.push((9, 1));
    other.homes.swap_remove(20);
    refuse(&other, "table 9 has no order");
    let queue = queue(&medium, &SMALL);
    let error = FrozenWriter::create(&medium, &SMALL, 1, 5, 17, queue).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    sound.write(&medium, &SMALL, (1, 5), 3).unwrap();
}

#[test]
fn every_flipped_bit_is_named() {
    let (medium, facts, placement) = small();
    read_small(&medium, &facts, &placement).unwrap();
    for byte in 0..facts.bytes {
        for bit in 0..8 {
            let was = medium.contents(NAME)[byte as usize];
            medium.replace(NAME, byte, &[was ^ (1 << bit)]);
            let result = read_small(&medium, &facts, &placement);
            refused(result, &format!("byte {byte}, bit {bit}"));
            medium.replace(NAME, byte, &[was]);
        }
    }
    read_small(&medium, &facts, &placement).unwrap();
}

#[test]
fn a_file_that_is_missing_shorter_longer_or_zeros_is_named() {
    let (medium, facts, placement) = small();
    let sound = medium.contents(NAME);
    for length in (0..sound.len()).step_by(7).chain([sound.len() + 1, sound.len() + 512]) {
        let mut bytes = sound.clone();
        bytes.resize(length, 0);
        replace(&medium, &bytes);
        refused(read_small(&medium, &facts, &placement), &format!("{length} bytes"));
    }
    replace(&medium, &vec![0; sound.len()]);
    let said = refused(read_small(&medium, &facts, &placement), "zeros");
    assert!(said.contains("never finished"), "{said}");
    medium.remove(NAME).unwrap();
    let said = refused(read_small(&medium, &facts, &placement), "missing");
    assert!(said.contains("is missing"), "{said}");
}

#[test]
fn the_file_and_the_pages_of_another_merge_are_named() {
    let (medium, facts, placement) = small();
    let sound = medium.contents(NAME);
    for (merge, age) in [(4, "older"), (6, "newer")] {
        let other = SimMedium::new(2);
        placement.write(&other, &SMALL, (1, merge), 3).unwrap();
        let other = other.contents(NAME);
        replace(&medium, &other);
        let said = refused(read_small(&medium, &facts, &placement), age);
        assert!(said.contains(&format!("the file is {age} than the journal")), "{said}");
        // Of each page alone, of homes and of replicas.
        replace(&medium, &sound);
        for page in 1..=facts.pages as usize {
            medium.replace(NAME, page as u64 * 512, &other[page * 512..][..512]);
            let said = refused(read_small(&medium, &facts, &placement), "a page");
            assert!(said.contains(&format!("its sequence is {merge}")), "{said}");
            medium.replace(NAME, page as u64 * 512, &sound[page * 512..][..512]);
        }
    }
    read_small(&medium, &facts, &placement).unwrap();
}

/// Makes the checksums of the header and the footer valid again.
fn reseal(bytes: &mut [u8], pages: usize) -> u64 {
    let footer_at = (pages + 1) * 512;
    let length = u64::from_le_bytes(bytes[80..88].try_into().unwrap()) as usize;
    let length = length.min(bytes.len() - footer_at);
    let sum = xxh3_64_with_seed(&bytes[footer_at..footer_at + length], SMALL.seed);
    bytes[88..96].copy_from_slice(&sum.to_le_bytes());
    let sum = xxh3_64(&bytes[..128]);
    bytes[128..136].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// Opens a file with these bytes, as if the journal had its header.
fn open_resealed(medium: &SimMedium, facts: &Facts, bytes: &mut [u8]) -> Result<Partition> {
    let header_sum = reseal(bytes, facts.pages as usize);
    replace(medium, bytes);
    Partition::open(medium, &SMALL, &orders(), &Facts { header_sum, ..*facts })
}

#[test]
fn nonsense_with_valid_checksums_never_panics() {
    let (medium, facts, placement) = small();
    let sound = medium.contents(NAME);
    let footer_at = (facts.pages as usize + 1) * 512;
    let footer_bytes = u64::from_le_bytes(sound[80..88].try_into().unwrap()) as usize;
    let (mut at_opening, mut later) = (0, 0);
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let mut bytes = sound.clone();
        for _ in 0..1 + random.below(3) {
            // Sections, bytes and the footer itself; the rest of the header is compared.
            let at = match random.below(20) {
                0 => 72 + random.below(16) as usize,
                _ => footer_at + random.below(footer_bytes as u64) as usize,
            };
            bytes[at] = match random.below(4) {
                0 => random.next() as u8,
                1 => bytes[at].wrapping_add(1),
                2 => bytes[at] ^ (1 << random.below(8)),
                _ => [0, 0xFF][random.below(2) as usize],
            };
        }
        if bytes == sound {
            continue;
        }
        match open_resealed(&medium, &facts, &mut bytes) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "seed {seed}: {error}");
                at_opening += 1;
            }
            Ok(partition) => {
                later += 1;
                // A wrong index may lead to a page without the row, which a dense table's is not to
                // do, but never out of the file, nor to another row.
                let all = page_bytes_of(&SMALL, &partition).unwrap();
                for (table, key) in &placement.homes {
                    let place = orders().place(*table, 0, *key).unwrap();
                    for number in partition.candidates(place).pages() {
                        assert!((1..=facts.pages).contains(number), "seed {seed}");
                        let page = page_of(&all, &SMALL, *number);
                        let row = words(&SMALL, *key, 5);
                        match partition.find(place, *number, page) {
                            Ok(found) => assert!(found.is_none_or(|found| found == row)),
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
                        }
                    }
                }
            }
        }
    }
    assert!(at_opening > 10_000 && later > 10, "{at_opening} refused, {later} not");
}

#[test]
fn counts_and_pages_that_the_writer_does_not_make_are_refused() {
    let (medium, facts, _) = small();
    let sound = medium.contents(NAME);
    let footer_at = (facts.pages as usize + 1) * 512;
    // The first table is the dense one: the word of its largest id, and what it says of itself.
    let four = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let tables = 3;
    let words_at = footer_at + 8 + 40 * tables;
    let words = four(&sound, footer_at + 8 + 24) as usize;
    let last = words_at + 4 * (words - 1);
    assert!((1..=4).contains(&four(&sound, last)));
    for (at, value, expected) in [
        (footer_at, 0, "0 candidates of a row"),
        (footer_at, 17, "17 candidates of a row"),
        (footer_at + 4, 0, "0 of 7 pages are home"),
        (footer_at + 4, 100, "100 of 7 pages are home"),
        (last, 0, "its words are not those of 9 rows"),
        (last, 5, "its words are not pages"),
        (last, 1 << 31 | 1 << 20, "its words are not pages"),
        (footer_at + 8, 1, "order"),
        (footer_at + 8 + 4, 1, "is in order"),
        (footer_at + 8 + 16, 8, "its words are not those of 8 rows"),
        (footer_at + 8 + 24, u32::MAX, "does not fit"),
        (footer_at + 8 + 32, u32::MAX, "does not fit"),
        (footer_at + 8 + 40, 0, "table 0"),
        (72, 2, "bytes"),
        (72, u32::MAX, "do not fit"),
    ] {
        let mut bytes = sound.clone();
        bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        let opened = open_resealed(&medium, &facts, &mut bytes).map(drop);
        let said = refused(opened, expected);
        assert!(said.contains(expected), "{said}, expected: {expected}");
    }
    // All of it again is sound.
    open_resealed(&medium, &facts, &mut sound.clone()).unwrap();
    let mut bytes = sound.clone();
    bytes[6] = 4;
    let error = open_resealed(&medium, &facts, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // As a sorted file it is nonsense.
    bytes[6] = 1;
    refused(open_resealed(&medium, &facts, &mut bytes).map(drop), "sorted");
}

#[test]
fn rows_of_a_table_in_another_order_are_named() {
    let (medium, facts, _) = small();
    for order in [TableOrder::ByKey, TableOrder::Mixed { salt: 12 }] {
        let mut orders = orders();
        orders.insert(1, order);
        let opened = Partition::open(&medium, &SMALL, &orders, &facts).map(drop);
        let said = refused(opened, "another order");
        assert!(said.contains("table 1 is in order"), "{said}");
    }
}

#[test]
fn a_power_cut_or_a_failed_write_leaves_no_half_written_file_that_opens() {
    let placement = small_placement(5);
    let expected = placement.write(&SimMedium::new(9), &SMALL, (1, 5), 3).unwrap();
    let (mut cuts, mut whole, mut refused) = (0, 0, 0);
    loop {
        let medium = SimMedium::new(cuts);
        medium.power_cut_after(cuts);
        let written = placement.write(&medium, &SMALL, (1, 5), 3);
        if !medium.power_is_off() {
            assert_eq!(written.unwrap(), expected);
            break;
        }
        assert!(written.is_err(), "the power went after {cuts} operations");
        for seed in 0..10 {
            let medium = medium.reboot(seed);
            match read_small(&medium, &expected, &placement) {
                Ok(()) => whole += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    let opened = open(&medium, &SMALL, &expected);
                    assert!(opened.is_err(), "a half-written file opens: {error}");
                    refused += 1;
                }
            }
        }
        cuts += 1;
    }
    assert!(cuts > 6 && whole > 0 && refused > 0, "{cuts} {whole} {refused}");
    for fail in [SimMedium::fail_write, SimMedium::fail_sync, SimMedium::full_write] {
        let mut failed = 0;
        for after in 0.. {
            let medium = SimMedium::new(after);
            fail(&medium, after);
            match placement.write(&medium, &SMALL, (1, 5), 3) {
                Ok(written) => {
                    read_small(&medium, &written, &placement).unwrap();
                    break;
                }
                Err(_) => {
                    failed += 1;
                    assert_eq!(medium.list(NAME).unwrap(), Vec::<String>::new());
                }
            }
        }
        assert!(failed > 1, "{failed}");
    }
}

#[test]
fn pages_reach_the_reader_through_the_list_of_partitions() {
    let (medium, facts, placement) = small();
    let partition = open(&medium, &SMALL, &facts).unwrap();
    let source = Partitions::new(vec![partition.clone()]);
    let mut reader = reader(&medium, &SMALL);
    let (table, key) = placement.homes[7];
    let place = orders().place(table, 0, key).unwrap();
    let pages: Vec<PageAddress> =
        partition.candidates(place).iter().map(|page| PageAddress { file: 0, page }).collect();
    assert_eq!(pages.len(), 2);
    let mut found = 0;
    let read = reader.read(&source, &pages, &mut |at, bytes| {
        let row = partition.find(place, at.page, bytes)?;
        assert_eq!(row, Some(&words(&SMALL, key, 5)[..]));
        found += 1;
        Ok(())
    });
    read.unwrap();
    assert_eq!((found, source.page_bytes()), (2, 512));
}

#[test]
fn a_merge_takes_no_frozen_partition() {
    let (medium, facts, _) = small();
    let partition = open(&medium, &SMALL, &facts).unwrap();
    let plan = MergePlan {
        shape: SMALL,
        orders: Arc::new(orders()),
        range: PlaceRange::ALL,
        inputs: vec![partition.clone()],
        changes: 0,
        first_number: 2,
        merge: 6,
        target_bytes: 1 << 20,
        portion_bytes: PORTION_BYTES,
    };
    let (reader, queue) = (reader(&medium, &SMALL), queue(&medium, &SMALL));
    let changes = List::new(&BTreeMap::new());
    let merge = Merge::new(Arc::new(medium.clone()), plan, changes, reader, queue);
    let error = merge.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Misuse);
    assert!(error.message().contains("partition 1 is frozen"), "{error}");
    assert_eq!(partition.entry(0, &[]).unwrap_err().kind(), ErrorKind::Misuse);
}

// Its index is exact: without the row in the page the initial one would be returned.
#[test]
fn a_row_that_the_index_of_a_dense_table_names_in_vain_is_damage() {
    let (medium, facts, placement) = small();
    let partition = open(&medium, &SMALL, &facts).unwrap();
    let by_key = |(table, _): &&RowKey| orders().of(*table) == Some(TableOrder::ByKey);
    let (table, key) = *placement.homes.iter().find(by_key).unwrap();
    let place = orders().place(table, 0, key).unwrap();
    let page = partition.candidates(place).pages()[0];
    let mut words = page_bytes_of(&SMALL, &partition).unwrap();
    let all: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let layout = partition.layout();
    let bytes = &mut all[page as usize * SMALL.page_bytes..][..SMALL.page_bytes];
    let rows = layout.rows_in(bytes);
    assert!(partition.find(place, page, bytes).unwrap().is_some());
    let slot = (0..rows).find(|at| layout.entry(bytes, *at) == (table, key)).unwrap();
    let row = layout.row(bytes, slot).to_vec();
    layout.put(bytes, slot, table, key + 1000, &row);
    layout.seal(bytes, page, rows, 5);
    partition.verify(page, bytes).unwrap();
    let error = partition.find(place, page, bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains(&format!("no row {key} of table {table}")), "{error}");
}
