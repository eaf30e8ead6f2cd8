//! Room on disk: a full store cleans itself by commits alone, and gives space back.
//!
//! The claim, of a store with two kept commits: as long as its live rows take no more than
//! [`share`] of the bound, less what is fixed, a small batch that was refused as `Full` is taken
//! after at most [`COMMITS`] commits.

use super::*;

/// Share of the disk, beside what is fixed, that live rows may take. Those of an lsm lie in its top
/// and below until they merge, and below twice until no kept commit has the old partition.
fn share() -> f64 {
    if KIND.get() == StorageKind::Log { 0.75 } else { 0.5 }
}

/// Commits that may be needed after a `Full`.
const COMMITS: usize = 4;
const BATCH: usize = 60;
/// Disk that does not follow the rows: spare room, a journal with room for commits, small files. Of
/// indexes: theirs in memory, so often.
const FIXED_BYTES: u64 = 2 << 20;
const INDEXES: u64 = 4;
/// Segments of a class that hold no live rows: open ones, those for cleaning, a commit's. And of an
/// lsm those of two partitions, which a merge takes.
fn segments() -> u64 {
    if KIND.get() == StorageKind::Log { 8 } else { 24 }
}

const DENSE_ROWS: u64 = 100_000;

/// The bound of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// `max_disk_bytes`.
    Option,
    /// The device itself.
    Device,
    /// Nothing.
    None,
}

/// Rows by table and key.
type Rows = BTreeMap<(usize, u64), f32>;

/// Tables of several row classes on a bounded disk, and what they must hold.
struct Run {
    medium: SimMedium,
    store: Store,
    options: StoreOptions,
    tables: Vec<(TableId, usize)>,
    rows: Rows,
    /// Rows at the last commit, and at the one that was tried.
    committed: Rows,
    tried: Rows,
    random: Random,
    bytes: u64,
    step: u64,
    /// A power cut may bring back what was given back or removed, until the next commit.
    after_cut: bool,
    /// Times that a batch was refused.
    refused: usize,
    what: String,
}

impl Run {
    fn new(seed: u64, bound: Bound, bytes: u64, segment: u64, dims: &[usize]) -> Result<Self> {
        Self::on(SimMedium::new(seed), seed, bound, bytes, segment, dims)
    }

    fn on(
        medium: SimMedium,
        seed: u64,
        bound: Bound,
        bytes: u64,
        segment: u64,
        dims: &[usize],
    ) -> Result<Self> {
        let mut options = StoreOptions { segment_bytes: Some(segment), ..options(8 << 20) };
        match bound {
            Bound::Option => options.max_disk_bytes = Some(bytes),
            Bound::Device => medium.set_capacity(Some(bytes)),
            Bound::None => {}
        }
        let store = Store::open_on(Arc::new(medium.clone()), options.clone())?;
        let mut tables = Vec::new();
        for dim in dims {
            let kind = if dim % 2 == 0 { OptimizerKind::Sgd } else { OptimizerKind::Adagrad };
            let spec = spec(&format!("t{dim}"), (dim % 3 == 0).then_some(DENSE_ROWS), kind);
            let expected_rows = spec.num_embeddings.is_none().then_some(20_000);
            let spec = TableSpec { embedding_dim: *dim, expected_rows, ..spec };
            tables.push((store.table(&spec)?, *dim));
        }
        let what = format!("seed {seed}, {bound:?} of {bytes} bytes, {segment}, dims {dims:?}");
        let (rows, committed, tried) = Default::default();
        let (random, step, refused) = (Random(seed), 0, 0);
        let run = Self {
            medium,
            store,
            options,
            tables,
            rows,
            committed,
            tried,
            random,
            bytes,
            step,
            after_cut: false,
            refused,
            what,
        };
        Ok(run)
    }

