//! The verb update: one optimizer step on each distinct key of a batch.
//!
//! Everything is checked, merged and bounded before the first row changes; the visits then do no
//! more than the arithmetic of one row under its set's lock.
//!
//! # How an update runs
//!
//! 1. `Store::update` checks everything before the first row changes. `Distinct::run` finds the
//!    distinct keys in order of first occurrence, and `merge_gradients` sums the gradients of equal
//!    keys. `OptimizerSpec::validate` and `prepare` compute the factors of the batch, and
//!    `Prepared::mean_squares` what row-wise steps need of each gradient, which is finite only if
//!    the gradient is. `handle_non_finite` refuses or skips rows, and `Clip::rows` computes the
//!    bounds of the gradients.
//! 2. `Inner::change` calls `reserve` (`store/space/reserve.rs`). Once after opening,
//!    `prepare_writing` cuts off what a crash left. `make_index_room` (`store/space/memory.rs`)
//!    lets a growing index take a way from the cache (`Cache::take_way_step`), or returns `Budget`.
//!    `StorageSpace::reserve`, once for all tables of a class, and `reserve_to_change`, for all
//!    classes, ensure that every row that is or may become dirty has room on disk, and restore the
//!    room that is for cleaning and commits alone, or return `Full`. `store/space/mod.rs` states
//!    the invariant.
//! 3. `visit_rows` runs as for a get, with an `UpdateOp`. `Prepared::apply_knowing` changes values
//!    and state in place under the set's lock. Values of 2 bytes are computed in float32 beside the
//!    row, then rounded by `RowLayout::write_updated`. The row is marked dirty. Its stamp is the
//!    position of its key's first occurrence in the batch (`Stamps`), so rows of one sample have
//!    one stamp in all tables of the class. Nothing is written.
//! 4. `end_reservation` returns the reservation; the cache counts the rows that became dirty
//!    (`Visits` ends first). An error after rows have changed poisons the store
//!    (`poison_on_error`).
//!
//! # How rows reach storage
//!
//! Rows are written when the flush buffer is full. `flush_now` (`store/space/flush.rs`) lets
//! `StorageWrite::flush` pack its rows, those dirty for longest first
//! (`FlushBuffer::longest_dirty_first`, `StorageWrite::append`), so that rows used together share a
//! page. `Writer::append` fills chunks, which go to the device while the next one fills. `publish`
//! points the index at the new slot, marks the old copy outdated (`Segments::outdated`) and notes a
//! `Delta`. `clean_for` pays for the rows written (`StorageUpkeep::owe`) with units of cleaning,
//! each of which first finds its room on disk (`docs/decisions/0005`). `journal_changes` hands
//! deltas to the journal.
//!
//! A layout may have units of upkeep that need no class lock (`storage::Unit`). `Inner::upkeep`
//! (`store/space/upkeep.rs`) asks the scheduler (`schedule.rs`), begins a unit under the lock,
//! performs as many of its steps without the lock as rows have paid for, and installs the outcome
//! under the lock (`install`, `install_more`). Verbs that change rows call it at their end, and so
//! does a commit that has released old copies.

use super::get_put::{Input, all_finite, check_keys, check_len};
use crate::clip::{Clip, Clipped, coefficient};
use crate::config::{NonFinite, UpdateBatch, UpdateReport};
use crate::distinct::{Distinct, Merged, merge_gradients};
use crate::error::{Result, bail};
use crate::half::Rounding;
use crate::metrics::Timed;
use crate::optimizer::Prepared;
use crate::prefetch::prefetch_slice;
use crate::row::RoundingMode;
use crate::store::engine::{Engine, Table};
use crate::store::verbs::rows::{Effect, Keys, RowOp, RowView};
use crate::store::{Inner, Store};
use std::sync::atomic::Ordering;

