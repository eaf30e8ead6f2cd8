//! Writes that the device refuses, one after the other: what is read then, and after reopening.

use super::*;

/// Rows of the growing table that most is written to.
const ROWS: u64 = 5000;

fn is_any(_: u64) -> bool {
    true
}

/// Other rows stay as they are, and keep their segments.
fn is_hot(key: u64) -> bool {
    !crate::hash::mix(key, 9).is_multiple_of(10)
}

/// A store whose device refuses a write at some time.
struct Refused {
    fixture: Fixture,
    medium: SimMedium,
    store: Store,
    model: Model,
    /// Step and rows of the last commit, and of one that failed or was under way.
    last: (u64, Model),
    next: Option<(u64, Model)>,
    /// A commit under way.
    pending: Option<PendingCommit>,
    /// Rows that the failed verb may have changed, as they would be then.
    changing: Model,
}

impl Refused {
    /// Many more rows than the cache takes, in segments that were filled before, and of others so
    /// little that they are about to be cleaned.
    fn new(seed: u64) -> Self {
        let mut fixture = Fixture::new();
        fixture.keys[1] = (0..ROWS).map(|i| crate::hash::mix(i, 7)).collect();
        let medium = SimMedium::new(seed);
        let store =
            fixture.open(&medium, StoreOptions { keep: 1, ..options(tight() + (32 << 10)) });
        let (model, last) = (Model::default(), (0, Model::default()));
        let mut refused = Self {
            fixture,
            medium,
            store,
            model,
            last,
            next: None,
            pending: None,
            changing: Model::default(),
        };
        for rewrites in [is_any, is_any, is_hot] {
            let keys: Vec<u64> =
                refused.fixture.keys[1].iter().copied().filter(|key| rewrites(*key)).collect();
            keys.chunks(500).for_each(|keys| refused.update(1, keys).unwrap());
            refused.store.commit(0, "", &[]).unwrap();
        }
        refused.store.commit(0, "", &[]).unwrap();
        refused.last.1 = refused.model.clone();
        refused
    }

    /// Updates, deletes, scans and commits until one fails.
    fn train(&mut self, seed: u64, in_background: bool) -> Result<()> {
        let mut random = Random(seed);
        for step in 1..=3u64 {
            for _ in 0..8 {
                let table = [0, 1, 1, 6][random.below(4) as usize];
                let mut keys = self.fixture.pick(&mut random, table, 600);
                keys.retain(|key| is_hot(*key));
                self.update(table, &keys)?;
                if random.below(3) == 0 {
                    let doomed = self.fixture.pick(&mut random, 1, 30);
                    self.changing = self.model.clone();
                    doomed.iter().for_each(|k| drop(self.changing.rows.remove(&(1, *k))));
                    self.store.delete(TableId(1), &doomed)?;
                    self.model = self.changing.clone();
                }
            }
            if let Some(pending) = self.pending.take() {
                pending.wait(None)?;
                self.last = self.next.take().unwrap();
            }
            self.next = Some((step, self.model.clone()));
            if in_background {
                self.pending = Some(self.store.commit_in_background(step, "", &[])?);
            } else {
                self.store.commit(step, "", &[])?;
                self.last = self.next.take().unwrap();
            }
        }
        self.pending.take().map_or(Ok(None), |pending| pending.wait(None))?;
        Ok(())
    }

    fn update(&mut self, table: usize, keys: &[u64]) -> Result<()> {
        let (values, id) = (vec![0.25; keys.len() * DIM], TableId(table as u16));
        self.changing = self.model.clone();
        let count = self.changing.updates.entry(table as u16).or_default();
        *count += 1;
        let count = *count;
        let mut times = BTreeMap::new();
        keys.iter().for_each(|key| *times.entry(*key).or_insert(0) += 1);
        for (key, times) in times {
            let gradient = [0.25 * times as f32; DIM];
            self.fixture.step_row(&mut self.changing, table, key, count, &gradient);
        }
        self.store.update(&[UpdateBatch {
            table: id,
            keys,
            gradients: &values,
            hyper: HYPER,
            non_finite: NonFinite::Refuse,
            step: None,
        }])?;
        self.model = self.changing.clone();
        Ok(())
    }

