//! Pinned commits: a name keeps a commit beyond the last ones, until it is taken away.
//!
//! To pin a commit its index is recovered beside the one at work, as a reader's is, and written to
//! a file of its own: a journal that holds this one commit. The parts of the files of rows that it
//! needs are noted beside its name (`files/pins.rs`) and told to the storages, which let nobody
//! write there. So a pin costs an index and the room of the rows that have changed since, whatever
//! was committed in between. The reasons: `docs/decisions/0027-pinned-commits.md`.
//!
//! A reader holds its commit before it looks whether that still has its name; the writer takes the
//! name away first and then looks for holds. So a commit that was unpinned stays, without a name,
//! until its readers are gone.
//!
//! # How a pin runs
//!
//! `Store::pin` opens the commit as a reader does, which holds it, and writes its index to `pin-…`
//! (`pins/write.rs`): a journal file of one commit. Verbs and commits continue. Then it takes the
//! engine alone: `StoragePins::pin` tells each class which segments and partitions stay, and `pins`
//! (`store/files/pins.rs`) gets the name. `unpin` removes the name and then looks for holds;
//! `release_unpinned` drops commits that have neither, also after each commit. Opening reads `pins`
//! and tells the classes again; a commit that only a pin keeps is recovered from its file alone
//! (`recover_pinned`). The first change after going back to one begins a journal with that file
//! (`commit/from_pin.rs`), and `survey` starts there.

mod write;

use super::commit::{History, PendingCommit};
use super::engine::Engine;
use super::files::holds::{self, Held};
use super::files::pins::{self, Pinned, Pins, check_name};
use super::files::state;
use super::journal::{VERSION_OF_PINS, name_of, pin_number, pin_of_name};
use super::{Inner, Store};
use crate::config::{CommitInfo, PinInfo};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{Medium, blocks_of};
use crate::storage::Parts;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

/// Pins that an error names.
const NAMED_MAX: usize = 3;

impl Store {
    /// Keeps the commit of this step, of those that are kept or pinned, until the name is taken
    /// away by [`unpin`](Self::unpin). A name that another commit has moves to this one.
    ///
    /// *Errors*: `NotFound` with the steps that there are; `Misuse` for a name that cannot be one;
    /// `Unsupported` where a table has storage `pmem`; `Full` when its index does not fit, and
    /// nothing has changed. *Blocking*: reads the journal and writes the index of the commit, while
    /// verbs of other threads and commits go on; they wait for the moment in which the name is
    /// written. *Memory*: until it returns there is a second index beside the budget.
    /// *Durability*: complete on return.
    pub fn pin(&self, step: u64, name: &str) -> Result<PinInfo> {
        let inner = &*self.inner;
        inner.check_pin(name)?;
        inner.check_folder()?;
        let _one = inner.pinning.lock();
        if !inner.name_before_later(step, name)? {
            inner.prepare_writing()?;
            let sequence = inner.to_be_pinned(step)?;
            inner.check_has_no_region(sequence)?;
            inner.pin(sequence, name)?;
        }
        let found = self.pins()?.into_iter().find(|pin| pin.name == name);
        found.ok_or_else(|| inner.not_pinned(name, ""))
    }

    /// Takes a name away from its commit. One without a name goes as others do: now, if it is not
    /// among the last ones, or once the readers are gone that have it open.
    ///
    /// *Errors*: `NotFound` with the names that there are. *Blocking*: waits for verbs that run and
    /// for a commit that is under way. *Durability*: complete on return.
    pub fn unpin(&self, name: &str) -> Result<()> {
        let inner = &*self.inner;
        inner.check_writable()?;
        inner.check_open()?;
        inner.check_folder()?;
        let _one = inner.pinning.lock();
        if inner.unpin_later(name)? {
            return Ok(());
        }
        inner.prepare_writing()?;
        let engine = inner.exclusive()?;
        inner.check_writable()?;
        let mut next = inner.pins.lock().clone();
        if !next.take_name(name) {
            return Err(inner.not_pinned(name, &next.spelled()));
        }
        inner.write_pins(&next)?;
        // If this fails, the next commit tries again.
        let _ = inner.release_unpinned(&engine);
        inner.poison_on_error(inner.give_back_room(&engine))
    }

