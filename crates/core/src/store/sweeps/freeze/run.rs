//! A freeze under way: rows out of their source, into frozen pages of each class.

use super::difference::{Difference, FreezeError};
use super::plans::{PlannedPages, placement};
use super::room::{BUILDER_BYTES_PER_KEY, INDEX_BYTES_PER_ID, INDEX_BYTES_PER_REPLICA};
use super::room::{check_disk, disk_need, make_index_room};
use super::{FreezeOptions, Frozen};
use crate::error::{Error, ErrorKind, Result};
use crate::row::Dtype;
use crate::storage::{Freeze, FreezePlan, Placement, SweptRow};
use crate::store::engine::{Class, Engine, Table};
use crate::store::verbs::direct::region_of;
use crate::store::{Inner, Store};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Pages of a sweep read at once.
const PAGES: usize = 256;
/// Gives a freeze the rows of tables of a class.
type TakeClass<'a, Run> =
    dyn FnMut(&mut Run, &Class, &[&Table], &mut dyn Freeze) -> Result<()> + 'a;

/// A freeze under way.
pub(super) struct Run<'a> {
    options: &'a FreezeOptions,
    plans: &'a [PlannedPages],
    /// Names of the tables of each plan.
    named: Vec<Vec<String>>,
    /// Rows come from the store that is frozen.
    is_own: bool,
    done: u64,
    all: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> Result<()>,
    pub(super) frozen: Frozen,
    pub(super) errors: Vec<FreezeError>,
}

impl<'a> Run<'a> {
    /// One that takes `all` rows. The plans are of the tables `named`.
    pub(super) fn new(
        options: &'a FreezeOptions,
        plans: &'a [PlannedPages],
        named: Vec<Vec<String>>,
        all: u64,
        progress: &'a mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Self {
        let (frozen, errors) = (Frozen::default(), Vec::new());
        Self { options, plans, named, is_own: false, done: 0, all, progress, frozen, errors }
    }

    /// Writes all rows of these tables of a store anew.
    pub(super) fn freeze_own(
        &mut self,
        inner: &Inner,
        engine: &Engine,
        tables: &[&Table],
    ) -> Result<()> {
        self.is_own = true;
        self.freeze_classes(inner, engine, tables, &mut |run, class, _, unit| {
            run.take_own(inner, class, unit)
        })
    }

    /// Freezes all tables of `source` into those of `target`, which have the same numbers.
    pub(super) fn freeze_from(&mut self, source: &Store, target: &Store) -> Result<()> {
        let (from, to) = (&*source.inner, &*target.inner);
        let of_source = from.planned_engine()?;
        let engine = to.exclusive_to_change()?;
        let tables: Vec<&Table> = engine.tables.iter().collect();
        self.freeze_classes(to, &engine, &tables, &mut |run, _, tables, unit| {
            for table in tables {
                if let Some(old) = of_source.table(table.id()) {
                    let rows = run.take(from, &of_source, old, table, unit)?;
                    table.rows.store(rows, Ordering::Relaxed);
                }
            }
            Ok(())
        })
    }

    /// Rows that a table has, or, of a new store, will have.
    fn rows_to_come(&self, table: &Table) -> u64 {
        match self.is_own {
            true => table.rows.load(Ordering::Relaxed),
            false => table.record.spec.expected_rows.unwrap_or(0),
        }
    }

    /// Bytes of memory that the index of frozen rows takes while it is made, beside the one before.
    fn index_need(&self, tables: &[&Table], placement: &Placement) -> u64 {
        let of_table = |table: &&Table| match table.record.dense_ids() {
            // A plan of a new store has left room for it.
            Some(_) if !self.is_own => 0,
            Some(ids) => ids.saturating_mul(INDEX_BYTES_PER_ID),
            None => self.rows_to_come(table) * BUILDER_BYTES_PER_KEY,
        };
        let replicas = placement.replica_rows.len() as u64 * INDEX_BYTES_PER_REPLICA;
        tables.iter().map(of_table).sum::<u64>().saturating_add(replicas)
    }

