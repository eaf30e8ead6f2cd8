//! The verb update: one optimizer step on each distinct key of a batch.
//!
//! Everything is checked, merged and bounded before the first row changes; the visits then do no
//! more than the arithmetic of one row under its set's lock.

use super::engine::{Engine, Table};
use super::rows::{Effect, Keys, RowOp, RowView};
use super::verbs::{all_finite, check_keys, check_len};
use super::{Inner, Store};
use crate::clip::{Clip, Clipped, coefficient};
use crate::config::{NonFinite, UpdateBatch, UpdateReport};
use crate::distinct::{Distinct, Merged, merge_gradients};
use crate::error::{Result, bail};
use crate::optimizer::Prepared;
use crate::prefetch::prefetch_slice;
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
        let engine = self.inner.writable_engine()?;
        let (mut op, mut report) = self.inner.gradients(&engine, batches, clip)?;
        let chosen: Vec<Vec<u64>> =
            op.sources.iter_mut().map(|source| std::mem::take(&mut source.keys)).collect();
        let keys: Vec<Keys<'_>> =
            op.sources.iter().zip(&chosen).map(|(s, keys)| Keys { table: s.table, keys }).collect();
        report.rows = self.inner.change(&engine, &keys, &mut op)?;
        for source in &op.sources {
            source.table.updates.fetch_add(1, Ordering::Relaxed);
        }
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
        let (_, report) = self.inner.gradients(&engine, batches, &clip)?;
        Ok(report.norm.unwrap_or(0.0))
    }
}

impl Inner {
    /// What an update applies: the gradients of the distinct keys of each batch, checked and within
    /// bounds.
    fn gradients<'a>(
        &self,
        engine: &'a Engine,
        batches: &[UpdateBatch<'a>],
        clip: &Clip,
    ) -> Result<(UpdateOp<'a>, UpdateReport)> {
        clip.validate()?;
        let mut report = UpdateReport::default();
        let mut op = UpdateOp { sources: Vec::new(), bounded: Vec::new() };
        let mut scratch = Distinct::new();
        let mut squares = 0.0;
        for (i, batch) in batches.iter().enumerate() {
            let table = self.table_of(engine, batch.table)?;
            if batches[..i].iter().any(|other| other.table == batch.table) {
                let name = &table.record.spec.name;
                bail!(Misuse, "table {name:?} is updated twice in one call; join its keys");
            }
            let mut source = self.source(table, batch, &mut scratch, &mut report)?;
            if !clip.is_none() {
                let (clipped, sum) = clip.rows(source.rows.iter().map(|row| source.gradient(*row)));
                source.clipped = Some(clipped);
                squares += sum;
                op.bounded.resize(op.bounded.len().max(table.layout.embedding_dim()), 0.0);
            }
            op.sources.push(source);
        }
        if let Some(bound) = clip.norm {
            self.check_other_norm(clip.other_norm, batches)?;
            let norm = clip.total_norm(squares);
            let scale = coefficient(bound, norm);
            let clipped = op.sources.iter_mut().filter_map(|source| source.clipped.as_mut());
            clipped.for_each(|clipped| clipped.scale(scale));
            report.norm = Some(norm);
        }
        Ok((op, report))
    }

    /// One batch, checked, with the gradients of equal keys summed.
    fn source<'a>(
        &self,
        table: &'a Table,
        batch: &UpdateBatch<'a>,
        scratch: &mut Distinct,
        report: &mut UpdateReport,
    ) -> Result<UpdateSource<'a>> {
        let dim = table.layout.embedding_dim();
        check_len("gradients", table, batch.gradients.len(), batch.keys.len(), dim)?;
        check_keys(table, batch.keys)?;
        let optimizer = &table.record.spec.optimizer;
        optimizer
            .validate(&batch.hyper)
            .map_err(|e| e.context(format!("table {:?}", table.record.spec.name)))?;
        let (distinct, inverse) = scratch.run(batch.keys);
        let mut keys = distinct.to_vec();
        let mut merged = merge_gradients(inverse, batch.gradients, dim);
        let mut rows = std::mem::take(&mut merged.rows);
        let bad = |row: u32| !all_finite(merged.gradient(row, batch.gradients, dim));
        let before = keys.len();
        self.handle_non_finite(batch.non_finite, table, &mut keys, &mut rows, bad)?;
        report.skipped += (before - keys.len()) as u64;
        let step = batch.step.unwrap_or(table.updates.load(Ordering::Relaxed) + 1);
        let prepared = optimizer.prepare(&batch.hyper, step, dim);
        let given = batch.gradients;
        Ok(UpdateSource { table, keys, rows, given, merged, prepared, clipped: None })
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
    /// The distinct keys, until the visits take them.
    keys: Vec<u64>,
    /// Row of the gradients for each key.
    rows: Vec<u32>,
    given: &'a [f32],
    merged: Merged,
    prepared: Prepared,
    /// What bounds them, if anything does.
    clipped: Option<Clipped>,
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
        let (values, state) = source.table.layout.split_mut(row.words);
        let mut gradient = source.gradient(source.rows[position]);
        if let Some(clipped) = &source.clipped {
            let bounded = &mut self.bounded[..gradient.len()];
            clipped.write(position, gradient, bounded);
            gradient = bounded;
        }
        source.prepared.apply(values, state, gradient);
        Effect::Wrote
    }

    fn changes(&self) -> bool {
        true
    }
}
