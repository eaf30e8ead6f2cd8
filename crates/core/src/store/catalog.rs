//! Changes of the catalog beside new tables: a table is dropped, gets another name, or more ids.
//!
//! Each is a record of the journal and durable with the next commit, together with what was changed
//! until then; earlier commits keep the catalog that they had. An id is never given again, so no
//! stored copy of a table that was dropped passes for a row of a later one, whatever its name. A
//! table that was renamed goes on to hash its keys with its first name, so its rows that were never
//! written stay what they are.

use super::engine::{Engine, Table};
use super::journal::{ChangeOf, RecordKind, TableChange, VERSION_OF_CHANGES};
use super::memory::budget;
use super::{Inner, Store};
use crate::config::{DENSE_IDS_MAX, Memory, TableId, TableSpec};
use crate::error::{Result, bail};
use crate::storage;
use parking_lot::{MutexGuard, RwLockWriteGuard};

/// The reason for a newer version of the journal, for messages.
const WHAT: &str = "the first table that is dropped, renamed or grown";

impl Store {
    /// Drops a table with all its rows. Its name is free from here on; verbs with its id are
    /// `NotFound`, and a scan of it ends so.
    ///
    /// *Errors*: `NotFound`; `Full` where the journal has no room; `Io` makes the store refuse
    /// writes until it is opened again. *Blocking*: waits for verbs and for a commit that is under
    /// way, and writes dirty rows. *Durability*: with the next commit. Kept commits keep the table,
    /// and its room comes back as they go.
    pub fn drop_table(&self, table: TableId) -> Result<()> {
        let inner = &*self.inner;
        let (_one, mut engine) = inner.begin_change()?;
        let found = inner.table_of(&engine, table)?;
        let (id, class) = (found.id(), &engine.classes[found.class]);
        inner.settle_rows(&engine)?;
        inner.prepare_change(&engine)?;
        let drained = inner.journal_changes(class, &mut **class.log.lock());
        inner.poison_on_error(drained)?;
        let name = found.record.spec.name.clone();
        inner.record_change(TableChange { id, name, change: ChangeOf::Drop })?;
        let of_class = class.record.id;
        let before = engine.log_of(of_class).disk_bytes();
        engine.log_of(of_class).drop_table(id);
        let after = engine.log_of(of_class).disk_bytes();
        inner.count_disk_bytes(before, after);
        let at = engine.place_of(id).expect("the table was found above");
        engine.drop_table(at);
        Ok(())
    }

    /// Gives a table another name. Its rows stay, and so do its initial rows.
    ///
    /// *Errors*: `NotFound`; `Misuse` for a name that a table has, or that none can have; `Full`
    /// and `Io` as [`drop_table`](Self::drop_table). *Blocking*: waits for verbs and for a commit
    /// that is under way. *Durability*: with the next commit.
    pub fn rename_table(&self, table: TableId, name: &str) -> Result<()> {
        let inner = &*self.inner;
        let (_one, mut engine) = inner.begin_change()?;
        let found = inner.table_of(&engine, table)?;
        let id = found.id();
        let before = found.record.spec.name.clone();
        if before == name {
            return Ok(());
        }
        if engine.tables.iter().any(|other| other.record.spec.name == name) {
            bail!(
                Misuse,
                "table '{before}' cannot be renamed to '{name}', which is another table's name; \
                 drop or rename that one first, or choose another name"
            );
        }
        TableSpec { name: name.to_owned(), ..found.record.spec.clone() }.validate()?;
        inner.prepare_change(&engine)?;
        let change = ChangeOf::Rename(name.to_owned());
        inner.record_change(TableChange { id, name: before, change: change.clone() })?;
        let at = engine.place_of(id).expect("the table was found above");
        change.apply(&mut engine.tables[at].record);
        Ok(())
    }

