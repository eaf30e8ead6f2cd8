//! One life of a store: opened, used, broken and opened again, beside the model of what it must
//! hold.
//!
//! A life knows every commit that the store may be found at. One that was acknowledged must be
//! there; one that was under way when something failed may be. So a reboot has several right
//! outcomes, and each is held against its own copy of the model.

use crate::check::{self, Care};
use crate::faults::{self, Fault};
use crate::judge::Blame;
use crate::model::{Change, Model, Table};
use crate::pins::{At, Pins};
use crate::plan::{Plan, TablePlan};
use crate::random::Random;
use crate::readers::Reader;
use crate::report::{Counts, Event};
use embedrock_core::io::SimMedium;
use embedrock_core::{Error, ErrorKind, Memory, Permits, Store, StoreOptions, TableId};
use std::collections::VecDeque;
use std::rc::Rc;

/// Operations that a failure shows.
const LAST: usize = 16;
/// Memory that holds every row of a life.
const PLENTY: u64 = 8 << 20;
/// Number of times that an opening is tried again after an error that was asked for.
const TRIES: usize = 4;

/// The reason why a life ends before its last operation.
#[derive(Debug)]
pub(crate) enum Stop {
    /// As it should: the store has said that the device lies, or that there is no room.
    Over,
    /// The store did what it must not do.
    Failed(String),
}

pub(crate) type Step<T = ()> = Result<T, Stop>;

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Failed(what)
    }
}

/// A commit, acknowledged or under way.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) step: u64,
    /// Unique within a life.
    pub(crate) meta: String,
    pub(crate) state: Vec<(String, Vec<u8>)>,
    pub(crate) model: Model,
}

/// Commits that are kept, oldest first.
pub(crate) type Chain = Vec<Rc<Point>>;

/// The number of a batch that was announced, and the keys of each of its tables.
pub(crate) type Announced = (Option<u64>, Vec<(usize, Vec<u64>)>);

/// The store's life so far.
pub(crate) struct Life<'c> {
    pub(crate) plan: Plan,
    pub(crate) counts: &'c mut Counts,
    /// Decides what happens next; one for each operation.
    pub(crate) random: Random,
    pub(crate) medium: SimMedium,
    /// `None` only while it is being opened.
    store: Option<Store>,
    pub(crate) ids: Vec<TableId>,
    pub(crate) model: Model,
    /// The kept commits of the open store.
    pub(crate) chain: Chain,
    /// Other states that a reboot may find.
    pub(crate) others: Vec<Chain>,
    /// Pinned commits.
    pub(crate) pins: Pins,
    /// Pins that a reboot may find beside these.
    pub(crate) other_pins: Vec<Pins>,
    /// The commit that is completed by hand.
    pub(crate) under_way: Option<Rc<Point>>,
    pub(crate) readers: Vec<Reader>,
    /// Numbers of batches that were announced, with their keys.
    pub(crate) announced: VecDeque<Announced>,
    /// Batches that were announced with a schedule.
    pub(crate) scheduled: u64,
    pub(crate) permits: Option<Permits>,
    pub(crate) blame: Blame,
    /// Why the store refuses changes, and the verb that may have been half done then.
    poison: Option<Change>,
    /// The device has lied: every answer is right that gives no wrong row.
    doomed: bool,
    pub(crate) memory: u64,
    keep: usize,
    pub(crate) operation: u64,
    pub(crate) last: VecDeque<String>,
    /// Refusals for want of room in a row.
    pub(crate) full_in_a_row: u32,
    /// A commit was made on this machine, whose head says so. One that a reboot has lost would not
    /// tell that the last commit's record is damaged: that takes two strokes.
    pub(crate) head_is_current: bool,
    /// The first table of a life of growth is made smaller.
    pub(crate) shrinks: bool,
    /// The power is to go in the next commit.
    pub(crate) cut_in_commit: bool,
    /// Operations of the device in the last one.
    pub(crate) commit_operations: u64,
}

