//! The cold directory of a store: the place of its partitions, which the store remembers.
//!
//! A store and its cold directory name each other (`files/pairing.rs`). Nothing is opened, and
//! nothing written, where they do not: a wrong directory would look like one whose partitions are
//! lost. A writer locks the cold directory beside the store, so a copy of the store's own directory
//! never writes into it.

use super::Superblock;
use super::files::class_file::{PARTITION_PREFIX, has_rows};
use super::files::lock::{self, WriterLock};
use super::files::pairing::{MARKER, NAME, Pairing, is_begun_marker};
use super::files::superblock;
use super::open::absolute;
use crate::config::StoreOptions;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{DirectoryMedium, IoChoice, Medium, RoutedMedium};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::xxh3_128;

/// The medium of a store with all its directories, and the lock of the one apart.
pub(super) struct Joined {
    pub(super) medium: Arc<dyn Medium>,
    pub(super) lock: Option<WriterLock>,
}

/// Joins the directory of a store and its cold one, if it has one or is to get one. A writer makes
/// the cold directory, and notes where it has moved.
///
/// *Errors*: `Mismatch` where the directory is missing or of another store, `Misuse` for a place
/// that cannot be one, `Locked`, `Corrupt`, `Io`.
pub(super) fn join(
    own: Arc<dyn Medium>,
    options: &StoreOptions,
    superblock: &Superblock,
) -> Result<Joined> {
    // Who has a simulated device joins its directories.
    let Some(path) = own.path().map(Path::to_path_buf) else {
        return Ok(Joined { medium: own, lock: None });
    };
    let remembered = Pairing::read(&*own, NAME)?;
    if remembered.as_ref().is_some_and(|pairing| pairing.store != superblock.uuid) {
        bail!(Corrupt, "{NAME} is of another store; restore it from a copy of this one");
    }
    let given = options.cold_directory.as_deref().map(absolute).transpose()?;
    let directory = match (&remembered, given) {
        (None, None) => return Ok(Joined { medium: own, lock: None }),
        (_, Some(given)) => given,
        (Some(pairing), None) => PathBuf::from(&pairing.path),
    };
    let (store, io, writes) = (superblock.uuid, options.io, !options.read_only);
    Joining { own, path, store, directory, remembered, io, writes }.join()
}

/// Refuses a place that cannot become the cold directory of a store that is about to be made.
pub(super) fn check_for_new(options: &StoreOptions) -> Result<()> {
    let Some(directory) = &options.cold_directory else { return Ok(()) };
    let directory = absolute(directory)?;
    if let Some(found) = Found::look(&directory, options.io)?
        && let Some(marker) = found.marker
    {
        return Err(taken(&directory, &marker));
    }
    check_fresh(&directory)
}

/// A directory that is there, and what it says of itself.
struct Found {
    medium: DirectoryMedium,
    marker: Option<Pairing>,
}

impl Found {
    /// `None` where there is no such directory.
    fn look(directory: &Path, io: IoChoice) -> Result<Option<Self>> {
        let medium = match DirectoryMedium::open(directory, io) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let read = Pairing::read(&medium, MARKER);
        let marker = read.map_err(|error| error.context(directory.display()))?;
        Ok(Some(Self { medium, marker }))
    }

    fn has_partitions(&self) -> Result<bool> {
        Ok(self.medium.list(PARTITION_PREFIX)?.iter().any(|name| has_rows(name)))
    }
}

/// What is known while a store and a cold directory are joined.
struct Joining {
    own: Arc<dyn Medium>,
    /// Of the store.
    path: PathBuf,
    store: u128,
    /// The cold directory that was given, or else is remembered.
    directory: PathBuf,
    remembered: Option<Pairing>,
    io: IoChoice,
    writes: bool,
}

impl Joining {
    fn join(self) -> Result<Joined> {
        if is_same_directory(&self.directory, &self.path) {
            let path = self.path.display();
            bail!(Misuse, "cold_directory is {path}, the store's own; name another directory");
        }
        let found = Found::look(&self.directory, self.io)?;
        let is_there = found.is_some();
        if let Some(Found { medium, marker: Some(marker) }) = found {
            return match &self.remembered {
                // A store without the file has lost it, or was cut off before it had one.
                None if marker.store == self.store => self.go_on(medium, &marker),
                None => Err(taken(&self.directory, &marker)),
                Some(pairing) if self.is_paired(pairing, &marker) => self.go_on(medium, &marker),
                Some(pairing) if marker.store == self.store => {
                    Err(self.refusal("was this store's cold directory before another one", pairing))
                }
                Some(pairing) => {
                    let what = format!("is the cold directory of the store at {}", marker.path);
                    Err(self.refusal(&what, pairing))
                }
            };
        }
        match &self.remembered {
            Some(pairing) if !self.writes || !self.has_left(pairing)? => {
                let unmarked = format!("has no file {MARKER}, so it is no cold directory");
                let what = if is_there { &*unmarked } else { "is not there" };
                Err(self.refusal(what, pairing))
            }
            _ => self.begin(),
        }
    }

    fn is_paired(&self, pairing: &Pairing, marker: &Pairing) -> bool {
        (marker.store, marker.id) == (self.store, pairing.id)
    }

