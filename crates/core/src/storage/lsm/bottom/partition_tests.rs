//! Partition files, sound and damaged: the right rows, or `Corrupt` with the name of the file.

use super::file::{Facts, Section, Shape, file_name};
use super::order::{Place, TableOrder};
use super::partition::{Partition, Partitions};
use super::testing::{
    Model, Random, SMALL, contents, insert, look_up, open, orders, queue, read_all, reader,
    small_model, words, write,
};
use super::writer::PartitionWriter;
use crate::error::{ErrorKind, Result};
use crate::hash::mix;
use crate::io::{Medium, OpenMode, SimMedium};
use crate::storage::PageSource;
use std::panic::{AssertUnwindSafe, catch_unwind};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const NAME: &str = "part-3-1";

/// `SMALL` with filters.
const FILTERED: Shape = Shape { filters: true, ..SMALL };

/// A partition with rows of merge 5.
fn small() -> (SimMedium, Facts, Model) {
    small_of(&SMALL)
}

fn small_of(shape: &Shape) -> (SimMedium, Facts, Model) {
    let medium = SimMedium::new(1);
    let model = small_model(5);
    let facts = write(&medium, shape, 1, 5, &model).unwrap();
    (medium, facts, model)
}

/// Refused as `Corrupt`, with the file's name and a way out; returns the message.
fn refused(result: Result<()>, what: &str) -> String {
    let error = result.err().unwrap_or_else(|| panic!("{what}: taken as good"));
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    assert!(error.message().contains(NAME), "{what}: {error}");
    assert!(error.message().contains("restore from a copy"), "{what}: {error}");
    error.message().to_owned()
}

/// Puts other bytes in the place of a file, of another length perhaps.
fn replace(medium: &SimMedium, bytes: &[u8]) {
    let file = medium.open(NAME, OpenMode::ReadWrite).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_at(bytes, 0).unwrap();
}

#[test]
fn a_partition_gives_back_its_rows_and_knows_what_it_does_not_have() {
    for (page_bytes, row_words) in [(512, 16), (512, 1), (4096, 64), (65_536, 3)] {
        let shape = Shape { page_bytes, row_bytes: row_words * 4, ..SMALL };
        let mut model = Model::new();
        for key in 0..700 {
            insert(&mut model, &shape, 0, 0, key * 3, 1);
            insert(&mut model, &shape, 1, (key % 2) as u8, key, 1);
        }
        insert(&mut model, &shape, 2, 200, u64::MAX, 1);
        let medium = SimMedium::new(1);
        let facts = write(&medium, &shape, 7, 2, &model).unwrap();
        assert_eq!((facts.rows, facts.merge, facts.number), (1401, 2, 7));
        assert_eq!(facts.bytes, contents(&medium, &shape, 7).len() as u64);
        read_all(&medium, &shape, &facts, &model).unwrap();
        let source = Partitions::new(vec![open(&medium, &shape, &facts).unwrap()]);
        let mut reader = reader(&medium, &shape);
        for key in (0..3000).chain([u64::MAX]) {
            for (table, rank) in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 200)] {
                let place = orders().place(table, rank, key).unwrap();
                let lookup = look_up(&mut reader, &source, 0, place).unwrap();
                let expected = model.get(&place).map(|row| row.words.clone());
                assert_eq!(lookup.words, expected, "{place:?}");
                assert!(lookup.pages <= 2, "{place:?}");
            }
        }
    }
}

#[test]
fn a_partition_without_rows_is_one() {
    let medium = SimMedium::new(1);
    let facts = write(&medium, &SMALL, 1, 5, &Model::new()).unwrap();
    assert_eq!((facts.rows, facts.pages, facts.bytes), (0, 0, 512));
    let partition = open(&medium, &SMALL, &facts).unwrap();
    assert!(partition.candidates(Place { table: 0, rank: 0, position: 3 }).pages().is_empty());
}

#[test]
fn every_flipped_bit_is_named() {
    for shape in [SMALL, FILTERED] {
        every_flipped_bit_is_named_of(&shape);
    }
}

fn every_flipped_bit_is_named_of(shape: &Shape) {
    let (medium, facts, model) = small_of(shape);
    read_all(&medium, &SMALL, &facts, &model).unwrap();
    for byte in 0..facts.bytes {
        for bit in 0..8 {
            let was = medium.contents(NAME)[byte as usize];
            medium.replace(NAME, byte, &[was ^ (1 << bit)]);
            let result = read_all(&medium, &SMALL, &facts, &model);
            refused(result, &format!("byte {byte}, bit {bit}"));
            medium.replace(NAME, byte, &[was]);
        }
    }
    read_all(&medium, &SMALL, &facts, &model).unwrap();
}

