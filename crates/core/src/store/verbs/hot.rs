//! Hot rows made fast: those that callers have seen asked for most.

use crate::config::TableId;
use crate::distinct::Distinct;
use crate::error::Result;
use crate::store::Store;
use crate::store::verbs::direct::region_of;
use crate::store::verbs::get_put::check_keys;
use crate::store::verbs::rows::{Effect, Keys, RowOp, RowView};

/// Keys that are looked up and read at once: other verbs get their turn in between.
const PORTION: usize = 1024;
/// Keys that move home at once, each of which may wait for a disk several times.
const MOVED_AT_ONCE: usize = 256;

impl Store {
    /// Brings hot rows to where they are read soonest, the first ones first, which should be the
    /// hottest. It changes no result, and counts as no hits, misses or uses.
    ///
    /// Stored rows come into memory, into half of what the cache holds at most: what is hot beyond
    /// that stays where it is. Returns how many came; those that were there already, and those that
    /// nobody has written, are not among them. Of a table on persistent memory keys move to the
    /// bucket in which look-ups begin, others out of their way, durably; returned is how many are
    /// there now, none while a scan is under way.
    ///
    /// *Errors*: as `get`, and of a table on persistent memory as `put`. *Blocking*: until they
    /// are there; verbs of other threads go on meanwhile. *Source*: the hot sets of PetPS.
    pub fn promote(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        self.inner.check_call()?;
        let is_direct = {
            let engine = self.inner.planned_engine()?;
            let found = self.inner.table_of(&engine, table)?;
            check_keys(found, keys)?;
            found.record.spec.storage.is_direct()
        };
        if is_direct {
            self.inner.check_writable()?;
            let mut distinct = Distinct::new();
            let portions = distinct.run(keys).0.chunks(MOVED_AT_ONCE);
            return portions.map(|keys| self.promote_direct(table, keys)).sum();
        }
        let (mut came, mut left, mut room) = (0, keys, usize::MAX);
        while !left.is_empty() && room > 0 {
            let engine = self.inner.planned_engine()?;
            let _guard = self.inner.poison_on_panic();
            let table = self.inner.table_of(&engine, table)?;
            let class = &engine.classes[table.class];
            let cache = class.cache();
            room = room.min((cache.row_capacity() / 2) as usize);
            let (portion, rest) = left.split_at(left.len().min(PORTION).min(room));
            (left, room) = (rest, room - portion.len());
            let mut missing = Vec::new();
            cache.ahead(
                portion.len(),
                |i| table.locate(cache, portion[i]),
                |i, at| {
                    if cache.peek(at, table.id(), portion[i], |_| ()).is_none() {
                        missing.push((0, i as u32));
                    }
                },
            );
            let mut op = ResidentOp { rows: 0 };
            let batch = [Keys { table, keys: portion }];
            let read = self.inner.visit_ahead(&engine, class, &batch, missing, &mut op);
            self.inner.as_committed(read)?;
            came += op.rows;
        }
        Ok(came)
    }

    fn promote_direct(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        let engine = self.inner.planned_engine()?;
        region_of(self.inner.table_of(&engine, table)?)?.promote(keys)
    }
}

/// Makes rows resident.
struct ResidentOp {
    rows: u64,
}

impl RowOp for ResidentOp {
    const AHEAD: bool = true;

    fn visit(&mut self, _batch: usize, _position: usize, _row: RowView<'_>) -> Effect {
        self.rows += 1;
        Effect::Read
    }
}
