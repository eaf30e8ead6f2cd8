//! Interference of people and scripts with the folder of an open store: another folder comes to its
//! place, or its lock file is removed and another writer comes.
//!
//! A writer finds out at its next commit at the latest. The other store stays as it is, and the own
//! one whole.

use crate::life::{Life, Step, Stop};
use crate::pins::At;
use crate::random::Random;
use crate::report::Event;
use embedrock_core::config::StorageKind;
use embedrock_core::init::Initializer;
use embedrock_core::io::{Medium, SimMedium};
use embedrock_core::optimizer::{OptimizerKind, OptimizerSpec};
use embedrock_core::row::{Dtype, RoundingMode};
use embedrock_core::{
    Error, ErrorKind, GetBatch, Memory, NonFinite, PutBatch, Store, StoreOptions,
};
use embedrock_core::{TableId, TableSpec};
use std::sync::Arc;

/// One operation in so many is followed by meddling.
const EVERY: u64 = 50;
/// Numbers of the random choices, after those of pins.
const CHOICES: u64 = 1 << 33;
/// Rows of a store in the place of another.
const ROWS: u64 = 40;
/// Its budget.
const MEMORY: u64 = 4 << 20;

impl Life<'_> {
    /// Now and then something that nobody should do. Its choices are its own, and change no others.
    pub(crate) fn meddle(&mut self) -> Step {
        let mut random = Random::new(self.plan.seed, CHOICES + self.operation);
        let cannot = self.is_poisoned() || self.is_doomed() || self.medium.power_is_off();
        let is_busy = self.under_way.is_some() || self.model.tables.is_empty();
        if !self.plan.meddles() || cannot || is_busy || !random.chance(1, EVERY) {
            return Ok(());
        }
        if self.cut_in_commit {
            return Ok(());
        }
        // An armed fault strikes the life's own operations.
        self.medium.end_single_faults();
        let others = std::mem::replace(&mut self.random, random);
        let outcome = match self.random.chance(1, 2) {
            true => self.replace_folder(),
            false => self.remove_lock(),
        };
        self.random = others;
        outcome
    }

    /// Another store comes to the place of this one, which is put back later.
    fn replace_folder(&mut self) -> Step {
        self.note(|| "another folder in its place".to_owned());
        self.counts.event(Event::FolderReplaced);
        let place = self.medium.replace_folder();
        let other = Other::make(&place)?;
        for _ in 0..2 {
            let refused = self.store().commit(self.next_step(), "displaced", &[]);
            self.expect_refusal(
                "a commit of a folder that is elsewhere",
                refused.map(drop),
                &[ErrorKind::NotFound],
            )?;
            if self.medium.power_is_off() {
                return Ok(());
            }
        }
        other.check()?;
        other.remove()?;
        self.medium.put_folder_back();
        Ok(())
    }

    /// Somebody takes the lock file for one that was left, and another writer comes. The life goes
    /// on with that one.
    fn remove_lock(&mut self) -> Step {
        self.note(|| "the lock file is removed, another writer comes".to_owned());
        // Removing it by hand takes longer than a device needs for its writes.
        if let Err(error) = self.store().land_writes() {
            return self.refused("landing writes", &error, None);
        }
        if self.medium.remove("lock").is_err() {
            return Ok(());
        }
        self.counts.event(Event::LockRemoved);
        let Some(old) = self.take_store() else { return Ok(()) };
        // Of the old one, whose tables the other may not have.
        let tables: Vec<TableId> = old.tables().iter().map(|info| info.id).collect();
        let machine = self.medium.clone();
        self.open_again(At::Last)?;
        self.medium.end_single_faults();
        if self.medium.power_is_off() || self.is_doomed() {
            return Ok(());
        }
        self.act()?;
        self.complete_by_hand()?;
        if self.medium.power_is_off() || self.is_poisoned() || self.is_doomed() {
            return Ok(());
        }
        // If the power went while the other was opened, the old one went with it.
        if machine.power_is_off() {
            return Ok(());
        }
        // Its writes wait in memory, or are refused.
        for (at, id) in tables.iter().enumerate().take(2) {
            let Some(info) = old.tables().into_iter().find(|info| info.id == *id) else { continue };
            let values = vec![at as f32; info.spec.embedding_dim];
            let keys = [at as u64];
            let put = PutBatch {
                table: *id,
                keys: &keys,
                values: &values,
                state: None,
                reset_state: false,
                non_finite: NonFinite::Refuse,
            };
            drop(old.put(&[put]));
        }
        let refused = old.commit(self.next_step() + 1000, "without its lock", &[]);
        let kinds = [ErrorKind::Locked, ErrorKind::Poisoned, ErrorKind::Full];
        self.expect_refusal("a commit of a writer without its lock", refused.map(drop), &kinds)?;
        drop(old);
        if self.medium.power_is_off() || self.is_doomed() {
            return Ok(());
        }
        self.check_everything().map_err(Stop::from)
    }

    fn expect_refusal(&mut self, what: &str, done: Result<(), Error>, kinds: &[ErrorKind]) -> Step {
        match done {
            Err(error) if kinds.contains(&error.kind()) => Ok(()),
            Err(_) if self.medium.power_is_off() || self.is_doomed() => Ok(()),
            Err(error) => Err(format!("{what} is refused by {error:?}").into()),
            Ok(()) => Err(format!("{what} was acknowledged").into()),
        }
    }
}

