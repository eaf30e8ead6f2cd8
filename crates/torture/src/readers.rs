//! Readers beside the writer: each sees its commit, whatever is committed since.

use crate::check::{self, Care};
use crate::life::{Life, Point, Step, named_budget, point_name};
use crate::report::Event;
use embedrock_core::{ErrorKind, Memory, Store, StoreOptions};
use std::rc::Rc;
use std::sync::Arc;

/// Readers at a time.
const READERS: usize = 3;

/// A store that was opened to read, and its commit.
pub(crate) struct Reader {
    store: Store,
    point: Rc<Point>,
}

impl Life<'_> {
    /// Opens another reader, at the last commit or an earlier one.
    pub(crate) fn open_reader(&mut self) -> Step {
        if self.chain.is_empty() || self.readers.len() == READERS {
            return self.use_reader();
        }
        let at = self.random.below(self.chain.len() as u64) as usize;
        let last = self.random.chance(1, 2);
        let step = (!last).then(|| self.chain[at].step);
        self.note(|| format!("reader at {step:?}"));
        self.counts.verb("reader");
        let options = StoreOptions { step, read_only: true, ..self.plan.options(self.memory) };
        let opened = self.open_to_read(options);
        let store = match opened {
            Ok(store) => store,
            Err(error) if error.kind() == ErrorKind::NotFound && self.may_be_gone(step) => {
                return Ok(());
            }
            Err(error) => {
                self.care().takes(&error).map_err(|e| format!("open a reader: {e}"))?;
                return Ok(());
            }
        };
        let found = store.last_commit().map(|info| (info.step, info.meta));
        let found = found.as_ref().map(|(step, meta)| (*step, meta.as_str()));
        // Commits that the writer has left by going back are there until it changes something.
        let left = self.others.iter().filter_map(|chain| chain.last());
        let mut last: Vec<&Rc<Point>> = self.under_way.iter().chain(left).collect();
        last.extend(self.chain.last());
        let points = if step.is_some() { self.chain.iter().collect() } else { last };
        let same = |p: &&Rc<Point>| Some((p.step, p.meta.as_str())) == found;
        let Some(point) = points.into_iter().find(same).cloned() else {
            let found = found.map(|(step, _)| step);
            return Err(format!("a reader opened at {step:?} is at {found:?}").into());
        };
        self.counts.event(Event::ReaderOpened);
        self.readers.push(Reader { store, point });
        self.read(self.readers.len() - 1)
    }

    /// True when a reader has a commit that the writer does not keep.
    pub(crate) fn readers_are_beside(&self) -> bool {
        let keeps = |point: &Rc<Point>| self.chain.iter().any(|kept| Rc::ptr_eq(kept, point));
        self.readers.iter().any(|reader| !keeps(&reader.point))
    }

    /// Now and then, whether an earlier commit is still there.
    pub(crate) fn look_at_earlier(&mut self) -> Step {
        if self.chain.len() < 2 || self.is_doomed() || !self.random.chance(1, 2) {
            return Ok(());
        }
        let at = self.random.below(self.chain.len() as u64 - 1) as usize;
        let (point, step) = (Rc::clone(&self.chain[at]), Some(self.chain[at].step));
        let options = StoreOptions { step, read_only: true, ..self.plan.options(self.memory) };
        let mut random = self.random.clone();
        let care = Care { torn: None, ..self.care() };
        let result = match self.open_to_read(options) {
            Ok(store) => check::all(&store, &point.model, &mut random, &care).map(drop),
            Err(error) => care.takes(&error).map(drop),
        };
        result.map_err(|why| format!("opened at {}: {why}", point_name(&point)).into())
    }

    /// Whether a commit that is under way may have released this step.
    fn may_be_gone(&self, step: Option<u64>) -> bool {
        self.under_way.as_ref().is_some_and(|point| {
            let chain = self.chain_with(point);
            chain.iter().all(|point| Some(point.step) != step)
        })
    }

    /// Opens with this budget, or else the one that a refusal names.
    fn open_to_read(&self, options: StoreOptions) -> embedrock_core::Result<Store> {
        let open = |options| Store::open_on(Arc::new(self.medium.clone()), options);
        let store = open(options.clone())?;
        // The plan is made by the first verb.
        match store.stats() {
            Err(error) if error.kind() == ErrorKind::Budget => {
                let named = named_budget(&error).unwrap_or(0);
                open(StoreOptions { memory: Memory::Bytes(named), ..options })
            }
            _ => Ok(store),
        }
    }

    /// Reads all of a reader's commit; now and then the reader closes.
    pub(crate) fn use_reader(&mut self) -> Step {
        if self.readers.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.readers.len() as u64) as usize;
        self.note(|| format!("reader {at} reads"));
        if self.random.chance(1, 4) {
            let reader = self.readers.remove(at);
            let closed = reader.store.close();
            return closed.map(drop).map_err(|e| format!("a reader closes: {e:?}").into());
        }
        self.read(at)
    }

    fn read(&mut self, at: usize) -> Step {
        let mut random = self.random.clone();
        let reader = &self.readers[at];
        let kept = self.chain.iter().chain(&self.under_way).any(|p| Rc::ptr_eq(p, &reader.point));
        let care = Care { gone: !kept, torn: None, ..self.care() };
        let all = check::all(&reader.store, &reader.point.model, &mut random, &care)
            .map_err(|why| format!("a reader of {}: {why}", point_name(&reader.point)))?;
        if !kept {
            self.counts.event(if all { Event::ReaderHeld } else { Event::CommitGone });
        }
        if !all {
            // What it says once it says of every row.
            self.readers.remove(at);
        }
        Ok(())
    }
}
