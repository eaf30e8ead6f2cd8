//! Disk room that a merge takes, compared with the bound computed before it.

use super::file::Shape;
use super::merge::{Merge, MergePlan, Merged, merge_bytes_most};
use super::order::PlaceRange;
use super::page_writer::Room;
use super::testing::{
    List, Model, Random, SMALL, insert, open, orders, queue, reader, words, write,
};
use crate::error::{ErrorKind, Result, bail};
use crate::io::{Medium, SimMedium};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A number of bytes, of which nothing lies on the device.
struct Counted(Mutex<u64>);

impl Room for Counted {
    fn draw(&self, bytes: u64) -> Result<()> {
        let mut left = self.0.lock();
        let Some(rest) = left.checked_sub(bytes) else {
            bail!(Full, "{bytes} more bytes of {left}");
        };
        *left = rest;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// A merge, what it may take at most, and rows of its files at most.
struct Case {
    shape: Shape,
    old: Model,
    changes: BTreeMap<super::order::Place, (u64, Option<Vec<f32>>)>,
    target_bytes: u64,
}

impl Case {
    fn new(random: &mut Random) -> Self {
        let page_bytes = 512 << (3 * random.below(2));
        let row_bytes = 4 * (1 + random.below(40) as usize);
        let shape = Shape { page_bytes, row_bytes, filters: random.below(2) == 0, ..SMALL };
        // Keys side by side, far apart, or both: fences of the last take most bits.
        let spread = [0, 20, 44][random.below(3) as usize];
        let key = |at: u64| if at.is_multiple_of(3) { at } else { at << spread };
        let rows = random.below(4000);
        let tables = 1 + random.below(3) as u16;
        let mut old = Model::new();
        for at in 0..rows {
            insert(&mut old, &shape, random.below(tables.into()) as u16, 0, key(at), 5);
        }
        let mut changes = BTreeMap::new();
        for _ in 0..random.below(3000) {
            let (table, key) =
                (random.below(tables.into()) as u16, key(random.below(2 * rows + 9)));
            let place = orders().place(table, 0, key).unwrap();
            let newer = (random.below(9) > 0).then(|| words(&shape, key, 6));
            changes.insert(place, (key, newer));
        }
        let target_bytes = (page_bytes as u64) << random.below(9);
        Self { shape, old, changes, target_bytes }
    }

    /// The bound computed before the merge.
    fn most(&self) -> u64 {
        let rows = (self.old.len() + self.changes.len()) as u64;
        let layout = self.shape.layout(1).unwrap();
        merge_bytes_most(rows, 3, &layout, self.target_bytes, self.shape.filters)
    }

    /// Runs it in so much room. Returns what it drew and what its files take of the device.
    fn run(&self, room: u64) -> Result<(Merged, u64, u64)> {
        let medium = SimMedium::new(1);
        let facts = write(&medium, &self.shape, 1, 5, &self.old).unwrap();
        let plan = MergePlan {
            shape: self.shape,
            orders: Arc::new(orders()),
            range: PlaceRange::ALL,
            inputs: vec![open(&medium, &self.shape, &facts).unwrap()],
            changes: self.changes.len() as u64,
            first_number: 10,
            merge: 9,
            target_bytes: self.target_bytes,
            portion_bytes: 64 << 10,
        };
        let shared: Arc<dyn Medium> = Arc::new(medium.clone());
        let (reader, queue) = (reader(&medium, &self.shape), queue(&medium, &self.shape));
        let mut merge = Merge::new(shared, plan, List::new(&self.changes), reader, queue)?;
        let counted = Arc::new(Counted(Mutex::new(room)));
        merge.draw_from(counted.clone());
        let before = medium.taken_bytes();
        loop {
            let goes_on = merge.step();
            let (drawn, taken) = (room - *counted.0.lock(), medium.taken_bytes() - before);
            assert!(taken <= drawn, "{taken} bytes of the device, {drawn} drawn");
            match goes_on {
                Ok(true) => {}
                Ok(false) => return Ok((merge.finish(), drawn, taken)),
                Err(error) => {
                    merge.abandon().unwrap();
                    return Err(error);
                }
            }
        }
    }
}

#[test]
fn a_merge_takes_no_more_of_the_disk_than_is_said_before() {
    let mut random = Random(21);
    let (mut said, mut all, mut files) = (0, 0, 0);
    for round in 0..60 {
        let case = Case::new(&mut random);
        let most = case.most();
        let ran = case.run(most);
        let (merged, _, taken) = ran.unwrap_or_else(|error| panic!("round {round}: {error}"));
        (said, all, files) = (said + most, all + taken, files + merged.added.len());
    }
    assert!(files > 250, "{files} files");
    assert!(said < 2 * all, "{said} bytes are said of merges that take {all}");
}

#[test]
fn a_merge_that_needs_more_than_its_room_is_full() {
    let case = Case::new(&mut Random(3));
    let (_, drawn, _) = case.run(case.most()).unwrap();
    assert!(drawn > 4096);
    assert_eq!(case.run(drawn - 4096).unwrap_err().kind(), ErrorKind::Full);
    case.run(drawn).unwrap();
}
