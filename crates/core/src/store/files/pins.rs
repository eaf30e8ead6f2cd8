//! `pins`: which commits are pinned, under which names, and what they need of the files of rows.
//!
//! Format: `docs/formats/pins.md`. It is written anew with each change, and renamed to its place,
//! so it is always whole. It is there before the first file of a pinned commit is, and stays when
//! none is left: without it nobody knows which rows must not be written over.

use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{Medium, OpenMode, blocks_of};
use crate::storage::Parts;
use crate::store::files::holds;
use crate::store::has_file;
use crate::store::journal::{PIN_PREFIX, pin_of_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(in crate::store) const NAME: &str = "pins";
pub(in crate::store) const NEW_NAME: &str = "pins.new";
const MAGIC: [u8; 8] = *b"EMBRPINS";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
/// Longest name of a pin, in bytes.
const NAME_BYTES_MAX: usize = 200;

/// A name, and when its commit got it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Named {
    pub(in crate::store) name: String,
    /// Seconds since 1970.
    pub(in crate::store) unix_time: u64,
}

/// A pinned commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Pinned {
    pub(in crate::store) sequence: u64,
    pub(in crate::store) step: u64,
    /// When it was committed, in seconds since 1970.
    pub(in crate::store) committed: u64,
    /// None of one that was unpinned while readers held it: it goes when they do.
    pub(in crate::store) names: Vec<Named>,
    /// The end of its record in its file.
    pub(in crate::store) end: u64,
    /// The parts of the files of rows that it needs, by class.
    pub(in crate::store) classes: Vec<Parts>,
}

/// The pinned commits of a store, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(in crate::store) struct Pins(Vec<Pinned>);

impl Pins {
    /// Reads them; none where the store never had any. *Errors*: `Corrupt` where they are missing
    /// or do not check, `Unsupported`.
    pub(in crate::store) fn read(medium: &dyn Medium, seed: u64) -> Result<Self> {
        if !has_file(medium, NAME)? {
            if let Some(name) = files(medium)?.first() {
                bail!(
                    Corrupt,
                    "{NAME} is missing, though {name} is there; restore it from a copy, or remove \
                     all {PIN_PREFIX}… files to go on without pinned commits"
                );
            }
            return Ok(Self::default());
        }
        let file = medium.open(NAME, OpenMode::ReadOnly)?;
        let mut bytes = vec![0; file.len()? as usize];
        file.read_at(&mut bytes, 0)?;
        let damage = |what: &str| {
            let way_out = format!(
                "restore it from a copy, or remove it and all {PIN_PREFIX}… files to go on \
                 without pinned commits"
            );
            Error::new(ErrorKind::Corrupt, format!("{NAME}: {what}; {way_out}"))
        };
        let Some((body, sum)) = bytes.split_last_chunk::<8>() else {
            return Err(damage("it is too short"));
        };
        if u64::from_le_bytes(*sum) != xxh3_64_with_seed(body, seed)
            || body.len() < HEADER_BYTES
            || body[..8] != MAGIC
        {
            return Err(damage("its checksum does not match"));
        }
        let word =
            |at: usize| u32::from_le_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        let version = word(8);
        if version != VERSION {
            bail!(
                Unsupported,
                "{NAME} has version {version}, this build reads {VERSION}; use a newer embedrock"
            );
        }
        let pins: Self = serde_json::from_slice(&body[HEADER_BYTES..])
            .map_err(|error| damage(&format!("its JSON cannot be read: {error}")))?;
        pins.verify().map_err(|error| damage(error.message()))?;
        Ok(pins)
    }

    fn verify(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for pinned in &self.0 {
            for named in &pinned.names {
                check_name(&named.name)?;
                if !names.insert(&named.name) {
                    bail!(Corrupt, "'{}' is the name of two commits", named.name);
                }
            }
            pinned.classes.iter().try_for_each(Parts::verify)?;
        }
        if !self.0.windows(2).all(|pair| pair[0].sequence < pair[1].sequence) {
            bail!(Corrupt, "pinned commits are not in order");
        }
        Ok(())
    }