    /// The pinned commits, oldest first, each as often as it has names. A reader tells what the
    /// store has by now.
    ///
    /// *Errors*: `Corrupt` when they cannot be read, `Io`.
    pub fn pins(&self) -> Result<Vec<PinInfo>> {
        self.inner.check_call()?;
        let engine = self.inner.engine.read();
        if engine.closed {
            return Err(self.inner.closed());
        }
        self.inner.pin_infos(&engine)
    }

    /// As [`commit`](Self::commit), and pins what it commits under this name, which another commit
    /// may have had.
    ///
    /// *Errors*: as `commit` and [`pin`](Self::pin). One that says that the commit is made, but not
    /// pinned, has left the name where it was.
    pub fn commit_pinned(
        &self,
        step: u64,
        meta: &str,
        state: &[(&str, &[u8])],
        name: &str,
    ) -> Result<CommitInfo> {
        self.inner.check_pin(name)?;
        let info = self.commit(step, meta, state)?;
        self.inner.pin_made(&info, name)?;
        Ok(info)
    }

    /// As [`commit_in_background`](Self::commit_in_background), and pins the commit once it is
    /// durable.
    ///
    /// *Errors*: as `commit_in_background`; the handle tells what keeps it from being pinned, too.
    pub fn commit_pinned_in_background(
        &self,
        step: u64,
        meta: &str,
        state: &[(&str, &[u8])],
        name: &str,
    ) -> Result<PendingCommit> {
        self.inner.check_pin(name)?;
        self.commit_and_then(step, meta, state, Some(name.to_owned()))
    }
}

impl Inner {
    fn not_pinned(&self, name: &str, pinned: &str) -> Error {
        let others = if pinned.is_empty() { "none is" } else { pinned };
        let message =
            format!("no commit of {} is pinned as '{name}': {others}", self.path.display());
        Error::new(ErrorKind::NotFound, message)
    }

    /// Refuses what is refused before anything is done.
    fn check_pin(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        check_name(name)?;
        let engine = self.planned_engine()?;
        if let Some(table) = engine.tables.iter().find(|table| table.region.is_some()) {
            bail!(
                Unsupported,
                "table '{}' has storage \"pmem\", whose rows are newer than any commit: a commit \
                 of this store cannot be gone back to, so none is pinned; copy the store",
                table.record.spec.name
            );
        }
        Ok(())
    }

    /// Refuses a kept commit with a table on persistent memory that was dropped after it.
    fn check_has_no_region(&self, sequence: u64) -> Result<()> {
        let engine = self.planned_engine()?;
        let history = self.history.lock();
        let Some(commit) = history.kept.iter().find(|kept| kept.info.sequence == sequence) else {
            return Ok(());
        };
        let of_commit = |id| commit.tables.iter().any(|table| table.id == id);
        let mut records = engine.table_records().into_iter();
        if let Some(table) = records.find(|t| t.spec.storage.is_direct() && of_commit(t.id)) {
            bail!(
                Unsupported,
                "table '{}' had storage \"pmem\" at step {} and was dropped since, with its rows: \
                 that commit cannot be gone back to, so it is not pinned",
                table.spec.name,
                commit.info.step
            );
        }
        Ok(())
    }

    /// The number of the commit of a step that can be pinned.
    fn to_be_pinned(&self, step: u64) -> Result<u64> {
        let kept = self.history.lock().commits();
        let pins = self.pins.lock();
        let of_kept = kept.iter().rfind(|commit| commit.step == step).map(|c| c.sequence);
        let of_pins = || pins.named().rfind(|pinned| pinned.step == step).map(|p| p.sequence);
        of_kept.or_else(of_pins).ok_or_else(|| {
            let steps: Vec<String> = kept.iter().map(|commit| commit.step.to_string()).collect();
            let message = format!(
                "there is no commit of step {step}; the store keeps [{}]",
                steps.join(", ")
            );
            Error::new(ErrorKind::NotFound, message)
        })
    }

    /// Pins a commit that this process has just made.
    pub(in crate::store) fn pin_made(&self, info: &CommitInfo, name: &str) -> Result<()> {
        let _one = self.pinning.lock();
        self.pin(info.sequence, name).map_err(|error| {
            let what = format!("the commit of step {} is made, but not pinned", info.step);
            error.context(what)
        })
    }

