//! A bottom over many merges beside a plain map, and the files that its snapshots need.

use super::file::{Facts, Shape, files_of};
use super::merge::{Merge, MergePlan, Merged};
use super::order::{Place, PlaceRange};
use super::snapshot::{Bottom, Snapshot};
use super::testing::{List, Model, Random, Row, orders, queue, reader, words};
use super::version::{Edit, Version};
use crate::error::ErrorKind;
use crate::io::{Buffers, DirectoryMedium, IoChoice, Medium, OpenMode, SimMedium};
use crate::storage::{PageAddress, PageReader};
use std::collections::BTreeMap;
use std::sync::Arc;

type Changed = BTreeMap<Place, (u64, Option<Vec<f32>>)>;

struct Fixture {
    medium: SimMedium,
    shape: Shape,
    bottom: Bottom,
    reader: PageReader,
    model: Model,
    /// Changes that no merge has taken yet.
    top: Changed,
    next_number: u32,
    next_merge: u64,
}

/// What look-ups cost.
#[derive(Debug, Default)]
struct Cost {
    keys: usize,
    pages: usize,
}

impl Fixture {
    fn new(shape: Shape) -> Self {
        let medium = SimMedium::new(1);
        let bottom = Bottom::open(&medium, &shape, &orders(), Version::default()).unwrap();
        let reader = reader(&medium, &shape);
        let (model, top) = (Model::new(), Changed::new());
        Self { medium, shape, bottom, reader, model, top, next_number: 1, next_merge: 1 }
    }

    fn change(&mut self, table: u16, key: u64, stamp: Option<u64>) {
        let place = orders().place(table, key.is_multiple_of(5).into(), key).unwrap();
        let words = stamp.map(|stamp| words(&self.shape, key, stamp));
        match &words {
            Some(words) => self.model.insert(place, Row { key, words: words.clone() }),
            None => self.model.remove(&place),
        };
        self.top.insert(place, (key, words));
    }

    /// Merges the partitions `from` to `to` with their part of the top.
    fn merge(&mut self, from: usize, to: usize, target_bytes: u64) -> Merged {
        let snapshot = self.bottom.snapshot();
        let inputs = snapshot.partitions().list()[from..to].to_vec();
        let range = match (inputs.first(), inputs.last()) {
            (Some(first), Some(last)) => {
                PlaceRange { first: first.facts().range.first, last: last.facts().range.last }
            }
            _ => PlaceRange::ALL,
        };
        let taken: Vec<Place> =
            self.top.range(range.first..=range.last).map(|(place, _)| *place).collect();
        let changes: Changed =
            taken.iter().filter_map(|place| self.top.remove_entry(place)).collect();
        let old: u64 = inputs.iter().map(|input| input.facts().rows).sum();
        let plan = MergePlan {
            shape: self.shape,
            orders: Arc::new(orders()),
            range,
            inputs,
            changes: changes.len() as u64,
            first_number: self.next_number,
            merge: self.next_merge,
            target_bytes,
        };
        let (reader, queue) = (reader(&self.medium, &self.shape), queue(&self.medium, &self.shape));
        let mut merge = Merge::new(plan, List::new(&changes), reader, queue).unwrap();
        while merge.step(&self.medium).unwrap() {}
        let merged = merge.finish();
        assert_eq!(merged.kept + merged.replaced + merged.deleted, old);
        let changed = merged.replaced + merged.new + merged.deleted + merged.vain;
        assert_eq!(changed, changes.len() as u64);
        let rows: u64 = merged.added.iter().map(|facts| facts.rows).sum();
        assert_eq!(rows, merged.kept + merged.replaced + merged.new);
        self.next_number += merged.added.len() as u32;
        self.next_merge += 1;
        merged
    }

    /// Puts what a merge has written in the place of the old, by way of the journal.
    fn install(&mut self, merged: &Merged) {
        let edit = Edit { removed: merged.removed.clone(), added: merged.added.clone() };
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        let edit = Edit::decode(&bytes).unwrap();
        self.bottom.install(&self.medium, &orders(), &edit).unwrap();
    }