/// A store in the place of another.
struct Other {
    medium: SimMedium,
    files: Vec<(String, Vec<u8>)>,
}

impl Other {
    fn make(place: &SimMedium) -> Step<Self> {
        let medium = place.clone();
        let made = Self::fill(&medium);
        if medium.power_is_off() || made.as_ref().is_err_and(|e| e.kind() == ErrorKind::Full) {
            return Ok(Self { medium, files: Vec::new() });
        }
        made.map_err(|error| format!("a store in the place of another: {error:?}"))?;
        let files = contents(&medium);
        Ok(Self { medium, files })
    }

    fn options() -> StoreOptions {
        StoreOptions { check_disk: false, ..StoreOptions::new(Memory::Bytes(MEMORY)) }
    }

    fn fill(medium: &SimMedium) -> Result<(), Error> {
        let store = Store::open_on(Arc::new(medium.clone()), Self::options())?;
        let table = store.table(&spec())?;
        let keys: Vec<u64> = (0..ROWS).collect();
        let values: Vec<f32> = keys.iter().flat_map(|key| [*key as f32; 2]).collect();
        let put = PutBatch {
            table,
            keys: &keys,
            values: &values,
            state: None,
            reset_state: false,
            non_finite: NonFinite::Refuse,
        };
        store.put(&[put])?;
        store.commit(1, "other", &[])?;
        store.close().map(drop)
    }

    /// It is as it was, and can be opened.
    fn check(&self) -> Step {
        if self.files.is_empty() || self.medium.power_is_off() {
            return Ok(());
        }
        if contents(&self.medium) != self.files {
            return Err("a writer has changed the store in the place of its own".to_owned().into());
        }
        let read = || -> Result<Vec<f32>, Error> {
            let reading = StoreOptions { read_only: true, ..Self::options() };
            let store = Store::open_on(Arc::new(self.medium.clone()), reading)?;
            let Some(table) = store.find_table("other") else { return Ok(Vec::new()) };
            let mut values = vec![0.0; 2];
            let keys = [ROWS - 1];
            store.get(&mut [GetBatch {
                table,
                keys: &keys,
                values: (&mut values).into(),
                state: None,
            }])?;
            Ok(values)
        };
        match read() {
            Ok(values) if values == [(ROWS - 1) as f32; 2] => Ok(()),
            Err(_) if self.medium.power_is_off() => Ok(()),
            found => Err(format!("the store in the place of another has {found:?}").into()),
        }
    }

    /// It leaves the place, and the room that it took.
    fn remove(&self) -> Step {
        let names = self.medium.list("").unwrap_or_default();
        let removed = names.iter().try_for_each(|name| self.medium.remove(name));
        // A power cut would bring back what was not synced.
        let synced = removed.and_then(|()| self.medium.sync_dir());
        synced.map_err(|error| format!("removing the other store: {error:?}").into())
    }
}

fn spec() -> TableSpec {
    TableSpec {
        name: "other".to_owned(),
        first_name: None,
        embedding_dim: 2,
        num_embeddings: Some(ROWS),
        expected_rows: None,
        dtype: Dtype::Float32,
        rounding: RoundingMode::default(),
        storage: StorageKind::Log,
        capacity: None,
        optimizer: OptimizerSpec::new(OptimizerKind::None),
        initializer: Initializer::Constant(0.5),
    }
}

fn contents(medium: &SimMedium) -> Vec<(String, Vec<u8>)> {
    let names = medium.list("").unwrap_or_default();
    names.into_iter().map(|name| (name.clone(), medium.contents(&name))).collect()
}
