//! `Full` says that nothing has changed, wherever the device finds no room.

use super::*;

const ROWS: u64 = 4000;
const STEPS: u64 = 12;

type Rows = BTreeMap<(usize, u64), f32>;

/// Results of a run, with the one fault that it met.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    full: usize,
    io: usize,
    /// The run needed the room for nothing, or found other.
    unnoticed: usize,
}

struct Run {
    medium: SimMedium,
    store: Store,
    tables: Vec<TableId>,
    rows: Rows,
    committed: Rows,
    /// Rows of a commit that may have been made.
    tried: Rows,
    /// The commit that was tried last.
    step: u64,
    outcome: Outcome,
    what: String,
}

/// Calls again what found no room: the device has some the second time.
fn again<T>(outcome: &mut Outcome, mut call: impl FnMut() -> Result<T>) -> T {
    call().unwrap_or_else(|error| {
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        outcome.full += 1;
        call().unwrap()
    })
}

fn specs() -> Vec<TableSpec> {
    let growing = spec("growing", None, OptimizerKind::Adagrad);
    vec![spec("dense", Some(ROWS), OptimizerKind::Sgd), growing]
}

impl Run {
    fn new(what: String, fault: impl Fn(&SimMedium)) -> Self {
        let medium = SimMedium::new(5);
        fault(&medium);
        let mut outcome = Outcome::default();
        let open = || Store::open_on(Arc::new(medium.clone()), options(460 << 10));
        let store = again(&mut outcome, open);
        let tables = specs().iter().map(|spec| again(&mut outcome, || store.table(spec))).collect();
        let (rows, committed, tried) = Default::default();
        Self { medium, store, tables, rows, committed, tried, step: 0, outcome, what }
    }

    fn put(&self, table: usize, keys: &[u64], value: f32) -> Result<()> {
        let values = vec![value; keys.len() * DIM];
        self.store.put(&[put_of(self.tables[table], keys, &values)]).map(drop)
    }

    fn check(&self, rows: &Rows) {
        for (table, id) in self.tables.iter().enumerate() {
            let keys: Vec<u64> = (0..ROWS).collect();
            let mut values = vec![0.0; keys.len() * DIM];
            let get =
                GetBatch { table: *id, keys: &keys, values: (&mut values).into(), state: None };
            self.store.get(&mut [get]).unwrap();
            let mut there = vec![false; keys.len()];
            self.store.contains(*id, &keys, &mut there).unwrap();
            for (key, row) in keys.iter().zip(values.chunks(DIM)) {
                let expected = rows.get(&(table, *key));
                let what = format!("{}: table {table} key {key}", self.what);
                assert_eq!(there[*key as usize], expected.is_some(), "{what}");
                assert!(expected.is_none_or(|value| row[0] == *value), "{what}");
            }
        }
    }

