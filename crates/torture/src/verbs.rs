//! Random verbs, on the store and on the model.

use crate::check;
use crate::life::{Life, Step};
use crate::model::{Change, Row, Table};
use crate::plan::{Habit, Kind};
use crate::report::Event;
use embedrock_core::optimizer::{Hyper, OptimizerKind};
use embedrock_core::row::Dtype;
use embedrock_core::{
    Clip, Error, ErrorKind, FreezeOptions, Memory, NonFinite, PlannedPages, PutBatch, StorageKind,
    TableId, UpdateBatch, UpdateReport,
};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The gradients of one table's part of an update.
struct Part {
    table: usize,
    keys: Vec<u64>,
    gradients: Vec<f32>,
    hyper: Hyper,
    step: Option<u64>,
}

impl Life<'_> {
    /// One operation.
    pub(crate) fn act(&mut self) -> Step {
        if self.model.tables.is_empty() {
            // Tables from the start went with a crash before the first commit.
            return self.add_table();
        }
        if self.under_way.is_some() {
            self.counts.event(Event::BesideCommit);
            match self.random.below(8) {
                0..=1 => return self.commit_step(),
                2 => return self.large_update(),
                _ => {}
            }
        }
        if self.plan.window
            && self.random.chance(1, if self.plan.kind.looks_ahead() { 2 } else { 5 })
        {
            return self.use_window();
        }
        if self.plan.kind == Kind::Growth && self.random.chance(1, 2) {
            return self.grow_and_shrink();
        }
        let rewrites = match self.plan.kind {
            Kind::Churn => self.random.chance(1, 6),
            Kind::Narrow => self.random.chance(1, 2),
            _ => false,
        };
        if rewrites {
            return self.rewrite();
        }
        let commits = self.plan.kind == Kind::Commits;
        let roll = self.random.below(1000);
        match roll {
            0..=199 => self.get(),
            200..=489 => self.update(),
            490..=579 => self.put(),
            580..=609 => self.modify(),
            610..=669 => {
                let at = self.draw_table();
                self.delete(at, 1)
            }
            670..=709 => self.contains(),
            710..=729 => self.scan(),
            730..=739 => self.small_questions(),
            740..=742 => self.warm(),
            743..=744 => self.freeze(),
            745..=769 => self.refused_verb(),
            770..=819 => self.commit(),
            820..=859 if self.plan.has(Habit::Beside) => self.begin_by_hand(),
            820..=859 => self.commit(),
            860..=879 => self.reopen(),
            880..=889 if self.plan.has(Habit::Back) => self.go_back(),
            880..=889 => self.reopen(),
            890..=904 if self.plan.has(Habit::Readers) => self.open_reader(),
            905..=926 => self.use_reader(),
            927..=929 => self.look_at_earlier(),
            930..=939 if self.plan.has(Habit::Late) => self.add_table(),
            940..=949 => self.use_permits(),
            950..=959 if self.plan.has(Habit::Catalog) => self.change_tables(),
            _ if commits && roll < 975 && self.plan.has(Habit::Beside) => self.begin_by_hand(),
            _ if commits => self.reopen(),
            _ => self.update(),
        }
    }

    /// All rows of a table in the same order, as a pass over its data does, or in another where
    /// they are many: so that what waits in the cache lies everywhere.
    pub(crate) fn rewrite(&mut self) -> Step {
        let (table, _) = self.draw_table();
        let plan = Rc::clone(&self.table(table).plan);
        let mut keys: Vec<u64> = (0..plan.keys).map(|i| plan.key(i)).collect();
        if self.plan.kind == Kind::Narrow {
            self.random.shuffle(&mut keys);
        }
        for part in keys.chunks(self.plan.batch as usize) {
            self.train_on(&[(table, part.to_vec())])?;
            if self.is_poisoned() || self.medium.power_is_off() {
                return Ok(());
            }
        }
        match self.plan.kind {
            // Of a cache full of dirty rows: the budget is watched after each portion.
            Kind::Narrow => {
                self.begin_by_hand()?;
                self.complete_by_hand()
            }
            _ if self.random.chance(1, 2) => self.commit(),
            _ => Ok(()),
        }
    }

    /// The first table grows until its index has split, shrinks until that merges, and so on.
    fn grow_and_shrink(&mut self) -> Step {
        let (rows, most) = (self.table(0).len(), self.table(0).plan.keys);
        if rows * 4 > most * 3 {
            self.shrinks = true;
        } else if rows * 4 < most {
            self.shrinks = false;
        }
        if self.random.chance(1, 8) {
            // Splits and merges since the last round of the journal are recorded by deltas alone.
            self.commit()?;
            let goes_on = !self.is_poisoned() && !self.medium.power_is_off();
            return if goes_on { self.reopen() } else { Ok(()) };
        }
        if self.shrinks {
            return self.delete((0, self.ids[0]), 4);
        }
        let kind = self.table(0).plan.spec.optimizer.kind;
        let part = self.draw_part(0, kind);
        self.update_parts(vec![part])
    }

    pub(crate) fn draw_table(&mut self) -> (usize, TableId) {
        let table = self.random.below(self.model.tables.len() as u64) as usize;
        (table, self.ids[table])
    }

    fn table(&self, table: usize) -> &Table {
        &self.model.tables[table]
    }

    pub(crate) fn draw_keys(&mut self, table: usize) -> Vec<u64> {
        let plan = Rc::clone(&self.model.tables[table].plan);
        let most = self.plan.batch;
        plan.draw(&mut self.random, most)
    }

    fn get(&mut self) -> Step {
        let at = self.draw_table();
        let keys = self.draw_keys(at.0);
        self.note(|| format!("get {} keys of t{}", keys.len(), at.0));
        self.counts.verb("get");
        let narrow = self.table(at.0).plan.spec.dtype != Dtype::Float32;
        if narrow && self.random.chance(1, 3) {
            check::bits(self.store(), &self.model, at, &keys, &self.care())?;
            return Ok(());
        }
        let with_state = self.random.chance(1, 2);
        check::rows(self.store(), &self.model, at, &keys, with_state, &self.care())?;
        Ok(())
    }

    fn contains(&mut self) -> Step {
        let at = self.draw_table();
        let keys = self.draw_keys(at.0);
        self.note(|| format!("contains of {} keys of t{}", keys.len(), at.0));
        self.counts.verb("contains");
        check::contained(self.store(), &self.model, at, &keys, &self.care())?;
        Ok(())
    }

    fn scan(&mut self) -> Step {
        let at = self.draw_table();
        self.note(|| format!("scan t{}", at.0));
        let portion = 1 + self.random.below(200) as usize;
        if self.random.chance(1, 2) {
            self.counts.verb("scan");
            check::scanned(self.store(), &self.model, at, portion, &self.care())?;
        } else {
            self.counts.verb("digest");
            check::digest(self.store(), &self.model, at, &self.care())?;
        }
        Ok(())
    }

    fn small_questions(&mut self) -> Step {
        let (table, id) = self.draw_table();
        self.note(|| "len, stats".to_owned());
        self.counts.verb("stats");
        let expected = (self.table(table).len(), self.table(table).updates);
        let info = self.store().table_info(id);
        match info.map(|info| (info.rows, info.updates)) {
            Ok(found) if found == expected || self.care().torn.is_some() => {}
            found => {
                return Err(format!("table_info of t{table}: {found:?}, not {expected:?}").into());
            }
        }
        match self.store().stats() {
            Ok(_) => Ok(()),
            Err(error) => self.refused("stats", &error, None),
        }
    }

    fn warm(&mut self) -> Step {
        self.note(|| "warm".to_owned());
        self.counts.verb("warm");
        match self.store().warm() {
            Ok(_) => Ok(()),
            Err(error) => self.refused("warm", &error, None),
        }
    }

    /// Freezes all tables with frozen pages, which changes no row; half of the time the first of
    /// them has its keys in an order of their own.
    fn freeze(&mut self) -> Step {
        let has_pages = |table: &Table| table.plan.spec.storage == StorageKind::Pages;
        let Some(first) = self.model.tables.iter().find(|table| has_pages(table)) else {
            return self.warm();
        };
        let plan = Rc::clone(&first.plan);
        let mut keys: Vec<u64> = (0..plan.keys).map(|i| plan.key(i)).collect();
        for at in (1..keys.len()).rev() {
            keys.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        let count = keys.len() as u32;
        let replicas: Vec<u32> = (0..count).filter(|_| self.random.chance(1, 5)).collect();
        let planned = PlannedPages {
            tables: vec![plan.spec.name.clone()],
            rows_per_page: 1,
            table: vec![0; keys.len()],
            key: keys,
            replica_starts: (0..=replicas.len() as u32).collect(),
            replica_rows: replicas,
        };
        let plans = if self.random.chance(1, 2) { vec![planned] } else { Vec::new() };
        self.note(|| format!("freeze with {} plans", plans.len()));
        self.counts.verb("freeze");
        let options = FreezeOptions::new(Memory::Bytes(0));
        match self.store().freeze(&plans, &options, &mut |_, _| Ok(())) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Budget => {
                self.check_unchanged("freeze", None)?;
                let given = self.given();
                self.raise_memory(&error, given)
            }
            Err(error) => self.refused("freeze", &error, None),
        }
    }

    fn update(&mut self) -> Step {
        let mut parts: Vec<Part> = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let (table, _) = self.draw_table();
            let kind = self.table(table).plan.spec.optimizer.kind;
            if kind != OptimizerKind::None && parts.iter().all(|part| part.table != table) {
                let part = self.draw_part(table, kind);
                parts.push(part);
            }
        }
        self.update_parts(parts)
    }

    /// Changes some rows, and commits.
    pub(crate) fn write_something(&mut self) -> Step {
        for _ in 0..1 + self.random.below(3) {
            match self.random.below(4) {
                0 => self.put()?,
                1 => {
                    let at = self.draw_table();
                    self.delete(at, 1)?;
                }
                _ => self.update()?,
            }
            self.lies_now();
        }
        self.commit()?;
        self.lies_now();
        Ok(())
    }

    /// An update of so many rows of all tables that they do not fit what waits for storage.
    fn large_update(&mut self) -> Step {
        let mut batch = Vec::new();
        for table in 0..self.model.tables.len() {
            let plan = Rc::clone(&self.model.tables[table].plan);
            batch.push((table, plan.draw(&mut self.random, 500)));
        }
        self.train_on(&batch)
    }

    /// An update of the rows of a batch, of its tables that have an optimizer.
    pub(crate) fn train_on(&mut self, batch: &[(usize, Vec<u64>)]) -> Step {
        let mut parts: Vec<Part> = Vec::new();
        for (table, keys) in batch {
            let kind = self.table(*table).plan.spec.optimizer.kind;
            if kind != OptimizerKind::None && parts.iter().all(|part| part.table != *table) {
                let part = self.part_of(*table, kind, keys.clone());
                parts.push(part);
            }
        }
        self.update_parts(parts)
    }

    fn draw_part(&mut self, table: usize, kind: OptimizerKind) -> Part {
        let keys = self.draw_keys(table);
        self.part_of(table, kind, keys)
    }

    fn part_of(&mut self, table: usize, kind: OptimizerKind, keys: Vec<u64>) -> Part {
        let dim = self.table(table).dim();
        let random = &mut self.random;
        let gradients = (0..keys.len() * dim).map(|_| random.value()).collect();
        let mut hyper = Hyper { lr: *random.pick(&[0.5, 0.05]), ..kind.default_hyper() };
        if random.chance(1, 4) {
            hyper.weight_decay = 0.01;
        }
        if kind == OptimizerKind::Momentum {
            hyper.nesterov = random.chance(1, 2);
        }
        let step = random.chance(1, 8).then(|| 1 + random.below(20));
        Part { table, keys, gradients, hyper, step }
    }

    fn update_parts(&mut self, mut parts: Vec<Part>) -> Step {
        let mut non_finite = NonFinite::Refuse;
        let bad = self.random.chance(1, 16) && !parts.is_empty();
        if bad {
            non_finite = *self.random.pick(&[NonFinite::Refuse, NonFinite::Skip]);
            let part = &mut parts[0];
            let at = self.random.below(part.gradients.len() as u64) as usize;
            part.gradients[at] = *self.random.pick(&[f32::NAN, f32::INFINITY]);
        }
        let limit = self.random.chance(1, 6).then_some(0.75);
        let name = |p: &Part| format!("{} keys of t{}", p.keys.len(), p.table);
        self.note(|| format!("update {}", parts.iter().map(name).collect::<Vec<_>>().join(", ")));
        self.counts.verb("update");
        let mut change = Change::default();
        for part in &parts {
            let Part { table, keys, gradients, hyper, step } = part;
            let rows = self.table(*table).update(keys, gradients, hyper, *step, limit);
            change.rows.extend(rows.into_iter().map(|(key, row)| (*table, key, Some(row))));
            change.updated.push(*table);
        }
        let batches: Vec<UpdateBatch<'_>> = parts
            .iter()
            .map(|part| UpdateBatch {
                table: self.ids[part.table],
                keys: &part.keys,
                gradients: &part.gradients,
                hyper: part.hyper,
                non_finite,
                step: part.step,
            })
            .collect();
        let clip = Clip { value: limit.map(f64::from), ..Clip::default() };
        let result = self.store().update_within(&batches, &clip);
        if bad && non_finite == NonFinite::Refuse {
            return self.must_be_refused("update", ErrorKind::NonFinite, result, &change);
        }
        self.changed("update", result, change)
    }

    /// Handles the answer of a verb that changes rows.
    fn changed(&mut self, what: &str, result: Result<UpdateReport, Error>, change: Change) -> Step {
        match result {
            Ok(report) if report.rows != change.rows.len() as u64 => {
                let (found, expected) = (report.rows, change.rows.len());
                Err(format!("{what} reports {found} rows, expected {expected}").into())
            }
            Ok(_) => {
                self.full_in_a_row = 0;
                change.apply(&mut self.model);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Budget => {
                let given = self.given();
                self.raise_memory(&error, given)
            }
            Err(error) => {
                let full = error.kind() == ErrorKind::Full;
                self.refused(what, &error, Some(change))?;
                if full { self.make_room() } else { Ok(()) }
            }
        }
    }

    /// A verb that must be refused for what it was given.
    fn must_be_refused<T: std::fmt::Debug>(
        &mut self,
        what: &str,
        kind: ErrorKind,
        result: Result<T, Error>,
        change: &Change,
    ) -> Step {
        match result {
            Ok(done) => Err(format!("{what} did {done:?}, expected {kind:?}").into()),
            Err(error) if error.kind() == kind => {
                let touched = change.rows.first().map(|(table, ..)| *table);
                let Some(table) = touched else { return Ok(()) };
                let keys: Vec<u64> =
                    change.rows.iter().filter(|r| r.0 == table).map(|r| r.1).collect();
                let at = (table, self.ids[table]);
                check::rows(self.store(), &self.model, at, &keys, true, &self.care())?;
                Ok(())
            }
            Err(error) => self.refused(what, &error, Some(change.clone())),
        }
    }

    fn put(&mut self) -> Step {
        let (table, id) = self.draw_table();
        let keys = self.draw_keys(table);
        let (dim, words) = (self.table(table).dim(), self.table(table).state_words());
        let random = &mut self.random;
        let mut values: Vec<f32> = (0..keys.len() * dim).map(|_| random.value()).collect();
        let state: Option<Vec<f32>> = random
            .chance(1, 4)
            .then(|| (0..keys.len() * words).map(|_| random.value().abs()).collect());
        let reset_state = random.chance(1, 2);
        let mut skipped = None;
        if random.chance(1, 16) {
            let at = random.below(keys.len() as u64) as usize;
            values[at * dim] = f32::NAN;
            skipped = Some(at);
        }
        let skips = random.chance(1, 2);
        self.note(|| format!("put {} keys of t{table}", keys.len()));
        self.counts.verb("put");
        let of = self.table(table);
        // Of equal keys the last one counts.
        let mut last: BTreeMap<u64, usize> = BTreeMap::new();
        keys.iter().enumerate().for_each(|(i, key)| {
            last.insert(*key, i);
        });
        let bad = skipped.is_some_and(|at| last[&keys[at]] == at);
        let rows = last.iter().filter(|(_, i)| skipped != Some(**i)).map(|(key, i)| {
            let state = state.as_ref().map(|state| &state[i * words..][..words]);
            let row = of.put(*key, &values[i * dim..][..dim], state, reset_state);
            (table, *key, Some(row))
        });
        let change = Change { rows: rows.collect(), updated: Vec::new() };
        let batch = PutBatch {
            table: id,
            keys: &keys,
            values: &values,
            state: state.as_deref(),
            reset_state,
            non_finite: if skips { NonFinite::Skip } else { NonFinite::Refuse },
        };
        let result = self.store().put(&[batch]);
        if bad && !skips {
            return self.must_be_refused("put", ErrorKind::NonFinite, result, &change);
        }
        self.changed("put", result, change)
    }

    fn modify(&mut self) -> Step {
        let (table, id) = self.draw_table();
        let keys = self.draw_keys(table);
        let fails = self.random.chance(1, 6);
        self.note(|| format!("modify {} keys of t{table}", keys.len()));
        self.counts.verb("modify");
        let f = |values: &mut [f32], state: &mut [f32]| {
            values.iter_mut().for_each(|v| *v = *v * 0.5 + 1.0);
            state.iter_mut().for_each(|s| *s += 0.25);
        };
        let mut distinct = keys.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let of = self.table(table);
        let rows = distinct.iter().map(|key| (table, *key, Some(of.modified(*key, f))));
        let change = Change { rows: rows.collect(), updated: Vec::new() };
        let result = self.store().modify(id, &keys, &mut |_, values, state| {
            f(values, state);
            match fails {
                true => Err(Error::new(ErrorKind::Callback, "asked for")),
                false => Ok(()),
            }
        });
        if fails {
            return self.must_be_refused("modify", ErrorKind::Callback, result, &change);
        }
        self.changed("modify", result, change)
    }

    /// Deletes the keys of so many draws.
    pub(crate) fn delete(&mut self, (table, id): (usize, TableId), times: u64) -> Step {
        let mut keys = self.draw_keys(table);
        for _ in 1..times {
            let more = self.draw_keys(table);
            keys.extend(more);
        }
        self.note(|| format!("delete {} keys of t{table}", keys.len()));
        self.counts.verb("delete");
        let mut distinct = keys.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let of = self.table(table);
        let written = distinct.iter().filter(|key| of.contains(**key)).count() as u64;
        let rows: Vec<(usize, u64, Option<Row>)> =
            distinct.iter().map(|key| (table, *key, None)).collect();
        let change = Change { rows, updated: Vec::new() };
        match self.store().delete(id, &keys) {
            Ok(deleted) if deleted == written => {
                change.apply(&mut self.model);
                Ok(())
            }
            Ok(deleted) => {
                Err(format!("delete from t{table} reports {deleted}, expected {written}").into())
            }
            Err(error) if error.kind() == ErrorKind::Budget => {
                self.check_unchanged("delete", Some(&change))?;
                let given = self.given();
                self.raise_memory(&error, given)
            }
            Err(error) => self.refused("delete", &error, Some(change)),
        }
    }

    /// Verbs that are refused for their arguments, and change nothing.
    fn refused_verb(&mut self) -> Step {
        let (table, id) = self.draw_table();
        self.note(|| format!("refused verbs of t{table}"));
        self.counts.verb("refused");
        let none = Change::default();
        let dim = self.table(table).dim();
        if let Some(rows) = self.table(table).plan.spec.num_embeddings {
            let keys = [rows];
            let result = self.store().contains(id, &keys, &mut [false]);
            self.must_be_refused("contains", ErrorKind::KeyRange, result, &none)?;
            let result = self.store().delete(id, &keys);
            return self.must_be_refused("delete", ErrorKind::KeyRange, result, &none);
        }
        let (keys, values) = ([1], vec![0.0; dim + 1]);
        let batch = PutBatch {
            table: id,
            keys: &keys,
            values: &values,
            state: None,
            reset_state: false,
            non_finite: NonFinite::Refuse,
        };
        let result = self.store().put(&[batch]);
        self.must_be_refused("put", ErrorKind::Misuse, result, &none)
    }

    /// A table that comes later than the others.
    fn add_table(&mut self) -> Step {
        let late = self.plan.tables.iter().find(|plan| self.model.find(&plan.spec.name).is_none());
        let Some(plan) = late.cloned().map(Rc::new) else { return self.update() };
        let first = self.model.tables.is_empty();
        self.note(|| format!("add table {}", plan.spec.name));
        self.counts.verb("table");
        match self.store().table(&plan.spec) {
            Ok(id) => {
                if !first {
                    self.counts.event(Event::TableAdded);
                }
                self.model.tables.push(Table::new(&plan, self.plan.row_seed()));
                self.ids.push(id);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Budget => {
                let given = self.given();
                self.raise_memory(&error, given)
            }
            Err(error) => self.refused("table", &error, None),
        }
    }

    /// Deletes and commits after some refusals. After some more, the store must take something.
    fn make_room(&mut self) -> Step {
        self.full_in_a_row += 1;
        if self.cannot_go_on() || !self.full_in_a_row.is_multiple_of(3) {
            return Ok(());
        }
        if self.full_in_a_row.is_multiple_of(6) && self.plan.is_roomy() {
            return self.insist();
        }
        if self.random.chance(1, 2) {
            let at = self.draw_table();
            self.delete(at, 2)?;
        }
        if self.cannot_go_on() { Ok(()) } else { self.commit() }
    }

    /// A store with room for its rows and for what commits keep of them was full again and again.
    /// Without readers, and once the kept commits are alike, it takes a row of each table.
    fn insist(&mut self) -> Step {
        self.counts.event(Event::Insisted);
        self.readers.clear();
        self.unpin_all()?;
        // A journal that replaces another takes some commits to write. The other goes once no kept
        // commit is in it.
        for _ in 0..2 * (self.plan.keep_max() + 2) {
            self.medium.end_single_faults();
            self.commit()?;
            if self.cannot_go_on() {
                return Ok(());
            }
        }
        for table in 0..self.model.tables.len() {
            let key = self.table(table).plan.key(0);
            let row = self.table(table).row(key);
            let values = row[..self.table(table).dim()].to_vec();
            let batch = PutBatch {
                table: self.ids[table],
                keys: &[key],
                values: &values,
                state: None,
                reset_state: false,
                non_finite: NonFinite::Apply,
            };
            if let Err(error) = self.store().put(&[batch]) {
                let n = self.full_in_a_row;
                return Err(
                    format!("after {n} refusals and as many commits as it keeps, {error}").into()
                );
            }
            let put = self.table(table).put(key, &values, None, false);
            self.model.tables[table].write(key, put);
        }
        self.full_in_a_row = 0;
        Ok(())
    }

    fn cannot_go_on(&self) -> bool {
        self.is_poisoned() || self.is_doomed() || self.medium.power_is_off()
    }
}
