//! The verbs: get, put, modify, delete, contains. (`update.rs` has update, `window` look-ahead.)
//!
//! Each one checks its whole input before it changes a row, reserves the disk that the change may
//! need, and then visits the rows.

use crate::config::{GetBatch, NonFinite, PutBatch, TableId, UpdateReport, ValuesOut};
use crate::distinct::Distinct;
use crate::error::{Result, bail};
use crate::metrics::Timed;
use crate::row::{Dtype, RowLayout};
use crate::store::engine::{Engine, Table};
use crate::store::verbs::direct::{cached_of, region_of};
use crate::store::verbs::rows::{Effect, Keys, RowOp, RowView};
use crate::store::{Inner, Store};
use parking_lot::RwLockWriteGuard;
use std::sync::atomic::Ordering;

/// A delete looks this often whether its deltas are enough for a record of the journal: a plan of
/// the budget has memory for so many more.
const KEYS_PER_LOOK_AT_DELTAS: usize = 8;

impl Store {
    /// Fills each batch with the rows of its keys, in request order; duplicates are allowed.
    ///
    /// A key that was never written yields its initial row, and nothing is stored.
    ///
    /// *Errors*: `Misuse` for wrong shapes, `KeyRange` for an id outside a dense table, `Corrupt`
    /// and `Io` from reading, `CommitGone` of a reader without a hold. *Blocking*: waits for page
    /// reads.
    pub fn get(&self, batches: &mut [GetBatch<'_>]) -> Result<()> {
        self.inner.check_call()?;
        self.inner.begin_awaited(batches.iter().map(|batch| (batch.table, batch.keys)));
        let _timed = Timed::new(&self.inner.metrics.verb_ns);
        let engine = self.inner.planned_engine()?;
        for batch in batches.iter() {
            let table = self.inner.table_of(&engine, batch.table)?;
            let (dim, state) = (table.layout.embedding_dim(), table.layout.state_words());
            check_len("values", table, batch.values.len(), batch.keys.len(), dim)?;
            let dtype = table.layout.dtype();
            if !dtype.is_half() && matches!(batch.values, ValuesOut::Bits(_)) {
                let (name, dtype) = (&table.record.spec.name, dtype.name());
                bail!(Misuse, "table '{name}' is {dtype}, expected one of float16 or bfloat16");
            }
            if let Some(out) = &batch.state {
                check_len("state", table, out.len(), batch.keys.len(), state)?;
            }
            check_keys(table, batch.keys)?;
        }
        let (mut keys, mut op) = (Vec::new(), GetOp { outputs: Vec::new() });
        for batch in batches.iter_mut() {
            let table = self.inner.table_of(&engine, batch.table)?;
            keys.push(Keys { table, keys: batch.keys });
            let values = batch.values.reborrow();
            op.outputs.push((table.layout, values, batch.state.as_deref_mut()));
        }
        self.inner.as_committed(self.inner.visit_rows(&engine, &keys, &mut op))
    }

    /// Stores rows. Of equal keys in a batch the last one wins. The state of an existing row stays
    /// unless `state` or `reset_state` says otherwise; a new row gets initial state.
    ///
    /// *Errors*: as `get`, and `NonFinite`, `Full`, `Budget`, `Poisoned`; the first four before
    /// any row changed. *Durability*: with the next commit.
    pub fn put(&self, batches: &[PutBatch<'_>]) -> Result<UpdateReport> {
        let _timed = Timed::new(&self.inner.metrics.verb_ns);
        let engine = self.inner.writable_engine()?;
        let mut report = UpdateReport::default();
        let mut op = PutOp { sources: Vec::new(), blind: true };
        let mut chosen: Vec<Vec<u64>> = Vec::new();
        let merging = Timed::new(&self.inner.metrics.merge_ns);
        for batch in batches {
            let table = self.inner.table_of(&engine, batch.table)?;
            let (dim, words) = (table.layout.embedding_dim(), table.layout.state_words());
            check_len("values", table, batch.values.len(), batch.keys.len(), dim)?;
            if let Some(state) = batch.state {
                check_len("state", table, state.len(), batch.keys.len(), words)?;
            }
            check_keys(table, batch.keys)?;
            let (mut keys, mut last) = last_of_each(batch.keys);
            let bad = |i: u32| {
                let values = &batch.values[i as usize * dim..][..dim];
                let state = batch.state.map(|state| &state[i as usize * words..][..words]);
                !table.record.spec.dtype.all_fit(values) || state.is_some_and(|s| !all_finite(s))
            };
            let before = keys.len();
            self.inner.handle_non_finite(
                batch.non_finite,
                Input::Values,
                table,
                &mut keys,
                &mut last,
                bad,
            )?;
            report.skipped += (before - keys.len()) as u64;
            op.blind &= words == 0 || batch.reset_state || batch.state.is_some();
            op.sources.push(PutSource {
                table,
                last,
                values: batch.values,
                state: batch.state,
                reset: batch.reset_state,
            });
            chosen.push(keys);
        }
        drop(merging);
        let keys: Vec<Keys<'_>> =
            op.sources.iter().zip(&chosen).map(|(s, keys)| Keys { table: s.table, keys }).collect();
        report.rows = self.inner.change(&engine, &keys, &mut op)?;
        Ok(report)
    }

    /// Hands the rows of `keys` to `f` as `(distinct keys, values, state)` and stores what it
    /// leaves there (MLKV's Rmw in full). Equal keys are handed over once, in first-occurrence
    /// order. Nothing else runs meanwhile: calls of the store by `f` are refused as `Misuse`, those
    /// of other threads wait.
    ///
    /// *Errors*: as `put`, and whatever `f` returns, which leaves every row as it was.
    #[expect(clippy::type_complexity, reason = "what the function gets is read here, in full")]
    pub fn modify(
        &self,
        table: TableId,
        keys: &[u64],
        f: &mut dyn FnMut(&[u64], &mut [f32], &mut [f32]) -> Result<()>,
    ) -> Result<UpdateReport> {
        let _timed = Timed::new(&self.inner.metrics.verb_ns);
        let engine = self.inner.exclusive_to_change()?;
        let table = self.inner.table_of(&engine, table)?;
        check_keys(table, keys)?;
        let mut scratch = Distinct::new();
        let distinct = scratch.run(keys).0.to_vec();
        let (dim, words) = (table.layout.embedding_dim(), table.layout.state_words());
        let mut values = vec![0.0; distinct.len() * dim];
        let mut state = vec![0.0; distinct.len() * words];
        let batch = [Keys { table, keys: &distinct }];
        let mut get =
            GetOp { outputs: vec![(table.layout, (&mut values).into(), Some(&mut state[..]))] };
        self.inner.visit_rows(&engine, &batch, &mut get)?;
        self.inner.inside_modify(|| f(&distinct, &mut values, &mut state))?;
        let dtype = table.layout.dtype();
        if !values.chunks_exact(dim).all(|row| dtype.all_fit(row)) || !all_finite(&state) {
            self.inner.metrics.non_finite.fetch_add(1, Ordering::Relaxed);
            let name = &table.record.spec.name;
            bail!(
                NonFinite,
                "modify of table '{name}' left values that are NaN, infinite or beyond the range \
                 of {}; nothing changed",
                dtype.name()
            );
        }
        let last = (0..distinct.len() as u32).collect();
        let source = PutSource { table, last, values: &values, state: Some(&state), reset: false };
        let mut put = PutOp { sources: vec![source], blind: true };
        let rows = self.inner.change_rows(&engine, &batch, &mut put)?;
        // Others go on beside upkeep.
        let engine = RwLockWriteGuard::downgrade(engine);
        self.inner.upkeep(&engine)?;
        Ok(UpdateReport { rows, ..UpdateReport::default() })
    }

    /// Deletes keys; they read as initial again. Returns how many had been written.
    ///
    /// *Errors*: as `put`. *Blocking*: nothing else runs meanwhile; a growing table's keys may be
    /// read to compare them. *Durability*: with the next commit.
    pub fn delete(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        let _timed = Timed::new(&self.inner.metrics.verb_ns);
        let engine = self.inner.exclusive_to_change()?;
        let table = self.inner.table_of(&engine, table)?;
        check_keys(table, keys)?;
        let mut scratch = Distinct::new();
        let distinct = scratch.run(keys).0.to_vec();
        let batch = [Keys { table, keys: &distinct }];
        let class = &engine.classes[table.class];
        self.inner.prepare_writing()?;
        if class.is_direct {
            return self.inner.delete_direct(table, &distinct);
        }
        self.inner.settle_room(&engine)?;
        self.inner.make_delete_room(&engine, table, &distinct)?;
        // With room in the flush buffer finding rows writes none: from here on no row moves, and
        // cleaning takes nothing of what is reserved next.
        self.inner.make_room(&engine, class, &mut **class.log.lock())?;
        self.inner.reserve_deletes(&engine, class, distinct.len() as u64)?;
        let mut find = FindOp { found: vec![(false, None); distinct.len()] };
        self.inner.visit_rows(&engine, &batch, &mut find)?;
        let _guard = self.inner.poison_on_panic();
        let mut deleted = 0;
        let result = (|| {
            let mut log = class.log.lock();
            for (i, (key, (written, origin))) in distinct.iter().zip(find.found).enumerate() {
                if i % KEYS_PER_LOOK_AT_DELTAS == 0 {
                    self.inner.journal_changes_if_many(class, &mut **log)?;
                }
                let cache = class.cache();
                cache.remove(table.locate(cache, *key), table.id(), *key, |_| ());
                log.unpark(table.id(), *key);
                log.delete(table.id(), *key, origin);
                deleted += u64::from(written);
            }
            if self.inner.may_merge() {
                // Shrinking that earlier deletes left undone is made up for in as many steps as
                // there are keys here, whose room in the journal is enough for both.
                log.shrink_index(table.id(), distinct.len());
            }
            self.inner.journal_changes_if_many(class, &mut **log)
        })();
        table.rows.fetch_sub(deleted, Ordering::Relaxed);
        table.changes.fetch_add(1, Ordering::Relaxed);
        self.inner.note_batch(distinct.len() as u64);
        self.inner.poison_on_error(result)?;
        // Others go on beside upkeep.
        let engine = RwLockWriteGuard::downgrade(engine);
        self.inner.upkeep(&engine)?;
        Ok(deleted)
    }

    /// Says for each key whether it was written. Exact; may read pages, but not of a dense table
    /// whose storage knows all its rows.
    ///
    /// *Errors*: as `get`.
    pub fn contains(&self, table: TableId, keys: &[u64], out: &mut [bool]) -> Result<()> {
        let _timed = Timed::new(&self.inner.metrics.verb_ns);
        let engine = self.inner.planned_engine()?;
        let table = self.inner.table_of(&engine, table)?;
        check_len("out", table, out.len(), keys.len(), 1)?;
        check_keys(table, keys)?;
        let class = &engine.classes[table.class];
        if class.is_direct {
            return region_of(table)?.contains(keys, out);
        }
        let log = table.first.is_some().then(|| class.log.lock());
        if let Some(log) = log.filter(|log| log.is_exact(table.id())) {
            let cache = class.cache();
            for (key, out) in keys.iter().zip(out) {
                let at = table.locate(cache, *key);
                let dirty = cache.peek(at, table.id(), *key, |row| row.is_dirty());
                *out = dirty == Some(true) || log.contains(table.id(), *key) == Some(true);
            }
            return Ok(());
        }
        let mut find = FindOp { found: vec![(false, None); keys.len()] };
        let visited = self.inner.visit_rows(&engine, &[Keys { table, keys }], &mut find);
        self.inner.as_committed(visited)?;
        for (out, (written, _)) in out.iter_mut().zip(find.found) {
            *out = written;
        }
        Ok(())
    }
}

impl Inner {
    /// Runs a verb that changes rows, with the upkeep that it pays for. Returns the rows visited.
    pub(in crate::store) fn change<O: RowOp>(
        &self,
        engine: &Engine,
        keys: &[Keys<'_>],
        op: &mut O,
    ) -> Result<u64> {
        let rows = self.change_rows(engine, keys, op)?;
        self.upkeep(engine)?;
        Ok(rows)
    }

    /// Changes rows: reserves room, visits, counts. Returns the rows visited. Upkeep is left to the
    /// caller, who may let others have the engine before.
    pub(in crate::store) fn change_rows<O: RowOp>(
        &self,
        engine: &Engine,
        keys: &[Keys<'_>],
        op: &mut O,
    ) -> Result<u64> {
        // Held until the rows are put back: what is on persistent memory is changed by one at a
        // time. Taken before all locks of classes.
        let _writers = self.write_direct(keys)?;
        let cached = cached_of(keys);
        self.reserve(engine, &cached)?;
        let _guard = self.poison_on_panic();
        let written = self.write_before_change(engine, &cached);
        let result = written.and_then(|()| self.visit_rows(engine, keys, op));
        let rows = keys.iter().map(|k| k.keys.len() as u64).sum();
        for batch in keys {
            batch.table.changes.fetch_add(1, Ordering::Relaxed);
        }
        // Rows on persistent memory are durable already.
        let is_lost = |k: &&Keys<'_>| k.table.region.as_ref().is_none_or(|r| !r.has_commit());
        let mut lost = keys.iter().filter(is_lost).peekable();
        if lost.peek().is_some() {
            self.note_batch(lost.map(|k| k.keys.len() as u64).sum());
        }
        self.end_reservation(&engine.classes, &cached);
        self.poison_on_error(result)?;
        Ok(rows)
    }

    /// Deals with rows that are not finite, before any row changes. `rows` go along with `keys`.
    pub(in crate::store) fn handle_non_finite(
        &self,
        policy: NonFinite,
        what: Input,
        table: &Table,
        keys: &mut Vec<u64>,
        rows: &mut Vec<u32>,
        bad: impl Fn(u32) -> bool,
    ) -> Result<()> {
        let count = rows.iter().filter(|row| bad(**row)).count();
        if count == 0 {
            return Ok(());
        }
        self.metrics.non_finite.fetch_add(count as u64, Ordering::Relaxed);
        let has_none = matches!(what, Input::Values) && table.layout.dtype().is_quantized();
        match policy {
            NonFinite::Apply if !has_none => {}
            NonFinite::Skip => {
                let mut kept = rows.iter().map(|row| !bad(*row)).collect::<Vec<_>>().into_iter();
                keys.retain(|_| kept.next() == Some(true));
                rows.retain(|row| !bad(*row));
            }
            NonFinite::Refuse | NonFinite::Apply => {
                let first = rows.iter().position(|row| bad(*row)).unwrap_or(0);
                let advice = match what {
                    Input::Gradients => {
                        "the loss is probably not finite: lower the learning rate or clip \
                         gradients; non_finite=\"skip\" would leave such rows out"
                    }
                    Input::Values => "pass non_finite=\"skip\" to leave such rows out",
                };
                bail!(
                    NonFinite,
                    "{} of {count} of {} rows of table '{}' {}, the first for key {}; nothing was \
                     changed; {advice}",
                    what.of_rows(count),
                    rows.len(),
                    table.record.spec.name,
                    what.problem(count, table.record.spec.dtype),
                    keys[first]
                )
            }
        }
        Ok(())
    }
}

/// Kind of input with a row that is not finite.
#[derive(Clone, Copy)]
pub(in crate::store) enum Input {
    Gradients,
    Values,
}

impl Input {
    fn of_rows(self, count: usize) -> &'static str {
        match (self, count) {
            (Self::Gradients, 1) => "the gradient",
            (Self::Gradients, _) => "gradients",
            (Self::Values, _) => "values",
        }
    }

    fn problem(self, count: usize, dtype: Dtype) -> String {
        match (self, dtype) {
            (Self::Gradients, _) if count == 1 => "is NaN or infinite".to_owned(),
            (Self::Gradients, _) | (Self::Values, Dtype::Float32) => {
                "are NaN or infinite".to_owned()
            }
            (Self::Values, _) => {
                format!("are NaN, infinite or beyond the range of {}", dtype.name())
            }
        }
    }
}

/// Checks that every key of a dense table lies in range.
pub(in crate::store) fn check_keys(table: &Table, keys: &[u64]) -> Result<()> {
    let Some(num_embeddings) = table.record.spec.num_embeddings else { return Ok(()) };
    // The sign says whether any key is too large; a maximum of 64-bit numbers takes longer.
    let last = num_embeddings.wrapping_sub(1);
    let signs = keys.iter().fold(0, |signs, key| signs | key | last.wrapping_sub(*key));
    if signs >> 63 != 0 && keys.iter().any(|key| *key >= num_embeddings) {
        let at = keys.iter().position(|key| *key >= num_embeddings).unwrap_or(0);
        // Keys from signed arrays: a small negative number reads as a huge one.
        let key = keys[at];
        let shown = if key > i64::MAX as u64 { (key as i64).to_string() } else { key.to_string() };
        bail!(
            KeyRange,
            "id {shown} at position {at} is outside table '{}', whose ids are 0 to {}",
            table.record.spec.name,
            num_embeddings - 1
        );
    }
    Ok(())
}

pub(in crate::store) fn check_len(
    what: &str,
    table: &Table,
    len: usize,
    rows: usize,
    width: usize,
) -> Result<()> {
    if len != rows * width {
        bail!(
            Misuse,
            "{what} for table '{}' has {len} elements, expected {rows} keys x {width} = {}",
            table.record.spec.name,
            rows * width
        );
    }
    Ok(())
}

/// True when no element is NaN or infinite.
pub(in crate::store) fn all_finite(values: &[f32]) -> bool {
    Dtype::Float32.all_fit(values)
}

/// Distinct keys in first-occurrence order, with the position of each one's last occurrence.
fn last_of_each(keys: &[u64]) -> (Vec<u64>, Vec<u32>) {
    let mut scratch = Distinct::new();
    let (distinct, inverse) = scratch.run(keys);
    let mut last = vec![0; distinct.len()];
    for (position, row) in inverse.iter().enumerate() {
        last[*row as usize] = position as u32;
    }
    (distinct.to_vec(), last)
}

type Output<'a> = (RowLayout, ValuesOut<'a>, Option<&'a mut [f32]>);

struct GetOp<'a> {
    outputs: Vec<Output<'a>>,
}

impl RowOp for GetOp<'_> {
    fn output(&mut self, batch: usize) -> Option<ValuesOut<'_>> {
        let (_, values, state) = &mut self.outputs[batch];
        state.is_none().then_some(values.reborrow())
    }