    /// Joins a directory whose marker is right.
    fn go_on(&self, medium: DirectoryMedium, marker: &Pairing) -> Result<Joined> {
        let there = Path::new(&marker.path);
        if !is_same_directory(there, &self.path) && is_same_store(there, &self.path) {
            bail!(
                Mismatch,
                "{} is the cold directory of the store at {}, of which {} is a copy: two stores \
                 may not share one; copy with embedrock copy, or remove the other one",
                self.directory.display(),
                marker.path,
                self.path.display()
            );
        }
        let mut lock = None;
        if self.writes {
            lock = Some(WriterLock::take(&medium, &self.directory)?);
            let moved = Pairing { path: spelled(&self.path)?, ..marker.clone() };
            if moved != *marker {
                moved.write(&medium, MARKER)?;
            }
            let record = Pairing { path: spelled(&self.directory)?, ..moved };
            if self.remembered.as_ref() != Some(&record) {
                record.write(&*self.own, NAME)?;
            }
        }
        self.joined(medium, lock)
    }

    /// Makes the cold directory of a store that has none, or nothing in the one that it had.
    fn begin(&self) -> Result<Joined> {
        if !self.writes {
            bail!(
                Misuse,
                "store {} has no cold directory, and one that is opened read_only=True gets none; \
                 open it without cold_directory",
                self.path.display()
            );
        }
        check_fresh(&self.directory)?;
        let failed = |error| Error::os(self.directory.display(), error);
        if !self.directory.exists() {
            fs::create_dir(&self.directory).map_err(failed)?;
        }
        // What is in it counts for nothing while its own name is not durable.
        let parent = self.directory.parent().unwrap_or(&self.directory);
        fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
        let medium = DirectoryMedium::open(&self.directory, self.io)?;
        let lock = WriterLock::take(&medium, &self.directory)?;
        let id = fresh_id(&self.directory, self.store);
        let marker = Pairing { store: self.store, id, path: spelled(&self.path)? };
        let record = Pairing { path: spelled(&self.directory)?, ..marker.clone() };
        marker.write(&medium, MARKER)?;
        record.write(&*self.own, NAME)?;
        if let Some(before) = &self.remembered
            && let Ok(before) = DirectoryMedium::open(&before.path, self.io)
        {
            // It may become another store's. Where that fails, its marker says whose it was.
            let _ = before.remove(MARKER);
        }
        self.joined(medium, Some(lock))
    }

    fn joined(&self, cold: DirectoryMedium, lock: Option<WriterLock>) -> Result<Joined> {
        let device = |path: &Path| match fs::metadata(path) {
            Ok(found) => Ok(found.dev()),
            Err(error) => Err(Error::os(path.display(), error)),
        };
        let shares_device = device(&self.path)? == device(cold.path())?;
        let own = Arc::clone(&self.own);
        let medium = RoutedMedium::new(own, Arc::new(cold), PARTITION_PREFIX, shares_device);
        Ok(Joined { medium: Arc::new(medium), lock })
    }

    /// Whether the remembered directory is there, right, and without partitions.
    fn has_left(&self, pairing: &Pairing) -> Result<bool> {
        let before = Path::new(&pairing.path);
        if before == self.directory {
            return Ok(false);
        }
        let Some(found) = Found::look(before, self.io)? else { return Ok(false) };
        let is_right = found.marker.as_ref().is_some_and(|marker| self.is_paired(pairing, marker));
        Ok(is_right && !found.has_partitions()?)
    }

    fn refusal(&self, what: &str, pairing: &Pairing) -> Error {
        let message = format!(
            "{} {what}; store {} has partitions in its cold directory, which was {}: bring it back \
             or mount it, or open with cold_directory= and the place where it is now",
            self.directory.display(),
            self.path.display(),
            pairing.path
        );
        Error::new(ErrorKind::Mismatch, message)
    }
}

fn taken(directory: &Path, marker: &Pairing) -> Error {
    let message = format!(
        "{} is the cold directory of the store at {}: two stores may not share one; name a \
         directory that is empty or not there yet, or remove {MARKER} there if that store is gone",
        directory.display(),
        marker.path
    );
    Error::new(ErrorKind::Mismatch, message)
}

/// Refuses a place that cannot become a cold directory: a file, a folder with files of others,
/// hidden ones apart, and a path whose parent is missing.
fn check_fresh(directory: &Path) -> Result<()> {
    let name = directory.display();
    if !directory.exists() {
        let parent = directory.parent().unwrap_or(directory);
        if !parent.is_dir() {
            let parent = parent.display();
            bail!(Misuse, "cold directory {name} cannot be made: there is no folder {parent}");
        }
        return Ok(());
    }
    if !directory.is_dir() {
        bail!(Misuse, "cold_directory {name} is a file, expected a directory");
    }
    let failed = |error| Error::os(name.to_string(), error);
    let mut strange = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let file = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        let is_harmless = [lock::NAME, "lost+found"].contains(&&*file) || file.starts_with('.');
        if !is_harmless && !is_begun_marker(&file) {
            strange.push(file);
        }
    }
    strange.sort_unstable();
    if let Some(first) = strange.first() {
        bail!(
            Misuse,
            "cold_directory {name} holds {} files already, {first:?} for one; name a directory \
             that is empty or not there yet",
            strange.len()
        );
    }
    Ok(())
}

fn fresh_id(directory: &Path, store: u128) -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let text = format!("{}\0{store}\0{now}\0{}", directory.display(), std::process::id());
    xxh3_128(text.as_bytes())
}

fn spelled(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            bail!(Misuse, "{} is not UTF-8, and a store with it cannot note it", path.display())
        }
    }
}

fn is_same_directory(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    place(one).is_some_and(|found| place(other) == Some(found))
}

/// Whether two directories have the same superblock.
fn is_same_store(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| fs::read(path.join(superblock::NAME)).ok();
    read(one).is_some_and(|bytes| read(other) == Some(bytes))
}
