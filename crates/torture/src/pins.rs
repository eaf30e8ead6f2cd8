//! Pinned commits: whatever follows they stay, and the store can go back to them.

use crate::check::{self, Care};
use crate::faults::Fault;
use crate::life::{Life, Point, Step, point_name};
use crate::model::Change;
use crate::random::Random;
use crate::report::Event;
use embedrock_core::{Error, ErrorKind, StoreOptions};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Names that lives give.
const NAMES: [&str; 3] = ["best", "last", "other"];
/// One operation in so many is followed by something about pins.
const EVERY: u64 = 10;
/// Operations of the device within which a cut strikes what is done with pins.
const CUT_WITHIN: u64 = 60;
/// Numbers of the random choices, after those of all operations.
const CHOICES: u64 = 1 << 32;

/// Pinned commits by name.
pub(crate) type Pins = BTreeMap<&'static str, Rc<Point>>;

/// The commit at which a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// At its last commit.
    Last,
    /// At the kept commit of a step.
    Step(u64),
    /// At the commit that is pinned under a name.
    Pin(&'static str),
}

impl At {
    /// The options that say so.
    pub(crate) fn within(self, options: StoreOptions) -> StoreOptions {
        match self {
            Self::Last => options,
            Self::Step(step) => StoreOptions { step: Some(step), ..options },
            Self::Pin(name) => StoreOptions { pin: Some(name.to_owned()), ..options },
        }
    }
}