#[test]
fn a_file_that_is_missing_shorter_longer_or_zeros_is_named() {
    let (medium, facts, model) = small();
    let sound = medium.contents(NAME);
    for length in (0..sound.len()).chain([sound.len() + 1, sound.len() + 512]) {
        let mut bytes = sound.clone();
        bytes.resize(length, 0);
        replace(&medium, &bytes);
        refused(read_all(&medium, &SMALL, &facts, &model), &format!("{length} bytes"));
    }
    replace(&medium, &vec![0; sound.len()]);
    let said = refused(read_all(&medium, &SMALL, &facts, &model), "zeros");
    assert!(said.contains("never finished"), "{said}");
    replace(&medium, &sound);
    read_all(&medium, &SMALL, &facts, &model).unwrap();
    medium.remove(NAME).unwrap();
    let said = refused(read_all(&medium, &SMALL, &facts, &model), "missing");
    assert!(said.contains("is missing"), "{said}");
}

#[test]
fn the_file_of_another_partition_merge_class_or_store_is_named() {
    let (medium, facts, model) = small();
    let other = |shape: Shape, number, merge| {
        let medium = SimMedium::new(2);
        write(&medium, &shape, number, merge, &small_model(4)).unwrap();
        contents(&medium, &shape, number)
    };
    for (bytes, expected) in [
        (other(SMALL, 2, 5), "the number is 0x2, expected 0x1"),
        (other(SMALL, 1, 4), "written by merge 4, expected 5: the file is older"),
        (other(SMALL, 1, 6), "written by merge 6, expected 5: the file is newer"),
        (other(Shape { class: 4, ..SMALL }, 1, 5), "the row class is 0x4, expected 0x3"),
        (other(Shape { seed: 98, ..SMALL }, 1, 5), "the checksum seed is 0x62, expected 0x63"),
    ] {
        replace(&medium, &bytes);
        let said = refused(read_all(&medium, &SMALL, &facts, &model), expected);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_file_with_other_rows_of_the_same_number_and_merge_is_named() {
    let (medium, facts, model) = small();
    let mut others = model.clone();
    // Key 4 of the dense table becomes key 44, which ends its section.
    others.remove(&orders().place(0, 0, 4).unwrap()).unwrap();
    insert(&mut others, &SMALL, 0, 0, 44, 5);
    let other = SimMedium::new(2);
    let written = write(&other, &SMALL, 1, 5, &others).unwrap();
    let header_sum = written.header_sum;
    assert_eq!(Facts { header_sum: facts.header_sum, ..written }, facts);
    replace(&medium, &contents(&other, &SMALL, 1));
    let said = refused(read_all(&medium, &SMALL, &facts, &model), "other rows");
    assert!(said.contains("it is not the file that the journal has"), "{said}");
    read_all(&medium, &SMALL, &Facts { header_sum, ..facts }, &others).unwrap();
}

#[test]
fn bits_in_the_padding_of_the_first_page_and_filters_in_a_file_without_are_named() {
    let shape = Shape { page_bytes: 4096, ..SMALL };
    let medium = SimMedium::new(1);
    let model = small_model(5);
    let facts = write(&medium, &shape, 1, 5, &model).unwrap();
    for byte in [136, 511, 512, 2000, 4095] {
        medium.replace(NAME, byte, &[1]);
        refused(read_all(&medium, &shape, &facts, &model), &format!("byte {byte}"));
        medium.replace(NAME, byte, &[0]);
    }
    read_all(&medium, &shape, &facts, &model).unwrap();

    let (medium, facts, model) = small();
    let footer_at = 512 * (facts.pages as usize + 1);
    for byte in 4..8 {
        let mut bytes = medium.contents(NAME);
        bytes[footer_at + 32 + byte] = 1;
        reseal_sums(&mut bytes, facts.pages as usize);
        let header_sum = u64::from_le_bytes(bytes[128..136].try_into().unwrap());
        let other = SimMedium::new(1);
        let file = other.open(NAME, OpenMode::CreateNew).unwrap();
        file.write_at(&bytes, 0).unwrap();
        let facts = Facts { header_sum, ..facts };
        let said = refused(read_all(&other, &SMALL, &facts, &model), "a section");
        assert!(said.contains("a file without filters"), "{said}");
    }
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
fn a_page_of_another_partition_merge_or_place_is_named() {
    let (medium, facts, model) = small();
    let sound = medium.contents(NAME);
    let other = |number, merge| {
        let medium = SimMedium::new(2);
        write(&medium, &SMALL, number, merge, &small_model(4)).unwrap();
        contents(&medium, &SMALL, number)
    };
    let page = |bytes: &[u8], number: usize| bytes[number * 512..][..512].to_vec();
    for number in 1..=facts.pages as usize {
        for (bytes, expected) in [
            (page(&other(1, 4), number), "its sequence is 4, expected at least 5"),
            (page(&other(1, 6), number), "its sequence is 6, expected at most 5"),
            (page(&other(2, 5), number), "checksum does not match"),
            (page(&sound, number % facts.pages as usize + 1), "written to the wrong place"),
            (page(&other(1, 5)[..], 0), "checksum does not match"),
            (vec![0; 512], "all bytes are zero"),
        ] {
            medium.replace(NAME, number as u64 * 512, &bytes);
            let said = refused(read_all(&medium, &SMALL, &facts, &model), expected);
            assert!(said.contains(expected), "{said}");
            assert!(said.contains(&format!("page {number}")), "{said}");
        }
        medium.replace(NAME, number as u64 * 512, &page(&sound, number));
    }
    read_all(&medium, &SMALL, &facts, &model).unwrap();
}

#[test]
fn a_page_that_claims_other_rows_than_it_must_have_is_named() {
    let (medium, facts, model) = small();
    let layout = SMALL.layout(1).unwrap();
    let sound = medium.contents(NAME);
    for (page, rows) in [(1, 5), (4, 6)] {
        let mut words = vec![0.0f32; 128];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        bytes.copy_from_slice(&sound[page * 512..][..512]);
        layout.seal(bytes, page as u32, rows, 5);
        medium.replace(NAME, page as u64 * 512, bytes);
        let said = refused(read_all(&medium, &SMALL, &facts, &model), "rows");
        assert!(said.contains(&format!("it has {rows} rows, of 23")), "{said}");
        replace(&medium, &sound);
    }
}

#[test]
fn a_row_of_another_table_at_the_same_position_is_named_and_never_given() {
    let (medium, facts, model) = small();
    let layout = SMALL.layout(1).unwrap();
    let sound = medium.contents(NAME);
    // Row 3 of the first page is that of key 3 in table 0.
    let mut page = vec![0.0f32; 128];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut page);
    bytes.copy_from_slice(&sound[512..1024]);
    layout.put(bytes, 3, 4, 3, &words(&SMALL, 999, 5));
    layout.seal(bytes, 1, 6, 5);
    medium.replace(NAME, 512, bytes);
    let said = refused(read_all(&medium, &SMALL, &facts, &model), "table 4");
    assert!(said.contains("page 1: row 3 is of table 4, expected 0"), "{said}");
}

/// Changes some bytes of the header or the footer and makes all checksums valid again.
fn reseal(bytes: &mut [u8], pages: usize, random: &mut Random) {
    let footer_at = (pages + 1) * 512;
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..][..8].try_into().unwrap());
    let footer_bytes = word(bytes, 80) as usize;
    for _ in 0..1 + random.below(3) {
        let at = match random.below(4) {
            0 => 8 + random.below(120) as usize,
            1 => footer_at + random.below(32 * 3) as usize,
            _ => footer_at + random.below(footer_bytes as u64) as usize,
        };
        bytes[at] = match random.below(4) {
            0 => random.next() as u8,
            1 => bytes[at].wrapping_add(1),
            2 => bytes[at] ^ (1 << random.below(8)),
            _ => [0, 0xFF][random.below(2) as usize],
        };
    }
    reseal_sums(bytes, pages);
}

