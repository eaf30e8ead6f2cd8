//! Damage of every word of a region that decides what a reader is told: it gets what was put, or an
//! error, and never another row or none.

use super::{ROW_BYTES, get_one, keys_of_home, row, slot_of, small};
use crate::bucket::{BUCKET_WORDS, CHECK, PRINTS};
use crate::error::ErrorKind;
use crate::map::Mapped;
use crate::medium::Medium;
use crate::rows::Rows;
use crate::shadow::Shadow;
use std::sync::Arc;

const ROWS: u64 = 30;

/// Keys 1 to 30, some of them displaced, some put twice, and some removed.
fn filled<M: Medium>(medium: M) -> Rows<M> {
    let rows = Rows::format(medium, small(3, ROWS)).expect("format");
    let keys: Vec<u64> = (1..=ROWS).collect();
    for version in [9, 1] {
        for keys in keys.chunks(7) {
            let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, version)).collect();
            rows.put(keys, &bytes).expect("put");
        }
    }
    let removed: Vec<u64> = (1..=ROWS).step_by(7).collect();
    assert_eq!(rows.remove(&removed).expect("remove"), removed.len());
    rows
}

fn in_memory() -> Rows<Mapped> {
    filled(Mapped::anonymous(small(3, ROWS).bytes()).expect("memory"))
}

fn expected(key: u64) -> Option<Vec<u8>> {
    ((1..=ROWS).contains(&key) && key % 7 != 1).then(|| row(key, 1))
}

/// Each key has its row, or none where it has none, or an error. Returns the errors.
fn read_all(rows: &Rows<impl Medium>, what: &str) -> usize {
    let mut errors = 0;
    for key in 0..ROWS + 5 {
        let (mut bytes, mut found) = (vec![0; ROW_BYTES], [false]);
        match rows.get(&[key], &mut bytes, &mut found) {
            Ok(_) => assert_eq!(found[0].then_some(bytes), expected(key), "key {key}: {what}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt, "key {key}: {what}: {error}");
                errors += 1;
            }
        }
    }
    errors
}

#[test]
fn any_bit_of_the_index_and_of_rows_is_reported_and_never_read() {
    let rows = in_memory();
    let (medium, geometry) = (rows.medium(), rows.geometry());
    let slots = geometry.row_word(0)..geometry.row_word(geometry.row_slots);
    for word in geometry.index_words().chain(slots) {
        for bit in 0..64 {
            let before = medium.load(word);
            medium.store(word, before ^ 1 << bit);
            let errors = read_all(&rows, &format!("word {word}, bit {bit}"));
            let in_bucket = (word - geometry.index_words().start) % BUCKET_WORDS;
            if geometry.index_words().contains(&word) && (PRINTS..=CHECK).contains(&in_bucket) {
                assert!(errors > 0, "word {word}, bit {bit} hides no key that there is not");
                assert_eq!(rows.check().expect_err("damaged").kind(), ErrorKind::Corrupt);
            }
            medium.store(word, before);
        }
    }
    assert_eq!(read_all(&rows, "whole"), 0);
    rows.check().expect("whole");
}

#[test]
fn any_bit_of_the_header_is_reported_or_does_no_harm() {
    let shadow = Shadow::new(&vec![0; small(3, ROWS).bytes() / 8]);
    let rows = filled(Arc::clone(&shadow));
    rows.set_mark(7).expect("mark");
    drop(rows);
    let image = shadow.image();
    for word in 0..40 {
        for bit in 0..64 {
            let mut image = image.clone();
            image[word] ^= 1 << bit;
            let what = format!("word {word}, bit {bit}");
            let Ok(rows) = Rows::recover(Shadow::new(&image)) else { continue };
            assert_eq!(read_all(&rows, &what), 0, "{what}");
            match rows.mark() {
                Ok(mark) => assert_eq!(mark, 7, "{what}"),
                Err(error) => assert_eq!((error.kind(), word), (ErrorKind::Corrupt, 14), "{error}"),
            }
        }
    }
}