impl Life<'_> {
    /// Now and then something about pins. Its choices are its own, and change no others.
    pub(crate) fn use_pins(&mut self) -> Step {
        let mut random = Random::new(self.plan.seed, CHOICES + self.operation);
        let cannot = self.is_poisoned() || self.medium.power_is_off();
        if !self.plan.pins || cannot || self.model.tables.is_empty() || !random.chance(1, EVERY) {
            return Ok(());
        }
        let others = std::mem::replace(&mut self.random, random);
        let outcome = match self.random.below(8) {
            0..=3 => self.pin(),
            4 => self.unpin_one(),
            5 => self.go_back_to_pin(),
            _ => self.look_at_pin(),
        };
        self.random = others;
        outcome
    }

    /// Pins a kept commit, under a name that another may have.
    fn pin(&mut self) -> Step {
        if self.chain.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.chain.len() as u64) as usize;
        let (point, name) = (Rc::clone(&self.chain[at]), *self.random.pick(&NAMES));
        self.note(|| format!("pin {} as {name}", point_name(&point)));
        self.counts.verb("pin");
        self.cut_soon();
        let mut pins = self.pins.clone();
        pins.insert(name, Rc::clone(&point));
        match self.store().pin(point.step, name) {
            Ok(info) if (info.step, &*info.name) == (point.step, name) => {
                self.counts.event(Event::Pinned);
                self.has_pins(pins)
            }
            Ok(info) => Err(format!("{} was pinned as {info:?}", point_name(&point)).into()),
            // A commit that is under way has let go of it.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::CommitGone)
                    && self.may_be_gone(Some(point.step)) =>
            {
                self.check_names()
            }
            Err(error) => self.pins_refused("pin", pins, &error),
        }
    }

    fn unpin_one(&mut self) -> Step {
        let at = self.random.below(self.pins.len().max(1) as u64) as usize;
        self.pins.keys().copied().nth(at).map_or(Ok(()), |name| self.unpin(name))
    }

    fn unpin(&mut self, name: &'static str) -> Step {
        self.note(|| format!("unpin {name}"));
        self.counts.verb("unpin");
        self.cut_soon();
        let mut pins = self.pins.clone();
        pins.remove(name);
        match self.store().unpin(name) {
            Ok(()) => {
                self.counts.event(Event::Unpinned);
                self.has_pins(pins)
            }
            Err(error) => self.pins_refused("unpin", pins, &error),
        }
    }

    /// Takes all names away, as a user that needs the room would.
    pub(crate) fn unpin_all(&mut self) -> Step {
        for name in self.pins.clone().into_keys() {
            if self.is_poisoned() || self.medium.power_is_off() {
                break;
            }
            self.unpin(name)?;
        }
        Ok(())
    }

    /// Takes the names of commits away that came after one. True when all of them are gone.
    pub(crate) fn unpin_after(&mut self, sequence: u64) -> Step<bool> {
        let found = self.store().pins().map_err(|e| format!("pins: {e:?}"))?;
        let is_later =
            |name: &&'static str| found.iter().any(|p| p.name == **name && p.sequence > sequence);
        let later: Vec<&str> = self.pins.keys().copied().filter(is_later).collect();
        if later.is_empty() {
            return Ok(true);
        }
        match self.store().check_may_go_back(sequence, false) {
            Err(error) if error.kind() == ErrorKind::Misuse => {}
            Err(_) if self.medium.power_is_off() || self.is_doomed() => {}
            other => return Err(format!("going back from under {later:?}: {other:?}").into()),
        }
        for name in later {
            self.unpin(name)?;
            if self.is_poisoned() || self.medium.power_is_off() || self.pins.contains_key(name) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes on from a pinned commit, whether it is kept otherwise or not.
    fn go_back_to_pin(&mut self) -> Step {
        self.complete_by_hand()?;
        if self.is_poisoned() || self.is_doomed() || self.medium.power_is_off() {
            return Ok(());
        }
        let at = self.random.below(self.pins.len().max(1) as u64) as usize;
        let Some(name) = self.pins.keys().copied().nth(at) else { return Ok(()) };
        let found = self.store().pins().map_err(|e| format!("pins: {e:?}"))?;
        let sequence = found.iter().find(|pin| pin.name == name).map_or(0, |pin| pin.sequence);
        self.readers.clear();
        if !self.unpin_after(sequence)? {
            return Ok(());
        }
        self.note(|| format!("go back to pin {name}"));
        self.counts.event(Event::WentBackToPin);
        self.cut_soon();
        self.leave();
        self.open_again(At::Pin(name))
    }

    /// Whether a pinned commit is there.
    fn look_at_pin(&mut self) -> Step {
        let at = self.random.below(self.pins.len().max(1) as u64) as usize;
        let Some((name, point)) = self.pins.iter().nth(at) else { return Ok(()) };
        let (name, point) = (*name, Rc::clone(point));
        self.note(|| format!("look at pin {name}, {}", point_name(&point)));
        let read_only = StoreOptions { read_only: true, ..self.plan.options(self.memory) };
        let mut random = self.random.clone();
        let care = Care { torn: None, ..self.care() };
        let result = match self.open_to_read(At::Pin(name).within(read_only)) {
            Ok(store) => check::all(&store, &point.model, &mut random, &care).map(drop),
            Err(error) => care.takes(&error).map(drop),
        };
        result.map_err(|why| format!("pin {name}, {}: {why}", point_name(&point)).into())
    }

    /// Now and then the power goes in what comes next.
    fn cut_soon(&mut self) {
        if self.plan.allows(Fault::Power) && !self.is_doomed() && self.random.chance(1, 6) {
            let begun = self.medium.counters().operations;
            self.medium.power_cut_after(begun + 1 + self.random.below(CUT_WITHIN));
        }
    }

    /// The store has said that these are pinned: it survives everything.
    fn has_pins(&mut self, pins: Pins) -> Step {
        self.pins = pins;
        self.other_pins.clear();
        self.check_names()
    }

    /// The state after an error of a verb that would have made these the pins.
    fn pins_refused(&mut self, what: &str, pins: Pins, error: &Error) -> Step {
        if error.kind() == ErrorKind::Budget {
            let given = self.given();
            return self.raise_memory(error, given);
        }
        self.other_pins.push(pins);
        self.refused(what, error, Some(Change::default()))?;
        if self.is_poisoned() || self.medium.power_is_off() {
            return Ok(());
        }
        // It goes on, so nothing has changed.
        self.other_pins.pop();
        self.check_names()
    }

    fn check_names(&self) -> Step {
        let found = self.names()?;
        match found == names_of(&self.pins) || self.medium.power_is_off() {
            true => Ok(()),
            false => Err(format!("pinned are {found:?}, expected {:?}", self.pins.keys()).into()),
        }
    }

    /// Names and steps of pins as the store tells them.
    fn names(&self) -> Step<BTreeMap<String, u64>> {
        let pins = self.store().pins().map_err(|error| format!("pins: {error:?}"))?;
        Ok(pins.into_iter().map(|pin| (pin.name, pin.step)).collect())
    }

    /// The store was opened: its pins are those that it was told of last, or would have been.
    pub(crate) fn adopt_pins(&mut self) -> Step {
        let found = self.names()?;
        if found == names_of(&self.pins) {
            return Ok(());
        }
        let Some(at) = self.other_pins.iter().position(|pins| names_of(pins) == found) else {
            let expected: Vec<_> =
                self.other_pins.iter().chain([&self.pins]).map(names_of).collect();
            return Err(format!("pinned are {found:?}, expected one of {expected:?}").into());
        };
        // It may be in the page cache alone.
        let pins = self.other_pins.swap_remove(at);
        self.other_pins.push(std::mem::replace(&mut self.pins, pins));
        Ok(())
    }
}

fn names_of(pins: &Pins) -> BTreeMap<String, u64> {
    pins.iter().map(|(name, point)| ((*name).to_owned(), point.step)).collect()
}