/// Makes all checksums of the header and the footer valid again.
fn reseal_sums(bytes: &mut [u8], pages: usize) {
    let footer_at = (pages + 1) * 512;
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..][..8].try_into().unwrap());
    // Fences lie behind the three sections and end in a checksum of their own.
    let mut at = footer_at + 32 * 3;
    for section in 0..3 {
        let length = word(bytes, footer_at + 32 * section + 24) as usize;
        if length < 8 || at.saturating_add(length) > bytes.len() {
            break;
        }
        let sum = xxh3_64_with_seed(&bytes[at..at + length - 8], SMALL.seed);
        bytes[at + length - 8..at + length].copy_from_slice(&sum.to_le_bytes());
        at += length;
    }
    let length = (word(bytes, 80) as usize).min(bytes.len() - footer_at);
    let sum = xxh3_64_with_seed(&bytes[footer_at..footer_at + length], SMALL.seed);
    bytes[88..96].copy_from_slice(&sum.to_le_bytes());
    let sum = xxh3_64(&bytes[..128]);
    bytes[128..136].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn nonsense_with_valid_checksums_never_panics() {
    let (medium, facts, model) = small();
    let sound = medium.contents(NAME);
    let (mut at_opening, mut later) = (0, 0);
    for seed in 0..3000 {
        let mut bytes = sound.clone();
        reseal(&mut bytes, facts.pages as usize, &mut Random(seed));
        replace(&medium, &bytes);
        // As if the journal had this header.
        let header_sum = u64::from_le_bytes(bytes[128..136].try_into().unwrap());
        let Ok(partition) = open(&medium, &SMALL, &Facts { header_sum, ..facts }) else {
            at_opening += 1;
            continue;
        };
        later += 1;
        // Wrong fences may lead to a page without the row, never to another row.
        let source = Partitions::new(vec![partition]);
        let mut reader = reader(&medium, &SMALL);
        for (place, row) in &model {
            match look_up(&mut reader, &source, 0, *place) {
                Ok(lookup) => {
                    assert!(lookup.words.is_none_or(|words| words == row.words), "seed {seed}");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "seed {seed}"),
            }
        }
    }
    assert!(at_opening > 1000 && later > 10, "{at_opening} refused, {later} not");
}