    /// Gives a commit a name. The caller holds `pinning`.
    fn pin(&self, sequence: u64, name: &str) -> Result<()> {
        let is_pinned = self.pins.lock().has(sequence);
        let written = match is_pinned {
            true => None,
            false => {
                let written = self.write_pin(sequence);
                Some(written.map_err(|error| self.name_pins(&self.engine.read(), error))?)
            }
        };
        let named = self.name_commit(sequence, name, written.as_ref().map(|(pinned, _)| pinned));
        // An error that poisons leaves open whether the name was written. The file then stays, and
        // the next opening decides.
        if named.is_err() && written.is_some() && self.check_unpoisoned().is_ok() {
            self.remove_pin_file(sequence);
        }
        named
    }

    /// Writes down that a commit has a name, and keeps its rows from here on. Of one that was not
    /// pinned before, `written` says what it needs.
    fn name_commit(&self, sequence: u64, name: &str, written: Option<&Pinned>) -> Result<()> {
        let engine = self.exclusive()?;
        self.check_writable()?;
        let mut next = self.pins.lock().clone();
        if let Some(pinned) = written {
            // Its reader's hold may have been taken away, and the commit be dropped.
            if !self.is_there(sequence)? {
                bail!(CommitGone, "commit {sequence} was dropped before it was pinned");
            }
            self.begin_version(&engine, VERSION_OF_PINS, "the first pinned commit")
                .map_err(|error| self.name_pins(&engine, error))?;
            next.add(pinned.clone());
        }
        next.name(sequence, name, seconds_now());
        let kept = match written {
            Some(pinned) => keep_in(&engine, pinned),
            None => Ok(()),
        };
        if let Err(error) = kept.and_then(|()| self.write_pins(&next)) {
            if written.is_some() {
                release_in(&engine, sequence);
            }
            return Err(error);
        }
        // If this fails, the next commit tries again.
        let _ = self.release_unpinned(&engine);
        Ok(())
    }

    /// Whether everything of a commit is still there: it is kept, or held.
    fn is_there(&self, sequence: u64) -> Result<bool> {
        let is_kept = self.history.lock().kept.iter().any(|c| c.info.sequence == sequence);
        let is_held = |held: Vec<Held>| held.iter().any(|held| held.sequence == sequence);
        Ok(is_kept || holds::living(&*self.medium).map(is_held)?)
    }

    /// Writes down which commits are pinned, durably. After an error that leaves open which it is
    /// the store refuses writes.
    fn write_pins(&self, next: &Pins) -> Result<()> {
        let medium = &*self.medium;
        {
            let history = &mut *self.history.lock();
            let growth = next.disk_bytes(self.seed);
            self.take_for_commit(history, growth, |_| next.prepare(medium, self.seed))?;
        }
        self.poison_on_error(Pins::install(medium))?;
        *self.pins.lock() = next.clone();
        self.count_pins_bytes(&mut self.history.lock());
        Ok(())
    }

    /// Takes a name away from a commit after the one that was gone back to, which goes with the
    /// first change. False where none has it.
    fn unpin_later(&self, name: &str) -> Result<bool> {
        let _engine = self.exclusive()?;
        self.check_writable()?;
        let mut later = self.later_pins.lock().clone();
        if !later.take_name(name) {
            return Ok(false);
        }
        let pins = self.pins.lock().clone();
        self.write_with_later(pins, later)?;
        Ok(true)
    }

    /// Gives a commit another name that is pinned already, while later pins keep the first change
    /// from coming. False where there are none, or it is not pinned.
    fn name_before_later(&self, step: u64, name: &str) -> Result<bool> {
        let _engine = self.exclusive()?;
        self.check_writable()?;
        let mut later = self.later_pins.lock().clone();
        if later.named().next().is_none() {
            return Ok(false);
        }
        let sequence = self.to_be_pinned(step)?;
        let mut pins = self.pins.lock().clone();
        if !pins.has(sequence) {
            return Ok(false);
        }
        later.take_name(name);
        pins.name(sequence, name, seconds_now());
        self.write_with_later(pins, later)?;
        Ok(true)
    }

