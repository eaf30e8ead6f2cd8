//! Hot rows made fast: those that callers have seen asked for most.

use crate::config::TableId;
use crate::error::Result;
use crate::store::Store;
use crate::store::verbs::get_put::check_keys;
use crate::store::verbs::rows::{Effect, Keys, RowOp, RowView};

/// Keys that are looked up and read at once: other verbs get their turn in between.
const PORTION: usize = 1024;

impl Store {
    /// Brings the stored rows of these keys into memory, the first ones first, which should be the
    /// hottest. They change no result, and count as no hits, misses or uses. At most half of what
    /// the cache holds is taken: what is hot beyond that stays where it is. Returns how many rows
    /// came; those that were there already, and those that nobody has written, are not among them.
    ///
    /// *Errors*: as `get`. *Blocking*: until they are there; verbs of other threads go on
    /// meanwhile. *Source*: the hot sets of PetPS.
    pub fn make_resident(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        self.inner.check_call()?;
        check_keys(self.inner.table_of(&*self.inner.planned_engine()?, table)?, keys)?;
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
