//! Rows that are lent out while others write: they stay whole and as they were.

use super::{ROW_BYTES, get_one, row, small, verify};
use crate::error::ErrorKind;
use crate::map::Mapped;
use crate::medium::Medium;
use crate::region::Geometry;
use crate::rows::Rows;
use crate::shadow::Shadow;
use crate::views::RowViews;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn over<M: Medium>(medium: M, geometry: Geometry) -> Arc<Rows<M>> {
    Arc::new(Rows::format(medium, geometry).expect("format"))
}

fn in_memory(geometry: Geometry) -> Arc<Rows<Mapped>> {
    over(Mapped::anonymous(geometry.bytes()).expect("memory"), geometry)
}

fn bytes_of<M: Medium>(views: &RowViews<M>, position: usize) -> Option<Vec<u8>> {
    let words = views.row(position)?.iter();
    let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    Some(bytes.take(ROW_BYTES).collect())
}

/// Rows are lent, replaced and removed; what was lent stays, and others see what is new.
fn stay_as_they_were<M: Medium>(rows: &Arc<Rows<M>>) {
    let keys: Vec<u64> = (0..6).collect();
    for key in &keys[..5] {
        rows.put(&[*key], &row(*key, 1)).expect("put");
    }
    let views = rows.views(&keys).expect("no damage").expect("room");
    rows.put(&[4], &row(4, 2)).expect("update");
    assert_eq!(rows.remove(&[3]).expect("remove"), 1);
    rows.rehome(10).expect("rehome");
    for version in 2..1002 {
        rows.put(&[0], &row(0, version)).expect("update");
    }
    assert_eq!((views.len(), views.is_empty()), (6, false));
    for key in &keys[..5] {
        assert_eq!(bytes_of(&views, *key as usize), Some(row(*key, 1)), "key {key}");
    }
    assert_eq!((views.row(5).is_none(), views.row(6).is_none()), (true, true));
    assert_eq!(get_one(rows, 0), Some(row(0, 1001)));
    assert_eq!(get_one(rows, 3), None);
    assert!(rows.slab_use().waiting >= 1002, "{:?}", rows.slab_use());
    drop(views);
    let model = [(0, 1001), (1, 1), (2, 1), (4, 2)].into_iter().collect();
    verify(rows, &model);
}

#[test]
fn lent_rows_stay_as_they_were_on_every_medium() {
    let geometry = Geometry { row_slots: 2000, ..small(5, 60) };
    stay_as_they_were(&in_memory(geometry));
    let image = vec![0; geometry.bytes() / 8];
    stay_as_they_were(&over(Shadow::new(&image), geometry));
}

#[test]
fn a_slow_reader_sees_rows_whole_while_writers_replace_them() {
    let rows = in_memory(Geometry { row_slots: 20_000, ..small(5, 60) });
    let keys: Vec<u64> = (0..40).collect();
    let all = |version| keys.iter().flat_map(|key| row(*key, version)).collect::<Vec<u8>>();
    rows.put(&keys, &all(1)).expect("put");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for version in 2..1002 {
                rows.put(&keys, &all(version)).expect("nobody holds this up for long");
            }
            done.store(true, Ordering::Release);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let views = rows.views(&keys).expect("no damage").expect("room");
                    let seen = |at| bytes_of(&views, at).expect("it has a row");
                    let before: Vec<Vec<u8>> = (0..keys.len()).map(seen).collect();
                    std::thread::sleep(Duration::from_millis(3));
                    for (at, before) in before.iter().enumerate() {
                        assert_eq!(&seen(at), before, "a row that was lent has changed");
                    }
                }
            });
        }
        writer.join().expect("writer");
    });
    verify(&rows, &keys.iter().map(|key| (*key, 1001)).collect());
}

#[test]
fn a_writer_without_slots_waits_for_lent_rows_and_is_refused_only_if_they_stay() {
    // The reserve has 8 slots.
    let rows = in_memory(small(5, 60));
    let keys: Vec<u64> = (0..60).collect();
    let bytes: Vec<u8> = keys.iter().flat_map(|key| row(*key, 1)).collect();
    rows.put(&keys, &bytes).expect("put");
    let views = rows.views(&keys).expect("no damage").expect("room");
    for version in 2..10 {
        rows.put(&[7], &row(7, version)).expect("a slot of the reserve");
    }
    std::thread::scope(|scope| {
        let begin = Instant::now();
        let waiting = scope.spawn(|| rows.put(&[7], &row(7, 10)));
        while !views.is_wanted() {
            assert!(begin.elapsed() < Duration::from_secs(4), "nobody waits");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Others read and lend meanwhile.
        assert_eq!(get_one(&rows, 7), Some(row(7, 9)));
        drop(rows.views(&[7]).expect("no damage").expect("room"));
        assert_eq!(bytes_of(&views, 7), Some(row(7, 1)));
        assert!(views.is_wanted() && !waiting.is_finished(), "the writer waits for what is lent");
        drop(views);
        waiting.join().expect("thread").expect("slots are free again");
        assert!(begin.elapsed() < Duration::from_secs(5));
    });
    let views = rows.views(&keys).expect("no damage").expect("room");
    assert_eq!((views.is_wanted(), rows.pauses()), (false, 1));
    let refused = (11..).find_map(|version| rows.put(&[7], &row(7, version)).err());
    let error = refused.expect("it ends");
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("1 readings may still use"), "{error}");
    assert_eq!(bytes_of(&views, 7), Some(row(7, 10)));
    drop(views);
    rows.put(&[7], &row(7, 20)).expect("slots are free again");
}

#[test]
fn too_much_is_not_lent_and_a_damaged_row_not_at_all() {
    let rows = in_memory(small(5, 60));
    rows.put(&[1, 2], &[row(1, 1), row(2, 1)].concat()).expect("put");
    let lent: Vec<_> = std::iter::from_fn(|| rows.views(&[1]).expect("no damage")).collect();
    assert_eq!(lent.len(), 512);
    assert_eq!(get_one(&rows, 1), Some(row(1, 1)), "others read");
    drop(lent);
    let word = rows.geometry().row_word(super::slot_of(&rows, 2));
    rows.medium().store(word + 3, 12345);
    let error = rows.views(&[1, 2]).err().expect("damage");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("row of key 2"), "{error}");
    assert_eq!(rows.readings.count(), 0, "nothing is lent after a failure");
}
