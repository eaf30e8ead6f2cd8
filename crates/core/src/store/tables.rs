//! Tables: creating them, opening them with the parameters that they have, planning memory.

use super::engine::{Class, Engine, Table};
use super::files::class_file::{class_file_name, create_class_file};
use super::journal::{ClassRecord, JournalFile, RecordKind, TableRecord, VERSION_OF_CHANGES};
use super::memory::budget::{self, ClassDemand, READ_DEPTHS, RowsToCome};
use super::{Inner, Store, has_file};
use crate::config::{Memory, Merging, StorageKind, TableId, TableInfo, TableSpec};
use crate::error::{Result, bail};
use crate::io::{DeviceCurve, IoKind, Medium, measure};
use crate::row::RowLayout;
use crate::storage::{
    self, ClassNeed, PAGE_SIZES, PageLayout, Storage, TableFacts, choose_page, possible_pages,
};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes of the file that the device is measured on.
const MEASURE_BYTES: u64 = 32 << 20;
/// One turn of a size or a depth; the longer one where a table will be larger than `LARGE_BYTES`,
/// which takes longer to write than the device to measure.
const MEASURE_SLICE: Duration = Duration::from_millis(12);
const MEASURE_SLICE_LARGE: Duration = Duration::from_millis(40);
const LARGE_BYTES: u64 = 128 << 20;
const TABLES_MAX: usize = 65_536;
/// The file that the device is measured on.
pub(super) const MEASURE: &str = "measure";

/// A class that is about to be made.
struct NewClass {
    record: ClassRecord,
    /// Page sizes that it could have had, had the device been measured otherwise.
    choices: Vec<usize>,
}

impl Store {
    /// Creates a table, or opens the one of that name, whose parameters must be the same.
    ///
    /// A new table is durable with the next commit. *Errors*: `Mismatch` naming what is stored and
    /// what was asked, `Misuse` for parameters that cannot work, `Full` naming the bytes that all
    /// its rows need on disk, `Budget` naming a memory that works.
    pub fn table(&self, spec: &TableSpec) -> Result<TableId> {
        self.table_in_pages(spec, self.inner.options.page_bytes)
    }

    /// As [`table`](Self::table), whose row class has pages of so many bytes if it is new; without
    /// a number the device is measured.
    pub(super) fn table_in_pages(
        &self,
        spec: &TableSpec,
        page_bytes: Option<usize>,
    ) -> Result<TableId> {
        let inner = &*self.inner;
        inner.check_call()?;
        if let Some(id) = self.find_table(&spec.name) {
            return self.table_as_stored(id, spec);
        }
        let _one = inner.creating.lock();
        // Another thread may have made it.
        if let Some(id) = self.find_table(&spec.name) {
            return self.table_as_stored(id, spec);
        }
        inner.check_writable()?;
        inner.check_open()?;
        inner.check_folder()?;
        let layout = spec.validate()?;
        inner.prepare_writing()?;
        let measured = inner.measure_for(spec, &layout, page_bytes)?;
        let mut engine = inner.exclusive()?;
        inner.check_writable()?;
        if engine.ids() >= TABLES_MAX {
            bail!(
                Misuse,
                "a store has at most {TABLES_MAX} tables in its life, those among them that were \
                 dropped; embedrock copy makes one with those alone that it has"
            );
        }
        if engine.planned {
            inner.reserve(&engine, &[])?;
            inner.flush_all(&engine)?;
        }
        inner.check_region(spec, &layout)?;
        inner.check_disk(&engine, spec, &layout)?;
        inner.reserve_table(&engine)?;
        let row_bytes = layout.row_bytes();
        let mut classes = engine.classes.iter();
        let class = match classes.find(|c| c.record.is_for(row_bytes, spec.storage)) {
            Some(class) => Ok(class.record.id),
            None => Err(inner.new_class(&engine, row_bytes, spec, page_bytes, measured)?),
        };
        inner.check_budget(&engine, spec, &class)?;
        if spec.first_name.is_some() {
            inner.begin_version(&engine, VERSION_OF_CHANGES, "a table with a first name")?;
        }
        let (id, born, dropped) = (engine.ids() as u16, true, false);
        let spec = TableSpec { capacity: spec.room(), ..spec.clone() };
        let packed = is_packed(&spec);
        let mut record =
            TableRecord { id, class: 0, spec, partitions: None, packed, born, dropped };
        // It has no partitions yet that say how it is stored.
        let ids = record.spec.new_dense_ids();
        let facts = TableFacts { num_embeddings: ids, ..record.facts() };
        (record.class, record.partitions) = match class {
            Ok(class) => (class, inner.take_in(engine.log_of(class), &facts)?),
            Err(class) => inner.add_class(&mut engine, class, &facts)?,
        };
        let classes: Vec<ClassRecord> = engine.classes.iter().map(|c| c.record.clone()).collect();
        // The next opening would refuse what this does.
        let sound = record.verify(engine.table_records().into_iter(), &classes, u64::MAX);
        let append = |()| inner.history.lock().append_json(RecordKind::Table, &record);
        let written = sound.and_then(append);
        written.inspect_err(|_| engine.log_of(record.class).remove_table(id))?;
        engine.add_table(record)?;
        Ok(TableId(id))
    }

