//! Numbers of open partitions beside a plain list of the reads that may still use them.

use super::file::Facts;
use super::pages::OpenPartitions;
use super::partition::Partition;
use super::testing::{Random, SMALL, open, small_model, write};
use crate::error::{ErrorKind, Result};
use crate::io::SimMedium;
use crate::storage::{PageAddress, PageSource};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

fn partitions(count: u32) -> Vec<Arc<Partition>> {
    let medium = SimMedium::new(1);
    let written = |number| {
        let facts: Facts = write(&medium, &SMALL, number, 5, &small_model(5)).unwrap();
        open(&medium, &SMALL, &facts).unwrap()
    };
    (1..=count).map(written).collect()
}

/// A partition that the model knows.
struct Known {
    partition: Arc<Partition>,
    /// Tickets that may read it once it has left: those that ran then.
    left: Option<BTreeSet<u64>>,
}

/// One more partition, and the number that it gets.
fn add(open: &OpenPartitions, partition: Arc<Partition>) -> Result<u16> {
    Ok(open.add_all(&[partition])?[0])
}

#[test]
fn a_number_is_given_again_only_when_every_read_from_before_has_ended() {
    let files = partitions(12);
    let (mut reused, mut protected) = (0, 0);
    for seed in 0..30 {
        let mut random = Random(seed);
        let open = OpenPartitions::new(512);
        let mut known: BTreeMap<u16, Known> = BTreeMap::new();
        let mut running: BTreeSet<u64> = BTreeSet::new();
        let mut ever: BTreeSet<u16> = BTreeSet::new();
        let mut next_ticket = 1;
        for _ in 0..300 {
            match random.below(5) {
                0 => {
                    running.insert(next_ticket);
                    next_ticket += 1;
                }
                1 => {
                    let at = random.below(running.len().max(1) as u64) as usize;
                    if let Some(ticket) = running.iter().nth(at).copied() {
                        running.remove(&ticket);
                        open.ended(running.first().copied());
                        // A number stays while a ticket from its time runs, and no longer.
                        known.retain(|_, known| {
                            let left = known.left.as_ref();
                            left.is_none_or(|left| !left.is_disjoint(&running))
                        });
                    }
                }
                2 => {
                    let there: Vec<u16> = known
                        .iter()
                        .filter(|(_, known)| known.left.is_none())
                        .map(|(number, _)| *number)
                        .collect();
                    let at = random.below(there.len().max(1) as u64) as usize;
                    if let Some(number) = there.get(at) {
                        open.leave(*number, next_ticket);
                        known.get_mut(number).unwrap().left = Some(running.clone());
                        if running.is_empty() {
                            open.ended(None);
                            known.remove(number);
                        } else {
                            protected += 1;
                        }
                    }
                }
                _ if known.len() < 10 => {
                    let partition = &files[random.below(files.len() as u64) as usize];
                    let number = add(&open, Arc::clone(partition)).unwrap();
                    // The smallest that nobody has.
                    let expected = (1..).find(|number| !known.contains_key(number)).unwrap();
                    assert_eq!(number, expected, "seed {seed}");
                    reused += usize::from(!ever.insert(number));
                    known.insert(number, Known { partition: Arc::clone(partition), left: None });
                }
                _ => {}
            }
            for number in 0..=12 {
                let found = open.get(number);
                let there = known.get(&number).filter(|known| known.left.is_none());
                assert_eq!(found.is_some(), there.is_some(), "seed {seed}, number {number}");
                if let (Some(found), Some(there)) = (found, there) {
                    assert!(Arc::ptr_eq(&found, &there.partition));
                }
                if let Some(known) = known.get(&number) {
                    assert!(Arc::ptr_eq(&open.file(number), known.partition.file()));
                }
            }
        }
    }
    assert!(reused > 100 && protected > 100, "{reused} reused, {protected} protected");
}

#[test]
fn a_partition_that_has_left_verifies_pages_until_its_reads_end() {
    let open = OpenPartitions::new(512);
    let files = partitions(2);
    assert_eq!(open.add_all(&files).unwrap(), [1, 2]);
    assert_eq!(open.page_bytes(), 512);
    let mut words = vec![0.0f32; 128];
    let page: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    open.file(1).read_at(page, 512).unwrap();
    let before = open.memory_bytes();
    // Ticket 6 runs; 7 is the next.
    open.leave(1, 7);
    assert_eq!(open.memory_bytes(), before + files[0].memory_bytes());
    open.ended(Some(6));
    assert!(open.get(1).is_none());
    open.verify(PageAddress { file: 1, page: 1 }, page).unwrap();
    // The page is none of the other partition's.
    let wrong = open.verify(PageAddress { file: 2, page: 1 }, page).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Corrupt);
    assert_eq!(add(&open, Arc::clone(&files[0])).unwrap(), 3);
    open.ended(Some(7));
    assert!(catch_unwind(AssertUnwindSafe(|| open.file(1))).is_err());
    assert_eq!(add(&open, Arc::clone(&files[0])).unwrap(), 1);
    for number in [0, 4] {
        assert!(catch_unwind(AssertUnwindSafe(|| open.file(number))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| open.leave(number, 8))).is_err());
    }
    open.leave(2, 8);
    assert!(catch_unwind(AssertUnwindSafe(|| open.leave(2, 8))).is_err());
}

#[test]
fn more_partitions_than_numbers_are_refused_whole() {
    let open = OpenPartitions::new(512);
    let file = partitions(1).remove(0);
    let most = OpenPartitions::COUNT_MAX;
    assert_eq!(most, 65_535);
    let numbers = open.add_all(&vec![Arc::clone(&file); most - 1]).unwrap();
    assert_eq!(numbers.last().copied(), Some(65_534));
    let error = open.add_all(&[Arc::clone(&file), Arc::clone(&file)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.message().contains("65535"), "{error}");
    // Nothing of it was taken: there is room for one.
    assert_eq!(add(&open, Arc::clone(&file)).unwrap(), 65_535);
    assert_eq!(add(&open, Arc::clone(&file)).unwrap_err().kind(), ErrorKind::Full);
    open.leave(9, 1);
    assert_eq!(add(&open, Arc::clone(&file)).unwrap_err().kind(), ErrorKind::Full);
    open.ended(None);
    assert_eq!(add(&open, file).unwrap(), 9);
}