    /// Writes down which commits are pinned, durably, those after the one at hand among them.
    fn write_with_later(&self, pins: Pins, later: Pins) -> Result<()> {
        let medium = &*self.medium;
        let history = &mut *self.history.lock();
        let (all, seed) = (pins.and_later(&later), self.seed);
        self.take_for_commit(history, all.disk_bytes(seed), |_| all.prepare(medium, seed))?;
        self.poison_on_error(Pins::install(medium))?;
        *self.pins.lock() = pins;
        *self.later_pins.lock() = later;
        self.count_pins_bytes(history);
        Ok(())
    }

    /// Lets go of commits that have no name any more, but for those that readers have open, as far
    /// as these may keep so much.
    pub(in crate::store) fn release_unpinned(&self, engine: &Engine) -> Result<()> {
        let is_unnamed = |pinned: &&Pinned| pinned.names.is_empty();
        let pins = {
            let pins = self.pins.lock();
            if !pins.iter().any(|pinned| is_unnamed(&pinned)) {
                return Ok(());
            }
            pins.clone()
        };
        let unnamed: Vec<&Pinned> = pins.iter().filter(is_unnamed).collect();
        let held = holds::living(&*self.medium)?;
        let held_of = |sequence: u64| held.iter().filter(move |held| held.sequence == sequence);
        let is_gone = |sequence: u64| held_of(sequence).next().is_none();
        let mut gone: Vec<u64> =
            unnamed.iter().map(|pinned| pinned.sequence).filter(|of| is_gone(*of)).collect();
        let most = self.most_held_bytes().unwrap_or(u64::MAX);
        for pinned in &unnamed {
            let left = unnamed.iter().filter(|pinned| !gone.contains(&pinned.sequence));
            let bytes: u64 = left.map(|left| self.bytes_of_pin(engine, &pins, left)).sum();
            if bytes <= most || gone.contains(&pinned.sequence) {
                continue;
            }
            for held in held_of(pinned.sequence) {
                holds::take_away(&*self.medium, held)?;
                self.metrics.holds_taken.fetch_add(1, Ordering::Relaxed);
            }
            gone.push(pinned.sequence);
        }
        if gone.is_empty() {
            return Ok(());
        }
        let mut next = pins.clone();
        next.remove(&gone);
        self.write_pins(&next)?;
        gone.iter().for_each(|sequence| release_in(engine, *sequence));
        gone.iter().for_each(|sequence| self.remove_pin_file(*sequence));
        // One that stays goes with the next commit.
        gone.iter().try_for_each(|sequence| self.remove_state_of(*sequence))
    }