    /// Gives a dense table more ids, up to `num_embeddings` without it. The new ones have initial
    /// rows. One that has as many is left as it is.
    ///
    /// *Errors*: `NotFound`; `Misuse` for fewer ids than it has, more than it can have, or a
    /// growing table; `Budget` naming a memory that works; `Full` where the disk cannot hold all
    /// rows; `Io` as [`drop_table`](Self::drop_table). Nothing changed after all others.
    /// *Blocking*: waits for verbs and for a commit that is under way, and writes dirty rows.
    /// *Durability*: with the next commit.
    pub fn grow_table(&self, table: TableId, num_embeddings: u64) -> Result<()> {
        let inner = &*self.inner;
        let (_one, mut engine) = inner.begin_change()?;
        let found = inner.table_of(&engine, table)?;
        let (id, at_class) = (found.id(), found.class);
        let spec = &found.record.spec;
        let name = &spec.name;
        let Some(before) = spec.num_embeddings else {
            bail!(
                Misuse,
                "table '{name}' has no num_embeddings: it takes any key, and grows by itself"
            );
        };
        if num_embeddings == before {
            return Ok(());
        }
        if num_embeddings < before {
            bail!(
                Misuse,
                "table '{name}' has {before} ids, asked for {num_embeddings}: a table has more ids \
                 or as many, never fewer"
            );
        }
        let by_id = found.record.dense_ids().is_some();
        if by_id && num_embeddings > DENSE_IDS_MAX {
            bail!(
                Misuse,
                "table '{name}' is stored by id and has at most {DENSE_IDS_MAX} num_embeddings, \
                 asked for {num_embeddings}; export its rows to a growing table"
            );
        }
        let grown = TableSpec { num_embeddings: Some(num_embeddings), ..spec.clone() };
        let layout = grown.validate()?;
        inner.check_disk(&engine, &grown, &layout)?;
        if by_id {
            inner.check_growth(&engine, found, num_embeddings)?;
        }
        inner.settle_rows(&engine)?;
        inner.prepare_change(&engine)?;
        if by_id {
            engine.classes[at_class].log.lock().grow_table(id, num_embeddings)?;
        }
        let change = ChangeOf::Grow(num_embeddings);
        // Pieces of the index name ids that only the record explains.
        let name = name.clone();
        inner.record_change(TableChange { id, name, change: change.clone() })?;
        let at = engine.place_of(id).expect("the table was found above");
        change.apply(&mut engine.tables[at].record);
        engine.count_dense_rows();
        Ok(())
    }
}

impl Inner {
    /// The engine alone, for one change of the catalog at a time.
    fn begin_change(&self) -> Result<(MutexGuard<'_, ()>, RwLockWriteGuard<'_, Engine>)> {
        self.check_writable()?;
        let one = self.creating.lock();
        self.prepare_writing()?;
        let engine = self.exclusive()?;
        self.check_writable()?;
        Ok((one, engine))
    }

    /// Writes dirty rows and ends units of upkeep: there will be other caches, which know nothing
    /// of either. Without a plan no row is dirty, and without a cache there is no unit.
    fn settle_rows(&self, engine: &Engine) -> Result<()> {
        if engine.planned {
            self.reserve(engine, &[])?;
            self.flush_all(engine)?;
        }
        let mut with_units = engine.classes.iter().filter(|class| class.tier.is_some());
        with_units.try_for_each(|class| self.end_unit(engine, class))
    }

    /// Makes room for the record, in a file that earlier builds refuse.
    fn prepare_change(&self, engine: &Engine) -> Result<()> {
        self.reserve_table(engine)?;
        self.begin_version(engine, VERSION_OF_CHANGES, WHAT)
    }

    fn record_change(&self, change: TableChange) -> Result<()> {
        let written = self.history.lock().append_json(RecordKind::TableChange, &change);
        self.poison_on_error(written)?;
        // Counted, because a close without commit would lose it.
        self.note_batch(0);
        Ok(())
    }

    /// Refuses more ids than the index has memory for.
    fn check_growth(&self, engine: &Engine, table: &Table, ids: u64) -> Result<()> {
        // One in per cent grows with the table.
        let Memory::Bytes(bytes) = self.options.memory else { return Ok(()) };
        let spec = &table.record.spec;
        let before = spec.num_embeddings.unwrap_or(0);
        let more = storage::index_memory_to_grow(
            (spec.storage, table.record.packed),
            (before, ids),
            spec.expected_rows,
            self.options.merging(),
        )?;
        let mut demands = engine.demands();
        let demand = &mut demands[table.class];
        demand.ids += ids - before;
        demand.rows += ids - before;
        demand.index_bytes += more.now;
        demand.index_growth += more.growth;
        budget::check(bytes, &demands, self.options.memory_unit)
            .map_err(|error| error.context(format!("table '{}' with {ids} ids", spec.name)))
    }
}