    /// Disk that the rows take when pages are full of newest copies.
    fn live_bytes(&self) -> u64 {
        let stats = self.store.stats().unwrap();
        let of_class = |class: &ClassStats| {
            let tables = stats.tables.iter().filter(|table| table.row_bytes == class.row_bytes);
            let rows: u64 = tables.map(|table| table.rows).sum();
            rows * class.page_bytes as u64 / class.rows_per_page as u64
        };
        stats.classes.iter().map(of_class).sum()
    }

    /// Disk that does not follow the rows, at most.
    fn fixed_bytes(&self) -> u64 {
        let stats = self.store.stats().unwrap();
        let segments: u64 = stats.classes.iter().map(|class| class.segment_bytes).sum();
        FIXED_BYTES + INDEXES * stats.memory.index_bytes + self::segments() * segments
    }

    /// Live bytes with which the store has to get on.
    fn allowed(&self) -> u64 {
        (share() * self.bytes.saturating_sub(self.fixed_bytes()) as f64) as u64
    }

    fn commit(&mut self) -> Result<()> {
        self.step += 1;
        self.tried = self.rows.clone();
        let state = vec![self.step as u8; 3000];
        self.store.commit(self.step, "meta", &[("state", &state)])?;
        self.committed = self.rows.clone();
        self.check_disk();
        Ok(())
    }

    /// Checks the bytes that the device counts, and not only those that the store says.
    fn check_disk(&self) {
        // Files that could not be removed without power are in no count.
        if self.after_cut || self.medium.power_is_off() {
            return;
        }
        let (taken, said) = (self.medium.taken_bytes(), self.store.stats().unwrap().disk_bytes);
        assert!(taken <= self.bytes, "{}: {taken} bytes of disk", self.what);
        assert!(taken <= said, "{}: {taken} bytes of disk, and the store says {said}", self.what);
    }

    /// Runs a verb; after a `Full` commits until it is taken, at most [`COMMITS`] times.
    fn insist(&mut self, verb: impl Fn(&Store) -> Result<()>) -> Result<()> {
        for commits in 0.. {
            match verb(&self.store) {
                Err(error) if error.kind() == ErrorKind::Full => {
                    let live = self.live_bytes();
                    let what = format!("{}, {live} live bytes: {error}", self.what);
                    assert!(commits < COMMITS, "{what}: {:#?}", self.store.stats().unwrap());
                    let advice = match KIND.get() {
                        StorageKind::Log => "; commit: ",
                        // It cannot count all that its merges will release.
                        _ => "commit",
                    };
                    assert!(error.message().contains(advice), "{what}");
                    self.refused += 1;
                    self.commit()?;
                }
                done => return done.map(|()| self.check_disk()),
            }
        }
        unreachable!("the loop has no other end")
    }

    fn put(&mut self, table: usize, keys: &[u64]) -> Result<()> {
        let (id, dim) = self.tables[table];
        let value = self.random.value();
        let values = vec![value; keys.len() * dim];
        self.insist(|store| store.put(&[put_of(id, keys, &values)]).map(drop))?;
        self.rows.extend(keys.iter().map(|key| ((table, *key), value)));
        Ok(())
    }

    fn delete(&mut self, table: usize, keys: &[u64]) -> Result<()> {
        let id = self.tables[table].0;
        self.insist(|store| store.delete(id, keys).map(drop))?;
        keys.iter().for_each(|key| _ = self.rows.remove(&(table, *key)));
        Ok(())
    }

    fn keys_of(&self, table: usize) -> Vec<u64> {
        self.rows.range((table, 0)..=(table, u64::MAX)).map(|((_, key), _)| *key).collect()
    }

    /// New rows of a table until the store has all that it has to get on with.
    fn load(&mut self, table: usize) -> Result<()> {
        let new = (0..DENSE_ROWS).filter(|key| !self.rows.contains_key(&(table, *key)));
        for keys in new.collect::<Vec<u64>>().chunks(BATCH) {
            if self.live_bytes() >= self.allowed() {
                break;
            }
            self.put(table, keys)?;
        }
        Ok(())
    }