    fn table_as_stored(&self, id: TableId, spec: &TableSpec) -> Result<TableId> {
        compare(&self.table_info(id)?.spec, spec)?;
        Ok(id)
    }

    /// The table of this name, if there is one; none where [`check_call`](Self::check_call)
    /// refuses.
    pub fn find_table(&self, name: &str) -> Option<TableId> {
        self.check_call().ok()?;
        let engine = self.inner.engine.read();
        engine.tables.iter().find(|t| t.record.spec.name == name).map(|t| TableId(t.id()))
    }

    /// All tables, in order of creation; none where [`check_call`](Self::check_call) refuses.
    pub fn tables(&self) -> Vec<TableInfo> {
        if self.check_call().is_err() {
            return Vec::new();
        }
        self.inner.engine.read().tables.iter().map(super::engine::Table::info).collect()
    }

    /// Description of a table.
    pub fn table_info(&self, table: TableId) -> Result<TableInfo> {
        self.inner.check_call()?;
        let engine = self.inner.engine.read();
        if engine.closed {
            return Err(self.inner.closed());
        }
        Ok(self.inner.table_of(&engine, table)?.info())
    }

    /// Keys written and not deleted, uncommitted ones included.
    pub fn len(&self, table: TableId) -> Result<u64> {
        Ok(self.table_info(table)?.rows)
    }
}

/// Refuses to open a table with other parameters than it has.
pub(super) fn compare(stored: &TableSpec, asked: &TableSpec) -> Result<()> {
    let mut differences = Vec::new();
    let mut differ = |what: &str, stored: String, asked: String| {
        if stored != asked {
            differences.push(format!("{what} is {stored}, asked {asked}"));
        }
    };
    let dim = |s: &TableSpec| s.embedding_dim.to_string();
    differ("embedding_dim", dim(stored), dim(asked));
    let rows = |s: &TableSpec| s.num_embeddings.map_or("None".to_owned(), |n| n.to_string());
    differ("num_embeddings", rows(stored), rows(asked));
    let storage = |s: &TableSpec| s.storage.name().to_owned();
    differ("storage", storage(stored), storage(asked));
    let dtype = |s: &TableSpec| s.dtype.name().to_owned();
    differ("dtype", dtype(stored), dtype(asked));
    if stored.dtype.is_half() {
        let rounding = |s: &TableSpec| format!("{:?}", s.rounding).to_lowercase();
        differ("rounding", rounding(stored), rounding(asked));
    }
    let name = &stored.name;
    if let (false, Some(asked)) = (stored.storage.is_direct(), asked.capacity) {
        let storage = stored.storage.name();
        bail!(
            Mismatch,
            "capacity is {asked}, and table '{name}' has storage \"{storage}\", which grows as it \
             needs to; leave it out"
        );
    }
    if let (Some(room), Some(asked)) = (stored.capacity, asked.capacity)
        && asked > room
    {
        bail!(
            Mismatch,
            "table '{name}' has room for {room} rows, asked for {asked}: close the store and run \
             embedrock resize STORE '{name}' --capacity {asked}"
        );
    }
    let text = |v: serde_json::Result<String>| v.unwrap_or_default();
    let optimizer = |s: &TableSpec| text(serde_json::to_string(&s.optimizer));
    differ("optimizer", optimizer(stored), optimizer(asked));
    let initializer = |s: &TableSpec| text(serde_json::to_string(&s.initializer));
    differ("initializer", initializer(stored), initializer(asked));
    if !differences.is_empty() {
        let way_out = match (stored.num_embeddings, asked.num_embeddings) {
            (Some(ids), Some(more)) if more > ids => format!(
                "to give it more ids, open it with num_embeddings={ids} and call grow({more}) of \
                 the table or its module, or run embedrock grow STORE '{name}' {more}: its rows \
                 stay"
            ),
            _ => "open it as stored, or use another name".to_owned(),
        };
        bail!(
            Mismatch,
            "table '{name}' exists with other parameters: stored {}; {way_out}",
            differences.join("; stored ")
        );
    }
    Ok(())
}