impl Store {
    /// Applies one optimizer step per distinct key; gradients of equal keys are summed first, in
    /// float32, in order of occurrence. Each table's count of update batches grows by one.
    ///
    /// *Errors*: as `put`; a table may be named once. *Durability*: with the next commit.
    pub fn update(&self, batches: &[UpdateBatch<'_>]) -> Result<UpdateReport> {
        self.update_within(batches, &Clip::default())
    }

    /// As [`update`](Self::update), with gradients kept within bounds once those of equal keys are
    /// summed. The report has the norm that was scaled.
    ///
    /// *Errors*: as `update`; `Misuse` for an unusable bound; `NonFinite` when the norm of what
    /// counts elsewhere is not finite, unless all is let through.
    pub fn update_within(&self, batches: &[UpdateBatch<'_>], clip: &Clip) -> Result<UpdateReport> {
        let _timed = Timed::new(&self.inner.metrics.verb_ns);
        let engine = self.inner.writable_engine()?;
        let merging = Timed::new(&self.inner.metrics.merge_ns);
        let (chosen, mut sources, mut report) = self.inner.gradients(&engine, batches, clip)?;
        drop(merging);
        for (source, keys) in sources.iter_mut().zip(&chosen) {
            source.keys = keys;
        }
        let keys: Vec<Keys<'_>> =
            sources.iter().map(|source| Keys { table: source.table, keys: source.keys }).collect();
        let mut op = UpdateOp::new(sources);
        report.rows = self.inner.change(&engine, &keys, &mut op)?;
        for source in &op.sources {
            source.table.updates.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.metrics.saturated.fetch_add(op.saturated, Ordering::Relaxed);
        report.saturated = op.saturated;
        Ok(report)
    }

    /// The norm that [`update_within`](Self::update_within) would scale: that of all gradients of
    /// the call, equal keys summed, elements and rows within the bounds of `clip`, and of what
    /// counts elsewhere. Changes nothing.
    ///
    /// *Errors*: those of `update_within` that come of its arguments.
    pub fn gradient_norm(&self, batches: &[UpdateBatch<'_>], clip: &Clip) -> Result<f64> {
        let engine = self.inner.planned_engine()?;
        // The norm is computed where something bounds it.
        let clip = Clip { norm: Some(clip.norm.unwrap_or(1.0)), ..*clip };
        let (_, _, report) = self.inner.gradients(&engine, batches, &clip)?;
        Ok(report.norm.unwrap_or(0.0))
    }
}

impl Inner {
    /// The updates to apply: the distinct keys of each batch and their gradients, checked and
    /// within bounds.
    fn gradients<'a>(
        &self,
        engine: &'a Engine,
        batches: &[UpdateBatch<'a>],
        clip: &Clip,
    ) -> Result<(Vec<Vec<u64>>, Vec<UpdateSource<'a>>, UpdateReport)> {
        clip.validate()?;
        let mut report = UpdateReport::default();
        let (mut chosen, mut sources) = (Vec::new(), Vec::new());
        let mut scratch = Distinct::new();
        let mut squares = 0.0;
        for (i, batch) in batches.iter().enumerate() {
            let table = self.table_of(engine, batch.table)?;
            if batches[..i].iter().any(|other| other.table == batch.table) {
                let name = &table.record.spec.name;
                bail!(Misuse, "table '{name}' is updated twice in one call; join its keys");
            }
            let (keys, mut source) = self.source(table, batch, &mut scratch, &mut report)?;
            if !clip.is_none() {
                let (clipped, sum) = clip.rows(source.rows.iter().map(|row| source.gradient(*row)));
                source.clipped = Some(clipped);
                source.mean_squares.clear();
                squares += sum;
            }
            chosen.push(keys);
            sources.push(source);
        }
        if let Some(bound) = clip.norm {
            self.check_other_norm(clip.other_norm, batches)?;
            let norm = clip.total_norm(squares);
            let scale = coefficient(bound, norm);
            let clipped = sources.iter_mut().filter_map(|source| source.clipped.as_mut());
            clipped.for_each(|clipped| clipped.scale(scale));
            report.norm = Some(norm);
        }
        Ok((chosen, sources, report))
    }

    /// One batch, checked, with the gradients of equal keys summed.
    fn source<'a>(
        &self,
        table: &'a Table,
        batch: &UpdateBatch<'a>,
        scratch: &mut Distinct,
        report: &mut UpdateReport,
    ) -> Result<(Vec<u64>, UpdateSource<'a>)> {
        let dim = table.layout.embedding_dim();
        check_len("gradients", table, batch.gradients.len(), batch.keys.len(), dim)?;
        check_keys(table, batch.keys)?;
        let optimizer = &table.record.spec.optimizer;
        optimizer
            .validate(&batch.hyper)
            .map_err(|e| e.context(format!("table '{}'", table.record.spec.name)))?;
        if batch.step == Some(0) {
            bail!(Misuse, "step is 0, expected 1 or more: the first step of an optimizer is 1");
        }
        let (_, inverse) = scratch.run(batch.keys);
        let mut merged = merge_gradients(inverse, batch.gradients, dim);
        let mut keys = scratch.take();
        let mut rows = std::mem::take(&mut merged.rows);
        let count = table.updates.load(Ordering::Relaxed) + 1;
        let prepared = optimizer.prepare(&batch.hyper, batch.step.unwrap_or(count), dim);
        let gradient = |row: u32| merged.gradient(row, batch.gradients, dim);
        let means_of = |rows: &[u32]| prepared.mean_squares(rows.iter().map(|row| gradient(*row)));
        let mut mean_squares = means_of(&rows);
        let known_finite = mean_squares.len() == rows.len() && all_finite(&mean_squares);
        if !known_finite {
            let bad = |row: u32| !all_finite(gradient(row));
            let before = keys.len();
            self.handle_non_finite(
                batch.non_finite,
                Input::Gradients,
                table,
                &mut keys,
                &mut rows,
                bad,
            )?;
            report.skipped += (before - keys.len()) as u64;
            mean_squares = means_of(&rows);
        }
        let rounding = match table.record.spec.rounding {
            RoundingMode::Stochastic => {
                Some(Rounding::new(self.superblock.seed, table.salt, count))
            }
            RoundingMode::Nearest => None,
        };
        let given = batch.gradients;
        let (clipped, none): (_, &[u64]) = (None, &[]);
        let source = UpdateSource {
            table,
            keys: none,
            occurrences: batch.keys.len(),
            rows,
            given,
            merged,
            prepared,
            mean_squares,
            clipped,
            rounding,
        };
        Ok((keys, source))
    }

    /// A norm elsewhere that is not finite leaves nothing to scale to.
    fn check_other_norm(&self, norm: f64, batches: &[UpdateBatch<'_>]) -> Result<()> {
        let let_through = batches.iter().all(|batch| batch.non_finite == NonFinite::Apply);
        if norm.is_finite() || let_through {
            return Ok(());
        }
        self.metrics.non_finite.fetch_add(1, Ordering::Relaxed);
        bail!(NonFinite, "other_norm is {norm}, expected a finite number; nothing was changed")
    }
}

struct UpdateSource<'a> {
    table: &'a Table,
    /// The distinct keys, empty until the visits begin.
    keys: &'a [u64],
    /// Number of keys in the batch, equal ones counted.
    occurrences: usize,
    /// Row of the gradients for each key.
    rows: Vec<u32>,
    given: &'a [f32],
    merged: Merged,
    prepared: Prepared,
    /// For each key, what [`Prepared::mean_squares`] gave; empty where it gives nothing.
    mean_squares: Vec<f32>,
    /// The clipping of them, if any.
    clipped: Option<Clipped>,
    /// Random bits of this batch, unless results are rounded to nearest.
    rounding: Option<Rounding>,
}

impl UpdateSource<'_> {
    #[inline(always)]
    fn gradient(&self, row: u32) -> &[f32] {
        self.merged.gradient(row, self.given, self.table.layout.embedding_dim())
    }
}

struct UpdateOp<'a> {
    sources: Vec<UpdateSource<'a>>,
    /// Room for one gradient within its bounds.
    bounded: Vec<f32>,
    /// Room for the values of one row in float32, if they are stored in 2 bytes.
    values: Vec<f32>,
    /// Rows of which a value left its range.
    saturated: u64,
}

impl<'a> UpdateOp<'a> {
    fn new(sources: Vec<UpdateSource<'a>>) -> Self {
        let most = sources.iter().map(|source| source.table.layout.embedding_dim()).max();
        let room = vec![0.0; most.unwrap_or(0)];
        Self { sources, bounded: room.clone(), values: room, saturated: 0 }
    }
}

impl RowOp for UpdateOp<'_> {
    #[inline(always)]
    fn prefetch(&self, batch: usize, position: usize) {
        let source = &self.sources[batch];
        prefetch_slice(source.gradient(source.rows[position]));
    }