#[test]
fn a_newer_version_is_unsupported() {
    let (medium, facts, model) = small();
    let mut bytes = medium.contents(NAME);
    bytes[6] = 4;
    let sum = xxh3_64(&bytes[..128]);
    bytes[128..136].copy_from_slice(&sum.to_le_bytes());
    replace(&medium, &bytes);
    let error = read_all(&medium, &SMALL, &facts, &model).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn a_row_out_of_order_or_at_another_place_is_a_bug_of_the_caller() {
    let medium = SimMedium::new(1);
    let orders = orders();
    let at = |table, rank, position| Place { table, rank, position };
    let good = at(1, 1, mix(7, 11).reverse_bits());
    let bad = [(good, 7), (at(1, 0, good.position), 7), (at(1, 1, mix(8, 11)), 8)];
    for (number, (place, key)) in bad.into_iter().enumerate() {
        let number = number as u32;
        let (first, queue) = (Place::MIN, queue(&medium, &SMALL));
        let mut writer = PartitionWriter::create(&medium, &SMALL, number, 1, first, queue).unwrap();
        let row = words(&SMALL, 7, 0);
        writer.push(&orders, good, 7, &row).unwrap();
        let pushed = catch_unwind(AssertUnwindSafe(|| writer.push(&orders, place, key, &row)));
        assert!(pushed.is_err(), "{place:?}");
        writer.abandon(&medium).unwrap();
    }
    let error = orders.place(9, 0, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse);
}

#[test]
fn a_file_that_exists_is_not_written_over() {
    let (medium, facts, model) = small();
    assert!(write(&medium, &SMALL, 1, 6, &Model::new()).is_err());
    read_all(&medium, &SMALL, &facts, &model).unwrap();
}

#[test]
fn a_power_cut_at_any_operation_leaves_the_old_file_and_no_half_written_one_that_opens() {
    let old = small_model(5);
    let new = small_model(6);
    let expected = write(&SimMedium::new(9), &SMALL, 2, 6, &new).unwrap();
    let (mut cuts, mut whole, mut missing, mut refused) = (0, 0, 0, 0);
    loop {
        let medium = SimMedium::new(cuts);
        let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
        medium.power_cut_after(cuts);
        let written = write(&medium, &SMALL, 2, 6, &new);
        if !medium.power_is_off() {
            assert_eq!(written.unwrap(), expected);
            break;
        }
        assert!(written.is_err(), "the power went after {cuts} operations");
        for seed in 0..20 {
            let medium = medium.reboot(seed);
            read_all(&medium, &SMALL, &facts, &old).unwrap();
            let there = medium.list(&file_name(3, 2)).unwrap().len();
            // A header on disk says that all else is there.
            match read_all(&medium, &SMALL, &expected, &new) {
                Ok(()) => whole += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    let opened = open(&medium, &SMALL, &expected);
                    assert!(opened.is_err(), "a half-written file opens: {error}");
                    missing += 1 - there;
                    refused += there;
                }
            }
        }
        cuts += 1;
    }
    assert!(cuts > 6, "only {cuts} operations");
    assert!(whole > 0 && missing > 0 && refused > 0, "{whole} {missing} {refused}");
}