impl Inner {
    /// Divides the memory budget anew; rows that are dirty are written first.
    pub(super) fn plan(&self) -> Result<()> {
        let mut engine = self.engine_alone();
        if engine.planned || engine.closed {
            return Ok(());
        }
        if !self.options.read_only {
            self.flush_all(&engine)?;
            for class in &engine.classes {
                let mut log = class.log.lock();
                // Changes that are drained and not in the journal are lost.
                let written = self.journal_changes(class, &mut **log);
                // Here and not by the plan, whose failure changes nothing.
                self.poison_on_error(written.and_then(|()| log.write_out()))?;
            }
        }
        self.history.lock().index_bytes = engine.index_bytes_of_pieces();
        engine.plan(&self.options, &*self.medium)?;
        *self.divided.lock() = Some((engine.asked_bytes, engine.budget_bytes));
        self.was_divided.store(true, Ordering::Relaxed);
        let fits = self.shrink_to(&engine, 0, Engine::index_bytes_to_come)?;
        // The look-ahead window gives back its memory with its next task.
        if !fits && engine.window_bytes.load(Ordering::Relaxed) == 0 {
            engine.planned = false;
            engine.check_budget(&self.options)?;
            bail!(
                Budget,
                "{} bytes in use are more than memory={}, and no cache can give any; reopen with \
                 at least memory={}",
                engine.memory().total(),
                engine.spell(&self.options, engine.budget_bytes),
                engine.spell(&self.options, budget::enough(&engine.demands())),
            );
        }
        Ok(())
    }

    /// Refuses a table with which the budget cannot work. One in per cent grows with the tables
    /// still to come and is never less than works, but needs to know how many rows each will have.
    fn check_budget(
        &self,
        engine: &Engine,
        spec: &TableSpec,
        class: &std::result::Result<u16, NewClass>,
    ) -> Result<()> {
        let Memory::Bytes(budget) = self.options.memory else {
            let rows = match spec.storage.is_direct() {
                true => Some(0),
                false => new_rows_to_come(spec),
            };
            let table = spec.name.as_str();
            let new = RowsToCome { table, rows, row_bytes: 0 };
            return budget::bytes_of(self.options.memory, &[new]).map(drop);
        };
        let demands = demands_with(engine, spec, class.as_ref(), self.options.merging())?;
        budget::check(budget, &demands, self.options.memory_unit).map_err(|e| {
            // Ahead of the message, which ends with the budget that works.
            let hint = match (spec.storage, spec.new_dense_ids()) {
                (StorageKind::Lsm, Some(ids)) => format!(
                    " (stored by id, all {ids} of them: give expected_rows= if less than a third \
                     will have rows)"
                ),
                _ => String::new(),
            };
            e.context(format!("table '{}'{hint}", spec.name))
        })
    }

    /// The page that was chosen for a class, or the largest other one with which the budget works:
    /// one that was enough with the page of an earlier measurement is enough again.
    fn affordable_page(
        &self,
        engine: &Engine,
        spec: &TableSpec,
        class: &NewClass,
    ) -> Result<usize> {
        let chosen = class.record.page_bytes;
        let Memory::Bytes(budget) = self.options.memory else { return Ok(chosen) };
        let mut demands = demands_with(engine, spec, Err(class), self.options.merging())?;
        let new = demands.len() - 1;
        let smaller = class.choices.iter().rev().copied().filter(|page| *page < chosen);
        for page_bytes in std::iter::once(chosen).chain(smaller) {
            demands[new].page_bytes = page_bytes;
            if budget::works(budget, &demands) {
                return Ok(page_bytes);
            }
        }
        Ok(chosen)
    }

