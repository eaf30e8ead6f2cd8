//! Regions of version 1, which have no checks: they are read as they are, get checks when they are
//! opened to be written, whatever a power cut leaves of that, and keep their rows.

use super::{get_one, row, slot_of, small, verify};
use crate::bucket::{CHECK, PRINTS, SLOTS};
use crate::error::ErrorKind;
use crate::region::{Geometry, Region, header_of_version_1};
use crate::rows::Rows;
use crate::shadow::{Contents, Event, Random, Shadow};
use std::collections::HashMap;
use std::sync::Arc;

/// A region of version 1 with keys 1 to 40, some of them displaced, without 5 and 6.
fn version_1(geometry: Geometry) -> (Vec<u64>, HashMap<u64, u64>) {
    let shadow = Shadow::new(&vec![0; geometry.bytes() / 8]);
    let rows = Rows::format(Arc::clone(&shadow), geometry).expect("format");
    let keys: Vec<u64> = (1..=40).collect();
    for version in 1..=2 {
        for keys in keys.chunks(7) {
            let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, version)).collect();
            rows.put(keys, &bytes).expect("put");
        }
    }
    rows.remove(&[5, 6]).expect("remove");
    drop(rows);
    let mut image = shadow.image();
    for bucket in 0..geometry.buckets {
        let first = geometry.bucket_word(bucket);
        image[first + CHECK] = 0;
        for slot in 0..SLOTS {
            image[first + 5 + 2 * slot] = crate::slot_word::slot_of(image[first + 5 + 2 * slot]);
        }
    }
    header_of_version_1(&geometry, &mut image);
    (image, keys.into_iter().filter(|key| ![5, 6].contains(key)).map(|key| (key, 2)).collect())
}

#[test]
fn a_region_of_version_1_is_read_as_it_is_and_gets_checks_from_a_writer() {
    let (image, model) = version_1(small(5, 40));
    let reader = Shadow::new(&image);
    let rows = Rows::over(Region::open(Arc::clone(&reader)).expect("open")).expect("rows");
    for key in 1..=42 {
        assert_eq!(get_one(&rows, key), model.get(&key).map(|version| row(key, *version)));
    }
    assert_eq!((rows.mark().expect("none"), rows.check().expect("whole").keys), (0, 38));
    let error = rows.put(&[1], &row(1, 3)).expect_err("opened to be read");
    assert!(error.to_string().contains("open it to write"), "{error}");
    drop(rows);
    let unchanged = reader.image();
    for bucket in 0..5 {
        assert_eq!(unchanged[small(5, 40).bucket_word(bucket) + CHECK], 0);
    }
    let shadow = Shadow::new(&image);
    let rows = Rows::recover(Arc::clone(&shadow)).expect("open");
    rows.put(&[5, 1], &[row(5, 3), row(1, 3)].concat()).expect("put");
    drop(rows);
    let rows = Rows::recover(Shadow::new(&shadow.image())).expect("open");
    let model = model.into_iter().chain([(5, 3), (1, 3)]).collect();
    verify(&rows, &model);
}

#[test]
fn a_power_cut_while_checks_are_made_loses_no_row() {
    let (image, model) = version_1(small(3, 40));
    let mut random = Random(4);
    let shadow = Shadow::new(&image);
    drop(Rows::recover(Arc::clone(&shadow)).expect("open"));
    let (mut contents, mut images) = (Contents::durable(image), 0);
    for event in shadow.take_events() {
        contents.apply(&event);
        if matches!(event, Event::Flush(_)) {
            continue;
        }
        for image in contents.images(&mut random, 3) {
            // A reader, and the next writer.
            let rows = Rows::over(Region::open(Shadow::new(&image)).expect("open")).expect("rows");
            let found = |key| get_one(&rows, key) == model.get(&key).map(|v| row(key, *v));
            assert!((1..=42).all(found));
            let rows = Rows::recover(Shadow::new(&image)).expect("open");
            let checked = rows.check().expect("nothing is damaged");
            assert_eq!(checked.keys, model.len() as u64);
            let found = |key| get_one(&rows, key) == model.get(&key).map(|v| row(key, *v));
            assert!((1..=42).all(found));
            images += 1;
        }
    }
    assert!(images > 500, "{images} images");
}

#[test]
fn what_contradicts_itself_gets_no_check_that_matches() {
    let geometry = small(5, 40);
    let (image, model) = version_1(geometry);
    let whole = Rows::recover(Shadow::new(&image)).expect("open");
    let bucket = whole.index.path(9).home;
    let first = geometry.bucket_word(bucket);
    let slot = whole.index.locate(whole.index.path(9), 9).expect("sound").expect("there").slot;
    assert!(slot_of(&whole, 9) < geometry.row_slots);
    // A fingerprint, a key, a counter.
    for (word, change) in
        [(PRINTS + slot / 8, 1 << (slot % 8 * 8)), (4 + 2 * slot, 1 << 40), (PRINTS + 1, 1 << 52)]
    {
        let mut image = image.clone();
        image[first + word] ^= change;
        let rows = Rows::recover(Shadow::new(&image)).expect("open");
        let mut errors = 0;
        for key in 1..=42 {
            let (mut bytes, mut found) = (row(key, 0), [false]);
            match rows.get(&[key], &mut bytes, &mut found) {
                Ok(_) => {
                    let expected = model.get(&key).map(|version| row(key, *version));
                    assert_eq!(found[0].then_some(bytes), expected, "key {key}");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt);
                    errors += 1;
                }
            }
        }
        assert!(errors > 0, "word {word}");
        assert_eq!(rows.check().expect_err("damaged").kind(), ErrorKind::Corrupt);
    }
}