#[test]
fn pages_of_zeros_and_buckets_of_another_place_are_no_empty_ones() {
    let rows = in_memory();
    let (medium, geometry) = (rows.medium(), rows.geometry());
    let words = |bucket: u64| geometry.bucket_word(bucket)..geometry.bucket_word(bucket + 1);
    let load = |bucket| words(bucket).map(|word| medium.load(word)).collect::<Vec<u64>>();
    let store = |bucket, values: &[u64]| {
        words(bucket).zip(values).for_each(|(word, value)| medium.store(word, *value));
    };
    for bucket in 0..geometry.buckets {
        let before = load(bucket);
        for (what, values) in
            [("zeros", vec![0; BUCKET_WORDS]), ("another", load((bucket + 1) % geometry.buckets))]
        {
            store(bucket, &values);
            assert!(read_all(&rows, what) > 0, "{what}");
            let error = rows.keys_beside_writers(bucket, &mut Vec::new()).expect_err(what);
            assert!(
                error.to_string().contains(&format!("bucket {bucket} of the index")),
                "{error}"
            );
            let (_, damage) = rows.check_all(9, |_, _| Ok::<(), ()>(())).expect("goes on");
            assert!(!damage.is_empty(), "{what}");
            store(bucket, &before);
        }
    }
    assert_eq!(read_all(&rows, "whole"), 0);
}

#[test]
fn a_slot_whose_last_row_was_never_written_back_is_damage() {
    let rows = in_memory();
    let (medium, geometry) = (rows.medium(), rows.geometry());
    let slot = slot_of(&rows, 9);
    let first = geometry.row_word(slot);
    let words = first..first + geometry.row_words();
    let before: Vec<u64> = words.clone().map(|word| medium.load(word)).collect();
    // The slot had an earlier row of the same key, which is whole.
    rows.put(&[9], &row(9, 2)).expect("put");
    let mut versions = 3..100;
    while slot_of(&rows, 9) != slot {
        let version = versions.next().expect("the slot is used again");
        rows.put(&[9], &row(9, version)).expect("put");
    }
    words.zip(before).for_each(|(word, value)| medium.store(word, value));
    let error = rows.get(&[9], &mut [0; ROW_BYTES], &mut [false]).expect_err("an older row");
    assert!(error.to_string().contains("row of key 9: the index names slot"), "{error}");
    assert!(error.to_string().contains("is not the last"), "{error}");
}

#[test]
fn nothing_is_put_into_a_damaged_bucket_nor_taken_from_it() {
    let shadow = Shadow::new(&vec![0; small(3, ROWS).bytes() / 8]);
    let rows = filled(Arc::clone(&shadow));
    let geometry = rows.geometry();
    let hidden = 9;
    let home = rows.index.path(hidden).home;
    let slot = slot_of(&rows, hidden);
    drop(rows);
    let prints = geometry.bucket_word(home) + PRINTS;
    let before = [prints, prints + 1].map(|word| shadow.load(word));
    // No fingerprint: the bucket looks empty, and which slots are free is not known yet.
    shadow.store(prints, 0);
    shadow.store(prints + 1, 0);
    let rows = Rows::recover(Arc::clone(&shadow)).expect("open");
    let medium = &shadow;
    let new = keys_of_home(&geometry, home, 40)[39];
    for key in [hidden, new] {
        let error = rows.put(&[key], &row(key, 2)).expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let error = rows.remove(&[key]).expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let error = rows.contains(&[key], &mut [false]).expect_err("damaged");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    rows.rehome(u64::MAX).expect("others are moved");
    // Rows of other buckets come and go, in no slot of a hidden row.
    let other = keys_of_home(&geometry, (home + 1) % 3, 40)[39];
    for version in 2..100 {
        match rows.put(&[other], &row(other, version)) {
            Ok(()) => assert_ne!(slot_of(&rows, other), slot),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
        }
    }
    medium.store(prints, before[0]);
    medium.store(prints + 1, before[1]);
    for key in (1..=ROWS).filter(|key| *key != other) {
        assert_eq!(get_one(&rows, key), expected(key), "key {key}");
    }
}

#[test]
fn a_value_that_is_damaged_is_no_slot_to_be_freed() {
    let rows = in_memory();
    let word = rows.index.key_word(rows.index.path(7).home, 0) + 1;
    rows.medium().store(word, 1 << 50);
    let key = rows.medium().load(word - 1);
    rows.put(&[key], &row(key, 2)).expect("put over damage");
    assert_eq!(get_one(&rows, key), Some(row(key, 2)));
}