    /// Refuses a region beyond the bound on disk, all of which it takes from the beginning.
    fn check_region(&self, spec: &TableSpec, layout: &RowLayout) -> Result<()> {
        let (Some(rows), Some(most)) = (spec.room(), self.options.max_disk_bytes) else {
            return Ok(());
        };
        let (row_bytes, share) = (layout.row_bytes(), self.options.merging().top_share);
        let needed = storage::disk_bytes_for(spec.storage, rows, row_bytes, share).own;
        let used = self.disk_bytes();
        if self.options.pmem_directory.is_none() && used.saturating_add(needed) > most {
            bail!(
                Full,
                "the region of table '{}' for {rows} rows takes {needed} bytes, beside {used} of \
                 max_disk_bytes={most}; raise it, give less capacity, or a folder apart with \
                 pmem_path=",
                spec.name
            );
        }
        Ok(())
    }

    /// Refuses a table whose rows, all written, the disk could not hold.
    pub(super) fn check_disk(
        &self,
        engine: &Engine,
        spec: &TableSpec,
        layout: &RowLayout,
    ) -> Result<()> {
        let Some(rows) = new_rows_to_come(spec) else { return Ok(()) };
        if !self.options.check_disk {
            return Ok(());
        }
        let bytes = |spec: &TableSpec, rows, row_bytes| {
            let share = self.options.merging().top_share;
            storage::disk_bytes_for(spec.storage, rows, row_bytes, share)
        };
        // Regions in a folder of their own take no room here; it is reserved when they are made.
        if spec.storage.is_direct() && self.options.pmem_directory.is_some() {
            return Ok(());
        }
        let mut needed = bytes(spec, rows, layout.row_bytes());
        // One that is to grow counts with the rows that it will have, and so does one in whose
        // place another comes.
        let is_other = |name: &String| *name != spec.name && spec.first_name.as_ref() != Some(name);
        let is_here = |table: &&Table| {
            is_other(&table.record.spec.name)
                && table.region.as_ref().is_none_or(|region| region.is_own())
        };
        for table in engine.tables.iter().filter(is_here) {
            if let Some(rows) = table.record.rows_to_come() {
                needed += bytes(&table.record.spec, rows, table.layout.row_bytes());
            }
        }
        let check = |what: &str, needed: u64, have: u64| {
            if needed > have {
                bail!(
                    Full,
                    "table '{}' makes the store need {needed} bytes {what} once every row is \
                     written, and there are {have} for it; make room, raise max_disk_bytes, or \
                     pass check_disk=False if most rows will never be written",
                    spec.name
                );
            }
            Ok(())
        };
        let used = self.disk_bytes();
        let free = self.medium.free_bytes_in_all()?.saturating_add(used);
        let have = self.options.max_disk_bytes.map_or(free, |most| most.min(free));
        check("on disk", needed.all(), have)?;
        // Room of one device is of no use to what lies on another.
        let Some(apart) = self.medium.apart() else { return Ok(()) };
        let cold = self.cold_bytes()?;
        let own = self.medium.free_bytes()?.saturating_add(used.saturating_sub(cold));
        check("in its own directory", needed.own, own)?;
        check("in its cold directory", needed.apart, apart.free_bytes()?.saturating_add(cold))
    }

    /// Measures the device where the table needs a class that nothing was measured for. Takes up to
    /// seconds, in which verbs of others go on: the engine is let go.
    fn measure_for(
        &self,
        spec: &TableSpec,
        layout: &RowLayout,
        page_bytes: Option<usize>,
    ) -> Result<Option<DeviceCurve>> {
        let row_bytes = layout.row_bytes();
        let large =
            new_rows_to_come(spec).unwrap_or(0).saturating_mul(row_bytes as u64) >= LARGE_BYTES;
        if spec.storage.is_direct() || (page_bytes.is_some() && !large) {
            return Ok(None);
        }
        {
            let engine = self.engine.read();
            if engine.closed {
                return Err(self.closed());
            }
            let is_there = |class: &Class| class.record.is_for(row_bytes, spec.storage);
            if engine.classes.iter().any(is_there) || self.known_curve(&engine, spec).is_some() {
                return Ok(None);
            }
            self.check_disk(&engine, spec, layout)?;
        }
        // The medium of most rows of such a class: partitions may be on another device.
        let medium = match (spec.storage, self.medium.apart()) {
            (kind, Some(apart)) if kind.has_bottom() => apart,
            _ => &self.medium,
        };
        self.measure_device(&**medium, if large { MEASURE_SLICE_LARGE } else { MEASURE_SLICE })
    }

