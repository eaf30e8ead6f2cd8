//! Freezing: all rows of a class are written anew, in the order of a placement, with replicas.
//!
//! The rows come in any order, from the storage itself or from elsewhere. They are put in the order
//! of their places, then written as one partition over all places. Installed as a merge is, it
//! takes the place of all partitions, and what it took out of the top is dropped there.

mod ranks;
mod sorter;

use super::IN_BOTTOM;
use super::Lsm;
use super::bottom::{Facts, FrozenWriter, Merged, Orders, PlaceRange, Shape, Taken};
use super::newest::TOMBSTONE;
use super::unit::{GivenOut, MergeDone, UnreadPages};
use crate::error::{ErrorKind, Result, bail};
use crate::io::{Buffers, Medium};
use crate::storage::{Freeze, FreezePlan, StorageFreeze, StorageRead, SweptRow, Unit};
use ranks::{REPLICAS, Ranks};
use sorter::{Placed, Sorted, Sorter};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Buffers of pages that are written at once.
const WRITES: usize = 4;
const WRITE_BYTES: usize = 256 << 10;
/// Rows that a step writes, about.
const ROWS_PER_STEP: usize = 16_384;

/// The progress of a freeze.
enum Stage {
    /// Rows come.
    Taking,
    Writing {
        writer: Box<FrozenWriter>,
        bucket: Option<(Sorted, usize)>,
        /// The page of the last row, and whether replicas have begun.
        page: Option<u64>,
        homes_ended: bool,
    },
    Done(Facts),
    Failed,
}

/// A freeze under way.
pub(super) struct FreezeUnit {
    medium: Arc<dyn Medium>,
    shape: Shape,
    orders: Arc<Orders>,
    number: u32,
    merge: u64,
    candidates_max: usize,
    /// The partitions that it replaces.
    removed: Vec<u32>,
    ranks: Ranks,
    sorter: Option<Sorter>,
    taken: Vec<Taken>,
    /// Rows that came.
    rows: u64,
    stage: Stage,
    busy: Duration,
}

/// The name of the file of rows that wait to be put in order. It lies where partitions do, and has
/// no number.
fn sorter_name(class: u16) -> String {
    format!("part-{class}-freeze")
}

