//! The cold directory of a store: the place of its partitions, which the store remembers.
//!
//! A store and its cold directory name each other (`files/pairing.rs`). Nothing is opened, and
//! nothing written, where they do not: a wrong directory would look like one whose partitions are
//! lost. A new pairing is noted last, when the store has proved to open with the directory: until
//! then opening without the directory takes it back. A writer locks the cold directory beside the
//! store, so a copy of the store's own directory never writes into it.

mod places;

use super::Superblock;
use super::files::class_file::{PARTITION_PREFIX, has_rows, lies_apart};
use super::files::lock::WriterLock;
use super::files::pairing::{MARKER, NAME, Pairing};
use crate::config::StoreOptions;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::io::{DirectoryMedium, IoChoice, Medium, RoutedMedium};
use places::{is_same_directory, is_same_store, spelled};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::xxh3_128;

/// A store with all its directories.
pub(super) struct Joined {
    pub(super) medium: Arc<dyn Medium>,
    /// That of the cold directory, if there is one and the store writes.
    pub(super) lock: Option<WriterLock>,
    /// To be noted when the store has proved to open.
    pub(super) notes: Option<Notes>,
}

impl Joined {
    /// A store in one directory.
    fn alone(medium: Arc<dyn Medium>) -> Self {
        Self { medium, lock: None, notes: None }
    }
}

/// Joins the directory of a store and its cold one, if it has one or is to get one. A writer makes
/// a directory that is not there yet, and locks it; all else is left to [`Notes::write`].
///
/// *Errors*: `Mismatch` where the directory is missing or of another store, `Misuse` for a place
/// that cannot be one, `Locked`, `Corrupt`, `Io`.
pub(super) fn join(
    own: &Arc<dyn Medium>,
    options: &StoreOptions,
    superblock: &Superblock,
) -> Result<Joined> {
    // A simulated device has no path; its directories are joined by its user.
    let Some(path) = own.path() else { return Ok(Joined::alone(Arc::clone(own))) };
    match Joining::of(own, path, options, superblock)? {
        None => Ok(Joined::alone(Arc::clone(own))),
        Some(joining) => {
            if options.cold_directory.is_some() {
                places::check(&joining.directory, path)?;
            }
            let found = Found::look(&joining.directory, options.io)?;
            joining.join(found)
        }
    }
}

/// Refuses a place that cannot become the cold directory of a store that is about to be made.
///
/// *Errors*: `Mismatch` where it is another store's, `Misuse`, `Io`.
pub(super) fn check_for_new(store: &Path, options: &StoreOptions) -> Result<()> {
    let Some(directory) = &options.cold_directory else { return Ok(()) };
    let directory = places::named(directory)?;
    places::check(&directory, store)?;
    match Found::look(&directory, options.io)? {
        Some(Found { marker: Some(marker), .. }) => Err(taken(&directory, &marker)),
        Some(found) => places::check_fresh(&*found.medium),
        None => Ok(()),
    }
}

/// Refuses to go on where the store has got or moved its cold directory since `medium` was joined:
/// partitions are elsewhere then, and not lost. Asked once the commit is found that names them: a
/// writer notes the directory before it.
///
/// *Errors*: `Mismatch`, `Corrupt`, `Io`.
pub(super) fn check_unchanged(medium: &dyn Medium, store: &Path) -> Result<()> {
    let Some(record) = Pairing::read(medium, NAME)? else { return Ok(()) };
    let joined = medium.apart().map(|cold| Pairing::read(&**cold, MARKER)).transpose()?.flatten();
    let displaced = medium.apart().map(|cold| cold.displaced()).transpose()?.flatten();
    if displaced.is_none() && joined.is_some_and(|marker| marker.id == record.id) {
        return Ok(());
    }
    bail!(
        Mismatch,
        "store {} has its cold directory at {}, which is not where this reader looks for newer \
         partitions; open it again",
        store.display(),
        record.path
    )
}

/// Takes all of a store that is being removed out of a directory that it had not noted yet.
pub(super) fn release(directory: &Path, io: IoChoice, store: u128) -> Result<()> {
    let medium = match Found::look(&places::named(directory)?, io)? {
        Some(Found { medium, marker: Some(marker) }) if marker.store == store => medium,
        _ => return Ok(()),
    };
    clear(&*medium)
}

/// Takes all of a store out of a directory that it does not need: the marker last.
fn clear(cold: &dyn Medium) -> Result<()> {
    for name in cold.list(PARTITION_PREFIX)?.iter().filter(|name| lies_apart(name)) {
        cold.remove(name)?;
    }
    cold.remove(MARKER)
}

/// A directory that is there, and what it says of itself.
pub(super) struct Found {
    medium: Arc<dyn Medium>,
    marker: Option<Pairing>,
}