    /// The measurement for another class whose rows lie on the same device.
    fn known_curve(&self, engine: &Engine, spec: &TableSpec) -> Option<DeviceCurve> {
        let is_alike =
            |class: &&Class| self.medium.apart().is_none() || class.record.storage == spec.storage;
        let mut alike = engine.classes.iter().filter(is_alike);
        alike.find_map(|class| class.record.curve.clone())
    }

    /// The class to be made for rows of `row_bytes`, stored as the table asks, on a device that was
    /// `measured` if none was before.
    fn new_class(
        &self,
        engine: &Engine,
        row_bytes: usize,
        spec: &TableSpec,
        page_bytes: Option<usize>,
        measured: Option<DeviceCurve>,
    ) -> Result<NewClass> {
        // No page of such a class is read.
        let alignment = self.medium.alignment();
        let page_bytes = match spec.storage.is_direct() {
            true => Some(choose_page(row_bytes, alignment, None, false)),
            false => page_bytes,
        };
        if let Some(page_bytes) = page_bytes.filter(|_| !spec.storage.is_direct()) {
            PageLayout::new(page_bytes.max(self.medium.alignment()), row_bytes, 0, self.seed)?;
        }
        let curve = self.known_curve(engine, spec).or(measured);
        let bounded = self.options.max_disk_bytes.is_some();
        let (page_bytes, choices) = match page_bytes.map(|b| b.max(alignment)) {
            Some(bytes) => (bytes, vec![bytes]),
            None => (
                choose_page(row_bytes, alignment, curve.as_ref(), bounded),
                possible_pages(row_bytes, alignment, bounded),
            ),
        };
        let id = engine.classes.len() as u16;
        let fillings = String::new();
        let record = ClassRecord {
            id,
            storage: spec.storage,
            row_bytes,
            page_bytes,
            segment_bytes: 0,
            curve,
            fillings,
        };
        let mut class = NewClass { record, choices };
        let page_bytes = self.affordable_page(engine, spec, &class)?;
        class.record.page_bytes = page_bytes;
        class.record.segment_bytes = storage::choose_segment(&ClassNeed {
            storage: spec.storage,
            row_bytes,
            page_bytes,
            rows: new_rows_to_come(spec),
            max_disk_bytes: self.options.max_disk_bytes,
            segment_bytes: self.options.segment_bytes.filter(|_| !spec.storage.is_direct()),
        })?;
        Ok(class)
    }

    /// Takes a table into a class that there is.
    fn take_in(&self, log: &mut dyn Storage, table: &TableFacts<'_>) -> Result<Option<u32>> {
        let before = log.disk_bytes();
        let partitions = log.create_table(table)?;
        let grown = log.disk_bytes().saturating_sub(before);
        self.rows_disk_bytes.fetch_add(grown, Ordering::Relaxed);
        Ok(partitions)
    }