    /// Calls a verb. After `Full` everything is as it was and it works the second time. After any
    /// other error the store refuses everything until it is opened again, at its last commit, and
    /// false is returned.
    fn call(&mut self, verb: impl Fn(&Self) -> Result<()>) -> bool {
        let Err(error) = verb(self) else { return true };
        let what = format!("{}: {error}", self.what);
        if error.kind() == ErrorKind::Full {
            self.outcome.full += 1;
            self.check(&self.rows);
            verb(self).unwrap_or_else(|again| panic!("{what}, then {again}"));
            return true;
        }
        // A merge that a commit has begun may have met it before this verb.
        assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Poisoned), "{what}");
        self.outcome.io += 1;
        assert!(error.message().contains("make room, close it and open it again"), "{what}");
        let refused = [
            self.put(0, &[1], 1.0).unwrap_err(),
            self.store.commit(99, "", &[]).unwrap_err(),
            self.store.delete(self.tables[1], &[1]).unwrap_err(),
        ];
        assert!(refused.iter().all(|error| error.kind() == ErrorKind::Poisoned), "{what}");
        self.store.close().unwrap();
        self.store = Store::open_on(Arc::new(self.medium.clone()), options(460 << 10)).unwrap();
        // Tables that no commit has are gone, too.
        specs().iter().for_each(|spec| _ = self.store.table(spec).unwrap());
        // Of a commit that failed nobody knows whether it was made.
        let made = self.store.last_commit().map_or(0, |commit| commit.step);
        self.rows = if made == self.step { self.tried.clone() } else { self.committed.clone() };
        self.what = format!("{}, opened at step {made}", self.what);
        false
    }

    fn commit(&mut self, step: u64) -> bool {
        (self.tried, self.step) = (self.rows.clone(), step);
        let state = vec![step as u8; 5000];
        let made = self.call(|run| {
            let named: [(&str, &[u8]); 1] = [("s", &state)];
            if step.is_multiple_of(3) {
                let pending = run.store.commit_in_background(step, "", &named)?;
                return pending.wait(None).map(drop);
            }
            run.store.commit(step, "", &named).map(drop)
        });
        if made {
            self.committed = self.rows.clone();
        }
        made
    }

    /// Verbs and commits; after an error that is not `Full` one more commit, and the end.
    fn go(mut self) -> Outcome {
        let mut random = Random(3);
        let _went = (1..=STEPS).all(|step| {
            let value = step as f32;
            (0..3).all(|i| {
                let table = (step + i) as usize % 2;
                let keys: Vec<u64> = (0..250).map(|_| random.below(ROWS)).collect();
                let put = self.call(|run| run.put(table, &keys, value));
                if put {
                    self.rows.extend(keys.iter().map(|key| ((table, *key), value)));
                }
                put
            }) && {
                let doomed: Vec<u64> = (0..40).map(|_| random.below(ROWS)).collect();
                let deleted = self.call(|run| run.store.delete(run.tables[1], &doomed).map(drop));
                if deleted {
                    doomed.iter().for_each(|key| _ = self.rows.remove(&(1, *key)));
                }
                deleted
            } && self.commit(step)
        });
        self.check(&self.rows);
        if self.medium.has_faults() {
            return self.outcome;
        }
        self.put(0, &[7], 0.5).unwrap();
        self.rows.insert((0, 7), 0.5);
        self.store.commit(100, "", &[]).unwrap();
        self.store.close().unwrap();
        self.store = Store::open_on(Arc::new(self.medium.clone()), options(460 << 10)).unwrap();
        self.check(&self.rows);
        self.outcome.unnoticed = usize::from(self.outcome.full + self.outcome.io == 0);
        self.outcome
    }
}

/// Runs with the `k`-th write, or allocation, finding no room, for every `step`-th `k` there is.
fn every(step: usize, what: &str, fault: impl Fn(&SimMedium, u64)) -> Outcome {
    let mut sum = Outcome::default();
    for k in (0..).step_by(step) {
        let run = Run::new(format!("{what} {k} finds no room"), |medium| fault(medium, k));
        let medium = run.medium.clone();
        let outcome = run.go();
        if medium.has_faults() {
            return sum;
        }
        sum.full += outcome.full;
        sum.io += outcome.io;
        sum.unnoticed += outcome.unnoticed;
    }
    unreachable!("the loop has no other end")
}

// A write that found no room was reported as `Full` ("nothing was written; reads and commits go
// on"), though rows had changed: the commit that it recommended was refused as poisoned.
#[test]
fn no_room_at_any_write_leaves_all_as_it_was_or_says_that_the_store_must_be_opened_again() {
    each_kind(|| {
        let step = stride(7) as usize;
        let sum = every(step, "write", SimMedium::full_write);
        assert!(sum.full * step > 4 && sum.io * step > 50, "{sum:?}");
    });
}

#[test]
fn no_room_at_any_allocation_leaves_all_as_it_was() {
    each_kind(|| {
        let step = stride(3) as usize;
        let sum = every(step, "allocation", SimMedium::full_allocate);
        assert!(sum.full * step > 20 && sum.io == 0, "{sum:?}");
    });
}
