//! Checks what killed trainers leave: every row of every table, state and meta of every commit that
//! is kept, against what the trainers promised.

use super::promises::{self, Promise};
use super::training::{Step, dense_state, empty, meta, others};
use super::{Model, Random};
use embedrock_core::{Store, StoreOptions, check};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A commit and the rows that it holds.
pub(crate) struct Committed {
    pub(crate) step: u64,
    life: u64,
    model: Model,
}

impl Committed {
    /// Says what differs between this commit and what a store opened at.
    pub(crate) fn difference(&self, store: &Store) -> Option<String> {
        let found = store.last_commit().map(|commit| (commit.step, commit.meta));
        let wanted = (self.step > 0).then(|| (self.step, meta(self.life, self.step)));
        if found != wanted {
            return Some(format!("the commit is {found:?}, not {wanted:?}"));
        }
        let Some(_) = wanted else {
            // Without a commit there are no tables.
            return (!store.tables().is_empty()).then(|| "there are tables already".to_owned());
        };
        if store.state().unwrap() != dense_state(self.life, self.step) {
            return Some("the state differs".to_owned());
        }
        self.model.difference(store, &others())
    }
}

/// The expected state of a store whose trainers are killed.
pub(crate) struct Witness {
    path: PathBuf,
    options: StoreOptions,
    /// The offset at which the promises of the next life begin.
    offset: u64,
    /// The commits that led to the last one, which is the last; the first is the empty store.
    line: Vec<Rc<Committed>>,
    /// Least number of commits kept at the end of `line`.
    kept: usize,
}

/// The result of one life.
pub(crate) struct Verdict {
    /// It ended after a commit that it had not acknowledged.
    pub(crate) in_flight: bool,
    /// It made no commit.
    pub(crate) barren: bool,
    /// Earlier commits that were opened and compared.
    pub(crate) earlier: u64,
}

impl Witness {
    pub(crate) fn new(path: &Path, options: StoreOptions) -> Self {
        let none = Committed { step: 0, life: 0, model: empty() };
        Self { path: path.to_owned(), options, offset: 0, line: vec![Rc::new(none)], kept: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of promises.
    pub(crate) fn promises(&self) -> PathBuf {
        self.path.with_extension("promises")
    }

    pub(crate) fn last(&self) -> &Committed {
        self.line.last().expect("the empty store is never forgotten")
    }

    /// The step of an earlier commit that is kept, if there is one.
    pub(crate) fn earlier(&self, random: &mut Random) -> Option<u64> {
        let more = self.kept.checked_sub(1).filter(|more| *more > 0)?;
        let back = 1 + random.below(more as u64) as usize;
        Some(self.line[self.line.len() - 1 - back].step)
    }

    /// The commit of `step` of a life that began at commit `from`, or at the last one.
    pub(crate) fn foresee(&self, life: u64, from: Option<u64>, step: u64) -> Rc<Committed> {
        let base = self.base(from);
        let mut model = self.line[base].model.clone();
        for step in self.line[base].step + 1..=step {
            Step::of(life, step).on_model(&mut model);
        }
        Rc::new(Committed { step, life, model })
    }

    /// The place in `line` where a life began.
    fn base(&self, from: Option<u64>) -> usize {
        let last = self.line.len() - 1;
        from.map_or(last, |step| {
            self.line.iter().rposition(|commit| commit.step == step).expect("a kept commit")
        })
    }

    /// Opens what a life left and compares all of it.
    pub(crate) fn verify(&mut self, life: u64, from: Option<u64>, what: &str) -> Verdict {
        let (promises, offset) = promises::read(&self.promises(), self.offset);
        self.offset = offset;
        let base = self.base(from);
        let steps = |wanted: fn(&Promise) -> Option<u64>| promises.iter().filter_map(wanted);
        let mut done = steps(|promise| match promise {
            Promise::Done(step) => Some(*step),
            _ => None,
        });
        let done = done.next_back();
        let begun = steps(|promise| match promise {
            Promise::Commit(step) => Some(*step),
            _ => None,
        });
        let begun: Vec<_> = begun.collect();
        let store = Store::open(&self.path, self.options.clone())
            .unwrap_or_else(|e| panic!("{what}, {promises:?}: {e:?}"));
        let found = store.last_commit();
        let found_step = found.as_ref().map_or(0, |commit| commit.step);
        let of_this_life = found.is_some_and(|commit| commit.meta == meta(life, commit.step));
        if of_this_life {
            let acknowledged = done == Some(found_step);
            let in_flight = begun.last() == Some(&found_step);
            assert!(acknowledged || in_flight, "{what}: at {found_step}, {promises:?}");
            let kept = (self.kept + base + 1).saturating_sub(self.line.len());
            self.line.truncate(base + 1);
            for &step in begun.iter().take_while(|step| **step <= found_step) {
                let commit = self.foresee(life, None, step);
                self.line.push(commit);
            }
            self.kept = (kept + self.line.len() - base - 1).min(self.options.keep);
        } else {
            assert!(done.is_none(), "{what}: at {found_step}, {promises:?}");
            // Going back takes effect with the first change.
            if promises.contains(&Promise::Change) && found_step == self.line[base].step {
                self.kept = (self.kept + base + 1).saturating_sub(self.line.len());
                self.line.truncate(base + 1);
            }
        }
        let told = format!("{what}, {promises:?}");
        if let Some(difference) = self.last().difference(&store) {
            panic!("{told}: {difference}");
        }
        drop(store);
        let earlier = self.verify_kept(&told);
        let report = check(&self.path, &mut |_, _| Ok(())).unwrap();
        assert!(report.problems.is_empty(), "{told}: {:?}", report.problems);
        let forgotten = self.line.len().saturating_sub(self.options.keep + 1);
        self.line.drain(..forgotten);
        Verdict {
            in_flight: of_this_life && done != Some(found_step),
            barren: !of_this_life,
            earlier,
        }
    }

    /// Compares the earlier commits that must be kept; returns how many.
    fn verify_kept(&self, told: &str) -> u64 {
        let mut earlier = 0;
        for commit in self.line.iter().rev().take(self.kept).skip(1) {
            let step = Some(commit.step);
            let at = StoreOptions { step, read_only: true, ..self.options.clone() };
            let store = Store::open(&self.path, at)
                .unwrap_or_else(|e| panic!("{told}: commit {} is kept: {e:?}", commit.step));
            if let Some(difference) = commit.difference(&store) {
                panic!("{told}: commit {}: {difference}", commit.step);
            }
            earlier += 1;
        }
        earlier
    }
}