    #[inline(always)]
    fn visit(&mut self, batch: usize, position: usize, row: RowView<'_>) -> Effect {
        let source = &self.sources[batch];
        let mut gradient = source.gradient(source.rows[position]);
        if let Some(clipped) = &source.clipped {
            let bounded = &mut self.bounded[..gradient.len()];
            clipped.write(position, gradient, bounded);
            gradient = bounded;
        }
        let mean_square = source.mean_squares.get(position).copied();
        let layout = &source.table.layout;
        let (words, state) = layout.split_mut(row.words);
        if layout.is_float32() {
            source.prepared.apply_knowing(words, state, gradient, mean_square);
            return Effect::Wrote;
        }
        let values = &mut self.values[..gradient.len()];
        layout.read_values(words, values);
        source.prepared.apply_knowing(values, state, gradient, mean_square);
        let (rounding, key) = (source.rounding.as_ref(), source.keys[position]);
        self.saturated += u64::from(layout.write_updated(words, values, rounding, key));
        Effect::Wrote
    }

    #[inline(always)]
    fn place(&self, batch: usize, position: usize) -> u32 {
        let source = &self.sources[batch];
        source.merged.first(source.rows[position], source.occurrences)
    }

    fn places(&self, batch: usize) -> Option<usize> {
        Some(self.sources[batch].occurrences)
    }

    fn changes(&self) -> bool {
        true
    }
}