impl Found {
    /// `None` where there is no such directory.
    fn look(directory: &Path, io: IoChoice) -> Result<Option<Self>> {
        if places::is_missing(directory)? {
            return Ok(None);
        }
        let medium = Arc::new(DirectoryMedium::open(directory, io)?);
        Self::of(medium).map(Some).map_err(|error| error.context(directory.display()))
    }

    /// A directory that is open.
    pub(super) fn of(medium: Arc<dyn Medium>) -> Result<Self> {
        let marker = Pairing::read(&*medium, MARKER)?;
        Ok(Self { medium, marker })
    }
}

fn partitions_in(cold: &dyn Medium) -> Result<Vec<String>> {
    let mut names = cold.list(PARTITION_PREFIX)?;
    names.retain(|name| has_rows(name));
    Ok(names)
}

/// The notes that a writer has to make about a store and its cold directory.
pub(super) struct Notes {
    own: Arc<dyn Medium>,
    cold: Arc<dyn Medium>,
    directory: PathBuf,
    /// To be written into the cold directory and into the store, unless it is there already.
    marker: Option<Pairing>,
    record: Option<Pairing>,
    /// The directory that the store had before.
    left: Option<Arc<dyn Medium>>,
}

impl Notes {
    /// Notes where the two are, durably. The marker is first: a power cut in between leaves a
    /// directory without partitions that names a store which does not know of it.
    pub(super) fn write(self) -> Result<()> {
        if let Some(marker) = &self.marker {
            let named = |error: Error| error.context(self.directory.display());
            marker.write(&*self.cold, MARKER).map_err(named)?;
        }
        if let Some(record) = &self.record {
            record.write(&*self.own, NAME)?;
        }
        if let Some(left) = &self.left {
            // It has no partition, and may become another store's. If this fails, its marker still
            // says whose it was.
            let _ = clear(&**left);
        }
        Ok(())
    }
}

/// State while a store and a cold directory are being joined.
pub(super) struct Joining {
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
    /// `None` for a store that has no cold directory and is to get none.
    pub(super) fn of(
        own: &Arc<dyn Medium>,
        path: &Path,
        options: &StoreOptions,
        superblock: &Superblock,
    ) -> Result<Option<Self>> {
        let remembered = Pairing::read(&**own, NAME)?;
        if remembered.as_ref().is_some_and(|pairing| pairing.store != superblock.uuid) {
            bail!(Corrupt, "{NAME} is of another store; restore it from a copy of this one");
        }
        let directory = match (&options.cold_directory, &remembered) {
            (Some(given), _) => places::named(given)?,
            (None, Some(pairing)) => PathBuf::from(&pairing.path),
            (None, None) => return Ok(None),
        };
        Ok(Some(Self {
            own: Arc::clone(own),
            path: path.to_path_buf(),
            store: superblock.uuid,
            directory,
            remembered,
            io: options.io,
            writes: !options.read_only,
        }))
    }

    /// Joins the directory, of which this was found.
    pub(super) fn join(self, found: Option<Found>) -> Result<Joined> {
        let (medium, marker) = match found {
            Some(Found { medium, marker: Some(marker) }) => (medium, marker),
            unmarked => return self.join_unmarked(unmarked),
        };
        match &self.remembered {
            // A store without the file has lost it, or was cut off before it had one.
            None if marker.store == self.store => {
                self.refuse_doubles(&*medium)?;
                self.go_on(medium, marker)
            }
            None => Err(taken(&self.directory, &marker)),
            Some(pairing) if self.is_paired(pairing, &marker) => self.go_on(medium, marker),
            Some(pairing) if marker.store == self.store => {
                let is_empty = partitions_in(&*medium)?.is_empty();
                if self.writes && is_empty && self.has_left(pairing)? {
                    return self.begin(Some(Found { medium, marker: Some(marker) }));
                }
                Err(self.refusal("was this store's cold directory before another one", pairing))
            }
            Some(pairing) => {
                let what = format!("is the cold directory of the store at {}", marker.path);
                Err(self.refusal(&what, pairing))
            }
        }
    }

    /// Joins a directory without a marker, or makes one that is not there, if the store is free to.
    fn join_unmarked(self, found: Option<Found>) -> Result<Joined> {
        match &self.remembered {
            Some(pairing) if !self.writes || !self.has_left(pairing)? => {
                let bare = format!("has no file {MARKER}, so it is no cold directory");
                let what = if found.is_some() { &*bare } else { "is not there" };
                Err(self.refusal(what, pairing))
            }
            _ => self.begin(found),
        }
    }

    fn is_paired(&self, pairing: &Pairing, marker: &Pairing) -> bool {
        (marker.store, marker.id) == (self.store, pairing.id)
    }

    /// Joins a directory whose marker is right.
    fn go_on(self, medium: Arc<dyn Medium>, marker: Pairing) -> Result<Joined> {
        self.refuse_copy(&marker)?;
        if !self.writes {
            return self.joined(medium, None, None);
        }
        let lock = self.lock(&*medium, Some(&marker))?;
        let id = marker.id;
        self.joined_to_write(medium, lock, id, Some(marker))
    }

