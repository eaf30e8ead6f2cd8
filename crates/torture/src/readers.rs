//! Readers beside the writer: each sees its commit, whatever is committed since, until it is
//! refreshed.

use crate::check::{self, Care};
use crate::life::{Life, Point, Step, named_budget, point_name};
use crate::pins::At;
use crate::report::Event;
use embedrock_core::{ErrorKind, Memory, Store, StoreOptions};
use std::rc::Rc;

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
        let mut asked = if last { At::Last } else { At::Step(self.chain[at].step) };
        if self.plan.pins && self.random.chance(1, 2) {
            asked = self.pins.keys().next().map_or(asked, |name| At::Pin(name));
        }
        self.note(|| format!("reader at {asked:?}"));
        self.counts.verb("reader");
        let read_only = StoreOptions { read_only: true, ..self.plan.options(self.memory) };
        let store = match self.open_to_read(asked.within(read_only)) {
            Ok(store) => store,
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && matches!(asked, At::Step(step) if self.may_be_gone(Some(step))) =>
            {
                return Ok(());
            }
            Err(error) => {
                self.care().takes(&error).map_err(|e| format!("open a reader: {e}"))?;
                return Ok(());
            }
        };
        let points: Vec<&Rc<Point>> = match asked {
            At::Last => self.newest(),
            At::Step(_) => self.chain.iter().collect(),
            At::Pin(name) => vec![&self.pins[name]],
        };
        let at = |p: &&Rc<Point>| is_at(&store, p);
        let Some(point) = points.into_iter().find(at).cloned() else {
            let found = store.last_commit().map(|info| info.step);
            return Err(format!("a reader opened at {asked:?} is at {found:?}").into());
        };
        self.counts.event(Event::ReaderOpened);
        self.readers.push(Reader { store, point });
        self.read(self.readers.len() - 1)
    }

    /// The commits that a reader may find to be the newest.
    fn newest(&self) -> Vec<&Rc<Point>> {
        // Commits that the writer has left by going back are there until it changes something. If
        // the last record was lost, a reader beside the writer cannot know of it.
        let left = self.others.iter().filter_map(|chain| chain.last());
        let earlier = if self.is_doomed() { &self.chain[..] } else { &[] };
        self.under_way.iter().chain(left).chain(self.chain.last()).chain(earlier).collect()
    }

    /// Moves a reader to the newest commit.
    fn refresh(&mut self, at: usize) -> Step {
        let reader = &self.readers[at];
        let newest = self.newest();
        let moved = match reader.store.refresh() {
            Ok(moved) => moved.is_some(),
            Err(error) if error.kind() == ErrorKind::Budget => {
                // It stays where it is.
                return self.read(at);
            }
            Err(error) => {
                self.care().takes(&error).map_err(|e| format!("refresh: {e}"))?;
                // It may have lost its index, and says so from here on.
                self.readers.remove(at);
                return Ok(());
            }
        };
        if !moved && !newest.iter().any(|point| Rc::ptr_eq(point, &reader.point)) {
            let at = point_name(&reader.point);
            return Err(format!("a reader stays at {at}, which is not the newest").into());
        }
        if moved {
            let Some(point) = newest.into_iter().find(|p| is_at(&reader.store, p)).cloned() else {
                let found = reader.store.last_commit().map(|info| info.step);
                return Err(format!("a reader was refreshed to {found:?}").into());
            };
            self.counts.event(Event::Refreshed);
            self.readers[at].point = point;
        }
        self.read(at)
    }

    /// True when a reader has a commit that the writer does not keep.
    pub(crate) fn readers_are_beside(&self) -> bool {
        let keeps = |point: &Rc<Point>| self.chain.iter().any(|kept| Rc::ptr_eq(kept, point));
        let stays = |point: &Rc<Point>| keeps(point) || self.is_pinned(point);
        self.readers.iter().any(|reader| !stays(&reader.point))
    }

    /// True when a reader has a commit that a writer which opens there may not keep.
    pub(crate) fn readers_hold_others(&self, at: At) -> bool {
        let chains = || self.others.iter().chain([&self.chain]);
        let kept_by_all = |point: &Rc<Point>| {
            chains().all(|chain| chain.iter().any(|kept| Rc::ptr_eq(kept, point)))
        };
        let goes_back = at != At::Last;
        let stays = |point: &Rc<Point>| kept_by_all(point) || self.is_pinned(point);
        self.readers.iter().any(|reader| goes_back || !stays(&reader.point))
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
            Err(error) if error.kind() == ErrorKind::NotFound && self.may_be_gone(step) => Ok(()),
            Err(error) => care.takes(&error).map(drop),
        };
        result.map_err(|why| format!("opened at {}: {why}", point_name(&point)).into())
    }

    /// Whether a commit is pinned, whatever a crash has left.
    fn is_pinned(&self, point: &Rc<Point>) -> bool {
        let mut all = self.other_pins.iter().chain([&self.pins]);
        all.all(|pins| pins.values().any(|pinned| Rc::ptr_eq(pinned, point)))
    }

    /// Whether a commit that is under way may have released this step.
    pub(crate) fn may_be_gone(&self, step: Option<u64>) -> bool {
        self.under_way.as_ref().is_some_and(|point| {
            let chain = self.chain_with(point);
            chain.iter().all(|point| Some(point.step) != step)
        })
    }

    /// Opens with this budget, or else the one that a refusal names.
    pub(crate) fn open_to_read(&self, options: StoreOptions) -> embedrock_core::Result<Store> {
        let open = |options| Store::open_on(self.plan.directories(&self.medium), options);
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
        if self.random.chance(1, 3) {
            return self.refresh(at);
        }
        self.read(at)
    }

    fn read(&mut self, at: usize) -> Step {
        let mut random = self.random.clone();
        let reader = &self.readers[at];
        let kept = self.chain.iter().chain(&self.under_way).any(|p| Rc::ptr_eq(p, &reader.point));
        let kept = kept || self.is_pinned(&reader.point);
        // Readers may be let go of where a bound says so.
        let bounded = self.plan.max_held_bytes.is_some() || self.plan.max_disk_bytes.is_some();
        let gone = !kept && bounded;
        let care = Care { gone, torn: None, ..self.care() };
        let all = check::all(&reader.store, &reader.point.model, &mut random, &care)
            .map_err(|why| format!("a reader of {}: {why}", point_name(&reader.point)))?;
        if !kept && (all || gone) {
            self.counts.event(if all { Event::ReaderHeld } else { Event::CommitGone });
        }
        if !all {
            // A reader that has reported its commit as gone for one row does so for every row.
            self.readers.remove(at);
        }
        Ok(())
    }
}

/// True when the store is at this commit.
fn is_at(store: &Store, point: &Point) -> bool {
    let found = store.last_commit();
    found.is_some_and(|info| (info.step, info.meta.as_str()) == (point.step, point.meta.as_str()))
}
