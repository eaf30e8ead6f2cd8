//! Shared parts of the tests of partitions: small files on a simulated device, and rows for them.

use super::file::{Facts, Shape, file_name};
use super::merge::{Change, Changes, Newer};
use super::order::{Orders, Place, PlaceRange, TableOrder};
use super::partition::{Partition, Partitions};
use super::writer::PartitionWriter;
use crate::error::{ErrorKind, Result};
use crate::io::{Buffers, Medium, Queue, SimMedium};
use crate::storage::{PageAddress, PageReader, PageSource};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A sequence of numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        crate::hash::mix(self.0, 0)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A row with its key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) key: u64,
    pub(super) words: Vec<f32>,
}

/// Rows by their places.
pub(super) type Model = BTreeMap<Place, Row>;

/// Pages of 512 bytes, which hold 6 rows of 16 words.
pub(super) const SMALL: Shape =
    Shape { class: 3, page_bytes: 512, row_bytes: 64, seed: 99, filters: false };

/// Bytes of a portion of the merges of the tests.
pub(super) const PORTION_BYTES: usize = 256 << 10;

/// Table 0 is dense, 1 and 2 are growing.
pub(super) fn orders() -> Orders {
    let mut orders = Orders::default();
    orders.insert(0, TableOrder::ByKey);
    orders.insert(1, TableOrder::Mixed { salt: 11 });
    orders.insert(2, TableOrder::Mixed { salt: 22 });
    orders
}

pub(super) fn words(shape: &Shape, key: u64, stamp: u64) -> Vec<f32> {
    (0..shape.row_bytes / 4).map(|word| (key % 1000 * 64 + stamp) as f32 + word as f32).collect()
}

pub(super) fn insert(model: &mut Model, shape: &Shape, table: u16, rank: u8, key: u64, stamp: u64) {
    let place = orders().place(table, rank, key).unwrap();
    model.insert(place, Row { key, words: words(shape, key, stamp) });
}

/// 23 rows in three sections, which share pages.
pub(super) fn small_model(stamp: u64) -> Model {
    let mut model = Model::new();
    for key in 0..10 {
        insert(&mut model, &SMALL, 0, 0, key, stamp);
    }
    for key in 0..8 {
        insert(&mut model, &SMALL, 1, 0, key, stamp);
    }
    for key in 100..105 {
        insert(&mut model, &SMALL, 1, 1, key, stamp);
    }
    model
}

pub(super) fn queue(medium: &SimMedium, shape: &Shape) -> Box<dyn Queue> {
    medium.queue(3, Buffers::equal(3, 2 * shape.page_bytes)).unwrap()
}

pub(super) fn reader(medium: &SimMedium, shape: &Shape) -> PageReader {
    let buffers = Buffers::sharing(32 * shape.page_bytes, shape.page_bytes, 8 * shape.page_bytes);
    PageReader::new(medium.queue(16, buffers).unwrap(), shape.page_bytes, None, true)
}

/// Writes a partition of all places.
pub(super) fn write(
    medium: &SimMedium,
    shape: &Shape,
    number: u32,
    merge: u64,
    model: &Model,
) -> Result<Facts> {
    let orders = orders();
    let queue = queue(medium, shape);
    let first = PlaceRange::ALL.first;
    let mut writer = PartitionWriter::create(medium, shape, number, merge, first, queue)?;
    for (place, row) in model {
        if let Err(error) = writer.push(&orders, *place, row.key, &row.words) {
            let again = writer.push(&orders, *place, row.key, &row.words).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::Poisoned);
            let _ = writer.abandon(medium);
            return Err(error);
        }
    }
    Ok(writer.finish(medium, &orders, PlaceRange::ALL.last)?.facts)
}

pub(super) fn open(medium: &SimMedium, shape: &Shape, facts: &Facts) -> Result<Arc<Partition>> {
    Partition::open(medium, shape, &orders(), facts).map(Arc::new)
}

/// A reader's finding about a key, and the number of pages it has read.
pub(super) struct Lookup {
    pub(super) words: Option<Vec<f32>>,
    pub(super) pages: usize,
}

/// Looks a place up by one page after the other, until it is found.
pub(super) fn look_up(
    reader: &mut PageReader,
    source: &Partitions,
    file: u16,
    place: Place,
) -> Result<Lookup> {
    let partition = &source.list()[usize::from(file)];
    let mut lookup = Lookup { words: None, pages: 0 };
    for page in partition.candidates(place).iter() {
        lookup.pages += 1;
        let found = &mut lookup.words;
        reader.read(source, &[PageAddress { file, page }], &mut |at, bytes| {
            let row = partition.find(place, at.page, bytes)?;
            if let Some(row) = row {
                assert!(found.replace(row.to_vec()).is_none(), "a row is in two pages");
            }
            Ok(())
        })?;
    }
    Ok(lookup)
}

/// Opens a partition and reads all rows of the model and all pages. Panics when a row is wrong.
pub(super) fn read_all(
    medium: &SimMedium,
    shape: &Shape,
    facts: &Facts,
    model: &Model,
) -> Result<()> {
    let source = Partitions::new(vec![open(medium, shape, facts)?]);
    let mut reader = reader(medium, shape);
    for (place, row) in model {
        let lookup = look_up(&mut reader, &source, 0, *place)?;
        assert_eq!(lookup.words.as_ref(), Some(&row.words), "{place:?}");
    }
    let mut page = vec![0.0f32; shape.page_bytes / 4];
    for number in 1..=facts.pages {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut page);
        source.file(0).read_at(bytes, u64::from(number) * shape.page_bytes as u64)?;
        source.verify(PageAddress { file: 0, page: number }, bytes)?;
    }
    Ok(())
}

/// The tag of the first change of a list; the others follow it.
pub(super) const TAG_FIRST: u32 = 7000;

/// Changes from a list.
pub(super) struct List {
    changes: Vec<(Place, u64, Option<Vec<f32>>)>,
    next: usize,
}

impl List {
    /// Changes by their places: a row, or a deletion.
    pub(super) fn new(changes: &BTreeMap<Place, (u64, Option<Vec<f32>>)>) -> Self {
        let each = changes.iter().map(|(place, (key, words))| (*place, *key, words.clone()));
        Self { changes: each.collect(), next: 0 }
    }
}

impl Changes for List {
    fn next(&mut self) -> Result<Option<Change<'_>>> {
        self.next += 1;
        Ok(self.changes.get(self.next - 1).map(|(place, key, words)| Change {
            table: place.table,
            rank: place.rank,
            key: *key,
            newer: words.as_deref().map_or(Newer::Deleted, Newer::Row),
            tag: TAG_FIRST + self.next as u32 - 1,
        }))
    }
}

/// The bytes of a file, as its name.
pub(super) fn contents(medium: &SimMedium, shape: &Shape, number: u32) -> Vec<u8> {
    medium.contents(&file_name(shape.class, number))
}