    /// Removes the state of a commit that is not pinned any more, unless it is kept or held.
    fn remove_state_of(&self, sequence: u64) -> Result<()> {
        let history = &mut *self.history.lock();
        let first = history.kept.first().map_or(0, |commit| commit.info.sequence);
        if sequence >= first {
            return Ok(());
        }
        let name = state::name_of(sequence);
        match self.medium.state_of(&name) {
            Ok(found) => {
                self.medium.remove(&name)?;
                let bytes = blocks_of(found.bytes);
                history.held_state_bytes = history.held_state_bytes.saturating_sub(bytes);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes the file of a commit that nothing names. If this fails, the next writer does it.
    fn remove_pin_file(&self, sequence: u64) {
        let _ = self.medium.remove(&name_of(pin_number(sequence)));
        self.count_pins_bytes(&mut self.history.lock());
    }

    /// Counts the disk space of pins anew. If that fails the old count stays: the change of the
    /// pins itself is done.
    fn count_pins_bytes(&self, history: &mut History) {
        if let Ok(bytes) = pins_bytes(&*self.medium) {
            history.pins_bytes = bytes;
        }
    }

    /// Before the first change: removes what a crash has left of pins that were not written down,
    /// and those of commits that are given up.
    pub(in crate::store) fn remove_left_pins(
        &self,
        history: &mut History,
        pins: &Pins,
    ) -> Result<()> {
        let medium = &*self.medium;
        if super::has_file(medium, pins::NEW_NAME)? {
            medium.remove(pins::NEW_NAME)?;
        }
        if !super::has_file(medium, pins::NAME)? {
            return Ok(());
        }
        // A sync may have failed after it was renamed to its place. Until that lasts, what it has
        // not any more must stay.
        medium.sync_dir()?;
        if Pins::read(medium, self.seed)? != *pins {
            let growth = pins.disk_bytes(self.seed);
            self.take_for_commit(history, growth, |_| pins.prepare(medium, self.seed))?;
            // Durable before a commit gets a number again.
            Pins::install(medium)?;
        }
        let left = |name: &String| pin_of_name(name).is_some_and(|pin| !pins.has(pin));
        for name in pins::files(medium)?.iter().filter(|name| left(name)) {
            medium.remove(name)?;
        }
        history.pins_bytes = pins_bytes(medium)?;
        Ok(())
    }

    fn pin_infos(&self, engine: &Engine) -> Result<Vec<PinInfo>> {
        let pins = match self.options.read_only {
            true => Pins::read(&*self.medium, self.seed)?,
            false => self.pins.lock().and_later(&self.later_pins.lock()),
        };
        let mut infos = Vec::new();
        for pinned in pins.named() {
            let bytes = self.bytes_of_pin(engine, &pins, pinned);
            infos.extend(pinned.names.iter().map(|named| PinInfo {
                name: named.name.clone(),
                step: pinned.step,
                sequence: pinned.sequence,
                committed: pinned.committed,
                unix_time: named.unix_time,
                bytes,
            }));
        }
        Ok(infos)
    }

    /// Bytes on disk that only this one of the pinned commits keeps.
    fn bytes_of_pin(&self, engine: &Engine, pins: &Pins, pinned: &Pinned) -> u64 {
        let mut bytes = 0;
        for (at, class) in engine.classes.iter().enumerate() {
            let Some(parts) = pinned.classes.get(at) else { break };
            let others = pins.iter().filter(|other| other.sequence != pinned.sequence);
            let others: Vec<&Parts> = others.filter_map(|other| other.classes.get(at)).collect();
            bytes += class.log.lock().bytes_of_pin(parts, &others);
        }
        let bytes_of =
            |name: &str| self.medium.state_of(name).map_or(0, |found| blocks_of(found.bytes));
        bytes += bytes_of(&name_of(pin_number(pinned.sequence)));
        let first = self.history.lock().kept.first().map_or(0, |commit| commit.info.sequence);
        if pinned.sequence < first {
            bytes += bytes_of(&state::name_of(pinned.sequence));
        }
        bytes
    }

    /// Says of a `Full` what pinned commits keep, those that keep most. The caller holds no lock of
    /// a class.
    pub(in crate::store) fn name_pins(&self, engine: &Engine, error: Error) -> Error {
        if error.kind() != ErrorKind::Full {
            return error;
        }
        let Ok(mut infos) = self.pin_infos(engine) else { return error };
        if infos.is_empty() {
            return error;
        }
        infos.sort_by_key(|pin| std::cmp::Reverse(pin.bytes));
        let more = infos.len().saturating_sub(NAMED_MAX);
        let named = infos
            .iter()
            .take(NAMED_MAX)
            .map(|pin| format!("'{}' (step {}) keeps {} bytes", pin.name, pin.step, pin.bytes));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = if more > 0 { format!(" and {more} more do") } else { String::new() };
        error.followed_by(format!("of pinned commits {named}{more}: unpin what can go"))
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Tells the storages of an opened store what pinned commits need of their files.
pub(super) fn keep_pinned(engine: &Engine, pins: &Pins) -> Result<()> {
    pins.iter().try_for_each(|pinned| keep_in(engine, pinned))
}

fn keep_in(engine: &Engine, pinned: &Pinned) -> Result<()> {
    if pinned.classes.len() > engine.classes.len() {
        bail!(
            Corrupt,
            "{} says that pinned commit {} has {} classes of rows, and the store has {}",
            pins::NAME,
            pinned.sequence,
            pinned.classes.len(),
            engine.classes.len()
        );
    }
    for (class, parts) in engine.classes.iter().zip(&pinned.classes) {
        class.log.lock().pin(pinned.sequence, parts)?;
    }
    Ok(())
}

fn release_in(engine: &Engine, sequence: u64) {
    engine.classes.iter().for_each(|class| class.log.lock().unpin(sequence));
}

/// Bytes that pinned commits take beside rows and states.
pub(super) fn pins_bytes(medium: &dyn Medium) -> Result<u64> {
    let mut bytes = 0;
    let own = [pins::NAME.to_owned()];
    for name in pins::files(medium)?.into_iter().chain(own) {
        match medium.state_of(&name) {
            Ok(found) => bytes += blocks_of(found.bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