impl<'c> Life<'c> {
    pub(crate) fn new(plan: Plan, counts: &'c mut Counts) -> Self {
        let medium = SimMedium::new(plan.seed);
        medium.set_capacity(plan.capacity);
        let bounded = plan.max_disk_bytes.is_some() || plan.capacity.is_some();
        let memory = if plan.memory_percent.is_some() { 1 } else { PLENTY };
        let permits = plan.staleness.map(Permits::new);
        Self {
            random: Random::new(plan.seed, 2),
            blame: Blame::from_now(&medium, bounded),
            keep: plan.keep,
            plan,
            counts,
            medium,
            store: None,
            ids: Vec::new(),
            model: Model::default(),
            chain: Vec::new(),
            others: Vec::new(),
            pins: Pins::new(),
            other_pins: Vec::new(),
            under_way: None,
            readers: Vec::new(),
            announced: VecDeque::new(),
            scheduled: 0,
            permits,
            poison: None,
            doomed: false,
            memory,
            operation: 0,
            last: VecDeque::new(),
            full_in_a_row: 0,
            head_is_current: false,
            shrinks: false,
            cut_in_commit: false,
            commit_operations: 12,
        }
    }

    /// The whole life.
    pub(crate) fn live(&mut self) -> Step {
        self.begin()?;
        while self.operation < self.plan.operations {
            self.operation += 1;
            if self.plan.only.as_ref().is_some_and(|only| !only.contains(&self.operation)) {
                continue;
            }
            self.random = Random::new(self.plan.seed, 1000 + self.operation);
            self.counts.operations += 1;
            self.arm();
            self.act()?;
            self.watch_budget()?;
            self.use_pins()?;
            self.look_around()?;
            self.meddle()?;
            self.look_around()?;
        }
        self.random = Random::new(self.plan.seed, 3);
        self.end()
    }

    pub(crate) fn store(&self) -> &Store {
        self.store.as_ref().expect("a store is open between operations")
    }

    /// Takes the open store, so that another can be opened.
    pub(crate) fn take_store(&mut self) -> Option<Store> {
        self.announced.clear();
        self.store.take()
    }