    /// Writes rows of random tables again, with a commit now and then.
    fn rewrite(&mut self, batches: usize) -> Result<()> {
        for _ in 0..batches {
            let table = self.random.below(self.tables.len() as u64) as usize;
            let all = self.keys_of(table);
            let draw = |_| all[self.random.below(all.len() as u64) as usize];
            let keys: Vec<u64> = (0..BATCH.min(all.len())).map(draw).collect();
            self.put(table, &keys)?;
            if self.random.below(20) == 0 {
                self.commit()?;
            }
        }
        Ok(())
    }

    /// Deletes all but about one row in `left`.
    fn thin(&mut self, table: usize, left: u64) -> Result<()> {
        let all = self.keys_of(table).into_iter();
        let doomed: Vec<u64> = all.filter(|_| self.random.below(left) > 0).collect();
        doomed.chunks(BATCH).try_for_each(|keys| self.delete(table, keys))
    }

    /// Opens the store again at its last commit.
    fn reopen(&mut self) -> Result<()> {
        self.store.close()?;
        let medium = Arc::new(self.medium.clone());
        self.store = Store::open_on(medium, self.options.clone())?;
        self.rows = self.committed.clone();
        Ok(())
    }

    fn check_rows(&self, rows: &Rows) {
        for (table, (id, dim)) in self.tables.iter().enumerate() {
            let rows = rows.range((table, 0)..=(table, u64::MAX));
            let (keys, expected): (Vec<u64>, Vec<f32>) = rows.map(|((_, k), v)| (*k, *v)).unzip();
            let mut values = vec![0.0; keys.len() * dim];
            let get =
                GetBatch { table: *id, keys: &keys, values: (&mut values).into(), state: None };
            self.store.get(&mut [get]).unwrap();
            for (i, row) in values.chunks(*dim).enumerate() {
                let what = format!("{}: table {table} key {}", self.what, keys[i]);
                assert!(row.iter().all(|value| *value == expected[i]), "{what}");
            }
            assert_eq!(self.store.len(*id).unwrap(), keys.len() as u64, "{}", self.what);
        }
    }

    /// Fills the store, writes its rows again, and empties one class after another for the next.
    fn go(&mut self, batches: usize) -> Result<()> {
        self.load(0)?;
        self.rewrite(batches)?;
        for table in 1..self.tables.len() {
            self.thin(table - 1, 5)?;
            self.load(table)?;
            self.rewrite(batches)?;
            self.reopen()?;
            self.rewrite(batches / 3)?;
        }
        self.thin(self.tables.len() - 1, 3)?;
        self.load(0)?;
        self.rewrite(batches)
    }
}

fn get_on(bound: Bound) {
    let sizes = [(1, 6 << 20, 8 << 10), (2, 8 << 20, 32 << 10), (3, 12 << 20, 64 << 10)];
    let dims = [&[5, 16][..], &[8, 3, 31]];
    let all = sizes.iter().flat_map(|size| dims.map(|dims| (size, dims)));
    let (mut refused, mut runs) = (0, 0);
    // The first and the last of the six differ in all.
    for ((seed, bytes, segment), dims) in all.step_by(stride(5) as usize) {
        let mut run = Run::new(*seed, bound, *bytes, *segment, dims).unwrap();
        run.go(150).unwrap();
        run.check_rows(&run.rows);
        (refused, runs) = (refused + run.refused, runs + 1);
    }
    assert!(6 * refused > 20 * runs, "only {refused} batches were refused in {runs} runs");
}

// Files of rows never shrank, and free segments of one class were no use to another: under
// `max_disk_bytes` a store whose rows had moved from one class to another stayed full for ever.
#[test]
fn under_a_disk_bound_a_store_with_garbage_gets_on_after_a_few_commits() {
    each_kind(|| get_on(Bound::Option));
}

// Without a disk bound cleaning and the journal kept no room for themselves: on a full device
// commits were refused, too, and opening the store again changed nothing.
#[test]
fn on_a_full_device_a_store_with_garbage_gets_on_after_a_few_commits() {
    each_kind(|| get_on(Bound::Device));
}