    /// Makes a class and takes its first table in. Returns its id, and into how many parts the
    /// table's index is divided.
    fn add_class(
        &self,
        engine: &mut Engine,
        new: NewClass,
        table: &TableFacts<'_>,
    ) -> Result<(u16, Option<u32>)> {
        let record = new.record;
        let classes: Vec<ClassRecord> = engine.classes.iter().map(|c| c.record.clone()).collect();
        // The next opening would refuse what this does.
        record.verify(&classes)?;
        let (id, facts) = (record.id, record.facts(self.seed, self.options.merging()));
        let version = JournalFile::version_for([&record].into_iter(), std::iter::empty());
        self.begin_version(engine, version, "the first table of another storage")?;
        let file = create_class_file(&*self.medium, id, self.seed)?;
        // The engine is taken alone: no commit is under way.
        let epoch = self.history.lock().next_sequence;
        let made = storage::create(&facts, file, epoch, &self.medium).and_then(|mut log| {
            self.medium.sync_dir()?;
            let partitions = log.create_table(table)?;
            Ok((log, partitions))
        });
        let (log, partitions) = made.inspect_err(|_| {
            // A refused class leaves no file; if removing fails, the next class of this number does
            // it.
            let _ = self.medium.remove(&class_file_name(id));
        })?;
        let bytes = log.disk_bytes();
        let mut class = Class::new(record, log);
        class.choices = new.choices;
        // Last, so that the journal never has a class that commits do not count.
        self.history.lock().append_json(RecordKind::Class, &class.record)?;
        self.rows_disk_bytes.fetch_add(bytes, Ordering::Relaxed);
        engine.classes.push(class);
        // Even if the table fails, the class has to be given memory before the next verb.
        engine.planned = false;
        Ok((id, partitions))
    }

    /// Measures the depth that the device needs, and at that depth random reads of each page size,
    /// `slice` for each turn; `None` where reads do not reach the device. A recent measurement of
    /// it by another store of this process is taken over.
    fn measure_device(&self, medium: &dyn Medium, slice: Duration) -> Result<Option<DeviceCurve>> {
        if let Some(curve) = medium.known_curve() {
            return Ok(Some(curve));
        }
        if medium.kind() == IoKind::Simulated || !medium.direct() {
            return Ok(None);
        }
        if has_file(medium, MEASURE)? {
            medium.remove(MEASURE)?;
        }
        let device = medium.path().and_then(|path| path.metadata().ok()).map(|found| found.dev());
        let device = device.map(|device| (device, medium.kind()));
        if let Some(curve) = device.and_then(|device| measure::remembered(device, slice)) {
            return Ok(Some(curve));
        }
        if medium.free_bytes()? < 4 * MEASURE_BYTES
            || self.options.max_disk_bytes.is_some_and(|most| most < 4 * MEASURE_BYTES)
        {
            return Ok(None);
        }
        let measured = (|| {
            let file = measure::scratch_file(medium, MEASURE, MEASURE_BYTES)?;
            let sizes = PAGE_SIZES.map(|size| size.max(medium.alignment()));
            let depth = measure::sufficient_depth(medium, &file, sizes[0], &READ_DEPTHS, slice)?;
            measure::measure(medium, &file, &sizes, depth, slice)
        })();
        if has_file(medium, MEASURE)? {
            medium.remove(MEASURE)?;
        }
        let curve = measured?;
        if let Some(device) = device {
            measure::remember(device, slice, &curve);
        }
        Ok(Some(curve))
    }
}

/// Whether a new table in a log has an index with room for ids with a row alone.
fn is_packed(spec: &TableSpec) -> bool {
    storage::is_packed(spec.storage, spec.new_dense_ids(), spec.expected_rows)
}

/// Rows that a new table will have, as far as is known.
fn new_rows_to_come(spec: &TableSpec) -> Option<u64> {
    let rows = spec.new_rows_to_come();
    if is_packed(spec) { rows.min(spec.expected_rows) } else { rows }
}

/// The demand of every class if this table is added.
fn demands_with(
    engine: &Engine,
    spec: &TableSpec,
    class: std::result::Result<&u16, &NewClass>,
    merging: Merging,
) -> Result<Vec<ClassDemand>> {
    let mut demands = engine.demands();
    let at = match class {
        Ok(id) => usize::from(*id),
        Err(new) => {
            demands.push(ClassDemand::of(&new.record, &new.choices));
            demands.len() - 1
        }
    };
    let class = &mut demands[at];
    let (ids, expected) = (spec.new_dense_ids(), spec.room().or(spec.expected_rows));
    let index = storage::index_memory(spec.storage, ids, expected, merging)?;
    class.index_bytes += index.now;
    class.index_growth += index.growth;
    Ok(demands)
}

impl Inner {
    /// Carries counters over when a store is copied.
    pub(super) fn set_updates(&self, table: TableId, updates: u64) -> Result<()> {
        let engine = self.engine.read();
        self.table_of(&engine, table)?.updates.store(updates, Ordering::Relaxed);
        Ok(())
    }
}