    /// Joins a directory that has nothing yet, and makes it if need be.
    fn begin(self, found: Option<Found>) -> Result<Joined> {
        if !self.writes {
            bail!(
                Misuse,
                "store {} has no cold directory, and one that is opened read_only=True gets none; \
                 open it without cold_directory",
                self.path.display()
            );
        }
        let Found { medium, marker } = match found {
            Some(found) => found,
            None => {
                places::make(&self.directory)?;
                Found {
                    medium: Arc::new(DirectoryMedium::open(&self.directory, self.io)?),
                    marker: None,
                }
            }
        };
        if let Some(marker) = &marker {
            self.refuse_copy(marker)?;
        }
        places::check_fresh(&*medium)?;
        places::sync_name(&*medium)?;
        let lock = self.lock(&*medium, marker.as_ref())?;
        // Others may have put files there until it was locked.
        places::check_fresh(&*medium)?;
        let id = fresh_id(&self.directory, self.store);
        self.joined_to_write(medium, lock, id, marker)
    }

    /// Locks the directory, whose marker has to be the one that was found before.
    fn lock(&self, cold: &dyn Medium, marker: Option<&Pairing>) -> Result<WriterLock> {
        let directory = self.directory.display();
        let lock = WriterLock::take(cold, &self.directory)
            .map_err(|error| error.context(format!("cold directory {directory}")))?;
        match Pairing::read(cold, MARKER)? {
            now if now.as_ref() == marker => Ok(lock),
            Some(now) if now.store != self.store => Err(taken(&self.directory, &now)),
            _ => bail!(Locked, "cold directory {directory} changed while it was opened; try again"),
        }
    }

    fn joined_to_write(
        self,
        cold: Arc<dyn Medium>,
        lock: WriterLock,
        id: u128,
        found: Option<Pairing>,
    ) -> Result<Joined> {
        let cold = lock.guard(cold)?;
        let marker = Pairing { store: self.store, id, path: spelled(&self.path)? };
        let record = Pairing { path: spelled(&self.directory)?, ..marker.clone() };
        let left = match &self.remembered {
            Some(before) if before.id != id => {
                Found::look(Path::new(&before.path), self.io)?.map(|found| found.medium)
            }
            _ => None,
        };
        let notes = Notes {
            own: Arc::clone(&self.own),
            cold: Arc::clone(&cold),
            directory: self.directory.clone(),
            marker: Some(marker).filter(|marker| found.as_ref() != Some(marker)),
            record: Some(record).filter(|record| self.remembered.as_ref() != Some(record)),
            left,
        };
        self.joined(cold, Some(lock), Some(notes))
    }

    fn joined(
        &self,
        cold: Arc<dyn Medium>,
        lock: Option<WriterLock>,
        notes: Option<Notes>,
    ) -> Result<Joined> {
        let shares_device = places::share_device(&*self.own, &*cold)?;
        let own = Arc::clone(&self.own);
        let medium = Arc::new(RoutedMedium::new(own, cold, PARTITION_PREFIX, shares_device));
        Ok(Joined { medium, lock, notes })
    }

    /// Whether the remembered directory is there, right, and without partitions.
    fn has_left(&self, pairing: &Pairing) -> Result<bool> {
        let before = Path::new(&pairing.path);
        if before == self.directory {
            return Ok(false);
        }
        let Some(found) = Found::look(before, self.io)? else { return Ok(false) };
        let is_right = found.marker.as_ref().is_some_and(|marker| self.is_paired(pairing, marker));
        Ok(is_right && partitions_in(&*found.medium)?.is_empty())
    }

    /// Refuses the directory of a store of which this one is a copy by files.
    fn refuse_copy(&self, marker: &Pairing) -> Result<()> {
        let there = Path::new(&marker.path);
        if is_same_directory(there, &self.path) || !is_same_store(there, &self.path) {
            return Ok(());
        }
        bail!(
            Mismatch,
            "{} is the cold directory of the store at {}, of which {} is a copy: two stores \
             may not share one; copy with embedrock copy, or remove the other one",
            self.directory.display(),
            marker.path,
            self.path.display()
        )
    }

    /// Refuses a directory without which the store has gone on: partitions of one name would hide
    /// one another.
    fn refuse_doubles(&self, cold: &dyn Medium) -> Result<()> {
        let own = self.own.list(PARTITION_PREFIX)?;
        let Some(name) = partitions_in(cold)?.into_iter().find(|name| own.contains(name)) else {
            return Ok(());
        };
        bail!(
            Mismatch,
            "{name} is in cold directory {} and in store {}, which has gone on without it; open it \
             without cold_directory, or with one that is empty",
            self.directory.display(),
            self.path.display()
        )
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

fn fresh_id(directory: &Path, store: u128) -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let text = format!("{}\0{store}\0{now}\0{}", directory.display(), std::process::id());
    xxh3_128(text.as_bytes())
}