// Files of rows stayed as large as they had ever been.
#[test]
fn the_disk_that_a_store_takes_follows_its_rows() {
    each_kind(|| {
        for bound in [Bound::None, Bound::Option] {
            let mut run = Run::new(7, bound, 64 << 20, 16 << 10, &[8, 31]).unwrap();
            for table in [0, 1] {
                for keys in (0..20_000).collect::<Vec<u64>>().chunks(500) {
                    run.put(table, keys).unwrap();
                }
            }
            run.commit().unwrap();
            let full = run.medium.taken_bytes();
            for table in [0, 1] {
                run.thin(table, 20).unwrap();
            }
            for _ in 0..6 {
                run.commit().unwrap();
            }
            let (taken, live) = (run.medium.taken_bytes(), run.live_bytes());
            assert!(15 * live < full, "{live} live bytes of {full}");
            let most = 4 * live + run.fixed_bytes();
            assert!(taken < most, "{bound:?}: {taken} bytes for {live} live ones, {full} before");
            run.check_rows(&run.rows);
            run.reopen().unwrap();
            run.check_rows(&run.rows);
        }
    });
}

/// A short run in which room is given back; with a power cut after `operation` the last commit
/// survives, or the one that was under way. Returns whether it was cut.
fn cut(bound: Bound, operation: Option<u64>) -> (bool, u64) {
    let medium = SimMedium::new(operation.unwrap_or(0));
    if let Some(operation) = operation {
        medium.power_cut_after(operation);
    }
    let seed = 11;
    let run = Run::on(medium.clone(), seed, bound, 9 << 19, 8 << 10, &[8, 16]);
    let Ok(mut run) = run else { return (medium.power_is_off(), 0) };
    let (tables, mut begin) = (run.tables.len(), 0);
    let _ = (|| -> Result<()> {
        run.load(0)?;
        run.commit()?;
        begin = medium.counters().operations;
        for table in 1..tables {
            run.thin(table - 1, 5)?;
            run.load(table)?;
            run.rewrite(5)?;
        }
        run.commit()
    })();
    if operation.is_none() {
        assert!(run.refused > 0, "the run was never full");
        return (false, begin);
    }
    let step = run.step;
    let (committed, tried) = (run.committed.clone(), run.tried.clone());
    for reboot in 0..2 {
        run.medium = medium.reboot(operation.unwrap_or(0) * 31 + reboot);
        if bound == Bound::Device {
            // Room that was taken by others since does not come back, but here it does.
            run.medium.set_capacity(Some(run.bytes.max(run.medium.taken_bytes())));
        }
        run.what = format!("{bound:?}, operation {operation:?}, reboot {reboot}");
        let opened = Store::open_on(Arc::new(run.medium.clone()), run.options.clone());
        run.store = opened.unwrap_or_else(|error| panic!("{}: {error}", run.what));
        let made = run.store.last_commit().map_or(0, |commit| commit.step);
        run.rows = if made == step { tried.clone() } else { committed.clone() };
        run.check_rows(&run.rows);
        // Life goes on.
        run.after_cut = true;
        run.put(0, &[1, 2, 3]).unwrap();
        run.after_cut = false;
        run.step = step;
        run.commit().unwrap();
        run.check_rows(&run.rows);
    }
    (medium.power_is_off(), begin)
}

#[test]
fn power_cuts_while_room_is_given_back_leave_the_last_commit() {
    each_kind(|| {
        for bound in [Bound::Option, Bound::Device] {
            let (_, begin) = cut(bound, None);
            let every = stride(601) as usize;
            let is_cut = |operation: &u64| cut(bound, Some(*operation)).0;
            let cuts = (begin..).step_by(every).take_while(is_cut).count();
            assert!(cuts * every > 610, "only {cuts} operations were cut, every {every}th");
        }
    });
}