    fn encode(&self, seed: u64) -> Vec<u8> {
        let json = serde_json::to_vec(self).expect("pins are plain data");
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&json);
        bytes.extend_from_slice(&xxh3_64_with_seed(&bytes, seed).to_le_bytes());
        bytes
    }

    /// Bytes that their file takes.
    pub(in crate::store) fn disk_bytes(&self, seed: u64) -> u64 {
        blocks_of(self.encode(seed).len() as u64)
    }

    /// Writes them beside those before, durably: after an error nothing has changed.
    pub(in crate::store) fn prepare(&self, medium: &dyn Medium, seed: u64) -> Result<()> {
        if has_file(medium, NEW_NAME)? {
            medium.remove(NEW_NAME)?;
        }
        let written = medium.open(NEW_NAME, OpenMode::CreateNew).and_then(|file| {
            file.write_at(&self.encode(seed), 0)?;
            file.sync()
        });
        written.inspect_err(|_| {
            let _ = medium.remove(NEW_NAME);
        })
    }

    /// Puts what was prepared in its place, durably. After an error nobody knows which of the two
    /// a power cut leaves.
    pub(in crate::store) fn install(medium: &dyn Medium) -> Result<()> {
        medium.rename(NEW_NAME, NAME)?;
        medium.sync_dir()
    }

    pub(in crate::store) fn iter(&self) -> std::slice::Iter<'_, Pinned> {
        self.0.iter()
    }

    pub(in crate::store) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pinned commit of this number, with or without names.
    pub(in crate::store) fn get(&self, sequence: u64) -> Option<&Pinned> {
        self.0.iter().find(|pinned| pinned.sequence == sequence)
    }

    /// Whether this commit is among them, with or without names.
    pub(in crate::store) fn has(&self, sequence: u64) -> bool {
        self.get(sequence).is_some()
    }

    /// Those that have a name.
    pub(in crate::store) fn named(&self) -> impl DoubleEndedIterator<Item = &Pinned> {
        self.0.iter().filter(|pinned| !pinned.names.is_empty())
    }

    /// The one that has this name.
    pub(in crate::store) fn of_name(&self, name: &str) -> Option<&Pinned> {
        self.0.iter().find(|pinned| pinned.names.iter().any(|named| named.name == name))
    }

    /// Takes a commit in, without a name yet.
    pub(in crate::store) fn add(&mut self, pinned: Pinned) {
        self.0.push(pinned);
        self.0.sort_by_key(|pinned| pinned.sequence);
    }

    /// Takes a name away from its commit; false where none has it.
    pub(in crate::store) fn take_name(&mut self, name: &str) -> bool {
        let before = self.0.iter().map(|pinned| pinned.names.len()).sum::<usize>();
        self.0.iter_mut().for_each(|pinned| pinned.names.retain(|named| named.name != name));
        before > self.0.iter().map(|pinned| pinned.names.len()).sum::<usize>()
    }

    /// Gives a commit a name, which no other has any more.
    pub(in crate::store) fn name(&mut self, sequence: u64, name: &str, unix_time: u64) {
        self.take_name(name);
        let found = self.0.iter_mut().find(|pinned| pinned.sequence == sequence);
        if let Some(pinned) = found {
            pinned.names.push(Named { name: name.to_owned(), unix_time });
        }
    }

    /// Forgets these commits.
    pub(in crate::store) fn remove(&mut self, gone: &[u64]) {
        self.0.retain(|pinned| !gone.contains(&pinned.sequence));
    }

    /// Refuses to go back to a commit while later ones are pinned, or are held by a reader though
    /// they were unpinned: they would be given up with all that came after it.
    pub(in crate::store) fn refuse_going_back(
        &self,
        medium: &dyn Medium,
        path: &Path,
        sequence: u64,
    ) -> Result<()> {
        let later = Self(self.0.iter().filter(|p| p.sequence > sequence).cloned().collect());
        if later.is_empty() {
            return Ok(());
        }
        if later.named().next().is_some() {
            bail!(
                Misuse,
                "{} is pinned and came after the commit to go back to, which would drop it; unpin \
                 it first, and copy what is to stay (embedrock.copy with step=)",
                later.spelled()
            );
        }
        if let Some(held) = holds::living(medium)?.iter().find(|held| later.has(held.sequence)) {
            bail!(
                Locked,
                "a reader of {} holds commit {}, which was unpinned and is later than commit \
                 {sequence}; stop it first",
                path.display(),
                held.sequence
            );
        }
        Ok(())
    }

    /// Those after this commit.
    pub(in crate::store) fn after(&self, sequence: u64) -> Self {
        Self(self.0.iter().filter(|pinned| pinned.sequence > sequence).cloned().collect())
    }

    /// These, and others that are all later.
    pub(in crate::store) fn and_later(&self, later: &Self) -> Self {
        Self(self.0.iter().chain(&later.0).cloned().collect())
    }

    /// Forgets commits after this one: nobody has them any more.
    pub(in crate::store) fn forget_after(&mut self, sequence: u64) {
        self.0.retain(|pinned| pinned.sequence <= sequence);
    }

    /// Names and steps, for people: `'best' (step 3)`.
    pub(in crate::store) fn spelled(&self) -> String {
        let names = self.0.iter().flat_map(|pinned| {
            pinned.names.iter().map(|named| format!("'{}' (step {})", named.name, pinned.step))
        });
        names.collect::<Vec<_>>().join(", ")
    }
}