#[test]
fn a_failed_write_sync_or_allocation_is_told_and_leaves_the_old_file() {
    let old = small_model(5);
    let new = small_model(6);
    type Fault = fn(&SimMedium, u64);
    // Of the allocations one fails for good, that of the file's name; of the others less is asked
    // for then.
    let faults: [(&str, Fault, usize); 4] = [
        ("write", SimMedium::fail_write, 4),
        ("sync", SimMedium::fail_sync, 3),
        ("full write", SimMedium::full_write, 4),
        ("full allocation", SimMedium::full_allocate, 1),
    ];
    for (what, fault, least) in faults {
        let mut failed = 0;
        for after in 0.. {
            let medium = SimMedium::new(after);
            let facts = write(&medium, &SMALL, 1, 5, &old).unwrap();
            let before = medium.faults_fired();
            fault(&medium, after);
            let written = write(&medium, &SMALL, 2, 6, &new);
            let struck = medium.faults_fired() != before;
            read_all(&medium, &SMALL, &facts, &old).unwrap();
            let Ok(written) = written else {
                assert!(struck, "{what} {after}");
                failed += 1;
                continue;
            };
            read_all(&medium, &SMALL, &written, &new).unwrap();
            if !struck {
                break;
            }
        }
        assert!(failed >= least, "{what} failed {failed} times");
    }
}

#[test]
fn pages_reach_the_reader_through_the_list_of_partitions() {
    let medium = SimMedium::new(1);
    let first = write(&medium, &SMALL, 1, 5, &small_model(5)).unwrap();
    let second = write(&medium, &SMALL, 2, 5, &small_model(6)).unwrap();
    let list = [first, second].map(|facts| open(&medium, &SMALL, &facts).unwrap());
    let source = Partitions::new(list.to_vec());
    assert_eq!(source.page_bytes(), 512);
    assert_eq!(source.file(1).name(), "part-3-2");
    let mut reader = reader(&medium, &SMALL);
    for (file, stamp) in [(0, 5), (1, 6)] {
        let place = Place { table: 0, rank: 0, position: 4 };
        let lookup = look_up(&mut reader, &source, file, place).unwrap();
        assert_eq!(lookup.words, Some(words(&SMALL, 4, stamp)));
    }
}

#[test]
fn a_filter_spares_pages_and_no_row() {
    let mut pages = [0, 0];
    for (shape, pages) in [SMALL, FILTERED].into_iter().zip(&mut pages) {
        let mut model = Model::new();
        for key in 0..2000 {
            insert(&mut model, &shape, 0, 0, key * 3, 1);
            insert(&mut model, &shape, 1, (key % 2) as u8, key, 1);
        }
        let medium = SimMedium::new(1);
        let facts = write(&medium, &shape, 7, 2, &model).unwrap();
        read_all(&medium, &shape, &facts, &model).unwrap();
        let partition = open(&medium, &shape, &facts).unwrap();
        for key in 0..9000 {
            for (table, rank) in [(0, 0), (1, 0), (1, 1)] {
                let place = orders().place(table, rank, key).unwrap();
                let found = partition.candidates(place).pages().len();
                match model.contains_key(&place) {
                    true => assert!(found >= 1, "{place:?}"),
                    false => *pages += found,
                }
            }
        }
        let has_filter = |section: &Section| section.filter.is_some();
        assert!(partition.sections().iter().all(|s| has_filter(s) == shape.filters));
        // Its ids lie close: each is a cell of its own.
        let dense = (0..6000).map(|key| Place { table: 0, rank: 0, position: key });
        let spared = dense.filter(|place| !model.contains_key(place));
        let found: usize = spared.map(|place| partition.candidates(place).pages().len()).sum();
        assert_eq!(found == 0, shape.filters, "{found} pages of ids without a row");
    }
    assert!(pages[1] * 7 <= pages[0], "{pages:?} pages of rows that are not there");
}

// Builds that know no filters read files without any, and refuse others.
#[test]
fn the_version_tells_of_filters() {
    for (shape, version) in [(SMALL, 1), (FILTERED, 2)] {
        let (medium, facts, model) = small_of(&shape);
        assert_eq!(medium.contents(NAME)[6..8], [version, 0]);
        read_all(&medium, &SMALL, &facts, &model).unwrap();
        read_all(&medium, &FILTERED, &facts, &model).unwrap();
    }
    let medium = SimMedium::new(1);
    let mut dense = Model::new();
    // If every id has a row, a filter saves nothing.
    (3..90).for_each(|id| insert(&mut dense, &FILTERED, 0, 0, id, 1));
    write(&medium, &FILTERED, 1, 5, &dense).unwrap();
    assert_eq!(medium.contents(NAME)[6], 1);
}