impl Lsm {
    /// Removes the file of rows that a freeze which was cut off has left, if there is one.
    pub(super) fn remove_unsorted(&self) -> Result<()> {
        match self.medium.remove(&sorter_name(self.facts.class)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

impl StorageFreeze for Lsm {
    fn begin_freeze(&mut self, plan: FreezePlan) -> Result<Box<dyn Freeze>> {
        if self.merges_into_bottom() {
            bail!(Misuse, "rows of an lsm are merged, not frozen; freeze into a store of its own");
        }
        if self.upkeep.given_out.is_some() || self.upkeep.taken_ticket.is_some() {
            bail!(Misuse, "a freeze of row class {} is under way", self.facts.class);
        }
        let ranks = Ranks::new(plan.placement, self.top.layout().rows_per_page)?;
        self.tidy()?;
        let tombstones = self.tombstones.in_range(PlaceRange::ALL);
        let orders = Arc::clone(self.bottom.orders());
        let taken = tombstones.filter_map(|place| {
            let order = orders.of(place.table)?;
            let key = order.key(place.position);
            Some(Taken { table: place.table, key, tag: TOMBSTONE })
        });
        let taken = taken.collect();
        let version = self.bottom.snapshot().version();
        let old_bytes = version.disk_bytes();
        let removed = version.partitions().iter().map(|facts| facts.number).collect();
        let merge = self.next_merge();
        let number = self.bottom.next_number()?;
        let name = sorter_name(self.facts.class);
        let row_words = self.facts.row_bytes / 4;
        let sorter = Sorter::new(Arc::clone(&self.medium), name, row_words, plan.memory);
        let unit = FreezeUnit {
            medium: Arc::clone(&self.medium),
            shape: Shape::of(&self.facts),
            orders,
            number,
            merge,
            candidates_max: plan.candidates_max,
            removed,
            ranks,
            sorter: Some(sorter),
            taken,
            rows: 0,
            stage: Stage::Taking,
            busy: Duration::ZERO,
        };
        self.count_top();
        self.upkeep.given_out = Some(GivenOut {
            range: PlaceRange::ALL,
            bytes: 0,
            old_bytes,
            memory_bytes: 0,
            ticket: self.begin_read(),
            read_below: 0,
            begun: Instant::now(),
        });
        Ok(Box::new(unit))
    }
}

impl FreezeUnit {
    /// The result, once `step` has reported that all is done.
    ///
    /// # Panics
    /// Before that.
    pub(super) fn finish(self) -> MergeDone {
        let Stage::Done(facts) = self.stage else { panic!("a freeze ends before it is done") };
        let merged = Merged {
            added: vec![facts],
            removed: self.removed,
            taken: self.taken,
            counts: BTreeMap::new(),
        };
        MergeDone { merged, busy: self.busy, read_above: 0, pages: UnreadPages::default() }
    }

    fn begin_writing(&mut self) -> Result<()> {
        let bytes = WRITE_BYTES.max(self.shape.page_bytes);
        let queue = self.medium.queue(WRITES, Buffers::equal(WRITES, bytes))?;
        let writer = FrozenWriter::create(
            &*self.medium,
            &self.shape,
            self.number,
            self.merge,
            self.candidates_max,
            queue,
        )?;
        self.stage = Stage::Writing {
            writer: Box::new(writer),
            bucket: None,
            page: None,
            homes_ended: false,
        };
        Ok(())
    }

    fn write_on(&mut self) -> Result<bool> {
        let Stage::Writing { writer, bucket, page, homes_ended } = &mut self.stage else {
            return Ok(false);
        };
        if bucket.is_none() {
            let next = match &mut self.sorter {
                Some(sorter) => sorter.next()?,
                None => None,
            };
            *bucket = next.map(|sorted| (sorted, 0));
        }
        let Some((sorted, done)) = bucket else {
            let Stage::Writing { mut writer, homes_ended, .. } =
                std::mem::replace(&mut self.stage, Stage::Failed)
            else {
                return Ok(false);
            };
            if !homes_ended {
                writer.end_homes()?;
            }
            self.stage = Stage::Done(writer.finish(&*self.medium)?.facts);
            if let Some(sorter) = self.sorter.take() {
                sorter.remove()?;
            }
            return Ok(false);
        };
        let mut written = 0;
        for row in sorted.rows().skip(*done).take(ROWS_PER_STEP) {
            if row.place >= REPLICAS && !*homes_ended {
                writer.end_homes()?;
                (*homes_ended, *page) = (true, None);
            }
            let of_row = self.ranks.page_of(row.place);
            if page.is_some() && of_row != *page {
                writer.end_page()?;
            }
            *page = of_row;
            writer.push(&self.orders, row.table, row.key, row.words)?;
            written += 1;
        }
        *done += written;
        if written < ROWS_PER_STEP {
            *bucket = None;
        }
        Ok(true)
    }
}

impl Freeze for FreezeUnit {
    fn push(&mut self, row: SweptRow<'_>, is_own: bool) -> Result<()> {
        let (Stage::Taking, Some(sorter)) = (&self.stage, &mut self.sorter) else {
            bail!(Misuse, "a row comes to a freeze that has begun to write");
        };
        let SweptRow { table, key, place, words } = row;
        if is_own && place < IN_BOTTOM {
            self.taken.push(Taken { table, key, tag: place });
        }
        let (home, replicas) = self.ranks.places(table, key);
        sorter.push(Placed { place: home, table, key, words })?;
        for at in replicas {
            sorter.push(Placed { place: REPLICAS + u64::from(*at), table, key, words })?;
        }
        self.rows += 1;
        Ok(())
    }

    fn placed(&self) -> u64 {
        self.rows - self.ranks.unplaced()
    }
}

impl Unit for FreezeUnit {
    fn step(&mut self) -> Result<bool> {
        let begun = Instant::now();
        let goes_on = match &self.stage {
            Stage::Taking => self.begin_writing().map(|()| true),
            Stage::Writing { .. } => self.write_on(),
            Stage::Done(_) => Ok(false),
            Stage::Failed => bail!(Poisoned, "a freeze continues after an error; abandon it"),
        };
        self.busy += begun.elapsed();
        goes_on
    }

    fn abandon(self: Box<Self>) -> Result<()> {
        let sorted = self.sorter.map_or(Ok(()), Sorter::remove);
        let written = match self.stage {
            Stage::Writing { writer, .. } => writer.abandon(&*self.medium),
            Stage::Done(facts) => {
                self.medium.remove(&super::bottom::file_name(self.shape.class, facts.number))
            }
            Stage::Taking | Stage::Failed => Ok(()),
        };
        sorted.and(written)
    }
}