/// The files of pinned commits, whether they are in use or were left by a crash.
pub(in crate::store) fn files(medium: &dyn Medium) -> Result<Vec<String>> {
    let names = medium.list(PIN_PREFIX)?;
    Ok(names.into_iter().filter(|name| pin_of_name(name).is_some()).collect())
}

/// Refuses what cannot be the name of a pin.
pub(in crate::store) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        bail!(Misuse, "the name of a pin has {} bytes, expected 1 to {NAME_BYTES_MAX}", name.len());
    }
    if name.chars().any(char::is_control) {
        bail!(Misuse, "the name of a pin is {name:?}, expected one without control characters");
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        bail!(Misuse, "the name of a pin is {name:?}, which could be a step; add a letter");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::SimMedium;

    const SEED: u64 = 5;

    fn pins() -> Pins {
        let parts = Parts { segments: vec![(0, 3), (5, 5)], partitions: vec![(2, 4096)] };
        let pinned = |sequence| Pinned {
            sequence,
            step: 10 * sequence,
            committed: 50,
            names: Vec::new(),
            end: 99,
            classes: vec![parts.clone(), Parts::default()],
        };
        let mut pins = Pins::default();
        pins.add(pinned(7));
        pins.add(pinned(3));
        pins.name(3, "best", 100);
        pins.name(7, "last", 200);
        pins
    }

    fn write(pins: &Pins, medium: &SimMedium) {
        pins.prepare(medium, SEED).unwrap();
        Pins::install(medium).unwrap();
    }

    #[test]
    fn pins_are_read_as_they_were_written_and_damage_is_told() {
        let medium = SimMedium::new(1);
        assert_eq!(Pins::read(&medium, SEED).unwrap(), Pins::default());
        let written = pins();
        write(&written, &medium);
        assert_eq!(Pins::read(&medium, SEED).unwrap(), written);
        assert_eq!(written.spelled(), "'best' (step 30), 'last' (step 70)");
        let bytes = written.encode(SEED).len() as u64;
        for at in 0..bytes {
            let damaged = medium.reboot(at);
            damaged.flip_bit(NAME, at);
            let error = Pins::read(&damaged, SEED).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
        }
        for len in 0..bytes {
            let short = medium.reboot(len);
            short.open(NAME, OpenMode::ReadWrite).unwrap().set_len(len).unwrap();
            assert_eq!(Pins::read(&short, SEED).unwrap_err().kind(), ErrorKind::Corrupt, "{len}");
        }
        assert_eq!(Pins::read(&medium, SEED + 1).unwrap_err().kind(), ErrorKind::Corrupt);
        // Without them, a file of a pinned commit says that there were some.
        medium.remove(NAME).unwrap();
        medium.open("pin-0000000003", OpenMode::CreateNew).unwrap();
        assert_eq!(Pins::read(&medium, SEED).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_name_moves_and_a_commit_without_names_stays_until_it_is_removed() {
        let mut pins = pins();
        pins.name(7, "best", 300);
        assert_eq!(pins.of_name("best").map(|pinned| pinned.sequence), Some(7));
        assert_eq!((pins.named().count(), pins.has(3)), (1, true));
        pins.remove(&[3]);
        assert!(!pins.has(3) && pins.take_name("last") && !pins.take_name("last"));
    }

    #[test]
    fn names_that_could_be_steps_or_cannot_be_printed_are_refused() {
        for name in ["best", "Epoch 3", "é", "3a"] {
            check_name(name).unwrap();
        }
        for name in ["", "12", "a\nb", &"x".repeat(201)] {
            assert_eq!(check_name(name).unwrap_err().kind(), ErrorKind::Misuse, "{name:?}");
        }
    }
}