    /// Reads every key that there ever was and compares it with `model`, the changes of the top
    /// laid over what the snapshot has.
    fn compare(&mut self, snapshot: &Snapshot, model: &Model, top: &Changed, cost: &mut Cost) {
        for table in 0..3u16 {
            for key in keys(table) {
                let place = orders().place(table, key.is_multiple_of(5).into(), key).unwrap();
                let expected = model.get(&place).map(|row| &row.words);
                if let Some((_, newer)) = top.get(&place) {
                    assert_eq!(newer.as_ref(), expected, "{place:?}");
                    continue;
                }
                let pages: Vec<PageAddress> = snapshot.candidates(place).collect();
                assert!(pages.len() <= 2, "{place:?}: {pages:?}");
                let mut found = None;
                let read = self.reader.read(snapshot.partitions(), &pages, &mut |at, page| {
                    if let Some(row) = snapshot.find(place, at, page)? {
                        assert!(found.replace(row.to_vec()).is_none(), "{place:?} is there twice");
                    }
                    Ok(())
                });
                read.unwrap();
                assert_eq!(found.as_ref(), expected, "{place:?}");
                if expected.is_some() {
                    cost.keys += 1;
                    cost.pages += pages.len();
                }
            }
        }
    }

    fn compare_newest(&mut self, cost: &mut Cost) {
        let (snapshot, model, top) = (self.bottom.snapshot(), self.model.clone(), self.top.clone());
        self.compare(&snapshot, &model, &top, cost);
    }
}

/// The keys of a table of the fixture: in a row, spread, and in clusters far from each other.
fn keys(table: u16) -> impl Iterator<Item = u64> {
    (0..600).map(move |n| match table {
        0 => n / 100 * (1 << 37) + n % 100,
        1 => n,
        _ => n * 0x0123_4567_89AB,
    })
}

#[test]
fn random_lives_give_the_rows_of_a_plain_map_at_hardly_more_than_a_page_each() {
    for (seed, page_bytes, row_words) in [(1, 512, 4), (2, 512, 16), (3, 4096, 33)] {
        let shape = Shape { class: 0, page_bytes, row_bytes: row_words * 4, seed: 7 };
        let mut fixture = Fixture::new(shape);
        let mut random = Random(seed);
        let mut cost = Cost::default();
        let mut held: Vec<(Arc<Snapshot>, Model, Changed)> = Vec::new();
        for round in 0..40 {
            for _ in 0..random.below(400) {
                let table = random.below(3) as u16;
                let key = keys(table).nth(random.below(600) as usize).unwrap();
                let put = random.below(4) > 0;
                fixture.change(table, key, put.then_some(round));
            }
            let count = fixture.bottom.snapshot().version().partitions().len();
            let from = random.below(count.max(1) as u64) as usize;
            let to = (from + 1 + random.below(3) as usize).min(count);
            let from = from.min(to);
            let target = page_bytes as u64 * (1 + random.below(9));
            let merged = fixture.merge(from, to, target);
            fixture.install(&merged);
            fixture.compare_newest(&mut cost);
            if round % 7 == 0 {
                let top = fixture.top.clone();
                held.push((fixture.bottom.snapshot(), fixture.model.clone(), top));
            }
            for name in fixture.bottom.removable() {
                fixture.medium.remove(&name).unwrap();
            }
        }
        // What readers have kept reads as it did.
        for (snapshot, model, top) in held {
            fixture.compare(&snapshot, &model, &top, &mut cost);
        }
        let mean = cost.pages as f64 / cost.keys as f64;
        assert!(cost.keys > 10_000 && mean <= 1.02, "{mean} pages for each of {} keys", cost.keys);
        // With the last of them their files can go.
        for name in fixture.bottom.removable() {
            fixture.medium.remove(&name).unwrap();
        }
        let partitions = fixture.bottom.snapshot().version().partitions().len();
        assert_eq!(files_of(&fixture.medium, 0).unwrap().len(), partitions);
    }
}

fn fixture_with_two_partitions() -> Fixture {
    let shape = Shape { class: 0, page_bytes: 512, row_bytes: 64, seed: 7 };
    let mut fixture = Fixture::new(shape);
    for key in 0..12 {
        fixture.change(1, key, Some(1));
    }
    let merged = fixture.merge(0, 0, 512);
    fixture.install(&merged);
    assert_eq!(fixture.bottom.snapshot().version().partitions().len(), 2);
    fixture
}

#[test]
fn a_file_can_be_removed_once_no_snapshot_has_it() {
    let mut fixture = fixture_with_two_partitions();
    let first = fixture.bottom.snapshot();
    let merged = fixture.merge(0, 1, 512);
    fixture.install(&merged);
    assert_eq!(fixture.bottom.removable(), Vec::<String>::new());
    let second = fixture.bottom.snapshot();
    let merged = fixture.merge(0, 2, 4096);
    fixture.install(&merged);
    assert_eq!(fixture.bottom.removable(), Vec::<String>::new());
    // Number 1 is of the first snapshot alone, 2 of both, 3 of the second.
    drop(first);
    assert_eq!(fixture.bottom.removable(), ["part-0-1"]);
    assert_eq!(fixture.bottom.leftovers(&fixture.medium).unwrap(), ["part-0-1"]);
    drop(second);
    assert_eq!(fixture.bottom.removable(), ["part-0-3", "part-0-2"]);
    assert_eq!(fixture.bottom.removable(), Vec::<String>::new());
}