    /// Notes what is being done, for a failure.
    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(format!("{}: {}", self.operation, what()));
    }

    pub(crate) fn is_doomed(&self) -> bool {
        self.doomed
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison.is_some()
    }

    /// The faults that a check of the open store may meet.
    pub(crate) fn care(&self) -> Care<'_> {
        Care {
            blame: &self.blame,
            medium: &self.medium,
            poisoned: self.poison.is_some(),
            gone: false,
            torn: self.poison.as_ref(),
        }
    }

    /// Creates the store and its first tables.
    fn begin(&mut self) -> Step {
        if self.plan.allows(Fault::Latency) && self.random.chance(1, 4) {
            faults::arm(&self.medium, Fault::Latency, &mut self.random);
        }
        for _ in 0..12 {
            self.open(At::Last)?;
            let plans: Vec<TablePlan> = self.plan.tables.clone();
            let refused = plans.into_iter().filter(|plan| plan.late == 0).find_map(|plan| {
                let plan = Rc::new(plan);
                match self.store().table(&plan.spec) {
                    Ok(_) => {
                        self.model.tables.push(Table::new(&plan, self.plan.row_seed()));
                        None
                    }
                    Err(error) => Some(error),
                }
            });
            let planned = refused.map_or_else(|| self.store().update(&[]).map(drop), Err);
            self.ids = self.store().tables().iter().map(|info| info.id).collect();
            match planned {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Budget => {
                    let given = self.given();
                    self.raise_memory(&error, given)?;
                }
                Err(error) if error.kind() == ErrorKind::Full && self.blame.bounded => {
                    return Err(Stop::Over);
                }
                Err(error) => return Err(format!("creating tables: {error:?}").into()),
            }
            self.close_quietly();
        }
        Err("the budget that a refusal named was refused again, twelve times".to_owned().into())
    }

    /// The budget of the open store.
    pub(crate) fn given(&self) -> u64 {
        match self.store().options().memory {
            Memory::Bytes(bytes) => bytes,
            Memory::Percent(_) => 0,
        }
    }

    pub(crate) fn close_quietly(&mut self) {
        self.readers.clear();
        self.announced.clear();
        drop(self.store.take());
    }

    /// Takes the budget that a refusal names, and what the plan has beyond the smallest.
    pub(crate) fn raise_memory(&mut self, error: &Error, given: u64) -> Step {
        let Some(named) = named_budget(error) else {
            return Err(format!("a refusal names no budget: {error}").into());
        };
        if named <= given {
            return Err(format!("a budget of {given} is refused, {named} named: {error}").into());
        }
        self.counts.event(Event::Budget);
        self.memory = named;
        Ok(())
    }

    /// The budget of the next opening: now and then the smallest that is known to work.
    fn memory_to_open(&mut self) -> u64 {
        let percent = self.plan.memory_percent.unwrap_or(100);
        if self.random.chance(1, 4) { self.memory } else { self.memory * percent / 100 }
    }

    fn options(&mut self, at: At) -> StoreOptions {
        let memory = self.memory_to_open();
        if self.random.chance(1, 4) {
            self.keep = 1 + self.random.below(5) as usize;
        }
        let options = StoreOptions { keep: self.keep, ..self.plan.options(memory) };
        let options = at.within(options);
        if self.random.chance(1, 4) {
            let policy = *self.random.pick(&[
                embedrock_core::config::PolicyKind::Lru,
                embedrock_core::config::PolicyKind::Lfu,
            ]);
            return StoreOptions { policy, ..options };
        }
        options
    }

    /// Opens the store of the medium, and finds out which of the possible commits it is at.
    pub(crate) fn open(&mut self, mut at: At) -> Step {
        let mut failures = 0;
        let store = loop {
            let options = self.options(at);
            let Memory::Bytes(given) = options.memory else { unreachable!("bytes are given") };
            match Store::open_on(self.plan.directories(&self.medium), options) {
                Ok(store) => break store,
                Err(error) if error.kind() == ErrorKind::Budget => {
                    self.raise_memory(&error, given)?;
                }
                Err(error) if error.kind() == ErrorKind::Locked && self.readers_hold_others(at) => {
                    // A reader holds a commit beside the kept ones.
                    self.counts.event(Event::HeldBack);
                    self.readers.clear();
                }
                Err(error) => {
                    failures += 1;
                    self.lies_now();
                    let off = self.medium.power_is_off() && error.kind() == ErrorKind::Io;
                    if off && !self.doomed {
                        self.counts.event(Event::CutWhileOpening);
                        self.finish_counts();
                        self.boot();
                        at = At::Last;
                        continue;
                    }
                    if self.doomed {
                        self.counts.event(Event::DamageReported);
                        return Err(Stop::Over);
                    }
                    let allowed = self.blame.allows(&self.medium, &error);
                    allowed.map_err(|why| format!("open at {at:?}: {why}"))?;
                    if failures > TRIES {
                        return Err(format!("open fails again and again: {error:?}").into());
                    }
                }
            }
        };
        store.upkeep_by_turns();
        if self.plan.window {
            store.window_by_hand();
        }
        let found = store.last_commit();
        self.store = Some(store);
        self.under_way = None;
        self.poison = None;
        self.announced.clear();
        let id = found.as_ref().map(|info| (info.step, info.meta.as_str()));
        let chain = match at {
            At::Last => self.identify(id)?,
            At::Step(step) => self.go_back_to(step, id)?,
            At::Pin(name) => self.go_back_to_point(&Rc::clone(&self.pins[name]), id)?,
        };
        self.adopt(chain)
    }

    /// The chain that ends with this commit.
    fn identify(&self, found: Option<(u64, &str)>) -> Step<Chain> {
        let mut all = self.others.iter().chain([&self.chain]);
        let ends = |chain: &Chain| chain.last().map(|p| (p.step, p.meta.as_str())) == found;
        // With the same end there may be more or fewer commits before it: those that the last one
        // has dropped, where it was given up since, or not.
        let kept = self.store().commits().len();
        let ending = all.clone().filter(|chain| ends(chain));
        if let Some(chain) = ending.min_by_key(|chain| chain.len().abs_diff(kept)) {
            return Ok(chain.clone());
        }
        let name = |chain: &Chain| chain.last().map_or("none".to_owned(), |p| point_name(p));
        let expected: Vec<String> = all.by_ref().map(name).collect();
        let found = found.map_or("none".to_owned(), |(step, meta)| {
            format!("step {step} ({})", meta.split(' ').next().unwrap_or(""))
        });
        Err(format!("the store is at commit {found}, expected {}", expected.join(" or ")).into())
    }

    /// The chain up to an earlier commit. Later commits may still be found after a reboot, until
    /// the next commit is made.
    fn go_back_to(&mut self, step: u64, found: Option<(u64, &str)>) -> Step<Chain> {
        let at = self.chain.iter().rposition(|point| point.step == step);
        let point = Rc::clone(&self.chain[at.expect("a step of the chain")]);
        self.go_back_to_point(&point, found)
    }

    fn go_back_to_point(&mut self, end: &Rc<Point>, found: Option<(u64, &str)>) -> Step<Chain> {
        if found != Some((end.step, end.meta.as_str())) {
            let (found, step) = (found.map(|(step, _)| step), end.step);
            return Err(format!("opened at step {step}, and the store is at {found:?}").into());
        }
        let Some(at) = self.chain.iter().rposition(|point| Rc::ptr_eq(point, end)) else {
            // The journal does not have it.
            self.others.push(self.chain.clone());
            return Ok(vec![Rc::clone(end)]);
        };
        for last in at + 1..=self.chain.len() {
            self.others.push(self.chain[..last].to_vec());
        }
        Ok(self.chain[..=at].to_vec())
    }

    /// The open store is at the end of this chain: everything of it is held against the model.
    fn adopt(&mut self, chain: Chain) -> Step {
        self.chain = chain;
        self.model = self.chain.last().map_or_else(Model::default, |p| p.model.clone());
        self.ids = self.store().tables().iter().map(|info| info.id).collect();
        let steps = |chain: &Chain| chain.iter().map(|p| p.step).collect::<Vec<_>>();
        let found: Vec<u64> = self.store().commits().iter().map(|info| info.step).collect();
        let expected = steps(&self.chain);
        // If the head is damaged, it is unknown which commits before the last are whole.
        self.lies_now();
        let fewer = self.doomed && !found.is_empty() && expected.ends_with(&found);
        if found != expected && !fewer {
            return Err(format!("the store keeps steps {found:?}, expected {expected:?}").into());
        }
        self.chain.drain(..expected.len() - found.len());
        self.adopt_pins()?;
        let result = self.check_everything();
        self.lies_now();
        result?;
        self.look_at_earlier()
    }

    /// Holds the whole open store against the model.
    pub(crate) fn check_everything(&mut self) -> Result<(), String> {
        let mut random = self.random.clone();
        self.random.next();
        check::all(self.store(), &self.model, &mut random, &self.care())?;
        if let Some(point) = self.chain.last() {
            match self.store().state() {
                Ok(state) if state == point.state => {}
                Ok(_) => return Err(format!("the state of {} is another", point_name(point))),
                Err(error) => drop(self.care().takes(&error).map_err(|e| format!("state: {e}"))?),
            }
        }
        Ok(())
    }

    /// A fault may strike from now on.
    fn arm(&mut self) {
        if !self.random.chance(1, self.plan.fault_every) || self.doomed {
            return;
        }
        let late = self.operation * 3 > self.plan.operations * 2;
        self.arm_one(&|fault| late || !fault.lies());
    }

    fn arm_one(&mut self, may: &dyn Fn(Fault) -> bool) {
        let current = self.head_is_current;
        let may =
            |fault: &Fault| *fault != Fault::Latency && (current || !fault.lies()) && may(*fault);
        let mut choice: Vec<Fault> = self.plan.faults.iter().filter(may).collect();
        if choice.contains(&Fault::Power) {
            // The state after a cut has the most ways to be wrong.
            choice.extend([Fault::Power; 2]);
        }
        if choice.is_empty() {
            return;
        }
        let fault = *self.random.pick(&choice);
        if fault == Fault::Power && self.random.chance(1, 2) {
            self.note(|| "the next commit loses its power".to_owned());
            self.cut_in_commit = true;
            return;
        }
        // A device that lies tells nothing of what it lost in a power cut.
        if fault.lies() {
            self.medium.end_single_faults();
        }
        self.note(|| format!("armed {}", fault.name()));
        self.strike(fault);
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        if faults::arm(&self.medium, fault, &mut self.random) {
            self.blame.flipped = true;
            self.counts.faults[fault as usize] += 1;
            self.lies_now();
        }
    }

    /// Whether the device has lied by now.
    pub(crate) fn lies_now(&mut self) {
        if !self.doomed && self.blame.lied(&self.medium) {
            self.doomed = true;
            self.counts.event(Event::Doomed);
        }
    }

    /// Another machine, whose device tells the truth so far.
    pub(crate) fn forget_lies(&mut self) {
        self.doomed = false;
        self.cut_in_commit = false;
    }

    /// After each operation, portions of commits among them: the store is within its budget.
    pub(crate) fn watch_budget(&self) -> Step {
        if self.medium.power_is_off() || self.is_poisoned() {
            return Ok(());
        }
        match self.store().memory_in_use() {
            Some((memory, most)) if memory.total() > most => {
                Err(format!("{memory:?} is more than {most} bytes").into())
            }
            _ => Ok(()),
        }
    }

    /// After each operation: the power may be gone, or the store refuse changes.
    fn look_around(&mut self) -> Step {
        self.lies_now();
        if self.medium.power_is_off() {
            return self.crash();
        }
        if self.poison.is_none() && self.blame.failed(&self.medium) && self.refuses_changes() {
            self.poison = Some(Change::default());
        }
        if self.poison.is_some() {
            return self.leave_poisoned();
        }
        Ok(())
    }

    /// Handles an error of a verb. `change` is the change that the verb would have made; a store
    /// that goes on must not have made it.
    pub(crate) fn refused(&mut self, what: &str, error: &Error, change: Option<Change>) -> Step {
        if self.medium.power_is_off() {
            return match error.kind() {
                ErrorKind::Io | ErrorKind::Poisoned => Ok(()),
                // It came first, and the power went while the verb tidied up.
                ErrorKind::Full if self.blame.allows(&self.medium, error).is_ok() => Ok(()),
                _ => Err(format!("{what} without power: {error:?}").into()),
            };
        }
        self.lies_now();
        if error.kind() == ErrorKind::Locked && self.readers_are_beside() {
            // A reader holds a commit that a change would write over.
            self.counts.event(Event::HeldBack);
            self.readers.clear();
            return self.check_unchanged(what, change.as_ref());
        }
        let allowed = self.blame.allows(&self.medium, error);
        allowed.map_err(|why| format!("{what}: {why}"))?;
        match error.kind() {
            ErrorKind::Full => self.counts.event(Event::Full),
            ErrorKind::Io => self.counts.event(Event::Error),
            ErrorKind::Corrupt => self.counts.event(Event::DamageReported),
            _ => {}
        }
        let poisoned = self.refuses_changes();
        if self.medium.power_is_off() {
            return Ok(());
        }
        if poisoned {
            if error.kind() == ErrorKind::Full && !self.doomed {
                return Err(format!("{what} says Full and has poisoned the store: {error}").into());
            }
            // The first verb that failed is the one that may be half done.
            self.poison.get_or_insert_with(|| change.unwrap_or_default());
            return Ok(());
        }
        // Nothing has changed, and what failed is no excuse any more.
        self.check_unchanged(what, change.as_ref())?;
        if self.under_way.is_none() && !self.doomed && !self.medium.power_is_off() {
            self.blame.was_told(&self.medium);
        }
        Ok(())
    }

    fn refuses_changes(&self) -> bool {
        let refused = self.store().update(&[]).err();
        refused.is_some_and(|error| error.kind() == ErrorKind::Poisoned)
    }

    pub(crate) fn check_unchanged(&mut self, what: &str, change: Option<&Change>) -> Step {
        let Some(change) = change else { return Ok(()) };
        for table in 0..self.model.tables.len() {
            let of = |(t, key, _): &(usize, u64, _)| (*t == table).then_some(*key);
            let keys: Vec<u64> = change.rows.iter().filter_map(of).collect();
            if !keys.is_empty() {
                let at = (table, self.ids[table]);
                check::rows(self.store(), &self.model, at, &keys, true, &self.care())
                    .map_err(|why| format!("{what} failed, and has changed something: {why}"))?;
            }
        }
        Ok(())
    }

    /// A store that refuses changes: it says so, gives right rows or none, and is opened again.
    pub(crate) fn leave_poisoned(&mut self) -> Step {
        self.counts.event(Event::Poisoned);
        for _ in 0..4 {
            if self.model.tables.is_empty() {
                break;
            }
            let table = self.random.below(self.model.tables.len() as u64) as usize;
            let plan = Rc::clone(&self.model.tables[table].plan);
            let keys = plan.draw(&mut self.random, 60);
            let at = (table, self.ids[table]);
            check::rows(self.store(), &self.model, at, &keys, true, &self.care())
                .map_err(|why| format!("of a poisoned store: {why}"))?;
        }
        match self.store().commit(self.next_step(), "poisoned", &[]) {
            Err(error) if error.kind() == ErrorKind::Poisoned => {}
            Err(_) if self.medium.power_is_off() || self.doomed => {}
            other => return Err(format!("commit of a poisoned store: {other:?}").into()),
        }
        if self.medium.power_is_off() || !self.doomed && self.random.chance(1, 2) {
            return self.crash();
        }
        self.reopen()
    }

    /// Opens the store again on the same machine, whose page cache may have what the disk does not.
    pub(crate) fn reopen(&mut self) -> Step {
        self.settle_under_way();
        match self.random.chance(1, 2) {
            true => {
                self.note(|| "close, open".to_owned());
                self.counts.event(Event::Reopened);
                match self.store().close() {
                    Ok(_) => {}
                    Err(_) if self.medium.power_is_off() => return self.crash(),
                    Err(error) => self.refused("close", &error, None)?,
                }
                // The commit that close has waited for.
                self.settle_under_way();
            }
            false => {
                self.note(|| "drop, open".to_owned());
                self.counts.event(Event::Killed);
            }
        }
        self.store = None;
        self.open_again(At::Last)
    }

    /// Lets go of the store, by a close or as a process that is killed.
    pub(crate) fn leave(&mut self) {
        self.announced.clear();
        self.store = None;
    }

    /// Opens on a machine that goes on; what failed before is no excuse any more.
    pub(crate) fn open_again(&mut self, at: At) -> Step {
        self.lies_now();
        if !self.doomed {
            self.medium.end_single_faults();
            self.blame = Blame::from_now(&self.medium, self.blame.bounded);
            if self.random.chance(1, 6) {
                self.arm_one(&|fault| !fault.lies());
            }
        }
        let before = self.chain.clone();
        self.open(at)?;
        // Changes found were not acknowledged, or are in the page cache alone.
        if at == At::Last && !same_end(&before, &self.chain) {
            self.others.push(before);
        }
        Ok(())
    }

    /// A commit that runs by hand and that nobody completes may be found, or not.
    pub(crate) fn settle_under_way(&mut self) {
        if let Some(point) = self.under_way.take() {
            let mut chain = self.chain.clone();
            chain.push(point);
            self.others.push(trimmed(chain, self.keep));
        }
    }

    /// The chain with a commit that is made now.
    pub(crate) fn chain_with(&self, point: &Rc<Point>) -> Chain {
        let mut chain = self.chain.clone();
        chain.push(Rc::clone(point));
        trimmed(chain, self.keep)
    }

    pub(crate) fn next_step(&self) -> u64 {
        self.chain.last().map_or(0, |point| point.step) + 1
    }

    /// The power goes. Several machines are tried on what is left, and the life goes on with one.
    pub(crate) fn crash(&mut self) -> Step {
        self.note(|| "power cut, reboot".to_owned());
        self.settle_under_way();
        // Requests in flight land.
        self.close_quietly();
        self.lies_now();
        if self.doomed {
            // Nobody can tell what the device has lost twice.
            return Err(Stop::Over);
        }
        self.counts.event(Event::Crashed);
        // The faults that struck this machine; several are booted from it.
        self.finish_counts();
        let pins = (self.pins.clone(), self.other_pins.clone());
        let before = (self.chain.clone(), self.others.clone(), self.medium.clone());
        let more = match std::mem::take(&mut self.cut_in_commit) {
            true => 3 + self.random.below(3),
            false => self.random.below(3),
        };
        for _ in 0..more {
            self.boot();
            self.open(At::Last)?;
            self.close_quietly();
            (self.chain, self.others, self.medium) = before.clone();
            (self.pins, self.other_pins) = pins.clone();
        }
        self.boot();
        self.open(At::Last)?;
        // The remaining bytes are on the disk.
        self.others.clear();
        self.other_pins.clear();
        Ok(())
    }

    pub(crate) fn boot(&mut self) {
        self.readers.clear();
        self.head_is_current = false;
        self.medium = self.medium.reboot(self.random.next());
        self.blame = Blame::from_now(&self.medium, self.blame.bounded);
    }

    /// The end of a life: all is there, also after the last power cut.
    fn end(&mut self) -> Step {
        self.note(|| "end".to_owned());
        self.medium.end_single_faults();
        self.complete_by_hand()?;
        self.look_around()?;
        let result = self.check_everything();
        self.lies_now();
        result?;
        if !self.doomed {
            self.crash()?;
        }
        if !self.doomed {
            self.examine()?;
        }
        self.finish_counts();
        Ok(())
    }

    /// Adds what the store and the device have counted.
    pub(crate) fn finish_counts(&mut self) {
        self.counts.add_fired(&self.medium.faults_fired());
    }
}

/// The budget that a refusal names.
pub(crate) fn named_budget(error: &Error) -> Option<u64> {
    let text = error.message().rsplit("memory=").next()?;
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

pub(crate) fn point_name(point: &Point) -> String {
    format!("step {} ({})", point.step, point.meta.split(' ').next().unwrap_or(""))
}

fn same_end(a: &Chain, b: &Chain) -> bool {
    match (a.last(), b.last()) {
        (Some(a), Some(b)) => Rc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// The commits that stay when the last one was made.
fn trimmed(mut chain: Chain, keep: usize) -> Chain {
    let gone = chain.len().saturating_sub(keep);
    chain.drain(..gone);
    chain
}