    /// Reads every row; what is no error has to be right. Returns how many were.
    fn read_all(&self, what: &str) -> (u64, u64) {
        let (mut right, mut errors) = (0, 0);
        for table in [0, 1, 6] {
            let id = TableId(table as u16);
            for key in self.fixture.keys[table].iter().step_by(4) {
                let mut contained = [false];
                let found = self.store.contains(id, &[*key], &mut contained);
                let mut values = vec![0.0; DIM];
                let batch = GetBatch {
                    table: id,
                    keys: &[*key],
                    values: (&mut values).into(),
                    state: None,
                };
                let got = self.store.get(&mut [batch]);
                if let Err(error) = found.and(got) {
                    assert_eq!(error.kind(), ErrorKind::Poisoned, "{what}: {error}");
                    // The pages of the write are in memory; only victims find no place any more.
                    assert!(error.message().contains("refuses writes"), "{what}: {error}");
                    errors += 1;
                    continue;
                }
                right += 1;
                let is = |model: &Model| {
                    values == self.fixture.expected(model, table, *key)[..DIM]
                        && contained[0] == model.rows.contains_key(&(id.0, *key))
                };
                let what = format!("{what}, table {table} key {key}: {values:?}");
                assert!(is(&self.model) || is(&self.changing), "{what}");
            }
            if let Err(error) = self.store.digest(id, &mut |_, _| Ok(())) {
                assert_eq!(error.kind(), ErrorKind::Poisoned, "{what}: {error}");
            }
        }
        (right, errors)
    }
}

// After a page could not be written the index named slots that the device did not have: a growing
// table took what lay there for a tag collision, and rows that had left the cache read as initial.
#[test]
fn rows_whose_pages_could_not_be_written_are_right_or_an_error() {
    each_kind(|| {
        let (mut right, mut errors, mut stores, mut moved) = (0, 0, 0, 0);
        let every = stride(if KIND.get() == StorageKind::Log { 7 } else { 13 }) as usize;
        for in_background in [false, true] {
            for refused in (u64::from(in_background)..).step_by(every) {
                let what = format!("write {refused}, in background {in_background}");
                let mut run = Refused::new(3);
                run.medium.fail_write(refused);
                let Err(error) = run.train(3, in_background) else {
                    moved += run.store.stats().unwrap().rows_moved;
                    break;
                };
                assert!(
                    matches!(error.kind(), ErrorKind::Io | ErrorKind::Poisoned),
                    "{what}: {error}"
                );
                stores += 1;
                let (r, e) = run.read_all(&what);
                (right, errors) = (right + r, errors + e);
                // Its thread keeps the store open.
                let _ended = run.pending.take().map(|pending| pending.wait(None));
                drop(run.store);
                let store = Store::open_on(Arc::new(run.medium.clone()), options(1 << 20)).unwrap();
                let step = store.last_commit().unwrap().step;
                let made = run.next.filter(|(next, _)| *next == step);
                let (last, model) = made.unwrap_or(run.last);
                assert_eq!(step, last, "{what}");
                run.fixture.check_all(&store, &model);
            }
        }
        let least = if KIND.get() == StorageKind::Log { 90 } else { 80 };
        assert!(stores * every > least, "only {stores} writes were refused, every {every}th");
        assert!(moved > 0, "nothing was cleaned");
        assert!(right > 2 * errors, "{right} rows were right, {errors} an error");
    });
}

#[test]
fn a_table_whose_record_could_not_be_written_is_not_there() {
    each_kind(|| {
        let kind = OptimizerKind::Sgd;
        let mut refused = 0;
        for write in 0.. {
            let medium = SimMedium::new(5);
            let store = Store::open_on(Arc::new(medium.clone()), options(1 << 20)).unwrap();
            store.table(&spec("first", None, kind)).unwrap();
            store.commit(0, "", &[]).unwrap();
            medium.fail_write(write);
            let Err(error) = store.table(&spec("dense", Some(10), kind)) else { break };
            assert_eq!(error.kind(), ErrorKind::Io, "write {write}: {error}");
            assert!(store.find_table("dense").is_none(), "write {write}");
            refused += 1;
            // Another kind of table takes its number, and its place in the class.
            let id = store.table(&spec("growing", None, kind)).unwrap();
            let (keys, values) = ([u64::MAX, 3], [0.5; 2 * DIM]);
            store.put(&[put_of(id, &keys, &values)]).unwrap();
            store.commit(1, "", &[]).unwrap();
            let digested = digest(&store, id);
            drop(store);
            let store = Store::open_on(Arc::new(medium), options(1 << 20)).unwrap();
            assert_eq!(store.find_table("growing"), Some(id));
            assert_eq!(digest(&store, id), digested, "write {write}");
            assert_eq!(store.len(id).unwrap(), 2);
        }
        assert!(refused > 0);
    });
}