    /// Writes all rows of these tables, which `take` gives. Nothing changes before all are written.
    fn freeze_classes(
        &mut self,
        inner: &Inner,
        engine: &Engine,
        tables: &[&Table],
        take: &mut TakeClass<'_, Self>,
    ) -> Result<()> {
        let mut begun: Vec<(&Class, Box<dyn Freeze>)> = Vec::new();
        let mut run = || {
            let (mut planned, mut index, mut needs) = (0, 0u64, Vec::new());
            for (at, class) in engine.classes.iter().enumerate() {
                let of_class: Vec<&Table> =
                    tables.iter().copied().filter(|table| table.class == at).collect();
                if of_class.is_empty() {
                    continue;
                }
                let placement = placement(self.plans, &self.named, class, &of_class)?;
                let rows = of_class.iter().map(|table| self.rows_to_come(table)).sum();
                needs.push(disk_need(class, rows, &placement, self.options.sort_bytes)?);
                index = index.saturating_add(self.index_need(&of_class, &placement));
                planned += placement.rows.len() as u64;
                let plan = FreezePlan {
                    placement,
                    candidates_max: self.options.candidates_max,
                    memory: self.options.sort_bytes,
                };
                begun.push((class, class.log.lock().begin_freeze(plan)?));
            }
            // Files left by a freeze that was cut off are gone by now.
            check_disk(inner, &needs)?;
            make_index_room(inner, engine, index)?;
            let classes = tables.iter().map(|table| table.class).collect::<BTreeSet<_>>();
            for (at, (class, unit)) in classes.into_iter().zip(&mut begun) {
                let of_class: Vec<&Table> =
                    tables.iter().copied().filter(|table| table.class == at).collect();
                take(self, class, &of_class, &mut **unit)?;
                self.frozen.placed += unit.placed();
                while unit.step()? {
                    (self.progress)(self.done.min(self.all), self.all)?;
                }
            }
            self.frozen.missing = planned.saturating_sub(self.frozen.placed);
            Ok(())
        };
        let mut done = run();
        let pages = |class: &Class| class.log.lock().stats().merged.pages;
        for (class, unit) in begun {
            let before = pages(class);
            done = match done {
                Ok(()) => inner.install_whole(engine, class, unit),
                // The next freeze removes files of it that cannot be removed now.
                Err(error) => {
                    let abandoned = class.log.lock().abandon_unit(unit, None);
                    abandoned.or(Ok(())).and(Err(error))
                }
            };
            self.frozen.pages += pages(class) - before;
        }
        done
    }

    /// Gives a freeze the rows of a table, as `to` stores them. Returns how many there are.
    fn take(
        &mut self,
        inner: &Inner,
        engine: &Engine,
        from: &Table,
        to: &Table,
        unit: &mut dyn Freeze,
    ) -> Result<u64> {
        let class = &engine.classes[from.class];
        if class.is_direct {
            region_of(from)?;
        }
        let mut sweep = class.log.lock().sweep(Some(from.id()));
        let name = &from.record.spec.name;
        let mut values = vec![0.0; from.layout.embedding_dim()];
        let mut words = vec![0.0; to.layout.row_words()];
        let converts = from.layout != to.layout;
        let (mut rows, mut difference) = (0, Difference::new(&to.layout));
        let swept = loop {
            let before = rows;
            let read = inner.sweep_on(class, &mut *sweep, PAGES, &mut |swept| {
                for row in swept {
                    rows += 1;
                    let mut row = SweptRow { table: to.id(), ..row };
                    if converts {
                        from.layout.read_values(row.words, &mut values);
                        if !to.layout.dtype().all_fit(&values) {
                            return Err(unfit(row.key, &values, to.layout.dtype()));
                        }
                        to.layout.write_values(&mut words, &values);
                        difference.add(&values, &to.layout, &words);
                        row.words = &words;
                    }
                    unit.push(row, false)?;
                }
                Ok(())
            });
            self.done += rows - before;
            let told = read.map_err(|error| error.context(format!("table '{name}'")));
            match told.and_then(|goes_on| {
                (self.progress)(self.done.min(self.all), self.all)?;
                Ok(goes_on)
            }) {
                Ok(true) => {}
                Ok(false) => break Ok(rows),
                Err(error) => break Err(error),
            }
        };
        class.log.lock().end_read(sweep.ticket());
        self.frozen.rows += rows;
        self.frozen.error_max = self.frozen.error_max.max(difference.most);
        if from.layout.dtype() != to.layout.dtype() {
            self.errors.push(difference.told(name, rows));
        }
        swept
    }

    /// Gives a freeze all rows of its own class.
    fn take_own(&mut self, inner: &Inner, class: &Class, unit: &mut dyn Freeze) -> Result<()> {
        let mut sweep = class.log.lock().sweep(None);
        let taken = loop {
            let mut rows = 0;
            let read = inner.sweep_on(class, &mut *sweep, PAGES, &mut |swept| {
                for row in swept {
                    rows += 1;
                    unit.push(row, true)?;
                }
                Ok(())
            });
            (self.done, self.frozen.rows) = (self.done + rows, self.frozen.rows + rows);
            match read.and_then(|goes_on| {
                (self.progress)(self.done.min(self.all), self.all)?;
                Ok(goes_on)
            }) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        class.log.lock().end_read(sweep.ticket());
        taken
    }
}

/// Why a row cannot be stored in another type of values. The caller names the table.
fn unfit(key: u64, values: &[f32], dtype: Dtype) -> Error {
    let why = match values.iter().find(|value| !value.is_finite()) {
        Some(value) => format!("a value is {value}; put or delete the row, then freeze"),
        None if dtype.is_quantized() => {
            format!("the row spans more than {} holds; freeze with another dtype", dtype.name())
        }
        None => format!("a value does not fit {}; freeze with another dtype", dtype.name()),
    };
    Error::new(ErrorKind::Misuse, format!("key {key}: {why}"))
}