#[test]
fn files_that_no_version_names_are_left_over() {
    let mut fixture = fixture_with_two_partitions();
    let merged = fixture.merge(0, 2, 4096);
    // The merge was never journalled.
    assert_eq!(fixture.bottom.leftovers(&fixture.medium).unwrap(), ["part-0-3"]);
    for name in ["part-0-03", "part-0-x", "part-1-3", "part-0-"] {
        fixture.medium.open(name, OpenMode::CreateNew).unwrap();
    }
    assert_eq!(fixture.bottom.leftovers(&fixture.medium).unwrap(), ["part-0-3"]);
    fixture.install(&merged);
    assert_eq!(fixture.bottom.leftovers(&fixture.medium).unwrap(), Vec::<String>::new());
}

#[test]
fn an_edit_whose_file_is_refused_changes_nothing() {
    let mut fixture = fixture_with_two_partitions();
    let before = fixture.bottom.snapshot();
    let merged = fixture.merge(0, 2, 4096);
    let sound = fixture.medium.contents("part-0-3");
    fixture.medium.flip_bit("part-0-3", 24);
    let edit = Edit { removed: merged.removed.clone(), added: merged.added.clone() };
    let error = fixture.bottom.install(&fixture.medium, &orders(), &edit).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(Arc::ptr_eq(&before, &fixture.bottom.snapshot()));
    let gap = Edit { removed: vec![1], added: Vec::<Facts>::new() };
    assert!(fixture.bottom.install(&fixture.medium, &orders(), &gap).is_err());
    fixture.compare_newest(&mut Cost::default());
    fixture.medium.replace("part-0-3", 0, &sound);
    fixture.install(&merged);
    fixture.compare_newest(&mut Cost::default());
    // And as recovery opens it.
    let version = fixture.bottom.snapshot().version().clone();
    fixture.bottom = Bottom::open(&fixture.medium, &fixture.shape, &orders(), version).unwrap();
    fixture.compare_newest(&mut Cost::default());
    assert!(fixture.bottom.snapshot().memory_bytes() > size_of::<Snapshot>());
}

#[test]
fn files_of_a_directory_hold_the_same_rows() {
    let directory = tempfile::tempdir().unwrap();
    for io in [IoChoice::Auto, IoChoice::Pread] {
        let medium = DirectoryMedium::open(directory.path(), io).unwrap();
        let shape = Shape { class: 0, page_bytes: 4096, row_bytes: 64, seed: 7 };
        let buffers = |bytes| Buffers::equal(4, bytes);
        let changes: Changed = (0..20_000)
            .map(|key| {
                let place = orders().place(1, 0, key).unwrap();
                (place, (key, Some(words(&shape, key, 1))))
            })
            .collect();
        let plan = MergePlan {
            shape,
            orders: Arc::new(orders()),
            range: PlaceRange::ALL,
            inputs: Vec::new(),
            changes: changes.len() as u64,
            first_number: 1,
            merge: 1,
            target_bytes: 1 << 20,
        };
        let open_reader =
            || PageReader::new(medium.queue(4, buffers(4096)).unwrap(), 4096, None, false);
        let queue = medium.queue(4, buffers(128 << 10)).unwrap();
        let mut merge = Merge::new(plan, List::new(&changes), open_reader(), queue).unwrap();
        while merge.step(&medium).unwrap() {}
        let merged = merge.finish();
        assert_eq!((merged.new, merged.added.len()), (20_000, 2));
        let version = Version::default().apply(&Edit { added: merged.added, removed: vec![] });
        let bottom = Bottom::open(&medium, &shape, &orders(), version.unwrap()).unwrap();
        let (snapshot, mut reader) = (bottom.snapshot(), open_reader());
        for (place, (_, words)) in changes.iter().step_by(97) {
            let pages: Vec<PageAddress> = snapshot.candidates(*place).collect();
            let mut found = None;
            let read = reader.read(snapshot.partitions(), &pages, &mut |at, page| {
                let row = snapshot.find(*place, at, page)?;
                found = found.take().or(row.map(<[f32]>::to_vec));
                Ok(())
            });
            read.unwrap();
            assert_eq!(&found, words);
        }
        for file in files_of(&medium, 0).unwrap() {
            medium.remove(&file.name).unwrap();
        }
    }
}
