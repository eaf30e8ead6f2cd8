//! A bottom over many merges beside a plain map, and the files that its snapshots need.

use super::file::{Facts, NamedFile, Shape, files_of};
use super::merge::{Merge, MergePlan, Merged};
use super::order::{Place, PlaceRange, TableOrder};
use super::snapshot::{Bottom, Looked, Retired, Snapshot};
use super::testing::{List, Model, PORTION_BYTES, Random, Row, orders, queue, reader, words};
use super::version::{Edit, Version};
use crate::error::ErrorKind;
use crate::io::{Buffers, DirectoryMedium, IoChoice, Medium, OpenMode, SimMedium};
use crate::storage::{PageAddress, PageReader, PageSource};
use std::collections::BTreeMap;
use std::sync::Arc;

type Changed = BTreeMap<Place, (u64, Option<Vec<f32>>)>;

/// A bottom with the tables of the tests.
fn open(medium: &SimMedium, shape: &Shape, version: Version, retired: Vec<Retired>) -> Bottom {
    Bottom::open(Arc::new(medium.clone()), shape, orders(), version, retired).unwrap()
}

struct Fixture {
    medium: SimMedium,
    shape: Shape,
    bottom: Bottom,
    reader: PageReader,
    model: Model,
    /// Changes that no merge has taken yet.
    top: Changed,
    next_merge: u64,
    /// The epoch of the next edit, and the ticket of the next read.
    epoch: u64,
    next_ticket: u64,
}

/// The cost of look-ups.
#[derive(Debug, Default)]
struct Cost {
    keys: usize,
    pages: usize,
}

impl Fixture {
    fn new(shape: Shape) -> Self {
        let medium = SimMedium::new(1);
        let bottom = open(&medium, &shape, Version::default(), Vec::new());
        let reader = reader(&medium, &shape);
        let (model, top) = (Model::new(), Changed::new());
        Self { medium, shape, bottom, reader, model, top, next_merge: 1, epoch: 1, next_ticket: 1 }
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
        let inputs: Vec<_> = self.bottom.snapshot().partitions()[from..to]
            .iter()
            .map(|open| Arc::clone(&open.partition))
            .collect();
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
            first_number: self.bottom.next_number().unwrap(),
            merge: self.next_merge,
            target_bytes,
            portion_bytes: PORTION_BYTES,
        };
        let (reader, queue) = (reader(&self.medium, &self.shape), queue(&self.medium, &self.shape));
        let mut merge =
            Merge::new(Arc::new(self.medium.clone()), plan, List::new(&changes), reader, queue)
                .unwrap();
        while merge.step().unwrap() {}
        let merged = merge.finish();
        let total = merged.total();
        assert_eq!(total.kept + total.replaced + total.deleted, old);
        let changed = total.replaced + total.new + total.deleted + total.vain;
        assert_eq!(changed, changes.len() as u64);
        let rows: u64 = merged.added.iter().map(|facts| facts.rows).sum();
        assert_eq!(rows, total.kept + total.replaced + total.new);
        self.next_merge += 1;
        merged
    }

    /// Puts what a merge has written in the place of the old, by way of the journal.
    fn install(&mut self, merged: &Merged) {
        let edit = Edit { removed: merged.removed.clone(), added: merged.added.clone() };
        let mut bytes = Vec::new();
        edit.encode(&mut bytes);
        let edit = Edit::decode(&bytes).unwrap();
        self.bottom.install(&edit, self.epoch, self.next_ticket).unwrap();
        self.epoch += 1;
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
                let read = self.reader.read(&**self.bottom.pages(), &pages, &mut |at, page| {
                    match snapshot.find(place, at, page)? {
                        Looked::Row(row) => {
                            let before = found.replace(row.to_vec());
                            assert!(before.is_none(), "{place:?} is there twice");
                        }
                        Looked::Absent => {}
                        Looked::Left => panic!("{place:?} was looked up in this snapshot"),
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

    /// The bottom says what its files take, whole blocks each.
    fn assert_disk_bytes(&self) {
        let files = files_of(&self.medium, self.shape.class).unwrap();
        let length = |file: &NamedFile| self.medium.contents(&file.name).len() as u64;
        let bytes = files.iter().map(|file| length(file).next_multiple_of(4096));
        assert_eq!(self.bottom.disk_bytes(), bytes.sum::<u64>());
    }

    fn compare_newest(&mut self, cost: &mut Cost) {
        let (snapshot, model, top) =
            (Arc::clone(self.bottom.snapshot()), self.model.clone(), self.top.clone());
        self.compare(&snapshot, &model, &top, cost);
    }
}

/// The files that a reader has kept since its ticket.
struct Held {
    ticket: u64,
    snapshot: Arc<Snapshot>,
    model: Model,
    top: Changed,
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
        let shape =
            Shape { class: 0, page_bytes, row_bytes: row_words * 4, seed: 7, filters: false };
        let mut fixture = Fixture::new(shape);
        let mut random = Random(seed);
        let mut cost = Cost::default();
        let mut held: Vec<Held> = Vec::new();
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
                held.push(Held {
                    ticket: fixture.next_ticket,
                    snapshot: Arc::clone(fixture.bottom.snapshot()),
                    model: fixture.model.clone(),
                    top: fixture.top.clone(),
                });
                fixture.next_ticket += 1;
            }
            // Only the last three commits are kept.
            let oldest = fixture.epoch.saturating_sub(3);
            fixture.bottom.drop_commits_before(oldest, oldest);
            fixture.bottom.remove_files().unwrap();
            fixture.assert_disk_bytes();
        }
        // Snapshots that readers kept read as before, though most of the files have no name any
        // more.
        while !held.is_empty() {
            let read = held.swap_remove(random.below(held.len() as u64) as usize);
            fixture.compare(&read.snapshot, &read.model, &read.top, &mut cost);
            fixture.bottom.reads_ended(held.iter().map(|read| read.ticket).min());
        }
        let mean = cost.pages as f64 / cost.keys as f64;
        assert!(cost.keys > 10_000 && mean <= 1.02, "{mean} pages for each of {} keys", cost.keys);
        // With the last commits from before, their files go.
        fixture.bottom.drop_commits_before(fixture.epoch, fixture.epoch);
        fixture.bottom.remove_files().unwrap();
        fixture.assert_disk_bytes();
        // And all numbers but those in use are free.
        let numbers = fixture.bottom.snapshot().partitions().iter().map(|open| open.number);
        let numbers: Vec<u16> = numbers.collect();
        for number in 0..200 {
            let there = fixture.bottom.pages().get(number).is_some();
            assert_eq!(there, numbers.contains(&number), "number {number}");
        }
        let partitions = fixture.bottom.snapshot().version().partitions().len();
        assert_eq!(files_of(&fixture.medium, 0).unwrap().len(), partitions);
    }
}

