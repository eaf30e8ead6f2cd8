//! Tables that are dropped, renamed and grown.

use crate::life::{Life, Step};
use crate::model::Change;
use crate::plan::TablePlan;
use crate::report::Event;
use embedrock_core::config::TableSpec;
use embedrock_core::{Error, ErrorKind};
use std::rc::Rc;

/// More ids that a table gets at most: few, for the room of a life is that of its plan.
const MORE_IDS: u64 = 20;

impl Life<'_> {
    /// One change of a table, durable with the next commit.
    pub(crate) fn change_tables(&mut self) -> Step {
        let (table, _) = self.draw_table();
        let is_dense = self.model.tables[table].plan.spec.num_embeddings.is_some();
        match self.random.below(4) {
            // The first one is what a life of growth is about.
            0 if table > 0 => self.drop_table(table),
            0 | 1 => self.rename_table(table),
            _ if is_dense => self.grow_table(table),
            _ => self.rename_table(table),
        }
    }

    fn drop_table(&mut self, table: usize) -> Step {
        self.note(|| format!("drop table {table}"));
        self.counts.verb("drop_table");
        match self.store().drop_table(self.ids[table]) {
            Ok(()) => {
                self.counts.event(Event::TableDropped);
                self.model.tables.remove(table);
                self.ids.remove(table);
                // They name tables by their places.
                self.announced.clear();
                Ok(())
            }
            Err(error) => self.refused("drop_table", &error, Some(Change::default())),
        }
    }

    fn rename_table(&mut self, table: usize) -> Step {
        let name = format!("r{}", self.operation);
        self.note(|| format!("rename table {table} to {name}"));
        self.counts.verb("rename_table");
        match self.store().rename_table(self.ids[table], &name) {
            Ok(()) => {
                self.counts.event(Event::TableRenamed);
                self.have_spec(table, |spec| spec.name = name, 0);
                Ok(())
            }
            Err(error) => self.refused("rename_table", &error, Some(Change::default())),
        }
    }

    fn grow_table(&mut self, table: usize) -> Step {
        let ids = self.model.tables[table].plan.spec.num_embeddings.unwrap_or(0);
        let more = 1 + self.random.below(MORE_IDS);
        self.note(|| format!("grow table {table} from {ids} by {more}"));
        self.counts.verb("grow_table");
        match self.store().grow_table(self.ids[table], ids + more) {
            Ok(()) => {
                self.counts.event(Event::TableGrown);
                self.have_spec(table, |spec| spec.num_embeddings = Some(ids + more), more);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Budget => self.take_named(&error),
            Err(error) => self.refused("grow_table", &error, Some(Change::default())),
        }
    }

    fn take_named(&mut self, error: &Error) -> Step {
        let given = self.given();
        self.raise_memory(error, given)
    }

    /// The model's table is another from here on; its rows and their hashes stay.
    fn have_spec(&mut self, table: usize, change: impl FnOnce(&mut TableSpec), more_keys: u64) {
        let plan = &mut self.model.tables[table].plan;
        let mut spec = TableSpec::clone(&plan.spec);
        change(&mut spec);
        let keys = plan.keys + more_keys;
        *plan = Rc::new(TablePlan { spec: Rc::new(spec), keys, ..TablePlan::clone(plan) });
    }
}