    #[inline(always)]
    fn visit(&mut self, batch: usize, position: usize, row: RowView<'_>) -> Effect {
        let (layout, values, state) = &mut self.outputs[batch];
        let dim = layout.embedding_dim();
        match values {
            ValuesOut::Float32(values) => {
                layout.read_values(row.words, &mut values[position * dim..][..dim]);
            }
            ValuesOut::Bits(bits) => {
                bits[position * dim..][..dim].copy_from_slice(layout.bits(row.words));
            }
        }
        if let Some(state) = state {
            let words = layout.state_words();
            state[position * words..][..words].copy_from_slice(layout.split(row.words).1);
        }
        Effect::Read
    }
}

struct FindOp {
    found: Vec<(bool, Option<u32>)>,
}

impl RowOp for FindOp {
    fn visit(&mut self, _: usize, position: usize, row: RowView<'_>) -> Effect {
        self.found[position] = (row.written, row.origin);
        Effect::Read
    }

    fn admits(&self) -> bool {
        false
    }
}

struct PutSource<'a> {
    table: &'a Table,
    last: Vec<u32>,
    values: &'a [f32],
    state: Option<&'a [f32]>,
    reset: bool,
}

struct PutOp<'a> {
    sources: Vec<PutSource<'a>>,
    blind: bool,
}

impl RowOp for PutOp<'_> {
    fn visit(&mut self, batch: usize, position: usize, row: RowView<'_>) -> Effect {
        let source = &self.sources[batch];
        let layout = &source.table.layout;
        let from = source.last[position] as usize;
        let dim = layout.embedding_dim();
        let (words, state) = layout.split_mut(row.words);
        layout.write_values(words, &source.values[from * dim..][..dim]);
        match source.state {
            Some(given) => state.copy_from_slice(&given[from * state.len()..][..state.len()]),
            None if source.reset || row.blank => {
                source.table.record.spec.optimizer.init_state(dim, state);
            }
            None => {}
        }
        Effect::Wrote
    }

    fn changes(&self) -> bool {
        true
    }

    fn blind(&self) -> bool {
        self.blind
    }
}