fn fixture_with_two_partitions() -> Fixture {
    let shape = Shape { class: 0, page_bytes: 512, row_bytes: 64, seed: 7, filters: false };
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
fn a_file_stays_until_no_commit_from_before_its_edit_is_kept() {
    let mut fixture = fixture_with_two_partitions();
    // Epoch 1 has 1 and 2, epoch 2 has 3 for 1, epoch 3 has 4 for both.
    let bytes = |fixture: &Fixture, number: u32| {
        let length = fixture.medium.contents(&format!("part-0-{number}")).len() as u64;
        length.next_multiple_of(4096)
    };
    let merged = fixture.merge(0, 1, 512);
    fixture.install(&merged);
    let merged = fixture.merge(0, 2, 4096);
    fixture.install(&merged);
    let each: Vec<u64> = (1..=4).map(|number| bytes(&fixture, number)).collect();
    let retired = |number, epoch| Retired { number, bytes: each[number as usize - 1], epoch };
    assert_eq!(fixture.bottom.retired(), [retired(1, 2), retired(3, 3), retired(2, 3)]);
    let bottom = &mut fixture.bottom;
    // 1 is of commit 1 alone, 2 of 1 and 2, 3 of 2.
    assert_eq!(bottom.retired_bytes_between(1, 2), each[0]);
    assert_eq!(bottom.retired_bytes_between(1, 3), each[0] + each[1] + each[2]);
    assert_eq!(bottom.retired_bytes_between(2, 3), each[1] + each[2]);
    assert_eq!(bottom.retired_bytes_between(3, 9), 0);
    assert_eq!(bottom.disk_bytes(), each.iter().sum::<u64>());
    // The bytes that later commits release do not include the file that readers of commit 1 keep.
    assert_eq!(bottom.coming_bytes(), each[..3].iter().sum::<u64>());
    bottom.drop_commits_before(1, 2);
    assert_eq!(bottom.coming_bytes(), each[1] + each[2]);
    assert_eq!(bottom.remove_files().unwrap(), 0);
    bottom.drop_commits_before(2, 2);
    // Files of reads under way stay, too.
    assert_eq!(bottom.remove_files().unwrap(), 0);
    assert_eq!(bottom.coming_bytes(), each[1] + each[2]);
    bottom.reads_ended(None);
    // A file that waits to be removed still counts.
    assert_eq!(bottom.disk_bytes(), each.iter().sum::<u64>());
    assert_eq!(bottom.remove_leftovers(&[]).unwrap(), 0);
    assert_eq!(bottom.remove_files().unwrap(), each[0]);
    assert_eq!(bottom.disk_bytes(), each[1..].iter().sum::<u64>());
    // Somebody else has removed one of the next two.
    fixture.medium.remove("part-0-3").unwrap();
    bottom.drop_commits_before(3, 3);
    assert_eq!(bottom.remove_files().unwrap(), each[1] + each[2]);
    assert_eq!(bottom.remove_files().unwrap(), 0);
    assert_eq!((bottom.disk_bytes(), bottom.retired()), (each[3], &[][..]));
    assert_eq!(fixture.medium.list("part-").unwrap(), ["part-0-4"]);
    // Numbers of files that are no more are not given again.
    assert_eq!(fixture.bottom.next_number().unwrap(), 5);
}

#[test]
fn an_error_while_files_are_removed_leaves_the_rest_to_the_next_call() {
    let mut fixture = fixture_with_two_partitions();
    let merged = fixture.merge(0, 2, 4096);
    fixture.install(&merged);
    let version = fixture.bottom.snapshot().version().clone();
    let retired = fixture.bottom.retired().to_vec();
    assert_eq!(retired.len(), 2);
    // The same files in a directory, where a folder in the place of one cannot be removed.
    let directory = tempfile::tempdir().unwrap();
    let path = |number| directory.path().join(format!("part-0-{number}"));
    std::fs::write(path(3), fixture.medium.contents("part-0-3")).unwrap();
    std::fs::write(path(2), b"old").unwrap();
    std::fs::create_dir(path(1)).unwrap();
    let medium = Arc::new(DirectoryMedium::open(directory.path(), IoChoice::Pread).unwrap());
    let (shape, waiting) = (fixture.shape, retired.clone());
    let mut bottom = Bottom::open(medium, &shape, orders(), version, waiting).unwrap();
    bottom.drop_commits_before(fixture.epoch, fixture.epoch);
    let before = bottom.disk_bytes();
    for _ in 0..2 {
        bottom.remove_files().unwrap_err();
        assert_eq!(bottom.disk_bytes(), before - retired[1].bytes);
    }
    assert!(!path(2).exists());
    std::fs::remove_dir(path(1)).unwrap();
    std::fs::write(path(1), b"old").unwrap();
    assert_eq!(bottom.remove_files().unwrap(), retired[0].bytes);
    assert!(!path(1).exists() && path(3).exists());
}

#[test]
fn files_that_no_commit_has_are_left_over() {
    let mut fixture = fixture_with_two_partitions();
    let merged = fixture.merge(0, 2, 4096);
    // Numbers are given again until a version has them: there is one merge at a time.
    assert_eq!(fixture.bottom.next_number().unwrap(), 3);
    for name in ["part-0-03", "part-0-x", "part-1-3", "part-0-", "part-0-9", "part-0-10"] {
        fixture.medium.open(name, OpenMode::CreateNew).unwrap();
    }
    // The files are looked at again only when the bottom is opened again.
    assert_eq!(fixture.bottom.next_number().unwrap(), 3);
    let version = fixture.bottom.snapshot().version().clone();
    let mut bottom = open(&fixture.medium, &fixture.shape, version, Vec::new());
    assert_eq!(bottom.next_number().unwrap(), 11);
    // 9 and 10 are of a merge under way.
    assert_eq!(fixture.bottom.remove_leftovers(&[9..=10, 3..=3]).unwrap(), 0);
    fixture.install(&merged);
    assert_eq!(fixture.bottom.remove_leftovers(&[9..=9]).unwrap(), 1);
    // 1 and 2 are still of a kept commit, and so after another opening.
    let version = fixture.bottom.snapshot().version().clone();
    let retired = fixture.bottom.retired().to_vec();
    assert_eq!(retired.len(), 2);
    fixture.bottom = open(&fixture.medium, &fixture.shape, version.clone(), retired);
    assert_eq!(fixture.bottom.remove_leftovers(&[]).unwrap(), 1);
    let mut left = fixture.medium.list("part-").unwrap();
    left.sort();
    let expected =
        ["part-0-", "part-0-03", "part-0-1", "part-0-2", "part-0-3", "part-0-x", "part-1-3"];
    assert_eq!(left, expected);
    // Nobody knows them any more, where no commit from before is kept.
    fixture.bottom = open(&fixture.medium, &fixture.shape, version, Vec::new());
    assert_eq!(fixture.bottom.remove_leftovers(&[]).unwrap(), 2);
    fixture.compare_newest(&mut Cost::default());
    fixture.medium.open(&format!("part-0-{}", u32::MAX), OpenMode::CreateNew).unwrap();
    fixture.bottom.remove_leftovers(&[u32::MAX..=u32::MAX]).unwrap();
    assert_eq!(fixture.bottom.next_number().unwrap_err().kind(), ErrorKind::Full);
}

#[test]
fn a_number_that_was_given_again_is_not_retired() {
    let mut fixture = fixture_with_two_partitions();
    let version = fixture.bottom.snapshot().version().clone();
    // An earlier file of number 2 was removed, as the journal has it.
    let retired = vec![
        Retired { number: 2, bytes: 512, epoch: 1 },
        Retired { number: 7, bytes: 1024, epoch: 1 },
    ];
    fixture.bottom = open(&fixture.medium, &fixture.shape, version, retired);
    assert_eq!(fixture.bottom.retired(), [Retired { number: 7, bytes: 1024, epoch: 1 }]);
    assert_eq!(fixture.bottom.next_number().unwrap(), 8);
    fixture.bottom.drop_commits_before(9, 9);
    assert_eq!(fixture.bottom.remove_files().unwrap(), 1024);
    fixture.compare_newest(&mut Cost::default());
    // A new file of a number whose old file is not removed yet would go with that.
    let merged = fixture.merge(0, 2, 4096);
    fixture.install(&merged);
    let again = fixture.bottom.retired()[0].number;
    let newest = fixture.bottom.snapshot().version().partitions()[0];
    let facts = Facts { number: again, ..newest };
    let edit = Edit { removed: vec![newest.number], added: vec![facts] };
    let error = fixture.bottom.install(&edit, 9, 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
    fixture.compare_newest(&mut Cost::default());
}

#[test]
fn a_page_of_a_partition_that_has_left_is_told() {
    let mut fixture = fixture_with_two_partitions();
    let place = orders().place(1, 1, 5).unwrap();
    let read_by = fixture.bottom.snapshot().candidates(place).next().unwrap();
    let order = fixture.bottom.snapshot().order_of(place).unwrap();
    let at = fixture.bottom.snapshot().version().find(place).unwrap();
    assert_eq!(order, (1 << 31) + at as u32 + 1);
    let absent = Place { position: place.position ^ 1, table: 9, rank: 0 };
    assert_eq!(fixture.bottom.snapshot().order_of(absent), None);
    let mut words = vec![0.0f32; 128];
    let page: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let file = fixture.bottom.pages().file(read_by.file);
    file.read_at(page, u64::from(read_by.page) * 512).unwrap();
    let before = Arc::clone(fixture.bottom.snapshot());
    assert!(matches!(before.find(place, read_by, page).unwrap(), Looked::Row(_)));
    let other = Place { position: place.position ^ 1, ..place };
    assert_eq!(before.find(other, read_by, page).unwrap(), Looked::Absent);
    // A read began, with ticket 1, before a merge of all partitions.
    fixture.next_ticket = 2;
    let merged = fixture.merge(0, 2, 512);
    fixture.install(&merged);
    let now = Arc::clone(fixture.bottom.snapshot());
    assert_eq!(now.find(place, read_by, page).unwrap(), Looked::Left);
    let numbers: Vec<u16> = now.partitions().iter().map(|open| open.number).collect();
    assert_eq!(numbers, [3, 4]);
    fixture.bottom.pages().verify(read_by, page).unwrap();
    fixture.bottom.reads_ended(Some(1));
    fixture.bottom.pages().verify(read_by, page).unwrap();
    // A table that comes later has its order from then on.
    fixture.bottom.add_table(5, TableOrder::ByKey);
    assert_eq!(fixture.bottom.orders().of(5), Some(TableOrder::ByKey));
    fixture.bottom.reads_ended(Some(2));
    let merged = fixture.merge(0, 2, 512);
    fixture.install(&merged);
    let numbers: Vec<u16> =
        fixture.bottom.snapshot().partitions().iter().map(|open| open.number).collect();
    assert_eq!(numbers, [1, 2]);
    fixture.compare_newest(&mut Cost::default());
}

#[test]
fn an_edit_whose_file_is_refused_changes_nothing() {
    let mut fixture = fixture_with_two_partitions();
    let before = Arc::clone(fixture.bottom.snapshot());
    let memory = fixture.bottom.memory_bytes();
    let merged = fixture.merge(0, 2, 4096);
    let sound = fixture.medium.contents("part-0-3");
    fixture.medium.flip_bit("part-0-3", 24);
    let edit = Edit { removed: merged.removed.clone(), added: merged.added.clone() };
    let error = fixture.bottom.install(&edit, 2, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(Arc::ptr_eq(&before, fixture.bottom.snapshot()));
    assert_eq!(fixture.bottom.memory_bytes(), memory);
    assert!(fixture.bottom.retired().is_empty());
    let gap = Edit { removed: vec![1], added: Vec::<Facts>::new() };
    assert!(fixture.bottom.install(&gap, 2, 1).is_err());
    fixture.compare_newest(&mut Cost::default());
    fixture.medium.replace("part-0-3", 0, &sound);
    fixture.install(&merged);
    fixture.compare_newest(&mut Cost::default());
    // And as recovery opens it.
    let version = fixture.bottom.snapshot().version().clone();
    fixture.bottom = open(&fixture.medium, &fixture.shape, version, Vec::new());
    fixture.compare_newest(&mut Cost::default());
    assert!(fixture.bottom.snapshot().memory_bytes() > size_of::<Snapshot>());
}

#[test]
fn files_of_a_directory_hold_the_same_rows() {
    let directory = tempfile::tempdir().unwrap();
    for io in [IoChoice::Auto, IoChoice::Pread] {
        let medium = Arc::new(DirectoryMedium::open(directory.path(), io).unwrap());
        let shape = Shape { class: 0, page_bytes: 4096, row_bytes: 64, seed: 7, filters: false };
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
            portion_bytes: PORTION_BYTES,
        };
        let open_reader =
            || PageReader::new(medium.queue(4, buffers(4096)).unwrap(), 4096, None, false);
        let queue = medium.queue(4, buffers(128 << 10)).unwrap();
        let changed = List::new(&changes);
        let mut merge = Merge::new(medium.clone(), plan, changed, open_reader(), queue).unwrap();
        while merge.step().unwrap() {}
        let merged = merge.finish();
        // The last one is empty, for rows that would follow.
        assert_eq!((merged.total().new, merged.added.len()), (20_000, 3));
        let version = Version::default().apply(&Edit { added: merged.added, removed: vec![] });
        let version = version.unwrap();
        let bottom = Bottom::open(medium.clone(), &shape, orders(), version, Vec::new()).unwrap();
        let (snapshot, mut reader) = (bottom.snapshot(), open_reader());
        for (place, (_, words)) in changes.iter().step_by(97) {
            let pages: Vec<PageAddress> = snapshot.candidates(*place).collect();
            let mut found = None;
            let read = reader.read(&**bottom.pages(), &pages, &mut |at, page| {
                if let Looked::Row(row) = snapshot.find(*place, at, page)? {
                    found = Some(row.to_vec());
                }
                Ok(())
            });
            read.unwrap();
            assert_eq!(&found, words);
        }
        for file in files_of(&*medium, 0).unwrap() {
            medium.remove(&file.name).unwrap();
        }
    }
}
